"""Contractions on matrix units.

In: a nest, a contraction in it, and the unit that is to do it. Out: the same nest, in which a warp computes a
tile of (m, n) for a part of k at a time: the loops over m, n and k go on over tiles; what is inside a tile is
an index made of the lane's number and of the element's number in the lane, as the unit's layout says.

Several tiles beside each other share what they load. Where memory is contiguous along a range of the
contraction, the elements of one lane, of all its tiles, lie side by side along it: any order of rows, columns
and products is right, as long as all tiles agree, and this one is what wide loads want.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from tinygrad.codegen.contraction import contraction_of, narrower
from tinygrad.codegen.opt.access import steps_of
from tinygrad.codegen.opt.loops import is_shared
from tinygrad.codegen.predicate import mask_loads_along, mask_of, mask_store, zero_unless
from tinygrad.codegen.ranges import ZERO, NewRanges, closers, ranges_among
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Memory, Ops, RangeKind
from tinygrad.graph.symbolic import TRUE, linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer.matrix_units import Bit, MatrixUnit

TF32_HALF, TF32_KEPT = 1 << 12, -1 << 13
"""Of the 23 bits of a float32's fraction, tf32 keeps 10: half of its last place, and a mask of what is
kept."""


@frozen
class MatrixProduct:
    """A contraction that a unit can do: the REDUCE, its operands as the unit takes them, and a range of
    each kind."""

    unit: MatrixUnit
    reduce: UOp
    a: UOp
    b: UOp
    m: UOp
    n: UOp
    k: UOp


def matrix_product(reduce: UOp, unit: MatrixUnit, m: UOp, n: UOp, k: UOp) -> MatrixProduct | None:
    """The contraction `reduce` over these ranges on `unit`; None where the unit cannot do it."""
    contraction = contraction_of(reduce)
    if contraction is None or reduce.dtype is not unit.result or k not in reduce.closed_ranges:
        return None
    a, b = contraction.factors
    if m in contraction.right and n in contraction.left:
        a, b = b, a
    elif m not in contraction.left or n not in contraction.right:
        return None
    mask = mask_of(reduce.src[0], Ops.ADD)
    if mask is not TRUE:
        # A mask on one factor leaves zero times the other, which is no zero where that is not finite. A core
        # skips what a mask hides instead: that is worth more there than its unit.
        covers = [mask.ranges <= s.ranges for s in (a, b)]
        if not (all(covers) if unit.threads == 1 else any(covers)):
            return None
    found = [_as_source(s, unit, mask) for s in (a, b)]
    if found[0] is None or found[1] is None:
        return None
    return MatrixProduct(unit, reduce, found[0], found[1], m, n, k)


def _as_source(factor: UOp, unit: MatrixUnit, mask: UOp) -> UOp | None:
    """A factor of the product as the unit takes it, zero where the `mask` of the product does not hold, if
    that changes with nothing that the factor does not; None where the unit takes no such value."""
    value = factor if factor.dtype is unit.source else narrower(factor)
    if value is None or value.dtype is not unit.source:
        return None
    if mask is not TRUE and mask.ranges <= value.ranges:
        value = mask.where(value, value._operand(unit.source.as_const(0)))
    return value


# --- where the elements of tiles are ------------------------------------------------------------------------


def number_of(named: Sequence[Bit], numbers: dict[str, UOp]) -> UOp:
    """The number whose bits, the lowest first, are these bits of `numbers`."""
    result: UOp = ZERO
    start = 0
    while start < len(named):  # bits that stay together are one term
        letter, lowest = named[start]
        end = start + 1
        while end < len(named) and named[end] == (letter, lowest + end - start):
            end += 1
        part = numbers[letter] // 2**lowest % 2 ** (end - start)
        result = result + part * 2**start
        start = end
    return result


@frozen
class UnitAxis:
    """One range of a contraction as tiles: the loop over groups of tiles, the tile in its group, which bit
    of the element's number inside a tile stands at which place of its number in the group."""

    extent: int
    outer: UOp
    tile: UOp
    order: tuple[int, ...]
    """places, the lowest first: bit i of the number in the tile, or -1 - i for bit i of the tile's number"""

    @property
    def loops(self) -> list[UOp]:
        return ranges_among((self.outer, self.tile))

    def index(self, bits: Sequence[Bit], lane: UOp, element: UOp) -> UOp:
        """The range's counter for a lane's element, where `bits` are those of its number in the tile."""
        named = [("t", -1 - place) if place < 0 else bits[place] for place in self.order]
        start: UOp = self.outer * 2 ** len(named)
        return start + number_of(named, {"l": lane, "r": element, "t": self.tile})

    def start(self, size: int) -> UOp:
        """The counter where a tile of `size` begins."""
        first: UOp = self.outer * 2 ** len(self.order)
        return first + self.tile * size

    def masked(self, value: UOp, at: UOp) -> UOp:
        """`value` at this counter, with its loads masked where the tiles go beyond the range."""
        return value if self.is_whole() else mask_loads_along(value, at < self.extent)

    def is_whole(self) -> bool:
        """Whether the tiles end where the range does."""
        groups = self.outer.extent if self.outer.op is Ops.RANGE else 1
        return bool(groups * 2 ** len(self.order) == self.extent)


