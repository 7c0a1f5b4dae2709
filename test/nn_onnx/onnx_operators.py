"""What each operator on items and their places draws: operands and attributes, from a `Builder`.

Those of networks are in `onnx_layers.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx_graphs import Builder, NotComputed

Draw = Callable[[Builder], Any]
Pair = tuple[float, float]
OPERATORS: dict[str, Draw] = {}


def operator(draw: Draw) -> Draw:
    OPERATORS[draw.__name__] = draw
    return draw


# --- item by item -------------------------------------------------------------------------------------------


def unary(op: str, kinds: str = "f", domain: Pair = (-3, 3), exact: bool = False, moves: bool = False,
          ms: bool = False, **ranges: Pair) -> None:
    def draw(b: Builder) -> None:
        attributes = b.some(**{name: round(b.rng.uniform(*r), 3) for name, r in ranges.items()})
        b.add(op, [b.value(kinds, domain=domain, exact=exact)], exact=moves,
              domain="com.microsoft" if ms else "", **attributes)
    OPERATORS[op + (" (com.microsoft)" if ms else "")] = draw


for name in ("Atan", "Cos", "Erf", "HardSwish", "Mish", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign",
             "Tanh", "Exp", "Asinh", "Cosh"):
    unary(name)
for name in ("Abs", "Neg"):
    unary(name, "fi", moves=True)
for name in ("Ceil", "Floor", "Round", "Sign"):
    unary(name, exact=True, moves=True)
unary("Relu", "fi", moves=True)
unary("Identity", "fib", moves=True)
unary("Not", "b", moves=True)
unary("BitwiseNot", "i", moves=True)
unary("Acos", domain=(-0.9, 0.9))
unary("Asin", domain=(-0.9, 0.9))
unary("Atanh", domain=(-0.9, 0.9))
unary("Acosh", domain=(1.2, 3))
unary("Tan", domain=(-1.2, 1.2))
unary("Log", domain=(0.1, 3))
unary("Sqrt", domain=(0.1, 3))
unary("Reciprocal", domain=(0.3, 3))
unary("Celu", alpha=(0.5, 2))
unary("Elu", alpha=(0.5, 2))
unary("HardSigmoid", alpha=(0.1, 0.5), beta=(0.1, 0.9))
unary("LeakyRelu", alpha=(0.01, 0.5))
unary("Selu", alpha=(1, 2), gamma=(1, 2))
unary("ThresholdedRelu", exact=True, alpha=(0.5, 1.5))
unary("Shrink", exact=True, lambd=(0.1, 1), bias=(0, 1))
unary("IsNaN", moves=True)
unary("IsInf", moves=True)
unary("Gelu", ms=True)
unary("QuickGelu", ms=True, alpha=(1, 2))


@operator
def Gelu(b: Builder) -> None:
    b.add("Gelu", [b.value()], **b.some(approximate=b.rng.choice(["none", "tanh"])))


@operator
def Cast(b: Builder) -> None:
    to = b.rng.choice([1, 6, 7, 9, 11] if not b.reuse else [1, 6, 7, 9])
    b.add("Cast", [b.value("fib", exact=True)], exact=True, to=to)


def broadcast(b: Builder, name: str) -> tuple[int, ...]:
    """A shape that goes together with a value's."""
    shape = tuple(1 if b.rng.random() < 0.3 else n for n in b.of(name).shape)
    return shape[b.rng.randint(0, len(shape) - 1):] if b.flip() else shape


def binary(op: str, kinds: str = "f", second: Pair = (-3, 3), first: Pair = (-3, 3),
           exact: bool = False, moves: bool = False, **attributes: Sequence[Any]) -> None:
    def draw(b: Builder) -> None:
        kind = b.rng.choice(kinds)
        x = b.value(kind, domain=first, exact=exact)
        y = b.value(kind, shape=broadcast(b, x), domain=second, exact=exact)
        given = [x, y] if first != second or b.flip() else [y, x]
        b.add(op, given, exact=moves, **{k: b.rng.choice(v) for k, v in attributes.items()})
    OPERATORS[op] = draw


for name in ("Add", "Sub", "Mul"):
    binary(name, "fi")
for name in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
    binary(name, "fi", exact=True, moves=True)
for name in ("And", "Or", "Xor"):
    binary(name, "b", moves=True)
for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    binary(name, "i", moves=True)
binary("Div", second=(0.4, 3))
binary("Pow", first=(0.2, 2), second=(-2, 2.5))
binary("PRelu", first=(-4, 4))


@operator
def DivOfIntegers(b: Builder) -> None:
    x = b.value("i", domain=(-50, 50))
    b.add("Div", [x, b.value("i", shape=broadcast(b, x), domain=(1, 7))])


