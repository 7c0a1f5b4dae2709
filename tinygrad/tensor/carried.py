"""Values that a loop carries from step to step, of which nobody asks: computed on their own, once.

`x = step(x); print(x.sum().item())`, `tokens = tokens.cat(new)`: a tensor of which only other values are
asked is computed on the way to each of them, from its beginning, by a kernel that grows from step to step.
In: a graph that nobody has scheduled. What it needs on the way and tensors will need too is marked. A value
that was marked in an earlier graph, which needed what was marked in one before that, is of such a loop: it is
computed first, and the graph begins there.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from weakref import WeakKeyDictionary

from tinygrad.engine.realize import before_scheduling, realize_uops
from tinygrad.graph.leaf_tensors import constant_value
from tinygrad.graph.node_flags import READS, WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.template import known_nodes, unmoved, with_results_of_calls
from tinygrad.graph.uop import UOp
from tinygrad.schedule.cache import Structure
from tinygrad.tensor.live import Unrealized, note_realized

CARRIED = 2
"""Graphs in a row in which a value is marked over what was marked in the one before: from so many on it is
carried by a loop. Not yet one is a value that two graphs need: of outputs, a loss and its gradients."""
MOST_NODES = 32
"""Nodes of a tensor that is computed from what a graph needs, among which that is looked for."""
MOST_TENSORS = 16
"""Such tensors, the latest."""

_marks: WeakKeyDictionary[UOp, int] = WeakKeyDictionary()
"""nodes that were computed on the way to others while tensors needed them, and for how many graphs in a row
that was so"""


def compute_carried(structure: Structure) -> bool:
    """Compute what a loop carries, of the nodes of a graph that nobody has scheduled; whether there was
    any."""
    if structure.is_sharded:
        return False
    asked = set(structure.sinks)
    carried = outermost(structure, {n for n in structure.nodes if n not in asked
                                    and _marks.get(n, 0) >= CARRIED and n.realized_view is None})
    steps = max([_marks.get(node, 0) for node in structure.position], default=0)
    calls = {nodes: node for node in structure.nodes if (nodes := known_nodes(node)) is not None}
    for node in needed_later(structure, calls):
        if node not in asked and is_computed_again(node):
            for form in (node, known_nodes(node) or node):
                _marks.setdefault(form, steps + 1)
    if carried:
        holders = [t for t in Unrealized.tensors() if calls.get(node := unmoved(t._uop), node) in carried]
        realize_uops(with_results_of_calls(carried), partial(note_realized, holders))
    return any([node.realized_view is not None for node in carried])


def outermost(structure: Structure, nodes: Collection[UOp]) -> list[UOp]:
    """Those of `nodes`, which are none that were asked for, from which no others of them are computed."""
    found, below = [], set()
    for node in reversed(structure.nodes):
        if node in nodes and node not in below:
            found.append(node)
            below.add(node)
        if node in below:
            below.update(node.src)
    return found


def needed_later(structure: Structure, calls: dict[UOp, UOp]) -> Iterator[UOp]:
    """The nodes of a graph that tensors stand for, or are soon computed from."""
    inside = structure.position
    above = [unmoved(t._uop) for t in Unrealized.tensors()]
    yield from (node for node in [calls.get(node, node) for node in above] if node in inside)
    outside = [node for node in above if node not in inside and node not in calls]
    for node in outside[-MOST_TENSORS:]:
        seen, queue = {node}, [node]
        for below in queue:  # it grows meanwhile
            for source in below.src if len(queue) < MOST_NODES else ():
                on_the_way = calls.get(source, source)
                if on_the_way in inside:
                    yield on_the_way
                elif source not in seen and source.realized_view is None:
                    seen.add(source)
                    queue.append(source)


def go_on(changed: Mapping[UOp, UOp]) -> None:
    """Other nodes stand for the same values now: what is known of these is known of them."""
    for node, other in changed.items():
        if (graphs := _marks.get(node)) is not None:
            _marks.setdefault(other, graphs)


def is_computed_again(node: UOp) -> bool:
    """Whether a lazy node costs something each time it is computed, and can be kept: it is computed from
    memory, and is not what is written there."""
    return node.viewed.op not in (Ops.BUFFER, Ops.ASSIGN) and node.flags & (READS | WRITES) == READS \
        and constant_value(node) is None and not node.has_sizes


before_scheduling.append(compute_carried)
