"""What has to hold of values: indices within bounds, and assertions of the program.

An operator says so while its graph is walked (`require`). Out: `Checks`, which `dispatch.py` returns with the
results, as one more tensor, to raise the error of the first that does not hold.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tinygrad.tensor import Tensor


class OutOfBounds(IndexError, RuntimeError):
    """An index is that of no item: PyTorch has either error, as the operator is."""


class Checks:
    """The conditions of a program, each with the error that it is where it does not hold."""

    def __init__(self) -> None:
        self.conditions: list[Tensor] = []
        self.errors: list[Exception] = []
        self.seen: set[Any] = set()

    def as_tensor(self) -> Tensor:
        return self.conditions[0].stack(*self.conditions[1:])


active: ContextVar[Checks | None] = ContextVar("active", default=None)
"""Those of the program that is walked."""


@contextmanager
def collected() -> Iterator[Checks]:
    """The conditions of what is walked within."""
    checks = Checks()
    token = active.set(checks)
    try:
        yield checks
    finally:
        active.reset(token)


def require(condition: Tensor, error: Exception) -> None:
    """Raise `error` where the condition, of one item, does not hold once it is computed."""
    checks = active.get()
    if checks is not None:
        checks.conditions.append(condition.reshape(()).ne(0))
        checks.errors.append(error)


def require_within(index: Tensor, size: int, operator: str, from_the_end: bool = False) -> None:
    """Indices are those of `size` items; negative ones count from the end where that is said."""
    checks = active.get()
    key = (index.uop, size, from_the_end)
    if checks is None or key in checks.seen:
        return
    checks.seen.add(key)
    inside = (index >= (-size if from_the_end else 0)) & (index < size)
    require(inside.all(), OutOfBounds(f"{operator}: an index is out of bounds for an axis of {size} items"))
