"""Random pieces of networks and their gradients, at random sizes and in three types, beside PyTorch in
float64: on the device that DEV names, and on every model of another machine that is at hand.

A trial is repeated by its number: `Trial.of(seed, ...)` has its sizes in words.
"""

from __future__ import annotations

import numpy as np
import pytest
from drivers import needs_compiler

from tinygrad import Device

from .random_networks import Trial

MODELS = ["PYTHON:BLOCKS", "PYTHON:CUDA", "PYTHON:AMD", "PYTHON:GFX1100", "PYTHON:METAL"]
EMULATED = ["CUDA:EMULATED", "AMD:EMULATED", "METAL:EMULATED"]


def check(trial: Trial, device: str | None) -> None:
    """Compare the result and each gradient, by the largest number there is in it."""
    for number, (found, wanted) in enumerate(zip(trial.ours(device), trial.expected(), strict=True)):
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=scale * trial.TOLERANCES[trial.dtype],
                                   err_msg=f"{trial.piece.words}, {trial.dtype}, {number}")


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_and_their_gradients_are_pytorchs(seed: int) -> None:
    check(Trial.of(seed, 96, Device[Device.DEFAULT].renderer.machine.missing), None)


@pytest.mark.parametrize("device", MODELS)
@pytest.mark.parametrize("seed", range(6))
def test_random_networks_on_models_of_machines(seed: int, device: str) -> None:
    check(Trial.of(1000 + seed, 12), device)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("device", EMULATED)
@pytest.mark.parametrize("seed", range(20))
def test_random_networks_as_kernels_that_are_emulated(seed: int, device: str) -> None:
    check(Trial.of(2000 + seed, 40, Device[device].renderer.machine.missing), device)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 10_300))
def test_many_random_networks(seed: int) -> None:
    check(Trial.of(seed, 96, Device[Device.DEFAULT].renderer.machine.missing), None)
