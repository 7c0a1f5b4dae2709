"""The persistent cache of schedules: on disk, by the structure of the graph that they compute.

The process's `schedules` look here for a structure that they do not hold: a process that runs what another
one ran before it makes none of the decisions of `fuse.py`. A `Template` is kept as a record
(`graph/records.py`), under a name that depends on everything that decides it.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tinygrad import observer
from tinygrad.codegen.kernel_cache import device_key, uses_kernel_cache
from tinygrad.device import Device
from tinygrad.dtype import DType
from tinygrad.graph.ops import Family
from tinygrad.graph.portable import NotPortable
from tinygrad.graph.records import decode, encode
from tinygrad.schedule.cache import ScheduleCache, Structure, Template
from tinygrad.schedule.memory import Arena
from tinygrad.schedule.memory_views import over_memory
from tinygrad.store import key_of, store_of

MAX_BYTES = 1 << 26
"""Bytes that schedules may take on disk."""
LEAST_NODES = 48
"""Graphs from which on a schedule is kept: one of a single expression takes less time than a file."""


def template_of(text: bytes, structure: Structure) -> Template:
    """The template of `structure` that a text says. Raises ValueError for anything else."""
    template = decode(Template, text)
    slots = len(structure.buffers) + len(template.fresh)
    used = [place for step in template.steps for place in step.places]
    used += [view.number for _, view in template.views if view is not None]
    bound = [v.value for step in template.steps for v in step.variables if v.source]
    at = [position for position, _ in template.views]
    variables = len(structure.variables) + len(template.starts)
    for numbers, limit in ((used, slots), (bound, variables), (at, len(structure.nodes))):
        if not all(0 <= number < limit for number in numbers):
            raise ValueError(f"not a schedule of this structure: a number is not below {limit}")
    if any(view is None and over_memory(structure.nodes[at]) is None for at, view in template.views):
        raise ValueError("not a schedule of this structure: a node that shares no memory has no view")
    for _, arena in template.arenas:
        check_arena(arena, template.fresh, len(structure.buffers))
    return template


def check_arena(arena: Arena, fresh: tuple[tuple[str, int, DType], ...], known: int) -> None:
    """Raise ValueError where a value, by its number, does not lie in its arena."""
    for number, offset in arena.offsets.items():
        _, items, dtype = fresh[number - known] if known <= number < known + len(fresh) else ("", 0, None)
        if dtype is None or not 0 <= offset <= arena.size - items * dtype.itemsize:
            raise ValueError(f"value {number} does not lie in its arena of {arena.size} bytes")


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
                return template_of(text, structure)
        template = make()
        with suppress(NotPortable):
            store.put(key, encode(Template, template))
        return template


schedules = ScheduleCache(disk=PersistentSchedules())
"""The process's schedules."""
