"""Methods of `Tensor` that are an operator of the standard: what `export` writes for a call of them.

An entry takes the result and the arguments of a call by name, and gives a `Call`; or the same result, made by
other methods that are operators; or None where the standard has no operator for these arguments: then the
graph of the result is written.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tinygrad.dtype import DType, accumulate_dtype, dtypes, promote
from tinygrad.frozen import frozen
from tinygrad.functional.indexing import Places, items_of, select
from tinygrad.functional.joining import parts_of
from tinygrad.functional.linalg import contracted
from tinygrad.functional.windows import resolve_padding
from tinygrad.graph.shapes import broadcast_shape
from tinygrad.graph.uop import UOp
from tinygrad.helpers import make_tuple, prod
from tinygrad.nn.layers import Embedding, RMSNorm
from tinygrad.nn.onnx.nodes import WIDER
from tinygrad.tensor import Tensor

if TYPE_CHECKING:
    from tinygrad.nn.onnx.export import OnnxWriter

Write: TypeAlias = "Callable[[OnnxWriter, list[str]], str | tuple[str, ...]]"


@frozen(eq=False)
class Call:
    """An operator of the standard: the nodes that it takes, and how it is written given their names."""

    operands: tuple[UOp, ...]
    write: Write
    """gives the name of the result, or of each of several"""
    gives: tuple[DType, ...] = ()
    """types of what is written, where results may be of others: they are cast"""


Entry: TypeAlias = Callable[..., Call | Tensor | None]


def _call(op: str, operands: Sequence[Tensor | None], gives: tuple[DType, ...] = (),
          **attributes: Any) -> Call:
    """One operator of these operands; those that are None are left out."""
    there = [x for x in operands if x is not None]

    def write(writer: OnnxWriter, names: list[str]) -> str:
        given = iter(names)
        return writer.add(op, ["" if x is None else next(given) for x in operands], **attributes)
    return Call(tuple(x.uop for x in there), write, gives)


OF_DOUBLES = {"Abs", "Ceil", "Cos", "Exp", "Floor", "Log", "LogSoftmax", "Relu", "Round", "Sigmoid", "Sign",
              "Sin", "Softmax", "Tanh"}
"""What ONNX Runtime computes in float64, of the functions of one float; numbers that a function takes
(`alpha`) the standard has in float32 alone."""


def _of_float(op: str, result: Tensor, x: Tensor, **attributes: Any) -> Call | None:
    """An operator that the standard has of floats alone, of the float that the result is."""
    if not result.dtype.is_float or (result.dtype is dtypes.float64 and op not in OF_DOUBLES):
        return None
    return _call(op, [x.cast(result.dtype)], **attributes)


def _unary(op: str) -> Entry:
    return lambda result, self: _of_float(op, result, self)


def _softmax(op: str) -> Entry:
    return lambda result, self, axis=-1, dtype=None: None if dtype else _of_float(op, result, self, axis=axis)


def _product(result: Tensor, self: Tensor, w: Any = None, x: Any = None, reverse: bool = False,
             dtype: Any = None) -> Call | None:
    other = w if w is not None else x
    other = other if isinstance(other, Tensor) else Tensor(other, requires_grad=False)
    kind = promote(self.dtype, other.dtype)
    if kind.is_float:
        wide = kind if dtype is None and kind.itemsize > 1 else accumulate_dtype(kind)
    elif dtype is None:
        wide = kind if kind.itemsize > 2 else dtypes.int32  # whose lowest bits are the same
    else:
        return None
    sides = (other, self) if reverse else (self, other)
    return _call("MatMul", [side.cast(kind).cast(wide) for side in sides], (wide,))


def _linear(result: Tensor, self: Tensor, weight: Tensor, bias: Tensor | None, dtype: Any) -> Tensor | None:
    if weight.ndim < 2:
        return None
    if dtype is not None:
        self, weight, bias = self.cast(dtype), weight.cast(dtype), bias if bias is None else bias.cast(dtype)
    product = self.dot(weight)
    return product if bias is None else product + bias


def _contraction(result: Tensor, self: Tensor, other: Tensor, kept: int) -> Tensor | None:
    """einsum's sum of products, of operands that have every axis: a product of matrices where each has an
    axis that the other one lacks, so that nothing is repeated.

    ONNX Runtime's Einsum takes as long, but 2.5 times where one side is a weight (16 rows by 768 x 768), for
    which only a MatMul is prepared; and where nothing is repeated, item by item products take an eighth to a
    twentieth of either.
    """
    if result.dtype.is_bool:
        return None
    axes = range(self.ndim)
    own, others = ({i for i in axes if x.shape[i] != 1} for x in (self, other))
    batch, summed = ([i for i in part if i in own & others] for part in (axes[:kept], axes[kept:]))
    rows, columns = ([i for i in axes[:kept] if i in alone] for alone in (own - others, others - own))
    if any(i in own ^ others for i in axes[kept:]):  # of one operand alone: summed before
        wide = accumulate_dtype(result.dtype) if result.dtype.is_float else result.dtype
        x, y = (side.cast(wide).sum([i for i in axes[kept:] if i in alone], keepdim=True, dtype=wide)
                for side, alone in ((self, own - others), (other, others - own)))
        return contracted(x, y, kept).cast(result.dtype)
    if not summed:
        return (self * other).reshape(result.shape)
    if not rows and not columns:
        return None
    single = [[i] for i in batch]
    product = _merged(self, *single, *([rows] if batch else [[i] for i in rows]), summed).dot(
        _merged(other, *single, summed, columns))
    order = [*batch, *rows, *columns]
    whole = product.reshape([result.shape[i] for i in order])
    return whole.permute([order.index(i) for i in sorted(order)]).reshape(result.shape)


def _merged(x: Tensor, *groups: Sequence[int]) -> Tensor:
    """`x` with an axis for each group of its axes; the others are of one item."""
    order = [i for group in groups for i in group]
    there = sorted(order)
    x = x.reshape([x.shape[i] for i in there]).permute([there.index(i) for i in order])
    sizes = dict(zip(order, x.shape, strict=True))
    return x.reshape([prod([sizes[i] for i in group]) for group in groups])


def _pads(padding: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The standard's pads: all sizes before, then all after."""
    pairs = resolve_padding(padding, kernel, stride, dilation)
    return [before for before, _ in pairs] + [after for _, after in pairs]


