"""Images of uint8 resized in integers, to the last bit as PyTorch's CPU kernels do."""

from __future__ import annotations

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit

from .table import torch

SIZES = [
    ((1, 3, 5, 7), (8, 9)),
    ((2, 1, 50, 70), (40, 30)),
    ((1, 3, 64, 64), (224, 224)),
    ((1, 4, 9, 9), (9, 17)),
    ((1, 1, 1, 1), (3, 4)),
]


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("shape", "size"), [*SIZES, ((1, 3, 18, 22), (17, 10)), ((1, 3, 60, 70), (9, 4))])
def test_resized_images(shape: tuple[int, ...], size: tuple[int, int], mode: str, corners: bool,
                        antialias: bool) -> None:
    image = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    expected = torch.nn.functional.interpolate(torch.tensor(image), size, mode=mode, align_corners=corners,
                                               antialias=antialias)
    found = Tensor(image).interpolate(size, mode, corners, antialias)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_resized_images_under_the_jit() -> None:
    resize = TinyJit(lambda x: x.interpolate((8, 9), "bilinear").realize())
    rng = np.random.default_rng(4)
    for _ in range(4):
        image = rng.integers(0, 256, (1, 3, 5, 7), dtype=np.uint8)
        expected = torch.nn.functional.interpolate(torch.tensor(image), (8, 9), mode="bilinear")
        np.testing.assert_array_equal(resize(Tensor(image)).numpy(), expected.numpy())
