"""The size of what one has to read at once: modules and functions of the library."""
from __future__ import annotations

import ast
from pathlib import Path

import tinygrad

ROOT = Path(tinygrad.__file__).parent
MOST_LINES_OF_A_MODULE = 600
MOST_LINES_OF_A_FUNCTION = 60


def sources() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def test_no_module_is_longer_than_one_reads() -> None:
    lengths = {name: text.count("\n") for name, text in sources().items()}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES_OF_A_MODULE} == {}


def test_no_function_is_longer_than_one_reads() -> None:
    long = {}
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long[f"{name}, {node.name}"] = lines
    assert long == {}
