"""Sums of products in the tensor graph: which REDUCEs are contractions, and what their operands are.

In: a node of the graph to schedule. Out: answers to the questions that fusion, packing and splitting ask: its
product, its operands and the axes that each has for itself, the bytes of a panel. A loop nest has ranges by
which `codegen/contraction.py` recognises the same sums; here there are axes only.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tinygrad.codegen.indexing import range_extents
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import is_symbolic
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import prod

CONTRACTION_LENGTH = 16
"""Products that a sum adds up before it is worth a tile of its own."""
_KEEPS_ITEMS = Family.ELEMENTWISE | Family.MOVEMENT | {Ops.LIVE_OUT}
MOST_OF_BLOCK = 64
"""Items of quantised numbers that have a scale in common."""
TILE = 64
"""Results along the longer side of a tile."""
FEW_ROWS = 16
"""Rows from which on panels are worth it (16 x 8000 x 256 0.74 ms, 0.66 in splits)."""


def product_of(node: UOp) -> UOp | None:
    """The MUL whose values a REDUCE adds up, as they are, widened, or where a condition holds; None if it
    adds up something else."""
    if node.op is not Ops.REDUCE or node.arg[0] is not Ops.ADD:
        return None
    value = node.src[0]
    if value.op is Ops.WHERE and value.src[2].is_zero:
        value = value.src[1]
    value = uncast(value)
    return value if value.op is Ops.MUL else None


def sums_outer_products(node: UOp) -> bool:
    """True for a sum of products of values that are both spread over axes the other has."""
    product = product_of(node)
    return product is not None and all(_is_broadcast(s) for s in product.src)


def is_contraction(node: UOp) -> bool:
    """True for a long such sum, which is worth tiles, and for a sum of those of blocks."""
    is_long = prod(range_extents(node)) >= CONTRACTION_LENGTH
    return (is_long and sums_outer_products(node)) or scales_blocks(node)


def is_block_product(node: UOp) -> bool:
    """True for a short sum of products of integers: of a block of quantised numbers, whose scale follows."""
    product = product_of(node) if node.dtype.is_int else None
    return product is not None and prod(range_extents(node)) <= MOST_OF_BLOCK


@Synthesized
def _made_of_blocks(node: UOp) -> bool:
    """Whether a value is made, item by item, of the sum of a block of quantised numbers."""
    if node.op in _KEEPS_ITEMS:
        return any([_made_of_blocks.of(source) for source in node.src])
    return is_block_product(node)


def scales_blocks(node: UOp) -> bool:
    """True for a sum of floats that are made of the sums of blocks of quantised numbers."""
    return node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and node.dtype.is_float \
        and _made_of_blocks.of(node.src[0])


class Operands(NamedTuple):
    """Of a sum of products: the axes that it runs over, and those along which each operand changes."""

    shape: Shape
    reduced: set[int]
    own: list[set[int]]

    @staticmethod
    def of(node: UOp, values: Iterable[UOp]) -> Operands:
        """Those of a REDUCE, as they are or without casts."""
        return Operands(node.src[0].shape, set(node.arg[1]), [own_axes(value) for value in values])

    @property
    def batch(self) -> set[int]:
        """The axes of results along which both change."""
        return self.own[0] & self.own[1] - self.reduced

    @property
    def sides(self) -> list[int]:
        """How many rows and columns the results have: items of those axes along which only one changes."""
        return [self.items(self.own[i] - self.own[1 - i] - self.reduced) for i in (0, 1)]

    def items(self, axes: Iterable[int]) -> int:
        """As many as there are along some axes."""
        return int(prod(self.shape[a] for a in axes))


def reread_bytes(node: UOp) -> int:
    """The memory that a core walks through again for each tile of results, where a contraction sums over what
    lies outermost in both operands (the gradient of a weight, over the images of a batch): a panel of one
    operand, for each tile of rows, and all of an operand that is seen through windows."""
    product = product_of(node)
    if product is None:
        return 0
    operands = Operands.of(node, product.src)
    strides = [[abs(stride) for stride in s.st.views[-1].strides] for s in product.src]
    if any(s.index(max(s)) not in operands.reduced for s in strides):
        return 0
    read = 0
    repeats = operands.items(operands.batch)
    for value, axes in zip(product.src, operands.own, strict=True):
        memory = view_of_stored(value).base.numel
        products = operands.items(axes & operands.reduced)
        rows = operands.items(axes - operands.reduced - operands.batch)
        windowed = products * rows * repeats > memory
        items = memory / repeats if windowed else products * min(rows, TILE)
        read += int(items * value.dtype.itemsize)
    return read


def panel_bytes(node: UOp) -> int:
    """The memory that stays beside a tile of results while it adds up whole sums of a product of matrices: a
    panel of one operand. 0 for sums over several axes, for few rows or columns, which need no panels, and for
    operands that were widened: matrix units take them as they are (2048 x 8000 x 512 of bfloat16 on AMX: 9.9
    ms, 11.0 in splits)."""
    product = product_of(node)
    if product is None or len(node.arg[1]) > 1 or is_symbolic(product.shape):
        return 0
    if any(view_of_stored(s).dtype.itemsize < product.dtype.itemsize for s in product.src):
        return 0
    operands = Operands.of(node, product.src)
    if not operands.reduced <= operands.own[0] & operands.own[1] or min(operands.sides) < FEW_ROWS:
        return 0
    return operands.items(operands.reduced) * TILE * product.dtype.itemsize


def own_axes(operand: UOp) -> set[int]:
    """The axes along which an operand changes."""
    return {a for a, stride in enumerate(operand.st.views[-1].strides) if stride}


def uncast(value: UOp) -> UOp:
    """What a value was widened or narrowed from."""
    while value.op is Ops.CAST:
        value = value.src[0]
    return value


def view_of_stored(value: UOp) -> UOp:
    """A view without the casts on its way: of what it is a view of, in that one's type."""
    if value.op is Ops.CAST:
        return view_of_stored(value.src[0])
    if value.op not in Family.MOVEMENT:
        return value
    source = view_of_stored(value.src[0])
    return UOp.new(value.op, source.dtype, (source, *value.src[1:]), value.arg)


def _is_broadcast(value: UOp) -> bool:
    while value.op in Family.MOVEMENT or value.op is Ops.CAST:
        if value.op is Ops.EXPAND:
            return True
        value = value.src[0]
    return False
