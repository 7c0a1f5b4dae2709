"""Methods of `Tensor` that are an operator of the standard: what `export` writes for a call of them.

An entry takes the result and the arguments of a call by name, and gives a `Call`, or None where the standard
has no operator for these arguments: then the graph of the result is written instead.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tinygrad.functional.windows import resolve_padding
from tinygrad.graph.uop import UOp
from tinygrad.helpers import make_tuple
from tinygrad.nn.layers import Embedding, RMSNorm
from tinygrad.tensor import Tensor

if TYPE_CHECKING:
    from tinygrad.nn.onnx.export import OnnxWriter

Write: TypeAlias = "Callable[[OnnxWriter, list[str]], str]"


@dataclass(frozen=True)
class Call:
    """An operator of the standard: the nodes that it takes, and how it is written given their names."""

    operands: tuple[UOp, ...]
    write: Write


Entry: TypeAlias = Callable[..., Call | None]


def _call(op: str, operands: Sequence[Tensor | None], **attributes: Any) -> Call:
    """One operator of these operands; those that are None are left out."""
    there = [x for x in operands if x is not None]

    def write(writer: OnnxWriter, names: list[str]) -> str:
        given = iter(names)
        return writer.add(op, ["" if x is None else next(given) for x in operands], **attributes)
    return Call(tuple(x.uop for x in there), write)


def _unary(op: str) -> Entry:
    return lambda result, self: _call(op, [self]) if self.dtype.is_float else None


def _softmax(op: str) -> Entry:
    return lambda result, self, axis=-1, dtype=None: None if dtype else _call(op, [self], axis=axis)


def _product(result: Tensor, self: Tensor, w: Any = None, x: Any = None, reverse: bool = False,
             dtype: Any = None) -> Call | None:
    other = w if w is not None else x
    if not isinstance(other, Tensor) or dtype is not None:
        return None
    if not self.dtype.is_float or self.dtype is not other.dtype:
        return None
    return _call("MatMul", [other, self] if reverse else [self, other])


def _linear(result: Tensor, self: Tensor, weight: Tensor, bias: Tensor | None, dtype: Any) -> Call | None:
    if weight.ndim < 2 or self.dtype is not weight.dtype or dtype is not None:
        return None
    if bias is None:
        return _call("MatMul", [self, weight])
    return Call((self.uop, weight.uop, bias.uop), lambda writer, names: writer.add(
        "Add", [writer.add("MatMul", names[:2]), names[2]]))


def _pads(padding: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The standard's pads: all sizes before, then all after."""
    pairs = resolve_padding(padding, kernel, stride, dilation)
    return [before for before, _ in pairs] + [after for _, after in pairs]


def _convolution(result: Tensor, self: Tensor, weight: Tensor, bias: Tensor | None, groups: int, stride: Any,
                 dilation: Any, padding: Any, dtype: Any) -> Call | None:
    if not self.dtype.is_float or dtype is not None:
        return None
    kernel = weight.shape[2:]
    strides, dilations = make_tuple(stride, len(kernel)), make_tuple(dilation, len(kernel))
    return _call("Conv", [self, weight, bias], group=groups, strides=strides, dilations=dilations,
                 kernel_shape=kernel, pads=_pads(padding, kernel, strides, dilations))


def _transposed_convolution(result: Tensor, self: Tensor, weight: Tensor, bias: Tensor | None, groups: int,
                            stride: Any, dilation: Any, padding: Any, output_padding: Any) -> Call | None:
    kernel = weight.shape[2:]
    strides, dilations = make_tuple(stride, len(kernel)), make_tuple(dilation, len(kernel))
    return _call("ConvTranspose", [self, weight, bias], group=groups, strides=strides, dilations=dilations,
                 kernel_shape=kernel, output_padding=make_tuple(output_padding, len(kernel)),
                 pads=_pads(padding, kernel, strides, dilations))


def _pooling(op: str) -> Entry:
    def entry(result: Any, self: Tensor, kernel_size: Any, stride: Any, dilation: Any, padding: Any,
              ceil_mode: bool,
              count_include_pad: bool = True, return_indices: bool = False) -> Call | None:
        kernel = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
        if return_indices or not self.dtype.is_float or self.ndim != len(kernel) + 2:
            return None
        strides = kernel if stride is None else make_tuple(stride, len(kernel))
        dilations = make_tuple(dilation, len(kernel))
        more = {"count_include_pad": int(count_include_pad)} if op == "AveragePool" else {}
        return _call(op, [self], kernel_shape=kernel, strides=strides, dilations=dilations,
                     ceil_mode=int(ceil_mode),
                     pads=_pads(padding, kernel, strides, dilations), **more)
    return entry


def _normalised(result: Tensor, self: Tensor, axis: Any, eps: float) -> Call | None:
    axes = sorted(a % self.ndim for a in make_tuple(axis, 1))
    if axes != list(range(axes[0], self.ndim)):
        return None
    ones = np.ones(self.shape[axes[0]:], self.dtype.numpy)
    return Call((self.uop,), lambda writer, names: writer.add(
        "LayerNormalization", [names[0], writer.constant(ones)], axis=axes[0], epsilon=eps))


def _batch_normalised(result: Tensor, self: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
                      invstd: Tensor, axis: Any) -> Call | None:
    if axis != 1 or self.ndim < 2 or not self.dtype.is_float or mean.ndim != 1:
        return None
    one = Tensor.ones(self.shape[1], dtype=self.dtype, device=self.device)
    parts = (weight if weight is not None else one, bias if bias is not None else one * 0, mean,
             (invstd * invstd).reciprocal())
    return _call("BatchNormalization", [self, *(part.cast(self.dtype) for part in parts)], epsilon=0.0)


