"""Linear programs in C and its relatives.

One writer for the family: what its languages call things differently is a table, `Dialect`
(`c_functions.py`). Plain C has a kernel `NAME(buffers, variables, begin, end, scratch)` exactly as
`renderer/llvm.py` has, so both run on the same threads and in the same lists of kernels. A value of the
program is one C constant, a loop one `for`; operations that C lacks are small functions at the top.

Every operation is rounded once, as the program says: sums and products are contracted only by MULACC
(`-ffp-contract=off`). Here are the kernel, its loops, memory and lanes; `c_arithmetic.py` has the operations
on values. Next on the path: `runtime/cpu_c.py` compiles the text.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer import SCRATCH_ALIGNMENT, Native, Renderer
from tinygrad.renderer.c_arithmetic import CArithmetic
from tinygrad.renderer.c_functions import PLAIN_C, Dialect, padded, signed_of
from tinygrad.renderer.lanes import LaneReduction
from tinygrad.renderer.machine import Machine, cores

LEAST_ITEM_BYTES = 4
"""What is computed with items of a byte or two is often as wide as four, and GCC takes vectors wider than the
machine's apart, item by item: 64 float16 to bytes of a float8 took it minutes."""


class CRenderer(Renderer):
    """C for a CPU."""

    name = "C"

    def __init__(self, dialect: Dialect = PLAIN_C, machine: Machine | None = None) -> None:
        self.dialect = dialect
        self.machine = replace(machine or cores(), least_item_bytes=LEAST_ITEM_BYTES)

    def render(self, name: str, program: list[UOp]) -> str:
        self.check(name, program)
        return CWriter(name, program, self.dialect).module()

    @property
    def native(self) -> Native:
        return self.dialect.native


