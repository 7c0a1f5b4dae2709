"""Memory, as nodes know it: which one a BUFFER stands for, the content of which time, and who it belongs to.

A BUFFER node names memory by a number and a version (`BufferSpec`); all BUFFERs of one number share a
`Storage`, which holds the memory itself (`device.Buffer`) and the version that is in it now. `Overwriting`
moves that on when memory is written to. Next on the path: `graph/uop.py`, the nodes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from tinygrad.graph.sharding import Layout, Placement, Sharding
from tinygrad.helpers import engine_lock

if TYPE_CHECKING:
    from tinygrad.device import Buffer
    from tinygrad.graph.uop import UOp


class BufferSpec(NamedTuple):
    """Which memory a BUFFER node stands for: a number no other memory has, its device, its length in items.

    `version` counts how often it was overwritten before: a node stands for the content at one time, so that
    what was computed from the old content is not taken for what the new content gives. `layout`: of memory on
    several devices.
    """

    identity: int
    device: Placement
    size: int
    version: int = 0
    layout: Layout | None = None


class Storage:
    """What the BUFFER nodes of one identity share: the memory itself, and the version that it holds now."""

    buffer: Buffer | None = None
    version = 0
    is_placeholder = False
    """whether this is no memory, but a value that nobody knows yet; see `graph/batch.py`"""
    writer: object = None
    """the tensor that stands for what is still to be written here, None if nothing is"""
    _owner: ref[object] | None = None
    _constants: tuple[ref[UOp], ...] = ()
    """the nodes made of constants alone whose value this memory was computed for: kernels hold them too, so
    that they forget it when its owner ends"""

    @property
    def parts(self) -> tuple[Storage, ...]:
        """What this is made of, each on one device."""
        return (self,)

    def belongs_to(self, owner: object) -> bool:
        """Whether `owner` is the first that asks, or those who asked before are gone: the tensor that this
        memory was computed for."""
        known = None if self._owner is None else self._owner()
        if known is None:
            self.give_to(owner)
        return known is None or known is owner

    @property
    def was_left(self) -> bool:
        """Whether those that this belonged to are gone; views of it may have stayed."""
        return self._owner is not None and self._owner() is None

    def give_to(self, owner: object) -> None:
        """Make `owner` the one that this memory belongs to."""
        self._owner = ref(owner, _forgets(ref(self), self._constants)) if self._constants else ref(owner)

    @property
    def is_of_constants(self) -> bool:
        """Whether this memory is forgotten by nodes when its owner ends."""
        return bool(self._constants)

    def holds_constants(self, node: UOp) -> None:
        """Take note that this is the memory of a node made of constants alone."""
        self._constants = (*self._constants, ref(node))


def _forgets(storage: ref[Storage], nodes: Iterable[ref[UOp]]) -> Callable[[object], None]:
    """What makes nodes lazy again that live and have their value in `storage`, when nobody schedules."""
    def forget(_: object) -> None:
        with engine_lock:
            for node in filter(None, (known() for known in nodes)):
                view = node.computed_into
                if view is not None and view.base.storage is storage():
                    node.set_realized_view(None)

    return forget


class ShardedStorage(Storage):
    """The memory on several devices, as its pieces: it was overwritten as often as they were."""

    def __init__(self, views: Sequence[UOp], memories: Sequence[UOp] | None = None) -> None:
        self.views = views
        """for each device a view of the shape of its part, over a BUFFER like the one there"""
        self.memories = [view.viewed for view in views] if memories is None else memories
        """for each device the BUFFER there"""
        self._parts = tuple([memory.storage for memory in self.memories])

    @cached_property
    def shards(self) -> tuple[UOp, ...]:
        """For each device a view of the BUFFER there, of the shape of its part: made when they are asked for,
        for a loop makes ever new memory, of which few are taken apart."""
        return tuple([view if view.viewed is memory else view.over(memory)
                      for view, memory in zip(self.views, self.memories, strict=True)])

    @property
    def parts(self) -> tuple[Storage, ...]:
        return self._parts

    @property
    def version(self) -> int:  # type: ignore[override]  # it follows from the parts, which are written to
        return sum([part.version for part in self._parts])


class Overwriting:
    """A write into memory, which holds something else afterwards: `done` says so, however often it is called.
    See `BufferSpec.version`. `parts`: what the memory is made of on single devices, where that is known."""

    def __init__(self, storages: Sequence[Storage], parts: Sequence[Storage] | None = None) -> None:
        self.storages = storages
        self.parts = [p for storage in storages for p in storage.parts] if parts is None else parts
        self.after = [part.version + 1 for part in self.parts]

    def done(self) -> None:
        """What was lazy of these memories is written."""
        for part, version in zip(self.parts, self.after, strict=True):
            part.version = version

    def forget_writers(self) -> None:
        """No tensor stands for what is still to be written there."""
        for storage in self.storages:
            storage.writer = None


def place_of(arg: Any) -> Placement:
    """Where the value of a BUFFER, COPY or COLLECTIVE with this argument is."""
    if isinstance(arg, BufferSpec):
        return arg.device
    place: Placement = arg.devices if isinstance(arg, Sharding) else arg[0] if isinstance(arg, tuple) else arg
    return place
