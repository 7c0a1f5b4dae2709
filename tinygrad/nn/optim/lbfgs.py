"""L-BFGS: steps by the curvature that the last gradients show, for losses of all data and few parameters."""
from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.frozen import frozen
from tinygrad.nn.optim.optimizer import Optimizer, Parameters, refuse_negative
from tinygrad.nn.utils import parameters_to_vector, vector_to_parameters
from tinygrad.tensor import Tensor

MOST_TRIALS = 25
"""Losses that one search along a line asks for at most."""
FALLS, FLATTENS = 1e-4, 0.9
"""The constants of Wolfe's conditions that Nocedal and Wright advise: how much of what the slope promises the
loss falls at least, and how much of the slope is left at most."""


@frozen
class Trial:
    """What was found `at` so many directions from where a search began."""

    at: float
    loss: float
    gradient: Tensor
    slope: float

    def falls_less(self, start: Trial) -> bool:
        return not self.loss <= start.loss + FALLS * self.at * start.slope

    def is_flat(self, start: Trial) -> bool:
        return abs(self.slope) <= -FLATTENS * start.slope


class LBFGS(Optimizer):
    """Steps along H g, where H is near the inverse of the second derivatives, as the last `history_size`
    steps show it (Liu and Nocedal, 1989), as PyTorch's.

    `step(closure)` takes at most `max_iter` such steps, of at most `max_eval` (max_iter * 5 / 4) losses,
    which `closure` computes with their gradients; it ends where the largest of these is at most
    `tolerance_grad`, or what a step changes is below `tolerance_change`, and returns the first loss. Steps
    have the length `lr`, unless `line_search_fn="strong_wolfe"` searches one that meets Wolfe's conditions
    (Nocedal and Wright, "Numerical Optimization", algorithms 3.5 and 3.6). Numbers are read after every loss:
    `step` belongs outside of TinyJit, `closure` may call what is under it.

    >>> x = Tensor([-1.5, 2.0], requires_grad=True)
    >>> optimizer = nn.optim.LBFGS([x], max_iter=50, line_search_fn="strong_wolfe")
    >>> def closure() -> Tensor:
    ...     optimizer.zero_grad()
    ...     loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    ...     return loss.backward()
    >>> optimizer.step(closure).item(), x.round().tolist()
    (12.5, [1.0, 1.0])
    """

    def __init__(self, params: Parameters, lr: float = 1.0, max_iter: int = 20,
                 max_eval: int | None = None, tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9,
                 history_size: int = 100, line_search_fn: str | None = None, device: str | None = None
                 ) -> None:
        super().__init__(params, lr, device)
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f'LBFGS takes line_search_fn="strong_wolfe" or None, got {line_search_fn!r}')
        refuse_negative(tolerance_grad=tolerance_grad, tolerance_change=tolerance_change)
        self.max_iter = max_iter
        self.max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        self.tolerance_grad = tolerance_grad
        self.tolerance_change = tolerance_change
        self.history_size = history_size
        self.is_searching = line_search_fn is not None
        self.moves: list[Tensor] = []
        self.bends: list[Tensor] = []
        """by what each of the last steps changed the parameters, and the gradient"""
        self.curvatures: list[Tensor] = []
        """the products of both"""
        self.gradient: Tensor | None = None
        self.moved: Tensor | None = None
        """of the last step: the gradient before it, and by what it changed the parameters"""

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:
        if closure is None:
            raise TypeError("LBFGS asks for the loss several times: step takes a function that computes it, "
                            "and the gradients, and returns it")
        first = closure()
        now, evaluations = self._trial(first, 0.0, None), 1
        for iteration in range(1, self.max_iter + 1):
            if self._largest(now.gradient) <= self.tolerance_grad:
                break
            length = self._length(now.gradient)
            direction = self._direction(now.gradient)
            start = Trial(0.0, now.loss, now.gradient, _dot(now.gradient, direction))
            if start.slope > -self.tolerance_change:
                break
            now, trials = self._moved(closure, start, direction, length, iteration < self.max_iter)
            evaluations += trials
            if evaluations >= self.max_eval or self._largest(self.moved) <= self.tolerance_change \
                    or abs(now.loss - start.loss) < self.tolerance_change:
                break
        return first

    def _moved(self, closure: Callable[[], Tensor], start: Trial, direction: Tensor, length: float,
               is_more: bool) -> tuple[Trial, int]:
        """The parameters moved along a direction, and the loss there: how many losses that took. The last
        step of all without a search computes none."""
        place = self._flat([self._wide(p) for p in self.params])

        def at(t: float) -> Trial:
            self._put(place + direction * t)
            return self._trial(closure(), t, direction)

        trials = 0
        if self.is_searching:
            found, trials = _search(at, start, length, self.tolerance_change / self._largest(direction))
            self._put(place + direction * found.at)
        elif is_more:
            found, trials = at(length), 1
        else:
            self._put(place + direction * length)
            found = Trial(length, start.loss, start.gradient, start.slope)
        self.gradient, self.moved = start.gradient, (direction * found.at).realize()
        return found, trials

    def _length(self, gradient: Tensor) -> float:
        """How far to go at first: `lr`; in the first step of all, whose direction is the gradient itself, no
        further than that times what changes all parameters by 1 together."""
        rate = float(self.lr.item())
        return rate if self.gradient is not None else min(1.0, 1 / float(gradient.abs().sum().item())) * rate

    def _direction(self, gradient: Tensor) -> Tensor:
        """-H g, by the recursion of two loops (Nocedal and Wright, algorithm 7.4)."""
        if self.gradient is not None and self.moved is not None:
            bend = (gradient - self.gradient).realize()
            curvature = (bend * self.moved).sum().realize()
            if curvature.item() > 1e-10:
                for kept, new in ((self.moves, self.moved), (self.bends, bend), (self.curvatures, curvature)):
                    kept.append(new)
                    del kept[:-self.history_size]
        history = list(zip(self.moves, self.bends, self.curvatures, strict=True))
        found, shares = (-gradient).realize(), []
        for move, bend, curvature in reversed(history):
            share = ((move * found).sum() / curvature).realize()
            found = (found - share * bend).realize()
            shares.append(share)
        if history:
            _, bend, curvature = history[-1]
            found = (found * (curvature / bend.square().sum())).realize()
        for (move, bend, curvature), share in zip(history, reversed(shares), strict=True):
            found = (found + (share - (bend * found).sum() / curvature).realize() * move).realize()
        return found

    # --- all parameters in one row --------------------------------------------------------------------------

    def _flat(self, parts: list[Tensor]) -> Tensor:
        return parameters_to_vector(x.to(self.device).cast(self.lr.dtype) for x in parts).realize()

    def _put(self, row: Tensor) -> None:
        vector_to_parameters(row.detach(), self.params)
        Tensor.realize(*self.params)

    def _trial(self, loss: Tensor, at: float, direction: Tensor | None) -> Trial:
        """The loss, and the gradients that the closure left."""
        gradient = self._flat([Tensor.zeros_like(p) if p.grad is None else p.grad.detach()
                               for p in self.params])
        slope = 0.0 if direction is None else _dot(gradient, direction)
        Tensor.realize(loss, *self.buffers)
        return Trial(at, float(loss.item()), gradient, slope)

    @staticmethod
    def _largest(row: Tensor | None) -> float:
        return 0.0 if row is None else float(row.abs().max().item())

    def schedule_step(self) -> list[Tensor]:
        raise TypeError("LBFGS asks for the loss several times: it has step(closure) alone")


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum().item())


