"""Tensors on several devices (`Tensor.shard`): values, gradients, writes and captured functions are those of
one device; parts lie where they were put; what cannot be is refused by name."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from several_devices import TWO, items_of, lies, numbers
from several_devices import memories as memories

from tinygrad import Tensor, TinyJit, dtypes, nn
from tinygrad.codegen.compile import compiled_kernel
from tinygrad.device import Device
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import even_spans
from tinygrad.helpers import Context
from tinygrad.nn import optim, state
from tinygrad.schedule.items import ScheduleItem

THREE = ("CPU", "CPU:1", "CPU:2")


@pytest.fixture
def own_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that exchange values, for a test of what they exchange."""
    monkeypatch.setattr(Device, "ONE_MEMORY", frozenset())


# --- random programs ------------------------------------------------------------------------------


def _swapped(x: Any, a: int, b: int) -> Any:
    order = list(range(x.ndim))
    i, j = a % x.ndim, b % x.ndim
    order[i], order[j] = order[j], order[i]
    return x.permute(order) if isinstance(x, Tensor) else x.transpose(order)


def _cut(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    start = b % x.shape[axis]
    return x[tuple(slice(start, None) if i == axis else slice(None) for i in range(x.ndim))]


def _every_other(x: Any, a: int, b: int) -> Any:
    step = -2 if b % 2 else 2
    return x[tuple(slice(None, None, step) if i == a % x.ndim else slice(None) for i in range(x.ndim))]


def _padded(x: Any, a: int, b: int) -> Any:
    pads = tuple((b % 2, b % 3) if i == a % x.ndim else (0, 0) for i in range(x.ndim))
    return x.pad(pads) if isinstance(x, Tensor) else np.pad(x, pads)


def _merged(x: Any, a: int, b: int) -> Any:
    axis = a % max(x.ndim - 1, 1)
    if x.ndim < 2:
        return x
    return x.reshape((*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2:]))


