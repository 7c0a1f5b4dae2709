"""What is put together along an axis: loops that are cut where the pieces meet, so that masks are gone."""
from __future__ import annotations

import numpy as np
import pytest
from arrays import normal

from tinygrad import Context, Device, Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.loop_partition import partition
from tinygrad.codegen.opt.opts import PartitionLoop, Stage, Thread
from tinygrad.codegen.opt.plan import apply_opt
from tinygrad.graph.ops import Ops

SIXTEEN = [(40, n) for n in range(9, 41, 2)]
JOINED = {
    "two rows": (lambda *a: Tensor.cat(*a, dim=1), lambda *a: np.concatenate(a, 1), [(68, 552), (68, 277)]),
    "sixteen odd pieces": (lambda *a: Tensor.cat(*a, dim=1), lambda *a: np.concatenate(a, 1), SIXTEEN),
    "a middle axis": (lambda *a: Tensor.cat(*a, dim=1), lambda *a: np.concatenate(a, 1),
                      [(8, n, 97) for n in (17, 1, 65)]),
    "the first axis": (lambda *a: Tensor.cat(*a, dim=0), lambda *a: np.concatenate(a),
                       [(n, 397) for n in (131, 203, 65)]),
    "one axis": (lambda *a: Tensor.cat(*a), lambda *a: np.concatenate(a), [(70001,), (1,), (33333,)]),
    "before arithmetic": (lambda a, b: a.cat(b, dim=1).relu() * 2 + a.cat(b, dim=1).exp2(),
                          lambda a, b: np.maximum(c := np.concatenate([a, b], 1), 0) * 2 + np.exp2(c),
                          [(68, 55), (68, 127)]),
    "after arithmetic": (lambda a: (-a[:, 32:]).cat(a[:, :32] * 3, dim=1),
                         lambda a: np.concatenate([-a[:, 32:], a[:, :32] * 3], 1), [(512, 64)]),
    "padding of rows": (lambda a: a.pad(((0, 0), (3, 5))).contiguous(), lambda a: np.pad(a, ((0, 0), (3, 5))),
                        [(500, 103)]),
    "padding of images": (lambda a: a.pad(((0, 0), (1, 1), (2, 1))).contiguous(),
                          lambda a: np.pad(a, ((0, 0), (1, 1), (2, 1))), [(64, 57, 57)]),
    "a roll": (lambda a: a.roll(7, 1).contiguous(), lambda a: np.roll(a, 7, 1), [(300, 1001)]),
}
every_join = pytest.mark.parametrize("name", JOINED)


def stages(value):
    return stages_of(value.schedule()[-1].ast, "CPU")


@every_join
def test_what_is_joined_reads_each_piece_without_a_mask(name):
    ours, _, shapes = JOINED[name]
    found = stages(ours(*[Tensor(normal(*shape)).realize() for shape in shapes]))
    assert any(isinstance(opt, PartitionLoop) for opt in found.plan.opts)
    assert not any(n.op is Ops.INDEX and len(n.src) == 3 for n in found.program)


