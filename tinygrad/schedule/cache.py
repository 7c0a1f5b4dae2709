"""Schedules found again: graphs of equal structure have equal schedules, over other memory.

In: the nodes to realise. Out: their `Schedule`. `Structure` is what a schedule depends on: the graph down to
what is in memory, with a number for each BUFFER in the order in which a walk meets them, and for each
VARIABLE, whose value is left out; so are the start of a short slice of memory (`dynamic_slice.py`) and
numbers that changed before (`changing_numbers.py`). `Template` is a schedule in those numbers; it holds no
memory. A step of a training loop that is written like the one before costs a walk over its graph instead of
the decisions of `fuse.py`; in another process it costs reading a file (`persistent_cache.py`).

A graph of values on several devices has a structure and a template too, so that `partition.py` cuts it once.
There the start of a slice is part of the structure, for its shards may begin anywhere.
"""
from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from tinygrad import observer
from tinygrad.codegen.indexing import splat_value
from tinygrad.device import Device
from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.graph.node_flags import APPLIED
from tinygrad.graph.ops import Ops
from tinygrad.graph.portable import NotPortable, Writer
from tinygrad.graph.sharding import Layout, Sharding
from tinygrad.graph.sizes import Size
from tinygrad.graph.template import expanded, view_of_nodes
from tinygrad.graph.uop import UOp
from tinygrad.graph.writes import refuse_overwritten
from tinygrad.helpers import ALLOW_TF32, DYNAMIC_SHAPES, NOOPT, collector_paused
from tinygrad.schedule.changing_numbers import ChangingNumbers, GraphNumbers, numbers_of
from tinygrad.schedule.changing_sizes import MOST_BYTES, ChangingSizes, NotSized, SizedGraph, SizesOfForm
from tinygrad.schedule.copies import contiguous_part
from tinygrad.schedule.dynamic_slice import SliceStart, is_short_slice_of_memory, starts_of, starts_of_others
from tinygrad.schedule.exchanges import is_exchange, ordered_around_exchanges
from tinygrad.schedule.items import (
    BoundVariable,
    Intermediates,
    Schedule,
    ScheduleItem,
    Step,
    create_schedule,
)
from tinygrad.schedule.memory import Arena, lifetimes_by_device, plan_arena
from tinygrad.schedule.memory_views import IGNORED_ARGUMENT, shared_memory
from tinygrad.schedule.padded_shapes import PaddedShapes
from tinygrad.schedule.partition import is_sharded
from tinygrad.schedule.sharded_results import ShardedResults

MAX_FIELDS = 1 << 22
"""Fields of all that is kept, about 8 bytes each. What is oldest goes first, unless it was used since it was
last to go (the second-chance algorithm: an order of uses would hash each key twice)."""
TEMPLATE_FIELDS = 256
"""What a template takes beside its key, in which a node has four to six fields."""
STEP_FIELDS = 64
"""What each of its steps takes."""
MOST_SHOWN = 3
"""Results by which a program is described."""


