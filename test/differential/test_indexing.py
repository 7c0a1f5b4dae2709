"""`x[...]` and `x[...] = v` against NumPy: every kind of index, mixtures, views, overlap."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tinygrad import GlobalCounters, Tensor

from .table import FEW, DType, torch

Array = np.ndarray[Any, Any]
SHAPE = (4, 5, 3)
COLUMN = np.array([[0], [-1]])
MASK = (np.arange(60) % 3 == 0).reshape(SHAPE)

BASIC = {
    "integer": 2,
    "negative integer": -1,
    "integers": (1, -2, 0),
    "slice": slice(1, 3),
    "open slice": (slice(None, 2), slice(-2, None)),
    "step": (slice(None, None, 2), slice(1, None, 3)),
    "negative step": (slice(None, None, -1), slice(3, 0, -2)),
    "past the end": slice(2, 100),
    "empty": slice(3, 1),
    "None": (None, 1, None),
    "Ellipsis": (..., 0),
    "Ellipsis between": (1, ..., slice(0, 2)),
    "everything": ...,
    "nothing": (),
}
ADVANCED = {
    "list": [2, 0, 2],
    "negative list": ([-1, 0],),
    "two lists": ([0, 3], [1, -1]),
    "broadcast lists": (COLUMN, [0, 2, 4]),
    "array": np.array([[1, 2], [3, 0]]),
    "array after slice": (slice(None), np.array([4, 0])),
    "array after integer": (1, [0, 2]),
    "apart": ([0, 1], slice(None), [2, 0]),
    "apart by integer": ([0, 1], 3, [2, 0]),
    "with None": (None, [0, 2], slice(None, None, -1)),
    "with Ellipsis": (..., [0, 2]),
    "mask": MASK,
    "mask of leading axes": MASK[:, :, 0],
    "mask of one axis": (slice(None), MASK[0, :, 0]),
    "mask and list": (MASK[:, 0, 0], [0]) if MASK[:, 0, 0].sum() == 1 else (MASK[:, 0, 0], 0),
    "empty list": ([],),
    "unsigned": np.array([3, 1], np.uint8),
    "long": np.array([3, -4], np.int64),
}
INDICES = {**BASIC, **ADVANCED}


def numbers(dtype: DType) -> Array:
    x = np.random.default_rng(3).integers(0, 2 if dtype.is_bool else 100, SHAPE)
    return x.astype(dtype.numpy)


def numpy_index(index: Any) -> Any:
    return (
        tuple(
            list(i) if isinstance(i, list) and i else np.array(i, int) if isinstance(i, list) else i
            for i in index
        )
        if isinstance(index, tuple)
        else index
    )


@pytest.mark.parametrize("dtype", FEW, ids=lambda d: d.name)
def test_getitem_is_numpys(dtype: DType) -> None:
    x = numbers(dtype)
    t, turned = Tensor(x), Tensor(x).permute(2, 1, 0).flip(1)
    y = np.flip(x.transpose(2, 1, 0), 1)
    for name, index in INDICES.items():
        expected = x[numpy_index(index)]
        found = t[index].numpy()
        assert found.shape == expected.shape, name
        np.testing.assert_array_equal(found, expected, err_msg=name)
        if name in BASIC and name not in ("integers",):
            np.testing.assert_array_equal(turned[index].numpy(), y[index], err_msg=f"{name} of a view")


@pytest.mark.parametrize("name", INDICES)
def test_setitem_is_numpys(name: str) -> None:
    index = INDICES[name]
    for dtype in (np.float32, np.int64):
        x = np.arange(60).reshape(SHAPE).astype(dtype)
        shape = x[numpy_index(index)].shape
        values = -np.arange(int(np.prod(shape))).reshape(shape).astype(dtype) - 1
        if name == "list":  # names a place twice: the last one stays in both
            assert (values[0] != values[2]).all()
        for value, given in ((values, Tensor(np.asarray(values))), (7, 7)):
            t, expected = Tensor(x.copy()).realize(), x.copy()
            t[index] = given
            expected[numpy_index(index)] = value
            np.testing.assert_array_equal(t.numpy(), expected)


def drawn_index(random: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Arrays that broadcast, one at least, also of places named twice, and slices, one for each axis."""
    common = tuple(random.integers(1, 4, random.integers(1, 3)))
    index: list[Any] = []
    for size in shape:
        slices = slice(None), slice(int(random.integers(-size, size)), None), slice(None, None, -1)
        array = random.integers(-size, size, [1 if random.random() < 0.2 else n for n in common])
        index.append(array if not index or random.random() < 0.5 else slices[random.integers(3)])
    if random.random() < 0.2:
        index.insert(int(random.integers(len(index))), None)
    return tuple(index)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_writes_are_numpys(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.integers(1, 6, random.integers(1, 5)))
    index = drawn_index(random, shape)
    x = random.standard_normal(shape).astype(np.float32)
    values = random.standard_normal(x[index].shape).astype(np.float32)
    if random.random() < 0.4:
        values = values[:1]
    expected = x.copy()
    expected[index] = values
    source, new = Tensor(x.copy(), requires_grad=True), Tensor(values, requires_grad=True)
    for written in (Tensor(x.copy()).realize(), source * 1):
        view = written.flatten()
        written[tuple(Tensor(i) if isinstance(i, np.ndarray) else i for i in index)] = new
        np.testing.assert_array_equal(written.numpy(), expected)
        np.testing.assert_array_equal(view.numpy(), expected.reshape(-1))
    writer = np.full(shape, -1)  # which of the values each item has
    writer[index] = np.broadcast_to(np.arange(values.size).reshape(values.shape), x[index].shape)
    weights = random.standard_normal(shape).astype(np.float32)
    (written * Tensor(weights)).sum().backward()
    np.testing.assert_array_equal(source.grad.numpy(), np.where(writer < 0, weights, 0))
    sums = np.bincount(writer[writer >= 0], weights[writer >= 0], values.size)
    np.testing.assert_allclose(new.grad.numpy(), sums.reshape(values.shape), atol=1e-5)


