"""What large graphs cost the first time, from the graph to its results, and how that grows with their nodes.

A row is a program that makes a graph of any size. For each of four sizes a process of its own, in which
nothing is compiled and which keeps nothing on disk, makes the graph and computes it. `exponent` is fitted to
seconds over nodes: 1 where the time is in proportion, 2 where twice the nodes take four times as long. What
is in memory before is not timed, nor is importing what compiles kernels.
"""
from __future__ import annotations

import functools
import gc
import json
import math
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from unittest.mock import patch

from bench.results import columns
from tinygrad import Tensor, TinyJit, nn
from tinygrad.graph.template import GraphTemplate
from tinygrad.graph.uop import UOp
from tinygrad.schedule.cache import Structure
from tinygrad.schedule.persistent_cache import schedules

Program = Callable[[], Sequence[Tensor]]
"""Makes a graph, and returns what is to be computed."""
GROWTH = (1, 2, 4, 8)
"""Sizes of a row, as multiples of the smallest."""
CHILD_SECONDS = 300


@dataclass(frozen=True)
class Graph:
    """A row: `prepared(n)` makes what is in memory before, and returns the program of size n."""

    name: str
    smallest: int
    prepared: Callable[[int], Program]


@dataclass
class GraphRow:
    """What was measured at each size."""

    name: str
    nodes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def exponent(self) -> float:
        """Of the power of the number of nodes that the seconds follow, by least squares of logarithms."""
        x, y = (list(map(math.log, values)) for values in (self.nodes, self.seconds))
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
        return covariance / sum((a - mean_x) ** 2 for a in x)

    @property
    def microseconds(self) -> float:
        """For each node of the largest graph."""
        return self.seconds[-1] / self.nodes[-1] * 1e6


# --- the programs -----------------------------------------------------------------------------------------


def vectors(count: int) -> list[Tensor]:
    """Small tensors in memory."""
    return [Tensor([float(i), 1.0]).realize() for i in range(count)]


def stacked(n: int) -> Program:
    return lambda: [Tensor.stack(*[Tensor([float(i)]) for i in range(n)])]


def joined(n: int) -> Program:
    parts = vectors(n)
    return lambda: [Tensor.cat(*parts)]


def added(n: int) -> Program:
    parts = vectors(n)
    return lambda: [functools.reduce(operator.add, parts)]


