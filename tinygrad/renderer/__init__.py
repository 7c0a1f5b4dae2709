"""From a linear program to the text that a device's compiler takes.

In: a list of UOps in the order in which they run (`graph/spec.py`, stage `program`). Out: source text: LLVM
IR, C and its dialects for GPUs, WGSL, or Python, each in a module of its name. What the device offers that a
program is for is the renderer's `Machine`. Next on the path: `runtime/`.
"""
from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.helpers import round_up
from tinygrad.renderer.machine import WIDE_FLOATS, Machine

SCRATCH_ALIGNMENT = 64
"""Bytes to which scratch arrays are aligned."""
STATIC_SHARED_BYTES = 48 << 10
"""What a block of an NVIDIA GPU may share without having asked for more when it is launched."""


@frozen
class Native:
    """What a device does with floats by itself; the rest `codegen/numerics.py` makes of other operations."""

    conversions: frozenset[DType] = frozenset()
    """narrow floats that it casts to and from float32"""
    fused: frozenset[DType] = WIDE_FLOATS
    """types of which it adds a product rounded once (MULACC)"""
    scaling: frozenset[int] = frozenset()
    """bytes of the values, all lanes together, that it multiplies by powers of two (LDEXP)"""


def same_in_every_lane(node: UOp) -> int | None:
    """The number that an integer is in all its lanes, if it is a constant."""
    if node.op is Ops.VECTORIZE and len(node.src) == 1:
        return same_in_every_lane(node.src[0])
    if node.op is not Ops.CONST:
        return None
    lanes = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    return int(lanes[0]) if all(x == lanes[0] for x in lanes) else None


class Renderer(ABC):
    """Writes programs in one language, for one machine."""

    name: ClassVar[str]
    """of the language"""
    machine: Machine
    """what the device offers: plans are chosen by it"""

    calls_functions: ClassVar[bool] = False
    """whether it writes CALLs"""

    @property
    def native(self) -> Native:
        """What of conversions and functions of floats the device does by itself."""
        return Native()

    def __repr__(self) -> str:
        return f"{self.name}, {self.machine}"

    def supported_dtypes(self) -> set[DType]:
        """The dtypes that kernels compute with on this device."""
        return set(dtypes.all) - self.machine.missing

    @abstractmethod
    def render(self, name: str, program: list[UOp]) -> str:
        """The source text of a kernel called `name`.

        Raises ValueError for a node that this language cannot say, naming the node.
        """

    def check(self, name: str, program: list[UOp]) -> None:
        """Raises ValueError for a name that languages do not take, and for a dtype that the device lacks."""
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise ValueError(f"{name!r} cannot be a kernel's name: a letter, then letters, digits and _ only")
        for node in program:
            if node.dtype.scalar in self.machine.missing:
                raise ValueError(f"this {self.name} device has no {node.dtype.scalar.name}; CPU, CPU:C and "
                                 "PYTHON do. Move the tensor there, t.to(\"CPU\"), or cast it, t.float()")

    def scratch_bytes(self, program: list[UOp]) -> int:
        """The bytes of scratch memory that a program needs for each thread."""
        return sum(round_up(n.arg[1] * n.dtype.itemsize, SCRATCH_ALIGNMENT)
                   for n in program if n.op is Ops.SCRATCH)
