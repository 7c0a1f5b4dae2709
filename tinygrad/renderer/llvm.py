"""Linear programs as LLVM IR.

The kernel `NAME(buffers, variables, begin, end, scratch)` takes its arguments from arrays and passes them one
by one to `NAME.body`, whose pointers are `noalias`: what a kernel writes through one, it does not read
through another. Where STOREs are to go past the caches, which only aligned vectors can, `NAME.streaming` is
the same with such stores, and called instead where the memory is aligned. `begin` and `end` bound the THREAD
range; `scratch` has `Renderer.scratch_bytes` bytes.

Here are the module, its loops, memory and lanes; `llvm_arithmetic.py` has the operations on values, and
`llvm_functions.py` defines what LLVM leaves undefined. There are no fast-math flags: every operation is
rounded once, as the program says. Next on the path: `runtime/cpu.py` compiles the text.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Memory, Ops, RangeKind
from tinygrad.graph.symbolic import is_multiple
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer import SCRATCH_ALIGNMENT, Native, Renderer
from tinygrad.renderer.lanes import LaneReduction
from tinygrad.renderer.llvm_arithmetic import YMM_BYTES
from tinygrad.renderer.llvm_byte_dots import (
    MOST_HALF,
    PAIRS,
    SHUFFLES,
    byte_by_byte,
    chosen_by_bits,
    dots_summed_in_halves,
    four_bytes,
    half_sum,
    looked_up,
    pairs_of_bytes,
    pairs_of_halves,
    whole_bytes,
)
from tinygrad.renderer.llvm_functions import (
    SCALEF_BYTES,
    constant,
    mangled,
    memory_type,
    splat,
    value_type,
    vector_type,
)
from tinygrad.renderer.llvm_tiles import TileStatements, tile_places
from tinygrad.renderer.llvm_units import INTRINSICS, multiplied
from tinygrad.renderer.machine import WIDE_FLOATS, Machine, cores

LLVM_OPTIONS = ("-disable-vector-combine", "-post-RA-scheduler=false", "-dag-maps-huge-region=200")
"""What LLVM does otherwise than by itself, in the whole process.

