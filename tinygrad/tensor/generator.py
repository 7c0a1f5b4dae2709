"""The state of random numbers: the seed, and each device's counter of blocks that were drawn.

`functional/random.py` draws blocks and says what they are; TinyJit reads the state before and after a traced
call (`counters`), and moves it on as calling the function again would (`advance`).
"""
from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tinygrad.device import Device
from tinygrad.graph.sharding import Placement
from tinygrad.helpers import engine_lock
from tinygrad.runtime.rank_exchange import rank_of

MAX_COUNTER = 2**62
MAX_SEED = 2**63 - 1
STREAM_BLOCKS = 2**40
"""Blocks between the numbers of one device and the next of its kind: 10^13 numbers."""

_seed = secrets.randbits(62)
_counters: dict[str, int] = {}
_seedings = 0


def manual_seed(seed: int = 0) -> None:
    """Begin the sequence of random numbers that belongs to `seed`, on every device.

    >>> Tensor.manual_seed(7); first = Tensor.rand(2).tolist(); Tensor.manual_seed(7)
    >>> Tensor.rand(2).tolist() == first
    True
    """
    global _seed, _seedings
    with engine_lock:
        _seedings += 1
        _seed = seed % (MAX_SEED + 1)
        _counters.clear()


@contextmanager
def seeded(value: int) -> Iterator[None]:
    """A block that draws the numbers of seed `value`; after it, draws go on as if it had not been."""
    global _seed, _seedings
    with engine_lock:
        before, counters_before = _seed, dict(_counters)
        manual_seed(value)
        try:
            yield
        finally:
            _seedings += 1
            _seed = before
            _counters.clear()
            _counters.update(counters_before)


def seed() -> int:
    """The seed of the sequence that draws are from."""
    return _seed


def seedings() -> int:
    """How often `manual_seed` was called."""
    return _seedings


def drawn_on(place: Placement) -> str:
    """The device whose numbers a draw takes: of several the first, so that the numbers are those of one; of
    ranks one of the default device's kind, so that they are those of one process."""
    device = place if isinstance(place, str) else place[0]
    rank = rank_of(device)
    if rank is None:
        return device
    kind = Device.kind_of(Device.DEFAULT)  # of which each rank may have set one of its own
    return f"{kind}:{rank}" if rank else kind


def counter(device: str) -> int:
    """The number of the next block that a draw on `device` takes."""
    return _counters.get(device, 0)


def counters() -> dict[str, int]:
    """Every device's `counter` now."""
    return dict(_counters)


def advance(device: str, blocks: int) -> int:
    """Set `blocks` blocks of `device` aside; returns the number of the first."""
    with engine_lock:  # two threads never draw the same numbers
        start = counter(device)
        _counters[device] = start + blocks
    return start


def counter_name(device: str) -> str:
    """The VARIABLE that a device's counter is in graphs, wherever they are computed."""
    return "rng" if device == "CPU" else f"rng_{device.replace(':', '_')}"


def stream_start(device: str) -> int:
    """The number of the first block of a device, by its full name: KIND or KIND:NUMBER."""
    number = device.rpartition(":")[2]
    return int(number) * STREAM_BLOCKS if number.isdecimal() else 0
