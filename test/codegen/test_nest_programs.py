"""Random nests of loops: reduces of different axes beside and inside each other, on every model of a GPU and
on the device that DEV names, by plans that are chosen as if each size were a large one. PyTorch says in
float64 what is right.

All values of a program lie in one space: each has every axis of it, in full or of size 1, and is broadcast to
more of them before it is reduced or met by another. So one kernel holds sums of different places, rows beside
single items, padding and conditions. A program is repeated by its seed; its numbers are whole, and its
results exact but for what softmaxes and norms are of.
"""
from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from drivers import one_pass_everywhere
from spaces import SIZES, Both, Space

from tinygrad import Context, Device, Tensor
from tinygrad.codegen import compile
from tinygrad.codegen.opt import choose_attention, choose_gpu, choose_tiles
from tinygrad.dtype import to_dtype
from tinygrad.renderer.machine import Machine
from tinygrad.schedule import cost, split_k

torch = pytest.importorskip("torch", reason="random nests are compared with PyTorch, which is not installed")
LONG = (1, 2, 3, 700, 1023, 1025, 4099)
"""sizes of programs with rows that no block keeps whole"""
MOST_ITEMS = 4000
STORED = ("float32",) * 8 + ("float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8",
                             "uint16", "uint32", "bool")
COMPUTED = ("float32",) * 5 + ("int32", "int32", "int64", "float64")
LARGEST = float(1 << 22)
"""a sum's items, added without their signs: float32 holds all that is smaller"""


def tamed(x: Both, most: float) -> Both:
    """x, or where it is larger than this anywhere, what is left of it between -3 and 3."""
    return x if float(x.reference.detach().abs().max()) <= most else x.map(lambda v: v.clip(-3, 3))


