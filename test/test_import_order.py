"""Imports point downwards: to modules of the same package and of lower ones, wherever the import stands."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tinygrad

ROOT = Path(tinygrad.__file__).parent
PAGE = ROOT.parent / "docs" / "architecture.md"
EXCEPTIONS = {
    ("tensor.tensor", "functional.methods"):
        "a class and its methods need each other: what tensors can do takes and returns tensors, and is what "
        "`Tensor` inherits",
    ("graph.uop", "shape.shapetracker"):
        "a node knows how its items lie in memory (`node.st`), which is said by expressions, that is nodes",
    ("graph.uop", "device"):
        "for its type alone: a BUFFER node holds memory, which the graph never asks for anything",
    ("graph.storage", "device"):
        "for its type alone: where the memory of BUFFER nodes is kept",
}
"""The imports, by module, that point upwards, and why."""
WITHOUT_CIRCLES = ("shape", "renderer", "codegen", "schedule", "engine", "jit", "torch", "llm")
"""The packages in which no modules import each other in a circle either."""


def order() -> list[str]:
    """The packages and single modules of the library, lowest first, as docs/architecture.md has them."""
    found = re.search(r"^ORDER = (\[.*?\])$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: list[str] = ast.literal_eval(found[1])
    return names


def modules() -> dict[str, Path]:
    """Every module by its dotted name within the library, which itself is the empty one."""
    return {dotted(path.relative_to(ROOT)): path for path in ROOT.rglob("*.py")}


def dotted(path: Path) -> str:
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


def imported(source: str, package: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules of the library, by their names within it, that a module's source imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["tinygrad", *filter(None, package.split("."))]
            base = above[:len(above) + 1 - node.level] if node.level else []
            names = [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            given = node.args[0] if called in ("import_module", "__import__") and node.args else None
            names = [given.value] if isinstance(given, ast.Constant) and isinstance(given.value, str) else []
        else:
            continue
        for name in names:
            top, _, inside = name.partition(".")
            if top == "tinygrad":
                yield inside if inside in known else inside.rpartition(".")[0]


@cache
def imports() -> dict[str, set[str]]:
    """What each module of the library imports of it."""
    files = modules()
    found = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name] = set(imported(path.read_text(encoding="utf-8"), package, files)) - {name}
    return found


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_order_has_every_package_once() -> None:
    own = {package_of(name) for name in modules()} - {"", "__main__"}
    assert sorted(order()) == sorted(own), "docs/architecture.source.md, ORDER: a package is missing or gone"


def test_every_import_points_downwards() -> None:
    rank = {package: i for i, package in enumerate(order())}
    highest = len(rank)  # the library itself and its command, which gather the rest
    upwards = {(module, other) for module, others in imports().items() for other in others
               if rank.get(package_of(other), highest) > rank.get(package_of(module), highest)}
    assert upwards == set(EXCEPTIONS)


def test_the_exceptions_are_few_and_have_reasons() -> None:
    assert len(EXCEPTIONS) <= 5
    assert all(EXCEPTIONS.values())


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_modules_of_a_package_form_no_circle(package: str) -> None:
    inside = {module: {other for other in others if package_of(other) == package}
              for module, others in imports().items() if package_of(module) == package}
    try:
        TopologicalSorter(inside).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize(("source", "expected"), [
    ("import tinygrad.nn.layers", "nn.layers"),
    ("from tinygrad.nn import layers", "nn.layers"),
    ("from tinygrad.nn.layers import Linear", "nn.layers"),
    ("from tinygrad import nn", "nn"),
    ("from tinygrad import Tensor", ""),
    ("from .layers import Linear", "nn.layers"),
    ("from . import layers", "nn.layers"),
    ("from .. import dtype", "dtype"),
    ("from ..dtype import dtypes", "dtype"),
    ("def f():\n    from tinygrad.nn import layers", "nn.layers"),
    ("if TYPE_CHECKING:\n    from tinygrad.nn.layers import Linear", "nn.layers"),
    ("class A:\n    try:\n        import tinygrad.dtype\n    except ImportError:\n        pass", "dtype"),
    ("importlib.import_module('tinygrad.nn.layers')", "nn.layers"),
])
def test_an_import_is_found_wherever_it_is(source: str, expected: str) -> None:
    known = dict.fromkeys(("", "nn", "nn.layers", "dtype"))
    assert list(imported(source, "nn", known)) == [expected]


def test_imports_of_others_are_not_ours() -> None:
    assert not list(imported("import numpy\nfrom tinygrading import Tensor\nfrom os import path", "nn", {}))
