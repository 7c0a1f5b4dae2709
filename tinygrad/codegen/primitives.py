"""The nest in operations that the device has.

In: a nest with nothing left to expand. Out: the same values made of operations that the renderer can write:
elementary functions as polynomials, a product with a reciprocal as one division.
"""
from __future__ import annotations

from tinygrad.codegen.transcendental import elementary_functions, natural_logarithms
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node, rewrite
from tinygrad.graph.uop import UOp
from tinygrad.renderer import Renderer


def _division(a: UOp, b: UOp, r: UOp, whole: UOp) -> UOp | None:
    """a * (1 / b) is a / b, rounded once. Where b changes with fewer loops, dividing once outside is worth
    more."""
    if b.ranges < whole.ranges and b.op is not Ops.LOAD:
        return None
    return UOp.new(Ops.FDIV, whole.dtype, (a, b))


_product = node(Ops.MUL, any_node("a"), node(Ops.RECIP, any_node("b"), name="r"), name="whole")
division = RewriteTable("one division instead of a reciprocal and a product", [
    Rule("a * (1/b)", _product, _division),
])


def to_device_primitives(nest: UOp, renderer: Renderer) -> UOp:
    """The nest in operations that `renderer` writes."""
    return rewrite(rewrite(nest, division + natural_logarithms), elementary_functions)