def _convolution(result: Tensor, self: Tensor, weight: Tensor, bias: Tensor | None, groups: int, stride: Any,
                 dilation: Any, padding: Any, dtype: Any) -> Call | Tensor | None:
    if not self.dtype.is_float or dtype is not None:
        return None
    if self.ndim < weight.ndim:
        return self.unsqueeze(0).conv2d(weight, bias, groups, stride, dilation, padding).squeeze(0)
    kernel = weight.shape[2:]
    strides, dilations = make_tuple(stride, len(kernel)), make_tuple(dilation, len(kernel))
    operands = [x if x is None else x.cast(result.dtype) for x in (self, weight, bias)]
    return _call("Conv", operands, group=groups, strides=strides, dilations=dilations,
                 kernel_shape=kernel, pads=_pads(padding, kernel, strides, dilations))


def _transposed_convolution(result: Tensor, self: Tensor, weight: Tensor, bias: Tensor | None, groups: int,
                            stride: Any, dilation: Any, padding: Any, output_padding: Any
                            ) -> Call | Tensor | None:
    if not result.dtype.is_float:
        return None
    if self.ndim < weight.ndim:
        options = groups, stride, dilation, padding, output_padding
        return self.unsqueeze(0).conv_transpose2d(weight, bias, *options).squeeze(0)
    kernel = weight.shape[2:]
    strides, dilations = make_tuple(stride, len(kernel)), make_tuple(dilation, len(kernel))
    operands = [x if x is None else x.cast(result.dtype) for x in (self, weight, bias)]
    return _call("ConvTranspose", operands, group=groups, strides=strides, dilations=dilations,
                 kernel_shape=kernel, output_padding=make_tuple(output_padding, len(kernel)),
                 pads=_pads(padding, kernel, strides, dilations))


