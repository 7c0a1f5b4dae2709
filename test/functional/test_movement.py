"""Shapes, reductions and products of matrices, against NumPy."""
import math

import numpy as np
import pytest
from arrays import close, drawn, same

from tinygrad import Device, GlobalCounters, Tensor, dtypes
from tinygrad.functional.sorting import SELECTION_LIMIT, SMALL_SORT

rng = np.random.default_rng(0)

# --- movement -----------------------------------------------------------------------------------------------


def test_shapes():
    x = drawn(2, 3, 4)
    t = Tensor(x)
    for result, expected in [
        (t.reshape(6, 4), x.reshape(6, 4)), (t.reshape((4, -1)), x.reshape(4, -1)),
        (t.view(None, -1), x.reshape(2, -1)),
        (t.permute(2, 0, 1), x.transpose(2, 0, 1)), (t.transpose(0, -1), x.swapaxes(0, -1)),
        (t.T, x.swapaxes(-1, -2)),
        (t.flatten(1), x.reshape(2, 12)), (t.unflatten(2, (2, -1)), x.reshape(2, 3, 2, 2)),
        (t.flip(0, 2), x[::-1, :, ::-1]),
        (t.unsqueeze(1), x[:, None]), (t.unsqueeze(-1), x[..., None]), (t[:1].squeeze(0), x[0]),
        (t.shrink(((0, 1), None, (1, 3))), x[:1, :, 1:3]), (t.shrink_to(1, None, 2), x[:1, :, :2]),
        (t.reshape(1, 2, 3, 4).expand(5, -1, 3, 4), np.broadcast_to(x, (5, 2, 3, 4))),
        (t.repeat(2, 1, 3), np.tile(x, (2, 1, 3))),
        (t.repeat(2, 1, 1, 2), np.tile(x, (2, 1, 1, 2))), (t.repeat_interleave(2, 1), np.repeat(x, 2, 1)),
        (t.repeat_interleave(3), np.repeat(x, 3)), (t.roll(2, 1), np.roll(x, 2, 1)),
        (t.roll((1, -2), (0, 2)), np.roll(x, (1, -2), (0, 2))),
        (t.roll(5), np.roll(x, 5)),
        (t[:, :, 0].diag() if False else Tensor(x[0, 0]).diag(), np.diag(x[0, 0])),
        (Tensor(x[0]).diag(), np.diag(x[0])), (t.diagonal(1, 1, 2), np.diagonal(x, 1, 1, 2)),
        (t.diagonal(-1, 0, 1), np.diagonal(x, -1, 0, 1)), (t.triu(1), np.triu(x, 1)),
        (t.tril(-1), np.tril(x, -1)), (t.tril(), np.tril(x)),
    ]:
        same(result, expected)
    assert t.numel() == 24 and t.size(1) == 3 and t.size() == (2, 3, 4) and t.nbytes() == 96 and len(t) == 2


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad_modes(mode):
    x = drawn(3, 5)
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    same(Tensor(x).pad((2, 1, 1, 2), mode=mode), np.pad(x, ((1, 2), (2, 1)), names[mode]))


def test_pad_constant():
    x = drawn(3, 5)
    same(Tensor(x).pad((2, 1)), np.pad(x, ((0, 0), (2, 1))))
    same(Tensor(x).pad(((1, 0), None), value=-math.inf), np.pad(x, ((1, 0), (0, 0)), constant_values=-np.inf))
    same(Tensor(x).pad((-1, 2, 1, -2), value=4.0), np.pad(x[:1, 1:], ((1, 0), (0, 2)), constant_values=4.0))
    same(Tensor(x).pad_to(4, None, value=1), np.pad(x, ((0, 1), (0, 0)), constant_values=1))


@pytest.mark.parametrize(("mode", "pairs"), [
    ("reflect", (4, -2)), ("reflect", (-5, 3)), ("reflect", (-1, 2)), ("replicate", (9, -5)),
    ("replicate", (-6, 4)), ("replicate", (4, -8))])
