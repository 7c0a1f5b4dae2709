"""The entry of index arithmetic: which builder simplifies which operation."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic.arithmetic import build_sum, cast_back, division, maximum, product, shift
from tinygrad.graph.symbolic.conditions import all_of, any_of, choose, less, unequal
from tinygrad.graph.symbolic.linear import difference, linear_terms, shifted
from tinygrad.graph.uop import UOp


def added(a: UOp, b: UOp) -> UOp:
    """a + b; what a number is added to stays as it is."""
    if b.op is Ops.CONST:
        return shifted(a, b.arg)
    return build_sum(linear_terms(a).plus(linear_terms(b)))


INDEX_BUILDERS: Final[dict[Ops, Callable[..., UOp | None]]] = {
    Ops.ADD: added,
    Ops.SUB: lambda a, b: shifted(a, -b.arg) if b.op is Ops.CONST else build_sum(difference(a, b)),
    Ops.NEG: lambda a: build_sum(linear_terms(a).times(-1)),
    Ops.MUL: product,
    Ops.MULACC: lambda a, b, c: a * b + c,
    Ops.SHL: lambda a, b: shift(a, b, left=True),
    Ops.SHR: lambda a, b: shift(a, b, left=False),
    Ops.IDIV: partial(division, Ops.IDIV),
    Ops.MOD: partial(division, Ops.MOD),
    Ops.MAX: maximum,
    Ops.WHERE: choose,
    Ops.CAST: cast_back,
}
"""For each operation of dtype index, what makes its node from its sources; None where nothing simplifies."""
BOOL_BUILDERS: Final[dict[Ops, Callable[..., UOp | None]]] = {
    Ops.CMPLT: less,
    Ops.CMPNE: unequal,
    Ops.XOR: unequal,
    Ops.AND: lambda a, b: all_of((a, b)),
    Ops.OR: lambda a, b: any_of((a, b)),
    Ops.WHERE: choose,
}
"""The same for bool."""


def simplified(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any = None) -> UOp:
    """The node `op` over `src`, simplified if it is index arithmetic or a condition, else as it is."""
    builders = INDEX_BUILDERS if dtype is dtypes.index else BOOL_BUILDERS if dtype is dtypes.bool else {}
    build = builders.get(op)
    result = build(*src) if build is not None and src[0].shape == () else None
    return UOp.new(op, dtype, src, arg) if result is None else result
