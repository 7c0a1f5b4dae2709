"""Rows of neural networks (convolution, pooling, norms, attention) and of products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad import Tensor
from tinygrad.dtype import dtypes

from .table import (
    FEW_NUMBERS,
    NETWORK_FLOATS,
    WIDE_FLOATS,
    Case,
    Input,
    Row,
    case,
    distinct,
    nonzero,
    positive,
    same,
    torch,
    whole,
)

F = torch.nn.functional
PRODUCTS = (*FEW_NUMBERS, dtypes.bfloat16, dtypes.int8)


def network(
    name: str,
    ours: Any,
    theirs: Any,
    *cases: Case,
    dtypes_: Any = NETWORK_FLOATS,
    ulps: float = 8,
    **kwargs: Any,
) -> Row:
    return Row(name, ours, theirs, dtypes_, cases, ulps=ulps, **kwargs)


# --- products -----------------------------------------------------------------------------------------------

MATMULS = (
    case((3, 4), (4, 5)),
    case((4,), (4,)),
    case((4,), (4, 3)),
    case((2, 3, 4), (4,)),
    case((2, 1, 3, 4), (5, 4, 2)),
    case(
        Input((4, 3), lambda x: x.permute((1, 0))),
        Input((4, 5), lambda x: x.flip((0, 1))),
        name="permuted and flipped",
    ),
    case(
        Input((6, 4), lambda x: x[::2]),
        Input((1, 4, 2), lambda x: x.expand((3, 4, 2))),
        name="strided and expanded",
    ),
    case((0, 3), (3, 2)),
    case((2, 0), (0, 3)),
    case((1, 1), (1, 1)),
    case((17, 33), (33, 19)),
)


def einsum(formula: str, *shapes: Any) -> Row:
    return Row(
        f"einsum {formula}",
        lambda *xs: Tensor.einsum(formula, *xs),
        lambda *xs: torch.einsum(formula, *xs),
        FEW_NUMBERS,
        (case(*shapes),),
        whole,
        ulps=4,
    )


MATRICES = [
    # 33 products of up to 100 that nearly cancel; OpenCL rounds each before it is added
    Row("matmul", lambda x, y: x @ y, lambda x, y: x @ y, PRODUCTS, MATMULS, ulps=64),
    Row(
        "matmul reversed",
        lambda x, y: y.matmul(x, reverse=True),
        lambda x, y: x @ y,
        FEW_NUMBERS,
        MATMULS[:1],
        ulps=16,
    ),
    Row("dot", lambda x, y: x.dot(y), lambda x, y: x @ y, FEW_NUMBERS, MATMULS[:4], ulps=16),
    network(
        "linear",
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w + b,
        case((2, 3), (3, 4), (4,)),
        case((3,), (3, 4), (4,)),
    ),
    network("linear of a vector", lambda x, w: x.linear(w), lambda x, w: x * w, case((2, 3), (3,))),
    *(
        einsum(*a)
        for a in (
            ("ij,jk->ik", (3, 4), (4, 5)),
            ("ij,jk", (3, 4), (4, 2)),
            ("ii->i", (3, 3)),
            ("ii", (3, 3)),
            ("ij->ji", (2, 3)),
            ("ij->", (2, 3)),
            ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
            ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
            ("i,j->ij", (3,), (4,)),
            ("ij,j,i->", (3, 4), (4,), (3,)),
            ("iij->j", (2, 2, 3)),
            ("ab,cb,dc->ad", (2, 3), (4, 3), (5, 4)),
            ("...->...", (2, 3)),
            ("ijk,ijk->i", (2, 3, 4), (2, 3, 4)),
            ("...a,a->...", (0, 3), (3,)),
        )
    ),
]


# --- convolution --------------------------------------------------------------------------------------------


def conv(name: str, x: Any, w: Any, bias: bool = True, **kwargs: Any) -> Row:
    """`kwargs` as PyTorch takes them."""
    axes = len(w) - 2
    theirs = getattr(F, f"conv{axes}d")
    shapes = (x, w, (w[0],)) if bias else (x, w)
    return network(
        f"conv2d {name}",
        lambda *a: a[0].conv2d(*a[1:], **kwargs),
        lambda *a: theirs(*a, **kwargs),
        case(*shapes),
        ulps=32,
    )


def asymmetric(x: Any, w: Any) -> Any:
    return F.conv2d(F.pad(x, (0, 1, 2, 0)), w)


PERMUTED = Input((5, 2, 6, 3), lambda x: x.permute((1, 3, 0, 2)))
CONVOLUTIONS = [
    conv("1 axis", (2, 3, 7), (4, 3, 3)),
    conv("2 axes", (2, 3, 6, 5), (4, 3, 3, 2)),
    conv("3 axes", (1, 2, 4, 5, 3), (3, 2, 2, 3, 1)),
    conv("without bias", (1, 2, 5, 5), (3, 2, 1, 1), bias=False),
    conv("stride", (2, 2, 7, 8), (3, 2, 3, 3), stride=2),
    conv("strides and padding", (1, 2, 7, 8), (3, 2, 3, 2), stride=(2, 3), padding=(1, 1)),
    conv("dilation", (1, 2, 8, 7), (2, 2, 3, 2), dilation=(2, 3), padding=2),
    conv("groups", (2, 4, 5, 6), (6, 2, 3, 3), groups=2, padding=1),
    conv("depthwise", (1, 3, 5, 5), (6, 1, 3, 3), groups=3, stride=2),
    conv("same", (1, 2, 5, 6), (2, 2, 4, 3), padding="same"),
    conv("same dilated", (1, 2, 9), (2, 2, 4), padding="same", dilation=2),
    conv("valid", (1, 2, 5, 6), (2, 2, 4, 3), padding="valid"),
    conv("stride larger than kernel", (1, 2, 9, 9), (2, 2, 2, 2), stride=3),
    conv("no batch", (0, 2, 5, 5), (3, 2, 3, 3)),
    network(
        "conv2d asymmetric",
        lambda x, w: x.conv2d(w, padding=(0, 1, 2, 0)),
        asymmetric,
        case((1, 2, 5, 5), (3, 2, 3, 3)),
        ulps=32,
    ),
    network(
        "conv2d permuted",
        lambda x, w: x.conv2d(w),
        F.conv2d,
        case(PERMUTED, (4, 3, 2, 2), name="permuted"),
        ulps=32,
    ),
]


def transposed(name: str, x: Any, w: Any, **kwargs: Any) -> Row:
    theirs = getattr(F, f"conv_transpose{len(w) - 2}d")
    return network(
        f"conv_transpose2d {name}",
        lambda x, w, b: x.conv_transpose2d(w, b, **kwargs),
        lambda x, w, b: theirs(x, w, b, **kwargs),
        case(x, w, (w[1] * kwargs.get("groups", 1),)),
        ulps=32,
    )


TRANSPOSED = [
    transposed("1 axis", (2, 3, 4), (3, 2, 3)),
    transposed("2 axes", (1, 3, 4, 3), (3, 2, 3, 2)),
    transposed("3 axes", (1, 2, 2, 3, 2), (2, 2, 2, 1, 3)),
    transposed("stride", (1, 2, 4, 3), (2, 3, 3, 2), stride=2),
    transposed(
        "strides, padding, output_padding",
        (1, 2, 4, 3),
        (2, 3, 3, 3),
        stride=(2, 3),
        padding=(1, 2),
        output_padding=(1, 0),
    ),
    transposed("dilation", (1, 2, 4, 3), (2, 3, 3, 2), dilation=2, stride=2),
    transposed("groups", (1, 4, 3, 3), (4, 2, 2, 2), groups=2),
    transposed("padding beyond the kernel", (1, 2, 6, 6), (2, 2, 2, 2), padding=2),
    network(
        "conv_transpose2d permuted",
        lambda x, w: x.conv_transpose2d(w),
        F.conv_transpose2d,
        case(PERMUTED, Input((2, 3, 4, 2), lambda x: x.permute((1, 2, 0, 3))), name="permuted"),
        case((0, 3, 4, 4), (3, 2, 2, 2)),
        ulps=32,
    ),
]


# --- pooling ------------------------------------------------------------------------------------------------

IMAGES = (case((2, 3, 7, 6)), case(PERMUTED, name="permuted"))


def avg(name: str, *cases: Case, kernel: Any = 2, axes: int = 2, **kwargs: Any) -> Row:
    theirs = getattr(F, f"avg_pool{axes}d")
    return network(
        f"avg_pool2d {name}",
        lambda x: x.avg_pool2d(kernel, **kwargs),
        lambda x: theirs(x, kernel, **kwargs),
        *(cases or IMAGES),
    )


def largest(name: str, *cases: Case, kernel: Any = 2, axes: int = 2, **kwargs: Any) -> list[Row]:
    theirs = getattr(F, f"max_pool{axes}d")
    row = network(
        f"max_pool2d {name}",
        lambda x: x.max_pool2d(kernel, **kwargs),
        lambda x: theirs(x, kernel, **kwargs),
        *(cases or IMAGES),
        values=distinct,
        ulps=0,
    )
    both = network(
        f"max_pool2d {name} with indices",
        lambda x: x.max_pool2d(kernel, **kwargs, return_indices=True),
        lambda x: theirs(x, kernel, **kwargs, return_indices=True),
        *(cases or IMAGES),
        values=whole,
        ulps=0,
        gradient=False,
        dtypes_=WIDE_FLOATS,
        result=(same, lambda d: dtypes.int32),
    )
    return [row, both]


POOLING = [
    avg("plain"),
    avg("strided", kernel=(3, 2), stride=(1, 2)),
    avg("padded", kernel=3, stride=2, padding=1),
    avg("without padding counted", kernel=3, stride=2, padding=1, count_include_pad=False),
    avg("ceil", kernel=3, stride=2, ceil_mode=True),
    avg("ceil padded", kernel=3, stride=2, padding=1, ceil_mode=True),
    avg(
        "ceil padded, without padding counted",
        kernel=(3, 2),
        stride=2,
        padding=(1, 0),
        ceil_mode=True,
        count_include_pad=False,
    ),
    avg("1 axis", case((2, 3, 7)), kernel=(2,), axes=1),
    avg("3 axes", case((1, 2, 4, 5, 3)), kernel=(2, 2, 1), axes=3),
    *largest("plain"),
    *largest("strided", kernel=(3, 2), stride=(1, 2)),
    *largest("padded", kernel=3, stride=2, padding=1),
    *largest("many overlapping", kernel=5, stride=1, padding=2),
    avg("many overlapping", kernel=5, stride=1, padding=2),
    *largest("dilated", kernel=2, stride=1, dilation=2),
    *largest("dilated padded ceil", kernel=(3, 2), stride=2, dilation=(1, 2), padding=1, ceil_mode=True),
    *largest("ceil", kernel=3, stride=2, ceil_mode=True),
    *largest("1 axis", case((2, 3, 7)), kernel=(3,), axes=1, stride=2),
    *largest("3 axes", case((1, 2, 4, 5, 3)), kernel=(2, 2, 2), axes=3, stride=1),
    network(
        "max_unpool2d",
        lambda x: _unpooled(x),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        case((2, 3, 6, 4)),
        values=distinct,
        ulps=0,
    ),
    network(
        "max_unpool2d output_size",
        lambda x: x.max_pool2d(2, return_indices=True)[0].max_unpool2d(
            x.max_pool2d(2, return_indices=True)[1], 2, output_size=(7, 5)
        ),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 5)),
        case((2, 3, 7, 5)),
        values=distinct,
        ulps=0,
    ),
]


# --- interpolation ------------------------------------------------------------------------------------------


def resize(size: Any, mode: str, shape: Any, corners: bool = False, antialias: bool = False) -> Row:
    names = {"linear": {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)], "cubic": "bicubic"}
    options: dict[str, Any] = {"align_corners": corners, "antialias": antialias} if mode in names else {}
    return network(
        f"interpolate {mode} to {size}{' at corners' * corners}{' antialiased' * antialias}",
        lambda x: x.interpolate(size, mode, corners, antialias),
        lambda x: F.interpolate(x, size, mode=names.get(mode, mode), **options),
        case(shape),
        case(Input(shape[::-1], lambda x: x.permute(tuple(reversed(range(len(shape)))))), name="permuted"),
        ulps=32 if mode == "cubic" else 8,  # PyTorch rounds the positions
    )


LARGER_AND_SMALLER = (
    ((7,), (2, 3, 4)),
    ((3, 9), (1, 2, 5, 4)),
    ((2, 3), (1, 2, 5, 7)),
    ((3, 2, 5), (1, 1, 2, 3, 4)),
)
INTERPOLATION = [
    *(
        resize(size, mode, shape, corners, antialias=True)
        for mode in ("linear", "cubic")
        for size, shape in (((3, 2), (1, 2, 7, 9)), ((5, 8), (1, 2, 11, 4)))
        for corners in (False, True)
    ),
    *(
        resize(size, mode, shape)
        for mode in ("linear", "nearest", "nearest-exact", "area", "cubic")
        for size, shape in LARGER_AND_SMALLER
        if mode != "cubic" or len(size) == 2
    ),
    *(
        resize(size, mode, shape, True)
        for mode in ("linear", "cubic")
        for size, shape in (((7,), (2, 3, 4)), ((3, 9), (1, 2, 5, 4)), ((1, 3), (1, 2, 5, 7)))
        if mode != "cubic" or len(size) == 2
    ),
]


# --- normalisation and attention ----------------------------------------------------------------------------


def _batchnorm(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
    return x.batchnorm(w, b, m, (v + 1e-5).rsqrt())


NORMS = [
    network(
        "batchnorm",
        _batchnorm,
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
        case((2, 3, 4), (3,), (3,), (3,), Input((3,), values=positive)),
        case((5, 3), (3,), (3,), (3,), Input((3,), values=positive)),
        case(Input((3, 4, 2, 1), lambda x: x.permute((2, 0, 1, 3))), (3,), (3,), (3,),
             Input((3,), values=positive), name="permuted"),
        ulps=8,
        constant=(3, 4),
    ),
    network(
        "layernorm",
        lambda x: x.layernorm(),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        case((4, 7)),
        case((2, 3, 5)),
        case((0, 3)),
        case((3, 1)),
        case(Input((7, 4), lambda x: x.permute((1, 0))), name="permuted"),
        ulps=16,
    ),
    network(
        "layernorm over axes",
        lambda x: x.layernorm((1, 2), eps=1e-3),
        lambda x: F.layer_norm(x, x.shape[1:], eps=1e-3),
        case((2, 3, 5)),
        ulps=16,
    ),
    *(
        network(
            f"normalize {p}",
            lambda x, p=p: x.normalize(p, dim=-1),
            lambda x, p=p: F.normalize(x, p, dim=-1),
            case((4, 7)),
            case((2, 3, 5)),
            case(Input((7, 4), lambda x: x.permute((1, 0))), name="permuted"),
            case((0, 3)),
            values=nonzero,
            ulps=8,
        )
        for p in (1.0, 2.0, 3.0, float("inf"))
    ),
    network(
        "normalize zeros",
        lambda x: (x * 0).normalize(),
        lambda x: F.normalize(x * 0),
        case((3, 4)),
        dtypes_=NETWORK_FLOATS[1:],
    ),
    network(
        "normalize by the smallest",
        lambda x: x.normalize(-float("inf")),
        lambda x: F.normalize(x, -float("inf")),
        case((4, 7)),
        values=nonzero,
    ),
    network(
        "dropout at evaluation",
        lambda x: x.dropout(0.5),
        lambda x: F.dropout(x, 0.5, training=False),
        case((3, 4)),
        ulps=0,
    ),
    network(
        "sequential",
        lambda x: x.sequential([lambda t: t * 2, lambda t: t.relu()]),
        lambda x: (x * 2).relu(),
        case((3, 4)),
        ulps=0,
    ),
]

QKV = (
    case((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)),
    case((5, 4), (3, 4), (3, 4)),
    case(
        Input((2, 5, 3, 4), lambda x: x.permute((0, 2, 1, 3))),
        Input((2, 5, 3, 4), lambda x: x.permute((0, 2, 1, 3))),
        (2, 3, 5, 4),
        name="permuted",
    ),
)


def _attention(name: str, *cases: Case, **kwargs: Any) -> Row:
    def ours(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return q.scaled_dot_product_attention(k, v, attn_mask=mask, **kwargs)

    def theirs(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **kwargs)

    return network(f"scaled_dot_product_attention {name}".strip(), ours, theirs, *cases, ulps=16)


def _with(mask: Input, *cases: Case) -> tuple[Case, ...]:
    return tuple(Case(c.name, (*c.inputs, mask)) for c in cases)


ATTENTION = [
    _attention("", *QKV),
    _attention("causal", *QKV, is_causal=True),
    _attention(
        "mask", *_with(Input((5, 6), values=lambda r, s: r.uniform(size=s) < 0.8, dtype=dtypes.bool), QKV[0])
    ),
    _attention("float mask", *_with(Input((2, 1, 5, 6)), QKV[0])),
    _attention(
        "fully masked",
        *_with(
            Input(
                (5, 6),
                values=lambda r, s: (r.uniform(size=s) < 0.8) & (np.arange(5)[:, None] > 0),
                dtype=dtypes.bool,
            ),
            QKV[0],
        ),
    ),
    _attention("grouped", case((2, 6, 5, 4), (2, 2, 3, 4), (2, 2, 3, 4)), enable_gqa=True),
    _attention(
        "grouped causal", case((1, 4, 5, 4), (1, 1, 5, 4), (1, 1, 5, 4)), enable_gqa=True, is_causal=True
    ),
]


def _unpooled(x: Any) -> Any:
    values, places = x.max_pool2d(2, return_indices=True)
    return values.max_unpool2d(places, 2)


ROWS = [*MATRICES, *CONVOLUTIONS, *TRANSPOSED, *POOLING, *INTERPOLATION, *NORMS, *ATTENTION]
