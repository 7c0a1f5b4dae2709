"""From a loop nest to a linear program.

In: SINK of STOREs whose ranges run as loops (LOOP, THREAD); what was unrolled or vectorised is already
written out. Out: a list of UOps in the order in which they run, each after its sources, with RANGE and END
around loop bodies, a REGISTER for every REDUCE and SCRATCH memory for every STAGE (`graph/spec.py`, stage
`program`).

A value's place follows from the loops it changes with: it runs in the innermost of them, and therefore
outside all others. The loops form a tree: a REDUCE or STAGE stands where its own value stands, its ranges
open below it. Next on the path: `renderer/`.
"""
from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

IDENTITY_OF: dict[Ops, Callable[[DType], int | float | bool]] = {
    Ops.ADD: lambda dtype: 0,
    Ops.MUL: lambda dtype: 1,
    Ops.MAX: lambda dtype: dtype.scalar.min,
}
ROOT = UOp.const(-1, dtypes.index)
"""Stands for the body of the whole kernel, where a RANGE stands for the body of its loop."""


def reduce_identity(op: Ops, dtype: DType) -> UOp:
    """The value that leaves any other as it is under `op`."""
    return UOp.const(IDENTITY_OF[op](dtype), dtype)


def linearize(nest: UOp) -> list[UOp]:
    """The program of a loop nest."""
    return _Linearizer(loops_apart(nest)).program()


def loops_apart(nest: UOp) -> UOp:
    """The nest with loops of their own for REDUCEs that share loops but stand in different places.

    Reduces over equal extents share loops. Where one of them comes to change with other outer loops than
    the others (a gather puts its condition into what it picks), or loses a loop between two others to a
    closed form, one loop cannot run in both places.
    """
    while True:
        changes: dict[UOp, UOp] = {}
        place: dict[UOp, tuple[frozenset[UOp], tuple[UOp, ...]]] = {}
        identity = max((n.arg[0] for n in nest.toposort() if n.op is Ops.RANGE), default=0) + 1
        for node in nest.toposort():
            if node.op is not Ops.REDUCE or not node.closed_ranges:
                continue
            closed = node.closed_ranges
            places = {r: (node.ranges, closed[:i]) for i, r in enumerate(closed)}
            if all(place.setdefault(r, here) == here for r, here in places.items()):
                continue
            own = {r: UOp.range(r.src[0], identity + i, r.arg[1]) for i, r in enumerate(closed)}
            values = node.src[:len(node.src) - len(closed)]
            changes[node] = node.replace(src=(*(v.substitute(own) for v in values), *own.values()))
            break
        if not changes:
            return nest
        nest = nest.substitute(changes)


