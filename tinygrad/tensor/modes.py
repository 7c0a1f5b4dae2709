"""Blocks of code in which tensors behave otherwise: `no_grad`, and `train` and `test`.

They are attributes of `Tensor` too (`with Tensor.train():`). Training is a setting, as DEBUG is:
`Context(TRAINING=1)`. `functional/transforms.py` calls the functions that it transforms within
`transforming`.
"""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import ClassVar

from tinygrad.helpers import Context


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


class train(Context):
    """Within this block (or decorated function), `Tensor.training` is `mode`: dropout and batch statistics
    on. That is so for the whole process, other threads included."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__(TRAINING=mode)


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
