"""A linear program with one value in each register, for devices whose threads have no vectors.

In: a program with vectors of any length (`graph/spec.py`, stage `program`). Out: the same program in which
every operation works on single values; vectors are left only for what a lane holds of a matrix unit's tiles,
and where memory is read and written, for a GPU moves up to 16 bytes at once. Such an access starts at a
multiple of its length; one whose start is not known to be such a multiple, and one with a condition a lane,
becomes one access a lane, which `wide.py` may join again.

The C dialects for GPUs and LLVM's GPU targets write what comes out.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import Machine
from tinygrad.renderer.wide import is_multiple, whole_vector, wide_accesses


@graph_pass("blocks and threads")
def scalar_program(program: list[UOp], machine: Machine) -> list[UOp]:
    """The program with its vectors taken apart, for the accesses that `machine` has."""
    return store_by_store(wide_accesses(_Scalars(machine).rewritten(program), machine.access_lanes))


def store_by_store(program: list[UOp]) -> list[UOp]:
    """The program in whose last part, after all loops and barriers, what is stored is computed just before:
    so what 128 accumulators are turned into does not take as many registers at every step (GELU of a product
    on sm_90: 96 registers, where 255 and 1,652 bytes beyond were taken)."""
    ends = (Ops.RANGE, Ops.END, Ops.BARRIER)
    start = max((i + 1 for i, n in enumerate(program) if n.op in ends), default=0)
    tail = program[start:]
    written = {n.memory for n in program if n.op is Ops.STORE and n.src[0].op is Ops.INDEX}
    listed, wanted = _outside_loops(program[:start]), set(tail)
    out = program[:start]
    for statement in tail:
        if _may_wait(statement, written):
            continue
        for node in statement.toposort(stop=lambda n: n in listed):
            if node in wanted and node not in listed:
                listed.add(node)
                out.append(node)
    return out


def _outside_loops(program: list[UOp]) -> set[UOp]:
    """What is listed in no loop."""
    found, depth = set(), 0
    for node in program:
        depth += node.op is Ops.RANGE
        if not depth:
            found.add(node)
        depth -= node.op is Ops.END
    return found


def _may_wait(node: UOp, written: set[UOp]) -> bool:
    """Whether it does not matter when a value is computed: all but what is read from memory that changes."""
    if node.op is Ops.LOAD:
        return node.src[0].op is Ops.INDEX and node.memory.op is Ops.PARAM \
            and node.memory not in written
    return node.op not in _IN_ORDER


class _Scalars:
    """`lanes` has the single values that each node has become, `known` what the open loops have listed, the
    innermost last."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lanes: dict[UOp, tuple[UOp, ...]] = {}
        self.out: list[UOp] = []
        self.known: list[set[UOp]] = [set()]

    def rewritten(self, program: list[UOp]) -> list[UOp]:
        for node in program:
            _TAKEN_APART.get(node.op, _Scalars.each_lane)(self, node)
            if node.op is Ops.RANGE:
                self.known.append(set())
            elif node.op is Ops.END:
                self.known.pop()
        return self.out

    def add(self, op: Ops, dtype: DType, src: tuple[UOp, ...] = (), arg: object = None) -> UOp:
        """A node, listed unless its value is known: lanes of two vectors may turn out to be the same."""
        node = UOp.new(op, dtype, src, arg)
        if op in _STATEMENTS or not any(node in loop for loop in self.known):
            self.out.append(node)
            self.known[-1].add(node)
        return node

    def lane(self, node: UOp, number: int) -> UOp:
        """One lane of a node; a single value is the same in all."""
        lanes = self.lanes[node]
        return lanes[number if len(lanes) > 1 else 0]

    def each_lane(self, node: UOp) -> None:
        """An operation that does the same in every lane; statements and single values as they are."""
        self.lanes[node] = tuple(
            self.add(node.op, node.dtype.scalar, tuple(self.lane(s, i) for s in node.src), node.arg)
            for i in range(node.dtype.count))

    def const(self, node: UOp) -> None:
        values = node.arg if isinstance(node.arg, tuple) else (node.arg,) * node.dtype.count
        self.lanes[node] = tuple(self.add(Ops.CONST, node.dtype.scalar, (), v) for v in values)

    def register(self, node: UOp) -> None:
        """A vector of registers is told apart by its lanes."""
        count = node.dtype.count
        self.lanes[node] = tuple(self.add(Ops.REGISTER, node.dtype.scalar, (),
                                          node.arg if count == 1 else (node.arg, i)) for i in range(count))

    # --- lanes that move -----------------------------------------------------------------------------------

    def vectorize(self, node: UOp) -> None:
        self.lanes[node] = tuple(self.lane(s, 0) for s in node.src) if len(node.src) > 1 else \
            (self.lane(node.src[0], 0),) * node.dtype.count

    def shuffle(self, node: UOp) -> None:
        both = self.lanes[node.src[0]] + self.lanes[node.src[1]]
        self.lanes[node] = tuple(both[i] for i in node.arg)

    def extract(self, node: UOp) -> None:
        self.lanes[node] = (self.lane(node.src[0], node.arg),)

    def reduce(self, node: UOp) -> None:
        """One half of the lanes with the other, until one is left; odd lanes are put aside until the end, as
        every renderer does it."""
        values, aside = list(self.lanes[node.src[0]]), []
        while len(values) > 1:
            half = len(values) // 2
            aside += values[2 * half:]
            values = [self.add(node.arg, node.dtype, pair)
                      for pair in zip(values[:half], values[half:2 * half], strict=True)]
        for other in aside:
            values = [self.add(node.arg, node.dtype, (values[0], other))]
        self.lanes[node] = tuple(values)

    def matrix_product(self, node: UOp) -> None:
        """What a lane holds of tiles stays together."""
        tiles = tuple(self.address(s, 0) if s.op is Ops.INDEX else
                      self.add(Ops.VECTORIZE, s.dtype, self.lanes[s]) for s in node.src[:3])
        result = self.add(Ops.MMA, node.dtype, (*tiles, node.src[3]), node.arg)
        self.lanes[node] = tuple(self.add(Ops.EXTRACT, node.dtype.scalar, (result,), i)
                                 for i in range(node.dtype.count))

    # --- memory --------------------------------------------------------------------------------------------

    def index(self, node: UOp) -> None:
        """An address is said where it is used."""

    def load(self, node: UOp) -> None:
        place, dtype = node.src[0], node.dtype
        if place.op is Ops.REGISTER:
            self.lanes[node] = tuple(self.add(Ops.LOAD, dtype.scalar, (self.lane(place, i),), node.arg)
                                     for i in range(dtype.count))
            return
        lanes: list[UOp] = []
        for start, end in pairwise(self.pieces(place, dtype)):
            kind = dtype.scalar.vec(end - start)
            vector = self.add(Ops.LOAD, kind, (self.address(place, start),), node.arg)
            lanes += [vector] if end - start == 1 else \
                [self.add(Ops.EXTRACT, dtype.scalar, (vector,), i) for i in range(end - start)]
        self.lanes[node] = tuple(lanes)

    def store(self, node: UOp) -> None:
        place, source = node.src
        dtype = source.dtype
        if place.op is Ops.REGISTER:
            for i in range(dtype.count):
                self.add(Ops.STORE, dtype.scalar, (self.lane(place, i), self.lane(source, i)))
            return
        for start, end in pairwise(self.pieces(place, dtype)):
            address = self.address(place, start)
            value = self.lane(source, start)
            if end - start > 1:
                piece = tuple(self.lane(source, i) for i in range(start, end))
                value = whole_vector(piece) or self.add(Ops.VECTORIZE, dtype.scalar.vec(end - start), piece)
            self.add(Ops.STORE, value.dtype, (address, value))

    def pieces(self, place: UOp, dtype: DType) -> list[int]:
        """The lanes at which the accesses that make up one of `dtype` begin, and its count."""
        width = self.machine.access_lanes(dtype)
        apart = any(s.dtype.count > 1 for s in place.src[1:]) or dtype.is_bool
        while width > 1 and (apart or dtype.count % width or not is_multiple(place.src[1], width)):
            width //= 2
        return [*range(0, dtype.count, width), dtype.count]

    def address(self, place: UOp, lane: int) -> UOp:
        """Where the lanes from `lane` on begin."""
        memory, offset = place.src[:2]
        at = self.lane(offset, lane)
        if offset.dtype.count == 1 and lane:
            at = self.add(Ops.ADD, dtypes.index, (at, self.add(Ops.CONST, dtypes.index, (), lane)))
        conditions = tuple(self.lane(c, lane) for c in place.src[2:])
        return self.add(Ops.INDEX, memory.dtype, (memory, at, *conditions))


_IN_ORDER = frozenset({Ops.STORE, Ops.MMA, Ops.EXCHANGE, Ops.PREFETCH, Ops.COMMIT, Ops.WAIT, Ops.PARAM,
                       Ops.VARIABLE, Ops.SPECIAL, Ops.SHARED, Ops.SCRATCH})
"""What stays where it is beside what others do."""
_STATEMENTS = frozenset({Ops.LOAD, Ops.STORE, Ops.RANGE, Ops.END, Ops.BARRIER})
"""What runs as often as it is listed."""
_TAKEN_APART: dict[Ops, Callable[[_Scalars, UOp], None]] = {
    Ops.CONST: _Scalars.const,
    Ops.REGISTER: _Scalars.register,
    Ops.VECTORIZE: _Scalars.vectorize,
    Ops.SHUFFLE: _Scalars.shuffle,
    Ops.EXTRACT: _Scalars.extract,
    Ops.REDUCE: _Scalars.reduce,
    Ops.MMA: _Scalars.matrix_product,
    Ops.INDEX: _Scalars.index,
    Ops.LOAD: _Scalars.load,
    Ops.STORE: _Scalars.store,
}
