"""Sizes that change from graph to graph are Variables of one schedule.

Batches of another size, a sequence that grows by one, as many items as a mask picks: graphs that differ in
sizes alone, for each of which kernels would be compiled. In: the nodes of a graph that nobody has scheduled
(`cache.py`). Out, where graphs that are equal but for their sizes came before: the same graph over memory of
more items, in which each size that changes is an expression of Variables (`graph/sizes.py`), so that
`padded_shapes.py` makes of it what it makes of a user's own. One schedule serves all sizes up to the next
power of two. Next on the path: `padded_shapes.py`.

Which sizes go together is not known, only seen: of each number in the graph's movement there is the row of
what it was in every graph so far. Equal rows are one size; a row that is twice another, or one more, is an
expression of it. A graph for which what was concluded does not hold is one more to conclude from; where it
does hold, the expressions are the numbers of this graph, and nothing else needs to be true of them.

What is read is copied into the larger memory, and results out of it, row by row where rows change in length,
by devices that copy as the host does: a kernel could not, for its loops may look beyond the true sizes.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement, product
from operator import mul
from typing import Any, NamedTuple, Protocol

from tinygrad.device import Device
from tinygrad.device.queue import ThreadedQueue
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import Size, SizeError, largest, largest_shape
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.schedule.changing_numbers import MEANS_MORE
from tinygrad.schedule.copies import transfer
from tinygrad.schedule.dynamic_slice import SliceStart, is_short_slice_of_memory, starts_of
from tinygrad.schedule.items import BoundVariable, ScheduleItem
from tinygrad.schedule.memory_views import IGNORED_ARGUMENT, memory_of
from tinygrad.schedule.padded_shapes import PaddedShapes

MAX_SIZES = 1 << 18
"""Numbers of all forms that are remembered. What is oldest goes first."""
MOST_EXAMPLES = 6
"""Graphs of one form from which its expressions are concluded, after which it has none."""
MOST_VARIABLES = 8
"""Sizes of one form that change by themselves."""
SMALLEST_LIMIT = 16
"""Sizes up to this one share a schedule."""
FEW = 2
"""Different sizes that no others are expected to follow: of training and of tests, or of the last batch."""
MANY = 4
"""Different sizes from which on others are expected, however often each came."""
OFTEN = 4
"""Times that each of a few sizes came on average, from which on they are phases of a program, and a new one
is another phase; and times in a row. Sizes that come more often have kernels of their own: shared ones take
as long or up to 1.46 times (products of 128 to 1024 rows, on Intel)."""

MOST_RUNS = 256
"""Copies for one value, of whose rows the length changes."""
MOST_BYTES = 1 << 27
"""Memory of a schedule's intermediates above which each size has one of its own: up to half of it would be
for items that are not there, and kernels that take so much run longer than they compile."""
SHAPES = (Ops.RESHAPE, Ops.EXPAND)
COMPUTED = Family.ELEMENTWISE | IGNORED_ARGUMENT | {
    Ops.REDUCE, Ops.PERMUTE, Ops.STRIDE, Ops.CONTIGUOUS, Ops.ASSIGN,
}
"""Operations whose arguments are the same whatever the sizes are."""


class NotSized(ValueError):
    """A graph cannot be said with sizes that are expressions of Variables."""


@frozen
class SizedForm:
    """What is left of a graph without its sizes, and the sizes."""

    form: int
    """the hash of the graph without sizes"""
    numbers: tuple[int, ...]
    """sizes, and where slices begin or padding ends"""
    order: tuple[int, ...]
    """where those are that are most likely to be sizes by themselves, and then the others; last, places"""
    places: int
    """how many places there are"""
    nodes: tuple[tuple[UOp, int, int], ...]
    """nodes whose argument has numbers, and where these begin and end"""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those of its numbers that are sizes."""
        return tuple([self.numbers[at] for at in sorted(self.order[:len(self.order) - self.places])])


class SchedulableGraph(Protocol):
    """What of a `Structure` (`cache.py`) is looked at here."""

    nodes: list[UOp]
    sinks: list[UOp]
    position: dict[UOp, int]


