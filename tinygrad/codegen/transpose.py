"""Lanes that jump in memory: whole vectors loaded and their items put in place by shuffles.

Where lanes jump in memory, each vector is a gather: as many accesses as lanes. Lanes a few items apart, or
from two rows in turn, are a few whole loads and shuffles instead. If the vectors beside it read
the items beside its own (a matrix is copied transposed, sixteen rows at a time), all of them together are a
square tile whose rows lie side by side. Then the rows are loaded whole, and log2(lanes) rounds of shuffles
put row i's item k into lane i of vector k.
"""
from __future__ import annotations

from collections import defaultdict

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.renderer.matrix_units import ROW_BYTES

MOST_STRIDE = 4
"""Items between lanes beyond which a gather does less than loading all that lies between."""
Tiles = dict[UOp, tuple[tuple[UOp, ...], int]]
"""For a LOAD of a tile: the LOADs of the whole tile, in the order of their items, and its place there."""


def tiles_of(nest: UOp) -> Tiles:
    """The LOADs along lanes that jump, where as many of them as there are lanes read a square tile."""
    groups: dict[tuple[UOp, UOp, UOp], dict[int, UOp]] = defaultdict(dict)
    for node in nest.toposort():
        if node.op is not Ops.LOAD or len(node.src[0].src) != 2 or node.src[0].src[0].op is not Ops.PARAM:
            continue
        lanes = [r for r in node.ranges if r.arg[1] is RangeKind.VECTOR]
        if len(lanes) != 1:
            continue
        memory, offset = node.src[0].src
        terms, constant = linear_terms(offset)
        if terms.get(lanes[0], 1) != 1 and lanes[0] not in (offset - lanes[0] * terms[lanes[0]]).ranges:
            groups[memory, offset - constant, lanes[0]][constant] = node
    tiles: Tiles = {}
    for (_, _, lane), loads in groups.items():
        for first in sorted(loads):
            run = [loads.get(first + k) for k in range(lane.extent)]
            if all(load is not None and load not in tiles for load in run):
                tile = tuple(load for load in run if load is not None)
                tiles.update({load: (tile, k) for k, load in enumerate(tile)})
    return tiles


def strided_vector(load: UOp) -> UOp | None:
    """A LOAD along lanes a few items apart (every second one of a row): the vectors that hold them all, and
    shuffles. None for other LOADs."""
    lanes = [r for r in load.ranges if r.arg[1] is RangeKind.VECTOR]
    if len(load.src[0].src) != 2 or len(lanes) != 1:
        return None
    (lane,), (memory, offset) = lanes, load.src[0].src
    step = linear_terms(offset)[0].get(lane, 0)
    count = lane.extent
    if not 2 <= step <= MOST_STRIDE or lane in (offset - lane * step).ranges or memory.op is not Ops.PARAM:
        return None
    start = offset.substitute({lane: UOp.const(0, dtypes.index)})
    last = step * (count - 1)
    dtype = load.dtype.vec(count)
    result: UOp | None = None
    for first in (min(count * i, last - count + 1) for i in range(step)):
        whole = UOp.new(Ops.LOAD, dtype, (load.src[0].replace(src=(memory, start + first)),))
        inside = [step * i - first for i in range(count)]
        picks = tuple(count + at if 0 <= at < count else i for i, at in enumerate(inside))
        result = UOp.new(Ops.SHUFFLE, dtype, (result or whole, whole), picks)
    return result


def interleaved_runs(load: UOp, lane: UOp) -> tuple[int, ...] | None:
    """How many items after the first lane's each lane of a LOAD from a buffer reads, where its even lanes and
    its odd lanes read a run of neighbours each; None for other LOADs."""
    if len(load.src[0].src) != 2 or load.src[0].src[0].op is not Ops.PARAM or lane.extent < 4:
        return None
    offset = load.src[0].src[1]
    if not any(lane in atom.ranges for atom in linear_terms(offset).terms if atom is not lane):
        return None  # the lanes are a fixed step apart
    places = [offset.substitute({lane: UOp.const(i, dtypes.index)}) for i in range(lane.extent)]
    distances = [linear_terms(place - places[0]) for place in places]
    if any(terms for terms, _ in distances):
        return None
    found = tuple(constant for _, constant in distances)
    in_runs = all(found[i] == found[i % 2] + i // 2 for i in range(lane.extent))
    return found if in_runs else None


def interleaved_vector(load: UOp) -> UOp | None:
    """A LOAD whose lanes come from two runs in turn: both runs loaded whole, and a shuffle. None for other
    LOADs."""
    lanes = [r for r in load.ranges if r.arg[1] is RangeKind.VECTOR]
    if len(lanes) != 1 or (places := interleaved_runs(load, lanes[0])) is None or places[1] == 1:
        return None
    count, (memory, offset) = lanes[0].extent, load.src[0].src
    start = offset.substitute({lanes[0]: UOp.const(0, dtypes.index)})
    half = load.dtype.vec(count // 2)
    runs = [UOp.new(Ops.LOAD, half, (load.src[0].replace(src=(memory, start + at)),)) for at in places[:2]]
    picks = tuple(i // 2 + i % 2 * (count // 2) for i in range(count))
    return UOp.new(Ops.SHUFFLE, load.dtype.vec(count), tuple(runs), picks)


def rows_of_tile(load: UOp, lane: UOp) -> tuple[int, ...] | None:
    """How many items after the first one each element of a tile lies, where a LOAD reads the tile's rows from
    places a fixed distance apart; None where it does otherwise, or all lie side by side."""
    if len(load.src[0].src) != 2:
        return None
    offset = load.src[0].src[1]
    length = ROW_BYTES // load.dtype.itemsize
    along = UOp.range(length, lane.arg[0], RangeKind.VECTOR)
    rows = [linear_terms(offset.substitute({lane: along + i * length})) for i in range(lane.extent // length)]
    starts = [constant for _, constant in rows]
    step = starts[1] - starts[0]
    regular = all(terms == rows[0].terms and terms.get(along) == 1 for terms, _ in rows) and \
        not any(along in atom.ranges for atom in rows[0].terms if atom is not along) and \
        all(start == starts[0] + i * step for i, start in enumerate(starts))
    if not regular or step == length:
        return None
    return tuple(i // length * step + i % length for i in range(lane.extent))


def transposed_vectors(tile: tuple[UOp, ...]) -> list[UOp]:
    """The vectors of a tile, one for each of its LOADs."""
    (lane,) = (r for r in tile[0].ranges if r.arg[1] is RangeKind.VECTOR)
    memory, offset = tile[0].src[0].src
    dtype = tile[0].dtype.vec(lane.extent)
    rows = []
    for i in range(lane.extent):
        start = offset.substitute({lane: UOp.const(i, dtypes.index)})
        rows.append(UOp.new(Ops.LOAD, dtype, (tile[0].src[0].replace(src=(memory, start)),)))
    distance = 1
    while distance < lane.extent:
        rows = [_swapped(rows[i], rows[i ^ distance], bool(i & distance), distance) for i in range(len(rows))]
        distance *= 2
    return rows


def _swapped(own: UOp, partner: UOp, second: bool, distance: int) -> UOp:
    """A row of two that exchange blocks of `distance` lanes: the first gives its odd blocks, the second its
    even ones."""
    count = own.dtype.count
    picks = tuple(lane if bool(lane & distance) == second else count + (lane ^ distance)
                  for lane in range(count))
    return UOp.new(Ops.SHUFFLE, own.dtype, (own, partner), picks)
