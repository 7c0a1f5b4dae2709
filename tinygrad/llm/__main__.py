"""`python -m tinygrad.llm`: continue a text, talk, measure, serve.

    python -m tinygrad.llm run MODEL "prompt" [--tokens N] [--greedy] [--raw]
    python -m tinygrad.llm chat MODEL
    python -m tinygrad.llm bench MODEL [--prompt-tokens N] [--tokens M]
    python -m tinygrad.llm serve MODEL [--port P]

MODEL is a GGUF file, a Hugging Face folder, or `smollm2` for the installed package.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from tinygrad.llm.generate import Mask, PromptTooLong, Request
    from tinygrad.llm.grammar import SchemaMask, grammar_mask
    from tinygrad.llm.language_model import LanguageModel
except ModuleNotFoundError as error:
    raise SystemExit(f"tinygrad.llm: {error}; language models need pip install 'tinygrad[llm]'") from None
from tinygrad.helpers import drop_output, open_streams
from tinygrad.llm.sampling import Sampling

SIGINT, SIGPIPE = 2, 13
"""Numbers of signals, which Windows has not."""
TEMPERATURE, TOP_P = 0.7, 0.95


def parser() -> argparse.ArgumentParser:
    """The words that the command knows."""
    whole = argparse.ArgumentParser(prog="python -m tinygrad.llm", description="Language models.")
    commands = whole.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="write an answer to a prompt, or continue it")
    chat = commands.add_parser("chat", help="talk in the terminal")
    bench = commands.add_parser("bench", help="measure; prints a line of JSON")
    serve = commands.add_parser("serve", help="answer OpenAI's HTTP interface")
    for command in (run, chat, bench, serve):
        command.add_argument("model", help="a GGUF file, a Hugging Face folder, or smollm2")
        command.add_argument("--context", type=int, help="tokens of context (default: at most 4096)")
        command.add_argument("--activations", choices=["int8", "float32"],
                             help="what weights in blocks are multiplied with (default: int8 if fast)")
        command.add_argument("--cache", default="float16", choices=["float32", "float16", "int8"],
                             help="type of keys and values (default: float16)")
    run.add_argument("prompt")
    run.add_argument("--raw", action="store_true", help="no chat template: continue the prompt")
    run.add_argument("--json-schema", help="a file with the JSON schema that the answer is to follow")
    run.add_argument("--grammar", help="a file with the grammar of the answer, as llama.cpp or Lark write it")
    chat.add_argument("--system", help="what the model is told first")
    for command in (run, chat):
        command.add_argument("--tokens", type=int, default=256, help="at most (default: 256)")
        command.add_argument("--greedy", action="store_true", help="always the likeliest token")
        command.add_argument("--temperature", type=float, default=TEMPERATURE)
        command.add_argument("--top-k", type=int, default=0)
        command.add_argument("--top-p", type=float, default=TOP_P)
        command.add_argument("--min-p", type=float, default=0.0)
        command.add_argument("--repetition-penalty", type=float, default=1.0)
        command.add_argument("--seed", type=int)
        command.add_argument("--stop", action="append", default=[], help="a text before which to stop")
    bench.add_argument("--prompt-tokens", type=int, default=441)
    bench.add_argument("--tokens", type=int, default=64)
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8080)
    serve.add_argument("--slots", type=int, default=8, help="answers that are written at once (default: 8)")
    serve.add_argument("--queue", type=int, default=64, help="requests that may wait (default: 64)")
    serve.add_argument("--timeout", type=float, default=600.0, help="seconds for an answer (default: 600)")
    serve.add_argument("--api-key", help="what clients must send (default: LLM_API_KEY of the environment)")
    return whole


def sampling_of(options: argparse.Namespace) -> Sampling:
    return Sampling(temperature=0.0 if options.greedy else options.temperature, top_k=options.top_k,
                    top_p=options.top_p, min_p=options.min_p, repetition_penalty=options.repetition_penalty,
                    seed=options.seed, stop=tuple(options.stop), tokens=options.tokens)


def opened(options: argparse.Namespace, slots: int = 1) -> LanguageModel:
    return LanguageModel(options.model, slots, options.context, options.cache,
                         activations=options.activations)


def write(text: str) -> None:
    print(text, end="", flush=True)


def run(options: argparse.Namespace) -> None:
    """Write what follows; the speed goes to stderr."""
    sampling = sampling_of(options)
    model = opened(options)
    messages = [{"role": "user", "content": options.prompt}]
    request = model.request(options.prompt if options.raw else messages, sampling,
                            mask=mask_of(options, model))
    seconds = timed_steps(model, request, write)
    print()
    read, written = len(request.prompt), len(request.tokens)
    print(f"prompt: {read} tokens, {rate(read, seconds[0]):.1f} tokens a second; "
          f"text: {written} tokens, {rate(written - 1, seconds[1]):.1f} tokens a second",
          file=sys.stderr)


def mask_of(options: argparse.Namespace, model: LanguageModel) -> Mask | None:
    """What keeps the answer to a schema or grammar, if one was given."""
    size = model.config.vocabulary
    if options.grammar is not None and options.json_schema is not None:
        raise ValueError("an answer follows a schema or a grammar, not both")
    if options.grammar is not None:
        return grammar_mask(model.tokenizer, size, Path(options.grammar).read_text(encoding="utf-8"))
    if options.json_schema is not None:
        try:
            schema = json.loads(Path(options.json_schema).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{options.json_schema} is not JSON: {error}") from error
        return SchemaMask(model.tokenizer, size, schema)
    return None


def timed_steps(model: LanguageModel, request: Request, show: Any = None) -> tuple[float, float]:
    """Work on a request; the seconds until its first token, and those after: 0 for what did not happen."""
    start = time.perf_counter()
    first = None
    shown = 0
    while request.finish is None:
        model.generator.step()
        if first is None and not request.is_reading:
            first = time.perf_counter()
        if show is not None:
            show(request.text[shown:])
            shown = len(request.text)
    if request.error is not None:
        raise ValueError(request.error)
    return (first - start, time.perf_counter() - first) if first is not None else (0.0, 0.0)


def rate(tokens: int, seconds: float) -> float:
    """Tokens a second, 0 where none were asked for."""
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


def chat(options: argparse.Namespace) -> None:
    """Read a line, write an answer, until the input ends. What was said is forgotten where there is no room
    for it."""
    sampling = sampling_of(options)
    model = opened(options)
    told = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(told)
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):  # Windows has none
            importlib.import_module("readline")  # more than 4,095 characters a line, pasted lines together
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        messages.append({"role": "user", "content": line})
        try:
            request = model.chat(messages, sampling, write)
        except PromptTooLong as error:
            print(f"tinygrad.llm: {error}; what was said is forgotten", file=sys.stderr)
            messages = list(told)
            continue
        print()
        messages.append({"role": "assistant", "content": request.text})


def bench(options: argparse.Namespace) -> None:
    """Measure once everything is compiled: a prompt that no slot holds yet, then tokens one by one."""
    start = time.perf_counter()
    model = opened(options)
    loaded = time.perf_counter() - start
    vocabulary, count = model.config.vocabulary, options.prompt_tokens
    if options.tokens < 1:
        raise ValueError("a prompt is read when the first token is there: tokens is 1 or more, "
                         f"not {options.tokens}")
    sampling = Sampling(tokens=options.tokens, ignore_ends=True)
    for seed in (0, 1):  # the first one traces and compiles
        prompt = [(seed + 1 + 7 * i) % vocabulary for i in range(count)]
        request = model.generator.submit(prompt, sampling)
        seconds = timed_steps(model, request)
    print(json.dumps({"model": model.name, "prompt_tokens": count, "tokens": len(request.tokens),
                      "prefill_tokens_per_second": round(rate(count, seconds[0]), 1),
                      "decode_tokens_per_second": round(rate(len(request.tokens) - 1, seconds[1]), 1),
                      "load_seconds": round(loaded, 3), "peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """The most memory that this process had, 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def serve(options: argparse.Namespace) -> None:
    """Answer requests until interrupted."""
    try:
        from tinygrad.llm.server import check_address, serve_model
    except ImportError as error:
        raise ValueError(f"{error}: serving needs pip install 'tinygrad[serve]'") from error
    check_address(options.host, options.port)
    serve_model(opened(options, options.slots), options.host, options.port, options.queue, options.timeout,
                options.api_key)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Returns 2, with a line that says why, where the model or a setting is wrong, and what
    shells say of a program that Ctrl-C ends (130), or that nobody reads the output of (141)."""
    open_streams()
    options = parser().parse_args(words)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what is typed may be no text, or cannot be written there
    try:
        {"run": run, "chat": chat, "bench": bench, "serve": serve}[options.command](options)
    except BrokenPipeError:  # whoever read the text has gone
        drop_output()
        return 128 + SIGPIPE
    except (ValueError, OSError) as error:
        print(f"tinygrad.llm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + SIGINT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
