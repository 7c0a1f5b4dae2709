"""The pictures that programs here tell apart: CIFAR-10's, those of a folder, or handwritten digits."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from digits import load_data as load_digits

from tinygrad import nn
from tinygrad.helpers import tqdm

Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Split: TypeAlias = tuple[list[str], Array, Array, Array, Array]
CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def read_folder(folder: Path, size: int, rng: np.random.Generator) -> Split:
    """The middle squares of the pictures of a folder of folders, of `size` pixels each way. Raises OSError
    for what cannot be read, ValueError for fewer than two classes."""
    from PIL import Image, ImageOps

    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    suffixes = Image.registered_extensions()
    paths = [(path, number) for number, name in enumerate(classes)
             for path in sorted((folder / name).iterdir()) if path.suffix.lower() in suffixes]
    if len(classes) < 2 or len(paths) < 20:
        raise ValueError(f"{folder} has {len(paths)} pictures in {len(classes)} folders; it takes at "
                         "least 20, in a folder for each of at least 2 classes")
    images = np.zeros((len(paths), 3, size, size), np.uint8)
    for at, (path, _) in enumerate(tqdm(paths, desc="reading", unit="picture")):
        with Image.open(path) as image:
            images[at] = np.asarray(ImageOps.fit(image.convert("RGB"), (size, size))).transpose(2, 0, 1)
    labels, order = np.array([number for _, number in paths], np.uint8), rng.permutation(len(paths))
    test, train = np.split(order, [max(1, len(paths) // 10)])
    return classes, images[train], labels[train], images[test], labels[test]


def read(folder: Path | None, size: int, rng: np.random.Generator) -> Split:
    """(names of classes, training pictures and labels, test pictures and labels)."""
    if folder is not None:
        return read_folder(folder, size, rng)
    try:
        x_train, y_train, x_test, y_test = (t.numpy() for t in nn.datasets.cifar())
        return CIFAR, x_train, y_train, x_test, y_test
    except RuntimeError as error:
        print(f"no CIFAR-10 ({error}); using handwritten digits")
    _, x_train, y_train, x_test, y_test = load_digits()
    coloured = (np.repeat(x, 3, axis=1) for x in (x_train, x_test))
    x_train, x_test = (np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2))) for x in coloured)
    return [str(digit) for digit in range(10)], x_train, y_train, x_test, y_test


def moved(images: Array, by: int, mirrors: bool, rng: np.random.Generator) -> Array:
    """Each picture moved by its own number of pixels, at most `by` each way, black where nothing moved in;
    half of them mirrored where `mirrors` says so."""
    padded = np.pad(images, ((0, 0), (0, 0), (by, by), (by, by)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], axis=(2, 3))
    down, right = rng.integers(0, 2 * by + 1, (2, len(images)))
    images = windows[np.arange(len(images)), :, down, right]
    flips = (rng.random(len(images)) < 0.5 * mirrors)[:, None, None, None]
    return np.ascontiguousarray(np.where(flips, images[..., ::-1], images))


def draw_guesses(places: Iterable[Any], images: Iterable[Array], guesses: Iterable[str],
                 mistaken: Iterable[bool]) -> None:
    """Show each picture (channels, height, width) in a place of a figure with what it was taken for; in red
    where that is a mistake."""
    for place, image, guess, is_mistaken in zip(places, images, guesses, mistaken, strict=False):
        place.imshow(image.transpose(1, 2, 0), cmap="gray_r")
        place.set(xticks=[], yticks=[])
        place.set_title(guess, fontsize=9, pad=3, color="tab:red" if is_mistaken else "black")
