"""Adam and its kin: a running average of gradients over the root of one of their squares."""
from __future__ import annotations

import math
from collections.abc import Collection

from tinygrad.functional.graph_templates import memoised
from tinygrad.nn.optim.optimizer import (
    Optimizer,
    Parameters,
    averaged,
    option_written,
    refuse_averages,
    refuse_negative,
    takes_groups,
)
from tinygrad.tensor import Tensor


class LAMB(Optimizer):
    """Adam with decoupled weight decay and a rate for each layer (You and others, 2019).

    m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g^2; u = m' / (sqrt(v') + eps) + weight_decay * p, with
    the bias-corrected m' = m / (1 - b1^t) and v' = v / (1 - b2^t); p -= lr * |p|/|u| * u. With `adam=True`, p
    -= lr * u: AdamW. `gradient_decay` times p is added to the gradient; with `amsgrad` the largest v so far
    takes its place (Reddi, Kale and Kumar, 2018).
    """

    def __init__(self, params: Parameters, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
                 eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False,
                 device: str | None = None, fused: bool = False, *, gradient_decay: float = 0.0,
                 amsgrad: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        refuse_averages(b1, b2)
        refuse_negative(weight_decay=min(weight_decay, gradient_decay), eps=eps)
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
            value, decay = self._wide(p), self.gradient_decay
            b1, b2 = self._option("b1", p), self._option("b2", p)
            for state, after in zip((m, v), _averages(m, v, g, value, decay, b1, b2), strict=True):
                state.assign(after)
            correction1, correction2 = self._at(self.correction1, p)[i], self._at(self.correction2, p)[i]
            if self.largest:
                v = self.largest[i].assign(self.largest[i].maximum(v))
            value = _adapted(value, m, v, correction1, correction2, self._at(self.lr, p), b1, b2, self.eps,
                             self.weight_decay, self.adam)
            p.assign(value.cast(p.dtype))
        for correction, b in ((self.correction1, self.b1), (self.correction2, self.b2)):
            self._advance(correction, averaged(correction, 1.0, b), grads)
        return [self.correction1, self.correction2, *self.m, *self.v, *self.largest]


    def set_option(self, name: str, value: float) -> None:
        if name in ("b1", "b2"):  # of b and t alone, as PyTorch has it, whatever b was in the steps before
            correction = self.correction1 if name == "b1" else self.correction2
            before = option_written(vars(self)[name])
            if before > 0 and value > 0:
                power = math.log(value) / math.log(before)
                correction.assign(-(power * (-correction).log1p()).expm1()).realize()
        super().set_option(name, value)


@memoised
def _averages(m: Tensor, v: Tensor, g: Tensor, value: Tensor, decay: float, b1: float | Tensor,
              b2: float | Tensor) -> tuple[Tensor, Tensor]:
    """The next averages of a gradient, to which `decay` times the value is added, and of that squared."""
    if decay:
        g = g + decay * value
    return averaged(m, g, b1), averaged(v, g * g, b2)


@memoised
def _adapted(value: Tensor, m: Tensor, v: Tensor, correction1: Tensor, correction2: Tensor, rate: Tensor,
             b1: float | Tensor, b2: float | Tensor, eps: float, weight_decay: float, adam: bool) -> Tensor:
    """The next value of a parameter, with the new averages of its gradient and of that squared, and the last
    1 - b^t for both; see `LAMB`."""
    m = m / averaged(correction1, 1.0, b1)
    update = m / ((v / averaged(correction2, 1.0, b2)).sqrt() + eps)
    if weight_decay:
        update = update + weight_decay * value
    if not adam:
        size, step = value.square().sum().sqrt(), update.square().sum().sqrt()
        rate = rate * ((size > 0) & (step > 0)).where(size / step, 1.0)
    return value - rate * update


Betas = tuple[float, float] | None


@takes_groups
def Adam(params: Parameters, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
         eps: float = 1e-8, device: str | None = None, fused: bool = False, *, betas: Betas = None,
         weight_decay: float = 0.0, amsgrad: bool = False, maximize: bool = False) -> LAMB:
    """Adam (Kingma and Ba, 2014), as PyTorch's: p -= lr * m' / (sqrt(v') + eps), bias-corrected. `betas` is
    b1 and b2, as PyTorch has them; `weight_decay` times p is added to the gradient; with `amsgrad` the
    largest v so far takes its place."""
    b1, b2 = betas or (b1, b2)
    return LAMB(params, lr, b1, b2, eps, 0.0, True, device, fused, gradient_decay=weight_decay,
                amsgrad=amsgrad, maximize=maximize)


@takes_groups
def AdamW(params: Parameters, lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
          eps: float = 1e-8, weight_decay: float = 0.01, device: str | None = None,
          fused: bool = False, *, betas: Betas = None, amsgrad: bool = False, maximize: bool = False) -> LAMB:
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2017), as PyTorch's AdamW."""
    b1, b2 = betas or (b1, b2)
    return LAMB(params, lr, b1, b2, eps, weight_decay, True, device, fused, amsgrad=amsgrad,
                maximize=maximize)


