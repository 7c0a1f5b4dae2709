"""What a function computes while TinyJit traces it: the items that run, what was read and written, what was
decided.

`realize.py` tells it of each schedule that runs; `jit/trace.py` makes a trace of it. Values that a function
reads while it is traced are refused here, where another call would find others.
"""
from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad.device import Buffer
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.batch import TransformError, is_unknown
from tinygrad.graph.ops import Ops
from tinygrad.graph.sizes import before_reading, when_decided
from tinygrad.graph.storage import Storage
from tinygrad.graph.uop import UOp
from tinygrad.schedule.items import ScheduleItem


class JitError(RuntimeError):
    """What a function under TinyJit may not do."""


class Capture:
    """What runs in this thread while a function is traced."""

    active: Capture | None = None
    """the capture in progress"""

    def __init__(self, note: Callable[[Any, DType | None, np.ndarray[Any, Any]], None] | None = None,
                 pending: set[UOp] | None = None, given: Collection[Storage] = ()) -> None:
        self.note = note
        """what takes note of host data that becomes tensors (`note_host_data`)"""
        self.pending: set[UOp] = set() if pending is None else pending
        """the nodes of lazy tensors from before the capture that had no value, but for those that got one
        outside of it"""
        self.given = given
        """the memory of its arguments"""
        self.items: list[ScheduleItem] = []
        self.arenas: dict[str, Buffer] = {}
        """by device: memory of intermediates, in which those of one schedule after the other lie"""
        self.thread = threading.get_ident()
        self.first_identity = new_identity()
        self.suspensions: list[tuple[int, int]] = []
        """numbers of memory, from and before, that was made while this was suspended"""
        self.read: dict[UOp, None] = {}
        """the BUFFER nodes that numbers in the trace were read from, or computed of"""
        self.written: set[Storage] = set()
        self.initial: dict[Storage, np.ndarray[Any, Any]] = {}
        """what memory filled while tracing (`Tensor([1, 2])`) held before the first item that writes it"""
        self.used: dict[UOp, bool] = {}
        """the nodes that were computed, and those that they were computed from: whether they had a value"""
        self.decisions: dict[UOp, bool] = {}
        """comparisons of sizes that the values of Variables decided"""

    def __enter__(self) -> Capture:
        Capture.active = self
        return self

    def __exit__(self, *exc: object) -> None:
        Capture.active = None

    @staticmethod
    def current() -> Capture | None:
        """The capture that this thread is in, if any."""
        capture = Capture.active
        return capture if capture is not None and capture.thread == threading.get_ident() else None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block that computes what is no part of this capture, but memory that it finds, as if that had
        been there before."""
        first = new_identity()
        Capture.active = None
        try:
            yield
        finally:
            Capture.active = self
            self.suspensions.append((first, new_identity()))
            self.pending.difference_update([n for n in self.pending if n.realized_view is not None])

    def made_inside(self, node: UOp) -> bool:
        """Whether a BUFFER node is younger than this capture, and part of it."""
        identity = node.arg.identity
        return bool(identity > self.first_identity) and not any(
            first <= identity < end for first, end in self.suspensions)

    def leaves_to_read(self, uop: UOp) -> list[UOp] | None:
        """The BUFFER nodes that the value of `uop` is computed from; None where it follows from an argument,
        from what the capture writes, or from random numbers or Variables of this call: another call gives it
        another value."""
        if uop.has_sizes:
            return None
        leaves: list[UOp] = []
        for node in uop.toposort(stop=lambda n: n.realized_view is not None):
            memory = (node.realized_view or node).base
            if node.op is Ops.ASSIGN or (node.op is Ops.VARIABLE and node not in self.pending):
                return None
            if memory.op is Ops.BUFFER:
                parts = [m.storage for m in memory.memories]
                if any(p in self.given or p in self.written for p in parts):
                    return None
                leaves += memory.memories
        return leaves

    def rests_on(self, uops: Sequence[UOp]) -> None:
        """Take note that the values of `uops`, computed outside, are those of each call only while what they
        were computed from is not written to."""
        for node in UOp.sink(uops).toposort(stop=lambda n: n.realized_view is not None):
            memory = (node.realized_view or node).base
            if memory.op is Ops.BUFFER:
                self.read.update(dict.fromkeys(memory.memories))

    def use(self, uops: Sequence[UOp]) -> None:
        """Take note of nodes that are about to be computed, or whose values leave the call."""
        done = self.used
        for node in UOp.sink(uops).toposort(stop=lambda n: n in done or n.realized_view is not None):
            done.setdefault(node, node.realized_view is not None)

    def add(self, items: Sequence[ScheduleItem]) -> None:
        """Take note of items that are about to run."""
        for item in items:
            for node in item.buffers[:item.outputs]:
                if node.storage not in self.written and self.made_inside(node):
                    self.keep_content(node)
                self.written.add(node.storage)
        self.items.extend(items)

    def keep_content(self, node: UOp) -> None:
        """Remember what the memory of `node` holds, if there is any."""
        buffer = node.buffer
        if buffer is not None and buffer.is_allocated:
            self.initial[node.storage] = buffer.copied()


def new_identity() -> int:
    """The next number of memory."""
    identity: int = UOp.new_buffer("CPU", 0, dtypes.bool).arg.identity
    return identity


def check_reading(uop: UOp) -> Capture | None:
    """The capture that this thread is in, which a value that is read is to be computed outside of, if any.

    Raises TransformError where a value under `vmap` is read, JitError in a thread that traces a function
    where another call may compute another value.
    """
    if is_unknown(uop):
        raise TransformError(f"{users_line()}: a value was read that vmap does not know, for it differs from "
                             "example to example; choose between values with where(), give sizes that depend "
                             "on values as an argument (size=), or leave the argument out of in_axes (None)")
    capture = Capture.current()
    if capture is None:
        return None
    leaves = capture.leaves_to_read(uop)
    if leaves is None:
        raise JitError(f"{users_line()}: a value was read while TinyJit traces a function, where it would "
                       "become a constant of all later calls; return the tensor and read it outside, choose "
                       "between values with where(), or pass the value as an argument")
    capture.read.update(dict.fromkeys(leaves))
    capture.use([uop])
    return capture


def refuse_reading_variables() -> None:
    """Raise JitError in a thread that traces a function: another call may give a Variable another value."""
    if Capture.current() is not None:
        raise JitError(f"{users_line()}: the value of a Variable was read while TinyJit traces a function, "
                       "where it would become a constant of all later calls; compute with the Variable "
                       "itself, or pass the number as an argument of its own")


before_reading.append(refuse_reading_variables)


def note_decision(comparison: UOp, result: bool) -> None:
    """Let a trace rest on what the value of a Variable decided."""
    capture = Capture.current()
    if capture is not None:
        capture.decisions[comparison] = result


when_decided.append(note_decision)


def note_host_data(data: Any, dtype: DType | None, array: np.ndarray[Any, Any]) -> None:
    """Tell a capture in this thread of data that becomes a tensor."""
    capture = Capture.current()
    if capture is not None and capture.note is not None:
        capture.note(data, dtype, array)


def users_line() -> str:
    """The file and line outside of this package that called."""
    package = str(Path(__file__).parents[1]) + os.sep
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
