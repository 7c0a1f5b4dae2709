"""GLOBAL and LOCAL ranges as the indices of a grid of blocks of threads.

In: a nest with ranges across blocks and threads, and how deep each lies. Out, as a `Grid`: the axis of each
of these ranges, its counter in terms of SPECIAL indices, and for every STORE the condition under which a
thread may do it.

Ranges that no value changes with together share an axis, which is as long as the longest of them. A thread
past the end of a shorter one computes its last iteration again, and a thread whose number on an axis means
nothing to a value computes what the first one does: so all threads run through the same loops and reach the
same barriers, and only what they store is guarded.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

GridLimits = tuple[int, int, int]
NO_LIMITS: GridLimits = (2**31 - 1, 2**31 - 1, 2**31 - 1)
BLOCK_KINDS: Mapping[RangeKind, str] = {RangeKind.GLOBAL: "gidx", RangeKind.LOCAL: "lidx"}
"""Ranges that no thread loops over, and what the hardware's index for them is called."""


def is_block_range(r: UOp) -> bool:
    """True for a range across blocks or threads."""
    return r.arg[1] in BLOCK_KINDS


class Grid:
    """Where each GLOBAL and LOCAL range of a nest runs."""

    def __init__(self, nest: UOp, depth: Mapping[UOp, int], limits: GridLimits = NO_LIMITS) -> None:
        self.axis: dict[UOp, int] = {}
        self.whole_block: set[UOp] = set()
        """LOCAL ranges that run across all axes"""
        self.counters: dict[UOp, UOp] = {}
        self.sizes: dict[RangeKind, list[int]] = {}
        self.indices: dict[RangeKind, list[UOp]] = {}
        self.inside: dict[RangeKind, UOp] = {}
        """where the hardware has more blocks than there is work: the condition under which one has some"""
        nodes = nest.toposort()
        users = [n.ranges | frozenset(n.closed_ranges) for n in nodes]
        self.lanes = _lanes_of_units(nodes)
        self.exchanging = _exchanging_lanes(nodes)
        for kind, name in BLOCK_KINDS.items():
            self.assign_axes(kind, users, depth)
            self.assign_indices(kind, name, limits if kind is RangeKind.GLOBAL else NO_LIMITS)
        for r, axis in self.axis.items():
            index, size = self.indices[r.arg[1]][axis], self.sizes[r.arg[1]][axis]
            whole = index % r.extent if r in self.exchanging else index.minimum(r.extent - 1)
            self.counters[r] = index if r.extent == size else whole
        for r in self.whole_block:
            self.counters[r] = self.number_in_block().minimum(r.extent - 1)

    def assign_axes(self, kind: RangeKind, users: list[frozenset[UOp]], depth: Mapping[UOp, int]) -> None:
        """The lanes of a warp get the fastest axis, then come the innermost ranges; ranges of one value get
        different ones. A range that is the only one of its values is the number of the thread. Lanes that
        exchange values are as many as a power of two, and nothing makes their axis longer: so each that the
        axis has besides does what one of them does."""
        apart: dict[UOp, set[UOp]] = defaultdict(set)
        for ranges in dict.fromkeys(users):
            together = {r for r in ranges if r.arg[1] is kind}
            for r in together:
                apart[r] |= together
        sizes: list[int] = []
        fixed: set[int] = set()
        threads = max((int(prod(r.extent for r in group)) for group in apart.values()), default=1)

        def rank(r: UOp) -> tuple[bool, bool, bool, int, int, int]:
            warp = r in self.exchanging or r in self.lanes
            number = apart[r] == {r} and not warp and r.extent <= threads
            lane = (r not in self.exchanging, -r.extent) if warp else (True, -r.extent * number)
            return number, not warp, *lane, -depth[r], -r.arg[0]

        for r in sorted(apart, key=rank):
            alone = apart[r] == {r} and r not in self.exchanging and r not in self.lanes
            if kind is RangeKind.LOCAL and len(sizes) > 1 and alone and r.extent <= prod(sizes):
                self.whole_block.add(r)
                continue
            taken = {self.axis[other] for other in apart[r] if other in self.axis}
            free = [a for a in range(len(sizes) + 1)
                    if a not in taken and (a not in fixed or r.extent <= sizes[a])]
            axis = next((a for a in free if a < len(sizes) and sizes[a] == r.extent), free[0])
            self.axis[r] = axis
            if axis == len(sizes):
                sizes.append(1)
            if r in self.exchanging:
                fixed.add(axis)
            sizes[axis] = max(sizes[axis], r.extent)
        self.sizes[kind] = sizes

    def assign_indices(self, kind: RangeKind, name: str, limits: GridLimits) -> None:
        """An index of the hardware for each axis; one number taken apart where the hardware has too few, or
        too short ones."""
        sizes = self.sizes[kind]
        if len(sizes) <= len(limits) and all(s <= most for s, most in zip(sizes, limits, strict=False)):
            self.indices[kind] = [_special(f"{name}{axis}", size) for axis, size in enumerate(sizes)]
            return
        total = int(prod(sizes))
        rows = -(-total // limits[0])
        columns = -(-total // rows)
        number = _special(f"{name}0", columns)
        if rows > 1:
            number = number + _special(f"{name}1", rows) * columns
        if rows * columns > total:
            self.inside[kind] = number < total
            number = number.minimum(total - 1)
        self.indices[kind] = []
        for size in sizes:
            self.indices[kind].append(number % size)
            number = number // size

    def lane_distances(self, r: UOp) -> list[int]:
        """How far apart in the block's numbers of threads the lanes of `r` are that differ in one bit.
        Raises RuntimeError for a range that no warp has side by side."""
        if self.axis.get(r) != 0 or r.extent & (r.extent - 1):
            raise RuntimeError(f"the {r.extent} iterations of r{r.arg[0]} are no lanes of a warp that could "
                               "exchange their values: threads reduce through shared memory")
        return [1 << bit for bit in range(r.extent.bit_length() - 1)]

    def number_in_block(self) -> UOp:
        """This thread's number among all of its block."""
        number = UOp.const(0, dtypes.index)
        for index, size in zip(reversed(self.indices[RangeKind.LOCAL]), reversed(self.sizes[RangeKind.LOCAL]),
                               strict=True):
            number = number * size + index
        return number

    def guard(self, ranges: frozenset[UOp], kinds: Iterable[RangeKind] = BLOCK_KINDS) -> UOp | None:
        """The condition under which a thread stores what changes with `ranges`; None where each does."""
        known = {(r.arg[1], self.axis[r]): r.extent for r in ranges if r in self.axis}
        conditions = []
        for kind in kinds:
            alone = self.whole_block.intersection(ranges) if kind is RangeKind.LOCAL else ()
            if alone:
                conditions += [self.number_in_block() < r.extent for r in alone
                               if r.extent < prod(self.sizes[kind])]
                continue
            for axis, (index, size) in enumerate(zip(self.indices[kind], self.sizes[kind], strict=True)):
                extent = known.get((kind, axis), 1)
                if extent < size:
                    conditions.append(index < extent)
            if kind in self.inside:
                conditions.append(self.inside[kind])
        result = None
        for condition in conditions:
            result = condition if result is None else result & condition
        return result

    def guard_of(self, node: UOp) -> UOp | None:
        """The guard of a STORE, or of what fills a STAGE: shared memory is every block's own, scratch memory
        every thread's."""
        if node.op is Ops.STAGE and node.arg[1] is not Memory.SHARED:
            return None
        kinds = (RangeKind.LOCAL,) if node.op is Ops.STAGE else tuple(BLOCK_KINDS)
        return self.guard(node.ranges | frozenset(node.closed_ranges), kinds)

    def own_part(self, stage: UOp) -> tuple[UOp, int]:
        """(this thread's number, how many there are) among the threads that each fill a part of their own of
        shared memory: those of the LOCAL ranges around the STAGE."""
        number, count = UOp.const(0, dtypes.index), 1
        if stage.arg[1] is Memory.SHARED:
            around = [r for r in stage.ranges if r.arg[1] is RangeKind.LOCAL]
            for r in sorted(around, key=lambda r: -self.axis.get(r, 0)):
                number, count = number * r.extent + self.counters[r], count * r.extent
        return number, count


def _lanes_of_units(nodes: Iterable[UOp]) -> frozenset[UOp]:
    """The ranges across the lanes that hold the tiles of matrix units."""
    return frozenset(node.src[3] for node in nodes if node.op is Ops.MMA)


def _exchanging_lanes(nodes: Iterable[UOp]) -> frozenset[UOp]:
    """The ranges across lanes of a warp that REDUCEs close."""
    closed = (r for node in nodes if node.op is Ops.REDUCE for r in node.closed_ranges)
    return frozenset(r for r in closed if r.arg[1] is RangeKind.LOCAL)


def _special(name: str, size: int) -> UOp:
    return UOp.new(Ops.SPECIAL, dtypes.index, (), (name, size))
