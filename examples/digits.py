"""The handwritten digits that programs here train on: MNIST, or what scikit-learn carries."""
from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tinygrad import nn

Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


def load_data() -> tuple[str, Array, Array, Array, Array]:
    """(name, training images, training labels, test images, test labels)."""
    try:
        x_train, y_train, x_test, y_test = (t.numpy() for t in nn.datasets.mnist())
        return "MNIST", x_train, y_train, x_test, y_test
    except RuntimeError as error:
        print(f"no MNIST ({error}); using scikit-learn's digits")
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = (digits.images * (255 / 16)).astype(np.uint8)
    images = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))[:, None]
    labels = digits.target.astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1500], order[1500:]
    return "scikit-learn digits", images[train], labels[train], images[test], labels[test]
