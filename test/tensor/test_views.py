"""Which tensors share memory: views show what is written into what they view, everything else does not."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit

PADDED: dict[str, Callable[[Tensor], Tensor]] = {
    "a pad": lambda x: x.pad(((1, 1),)),
    "a crop of a pad": lambda x: x.pad(((1, 1),))[1:3],
    "a pad cropped away": lambda x: x.pad(((1, 1),))[1:4],
    "a reshaped pad": lambda x: x.pad(((1, 2),)).reshape(2, 3),
    "a flipped pad": lambda x: x.pad(((1, 1),)).flip(0),
    "a pad of a view": lambda x: x.flip(0).pad(((1, 1),)),
    "joined tensors": lambda x: x.cat(x),
    "a pad of what is computed": lambda x: (x + 1).pad(((1, 1),)),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("first", [True, False], ids=["realised", "lazy"])
def test_a_pad_keeps_what_its_source_held(name: str, first: bool) -> None:
    x = Tensor([1, 2, 3]).realize()
    expected = PADDED[name](Tensor([1, 2, 3])).numpy()
    y = PADDED[name](x)
    if first:
        y.realize()
    x.assign(x * 0 + 9).realize()
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), [9, 9, 9])


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("first", [True, False], ids=["realised", "lazy"])
def test_writing_into_a_pad_leaves_its_source(name: str, first: bool) -> None:
    x = Tensor([1, 2, 3]).realize()
    y = PADDED[name](x)
    expected = y.numpy() * 2
    expected[0] = 7
    y = PADDED[name](x)
    if first:
        y.realize()
    y.assign(y * 2)
    y[0] = 7
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), [1, 2, 3])


def test_a_pad_of_a_pending_write_shows_what_is_written_then_and_not_later() -> None:
    x = Tensor([1, 2, 3]).realize()
    x.assign(x * 10)
    y = x.pad(((1, 1),))
    x.assign(x + 1)
    np.testing.assert_array_equal(y.numpy(), [0, 10, 20, 30, 0])
    np.testing.assert_array_equal(x.numpy(), [11, 21, 31])


def test_a_pad_and_what_it_pads_computed_together_are_two_memories() -> None:
    base = Tensor([1, 2, 3]).realize()
    x = base + 1
    y = x.pad(((1, 1),))
    x.realize(y)
    x.assign(x * 0).realize()
    y[1] = 5
    np.testing.assert_array_equal(y.numpy(), [0, 5, 3, 4, 0])
    np.testing.assert_array_equal(x.numpy(), [0, 0, 0])


def test_views_show_what_is_written_into_their_memory() -> None:
    x = Tensor(np.arange(6, dtype=np.float32)).realize()
    views = [x[2:5], x.reshape(2, 3).permute(1, 0), x.flip(0), x[::2].expand(2, 3)]
    seen = [v.numpy() for v in views]
    views[0].assign(Tensor([-1.0, -2.0, -3.0])).realize()
    after = np.array([0, 1, -1, -2, -3, 5], np.float32)
    for view, before, expected in zip(views, seen, [after[2:5], after.reshape(2, 3).T, after[::-1],
                                                    np.broadcast_to(after[::2], (2, 3))], strict=True):
        assert not np.array_equal(before, expected)
        np.testing.assert_array_equal(view.numpy(), expected)


def test_under_the_jit_a_pad_is_a_copy_too() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        padded = x.pad(((1, 1),))
        x.assign(x + 1).realize()
        return padded.realize()

    for start in range(4):
        x = Tensor([start, start]).realize()
        padded = step(x)
        np.testing.assert_array_equal(padded.numpy(), [0, start, start, 0])
        np.testing.assert_array_equal(x.numpy(), [start + 1, start + 1])


def test_realized_says_whether_there_is_memory() -> None:
    x = Tensor([1, 2, 3]).realize()
    assert x.uop.realized is not None
    assert x[1:].uop.realized is x.uop.realized
    padded = x.pad(((1, 1),))
    assert padded.uop.realized is None
    assert padded.realize().uop.realized is not x.uop.realized


def test_writes_one_after_another_through_a_view_of_windows() -> None:
    x = Tensor([5, 8]) * 2
    windows = x.unfold(0, 1, 1)
    windows -= 3
    windows *= windows
    assert x.tolist() == [49, 169] and windows.tolist() == [[49], [169]]


def test_a_view_written_to_where_another_handle_is_still_to_be_written() -> None:
    x = (Tensor([7, -8]) * 2).realize()
    view = x[:]
    x *= view
    x[:] = view
    assert x.tolist() == view.tolist() == [196, 256]


COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "a value": lambda x: x * 2,
    "a view of a value": lambda x: (x * 2).reshape(2, 2),
    "a part of a value": lambda x: (x * 2)[1:3],
    "a sum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("order", ["viewed first", "computed first", "neither", "view computed"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_what_was_computed_from_is_overwritten_before_a_view_is_written_to(name: str, order: str, dtype: str
                                                                           ) -> None:
    x = Tensor([3, 1, 2, 4], dtype=dtype).realize()
    expected = COMPUTED[name](Tensor([3, 1, 2, 4], dtype=dtype)).numpy()
    expected[0] = 9
    y = COMPUTED[name](x)
    if order == "computed first":
        y.realize()
    elif order != "neither":
        view = y[0:1]
    if order == "view computed":
        view.numpy()
    x[:] = -1
    if order in ("computed first", "neither"):
        view = y[0:1]
    view[0] = 9
    np.testing.assert_array_equal(view.numpy(), expected[0:1])
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.parametrize("size", [6, 90], ids=["few", "many"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_views_of_memory_are_read_as_they_lie(size: int, dtype: str) -> None:
    memory = np.arange(size * size).reshape(size, size) % 200
    x = Tensor(memory.astype(np.float32)).cast(dtype).realize()
    views: list[Callable[[Any], Any]] = [
        lambda v: v[::-1, ::-2], lambda v: v[1:, 2], lambda v: v[size - 1], lambda v: v.T,
        lambda v: v.T[1:3, ::2], lambda v: v[2:3, 3:4], lambda v: v.reshape(size // 2, 2 * size)[:, 3]]
    for view in views:
        np.testing.assert_array_equal(view(x).float().numpy(), view(memory))
        np.testing.assert_array_equal(view(x).numpy().astype(np.float32), view(memory))
    spread = x[:, :1].expand(size, 7)
    np.testing.assert_array_equal(spread.numpy().astype(np.float32), np.repeat(memory[:, :1], 7, 1))
    assert x[size - 1, 0].item() == memory[size - 1, 0]
    before = x[1].numpy()
    x[1] = 0
    assert before.astype(np.float32).any() and not x[1].numpy().astype(np.float32).any()


@pytest.mark.parametrize("lazy", [
    lambda: Tensor.arange(2).float(), lambda: Tensor([0.0, 1.0], requires_grad=False) * 2,
    lambda: Tensor.zeros(2), lambda: overwritten(Tensor([1.0, 2.0]) * 2),
], ids=["arange", "of a constant", "zeros", "overwritten by a number"])
@pytest.mark.parametrize("index", [0, slice(0, 1), [0]])
def test_gradients_flow_through_what_is_written_into_a_lazy_value(lazy: Callable[[], Tensor],
                                                                  index: Any) -> None:
    x, y = Tensor([3.0], requires_grad=True), lazy()
    view = y[:1]
    y[index] = (x * x).sum()
    (y.square().sum() + view.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [2 * 9 * 2 * 3 + 6]


def overwritten(x: Tensor) -> Tensor:
    x[:] = 0.0
    return x


def test_a_tensor_that_refuses_gradients_takes_what_is_written_as_a_constant() -> None:
    x, y = Tensor([3.0], requires_grad=True), Tensor.zeros(2, requires_grad=False)
    y[:1] = x * x
    (y.sum() * x.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [9.0]


def doubled() -> tuple[Tensor, Tensor]:
    """Two tensors of equal expressions, of numbers that no gradient goes to."""
    x = Tensor([[0, 1], [2, 3]]) * 2
    return x.clone(), x.clone()


@pytest.mark.parametrize("view", [lambda y: y.permute(1, 0), lambda y: y[0]])
@pytest.mark.parametrize("devices", [None, ("CPU", "CPU:1")])
def test_an_equal_expression_does_not_take_memory_that_views_were_made_of_before(
        view: Callable[[Tensor], Tensor], devices: tuple[str, ...] | None) -> None:
    x = Tensor([[0, 1], [2, 3]])
    x = (x if devices is None else x.shard(devices, 0)) * 2
    y, z = x.clone(), x.clone()
    shown = view(y)
    y.realize()
    z[0] = 7
    assert y.tolist() == [[0, 2], [4, 6]] and z.tolist() == [[7, 7], [4, 6]]
    shown += 1
    assert z.tolist() == [[7, 7], [4, 6]]


def test_an_equal_expression_does_not_take_memory_of_which_a_view_stayed() -> None:
    y, z = doubled()
    shown = y.realize()[:]
    del y
    z[0] = 7
    assert shown.tolist() == [[0, 2], [4, 6]] and z.tolist() == [[7, 7], [4, 6]]


def test_an_equal_expression_takes_memory_that_nobody_shows() -> None:
    y, z = doubled()
    memory = y.realize().uop.base.storage
    del y
    z[0] = 7
    assert z.realize().uop.base.storage is memory