class _Linearizer:
    """Places nodes in loop bodies, then orders each body.

    A body's items are nodes and inner loops (their RANGE); `steps` are what an item prints.
    """

    def __init__(self, nest: UOp) -> None:
        self.order = {node: i for i, node in enumerate(nest.toposort())}
        self.parent: dict[UOp, UOp] = {}
        self.depth: dict[UOp, int] = {ROOT: 0}
        self.items: dict[UOp, list[UOp]] = defaultdict(list)
        self.body: dict[UOp, UOp] = {}
        self.before: dict[UOp, set[UOp]] = defaultdict(set)
        self.registers: dict[UOp, UOp] = {}
        self.scratch: dict[UOp, UOp] = {}
        self.updates: dict[UOp, list[UOp]] = defaultdict(list)
        self.identities = itertools.count()

    def program(self) -> list[UOp]:
        self.place_loops()
        self.place_nodes()
        self.connect()
        definitions = [n for n in self.order if n.op in (Ops.PARAM, Ops.VARIABLE, Ops.CONST)]
        self.done: dict[UOp, UOp] = {n: n for n in definitions}
        self.out: list[UOp] = list(definitions)
        self.emit_body(ROOT)
        return _defined_first(_without_unused(self.out))

    # --- where everything runs ------------------------------------------------------------------------------

    def place_loops(self) -> None:
        """Give every loop its place below the loops that the node closing it changes with."""
        for node in reversed(self.order):
            closed = node.closed_ranges
            if not closed:
                continue
            around = self.innermost(node)
            for r in closed:
                known = self.parent.get(r)
                if known is None:
                    self.parent[r] = around
                    self.depth[r] = self.depth[around] + 1
                elif known is not around:
                    raise RuntimeError(f"loop {r.arg[0]} cannot run in two places: "
                                       f"inside {_name(known)} and inside {_name(around)}")
                around = r

    def innermost(self, node: UOp) -> UOp:
        """The body that a node runs in: that of the deepest loop it changes with."""
        if not node.ranges:
            return ROOT
        deepest = max(node.ranges, key=lambda r: self.depth[r])
        around = set(self.chain(deepest))
        if not node.ranges <= around:
            raise RuntimeError(f"no loop encloses all of {', '.join(_name(r) for r in node.ranges)}")
        return deepest

    def chain(self, r: UOp) -> list[UOp]:
        """The loop and those around it, innermost first."""
        result = []
        while r is not ROOT:
            result.append(r)
            r = self.parent[r]
        return result

    def place_nodes(self) -> None:
        for node in self.order:
            if node.op in (Ops.SINK, Ops.PARAM, Ops.VARIABLE, Ops.CONST):
                continue
            if node.op is Ops.RANGE:
                self.body[node] = self.parent[node]
            elif node.op is Ops.STORE and node.closed_ranges:
                self.body[node] = node.closed_ranges[-1]
            else:
                self.body[node] = self.innermost(node)
            self.items[self.body[node]].append(node)

    # --- what must come before what -------------------------------------------------------------------------

    def connect(self) -> None:
        loads = [n for n in self.order if n.op is Ops.LOAD]
        for node in self.order:
            if node not in self.body:
                continue
            for source in node.src:
                self.sequence(source, self.body[node], node)
            if node.op in (Ops.REDUCE, Ops.STAGE) and node.closed_ranges:
                innermost = node.closed_ranges[-1]
                self.updates[innermost].append(node)
                for source in node.src:
                    if source.op is not Ops.RANGE:
                        self.sequence(source, innermost, None)
            if node.op is Ops.STORE:
                for load in loads:
                    if load.src[0].src[0] is node.src[0].src[0]:
                        self.sequence(load, self.body[node], node)

    def sequence(self, source: UOp, body: UOp, node: UOp | None) -> None:
        """`source` before `node`, which runs in `body` (None: at the end of it), seen from the body around
        both."""
        if source not in self.body:
            return
        around = {ROOT, *self.chain(body)}
        earlier = source
        where = self.body[source]
        while where not in around:
            earlier = where
            where = self.parent[where]
        later = node
        while body is not where:
            later = body
            body = self.parent[body]
        if later is not None and later is not earlier:
            self.before[later].add(earlier)

    # --- writing it down ------------------------------------------------------------------------------------

    def emit_body(self, body: UOp) -> None:
        items = self.items[body]
        inside = set(items)
        waiting = {item: {b for b in self.before[item] if b in inside} for item in items}
        followers: dict[UOp, list[UOp]] = defaultdict(list)
        for item, sources in waiting.items():
            for source in sources:
                followers[source].append(item)
        ready = [(self.order[item], item) for item in items if not waiting[item]]
        keyed = [(k, i, item) for i, (k, item) in enumerate(ready)]
        heapq.heapify(keyed)
        tie = itertools.count(len(keyed))
        emitted = 0
        while keyed:
            item = heapq.heappop(keyed)[2]
            self.emit(item)
            emitted += 1
            for follower in followers[item]:
                waiting[follower].discard(item)
                if not waiting[follower]:
                    heapq.heappush(keyed, (self.order[follower], next(tie), follower))
        if emitted != len(items):
            raise RuntimeError("the loops of this kernel depend on each other in a circle")

    def emit(self, item: UOp) -> None:
        if item.op is Ops.RANGE:
            self.emit_loop(item)
        elif item.op is Ops.REDUCE and item.closed_ranges:
            self.done[item] = self.read(self.registers[item])
        elif item.op is Ops.STAGE:
            if not item.closed_ranges:
                self.open_scratch(item)
                self.emit_update(item)
            self.done[item] = self.scratch[item]
        elif item.op is Ops.STORE:
            self.add(UOp.new(Ops.STORE, item.dtype, (self.done[item.src[0]], self.done[item.src[1]])))
        else:
            self.done[item] = self.add(item.replace(src=tuple(self.done[s] for s in item.src)))

    def emit_loop(self, r: UOp) -> None:
        for node in self.closing_from(r):
            if node.op is Ops.REDUCE:
                register = self.add(UOp.new(Ops.REGISTER, node.dtype, (), next(self.identities)))
                start = self.add(reduce_identity(node.arg, node.dtype))
                self.add(UOp.new(Ops.STORE, node.dtype, (register, start)))
                self.registers[node] = register
            else:
                self.open_scratch(node)
        for extent in r.src:
            self.done.setdefault(extent, extent)
        opened = self.add(UOp.new(Ops.RANGE, r.dtype, tuple(self.done[s] for s in r.src), r.arg))
        self.done[r] = opened
        self.emit_body(r)
        for node in self.updates[r]:
            self.emit_update(node)
        self.add(UOp.new(Ops.END, r.dtype, (opened,)))

    def open_scratch(self, node: UOp) -> None:
        """Declare the memory of a STAGE."""
        values = len(node.src) - len(node.closed_ranges)
        size = prod(c.extent for c in node.closed_ranges) * values * node.dtype.count
        memory = UOp.new(Ops.SCRATCH, node.dtype.scalar, (), (next(self.identities), size))
        self.scratch[node] = self.add(memory)

    def closing_from(self, r: UOp) -> list[UOp]:
        """The REDUCEs and STAGEs whose outermost loop is `r`."""
        return [n for n in self.order
                if n.op in (Ops.REDUCE, Ops.STAGE) and n.closed_ranges and n.closed_ranges[0] is r]

    def emit_update(self, node: UOp) -> None:
        """The end of a loop body: take this iteration's value into the register or the scratch memory."""
        values = [self.done[s] for s in node.src if s.op is not Ops.RANGE]
        if node.op is Ops.STAGE:
            for number, value in enumerate(values):
                place = (self.scratch[node], self.stage_offset(node, number))
                at = self.add(UOp.new(Ops.INDEX, node.dtype.scalar, place))
                self.add(UOp.new(Ops.STORE, node.dtype, (at, value)))
            return
        register = self.registers[node]
        for value in values:
            before = self.read(register)
            if node.arg is Ops.ADD and value.op is Ops.MUL and node.dtype.is_float:
                after = UOp.new(Ops.MULACC, node.dtype, (*value.src, before))
            else:
                after = UOp.new(node.arg, node.dtype, (before, value))
            self.add(UOp.new(Ops.STORE, node.dtype, (register, self.add(after))))

    def stage_offset(self, node: UOp, number: int) -> UOp:
        """Where value number `number` of this iteration goes."""
        offset = UOp.const(0, dtypes.index)
        for r in node.closed_ranges:
            offset = offset * r.extent + r
        counters = {r: self.done[r] for r in node.closed_ranges}
        values = len(node.src) - len(node.closed_ranges)
        return self.add_tree(((offset * values + number) * node.dtype.count).substitute(counters))

    def add_tree(self, root: UOp) -> UOp:
        """Write down an expression over nodes that may be written already."""
        written = set(self.out)
        for node in root.toposort(stop=lambda n: n in written):
            if node not in written:
                self.add(node)
        return root

    def read(self, register: UOp) -> UOp:
        """The value of a register now; each reading is a node of its own."""
        return self.add(UOp.new(Ops.LOAD, register.dtype, (register,), next(self.identities)))

    def add(self, node: UOp) -> UOp:
        self.out.append(node)
        return node


def _name(r: UOp) -> str:
    return "the kernel" if r is ROOT else f"loop {r.arg[0]}"


def _without_unused(program: list[UOp]) -> list[UOp]:
    """The program without values that nothing uses, such as the product that became part of a MULACC."""
    effects = (Ops.PARAM, Ops.VARIABLE, Ops.STORE, Ops.RANGE, Ops.END)
    used: set[UOp] = set()
    kept: list[UOp] = []
    for node in reversed(program):
        if node.op in effects or node in used:
            kept.append(node)
            used.update(node.src)
    return kept[::-1]


def _defined_first(program: list[UOp]) -> list[UOp]:
    """The program with its declarations moved to the front, each once."""
    declared = (Ops.PARAM, Ops.VARIABLE, Ops.CONST, Ops.SCRATCH, Ops.REGISTER)
    head = dict.fromkeys(n for n in program if n.op in declared)
    return [*head, *(n for n in program if n.op not in declared)]
