"""Linear programs as Python text: one call for each operation, of what `runtime/python.py` defines.

The kernel `NAME(buffers, variables, begin, end)` runs the blocks of its grid one after another. A value that
differs between the threads of a block is an array with one row a thread; the text is the same for one thread
and for many.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinygrad.dtype import DType
from tinygrad.graph.ops import Family, Ops, RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.renderer import Native, Renderer
from tinygrad.renderer.machine import NARROW_FLOATS, Machine
from tinygrad.renderer.matrix_units import UNITS


class PythonRenderer(Renderer):
    """Python text, each operation a call; vectors are as long as the smallest that plans make use of."""

    name = "Python"

    def __init__(self, has_blocks: bool = False, model: Renderer | None = None) -> None:
        """`model`: a renderer of the device whose blocks, matrix units and copies this one has."""
        self.model = model
        small = Machine(has_blocks=has_blocks, has_exchange=has_blocks, block_threads=16, warp_threads=4)
        offered = small if model is None else model.machine
        self.machine = replace(offered, longest_access=16, vector_items=4, registers=16, contracts=True,
                               missing=frozenset(), grid_limits=small.grid_limits)

    @property
    def native(self) -> Native:
        """All; with a model, what that has, so that its programs are those that run here."""
        return Native(conversions=NARROW_FLOATS) if self.model is None else self.model.native

    def render(self, name: str, program: list[UOp]) -> str:
        return _Writer(name, program, self.machine.warp_threads).module()


class _Writer:
    """Writes one kernel, statement by statement. `values` has the Python expression that each node now is."""

    def __init__(self, name: str, program: list[UOp], warp_threads: int) -> None:
        self.name = name
        self.warp_threads = warp_threads
        self.program = program
        self.values: dict[UOp, str] = {}
        self.operations: dict[str, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.number = 0
        nodes = dict.fromkeys(program)
        self.specials = sorted((n for n in nodes if n.op is Ops.SPECIAL), key=lambda n: str(n.arg[0]))
        self.threads = int(prod(n.arg[1] for n in self.specials if n.arg[0].startswith("l")))
        self.variables = [n for n in nodes if n.op is Ops.VARIABLE]
        self.shared = [n for n in nodes if n.op is Ops.SHARED]

    def module(self) -> str:
        """The whole text: the operations that are used, and the kernel."""
        for node in dict.fromkeys(n for n in self.program if n.op is Ops.PARAM):
            slot, count = node.arg
            self.values[node] = f"p{slot}"
            self.line(f'p{slot} = Items("p{slot}", dtypes.{node.dtype.name}, {count}, '
                      f'address=buffers[{slot}])')
        for position, node in enumerate(self.variables):
            self.values[node] = f"n{position}"
            self.line(f"n{position} = variables[{position}]  # {node.arg[0]}")
        self.place_in_grid()
        for node in dict.fromkeys(n for n in self.program if n.op in (Ops.SCRATCH, Ops.SHARED)):
            kind, letter = ("Items", "s") if node.op is Ops.SCRATCH else ("SharedItems", "shared")
            self.values[node] = f"{letter}{node.arg[0]}"
            self.line(f'{self.values[node]} = {kind}("{self.values[node]}", dtypes.{node.dtype.name}, '
                      f'{node.arg[1]}, {self.threads})')
        for node in self.program:
            _STATEMENTS.get(node.op, _Writer.refuse)(self, node)
        head = [f"{name} = {text}" for name, text in self.operations.items()]
        return "\n".join([*head, "", f"def {self.name}(buffers, variables, begin, end):", *self.lines,
                          "    return", ""])

    def place_in_grid(self) -> None:
        """A loop over the blocks, and every thread's number."""
        apart = 1
        for node in self.specials:
            name, size = node.arg
            self.values[node] = name
            if name.startswith("g"):
                self.line(f"for {name} in counted(0, {size}):")
                self.depth += 1
        for node in self.specials:
            name, size = node.arg
            if name.startswith("l"):
                self.line(f"{name} = np.arange({self.threads})[:, None] // {apart} % {size}")
                apart *= size

    def refuse(self, node: UOp) -> None:
        raise ValueError(f"kernel {self.name}: PYTHON cannot say {node.op.name} of {node.dtype} ({node})")

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def emit(self, node: UOp, expression: str) -> None:
        name = f"v{self.number}"
        self.number += 1
        self.line(f"{name} = {expression}")
        self.values[node] = name

    def declared(self, node: UOp) -> None:
        """Written before the first statement."""

    def const(self, node: UOp) -> None:
        if node not in self.values:
            self.values[node] = f"c{len(self.operations)}"
            dtype = f"dtypes.{node.dtype.name}.vec({node.dtype.count})"
            self.operations[self.values[node]] = f"constant({dtype}, {_literal(node.arg)})"

    def register(self, node: UOp) -> None:
        self.values.setdefault(node, f"acc{len(self.values)}")

    def open_loop(self, node: UOp) -> None:
        kind, extent = node.arg[1], self.values[node.src[0]]
        if kind not in (RangeKind.LOOP, RangeKind.THREAD):
            raise ValueError(f"kernel {self.name}: a range of kind {kind.name} is no loop ({node})")
        name = f"i{self.number}"
        self.number += 1
        begin, end = "0", extent
        if kind is RangeKind.THREAD:
            begin, end = "begin", f"min(end, {extent})"
            if node.src[0].op is not Ops.CONST and not node.src[0].ranges:
                begin, end = (f"{name} * ({extent}) // {node.extent}" for name in ("begin", "end"))
        if len(node.src) == 3:
            begin, end = self.values[node.src[1]], self.values[node.src[2]]
        self.line(f"for {name} in counted({begin}, {end}):")
        self.depth += 1
        self.line("pass")
        self.values[node] = name

    def close_loop(self, node: UOp) -> None:
        self.depth -= 1

    def barrier(self, node: UOp) -> None:
        for memory in self.shared:
            self.line(f"{self.values[memory]}.barrier()")

    def index(self, node: UOp) -> None:
        """An address is said where it is used."""

    def access(self, place: UOp, lanes: int, value: str = "") -> str:
        """The arguments of a load or store."""
        given = [self.values[place.src[1]], str(lanes)]
        given += [value] if value else []
        given += [self.values[place.src[2]]] if len(place.src) == 3 else []
        return ", ".join(given)

    def load(self, node: UOp) -> None:
        place = node.src[0]
        if place.op is Ops.REGISTER:
            self.emit(node, self.values[place])
        else:
            self.emit(node, f"{self.values[place.src[0]]}.load({self.access(place, node.dtype.count)})")

    def store(self, node: UOp) -> None:
        place, source = node.src
        value = self.values[source]
        if place.op is Ops.REGISTER:
            self.line(f"{self.values[place]} = {value}")
        else:
            self.line(f"{self.values[place.src[0]]}.store({self.access(place, source.dtype.count, value)})")

    def vectorize(self, node: UOp) -> None:
        sources = [self.values[s] for s in node.src]
        if len(sources) == 1:
            self.emit(node, f"in_every_lane({sources[0]}, {node.dtype.count})")
        else:
            self.emit(node, f"side_by_side({', '.join(sources)})")

    def shuffle(self, node: UOp) -> None:
        first, second = (self.values[s] for s in node.src)
        self.emit(node, f"shuffled({first}, {second}, {list(node.arg)})")

    def extract(self, node: UOp) -> None:
        self.emit(node, f"lane({self.values[node.src[0]]}, {node.arg})")

    def reduce(self, node: UOp) -> None:
        function = self.operation(node.arg, node.dtype, node.dtype)
        self.emit(node, f"reduced({function}, {self.values[node.src[0]]})")

    def prefetch(self, node: UOp) -> None:
        target, source = node.src
        found = f"{self.values[source.src[0]]}.load({self.access(source, node.dtype.count)})"
        self.line(f"{self.values[target.src[0]]}.prefetch({self.access(target, node.dtype.count, found)})")

    def commit(self, node: UOp) -> None:
        for memory in self.shared:
            self.line(f"{self.values[memory]}.commit()")

    def wait(self, node: UOp) -> None:
        for memory in self.shared:
            self.line(f"{self.values[memory]}.wait({node.arg})")

    def exchange(self, node: UOp) -> None:
        self.emit(node, f"exchanged({self.values[node.src[0]]}, {node.arg}, {self.warp_threads})")

    def matrix_product(self, node: UOp) -> None:
        unit = f"unit{UNITS.index(node.arg)}"
        self.operations[unit] = f"UNITS[{UNITS.index(node.arg)}]"
        tiles = ", ".join(f"{self.values[s.src[0]]}.tiles({unit}, {number}, {self.values[s.src[1]]})"
                          if s.op is Ops.INDEX else self.values[s] for number, s in enumerate(node.src[:3]))
        self.emit(node, f"matrix_product({unit}, {tiles}, {self.threads})")

    def operation(self, op: Ops, source: DType, target: DType) -> str:
        """The name of an operation; the text begins with what it stands for."""
        name = f"{op.name}_{source.name}" + (f"_{target.name}" if source.scalar is not target.scalar else "")
        self.operations[name] = f"operation(Ops.{op.name}, dtypes.{source.name}, dtypes.{target.name})"
        return name

    def lookup(self, node: UOp) -> None:
        self.emit(node, f"looked_up({self.values[node.src[0]]}, {node.arg!r})")

    def compute(self, node: UOp) -> None:
        function = self.operation(node.op, node.src[-1].dtype, node.dtype)
        self.emit(node, f"{function}({', '.join(self.values[s] for s in node.src)})")


