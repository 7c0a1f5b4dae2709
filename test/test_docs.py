"""Examples with `>>>` in docs/ run, and give what the page says."""
from __future__ import annotations

import doctest
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs"
PAGES = [path for path in sorted(FOLDER.glob("*.md")) if ">>>" in path.read_text(encoding="utf-8")]


def test_there_are_pages_with_examples() -> None:
    assert {"transforms.md", "custom_gradients.md"} <= {path.name for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_examples_of_a_page_give_what_it_says(path: Path) -> None:
    results = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert results.attempted > 0 and results.failed == 0
