"""Tensors of a layer that are computed each time they are read, from others that are trained: the functions
of `torch.nn.utils.parametrize`.

The layer becomes one of a class of its own, in which the tensor's name is a property. What it is computed
from is in `layer.parametrizations`, under PyTorch's names: `parametrizations.weight.original`, or
`original0`, `original1`, ...
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad.tensor import Tensor


class ParametrizationList:
    """What one tensor is computed from: its `original`, or `original0`, `original1`, ..., and the functions,
    by number, that are called one after another."""

    def __init__(self, value: Tensor) -> None:
        self._keep(value)

    def _keep(self, value: Tensor | tuple[Tensor, ...]) -> None:
        for name in [name for name in vars(self) if name.startswith("original")]:
            delattr(self, name)
        if isinstance(value, Tensor):
            self.original = value
        else:
            vars(self).update({f"original{i}": part for i, part in enumerate(value)})

    @property
    def _originals(self) -> list[Tensor]:
        return [value for name, value in vars(self).items() if name.startswith("original")]

    @property
    def _functions(self) -> list[Callable[..., Any]]:
        return [value for name, value in vars(self).items() if name.isdigit()]

    def __len__(self) -> int:
        return len(self._functions)

    def __getitem__(self, i: int) -> Callable[..., Any]:
        return self._functions[i]

    def __call__(self) -> Tensor:
        found: Any = self._originals
        for function in self._functions:
            found = [function(*found)]
        result: Tensor = found[0]
        return result

    def assign(self, value: Tensor) -> None:
        """Keep what the tensor is computed from for it to be `value`, by the functions' `right_inverse`."""
        found: Any = value
        for function in reversed(self._functions):
            inverse = getattr(function, "right_inverse", None)
            found = found if inverse is None else inverse(found)
        parts = (found,) if isinstance(found, Tensor) else found
        for original, part in zip(self._originals, parts, strict=True):
            original.assign(part.detach().cast(original.dtype))

    def append(self, function: Callable[..., Any]) -> None:
        """One function more."""
        inverse = getattr(function, "right_inverse", None)
        if inverse is not None and not len(self):
            value = self._originals[0]
            found = inverse(value)
            if found is not value:
                parts = (found,) if isinstance(found, Tensor) else tuple(found)
                parts = tuple(part.detach().clone().requires_grad_(True) for part in parts)
                self._keep(parts[0] if isinstance(found, Tensor) else parts)
        vars(self)[str(len(self))] = function
        if inverse is not None and len(self) > 1:
            self.assign(self())


def with_property(module: Any, name: str, made: property | None) -> None:
    """Make the module one of a class of its own in which `name` is that property, or none any more."""
    own = type(module)
    is_made = "_is_made_for_properties" in vars(own)
    base = own.__mro__[1] if is_made else own
    properties = {key: value for key, value in vars(own).items() if is_made and isinstance(value, property)}
    properties.pop(name, None)
    if made is not None:
        properties[name] = made
    module.__class__ = base if not properties else type(
        f"Parametrized{base.__name__}", (base,),
        {"__doc__": base.__doc__, "_is_made_for_properties": True, **properties})


def register_parametrization(module: Any, tensor_name: str, parametrization: Callable[..., Any]) -> Any:
    """From now on `module`'s tensor is `parametrization` of what it was, which is trained instead; or of what
    `parametrization.right_inverse` makes of it, if it has that. Several are called one after another. Returns
    the module.

    >>> layer = nn.utils.parametrize.register_parametrization(nn.Linear(2, 2), "weight", lambda w: w.triu())
    >>> layer.weight[1, 0].item(), list(nn.state.get_state_dict(layer))
    (0.0, ['bias', 'parametrizations.weight.original'])
    """
    if not is_parametrized(module, tensor_name):
        value = vars(module).get(tensor_name)
        if not isinstance(value, Tensor):
            raise ValueError(f"{type(module).__name__} has no tensor {tensor_name!r} of its own")
        made = ParametrizationList(value)
        made.append(parametrization)
        _become_computed(module, tensor_name, made)
    else:
        module.parametrizations[tensor_name].append(parametrization)
    return module


def _become_computed(module: Any, name: str, values: ParametrizationList) -> None:
    if not is_parametrized(module):
        module.parametrizations = {}
    delattr(module, name)
    module.parametrizations[name] = values
    with_property(module, name, property(lambda self: self.parametrizations[name](),
                                         lambda self, value: self.parametrizations[name].assign(value)))


def is_parametrized(module: Any, tensor_name: str | None = None) -> bool:
    """Whether that tensor of the module is computed, or any."""
    found = vars(module).get("parametrizations", {})
    return bool(found) if tensor_name is None else tensor_name in found


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Let the tensor be trained itself again, with the value that it has; with leave_parametrized=False, with
    that of the `original`. Returns the module."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"{type(module).__name__} has no parametrization of {tensor_name!r}")
    values = module.parametrizations.pop(tensor_name)
    if not leave_parametrized and len(values._originals) > 1:
        raise ValueError("leave_parametrized=False takes a tensor that is computed from one other")
    value = values() if leave_parametrized else values._originals[0]
    with_property(module, tensor_name, None)
    setattr(module, tensor_name, value.detach().clone().requires_grad_(True))
    if not module.parametrizations:
        del module.parametrizations
    return module
