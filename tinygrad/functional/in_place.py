"""Methods with a last underscore, PyTorch's: they overwrite a tensor with what the method without it gives.

`x.mul_(2)` is `x.assign(x.mul(2))`, and returns x: what is a view of x sees it, and gradients flow as through
other writes (docs/pytorch.md).
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinygrad.dtype import dtypes
from tinygrad.tensor.live import Unrealized

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _overwriting(name: str) -> Callable[..., Tensor]:
    """The method that assigns what method `name` gives, bools as ones and zeros."""
    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        value = getattr(self, name)(*args, **options)
        return self.assign(value.cast(self.dtype) if value.dtype.is_bool else value)
    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"Overwrites the tensor with `{name}` of it, and returns it."
    return method


def _rearranging(name: str) -> Callable[..., Tensor]:
    """The method that makes the tensor the view of itself that method `name` gives."""
    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        view = getattr(self, name)(*args, **options)
        self._uop = view._uop  # in the alias set that both are in, if there is one
        Unrealized.note(self._uop)
        return self
    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"Makes the tensor what `{name}` of it is, a view of the same memory, and returns it."
    return method


def zero_(self: Tensor) -> Tensor:
    """Overwrites the tensor with zeros, and returns it."""
    return self.assign(0)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrites the tensor with a number, and returns it."""
    return self.assign(value)


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Overwrites the tensor with another's items, broadcast and cast, and returns it. `non_blocking` changes
    nothing: no copy blocks."""
    return self.assign(src.to(self.device).cast(self.dtype))


def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Overwrites the tensor with uniform draws from a to b, and returns it."""
    return self.assign(self.rand_like(requires_grad=False) * (b - a) + a)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Overwrites the tensor with normal draws, and returns it."""
    return self.assign(self.randn_like(requires_grad=False) * std + mean)


def bernoulli_(self: Tensor, p: Any = 0.5) -> Tensor:
    """Overwrites the tensor with ones of probability `p`, a number or a tensor, else zeros; returns it."""
    return self.assign((self.rand_like(dtype=dtypes.float32, requires_grad=False) < p).cast(self.dtype))


def exponential_(self: Tensor, lambd: float = 1.0) -> Tensor:
    """Overwrites the tensor with draws of mean 1 / `lambd`, exponentially distributed, and returns it."""
    return self.assign((1 - self.rand_like(requires_grad=False)).log() / -lambd)


def random_(self: Tensor, low: int = 0, high: int | None = None) -> Tensor:
    """Overwrites the tensor with whole numbers from `low` to `high` - 1, or from 0 to the one that is given
    less 1, and returns it."""
    first, end = (0, low) if high is None else (low, high)
    if first >= end:
        raise ValueError("random_ takes random_(end) or random_(first, end) with first < end, got "
                         f"{first} and {end}")
    kind = self.dtype if self.dtype.is_int else dtypes.int32
    drawn = type(self).randint(*self.shape, low=first, high=end, dtype=kind, device=self.device)
    return self.assign(drawn.cast(self.dtype))


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """Overwrites the tensor with draws of Cauchy's distribution, and returns it."""
    return self.assign(((self.rand_like(requires_grad=False) - 0.5) * math.pi).tan() * sigma + median)


def geometric_(self: Tensor, p: float) -> Tensor:
    """Overwrites the tensor with how many draws of probability `p` it takes to get one, and returns it."""
    if not 0 < p < 1:
        raise ValueError(f"geometric_ takes a probability between 0 and 1, got {p}")
    draws = 1 - self.rand_like(dtype=dtypes.float32, requires_grad=False)
    return self.assign((draws.log() / math.log1p(-p)).ceil().maximum(1).cast(self.dtype))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """Overwrites the tensor with e to normal draws, and returns it."""
    return self.assign((self.randn_like(requires_grad=False) * std + mean).exp())


def detach_(self: Tensor) -> Tensor:
    """Cuts the tensor off from what it was computed from, as `detach` does, and returns it."""
    return self.replace(self.detach())