def _search(at: Callable[[float], Trial], start: Trial, length: float, closest: float) -> tuple[Trial, int]:
    """A step that meets Wolfe's conditions, or the best of MOST_TRIALS: first longer and longer ones, until
    one is too long; then between two, until these are `closest` to each other (algorithms 3.5 and 3.6)."""
    before, found, trials = start, at(length), 1
    while trials < MOST_TRIALS:
        if found.falls_less(start) or (trials > 1 and found.loss >= before.loss):
            return _between(at, start, before, found, trials, closest)
        if found.is_flat(start):
            return found, trials
        if found.slope >= 0:
            return _between(at, start, found, before, trials, closest)
        low, high = found.at + 0.01 * (found.at - before.at), 10 * found.at
        before, found = found, at(min(max(_lowest(before, found), low), high))
        trials += 1
    return found, trials


def _between(at: Callable[[float], Trial], start: Trial, low: Trial, high: Trial, trials: int, closest: float
             ) -> tuple[Trial, int]:
    """The second half of `_search`: `low` is the best so far, and between it and `high` is a step that meets
    the conditions."""
    while trials < MOST_TRIALS and abs(high.at - low.at) > closest:
        first, last = sorted((low.at, high.at))
        margin = 0.1 * (last - first)
        found = at(min(max(_lowest(low, high), first + margin), last - margin))
        trials += 1
        if found.falls_less(start) or found.loss >= low.loss:
            high = found
            continue
        if found.is_flat(start):
            return found, trials
        if found.slope * (high.at - low.at) >= 0:
            high = low
        low = found
    return low, trials


def _lowest(a: Trial, b: Trial) -> float:
    """Where the cubic with the losses and slopes of two trials is lowest (equation 3.59); their middle where
    it has no such place."""
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.at - b.at)
    square = d1 * d1 - a.slope * b.slope
    d2 = math.copysign(math.sqrt(square), b.at - a.at) if square >= 0 else math.nan
    found = b.at - (b.at - a.at) * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2) \
        if b.slope - a.slope + 2 * d2 else math.nan
    return found if math.isfinite(found) else (a.at + b.at) / 2