def _taken_apart(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    size = x.shape[axis]
    inner = next((n for n in (2, 3) if size % n == 0), 1)
    return x.reshape((*x.shape[:axis], size // inner, inner, *x.shape[axis + 1:])) if x.ndim < 5 else x


def _minus_reduced(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    if isinstance(x, Tensor):
        return x - (x.max(axis, keepdim=True) if b % 2 else x.mean(axis, keepdim=True))
    return x - (x.max(axis, keepdims=True) if b % 2 else x.mean(axis, keepdims=True))


def _joined(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    return x.cat(x * 2, dim=axis) if isinstance(x, Tensor) else np.concatenate([x, x * 2], axis)


def _times_shifted(x: Any, a: int, b: int) -> Any:
    axis = a % x.ndim
    return x * (x.roll(1, axis) if isinstance(x, Tensor) else np.roll(x, 1, axis))


def _gram(x: Any, a: int, b: int) -> Any:
    rows = x.reshape((x.shape[0], -1))
    return rows @ (rows.T if isinstance(x, np.ndarray) else rows.transpose(0, 1)) * 0.1


def _summed(x: Any, a: int, b: int) -> Any:
    return x.sum(a % x.ndim) if x.ndim > 1 else x


STEPS: dict[str, Callable[[Any, int, int], Any]] = {
    f.__name__: f for f in (_swapped, _cut, _every_other, _padded, _merged, _taken_apart, _minus_reduced,
                            _joined, _times_shifted, _gram, _summed)}


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int | None, list[tuple[str, int, int]]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    count = draw(st.integers(2, 3))
    axes = [i for i, n in enumerate(shape) if n >= count]
    axis = draw(st.sampled_from([None, *axes]))
    number = st.integers(0, 5)
    return shape, count, axis, draw(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), number, number),
                                             min_size=1, max_size=4))


def _run(x: Any, steps: list[tuple[str, int, int]]) -> Any:
    for name, a, b in steps:
        if 0 in x.shape or x.size > 3000 if isinstance(x, np.ndarray) else 0 in x.shape or x.numel() > 3000:
            break
        x = STEPS[name](x, a, b)
    return x


@settings(max_examples=30, deadline=None)
@given(programs())
def test_random_programs_give_what_numpy_gives(program: Any) -> None:
    shape, count, axis, steps = program
    data = np.random.default_rng(1).normal(size=shape)
    expected = _run(data, steps)
    result = _run(Tensor(data).shard(THREE[:count], axis), steps)
    assert result.device == THREE[:count]
    np.testing.assert_allclose(result.realize().numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(programs())
def test_gradients_of_random_programs_are_those_of_one_device(program: Any) -> None:
    shape, count, axis, steps = program
    devices = THREE[:count]
    data = np.random.default_rng(1).normal(size=shape)
    x, y = Tensor(data).realize(), Tensor(data).shard_(devices, axis)
    one, several = _run(x, steps), _run(y, steps)
    weights = np.random.default_rng(2).normal(size=one.shape)
    (one * Tensor(weights)).sum().backward()
    (several * Tensor(weights).shard(devices)).sum().backward()
    assert x.grad is not None and y.grad is not None
    np.testing.assert_allclose(several.numpy(), one.numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(y.grad.realize().numpy(), x.grad.numpy(), rtol=1e-8, atol=1e-8)


# --- where values lie -----------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(1, 8))
def test_parts_differ_by_one_item_at_most(size: int, count: int) -> None:
    spans = even_spans(size, count)
    assert [n for start, end in spans for n in range(start, end)] == list(range(size))
    sizes = [end - start for start, end in spans]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_a_sharded_tensor_has_the_whole_shape_and_the_names_of_its_devices(own_memories: None) -> None:
    t = Tensor(numbers(5, 3)).shard_(("cpu:0", "CPU:1"), axis=-2)
    assert (t.shape, t.device, len(t), lies(t)) == ((5, 3), TWO, 5, (0, ((0, 3), (3, 5))))
    assert lies(t.shard(TWO)) == (None, ())
    assert [p.shape for p in t.realize().uop.base.shards] == [(3, 3), (2, 3)]
    assert [p.device for p in t.uop.base.shards] == ["CPU", "CPU:1"]
    assert Tensor(numbers(2)).shard(("CPU:1",), 0).device == "CPU:1"


def test_printing_shows_values_that_are_computed() -> None:
    t = Tensor([[1, 2], [3, 4], [5, 6]]).shard(TWO, 1)
    assert repr(t) == "<Tensor ('CPU', 'CPU:1') int32 (3, 2) lazy>"
    assert repr(t.realize()) == "<Tensor ('CPU', 'CPU:1') int32 (3, 2) [[1, 2],\n [3, 4],\n [5, 6]]>"


def test_movement_elementwise_and_reduces_of_other_axes_keep_the_cut() -> None:
    t = Tensor(numbers(4, 6, 2)).shard(TWO, 1).realize()
    assert lies(t.permute(1, 0, 2))[0] == 0
    assert lies(t.reshape(4, 2, 3, 2)) == (1, ((0, 1), (1, 2)))
    assert lies(t.reshape(4, 12)) == (1, ((0, 6), (6, 12)))
    assert lies(t.flip(1)) == (1, ((3, 6), (0, 3)))
    assert lies(t[:, 2:]) == (1, ((0, 1), (1, 4)))
    assert lies((t * 2 + 1).sum((0, 2)))[0] == 0
    assert lies(t.sum(1))[0] is None
    assert lies(t.reshape(24, 2))[0] is None, "rows of two devices take turns: gathered"


@pytest.mark.parametrize("folded", [
    lambda x: x * 0, lambda x: x.cummax(1)[1], lambda x: x ^ x, lambda x: (x < x).where(x, 3)],
    ids=["product", "places", "xor", "choice"])
@pytest.mark.parametrize("devices", ["PYTHON:1", ("PYTHON:1", "PYTHON:2")], ids=str)
def test_what_folds_to_constants_lies_where_its_operands_do(
        folded: Callable[[Tensor], Tensor], devices: Any) -> None:
    array = numbers(4, 1, 1).astype(np.int32)
    x = Tensor(array).to(devices) if isinstance(devices, str) else Tensor(array).shard(devices, 0)
    value = folded(x.realize()).realize()
    homes = [shard.device for shard in value.uop.base.shards]
    assert value.device == devices and homes == ([devices] if isinstance(devices, str) else list(devices))
    np.testing.assert_array_equal((value + x).numpy(), folded(Tensor(array)).numpy() + array)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_what_another_device_reads_before_it_is_written_is_written_where_it_lies(axis: int | None) -> None:
    """A part of a value, of which a device without any of it needs what it was."""
    array = numbers(2, 3, 2)
    x = Tensor(array).shard(("PYTHON:1", "PYTHON:2"), axis).realize() * 2
    part = x[:, 1:2, ::2].realize()
    repeated = part + x.repeat(1, 2, 1)
    part.assign(part + 1)
    repeated.realize(part)
    expected = array[:, 1:2, ::2] * 2
    np.testing.assert_array_equal(part.numpy(), expected + 1)
    np.testing.assert_array_equal(repeated.numpy(), expected + np.tile(array * 2, (1, 2, 1)))


def copies_of(items: list[ScheduleItem]) -> list[int]:
    """How many items each copy moves."""
    return [item.buffers[0].arg.size for item in items if item.ast.op is Ops.COPY]


def test_equal_parts_run_the_same_kernels_and_copy_nothing(own_memories: None) -> None:
    x, w = Tensor(numbers(8, 6)).shard(TWO, 0).realize(), Tensor(numbers(6, 4)).shard(TWO).realize()
    items = items_of((x @ w + Tensor(numbers(4)).shard(TWO).realize()).softmax())
    assert [i.device for i in items] == list(TWO) and items[0].ast is items[1].ast


def test_kernels_of_devices_of_one_kind_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(numbers(2, 37)).shard(TWO, 0).realize()
    with Context(CACHELEVEL=0):
        items = items_of((x * 3 + x.exp2()).sum(1))
        first = compiled_kernel(items[0].ast, items[0].device)
        monkeypatch.setattr("tinygrad.codegen.compile.write_kernel", None)
        assert compiled_kernel(items[1].ast, items[1].device).written == first.written


def test_weights_cut_by_columns_then_rows_need_one_all_reduce(own_memories: None) -> None:
    x = Tensor(numbers(4, 8)).shard(TWO).realize()
    columns, rows = (Tensor(numbers(8, 8)).shard(TWO, axis).realize() for axis in (1, 0))
    items = items_of((x @ columns).relu() @ rows)
    assert copies_of(items) == [32, 32], "the partial products"
    first_copy = next(n for n, item in enumerate(items) if item.ast.op is Ops.COPY)
    assert {i.device for i in items[:first_copy]} == set(TWO), "no device waits before both have theirs"


@pytest.mark.parametrize("op", ["sum", "max", "prod"])
def test_large_partial_results_are_summed_in_parts(own_memories: None, op: str) -> None:
    data = numbers(6, 20_000)
    t = Tensor(data).shard(THREE, 0).realize()
    reduced: Tensor = getattr(t, op)(0)
    moved = copies_of(items_of(reduced))
    assert max(moved) <= 6_667 and sum(moved) == 2 * 2 * 20_000
    np.testing.assert_allclose(reduced.numpy(), getattr(data, op)(0), rtol=1e-12, atol=1e-14)
    held = storage_view(reduced.detach().realize().uop)
    assert held is not None
    first, *others = [m.buffer.copied() for m in held.viewed.memories if m.buffer]
    assert len(others) == 2 and all(np.array_equal(other, first) for other in others), "the same bits"


def training_steps(devices: tuple[str, ...]) -> Callable[[], list[Tensor]]:
    """What a step of training assigns, on its way to be computed: two layers, SGD with momentum."""
    x, y = Tensor(numbers(16, 6)).shard(devices, 0), Tensor(numbers(16, 3)).shard(devices, 0)
    layers = nn.Linear(6, 8), nn.Linear(8, 3)
    for p in state.get_parameters(layers):
        p.shard_(devices)
    optimizer = optim.SGD(state.get_parameters(layers), lr=0.1, momentum=0.9)
    Tensor.realize(x, y)

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        (layers[1](layers[0](x).relu()) - y).square().mean().backward()
        return optimizer.schedule_step()

    return step


def test_steps_take_kernels_and_copies_in_proportion_to_devices() -> None:
    counts = []
    with Tensor.train():
        for count in (2, 4, 8):
            items = items_of(*training_steps(tuple(f"CPU:{i}" for i in range(count)))())
            counts.append(np.array([len(items), len(copies_of(items))]))
    two, four, eight = counts
    assert (eight - four <= 2.2 * (four - two)).all()


def test_what_is_whole_on_devices_of_one_memory_is_there_once_and_updated_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "ONE_MEMORY", frozenset({"CPU"}))
    with Tensor.train():
        one, four = (items_of(*training_steps(tuple(f"CPU:{i}" for i in range(count)))())
                     for count in (1, 4))
    written = [{b.arg.size for b in item.buffers[:item.outputs] if b.buffer is not None}
               for item in four if item.ast.op is not Ops.COPY]
    assert not copies_of(four) and {item.device for item in four} == {"CPU"}
    assert sum(48 in sizes for sizes in written) == 1, "the weights of the first layer"
    assert len(four) < 4 * len(one)
    w = Tensor(numbers(3)).shard_(THREE).realize()
    assert len(w.uop.base.memories) == 1 and w.to("CPU:2").tolist() == w.tolist()


def test_a_step_like_the_one_before_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    step = training_steps(THREE)
    with Tensor.train():
        for _ in range(2):
            Tensor.realize(*step())
        monkeypatch.setattr("tinygrad.schedule.cache.ShardedResults", None)
        Tensor.realize(*step())


@pytest.mark.parametrize("jit", [False, True])
def test_crops_at_other_places_are_cut_there(jit: bool) -> None:
    data = numbers(12, 3)
    x = Tensor(data).realize()

    def total(rows: Tensor) -> Tensor:
        return (rows.shard(TWO, 0) * 2).sum(0).realize()

    run = TinyJit(total) if jit else total
    for start in (0, 4, 8):
        np.testing.assert_allclose(run(x[start:start + 4]).numpy(), 2 * data[start:start + 4].sum(0))


def test_gathering_a_weight_copies_it_before_it_is_repeated(own_memories: None) -> None:
    x = Tensor(numbers(64, 8)).shard(TWO, 0).realize()
    w = Tensor(numbers(4, 8)).shard(TWO, 0).realize()
    assert copies_of(items_of(x @ w.transpose(0, 1))) == [16, 16]


def test_half_types_are_summed_over_devices_in_float32() -> None:
    ones = Tensor(np.ones(4096, np.float16)).shard(TWO, 0)
    assert ones.sum(dtype=dtypes.float32).item() == 4096
    assert (ones * 0.1).sum().item() == pytest.approx(409.6, rel=1e-3)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_of_a_reduced_value_devices_get_their_spans(own_memories: None, count: int, op: str) -> None:
    devices = tuple(f"CPU:{i}" for i in range(count))
    data = numbers(12, 240)
    t = Tensor(data).shard(devices, 0).realize()
    whole: Tensor = getattr(t, op)(0)
    part = (whole * 2).reshape(24, 10).shard(devices, 0)
    assert sum(copies_of(items_of(part))) == (count - 1) * 240, "a reduce-scatter"
    np.testing.assert_allclose(part.numpy(), 2 * getattr(data, op)(0).reshape(24, 10), rtol=1e-12)
    both = items_of(whole + 1, whole.shard(devices, 0) * 3)
    assert sum(copies_of(both)) == 2 * (count - 1) * 240, "an all-reduce, of which each device has its span"


def test_one_item_of_several_devices_is_repeated() -> None:
    data = numbers(4, 3)
    t = Tensor(data).shard(TWO, 0).realize()
    np.testing.assert_array_equal(t[3:].expand(5, 3).contiguous().numpy(), np.broadcast_to(data[3:], (5, 3)))
    np.testing.assert_array_equal(t.pad(((1, 2), (0, 0)), mode="replicate").numpy(),
                                  np.pad(data, ((1, 2), (0, 0)), "edge"))


# --- the surface ----------------------------------------------------------------------------------


INDEX = np.array([3, 0, 5, 1, 1, 2], np.int32)

SURFACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda x, i: x.softmax(0) + x.log_softmax(1),
    "layernorm": lambda x, i: x.layernorm(),
    "batchnorm": lambda x, i: (x - x.mean(0)) * x.var(0, correction=0).rsqrt(),
    "argmax": lambda x, i: x.argmax(0),
    "any": lambda x, i: (x > 1).any(0),
    "sort": lambda x, i: x.sort(0)[0],
    "cumsum": lambda x, i: x.cumsum(0),
    "rows": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i.reshape(6, 1)),
    "scatter": lambda x, i: x.scatter_reduce(0, i.reshape(6, 1).expand(6, 4), x, "sum"),
    "one item": lambda x, i: x[-1, 2] + x[0],
    "cross entropy": lambda x, i: x.sparse_categorical_crossentropy(i % 4),
    "causal": lambda x, i: x.scaled_dot_product_attention(x, x, is_causal=True),
    "qr": lambda x, i: x.qr()[1],
    "halves": lambda x, i: x.bitcast(dtypes.uint64).bitwise_and(2**52).bool(),
    "mask": lambda x, i: x.masked_fill(x > 0, -1).tril(),
}


@pytest.mark.parametrize("name", SURFACE)
def test_functions_give_what_they_give_on_one_device(name: str) -> None:
    data = np.random.default_rng(3).normal(size=(6, 4))
    expected = SURFACE[name](Tensor(data), Tensor(INDEX)).numpy()
    for axis in (0, 1, None):
        x, i = Tensor(data).shard(TWO, axis), Tensor(INDEX).shard(TWO, 0 if axis == 0 else None)
        result = SURFACE[name](x, i)
        assert result.device == TWO
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [2, 3, 5])
def test_a_cut_axis_is_sorted(rows: int, axis: int) -> None:
    data = np.random.default_rng(rows).integers(-3, 4, (rows, 2)).astype(np.float32)
    values, places = Tensor(data).shard(THREE[:2], 0).sort(axis, descending=True)
    order = np.argsort(-data, axis, kind="stable")
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(data, order, axis))


