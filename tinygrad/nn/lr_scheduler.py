"""Learning rates that change: the classes of `torch.optim.lr_scheduler`.

Each sets the rates of its optimizer's parameter groups when it is made and at each `step()`, usually after
an epoch, as a function of how many steps there were. A rate is a tensor that is written to: a step under
TinyJit is not traced again. The steps of a schedule are counted by Python, so its own `step()` belongs
outside of what TinyJit traces.
"""
from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from tinygrad.engine.capture import Capture, JitError
from tinygrad.nn.optim import Optimizer, OptimizerGroup
from tinygrad.nn.optim.optimizer import KEPT_IN_MEMORY, rate_of

T = TypeVar("T")


def _of_groups(optimizer: Optimizer) -> Sequence[Optimizer]:
    """The optimizers of an optimizer's parameter groups."""
    if not isinstance(optimizer, OptimizerGroup):
        return [optimizer]
    return [single for member in optimizer.optimizers for single in _of_groups(member)]


def _set_rates(optimizer: Optimizer, rates: Sequence[float]) -> None:
    for member, rate in zip(_of_groups(optimizer), rates, strict=True):
        member.lr = rate


def _first_rates_of(optimizer: Optimizer) -> list[float]:
    """The rates before the first scheduler of an optimizer, from which further ones count too."""
    return [vars(member).setdefault("initial_lr", rate_of(member)) for member in _of_groups(optimizer)]


def _name_of_momentum(optimizer: Optimizer, scheduler: str) -> str:
    """What an optimizer calls the number that a schedule moves as momentum. Raises ValueError where it has
    none."""
    for name in KEPT_IN_MEMORY:
        if name in vars(optimizer):
            return name
    raise ValueError(f"{scheduler} moves the momentum too, or the first beta, and {type(optimizer).__name__} "
                     "has neither: cycle_momentum=False moves the rate alone")


Rates: TypeAlias = float | Sequence[float]
"""One number, or one for each parameter group."""


def _for_groups(name: str, given: T | Sequence[T], optimizer: Optimizer) -> list[T]:
    """What is given for all parameter groups, or for each. Raises ValueError for another number of them."""
    groups = len(_of_groups(optimizer))
    found: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given] * groups
    if len(found) != groups:
        raise ValueError(f"{name} is one, or one for each of the {groups} parameter groups, got {len(found)}")
    return found


def _refuse_under_jit(scheduler: object) -> None:
    if Capture.current() is not None:
        raise JitError(f"{type(scheduler).__name__}.step() inside a function under TinyJit would not run in "
                       "a replay; call it outside")


def _refuse_no_steps(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"a schedule takes {name} >= 1, got {value}")


class LRScheduler:
    """The rates that the optimizer's parameter groups had, times `_factor` of the number of steps."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        self.base_lrs = _first_rates_of(optimizer)
        self.last_epoch = last_epoch
        self.step()

    def step(self) -> None:
        """The next rates."""
        _refuse_under_jit(self)
        self.last_epoch += 1
        self._last_lr = self.get_lr()
        _set_rates(self.optimizer, self._last_lr)
        self._set_momenta()

    def _set_momenta(self) -> None:
        """The next momenta, of a schedule that moves them."""

    def get_lr(self) -> list[float]:
        """The rates at step `last_epoch`, one for each parameter group: what a schedule of your own says."""
        return [self._rate(self.last_epoch, group) for group in range(len(self.base_lrs))]

    def get_last_lr(self) -> list[float]:
        """The rates now, one for each parameter group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: all but the optimizer and functions."""
        return {name: value for name, value in vars(self).items()
                if name not in ("optimizer", "lr_lambda") and not callable(value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        vars(self).update(state_dict)

    def _rate(self, t: int, group: int) -> float:
        return self.base_lrs[group] * self._factor(t, group)

    def _factor(self, t: int, group: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no rule")

    def _chained(self, rate: float, t: int, group: int) -> float:
        """What step `t` makes of a rate that other schedules move too: of a multiple of the first one, the
        same multiple; of what sets the rate, that."""
        if type(self)._rate is not LRScheduler._rate:
            return self._rate(t, group)
        before = self._factor(t - 1, group) if t > 0 else 1.0
        return rate * self._factor(t, group) / before if before else rate


Functions: TypeAlias = Callable[[int], float] | Sequence[Callable[[int], float]]
"""Of the number of steps: one, or one for each parameter group."""


class LambdaLR(LRScheduler):
    """Times `lr_lambda(steps)`, which may be a list of one for each parameter group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Functions, last_epoch: int = -1) -> None:
        self.lr_lambda = _for_groups("lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        return self.lr_lambda[group](t)

    def _chained(self, rate: float, t: int, group: int) -> float:
        return self._rate(t, group)


class MultiplicativeLR(LRScheduler):
    """Times `lr_lambda(steps)` of every step so far; a list has one for each parameter group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Functions, last_epoch: int = -1) -> None:
        self.lr_lambda = _for_groups("lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def _rate(self, t: int, group: int) -> float:
        return self._last_lr[group] * self.lr_lambda[group](t) if t > 0 else self.base_lrs[group]

    def _chained(self, rate: float, t: int, group: int) -> float:
        return rate * self.lr_lambda[group](t) if t > 0 else rate


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
                 ) -> None:
        _refuse_no_steps(step_size=step_size)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        return float(self.gamma ** (t // self.step_size))


class MultiStepLR(LRScheduler):
    """Times `gamma` at each of the milestones."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1,
                 last_epoch: int = -1) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        return float(self.gamma ** bisect.bisect_right(self.milestones, t))