def test_rows_are_written_in_proportion_to_their_items() -> None:
    x = Tensor(np.zeros((1000, 64), np.float32)).realize()
    rows = Tensor(np.arange(300) * 7 % 1000).realize()
    values = Tensor(np.ones((300, 64), np.float32)).realize()
    before = GlobalCounters.global_ops
    x[rows] = values
    x.realize()
    assert GlobalCounters.global_ops - before < 20 * x.numel()  # for each of them, 300 comparisons


def test_what_is_written_comes_from_any_device() -> None:
    for index in (slice(0, 2), [0, 1]):
        t = Tensor(np.zeros((3, 2), np.float32)).realize()
        t[index] = Tensor(np.ones((2, 2), np.float32), device="PYTHON")
        np.testing.assert_array_equal(t.numpy(), [[1, 1], [1, 1], [0, 0]])


def test_places_out_of_range_are_not_written() -> None:
    for index in (([7, -9, 1],), ([1, 7, 0], [0, 2, 5])):
        x, expected = np.zeros((4, 5), np.float32), np.zeros((4, 5), np.float32)
        expected[(1,) if len(index) == 1 else (1, 0)] = 3
        t = Tensor(x.copy()).realize()
        t[tuple(Tensor(i) for i in index)] = 3
        np.testing.assert_array_equal(t.numpy(), expected)


@pytest.mark.parametrize("name", BASIC)
def test_gradients_of_getitem_land_where_items_came_from(name: str) -> None:
    x = Tensor(np.arange(60, dtype=np.float32).reshape(SHAPE), requires_grad=True)
    picked = x[BASIC[name]]
    weights = np.arange(1, picked.numel() + 1, dtype=np.float32).reshape(picked.shape)
    expected = np.zeros(SHAPE, np.float32)
    expected[BASIC[name]] += weights
    np.testing.assert_array_equal((picked * Tensor(weights)).sum().gradient(x)[0].numpy(), expected)


