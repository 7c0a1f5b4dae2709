"""The words of docs/glossary.md are those of the code, what they replaced is gone, and one name is one
type."""
from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinygrad"
CORE = ("graph", "shape", "schedule", "codegen", "renderer", "engine", "jit", "tensor", "device", "runtime")
REPLACED = [
    "Belonging", "sums_by_place", "asking", "walking", "SPARE_ITEMS", "Facts", "FactsOfGraph", "Shown",
    "shown_of", "Growth", "crowds", "may_host", "as_host", "host_for", "Weighed", "Verdict", "ChainedSum",
    "chained_sums", "Passing", "passing", "chain_on_unit", "OnlineSums", "online_sums", "RowValue",
    "row_values", "keep_row", "keep_rows", "KEPT_ROW", "kept_rows", "KEEP", "CHAIN", "ONLINE", "SKIP",
    "skips_something", "LIMIT", "limit_of", "moving_crops", "at_variables", "Placed", "Bounded",
    "BlockSum", "block_sum", "Spread", "is_spread", "recut", "is_cut_as", "with_transposed_operands",
    "Recipe", "recalled", "KeptSchedules", "kept_kernel", "keeps_kernels", "Outside", "Way", "References",
    "is_doubtful", "doubtful", "_settle", "_is_settled", "settle", "unsettled", "unsettled_tensors",
    "_expires", "_expire", "traits", "TRAITS", "is_dear", "dear", "beside", "launch_groups", "guarded",
    "guarding", "guard_of", "zero_outside", "nothing_outside", "with_guarded", "belonging", "crowd",
    "recipes", "spare_items",
]
REPLACED_MODULES = [
    "facts", "growth", "chains", "crops", "bounded", "kept", "spread", "block_sums", "transposed",
    "recipes", "outside", "references", "decisions", "sharing", "belonging", "launches", "chain",
    "choose_chain", "online", "rows", "skip", "scatter", "traits", "leaves", "guards",
]


def rows() -> list[list[str]]:
    """The cells of each line of the glossary's table."""
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return cells[2:]


@pytest.fixture(scope="module")
def identifiers() -> dict[str, set[Path]]:
    """The names that the package's code uses, and where."""
    found: dict[str, set[Path]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NAME:
                found[token.string].add(path.relative_to(PACKAGE))
    return found


def test_every_term_has_names_a_meaning_and_a_source() -> None:
    assert len(rows()) > 40
    for cells in rows():
        assert len(cells) == 4, cells
        assert all(cells), cells
    terms = [cells[0] for cells in rows()]
    assert len(set(terms)) == len(terms)


def test_the_names_of_the_glossary_are_in_the_code(identifiers: dict[str, set[Path]]) -> None:
    names = [name for cells in rows() for name in re.findall(r"`(\w+)`", cells[1])]
    assert len(names) > 60
    assert [name for name in names if name not in identifiers] == []


def test_the_words_that_they_replaced_are_gone(identifiers: dict[str, set[Path]]) -> None:
    used = {name: [str(p) for p in sorted(identifiers[name]) if p.parts[0] in CORE] for name in REPLACED
            if name in identifiers}
    assert {name: paths for name, paths in used.items() if paths} == {}
    modules = {path.stem for part in CORE for path in (PACKAGE / part).rglob("*.py")}
    assert modules.intersection(REPLACED_MODULES) == set()


def test_one_name_is_one_type() -> None:
    """Classes, and names of types, of the compiler and the engine. (Names that begin with _ are a
    module's.)"""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (path for part in CORE for path in (PACKAGE / part).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(str(path.relative_to(PACKAGE)))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                text = ast.unparse(node.value)
                if isinstance(target, ast.Name) and re.match(r"[A-Z][a-z]", target.id) and "[" in text:
                    found[target.id].add(text)
    assert {name: types for name, types in found.items() if len(types) > 1} == {}
