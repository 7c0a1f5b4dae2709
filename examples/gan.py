"""Two networks that learn handwritten digits from each other: a generative adversarial network.

    python3 examples/gan.py [--steps N] [--batch N] [--seed N] [--out gan.png]

A generator turns noise into images, a discriminator tells them from those of the data; each step makes the
discriminator better at that, and the generator better at being taken for data (Goodfellow et al. 2014, as
convolutional networks: Radford et al. 2015). A row of the picture is what the same noise becomes, drawn after
more and more steps; the last row is of the data. Printed is the energy distance of drawn images from test
images, 0 between equal distributions (Szekely and Rizzo 2013), beside that of training images.
"""
from __future__ import annotations

import argparse
from typing import Any, TypeAlias

import numpy as np
from digits import load_data
from options import parse

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
NOISE = 64
"""numbers that an image is drawn from"""
ROWS, COLUMNS = 8, 20
"""of the picture: times that are drawn, and images of each"""


class Generator:
    """Noise (N, NOISE) to images (N, 1, 28, 28) between -1 and 1."""

    def __init__(self, width: int = 32) -> None:
        self.width = width
        self.first, self.norm1 = nn.Linear(NOISE, 2 * width * 49, bias=False), nn.BatchNorm(2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False)
        self.norm2, self.last = nn.BatchNorm(width), nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def __call__(self, noise: Tensor) -> Tensor:
        x = self.norm1(self.first(noise).reshape(-1, 2 * self.width, 7, 7)).relu()
        return self.last(self.norm2(self.up(x)).relu()).tanh()


class Discriminator:
    """Images (N, 1, 28, 28) to scores (N, 1): above 0 for data, below for drawn."""

    def __init__(self, width: int = 32) -> None:
        self.first = nn.Conv2d(1, width, 4, stride=2, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.norm, self.last = nn.GroupNorm(8, 2 * width), nn.Linear(2 * width * 49, 1)

    def __call__(self, images: Tensor) -> Tensor:
        x = self.first(images).leaky_relu(0.2)
        return self.last(self.norm(self.second(x)).leaky_relu(0.2).flatten(1).dropout(0.3))


class Game:
    """Both networks, and a step of each."""

    def __init__(self) -> None:
        self.generator, self.discriminator = Generator(), Discriminator()
        self.of_generator, self.of_discriminator = (
            optim.Adam(state.get_parameters(net), lr=1e-3, b1=0.5)
            for net in (self.generator, self.discriminator))

    @TinyJit
    @Tensor.train()
    def step(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The losses of discriminator and generator, before each is improved; log 2 each where the
        discriminator only guesses."""
        drawn = self.generator(Tensor.randn(images.shape[0], NOISE))
        self.of_discriminator.zero_grad()
        real, fake = self.discriminator(images), self.discriminator(drawn.detach())
        told = (real.binary_crossentropy_logits(real.ones_like())
                + fake.binary_crossentropy_logits(fake.zeros_like())) / 2
        told.backward()
        told.realize(*self.of_discriminator.schedule_step())
        self.of_generator.zero_grad()
        score = self.discriminator(drawn)
        fooled = score.binary_crossentropy_logits(score.ones_like()).backward()
        return told, fooled.realize(*self.of_generator.schedule_step())

    @TinyJit
    @Tensor.train()
    def draw(self, noise: Tensor) -> Tensor:
        return self.generator(noise).realize()


def train(game: Game, images: Array, steps: int, batch: int, rng: np.random.Generator) -> list[Array]:
    """Returns what the same noise became, at ROWS - 1 times from the start on."""
    noise = Tensor.randn(128, NOISE).realize()
    times = np.linspace(0, 1, ROWS - 1) ** 2 * steps
    rows: list[Array] = []
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for number in range(steps + 1):
            while len(rows) < len(times) and number >= int(times[len(rows)]):
                rows.append(game.draw(noise).numpy()[:COLUMNS])
            if number < steps:
                told, fooled = game.step(Tensor(images[rng.integers(0, len(images), batch)]))
                bar.set_postfix(discriminator=f"{told.item():.2f}", generator=f"{fooled.item():.2f}")
                bar.update()
    return rows


def energy_distance(a: Array, b: Array) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'| for rows x, x' of a and y, y' of b."""
    def apart(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
        squares = (x ** 2).sum(1)[:, None] + (y ** 2).sum(1) - 2 * x @ y.T
        pairs = squares.size - (len(x) if x is y else 0)  # no row beside itself
        return float(np.sqrt(squares.clip(0)).sum() / pairs)

    x, y = (images.reshape(len(images), -1).astype(np.float64) for images in (a, b))
    return 2 * apart(x, y) - apart(x, x) - apart(y, y)


def main() -> None:
    parser = argparse.ArgumentParser(description="A generative adversarial network of handwritten digits.")
    parser.add_argument("--steps", type=int, default=2000, help="of training (default: 2000)")
    parser.add_argument("--batch", type=int, default=64, help="images of a step (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, noise and order (default: 0)")
    parser.add_argument("--out", default="gan.png", help="the picture to save (default: gan.png)")
    args = parse(parser, needs=["PIL"], steps=1, batch=2)
    name, x_train, _, x_test, _ = load_data()
    images, test_images = ((x / 127.5 - 1).astype(np.float32) for x in (x_train, x_test))
    print(f"{name}: {len(images)} images")
    Tensor.manual_seed(args.seed)
    game, rng = Game(), np.random.default_rng(args.seed)
    rows = train(game, images, args.steps, args.batch, rng)
    drawn = np.concatenate([game.draw(Tensor.randn(128, NOISE)).numpy() for _ in range(8)])
    some = images[rng.permutation(len(images))[:len(drawn)]]
    print(f"energy distance from test images: {energy_distance(drawn, test_images):.3f} drawn, "
          f"{energy_distance(some, test_images):.3f} training images")
    from PIL import Image

    grid = np.stack([*rows, some[:COLUMNS]])[:, :, 0].transpose(0, 2, 1, 3).reshape(28 * ROWS, 28 * COLUMNS)
    pixels = ((grid + 1) * 127.5).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).resize((56 * COLUMNS, 56 * ROWS)).save(args.out)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
