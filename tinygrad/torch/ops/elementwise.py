"""Item by item: arithmetic, comparisons, activation functions, casts."""
from __future__ import annotations

import math
import operator as op
from collections.abc import Callable
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.checks import require
from tinygrad.torch.registry import enter_all, operator

LAST_E4M3 = 448.0
WIDER: dict[DType | None, DType] = {
    dtypes.int8: dtypes.int32, dtypes.uint8: dtypes.int32, dtypes.int16: dtypes.int32,
    dtypes.uint16: dtypes.int32, dtypes.uint32: dtypes.int64}
"""The integers that floats become on their way to narrower ones."""


def tensor(x: Any, like: Tensor) -> Tensor:
    """`x`, where it is a number as a tensor of `like`'s dtype."""
    return x if isinstance(x, Tensor) else Tensor.full((), wrapped(x, like), dtype=like.dtype, device="CPU")


def wrapped(x: Any, like: Any) -> Any:
    """`x`, where it is a whole number beside a tensor of integers as these hold it: 255 of -1 in a byte."""
    is_beside = type(x) is int and isinstance(like, Tensor) and like.dtype.is_int
    return like.dtype.as_const(x) if is_beside else x


def scaled(x: Any, alpha: float) -> Any:
    """`x` times `alpha`, of the dtype that `x` has."""
    return x if alpha == 1 else x * alpha


def add(x: Any, y: Any, alpha: float = 1) -> Tensor:
    if not isinstance(x, Tensor):  # a number: a gradient of PhiMoE's has such a sum
        return add(scaled(y, alpha), x)
    return x.bitwise_or(y) if x.dtype == dtypes.bool else x.add(scaled(y, alpha))


def mul(x: Any, y: Any) -> Tensor:
    if not isinstance(x, Tensor):
        return mul(y, x)
    return x.bitwise_and(y) if x.dtype == dtypes.bool else x.mul(y)


def divisor(x: Any, y: Any) -> Any:
    """`y`, which is not to be 0 where both are integers and something is divided."""
    y = wrapped(y, x)
    if isinstance(x, Tensor) and 0 in x.shape:
        return y
    if isinstance(y, Tensor):
        if not y.dtype.is_float:
            require(y.ne(0).all(), RuntimeError("ZeroDivisionError"))
    elif y == 0 and not x.dtype.is_float:
        raise RuntimeError("ZeroDivisionError")
    return y


def remainder(x: Any, y: Any) -> Tensor:
    y = divisor(x, y)
    return x.mod(y) if isinstance(x, Tensor) else Tensor.mod(tensor(x, y), y)


def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return (x > 0).where(x * scale, (x * input_scale).expm1() * (alpha * scale))


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    lower, upper = (wrapped(x.dtype.checked(n), x) if type(n) is int else n for n in (min, max))
    larger = x if lower is None else x.maximum(lower)
    return larger if upper is None else larger.minimum(upper)


def quotient(x: Any, y: Any, rounding_mode: str | None = None) -> Tensor:
    return (x if isinstance(x, Tensor) else tensor(x, y)).div(divisor(x, y), rounding_mode=rounding_mode)


def sigmoid_gradient(g: Tensor, y: Tensor) -> Tensor:
    return g * (y * (1 - y))


def tanh_gradient(g: Tensor, y: Tensor) -> Tensor:
    return g * (1 - y * y)


def threshold_gradient(g: Tensor, x: Tensor, threshold: float) -> Tensor:
    return (x > threshold).where(g, 0)


