"""Lanes that jump in memory: whole vectors loaded and their items put in place by shuffles.

Where lanes jump in memory, each vector is a gather: as many accesses as lanes. Lanes a few items apart, or
from two rows in turn, are a few whole loads and shuffles instead. If the vectors beside it read
the items beside its own (a matrix is copied transposed, sixteen rows at a time), all of them together are a
square tile whose rows lie side by side. Then the rows are loaded whole, and log2(lanes) rounds of shuffles
put row i's item k into lane i of vector k.

Stores are the same the other way round: vectors whose lanes jump, stored beside each other (the rows of a
contraction's tile, whose lanes run down columns), are shuffled into a short run for each lane.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from tinygrad.codegen.ranges import of_kind
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.symbolic import constant, linear_terms, plus_terms, split_sum
from tinygrad.graph.uop import UOp
from tinygrad.renderer.matrix_units import ROW_BYTES

MOST_STRIDE = 4
"""Items between lanes beyond which a gather does less than loading all that lies between."""
GROUPS = (2, 4)
"""Lanes that may lie together, and runs that may take turns: as many narrow items as fill 32 bits."""
Tiles = dict[UOp, tuple[tuple[UOp, ...], int]]
"""For a LOAD of a tile: the LOADs of the whole tile, in the order of their items, and its place there."""
LEAST_HEIGHT = 4
"""LOADs beside each other from which on they are a tile (attention of 36 features, 4 at a time: 0.97 of the
time of gathers; Zen 4). Fewer were not tried."""


def tiles_of(nest: UOp) -> Tiles:
    """The LOADs along lanes that jump, where as many of them as there are lanes read a square tile; or half
    or a quarter as many, a tile of which two or four rows make a vector."""
    tiles: Tiles = {}
    from_buffers = (n for n in nest.toposort() if n.op is Ops.LOAD and n.memory.op is Ops.PARAM)
    for lane, jump, loads in _beside_each_other(from_buffers):
        heights, step = [lane.extent], jump.together
        if step == 1:
            heights = [h for h in (lane.extent, lane.extent // 2, lane.extent // 4) if h >= LEAST_HEIGHT]
        elif any(load.mask is not None for load in loads.values()):
            continue  # lanes of one row might have conditions of their own
        for first, height in product(sorted(loads), heights) if jump.step != step else ():
            run = [loads.get(first + k) for k in range(0, height, step)]
            if all(load is not None and load not in tiles for load in run):
                tile = tuple(load for load in run if load is not None)
                tiles.update({load: (tile, k) for k, load in enumerate(tile)})
    return tiles


def _beside_each_other(accesses: Iterable[UOp]) -> Iterable[tuple[UOp, Jump, dict[int, UOp]]]:
    """The LOADs or STOREs along one lane that jumps, in groups whose places differ by a number of items only,
    under one condition: the lane, how it jumps, and each by that number."""
    groups: dict[tuple[UOp, ...], tuple[UOp, Jump, dict[int, UOp]]] = {}
    for node in accesses:
        lanes = of_kind((*node.ranges, *node.src[2:]), RangeKind.VECTOR)
        memory, offset, *valid = node.src[0].src
        jump = jump_of(offset, lanes[0]) if len(lanes) == 1 else None
        if jump is not None:
            constant = linear_terms(offset).constant
            alike = memory, offset - constant, lanes[0], *valid, *node.src[2:]
            groups.setdefault(alike, (lanes[0], jump, {}))[2][constant] = node
    return groups.values()


def _is_whole(node: UOp) -> bool:
    """Whether it is a LOAD from a buffer, without a condition."""
    return node.op is Ops.LOAD and node.mask is None and node.memory.op is Ops.PARAM


def in_each_lane(value: UOp, lane: UOp) -> list[UOp]:
    """What an expression is in each iteration of `lane`."""
    return [value.substitute({lane: constant(i)}) for i in range(lane.extent)]


def at_lane(offset: UOp, lane: UOp, number: int, done: dict[UOp, UOp]) -> UOp:
    """`offset`, or a condition, in one lane, over what became (`done`) of the values in it that are the same
    in all lanes."""

    def at(atom: UOp) -> UOp:
        same = [n for n in atom.toposort(stop=lambda n: lane not in n.ranges) if lane not in n.ranges]
        return atom.substitute({lane: constant(number), **{n: done[n] for n in same if n in done}})

    if offset.dtype.scalar is dtypes.bool:
        return at(offset)
    base, moving = split_sum(offset, lambda atom: lane in atom.ranges or done.get(atom, atom) is not atom)
    return plus_terms(base, moving, {atom: at(atom) for atom in moving})


@frozen
class Jump:
    """How lanes lie in memory: some together, then a step from the first of them to the first of the next."""

    together: int
    step: int


def jump_of(offset: UOp, lane: UOp) -> Jump | None:
    """How the lanes of an address jump; None where they do not do so regularly."""
    step = lane_step(offset, lane)
    if step is not None:
        return Jump(1, step) if step else None
    places = lane_places(offset, lane) or (0,)
    for together in (1, *GROUPS):
        step = places[together] if together < len(places) else 0
        if step and places == tuple(i // together * step + i % together for i in range(lane.extent)):
            return Jump(together, step)
    return None


def lane_step(offset: UOp, lane: UOp) -> int | None:
    """How many items each lane is after the one before; None where that varies, or is not seen at once."""
    terms = linear_terms(offset).terms
    is_regular = not any(lane in atom.ranges for atom in terms if atom is not lane)
    return terms.get(lane, 0) if is_regular else None


def lane_places(offset: UOp, lane: UOp) -> tuple[int, ...] | None:
    """How many items after the first lane's each lane is; None where that varies."""
    step = lane_step(offset, lane)
    if step is not None:
        return tuple(i * step for i in range(lane.extent))
    if any(lane in n.ranges for n in offset.nodes_of(Ops.LOAD)):  # what is read says where
        return None
    places = in_each_lane(offset, lane)
    distances = [linear_terms(place - places[0]) for place in places]
    return None if any(terms for terms, _ in distances) else tuple(constant for _, constant in distances)