Its pass that rewrites vectors ends the process where integers made of float32 and of float64 lie side by
side (LLVM 22; llvm-project, pull request 201241): plans say what runs in lanes. Its scheduling of
instructions takes time in the square of those in a block that touch memory: it looks at 200 of them, not at
1,000, and once, not again after registers are chosen, which helps processors that run instructions in order.
(Weight gradients of convolutions compile in a quarter of the time, a training step's kernels in 0.6 of it,
and all kernels of `python -m bench` run as fast: docs/performance.md.)"""
PLANNED = "llvm.loop.unroll.disable"
"""In the text of a kernel whose plan has chosen lanes and unrolling: its loops stay as they are."""


class LLVMRenderer(Renderer):
    """LLVM IR for a CPU; `has_scalef` says that it has AVX-512's vscalef for vectors of every size,
    `has_float16` that it has instructions for float16 to and from float32, `has_vnni` for dot products of
    bytes, `has_pairs` for sums of two products of bytes each (SSSE3's, in vectors of every size)."""

    name = "LLVM"
    calls_functions = True

    def __init__(self, machine: Machine | None = None, has_scalef: bool = False,
                 has_float16: bool = True, has_vnni: bool = False, has_pairs: bool = False) -> None:
        self.machine = replace(machine or cores(), has_byte_dots=True)
        self.has_scalef = has_scalef
        self.has_float16 = has_float16
        self.has_vnni = has_vnni
        self.has_pairs = has_pairs

    def render(self, name: str, program: list[UOp]) -> str:
        self.check(name, program)
        has_ymm = self.machine.vector_bytes == YMM_BYTES
        return LLVMWriter(name, program, self.has_vnni, self.has_pairs, has_ymm).module()

    @property
    def native(self) -> Native:
        """Where LLVM has no instruction for a product and a sum, or for float16, it would call a library, one
        lane at a time, and one that this process lacks."""
        return Native(conversions=frozenset({dtypes.float16} if self.has_float16 else ()),
                      fused=WIDE_FLOATS if self.machine.contracts else frozenset({dtypes.float64}),
                      scaling=SCALEF_BYTES if self.has_scalef else frozenset())


@frozen
class _Loop:
    """An open loop: what bounds its counter, the counter's next value, and the blocks around its body."""

    bound: str
    following: str
    body: str
    latch: str
    after: str
    is_entered: bool
    """always, whatever its bounds are"""


class LLVMWriter(TileStatements, LaneReduction):
    """Writes one kernel, statement by statement. `values` has the operand that each node now is."""

    def __init__(self, name: str, program: list[UOp], has_vnni: bool = False,
                 has_pairs: bool = False, has_ymm: bool = False) -> None:
        super().__init__(has_ymm)
        self.has_vnni, self.has_pairs = has_vnni, has_pairs
        self.summed_in_halves = dots_summed_in_halves(program) if has_pairs and not has_vnni else frozenset()
        self.halves: dict[UOp, tuple[str, str]] = {}
        """of those: their sum in halves, and what is to be added to it"""
        self.name = name
        self.program = program
        self.values: dict[UOp, str] = {}
        self.declarations: list[str] = []
        self.block = "start"
        self.open_loops: dict[UOp, _Loop] = {}
        self.loop_count = 0
        self.streaming = False
        self.stream_note = f"!{2 * len(program) + 2}"
        """metadata, numbered after that of every loop of both bodies"""
        nodes = dict.fromkeys(program)
        self.buffers = sorted((n for n in nodes if n.op is Ops.PARAM), key=lambda n: int(n.arg[0]))
        self.variables = [n for n in nodes if n.op is Ops.VARIABLE]
        self.scratch = [n for n in nodes if n.op is Ops.SCRATCH]
        self.has_vectors = any(n.dtype.count > 1 for n in nodes)
        self.streams = dict.fromkeys(n for n in nodes if n.op is Ops.STORE and fills_its_place(n))
        """the stores that go past the caches where memory is aligned"""
        self.places = tile_places(program)
        self.begin_tiles()

    # --- the module ------------------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text. The order of the program is the order of the statements."""
        self.name_arguments()
        arguments = dict(self.values)
        body = self.body("body")
        if self.streams:
            self.values, self.streaming = arguments, True
            body += ["", *self.body("streaming")]
        parts = [*self.kernel(), "", *body]
        for function in self.functions.values():
            parts += ["", function.text]
        return "\n".join([*parts, *self.metadata(), ""])

    def body(self, suffix: str) -> list[str]:
        """The function NAME.suffix, which does the work: every statement of the program."""
        self.lines, self.declarations, self.block = [], [], "start"
        self.begin_tiles()
        for node in self.program:
            if not self.tile_statement(node):
                STATEMENTS.get(node.op, LLVMWriter.refuse)(self, node)
        # Stores past the caches are seen by other cores in no order, except before a fence.
        last = ["  fence seq_cst"] if self.streaming else []
        return [f"define internal void @{self.name}.{suffix}({self.parameters()}) noinline nounwind {{",
                "entry:", *self.declarations, "  br label %start",
                "start:", *self.lines, *last, "  ret void", "}"]

    def name_arguments(self) -> None:
        for node in self.buffers:
            self.values[node] = f"%p{node.arg[0]}"
        for position, node in enumerate(self.variables):
            self.values[node] = f"%{re.sub('[^A-Za-z0-9_]', '_', node.arg[0])}.n{position}"
        for node in self.scratch:
            self.values[node] = f"%s{node.arg[0]}"
        slots = [n.arg[0] for n in self.buffers]
        if len(slots) != len(set(slots)):
            raise ValueError(f"kernel {self.name}: two PARAMs share a slot: {slots}")

    def parameters(self) -> str:
        buffers = [f"ptr noalias align {n.dtype.lane_size} {self.values[n]}" for n in self.buffers]
        scratch = [f"ptr noalias align {SCRATCH_ALIGNMENT} {self.values[n]}" for n in self.scratch]
        variables = [f"i64 {self.values[n]}" for n in self.variables]
        return ", ".join([*buffers, *variables, "i64 %begin", "i64 %end", *scratch])

    def kernel(self) -> list[str]:
        """The function that takes the arguments out of their arrays."""
        parameters = "ptr %buffers, ptr %variables, i64 %begin, i64 %end, ptr %scratch"
        out = [f"define void @{self.name}({parameters}) nounwind {{"]
        for node in self.buffers:
            slot = node.arg[0]
            out.append(f"  %at.p{slot} = getelementptr ptr, ptr %buffers, i64 {slot}")
            out.append(f"  {self.values[node]} = load ptr, ptr %at.p{slot}")
        for position, node in enumerate(self.variables):
            out.append(f"  %at.v{position} = getelementptr i64, ptr %variables, i64 {position}")
            out.append(f"  {self.values[node]} = load i64, ptr %at.v{position}")
        offset = 0
        for node in self.scratch:
            out.append(f"  {self.values[node]} = getelementptr i8, ptr %scratch, i64 {offset}")
            offset += _scratch_bytes(node)
        arguments = ", ".join([*(f"ptr {self.values[n]}" for n in self.buffers),
                               *(f"i64 {self.values[n]}" for n in self.variables), "i64 %begin", "i64 %end",
                               *(f"ptr {self.values[n]}" for n in self.scratch)])
        out += self.choice(arguments)
        return [*out, f"  call void @{self.name}.body({arguments})", "  ret void", "}"]

    def choice(self, arguments: str) -> list[str]:
        """The call of the streaming body instead of the plain one, where what it writes is aligned."""
        if not self.streams:
            return []
        low_bits, lines = "0", []
        for i, (memory, width) in enumerate({n.memory: n.src[1].dtype.itemsize
                                             for n in self.streams}.items()):
            lines += [f"  %address{i} = ptrtoint ptr {self.values[memory]} to i64",
                      f"  %low{i} = and i64 %address{i}, {width - 1}",
                      f"  %bits{i} = or i64 {low_bits}, %low{i}"]
            low_bits = f"%bits{i}"
        return [*lines, f"  %aligned = icmp eq i64 {low_bits}, 0",
                "  br i1 %aligned, label %streaming, label %plain",
                "streaming:", f"  call void @{self.name}.streaming({arguments})", "  ret void", "plain:"]

    def metadata(self) -> list[str]:
        """Loops of a program with vectors stay as they are: its plan has chosen lanes and unrolling."""
        streamed = ["", f"{self.stream_note} = !{{i32 1}}"] if self.streams else []
        if not self.has_vectors or not self.loop_count:
            return streamed
        vectorize, unroll = self.loop_count, self.loop_count + 1
        loops = [f"!{i} = distinct !{{!{i}, !{vectorize}, !{unroll}}}" for i in range(self.loop_count)]
        return [*streamed, "", *loops, f'!{vectorize} = !{{!"llvm.loop.vectorize.enable", i1 false}}',
                f'!{unroll} = !{{!"{PLANNED}"}}']

    # --- words of the statements -----------------------------------------------------------------------

    def refuse(self, node: UOp) -> None:
        dtype = node.src[0].dtype if node.src else node.dtype
        raise ValueError(f"kernel {self.name}: LLVM IR for a CPU cannot say {node.op.name} of {dtype} "
                         f"({node})")

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    # --- arguments, constants, loops -------------------------------------------------------------------

    def argument(self, node: UOp) -> None:
        """Arguments have had their names from the start."""

    def const(self, node: UOp) -> None:
        if node not in self.values:
            self.values[node] = constant(node.dtype, node.arg)

    def register(self, node: UOp) -> None:
        if node not in self.values:
            self.values[node] = f"%acc{len(self.declarations)}"
            self.declarations.append(f"  {self.values[node]} = alloca {value_type(node.dtype)}")

    def open_loop(self, node: UOp) -> None:
        """A loop is entered if it has an iteration, and tests after each whether there is another."""
        identity, kind = node.arg
        if kind not in (RangeKind.LOOP, RangeKind.THREAD):
            raise ValueError(f"kernel {self.name}: a range of kind {kind.name} is no loop of a CPU ({node})")
        extent = node.src[0]
        begin, bound = "0", self.values[extent]
        if len(node.src) == 3:
            begin, bound = self.values[node.src[1]], self.values[node.src[2]]
        if kind is RangeKind.THREAD:
            begin, bound = self.share_of(node, bound)
        unique = f"{identity}.{self.loop_count}"
        is_entered = kind is RangeKind.LOOP and len(node.src) == 1 and \
            extent.op is Ops.CONST and extent.arg > 0
        loop = _Loop(bound, f"%next{unique}", f"loop{unique}", f"latch{unique}", f"after{unique}", is_entered)
        if is_entered:
            self.lines.append(f"  br label %{loop.body}")
        else:
            enter = self.emit("enter", f"icmp slt i64 {begin}, {bound}")
            self.lines.append(f"  br i1 {enter}, label %{loop.body}, label %{loop.after}")
        before = self.block
        self.start_block(loop.body)
        counter = f"%i{unique}"
        self.lines.append(f"  {counter} = phi i64 [ {begin}, %{before} ], "
                          f"[ {loop.following}, %{loop.latch} ]")
        self.enter_with_tiles(node, before)
        self.values[node] = counter
        self.open_loops[node] = loop
        self.loop_count += 1

    def share_of(self, node: UOp, bound: str) -> tuple[str, str]:
        """[begin, end) of a THREAD loop in this call: where it ends at a size, that share of its iterations
        which the call's are of the most that there can be."""
        extent = node.src[0]
        if extent.op is Ops.CONST:
            return "%begin", "%end"
        if extent.ranges:
            return "%begin", self.intrinsic("end", "smin.i64", "i64", f"i64 %end, i64 {bound}")
        times = [self.emit("times", f"mul i64 %{end}, {bound}") for end in ("begin", "end")]
        begin, end = (self.emit("share", f"sdiv i64 {n}, {node.extent}") for n in times)
        return begin, end

    def close_loop(self, node: UOp) -> None:
        loop = self.open_loops.pop(node.src[0])
        counter = self.values[node.src[0]]
        self.lines.append(f"  br label %{loop.latch}")
        self.start_block(loop.latch)
        self.repeat_with_tiles(node.src[0], loop.latch)
        self.lines.append(f"  {loop.following} = add nuw nsw i64 {counter}, 1")
        more = self.emit("more", f"icmp slt i64 {loop.following}, {loop.bound}")
        position = counter.rpartition(".")[2]
        note = f", !llvm.loop !{position}" if self.has_vectors else ""
        self.lines.append(f"  br i1 {more}, label %{loop.body}, label %{loop.after}{note}")
        self.start_block(loop.after)
        self.leave_with_tiles(node.src[0], loop.latch, loop.is_entered)

    # --- memory ----------------------------------------------------------------------------------------

    def alignment(self, dtype: DType) -> int:
        """What the address of an access is a multiple of, in bytes."""
        return dtype.lane_size

    def index(self, node: UOp) -> None:
        """The address; a conditional one is made where it is used, which decides what an address may be."""
        if len(node.src) == 2:
            self.values[node] = self.address(node, self.values[node.src[1]])

    def address(self, node: UOp, offset: str) -> str:
        memory, position = node.src[:2]
        item = memory_type(memory.dtype.scalar)
        typed_offset = f"{value_type(position.dtype)} {offset}"
        return self.emit("at", f"getelementptr {item}, ptr {self.values[memory]}, {typed_offset}")

    def load(self, node: UOp) -> None:
        place = node.src[0]
        if place.op is Ops.REGISTER:
            self.values[node] = self.emit("v", f"load {value_type(node.dtype)}, ptr {self.values[place]}")
            return
        stored = memory_type(node.dtype)
        align = f"align {self.alignment(node.dtype)}"
        valid = place.src[2] if len(place.src) == 3 else None
        lanes, items = node.dtype.count, place.src[0].arg[1]
        one_address = place.src[1].dtype.count == 1
        if valid is not None and items == 0:
            self.values[node] = constant(node.dtype, 0)
            return
        if one_address and valid is None:
            value = self.emit("load", f"load {stored}, ptr {self.values[place]}, {align}")
            if node.arg is not None:
                self.prefetch(node)
        elif one_address and valid is not None and valid.dtype.count == 1 and items >= lanes:
            self.values[node] = self.load_or_zero(node, valid, stored, align)
            return
        else:
            mask = f"{vector_type('i1', lanes)} {self.lane_mask(valid, lanes)}"
            address = self.values[place] if valid is None else self.address(place, self.values[place.src[1]])
            if one_address:
                value = self.intrinsic("load", f"masked.load.{mangled(stored)}.p0", stored,
                                       f"ptr {align} {address}, {mask}, {stored} zeroinitializer")
            else:
                value = self.intrinsic("gather", f"masked.gather.{mangled(stored)}.v{lanes}p0", stored,
                                       f"<{lanes} x ptr> {align} {address}, {mask}, {stored} zeroinitializer")
        self.values[node] = self.from_memory(node.dtype, value)

    def prefetch(self, node: UOp) -> None:
        """Ask for what lies so many items further on, into the second cache."""
        item, address = memory_type(node.dtype.scalar), self.values[node.src[0]]
        ahead = self.emit("ahead", f"getelementptr {item}, ptr {address}, i64 {node.arg}")
        self.lines.append(f"  call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 2, i32 1)")

    def load_or_zero(self, node: UOp, valid: UOp, stored: str, align: str) -> str:
        """Where the condition is false, the first item is read and not used: cheaper than a branch."""
        place = node.src[0]
        condition = f"i1 {self.values[valid]}"
        offset = self.emit("safe", f"select {condition}, i64 {self.values[place.src[1]]}, i64 0")
        value = self.emit("load", f"load {stored}, ptr {self.address(place, offset)}, {align}")
        kept = self.emit("v", f"select {condition}, {stored} {value}, {stored} zeroinitializer")
        return self.from_memory(node.dtype, kept)

    def lane_mask(self, valid: UOp | None, lanes: int) -> str:
        """The condition under which each lane may touch memory."""
        if valid is None:
            return "splat (i1 true)"
        if valid.dtype.count == lanes:
            return self.values[valid]
        return self.in_every_lane(self.values[valid], dtypes.bool.vec(lanes))

    def from_memory(self, dtype: DType, value: str) -> str:
        if not dtype.is_bool:
            return value
        return self.emit("v", f"icmp ne {memory_type(dtype)} {value}, zeroinitializer")

    def store(self, node: UOp) -> None:
        place, source = node.src[:2]
        value, dtype = self.values[source], source.dtype
        if place.op is Ops.REGISTER:
            self.lines.append(f"  store {value_type(dtype)} {value}, ptr {self.values[place]}")
            return
        stored = memory_type(dtype)
        if dtype.is_bool:
            value = self.emit("byte", f"zext {value_type(dtype)} {value} to {stored}")
        valid = place.src[2] if len(place.src) == 3 else None
        address = self.values[place] if valid is None else self.address(place, self.values[place.src[1]])
        one_address = place.src[1].dtype.count == 1
        if self.streaming and node in self.streams:
            self.lines.append(f"  store {stored} {value}, ptr {address}, align {dtype.itemsize}, "
                              f"!nontemporal {self.stream_note}")
            return
        if one_address and (valid is None or valid.dtype.count == 1):
            self.store_if(valid, f"  store {stored} {value}, ptr {address}, align {self.alignment(dtype)}")
            return
        mask = f"{vector_type('i1', dtype.count)} {self.lane_mask(valid, dtype.count)}"
        if one_address:
            self.lines.append(f"  call void @llvm.masked.store.{mangled(stored)}.p0"
                              f"({stored} {value}, ptr align {dtype.lane_size} {address}, {mask})")
        else:
            pointers = f"<{dtype.count} x ptr> align {dtype.lane_size} {address}"
            self.lines.append(f"  call void @llvm.masked.scatter.{mangled(stored)}.v{dtype.count}p0"
                              f"({stored} {value}, {pointers}, {mask})")

    def store_if(self, valid: UOp | None, line: str) -> None:
        if valid is None:
            self.lines.append(line)
            return
        unique = self.number
        self.number += 1
        self.lines.append(f"  br i1 {self.values[valid]}, label %store{unique}, label %stored{unique}")
        self.start_block(f"store{unique}")
        self.lines += [line, f"  br label %stored{unique}"]
        self.start_block(f"stored{unique}")

    # --- lanes -----------------------------------------------------------------------------------------

    def vectorize(self, node: UOp) -> None:
        if all(s.op is Ops.CONST for s in node.src):
            self.values[node] = constant(node.dtype, tuple(s.arg for s in node.src))
        elif len(node.src) == 1:
            self.values[node] = self.in_every_lane(self.values[node.src[0]], node.dtype)
        else:
            scalar, vector, built = value_type(node.dtype.scalar), value_type(node.dtype), "poison"
            for lane, source in enumerate(node.src):
                item = f"{scalar} {self.values[source]}"
                built = self.emit("v", f"insertelement {vector} {built}, {item}, i64 {lane}")
            self.values[node] = built

    def in_every_lane(self, value: str, dtype: DType) -> str:
        vector, item = value_type(dtype), f"{value_type(dtype.scalar)} {value}"
        first = self.emit("first", f"insertelement {vector} poison, {item}, i64 0")
        lanes = f"<{dtype.count} x i32> zeroinitializer"
        return self.emit("all", f"shufflevector {vector} {first}, {vector} poison, {lanes}")

    def shuffle(self, node: UOp) -> None:
        kind = value_type(node.src[0].dtype)
        first, second = (self.values[s] for s in node.src)
        picks = ", ".join(f"i32 {i}" for i in node.arg)
        self.values[node] = self.emit("v", f"shufflevector {kind} {first}, {kind} {second}, "
                                           f"<{len(node.arg)} x i32> <{picks}>")

    def extract(self, node: UOp) -> None:
        source = node.src[0]
        self.values[node] = self.lane_of(self.values[source], source.dtype, node.arg)

    def lane_of(self, vector: str, dtype: DType, lane: int) -> str:
        return self.emit("lane", f"extractelement {value_type(dtype)} {vector}, i64 {lane}")

    def some_lanes(self, vector: str, dtype: DType, start: int, count: int) -> str:
        if count == 1:
            return self.lane_of(vector, dtype, start)
        lanes = ", ".join(f"i32 {i}" for i in range(start, start + count))
        of = value_type(dtype)
        return self.emit("part", f"shufflevector {of} {vector}, {of} poison, <{count} x i32> <{lanes}>")

    # --- elementwise -----------------------------------------------------------------------------------

    def matrix_product(self, node: UOp) -> None:
        if node.arg.name not in INTRINSICS:
            self.refuse(node)
        a, b, c = (self.values[s] for s in node.src[:3])
        self.values[node] = multiplied(node.arg, a, b, c, self.emit)

    def call_of(self, node: UOp) -> None:
        self.values[node] = self.call_function(node.arg, self.values[node.src[0]])

    def byte_dot(self, node: UOp) -> None:
        """The sum of c and four products of bytes, in every lane."""
        words, count = node.src[0], node.dtype.count
        kind, c = value_type(node.dtype), node.src[2]
        a, b = (self.values[s] for s in node.src[:2])
        if not (self.has_vnni or self.has_pairs) or 32 * count not in PAIRS:
            self.values[node] = byte_by_byte(self.emit, kind, a, b, self.values[c])
        elif self.has_vnni:
            self.values[node] = four_bytes(self.emit, count, a, b, self.values[c])
        elif half_sum(words) > MOST_HALF:
            self.values[node] = whole_bytes(self.emit, count, a, b, self.values[c])
        else:
            halves = vector_type("i16", 2 * count)
            total = pairs_of_bytes(self.emit, count, a, b)
            before, rest = self.halves.get(c) or ("", self.values[c])
            if before:
                total = self.emit("pairs", f"add {halves} {before}, {total}")
            if node in self.summed_in_halves:
                self.halves[node] = total, rest
                return
            whole = pairs_of_halves(self.emit, count, total, splat(halves, 1))
            self.values[node] = self.emit("v", f"add {kind} {rest}, {whole}")

    def lookup(self, node: UOp) -> None:
        """The bytes of a table at the places that a word's bytes are, in every lane."""
        places, count = self.values[node.src[0]], node.dtype.count
        if self.has_pairs and 32 * count in SHUFFLES:
            self.values[node] = looked_up(self.emit, count, places, node.arg)
        else:
            self.values[node] = chosen_by_bits(self.emit, value_type(node.dtype), places, node.arg)

    def compute(self, node: UOp) -> None:
        self.values[node] = self.elementwise(node, [self.values[s] for s in node.src])
        if not self.values[node]:
            self.refuse(node)


def fills_its_place(store: UOp) -> bool:
    """True for a STORE past the caches whose vectors fill aligned places of their size, if memory does."""
    place, value = store.src[:2]
    if store.arg is not Memory.GLOBAL or place.op is not Ops.INDEX or len(place.src) == 3:
        return False
    count, width = value.dtype.count, value.dtype.itemsize
    return (place.src[1].dtype.count == 1 and count > 1 and width >= 16 and width & (width - 1) == 0
            and not value.dtype.is_bool and is_multiple(place.src[1], count))


def _scratch_bytes(node: UOp) -> int:
    return round_up(node.arg[1] * node.dtype.lane_size, SCRATCH_ALIGNMENT)


STATEMENTS: dict[Ops, Callable[[LLVMWriter, UOp], None]] = {
    **dict.fromkeys((Ops.PARAM, Ops.VARIABLE, Ops.SCRATCH), LLVMWriter.argument),
    **dict.fromkeys(Family.ELEMENTWISE - Family.ELEMENTARY, LLVMWriter.compute),
    Ops.CALL: LLVMWriter.call_of,
    Ops.DP4A: LLVMWriter.byte_dot,
    Ops.LOOKUP: LLVMWriter.lookup,
    Ops.CONST: LLVMWriter.const,
    Ops.REGISTER: LLVMWriter.register,
    Ops.RANGE: LLVMWriter.open_loop,
    Ops.END: LLVMWriter.close_loop,
    Ops.INDEX: LLVMWriter.index,
    Ops.LOAD: LLVMWriter.load,
    Ops.MMA: LLVMWriter.matrix_product,
    Ops.STORE: LLVMWriter.store,
    Ops.VECTORIZE: LLVMWriter.vectorize,
    Ops.SHUFFLE: LLVMWriter.shuffle,
    Ops.EXTRACT: LLVMWriter.extract,
    Ops.REDUCE: LLVMWriter.reduce,
}