@operator
def Mod(b: Builder) -> None:
    kind = b.rng.choice("fi")
    x = b.value(kind, domain=(-40, 40), exact=True)
    y = b.value(kind, shape=broadcast(b, x), domain=(1, 7), exact=True)
    b.add("Mod", [x, y], fmod=1 if kind == "f" else b.rng.randint(0, 1))


@operator
def BitShift(b: Builder) -> None:
    x = b.feed(b.array(b.shape(1, 3), b.rng.choice(["uint8", "uint32", "uint64"]), (0, 100)))
    y = b.feed(b.array(broadcast(b, x), b.of(x).dtype, (0, 6)))
    b.add("BitShift", [x, y], direction=b.rng.choice(["LEFT", "RIGHT"]))


def several(op: str, moves: bool) -> None:
    def draw(b: Builder) -> None:
        x = b.value()
        b.add(op, [x, *(b.value(shape=broadcast(b, x)) for _ in range(b.rng.randint(0, 2)))], exact=moves)
    OPERATORS[op] = draw


for name in ("Max", "Min"):
    several(name, True)
for name in ("Mean", "Sum"):
    several(name, False)


@operator
def Where(b: Builder) -> None:
    kind = b.rng.choice("fi")
    x = b.value(kind)
    b.add("Where", [b.value("b", shape=broadcast(b, x)), x, b.value(kind, shape=broadcast(b, x))], exact=True)


@operator
def Clip(b: Builder) -> None:
    x = b.value("fi")
    limits = b.rng.randint(0, 1), b.rng.randint(1, 2)
    low, high = (b.constant(n, b.of(x).dtype) if b.flip() else "" for n in limits)
    b.add("Clip", [x, low, high], exact=True)


# --- across items -------------------------------------------------------------------------------------------


def axes_of(b: Builder, x: str, low: int = 1) -> list[int]:
    rank = b.of(x).ndim
    return [a - rank if b.flip() else a for a in b.rng.sample(range(rank), b.rng.randint(low, rank))]


def reduction(op: str, domain: tuple[float, float] = (-3, 3), moves: bool = False) -> None:
    def draw(b: Builder) -> None:
        x = b.value("fi" if moves else "f", domain=domain)
        given = [x, b.constant(axes_of(b, x, 0))] if b.flip() else [x]
        b.add(op, given, exact=moves, **b.some(keepdims=b.rng.randint(0, 1),
                                               noop_with_empty_axes=b.rng.randint(0, 1) if moves else None))
    OPERATORS[op] = draw


