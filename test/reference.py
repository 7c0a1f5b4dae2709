"""The meaning of the tensor graph, executable: every operation as one NumPy expression.

Slow and plain, it shares nothing with the compiler. `evaluate(node)` is what a compiled graph must agree
with. MULACC is rounded once for float32 and narrower (computed in float64), twice for float64.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

Array = Any
"""A NumPy array or scalar of any type."""


def _cast(node: UOp, x: Array) -> Array:
    target = node.dtype
    if target.is_bool:
        return x != 0
    if target.is_int and x.dtype.kind not in "iub":
        wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = int(target.min), int(target.max)
        clipped = np.clip(np.trunc(wide), float(low), float(high))
        # float64 cannot hold the highest 64-bit values: those at the limit are set exactly
        result = np.where(clipped >= float(high), 0,
                          np.where(clipped <= float(low), 0, clipped)).astype(target.numpy)
        result = np.where(clipped >= float(high), np.array(high, target.numpy), result)
        return np.where(clipped <= float(low), np.array(low, target.numpy), result)
    return x.astype(target.numpy)


def _mulacc(node: UOp, a: Array, b: Array, c: Array) -> Array:
    if node.dtype.is_float and node.dtype.itemsize < 8:
        wide = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
        return wide.astype(a.dtype)
    if node.dtype.is_float:
        return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(a.dtype)
    return a * b + c


def _reduce(node: UOp, x: Array) -> Array:
    op, axes = node.arg
    if op is Ops.ADD:
        if node.dtype.is_float and node.dtype.itemsize == 4:
            return np.sum(x, axis=axes, keepdims=True, dtype=np.float64).astype(np.float32)
        return np.sum(x, axis=axes, keepdims=True, dtype=x.dtype)
    if op is Ops.MUL:
        return np.prod(x, axis=axes, keepdims=True, dtype=x.dtype)
    return np.max(x, axis=axes, keepdims=True)


def _stride(node: UOp, x: Array) -> Array:
    return x[tuple(slice(None, None, step) for step in node.arg)]


def _unary_in_double(function: Callable[[Array], Array]) -> Callable[[UOp, Array], Array]:
    return lambda node, x: function(x.astype(np.float64)).astype(x.dtype)


MEANING: dict[Ops, Callable[..., Array]] = {
    Ops.NEG: lambda node, x: -x,
    Ops.SQRT: _unary_in_double(np.sqrt),
    Ops.EXP2: _unary_in_double(np.exp2),
    Ops.LOG2: _unary_in_double(np.log2),
    Ops.SIN: _unary_in_double(np.sin),
    Ops.TRUNC: lambda node, x: np.trunc(x),
    Ops.CAST: _cast,
    Ops.BITCAST: lambda node, x: np.ascontiguousarray(x).view(node.dtype.numpy).reshape(x.shape),
    Ops.ADD: lambda node, a, b: a + b,
    Ops.SUB: lambda node, a, b: a - b,
    Ops.MUL: lambda node, a, b: a * b,
    Ops.FDIV: lambda node, a, b: a / b,
    Ops.IDIV: lambda node, a, b: a // b,
    Ops.MOD: lambda node, a, b: a % b,
    Ops.MAX: lambda node, a, b: np.maximum(a, b),
    Ops.CMPLT: lambda node, a, b: a < b,
    Ops.CMPNE: lambda node, a, b: a != b,
    Ops.AND: lambda node, a, b: a & b,
    Ops.OR: lambda node, a, b: a | b,
    Ops.XOR: lambda node, a, b: a ^ b,
    Ops.SHL: lambda node, a, b: a << b,
    Ops.SHR: lambda node, a, b: a >> b,
    Ops.WHERE: lambda node, c, a, b: np.where(c, a, b),
    Ops.MULACC: _mulacc,
    Ops.REDUCE: _reduce,
    Ops.RESHAPE: lambda node, x: x.reshape(node.arg),
    Ops.PERMUTE: lambda node, x: x.transpose(node.arg),
    Ops.EXPAND: lambda node, x: np.broadcast_to(x, node.arg),
    Ops.PAD: lambda node, x: np.pad(x, node.arg),
    Ops.SHRINK: lambda node, x: x[tuple(slice(s, e) for s, e in node.arg)],
    Ops.STRIDE: _stride,
    Ops.CONTIGUOUS: lambda node, x: x,
    Ops.DETACH: lambda node, x: x,
    Ops.CUSTOM_GRADIENT: lambda node, x, *inputs: x,
    Ops.COPY: lambda node, x: x,
    Ops.ASSIGN: lambda node, target, value: value,
}


def _source(node: UOp) -> Array:
    if node.op is Ops.BUFFER:
        if node.buffer is None:
            raise RuntimeError(f"{node} has no memory")
        return node.buffer.numpy()
    if node.op is Ops.VARIABLE:
        return np.array(node.arg[3], np.int64)
    return np.array(node.arg, node.dtype.numpy)


def evaluate(root: UOp) -> Array:
    """The value of a tensor-graph node, as a NumPy array of its shape and dtype."""
    values: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for node in root.toposort():
            sources = [values[s] for s in node.src]
            values[node] = np.asarray(MEANING[node.op](node, *sources) if sources else _source(node))
            expected = node.dtype.numpy
            if values[node].dtype != expected:
                values[node] = values[node].astype(expected)
    result = values[root]
    assert result.shape == root.shape, f"{root}: evaluated to shape {result.shape}"
    return np.array(result)
