"""A variational autoencoder of handwritten digits, with its plane of digits drawn.

    python3 examples/vae.py [--epochs N] [--latent N] [--batch N] [--seed N] [--out vae.png]

An encoder says for an image x a normal distribution q(z|x) over a few numbers z, a decoder for z how bright
each pixel is. Both are trained for the evidence lower bound (Kingma and Welling 2013): log p(x|z) of the
decoded image, less the divergence KL(q(z|x) || N(0, 1)), which keeps the plane of z filled without gaps. The
picture shows where digits come to lie, and what is decoded from a grid over that plane.
"""
from __future__ import annotations

import argparse
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from digits import Array as Bytes
from digits import load_data
from options import parse

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
HIDDEN = 400


class Autoencoder:
    """From images (N, 784) between 0 and 1 to distributions over `latent` numbers, and back to pixels."""

    def __init__(self, latent: int) -> None:
        self.hidden_of_image = nn.Linear(784, HIDDEN)
        self.mean, self.log_variance = nn.Linear(HIDDEN, latent), nn.Linear(HIDDEN, latent)
        self.hidden_of_latent, self.pixels = nn.Linear(latent, HIDDEN), nn.Linear(HIDDEN, 784)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the logarithm of the variance of q(z|x), (N, latent) each."""
        hidden = self.hidden_of_image(x).relu()
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, z: Tensor) -> Tensor:
        """The scores (N, 784) whose sigmoid is how bright a pixel is."""
        return self.pixels(self.hidden_of_latent(z).relu())

    def bound(self, x: Tensor) -> Tensor:
        """The negative evidence lower bound of images, in nats, averaged over them."""
        mean, log_variance = self.encode(x)
        z = mean + (log_variance / 2).exp() * Tensor.randn(*mean.shape)
        reconstruction = self.decode(z).binary_crossentropy_logits(x, reduction="none").sum(1)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return (reconstruction + divergence).mean()


def train(model: Autoencoder, images: Array, epochs: int, batch: int, rng: np.random.Generator) -> None:
    optimizer = optim.Adam(state.get_parameters(model), lr=1e-3)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model.bound(x).backward()
        return loss.realize(*optimizer.schedule_step())

    batches = len(images) // batch
    with tqdm(total=epochs * batches, desc="training", unit="step") as bar:
        for _ in range(epochs):
            order, losses = rng.permutation(len(images)), []
            for at in range(0, batches * batch, batch):
                losses.append(step(Tensor(images[order[at:at + batch]])))
                bar.update()
            bar.set_postfix(bound=f"{np.mean([loss.item() for loss in losses]):.1f} nats")


def of_mean_image(train_images: Array, test_images: Array) -> float:
    """Nats of an image, on average, where each pixel is as bright as it is on average."""
    mean = train_images.mean(0).clip(1e-3, 1 - 1e-3)
    nats = -(test_images * np.log(mean) + (1 - test_images) * np.log(1 - mean))
    return float(nats.sum(1).mean())


def draw(path: str, model: Autoencoder, images: Array, labels: Bytes, size: int = 18) -> None:
    """Where images lie by their first two numbers, and digits decoded from a grid over these: as many from
    each part of the plane as there are images."""
    from matplotlib import pyplot as plt

    at = model.encode(Tensor(images))[0].numpy()
    steps = np.array([NormalDist().inv_cdf((i + 0.5) / size) for i in range(size)], np.float32)
    plane = np.zeros((size * size, at.shape[1]), np.float32)
    plane[:, 0], plane[:, 1] = np.tile(steps, size), np.repeat(-steps, size)
    pixels = model.decode(Tensor(plane)).sigmoid().numpy().reshape(size, size, 28, 28)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    points = left.scatter(at[:, 0], at[:, 1], c=labels, cmap="tab10", s=6, vmin=-0.5, vmax=9.5)
    figure.colorbar(points, ax=left, ticks=range(10), label="digit")
    left.set(title="where images lie", xlabel="z1", ylabel="z2", xlim=(-4, 4), ylim=(-4, 4))
    right.imshow(pixels.transpose(0, 2, 1, 3).reshape(size * 28, size * 28), cmap="gray")
    right.set(title="what is decoded from there", xticks=[], yticks=[])
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description="A variational autoencoder of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=60, help="passes over the data (default: 60)")
    parser.add_argument("--latent", type=int, default=2, help="numbers that stand for an image (default: 2)")
    parser.add_argument("--batch", type=int, default=100, help="images of a step (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default="vae.png", help="the picture to save (default: vae.png)")
    args = parse(parser, needs=["matplotlib"], epochs=1, latent=2, batch=1)

    name, x_train, _, x_test, y_test = load_data()
    train_images, test_images = ((x.reshape(len(x), -1) / 255).astype(np.float32) for x in (x_train, x_test))
    if args.batch > len(train_images):
        parser.error(f"--batch takes at most the {len(train_images)} images that there are")
    print(f"{name}: {len(train_images)} images, {len(test_images)} to test")
    Tensor.manual_seed(args.seed)
    model = Autoencoder(args.latent)
    train(model, train_images, args.epochs, args.batch, np.random.default_rng(args.seed))
    print(f"test images: {model.bound(Tensor(test_images)).item():.1f} nats each at most, "
          f"{of_mean_image(train_images, test_images):.1f} by the mean image")
    draw(args.out, model, test_images, y_test)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
