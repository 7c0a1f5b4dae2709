"""The functions of `torch.nn.functional`, with PyTorch's parameters in PyTorch's order and with its defaults.

Most call the method of `Tensor` of that name, whose parameters are tinygrad's and may have another order, and
other defaults. `import tinygrad.nn.functional as F` reads as in PyTorch.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tinygrad.dtype import DTypeLike, dtypes, promote
from tinygrad.functional.casts import as_real
from tinygrad.functional.nn import rmsnorm
from tinygrad.functional.pooling import adaptive_average, adaptive_largest
from tinygrad.functional.transforms import vjp
from tinygrad.functional.windows import pad_spatial, per_axis, sliding_windows
from tinygrad.helpers import make_tuple, prod
from tinygrad.nn.grids import affine_grid as affine_grid
from tinygrad.nn.grids import grid_sample as grid_sample
from tinygrad.nn.losses import binary_cross_entropy as binary_cross_entropy
from tinygrad.nn.losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from tinygrad.nn.losses import cosine_embedding_loss as cosine_embedding_loss
from tinygrad.nn.losses import cosine_similarity as cosine_similarity
from tinygrad.nn.losses import cross_entropy as cross_entropy
from tinygrad.nn.losses import ctc_loss as ctc_loss
from tinygrad.nn.losses import gaussian_nll_loss as gaussian_nll_loss
from tinygrad.nn.losses import hinge_embedding_loss as hinge_embedding_loss
from tinygrad.nn.losses import huber_loss as huber_loss
from tinygrad.nn.losses import kl_div as kl_div
from tinygrad.nn.losses import l1_loss as l1_loss
from tinygrad.nn.losses import margin_ranking_loss as margin_ranking_loss
from tinygrad.nn.losses import mse_loss as mse_loss
from tinygrad.nn.losses import multi_margin_loss as multi_margin_loss
from tinygrad.nn.losses import multilabel_margin_loss as multilabel_margin_loss
from tinygrad.nn.losses import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from tinygrad.nn.losses import nll_loss as nll_loss
from tinygrad.nn.losses import pairwise_distance as pairwise_distance
from tinygrad.nn.losses import poisson_nll_loss as poisson_nll_loss
from tinygrad.nn.losses import smooth_l1_loss as smooth_l1_loss
from tinygrad.nn.losses import soft_margin_loss as soft_margin_loss
from tinygrad.nn.losses import triplet_margin_loss as triplet_margin_loss
from tinygrad.nn.losses import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from tinygrad.tensor import Tensor

Sizes = int | Sequence[int]
Factors = float | Sequence[float] | None

# --- activations --------------------------------------------------------------------------------------------

tanh, sigmoid, logsigmoid, softsign = Tensor.tanh, Tensor.sigmoid, Tensor.logsigmoid, Tensor.softsign
hardshrink, prelu, normalize = Tensor.hardshrink, Tensor.prelu, Tensor.normalize


def _result(input: Tensor, value: Tensor, inplace: bool) -> Tensor:
    return input.assign(value) if inplace else value


def _activation(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """One without other parameters."""
    def activation(input: Tensor, inplace: bool = False) -> Tensor:
        return _result(input, function(input), inplace)
    activation.__name__ = activation.__qualname__ = function.__name__
    activation.__doc__ = f"`Tensor.{function.__name__}`; `inplace` overwrites the input with it."
    return activation


relu, relu6, silu, mish = map(_activation, (Tensor.relu, Tensor.relu6, Tensor.silu, Tensor.mish))
hardsigmoid, hardswish = map(_activation, (Tensor.hardsigmoid, Tensor.hardswish))


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """`Tensor.selu` with the constants in full."""
    return _result(input, input.selu(1.6732632423543772, 1.0507009873554805), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`Tensor.elu`."""
    return _result(input, input.elu(alpha), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`Tensor.celu`."""
    return _result(input, input.celu(alpha), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """`Tensor.leaky_relu`."""
    return _result(input, input.leaky_relu(negative_slope), inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """`Tensor.hardtanh`."""
    return _result(input, input.hardtanh(min_val, max_val), inplace)


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
          inplace: bool = False) -> Tensor:
    """Negative items times a number between `lower` and `upper`: drawn for each while `training`, else their
    mean (Xu and others, 2015)."""
    if not lower <= upper:
        raise ValueError(f"rrelu takes lower <= upper, got {lower} and {upper}")
    slope = input.rand_like() * (upper - lower) + lower if training else (lower + upper) / 2
    return _result(input, (input > 0).where(input, input * slope), inplace)


relu_, selu_, elu_, leaky_relu_, hardtanh_ = (
    partial(function, inplace=True) for function in (relu, selu, elu, leaky_relu, hardtanh))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """What is above the threshold as it is, all else (NaN not) as `value`."""
    return _result(input, (input <= threshold).where(value, input), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """`Tensor.gelu`, here by the error function unless `approximate` is "tanh"."""
    return input.gelu(approximate)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`Tensor.softplus`, and the input itself where beta times it is above the threshold."""
    return (input * beta > threshold).where(input, input.softplus(beta))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Nearer to 0 by lambd, 0 where it is as near already."""
    if lambd < 0:
        raise ValueError(f"softshrink takes lambd >= 0, got {lambd}")
    return (input.abs() <= lambd).where(0, (input > 0).where(input - lambd, input + lambd))


def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input)."""
    return input - input.tanh()


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second (Dauphin and others, 2016)."""
    if not input.ndim or input.shape[dim] % 2:
        raise ValueError(f"glu takes an axis of even size, got axis {dim} of shape {input.shape}")
    values, gates = input.chunk(2, dim)
    return values * gates.sigmoid()


def _softmax_of(name: str) -> Callable[..., Tensor]:
    def function(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
        axis = (0 if input.ndim in (0, 1, 3) else 1) if dim is None else dim
        found: Tensor = getattr(input, name)(axis, dtype)
        return found
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`Tensor.{name}`. Without an axis, as PyTorch: axis 0 of 1 or 3 axes, else axis 1."
    return function


softmax, log_softmax, softmin = map(_softmax_of, ("softmax", "log_softmax", "softmin"))


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, *, dim: int = -1) -> Tensor:
    """The softmax of (logits + Gumbel noise) / tau; `hard`: one-hot, with that one's gradient (Jang, Gu and
    Poole, 2016)."""
    uniform = logits.rand_like(requires_grad=False)
    noise = -(-(1 - uniform).log()).maximum(1e-38).log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = soft.argmax(dim).one_hot(logits.shape[dim]).movedim(-1, dim).cast(soft.dtype)
    return chosen - soft.detach() + soft


# --- dropout ------------------------------------------------------------------------------------------------


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`Tensor.dropout` while `training`: an argument, which is not `Tensor.training`."""
    with Tensor.train(training):
        return _result(input, input.dropout(p), inplace)


