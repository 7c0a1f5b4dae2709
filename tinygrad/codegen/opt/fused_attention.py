"""Fused attention (FlashAttention, Dao et al., 2022) on matrix units: two products, and the softmax in
between.

In: a nest whose largest item and weighted sums are one loop over tiles of keys (`online_softmax.py`). Out:
the same nest, in which the warps of a block have a few rows each, a query each, and go through the tiles
together: a unit makes a tile of scores, whose elements stay where it left them, in the registers of the
lanes. What is computed of them there, item by item, is the weights, which the unit takes from the same lanes
again as one side of the second product.

That works because the lanes that hold the elements of one row of a result are those that want them of a
source, and the order of what is summed is free: a weight's place among the lane's registers says which row
of values it is multiplied with. Where a unit has results the other way round than sources (AMD's), the scores
are computed transposed; where a source is wanted by more lanes than have it, they exchange it. A row's
largest item and sums are those of the registers of a lane, then of the lanes that have the row.
"""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import gcd

from tinygrad.codegen.opt.matrix import (
    MatrixProduct,
    as_source,
    axis_of,
    is_contiguous,
    matrix_product,
    number_of,
    operand,
)
from tinygrad.codegen.predicate import mask_loads_along, masked_address
from tinygrad.codegen.ranges import ZERO, NewRanges, ranges_among, row_major
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.symbolic import all_of
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer.matrix_units import Bit, MatrixUnit

AT_ONCE_ALONG_D = 8
"""Tiles of columns beside each other at most, a power of two: 16 bytes of a row of values."""


# --- which lane has what ------------------------------------------------------------------------------------


@frozen
class LayoutConversion:
    """How elements of a unit's result become those of its left source. A weight's row is the same there; bits
    of its place in the row, `unit.c.columns`, become bits of what is summed, `unit.a.columns`."""

    instruction: MatrixUnit
    unit: MatrixUnit
    """that, or its transpose where results are the other way round than sources"""
    exchanged: tuple[int, ...]
    """which bits of the place in the row are lanes' bits, and in the source those of registers: lanes
    exchange what they have"""


def layout_conversion(instruction: MatrixUnit) -> LayoutConversion | None:
    """How the unit's results become its sources; None where their rows are in other lanes."""
    for unit in (instruction, instruction.transposed):
        across, summed = unit.c.columns, unit.a.columns
        exchanged = tuple(i for i, bit in enumerate(across) if bit[0] == "l" and bit not in summed)
        if unit.threads > 1 and _are_in_same_lanes(unit.c.rows, unit.a.rows) and \
                all(bit in across for bit in summed if bit[0] == "l") and \
                len(exchanged) <= sum(letter == "r" for letter, _ in summed):
            return LayoutConversion(instruction, unit, exchanged)
    return None


def _are_in_same_lanes(rows: Sequence[Bit], others: Sequence[Bit]) -> bool:
    """Whether rows of these bits are in the lanes that have those of the others."""
    return len(rows) == len(others) and all(
        one == other or one[0] == other[0] == "r" for one, other in zip(rows, others, strict=True))


# --- the change ---------------------------------------------------------------------------------------------


@frozen
class AttentionLoops:
    """The two products and what is between them: the ranges of queries, of a tile's keys and of the result's
    columns, the loop over tiles, and the products (of scores: None where they are loaded)."""

    query: UOp
    key: UOp
    column: UOp
    tiles: UOp
    scores: MatrixProduct | None
    products: MatrixProduct
    how: LayoutConversion


def attention_loops(nest: UOp, unit: MatrixUnit, query: UOp, key: UOp, column: UOp) -> AttentionLoops | None:
    """The attention loops over these ranges that `unit` can do; None where there is none."""
    how = layout_conversion(unit)
    if how is None:
        return None
    scores, products, tiles = None, None, None
    for node in nest.nodes_of(Ops.REDUCE):
        first, *others = node.closed_ranges
        if key in node.closed_ranges:
            products = matrix_product(node, how.unit, query, column, key) or products
        elif key in node.ranges and query in node.ranges:
            scores = None if others or first.kind is not RangeKind.LOOP else \
                matrix_product(node, how.unit, query, key, first)
            if scores is None:
                return None
        elif node.arg is Ops.MULACC:
            tiles = node.closed_ranges[-1]
    if products is None or tiles is None:
        return None
    return AttentionLoops(query, key, column, tiles, scores, products, how)


def attention_on_unit(nest: UOp, query: UOp, key: UOp, column: UOp, unit: MatrixUnit) -> UOp:
    """The nest with its attention over the ranges of queries, of a tile's keys and of columns on `unit`.
    Raises ValueError where there is no such attention."""
    attention = attention_loops(nest, unit, query, key, column)
    if attention is None:
        raise ValueError(f"{unit} can do no product over r{key.identity} and what it is made of")
    return UOp.sink(map(_OnUnit(nest, attention).stored, nest.src))