def sized_form(graph: SchedulableGraph) -> SizedForm | None:
    """A graph's sizes, and the rest of it; None where it has operations that are not done here."""
    fields: list[Any] = []
    numbers: list[int] = []
    nodes: list[tuple[UOp, int, int]] = []
    kinds: tuple[list[int], ...] = ([], [], [], [])
    for node in graph.nodes:
        op, known = node.op, None
        if op is Ops.BUFFER:
            if type(node.arg.device) is not str or not copies_by_host(node.arg.device):
                return None
            known, found = node.arg.device, [(2, node.arg.size)]
        elif op is Ops.CONST:
            known, found = node.arg if node.arg in MEANS_MORE else None, []
        elif op in COMPUTED:
            known, found = None if op in IGNORED_ARGUMENT else node.arg, []
        elif op in Family.MOVEMENT and len(node.src) < 2:
            found = _numbers_of(node)
        else:
            return None
        fields += (op, node.dtype, known, len(found))
        fields += [graph.position.get(s) for s in (node.src[:1] if op in IGNORED_ARGUMENT else node.src)]
        if found:
            nodes.append((node, len(numbers), len(numbers) + len(found)))
            for kind, number in found:
                kinds[kind].append(len(numbers))
                numbers.append(number)
    fields += [graph.position[sink] for sink in graph.sinks]
    order = tuple([at for of_kind in kinds for at in sorted(of_kind, key=numbers.__getitem__)])
    return SizedForm(hash(tuple(fields)), tuple(numbers), order, len(kinds[-1]), tuple(nodes))


def _numbers_of(node: UOp) -> list[tuple[int, int]]:
    """The numbers in the argument of movement, each with its kind: sizes that are told, sizes that follow,
    and (3) places. Where a short slice of memory begins is left out, as every schedule leaves it out."""
    if node.op in SHAPES:
        return [(0, size) for size in node.arg]
    if node.op is Ops.SHRINK:
        starts = _starts_left_out(node)
        return [*[(1, end - start) for start, end in node.arg],
                *[(3, start) for (start, _), left_out in zip(node.arg, starts, strict=True) if not left_out]]
    return [*[(1, size) for size in node.shape], *[(3, before) for before, _ in node.arg]]


def _starts_left_out(node: UOp) -> Sequence[SliceStart | None]:
    """Where a slice begins that is left out of what its schedule depends on, for each axis."""
    if not is_short_slice_of_memory(node):
        return [None] * len(node.arg)
    return starts_of(node.arg, node.src[0].shape)


def copies_by_host(device: str) -> bool:
    """Whether a device's queue copies memory as the host does."""
    found = Device[device]
    return found.computes and not found.elsewhere and isinstance(found.queue, ThreadedQueue) \
        and isinstance(found.copies, ThreadedQueue)


# --- which sizes go together --------------------------------------------------------------------------------


@frozen
class Expression:
    """A number that changes: a sum of products of Variables, and what does not change."""

    terms: tuple[tuple[int, tuple[int, ...]], ...]
    """a factor, and the numbers of Variables"""
    added: int = 0

    @staticmethod
    def of(variable: int) -> Expression:
        """A Variable by itself."""
        return Expression(((1, (variable,)),))

    def plus(self, added: int, *terms: tuple[int, tuple[int, ...]]) -> Expression:
        """It, and more."""
        return Expression((*self.terms, *terms), self.added + added)

    def value(self, variables: Sequence[Any]) -> Any:
        """It, of these values of the Variables: a number, or a size."""
        return sum([factor * prod([variables[i] for i in sizes]) for factor, sizes in self.terms],
                   start=self.added)


Instances = tuple[int, ...]
"""What a number of a form was in each example."""


