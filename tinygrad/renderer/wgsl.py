"""Linear programs in WGSL, the shading language of WebGPU.

A kernel is one compute entry point; its buffers are bindings in the order of their slots, behind them one
with the variables. WGSL has 32-bit numbers, and 64-bit ones where a device adds them; narrower ones are
computed in 32 bits and wrapped. In memory they lie packed: a store changes its bits of a 32-bit word by
atomic operations, since another thread may own the bits beside them. Infinities and NaN are made of bits at
run time, for a constant that is none is refused. `wgsl_functions.py` has what WGSL has no operator for;
`runtime/webgpu.py` runs the text.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv
from tinygrad.renderer import Native, Renderer, same_in_every_lane
from tinygrad.renderer.c import CWriter
from tinygrad.renderer.launch import launch_of
from tinygrad.renderer.machine import NARROW_FLOATS, WIDE_FLOATS, blocks
from tinygrad.renderer.wgsl_functions import WGSLFunctions, is_narrow

AXES = "xyz"
MOST_COPIES = 64
"""Copies of a loop's body, each of which the driver compiles again."""
_REWRITTEN = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MULACC})
_COUNTED = frozenset({Ops.CONST, Ops.VARIABLE, Ops.RANGE, Ops.SPECIAL})
"""What indices are made of."""


class WGSLRenderer(Renderer):
    """WGSL for a device that lacks the dtypes `missing`, whose `fma` is fused for the dtypes `fused`, and
    that compares an int32 made an int64 as one if it `widens`."""

    name = "WGSL"

    def __init__(self, missing: frozenset[DType] = frozenset(), block_threads: int = 256,
                 shared_bytes: int = 16 << 10, fused: frozenset[DType] = WIDE_FLOATS,
                 most_rounds: int = 2**31 - 1, widens: bool = True) -> None:
        self.machine = blocks(block_threads, shared_bytes, grid_limits=(65535, 65535, 65535), vector_items=4,
                              missing=missing, contracts=WIDE_FLOATS - missing <= fused)
        self.widens = widens
        self.most_rounds = most_rounds
        """of all loops of a thread together: a driver may stop a thread after them"""
        self.fused = fused

    @property
    def native(self) -> Native:
        """A product and a sum of float64, and of float32 without float64, is a function of integers."""
        has_float64 = not self.machine.missing & {dtypes.float64, dtypes.uint64}
        return Native(fused=self.fused | {dtypes.float64 if has_float64 else dtypes.float32})

    def render(self, name: str, program: list[UOp]) -> str:
        self.check(name, program)
        wide = any(n.dtype is dtypes.index and not _fits(n) for n in program)
        if wide and dtypes.int64 in self.machine.missing:
            raise ValueError("this kernel counts beyond 32 bits, for which this WebGPU device has no "
                             "integers; CPU, CPU:C and PYTHON do: t.to(\"CPU\")")
        functions = WGSLFunctions("i64" if wide else "i32", self.fused, self.widens)
        return _Writer(name, program, functions, self.copies_of_bodies(program)).module()

    def copies_of_bodies(self, program: list[UOp]) -> int:
        """How often to write the body of each innermost loop, so that a thread goes round its loops no more
        often than the driver lets it. Raises ValueError where that would be a text of thousands of lines."""
        copies = 1
        while rounds_of(program, copies) > self.most_rounds:
            copies *= 2
            if copies > MOST_COPIES:
                raise ValueError(f"a thread of this kernel goes {rounds_of(program):,} times round its "
                                 f"loops, and this WebGPU driver stops it after {self.most_rounds:,} "
                                 "without a word: run this on CPU or CL, t.to(\"CPU\"), or in parts")
        return copies


def cancels(node: UOp) -> bool:
    """Whether a sum of floats is that of a value and the same value negated."""
    a, b = node.src[:2]
    if node.op is Ops.SUB:
        return a is b
    return node.op is Ops.ADD and any(x.op is Ops.NEG and x.src[0] is y for x, y in ((a, b), (b, a)))


