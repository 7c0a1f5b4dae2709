"""The shapes of tensor-graph nodes, and what their builders refuse.

`SHAPES` gives a node's shape from its sources and argument, when the node is made. The `check_` functions
raise where the user's sizes, dtypes or devices do not fit, with both sides in the message.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import is_symbolic, reshapes_in_memory
from tinygrad.helpers import argsort, ceildiv, prod

if TYPE_CHECKING:
    from tinygrad.dtype import DType
    from tinygrad.graph.uop import Shape, UOp

Pairs = Sequence[tuple[int, int]]


def _reduced_shape(node: UOp) -> Shape:
    if not isinstance(node.arg, tuple):
        return ()
    return tuple(1 if i in node.arg[1] else n for i, n in enumerate(node.src[0].shape))


def _joined_shape(node: UOp) -> Shape:
    first, *rest = node.src[0].shape
    return (len(node.src) * first, *rest)


SHAPES: dict[Ops, Callable[[UOp], Shape]] = {
    **dict.fromkeys(Family.ELEMENTWISE, lambda n: n.src[0].shape),
    **dict.fromkeys((Ops.CONTIGUOUS, Ops.DETACH, Ops.ASSIGN, Ops.COPY), lambda n: n.src[0].shape),
    **dict.fromkeys((Ops.CUSTOM_GRADIENT, Ops.LIVE_OUT), lambda n: n.src[0].shape),
    Ops.COLLECTIVE: lambda n: n.src[0].shape if n.arg[1] else _joined_shape(n),
    Ops.BUFFER: lambda n: (n.arg.size,) if n.arg.layout is None else n.arg.layout.shape,
    Ops.PARAM: lambda n: (n.arg[1],),
    Ops.REDUCE: _reduced_shape,
    Ops.RESHAPE: lambda n: tuple(n.arg),
    Ops.EXPAND: lambda n: tuple(n.arg),
    Ops.PERMUTE: lambda n: tuple(n.src[0].shape[i] for i in n.arg),
    Ops.PAD: lambda n: tuple(b + s + a for (b, a), s in zip(n.arg, n.src[0].shape)),
    Ops.SHRINK: lambda n: tuple(e - s for s, e in n.arg),
    Ops.STRIDE: lambda n: tuple(ceildiv(s, abs(k)) for k, s in zip(n.arg, n.src[0].shape)),
}
"""The shape of the tensor that a node stands for; () where there is no rule: loop-nest and program nodes."""


def inverse_permutation(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes `order`."""
    return argsort(order)


# --- what is refused ----------------------------------------------------------------------------------------


def check_elementwise(op: Ops, src: tuple[UOp, ...], values: tuple[UOp, ...]) -> None:
    """Raise ValueError where shapes or devices differ, TypeError for dtypes that differ or that `op` cannot
    take. `values` are the sources without the condition of a WHERE."""
    shape, dtype, device = src[0].shape, values[0].dtype, src[0].device
    apart = False
    for s in src:
        if s.shape != shape:
            raise ValueError(f"{op.name} takes equal shapes, got {', '.join(str(s.shape) for s in src)}")
        if s.device is not device:
            apart = apart or (device is not None and s.device is not None and s.device != device)
            device = s.device or device
    for v in values:
        if v.dtype is not dtype:
            raise TypeError(f"{op.name} takes equal dtypes, got {', '.join(str(s.dtype) for s in src)}")
    if op in _PARTICULAR:
        _check_dtype(op, dtype, src)
    if apart:
        devices = {s.device for s in src} - {None}
        places = ", ".join(sorted(map(str, devices)))
        remedy = "move one with .to(device)" if all(isinstance(d, str) for d in devices) else \
            "spread the other with .shard(devices), whole on each, or .shard(devices, axis)"
        raise ValueError(f"{op.name} of values on different devices: {places}; {remedy}")


_PARTICULAR = Family.FLOAT_ONLY | Family.BITWISE | Family.INT_ONLY | {Ops.WHERE}
"""Operations that do not take every dtype."""


def _check_dtype(op: Ops, dtype: DType, src: tuple[UOp, ...]) -> None:
    """Raise TypeError where `op` does not take values of this dtype, or WHERE its condition."""
    if op is Ops.WHERE and not src[0].dtype.is_bool:
        raise TypeError(f"{op.name} takes equal dtypes, got {', '.join(str(s.dtype) for s in src)}")
    if (op in Family.FLOAT_ONLY and not dtype.is_float) or (op in Family.INT_ONLY and not dtype.is_int):
        raise TypeError(f"{op.name} takes {'floats' if op in Family.FLOAT_ONLY else 'integers'}, got {dtype}")
    if op in (Ops.AND, Ops.OR, Ops.XOR) and dtype.is_float:
        raise TypeError(f"{op.name} takes integers or bools, got {dtype}")


def check_reshape(old: Shape, new: Shape) -> None:
    if is_symbolic(old) or is_symbolic(new):
        _check_symbolic_reshape(old, new)
    elif prod(new) != prod(old):
        raise ValueError(f"cannot reshape {old} ({prod(old)} items) to {new} ({prod(new)} items)")


@lru_cache(1 << 10)
def _check_symbolic_reshape(old: Shape, new: Shape) -> None:
    """Remembered: the layers of a model ask it again and again, and arithmetic of sizes takes its time."""
    if prod(new) != prod(old):
        raise ValueError(f"cannot reshape {old} ({prod(old)} items) to {new} ({prod(new)} items)")
    if not reshapes_in_memory(old, new):
        raise ValueError(f"cannot reshape {old} to {new}: an axis whose size is not known can be merged with "
                         "axes inside it, of known sizes, or split so, but not with axes around it")


def check_permute(shape: Shape, order: tuple[int, ...]) -> None:
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"{order} is not an order of the {len(shape)} axes of {shape}")


def check_expand(old: Shape, new: Shape) -> None:
    if len(new) != len(old) or any([s not in (1, n) for s, n in zip(old, new)]):
        raise ValueError(f"cannot expand {old} to {new}: only axes of size 1 grow")


def check_pad(shape: Shape, pads: Pairs) -> None:
    if len(pads) != len(shape) or any(b < 0 or a < 0 for b, a in pads):
        raise ValueError(f"pad takes a pair of sizes >= 0 for each axis of {shape}, got {pads}")


def check_shrink(shape: Shape, bounds: Pairs) -> None:
    if len(bounds) != len(shape) or any(not 0 <= s <= e <= n for (s, e), n in zip(bounds, shape)):
        raise ValueError(f"shrink takes 0 <= start <= end <= size for each axis of {shape}, got {bounds}")


def check_stride(shape: Shape, steps: tuple[int, ...]) -> None:
    if len(steps) != len(shape) or 0 in steps:
        raise ValueError(f"stride takes a step other than 0 for each axis of {shape}, got {steps}")


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """The shape that all `shapes` expand to. Raises ValueError, naming the operation, where there is none."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    ndim = max(map(len, shapes))
    aligned = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*aligned, strict=True):
        others = set(sizes) - {1}
        if len(others) > 1:
            raise ValueError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast; axes, "
                             "counted from the last, must have equal sizes or size 1")
        result.append(others.pop() if others else 1)
    return tuple(result)
