"""Item by item: arithmetic, bits, rounding, casts.

Binary functions broadcast their operands and promote their dtypes (`dtype.promote`); Python numbers are weak:
they take the tensor's dtype unless their kind is higher (bool < integer < float). Functions of real numbers
take integer tensors as the default float, and compute half types in float32, rounding once at the end.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device import Device
from tinygrad.dtype import DType, dtypes, least_upper_float, promote
from tinygrad.functional.division import floored_quotient, floored_remainder, truncated_remainder
from tinygrad.functional.graph_templates import memoised
from tinygrad.graph.leaf_tensors import value_of_its_own
from tinygrad.graph.node_flags import APPLIED
from tinygrad.graph.ops import Ops
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.sizes import Size
from tinygrad.graph.uop import Shape, UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Operand, Tensor


# --- operands -----------------------------------------------------------------------------------------------


def expand_to(x: UOp, shape: Shape) -> UOp:
    """`x` with axes of size 1 in front as needed, expanded to `shape`."""
    if x.shape == shape:
        return x
    return x.reshape((1,) * (len(shape) - len(x.shape)) + x.shape).expand(shape)


def number_dtype(number: Any, dtype: DType) -> DType:
    """The dtype that a Python number and a tensor of `dtype` meet in, or OverflowError where none has it."""
    if dtype.is_float or isinstance(number, bool):
        return dtype
    if isinstance(number, float):
        return dtypes.default_float
    if not dtypes.int64.min <= number <= dtypes.uint64.max:
        dtypes.from_py(number)  # which says so
    return dtypes.from_py(number) if dtype.is_bool else dtype


def _as_operand(name: str, x: Any) -> Any:
    """What is no tensor and no Python number as one of the two."""
    from tinygrad.tensor import Tensor

    if isinstance(x, (np.ndarray, UOp, Size)):
        return Tensor(x, requires_grad=False)
    x = x.item() if isinstance(x, np.generic) else x
    if not isinstance(x, (bool, int, float)):
        kind = f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")
        instead = "; Tensor.from_dlpack(x) makes it one" if hasattr(x, "__dlpack__") else ""
        raise TypeError(f"{name} takes tensors and numbers, got a {kind}{instead}")
    return x


def as_tensor(name: str, x: Operand, like: Tensor) -> Tensor:
    """An operand as a tensor, a number in the dtype in which it and another operand meet."""
    value = x if isinstance(x, type(like)) else _as_operand(name, x)
    if isinstance(value, type(like)):
        return value
    return type(like)(value, like.device, number_dtype(value, like.dtype), requires_grad=False)


_COMPARISONS = frozenset({"lt", "gt", "le", "ge", "eq", "ne"})
_MODULAR = frozenset({"add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"})
"""Functions of integers of which the low bits need the low bits alone: any number will do."""


def operands(name: str, *values: Any) -> tuple[list[UOp], list[Tensor]]:
    """The nodes of `values`, tensors or numbers, in their common shape and dtype; and which of them are
    tensors."""
    from tinygrad.tensor import Tensor

    items = [v if isinstance(v, (Tensor, bool, int, float)) else _as_operand(name, v) for v in values]
    tensors = [v for v in items if isinstance(v, Tensor)]
    if not tensors:
        tensors = [Tensor(items[0], requires_grad=False)]
    dtype = promote(*[t._uop.dtype for t in tensors])
    for i, v in enumerate(items):
        if not isinstance(v, Tensor):
            beyond = dtype.is_int and isinstance(v, int) and not dtype.min <= v <= dtype.max
            if beyond and name in _COMPARISONS:  # as any number beyond the range
                dtype, items[i] = dtypes.float32, math.copysign(math.inf, v)
            dtype = number_dtype(items[i], dtype)
            if beyond and dtype.is_int and name not in _MODULAR:
                dtype.checked(v, from_end=name == "where")
    shape = broadcast_shape(name, *[t._uop.shape for t in tensors])
    nodes = [expand_to(v.uop.cast(dtype), shape) if isinstance(v, Tensor) else UOp.const(v, dtype, shape)
             for v in items]
    return nodes, tensors


def _as_it_is(x: Any, like: Any) -> UOp | None:
    """The node of an operand that meets the tensor `like` without being converted: of most. One more is no
    matter, but where one stands for several already (`graph/template.py`), it does for this one too."""
    node = getattr(like, "_uop", None)
    if node is None or node.flags & APPLIED or (Size.exists and node.has_sizes):
        return None
    if type(x) is type(like):
        return x.uop if x._uop.dtype is node.dtype and x._uop.shape == node.shape and \
            not x._uop.flags & APPLIED else None
    is_number = type(x) in _NUMBERS and node.dtype.min <= x <= node.dtype.max and \
        number_dtype(x, node.dtype) is node.dtype
    return UOp.const(x, node.dtype, node.shape) if is_number else None


_NUMBERS = frozenset({bool, int, float})


def binary(name: str, op: Callable[[UOp, UOp], UOp], a: Any, b: Any, reverse: bool = False) -> Tensor:
    other = _as_it_is(b, a)
    if other is not None:
        result = op(other, a.uop) if reverse else op(a.uop, other)
        return type(a).of(value_of_its_own(result), a)  # type: ignore[no-any-return]
    code = op.__code__ if op.__closure__ is None else op.__dict__.get("code")
    if code is not None and (type(b) in _NUMBERS or type(a) is type(b)):
        converted = _of_converted.get(code)
        if converted is None:
            converted = _of_converted[code] = memoised(_converting(op), first=1)
        return converted(name, a, b, reverse)  # type: ignore[no-any-return]
    return _converting(op)(name, a, b, reverse)


_of_converted: dict[object, Callable[..., Any]] = {}
"""by the code of a binary function, which says all of it, that of operands of several shapes or dtypes"""


def _converting(op: Callable[[UOp, UOp], UOp]) -> Callable[[str, Any, Any, bool], Tensor]:
    """`binary` of operands of several shapes or dtypes."""
    def converted(name: str, a: Any, b: Any, reverse: bool) -> Tensor:
        (x, y), tensors = operands(name, b, a) if reverse else operands(name, a, b)
        return type(tensors[0]).of(value_of_its_own(op(x, y)), *tensors)

    return converted


def unary(self: Tensor, op: Callable[..., UOp], *options: Any) -> Tensor:
    """`op` of a node, and of plain values, which its code says all of."""
    if self._uop.flags & APPLIED and op.__closure__ is None:
        above = _of_applied.get(op.__code__)
        if above is None:
            above = _of_applied[op.__code__] = memoised(partial(_unary, op), first=0)
        return above(self, *options)  # type: ignore[no-any-return]
    return _unary(op, self, *options)


_of_applied: dict[CodeType, Callable[..., Any]] = {}
"""by the code of a unary function, that of values for which one node stands"""


def _unary(op: Callable[..., UOp], self: Tensor, *options: Any) -> Tensor:
    return type(self).of(value_of_its_own(op(self.uop, *options)), self)


def real(self: Tensor, function: Callable[[UOp], UOp]) -> Tensor:
    """`function` of real numbers: integers as the default float, half types in float32, rounded once."""
    dtype = least_upper_float(self.dtype)
    wide = promote(dtype, dtypes.float32)
    return type(self).of(value_of_its_own(function(self.uop.cast(wide)).cast(dtype)), self)


def independent(value: UOp, source: UOp) -> UOp:
    """`value`, of the shape of `source`, whose gradient there is zero."""
    return value.with_gradient((value, source), _only_to_the_value) if source.dtype.is_float else value


def _only_to_the_value(gradient: UOp, node: UOp) -> tuple[UOp, None]:
    return gradient, None


def widest_float(self: Tensor, dtype: DType) -> DType:
    """The type that functions of floats of `dtype` are computed in if they need more digits than it has:
    float64, or float32 where that is no narrower and the tensor's device has no float64."""
    wide = dtypes.float64
    names = self.device if isinstance(self.device, tuple) else (self.device or Device.DEFAULT,)
    is_there = dtype is wide or all(Device[name].has_dtype(wide) for name in names)
    return wide if is_there else dtypes.float32


