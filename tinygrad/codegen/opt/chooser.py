"""What every step of the cost model works with: the nest as it is now, the Opts taken so far, the machine.

`lanes.py`, `panels.py` and `tiles.py` add the steps for cores, which `choose.py` puts in order;
`choose_tiles.py` and `choose_gpu.py` those for blocks of threads.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tinygrad.codegen.contraction import Contraction, contraction_of
from tinygrad.codegen.opt.access import MemoryAccess, accesses_of, memory_bytes
from tinygrad.codegen.opt.loop_bounds import has_loose_bounds
from tinygrad.codegen.opt.loops import mergeable_pair, operands
from tinygrad.codegen.opt.opts import (
    Merge,
    Named,
    Opt,
    Split,
    Splitting,
    Stage,
    Swap,
    Tighten,
    Upcast,
    Vector,
)
from tinygrad.codegen.opt.plan import Plan, apply_opt
from tinygrad.codegen.opt.staging import stageable
from tinygrad.codegen.ranges import (
    all_ranges,
    is_plain,
    iterations,
    loops_of,
    of_kind,
    output_ranges,
    running_in,
)
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer.machine import Machine


@frozen
class Alternative:
    """One of several ways to run something."""

    cost: float
    order: tuple[Any, ...]
    """decides among those of one cost"""
    name: str
    take: Callable[[], None]
    """takes its Opts"""


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

    def plan(self) -> Plan:
        """The plan that the steps make."""
        self.choose()
        return Plan(tuple(self.opts))

    def choose(self) -> None:
        """Take the Opts of all steps, in an order that is the same for cores and for blocks of threads."""
        self.arrange_loops()
        if not self.sum_in_memory():
            self.choose_inside()
            self.refine()
        self.share_out()

    def arrange_loops(self) -> None:
        """Loops as memory has them: those that walk it as one would, as one."""
        while (pair := mergeable_pair(self.nest)) is not None:
            self.take(Merge, *pair)

    def sum_in_memory(self) -> bool:
        """Take the Opts of sums whose items lie in memory, which have all that an output needs; False where
        there are none."""
        return False

    def choose_inside(self) -> None:
        """What one processor does: lanes, registers, memory of its own, threads of a block."""

    def refine(self) -> None:
        """What holds for whatever was chosen: tighter bounds, subtotals, stores past the caches, hints."""

    def share_out(self) -> None:
        """The outermost loops across processors."""

    def tighten(self) -> None:
        """Loops only as far as there is something to do."""
        if has_loose_bounds(self.nest):
            self.take(Tighten)

    def note(self, what: str, **numbers: float) -> None:
        """Write down a decision and its numbers."""
        if self.notes is not None:
            shown = (f"{name.replace('_', ' ')} {n if isinstance(n, int) else format(n, '.3g')}"
                     for name, n in numbers.items())
            self.notes.append(f"{what}: {', '.join(shown)}")

    def take(self, kind: type[Opt], *values: Named) -> None:
        """Take a change of these ranges, with these numbers."""
        opt = kind.of(*values)
        self.nest = apply_opt(self.nest, opt)
        self.opts.append(opt)

    def new_ranges(self, kind: type[Opt], *values: Named) -> list[UOp]:
        """Take a change; the ranges that it makes, the outermost loop last."""
        before = set(all_ranges(self.nest))
        self.take(kind, *values)
        return [r for r in all_ranges(self.nest) if r not in before]

    def split(self, kind: type[Splitting], r: UOp, size: int) -> tuple[UOp, UOp | None]:
        """Take a split; (the range inside, the loop left around it or None)."""
        inside, *rest = self.new_ranges(kind, r, size)
        around = of_kind(rest, RangeKind.LOOP)
        return inside, around[-1] if around else None

    def split_off(self, kind: type[Splitting], r: UOp | None, most: int | None = None) -> UOp | None:
        """Take a split of a range's innermost iterations, up to so many or all, if these are several; the
        loop left around them or None."""
        size = 1 if r is None else r.extent if most is None else min(most, r.extent)
        return r if r is None or size < 2 else self.split(kind, r, size)[1]

    def tiled(self, r: UOp, size: int) -> tuple[UOp, UOp | None]:
        """`r` as (the range inside its tile, the loop over tiles or None)."""
        return (r, None) if r.extent <= size else self.split(Split, r, size)

    def attempt(self, step: Callable[..., bool], *args: Any) -> bool:
        """Whether a step of the plan could be taken; where not, the plan stays as it was."""
        nest, count = self.nest, len(self.opts)
        if step(*args):
            return True
        self.nest = nest
        del self.opts[count:]
        return False

    def take_cheapest(self, what: str, alternatives: Iterable[Alternative], rank: int = 0) -> float:
        """Take the cheapest of these that cost less than 1, but for as many cheaper ones as are to be passed
        over. Returns what it costs, 1 where there is none."""
        ranked = sorted(alternatives, key=lambda one: (one.cost, one.order))
        if ranked:
            self.note(what, **{one.name: one.cost for one in ranked})
        if rank >= len(ranked) or ranked[rank].cost >= 1.0:
            return 1.0
        ranked[rank].take()
        return ranked[rank].cost

    def split_along(self, wanted: Callable[[Digit], bool]) -> None:
        """Loops by whose quotients (channels that were shuffled) or remainders (weights in panels) what is
        accessed lies, split by the number, as far as these are `wanted`."""
        while digits := [d for a in self.accesses() for d in digits_of(a.node.offset) if wanted(d)]:
            self.take(Split, digits[0].loop, digits[0].number)

    def move_inside(self, loop: UOp) -> None:
        """All other loops of the first output around this one."""
        self.reorder([r for r in self.store.closed_ranges if r is not loop])

    def reorder(self, loops: Sequence[UOp]) -> None:
        """These loops around all others that close with them, the first outermost."""
        for r in reversed(loops):
            self.take(Swap, r)

    def operands_along(self, ranges: Iterable[UOp]) -> list[UOp]:
        """The operands of the contractions that change with all of these, as the Opts so far have made
        them."""
        wanted = frozenset(ranges)
        return [operand for operand in operands(self.nest) if wanted <= operand.ranges]

    def stage(self, operand: UOp, over: Iterable[UOp], *tile: int) -> None:
        """Stage an operand of the contractions over these ranges, in shared memory for a `tile` of threads
        and on (the fields of `SharedTile`)."""
        self.take(Stage, stageable(self.nest).index(operand), over, *tile)

    @property
    def store(self) -> UOp:
        """The STORE of the first output."""
        return self.nest.src[0]

    @property
    def loops(self) -> list[UOp]:
        """The loops of the first output, outermost first."""
        return loops_of(self.store)

    @property
    def reduces(self) -> list[UOp]:
        """The REDUCEs, sources first."""
        return self.nest.nodes_of(Ops.REDUCE)

    @property
    def outputs(self) -> frozenset[UOp]:
        """The RANGEs of the outputs."""
        return output_ranges(self.nest)

    def accesses(self, along: UOp | None = None, op: Ops | None = None) -> list[MemoryAccess]:
        """The accesses to memory: all, or those in the loop `along`, or the LOADs or STOREs among them."""
        return [a for a in accesses_of(self.nest) if (along is None or along in a.ranges)
                and (op is None or a.node.op is op)]

    def loads_of(self, value: UOp) -> list[MemoryAccess]:
        """The accesses to memory that `value` is made from."""
        inside = value.toposort()
        return [a for a in self.accesses(op=Ops.LOAD) if a.node in inside]

    def crossing(self, lane: UOp, ranges: Iterable[UOp]) -> UOp | None:
        """Where lanes jump in what they load (a transpose), the one of `ranges` along which those loads lie
        side by side."""
        jumping = [a for a in self.accesses(op=Ops.LOAD) if not a.is_smooth(lane)]
        return next((r for a in jumping for r in ranges if a.step(r) == 1), None)

    def main_contraction(self) -> Contraction | None:
        """The contraction with the most work that changes with every range of an output, none of which runs
        in order: where one item follows from the one before, there is nothing to tile."""
        outputs = [frozenset(s.closed_ranges) for s in self.nest.src
                   if not of_kind(s.closed_ranges, RangeKind.IN_ORDER)]
        found = (c for n in self.nest.toposort() if n.ranges in outputs and (c := contraction_of(n)))
        return max(found, key=lambda c: iterations(c.reduce.closed_ranges), default=None)

    def has_statistics(self) -> bool:
        """True if something is reduced once for each outer iteration, before the loops inside it run."""
        return any(n.ranges < frozenset(s.closed_ranges) for s in self.nest.src
                   for n in s.nodes_of(Ops.REDUCE))

    def lanes(self) -> int:
        """Lanes of the kernel's widest common float: of what it stores."""
        return min(self.machine.lanes(s.src[1].dtype.scalar) for s in self.nest.src)

    @property
    def line_items(self) -> int:
        """Items of 4 bytes in a cache line."""
        return self.machine.line_bytes // 4

    def written_bytes(self) -> int:
        """Bytes of the kernel's results."""
        return memory_bytes({s.memory for s in self.nest.src})

    def outgrows_last_cache(self) -> bool:
        """True if the results fill much of the last cache, so that whole vectors better go past it."""
        return 0 < self.machine.l3_bytes < 2 * self.written_bytes()

    def width(self, lane: UOp) -> int:
        """Lanes of a vector along `lane`."""
        return min(self.lanes(), power_of_two(lane.extent))

    def can_vector(self, r: UOp) -> bool:
        around = (running_in(n) for n in self.nest.toposort())
        return r.extent >= 4 and r.kind is RangeKind.LOOP and \
            not any(r in loops and of_kind(loops, RangeKind.VECTOR) for loops in around)

    def lane_tile(self, lane: UOp, most: int) -> int:
        """`lane` as vectors, up to `most` of them side by side. Returns how many."""
        outer = self.split_off(Vector, lane, self.width(lane))
        size = 1 if outer is None else tile_size(outer.extent, most)
        self.split_off(Upcast, outer, size)
        return size