def test_mirrored_and_repeated_items_are_those_before_cropping(mode, pairs):
    x = drawn(3, 5)
    before, after = pairs
    whole = np.pad(x, ((0, 0), (max(before, 0), max(after, 0))), {"replicate": "edge"}.get(mode, mode))
    same(Tensor(x).pad(pairs, mode=mode), whole[:, max(-before, 0):whole.shape[1] - max(-after, 0)])


def test_padding_around_goes_around_what_is_left():
    x = drawn(3, 5)
    same(Tensor(x).pad((-1, 2), mode="circular"), np.pad(x[:, 1:], ((0, 0), (0, 2)), "wrap"))


@pytest.mark.parametrize("second", [np.float64, np.float16])
def test_integers_of_different_floats_side_by_side(second):
    """LLVM ended the process: it took the casts of both for one of their items side by side."""
    a, b = np.arange(10, dtype=np.float32), np.arange(6).astype(second)
    joined = Tensor.cat(Tensor(a).realize().cast("int32"), Tensor(b).realize().cast("int32"))
    same(joined, np.concatenate([a, b]).astype(np.int32))


def test_joining_and_splitting():
    a, b, c = drawn(2, 3), drawn(1, 3), drawn(4, 3)
    same(Tensor(a).cat(Tensor(b), Tensor(c)), np.concatenate([a, b, c]))
    same(Tensor.cat(Tensor(a), Tensor(a), dim=-1), np.concatenate([a, a], -1))
    same(Tensor.cat([Tensor(a), Tensor(b)]), np.concatenate([a, b]))
    same(Tensor.stack(Tensor(a), Tensor(a), dim=1), np.stack([a, a], 1))
    same(Tensor.stack(Tensor(1), Tensor(2)), [1, 2])
    assert np.signbit(Tensor([-0.0]).cat(Tensor([-0.0])).numpy()).all()
    assert Tensor([1]).cat(Tensor([0.5])).dtype is dtypes.float32
    for parts, expected in [(Tensor(c).split(3), np.split(c, [3])),
                            (Tensor(c).split([1, 3]), np.split(c, [1])),
                            (Tensor(c).chunk(3), np.split(c, [2])),
                            (Tensor(c).chunk(2, dim=1), np.split(c, [2], 1))]:
        assert len(parts) == len(expected)
        for part, array in zip(parts, expected, strict=True):
            same(part, array)
    for indexing in ("ij", "xy"):
        for grid, array in zip(Tensor([1, 2]).meshgrid(Tensor([3, 4, 5]), indexing=indexing),
                               np.meshgrid([1, 2], [3, 4, 5], indexing=indexing), strict=True):
            same(grid, array)


def test_unfold():
    x = drawn(3, 9)
    for size, step in ((3, 1), (3, 2), (9, 1), (1, 4)):
        windows = np.lib.stride_tricks.sliding_window_view(x, size, 1)[:, ::step]
        same(Tensor(x).unfold(1, size, step), windows)


@pytest.mark.parametrize(("size", "step"), [(5, 2), (4, 4), (2, 3), (90, 1), (70, 9)])
def test_gradients_of_windows_are_sums_of_those_that_overlap(size, step):
    """Each item asked all windows: 500 x 500 took 0.24 s."""
    x = Tensor(drawn(50, 100), requires_grad=True)
    windows = x.unfold(1, size, step)
    weights = drawn(*windows.shape)
    before = GlobalCounters.global_ops
    gradient = (windows * Tensor(weights)).sum().gradient(x)[0].realize()
    assert GlobalCounters.global_ops - before < 20 * min(size + 1, 100 - size + 1) * x.numel()
    expected = np.zeros((50, 100), np.float32)
    for i in range(windows.shape[1]):
        expected[:, i * step:i * step + size] += weights[:, i]
    close(gradient, expected)


def test_rearrange():
    x = drawn(2, 6, 4)
    t = Tensor(x)
    same(t.rearrange("b (h w) c -> b c h w", h=2), x.reshape(2, 2, 3, 4).transpose(0, 3, 1, 2))
    same(t.rearrange("b ... -> ... b"), np.moveaxis(x, 0, -1))
    same(t.rearrange("a b c -> (a b) c"), x.reshape(12, 4))
    same(t.rearrange("a b c -> a 1 (b c)"), x.reshape(2, 1, 24))


