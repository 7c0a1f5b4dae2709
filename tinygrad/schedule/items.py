"""Kernels written down as `ScheduleItem`s, in the order in which they run (`order.py`).

In: the nodes to realise. Out: a list of items, each a kernel (its piece of the graph over PARAMs) or a copy,
with the BUFFER nodes it touches, outputs first; and for every node that now gets a value, the view that will
hold it. Kernels of equal structure have the very same `ast` object, whatever buffers they work on.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from tinygrad import observer
from tinygrad.codegen.kernel_fission import kernel_groups
from tinygrad.codegen.lower import lower
from tinygrad.device import Device
from tinygrad.frozen import frozen
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Family, Ops, Visibility
from tinygrad.graph.shapes import inverse_permutation
from tinygrad.graph.symbolic import TRUE
from tinygrad.graph.uop import UOp
from tinygrad.helpers import reachable
from tinygrad.schedule.changing_numbers import GraphNumbers, shared_kernels, with_arguments
from tinygrad.schedule.copies import computing_device, contiguous_part, is_computed, transfer
from tinygrad.schedule.cost import BOUNDARIES, is_counter
from tinygrad.schedule.dynamic_slice import (
    SliceStart,
    dynamic_slice,
    dynamic_slices,
    is_dynamic_slice,
    starts_of,
    without_place,
)
from tinygrad.schedule.fuse import Fusion, Kernel
from tinygrad.schedule.layout import axis_order, cuts_loop, with_axes_joined, worth_ordering
from tinygrad.schedule.memory import Arena
from tinygrad.schedule.memory_views import IGNORED_ARGUMENT, in_own_memory, over_memory, shared_memory
from tinygrad.schedule.order import ordered_kernels
from tinygrad.schedule.simplify import simplified_graph
from tinygrad.schedule.split import runs_blocks


class BoundVariable(NamedTuple):
    """A kernel's scalar argument: its name in the kernel, the name it was made with, if it may be another one
    in another graph of that structure, its value, and its bounds."""

    name: str
    source: str
    value: int
    bounds: tuple[int, int] = (0, 0)

    @property
    def variable(self) -> SliceStart:
        """The argument of the VARIABLE that it is in the graph."""
        return self.source, *self.bounds, self.value


class ScheduleItem(NamedTuple):
    """One step: a kernel, if `ast` is a SINK of ASSIGNs over PARAMs; a copy between devices, if it is a
    COPY of a part of a PARAM; a COLLECTIVE of such parts."""

    ast: UOp
    buffers: tuple[UOp, ...]
    """BUFFER nodes in the order of the PARAM slots; what is written comes first"""
    outputs: int
    """how many of `buffers` are written"""
    variables: tuple[BoundVariable, ...] = ()
    lines: tuple[int, ...] = ()
    """the user's lines that it is for, where somebody records (`observer.py`)"""
    program: str = ""
    """of a copy between processes: what it is for, which all of them have to say alike (`exchanges.py`)"""

    @property
    def device(self) -> str:
        device: str = self.buffers[0].device
        return device

    def _repr_html_(self) -> str:
        """For notebooks: its loop nest and a picture of its graph."""
        return observer.html_of(self)

    def __repr__(self) -> str:
        kind = "kernel" if self.ast.op is Ops.SINK else self.ast.op.name.lower()
        shapes = ", ".join(f"{b.dtype.name}[{b.arg.size}]" for b in self.buffers)
        return f"ScheduleItem({kind} on {self.device}: {shapes})"


class Step(NamedTuple):
    """A `ScheduleItem` on memory that is given by numbers."""

    ast: UOp
    device: str
    places: tuple[int, ...]
    """the numbers of its memory; what is written comes first"""
    outputs: int
    variables: tuple[BoundVariable, ...]
    lines: tuple[int, ...] = ()
    program: str = ""

    @staticmethod
    def of(item: ScheduleItem, place: Callable[[UOp], int],
           variable: Callable[[BoundVariable], BoundVariable]) -> Step:
        """An item whose BUFFER nodes are at these places, and whose variables are given so."""
        return Step(item.ast, item.device, tuple(map(place, item.buffers)), item.outputs,
                    tuple(map(variable, item.variables)), item.lines, item.program)


@frozen
class Intermediates:
    """BUFFER nodes that only steps of one schedule use, by number, and where they lie in a device's
    memory."""

    device: str
    arena: Arena
    nodes: Mapping[int, UOp]


