"""A conversation with a language model in the terminal.

    python3 examples/chat.py [model] [--system TEXT] [--temperature T] [--tokens N]

The model is a GGUF file, a Hugging Face folder, or smollm2 for the installed package (the default). An empty
line begins anew, and so does a conversation that the model has no room for. Ctrl-C ends, and the end of the
input (Ctrl-D).
"""
from __future__ import annotations

import argparse
from functools import partial

from options import parse

from tinygrad.helpers import drop_output
from tinygrad.llm.generate import PromptTooLong
from tinygrad.llm.language_model import LanguageModel
from tinygrad.llm.sampling import Sampling


def main() -> None:
    parser = argparse.ArgumentParser(description="Talk with a language model.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a file or folder (default: smollm2)")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 takes the likeliest (default: 0.7)")
    parser.add_argument("--tokens", type=int, default=512, help="of an answer, at most (default: 512)")
    args = parse(parser, tokens=1)
    try:
        model = LanguageModel(args.model)
        sampling = Sampling(temperature=args.temperature, top_p=0.95, tokens=args.tokens)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    told = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(told)
    try:
        while True:
            line = input("> ")
            if not line:
                messages = list(told)
                continue
            messages.append({"role": "user", "content": line})
            try:
                answer = model.chat(messages, sampling, partial(print, end="", flush=True))
            except PromptTooLong as error:
                print(f"{error}; what was said is forgotten")
                messages = list(told)
                continue
            print()
            messages.append({"role": "assistant", "content": answer.text})
    except BrokenPipeError:  # whoever read the text has gone
        drop_output()
    except (EOFError, KeyboardInterrupt):
        print()


if __name__ == "__main__":
    main()
