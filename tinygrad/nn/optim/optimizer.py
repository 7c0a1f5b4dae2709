"""What all optimizers have in common: `Optimizer`, which the modules beside this one give their rules, and
`OptimizerGroup`, several as one.

`step` writes every parameter, the optimizer's own state and the layers' buffers (running statistics) in one
`realize`. No number that changes from step to step is baked into the graph: the learning rate and the bias
corrections are tensors, so a captured step (TinyJit) replays rightly. State is kept and updates are computed
in float32 at least.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.graph_templates import memoised
from tinygrad.graph.leaf_tensors import depends_on_leaf
from tinygrad.helpers import dedup, flatten
from tinygrad.tensor import Tensor


class Optimizer:
    """What every optimizer does: keeps the parameters, clears gradients, applies updates.

    `params`: tensors; those with `requires_grad=False` are buffers, only realised by `step`. `lr` becomes a
    float tensor of one item; `optimizer.lr = 0.01` writes another rate into it, between steps. `fused` is
    tinygrad's, one update of all parameters joined, and changes nothing: updates of equal shapes are one
    kernel anyway. `maximize`: gradients are taken with the other sign, to climb.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, device: str | None = None, fused: bool = False,
                 maximize: bool = False) -> None:
        refuse_negative(learning_rate=lr)
        if isinstance(params, Tensor):
            raise TypeError("an optimizer takes a list of tensors, got one of shape "
                            f"{params.shape}: [x] is a list")
        params = list(params)
        strangers = [p for p in params if not isinstance(p, Tensor)]
        if strangers:
            kind = type(strangers[0]).__name__
            hint = "; OptimizerGroup joins optimizers of other options" if kind == "dict" else ""
            raise TypeError(f"an optimizer takes tensors, got a {kind}{hint}")
        for p in params:
            if p.requires_grad is None and p.dtype.is_float:
                p.requires_grad = True
        unique = dedup(params)
        self.params = [p for p in unique if p.requires_grad]
        self.buffers = [p for p in unique if not p.requires_grad]
        if not self.params:
            raise ValueError("an optimizer takes at least one float parameter with a gradient, got "
                             f"{len(unique)} tensors without")
        self.maximize = maximize
        self.device = self.params[0].device if device is None else device
        self.__dict__["lr"] = self._numbers([lr])
        Tensor.realize(self.lr, *self.params, *self.buffers)

    @property
    def lr(self) -> Tensor:
        """The learning rate, of one item."""
        rate: Tensor = self.__dict__["lr"]  # the name that it is saved by
        return rate

    @lr.setter
    def lr(self, rate: float | Tensor) -> None:
        if isinstance(rate, Tensor):
            self.__dict__["lr"] = rate
        else:
            refuse_negative(learning_rate=rate)
            self.lr.assign([rate])

    def _numbers(self, values: list[float]) -> Tensor:
        """Numbers that change between steps, as exact as the widest update: a tensor with memory of its
        own."""
        widest = functools.reduce(promote, [p.dtype for p in self.params], dtypes.float32)
        return Tensor(values, device=self.device, dtype=widest, requires_grad=False)

    @staticmethod
    def _at(numbers: Tensor, p: Tensor) -> Tensor:
        """Such numbers on a parameter's device, in the type of its updates."""
        dtype, device = promote(p.dtype, dtypes.float32), p.device
        is_there = numbers.dtype is dtype and numbers.device == device
        return numbers if is_there else numbers.to(device).cast(dtype)

    def _state(self, value: float = 0.0) -> list[Tensor]:
        """A number, zero unless given, for each item of each parameter, with memory of their own."""
        state = [p.empty_like(dtype=promote(p.dtype, dtypes.float32), requires_grad=False).assign(value)
                 for p in self.params]
        Tensor.realize(*state)
        return state

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.params:
            p.grad = None

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Apply one update. A parameter whose `grad` is None keeps its value and its state, as in PyTorch.
        `closure`, if there is one, is called before: it computes the gradients, and the loss, which is
        returned."""
        loss = None if closure is None else closure()
        # gradients read what is overwritten: to be told costs less than to find that out
        gradients = [p.grad for p in self.params if p.grad is not None]
        Tensor.realize(*self.schedule_step(), *gradients)
        return loss

    def schedule_step(self) -> list[Tensor]:
        """The tensors of one update, assigned but not realised: state, parameters, buffers."""
        grads = {i: _constant(g).cast(promote(p.dtype, dtypes.float32))
                 for i, p in enumerate(self.params) if (g := p.grad) is not None}
        if self.maximize:
            grads = {i: -g for i, g in grads.items()}
        return [*self._step(grads), *self.params, *self.buffers]

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        """Assign the next values of the parameters with these numbers, given their gradients; returns the
        state that was assigned."""
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    @staticmethod
    def _wide(p: Tensor) -> Tensor:
        """The parameter's value in the type that updates are computed in."""
        return p.detach().cast(promote(p.dtype, dtypes.float32))

    def _advance(self, numbers: Tensor, after: Tensor, grads: Collection[int]) -> None:
        """Numbers, one for each parameter, become others for those with gradients. Updates compute theirs
        from the old one, an item of memory like any other: so those of equal shapes are one kernel."""
        if len(grads) < len(self.params):
            has_gradient = Tensor([i in grads for i in range(len(self.params))], device=self.device)
            after = has_gradient.where(after, numbers)
        numbers.assign(after)


def _constant(g: Tensor) -> Tensor:
    """A gradient that no gradient flows through, as those that `backward` leaves are."""
    return g.detach() if depends_on_leaf(g._result) else g


def refuse_negative(**options: float) -> None:
    for name, value in options.items():
        if value < 0:
            raise ValueError(f"an optimizer takes a {name.replace('_', ' ')} >= 0, got {value}")


def refuse_averages(b1: float, b2: float) -> None:
    if not (0 <= b1 < 1 and 0 <= b2 < 1):
        raise ValueError(f"b1 and b2 are from 0 to below 1, got {b1} and {b2}")


class OptimizerGroup(Optimizer):
    """Several optimizers as one."""

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError("OptimizerGroup takes at least one optimizer")
        self.optimizers = optimizers
        self.params = flatten(o.params for o in optimizers)
        self.buffers = flatten(o.buffers for o in optimizers)

    @property
    def lr(self) -> Tensor:
        """Of all its optimizers, to be written; each has its own to be read."""
        raise AttributeError("an OptimizerGroup has no learning rate; its optimizers have: group[0].lr")

    @lr.setter
    def lr(self, rate: float | Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.lr = rate

    def __getitem__(self, i: int) -> Optimizer:
        return self.optimizers[i]

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def schedule_step(self) -> list[Tensor]:
        return flatten(o.schedule_step() for o in self.optimizers)


@memoised
def averaged(old: Tensor, new: Tensor | float, b: float) -> Tensor:
    """The running average of what was and is."""
    return b * old + (1 - b) * new
