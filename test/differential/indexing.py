"""Rows of indexing: gather, scatter, masks, positions; `x[...]` itself is in `test_indexing.py`."""

from __future__ import annotations

from typing import Any

from tinygrad.dtype import dtypes

from .table import (
    FEW,
    FEW_NUMBERS,
    LAYOUTS,
    NUMBERS,
    UNARY,
    Case,
    Input,
    Row,
    below,
    case,
    coins,
    position,
    same,
    torch,
    whole,
)

F = torch.nn.functional
INT, LONG, MASK = dtypes.int32, dtypes.int64, dtypes.bool


def places(shape: tuple[int, ...], size: int, dtype: Any = INT) -> Input:
    return Input(shape, values=below(size), dtype=dtype)


GATHERS = (
    case((5, 7), places((3, 7), 5)),
    case(LAYOUTS["permuted"], places((4, 3, 5), 2, LONG), name="permuted"),
    case(
        LAYOUTS["flipped"],
        Input((3, 6), lambda x: x.permute((1, 0))[::2], below(4), dtypes.uint8),
        name="flipped",
    ),
    case(LAYOUTS["expanded"], places((2, 5), 3), name="expanded"),
    case((4, 1), places((0, 1), 4), name="no indices"),
    case((6, 5), places((2, 3), 6), name="fewer columns"),
)
SCATTERS = tuple(Case(c.name, (*c.inputs, Input(c.inputs[1].shape, c.inputs[1].view))) for c in GATHERS)
UNIQUE = (
    case(
        (5, 4),
        Input(
            (2, 4),
            values=lambda r, s: r.permuted([[0, 1, 2, 3, 4]] * 4, axis=1).T[:2].astype(float),
            dtype=INT,
        ),
        (2, 4),
        name="each place once",
    ),
    case(
        Input((3, 6), lambda x: x.permute((1, 0))),
        Input((4, 3), values=lambda r, s: r.permuted([range(6)] * 3, axis=1).T[:4].astype(float), dtype=LONG),
        Input((3, 4), lambda x: x.permute((1, 0))),
        name="permuted",
    ),
    case(
        (4,),
        Input((4,), values=lambda r, s: r.permutation(4).astype(float), dtype=INT),
        Input((5,), lambda x: x[:4]),
        name="cropped source",
    ),
)
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _filled_up(values: Any, counts: Any) -> tuple[Any, Any]:
    missing = 30 - len(values)
    return torch.cat([values, torch.full((missing,), 5).to(values.dtype)]), F.pad(counts, (0, missing))


def _scatter(x: Any, index: Any, src: Any) -> Any:
    return x.scatter(0, index, src)


GATHER_ROWS = [
    Row("gather", lambda x, i: x.gather(0, i), lambda x, i: x.gather(0, i.long()), FEW, GATHERS),
    Row(
        "gather last",
        lambda x, i: x.gather(-1, i),
        lambda x, i: x.gather(-1, i.long()),
        FEW_NUMBERS,
        (case((3, 4), places((3, 7), 4)), case((2, 3, 4), places((2, 2, 5), 4, LONG))),
    ),
    Row(
        "gather of no axes",
        lambda x, i: x.reshape(1).gather(0, i),
        lambda x, i: x.reshape(1).gather(0, i.long()),
        FEW_NUMBERS,
        (case((), places((3,), 1)),),
    ),
    Row("scatter", _scatter, lambda x, i, s: x.scatter(0, i.long(), s), FEW, UNIQUE),
    Row(
        "scatter a number",
        lambda x, i: x.scatter(0, i, 3),
        lambda x, i: x.scatter(0, i.long(), 3),
        FEW_NUMBERS,
        GATHERS,
    ),
    Row(
        "scatter add",
        lambda x, i, s: x.scatter(0, i, s, "add"),
        lambda x, i, s: x.scatter_add(0, i.long(), s),
        FEW_NUMBERS,
        SCATTERS,
        ulps=2,
    ),
    Row(
        "scatter multiply",
        lambda x, i, s: x.scatter(0, i, s, "multiply"),
        lambda x, i, s: x.scatter_reduce(0, i.long(), s, "prod"),
        FEW_NUMBERS,
        SCATTERS,
        ulps=4,
    ),
    *(
        Row(
            f"scatter_reduce {r}{'' if own else ' afresh'}",
            lambda x, i, s, r=r, own=own: x.scatter_reduce(0, i, s, r, include_self=own),
            lambda x, i, s, r=r, own=own: x.scatter_reduce(0, i.long(), s, r, include_self=own),
            NUMBERS if own else FEW_NUMBERS,
            SCATTERS,
            ulps=4,
        )
        for r in REDUCTIONS
        for own in (True, False)
    ),
]

MASK_CASES = (
    case((5, 7), Input((5, 7), values=coins, dtype=MASK)),
    case(LAYOUTS["permuted"], Input((3, 5), values=coins, dtype=MASK), name="permuted"),
    case((0, 3), Input((3,), values=coins, dtype=MASK)),
    case((4, 1), Input((1, 3), values=coins, dtype=MASK)),
)

MASKS = [
    Row("masked_select", lambda x, m: x.masked_select(m), lambda x, m: x.masked_select(m), FEW, MASK_CASES),
    Row(
        "masked_select size",
        lambda x, m: x.masked_select(m, size=6, fill_value=2),
        lambda x, m: torch.cat([x.masked_select(m), torch.full((6,), 2).to(x.dtype)])[:6],
        FEW_NUMBERS,
        MASK_CASES,
    ),
    Row("nonzero", lambda x: x.nonzero(), lambda x: x.nonzero(), FEW, UNARY, coins, position, gradient=False),
    Row(
        "nonzero size",
        lambda x: x.nonzero(size=4, fill_value=-1),
        lambda x: torch.cat([x.nonzero(), torch.full((4, x.ndim), -1)])[:4],
        FEW,
        UNARY[3:6],
        coins,
        position,
        gradient=False,
    ),
]

DISTINCT = [
    Row(
        "unique",
        lambda x: x.unique(return_inverse=True, return_counts=True),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        FEW,
        UNARY,
        whole,
        (same, position, position),
        gradient=False,
    ),
    Row(
        "unique size",
        lambda x: x.unique(return_counts=True, size=30, fill_value=5),
        lambda x: _filled_up(*torch.unique(x, return_counts=True)),
        FEW_NUMBERS,
        UNARY,
        whole,
        (same, position),
        gradient=False,
    ),
    Row(
        "repeat_interleave of each",
        lambda x: x.repeat_interleave([2, 0, 1], 0),
        lambda x: x.repeat_interleave(torch.tensor([2, 0, 1]), 0),
        FEW_NUMBERS,
        (case((3,)), case((3, 2)), case(Input((2, 3), lambda x: x.permute((1, 0))), name="permuted")),
    ),
    Row(
        "repeat_interleave by a tensor",
        lambda x, n: x.repeat_interleave(n, -1),
        lambda x, n: x.repeat_interleave(n.long(), -1),
        FEW_NUMBERS,
        (case((3,), places((3,), 4)), case((2, 5), places((5,), 3)), case((2, 5), places((1,), 3))),
    ),
]

ROWS = [*GATHER_ROWS, *MASKS, *DISTINCT]