def power_of_two(number: int) -> int:
    """The largest one that is not larger."""
    return 1 << (number.bit_length() - 1)


class Digit(NamedTuple):
    """A quotient (IDIV) or remainder (MOD) of a loop by a number that divides its iterations, times a factor,
    in an offset."""

    op: Ops
    factor: int
    loop: UOp
    number: int


def digits_of(offset: UOp) -> Iterator[Digit]:
    """Those in an offset: heads and their items, channels that were shuffled, weights in panels."""
    for atom, factor in linear_terms(offset).terms.items():
        if atom.op in (Ops.IDIV, Ops.MOD) and atom.src[1].op is Ops.CONST and atom.src[0].op is Ops.RANGE:
            loop, divisor = atom.src
            if is_plain(loop) and loop.extent % divisor.arg == 0:
                yield Digit(atom.op, factor, loop, divisor.arg)


def waste(extent: int, size: int) -> float:
    """How many iterations tiles of `size` go over for each of a range: the last one goes beyond its end, or
    over some again."""
    return round_up(extent, size) / extent


def tile_size(extent: int, most: int) -> int:
    """A tile of at most `most` along `extent`: large, but with a last tile that repeats little of the one
    before."""
    if extent <= most:
        return max(1, extent)

    def worth(size: int) -> float:
        return size / (size + 1) * extent / round_up(extent, size)

    return max(range(1, most + 1), key=worth)