@frozen
class Expressions:
    """The numbers of a form as expressions of Variables."""

    defined: tuple[int, ...]
    """for each Variable where it is among the numbers"""
    rows: tuple[tuple[Expression, tuple[int, ...]], ...]
    """expressions, each with the places of the numbers that it is"""
    fixed: tuple[tuple[int, int], ...]
    """(place, number) of those that never change"""

    @staticmethod
    def concluded(examples: Sequence[tuple[int, ...]], order: Sequence[int]) -> Expressions:
        """What holds in all examples. Raises NotSized where too many numbers change by themselves."""
        rows = list(zip(*examples, strict=True))
        places: dict[Instances, list[int]] = {}
        for at in order:
            places.setdefault(rows[at], []).append(at)
        known: dict[Instances, Expression] = {}
        variables: list[Instances] = []
        for row in places:
            if len(set(row)) > 1:
                found = next(_expressions_of(row, known, variables), None)
                if found is None:
                    if len(variables) == MOST_VARIABLES:
                        raise NotSized
                    found = Expression.of(len(variables))
                    variables.append(row)
                known[row] = found
        return Expressions(tuple([places[row][0] for row in variables]),
                           tuple([(expression, tuple(places[row])) for row, expression in known.items()]),
                           tuple([(at, row[0]) for row, of_row in places.items() if row not in known
                                  for at in of_row]))

    def variables(self, numbers: Sequence[int]) -> list[int]:
        """The values of the Variables in a graph."""
        return [numbers[at] for at in self.defined]

    def hold(self, numbers: Sequence[int]) -> bool:
        """Whether they are the numbers of a graph."""
        if any(numbers[at] != number for at, number in self.fixed):
            return False
        values = self.variables(numbers)
        return all(numbers[at] == value for expression, places in self.rows
                   for value in [expression.value(values)] for at in places)

    def sized(self, numbers: Sequence[int]) -> list[Any]:
        """All numbers of a graph, those that change as sizes."""
        found: list[Any] = list(numbers)
        variables = [_variable(i, value) for i, value in enumerate(self.variables(numbers))]
        for expression, places in self.rows:
            value = expression.value(variables)
            for at in places:
                found[at] = value
        return found