# --- reduce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), 1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(axis, keepdim):
    x = drawn(3, 4, 5)
    t = Tensor(x)
    wide = x.astype(np.float64)
    for name, function in [("sum", np.sum), ("prod", np.prod), ("mean", np.mean), ("max", np.max),
                           ("min", np.min)]:
        close(getattr(t, name)(axis, keepdim), function(wide, axis=axis, keepdims=keepdim), rtol=1e-5)
    if axis != ():
        close(t.var(axis, keepdim), np.var(wide, axis=axis, keepdims=keepdim, ddof=1), rtol=1e-5)
        close(t.std(axis, keepdim, correction=0), np.std(wide, axis=axis, keepdims=keepdim), rtol=1e-5)
        spread, center = t.std_mean(axis, keepdim)
        close(spread, np.std(wide, axis=axis, keepdims=keepdim, ddof=1), rtol=1e-5)
        close(center, np.mean(wide, axis=axis, keepdims=keepdim), rtol=1e-5)
    same((t > 1).any(axis, keepdim), (x > 1).any(axis=axis, keepdims=keepdim))
    same((t > -1).all(axis, keepdim), (x > -1).all(axis=axis, keepdims=keepdim))
    peak = wide.max(axis=axis, keepdims=True)
    exact = np.log(np.exp(wide - peak).sum(axis=axis, keepdims=True)) + peak
    close(t.logsumexp(axis, keepdim), exact if keepdim else np.squeeze(exact, axis), rtol=1e-5)


def test_the_axis_of_a_reduction_has_two_names():
    x = Tensor([[1.0, 2.0], [3.0, 5.0]])
    names = ("sum", "max", "mean", "std", "argmax", "softmax", "log_softmax", "logsumexp", "cumsum", "cummax")
    for name in names:
        one, other = getattr(x, name)(axis=1), getattr(x, name)(dim=1)
        for a, b in zip(*([r] if isinstance(r, Tensor) else r for r in (one, other)), strict=True):
            assert a.tolist() == b.tolist()
    assert x.sum(dim=0, keepdim=True).shape == (1, 2)
    with pytest.raises(TypeError, match="sum: axis and dim are two names of one argument"):
        x.sum(axis=0, dim=0)


def test_reductions_of_other_dtypes():
    x = rng.integers(-100, 100, (4, 50)).astype(np.int8)
    same(Tensor(x).sum(1), x.sum(1))
    same(Tensor(x).max(1), x.max(1))
    same(Tensor(x).min(0), x.min(0))
    u = rng.integers(0, 255, 50).astype(np.uint8)
    assert Tensor(u).min().item() == u.min() and Tensor(u).max().item() == u.max()
    half = np.full(4096, 0.1, np.float16)
    assert Tensor(half).sum().item() == np.float16(half.astype(np.float64).sum())
    assert Tensor.ones(0).sum().item() == 0 and Tensor.ones(0).prod().item() == 1
    assert math.isnan(Tensor.ones(0).mean().item()) and math.isnan(Tensor([1.0]).var().item())
    assert math.isnan(Tensor([1.0, math.nan]).max().item()) and math.isnan(Tensor([math.nan,
                                                                                   1.0]).min().item())
    assert Tensor(5).sum().item() == 5 and Tensor(5.0).max(0).item() == 5


def test_argmax_takes_the_first():
    x = rng.integers(0, 3, (5, 7)).astype(np.float32)
    for axis in (None, 0, 1):
        same(Tensor(x).argmax(axis), np.argmax(x, axis))
        same(Tensor(x).argmin(axis), np.argmin(x, axis))
    same(Tensor(x).argmax(1, keepdim=True), np.argmax(x, 1)[:, None])
    assert Tensor([1.0, math.nan, 2.0]).argmax().item() == 1
    assert Tensor([-128, 3], dtype=dtypes.int8).argmin().item() == 0


