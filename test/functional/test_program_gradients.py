"""Gradients of random programs, in float64: against PyTorch's, and against differences of NumPy's values."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_steps import NUMPY, TENSOR, VIEWS, WRITES, Array, Meaning, Program, Shape
from random_programs import Drawing, Known, Memory

from tinygrad import Context, Tensor, dtypes
from tinygrad.dtype import DType


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # written alike for a Tensor and a tensor of PyTorch
    "sin": lambda x: x.sin(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "exp": lambda x: (x.sin() * 0.5).exp(),
    "log": lambda x: (x * x + 1).log(),
    "sqrt": lambda x: (x * x + 0.5).sqrt(),
    "recip": lambda x: (x * x + 1).reciprocal(),
    "power": lambda x: (x * x + 0.5) ** 1.3,
    "cube": lambda x: (x * 0.5) ** 3,
    "erf": lambda x: x.erf(),
    "detached": lambda x: x.detach() + x * 0.5,
}
AXES = ("softmax", "log_softmax", "logsumexp", "mean", "var", "logcumsumexp")


@st.composite
def drawn(draw: Callable[[Any], Any], kind: type[Drawing], most_inputs: int) -> Program:
    """A program of real numbers that draws its steps as `kind` does."""
    drawing = kind(draw)
    inputs: list[Array] = []
    for number in range(draw(st.integers(1, most_inputs))):
        shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        inputs.append(np.random.default_rng((number, *shape)).standard_normal(shape))
        drawing.values.append(Known(shape, dtypes.float64, Memory(3, writable=False)))
    for _ in range(draw(st.integers(1, 12))):
        drawing.step()
    return Program(inputs, drawing.steps, [len(drawing.values) - 1])


# --- against PyTorch ----------------------------------------------------------------------------------------


class Differentiable(Drawing):
    """Steps of real numbers near 1 that a gradient passes, with kinks and ties."""

    def room(self, dtype: DType) -> int:
        return 1 << 12

    def add(self, name: str, x: int, shape: Shape, bound: int, arg: Any = None, y: int | None = None,
            dtype: DType | None = None) -> int:
        if (name in TORCH or name in FUNCTIONS) and dtype in (None, dtypes.float64):
            return super().add(name, x, shape, bound, arg, y, dtype)
        return x

    def elementwise(self, x: int, v: Known) -> None:
        if self.pick(0, 2):
            self.add(self.one_of(tuple(FUNCTIONS)), x, v.shape, 8)
        else:
            super().elementwise(x, v)

    def reduce(self, x: int, v: Known) -> None:
        if not v.shape or 0 in v.shape or self.pick(0, 1):
            super().reduce(x, v)
            return
        axis, name = self.pick(0, len(v.shape) - 1), self.one_of(AXES)
        if name == "var" and v.shape[axis] == 1:
            return
        left = v.shape if name.endswith(("softmax", "exp")) and name != "logsumexp" else (
            *v.shape[:axis], *v.shape[axis + 1:])
        self.add(name, x, left, 2 * v.bound * v.bound if name == "var" else 2 * v.bound + 9, axis)


@dataclass
class Shown:
    """A value of the reference: the items at `places` of a vector in `memory`, a list of that alone. A write
    replaces the vector, so PyTorch sees no write."""

    memory: list[Any]
    places: Array

    @staticmethod
    def of(value: Any) -> Shown:
        return Shown([value.reshape(-1)], np.arange(value.numel()).reshape(tuple(value.shape)))

    @property
    def value(self) -> Any:
        return self.memory[0][self.places]

    def write(self, index: Any, value: Any) -> None:
        vector = self.memory[0].clone()
        vector[np.array(self.places[index])] = value
        self.memory[0] = vector


def _torch() -> Any:
    return pytest.importorskip("torch")


def _extended(x: Any, pads: Any, mode: str) -> Any:
    """Padded with its own items: the items at places that are padded so."""
    numbers = np.arange(x.numel()).reshape(tuple(x.shape))
    return x.reshape(-1)[NUMPY["extend"](numbers, None, (pads, mode))]


def _rolled(x: Any, name: str, arg: Any) -> Any:
    """The items at places that a step moves as it moves items."""
    return x.reshape(-1)[np.array(NUMPY[name](np.arange(x.numel()).reshape(tuple(x.shape)), None, arg))]


def _flat_pads(pads: Any) -> list[int]:
    return [n for pair in reversed(pads) for n in pair]


def _product(x: Any, axes: Any, keep: bool) -> Any:
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keep)
    return x


def _scattered(x: Any, y: Any, axis: int, index: Array, reduce: str, own: bool) -> Any:
    """Where nothing of `x` takes part, it changes nothing: PyTorch counts it among ties all the same."""
    places = _torch().tensor(index.astype(np.int64))
    neutral = {"sum": 0.0, "prod": 1.0, "amax": -np.inf, "amin": np.inf}[reduce]
    return (x if own else x.scatter(axis, places, neutral)).scatter_reduce(axis, places, y, reduce)


def _chosen(x: Any, y: Any, size: int, fill: float) -> Any:
    found = x[y > 0][:size]
    return _torch().cat([found, _torch().full((size - len(found),), fill, dtype=x.dtype)])


MOVED = {"repeat", "repeat each", "roll"}
TORCH: Meaning = {
    **{name: NUMPY[name] for name in ("add", "sub", "mul", "number", "neg")},
    **{name: (lambda x, _, arg, name=name: _rolled(x, name, arg)) for name in MOVED},
    **{name: (lambda x, _, axis, name=name: getattr(x, name)(axis)) for name in AXES},
    "maximum": lambda x, y, _: x.maximum(y),
    "minimum": lambda x, y, _: x.minimum(y),
    "select": lambda x, y, _: _torch().where(x < y, x, y - 1),
    "relu": lambda x, _, __: x.relu(),
    "abs": lambda x, _, __: x.abs(),
    "clip": lambda x, _, ends: x.clip(*ends),
    "pad": lambda x, _, pads: _torch().nn.functional.pad(x, _flat_pads(pads)),
    "extend": lambda x, _, a: _extended(x, *a),
    "cat": lambda x, y, axis: _torch().cat([x, y], axis),
    "stack": lambda x, y, axis: _torch().stack([x, y], axis),
    "contiguous": lambda x, _, __: x,
    "clone": lambda x, _, __: x,
    "sum": lambda x, _, a: x.sum(a[0], keepdim=a[1]),
    "max": lambda x, _, a: x.amax(a[0], keepdim=a[1]),
    "min": lambda x, _, a: x.amin(a[0], keepdim=a[1]),
    "prod": lambda x, _, a: _product(x, *a),
    "cumsum": lambda x, _, axis: x.cumsum(axis),
    "cumprod": lambda x, _, axis: x.cumprod(axis),
    "cummax": lambda x, _, axis: x.cummax(axis)[0],
    "gram": lambda x, _, __: x @ x.transpose(-1, -2),
    "tril": lambda x, _, k: x.tril(k),
    "triu": lambda x, _, k: x.triu(k),
    "rows": lambda x, _, at: x[at],
    "masked rows": lambda x, _, mask: x[mask],
    "gather": lambda x, _, a: x.gather(a[0], _torch().tensor(a[1].astype(np.int64))),
    "scatter reduce": lambda x, y, a: _scattered(x, y, *a),
    "mask": lambda x, y, number: x.masked_fill(y > 1, number),
    "masked select": lambda x, y, a: _chosen(x, y, *a),
    "sort": lambda x, _, a: x.sort(stable=True, dim=a[0], descending=a[1])[0],
    "topk": lambda x, _, a: x.sort(stable=True, dim=a[1], descending=a[2])[0].narrow(a[1], 0, a[0]),
}
WRITTEN: Meaning = {
    "add to": lambda x, y, _: x.write((), x.value + y),
    "assign": lambda x, y, _: x.write((), y),
    "set": lambda x, _, a: x.write(*a),
    "set to value": lambda x, y, index: x.write(index, y),
}


def reference(program: Program, leaves: list[Any]) -> Any:
    values = [Shown.of(x) for x in leaves]
    for name, x, y, arg, _ in program.steps:
        first, second = values[x], None if y is None else values[y].value
        if name in VIEWS:
            values.append(Shown(first.memory, np.array(NUMPY[name](first.places, None, arg))))
        elif name in WRITES:
            WRITTEN[name](first, second, arg)
            values.append(first)
        elif name in FUNCTIONS:
            values.append(Shown.of(FUNCTIONS[name](first.value)))
        else:
            values.append(Shown.of(TORCH[name](first.value, second, arg)))
    return values[program.results[0]].value


def ours(program: Program, leaves: list[Tensor]) -> Tensor:
    values = list(leaves)
    for name, x, y, arg, _ in program.steps:
        if name in FUNCTIONS:
            values.append(FUNCTIONS[name](values[x]))
        elif name in AXES:
            values.append(getattr(values[x], name)(arg))
        else:
            values.append(TENSOR[name](values[x], None if y is None else values[y], arg))
    return values[program.results[0]]


def weighted(value: Any, constant: Callable[[Array], Any]) -> Any:
    """A number in which every item has a weight of its own."""
    shape = tuple(value.shape)
    return (value * constant(np.cos(np.arange(int(np.prod(shape))).reshape(shape)))).sum()


def slopes(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The gradient at each leaf, zeros where the value does not depend on it."""
    found = []
    for leaf in leaves:
        try:
            found += value.gradient(leaf)
        except RuntimeError as error:
            assert "not in the graph" in str(error)
            found.append(leaf.zeros_like())
    return found