def rounds_of(program: list[UOp], copies: int = 1) -> int:
    """How often a thread goes round its loops at most, where the bodies of innermost loops are written so
    many times (and one of no more rounds is no loop at all). The round in which a loop ends counts too."""
    total = 0
    times = [1]
    rounds = []
    is_innermost = False
    for node in program:
        if node.op is Ops.RANGE:
            rounds.append(most_rounds_of(node))
            times.append(times[-1] * rounds[-1])
            is_innermost = True
        elif node.op is Ops.END:
            times.pop()
            extent = rounds.pop()
            here = copies if is_innermost else 1
            total += times[-1] * (ceildiv(extent, here) + 1) if extent > here or here == 1 else 0
            is_innermost = False
    return total


def most_rounds_of(loop: UOp) -> int:
    """How often one goes round a loop at most."""
    lowest, highest = (int(bound) for bound in loop.bounds)
    return highest - lowest + 1


def _fits(node: UOp) -> bool:
    """True unless counting needs 64 bits to begin with: what 32-bit numbers from memory are multiplied to is
    only used where they are inside of what they count."""
    if node.op is Ops.CAST:
        return node.src[0].dtype.lane_size < 8
    lowest, highest = node.bounds if node.op in _COUNTED else (0, 0)
    return lowest >= -(2**31) and highest < 2**31


@dataclass
class OpenLoop:
    """A loop that is being written."""

    counter: str
    end: str
    start: int
    """the line before its body"""
    most: int
    """rounds"""
    is_innermost: bool = True


