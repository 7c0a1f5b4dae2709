"""A function of one value that a program calls: what a kernel has in many places, written down once."""
from __future__ import annotations

from dataclasses import dataclass

from tinygrad.graph.uop import UOp


@dataclass(frozen=True)
class CalledFunction:
    """`body`, elementwise over `parameter` (a REGISTER) and constants, in operations that the device has."""

    name: str
    parameter: UOp
    body: UOp