def are_adjacent(offset: UOp, lane: UOp) -> bool:
    """Whether the lanes' items lie side by side."""
    step = lane_step(offset, lane)
    return step == 1 if step is not None else lane_places(offset, lane) == tuple(range(lane.extent))


def strided_vector(load: UOp, lane: UOp, done: dict[UOp, UOp]) -> UOp | None:
    """A LOAD along lanes a few items apart (every second one of a row, or one after the other backwards): the
    vectors that hold them all, and shuffles. None for other LOADs."""
    jump = jump_of(load.offset, lane) if _is_whole(load) else None
    if jump is None or jump == Jump(1, 1) or jump.together > 1 or abs(jump.step) > MOST_STRIDE:
        return None
    (memory, offset), step, count = load.src[0].src, jump.step, lane.extent
    start = at_lane(offset, lane, 0 if step > 0 else count - 1, done)
    places = [abs(step) * (i if step > 0 else count - 1 - i) for i in range(count)]
    last = max(places)
    dtype = load.dtype.vec(count)
    result: UOp | None = None
    for first in (min(count * i, last - count + 1) for i in range(abs(step))):
        whole = UOp.new(Ops.LOAD, dtype, (load.src[0].replace(src=(memory, start + first)),), load.arg)
        positions = [place - first for place in places]
        picks = tuple(count + at if 0 <= at < count else i for i, at in enumerate(positions))
        result = UOp.new(Ops.SHUFFLE, dtype, (result or whole, whole), picks)
    return result


@frozen
class Runs:
    """A LOAD whose lanes come from several runs of neighbours in turn: where each begins, and the condition
    under which it is read."""

    starts: tuple[int, ...]
    conditions: tuple[UOp, ...]


