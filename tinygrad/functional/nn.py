"""Functions of neural networks: convolution, pooling, normalisation, attention, losses.

Everything is spelled in movement, elementwise and reduce operations of `Tensor`; nothing here is a primitive.
Each function is bound as the `Tensor` method of its name. The layers that hold parameters are in
`tinygrad.nn`.

Sliding windows are movement only. An axis of n items is repeated k times and cut into k rows of n + d items,
so that row j starts j*d items further into the axis: the item at (row j, column i) is number i + j*d.
Cropping the rows to the outputs and stepping by the stride leaves an affine index, oy*stride + ky*dilation.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, overload

from tinygrad.dtype import DTypeLike, dtypes, promote, to_dtype
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, flatten, make_tuple, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | str
Pads = list[tuple[int, int]]
Reduction = Literal["mean", "sum", "none"]


# --- sliding windows ------------------------------------------------------------------------------


def _per_axis(name: str, value: Sizes, axes: int) -> tuple[int, ...]:
    """`value` for each spatial axis. Raises ValueError for another number of values, or values below 1."""
    values = make_tuple(value, axes)
    if len(values) != axes or any(v < 1 for v in values):
        raise ValueError(f"{name} takes an int >= 1, or {axes} of them, one a spatial axis; got {value}")
    return values


def _resolve_padding(padding: Padding, kernel: Sequence[int], stride: Sequence[int],
                     dilation: Sequence[int]) -> Pads:
    """(before, after) for each spatial axis.

    `padding` is one size for all, one an axis, two an axis in the flat order of `Tensor.pad` (last axis
    first), "valid" (none) or "same" (output as large as the input; the odd one goes after, as in PyTorch).
    """
    axes = len(kernel)
    if isinstance(padding, str):
        if padding == "valid":
            return [(0, 0)] * axes
        if padding != "same":
            raise ValueError(f"padding is 'same', 'valid' or sizes, got {padding!r}")
        if any(s != 1 for s in stride):
            raise ValueError(f"padding 'same' takes stride 1, got {tuple(stride)}")
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    sizes = make_tuple(padding, axes)
    if len(sizes) == axes:
        pads = [(p, p) for p in sizes]
    elif len(sizes) == 2 * axes:
        pads = [(sizes[2 * i], sizes[2 * i + 1]) for i in reversed(range(axes))]
    else:
        raise ValueError(f"padding takes 1, {axes} or {2 * axes} sizes for {axes} spatial axes, "
                         f"got {padding}")
    if any(p < 0 for pair in pads for p in pair):
        raise ValueError(f"padding takes sizes >= 0, got {padding}")
    return pads


def _pad_spatial(x: Tensor, pads: Pads, value: float | int = 0) -> Tensor:
    """`x` with its last axes padded."""
    if all(p == (0, 0) for p in pads):
        return x
    return x.pad(((0, 0),) * (x.ndim - len(pads)) + tuple(pads), value=value)


def _sliding_windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int],
                     dilation: Sequence[int]) -> Tensor:
    """The windows over the last `len(kernel)` axes: shape (..., *outputs, *kernel)."""
    axes = len(kernel)
    lead, sizes = x.shape[:x.ndim - axes], x.shape[x.ndim - axes:]
    outs = [(n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    if any(o < 1 for o in outs):
        raise ValueError(f"a window of {tuple(kernel)} with dilation {tuple(dilation)} does not fit in "
                         f"{sizes}, the padded spatial axes of the input")
    keep = tuple((0, n) for n in lead)
    places = range(len(lead), len(lead) + 2 * axes)

    if all(k <= s and d == 1 and o * s <= n
           for n, k, s, d, o in zip(sizes, kernel, stride, dilation, outs, strict=True)):
        # windows that do not overlap: blocks of `stride` items, each cropped to the kernel
        x = x.shrink(keep + tuple((0, o * s) for o, s in zip(outs, stride, strict=True)))
        x = x.reshape(*lead, *flatten(zip(outs, stride, strict=True)))
        x = x.shrink(keep + tuple(flatten(((0, o), (0, k)) for o, k in zip(outs, kernel, strict=True))))
        out_places, kernel_places = places[::2], places[1::2]
    else:
        rows = [n + d if k > 1 else n for n, k, d in zip(sizes, kernel, dilation, strict=True)]
        repeats = [ceildiv(k * row, n) for k, row, n in zip(kernel, rows, sizes, strict=True)]
        x = x.reshape(*lead, *flatten((1, n) for n in sizes))
        x = x.expand(*lead, *flatten(zip(repeats, sizes, strict=True)))
        x = x.reshape(*lead, *(r * n for r, n in zip(repeats, sizes, strict=True)))
        x = x.shrink(keep + tuple((0, k * row) for k, row in zip(kernel, rows, strict=True)))
        x = x.reshape(*lead, *flatten(zip(kernel, rows, strict=True)))
        x = x.shrink(keep + tuple(flatten(((0, k), (0, s * (o - 1) + 1))
                                          for k, s, o in zip(kernel, stride, outs, strict=True))))
        if any(s > 1 for s in stride):
            whole = slice(None)
            x = x[(whole,) * len(lead) + tuple(flatten((whole, slice(None, None, s)) for s in stride))]
        out_places, kernel_places = places[1::2], places[::2]
    return x.permute(*range(len(lead)), *out_places, *kernel_places)


# --- convolution ----------------------------------------------------------------------------------


def conv2d(self: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, stride: Sizes = 1,
           dilation: Sizes = 1, padding: Padding = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Convolution (cross-correlation) over any number of spatial axes, as many as `weight` has.

    out[n, g*O + o, y, x] = bias[g*O + o] + sum over i, ky, kx of
        input[n, g*I + i, y*stride + ky*dilation, x*stride + kx*dilation] * weight[g*O + o, i, ky, kx]

    Shapes: input (N, C_in, *spatial), weight (C_out, C_in/groups, *kernel), bias (C_out,). `padding`: zeros
    around the input: one size, one an axis, two an axis in the flat order of `pad` (last axis first: left,
    right, top, bottom), "same" or "valid". `dtype`: of the sum; halves accumulate in float32 anyway.

    >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    axes = weight.ndim - 2
    if axes < 1 or self.ndim != weight.ndim:
        raise ValueError(f"conv2d takes an input (N, C_in, *spatial) and a weight (C_out, C_in/groups, "
                         f"*kernel) with as many axes, got {self.shape} and {weight.shape}")
    batch, c_in = self.shape[:2]
    c_out, c_group, *kernel = weight.shape
    if groups < 1 or c_in != groups * c_group or c_out % groups != 0:
        raise ValueError(f"conv2d of input {self.shape} with weight {weight.shape} and groups={groups}: "
                         f"the input has {c_in} channels, the weight takes {c_group} a group, "
                         f"and {c_out} outputs are shared by {groups} groups")
    if bias is not None and bias.shape != (c_out,):
        raise ValueError(f"conv2d with weight {weight.shape} takes a bias ({c_out},), got {bias.shape}")
    strides, dilations = _per_axis("stride", stride, axes), _per_axis("dilation", dilation, axes)
    pads = _resolve_padding(padding, kernel, strides, dilations)

    windows = _conv_windows(self, weight, groups, strides, dilations, pads)
    outs = windows.shape[3:3 + axes]
    weights = weight.reshape(1, groups, c_out // groups, *(1,) * axes, c_group, *kernel)
    product = windows * weights
    out = product.sum(tuple(range(-1 - axes, 0)), dtype=None if dtype is None else to_dtype(dtype))
    out = out.cast(product.dtype if dtype is None else to_dtype(dtype)).reshape(batch, c_out, *outs)
    if self.dtype.is_float and weight.dtype.is_float:
        rule = functools.partial(_conv_gradients, groups=groups, stride=strides, dilation=dilations,
                                 pads=pads)
        out = type(self).of(out.uop.with_gradient((self.uop, weight.uop), rule), self)
    return out if bias is None else out + bias.reshape(1, c_out, *(1,) * axes)


def _stored_with_edges(x: Tensor, pads: Pads) -> Tensor:
    """`x` with zeros around it, stored once: the inner loops of a convolution over it have no edges."""
    return x if all(p == (0, 0) for p in pads) else _pad_spatial(x, pads).contiguous()


def _conv_windows(x: Tensor, weight: Tensor, groups: int, stride: tuple[int, ...], dilation: tuple[int, ...],
                  pads: Pads) -> Tensor:
    """The items that each output of a convolution sees: (N, groups, C_out/groups, *outs, C_in/groups,
    *kernel).

    """
    kernel = weight.shape[2:]
    axes = len(kernel)
    x = _stored_with_edges(x, pads)
    windows = _sliding_windows(x, kernel, stride, dilation)
    outs = windows.shape[2:2 + axes]
    c_out, c_group = weight.shape[:2]
    windows = windows.reshape(x.shape[0], groups, 1, c_group, *outs, *kernel)
    windows = windows.permute(0, 1, 2, *range(4, 4 + axes), 3, *range(4 + axes, 4 + 2 * axes))
    return windows.expand(x.shape[0], groups, c_out // groups, *outs, c_group, *kernel)


def _conv_gradients(gradient: UOp, node: UOp, groups: int, stride: tuple[int, ...], dilation: tuple[int, ...],
                    pads: Pads) -> tuple[UOp, UOp]:
    """The gradients of a convolution at its input and its weight.

    The first is the transposed convolution, a convolution again, which the compiler runs as fast as the
    forward pass; the rule of the sliding windows' movement ops would first store a product for every kernel
    position.
    """
    from tinygrad.tensor import Tensor

    g, x, weight = (Tensor.of(u) for u in (gradient, *node.src[1:]))
    kernel = weight.shape[2:]
    axes = len(kernel)
    rest = [n - ((o - 1) * s - before - after + d * (k - 1) + 1) for n, o, s, d, k, (before, after)
            in zip(x.shape[2:], g.shape[2:], stride, dilation, kernel, pads, strict=True)]
    flat_pads = tuple(p for pair in reversed(pads) for p in pair)
    at_input = conv_transpose2d(g, weight, groups=groups, stride=stride, dilation=dilation, padding=flat_pads,
                                output_padding=tuple(rest))
    windows = _conv_windows(x, weight, groups, stride, dilation, pads)
    spread = g.reshape(*windows.shape[:3 + axes], *(1,) * (1 + axes))
    at_weight = (windows * spread).sum((0, *range(3, 3 + axes))).reshape(weight.shape)
    return at_input.cast(x.dtype).uop, at_weight.cast(weight.dtype).uop


def conv_transpose2d(self: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1,
                     stride: Sizes = 1, dilation: Sizes = 1, padding: Sizes = 0,
                     output_padding: Sizes = 0) -> Tensor:
    """The transpose of `conv2d` with respect to its input: what its gradient does, also called deconvolution.

    Shapes: input (N, C_in, *spatial), weight (C_in, C_out/groups, *kernel), bias (C_out,). An axis of n items
    becomes (n - 1)*stride - 2*padding + dilation*(kernel - 1) + output_padding + 1 items.
    """
    axes = weight.ndim - 2
    fits = axes >= 1 and self.ndim == weight.ndim and self.shape[1] == weight.shape[0]
    if not fits or weight.shape[0] % groups != 0:
        raise ValueError(f"conv_transpose2d takes an input (N, C_in, *spatial) and a weight "
                         f"(C_in, C_out/groups, *kernel) with C_in divisible by groups={groups}, "
                         f"got {self.shape} and {weight.shape}")
    strides, dilations = _per_axis("stride", stride, axes), _per_axis("dilation", dilation, axes)
    kernel = weight.shape[2:]
    extra = make_tuple(output_padding, axes)
    pads = _resolve_padding(padding, kernel, strides, dilations)
    c_in, c_group = weight.shape[:2]
    weights = weight.reshape(groups, c_in // groups, c_group, *kernel).transpose(1, 2)
    weights = weights.reshape(groups * c_group, c_in // groups, *kernel).flip(tuple(range(2, 2 + axes)))

    x = _spread(self, strides)
    edges = [(d * (k - 1) - before, d * (k - 1) - after + more)
             for d, k, (before, after), more in zip(dilations, kernel, pads, extra, strict=True)]
    crops = tuple((max(0, -before), n - max(0, -after))
                  for (before, after), n in zip(edges, x.shape[2:], strict=True))
    if any(end <= start for start, end in crops):
        raise ValueError(f"conv_transpose2d of {self.shape} with weight {weight.shape} and padding {padding} "
                         "leaves no output")
    x = x.shrink(((0, x.shape[0]), (0, x.shape[1]), *crops))
    x = _stored_with_edges(x, [(max(0, before), max(0, after)) for before, after in edges])
    return x.conv2d(weights, bias, groups=groups, dilation=dilations)


def _spread(x: Tensor, strides: Sequence[int]) -> Tensor:
    """`x` with stride - 1 zeros between the items of each of its last axes."""
    if all(s == 1 for s in strides):
        return x
    axes = len(strides)
    lead, sizes = x.shape[:x.ndim - axes], x.shape[x.ndim - axes:]
    x = x.reshape(*lead, *flatten((n, 1) for n in sizes))
    x = x.pad(((0, 0),) * len(lead) + tuple(flatten(((0, 0), (0, s - 1)) for s in strides)))
    x = x.reshape(*lead, *(n * s for n, s in zip(sizes, strides, strict=True)))
    return x.shrink(tuple((0, n) for n in lead)
                    + tuple((0, (n - 1) * s + 1) for n, s in zip(sizes, strides, strict=True)))


# --- pooling --------------------------------------------------------------------------------------


def _pool_geometry(x: Tensor, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Padding,
                   ceil_mode: bool) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Pads, Pads]:
    """(kernel, stride, dilation, pads, pads enlarged after the end for the windows that ceil_mode adds)."""
    axes = 2 if isinstance(kernel_size, int) else len(kernel_size)
    if x.ndim < axes:
        raise ValueError(f"pooling over {axes} axes takes an input of at least as many, got shape {x.shape}")
    kernel = _per_axis("kernel_size", kernel_size, axes)
    strides = kernel if stride is None else _per_axis("stride", stride, axes)
    dilations = _per_axis("dilation", dilation, axes)
    pads = _resolve_padding(padding, kernel, strides, dilations)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if any(2 * max(p) > r for p, r in zip(pads, reach, strict=True)):
        raise ValueError(f"pooling takes padding of at most half the window, got {padding} for {kernel}")
    enlarged = list(pads)
    if ceil_mode:
        for i, (n, (before, after)) in enumerate(zip(x.shape[x.ndim - axes:], pads, strict=True)):
            outs = ceildiv(n + before + after - reach[i], strides[i]) + 1
            if (outs - 1) * strides[i] >= n + before:
                outs -= 1  # a window must start in the input or in the padding before it
            missing = (outs - 1) * strides[i] + reach[i] - (n + before + after)
            enlarged[i] = (before, after + max(0, missing))
    return kernel, strides, dilations, pads, enlarged


def avg_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False, count_include_pad: bool = True) -> Tensor:
    """The mean of each window over the last axes, as many as `kernel_size` has (2 for an int).

    `stride` is the kernel size unless given. `ceil_mode` keeps windows that reach past the end.
    `count_include_pad=False` divides by the items of the input alone.
    """
    kernel, strides, dilations, pads, enlarged = _pool_geometry(self, kernel_size, stride, dilation, padding,
                                                                ceil_mode)
    inner = tuple(range(-len(kernel), 0))
    total = _sliding_windows(_pad_spatial(self, enlarged), kernel, strides, dilations).sum(inner)
    counted = pads if count_include_pad else [(0, 0)] * len(pads)
    if counted == enlarged:
        return total / math.prod(kernel)
    from tinygrad.tensor import Tensor

    ones = Tensor.ones(*self.shape[self.ndim - len(kernel):], dtype=dtypes.float32, device=self.device,
                       requires_grad=False)
    ones = _pad_spatial(ones, counted, value=1)
    ones = _pad_spatial(ones, [(b - cb, a - ca) for (b, a), (cb, ca) in zip(enlarged, counted, strict=True)])
    counts = _sliding_windows(ones, kernel, strides, dilations).sum(inner)
    return total / (counts.cast(total.dtype) if total.dtype.is_float else counts)


@overload
def max_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False,
               return_indices: Literal[False] = False) -> Tensor: ...


@overload
def max_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False, *,
               return_indices: Literal[True]) -> tuple[Tensor, Tensor]: ...


def max_pool2d(self: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
               padding: Padding = 0, ceil_mode: bool = False,
               return_indices: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """The largest item of each window over the last axes, as many as `kernel_size` has (2 for an int).

    `stride` is the kernel size unless given. Padding never wins. `return_indices` also returns where the
    first largest item of each window is, as a position in the flattened last axes (what `max_unpool2d`
    takes).

    >>> Tensor([[1, 2], [3, 4]]).max_pool2d().tolist()
    [[4]]
    """
    kernel, strides, dilations, _, pads = _pool_geometry(self, kernel_size, stride, dilation, padding,
                                                         ceil_mode)
    axes = len(kernel)
    inner = tuple(range(-axes, 0))
    windows = _sliding_windows(_pad_spatial(self, pads, self.dtype.min), kernel, strides, dilations)
    largest = windows.max(inner)
    if not return_indices:
        return largest
    from tinygrad.tensor import Tensor

    spatial = self.shape[self.ndim - axes:]
    count = prod(spatial)
    positions = Tensor.arange(count, device=self.device).reshape(*spatial)
    positions = _sliding_windows(_pad_spatial(positions, pads, count), kernel, strides, dilations)
    found = windows == largest.reshape(*largest.shape, *(1,) * axes)
    if self.dtype.is_float:
        found = found | windows.isnan()
    return largest, found.where(positions, count).min(inner)


def max_unpool2d(self: Tensor, indices: Tensor, kernel_size: Sizes = (2, 2), stride: Sizes | None = None,
                 dilation: Sizes = 1, padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Tensor:
    """The inverse of `max_pool2d`: each item goes to its position in `indices`, zeros elsewhere.

    `output_size` (the spatial sizes, or the whole shape) settles sizes that several inputs pool to.
    """
    if self.shape != indices.shape:
        raise ValueError(f"max_unpool2d takes indices of the input's shape {self.shape}, got {indices.shape}")
    axes = 2 if isinstance(kernel_size, int) else len(kernel_size)
    kernel = _per_axis("kernel_size", kernel_size, axes)
    strides = kernel if stride is None else _per_axis("stride", stride, axes)
    dilations = _per_axis("dilation", dilation, axes)
    pads = _resolve_padding(padding, kernel, strides, dilations)
    lead, sizes = self.shape[:self.ndim - axes], self.shape[self.ndim - axes:]
    if output_size is None:
        output_size = [(n - 1) * s - before - after + d * (k - 1) + 1 for n, s, (before, after), d, k
                       in zip(sizes, strides, pads, dilations, kernel, strict=True)]
    spatial = tuple(output_size)[-axes:]
    from tinygrad.tensor import Tensor

    places = Tensor.arange(prod(spatial), device=self.device).reshape(*(1,) * len(lead), -1, 1)
    hit = places == indices.reshape(*lead, 1, -1)
    # overlapping windows may name a place more than once, always with the same value: take it once
    value = hit.where(self.reshape(*lead, 1, -1), self.dtype.min).max(-1)
    return hit.any(-1).where(value, 0).reshape(*lead, *spatial)


def interpolate(self: Tensor, size: Sequence[int], mode: str = "linear",
                align_corners: bool = False) -> Tensor:
    """The last axes (as many as `size` has) resized to `size`.

    `mode`: "linear" (bilinear, trilinear, ... over the axes), "nearest" (item floor(i*in/out)) or
    "nearest-exact" (item floor((i + 0.5)*in/out)). `align_corners` (linear only) puts the first and last
    items onto each other.
    """
    if mode not in ("linear", "nearest", "nearest-exact"):
        raise ValueError(f"interpolate takes mode 'linear', 'nearest' or 'nearest-exact', got {mode!r}")
    if align_corners and mode != "linear":
        raise ValueError(f"interpolate takes align_corners with mode 'linear' only, got {mode!r}")
    if not 1 <= len(size) <= self.ndim or any(n < 1 for n in size):
        raise ValueError(f"interpolate takes a size >= 1 for each of the last axes of {self.shape}, "
                         f"got {tuple(size)}")
    x = self
    for axis, outs in zip(range(-len(size), 0), size, strict=True):
        if x.shape[axis] != outs:
            x = _interpolate_axis(x, axis, outs, mode, align_corners)
    return x


def _interpolate_axis(x: Tensor, axis: int, outs: int, mode: str, align_corners: bool) -> Tensor:
    from tinygrad.tensor import Tensor

    n = x.shape[axis]
    before = (slice(None),) * (x.ndim + axis)
    steps = Tensor.arange(outs, device=x.device)
    if mode == "nearest":
        return x[(*before, steps * n // outs)]
    if mode == "nearest-exact":
        return x[(*before, (2 * steps + 1) * n // (2 * outs))]
    # the position is a fraction of integers: whole part and remainder stay exact for any size
    if align_corners:
        numerator, denominator = steps * (n - 1), max(outs - 1, 1)
    else:
        numerator, denominator = ((2 * steps + 1) * n - outs).maximum(0), 2 * outs
    low = (numerator // denominator).minimum(n - 1)
    high = (low + 1).minimum(n - 1)
    compute = x.dtype if x.dtype.is_float else dtypes.default_float
    share = ((numerator - low * denominator).cast(compute) / denominator).reshape(-1, *(1,) * (-axis - 1))
    result = x[(*before, low)].cast(compute) * (1 - share) + x[(*before, high)].cast(compute) * share
    return result if x.dtype.is_float else result.round().cast(x.dtype)


# --- normalisation --------------------------------------------------------------------------------


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
    """(self - mean) / sqrt(variance + eps), with mean and (biased) variance over `axis`.

    >>> Tensor([-1.0, 1.0]).layernorm(eps=0).tolist()
    [-1.0, 1.0]
    """
    centred = self - self.mean(axis, keepdim=True)
    return centred * ((centred * centred).mean(axis, keepdim=True) + eps).rsqrt()


def normalize(self: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """self / max(norm, eps), with the p-norm over axis `dim`. p may be 0 (count of non-zeros) or infinity."""
    if p == 0:
        norm = (self != 0).sum(dim, keepdim=True).cast(self.dtype)
    elif p == math.inf:
        norm = self.abs().max(dim, keepdim=True)
    elif p == 1:
        norm = self.abs().sum(dim, keepdim=True)
    elif p == 2:
        norm = self.square().sum(dim, keepdim=True).sqrt()
    else:
        norm = self.abs().pow(p).sum(dim, keepdim=True).pow(1 / p)
    return self / norm.maximum(eps)


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
        return self.zeros_like(requires_grad=False)
    draws = Tensor.rand(*self.shape, device=self.device, dtype=dtypes.float32, contiguous=False,
                        requires_grad=False)
    # the mask is stored (a byte an item): the backward pass then reads it instead of drawing again
    return (draws >= p).contiguous().where(self * (1 / (1 - p)), 0)


# --- attention ------------------------------------------------------------------------------------


def scaled_dot_product_attention(self: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False,
                                 enable_gqa: bool = False) -> Tensor:
    """softmax(self @ key.T / sqrt(E) + mask) @ value, the attention of "Attention Is All You Need".

    Shapes: self (..., H, L, E), key (..., H, S, E), value (..., H, S, Ev); result (..., H, L, Ev).
    `attn_mask` broadcasts to (..., H, L, S): a bool (True: takes part) or a float that is added. `is_causal`:
    query i sees keys 0 to i. `enable_gqa`: key and value may have fewer heads, each used by a group of
    consecutive query heads. The softmax is computed in float32 at least. Dropout applies while training.
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
    scores = (self * (1 / math.sqrt(self.shape[-1]))).matmul(key.transpose(-2, -1), dtype=wide)
    if is_causal:
        queries, keys = scores.shape[-2:]
        number = Tensor.arange(queries, device=self.device).unsqueeze(1)
        attn_mask = Tensor.arange(keys, device=self.device) <= number
    if attn_mask is not None:
        if attn_mask.dtype.is_bool:
            scores = attn_mask.where(scores, -math.inf)
        else:
            scores = scores + attn_mask
    weights = scores.softmax(-1).cast(self.dtype)
    return weights.dropout(dropout_p).matmul(value)


