"""Rows of movement: shapes, padding, joining, repeating, windows, diagonals, names for axes."""

from __future__ import annotations

import math
from typing import Any

from tinygrad import Tensor
from tinygrad.dtype import DType, dtypes

from .table import FEW, FLOATS, LAYOUTS, MATRICES, UNARY, WIDE_FLOATS, Input, Row, case, torch

F = torch.nn.functional
CUBES = (
    case((2, 3, 4)),
    case(LAYOUTS["permuted"], name="permuted"),
    case((0, 3, 2)),
    case((1, 3, 1)),
    case(Input((4, 3, 5), lambda x: x.flip((1,))[::2]), name="flipped and strided"),
)
VECTORS = (
    case((7,)),
    case(Input((9,), lambda x: x[1::2]), name="strided"),
    case(Input((5,), lambda x: x.flip((0,))), name="flipped"),
)
NONEMPTY = tuple(c for c in CUBES if c.name != "(0, 3, 2)")


def _padded(x: Any, pads: tuple[int, ...], mode: str) -> Any:
    """PyTorch pads floats only in these modes; small whole numbers are exact."""
    return F.pad(x.double(), pads, mode=mode).to(x.dtype)


def move(
    name: str, ours: Any, theirs: Any = None, cases: Any = CUBES, dtypes_: Any = FEW, **kwargs: Any
) -> Row:
    """A row for an op that only moves items; `ours` serves both libraries where that is all that is given."""
    return Row(name, ours, theirs or ours, dtypes_, cases, **kwargs)


SHAPES = [
    move("reshape", lambda x: x.reshape(-1, 2), cases=CUBES[:2]),
    move("reshape to more axes", lambda x: x.reshape(*x.shape, 1, 1)),
    move("view", lambda x: x.view(-1), lambda x: x.reshape(-1)),
    move(
        "reshape keeping an axis",
        lambda x: x.reshape(None, -1),
        lambda x: x.reshape(x.shape[0], -1),
        NONEMPTY,
    ),
    move("flatten", lambda x: x.flatten()),
    move("flatten from 1", lambda x: x.flatten(1)),
    move("flatten to -2", lambda x: x.flatten(0, -2)),
    move("unflatten", lambda x: x.flatten().unflatten(0, (-1, 1, 3)), cases=NONEMPTY),
    move("squeeze", lambda x: x.squeeze()),
    move("squeeze an axis", lambda x: x.squeeze(-1)),
    move("squeeze axes", lambda x: x.squeeze((0, 1))),
    move("unsqueeze", lambda x: x.unsqueeze(-2), cases=CUBES),
    move("unsqueeze of a scalar", lambda x: x.unsqueeze(0), cases=UNARY[:1]),
    move("expand", lambda x: x.reshape(x.shape[0], 1, -1).expand(-1, 3, -1), cases=NONEMPTY),
    move("expand with new axes", lambda x: x.expand(2, *x.shape)),
    move("expand of a scalar", lambda x: x.expand(2, 3), cases=UNARY[:1]),
    move("permute", lambda x: x.permute(2, 0, 1)),
    move("permute negative", lambda x: x.permute((-1, 0, -2))),
    move("transpose", lambda x: x.transpose(), lambda x: x.transpose(0, 1)),
    move("transpose of axes", lambda x: x.transpose(-1, 0)),
    move("T", lambda x: x.T, cases=(case((2, 3)), case((0, 3)), case(LAYOUTS["flipped"], name="flipped"))),
    move("flip", lambda x: x.flip(0, 2), lambda x: x.flip((0, 2))),
    move("flip negative", lambda x: x.flip(-1), lambda x: x.flip((-1,))),
    move("shrink", lambda x: x.shrink(((0, 1), (1, 3), None)), lambda x: x[0:1, 1:3], NONEMPTY),
    move("shrink_to", lambda x: x.shrink_to(1, 2, None), lambda x: x[:1, :2], NONEMPTY),
]

PADDING = [
    move("pad pairs", lambda x: x.pad(((1, 2), None, (0, 1))), lambda x: F.pad(x, (0, 1, 0, 0, 1, 2))),
    move("pad flat", lambda x: x.pad((1, 2, 3, 0)), lambda x: F.pad(x, (1, 2, 3, 0))),
    move("pad value", lambda x: x.pad((1, 2), value=1), lambda x: F.pad(x, (1, 2), value=1)),
    move(
        "pad infinity",
        lambda x: x.pad((1, 2), value=-math.inf),
        lambda x: F.pad(x, (1, 2), value=-math.inf),
        dtypes_=FLOATS[1:],
        smooth=False,
    ),
    move("pad negative", lambda x: x.pad((-1, 2)), lambda x: F.pad(x, (-1, 2)), NONEMPTY[:2]),
    *(
        move(
            f"pad {mode}",
            lambda x, m=mode: x.pad((2, 1), mode=m),
            lambda x, m=mode: _padded(x, (2, 1), m),
            (
                case((2, 3, 4)),
                case((2, 1, 3)),
                case(Input((4, 5, 2), lambda x: x.permute((2, 0, 1))), name="permuted"),
            ),
            FEW,
        )
        for mode in ("reflect", "replicate", "circular")
    ),
    *(
        move(
            f"pad {mode} two axes",
            lambda x, m=mode: x.pad((2, 1, 0, 2), mode=m),
            lambda x, m=mode: F.pad(x, (2, 1, 0, 2), mode=m),
            (
                case((2, 1, 4, 3)),
                case(Input((4, 3, 2, 1), lambda x: x.permute((2, 3, 0, 1))), name="permuted"),
            ),
            WIDE_FLOATS,
        )
        for mode in ("reflect", "replicate", "circular")
    ),
    move(
        "pad_to",
        lambda x: x.pad_to(5, None, 6, value=2),
        lambda x: F.pad(x, (0, 6 - x.shape[2], 0, 0, 0, 5 - x.shape[0]), value=2),
    ),
]

