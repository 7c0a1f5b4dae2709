"""Values that parameters begin with: the functions of `torch.nn.init`. Each overwrites a tensor, as no
gradient sees, and returns it.

Of a weight (out, in, *kernel), fan-in is in * items of the kernel, fan-out is out * those.
"""
from __future__ import annotations

import math

from tinygrad.dtype import dtypes
from tinygrad.helpers import prod
from tinygrad.tensor import Tensor

GAINS = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
         "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3,
         "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much a function of activations wants larger weights; `param`: the slope of "leaky_relu"."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in GAINS:
        raise ValueError(f"nonlinearity is one of {', '.join((*GAINS, 'leaky_relu'))}, got {nonlinearity!r}")
    return GAINS[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError(f"fan-in and fan-out are of weights (out, in, ...), got shape {tensor.shape}")
    kernel = prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def _filled(tensor: Tensor, value: Tensor | float) -> Tensor:
    with Tensor.no_grad():
        return tensor.assign(value)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """All of them `val`."""
    return _filled(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_ takes a matrix, got shape {tensor.shape}")
    rows, columns = tensor.shape
    return _filled(tensor, Tensor.eye(rows, columns, dtype=tensor.dtype, device=tensor.device))


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform from a to b."""
    with Tensor.no_grad():
        return tensor.uniform_(a, b)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal."""
    with Tensor.no_grad():
        return tensor.normal_(mean, std)


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
                  ) -> Tensor:
    """Normal, of those draws that are from a to b, by the inverse of their cumulative probability."""
    low, high = (math.erf((end - mean) / std / math.sqrt(2)) for end in (a, b))
    drawn = (tensor.rand_like(dtype=dtypes.float32) * (high - low) + low).erfinv() * (std * math.sqrt(2))
    return _filled(tensor, (drawn + mean).clip(a, b).cast(tensor.dtype))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform, of variance 2 gain ** 2 / (fan-in + fan-out) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, of that variance."""
    return normal_(tensor, 0, gain * math.sqrt(2 / sum(_fans(tensor))))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is 'fan_in' or 'fan_out', got {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
                     ) -> Tensor:
    """Uniform, of standard deviation gain / sqrt(fan) (He and others, 2015); a: the slope of "leaky_relu"."""
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
                    ) -> Tensor:
    """Normal, of that standard deviation."""
    return normal_(tensor, 0, _kaiming_std(tensor, a, mode, nonlinearity))


def orthogonal_(tensor: Tensor, gain: float = 1) -> Tensor:
    """Rows, of all axes after the first taken together, or columns if there are fewer, that are orthonormal,
    times the gain (Saxe, McClelland and Ganguli, 2013)."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_ takes a tensor of two axes or more, got shape {tensor.shape}")
    rows, columns = tensor.shape[0], prod(tensor.shape[1:])
    q, r = Tensor.randn(max(rows, columns), min(rows, columns), device=tensor.device).qr()
    size = min(rows, columns)
    q = q[:, :size] * r[:size, :size].diagonal().sign()
    return _filled(tensor, ((q if rows >= columns else q.T) * gain).reshape(tensor.shape).cast(tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The weight of a convolution that keeps its input: of a filter, one 1, at the middle of the channel of
    its number, for as many as there are of both, in each of the groups."""
    if not 3 <= tensor.ndim <= 5 or groups < 1 or tensor.shape[0] % groups:
        raise ValueError("dirac_ takes a weight (out, in, *kernel) of 1 to 3 axes of a kernel, out divisible "
                         f"by groups, got shape {tensor.shape} and {groups} groups")
    out, channels, *kernel = tensor.shape
    middle = [(n // 2, (n - 1) // 2) for n in kernel]
    identity = Tensor.eye(out // groups, channels, dtype=tensor.dtype, device=tensor.device)
    items = identity.repeat(groups, 1).reshape(out, channels, *(1 for _ in kernel))
    return _filled(tensor, items.pad(((0, 0), (0, 0), *middle)))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01) -> Tensor:
    """Normal, of deviation `std`, but for zeros at random places of each column of a matrix, the share
    `sparsity` of it, rounded up (Martens, 2010)."""
    if tensor.ndim != 2 or not 0 <= sparsity <= 1:
        raise ValueError("sparse_ takes a matrix and a sparsity from 0 to 1, got shape "
                         f"{tensor.shape} and {sparsity}")
    order = tensor.rand_like(dtype=dtypes.float32).argsort(0)
    drawn = tensor.randn_like(dtype=dtypes.float32) * std
    return _filled(tensor, (order < math.ceil(sparsity * tensor.shape[0])).where(0, drawn).cast(tensor.dtype))
