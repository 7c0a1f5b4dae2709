"""Trains a residual network on small pictures, and shows what it says of pictures that it has not seen.

    python3 examples/resnet.py [--images FOLDER] [--epochs N] [--batch N] [--blocks N] [--width N] [--size N]
                               [--seed N] [--weights resnet.safetensors] [--load] [--out resnet.png]

The pictures are CIFAR-10's, or those of FOLDER, which has a folder of image files for each class; a tenth of
them is kept for the test. Where there is no CIFAR-10, they are handwritten digits. Training pictures are
moved by a few pixels, and mirrored unless they are digits. The network is He et al.'s for such sizes (2015):
three stages of blocks of two convolutions, each stage half as wide and high as the one before it, with twice
the channels. Its weights are saved; with --load they are read and nothing is trained.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from options import parse
from pictures import Array, draw_guesses, moved, read

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import tqdm
from tinygrad.nn import optim, state

IMAGES_SEEN = 36_000
"""how many make a default run, whatever the size of the data"""


class Block:
    """Two convolutions beside a shortcut, which is a convolution where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        self.first = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm(out), nn.BatchNorm(out)
        self.shortcut: list[Callable[[Tensor], Tensor]] = []
        if (channels, stride) != (out, 1):
            self.shortcut = [nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm(out)]

    def __call__(self, x: Tensor) -> Tensor:
        hidden = self.norm2(self.second(self.norm1(self.first(x)).relu()))
        return (hidden + x.sequential(self.shortcut)).relu()


class ResNet:
    """Pictures uint8 (N, 3, size, size) to scores (N, classes)."""

    def __init__(self, classes: int, blocks: int, width: int) -> None:
        self.first, self.norm = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm(width)
        self.blocks = [Block(width << max(0, stage - (place == 0)), width << stage, 1 + (place == 0 < stage))
                       for stage in range(3) for place in range(blocks)]
        self.last = nn.Linear(width << 2, classes)

    def __call__(self, images: Tensor) -> Tensor:
        x = self.norm(self.first(images.float() / 127.5 - 1)).relu()
        return self.last(x.sequential(self.blocks).mean((2, 3)))


def train(model: ResNet, images: Array, labels: Array, epochs: int, batch: int, mirrors: bool,
          rng: np.random.Generator) -> None:
    optimizer = optim.SGD(state.get_parameters(model), momentum=0.9, weight_decay=5e-4, nesterov=True)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    steps = epochs * (len(images) // batch)
    losses: list[float] = []
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for epoch in range(epochs):
            for rows in nn.datasets.batches(len(images), batch, int(rng.integers(1 << 30)), epoch):
                progress = len(losses) / steps
                optimizer.lr.assign([0.1 * min(1, progress / 0.2, (1 - progress) / 0.8)]).realize()
                losses.append(step(Tensor(moved(images[rows], 4, mirrors, rng)), Tensor(labels[rows])).item())
                bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}")
                bar.update()


def predict(model: ResNet, images: Array, batch: int = 250) -> np.ndarray[Any, np.dtype[np.float32]]:
    """How likely each class is for each picture (N, classes)."""
    shares = TinyJit(Tensor.train(False)(lambda x: model(x).softmax().realize()))
    return np.concatenate([shares(Tensor(images[i:i + batch])).numpy() for i in range(0, len(images), batch)])


def draw(path: str, classes: list[str], images: Array, labels: Array, shares: np.ndarray[Any, Any]) -> None:
    """Test pictures with the likeliest class and how likely it is; red where it is another one."""
    from matplotlib import pyplot as plt

    figure, places = plt.subplots(4, 8, figsize=(12, 7), layout="constrained")
    best = shares.argmax(1)
    guesses = [f"{classes[i]} {share[i]:.0%}" + (f"\n(is {classes[label]})" if i != label else "")
               for i, share, label in zip(best, shares, labels, strict=True)]
    draw_guesses(places.flat, images, guesses, best != labels)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description="A residual network that tells pictures apart.")
    parser.add_argument("--images", type=Path, help="a folder with a folder of pictures for each class")
    parser.add_argument("--epochs", type=int, help=f"passes over the data (default: {IMAGES_SEEN} pictures)")
    parser.add_argument("--batch", type=int, default=64, help="pictures of a step (default: 64)")
    parser.add_argument("--blocks", type=int, default=1, help="of each of the three stages (default: 1)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage (default: 16)")
    parser.add_argument("--size", type=int, default=32, help="pixels of a folder's pictures (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and moves (default: 0)")
    parser.add_argument("--weights", default="resnet.safetensors", help="where the weights are kept")
    parser.add_argument("--load", action="store_true", help="read them instead of training")
    parser.add_argument("--out", default="resnet.png", help="the picture to save (default: resnet.png)")
    args = parse(parser, needs=["matplotlib", "PIL"], batch=2, blocks=1, width=1, size=8)
    rng = np.random.default_rng(args.seed)
    try:
        classes, x_train, y_train, x_test, y_test = read(args.images, args.size, rng)
        Tensor.manual_seed(args.seed)
        model = ResNet(len(classes), args.blocks, args.width)
        if args.load:
            state.load_state_dict(model, state.safe_load(args.weights), verbose=False)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if args.batch > len(x_train):
        parser.error(f"--batch takes at most the {len(x_train)} pictures that train, got {args.batch}")
    print(f"{len(classes)} classes, {len(x_train)} pictures, {len(x_test)} to test; "
          f"{sum(p.numel() for p in state.get_parameters(model))} parameters", flush=True)
    if not args.load:
        epochs = max(1, round(IMAGES_SEEN / len(x_train))) if args.epochs is None else args.epochs
        train(model, x_train, y_train, epochs, args.batch, not classes[0].isdigit(), rng)
        state.safe_save(state.get_state_dict(model), args.weights)
        print(f"saved {args.weights}")
    shares = predict(model, x_test)
    print(f"test accuracy {(shares.argmax(1) == y_test).mean():.2%}")
    draw(args.out, classes, x_test, y_test, shares)
    print(f"saved {args.out}")


if __name__ == "__main__":
    main()
