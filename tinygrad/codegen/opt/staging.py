"""Staging: a value computed once into memory of its own, which all who want it read.

In: a nest, a value that can be staged (`stageable`: the operands of its contractions, and the rows that it
would compute again, of `cached_rows.py`), the loops that it is read along, and in which memory it lies how.
Out: the nest with a STAGE, filled by loops of its own, and a LOAD for each reader. So packed panels and
cached rows lie in scratch memory, filled item by item, and the tiles of a block in shared memory, filled by
all of its threads, neighbours with neighbouring items.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from tinygrad.codegen.contraction import narrower
from tinygrad.codegen.opt.cached_rows import CachedRow, cacheable_rows
from tinygrad.codegen.opt.loops import operands
from tinygrad.codegen.predicate import mask_loads_along
from tinygrad.codegen.ranges import NewRanges, iterations, ranges_among, row_major
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Memory, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv


def stageable(nest: UOp) -> list[UOp]:
    """The values that can be staged, in the order in which a plan counts them: the operands of contractions,
    then the rows that are computed more than once."""
    return [*operands(nest), *(row.value for row in cacheable_rows(nest))]


def numbered_rows(nest: UOp) -> list[tuple[int, CachedRow]]:
    """The rows among the `stageable`, each with its number."""
    return list(enumerate(cacheable_rows(nest), len(operands(nest))))


ATOM_ROWS = 8
"""Rows among which accesses change places, and accesses of a row."""


@frozen
class SharedTile:
    """How threads fill a tile in shared memory, and how it lies there.

    Threads that read one item each of several rows have a bank conflict where rows are as long as the banks
    are many. So rows are swizzled: after every `rows` rows the items of a row begin `shift` items later, and
    those at the end come first.
    """

    threads: int
    """that fill it"""
    width: int
    """items that a thread loads at once"""
    rows: int = 1
    shift: int = 0
    atom: int = 0
    """items of a row as a matrix unit reads it here (`matrix_units.SWIZZLED_ROW`); columns of such rows lie
    one after another"""

    def swizzled(self, counters: Sequence[UOp], extents: Sequence[int], back: bool) -> UOp:
        """Where the last counter's item is in its row; `back`, which item is there."""
        last = counters[-1]
        if not self.shift:
            return last
        swizzle = counters[-2] // self.rows * (self.shift % extents[-1])
        return (last + swizzle * (extents[-1] - 1 if back else 1)) % extents[-1]

    def places(self, counters: Sequence[UOp], extents: Sequence[int], back: bool = False
               ) -> tuple[list[UOp], list[int]]:
        """The counters of an item as it lies in memory, and how far each goes; `back`, from these the item's
        own counters."""
        if not self.atom:
            return [*counters[:-1], self.swizzled(counters, extents, back)], list(extents)
        extent, length = extents
        sizes = [length // self.atom, extent, self.atom]
        if back:
            column, row, item = counters
            return [row, column * self.atom + self.xored(item, row)], sizes
        row, last = counters
        return [last // self.atom, row, self.xored(last % self.atom, row)], sizes

    def xored(self, item: UOp, row: UOp) -> UOp:
        """An item of a row, the number of its access XORed with that of the row: the same way there and
        back."""
        number = item // self.width
        bits = [(number // 2**i + row // 2**i) % 2 * 2**i for i in range(ATOM_ROWS.bit_length() - 1)]
        access: UOp = sum(bits[1:], bits[0])
        return access * self.width + item % self.width

    def check(self, extents: Sequence[int]) -> None:
        """Raises ValueError for a tile that cannot be filled or swizzled so."""
        if extents[-1] % self.width:
            raise ValueError(f"rows of {extents[-1]} items are no multiple of {self.width}")
        if self.atom and (len(extents) != 2 or extents[1] % self.atom or extents[0] % ATOM_ROWS
                          or self.atom != ATOM_ROWS * self.width):
            raise ValueError(f"a tile of {extents} items is not made of rows of {self.atom}, by eights")
        if self.shift and (len(extents) < 2 or self.shift % self.width):
            raise ValueError("rows are swizzled by whole accesses, where there are several")


def staged(nest: UOp, number: int, over: Sequence[UOp], threads: int, *lies: int) -> UOp:
    """The nest in which value `number` of the `stageable` is loaded from memory, where it is computed once:
    an operand `over` these loops, a row along those of all that equals it. It lies in scratch memory or, for
    so many `threads` that fill it, in shared memory (`lies`: the other fields of a `SharedTile`).

    Raises ValueError where there is no such value.
    """
    own, rows = operands(nest), cacheable_rows(nest)
    if number >= len(own) + len(rows):
        raise ValueError(f"the nest has {len(own) + len(rows)} values to stage; there is no number {number}")
    readers: list[tuple[UOp, Sequence[UOp]]] = [(own[number], over)] if number < len(own) else \
        [(value, (loop,)) for value, loop in rows[number - len(own)].readers]
    value, loops = readers[0]
    tile = SharedTile(threads, *lies) if threads else None
    narrow = value if tile is None else narrower(value) or value  # a block's memory is small
    stage = _filled_in_order(nest, narrow, loops) if tile is None else \
        _filled_by_block(nest, narrow, loops, tile)
    loads = {}
    for reader, loops in readers:
        extents = [r.extent for r in loops]
        counters, sizes = (loops, extents) if tile is None else tile.places(loops, extents)
        load = stage.index(row_major(counters, sizes)).load()
        loads[reader] = load if narrow is value else load.cast(reader.dtype)
    return nest.substitute(loads)


def _filled_in_order(nest: UOp, value: UOp, over: Sequence[UOp]) -> UOp:
    """The STAGE of a value in scratch memory, an item an iteration."""
    new = NewRanges(nest)
    filled = {r: new.range(r.extent) for r in over}
    return new.own_loops(value, filled).stage(new.first, Memory.SCRATCH, *filled.values())


def _filled_by_block(nest: UOp, value: UOp, over: Sequence[UOp], tile: SharedTile) -> UOp:
    """The STAGE of a value in shared memory, filled by the threads of a block together."""
    extents = [r.extent for r in over]
    tile.check(extents)
    total = iterations(over)
    new, rounds = NewRanges(nest), ceildiv(total, tile.threads * tile.width)
    fill, thread = new.counter(rounds), new.range(tile.threads, RangeKind.LOCAL)
    lane = new.counter(tile.width, RangeKind.VECTOR)
    item = (fill * tile.threads + thread) * tile.width + lane
    sizes = tile.places(over, extents)[1]
    counters = [item // math.prod(sizes[i + 1:]) % size for i, size in enumerate(sizes)]
    counters, _ = tile.places(counters, extents, back=True)
    filled = value.substitute(dict(zip(over, counters, strict=True)))
    if rounds * tile.threads * tile.width > total:
        filled = mask_loads_along(filled, item < total)
    return filled.stage(new.first, Memory.SHARED, *ranges_among((fill, thread, lane)))
