"""Blocks of code in which tensors behave otherwise: `no_grad`, and `train` and `test`.

They are attributes of `Tensor` too (`with Tensor.train():`). `functional/transforms.py` calls the functions
that it transforms within `transforming`.
"""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from tinygrad.helpers import Undo

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _tensor_class() -> type[Tensor]:
    from tinygrad.tensor import Tensor

    return Tensor


class _Depth(threading.local):
    """How many blocks of a kind this thread is in."""

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


_transforms = _Depth()


def is_transforming() -> bool:
    """Whether this thread is inside a function that is being transformed."""
    return _transforms.depth > 0


@contextlib.contextmanager
def transforming() -> Iterator[None]:
    """Around the call of a function that is transformed: a `no_grad` block outside of it does not count
    inside."""
    outside, no_grad.state.depth = no_grad.state.depth, 0
    _transforms.depth += 1
    try:
        yield
    finally:
        _transforms.depth -= 1
        no_grad.state.depth = outside


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """A block that computes with values that no transform has to see, as if outside of all functions."""
    depth, _transforms.depth = _transforms.depth, 0
    try:
        yield
    finally:
        _transforms.depth = depth
