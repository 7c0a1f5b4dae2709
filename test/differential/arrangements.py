"""Rows of `functional/arrangements.py` and `gamma_functions.py`, and of PyTorch's further names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad import Tensor
from tinygrad.dtype import dtypes

from .pytorch_names import BOTH, FLOAT, ONES, one
from .table import (
    INTS,
    WIDE_FLOATS,
    Input,
    Row,
    Values,
    above_one,
    below,
    case,
    given,
    nonzero,
    position,
    positive,
    probability,
    same,
    torch,
    whole,
    within_one,
)

WITH_BOOLS = (*BOTH, dtypes.bool)
MASK = Input((4, 5), dtype=dtypes.bool)
ROWS_OF = Input((3,), values=given([2, 0, 2]), dtype=dtypes.int32)
COLUMNS_OF = Input((3,), values=given([1, 4, 1]), dtype=dtypes.int32)
OTHER_COLUMNS = Input((3,), values=given([1, 4, 3]), dtype=dtypes.int32)
SPECIAL = Input((8,), values=given([float("inf"), -float("inf"), float("nan"), 1, 2, 1e4, 1e10, 1e-20]))


def joins(name: str, *shapes: Any, label: str = "", result: Any = same) -> Row:
    """`name` of several tensors: ours as one list, PyTorch's function of a tuple."""
    theirs: Callable[..., Any] = getattr(torch, name)
    spread = name in ("block_diag", "cartesian_prod", "broadcast_tensors")
    return Row(f"{name} {label}".strip(), lambda *xs: getattr(Tensor, name)(list(xs)),
               lambda *xs: theirs(*xs) if spread else theirs(xs), BOTH, (case(*shapes),), result=result)


def _powers(x: Any, number: int, is_rising: bool) -> Any:
    """`torch.vander`, whose own gradient is an error, with that of the powers."""
    exponents = range(number) if is_rising else reversed(range(number))
    powers = torch.stack([x ** i for i in exponents], 1)
    return powers + (torch.vander(x.detach(), number, is_rising) - powers.detach())


def _spread(values: Values, factor: float) -> Values:
    return lambda rng, shape: values(rng, shape) * factor


GAMMA = [
    *(one(name, label=label, kinds=kinds, values=values, ulps=4, cases=ONES[:1])
      for name in ("lgamma", "digamma") for label, kinds, values in (
          ("of small numbers", FLOAT, positive), ("of large numbers", WIDE_FLOATS, _spread(positive, 50)),
          ("below zero", FLOAT, lambda rng, shape: -probability(rng, shape) - 2))),
    *(one(name, label="at the ends", cases=(case(SPECIAL),), gradient=False, ulps=4)
      for name in ("lgamma", "digamma")),
]

JOINED = [
    joins("hstack", (2, 3), (2, 4)), joins("hstack", (2,), (3,), label="of vectors"),
    joins("vstack", (2, 3), (1, 3)), joins("vstack", (3,), (3,), label="of vectors"),
    joins("dstack", (2, 3), (2, 3)), joins("dstack", (3,), (3,), label="of vectors"),
    joins("dstack", (2, 3, 1), (2, 3, 2), label="of cubes"),
    joins("column_stack", (3,), (3, 2), (3,)), joins("block_diag", (2, 3), (4,), ()),
    joins("cartesian_prod", (2,), (3,), (2,)), joins("cartesian_prod", (3,), label="of one"),
    *(Row(f"combinations {r} {often}".strip(), lambda x, r=r, o=often: x.combinations(r, o),
          lambda x, r=r, o=often: torch.combinations(x, r, o), BOTH, (case((5,)), case((1,)), case((0,))))
      for r, often in ((2, False), (3, True), (1, False))),
    *(Row(f"vander {n} {rising}", lambda x, n=n, u=rising: x.vander(n, u),
          lambda x, n=n, u=rising: _powers(x, n or len(x), u), BOTH, (case((4,)),), ulps=8,
          values=whole) for n, rising in ((None, False), (6, True), (2, True))),
    joins("broadcast_tensors", (3, 1), (1, 4), (), result=(same,) * 3),
    *(Row(name, lambda x, n=name: getattr(x, n)(), lambda x, n=name: getattr(torch, n)(x), BOTH,
          [case(shape) for shape in ((), (3,), (2, 3), (2, 3, 2))])
      for name in ("atleast_1d", "atleast_2d", "atleast_3d")),
]

