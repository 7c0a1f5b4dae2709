"""What arithmetic of tensors and kernels simplifies to without changing any result.

`constant_folding` is a table for `rewrite`. Integers wrap and floats round as their type does, and NaN,
infinities, the sign of zero and rounding are kept: `x + 0.0` stays (it turns -0.0 into 0.0), `x + -0.0` goes.
A float constant is a Python number that stands for its nearest value in the type: operands are rounded first.

Index arithmetic is simplified as it is built, by `graph/symbolic/`.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, node
from tinygrad.graph.uop import UOp

Number = int | float | bool

# --- the value of an operation on numbers -------------------------------------------------------------------

_ARITHMETIC: dict[Ops, Callable[..., Any]] = {
    Ops.NEG: operator.neg,
    Ops.ADD: operator.add,
    Ops.SUB: operator.sub,
    Ops.MUL: operator.mul,
    Ops.CMPLT: operator.lt,
    Ops.CMPNE: operator.ne,
}
_INTEGER_ARITHMETIC: dict[Ops, Callable[..., Any]] = {
    **_ARITHMETIC,
    Ops.IDIV: operator.floordiv,
    Ops.MOD: operator.mod,
    Ops.MAX: max,
    Ops.AND: operator.and_,
    Ops.OR: operator.or_,
    Ops.XOR: operator.xor,
    Ops.SHL: operator.lshift,
    Ops.SHR: operator.rshift,
    Ops.MULACC: lambda a, b, c: a * b + c,
}
_FLOAT_ARITHMETIC: dict[Ops, Callable[..., Any]] = {
    **_ARITHMETIC,
    Ops.FDIV: operator.truediv,
    Ops.SQRT: np.sqrt,
    Ops.TRUNC: np.trunc,
}


def fold(op: Ops, dtype: DType, operands: list[UOp]) -> Number | None:
    """The number that `op` makes of CONSTs, as a constant of `dtype`; None where it is left to the device."""
    values = [o.arg for o in operands]
    if op is Ops.CAST:
        return convert(values[0], operands[0].dtype.scalar, dtype.scalar)
    if operands[0].dtype.is_float:
        return _fold_floats(op, operands[0].dtype.scalar, values)
    evaluate = _INTEGER_ARITHMETIC.get(op)
    if evaluate is None or (op in (Ops.IDIV, Ops.MOD) and values[1] == 0):
        return None
    if op in (Ops.SHL, Ops.SHR) and not 0 <= values[1] < dtype.bits:
        return None
    return dtype.scalar.as_const(evaluate(*values))


def _fold_floats(op: Ops, dtype: DType, values: list[float]) -> Number | None:
    evaluate = _FLOAT_ARITHMETIC.get(op)
    if evaluate is None:
        return None
    with np.errstate(all="ignore"):
        result = evaluate(*(dtype.numpy.type(v) for v in values))
    return bool(result) if op in Family.COMPARE else float(result)


def convert(value: Number, source: DType, target: DType) -> Number | None:
    """A constant of type `source` cast to `target`; None where the device decides (NaN as an integer)."""
    if source.is_float:
        with np.errstate(all="ignore"):
            value = float(source.numpy.type(value))
    if target.is_float:
        with np.errstate(all="ignore"):
            return _round_to(value, source, target)
    out_of_range = not math.isfinite(value) or not target.min <= int(value) <= target.max
    return None if source.is_float and target.is_int and out_of_range else target.as_const(value)


def _round_to(value: Number, source: DType, target: DType) -> float | None:
    """`value` as a float type; None for integers that NumPy rounds twice on the way there."""
    if source.is_int and target not in (dtypes.float32, dtypes.float64) and abs(value) > 2**24:
        return None
    return float(source.numpy.type(value).astype(target.numpy))


def _same_after(inner: DType, middle: DType) -> bool:
    """True if every value of `inner` is a value of `middle`."""
    if inner.is_bool:
        return True
    if middle.is_bool or (inner.is_float and not middle.is_float):
        return False
    if not middle.is_float:
        return bool(middle.min <= inner.min and inner.max <= middle.max)
    exponent, mantissa = dtypes.finfo(middle)
    if inner.is_float:
        inner_exponent, inner_mantissa = dtypes.finfo(inner)
        return bool(inner_exponent <= exponent and inner_mantissa <= mantissa)
    return bool(inner.bits - (inner.kind == "int") <= mantissa + 1)


# --- patterns -----------------------------------------------------------------------------------------------


def _all_constant(n: UOp) -> bool:
    return bool(n.src) and all(s.op is Ops.CONST for s in n.src)


def _is_power_of_two(n: UOp) -> bool:
    """A power of two whose reciprocal is a normal number of the type: multiplying by it is dividing."""
    if not isinstance(n.arg, float):
        return False
    exponent_bits, _ = dtypes.finfo(n.dtype.scalar)
    normal = 2 ** (exponent_bits - 1) - 2
    fraction, exponent = math.frexp(n.arg)
    return abs(fraction) == 0.5 and abs(exponent - 1) <= normal


_NEUTRAL: Final[dict[Ops, Number]] = {
    **dict.fromkeys((Ops.ADD, Ops.SUB, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.CMPNE), 0),
    Ops.MUL: 1, Ops.IDIV: 1, Ops.AND: -1,
}
"""The second operand that leaves the first as it is: of integers, as bits; of floats where they have it."""
_ABSORBING: Final[dict[Ops, Number]] = {Ops.MUL: 0, Ops.AND: 0, Ops.OR: -1}
"""The operand of integers and bools that the result is, whatever the other is."""

_ANY: Final = any_node("x")
_CONSTANT: Final = node(Ops.CONST, name="c")
_TRUE: Final = node(Ops.CONST, where=lambda n: n.arg is True)
_NOT: Final = node(Ops.CMPNE, any_node("x", lambda n: n.dtype.is_bool), _TRUE)
_POWER_OF_TWO: Final = node(Ops.CONST, name="c", where=_is_power_of_two)


def _the_value(x: UOp, **_: UOp) -> UOp:
    return x


def _without_neutral(n: UOp, x: UOp, c: UOp) -> UOp | None:
    """Of floats the zero that is added is -0.0, and the one that is subtracted 0.0."""
    number = x.dtype.as_const(-0.0 if n.op is Ops.ADD else _NEUTRAL[n.op])
    if c.arg != number or (n.op is Ops.CMPNE and not x.dtype.is_bool):
        return None
    return None if x.dtype.is_float and math.copysign(1.0, c.arg) != math.copysign(1.0, number) else x


def _absorbed(n: UOp, x: UOp, c: UOp) -> UOp | None:
    return c if not x.dtype.is_float and c.arg == x.dtype.as_const(_ABSORBING[n.op]) else None


def _compared_with_itself(n: UOp, x: UOp) -> UOp | None:
    """False, but for a NaN, which is not equal to itself."""
    return None if n.op is Ops.CMPNE and x.dtype.is_float else UOp.const(False, n.dtype)


def _fold_node(n: UOp) -> UOp | None:
    value = fold(n.op, n.dtype, list(n.src))
    return None if value is None else UOp.new(Ops.CONST, n.dtype, (), value)


def _merge_casts(outer: UOp, x: UOp) -> UOp | None:
    inner, middle, last = x.dtype.scalar, outer.src[0].dtype.scalar, outer.dtype.scalar
    if middle.is_float and last.is_int and (inner.is_float or not _same_after(inner, last)):
        return None  # floats out of an integer's range do not wrap as integers do
    return x.cast(last) if _same_after(inner, middle) else None


def _choice(n: UOp) -> tuple[UOp, UOp, UOp] | None:
    """(condition, what it chooses, the other) of a choice between two constants, or a bool as a number."""
    if n.op is Ops.CAST and n.src[0].dtype.is_bool:
        return n.src[0], UOp.const(n.dtype.as_const(1), n.dtype), UOp.const(n.dtype.as_const(0), n.dtype)
    if n.op is Ops.WHERE and n.src[1].op is n.src[2].op is Ops.CONST:
        return n.src[0], n.src[1], n.src[2]
    return None


def _chosen(c: UOp, a: UOp, x: UOp, b: UOp) -> UOp:
    """The choice between `a` and `b`: `x` is never chosen."""
    return UOp.new(Ops.WHERE, a.dtype, (c, a, b))


def _compared_choice(n: UOp) -> UOp | None:
    """`where(c, 1, 0) == 0` is `not c`."""
    for number, side in enumerate(n.src):
        choice = _choice(side) if n.src[1 - number].op is Ops.CONST else None
        if choice is None:
            continue
        condition, *values = choice
        results = [fold(n.op, n.dtype, [value, n.src[1]] if number == 0 else [n.src[0], value])
                   for value in values]
        if results[0] == results[1]:
            return UOp.new(Ops.CONST, n.dtype, (), results[0])
        return condition if results[0] else UOp.new(
            Ops.CMPNE, n.dtype, (condition, UOp.new(Ops.CONST, condition.dtype, (), True)))
    return None


constant_folding: Final = RewriteTable("constant folding", [
    Rule("constants", node(Family.ELEMENTWISE - {Ops.WHERE, Ops.BITCAST}, name="n", where=_all_constant),
         _fold_node),
    Rule("choice by a constant", node(Ops.WHERE, _CONSTANT, any_node("a"), any_node("b")),
         lambda c, a, b: a if c.arg else b),
    Rule("choice by what is not so", node(Ops.WHERE, _NOT, any_node("a"), any_node("b")),
         lambda x, a, b: x.where(b, a)),
    Rule("choice between equals", node(Ops.WHERE, any_node("c"), _ANY, _ANY), _the_value),
    Rule("chosen before", node(Ops.WHERE, any_node("c"), node(Ops.WHERE, any_node("c"), any_node("a"),
                                                              any_node("x")), any_node("b")),
         _chosen),
    Rule("not chosen before", node(Ops.WHERE, any_node("c"), any_node("a"), node(
        Ops.WHERE, any_node("c"), any_node("x"), any_node("b"))), _chosen),
    Rule("neutral operand", node(_NEUTRAL, _ANY, _CONSTANT, name="n"), _without_neutral),
    Rule("absorbing operand", node(_ABSORBING, _ANY, _CONSTANT, name="n"), _absorbed),
    Rule("float divided by a power of two", node(Ops.FDIV, _ANY, _POWER_OF_TWO),
         lambda x, c: x * (1 / c.arg)),
    Rule("one of equals", node((Ops.MAX, Ops.AND, Ops.OR), _ANY, _ANY), _the_value),
    Rule("twice negated", node(Ops.NEG, node(Ops.NEG, _ANY)), _the_value),
    Rule("compared with itself", node(Family.COMPARE, _ANY, _ANY, name="n"), _compared_with_itself),
    Rule("choice compared", node(Family.COMPARE, name="n"), _compared_choice),
    Rule("not not", node(Ops.CMPNE, _NOT, _TRUE), _the_value),
    Rule("cast to the same type", node(Ops.CAST, _ANY, name="n", where=lambda n: n.dtype is n.src[0].dtype),
         _the_value),
    Rule("cast through a wider type", node(Ops.CAST, node(Ops.CAST, _ANY), name="outer"), _merge_casts),
])
"""Guarantees: every node keeps its value, to the last bit (of a NaN: that it is one). Only what every device
rounds correctly is folded; EXP2, LOG2 and SIN of constants stay with the device."""
