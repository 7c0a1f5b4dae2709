"""The nest in operations that the device has.

In: a nest with nothing left to expand. Out: the same values made of operations that the renderer can write:
elementary functions as polynomials, conversions of floats that the device does not do itself as operations on
their bits.
"""
from __future__ import annotations

import functools
from collections import Counter

from tinygrad.codegen.numerics import numerics_for
from tinygrad.codegen.sine32 import elementary_functions_in_32_bits
from tinygrad.codegen.transcendental import elementary_functions, natural_logarithms, power
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.elementary import argument_of_exponential
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Native, Renderer
from tinygrad.renderer.called_function import CalledFunction
from tinygrad.renderer.machine import WIDE_FLOATS


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


MOST_IN_PLACE = 4
"""Powers of one dtype that a kernel has in place. Each is 22 operations; a tile of accumulators under a SiLU
has twelve, a third of the kernel's text, beside hundreds of products that run for each of them."""

byte_dots = RewriteTable("dot products of bytes", [
    Rule("sum", node(Ops.ADD, any_node("a"), any_node("b"), name="total"), _with_byte_dot),
])


@graph_pass("device primitives")
def to_device_primitives(nest: UOp, renderer: Renderer) -> UOp:
    """The nest in operations that `renderer` writes. Elementary functions are known by their arguments, which
    stay as they are until then."""
    has_float64 = dtypes.float64 not in renderer.machine.missing
    functions = elementary_functions if has_float64 else elementary_functions_in_32_bits
    if renderer.calls_functions:
        nest = with_calls(nest, renderer.native)
    for table in (natural_logarithms + byte_dots, functions, numerics_for(renderer.native)):
        nest = rewrite(nest, table)
    return nest


def with_calls(nest: UOp, native: Native) -> UOp:
    """The nest with CALLs in place of the powers of e and 2 of those dtypes of which it has many."""
    powers = [n for n in nest.toposort() if n.op is Ops.EXP2 and n.dtype.scalar in WIDE_FLOATS]
    many = {dtype for dtype, count in Counter(n.dtype for n in powers).items() if count > MOST_IN_PLACE}
    if not many:
        return nest

    def called(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is not Ops.EXP2 or node.dtype not in many:
            return node.with_sources(src)
        natural = argument_of_exponential(src[0])
        function = power_function(natural is not None, node.dtype, native)
        return UOp.new(Ops.CALL, node.dtype, (src[0] if natural is None else natural,), function)

    return nest.rebuild(called)


@functools.cache
def power_function(is_natural: bool, dtype: DType, native: Native) -> CalledFunction:
    """e**x, or 2**x."""
    x = UOp.new(Ops.REGISTER, dtype, (), "x")
    body = rewrite(power(x, is_natural), numerics_for(native))
    return CalledFunction("exp" if is_natural else "exp2", x, body)
