"""Writes docs/reference/*.md, a page for each family of functions, from their signatures and docstrings.

    python docs/make_reference.py

`FAMILIES` says which modules make a page. Examples in docstrings are run by the tests twice: where they
stand, and on the page.
"""
from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tinygrad.functional.methods import Methods
from tinygrad.functional.numerical_methods import NumericalMethods

FOLDER = Path(__file__).parent / "reference"
EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
LINE = 80
"""Characters after which a signature is broken into lines."""
MADE = "<!-- made by docs/make_reference.py from the docstrings -->"


@dataclass(frozen=True)
class Family:
    """One page."""

    page: str
    title: str
    modules: tuple[str, ...]


FAMILIES = (
    Family("tensor", "Tensors", ("tensor.tensor", "tensor.reading", "tensor.modes", "functional.placement",
                                  "functional.differentiation", "compat.tensors")),
    Family("creation", "Creation", ("functional.creation",)),
    Family("random", "Random numbers", ("functional.random", "tensor.generator")),
    Family("elementwise", "Arithmetic, comparisons, bits and casts",
           ("functional.elementwise", "functional.comparisons", "functional.casts")),
    Family("mathematics", "Powers, exponentials, trigonometry",
           ("functional.mathematics", "functional.error_function", "functional.gamma_functions",
            "functional.divisors", "functional.special_functions", "functional.float_parts")),
    Family("activation", "Activations", ("functional.activation",)),
    Family("movement", "Movement", ("functional.movement", "functional.joining", "functional.arrangements",
                                    "functional.rearrange")),
    Family("reduce", "Reductions, scans and sorting", ("functional.reduce", "functional.running",
                                                       "functional.sorting")),
    Family("indexing", "Indexing", ("functional.indexing", "functional.selecting")),
    Family("linalg", "Linear algebra", ("functional.linalg", "functional.decompositions",
                                        "functional.equations", "functional.matrix_functions")),
    Family("signals", "Fourier transforms and windows", ("functional.fourier", "functional.signals")),
    Family("pytorch_names", "More of PyTorch's names", ("functional.pytorch_names", "functional.properties")),
    Family("statistics", "Order statistics, counts, distances", ("functional.statistics",)),
    Family("networks", "Convolution, pooling, normalisation, attention",
           ("functional.convolution", "functional.pooling", "functional.nn")),
    Family("losses", "Losses", ("functional.losses",)),
    Family("interop", "Other libraries", ("functional.interop",)),
    Family("transforms", "Functions of functions", ("functional.transforms", "functional.function")),
    Family("functional", "nn.functional", ("nn.functional", "nn.losses", "nn.grids")),
    Family("layers", "Layers", ("nn.layers", "nn.containers", "nn.function_layers", "nn.recurrent",
                                "nn.attention", "nn.lazy")),
    Family("optim", "Optimizers, schedules, initial values", (
        "nn.optim", "nn.optim.optimizer", "nn.optim.descent", "nn.optim.adam", "nn.optim.adaptive",
        "nn.optim.lbfgs", "nn.lr_scheduler", "nn.utils",
        "nn.utils.parametrize", "nn.utils.parametrizations", "nn.init")),
    Family("parallel", "Training on several devices", ("nn.parallel", "nn.pipeline", "functional.mesh")),
    Family("state", "Weights in files", ("nn.state", "nn.checkpoints", "nn.gguf_files")),
    Family("jit", "TinyJit", ("jit.jit",)),
    Family("dtype", "Number types", ("dtype",)),
)
PUBLIC = {
    "functional.transforms": ("grad", "value_and_grad", "vjp", "jvp", "vmap"),
    "functional.function": ("Function",),
    "jit.jit": ("TinyJit",),
    "dtype": ("promote", "least_upper_float", "sum_dtype", "to_dtype"),
    "tensor.tensor": ("Tensor",),
    "tensor.reading": ("numpy", "tolist", "item"),
    "tensor.modes": ("train", "no_grad"),
    "nn.pipeline": ("Pipeline",),
    "nn.optim.optimizer": ("Optimizer", "OptimizerGroup"),
    "nn.optim.adam": ("LAMB", "Adam", "AdamW", "Adamax", "NAdam", "RAdam"),
    "nn.optim.lbfgs": ("LBFGS",),
    "nn.checkpoints": ("save", "load"),
    "nn.gguf_files": ("gguf_load", "gguf_save"),
}
"""What is public of modules that have no methods of Tensor, and define more than their users call."""
INTERNAL = {
    *(f"Tensor.{name}" for name in ("of", "leaf", "view_of", "uop", "lazydata", "substitute", "schedule",
                                    "computed", "compute_whole", "is_tracked", "write", "overwrite")),
    "TinyJit.call", "TinyJit.keep",
}
"""Methods that other modules of this library call, and users do not."""


def pages() -> dict[str, str]:
    """The text of every page, by its path in docs/reference."""
    made = {f"{family.page}.md": page(family) for family in FAMILIES}
    return {"index.md": index(), **made}


