"""When values that are in memory from the start are copied to other devices: one reader ahead.

In: the kernels of a schedule, what each comes after, and their places in the order. Out: later places for
copies that could be made at once. All made at once, the weights of every layer would be on every device
before the first one is used; so those of a layer are copied while the one before it computes.
"""
from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tinygrad.schedule.fuse import Kernel


def put_off_gathers(after: Mapping[Kernel, Mapping[Kernel, object]], first_reader: Mapping[Kernel, int],
                    place: dict[Kernel, int]) -> None:
    """Let each copy that waits for no other kernel's result (but such as only writes down what is in memory)
    come right before the reader that comes before its own on its device. `place` is changed; `first_reader`
    says where the first is that waits for a kernel."""
    copies = [k for k, waits in after.items()
              if k.group.is_copy and k in first_reader and not any(map(after.__getitem__, waits))]
    readers: dict[str, set[int]] = {}
    for copy in copies:
        readers.setdefault(copy.root.device, set()).add(first_reader[copy])
    reader_before = {(device, later): earlier for device, found in readers.items()
                     for earlier, later in pairwise(sorted(found))}
    moved: set[Kernel] = set()
    for copy in copies:
        earlier = reader_before.get((copy.root.device, first_reader[copy]))
        if earlier is not None and earlier - 1 > place[copy]:
            place[copy] = earlier - 1
            moved.update(after[copy])
    waiting: dict[Kernel, int] = {}
    for kernel, waits in after.items():
        for source in moved.intersection(waits):
            waiting[source] = min(waiting.get(source, place[kernel]), place[kernel])
    for source, first in waiting.items():
        place[source] = max(place[source], first - 1)
