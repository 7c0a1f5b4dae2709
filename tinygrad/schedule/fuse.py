"""Which nodes become buffers, and which kernel computes what.

In: the nodes of a simplified graph, sources first, and those that must have a value. Out: `Kernel`s, each
with the nodes it stores.

One sweep visits the nodes from the results back to the sources, so that all uses of a node are known when it
is met. A use is a kernel and the `Item` of the node that it wants, inside which loops. From the uses
follows how often the node would be evaluated if nobody stored it, and one cost rule (`cost.better_stored`)
decides:

- not stored: its kernels compute it where they use it, and the uses pass on to its sources. So elementwise
  and movement ops fuse into their consumers, and a reduce takes its producers in and its epilogue out.
- A reduce whose items change only with the outer loops of a kernel is computed once for each of those, before
  the loops inside (softmax, norms, losses): it fuses too, if the loops nest and enough of them are left to
  share out.
- A row that several loops of a kernel read (the exponentials of softmax, the scores of attention) counts as
  computed once: its plan keeps such rows in scratch memory. So attention is one kernel: two contractions
  around the statistics of their common rows.
- stored: by a kernel of its own; or, where one of the kernels using it computes each item exactly once
  anyway, or keeps the rows that it consists of, as one more output of that kernel. So attention's weights are
  stored by its forward kernel, for the three kernels of its gradients.

Decisions see nothing but facts (`facts.py`, `growth.py`): what they depend on is all that they are given. So
each is made once and kept by that, and a layer equal to one before it only has the answers looked up.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tinygrad.graph.ops import Ops
from tinygrad.graph.printing import format_node
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG
from tinygrad.schedule.chains import chained_sums
from tinygrad.schedule.cost import (
    LARGE_CONE,
    Work,
    better_stored,
    closed_form_reduces,
    compared_sums,
    explain_storing,
    reads_memory,
)
from tinygrad.schedule.facts import Facts, FactsOfGraph, Item, Items, Kind
from tinygrad.schedule.growth import Decisions, Growth, Host, Use, Verdict, device_of
from tinygrad.schedule.segments import ACCESS_OPERATIONS, MOST_OPERATIONS, segments_of, weight_of


@dataclass(eq=False)
class Kernel:
    """What one kernel stores, and how far it has grown."""

    root: UOp
    growth: Growth
    outputs: list[UOp] = field(default_factory=list)
    after: set[Kernel] = field(default_factory=set)
    """kernels whose results this one reads"""
    own: set[UOp] = field(default_factory=set)
    """nodes that it computes for itself, even where another kernel stores them"""
    places: dict[UOp, tuple[UOp, ...]] = field(default_factory=dict)
    """for each output, the loops over its items"""
    depths: dict[int, int] = field(default_factory=dict)
    """a number for each depth at which it has a REDUCE"""
    last_reduce: UOp | None = None
    segment: int | None = None
    """which segment of a kernel too large to be one this is of"""
    computed: list[UOp] = field(default_factory=list)
    """the nodes that it computes, results first, each as often as it does"""
    operations: float = 0.0
    """what they, and reading what they are made of, weigh (`segments.py`)"""

    def depends_on(self, others: set[Kernel]) -> bool:
        """True if this kernel needs a result of one of `others`, directly or not."""
        seen: set[Kernel] = set()
        stack = list(self.after)
        while stack:
            kernel = stack.pop()
            if kernel in others:
                return True
            if kernel not in seen:
                seen.add(kernel)
                stack.extend(kernel.after)
        return False


Uses = dict[tuple[Kernel, Item], None]


class Fusion:
    """The sweep. Afterwards `kernels` has every kernel and `stored` says which kernel stores a node."""

    def __init__(self, order: Sequence[UOp], forced: set[UOp],
                 buffered_assigns: frozenset[UOp] = frozenset(),
                 segment_of: Mapping[UOp, int] = MappingProxyType({})) -> None:
        reads = reads_memory(order)
        closed = closed_form_reduces(order, reads)
        self.buffered_assigns = buffered_assigns
        self.segment_of = segment_of
        self.reads = reads
        self.work = Work(closed)
        chained = chained_sums(order, forced, closed)
        compared = compared_sums(order, forced, closed)
        self.facts = FactsOfGraph(order, reads, closed, compared, forced, buffered_assigns, chained)
        self.items = Items()
        self.decisions = Decisions(self.items)
        self.verdicts: dict[Any, Verdict] = {}
        self.hosts: dict[Any, tuple[Host, ...]] = {}
        self.roots: dict[tuple[Facts, str | None], Growth] = {}
        self.reduced: dict[Any, tuple[Growth, Item]] = {}
        """what was decided, by all that it depends on"""
        self.uses: dict[UOp, Uses] = {}
        self.kernels: list[Kernel] = []
        self.stored: dict[UOp, Kernel] = {}
        for node in reversed(order):
            self.visit(node)

    def visit(self, node: UOp) -> None:
        """Decide where a node is computed, all of whose uses are known."""
        uses = self.uses.get(node)
        facts = self.facts.of[node]
        if uses is not None and facts.link is not None and facts.link.is_between:
            uses = self.left_by_chain(node, facts, uses)
        if facts.op is Ops.COPY:
            self.store_apart(node, facts, uses or {})
        elif facts.is_forced:
            self.store(node, facts, uses or {})
        elif uses is None:
            return
        elif facts.kind is Kind.LEAF:
            self.note_reading(uses)
        elif self.is_of_other_segments(node, facts, uses) or (
                facts.may_store and self.must_store(node, facts, uses)):
            self.store(node, facts, uses)
        else:
            for kernel, item in uses:
                self.pass_on(kernel, node, facts, item)

    def is_of_other_segments(self, node: UOp, facts: Facts, uses: Uses) -> bool:
        """Whether a kernel of another segment than a node's wants it, where it does not cost next to nothing
        there."""
        if not self.segment_of or facts.kind not in (Kind.ITEMWISE, Kind.REDUCE):
            return False
        segment = self.segment_of.get(node)
        if all(kernel.segment == segment for kernel, _ in uses):
            return False
        return facts.reads_memory or self.work[node] > LARGE_CONE

    def note_reading(self, uses: Uses) -> None:
        """Kernels read an item from memory."""
        for kernel, _ in uses:
            kernel.operations += ACCESS_OPERATIONS

    def left_by_chain(self, node: UOp, facts: Facts, uses: Uses) -> Uses | None:
        """The uses of what is between the products of a chain, but those of its own kernel: that computes it
        for itself, whoever else wants it. None where no other is left."""
        left: Uses = {}
        for kernel, item in uses:
            if self.decisions.runs_chain(kernel.growth, facts):
                kernel.own.add(node)
                self.pass_on(kernel, node, facts, item)
            else:
                left[kernel, item] = None
        return left or None

    def must_store(self, node: UOp, facts: Facts, uses: Uses) -> bool:
        """Whether to store a node that need not be."""
        if len(uses) == 1:
            ((kernel, item),) = uses
            key: Any = (facts, kernel.growth, item)
        else:
            key = (facts, tuple(numbered(uses)))
        verdict = self.verdicts.get(key)
        if verdict is None:
            verdict = self.verdicts[key] = self.decisions.must_store(facts, tuple(numbered(uses)))
        if isinstance(verdict, bool):
            return verdict
        while node.op is Ops.LIMIT:
            node = node.src[0]
        if isinstance(verdict, str):
            self.note(node, verdict)
            return True
        work = self.work[node]
        if work <= verdict.least:
            return False
        self.note(node, explain_storing(node, verdict.evaluations, work, verdict.kernels))
        return better_stored(node, verdict.evaluations, work, verdict.kernels)

    def note(self, node: UOp, decision: str) -> None:
        """Print a decision at DEBUG=3."""
        if DEBUG >= 3:
            print(f"fusion: {format_node(node)}: {decision}")

    # --- storing --------------------------------------------------------------------------------------------

    def store(self, node: UOp, facts: Facts, uses: Uses) -> None:
        """Let a kernel that uses a node store it, or else a new one."""
        host = self.host_for(facts, uses, self.segment_of.get(node))
        if host is None:
            self.store_apart(node, facts, uses)
            return
        kernel, found = host
        kernel.outputs.append(node)
        kernel.growth = found.growth
        kernel.places[node] = found.index
        self.stored[node] = kernel
        for user, _ in uses:
            if user is not kernel:
                user.after.add(kernel)
                user.operations += ACCESS_OPERATIONS
        self.pass_on(kernel, node, facts, found.item)

    def host_for(self, facts: Facts, uses: Uses, segment: int | None) -> tuple[Kernel, Host] | None:
        """A kernel that may store a node of that segment and does not wait for others that use it."""
        if not uses:
            return None
        key = (facts, tuple(numbered(uses)))
        hosts = self.hosts.get(key)
        if hosts is None:
            hosts = self.hosts[key] = self.decisions.hosts(facts, key[1])
        if not hosts:
            return None
        kernels = list(dict.fromkeys(kernel for kernel, _ in uses))
        for host in hosts:
            kernel = kernels[host.number]
            if kernel.segment != segment:
                continue
            if _has_copy(kernels) and _has_copy(kernel.after):
                continue  # another device waits for the value, and should not for what this kernel waits for
            if not kernel.depends_on(set(kernels) - {kernel}):
                return kernel, host
        return None

    def store_apart(self, node: UOp, facts: Facts, uses: Uses) -> None:
        """Let a new kernel store a node."""
        key = (facts, device_of(facts, numbered(uses)))
        growth = self.roots.get(key)
        if growth is None:
            growth = self.roots[key] = Growth.of(*key)
        kernel = Kernel(node, growth, [node], places={node: growth.index}, segment=self.segment_of.get(node))
        self.kernels.append(kernel)
        self.stored[node] = kernel
        for user, _ in uses:
            user.after.add(kernel)
            user.operations += ACCESS_OPERATIONS
        self.pass_on(kernel, node, facts, self.items.item(growth.index, None))

    # --- following a value to its sources -------------------------------------------------------------------

    def pass_on(self, kernel: Kernel, node: UOp, facts: Facts, item: Item) -> None:
        """`item` of a node is computed inside `kernel`: its sources are used there."""
        kind = facts.kind
        kernel.computed.append(node)
        kernel.operations += weight_of(facts.op)
        if kind is Kind.ITEMWISE:
            for source in node.src:
                self.use(source, kernel, item)
        elif kind is Kind.MOVEMENT:
            assert facts.shown is not None
            if not facts.shown.is_constant:
                self.use(self.facts.base[node], kernel, facts.shown.item_at(item, self.items))
        elif kind is Kind.REDUCE:
            self.use(node.src[0], kernel, self.into_reduce(kernel, node, facts, item))
        elif kind is Kind.ASSIGN:
            self.use(node.src[1], kernel, item)

    def into_reduce(self, kernel: Kernel, node: UOp, facts: Facts, item: Item) -> Item:
        """The item that a REDUCE reads inside its loops, which `kernel` gets."""
        depth = kernel.depths.setdefault(self.facts.depth[node], len(kernel.depths))
        again = kernel.last_reduce is node
        kernel.last_reduce = node
        key = (kernel.growth, facts, item, depth, again)
        found = self.reduced.get(key)
        if found is None:
            found = self.reduced[key] = self.decisions.after_reduce(kernel.growth, facts, item, depth, again)
        kernel.growth = found[0]
        return found[1]

    def use(self, node: UOp, kernel: Kernel, item: Item) -> None:
        uses = self.uses.get(node)
        if uses is None:
            self.uses[node] = {(kernel, item): None}
        else:
            uses[kernel, item] = None


    def segments(self) -> dict[UOp, int]:
        """The nodes of kernels too large to be one, each with the number of its segment."""
        found: dict[UOp, int] = {}
        for kernel in self.kernels:
            if kernel.operations > MOST_OPERATIONS:
                cut = segments_of(kernel.computed[::-1], self.facts.base, self.reads, len(found))
                found.update((node, segment) for node, segment in cut.items() if node not in found)
        return found


def numbered(uses: Uses) -> list[Use]:
    """Uses without their kernels, which get numbers as they are met."""
    numbers: dict[Kernel, int] = {}
    return [Use(numbers.setdefault(k, len(numbers)), k.growth, item) for k, item in uses]


def _has_copy(kernels: Iterable[Kernel]) -> bool:
    return any(kernel.root.op is Ops.COPY for kernel in kernels)
