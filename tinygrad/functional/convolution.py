"""Convolution, its transpose, and the gradient of both: windows times weights, summed.

Any number of spatial axes. Neither is a primitive: the windows of `windows.py` are movement, the product and
the sum are ordinary nodes. Only the gradient has a rule of its own, because it is a convolution again.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import product, starmap
from typing import TYPE_CHECKING, NamedTuple

from tinygrad.dtype import DTypeLike, accumulate_dtype, promote, to_dtype
from tinygrad.frozen import frozen
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
from tinygrad.helpers import flatten, make_tuple, prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


MANY_PRODUCTS = 128
"""Products of an output from which on not to multiply zeros pays for laying outputs of several convolutions
beside each other (3 x 3 with stride 2 over 56 x 56 pixels: 3.4 of the time with 9 products, 1.07 with 144;
5 x 5 over 28 x 28: 1.03 with 100, 0.8 with 200, 0.4 with 400; with AVX2 1.02, 0.85; 0.69, 0.47, 0.55; Zen
4)."""


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


@frozen
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
    sizes = [(n - 1) * s - before - after + d * (k - 1) + more + 1 for n, s, d, k, (before, after), more in
             zip(self.shape[2:], strides, dilations, kernel, pads, extra, strict=True)]
    if any(size < 1 for size in sizes):
        raise ValueError(f"conv_transpose2d of {self.shape} with weight {weight.shape} and padding {padding} "
                         "leaves no output")
    out = _transposed(self, weight, groups, strides, dilations, pads, sizes)
    return out if bias is None else out + bias.reshape(1, -1, *(1,) * axes)


def _transposed(x: Tensor, weight: Tensor, groups: int, strides: Sequence[int], dilations: Sequence[int],
                pads: Pads, sizes: Sequence[int]) -> Tensor:
    """A transposed convolution with outputs of these sizes, as ordinary ones."""
    axes, (c_in, c_group, *kernel) = len(strides), weight.shape
    spatial = tuple(range(2, 2 + axes))
    plain = all(s == d == 1 for s, d in zip(strides, dilations, strict=True))
    if plain and groups == 1 and all(n < k for n, k in zip(x.shape[2:], kernel, strict=True)):
        # the shorter one of both is the window: of one pixel it is a product of matrices
        reach = [(n - 1 - before, size - k + before)
                 for n, k, (before, _), size in zip(x.shape[2:], kernel, pads, sizes, strict=True)]
        out = weight.transpose(0, 1).conv2d(x.flip(spatial), padding=flatten(reversed(reach)))
        return type(x).of(out.transpose(0, 1).uop, x)
    weight = weight.reshape(groups, c_in // groups, c_group, *kernel).transpose(1, 2)
    weight = weight.reshape(groups * c_group, c_in // groups, *kernel)
    has_phases = any(s > 1 for s in strides) and all(1 in both for both in zip(strides, dilations))
    is_one = all(len(phases_of(k, s)) == 1 for k, s in zip(kernel, strides, strict=True))
    if has_phases and (is_one or prod(weight.shape[1:]) >= MANY_PRODUCTS):
        return _by_phases(x, weight, groups, strides, dilations, pads, sizes)
    x = _spread(x, strides)
    edges = [(d * (k - 1) - before, size - n + before)
             for n, d, k, (before, _), size in zip(x.shape[2:], dilations, kernel, pads, sizes, strict=True)]
    return _padded_conv(x, weight.flip(spatial), groups, dilations, edges)


def _by_phases(x: Tensor, weight: Tensor, groups: int, strides: Sequence[int], dilations: Sequence[int],
               pads: Pads, sizes: Sequence[int]) -> Tensor:
    """A transposed convolution by ones of stride 1, in which nothing is multiplied with zeros between items.

    Item o*s + r of an axis of the output is the sum over m of x[o - m] * weight[m*s + r]: for each of the s
    phases r a convolution with every s-th item of the kernel. Those with as many items are channels of one
    convolution; their outputs are laid beside each other. `weight` (C_out, C_in/groups, *kernel); an axis
    with a stride has no dilation.
    """
    axes, (c_out, _, *kernel) = len(strides), weight.shape
    spans = [(before // s, (before + size - 1) // s + 1)  # from the first o that is wanted to the last
             for s, (before, _), size in zip(strides, pads, sizes, strict=True)]
    counts = [end - first for first, end in spans]
    every = list(map(phases_of, kernel, strides))
    has_several = any(len(phases) > 1 for phases in every)

    def edges(phases: Sequence[Phases]) -> list[tuple[int, int]]:
        return [(d * (p.taps - 1) - first, end - n) for d, p, (first, end), n in
                zip(dilations, phases, spans, x.shape[2:], strict=True)]

    def of(*phases: Phases) -> Tensor:
        """(N, C_out, phases..., outputs...) of some phases of each axis."""
        ends = [(before - b, after - a) for (before, after), (b, a) in zip(edges(phases), zeros, strict=True)]
        # of 2 x 2 x 512 items from one output to the next all would lie in one set of the cache (six times as
        # slow on Zen 1); parts of a kernel are read well where they lie
        taps = _weight_of_phases(weight, strides, phases, is_stored=not has_several)
        out = _padded_conv(items, taps, groups, dilations, ends)
        return out.contiguous().reshape(x.shape[0], c_out, *(p.number for p in phases), *counts)

    items, zeros = x, [(0, 0)] * axes
    if has_several:  # stored once for all of them
        zeros = [(max(0, before), max(0, after)) for before, after in edges([p[0] for p in every])]
        items = pad_spatial(x, zeros).contiguous()
    blocks = list(starmap(of, product(*every)))
    for i in reversed(range(axes)):  # the phases of an axis behind each other
        each = len(every[i])
        blocks = [blocks[at].cat(*blocks[at + 1:at + each], dim=2 + i) for at in range(0, len(blocks), each)]
    (out,) = blocks
    without = [(0, s - n) for s, n in zip(strides, out.shape[2:2 + axes])]  # phases that no item is for
    out = pad_spatial(out, [*without, *[(0, 0)] * axes])
    out = out.permute(0, 1, *flatten((2 + axes + i, 2 + i) for i in range(axes)))
    out = out.reshape(out.shape[0], c_out, *(o * s for o, s in zip(counts, strides)))
    crops = ((before % s, before % s + size) for s, (before, _), size in zip(strides, pads, sizes))
    return type(x).of(out.shrink(((0, out.shape[0]), (0, c_out), *crops)).uop, x)  # nobody has what it shows


def _padded_conv(x: Tensor, weight: Tensor, groups: int, dilations: Sequence[int],
                 edges: Sequence[tuple[int, int]]) -> Tensor:
    """A convolution over items with zeros around them, or without those at the edges where a number is below
    0: after the zeros, where they take away more than all items."""
    if any(n <= -min(0, before) - min(0, after) for n, (before, after) in zip(x.shape[2:], edges)):
        x = pad_spatial(x, [(max(0, before), max(0, after)) for before, after in edges])
        edges = [(min(0, before), min(0, after)) for before, after in edges]
    return x.conv2d(weight, groups=groups, dilation=tuple(dilations), padding=flatten(reversed(edges)))


class Phases(NamedTuple):
    """A number of phases of an axis from a first one on, for each of which as many items of a kernel count:
    `taps`."""

    first: int
    number: int
    taps: int


def phases_of(kernel: int, stride: int) -> list[Phases]:
    """The phases of an axis for which there are items: the first ones have one more where the stride does not
    divide the kernel."""
    taps, longer = divmod(kernel, stride)
    found = Phases(0, longer, taps + 1), Phases(longer, stride - longer, taps)
    return [phases for phases in found if phases.number and phases.taps]


def _weight_of_phases(weight: Tensor, strides: Sequence[int], phases: Sequence[Phases],
                      is_stored: bool) -> Tensor:
    """(C_out * phases, C_in/groups, *taps): what is multiplied for these phases, stored so, outputs side by
    side, or a view."""
    axes, (c_out, c_group, *_) = len(strides), weight.shape
    ends = [p.first + (p.taps - 1) * s + p.number for p, s in zip(phases, strides, strict=True)]
    weight = weight.shrink(((0, c_out), (0, c_group), *((p.first, end) for p, end in zip(phases, ends))))
    weight = pad_spatial(weight, [(0, s - p.number) for p, s in zip(phases, strides)])
    weight = weight.reshape(c_out, c_group, *flatten((p.taps, s) for p, s in zip(phases, strides)))
    weight = weight.shrink(((0, c_out), (0, c_group), *flatten(((0, p.taps), (0, p.number)) for p in phases)))
    weight = weight.permute(*range(2, 2 + 2 * axes, 2), 1, 0, *range(3, 3 + 2 * axes, 2))
    weight = weight.reshape(*(p.taps for p in phases), c_group, -1).flip(tuple(range(axes)))
    if is_stored:
        weight = weight.contiguous()
    return weight.permute(1 + axes, axes, *range(axes))


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
