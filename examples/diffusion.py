"""A diffusion model of handwritten digits, which draws each digit on demand.

    python3 examples/diffusion.py [--steps N] [--batch N] [--draws N] [--seed N] [--out diffusion.png]

An image x is mixed with noise e as a(t) x + s(t) e, from t = 0, the image, to t = 1, noise alone (a cosine
schedule, Nichol and Dhariwal 2021). A U-Net that is told t and the digit learns to say e (Ho et al. 2020).
A digit is drawn from noise in a few steps of the deterministic sampler DDIM (Song et al. 2020): each takes
the noise that the network says out, and puts less of it back. The picture has a row of draws for each digit.
"""
from __future__ import annotations

import argparse
import itertools
import math
from typing import Any, TypeAlias

import numpy as np
from digits import load_data
from options import parse

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
WIDTH = 64
"""numbers that the time and the digit are told in"""


class Block:
    """Two convolutions over `out` channels beside a shortcut, with the time and the digit in between."""

    def __init__(self, channels: int, out: int) -> None:
        self.first, self.second = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norm, self.told = nn.GroupNorm(8, out), nn.Linear(WIDTH, out)
        self.shortcut = nn.Conv2d(channels, out, 1)

    def __call__(self, x: Tensor, told: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)) + self.told(told)[:, :, None, None]
        return self.second(hidden.silu()) + self.shortcut(x)


class Network:
    """Noisy images (N, 1, 28, 28), their times (N,) and digits (N,) to the noise (N, 1, 28, 28)."""

    def __init__(self) -> None:
        self.digit, self.time = nn.Embedding(10, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down = [Block(1, 32), Block(32, 64)]
        self.middle = Block(64, 64)
        self.up = [Block(64 + 64, 64), Block(64 + 32, 32)]
        self.last = nn.Conv2d(32, 1, 3, padding=1)

    def __call__(self, x: Tensor, time: Tensor, digit: Tensor) -> Tensor:
        angles = time.unsqueeze(1) * (2.0 ** Tensor.linspace(0, 9, WIDTH // 2))
        told = (self.time(angles.sin().cat(angles.cos(), dim=1)) + self.digit(digit)).silu()
        skipped = []
        for block in self.down:
            x = block(x, told)
            skipped.append(x)
            x = x.avg_pool2d(2)
        x = self.middle(x, told)
        for block in self.up:
            x = x.interpolate(skipped[-1].shape[2:], mode="nearest").cat(skipped.pop(), dim=1)
            x = block(x, told)
        return self.last(x.silu())


def mixed(x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Images with as much noise as there is at their times."""
    angle = time.reshape(-1, 1, 1, 1) * (math.pi / 2)
    return angle.cos() * x + angle.sin() * noise


def loss_of(model: Network, x: Tensor, digits: Tensor) -> Tensor:
    """The mean squared error of the noise that the model says, at random times; 1 where it says zero."""
    time, noise = Tensor.rand(x.shape[0]), Tensor.randn(*x.shape)
    return (model(mixed(x, noise, time), time, digits) - noise).square().mean()


def train(model: Network, images: Array, digits: np.ndarray[Any, Any], steps: int, batch: int,
          rng: np.random.Generator) -> None:
    optimizer = optim.Adam(state.get_parameters(model), lr=2e-3)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y).backward()
        return loss.realize(*optimizer.schedule_step())

    losses = []
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for number in range(steps):
            chosen = rng.integers(0, len(images), batch)
            optimizer.lr.assign([2e-3 * min(1, (steps - number) / (0.3 * steps))]).realize()
            losses.append(step(Tensor(images[chosen]), Tensor(digits[chosen])).item())
            bar.set_postfix(loss=f"{np.mean(losses[-50:]):.3f}")
            bar.update()


def sample(model: Network, digits: np.ndarray[Any, Any], draws: int) -> Array:
    """An image of each of these digits, from noise in `draws` steps."""
    @TinyJit
    def less_noise(x: Tensor, now: Tensor, after: Tensor, y: Tensor) -> Tensor:
        noise = model(x, now, y)
        angle = now.reshape(-1, 1, 1, 1) * (math.pi / 2)
        image = ((x - angle.sin() * noise) / angle.cos()).clip(-1, 1)
        noise = (x - angle.cos() * image) / angle.sin()
        return mixed(image, noise, after).realize()

    y, x = Tensor(digits), Tensor.randn(len(digits), 1, 28, 28).realize()
    times = np.linspace(0.99, 0, draws + 1, dtype=np.float32)
    for now, after in itertools.pairwise(times):
        x = less_noise(x, Tensor(np.full(len(digits), now)), Tensor(np.full(len(digits), after)), y)
    return np.asarray(x.numpy()[:, 0], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="A diffusion model of handwritten digits.")
    parser.add_argument("--steps", type=int, default=2000, help="of training (default: 2000)")
    parser.add_argument("--batch", type=int, default=64, help="images of a step (default: 64)")
    parser.add_argument("--draws", type=int, default=30, help="steps from noise to an image (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default="diffusion.png", help="the picture to save")
    args = parse(parser, needs=["PIL"], steps=1, batch=1, draws=1)
    name, x_train, y_train, x_test, y_test = load_data()
    train_images, test_images = ((x / 127.5 - 1).astype(np.float32) for x in (x_train, x_test))
    print(f"{name}: {len(train_images)} images")
    Tensor.manual_seed(args.seed)
    model = Network()
    train(model, train_images, y_train, args.steps, args.batch, np.random.default_rng(args.seed))
    loss = loss_of(model, Tensor(test_images[:500]), Tensor(y_test[:500])).item()
    print(f"test images: squared error {loss:.3f} of the noise, 1 by saying nothing")
    drawn = sample(model, np.repeat(np.arange(10, dtype=np.int32), 12), args.draws)
    from PIL import Image

    pixels = ((drawn + 1) * 127.5).clip(0, 255).astype(np.uint8).reshape(10, 12, 28, 28)
    Image.fromarray(pixels.transpose(0, 2, 1, 3).reshape(280, 336)).resize((672, 560)).save(args.out)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
