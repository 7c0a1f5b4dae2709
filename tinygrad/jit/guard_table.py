"""The guard table of a trace: what it took for granted beside its arguments, and how that is read again.

Whatever outside of a function decides what runs leaves a row while it is traced: the memory, values and
gradients of tensors (`captured_state.py`), the objects that names and attributes refer to (`guard_paths.py`),
the content of arrays (`arrays.py`), how sizes compare (`shape_guards.py`). A trace is used where each row
reads what it expects, as in TorchDynamo (Ansel et al., PyTorch 2, 2024).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tinygrad.jit.arguments import Inputs


class Guard(NamedTuple):
    """One row."""

    what: str
    """what is read, for people"""
    read: Callable[[Inputs], Any]
    """reads it, before a call with these arguments"""
    expected: Any
    means_the_same: Callable[[Any], bool] | None = None
    """whether something else that was read is as good; it may take note of it"""

    def holds(self, inputs: Inputs) -> bool:
        """Whether a call with these arguments finds what the traced one did."""
        now = self.read(inputs)
        return bool(now == self.expected) or (self.means_the_same is not None and self.means_the_same(now))


def broken(table: Iterable[Guard], inputs: Inputs) -> Guard | None:
    """The first row that does not hold for a call with these arguments."""
    for guard in table:
        if not guard.holds(inputs):
            return guard
    return None