def test_constants_mix_with_values_on_several_devices() -> None:
    data = numbers(4, 3)
    t = Tensor(data).shard(TWO, 0)
    np.testing.assert_allclose((1 - t * Tensor.arange(3) + Tensor.full((4, 1), 2.0)).numpy(),
                               1 - data * np.arange(3) + 2)


def test_random_numbers_are_those_of_the_first_device() -> None:
    t = Tensor(numbers(4, 6)).float().shard(TWO, 0).realize()
    for draw in (lambda x: x.rand_like(), lambda x: x.dropout(0.5) + x):
        found = []
        for x in (t, t.to("CPU")):
            Tensor.manual_seed(5)
            with Tensor.train():
                found.append(draw(x))
        assert found[0].device == TWO
        np.testing.assert_array_equal(found[0].realize().numpy(), found[1].numpy())


def test_a_draw_of_no_device_is_the_same_on_all() -> None:
    noise = Tensor.rand(6, dtype=dtypes.float64)
    t = Tensor(numbers(6)).shard(TWO, 0)
    np.testing.assert_allclose((t + noise).numpy(), t.numpy() + noise.numpy())


def test_constructors_take_several_devices() -> None:
    assert Tensor([1.0, 2.0, 3.0], device=TWO).tolist() == [1, 2, 3]
    assert Tensor.zeros(2, device=TWO).contiguous().realize().device == TWO
    assert Tensor.empty(3, device=TWO).assign(4.0).tolist() == [4, 4, 4]
    assert Tensor.arange(3, device=TWO).realize().tolist() == [0, 1, 2]
    like = Tensor(numbers(6, 2)).shard(TWO, 0).empty_like()
    assert lies(like) == (0, ((0, 3), (3, 6)))


