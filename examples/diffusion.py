"""A diffusion model of handwritten digits, which draws each digit on demand.

    python3 examples/diffusion.py [--steps N] [--batch N] [--draws N] [--seed N] [--out diffusion.png]

An image x is mixed with noise e as cos(a) x + sin(a) e: from the angle a = 0, the image, to a quarter turn,
noise alone (a cosine schedule, Nichol and Dhariwal 2021). A U-Net that is told a and the digit learns where
the mix goes as the angle grows, v = cos(a) e - sin(a) x (Salimans and Ho 2022): a mix and its v give x and e.
A digit is drawn from noise in a few steps of the deterministic sampler DDIM (Song et al. 2020): each finds x
and e, and mixes them anew at a smaller angle. The picture has a row of draws for each digit.
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

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
WIDTH = 64  # numbers that the angle and the digit are told in
NO_DIGIT = 10  # told in place of a tenth of the digits, so that draws can be led away from just any digit


class Block:
    """Two convolutions over `out` channels beside a shortcut, with the angle and the digit in between."""

    def __init__(self, channels: int, out: int) -> None:
        self.first, self.second = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norm, self.told = nn.GroupNorm(8, out), nn.Linear(WIDTH, out)
        self.shortcut = nn.Conv2d(channels, out, 1)

    def __call__(self, x: Tensor, told: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)) + self.told(told)[:, :, None, None]
        return self.second(hidden.silu()) + self.shortcut(x)


class Network:
    """Mixes (N, 1, 28, 28), their angles (N,) and digits (N,) to their v (N, 1, 28, 28)."""

    def __init__(self) -> None:
        self.digit, self.angle = nn.Embedding(NO_DIGIT + 1, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down = [Block(4, 32), Block(32, 64)]
        self.middle = Block(64, 128)
        self.up = [Block(128 + 64, 64), Block(64 + 32, 32)]
        self.last = nn.Conv2d(32, 4, 1)

    def __call__(self, x: Tensor, angle: Tensor, digit: Tensor) -> Tensor:
        waves = angle.unsqueeze(1) * (2.0 ** Tensor.linspace(0, 5, WIDTH // 2))
        told = (self.angle(waves.sin().cat(waves.cos(), dim=1)) + self.digit(digit)).silu()
        # Four pixels are the channels of one: a quarter of the work, and convolutions see twice as far.
        x = x.reshape(-1, 14, 2, 14, 2).permute(0, 2, 4, 1, 3).flatten(1, 2)
        skipped = []
        for block in self.down:
            x = block(x, told)
            skipped.append(x)
            x = x.avg_pool2d(2)
        x = self.middle(x, told)
        for block in self.up:
            x = block(x.interpolate(skipped[-1].shape[2:], mode="nearest").cat(skipped.pop(), dim=1), told)
        return self.last(x.silu()).reshape(-1, 2, 2, 14, 14).permute(0, 3, 1, 4, 2).reshape(-1, 1, 28, 28)


def turned(x: Tensor, y: Tensor, angle: Tensor) -> Tensor:
    """The mix of x and y at these angles: x at 0, y at a quarter turn."""
    return angle.cos().reshape(-1, 1, 1, 1) * x + angle.sin().reshape(-1, 1, 1, 1) * y


def loss_of(model: Network, x: Tensor, digits: Tensor) -> Tensor:
    """The mean squared error of v at random angles."""
    angle, noise = Tensor.rand(x.shape[0]) * (math.pi / 2), Tensor.randn(*x.shape)
    return (model(turned(x, noise, angle), angle, digits) - turned(noise, -x, angle)).square().mean()


def train(model: Network, images: Array, digits: Array, steps: int, batch: int, seed: int) -> None:
    """Train `model`. What it keeps are means of its weights, mostly over the last fifteenth of the steps."""
    rng, weights = np.random.default_rng(seed), state.get_parameters(model)
    means = [weight.detach().clone().realize() for weight in weights]
    optimizer = optim.Adam(weights)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, (Tensor.rand(batch) < 0.1).where(NO_DIGIT, y)).backward()
        updates = optimizer.schedule_step()
        for mean, weight in zip(means, weights, strict=True):
            mean.assign(mean + (weight.detach() - mean) * min(1, 15 / steps))
        return loss.realize(*updates, *means)

    losses = []
    for number in (bar := tqdm(range(steps), desc="training", unit="step")):
        optimizer.lr.assign([2e-3 * min(1, (number + 1) / 100, 1.3 * (1 - number / steps))]).realize()
        chosen = rng.integers(0, len(images), batch)
        losses.append(step(Tensor(images[chosen]), Tensor(digits[chosen])).item())
        bar.set_postfix(loss=f"{np.mean(losses[-50:]):.3f}")
    Tensor.realize(*(weight.assign(mean) for mean, weight in zip(means, weights, strict=True)))


def sample(model: Network, digits: Array, draws: int, guidance: float) -> Array:
    """An image of each of these digits, from noise in `draws` steps. Each goes `guidance` times the way from
    no digit to the digit (classifier-free guidance, Ho and Salimans 2022)."""
    @TinyJit
    def less_noise(x: Tensor, now: Tensor, after: Tensor, y: Tensor) -> Tensor:
        told, untold = model(x, now, y), model(x, now, Tensor.full(y.shape, NO_DIGIT, dtype=y.dtype))
        v = untold + guidance * (told - untold)
        image, angle = turned(x, -v, now).clip(-1, 1), now.reshape(-1, 1, 1, 1)
        noise = (x - angle.cos() * image) / angle.sin()  # of the clipped image: v's noise draws worse digits
        return turned(image, noise, after).realize()

    y, x = Tensor(digits), Tensor.randn(len(digits), 1, 28, 28).realize()
    for now, after in itertools.pairwise(np.linspace(math.pi / 2, 0, draws + 1, dtype=np.float32)):
        x = less_noise(x, Tensor(np.full(len(digits), now)), Tensor(np.full(len(digits), after)), y)
    return np.asarray(x.numpy()[:, 0], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="A diffusion model of handwritten digits.")
    parser.add_argument("--steps", type=int, default=3000, help="of training (default: 3000)")
    parser.add_argument("--batch", type=int, default=32, help="images of a step (default: 32)")
    parser.add_argument("--draws", type=int, default=30, help="steps from noise to an image (default: 30)")
    parser.add_argument("--guidance", type=float, default=3.0, help="more: clearer, more alike (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default="diffusion.png", help="the picture to save")
    args = parse(parser, needs=["PIL"], steps=1, batch=1, draws=1)
    name, x_train, y_train, x_test, y_test = load_data()
    train_images, test_images = ((x / 127.5 - 1).astype(np.float32) for x in (x_train, x_test))
    print(f"{name}: {len(train_images)} images")
    Tensor.manual_seed(args.seed)
    model = Network()
    train(model, train_images, y_train, args.steps, args.batch, args.seed)
    loss = loss_of(model, Tensor(test_images[:500]), Tensor(y_test[:500])).item()
    print(f"test images: squared error {loss:.3f} of v, about 1 by saying nothing")
    drawn = sample(model, np.repeat(np.arange(10, dtype=np.int32), 12), args.draws, args.guidance)
    from PIL import Image

    pixels = ((drawn + 1) * 127.5).clip(0, 255).astype(np.uint8).reshape(10, 12, 28, 28)
    Image.fromarray(pixels.transpose(0, 2, 1, 3).reshape(280, 336)).resize((672, 560)).save(args.out)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
