"""Functions of neural networks that are no family of their own: normalisation, dropout, attention.

Everything is spelled in movement, elementwise and reduce operations of `Tensor`; nothing here is a primitive.
The layers that hold parameters are in `tinygrad.nn`.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinygrad.dtype import DType, dtypes, least_upper_float, promote
from tinygrad.frozen import frozen
from tinygrad.functional.elementwise import independent, unary
from tinygrad.functional.reduce import masked_softmax
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.sizes import is_symbolic
from tinygrad.graph.uop import UOp
from tinygrad.helpers import make_tuple

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def batchnorm(self: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor,
              axis: int | tuple[int, ...] = 1) -> Tensor:
    """(self - mean) * invstd * weight + bias, with the four laid along `axis` of the input.

    `invstd` is 1/sqrt(variance + eps), along `axis` or of a shape that broadcasts.
    """
    axes = tuple(a % self.ndim for a in make_tuple(axis, 1))
    shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
    scale = invstd.reshape(*shape) if invstd.ndim == len(axes) else invstd
    if weight is not None:
        scale = scale * weight.reshape(*shape)
    out = (self - mean.reshape(*shape)) * scale
    return out if bias is None else out + bias.reshape(*shape)


def layernorm(self: Tensor, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Tensor:
    """(self - mean) / sqrt(variance + eps), with mean and (biased) variance over `axis`. Half types are
    computed in float32, for the variance of numbers from 256 on is more than float16 holds.

    >>> Tensor([-1.0, 1.0]).layernorm(eps=0).tolist()
    [-1.0, 1.0]
    """
    dtype = least_upper_float(self.dtype)
    wide = self.cast(promote(dtype, dtypes.float32))
    centred = wide - wide.mean(axis, keepdim=True)
    return (centred * ((centred * centred).mean(axis, keepdim=True) + eps).rsqrt()).cast(dtype)


def rmsnorm(x: Tensor, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean of squares + eps), with the mean over `axis`."""
    return x * (x.square().mean(axis, keepdim=True) + eps).rsqrt()