def test_softmax():
    x = drawn(4, 6) * 10
    wide = x.astype(np.float64)
    weights = np.exp(wide - wide.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    close(Tensor(x).softmax(), weights)
    close(Tensor(x).log_softmax(), np.log(weights), rtol=1e-5, atol=1e-5)
    close(Tensor(-x).softmin(), weights)
    close(Tensor(x).softmax(0).sum(0), np.ones(6))
    close(Tensor([1000.0, 0.0, -math.inf]).softmax(), [1, 0, 0])
    assert Tensor([-math.inf, -math.inf]).logsumexp().item() == -math.inf
    assert Tensor(x).half().softmax().dtype is dtypes.float16


@pytest.mark.parametrize("size", [1, 5, 256, 257, 1000])
def test_running_reductions(size):
    x = drawn(2, size) * 0.5
    wide = x.astype(np.float64)
    close(Tensor(x).cumsum(1), wide.cumsum(1), rtol=1e-5, atol=1e-5)
    close(Tensor(1 + x * 0.1).cumprod(1), (1 + wide * 0.1).cumprod(1), rtol=1e-4)
    close(Tensor(x).logcumsumexp(1), np.logaddexp.accumulate(wide, 1), rtol=1e-5, atol=1e-5)
    ints = rng.integers(0, 50, (2, size)).astype(np.int32)
    values, places = Tensor(ints).cummax(1)
    same(values, np.maximum.accumulate(ints, 1))
    for row in range(2):
        expected, best = [], 0
        for i, value in enumerate(ints[row]):
            best = i if value >= ints[row][best] else best
            expected.append(best)
        same(places[row], expected)
    same(Tensor(ints).cummin(1)[0], np.minimum.accumulate(ints, 1))


def test_cumsum_other_axes():
    x = rng.integers(-5, 5, (3, 4, 2)).astype(np.int32)
    for axis in (0, 1, 2, -1):
        same(Tensor(x).cumsum(axis), x.cumsum(axis))
    assert Tensor.ones(0).cumsum().shape == (0,) and Tensor(3).cumsum().item() == 3


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 13, 64])
def test_sort_is_stable(size, descending):
    x = rng.integers(0, 6, (3, size)).astype(np.float32)
    order = np.argsort(-x if descending else x, 1, kind="stable")
    values, places = Tensor(x).sort(1, descending)
    same(places, order)
    same(values, np.take_along_axis(x, order, 1))
    same(Tensor(x).argsort(1, descending), order)


