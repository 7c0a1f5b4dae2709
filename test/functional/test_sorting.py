"""`sort` and `topk` by each of their ways, beside NumPy's stable sort: few items by ranks, a long axis by the
network, the first of many in the chunks that have first ones; and values looked up in what is sorted."""
from __future__ import annotations

import numpy as np
import pytest
from arrays import same

from tinygrad import GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tinygrad.functional import sorting

WAYS = {
    "ranks": {},
    "network": {"RANK_COMPARISONS": 0, "RANK_LENGTH": 4, "SELECTION_LIMIT": 0, "LEAST_CHUNK": 1 << 20},
    "chunks": {"RANK_COMPARISONS": 0, "RANK_LENGTH": 4, "SELECTION_LIMIT": 0, "FEW_COMPARISONS": 0},
    "selection": {"SMALL_SORT": 0},
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    for name, number in WAYS[request.param].items():
        monkeypatch.setattr(sorting, name, number)


def items(dtype, shape):
    """Few different values, among them the type's ends, both zeros and NaN of both signs."""
    rng = np.random.default_rng(len(shape))
    x = rng.integers(0, 4, shape).astype(dtype.numpy)
    floats = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, -2.0])
    special = floats.astype(dtype.numpy) if dtype.is_float else np.array([dtype.min, dtype.max], dtype.numpy)
    return np.where(rng.random(shape) < 0.3, rng.choice(special, shape), x)


def sorted_places(x, axis, descending):
    """Each item as the rank of its value, negated to count down: NaN is largest, -0.0 is 0.0."""
    values = x.astype(np.float64) + 0.0 if x.dtype.kind not in "biu" else x
    _, ranks = np.unique(values, return_inverse=True)
    ranks = ranks.reshape(x.shape)
    return np.argsort(-ranks if descending else ranks, axis, kind="stable")


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.uint8, dtypes.int16, dtypes.int64, dtypes.uint64,
                                   dtypes.fp8e4m3, dtypes.bfloat16, dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("descending", [False, True])
def test_every_way_sorts_as_numpy_does(way, dtype, descending):
    x = items(dtype, (2, 37, 3))
    places = sorted_places(x, 1, descending)
    for count in (1, 2, 3, 37):
        values, found = Tensor(x, dtype=dtype).topk(count, 1, largest=descending)
        same(found, places[:, :count])
        same(values.float(), np.take_along_axis(x, places[:, :count], 1).astype(np.float32))


@pytest.mark.parametrize("largest", [False, True])
def test_the_first_of_chunks_of_chunks(largest, monkeypatch):
    monkeypatch.setattr(sorting, "FEW_COMPARISONS", 1 << 14)
    x = items(dtypes.float32, (2, 5003))
    x[1] = np.random.default_rng(1).normal(size=5003)
    values, found = Tensor(x).topk(21, 1, largest=largest)
    places = sorted_places(x, 1, largest)[:, :21]
    same(found, places)
    same(values, np.take_along_axis(x, places, 1))


def test_sizes_and_counts_that_vary(way):
    """Of the first n columns, which one trace sorts for every n."""
    x = items(dtypes.float32, (2, 40))
    size, count = Variable("size", 1, 40), Variable("count", 0, 1)
    first = TinyJit(lambda x, size, count: tuple(t.contiguous() for t in (
        x[:, :size].argsort(), x[:, :size].topk(count)[1])))
    for n, k in ((40, 1), (1, 1), (17, 0), (33, 1)):
        order, top = first(Tensor(x), size.bind(n), count.bind(k))
        same(order, sorted_places(x[:, :n], 1, False))
        same(top, sorted_places(x[:, :n], 1, True)[:, :k])


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.uint8, dtypes.int16, dtypes.int64, dtypes.uint64,
                                   dtypes.bfloat16, dtypes.float32, dtypes.float64])
def test_every_way_finds_the_items_of_ranks(way, dtype):
    x = items(dtype, (2, 37, 3))
    in_order = np.take_along_axis(x, sorted_places(x, 1, False), 1)
    ranks = np.random.default_rng(3).integers(0, 37, (2, 5, 3))
    found = sorting.positions_at(Tensor(x, dtype=dtype), 1, Tensor(ranks)).numpy()
    got, wanted = np.take_along_axis(x, found, 1), np.take_along_axis(in_order, ranks, 1)
    np.testing.assert_equal(*(values.astype(np.float32) if dtype is dtypes.bfloat16 else values
                              for values in (got, wanted)))


