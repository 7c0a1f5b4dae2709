"""What every step of the cost model works with: the nest as it is now, the Opts taken so far, the machine.

`lanes.py`, `panels.py` and `tiles.py` add the steps for cores, which `choose.py` puts in order;
`choose_sides.py` and `choose_gpu.py` those for blocks of threads.
"""
from __future__ import annotations

from collections.abc import Iterable

from tinygrad.codegen.opt.access import MemoryAccess, accesses_of
from tinygrad.codegen.opt.loops import is_reduce_range
from tinygrad.codegen.opt.merge import mergeable_pair
from tinygrad.codegen.opt.opts import Merge, Opt, Split, Stage, Upcast, Vector
from tinygrad.codegen.opt.plan import apply_opt
from tinygrad.codegen.opt.staging import stageable
from tinygrad.codegen.ranges import is_plain, output_ranges
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer.machine import Machine


class Chooser:
    """A plan in the making. `take` applies an Opt to the nest and remembers it."""

    def __init__(self, nest: UOp, machine: Machine, rank: int = 0) -> None:
        self.nest = nest
        self.machine = machine
        self.rank = rank
        """how many better ways to run a contraction are passed over, where there are so many"""
        self.opts: list[Opt] = []
        self.cost: float | None = None
        """of a multiply-add of the main contraction, in units of one without lanes; None where nobody
        estimated it"""
        self.notes: list[str] | None = None
        """what was decided and why, where someone wants to know"""

    def note(self, what: str, **numbers: float) -> None:
        """Write down a decision and its numbers."""
        if self.notes is not None:
            shown = (f"{name.replace('_', ' ')} {n if isinstance(n, int) else format(n, '.3g')}"
                     for name, n in numbers.items())
            self.notes.append(f"{what}: {', '.join(shown)}")

    def take(self, opt: Opt) -> None:
        self.nest = apply_opt(self.nest, opt)
        self.opts.append(opt)

    def go_on_from(self, part: Chooser) -> None:
        """What another chooser made of this one's nest, too."""
        self.nest = part.nest
        self.opts += part.opts

    def merge_contiguous(self) -> None:
        """Loops that walk memory as one would, as one."""
        while (pair := mergeable_pair(self.nest)) is not None:
            self.take(Merge(pair[0].arg[0], pair[1].arg[0]))

    def split_along(self, digit: Ops, least: int = 2) -> None:
        """Loops along whose quotients (IDIV: channels that were shuffled) or remainders (MOD: weights in
        panels) by a number memory lies, in runs of `least` items, as two."""
        while (found := loop_of_digits(self.nest, digit, least)) is not None:
            self.take(Split(*found))

    def ranges(self) -> list[UOp]:
        return [r for r in self.nest.toposort() if r.op is Ops.RANGE]

    def new_ranges(self, opt: Opt) -> list[UOp]:
        """The ranges that an Opt makes, the outermost loop last."""
        before = set(self.ranges())
        self.take(opt)
        return sorted((r for r in self.ranges() if r not in before), key=lambda r: r.arg[0])

    def identities(self) -> set[int]:
        return {r.arg[0] for r in self.ranges()}

    def stage(self, operand: UOp, over: Iterable[UOp], *tile: int) -> None:
        """Stage an operand of the contractions over these ranges, in shared memory for a `tile` of threads
        and on (the fields of `SharedTile`)."""
        self.take(Stage(stageable(self.nest).index(operand), tuple(r.arg[0] for r in over), *tile))

    def loads_of(self, value: UOp) -> list[MemoryAccess]:
        """The accesses to memory that `value` is made from."""
        inside = value.toposort()
        return [a for a in accesses_of(self.nest) if a.node.op is Ops.LOAD and a.node in inside]

    def has_statistics(self) -> bool:
        """True if something is reduced once for each outer iteration, before the loops inside it run."""
        reduces = [n for n in self.nest.toposort() if n.op is Ops.REDUCE and n.closed_ranges]
        outputs = [frozenset(store.closed_ranges) for store in self.nest.src]
        if len(outputs) == 1 or not reduces:
            return any(n.ranges < outputs[0] for n in reduces)
        inside = [store.toposort(stop=lambda n: not n.closed_below) for store in self.nest.src]
        return any(n.ranges < loops and n in below for loops, below in zip(outputs, inside, strict=True)
                   for n in reduces)

    def outer_after(self, opt: Opt) -> int | None:
        """Apply a split; the identity of the loop left around it, None if no loop is left."""
        before = self.identities()
        self.take(opt)
        new = [r for r in self.ranges() if r.arg[0] not in before and r.arg[1] is RangeKind.LOOP]
        return new[0].arg[0] if new else None

    def lanes(self) -> int:
        """Lanes of the kernel's widest common float: of what it stores."""
        sizes = [s.src[1].dtype.scalar for s in self.nest.src]
        return min(self.machine.lanes(d) for d in sizes)

    def written_bytes(self) -> int:
        """Bytes of the kernel's results."""
        stored = {s.src[0].src[0] for s in self.nest.src}
        return sum(int(memory.arg[1]) * memory.dtype.itemsize for memory in stored)

    def outgrows_last_cache(self) -> bool:
        """True if the results fill much of the last cache, so that whole vectors better go past it."""
        return 0 < self.machine.l3_bytes < 2 * self.written_bytes()

    def width(self, lane: UOp) -> int:
        """Lanes of a vector along `lane`."""
        return min(self.lanes(), 1 << (int(lane.extent).bit_length() - 1))

    def can_vector(self, r: UOp) -> bool:
        if r.extent < 4 or r.arg[1] is not RangeKind.LOOP:
            return False
        mixed = (n for n in self.nest.toposort() if r in n.ranges or r in n.closed_ranges)
        around = (o for n in mixed for o in n.ranges | frozenset(n.closed_ranges))
        return not any(o.arg[1] is RangeKind.VECTOR for o in around)

    def lane_tile(self, lane: UOp, most: int) -> int:
        """`lane` as vectors, up to `most` of them side by side. Returns how many."""
        outer = self.outer_after(Vector(lane.arg[0], self.width(lane)))
        size = 1 if outer is None else tile_size(ceildiv(lane.extent, self.width(lane)), most)
        if outer is not None and size > 1:
            self.take(Upcast(outer, size))
        return size


def loop_of_digits(nest: UOp, digit: Ops, least: int) -> tuple[int, int] | None:
    """(a loop over outputs, a number by which its iterations have quotients or remainders that lie side by
    side in what is loaded, `least` of them); None where there is none."""
    outputs = output_ranges(nest)
    for access in accesses_of(nest):
        for atom, factor in linear_terms(access.node.src[0].src[1]).terms.items():
            if atom.op is digit and factor == 1 and atom.src[0] in outputs and atom.src[1].op is Ops.CONST:
                loop, divisor = atom.src
                if not is_plain(loop) or loop.extent % divisor.arg or is_reduce_range(nest, loop):
                    continue
                if (divisor.arg if digit is Ops.MOD else loop.extent // divisor.arg) >= least:
                    return loop.arg[0], divisor.arg
    return None


def tile_size(extent: int, most: int) -> int:
    """A tile of at most `most` along `extent`: large, but with a last tile that repeats little of the one
    before."""
    if extent <= most:
        return max(1, extent)

    def worth(size: int) -> float:
        return size / (size + 1) * extent / round_up(extent, size)

    return max(range(1, most + 1), key=worth)