def real_binary(name: str, function: Callable[[UOp, UOp], UOp], a: Any, b: Any,
                 reverse: bool = False) -> Tensor:
    """`function` of two real numbers, as `real`. An integer that the tensor's type has not, as uint8 has no
    256, is one of the type that this computes in."""
    def widened(x: UOp, y: UOp) -> UOp:
        dtype = least_upper_float(x.dtype)
        wide = promote(dtype, dtypes.float32)
        return function(x.cast(wide), y.cast(wide)).cast(dtype)

    if function.__closure__ is None:
        widened.__dict__["code"] = real_binary, function.__code__
    if a.dtype.is_int and isinstance(b, (int, np.integer)) and not a.dtype.min <= b <= a.dtype.max:
        a, b = a.cast(least_upper_float(a.dtype)), float(b)
    return binary(name, widened, a, b, reverse)


# --- arithmetic ---------------------------------------------------------------------------------------------


def add(self: Tensor, x: Operand, reverse: bool = False, *, alpha: float = 1) -> Tensor:
    """self + alpha * x; for bools, or.

    >>> (Tensor([[1], [2]]) + Tensor([10, 20])).tolist()
    [[11, 21], [12, 22]]
    """
    return binary("add", _sum, self, x if alpha == 1 else as_tensor("add", x, self) * alpha, reverse)


