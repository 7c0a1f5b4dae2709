"""Types of items: casts, also to and from strings and numbers that no tensor holds, and bits seen anew."""
from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import Coded, Items, Value, element_type, is_coded, numpy_type, tensor_type
from tinygrad.tensor import Tensor

LARGEST = {dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}


def convert(value: Value, kind: np.dtype[Any], saturate: int = 1, round_mode: str = "up") -> Value:
    """`value` with items of NumPy's type `kind`.

    Floats become integers by dropping the fraction; what an 8-bit float does not reach is its largest with
    `saturate`, else NaN or infinity.
    """
    if isinstance(value, np.ndarray):
        return _of_strings(value, kind)
    if isinstance(value, Coded):
        if value.type == kind:
            return value
        value = value.decode()
    if kind.kind == "O":
        return _to_strings(value.numpy())
    if is_coded(kind):
        rounding = {"nearest": "even"}.get(round_mode,
                                           round_mode) if kind.name == "float8_e8m0fnu" else "even"
        return Coded.encode(value, kind, bool(saturate), rounding)
    dtype = tensor_type(kind)
    largest = LARGEST.get(dtype)
    if largest is None or value.dtype is dtype:
        return value.cast(dtype)
    if saturate:
        return value.cast(dtypes.float32).maximum(-largest).minimum(largest).cast(dtype)
    overflow = float("inf") if dtype is dtypes.fp8e5m2 else float("nan")
    limit = largest * (1 + (1 / 28 if dtype is dtypes.fp8e4m3 else 1 / 14))  # halfway to what would come next
    wide = value.cast(dtypes.float32)
    return (wide.abs() >= limit if overflow == float("inf") else wide.abs() > limit).where(
        wide.sign() * overflow, wide).cast(dtype)


def _to_strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers as the shortest text that gives them again."""
    def text(x: Any) -> str:
        if array.dtype.kind in "biu":
            return str(x)
        return {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(str(x), str(x))
    return np.array([text(x) for x in array.reshape(-1)], object).reshape(array.shape)


def _of_strings(array: np.ndarray[Any, Any], kind: np.dtype[Any]) -> Value:
    """The numbers that strings spell: plain or scientific, "NaN", "INF" in any case."""
    if kind.kind == "O":
        return array
    numbers = [float(s) if kind.kind == "f" or not _is_integer(s) else int(s) for s in array.reshape(-1)]
    made = np.array(numbers).reshape(array.shape)
    if is_coded(kind):
        return convert(Tensor(made.astype(np.float32), requires_grad=False), kind)
    return Tensor(made.astype(kind), requires_grad=False)


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("+-").isdigit()


@op
def Cast(input: Items, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    return convert(input, element_type(to), saturate, round_mode)


@op
def CastLike(input: Items, target_type: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return convert(input, numpy_type(target_type), saturate, round_mode)


@op
def BitCast(input: Items, *, to: int) -> Value:
    kind = element_type(to)
    held = input.bytes if isinstance(input, Coded) else input
    return Coded(held.bitcast(dtypes.uint8), kind) if is_coded(kind) else held.bitcast(tensor_type(kind))