def test_values_without_items() -> None:
    none = Tensor(numbers(4, 3)).shard(TWO, 0)[2:2]
    assert none.numpy().shape == (0, 3) and (none + 1).realize().shape == (0, 3)
    assert none.sum(0).tolist() == [0, 0, 0] and none.sum().item() == 0
    assert none.pad(((1, 2), (0, 0)), value=3.0).tolist() == [[3] * 3] * 3


# --- moving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, None])
def test_moving_between_layouts_and_devices_keeps_the_values(axis: int | None) -> None:
    data = numbers(5, 4)
    t = Tensor(data).shard(TWO, axis).realize()
    for devices in (TWO, THREE[::-1], ("CPU:3",)):
        for other in (0, 1, None):
            moved = t.shard(devices, other).realize()
            np.testing.assert_array_equal(moved.numpy(), data)
    for device in ("CPU", "CPU:2"):
        moved = t.to(device)
        assert moved.device == device
        np.testing.assert_array_equal(moved.numpy(), data)
    assert t.to(TWO) is t and t.to(THREE).device == THREE


def test_what_was_gathered_is_no_view_of_the_memory() -> None:
    t = Tensor(np.ones(4)).shard_(TWO).realize()
    t.requires_grad = False
    gathered, again = t.to("CPU").realize(), t.shard(TWO).realize()
    t.assign(t * 5).realize()
    assert (gathered.tolist(), again.tolist(), t.tolist()) == ([1] * 4, [1] * 4, [5] * 4)


