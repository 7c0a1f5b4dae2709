"""Shapes: views, joined and split tensors, copies."""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all


def cut(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    index: list[slice] = [slice(None)] * x.ndim
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


def select(x: Tensor, dim: int, index: int) -> Tensor:
    dim %= x.ndim
    index %= int(x.shape[dim])
    return cut(x, dim, index, index + 1).squeeze(dim)


def expand(x: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    padded = x.reshape((1,) * (len(size) - x.ndim) + x.shape)
    return padded.expand(tuple(old if new == -1 else new for old, new in zip(padded.shape, size)))


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in dims} if x.ndim else set()
    return x.reshape(tuple(n for axis, n in enumerate(x.shape) if axis not in gone or n != 1))


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined; a tensor of the shape (0,) counts as no tensor, whatever shape the others have."""
    whole = [x for x in tensors if x.shape != (0,)] or list(tensors)[:1]
    return whole[0].cat(*whole[1:], dim=dim)


def pad(x: Tensor, sizes: Sequence[int], value: float = 0) -> Tensor:
    """Last axis first; sizes below zero crop."""
    pairs = [(0, 0)] * (x.ndim - len(sizes) // 2) + list(zip(sizes[::2], sizes[1::2]))[::-1]
    for axis, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:
            x = cut(x, axis, max(0, -before), int(x.shape[axis]) - max(0, -after))
    return x.pad(tuple((max(0, before), max(0, after)) for before, after in pairs), value=value)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return x.diagonal(offset, dim1, dim2)


enter_all({
    "view reshape _unsafe_view view_copy": lambda x, size: x.reshape(tuple(size)),
    "permute": lambda x, dims: x.permute(tuple(dims)),
    "transpose.int": lambda x, dim0, dim1: x.transpose(dim0, dim1),
    "t": lambda x: x if x.ndim < 2 else x.transpose(0, 1),
    "expand": expand,
    "squeeze squeeze.dim squeeze.dims": squeeze,
    "unsqueeze": lambda x, dim: x.unsqueeze(dim),
    "select.int": select,
    "slice.Tensor": cut,
    "split_with_sizes split.Tensor": lambda x, sizes, dim=0: x.split(sizes, dim),
    "unbind.int": lambda x, dim=0: [select(x, dim, i) for i in range(x.shape[dim])],
    "cat": cat,
    "stack": lambda tensors, dim=0: tensors[0].stack(*tensors[1:], dim=dim),
    "flip": lambda x, dims: x.flip(tuple(dims)),
    "repeat": lambda x, repeats: x.repeat(tuple(repeats)),
    "constant_pad_nd": pad,
    "diagonal": diagonal,
    "alias detach lift_fresh_copy": lambda x: x,
    "clone": lambda x: x,
    "copy": lambda x, y, non_blocking=False: expand(y, x.shape).cast(x.dtype),
})
