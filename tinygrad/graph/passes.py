"""What each pass did: the graph before and after it, and the rules that changed a node, by source line.

    with record_passes() as passes:
        y.realize()
    print(*passes, sep="\\n")

A function from graph to graph that is a stage of the way to the device is marked `@graph_pass("lower")`.
While passes are recorded, each call of one is a `Pass`, and what the walk and the rewrite rules (`walk.py`,
`rewrite.py`) change inside it are its `Change`s; those inside a pass that it calls are that one's. At
`DEBUG=8` every pass is printed. Otherwise a mark costs one look at a variable.
"""
from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from tinygrad.frozen import frozen
from tinygrad.graph.rewrite import Rule, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.graph.walk import Watching
from tinygrad.helpers import DEBUG

Function = TypeVar("Function", bound=Callable[..., Any])


@frozen
class Change:
    """One node that a rule, or the function of a pass, replaced."""

    rule: str
    file: str
    line: int
    before: UOp
    after: UOp

    @property
    def place(self) -> str:
        """Where the rule stands: `codegen/expand.py:40`."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


@dataclass
class Pass:
    """One call of a pass. Graphs are their roots; a program is its statements."""

    name: str
    before: tuple[UOp, ...]
    after: tuple[UOp, ...] = ()
    changes: list[Change] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        counts = Counter((change.rule, change.place) for change in self.changes)
        sizes = [len(UOp.sink(roots).toposort()) - 1 for roots in (self.before, self.after)]
        lines = [f"{self.name}: {sizes[0]} nodes, then {sizes[1]}"]
        lines += [f"  {count:5} x {rule}  ({place})" for (rule, place), count in counts.most_common()]
        return "\n".join(lines)


class Recorder:
    """Keeps passes as they end, innermost first, and what changes inside each."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self.open: list[Pass] = []

    def __call__(self, rule: Any, before: UOp, after: UOp) -> None:
        """Note a change, as far as it is inside a pass."""
        function = rule.replace if isinstance(rule, Rule) else rule
        code = getattr(function, "__code__", None)
        if not self.open or code is None or code.co_filename == rewrite.__code__.co_filename:
            return  # what `rewrite` does is told of as its rules
        name = rule.name if isinstance(rule, Rule) else code.co_qualname.split(".")[-1]
        self.open[-1].changes.append(Change(name, code.co_filename, code.co_firstlineno, before, after))


@contextmanager
def record_passes() -> Iterator[list[Pass]]:
    """The passes that run inside, each as it ends: one that calls others comes after them. Records of records
    are refused: RuntimeError."""
    if Watching.watcher is not None:
        raise RuntimeError("passes are being recorded already")
    recorder = Watching.watcher = Recorder()
    try:
        yield recorder.passes
    finally:
        Watching.watcher = None


def run_pass(name: str, function: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
    """`function(graph, ...)` as a pass of that name, if passes are recorded or printed; done anew where its
    results are kept."""
    recorder = Watching.watcher
    if not isinstance(recorder, Recorder):
        if DEBUG < 8:
            return function(graph, *args, **kwargs)
        with record_passes() as passes:
            result = run_pass(name, function, graph, *args, **kwargs)
        print(*passes, sep="\n")
        return result
    current = Pass(name, _roots(graph))
    recorder.open.append(current)
    start = time.perf_counter()
    try:
        result = getattr(function, "__wrapped__", function)(graph, *args, **kwargs)
    finally:
        recorder.open.pop()
        current.seconds = time.perf_counter() - start
    current.after = _roots(result)
    recorder.passes.append(current)
    return result


def is_recording() -> bool:
    """Whether passes are recorded or printed, so that what is remembered is to be done again."""
    return isinstance(Watching.watcher, Recorder)


def graph_pass(name: str) -> Callable[[Function], Function]:
    """Marks a function from a graph, its first argument, to what it makes of it as a pass."""

    def mark(function: Function) -> Function:
        @functools.wraps(function)
        def passed(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if Watching.watcher is None and DEBUG < 8:
                return function(graph, *args, **kwargs)
            return run_pass(name, function, graph, *args, **kwargs)

        return cast(Function, passed)

    return mark


def _roots(graph: UOp | Sequence[UOp]) -> tuple[UOp, ...]:
    return (graph,) if isinstance(graph, UOp) else tuple(graph)
