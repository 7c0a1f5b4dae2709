"""The pages in docs/ and README say what the code does: their code runs, and prints what they show."""
from __future__ import annotations

import contextlib
import io
import re

import pytest

from docs.make_tour import BLOCK, BOOK, FOLDER, made, page, pages, stable, terms, tutorials, with_links


@pytest.fixture(scope="module")
def tour() -> str:
    return page("tour")


def chapter(text: str, number: int) -> str:
    return text.split(f"\n## {number}. ", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", pages())
def test_a_page_shows_what_its_code_prints_and_draws(name: str) -> None:
    for path, text in made(name).files.items():
        written = path.read_text(encoding="utf-8")
        assert stable(written) == stable(text), f"docs are out of date: run python docs/make_tour.py {name}"


def test_every_picture_is_drawn_by_a_page() -> None:
    shown = {path.parent / picture for path in FOLDER.rglob("*.md")
             for picture in re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", path.read_text(encoding="utf-8"))}
    assert shown == set(FOLDER.rglob("pictures/*.svg"))


@pytest.mark.parametrize("name", tutorials())
def test_a_tutorial_has_a_question_a_program_a_picture_and_an_exercise_that_is_checked(name: str) -> None:
    source = (FOLDER / f"{name}.source.md").read_text(encoding="utf-8")
    assert re.match(r"# .+\n\n\*\*The question\.\*\* [^`]*(`[^`]*`[^`]*)*\?\n\n", source) is not None
    head, rest = source.split("\n## Ten lines to run\n")
    assert BLOCK.search(head) is None
    lesson, exercise = rest.split("\n## Exercise\n")
    assert BLOCK.search(lesson) is not None and "```python picture=" in lesson
    task, answer = exercise.split("<details markdown=\"1\">\n<summary>Answer</summary>\n")
    assert task.strip() and "assert " in answer.split("</details>")[0]


def test_the_book_lists_each_tutorial_once() -> None:
    contents = (BOOK / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[.*\]\((\w+)\.md\) \|", contents, re.MULTILINE)
    assert sorted(listed) == [name.split("/")[1] for name in tutorials()]


def test_the_first_use_of_a_term_is_a_link_to_its_row() -> None:
    assert {"loop nest", "kernel fusion", "all-gather"} <= set(terms())
    source = "# Loop nests\n\nThe `loop nest` of [a loop nest](a.md): loop\nnests, and a loop nest.\n"
    assert with_links(source, "g.md") == source.replace("loop\nnests", "[loop\nnests](g.md#loop-nest)")
    block = "```python\nkernel = 1\n```\nA kernel is fused.\n"
    assert with_links(block, "g.md") == block.replace("A kernel", "A [kernel](g.md#kernel)")


def test_the_words_about_the_plan_hold(tour: str) -> None:
    """The text explains lanes, a tile of accumulators, staging and threads as what this plan does."""
    plan = chapter(tour, 5)
    assert all(f"\n{kind}(" in plan for kind in ("VECTOR", "UPCAST", "STAGE", "THREAD"))


def test_the_inner_loop_is_four_multiply_adds_an_accumulator(tour: str) -> None:
    accumulators = int(re.findall(r"(\d+) accumulators", tour)[0])
    machine_code = chapter(tour, 8)
    assert len(re.findall(r"vfmadd\S+ +\S+.*zmm", machine_code)) == 4 * accumulators
    assert "(%rsp" not in machine_code  # no accumulator was spilled to the stack


def test_the_example_of_the_readme_prints_what_it_says() -> None:
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().strip() == re.findall(r"# (.*)", code)[0]