def rotated(x: Tensor, cosines: Tensor, sines: Tensor, adjacent: bool) -> Tensor:
    """`x` (..., n) with n' pairs of items of the last axis turned by n' angles (Su et al., 2021), whose
    cosines and sines (..., n') are given. A pair is items 2i and 2i + 1 if they are `adjacent`, else i and
    i + n'. Items from 2n' on stay."""
    half = cosines.shape[-1]
    turned, rest = x[..., :2 * half], x[..., 2 * half:]
    if adjacent:
        pairs = turned.unflatten(-1, (half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = turned[..., :half], turned[..., half:]
    real, imaginary = first * cosines - second * sines, second * cosines + first * sines
    both = real.stack(imaginary, dim=-1).flatten(-2) if adjacent else real.cat(imaginary, dim=-1)
    return both if 2 * half == x.shape[-1] else both.cat(rest, dim=-1)


def normalize(self: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """self / max(norm, eps), with the p-norm over axis `dim`. p may be 0 (count of non-zeros) or infinite
    (largest magnitude, or smallest). The gradient of the norm is 0 where the norm is.

    >>> Tensor([[0.0, 4.0]]).normalize().tolist()
    [[0.0, 1.0]]
    """
    return self / self.norm(p, dim, keepdim=True).maximum(eps)


def dropout(self: Tensor, p: float = 0.5) -> Tensor:
    """While `Tensor.training`: each item is zero with probability `p`, else divided by 1 - p. Otherwise the
    input.

    Raises ValueError for a `p` outside 0 to 1.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout takes a probability from 0 to 1, got {p}")
    from tinygrad.tensor import Tensor

    if not Tensor.training or p == 0:
        return self
    if p == 1:
        return unary(self, lambda x: independent(x._operand(0), x))
    draws = Tensor.rand(*self.shape, device=self.device, dtype=dtypes.float32, contiguous=False,
                        requires_grad=False)
    # the mask is stored (a byte an item): the backward pass then reads it instead of drawing again
    return (draws >= p).contiguous().where(self * (1 / (1 - p)), 0)


@frozen
class RoundedGradient:
    """The gradient at a value that is wider than what it is made of, rounded to that: the products that it
    goes into are of two values of one type then, as matrix units take them."""

    dtype: DType

    def __call__(self, gradient: UOp, node: UOp) -> tuple[UOp]:
        return (gradient.cast(self.dtype).cast(gradient.dtype),)


def scaled_dot_product_attention(self: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False,
                                 enable_gqa: bool = False) -> Tensor:
    """softmax(self @ key.T / sqrt(E) + mask) @ value, the attention of "Attention Is All You Need".

    Shapes: self (..., H, L, E), key (..., H, S, E), value (..., H, S, Ev); result (..., H, L, Ev).
    `attn_mask` broadcasts to (..., H, L, S): a bool (True: takes part) or a float that is added. `is_causal`:
    query i sees keys 0 to i. `enable_gqa`: key and value may have fewer heads, each used by a group of
    consecutive query heads. The softmax is computed in float32 at least; the gradient of its input is rounded
    to the type of query and key, if both are of one half type. A query that the mask lets see no key gets
    zeros. Dropout applies while training.

    >>> query, key = Tensor([[1000.0, 0.0]]), Tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> query.scaled_dot_product_attention(key, Tensor([[5.0], [7.0]])).tolist()
    [[5.0]]
    """
    if self.ndim < 2 or key.ndim < 2 or value.ndim < 2 or self.shape[-1] != key.shape[-1] \
            or key.shape[-2] != value.shape[-2]:
        raise ValueError(f"scaled_dot_product_attention takes query (..., L, E), key (..., S, E) and "
                         f"value (..., S, Ev), got {self.shape}, {key.shape} and {value.shape}")
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention takes attn_mask or is_causal=True, not both")
    if enable_gqa:
        heads, groups = self.shape[-3], key.shape[-3]
        if heads % groups != 0 or value.shape[-3] != groups:
            raise ValueError(f"enable_gqa takes query heads divisible by the key and value heads, "
                             f"got {self.shape}, {key.shape} and {value.shape}")
        key = key.repeat_interleave(heads // groups, dim=-3)
        value = value.repeat_interleave(heads // groups, dim=-3)
    from tinygrad.tensor import Tensor

    wide = promote(self.dtype, dtypes.float32)
    products = self.matmul(key.transpose(-2, -1), dtype=wide)
    if self.dtype is key.dtype and self.dtype in (dtypes.float16, dtypes.bfloat16):
        rounded = RoundedGradient(self.dtype)
        products = products.of(products.uop.with_gradient((products.uop,), rounded), products)
    width = self.shape[-1]
    if is_symbolic((width,)):
        scores = products / (Tensor.ones(dtype=wide, device=self.device) * width).sqrt()
    else:
        scores = products * (1 / math.sqrt(max(width, 1)))
    is_masked = attn_mask is not None
    if is_causal:
        queries, keys = scores.shape[-2:]
        number = Tensor.arange(queries, device=self.device).unsqueeze(1)
        attn_mask = Tensor.arange(keys, device=self.device) <= number
    if attn_mask is not None:
        if broadcast_shape("scaled_dot_product_attention's scores and attn_mask", scores.shape,
                           attn_mask.shape) != scores.shape:
            raise ValueError(f"scaled_dot_product_attention takes an attn_mask that broadcasts to its scores "
                             f"{scores.shape}, got {attn_mask.shape}")
        if attn_mask.dtype.is_bool:
            scores = attn_mask.where(scores, -math.inf)
        else:
            scores = scores + attn_mask
    weights = masked_softmax(scores, scores.dtype) if is_masked else scores.softmax(-1)
    return weights.cast(self.dtype).dropout(dropout_p).matmul(value)


def sequential(self: Tensor, ll: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """The functions (or layers) applied one after another.

    >>> Tensor([-1.0, 4.0]).sequential([Tensor.relu, Tensor.sqrt]).tolist()
    [0.0, 2.0]
    """
    return functools.reduce(lambda x, f: f(x), ll, self)