@pytest.mark.parametrize("has_int64", [True, False])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_by_network_agrees(monkeypatch, descending, has_int64):
    from tinygrad.functional import sorting

    monkeypatch.setattr(sorting, "RANK_COMPARISONS", 0)
    if not has_int64:  # words of 32 bits, a few of an item's bits at a time
        monkeypatch.setattr(type(Device[Device.DEFAULT]), "has_dtype", lambda _, t: t.itemsize < 8)
    for longest in (2, 8):
        monkeypatch.setattr(sorting, "RANK_LENGTH", longest)
        for size in (3, 9, 13, 32, 100):
            x = rng.integers(0, 6, (2, size)).astype(np.int32)
            order = np.argsort(-x if descending else x, 1, kind="stable")
            same(sorting.argsort(Tensor(x), 1, descending), order)  # not as memoised with other limits
            for count in (1, size // 3, size - 1):
                same(sorting.topk(Tensor(x), count, 1, descending)[1], order[:, :count])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
                                   "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_orders_all_bits_of_every_dtype(dtype, descending):
    bits = np.random.default_rng(1).integers(0, 256, (2, 100 * np.dtype(dtype).itemsize), np.uint8)
    x = bits > 127 if dtype == "bool" else bits.view(dtype)
    if x.dtype.kind == "f":
        x[:, :4] = [-0.0, 0.0, np.inf, -np.inf]
    keys = [[(np.isnan(n), 0.0 if np.isnan(n) else n) for n in row.tolist()] for row in x]
    sign = -1 if descending else 1
    order = [sorted(range(len(row)), key=lambda at: (sign * row[at][0], sign * row[at][1])) for row in keys]
    values, places = Tensor(x).sort(1, descending)
    same(places, order)
    same(values, np.take_along_axis(x, np.array(order), 1))


def test_sort_puts_nan_last():
    values, places = Tensor([3.0, math.nan, 1.0, math.inf]).sort()
    same(values, [1, 3, math.inf, math.nan])
    same(places, [2, 0, 3, 1])


def test_topk():
    x = drawn(4, 9)
    values, places = Tensor(x).topk(3)
    order = np.argsort(-x, 1)[:, :3]
    same(places, order)
    same(values, np.take_along_axis(x, order, 1))
    same(Tensor(x).topk(2, dim=0, largest=False)[0], np.sort(x, 0)[:2])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32"])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_finds_the_first_of_equal_items_of_many_as_sorting_does(dtype, largest):
    """NaN counts as largest, and what is smallest or infinite is an item like others."""
    x = np.random.default_rng(0).integers(0, 3, (4, 1100)).astype(dtype)
    if x.dtype.kind == "f":
        x[0, [5, 900]], x[0, [7, 8, 1099]], x[1], x[2] = np.nan, [np.inf, -np.inf, -np.inf], -np.inf, np.nan
        x[1, 1000] = np.nan
    elif x.dtype.kind in "iu":
        x[0, [5, 900]], x[1], x[2] = np.iinfo(dtype).min, np.iinfo(dtype).min, np.iinfo(dtype).max
    assert SELECTION_LIMIT >= 5 and x.size * x.shape[1] > SMALL_SORT
    values, places = Tensor(x).topk(5, largest=largest)
    ends = np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]
    order = (x.shape[1] - 1 - ends if largest else np.argsort(x, 1, kind="stable"))[:, :5]
    same(places, order)
    same(values, np.take_along_axis(x, order, 1))


# --- matrices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes",
                         [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
                                    ((2, 3), (5, 3, 4)), ((5, 1, 2, 3), (7, 3, 4)), ((3,), (5, 3, 2)),
                                    ((5, 2, 3), (3,)),
                                    ((2, 0), (0, 3)), ((1, 1), (1, 1))])
def test_matmul(shapes):
    a, b = drawn(*shapes[0]), drawn(*shapes[1])
    close(Tensor(a) @ Tensor(b), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5)


def test_matmul_of_half_types_and_integers():
    a, b = drawn(4, 64).astype(np.float16), drawn(64, 4).astype(np.float16)
    same(Tensor(a) @ Tensor(b), (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))
    same(Tensor([[1, 2], [3, 4]]) @ np.array([[5], [6]], np.int32), [[17], [39]])
    x, w, c = drawn(3, 4), drawn(4, 5), drawn(5)
    close(Tensor(x).linear(Tensor(w), Tensor(c)), x @ w + c, rtol=1e-5)
    close(Tensor(x).linear(Tensor(w[:, 0])), x * w[:, 0])


@pytest.mark.parametrize("formula,shapes", [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij->ji", [(2, 3)]), ("ii->i", [(3, 3)]), ("ii", [(3, 3)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]), ("i,j,k->ijk", [(2,), (3,), (4,)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]),
    ("ab,bc,cd", [(2, 3), (3, 4), (4, 5)]), ("i...->...", [(3, 4, 2)]), ("iij->ij", [(3, 3, 2)]),
    ("ij,kj->ik", [(2, 3), (4, 3)]),
])
def test_einsum(formula, shapes):
    arrays = [drawn(*s).astype(np.float64) for s in shapes]
    close(Tensor.einsum(formula, *map(Tensor, arrays)), np.einsum(formula, *arrays))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3), (1, 1)])