def test_equal_values_are_tensors_of_their_own() -> None:
    tensors = [Tensor.ones(4).shard_(TWO) for _ in range(3)]
    tensors[0].realize(*tensors[1:])
    for i, t in enumerate(tensors):
        t.assign(t.detach() * i).realize()
    assert [t.tolist() for t in tensors] == [[i] * 4 for i in range(3)]


def test_copies_and_weights_in_files_keep_the_values(tmp_path: Path) -> None:
    t = Tensor(numbers(4, 2)).shard(TWO, 0).realize()
    for other in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t)), t.clone()):
        assert other.device == TWO
        assert lies(other)[0] == 0
        np.testing.assert_array_equal(other.numpy(), t.numpy())
    state.safe_save({"t": t}, str(tmp_path / "t.safetensors"))
    np.testing.assert_array_equal(state.safe_load(tmp_path / "t.safetensors")["t"].numpy(), t.numpy())


def test_loading_a_state_leaves_parameters_cut_as_they_are() -> None:
    layer = nn.Linear(4, 6)
    layer.weight.shard_(TWO, 0)
    weight = numbers(6, 4).astype(np.float32)
    for _ in range(2):  # first lazy, then in memory
        state.load_state_dict(layer, {"weight": Tensor(weight), "bias": Tensor.zeros(6)})
        assert lies(layer.weight) == (0, ((0, 3), (3, 6)))
        np.testing.assert_array_equal(layer.weight.numpy(), weight)