class Structure:
    """What the schedule of `sinks` depends on, as a `key`, and what the numbers in it stand for."""

    __slots__ = (
        "buffers",
        "by_identity",
        "fields",
        "is_sharded",
        "key",
        "lines",
        "nodes",
        "numbers",
        "observed",
        "position",
        "sinks",
        "variables",
    )

    def __init__(self, sinks: list[UOp], is_sharded: bool = False,
                 numbers: GraphNumbers = MappingProxyType({})) -> None:
        self.numbers = numbers
        """those that are left out (`changing_numbers.py`)"""
        self.lines: tuple[int, ...] | None = None
        """the user's line that each node came from, where somebody records (`observer.py`)"""
        self.observed: Any = None
        """what the observer knows of running it at once"""
        self.sinks = sinks
        self.is_sharded = is_sharded
        """whether some values are on several devices"""
        self.nodes: list[UOp] = []
        self.buffers: list[UOp] = []
        self.variables: dict[SliceStart, int] = {}
        """the number of each VARIABLE, by its argument, among them those at which slices begin"""
        self.position: dict[UOp, int] = {}
        """of a node in `nodes`; computed nodes have that of their view"""
        self.fields: list[Any] = []
        self.by_identity: dict[int, int] = {}
        self.walk(sinks)
        at = map(self.position.__getitem__, sinks)
        self.key: tuple[Any, ...] = (*self.fields, *at, Device.DEFAULT, NOOPT.value, ALLOW_TF32.value,
                                     is_sharded and Device.ONE_MEMORY)

    @property
    def text(self) -> str | None:
        """The key, as every process has it; None where it holds what only this one knows."""
        writer = Writer()
        try:
            return json.dumps([writer.value(self.key), writer.rows])
        except NotPortable:
            return None

    def walk(self, sinks: list[UOp]) -> None:
        """Number every node, sources first."""
        position, nodes, fields = self.position, self.nodes, self.fields
        number, buffer, expand = position.__getitem__, Ops.BUFFER, Ops.EXPAND
        stack: list[Any] = sinks[::-1]  # nodes, and as tuples those that wait for their sources
        while stack:
            node = stack.pop()
            if type(node) is tuple:
                node, op, source, view = node
            elif node in position:
                continue
            else:
                op, source = node.op, node.src
                view = None if node.computed_into is None else node.realized_view
                if view is None and op is Ops.APPLY:
                    view = view_of_nodes(node)
                if view is not None and splat_value(node) is None:
                    if view in position:
                        position[node] = position[view]
                    else:
                        stack += (node, view)
                    continue
                if op is expand and node.device is None:
                    value = repeated_number(node)
                    if value is not None:
                        position[node] = len(nodes)
                        nodes.append(node)
                        fields += (op, self.constant(value), node.shape)
                        continue
                elif op in IGNORED_ARGUMENT:
                    source = source[:1]
                elif op is buffer:
                    if node.arg.layout is None:
                        self.add_memory(node)
                        continue
                    source = node.shards
            for below in source:
                if below not in position:
                    if below.op is not buffer or below.arg.layout is not None:
                        stack += ((node, op, source, view), *source[::-1])
                        break
                    self.add_memory(below)
            else:
                position[node] = len(nodes)
                nodes.append(node)
                if op in SPECIAL:
                    self.add_special(node)
                elif node.src:
                    fields += (op, node.dtype, node.arg, *map(number, source))
                else:
                    self.add_leaf(node)
                if view is not None:
                    fields.append("constant in memory")

    def add_special(self, node: UOp) -> None:
        """The fields of a node whose operation is SPECIAL."""
        op, below = node.op, node.src[0]
        if op in IGNORED_ARGUMENT:
            self.fields += (op, node.dtype, self.position[below])
        elif node in self.numbers:
            self.add_movement(node, self.numbers[node])
        elif op is Ops.SHRINK and not self.is_sharded and is_short_slice_of_memory(node):
            self.add_movement(node, starts_of(node.arg, below.shape))
        else:
            part = contiguous_part(below) if op is Ops.COPY else None
            self.fields += (op, node.dtype, node.arg, part, *[self.position[s] for s in node.src])

    def add_memory(self, node: UOp) -> None:
        """Number a BUFFER on one device."""
        spec, buffers = node.arg, self.buffers
        if node.storage.version != spec.version:
            refuse_overwritten(node)
        self.position[node] = len(self.nodes)
        self.nodes.append(node)
        number = len(buffers)
        first = self.by_identity.setdefault(spec.identity, number)
        shared = None if first == number else (first, spec.version - buffers[first].arg.version)
        buffers.append(node)
        self.fields += (Ops.BUFFER, node.dtype, spec.device, spec.size, shared)

    def add_leaf(self, node: UOp) -> None:
        """The fields of a node without sources, but for memory on one device."""
        if node.op is Ops.BUFFER:
            if node.is_overwritten:
                refuse_overwritten(node)
            self.fields += (node.op, node.dtype, node.arg.device, node.arg.layout,
                            *[self.position[shard] for shard in node.shards])
        elif node.op is Ops.VARIABLE:
            self.fields.extend((node.op, self.number(node.arg), *node.arg[:3]))
        else:
            self.fields.append(self.constant(node))

    def constant(self, node: UOp) -> Any:
        """The field of a CONST: itself, or the number of the VARIABLE that stands for it."""
        (start,) = self.numbers.get(node, (None,))
        return node if start is None else (node.dtype, self.number(start))

    def add_movement(self, node: UOp, starts: Sequence[SliceStart | None]) -> None:
        """The fields of a slice that begins at VARIABLEs along some axes, or of padding that ends there."""
        self.fields += (node.op, node.dtype, node.shape, self.position[node.src[0]])
        self.fields += [span if start is None else self.number(start)
                        for span, start in zip(node.arg, starts, strict=True)]

    def number(self, variable: SliceStart) -> int:
        """The number of a VARIABLE with that argument; equal ones have the same."""
        return self.variables.setdefault(variable, len(self.variables))