def test_qr(shape):
    x = drawn(*shape)
    q, r = (part.numpy().astype(np.float64) for part in Tensor(x).qr())
    np.testing.assert_allclose(q @ r, x, atol=2e-5)
    np.testing.assert_allclose(q @ np.swapaxes(q, -1, -2), np.broadcast_to(np.eye(shape[-2]), q.shape),
                               atol=2e-5)
    np.testing.assert_array_equal(r, np.triu(r))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 4), (1, 1)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(shape, full):
    x = drawn(*shape)
    u, s, vt = (part.numpy().astype(np.float64) for part in Tensor(x).svd(full))
    np.testing.assert_allclose(s, np.linalg.svd(x.astype(np.float64), compute_uv=False), rtol=1e-4, atol=1e-5)
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], x, atol=5e-5)
    for square in (u, np.swapaxes(vt, -1, -2)):
        assert not full or square.shape[-1] == square.shape[-2]
        gram = np.swapaxes(square, -1, -2) @ square
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(gram.shape[-1]), gram.shape), atol=5e-5)


@pytest.mark.parametrize("function", [
    lambda x: x.floor(), lambda x: x.ceil(), lambda x: x.round(), lambda x: x.trunc(), lambda x: x.cat(),
    lambda x: Tensor.stack([x])[0], lambda x: x[:1].cumsum(0), lambda x: x[:1].cumprod(0),
    lambda x: x.repeat(1, 1), lambda x: x.roll(0, 0), lambda x: x.tril(9), lambda x: x.clip(-9, 9)],
    ids=["floor", "ceil", "round", "trunc", "cat", "stack", "cumsum", "cumprod", "repeat", "roll", "tril",
         "clip"])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_what_leaves_values_as_they_are_is_a_value_of_its_own(function, is_lazy):
    x = Tensor([[1, 2], [3, 4]]).realize()
    x = x * 1 if is_lazy else x
    for _ in range(3):
        y = function(x)
        y += 10
        same(x, np.array([[1, 2], [3, 4]]))


def test_numpy_integers_are_sizes_as_any_others():
    two, x = np.int64(2), Tensor.arange(24).reshape(2, 3, 4).float()
    results = [
        (Tensor.arange(np.int64(3)), np.arange(3)),
        (x.split([np.int64(1), np.int64(3)], 2)[1], x.numpy()[:, :, 1:]),
        (x.split(two, 2)[1], x.numpy()[:, :, 2:]),
        (x.roll((two, np.int64(1)), (0, 1)), np.roll(x.numpy(), (2, 1), (0, 1))),
        (x.repeat(two, 1, 1), np.tile(x.numpy(), (2, 1, 1))),
        (x.topk(two)[1], np.full((2, 3, 2), [3, 2])),
        (x.unfold(2, two, two), x.numpy().reshape(2, 3, 2, 2)),
        (x.unflatten(2, (two, two)), x.numpy().reshape(2, 3, 2, 2)),
        (x.pad((two, np.int64(1))), np.pad(x.numpy(), ((0, 0), (0, 0), (2, 1)))),
        (x.conv2d(Tensor.ones(1, 3, 2), stride=two), x.numpy().reshape(2, 3, 2, 2).sum((1, 3))[:, None]),
        (x[0, :2, :2].matrix_power(two), np.linalg.matrix_power(x.numpy()[0, :2, :2], 2)),
        (Tensor.randint(two, low=np.int64(3), high=np.int64(4)), np.array([3, 3])),
    ]
    for result, expected in results:
        assert all(type(size) is int for size in result.shape)
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("name, arguments", [
    ("split", (1,)), ("chunk", (1,)), ("unbind", ()), ("diff", ()), ("size", (0,)),
    ("unflatten", (0, (1, 1))), ("roll", (1, 0)), ("repeat_interleave", (2, 0)), ("narrow", (0, 0, 1)),
])
def test_what_takes_an_axis_says_that_a_number_has_none(name, arguments):
    with pytest.raises(IndexError, match=rf"{name} takes a tensor with axes, got shape \(\)"):
        getattr(Tensor(5.0), name)(*arguments)


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.uint8, dtypes.float16])
def test_diagonals_keep_their_dtype(dtype):
    x = Tensor([1, 0, 1], dtype=dtype)
    for square in (x.diag(), x.diag_embed()):
        assert square.dtype is dtype
        np.testing.assert_array_equal(square.numpy(), np.diag(x.numpy()))
