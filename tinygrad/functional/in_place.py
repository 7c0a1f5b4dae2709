"""Methods with a last underscore, PyTorch's: they overwrite a tensor with what the method without it gives.

`x.mul_(2)` is `x.assign(x.mul(2))`, and returns x: what is a view of x sees it, and gradients flow as through
other writes (docs/pytorch.md).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _overwriting(name: str) -> Callable[..., Tensor]:
    """The method that assigns what method `name` gives."""
    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self.assign(getattr(self, name)(*args, **options))
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


class InPlace:
    """The methods that overwrite."""

    zero_ = zero_
    fill_ = fill_
    copy_ = copy_
    uniform_ = uniform_
    normal_ = normal_
    abs_ = _overwriting("abs")
    add_ = _overwriting("add")
    addcdiv_ = _overwriting("addcdiv")
    addcmul_ = _overwriting("addcmul")
    addmm_ = _overwriting("addmm")
    ceil_ = _overwriting("ceil")
    clamp_ = _overwriting("clamp")
    clamp_max_ = _overwriting("clamp_max")
    clamp_min_ = _overwriting("clamp_min")
    div_ = _overwriting("div")
    exp_ = _overwriting("exp")
    floor_ = _overwriting("floor")
    index_add_ = _overwriting("index_add")
    index_copy_ = _overwriting("index_copy")
    index_fill_ = _overwriting("index_fill")
    lerp_ = _overwriting("lerp")
    log_ = _overwriting("log")
    masked_fill_ = _overwriting("masked_fill")
    mul_ = _overwriting("mul")
    neg_ = _overwriting("neg")
    pow_ = _overwriting("pow")
    reciprocal_ = _overwriting("reciprocal")
    relu_ = _overwriting("relu")
    round_ = _overwriting("round")
    rsqrt_ = _overwriting("rsqrt")
    scatter_ = _overwriting("scatter")
    scatter_add_ = _overwriting("scatter_add")
    sigmoid_ = _overwriting("sigmoid")
    sign_ = _overwriting("sign")
    sqrt_ = _overwriting("sqrt")
    square_ = _overwriting("square")
    sub_ = _overwriting("sub")
    tanh_ = _overwriting("tanh")
    tril_ = _overwriting("tril")
    triu_ = _overwriting("triu")
