"""What all optimizers have in common: `Optimizer`, which the modules beside this one give their rules, and
`OptimizerGroup`, several as one.

`step` writes every parameter, the optimizer's own state and the layers' buffers (running statistics) in one
`realize`. No number that changes from step to step is baked into the graph: the learning rate and the bias
corrections are tensors, so a captured step (TinyJit) replays rightly. State is kept and updates are computed
in float32 at least.
"""
from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.graph_templates import memoised
from tinygrad.graph.leaf_tensors import depends_on_leaf
from tinygrad.helpers import dedup, flatten
from tinygrad.nn.state import get_state_dict, load_state_dict
from tinygrad.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Parameters: TypeAlias = Iterable[Tensor] | Sequence[Mapping[str, Any]]
"""What an optimizer takes: tensors, or groups of them with options of their own."""


def takes_groups(make: Callable[P, R]) -> Callable[P, R]:
    """Of a function that makes an optimizer: its parameters may be groups."""
    @functools.wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> R:
        groups = _groups_of(make, args, options)
        if groups is None:
            optimizer: Any = make(*args, **options)
            optimizer.made_by = make.__name__
        else:
            optimizer = OptimizerGroup(*[made(**group) for group in groups])  # type: ignore[call-arg, arg-type]
        optimizer.make_alike = _alike(make, made, args, options)
        return optimizer  # type: ignore[no-any-return]

    return made


