"""The order of steps that exchange values between processes: copies early and together, what waits for them
late.

In: the steps of a schedule, in an order in which they can run. Out: the same in another such order. Copies
between processes (`CompiledDevice.exchanges`) stand together in buckets, each of which is one exchange of
messages: a bucket is closed when it has `BUCKET_BYTES` for each process, or when there is nothing else to
compute until it is there. One with much for some processes and little for others first gets what is computed
for exchanges alone, since messages both ways take as long as those of one. What needs its values comes after
what needs none, so that the gradients of a network's last layers are summed while those of its first are
computed. The order follows from the steps alone, and so is the same in all processes: they wait for each
other in no circle.
"""
from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import shape_of_blocks
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.schedule.copies import starts_of_parts, transfer
from tinygrad.schedule.items import ScheduleItem

BUCKET_BYTES = 1 << 20
"""What copies to one process have in one bucket: from 1 MB on a message takes its bytes' time (`python -m
bench scale`)."""
IN_FLIGHT = 2
"""Buckets that nobody waits for: while one is on its way the next is filled."""


def is_exchange(item: ScheduleItem) -> bool:
    """Whether a step is a collective, or a copy from a process to a device."""
    return item.ast.op is Ops.COLLECTIVE or (
        item.ast.op is Ops.COPY and Device[item.buffers[1].device].exchanges)


def with_whole_collectives(items: Sequence[ScheduleItem]) -> list[ScheduleItem]:
    """`items` with one step for each collective, which fills the memory of all that take part, where the
    first of those was that fill one's."""
    parts: dict[tuple[object, ...], dict[str, ScheduleItem]] = {}
    for item in items:
        if item.ast.op is Ops.COLLECTIVE:
            parts.setdefault(_collective_of(item), {})[item.device] = item
    order: list[ScheduleItem] = []
    for item in items:
        if item.ast.op is not Ops.COLLECTIVE:
            order.append(item)
        elif found := parts.pop(_collective_of(item), None):
            order.append(_whole(item, found))
    return order


def _collective_of(item: ScheduleItem) -> tuple[object, ...]:
    """What the steps of one collective have in common."""
    return item.buffers[1:], tuple(starts_of_parts(item.ast)), item.ast.arg[1]


def _whole(first: ScheduleItem, parts: Mapping[str, ScheduleItem]) -> ScheduleItem:
    """The step of a collective, of which `parts` are those of each device that uses the result."""
    target, *given = first.buffers
    _, what, *number = first.ast.arg
    sizes = [prod(shape_of_blocks(what, i)) if number else target.arg.size for i in range(len(given))]
    targets = [parts[b.device].buffers[0] if b.device in parts
               else UOp.new_buffer(b.device, size, target.dtype)
               for b, size in zip(given, sizes, strict=True)]
    buffers = (*targets, *given)
    ast = first.ast.replace(arg=(targets[0].device, what, *(0 for _ in number)))
    return first._replace(ast=transfer(ast, buffers, starts_of_parts(ast)), buffers=buffers,
                          outputs=len(targets))


def ordered_around_exchanges(items: Sequence[ScheduleItem]) -> list[ScheduleItem]:
    """`items` with their exchanges in buckets, beside what does not wait for them."""
    whole = with_whole_collectives(items)
    return _Order(whole).order if any(map(is_exchange, whole)) else whole


def dependences(items: Sequence[ScheduleItem]) -> list[set[int]]:
    """For each step the numbers of those before it that it has to come after: they write what it uses, or
    use what it writes."""
    written: dict[int, int] = {}
    read: dict[int, set[int]] = {}
    found = []
    for number, item in enumerate(items):
        used = [node.arg.identity for node in item.buffers]
        outputs = used[:item.outputs]
        found.append({written[memory] for memory in used if memory in written}.union(
            *(read.get(memory, ()) for memory in outputs)))
        for memory in used:
            read.setdefault(memory, set()).add(number)
        for memory in outputs:
            written[memory], read[memory] = number, set()
    return found


class _Order:
    """Steps as soon as what they come after is there, in the order given where that leaves a choice."""

    def __init__(self, items: Sequence[ScheduleItem]) -> None:
        self.items = items
        self.order: list[ScheduleItem] = []
        after = dependences(items)
        self.steps = TopologicalSorter(dict(enumerate(after)))
        self.steps.prepare()
        of_kernels = [others for item, others in zip(items, after, strict=True) if not is_exchange(item)]
        self.feeds = set[int]().union(*after).difference(*of_kernels)
        """the steps for whose results nothing but exchanges waits"""
        self.ready: list[int] = []
        """a heap of the kernels that can run"""
        self.feeding: list[int] = []
        """and of those that can, and feed exchanges"""
        self.devices = list(dict.fromkeys(target.device for item in items if is_exchange(item)
                                         for target in item.buffers[:item.outputs]))
        self.bucket: list[int] = []
        self.bytes: Counter[str] = Counter()
        """of the bucket, to each device"""
        self.in_flight: deque[list[int]] = deque()
        self.done()
        while self.ready or self.feeding or self.bucket or self.in_flight:
            if (kernels := self.next_kernels()) is not None:
                number = heapq.heappop(kernels)
                self.order.append(items[number])
                self.done(number)
            elif self.bucket:
                self.close()
            else:
                self.land()

    def done(self, *numbers: int) -> None:
        """Let what waited for these steps run, or what waits for none."""
        self.steps.done(*numbers)
        for number in self.steps.get_ready():
            self.add(number)

    def add(self, number: int) -> None:
        """A step that can run from here on."""
        item = self.items[number]
        if not is_exchange(item):
            heapq.heappush(self.feeding if number in self.feeds else self.ready, number)
            return
        self.bucket.append(number)
        for target in item.buffers[:item.outputs]:
            self.bytes[target.device] += target.arg.size * target.dtype.itemsize

    def next_kernels(self) -> list[int] | None:
        """The heap that has the kernel to run next; None where the bucket is to be closed first, for each
        device gets `BUCKET_BYTES`, or one twice as much and no kernel can add to that."""
        each = [self.bytes[device] for device in self.devices]
        if min(each) >= BUCKET_BYTES:
            return None
        is_lopsided = max(each) >= 2 * BUCKET_BYTES
        heaps = (self.feeding,) if is_lopsided else (self.feeding, self.ready)
        return min(filter(None, heaps), key=lambda heap: heap[0], default=None)

    def close(self) -> None:
        """Let the bucket be exchanged; the oldest of too many in flight is waited for."""
        self.order.extend(self.items[number] for number in sorted(self.bucket))
        self.in_flight.append(self.bucket)
        self.bucket, self.bytes = [], Counter()
        if len(self.in_flight) > IN_FLIGHT:
            self.land()

    def land(self) -> None:
        """Let what needs the oldest bucket in flight run."""
        self.done(*self.in_flight.popleft())
