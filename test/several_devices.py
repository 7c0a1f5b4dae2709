"""What tests of tensors on several devices share: the devices, and where values lie on them."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.device import Device
from tinygrad.schedule.items import ScheduleItem
from tinygrad.schedule.sharded_results import layout_of

TWO = ("CPU", "CPU:1")

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True, params=["one memory", "memories of their own"])
def memories(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test with devices that are the same cores and memory, and with devices that exchange values."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "memories of their own":
            patch.setattr(Device, "ONE_MEMORY", frozenset())
        yield


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape)


# --- where values lie -----------------------------------------------------------------------------


def lies(x: Tensor) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """The axis along which a value is cut, and what each device has of it."""
    (cut,) = layout_of(x.uop).cuts or ((None, ()),)
    return cut


def items_of(*tensors: Tensor) -> list[ScheduleItem]:
    return tensors[0].schedule(*tensors[1:])
