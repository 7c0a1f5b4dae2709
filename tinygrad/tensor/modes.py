"""Blocks of code in which tensors behave otherwise: `no_grad`, and `train` and `test`.

They are attributes of `Tensor` too (`with Tensor.train():`).
"""
from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from tinygrad.helpers import Undo

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _tensor_class() -> type[Tensor]:
    from tinygrad.tensor import Tensor

    return Tensor


class _Depth(threading.local):
    """How many `no_grad` blocks this thread is in."""

    depth = 0


class no_grad(contextlib.ContextDecorator):
    """Within this block (or decorated function), results are constants to gradients, in this thread."""

    state: ClassVar[_Depth] = _Depth()

    def __enter__(self) -> None:
        no_grad.state.depth += 1

    def __exit__(self, *exc: object) -> None:
        no_grad.state.depth -= 1


class train(contextlib.ContextDecorator):
    """Within this block (or decorated function), `Tensor.training` is `mode`: dropout and batch statistics
    on. That is so for the whole process, other threads included."""

    undo: ClassVar[Undo] = Undo(lambda name: getattr(_tensor_class(), name),
                                lambda name, value: setattr(_tensor_class(), name, value))

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode
        self.saved: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self.saved.append(self.undo.begin({"training": self.mode}))

    def __exit__(self, *exc: object) -> None:
        self.undo.end(self.saved.pop())


def test() -> train:
    """A block in which `Tensor.training` is False."""
    return train(False)