class ScheduledSteps(list[ScheduleItem]):
    """Steps in the order in which they run, as `Tensor.schedule` gives them."""

    def _repr_html_(self) -> str:
        """For notebooks: the steps, and a picture of them and the memory between them."""
        return observer.html_of(self)


@dataclass
class Schedule:
    """Items in order, and the views that will hold the value of each realised node."""

    items: list[ScheduleItem] = field(default_factory=list)
    views: dict[UOp, UOp] = field(default_factory=dict)
    intermediates: list[Intermediates] = field(default_factory=list)
    """what no view shows, where it may share memory"""
    structure: Any = None
    """the graph that it computes, for who observes (`observer.py`)"""
    is_new: bool = False
    """whether no equal graph had it before"""
    sizes: Any = None
    """those of the graph among those of graphs that are equal but for them (`changing_sizes.py`)"""


def create_schedule(sinks: list[UOp], numbers: GraphNumbers = MappingProxyType({})) -> Schedule:
    """The steps that compute `sinks`, each a tensor-graph node. `numbers` are arguments of the kernels."""
    inner = _stored_inside(sinks)
    placed: dict[UOp, UOp] = {}
    """what stands for each node, with VARIABLEs for what kernels get as arguments"""
    simplified = simplified_graph([with_arguments(node, numbers, placed) for node in (*sinks, *inner)])
    graph, became = _in_memory(sinks, list(map(_where_asked, simplified, sinks)))
    nodes = list(UOp.sink(graph).toposort())
    buffered: frozenset[UOp] = frozenset()
    while True:
        fusion = Fusion(nodes, buffered)
        order, hazards = ordered_kernels(fusion)
        if not hazards:
            break
        if hazards <= buffered:
            raise RuntimeError(f"cannot order the writes of {', '.join(map(str, hazards))}")
        buffered |= hazards
    in_order = {s.viewed for s in graph if s.viewed.arg is not Visibility.ANY_ORDER}
    plan = _ScheduleWriter(nodes, fusion, in_order)
    schedule = Schedule()
    for kernel in order:
        items = [launch for item in plan.items_of(kernel) for launch in launches_of(item)]
        if (watcher := observer.active) is not None:
            lines = watcher.lines_of(plan.inside(kernel), kernel.outputs, len(items))
            items = [item._replace(lines=lines) for item in items]
        schedule.items.extend(items)
    schedule.items.extend(plan.late_writes())
    schedule.items = with_shared_kernels(schedule.items)
    results = dict(zip(sinks, graph, strict=True)) | _still_stored(inner, simplified[len(sinks):], became)
    held = {node: node.src[0] if node.op is Ops.ASSIGN else view for node, view in plan.buffer_of.items()}
    views = {original: over_memory(node, held) or node for original, node in results.items()}
    # what shows memory that was there shows it where the original does, and not at VARIABLEs
    schedule.views = {original: shared_memory(original) if view.base in placed else view
                      for original, view in views.items()}
    return schedule


def with_shared_kernels(items: list[ScheduleItem]) -> list[ScheduleItem]:
    """Steps whose kernels differ in numbers alone, as those of a loop in Python do whose rate falls, with one
    kernel that has these numbers as arguments."""
    found = shared_kernels(item.ast for item in items if item.ast.op is Ops.SINK)
    shared = []
    for item in items:
        ast, numbers = found.get(item.ast, (item.ast, ()))
        own = tuple([BoundVariable(name, "", value) for name, _, _, value in numbers])
        shared.append(item._replace(ast=ast, variables=item.variables + own) if own else item)
    return shared


def launches_of(item: ScheduleItem) -> list[ScheduleItem]:
    """The steps, one after another, that do what a step says: one, unless threads of a grid would read what
    others write."""
    if item.ast.op is not Ops.SINK or len(item.ast.src) < 2 or not runs_blocks(item.device):
        return [item]
    return [item._replace(ast=UOp.sink(item.ast.src[number] for number in group))
            for group in kernel_groups(lower(item.ast))]


def _where_asked(value: UOp, original: UOp) -> UOp:
    """What `original` was simplified to; where that is made of constants alone (x * 0), which no device
    holds, made on the device of the original."""
    is_nowhere = value.device is None and original.device is not None
    return value.copy_to(computing_device(original.device)) if is_nowhere else value


