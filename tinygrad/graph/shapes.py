"""The shapes of tensor-graph nodes, and what their builders refuse.

`SHAPES` gives a node's shape from its sources and argument, when the node is made. `elementwise_dtype`
and `check_movement` raise where the user's sizes, dtypes or devices do not fit, with both sides in the
message.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sharding import shape_of_blocks
from tinygrad.graph.sizes import is_symbolic, reshapes_in_memory
from tinygrad.helpers import argsort, ceildiv, prod

if TYPE_CHECKING:
    from tinygrad.graph.uop import Shape, UOp


def _collective_shape(node: UOp) -> Shape:
    _, what, *number = node.arg
    if number:
        return shape_of_blocks(what, *number)
    first = node.src[0].shape
    return first if what else (len(node.src) * first[0], *first[1:])


def _reduced_shape(node: UOp) -> Shape:
    if not isinstance(node.arg, tuple):
        return ()
    return tuple(1 if i in node.arg[1] else n for i, n in enumerate(node.src[0].shape))


_AS_THE_FIRST: Final = Family.ELEMENTWISE | {
    Ops.CONTIGUOUS, Ops.DETACH, Ops.ASSIGN, Ops.COPY, Ops.CUSTOM_GRADIENT, Ops.LIVE_OUT}

SHAPES: Final[dict[Ops, Callable[[UOp], Shape]]] = {
    **dict.fromkeys(_AS_THE_FIRST, lambda n: n.src[0].shape),
    Ops.COLLECTIVE: _collective_shape,
    Ops.BUFFER: lambda n: (n.arg.size,) if n.arg.layout is None else n.arg.layout.shape,
    Ops.PARAM: lambda n: (n.arg[1],),
    Ops.REDUCE: _reduced_shape,
    **dict.fromkeys((Ops.RESHAPE, Ops.EXPAND), lambda n: tuple(n.arg)),
    Ops.PERMUTE: lambda n: tuple(n.src[0].shape[i] for i in n.arg),
    Ops.PAD: lambda n: tuple(b + s + a for (b, a), s in zip(n.arg, n.src[0].shape)),
    Ops.SHRINK: lambda n: tuple(e - s for s, e in n.arg),
    Ops.STRIDE: lambda n: tuple(ceildiv(s, abs(k)) for k, s in zip(n.arg, n.src[0].shape)),
}
"""The shape of the tensor that a node stands for; () where there is no rule: loop-nest and program nodes."""


inverse_permutation: Final = argsort
"""The order that undoes another one."""


# --- what is refused ----------------------------------------------------------------------------------------


def elementwise_dtype(op: Ops, src: tuple[UOp, ...]) -> DType:
    """The dtype of what `op` makes of these sources, item by item. Raises ValueError where shapes or devices
    differ, TypeError for dtypes that differ or that `op` cannot take."""
    first = src[0]
    shape, device, dtype = first.shape, first.device, src[1].dtype if op is Ops.WHERE else first.dtype
    apart = differ = False
    for s in src:
        if s.shape != shape:
            raise ValueError(f"{op.name} takes equal shapes, got {', '.join(str(s.shape) for s in src)}")
        if s.device is not device:
            apart = apart or (device is not None and s.device is not None and s.device != device)
            device = s.device or device
        if s.dtype is not dtype:
            differ = differ or s is not first or op is not Ops.WHERE
    if differ or (op is Ops.WHERE and first.dtype is not dtypes.bool.vec(dtype.count)):
        raise TypeError(f"{op.name} takes equal dtypes, got {', '.join(str(s.dtype) for s in src)}")
    if op in _TAKES and not _TAKES[op][1](dtype):
        raise TypeError(f"{op.name} takes {_TAKES[op][0]}, got {dtype}")
    if apart:
        devices = {s.device for s in src} - {None}
        places = ", ".join(sorted(map(str, devices)))
        remedy = "move one with .to(device)" if all(isinstance(d, str) for d in devices) else \
            "spread the other with .shard(devices), whole on each, or .shard(devices, axis)"
        raise ValueError(f"{op.name} of values on different devices: {places}; {remedy}")
    return dtypes.bool.vec(dtype.count) if op in Family.COMPARE else dtype


_TAKES: dict[Ops, tuple[str, Callable[[DType], bool]]] = {
    **dict.fromkeys(Family.FLOAT_ONLY, ("floats", lambda dtype: dtype.is_float)),
    **dict.fromkeys(Family.INT_ONLY, ("integers", lambda dtype: dtype.is_int)),
    **dict.fromkeys((Ops.AND, Ops.OR, Ops.XOR), ("integers or bools", lambda dtype: not dtype.is_float)),
    Ops.THREEFRY: ("words of 32 bits", lambda dtype: dtype.scalar is dtypes.uint32),
}
"""What operations that do not take every dtype take, in words and as a check."""


def check_movement(op: Ops, shape: Shape, argument: Any) -> None:
    """Raise ValueError where a movement op does not take this argument over a value of `shape`."""
    if op is Ops.RESHAPE:
        if is_symbolic(shape) or is_symbolic(argument):
            _check_symbolic_reshape(shape, argument)
        elif prod(argument) != prod(shape):
            raise ValueError(_other_size(shape, argument))
    elif op is Ops.PERMUTE:
        if sorted(argument) != list(range(len(shape))):
            raise ValueError(f"{argument} is not an order of the {len(shape)} axes of {shape}")
    else:
        holds, refusal = _EACH_AXIS[op]
        if len(argument) != len(shape) or not all([holds(a, n) for a, n in zip(argument, shape)]):
            raise ValueError(refusal.format(shape=shape, got=argument))


_EACH_AXIS: dict[Ops, tuple[Callable[[Any, int], bool], str]] = {
    Ops.EXPAND: (lambda new, size: size in (1, new),
                 "cannot expand {shape} to {got}: only axes of size 1 grow"),
    Ops.PAD: (lambda pair, size: pair[0] >= 0 and pair[1] >= 0,
              "pad takes a pair of sizes >= 0 for each axis of {shape}, got {got}"),
    Ops.SHRINK: (lambda span, size: 0 <= span[0] <= span[1] <= size,
                 "shrink takes 0 <= start <= end <= size for each axis of {shape}, got {got}"),
    Ops.STRIDE: (lambda step, size: step != 0,
                 "stride takes a step other than 0 for each axis of {shape}, got {got}"),
}
"""What holds of the argument of a movement op for each axis and its size, and what is said where it does
not."""


def _other_size(old: Shape, new: Shape) -> str:
    return f"cannot reshape {old} ({prod(old)} items) to {new} ({prod(new)} items)"


@lru_cache(1 << 10)
def _check_symbolic_reshape(old: Shape, new: Shape) -> None:
    """Remembered: the layers of a model ask it again and again, and arithmetic of sizes takes its time."""
    if prod(new) != prod(old):
        raise ValueError(_other_size(old, new))
    if not reshapes_in_memory(old, new):
        raise ValueError(f"cannot reshape {old} to {new}: an axis whose size is not known can be merged with "
                         "axes inside it, of known sizes, or split so, but not with axes around it")


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
