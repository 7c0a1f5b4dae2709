"""The nest in operations that the device has.

In: a nest with nothing left to expand. Out: the same values made of operations that the renderer can write:
elementary functions as polynomials, random bits as the rounds of a cipher, conversions of floats that the
device does not do itself as operations on their bits.
"""
from __future__ import annotations

import functools

from tinygrad.codegen.numerics import numerics_for
from tinygrad.codegen.outline import outlined
from tinygrad.codegen.sine32 import elementary_functions_in_32_bits
from tinygrad.codegen.threefry import random_bits
from tinygrad.codegen.transcendental import elementary_functions, natural_logarithms
from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import graph_pass
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Renderer


def _added(x: UOp, to: UOp) -> UOp:
    """A sum with a dot product of bytes, which adds it up itself."""
    if to.op is Ops.DP4A:
        return to.replace(src=(*to.src[:2], _added(x, to.src[2])))
    return x if to.is_zero else UOp.new(Ops.ADD, x.dtype, (x, to))


byte_dots = RewriteTable("dot products of bytes", [
    Rule("sum", node(Ops.ADD, any_node("x"), node(Ops.DP4A, name="to")), _added),
])


@graph_pass("device primitives")
def to_device_primitives(nest: UOp, renderer: Renderer) -> UOp:
    """The nest in operations that `renderer` writes. Elementary functions are known by their arguments, which
    stay as they are until then."""
    has_float64 = dtypes.float64 not in renderer.machine.missing
    functions = elementary_functions if has_float64 else elementary_functions_in_32_bits
    tables = natural_logarithms + byte_dots + random_bits, functions, numerics_for(renderer.native)

    def lowered(graph: UOp) -> UOp:
        return functools.reduce(rewrite, tables, graph)

    return lowered(outlined(nest, lowered) if renderer.calls_functions else nest)