def check_against_torch(program: Program) -> None:
    """Values, gradients, and gradients of those."""
    torch = _torch()
    theirs = [torch.tensor(x, requires_grad=True) for x in program.inputs]
    result = reference(program, theirs)
    expected = [result]
    first: list[Any] = []
    if result.requires_grad:
        first = torch.autograd.grad(weighted(result, torch.tensor), theirs, create_graph=True,
                                    allow_unused=True, materialize_grads=True)
    curve = sum((weighted(g, torch.tensor) for g in first), torch.zeros(()))
    second = torch.autograd.grad(curve, theirs, allow_unused=True,
                                 materialize_grads=True) if curve.requires_grad else []
    expected += [*first, *second]
    for noopt in (0, 1):
        with Context(NOOPT=noopt):
            leaves = [Tensor(x, requires_grad=True) for x in program.inputs]
            found = [ours(program, leaves)]
            if first:
                found += slopes(weighted(found[0], untracked), leaves)
            if second:
                found += slopes(sum((weighted(g, untracked) for g in found[1:]), Tensor(0.0)), leaves)
            found[0].realize(*found[1:])
            for number, (got, wanted) in enumerate(zip(found, expected, strict=True)):
                values = wanted.detach().numpy()
                if number > len(first):
                    # torch's logcumsumexp takes the logarithm of its gradient: NaN where that is zero
                    values = np.where(np.isnan(values), got.numpy(), values)
                scale = 1e-11 * (1 + float(np.abs(values).max()) if values.size else 1)
                np.testing.assert_allclose(got.numpy(), values, rtol=1e-8, atol=scale,
                                           err_msg=f"NOOPT={noopt}")


