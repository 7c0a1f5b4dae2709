"""Names of graph nodes at the path that scripts written for tinygrad import them from. What they are here is
in `tinygrad/graph/`, whose nodes and rewrite rules are others than tinygrad's."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from tinygrad.graph.ops import Ops as Ops
from tinygrad.graph.ops import RangeKind
from tinygrad.graph.sizes import Size, as_size, node_of, truth_of, value_of, variables_in
from tinygrad.graph.uop import UOp as UOp

AxisType = RangeKind
Variable = UOp
"""the class of what `tinygrad.Variable` makes, for annotations and `isinstance`"""
sint: TypeAlias = int | UOp | Size


class KernelInfo:
    """What tinygrad's kernels written by hand end with. Raises NotImplementedError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("kernels are not written by hand here, so KernelInfo says nothing: see "
                                  "Tensor.custom_kernel")


def resolve(x: UOp | bool, default: bool = True) -> bool:
    """The truth of a condition: that for all values of its Variables, or for those that are bound; else
    `default`.

    >>> from tinygrad import Variable
    >>> n = Variable("n", 1, 5)
    >>> resolve(n < 9), resolve(n < 3), resolve(n < 3, False), resolve(n.bind(2) < 3, False)
    (True, True, False, True)
    """
    if not isinstance(x, UOp):
        return bool(x)
    low, high = x.bounds
    if low == high:
        return bool(low)
    truth = truth_of(x)
    return default if truth is None else truth


def sym_infer(uop: Any, var_vals: Mapping[str, int]) -> int:
    """The number that an expression of Variables is for these values, by their names.

    >>> from tinygrad import Variable
    >>> sym_infer(Variable("n", 1, 5) * 2 + 1, {"n": 3})
    7
    """
    node = node_of(uop)
    return value_of(as_size(node.substitute({v: node_of(var_vals[v.arg[0]]) for v in variables_in(node)})))


def smax(*items: Any) -> Any:
    """The largest of integers and sizes, given one by one or as one sequence."""
    return max(map(as_size, items[0] if len(items) == 1 else items))


def smin(*items: Any) -> Any:
    """The smallest of integers and sizes, given one by one or as one sequence."""
    return min(map(as_size, items[0] if len(items) == 1 else items))


REWRITING = frozenset({"GroupOp", "PatternMatcher", "UPat", "exec_alu", "graph_rewrite", "identity_element",
                       "python_alu", "track_rewrites"})
"""names by which scripts rewrite graphs"""


def __getattr__(name: str) -> NoReturn:
    if name in REWRITING:
        raise ImportError(f"{__name__} has no {name} here: graphs and rewrite rules are this library's own, "
                          "in tinygrad.graph (docs/architecture.md)")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