def _in_memory(outputs: list[UOp], graph: list[UOp]) -> tuple[list[UOp], dict[UOp, UOp]]:
    """`graph` in which all that must be in memory, whatever it costs, is CONTIGUOUS, for all who read it:
    what somebody makes so, results, and what is copied; and what became of each of its nodes.

    What folded to memory of another tensor (x * 1), which may be overwritten, is copied; what counts (arange)
    is stored for whom asked for that, and computed by all others. Views stay views, unless this schedule
    overwrites what they show.
    """
    order = UOp.sink(graph).toposort()
    written = {n.src[0].base for n in order if n.op is Ops.ASSIGN}

    def is_anothers(original: UOp, simplified: UOp) -> bool:
        memory = simplified.viewed
        return memory in written or memory.op in (Ops.CONST, Ops.VARIABLE) or is_counter(memory) or (
            memory.op in (Ops.BUFFER, Ops.ASSIGN) and not _is_view(original))

    results = [in_own_memory(s) if is_anothers(o, s) else s for o, s in zip(outputs, graph, strict=True)]
    stored: dict[UOp, UOp] = {}
    """what is stored of a node"""
    for node in order:
        if node.op is Ops.CONTIGUOUS and (node.arg is None or node.src[0] not in stored):
            value = node.src[0].viewed
            if (value.op in Family.ELEMENTWISE or value.op is Ops.REDUCE) and value.numel == node.numel \
                    and not is_counter(value):
                stored[node.src[0]] = node
    copied = (s for n in order if n.op in Family.TRANSFER and not is_computed(n) for s in n.src
              if contiguous_part(s) is None)
    for node in (*map(_stored_form, results), *copied):
        if node.op not in BOUNDARIES:
            stored.setdefault(node, in_own_memory(node))

    def over(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is Ops.CONTIGUOUS and src[0].op is Ops.CONTIGUOUS:
            return src[0]
        if node.op is Ops.ASSIGN and node.src[0].base.op is Ops.BUFFER:
            src = node.src[0], *src[1:]  # the memory itself, whoever else reads what is in it
        new, own = node.with_sources(src), stored.get(node)
        return new if own is None else own.replace(src=(new,))

    became: dict[UOp, UOp] = {}
    UOp.sink(results).rebuild(over, done=became)
    return [became[s] for s in results], became


def _is_view(node: UOp) -> bool:
    """True for a view of memory, which shares it with its source."""
    while node.realized_view is None and (node.op in Family.VIEW or node.op is Ops.DETACH):
        node = node.src[0]
    return node.realized_view is not None or node.op in (Ops.BUFFER, Ops.ASSIGN)


def _stored_form(sink: UOp) -> UOp:
    """The node to store for `sink`: what it is a view of, where that is computed and not larger, or written
    into memory that it then shows."""
    viewed = sink.viewed
    return sink if viewed.op is not Ops.ASSIGN and viewed.numel > sink.numel else viewed


def _stored_inside(outputs: list[UOp]) -> list[UOp]:
    """What is assigned or made contiguous below `outputs`, and so has a value of its own after them, which
    somebody may see."""
    own = set(outputs)
    return [node for node in reachable(outputs, _scheduled_sources) if node not in own
            and node.op in (Ops.ASSIGN, Ops.CONTIGUOUS) and node.arg is not Visibility.INTERMEDIATE
            and node.realized_view is None]


def _scheduled_sources(node: UOp) -> tuple[UOp, ...]:
    """The sources of a node that a schedule computes."""
    if node.realized_view is not None:
        return ()
    return node.src[:1] if node.op in IGNORED_ARGUMENT else node.src


def _still_stored(originals: list[UOp], simplified: list[UOp], became: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """Those of `originals` whose simplified form is to be stored too, with what `became` of it."""
    stored = {}
    for original, node in zip(originals, simplified, strict=True):
        if original.op is Ops.ASSIGN and node.op is Ops.CONTIGUOUS:
            node = node.src[0]  # copied, for a product to read it in another order
        if node.op is original.op and node in became:
            stored[original] = became[node]
    return stored


class _ScheduleWriter:
    """Gives stored nodes their buffers and kernels their `ast`."""

    def __init__(self, order: Sequence[UOp], fusion: Fusion, visible: set[UOp]) -> None:
        self.fusion = fusion
        self.fixed_layout = visible | {s for n in fusion.stored if n.op in Family.TRANSFER for s in n.src}
        self.fixed_layout |= {n for n, kernel in fusion.stored.items() if self.is_read_in_order(n, kernel)}
        """what users and copies expect in row-major order, and what is read beside that"""
        self.buffer_of: dict[UOp, UOp] = {}
        for kernel in fusion.kernels:
            for node in kernel.outputs:
                self.buffer_of[node] = self.storage(node)
        self.dynamic = dynamic_slices(map(self.inside, fusion.kernels)) if any(map(is_dynamic_slice,
                                                                                   order)) else set()

    def inside(self, kernel: Kernel) -> list[UOp]:
        """The nodes that a kernel computes, with all movement between them and what it reads."""
        found: dict[UOp, None] = {}
        for node in reversed(kernel.computed):
            while node.op in Family.MOVEMENT and node.src[0].op in Family.MOVEMENT:
                found[node] = None
                node = node.src[0]
            found[node] = None
        return list(found)

    def is_read_in_order(self, node: UOp, kernel: Kernel) -> bool:
        """Whether another kernel, that writes into a user's memory, reads this result of `kernel` item by
        item beside that: it is best in the order of that memory (parts of a weight's gradient, by its
        update)."""
        return any(user is not kernel and any(n.op is Ops.ASSIGN for n in user.outputs)
                   and access.valid is TRUE
                   and _loops(access.index) in map(_loops, user.output_loops.values())
                   for user, access in self.fusion.uses.get(node, ()))

    def storage(self, node: UOp) -> UOp:
        """The view that holds a stored node."""
        if node.op is Ops.ASSIGN and node not in self.fusion.buffered_assigns:
            return node.src[0]
        device = self.fusion.stored[node].group.device or Device.DEFAULT
        return UOp.new_buffer(device, node.numel, node.dtype).reshape(node.shape)

    # --- items ----------------------------------------------------------------------------------------------

    def items_of(self, kernel: Kernel) -> list[ScheduleItem]:
        """The steps of a kernel: none where it has no item to write."""
        root = kernel.outputs[0]
        if all(node.numel == 0 for node in kernel.outputs):
            return []
        if root.op in Family.TRANSFER and not is_computed(root):
            held = [self.buffer_of.get(source, source) for source in root.src]
            starts = [(contiguous_part(view) or (0, 0))[0] for view in held]
            buffers = self.buffer_of[root].base, *(view.base for view in held)
            return [ScheduleItem(transfer(root, buffers, starts), buffers, 1)]
        outputs = kernel.outputs
        item = self.kernel_item(outputs, [self.buffer_of[n] for n in outputs],
                                kernel.own.union(outputs))
        if not self.lay_out(kernel, item):
            return [item]
        assigns = [a.with_sources((self.buffer_of[n].over(a.src[0].base), a.src[1]))
                   for n, a in zip(outputs, item.ast.src, strict=True)]
        return [item._replace(ast=UOp.sink(assigns))]

    def lay_out(self, kernel: Kernel, item: ScheduleItem) -> bool:
        """Choose the order in memory of the outputs that nobody outside the schedule sees. True if one
        changed."""
        changed = False
        for number, node in enumerate(kernel.outputs):
            if node.op is Ops.ASSIGN or node in self.fixed_layout or not worth_ordering(node.shape):
                continue
            order = axis_order(item.ast, number)
            if self.is_read_flattened(node, order):
                order = self.order_of_readers(node)
            if order != tuple(range(len(order))):
                stored = self.buffer_of[node].base.reshape(tuple(node.shape[i] for i in order))
                self.buffer_of[node] = stored.permute(inverse_permutation(order))
                changed = True
        return changed

    def is_read_flattened(self, node: UOp, order: tuple[int, ...]) -> bool:
        """Whether a kernel reads a node again and again in a loop that its items in that `order` would
        cut."""
        return any(cuts_loop(order, index) for index in self.read_again(node))

    def order_of_readers(self, node: UOp) -> tuple[int, ...]:
        """The order of a node's axes in which those who read it again and again walk on."""
        order = tuple(range(len(node.shape)))
        for index in self.read_again(node):
            order = with_axes_joined(order, index)
        return order

    def read_again(self, node: UOp) -> list[tuple[UOp, ...]]:
        """The items of a node that kernels read again and again: a fully connected layer, for each of its
        rows."""
        return [access.index for kernel, access in self.fusion.uses.get(node, ())
                if kernel.group.reads_again(access)]

    def late_writes(self) -> list[ScheduleItem]:
        """The copies that move buffered values into the buffers they were assigned to, after every reader."""
        return [self.kernel_item([n], [n.src[0]], set())
                for n in self.fusion.stored if n in self.fusion.buffered_assigns]

    def kernel_item(self, outputs: list[UOp], targets: list[UOp], inlined: set[UOp]) -> ScheduleItem:
        """The kernel that stores `outputs` in `targets`. Nodes `inlined` are computed even where memory for
        them is there."""
        kernel_graph = _KernelGraph(self, inlined)
        for target in targets:  # what is written has the first slots
            kernel_graph.param(target.base)
        assigns = tuple(UOp.new(Ops.ASSIGN, n.dtype, (kernel_graph.view(t), kernel_graph.stored(n)))
                        for n, t in zip(outputs, targets, strict=True))
        written = len({t.base for t in targets})
        return ScheduleItem(UOp.sink(assigns), tuple(kernel_graph.slots), written,
                            tuple(kernel_graph.variables.values()))


def _loops(index: tuple[UOp, ...]) -> list[UOp]:
    return [i for i in index if i.op is not Ops.CONST]


class _KernelGraph:
    """A kernel's piece of the graph, written over PARAMs in place of BUFFERs and VARIABLEs without values."""

    def __init__(self, writer: _ScheduleWriter, inlined: set[UOp]) -> None:
        self.writer = writer
        self.inlined = inlined
        self.slots: dict[UOp, UOp] = {}
        """the PARAM of each BUFFER, in the order of their slots"""
        self.variables: dict[UOp, BoundVariable] = {}
        self.done: dict[UOp, UOp] = {}

    def param(self, buffer: UOp) -> UOp:
        if buffer not in self.slots:
            self.slots[buffer] = UOp.new(Ops.PARAM, buffer.dtype, (), (len(self.slots), buffer.arg.size))
        return self.slots[buffer]

    def view(self, view: UOp) -> UOp:
        """A view of a BUFFER as one of its PARAM."""
        return view.rebuild(top_down=self.leaf)

    def variable(self, node: UOp, known: bool = False) -> UOp:
        """The kernel's own name for a VARIABLE, without its value. `known`: graphs of this structure have
        that value too."""
        name, low, high, value = node.arg
        if node not in self.variables:
            own = without_place(name)
            taken = sum(without_place(other.arg[0]) == own for other in self.variables)
            self.variables[node] = BoundVariable(f"{own}_{taken}" if taken else own, "" if known else name,
                                                 value, (low, high))
        return UOp.new(Ops.VARIABLE, node.dtype, (), (self.variables[node].name, low, high, None))

    def leaf(self, node: UOp) -> UOp | None:
        """The argument of the kernel that a BUFFER or VARIABLE is; None for any other node."""
        if node.op is Ops.BUFFER:
            return self.param(node)
        return self.variable(node) if node.op is Ops.VARIABLE else None

    def argument(self, node: UOp) -> UOp | None:
        """What stands for a node in memory, or a leaf; None for what the kernel computes."""
        held = None if node in self.inlined else self.writer.buffer_of.get(node)
        return self.leaf(node) if held is None else self.view(held)

    def computed(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """What stands for a node that the kernel computes, over what stands for its sources."""
        if node in self.writer.dynamic:
            slice_ = dynamic_slice(node, src[0], starts_of(node.arg, node.src[0].shape, "step start"))
            return slice_.substitute({n: self.variable(n, known=True) for n in slice_.src[1:]
                                    if n.op is Ops.VARIABLE})
        if node.op is Ops.ASSIGN:
            return src[1]
        if node.op in (Ops.CONTIGUOUS, Ops.COPY):
            return src[0]
        return node.with_sources(src)

    def written(self, value: UOp) -> UOp:
        """What stands for `value`."""
        return value.rebuild(self.computed, self.argument, self.done)

    def stored(self, node: UOp) -> UOp:
        """The value of an output, and the predicate where it is live out."""
        value = self.written(node)
        condition = live_out_condition.of(node.src[1] if node.op is Ops.ASSIGN else node)
        if value.op is Ops.LIVE_OUT or condition is None:
            return value
        return UOp.new(Ops.LIVE_OUT, node.dtype, (value, self.written(condition)))


@Synthesized
def live_out_condition(node: UOp) -> UOp | None:
    """The condition outside which the items of a node do not matter, since what it is computed from item by
    item does not; None where none is known. (A WHERE may choose something else there.)"""
    if node.op is Ops.LIVE_OUT:
        return node.src[1]
    if node.op is Ops.CONTIGUOUS:
        return live_out_condition.of(node.src[0])
    if node.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND):
        condition = live_out_condition.of(node.src[0])
        return None if condition is None else condition.under(node.op, node.arg)
    if node.op in Family.ELEMENTWISE and node.op is not Ops.WHERE:
        found = (live_out_condition.of(source) for source in reversed(node.src))
        return next((condition for condition in found if condition is not None), None)
    return None
