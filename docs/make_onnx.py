"""Writes the tables of operators and tests into docs/onnx.md: `python docs/make_onnx.py`. Tests compare."""
from __future__ import annotations

import importlib
import sys
from pathlib import Path

import tinygrad.nn.onnx.ops  # noqa: F401  # fills the table
from tinygrad.nn.onnx.registry import OPERATORS

PAGE = Path(__file__).parent / "onnx.md"
HEADING = "## Operators\n"
HELPERS = Path(__file__).parents[1] / "test" / "nn_onnx"


def table() -> str:
    """The operators by set and module; in brackets from which versions on functions differ."""
    rows: dict[tuple[str, str], list[str]] = {}
    for (domain, name), versions in sorted(OPERATORS.items()):
        module = versions[-1].function.__module__.rpartition(".")[2]
        since = [v.since for v in versions]
        spelled = name if since == [1] else f"{name} ({', '.join(map(str, since))})"
        rows.setdefault((domain or "ai.onnx", module), []).append(spelled)
    lines = ["| set | module | operators |", "| --- | --- | --- |"]
    lines += [f"| {domain} | `{module}` | {', '.join(names)} |" for (domain, module),
              names in sorted(rows.items())]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, heading, _ = text.partition(HEADING)
    count = sum(not domain for domain, _ in OPERATORS)
    says = "\n".join([
        f"{count} operators of the standard have a function here, other sets are below. In brackets:",
        "from which versions on a function counts, where there are several or the first is not version 1's.",
        "Attention, RotaryEmbedding, AffineGrid, LinearAttention, CausalConvWithState, FlexAttention run as",
        "what the standard says they are. Written by `python docs/make_onnx.py`."])
    return f"{before}{heading}\n{says}\n\n{table()}\n"


def with_figures(text: str) -> str:
    """The page with the figures of the `onnx` package's tests as they are now."""
    sys.path.insert(0, str(HELPERS))
    backend = importlib.import_module("onnx_backend")
    start, end = text.index("| tests |"), text.index(HEADING)
    return f"{text[:start]}{backend.figures(backend.standard_tests(__name__))}\n{text[end:]}"


if __name__ == "__main__":
    PAGE.write_text(page(with_figures(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