SPECIAL = IGNORED_ARGUMENT | {Ops.SHRINK, Ops.PAD, Ops.COPY}
"""Operations of which a schedule depends on something else than operation, dtype, argument and sources."""


def repeated_number(node: UOp) -> UOp | None:
    """The CONST that `node` repeats, as `UOp.const` makes it, where none of its nodes is in memory."""
    row = node.src[0]
    if row.op is not Ops.RESHAPE or row.computed_into is not None or node.computed_into is not None:
        return None
    number = row.src[0]
    return number if number.op is Ops.CONST and number.computed_into is None else None


class MovingView(ValueError):
    """A result is a view whose place is another one in each graph: its schedule serves one only."""


@frozen
class TemplateView:
    """Movement over a BUFFER, by its number."""

    number: int
    movements: tuple[tuple[Ops, Any], ...]

    @staticmethod
    def of(view: UOp, slot_of: dict[UOp, int]) -> TemplateView:
        """Raises MovingView for a view at VARIABLEs."""
        movements = []
        while view.op is not Ops.BUFFER:
            if len(view.src) != 1:
                raise MovingView
            movements.append((view.op, view.arg))
            (view,) = view.src
        return TemplateView(slot_of[view], tuple(reversed(movements)))

    def over(self, buffers: Sequence[UOp] | Mapping[int, UOp]) -> UOp:
        node = buffers[self.number]
        for op, arg in self.movements:
            node = UOp.new(op, node.dtype, (node,), arg)
        return node


@frozen
class TemplateShards:
    """A BUFFER on several devices, by what its pieces are views of."""

    devices: tuple[str, ...]
    layout: Layout
    shards: tuple[TemplateView, ...]

    @staticmethod
    def of(node: UOp, slot_of: dict[UOp, int]) -> TemplateShards:
        return TemplateShards(node.arg.device, node.arg.layout,
                              tuple(TemplateView.of(shard, slot_of) for shard in node.shards))

    def over(self, buffers: Sequence[UOp] | Mapping[int, UOp]) -> UOp:
        return UOp.sharded_buffer(self.devices, self.layout, [shard.over(buffers) for shard in self.shards])


@dataclass
class Template:
    """A schedule without its memory: the structure's buffers come first in the numbers, then fresh ones."""

    fresh: tuple[tuple[str, int, DType], ...]
    steps: tuple[Step, ...]
    """the value of a variable that has a source is its number"""
    views: tuple[tuple[int, TemplateView | None], ...]
    """for each node that gets a value: its position, and the view that will hold it; None where that is
    memory which it shares with other nodes of the structure"""
    arenas: tuple[tuple[str, Arena], ...]
    """for each device that has intermediates, where those lie"""
    results: tuple[TemplateShards, ...] = ()
    """memory on several devices, whose numbers come last"""
    starts: tuple[SliceStart, ...] = ()
    """of a structure that is spread: where slices begin, numbered after its variables"""
    node_lines: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    """the user's line that each node of the structure came from, where somebody records (`observer.py`)"""
    launch: Any = field(default=None, compare=False, repr=False)
    """what the engine has made of it, so that it can be run at once (`engine/immediate.py`)"""
    observed: Any = field(default=None, compare=False, repr=False)
    """what the observer knew of it when it last ran so"""
    was_used: bool = field(default=False, compare=False, repr=False)
    """whether it was found again since the cache last looked for what to forget"""
    sizes: SizesOfForm | None = field(default=None, compare=False, repr=False)
    """those of its graph among those of all graphs which are equal but for sizes"""

    @staticmethod
    def of(schedule: Schedule, structure: Structure) -> Template:
        """The template of a structure's schedule."""
        number_of = dict(structure.variables)
        for variable in (v.variable for item in schedule.items for v in item.variables if v.source):
            number_of.setdefault(variable, len(number_of))
        starts = tuple(list(number_of)[len(structure.variables):])
        slot_of = {buffer: i for i, buffer in enumerate(structure.buffers)}
        known = len(slot_of)
        bases = dict.fromkeys(view.base for view in schedule.views.values())
        several = [base for base in bases if base.arg.layout is not None and base not in structure.position]
        touched = [b for item in schedule.items for b in item.buffers]
        for buffer in (*touched, *(memory for base in bases for memory in base.memories)):
            slot_of.setdefault(buffer, len(slot_of))
        fresh = tuple((b.arg.device, b.arg.size, b.dtype) for b in list(slot_of)[known:])
        results = tuple(TemplateShards.of(base, slot_of) for base in several)
        slot_of.update({base: len(slot_of) + i for i, base in enumerate(several)})

        def numbered(variable: BoundVariable) -> BoundVariable:
            return variable._replace(value=number_of[variable.variable]) if variable.source else variable

        steps = tuple(Step.of(item, slot_of.__getitem__, numbered) for item in schedule.items)
        views = tuple((structure.position[node],
                       TemplateView.of(view, slot_of) if slot_of.get(view.base, 0) >= known else None)
                      for node, view in schedule.views.items())
        apart = {view.number for _, view in views if view is not None}
        apart.update(shard.number for base in results for shard in base.shards)
        apart.update(slot_of[b] for item in schedule.items if is_exchange(item) for b in item.buffers)
        inner = {number: (device, size * dtype.itemsize)
                 for number, (device, size, dtype) in enumerate(fresh, known) if number not in apart}
        arenas = tuple((device, plan_arena(values)) for device, values in
                       lifetimes_by_device([s.places for s in steps], inner).items())
        return Template(fresh, steps, views, arenas, results, starts)

    def over(self, structure: Structure) -> Schedule:
        """The schedule of another graph of that structure."""
        buffers = structure.buffers + [UOp.new_buffer(*spec) for spec in self.fresh]
        buffers += [memory.over(buffers) for memory in self.results]
        values = [value for *_, value in (*structure.variables, *self.starts)]
        items = [ScheduleItem(s.ast, tuple([buffers[p] for p in s.places]), s.outputs, tuple([
            v._replace(value=values[v.value]) if v.source else v for v in s.variables]), s.lines, s.program)
            for s in self.steps]
        views = {structure.nodes[at]: shared_memory(structure.nodes[at]) if view is None
                 else view.over(buffers) for at, view in self.views}
        intermediates = [Intermediates(device, arena, {n: buffers[n] for n in arena.offsets})
                         for device, arena in self.arenas]
        return Schedule(items, views, intermediates)


