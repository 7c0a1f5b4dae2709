"""Layers that hold layers, and parameters that belong to none."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tinygrad.tensor import Tensor

Layer = Callable[..., Any]
ModuleList = ParameterList = list
"""Lists and dicts are found in models as they are."""
ModuleDict = ParameterDict = dict


def Parameter(data: Tensor, requires_grad: bool = True) -> Tensor:
    """A leaf tensor of these values, which optimizers find in a model as they find every tensor."""
    return data.detach().requires_grad_(requires_grad)


class Sequential:
    """Layers, or functions, called one after another: given one by one, or in a dict by name.

    A layer is the attribute of its name or number, `model[i]` is one, and `model[1:]` has some.

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model(Tensor.ones(5, 3)).shape, list(nn.state.get_state_dict(model))
    ((5, 2), ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, *layers: Layer | dict[str, Layer]) -> None:
        named = layers[0] if len(layers) == 1 and isinstance(layers[0], dict) else \
            {str(i): layer for i, layer in enumerate(layers)}
        vars(self).update(named)

    def __call__(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Layer]:
        return iter(list(vars(self).values()))

    def __len__(self) -> int:
        return len(vars(self))

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return Sequential(dict(list(vars(self).items())[i]))
        return list(self)[i]

    def __setitem__(self, i: int, layer: Layer) -> None:
        vars(self)[list(vars(self))[i]] = layer

    def append(self, layer: Layer) -> Sequential:
        """One more layer at the end."""
        vars(self)[str(len(self))] = layer
        return self


class Identity:
    """What it is called with; it may be made with anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, x: Any) -> Any:
        return x


class PReLU:
    """`Tensor.prelu` with its parameter, `weight`: one, or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.weight = Tensor.full((num_parameters,), init)

    def __call__(self, x: Tensor) -> Tensor:
        return x.prelu(self.weight)
