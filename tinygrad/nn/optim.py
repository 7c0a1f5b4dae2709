"""Optimizers: objects that change parameters by their gradients.

`step` writes every parameter, the optimizer's own state and the layers' buffers (running statistics) in one
`realize`. No number that changes from step to step is baked into the graph: the learning rate and the bias
corrections are tensors, so a captured step (TinyJit) replays rightly. State is kept and updates are computed
in float32 at least.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable

from tinygrad.dtype import dtypes, promote
from tinygrad.functional.graph_templates import memoised
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
        _refuse_negative(learning_rate=lr)
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
            _refuse_negative(learning_rate=rate)
            self.lr.assign([rate])

    def _numbers(self, values: list[float]) -> Tensor:
        """Numbers that change between steps, as exact as the widest update: a tensor with memory of its
        own."""
        widest = functools.reduce(promote, [p.dtype for p in self.params], dtypes.float32)
        return Tensor(values, device=self.device, dtype=widest, requires_grad=False)

    @staticmethod
    def _at(numbers: Tensor, p: Tensor) -> Tensor:
        """Such numbers on a parameter's device, in the type of its updates."""
        return numbers.to(p.device).cast(promote(p.dtype, dtypes.float32))

    def _state(self) -> list[Tensor]:
        """Zeros for each parameter, with memory of their own."""
        zeros = [p.empty_like(dtype=promote(p.dtype, dtypes.float32), requires_grad=False).assign(0)
                 for p in self.params]
        Tensor.realize(*zeros)
        return zeros

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Apply one update. A parameter whose `grad` is None keeps its value and its state, as in PyTorch."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """The tensors of one update, assigned but not realised: state, parameters, buffers."""
        grads = {i: p.grad.detach().cast(promote(p.dtype, dtypes.float32))
                 for i, p in enumerate(self.params) if p.grad is not None}
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


def _refuse_negative(**options: float) -> None:
    for name, value in options.items():
        if value < 0:
            raise ValueError(f"an optimizer takes a {name.replace('_', ' ')} >= 0, got {value}")


def _refuse_averages(b1: float, b2: float) -> None:
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


class LARS(Optimizer):
    """Gradient descent with momentum and a rate for each layer (You, Gitman and Ginsburg, 2017).

    With trust = tcoef * |p| / (|g| + weight_decay * |p|) (1 where a norm is 0, or where tcoef is 0), each
    step: g += weight_decay * p (`pre_wd`; otherwise p shrinks by 1 - lr * weight_decay), b = momentum * b +
    g, p -= lr * trust * b. `nesterov` uses g + momentum * b in place of b. `classic` multiplies the gradient
    by lr * trust before the momentum instead of after.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 0.001, momentum: float = 0.9,
                 weight_decay: float = 1e-4, ns_steps: int = 0,
                 ns_coefficients: tuple[float, float, float] | None = None, nesterov: bool = False,
                 classic: bool = True, pre_wd: bool = True, tcoef: float = 0.001,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        if ns_steps > 0 and ns_coefficients is None:
            raise ValueError("Newton-Schulz steps take ns_coefficients, three numbers")
        _refuse_negative(momentum=momentum, weight_decay=weight_decay)
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
        for i, g in grads.items():
            p = self.params[i]
            value = self._wide(p)
            rate = self._at(self.lr, p) * self._trust(value, g)
            if self.pre_wd and self.weight_decay:
                g = g + self.weight_decay * value
            if self.classic:
                g = g * rate
            if self.momentum:
                b = self.b[i].assign(self.momentum * self.b[i] + g)
                g = g + self.momentum * b if self.nesterov else b
            if self.ns_coefficients is not None and self.ns_steps > 0 and p.ndim > 1:
                g = orthogonalize(g, self.ns_steps, self.ns_coefficients)
            if not self.classic:
                g = g * rate
            if not self.pre_wd and self.weight_decay:
                value = value * (1 - self.weight_decay * self._at(self.lr, p))
            p.assign((value - g).cast(p.dtype))
        return self.b

    def _trust(self, value: Tensor, g: Tensor) -> Tensor | float:
        if not self.tcoef:
            return 1.0
        size, slope = value.square().sum().sqrt(), g.square().sum().sqrt()
        trust = self.tcoef * size / (slope + self.weight_decay * size)
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


