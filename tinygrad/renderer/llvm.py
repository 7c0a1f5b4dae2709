"""Linear programs as LLVM IR.

The kernel `NAME(buffers, variables, begin, end, scratch)` takes its arguments from arrays and passes them one
by one to `NAME.body`, whose pointers are `noalias`: what a kernel writes through one, it does not read
through another. `begin` and `end` bound the THREAD range; `scratch` has `Renderer.scratch_bytes` bytes.

What LLVM leaves undefined is defined in `llvm_functions.py`. There are no fast-math flags: every operation is
rounded once, as the program says. Next on the path: `runtime/cpu.py` compiles the text.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer import SCRATCH_ALIGNMENT, Renderer
from tinygrad.renderer import llvm_functions as functions
from tinygrad.renderer.llvm_functions import (
    NARROW_FLOATS,
    Function,
    constant,
    mangled,
    memory_type,
    splat,
    value_type,
    vector_type,
)


class LLVMRenderer(Renderer):
    """LLVM IR for a CPU with `registers` vector registers of `vector_bytes`; the rest as in `Renderer`."""

    name = "LLVM"
    has_threads = True

    def __init__(self, vector_bytes: int = 16, registers: int = 16, threads: int = 1,
                 l1_bytes: int = Renderer.l1_bytes, l2_bytes: int = Renderer.l2_bytes) -> None:
        self.vector_bytes = vector_bytes
        self.registers = registers
        self.threads = threads
        self.l1_bytes = l1_bytes
        self.l2_bytes = l2_bytes

    def lanes(self, dtype: DType) -> int:
        """Bools and narrow floats count as float32: comparisons make the ones, arithmetic widens the rest."""
        as_float32 = dtype.is_bool or dtype.scalar in NARROW_FLOATS
        return self.vector_bytes // (4 if as_float32 else dtype.lane_size)

    def render(self, name: str, program: list[UOp]) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{name!r} cannot be a kernel's name: letters, digits and _ only")
        return _Writer(name, program).module()


@dataclass(frozen=True)
class _Loop:
    """An open loop: what bounds its counter, the counter's next value, and the blocks around its body."""

    bound: str
    following: str
    body: str
    latch: str
    after: str