# --- writing --------------------------------------------------------------------------------------


WRITES: dict[str, Callable[[Any], Any]] = {
    "all": lambda t: t.__iadd__(3),
    "row": lambda t: t.__setitem__(0, 5.0),
    "item": lambda t: t.__setitem__((4, 2), 5.0),
    "box": lambda t: t.__setitem__((slice(1, 5), slice(0, 3)), -1.0),
    "column": lambda t: t.__setitem__((slice(None), 1), 7.0),
    "backwards": lambda t: t.__setitem__(slice(None, None, -2), 2.0),
    "mask": lambda t: t.__setitem__(t > 0, 9.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_reach_the_memory_of_every_device(name: str) -> None:
    data = np.random.default_rng(4).normal(size=(6, 4))
    expected = data.copy()
    WRITES[name](expected)
    for axis in (0, 1, None):
        t = Tensor(data, requires_grad=False).shard_(TWO, axis).realize()
        memory, before = t.uop.viewed.storage, t + 1
        WRITES[name](t)
        np.testing.assert_array_equal(t.numpy(), expected)
        np.testing.assert_allclose(before.numpy(), data + 1)
        assert t.uop.viewed.storage is memory and t.device == TWO


# --- what is refused ------------------------------------------------------------------------------


def test_operands_on_one_device_and_on_several_do_not_mix() -> None:
    with pytest.raises(ValueError, match=r"ADD of values on different devices: \('CPU', 'CPU:1'\), CPU; "
                                         r"spread the other with .shard\(devices\), whole on each, or"):
        Tensor([1.0, 2.0]).shard(TWO) + Tensor([1.0, 2.0])


@pytest.mark.parametrize("devices, axis, message", [
    (("CPU", "CPU:0"), 0, "each once, got .* where CPU comes twice"),
    ((), 0, "takes their names, each once"),
    (("CPU", "TOASTER"), 0, "'TOASTER' is not the name of a device"),
    (THREE, 1, r"shard along axis 1 of shape \(4, 2\): .* an item for each of the 3 devices"),
])
def test_what_cannot_be_cut_is_refused(devices: tuple[str, ...], axis: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tensor(numbers(4, 2)).shard(devices, axis)
    with pytest.raises(ValueError, match="a 0-d tensor has no axis to cut"):
        Tensor(1.0).shard(TWO, 0)
    with pytest.raises(IndexError, match="axis 2 is not in"):
        Tensor(numbers(4, 2)).shard(TWO, 2)


def test_a_leaf_that_is_moved_stays_one() -> None:
    for move in (lambda t: t.to_("CPU:1"), lambda t: t.shard_(TWO, 0), lambda t: t.shard_(TWO).to_("CPU")):
        leaf = move(Tensor([1.0, 2.0]))
        (leaf * leaf).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [2, 4] and leaf.grad.device == leaf.device


def test_an_axis_cut_down_to_one_item_can_be_repeated() -> None:
    data = numbers(4, 5).astype(np.float32)
    row = Tensor(data).shard(THREE, 0)[1:2]
    found = row.minimum(Tensor.cat(row, -row, dim=0))
    expected = np.minimum(data[1:2], np.concatenate([data[1:2], -data[1:2]]))
    np.testing.assert_array_equal(found.numpy(), expected)


def test_what_was_written_through_a_flipped_view_is_copied_in_its_order() -> None:
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    one = Tensor(data.copy())
    view = one[::-1]
    view += 1
    np.testing.assert_array_equal(view.to("PYTHON").numpy(), data[::-1] + 1)
    several = Tensor(data.copy()).shard(THREE, 1)[:, ::-1]
    several += several
    expected = 2 * data[:, ::-1]
    np.testing.assert_array_equal(Tensor.cat(several, several, dim=1).numpy(),
                                  np.concatenate([expected, expected], axis=1))


@pytest.mark.parametrize("axis", [None, 0])
def test_a_part_of_what_repeats_items_has_memory_of_its_own_to_write_into(axis: int | None) -> None:
    items = np.arange(5)
    x = Tensor(items).shard(TWO, axis)
    rolled = x.roll(3, 0)  # a part of the items repeated
    rolled[None, 1:] = 7
    np.testing.assert_array_equal(rolled.numpy(), [2, 7, 7, 7, 7])
    np.testing.assert_array_equal(x.numpy(), items)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_what_is_looked_up_by_copies_that_its_kernel_stores(axis: int | None) -> None:
    items = np.random.default_rng(0).integers(0, 9, (2, 5))
    x = Tensor(items).shard(TWO, axis)
    table = x + x.contiguous()
    np.testing.assert_array_equal(table[x % 2].numpy(), (items * 2)[items % 2])