def sequential(self: Tensor, ll: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """The functions (or layers) applied one after another."""
    return functools.reduce(lambda x, f: f(x), ll, self)


# --- losses ---------------------------------------------------------------------------------------


def _reduce_loss(loss: Tensor, reduction: str, total_weight: Tensor | None = None) -> Tensor:
    """`loss` as `reduction` says; "mean" divides by `total_weight` where that is given."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        return loss.mean() if total_weight is None else loss.sum() / total_weight
    raise ValueError(f"a loss takes reduction 'mean', 'sum' or 'none', got {reduction!r}")


def _check_classes(name: str, scores: tuple[int, ...], labels: Tensor, axis: int) -> None:
    """Refuse labels that are not integers of the scores' shape without the class axis."""
    expected = scores[:axis] + scores[axis + 1:]
    if labels.shape != expected or not labels.dtype.is_int:
        raise ValueError(f"{name} of scores {scores} takes integer labels of shape {expected}, "
                         f"got {labels.dtype.name} of shape {labels.shape}")


def _is_label(labels: Tensor, classes: int, axis: int, ndim: int) -> Tensor:
    """True where the class along `axis` is the label: a bool one-hot of `ndim` axes."""
    from tinygrad.tensor import Tensor

    numbers = Tensor.arange(classes, dtype=promote(labels.dtype, dtypes.int32), device=labels.device)
    return labels.unsqueeze(axis) == numbers.reshape(*(1,) * axis, classes, *(1,) * (ndim - axis - 1))


def binary_crossentropy(self: Tensor, Y: Tensor, reduction: Reduction = "mean") -> Tensor:
    """-(Y log(self) + (1 - Y) log(1 - self)) of probabilities. Logarithms stop at -100, as in PyTorch."""
    loss = -Y * self.log().maximum(-100) - (1 - Y) * (1 - self).log().maximum(-100)
    return _reduce_loss(loss, reduction)


def binary_crossentropy_logits(self: Tensor, Y: Tensor, reduction: Reduction = "mean",
                               pos_weight: Tensor | None = None) -> Tensor:
    """`binary_crossentropy` of sigmoid(self), without overflow. `pos_weight` weighs the positive term."""
    positive = Y * self.logsigmoid()
    if pos_weight is not None:
        positive = positive * pos_weight
    return _reduce_loss(-positive - (1 - Y) * (-self).logsigmoid(), reduction)


def cross_entropy(self: Tensor, Y: Tensor, reduction: Reduction = "mean",
                  label_smoothing: float = 0.0) -> Tensor:
    """-sum over classes of target * log_softmax(self), the classes on axis 1 (axis 0 of a vector).

    `Y`: class numbers, of the input's shape without the class axis; or class probabilities, of the input's
    shape. `label_smoothing` s mixes the targets with the uniform distribution: (1 - s)*target + s/classes.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy takes label_smoothing from 0 to 1, got {label_smoothing}")
    if self.ndim == 0:
        raise ValueError("cross_entropy takes scores of at least one axis, got a scalar")
    axis = min(1, self.ndim - 1)
    log_probs = self.log_softmax(axis)
    if Y.dtype.is_float and Y.shape == self.shape:
        target_term = (log_probs * Y).sum(axis)
    else:
        _check_classes("cross_entropy", self.shape, Y, axis)
        target_term = _is_label(Y, self.shape[axis], axis, self.ndim).where(log_probs, 0).sum(axis)
    if label_smoothing:
        target_term = (1 - label_smoothing) * target_term + label_smoothing * log_probs.mean(axis)
    return _reduce_loss(-target_term, reduction)


def sparse_categorical_crossentropy(self: Tensor, Y: Tensor, ignore_index: int = -1,
                                    label_smoothing: float = 0.0, reduction: Reduction = "mean") -> Tensor:
    """Cross entropy of scores (..., classes), the classes on the last axis, and class numbers `Y` (...).

    Items whose label is `ignore_index` count neither in the sum nor in the mean.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"sparse_categorical_crossentropy takes label_smoothing from 0 to 1, "
                         f"got {label_smoothing}")
    if self.ndim == 0:
        raise ValueError("sparse_categorical_crossentropy takes scores of at least one axis, got a scalar")
    _check_classes("sparse_categorical_crossentropy", self.shape, Y, self.ndim - 1)
    log_probs = self.log_softmax(-1)
    loss = -_is_label(Y, self.shape[-1], self.ndim - 1, self.ndim).where(log_probs, 0).sum(-1)
    if label_smoothing:
        loss = (1 - label_smoothing) * loss - label_smoothing * log_probs.mean(-1)
    counted = Y.ne(ignore_index)
    return _reduce_loss(counted.where(loss, 0), reduction, counted.sum().cast(loss.dtype))