def SGD(params: Iterable[Tensor], lr: float = 0.001, momentum: float = 0.0, weight_decay: float = 0.0,
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


def Muon(params: Iterable[Tensor], lr: float = 0.001, momentum: float = 0.95, weight_decay: float = 0.1,
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


class LAMB(Optimizer):
    """Adam with decoupled weight decay and a rate for each layer (You and others, 2019).

    m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g^2; u = m' / (sqrt(v') + eps) + weight_decay * p, with
    the bias-corrected m' = m / (1 - b1^t) and v' = v / (1 - b2^t); p -= lr * |p|/|u| * u. With `adam=True`, p
    -= lr * u: AdamW. `gradient_decay` times p is added to the gradient; with `amsgrad` the largest v so far
    takes its place (Reddi, Kale and Kumar, 2018).
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
                 eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False,
                 device: str | None = None, fused: bool = False, *, gradient_decay: float = 0.0,
                 amsgrad: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        _refuse_averages(b1, b2)
        _refuse_negative(weight_decay=min(weight_decay, gradient_decay), eps=eps)
        self.b1 = b1
        self.b2 = b2
        self.eps = eps
        self.weight_decay = weight_decay
        self.adam = adam
        self.gradient_decay = gradient_decay
        # 1 - b^t itself is kept, not b^t: next to 1, float32 would lose four of its seven digits. For each
        # parameter, because t counts the steps in which it had a gradient.
        self.correction1 = self._numbers([0.0] * len(self.params))
        self.correction2 = self._numbers([0.0] * len(self.params))
        self.m = self._state()
        self.v = self._state()
        self.largest = self._state() if amsgrad else []

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p, m, v = self.params[i], self.m[i], self.v[i]
            if self.gradient_decay:
                g = g + self.gradient_decay * self._wide(p)
            m.assign(_averaged(m, g, self.b1))
            v.assign(_averaged(v, g * g, self.b2))
            correction1, correction2 = self._at(self.correction1, p)[i], self._at(self.correction2, p)[i]
            if self.largest:
                v = self.largest[i].assign(self.largest[i].maximum(v))
            value = _adapted(self._wide(p), m, v, _averaged(correction1, 1.0, self.b1),
                             _averaged(correction2, 1.0, self.b2), self._at(self.lr, p), self.eps,
                             self.weight_decay, self.adam)
            p.assign(value.cast(p.dtype))
        for correction, b in ((self.correction1, self.b1), (self.correction2, self.b2)):
            self._advance(correction, _averaged(correction, 1.0, b), grads)
        return [self.correction1, self.correction2, *self.m, *self.v, *self.largest]


@memoised
def _averaged(old: Tensor, new: Tensor | float, b: float) -> Tensor:
    """The running average of what was and is."""
    return b * old + (1 - b) * new


@memoised
def _adapted(value: Tensor, m: Tensor, v: Tensor, correction1: Tensor, correction2: Tensor, rate: Tensor,
             eps: float, weight_decay: float, adam: bool) -> Tensor:
    """The next value of a parameter, with the new averages of its gradient and of that squared, and 1 - b^t
    for both; see `LAMB`."""
    update = m / correction1 / ((v / correction2).sqrt() + eps)
    if weight_decay:
        update = update + weight_decay * value
    if not adam:
        size, step = value.square().sum().sqrt(), update.square().sum().sqrt()
        rate = rate * ((size > 0) & (step > 0)).where(size / step, 1.0)
    return value - rate * update


Betas = tuple[float, float] | None


def Adam(params: Iterable[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
         eps: float = 1e-8, device: str | None = None, fused: bool = False, *, betas: Betas = None,
         weight_decay: float = 0.0, amsgrad: bool = False, maximize: bool = False) -> LAMB:
    """Adam (Kingma and Ba, 2014), as PyTorch's: p -= lr * m' / (sqrt(v') + eps), bias-corrected. `betas` is
    b1 and b2, as PyTorch has them; `weight_decay` times p is added to the gradient; with `amsgrad` the
    largest v so far takes its place."""
    b1, b2 = betas or (b1, b2)
    return LAMB(params, lr, b1, b2, eps, 0.0, True, device, fused, gradient_decay=weight_decay,
                amsgrad=amsgrad, maximize=maximize)


def AdamW(params: Iterable[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
          eps: float = 1e-8, weight_decay: float = 0.01, device: str | None = None,
          fused: bool = False, *, betas: Betas = None, amsgrad: bool = False, maximize: bool = False) -> LAMB:
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2017), as PyTorch's AdamW."""
    b1, b2 = betas or (b1, b2)
    return LAMB(params, lr, b1, b2, eps, weight_decay, True, device, fused, amsgrad=amsgrad,
                maximize=maximize)


class RMSprop(Optimizer):
    """v = alpha * v + (1 - alpha) * g^2; p -= lr * g / (sqrt(v) + eps) (Tieleman and Hinton, 2012), as
    PyTorch's. `weight_decay` times p is added to g; `centered` subtracts the square of the average of g from
    v; with `momentum`, b = momentum * b + the quotient takes its place."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        _refuse_negative(momentum=momentum, weight_decay=weight_decay, eps=eps)
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.v = self._state()
        self.b = self._state() if momentum else []
        self.means = self._state() if centered else []

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p, v = self.params[i], self.v[i]
            value = self._wide(p)
            if self.weight_decay:
                g = g + self.weight_decay * value
            v.assign(_averaged(v, g * g, self.alpha))
            spread: Tensor = v
            if self.means:
                spread = v - self.means[i].assign(_averaged(self.means[i], g, self.alpha)).square()
            update = g / (spread.sqrt() + self.eps)
            if self.momentum:
                update = self.b[i].assign(self.momentum * self.b[i] + update)
            p.assign((value - self._at(self.lr, p) * update).cast(p.dtype))
        return [*self.v, *self.b, *self.means]


class Adagrad(Optimizer):
    """v += g^2; p -= lr * g / (sqrt(v) + eps) (Duchi, Hazan and Singer, 2011), as PyTorch's. `weight_decay`
    times p is added to g."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01, *, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10, device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        _refuse_negative(weight_decay=weight_decay, eps=eps)
        self.weight_decay = weight_decay
        self.eps = eps
        self.v = self._state()
        for v in self.v:
            v.assign(initial_accumulator_value).realize()

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p = self.params[i]
            value = self._wide(p)
            if self.weight_decay:
                g = g + self.weight_decay * value
            v = self.v[i].assign(self.v[i] + g * g)
            p.assign((value - self._at(self.lr, p) * g / (v.sqrt() + self.eps)).cast(p.dtype))
        return self.v


class Adadelta(Optimizer):
    """v = rho * v + (1 - rho) * g^2; d = g * sqrt(u + eps) / sqrt(v + eps); u = rho * u + (1 - rho) * d^2; p
    -= lr * d (Zeiler, 2012), as PyTorch's. `weight_decay` times p is added to g."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0, device: str | None = None, fused: bool = False,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        _refuse_averages(rho, rho)
        _refuse_negative(weight_decay=weight_decay, eps=eps)
        self.rho = rho
        self.eps = eps
        self.weight_decay = weight_decay
        self.v = self._state()
        self.u = self._state()

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p, u = self.params[i], self.u[i]
            value = self._wide(p)
            if self.weight_decay:
                g = g + self.weight_decay * value
            v = self.v[i].assign(_averaged(self.v[i], g * g, self.rho))
            update = g * ((u + self.eps).sqrt() / (v + self.eps).sqrt())
            p.assign((value - self._at(self.lr, p) * update).cast(p.dtype))
            u.assign(_averaged(u, update * update, self.rho))
        return [*self.v, *self.u]


class _Adaptive(Optimizer):
    """m = b1 * m + (1 - b1) * g, and what a parameter is changed by for it. `weight_decay` times p is added
    to g; `decoupled_weight_decay`: p shrinks by 1 - lr * weight_decay instead."""

    def __init__(self, params: Iterable[Tensor], lr: float, betas: tuple[float, float], eps: float,
                 weight_decay: float, decoupled_weight_decay: bool, device: str | None, fused: bool,
                 maximize: bool) -> None:
        super().__init__(params, lr, device, fused, maximize)
        _refuse_averages(*betas)
        _refuse_negative(weight_decay=weight_decay, eps=eps)
        self.b1, self.b2 = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.is_decoupled = decoupled_weight_decay
        self.steps = self._numbers([0.0] * len(self.params))
        self.m = self._state()
        self.v = self._state()

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p, rate = self.params[i], self._at(self.lr, self.params[i])
            value = self._wide(p)
            if self.weight_decay and self.is_decoupled:
                value = value * (1 - rate * self.weight_decay)
            elif self.weight_decay:
                g = g + self.weight_decay * value
            self.m[i].assign(_averaged(self.m[i], g, self.b1))
            step = self._at(self.steps, p)[i] + 1
            p.assign((value - rate * self._update(i, g, step)).cast(p.dtype))
        others = self._numbers_advanced(grads)
        self._advance(self.steps, self.steps + 1, grads)
        return [self.steps, *others, *self.m, *self.v]

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        """What lr times is taken from a parameter in this step, its first being 1; `m` has its gradient by
        now, `v` is to be given it."""
        raise NotImplementedError

    @staticmethod
    def _correction(b: float, step: Tensor) -> Tensor:
        """1 - b^t, with all its digits for b next to 1."""
        return -(step * (math.log(b) if b else -math.inf)).expm1()

    def _numbers_advanced(self, grads: Collection[int]) -> list[Tensor]:
        """Other numbers that change from step to step, advanced."""
        return []

    def _squares(self, i: int, g: Tensor) -> Tensor:
        """v = b2 * v + (1 - b2) * g^2."""
        return self.v[i].assign(_averaged(self.v[i], g * g, self.b2))


class Adamax(_Adaptive):
    """m = b1 * m + (1 - b1) * g; v = max(b2 * v, |g| + eps); p -= lr / (1 - b1^t) * m / v (Kingma and Ba,
    2014, section 7.1), as PyTorch's. `weight_decay` times p is added to g."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.002, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, False, device, fused, maximize)

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        v = self.v[i].assign((self.b2 * self.v[i]).maximum(g.abs() + self.eps))
        return self.m[i] / self._correction(self.b1, step) / v


class NAdam(_Adaptive):
    """Adam with Nesterov's momentum (Dozat, 2016), as PyTorch's. With n(t) = b1 * (1 - 0.96^(t *
    momentum_decay) / 2), N the product of n(1) to n(t), and v' = v / (1 - b2^t): p -= lr * ((1 - n(t)) / (1 -
    N) * g + n(t + 1) / (1 - N n(t + 1)) * m) / (sqrt(v') + eps). `weight_decay` times p is added to g;
    `decoupled_weight_decay`: p shrinks by 1 - lr * weight_decay instead."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.002, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, momentum_decay: float = 0.004,
                 decoupled_weight_decay: bool = False, device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay, device, fused,
                         maximize)
        self.momentum_decay = momentum_decay
        self.products = self._numbers([1.0] * len(self.params))

    def _momentum(self, step: Tensor) -> Tensor:
        """n(t)."""
        return self.b1 * (1 - 0.5 * 0.96 ** (step * self.momentum_decay))

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        now, after = self._momentum(step), self._momentum(step + 1)
        product = self._at(self.products, self.params[i])[i] * now
        ahead = (1 - now) / (1 - product) * g + after / (1 - product * after) * self.m[i]
        return ahead / ((self._squares(i, g) / self._correction(self.b2, step)).sqrt() + self.eps)

    def _numbers_advanced(self, grads: Collection[int]) -> list[Tensor]:
        self._advance(self.products, self.products * self._momentum(self.steps + 1), grads)
        return [self.products]


class RAdam(_Adaptive):
    """Adam whose first steps, where few gradients say how these vary, are momentum alone (Liu and others,
    2020), as PyTorch's. With R = 2 / (1 - b2) - 1 and r = R - 2 t b2^t / (1 - b2^t): p -= lr * m' * sqrt((r -
    4) (r - 2) R / ((R - 4) (R - 2) r)) * sqrt(1 - b2^t) / (sqrt(v) + eps) from r > 5 on, before that lr * m'.
    `weight_decay` times p is added to g; `decoupled_weight_decay`: p shrinks by 1 - lr * weight_decay
    instead."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.001, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, decoupled_weight_decay: bool = False,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay, device, fused,
                         maximize)
        self.sums = self._numbers([0.0] * len(self.params))
        """1 + 3 b2 + 5 b2^2 + ..., of t terms: r is that over (1 - b2^t) / (1 - b2), where its formula would
        leave float32 three digits"""

    def _summed(self, sums: Tensor, step: Tensor) -> Tensor:
        """These sums, with the term of this step."""
        return sums + (2 * step - 1) * self.b2 ** (step - 1)

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        most, c2 = 2 / (1 - self.b2) - 1, self._correction(self.b2, step)
        known = self._summed(self._at(self.sums, self.params[i])[i], step) * (1 - self.b2) / c2
        is_known = known > 5
        ratio = (known - 4) * (known - 2) * most / ((most - 4) * (most - 2) * known)
        scale = (is_known.where(ratio, 0) * c2).sqrt() / (self._squares(i, g).sqrt() + self.eps)
        return self.m[i] / self._correction(self.b1, step) * is_known.where(scale, 1)

    def _numbers_advanced(self, grads: Collection[int]) -> list[Tensor]:
        self._advance(self.sums, self._summed(self.sums, self.steps + 1), grads)
        return [self.sums]
