"""Pieces of networks at random sizes: what `test_random_networks.py` computes twice.

A piece is a function of tensors that is written once, for both libraries: methods that have the same names
are called as they are, and `Library` has the rest. Sizes lie at and around those at which plans change (a
warp, a block, a tile) as often as between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import numpy as np

from tinygrad import Tensor
from tinygrad.dtype import DType, to_dtype

from .table import torch

Shape = tuple[int, ...]
F = torch.nn.functional
EDGES = (1, 2, 4, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257)


class Library:
    """What PyTorch's functions and our methods call differently; `tensor` makes one of an array."""

    def __init__(self, tensor: Callable[[Any], Any], ours: bool) -> None:
        self.tensor, self.ours = tensor, ours

    def conv(self, x: Any, w: Any, bias: Any, **options: Any) -> Any:
        if self.ours:
            return x.conv2d(w, bias, **options)
        return getattr(F, f"conv{x.ndim - 2}d")(x, w, bias, **options)

    def conv_transpose(self, x: Any, w: Any, bias: Any, **options: Any) -> Any:
        if self.ours:
            return x.conv_transpose2d(w, bias, **options)
        return getattr(F, f"conv_transpose{x.ndim - 2}d")(x, w, bias, **options)

    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        function = Tensor.scaled_dot_product_attention if self.ours else F.scaled_dot_product_attention
        return function(q, k, v, **options)

    def layer_norm(self, x: Any) -> Any:
        return x.layernorm() if self.ours else F.layer_norm(x, x.shape[-1:])

    def cross_entropy(self, x: Any, targets: Any, **options: Any) -> Any:
        return x.cross_entropy(targets, **options) if self.ours else F.cross_entropy(x, targets, **options)

    def pool(self, kind: str, x: Any, size: int, stride: int, padding: int) -> Any:
        if self.ours:
            return getattr(x, f"{kind}_pool2d")(size, stride, padding=padding)
        return getattr(F, f"{kind}_pool2d")(x, size, stride, padding)

    def activation(self, name: str, x: Any) -> Any:
        if self.ours:
            return getattr(x, name)()
        return F.gelu(x, approximate="tanh") if name == "gelu" else getattr(F, name)(x)


@dataclass(frozen=True)
class Piece:
    """One function of tensors of these shapes, in words too."""

    words: str
    shapes: list[Shape]
    compute: Callable[..., Any]
    chooses: bool = False
    """whether it takes the largest of some items: rounded numbers are equal where exact ones are not"""


