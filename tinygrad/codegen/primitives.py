"""The nest in operations that the device has.

In: a nest with nothing left to expand. Out: the same values made of operations that the renderer can write:
elementary functions as polynomials, casts that a device would round twice as casts that it rounds once.
"""
from __future__ import annotations

from tinygrad.codegen.sine32 import elementary_functions_in_32_bits
from tinygrad.codegen.transcendental import elementary_functions, natural_logarithms
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Renderer

DIGITS_TO_ROUND = 10
"""What is rounded to bfloat16 as if it were the number itself: its 8 digits, the next one, and an odd one."""


def _rounded_to_odd(x: UOp, digits: int) -> UOp:
    """64-bit integers as integers of no more than `digits` digits up to the last 1: from those that have more
    some of the last are taken off, and the next made odd if there was a 1 among them, so that it still
    shows."""
    result, room = x, digits
    while room < 64:
        taken = min(room - DIGITS_TO_ROUND, 64 - digits)
        is_inexact = (x & ((1 << taken) - 1)).ne(0)
        odd = ((x >> taken) | is_inexact.where(x._operand(1), 0)) << taken
        top = x >> room
        result = (top.eq(0) | (top + 1).eq(0)).where(result, odd)
        room = taken + digits
    return result


def _casts(name: str, wide: DType) -> RewriteTable:
    """64-bit integers go to bfloat16 through `wide`, float32 or float64, which a device rounds to it once."""
    digits = dtypes.finfo(wide)[1] + 1

    def bfloat16_of_wide_integer(x: UOp, whole: UOp) -> UOp | None:
        if x.dtype.scalar not in (dtypes.int64, dtypes.uint64) or whole.dtype.scalar is not dtypes.bfloat16:
            return None
        return _rounded_to_odd(x, digits).cast(wide.vec(x.dtype.count)).cast(whole.dtype)

    return RewriteTable(name, [
        Rule("64-bit integers to bfloat16", node(Ops.CAST, any_node("x"), name="whole"),
             bfloat16_of_wide_integer),
    ])


def _with_byte_dot(total: UOp, a: UOp, b: UOp) -> UOp | None:
    """A sum with a dot product of bytes, which adds it up itself."""
    if Ops.DP4A not in (a.op, b.op):
        return None
    return _added(a, b) if b.op is Ops.DP4A else _added(b, a)


def _added(x: UOp, to: UOp) -> UOp:
    if to.op is Ops.DP4A:
        return to.replace(src=(*to.src[:2], _added(x, to.src[2])))
    is_nothing = to.op is Ops.CONST and to.arg == 0
    return x if is_nothing else UOp.new(Ops.ADD, x.dtype, (x, to))


byte_dots = RewriteTable("dot products of bytes", [
    Rule("sum", node(Ops.ADD, any_node("a"), any_node("b"), name="total"), _with_byte_dot),
])
casts = _casts("casts that round once", dtypes.float64)
casts_in_32_bits = _casts("casts that round once without float64", dtypes.float32)


@graph_pass("device primitives")
def to_device_primitives(nest: UOp, renderer: Renderer) -> UOp:
    """The nest in operations that `renderer` writes."""
    narrow = dtypes.float64 in renderer.machine.missing
    functions = elementary_functions_in_32_bits if narrow else elementary_functions
    nest = rewrite(nest, natural_logarithms + (casts_in_32_bits if narrow else casts) + byte_dots)
    return rewrite(nest, functions)
