"""Item by item: arithmetic, comparisons, bits, roots and exponentials, trigonometry, activations, casts.

Binary functions broadcast their operands and promote their dtypes (`dtype.promote`); Python numbers are weak:
they take the tensor's dtype unless their kind is higher (bool < integer < float). Functions of real numbers
take integer tensors as the default float, and compute half types in float32, rounding once at the end.

Formulas that lose digits as they stand in a textbook (exp of a large number, log near 1, tanh near 0) are
compensated; their docstrings say how. They are written on graph nodes, with EXP2, LOG2, SIN and SQRT as
primitives.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.dtype import DType, DTypeLike, dtypes, least_upper_float, promote, to_dtype
from tinygrad.graph.gradient import cosine
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import Shape, UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Operand, Tensor


# --- operands -----------------------------------------------------------------------------------------------


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """The shape that all `shapes` expand to. Raises ValueError, naming the operation, where there is none."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    ndim = max(map(len, shapes))
    aligned = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*aligned, strict=True):
        others = set(sizes) - {1}
        if len(others) > 1:
            raise ValueError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast; axes, counted from "
                             "the last, must have equal sizes or size 1")
        result.append(others.pop() if others else 1)
    return tuple(result)


def expand_to(x: UOp, shape: Shape) -> UOp:
    """`x` with axes of size 1 in front as needed, expanded to `shape`."""
    if x.shape == shape:
        return x
    return x.reshape((1,) * (len(shape) - len(x.shape)) + x.shape).expand(shape)


def number_dtype(number: Any, dtype: DType) -> DType:
    """The dtype that a Python number and a tensor of `dtype` meet in."""
    if isinstance(number, float) and not dtype.is_float:
        return dtypes.default_float
    if isinstance(number, int) and not isinstance(number, bool) and dtype.is_bool:
        return dtypes.default_int
    return dtype


def _as_number(name: str, x: Any) -> Any:
    x = x.item() if isinstance(x, np.generic) else x
    if not isinstance(x, (bool, int, float)):
        raise TypeError(f"{name} takes tensors and numbers, got a {type(x).__name__}")
    return x


def operands(name: str, *values: Any) -> tuple[list[UOp], list[Tensor]]:
    """The nodes of `values`, tensors or numbers, in their common shape and dtype; and which of them are
    tensors."""
    from tinygrad.tensor import Tensor

    items = [Tensor(v, requires_grad=False) if isinstance(v, np.ndarray) else v for v in values]
    tensors = [v for v in items if isinstance(v, Tensor)]
    numbers = [_as_number(name, v) for v in items if not isinstance(v, Tensor)]
    if not tensors:
        tensors = [Tensor(numbers[0], requires_grad=False)]
    dtype = promote(*(t.dtype for t in tensors))
    for number in numbers:
        dtype = number_dtype(number, dtype)
    shape = broadcast_shape(name, *(t.shape for t in tensors))
    nodes = [expand_to(v.uop.cast(dtype), shape) if isinstance(v, Tensor) else UOp.const(v, dtype, shape)
             for v in items]
    return nodes, tensors


def _binary(name: str, op: Callable[[UOp, UOp], UOp], a: Any, b: Any, reverse: bool = False) -> Tensor:
    from tinygrad.tensor import Tensor

    (x, y), tensors = operands(name, b, a) if reverse else operands(name, a, b)
    return Tensor.of(op(x, y), *tensors)


def _unary(self: Tensor, op: Callable[[UOp], UOp]) -> Tensor:
    return type(self).of(op(self.uop), self)


def _real(self: Tensor, function: Callable[[UOp], UOp]) -> Tensor:
    """`function` of real numbers: integers as the default float, half types in float32, rounded once."""
    dtype = least_upper_float(self.dtype)
    wide = promote(dtype, dtypes.float32)
    return type(self).of(function(self.uop.cast(wide)).cast(dtype), self)


def _real_binary(name: str, function: Callable[[UOp, UOp], UOp], a: Any, b: Any,
                 reverse: bool = False) -> Tensor:
    """`function` of two real numbers, as `_real`."""
    def widened(x: UOp, y: UOp) -> UOp:
        dtype = least_upper_float(x.dtype)
        wide = promote(dtype, dtypes.float32)
        return function(x.cast(wide), y.cast(wide)).cast(dtype)

    return _binary(name, widened, a, b, reverse)


# --- arithmetic ---------------------------------------------------------------------------------------------


