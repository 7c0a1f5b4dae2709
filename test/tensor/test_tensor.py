"""What tensors compute, against NumPy."""
import copy
import gc
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from arrays import close, drawn, same

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.graph.node_flags import MEMORY, WRITES
from tinygrad.graph.ops import Ops
from tinygrad.tensor.live import live_tensors, unrealized_tensors

rng = np.random.default_rng(0)

# --- construction -------------------------------------------------------------------------------------------


def test_from_python_values():
    assert Tensor(3).dtype is dtypes.int32 and Tensor(3).item() == 3
    assert Tensor(2.5).dtype is dtypes.float32 and Tensor(True).dtype is dtypes.bool
    same(Tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    same(Tensor(((1.5, 2), (3, 4))), [[1.5, 2], [3, 4]])
    assert Tensor([]).shape == (0,) and Tensor([[], []]).shape == (2, 0) and Tensor(None).shape == (0,)
    assert Tensor([1, 2.0]).dtype is dtypes.float32 and Tensor([True, 2]).dtype is dtypes.int32
    same(Tensor(b"\x01\xff"), np.array([1, 255], np.uint8))
    same(Tensor(memoryview(np.arange(3, dtype=np.int16))), [0, 1, 2])
    same(Tensor([Tensor([1, 2]), Tensor([3, 4])]), [[1, 2], [3, 4]])


@pytest.mark.parametrize("dtype", dtypes.all)
def test_every_dtype_holds_its_values(dtype):
    values = [0, 1, 1] if dtype.is_bool else [0, 1, 3]
    result = Tensor(values, dtype=dtype)
    assert result.dtype is dtype
    assert result.numpy().dtype == dtype.numpy and [float(x) for x in result.numpy()] == values


@pytest.mark.parametrize("kind", [np.float64, np.int8, np.uint16, np.float16, ml_dtypes.bfloat16, np.bool_])
def test_numpy_arrays_keep_dtype_and_layout(kind):
    array = np.arange(12).reshape(3, 4).astype(kind)
    same(Tensor(array), array)
    same(Tensor(array.T), array.T)
    same(Tensor(array[:, ::-2]), array[:, ::-2])
    same(Tensor(array.astype(array.dtype.newbyteorder(">")) if kind is np.float64 else array), array)


def test_a_tensor_keeps_the_values_that_it_was_made_of():
    array = np.arange(64, dtype=np.float32)
    tensor = Tensor(array, device="CPU")
    array[0] = 7
    assert tensor.numpy()[0] == 0
    assert tensor.uop.base.storage.buffer.address % 64 == 0
    copied = tensor.numpy()
    copied[1] = 9
    assert tensor.numpy()[1] == 1


def test_constructors():
    same(Tensor.zeros(2, 3), np.zeros((2, 3), np.float32))
    same(Tensor.ones((2,), dtype=dtypes.int8), np.ones(2, np.int8))
    same(Tensor.full((2, 2), 7), np.full((2, 2), 7))
    assert Tensor.full((), 2.5).item() == 2.5 and Tensor.empty(2, 3).shape == (2, 3)
    same(Tensor.zeros_like(Tensor([1, 2])), [0, 0])
    same(Tensor([1.5, 2]).full_like(4, dtype=dtypes.int32), [4, 4])
    assert Tensor.ones(0, 3).numpy().shape == (0, 3)


@pytest.mark.parametrize("arguments",
                         [(5,), (0,), (1,), (2, 9), (2, 9, 3), (9, 2, -2), (0, 1, 0.25), (5, 2), (1.5, 4)])
def test_arange(arguments):
    expected = np.arange(*arguments)
    result = Tensor.arange(*arguments)
    assert result.dtype is (dtypes.float32 if expected.dtype.kind == "f" else dtypes.int32)
    close(result, expected)


def test_arange_larger_and_other_dtypes():
    same(Tensor.arange(700, dtype=dtypes.int64), np.arange(700))
    same(Tensor.arange(5, dtype=dtypes.float16), np.arange(5, dtype=np.float16))


@pytest.mark.parametrize(("arguments", "dtype"), [
    ((2**33,), dtypes.int32), ((-1, 3), dtypes.uint8), ((250, 257), dtypes.uint8),
    ((0, -250, -100), dtypes.int8), ((0, 260, 2.5), dtypes.uint8)])
def test_arange_refuses_numbers_that_its_dtype_does_not_hold(arguments, dtype):
    with pytest.raises(OverflowError, match=f"arange from .* does not fit {dtype}"):
        Tensor.arange(*arguments, dtype=dtype)


def test_arange_to_the_ends_of_its_dtype():
    same(Tensor.arange(-128, 128, 85, dtype=dtypes.int8), np.array([-128, -43, 42, 127], np.int8))
    same(Tensor.arange(0, 256, 255, dtype=dtypes.uint8), np.array([0, 255], np.uint8))
    same(Tensor.arange(2**31 - 2, 2**31, dtype=dtypes.int32), np.array([2**31 - 2, 2**31 - 1], np.int32))
    assert Tensor.arange(9, 9, dtype=dtypes.uint8).shape == (0,)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
def test_linspace(steps):
    close(Tensor.linspace(-1, 3, steps), np.linspace(-1, 3, steps, dtype=np.float32))


def test_linspace_ends_are_exact():
    values = Tensor.linspace(0.1, 0.7, 11).numpy()
    assert values[0] == np.float32(0.1) and values[-1] == np.float32(0.7)


@pytest.mark.parametrize(("steps", "base"), [(0, 10.0), (1, 10.0), (5, 2.0), (50, 10.0)])
def test_logspace(steps, base):
    close(Tensor.logspace(-1, 3, steps, base), np.logspace(-1, 3, steps, base=base, dtype=np.float32))
    exact = Tensor.logspace(-1, 3, steps, base, dtype="float64").numpy()
    np.testing.assert_allclose(exact, np.logspace(-1, 3, steps, base=base), rtol=1e-13)


def test_logspace_refuses_fewer_steps_than_none():
    with pytest.raises(ValueError, match="logspace takes steps >= 0, got -1"):
        Tensor.logspace(0, 1, -1)


@pytest.mark.parametrize(("row", "col", "offset"), [(3, 3, 0), (2, 5, 1), (5, 2, -2), (0, 3, 0), (3, 4, 9),
                                                       (3, 4, -9)])
def test_places_of_triangles(row, col, offset):
    same(Tensor.tril_indices(row, col, offset), np.stack(np.tril_indices(row, offset, col)).astype(np.int32))
    same(Tensor.triu_indices(row, col, offset), np.stack(np.triu_indices(row, offset, col)).astype(np.int32))


def test_places_of_triangles_refuse_sizes_below_zero():
    with pytest.raises(ValueError, match="tril_indices takes sizes >= 0, got -1 and 2"):
        Tensor.tril_indices(-1, 2)


@pytest.mark.parametrize("shape", [(1, None), (4, None), (3, 5), (5, 3), (0, None)])
def test_eye(shape):
    same(Tensor.eye(*shape), np.eye(*shape, dtype=np.float32))


def test_one_hot():
    same(Tensor([[0, 2], [1, 1]]).one_hot(3), np.eye(3, dtype=np.int32)[[[0, 2], [1, 1]]])


# --- indexing -----------------------------------------------------------------------------------------------


X = drawn(4, 5, 6)

INDICES = [
    0, -1, np.int64(2), (1, 2), (1, 2, 3), slice(1, 3), slice(None, None, 2), slice(None, None, -1),
    slice(4, 0, -2),
    slice(-3, None, -3), slice(2, 2), (slice(None), 1), (Ellipsis, 2), (0, Ellipsis, slice(1, 4, 2)), None,
    (None, 1, None),
    (slice(None), None, slice(1, 3)), (slice(3, 0, -1), slice(None, None, -2), slice(5, None, -4)), Ellipsis,
    (),
    [0, 2], (slice(None), [1, 3, 1]), ([0, 1], [2, 3]), ([0, 1], slice(None), [2, 3]), (1, [2, 0]),
    ([[0], [1]], [2, 3]),
    (slice(None), [[0, 1], [2, 3]]), (None, [1, 2]), ([-1, 0], Ellipsis), (slice(0, 2), slice(None), [5, -6]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_getitem(index):
    same(Tensor(X)[index], X[index])


def test_getitem_with_tensors_and_masks():
    rows = np.array([3, 0, -1], np.int32)
    same(Tensor(X)[Tensor(rows)], X[rows])
    same(Tensor(X)[:, Tensor(rows.astype(np.int64)), 1:3], X[:, rows, 1:3])
    same(Tensor(X)[Tensor(X) > 0.5], X[X > 0.5])
    same(Tensor(X)[np.array([True, False, True, True])], X[[True, False, True, True]])
    same(Tensor(X)[:, X[0, :, 0] > 0], X[:, X[0, :, 0] > 0])
    same(Tensor(X)[X[:, :, 0] > 0, 2:], X[X[:, :, 0] > 0, 2:])
    flags = X > 0
    same(Tensor(flags)[[2, 1]], flags[[2, 1]])
    same(Tensor(np.arange(5))[Tensor([], dtype=dtypes.int32)], np.arange(5)[[]])
    same(list(Tensor(X))[2], X[2])


@pytest.mark.parametrize(("shape", "mask"), [((1, 0, 4), (1, 0)), ((0, 3), (0,)), ((2, 0), (2, 0)),
                                             ((2, 0, 3), (0,))])
def test_masks_without_items_are_masks(shape, mask):
    x, none = np.zeros(shape, np.int32), np.zeros(mask, bool)
    index = none if mask[0] == shape[0] else (slice(None), none)
    same(Tensor(x)[index], x[index])
    given = Tensor(none) if mask[0] == shape[0] else (slice(None), Tensor(none))
    same(Tensor(x)[given], x[index])
    with pytest.raises(IndexError, match="a mask of shape"):
        Tensor.zeros(3)[np.zeros(0, bool)]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_setitem(index):
    x = X.copy()
    t = Tensor(X.copy()).realize()
    value = drawn(*x[index].shape)
    if x[index].size:
        x[index] = value
    t[index] = Tensor(value)
    same(t, x)


def test_setitem_with_masks_numbers_and_broadcasting():
    x = X.copy()
    t = Tensor(X.copy())
    x[x > 0] = 7
    t[t > 0] = 7
    x[:, 1] = np.arange(6)
    t[:, 1] = Tensor(np.arange(6, dtype=np.int32))
    x[1:3, 0] = -1.5
    t[1:3, 0] = -1.5
    same(t, x)
    lazy = Tensor.zeros(3)
    lazy[1] = 5.0
    same(lazy, [0, 5, 0])


def test_writes_show_in_views_of_the_same_memory():
    t = Tensor(np.zeros((3, 4), np.float32)).realize()
    row = t[1]
    t[1, 2] = 5
    same(row, [0, 0, 5, 0])
    row[0] = 6
    assert t.numpy()[1, 0] == 6


def test_gather_and_scatter():
    x = drawn(4, 5)
    index = rng.integers(0, 5, (3, 7))
    same(Tensor(x).gather(1, Tensor(index)), np.take_along_axis(x[:3], index, 1))
    index0 = rng.integers(-4, 4, (6, 5))
    same(Tensor(x).gather(0, Tensor(index0)), np.take_along_axis(x, index0, 0))
    src = drawn(3, 7)
    expected = x.copy()
    for i in range(3):
        for j in range(7):
            expected[i, index[i, j]] = src[i, j]
    same(Tensor(x).scatter(1, Tensor(index), Tensor(src)), expected)
    same(Tensor.zeros(3).scatter(0, Tensor([1, 1]), 2.0, reduce="add"), [0, 4, 0])
    same(Tensor.ones(3).scatter(0, Tensor([1, 1]), 2.0, reduce="multiply"), [1, 4, 1])


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include_self):
    x, src = drawn(3, 4), drawn(3, 6)
    index = rng.integers(0, 3, (3, 6))
    expected = x.astype(np.float64)
    for i in range(3):
        for k in range(4):
            items = [src[i, j] for j in range(6) if index[i, j] == k]
            if items:
                items = [*items, x[i, k]] if include_self else items
                function = {"sum": sum, "prod": math.prod, "mean": np.mean, "amax": max, "amin": min}[reduce]
                expected[i, k] = function([float(v) for v in items])
    close(Tensor(x).scatter_reduce(1, Tensor(index), Tensor(src), reduce, include_self), expected)


def test_masks_and_nonzero():
    x = np.array([[0, 3], [4, 0]], np.int32)
    same(Tensor(x).nonzero(), np.argwhere(x))
    same(Tensor(x).nonzero(size=3, fill_value=-1), [[0, 1], [1, 0], [-1, -1]])
    same(Tensor(x).masked_select(Tensor(x) > 0), [3, 4])
    same(Tensor(x).masked_select(Tensor(x) > 0, size=1), [3])
    same(Tensor(x).masked_select(Tensor(x) > 0, size=4, fill_value=9), [3, 4, 9, 9])


@pytest.mark.parametrize(("shape", "size"), [((7, 5), 9), ((7, 5), 40), ((300,), 20), ((2, 3, 4), 0), ((), 3),
                                             ((0, 3), 2), ((1,), 1), ((3000,), 5000)])
def test_masks_with_a_size_leave_out_or_fill_up(shape, size):
    draw = np.random.default_rng(size)
    x = draw.standard_normal(shape) * (draw.uniform(size=shape) < 0.3)
    places = np.argwhere(x)[:size]
    same(Tensor(x).nonzero(size, -1), np.concatenate([places, np.full((size - len(places), x.ndim), -1)]))
    items = x[x != 0][:size]
    filled = np.concatenate([items, np.full(size - len(items), 9)])
    same(Tensor(x).masked_select(Tensor(x) != 0, size, 9), filled)


def test_the_gradient_of_selected_items_goes_to_them():
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    picked = x.masked_select(Tensor([True, False, True]), size=3)
    assert (picked * Tensor([5.0, 7.0, 9.0])).sum().gradient(x)[0].tolist() == [5, 0, 7]
    none = Tensor.zeros(0, 3, requires_grad=True)
    assert none.masked_select(none > 0, size=2, fill_value=4).sum().gradient(none)[0].shape == (0, 3)


# --- state --------------------------------------------------------------------------------------------------


def test_values_out():
    t = Tensor([[1.5, 2.0], [3.0, 4.0]])
    assert t.tolist() == [[1.5, 2.0], [3.0, 4.0]] and t[0, 0].item() == 1.5
    assert float(t[0, 0]) == 1.5 and int(t[1, 0]) == 3 and bool(t[0, 0] > 1) and range(5)[Tensor(2)] == 2
    assert memoryview(t.data()).tolist() == t.tolist() and np.asarray(t).dtype == np.float32
    np.testing.assert_array_equal(np.from_dlpack(t), t.numpy())
    assert [row.tolist() for row in t] == t.tolist()


def test_repr_shows_values_without_computing():
    t = Tensor([1.0, 2.0]).realize()
    assert repr(t) == f"<Tensor {Device.DEFAULT} float32 (2,) [1., 2.]>"
    lazy = t + 1
    assert repr(lazy) == f"<Tensor {Device.DEFAULT} float32 (2,) lazy>" and lazy.uop.realized is None
    assert repr(lazy.realize()) == f"<Tensor {Device.DEFAULT} float32 (2,) [2., 3.]>"
    assert "..." in repr(Tensor(np.zeros(1000))) and len(repr(Tensor(np.zeros(1000)))) < 100


def test_copies_are_independent():
    t = Tensor([1.0, 2.0], requires_grad=True)
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert other.requires_grad is True and other.dtype is t.dtype
        same(other, [1, 2])
        other.assign(Tensor([0.0, 0.0])).realize()
        same(t, [1, 2])
    clone = t.clone()
    clone.realize().assign(t * 5).realize()
    same(t, [1, 2])


def test_graph_names():
    t = Tensor([1, 2, 3])
    assert t.lazydata is t.uop and t.uop.base.op is Ops.BUFFER and (t * 2).lazydata.op is Ops.MUL
    assert t.device == Device.DEFAULT and t.ndim == 1 and hash(t) == id(t)


def test_assign_writes_the_same_memory():
    t = Tensor([1.0, 2.0, 3.0]).realize()
    memory = t.uop.base.buffer
    t.assign(t * 2 + 1)
    assert t.realize().uop.base.buffer is memory
    same(t, [3, 5, 7])
    t.assign(0).realize()
    same(t, [0, 0, 0])
    assert t.uop.base.buffer is memory


def test_lazy_readers_keep_the_old_value():
    t = Tensor([1.0, 2.0]).realize()
    before = t + 1
    t.assign(Tensor([10.0, 20.0]))
    after = t + 1
    t.realize()
    same(before, [2, 3])
    same(after, [11, 21])
    same(t, [10, 20])


def test_assign_twice_and_reading_between():
    t = Tensor([1.0]).realize()
    t.assign(t + 1)
    middle = t * 10
    t.assign(t + 1)
    same(t, [3])
    same(middle, [20])


def test_setitem_lets_lazy_readers_go_first():
    t = Tensor([1.0, 2.0]).realize()
    before = t.sum()
    t[0] = 100.0
    assert before.item() == 3 and t.sum().item() == 102


def test_results_are_not_reused_after_their_inputs_changed():
    t = Tensor([1.0, 2.0]).realize()
    old = t.sum().realize()
    t.assign(t + 1).realize()
    assert t.sum().item() == 5 and old.item() == 3
    t[0] = 10
    assert t.sum().item() == 13 and old.item() == 3


def test_results_are_not_reused_after_a_replay_changed_their_inputs():
    t, total = Tensor([1.0, 2.0]).realize(), 3.0

    @TinyJit
    def step(x):
        t.assign(t + x)
        x.assign(x * 2)
        return t.sum()

    x = Tensor([1.0, 1.0]).realize()
    for i in range(4):
        old, old_x = t.sum().realize(), x.sum().realize()
        total += 2 * 2**i
        assert step(x).item() == total and t.sum().item() == total and x.sum().item() == 2 * 2 ** (i + 1)
        assert old.item() == total - 2 * 2**i and old_x.item() == 2 * 2**i


def test_old_and_new_values_in_one_expression():
    t = Tensor([1.0, 2.0]).realize()
    mixed = t + 1
    t.assign(t * 10)
    mixed = mixed + t
    same(mixed, [12, 23])


def test_reading_a_view_sees_a_pending_write():
    t = Tensor(np.zeros((2, 2), np.float32)).realize()
    row = t[1]
    t.assign(Tensor.ones(2, 2))
    same(row, [1, 1])


def test_training_flag():
    assert Tensor.training is False
    with Tensor.train():
        assert Tensor.training is True
        with Tensor.test():
            assert Tensor.training is False
    assert Tensor.training is False

    @Tensor.train()
    def inside():
        return Tensor.training

    assert inside() is True and Tensor.training is False


def test_unrealized_tensors_are_found_among_those_that_can_be():
    """In the order in which they were made, after every kind of step that makes one lazy, or realises it."""
    rng, held = np.random.default_rng(0), [Tensor([1.0, 2.0]).realize() for _ in range(6)]
    steps = (lambda t: held.append(t + 1), lambda t: held.append(t.reshape(1, 2).reshape(2)),
             lambda t: held.pop(0) if len(held) > 4 else None, lambda t: t.realize(),
             lambda t: t.assign(t * 2), lambda t: t.replace(t + 3), lambda t: held.append(Tensor([5.0, 6.0])),
             lambda t: held.append(t.flip(0)), lambda t: t.__setitem__(0, 7.0), lambda t: None)
    for _ in range(400):
        steps[rng.integers(len(steps))](held[rng.integers(len(held))])
        assert [*map(id, unrealized_tensors())] == [
            id(t) for t in live_tensors() if t._uop.flags & (MEMORY | WRITES) != MEMORY]


def test_live_tensors_are_not_kept_alive():
    gc.collect()
    before = len(live_tensors())
    for _ in range(20):
        (Tensor([1.0]) * 2).relu()
    gc.collect()
    assert len(live_tensors()) == before


def test_a_view_of_zeros_made_contiguous_is_written_in_place():
    cache = Tensor.zeros(2, 3).contiguous().realize()
    cache[1].assign(Tensor([1.0, 2.0, 3.0])).realize()
    cache.shrink(((0, 1), (0, 1))).assign(Tensor([[7.0]])).realize()
    assert cache.tolist() == [[7, 0, 0], [1, 2, 3]]


def test_constants_that_a_tensor_stands_for_keep_their_gradients():
    x = Tensor.ones(3)
    y = x.contiguous().realize()
    (y * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_integers_that_32_bits_do_not_hold_are_of_64() -> None:
    assert Tensor([1, 2**40]).tolist() == [1, 2**40] and Tensor([1, 2**40]).dtype is dtypes.int64
    assert Tensor(-2**31 - 1).item() == -2**31 - 1
    assert Tensor.full((2,), 2**31).tolist() == [2**31] * 2
    assert Tensor([2**64 - 1]).tolist() == [2**64 - 1]
    assert Tensor([2**31 - 1, -2**31]).dtype is dtypes.int32
    for number in (2 ** 64, -2 ** 63 - 1):
        with pytest.raises(OverflowError, match="does not fit an integer type of 64 bits"):
            Tensor([1]) + number
        assert (Tensor([1.0]) + number).item() == float(np.float32(number))
    with pytest.raises(OverflowError, match="does not fit an integer type of 64 bits"):
        Tensor([2**64])
    for numbers in ([-1, 2**63], [[2**64 - 1, 1], [0, -1]]):
        with pytest.raises(OverflowError, match=r"no integer type of 64 bits has -1 and numbers from"):
            Tensor(numbers)
    assert Tensor([0, 2**63, True]).dtype is dtypes.uint64
    assert Tensor([-1.0, 2**63]).tolist() == [-1, 2**63]


def test_a_range_is_a_list_of_numbers() -> None:
    assert Tensor(range(2, 8, 3)).tolist() == [2, 5]


def test_the_deviation_of_half_types_is_rounded_once() -> None:
    """The variance is beyond the range of float16, its root is not."""
    x = np.array([1, 65504, -2], np.float16)
    expected = np.std(x.astype(np.float64), ddof=1)
    assert Tensor(x).std().numpy() == np.float16(expected)
    assert Tensor(x).std_mean()[0].numpy() == np.float16(expected)


def test_bools_stay_bools_where_they_are_filled_or_compared() -> None:
    x, mask = Tensor([True, False, True]), Tensor([True, True, False])
    assert x.masked_fill(mask, 0).tolist() == [False, False, True]
    assert x.masked_fill(mask, 1).dtype is dtypes.bool
    assert x.isclose(mask).tolist() == [True, False, False] and not x.allclose(mask)


def test_numbers_are_gathered_and_scattered_like_tensors_of_one_item() -> None:
    x, at = Tensor(3.0), Tensor(0)
    assert x.gather(0, at).tolist() == 3 and x.gather(-1, at).shape == ()
    assert x.scatter(0, at, Tensor(5.0)).tolist() == 5
    assert x.scatter(0, at, 5.0, "add").tolist() == 8
    assert x.scatter_reduce(0, at, Tensor(5.0), "amax").tolist() == 5


def test_integers_that_no_type_has_all_of_are_cast_each():
    numbers = [2**53 + 1, 2**63 + 1, -1]
    with pytest.raises(OverflowError, match=f"{2**63 + 1} does not fit dtypes.int64, which holds"):
        Tensor(numbers, dtype=dtypes.int64)
    assert Tensor(numbers, dtype=dtypes.uint64).tolist() == [2**53 + 1, 2**63 + 1, 2**64 - 1]
