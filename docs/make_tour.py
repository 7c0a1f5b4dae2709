"""Writes docs/NAME.md from docs/NAME.source.md, those of docs/tutorials/ too: runs the Python blocks of a
page in order and puts what they print below each.

    python docs/make_tour.py [NAME ...]

Words behind ```` ```python ```` say how a block is shown:

    head=20 tail=4             so many lines of what it prints are shown
    varies                     it prints what differs from machine to machine: the test leaves that out
    picture=NAME alt="WORDS"   it prints an SVG, which is kept in pictures/NAME.svg and shown as a picture

In a page of the book (docs/tutorials/ and docs/index.md) the first use of each term of the glossary in
running text becomes a link to it; headings, code and links stay as they are. Such a link leads to the term's
row on the site that mkdocs makes, which calls `on_page_markdown`, and to the top of the glossary elsewhere.
"""
from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
BOOK = FOLDER / "tutorials"
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
VARIES = "<!-- differs from machine to machine -->"
VARYING_OUTPUT = re.compile(rf"{VARIES}\n```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
COLOUR = re.compile(r"\x1b\[\d*m")
WIDTH = 140
"""Characters after which a line of output is cut."""
NOT_PROSE = re.compile(r"^```.*?^```$|^#.*?$|^<[^\n]*>$|`[^`\n]*`|!?\[[^\]]*\]\([^)]*\)",
                       re.MULTILINE | re.DOTALL)
"""Code, headings, lines of HTML, links and pictures."""
ROW = re.compile(r"^\| ([^|`]+?) \|(?= `)", re.MULTILINE)
"""The first cell of a row of the glossary; the second names something in the code."""


@dataclass
class Page:
    """A page that was made: its text, and its pictures by their paths below docs/."""

    name: str
    text: str = ""
    pictures: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[Path, str]:
        """What is written for it."""
        return {FOLDER / path: text for path, text in
                {f"{self.name}.md": self.text, **self.pictures}.items()}


def pages() -> list[str]:
    """The names of the pages that are made, from docs/ on."""
    return sorted(str(path.relative_to(FOLDER)).removesuffix(".source.md")
                  for path in FOLDER.rglob("*.source.md"))


def tutorials() -> list[str]:
    """Those of them that are a tutorial about one topic."""
    return [name for name in pages() if name.startswith(f"{BOOK.name}/")]


def page(name: str) -> str:
    """The text of docs/`name`.md, made by running every block."""
    return made(name).text


def made(name: str) -> Page:
    """docs/`name`.md and its pictures, made by running every block."""
    result = Page(name)
    names: dict[str, Any] = {}
    source = (FOLDER / f"{name}.source.md").read_text(encoding="utf-8")
    if name in ("index", *tutorials()):
        source = with_links(source, "../" * name.count("/") + "glossary.md")
    result.text = BLOCK.sub(lambda found: run_block(shlex.split(found[1]), found[2], names, result), source)
    return result


def run_block(words: list[str], code: str, names: dict[str, Any], on: Page) -> str:
    """The block as it is shown: its code, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, f"{Path(on.name).name}.py", "exec"), names)
    options = dict(w.split("=", 1) for w in words if "=" in w)
    shown = f"```python\n{code}```\n"
    if "picture" in options:
        path = f"pictures/{options['picture']}.svg"
        folder = f"{Path(on.name).parent}/".removeprefix("./")
        on.pictures[folder + path] = printed.getvalue()
        return f"{shown}\n![{options['alt']}]({path})\n"
    lines = COLOUR.sub("", printed.getvalue()).splitlines()
    lines = shortened(lines, int(options.get("head", len(lines))), int(options.get("tail", 0)))
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


# --- terms and their links ------------------------------------------------------------------------------


def terms() -> dict[str, str]:
    """The terms of the glossary, and the anchor of the row of each."""
    text = (FOLDER / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|")[0].strip() for line in text.splitlines() if line.startswith("|")]
    return {term: anchor(cell) for cell in rows[2:] for term in cell.split(", ")}


def anchor(cell: str) -> str:
    """The name of a row of the glossary in links, from its first cell."""
    return re.sub(r"\W+", "-", cell).strip("-")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs, whose hook this module is: the rows of the glossary get their anchors."""
    if page.file.src_uri != "glossary.md":
        return markdown
    return ROW.sub(lambda found: f'| <a id="{anchor(found[1])}"></a>{found[1]} |', markdown)


def with_links(source: str, glossary: str) -> str:
    """The text of a page with the first use of each term as a link; of terms in each other, the longest."""
    known = terms()
    longest_first = sorted(known, key=len, reverse=True)
    texts = (r"[ \n]".join(map(re.escape, term.split())) for term in longest_first)
    pattern = re.compile("|".join(rf"\b{text}(?:s|es)?\b" for text in texts), re.IGNORECASE)
    linked: set[str] = set()

    def link(found: re.Match[str]) -> str:
        word = " ".join(found[0].lower().split())
        term = next(t for t in longest_first if word in (t.lower(), f"{t.lower()}s", f"{t.lower()}es"))
        if known[term] in linked:
            return found[0]
        linked.add(known[term])
        return f"[{found[0]}]({glossary}#{known[term]})"

    return "".join(part if is_code else pattern.sub(link, part) for is_code, part in parts_of(source))


def parts_of(source: str) -> Iterator[tuple[bool, str]]:
    """A page in parts: (whether it is something else than running text, the part)."""
    at = 0
    for found in NOT_PROSE.finditer(source):
        yield False, source[at:found.start()]
        yield True, found[0]
        at = found.end()
    yield False, source[at:]


def main(names: list[str]) -> None:
    """Write the pages of these names, all if there are none."""
    for name in names or pages():
        for path, text in made(name).files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}.md")


if __name__ == "__main__":
    main(sys.argv[1:])
