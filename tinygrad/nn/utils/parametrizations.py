"""Weights as directions and lengths, or divided by their largest singular value: the functions of
`torch.nn.utils.parametrizations`."""
from __future__ import annotations

from typing import Any

from tinygrad.nn.utils.parametrize import register_parametrization
from tinygrad.tensor import Tensor


def norm_except_dim(v: Tensor, dim: int | None) -> Tensor:
    """The norm of what lies at each place of an axis, with axes of 1 for the others; of all without one."""
    if dim is None or dim == -1:
        return v.norm()
    return v.norm(2, [axis for axis in range(v.ndim) if axis != dim % v.ndim], keepdim=True)


class WeightNorm:
    """g v / |v|: `original0` has the lengths, `original1` the directions."""

    def __init__(self, dim: int | None = 0) -> None:
        self.dim = dim

    def __call__(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / norm_except_dim(v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, self.dim), weight


class SpectralNorm:
    """A weight over its largest singular value, estimated by power iteration: a step of it each time the
    weight is read while `Tensor.training`. The vectors are kept as `_u` and `_v`; of a step `_u` comes first,
    unless it `begins_with_v`."""

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12,
                 begins_with_v: bool = False) -> None:
        if n_power_iterations < 1:
            raise ValueError(f"spectral_norm takes n_power_iterations >= 1, got {n_power_iterations}")
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim % weight.ndim, eps
        self.begins_with_v = begins_with_v
        self._u: Tensor | None = None
        self._v: Tensor | None = None
        if weight.ndim > 1:
            with Tensor.no_grad():
                matrix = self._matrix(weight)
                u, v = (Tensor.randn(n, device=weight.device).cast(weight.dtype).normalize(dim=0, eps=eps)
                        for n in matrix.shape)
                self._u, self._v = (x.contiguous().requires_grad_(False).realize()
                                    for x in self._iterated(matrix, u, v, 15))

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.dim, 0).flatten(1)

    def _iterated(self, matrix: Tensor, u: Tensor, v: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if self.begins_with_v:
            v = (matrix.T @ u).normalize(dim=0, eps=self.eps)
        for step in range(count):
            u = (matrix @ v).normalize(dim=0, eps=self.eps)
            if step < count - 1 or not self.begins_with_v:
                v = (matrix.T @ u).normalize(dim=0, eps=self.eps)
        return u, v

    def __call__(self, weight: Tensor) -> Tensor:
        u, v = self._u, self._v
        if u is None or v is None:
            return weight.normalize(dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if Tensor.training:
            with Tensor.no_grad():
                next_u, next_v = self._iterated(matrix.detach(), u, v, self.n_power_iterations)
                u.assign(next_u)
                v.assign(next_v)
            u, v = next_u, next_v
        return weight / (u.detach() * (matrix @ v.detach())).sum()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """The module, whose tensor is a length for each place of axis `dim`, or one, times a direction (Salimans
    and Kingma, 2016).

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    >>> list(nn.state.get_state_dict(layer))
    ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    return register_parametrization(module, name, WeightNorm(dim))


def spectral_norm(module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
                  dim: int | None = None) -> Any:
    """The module, whose tensor is divided by its largest singular value, as a matrix of rows along `dim`
    (Miyato and others, 2018): 0, and 1 of transposed convolutions, unless given.

    >>> layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    >>> round(layer.weight.svdvals()[0].item(), 2)
    1.0
    """
    if dim is None:
        dim = int(any("ConvTranspose" in kind.__name__ for kind in type(module).__mro__))
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{type(module).__name__} has no tensor {name!r}")
    return register_parametrization(module, name, SpectralNorm(weight, n_power_iterations, dim, eps))
