"""Intermediates share an arena: never two at once in one place, and little more than is needed at once."""
import gc
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad import Tensor, TinyJit, nn
from tinygrad.device import Buffer, Device
from tinygrad.device.allocator import LEAST_CACHE
from tinygrad.dtype import dtypes
from tinygrad.engine import realize
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph import uop as graph_nodes
from tinygrad.helpers import GlobalCounters
from tinygrad.schedule.cache import ScheduleCache
from tinygrad.schedule.memory import ALIGNMENT, Lifetime, lifetimes, lower_bound, plan_arena


def test_what_only_takes_up_memory_is_computed_when_it_is_wanted():
    """Eight steps of a recurrence, then a table made of a row: that would fill memory all along."""
    row, x = Tensor.empty(64), Tensor.empty(32, 32)
    table = (row.reshape(64, 1) + row).contiguous()
    y = x
    for _ in range(8):
        y = (y @ x).contiguous()
    items = schedule_uops([(table.sum(0) * y.sum()).uop])
    sizes = [item.buffers[0].arg.size for item in items]
    assert sizes.index(64 * 64) > max(i for i, size in enumerate(sizes) if size == 32 * 32)


values = st.dictionaries(
    st.integers(0, 30),
    st.builds(lambda size, first, length: Lifetime(size * ALIGNMENT, first, first + length),
              st.integers(1, 50), st.integers(0, 20), st.integers(0, 10)), max_size=20)


@settings(max_examples=200, deadline=None)
@given(values)
def test_values_needed_at_once_never_overlap(needed):
    arena = plan_arena(needed)
    assert arena.offsets.keys() == needed.keys()
    for a, one in needed.items():
        assert arena.offsets[a] % ALIGNMENT == 0 and 0 <= arena.offsets[a] <= arena.size - one.size
        for b, other in needed.items():
            if a < b and one.first <= other.last and other.first <= one.last:
                assert (arena.offsets[a] + one.size <= arena.offsets[b]
                        or arena.offsets[b] + other.size <= arena.offsets[a])


@settings(max_examples=100, deadline=None)
@given(values)
def test_the_lower_bound_is_the_most_that_is_needed_at_one_step(needed):
    most = max((sum(v.size for v in needed.values() if v.first <= step <= v.last) for step in range(40)),
               default=0)
    assert lower_bound(needed) == most <= plan_arena(needed).size


def test_a_chain_needs_room_for_two():
    chain = {i: Lifetime(640, i, i + 1) for i in range(50)}
    assert plan_arena(chain).size == 1280


@pytest.mark.parametrize("seed", range(5))
def test_a_network_and_its_gradients_take_at_most_a_tenth_more_than_they_must(seed):
    """Forward values that live until their backward step, and short-lived ones of other sizes around them."""
    rng = np.random.default_rng(seed)
    steps = 60
    needed = {i: Lifetime(64 * int(rng.integers(1, 4000)), i, 2 * steps - i) for i in range(steps)}
    for i in range(steps, 3 * steps):
        first = int(rng.integers(0, 2 * steps))
        needed[i] = Lifetime(64 * int(rng.integers(1, 4000)), first, first + int(rng.integers(1, 3)))
    assert plan_arena(needed).size <= 1.1 * lower_bound(needed)


TRANSFORMER = (
    (1, 0, 1), (768, 0, 1), (2304, 1, 2), (768, 2, 3), (768, 3, 7), (1, 4, 5), (768, 4, 5),
    (3072, 5, 6), (768, 6, 7), (1, 7, 8), (768, 7, 8), (768, 7, 18), (2304, 8, 9), (768, 9, 10),
    (768, 10, 18), (1, 11, 12), (768, 11, 12), (3072, 12, 13), (768, 13, 18), (1, 14, 15), (768, 14, 15),
    (2304, 15, 16), (768, 16, 17), (768, 17, 18), (1, 18, 19), (768, 18, 19), (768, 18, 25), (3072, 19, 20),
    (768, 20, 25), (1, 21, 22), (768, 21, 22), (2304, 22, 23), (768, 23, 24), (768, 24, 25), (1, 25, 26),
    (768, 25, 26), (768, 25, 26),
)
"""(size, first, last) of what the first layers of a transformer compute, whose sums wait for each other."""


def test_what_was_placed_too_late_is_placed_first():
    needed = {i: Lifetime(64 * size, first, last) for i, (size, first, last) in enumerate(TRANSFORMER)}
    assert plan_arena(needed).size <= 1.02 * lower_bound(needed)


def test_lifetimes_run_from_the_first_use_to_the_last():
    found = lifetimes([(0, 1), (2, 0), (3,), (1, 2)], {0: 4, 2: 64, 3: 0})
    assert found == {0: Lifetime(64, 0, 1), 2: Lifetime(64, 1, 3), 3: Lifetime(64, 2, 2)}


# --- in schedules and traces --------------------------------------------------------------------------------


def conv_loss(x: Tensor, layers: list[nn.Conv2d]) -> Tensor:
    for layer in layers:
        x = layer(x).relu()
    return x.square().mean()


