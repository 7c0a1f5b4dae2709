"""A kernel with a backward pass of its own: checked, counted in kernels, and trained through.

    python3 examples/custom_gradient.py [--steps N] [--width N] [--seed N] [--out custom_gradient.png]

Kernels are written with tensors and fused; `Function` gives what is fused a backward pass. `Swish`, x *
sigmoid(x), has the derivative that it should have, from its input alone: it is compared with differences in
float64, and forward and backward are one kernel each. `Spike` is 1 above 0 and 0 below: its derivative is 0
nearly everywhere, so nothing is learned through it. Its backward pass is the slope of a smooth step instead
(a surrogate gradient, Neftci et al. 2019). A network of spikes learns two spirals, with it and without.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from options import parse

from tinygrad import Function, GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class Swish(Function):
    """x * sigmoid(x), which keeps x alone for its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        self.save_for_backward(x)
        return x * x.sigmoid()

    def backward(self, gradient: Tensor) -> Tensor:
        x, = self.saved_tensors
        assert x is not None
        return gradient * x.sigmoid() * (1 + x * (-x).sigmoid())


class Spike(Function):
    """1 where x > 0, else 0. Backward: as if it were a step of slope 1 / (1 + 5 |x|)2."""

    def forward(self, x: Tensor) -> Tensor:
        self.save_for_backward(x)
        return (x > 0).float()

    def backward(self, gradient: Tensor) -> Tensor:
        x, = self.saved_tensors
        assert x is not None
        return gradient / (1 + 5 * x.abs()).square()


def largest_error(function: Callable[[Tensor], Tensor], step: float = 1e-5) -> float:
    """Of a gradient, beside central differences in float64."""
    points = np.linspace(-6, 6, 1001)
    x = Tensor(points, dtype=dtypes.float64, requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None
    above, below = (function(Tensor(points + d, dtype=dtypes.float64)).numpy() for d in (step, -step))
    return float(np.abs(x.grad.numpy() - (above - below) / (2 * step)).max())


def kernels(function: Callable[[Tensor], Tensor], count: int = 1 << 20) -> tuple[int, int]:
    """How many kernels the value of so many items takes, and their gradient alone."""
    x = Tensor.rand(count, requires_grad=True).realize()
    GlobalCounters.reset()
    y = function(x).realize()
    forward, above = GlobalCounters.kernel_count, Tensor.rand(count).realize()
    GlobalCounters.reset()
    y.gradient(x, gradient=above)[0].realize()
    return forward, GlobalCounters.kernel_count


def spirals(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points (count, 2) of two spirals, and which of the two each belongs to."""
    along, which = np.sqrt(rng.uniform(0.02, 1, count)), rng.integers(0, 2, count)
    angle = 3 * np.pi * along + np.pi * which
    points = np.stack([along * np.cos(angle), along * np.sin(angle)], 1) + rng.normal(0, 0.015, (count, 2))
    return points.astype(np.float32), which.astype(np.int32)


class Network:
    """Points (N, 2) to the scores of two spirals (N, 2), by two layers of what `spike` says."""

    def __init__(self, width: int, spike: Callable[[Tensor], Tensor]) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Linear(2, width), lambda x: spike(x * 4), nn.Linear(width, width), spike, nn.Linear(width, 2)]

    def __call__(self, points: Tensor) -> Tensor:
        return points.sequential(self.layers)


def train(name: str, model: Network, steps: int, rng: np.random.Generator) -> float:
    """Returns the share of new points that are told apart."""
    optimizer = optim.Adam(state.get_parameters(model), lr=3e-3)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    with tqdm(total=steps, desc=name, unit="step") as bar:
        for _ in range(steps):
            loss = step(*map(Tensor, spirals(256, rng))).item()
            bar.set_postfix(loss=f"{loss:.3f}")
            bar.update()
    x, y = spirals(2000, np.random.default_rng(1))
    return float((model(Tensor(x)).argmax(1).numpy() == y).mean())


def draw(path: str, models: dict[str, Network]) -> None:
    """What each model says of the plane, with points of both spirals."""
    from matplotlib import pyplot as plt

    axis = np.linspace(-1.1, 1.1, 200, dtype=np.float32)
    plane = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    points, which = spirals(400, np.random.default_rng(2))
    places = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")[1]
    for place, (name, model) in zip(places, models.items()):
        share = model(Tensor(plane)).softmax()[:, 1].numpy().reshape(200, 200)
        place.imshow(share, extent=(-1.1, 1.1, -1.1, 1.1), origin="lower", cmap="RdBu", vmin=0, vmax=1)
        place.scatter(*points.T, c=which, cmap="RdBu", s=12, edgecolors="black", linewidths=0.5)
        place.set(title=name, xticks=[], yticks=[])
    plt.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description="A function with a backward pass of its own.")
    parser.add_argument("--steps", type=int, default=2000, help="of training (default: 2000)")
    parser.add_argument("--width", type=int, default=16, help="neurons of a layer (default: 16)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default="custom_gradient.png", help="the picture to save")
    args = parse(parser, needs=["matplotlib"], steps=1, width=1)
    print(f"Swish: largest error beside differences {largest_error(Swish.apply):.1e}; "
          f"kernels forward, backward: {kernels(Swish.apply)}")
    models = {}
    for name, spike in (("surrogate gradient", Spike.apply), ("derivative", lambda x: (x > 0).float())):
        Tensor.manual_seed(args.seed)
        models[name] = Network(args.width, spike)
        share = train(name, models[name], args.steps, np.random.default_rng(args.seed))
        print(f"{name}: {share:.1%} of new points told apart")
    draw(args.out, models)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