def with_program(items: list[ScheduleItem], structure: Structure) -> list[ScheduleItem]:
    """`items`, whose copies between processes say what they are for: a digest of the graph, and its
    results. Processes of unlike processors have the same graph."""
    if not any(map(is_exchange, items)):
        return items
    text = structure.text
    if text is None:
        return items
    shown = [f"{s.dtype.name} {s.shape} on {s.device}" for s in structure.sinks[:MOST_SHOWN]]
    more = [f"{len(structure.sinks) - MOST_SHOWN} more"] if len(structure.sinks) > MOST_SHOWN else []
    digest = zlib.crc32(text.encode())
    program = f"{', '.join([*shown, *more])} by graph {digest:08x} of {len(structure.nodes)} nodes"
    return [i._replace(program=program) if is_exchange(i) else i for i in items]


def with_known_values(items: list[ScheduleItem], structure: Structure) -> list[ScheduleItem]:
    """`items` of a graph, whose variables are fixed where they are not the structure's own."""
    known = structure.variables
    return [i._replace(variables=tuple([v if v.variable in known else BoundVariable(v.name, "", v.value)
                                        for v in i.variables])) for i in items]


def uses_memory_of_others(schedule: Schedule, structure: Structure) -> bool:
    """Whether a schedule uses memory that neither the structure tells of nor its items write: some value that
    is none of the structure's nodes (one inside an APPLY, a shard) was computed before. It is for this graph
    alone then; another one of that structure would have no such value."""
    known = set(structure.buffers)
    known.update(b for item in schedule.items for b in item.buffers[:item.outputs])
    shown = (memory for view in schedule.views.values() for memory in view.base.memories)
    return not known.issuperset(b for item in schedule.items for b in item.buffers) or \
        not known.issuperset(shown)


def unrealized(sinks: Sequence[UOp]) -> list[UOp]:
    """Those of `sinks` that have no value yet and are no views of memory."""
    return [s for s in sinks if (s.computed_into is None or s.realized_view is None)
            and s.viewed.op is not Ops.BUFFER]


def on_several_devices(outputs: Sequence[UOp]) -> bool:
    """Whether values on several devices are below `outputs`."""
    return Sharding.exists and any(is_sharded.of(s) for s in outputs)


