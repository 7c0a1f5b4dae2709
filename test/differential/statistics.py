"""Rows of `functional/statistics.py`: order statistics, counts, covariances and distances."""

from __future__ import annotations

import math
from typing import Any

from tinygrad.dtype import dtypes

from .pytorch_names import BOTH, FLOAT, NANS, ONES, one
from .table import (
    INTS,
    Input,
    Row,
    below,
    boolean,
    case,
    distinct,
    given,
    position,
    positive,
    same,
    torch,
    whole,
)

SHARES = Input((3,), values=given([0.0, 0.3, 1.0]), dtype=dtypes.float32)
MATRIX = (case((4, 5)),)
SORTED = Input((6,), values=given([-4, -1, 0, 0, 2, 5]))


def q(name: str, *args: Any, label: str = "", cases: Any = ONES, **options: Any) -> Row:
    return one(name, *args, label=f"{label} {args} {options}", cases=cases, values=distinct, call=options,
               ulps=8)


def with_shares(name: str, dim: int | None, keepdim: bool, cases: Any) -> Row:
    def call(x: Any, shares: Any) -> Any:
        return getattr(x, name)(shares, dim, keepdim)
    return Row(f"{name} of shares along {dim} {keepdim}", call, call, FLOAT, cases, distinct, ulps=8)