def _channel_dropout(lead: Callable[[Tensor], int]) -> Callable[..., Tensor]:
    def function(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        axes = lead(input)
        ones = Tensor.ones(*input.shape[:axes], *(1,) * (input.ndim - axes), dtype=input.dtype,
                           device=input.device, requires_grad=False)
        return _result(input, input * dropout(ones, p), inplace) if training and p else input
    function.__doc__ = "`dropout` of whole channels: (N, channels, ...)."
    return function


SELU_AT_MINUS_INFINITY = -1.7580993408473766


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Items of probability `p` as `selu` has them at minus infinity, and all scaled and moved so that mean
    and variance of what is normally distributed stay (Klambauer and others, 2017)."""
    return _alpha_dropped(input, p, training, inplace, input.shape)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
                          ) -> Tensor:
    """`alpha_dropout` of whole channels: (N, channels, ...)."""
    if input.ndim < 2:
        raise ValueError(f"feature_alpha_dropout takes an input (N, channels, ...), got {input.shape}")
    return _alpha_dropped(input, p, training, inplace, (*input.shape[:2], *(1,) * (input.ndim - 2)))


def _alpha_dropped(input: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int]) -> Tensor:
    if not 0 <= p <= 1:
        raise ValueError(f"alpha_dropout takes a probability p from 0 to 1, got {p}")
    if not training or p == 0:
        return input
    if p == 1:
        return _result(input, input * 0, inplace)
    low = SELU_AT_MINUS_INFINITY
    scale = ((low * low * p + 1) * (1 - p)) ** -0.5
    is_kept = Tensor.rand(*shape, device=input.device, requires_grad=False) >= p
    found = is_kept.where(input * scale, low * scale) - low * scale * p
    return _result(input, found.cast(input.dtype), inplace)


dropout1d = _channel_dropout(lambda x: x.ndim - 1)
dropout2d = _channel_dropout(lambda x: 2)
dropout3d = _channel_dropout(lambda x: x.ndim - 3)

# --- products, tables, norms --------------------------------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias: (..., in) and (out, in) give (..., out)."""
    if weight.ndim == 1:
        product = input @ weight
        return product if bias is None else product + bias
    return input.linear(weight.transpose(), bias)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table (numbers, size): integers (...) to (..., size). A number outside of it gives zeros. Row
    `padding_idx` gets no gradient."""
    if not input.dtype.is_int:
        raise TypeError(f"Embedding takes integers, got {input.dtype.name}")
    # spelled as a one-hot sum: the scheduler turns it into an indexed load
    numbers = Tensor.arange(weight.shape[0], dtype=promote(input.dtype, dtypes.int32), device=input.device)
    rows = (input.reshape(*input.shape, 1, 1) == numbers.unsqueeze(-1)).where(weight, 0).sum(-2)
    if padding_idx is None:
        return rows
    is_padding = input.unsqueeze(-1) == (padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx)
    return is_padding.where(rows.detach(), rows)


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, *, mode: str = "mean",
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Tensor:
    """The sum, mean or largest (`mode`) of the rows of a table (numbers, size) that each bag of integers
    names, (bags, size), zeros for a bag of none.

    Bags are the rows of an input (bags, items), or parts of an input (items,) that begin at `offsets`, which
    rise from 0; `include_last_offset`: the last of these is where the last bag ends. `per_sample_weights`, of
    the input's shape and for sums alone, are factors of the rows. Items that are `padding_idx` are in no bag.

    >>> table = Tensor([[1.0], [2.0], [4.0]])
    >>> nn.functional.embedding_bag(Tensor([1, 2, 0]), table, Tensor([0, 2]), mode="sum").tolist()
    [[6.0], [1.0]]
    """
    _check_bags(input, offsets, mode, per_sample_weights)
    rows = embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    padding = padding_idx + weight.shape[0] if padding_idx is not None and padding_idx < 0 else padding_idx
    is_kept = input >= 0 if padding is None else input != padding
    if offsets is None:
        return _rows_in_one(rows, is_kept, mode)
    bags = offsets.shape[0] - include_last_offset
    steps = Tensor.arange(input.shape[0], device=input.device)
    bag = offsets.searchsorted(steps.cast(offsets.dtype), right=True) - 1
    bag = is_kept.where(bag, bags)  # one more than there are, for what belongs to none
    into = Tensor.zeros(bags + 1, weight.shape[1], dtype=rows.dtype, device=input.device, requires_grad=False)
    if mode == "max":
        places = bag.unsqueeze(-1).expand(rows.shape)
        return into.scatter_reduce(0, places, rows, "amax", include_self=False)[:bags]
    found = into.index_add(0, bag, rows)[:bags]
    if mode == "sum":
        return found
    counts = Tensor.zeros(bags + 1, dtype=dtypes.int32, device=input.device).index_add(
        0, bag, is_kept.cast(dtypes.int32))[:bags]
    return found / counts.maximum(1).unsqueeze(-1)


def _check_bags(input: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"the mode of embedding_bag is 'sum', 'mean' or 'max', got {mode!r}")
    if input.ndim != (2 if offsets is None else 1) or (offsets is not None and offsets.ndim != 1):
        raise ValueError("embedding_bag takes an input (bags, items), or (items,) with offsets (bags,), got "
                         f"{input.shape} with {'none' if offsets is None else offsets.shape}")
    if weights is not None and (mode != "sum" or weights.shape != input.shape):
        raise ValueError(f"embedding_bag takes per_sample_weights of the input's shape {input.shape} in mode "
                         f"'sum', got {weights.shape} in mode {mode!r}")


def _rows_in_one(rows: Tensor, is_kept: Tensor, mode: str) -> Tensor:
    """The rows (bags, items, size) of each bag in one, those that are kept."""
    kept, count = is_kept.unsqueeze(-1), is_kept.sum(1).unsqueeze(-1)
    if mode == "max":
        return (count > 0).where(kept.where(rows, -math.inf).max(1), 0)
    found = kept.where(rows, 0).sum(1)
    return found if mode == "sum" else found / count.maximum(1)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """`Tensor.one_hot`; -1 computes the largest number, to know how many there are."""
    return tensor.one_hot(int(tensor.max().item()) + 1 if num_classes == -1 else num_classes)


def layer_norm(input: Tensor, normalized_shape: Sizes, weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """`Tensor.layernorm` over the last axes, of these sizes, then scaled and moved."""
    axes = _last_axes("layer_norm", input, normalized_shape)
    return _affine(input.layernorm(axes, eps), weight, bias)


def rms_norm(input: Tensor, normalized_shape: Sizes, weight: Tensor | None = None, eps: float | None = None
             ) -> Tensor:
    """input / sqrt(mean of squares + eps) over the last axes, of these sizes; eps is the smallest step from 1
    of float32, or of float64 where input is that, unless given."""
    axes = _last_axes("rms_norm", input, normalized_shape)
    wide = input.cast(promote(input.dtype, dtypes.float32))
    eps = 2.0 ** -dtypes.finfo(wide.dtype)[1] if eps is None else eps
    return _affine(rmsnorm(wide, axes, eps).cast(input.dtype), weight, None)


def _last_axes(name: str, input: Tensor, normalized_shape: Sizes) -> tuple[int, ...]:
    sizes = make_tuple(normalized_shape, 1)
    if input.shape[-len(sizes):] != sizes:
        raise ValueError(f"{name} of {sizes} takes an input with these last axes, got {input.shape}")
    return tuple(range(-len(sizes), 0))


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """Normalises groups of channels, axis 1, of each item of the batch; then scales and moves channels."""
    if input.ndim < 2 or input.shape[1] % num_groups:
        raise ValueError(f"group_norm takes channels, axis 1, divisible by {num_groups}, got {input.shape}")
    found = input.unflatten(1, (num_groups, -1)).flatten(2).layernorm(eps=eps).reshape(input.shape)
    shape = (-1, *(1,) * (input.ndim - 2))
    return _affine(found, *(None if x is None else x.reshape(shape) for x in (weight, bias)))


def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
               weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
               momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """Normalises channels, axis 1, by the mean and variance of the batch while `training`, which move the
    running ones, and else by these; then scales and moves channels."""
    axes, shape = (0, *range(2, input.ndim)), (1, -1, *(1,) * (input.ndim - 2))
    if training or running_mean is None or running_var is None:
        mean, variance = input.mean(axes), input.var(axes, correction=0)
        if running_mean is not None and running_var is not None:
            count = prod(input.shape) // input.shape[1]
            spread = variance.detach() * (count / max(count - 1, 1))
            running_mean.assign(running_mean * (1 - momentum) + mean.detach() * momentum)
            running_var.assign(running_var * (1 - momentum) + spread * momentum)
    else:
        mean, variance = running_mean, running_var
    found = (input - mean.reshape(shape)) * (variance + eps).rsqrt().reshape(shape)
    return _affine(found, *(None if x is None else x.reshape(shape) for x in (weight, bias)))


def instance_norm(input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
                  weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
                  momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """`group_norm` of each channel by itself, or by the running mean and variance, (channels,), without
    `use_input_stats`; with it they move by `momentum` towards the means over the batch. Raises ValueError for
    one of the two alone, and for none where they are to be used."""
    running = [x for x in (running_mean, running_var) if x is not None]
    if len(running) == 1 or not (running or use_input_stats):
        raise ValueError("instance_norm takes running_mean and running_var, or neither and use_input_stats")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running:
        axes, wide = tuple(range(2, input.ndim)), input.detach()
        if prod(input.shape[2:]) < 2:
            raise ValueError(f"running statistics take more than one item a channel, got {input.shape}")
        for x, now in zip(running, (wide.mean(axes), wide.var(axes)), strict=True):
            x.assign(x * (1 - momentum) + now.mean(0) * momentum)
    return group_norm(input, input.shape[1], weight, bias, eps)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
                        ) -> Tensor:
    """input / (k + alpha * the mean square of `size` channels around) ** beta (Krizhevsky and others, 2012):
    (N, channels, ...)."""
    squares = as_real(input).square().pad((None, (size // 2, (size - 1) // 2), *(None,) * (input.ndim - 2)))
    around = squares.unfold(1, size, 1).mean(-1)
    return input / (around * alpha + k) ** beta


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each output o is input1 weight[o] input2: (..., n) and (..., m) with weights (out, n, m)."""
    rows, columns = (x.reshape(prod(x.shape[:-1]), x.shape[-1]) for x in (input1, input2))
    found = Tensor.einsum("bn,onm,bm->bo", rows, weight, columns).reshape(*input1.shape[:-1], weight.shape[0])
    return found if bias is None else found + bias


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of each two rows, (n, d) to (n (n - 1) / 2,)."""
    first, second = np.triu_indices(input.shape[0], 1)
    rows = as_real(input)
    return (rows[first] - rows[second]).norm(p, -1)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """`Tensor.scaled_dot_product_attention`, whose dropout is always on here; `scale`: of the scores, in
    place of 1 / sqrt(E)."""
    if scale is not None:
        query = query * (scale * math.sqrt(query.shape[-1]))
    with Tensor.train(dropout_p > 0 or Tensor.training):
        return query.scaled_dot_product_attention(key, value, attn_mask, dropout_p, is_causal, enable_gqa)


# --- windows ------------------------------------------------------------------------------------------------


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
           padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1) -> Tensor:
    """`Tensor.conv2d`; the weight says over how many axes."""
    return input.conv2d(weight, bias, groups, stride, dilation, padding)


def conv_transpose2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
                     padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1
                     ) -> Tensor:
    """`Tensor.conv_transpose2d`; the weight says over how many axes."""
    return input.conv_transpose2d(weight, bias, groups, stride, dilation, padding, output_padding)


conv1d = conv3d = conv2d
conv_transpose1d = conv_transpose3d = conv_transpose2d


def _pooling(axes: int) -> tuple[Callable[..., Any], ...]:
    """max_pool, avg_pool, lp_pool, max_unpool, adaptive_avg_pool, adaptive_max_pool over so many of the last
    axes."""
    def max_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
        pool: Callable[..., Any] = input.max_pool2d
        return pool(make_tuple(kernel_size, axes), stride, dilation, padding, ceil_mode, return_indices)

    def avg_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True,
                 divisor_override: float | None = None) -> Tensor:
        kernel = make_tuple(kernel_size, axes)
        return input.avg_pool2d(kernel, stride, 1, padding, ceil_mode, count_include_pad, divisor_override)

    def lp_pool(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
                ceil_mode: bool = False) -> Tensor:
        items = prod(make_tuple(kernel_size, axes))
        powers = as_real(input).pow(norm_type)
        total: Tensor = avg_pool(powers, kernel_size, stride, 0, ceil_mode) * items
        empty = total == 0  # where the root's gradient is infinite, and taken as 0
        return empty.where(0, empty.where(1, total).pow(1 / norm_type))

    def max_unpool(input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None,
                   padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Tensor:
        kernel = make_tuple(kernel_size, axes)
        return input.max_unpool2d(indices, kernel, stride, 1, padding, output_size)

    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        return adaptive_average(input, _output_sizes(input, output_size, axes))

    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        found = adaptive_largest(input, _output_sizes(input, output_size, axes))
        return found if return_indices else found[0]

    functions = (max_pool, avg_pool, lp_pool, max_unpool, adaptive_avg_pool, adaptive_max_pool)
    for function in functions:
        name = f"{function.__name__}{axes}d"
        function.__doc__ = f"`{name}` of PyTorch, over the last {axes} axes." if axes > 1 else \
            f"`{name}` of PyTorch, over the last axis."
        function.__name__ = function.__qualname__ = name
    return functions


def _output_sizes(input: Tensor, output_size: Any, axes: int) -> tuple[int, ...]:
    """The sizes that an adaptive pooling is to have; None is as it is."""
    sizes = make_tuple(output_size, axes) if output_size is not None else (None,) * axes
    if len(sizes) != axes or input.ndim <= axes:
        raise ValueError(f"adaptive pooling over {axes} axes takes as many sizes, and an input with channels "
                         f"too, got {output_size} for {input.shape}")
    return tuple(n if size is None else size for n, size in zip(input.shape[-axes:], sizes, strict=True))


max_pool1d, avg_pool1d, lp_pool1d, max_unpool1d, adaptive_avg_pool1d, adaptive_max_pool1d = _pooling(1)
max_pool2d, avg_pool2d, lp_pool2d, max_unpool2d, adaptive_avg_pool2d, adaptive_max_pool2d = _pooling(2)
max_pool3d, avg_pool3d, lp_pool3d, max_unpool3d, adaptive_avg_pool3d, adaptive_max_pool3d = _pooling(3)


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
           ) -> Tensor:
    """The windows of images as columns: (N, C, H, W) to (N, C * items of a window, windows)."""
    if input.ndim not in (3, 4):
        raise ValueError(f"unfold takes images (N, C, H, W) or (C, H, W), got {input.shape}")
    kernel, dilations, strides = (per_axis("unfold", x, 2) for x in (kernel_size, dilation, stride))
    padded = pad_spatial(input, [(p, p) for p in make_tuple(padding, 2)])
    windows = sliding_windows(padded, kernel, strides, dilations)  # (..., C, rows, columns, *kernel)
    return windows.movedim((-4, -3), (-2, -1)).flatten(-2).flatten(-4, -2)


def fold(input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
         stride: Sizes = 1) -> Tensor:
    """Columns of windows added up where they lie, (N, C, H, W): the transpose of `unfold`."""
    channels = input.shape[-2] // prod(make_tuple(kernel_size, 2))
    image = Tensor.zeros(*input.shape[:-2], channels, *make_tuple(output_size, 2), dtype=input.dtype,
                         device=input.device)
    windows, pull = vjp(lambda x: unfold(x, kernel_size, dilation, padding, stride), image)
    if windows.shape != input.shape:
        raise ValueError(f"fold to {tuple(image.shape)} takes columns of {windows.shape}, got {input.shape}")
    summed: Tensor = pull(input)[0]
    return summed


# --- images -------------------------------------------------------------------------------------------------


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`Tensor.pad`: sizes before and after the last axis, then the one before it, and so on."""
    return input.pad(tuple(pad), mode, value or 0.0)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C r r, H, W) to (..., C, H r, W r) (Shi and others, 2016)."""
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ValueError(f"pixel_shuffle by {r} takes (..., channels, H, W), channels divisible by {r * r}, "
                         f"got {input.shape}")
    *lead, channels, height, width = input.shape
    blocks = input.reshape(*lead, channels // (r * r), r, r, height, width)
    return blocks.movedim((-4, -3), (-3, -1)).reshape(*lead, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H r, W r) to (..., C r r, H, W)."""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-2] % r or input.shape[-1] % r:
        raise ValueError(f"pixel_unshuffle by {r} takes (..., channels, H, W), H and W divisible by {r}, got "
                         f"{input.shape}")
    *lead, channels, height, width = input.shape
    blocks = input.reshape(*lead, channels, height // r, r, width // r, r)
    return blocks.movedim((-3, -1), (-4, -3)).reshape(*lead, channels * r * r, height // r, width // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels (N, groups * n, ...) in the order (n, groups) (Zhang and others, 2017)."""
    if input.ndim < 3 or input.shape[1] % groups:
        raise ValueError(f"channel_shuffle takes channels, axis 1, divisible by {groups}, got {input.shape}")
    return input.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def interpolate(input: Tensor, size: Any = None, scale_factor: Factors = None, mode: str = "nearest",
                align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
                antialias: bool = False) -> Tensor:
    """`Tensor.interpolate` of (N, C, ...), to sizes, or by factors: to the whole sizes below these times the
    input's. Places follow from the factors, or from the sizes if `recompute_scale_factor`."""
    axes = input.ndim - 2
    if axes < 1 or (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate takes (N, C, ...), and either a size or a scale_factor; got "
                         f"{input.shape}, {size} and {scale_factor}")
    factors = None
    if scale_factor is not None:
        factors = scale_factor if isinstance(scale_factor, Sequence) else (scale_factor,) * axes
        size = [math.floor(n * factor) for n, factor in zip(input.shape[2:], factors, strict=False)]
    return input.interpolate(make_tuple(size, axes), mode, bool(align_corners), antialias,
                             None if recompute_scale_factor else factors)


upsample = interpolate
