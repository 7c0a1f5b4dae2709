"""Random functions of networks over random layouts, as a rank runs them: `rank_functions.py FIRST LAST`.

Norms, softmaxes, products, sorts, windows and writes along axes that may be cut, with gradients, once as they
are and, for every other number, as a step of training under TinyJit. Each is computed by the ranks together,
and by each alone on one device. Prints how many ran.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad import Tensor, TinyJit, distributed, dtypes
from tinygrad.nn import optim
from tinygrad.nn.parallel import Mesh

Place = Callable[[Tensor], Tensor]
Change = Callable[[Tensor, np.random.Generator, Place], Tensor]
DTYPES = (dtypes.float64, dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16)
TOLERANCES = {dtypes.float64: 1e-9, dtypes.float32: 2e-4, dtypes.float16: 2e-2, dtypes.bfloat16: 2e-1}


def any_axis(x: Tensor, rng: np.random.Generator) -> int:
    return int(rng.integers(x.ndim))


def drawn(x: Tensor, rng: np.random.Generator, place: Place, *shape: int) -> Tensor:
    """Numbers like those of `x`, of a shape, laid out by `place`."""
    return place(Tensor(rng.normal(size=shape)).cast(x.dtype))


def standardised(x: Tensor, axis: int) -> Tensor:
    return (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 1)


def reshaped(x: Tensor, rng: np.random.Generator, place: Place) -> Tensor:
    """Items in the same order, along other axes."""
    first, *rest = x.shape
    return x.reshape(*rest, first) if rng.random() < 0.5 else x.reshape(first * rest[0], *rest[1:], 1)


def product(x: Tensor, rng: np.random.Generator, place: Place) -> Tensor:
    return x @ drawn(x, rng, place, x.shape[-1], 6) / x.shape[-1]


def convolution(x: Tensor, rng: np.random.Generator, place: Place) -> Tensor:
    while x.ndim < 4:
        x = x.unsqueeze(0)
    return x.conv2d(drawn(x, rng, place, 6, x.shape[1], 3, 1) / 8, padding=(1, 0))


def attention(x: Tensor, rng: np.random.Generator, place: Place) -> Tensor:
    return x.scaled_dot_product_attention(x.flip(-2), x * 2, is_causal=True)


def largest(x: Tensor, axis: int, place: Place) -> Tensor:
    """Each item less the largest along an axis, which is found by its place."""
    return x - x.gather(axis, place(x.detach().argmax(axis, keepdim=True)))


def written(x: Tensor, rng: np.random.Generator, place: Place) -> Tensor:
    """A copy of which some items along an axis are others."""
    axis, target = any_axis(x, rng), (x * 1).detach().contiguous()
    start = int(rng.integers(x.shape[axis]))
    index = (slice(None),) * axis + (slice(start, int(rng.integers(start, x.shape[axis])) + 1),)
    target[index] = drawn(x, rng, place, *target[index].shape)
    return x + target


CHANGES: dict[str, Change] = {
    "softmax": lambda x, rng, place: x.softmax(any_axis(x, rng)),
    "log softmax": lambda x, rng, place: x.log_softmax(any_axis(x, rng)),
    "standardised": lambda x, rng, place: standardised(x, any_axis(x, rng)),
    "layer norm": lambda x, rng, place: x.layernorm(any_axis(x, rng) - x.ndim),
    "over the largest": lambda x, rng, place: x / (1 + x.abs().max(any_axis(x, rng), keepdim=True)),
    "norm": lambda x, rng, place: x / (1 + x.square().sum(any_axis(x, rng), keepdim=True).sqrt()),
    "running sum": lambda x, rng, place: x.cumsum(any_axis(x, rng)) / 8,
    "sorted": lambda x, rng, place: x.sort(any_axis(x, rng))[0],
    "rolled": lambda x, rng, place: x - x.roll(1, any_axis(x, rng)),
    "other order": lambda x, rng, place: x.permute(*map(int, rng.permutation(x.ndim))),
    "reshaped": reshaped,
    "every other": lambda x, rng, place: x[(slice(None),) * any_axis(x, rng) + (slice(None, None, 2),)],
    "backwards": lambda x, rng, place: x + x.flip(any_axis(x, rng)),
    "joined": lambda x, rng, place: x.cat(x.tanh(), dim=any_axis(x, rng)),
    "padded": lambda x, rng, place: x.pad([(1, 2)] + [None] * (x.ndim - 1)),
    "rows": lambda x, rng, place: x[place(Tensor(rng.integers(x.shape[0], size=5).astype(np.int32)))],
    "triangle": lambda x, rng, place: x.tril(int(rng.integers(-1, 2))) if x.ndim > 1 else x,
    "gelu": lambda x, rng, place: x.gelu(),
    "shifted": lambda x, rng, place: x * drawn(x, rng, place, *x.shape) + drawn(x, rng, place, x.shape[-1]),
    "product": product,
    "convolution": convolution,
    "attention": lambda x, rng, place: attention(x, rng, place) if x.ndim > 1 else x,
    "written": written,
    "laid out anew": lambda x, rng, place: place(x),
    "another view laid out": lambda x, rng, place: place(x.transpose(0, -1).flip(0)) * 2,
    "masked": lambda x, rng, place: x.masked_fill(place(x > 0.5), 0.25),
    "whole numbers": lambda x, rng, place: x + place((x * 4).floor().cast(dtypes.int16)).cast(x.dtype) / 8,
    "largest": lambda x, rng, place: largest(x, any_axis(x, rng), place),
    "windows": lambda x, rng, place: x.unfold(any_axis(x, rng), 2, 1).mean(-1) if min(x.shape) > 1 else x,
}


class Drawn:
    """A function of a tensor, the same for every layout: its changes, and what they draw, by a number."""

    def __init__(self, number: int, mesh: Mesh) -> None:
        rng = np.random.default_rng(number)
        self.number, self.mesh = number, mesh
        self.dtype = DTYPES[rng.integers(len(DTYPES))]
        steps = 1 if self.dtype.itemsize < 4 else int(rng.integers(1, 6))
        self.names = [list(CHANGES)[i] for i in rng.integers(len(CHANGES), size=steps)]
        self.shape = tuple(map(int, rng.integers(len(mesh), 8, size=3)))
        self.given = rng.normal(size=self.shape)

    def __repr__(self) -> str:
        return f"{self.number}: {' > '.join(self.names)} of {self.dtype.name} {self.shape}"

    def placing(self, is_apart: bool) -> Place:
        """What lays tensors out: over all ranks, as the number says, or on one device."""
        rng = np.random.default_rng(self.number + 1)

        def place(x: Tensor) -> Tensor:
            for name in self.mesh.sizes if is_apart else ():
                axes = [None, *(i for i, n in enumerate(x.shape) if n >= self.mesh.sizes[name])]
                x = x.shard(self.mesh[name], axes[rng.integers(len(axes))])
            return x

        return place

    def loss(self, x: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """(what the function makes of a tensor, one number of that)."""
        rng = np.random.default_rng(self.number + 2)
        for name in self.names:
            x = CHANGES[name](x, rng, place)
        return x * 1, (x * drawn(x, rng, place, *x.shape)).mean()

    def found(self, is_apart: bool) -> list[np.ndarray[Any, Any]]:
        """The result and the gradient; of every other number what three steps of training leave."""
        place = self.placing(is_apart)
        x = place(Tensor(self.given).cast(self.dtype)).realize()
        x.requires_grad_(True)
        if self.number % 2 == 0:
            result, loss = self.loss(x, place)
            loss.backward()
            assert x.grad is not None
            return [a.cast(dtypes.float64).numpy() for a in (result, x.grad)]
        updates = optim.SGD([x], lr=0.5)

        @TinyJit
        def step() -> tuple[Tensor, Tensor]:
            updates.zero_grad()
            result, loss = self.loss(x, self.placing(is_apart))
            loss.backward()
            updates.step()
            return result.detach().realize(), loss.detach().realize()

        with Tensor.train():
            results = [tuple(a.cast(dtypes.float64).numpy() for a in step()) for _ in range(3)]
        return [*results[0], *results[2], x.detach().cast(dtypes.float64).numpy()]


def main(first: int, last: int) -> None:
    world = distributed.init()
    rows = 2 if world.size % 2 == 0 else 1
    mesh = world.mesh(rows=rows, columns=world.size // rows)
    for number in range(first, last):
        drawn = Drawn(number, mesh)
        try:
            together, alone = drawn.found(True), drawn.found(False)
            near = TOLERANCES[drawn.dtype]
            for ours, expected in zip(together, alone, strict=True):
                np.testing.assert_allclose(ours, expected, rtol=near, atol=near * max(1, abs(expected).max()))
        except BaseException as error:
            error.add_note(f"function {drawn}")
            raise
    print(world.rank, last - first)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
