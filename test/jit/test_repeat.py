"""Calls like the one before, in few steps: they give what the function gives, and whatever differs in any
respect is noticed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit
from tinygrad.device.queue import CommandQueue
from tinygrad.jit.arguments import Inputs
from tinygrad.jit.repeat import ShortCommands

pytestmark = pytest.mark.usefixtures("on_cpu")


def tensor(*shape: int, start: int = 0) -> Tensor:
    size = int(np.prod(shape))
    return Tensor(np.arange(start, start + size, dtype=np.float32).reshape(shape)).realize()


class Counted:
    """How often arguments were taken apart, which repeated calls do without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        made = Inputs.__init__

        def counting(inputs: Inputs, values: Any) -> None:
            self.count += 1
            made(inputs, values)

        monkeypatch.setattr(Inputs, "__init__", counting)


RESULTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a tensor": lambda x, y: x * y + 1,
    "a view": lambda x, y: (x * y).reshape(6).flip(0),
    "a tuple": lambda x, y: (x + y, (x - y).sum()),
    "a list": lambda x, y: [x + y, x * 2, x + y],
    "a dict": lambda x, y: {"sum": x + y, "n": 3, "in": (y.max(1),)},
}


def arrays_in(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, Tensor):
        return [value.numpy()]
    if isinstance(value, dict):
        value = list(value.values())
    return [a for v in value for a in arrays_in(v)] if isinstance(value, (list, tuple)) else [np.array(value)]


@pytest.mark.parametrize("name", RESULTS)
def test_repeated_calls_give_what_the_function_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = RESULTS[name]
    jitted = TinyJit(function)
    results = []
    written = tensor(4).assign(tensor(4, start=3)) + 1  # it is made of a write, which nothing shows any more
    for i in range(3):
        jitted(tensor(2, 3, start=i), tensor(2, 3, start=2 * i))
    counted = Counted(monkeypatch)
    for i in range(5):
        x, y = tensor(2, 3, start=i), tensor(2, 3, start=7 * i)
        results.append((jitted(x, y), function(x, y)))
    assert counted.count == 0 and len(jitted.traces) == 1
    assert written.tolist() == [4, 5, 6, 7]
    for ours, expected in results:  # later results are in other memory
        assert type(ours) is type(expected)
        for a, b in zip(arrays_in(ours), arrays_in(expected), strict=True):
            np.testing.assert_array_equal(a, b)


def test_results_go_in_again() -> None:
    jitted = TinyJit(lambda x: x * 2 + 1)
    x, expected = tensor(4), np.arange(4, dtype=np.float32)
    for _ in range(9):
        x, expected = jitted(x), expected * 2 + 1
    np.testing.assert_array_equal(x.numpy(), expected)


OTHERS: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "the same twice": lambda: (tensor(2, 3),) * 2,
    "a view": lambda: (tensor(3, 2).permute(1, 0), tensor(2, 3)),
    "part of another": lambda: (tensor(4, 3)[1:3], tensor(2, 3)),
    "lazy": lambda: (tensor(2, 3) + 1, tensor(2, 3)),
    "a number": lambda: (Tensor.full((2, 3), 5.0), tensor(2, 3)),
    "another shape": lambda: (tensor(1, 3), tensor(2, 3)),
    "another dtype": lambda: (tensor(2, 3).cast("int32").realize(), tensor(2, 3)),
    "reshaped": lambda: (tensor(6).reshape(2, 3), tensor(2, 3)),
    "assigned": lambda: (tensor(2, 3).assign(tensor(2, 3, start=9)), tensor(2, 3)),
    "a view that was written to": lambda: (written(), tensor(2, 3)),
    "a gradient wanted": lambda: (Tensor([[1.0, 2, 3], [4, 5, 6]], requires_grad=True), tensor(2, 3)),
    "fewer": lambda: (tensor(2, 3),),
}


def written() -> Tensor:
    x = tensor(2, 3)
    x[0] = 7
    return x


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_between_repeated_ones(name: str) -> None:
    def function(x: Tensor, y: Tensor | None = None) -> Tensor:
        return x * 3 + (x if y is None else y)

    jitted = TinyJit(function)
    for i in range(12):
        given = OTHERS[name]() if i % 4 == 3 else (tensor(2, 3, start=i), tensor(2, 3, start=-i))
        np.testing.assert_array_equal(jitted(*given).numpy(), function(*given).numpy())


def test_what_is_pending_elsewhere_is_written_first() -> None:
    weight = tensor(3)
    jitted = TinyJit(lambda x: x + weight)
    x = tensor(3)
    for i in range(8):
        if i > 3:
            weight.assign(weight + 1)  # lazy
        assert jitted(x).tolist() == [0 + max(0, i - 3), 2 + max(0, i - 3), 4 + max(0, i - 3)]
    weight = tensor(3, start=5)
    assert jitted(x).tolist() == [5, 7, 9]


def test_modes_are_of_the_kind() -> None:
    jitted = TinyJit(lambda x: x + (1 if Tensor.training else 0))
    x = tensor(2)
    for _ in range(4):
        assert jitted(x).tolist() == [0, 1]
    with Tensor.train():
        for _ in range(4):
            assert jitted(x).tolist() == [1, 2]
    assert jitted(x).tolist() == [0, 1]
    with Context(NOOPT=1):
        assert jitted(x).tolist() == [0, 1]
    assert len(jitted.traces) == 3
    jitted.reset()
    assert jitted.repeated is None and jitted(x).tolist() == [0, 1]


def test_numbers_and_names_are_others_each_time() -> None:
    jitted = TinyJit(lambda x, factor=1: x * factor)
    x = tensor(3)
    for i in range(4):
        assert jitted(x).tolist() == [0, 1, 2]
        assert jitted(x, i).tolist() == [0, i, 2 * i]
        assert jitted(x, factor=i).tolist() == [0, i, 2 * i]


@pytest.mark.parametrize("is_accepted", (False, True))
def test_an_interrupt_between_commands_leaves_none_out_and_makes_none_twice(is_accepted: bool) -> None:
    """As ctrl-C does, before a queue has accepted a command or right after it."""
    class Queue(CommandQueue):
        accepted, times_lists = 7, True

        def runs_here(self, *_: object) -> bool:
            return True

    class Command:
        seconds = 0.0

        def __init__(self) -> None:
            self.queue = Queue("commands")

        def __call__(self, memory: Any) -> None:
            interrupts = len(made) == 1
            if is_accepted or not interrupts:
                self.queue.accepted += 1
            made.append(self)
            if interrupts:
                raise KeyboardInterrupt

    made: list[Any] = []
    commands: list[Any] = [Command() for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        ShortCommands(commands, []).run([])
    first, second, third = commands
    assert made == [first, second, third] if is_accepted else [first, second, second, third]
    assert [command.queue.accepted for command in commands] == [8, 8, 8]
