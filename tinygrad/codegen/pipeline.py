"""Software pipelining: loops that load what their next iterations need while they compute.

In: a program for blocks of threads, in which a loop fills shared memory from buffers, waits for all threads,
and computes with it. Out, for a device that copies asynchronously: the same loop over several tiles of that
memory (double buffering, and more). An iteration starts the copies for one of the next, and waits only for
its own, which were started some iterations ago. A plain copy and two barriers are what is left where a value
is computed on its way into shared memory.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.codegen.barriers import BARRIER, statements_of, touched_by
from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer.launch import SHARED_ALIGNMENT, shared_bytes_of
from tinygrad.renderer.machine import Machine

MOST_TILES = 4
"""Stages of the pipeline, each a tile of shared memory: three on their way hide the latency of memory (about
700 cycles) behind three iterations."""
COPY_BYTES = (4, 8, 16)
"""What one asynchronous copy moves."""


@graph_pass("double buffering")
def pipelined(program: list[UOp], machine: Machine) -> list[UOp]:
    """The program with its loops over shared tiles pipelined."""
    if not machine.has_async_copies:
        return program
    loops = _loops(program)
    for start, end in loops:
        loop = _tile_loop(program, start, end)
        tiles = 0 if loop is None else tiles_of(loop.bytes, shared_bytes_of(program), machine)
        if loop is not None and tiles > 1:
            before = [n for n in program[:start] if n not in loop.memories]
            is_inside_loop = any(first < start < last for first, last in loops)
            return [*before, *_Pipeline(loop, tiles, is_inside_loop).written(), *program[end + 1:]]
    return program


def tiles_of(tile_bytes: int, all_bytes: int, machine: Machine) -> int:
    """How many tiles fit into shared memory, of which a kernel with one has so many bytes: one less than
    there could be if that leaves room for a second block beside it, which computes while this one stores."""
    def fits(tiles: int, of_memory: int) -> bool:
        return all_bytes + (tiles - 1) * tile_bytes <= of_memory

    half = machine.shared_bytes // 2
    if not fits(MOST_TILES, half) and fits(MOST_TILES - 1, half):
        return MOST_TILES - 1
    return next((tiles for tiles in (MOST_TILES, MOST_TILES // 2) if fits(tiles, machine.shared_bytes)), 1)


# --- finding the loop ---------------------------------------------------------------------------------------


@frozen
class _TileLoop:
    """A loop's RANGE, the statements that fill shared memory, and the others."""

    counter: UOp
    filling: tuple[UOp, ...]
    computing: tuple[UOp, ...]
    memories: tuple[UOp, ...]

    @property
    def bytes(self) -> int:
        return sum(_tile_items(m) * m.dtype.itemsize for m in self.memories)


def _tile_items(memory: UOp) -> int:
    """Items of a tile, so many that the next one is aligned."""
    return round_up(memory.arg[1] * memory.dtype.itemsize, SHARED_ALIGNMENT) // memory.dtype.itemsize


def _loops(program: Sequence[UOp]) -> list[tuple[int, int]]:
    """The places of each loop's RANGE and END, inner loops first."""
    opened: list[int] = []
    found = []
    for place, node in enumerate(program):
        if node.op is Ops.RANGE:
            opened.append(place)
        elif node.op is Ops.END:
            found.append((opened.pop(), place))
    return sorted(found, reverse=True)


def _tile_loop(program: Sequence[UOp], start: int, end: int) -> _TileLoop | None:
    """The loop at these places, if all that it writes into shared memory is copied from buffers."""
    counter, body = program[start], program[start + 1:end]
    effects = [n for n in body if n.op is Ops.STORE]
    stores = [n for n in effects if touched_by(n).stores]
    memories = tuple(dict.fromkeys(n.memory for n in stores))
    rest = map(touched_by, (*program[:start], *program[end + 1:]))
    used_elsewhere = any(not (t.loads | t.stores).isdisjoint(memories) for t in rest)
    if not stores or len(counter.src) != 1 or used_elsewhere or not all(map(_is_copy, stores)):
        return None
    filling = _needed_by(body, set(stores))
    computing = _needed_by(body, set(effects).difference(stores))
    is_read = any(not touched_by(n).loads.isdisjoint(memories) for n in computing)
    both = {n for n in filling if n.op is Ops.RANGE}.intersection(computing)
    if both or not is_read or any(touched_by(n).loads for n in filling):
        return None
    return _TileLoop(counter, tuple(filling), tuple(computing), memories)


def _is_copy(store: UOp) -> bool:
    value = store.src[1]
    return _is_from_buffer(value) and store.mask is None and value.dtype.itemsize in COPY_BYTES


