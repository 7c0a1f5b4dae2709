"""Gradient descent: by the gradient with momentum (SGD, LARS, Muon), averaged (ASGD), by its sign (Rprop)."""
from __future__ import annotations

from typing import TypeAlias

from tinygrad.functional.graph_templates import memoised
from tinygrad.nn.optim.optimizer import Optimizer, Parameters, refuse_negative, takes_groups
from tinygrad.tensor import Tensor


class LARS(Optimizer):
    """Gradient descent with momentum and a rate for each layer (You, Gitman and Ginsburg, 2017).

    With trust = tcoef * |p| / (|g| + weight_decay * |p|) (1 where a norm is 0, or where tcoef is 0), each
    step: g += weight_decay * p (`pre_wd`; otherwise p shrinks by 1 - lr * weight_decay), b = momentum * b +
    g, p -= lr * trust * b. `nesterov` uses g + momentum * b in place of b. `classic` multiplies the gradient
    by lr * trust before the momentum instead of after.
    """

    def __init__(self, params: Parameters, lr: float = 0.001, momentum: float = 0.9,
                 weight_decay: float = 1e-4, ns_steps: int = 0,
                 ns_coefficients: tuple[float, float, float] | None = None, nesterov: bool = False,
                 classic: bool = True, pre_wd: bool = True, tcoef: float = 0.001,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        if ns_steps > 0 and ns_coefficients is None:
            raise ValueError("Newton-Schulz steps take ns_coefficients, three numbers")
        refuse_negative(momentum=momentum, weight_decay=weight_decay)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.ns_steps = ns_steps
        self.ns_coefficients = ns_coefficients
        self.nesterov = nesterov
        self.classic = classic
        self.pre_wd = pre_wd
        self.tcoef = tcoef
        self.b = self._state() if momentum else []

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        rule = (self.weight_decay, self.nesterov, self.classic, self.pre_wd, self.tcoef)
        has_momentum = self._has_momentum()
        if has_momentum and not self.b:  # it was given later
            self.b = self._state()
        for i, g in grads.items():
            p, b = self.params[i], None
            value, rate, momentum = self._wide(p), self._at(self.lr, p), self._option("momentum", p)
            if has_momentum:
                b = self.b[i].assign(_velocity(self.b[i], value, g, rate, momentum, rule))
            p.assign(_descended(value, g, b, rate, momentum, rule, self.ns_steps, self.ns_coefficients)
                     .cast(p.dtype))
        return self.b


Rule: TypeAlias = tuple[float, bool, bool, bool, float]
"""weight_decay, nesterov, classic, pre_wd, tcoef: see `LARS`."""


@memoised
def _velocity(b: Tensor, value: Tensor, g: Tensor, rate: Tensor, momentum: float | Tensor, rule: Rule
              ) -> Tensor:
    """The next momentum."""
    return momentum * b + _scaled(value, g, rate, rule)[0]


@memoised
def _descended(value: Tensor, g: Tensor, b: Tensor | None, rate: Tensor, momentum: float | Tensor, rule: Rule,
               ns_steps: int, ns_coefficients: tuple[float, float, float] | None) -> Tensor:
    """The next value of a parameter, with the new momentum, if there is one."""
    weight_decay, nesterov, classic, pre_wd, _ = rule
    g, trusted = _scaled(value, g, rate, rule)
    if b is not None:
        g = g + momentum * b if nesterov else b
    if ns_coefficients is not None and ns_steps > 0 and value.ndim > 1:
        g = orthogonalize(g, ns_steps, ns_coefficients)
    if not classic:
        g = g * trusted
    if not pre_wd and weight_decay:
        value = value * (1 - weight_decay * rate)
    return value - g


def _scaled(value: Tensor, g: Tensor, rate: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """The gradient that goes into the momentum, and the rate of this parameter."""
    weight_decay, _, classic, pre_wd, tcoef = rule
    trusted = rate * _trust(value, g, weight_decay, tcoef)
    if pre_wd and weight_decay:
        g = g + weight_decay * value
    return g * trusted if classic else g, trusted


def _trust(value: Tensor, g: Tensor, weight_decay: float, tcoef: float) -> Tensor | float:
    if not tcoef:
        return 1.0
    size, slope = value.square().sum().sqrt(), g.square().sum().sqrt()
    trust = tcoef * size / (slope + weight_decay * size)
    return ((size > 0) & (slope > 0)).where(trust, 1.0)


def orthogonalize(g: Tensor, steps: int, coefficients: tuple[float, float, float]) -> Tensor:
    """Near the closest matrix with orthonormal rows or columns, by the iteration of Newton and Schulz.

    Axes after the first are taken together. X = g/|g|, then `steps` times X = a X + (b A + c A A) X with
    A = X X^T, on the shorter side (Jordan and others, "Muon", 2024); scaled by sqrt(max(1, rows/columns)).
    """
    a, b, c = coefficients
    x = g.reshape(g.shape[0], -1)
    rows, columns = x.shape
    if rows > columns:
        x = x.transpose()
    x = x / x.square().sum().sqrt().maximum(1e-7)
    for _ in range(steps):
        gram = x @ x.transpose()
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    if rows > columns:
        x = x.transpose()
    return x.reshape(g.shape) * float(max(1.0, rows / columns) ** 0.5)


@takes_groups
def SGD(params: Parameters, lr: float = 0.001, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, classic: bool = False, device: str | None = None,
        fused: bool = False, maximize: bool = False) -> LARS:
    """Stochastic gradient descent: g += weight_decay * p; b = momentum * b + g; p -= lr * b, as PyTorch's
    SGD.

    `nesterov` uses g + momentum * b in place of b; `classic` multiplies by lr before the momentum.

    >>> weight = Tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = nn.optim.SGD([weight], lr=0.25)
    >>> with Tensor.train():
    ...     (weight * weight).sum().backward()
    ...     optimizer.step()
    <Tensor CPU float32 () lazy>
    >>> weight.tolist()
    [0.5, 1.0]
    """
    return LARS(params, lr, momentum, weight_decay, nesterov=nesterov, classic=classic, tcoef=0.0,
                device=device, fused=fused, maximize=maximize)


@takes_groups
def Muon(params: Parameters, lr: float = 0.001, momentum: float = 0.95, weight_decay: float = 0.1,
         ns_steps: int = 5, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
         nesterov: bool = True, device: str | None = None, fused: bool = False,
         maximize: bool = False) -> LARS:
    """Momentum whose update is made orthogonal (Jordan and others, 2024), for the matrices of hidden layers.

    Weight decay shrinks the parameter by 1 - lr * weight_decay, apart from the gradient. Parameters of one
    axis, which have no rows and columns, take the momentum as it is. Embeddings and the output layer do
    better with another optimizer (`OptimizerGroup`).
    """
    return LARS(params, lr, momentum, weight_decay, ns_steps, ns_coefficients, nesterov, classic=False,
                pre_wd=False, tcoef=0.0, device=device, fused=fused, maximize=maximize)


class ASGD(Optimizer):
    """Gradient descent by ever smaller steps, and the mean of where it was (Polyak and Juditsky, 1992), as
    PyTorch's.

    Each step: p -= e * (lambd * p + g), with e = lr in the first, and lr / (1 + lambd * lr * t) ** alpha in
    the one after step t. `means` has the parameters, after step `t0` their means since then. `weight_decay`
    times p is added to g.
    """

    def __init__(self, params: Parameters, lr: float = 0.01, lambd: float = 1e-4, alpha: float = 0.75,
                 t0: float = 1e6, weight_decay: float = 0.0, device: str | None = None, fused: bool = False,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        refuse_negative(weight_decay=weight_decay)
        self.lambd = lambd
        self.alpha = alpha
        self.t0 = t0
        self.weight_decay = weight_decay
        self.steps = self._numbers([0.0] * len(self.params))
        self.rates = self._numbers([lr] * len(self.params))
        self.means = self._state()

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p, rate = self.params[i], self._at(self.rates, self.params[i])[i]
            value = self._wide(p)
            if self.weight_decay:
                g = g + self.weight_decay * value
            value = value * (1 - self.lambd * rate) - rate * g
            share = 1 / (self._at(self.steps, p)[i] - self.t0).maximum(1)  # of this step in the mean
            self.means[i].assign((share == 1).where(value, self.means[i] + (value - self.means[i]) * share))
            p.assign(value.cast(p.dtype))
        after = self.steps + 1
        rates = self.lr / (1 + self.lambd * self.lr * after) ** self.alpha
        self._advance(self.rates, rates.expand(len(self.params)), grads)
        self._advance(self.steps, after, grads)
        return [self.steps, self.rates, *self.means]


class Rprop(Optimizer):
    """A step size for each item: times `etas[1]` where its gradient has the sign that it had, times `etas[0]`
    where it has the other, where the item then stays for one step (Riedmiller and Braun, 1993), as PyTorch's.
    For gradients of all data, not of a batch. Sizes begin with `lr`, and stay within `step_sizes`."""

    def __init__(self, params: Parameters, lr: float = 0.01, etas: tuple[float, float] = (0.5, 1.2),
                 step_sizes: tuple[float, float] = (1e-6, 50.0), device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"Rprop takes etas below 1 and above 1, got {etas}")
        self.etas = etas
        self.step_sizes = step_sizes
        self.before = self._state()
        self.sizes = self._state(lr)

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        less, more = self.etas
        for i, g in grads.items():
            p = self.params[i]
            agreement = g * self.before[i]
            factor = (agreement > 0).where(more, (agreement < 0).where(less, 1.0))
            size = self.sizes[i].assign((self.sizes[i] * factor).clip(*self.step_sizes))
            g = self.before[i].assign((agreement < 0).where(0, g))
            p.assign((self._wide(p) - g.sign() * size).cast(p.dtype))
        return [*self.before, *self.sizes]
