"""The persistent cache of schedules: on disk, by the structure of the graph that they compute.

The process's `schedules` look here for a structure that they do not hold: a process that runs what another
one ran before it makes none of the decisions of `fuse.py`. A `Template` is kept as JSON, its kernels in
portable form (`graph/portable.py`), under a name that depends on everything that decides it.
"""
from __future__ import annotations

import json
from typing import Any

from tinygrad import observer
from tinygrad.codegen.kernel_cache import device_key, uses_kernel_cache
from tinygrad.device import Device
from tinygrad.dtype import DType
from tinygrad.graph.ops import Ops
from tinygrad.graph.portable import NotPortable, Reader, Writer, dtype_of
from tinygrad.schedule.cache import ScheduleCache, Structure, Template, TemplateItem, TemplateView
from tinygrad.schedule.dynamic_slice import shared_memory
from tinygrad.schedule.memory import Arena
from tinygrad.store import key_of, store_of

MAX_BYTES = 1 << 26
"""Bytes that schedules may take on disk."""
LEAST_NODES = 48
"""Graphs from which on a schedule is kept: one of a single expression takes less time than a file."""


def to_json(template: Template) -> bytes:
    """A template as JSON. Raises NotPortable."""
    writer = Writer()
    items = [[writer.add(i.ast), i.slots, i.outputs, i.variables] for i in template.items]
    views = [[at, v and [v.number, [[op.name, writer.value(arg)] for op, arg in v.movements]]]
             for at, v in template.views]
    return json.dumps({
        "fresh": [[device, size, dtype.name] for device, size, dtype in template.fresh],
        "items": items, "views": views, "rows": writer.rows,
        "arenas": [[device, arena.size, list(arena.offsets.items())] for device, arena in template.arenas],
    }).encode()


def from_json(text: bytes, structure: Structure) -> Template:
    """The template of `structure` that `to_json` wrote. Raises ValueError for anything else."""
    try:
        found = json.loads(text)
        reader = Reader(found["rows"])
        fresh = tuple((str(d), int(size), dtype_of(name)) for d, size, name in found["fresh"])
        slots = range(len(structure.buffers) + len(fresh))
        template = Template(fresh, tuple(_item(i, reader, slots, structure) for i in found["items"]),
                            tuple(_view(v, reader, slots, structure) for v in found["views"]),
                            tuple(_arena(a, fresh, slots) for a in found["arenas"]))
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a schedule as this version writes it: {error}") from error
    return template


def _item(data: Any, reader: Reader, slots: range, structure: Structure) -> TemplateItem:
    ast, used, outputs, variables = data
    numbers = range(len(structure.variables))
    bound = tuple((str(name), str(source), numbers[n] if source else int(n))
                  for name, source, n in variables)
    return TemplateItem(reader.node(ast), tuple(slots[s] for s in used), int(outputs), bound)


def _view(data: Any, reader: Reader, slots: range, structure: Structure) -> tuple[int, TemplateView | None]:
    at, view = data
    at = range(len(structure.nodes))[at]
    if view is None:
        shared_memory(structure.nodes[at])
        return at, None
    number, movements = view
    return at, TemplateView(slots[number], tuple((Ops[op], reader.value(arg)) for op, arg in movements))


def _arena(data: Any, fresh: tuple[tuple[str, int, DType], ...], slots: range) -> tuple[str, Arena]:
    device, size, offsets = data
    known = len(slots) - len(fresh)
    for number, offset in offsets:
        _, items, dtype = fresh[number - known]
        if number < known or not 0 <= offset <= size - items * dtype.itemsize:
            raise ValueError(f"value {number} does not lie in its arena of {size} bytes")
    return str(device), Arena(int(size), dict(offsets))


def digest_of(structure: Structure) -> str | None:
    """A name for a structure and all else that its schedule depends on; None where it has none outside of
    this process."""
    devices = {Device.DEFAULT, *(b.arg.device for b in structure.buffers)}
    devices.update(n.arg for n in structure.nodes if n.op is Ops.COPY)
    keys = [device_key(device) for device in sorted(devices)]
    writer = Writer()
    try:
        fields = writer.value(structure.key)
    except NotPortable:
        return None
    return None if None in keys else key_of("schedule", json.dumps([fields, writer.rows]), *map(str, keys))


class PersistentSchedules:
    """The templates on disk, as `ScheduleCache` asks for them."""

    def __init__(self, least_nodes: int = LEAST_NODES) -> None:
        self.least_nodes = least_nodes

    def key(self, structure: Structure) -> str | None:
        """The name of a structure that is worth keeping, where settings allow that."""
        if len(structure.nodes) < self.least_nodes or not uses_kernel_cache() or observer.active is not None:
            return None
        return digest_of(structure)

    def get(self, key: str, structure: Structure) -> Template | None:
        """The template kept as `key`."""
        text = store_of("schedules", MAX_BYTES).get(key)
        try:
            return None if text is None else from_json(text, structure)
        except ValueError:
            return None

    def put(self, key: str, template: Template) -> None:
        """Keep a template, if it has a form outside of this process."""
        try:
            store_of("schedules", MAX_BYTES).put(key, to_json(template))
        except NotPortable:
            return


schedules = ScheduleCache(disk=PersistentSchedules())
"""The process's schedules."""
