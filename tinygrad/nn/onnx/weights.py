"""Constants as tensors, in memory as kernels read them: `weights_over`.

What is multiplied with the same weights in every run would be packed into panels in every run: for few rows
that takes as long as the products. So weights are packed here, once, and are seen in the shape that the
standard says: axes in another order, which no operator notices. Comes in: the constants that a model's nodes
use, and those nodes. Goes out: tensors. Next: `runner.py`.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tinygrad.codegen.opt.tiles import panel_items
from tinygrad.device import Device
from tinygrad.dtype import dtype_from_numpy
from tinygrad.nn.onnx.model import Node
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor

Order: TypeAlias = tuple[tuple[int, ...], int]
"""(the axes of weights: that of results first, then those that are summed over, the outermost first; how many
groups of results there are)."""


def weights_over(constants: Mapping[str, Array], nodes: Iterable[Node], kept: Iterable[str],
                 device: str) -> dict[str, Tensor]:
    """A tensor of each constant: in panels where all that uses it multiplies with it. `kept` names those that
    are used by more than the nodes."""
    orders: dict[str, set[Order | None]] = {name: {None} for name in kept}
    for node in nodes:
        for place, name in enumerate(node.inputs):
            if name in constants:
                orders.setdefault(name, set()).add(_order_of(node, place, constants[name]))
    made = {}
    for name, array in constants.items():
        wanted = orders.get(name, set())
        (order,) = wanted if len(wanted) == 1 else (None,)
        made[name] = tensor_over(array, device) if order is None else packed_over(array, order, device)
    return made


def _order_of(node: Node, place: int, array: Array) -> Order | None:
    """How a node multiplies with a constant that it takes at a place; None where that is none of its
    matrices."""
    if node.domain or place != 1:
        return None
    groups = node.attributes.get("group", 1)
    if node.op == "Conv" and array.ndim > 2 and groups > 0 and array.shape[0] % groups == 0:
        return (0, *range(2, array.ndim), 1), groups
    if node.op in ("MatMul", "Gemm") and array.ndim == 2:
        return (0, 1) if node.attributes.get("transB", 0) else (1, 0), 1
    return None


def packed_over(array: Array, order: Order, device: str) -> Tensor:
    """A tensor of weights that lie in panels of a tile's columns, if these divide them, on a device of cores;
    weights of a convolution with windows of one item else a row for each channel that comes in. Weights that
    are mapped stay where they are."""
    machine = Device[device].renderer.machine
    if machine.has_blocks or is_mapped(array) or array.dtype.kind != "f" or not array.size:
        return tensor_over(array, device)
    axes, groups = order
    ordered = array.transpose(axes)
    columns, summed = ordered.shape[0], ordered.shape[1:]
    width = panel_items(machine, dtype_from_numpy(array.dtype), columns // groups)
    is_pointwise = array.ndim > 2 and all(n == 1 for n in array.shape[2:])
    if not width and not is_pointwise:
        return tensor_over(array, device)
    width = width or columns
    panels = ordered.reshape(columns // width, width, *summed)
    lying = tensor_over(np.ascontiguousarray(np.moveaxis(panels, 1, -1)), device)
    seen = lying.permute((0, lying.ndim - 1, *range(1, lying.ndim - 1))).reshape(columns, *summed)
    return seen.permute(tuple(int(i) for i in np.argsort(axes)))


def tensor_over(array: Array, device: str) -> Tensor:
    """A tensor of an array: a number in the kernels that use it, where it is one; else over its memory where
    that can be (weights that are mapped), or over a copy."""
    if not array.shape:
        return Tensor(array, device, requires_grad=False) if array.dtype.kind not in "biuf" else \
            Tensor(array[()], device, requires_grad=False)
    if is_mapped(array) and array.ctypes.data % array.itemsize == 0:
        mapped = Tensor.from_dlpack(np.asarray(array))
        mapped.requires_grad = False
        return mapped.to(device)
    return Tensor(array, device, requires_grad=False)


def is_matrix(array: Array) -> bool:
    """Whether an array is one that something may be multiplied with: no size of a shape, however small."""
    return array.ndim > 1 and array.dtype.kind == "f"


def is_mapped(array: Array) -> bool:
    """Whether an array lies in a file."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    return isinstance(owner, np.memmap)
