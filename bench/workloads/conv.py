"""Convolutions: the sizes of residual networks, stride, odd sizes, and depthwise."""
from __future__ import annotations

from typing import Any

from bench.workloads.base import Workload, operation


def conv2d(label: str, batch: int, channels: int, height: int, width: int, filters: int, kernel: int, *,
           stride: int = 1, groups: int = 1) -> Workload:
    """A two-dimensional convolution of (batch, channels, height, width), padded by half the (odd) kernel."""
    padding = kernel // 2
    results = batch * filters * -(-height // stride) * -(-width // stride)
    products = channels // groups * kernel * kernel
    shapes = [(batch, channels, height, width), (filters, channels // groups, kernel, kernel)]

    def in_tinygrad(_: Any, x: Any, weight: Any) -> Any:
        return x.conv2d(weight, groups=groups, stride=stride, padding=padding)

    def in_torch(torch: Any, x: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, groups=groups, stride=stride, padding=padding)

    def in_jax(jax: Any, x: Any, weight: Any) -> Any:
        return jax.lax.conv_general_dilated(x, weight, (stride, stride), [(padding, padding)] * 2,
                                            feature_group_count=groups)

    arrow = "" if groups > 1 else f" -> {filters}"
    return operation(f"{label}, {batch}x{channels}x{height}x{width}{arrow}", 2.0 * results * products, shapes,
                     results, tinygrad=in_tinygrad, torch=in_torch, jax=in_jax)


WORKLOADS = (
    conv2d("conv 3x3", 16, 64, 56, 56, 64, 3),
    conv2d("conv 1x1", 16, 256, 28, 28, 256, 1),
    conv2d("conv 3x3 stride 2", 16, 64, 56, 56, 128, 3, stride=2),
    conv2d("conv 3x3 odd", 5, 37, 61, 43, 53, 3),
    conv2d("conv 7x7 stride 2", 8, 3, 224, 224, 64, 7, stride=2),
    conv2d("depthwise 3x3", 16, 256, 56, 56, 256, 3, groups=256),
)