class ExponentialLR(LRScheduler):
    """Times `gamma` every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        return float(self.gamma ** t)


class LinearLR(LRScheduler):
    """Times what goes from `start_factor` to `end_factor` in `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5, last_epoch: int = -1) -> None:
        _refuse_no_steps(total_iters=total_iters)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        share = min(t, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share


class ConstantLR(LRScheduler):
    """Times `factor` for the first `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5,
                 last_epoch: int = -1) -> None:
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        return self.factor if t < self.total_iters else 1.0


class PolynomialLR(LRScheduler):
    """Times (1 - t / total_iters) ** power, down to 0."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
                 ) -> None:
        _refuse_no_steps(total_iters=total_iters)
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _factor(self, t: int, group: int) -> float:
        return float((1 - min(t, self.total_iters) / self.total_iters) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """From the rate to `eta_min` in `T_max` steps and back again, along a cosine (Loshchilov and Hutter,
    2016)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        _refuse_no_steps(T_max=T_max)
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, t: int, group: int) -> float:
        share = (1 + math.cos(math.pi * t / self.T_max)) / 2
        return self.eta_min + (self.base_lrs[group] - self.eta_min) * share

    def _chained(self, rate: float, t: int, group: int) -> float:
        if t == 0:
            return rate
        before, now = (1 + math.cos(math.pi * step / self.T_max) for step in (t - 1, t))
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:  # the step before was the lowest
            return rate + (self.base_lrs[group] - self.eta_min) * now / 2
        return self.eta_min + (rate - self.eta_min) * now / before


