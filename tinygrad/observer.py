"""Who watches: the calls that every layer makes where something happens that a recording shows.

In: nothing. `active` is None, and then nothing is called: each place is one look at a module's variable.
While `VIZ`, `PROFILE` or `tinygrad.profile()` record, it is an `Observer` (`tinygrad/viz/recorder.py`). This
module imports nothing, so that every layer can call it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class MemoryChange:
    """Memory that one line gets again and again. Both are called with the moment."""

    def taken(self, moment: float) -> None:
        """A buffer has the memory now."""

    def returned(self, moment: float) -> None:
        """It is free again."""


class RepeatedRun:
    """Calls, or a replay, that a thread runs again and again, for the same of the user's lines."""

    key: object
    """whose it is: the observer's"""
    thread: int
    """which runs it"""
    lines: tuple[int, ...]
    """the user's that the first call is for"""
    memory: Mapping[int, MemoryChange]
    """by its number, the change of each result's memory, which that has from now on; that it was taken is
    known by `ran`"""

    def ran(self, times: list[float]) -> None:
        """It ran: when that began, when the first call did, when each call ended, and when all was done; of a
        replay when it began and ended. Results have their memory since the first call, or the beginning."""


class Observer:
    """What happens, as calls that do nothing. An observer must neither raise nor compute tensors."""

    keeps_stages: bool = False
    """whether every stage of a kernel is to happen, so that kernels kept on disk are not read"""
    key: object = None
    """what stands for it where it is not to be kept alive"""

    # --- the tensor graph -------------------------------------------------------------------------------

    def tensor_made(self, node: Any) -> None:
        """A tensor stands for `node`, which is no memory, made by the user's line that runs now."""

    def written_at(self, frames: Sequence[tuple[str, int, str]] = (), module: str = "",
                   is_gradient: bool = False) -> None:
        """Tensors that this thread makes from now on are for what somebody wrote there (file, line and
        function, the innermost first; none: in the line that runs) in a module of a model, or for its
        gradient. Without both they are for the line that runs again."""

    def gradients_of(self, node: Any, write: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What `write` gives: the gradients of the sources of `node`, which it writes down."""
        return write()

    def derived(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """The compiler replaced nodes: (before, after) of each."""

    def lines_of(self, nodes: Iterable[Any], outputs: Sequence[Any], items: int) -> tuple[int, ...]:
        """The numbers of the user's lines that nodes of one kernel come from, the one it is for first; it is
        that many items of a schedule."""
        return ()

    def lines_of_nodes(self, structure: Any) -> tuple[int, ...]:
        """The numbers of the user's lines that the nodes of a graph came from."""
        return ()

    def tells_lines(self, template: Any, structure: Any) -> bool:
        """Whether the lines of a template's kernels follow from those that `lines_of_nodes` gave for another
        graph of this structure, its `node_lines`; they are None where nobody recorded it."""
        return True

    def items_again(self, items: list[Any], before: Any, structure: Any) -> list[Any]:
        """The items of a schedule that was made for an equal graph, whose nodes came from the lines `before`
        (None: nobody knows), with the lines of this one."""
        return items

    def at_once(self, calls: Any, template: Any, structure: Any) -> Any:
        """The calls of a template (`engine/immediate.py`) come next in this thread: the `RepeatedRun` that
        is told of them, for the lines of this structure's nodes. It is the template's `observed`, too, and,
        from `tells_lines` on, that of structures whose nodes have these lines."""

    # --- schedules and kernels --------------------------------------------------------------------------

    def scheduled(self, structure: Any, schedule: Any, is_new: bool) -> None:
        """A graph has its schedule: a new one, or that of an equal graph."""

    def begin_step(self, lines: tuple[int, ...]) -> None:
        """What comes next in this thread is done for a step of these lines."""

    def kernel_written(self, ast: Any, device: str) -> AbstractContextManager[Any]:
        """A block in which one kernel is written: its passes belong to it."""
        raise NotImplementedError

    def stages_done(self, stages: Any, written: Any, notes: str) -> None:
        """The stages of the kernel that is being written, its source, and the numbers behind its plan."""

    def kernel_loaded(self, ast: Any, kernel: Any, device: str, code: Any) -> None:
        """A kernel is ready to run."""

    def plans_measured(self, nest: Any, device: str, rows: Sequence[tuple[str, float | None, str]], found: Any
                       ) -> None:
        """A search ended: (plan, seconds, what became of it) of each plan that it tried."""

    # --- what runs --------------------------------------------------------------------------------------

    def span(self, kind: str, name: str) -> AbstractContextManager[Any]:
        """A block of host time of one kind."""
        raise NotImplementedError

    def ran(self, kind: str, name: str, began: float) -> None:
        """A block of host time that began then ends now, in which this thread worked for lines that it was
        told of: `realize` (tensors were computed, or what computes them was given to queues), `replay`."""

    def marked(self, name: str, color: str) -> None:
        """The program marks this moment."""

    def kernel_run(self, kernel: Any, device: str, start: Any, end: Any) -> None:
        """A kernel was given to a queue between two timestamps of that."""

    def replays(self, name: str, memory: Iterable[tuple[str, int, tuple[int, ...]]]) -> Any:
        """A function's trace is replayed again and again in this thread: the `RepeatedRun` that is told of
        it. `memory` is what each result gets, as `memory_change` takes it."""

    def list_watched(self, kernels: Any, device: str) -> None:
        """From now on `kernels.times` counts the runs of a list of kernels, which `kernels.sites` has."""

    def copied(self, target: Any, source: Any, queue: Any, start: Any, end: Any) -> None:
        """A copy was given to a queue between two timestamps of that."""

    # --- memory -----------------------------------------------------------------------------------------

    def memory_change(self, device: str, size: int, lines: tuple[int, ...] = ()) -> MemoryChange:
        """What is told whenever a buffer gets so many bytes of memory for these lines (none: those that this
        thread works for), and when they are free again."""
        return MemoryChange()

    def arena_placed(self, device: str, size: int,
                     values: Sequence[tuple[int, int, int, int, tuple[int, ...]]]) -> None:
        """Intermediates lie in one piece of memory: offset, bytes, first and last step, lines of each."""


active: Observer | None = None
"""who is told; None: nobody. Look once for what is then told: another thread may end a recording."""
html_of: Callable[[Any], str] = repr
"""how a notebook shows a tensor or a step of a schedule, which the library itself says (`viz/picture.py`)"""


@contextmanager
def span(kind: str, name: str = "") -> Iterator[None]:
    """A block of host time, told to the observer if there is one."""
    watcher = active
    if watcher is None:
        yield
        return
    with watcher.span(kind, name):
        yield


def derived(pairs: Mapping[Any, Any]) -> None:
    """Tell the observer, if there is one, which nodes the compiler replaced by which."""
    watcher = active
    if watcher is not None:
        watcher.derived(pairs.items())