class _Writer(CWriter):
    """Writes one kernel, as `CWriter` does where WGSL is like C."""

    functions: WGSLFunctions

    def __init__(self, name: str, program: list[UOp], functions: WGSLFunctions, copies: int) -> None:
        super().__init__(name, program, functions.dialect)
        self.functions = functions
        self.copies = copies
        """of the bodies of innermost loops"""
        self.open_loops: list[OpenLoop] = []
        self.lanes: dict[UOp, list[str]] = {}
        self.hidden: dict[str, str] = {}
        """constants that the compiler shall not compute with"""
        self.globals: list[str] = []
        nodes = dict.fromkeys(program)
        sums = (Ops.ADD, Ops.SUB, Ops.MULACC)
        self.kept_sums = {s for n in nodes if n.op in sums or n.op in Family.COMPARE
                          for s in n.src if s.op in sums and s.dtype in WIDE_FLOATS}
        self.stored = {n.memory for n in nodes if n.op is Ops.STORE and n.src[0].op is Ops.INDEX}

    def module(self) -> str:
        """The whole text. The order of the program is the order of the statements."""
        self.globals.append("var<private> zero: u32;")
        for binding, node in enumerate(self.buffers):
            self.values[node] = f"p{node.arg[0]}"
            access = "read_write" if node in self.stored else "read"
            self.globals.append(f"@group(0) @binding({binding}) var<storage, {access}> {self.values[node]}: "
                                f"array<{self.item(node)}>;")
            self.line(f"_ = &{self.values[node]};")
        if self.variables:
            self.globals.append(f"@group(0) @binding({len(self.buffers)}) var<storage, read> variables: "
                                "array<vec2<u32>>;")
        for position, node in enumerate(self.variables):
            low, high = (f"variables[{position}].{part}" for part in "xy")
            wide = self.functions.type(dtypes.index) == "i64"
            text = f"(i64(bitcast<i32>({high})) << 32u) | i64(u64({low}))" if wide else f"bitcast<i32>({low})"
            self.values[node] = self.emit("n", dtypes.index, text)
        for node in self.program:
            self.statements.get(node.op, _Writer.refuse)(self, node)
        threads = ", ".join(map(str, launch_of(self.program).threads))
        head = [f"@compute @workgroup_size({threads})",
                f"fn {self.name}(@builtin(workgroup_id) block: vec3<u32>, "
                "@builtin(local_invocation_id) thread: vec3<u32>) {"]
        body = [*head, "    zero = block.z >> 16u;", *self.hidden.values(), *self.declarations, *self.lines,
                "}"]
        parts = (self.globals, self.functions.texts.values(), body)
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def item(self, node: UOp) -> str:
        """The type of an item of a buffer: of packed ones, the word around them."""
        if not is_narrow(node.dtype):
            return self.functions.type(node.dtype)
        return "atomic<u32>" if node in self.stored else "u32"

    # --- words of the statements ----------------------------------------------------------------------------

    def emit(self, hint: str, dtype: DType, expression: str) -> str:
        name = self.fresh(hint)
        self.line(f"let {name}: {self.functions.type(dtype)} = {self.functions.wrapped(dtype, expression)};")
        return name

    # --- registers, arrays, loops ---------------------------------------------------------------------------

    def register(self, node: UOp) -> None:
        if node not in self.values:
            self.values[node] = self.fresh("acc")
            self.declarations.append(f"    var {self.values[node]}: {self.functions.type(node.dtype)};")

    def array(self, node: UOp) -> None:
        """Memory of a block or of a thread, where nothing is packed."""
        if node in self.values:
            return
        kind = f"array<{self.functions.type(node.dtype)}, {max(1, node.arg[1])}>"
        if node.op is Ops.SHARED:
            self.values[node] = f"shared{node.arg[0]}"
            self.globals.append(f"var<workgroup> {self.values[node]}: {kind};")
        else:
            self.values[node] = f"scratch{node.arg[0]}"
            self.declarations.append(f"    var {self.values[node]}: {kind};")

    def special(self, node: UOp) -> None:
        where = "block" if node.arg[0].startswith("g") else "thread"
        number = f"{where}.{AXES[int(node.arg[0][-1])]}"
        self.values[node] = self.emit("id", dtypes.index,
                                      self.functions.converted(number, dtypes.uint32, dtypes.index))

    def open_loop(self, node: UOp) -> None:
        if node.kind is not RangeKind.LOOP:
            self.refuse(node)
        zero = self.functions.constant(dtypes.index, 0)
        bounds = (self.values[s] for s in (node.src[1:] or node.src))
        begin, end = (*([] if len(node.src) == 3 else [zero]), *bounds)
        counter = self.values[node] = self.fresh("at")
        self.line(f"for (var {counter} = {begin}; {counter} < {end}; {counter}++) {{")
        self.depth += 1
        for around in self.open_loops:
            around.is_innermost = False
        self.open_loops.append(OpenLoop(counter, end, len(self.lines) - 1, most_rounds_of(node)))

    def close_loop(self, node: UOp) -> None:
        loop = self.open_loops.pop()
        copies = self.copies if loop.is_innermost else 1
        body = self.lines[loop.start + 1:]
        if 1 < copies >= loop.most:
            head = self.lines[loop.start].partition("(")[2].partition(";")[0]
            del self.lines[loop.start:]
            self.depth -= 1
            self.line(f"{head};")
            for _ in range(loop.most):
                self.lines += ["    " * self.depth + f"if ({loop.counter} < {loop.end}) {{", *body,
                               "    " * self.depth + "}"]
                self.line(f"{loop.counter}++;")
            return
        for _ in range(copies - 1):
            self.line(f"{loop.counter}++;")
            self.line(f"if ({loop.counter} >= {loop.end}) {{ break; }}")
            self.lines += ["    " * self.depth + "{", *body, "    " * self.depth + "}"]
        self.depth -= 1
        self.line("}")

    # --- memory ---------------------------------------------------------------------------------------------

    def offset(self, place: UOp, lane: int) -> str:
        """The place of an item, as WGSL counts: without a sign."""
        if place.src[1].op is Ops.CONST:
            return f"{(place.src[1].arg + lane) % 2**32}u"
        offset = f"u32({self.values[place.src[1]]})"
        return f"{offset} + {lane}u" if lane else offset

    def is_packed(self, memory: UOp) -> bool:
        return memory.op is Ops.PARAM and is_narrow(memory.dtype)

    def word(self, memory: UOp, offset: str) -> tuple[str, str]:
        """(the word of a packed item, how far its bits are shifted in it)."""
        bits = 8 * memory.dtype.itemsize
        items = 32 // bits
        return f"{self.values[memory]}[({offset}) / {items}u]", f"(({offset}) % {items}u * {bits}u)"

    def item_at(self, memory: UOp, offset: str) -> str:
        if not self.is_packed(memory):
            return f"{self.values[memory]}[{offset}]"
        word, shift = self.word(memory, offset)
        held = f"atomicLoad(&{word})" if memory in self.stored else word
        bits = f"(({held} >> {shift}) & {self.functions.mask(memory.dtype)})"
        return self.functions.of_bits(memory.dtype, bits)

    def load(self, node: UOp) -> None:
        place, dtype = node.src[0], node.dtype.scalar
        if place.op is Ops.REGISTER:
            self.values[node] = self.emit("v", dtype, self.values[place])
            return
        memory = place.src[0]
        found = []
        for lane in range(node.dtype.count):
            text = self.item_at(memory, self.offset(place, lane))
            if len(place.src) == 2:
                found.append(self.emit("v", dtype, text))
                continue
            found.append(name := self.fresh("v"))
            kind = self.functions.type(dtype)
            self.line(f"var {name}: {kind} = {kind}();")
            if not (memory.op is Ops.PARAM and memory.arg[1] == 0):
                value = self.functions.wrapped(dtype, text)
                self.line(f"if ({self.values[place.src[2]]}) {{ {name} = {value}; }}")
        self.lanes[node] = found
        self.values[node] = found[0]

    def extract(self, node: UOp) -> None:
        self.values[node] = self.lanes[node.src[0]][node.arg]

    def vectorize(self, node: UOp) -> None:
        self.lanes[node] = [self.values[s] for s in node.src]

    def store(self, node: UOp) -> None:
        place, source = node.src
        if place.op is Ops.REGISTER:
            self.line(f"{self.values[place]} = {self.values[source]};")
            return
        values = self.lanes[source] if source.dtype.count > 1 else [self.values[source]]
        for lane, value in enumerate(values):
            text = self.stored_text(place.src[0], self.offset(place, lane), value)
            self.line(f"if ({self.values[place.src[2]]}) {{ {text} }}" if len(place.src) == 3 else text)

    def stored_text(self, memory: UOp, offset: str, value: str) -> str:
        if not self.is_packed(memory):
            return f"{self.values[memory]}[{offset}] = {value};"
        word, shift = self.word(memory, offset)
        mask, bits = self.functions.mask(memory.dtype), self.functions.bits_of(memory.dtype, value)
        return f"atomicAnd(&{word}, ~({mask} << {shift})); atomicOr(&{word}, ({bits} & {mask}) << {shift});"

    # --- operations -----------------------------------------------------------------------------------------

    def compute(self, node: UOp) -> None:
        value = self.elementwise(node, [self.operand(node, i) for i in range(len(node.src))])
        if not value:
            self.refuse(node)
        self.values[node] = self.as_rounded(node.dtype, value) if node in self.kept_sums else value

    def operand(self, node: UOp, position: int) -> str:
        """An operand, hidden from the compiler where that would compute with it by rules that forget
        infinities, NaN and rounding: x * 0 = 0, x - x = 0, (x * a) * b = x * (a * b)."""
        source = node.src[position]
        if node.dtype.is_float and node.op in _REWRITTEN:
            special = source.op is Ops.CONST and source.arg in (0.0, math.inf, -math.inf)
            if special or (source.op is Ops.CONST and node.op in (Ops.MUL, Ops.FDIV)):
                return self.hidden_constant(source)
            if position == 1 and cancels(node):
                return self.as_rounded(node.dtype, self.values[source], "^")  # (a | 0) | 0 is seen as a | 0
        return self.values[source]

    def hidden_constant(self, node: UOp) -> str:
        """A constant that stands at the head of the kernel, of bits that are known when it runs."""
        name = f"k_{node.dtype.name}_{node.dtype.numpy.type(node.arg).tobytes()[::-1].hex()}"
        if name not in self.hidden:
            bits = int(name.rpartition("_")[2], 16)
            kind = self.functions.type(node.dtype)
            word = {"f64": "u64"}.get(kind, "u32")
            whole = f"(0x{bits:x}{'lu' if word == 'u64' else 'u'} | {word}(zero))"
            self.hidden[name] = f"    let {name} = {f'bitcast<{kind}>{whole}' if kind != word else whole};"
        return name

    def as_rounded(self, dtype: DType, value: str, operator: str = "|") -> str:
        """A sum that stays as it was rounded. WGSL lets a compiler turn (a + b) - b into a, and a - b == 0,
        of infinities false, into a == b; it does not see through the bits of a number that only the launch
        makes 0."""
        kind = self.functions.type(dtype)
        bits = "u64" if kind == "f64" else "u32"
        return self.emit("sum", dtype, f"bitcast<{kind}>(bitcast<{bits}>({value}) {operator} {bits}(zero))")

    def where(self, dtype: DType, condition: str, yes: str, no: str) -> str:
        return self.emit("v", dtype, f"select({no}, {yes}, {condition})")

    def arithmetic(self, op: Ops, dtype: DType, *operands: str) -> str:
        if dtype.is_bool and op is Ops.XOR:
            return self.emit("c", dtype, f"{operands[0]} != {operands[1]}")
        if dtype.is_int and op is Ops.NEG:
            return self.emit("v", dtype, f"{self.functions.constant(dtype, 0)} - {operands[0]}")
        return super().arithmetic(op, dtype, *operands)

    def compare(self, op: Ops, dtype: DType, a: str, b: str) -> str:
        if dtype.is_bool and op is Ops.CMPLT:
            return self.emit("c", dtype, f"!{a} && {b}")
        if dtype in WIDE_FLOATS:
            ordered = self.functions.as_compared(f"{a} {'<' if op is Ops.CMPLT else '=='} {b}")
            return self.emit("c", dtypes.bool, ordered if op is Ops.CMPLT else f"!{ordered}")
        return super().compare(op, dtype, a, b)

    def divide(self, node: UOp, a: str, b: str) -> str:
        function = self.functions.divide(node.dtype, node.op is Ops.IDIV)
        return self.emit("v", node.dtype, f"{function}({a}, {b})")

    def shift(self, node: UOp, a: str, b: str) -> str:
        amount = same_in_every_lane(node.src[1])
        if amount is not None and 0 <= amount < node.dtype.bits:
            return self.emit("v", node.dtype, f"{a} {'<<' if node.op is Ops.SHL else '>>'} {amount}u")
        return self.emit("v", node.dtype, f"{self.functions.shift(node.dtype, node.op is Ops.SHL)}({a}, {b})")

    def cast(self, value: str, source: DType, target: DType) -> str:
        if source is target:
            return value
        if NARROW_FLOATS & {source, target}:
            return ""
        if source.is_bool:
            one, zero = (self.functions.constant(target, target.as_const(n)) for n in (1, 0))
            return self.emit("v", target, f"select({zero}, {one}, {value})")
        plain = not (source.is_float and target.is_int) and not target.is_bool
        if plain:
            return self.emit("v", target, self.functions.converted(value, source, target))
        return super().cast(value, source, target)

    def bitcast(self, value: str, source: DType, target: DType) -> str:
        if source.is_bool or target.is_bool:
            return self.cast(value, source, target)
        if is_narrow(source):
            bits = f"({self.functions.bits_of(source, value)} & {self.functions.mask(source)})"
            return self.emit("v", target, self.functions.of_bits(target, bits))
        return self.emit("v", target, self.functions.bits(value, source, target))


_Writer.statements = {
    **{op: CWriter.statements[op] for op in (Ops.PARAM, Ops.VARIABLE, Ops.CONST, Ops.BARRIER, Ops.INDEX)},
    **dict.fromkeys((Ops.SCRATCH, Ops.SHARED), _Writer.array),
    **dict.fromkeys(Family.ELEMENTWISE - Family.ELEMENTARY, _Writer.compute),
    Ops.REGISTER: _Writer.register,
    Ops.SPECIAL: _Writer.special,
    Ops.RANGE: _Writer.open_loop,
    Ops.END: _Writer.close_loop,
    Ops.LOAD: _Writer.load,
    Ops.STORE: _Writer.store,
    Ops.VECTORIZE: _Writer.vectorize,
    Ops.EXTRACT: _Writer.extract,
}