class CWriter(CArithmetic, LaneReduction):
    """Writes one kernel, statement by statement. `values` has the C expression that each node now is."""

    statements: ClassVar[dict[Ops, Callable[[Any, UOp], None]]]
    """how each operation is written"""

    def __init__(self, name: str, program: list[UOp], dialect: Dialect) -> None:
        super().__init__(dialect)
        self.name = name
        self.program = program
        self.dialect = dialect
        self.values: dict[UOp, str] = {}
        self.declarations: list[str] = []
        nodes = dict.fromkeys(program)
        self.buffers = sorted((n for n in nodes if n.op is Ops.PARAM), key=lambda n: int(n.arg[0]))
        self.variables = [n for n in nodes if n.op is Ops.VARIABLE]
        self.scratch = [n for n in nodes if n.op is Ops.SCRATCH]

    # --- the module ------------------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text. The order of the program is the order of the statements."""
        self.name_arguments()
        for node in self.program:
            self.statements.get(node.op, CWriter.refuse)(self, node)
        body = [f"static __attribute__((noinline)) void {self.name}_body({self.parameters()}) {{",
                *self.declarations, *self.lines, "}"]
        functions = self.functions
        return "\n\n".join(["\n".join(part) for part in (
            functions.types.values(), functions.texts.values(), body, self.kernel()) if part]) + "\n"

    def name_arguments(self) -> None:
        slots = [n.arg[0] for n in self.buffers]
        if len(slots) != len(set(slots)):
            raise ValueError(f"kernel {self.name}: two PARAMs share a slot: {slots}")
        for node in self.buffers:
            self.values[node] = f"p{node.arg[0]}"
        for position, node in enumerate(self.variables):
            self.values[node] = f"{re.sub('[^A-Za-z0-9_]', '_', node.arg[0])}_n{position}"
        for node in self.scratch:
            self.values[node] = f"s{node.arg[0]}"

    def pointer(self, node: UOp) -> str:
        return f"{self.functions.memory(node.dtype)} *{self.dialect.restrict} {self.values[node]}"

    def parameters(self) -> str:
        index = self.functions.type(dtypes.index)
        return ", ".join([*map(self.pointer, self.buffers),
                          *(f"{index} {self.values[n]}" for n in self.variables),
                          f"{index} begin", f"{index} end", *map(self.pointer, self.scratch)])

    def kernel(self) -> list[str]:
        """The function that takes the arguments out of their arrays."""
        index = self.functions.type(dtypes.index)
        arguments = [f"buffers[{n.arg[0]}]" for n in self.buffers]
        arguments += [f"variables[{i}]" for i in range(len(self.variables))]
        arguments += ["begin", "end"]
        offset = 0
        for node in self.scratch:
            arguments.append(f"__builtin_assume_aligned(scratch + {offset}, {SCRATCH_ALIGNMENT})")
            offset += round_up(node.arg[1] * node.dtype.lane_size, SCRATCH_ALIGNMENT)
        head = f"{self.dialect.kernel} void".strip()
        return [f"{head} {self.name}(void **buffers, {index} *variables, {index} begin, {index} end, "
                f"char *scratch) {{", f"    {self.name}_body({', '.join(arguments)});", "}"]

    # --- words of the statements -----------------------------------------------------------------------

    def refuse(self, node: UOp) -> None:
        dtype = node.src[0].dtype if node.src else node.dtype
        raise ValueError(f"kernel {self.name}: {self.dialect.name} for this device cannot say "
                         f"{node.op.name} of {dtype} ({node})")

    # --- arguments, constants, loops -------------------------------------------------------------------

    def argument(self, node: UOp) -> None:
        """Arguments have had their names from the start."""

    def const(self, node: UOp) -> None:
        text = self.functions.constant(node.dtype, node.arg)
        self.values[node] = f"({text})" if text.startswith("-") else text

    def register(self, node: UOp) -> None:
        if node not in self.values:
            self.values[node] = self.fresh("acc")
            self.declarations.append(f"    {self.functions.type(node.dtype)} {self.values[node]};")

    def shared(self, node: UOp) -> None:
        if not self.dialect.shared:
            self.refuse(node)
        if node not in self.values:
            self.values[node] = f"shared{node.arg[0]}"
            self.declarations.append(f"    {self.dialect.shared} {self.functions.memory(node.dtype)} "
                                     f"{self.values[node]}[{node.arg[1]}];")

    def special(self, node: UOp) -> None:
        if node.arg[0] not in self.dialect.ids:
            self.refuse(node)
        self.values[node] = self.emit("id", dtypes.index, self.dialect.ids[node.arg[0]])

    def barrier(self, node: UOp) -> None:
        if not self.dialect.barrier:
            self.refuse(node)
        self.line(self.dialect.barrier)

    def open_loop(self, node: UOp) -> None:
        kind = node.arg[1]
        if kind not in (RangeKind.LOOP, RangeKind.THREAD):
            raise ValueError(f"kernel {self.name}: a range of kind {kind.name} is no loop of a CPU ({node})")
        begin, bound = "0", self.values[node.src[0]]
        if len(node.src) == 3:
            begin, bound = self.values[node.src[1]], self.values[node.src[2]]
        if kind is RangeKind.THREAD:
            begin, bound = self.share_of(node, bound)
        counter = self.fresh("i")
        self.values[node] = counter
        self.line(f"for ({self.functions.type(dtypes.index)} {counter} = {begin}; {counter} < {bound}; "
                  f"{counter}++) {{")
        self.depth += 1

    def share_of(self, node: UOp, bound: str) -> tuple[str, str]:
        """[begin, end) of a THREAD loop in this call, as `llvm.py` has it."""
        extent = node.src[0]
        if extent.op is Ops.CONST:
            return "begin", "end"
        if extent.ranges:
            return "begin", self.emit("end", dtypes.index, f"end < {bound} ? end : {bound}")
        begin, end = (self.emit(name, dtypes.index, f"{name} * ({bound}) / {node.extent}")
                      for name in ("begin", "end"))
        return begin, end

    def close_loop(self, node: UOp) -> None:
        self.depth -= 1
        self.line("}")

    # --- memory ----------------------------------------------------------------------------------------

    def index(self, node: UOp) -> None:
        """What is at an address is said where it is used, which decides what an address may be."""

    def places(self, node: UOp, count: int) -> list[str]:
        """The item at each lane's address."""
        memory, offset = self.values[node.src[0]], self.values[node.src[1]]
        if node.src[1].dtype.count > 1:
            return [f"{memory}[{offset}[{lane}]]" for lane in range(count)]
        return [f"{memory}[{offset}{f' + {lane}' if lane else ''}]" for lane in range(count)]

    def conditions(self, node: UOp, count: int) -> list[str]:
        """The condition under which each lane may touch memory."""
        valid = self.values[node.src[2]]
        return [f"{valid}[{lane}]" for lane in range(count)] if node.src[2].dtype.count > 1 else \
            [valid] * count

    def load(self, node: UOp) -> None:
        place, dtype = node.src[0], node.dtype
        if place.op is Ops.REGISTER:
            self.values[node] = self.emit("v", dtype, self.values[place])
            return
        if len(place.src) == 3 and place.src[0].arg[1] == 0:
            self.values[node] = self.functions.constant(dtype, dtype.scalar.as_const(0))
            return
        if dtype.count == 1:
            text = self.places(place, 1)[0]
            if len(place.src) == 3:
                zero = self.functions.constant(dtype, dtype.scalar.as_const(0))
                text = f"{self.values[place.src[2]]} ? {text} : {zero}"
            self.values[node] = self.emit("v", dtype, text)
            return
        stored = dtypes.uint8.vec(dtype.count) if dtype.is_bool else dtype
        value = self.emit("v", stored, self.loaded_vector(place, stored))
        if dtype.is_bool:
            value = self.emit_mask(dtype.count, 1, f"{value} != 0")
        self.values[node] = value

    def loaded_vector(self, place: UOp, dtype: DType) -> str:
        """The lanes at an address or at several, zero where the condition does not hold."""
        count, kind = dtype.count, self.functions.type(dtype)
        side_by_side = place.src[1].dtype.count == 1
        one_condition = len(place.src) == 3 and place.src[2].dtype.count == 1
        whole = side_by_side and padded(count) == count and (one_condition or len(place.src) == 2)
        if whole:
            address = f"&{self.places(place, 1)[0]}"
            text = f"({kind})*(const {self.functions.unaligned(dtype)} *)({address})"
            return f"{self.values[place.src[2]]} ? {text} : ({kind}){{0}}" if one_condition else text
        items = self.places(place, count)
        if len(place.src) == 3:
            items = [f"{c} ? {i} : 0" for c, i in zip(self.conditions(place, count), items, strict=True)]
        return f"({kind}){{{', '.join(items)}}}"

    def store(self, node: UOp) -> None:
        place, source = node.src
        value, dtype = self.values[source], source.dtype
        count = dtype.count
        if place.op is Ops.REGISTER:
            self.line(f"{self.values[place]} = {self.mask(value, count, 1) if dtype.is_bool else value};")
            return
        masked = len(place.src) == 3
        side_by_side = place.src[1].dtype.count == 1
        one_condition = masked and place.src[2].dtype.count == 1
        branch = f"if ({self.values[place.src[2]]}) " if one_condition else ""
        if count > 1 and dtype.is_bool:
            dtype = dtypes.uint8.vec(count)
            value = self.emit("bytes", dtype, f"({self.functions.type(dtype)})-{self.mask(value, count, 1)}")
        if count > 1 and side_by_side and padded(count) == count and (one_condition or not masked):
            kind = self.functions.unaligned(dtype)
            self.line(f"{branch}*({kind} *)(&{self.places(place, 1)[0]}) = {value};")
            return
        conditions = self.conditions(place, count) if masked else []
        for lane, item in enumerate(self.places(place, count)):
            branch = f"if ({conditions[lane]}) " if masked else ""
            self.line(f"{branch}{item} = {f'{value}[{lane}]' if count > 1 else value};")

    # --- lanes -----------------------------------------------------------------------------------------

    def vectorize(self, node: UOp) -> None:
        dtype, sources = node.dtype, [self.values[s] for s in node.src]
        lane = signed_of(4).vec(dtype.count) if dtype.is_bool else dtype
        if dtype.is_bool:
            sources = [f"-{s}" for s in sources]
        if len(sources) == 1:
            text = f"{self.functions.splat(lane)}({sources[0]})"
        else:
            text = f"({self.functions.type(lane)}){{{', '.join(sources)}}}"
        self.values[node] = self.emit_mask(dtype.count, 4, text) if dtype.is_bool else \
            self.emit("v", dtype, text)

    def shuffle(self, node: UOp) -> None:
        """Lanes picked from two vectors side by side; one by one where the type has lanes nobody reads."""
        dtype, count, given = node.dtype, node.dtype.count, node.src[0].dtype.count
        first, second = (self.values[s] for s in node.src)
        width = self.common_width(first, second)
        if dtype.is_bool:
            first, second = self.mask(first, given, width), self.mask(second, given, width)
        lane = signed_of(width).vec(count) if dtype.is_bool else dtype
        if padded(count) == count and padded(given) == given:
            text = f"__builtin_shufflevector({first}, {second}, {', '.join(map(str, node.arg))})"
        else:
            items = (f"({first if i < given else second})[{i % given}]" for i in node.arg)
            text = f"({self.functions.type(lane)}){{{', '.join(items)}}}"
        self.values[node] = self.emit_mask(count, width, text) if dtype.is_bool else \
            self.emit("v", dtype, text)

    def extract(self, node: UOp) -> None:
        self.values[node] = self.lane_of(self.values[node.src[0]], node.src[0].dtype, node.arg)

    def lane_of(self, vector: str, dtype: DType, lane: int) -> str:
        return self.emit("lane", dtype.scalar, f"({vector})[{lane}]")

    def some_lanes(self, vector: str, dtype: DType, start: int, count: int) -> str:
        if count == 1:
            return self.lane_of(vector, dtype, start)
        width = self.widths.get(vector, 1)
        part = signed_of(width).vec(count) if dtype.is_bool else dtype.scalar.vec(count)
        lanes = ", ".join(f"({vector})[{i}]" for i in range(start, start + count))
        text = f"({self.functions.type(part)}){{{lanes}}}"
        return self.emit_mask(count, width, text) if dtype.is_bool else self.emit("part", part, text)

    # --- elementwise -----------------------------------------------------------------------------------

    def compute(self, node: UOp) -> None:
        self.values[node] = self.elementwise(node, [self.values[s] for s in node.src])
        if not self.values[node]:
            self.refuse(node)


CWriter.statements = {
    **dict.fromkeys((Ops.PARAM, Ops.VARIABLE, Ops.SCRATCH), CWriter.argument),
    **dict.fromkeys(Family.ELEMENTWISE - Family.ELEMENTARY, CWriter.compute),
    Ops.CONST: CWriter.const,
    Ops.REGISTER: CWriter.register,
    Ops.SHARED: CWriter.shared,
    Ops.SPECIAL: CWriter.special,
    Ops.BARRIER: CWriter.barrier,
    Ops.RANGE: CWriter.open_loop,
    Ops.END: CWriter.close_loop,
    Ops.INDEX: CWriter.index,
    Ops.LOAD: CWriter.load,
    Ops.STORE: CWriter.store,
    Ops.VECTORIZE: CWriter.vectorize,
    Ops.SHUFFLE: CWriter.shuffle,
    Ops.EXTRACT: CWriter.extract,
    Ops.REDUCE: CWriter.reduce,
}
