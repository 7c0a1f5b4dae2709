"""The arrays and lists that a traced call made tensors of: whether calling again would make the same.

The kernels of a trace read the copies that were made then. `HostData` has the digests of their content, by
which two traces are compared, and the arrays and lists among their sources that live on outside of the call,
each a row of the guard table (`jit/guard_table.py`).
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.jit.guard_paths import GuardPaths, reference_to
from tinygrad.jit.guard_table import Guard
from tinygrad.tensor.hostdata import array_of, owner_of

Array: TypeAlias = np.ndarray[Any, Any]


def digest_of(array: Array) -> bytes:
    """What arrays of the same dtype, shape and bytes have in common, and no others."""
    digest = hashlib.blake2b(f"{array.dtype.name}{array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


@frozen
class Source:
    """Where the content of a tensor came from, and what it was."""

    digest: bytes
    root: Callable[[], Any]
    """what owns the data: None where nobody holds it any more"""
    read: Callable[[Any], Array]
    """the content, of the owner"""

    def guard(self) -> Guard:
        """The row that holds while the data would make the same tensor."""
        return Guard("an array or list that a tensor is made of", lambda inputs: self.digest_now(),
                     self.digest)

    def digest_now(self) -> bytes | None:
        """That of the tensor that the data would make now; None where it would make none."""
        root = self.root()
        try:
            return None if root is None else digest_of(self.read(root))
        except (ArithmeticError, TypeError, ValueError, RuntimeError):  # no data for a tensor any more
            return None


def source_of(data: Any, digest: bytes, convert: Callable[[Any], Array]) -> Source | None:
    """How to `convert` the data again without keeping it alive, as far as that can be; None for what cannot
    change."""
    if isinstance(data, memoryview):
        data = np.asarray(data)
    if isinstance(data, (bytes, range)) or data is None:
        return None
    if not isinstance(data, np.ndarray):
        return Source(digest, reference_to(data), convert)
    root, view = owner_of(data), _view(data)
    memory = getattr(root.base, "obj", root.base)
    if isinstance(memory, bytes):
        return None
    # memory of others may outlive each array over it
    return Source(digest, reference_to(root) if memory is None else lambda: root,
                  lambda root: convert(view(root)))


def _view(array: Array) -> Callable[[Array], Array]:
    """What makes `array` of its owner: that one itself, or a view of it."""
    root = owner_of(array)
    if root is array:
        return lambda root: root
    if array.dtype.hasobject:
        return lambda root: array
    shape, dtype, strides = array.shape, array.dtype, array.strides
    offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]

    def view(root: Array) -> Array:
        memory = np.asarray(root).ravel(order="K").view(np.uint8)
        return np.ndarray(shape, dtype, memory, offset, strides)

    return view


class HostData:
    """The host data that became tensors in one call."""

    def __init__(self) -> None:
        self.digests: list[bytes] = []
        self.sources: list[Source] = []
        self.is_repeated = True
        """whether the call before had the same"""
        self.arguments: list[Array] = []
        """arrays that calls are told apart by"""

    def given(self, argument: Array) -> Array:
        """An array that the function gets as an argument: what is made of it is the same in each call of
        that kind."""
        self.arguments.append(argument)
        return argument

    def note(self, data: Any, dtype: DType | None, array: Array) -> None:
        """`data`, of which nothing can be read again where it is None, becomes a tensor with the content of
        `array`."""
        owner = owner_of(data) if isinstance(data, np.ndarray) else None
        if any(owner is argument for argument in self.arguments):
            return
        digest = digest_of(array)
        self.digests.append(digest)
        source = source_of(data, digest, lambda data: array_of(data, dtype))
        if source is not None:
            self.sources.append(source)

    def roots(self) -> set[int]:
        """The ids of the owners that live."""
        return {id(root) for source in self.sources if (root := source.root()) is not None}

    def drop_dead_sources(self, guard_paths: GuardPaths) -> None:
        """After the call: keep the sources that live on outside of it. A list does if the function reaches
        it. What was made of something that is gone may have been computed from the arrays that the code
        reads by name: those must stay as they are too."""
        alive = [s for s in self.sources if (root := s.root()) is not None
                 and not (isinstance(root, (list, tuple)) and id(root) not in guard_paths.reached)]
        if len(alive) < len(self.digests):
            alive += [s for array in guard_paths.arrays if not array.dtype.hasobject
                      and (s := source_of(array, digest_of(array), np.asarray)) is not None]
        self.sources = alive
        self.arguments.clear()

    def follows(self, before: HostData | None) -> None:
        """Compare with the call of the same kind before this one."""
        self.is_repeated = not self.digests or (before is not None and before.digests == self.digests)

    def table(self) -> list[Guard]:
        """Rows that hold where another call would make the same tensors, as far as can be known."""
        if not self.digests:
            return []
        return [Guard("what the call before made tensors of", lambda inputs: self.is_repeated, True),
                *(source.guard() for source in self.sources)]