def nll_loss(self: Tensor, Y: Tensor, weight: Tensor | None = None, ignore_index: int | None = None,
             reduction: Reduction = "mean") -> Tensor:
    """-self[label] * weight[label] of log-probabilities (N, classes, ...) and class numbers `Y` (N, ...).

    "mean" divides by the sum of the weights. Labels equal to `ignore_index` weigh nothing.
    """
    if self.ndim == 0:
        raise ValueError("nll_loss takes log-probabilities of at least one axis, got a scalar")
    axis = min(1, self.ndim - 1)
    _check_classes("nll_loss", self.shape, Y, axis)
    classes = self.shape[axis]
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"nll_loss of {self.shape} takes a weight ({classes},), got {weight.shape}")
    picked = _is_label(Y, classes, axis, self.ndim)
    loss = -picked.where(self, 0).sum(axis)
    if weight is None and ignore_index is None:
        return _reduce_loss(loss, reduction)
    if weight is None:
        weights = loss.ones_like(requires_grad=False)
    else:
        along = weight.reshape(*(1,) * axis, classes, *(1,) * (self.ndim - axis - 1))
        weights = picked.where(along, 0).sum(axis)
    if ignore_index is not None:
        weights = Y.ne(ignore_index).where(weights, 0)
    # where, not a product: an ignored log-probability may be infinite
    return _reduce_loss((weights != 0).where(loss * weights, 0), reduction, weights.sum())