STACKED = (case((2, 3, 5), SHARES),)
ROWS = [
    *(q("quantile", share) for share in (0.0, 0.25, 0.77, 1.0)), q("quantile", 0.4, 1), q("quantile", 0.4,
                                                                                          0, True),
    *(q("quantile", 0.3, 1, interpolation=how) for how in ("lower", "higher", "midpoint", "nearest")),
    one("quantile", 0.6, 0, cases=(NANS,), label="of rows with NaN", gradient=False), q("nanquantile", 0.6, 0,
                                                                              cases=(NANS,)),
    q("nanquantile", 0.5, cases=(NANS,)), q("quantile", 0.5, None, True, cases=(case((2, 3, 5)),)),
    *(with_shares(name, dim, keepdim, STACKED) for name in ("quantile", "nanquantile")
      for dim in (None, 0, -1) for keepdim in (False, True)),
    *(one("kthvalue", k, dim, keepdim, label=f"{k} along {dim}", kinds=BOTH, values=distinct,
          result=(same, position)) for k, dim, keepdim in ((1, 0, False), (3, 1, True), (2, -1, False))),
    one("nanmedian", cases=(*ONES, NANS), values=distinct),
    *(one("nanmedian", axis, keep, label=f"along {axis}", cases=(*ONES, NANS), values=distinct,
          result=(same, position)) for axis, keep in ((0, False), (-1, True))),
    Row("mode", lambda x: x.mode(1), lambda x: x.mode(1), BOTH, (case((4, 9)),), below(3),
        result=(same, position), gradient=False),
    Row("mode of many", lambda x: x.mode()[0], lambda x: x.mode()[0], BOTH, (case((2, 700)),), below(40),
        gradient=False),
    Row("mode gradient", lambda x: x.mode(0)[0], lambda x: x.mode(0)[0], FLOAT, (case((1, 5)),), distinct),
    one("aminmax", kinds=BOTH, values=distinct, result=(same, same)),
    one("aminmax", label="along", kinds=BOTH, values=distinct, result=(same, same),
        call={"dim": 1, "keepdim": True}),
    one("histc", 5, gradient=False), one("histc", 4, -1, 1, label="within", gradient=False),
    one("histc", 3, label="of one number", cases=(case(Input((4,), values=given([2, 2, 2, 2]))),),
        gradient=False),
    one("histc", 4, 0, 3, label="beside infinity", gradient=False, cases=(
        case(Input((5,), values=given([float("inf"), 1, 2, float("nan"), -float("inf")]))), case((0,)))),
    one("histc", 4, label="of nothing", cases=(case((0,)),), gradient=False),
    *(Row(f"searchsorted {label}", lambda x, v, right=right: x.searchsorted(v, right=right),
          lambda x, v, right=right: torch.searchsorted(x, v, right=right), BOTH,
          (case(SORTED, (3, 4)),), whole, result=position, gradient=False)
      for label, right in (("left", False), ("right", True))),
    Row("searchsorted of rows", lambda x, v: x.sort(-1)[0].searchsorted(v),
        lambda x, v: torch.searchsorted(x.sort(-1)[0], v), FLOAT, (case((3, 6), (3, 4)),), result=position,
        gradient=False),
    Row("searchsorted by a sorter", lambda x, v: x.searchsorted(v, sorter=x.sort(-1)[1], side="right"),
        lambda x, v: torch.searchsorted(x, v, sorter=x.sort(-1)[1], side="right"), FLOAT,
        (case((6,), (2, 4)),), result=position, gradient=False),
    Row("bucketize", lambda v, x: v.bucketize(x), lambda v, x: torch.bucketize(v, x), BOTH,
        (case((3, 4), SORTED),), whole, result=position, gradient=False),
    Row("isin", lambda x, y: x.isin(y), lambda x, y: torch.isin(x, y), BOTH, (case((3, 4), (2, 3)),), whole,
        result=boolean, gradient=False),
    one("cov", cases=(*MATRIX, case((5,)), case((1, 5))), ulps=8), one("cov", label="biased", cases=MATRIX,
                                                         call={"correction": 0}, ulps=8),
    Row("cov of weights", lambda x, w, n: x.cov(fweights=n, aweights=w),
        lambda x, w, n: torch.cov(x, fweights=n, aweights=w), FLOAT,
        (case((3, 5), Input((5,), values=positive), Input((5,), values=below(4), dtype=dtypes.int32)),),
        ulps=16),
    *(Row(f"cov of {name}", lambda x, w, n=name: x.cov(correction=2, **{n: w}),
          lambda x, w, n=name: torch.cov(x, correction=2, **{n: w}), FLOAT,
          (case((3, 5), Input((5,), values=values, dtype=kind)),), ulps=16)
      for name, values, kind in (("fweights", below(4), dtypes.int32), ("aweights", positive, None))),
    *(Row(name, lambda x, y, n=name: getattr(x, n)(y), lambda x, y, n=name: getattr(torch, n)(x, y), INTS,
          (case((7, 9), (9,)), case((), (3, 0))), below(100), gradient=False)
      for name in ("gcd", "lcm")),
    one("corrcoef", cases=(*MATRIX, case((1, 5))), ulps=16),
    *(Row(f"cdist {p}", lambda x, y, p=p: x.cdist(y, p), lambda x, y, p=p: torch.cdist(x, y, p), FLOAT,
          (case((4, 5), (3, 5)), case((2, 1, 4, 5), (3, 2, 5))), ulps=8) for p in (1.0, 2.0, 3.0, math.inf)),
    Row("cdist of equal rows", lambda x: x.cdist(x), lambda x: torch.cdist(x, x), FLOAT, MATRIX, smooth=False,
        ulps=8),
    Row("logdet", lambda x: (x @ x.T).logdet(), lambda x: (x @ x.T).logdet(), FLOAT, (case((3, 6)),),
        ulps=64),
    *(Row(f"tensordot {dims}", lambda x, y, d=dims: x.tensordot(y, d), lambda x, y,
          d=dims: torch.tensordot(x, y, d),
          FLOAT, (case(a, b),), ulps=16) for dims, a, b in (
              (2, (3, 4, 5), (4, 5, 2)), (1, (4,), (4,)), (0, (2, 3), (4,)), (((1,), (0,)), (2, 0), (0, 3)),
              (((0, 2), (1, 0)), (3, 4, 5), (5, 3, 2)))),
    *(one("tensor_split", parts, dim, label=f"{parts} along {dim}", cases=(case((7, 4)),),
          result=(same,) * count) for parts, dim, count in ((3, 0, 3), ((1, 5), 0, 3), (3, -1, 3))),
    Row("dim", lambda x: x.new_full((1,), x.dim()), lambda x: x.new_full((1,), x.dim()), FLOAT,
        gradient=False),
    Row("ndimension", lambda x: x.new_full((1,), x.ndimension()), lambda x: x.new_full((1,), x.ndimension()),
        FLOAT, gradient=False),
    *(Row(name, lambda *xs, n=name: getattr(type(xs[0]), n)(list(xs), dim=1), lambda *xs,
          n=name: getattr(torch, n)(
        xs, dim=1), FLOAT, (case((2, 3), (2, 4)),)) for name in ("concat", "concatenate")),
    Row("add alpha", lambda x, y: x.add(y, alpha=2), lambda x, y: x.add(y, alpha=2), BOTH, (case((4, 5),
                                                                                                 (5,)),)),
    Row("sub alpha", lambda x, y: x.sub(y, alpha=-3), lambda x, y: x.sub(y, alpha=-3), BOTH,
        (case((4, 5), (5,)),), whole),
    Row("searchsorted of numbers", lambda x: x.searchsorted(0.5), lambda x: torch.searchsorted(x, 0.5), FLOAT,
        (case(SORTED),), result=position, gradient=False),
]
CONSTANT = {"histc", "searchsorted", "bucketize", "isin", "dim", "ndimension"}