def _rms_normalised(result: Tensor, self: RMSNorm, x: Tensor) -> Call | None:
    weight = Tensor.ones(x.shape[-1], dtype=x.dtype, device=x.device) if self.weight is None else self.weight
    if weight.dtype is not x.dtype:
        return None
    return _call("RMSNormalization", [x, weight], axis=-1, epsilon=self.eps)


def _looked_up(result: Tensor, self: Embedding, idx: Tensor) -> Call | None:
    """Rows of a table: numbers outside of the vocabulary, which give zeros here, are not allowed there."""
    return _gathered(self.weight, idx, 0)


def _silu(result: Tensor, self: Tensor) -> Call | None:
    return Call((self.uop,), lambda writer, names: writer.add(
        "Mul", [names[0], writer.add("Sigmoid", names)])) if self.dtype.is_float else None


def _best(op: str) -> Entry:
    def entry(result: Tensor, self: Tensor, axis: int | None, keepdim: bool) -> Call | None:
        if axis is None or not (self.dtype.is_float or self.dtype.is_int):
            return None
        return Call((self.uop,), lambda writer, names: writer.add("Cast", [writer.add(
            op, names, axis=axis, keepdims=int(keepdim))], to=writer.onnx.TensorProto.INT32))
    return entry


def _running_sum(result: Tensor, self: Tensor, axis: int) -> Call | None:
    if result.dtype is not self.dtype or self.dtype.itemsize < 4 or not self.ndim:
        return None
    return Call((self.uop,), lambda writer, names: writer.add(
        "CumSum", [names[0], writer.constant(np.array(axis, np.int64))]))


def _attention(result: Tensor, self: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
               dropout_p: float,
               is_causal: bool, enable_gqa: bool) -> Call | None:
    if self.ndim != 4 or key.ndim != 4 or (Tensor.training and dropout_p):
        return None
    return _call("Attention", [self, key, value, attn_mask], is_causal=int(is_causal))


def _selection(result: Tensor, self: Tensor, index: Any) -> Call | None:
    """Indexing by one tensor, behind whole axes: a look-up of rows."""
    items = index if isinstance(index, tuple) else (index,)
    place = len(items) - 1
    chosen = items[place] if items else None
    whole = all(isinstance(i, slice) and i == slice(None) for i in items[:place])
    if not whole or not isinstance(chosen, Tensor) or not chosen.dtype.is_int:
        return None
    return _gathered(self, chosen, place)


def _gathered(data: Tensor, indices: Tensor, axis: int) -> Call:
    return Call((data.uop, indices.uop), lambda writer, names: writer.add(
        "Gather", [names[0], writer.add("Cast", [names[1]], to=writer.onnx.TensorProto.INT64)], axis=axis))


def _joined(result: Tensor, self: Tensor, args: tuple[Tensor, ...] = (), dim: int = 0,
            **_: Any) -> Call | None:
    if any(x.dtype is not self.dtype for x in args):
        return None
    return _call("Concat", [self, *args], axis=dim)


CALLS: dict[str, Entry] = {
    "dot": _product,
    "matmul": _product,
    "linear": _linear,
    "conv2d": _convolution,
    "conv_transpose2d": _transposed_convolution,
    "max_pool2d": _pooling("MaxPool"),
    "avg_pool2d": _pooling("AveragePool"),
    "layernorm": _normalised,
    "batchnorm": _batch_normalised,
    "scaled_dot_product_attention": _attention,
    "__getitem__": _selection,
    "argmax": _best("ArgMax"),
    "argmin": _best("ArgMin"),
    "cumsum": _running_sum,
    "cat": _joined,
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "relu": _unary("Relu"),
    "sigmoid": _unary("Sigmoid"),
    "tanh": _unary("Tanh"),
    "exp": _unary("Exp"),
    "log": _unary("Log"),
    "erf": _unary("Erf"),
    **{name: _unary(name.capitalize()) for name in (
        "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sign")},
    "silu": _silu,
    "hardswish": _unary("HardSwish"),
    "hardsigmoid": lambda result, self, alpha, beta: _call("HardSigmoid", [self], alpha=alpha, beta=beta),
    "selu": lambda result, self, alpha, gamma: _call("Selu", [self], alpha=alpha, gamma=gamma),
    "celu": lambda result, self, alpha: _call("Celu", [self], alpha=alpha),
    "softplus": lambda result, self, beta: _call("Softplus", [self]) if beta == 1 else None,
    "abs": _unary("Abs"),
    "floor": _unary("Floor"),
    "ceil": _unary("Ceil"),
    "round": _unary("Round"),
    "mish": _unary("Mish"),
    "softsign": _unary("Softsign"),
    "gelu": lambda result, self, approximate: _call(
        "Gelu", [self], approximate="tanh" if approximate == "tanh" else "none"),
    "elu": lambda result, self, alpha: _call("Elu", [self], alpha=alpha),
    "leaky_relu": lambda result, self, neg_slope: _call("LeakyRelu", [self], alpha=neg_slope),
}
"""By the name of the method."""

LAYERS: dict[type[Any], Entry] = {Embedding: _looked_up, RMSNorm: _rms_normalised}
"""Layers that are an operator of the standard when they are called."""
