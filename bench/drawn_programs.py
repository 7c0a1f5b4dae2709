"""Programs drawn from a seed, as a compiler meets them: chains of operations on values that all have three
axes, each in full or of size 1, with their gradients now and then. Their inputs have no numbers.
"""
from __future__ import annotations

from collections.abc import Callable
from random import Random

from tinygrad import Tensor, dtypes
from tinygrad.dtype import DType

SIZES = (1, 2, 3, 4, 7, 8, 12, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 128, 200, 256, 500, 512, 1000, 1024,
         3000)
DTYPES = (dtypes.float32,) * 6 + (dtypes.bfloat16, dtypes.bfloat16, dtypes.float16, dtypes.int32, dtypes.int8,
                                  dtypes.uint8, dtypes.int64, dtypes.float64)
LARGEST = 1 << 24
"""Items of a value."""


class Program:
    """A program while it is drawn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        while True:
            self.shape = [self.random.choice(SIZES) for _ in range(3)]
            if self.shape[0] * self.shape[1] * self.shape[2] <= LARGEST:
                break
        self.dtype = self.random.choice(DTYPES)
        self.inputs: list[Tensor] = []
        self.values = [self.input(self.shape)]

    def input(self, shape: list[int], dtype: DType | None = None) -> Tensor:
        """Memory without content, which gradients of floats go to."""
        kind = dtype or self.dtype
        made = Tensor.empty(*shape, dtype=kind, requires_grad=kind.is_float)
        self.inputs.append(made)
        return made

    def other(self) -> Tensor:
        """Another value: one that there is, or an input that is broadcast along some axes."""
        if self.random.random() < 0.5:
            return self.random.choice(self.values)
        return self.input([self.random.choice((n, n, 1)) for n in self.shape])

    def axis(self) -> int:
        return self.random.randrange(3)

    def step(self) -> None:
        """Add a value made of the last one, cast back and broadcast where the operation made it narrower."""
        result = self.random.choice(OPERATIONS)(self, self.values[-1])
        self.values.append(result.cast(self.dtype) if result.dtype != self.dtype else result)

    def full(self, x: Tensor) -> Tensor:
        return x.expand(*self.shape)

    # --- operations

    def elementwise(self, x: Tensor) -> Tensor:
        functions: tuple[Callable[[Tensor], Tensor], ...] = (
            Tensor.relu, Tensor.abs, Tensor.square, lambda x: x * 3 - 1, lambda x: (x < 2).where(x, 2),
            lambda x: x.cast(dtypes.int32) // 3, lambda x: x.cast(dtypes.int32) % 5,
            lambda x: x.float().exp(), lambda x: x.float().sin(), lambda x: (x.float().abs() + 1).log(),
            lambda x: x.float().gelu(), lambda x: x.float().sigmoid(), lambda x: 1 / (x.float().abs() + 1))
        return self.random.choice(functions)(x)

    def binary(self, x: Tensor) -> Tensor:
        y = self.other()
        functions: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
            lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, Tensor.maximum,
            lambda x, y: (x < y).where(x, y), lambda x, y: (x == y).where(x, 1))
        return self.random.choice(functions)(x, y)

    def moved(self, x: Tensor) -> Tensor:
        axis = self.axis()
        size = int(x.shape[axis])
        cut = self.random.randint(0, size // 2)
        if size == 1:
            return x
        return self.random.choice((
            lambda: x.flip(axis), lambda: x.roll(1, axis),
            lambda: x.shrink(tuple((cut, size) if i == axis else None for i in range(3))).pad(
                tuple((cut, 0) if i == axis else (0, 0) for i in range(3))),
            lambda: x[tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(3))]
            .repeat_interleave(2, axis).shrink(tuple((0, size) if i == axis else None for i in range(3))),
            lambda: x.split([size - cut, cut], axis)[1 if cut else 0].cat(x, dim=axis)
            .shrink(tuple((0, size) if i == axis else None for i in range(3))),
            lambda: self.full(x).reshape(-1).roll(cut).reshape(*self.shape)))()

    def turned(self, x: Tensor) -> Tensor:
        """Through the axes in another order, written down in that."""
        order = self.random.sample(range(3), 3)
        return self.full(x).permute(*order).contiguous().permute(*(order.index(i) for i in range(3)))

    def reduced(self, x: Tensor) -> Tensor:
        axis = self.axis()
        functions: tuple[Callable[..., Tensor], ...] = (
            lambda x: x.sum(axis, keepdim=True), lambda x: x.max(axis, keepdim=True),
            lambda x: x.float().mean(axis, keepdim=True), lambda x: x.sum((0, 1), keepdim=True),
            lambda x: x.sum((1, 2), keepdim=True), lambda x: x.argmax(axis, keepdim=True),
            lambda x: x.float().std(axis, keepdim=True), lambda x: x.cumsum(axis),
            lambda x: x.sum().reshape(1, 1, 1))
        return self.random.choice(functions)(x)

    def normalised(self, x: Tensor) -> Tensor:
        axis = self.random.choice((0, 1, 2, 2, 2))
        functions: tuple[Callable[[Tensor], Tensor], ...] = (
            lambda x: x.softmax(axis), lambda x: x.log_softmax(axis), lambda x: x.layernorm(axis),
            lambda x: x - x.max(axis, keepdim=True),
            lambda x: x / (x.square().sum(axis, keepdim=True) + 1).sqrt())
        return self.random.choice(functions)(x.float())

    def product(self, x: Tensor) -> Tensor:
        """With a matrix, or of each matrix with another; with a bias or an activation behind it."""
        rows, columns = self.shape[1:]
        x = self.full(x)
        result = self.random.choice((
            lambda: x @ self.input([columns, columns]),
            lambda: x @ self.input([columns, columns]).transpose(0, 1),
            lambda: self.input([rows, rows]) @ x,
            lambda: x @ self.full(self.other()).transpose(1, 2) @ x,
            lambda: x.transpose(0, 1) @ self.input([columns, columns])))()
        if list(result.shape) != self.shape:
            result = result.transpose(0, 1)
        behind = (lambda: result, result.relu, lambda: result + self.input([1, 1, columns]))
        return self.random.choice(behind)()

    def convolved(self, x: Tensor) -> Tensor:
        """The first axis as channels of a picture."""
        channels = self.shape[0]
        side = self.random.choice((1, 3, 3))
        depthwise = self.random.random() < 0.3
        weights = self.input([channels, 1 if depthwise else channels, side, side])
        return self.full(x).unsqueeze(0).conv2d(weights, groups=channels if depthwise else 1,
                                                padding=side // 2).squeeze(0)

    def attended(self, x: Tensor) -> Tensor:
        keys, values = self.full(self.other()), self.full(self.other())
        return self.full(x).unsqueeze(0).scaled_dot_product_attention(
            keys.unsqueeze(0), values.unsqueeze(0), is_causal=self.random.random() < 0.5).squeeze(0)

    def looked_up(self, x: Tensor) -> Tensor:
        """Rows by their numbers, and rows added where numbers say."""
        rows = self.shape[1]
        places = self.input([rows], dtypes.int32)
        flat = self.full(x)
        return self.random.choice((
            lambda: flat[:, places],
            lambda: flat.zeros_like().scatter_reduce(
                1, places.reshape(1, rows, 1).expand(*self.shape), flat, "sum"),
            lambda: places.one_hot(rows).cast(self.dtype) @ flat))()


OPERATIONS = (Program.elementwise, Program.elementwise, Program.binary, Program.binary, Program.moved,
              Program.turned, Program.reduced, Program.reduced, Program.normalised, Program.product,
              Program.product, Program.convolved, Program.attended, Program.looked_up)


def drawn_results(seed: int) -> list[Tensor]:
    """The results of a program: the last value, sometimes one before it, or gradients of its inputs."""
    program = Program(seed)
    for _ in range(program.random.randint(2, 6)):
        program.step()
    results = [program.values[-1]]
    if program.random.random() < 0.3:
        results.append(program.random.choice(program.values[1:]))
    if program.dtype.is_float and program.random.random() < 0.35:
        floats = [x for x in program.inputs if x.dtype.is_float]
        results += program.values[-1].float().square().sum().gradient(*floats)
    return results
