"""The pages in docs/ and README say what the code does: their code runs, and prints what they show."""
from __future__ import annotations

import contextlib
import io
import re

import pytest

from docs.make_tour import FOLDER, page, pages, stable


@pytest.fixture(scope="module")
def tour() -> str:
    return page("tour")


def chapter(text: str, number: int) -> str:
    return text.split(f"\n## {number}. ", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", pages())
def test_a_page_shows_what_its_code_prints(name: str) -> None:
    written = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert stable(written) == stable(page(name)), "docs are out of date: run python docs/make_tour.py"


def test_the_words_about_the_plan_hold(tour: str) -> None:
    """The text explains lanes, a tile of accumulators, staging and threads as what this plan does."""
    plan = chapter(tour, 5)
    assert all(f"\n{kind}(" in plan for kind in ("VECTOR", "UPCAST", "STAGE", "THREAD"))


def test_the_inner_loop_is_one_multiply_add_an_accumulator(tour: str) -> None:
    accumulators = int(re.findall(r"(\d+) accumulators", tour)[0])
    machine_code = chapter(tour, 8)
    assert len(re.findall(r"vfmadd\S+ +\S+.*zmm", machine_code)) == accumulators
    assert "(%rsp" not in machine_code  # no accumulator was spilled to the stack


def test_the_example_of_the_readme_prints_what_it_says() -> None:
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().strip() == re.findall(r"# (.*)", code)[0]