def test_the_arena_of_a_training_step_is_close_to_the_lower_bound():
    layers = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3), nn.Conv2d(4, 2, 3)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(layers), lr=0.1)
    loss = conv_loss(Tensor.rand(4, 2, 16, 16).realize(), layers).backward()
    sinks = [loss.uop] + [p.grad.uop for p in optimizer.params]
    schedule = ScheduleCache().schedule(sinks)
    (shared,) = schedule.intermediates
    sizes = {n: node.arg.size * node.dtype.itemsize for n, node in shared.nodes.items()}
    number = {node: n for n, node in shared.nodes.items()}
    steps = [[number[b] for b in item.buffers if b in number] for item in schedule.items]
    assert len(sizes) > 4
    assert shared.arena.size <= 1.1 * lower_bound(lifetimes(steps, sizes))
    shown = {view.base for view in schedule.views.values()}
    assert not shown & set(shared.nodes.values())


@pytest.mark.parametrize("jit", [False, True])
def test_intermediates_in_an_arena_give_the_same_numbers(jit, monkeypatch):
    monkeypatch.setattr(realize, "schedules", ScheduleCache())
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((12, 12)).astype(np.float32) * 0.3 for _ in range(5)]
    tensors = [Tensor(w) for w in weights]

    def chain(x):
        for w in tensors:
            x = (x @ w).contiguous()
            x = x - x.mean(1, keepdim=True).contiguous()
        return x

    call = TinyJit(chain) if jit else chain
    for _ in range(4):
        data = rng.standard_normal((3, 12)).astype(np.float32)
        expected = data.astype(np.float64)
        for w in weights:
            expected = expected @ w
            expected = expected - expected.mean(1, keepdims=True)
        np.testing.assert_allclose(call(Tensor(data)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_memory_used_is_exact_before_and_after_a_schedule():
    x = Tensor(np.ones((64, 64), np.int32)).realize()  # of integers: no graph is kept for gradients
    gc.collect()
    before = GlobalCounters.mem_used
    y = ((x @ x).contiguous() @ x).contiguous() @ x
    y.realize()
    gc.collect()
    assert GlobalCounters.mem_used - before == 64 * 64 * 4
    del y
    gc.collect()
    assert GlobalCounters.mem_used == before <= GlobalCounters.mem_peak


@pytest.mark.parametrize("make", [
    lambda: Tensor.arange(1013), lambda: Tensor.arange(1013).contiguous() * 2,
    lambda: Tensor.full((1013,), 7), lambda: Tensor.full((1013,), 3.5),
    lambda: Tensor.eye(31) @ Tensor.eye(31)],
    ids=["arange", "contiguous", "integers", "floats", "eye"])
def test_values_made_of_constants_give_their_memory_back(make):
    """Their kernels are kept, and made of the same nodes."""
    gc.collect()
    before = GlobalCounters.mem_used
    value = make().realize()
    assert make().numpy().tolist() == value.numpy().tolist()
    del value
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_a_part_shares_its_buffer_and_keeps_it_alive():
    whole = Buffer("CPU", 256, dtypes.uint8).allocate()
    gc.collect()
    used = GlobalCounters.mem_used
    part = whole.part(128, 4, dtypes.float32)
    assert part.address == whole.address + 128 and part.nbytes == 16 and GlobalCounters.mem_used == used
    part.copyin(np.float32([1, 2, 3, 4]).view(np.uint8).data)
    assert whole.numpy()[128:144].view(np.float32).tolist() == [1, 2, 3, 4]
    del whole
    assert GlobalCounters.mem_used == used and part.numpy().tolist() == [1, 2, 3, 4]
    del part
    assert GlobalCounters.mem_used == used - 256


def test_freed_memory_of_ever_new_sizes_does_not_pile_up():
    allocator = Device["CPU"].allocator
    for i in range(60):
        Buffer("CPU", (1 << 24) + 4096 * i, dtypes.uint8).allocate()
    assert allocator.cached_bytes <= max(LEAST_CACHE, GlobalCounters.mem_peak)
    assert allocator.cached_bytes == sum(size * len(blocks) for size, blocks in allocator.cached.items())


def test_running_out_of_memory_says_what_was_asked_used_and_cached(monkeypatch):
    allocator = Device["CPU"].allocator

    def refuse(size):
        raise MemoryError

    monkeypatch.setattr(allocator, "_obtain", refuse)
    said = r"CPU has no 987,654,336 bytes left: [\d,]+ are used and [\d,]+ cached"
    with pytest.raises(MemoryError, match=said):
        Buffer("CPU", 987_654_321, dtypes.uint8).allocate()


def test_a_buffer_that_outlives_its_module_ends_quietly():
    """At the interpreter's end the names of modules may be gone before the last buffer is."""
    buffer = Buffer("CPU", 64, dtypes.uint8).allocate()
    without_module = types.FunctionType(Buffer.__del__.__code__, {})
    without_module(buffer, lambda: True)
    assert buffer.numpy().shape == (64,)


def test_a_write_that_nobody_can_see_any_more_is_forgotten():
    def counts():
        graph_nodes._recent_numbers.clear()
        gc.collect()
        return GlobalCounters.mem_used, len(graph_nodes._interned)

    for view in (lambda t: t, lambda t: t[1:3]):
        Tensor(np.ones(1000, np.float32)).realize().assign(2.0)
        before = counts()
        for _ in range(3):
            t = Tensor(np.ones(1000, np.float32)).realize()
            view(t).assign(view(t) + 1)
            del t
        assert counts() == before
