"""Writes docs/NAME.md from docs/NAME.source.md: runs its Python blocks in order and puts what they print
below each.

    python docs/make_tour.py

Words behind ```` ```python ```` say how a block is shown: `head=20 tail=4` keeps so many lines of what it
prints, `varies` marks output that differs from machine to machine, which the test leaves out.
"""
from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
VARIES = "<!-- differs from machine to machine -->"
VARYING_OUTPUT = re.compile(rf"{VARIES}\n```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
COLOUR = re.compile(r"\x1b\[\d*m")
WIDTH = 140
"""Characters after which a line of output is cut."""


def pages() -> list[str]:
    """The names of the pages that are made."""
    return sorted(path.name.removesuffix(".source.md") for path in FOLDER.glob("*.source.md"))


def page(name: str) -> str:
    """The text of docs/`name`.md, made by running every block."""
    names: dict[str, Any] = {}
    source = (FOLDER / f"{name}.source.md").read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: run_block(found[1].split(), found[2], names), source)


def run_block(words: list[str], code: str, names: dict[str, Any]) -> str:
    """The block as it is shown: its code, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<block of a page>", "exec"), names)
    sizes = dict(w.split("=") for w in words if "=" in w)
    shown = f"```python\n{code}```\n"
    lines = COLOUR.sub("", printed.getvalue()).splitlines()
    lines = shortened(lines, int(sizes.get("head", len(lines))), int(sizes.get("tail", 0)))
    if lines:
        marker = f"{VARIES}\n" if "varies" in words else ""
        shown += "\n" + marker + "\n".join(["```text", *lines, "```", ""])
    return shown


def shortened(lines: list[str], head: int, tail: int) -> list[str]:
    """The first and last lines, with the number of those left out; long ones cut."""
    left_out = len(lines) - head - tail
    if left_out > 1:
        indent = re.match(r" *", lines[head])
        gap = f"{indent[0] if indent else ''}... {left_out} more lines"
        lines = [*lines[:head], gap, *lines[len(lines) - tail:]]
    return [line if len(line) <= WIDTH else line[:WIDTH - 4] + " ..." for line in lines]


def stable(text: str) -> str:
    """A page without what differs from machine to machine."""
    return VARYING_OUTPUT.sub(VARIES, text)


if __name__ == "__main__":
    for name in pages():
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
        print(f"wrote docs/{name}.md")