def fields_of(template: Template, key: tuple[Any, ...]) -> int:
    """About how many fields it takes to keep a template under its key."""
    return TEMPLATE_FIELDS + STEP_FIELDS * len(template.steps) + len(key)


class PersistentTemplates(Protocol):
    """Templates that outlive the process."""

    def get_or_make(self, structure: Structure, make: Callable[[], Template]) -> Template:
        """The template of a structure: kept, or else made and kept."""


class ScheduleCache:
    """Templates by the key of their structure, up to a bound, and on disk where one is given."""

    def __init__(self, limit: int = MAX_FIELDS, disk: PersistentTemplates | None = None) -> None:
        self.limit = limit
        self.disk = disk
        self.size = 0
        self.templates: dict[tuple[Any, ...], Template] = {}
        self.lock = threading.Lock()
        self.numbers = ChangingNumbers()
        self.sizes = ChangingSizes()

    def schedule(self, sinks: Sequence[UOp], sizes_change: bool = False) -> Schedule:
        """The steps that compute `sinks`, each a tensor-graph node; `sizes_change` as `of_structure` has
        it."""
        structure = self.structure_of(sinks)
        if structure is not None:
            return self.of_structure(structure, self.known(structure, sizes_change), sizes_change)
        outputs = unrealized(sinks)
        if not outputs:
            return Schedule()
        return self.of_stand_ins((ShardedResults if on_several_devices(outputs) else PaddedShapes)(outputs))

    def of_stand_ins(self, graph: ShardedResults | PaddedShapes) -> Schedule:
        """The schedule of the graph that stands for another, and the views that hold the values of that."""
        schedule = self.schedule(graph.sinks)
        schedule.views = graph.views(schedule.views)
        return schedule

    def structure_of(self, sinks: Sequence[UOp]) -> Structure | None:
        """The structure of what is still to be computed of `sinks`; None where there is nothing to compute,
        or not of known sizes."""
        outputs = unrealized(sinks)
        if not outputs or (Size.exists and any(s.has_sizes for s in outputs)):
            return None
        return Structure(outputs, on_several_devices(outputs))

    def known(self, structure: Structure, sizes_change: bool = False) -> Template | None:
        """The template of a structure that was scheduled before, in this process. While somebody records,
        one that does not say which kernel is for which line of this graph counts for nothing; one for many
        sizes counts only where sizes may change."""
        template = self.templates.get(structure.key)
        if template is None:
            return None
        template.was_used = True
        if (sizes := template.sizes) is not None:
            sizes.history.graphs += 1
            if sizes.are_shared and not sizes.serve(sizes_change and bool(DYNAMIC_SHAPES.value)):
                return None
        watcher = observer.active
        return None if watcher is not None and not watcher.tells_lines(template, structure) else template

    def of_structure(self, structure: Structure, template: Template | None, sizes_change: bool = False
                     ) -> Schedule:
        """The schedule of a graph of known sizes; `template`: its own, where known. Where sizes may change it
        can be that of all graphs which differ in sizes alone."""
        if template is not None:
            return self.known_again(template, structure)
        if any([sink.flags & APPLIED for sink in structure.sinks]):
            return self.expanded_schedule(structure, sizes_change)
        sizes: SizesOfForm | None = None
        if sizes_change and DYNAMIC_SHAPES.value and observer.active is None and not structure.is_sharded:
            sizes, graph = self.sizes.of(structure)
            if sizes is not None and graph is not None:
                for_sizes = self.schedule_for_sizes(structure, sizes, graph)
                if for_sizes is not None:
                    return for_sizes
        if structure.is_sharded:
            with observer.span("partition", f"{len(structure.nodes)} nodes"):
                results = ShardedResults(structure.sinks)
            schedule = self.of_stand_ins(results)
            if not uses_memory_of_others(schedule, structure):
                schedule = self.kept(Template.of(schedule, structure), structure)
        elif numbers := self.changing_numbers(structure):
            schedule = self.schedule_for_numbers(structure, numbers)
        else:
            with observer.span("schedule", f"{len(structure.nodes)} nodes"):
                schedule = self.new_schedule(structure)
        if sizes is not None and structure.key in self.templates:
            self.templates[structure.key].sizes = schedule.sizes = sizes
        schedule.structure, schedule.is_new = structure, True
        return schedule

    def schedule_for_sizes(self, structure: Structure, sizes: SizesOfForm, graph: SizedGraph
                           ) -> Schedule | None:
        """The schedule of a structure by that of all which differ from it in sizes; kept as its own too. None
        where results do not lie as they have to, or much memory would be for sizes that never come."""
        schedule = self.schedule(graph.padded.sinks)
        try:
            views, copies = graph.views(structure.sinks, schedule.views)
        except NotSized:
            sizes.history.has_none = True
            return None
        template = Template.of(Schedule([*graph.items(schedule.items), *copies], views), structure)
        if sum([arena.size for _, arena in template.arenas]) > MOST_BYTES:
            sizes.history.has_none = True
            return None
        template.sizes = sizes._replace(are_shared=True)
        return self.kept(template, structure)

    def changing_numbers(self, structure: Structure) -> GraphNumbers:
        """The numbers of a new structure that were others in one seen before."""
        numbers = numbers_of([repeated_number(node) or node if node.op is Ops.EXPAND else node
                              for node in structure.nodes], structure.sinks)
        if not numbers or any(Device[memory.arg.device].elsewhere for memory in structure.buffers):
            return {}  # processes that exchange values schedule alike, whatever else each computes
        others = Structure(structure.sinks, numbers=numbers)
        with self.lock:
            return self.numbers.of(hash(others.key), numbers)

    def schedule_for_numbers(self, structure: Structure, numbers: GraphNumbers) -> Schedule:
        """The schedule of a structure by that of all which differ from it in some numbers; kept as its own
        too."""
        every = Structure(structure.sinks, numbers=numbers)
        template = self.known(every)
        try:
            schedule = self.new_schedule(every) if template is None else self.known_again(template, every)
        except MovingView:
            return self.new_schedule(structure)
        schedule.items = with_known_values(schedule.items, structure)
        self.keep(Template.of(schedule, structure), structure)
        return schedule

    def expanded_schedule(self, structure: Structure, sizes_change: bool) -> Schedule:
        """The schedule of results by all nodes that they stand for, kept as that of the results alone. Where
        slices begin inside a template is the same in all that it makes; variables below it are not. (Where
        they are equal by chance, nobody could tell them apart: nothing is kept.)"""
        results = {sink: expanded(sink) for sink in structure.sinks}
        schedule = self.schedule(list(results.values()), sizes_change)
        views = {sink: schedule.views.get(node) for sink, node in results.items()}
        new = {sink: view for sink, view in views.items() if view is not None}
        apart = structure.variables.keys().isdisjoint(starts_of_others(results.values(), structure.position))
        if apart and len(new) == len(views) and not uses_memory_of_others(schedule, structure):
            items = with_known_values(schedule.items, structure)
            template = Template.of(replace(schedule, items=items, views=new), structure)
            template.sizes = schedule.sizes
            self.keep(template, structure)
        known = {sink: held for sink, node in results.items() if (held := storage_view(node)) is not None}
        schedule.views.update(known | new)
        return schedule

    def kept(self, template: Template, structure: Structure) -> Schedule:
        """The schedule of a structure by its template, which is new and kept."""
        self.keep(template, structure)
        schedule = template.over(structure)
        schedule.sizes = template.sizes
        return schedule

    def known_again(self, template: Template, structure: Structure) -> Schedule:
        """The schedule of a graph by that of an equal one."""
        schedule = template.over(structure)
        schedule.structure, schedule.sizes = structure, template.sizes
        if (watcher := observer.active) is not None:
            schedule.items = watcher.items_again(schedule.items, template.node_lines, structure)
        return schedule

    def new_schedule(self, structure: Structure) -> Schedule:
        """The schedule of a structure that this process has not scheduled before."""
        def make() -> Template:
            with collector_paused():
                schedule = create_schedule(structure.sinks, structure.numbers)
                schedule.items = with_program(ordered_around_exchanges(schedule.items), structure)
            return Template.of(schedule, structure)

        return self.kept(make() if self.disk is None else self.disk.get_or_make(structure, make), structure)

    def keep(self, template: Template, structure: Structure) -> None:
        """Keep a new template, with the lines of its graph where somebody records."""
        if (watcher := observer.active) is not None:
            template.node_lines = watcher.lines_of_nodes(structure)
        key = structure.key
        with self.lock:
            if key not in self.templates:
                self.size += fields_of(template, key)
            self.templates[key] = template
            while self.size > self.limit:
                oldest = next(iter(self.templates))
                template = self.templates.pop(oldest)
                if template.was_used:  # it gets a second chance
                    template.was_used = False
                    self.templates[oldest] = template
                else:
                    self.size -= fields_of(template, oldest)