def _pooling(op: str) -> Entry:
    def entry(result: Any, self: Tensor, kernel_size: Any, stride: Any, dilation: Any, padding: Any,
              ceil_mode: bool,
              count_include_pad: bool = True, divisor_override: float | None = None,
              return_indices: bool = False) -> Call | None:
        kernel = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
        if return_indices or divisor_override is not None or not self.dtype.is_float:
            return None
        if self.ndim != len(kernel) + 2:
            return None
        strides = kernel if stride is None else make_tuple(stride, len(kernel))
        dilations = make_tuple(dilation, len(kernel))
        more: dict[str, Any] = {"count_include_pad": int(count_include_pad)} if op == "AveragePool" else {}
        return _call(op, [self], kernel_shape=kernel, strides=strides, dilations=dilations,
                     ceil_mode=int(ceil_mode),
                     pads=_pads(padding, kernel, strides, dilations), **more)
    return entry


def _normalised(result: Tensor, self: Tensor, axis: Any, eps: float) -> Call | None:
    axes = sorted(a % self.ndim for a in make_tuple(axis, 1))
    if axes != list(range(axes[0], self.ndim)):
        return None
    ones = np.ones(self.shape[axes[0]:], result.dtype.numpy)
    return Call((self.cast(result.dtype).uop,), lambda writer, names: writer.add(
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


def _powers(result: Tensor, self: Tensor, x: Any, reverse: bool) -> Call | None:
    """Of float tensors; what is a few products or a root is written as such."""
    is_short = not reverse and not isinstance(x, Tensor) and (
        x in (0.5, -0.5) or (float(x).is_integer() and abs(x) <= 16))
    if not result.dtype.is_float or is_short:
        return None
    return _call("Pow", _sides(result, self, x, reverse))


def _truncated_rest(result: Tensor, self: Tensor, x: Any) -> Call | None:
    return None if not result.dtype.is_float else _call("Mod", _sides(result, self, x, False), fmod=1)


def _floored_rest(result: Tensor, self: Tensor, x: Any, reverse: bool) -> Tensor | None:
    """The standard's Mod of floats has the sign of what is divided."""
    if not result.dtype.is_float:
        return None
    a, b = _sides(result, self, x, reverse)
    rest = a.fmod(b)
    return ((rest != 0) & ((rest < 0) != (b < 0))).where(rest + b, rest)


def _sides(result: Tensor, self: Tensor, x: Any, reverse: bool) -> list[Tensor]:
    """The operands of a function of two, of the type of the result."""
    other = x if isinstance(x, Tensor) else Tensor(x, device=self.device, dtype=result.dtype,
                                                   requires_grad=False)
    return [side.cast(result.dtype) for side in ((other, self) if reverse else (self, other))]


def _best(op: str) -> Entry:
    def entry(result: Tensor, self: Tensor, axis: int | None, keepdim: bool) -> Call | None:
        if axis is None or self.dtype.is_bool or self.dtype is dtypes.uint64:
            return None
        return _call(op, [self.cast(WIDER.get(self.dtype, self.dtype))], (dtypes.int64,), axis=axis,
                     keepdims=int(keepdim))
    return entry


def _running_sum(result: Tensor, self: Tensor, axis: int, dtype: Any) -> Call | None:
    if result.dtype is not self.dtype or self.dtype.itemsize < 4 or self.dtype.is_unsigned or not self.ndim:
        return None
    return Call((self.uop,), lambda writer, names: writer.add(
        "CumSum", [names[0], writer.constant(np.array(axis, np.int64))]))


def _attention(result: Tensor, self: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
               dropout_p: float,
               is_causal: bool, enable_gqa: bool) -> Call | None:
    if self.ndim != 4 or key.ndim != 4 or (Tensor.training and dropout_p) or self.dtype is dtypes.float64:
        return None  # of float64, whose scale the standard rounds to float32
    return _call("Attention", [self, key, value, attn_mask], is_causal=int(is_causal))


def _selection(result: Tensor, self: Tensor, index: Any) -> Call | None:
    """Indexing by tensors: what movement does first, then a look-up of rows, or of items."""
    places = [_positions(item) for item in items_of(self, index) if isinstance(item, Tensor)]
    if not places:
        return None
    chosen = select(self, index)
    view, axes = Tensor.of(chosen.view, self), sorted(chosen.tensors)
    if len(axes) == 1:
        return _gathered(view, places[0], axes[0])
    shape = broadcast_shape("index", *(x.shape for x in places))
    wide = [x.cast(dtypes.int64).expand(shape) for x in places]
    others = [i for i in range(view.ndim) if i not in axes]
    in_front = len([i for i in others if i < axes[0]]) if axes[-1] - axes[0] < len(axes) else 0
    rank = len(shape)
    order = [*range(rank, rank + in_front), *range(rank), *range(rank + in_front, rank + len(others))]

    def write(writer: OnnxWriter, names: list[str]) -> str:
        found = writer.add("GatherND", names)
        return writer.add("Transpose", [found], perm=order) if in_front else found
    return Call((view.permute([*axes, *others]).uop, wide[0].stack(*wide[1:], dim=-1).uop), write)


def _gathered(data: Tensor, indices: Tensor, axis: int) -> Call:
    return _call("Gather", [data, _positions(indices)], axis=axis)


def _positions(indices: Tensor) -> Tensor:
    """Positions in a type that the standard takes."""
    return indices if indices.dtype in (dtypes.int32, dtypes.int64) else indices.cast(dtypes.int64)


# --- order, gather and scatter ------------------------------------------------------------------------------


def _ordered(x: Tensor, dim: int, count: int | None, largest: bool, only_places: bool) -> Call | None:
    """TopK, also of all items: equal ones come in the order of their positions, there as here."""
    kind = x.dtype
    if not x.ndim or not prod(x.shape) or kind is dtypes.uint64:
        return None
    if kind.itemsize < 4:  # ONNX Runtime sorts these, and no others
        kind = dtypes.float32 if kind.is_float else dtypes.int32
    elif kind is dtypes.uint32:
        kind = dtypes.int64
    axis = dim % x.ndim
    k = x.shape[axis] if count is None else count

    def write(writer: OnnxWriter, names: list[str]) -> tuple[str, ...]:
        outputs = writer.new_name("v"), writer.new_name("v")
        writer.add("TopK", [*names, writer.ints([k])], outputs, axis=axis, largest=int(largest))
        return outputs[only_places:]
    return Call((x.cast(kind).uop,), write, (kind, dtypes.int64)[only_places:])


def _gathered_elements(result: Tensor, self: Tensor, dim: int, index: Tensor) -> Call | None:
    return _call("GatherElements", [self, _positions(index)], axis=dim % self.ndim) if self.ndim else None


def _scattered(result: Tensor, self: Tensor, dim: int, index: Tensor, src: Any, reduce: str | None) -> Any:
    """Where an item is named twice the last one stays, as in ONNX Runtime; the standard leaves it open."""
    if not self.ndim:
        return None
    source = src if isinstance(src, Tensor) else Tensor.full(
        index.shape, src, dtype=self.dtype, device=self.device)
    if reduce is not None:
        return self.scatter_reduce(dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])
    return _scatter_call(self, dim, index, source, "none")


def _scatter_call(x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str) -> Call:
    wide = dtypes.float32 if x.dtype.is_float and x.dtype.itemsize < 4 and reduction != "none" else x.dtype
    values = source.shrink([(0, n) for n in index.shape])
    return _call("ScatterElements", [x.cast(wide), _positions(index), values.cast(wide)], (wide,),
                 axis=dim % x.ndim, reduction=reduction)


def _written(result: Tensor, self: Tensor, axes: tuple[int, ...], source: Tensor,
             indices: tuple[Tensor, ...]) -> Call:
    """`x[places] = source`; of several at one place the last one stays, as in ONNX Runtime."""
    places = Places.of(self.ndim, axes, indices)
    lead, rank = len(places.before), len(places.shape)
    order = [*axes, *places.before, *places.after]
    given = source.permute([*range(lead, lead + rank), *range(lead), *range(lead + rank, source.ndim)])
    wide = [x.cast(dtypes.int64).expand(places.shape) for x in indices]

    def write(writer: OnnxWriter, names: list[str]) -> str:
        found = writer.add("ScatterND", names)
        turned = [order.index(axis) for axis in range(len(order))]
        return found if turned == sorted(turned) else writer.add("Transpose", [found], perm=turned)
    return Call((self.permute(order).uop, wide[0].stack(*wide[1:], dim=-1).uop, given.uop), write)


REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scattered_reduce(result: Tensor, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str,
                      include_self: bool) -> Any:
    if not self.ndim or self.dtype.is_bool:
        return None
    if reduce == "mean":
        ones = Tensor.ones(self.shape, dtype=dtypes.int32, device=self.device)
        start = ones if include_self else ones - 1
        written = Tensor.ones(index.shape, dtype=dtypes.int32, device=self.device)
        count = start.scatter_reduce(dim, index, written, "sum").maximum(1)
        total = self.scatter_reduce(dim, index, src, "sum", include_self)
        return (total / count if self.dtype.is_float else total // count).cast(self.dtype)
    if not include_self:  # what is written to starts afresh
        first = {"sum": 0, "prod": 1, "amax": self.dtype.min, "amin": self.dtype.max}[reduce]
        return self.scatter(dim, index, first).scatter_reduce(dim, index, src, reduce)
    return _scatter_call(self, dim, index, src, REDUCTIONS[reduce])


def _joined(result: Tensor, self: Tensor | Sequence[Tensor], args: tuple[Any, ...], dim: int) -> Call:
    parts, dim = parts_of("cat", self, args, dim)
    return _call("Concat", [x.cast(result.dtype) for x in parts], axis=dim)


CALLS: dict[str, Entry] = {
    "dot": _product,
    "matmul": _product,
    "linear": _linear,
    "contracted": _contraction,
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
    "sort": lambda result, self, dim, descending, stable: _ordered(self, dim, None, descending, False),
    "argsort": lambda result, self, dim, descending, stable: _ordered(self, dim, None, descending, True),
    "topk": lambda result, self, k, dim, largest, sorted_: _ordered(self, dim, k, largest, False),
    "gather": _gathered_elements,
    "scatter": _scattered,
    "scatter_reduce": _scattered_reduce,
    "written_at": _written,
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
    "power": _powers,
    "fmod": _truncated_rest,
    "mod": _floored_rest,
    "silu": _silu,
    "hardswish": _unary("HardSwish"),
    "hardsigmoid": lambda result, self, alpha, beta: _of_float(
        "HardSigmoid", result, self, alpha=alpha, beta=beta),
    "selu": lambda result, self, alpha, gamma: _of_float("Selu", result, self, alpha=alpha, gamma=gamma),
    "celu": lambda result, self, alpha: _of_float("Celu", result, self, alpha=alpha)
            if result.dtype is dtypes.float32 else None,
    "softplus": lambda result, self, beta: _of_float("Softplus", result, self) if beta == 1 else None,
    "abs": _unary("Abs"),
    "floor": _unary("Floor"),
    "ceil": _unary("Ceil"),
    "round_half_even": lambda result, self, decimals: None if decimals else _unary("Round")(result, self),
    "mish": _unary("Mish"),
    "softsign": _unary("Softsign"),
    "gelu": lambda result, self, approximate: _of_float(
        "Gelu", result, self, approximate="tanh" if approximate == "tanh" else "none"),
    "elu": lambda result, self, alpha: _of_float("Elu", result, self, alpha=alpha),
    "leaky_relu": lambda result, self, neg_slope: _of_float("LeakyRelu", result, self, alpha=neg_slope),
}
"""By the name of the method, or of the function that einsum, or `x[places] = y`, is made of."""

LAYERS: dict[type[Any], Entry] = {Embedding: _looked_up, RMSNorm: _rms_normalised}
"""Layers that are an operator of the standard when they are called."""