class _Writer:
    """Writes one kernel, statement by statement. `values` has the operand that each node now is."""

    def __init__(self, name: str, program: list[UOp]) -> None:
        self.name = name
        self.program = program
        self.values: dict[UOp, str] = {}
        self.declarations: list[str] = []
        self.lines: list[str] = []
        self.block = "start"
        self.number = 0
        self.functions: dict[str, Function] = {}
        self.open_loops: dict[UOp, _Loop] = {}
        self.loop_count = 0
        self.known_not_negative: dict[UOp, bool] = {}
        nodes = dict.fromkeys(program)
        self.buffers = sorted((n for n in nodes if n.op is Ops.PARAM), key=lambda n: int(n.arg[0]))
        self.variables = [n for n in nodes if n.op is Ops.VARIABLE]
        self.scratch = [n for n in nodes if n.op is Ops.SCRATCH]
        self.has_vectors = any(n.dtype.count > 1 for n in nodes)

    # --- the module ------------------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text. The order of the program is the order of the statements."""
        self.name_arguments()
        for node in self.program:
            _STATEMENTS.get(node.op, _Writer.refuse)(self, node)
        body = [f"define internal void @{self.name}.body({self.parameters()}) noinline nounwind {{",
                "entry:", *self.declarations, "  br label %start",
                "start:", *self.lines, "  ret void", "}"]
        parts = [*self.kernel(), "", *body]
        for function in self.functions.values():
            parts += ["", function.text]
        return "\n".join([*parts, *self.metadata(), ""])

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
        return [*out, f"  call void @{self.name}.body({arguments})", "  ret void", "}"]

    def metadata(self) -> list[str]:
        """Loops of a program with vectors stay as they are: its plan has chosen lanes and unrolling."""
        if not self.has_vectors or not self.loop_count:
            return []
        vectorize, unroll = self.loop_count, self.loop_count + 1
        loops = [f"!{i} = distinct !{{!{i}, !{vectorize}, !{unroll}}}" for i in range(self.loop_count)]
        return ["", *loops, f'!{vectorize} = !{{!"llvm.loop.vectorize.enable", i1 false}}',
                f'!{unroll} = !{{!"llvm.loop.unroll.disable"}}']

    # --- words of the statements -----------------------------------------------------------------------

    def refuse(self, node: UOp) -> None:
        dtype = node.src[0].dtype if node.src else node.dtype
        raise ValueError(f"kernel {self.name}: LLVM IR for a CPU cannot say {node.op.name} of {dtype} "
                         f"({node})")

    def emit(self, hint: str, text: str) -> str:
        """An instruction; returns the name of its value."""
        name = f"%{hint}{self.number}"
        self.number += 1
        self.lines.append(f"  {name} = {text}")
        return name

    def intrinsic(self, hint: str, name: str, result: str, arguments: str) -> str:
        """A call of LLVM's own function `name` (with its types); arguments come with their types."""
        return self.emit(hint, f"call {result} @llvm.{name}({arguments})")

    def call(self, hint: str, function: Function, argument_type: str, *arguments: str) -> str:
        """A call of one of `llvm_functions`."""
        self.functions[function.name] = function
        given = ", ".join(f"{argument_type} {a}" for a in arguments)
        return self.emit(hint, f"call {function.result} @{function.name}({given})")

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
        if kind is RangeKind.THREAD:
            begin = "%begin"
            bound = "%end" if extent.op is Ops.CONST else \
                self.intrinsic("end", "smin.i64", "i64", f"i64 %end, i64 {bound}")
        unique = f"{identity}.{self.loop_count}"
        loop = _Loop(bound, f"%next{unique}", f"loop{unique}", f"latch{unique}", f"after{unique}")
        if kind is RangeKind.LOOP and extent.op is Ops.CONST and extent.arg > 0:
            self.lines.append(f"  br label %{loop.body}")
        else:
            enter = self.emit("enter", f"icmp slt i64 {begin}, {bound}")
            self.lines.append(f"  br i1 {enter}, label %{loop.body}, label %{loop.after}")
        before = self.block
        self.start_block(loop.body)
        counter = f"%i{unique}"
        self.lines.append(f"  {counter} = phi i64 [ {begin}, %{before} ], "
                          f"[ {loop.following}, %{loop.latch} ]")
        self.values[node] = counter
        self.open_loops[node] = loop
        self.loop_count += 1

    def close_loop(self, node: UOp) -> None:
        loop = self.open_loops.pop(node.src[0])
        counter = self.values[node.src[0]]
        self.lines.append(f"  br label %{loop.latch}")
        self.start_block(loop.latch)
        self.lines.append(f"  {loop.following} = add nuw nsw i64 {counter}, 1")
        more = self.emit("more", f"icmp slt i64 {loop.following}, {loop.bound}")
        position = counter.rpartition(".")[2]
        note = f", !llvm.loop !{position}" if self.has_vectors else ""
        self.lines.append(f"  br i1 {more}, label %{loop.body}, label %{loop.after}{note}")
        self.start_block(loop.after)

    # --- memory ----------------------------------------------------------------------------------------

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
        align = f"align {node.dtype.lane_size}"
        valid = place.src[2] if len(place.src) == 3 else None
        lanes, items = node.dtype.count, place.src[0].arg[1]
        one_address = place.src[1].dtype.count == 1
        if valid is not None and items == 0:
            self.values[node] = constant(node.dtype, 0)
            return
        if one_address and valid is None:
            value = self.emit("load", f"load {stored}, ptr {self.values[place]}, {align}")
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
        if one_address and (valid is None or valid.dtype.count == 1):
            self.store_if(valid, f"  store {stored} {value}, ptr {address}, align {dtype.lane_size}")
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

    def extract(self, node: UOp) -> None:
        source = node.src[0]
        self.values[node] = self.lane_of(self.values[source], source.dtype, node.arg)

    def lane_of(self, vector: str, dtype: DType, lane: int) -> str:
        return self.emit("lane", f"extractelement {value_type(dtype)} {vector}, i64 {lane}")

    def reduce(self, node: UOp) -> None:
        """One half of the lanes with the other, until one is left; odd lanes are put aside until the end."""
        if len(node.src) != 1 or node.src[0].dtype.count == 1 or node.dtype.count != 1:
            self.refuse(node)
        vector, dtype = self.values[node.src[0]], node.src[0].dtype
        aside: list[str] = []
        while dtype.count > 1:
            half = dtype.count // 2
            if dtype.count % 2:
                aside.append(self.lane_of(vector, dtype, dtype.count - 1))
            low, high = (self.some_lanes(vector, dtype, start, half) for start in (0, half))
            dtype = dtype.scalar.vec(half)
            vector = self.arithmetic(node.arg, dtype, low, high)
        for lane in aside:
            vector = self.arithmetic(node.arg, dtype, vector, lane)
        self.values[node] = vector

    def some_lanes(self, vector: str, dtype: DType, start: int, count: int) -> str:
        if count == 1:
            return self.lane_of(vector, dtype, start)
        lanes = ", ".join(f"i32 {i}" for i in range(start, start + count))
        of = value_type(dtype)
        return self.emit("part", f"shufflevector {of} {vector}, {of} poison, <{count} x i32> <{lanes}>")

    # --- elementwise -----------------------------------------------------------------------------------

    def elementwise(self, node: UOp) -> None:
        dtype = node.src[-1].dtype
        operands = [self.values[s] for s in node.src]
        if node.op is Ops.WHERE:
            kind = value_type(dtype)
            condition, yes, no = operands
            self.values[node] = self.emit(
                "v", f"select {value_type(node.src[0].dtype)} {condition}, {kind} {yes}, {kind} {no}")
        elif node.op is Ops.CAST:
            self.values[node] = self.cast(operands[0], dtype, node.dtype)
        elif node.op is Ops.BITCAST:
            self.values[node] = self.bitcast(operands[0], dtype, node.dtype)
        elif node.op in Family.COMPARE:
            self.values[node] = self.compare(node.op, dtype, *operands)
        elif node.op is Ops.MAX and dtype.scalar in (dtypes.float32, dtypes.float64):
            self.values[node] = self.float_maximum(node, *operands)
        elif node.op in (Ops.IDIV, Ops.MOD) and dtype.is_int:
            self.values[node] = self.divide(node, *operands)
        elif node.op in (Ops.SHL, Ops.SHR) and dtype.is_int:
            self.values[node] = self.shift(node, *operands)
        else:
            value = self.arithmetic(node.op, dtype, *operands)
            if not value:
                self.refuse(node)
            self.values[node] = value

    def arithmetic(self, op: Ops, dtype: DType, *operands: str) -> str:
        """The operations that follow from operands and dtype alone; an empty text for others."""
        if dtype.scalar in NARROW_FLOATS:
            wide = dtypes.float32.vec(dtype.count)
            result = self.arithmetic(op, wide, *(self.cast(x, dtype, wide) for x in operands))
            return result and self.cast(result, wide, dtype)
        kind = value_type(dtype)
        table = _INSTRUCTIONS["float" if dtype.is_float else "bool" if dtype.is_bool else "int"]
        if op in table:
            return self.emit("v", f"{table[op]} {kind} {', '.join(operands)}")
        if dtype.is_bool:
            return ""
        if op is Ops.MULACC:
            a, b, c = operands
            if dtype.is_float:
                factors = f"{kind} {a}, {kind} {b}"
                return self.intrinsic("v", f"fma.{mangled(kind)}", kind, f"{factors}, {kind} {c}")
            return self.emit("v", f"add {kind} {self.emit('v', f'mul {kind} {a}, {b}')}, {c}")
        if dtype.is_float:
            return self.float_function(op, dtype, *operands)
        if op is Ops.NEG:
            return self.emit("v", f"sub {kind} {splat(kind, 0)}, {operands[0]}")
        if op is Ops.MAX:
            name = "umax" if dtype.is_unsigned else "smax"
            both = ", ".join(f"{kind} {x}" for x in operands)
            return self.intrinsic("v", f"{name}.{mangled(kind)}", kind, both)
        return ""

    def float_function(self, op: Ops, dtype: DType, *operands: str) -> str:
        kind = value_type(dtype)
        if op is Ops.RECIP:
            return self.emit("v", f"fdiv {kind} {constant(dtype, 1.0)}, {operands[0]}")
        if op in (Ops.SQRT, Ops.TRUNC):
            return self.intrinsic("v", f"{op.name.lower()}.{mangled(kind)}", kind, f"{kind} {operands[0]}")
        if op is Ops.MAX:
            return self.call("v", functions.float_maximum(dtype.bits, dtype.count), kind, *operands)
        return ""

    def float_maximum(self, node: UOp, a: str, b: str) -> str:
        """With a number on one side, one comparison does: where it fails, the other side is larger or NaN."""
        kind = value_type(node.dtype)
        for number, other, source in ((a, b, node.src[0]), (b, a, node.src[1])):
            if source.op is Ops.CONST and isinstance(source.arg, float) and not math.isnan(source.arg):
                larger = self.emit("larger", f"fcmp ogt {kind} {number}, {other}")
                flags = vector_type("i1", node.dtype.count)
                return self.emit("v", f"select {flags} {larger}, {kind} {number}, {kind} {other}")
        return self.arithmetic(Ops.MAX, node.dtype, a, b)

    def compare(self, op: Ops, dtype: DType, a: str, b: str) -> str:
        if dtype.scalar in NARROW_FLOATS:
            wide = dtypes.float32.vec(dtype.count)
            return self.compare(op, wide, self.cast(a, dtype, wide), self.cast(b, dtype, wide))
        if dtype.is_float:
            relation = "fcmp olt" if op is Ops.CMPLT else "fcmp une"
        elif op is Ops.CMPNE:
            relation = "icmp ne"
        else:
            relation = "icmp slt" if dtype.kind == "int" else "icmp ult"
        return self.emit("c", f"{relation} {value_type(dtype)} {a}, {b}")

    def divide(self, node: UOp, a: str, b: str) -> str:
        """Rounded down. A shift or mask for powers of two, one instruction where nothing is negative."""
        dtype, kind = node.dtype, value_type(node.dtype)
        quotient = node.op is Ops.IDIV
        divisor = _same_in_every_lane(node.src[1])
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            if not quotient:
                return self.emit("v", f"and {kind} {a}, {splat(kind, divisor - 1)}")
            shift = "lshr" if dtype.is_unsigned else "ashr"
            return self.emit("v", f"{shift} {kind} {a}, {splat(kind, divisor.bit_length() - 1)}")
        positive = divisor is not None and divisor > 0
        if positive and (dtype.is_unsigned or self.not_negative(node.src[0])):
            return self.emit("v", f"{'udiv' if quotient else 'urem'} {kind} {a}, {b}")
        if dtype.is_unsigned or (self.not_negative(node.src[0]) and self.not_negative(node.src[1])):
            make = functions.unsigned_division if quotient else functions.unsigned_remainder
        else:
            make = functions.floor_division if quotient else functions.floor_remainder
        return self.call("v", make(dtype.bits, dtype.count), kind, a, b)

    def not_negative(self, node: UOp) -> bool:
        """True if an index can be seen to be at least 0 in every lane."""
        known = self.known_not_negative.get(node)
        if known is None:
            if node.op is Ops.CONST:
                known = all(x >= 0 for x in (node.arg if isinstance(node.arg, tuple) else (node.arg,)))
            elif node.dtype is dtypes.index:
                known = node.bounds[0] >= 0
            elif node.dtype.scalar is dtypes.index and node.op in _KEEPS_NOT_NEGATIVE:
                known = all(self.not_negative(s) for s in node.src)
            else:
                known = False
            self.known_not_negative[node] = known
        return known

    def shift(self, node: UOp, a: str, b: str) -> str:
        dtype, kind = node.dtype, value_type(node.dtype)
        amount = _same_in_every_lane(node.src[1])
        if amount is not None and 0 <= amount < dtype.bits:
            name = "shl" if node.op is Ops.SHL else "lshr" if dtype.is_unsigned else "ashr"
            return self.emit("v", f"{name} {kind} {a}, {b}")
        make = functions.shift_left if node.op is Ops.SHL else \
            functions.shift_right_unsigned if dtype.is_unsigned else functions.shift_right_signed
        return self.call("v", make(dtype.bits, dtype.count), kind, a, b)

    # --- casts -----------------------------------------------------------------------------------------

    def cast(self, value: str, source: DType, target: DType) -> str:
        """Floats to integers round toward zero; what does not fit becomes the nearest that does, NaN 0."""
        if source is target:
            return value
        from_type, to_type = value_type(source), value_type(target)
        if target.is_bool:
            return self.compare(Ops.CMPNE, source, value, constant(source, 0))
        if source.scalar in NARROW_FLOATS:
            wide = dtypes.float32.vec(source.count)
            if source.scalar is dtypes.float16:
                widened = self.emit("v", f"fpext {from_type} {value} to {value_type(wide)}")
            else:
                widened = self.call("v", functions.widen(source.scalar, source.count), from_type, value)
            return self.cast(widened, wide, target)
        if target.scalar in NARROW_FLOATS:
            return self.cast_to_narrow(value, source, target)
        if source.is_float and target.is_float:
            name = "fpext" if target.bits > source.bits else "fptrunc"
        elif source.is_float:
            name = f"fpto{'u' if target.is_unsigned else 's'}i.sat.{mangled(to_type)}.{mangled(from_type)}"
            return self.intrinsic("v", name, to_type, f"{from_type} {value}")
        elif target.is_float:
            name = "sitofp" if source.kind == "int" else "uitofp"
        elif from_type == to_type:
            return value
        elif not source.is_bool and target.bits < source.bits:
            name = "trunc"
        else:
            name = "sext" if source.kind == "int" else "zext"
        return self.emit("v", f"{name} {from_type} {value} to {to_type}")

    def cast_to_narrow(self, value: str, source: DType, target: DType) -> str:
        """Rounded once: through float32, rounded to odd where float32 is not exact."""
        wide = dtypes.float32.vec(source.count)
        if source.scalar is not dtypes.float32:
            wide_int = source.is_int and source.lane_size >= 4 and target.scalar is dtypes.bfloat16
            if source.scalar is dtypes.float64 or wide_int:
                double = dtypes.float64.vec(source.count)
                doubled = self.cast(value, source, double)
                value = self.call("v", functions.round_to_odd(source.count), value_type(double), doubled)
            else:
                value = self.cast(value, source, wide)
        if target.scalar is dtypes.float16:
            return self.emit("v", f"fptrunc {value_type(wide)} {value} to {value_type(target)}")
        return self.call("v", functions.narrow(target.scalar, target.count), value_type(wide), value)

    def bitcast(self, value: str, source: DType, target: DType) -> str:
        if source.is_bool or target.is_bool:
            return self.cast(value, source, target)
        return self.emit("v", f"bitcast {value_type(source)} {value} to {value_type(target)}")


