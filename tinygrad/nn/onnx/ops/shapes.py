"""Shapes: what moves, joins, cuts, repeats and pads items, and tensors made of sizes."""
from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.functional.movement import shape_to_reach
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.sizes import at_least, at_most, is_symbolic, largest, reshapes_in_memory
from tinygrad.helpers import prod
from tinygrad.nn.onnx.registry import Ints, op, ops
from tinygrad.nn.onnx.values import (
    Array,
    Coded,
    Items,
    Sizes,
    Value,
    element_type,
    is_coded,
    tensor_type,
)
from tinygrad.tensor import Tensor


def moves(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that moves the items of a tensor, as one of any items: strings go where their positions go,
    numbers that no tensor holds where their bytes do."""
    def moved(data: Any, *arguments: Any, **attributes: Any) -> Any:
        if isinstance(data, Coded):
            made = function(data.bytes, *arguments, **attributes)
            return tuple(Coded(x, data.type) for x in made) if isinstance(made, tuple) else Coded(made,
                                                                                                  data.type)
        if not isinstance(data, np.ndarray):
            return function(data, *arguments, **attributes)
        places = Tensor(np.arange(data.size, dtype=np.int32).reshape(data.shape), requires_grad=False)
        made = function(places, *arguments, **attributes)
        taken = tuple(data.reshape(-1)[x.numpy()] for x in (made if isinstance(made, tuple) else (made,)))
        return taken if isinstance(made, tuple) else taken[0]

    signature = inspect.signature(function)
    moved.__name__, moved.__module__ = function.__name__, function.__module__
    moved.__annotations__ = {**function.__annotations__, next(iter(signature.parameters)): Items}
    moved.__signature__ = signature  # type: ignore[attr-defined]
    moved.__wrapped__ = function  # type: ignore[attr-defined]
    return moved


# --- constants and sizes ------------------------------------------------------------------------------------


CONSTANTS: dict[str, Any] = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
                             "value_floats": np.float32, "value_string": object, "value_strings": object}


@op
def Constant(*, value: Value = None, sparse_value: Value = None, value_float: float | None = None,
             value_floats: Any = None, value_int: int | None = None, value_ints: Any = None,
             value_string: str | None = None, value_strings: Any = None) -> Value:
    given = {"value": value, "sparse_value": sparse_value, "value_float": value_float,
             "value_floats": value_floats, "value_int": value_int, "value_ints": value_ints,
             "value_string": value_string, "value_strings": value_strings}
    found = [(name, held) for name, held in given.items() if held is not None]
    if len(found) != 1:
        raise ValueError(f"takes one of its attributes, got {', '.join(n for n, _ in found) or 'none'}")
    ((name, held),) = found
    return np.asarray(held, CONSTANTS.get(name))


@op
def ConstantOfShape(input: Ints, *, value: Array | None = None) -> Value:
    fill = np.zeros(1, np.float32) if value is None else value
    if is_coded(fill.dtype):
        return Coded.of_array(np.full(input, fill.reshape(-1)[0], fill.dtype))
    return Tensor.full(input, fill.reshape(-1)[0].item(), dtype=tensor_type(fill.dtype), requires_grad=False)


@op
def Shape(data: Value, *, start: int = 0, end: int | None = None) -> Value:
    return Sizes.of(data.shape[start:end])


@op
def Size(data: Value) -> Value:
    return Sizes.of(prod(data.shape))


@op
def Range(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Value:
    first, step = start.item(), delta.item()
    kind = np.dtype(np.int64) if "O" in (start.dtype.kind, limit.dtype.kind) else start.dtype
    count = max(0, math.ceil((limit.item() - first) / step)) if kind.kind == "f" else \
        at_least(-((first - limit.item()) // step), 0)
    wide = tensor_type(kind) if kind.itemsize >= 4 else dtypes.float32
    return (Tensor.arange(count, dtype=wide) * step + first).cast(tensor_type(kind))


@op
def EyeLike(input: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = input.shape
    row, column = Tensor.arange(rows).unsqueeze(1), Tensor.arange(columns)
    kind = input.dtype if dtype is None else tensor_type(element_type(dtype))
    return (column - row == k).cast(kind).to(input.device)


# --- movement -----------------------------------------------------------------------------------------------


def _reshape(data: Tensor, shape: Ints, *, allowzero: int = 0) -> Tensor:
    asked = [data.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape)]
    return _laid_again(data, shape_to_reach(data.shape, asked))


def _laid_again(data: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A reshape. Where no view of memory laid out for the largest sizes says it (two sizes that are not known
    become one), what is known behind them is taken by its place, in rows."""
    is_dynamic = is_symbolic(data.shape) or is_symbolic(shape)
    if not is_dynamic or prod(shape) - prod(data.shape) or reshapes_in_memory(data.shape, shape):
        return data.reshape(shape)
    old, new = data.shape[:_until_known(data.shape)], shape[:_until_known(shape)]
    if prod(data.shape[len(old):]) != prod(shape[len(new):]):
        old, new = data.shape, shape
    place = Tensor.zeros(1, dtype=dtypes.int32, device=data.device, requires_grad=False)
    for axis, size in enumerate(new):
        along = Tensor.arange(size, device=data.device)
        place = place * size + along.reshape([size if i == axis else 1 for i in range(len(new))])
    places = [place // prod(old[axis + 1:]) % size for axis, size in enumerate(old)]
    rows = data.reshape(*old, prod(data.shape[len(old):]))
    return rows[tuple(places)].reshape(shape)


def _until_known(shape: tuple[int, ...]) -> int:
    """How many axes there are up to the last whose size is not known."""
    return max((i + 1 for i, size in enumerate(shape) if is_symbolic((size,))), default=0)


def _flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    kept = input.shape[:axis + input.ndim if axis < 0 else axis]
    return _laid_again(input, (prod(kept), prod(input.shape[len(kept):])))


def _axes(data: Tensor, axes: Sequence[int], extra: int = 0) -> tuple[int, ...]:
    rank = data.ndim + extra
    if not all(-rank <= a < rank for a in axes):
        raise ValueError(f"axes {tuple(axes)} are not all in [{-rank}, {rank - 1}]")
    if len({a % rank for a in axes}) < len(axes):
        raise ValueError(f"axes {tuple(axes)} name an axis twice")
    return tuple(sorted(a % rank for a in axes))


def _squeeze(data: Tensor, axes: Ints | None = None) -> Tensor:
    dropped = [i for i, n in enumerate(data.shape) if n == 1] if axes is None else _axes(data, axes)
    if any(data.shape[a] != 1 for a in dropped):
        raise ValueError(f"axes {tuple(dropped)} of shape {data.shape} are not all of size 1")
    return data.reshape([n for i, n in enumerate(data.shape) if i not in dropped])


def _unsqueeze(data: Tensor, axes: Ints) -> Tensor:
    sizes = list(data.shape)
    for axis in _axes(data, axes, len(axes)):
        sizes.insert(axis, 1)
    return data.reshape(sizes)


def _slice(data: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None,
           steps: Ints | None = None) -> Tensor:
    given = len(starts), *(len(said) for said in (ends, axes, steps) if said is not None)
    if len(set(given)) > 1:
        raise ValueError(f"starts, ends, axes and steps are as many, got {', '.join(map(str, given))}")
    _axes(data, range(len(starts)) if axes is None else axes)
    index = [slice(None)] * data.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = i if axes is None else axes[i], 1 if steps is None else steps[i]
        # backwards, what lies before the first item: a start is the first, and an end takes that along
        stop = None if step < 0 and end < -data.shape[axis] else end
        start = max(start, -data.shape[axis]) if step < 0 else start
        if is_symbolic((data.shape[axis],)):
            start, stop = _within(start, data.shape[axis]), _within(end, data.shape[axis])
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]


def _within(place: int, size: int) -> int:
    """Where a slice ends that is said by a number, on an axis of a size that is not known."""
    if is_symbolic((place,)):
        return place
    if place < 0:
        return at_least(size + max(place, -largest(size)), 0)
    return size if place >= largest(size) else at_most(size, place)


def _split(input: Tensor, split: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None,
           n_outputs: int = 0) -> tuple[Tensor, ...]:
    total, count = input.shape[axis], num_outputs or n_outputs
    size = -(-total // count)
    sizes = [size] * (count - 1) + [total - size * (count - 1)] if split is None else list(split)
    return tuple(input.split(sizes, axis))


def _expand(input: Tensor, shape: Ints) -> Tensor:
    sizes = broadcast_shape("expand", input.shape, shape)
    return input.reshape((1,) * (len(sizes) - input.ndim) + input.shape).expand(sizes)


def _tile(input: Tensor, repeats: Ints) -> Tensor:
    return input.repeat(repeats) if input.ndim else input


def _trilu(input: Tensor, k: int | None = None, *, upper: int = 1) -> Tensor:
    return input.triu(k or 0) if upper else input.tril(k or 0)


def _depth_to_space(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    b, d = blocksize, c // blocksize ** 2
    blocks = input.reshape(n, b, b, d, h, w).permute(0, 3, 4, 1, 5, 2) if mode == "DCR" else \
        input.reshape(n, d, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, d, h * b, w * b)


def _space_to_depth(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    b = blocksize
    blocks = input.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.permute(order).reshape(n, c * b * b, h // b, w // b)


def _reverse_sequence(input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1,
                      time_axis: int = 0) -> Tensor:
    order = (time_axis, batch_axis, *(i for i in range(input.ndim) if i not in (time_axis, batch_axis)))
    x = input.permute(order)
    step = Tensor.arange(x.shape[0], device=x.device).unsqueeze(1)
    lens = sequence_lens.cast(dtypes.int32)
    places = (step < lens).where(lens - 1 - step, step)
    places = places.reshape(*places.shape, *(1,) * (x.ndim - 2)).expand(x.shape)
    return x.gather(0, places).permute(sorted(range(x.ndim), key=order.__getitem__))


ops(
    Reshape=moves(lambda data, *, shape: _reshape(data, shape)),
    Reshape_5=moves(_reshape),
    Flatten=moves(_flatten),
    Squeeze=moves(lambda data, *, axes=None: _squeeze(data, axes)),
    Squeeze_13=moves(_squeeze),
    Unsqueeze=moves(lambda data, *, axes: _unsqueeze(data, axes)),
    Unsqueeze_13=moves(_unsqueeze),
    Transpose=moves(lambda data, *, perm=None: data.permute(perm or tuple(reversed(range(data.ndim))))),
    Slice=moves(lambda data, *, starts, ends, axes=None: _slice(data, starts, ends, axes)),
    Slice_10=moves(_slice),
    Split=moves(lambda input, *, axis=0, split=None, n_outputs=0: _split(
        input, split, axis=axis, n_outputs=n_outputs)),
    Split_13=moves(_split),
    Expand=moves(_expand),
    Tile_6=moves(_tile),
    Trilu=moves(_trilu),
    DepthToSpace=moves(_depth_to_space),
    SpaceToDepth=moves(_space_to_depth),
    ReverseSequence=moves(_reverse_sequence),
)


@op
def Identity(input: Value) -> Value:
    return input


@op
def Concat(*inputs: Items, axis: int = 1) -> Value:
    return concatenated(inputs, axis)


@op
def Concat_4(*inputs: Items, axis: int) -> Value:
    return concatenated(inputs, axis)


def concatenated(values: Sequence[Any], axis: int) -> Items:
    """Tensors, strings or numbers that no tensor holds, joined along `axis`."""
    if isinstance(values[0], Coded):
        return Coded(concatenated([v.bytes for v in values], axis), values[0].type)
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values, axis)
    return values[0].cat(*values[1:], dim=axis)


# --- padding ------------------------------------------------------------------------------------------------

PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _padded(data: Tensor, pads: Ints, value: Any, axes: Ints | None, mode: str) -> Tensor:
    _axes(data, axes or ())
    along = range(data.ndim) if axes is None else [a % data.ndim for a in axes]
    if len(pads) != 2 * len(along):
        raise ValueError(f"takes {2 * len(along)} sizes to pad {len(along)} axes, got {len(pads)}")
    pairs = [(0, 0)] * data.ndim
    for i, axis in enumerate(along):
        pairs[axis] = (pads[i], pads[i + len(pads) // 2])
    if mode == "wrap":
        return _wrapped(data, pairs)
    return data.pad(pairs, mode=PAD_MODES[mode], value=value)


def _wrapped(data: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Each axis cropped where a size is negative, then repeated: `pad` goes once around, the standard any
    number of times."""
    data = data.pad([(min(before, 0), min(after, 0)) for before, after in pairs])
    pairs = [(max(before, 0), max(after, 0)) for before, after in pairs]
    for axis, (before, after) in enumerate(pairs):
        size = data.shape[axis]
        if is_symbolic((size,)) or max(before, after) <= size:
            continue
        if not size:
            raise ValueError(f"axis {axis} has no items to repeat")
        places = np.arange(-before, size + after, dtype=np.int32) % size
        data = data[(*[slice(None)] * axis, places)]
        pairs[axis] = (0, 0)
    return data.pad(pairs, mode=PAD_MODES["wrap"])


def _center_crop_pad(input_data: Tensor, shape: Ints, *, axes: Any = None) -> Tensor:
    pairs = [(0, 0)] * input_data.ndim
    along = range(input_data.ndim) if axes is None else axes
    _axes(input_data, along)
    if len(along) != len(shape):
        raise ValueError(f"takes {len(along)} sizes, got {len(shape)}")
    for axis, size in zip(along, shape, strict=True):
        missing = size - input_data.shape[axis]
        before = missing // 2 if missing >= 0 else -(-missing // 2)
        pairs[axis] = (before, missing - before)
    return input_data.pad(pairs)


ops(
    Pad=lambda data, *, pads, mode="constant", value=0.0: _padded(data, pads, value, None, mode),
    CenterCropPad=moves(_center_crop_pad),
)


@op
def Pad_11(data: Tensor, pads: Ints, constant_value: Array | None = None, axes: Ints | None = None, *,
           mode: str = "constant") -> Tensor:
    value = 0 if constant_value is None else constant_value.reshape(-1)[0].item()
    return _padded(data, pads, value, axes, mode)
