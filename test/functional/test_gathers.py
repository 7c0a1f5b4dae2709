"""Items gathered at computed places, many of them nowhere: zeros there, and memory is touched inside only.

`PYTHON` raises where a kernel leaves its buffers, so that the same programs run there too.
"""
from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from arrays import normal

from tinygrad import Context, GlobalCounters, Tensor, Variable, dtypes
from tinygrad.codegen import compile as compiler
from tinygrad.codegen.lower import lower
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import value_of
from tinygrad.graph.uop import UOp
from tinygrad.schedule.items import ScheduleItem

Array = np.ndarray[Any, Any]
NOWHERE = (5, -6, 10**9, 2**40, -(2**45))
DEVICES = (None, "PYTHON")
"""that which DEV names, and the one that checks"""


def take(x: Array, at: Array) -> Array:
    """x[at], zero where that is outside."""
    places = np.where(at < 0, at + len(x), at)
    inside = (places >= 0) & (places < len(x))
    return np.where(inside.reshape(inside.shape + (1,) * (x.ndim - 1)), x[np.where(inside, places, 0)], 0)


class Gathers:
    """Draws rows of places, as a tensor and as an array, and what is read at them."""

    def __init__(self, seed: int, device: str | None) -> None:
        self.random = np.random.default_rng(seed)
        self.device = device

    def given(self, x: Array) -> tuple[Tensor, Array]:
        return Tensor(x.copy(), device=self.device), x

    def places(self, depth: int) -> tuple[Tensor, Array]:
        kinds = (self.drawn, self.gathered, self.turned, self.padded, self.chosen, self.added, self.selected)
        kind = kinds[self.random.integers(len(kinds))] if depth else self.drawn
        return kind(depth - 1)

    def drawn(self, _: int) -> tuple[Tensor, Array]:
        size = int(self.random.integers(1, 6))
        good, nowhere = self.random.integers(-5, 5, size), self.random.choice(NOWHERE, size)
        return self.given(np.where(self.random.random(size) < 0.3, nowhere, good))

    def gathered(self, depth: int) -> tuple[Tensor, Array]:
        (t, x), (u, y) = self.places(depth), self.places(depth)
        return t[u], take(x, y)

    def turned(self, depth: int) -> tuple[Tensor, Array]:
        t, x = self.places(depth)
        return t.flip(0), x[::-1]

    def padded(self, depth: int) -> tuple[Tensor, Array]:
        t, x = self.places(depth)
        return t.pad((1, 2)), np.pad(x, (1, 2))

    def chosen(self, depth: int) -> tuple[Tensor, Array]:
        t, x = self.places(depth)
        return (t < 2).where(t, -t), np.where(x < 2, x, -x)

    def added(self, depth: int) -> tuple[Tensor, Array]:
        (t, x), (u, y) = self.places(depth), self.places(depth)
        size = min(len(x), len(y))
        return t[:size] + u[:size], x[:size] + y[:size]

    def selected(self, depth: int) -> tuple[Tensor, Array]:
        """The items whose place equals one of others, and of which a third value is small."""
        (t, x), (u, y), (v, z) = (self.places(depth) for _ in range(3))
        size = min(len(x), len(z))
        few, are_few = (v[:size] < 3).pad((0, len(x) - size)), np.pad(z[:size] < 3, (0, len(x) - size))
        here = (Tensor.arange(len(x), device=self.device) == u.reshape(-1, 1)) & few
        are_here = (np.arange(len(x)) == y[:, None]) & are_few
        return here.where(t, 0).sum(1), np.where(are_here, x, 0).sum(1)

    def rows(self) -> tuple[Tensor, Array]:
        return self.given(self.random.integers(-50, 50, (self.random.integers(1, 7), 3)).astype(np.float32))

    def program(self) -> tuple[Tensor, Array]:
        """Places, rows at them, the sum of these, or rows that are written at some."""
        kind = self.random.integers(4)
        if kind == 0:
            return self.places(3)
        t, x = self.rows()
        u, y = self.places(3)
        if kind == 1:
            return t[u], take(x, y)
        if kind == 2:
            return t[u].sum(0), take(x, y).sum(0)
        (v, z), (w, at) = self.rows(), self.places(2)
        size = min(len(y), len(at))
        t[u.clip(-len(x), len(x) - 1)[:size]] = v[w[:size]]
        x = x.copy()
        x[y.clip(-len(x), len(x) - 1)[:size]] = take(z, at[:size])
        return t, x


