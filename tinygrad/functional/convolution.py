"""Convolution, its transpose, and the gradient of both: windows times weights, summed.

Any number of spatial axes. Neither is a primitive: the windows of `windows.py` are movement, the product and
the sum are ordinary nodes. Only the gradient has a rule of its own, because it is a convolution again.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinygrad.dtype import DTypeLike, accumulate_dtype, promote, to_dtype
from tinygrad.functional.windows import (
    Padding,
    Pads,
    Sizes,
    pad_spatial,
    per_axis,
    resolve_padding,
    windows_of,
)
from tinygrad.graph.uop import UOp
from tinygrad.helpers import flatten, make_tuple

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def conv2d(self: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1, stride: Sizes = 1,
           dilation: Sizes = 1, padding: Padding = 0, dtype: DTypeLike | None = None) -> Tensor:
    """Convolution (cross-correlation) over any number of spatial axes, as many as `weight` has.

    out[n, g*O + o, y, x] = bias[g*O + o] + sum over i, ky, kx of
        input[n, g*I + i, y*stride + ky*dilation, x*stride + kx*dilation] * weight[g*O + o, i, ky, kx]

    Shapes: input (N, C_in, *spatial), or (C_in, *spatial) of a batch of one, without that axis; weight
    (C_out, C_in/groups, *kernel), bias (C_out,). `padding`: zeros around the input: one size, one an axis,
    two an axis in the flat order of `pad` (last axis first: left, right, top, bottom), "same" or "valid";
    sizes below 0 crop. `dtype`: of the sum; halves accumulate in float32 anyway.

    >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    axes = weight.ndim - 2
    if axes >= 1 and self.ndim == axes + 1:
        one = self.unsqueeze(0)
        return conv2d(one, weight, bias, groups, stride, dilation, padding, dtype).squeeze(0)
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
    strides, dilations = per_axis("stride", stride, axes), per_axis("dilation", dilation, axes)
    pads = resolve_padding(padding, kernel, strides, dilations)
    if any(p < 0 for pair in pads for p in pair):
        self = pad_spatial(self, [(min(before, 0), min(after, 0)) for before, after in pads])
        pads = [(max(before, 0), max(after, 0)) for before, after in pads]

    windows = _conv_windows(self, weight, groups, strides, dilations, pads)
    outs = windows.shape[3:3 + axes]
    weights = weight.reshape(1, groups, c_out // groups, *(1,) * axes, c_group, *kernel)
    out = _exact_product(windows, weights).sum(tuple(range(-1 - axes, 0)),
                                               dtype=None if dtype is None else to_dtype(dtype))
    kind = promote(self.dtype, weight.dtype) if dtype is None else to_dtype(dtype)
    out = out.cast(kind).reshape(batch, c_out, *outs)
    if self.dtype.is_float and weight.dtype.is_float:
        rule = ConvolutionGradients(groups, strides, dilations, tuple(pads))
        out = type(self).of(out.uop.with_gradient((self.uop, weight.uop), rule), self)
    return out if bias is None else out + bias.reshape(1, c_out, *(1,) * axes)


def _exact_product(a: Tensor, b: Tensor) -> Tensor:
    """`a * b`, of halves without rounding, as the sum of it accumulates and as matrix units multiply."""
    kind = promote(a.dtype, b.dtype)
    wide = accumulate_dtype(kind) if kind.is_float else kind
    return a.cast(wide) * b.cast(wide)


def _conv_windows(x: Tensor, weight: Tensor, groups: int, stride: tuple[int, ...], dilation: tuple[int, ...],
                  pads: Pads) -> Tensor:
    """The items that each output of a convolution sees: (N, groups, C_out/groups, *outs, C_in/groups,
    *kernel).
    """
    kernel = weight.shape[2:]
    axes = len(kernel)
    c_out, c_group = weight.shape[:2]
    windows = windows_of(pad_spatial(x, pads).uop, kernel, stride, dilation)
    outs = windows.shape[2:2 + axes]
    windows = windows.reshape((x.shape[0], groups, 1, c_group, *outs, *kernel))
    windows = windows.permute((0, 1, 2, *range(4, 4 + axes), 3, *range(4 + axes, 4 + 2 * axes)))
    windows = windows.expand((x.shape[0], groups, c_out // groups, *outs, c_group, *kernel))
    return type(x).of(windows, x)


@dataclass(frozen=True)
class ConvolutionGradients:
    """The gradients of a convolution at its input and its weight.

    The first is the transposed convolution, a convolution again, which the compiler runs as fast as the
    forward pass; the rule of the sliding windows' movement ops would first store a product for every kernel
    position.
    """

    groups: int
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    def __call__(self, gradient: UOp, node: UOp) -> tuple[UOp, UOp]:
        from tinygrad.tensor import Tensor

        g, x, weight = (Tensor.of(u) for u in (gradient, *node.src[1:]))
        kernel = weight.shape[2:]
        axes = len(kernel)
        rest = [n - ((o - 1) * s - before - after + d * (k - 1) + 1) for n, o, s, d, k, (before, after) in
                zip(x.shape[2:], g.shape[2:], self.stride, self.dilation, kernel, self.pads, strict=True)]
        flat_pads = tuple(p for pair in reversed(self.pads) for p in pair)
        at_input = conv_transpose2d(g, weight, groups=self.groups, stride=self.stride, dilation=self.dilation,
                                    padding=flat_pads, output_padding=tuple(rest))
        windows = _conv_windows(x, weight, self.groups, self.stride, self.dilation, self.pads)
        spread = g.reshape(*windows.shape[:3 + axes], *(1,) * (1 + axes))
        at_weight = _exact_product(windows, spread).sum((0, *range(3, 3 + axes))).reshape(weight.shape)
        return at_input.cast(x.dtype).uop, at_weight.cast(weight.dtype).uop


def conv_transpose2d(self: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1,
                     stride: Sizes = 1, dilation: Sizes = 1, padding: Sizes = 0,
                     output_padding: Sizes = 0) -> Tensor:
    """The transpose of `conv2d` with respect to its input: what its gradient does, also called deconvolution.

    Shapes: input (N, C_in, *spatial) or (C_in, *spatial), weight (C_in, C_out/groups, *kernel), bias
    (C_out,). An axis of n items becomes (n - 1)*stride - 2*padding + dilation*(kernel - 1) + output_padding
    + 1 items; `output_padding` is smaller than the stride or the dilation.

    >>> Tensor([[[1.0, 2.0]]]).conv_transpose2d(Tensor([[[1.0, 10.0]]]), stride=2).tolist()
    [[[1.0, 10.0, 2.0, 20.0]]]
    """
    axes = weight.ndim - 2
    if axes >= 1 and self.ndim == axes + 1:
        options = groups, stride, dilation, padding, output_padding
        return conv_transpose2d(self.unsqueeze(0), weight, bias, *options).squeeze(0)
    fits = axes >= 1 and self.ndim == weight.ndim and self.shape[1] == weight.shape[0]
    if not fits or weight.shape[0] % groups != 0:
        raise ValueError(f"conv_transpose2d takes an input (N, C_in, *spatial) and a weight "
                         f"(C_in, C_out/groups, *kernel) with C_in divisible by groups={groups}, "
                         f"got {self.shape} and {weight.shape}")
    strides, dilations = per_axis("stride", stride, axes), per_axis("dilation", dilation, axes)
    kernel = weight.shape[2:]
    extra = make_tuple(output_padding, axes)
    if any(not 0 <= n < max(s, d) for n, s, d in zip(extra, strides, dilations, strict=True)):
        raise ValueError(f"conv_transpose2d takes output_padding below the stride or dilation, got {extra} "
                         f"with stride {strides} and dilation {dilations}")
    pads = resolve_padding(padding, kernel, strides, dilations)
    c_in, c_group = weight.shape[:2]
    weights = weight.reshape(groups, c_in // groups, c_group, *kernel).transpose(1, 2)
    weights = weights.reshape(groups * c_group, c_in // groups, *kernel)
    if any(s > 1 for s in strides) and all(s == 1 or (d == 1 and (k < s or k % s == 0))
                                           for s, d, k in zip(strides, dilations, kernel, strict=True)):
        out = _by_phases(self, weights, groups, strides, dilations, pads, extra)
        return out if bias is None else out + bias.reshape(1, -1, *(1,) * axes)
    weights = weights.flip(tuple(range(2, 2 + axes)))

    x = _spread(self, strides)
    edges = [(d * (k - 1) - before, d * (k - 1) - after + more)
             for d, k, (before, after), more in zip(dilations, kernel, pads, extra, strict=True)]
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    if any(n + sum(edge) <= r for n, edge, r in zip(x.shape[2:], edges, reach, strict=True)):
        raise ValueError(f"conv_transpose2d of {self.shape} with weight {weight.shape} and padding {padding} "
                         "leaves no output")
    added = [(max(0, before), max(0, after)) for before, after in edges]
    removed = [(max(0, -before), max(0, -after)) for before, after in edges]
    if any(n <= sum(ends) for n, ends in zip(x.shape[2:], removed, strict=True)):  # some of the zeros go too
        x, added = x.pad(((0, 0), (0, 0), *added)), [(0, 0)] * axes
    crops = ((start, n - end) for n, (start, end) in zip(x.shape[2:], removed, strict=True))
    x = x.shrink(((0, x.shape[0]), (0, x.shape[1]), *crops))
    return pad_spatial(x, added).conv2d(weights, bias, groups=groups, dilation=dilations)


def _by_phases(x: Tensor, weight: Tensor, groups: int, strides: Sequence[int], dilations: Sequence[int],
               pads: Pads, extra: Sequence[int]) -> Tensor:
    """A transposed convolution as one of stride 1, in which nothing is multiplied with zeros between items.

    Item o*s + r of an axis of the output is the sum over m of x[o - m] * weight[m*s + r]: for each of the s
    phases r a convolution with every s-th item of the kernel. They are channels of one convolution; its
    outputs are laid beside each other. `weight` (C_out, C_in/groups, *kernel); an axis with a stride has no
    dilation, and its stride divides the kernel or is larger.
    """
    axes, (c_out, c_group, *kernel) = len(strides), weight.shape
    sizes = [(n - 1) * s - before - after + d * (k - 1) + more + 1 for n, s, d, k, (before, after), more in
             zip(x.shape[2:], strides, dilations, kernel, pads, extra, strict=True)]
    if any(size < 1 for size in sizes):
        raise ValueError(f"conv_transpose2d of {x.shape} with a kernel {tuple(kernel)} and padding {pads} "
                         "leaves no output")
    phases = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
    taps = [k // p for k, p in zip(kernel, phases, strict=True)]
    weight = weight.reshape(c_out, c_group, *flatten(zip(taps, phases, strict=True)))
    weight = weight.permute(*range(2, 2 + 2 * axes, 2), 1, 0, *range(3, 3 + 2 * axes, 2))
    # stored as it is multiplied, outputs side by side: with 2 x 2 x 512 items from one to the next, all would
    # lie in one set of the cache (six times as slow on Zen 1)
    weight = weight.reshape(*taps, c_group, -1).flip(tuple(range(axes))).contiguous()
    weight = weight.permute(1 + axes, axes, *range(axes))
    spans = [(before // s, (before + size - 1) // s + 1)  # from the first o that is wanted to the last
             for s, (before, _), size in zip(strides, pads, sizes, strict=True)]
    edges = [(d * (t - 1) - first, end - n) for d, t, (first, end), n in
             zip(dilations, taps, spans, x.shape[2:], strict=True)]
    if any(n <= -min(0, before) - min(0, after) for n, (before, after) in zip(x.shape[2:], edges)):
        x = pad_spatial(x, [(max(0, before), max(0, after)) for before, after in edges])
        edges = [(min(0, before), min(0, after)) for before, after in edges]
    out = x.conv2d(weight, groups=groups, dilation=dilations, padding=flatten(reversed(edges))).contiguous()
    counts = out.shape[2:]
    out = out.reshape(out.shape[0], c_out, *phases, *counts)
    out = out.permute(0, 1, *flatten((2 + axes + i, 2 + i) for i in range(axes)))
    out = pad_spatial(out, list(flatten(((0, 0), (0, s - p)) for s, p in zip(strides, phases))))
    out = out.reshape(out.shape[0], c_out, *(o * s for o, s in zip(counts, strides)))
    crops = ((before % s, before % s + size) for s, (before, _), size in zip(strides, pads, sizes))
    return out.shrink(((0, out.shape[0]), (0, c_out), *crops))


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