PARTS = [
    one("hsplit", 2, cases=(case((3, 4)),), result=(same,) * 2),
    one("hsplit", (1, 3), label="of a vector", cases=(case((5,)),), result=(same,) * 3),
    one("vsplit", 2, cases=(case((4, 3)),), result=(same,) * 2),
    one("dsplit", (2,), cases=(case((1, 2, 3)),), result=(same,) * 2),
    one("split_with_sizes", (1, 3), 1, cases=(case((2, 4)),), result=(same,) * 2),
    Row("select_scatter", lambda x, y: x.select_scatter(y, 1, -2), lambda x, y: x.select_scatter(y, 1, -2),
        WITH_BOOLS, (case((3, 4), (3,)),)),
    Row("slice_scatter", lambda x, y: x.slice_scatter(y, 1, 1, None, 2),
        lambda x, y: x.slice_scatter(y, 1, 1, None, 2), WITH_BOOLS, (case((3, 5), (3, 2)),)),
    Row("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), lambda x, m, y: x.masked_scatter(m, y),
        WITH_BOOLS, (case((4, 5), MASK, (20,)), case((5,), MASK, (20,)))),
    *(Row(f"index_put {label}", lambda x, i, j, v, a=add: x.index_put((i, j), v, accumulate=a),
          lambda x, i, j, v, a=add: x.index_put((i.long(), j.long()), v, accumulate=a),
          BOTH if add else WITH_BOOLS,
          (case((4, 5), ROWS_OF, columns, (3,)),))
      for label, add, columns in (("", False, OTHER_COLUMNS), ("added", True, COLUMNS_OF))),
    Row("index_put of rows", lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda x, i, v: x.index_put((i.long(),), v, accumulate=True), BOTH, (case((4, 5), ROWS_OF, (5,)),)),
    Row("fill_diagonal_", lambda x: (x * 1).fill_diagonal_(3), lambda x: (x * 1).fill_diagonal_(3), BOTH,
        (case((4, 4)), case((3, 5)))),
    Row("unique_consecutive", lambda x: x.unique_consecutive(True, True),
        lambda x: x.unique_consecutive(True, True), BOTH, (case((17,)), case((4, 5))), below(2),
        result=(same, position, position), gradient=False),
]

SUMS = [
    *(Row(f"{name} {dim}", lambda y, n=name, d=dim: getattr(y, n)(dx=0.5, dim=d),
          lambda y, n=name, d=dim: getattr(torch, n)(y, dx=0.5, dim=d), FLOAT, (case((4, 5)),), ulps=4)
      for name in ("trapezoid", "trapz", "cumulative_trapezoid") for dim in (0, -1)),
    *(Row(f"{name} at {x}", lambda y, x, n=name, d=dim: getattr(y, n)(x, dim=d),
          lambda y, x, n=name, d=dim: getattr(torch, n)(y, x, dim=d), FLOAT, (case((4, 5), x),),
          ulps=ulps)
      for name, ulps in (("trapezoid", 8), ("cumulative_trapezoid", 32))
      for x, dim in (((4,), 0), ((4, 5), 1))),
    one("renorm", 2, 0, 1.5, ulps=8), one("renorm", 1, -1, 1.5, label="1", ulps=8),
    one("sum_to_size", (1, 5), cases=(case((3, 4, 5)),), ulps=4),
]

ALIASES = [
    *(one(name, values=values, ulps=4) for name, values in (
        ("arcsinh", positive), ("arccosh", above_one), ("arctanh", within_one))),
    one("sgn", values=nonzero, gradient=False), one("positive", kinds=BOTH),
    *(Row(name, lambda x, n=name: getattr(x, n)(2), lambda x, n=name: getattr(x, n)(2), INTS, ONES[:1],
          gradient=False) for name in ("bitwise_left_shift", "bitwise_right_shift")),
    one("adjoint", cases=(case((2, 3, 4)),)), one("ger", cases=(case((4,), (5,)),)),
    Row("type", lambda x: x.type(dtypes.int32), lambda x: x.type(torch.int32), FLOAT, ONES[:1],
        result=position, gradient=False),
]

PRODUCTS = [
    one("vdot", cases=(case((5,), (5,)),), ulps=8),
    one("addmv", cases=(case((4,), (4, 5), (5,)),), ulps=8, call={"beta": 2, "alpha": 0.5}),
    one("addr", cases=(case((4, 5), (4,), (5,)),), ulps=8, call={"beta": 0.5}),
    one("addbmm", cases=(case((3, 5), (2, 3, 4), (2, 4, 5)),), ulps=16),
]
ROWS = [*GAMMA, *JOINED, *PARTS, *SUMS, *ALIASES, *PRODUCTS]
CONSTANT = {"unique_consecutive", "type", "sgn"}
"""Methods without gradients."""
