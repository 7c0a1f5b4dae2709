"""Which nodes become buffers, and which kernel computes what.

In: the nodes of a simplified graph, sources first; what must have a value is CONTIGUOUS or ASSIGN. Out:
`Kernel`s, each with the nodes it stores.

One sweep visits the nodes from the results back to the sources, so that all uses of a node are known when it
is met. A use is a kernel and its `Access` to the node, inside which loops. From the uses
follows how often the node would be evaluated if nobody stored it, and one cost rule (`cost.better_stored`)
decides:

- not stored: its kernels compute it where they use it, and the uses pass on to its sources. So elementwise
  and movement ops fuse into their consumers, and a reduce takes its producers in and its epilogue out.
- A reduce whose items change only with the outer loops of a kernel is computed once for each of those, before
  the loops inside (softmax, norms, losses): it fuses too, if the loops nest and enough of them are left to
  share out.
- A row that several loops of a kernel read (the exponentials of softmax, the scores of attention) counts as
  computed once: its plan caches such rows in scratch memory. So attention is one kernel: two contractions
  around the statistics of their common rows.
- stored: by a kernel of its own; or, where one of the kernels using it computes each item exactly once
  anyway, or caches the rows that it consists of, as one more output of that kernel. So attention's weights
  are stored by its forward kernel, for the three kernels of its gradients.
- stored first: a segment sum that is not read in the order of its items, or beside another reduce. One pass
  gives all of them; asked for one by one, each would walk over all that is summed.
- stored too: what a kernel wants that has `MOST_OPERATIONS` already. A chain of ten thousand operations would
  be one kernel, as far as memory is concerned, but what compiles it takes more than twice as long for twice
  as many, and no part of it is a kernel that another part shares. Chains repeat, so most of the kernels that
  they are cut into are equal.

Decisions see nothing but summaries (`node_summary.py`, `fusion_group.py`): what they depend on is all that
they are given. So each is made once and kept by that, and a layer equal to one before it only has the answers
looked up.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from tinygrad.codegen.indexing import Access, loops_over, reduce_depth
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.printing import format_node
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, reachable
from tinygrad.schedule.cost import (
    ACCESS_OPERATIONS,
    LARGE_CONE,
    MOST_OPERATIONS,
    REPEATED_OPERATIONS,
    Work,
    better_stored,
    weight_of,
)
from tinygrad.schedule.fusion_group import FusionGroup, FusionLegality, MultiOutputFusion, Use, device_of
from tinygrad.schedule.node_summary import GraphSummary, NodeSummary


@dataclass(eq=False)
class Kernel:
    """What one kernel stores, and its fusion group so far."""

    root: UOp
    group: FusionGroup
    outputs: list[UOp] = field(default_factory=list)
    after: dict[Kernel, None] = field(default_factory=dict)
    """kernels whose results this one reads"""
    own: set[UOp] = field(default_factory=set)
    """nodes that it computes for itself, even where another kernel stores them"""
    output_loops: dict[UOp, tuple[UOp, ...]] = field(default_factory=dict)
    """for each output, the loops over its items"""
    depths: dict[UOp | int, int] = field(default_factory=dict)
    """a number for each depth at which it has a REDUCE, and for each of those that have a closed form"""
    computed: list[UOp] = field(default_factory=list)
    """the nodes that it computes, results first, each as often as it does"""
    operations: float = ACCESS_OPERATIONS
    """what they, storing the result and reading what they are made of weigh"""

    def has_room_for(self, operations: float) -> bool:
        """True if the kernel may have so many more operations, and read what they need."""
        return self.operations + operations + ACCESS_OPERATIONS <= MOST_OPERATIONS

    def depends_on(self, others: set[Kernel]) -> bool:
        """True if this kernel needs a result of one of `others`, directly or not."""
        needed = reachable(self.after, lambda kernel: () if kernel in others else kernel.after)
        return not others.isdisjoint(needed)


UseSet = dict[tuple[Kernel, Access], None]


class Fusion:
    """The sweep. Afterwards `kernels` has every kernel and `stored` says which kernel stores a node."""

    def __init__(self, order: Sequence[UOp], buffered_assigns: frozenset[UOp]) -> None:
        self.buffered_assigns = buffered_assigns
        self.summary = GraphSummary(order)
        self.work = Work()
        legality = FusionLegality()
        # each decision is made once for all that it depends on
        self.decision = cache(legality.must_store)
        self.multi_outputs = cache(legality.multi_outputs)
        self.after_reduce = cache(legality.after_reduce)
        self.new_group = cache(FusionGroup.of)
        self.uses: dict[UOp, UseSet] = {}
        self.kernels: list[Kernel] = []
        self.stored: dict[UOp, Kernel] = {}
        for node in reversed(order):
            self.visit(node)

    def visit(self, node: UOp) -> None:
        """Decide where a node is computed, all of whose uses are known."""
        uses = self.uses.get(node)
        summary = self.summary.of[node]
        if uses is not None and summary.role is not None and summary.role.is_between:
            uses = self.uses_outside_attention(node, summary, uses)
        if summary.op in Family.STORED:
            self.store(node, summary, uses or {})
        elif uses is None:
            return
        elif not node.src:
            for kernel, _ in uses:  # which read an item from memory
                kernel.operations += ACCESS_OPERATIONS
        elif self.is_beyond_a_kernel(node, summary, uses) or (
                summary.may_store and self.must_store(node, summary, uses)):
            self.store(node, summary, uses)
        else:
            for kernel, access in uses:
                self.pass_on(kernel, node, summary, access)

    def is_beyond_a_kernel(self, node: UOp, summary: NodeSummary, uses: UseSet) -> bool:
        """Whether a kernel that wants a node has as many operations as one may, and the node does not cost
        next to nothing there."""
        if summary.op in Family.MOVEMENT:
            return False
        operations = self.operations_of(node)
        if all(kernel.has_room_for(operations) for kernel, _ in uses):
            return False
        return summary.reads_memory or self.work[node] > LARGE_CONE

    def operations_of(self, node: UOp) -> float:
        """What a kernel needs room for where it computes a node: for a REDUCE all that is in its loops, so
        that its result is stored rather than part of that."""
        if node.op is not Ops.REDUCE:
            return weight_of(node.op)
        return min(self.work[node.src[0]], MOST_OPERATIONS / 2)

    def uses_outside_attention(self, node: UOp, summary: NodeSummary, uses: UseSet) -> UseSet | None:
        """The uses of what is between the products of attention, but those of its own kernel: that computes
        it for itself, whoever else wants it. None where no other is left."""
        left: UseSet = {}
        for kernel, access in uses:
            if kernel.group.runs_attention(summary):
                kernel.own.add(node)
                self.pass_on(kernel, node, summary, access)
            else:
                left[kernel, access] = None
        return left or None

    def must_store(self, node: UOp, summary: NodeSummary, uses: UseSet) -> bool:
        """Whether to store a node that need not be."""
        decision = self.decision(summary, numbered(uses))
        if isinstance(decision, bool):
            return decision
        while node.op is Ops.LIVE_OUT:
            node = node.src[0]
        if isinstance(decision, str):
            self.note(node, decision)
            return True
        work = self.work[node]
        if work <= decision.least and work * most_places(uses) <= REPEATED_OPERATIONS:
            return False
        cost = better_stored(node, decision.evaluations, work, decision.kernels)
        self.note(node, cost)
        return cost.is_stored

    def note(self, node: UOp, decision: object) -> None:
        """Print a decision at DEBUG=3."""
        if DEBUG >= 3:
            print(f"fusion: {format_node(node)}: {decision}")

    # --- storing --------------------------------------------------------------------------------------------

    def store(self, node: UOp, summary: NodeSummary, uses: UseSet) -> None:
        """Let a kernel that uses a node store it, or else a new one."""
        host = None if node in self.buffered_assigns else self.storing_kernel(node, summary, uses)
        if host is None:
            group = self.new_group(summary, device_of(summary, numbered(uses)))
            kernel = Kernel(node, group)
            self.kernels.append(kernel)
            index, access = group.index, Access(group.index)
        else:
            kernel, found = host
            kernel.group, index, access = found.group, found.index, found.access
        kernel.outputs.append(node)
        kernel.output_loops[node] = index
        self.stored[node] = kernel
        for user, _ in uses:
            if user is not kernel:
                user.after[kernel] = None
                user.operations += ACCESS_OPERATIONS
        self.pass_on(kernel, node, summary, access)

    def storing_kernel(self, node: UOp, summary: NodeSummary,
                       uses: UseSet) -> tuple[Kernel, MultiOutputFusion] | None:
        """A kernel that may store a node, has room for it and does not wait for others that use it."""
        kernels = list(dict.fromkeys(kernel for kernel, _ in uses))
        operations = self.operations_of(node)
        for host in self.multi_outputs(summary, numbered(uses)):
            kernel = kernels[host.number]
            if not kernel.has_room_for(operations):
                continue
            if _has_copy(kernels) and _has_copy(kernel.after):
                continue  # another device waits for the value, and should not for what this kernel waits for
            if not kernel.depends_on(set(kernels) - {kernel}):
                return kernel, host
        return None

    # --- following a value to its sources -------------------------------------------------------------------

    def pass_on(self, kernel: Kernel, node: UOp, summary: NodeSummary, access: Access) -> None:
        """`access` of a node is computed inside `kernel`: its sources are used there."""
        kernel.computed.append(node)
        kernel.operations += weight_of(summary.op)
        if summary.view_map is not None:
            if not summary.view_map.is_constant:
                self.use(node.base, kernel, summary.view_map.access_at(access))
        elif summary.op is Ops.REDUCE:
            self.use(node.src[0], kernel, self.into_reduce(kernel, node, summary, access))
        elif summary.op is Ops.ASSIGN:
            self.use(node.src[1], kernel, access)
        else:  # item by item, but for a COLLECTIVE, which takes all
            takes_all = summary.op is Ops.COLLECTIVE
            for source in node.src:
                self.use(source, kernel, Access(loops_over(source.shape)) if takes_all else access)

    def into_reduce(self, kernel: Kernel, node: UOp, summary: NodeSummary, access: Access) -> Access:
        """The item that a REDUCE reads inside its loops, which `kernel` gets."""
        # items that two closed forms pick are two, though both count alike
        level = node if summary.is_closed else reduce_depth.of(node)
        depth = kernel.depths.setdefault(level, len(kernel.depths))
        kernel.group, inside = self.after_reduce(kernel.group, summary, access, depth)
        return inside

    def use(self, node: UOp, kernel: Kernel, access: Access) -> None:
        self.uses.setdefault(node, {})[kernel, access] = None


def numbered(uses: UseSet) -> tuple[Use, ...]:
    """Uses without their kernels, which get numbers as they are met."""
    numbers: dict[Kernel, int] = {}
    return tuple([Use(numbers.setdefault(k, len(numbers)), k.group, access) for k, access in uses])


def most_places(uses: UseSet) -> int:
    """The items of a node that one kernel computes for one of its own, at most."""
    return max(Counter(kernel for kernel, _ in uses).values())


def _has_copy(kernels: Iterable[Kernel]) -> bool:
    return any(kernel.root.op in Family.TRANSFER for kernel in kernels)