class Sizes:
    """Random sizes up to `largest`."""

    def __init__(self, random: Random, largest: int) -> None:
        self.random, self.largest = random, largest

    def size(self, most: int | None = None) -> int:
        most = min(most or self.largest, self.largest)
        edges = [n for n in EDGES if n <= most]
        return self.random.choice(edges) if self.random.random() < 0.5 else self.random.randint(1, most)

    def row(self) -> int:
        """The size of a row, some of which are long."""
        return self.size() if self.random.random() < 0.5 else self.random.randint(1, 20 * self.largest)

    def shape(self, axes: int, items: int) -> Shape:
        """Sizes of so many axes, and not many more items."""
        shape: list[int] = []
        for _ in range(axes):
            shape.append(self.size(max(1, items // int(np.prod(shape, dtype=np.int64)))))
        self.random.shuffle(shape)
        return tuple(shape)


def product(sizes: Sizes) -> Piece:
    random = sizes.random
    batch = random.choice([(), (), (random.randint(1, 4),), (2, 3)])
    m, k, n = sizes.size(), sizes.size(), sizes.size()
    left, right = random.random() < 0.4, random.random() < 0.4
    after = random.choice(["nothing", "relu", "square", "softmax", "the sum of its row"])

    def compute(lib: Library, x: Any, y: Any) -> Any:
        z = (x.transpose(-1, -2) if left else x) @ (y.transpose(-1, -2) if right else y)
        return {"nothing": lambda: z, "relu": z.relu, "square": lambda: z * z,
                "softmax": lambda: z.softmax(-1),
                "the sum of its row": lambda: z + z.sum(-1, keepdim=True)}[after]()

    shapes = [(*batch, k, m) if left else (*batch, m, k), (n, k) if right else (k, n)]
    if random.random() < 0.5:
        shapes[1] = (*batch, *shapes[1])
    return Piece(f"{shapes[0]} @ {shapes[1]}, transposed: {left}, {right}; then {after}", shapes, compute)


def convolution(sizes: Sizes) -> Piece:
    random = sizes.random
    axes, groups = random.choice([1, 2, 2, 2, 3]), random.choice([1, 1, 1, 2, 3])
    inputs = groups * random.choice([1, 2, 3, 5, 8, 16, 17])
    outputs = groups * random.choice([1, 2, 3, 8, 16, 20])
    window = [random.choice([1, 2, 3, 3, 4, 5, 7] if axes < 3 else [1, 2, 3]) for _ in range(axes)]
    stride, dilation, padding = random.choice([1, 1, 2, 3]), random.choice([1, 1, 1, 2]), random.randint(0, 3)
    reach = [(k - 1) * dilation + 1 for k in window]
    batch, bias = random.choice([1, 2, 3, 5]), random.random() < 0.5
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups, "dilation": dilation}
    more = {1: 90, 2: 20, 3: 6}[axes]
    if random.random() < 0.25:
        name = "transposed convolution"
        options["padding"] = min(padding, *((r - 1) // 2 for r in reach))
        options["output_padding"] = random.randrange(stride)
        shapes = [(batch, inputs, *(random.randint(1, 1 + more // 2) for _ in window)),
                  (inputs, outputs // groups, *window)]
    else:
        name = "convolution"
        shapes = [(batch, inputs, *(max(1, r - 2 * padding) + random.randint(0, more) for r in reach)),
                  (outputs, inputs // groups, *window)]

    def compute(lib: Library, x: Any, w: Any, *rest: Any) -> Any:
        function = lib.conv if name == "convolution" else lib.conv_transpose
        return function(x, w, rest[0] if rest else None, **options)

    shapes += [(outputs,)] * bias
    return Piece(f"{name} of {shapes}, {options}", shapes, compute)


def attention(sizes: Sizes) -> Piece:
    random = sizes.random
    batch = (random.randint(1, 3), random.randint(1, 3))
    queries, keys, width = sizes.size(), sizes.size(), random.choice([1, 4, 8, 16, 32, 64, sizes.size(80)])
    kind = random.choice(["full", "causal", "masked"])
    keys = queries if kind == "causal" else keys
    mask = np.random.default_rng(random.randrange(1 << 30)).random((queries, keys)) < 0.7
    mask[:, 0] = True

    def compute(lib: Library, q: Any, k: Any, v: Any) -> Any:
        options = {"full": {}, "causal": {"is_causal": True}, "masked": {"attn_mask": lib.tensor(mask)}}[kind]
        return lib.attention(q, k, v, **options)

    return Piece(f"{kind} attention of {batch}, {queries} queries, {keys} keys, width {width}",
                 [(*batch, queries, width), (*batch, keys, width), (*batch, keys, width)], compute)


def rows(sizes: Sizes) -> Piece:
    random = sizes.random
    shape = (*sizes.shape(random.randint(1, 2), 256), sizes.row())
    functions: dict[str, Callable[[Library, Any], Any]] = {
        "layer norm": lambda lib, x: lib.layer_norm(x), "softmax": lambda lib, x: x.softmax(-1),
        "log softmax": lambda lib, x: x.log_softmax(-1), "softmax of columns": lambda lib, x: x.softmax(0),
        "logsumexp": lambda lib, x: x.logsumexp(-1, keepdim=True) * x,
        "root mean square": lambda lib, x: ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt() * x}
    name = random.choice(list(functions))
    return Piece(f"{name} of {shape}, scaled", [shape, shape[-1:]],
                 lambda lib, x, w: functions[name](lib, x) * w)


def reduction(sizes: Sizes) -> Piece:
    random = sizes.random
    shape = sizes.shape(random.randint(1, 4), 1000 * sizes.largest)
    axes = tuple(sorted(random.sample(range(len(shape)), random.randint(1, len(shape)))))
    functions: dict[str, Callable[[Library, Any], Any]] = {
        "sum of squares": lambda lib, x: (x * x).sum(axes),
        "largest": lambda lib, x: x.max(axes) if lib.ours else x.amax(axes),
        "sum of exponentials": lambda lib, x: (x - x.mean(axes, keepdim=True)).exp().sum(axes),
        "mean and sum": lambda lib, x: x.relu().mean(axes) * x.sum(),
        "running sum": lambda lib, x: x.cumsum(axes[0])}
    name = random.choice(list(functions))
    return Piece(f"{name} of {shape} along {axes}", [shape], lambda lib, x: functions[name](lib, x),
                 chooses=name == "largest")


def loss(sizes: Sizes) -> Piece:
    random = sizes.random
    count, classes, width = sizes.size(), sizes.row(), sizes.size(40)
    targets = np.random.default_rng(random.randrange(1 << 30)).integers(0, classes, count)
    options = {"reduction": random.choice(["mean", "sum", "none"]),
               "label_smoothing": random.choice([0.0, 0.0, 0.1])}

    def compute(lib: Library, x: Any, w: Any) -> Any:
        return lib.cross_entropy(x @ w, lib.tensor(targets), **options)

    return Piece(f"loss of {count} of {classes} classes, width {width}, {options}",
                 [(count, width), (width, classes)], compute)


def gathering(sizes: Sizes) -> Piece:
    random = sizes.random
    words, width, count = random.randint(1, 300), sizes.size(40), sizes.size()
    places = np.random.default_rng(random.randrange(1 << 30)).integers(0, words, count)
    after = random.choice(["nothing", "a product", "a sum", "softmax and a product"])

    def compute(lib: Library, x: Any, w: Any) -> Any:
        y = x[lib.tensor(places)]
        y = {"nothing": lambda: y * w[0, 0], "a product": lambda: y @ w, "a sum": lambda: y.sum(0) * w[0, 0],
             "softmax and a product": lambda: y.softmax(-1) @ w}[after]()
        return y * y

    return Piece(f"{count} of {words} rows of {width}; then {after}",
                 [(words, width), (width, sizes.size(33))], compute)


def pooling(sizes: Sizes) -> Piece:
    random = sizes.random
    shape = (random.randint(1, 4), random.randint(1, 9), random.randint(4, 30), random.randint(4, 30))
    size, stride, padding = random.choice([2, 3, 4]), random.choice([1, 2, 3]), random.choice([0, 1])
    kind, normalised = random.choice(["max", "avg"]), random.random() < 0.5

    def compute(lib: Library, x: Any, scale: Any) -> Any:
        if normalised:
            off = x - x.mean((0, 2, 3), keepdim=True)
            x = (off / ((off * off).mean((0, 2, 3), keepdim=True) + 1e-3).sqrt()).relu()
        return lib.pool(kind, x * scale.reshape(1, -1, 1, 1), size, stride, padding)

    return Piece(f"{kind} pooling of {shape}, window {size}, stride {stride}, padding {padding}, "
                 f"normalised: {normalised}", [shape, shape[1:2]], compute, chooses=True)


def perceptron(sizes: Sizes) -> Piece:
    random = sizes.random
    count, width, hidden, classes = (sizes.size() for _ in range(4))
    name, shifted = random.choice(["relu", "gelu", "tanh", "sigmoid", "silu"]), random.random() < 0.3

    def compute(lib: Library, x: Any, w0: Any, bias: Any, w1: Any) -> Any:
        y = lib.activation(name, x @ w0 + bias) @ w1
        return (y + x.mean() if shifted else y).log_softmax(-1)

    return Piece(f"perceptron of {count}, {width}, {hidden}, {classes}, {name}, shifted: {shifted}",
                 [(count, width), (width, hidden), (hidden,), (hidden, classes)], compute)


def block(sizes: Sizes) -> Piece:
    random = sizes.random
    length, width, heads = sizes.size(64), random.choice([4, 8, 16, 32, 48]), random.choice([1, 2, 4])

    def compute(lib: Library, x: Any, w: Any, out: Any) -> Any:
        q, k, v = (part.reshape(2, length, heads, width // heads).transpose(1, 2)
                   for part in (lib.layer_norm(x) @ w * width**-0.5).chunk(3, -1))
        return x + lib.attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, length, width) @ out

    return Piece(f"block of {length} x {width}, {heads} heads",
                 [(2, length, width), (width, 3 * width), (width, width)], compute)


PIECES = (product, product, convolution, convolution, attention, rows, reduction, loss, gathering, pooling,
          perceptron, block)


@dataclass(frozen=True)
class Trial:
    """A piece with its operands in one dtype."""

    TOLERANCES: ClassVar[dict[str, float]] = {"float32": 3e-4, "float16": 2e-2, "bfloat16": 1.2e-1}
    """Of the largest number: of float16 and bfloat16 some products and sums are rounded between kernels."""

    piece: Piece
    dtype: str
    arrays: list[Any]

    @classmethod
    def of(cls, seed: int, largest: int, missing: frozenset[DType] = frozenset()) -> Trial:
        """The trial of this number, with sizes up to `largest`, twenty times that for a row, in none of the
        dtypes that are `missing`."""
        random = Random(seed)
        piece = random.choice(PIECES)(Sizes(random, largest))
        dtype = random.choice(["float32", "float32", "float16", "bfloat16"])
        if piece.chooses or to_dtype(dtype) in missing:
            dtype = "float32"
        numbers = np.random.default_rng(seed)
        drawn = (torch.tensor(numbers.standard_normal(shape)) for shape in piece.shapes)
        return cls(piece, dtype, [t.to(getattr(torch, dtype)).float().numpy() for t in drawn])

    def ours(self, device: str | None) -> list[Any]:
        """The result on a device, and the gradient at each operand of its sum weighted by fixed numbers."""
        library = Library(lambda array: Tensor(array, device=device), ours=True)
        operands = [Tensor(a, device, self.dtype, requires_grad=True).realize() for a in self.arrays]
        result = self.piece.compute(library, *operands)
        weighted = result.float() * library.tensor(self.weight(result.shape))
        results = [t.float() for t in (result, *weighted.sum().gradient(*operands))]
        results[0].realize(*results[1:])
        return [t.numpy() for t in results]

    def expected(self) -> list[Any]:
        """The same by PyTorch, in float64."""
        library = Library(torch.tensor, ours=False)
        operands = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in self.arrays]
        result = self.piece.compute(library, *operands)
        (result * torch.tensor(self.weight(tuple(result.shape)))).sum().backward()
        return [t.detach().numpy() for t in (result, *(x.grad for x in operands))]

    def weight(self, shape: Shape) -> Any:
        return np.random.default_rng(7).standard_normal(shape).astype(np.float32)
