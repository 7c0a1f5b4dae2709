"""From a loop nest to a linear program.

In: SINK of STOREs whose ranges run as loops (LOOP, THREAD) or across blocks and threads (GLOBAL, LOCAL); what
was unrolled or vectorised is already written out. Out: a list of UOps in the order in which they run, each
after its sources, with RANGE and END around loop bodies, a REGISTER for every REDUCE and SCRATCH or SHARED
memory for every STAGE and SCATTER (`graph/spec.py`, stage `program`). A range across blocks or threads is no
loop there: its counter is a hardware index (`grid.py`), and `barriers.py` puts in where threads wait for each
other. A REDUCE over the lanes of a warp is a few exchanges between them.

A value's place follows from the loops it changes with: it runs in the innermost of them, and therefore
outside all others. The loops form a tree: a REDUCE or STAGE stands where its own value stands, its ranges
open below it. Next on the path: `renderer/`.
"""
from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from tinygrad.codegen.barriers import with_barriers
from tinygrad.codegen.grid import NO_LIMITS, Grid, GridLimits
from tinygrad.codegen.predicate import reduce_identity
from tinygrad.codegen.ranges import (
    ACCUMULATING,
    fresh_identity,
    is_block_range,
    iterations,
    row_major,
    separate_loops,
    values_of,
)
from tinygrad.dtype import DType
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.symbolic import TRUE, UNKNOWN, constant
from tinygrad.graph.uop import CLOSING, UOp
from tinygrad.helpers import reachable, round_up

FILLED_LANES = 16
"""Items of memory in which something accumulates that get their first value at once."""
ROOT = constant(-1)
"""Stands for the body of the whole kernel, where a RANGE stands for the body of its loop."""


@graph_pass("linearize")
def linearize(nest: UOp, limits: GridLimits = NO_LIMITS, contracts: bool = True) -> list[UOp]:
    """The program of a loop nest, for a device with at most `limits` blocks along each axis. With `contracts`
    a product that a REDUCE adds up is one MULACC with the sum."""
    return with_barriers(_Linearizer(separate_loops(nest, places=True), limits, contracts).program())