def untracked(x: Array) -> Tensor:
    return Tensor(x, requires_grad=False)


@examples(25)
@given(drawn(Differentiable, 2))
def test_gradients_of_random_programs_are_torchs(program: Program) -> None:
    check_against_torch(program)


@pytest.mark.slow
@examples(1500)
@given(drawn(Differentiable, 2))
def test_gradients_of_many_random_programs_are_torchs(program: Program) -> None:
    check_against_torch(program)


# --- against differences of NumPy's values ------------------------------------------------------------------


SMOOTH_EVERYWHERE = ("add", "sub", "mul", "reshape", "permute", "expand", "pad", "shrink", "flip", "getitem",
                     "cumsum", "roll", "repeat", "repeat each", "extend", "diagonal", "windows", "realize")
SMOOTH_FUNCTIONS = ("sin", "tanh", "sigmoid", "exp", "log", "sqrt", "recip")
SMOOTH_TENSOR: Meaning = {
    **{name: (lambda x, _, __, name=name: FUNCTIONS[name](x)) for name in SMOOTH_FUNCTIONS},
    "mean": lambda x, _, a: x.mean(a[0], keepdim=a[1]),
    "softmax": lambda x, _, axis: x.softmax(axis),
    "matmul": lambda x, _, __: x @ x.transpose(-1, -2) * 0.1,
    **{name: TENSOR[name] for name in SMOOTH_EVERYWHERE},
}


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


