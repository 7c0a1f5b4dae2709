"""A function of one value that a program calls: what a kernel has in many places, written down once."""
from __future__ import annotations

from tinygrad.frozen import frozen
from tinygrad.graph.uop import UOp


@frozen
class CalledFunction:
    """`body`, elementwise over `parameter` (a REGISTER) and constants, in operations that the device has."""

    name: str
    parameter: UOp
    body: UOp