def _for_groups(init: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of an optimizer, whose parameters may be groups: it becomes an `OptimizerGroup` then."""
    @functools.wraps(init)
    def __init__(self: Optimizer, *args: Any, **options: Any) -> None:
        groups, kind = _groups_of(init, (self, *args), options, skipped=1), type(self)
        if groups is None:
            init(self, *args, **options)
        else:
            self.__class__ = OptimizerGroup
            OptimizerGroup.__init__(self, *[kind(**group) for group in groups])  # type: ignore[arg-type]
        self.make_alike = _alike(init, kind, (self, *args), options, skipped=1)

    return __init__


def _alike(make: Callable[..., Any], made: Callable[..., Any], args: Sequence[Any],
           options: Mapping[str, Any], skipped: int = 0) -> Callable[[Mapping[str, Any]], Optimizer]:
    """What makes another optimizer, of one more parameter group, with the other options of this one."""
    others = {name: value for name, value in options.items() if name != "params"}
    after = args[skipped + 1:]

    def make_alike(group: Mapping[str, Any]) -> Optimizer:
        found = _groups_of(make, (*[None] * skipped, [dict(group)], *after), others, skipped)
        assert found is not None
        alike: Optimizer = made(**found[0])
        return alike

    return make_alike


def _groups_of(make: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], skipped: int = 0
               ) -> list[dict[str, Any]] | None:
    """For each parameter group that was given, the arguments of its own optimizer; None for tensors."""
    given = args[skipped] if len(args) > skipped else options.get("params")
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(g, dict) for g in given):
        return None
    signature = inspect.signature(make)
    common: dict[str, Any] = {}
    for name, value in list(signature.bind(*args, **options).arguments.items())[skipped:]:
        is_rest = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        common.update(value if is_rest else {name: value})
    if not all("params" in group for group in given):
        raise ValueError('a parameter group is a dict with the key "params"')
    params = [dedup([g["params"]] if isinstance(g["params"], Tensor) else list(g["params"])) for g in given]
    if len(dedup(flatten(params))) < sum(map(len, params)):
        raise ValueError("some parameters are in more than one parameter group")
    return [common | group | {"params": own} for group, own in zip(given, params, strict=True)]


class Optimizer:
    """What every optimizer does: keeps the parameters, clears gradients, applies updates.

    `params`: tensors; those with `requires_grad=False` are buffers, only realised by `step`. `lr` becomes a
    float tensor of one item; `optimizer.lr = 0.01` writes another rate into it, between steps. `fused` is
    tinygrad's, one update of all parameters joined, and changes nothing: updates of equal shapes are one
    kernel anyway. `maximize`: gradients are taken with the other sign, to climb.

    In place of tensors `params` may be PyTorch's groups: dicts with "params" and options, which hold for
    those instead of the others. That is an `OptimizerGroup`.
    """

    make_alike: Callable[[Mapping[str, Any]], Optimizer]
    """makes another one with the same options but those of a parameter group"""

    def __init_subclass__(cls) -> None:
        if (init := vars(cls).get("__init__")) is not None:
            cls.__init__ = _for_groups(init)  # type: ignore[method-assign]

    def __init__(self, params: Parameters, lr: float, device: str | None = None, fused: bool = False,
                 maximize: bool = False) -> None:
        refuse_negative(learning_rate=lr)
        if isinstance(params, Tensor):
            raise TypeError("an optimizer takes a list of tensors, got one of shape "
                            f"{params.shape}: [x] is a list")
        given: list[Any] = list(params)
        strangers = [p for p in given if not isinstance(p, Tensor)]
        if strangers:
            kind = type(strangers[0]).__name__
            hint = ": parameter groups are dicts all of them, in a list" if kind == "dict" else ""
            raise TypeError(f"an optimizer takes tensors, got a {kind}{hint}")
        for p in given:
            if p._requires_grad is None and p.dtype.is_float:
                p.requires_grad = True
        unique: list[Tensor] = dedup(given)
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

    def keep_in_memory(self, name: str) -> None:
        """Keep an option, a number, as the rate is kept: a step under TinyJit takes what is written there."""
        if not isinstance(value := vars(self)[name], Tensor):
            vars(self)[name] = self._numbers([value]).realize()

    def set_option(self, name: str, value: float) -> None:
        """Another number for an option, from the next step on."""
        if isinstance(held := vars(self)[name], Tensor):
            held.assign([value]).realize()
        else:
            setattr(self, name, value)

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The parameters and their options, by name, as PyTorch has them: here in one group.

        >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.5)
        >>> for group in optimizer.param_groups:
        ...     group["lr"] *= 0.5
        >>> optimizer.lr.item(), len(group["params"])
        (0.25, 1)
        """
        return [ParameterGroup(self)]

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Train more parameters: a dict with "params", and with options in place of those that this optimizer
        was made with. It is an `OptimizerGroup` from then on. A step that TinyJit captured goes on without
        them. Raises ValueError for parameters that are here already.

        >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.5)
        >>> optimizer.add_param_group({"params": [Tensor([2.0, 3.0])], "lr": 0.25})
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.5, 0.25]
        """
        known = {id(p) for p in (*self.params, *self.buffers)}
        added = self.make_alike(param_group)
        if not known.isdisjoint(map(id, (*added.params, *added.buffers))):
            raise ValueError("some parameters are in more than one parameter group")
        members = self.optimizers if isinstance(self, OptimizerGroup) else (copy.copy(self),)
        make_alike, self.__class__ = self.make_alike, OptimizerGroup
        vars(self).clear()
        OptimizerGroup.__init__(self, *members, added)  # type: ignore[arg-type]
        self.make_alike = make_alike

    def state_dict(self) -> dict[str, Tensor]:
        """What it keeps beside the parameters, by name: rates, averages, momenta. Options that are Python's
        numbers are not among it. `nn.state.safe_save` takes it.

        >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.5, momentum=0.9)
        >>> list(optimizer.state_dict())
        ['lr', 'b.0']
        """
        own = {id(p) for p in (*self.params, *self.buffers)}
        return {name: tensor for name, tensor in get_state_dict(self).items() if id(tensor) not in own}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Go on from the state of an optimizer that was made alike, of equal parameters. Raises KeyError,
        ValueError and TypeError as `nn.state.load_state_dict` does; nothing is changed then."""
        load_state_dict(self.state_dict(), state_dict, verbose=False)

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

    def _option(self, name: str, p: Tensor) -> Any:
        """The number of an option, as an operand of updates of a parameter."""
        value = vars(self)[name]
        return self._at(value, p) if isinstance(value, Tensor) else value

    def _has_momentum(self) -> bool:
        """Whether the option `momentum` is, or may become, other than 0."""
        value = vars(self)["momentum"]
        return isinstance(value, Tensor) or value != 0

    def _state(self, value: float = 0.0) -> list[Tensor]:
        """A number, zero unless given, for each item of each parameter, with memory of their own."""
        state = [p.empty_like(dtype=promote(p.dtype, dtypes.float32), requires_grad=False).assign(value)
                 for p in self.params]
        Tensor.realize(*state)
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; unless `set_to_none`, those that there are become zeros, with which a step
        goes on by its momentum."""
        for p in self.params:
            p.grad = None if set_to_none or p.grad is None else p.grad.zeros_like()

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

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """Those of its optimizers."""
        return flatten(o.param_groups for o in self.optimizers)

    def __getitem__(self, i: int) -> Optimizer:
        return self.optimizers[i]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def schedule_step(self) -> list[Tensor]:
        return flatten(o.schedule_step() for o in self.optimizers)


def rate_of(optimizer: Optimizer) -> float:
    """The rate that was written."""
    return float(option_written(optimizer.lr))


def option_written(number: Any) -> Any:
    """An option's number; one kept in memory as it was written: 0.1, not what float32 has for it."""
    return float(str(number.numpy()[0])) if isinstance(number, Tensor) else number


