"""Graphs of thousands of nodes: work in proportion to them, kernels of bounded size, no recursion."""
from __future__ import annotations

import functools
import gc
import operator
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.graph.joining import GROUP
from tinygrad.graph.ops import Ops
from tinygrad.schedule.cost import MOST_OPERATIONS, weight_of

DEEP = 50_000
"""Nodes of a deep chain."""


def vectors(count: int) -> list[Tensor]:
    return [Tensor([float(i % 7), 1.0]).realize() for i in range(count)]


def halved(x: Tensor, nodes: int) -> Tensor:
    """A chain so deep, whose value tends to 2."""
    for _ in range(nodes // 2):
        x = x * 0.5 + 1
    return x


def sines(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x.sin() + 1
    return x


# --- in proportion ------------------------------------------------------------------------------------------


def lines_run(work: Callable[[], object]) -> int:
    """Lines of the library's Python that some work takes: a measure that no other program on the machine
    changes."""
    count = 0

    def in_frame(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return in_frame

    def entered(frame: FrameType, event: str, argument: Any) -> Any:
        return in_frame if "tinygrad" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def moved(n: int) -> Tensor:
    x = Tensor([[1.0, 2.0]]).realize()
    for _ in range(n):
        x = x.flip(1).transpose(0, 1).reshape(1, 2)
    return x + 1


def spread(n: int) -> Tensor:
    x = Tensor([[1.0], [2.0]]).realize()
    for _ in range(n):
        x = (x * 0.9 + 0.1).expand(2, 3)[:, :1]
    return x


def between_devices(n: int) -> Tensor:
    x = Tensor([1.0, 2.0]).realize()
    for i in range(n):
        x = (x + 1).to(f"CPU:{i % 2}")
    return x


def normalised(n: int) -> Tensor:
    x = Tensor.ones(4, 4).contiguous().realize()
    for _ in range(n):
        x = x - x.sum(0, keepdim=True) * 0.01
    return x


def gathered(n: int) -> Tensor:
    """Each step reads the one before it at two places, as the gradient of a dynamic programme does."""
    near, far = Tensor([0, 2, 1, 0]).realize(), Tensor([1, 3, 2, 0]).realize()
    x = Tensor.ones(4).contiguous().realize()
    for _ in range(n):
        x = x.gather(0, near) + x.gather(0, far) * 0.5
    return x


PROGRAMS: dict[str, tuple[Callable[[int], Tensor], int]] = {
    "stack": (lambda n: Tensor.stack(*[Tensor([float(i)]) for i in range(n)]), 400),
    "cat": (lambda n: Tensor.cat(*vectors(n)), 400),
    "sum": (lambda n: functools.reduce(operator.add, vectors(n)), 400),
    "sum of sums": (lambda n: functools.reduce(operator.add, [(x * x).sum() for x in vectors(n)]), 400),
    "chain": (lambda n: sines(Tensor([0.5, 0.3]).realize(), n), 200),
    "backward": (lambda n: sines(x := Tensor([0.5, 0.3]).realize(), n).sum().gradient(x)[0], 100),
    "movement": (moved, 400), "spread out": (spread, 600), "devices": (between_devices, 200),
    "reduces": (normalised, 200), "gathers": (gathered, 100),
}
"""Each with a size from which on its kernels are cut."""


@pytest.mark.parametrize("program, size", PROGRAMS.values(), ids=PROGRAMS)
def test_twice_the_nodes_take_twice_the_work(program: Callable[[int], Tensor], size: int) -> None:
    """An exponent of at most 1.1, from the graph to its schedule."""
    program(20).schedule()  # imports
    small, large = (lines_run(lambda n=n: program(n).schedule())  # type: ignore[misc]
                    for n in (size, 2 * size))
    assert large < 2**1.1 * small


# --- kernels ------------------------------------------------------------------------------------------------


def operations_of_largest(tensor: Tensor) -> float:
    """What the largest of a tensor's kernels weighs."""
    return max(sum(weight_of(node.op) for node in item.ast.toposort()) for item in tensor.schedule())


def test_a_long_chain_is_kernels_of_bounded_size_that_are_alike() -> None:
    x = Tensor([0.5, 0.3]).realize()
    items = sines(x, 2000).schedule()
    assert operations_of_largest(sines(x, 2000)) <= MOST_OPERATIONS
    assert len({item.ast for item in items}) <= 3
    assert len(items) <= 2000 * 31 / (MOST_OPERATIONS / 4)
    expected = np.array([0.5, 0.3])
    for _ in range(2000):
        expected = np.sin(expected) + 1
    np.testing.assert_allclose(sines(x, 2000).numpy(), expected, rtol=1e-5)


def test_a_chain_that_is_no_larger_than_a_kernel_may_be_is_one() -> None:
    assert len(sines(Tensor([0.5, 0.3]).realize(), MOST_OPERATIONS // 32).schedule()) == 1


def test_a_chain_of_counters_is_cut_too() -> None:
    x = Tensor.arange(3).float()
    assert operations_of_largest(sines(x, 100)) <= MOST_OPERATIONS
    expected = np.arange(3.0)
    for _ in range(100):
        expected = np.sin(expected) + 1
    np.testing.assert_allclose(sines(x, 100).numpy(), expected, rtol=1e-5)


def test_steps_of_a_stencil_from_constants_on_are_kernels_of_few() -> None:
    """One kernel of all would compute the first step at 113 places for each item (26 s to compile)."""
    heat, expected = Tensor.zeros(30, 30).contiguous(), np.zeros((30, 30), np.float32)
    heat[0] = expected[0] = 1
    for _ in range(8):
        heat[1:-1, 1:-1] += (heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] - 3 * heat[1:-1, 1:-1]) / 4
        near = expected[:-2, 1:-1] + expected[2:, 1:-1] + expected[1:-1, :-2]
        expected[1:-1, 1:-1] += (near - 3 * expected[1:-1, 1:-1]) / 4
    assert len(heat.schedule()) >= 4
    np.testing.assert_allclose(heat.numpy(), expected, rtol=1e-5)


def test_the_backward_pass_of_a_long_chain_is_kernels_of_bounded_size() -> None:
    x = Tensor([0.5, 0.3]).realize()
    found = sines(x, 500).sum().gradient(x)[0]
    assert operations_of_largest(found) <= 2 * MOST_OPERATIONS
    value, slope = np.array([0.5, 0.3]), np.ones(2)
    for _ in range(500):
        value, slope = np.sin(value) + 1, slope * np.cos(value)
    np.testing.assert_allclose(found.numpy(), slope, rtol=1e-2, atol=1e-30)


def test_a_large_kernel_is_cut_where_little_is_stored() -> None:
    """Behind a sum over 1,000 items, never before it."""
    x = Tensor.ones(4, 1000).contiguous().realize()
    y = sines(x, 12).sum(1)
    items = sines(y, 40).schedule()
    assert len(items) > 1
    assert all(b.arg.size == 4 for item in items for b in item.buffers[:item.outputs])


@pytest.mark.parametrize("count", [GROUP, GROUP + 1, 2 * GROUP, 500, GROUP * GROUP + 3])
def test_many_parts_are_joined_in_order(count: int) -> None:
    rng = np.random.default_rng(count)
    parts = [rng.standard_normal((2, 1 + i % 2), dtype=np.float32) for i in range(count)]
    parts[1][0, 0] = -0.0
    found = Tensor.cat(*map(Tensor, parts), dim=1).numpy()
    np.testing.assert_array_equal(found, np.concatenate(parts, 1))
    assert np.signbit(found[0, parts[0].shape[1]])


def test_each_item_of_many_parts_chooses_between_few() -> None:
    """Not between all: that would be the square of their number."""
    items = Tensor.cat(*vectors(2000)).schedule()
    choices = [sum(node.op is Ops.WHERE for node in item.ast.toposort()) for item in items]
    written = [item.buffers[0].arg.size for item in items]
    assert sum(c * n for c, n in zip(choices, written, strict=True)) <= 4000 * 4 * GROUP


def test_the_gradient_of_many_parts_is_that_of_each() -> None:
    parts = [Tensor([float(i), 1.0], requires_grad=True) for i in range(70)]
    (Tensor.cat(*parts) * Tensor.arange(140)).sum().backward()
    found = [part.grad.tolist() for part in parts if part.grad is not None]
    assert found == [[2.0 * i, 2.0 * i + 1] for i in range(70)]


def test_values_that_many_parts_of_a_large_kernel_share() -> None:
    """Each layer uses all that were before: numbers that need Python's integers, modulo a prime."""
    values = [Tensor([1, 2]).realize()]
    expected = [np.array([1, 2], object)]
    for i in range(1, 300):
        values.append((values[-1] * 3 + values[i // 2] + values[0]) % 10007)
        expected.append((expected[-1] * 3 + expected[i // 2] + expected[0]) % 10007)
    assert operations_of_largest(values[-1]) <= 2 * MOST_OPERATIONS
    assert values[-1].tolist() == expected[-1].tolist()


# --- depth --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [DEEP // 5, pytest.param(DEEP, marks=pytest.mark.slow)])
def test_a_deep_graph_is_scheduled_printed_and_freed(nodes: int) -> None:
    deep = halved(Tensor([0.5, 0.3]).realize(), nodes)
    assert len(deep.schedule()) >= nodes // MOST_OPERATIONS
    assert "Tensor" in repr(deep)
    assert "ADD" in repr(deep.uop)
    del deep
    gc.collect()


def test_a_deep_graph_is_pickled_as_its_value() -> None:
    deep = halved(Tensor([0.5, 0.3]).realize(), DEEP // 5)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(deep)).numpy(), [2.0, 2.0])


def test_gradients_go_down_a_deep_graph() -> None:
    x = Tensor([0.5, 0.3], requires_grad=True).realize()
    y, steps = x, DEEP // 10
    for _ in range(steps):
        y = y * 1.0000001 + 1e-9
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [float(np.float32(1.0000001)) ** steps] * 2, rtol=1e-3)


@pytest.mark.slow
def test_a_deep_graph_is_captured_and_pickled() -> None:
    x = Tensor([0.5, 0.3]).realize()
    captured = TinyJit(lambda a: halved(a, DEEP).realize())
    for _ in range(3):
        np.testing.assert_allclose(captured(x).numpy(), [2.0, 2.0])
    np.testing.assert_allclose(pickle.loads(pickle.dumps(captured))(x).numpy(), [2.0, 2.0])


@pytest.mark.parametrize("device", ["CPU", ("CPU:1", "CPU:2")])
def test_results_are_views_as_deep_as_a_program_writes_them(device: str | tuple[str, ...]) -> None:
    x = Tensor(np.arange(16.0, dtype=np.float32).reshape(4, 4))
    y = ((x.shard(device, 0) if isinstance(device, tuple) else x) + 1).contiguous()
    for _ in range(1501):
        y = y.flip(1)
    assert y.tolist() == (x + 1).flip(1).tolist()
