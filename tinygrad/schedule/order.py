"""The order in which the kernels of a schedule run: each after what it reads, and what overwrites memory
after the readers of what was there.

In: kernels, as `fuse.py` divides a graph. Out: the same kernels in an order, and the ASSIGNs that make one
impossible: their values need buffers of their own first, and are copied where they belong at the end.
"""
from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tinygrad.codegen.indexing import Point, through_movement
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.schedule.fuse import Fusion, Kernel
from tinygrad.schedule.gathers import put_off_gathers

Dependences = dict[Kernel, dict[Kernel, UOp | None]]
"""The kernels that each one comes after: None for one whose result it reads, an ASSIGN for one that reads
what that overwrites."""


def _stored_bytes(kernel: Kernel) -> int:
    """How much memory the results of a kernel take."""
    return sum(node.numel * node.dtype.itemsize for node in kernel.outputs)


class KernelOrder:
    """What the kernels of `fusion` wait for."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def ordered_kernels(self) -> tuple[list[Kernel], set[UOp]]:
        """Kernels so that each comes after what it reads, and writes of a buffer after readers of its old
        value.

        The second result has the ASSIGNs that make this impossible: their values need buffers of their own
        first.
        """
        hazards: set[UOp] = set()
        after: Dependences = {k: dict.fromkeys(k.after) for k in self.fusion.kernels}
        writers = self.writers()
        reads = self.reads(writers)
        for kernel in self.fusion.kernels:
            hazard = self.own_hazard(kernel)
            if hazard is not None:
                hazards.add(hazard)
            for buffer, read_through in reads.get(kernel, ()):
                for assign in writers[buffer]:
                    writer = self.fusion.stored[assign]
                    if assign is read_through or assign in self.fusion.buffered_assigns or writer is kernel:
                        continue
                    if read_through is None or read_through in assign.toposort():
                        after[writer].setdefault(kernel, assign)
        return self.postponed(self.ordered(after, hazards), after), hazards

    def ordered(self, after: Dependences, hazards: set[UOp]) -> list[Kernel]:
        """Each kernel as soon as all that it comes after are there. Where they wait in circles, writes become
        `hazards` until they do not."""
        place = {kernel: i for i, kernel in enumerate(reversed(self.fusion.kernels))}
        waiting: dict[Kernel, list[Kernel]] = {}
        for kernel, waits in after.items():
            for other in waits:
                waiting.setdefault(other, []).append(kernel)
        missing = {kernel: len(waits) for kernel, waits in after.items()}
        order: dict[Kernel, None] = {}
        ready = [k for k in place if not missing[k]]
        while len(order) < len(place):
            if not ready:
                pending = [k for k in place if k not in order]
                write = _write_in_circle(pending, after)
                hazards.add(write)
                for waits in after.values():
                    for kernel in [k for k, waited_by in waits.items() if waited_by is write]:
                        del waits[kernel]
                missing = {k: len(after[k].keys() - order.keys()) for k in pending}
                ready = [k for k in pending if not missing[k]]
                continue
            order.update(dict.fromkeys(ready))
            freed = []
            for kernel in ready:
                for other in waiting.get(kernel, ()):
                    if kernel in after[other]:
                        missing[other] -= 1
                        if not missing[other]:
                            freed.append(other)
            ready = sorted(freed, key=place.__getitem__)
        return list(order)

    def postponed(self, order: list[Kernel], after: Dependences) -> list[Kernel]:
        """Kernels that store more than they read of others' results, right before the first that waits for
        them: until then that would only take up memory. Copies are not put off, as other work goes on beside
        them, but for those of what is there from the start (`put_off_gathers`)."""
        place = {kernel: 2 * i for i, kernel in enumerate(order)}
        first_reader: dict[Kernel, int] = {}
        """where the first that waits for a kernel is"""
        for kernel in reversed(order):
            read = sum(map(_stored_bytes, kernel.after))
            if kernel in first_reader and not kernel.group.is_copy and _stored_bytes(kernel) > read:
                place[kernel] = first_reader[kernel] - 1
            for other in after[kernel]:
                first_reader[other] = min(first_reader.get(other, place[kernel]), place[kernel])
        put_off_gathers(after, first_reader, place)
        return sorted(order, key=place.__getitem__)

    def writers(self) -> dict[UOp, list[UOp]]:
        """The ASSIGNs into each BUFFER."""
        found: dict[UOp, list[UOp]] = {}
        for node in self.fusion.stored:
            if node.op is Ops.ASSIGN:
                found.setdefault(node.src[0].base, []).append(node)
        return found

    def reads(self, writers: Mapping[UOp, list[UOp]]) -> dict[Kernel, dict[tuple[UOp, UOp | None], None]]:
        """What each kernel reads of memory that is written: (BUFFER, the ASSIGN whose result it reads, None
        for the value that was there before)."""
        found: dict[Kernel, dict[tuple[UOp, UOp | None], None]] = {}
        for buffer, assigns in writers.items():
            for kernel, _ in self.fusion.uses.get(buffer, ()):
                found.setdefault(kernel, {})[buffer, None] = None
            for assign in assigns:
                if assign not in self.fusion.buffered_assigns:
                    for kernel, _ in self.fusion.uses.get(assign, ()):
                        if kernel is not self.fusion.stored[assign]:
                            found.setdefault(kernel, {})[buffer, assign] = None
        return found

    def own_hazard(self, kernel: Kernel) -> UOp | None:
        """An ASSIGN of this kernel whose buffer the kernel also reads at other items than it writes."""
        targets = {n.src[0].base: n for n in kernel.outputs
                   if n.op is Ops.ASSIGN and n not in self.fusion.buffered_assigns}
        if not targets:
            return None
        for buffer, assign in targets.items():
            place = through_movement(Point(assign.src[0], kernel.output_loops[assign], None))[0]
            if any(i.index != place.index for k, i in self.fusion.uses.get(buffer, ()) if k is kernel):
                return assign
        return None


def _write_in_circle(pending: list[Kernel], after: Dependences) -> UOp:
    """The smallest ASSIGN for which kernels wait in a circle; all of `pending` wait for others of them."""
    unplaced = set(pending)
    path = [pending[0]]
    while path[-1] not in path[:-1]:
        path.append(next(k for k in after[path[-1]] if k in unplaced))
    circle = path[path.index(path[-1]):]
    writes = [w for k, needed in pairwise(circle) if (w := after[k][needed]) is not None]
    if not writes:
        raise RuntimeError("kernels that read each other's results cannot be ordered")
    return min(writes, key=lambda n: n.numel)