class Program(Space):
    """A space, the values drawn in it so far, and its leaves."""

    def __init__(self, seed: int, device: str, sizes: Sequence[int] = SIZES) -> None:
        super().__init__(seed, device)
        random = self.random
        self.shape = [random.choice(sizes) for _ in range(random.choice((1, 2, 2, 3, 3, 3, 4)))]
        while math.prod(self.shape) > max(MOST_ITEMS, max(sizes)):
            self.shape[random.randrange(len(self.shape))] = random.choice((1, 2, 3))
        self.differentiable = random.random() < 0.35
        self.dtype = "float32" if self.differentiable else self.possible(random.choice(COMPUTED))
        self.leaves: list[tuple[Tensor, torch.Tensor]] = []
        self.values: list[Both] = []

    def possible(self, dtype: str) -> str:
        return dtype if Device[self.device].has_dtype(to_dtype(dtype)) else "float32"

    # --- axes -------------------------------------------------------------------------------------------

    def axis(self) -> int:
        return self.random.randrange(len(self.shape))

    def some(self, least: int) -> set[int]:
        axes = range(len(self.shape))
        return set(self.random.sample(axes, self.random.randint(least, len(axes))))

    def grown(self, x: Both, axes: set[int]) -> Both:
        """Broadcast to these axes too."""
        shape = [n if i in axes else x.reference.shape[i] for i, n in enumerate(self.shape)]
        return x.map(lambda v: v.expand(shape))

    # --- what is read -----------------------------------------------------------------------------------

    def stored(self, shape: Sequence[int]) -> Both:
        """Whole numbers of any dtype in memory, a leaf where it is of float32."""
        dtype = self.possible(self.random.choice(STORED))
        array = self.numbers.integers(0 if dtype[0] in "ub" else -3, 2 if dtype == "bool" else 4, shape)
        tensor = Tensor(array, device=self.device).cast(dtype).realize()
        reference = torch.tensor(array, dtype=torch.float64)
        if self.differentiable and dtype == "float32":
            tensor.requires_grad = True
            self.leaves.append((tensor, reference.requires_grad_()))
        return Both(tensor, reference).map(lambda x: x.cast(self.dtype) if isinstance(x, Tensor) else x)

    def read(self, axes: frozenset[int] = frozenset()) -> Both:
        """Through one of the movements, in these axes and some others."""
        shape = self.along(self.some(0) | axes)
        ways = (self.stored, self.stored, self.turned, self.padded, self.strided, self.looked_up, self.joined)
        return self.random.choice(ways)(shape)

    def turned(self, shape: list[int]) -> Both:
        order = self.random.sample(range(len(shape)), len(shape))
        back = tuple(int(i) for i in np.argsort(order))
        axis = self.axis()
        return self.stored([shape[i] for i in order]).map(lambda x: x.permute(back).flip((axis,)))

    def padded(self, shape: list[int]) -> Both:
        axis = self.axis()
        before = self.random.randint(0, shape[axis] - 1)
        after = self.random.randint(0, shape[axis] - 1 - before)
        pads = [(0, 0)] * len(shape)
        pads[axis] = before, after
        shape = [n - sum(p) for n, p in zip(shape, pads, strict=True)]
        flat = tuple(n for pair in reversed(pads) for n in pair)
        return self.stored(shape).map(
            lambda x: x.pad(pads) if isinstance(x, Tensor) else torch.nn.functional.pad(x, flat))

    def strided(self, shape: list[int]) -> Both:
        axis, step = self.axis(), self.random.choice((2, 3))
        larger = [*shape]
        larger[axis] = (shape[axis] - 1) * step + self.random.randint(1, step)
        return self.stored(larger).map(lambda x: x[tuple(
            slice(None, None, step if i == axis else None) for i in range(len(shape)))])

    def looked_up(self, shape: list[int]) -> Both:
        axis, size = self.axis(), self.random.choice((1, 2, 5, 9, 20))
        rows = self.stored([size if i == axis else n for i, n in enumerate(shape)])
        places = self.numbers.integers(0, size, shape[axis])
        index = Tensor(places.astype(np.int32), device=self.device).realize()
        return Both(rows.tensor[(slice(None),) * axis + (index,)],
                    rows.reference.index_select(axis, torch.tensor(places)))

    def joined(self, shape: list[int]) -> Both:
        axis = self.axis()
        first = self.random.randint(0, shape[axis])
        parts = [self.stored([n if i == axis else size for i, size in enumerate(shape)])
                 for n in (first, shape[axis] - first) if n]
        return Both(Tensor.cat(*(p.tensor for p in parts), dim=axis),
                    torch.cat([p.reference for p in parts], axis))

    def counter(self, axis: int) -> Both:
        numbers = super().counter(axis)
        return Both(numbers.tensor, torch.from_numpy(numbers.reference).double())

    def condition(self) -> Both:
        """Drawn numbers, a bound of an axis, or how two axes lie to each other."""
        if self.random.random() < 0.3:
            return self.read().map(lambda x: x > 0)
        compare = self.random.choice((operator.lt, operator.ge, operator.eq))
        first, second, shift = self.axis(), self.axis(), self.random.randint(-2, 3)
        moved = self.counter(first).map(lambda c: c + shift)
        if first == second:
            bound = self.random.randint(0, self.shape[first])
            return moved.map(lambda c: compare(c, bound))
        return moved.with_(self.counter(second), compare)

    # --- what is computed -------------------------------------------------------------------------------

    def value(self, depth: int) -> Both:
        kind = self.random.random()
        if depth <= 0 or kind < 0.12:
            if not self.values or self.random.random() < 0.5:
                self.values.append(self.read())
            return self.random.choice(self.values)
        if kind < 0.3:
            result = self.met(self.value(depth - 1), self.value(depth - 1))
        elif kind < 0.42:
            result = self.terms()
        elif kind < 0.55:
            result = self.changed(self.value(depth - 1))
        elif kind < 0.92:
            result = self.reduced(self.value(depth - 1))
            if self.random.random() < 0.3:
                self.values.append(tamed(result, LARGEST / 64))
        else:
            result = self.row(self.value(depth - 1))
        result = tamed(result, LARGEST / 64)
        if self.random.random() < 0.06 and not self.differentiable:
            result.tensor.realize()
        return result

    def of_dtype(self, x: Both) -> Both:
        return Both(x.tensor.cast(self.dtype), x.reference.double(), x.rounded)

    def met(self, a: Both, b: Both) -> Both:
        exact = a.exact and b.exact
        kind = self.random.choice(("add", "sub", "mul", "mul", "max", "less", "where"))
        if kind == "add" or not exact:  # near values may be told apart otherwise
            return a.with_(b, operator.add)
        if kind == "sub":
            return a.with_(b, operator.sub)
        if kind == "mul":
            return tamed(a, 1000).with_(tamed(b, 1000), operator.mul)
        if kind == "max":
            return a.with_(b, lambda x, y: x.maximum(y))
        if kind == "less":
            return self.of_dtype(a.with_(b, operator.lt))
        chosen = self.condition()
        return Both(chosen.tensor.where(a.tensor, b.tensor),
                    torch.where(chosen.reference.bool(), a.reference, b.reference))

    def terms(self) -> Both:
        """Several reads and sums of reads, each in its own axes and in one that all have, in all likelihood
        one kernel whose threads share rows for some of them."""
        common = frozenset({self.axis()} if len(self.shape) > 1 else ())
        result = self.read(common)
        for _ in range(self.random.choice((1, 2, 3))):
            term = self.read(common)
            if self.random.random() < 0.6:
                others = [a for a in range(len(self.shape)) if a not in common]
                term = tamed(self.reduced(term, set(self.random.sample(others, 1))), 1000)
            result = tamed(result, 1000).with_(term, self.random.choice((operator.add, operator.mul)))
        return result

    def changed(self, x: Both) -> Both:
        kind = self.random.choice(("affine", "relu", "clip", "square", "zeros", "masked", "power"))
        if kind == "affine":
            return x.map(lambda v: 1 - v * 2)
        if kind == "relu":
            return x.map(lambda v: v.relu())
        if kind == "clip":
            return x.map(lambda v: v.clip(-2, 2))
        if kind == "square":
            return tamed(x, 1000).map(lambda v: v * v)
        if kind == "zeros" and x.exact:
            return self.of_dtype(x.map(lambda v: v == 0))
        if kind == "power" and self.dtype == "float32":
            return x.map(lambda v: v.clip(-3, 3).exp2(), rounded=1)
        chosen, other = self.condition(), self.random.choice((0, 0, 1, -5))
        return Both(chosen.tensor.where(x.tensor, other),
                    torch.where(chosen.reference.bool(), x.reference, float(other)), x.rounded)

    def reduced(self, x: Both, axes: set[int] | None = None) -> Both:
        """Over axes that x may have to be broadcast along first, or not at all."""
        axes = axes or (self.some(1) if self.random.random() < 0.3 else {self.axis()})
        x = self.grown(x, axes if self.random.random() < 0.75 else self.some(0))
        kind = self.random.choice(("sum",) * 6 + ("max", "max", "min", "product", "any"))
        over = tuple(sorted(axes))
        if self.differentiable and kind in ("max", "min"):  # equal ones share the derivative
            kind = "sum"
        if kind == "sum" or not x.exact:
            if float(x.reference.detach().abs().sum()) > LARGEST:
                x = x.map(lambda v: v.clip(-3, 3))
            count = math.prod(x.reference.shape[a] for a in over)
            return x.map(lambda v: v.sum(over, keepdim=True), x.rounded * count).map(self.in_dtype)
        if kind == "any":
            return self.of_dtype(x.map(lambda v: (v != 0).any(over, keepdim=True)))
        if kind == "product":
            signs = self.of_dtype(x.map(lambda v: v > 0)).map(lambda v: 2 * v - 1)
            reference = signs.reference
            for axis in over:
                reference = reference.prod(axis, keepdim=True)
            return Both(self.in_dtype(signs.tensor.prod(over, keepdim=True)), reference)
        return Both(getattr(x.tensor, kind)(over, keepdim=True),
                    getattr(x.reference, f"a{kind}")(over, keepdim=True))

    def in_dtype(self, x: Any) -> Any:
        return x.cast(self.dtype) if isinstance(x, Tensor) else x

    def row(self, x: Both) -> Both:
        """What is computed of a row for each of its items, or of a few of them."""
        axis = self.axis()
        x = self.grown(x, {axis})
        size = self.shape[axis]
        kinds = ["softmax", "log of sum", "norm", "neighbours"] if self.dtype == "float32" else []
        if x.exact and not self.differentiable:
            kinds += ["largest place", "sorted", "first few", "pooled"]
        kind = self.random.choice([*kinds, "running sum"])
        if kind == "running sum":
            if float(x.reference.detach().abs().sum()) > LARGEST:
                x = x.map(lambda v: v.clip(-3, 3))
            return x.map(lambda v: v.cumsum(axis), x.rounded * size).map(self.in_dtype)
        if kind == "largest place":
            places = np.argmax(x.reference.numpy(), axis, keepdims=True)
            return Both(x.tensor.argmax(axis, keepdim=True).cast(self.dtype), torch.tensor(places).double())
        if kind == "sorted":
            return x.map(lambda v: v.sort(axis)[0])
        if kind == "first few":
            few = self.random.randint(1, min(size, 4))
            return x.map(lambda v: v.topk(few, axis)[0].sum(axis, keepdim=True)).map(self.in_dtype)
        if kind == "pooled":
            return self.pooled(x, axis, self.random.randint(1, min(size, 3)))
        x = x.map(lambda v: v.clip(-4, 4))
        if kind == "softmax":
            return x.map(lambda v: v.softmax(axis), rounded=1)
        if kind == "log of sum":
            return x.map(lambda v: v.logsumexp(axis, keepdim=True), rounded=1)
        if kind == "norm":
            return x.map(lambda v: _normalised(v, axis), rounded=1)
        pads = tuple((1, 0) if i == axis else (0, 0) for i in range(len(self.shape)))
        rest = (slice(None),) * axis + (slice(0, size),)
        flat = tuple(n for pair in reversed(pads) for n in pair)
        return Both(x.tensor + x.tensor.pad(pads)[rest],
                    x.reference + torch.nn.functional.pad(x.reference, flat)[rest], x.rounded)

    def pooled(self, x: Both, axis: int, width: int) -> Both:
        """The largest of each window along an axis, and of these the largest."""
        rows = x.map(lambda v: v.transpose(axis, -1))
        shape = tuple(rows.reference.shape)
        pooled = rows.map(lambda v: v.reshape(1, -1, 1, shape[-1]))
        pooled = Both(pooled.tensor.max_pool2d((1, width)),
                      torch.nn.functional.max_pool2d(pooled.reference, (1, width)))
        largest = pooled.map(lambda v: v.reshape(*shape[:-1], -1))
        return Both(largest.tensor.max(-1, keepdim=True).transpose(axis, -1),
                    largest.reference.amax(-1, keepdim=True).transpose(axis, -1))

    # --- results ----------------------------------------------------------------------------------------

    def results(self) -> list[Both]:
        """One to three values, and the derivatives of their sum by all leaves that it depends on."""
        values = [self.terms() if self.random.random() < 0.4 else self.value(self.random.randint(2, 4))
                  for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        total = sum(((i + 1) * v.reference.sum() for i, v in enumerate(values)), torch.zeros(()))
        if not total.requires_grad:
            return values
        loss = sum(((i + 1) * v.tensor.sum() for i, v in enumerate(values)), Tensor(0.0, device=self.device))
        by = torch.autograd.grad(total, [r for _, r in self.leaves], allow_unused=True)
        used = [(t, g) for (t, _), g in zip(self.leaves, by, strict=True) if g is not None]
        gradients = loss.gradient(*(t for t, _ in used))
        return values + [Both(t, g, rounded=1) for t, (_, g) in zip(gradients, used, strict=True)]


def _normalised(x: Any, axis: int) -> Any:
    centred = x - x.mean(axis, keepdim=True)
    return centred * ((centred * centred).mean(axis, keepdim=True) + 1).rsqrt()


def as_if_large(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Plans of large sizes for small ones: what is worth a kernel, a block, a tile or a walk is drawn."""
    random = Random(seed)

    def draw(where: Any, name: str, *values: Any) -> None:
        patch.setattr(where, name, random.choice((getattr(where, name), *values)))

    patch.setattr(compile, "_kernels", OrderedDict())  # those of other machines and constants
    renderer = Device["PYTHON:BLOCKS"].renderer
    offered = renderer.machine
    patch.setattr(renderer, "machine", replace(
        offered, block_threads=random.choice((offered.block_threads, 32, 64)),
        warp_threads=random.choice((offered.warp_threads, 8)),
        multiprocessors=random.choice((offered.multiprocessors, 1, 2, 4))))
    draw(cost, "STORE_COST", 1e3, 1e9)
    draw(cost, "LARGE_CONE", 10**9)
    draw(Machine, "register_row", 8, 64, 1024)
    draw(Machine, "row_items", 1, 2, 4)
    draw(choose_gpu, "TILE_ITEMS", 2, 4)
    draw(choose_gpu, "ROW_ROUNDS", 1, 2)
    draw(choose_attention, "LEAST_SIDE", 1, 2)
    draw(choose_tiles, "MOST_WASTE", 20)
    draw(choose_tiles, "DEPTH", 4)
    tile = choose_tiles.BlockTile
    draw(choose_tiles, "REGISTER_TILES", (tile(16, 16, 4, 4), tile(8, 8, 2, 2)))
    if random.random() < 0.3:
        patch.setattr(split_k, "KERNEL_BYTES", 0)
        draw(split_k, "MANY_ROWS", 4)
        draw(split_k, "TILE_SIDE", 4)
    if random.random() < 0.2:
        one_pass_everywhere(patch, random.choice((0, 1 << 30)))


def check(seed: int, device: str, patch: pytest.MonkeyPatch, sizes: Sequence[int] = SIZES) -> None:
    patch.setattr(Device, "_default", device)
    as_if_large(patch, seed)
    results = Program(seed, device, sizes).results()
    computed = [r.tensor.contiguous() for r in results]
    Tensor.realize(*computed)
    for number, (tensor, result) in enumerate(zip(computed, results, strict=True)):
        wanted = result.reference.detach().numpy()
        assert tensor.shape == wanted.shape
        most = max(1.0, float(np.abs(wanted).max()))
        tolerance = 0.0 if result.exact else 2e-4 * most + 1e-7 * result.rounded
        np.testing.assert_allclose(tensor.numpy().astype(np.float64), wanted, rtol=0, atol=tolerance,
                                   err_msg=f"result {number}")


MODELS = pytest.mark.parametrize("device", ["PYTHON:BLOCKS", "PYTHON:CUDA", "PYTHON:AMD", "PYTHON:METAL"])


@MODELS
@pytest.mark.parametrize("seed", range(20))
def test_random_nests(device: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, device, monkeypatch)


@pytest.mark.parametrize("seed", range(300, 320))
def test_random_nests_here(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device that DEV names."""
    check(seed, Device.DEFAULT, monkeypatch)


@MODELS
@pytest.mark.parametrize("seed", range(100, 103))
def test_random_nests_of_long_rows(device: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, device, monkeypatch, LONG)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 230))
def test_random_nests_by_plans_that_a_search_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(BEAM=2, CACHELEVEL=0):
        check(seed, "PYTHON:BLOCKS", monkeypatch)


@pytest.mark.slow
@MODELS
@pytest.mark.parametrize("seed", range(1000, 1500))
def test_many_random_nests(device: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, device, monkeypatch)
