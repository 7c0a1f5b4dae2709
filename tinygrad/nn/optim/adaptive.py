"""A rate for each item by the squares of its gradients: RMSprop, Adagrad, Adadelta; Adafactor, which keeps
those of rows and columns alone."""
from __future__ import annotations

from tinygrad.dtype import DType, dtypes, promote
from tinygrad.nn.optim.optimizer import Optimizer, Parameters, averaged, refuse_averages, refuse_negative
from tinygrad.tensor import Tensor


class RMSprop(Optimizer):
    """v = alpha * v + (1 - alpha) * g^2; p -= lr * g / (sqrt(v) + eps) (Tieleman and Hinton, 2012), as
    PyTorch's. `weight_decay` times p is added to g; `centered` subtracts the square of the average of g from
    v; with `momentum`, b = momentum * b + the quotient takes its place."""

    def __init__(self, params: Parameters, lr: float = 0.01, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        refuse_negative(momentum=momentum, weight_decay=weight_decay, eps=eps)
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.v = self._state()
        self.b = self._state() if momentum else []
        self.means = self._state() if centered else []

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        has_momentum = self._has_momentum()
        if has_momentum and not self.b:  # it was given later
            self.b = self._state()
        for i, g in grads.items():
            p, v = self.params[i], self.v[i]
            value = self._wide(p)
            if self.weight_decay:
                g = g + self.weight_decay * value
            v.assign(averaged(v, g * g, self.alpha))
            spread: Tensor = v
            if self.means:
                spread = v - self.means[i].assign(averaged(self.means[i], g, self.alpha)).square()
            update = g / (spread.sqrt() + self.eps)
            if has_momentum:
                update = self.b[i].assign(self._option("momentum", p) * self.b[i] + update)
            p.assign((value - self._at(self.lr, p) * update).cast(p.dtype))
        return [*self.v, *self.b, *self.means]


class Adagrad(Optimizer):
    """v += g^2; p -= lr * g / (sqrt(v) + eps) (Duchi, Hazan and Singer, 2011), as PyTorch's. `weight_decay`
    times p is added to g."""

    def __init__(self, params: Parameters, lr: float = 0.01, *, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10, device: str | None = None,
                 fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        refuse_negative(weight_decay=weight_decay, eps=eps)
        self.weight_decay = weight_decay
        self.eps = eps
        self.v = self._state(initial_accumulator_value)

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

    def __init__(self, params: Parameters, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0, device: str | None = None, fused: bool = False,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        refuse_averages(rho, rho)
        refuse_negative(weight_decay=weight_decay, eps=eps)
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
            v = self.v[i].assign(averaged(self.v[i], g * g, self.rho))
            update = g * ((u + self.eps).sqrt() / (v + self.eps).sqrt())
            p.assign((value - self._at(self.lr, p) * update).cast(p.dtype))
            u.assign(averaged(u, update * update, self.rho))
        return [*self.v, *self.u]


class Adafactor(Optimizer):
    """Adam's division by the root of squared gradients, whose averages are kept for the rows and columns of
    matrices, the last two axes, instead of every item (Shazeer and Stern, 2018), as PyTorch's.

    In step t, with c = t ** beta2_decay: r += c * (mean of g^2 over columns - r), s likewise over rows, v = r
    s / max(mean of r, eps[0]); of a parameter of one axis v += c * (g^2 - v). u = g / max(sqrt(v), eps[0]); p
    -= min(lr, 1 / sqrt(t)) * max(eps[1], rms(p)) * u / max(1, rms(u) / d). `eps[0]` is that of p's dtype
    unless given. Weight decay shrinks p by 1 - lr * weight_decay.
    """

    def __init__(self, params: Parameters, lr: float = 0.01, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
                 device: str | None = None, fused: bool = False, maximize: bool = False) -> None:
        super().__init__(params, lr, device, fused, maximize)
        if beta2_decay > 0 or d < 1:
            raise ValueError(f"Adafactor takes beta2_decay <= 0 and d >= 1, got {beta2_decay} and {d}")
        refuse_negative(weight_decay=weight_decay, eps=min(eps[0] or 0, eps[1]))
        self.beta2_decay = beta2_decay
        self.eps = eps
        self.d = d
        self.weight_decay = weight_decay
        self.steps = self._numbers([0.0] * len(self.params))
        self.v = [[self._zeros(p, shape) for shape in self._shapes(p)] for p in self.params]

    @staticmethod
    def _shapes(p: Tensor) -> list[tuple[int, ...]]:
        """Of the averages that are kept of a parameter."""
        return [(*p.shape[:-1], 1), (*p.shape[:-2], 1, p.shape[-1])] if p.ndim > 1 else [p.shape]

    @staticmethod
    def _zeros(p: Tensor, shape: tuple[int, ...]) -> Tensor:
        return Tensor.empty(shape, dtype=promote(p.dtype, dtypes.float32), device=p.device,
                            requires_grad=False).assign(0).realize()

    def _step(self, grads: dict[int, Tensor]) -> list[Tensor]:
        for i, g in grads.items():
            p = self.params[i]
            step, rate, value = self._at(self.steps, p)[i] + 1, self._at(self.lr, p), self._wide(p)
            size = rate.minimum(step.rsqrt()) * _root_mean_square(value).maximum(self.eps[1])
            if self.weight_decay:
                value = value * (1 - rate * self.weight_decay)
            least = _precision(p.dtype) if self.eps[0] is None else self.eps[0]
            update = g / self._squares(i, g, step ** self.beta2_decay, least).maximum(least * least).sqrt()
            shrunk = size / (_root_mean_square(update) / self.d).maximum(1)
            p.assign((value - shrunk * update).cast(p.dtype))
        self._advance(self.steps, self.steps + 1, grads)
        return [self.steps, *(v for averages in self.v for v in averages)]

    def _squares(self, i: int, g: Tensor, share: Tensor, least: float) -> Tensor:
        """v, of the averages with this gradient."""
        square = g * g
        means = [square.mean(-1, keepdim=True), square.mean(-2, keepdim=True)] if g.ndim > 1 else [square]
        kept = [v.assign(v + (mean - v) * share) for v, mean in zip(self.v[i], means, strict=True)]
        if len(kept) == 1:
            return kept[0]
        rows, columns = kept
        return rows * columns / rows.mean(-2, keepdim=True).maximum(least)


def _root_mean_square(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def _precision(dtype: DType) -> float:
    """The distance of 1 to the next number."""
    return float(2.0 ** -dtypes.finfo(dtype)[1])