class InPlace:
    """The methods that overwrite."""

    zero_ = zero_
    fill_ = fill_
    copy_ = copy_
    uniform_ = uniform_
    normal_ = normal_
    bernoulli_ = bernoulli_
    exponential_ = exponential_
    random_ = random_
    cauchy_ = cauchy_
    geometric_ = geometric_
    log_normal_ = log_normal_
    detach_ = detach_
    squeeze_ = _rearranging("squeeze")
    unsqueeze_ = _rearranging("unsqueeze")
    t_ = _rearranging("t")
    transpose_ = _rearranging("transpose")
    swapaxes_ = _rearranging("swapaxes")
    swapdims_ = _rearranging("swapdims")
    abs_ = _overwriting("abs")
    absolute_ = _overwriting("absolute")
    acos_ = _overwriting("acos")
    acosh_ = _overwriting("acosh")
    add_ = _overwriting("add")
    addbmm_ = _overwriting("addbmm")
    addcdiv_ = _overwriting("addcdiv")
    addcmul_ = _overwriting("addcmul")
    addmm_ = _overwriting("addmm")
    addmv_ = _overwriting("addmv")
    addr_ = _overwriting("addr")
    arccos_ = _overwriting("arccos")
    arccosh_ = _overwriting("arccosh")
    arcsin_ = _overwriting("arcsin")
    arcsinh_ = _overwriting("arcsinh")
    arctan_ = _overwriting("arctan")
    arctan2_ = _overwriting("arctan2")
    arctanh_ = _overwriting("arctanh")
    asin_ = _overwriting("asin")
    asinh_ = _overwriting("asinh")
    atan_ = _overwriting("atan")
    atan2_ = _overwriting("atan2")
    atanh_ = _overwriting("atanh")
    baddbmm_ = _overwriting("baddbmm")
    bitwise_and_ = _overwriting("bitwise_and")
    bitwise_left_shift_ = _overwriting("bitwise_left_shift")
    bitwise_not_ = _overwriting("bitwise_not")
    bitwise_or_ = _overwriting("bitwise_or")
    bitwise_right_shift_ = _overwriting("bitwise_right_shift")
    bitwise_xor_ = _overwriting("bitwise_xor")
    ceil_ = _overwriting("ceil")
    clamp_ = _overwriting("clamp")
    clamp_max_ = _overwriting("clamp_max")
    clamp_min_ = _overwriting("clamp_min")
    clip_ = _overwriting("clip")
    copysign_ = _overwriting("copysign")
    cos_ = _overwriting("cos")
    cosh_ = _overwriting("cosh")
    cumprod_ = _overwriting("cumprod")
    cumsum_ = _overwriting("cumsum")
    deg2rad_ = _overwriting("deg2rad")
    digamma_ = _overwriting("digamma")
    div_ = _overwriting("div")
    divide_ = _overwriting("divide")
    eq_ = _overwriting("eq")
    erf_ = _overwriting("erf")
    erfc_ = _overwriting("erfc")
    erfinv_ = _overwriting("erfinv")
    exp_ = _overwriting("exp")
    exp2_ = _overwriting("exp2")
    expm1_ = _overwriting("expm1")
    fix_ = _overwriting("fix")
    floor_ = _overwriting("floor")
    floor_divide_ = _overwriting("floor_divide")
    fmod_ = _overwriting("fmod")
    frac_ = _overwriting("frac")
    gcd_ = _overwriting("gcd")
    ge_ = _overwriting("ge")
    greater_ = _overwriting("greater")
    greater_equal_ = _overwriting("greater_equal")
    gt_ = _overwriting("gt")
    heaviside_ = _overwriting("heaviside")
    hypot_ = _overwriting("hypot")
    i0_ = _overwriting("i0")
    index_add_ = _overwriting("index_add")
    index_copy_ = _overwriting("index_copy")
    index_fill_ = _overwriting("index_fill")
    index_put_ = _overwriting("index_put")
    index_reduce_ = _overwriting("index_reduce")
    lcm_ = _overwriting("lcm")
    ldexp_ = _overwriting("ldexp")
    le_ = _overwriting("le")
    lerp_ = _overwriting("lerp")
    less_ = _overwriting("less")
    less_equal_ = _overwriting("less_equal")
    lgamma_ = _overwriting("lgamma")
    log_ = _overwriting("log")
    log10_ = _overwriting("log10")
    log1p_ = _overwriting("log1p")
    log2_ = _overwriting("log2")
    logical_and_ = _overwriting("logical_and")
    logical_not_ = _overwriting("logical_not")
    logical_or_ = _overwriting("logical_or")
    logical_xor_ = _overwriting("logical_xor")
    logit_ = _overwriting("logit")
    lt_ = _overwriting("lt")
    masked_fill_ = _overwriting("masked_fill")
    masked_scatter_ = _overwriting("masked_scatter")
    mul_ = _overwriting("mul")
    multiply_ = _overwriting("multiply")
    mvlgamma_ = _overwriting("mvlgamma")
    nan_to_num_ = _overwriting("nan_to_num")
    ne_ = _overwriting("ne")
    neg_ = _overwriting("neg")
    negative_ = _overwriting("negative")
    nextafter_ = _overwriting("nextafter")
    not_equal_ = _overwriting("not_equal")
    polygamma_ = _overwriting("polygamma")
    pow_ = _overwriting("pow")
    put_ = _overwriting("put")
    rad2deg_ = _overwriting("rad2deg")
    reciprocal_ = _overwriting("reciprocal")
    relu_ = _overwriting("relu")
    remainder_ = _overwriting("remainder")
    renorm_ = _overwriting("renorm")
    round_ = _overwriting("round")
    rsqrt_ = _overwriting("rsqrt")
    scatter_ = _overwriting("scatter")
    scatter_add_ = _overwriting("scatter_add")
    scatter_reduce_ = _overwriting("scatter_reduce")
    sgn_ = _overwriting("sgn")
    sigmoid_ = _overwriting("sigmoid")
    sign_ = _overwriting("sign")
    sin_ = _overwriting("sin")
    sinc_ = _overwriting("sinc")
    sinh_ = _overwriting("sinh")
    sqrt_ = _overwriting("sqrt")
    square_ = _overwriting("square")
    sub_ = _overwriting("sub")
    subtract_ = _overwriting("subtract")
    tan_ = _overwriting("tan")
    tanh_ = _overwriting("tanh")
    tril_ = _overwriting("tril")
    triu_ = _overwriting("triu")
    true_divide_ = _overwriting("true_divide")
    trunc_ = _overwriting("trunc")
    xlogy_ = _overwriting("xlogy")