def _scratch_bytes(node: UOp) -> int:
    return round_up(node.arg[1] * node.dtype.lane_size, SCRATCH_ALIGNMENT)


def _same_in_every_lane(node: UOp) -> int | None:
    """The number that an integer is in all its lanes, if it is a constant."""
    if node.op is Ops.VECTORIZE and len(node.src) == 1:
        return _same_in_every_lane(node.src[0])
    if node.op is not Ops.CONST:
        return None
    lanes = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    return int(lanes[0]) if all(x == lanes[0] for x in lanes) else None


_BITWISE = {Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor"}
_INSTRUCTIONS: dict[str, dict[Ops, str]] = {
    "float": {Ops.ADD: "fadd", Ops.SUB: "fsub", Ops.MUL: "fmul", Ops.FDIV: "fdiv", Ops.NEG: "fneg"},
    "int": {Ops.ADD: "add", Ops.SUB: "sub", Ops.MUL: "mul", **_BITWISE},
    "bool": {Ops.ADD: "or", Ops.MAX: "or", Ops.MUL: "and", **_BITWISE},
}
"""The operations that are one instruction, by the kind of their operands."""
_KEEPS_NOT_NEGATIVE = frozenset({Ops.VECTORIZE, Ops.ADD, Ops.MUL, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.MULACC})

_STATEMENTS: dict[Ops, Callable[[_Writer, UOp], None]] = {
    **dict.fromkeys((Ops.PARAM, Ops.VARIABLE, Ops.SCRATCH), _Writer.argument),
    **dict.fromkeys(Family.ELEMENTWISE - {Ops.EXP2, Ops.LOG2, Ops.SIN}, _Writer.elementwise),
    Ops.CONST: _Writer.const,
    Ops.REGISTER: _Writer.register,
    Ops.RANGE: _Writer.open_loop,
    Ops.END: _Writer.close_loop,
    Ops.INDEX: _Writer.index,
    Ops.LOAD: _Writer.load,
    Ops.STORE: _Writer.store,
    Ops.VECTORIZE: _Writer.vectorize,
    Ops.EXTRACT: _Writer.extract,
    Ops.REDUCE: _Writer.reduce,
}
