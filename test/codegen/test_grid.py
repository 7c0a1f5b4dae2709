"""Ranges as the numbers of blocks and threads: each item is stored by one thread, and a grid is no larger
than its largest part needs."""
from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad import Tensor
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.grid import BLOCK_LIMITS, Grid, digits_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.measure import Workbench
from tinygrad.codegen.opt.opts import Local, Split, Upcast
from tinygrad.codegen.opt.plan import Plan
from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer.launch import launch_of

EXTENTS = (3, 2, 5, 4, 6)


def store(slot: int, ranges: list[UOp], value: UOp | None = None) -> UOp:
    """What stores one item a thread along `ranges`."""
    offset, size = UOp.const(0, dtypes.index), 1
    for r in reversed(ranges):
        offset, size = offset + r * size, size * r.extent
    memory = UOp.new(Ops.PARAM, dtypes.float32, (), (slot, size))
    return memory.index(offset).store(UOp.const(1.0, dtypes.float32) if value is None else value, *ranges)


def lane_sum(lanes: UOp, outer: list[UOp]) -> UOp:
    """A sum over lanes of a warp that changes with other ranges."""
    offset = lanes
    for r in outer:
        offset = offset * r.extent + r
    size = int(prod(r.extent for r in (lanes, *outer)))
    memory = UOp.new(Ops.PARAM, dtypes.float32, (), (9, size))
    return memory.index(offset).load().reduce_ranges(Ops.ADD, lanes)


def grid_of(stores: list[UOp]) -> Grid:
    return Grid(UOp.sink(stores))


def threads_of(grid: Grid) -> list[dict[UOp, UOp]]:
    """Every thread of the grid, by the values of the hardware's indices."""
    nodes = itertools.chain.from_iterable(number.toposort() for number in grid.numbers.values())
    indices = sorted({n for n in nodes if n.op is Ops.SPECIAL}, key=lambda n: n.arg)
    return [{n: UOp.const(at, dtypes.index) for n, at in zip(indices, place, strict=True)}
            for place in itertools.product(*(range(n.arg[1]) for n in indices))]


def value(node: UOp, thread: dict[UOp, UOp]) -> int:
    found = node.substitute(thread)
    assert found.op is Ops.CONST
    return int(found.arg)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(groups=st.lists(st.sets(st.integers(0, 4), max_size=3), min_size=1, max_size=4),
       kinds=st.lists(st.booleans(), min_size=5, max_size=5), lanes=st.sampled_from([0, 4]))
def test_each_item_is_stored_by_one_thread(groups, kinds, lanes):
    ranges = [UOp.range(n, i, RangeKind.LOCAL if local else RangeKind.GLOBAL)
              for i, (n, local) in enumerate(zip(EXTENTS, kinds, strict=True))]
    own = [[ranges[i] for i in sorted(group)] for group in groups]
    lane = UOp.range(lanes, 5, RangeKind.LOCAL)
    total = lane_sum(lane, own[0][:1]) if lanes else None
    stores = [store(slot, group, total if slot == 0 else None) for slot, group in enumerate(own)]
    grid = grid_of(stores)
    threads = threads_of(grid)
    for group, stored in zip(own, stores, strict=True):
        guard = grid.mask_of(stored)
        storing = [t for t in threads if value(guard, t)]
        items = sorted(tuple(value(grid.counters[r], t) for r in group) for t in storing)
        assert items == list(itertools.product(*(range(r.extent) for r in group)))
    summed: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for t in threads if lanes else ():
        number = value(grid.numbers[RangeKind.LOCAL], t)
        assert value(grid.counters[lane], t) == number % lanes
        warp = value(grid.numbers[RangeKind.GLOBAL], t), number // lanes
        summed.setdefault(warp, set()).add(tuple(value(grid.counters[r], t) for r in own[0][:1]))
    assert all(len(outputs) == 1 for outputs in summed.values())  # of which the lanes of a warp have a sum


@pytest.mark.parametrize("local,sizes", [
    ([[0], [1, 2]], [10]),  # two loops read the same numbers
    ([[0, 1], [0, 2], [0, 3]], [5, 3]),  # below a loop that all have, each has its own
    ([[0, 1], [1, 2], [2, 3]], [2, 3, 5]),  # no loop that all have: one that most do
], ids=str)
def test_a_block_is_as_large_as_its_largest_part(local, sizes):
    ranges = [UOp.range(n, i, RangeKind.LOCAL) for i, n in enumerate(EXTENTS)]
    groups = [[ranges[i] for i in group] for group in local]
    grid = grid_of([store(slot, group) for slot, group in enumerate(groups)])
    assert len(threads_of(grid)) == prod(sizes)


