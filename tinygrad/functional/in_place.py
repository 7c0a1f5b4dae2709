"""Methods with a last underscore, PyTorch's: they overwrite a tensor with what the method without it gives.

`x.mul_(2)` is `x.assign(x.mul(2))`, and returns x: what is a view of x sees it, and gradients flow as through
other writes (docs/pytorch.md).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinygrad.dtype import dtypes

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


def zero_(self: Tensor) -> Tensor:
    """Overwrites the tensor with zeros, and returns it."""
    return self.assign(0)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrites the tensor with a number, and returns it."""
    return self.assign(value)


def copy_(self: Tensor, src: Tensor) -> Tensor:
    """Overwrites the tensor with another's items, broadcast and cast, and returns it."""
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
    detach_ = detach_
    abs_ = _overwriting("abs")
    add_ = _overwriting("add")
    addcdiv_ = _overwriting("addcdiv")
    addcmul_ = _overwriting("addcmul")
    addmm_ = _overwriting("addmm")
    bitwise_and_ = _overwriting("bitwise_and")
    bitwise_not_ = _overwriting("bitwise_not")
    bitwise_or_ = _overwriting("bitwise_or")
    bitwise_xor_ = _overwriting("bitwise_xor")
    ceil_ = _overwriting("ceil")
    clamp_ = _overwriting("clamp")
    clamp_max_ = _overwriting("clamp_max")
    clamp_min_ = _overwriting("clamp_min")
    clip_ = _overwriting("clip")
    copysign_ = _overwriting("copysign")
    cos_ = _overwriting("cos")
    cumprod_ = _overwriting("cumprod")
    cumsum_ = _overwriting("cumsum")
    div_ = _overwriting("div")
    divide_ = _overwriting("divide")
    erf_ = _overwriting("erf")
    erfinv_ = _overwriting("erfinv")
    exp_ = _overwriting("exp")
    expm1_ = _overwriting("expm1")
    floor_ = _overwriting("floor")
    floor_divide_ = _overwriting("floor_divide")
    fmod_ = _overwriting("fmod")
    frac_ = _overwriting("frac")
    index_add_ = _overwriting("index_add")
    index_copy_ = _overwriting("index_copy")
    index_fill_ = _overwriting("index_fill")
    index_put_ = _overwriting("index_put")
    lerp_ = _overwriting("lerp")
    lgamma_ = _overwriting("lgamma")
    log_ = _overwriting("log")
    log10_ = _overwriting("log10")
    log1p_ = _overwriting("log1p")
    log2_ = _overwriting("log2")
    logical_and_ = _overwriting("logical_and")
    logical_not_ = _overwriting("logical_not")
    logical_or_ = _overwriting("logical_or")
    logical_xor_ = _overwriting("logical_xor")
    masked_fill_ = _overwriting("masked_fill")
    masked_scatter_ = _overwriting("masked_scatter")
    mul_ = _overwriting("mul")
    multiply_ = _overwriting("multiply")
    nan_to_num_ = _overwriting("nan_to_num")
    neg_ = _overwriting("neg")
    negative_ = _overwriting("negative")
    pow_ = _overwriting("pow")
    reciprocal_ = _overwriting("reciprocal")
    relu_ = _overwriting("relu")
    remainder_ = _overwriting("remainder")
    renorm_ = _overwriting("renorm")
    round_ = _overwriting("round")
    rsqrt_ = _overwriting("rsqrt")
    scatter_ = _overwriting("scatter")
    scatter_add_ = _overwriting("scatter_add")
    scatter_reduce_ = _overwriting("scatter_reduce")
    sigmoid_ = _overwriting("sigmoid")
    sign_ = _overwriting("sign")
    sin_ = _overwriting("sin")
    sqrt_ = _overwriting("sqrt")
    square_ = _overwriting("square")
    sub_ = _overwriting("sub")
    subtract_ = _overwriting("subtract")
    tanh_ = _overwriting("tanh")
    tril_ = _overwriting("tril")
    triu_ = _overwriting("triu")
    true_divide_ = _overwriting("true_divide")
    trunc_ = _overwriting("trunc")