JOINING = [
    move(
        "cat",
        lambda x, y: x.cat(y, x),
        lambda x, y: torch.cat([x, y, x]),
        (case((2, 3), (4, 3)), case((0, 3), (2, 3)), case(LAYOUTS["flipped"], (1, 3), name="flipped")),
    ),
    move(
        "cat along the last axis",
        lambda x, y: Tensor.cat(x, y, dim=-1),
        lambda x, y: torch.cat([x, y], -1),
        (case((2, 3), (2, 1)), case((3, 2), Input((1, 3), lambda x: x.permute((1, 0))), name="permuted")),
    ),
    move(
        "stack",
        lambda x, y: x.stack(y),
        lambda x, y: torch.stack([x, y]),
        (case((2, 3), (2, 3)), case((), ()), case((0,), (0,))),
    ),
    move(
        "stack at the end",
        lambda x, y: Tensor.stack([x, y], -1),
        lambda x, y: torch.stack([x, y], -1),
        (case((2, 3), (2, 3)), case((3,), (3,))),
    ),
    move("split", lambda x: x.split(2, 1), cases=CUBES),
    move("split by sizes", lambda x: x.split([1, 0, 2], 1), cases=(case((2, 3)), case((0, 3)))),
    move("chunk", lambda x: x.chunk(2, -1), cases=NONEMPTY),
    move("repeat", lambda x: x.repeat(2, 1, 3)),
    move("repeat with new axes", lambda x: x.repeat((2, 1, 2, 1))),
    move("repeat no times", lambda x: x.repeat(0, 1, 1)),
    move("repeat_interleave", lambda x: x.repeat_interleave(2)),
    move("repeat_interleave along", lambda x: x.repeat_interleave(3, dim=-2)),
    move("roll", lambda x: x.roll(2)),
    move("roll along", lambda x: x.roll(-4, 1)),
    move("roll axes", lambda x: x.roll((1, -1), (0, -1))),
    move("roll an axis twice", lambda x: x.roll((1, 1), (1, 1))),
    move(
        "meshgrid",
        lambda x, y: x.meshgrid(y),
        lambda x, y: torch.meshgrid(x, y, indexing="ij"),
        (case((3,), (4,)), case((), (2,)), case((0,), (2,))),
    ),
    move(
        "meshgrid xy",
        lambda x, y, z: x.meshgrid(y, z, indexing="xy"),
        lambda x, y, z: torch.meshgrid(x, y, z, indexing="xy"),
        (case((3,), (4,), (2,)),),
    ),
]

WINDOWS = [
    move("unfold", lambda x: x.unfold(1, 2, 1), cases=NONEMPTY),
    move(
        "unfold step",
        lambda x: x.unfold(-1, 3, 2),
        cases=(case((2, 8)), case((5,)), case(Input((8, 2), lambda x: x.permute((1, 0))), name="permuted")),
    ),
    move("unfold of a number", lambda x: x.unfold(0, 1, 1), cases=(case(()),)),
    move("unfold of size 1", lambda x: x.unfold(0, 1, 3), cases=NONEMPTY),
    move("diagonal", lambda x: x.diagonal(), cases=(*CUBES, *MATRICES[:2])),
    move("diagonal offset", lambda x: x.diagonal(1, -1, 0), cases=CUBES),
    move("diagonal below", lambda x: x.diagonal(-2), cases=MATRICES),
    *(move(f"diag {k}", lambda x, k=k: x.diag(k), cases=(*VECTORS, *MATRICES[:1])) for k in (2, -1)),
    move("diag", lambda x: x.diag(), cases=(*VECTORS, *MATRICES[:1], case((0,)))),
    move("tril", lambda x: x.tril(), cases=CUBES),
    move("tril above", lambda x: x.tril(1), cases=MATRICES),
    move("triu", lambda x: x.triu(), cases=CUBES),
    move("triu below", lambda x: x.triu(-2), cases=MATRICES),
    move(
        "rearrange",
        lambda x: x.rearrange("a b c -> c (a b)"),
        lambda x: x.permute(2, 0, 1).reshape(x.shape[2], -1),
        NONEMPTY,
    ),
    move(
        "rearrange split",
        lambda x: x.rearrange("(a b) ... -> b ... a", b=2),
        lambda x: x.unflatten(0, (-1, 2)).movedim(1, 0).movedim(1, -1),
        (case((4, 3)), case((2, 3, 5)), case(Input((6,), lambda x: x.flip((0,))), name="flipped")),
    ),
    move(
        "rearrange ones",
        lambda x: x.rearrange("a 1 b -> 1 (b a)"),
        lambda x: x[:, 0].T.reshape(1, -1),
        (case((3, 1, 2)),),
    ),
]


def _size(dtype: DType) -> DType:
    return dtypes.int32


SIZES = [
    move(
        name,
        lambda x, n=name: [Tensor([getattr(x, n)()])],
        lambda x, f=f: [torch.tensor([f(x)])],
        dtypes_=(dtypes.float64,),
        result=_size,
        gradient=False,
    )
    for name, f in (
        ("numel", lambda x: x.numel()),
        ("element_size", lambda x: 8),
        ("nbytes", lambda x: 8 * x.numel()),
    )
]
SIZES.append(
    move(
        "size",
        lambda x: [Tensor([*x.size(), x.size(-1)])],
        lambda x: [torch.tensor([*x.size(), x.size(-1)])],
        dtypes_=(dtypes.float64,),
        result=_size,
        gradient=False,
    )
)

ROWS = [*SHAPES, *PADDING, *JOINING, *WINDOWS, *SIZES]