class _Linearizer:
    """Places nodes in loop bodies, then orders each body.

    A body's items are nodes and inner loops (their RANGE); `steps` are what an item prints.
    """

    def __init__(self, nest: UOp, limits: GridLimits, contracts: bool) -> None:
        self.nest = nest
        self.grid = Grid(nest, limits)
        self.contracts = contracts
        self.order = {node: i for i, node in enumerate(nest.toposort())}
        reduces = dict.fromkeys(_reduce_of(n) for n in self.order if n.op is Ops.RUNNING)
        self.running_alone = [n for n in reduces if n not in self.order]
        """the REDUCEs of which nothing but their value so far is used"""
        self.items: dict[UOp, list[UOp]] = defaultdict(list)
        self.body: dict[UOp, UOp] = {}
        """where each node and each loop runs"""
        self.before: dict[UOp, set[UOp]] = defaultdict(set)
        self.around: dict[UOp, frozenset[UOp]] = {ROOT: frozenset()}
        """for each loop, itself and those around it"""
        self.innermost_of: dict[frozenset[UOp], UOp] = {}
        """the innermost of loops that stand one inside the other, and of ranges across blocks"""
        self.opened_at: dict[UOp, list[UOp]] = defaultdict(list)
        """for each loop, the REDUCEs and STAGEs of which it is the outermost"""
        self.memory: dict[UOp, UOp] = {}
        """the register of each REDUCE, the memory of each STAGE and SCATTER"""
        self.updates: dict[UOp, list[UOp]] = defaultdict(list)
        self.identities = itertools.count()

    def program(self) -> list[UOp]:
        self.place_loops()
        self.place_nodes()
        self.connect()
        self.reach = _reach_of_loads(self.order)
        definitions = [n for n in self.order if n.op in (Ops.PARAM, Ops.VARIABLE, Ops.CONST)]
        self.out: list[UOp] = []
        self.holding: list[set[UOp]] = [set()]
        """what was written down in the kernel's body and in each loop that is open"""
        self.done = {n: self.add(n) for n in definitions}
        self.place_in_grid()
        self.emit_body(ROOT)
        return _defined_first(_without_unused(self.out))

    # --- where everything runs ------------------------------------------------------------------------------

    def place_loops(self) -> None:
        """Give every loop its place below the loops that the node closing it changes with."""
        for node in reversed(self.order):
            loops = _closed_loops(node)
            if not loops:
                continue
            around = self.innermost(node)
            if node.op in ACCUMULATING:
                self.opened_at[loops[0]].append(node)
            for r in loops:
                known = self.body.setdefault(r, around)
                if known is not around:
                    raise RuntimeError(f"loop {r.identity} cannot run in two places: "
                                       f"inside {_name(known)} and inside {_name(around)}")
                self.around[r] = self.around[around] | {r}
                around = r
        for node in self.running_alone:
            self.opened_at[node.src[1]].append(node)

    def innermost(self, node: UOp) -> UOp:
        """The body that a node runs in: that of the deepest loop it changes with."""
        if node.ranges not in self.innermost_of:
            loops = [r for r in node.ranges if not is_block_range(r)]
            deepest = max(loops, key=lambda r: len(self.around[r]), default=ROOT)
            if not self.around[deepest].issuperset(loops):
                raise RuntimeError(f"no loop encloses all of {', '.join(map(_name, loops))}")
            self.innermost_of[node.ranges] = deepest
        return self.innermost_of[node.ranges]

    def place_nodes(self) -> None:
        for node in self.order:
            if node.op not in (Ops.SINK, Ops.PARAM, Ops.VARIABLE, Ops.CONST, Ops.RANGE):
                closed = _closed_loops(node) if node.op is Ops.STORE else []
                self.body[node] = closed[-1] if closed else self.innermost(node)
            if node in self.body:  # ranges across blocks and threads run nowhere
                self.items[self.body[node]].append(node)

    # --- what must come before what -------------------------------------------------------------------------

    def connect(self) -> None:
        accumulating = [n for n in self.body if n.op in ACCUMULATING and _closed_loops(n)]
        for node in (*self.running_alone, *accumulating):
            loop = _closed_loops(node)[-1]
            self.updates[loop].append(node)
            for source in values_of(node):
                self.sequence(source, loop, None)
        loads: dict[UOp, list[UOp]] = defaultdict(list)
        for node in self.body:
            if node.op is Ops.LOAD:
                loads[node.memory].append(node)
        for node, body in self.body.items():
            before = loads[node.memory] if node.op is Ops.STORE else ()
            for source in (*node.src, *before):
                if self.body.get(source) is body:
                    self.before[node].add(source)
                else:
                    self.sequence(source, body, node)

    def sequence(self, source: UOp, body: UOp, node: UOp | None) -> None:
        """`source` before `node`, which runs in `body` (None: at the end of it), seen from the body around
        both."""
        if source not in self.body:
            return
        around = self.around[body]
        earlier = source
        where = self.body[source]
        while where is not ROOT and where not in around:
            earlier = where
            where = self.body[where]
        later = node
        while body is not where:
            later = body
            body = self.body[body]
        if later is not None and later is not earlier:
            self.before[later].add(earlier)

    # --- writing it down ------------------------------------------------------------------------------------

    def emit_body(self, body: UOp) -> None:
        items = self.items[body]
        inside = set(items)
        waiting = {item: self.before[item] & inside for item in items}
        followers: dict[UOp, list[UOp]] = defaultdict(list)
        for item in items:
            for source in waiting[item]:
                followers[source].append(item)
        order = self.order_around_loops(items, followers)
        tie = itertools.count()
        ready = [(order[item], next(tie), item) for item in items if not waiting[item]]
        heapq.heapify(ready)
        while ready:
            item = heapq.heappop(ready)[2]
            self.emit(item)
            for follower in followers[item]:
                waiting[follower].discard(item)
                if not waiting[follower]:
                    heapq.heappush(ready, (order[follower], next(tie), follower))
        if any(waiting.values()):
            raise RuntimeError("the loops of this kernel depend on each other in a circle")

    def order_around_loops(self, items: Sequence[UOp], followers: dict[UOp, list[UOp]]) -> dict[UOp, int]:
        """The order of a body's items, as far as what they need allows: that of the graph, but for what
        neither needs an inner loop nor is needed in one. That comes when something uses it: before a loop it
        would take a register that the loop may want."""
        order = {item: self.order[item] for item in items}
        loops = [item for item in items if item.op is Ops.RANGE]
        if loops:
            free = order.keys() - reachable(loops, self.before.__getitem__)
            free -= reachable(loops, followers.__getitem__).keys()
            for item in sorted(free, key=self.order.__getitem__, reverse=True):
                order[item] = min([order[f] for f in followers[item]], default=order[item])
        return order

    def emit(self, item: UOp) -> None:
        if item.op is Ops.RANGE:
            self.emit_loop(item)
        elif item.op is Ops.RUNNING:
            self.done[item] = self.read(self.memory[_reduce_of(item)])
        elif item.op is Ops.REDUCE and _closed_loops(item):
            self.done[item] = self.read(self.memory[item])
        elif item.op is Ops.REDUCE and item.closed_ranges:
            self.done[item] = self.exchanged(item)
        elif item.op in ACCUMULATING and item.op is not Ops.REDUCE:
            if item not in self.memory:  # no loop fills it
                self.open_memory(item)
                self.emit_update(item)
            self.done[item] = self.memory[item]
        else:
            src = tuple([self.done[s] for s in item.src])
            if item.op is Ops.STORE:
                src = self.masked(item, src[0]), src[1]
            elif item.op is Ops.INDEX:
                src = src[0], self.in_own_part(src[1], item.src[0]), *src[2:]
            self.done[item] = self.add(item if src == item.src else item.replace(src=src))

    def place_in_grid(self) -> None:
        """Write down where this thread is, what it may store, and which part of shared memory it has."""
        for r, counter in self.grid.counters.items():
            self.done[r] = self.add_tree(counter)
        for node in self.order:
            if node.op in (Ops.STORE, Ops.STAGE):
                self.add_tree(self.grid.mask_of(node))
            if node.op is Ops.STAGE:
                self.add_tree(self.grid.own_part(node)[0])

    def masked(self, node: UOp, address: UOp) -> UOp:
        """`address`, where the STORE or STAGE `node` stores, for those threads only that may."""
        mask = self.grid.mask_of(node)
        if mask is TRUE:
            return address
        for valid in address.src[2:]:
            mask = self.in_every_lane(mask, valid.dtype.count)
            mask = self.write(Ops.AND, valid.dtype, (valid, mask))
        return self.add(address.replace(src=(*address.src[:2], mask)))

    def in_every_lane(self, value: UOp, count: int) -> UOp:
        """A single value as a vector of `count`."""
        return value if count == 1 else self.write(Ops.VECTORIZE, value.dtype.vec(count), (value,))

    def in_own_part(self, offset: UOp, memory: UOp) -> UOp:
        """Where an item of shared memory is in this thread's own part."""
        number, count = self.grid.own_part(memory)
        if count == 1:
            return offset
        skipped = self.in_every_lane(self.add_tree(number * self.items_of(memory)), offset.dtype.count)
        return self.write(Ops.ADD, offset.dtype, (offset, skipped))

    def exchanged(self, node: UOp) -> UOp:
        """A REDUCE over lanes of a warp: each takes what the one has whose number differs in one bit, then in
        the next one. So all of them know the result."""
        value = self.done[node.src[0]]
        for distance in self.grid.lane_distances(node.closed_ranges[0]):
            other = self.write(Ops.EXCHANGE, node.dtype, (value,), distance)
            value = self.write(node.arg, node.dtype, (value, other))
        return value

    def emit_loop(self, r: UOp) -> None:
        for node in reversed(self.opened_at[r]):
            self.open_memory(node)
        kind = RangeKind.LOOP if r.kind is RangeKind.IN_ORDER else r.kind
        opened = self.write(Ops.RANGE, r.dtype, tuple(self.done[s] for s in r.src), (r.identity, kind))
        self.done[r] = opened
        updates = _by_operands(self.updates[r])
        if self.only_sums(r):
            values = zip_longest(*map(values_of, updates))
            for node, value in ((n, v) for each in values for n, v in zip(updates, each, strict=True)):
                if value is not None:
                    self.emit_needed(value, r)
                    self.accumulate(node, value)
        else:
            self.emit_body(r)
            for node in updates:
                self.emit_update(node)
        self.write(Ops.END, r.dtype, (opened,))

    def only_sums(self, body: UOp) -> bool:
        """Whether nothing in a loop's body has an order but what it accumulates."""
        return all(node.op is Ops.REDUCE and node.arg is not Ops.MULACC for node in self.updates[body]) and \
            not any(item.op in (Ops.RANGE, Ops.STORE, Ops.RUNNING) for item in self.items[body])

    def emit_needed(self, value: UOp, body: UOp) -> None:
        """A value, and what it is made of in this body, as far as it is not there yet: so nothing takes a
        register before it is used (beside the 24 accumulators of 12 rows there is room for 7 of their
        items)."""
        for item in value.toposort(stop=lambda n: self.body.get(n) is not body or n in self.done):
            if self.body.get(item) is body and item not in self.done:
                self.emit(item)

    def open_memory(self, node: UOp) -> None:
        """Declare the register of a REDUCE, or the memory of a STAGE or SCATTER."""
        number = next(self.identities)
        if node.op is Ops.REDUCE:
            memory = self.write(Ops.REGISTER, node.dtype, (), number)
            self.add(memory.store(self.add(reduce_identity(node.arg, node.dtype))))
        else:
            kind = Ops.SHARED if node.arg[1] is Memory.SHARED else Ops.SCRATCH
            size = self.items_of(node) * self.grid.own_part(node)[1]
            memory = self.write(kind, node.dtype.scalar, (), (number, size))
        if node.op is Ops.SCATTER:
            self.fill(memory, reduce_identity(node.arg[1], node.dtype.scalar.vec(FILLED_LANES)))
        self.memory[node] = memory

    def fill(self, memory: UOp, vector: UOp) -> None:
        """Give all items of scratch memory the values of a vector."""
        counter = UOp.range(memory.arg[1] // FILLED_LANES, fresh_identity(self.nest) + next(self.identities))
        self.add(counter.src[0])
        at = memory.index(self.add_tree(self.add(counter) * FILLED_LANES))
        self.add(self.add(at).store(self.add(vector)))
        self.write(Ops.END, counter.dtype, (counter,))

    def items_of(self, node: UOp) -> int:
        """The items that a STAGE fills, and those beyond that the last of several whole tiles reads: what is
        computed from them is not used. Those of a SCATTER in whole vectors."""
        if node.op is Ops.SCATTER:
            return round_up(node.arg[2], FILLED_LANES)
        values = len(values_of(node)) * node.dtype.count
        filled = iterations(node.closed_ranges) * values
        return max(filled, self.reach.get(node, 0))

    def emit_update(self, node: UOp) -> None:
        """The end of a loop body: take this iteration's values into the register or the memory."""
        values, memory = [self.done[s] for s in values_of(node)], self.memory[node]
        if node.op is Ops.STAGE:
            for number, value in enumerate(values):
                at = memory.index(self.in_own_part(self.stage_offset(node, number), node))
                self.add(self.masked(node, self.add(at)).store(value))
        elif node.op is Ops.SCATTER:
            for value, offset, condition in zip(values[::3], values[1::3], values[2::3], strict=True):
                at = self.add(memory.index(offset, condition))
                before = self.write(Ops.LOAD, node.dtype, (at,))
                self.add(at.store(self.accumulated(node.arg[1], before, value)))
        elif node.arg is Ops.MULACC:
            self.rescale(memory, *values)
        else:
            for each in values_of(node):
                self.accumulate(node, each)

    def accumulate(self, node: UOp, value: UOp) -> None:
        """Take one value of this iteration into the register of a REDUCE."""
        register = self.memory[node]
        self.add(register.store(self.accumulated(node.arg, self.read(register), self.done[value])))

    def accumulated(self, op: Ops, before: UOp, value: UOp) -> UOp:
        """What was accumulated `before`, and `value` too."""
        if self.contracts and op is Ops.ADD and value.op is Ops.MUL and value.dtype.is_float:
            return self.write(Ops.MULACC, value.dtype, (*value.src, before))
        adds_itself = value.op is Ops.MMA or (value.op is Ops.DP4A and value.src[2].is_zero)
        if op is Ops.ADD and adds_itself:
            return self.add(value.replace(src=(*value.src[:2], before, *value.src[3:])))
        return self.write(op, value.dtype, (before, value))

    def rescale(self, register: UOp, factor: UOp, *values: UOp) -> None:
        """A register times `factor`, and more added to it."""
        total = self.read(register)
        if values[0].op is Ops.MMA or not self.contracts:
            total = self.write(Ops.MUL, total.dtype, (total, factor))
        else:
            total = self.write(Ops.MULACC, total.dtype, (total, factor, values[0]))
            values = values[1:]
        for value in values:
            total = self.accumulated(Ops.ADD, total, value)
        self.add(register.store(total))

    def stage_offset(self, node: UOp, number: int) -> UOp:
        """Where value number `number` of this iteration goes."""
        closed = node.closed_ranges
        around = len(closed) - (node.arg[2] if len(node.arg) == 3 else 0)
        places = [*closed[:around], constant(number), *closed[around:]]
        extents = [r.extent for r in closed]
        offset = row_major(places, [*extents[:around], len(values_of(node)), *extents[around:]])
        counters = {r: self.done[r] for r in closed}
        return self.add_tree((offset * node.dtype.count).substitute(counters))

    def add_tree(self, root: UOp) -> UOp:
        """Write down an expression over nodes that may be written already."""
        for node in root.toposort(stop=self.holds):
            if not self.holds(node):
                self.add(node)
        return root

    def holds(self, node: UOp) -> bool:
        """Whether a node was written down and no loop around it has ended since."""
        return any(node in body for body in self.holding)

    def read(self, register: UOp) -> UOp:
        """The value of a register now; each reading is a node of its own."""
        return self.write(Ops.LOAD, register.dtype, (register,), next(self.identities))

    def write(self, op: Ops, dtype: DType, src: tuple[UOp, ...], arg: object = None) -> UOp:
        """Write down a new node."""
        return self.add(UOp.new(op, dtype, src, arg))

    def add(self, node: UOp) -> UOp:
        self.out.append(node)
        if node.op is Ops.END:
            self.holding.pop()
        elif node.op is Ops.RANGE:
            self.holding.append({node})
        else:
            self.holding[-1].add(node)
        return node


def _reduce_of(node: UOp) -> UOp:
    """The REDUCE of which a RUNNING is the value so far."""
    return UOp.new(Ops.REDUCE, node.dtype, node.src, node.arg)


def _closed_loops(node: UOp) -> list[UOp]:
    """The ranges that a node closes and that run as loops."""
    return [r for r in node.closed_ranges if not is_block_range(r)] if node.op in CLOSING else []


def _by_operands(updates: list[UOp]) -> list[UOp]:
    """The ends of a loop body in an order that needs few registers. In a tile of accumulators, those that
    share the operand that fewest share come together: it is read, used and done with, while the registers
    keep the operands of the other side, of which there are fewer (a tile of 3 x 4 vectors fits 16 registers
    only so)."""
    factors = {node: [f for value in node.src if value.op is Ops.MUL for f in value.src] for node in updates}
    uses = Counter(f for node in updates for f in factors[node])
    first: dict[UOp, int] = {}
    places = {}
    for number, node in enumerate(updates):
        rarest = min(factors[node], key=lambda f: uses[f], default=node)
        places[node] = first.setdefault(rarest, number)
    return sorted(updates, key=lambda node: places[node])


def _name(r: UOp) -> str:
    return "the kernel" if r is ROOT else f"loop {r.identity}"


def _reach_of_loads(nodes: Iterable[UOp]) -> dict[UOp, int]:
    """For each STAGE, the items up to the last one that a LOAD without a condition may touch."""
    reach: dict[UOp, int] = defaultdict(int)
    for node in nodes:
        if node.op is Ops.LOAD and node.memory.op is Ops.STAGE and node.mask is None:
            stage, offset = node.src[0].src
            lanes = 1 if offset.dtype.count > 1 else node.dtype.count
            last = _highest(offset)
            if last < math.inf:
                reach[stage] = max(reach[stage], int(last) + lanes)
    return reach


def _highest(offset: UOp) -> float:
    """The largest number in any lane of an offset that counters alone decide; infinite for others."""
    if offset.op is Ops.CONST and isinstance(offset.arg, tuple):
        return float(max(offset.arg))
    if offset.op in (Ops.VECTORIZE, Ops.ADD) and offset.dtype.count > 1:
        together = max if offset.op is Ops.VECTORIZE else sum
        return together(map(_highest, offset.src))
    highest = offset.bounds[1]
    return math.inf if highest == UNKNOWN[1] else highest


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
