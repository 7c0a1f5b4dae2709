"""Linear programs in the C dialects of GPUs: OpenCL C, CUDA, HIP, Metal.

A kernel is one function, run by every thread of every block of a grid: its arguments are the buffers and the
variables that the program uses, where a thread is say the SPECIAL indices. Programs come with single values
in registers (`scalar.py`); vectors are what a wide access moves. Everything else is as in `c.py`.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer import STATIC_SHARED_BYTES, Native, Renderer
from tinygrad.renderer.c import CWriter
from tinygrad.renderer.c_functions import Dialect
from tinygrad.renderer.launch import SHARED_ALIGNMENT, shared_bytes_of
from tinygrad.renderer.machine import Machine, blocks


class BlocksRenderer(Renderer):
    """A dialect, on a machine that can do as much of it as the dialect has words for."""

    def __init__(self, dialect: Dialect, machine: Machine | None = None) -> None:
        self.dialect = dialect
        self.name = dialect.name  # type: ignore[misc]  # of the instance: each dialect has its own
        self.machine = replace(machine or blocks(), longest_access=dialect.longest_access,
                               has_exchange=bool(dialect.exchange),
                               has_async_copies=bool(dialect.async_copy))

    @property
    def native(self) -> Native:
        return self.dialect.native

    def render(self, name: str, program: list[UOp]) -> str:
        self.check(name, program)
        dialect = self.dialect
        if counts_in_32_bits(program):
            dialect = replace(dialect, types={**dialect.types, dtypes.index: dialect.types[dtypes.int32]})
        return self.writer(name, program, dialect).module()

    def writer(self, name: str, program: list[UOp], dialect: Dialect) -> BlockWriter:
        """What writes a kernel of this device."""
        return BlockWriter(name, program, dialect)


_WITHOUT_VALUE = (Ops.BARRIER, Ops.END, Ops.COMMIT, Ops.WAIT)
"""Statements that count nothing."""


def counts_in_32_bits(program: list[UOp]) -> bool:
    """Whether every index that a program computes is known to fit 32 bits, which a GPU computes with faster
    than with 64."""
    bounds = (n.bounds for n in program if n.dtype is dtypes.index and n.op not in _WITHOUT_VALUE)
    return all(lowest >= -2**31 and highest < 2**31 for lowest, highest in bounds)


def loops_around(program: list[UOp], wanted: Callable[[UOp], bool]) -> set[UOp]:
    """The loops in which such statements are. A compiler that writes out a few rounds of a product of 128
    accumulators takes three seconds."""
    opened: list[UOp] = []
    found: set[UOp] = set()
    for node in program:
        if node.op is Ops.RANGE:
            opened.append(node)
        elif node.op is Ops.END:
            opened.pop()
        elif wanted(node):
            found.update(opened)
    return found


class BlockWriter(CWriter):
    """Writes one kernel for the threads of a grid."""

    statements: ClassVar[dict[Ops, Callable[[Any, UOp], None]]]
    large_bytes = 0
    """of `large_shared`, given to arrays"""
    rolled: set[UOp]
    """loops that compilers shall not write out"""

    def module(self) -> str:
        self.rolled = loops_around(self.program, lambda n: n.op is Ops.MMA and bool(n.arg.in_shared))
        self.name_arguments()
        for node in self.scratch:
            self.declare(node, "", node.arg[1])
        for node in self.program:
            self.statements.get(node.op, CWriter.refuse)(self, node)
        functions, dialect = self.functions, self.dialect
        head = f"{dialect.kernel} void {self.name}({self.parameters()}) {{"
        parts = ([dialect.header], functions.types.values(), functions.texts.values(),
                 [head, *self.declarations, *self.lines, "}"])
        return "\n\n".join(["\n".join(part) for part in parts if any(part)]) + "\n"

    def parameters(self) -> str:
        dialect = self.dialect
        given = [dialect.buffer.format(type=self.functions.memory(n.dtype), name=self.values[n], slot=i)
                 for i, n in enumerate(self.buffers)]
        given += [dialect.variable.format(name=self.values[n], slot=len(self.buffers) + i)
                  for i, n in enumerate(self.variables)]
        return ", ".join([*given, *([dialect.extra_arguments] if dialect.extra_arguments else [])])

    def declare(self, node: UOp, before: str, items: int) -> None:
        """An array in shared or private memory."""
        text = f"{self.functions.memory(node.dtype)} {self.values[node]}[{items}];"
        self.declarations.append(f"    {before} {text}" if before else f"    {text}")

    def shared(self, node: UOp) -> None:
        """Rounded up so that each array begins where a wide access may."""
        if node in self.values:
            return
        self.values[node] = f"shared{node.arg[0]}"
        whole = SHARED_ALIGNMENT // node.dtype.itemsize
        items = round_up(node.arg[1], whole)
        total = shared_bytes_of(self.program)
        if total <= STATIC_SHARED_BYTES or not self.dialect.large_shared:
            self.declare(node, self.dialect.shared, items)
            return
        if not self.large_bytes:
            self.declarations.append(f"    {self.dialect.large_shared.format(bytes=total)}")
        kind = self.functions.memory(node.dtype)
        self.declarations.append(f"    {kind} *const {self.values[node]} = reinterpret_cast<{kind} *>("
                                 f"large_shared + {self.large_bytes});")
        self.large_bytes += items * node.dtype.itemsize

    def open_loop(self, node: UOp) -> None:
        if node.kind is not RangeKind.LOOP:
            raise ValueError(f"kernel {self.name}: a range of kind {node.arg[1].name} is no loop of a thread "
                             f"({node})")
        if node in self.rolled:
            self.line("#pragma unroll 1")
        super().open_loop(node)

    # --- wide accesses --------------------------------------------------------------------------------------

    def vector(self, dtype: DType) -> str:
        """The type of what a wide access moves."""
        return self.dialect.vector_type.format(scalar=self.functions.memory(dtype), count=dtype.count)

    def load(self, node: UOp) -> None:
        place, dtype = node.src[0], node.dtype
        if dtype.count == 1 or place.op is Ops.REGISTER:
            super().load(node)
            return
        vector, address = self.vector(dtype), f"&{self.places(place, 1)[0]}"
        text = self.dialect.vector_load.format(count=dtype.count, vector=vector, address=address,
                                               scalar=self.functions.memory(dtype))
        if len(place.src) == 3:
            zero = self.functions.constant(dtype.scalar, dtype.scalar.as_const(0))
            nothing = self.dialect.make_vector.format(vector=vector, items=", ".join([zero] * dtype.count))
            text = f"{self.values[place.src[2]]} ? {text} : {nothing}"
        self.values[node] = name = self.fresh("wide")
        self.line(f"const {vector} {name} = {text};")

    def extract(self, node: UOp) -> None:
        vector, lane = self.values[node.src[0]], node.arg
        text = self.dialect.lane.format(vector=vector, lane=lane, letter="xyzw"[lane:lane + 1])
        self.values[node] = self.emit("v", node.dtype, text)

    def vectorize(self, node: UOp) -> None:
        self.values[node] = self.dialect.make_vector.format(
            vector=self.vector(node.dtype), items=", ".join(self.values[s] for s in node.src))

    def exchange(self, node: UOp) -> None:
        if not self.dialect.exchange:
            self.refuse(node)
        text = self.dialect.exchange.format(value=self.values[node.src[0]], distance=node.arg)
        self.values[node] = self.emit("v", node.dtype, text)

    def prefetch(self, node: UOp) -> None:
        target, source = node.src
        valid = self.values[source.src[2]] if len(source.src) == 3 else "true"
        self.line(self.dialect.async_copy.format(
            bytes=node.dtype.itemsize, target=f"&{self.places(target, 1)[0]}", valid=valid,
            source=f"&{self.places(source, 1)[0]}"))

    def commit(self, node: UOp) -> None:
        self.line(self.dialect.commit)

    def wait(self, node: UOp) -> None:
        self.line(self.dialect.wait.format(groups=node.arg))

    def matrix_product(self, node: UOp) -> None:
        unit = node.arg
        if unit.name not in self.dialect.matrix_units:
            self.refuse(node)
        self.functions.texts[unit.name] = self.dialect.matrix_units[unit.name]
        self.values[node] = name = self.fresh("tile")
        tiles = ", ".join(f"&{self.places(s, 1)[0]}" if s.op is Ops.INDEX else self.values[s]
                          for s in node.src[:3])
        self.line(f"const {self.vector(node.dtype)} {name} = {unit.name}({tiles});")

    def store(self, node: UOp) -> None:
        place, source = node.src
        if source.dtype.count == 1 or place.op is Ops.REGISTER:
            super().store(node)
            return
        dtype = source.dtype
        branch = f"if ({self.values[place.src[2]]}) " if len(place.src) == 3 else ""
        self.line(branch + self.dialect.vector_store.format(
            count=dtype.count, vector=self.vector(dtype), value=self.values[source],
            address=f"&{self.places(place, 1)[0]}", scalar=self.functions.memory(dtype)))


BlockWriter.statements = {
    **CWriter.statements,
    Ops.LOAD: BlockWriter.load,
    Ops.STORE: BlockWriter.store,
    Ops.EXTRACT: BlockWriter.extract,
    Ops.VECTORIZE: BlockWriter.vectorize,
    Ops.MMA: BlockWriter.matrix_product,
    Ops.EXCHANGE: BlockWriter.exchange,
    Ops.PREFETCH: BlockWriter.prefetch,
    Ops.COMMIT: BlockWriter.commit,
    Ops.WAIT: BlockWriter.wait,
    Ops.SHARED: BlockWriter.shared,
    Ops.RANGE: BlockWriter.open_loop,
}
"""What of `c.py` is written otherwise."""
del BlockWriter.statements[Ops.SHUFFLE], BlockWriter.statements[Ops.REDUCE]
