"""The order in which the kernels of a schedule run: each after what it reads, and what overwrites memory
after the readers of what was there.

In: kernels, as `fuse.py` divides a graph. Out: the same kernels in an order, and the ASSIGNs that make one
impossible: their values need buffers of their own first, and are copied where they belong at the end.
"""
from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from tinygrad.codegen.indexing import Access
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.fuse import Fusion, Kernel

Dependences = dict[Kernel, dict[Kernel, UOp | None]]
"""The kernels that each one comes after: None for one whose result it reads, an ASSIGN for one that reads
what that overwrites."""


def _stored_bytes(kernel: Kernel) -> int:
    """How much memory the results of a kernel take."""
    return sum(node.numel * node.dtype.itemsize for node in kernel.outputs)


def ordered_kernels(fusion: Fusion) -> tuple[list[Kernel], set[UOp]]:
    """Kernels so that each comes after what it reads, and writes of a buffer after readers of its old value.

    The second result has the ASSIGNs that make this impossible: their values need buffers of their own first.
    """
    after: Dependences = {kernel: {**kernel.after} for kernel in fusion.kernels}
    hazards: set[UOp] = set()
    writes = {node: kernel for node, kernel in fusion.stored.items()
              if node.op is Ops.ASSIGN and node not in fusion.buffered_assigns}
    by_buffer: dict[UOp, list[UOp]] = {}
    for write, writer in writes.items():
        buffer = write.src[0].base
        by_buffer.setdefault(buffer, []).append(write)
        place, _ = Access(writer.output_loops[write]).of_base(write.src[0])
        if any(kernel is writer and access.index != place.index
               for kernel, access in fusion.uses.get(buffer, ())):
            hazards.add(write)  # its kernel reads other items of the buffer than it writes
    for buffer, assigns in by_buffer.items():
        for read in (buffer, *assigns):
            for write in assigns:
                if write is read or (read is not buffer and read not in write.toposort()):
                    continue
                for kernel, _ in fusion.uses.get(read, ()):
                    if kernel is not writes[write] and kernel is not writes.get(read):
                        after[writes[write]].setdefault(kernel, write)
    return postponed(in_rounds(fusion.kernels, after, hazards), after), hazards


def in_rounds(kernels: Sequence[Kernel], after: Dependences, hazards: set[UOp]) -> list[Kernel]:
    """Each kernel as soon as all that it comes after are there. Where they wait in circles, writes become
    `hazards` until they do not."""
    place = {kernel: i for i, kernel in enumerate(reversed(kernels))}
    while True:
        rounds = TopologicalSorter(after)
        try:
            rounds.prepare()
            break
        except CycleError as error:
            write = _write_in_circle(error.args[1], after)
            hazards.add(write)
            for waits in after.values():
                for kernel in [k for k, waited_by in waits.items() if waited_by is write]:
                    del waits[kernel]
    order: list[Kernel] = []
    while rounds.is_active():
        ready = sorted(rounds.get_ready(), key=place.__getitem__)
        rounds.done(*ready)
        order += ready
    return order


def postponed(order: Sequence[Kernel], after: Dependences) -> list[Kernel]:
    """Kernels that store more than they read of others' results, right before the first that waits for them:
    until then that would only take up memory. Copies are not put off, as other work goes on beside them, but
    for those that wait for no other kernel's result (but such as only writes down what is in memory). All
    made at once, the weights of every layer would be on every device before the first one is used; so each
    comes right before the reader that comes before its own on its device."""
    place = {kernel: 2 * i for i, kernel in enumerate(order)}
    first_reader = put_off_large(order, after, place)
    copies = [k for k in first_reader if k.group.is_copy and not any(map(after.__getitem__, after[k]))]
    readers: dict[str, set[int]] = {}
    for copy in copies:
        readers.setdefault(copy.root.device, set()).add(first_reader[copy])
    reader_before = {(device, later): earlier for device, found in readers.items()
                     for earlier, later in pairwise(sorted(found))}
    for copy in copies:
        earlier = reader_before.get((copy.root.device, first_reader[copy]), 0)
        place[copy] = max(place[copy], earlier - 1)
    put_off_large(order, after, place)  # what only those copies read
    return sorted(order, key=place.__getitem__)


def put_off_large(order: Sequence[Kernel], after: Dependences, place: dict[Kernel, int]) -> dict[Kernel, int]:
    """Put kernels that store more than they read right before the first that waits for them. The result says
    where that is for each kernel that another waits for."""
    first_reader: dict[Kernel, int] = {}
    for kernel in reversed(order):
        read = sum(map(_stored_bytes, kernel.after))
        if kernel in first_reader and not kernel.group.is_copy and _stored_bytes(kernel) > read:
            place[kernel] = first_reader[kernel] - 1
        for other in after[kernel]:
            first_reader[other] = min(first_reader.get(other, place[kernel]), place[kernel])
    return first_reader


def _write_in_circle(circle: Sequence[Kernel], after: Dependences) -> UOp:
    """The smallest ASSIGN for which kernels wait, each for the one before it, in a circle."""
    writes = [w for needed, kernel in pairwise(circle) if (w := after[kernel][needed]) is not None]
    if not writes:
        raise RuntimeError("kernels that read each other's results cannot be ordered")
    return min(writes, key=lambda n: n.numel)