def _literal(value: Any) -> str:
    """A constant's argument as Python text."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))},)"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


_STATEMENTS: dict[Ops, Callable[[_Writer, UOp], None]] = {
    **dict.fromkeys((Ops.PARAM, Ops.VARIABLE, Ops.SCRATCH, Ops.SHARED, Ops.SPECIAL), _Writer.declared),
    **dict.fromkeys(Family.ELEMENTWISE - Family.ELEMENTARY, _Writer.compute),
    Ops.LOOKUP: _Writer.lookup,
    Ops.CONST: _Writer.const,
    Ops.REGISTER: _Writer.register,
    Ops.RANGE: _Writer.open_loop,
    Ops.END: _Writer.close_loop,
    Ops.BARRIER: _Writer.barrier,
    Ops.INDEX: _Writer.index,
    Ops.LOAD: _Writer.load,
    Ops.STORE: _Writer.store,
    Ops.VECTORIZE: _Writer.vectorize,
    Ops.SHUFFLE: _Writer.shuffle,
    Ops.EXTRACT: _Writer.extract,
    Ops.REDUCE: _Writer.reduce,
    Ops.MMA: _Writer.matrix_product,
    Ops.EXCHANGE: _Writer.exchange,
    Ops.PREFETCH: _Writer.prefetch,
    Ops.COMMIT: _Writer.commit,
    Ops.WAIT: _Writer.wait,
}