SMOOTH_NUMPY: Meaning = {
    "sin": lambda x, _, __: np.sin(x),
    "tanh": lambda x, _, __: np.tanh(x),
    "sigmoid": lambda x, _, __: 1 / (1 + np.exp(-x)),
    "exp": lambda x, _, __: np.exp(np.sin(x) * 0.5),
    "log": lambda x, _, __: np.log(x * x + 1),
    "sqrt": lambda x, _, __: np.sqrt(x * x + 0.5),
    "recip": lambda x, _, __: 1 / (x * x + 1),
    "mean": lambda x, _, a: x.mean(a[0], keepdims=a[1]),
    "softmax": lambda x, _, axis: _softmax(x, axis),
    "matmul": lambda x, _, __: x @ x.swapaxes(-1, -2) * 0.1,
    **{name: NUMPY[name] for name in SMOOTH_EVERYWHERE},
}


class Smooth(Drawing):
    """Steps with a derivative everywhere, of values that stay near 1."""

    def step(self) -> None:
        x = len(self.values) - 1
        v = self.values[x]
        kind = self.one_of(("function", "function", "binary", "movement", "index", "order", "reduce"))
        before = len(self.steps)
        getattr(self, kind)(x, v)
        if any(step.name not in SMOOTH_TENSOR for step in self.steps[before:]) or 0 in self.values[-1].shape:
            del self.steps[before:], self.values[x + 1:]

    def function(self, x: int, v: Known) -> None:
        self.add(self.one_of(SMOOTH_FUNCTIONS), x, v.shape, 1)

    def binary(self, x: int, v: Known) -> None:
        y = self.other(lambda w: self.broadcasts(w.shape, v.shape))
        assert y is not None
        common = np.broadcast_shapes(v.shape, self.values[y].shape)
        self.add("sin", self.add(self.one_of(("add", "sub", "mul")), x, common, 1, None, y), common, 1)

    def reduce(self, x: int, v: Known) -> None:
        name = self.one_of(("mean", "softmax", "matmul"))
        if name == "matmul" and len(v.shape) >= 2:
            self.add(name, x, (*v.shape[:-1], v.shape[-2]), 1)
        elif name != "matmul" and v.shape:
            axis, keep = self.pick(0, len(v.shape) - 1), bool(self.pick(0, 1))
            left = tuple(1 if i == axis else n for i, n in enumerate(v.shape) if keep or i != axis)
            self.add(name, x, left if name == "mean" else v.shape, 1,
                     ((axis,), keep) if name == "mean" else axis)


def smooth_value(program: Program, x: Any, table: Meaning) -> Any:
    """The sum of the last value's squares."""
    values = [x]
    for name, first, second, arg, _ in program.steps:
        values.append(table[name](values[first], None if second is None else values[second], arg))
    return (values[-1] * values[-1]).sum()


def check_slope(program: Program) -> None:
    """The derivative along a random direction against a difference of the fourth order in float64."""
    [x] = program.inputs
    direction = np.random.default_rng(x.size).standard_normal(x.shape)
    t = Tensor(x, requires_grad=True)
    smooth_value(program, t, SMOOTH_TENSOR).backward()
    assert t.grad is not None
    slope = float((t.grad.numpy() * direction).sum())
    step = 2e-5
    far_ahead, ahead, behind, far_behind = (
        smooth_value(program, x + s * step * direction, SMOOTH_NUMPY) for s in (2, 1, -1, -2))
    expected = (8 * (ahead - behind) - (far_ahead - far_behind)) / (12 * step)
    assert abs(slope - expected) <= 1e-6 * (1 + abs(expected) + abs(ahead))


@examples(25)
@given(drawn(Smooth, 1))
def test_gradients_of_smooth_random_programs(program: Program) -> None:
    check_slope(program)


@pytest.mark.slow
@examples(600)
@given(drawn(Smooth, 1))
def test_gradients_of_many_smooth_random_programs(program: Program) -> None:
    check_slope(program)