def _expressions_of(row: Instances, known: Mapping[Instances, Expression], variables: Sequence[Instances]
                    ) -> Iterator[Expression]:
    """Expressions of known rows that a row may be, the likeliest first: a multiple of one or two sizes, one
    and a number more, what one leaves of a number, one and another."""
    count = range(len(variables))
    for some in (*combinations(count, 1), *combinations_with_replacement(count, 2)):
        product = [prod(values) for values in zip(*[variables[i] for i in some], strict=True)]
        if all(p and n % p == 0 for n, p in zip(row, product, strict=True)) \
                and (factor := _same(n // p for n, p in zip(row, product, strict=True))) is not None:
            yield Expression(((factor, some),))
    for other, expression in known.items():
        if (added := _same(n - o for n, o in zip(row, other, strict=True))) is not None:
            yield expression.plus(added)
    for i, size in enumerate(variables):
        if (whole := _same(n + s for n, s in zip(row, size, strict=True))) is not None:
            yield Expression(((-1, (i,)),), whole)
    for other, expression in known.items():
        for i, size in enumerate(variables):
            for sign in (1, -1):
                added = _same(n - o - sign * s for n, o, s in zip(row, other, size, strict=True))
                if added is not None:
                    yield expression.plus(added, (sign, (i,)))


def _same(numbers: Iterable[int]) -> int | None:
    """The number that all of these are, if they are equal."""
    found = set(numbers)
    return found.pop() if len(found) == 1 else None


def _variable(number: int, value: int) -> Any:
    """The Variable for a size, of which all up to the next power of two are one schedule; or for a place."""
    most = SMALLEST_LIMIT if value <= SMALLEST_LIMIT else 1 << (value - 1).bit_length()
    least = min(1, value) if most == SMALLEST_LIMIT else most // 2 + 1
    return Size.of(UOp.variable(f"size {number} in {least}..{most}", least, most, value))


class FormHistory:
    """The graphs of one form so far."""

    def __init__(self, count: int) -> None:
        self.count = count
        """how many numbers a graph has"""
        self.examples: dict[tuple[int, ...], tuple[int, ...]] = {}
        """the numbers of graphs of which conclusions are drawn, by their sizes"""
        self.known: set[int] = set()
        """the hashes of the sizes that came, in"""
        self.graphs = 0
        """as many graphs"""
        self.latest, self.in_a_row = 0, 0
        """the last sizes, and how often they came without others between"""
        self.own: set[int] = set()
        """those that are to have kernels of their own"""
        self.expressions: Expressions | None = None
        self.has_none = False
        """whether no expressions were found, or none that can be said in a graph"""

    @property
    def changes(self) -> bool:
        """Whether sizes that are new are likely not to stay."""
        different = len(self.known)
        return different >= MANY or (different >= FEW and self.graphs < OFTEN * different)

    def use(self, sizes: int) -> None:
        """Take note of sizes, that are to have kernels of their own once they stay."""
        self.in_a_row = self.in_a_row + 1 if sizes == self.latest else 1
        self.latest = sizes
        self.known.add(sizes)
        if self.in_a_row > OFTEN:
            self.own.add(sizes)

    def expressions_for(self, form: SizedForm) -> Expressions | None:
        """The expressions that are the numbers of this graph too, concluded anew where they were not."""
        if not self.has_none and (self.expressions is None or not self.expressions.hold(form.numbers)):
            self.expressions = None
            self.examples[form.sizes] = form.numbers
            self.has_none = len(self.examples) > MOST_EXAMPLES
            if len(self.examples) > 1:
                try:
                    self.expressions = Expressions.concluded(list(self.examples.values()), form.order)
                except NotSized:
                    self.has_none = True
        return None if self.has_none else self.expressions

    def graph_for(self, form: SizedForm, graph: SchedulableGraph) -> SizedGraph | None:
        """The graph over larger memory for one of this form. None where its sizes are not likely to change,
        or it has no such graph."""
        changes, sizes = self.changes, hash(form.sizes)
        self.graphs += 1
        self.use(sizes)
        expressions = self.expressions_for(form)
        if expressions is None or not changes or sizes in self.own:
            return None
        try:
            return SizedGraph.of(graph, form, expressions)
        except NotSized:
            self.has_none = True
            return None


class SizesOfForm(NamedTuple):
    """The sizes of a graph, among those of all graphs of its form."""

    history: FormHistory
    sizes: int
    """their hash"""
    are_shared: bool = False
    """whether the graph has the schedule of all others"""

    def serve(self, sizes_change: bool) -> bool:
        """Take note that they came again. Whether the schedule that they share is still the one to use, where
        sizes may or may not change."""
        self.history.use(self.sizes)
        return sizes_change and self.sizes not in self.history.own


class ChangingSizes:
    """The forms of graphs so far."""

    def __init__(self, limit: int = MAX_SIZES) -> None:
        self.limit = limit
        self.size = 0
        self.forms: dict[int, FormHistory] = {}
        """by their hash"""

    def of(self, graph: SchedulableGraph) -> tuple[SizesOfForm | None, SizedGraph | None]:
        """The sizes of a graph that nobody has scheduled, and the graph over larger memory that it has the
        schedule of; None where there are none."""
        form = sized_form(graph)
        if form is None or not form.numbers:
            return None, None
        history = self.history(form)
        return SizesOfForm(history, hash(form.sizes)), history.graph_for(form, graph)

    def history(self, form: SizedForm) -> FormHistory:
        """Of all graphs of this form."""
        known = self.forms.pop(form.form, None)
        if known is not None and known.count != len(form.numbers):  # two forms have one hash
            self.size -= MOST_EXAMPLES * known.count
            known = None
        if known is None:
            known = FormHistory(len(form.numbers))
            self.size += MOST_EXAMPLES * known.count
        self.forms[form.form] = known
        while self.size > self.limit:
            self.size -= MOST_EXAMPLES * self.forms.pop(next(iter(self.forms))).count
        return known


# --- the graph over larger memory ---------------------------------------------------------------------------


class SizedGraph:
    """A graph with sizes that stands for another one, and what is to be copied into its memory."""

    def __init__(self, graph: SchedulableGraph, arguments: dict[UOp, tuple[Any, ...]]) -> None:
        self.inside = graph.position
        """the nodes of the graph; what they rest on beside these are constants, and what gradients know"""
        self.arguments = arguments
        """of nodes whose argument has sizes: it, flat"""
        self.done: dict[UOp, UOp] = {}
        """what stands for each node"""
        self.larger: dict[tuple[UOp, Shape], UOp] = {}
        """the memory that stands for memory whose size changes, by that and its largest shape"""
        self.filling: list[ScheduleItem] = []
        """the steps that copy what it has to hold"""
        self.starts: dict[SliceStart, SliceStart] = {}
        """the starts of slices of the other graph, by those that stand for them here"""
        self.padded = PaddedShapes([self.node(sink) for sink in graph.sinks])
        """what `padded_shapes.py` makes of it"""

    @staticmethod
    def of(graph: SchedulableGraph, form: SizedForm, expressions: Expressions) -> SizedGraph:
        """The graph for one of a form. Raises NotSized where there is none."""
        with Size.used():
            numbers = expressions.sized(form.numbers)
            arguments = {node: tuple(numbers[begin:end]) for node, begin, end in form.nodes}
            try:
                return SizedGraph(graph, {node: argument for node, argument in arguments.items()
                                          if any(isinstance(n, Size) for n in argument)})
            except (ValueError, SizeError, RecursionError) as error:  # memory of known strides cannot say it
                raise NotSized from error

    def node(self, root: UOp) -> UOp:
        """What stands for `root`."""
        return root.rebuild(self.over, self.known, self.done)

    def known(self, node: UOp) -> UOp | None:
        """What stands for a node in memory, or made as a running sum is; a node itself that is not told."""
        if node not in self.inside:
            return node
        view = memory_of(node)
        if view is not None and view is not node:
            return self.node(view)
        if node.op is Ops.BUFFER:
            return self.memory(node, node.shape, self.arguments.get(node))
        if node.op is Ops.RESHAPE and node.src[0].op is Ops.BUFFER:
            return self.memory(node.src[0], node.arg, self.arguments.get(node))
        if node.op is Ops.REDUCE and (items := summed_up_to_each(node)) is not None \
                and isinstance(size := self.node(items).shape[-1], Size):
            return running_sum(self.node(items), size)
        return None

    def memory(self, buffer: UOp, shape: Shape, sizes: tuple[Any, ...] | None) -> UOp:
        """Memory of this shape; larger where that changes, `sizes` being what it changes by."""
        if sizes is None:
            return buffer.reshape(shape)
        whole = largest_shape(sizes)
        if (buffer, whole) not in self.larger:
            larger = UOp.new_buffer(buffer.arg.device, prod(whole), buffer.dtype)
            self.larger[buffer, whole] = larger
            self.filling += [_copy(larger, at, buffer, begin, items)
                             for begin, at, items in runs(shape, whole)]
        return self.larger[buffer, whole].reshape(whole).shrink([(0, size) for size in sizes])

    def over(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """A node over what stands for its sources."""
        argument = self.arguments.get(node)
        if node.op in IGNORED_ARGUMENT:
            return src[0]
        if node.op is Ops.ASSIGN and src[0] is not node.src[0]:
            raise NotSized
        if node.op in Family.ELEMENTWISE and len({s.shape for s in src}) > 1:
            raise NotSized
        if node.op is Ops.SHRINK:
            return self.slice(node, src[0], argument)
        if node.op not in Family.MOVEMENT or (argument is None and src[0] is node.src[0]):
            return node.with_sources(src)
        if node.op is Ops.PAD:
            argument = argument or (*node.shape, *[before for before, _ in node.arg])
            sizes, befores = argument[:len(node.arg)], argument[len(node.arg):]
            return src[0].pad([(before, size - before - inner) for before, size, inner
                               in zip(befores, sizes, src[0].shape, strict=True)])
        return src[0].move(node.op, node.arg if argument is None else argument)

    def slice(self, node: UOp, source: UOp, argument: tuple[Any, ...] | None) -> UOp:
        """A SHRINK of what stands for its source. Where it begins is a Variable if that is left out of what
        schedules depend on."""
        sizes = argument[:len(node.arg)] if argument else [end - start for start, end in node.arg]
        known = iter(argument[len(node.arg):]) if argument else None
        bounds = []
        for (start, _), left_out, size, whole in zip(node.arg, _starts_left_out(node), sizes, source.shape,
                                                     strict=True):
            if left_out is not None:
                start = self.start(left_out, largest(whole) - (0 if isinstance(size, Size) else size))
            elif known is not None:
                start = next(known)
            bounds.append((start, start + size))
        return source.shrink(bounds)

    def start(self, left_out: SliceStart, most: int) -> Any:
        """The Variable for where a slice begins that may begin anywhere up to there."""
        variable = f"start {len(self.starts)} in 0..{most}", 0, most, left_out[-1]
        self.starts[variable] = left_out
        return Size.of(UOp.variable(*variable))

    # --- its schedule ---------------------------------------------------------------------------------------

    def items(self, padded: Sequence[ScheduleItem]) -> list[ScheduleItem]:
        """The steps that fill larger memory, and those of the padded graph, for this graph: of their
        variables only those are its own where its slices begin."""
        return [*self.filling, *[item._replace(variables=tuple(map(self.variable, item.variables)))
                                 for item in padded]]

    def variable(self, variable: BoundVariable) -> BoundVariable:
        """The argument of a kernel, as the other graph names it."""
        start = self.starts.get(variable.variable)
        if start is None:
            return BoundVariable(variable.name, "", variable.value)
        return BoundVariable(variable.name, start[0], start[3], start[1:3])

    def views(self, sinks: Sequence[UOp], found: Mapping[UOp, UOp]
              ) -> tuple[dict[UOp, UOp], list[ScheduleItem]]:
        """The views that hold the values of the nodes that this stands for, given those of the padded nodes,
        and the steps that copy results out of larger memory. Raises NotSized where a result does not lie
        there in its order."""
        views: dict[UOp, UOp] = {}
        copies: list[ScheduleItem] = []
        for sink, stored in zip(sinks, self.padded.sinks, strict=True):
            view = found.get(stored)
            if view is None:
                raise NotSized
            if view.shape == sink.shape:
                views[sink] = view
                continue
            if view.unreshaped.op is not Ops.BUFFER:
                raise NotSized
            memory = UOp.new_buffer(view.base.arg.device, sink.numel, sink.dtype)
            copies += [_copy(memory, begin, view.base, at, items)
                       for begin, at, items in runs(sink.shape, view.shape)]
            views[sink] = memory.reshape(sink.shape)
        for node, stand_in in self.done.items():
            if node.op in Family.STORED and node not in views and node.realized_view is None:
                view = found.get(self.padded.done.get(stand_in, stand_in))
                if view is not None and view.shape == node.shape:
                    views[node] = view
        return views, copies


def runs(shape: Shape, whole: Shape) -> list[tuple[int, int, int]]:
    """Where the items of a value of `shape` that lie side by side also in the `whole` begin, there and here,
    and how many they are. Raises NotSized where these are many."""
    inner = max([axis for axis in range(len(shape)) if shape[axis] != whole[axis]], default=0)
    if prod(shape[:inner]) > MOST_RUNS:
        raise NotSized
    strides, steps = ([prod(sizes[axis + 1:]) for axis in range(inner)] for sizes in (shape, whole))
    return [(sum(map(mul, place, strides)), sum(map(mul, place, steps)), prod(shape[inner:]))
            for place in product(*map(range, shape[:inner]))]


RUNNING_SUM = (Ops.REDUCE, Ops.SHRINK, Ops.RESHAPE, Ops.SHRINK, Ops.RESHAPE, Ops.EXPAND, Ops.RESHAPE, Ops.PAD)


def summed_up_to_each(node: UOp) -> UOp | None:
    """What a REDUCE is the running sums of, along the last axis, as `functional/running.py` and `counting`
    spell them: sums over windows that end at each item."""
    way = []
    for op in RUNNING_SUM:
        if node.op is not op or len(node.src) > 1:
            return None
        way.append(node)
        node = node.src[0]
    total, windows, rows, *_, padded = way
    *lead, size = node.shape
    ends = (*[(0, 0)] * len(lead), (size - 1, 0))
    if total.arg != (Ops.ADD, (len(lead) + 1,)) or padded.arg != ends \
            or windows.arg != (*[(0, n) for n in lead], (0, size), (0, size)) \
            or rows.shape != (*lead, size, 2 * size) or rows.src[0].src[0].src[0].shape[-1] != 2 * size - 1:
        return None
    return node


def running_sum(items: UOp, size: int) -> UOp:
    """The running sums along the last axis, of a `size` that is not known, with an axis of one behind it."""
    *lead, _ = items.shape
    most = largest(size)
    length = 2 * most - 1
    repeats = ceildiv(2 * most * most, length)
    whole = [(0, n) for n in lead]
    x = items.pad([*[(0, 0)] * len(lead), (most - 1, most - size)])
    x = x.reshape((*lead, 1, length)).expand((*lead, repeats, length)).reshape((*lead, repeats * length))
    x = x.shrink((*whole, (0, 2 * most * most))).reshape((*lead, most, 2 * most))
    x = x.shrink((*whole, (0, most), (0, most))).reduce(Ops.ADD, (len(lead) + 1,))
    return x.shrink((*whole, (0, size), (0, 1)))


def _copy(target: UOp, at: int, source: UOp, begin: int, items: int) -> ScheduleItem:
    """The step that copies items of memory from one place to another."""
    node = UOp.new(Ops.COPY, source.dtype, (source.shrink(((begin, begin + items),)),), target.arg.device)
    return ScheduleItem(transfer(node, (target, source), (begin,), at), (target, source), 1)