@pytest.mark.parametrize("name", ADVANCED)
def test_gradients_of_tensor_indexing_add_up(name: str) -> None:
    index = ADVANCED[name]
    x = Tensor(np.arange(60, dtype=np.float32).reshape(SHAPE), requires_grad=True)
    picked = x[index]
    weights = np.arange(1, picked.numel() + 1, dtype=np.float32).reshape(picked.shape)
    expected = np.zeros(SHAPE, np.float32)
    np.add.at(expected, numpy_index(index), weights)
    np.testing.assert_array_equal((picked * Tensor(weights)).sum().gradient(x)[0].numpy(), expected)


def test_writes_through_views_reach_the_memory() -> None:
    x = np.zeros(SHAPE, np.float32)
    t = Tensor(x.copy()).realize()
    t[1][2] = 3
    t.permute(2, 0, 1)[0, 1:3] = 5
    t.flip(0)[0, ::2] = Tensor([1.0, 2.0, 4.0])
    x[1][2] = 3
    x.transpose(2, 0, 1)[0, 1:3] = 5
    x[::-1][0, ::2] = [1, 2, 4]
    np.testing.assert_array_equal(t.numpy(), x)


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(None), slice(None, None, -1)),
        (slice(None, None, 2), slice(1, None, 2)),
        ([0, 1, 2], [2, 0, 1]),
        (slice(0, 2), slice(1, 3)),
    ],
)
def test_a_set_that_overlaps_its_own_source_reads_first(target: Any, source: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    t = Tensor(x.copy()).realize()
    t[target] = t[source]
    expected = x.copy()
    expected[target] = x[source]
    np.testing.assert_array_equal(t.numpy(), expected)


@pytest.mark.parametrize("seed", range(12))
def test_gather_and_scatter_of_indices_of_other_sizes(seed: int) -> None:
    """More or fewer indices than items along the axis, at most as many along the others; a source that is
    larger than the indices."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
    dim = int(rng.integers(len(shape)))
    sizes = tuple(int(rng.integers(0, 7 if i == dim else n + 1)) for i, n in enumerate(shape))
    x = rng.standard_normal(shape)
    index = rng.integers(0, shape[dim], sizes)
    source = rng.standard_normal(tuple(n + int(rng.integers(0, 3)) for n in sizes))
    theirs, places = torch.tensor(x), torch.tensor(index)
    np.testing.assert_array_equal(Tensor(x).gather(dim, Tensor(index)).numpy(), theirs.gather(dim, places))
    np.testing.assert_allclose(Tensor(x).scatter(dim, Tensor(index), Tensor(source), "add").numpy(),
                               theirs.scatter_add(dim, places, torch.tensor(source)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kinds", sorted(set(itertools.permutations("tttr::", 4))))
def test_a_position_without_axes_beside_others_takes_its_item_first(kinds: tuple[str, ...]) -> None:
    """As an int does: `x[t, :, rows]` had its rows in front."""
    rng = np.random.default_rng(3)
    x, sizes = rng.standard_normal((3, 3, 3, 3)), {"t": (), "r": (2,)}
    index = [None if kind == ":" else rng.integers(-3, 3, sizes[kind]) for kind in kinds]
    ours, theirs = (tuple(slice(None) if i is None else tensor(i) for i in index)
                    for tensor in (Tensor, torch.tensor))
    np.testing.assert_array_equal(Tensor(x)[ours].numpy(), torch.tensor(x)[theirs])
    written, expected = Tensor(x), torch.tensor(x)
    written[ours] = value = rng.standard_normal(tuple(expected[theirs].shape)).round(3)
    expected[theirs] = torch.tensor(value)
    if len(set(torch.arange(81).reshape(3, 3, 3, 3)[theirs].flatten().tolist())) == value.size:
        np.testing.assert_array_equal(written.numpy(), expected)
