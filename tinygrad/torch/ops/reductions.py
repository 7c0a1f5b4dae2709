"""Along axes: sums, moments, extrema, softmax, running sums, sorting."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tinygrad.dtype import DType, dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all, operator

Dims: TypeAlias = "int | Sequence[int] | None"


def axes_of(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """The axes that `dim` means; none and no items mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    return () if x.ndim == 0 else (dim % x.ndim,) if isinstance(dim, int) else tuple(d % x.ndim for d in dim)


def total(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    kind = dtype or (x.dtype if x.dtype.is_float else dtypes.int64)
    return x.cast(kind).sum(axes_of(x, dim), keepdim)


def mean(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    return (x if dtype is None else x.cast(dtype)).mean(axes_of(x, dim), keepdim)


def product(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    kind = dtype or (x.dtype if x.dtype.is_float else dtypes.int64)
    return x.cast(kind).prod(axes_of(x, dim), keepdim)


def variance(x: Tensor, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return x.var(axes_of(x, dim), keepdim, 1 if correction is None else correction)


def index_of_first(x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    """Where the extremum is; without `dim` in the flat tensor, kept as axes of one item."""
    if x.ndim == 0:
        return Tensor.zeros((), dtype=dtypes.int64, device="CPU")
    find = Tensor.argmax if largest else Tensor.argmin
    if dim is not None:
        return find(x, dim, keepdim)
    found = find(x.reshape(-1), 0)
    return found.reshape((1,) * x.ndim) if keepdim else found


def extremum_and_index(x: Tensor, dim: int, keepdim: bool, largest: bool) -> tuple[Tensor, Tensor]:
    values = (Tensor.max if largest else Tensor.min)(x, axes_of(x, dim), keepdim)
    return values, index_of_first(x, dim, keepdim, largest)


def has_any(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return (x != 0).any(axes_of(x, dim), keepdim)


def of_floats(x: Tensor) -> Tensor:
    """The same. Raises NotImplementedError, as PyTorch does, where the items are no floats."""
    if not x.dtype.is_float:
        raise NotImplementedError(f"softmax takes floats, not {x.dtype}")
    return x


def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return of_floats(x).softmax(dim) if x.ndim else Tensor.ones_like(x)


def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return of_floats(x).log_softmax(dim) if x.ndim else Tensor.zeros_like(x)


def running_sum(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    kind = dtype or (x.dtype if x.dtype.is_float else dtypes.int64)
    return x.cast(kind).cumsum(dim) if x.ndim else x.cast(kind)


def running_product(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    kind = dtype or (x.dtype if x.dtype.is_float else dtypes.int64)
    return x.cast(kind).cumprod(dim) if x.ndim else x.cast(kind)


enter_all({
    "cumprod": running_product, "logcumsumexp": lambda x, dim: x.logcumsumexp(dim) if x.ndim else x,
    "logsumexp": lambda x, dim, keepdim=False: x.logsumexp(axes_of(x, dim), keepdim),
    "sum sum.dim_IntList": lambda x, dim=None, keepdim=False, dtype=None: total(x, dim, keepdim, dtype),
    "mean.dim": mean,
    "mean": lambda x, dtype=None: mean(x, None, False, dtype),
    "prod": lambda x, dtype=None: product(x, None, False, dtype),
    "prod.dim_int": product,
    "var.correction": variance,
    "amax": lambda x, dim=(), keepdim=False: x.max(axes_of(x, dim), keepdim),
    "amin": lambda x, dim=(), keepdim=False: x.min(axes_of(x, dim), keepdim),
    "max": lambda x: x.max(), "min": lambda x: x.min(),
    "argmax": lambda x, dim=None, keepdim=False: index_of_first(x, dim, keepdim, True),
    "argmin": lambda x, dim=None, keepdim=False: index_of_first(x, dim, keepdim, False),
    "max.dim": lambda x, dim, keepdim=False: extremum_and_index(x, dim, keepdim, True),
    "min.dim": lambda x, dim, keepdim=False: extremum_and_index(x, dim, keepdim, False),
    "any any.dim any.dims": has_any,
    "_softmax": softmax, "_log_softmax": log_softmax, "cumsum": running_sum,
})


@operator("var.dim")
def variance_of_axes(x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return variance(x, dim, int(unbiased), keepdim)


@operator("var_mean.correction")
def variance_and_mean(x: Tensor, dim: Dims = None, correction: float | None = None,
                      keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return variance(x, dim, correction, keepdim), mean(x, dim, keepdim)


@operator("sort")
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return x.sort(dim, descending)


@operator("sort.stable")
def stable_sort(x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False,
                ) -> tuple[Tensor, Tensor]:
    return x.sort(dim, descending)


@operator("topk")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True,
         ) -> tuple[Tensor, Tensor]:
    return x.topk(k, dim, largest, is_sorted)
