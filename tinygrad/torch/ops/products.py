"""Products of matrices, convolution and its gradients."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all, gradients_at, operator


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices or vectors. Raises RuntimeError for operands of two dtypes, as PyTorch does."""
    if a.dtype != b.dtype:
        raise RuntimeError(f"operands of a product must have the same dtype, but got {a.dtype} and {b.dtype}")
    return a.matmul(b)


def plus_product(x: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta x + alpha a b; with beta = 0, x is not read: its NaNs do not matter."""
    if not a.dtype.is_float:
        beta, alpha = int(beta), int(alpha)
    found = product(a, b) if alpha == 1 else product(a, b) * alpha
    return found if beta == 0 else found + (x if beta == 1 else x * beta)


enter_all({"mm bmm mv dot": product, "addmm baddbmm": plus_product})


def per_axis(sizes: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(sizes) * axes if len(sizes) == 1 else tuple(sizes)


@operator("convolution")
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
             dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int) -> Tensor:
    axes = weight.ndim - 2
    strides, pads, dilations = (per_axis(sizes, axes) for sizes in (stride, padding, dilation))
    if transposed:
        added = per_axis(output_padding, axes)
        return x.conv_transpose2d(weight, bias, groups, strides, dilations, pads, added)
    return x.conv2d(weight, bias, groups, strides, dilations, pads)


@operator("convolution_backward")
def convolution_gradients(g: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None,
                          stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
                          transposed: bool, output_padding: Sequence[int], groups: int,
                          output_mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    def result(x: Tensor, weight: Tensor) -> Tensor:
        return convolve(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)

    found = (*gradients_at((x, weight), result, g), g.sum((0, *range(2, g.ndim))))
    return tuple(t if wanted else None for t, wanted in zip(found, output_mask, strict=True))


@operator("_trilinear")
def trilinear(a: Tensor, b: Tensor, c: Tensor, expand1: Sequence[int], expand2: Sequence[int],
              expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1) -> Tensor:
    """The product of three tensors, each with more axes of one item, summed along `sumdim`."""
    for axis in sorted(expand1):
        a = a.unsqueeze(axis)
    for axis in sorted(expand2):
        b = b.unsqueeze(axis)
    for axis in sorted(expand3):
        c = c.unsqueeze(axis)
    return (a * b * c).sum(tuple(sumdim))