def _is_from_buffer(node: UOp) -> bool:
    return node.op is Ops.LOAD and node.memory.op is Ops.PARAM


def _needed_by(body: Sequence[UOp], wanted: set[UOp]) -> list[UOp]:
    """The part of a loop's body that computes the `wanted` statements, in its order, with the loops around
    them; what those are made of is wanted then."""
    kept: list[UOp] = []
    for opened, *inside in reversed(list(statements_of(body))):
        needed = _needed_by(inside[:-1], wanted)
        if needed or opened in wanted:
            kept[:0] = [opened, *needed, *inside[-1:]]
            wanted.update(opened.src)
    return kept


# --- writing the pipeline -----------------------------------------------------------------------------------


class _Pipeline:
    """The statements of one loop over `count` tiles."""

    def __init__(self, loop: _TileLoop, count: int, is_inside_loop: bool) -> None:
        self.loop = loop
        self.count = count
        self.is_inside_loop = is_inside_loop
        self.out: list[UOp] = []
        self.sizes = {m: _tile_items(m) for m in loop.memories}
        self.tiles = {m: m.replace(arg=(m.arg[0], count * size)) for m, size in self.sizes.items()}

    def add(self, op: Ops, dtype: DType, src: tuple[UOp, ...] = (), arg: object = None) -> UOp:
        node = UOp.new(op, dtype, src, arg)
        self.out.append(node)
        return node

    def number(self, value: int) -> UOp:
        return self.add(Ops.CONST, dtypes.index, (), value)

    def written(self) -> list[UOp]:
        counter, extent = self.loop.counter, self.loop.counter.src[0]
        self.out += self.tiles.values()
        if self.is_inside_loop:  # what the last time left may be on its way, and others may still read
            self.add(Ops.WAIT, dtypes.index, (), 0)
            self.out.append(BARRIER)
        for ahead in range(self.count - 1):
            self.start_copies(self.number(ahead), extent)
        self.out.append(counter)
        self.add(Ops.WAIT, dtypes.index, (), self.count - 2)
        self.out.append(BARRIER)
        ahead_of_it = self.add(Ops.ADD, dtypes.index, (counter, self.number(self.count - 1)))
        self.start_copies(ahead_of_it, extent)
        self.compute(counter)
        self.add(Ops.END, counter.dtype, (counter,))
        return self.out

    def buffer_of(self, counter: UOp) -> UOp:
        """Which tile an iteration uses."""
        return self.add(Ops.MOD, dtypes.index, (counter, self.number(self.count)))

    def start_copies(self, counter: UOp, extent: UOp) -> None:
        """What iteration number `counter` will need, if there is one."""
        buffer_of = self.buffer_of(counter)
        exists = self.add(Ops.CMPLT, dtypes.bool, (counter, extent))
        done = {self.loop.counter: counter}
        for node in self.loop.filling:
            if node.op is Ops.INDEX or _is_from_buffer(node):
                continue  # said where they are used
            if node.op is Ops.STORE:
                source = self.address(node.src[1].src[0], done, buffer_of, exists)
                target = self.address(node.src[0], done, buffer_of, None)
                self.add(Ops.PREFETCH, node.dtype, (target, source))
            else:
                self.again(node, done)
        self.add(Ops.COMMIT, dtypes.index)

    def compute(self, counter: UOp) -> None:
        buffer_of = self.buffer_of(counter)
        done: dict[UOp, UOp] = {}
        for node in self.loop.computing:
            if node.op is Ops.INDEX and node.src[0] in self.tiles:
                done[node] = self.address(node, done, buffer_of, None)
            else:
                self.again(node, done)

    def again(self, node: UOp, done: dict[UOp, UOp]) -> None:
        """A statement over what its sources are now."""
        if node in self.tiles:
            return
        src = tuple(done.get(s, s) for s in node.src)
        done[node] = node if src == node.src else node.replace(src=src)
        self.out.append(done[node])

    def address(self, place: UOp, done: dict[UOp, UOp], buffer_of: UOp, only_if: UOp | None) -> UOp:
        """An INDEX, into the tile of an iteration; to be read `only_if` a condition holds."""
        memory, offset, *valid = (done.get(s, s) for s in place.src)
        if memory in self.tiles:
            start = self.add(Ops.MUL, dtypes.index, (buffer_of, self.number(self.sizes[memory])))
            offset = self.add(Ops.ADD, dtypes.index, (offset, start))
            memory = self.tiles[memory]
        if only_if is not None:
            valid = [self.add(Ops.AND, dtypes.bool, (only_if, v)) for v in valid] or [only_if]
        return self.add(Ops.INDEX, place.dtype, (memory, offset, *valid))

