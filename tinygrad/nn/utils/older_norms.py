"""`weight_norm` and `spectral_norm` of `torch.nn.utils`, by which many saved models name their weights:
`weight_g` and `weight_v`, `weight_orig` and `weight_u`. As `parametrizations` otherwise."""
from __future__ import annotations

from typing import Any

from tinygrad.nn.utils.parametrizations import SpectralNorm, WeightNorm
from tinygrad.nn.utils.parametrize import with_property
from tinygrad.tensor import Tensor


def _with_computed(module: Any, name: str, computed: Any) -> Any:
    delattr(module, name)
    with_property(module, name, property(computed))
    return module


def _own_tensor(module: Any, name: str) -> Tensor:
    value = vars(module).get(name)
    if not isinstance(value, Tensor):
        raise ValueError(f"{type(module).__name__} has no tensor {name!r} of its own")
    return value


def _again_its_own(module: Any, name: str, others: tuple[str, ...], what: str) -> Any:
    if f"{name}{others[0]}" not in vars(module):
        raise ValueError(f"{type(module).__name__} has no {what} of {name!r}")
    value = getattr(module, name).detach().clone().requires_grad_(True)
    with_property(module, name, None)
    for other in others:
        vars(module).pop(f"{name}{other}", None)
    setattr(module, name, value)
    return module


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """As `parametrizations.weight_norm`: of `weight_g`, the lengths, and `weight_v`, the directions.

    >>> sorted(nn.state.get_state_dict(nn.utils.weight_norm(nn.Linear(3, 2))))
    ['bias', 'weight_g', 'weight_v']
    """
    value = _own_tensor(module, name)
    norm = WeightNorm(dim)
    for suffix, part in zip(("_g", "_v"), norm.right_inverse(value.detach()), strict=True):
        setattr(module, name + suffix, part.clone().requires_grad_(True))

    def computed(self: Any) -> Tensor:
        return norm(getattr(self, f"{name}_g"), getattr(self, f"{name}_v"))
    return _with_computed(module, name, computed)


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Let the tensor be trained itself again, with the value that it has."""
    return _again_its_own(module, name, ("_g", "_v"), "weight_norm")


def spectral_norm(module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
                  dim: int | None = None) -> Any:
    """As `parametrizations.spectral_norm`: of `weight_orig`, with `weight_u` and `weight_v`.

    >>> sorted(nn.state.get_state_dict(nn.utils.spectral_norm(nn.Linear(3, 2))))
    ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    value = _own_tensor(module, name)
    if dim is None:
        dim = int(any("ConvTranspose" in kind.__name__ for kind in type(module).__mro__))
    norm = SpectralNorm(value, n_power_iterations, dim, eps, begins_with_v=True)
    setattr(module, f"{name}_orig", value)
    if value.ndim > 1:
        vars(module).update({f"{name}_u": norm._u, f"{name}_v": norm._v})

    def computed(self: Any) -> Tensor:
        norm._u, norm._v = (vars(self).get(f"{name}{suffix}") for suffix in ("_u", "_v"))
        return norm(getattr(self, f"{name}_orig"))
    return _with_computed(module, name, computed)


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Let the tensor be trained itself again, with the value that it has."""
    return _again_its_own(module, name, ("_orig", "_u", "_v"), "spectral_norm")
