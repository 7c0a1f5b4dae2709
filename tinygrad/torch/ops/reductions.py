"""Along axes: sums, moments, extrema, softmax, running sums, sorting."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tinygrad.dtype import DType, dtypes
from tinygrad.tensor import Tensor
from tinygrad.torch.registry import enter_all

Dims: TypeAlias = "int | Sequence[int] | None"


def axes_of(x: Tensor, dim: Dims) -> tuple[int, ...]:
    """The axes that `dim` means; none and no items mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    return () if x.ndim == 0 else (dim % x.ndim,) if isinstance(dim, int) else tuple(d % x.ndim for d in dim)


def accumulated(x: Tensor, dtype: DType | None) -> Tensor:
    """In the dtype that sums and products have, unless they are given one."""
    return x.cast(dtype or (x.dtype if x.dtype.is_float else dtypes.int64))


def total(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    return accumulated(x, dtype).sum(axes_of(x, dim), keepdim)


def mean(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    return (x if dtype is None else x.cast(dtype)).mean(axes_of(x, dim), keepdim)


def product(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    return accumulated(x, dtype).prod(axes_of(x, dim), keepdim)


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


def running(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A running sum or product."""
    def along(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
        return function(accumulated(x, dtype), dim) if x.ndim else accumulated(x, dtype)
    return along


enter_all({
    "cumprod": running(Tensor.cumprod), "cumsum": running(Tensor.cumsum),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim) if x.ndim else x,
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
    "_softmax": softmax, "_log_softmax": log_softmax,
    "var.dim": lambda x, dim, unbiased=True, keepdim=False: variance(x, dim, int(unbiased), keepdim),
    "var_mean.correction": lambda x, dim=None, correction=None, keepdim=False: (
        variance(x, dim, correction, keepdim), mean(x, dim, keepdim)),
    "sort": lambda x, dim=-1, descending=False: x.sort(dim, descending),
    "sort.stable": lambda x, stable=None, dim=-1, descending=False: x.sort(dim, descending),
    "topk": lambda x, k, dim=-1, largest=True, is_sorted=True: x.topk(k, dim, largest, is_sorted),
})