def axis_of(r: UOp, size: int, tiles: int, lane_bits: Sequence[Bit], together: bool, kind: RangeKind,
            new: NewRanges) -> UnitAxis:
    """`r` in groups of `tiles` tiles of `size`, a loop of this kind over groups; `together` puts the elements
    of each lane side by side."""
    if tiles < 1 or tiles & tiles - 1:
        raise ValueError(f"tiles beside each other are a power of two, not {tiles}")
    groups = ceildiv(r.extent, size * tiles)
    outer, tile = new.counter(groups, kind), new.counter(tiles, RangeKind.UNROLL)
    own = range(len(lane_bits))
    numbers = [-1 - i for i in range(tiles.bit_length() - 1)]
    if not together:
        return UnitAxis(r.extent, outer, tile, (*own, *numbers))
    registers = [i for i in own if lane_bits[i][0] == "r"]
    return UnitAxis(r.extent, outer, tile, (*registers, *numbers, *(i for i in own if i not in registers)))


def operand(product: MatrixProduct, is_left: bool, side: UnitAxis, depth: UnitAxis, lane: UOp,
            element: UOp) -> UOp:
    """A side of a product as a lane's element of the unit's tile, from memory."""
    unit = product.unit
    value, r, fragment = (product.a, product.m, unit.a) if is_left else (product.b, product.n, unit.b)
    own, shared = (fragment.rows, fragment.columns) if is_left else (fragment.columns, fragment.rows)
    at, along = side.index(own, lane, element), depth.index(shared, lane, element)
    value = side.masked(value.substitute({r: at, product.k: along}), at)
    if not depth.is_whole():
        value = zero_unless(along < depth.extent, value)
    return as_source(value, unit)


# --- the change ---------------------------------------------------------------------------------------------