KEPT_IN_MEMORY = ("momentum", "b1")
"""The options that schedules move, beside the rate."""


UNNAMED = {"adam", "classic", "pre_wd", "tcoef", "ns_steps", "gradient_decay"}
"""Options of the classes behind several optimizers, which are none of an optimizer's own."""


class ParameterGroup(MutableMapping[str, Any]):
    """An optimizer's parameters and options, by their names. `lr` is a number here; written, it is memory
    like any rate, and a step under TinyJit takes it; so are those that a schedule of `nn.lr_scheduler` moves.
    Other options that are written hold for steps that are not captured yet."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.kind = vars(optimizer).get("made_by", type(optimizer).__name__)

    def _names(self) -> list[str]:
        own = vars(self.optimizer)
        numbers = [name for name, value in own.items() if name not in UNNAMED
                   and (isinstance(value, (bool, int, float)) or name in KEPT_IN_MEMORY)]
        if {"b1", "b2"} <= own.keys():
            numbers = ["betas", *(name for name in numbers if name not in ("b1", "b2"))]
        return ["params", "lr", *numbers]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __getitem__(self, name: str) -> Any:
        self._refuse_strange(name)
        if name == "lr":
            return rate_of(self.optimizer)
        if name == "betas":
            return tuple([option_written(vars(self.optimizer)[b]) for b in ("b1", "b2")])
        return option_written(getattr(self.optimizer, self._attribute(name)))

    def _attribute(self, name: str) -> str:
        """What the optimizer calls an option."""
        return "gradient_decay" if name == "weight_decay" and self.kind == "Adam" else name

    def __setitem__(self, name: str, value: Any) -> None:
        self._refuse_strange(name)
        if name == "params":
            raise ValueError("the parameters of an optimizer stay; make another one for others")
        if name == "lr":
            self.optimizer.lr = value
        elif name == "betas":
            refuse_averages(*value)
            for beta, number in zip(("b1", "b2"), value, strict=True):
                self.optimizer.set_option(beta, number)
        else:
            refuse_negative(**{name: value})
            self.optimizer.set_option(self._attribute(name), value)

    def __delitem__(self, name: str) -> None:
        raise TypeError("the options of an optimizer stay")

    def __repr__(self) -> str:
        shown = [f"{name}: {value}" for name, value in self.items() if name != "params"]
        return f"<{len(self.optimizer.params)} parameters, {', '.join(shown)}>"

    def _refuse_strange(self, name: str) -> None:
        if name not in self._names():
            raise KeyError(f"{self.kind} has no option {name!r} to be read or written; it has "
                           f"{self._names()}")


@memoised
def averaged(old: Tensor, new: Tensor | float, b: float | Tensor) -> Tensor:
    """The running average of what was and is."""
    return b * old + (1 - b) * new
