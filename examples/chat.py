"""A conversation with a language model in the terminal.

    python3 examples/chat.py [model] [--system TEXT] [--temperature T] [--tokens N]

The model is a GGUF file, a Hugging Face folder, or smollm2 for the installed package (the default). An empty
line begins anew; the end of the input (Ctrl-D) ends.
"""
from __future__ import annotations

import argparse

from tinygrad.llm.language_model import LanguageModel
from tinygrad.llm.sampling import Sampling


def show(text: str) -> None:
    print(text, end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Talk with a language model.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a file or folder (default: smollm2)")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 takes the likeliest (default: 0.7)")
    parser.add_argument("--tokens", type=int, default=512, help="of an answer, at most (default: 512)")
    args = parser.parse_args()
    try:
        model = LanguageModel(args.model)
        sampling = Sampling(temperature=args.temperature, top_p=0.95, tokens=args.tokens)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    told = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(told)
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if not line:
            messages = list(told)
            continue
        messages.append({"role": "user", "content": line})
        answer = model.chat(messages, sampling, show)
        print()
        messages.append({"role": "assistant", "content": answer.text})


if __name__ == "__main__":
    main()
