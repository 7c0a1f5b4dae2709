"""x86's tile registers (AMX): values that LLVM keeps apart from all others.

A tile has a type of its own, which no variable on the stack may have. So accumulators, which other values get
from there by LLVM's passes, are written as what those passes make of them: a phi at the head of each loop
that adds to them. Tiles come from memory and go there by rows, also by rows that lie apart in a matrix. What
else uses or makes one sees it as a vector.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.llvm_arithmetic import LLVMArithmetic
from tinygrad.renderer.llvm_functions import mangled, value_type
from tinygrad.renderer.llvm_units import INTRINSICS
from tinygrad.renderer.matrix_units import ROW_BYTES

TILE = "x86_amx"


@dataclass
class Phi:
    """An accumulator at the head of a loop: its line of the text, to be completed at the end of the loop."""

    register: UOp
    line: int
    name: str
    start: str


@frozen
class TileLoad:
    """How a tile is loaded: the offset of its first element, and bytes from one row to the next."""

    first: UOp
    step: int


@dataclass
class TilePlaces:
    """What of a program is in tile registers."""

    held: set[UOp] = field(default_factory=set)
    """products, accumulators and their values"""
    loads: dict[UOp, TileLoad] = field(default_factory=dict)
    """LOADs of whole tiles"""
    as_vectors: set[UOp] = field(default_factory=set)
    """those held that something else uses"""
    folded: set[UOp] = field(default_factory=set)
    """addresses of single elements, of which a tile takes only the first"""
    changed_in: dict[UOp, list[UOp]] = field(default_factory=dict)
    """for each loop, the accumulators that it stores"""


def tile_places(program: Sequence[UOp]) -> TilePlaces:
    """Which values of a program are in tiles; nothing for programs without them."""
    found = TilePlaces()
    products = {n for n in program if n.op is Ops.MMA and n.arg.by_rows}
    if not products:
        return found
    users: dict[UOp, list[UOp]] = defaultdict(list)
    for node in dict.fromkeys(program):
        for source in node.src:
            users[source].append(node)
    registers = {n.src[0] for n in program if n.op is Ops.STORE and n.src[0].op is Ops.REGISTER
                 and n.src[1] in products}
    found.held = products | registers | {n for n in program if n.op is Ops.LOAD and n.src[0] in registers}
    found.as_vectors = {n for n in found.held - registers
                        if not all(_takes_tile(u, n, registers) for u in users[n])}
    for load in dict.fromkeys(s for n in program if n in products for s in n.src[:2] if s.op is Ops.LOAD):
        if len(load.src[0].src) == 2 and all(u in products for u in users[load]):
            _fold_load(load, users, found)
    found.changed_in = _changed_in(program, registers)
    return found


def _takes_tile(user: UOp, value: UOp, registers: set[UOp]) -> bool:
    """Whether a node takes the value from a tile register."""
    if user.op is Ops.MMA:
        return user.arg.by_rows and value is user.src[2]
    if user.op is not Ops.STORE or value is not user.src[1]:
        return False
    place = user.src[0]
    return place in registers or (place.op is Ops.INDEX and len(place.src) == 2
                                  and place.src[1].dtype.count == 1)


def _fold_load(load: UOp, users: dict[UOp, list[UOp]], found: TilePlaces) -> None:
    """Note a LOAD of rows of a fixed length a fixed distance apart."""
    address = load.src[0]
    offset = address.src[1]
    if offset.dtype.count == 1:
        found.loads[load] = TileLoad(offset, ROW_BYTES)
        return
    first, places = offset.src if offset.op is Ops.ADD else (offset, offset)
    if first.op is not Ops.VECTORIZE or len(first.src) != 1 or places.op is not Ops.CONST:
        return
    step = row_step(places.arg, ROW_BYTES // load.dtype.scalar.itemsize)
    if step is None:
        return
    found.loads[load] = TileLoad(first.src[0], step * load.dtype.scalar.itemsize)
    for node in (address, offset, first):
        if all(u in found.folded or u in found.loads for u in users[node]):
            found.folded.add(node)


def row_step(places: Sequence[int], row: int) -> int | None:
    """The distance between rows, where places are those of rows of so many neighbours; else None."""
    step = places[row] - places[0]
    regular = all(place == i // row * step + i % row for i, place in enumerate(places))
    return step if regular else None


def _changed_in(program: Sequence[UOp], registers: set[UOp]) -> dict[UOp, list[UOp]]:
    changed: dict[UOp, list[UOp]] = {}
    loops: list[UOp] = []
    for node in program:
        if node.op is Ops.RANGE:
            loops.append(node)
            changed[node] = []
        elif node.op is Ops.END:
            loops.pop()
        elif node.op is Ops.STORE and node.src[0] in registers:
            for loop in loops:
                if node.src[0] not in changed[loop]:
                    changed[loop].append(node.src[0])
    return changed


# --- statements ---------------------------------------------------------------------------------------------


class TileStatements(LLVMArithmetic):
    """The statements of a program that are about tiles, for the writer of kernels."""

    values: dict[UOp, str]
    block: str
    places: TilePlaces

    def begin_tiles(self) -> None:
        """Before the first statement of a body."""
        self.tiles: dict[UOp, str] = {}
        """the tile that each node now is, and each accumulator now has"""
        self.phis: dict[UOp, list[Phi]] = {}

    def tile_statement(self, node: UOp) -> bool:
        """Write a statement about tiles; False for others."""
        places = self.places
        if node in places.folded:
            return True
        if node in places.loads:
            self.tiles[node] = self.load_tile(node)
            if node.arg is not None:
                self.prefetch(node)
            return True
        only_tiles = places.held - places.as_vectors
        if node.op is Ops.STORE and (node.src[0] in places.held or node.src[1] in only_tiles):
            self.store_tile(node)
            return True
        if node not in places.held:
            return False
        if node.op is Ops.LOAD:
            self.tiles[node] = self.tiles[node.src[0]]
        elif node.op is Ops.MMA:
            self.tiles[node] = self.tile_product(node)
        if node in places.as_vectors:
            kind = value_type(node.dtype)
            self.values[node] = self.intrinsic("v", f"x86.cast.tile.to.vector.{mangled(kind)}", kind,
                                               f"{TILE} {self.tiles[node]}")
        return True

    def prefetch(self, node: UOp) -> None:
        raise NotImplementedError

    def load_tile(self, node: UOp) -> str:
        memory, load = node.memory, self.places.loads[node]
        first = f"ptr {self.values[memory]}, i64 {self.values[load.first]}"
        address = self.emit("at", f"getelementptr {value_type(node.dtype.scalar)}, {first}")
        if node.src[0] in self.places.folded:
            self.values[node.src[0]] = address
        return self.intrinsic("tile", "x86.tileloadd64.internal", TILE,
                              f"{_shape(node.dtype)}, ptr {address}, i64 {load.step}")

    def store_tile(self, node: UOp) -> None:
        place, value = node.src
        tile = self.tile_of(value)
        if place.op is Ops.REGISTER:
            self.tiles[place] = tile
        else:
            self.lines.append(f"  call void @llvm.x86.tilestored64.internal({_shape(value.dtype)}, "
                              f"ptr {self.values[place]}, i64 {ROW_BYTES}, {TILE} {tile})")

    def tile_of(self, node: UOp) -> str:
        """A value as a tile, whatever made it."""
        if node in self.tiles:
            return self.tiles[node]
        if node.op is Ops.CONST and node.arg == 0:
            return self.intrinsic("zero", "x86.tilezero.internal", TILE, _shape(node.dtype))
        kind = value_type(node.dtype)
        return self.intrinsic("tile", f"x86.cast.vector.to.tile.{mangled(kind)}", TILE,
                              f"{kind} {self.values[node]}")

    def tile_product(self, node: UOp) -> str:
        a, b, c = (self.tile_of(s) for s in node.src[:3])
        return self.intrinsic("tile", INTRINSICS[node.arg.name].name, TILE,
                              f"i16 {node.arg.m}, i16 {ROW_BYTES}, i16 {ROW_BYTES}, "
                              f"{TILE} {c}, {TILE} {a}, {TILE} {b}")

    # --- accumulators in loops ------------------------------------------------------------------------------

    def enter_with_tiles(self, loop: UOp, before: str) -> None:
        """At the head of a loop that is entered from the block `before`."""
        self.phis[loop] = []
        for register in self.places.changed_in.get(loop, ()):
            if register in self.tiles:
                name = f"%tile{self.number}"
                self.number += 1
                self.phis[loop].append(Phi(register, len(self.lines), name,
                                           f"[ {self.tiles[register]}, %{before} ]"))
                self.lines.append("")
                self.tiles[register] = name

    def repeat_with_tiles(self, loop: UOp, latch: str) -> None:
        """At the end of the loop's body, in the block `latch`."""
        for phi in self.phis[loop]:
            self.lines[phi.line] = f"  {phi.name} = phi {TILE} {phi.start}, " \
                                   f"[ {self.tiles[phi.register]}, %{latch} ]"

    def leave_with_tiles(self, loop: UOp, latch: str, is_entered: bool) -> None:
        """After the loop, which may have had no iteration unless it `is_entered` always."""
        for phi in self.phis.pop(loop):
            if not is_entered:
                self.tiles[phi.register] = self.emit(
                    "tile", f"phi {TILE} {phi.start}, [ {self.tiles[phi.register]}, %{latch} ]")


def _shape(dtype: DType) -> str:
    """Rows and bytes of a row, as LLVM's intrinsics take them."""
    return f"i16 {dtype.itemsize // ROW_BYTES}, i16 {ROW_BYTES}"