def _sum(a: UOp, b: UOp) -> UOp:
    return a.alu(Ops.OR if a.dtype.is_bool else Ops.ADD, b)


def sub(self: Tensor, x: Operand, reverse: bool = False, *, alpha: float = 1) -> Tensor:
    """self - alpha * x, or alpha * x - self with `reverse`. Raises TypeError for bools."""
    return binary("sub", _difference, self, x if alpha == 1 else as_tensor("sub", x, self) * alpha, reverse)


def _difference(a: UOp, b: UOp) -> UOp:
    if a.dtype.is_bool:
        raise TypeError("sub takes numbers, got bools; use ^ or logical_not()")
    return a.alu(Ops.SUB, b)


def mul(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self * x; for bools, and."""
    if _is_rounded(self.dtype, x):
        return mul(self.cast(dtypes.float32), x, reverse).cast(self.dtype)
    return binary("mul", _product, self, x, reverse)


def _product(a: UOp, b: UOp) -> UOp:
    return a.alu(Ops.AND if a.dtype.is_bool else Ops.MUL, b)


def _is_rounded(dtype: DType, x: Any) -> bool:
    """Whether `x` is a number that half types and smaller do not have: a product or quotient with it is
    rounded once, as in PyTorch."""
    return dtype.is_float and dtype.itemsize < 4 and isinstance(x, (int, float)) and not dtype.is_exact(x)


def neg(self: Tensor) -> Tensor:
    """-self. Raises TypeError for bools."""
    if self.dtype.is_bool:
        raise TypeError("neg takes numbers, got bools; use logical_not()")
    return unary(self, lambda x: -x)


def _floor(x: UOp) -> UOp:
    below = x.trunc()
    return (x < below).where(below - 1, below)


def div(self: Tensor, x: Operand, reverse: bool = False, rounding_mode: str | None = None) -> Tensor:
    """self / x: a float, also of integers. `rounding_mode` "floor" rounds down, "trunc" toward zero, keeping
    integers.

    >>> (Tensor([7, -7]) / 2).tolist(), Tensor([7, -7]).div(2, rounding_mode="trunc").tolist()
    ([3.5, -3.5], [3, -3])
    """
    if rounding_mode is None:
        if _is_rounded(self.dtype, x):
            return div(self.cast(dtypes.float32), x, reverse).cast(self.dtype)
        return real_binary("div", _share, self, x, reverse)
    if rounding_mode == "floor":
        return floordiv(self, x, reverse)
    if rounding_mode != "trunc":
        raise ValueError(f"rounding_mode is None, 'floor' or 'trunc', got {rounding_mode!r}")

    def toward_zero(a: UOp, b: UOp) -> UOp:
        a, b = no_bools("div", a, b)
        if a.dtype.is_float:
            return (a / b).trunc()
        down = a // b
        return ((down < 0) & (down * b).ne(a)).where(down + 1, down)

    return binary("div", toward_zero, self, x, reverse)


def _share(a: UOp, b: UOp) -> UOp:
    return a / b


def no_bools(name: str, a: UOp, b: UOp) -> tuple[UOp, UOp]:
    if a.dtype.is_bool:
        raise TypeError(f"{name} takes numbers, got bools")
    return a, b


def floordiv(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self // x, rounded down as in Python.

    >>> (Tensor([7, -7]) // 2).tolist()
    [3, -4]
    """
    def quotient(a: UOp, b: UOp) -> UOp:
        a, b = no_bools("floordiv", a, b)
        return floored_quotient(a, b, widest_float(self, a.dtype)) if a.dtype.is_float else a // b

    return binary("floordiv", quotient, self, x, reverse)


def mod(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self % x, with the divisor's sign as in Python.

    >>> (Tensor([7, -7]) % 3).tolist()
    [1, 2]
    """
    def remainder(a: UOp, b: UOp) -> UOp:
        a, b = no_bools("mod", a, b)
        return floored_remainder(a, b, widest_float(self, a.dtype)) if a.dtype.is_float else a % b

    return binary("mod", remainder, self, x, reverse)


def fmod(self: Tensor, x: Operand) -> Tensor:
    """The remainder with the sign of self, as in C.

    >>> Tensor([7.5, -7.5]).fmod(2).tolist()
    [1.5, -1.5]
    """
    def remainder(a: UOp, b: UOp) -> UOp:
        a, b = no_bools("fmod", a, b)
        if a.dtype.is_float:
            return truncated_remainder(a, b, widest_float(self, a.dtype))
        rest = a % b
        return (rest.ne(0) & ((a < 0).ne(b < 0))).where(rest - b, rest)

    return binary("fmod", remainder, self, x)


def positive(self: Tensor) -> Tensor:
    """+self: the tensor itself."""
    return self


def reciprocal(self: Tensor) -> Tensor:
    """1 / self.

    >>> Tensor([2, 4]).reciprocal().tolist()
    [0.5, 0.25]
    """
    def inverse(x: UOp) -> UOp:
        number = x.cast(least_upper_float(x.dtype))
        return number._operand(1) / number

    return unary(self, inverse)


def maximum(self: Tensor, x: Operand) -> Tensor:
    """The larger of the two; NaN where either is NaN. Ties share the gradient.

    >>> Tensor([1, 5]).maximum(Tensor([3, 2])).tolist()
    [3, 5]
    """
    return binary("maximum", lambda a, b: a | b if a.dtype.is_bool else a.maximum(b), self, x)


def order_reversed(x: UOp) -> UOp:
    """The value whose order is the opposite: minus x, or for integers and bools the complement, which
    fits."""
    if x.dtype.is_float:
        return -x
    return x.logical_not() if x.dtype.is_bool else x ^ -1


def minimum(self: Tensor, x: Operand) -> Tensor:
    """The smaller of the two; NaN where either is NaN. Ties share the gradient.

    >>> Tensor([1, 5]).minimum(3).tolist()
    [1, 3]
    """
    def smaller(a: UOp, b: UOp) -> UOp:
        return a & b if a.dtype.is_bool else order_reversed(order_reversed(a).maximum(order_reversed(b)))

    return binary("minimum", smaller, self, x)


def clip(self: Tensor, min_: Operand | None = None, max_: Operand | None = None) -> Tensor:
    """Items below `min_` become `min_`, above `max_` become `max_`. NaN stays, and a bound that is NaN makes
    NaN. Raises ValueError without bounds.

    >>> Tensor([-2.0, 0.5, 9.0]).clip(0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    if min_ is None and max_ is None:
        raise ValueError("clip takes min_, max_ or both")
    result = self
    if min_ is not None:
        result = binary("clip", lambda a, b: ((a < b) | b.ne(b)).where(b, a), self,
                        _within(self.dtype, min_))
    if max_ is not None:
        result = binary("clip", lambda a, b: ((a > b) | b.ne(b)).where(b, a), result,
                        _within(self.dtype, max_))
    return result


def _within(dtype: DType, bound: Operand) -> Operand:
    """A bound beyond what an integer type holds as the type's own end."""
    return sorted((dtype.min, bound, dtype.max))[1] if dtype.is_int and type(bound) is int else bound


def lerp(self: Tensor, end: Operand, weight: Operand) -> Tensor:
    """self + weight * (end - self); `end` itself where the weight is 1.

    >>> Tensor([0.0, 10.0]).lerp(Tensor([4.0, 20.0]), 0.25).tolist()
    [1.0, 12.5]
    """
    end = as_tensor("lerp", end, self)
    distance = end - self
    if isinstance(weight, (int, float)):
        return self + distance * weight if abs(weight) < 0.5 else end - distance * (1 - weight)
    weight = as_tensor("lerp", weight, self)
    broadcast_shape("lerp", self.shape, end.shape, weight.shape)
    return (weight.abs() < 0.5).where(self + distance * weight, end - distance * (1 - weight))


def absolute(self: Tensor) -> Tensor:
    """The absolute value."""
    if self.dtype.is_unsigned or self.dtype.is_bool:
        return unary(self, lambda x: x)
    if self.dtype.is_float and self.dtype.itemsize < 4:  # wider, for rounding hides from compilers what it is
        return unary(self, lambda x: _magnitude(x.cast(dtypes.float32)).cast(x.dtype))
    return unary(self, _magnitude)


def _magnitude(x: UOp) -> UOp:
    return x.maximum(-x)


def sign(self: Tensor) -> Tensor:
    """-1, 0 or 1. NaN stays NaN. The gradient is zero.

    >>> Tensor([-3.0, 0.0, 2.0]).sign().tolist()
    [-1.0, 0.0, 1.0]
    """
    if self.dtype.is_bool:
        return unary(self, lambda x: x)

    def node(x: UOp) -> UOp:
        zero_or_nan = x.trunc() if x.dtype.is_float else x  # truncated, its gradient is zero
        return (x > 0).where(1, (x < 0).where(-1, zero_or_nan))

    return unary(self, node)


def copysign(self: Tensor, other: Operand) -> Tensor:
    """The magnitude of self with the sign bit of other; its gradient at 0 is 0.

    >>> Tensor([1.0, 2.0]).copysign(Tensor([-5.0, 5.0])).tolist()
    [-1.0, 2.0]
    """
    def with_sign(a: UOp, b: UOp) -> UOp:
        if not a.dtype.is_float:
            a, b = a.cast(dtypes.default_float), b.cast(dtypes.default_float)
        bits = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[a.dtype.itemsize]
        differ = (a.detach().bitcast(bits) ^ b.detach().bitcast(bits)) < 0
        signed = differ.where(-a, a)
        return independent(a.eq(0).where(signed.detach(), signed), b)

    return binary("copysign", with_sign, self, other)


# --- bits ---------------------------------------------------------------------------------------------------


def _bitwise(name: str, op: Ops, a: Any, b: Any, reverse: bool = False) -> Tensor:
    def apply(x: UOp, y: UOp) -> UOp:
        if x.dtype.is_float or (x.dtype.is_bool and op in (Ops.SHL, Ops.SHR)):
            raise TypeError(f"{name} takes integers{'' if op in (Ops.SHL, Ops.SHR) else ' or bools'}, got "
                            f"{x.dtype}")
        return x.alu(op, y)

    return binary(name, apply, a, b, reverse)


def bitwise_and(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self & x, of integers or bools. Raises TypeError for floats, as the other functions of bits.

    >>> (Tensor([12, 10]) & 6).tolist()
    [4, 2]
    """
    return _bitwise("bitwise_and", Ops.AND, self, x, reverse)


def bitwise_or(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self | x, of integers or bools."""
    return _bitwise("bitwise_or", Ops.OR, self, x, reverse)


def bitwise_xor(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self ^ x, of integers or bools."""
    return _bitwise("bitwise_xor", Ops.XOR, self, x, reverse)


def bitwise_not(self: Tensor) -> Tensor:
    """~self: every bit of an integer, or the opposite of a bool.

    >>> (~Tensor([0, 5])).tolist()
    [-1, -6]
    """
    if self.dtype.is_float:
        raise TypeError(f"bitwise_not takes integers or bools, got {self.dtype}")
    return unary(self, lambda x: x.logical_not() if x.dtype.is_bool else x ^ -1)


def _shift(name: str, op: Ops, a: Any, b: Any, reverse: bool) -> Tensor:
    if isinstance(b, (int, np.integer)) and not reverse and a.dtype.is_int and b < 0:
        raise ValueError(f"{name} takes a count of at least 0, got {b}")
    return _bitwise(name, op, a, b, reverse)


def lshift(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self << x, of integers. By as many bits as there are, or more, all are shifted out: 0. So they are by
    counts below 0 in a tensor; for a number below 0 it raises ValueError.

    >>> (Tensor([1, 3]) << 2).tolist()
    [4, 12]
    """
    return _shift("lshift", Ops.SHL, self, x, reverse)


def rshift(self: Tensor, x: Operand, reverse: bool = False) -> Tensor:
    """self >> x, of integers; the sign stays. Counts are as for `lshift`; where all bits are shifted out, 0
    is left, or -1 of negative numbers."""
    return _shift("rshift", Ops.SHR, self, x, reverse)


# --- rounding -----------------------------------------------------------------------------------------------


def _rounding(self: Tensor, op: Callable[[UOp], UOp]) -> Tensor:
    return unary(self, op if self.dtype.is_float else lambda x: x)


def trunc(self: Tensor) -> Tensor:
    """Rounded toward zero.

    >>> Tensor([-1.5, 1.5]).trunc().tolist()
    [-1.0, 1.0]
    """
    return _rounding(self, lambda x: x.trunc())


def floor(self: Tensor) -> Tensor:
    """Rounded down.

    >>> Tensor([-1.5, 1.5]).floor().tolist()
    [-2.0, 1.0]
    """
    return _rounding(self, _floor)


def ceil(self: Tensor) -> Tensor:
    """Rounded up.

    >>> Tensor([-1.5, 1.5]).ceil().tolist()
    [-1.0, 2.0]
    """
    return _rounding(self, lambda x: -_floor(-x))


def round_half_even(self: Tensor, decimals: int = 0) -> Tensor:
    """Rounded to the nearest whole number, halves to the even one. `decimals`: to so many places after the
    point, or before it with negative ones, by a product and a quotient as PyTorch and NumPy do. Raises
    TypeError for places before the point of integers.

    >>> Tensor([0.5, 1.5, 2.4]).round().tolist()
    [0.0, 2.0, 2.0]
    """
    if decimals:
        if not self.dtype.is_float:
            if decimals < 0:
                raise TypeError(f"round to decimals={decimals} takes floats, got {self.dtype.name}")
            return self
        scale = 10.0 ** abs(decimals)
        wide = self.cast(promote(self.dtype, dtypes.float32))
        found = round_half_even(wide * scale) / scale if decimals > 0 else \
            round_half_even(wide / scale) * scale
        return found.cast(self.dtype)

    def nearest(x: UOp) -> UOp:
        towards_zero = x.trunc()
        rest = x - towards_zero
        rest = rest.maximum(-rest)
        odd = (towards_zero * 0.5).trunc().mulacc(-2.0, towards_zero).ne(0)
        away = (rest > 0.5) | (rest.eq(0.5) & odd)
        return away.where(towards_zero + (x < 0).where(x._operand(-1), x._operand(1)), towards_zero)

    return _rounding(self, nearest)
