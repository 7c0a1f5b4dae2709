"""Trains a convolutional network on handwritten digits and shows what it gets right.

    python3 examples/mnist.py [--epochs N] [--batch N] [--seed N] [--devices N] [--out mnist.png]

With --devices, each of so many devices of the default kind (CPU, CPU:1, ...) takes its part of every batch.

Data: MNIST from the folder that TINYGRAD_DATA names, from the cache, or downloaded once; where none of that
is possible, the 1,797 digits that scikit-learn carries, enlarged to the same 28x28 pixels.
"""
from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from digits import load_data
from options import parse
from pictures import Array, draw_guesses, moved

from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

IMAGES_SEEN = 36_000
"""how many images make a default run, whatever the size of the data"""


class Digits:
    """Two blocks of two convolutions, then a linear layer: images (N, 1, 28, 28) to ten scores (N, 10)."""

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 32, 5), Tensor.relu,
            nn.Conv2d(32, 32, 5), Tensor.relu,
            nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu,
            nn.Conv2d(64, 64, 3), Tensor.relu,
            nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(576, 10),
        ]

    def __call__(self, images: Tensor) -> Tensor:
        return (images.float() / 255).sequential(self.layers)


def learning_rate(progress: float, highest: float = 3e-3) -> float:
    """Up in the first fifth of training, then down to nothing: half a cosine wave each."""
    if progress < 0.2:
        return highest * (0.1 + 0.9 * 0.5 * (1 - float(np.cos(np.pi * progress / 0.2))))
    return highest * 0.5 * (1 + float(np.cos(np.pi * (progress - 0.2) / 0.8)))


def train(model: Digits, images: Array, labels: Array, epochs: int, batch: int, rng: np.random.Generator,
          devices: Sequence[str]) -> tuple[list[float], list[float], float]:
    """(loss of each step, accuracy of each step, milliseconds of a step once compiled)."""
    for parameter in state.get_parameters(model):
        parameter.shard_(devices)
    optimizer = optim.Adam(state.get_parameters(model))

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        scores = model(x)
        loss = scores.sparse_categorical_crossentropy(y).backward()
        accuracy = (scores.argmax(1) == y).float().mean()
        return loss.realize(accuracy, *optimizer.schedule_step()), accuracy

    per_epoch = len(images) // batch
    losses, accuracies, times = list[float](), list[float](), list[float]()
    with tqdm(total=epochs * per_epoch, desc="training", unit="step") as bar:
        for epoch in range(epochs):
            for chosen in nn.datasets.batches(len(images), batch, int(rng.integers(1 << 30)), epoch):
                x = Tensor(moved(images[chosen], 2, False, rng)).shard(devices, axis=0)
                y = Tensor(labels[chosen]).shard(devices, axis=0)
                optimizer.lr.assign([learning_rate(len(losses) / (epochs * per_epoch))]).realize()
                start = time.perf_counter()
                loss, accuracy = step(x, y)
                losses.append(loss.item())
                times.append(time.perf_counter() - start)
                accuracies.append(accuracy.item())
                bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}", right=f"{np.mean(accuracies[-20:]):.1%}")
                bar.update()
    return losses, accuracies, 1e3 * float(np.median(times[2:] or times))


def predict(model: Digits, images: Array, batch: int = 500) -> Array:
    """The digit that each image most looks like."""
    classes = TinyJit(Tensor.train(False)(lambda x: model(x).argmax(1).realize()))
    devices, starts = state.get_parameters(model)[0].device, range(0, len(images), batch)
    parts = [classes(Tensor(images[i:i + batch], device=devices)).numpy() for i in starts]
    return np.concatenate(parts).astype(np.uint8)


def draw(path: str, title: str, losses: list[float], accuracies: list[float], images: Array, labels: Array,
         predictions: Array) -> None:
    """Save the training curve beside test digits, those classified wrongly first and marked."""
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(13, 5.5), layout="constrained")
    figure.suptitle(title)
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=(1, 1.2)))
    curve = left.subplots()
    curve.semilogy(losses, linewidth=0.8)
    curve.set(xlabel="step", ylabel="training loss (blue)")
    window = min(20, len(accuracies))
    smooth = np.convolve(accuracies, np.full(window, 100 / window), "valid")
    share = curve.twinx()
    share.plot(np.arange(window - 1, len(accuracies)), smooth, color="tab:orange")
    share.set(ylabel=f"training accuracy (orange), mean of {window} steps (%)")
    wrong = predictions != labels
    chosen = [*np.flatnonzero(wrong)[:24], *np.flatnonzero(~wrong)[:48]]
    guesses = [f"{predictions[i]}" + (f", is {labels[i]}" if wrong[i] else "") for i in chosen]
    draw_guesses(right.subplots(6, 8).flat, images[chosen], guesses, wrong[chosen])
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--epochs", type=int, help=f"passes over the data (default: {IMAGES_SEEN} images)")
    parser.add_argument("--batch", type=int, default=128, help="images a step (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and shifts (default: 0)")
    parser.add_argument("--out", default="mnist.png", help="the picture to save (default: mnist.png)")
    parser.add_argument("--devices", type=int, default=1, help="devices that share the work (default: 1)")
    args = parse(parser, needs=["matplotlib"], batch=2, devices=1)

    name, x_train, y_train, x_test, y_test = load_data()
    epochs = max(1, round(IMAGES_SEEN / len(x_train))) if args.epochs is None else args.epochs
    if not args.devices <= args.batch <= len(x_train) or epochs < 1:
        parser.error(f"--batch takes up to {len(x_train)}, one of each device at least; --epochs 1 or more")
    print(f"{name}: {len(x_train)} images to train on for {epochs} epochs, {len(x_test)} to test")
    Tensor.manual_seed(args.seed)
    model = Digits()
    start = time.perf_counter()
    rng = np.random.default_rng(args.seed)
    devices = [f"{Device.DEFAULT}:{i}" for i in range(args.devices)]
    losses, accuracies, step_ms = train(model, x_train, y_train, epochs, args.batch, rng, devices)
    predictions = predict(model, x_test)
    seconds = time.perf_counter() - start
    share = (predictions == y_test).mean()
    print(f"test accuracy {share:.2%} ({(predictions != y_test).sum()} of {len(y_test)} wrong), "
          f"{step_ms:.1f} ms a step of {args.batch}, {seconds:.0f} s in all")
    draw(args.out, f"{name}: test accuracy {share:.2%}", losses, accuracies, x_test, y_test, predictions)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