def index() -> str:
    """The list of families, each with the names it has."""
    rows = []
    for family in FAMILIES:
        names = (heading(name).removeprefix("## ") for name in names_of(family))
        links = (f"[`{name}`]({family.page}.md#{name.lower()})" for name in names if "#" not in name)
        rows.append(f"| [{family.title}]({family.page}.md) | {', '.join(links)} |")
    return "\n".join(["# Reference", "", MADE, "", "| family | names |", "| --- | --- |", *rows]) + "\n"


def page(family: Family) -> str:
    """One family: what its modules say of themselves, then every public function and class."""
    parts = [f"# {family.title}", MADE]
    for name in family.modules:
        module = importlib.import_module(f"tinygrad.{name}")
        parts.append(shown(inspect.getdoc(module) or ""))
        parts += [entry(names, value) for names, value in entries(module)]
    return "\n\n".join(parts) + "\n"


def names_of(family: Family) -> list[str]:
    modules = [importlib.import_module(f"tinygrad.{name}") for name in family.modules]
    return [names[0] for module in modules for names, _ in entries(module)]


def entries(module: ModuleType) -> Iterator[tuple[list[str], Any]]:
    """The public functions and classes of a module as they stand in it, with all names that users call them
    by."""
    found = bound_names()
    public = PUBLIC.get(module.__name__.removeprefix("tinygrad."), ())
    own: dict[Any, None] = {}
    for name, wrapped in vars(module).items():
        if getattr(wrapped, "__module__", None) != module.__name__ or not callable(wrapped):
            continue
        value = inspect.unwrap(wrapped)
        if name in public or is_imported(module, name, value):
            found.setdefault(value, []).append(name)
        if value in found:
            own[value] = None
    for value in own:
        yield found[value], value
        yield from public_members(found[value][0], value)


def is_imported(module: ModuleType, name: str, value: Any) -> bool:
    """Whether users import a name from a module, rather than call it as a method of Tensor."""
    if module.__name__.removeprefix("tinygrad.") in PUBLIC:
        return False
    return module.__name__.startswith("tinygrad.nn.") and not name.startswith("_") and bool(value.__doc__)


def public_members(owner: str, value: Any) -> Iterator[tuple[list[str], Any]]:
    """The documented methods and properties that a public class defines itself."""
    if not inspect.isclass(value):
        return
    for name, member in vars(value).items():
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if not name.startswith("_") and f"{owner}.{name}" not in INTERNAL and function.__doc__ \
                and (inspect.isfunction(function) or isinstance(function, property)):
            yield [f"{owner}.{name}"], function


def bound_names() -> dict[Any, list[str]]:
    """Each function that is a method or static method of Tensor (and no dunder alone), with its names."""
    found: dict[Any, list[str]] = {}
    for name, member in (vars(NumericalMethods) | vars(Methods)).items():
        function = inspect.unwrap(member.__func__ if isinstance(member, staticmethod) else member)
        if inspect.isfunction(function) and not name.startswith("__"):
            found.setdefault(function, []).append(f"Tensor.{name}")
    return found


def entry(names: list[str], value: Any) -> str:
    """One function or class: its name as the heading, how it is called, and what it says."""
    others = f"\n\nAlso: {', '.join(f'`{name}`' for name in names[1:])}." if names[1:] else ""
    call = "" if isinstance(value, property) else f"\n\n```python\n{names[0]}{signature(value)}\n```"
    return f"{heading(names[0])}{call}\n\n{shown(inspect.getdoc(value) or '')}{others}"


def heading(name: str) -> str:
    """Methods of Tensor under their own names; members of other classes one level below the class."""
    method = name.removeprefix("Tensor.")
    return f"{'###' if '.' in method else '##'} {method}"


def signature(value: Any) -> str:
    """The parameters as they are written, without self: one line, or one a line where that is too long."""
    found = inspect.signature(value)
    written = [parameter(p) for p in found.parameters.values() if p.name != "self"]
    has_result = found.return_annotation is not found.empty and not inspect.isclass(value)
    returns = f" -> {found.return_annotation}" if has_result else ""
    line = f"({', '.join(written)}){returns}"
    return line if len(line) <= LINE else "(\n" + "".join(f"    {p},\n" for p in written) + f"){returns}"


def parameter(p: inspect.Parameter) -> str:
    """One parameter with its type, which `inspect` would show in quotes, and its default."""
    stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
    kind = "" if p.annotation is p.empty else f": {p.annotation}"
    return f"{stars}{p.name}{kind}" + ("" if p.default is p.empty else f" = {p.default!r}")


def shown(docstring: str) -> str:
    """A docstring as Markdown: examples in blocks of their own."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for path, text in pages().items():
        (FOLDER / path).write_text(text, encoding="utf-8")
    print(f"wrote {len(pages())} pages to {FOLDER}")