def interleaved_runs(load: UOp, lane: UOp) -> Runs | None:
    """The runs that the lanes of a LOAD from a buffer come from in turn; None for other LOADs."""
    memory, offset, *valid = load.src[0].src
    is_regular = memory.op is not Ops.PARAM or lane_step(offset, lane) is not None
    places = None if is_regular else lane_places(offset, lane)
    if places is None:
        return None
    for count in GROUPS:
        in_turn = tuple(places[i % count] + i // count for i in range(lane.extent))
        if 2 * count <= lane.extent and places == in_turn:
            conditions = [c for v in valid for c in in_each_lane(v, lane)]
            differ_in_run = any(c is not conditions[i % count] for i, c in enumerate(conditions))
            return None if differ_in_run else Runs(places[:count], tuple(conditions[:count]))
    return None


def interleaved_vector(load: UOp, lane: UOp, done: dict[UOp, UOp]) -> UOp | None:
    """A LOAD whose lanes come from runs in turn: the runs loaded whole, and shuffles. None for other
    LOADs."""
    runs = interleaved_runs(load, lane)
    if runs is None or 1 in runs.starts:
        return None
    memory, offset = load.src[0].src[:2]
    start = at_lane(offset, lane, 0, done)
    part = load.dtype.vec(lane.extent // len(runs.starts))
    conditions = [at_lane(condition, lane, 0, done) for condition in runs.conditions]
    addresses = [memory.index(start + at, *conditions[i:i + 1]) for i, at in enumerate(runs.starts)]
    vectors = [UOp.new(Ops.LOAD, part, (address,), load.arg) for address in addresses]
    while len(vectors) > 1:  # runs i and i + half in turn, so that all are in order at last
        half = len(vectors) // 2
        wide = vectors[0].dtype.count
        picks = tuple(i // 2 + i % 2 * wide for i in range(2 * wide))
        dtype = load.dtype.vec(2 * wide)
        vectors = [UOp.new(Ops.SHUFFLE, dtype, (vectors[i], vectors[i + half]), picks) for i in range(half)]
    return vectors[0]


def rows_of_tile(load: UOp, lane: UOp) -> tuple[int, ...] | None:
    """How many items after the first one each element of a tile lies, where a LOAD reads the tile's rows from
    places a fixed distance apart; None where it does otherwise, or all lie side by side."""
    places = lane_places(load.offset, lane) if load.mask is None else None
    length = ROW_BYTES // load.dtype.itemsize
    if places is None or places[length] == length or \
            places != tuple(i // length * places[length] + i % length for i in range(lane.extent)):
        return None
    return places


def transposed_vectors(tile: tuple[UOp, ...], lane: UOp, done: dict[UOp, UOp]) -> list[UOp]:
    """The vectors of a tile, one for each of its LOADs. A row is read where its lane's condition holds."""
    memory, offset, *valid = tile[0].src[0].src
    jump = jump_of(offset, lane)
    together = 1 if jump is None else jump.together
    dtype = tile[0].dtype.vec(len(tile) * together)
    rows = []
    for i in range(0, lane.extent, together):
        address = memory.index(*(at_lane(of_lane, lane, i, done) for of_lane in (offset, *valid)))
        rows.append(UOp.new(Ops.LOAD, dtype, (address,), tile[0].arg))
    blocks = [rows[i:i + len(tile)] for i in range(0, len(rows), len(tile))]
    while len(blocks) > 1:
        blocks = [list(map(_joined, blocks[i], blocks[i + 1])) for i in range(0, len(blocks), 2)]
    return _transposed(blocks[0], together)


def _joined(first: UOp, second: UOp) -> UOp:
    """Their lanes, one behind the other."""
    count = 2 * first.dtype.count
    return UOp.new(Ops.SHUFFLE, first.dtype.scalar.vec(count), (first, second), tuple(range(count)))


def _transposed(rows: Sequence[UOp], together: int = 1) -> list[UOp]:
    """Vectors, as many as a power of two, of which each block of as many lanes (or as many times those that
    stay `together`) is transposed: item i of block b of vector k is what item k of it was in vector i."""
    distance = 1
    while distance < len(rows):
        rows = [_swapped(rows[i], rows[i ^ distance], bool(i & distance), distance * together)
                for i in range(len(rows))]
        distance *= 2
    return list(rows)


def _swapped(own: UOp, partner: UOp, second: bool, distance: int) -> UOp:
    """A row of two that exchange blocks of `distance` lanes: the first gives its odd blocks, the second its
    even ones."""
    count = own.dtype.count
    picks = tuple(lane if bool(lane & distance) == second else count + (lane ^ distance)
                  for lane in range(count))
    return UOp.new(Ops.SHUFFLE, own.dtype, (own, partner), picks)


# --- stores -------------------------------------------------------------------------------------------------


def stored_by_runs(stores: Sequence[UOp], vectors: Sequence[UOp], done: dict[UOp, UOp]) -> Iterator[UOp]:
    """What became (`vectors`) of the STOREs of a nest. Where vectors whose lanes jump stand side by side,
    STOREs of a run of items for each lane take their place."""
    became = dict(zip(stores, vectors, strict=True))
    for run, lane in _runs_of_stores(stores):
        new = [became.pop(store) for store in run]
        values, count = _transposed([n.src[1] for n in new]), len(run)
        (memory, offset), dtype = run[0].address.src, run[0].dtype.vec(count)
        for number in range(lane.extent):
            value, first = values[number % count], number - number % count
            if count < lane.extent:
                value = UOp.new(Ops.SHUFFLE, dtype, (value, value), tuple(range(first, first + count)))
            place = run[0].address.replace(src=(done[memory], at_lane(offset, lane, number, done)))
            yield new[0].replace(dtype=dtype, src=(place, value, *new[0].src[2:]))
    yield from became.values()


def _runs_of_stores(stores: Sequence[UOp]) -> Iterator[tuple[list[UOp], UOp]]:
    """STOREs along a lane that jumps, beside each other and as many as a power of two, and that lane."""
    whole = [store for store in stores if store.mask is None and store.arg is None]
    for lane, jump, near in _beside_each_other(whole):
        found = {at: s for at, s in near.items() if jump.together == 1 and lane in s.src[1].ranges}
        most = min(lane.extent & -lane.extent, abs(jump.step))
        places = sorted(found)
        while places:
            length = next((i for i, place in enumerate(places) if place != places[0] + i), len(places))
            count = 1 << min(length, most).bit_length() - 1
            if count > 1:
                yield [found[place] for place in places[:count]], lane
            del places[:count]