class _OnUnit:
    """The state of one change: `done` has what the values of a result's elements have become."""

    def __init__(self, nest: UOp, attention: AttentionLoops) -> None:
        self.attention = attention
        self.how = attention.how
        self.unit = unit = attention.how.unit
        self.new = NewRanges(nest)
        self.lane = self.new.range(unit.threads, RangeKind.LOCAL)
        self.element = self.new.range(unit.c.registers, RangeKind.FRAGMENT)
        self.queries = axis_of(attention.query, unit.m, 1, unit.a.rows, False, RangeKind.LOCAL, self.new)
        self.keys = axis_of(attention.key, unit.n, attention.key.extent // unit.n, unit.c.columns, False,
                            RangeKind.UNROLL, self.new)
        adjacent = gcd(ceildiv(attention.column.extent, unit.n), AT_ONCE_ALONG_D)
        self.columns = axis_of(attention.column, unit.n, adjacent, unit.b.columns,
                               is_contiguous([attention.products.b], attention.column), RangeKind.UNROLL,
                               self.new)
        if attention.key.extent % unit.n or not self.keys.is_whole():
            raise ValueError(f"a tile of {attention.key.extent} keys is no power of two of tiles of {unit.n}")
        self.sources = self.places_of_keys()
        parts = sum(letter == "p" for letter, _ in self.sources.values())
        self.which = self.new.range(2**parts, RangeKind.UNROLL) if parts else ZERO
        """which of the products that a lane's tiles of weights are made into, one after another"""
        self.done: dict[UOp, UOp] = {}
        self.at_query = self.queries.index(unit.c.rows, self.lane, self.element)
        self.done[attention.query] = self.at_query
        self.done[attention.key] = self.keys.index(unit.c.columns, self.lane, self.element)
        self.done[attention.column] = self.columns.index(unit.c.columns, self.lane, self.element)

    # --- the nest -------------------------------------------------------------------------------------------

    def stored(self, store: UOp) -> UOp:
        """A STORE of the elements that a lane holds."""
        attention = self.attention
        loops = {attention.query: [*self.queries.loops, self.lane, self.element],
                 attention.column: self.columns.loops}
        ends = [(self.at_query, self.queries), (self.done[attention.column], self.columns)]
        mask = all_of(at < axis.extent for at, axis in ends if not axis.is_whole())
        # Nothing but the address and what follows the sums has a condition: all lanes make the sums together.
        sums = [n for n in store.src[1].nodes_of(Ops.REDUCE) if attention.tiles in n.closed_ranges]
        stand_ins = {n: UOp.new(Ops.REGISTER, n.dtype, (), i) for i, n in enumerate(sums)}
        address, value = (self.value(s.substitute(stand_ins)) for s in store.src[:2])
        address, value = masked_address(address, mask), mask_loads_along(value, mask)
        value = value.substitute({stand_in: self.value(n) for n, stand_in in stand_ins.items()})
        closed = [new for r in store.closed_ranges for new in loops.get(r, [r])]
        return store.replace(src=(address, value, *closed))

    def value(self, root: UOp) -> UOp:
        """What a value of the nest is for an element that a lane holds."""
        return root.rebuild(self.changed, done=self.done)

    def changed(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        attention = self.attention
        if attention.scores is not None and node is attention.scores.reduce:
            return self.scores(attention.scores)
        if node is attention.products.reduce:
            return self.products()
        if node.op is Ops.REDUCE and attention.key in node.closed_ranges:
            own = self.of_lane(src[0], node.arg)
            return self.of_row(own, node.arg) if node.arg is Ops.MAX else own
        if node.op is Ops.REDUCE and node.arg is Ops.MULACC:
            if node.src[1] is not attention.products.reduce:
                return self.of_row(node.with_sources(src), Ops.ADD)
            loops = ranges_among((self.which, src[2]))
            return UOp.new(Ops.REDUCE, node.dtype, (*src[:2], *loops), node.arg)
        new = node.with_sources(src)
        return self.queries.masked(new, self.at_query) if node.op is Ops.LOAD and \
            attention.query in node.ranges and node.memory.op is Ops.PARAM else new

    # --- rows -----------------------------------------------------------------------------------------------

    def of_lane(self, value: UOp, op: Ops) -> UOp:
        """The elements of each row that a lane holds as one, in the place of each of them."""
        loops = self.keys.loops
        across = [bit for letter, bit in self.unit.c.columns if letter == "r"]
        other = self.new.range(2 ** len(across), RangeKind.UNROLL) if across else ZERO
        named = [("other", across.index(bit)) if bit in across else ("own", bit)
                 for bit in range(self.unit.c.registers.bit_length() - 1)]
        place = number_of(named, {"other": other, "own": self.element})
        read = self.staged(value, loops, place, row_major(loops, [r.extent for r in loops]))
        return read.reduce_ranges(op, *loops, other)

    def staged(self, value: UOp, loops: Sequence[UOp], place: UOp, tile: UOp) -> UOp:
        """An element of a lane's tiles, all of them in registers."""
        stage = value.stage(self.new.number(), Memory.REGISTER, *loops, self.element)
        return stage.index(tile * self.unit.c.registers + place).load()

    def of_row(self, value: UOp, op: Ops) -> UOp:
        """What each lane has for a row, with that of the other lanes of the row."""
        for letter, bit in self.unit.c.columns:
            if letter == "l":
                value = value.alu(op, UOp.new(Ops.EXCHANGE, value.dtype, (value,), 1 << bit))
        return value

    # --- products -------------------------------------------------------------------------------------------

    def unit_product(self, a: UOp, b: UOp, of_a: UOp, of_b: UOp) -> UOp:
        """The product of two sides, each with the range over its elements."""
        if self.unit is not self.how.instruction:
            a, b, of_a, of_b = b, a, of_b, of_a
        return UOp.new(Ops.MMA, self.unit.result, (a, b, self.lane, self.element, of_a, of_b),
                       self.how.instruction)

    def fragments(self) -> tuple[UOp, UOp]:
        return (self.new.range(self.unit.a.registers, RangeKind.FRAGMENT),
                self.new.range(self.unit.b.registers, RangeKind.FRAGMENT))

    def scores(self, product: MatrixProduct) -> UOp:
        """The first product: both sides from memory."""
        unit = self.unit
        of_a, of_b = self.fragments()
        depth = axis_of(product.k, unit.k, gcd(ceildiv(product.k.extent, unit.k), 2),
                        unit.a.columns, is_contiguous([product.a, product.b], product.k), RangeKind.UNROLL,
                        self.new)
        added = self.unit_product(operand(product, True, self.queries, depth, self.lane, of_a),
                                  operand(product, False, self.keys, depth, self.lane, of_b), of_a, of_b)
        return added.reduce_ranges(Ops.ADD, *depth.loops)

    def tile_bits(self) -> list[int]:
        return [place for place in self.keys.order if place < 0]

    def places_of_keys(self) -> dict[int, Bit]:
        """For each bit of a key's number (by its place in `keys.order`): the bit of the place among what is
        summed ("s"), or of the range over products ("p")."""
        across, summed = self.unit.c.columns, self.unit.a.columns
        places: dict[int, Bit] = {i: ("s", summed.index(bit)) for i, bit in enumerate(across)
                                  if bit[0] == "l" and bit in summed}
        own = (i for i, (letter, _) in enumerate(across) if letter == "r")
        registers, later = (i for i, (letter, _) in enumerate(summed) if letter == "r"), itertools.count()
        for i in (*self.how.exchanged, *own, *self.tile_bits()):
            place = next(registers, None)
            places[i] = ("p", next(later)) if place is None else ("s", place)
        return places

    def products(self) -> UOp:
        """The second product: weights from registers, values from memory."""
        product, unit = self.attention.products, self.unit
        of_a, of_b = self.fragments()
        at = self.columns.index(unit.b.columns, self.lane, of_b)
        key = number_of([self.bit_of(place, unit.b.rows) for place in self.keys.order],
                        {"l": self.lane, "r": of_b, "p": self.which})
        loops = {self.attention.column: at, self.attention.key: key}
        values = self.columns.masked(product.b.substitute(loops), at)
        return self.unit_product(self.weights(self.value(product.a), of_a), as_source(values, unit),
                                 of_a, of_b)

    def bit_of(self, place: int, summed: Sequence[Bit]) -> Bit:
        """Where a bit of a key's number is, in a source whose places among what is summed are `summed`."""
        letter, number = self.sources[place]
        return summed[number] if letter == "s" else ("p", number)

    def weights(self, value: UOp, element: UOp) -> UOp:
        """Weights, which are elements of a result, as elements of a source."""
        source, result = self.unit.a, self.unit.c
        numbers = {"l": self.lane, "r": element, "p": self.which}
        across = (self.bit_of(i, source.columns) for i in range(len(result.columns)))
        became = dict(zip((*result.rows, *result.columns), (*source.rows, *across), strict=True))
        place = number_of([became["r", bit] for bit in range(result.registers.bit_length() - 1)], numbers)
        of_tile = (*sorted(self.tile_bits(), reverse=True), *self.how.exchanged)
        tile = number_of([self.bit_of(i, source.columns) for i in of_tile], numbers)
        loops = list(self.keys.loops)
        for i in self.how.exchanged:
            distance = 1 << result.columns[i][1]
            half = self.new.range(2, RangeKind.UNROLL)
            other = UOp.new(Ops.EXCHANGE, value.dtype, (value,), distance)
            value = (self.lane // distance % 2).ne(half).where(other, value)
            loops.insert(0, half)
        return as_source(self.staged(value, loops, place, tile), self.unit)