for name in ("ReduceL1", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceLogSumExp"):
    reduction(name)
for name in ("ReduceMax", "ReduceMin"):
    reduction(name, moves=True)
reduction("ReduceL2", (0.1, 3))
reduction("ReduceLogSum", (0.1, 3))
reduction("ReduceProd", (0.8, 1.2))


def best(op: str) -> None:
    def draw(b: Builder) -> None:
        x = b.value("fi", exact=True)
        b.add(op, [x], **b.some(axis=b.axis(x), keepdims=b.rng.randint(0, 1),
                                select_last_index=b.rng.randint(0, 1)))
    OPERATORS[op] = draw


best("ArgMax")
best("ArgMin")


@operator
def TopK(b: Builder) -> None:
    x = b.value(exact=True)
    axis = b.axis(x)
    k = b.rng.randint(1, b.of(x).shape[axis])
    b.add("TopK", [x, b.constant([k])], 2, exact=True, axis=axis, largest=b.rng.randint(0, 1))


@operator
def CumSum(b: Builder) -> None:
    x = b.value("fi")
    b.add("CumSum", [x, b.constant(b.axis(x))],
          **b.some(exclusive=b.rng.randint(0, 1), reverse=b.rng.randint(0, 1)))


def along_axis(op: str, exact: bool = False, **attributes: Callable[[Builder], Any]) -> None:
    def draw(b: Builder) -> None:
        x = b.value(exact=exact, where=lambda a: a.size > 1)
        b.add(op, [x], **b.some(axis=b.axis(x), **{k: v(b) for k, v in attributes.items()}))
    OPERATORS[op] = draw


along_axis("Softmax")
along_axis("LogSoftmax")
along_axis("Hardmax", exact=True)
along_axis("LpNormalization", p=lambda b: b.rng.randint(1, 2))


# --- moving items -------------------------------------------------------------------------------------------


@operator
def Reshape(b: Builder) -> None:
    x = b.value("fib")
    shape = list(b.of(x).shape)
    b.rng.shuffle(shape)
    while len(shape) > 1 and b.flip():
        shape = [shape[0] * shape[1], *shape[2:]]
    if b.flip():
        shape[b.rng.randrange(len(shape))] = -1
    b.add("Reshape", [x, b.constant(shape)], exact=True)


@operator
def Transpose(b: Builder) -> None:
    x = b.value("fib")
    b.add("Transpose", [x], exact=True, **b.some(perm=b.rng.sample(range(b.of(x).ndim), b.of(x).ndim)))


@operator
def Flatten(b: Builder) -> None:
    x = b.value("f")
    b.add("Flatten", [x], exact=True, **b.some(axis=b.rng.randint(-b.of(x).ndim, b.of(x).ndim)))


@operator
def Unsqueeze(b: Builder) -> None:
    x = b.value("fi", (1, 3))
    b.add("Unsqueeze", [x, b.constant([b.rng.randint(-b.of(x).ndim - 1, b.of(x).ndim)])], exact=True)


@operator
def Squeeze(b: Builder) -> None:
    x, = b.add("Unsqueeze", [b.value("fi", (1, 3)), b.constant([0])], exact=True)
    b.add("Squeeze", [x, b.constant([0])] if b.flip() else [x], exact=True)


@operator
def Expand(b: Builder) -> None:
    x = b.value("fi", (1, 3))
    shape = [n if n > 1 or b.flip() else b.rng.randint(1, 3) for n in b.of(x).shape]
    b.add("Expand", [x, b.constant([2, *shape] if b.flip() else shape)], exact=True)


@operator
def Tile(b: Builder) -> None:
    x = b.value("fi")
    b.add("Tile", [x, b.constant([b.rng.randint(1, 2) for _ in b.of(x).shape])], exact=True)


@operator
def Slice(b: Builder) -> None:
    x = b.value("fib")
    axes = axes_of(b, x)
    starts, ends, steps = [], [], []
    for axis in axes:
        n = b.of(x).shape[axis]
        first, last = sorted((b.rng.randint(0, n - 1), b.rng.randint(0, n - 1)))
        step = b.rng.choice([1, 1, 2, 3])
        if b.flip():
            starts, ends, steps = [*starts, first], [*ends, last + 1 if b.flip() else 1000], [*steps, step]
        else:
            starts, ends = [*starts, last - n], [*ends, first - 1 - n if b.flip() or first else -1000]
            steps = [*steps, -step]
    b.add("Slice", [x, *map(b.constant, (starts, ends, axes, steps))], exact=True)


@operator
def Split(b: Builder) -> None:
    x = b.value("fi", rank=(1, 4), where=lambda a: max(a.shape, default=1) > 1)
    axis = int(np.argmax(b.of(x).shape))
    n = b.of(x).shape[axis]
    first = b.rng.randint(1, n - 1)
    if b.flip():
        b.add("Split", [x, b.constant([first, n - first])], 2, exact=True, axis=axis)
    else:
        b.add("Split", [x], 2, exact=True, axis=axis, num_outputs=2)


@operator
def Concat(b: Builder) -> None:
    x = b.value("fi")
    axis = b.axis(x)
    others = []
    for _ in range(b.rng.randint(0, 2)):
        shape = list(b.of(x).shape)
        shape[axis] = b.rng.choice([shape[axis], b.rng.choice(b.sizes)])
        others.append(b.value("i" if b.of(x).dtype.kind in "iu" else "f", shape=shape))
    if any(b.of(o).dtype != b.of(x).dtype for o in others):
        raise NotComputed("two types")
    b.add("Concat", [x, *others], exact=True, axis=axis)


@operator
def Pad(b: Builder) -> None:
    mode = b.rng.choice(["constant", "reflect", "edge", "wrap"])
    x = b.value("f")
    low = -1 if mode == "constant" else 0
    most = [2 if mode == "constant" else max(0, min(2, n - 1)) for n in b.of(x).shape]
    pads = [b.rng.randint(low if n > 2 else 0, m)
            for _ in range(2) for n, m in zip(b.of(x).shape, most, strict=True)]
    fill = [b.constant(0.5, b.of(x).dtype)] if mode == "constant" and b.flip() else []
    b.add("Pad", [x, b.constant(pads), *fill], exact=True, mode=mode)


@operator
def DepthToSpace(b: Builder) -> None:
    n, c, h, w = (b.rng.choice(b.sizes) for _ in range(4))
    x = b.value(shape=(n, 4 * (c % 4 + 1), h, w))
    b.add("DepthToSpace", [x], exact=True, blocksize=2, **b.some(mode=b.rng.choice(["DCR", "CRD"])))


@operator
def SpaceToDepth(b: Builder) -> None:
    n, c, h, w = (b.rng.choice(b.sizes) for _ in range(4))
    b.add("SpaceToDepth", [b.value(shape=(n, c, h * 2, w * 2))], exact=True, blocksize=2)


def indices(b: Builder, n: int, shape: Sequence[int]) -> str:
    return b.feed(b.array(tuple(shape), b.rng.choice(["int64", "int32"]), (-n, n - 1)))


@operator
def Gather(b: Builder) -> None:
    x = b.value("fi", (1, 3))
    axis = b.axis(x)
    b.add("Gather", [x, indices(b, b.of(x).shape[axis], b.shape(0, 2))], exact=True, axis=axis)


@operator
def GatherElements(b: Builder) -> None:
    x = b.value("fi", (1, 3))
    axis = b.axis(x)
    b.add("GatherElements", [x, indices(b, b.of(x).shape[axis], b.of(x).shape)], exact=True, axis=axis)


@operator
def GatherND(b: Builder) -> None:
    x = b.value("f", (2, 3))
    shape = b.of(x).shape
    at = np.stack([b.array((3,), "int64", (0, n - 1)) for n in shape[:b.rng.randint(1, len(shape))]], -1)
    b.add("GatherND", [x, b.feed(at)], exact=True)


@operator
def ScatterElements(b: Builder) -> None:
    x = b.value("f", (1, 3))
    axis = b.axis(x)
    shape, reduction = b.of(x).shape, b.rng.choice(["none", "add", "mul", "max", "min"])
    at = np.argsort(b.array(shape, "float64"), axis).astype(np.int64)  # no place twice
    b.add("ScatterElements", [x, b.feed(at), b.value(shape=shape)], axis=axis, reduction=reduction)


@operator
def ScatterND(b: Builder) -> None:
    x = b.value("f", (1, 3))
    n, *rest = b.of(x).shape
    at = np.array(b.rng.sample(range(n), b.rng.randint(1, n)), np.int64)[:, None]
    b.add("ScatterND", [x, b.feed(at), b.value(shape=(len(at), *rest))],
          reduction=b.rng.choice(["none", "add", "mul", "max", "min"]))


@operator
def Trilu(b: Builder) -> None:
    x = b.value("fi", (2, 4))
    given = [x, b.constant(b.rng.randint(-2, 2))] if b.flip() else [x]
    b.add("Trilu", given, exact=True, **b.some(upper=b.rng.randint(0, 1)))


@operator
def OneHot(b: Builder) -> None:
    x = b.feed(b.array(b.shape(1, 3), "int64", (-5, 4)))
    b.add("OneHot", [x, b.constant(5), b.constant([0.25, 1.5], np.float32)], exact=True,
          **b.some(axis=b.rng.randint(-b.of(x).ndim - 1, b.of(x).ndim)))


@operator
def EyeLike(b: Builder) -> None:
    b.add("EyeLike", [b.value("f", (2, 2))], exact=True, **b.some(k=b.rng.randint(-2, 2)))


@operator
def Compress(b: Builder) -> None:
    x = b.value("f", (1, 3))
    axis = b.axis(x)
    keep = b.array((b.of(x).shape[axis],), "bool")
    keep[0] = True
    b.add("Compress", [x, b.feed(keep)], exact=True, axis=axis)


@operator
def NonZero(b: Builder) -> None:
    b.add("NonZero", [b.value("i", exact=True)])


@operator
def Unique(b: Builder) -> None:
    x = b.value("f", (1, 1), exact=True)
    b.add("Unique", [x], 4, exact=True, sorted=1)


@operator
def ReverseSequence(b: Builder) -> None:
    x = b.value("f", (2, 4))
    batch, time = b.rng.sample([0, 1], 2)
    lengths = b.array((b.of(x).shape[batch],), "int64", (1, b.of(x).shape[time]))
    b.add("ReverseSequence", [x, b.feed(lengths)], exact=True, batch_axis=batch, time_axis=time)


@operator
def Shape(b: Builder) -> None:
    x = b.value("f", (2, 4))
    b.add("Shape", [x], **b.some(start=b.rng.randint(-2, 0), end=b.rng.randint(1, 5)))


@operator
def Size(b: Builder) -> None:
    b.add("Size", [b.value("f")])


@operator
def Range(b: Builder) -> None:
    kind = b.rng.choice(["int64", "float32"])
    start, limit, step = b.rng.randint(-3, 3), b.rng.randint(4, 9), b.rng.choice([1, 2])
    b.add("Range", [b.constant(n, kind) for n in (start, limit, step)])


@operator
def CenterCropPad(b: Builder) -> None:
    x = b.value("f")
    b.add("CenterCropPad", [x, b.constant([b.rng.choice(b.sizes) for _ in b.of(x).shape])], exact=True)
