"""Rows along axes: sums, extrema, moments, softmax, running reductions, sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad.dtype import dtypes

from .table import (
    EVERY,
    FEW,
    FLOATS,
    INTS,
    LAYOUTS,
    MATRICES,
    NETWORK_FLOATS,
    NUMBERS,
    UNARY,
    WIDE_FLOATS,
    Array,
    Input,
    Row,
    Shape,
    boolean,
    case,
    coins,
    distinct,
    method,
    position,
    same,
    summed,
    torch,
    whole,
    within_one,
)

AXES: tuple[Any, ...] = (None, 0, -1, (0, -1))
CUBES = (
    case((2, 3, 4)),
    case(LAYOUTS["permuted"], name="permuted"),
    case((1, 3, 1)),
    case((5, 1, 7), name="odd"),
    case(Input((4, 3, 5), lambda x: x.flip((1,))[::2]), name="flipped and strided"),
    case(Input((3, 1, 2), lambda x: x.expand((3, 4, 2))), name="expanded"),
)
WITH_EMPTY = (*CUBES, case((0, 3, 2)), case((2, 0, 3)))
LONG = (case((300,)), case((2, 513)))


def _with_nan(rng: np.random.Generator, shape: Shape) -> Array:
    return np.array([[1.0, np.nan, 2.0], [-np.inf, 3.0, np.inf]])


NANS = (case(Input((2, 3), values=_with_nan), name="nan"),)


def along(
    name: str, torch_name: str | None = None, axes: Any = AXES, cases: Any = CUBES, **kwargs: Any
) -> list[Row]:
    """A row for each choice of axes, with keepdim in turn."""
    rows = []
    for number, axis in enumerate(axes):
        keep = bool(number % 2)
        theirs_axes = tuple(range(3)) if axis is None else axis

        def ours(x: Any, axis: Any = axis, keep: bool = keep) -> Any:
            return getattr(x, name)(axis, keepdim=keep)

        def theirs(x: Any, axis: Any = theirs_axes, keep: bool = keep) -> Any:
            return getattr(torch, torch_name or name)(x, dim=axis, keepdim=keep)

        rows.append(Row(f"{name} over {axis}", ours, theirs, cases=cases, **kwargs))
    return rows


def _prod(x: Any, dim: Any, keepdim: bool) -> Any:
    for axis in sorted(dim if isinstance(dim, tuple) else (dim,), reverse=True, key=lambda a: a % x.ndim):
        x = x.prod(axis, keepdim=keepdim)
    return x


SUMS = [
    *along("sum", cases=WITH_EMPTY, dtypes=EVERY, result=summed, values=whole),
    *(
        Row(
            f"prod over {axis}",
            lambda x, a=axis: x.prod(a),
            lambda x, a=axis: _prod(x, a if a is not None else (0, 1, 2), False),
            NUMBERS,
            WITH_EMPTY,
            within_one,
            summed,
            ulps=8,
        )
        for axis in AXES
    ),
    Row(
        "prod with zeros",
        lambda x: x.prod(1),
        lambda x: x.prod(1),
        WIDE_FLOATS,
        CUBES,
        lambda r, s: r.integers(0, 3, s) * 1.0,
        smooth=False,
    ),
    Row(
        "sum in another dtype",
        lambda x: x.sum(0, dtype="float64"),
        lambda x: x.sum(0, dtype=torch.float64),
        FEW,
        CUBES,
        whole,
        lambda d: dtypes.float64,
        gradient=False,
    ),
    *along("max", "amax", dtypes=EVERY, values=distinct),
    *along("min", "amin", dtypes=EVERY, values=distinct),
    Row("max of ties", lambda x: x.max(1), lambda x: x.amax(1), WIDE_FLOATS, CUBES, coins, smooth=False),
    Row("max with NaN", lambda x: x.max(1), lambda x: x.amax(1), FLOATS[2:], NANS, gradient=False),
    Row("min with NaN", lambda x: x.min(1), lambda x: x.amin(1), FLOATS[2:], NANS, gradient=False),
    Row("max of scalar", lambda x: x.max(), lambda x: x.amax(), EVERY, UNARY[:1]),
    *along("any", cases=WITH_EMPTY, dtypes=EVERY, values=coins, result=boolean, gradient=False),
    *along("all", cases=WITH_EMPTY, dtypes=EVERY, values=coins, result=boolean, gradient=False),
    *along("mean", cases=WITH_EMPTY, dtypes=EVERY, real=True, ulps=2),
    *along("var", dtypes=NETWORK_FLOATS, ulps=4),
    *along(
        "std",
        dtypes=NETWORK_FLOATS,
        ulps=4,
        cases=[c for c in CUBES if c.name not in ("(1, 3, 1)", "odd", "expanded")],
    ),
    Row(
        "var uncorrected",
        lambda x: x.var(1, correction=0),
        lambda x: x.var(1, correction=0),
        FLOATS,
        CUBES,
        ulps=4,
    ),
    Row("var of integers", lambda x: x.var(1), lambda x: x.var(1), INTS, CUBES, ulps=4, real=True),
    Row(
        "std of few",
        lambda x: x.std(0),
        lambda x: x.std(0),
        WIDE_FLOATS,
        (case((1, 3)), case((0, 3))),
        gradient=False,
    ),
    Row(
        "std uncorrected",
        lambda x: x.std(-1, correction=0),
        lambda x: x.std(-1, correction=0),
        WIDE_FLOATS,
        MATRICES[:4],
        ulps=4,
    ),
    Row(
        "var_mean", lambda x: x.var_mean(1), lambda x: torch.var_mean(x, 1), NETWORK_FLOATS, CUBES[:3], ulps=4
    ),
    Row(
        "std_mean",
        lambda x: x.std_mean((0, 2)),
        lambda x: torch.std_mean(x, (0, 2)),
        NETWORK_FLOATS,
        CUBES[:2],
        ulps=4,
    ),
]

POSITIONS = [
    *(
        Row(
            f"{name} over {axis}",
            lambda x, n=name, a=axis: getattr(x, n)(a),
            lambda x, n=name, a=axis: getattr(x.int() if x.dtype == torch.bool else x, n)(a),
            EVERY,
            CUBES,
            whole,
            position,
            gradient=False,
        )
        for name in ("argmax", "argmin")
        for axis in (None, 0, -1)
    ),
    Row(
        "argmax keepdim",
        lambda x: x.argmax(1, keepdim=True),
        lambda x: x.argmax(1, keepdim=True),
        FEW[1:],
        CUBES,
        whole,
        position,
        gradient=False,
    ),
    Row(
        "argmax with NaN",
        lambda x: x.argmax(1),
        lambda x: x.argmax(1),
        FLOATS[2:],
        NANS,
        result=position,
        gradient=False,
    ),
    Row(
        "argmin with NaN",
        lambda x: x.argmin(1),
        lambda x: x.argmin(1),
        FLOATS[2:],
        NANS,
        result=position,
        gradient=False,
    ),
]

SOFTMAX = [
    *(
        Row(
            f"{name} over {axis}",
            lambda x, n=name, a=axis: getattr(x, n)(a),
            lambda x, n=name, a=axis: getattr(torch.nn.functional, n)(x, dim=a),
            FLOATS,
            WITH_EMPTY,
            real=True,
            ulps=4,
        )
        for name in ("softmax", "log_softmax", "softmin")
        for axis in (0, -1)
    ),
    Row(
        "softmax of integers",
        lambda x: x.softmax(),
        lambda x: x.softmax(-1),
        INTS,
        CUBES,
        real=True,
        ulps=4,
        gradient=False,
    ),
    Row(
        "softmax in another dtype",
        lambda x: x.softmax(dtype="float64"),
        lambda x: x.softmax(-1),
        FEW[1:],
        CUBES,
        whole,
        lambda d: dtypes.float64,
        real=True,
        ulps=4,
        gradient=False,
    ),
    Row(
        "softmax of infinities",
        lambda x: x.softmax(),
        lambda x: x.softmax(-1),
        WIDE_FLOATS,
        NANS,
        gradient=False,
        ulps=2,
    ),
    Row(
        "softmax of large numbers",
        lambda x: (x * 1000).softmax(),
        lambda x: (x * 1000).softmax(-1),
        WIDE_FLOATS,
        CUBES,
        gradient=False,
        ulps=1000,
    ),
    *along("logsumexp", dtypes=FLOATS, ulps=2),
    Row(
        "logsumexp of infinities",
        lambda x: x.logsumexp(0),
        lambda x: x.logsumexp(0),
        WIDE_FLOATS,
        NANS,
        gradient=False,
        ulps=2,
    ),
]

RUNNING = [
    Row(
        "cumsum",
        **method("cumsum", 0),
        dtypes=EVERY,
        cases=(*WITH_EMPTY, *UNARY[:1]),
        values=whole,
        result=summed,
    ),
    Row(
        "cumsum last",
        **method("cumsum", -1),
        dtypes=FEW[1:],
        cases=(*CUBES, *LONG),
        values=whole,
        result=summed,
    ),
    *(Row(f"{name} as {kind}", lambda x, name=name, kind=kind: getattr(x, name)(0, dtype=kind),
          lambda x, name=name, kind=kind: getattr(x, name)(0, dtype=getattr(torch, kind)),
          dtypes=FEW, cases=UNARY[:1], values=within_one, result=lambda _, kind=kind: getattr(dtypes, kind),
          gradient=False, ulps=8)
      for name in ("cumsum", "cumprod") for kind in ("float64", "int16")),
    Row(
        "cumprod",
        **method("cumprod", 1),
        dtypes=NUMBERS,
        cases=WITH_EMPTY,
        values=within_one,
        result=summed,
        ulps=8,
    ),
    Row(
        "cumprod with zeros",
        **method("cumprod", 1),
        dtypes=WIDE_FLOATS,
        cases=CUBES,
        values=lambda r, s: r.integers(0, 3, s) * 1.0,
        smooth=False,
    ),
    *(
        Row(
            name,
            **method(name, 1),
            dtypes=NUMBERS,
            cases=WITH_EMPTY,
            values=distinct,
            result=(same, position),
        )
        for name in ("cummax", "cummin")
    ),
    *(
        Row(
            f"{name} of ties",
            **method(name, 0),
            dtypes=FEW[1:],
            cases=(*CUBES, *LONG[:1]),
            values=whole,
            result=(same, position),
            gradient=False,
        )
        for name in ("cummax", "cummin")
    ),
    *(
        Row(
            f"{name} with NaN",
            **method(name, 1),
            dtypes=WIDE_FLOATS,
            cases=NANS,
            result=(same, position),
            gradient=False,
        )
        for name in ("cummax", "cummin")
    ),
    Row("logcumsumexp", **method("logcumsumexp", -1), dtypes=FLOATS, cases=(*WITH_EMPTY, *LONG[:1]), ulps=4),
    Row(
        "logcumsumexp of infinities",
        **method("logcumsumexp", -1),
        dtypes=WIDE_FLOATS,
        cases=NANS,
        gradient=False,
        ulps=2,
    ),
]

SORTED = [
    *(
        Row(
            f"sort {axis} {'down' if down else 'up'}",
            lambda x, a=axis, d=down: x.sort(a, descending=d, stable=True),
            lambda x, a=axis, d=down: torch.sort(x, dim=a, descending=d, stable=True),
            EVERY,
            (*WITH_EMPTY, *UNARY[:1]),
            whole,
            (same, position),
            smooth=False,
        )
        for axis, down in ((-1, False), (0, True))
    ),
    Row(
        "sort with NaN",
        lambda x: x.sort(1),
        lambda x: x.sort(1),
        FLOATS[2:],
        NANS,
        result=(same, position),
        gradient=False,
    ),
    Row(
        "sort of many",
        lambda x: x.sort(-1),
        lambda x: torch.sort(x, dim=-1, stable=True),
        (dtypes.int32, dtypes.float32),
        (case((2, 1100)),),
        whole,
        (same, position),
    ),
    Row(
        "argsort",
        lambda x: x.argsort(),
        lambda x: torch.argsort(x, stable=True),
        EVERY,
        WITH_EMPTY,
        whole,
        position,
        gradient=False,
    ),
    Row(
        "argsort down",
        lambda x: x.argsort(1, descending=True, stable=True),
        lambda x: torch.argsort(x, dim=1, descending=True, stable=True),
        FEW,
        CUBES,
        whole,
        position,
        gradient=False,
    ),
    Row(
        "topk",
        lambda x: x.topk(2, 1),
        lambda x: x.topk(2, 1),
        (*INTS, *FLOATS[2:]),
        (case((2, 3)), case((5, 7)), case(LAYOUTS["permuted"], name="permuted")),
        distinct,
        (same, position),
    ),
    Row(
        "topk smallest",
        lambda x: x.topk(2, largest=False),
        lambda x: x.topk(2, largest=False),
        FEW[1:],
        MATRICES[:3],
        distinct,
        (same, position),
    ),
    Row(
        "topk of many",
        lambda x: x.topk(3, 0),
        lambda x: x.topk(3, 0),
        WIDE_FLOATS,
        (case((1100,)), case(Input((2, 1100), lambda x: x.permute((1, 0))), name="permuted")),
        distinct,
        (same, position),
    ),
    Row(
        "topk none",
        lambda x: x.topk(0),
        lambda x: x.topk(0),
        WIDE_FLOATS,
        MATRICES[:1],
        distinct,
        (same, position),
        gradient=False,
    ),
]

ROWS = [*SUMS, *POSITIONS, *SOFTMAX, *RUNNING, *SORTED]
