"""The nest in operations that the device has.

In: a nest with nothing left to expand. Out: the same values made of operations that the renderer can write:
elementary functions as polynomials, casts that a device would round twice as casts that it rounds once.
"""
from __future__ import annotations

from tinygrad.codegen.sine32 import elementary_functions_in_32_bits
from tinygrad.codegen.transcendental import elementary_functions, natural_logarithms
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Renderer

FLOAT64_DIGITS = 53


def _bfloat16_of_wide_integer(x: UOp, whole: UOp) -> UOp | None:
    """Through float64, which a device rounds to bfloat16 once. Integers of more digits than float64 has are
    first rounded to odd, in place of the 11 bits that it has no room for: what was lost still shows."""
    if x.dtype.scalar not in (dtypes.int64, dtypes.uint64) or whole.dtype.scalar is not dtypes.bfloat16:
        return None
    beyond = 64 - FLOAT64_DIGITS
    is_inexact = (x & ((1 << beyond) - 1)).ne(0)
    odd = ((x >> beyond) | is_inexact.where(x._operand(1), 0)) << beyond
    top = x >> FLOAT64_DIGITS
    fits = top.eq(0) | (top + 1).eq(0)
    return fits.where(x, odd).cast(dtypes.float64.vec(x.dtype.count)).cast(whole.dtype)


casts = RewriteTable("casts that round once", [
    Rule("64-bit integers to bfloat16", node(Ops.CAST, any_node("x"), name="whole"),
         _bfloat16_of_wide_integer),
])


def to_device_primitives(nest: UOp, renderer: Renderer) -> UOp:
    """The nest in operations that `renderer` writes."""
    narrow = dtypes.float64 in renderer.missing
    functions = elementary_functions_in_32_bits if narrow else elementary_functions
    return rewrite(rewrite(nest, natural_logarithms + casts), functions)