def check(seeds: range, device: str | None) -> None:
    for seed in seeds:
        found, expected = Gathers(seed, device).program()
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=f"program {seed}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("part", range(4))
def test_random_gathers(part: int, device: str | None) -> None:
    """On a device that DEV names, whose compiler may take long, some of them."""
    check(range(part * 50, part * 50 + (15 if os.getenv("DEV") else 50)), device)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_many_random_gathers(device: str | None) -> None:
    check(range(200, 3000), device)


# --- found before ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_what_says_where_to_read_is_read_inside_too(device: str | None) -> None:
    """Which item is written at each place is looked up, and then what was gathered for it."""
    x, y = np.arange(3), np.arange(3) * 7
    t, u = Tensor(x.copy(), device=device), Tensor(y, device=device)
    t[[0, 1]] = u[[0, 1]]
    x[[0, 1]] = y[[0, 1]]
    np.testing.assert_array_equal(t.numpy(), x)


@pytest.mark.parametrize("device", DEVICES)
def test_conditions_on_items_are_read_inside_too(device: str | None) -> None:
    """This read an item 2**40 places after the first."""
    flags, values = Tensor(np.array([1, 5, 2, 7]), device=device), Tensor([10, 20, 30, 40], device=device)
    places = Tensor(np.array([0, 1, 2, 3, -1, 4, 2**40, -(2**45)]), device=device)
    here = (Tensor.arange(4, device=device) == places.reshape(-1, 1)) & (flags < 3)
    np.testing.assert_array_equal(here.where(values, 0).sum(1).numpy(), [10, 0, 30, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [np.uint8, np.int8], ids=["uint8", "int8"])
def test_places_of_a_type_that_does_not_count_all_items(kind: type[Any], device: str | None) -> None:
    x, at = np.arange(300, dtype=np.float32), np.array([5, 100, 5], kind)
    t, places = Tensor(x.copy(), device=device, requires_grad=True), Tensor(at, device=device)
    counts = np.zeros(300)
    np.add.at(counts, at, 1)
    assert t[places].tolist() == t.gather(0, places).tolist() == x[at].tolist()
    np.testing.assert_array_equal(t[places].sum().gradient(t)[0].numpy(), counts)
    ones = Tensor.ones(3, device=device)
    np.testing.assert_array_equal(t.detach().scatter_reduce(0, places, ones, "sum").numpy(), x + counts)
    np.testing.assert_array_equal(t.detach().scatter(0, places, ones).numpy(), np.where(counts, 1, x))
    written = Tensor(x.copy(), device=device)
    written[places] = 1
    np.testing.assert_array_equal(written.numpy(), np.where(counts, 1, x))


# --- along axes whose size is not known ---------------------------------------------------------------------


def loop_nest_of(item: ScheduleItem) -> dict[UOp, None]:
    """The nodes of a kernel before it is planned."""
    return compiler.stages_of(item.ast, item.device).nest.toposort()


def extents_of(found: Tensor) -> list[int]:
    """How long the loops of its kernels are."""
    kernels = [loop_nest_of(item) for item in found.schedule()]
    return [node.extent for kernel in kernels for node in kernel if node.op is Ops.RANGE]


GATHERS: dict[str, Any] = {
    "rows": lambda x, i, j: x[i], "columns": lambda x, i, j: x[:, j], "both": lambda x, i, j: x[i, j],
    "outer": lambda x, i, j: x[i[:, None], j],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GATHERS)
def test_a_gather_along_an_axis_of_unknown_size_reads_one_item(name: str, device: str | None) -> None:
    array = np.random.default_rng(0).standard_normal((50, 70, 3)).astype(np.float32)
    x = Tensor(array.copy(), device=device).realize()
    rows, columns = np.array([2, -1, 0, 4]), np.array([0, 5, -6, -1])
    for b, s in ((5, 6), (50, 70), (7, 9)):
        held = x.shrink(((0, Variable("b", 5, 50).bind(b)), (0, Variable("s", 6, 70).bind(s)), (0, 3)))
        i, j = (Tensor(places, device=device).realize() for places in (rows, columns))
        found = GATHERS[name](held, i, j)
        if name == "both":
            assert not {50, 70} & set(extents_of(found)), "a loop over all items is left"
        made = found.contiguous().realize()
        made = made.shrink(tuple((0, value_of(n)) for n in made.shape))
        np.testing.assert_array_equal(made.numpy(), GATHERS[name](array[:b, :s], rows, columns))


@pytest.mark.parametrize("device", DEVICES)
def test_a_gather_is_not_split_as_a_long_sum_is(device: str | None) -> None:
    """Few sums of many items are computed in splits: these read one item each."""
    x = Tensor.arange(300 * 900 * 3, device=device).reshape(300, 900, 3).contiguous().realize()
    rows, columns = np.array([2, -1, 0, 299]), np.array([0, 5, -6, 899])
    found = x[Tensor(rows, device=device).realize(), Tensor(columns, device=device).realize()]
    assert extents_of(found) == [4, 3]
    np.testing.assert_array_equal(found.numpy(), np.arange(300 * 900 * 3).reshape(300, 900, 3)[rows, columns])


def test_positions_of_many_operations_are_stored_rather_than_the_masks_made_of_them() -> None:
    """Which item goes where, for each pair of them, took 54 GB in a 3-d grid_sample's gradient."""
    array = np.random.default_rng(0).standard_normal((2, 3, 12)).astype(np.float32)
    x = Tensor(array, requires_grad=True)
    at, exact = Tensor(np.arange(100).reshape(2, 50)).realize(), np.arange(100).reshape(2, 50)
    for step in range(60):
        at, exact = (at * 3 + step) % 101, (exact * 3 + step) % 101
    at, exact = at % 12, exact % 12
    rows = x.gather(2, at.reshape(2, 1, 50).expand(2, 3, 50))
    gradient, = (rows * rows).sum().gradient(x)
    kernels = [item.ast.toposort() for item in gradient.schedule()]
    sizes = [node.arg[1] for nodes in kernels for node in nodes if node.op is Ops.PARAM]
    assert max(sizes) <= 2 * 3 * 50
    expected = np.zeros((2, 3, 12))
    for i, j in np.ndindex(2, 3):
        np.add.at(expected[i, j], exact[i], 2 * array[i, j, exact[i]])
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_what_a_lookup_does_not_change_is_computed_once_for_all_that_look_it_up() -> None:
    """A row's statistics spread over the items that indices name: the condition that there is such an item
    went into the row's loads, so that its loops had to run in two places."""
    row, kept = normal(2, 32), np.arange(17) % 3 != 0
    at = np.where(kept, np.arange(17) % 16, -1).astype(np.int32)
    centred = Tensor(row).realize() - Tensor(row).realize().mean(1, keepdim=True)
    spread = (Tensor(at).realize().reshape(1, 17, 1, 1) == Tensor.arange(16).reshape(1, 1, 16, 1)).where(
        centred.reshape(2, 1, 1, 32), 0).sum(2)
    laid = spread.permute(1, 2, 0).contiguous()
    Tensor.realize(laid, centred)
    exact = row.astype(np.float64) - row.astype(np.float64).mean(1, keepdims=True)
    np.testing.assert_allclose(centred.numpy(), exact, atol=1e-6)
    np.testing.assert_allclose(laid.numpy(), np.where(kept[:, None, None], exact.T, 0), atol=1e-6)


# --- positions that are floats ------------------------------------------------------------------------------

POSITIONS = {
    "integers as floats": lambda at: Tensor(at).float(),
    "integers as halves": lambda at: Tensor(at).half(),
    "floats": lambda at: Tensor(at.astype(np.float32)),
    "halves": lambda at: Tensor(at.astype(np.float16)),
    "bfloat16": lambda at: Tensor(at.astype(np.float32)).cast(dtypes.bfloat16),
    "doubles": lambda at: Tensor(at.astype(np.float64)),
    "shifted": lambda at: Tensor(at.astype(np.float32)) + 1 - 1,
}


def one_hot_sum(at: Tensor, x: Tensor, numbers: Tensor) -> Tensor:
    """x[at], as the sum of what is not zero."""
    return (at.reshape(-1, 1, 1) == numbers.reshape(1, -1, 1)).where(x.reshape(1, *x.shape), 0).sum(1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POSITIONS)
def test_a_one_hot_sum_over_float_positions_reads_one_item(name: str, device: str | None) -> None:
    array = np.random.default_rng(1).standard_normal((100, 3)).astype(np.float32)
    places = np.array([0, 99, 5, 5, 100, -1, 40, 1000, -40])
    at, x = POSITIONS[name](places).to(device).realize(), Tensor(array, device=device).realize()
    found = one_hot_sum(at, x, Tensor.arange(100, device=device))
    extents = extents_of(found)
    assert extents and 100 not in extents, "a loop over all items is left"
    with Context(CHECK=1):
        np.testing.assert_array_equal(found.numpy(), np.where(
            ((places >= 0) & (places < 100))[:, None], array[places.clip(0, 99)], 0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_rows_of_types_that_are_summed_as_wider_ones_are_looked_up(dtype: str, device: str | None) -> None:
    """An embedding in bfloat16 was a sum over all words: items are cast before they are added."""
    table = np.random.default_rng(2).integers(-9, 9, (100, 3)).astype(np.float32)
    x, places = Tensor(table, device=device).cast(dtype).realize(), np.array([3, 99, 0, 0])
    found = one_hot_sum(Tensor(places, device=device).realize(), x, Tensor.arange(100, device=device))
    assert 100 not in extents_of(found), "a loop over all items is left"
    np.testing.assert_array_equal(found.float().numpy(), table[places])


def test_positions_that_are_no_integers_read_nothing() -> None:
    array = np.random.default_rng(1).standard_normal((100, 3)).astype(np.float32)
    special = [np.nan, np.inf, -np.inf, 1e30, -1e30]
    places = np.array([0.0, -0.0, 99, 0.5, 98.5, -0.5, 99.99999, 7, *special], np.float32)
    expected = [array[int(p)] if p in range(100) else np.zeros(3) for p in places]
    found = one_hot_sum(Tensor(places), Tensor(array), Tensor.arange(100))
    np.testing.assert_array_equal(found.numpy(), np.array(expected, np.float32))


@pytest.mark.parametrize("count", [2047, 2049])
def test_positions_are_compared_in_the_type_that_they_are_given_in(count: int) -> None:
    """Halves have no 2049: where the numbers of items are rounded too, several equal one position."""
    array = np.arange(1, count + 1, dtype=np.float32).reshape(-1, 1)
    places = np.array([2046, 2047, 2048, 2049, 2050, 70000], np.int32)
    with np.errstate(over="ignore"):
        halves, numbers = (x.astype(np.float32).astype(np.float16) for x in (places, np.arange(count)))
        expected = np.where(halves[:, None] == numbers, array[:, 0], 0).sum(1, keepdims=True)
    found = one_hot_sum(Tensor(places).half(), Tensor(array), Tensor.arange(count).half())
    np.testing.assert_array_equal(found.numpy(), expected)


def test_gradients_of_a_one_hot_sum_over_float_positions() -> None:
    places = np.array([3, 3, 0, 9, 12])
    x = Tensor(np.ones((10, 2), np.float32))
    weights = np.arange(10, dtype=np.float32).reshape(5, 2)
    (one_hot_sum(Tensor(places).float(), x, Tensor.arange(10)) * Tensor(weights)).sum().backward()
    expected = np.zeros((10, 2), np.float32)
    np.add.at(expected, places[:4], weights[:4])
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_a_recurrence_through_two_gathers_is_cut_into_kernels() -> None:
    """Each step reads two items of the one before: in one kernel that were 2 ** 12 loads."""
    first, second = np.array([0, 2, 1, 0, 1, 2, 0]), np.array([1, 1, 2, 0, 3, 6, 0])
    a, b = Tensor(first).realize(), Tensor(second).realize()
    expected = np.ones(7, np.float32)
    x = Tensor(expected).realize()

    def step(x: Any, a: Any, b: Any) -> Any:
        return x[a] + x[b] * 0.5

    for _ in range(12):
        x, expected = step(x, a, b), step(expected, first, second)
    assert len(x.schedule()) >= 4
    assert np.allclose(x.numpy(), expected, rtol=1e-6)


def test_a_long_index_is_a_load_at_its_place() -> None:
    """However many operations an index of memory takes: no loop asks each item whether it is meant."""
    rows, given = normal(50, 8), np.random.default_rng(0).integers(0, 50, 20)
    at, expected = Tensor(given).realize(), given
    index = at
    for k in range(30):
        index, expected = (index * 3 + k + at) % 50, (expected * 3 + k + given) % 50
    x = Tensor(rows).realize()
    (item,) = x[index].schedule()
    assert not any(node.op is Ops.REDUCE for node in lower(item.ast).toposort())
    assert np.array_equal(x[index].numpy(), rows[expected])


@pytest.mark.parametrize("is_result", [False, True])
def test_places_are_found_by_counting_also_where_what_counts_is_stored(is_result: bool) -> None:
    """`Tensor.arange(1000).searchsorted(x)` read its positions from memory, and compared each with all."""
    x = np.random.default_rng(0).integers(0, 100, 5000).astype(np.int32)
    data, places = Tensor(normal(100)).realize(), Tensor(x).realize()
    numbers = Tensor.arange(100) if is_result else Tensor.arange(100).contiguous()
    before = GlobalCounters.global_ops
    found, same = (numbers if is_result else data)[places], numbers + 0
    picked = data[places]
    Tensor.realize(numbers, found, same, picked)
    assert GlobalCounters.global_ops - before < 20 * x.size
    np.testing.assert_array_equal(numbers.numpy(), np.arange(100))
    np.testing.assert_array_equal(found.numpy(), x if is_result else data.numpy()[x])
    np.testing.assert_array_equal(picked.numpy(), data.numpy()[x])


def test_a_search_in_numbers_is_a_search() -> None:
    values = np.random.default_rng(1).normal(50, 40, 3000).astype(np.float32)
    given = Tensor(values).realize()
    before = GlobalCounters.global_ops
    found = Tensor.arange(100).searchsorted(given).realize()
    assert GlobalCounters.global_ops - before < 100 * values.size
    np.testing.assert_array_equal(found.numpy(), np.searchsorted(np.arange(100), values))


SUMS = {
    "rows": lambda x, at: Tensor.zeros(300, 8).index_add(0, at, x),
    "items": lambda x, at: Tensor.zeros(2400).scatter_reduce(0, at * 8, x[:, 0], "sum").reshape(300, 8),
    "the largest": lambda x, at: Tensor.zeros(300, 8).scatter_reduce(
        0, at.reshape(-1, 1).expand(*x.shape), x, "amax"),
}
READERS = {
    "sums of rows": lambda x: x.sum(1), "sums of columns": lambda x: x.sum(0), "turned": lambda x: x.T * 1,
    "rows in another order": lambda x: x.flip(0) * 2,
    "over the sums of rows": lambda x: x / (1 + x.sum(1, True)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("sums", SUMS)
def test_who_reads_segment_sums_does_not_ask_for_each_item(sums: str, reader: str) -> None:
    """20,000 rows of 64 added to 1,000, and the sums of these: 400 ms, for each item asked all places."""
    random = np.random.default_rng(2)
    x = np.round(random.standard_normal((5000, 8)) * 8).astype(np.float32)
    at = Tensor(random.integers(0, 300, 5000)).realize()
    given = Tensor(x).realize()
    before = GlobalCounters.global_ops
    found = READERS[reader](SUMS[sums](given, at)).realize()
    assert GlobalCounters.global_ops - before < 100 * x.size
    expected = np.zeros((300, 8), np.float32)
    if sums == "items":
        np.add.at(expected[:, 0], at.numpy(), x[:, 0])
    else:
        (np.add if sums == "rows" else np.maximum).at(expected, at.numpy(), x)
    np.testing.assert_allclose(found.numpy(), READERS[reader](Tensor(expected)).numpy(), rtol=1e-5)


def test_a_segment_sum_does_not_share_a_kernel_with_another_reduce() -> None:
    """Added to a softmax along the other axis, less the largest of a column, it was asked for each item: 512
    x 96 took 16 ms."""
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((512, 96)).astype(np.float32) for _ in range(2))
    ix = random.integers(0, 96, (512, 96))
    given, other, places = Tensor(x).realize(), Tensor(y).realize(), Tensor(ix).realize()
    total = Tensor.zeros(512, 96).scatter_add(1, places, given) + other.softmax(0)
    found = total - total.max(0, keepdim=True)
    reduces = [lower(item.ast).nodes_of(Ops.REDUCE) for item in found.schedule()]
    masked = [len(nodes) for nodes in reduces if any(n.src[0].op is Ops.WHERE for n in nodes)]
    assert masked == [1]
    sums = np.zeros_like(x)
    np.add.at(sums, (np.arange(512).reshape(-1, 1), ix), x)
    sums += np.exp(y) / np.exp(y).sum(0)
    np.testing.assert_allclose(found.numpy(), sums - sums.max(0), atol=1e-5)


def test_statistics_below_a_gather_are_computed_once() -> None:
    """Read at places that an index says, the largest of a column was taken for a row that is kept."""
    random = np.random.default_rng(4)
    x = random.standard_normal((300, 64)).astype(np.float32)
    ix = random.integers(0, 64, (300, 64))
    given, places = Tensor(x).realize(), Tensor(ix).realize()
    before = GlobalCounters.global_ops
    u = given - given.max(0, keepdim=True)
    found = (u.gather(1, places) * u).reshape(1, 1, 300, 64).interpolate((150, 32), mode="linear").realize()
    assert GlobalCounters.global_ops - before < 100 * x.size
    own = x - x.max(0)
    product = np.take_along_axis(own, ix, 1) * own
    np.testing.assert_allclose(found.numpy()[0, 0], product.reshape(150, 2, 32, 2).mean((1, 3)), atol=1e-4)