def sines(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x.sin() + 1
    return x


def chain(n: int) -> Program:
    (x,) = vectors(1)
    return lambda: [sines(x, n)]


def captured_chain(n: int) -> Program:
    (x,) = vectors(1)
    return lambda: [TinyJit(lambda a: sines(a, n).realize())(x)]


def chain_backward(n: int) -> Program:
    (x,) = vectors(1)
    return lambda: sines(x, n).sum().gradient(x)


def steps(n: int) -> tuple[Callable[[], Tensor], Tensor]:
    """A recurrence over n steps, and its weights."""
    weights, state = Tensor.eye(16).contiguous().realize(), Tensor.ones(1, 16).contiguous().realize()
    inputs = Tensor.ones(n, 16).contiguous().realize()

    def last() -> Tensor:
        value = state
        for i in range(n):
            value = (value @ weights + inputs[i]).tanh()
        return value

    return last, weights


def recurrence(n: int) -> Program:
    last, _ = steps(n)
    return lambda: [last()]


def recurrence_backward(n: int) -> Program:
    last, weights = steps(n)
    return lambda: last().sum().gradient(weights)


def update(n: int) -> Program:
    parameters = [Tensor([float(i), 1.0], requires_grad=True).realize() for i in range(n)]
    optimizer = nn.optim.Adam(parameters)

    def program() -> list[Tensor]:
        with Tensor.train():
            functools.reduce(operator.add, [(p * p).sum() for p in parameters]).backward()
            return optimizer.schedule_step()

    return program


def moved(n: int) -> Program:
    (x,) = vectors(1)

    def program() -> list[Tensor]:
        value = x.reshape(1, 2)
        for _ in range(n):
            value = value.flip(1).transpose(0, 1).reshape(1, 2)
        return [value + 1]

    return program


def written(n: int) -> Program:
    memory = Tensor.zeros(64).contiguous().realize()

    def program() -> list[Tensor]:
        for i in range(n):
            memory[i % 64] = memory[(i + 1) % 64] + 1
        return [memory]

    return program


GRAPHS = (
    Graph("stack of lists of one item", 750, stacked),
    Graph("cat of vectors in memory", 500, joined),
    Graph("sum of vectors, one by one", 1000, added),
    Graph("chain of sin() + 1", 1000, chain),
    Graph("chain of sin() + 1, captured", 1000, captured_chain),
    Graph("backward of the chain", 500, chain_backward),
    Graph("recurrence, unrolled", 100, recurrence),
    Graph("backward of the recurrence", 50, recurrence_backward),
    Graph("Adam's update of small parameters", 50, update),
    Graph("chain of movement", 1000, moved),
    Graph("writes into one memory", 250, written),
)


# --- measuring ----------------------------------------------------------------------------------------------


def measured(name: str, size: int) -> tuple[int, float]:
    """(nodes that are scheduled, seconds) of a program's first run, in this process."""
    (graph,) = (g for g in GRAPHS if g.name == name)
    program = graph.prepared(size)
    (Tensor([1.0, 2.0]).exp() + 1).realize()  # imports what compiles
    gc.collect()
    start = time.perf_counter()
    results = program()
    Tensor.realize(*results)
    results[-1].numpy()
    seconds = time.perf_counter() - start
    del results  # the same nodes would have their values
    with counted_nodes() as counts:
        Tensor.realize(*program())
    return sum(counts), seconds


@contextmanager
def counted_nodes() -> Iterator[list[int]]:
    """Takes note of how many nodes each schedule is made for, calls being made of all of theirs."""
    counts: list[int] = []
    structure_of = schedules.structure_of

    def counted(sinks: Sequence[UOp]) -> Structure | None:
        found = structure_of(sinks)
        counts.append(0 if found is None else len(found.nodes))
        return found

    all_nodes = patch.object(GraphTemplate, "applied", lambda template, leaves, _=None: template.over(leaves))
    with patch.object(schedules, "structure_of", counted), all_nodes:
        yield counts


def measured_apart(name: str, size: int) -> tuple[int, float]:
    """The same, in a new process. Raises RuntimeError where that fails."""
    child = subprocess.run([sys.executable, "-m", "bench.graphs", name, str(size)], capture_output=True,
                           text=True, timeout=CHILD_SECONDS, env={**os.environ, "CACHELEVEL": "0"})
    if child.returncode:
        raise RuntimeError(f"{name}, {size}: {child.stderr.strip() or child.returncode}")
    nodes, seconds = json.loads(child.stdout)
    return nodes, seconds


def row_of(graph: Graph, rounds: int, small: bool = False) -> GraphRow:
    """A row, each figure the median of so many processes'."""
    row = GraphRow(graph.name)
    for times in GROWTH:
        found = [measured_apart(graph.name, times * (2 if small else graph.smallest)) for _ in range(rounds)]
        row.nodes.append(found[0][0])
        row.seconds.append(median(seconds for _, seconds in found))
    return row


def chosen_graphs(texts: Sequence[str] | None) -> list[Graph]:
    """The rows whose names contain one of `texts`, all without."""
    return [graph for graph in GRAPHS if not texts or any(text in graph.name for text in texts)]


def graph_table(rows: Sequence[GraphRow]) -> str:
    """Seconds at each size; of the largest its nodes and microseconds a node; the exponent."""
    lines = [["graph", *(f"s, {times} n" for times in GROWTH), "nodes", "us a node", "exponent"]]
    lines += [[row.name, *(f"{s:.2f}" for s in row.seconds), str(row.nodes[-1]), f"{row.microseconds:.0f}",
               f"{row.exponent:.2f}"] for row in rows]
    return columns(lines)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
