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
from typing import Any, TypeAlias

import numpy as np
from digits import load_data

from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
SHIFT = 2
"""training images move by up to this many pixels each way"""
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


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """Each image moved by its own random number of pixels, black where nothing moved in."""
    padded = np.pad(images[:, 0], ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], axis=(1, 2))
    down, right = rng.integers(0, 2 * SHIFT + 1, (2, len(images)))
    return np.asarray(windows[np.arange(len(images)), down, right][:, None])


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
        loss = scores.sparse_categorical_crossentropy(y)
        accuracy = (scores.argmax(1) == y).float().mean()
        loss.backward()
        loss.realize(accuracy, *optimizer.schedule_step())
        return loss, accuracy

    per_epoch = len(images) // batch
    losses: list[float] = []
    accuracies: list[float] = []
    times: list[float] = []
    with tqdm(total=epochs * per_epoch, desc="training", unit="step") as bar:
        for _ in range(epochs):
            order = rng.permutation(len(images))
            for i in range(per_epoch):
                chosen = order[i * batch:(i + 1) * batch]
                x = Tensor(shifted(images[chosen], rng)).shard(devices, axis=0)
                y = Tensor(labels[chosen]).shard(devices, axis=0)
                optimizer.lr.assign([learning_rate(len(losses) / (epochs * per_epoch))]).realize()
                start = time.perf_counter()
                loss, accuracy = step(x, y)
                losses.append(float(loss.item()))
                times.append(time.perf_counter() - start)
                accuracies.append(float(accuracy.item()))
                bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}",
                                accuracy=f"{np.mean(accuracies[-20:]):.1%}")
                bar.update()
    return losses, accuracies, 1e3 * float(np.median(times[2:] or times))


def predict(model: Digits, images: Array, batch: int = 500) -> Array:
    """The digit that each image most looks like."""

    @TinyJit
    @Tensor.train(False)
    def classes(x: Tensor) -> Tensor:
        return model(x).argmax(1).realize()

    devices = state.get_parameters(model)[0].device
    parts = [classes(Tensor(images[i:i + batch], device=devices)).numpy()
             for i in range(0, len(images), batch)]
    return np.concatenate(parts).astype(np.uint8)


def draw(path: str, title: str, losses: list[float], accuracies: list[float], images: Array, labels: Array,
         predictions: Array) -> None:
    """Save the training curve beside test digits, those classified wrongly first and marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, columns = 6, 8
    wrong = np.flatnonzero(predictions != labels)[:rows * columns // 2]
    correct = np.flatnonzero(predictions == labels)[:rows * columns - len(wrong)]
    figure = plt.figure(figsize=(13, 5.5), layout="constrained")
    figure.suptitle(title)
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=(1, 1.2)))

    curve = left.subplots()
    curve.plot(losses, color="tab:blue", linewidth=0.8)
    curve.set(xlabel="step", yscale="log")
    curve.set_ylabel("training loss", color="tab:blue")
    window = min(20, len(accuracies))
    smooth = np.convolve(accuracies, np.ones(window) / window, "valid")
    share = curve.twinx()
    share.plot(np.arange(window - 1, len(accuracies)), 100 * smooth, color="tab:orange")
    share.set_ylabel(f"training accuracy, mean of {window} steps (%)", color="tab:orange")

    for axes, i in zip(right.subplots(rows, columns).flat, [*wrong, *correct], strict=False):
        axes.imshow(images[i, 0], cmap="gray_r")
        axes.set(xticks=[], yticks=[])
        mistaken = predictions[i] != labels[i]
        axes.set_title(f"{predictions[i]}, is {labels[i]}" if mistaken else f"{predictions[i]}", fontsize=9,
                       pad=2, color="tab:red" if mistaken else "black")
        for spine in axes.spines.values():
            spine.set(color="tab:red" if mistaken else "lightgray", linewidth=2.5 if mistaken else 0.8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--epochs", type=int, help=f"passes over the data (default: {IMAGES_SEEN} images)")
    parser.add_argument("--batch", type=int, default=128, help="images a step (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and shifts (default: 0)")
    parser.add_argument("--out", default="mnist.png", help="the picture to save (default: mnist.png)")
    parser.add_argument("--devices", type=int, default=1, help="devices that share the work (default: 1)")
    args = parser.parse_args()

    name, x_train, y_train, x_test, y_test = load_data()
    epochs = max(1, round(IMAGES_SEEN / len(x_train))) if args.epochs is None else args.epochs
    if not 2 <= args.batch <= len(x_train) or epochs < 1 or not 1 <= args.devices <= args.batch:
        parser.error(f"--batch takes 2 to {len(x_train)} images, --epochs at least 1 and --devices at least "
                     "1 and no more than images in a batch")
    print(f"{name}: {len(x_train)} images to train on for {epochs} epochs, {len(x_test)} to test")
    Tensor.manual_seed(args.seed)
    model = Digits()
    start = time.perf_counter()
    rng = np.random.default_rng(args.seed)
    devices = [f"{Device.DEFAULT}:{i}" for i in range(args.devices)]
    losses, accuracies, step_ms = train(model, x_train, y_train, epochs, args.batch, rng, devices)
    predictions = predict(model, x_test)
    seconds = time.perf_counter() - start
    share = float((predictions == y_test).mean())
    print(f"test accuracy {share:.2%} ({int((predictions != y_test).sum())} of {len(y_test)} wrong), "
          f"{step_ms:.1f} ms a step of {args.batch}, {seconds:.0f} s in all")
    draw(args.out, f"{name}: test accuracy {share:.2%}", losses, accuracies, x_test, y_test, predictions)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