def test_lanes_that_exchange_values_do_not_multiply_with_loops_that_follow():
    lanes, part, items = (UOp.range(n, i, RangeKind.LOCAL) for i, n in enumerate((32, 2, 256)))
    sums = lane_sum(lanes, [part])
    grid = grid_of([store(0, [part], sums), store(1, [items])])
    assert len(threads_of(grid)) == 256
    assert grid.lane_distances(lanes) == [1, 2, 4, 8, 16]


def test_warps_are_whole_where_their_lanes_work_together():
    lanes, items = UOp.range(8, 0, RangeKind.LOCAL), UOp.range(13, 1, RangeKind.LOCAL)
    assert len(threads_of(grid_of([store(0, [], lane_sum(lanes, [])), store(1, [items])]))) == 16


def test_an_axis_that_the_hardware_has_not_is_taken_from_one_number():
    ranges = [UOp.range(n, i, RangeKind.LOCAL) for i, n in enumerate((100, 2, 2))]
    grid = grid_of([store(0, ranges)])
    sizes = [n.arg[1] for n in grid.numbers[RangeKind.LOCAL].toposort() if n.op is Ops.SPECIAL]
    assert sizes == [400] and BLOCK_LIMITS[2] < 100


def test_digits_of_no_range_are_none():
    assert digits_of([frozenset()], lambda r: (True, 0, 0, 0), frozenset()) == ()


def test_a_search_skips_plans_for_more_threads_than_a_block_has():
    nest = lower(schedule_uops([(Tensor.empty(40, device="PYTHON:BLOCKS") + 1).uop])[0].ast)
    small, large = (Plan((Local(0, threads),)) for threads in (16, 32))
    bench = Workbench(nest, "PYTHON:BLOCKS")
    with pytest.raises(RuntimeError, match="blocks of 32 threads, and plans for this device put 16 into one"):
        bench.write(nest, large)
    assert [built.plan for built in bench.build_all([large, small], 100)] == [small]


def batch_norm(x: Tensor) -> Tensor:
    centred = x - x.mean((0, 2, 3), keepdim=True)
    return centred * (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()


SHAPES = {
    "attention": ((4, 256, 64), lambda x: x.scaled_dot_product_attention(x, x, is_causal=True)),
    "batch norm": ((4, 16, 14, 14), batch_norm),
    "convolution": ((1, 64, 28, 28), lambda x: x.conv2d(Tensor.empty(64, 64, 1, 1, device=x.device))),
    "norm of all": ((16, 16, 16), lambda x: x.layernorm(axis=(0, 1, 2))),
    "running sums": ((8192,), lambda x: x.cumsum(0)),
    "sums spread again": ((7, 40), lambda x: x.sum(1, keepdim=True).expand(7, 100)),
}


@pytest.mark.parametrize("device", ["PYTHON:BLOCKS", "PYTHON:CUDA", "PYTHON:AMD", "PYTHON:METAL"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_no_gradient_asks_for_more_threads_than_a_block_has(name, device):
    shape, compute = SHAPES[name]
    x = Tensor.empty(*shape, device=device, requires_grad=True)
    y = compute(x)
    most = Device[device].renderer.machine.block_threads
    for item in schedule_uops([y.uop, y.sum().gradient(x)[0].uop, y.square().sum().gradient(x)[0].uop]):
        launch = launch_of(stages_of(item.ast, device).program)
        assert prod(launch.threads) <= most


def test_sums_of_fewer_threads_share_the_loops_of_others():
    # nine columns, two of a thread, by four threads at once: the last tile is the same whichever thread asks
    a, b = (Tensor.empty(*shape, device="PYTHON:BLOCKS") for shape in ((8, 16), (16, 9)))
    nest = lower(schedule_uops([(a @ b).uop])[0].ast)
    chooser = Chooser(nest, Device["PYTHON:BLOCKS"].renderer.machine)
    (total,), column = nest.nodes_of(Ops.REDUCE), chooser.loops[1]
    inside, _ = chooser.split(Split, total.closed_ranges[0], 4)
    chooser.stage(chooser.operands_along((column, inside))[0], (column, inside), 4, 1)
    chooser.split_off(Upcast, chooser.split_off(Local, chooser.split_off(Upcast, column, 2), 4))
    bench = Workbench(nest, "PYTHON:BLOCKS")
    assert bench.is_right(bench.build(nest, Plan(tuple(chooser.opts))))