@every_join
@pytest.mark.parametrize("plain", [0, 1])
def test_what_is_joined_is_numpys(name, plain):
    ours, theirs, shapes = JOINED[name]
    arrays = [normal(*shape) for shape in shapes]
    with Context(NOOPT=plain):
        result = ours(*[Tensor(a).realize() for a in arrays]).numpy()
    np.testing.assert_allclose(result, theirs(*arrays), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape, loops", [((128, 64), 1), ((1 << 12,), 1), ((999,), 2)])
def test_both_words_of_a_block_of_random_bits_are_computed_once(shape, loops):
    """The first words are the first half of the draws."""
    found = stages(Tensor.rand(*shape))
    nest = apply_opt(found.nest, next(opt for opt in found.plan.opts if isinstance(opt, PartitionLoop)))
    assert len(nest.src) == 2 and len({store.closed_ranges for store in nest.src}) == loops


@pytest.mark.parametrize("dtype", ["float16", "int8", "bool", "int64"])
def test_every_dtype(dtype):
    arrays = [np.arange(37 * n).reshape(37, n) % 2 for n in (19, 40, 1, 77)]
    joined = Tensor.cat(*(Tensor(a).cast(getattr(dtypes, dtype)).realize() for a in arrays), dim=1)
    np.testing.assert_array_equal(joined.numpy().astype(int), np.concatenate(arrays, 1))


def test_a_mask_of_two_loops_is_left_where_only_both_decide():
    array = normal(90, 200)
    assert np.array_equal(Tensor(array).realize().tril(60).numpy(), np.tril(array, 60))
    found = stages(Tensor(array).realize().tril(60))
    cut = next(opt for opt in found.plan.opts if isinstance(opt, PartitionLoop))
    assert cut.begins == (61, 150)  # every row has what is left of 61, none has what is right of 150


def test_pieces_have_loops_of_their_own():
    nest = lower((Tensor.rand(8, 6, 5).realize().pad(((0, 0), (2, 1), (0, 0))) + 0).schedule()[-1].ast)
    middle = nest.src[0].closed_ranges[1]
    cut = apply_opt(nest, PartitionLoop(middle.arg[0], (2, 8)))
    loops = [tuple(r.extent for r in store.closed_ranges) for store in cut.src]
    assert loops == [(8, 2, 5), (8, 6, 5), (8, 5)]
    assert len({r for store in cut.src for r in store.closed_ranges[1:]}) == 5


WINDOWS = {
    "depthwise convolution": lambda x, w: x.conv2d(w, groups=24, padding=1),
    "the same, strides": lambda x, w: x.conv2d(w, groups=24, padding=1, stride=2),
    "the largest": lambda x, w: x.max_pool2d((3, 3), stride=1, padding=1),
    "the mean": lambda x, w: x.avg_pool2d((3, 3), stride=1, padding=1, count_include_pad=False),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("columns", [14, 57, 112])
def test_windows_at_the_edge_of_an_image(name, columns):
    image, weight = normal(2, 24, 9, columns), normal(24, 1, 3, 3)
    value = WINDOWS[name](*[Tensor(a).realize() for a in (image, weight)])
    if value.shape[-1] > 2 * Device["CPU"].renderer.machine.lanes(dtypes.float32):  # more than both edges
        assert any(isinstance(opt, PartitionLoop) for opt in stages(value).plan.opts)
    around = -np.inf if "largest" in name else 0
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=around)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).astype(np.float64)
    if "largest" in name:
        expected = windows.max((4, 5))
    elif "mean" in name:
        ones = np.pad(np.ones_like(image), ((0, 0), (0, 0), (1, 1), (1, 1)))
        counts = np.lib.stride_tricks.sliding_window_view(ones, (3, 3), (2, 3)).sum((4, 5))
        expected = windows.sum((4, 5)) / counts
    else:
        expected = (windows * weight[:, 0][None, :, None, None]).sum((4, 5))
    step = 2 if "strides" in name else 1
    np.testing.assert_allclose(value.numpy(), expected[:, :, ::step, ::step], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("channels", [32, 37, 96])
def test_weights_of_each_channel_lie_as_the_lanes_read_them(channels: int, size: int) -> None:
    """Lanes are channels, whose weights lie apart: they are staged, once for all pixels."""
    stored, weight = normal(2, 18, 19, channels), normal(channels, 1, size, size)
    image = Tensor(stored).realize().permute(0, 3, 1, 2)
    value = image.conv2d(Tensor(weight).realize(), groups=channels).permute(0, 2, 3, 1).contiguous()
    assert any(isinstance(opt, Stage) for opt in stages(value).plan.opts)
    windows = np.lib.stride_tricks.sliding_window_view(stored, (size, size), (1, 2)).astype(np.float64)
    np.testing.assert_allclose(value.numpy(), (windows * weight[:, 0]).sum((4, 5)), rtol=1e-5, atol=1e-5)

def test_channels_that_were_shuffled_are_lanes():
    stored, weight = normal(4, 15, 15, 24), normal(96, 1, 3, 3)
    image = Tensor(stored).realize().permute(3, 0, 1, 2).reshape(1, 96, 15, 15)
    value = image.conv2d(Tensor(weight).realize(), groups=96, padding=1)
    assert any(n.op is Ops.LOAD and n.dtype.count > 1 for n in stages(value).program)
    padded = np.pad(stored.transpose(3, 0, 1, 2).reshape(96, 15, 15), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    expected = (windows * weight[:, 0][:, None, None]).sum((3, 4))
    np.testing.assert_allclose(value.numpy()[0], expected, rtol=1e-5, atol=1e-5)


def test_a_loop_of_a_sum_is_not_cut():
    nest = lower(Tensor.rand(8, 6).realize().sum(1).schedule()[-1].ast)
    loop = next(n for n in nest.toposort() if n.op is Ops.REDUCE).closed_ranges[0]
    with pytest.raises(ValueError, match=f"r{loop.arg[0]} is no loop of outputs alone"):
        partition(nest, loop, [2])


def test_threads_share_loops_of_which_every_store_has_one():
    nest = lower(Tensor.cat(*[Tensor.rand(n, 3).realize() for n in (5, 9)]).schedule()[-1].ast)
    nest = apply_opt(nest, PartitionLoop(nest.src[0].closed_ranges[0].arg[0], (5,)))
    first, second = (store.closed_ranges[0].arg[0] for store in nest.src)
    shared = apply_opt(nest, Thread(first, (second,), 3))
    assert len({store.closed_ranges[0] for store in shared.src}) == 1
    with pytest.raises(ValueError, match="each STORE, and all that it needs"):
        apply_opt(nest, Thread(first, (first,), 3))