class CosineAnnealingWarmRestarts(LRScheduler):
    """Down to `eta_min` along a cosine in T_0 steps, then again in T_0 * T_mult, and so on."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0,
                 last_epoch: int = -1) -> None:
        _refuse_no_steps(T_0=T_0, T_mult=T_mult)
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _rate(self, t: int, group: int) -> float:
        length = self.T_0
        while t >= length:
            t, length = t - length, length * self.T_mult
        return self.eta_min + (self.base_lrs[group] - self.eta_min) * (1 + math.cos(math.pi * t / length)) / 2


class _MomentumCycle(LRScheduler):
    """A schedule that moves the momentum too, or Adam's first beta, against the rate; `momenta` has the
    lowest and the highest for each parameter group, none where they stay."""

    def __init__(self, optimizer: Optimizer, cycle_momentum: bool, base_momentum: Rates, max_momentum: Rates,
                 last_epoch: int) -> None:
        self.momenta: list[tuple[float, float]] = []
        if cycle_momentum:
            self.momenta = list(zip(_for_groups("base_momentum", base_momentum, optimizer),
                                    _for_groups("max_momentum", max_momentum, optimizer), strict=True))
            if not all(0 <= number < 1 for pair in self.momenta for number in pair):
                raise ValueError(f"a momentum is from 0 to below 1, got {base_momentum} and {max_momentum}")
            for member in _of_groups(optimizer):
                member.keep_in_memory(_name_of_momentum(member, type(self).__name__))
        super().__init__(optimizer, last_epoch)

    def _set_momenta(self) -> None:
        if self.momenta:
            for group, member in enumerate(_of_groups(self.optimizer)):
                name = _name_of_momentum(member, type(self).__name__)
                member.set_option(name, self._momentum(self.last_epoch, group))

    def _momentum(self, t: int, group: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no rule for the momentum")


class CyclicLR(_MomentumCycle):
    """From `base_lr` up to `max_lr` in `step_size_up` steps and down again in `step_size_down`, along lines,
    and so on (Smith, 2015). How far up: in cycle n from 1 on times 1 ("triangular") or 2 ** (1 - n)
    ("triangular2"), or gamma ** steps ("exp_range"); or times `scale_fn` of the cycle's number, or of the
    steps with scale_mode="iterations". With `cycle_momentum` the momentum, or Adam's first beta, goes down
    from `max_momentum` as the rate goes up, and back.
    """

    def __init__(self, optimizer: Optimizer, base_lr: Rates, max_lr: Rates, step_size_up: int = 2000,
                 step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
                 scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
                 cycle_momentum: bool = True, base_momentum: Rates = 0.8, max_momentum: Rates = 0.9,
                 last_epoch: int = -1) -> None:
        scales: dict[str, Callable[[float], float]] = {
            "triangular": lambda n: 1.0, "triangular2": lambda n: 2.0 ** (1 - n), "exp_range": self._shrunk}
        if mode not in scales or scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"CyclicLR takes mode {', '.join(map(repr, scales))} and scale_mode 'cycle' or "
                             f"'iterations', got {mode!r} and {scale_mode!r}")
        step_size_down = step_size_up if step_size_down is None else step_size_down
        _refuse_no_steps(step_size_up=step_size_up, step_size_down=step_size_down)
        self.lowest = _for_groups("base_lr", base_lr, optimizer)
        self.max_lrs = _for_groups("max_lr", max_lr, optimizer)
        self.gamma = gamma
        self.step_size_up, self.step_size_down = step_size_up, step_size_down
        self.scale_fn = scales[mode] if scale_fn is None else scale_fn
        self.is_of_cycles = scale_mode == "cycle" if scale_fn is not None else mode != "exp_range"
        super().__init__(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch)

    def _shrunk(self, t: float) -> float:
        return float(self.gamma ** t)

    def _share(self, t: int) -> float:
        """How far the rate is up."""
        cycle, step = divmod(t, self.step_size_up + self.step_size_down)
        share = step / self.step_size_up if step <= self.step_size_up else \
            1 - (step - self.step_size_up) / self.step_size_down
        return share * self.scale_fn(cycle + 1 if self.is_of_cycles else t)

    def _rate(self, t: int, group: int) -> float:
        return self.lowest[group] + (self.max_lrs[group] - self.lowest[group]) * self._share(t)

    def _momentum(self, t: int, group: int) -> float:
        lowest, highest = self.momenta[group]
        return highest - (highest - lowest) * self._share(t)


class OneCycleLR(_MomentumCycle):
    """Up from max_lr / div_factor to `max_lr` in the first `pct_start` of the steps, then down to that first
    rate / final_div_factor (Smith and Topin, 2018), along cosines, or lines with anneal_strategy="linear".
    With `three_phase` it comes down as it went up, and goes on from there. Takes `total_steps`, or `epochs`
    and `steps_per_epoch`. With `cycle_momentum` the momentum, or Adam's first beta, goes from `max_momentum`
    to `base_momentum` and back meanwhile.
    """

    def __init__(self, optimizer: Optimizer, max_lr: Rates, total_steps: int | None = None,
                 epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
                 anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: Rates = 0.85,
                 max_momentum: Rates = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
                 three_phase: bool = False, last_epoch: int = -1) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR takes total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        _refuse_no_steps(total_steps=total_steps)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR takes pct_start from 0 to 1, got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f'OneCycleLR takes anneal_strategy="cos" or "linear", got {anneal_strategy!r}')
        self.total_steps = total_steps
        self.is_cosine = anneal_strategy == "cos"
        top = pct_start * total_steps - 1
        self.turns = [0.0, top, *([2 * top] if three_phase else []), total_steps - 1.0]
        """the steps where the rate turns"""
        self.rates = []
        """the rates there, for each parameter group"""
        for most in _for_groups("max_lr", max_lr, optimizer):
            first = most / div_factor
            self.rates.append([first, most, *([first] if three_phase else []), first / final_div_factor])
        super().__init__(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch)

    def _between(self, t: int, numbers: Sequence[float]) -> float:
        """The number at step `t` of what is `numbers` at the turns."""
        after = next((i for i, step in enumerate(self.turns) if i and t <= step), len(self.turns) - 1)
        begin, end = self.turns[after - 1:after + 1]
        old, new = numbers[after - 1:after + 1]
        share = (t - begin) / (end - begin) if end != begin else 1.0
        return new + (old - new) * ((1 + math.cos(math.pi * share)) / 2 if self.is_cosine else 1 - share)

    def _rate(self, t: int, group: int) -> float:
        if t > self.total_steps:
            raise ValueError(f"this schedule has {self.total_steps} steps, and was asked for one more")
        return self._between(t, self.rates[group])

    def _momentum(self, t: int, group: int) -> float:
        lowest, highest = self.momenta[group]
        return self._between(t, [highest, lowest, highest, highest])


class SequentialLR:
    """The schedulers one after the other, each from its first step on, the next from each milestone on: a
    warm-up and then a cosine. They are made before, of the same optimizer; its rate goes back to the first's.
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int],
                 last_epoch: int = -1) -> None:
        if not schedulers or len(milestones) != len(schedulers) - 1 or any(
                s.optimizer is not optimizer for s in schedulers):
            raise ValueError(f"SequentialLR takes schedulers of its optimizer, and a milestone between each "
                             f"two, got {len(schedulers)} and milestones {list(milestones)}")
        self.optimizer = optimizer
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        self.last_epoch = last_epoch
        self.step()

    def step(self) -> None:
        """The next rate, of the scheduler whose turn it is."""
        _refuse_under_jit(self)
        self.last_epoch += 1
        turn = bisect.bisect_right(self.milestones, self.last_epoch)
        if self.last_epoch in (0, *self.milestones[max(turn - 1, 0):turn]):
            self.schedulers[turn].last_epoch = -1
        self.schedulers[turn].step()
        self._last_lr = self.schedulers[turn]._last_lr

    get_last_lr = LRScheduler.get_last_lr

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: the number of steps, and the states of all schedulers."""
        return {"last_epoch": self.last_epoch, "_last_lr": self._last_lr,
                "schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.last_epoch, self._last_lr = state_dict["last_epoch"], state_dict["_last_lr"]
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)


class ChainedScheduler:
    """All schedulers at each step, each of which goes on from the rate that the one before it left: what
    moves it by factors moves it by the product of them. They are made before, of one optimizer."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        first = schedulers[0].optimizer if schedulers else None
        if first is None or any(s.optimizer is not (optimizer or first) for s in schedulers):
            raise ValueError("ChainedScheduler takes schedulers, one at least, of one optimizer")
        self.optimizer, self.schedulers = first, list(schedulers)
        self._last_lr = schedulers[0].base_lrs
        self._move(0)

    def _move(self, steps: int) -> None:
        for scheduler in self.schedulers:
            scheduler.last_epoch += steps
            self._last_lr = scheduler._last_lr = [scheduler._chained(rate, scheduler.last_epoch, group)
                                                  for group, rate in enumerate(self._last_lr)]
            scheduler._set_momenta()
        _set_rates(self.optimizer, self._last_lr)

    def step(self) -> None:
        """The next rate."""
        _refuse_under_jit(self)
        self._move(1)

    get_last_lr = LRScheduler.get_last_lr

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: the states of all schedulers."""
        return {"_last_lr": self._last_lr, "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._last_lr = state_dict["_last_lr"]
        _set_rates(self.optimizer, self._last_lr)
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)


class ReduceLROnPlateau:
    """The rate times `factor` where what `step` is given was not better for more than `patience` steps:
    smaller (mode "min") or larger ("max") by `threshold`, of its size ("rel") or as a number ("abs")."""

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: Rates = 0.0,
                 eps: float = 1e-8) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs") or factor >= 1:
            raise ValueError(f"ReduceLROnPlateau takes mode 'min' or 'max', threshold_mode 'rel' or 'abs' "
                             f"and a factor below 1, got {mode!r}, {threshold_mode!r} and {factor}")
        self.optimizer = optimizer
        self.mode, self.threshold_mode = mode, threshold_mode
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = _for_groups("min_lr", min_lr, optimizer)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self._last_lr = [rate_of(member) for member in _of_groups(optimizer)]

    get_last_lr = LRScheduler.get_last_lr
    state_dict = LRScheduler.state_dict
    load_state_dict = LRScheduler.load_state_dict

    def step(self, metrics: Any) -> None:
        """With the loss, or what else is to become better."""
        _refuse_under_jit(self)
        current = float(metrics)
        self.num_bad_epochs += 1
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            lower = [max(rate * self.factor, least)
                     for rate, least in zip(self._last_lr, self.min_lrs, strict=True)]
            self._last_lr = [new if rate - new > self.eps else rate
                             for rate, new in zip(self._last_lr, lower, strict=True)]
            _set_rates(self.optimizer, self._last_lr)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, current: float) -> bool:
        margin = -self.threshold if self.mode == "min" else self.threshold
        bound = self.best * (1 + margin) if self.threshold_mode == "rel" else self.best + margin
        return current < bound if self.mode == "min" else current > bound