def on_matrix_unit(nest: UOp, m: UOp, n: UOp, k: UOp, unit: MatrixUnit, *tiles: int) -> UOp:
    """The nest with the contraction over k on `unit`, by `tiles` of (m, n, k) beside each other. Raises
    ValueError where there is no such contraction, or where something else uses its ranges otherwise."""
    product = _only_product(nest, unit, m, n, k)
    new = NewRanges(nest)
    rows, columns, depth = (
        axis_of(r, size, count, bits, not unit.in_shared and is_contiguous(values, r), r.kind, new)
        for r, size, count, bits, values in (
            (m, unit.m, tiles[0], unit.c.rows if unit.in_shared else unit.a.rows, [product.a]),
            (n, unit.n, tiles[1], unit.c.columns if unit.in_shared else unit.b.columns, [product.b]),
            (k, unit.k, tiles[2], unit.depth_bits, [product.a, product.b])))
    lane = new.counter(unit.threads, RangeKind.LOCAL)
    of_a, of_b, of_c = (new.range(f.registers, RangeKind.FRAGMENT) for f in (unit.a, unit.b, unit.c))

    def in_shared(value: UOp, side: UnitAxis, size: int, r: UOp) -> UOp:
        """Where the tile of an operand begins in shared memory."""
        if value.op is not Ops.LOAD or value.memory.op is not Ops.STAGE:
            raise ValueError(f"{unit} reads shared memory, where its operands are not")
        if not (side.is_whole() and depth.is_whole()) or tiles[2] > 1:
            raise ValueError(f"tiles of {unit} do not divide what is in shared memory")
        return value.src[0].substitute({r: side.start(size), k: depth.start(unit.k)})

    src = (in_shared(product.a, rows, unit.m, m), in_shared(product.b, columns, unit.n, n), lane, of_c) \
        if unit.in_shared else (operand(product, True, rows, depth, lane, of_a),
                                operand(product, False, columns, depth, lane, of_b),
                                lane, of_c, of_a, of_b)
    added = UOp.new(Ops.MMA, unit.result, src, unit)
    others = [r for r in product.reduce.closed_ranges if r is not k]
    total = added.reduce_ranges(Ops.ADD, *others, *depth.loops)
    element = of_c
    within: list[UOp] = []
    in_rows = ranges_among((lane, of_c))
    if unit.by_rows:  # the result goes to memory, from where loops over its rows take it
        row, column = new.range(unit.m), new.range(unit.n, RangeKind.VECTOR)
        element, in_rows, within = row * unit.n + column, [], [row, column]
        total = total.stage(row.identity, Memory.SCRATCH, of_c).index(element).load()
    at_m = rows.index(unit.c.rows, lane, element)
    at_n = columns.index(unit.c.columns, lane, element)
    changes = {product.reduce: total, m: at_m, n: at_n}
    loops = {m: [*rows.loops, *in_rows], n: columns.loops}
    conditions = [at < axis.extent for at, axis in ((at_m, rows), (at_n, columns)) if not axis.is_whole()]

    def stored(store: UOp) -> UOp:
        """The STORE of what the unit computed, in the loops over its tiles."""
        address, value = (s.substitute(changes) for s in store.src[:2])
        closed = [*(new for r in store.closed_ranges for new in loops.get(r, [r])), *within]
        return reduce(mask_store, conditions, store.replace(src=(address, value, *closed)))

    return UOp.sink(map(stored, nest.src))


def _only_product(nest: UOp, unit: MatrixUnit, m: UOp, n: UOp, k: UOp) -> MatrixProduct:
    closing = closers(nest, k)
    product = matrix_product(closing[0], unit, m, n, k) if len(closing) == 1 else None
    if product is None:
        raise ValueError(f"no contraction over r{k.identity} that {unit} could do")
    if not are_of_every_store(nest, (m, n)):
        raise ValueError(f"r{m.identity} and r{n.identity} are no loops of every STORE alone")
    return product


def are_of_every_store(nest: UOp, ranges: Iterable[UOp]) -> bool:
    """Whether every STORE closes each of `ranges`, and nothing else does: a unit's tile is stored whole."""
    return all(is_shared(nest, r) for r in ranges)


def is_contiguous(values: Sequence[UOp], r: UOp) -> bool:
    """Whether a value reads memory whose items lie side by side along `r`."""
    return any(n.op is Ops.LOAD and steps_by_one(n.offset, r) for value in values
               for n in value.toposort(stop=lambda n: n.op is Ops.STAGE))


def steps_by_one(offset: UOp, r: UOp) -> bool:
    """Whether an offset grows by one with `r`, also where it does so within rows that are swizzled."""
    steps, _ = steps_of(offset)
    swizzled = (atom.src[0] for atom, factor in linear_terms(offset)[0].items()
              if atom.op is Ops.MOD and factor == 1)
    return steps.get(r) == 1 or any(steps_of(inside)[0].get(r) == 1 for inside in swizzled)


def as_source(value: UOp, unit: MatrixUnit) -> UOp:
    """A value as the unit looks at it: where that is in tf32, a float32 rounded to 10 bits of fraction,
    halves away from zero, as `cvt.rna.tf32.f32` does."""
    if not unit.rounds_to_tf32:
        return value
    bits = value.bitcast(dtypes.int32)
    rounded = ((bits + TF32_HALF) & TF32_KEPT).bitcast(dtypes.float32)
    return value.ne(value).where(value, rounded)