def add(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self + x; for bools, or."""
    return _binary("add", lambda a, b: a | b if a.dtype.is_bool else a + b, self, x, reverse)


def sub(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self - x, or x - self with `reverse`. Raises TypeError for bools."""
    def minus(a: UOp, b: UOp) -> UOp:
        if a.dtype.is_bool:
            raise TypeError("sub takes numbers, got bools; use ^ or logical_not()")
        return a - b

    return _binary("sub", minus, self, x, reverse)


def mul(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self * x; for bools, and."""
    return _binary("mul", lambda a, b: a & b if a.dtype.is_bool else a * b, self, x, reverse)


def neg(self: Tensor) -> Tensor:
    """-self. Raises TypeError for bools."""
    if self.dtype.is_bool:
        raise TypeError("neg takes numbers, got bools; use logical_not()")
    return _unary(self, lambda x: -x)


def _floor(x: UOp) -> UOp:
    below = x.trunc()
    return (x < below).where(below - 1, below)


def _float_divmod(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """Quotient rounded down and remainder with the divisor's sign, from the remainder of the rounded
    quotient.

    The first quotient may be one off, which shows in the remainder's range. Exact while the quotient fits in
    the mantissa (2^24 for float32).
    """
    quotient = (a * b.recip()).trunc()
    remainder = quotient.eq(0).where(a, (-quotient).mulacc(b, a))
    too_large = ((b > 0) & (remainder < b).logical_not()) | ((b < 0) & (b < remainder).logical_not())
    remainder, quotient = too_large.where(remainder - b, remainder), too_large.where(quotient + 1, quotient)
    wrong_sign = ((remainder < 0) & (b > 0)) | ((remainder > 0) & (b < 0))
    return wrong_sign.where(quotient - 1, quotient), wrong_sign.where(remainder + b, remainder)


def div(self: Tensor, x: Operand, reverse: bool = False, rounding_mode: str | None = None) -> Tensor:
    """self / x: a float, also of integers. `rounding_mode` "floor" rounds down, "trunc" toward zero, keeping
    integers.

    >>> (Tensor([7, -7]) / 2).tolist(), Tensor([7, -7]).div(2, rounding_mode="trunc").tolist()
    ([3.5, -3.5], [3, -3])
    """
    if rounding_mode is None:
        def quotient(a: UOp, b: UOp) -> UOp:
            dtype = least_upper_float(a.dtype)
            return a.cast(dtype) * b.cast(dtype).recip()

        return _binary("div", quotient, self, x, reverse)
    if rounding_mode == "floor":
        return floordiv(self, x, reverse)
    if rounding_mode != "trunc":
        raise ValueError(f"rounding_mode is None, 'floor' or 'trunc', got {rounding_mode!r}")

    def toward_zero(a: UOp, b: UOp) -> UOp:
        a, b = _no_bools("div", a, b)
        if a.dtype.is_float:
            return (a * b.recip()).trunc()
        down = a // b
        return ((down < 0) & (down * b).ne(a)).where(down + 1, down)

    return _binary("div", toward_zero, self, x, reverse)


def _no_bools(name: str, a: UOp, b: UOp) -> tuple[UOp, UOp]:
    if a.dtype.is_bool:
        raise TypeError(f"{name} takes numbers, got bools")
    return a, b


def floordiv(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self // x, rounded down as in Python.

    >>> (Tensor([7, -7]) // 2).tolist()
    [3, -4]
    """
    def quotient(a: UOp, b: UOp) -> UOp:
        a, b = _no_bools("floordiv", a, b)
        return _float_divmod(a, b)[0] if a.dtype.is_float else a // b

    return _binary("floordiv", quotient, self, x, reverse)


def mod(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self % x, with the divisor's sign as in Python.

    >>> (Tensor([7, -7]) % 3).tolist()
    [1, 2]
    """
    def remainder(a: UOp, b: UOp) -> UOp:
        a, b = _no_bools("mod", a, b)
        return _float_divmod(a, b)[1] if a.dtype.is_float else a % b

    return _binary("mod", remainder, self, x, reverse)


def fmod(self: Tensor, x: Operand) -> Tensor:
    """The remainder with the sign of self, as in C."""
    def remainder(a: UOp, b: UOp) -> UOp:
        a, b = _no_bools("fmod", a, b)
        if a.dtype.is_float:
            positive = _float_divmod(a.maximum(-a), b.maximum(-b))[1]
            return (a < 0).where(-positive, positive)
        rest = a % b
        return (rest.ne(0) & ((a < 0).ne(b < 0))).where(rest - b, rest)

    return _binary("fmod", remainder, self, x)


def reciprocal(self: Tensor) -> Tensor:
    """1 / self."""
    return _unary(self, lambda x: x.cast(least_upper_float(x.dtype)).recip())


def maximum(self: Tensor, x: Operand) -> Tensor:
    """The larger of the two; NaN where either is NaN. Ties share the gradient."""
    return _binary("maximum", lambda a, b: a | b if a.dtype.is_bool else a.maximum(b), self, x)


def order_reversed(x: UOp) -> UOp:
    """The value whose order is the opposite: minus x, or for integers and bools the complement, which
    fits."""
    if x.dtype.is_float:
        return -x
    return x.logical_not() if x.dtype.is_bool else x ^ -1


def minimum(self: Tensor, x: Operand) -> Tensor:
    """The smaller of the two; NaN where either is NaN. Ties share the gradient."""
    def smaller(a: UOp, b: UOp) -> UOp:
        return a & b if a.dtype.is_bool else order_reversed(order_reversed(a).maximum(order_reversed(b)))

    return _binary("minimum", smaller, self, x)


def clip(self: Tensor, min_: Operand | None = None, max_: Operand | None = None) -> Tensor:
    """Items below `min_` become `min_`, above `max_` become `max_`. NaN stays. Raises ValueError without
    bounds."""
    if min_ is None and max_ is None:
        raise ValueError("clip takes min_, max_ or both")
    result = self
    if min_ is not None:
        result = _binary("clip", lambda a, b: (a < b).where(b, a), result, min_)
    if max_ is not None:
        result = _binary("clip", lambda a, b: (a > b).where(b, a), result, max_)
    return result


def lerp(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """self + weight * (end - self)."""
    return self + (end - self) * weight


def absolute(self: Tensor) -> Tensor:
    """The absolute value."""
    if self.dtype.is_unsigned or self.dtype.is_bool:
        return self
    return _unary(self, lambda x: x.maximum(-x))


def sign(self: Tensor) -> Tensor:
    """-1, 0 or 1. NaN stays NaN. The gradient is zero."""
    if self.dtype.is_bool:
        return self
    return _unary(self.detach(), lambda x: (x > 0).where(1, (x < 0).where(-1, x)))


def copysign(self: Tensor, other: Operand) -> Tensor:
    """The magnitude of self with the sign bit of other."""
    def with_sign(a: UOp, b: UOp) -> UOp:
        if not a.dtype.is_float:
            a, b = a.cast(dtypes.default_float), b.cast(dtypes.default_float)
        bits = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[b.dtype.itemsize]
        magnitude = a.maximum(-a)
        return (b.detach().bitcast(bits) < 0).where(-magnitude, magnitude)

    return _binary("copysign", with_sign, self, other)


# --- comparisons and logic ----------------------------------------------------------------------------------


def lt(self: Tensor, x: Operand) -> Tensor:
    """self < x, as bools."""
    return _binary("lt", lambda a, b: a < b, self, x)


def gt(self: Tensor, x: Operand) -> Tensor:
    """self > x, as bools."""
    return _binary("gt", lambda a, b: b < a, self, x)


def le(self: Tensor, x: Operand) -> Tensor:
    """self <= x, as bools; False where either is NaN."""
    return _binary("le", lambda a, b: (a < b) | a.eq(b) if a.dtype.is_float else (b < a).logical_not(), self,
                   x)


def ge(self: Tensor, x: Operand) -> Tensor:
    """self >= x, as bools; False where either is NaN."""
    return _binary("ge", lambda a, b: (b < a) | a.eq(b) if a.dtype.is_float else (a < b).logical_not(), self,
                   x)


def eq(self: Tensor, x: Operand) -> Tensor:
    """self == x, as bools."""
    return _binary("eq", lambda a, b: a.eq(b), self, x)


def ne(self: Tensor, x: Operand) -> Tensor:
    """self != x, as bools; True where either is NaN."""
    return _binary("ne", lambda a, b: a.ne(b), self, x)


def logical_not(self: Tensor) -> Tensor:
    """True where an item is zero."""
    return _unary(self, lambda x: x.cast(dtypes.bool).logical_not())


def where(self: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where self holds (is not zero), else `y`; all three broadcast.

    >>> (Tensor([1, 2, 3]) > 2).where(1.0, 0.5).tolist()
    [0.5, 0.5, 1.0]
    """
    (a, b), tensors = operands("where", x, y)
    shape = broadcast_shape("where", self.shape, a.shape)
    condition = expand_to(self.uop.cast(dtypes.bool), shape)
    return type(self).of(condition.where(expand_to(a, shape), expand_to(b, shape)), self, *tensors)


def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """`value` where `mask` holds, self elsewhere."""
    return mask.where(value, self)


def isnan(self: Tensor) -> Tensor:
    """True where an item is not a number."""
    return _unary(self, lambda x: x.ne(x))


def isinf(self: Tensor, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
    """True where an item is infinite; of one sign only where so asked."""
    if not self.dtype.is_float:
        return self.zeros_like(dtype=dtypes.bool)
    positive, negative = self == math.inf, self == -math.inf
    if detect_positive and detect_negative:
        return positive | negative
    if not (detect_positive or detect_negative):
        return self.zeros_like(dtype=dtypes.bool)
    return positive if detect_positive else negative


def isfinite(self: Tensor) -> Tensor:
    """True where an item is neither infinite nor NaN."""
    return (isinf(self) | isnan(self)).logical_not()


def isclose(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
            equal_nan: bool = False) -> Tensor:
    """|self - other| <= atol + rtol * |other|; equal infinities are close."""
    near = isfinite(self) & isfinite(other) & ((self - other).abs() <= other.abs() * rtol + atol)
    close = (self == other) | near
    return close | (isnan(self) & isnan(other)) if equal_nan else close


def allclose(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
             equal_nan: bool = False) -> bool:
    """Whether all items are close (see `isclose`). Computes."""
    return bool(isclose(self, other, rtol, atol, equal_nan).all().item())


# --- bits ---------------------------------------------------------------------------------------------------


def _bitwise(name: str, op: Ops, a: Any, b: Any, reverse: bool = False) -> Tensor:
    def apply(x: UOp, y: UOp) -> UOp:
        if x.dtype.is_float or (x.dtype.is_bool and op in (Ops.SHL, Ops.SHR)):
            raise TypeError(f"{name} takes integers{'' if op in (Ops.SHL, Ops.SHR) else ' or bools'}, got {x.dtype}")
        return x.alu(op, y)

    return _binary(name, apply, a, b, reverse)


def bitwise_and(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self & x, of integers or bools."""
    return _bitwise("bitwise_and", Ops.AND, self, x, reverse)


def bitwise_or(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self | x, of integers or bools."""
    return _bitwise("bitwise_or", Ops.OR, self, x, reverse)


def bitwise_xor(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self ^ x, of integers or bools."""
    return _bitwise("bitwise_xor", Ops.XOR, self, x, reverse)


def bitwise_not(self: Tensor) -> Tensor:
    """~self: every bit of an integer, or the opposite of a bool."""
    if self.dtype.is_float:
        raise TypeError(f"bitwise_not takes integers or bools, got {self.dtype}")
    return _unary(self, lambda x: x.logical_not() if x.dtype.is_bool else x ^ -1)


def lshift(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self << x, of integers."""
    return _bitwise("lshift", Ops.SHL, self, x, reverse)


def rshift(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self >> x, of integers; the sign stays."""
    return _bitwise("rshift", Ops.SHR, self, x, reverse)


# --- rounding -----------------------------------------------------------------------------------------------


def _rounding(self: Tensor, op: Callable[[UOp], UOp]) -> Tensor:
    return _unary(self, op) if self.dtype.is_float else self


def trunc(self: Tensor) -> Tensor:
    """Rounded toward zero."""
    return _rounding(self, lambda x: x.trunc())


def floor(self: Tensor) -> Tensor:
    """Rounded down."""
    return _rounding(self, _floor)


def ceil(self: Tensor) -> Tensor:
    """Rounded up."""
    return _rounding(self, lambda x: -_floor(-x))


def round_half_even(self: Tensor) -> Tensor:
    """Rounded to the nearest whole number, halves to the even one.

    >>> Tensor([0.5, 1.5, 2.4]).round().tolist()
    [0.0, 2.0, 2.0]
    """
    def nearest(x: UOp) -> UOp:
        towards_zero = x.trunc()
        rest = x - towards_zero
        rest = rest.maximum(-rest)
        odd = (towards_zero * 0.5).trunc().mulacc(-2.0, towards_zero).ne(0)
        away = (rest > 0.5) | (rest.eq(0.5) & odd)
        return away.where(towards_zero + (x < 0).where(x._operand(-1), x._operand(1)), towards_zero)

    return _rounding(self, nearest)


# --- powers, exponentials, logarithms -----------------------------------------------------------------------


def square(self: Tensor) -> Tensor:
    """self * self."""
    return self * self


def sqrt(self: Tensor) -> Tensor:
    """The square root; NaN below zero."""
    return _unary(self, lambda x: x.cast(least_upper_float(x.dtype)).sqrt())


def rsqrt(self: Tensor) -> Tensor:
    """1 / sqrt(self)."""
    return _real(self, lambda x: x.sqrt().recip())


def exp_node(x: UOp) -> UOp:
    """e^x as 2^(x log2 e), with the product's rounding error put back.

    The exponent h = x log2(e) is rounded, which alone would cost up to |h|/2 ulp. Its error r is known
    exactly (a fused multiply-add, plus the error of the constant), and 2^(h + r) = 2^h (1 + r ln 2) to the
    last digit. The correction is a constant to gradients: as a function of real numbers it is 1.
    """
    log2e = x.dtype.numpy.type(math.log2(math.e))
    rest = 2.0355273740931033e-17 if x.dtype is dtypes.float64 else math.log2(math.e) - float(log2e)
    exponent = x * float(log2e)
    constant, rounded = x.detach(), exponent.detach()
    error = constant.mulacc(rest, constant.mulacc(float(log2e), -rounded))
    # where the exponent is infinite, or so large that the result is 0 or infinite, there is nothing to
    # correct
    safe = (error * error < 1.0).where(error, 0)
    return exponent.exp2() * safe.mulacc(math.log(2), safe._operand(1))


def log_node(x: UOp) -> UOp:
    return x.log2() * math.log(2)


def log1p_node(x: UOp) -> UOp:
    """log(1 + x), precise near 0: log(u) x / (u - 1) with u the rounded 1 + x (Kahan)."""
    u = x + 1
    distance = u - 1
    plain = distance.eq(0) | u.eq(math.inf)
    correction = x * plain.where(1, distance).recip()
    exact = distance.eq(0).where(x, log_node(u) * plain.where(1, correction))
    return exact


def expm1_node(x: UOp) -> UOp:
    """e^x - 1, precise near 0: there 2 tanh(x/2) / (1 - tanh(x/2))."""
    near = (x < 0.5) & (x > -0.5)
    t = _tanh_near_zero(near.where(x * 0.5, 0))
    return near.where(t * 2 * (1 - t).recip(), exp_node(x) - 1)


def exp(self: Tensor) -> Tensor:
    """e to the power of each item."""
    return _real(self, exp_node)


def exp2(self: Tensor) -> Tensor:
    """2 to the power of each item."""
    return _real(self, lambda x: x.exp2())


def log(self: Tensor) -> Tensor:
    """The natural logarithm; NaN below zero."""
    return _real(self, log_node)


def log2(self: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return _real(self, lambda x: x.log2())


def log10(self: Tensor) -> Tensor:
    """The logarithm to base 10."""
    return _real(self, lambda x: x.log2() * math.log10(2))


def logaddexp(self: Tensor, other: Operand) -> Tensor:
    """log(e^self + e^other), without overflow."""
    def combined(a: UOp, b: UOp) -> UOp:
        larger = a.maximum(b)
        same = a.eq(b)  # also where both are the same infinity, whose difference is NaN
        distance = same.where(0, a - b)
        return larger + same.where(math.log(2), log1p_node(exp_node(-distance.maximum(-distance))))

    return _real_binary("logaddexp", combined, self, other)


def _int_power(base: UOp, exponent: int) -> UOp:
    """base^exponent for exponent >= 1, by repeated squaring."""
    result: UOp | None = None
    while True:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        base = base * base


def _power_of_ints(base: UOp, exponent: UOp) -> UOp:
    """base^exponent, bit by bit of the exponent; for negative exponents 0, or 1 or -1 where the base is one
    of them."""
    result = base._operand(1)
    square_, bits = base, exponent
    for _ in range(exponent.dtype.bits - (not exponent.dtype.is_unsigned)):
        result = (bits & 1).ne(0).where(result * square_, result)
        square_ = square_ * square_
        bits = bits >> 1
    if base.dtype.is_unsigned:
        return result
    odd = (exponent & 1).ne(0)
    inverse = base.eq(1).where(1, base.eq(-1).where(odd.where(base._operand(-1), base._operand(1)), 0))
    return (exponent < 0).where(inverse, result)


def _power_of_floats(base: UOp, exponent: UOp) -> UOp:
    """base^exponent = 2^(exponent log2 |base|), with the sign of negative bases to whole exponents.

    A base of 0 goes its own way, so that no infinity meets a zero in the gradient.
    """
    magnitude = base.maximum(-base)
    is_zero = base.eq(0)
    power = (exponent * is_zero.where(1, magnitude).log2()).exp2()
    whole = exponent.trunc().eq(exponent)
    odd = whole & (exponent * 0.5).trunc().mulacc(-2.0, exponent).ne(0)
    of_negative = whole.where(odd.where(-power, power), math.nan)
    of_zero = (exponent < 0).where(exponent._operand(math.inf), exponent._operand(0))
    result = is_zero.where(of_zero, (base < 0).where(of_negative, power))
    return (exponent.eq(0) | base.eq(1)).where(1, result)


def power(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self ** x (x ** self with `reverse`). Integers to integer powers stay integers.

    Raises ValueError for integers to a negative integer: their powers are fractions; make the base a float.

    >>> (Tensor([2, 3]) ** 3).tolist(), (Tensor([4.0]) ** 0.5).tolist()
    ([8, 27], [2.0])
    """
    number = x.item() if isinstance(x, np.generic) else x
    if not reverse and isinstance(number, (bool, int, float)):
        return _constant_power(self, number)
    def raised(base: UOp, exponent: UOp) -> UOp:
        if base.dtype.is_float:
            wide = promote(base.dtype, dtypes.float32)
            return _power_of_floats(base.cast(wide), exponent.cast(wide)).cast(base.dtype)
        base, exponent = _no_bools("pow", base, exponent)
        return _power_of_ints(base, exponent)

    return _binary("pow", raised, self, x, reverse)


def _constant_power(self: Tensor, exponent: float) -> Tensor:
    if self.dtype.is_bool or (not self.dtype.is_float and isinstance(exponent, float)):
        self = self.cast(number_dtype(exponent, promote(self.dtype, dtypes.int8)))
    if exponent == 0:
        return self.ones_like(requires_grad=False)
    if exponent < 0 and not self.dtype.is_float:
        raise ValueError(f"pow of {self.dtype} to the negative integer {exponent}: cast the base to a float")
    if float(exponent).is_integer() and abs(exponent) <= 16:
        positive = _real_or_int(self, lambda x: _int_power(x, abs(int(exponent))))
        return positive if exponent > 0 else positive.reciprocal()
    if exponent == 0.5:
        return self.sqrt()
    if exponent == -0.5:
        return self.rsqrt()
    if not self.dtype.is_float:
        return _unary(self, lambda x: _int_power(x, int(exponent)))
    return _real(self, lambda x: _power_of_floats(x, x._operand(exponent)))


def _real_or_int(self: Tensor, function: Callable[[UOp], UOp]) -> Tensor:
    return _real(self, function) if self.dtype.is_float else _unary(self, function)


# --- trigonometry -------------------------------------------------------------------------------------------


def sin(self: Tensor) -> Tensor:
    """The sine, of radians."""
    return _real(self, lambda x: x.sin())


def cos(self: Tensor) -> Tensor:
    """The cosine, of radians."""
    return _real(self, cosine)


def tan(self: Tensor) -> Tensor:
    """The tangent, of radians."""
    return _real(self, lambda x: x.sin() * cosine(x).recip())


def _atan_below_one(x: UOp) -> UOp:
    """The arc tangent for 0 <= x <= 1: the argument halved twice, then its Taylor series below tan(pi/16)."""
    for _ in range(2):
        x = x * ((x * x + 1).sqrt() + 1).recip()
    terms = 6 if x.dtype is dtypes.float32 else 12
    coefficients = [(-1) ** n / (2 * n + 1) for n in range(terms)]
    return x * polynomial(x * x, coefficients) * 4


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The sum of coefficients[n] * x^n, by Horner's scheme."""
    result = x._operand(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.mulacc(x, x._operand(coefficient))
    return result


def _with_sign_of(x: UOp, positive: UOp) -> UOp:
    return (x < 0).where(-positive, positive)


def _atan_node(x: UOp) -> UOp:
    magnitude = x.maximum(-x)
    large = magnitude > 1
    angle = _atan_below_one(large.where(large.where(magnitude, 1).recip(), magnitude))
    return _with_sign_of(x, large.where(math.pi / 2 - angle, angle))


def atan(self: Tensor) -> Tensor:
    """The arc tangent, in radians."""
    return _real(self, _atan_node)


def asin(self: Tensor) -> Tensor:
    """The arc sine, in radians; NaN outside [-1, 1]. It is 2 atan(x / (1 + sqrt(1 - x^2)))."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        half = magnitude * (((1 - magnitude) * (magnitude + 1)).sqrt() + 1).recip()
        return _with_sign_of(x, _atan_below_one(half) * 2)

    return _real(self, node)


def acos(self: Tensor) -> Tensor:
    """The arc cosine, in radians; NaN outside [-1, 1]. It is 2 atan(sqrt((1 - x) / (1 + x)))."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        angle = _atan_below_one(((1 - magnitude) * (magnitude + 1).recip()).sqrt()) * 2
        return (x < 0).where(math.pi - angle, angle)

    return _real(self, node)


def sinh(self: Tensor) -> Tensor:
    """The hyperbolic sine: with m = e^|x| - 1, (m + m/(m + 1)) / 2; with half the exponent where that is
    large."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        large = magnitude > 40
        m = expm1_node(large.where(0, magnitude))
        half = exp_node(large.where(magnitude * 0.5, 0))
        return _with_sign_of(x, large.where(half * 0.5 * half, (m + m * (m + 1).recip()) * 0.5))

    return _real(self, node)


def cosh(self: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        half = exp_node(magnitude * 0.5)
        small = exp_node(-magnitude)
        return half * 0.5 * half + small * 0.5

    return _real(self, node)


def asinh(self: Tensor) -> Tensor:
    """The inverse hyperbolic sine: log1p(x + x^2 / (1 + sqrt(x^2 + 1))) of |x|, log(2 x) where that is
    large."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        large = magnitude > 1e8
        x1 = large.where(0, magnitude)
        small = log1p_node(x1 + x1 * x1 * ((x1 * x1 + 1).sqrt() + 1).recip())
        return _with_sign_of(x, large.where(log_node(large.where(magnitude, 1)) + math.log(2), small))

    return _real(self, node)


def acosh(self: Tensor) -> Tensor:
    """The inverse hyperbolic cosine: log1p(t + sqrt(2 t + t^2)) of t = x - 1; NaN below 1."""
    def node(x: UOp) -> UOp:
        large = x > 1e8
        t = large.where(0, x - 1)
        small = log1p_node(t + (t * (t + 2)).sqrt())
        return large.where(log_node(large.where(x, 1)) + math.log(2), small)

    return _real(self, node)


def atanh(self: Tensor) -> Tensor:
    """The inverse hyperbolic tangent: log1p(2 x / (1 - x)) / 2 of |x|; NaN outside [-1, 1]."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        return _with_sign_of(x, log1p_node(magnitude * 2 * (1 - magnitude).recip()) * 0.5)

    return _real(self, node)


def _tanh_fraction(depth: int) -> tuple[list[float], list[float]]:
    """Numerator and denominator, in x^2, of Lambert's continued fraction tanh x = x/(1 + x^2/(3 + x^2/(5 +
    ...)))."""
    numerators, denominators = [[0.0], [1.0]], [[1.0], [1.0]]
    for k in range(1, depth):
        for terms in (numerators, denominators):
            last, before = terms[-1], [0.0, *terms[-2]]
            size = max(len(last), len(before))
            padded = [row + [0.0] * (size - len(row)) for row in (last, before)]
            terms.append([(2 * k + 1) * a + b for a, b in zip(*padded, strict=True)])
    # each level of the fraction scales both by its odd number; start from a constant term of one
    scale = denominators[-1][0]
    return [a / scale for a in numerators[-1]], [b / scale for b in denominators[-1]]


TANH_FRACTION = {dtypes.float32: _tanh_fraction(5), dtypes.float64: _tanh_fraction(9)}


def _tanh_near_zero(x: UOp) -> UOp:
    """tanh for |x| <= 0.6, from its continued fraction."""
    numerator, denominator = TANH_FRACTION[x.dtype]
    return x * polynomial(x * x, numerator) * polynomial(x * x, denominator).recip()


def tanh(self: Tensor) -> Tensor:
    """The hyperbolic tangent: 1 - 2 / (e^(2|x|) + 1) with the sign of x, and a continued fraction near 0."""
    def node(x: UOp) -> UOp:
        magnitude = x.maximum(-x)
        near = magnitude < 0.6
        small = _tanh_near_zero(near.where(x, 0))
        # e^-2|x| rather than e^2|x|: no infinity, so no NaN in the gradient
        decay = exp_node(magnitude * -2)
        return near.where(small, _with_sign_of(x, (1 - decay) * (decay + 1).recip()))

    return _real(self, node)


# --- the error function -------------------------------------------------------------------------------------

# e^(x^2) erfc(x) for 1 <= x <= `limit`, as a polynomial in 1/(1 + x/2) scaled to [-1, 1]: Chebyshev
# interpolation (relative error 7e-10 and 7e-15). Beyond `limit`, erf rounds to 1.
ERFCX = {
    dtypes.float32: (4.0, (
        0.25539567625112669, 0.14239528276950719, 0.02685091235727749, 0.0029251286434133061,
        4.6075782336755249e-05, -2.8781720473416537e-05, -1.1475612158985411e-06,
        4.2960572696359088e-07,
    )),
    dtypes.float64: (6.0, (
        0.22142954022993178, 0.16189356804102581, 0.038560570425182024, 0.0055888162818198825,
        0.00019713917775671704, -8.0792204099959313e-05, -7.3405182034251363e-06,
        1.9795611650228865e-06, 1.635005940511135e-07, -7.0051792112680499e-08,
        -5.9174650363566907e-10, 2.6224670899880046e-09, -2.6423629068466336e-10,
        -7.2951534224510891e-11, 1.8894684989359593e-11,
    )),
}


def erf_node(x: UOp) -> UOp:
    """erf: its Maclaurin series below 1, one minus the scaled complement above."""
    limit, coefficients = ERFCX[x.dtype]
    magnitude = x.maximum(-x)
    near = magnitude < 1
    terms = 11 if x.dtype is dtypes.float32 else 20
    series = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(terms)]
    small = near.where(x, 0)
    far = near.where(1, (magnitude > limit).where(limit, magnitude))
    low, high = 1 / (1 + limit / 2), 1 / 1.5
    scaled = ((far * 0.5 + 1).recip() * 2 - (low + high)) * (1 / (high - low))
    complement = exp_node(-far * far) * polynomial(scaled, coefficients)
    large = x.ne(x).where(x, _with_sign_of(x, 1 - complement))
    return near.where(small * polynomial(small * small, series), large)


def erf(self: Tensor) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    return _real(self, erf_node)


# --- activations --------------------------------------------------------------------------------------------


def relu(self: Tensor) -> Tensor:
    """max(x, 0), with gradient 0 at 0. NaN stays NaN.

    >>> Tensor([-1.0, 2.0]).relu().tolist()
    [0.0, 2.0]
    """
    # One comparison that holds for all x <= 0, zero included, and not for NaN: below the smallest positive
    # number.
    if not self.dtype.is_float:
        return _unary(self, lambda x: (x > 0).where(x, 0))
    return _unary(self, lambda x: (x < _smallest_positive(x.dtype)).where(0, x))


def _smallest_positive(dtype: DType) -> float:
    """The smallest positive (denormal) number of a float type."""
    exponent_bits, mantissa_bits = dtypes.finfo(dtype)
    return math.ldexp(1.0, 2 - 2 ** (exponent_bits - 1) - mantissa_bits)


def sigmoid_node(x: UOp) -> UOp:
    """1 / (1 + e^-x); from e^-|x|, which does not overflow."""
    decay = exp_node(-x.maximum(-x))
    return (x < 0).where(decay, 1) * (decay + 1).recip()


def sigmoid(self: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return _real(self, sigmoid_node)


def silu(self: Tensor) -> Tensor:
    """x * sigmoid(x), also called swish."""
    return _real(self, lambda x: x * sigmoid_node(x))


def gelu(self: Tensor, approximate: str = "tanh") -> Tensor:
    """x times the normal distribution's cumulative probability at x; "none" takes erf, "tanh" its
    approximation.

    https://arxiv.org/abs/1606.08415. The approximation 0.5 x (1 + tanh u) is written x sigmoid(2 u).
    """
    if approximate == "none":
        return _real(self, lambda x: x * 0.5 * (erf_node(x * math.sqrt(0.5)) + 1))
    if approximate != "tanh":
        raise ValueError(f"gelu takes approximate 'tanh' or 'none', got {approximate!r}")
    scale = 2 * math.sqrt(2 / math.pi)
    return _real(self, lambda x: x * sigmoid_node(x * (x * x * (0.044715 * scale) + scale)))


def quick_gelu(self: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)."""
    return _real(self, lambda x: x * sigmoid_node(x * 1.702))


def softplus_node(x: UOp) -> UOp:
    return (x > 0).where(x, 0) + log1p_node(exp_node(-x.maximum(-x)))


def softplus(self: Tensor, beta: float = 1.0) -> Tensor:
    """log(1 + e^(beta x)) / beta, without overflow."""
    return _real(self, lambda x: softplus_node(x * beta) * (1 / beta))


def logsigmoid(self: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return _real(self, lambda x: -softplus_node(-x))


def mish(self: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return self * self.softplus().tanh()


def elu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (e^x - 1) below."""
    return celu_like(self, alpha, 1.0, 1.0)


def celu(self: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha (e^(x / alpha) - 1) below."""
    return celu_like(self, alpha, alpha, 1.0)


def selu(self: Tensor, alpha: float = 1.67326, gamma: float = 1.0507) -> Tensor:
    """gamma times elu(x, alpha)."""
    return celu_like(self, alpha, 1.0, gamma)


def celu_like(self: Tensor, alpha: float, width: float, gamma: float) -> Tensor:
    """gamma x above 0, gamma alpha (e^(x / width) - 1) below."""
    def node(x: UOp) -> UOp:
        below = expm1_node((x > 0).where(0, x) * (1 / width)) * (alpha * gamma)
        return (x > 0).where(x * gamma, below)

    return _real(self, node)


def relu6(self: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return self.clip(0, 6)


def leaky_relu(self: Tensor, neg_slope: float = 0.01) -> Tensor:
    """x above 0, neg_slope * x below."""
    return (self > 0).where(self, self * neg_slope)


def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """x kept within [min_val, max_val]."""
    return self.clip(min_val, max_val)


def hardsigmoid(self: Tensor, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
    """alpha * x + beta, kept within [0, 1]."""
    return (self * alpha + beta).clip(0, 1)


def hardswish(self: Tensor) -> Tensor:
    """x * min(max(x + 3, 0), 6) / 6."""
    return self * (self + 3).relu6() * (1 / 6)


def softsign(self: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return self / (self.abs() + 1)


# --- casts --------------------------------------------------------------------------------------------------


def cast(self: Tensor, dtype: DTypeLike) -> Tensor:
    """The values as `dtype`. Floats to integers round toward zero; to bool, zero is False."""
    return _unary(self, lambda x: x.cast(to_dtype(dtype)))


def bitcast(self: Tensor, dtype: DTypeLike) -> Tensor:
    """The same bits read as `dtype`. Where the widths differ, the last axis changes size in proportion.

    Raises ValueError where the last axis does not divide.
    """
    kind = to_dtype(dtype)
    old, new = self.dtype.itemsize, kind.itemsize
    if old == new:
        return _unary(self, lambda x: x.bitcast(kind))
    if not self.shape or (self.shape[-1] * old) % new:
        raise ValueError(f"bitcast of {self.dtype} with shape {self.shape} to {kind}: the last axis must hold whole "
                         f"{new}-byte items")
    return _rewidened(self, kind)


def _rewidened(self: Tensor, dtype: DType) -> Tensor:
    """The bits of the last axis as items of another width, little end first."""
    unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
    old, new = self.dtype.itemsize, dtype.itemsize
    narrow, wide = unsigned[min(old, new)], unsigned[max(old, new)]
    parts = wide.itemsize // narrow.itemsize
    bits = self.bitcast(unsigned[old])
    if new < old:
        split = [(bits >> (i * narrow.bits)).cast(narrow) for i in range(parts)]
        flat = split[0].stack(*split[1:], dim=-1).flatten(-2)
    else:
        grouped = bits.unflatten(-1, (-1, parts)).cast(wide)
        flat = grouped[..., 0]
        for i in range(1, parts):
            flat = flat | (grouped[..., i] << (i * narrow.bits))
    return flat.bitcast(dtype)


def to_bool(self: Tensor) -> Tensor:
    """As bools: False where zero."""
    return cast(self, dtypes.bool)


def to_int(self: Tensor) -> Tensor:
    """As int32."""
    return cast(self, dtypes.int32)


def to_long(self: Tensor) -> Tensor:
    """As int64."""
    return cast(self, dtypes.int64)


def to_short(self: Tensor) -> Tensor:
    """As int16."""
    return cast(self, dtypes.int16)


def to_float(self: Tensor) -> Tensor:
    """As float32."""
    return cast(self, dtypes.float32)


def to_double(self: Tensor) -> Tensor:
    """As float64."""
    return cast(self, dtypes.float64)


def to_half(self: Tensor) -> Tensor:
    """As float16."""
    return cast(self, dtypes.float16)


def to_bfloat16(self: Tensor) -> Tensor:
    """As bfloat16."""
    return cast(self, dtypes.bfloat16)


def is_floating_point(self: Tensor) -> bool:
    """Whether the dtype is a float."""
    return self.dtype.is_float
