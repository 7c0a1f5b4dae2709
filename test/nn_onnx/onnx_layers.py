"""What each operator of networks draws: products, windows, norms, images, recurrence, quantised numbers."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx_graphs import Builder, NotComputed
from onnx_operators import OPERATORS, Draw, operator

# --- products and windows -----------------------------------------------------------------------------------


@operator
def MatMul(b: Builder) -> None:
    x = b.value(rank=(1, 4), domain=(-2, 2))
    *batch, k = b.of(x).shape
    shape = (k,) if b.rng.random() < 0.2 else (k, b.rng.choice(b.sizes))
    if len(batch) > 1 and len(shape) == 2 and b.flip():
        shape = (*(1 if b.flip() else n for n in batch[:-1]), *shape)
    b.add("MatMul", [x, b.value(shape=shape, domain=(-1, 1))])


@operator
def FusedMatMul(b: Builder) -> None:
    x = b.value(rank=(2, 3), domain=(-2, 2))
    transposed = [b.rng.randint(0, 1), b.rng.randint(0, 1)]
    k, n = b.of(x).shape[-2 if transposed[0] else -1], b.rng.choice(b.sizes)
    y = b.value(shape=(*b.of(x).shape[:-2], *((n, k) if transposed[1] else (k, n))), domain=(-1, 1))
    b.add("FusedMatMul", [x, y], domain="com.microsoft", transA=transposed[0], transB=transposed[1],
          **b.some(alpha=0.5))


@operator
def Gemm(b: Builder) -> None:
    x = b.value(rank=(2, 2), domain=(-2, 2))
    a, t = b.rng.randint(0, 1), b.rng.randint(0, 1)
    k, m, n = b.of(x).shape[1 - a], b.of(x).shape[a], b.rng.choice(b.sizes)
    given = [x, b.value(shape=(n, k) if t else (k, n), domain=(-1, 1))]
    if b.flip():
        given.append(b.value(shape=b.rng.choice([(n,), (m, n), (m, 1), (1,), (1, n)])))
    b.add("Gemm", given, transA=a, transB=t, **b.some(alpha=0.5, beta=1.5))


@operator
def Einsum(b: Builder) -> None:
    x = b.value(rank=(3, 3), domain=(-2, 2))
    i, j, k = b.of(x).shape
    n = b.rng.choice(b.sizes)
    equation, shape = b.rng.choice([("ijk,kl->ijl", (k, n)), ("ijk,ikl->ijl", (i, k, n)),
                                    ("ijk,ijk->i", (i, j, k)),
                                    ("ijk,jl->lik", (j, n)), ("...k,k->...", (k,)), ("ijk,j->ki", (j,))])
    b.add("Einsum", [x, b.value(shape=shape, domain=(-1, 1))], equation=equation)


@operator
def Det(b: Builder) -> None:
    n = b.rng.choice([1, 2, 3, 5])
    b.add("Det", [b.value(shape=(*b.shape(0, 1), n, n))])


def window(b: Builder, sizes: Sequence[int], dilates: bool = True, same: bool = True) -> dict[str, Any]:
    """Attributes of windows of at most these sizes."""
    kernel = [b.rng.randint(1, min(3, n)) for n in sizes]
    made: dict[str, Any] = {"kernel_shape": kernel, **b.some(strides=[b.rng.randint(1, 2) for _ in kernel])}
    if same and b.rng.random() < 0.2:
        return made | {"auto_pad": b.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])}
    if dilates and all(n >= 2 * k for n, k in zip(sizes, kernel, strict=True)):
        made |= b.some(dilations=[b.rng.randint(1, 2) for _ in kernel])
    return made | b.some(pads=[b.rng.randint(0, max(0, k - 1)) for _ in range(2) for k in kernel])


def convolved(op: str) -> Draw:
    def draw(b: Builder) -> None:
        axes = b.rng.choice([1, 2, 2, 2, 3]) if op == "Conv" else b.rng.choice([1, 2, 2])
        x = b.value(rank=(axes + 2, axes + 2), domain=(-2, 2))
        c, *sizes = b.of(x).shape[1:]
        made = window(b, sizes, same=op == "Conv")
        groups = b.rng.choice([1, 1, c])
        out = groups * b.rng.choice([1, 2, 5])
        shape = (out, c // groups) if op == "Conv" else (c, out // groups)
        given = [x, b.weight(*shape, *made["kernel_shape"], like=x)]
        if b.flip():
            given.append(b.weight(out, like=x))
        if op == "ConvTranspose" and b.flip():
            made["output_padding"] = [s - 1 for s in made.get("strides", [1] * axes)]
        y, = b.add(op, given, group=groups, **made)
        if b.reuse and b.flip():  # what importers fold
            b.add("BatchNormalization", [y, *(b.weight(out, like=y, domain=(0.5, 1.5)) for _ in range(4))])
    return draw


OPERATORS["Conv"] = convolved("Conv")
OPERATORS["ConvTranspose"] = convolved("ConvTranspose")


def pooled(op: str) -> Draw:
    def draw(b: Builder) -> None:
        axes = b.rng.choice([1, 2, 2, 3])
        x = b.value(rank=(axes + 2, axes + 2), exact=op == "MaxPool")
        made = window(b, b.of(x).shape[2:], dilates=op == "MaxPool", same=op != "LpPool")
        if "auto_pad" not in made and op != "LpPool":
            made |= b.some(ceil_mode=1)
        if op == "AveragePool":
            made |= b.some(count_include_pad=1)
        outputs = 2 if op == "MaxPool" and "auto_pad" not in made and b.flip() else 1
        b.add(op, [x], outputs, exact=op == "MaxPool", **made)
    return draw


for name in ("MaxPool", "AveragePool", "LpPool"):
    OPERATORS[name] = pooled(name)


def whole_image(op: str) -> Draw:
    return lambda b: b.add(op, [b.value(rank=(3, 4))])


for name in ("GlobalAveragePool", "GlobalMaxPool"):
    OPERATORS[name] = whole_image(name)


@operator
def Col2Im(b: Builder) -> None:
    h, w = (b.rng.choice(b.sizes) + 2 for _ in range(2))
    kernel, stride = (2, 2), (1, 2)
    blocks = math.prod((n - k) // s + 1 for n, k, s in zip((h, w), kernel, stride, strict=True))
    x = b.value(shape=(2, 3 * 4, blocks))
    b.add("Col2Im", [x, b.constant((h, w)), b.constant(kernel)], strides=stride)


# --- norms --------------------------------------------------------------------------------------------------


@operator
def BatchNormalization(b: Builder) -> None:
    x = b.value(rank=(2, 4))
    c = b.of(x).shape[1]
    b.add("BatchNormalization", [x, *(b.weight(c, like=x, domain=(0.5, 1.5)) for _ in range(4))],
          **b.some(epsilon=0.01))


@operator
def InstanceNormalization(b: Builder) -> None:
    x = b.value(rank=(3, 4))
    c = b.of(x).shape[1]
    b.add("InstanceNormalization", [x, b.weight(c, like=x), b.weight(c, like=x)], epsilon=0.1)


def computed_in_float32(b: Builder) -> None:
    """For operators with a `stash_type`: ONNX Runtime computes in float64, whatever that says."""
    if b.types["f"] == "float64":
        raise NotComputed("ONNX Runtime does not compute in the type that the standard says")


@operator
def LayerNormalization(b: Builder) -> None:
    computed_in_float32(b)
    x = b.value(rank=(1, 4))
    axis = b.rng.randrange(b.of(x).ndim)
    shape = b.of(x).shape[axis:]
    b.add("LayerNormalization", [x, *(b.weight(*shape, like=x) for _ in range(b.rng.randint(1, 2)))],
          axis=axis - (b.of(x).ndim if b.flip() else 0), epsilon=0.1)


@operator
def RMSNormalization(b: Builder) -> None:
    computed_in_float32(b)
    x = b.value(rank=(1, 4))
    axis = b.rng.randrange(b.of(x).ndim)
    b.add("RMSNormalization", [x, b.weight(*b.of(x).shape[axis:], like=x)], axis=axis, epsilon=0.1)


@operator
def GroupNormalization(b: Builder) -> None:
    computed_in_float32(b)
    groups = b.rng.randint(1, 3)
    c = groups * b.rng.randint(1, 3)
    x = b.value(shape=(b.rng.choice(b.sizes), c, *b.shape(1, 2)))
    b.add("GroupNormalization", [x, b.weight(c, like=x), b.weight(c, like=x)], num_groups=groups, epsilon=0.1)


@operator
def LRN(b: Builder) -> None:
    b.add("LRN", [b.value(rank=(4, 4))], size=b.rng.choice([1, 3, 5]),
          **b.some(alpha=0.1, beta=0.5, bias=1.5))


@operator
def MeanVarianceNormalization(b: Builder) -> None:
    b.add("MeanVarianceNormalization", [b.value(rank=(4, 4), where=lambda a: a.size > 30 and a.std() > 0.1)])


@operator
def SkipLayerNormalization(b: Builder) -> None:
    x = b.value(rank=(3, 3))
    n = b.of(x).shape[-1]
    given = [x, b.value(shape=b.of(x).shape), *(b.weight(n, like=x) for _ in range(b.rng.randint(1, 3)))]
    b.add("SkipLayerNormalization", given, domain="com.microsoft", epsilon=0.1)


@operator
def BiasGelu(b: Builder) -> None:
    x = b.value(rank=(2, 3))
    b.add("BiasGelu", [x, b.weight(b.of(x).shape[-1], like=x)], domain="com.microsoft")


@operator
def FastGelu(b: Builder) -> None:
    x = b.value(rank=(2, 3))
    b.add("FastGelu", [x, b.weight(b.of(x).shape[-1], like=x)] if b.flip() else [x], domain="com.microsoft")


# --- images -------------------------------------------------------------------------------------------------


@operator
def Resize(b: Builder) -> None:
    mode = b.rng.choice(["nearest", "linear", "cubic"])
    x = b.value(rank=(4, 4), exact=mode == "nearest")
    n, c, h, w = b.of(x).shape
    made: dict[str, Any] = {"mode": mode, **b.some(coordinate_transformation_mode=b.rng.choice(
        ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))}
    if mode == "nearest":
        made |= b.some(nearest_mode=b.rng.choice(["floor", "ceil", "round_prefer_floor",
                                                  "round_prefer_ceil"]))
    if mode == "cubic":
        made |= b.some(cubic_coeff_a=-0.5, exclude_outside=1)
    if b.flip():
        given = [x, "", "", b.constant([n, c, h * b.rng.randint(1, 3), max(1, w * b.rng.randint(1, 4) // 2)])]
    else:
        # with corners aligned, sizes of ONNX Runtime are whole numbers of items; the standard's are not
        part = 2 if made.get("coordinate_transformation_mode") == "align_corners" else 2.5
        given = [x, "", b.constant([1, 1, b.rng.choice([1, 2, part]), b.rng.choice([1, 2, 3])], np.float32)]
    b.add("Resize", given, **made)


@operator
def GridSample(b: Builder) -> None:
    x = b.value(rank=(4, 4))
    grid = b.weight(b.of(x).shape[0], 3, 4, 2, like=x, domain=(-1.2, 1.2))
    b.add("GridSample", [x, grid], mode=b.rng.choice(["linear", "cubic"]), **b.some(
        padding_mode=b.rng.choice(["border", "reflection"]), align_corners=1))


@operator
def RoiAlign(b: Builder) -> None:
    b.opset = 16  # the newest that ONNX Runtime has
    x = b.value(rank=(4, 4))
    corners = np.sort(b.array((3, 2, 2), b.of(x).dtype, (0, 4)), 1).reshape(3, 4)
    batch = b.array((3,), "int64", (0, b.of(x).shape[0] - 1))
    b.add("RoiAlign", [x, b.feed(corners), b.feed(batch)], output_height=2, output_width=3, sampling_ratio=2,
          mode="avg", **b.some(spatial_scale=0.5, coordinate_transformation_mode="output_half_pixel"))


# --- recurrence, attention, signals -------------------------------------------------------------------------


def recurrent(op: str, gates: int) -> Draw:
    def draw(b: Builder) -> None:
        x = b.value(rank=(3, 3), domain=(-2, 2))
        steps, batch, size = b.of(x).shape
        hidden, direction = b.rng.choice([2, 3]), b.rng.choice(["forward", "reverse", "bidirectional"])
        d = 1 + (direction == "bidirectional")
        given = [x, b.weight(d, gates * hidden, size, like=x), b.weight(d, gates * hidden, hidden, like=x)]
        given.append(b.weight(d, 2 * gates * hidden, like=x) if b.flip() else "")
        given.append(b.constant(b.array((batch,), "int32", (1, steps)), np.int32) if b.flip() else "")
        given.append(b.weight(d, batch, hidden, like=x) if b.flip() else "")
        if op == "LSTM":
            given += [b.weight(d, batch, hidden, like=x), b.weight(d, 3 * hidden, like=x) if b.flip() else ""]
        own = {"GRU": {"linear_before_reset": 1}, "LSTM": {"input_forget": 1}}
        b.add(op, given, 3 if op == "LSTM" else 2, hidden_size=hidden, direction=direction,
              **b.some(**own.get(op, {})))
    return draw


for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    OPERATORS[name] = recurrent(name, gates)


@operator
def Attention(b: Builder) -> None:
    q = b.value(rank=(4, 4))
    batch, heads, steps, size = b.of(q).shape
    others = b.rng.choice(b.sizes)
    given = [q, *(b.value(shape=(batch, heads, others, size)) for _ in range(2))]
    causal = b.flip()
    if not causal and b.flip():
        given.append(b.weight(steps, others, like=q))
    b.add("Attention", given, is_causal=int(causal), **b.some(scale=0.3, softcap=2.0))


@operator
def MultiHeadAttention(b: Builder) -> None:
    heads, steps, size = b.rng.randint(1, 3), b.rng.choice(b.sizes), 4
    q = b.value(shape=(2, steps, heads * size))
    k, v = (b.value(shape=(2, steps, heads * size)) for _ in range(2))
    bias = [b.weight(3 * heads * size, like=q)] if b.flip() else []
    b.add("MultiHeadAttention", [q, k, v, *bias], domain="com.microsoft", num_heads=heads)


@operator
def DFT(b: Builder) -> None:
    n = b.rng.choice([4, 8, 15])
    x = b.value(shape=(2, n, b.rng.choice([1, 2])))
    onesided = b.of(x).shape[-1] == 1 and b.flip()
    b.add("DFT", [x, "", b.constant(1)], onesided=int(onesided))


# --- quantised numbers --------------------------------------------------------------------------------------


def quantised(b: Builder, *shape: int, kind: str = "uint8", zero: int = 0) -> list[str]:
    """Numbers, their scale, and the zero. Signed ones have seven bits: on processors with AVX2 and no VNNI,
    ONNX Runtime adds two products of eight bits in 16, which 2 * 255 * 64 fits in and 2 * 255 * 128 does not.
    `test_quantised.py` has all eight."""
    domain = (0, 200) if kind == "uint8" else (-64, 63)
    numbers = b.feed(b.array(shape, kind, domain))
    return [numbers, b.constant(0.02, np.float32), b.constant(zero, kind)]


@operator
def QuantizeLinear(b: Builder) -> None:
    x = b.feed(b.array(b.shape(1, 4), np.float32))
    zero = b.constant(7, b.rng.choice(["uint8", "int8"]))
    b.add("QuantizeLinear", [x, b.constant(0.037, np.float32), zero])


@operator
def DequantizeLinear(b: Builder) -> None:
    shape = b.shape(2, 4)
    if b.flip():
        b.add("DequantizeLinear", quantised(b, *shape, zero=9))
        return
    axis = b.rng.randrange(len(shape))
    n = (shape[axis],)
    given = (b.array(shape, "int8", (-100, 100)), b.array(n, "float32", (0.01, 0.03)),
             b.array(n, "int8", (-9, 9)))
    b.add("DequantizeLinear", [b.feed(array) for array in given], axis=axis)


@operator
def DynamicQuantizeLinear(b: Builder) -> None:
    b.add("DynamicQuantizeLinear", [b.feed(b.array(b.shape(1, 3), np.float32))], 3)


@operator
def QLinearMatMul(b: Builder) -> None:
    m, k, n = (b.rng.choice(b.sizes) for _ in range(3))
    b.add("QLinearMatMul", [*quantised(b, m, k, zero=100), *quantised(b, k, n, kind="int8"),
                            b.constant(0.043, np.float32), b.constant(110, np.uint8)])


@operator
def MatMulInteger(b: Builder) -> None:
    m, k, n = (b.rng.choice(b.sizes) for _ in range(3))
    x, y = quantised(b, m, k, zero=100), quantised(b, k, n, kind=b.rng.choice(["int8", "uint8"]), zero=3)
    b.add("MatMulInteger", [x[0], y[0], x[2], y[2]] if b.flip() else [x[0], y[0]])


@operator
def QLinearConv(b: Builder) -> None:
    n, c, h, w = (b.rng.choice(b.sizes) for _ in range(4))
    made = window(b, (h, w))
    b.add("QLinearConv", [*quantised(b, n, c, h, w, zero=100),
                          *quantised(b, 4, c, *made["kernel_shape"], kind="int8"),
                          b.constant(0.051, np.float32), b.constant(120, np.uint8)], **made)


@operator
def ConvInteger(b: Builder) -> None:
    n, c, h, w = (b.rng.choice(b.sizes) for _ in range(4))
    made = window(b, (h, w))
    x, y = quantised(b, n, c, h, w, zero=100), quantised(b, 4, c, *made["kernel_shape"])
    b.add("ConvInteger", [x[0], y[0], x[2]], **made)


ALONE = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "MatMulInteger",
         "QLinearConv", "ConvInteger", "NonZero", "Unique", "Compress", "RoiAlign", "BitShift", "OneHot"}
"""Operators of types or sizes that no other takes: they are in no graph."""
