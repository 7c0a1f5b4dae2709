"""The persistent cache of schedules: on disk, by the structure of the graph that they compute.

The process's `schedules` look here for a structure that they do not hold: a process that runs what another
one ran before it makes none of the decisions of `fuse.py`. A `Template` is kept as a record
(`graph/records.py`), under a name that depends on everything that decides it; that a file is as it was
written, the store knows (`store.py`).
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tinygrad import observer
from tinygrad.codegen.kernel_cache import device_key, uses_kernel_cache
from tinygrad.device import Device
from tinygrad.graph.ops import Family
from tinygrad.graph.portable import NotPortable
from tinygrad.graph.records import decode, encode
from tinygrad.schedule.cache import ScheduleCache, Structure, Template
from tinygrad.store import key_of, store_of

MAX_BYTES = 1 << 26
"""Bytes that schedules may take on disk."""
LEAST_NODES = 48
"""Graphs from which on a schedule is kept: one of a single expression takes less time than a file."""


def digest_of(structure: Structure) -> str | None:
    """A name for a structure and all else that its schedule depends on; None where it has none outside of
    this process."""
    devices = {Device.DEFAULT, *(b.arg.device for b in structure.buffers)}
    devices.update(n.device for n in structure.nodes if n.op in Family.TRANSFER)
    keys = [device_key(device) for device in sorted(devices)]
    text = structure.text
    return None if text is None or None in keys else key_of("schedule", text, *map(str, keys))


class PersistentSchedules:
    """The templates on disk, as `ScheduleCache` asks for them."""

    def __init__(self, least_nodes: int = LEAST_NODES) -> None:
        self.least_nodes = least_nodes

    def get_or_make(self, structure: Structure, make: Callable[[], Template]) -> Template:
        """The template kept for a structure that is worth it, where settings allow that; else what `make`
        gives, which is kept if it has a form outside of this process."""
        is_kept = len(structure.nodes) >= self.least_nodes and uses_kernel_cache() and observer.active is None
        key = digest_of(structure) if is_kept else None
        if key is None:
            return make()
        store = store_of("schedules", MAX_BYTES)
        if (text := store.get(key)) is not None:
            with suppress(ValueError):
                return decode(Template, text)
        template = make()
        with suppress(NotPortable):
            store.put(key, encode(Template, template))
        return template


schedules = ScheduleCache(disk=PersistentSchedules())
"""The process's schedules."""
