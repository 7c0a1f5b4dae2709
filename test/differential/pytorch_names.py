"""Rows of the names that programs written for PyTorch use (`functional/pytorch_names.py`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes

from .table import (
    BINARY,
    MATRICES,
    Input,
    Row,
    Values,
    anything,
    below,
    boolean,
    case,
    distinct,
    given,
    method,
    nonzero,
    position,
    probability,
    same,
    whole,
)

FLOAT = (dtypes.float32,)
BOTH = (dtypes.float32, dtypes.int32)
PAIRS = tuple(BINARY[i] for i in (1, 2, 3, 6))
ONES = (MATRICES[0], MATRICES[3])
POSITIONS = Input((3,), values=given([2, 0, 2]), dtype=dtypes.int32)
DIFFERENT = Input((3,), values=given([2, 0, 1]), dtype=dtypes.int32)
ENDS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5]
END = case(Input((7,), values=given(ENDS)), name="ends")
NANS = case(Input((2, 3), values=given([1, math.nan, 2, math.nan, 3, 4])), name="NaN")
ALL_ENDS = case(Input((49,), values=given(ENDS * 7)), Input((49,), values=given(sorted(ENDS * 7, key=str))),
                name="pairs of ends")


def one(name: str, *args: Any, label: str = "", cases: Any = ONES, kinds: Any = FLOAT, **options: Any) -> Row:
    """A method with one signature in both libraries; `call` has its keywords."""
    call = options.pop("call", {})
    return Row(f"{name} {label}".strip(), **method(name, *args, **call), cases=cases, dtypes=kinds, **options)


def placed(name: str, *args: Any, label: str = "", cases: Any = ONES, **options: Any) -> Row:
    """The same where other operands are positions, which PyTorch takes as int64."""
    def theirs(x: Any, *rest: Any) -> Any:
        return getattr(x, name)(*[r.long() if not r.is_floating_point() else r for r in rest], *args)
    return Row(f"{name} {label}".strip(), method(name, *args)["ours"], theirs, cases=cases, dtypes=FLOAT,
               **options)


def indexed(name: str, dim: int, *others: Any, index: Input = POSITIONS, call: Any = None) -> Row:
    """`x.name(dim, index, ...)`."""
    def ours(x: Any, places: Any, *rest: Any) -> Any:
        return getattr(x, name)(dim, places, *rest, **(call or {}))

    def theirs(x: Any, places: Any, *rest: Any) -> Any:
        return getattr(x, name)(dim, places.long(), *rest, **(call or {}))
    return Row(f"{name} along {dim}", ours, theirs, cases=(case((4, 5), index, *others, name="matrix"),),
               dtypes=FLOAT, ulps=4)


def _steps(values: Values) -> Values:
    return lambda rng, shape: np.round(values(rng, shape) * 4) / 4


ITEM_BY_ITEM = [
    one("addcmul", cases=(case((4, 5), (4, 5), (5,)),), call={"value": 0.5}, ulps=4),
    one("addcdiv", cases=(case((4, 5), (4, 5), (5,)),), values=nonzero, call={"value": 2}, ulps=4),
    *(one(name, cases=PAIRS, values=nonzero, ulps=8) for name in ("atan2", "arctan2")),
    one("atan2", label="of the ends", cases=(ALL_ENDS,), gradient=False, ulps=4),
    one("hypot", cases=PAIRS, values=nonzero, ulps=4),
    one("hypot", label="of the ends", cases=(ALL_ENDS,), gradient=False, ulps=4),
    one("clamp_min", 0.1), one("clamp_max", 0.1),
    one("nan_to_num", 1.0, 2.0, -3.0, cases=(*ONES, END)),
    Row("nan_to_num as it is", lambda x: x.nan_to_num(), lambda x: x.float().nan_to_num().double(),
        dtypes=FLOAT, cases=(END,), gradient=False),
    one("logit", values=probability, ulps=8), one("logit", 0.1, label="between", ulps=8, smooth=False),
    one("xlogy", cases=PAIRS, values=probability, ulps=4),
    one("deg2rad", ulps=2), one("rad2deg", ulps=64), one("frac", ulps=2, smooth=False),
    one("sinc", values=nonzero, ulps=8),
    one("sinc", label="of the ends", cases=(END,), gradient=False, ulps=2),
    one("heaviside", cases=PAIRS, values=_steps(anything), gradient=False),
    one("signbit", cases=(*ONES, END), kinds=BOTH, result=boolean, gradient=False),
    one("isposinf", cases=(END,), result=boolean, gradient=False),
    one("isneginf", cases=(END,), result=boolean, gradient=False),
    one("fmax", cases=(*PAIRS, ALL_ENDS)), one("fmin", cases=(*PAIRS, ALL_ENDS)),
    *(one(name, cases=PAIRS, values=whole, kinds=(*BOTH, dtypes.bool), result=boolean, gradient=False)
      for name in ("logical_and", "logical_or", "logical_xor")),
    one("hardshrink", 1.0, smooth=False),
    Row("prelu", lambda x, w: x.prelu(w), lambda x, w: x.prelu(w), dtypes=FLOAT, ulps=2, smooth=False,
        cases=(case((4, 5), (5,)), case((2, 3, 4), (3,)), case((5,), (1,)))),
    *(one(name, cases=PAIRS, values=nonzero, ulps=2) for name in ("multiply", "subtract", "divide",
                                                                  "true_divide")),
    one("floor_divide", cases=PAIRS, values=nonzero, gradient=False),
    one("remainder", cases=PAIRS, values=nonzero, smooth=False, ulps=4),
    one("absolute", values=nonzero), one("negative"), one("fix", smooth=False),
    *(one(name, values=probability, ulps=4) for name in ("arcsin", "arccos", "arctan")),
    *(one(name, cases=PAIRS, kinds=BOTH, result=boolean, gradient=False, values=whole)
      for name in ("less", "less_equal", "greater", "greater_equal", "not_equal")),
]

ALONG_AXES = [
    one("amax", 1, kinds=BOTH, values=distinct), one("amin", (0, 1), kinds=BOTH, values=distinct),
    *(one("norm", p, 1, label=f"{p} of rows", ulps=8, values=nonzero)
      for p in (1, 2, 3, 0.5, math.inf, -math.inf)),
    one("norm", label="of all", ulps=8), one("norm", 0, 1, label="0 of rows", gradient=False),
    one("norm", 2, 1, True, label="of zeros", values=below(1), smooth=False),
    *(one("norm", p, 0, label=f"{p} of columns with zeros", ulps=8, values=below(3), smooth=False)
      for p in (0.5, 1.5, 2, 3)),
    one("dist", cases=PAIRS[1:2], ulps=8),
    one("count_nonzero", 1, kinds=BOTH, result=position, values=below(3), gradient=False),
    one("nansum", 0, cases=(*ONES, NANS), ulps=8), one("nanmean", 0, cases=(NANS,), ulps=8),
    one("median", kinds=BOTH, values=distinct),
    *(one("median", axis, keep, label=f"along {axis}", kinds=BOTH, values=distinct, result=(same, position))
      for axis, keep in ((0, False), (-1, True))),
    one("median", 1, label="of NaN", cases=(NANS,), result=(same, position), gradient=False),
    Row("diff between others", lambda x, a, b: x.diff(dim=0, prepend=a, append=b),
        lambda x, a, b: x.diff(dim=0, prepend=a, append=b), dtypes=FLOAT, ulps=2,
        cases=(case((4, 5), (1, 5), (2, 5)),)),
    one("diff", kinds=BOTH, ulps=2), one("diff", 3, 0, label="of differences", ulps=4),
    one("trace", kinds=FLOAT, ulps=4),
]

PRODUCTS = [
    one("mm", cases=(case((4, 5), (5, 3)),), ulps=8),
    one("bmm", cases=(case((2, 3, 4), (2, 4, 5)),), ulps=8),
    one("mv", cases=(case((4, 5), (5,)),), ulps=8),
    one("addmm", cases=(case((3,), (4, 5), (5, 3)),), ulps=8, call={"beta": 2, "alpha": 0.5}),
    one("baddbmm", cases=(case((2, 3, 5), (2, 3, 4), (2, 4, 5)),), ulps=8),
    one("outer", cases=(case((4,), (5,)),)),
    one("inner", cases=(case((5,), (5,)), case((4, 5), (3, 5)), case((2, 3, 5), (4, 5)),
                        case((5,), (2, 2, 5))), ulps=8),
    one("kron", cases=(case((2, 3), (3, 2)), case((2,), (3, 2)), case((2, 1, 3), (3, 2)))),
    one("cross", cases=(case((3, 4), (3, 4)),), ulps=4), one("cross", 1, label="along", ulps=4,
                                                              cases=(case((4, 3), (4, 3)),)),
]

PLACES = [
    one("select", 1, -2), one("narrow", -1, 1, 2),
    one("unbind", 1, cases=(case((2, 3)),), result=(same,) * 3),
    indexed("index_select", 1), indexed("index_add", 1, (4, 3), call={"alpha": 2}),
    indexed("index_copy", 0, (3, 5), index=DIFFERENT),
    Row("index_fill", lambda x, i: x.index_fill(1, i, 7.0), lambda x, i: x.index_fill(1, i.long(), 7.0),
        cases=(case((4, 5), POSITIONS),), dtypes=FLOAT),
    Row("index_fill by a tensor", lambda x, i, v: x.index_fill(1, i, v.sum()),
        lambda x, i, v: x.index_fill(1, i.long(), v.sum()),
        cases=(case((4, 5), POSITIONS, (2,)),), dtypes=FLOAT),
    indexed("scatter_add", 1, (2, 3), index=Input((2, 3), values=below(5), dtype=dtypes.int32)),
    placed("take", cases=(case((4, 5), Input((2, 3), values=below(20), dtype=dtypes.int32)),)),
    placed("take_along_dim", cases=(case((4, 5), Input((6,), values=below(20), dtype=dtypes.int32)),)),
    placed("take_along_dim", 1, label="along", cases=(case((1, 5), Input((4, 2), values=below(5),
                                                                           dtype=dtypes.int32)),)),
    one("bincount", kinds=(dtypes.int32,), cases=(case((9,)),), values=below(5), call={"minlength": 7}),
    Row("bincount of weights", lambda w, x: x.bincount(w), lambda w, x: x.bincount(w), dtypes=FLOAT,
        cases=(case((9,), Input((9,), values=below(5), dtype=dtypes.int32)),), gradient=False, ulps=4),
    Row("argwhere", lambda x: x.argwhere(), lambda x: x.argwhere(), dtypes=FLOAT, values=below(2), cases=ONES,
        result=position, gradient=False),
]

MOVEMENT = [
    one("expand_as", cases=(case((5,), (4, 5)),), constant=(1,)),
    one("reshape_as", cases=(case((4, 6), (3, 8)),), constant=(1,)),
    one("view_as", cases=(case((4, 6), (3, 8)),), constant=(1,)),
    one("broadcast_to", (3, 4, 5), cases=(case((4, 1)),)),
    one("tile", (2,)), one("tile", (2, 1, 3), label="of more axes"),
    one("movedim", (0, 1), (2, 0), cases=(case((2, 3, 4)),)), one("moveaxis", -1, 0),
    one("swapaxes", 0, 1), one("swapdims", 0, -1), one("t"), one("fliplr"), one("flipud"), one("ravel"),
    Row("mT", lambda x: x.mT, lambda x: x.mT, dtypes=FLOAT, cases=ONES),
    *(one("rot90", k, label=f"{k}") for k in (1, 2, 3, -1, 4)),
    one("diag_embed"), one("diag_embed", -2, 0, 2, label="below", cases=ONES[:1]),
]

OTHERS = [
    *(Row(name, (lambda x, n=name: getattr(x, n)(2, 3)), (lambda x, n=name: getattr(x, n)(2, 3)),
          dtypes=BOTH, cases=ONES[:1], gradient=False) for name in ("new_zeros", "new_ones")),
    Row("new_empty", lambda x: x.new_empty(2, 3) * 0, lambda x: x.new_zeros(2, 3), BOTH, ONES[:1],
        gradient=False),
    one("new_full", (2, 3), 7, kinds=BOTH, cases=ONES[:1], gradient=False),
    one("new_tensor", [1, 2], kinds=BOTH, cases=ONES[:1], gradient=False),
    one("byte", values=below(9), result=lambda _: dtypes.uint8, gradient=False),
    one("char", values=whole, result=lambda _: dtypes.int8, gradient=False),
    Row("type_as", lambda x, y: x.type_as(y), lambda x, y: x.type_as(y.int()), dtypes=FLOAT, values=whole,
        cases=(case((4, 5), Input((2,), dtype=dtypes.int32)),), result=position, gradient=False),
]

ROWS = [*ITEM_BY_ITEM, *ALONG_AXES, *PRODUCTS, *PLACES, *MOVEMENT, *OTHERS]
CONSTANT = {"heaviside", "signbit", "isposinf", "isneginf", "logical_and", "logical_or", "logical_xor",
            "less", "less_equal", "greater", "greater_equal", "not_equal", "floor_divide", "count_nonzero",
            "argwhere", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "byte", "char",
            "type_as", "bincount"}
"""Methods without gradients, here or in PyTorch."""