class _Adaptive(Optimizer):
    """m = b1 * m + (1 - b1) * g, and what a parameter is changed by for it. `weight_decay` times p is added
    to g; `decoupled_weight_decay`: p shrinks by 1 - lr * weight_decay instead."""

    def __init__(self, params: Parameters, lr: float, betas: tuple[float, float], eps: float,
                 weight_decay: float, decoupled_weight_decay: bool, device: str | None, fused: bool,
                 maximize: bool) -> None:
        super().__init__(params, lr, device, fused, maximize)
        refuse_averages(*betas)
        refuse_negative(weight_decay=weight_decay, eps=eps)
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
            self.m[i].assign(averaged(self.m[i], g, self._option("b1", p)))
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
    def _correction(b: float | Tensor, step: Tensor) -> Tensor:
        """1 - b^t, with all its digits for b next to 1."""
        logarithm = b.log() if isinstance(b, Tensor) else math.log(b) if b else -math.inf
        return -(step * logarithm).expm1()

    def _numbers_advanced(self, grads: Collection[int]) -> list[Tensor]:
        """Other numbers that change from step to step, advanced."""
        return []

    def _squares(self, i: int, g: Tensor) -> Tensor:
        """v = b2 * v + (1 - b2) * g^2."""
        return self.v[i].assign(averaged(self.v[i], g * g, self.b2))


class Adamax(_Adaptive):
    """m = b1 * m + (1 - b1) * g; v = max(b2 * v, |g| + eps); p -= lr / (1 - b1^t) * m / v (Kingma and Ba,
    2014, section 7.1), as PyTorch's. `weight_decay` times p is added to g."""

    def __init__(self, params: Parameters, lr: float = 0.002, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, False, device, fused, maximize)

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        v = self.v[i].assign((self.b2 * self.v[i]).maximum(g.abs() + self.eps))
        return self.m[i] / self._correction(self._option("b1", self.params[i]), step) / v


class NAdam(_Adaptive):
    """Adam with Nesterov's momentum (Dozat, 2016), as PyTorch's. With n(t) = b1 * (1 - 0.96^(t *
    momentum_decay) / 2), N the product of n(1) to n(t), and v' = v / (1 - b2^t): p -= lr * ((1 - n(t)) / (1 -
    N) * g + n(t + 1) / (1 - N n(t + 1)) * m) / (sqrt(v') + eps). `weight_decay` times p is added to g;
    `decoupled_weight_decay`: p shrinks by 1 - lr * weight_decay instead."""

    def __init__(self, params: Parameters, lr: float = 0.002, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, momentum_decay: float = 0.004,
                 decoupled_weight_decay: bool = False, device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay, device, fused,
                         maximize)
        self.momentum_decay = momentum_decay
        self.products = self._numbers([1.0] * len(self.params))

    def _momentum(self, step: Tensor, b1: float | Tensor) -> Tensor:
        """n(t)."""
        return b1 * (1 - 0.5 * 0.96 ** (step * self.momentum_decay))

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        b1 = self._option("b1", self.params[i])
        now, after = self._momentum(step, b1), self._momentum(step + 1, b1)
        product = self._at(self.products, self.params[i])[i] * now
        ahead = (1 - now) / (1 - product) * g + after / (1 - product * after) * self.m[i]
        return ahead / ((self._squares(i, g) / self._correction(self.b2, step)).sqrt() + self.eps)

    def _numbers_advanced(self, grads: Collection[int]) -> list[Tensor]:
        self._advance(self.products, self.products * self._momentum(self.steps + 1, self.b1), grads)
        return [self.products]


class RAdam(_Adaptive):
    """Adam whose first steps, where few gradients say how these vary, are momentum alone (Liu and others,
    2020), as PyTorch's. With R = 2 / (1 - b2) - 1 and r = R - 2 t b2^t / (1 - b2^t): p -= lr * m' * sqrt((r -
    4) (r - 2) R / ((R - 4) (R - 2) r)) * sqrt(1 - b2^t) / (sqrt(v) + eps) from r > 5 on, before that lr * m'.
    `weight_decay` times p is added to g; `decoupled_weight_decay`: p shrinks by 1 - lr * weight_decay
    instead."""

    def __init__(self, params: Parameters, lr: float = 0.001, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, decoupled_weight_decay: bool = False,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay, device, fused,
                         maximize)
        self.sums = self._numbers([0.0] * len(self.params))
        """1 + 3 b2 + 5 b2^2 + ..., of t terms: r is that over (1 - b2^t) / (1 - b2), where its formula would
        leave float32 three digits"""

    def set_option(self, name: str, value: float) -> None:
        if name == "b2" and value != self.b2:
            raise ValueError("the second beta of RAdam stays: it keeps a sum of its powers")
        super().set_option(name, value)

    def _summed(self, sums: Tensor, step: Tensor) -> Tensor:
        """These sums, with the term of this step."""
        return sums + (2 * step - 1) * self.b2 ** (step - 1)

    def _update(self, i: int, g: Tensor, step: Tensor) -> Tensor:
        most, c2 = 2 / (1 - self.b2) - 1, self._correction(self.b2, step)
        known = self._summed(self._at(self.sums, self.params[i])[i], step) * (1 - self.b2) / c2
        is_known = known > 5
        ratio = (known - 4) * (known - 2) * most / ((most - 4) * (most - 2) * known)
        scale = (is_known.where(ratio, 0) * c2).sqrt() / (self._squares(i, g).sqrt() + self.eps)
        b1 = self._option("b1", self.params[i])
        return self.m[i] / self._correction(b1, step) * is_known.where(scale, 1)

    def _numbers_advanced(self, grads: Collection[int]) -> list[Tensor]:
        self._advance(self.sums, self._summed(self.sums, self.steps + 1), grads)
        return [self.sums]