def test_the_median_of_sizes_that_vary(way):
    x = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    size = Variable("size", 1, 40)
    median = TinyJit(lambda x, size: x[:, :size].median(1)[0].contiguous())
    for n in (40, 1, 16, 33):
        same(median(Tensor(x), size.bind(n)), np.sort(x[:, :n], 1)[:, (n - 1) // 2])


def test_what_a_network_stores_on_its_way_shares_memory():
    """Of 50 rows of words."""
    x = Tensor(np.random.default_rng(4).normal(size=1 << 14)).realize()
    before = GlobalCounters.mem_used
    GlobalCounters.mem_peak = before
    order = ((x * 2).argsort() + 1).realize()
    same(order, np.argsort(x.numpy(), kind="stable") + 1)
    assert GlobalCounters.mem_peak - before < 8 * x.nbytes()


def test_a_count_that_varies_is_no_more_than_there_are_items(way):
    x = items(dtypes.int32, (3, 40))
    count = Variable("count", 1, 64)
    same(Tensor(x).topk(count.bind(7))[1], sorted_places(x, 1, True)[:, :7])
    with pytest.raises(ValueError, match=r"topk takes 0 <= k <= 40"):
        Tensor(x).topk(count.bind(41))
    with pytest.raises(TypeError, match="integer"):
        Tensor(x).topk(2.5)


def test_the_axis_and_whether_to_sort_have_the_names_of_others_too():
    x = items(dtypes.int32, (3, 4))
    same(Tensor(x).sort(axis=0)[0], np.sort(x, 0))
    same(Tensor(x).argsort(axis=0, descending=True), sorted_places(x, 0, True))
    same(Tensor(x).topk(2, axis=1, sorted=False)[1], sorted_places(x, 1, True)[:, :2])


# --- looking up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 9, 64, 65, 1000])
def test_lookups_in_what_is_sorted_are_numpys(size: int) -> None:
    rng = np.random.default_rng(size)
    rising, wanted = np.sort(rng.integers(0, 40, size)), rng.integers(-1, 42, (3, 17))
    for side in ("left", "right"):
        np.testing.assert_equal(Tensor(rising).searchsorted(Tensor(wanted), side=side).numpy(),
                                np.searchsorted(rising, wanted, side=side))
    np.testing.assert_equal(Tensor(wanted).isin(Tensor(rising)).numpy(), np.isin(wanted, rising))


def test_a_million_values_are_looked_up_in_a_hundred_thousand() -> None:
    rng = np.random.default_rng(0)
    rising = np.sort(rng.standard_normal(100_003).astype(np.float32))
    wanted = rng.standard_normal(1 << 20).astype(np.float32)
    wanted[::3] = rising[rng.integers(0, rising.size, wanted[::3].size)]
    found = Tensor(rising).searchsorted(Tensor(wanted)).numpy()
    np.testing.assert_equal(found, np.searchsorted(rising, wanted))
    np.testing.assert_equal(Tensor(wanted).isin(Tensor(rising)).numpy(), np.isin(wanted, rising))


def test_sequences_in_rows_take_values_in_as_many_rows() -> None:
    with pytest.raises(ValueError, match=r"one for each row of the values, got sequences \(2, 3\)"):
        Tensor([[1, 2, 3], [4, 5, 6]]).searchsorted(Tensor([2]))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("start", ["least", 0, "largest"])
def test_distinct_integers_near_each_other_are_counted(dtype, start):
    limits = np.iinfo(dtype)
    first = {"least": limits.min, "largest": limits.max - 19}.get(start, start)
    x = np.random.default_rng(5).integers(first, first + 19, (9, 31), dtype, endpoint=True)
    values, places, counts = Tensor(x).unique(return_inverse=True, return_counts=True)
    found, inverse, often = np.unique(x, return_inverse=True, return_counts=True)
    same(values, found)
    same(places, inverse.reshape(x.shape))
    same(counts, often)


def test_distinct_integers_far_from_each_other_are_sorted():
    x = np.array([2**63 - 1, -2**63, 5, 5, 2**63 - 1])
    values, places, counts = Tensor(x).unique(return_inverse=True, return_counts=True)
    same(values, [-2**63, 5, 2**63 - 1])
    same(places, [2, 0, 1, 1, 2])
    same(counts, [1, 2, 2])


def test_distinct_bools():
    values, counts = Tensor([True, False, True]).unique(return_counts=True)
    same(values, [False, True])
    same(counts, [1, 2])
