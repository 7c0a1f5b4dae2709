"""docs/tour.md says what the code does: every block runs, and prints what the page shows."""
from __future__ import annotations

import re

import pytest
from docs.make_tour import FOLDER, stable, tour


@pytest.fixture(scope="module")
def made() -> str:
    return tour()


def block(text: str, heading: str) -> str:
    """The part of the tour under a heading."""
    return text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]


def test_the_page_shows_what_the_code_prints(made: str) -> None:
    page = (FOLDER / "tour.md").read_text(encoding="utf-8")
    assert stable(page) == stable(made), "docs/tour.md is out of date: run python docs/make_tour.py"


def test_the_words_about_the_plan_hold(made: str) -> None:
    """The text explains lanes, a tile of accumulators, staging and threads as what this plan does."""
    plan = block(made, "5.")
    assert all(f"\n{kind}(" in plan for kind in ("VECTOR", "UPCAST", "STAGE", "THREAD"))


def test_the_inner_loop_is_one_multiply_add_an_accumulator(made: str) -> None:
    accumulators = int(re.findall(r"(\d+) accumulators", made)[0])
    machine_code = block(made, "8.")
    assert len(re.findall(r"vfmadd\S+ +\S+zmm", machine_code)) == accumulators
    assert "(%rsp" not in machine_code  # no accumulator was spilled to the stack
