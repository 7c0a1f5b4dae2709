"""Operations along an axis that is cut, in the middle of what devices have, or at random: they give what one
device gives, or say what to do."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from arrays import normal
from several_devices import memories as memories

from tinygrad import Tensor

THREE = ("CPU", "CPU:1", "CPU:2")


def whole(x: Tensor, values: object) -> Tensor:
    """An operand on the devices of `x`."""
    t = Tensor(values)
    return t.shard(x.device) if isinstance(x.device, tuple) else t


def written(change: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    """What is in a tensor's memory after a change of it."""
    def run(x: Tensor) -> Tensor:
        x = x.contiguous().realize()
        change(x)
        return x
    return run


PLACES = np.array([[0, 2], [5, 1]])
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # partial results
    "the largest": lambda x: x.max(),
    "a product": lambda x: x.prod(0),
    "the place of the largest": lambda x: x.argmax(0),
    "a softmax": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "standard deviation": lambda x: x.std(0),
    "running sums": lambda x: x.cumsum(0),
    # norms over the axis that is cut
    "layer norm over the first axis": lambda x: x.permute(1, 2, 0).layernorm(),
    "batch norm": lambda x: x.batchnorm(None, None, x.mean((0, 2)), (x.var((0, 2)) + 1e-5).rsqrt()),
    "a norm": lambda x: x / x.square().sum((0, 1), keepdim=True).sqrt(),
    # items that move from device to device
    "a reshape": lambda x: x.reshape(5, 24),
    "a reshape of a transpose": lambda x: x.permute(2, 1, 0).reshape(10, 12),
    "sorting": lambda x: x.sort(0)[0],
    "rolling": lambda x: x.roll(1, 0),
    "items by number": lambda x: x[whole(x, PLACES)],
    "a convolution": lambda x: x.reshape(1, 1, 24, 5).conv2d(whole(x, np.ones((1, 1, 3, 3), np.float32))),
    "pooling": lambda x: x.reshape(1, 6, 4, 5).max_pool2d((2, 2)),
    "joining": lambda x: Tensor.cat(x, x, dim=0),
    # writes
    "writing a slice": written(lambda x: x.__setitem__((slice(1, 4), slice(None, None, 2)), 7.0)),
    "writing by number": written(lambda x: x.__setitem__(whole(x, [0, 3]), 1.5)),
    "writing by mask": written(lambda x: x.__setitem__(x > 0, 0.5)),
    # random numbers
    "dropout": lambda x: x.dropout(0.5),
    "random numbers like it": lambda x: x + Tensor.randn_like(x),
    "random numbers": lambda x: x * Tensor.rand(6, 4, 5),
    "a draw": lambda x: x[:, 0].softmax(1).multinomial(1),
}


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_what_is_cut_gives_what_one_device_gives(name: str, axis: int) -> None:
    found = []
    for spread in (lambda t: t, lambda t: t.shard(THREE, axis)):
        Tensor.manual_seed(1)
        with Tensor.train():
            found.append(OPERATIONS[name](spread(Tensor(normal(6, 4, 5)))).numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_nothing_is_written_through_an_empty_view_that_devices_cannot_take_apart() -> None:
    """It was refused, as a view with items is, and the tensor could not be read any more."""
    a = normal(4, 3)
    x = Tensor(a).shard(("CPU", "CPU:1"), 0).realize()
    view = x.reshape(3, 4)[0:0]
    view.assign(Tensor.zeros(0, 4).shard(x.device)).realize()
    np.testing.assert_array_equal(x.numpy(), a)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_writing_into_views_that_join_what_is_on_several_devices(axis: int | None) -> None:
    """It was refused, and the tensor could not be read any more."""
    draw = np.random.default_rng(3)
    for shape in ((24,), (3, 8), (8, 3), (2, 12), (12, 2), (2, 3, 4)):
        for step in (1, 2, -1):
            expected = normal(4, 6)
            x = Tensor(expected).shard(("CPU", "CPU:1"), axis).realize()
            for _ in range(3):
                cut = tuple(slice(None if step < 0 else int(draw.integers(size)), None, step)
                            for size in shape)
                values = draw.standard_normal(expected.reshape(shape)[cut].T.shape).astype(np.float32)
                x.reshape(shape)[cut].permute(*reversed(range(len(shape)))).assign(Tensor(values).shard(x.device))
                expected.reshape(shape)[cut].T[...] = values
            np.testing.assert_array_equal(x.numpy(), expected)
            x.reshape(24)[7:20] = 2.0
            expected.reshape(24)[7:20] = 2
            np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.usefixtures("memories")
@pytest.mark.parametrize("axis", [None, 0])
def test_a_part_that_one_device_has_computed_is_none_of_another_call(axis: int | None) -> None:
    """The first part of what lies on two devices may be a value that a tensor of one device has."""
    for i in range(3):
        x = normal(6, 4, seed=i)
        one = Tensor(x, device="CPU").realize()
        held = (one * 3).realize() if i == 0 else None
        got = ((one.shard(("CPU", "CPU:1"), axis) * 3).exp() + 1).numpy()
        np.testing.assert_allclose(got, np.exp(x * 3) + 1, rtol=1e-5)
        del held


@pytest.mark.usefixtures("memories")
def test_what_comes_back_from_several_devices_is_a_copy_of_what_one_device_has_computed() -> None:
    one = Tensor([1.0, 2.0], device="CPU").realize() + 1
    spread = one.shard(("CPU", "CPU:1"))
    back = spread.to("CPU")
    one.realize()
    np.testing.assert_array_equal(spread.numpy(), [2, 3])
    back.realize().assign(Tensor([8.0, 9.0], device="CPU")).realize()
    np.testing.assert_array_equal(back.numpy(), [8, 9])
    for kept in (one, spread):
        np.testing.assert_array_equal(kept.numpy(), [2, 3])
