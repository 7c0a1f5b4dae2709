"""Devices and the memory on them: what all kinds have in common, each of which has a file in `runtime/`.

`devices` finds devices by name and opens them; `buffer` is memory on one, from its `allocator`; `queue` is
the one way in which it is given work, and how those wait who need the result. `host` says what this
computer's CPU has, `limits` what a device can do at best.
"""
from typing import Any

from tinygrad.device.allocator import Allocator as Allocator
from tinygrad.device.buffer import Buffer as Buffer
from tinygrad.device.buffer import RepeatedUse as RepeatedUse
from tinygrad.device.devices import CompiledDevice as CompiledDevice
from tinygrad.device.devices import Device as Device
from tinygrad.device.devices import Program as Program
from tinygrad.device.devices import canonical_device as canonical_device
from tinygrad.helpers import find_elsewhere


def __getattr__(name: str) -> Any:
    """What scripts written for tinygrad import from here."""
    return find_elsewhere(__name__, name)