def the_number(x: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
    """`chosen`, but of a NaN and a number the number."""
    return x.isnan().where(y, y.isnan().where(x, chosen)) if x.dtype.is_float else chosen


def shifted(x: Any, y: Any, shift: Callable[..., Tensor], beyond: Any) -> Tensor:
    """`x` shifted by `y` bits; `beyond` where those are fewer than none, or all that it has."""
    x, y = (x, tensor(y, x)) if isinstance(x, Tensor) else (tensor(x, y), y)
    outside = (y < 0) | (y >= x.dtype.itemsize * 8)
    moved: Tensor = outside.where(beyond, shift(x, outside.where(0, y)))
    return moved


def shifted_left(x: Any, y: Any) -> Tensor:
    return shifted(x, y, Tensor.lshift, 0)


def shifted_right(x: Any, y: Any) -> Tensor:
    return shifted(x, y, Tensor.rshift, (x < 0).where(-1, 0) if isinstance(x, Tensor) else -(x < 0))


def rounded(x: Tensor, decimals: int) -> Tensor:
    """To the nearest multiple of 10^-decimals, halves to even ones."""
    scale = 10.0 ** abs(decimals)
    return (x * scale).round() / scale if decimals > 0 else (x / scale).round() * scale


def hypotenuse(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x^2 + y^2), without squares that overflow."""
    larger, smaller = x.abs().maximum(y.abs()), x.abs().minimum(y.abs())
    ratio = smaller / (larger == 0).where(1, larger)
    infinite = x.isinf() | y.isinf()
    return infinite.where(math.inf, larger * (ratio * ratio + 1).sqrt())


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y): that of the smaller side over the larger, turned to its octant."""
    wide, tall = x.abs(), y.abs()
    both_zero = (wide == 0) & (tall == 0)
    both_infinite = wide.isinf() & tall.isinf()
    larger = both_zero.where(1, wide.maximum(tall))
    ratio = both_infinite.where(1, wide.minimum(tall) / larger)
    angle = (tall > wide).where(math.pi / 2 - ratio.atan(), ratio.atan())
    turned = (Tensor.ones_like(x).copysign(x) < 0).where(math.pi - angle, angle)
    return turned.copysign(y)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; 0 of NaN."""
    return x.isnan().where(0, x.sign()) if x.dtype.is_float else x.sign()


def power(x: Any, y: Any) -> Tensor:
    return x.pow(y) if isinstance(x, Tensor) else tensor(x, y).pow(y)


def cast(x: Tensor, dtype: DType | None = None, **options: Any) -> Tensor:
    """What is beyond the numbers of float8_e4m3fn is the last of them, as in PyTorch, and a float that is
    beyond those of narrow integers wraps: 44 of 300 and 255 of -1 in a byte."""
    if dtype is dtypes.fp8e4m3 and x.dtype is not dtype:
        x = x.clip(-LAST_E4M3, LAST_E4M3)
    if dtype in WIDER and x.dtype.is_float:
        x = x.cast(WIDER[dtype])
    return x if dtype is None else x.cast(dtype)


def comparison(compare: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    def compared(x: Any, y: Any) -> Tensor:
        return compare(wrapped(x, y), wrapped(y, x))
    return compared


enter_all({
    "abs": Tensor.abs, "acos": Tensor.acos, "acosh": Tensor.acosh, "asin": Tensor.asin, "asinh": Tensor.asinh,
    "atan": Tensor.atan, "atanh": Tensor.atanh, "cos": Tensor.cos, "cosh": Tensor.cosh, "sin": Tensor.sin,
    "sinh": Tensor.sinh, "tan": Tensor.tan, "tanh": Tensor.tanh, "exp": Tensor.exp, "exp2": Tensor.exp2,
    "expm1": Tensor.expm1, "log": Tensor.log, "log2": Tensor.log2, "log10": Tensor.log10,
    "log1p": Tensor.log1p,
    "sqrt": Tensor.sqrt, "rsqrt": Tensor.rsqrt, "reciprocal": Tensor.reciprocal, "erf": Tensor.erf,
    "erfc": Tensor.erfc, "sigmoid": Tensor.sigmoid, "relu": Tensor.relu, "neg": Tensor.neg,
    "sign": sign,
    "ceil": Tensor.ceil, "floor": Tensor.floor, "trunc": Tensor.trunc, "round": Tensor.round,
    "add.Tensor add.Scalar": add,
    "sub.Tensor sub.Scalar": lambda x, y, alpha=1: x - scaled(y, alpha),
    "mul.Tensor mul.Scalar": mul,
    "prims.fma": lambda x, y, z: x * y + z,
    "true_divide.Tensor div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode": quotient,
    "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": remainder,
    "fmod.Tensor fmod.Scalar": lambda x, y: x.fmod(divisor(x, y)),
    "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar": power,
    "atan2": atan2, "maximum": Tensor.maximum, "minimum": Tensor.minimum, "copysign.Tensor": Tensor.copysign,
    "bitwise_and.Tensor bitwise_and.Scalar": lambda x, y: x & y,
    "bitwise_or.Tensor bitwise_or.Scalar": lambda x, y: x | y,
    "bitwise_xor.Tensor bitwise_xor.Scalar": lambda x, y: x ^ y,
    "bitwise_not": Tensor.bitwise_not,
    "clamp clamp.Tensor": clamp,
    "hardtanh": lambda x, min_val=-1, max_val=1: clamp(x, min_val, max_val),
    "elu": elu, "gelu": lambda x, approximate="none": x.gelu(approximate),
    "leaky_relu": lambda x, negative_slope=0.01: (x > 0).where(x, x * negative_slope),
    "silu": Tensor.silu,
    "fmax": lambda x, y: the_number(x, y, x.maximum(y)), "fmin": lambda x, y: the_number(x, y, x.minimum(y)),
    "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": shifted_left,
    "bitwise_left_shift.Scalar_Tensor __lshift__.Tensor __lshift__.Scalar": shifted_left,
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": shifted_right,
    "bitwise_right_shift.Scalar_Tensor __rshift__.Tensor __rshift__.Scalar": shifted_right,
    "hypot": hypotenuse, "logaddexp": Tensor.logaddexp,
    "sigmoid_backward": sigmoid_gradient, "tanh_backward": tanh_gradient,
    "threshold_backward": threshold_gradient,
}, promoted=True)

enter_all({f"{name}.Tensor {name}.Scalar": comparison(compare) for name, compare in {
    "eq": op.eq, "ne": op.ne, "lt": op.lt, "le": op.le, "gt": op.gt, "ge": op.ge}.items()})

enter_all({
    "isnan": Tensor.isnan, "isinf": Tensor.isinf,
    "logical_not": Tensor.logical_not,
    "logical_and": lambda x, y: x.cast(dtypes.bool) & y.cast(dtypes.bool),
    "logical_or": lambda x, y: x.cast(dtypes.bool) | y.cast(dtypes.bool),
    "logical_xor": lambda x, y: x.cast(dtypes.bool) ^ y.cast(dtypes.bool),
    "_to_copy prims.convert_element_type": cast, "round.decimals": lambda x, decimals=0: rounded(x, decimals),
    "signbit": lambda x: Tensor.ones_like(x).copysign(x) < 0 if x.dtype.is_float else x < 0,
})


@operator("where.self")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return condition.cast(dtypes.bool).where(x, y)


@operator("gelu_backward")
def gelu_gradient(g: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    return x.gelu(approximate).gradient(x, gradient=g)[0]
