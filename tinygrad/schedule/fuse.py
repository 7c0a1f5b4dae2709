"""Which nodes become buffers, and which kernel computes what.

In: a simplified graph and the nodes that must have a value. Out: `Kernel`s, each with the nodes it stores.

One sweep visits the nodes from the results back to the sources, so that all uses of a node are known when it
is met. A use is a `Point`: which kernel wants which item of the node, inside which loops. From the uses
follows how often the node would be evaluated if nobody stored it, and one cost rule (`cost.better_stored`)
decides:

- not stored: its kernels compute it where they use it, and the points pass on to its sources. So elementwise
  and movement ops fuse into their consumers, and a reduce takes its producers in and its epilogue out.
- A reduce whose items change only with the outer loops of a kernel is computed once for each of those, before
  the loops inside (softmax, norms, losses): it fuses too, if the loops nest and enough of them are left to
  share out.
- A row that several loops of a kernel read (the exponentials of softmax, the scores of attention) counts as
  computed once: its plan keeps such rows in scratch memory. So attention is one kernel: two contractions
  around the statistics of their common rows.
- stored: by a kernel of its own; or, where one of the kernels using it computes each item exactly once
  anyway, or keeps the rows that it consists of, as one more output of that kernel. So attention's weights are
  stored by its forward kernel, for the three kernels of its gradients.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinygrad.codegen.indexing import (
    ZERO,
    Point,
    range_extents,
    reduce_depth,
    reduced_point,
    through_movement,
)
from tinygrad.codegen.lower import is_bijection
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.printing import format_node
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, prod
from tinygrad.schedule.cost import (
    LARGE_CONE,
    better_stored,
    closed_form_reduces,
    explain_storing,
    has_statistics,
    reads_memory,
    work_of,
)
from tinygrad.schedule.layout import worth_ordering
from tinygrad.schedule.products import is_contraction, product_of
from tinygrad.schedule.split import runs_blocks

SERIAL_WORK = 1 << 15
"""Reduced items that one core may walk alone; above, a kernel keeps at least `MIN_PARALLEL` outer
iterations."""
MIN_PARALLEL = 8
CACHED_ROW = 1 << 16
"""Items of a row (256 KB of float32) that stay in the L2 cache between the stages of a kernel; sharing the
loop over rows saves nothing for longer ones."""
PANEL_BYTES = 4 << 20
"""What a contraction may read again for every tile of rows, from the L2 cache or the one behind it."""
SCATTERED_LENGTH = 1024
"""Products of a sum below which an optimizer's update of a convolution's weights is a kernel of its own (with
256, the gradient of 512 x 512 x 3 x 3 weights took 22.8 ms with its update and takes 12.9 without)."""
SHORT_CONTRACTION = 128
"""Products that cost no more than storing their sum and reading it back (64 operations) twice."""


@dataclass(eq=False)
class Kernel:
    """What one kernel stores, and the loops that are known while it grows."""

    root: UOp
    root_ranges: frozenset[UOp]
    outputs: list[UOp] = field(default_factory=list)
    device: str | None = None
    """None: no device was named, any will do"""
    after: set[Kernel] = field(default_factory=set)
    """kernels whose results this one reads"""
    outer_sets: set[frozenset[UOp]] = field(default_factory=set)
    """sets of root loops that something is computed once for; they must nest"""
    enclosing: dict[UOp, frozenset[UOp]] = field(default_factory=dict)
    """for each reduce loop, the loops around it and itself"""
    reduces: dict[UOp, Point] = field(default_factory=dict)
    """the REDUCEs that it computes, and where"""
    places: dict[UOp, tuple[UOp, ...]] = field(default_factory=dict)
    """for each output, the loops over its items"""
    reduce_ranges: dict[tuple[object, ...], tuple[UOp, ...]] = field(default_factory=dict)
    closed_loops: set[UOp] = field(default_factory=set)
    """loops of closed forms, which will not run"""
    range_count: int = 0

    @property
    def runs_as_blocks(self) -> bool:
        """True for a kernel that runs as a grid of blocks of threads."""
        return runs_blocks(self.device)

    def place(self, ranges: frozenset[UOp]) -> frozenset[UOp] | None:
        """The loops that run where a value changing with `ranges` is computed; None where no place has them
        all."""
        inner = ranges - self.root_ranges
        if not inner:
            return ranges
        around = max((self.enclosing[r] for r in inner), key=len)
        return around if ranges <= around else None

    def nests(self, ranges: frozenset[UOp]) -> bool:
        """True if the root loops can be ordered so that those in `ranges` enclose the others."""
        return ranges == self.root_ranges or all(ranges <= s or s <= ranges for s in self.outer_sets)

    def row_of(self, point: Point) -> tuple[object, ...] | None:
        """What tells the row that `point` runs along from other rows; None where it is no item of a row.

        A row is what one inner loop runs over while the loops over outputs stand still. Two loops of equal
        length over the same items have equal rows.
        """
        inner = point.ranges - self.root_ranges
        if len(inner) != 1 or point.valid is not None or any(i.op not in _PLAIN for i in point.index):
            return None
        (loop,) = inner
        if loop.extent > CACHED_ROW or point.index.count(loop) != 1:
            return None
        return tuple(loop.extent if i is loop else i for i in point.index)

    def depends_on(self, others: set[Kernel]) -> bool:
        """True if this kernel needs a result of one of `others`, directly or not."""
        seen: set[Kernel] = set()
        stack = list(self.after)
        while stack:
            kernel = stack.pop()
            if kernel in others:
                return True
            if kernel not in seen:
                seen.add(kernel)
                stack.extend(kernel.after)
        return False


Use = tuple[Kernel, Point]
_PLAIN = (Ops.RANGE, Ops.CONST)


class Fusion:
    """The sweep. Afterwards `kernels` has every kernel and `stored` says which kernel stores a node."""

    def __init__(self, sink: UOp, forced: set[UOp], buffered_assigns: frozenset[UOp] = frozenset()) -> None:
        self.order = list(sink.toposort())
        self.forced = forced
        self.buffered_assigns = buffered_assigns
        self.closed = closed_form_reduces(sink)
        self.work = work_of(sink, self.closed)
        self.reads_memory = reads_memory(sink)
        self.has_statistics = has_statistics(sink)
        self.depth = reduce_depth(sink)
        self.uses: dict[UOp, dict[Use, None]] = defaultdict(dict)
        self.kernels: list[Kernel] = []
        self.stored: dict[UOp, Kernel] = {}
        for node in reversed(self.order):
            self.visit(node)

    def visit(self, node: UOp) -> None:
        uses = list(self.uses.get(node, ()))
        is_constant = node.op in (Ops.CONST, Ops.VARIABLE)
        if node.op in (Ops.BUFFER, Ops.SINK) or (is_constant and node not in self.forced):
            return
        if node.op is Ops.COPY:
            self.store_apart(node, uses)
        elif node in self.forced or (uses and self.must_store(node, uses)):
            self.store(node, uses)
        else:
            for kernel, point in uses:
                self.pass_on(kernel, point)

    # --- the decision ---------------------------------------------------------------------------------------

    def must_store(self, node: UOp, uses: list[Use]) -> bool:
        if node.op is Ops.LIMIT:
            return self.must_store(node.src[0], _of_source(uses))
        if node.op is Ops.WHERE and not self.reads_memory[node.src[0]] and node.src[2].is_zero:
            return False  # its readers keep the condition, and so know where it matters
        if node.op is Ops.CAST and node.src[0].dtype.itemsize < node.dtype.itemsize:
            return False  # if anything is stored, it is what takes less memory
        if node.op not in Family.ELEMENTWISE and node.op is not Ops.REDUCE:
            return False
        if node.device is None and len({kernel.device for kernel, _ in uses}) > 1:
            return False  # constants, which each device computes for itself
        if not self.reads_memory[node] and (node.op is not Ops.REDUCE or node in self.closed):
            return self.work[node] > LARGE_CONE and self.better_stored(node, uses)
        if node in self.closed:
            return self.better_stored(node, uses)
        if node.op is Ops.REDUCE and not all(self.fits(kernel, point) for kernel, point in uses):
            self.note(node, "stored, for its loops have no place in a kernel that uses it")
            return True
        if node.op is Ops.REDUCE and any(self.crowds(kernel, point) for kernel, point in uses):
            self.note(node, "stored, for a contraction, it or its user, wants the kernel for itself")
            return True
        return self.better_stored(node, uses)

    def better_stored(self, node: UOp, uses: list[Use]) -> bool:
        kernels = len({kernel for kernel, _ in uses})
        evaluations = self.evaluations(uses)
        if evaluations > node.numel:
            self.note(node, explain_storing(node, evaluations, self.work[node], kernels))
        return better_stored(node, evaluations, self.work[node], kernels)

    def note(self, node: UOp, decision: str) -> None:
        """Print a decision at DEBUG=3."""
        if DEBUG >= 3:
            print(f"fusion: {format_node(node)}: {decision}")

    def evaluations(self, uses: list[Use]) -> float:
        """How often all `uses` together would compute an item. A kept row is computed once for its kernel."""
        total = 0.0
        rows = self.kept_rows(uses)
        for kernel, point in uses:
            if (kernel, point) in rows:
                continue
            place = kernel.place(point.ranges)
            total += prod(r.extent for r in (point.ranges if place is None else place) - kernel.closed_loops)
        once = {(kernel, row): point for (kernel, point), row in rows.items()}
        return total + sum(float(prod(r.extent for r in point.ranges)) for point in once.values())

    def kept_rows(self, uses: list[Use]) -> dict[Use, tuple[object, ...]]:
        """The uses along rows that the kernel keeps, each with what identifies its row.

        Those are rows that several loops read, and rows made of statistics of themselves that a contraction
        reads for each of its columns. A value that several kernels want is better stored for all of them.
        """
        rows: dict[Use, tuple[object, ...]] = {}
        if len({kernel for kernel, _ in uses}) > 1:
            return rows
        for kernel, point in uses:
            row = kernel.row_of(point)
            if row is not None:
                rows[kernel, point] = row
        count = Counter((kernel, row) for (kernel, _), row in rows.items())
        return {use: row for use, row in rows.items()
                if count[use[0], row] > 1 or (self.has_statistics[use[1].node] and not use[0].runs_as_blocks)}

    def fits(self, kernel: Kernel, point: Point) -> bool:
        """True if the loops of a REDUCE at `point` have a place in `kernel` that leaves enough to share
        out."""
        ranges = point.ranges
        place = kernel.place(ranges)
        if place is None or not kernel.nests(place & kernel.root_ranges):
            return False
        if place >= kernel.root_ranges:
            return True
        outer = prod(r.extent for r in place & kernel.root_ranges)
        row = max(prod(range_extents(point.node)), prod(r.extent for r in kernel.root_ranges - place))
        if row > CACHED_ROW:
            return False
        return bool(outer >= MIN_PARALLEL or prod(point.node.src[0].shape) <= SERIAL_WORK)

    def crowds(self, kernel: Kernel, point: Point) -> bool:
        """True if a REDUCE at `point` would share `kernel` with a contraction that is tiled for its own loops
        alone.

        They may share where the reduces are statistics of the contraction's rows, and what it reads again for
        every tile of rows fits the cache. Not where blocks of threads run it: their tiles of a contraction
        share out all loops of the kernel.
        """
        if point.node in self.closed:
            return False
        if is_contraction(point.node) and prod(r.extent for r in point.ranges) > point.node.numel:
            return True  # padded or repeated: its tiles would compute what is not there
        if kernel.root.op is Ops.ASSIGN and self.scatters(point.node):
            return True
        reduces = {r: p for r, p in kernel.reduces.items() if r not in self.closed}
        reduces[point.node] = point
        if kernel.runs_as_blocks:
            found = [p for r, p in reduces.items() if is_contraction(r)]
            return bool(found) and (len(reduces) > 1 or not found[0].ranges >= kernel.root_ranges)
        main = {r: p for r, p in reduces.items() if is_contraction(r) and p.ranges >= kernel.root_ranges}
        others = {r: p for r, p in reduces.items() if r not in main}
        if not main:
            return any(is_contraction(r) and not self.is_row(kernel, p) for r, p in others.items())
        if not others and len(main) == 1:
            return False
        rows = kernel.root_ranges.intersection(*(p.ranges for p in others.values()))
        if len(main) > 1 or not rows or rows == kernel.root_ranges:
            return True
        if any(not self.panels_fit(p, rows) for p in (*main.values(), *others.values())):
            return True
        return any(not (p.ranges <= kernel.root_ranges or self.is_row(kernel, p)) for p in others.values())

    def scatters(self, node: UOp) -> bool:
        """True for a contraction too short for what its lanes would scatter: written into a convolution's
        weights, whose order is the user's, each item that is read or written costs as much as some hundred
        products."""
        short = prod(range_extents(node)) if node.op is Ops.REDUCE else 0
        return short < SCATTERED_LENGTH and is_contraction(node) and worth_ordering(node.shape)

    def is_row(self, kernel: Kernel, point: Point) -> bool:
        """True for items of a row that are cheaper to compute in `kernel` than to store."""
        short = prod(range_extents(point.node)) <= SHORT_CONTRACTION
        return kernel.row_of(point) is not None and (short or not is_contraction(point.node))

    def panels_fit(self, point: Point, rows: frozenset[UOp]) -> bool:
        """True if what a contraction reads again for every tile of `rows` stays in the cache."""
        product = product_of(point.node)
        if product is None or not is_contraction(point.node):
            return True
        for operand in _operands_at(point, product):
            items = prod(r.extent for r in operand.ranges - rows)
            if not operand.ranges >= rows and items * product.dtype.itemsize > PANEL_BYTES:
                return False
        return True

    # --- storing --------------------------------------------------------------------------------------------

    def store(self, node: UOp, uses: list[Use]) -> None:
        host = self.host_for(node, uses)
        if host is None:
            self.store_apart(node, uses)
            return
        kernel, points = host
        kernel.outputs.append(node)
        self.stored[node] = kernel
        kernel.places[node] = points[0].index
        kernel.outer_sets.add(points[0].ranges & kernel.root_ranges)
        for user, _ in uses:
            if user is not kernel:
                user.after.add(kernel)
        self.pass_on(kernel, self.in_own_loop(kernel, points[0]))

    def host_for(self, node: UOp, uses: list[Use]) -> tuple[Kernel, list[Point]] | None:
        """A kernel that computes every item of `node` exactly once for its own use, or keeps its rows, and
        may store it; and where it uses it."""
        if node in self.buffered_assigns:
            return None
        if node.op is Ops.LIMIT:
            host = self.host_for(node.src[0], _of_source(uses))
            return None if host is None else (host[0], [p._replace(node=node) for p in host[1]])
        points: dict[Kernel, list[Point]] = defaultdict(list)
        for kernel, point in uses:
            points[kernel].append(point)
        for kernel, at in points.items():
            if not is_bijection(at[0]) or not (len(at) == 1 or self.is_one_row(kernel, at)):
                continue
            if kernel.root.op is Ops.COPY or kernel.root.numel == 0:
                continue
            if _has_copy(points) and _has_copy(kernel.after):
                continue  # another device waits for the value, and should not for what this kernel waits for
            ranges = at[0].ranges
            if not ranges <= kernel.root_ranges and not self.is_kept(kernel, at):
                continue
            if not ranges and prod(r.extent for r in kernel.root_ranges) > SERIAL_WORK:
                continue  # a number is stored outside of all loops: none of them could be shared out
            if kernel.runs_as_blocks and any(map(is_contraction, kernel.reduces)):
                continue
            if not kernel.nests(ranges & kernel.root_ranges):
                continue
            if node.op is Ops.REDUCE and any(not self.fits(kernel, p) or self.crowds(kernel, p) for p in at):
                continue
            if kernel.device != self.device_of(node, uses) or kernel.depends_on(set(points) - {kernel}):
                continue
            return kernel, at
        return None

    def is_one_row(self, kernel: Kernel, points: list[Point]) -> bool:
        """True for items of one row, whichever loops read it."""
        rows = {kernel.row_of(point) for point in points}
        return len(rows) == 1 and None not in rows

    def is_kept(self, kernel: Kernel, points: list[Point]) -> bool:
        """True for a row that `kernel` keeps and that lies in memory as it is walked: several loops read it,
        or a contraction all of it for each of its columns."""
        last = points[0].index[-1]
        if not self.is_one_row(kernel, points) or last.op is not Ops.RANGE or last in kernel.root_ranges:
            return False
        if not (len(points) > 1 or self.has_statistics[points[0].node]):
            return False
        if prod(r.extent for r in points[0].ranges & kernel.root_ranges) < MIN_PARALLEL:
            return False  # the loops of the rows would be too few to share out
        return all(self.has_columns(kernel, p) for r, p in kernel.reduces.items()
                   if is_contraction(r) and p.ranges >= kernel.root_ranges)

    def has_columns(self, kernel: Kernel, point: Point) -> bool:
        """True for a contraction one operand of which lies in memory along the kernel's last loop: its lanes
        need no panel, which rows that are computed beside it leave no room for."""
        product = product_of(point.node)
        if product is None or not kernel.places[kernel.root]:
            return True
        columns = kernel.places[kernel.root][-1]
        return any(linear_terms(i).terms.get(columns) == 1
                   for operand in _operands_at(point, product) for i in operand.index[-1:])

    def device_of(self, node: UOp, uses: list[Use]) -> str | None:
        """Where `node` is computed: what is made of constants alone, where it is used; None if nowhere."""
        return node.device or next((kernel.device for kernel, _ in uses if kernel.device is not None), None)

    def in_own_loop(self, kernel: Kernel, point: Point) -> Point:
        """A point of a row as what fills the row computes it: once, whatever loops read it."""
        outer = point.ranges & kernel.root_ranges
        if outer == point.ranges:
            return point
        loop = UOp.range(point.index[-1].extent, kernel.range_count)
        kernel.range_count += 1
        kernel.enclosing[loop] = outer | {loop}
        return Point(point.node, (*point.index[:-1], loop), point.valid)

    def store_apart(self, node: UOp, uses: list[Use]) -> None:
        index = tuple(_ranges_from(0, node.shape))
        kernel = Kernel(node, frozenset(r for r in index if r.op is Ops.RANGE), [node])
        kernel.device = self.device_of(node, uses)
        kernel.range_count = len(index)
        self.kernels.append(kernel)
        self.stored[node] = kernel
        kernel.places[node] = index
        for user, _ in uses:
            user.after.add(kernel)
        self.pass_on(kernel, Point(node, index, None))

    # --- following a value to its sources -------------------------------------------------------------------

    def pass_on(self, kernel: Kernel, point: Point) -> None:
        """`point` is computed inside `kernel`: its sources are used there."""
        node = point.node
        if node.op in Family.MOVEMENT:
            if node.base.op is not Ops.CONST:
                self.use(kernel, through_movement(point)[0])
        elif node.op is Ops.REDUCE:
            loops = self.loops_of(kernel, point)
            if node in self.closed:
                kernel.closed_loops.update(loops)
            else:
                kernel.reduces[node] = point
            self.use(kernel, reduced_point(point, loops))
        elif node.op is Ops.ASSIGN:
            self.use(kernel, Point(node.src[1], point.index, point.valid))
        elif node.op in Family.ELEMENTWISE or node.op in (Ops.CONTIGUOUS, Ops.COPY, Ops.LIMIT):
            for source in node.src:
                self.use(kernel, Point(source, point.index, point.valid))

    def use(self, kernel: Kernel, point: Point) -> None:
        self.uses[point.node][kernel, point] = None

    def loops_of(self, kernel: Kernel, point: Point) -> tuple[UOp, ...]:
        outer = tuple(i for i in point.index if i.op is not Ops.CONST)
        closed = point.node in self.closed
        key = (self.depth[point.node], range_extents(point.node), outer, point.valid, closed)
        if key not in kernel.reduce_ranges:
            loops = tuple(_ranges_from(kernel.range_count, range_extents(point.node)))
            kernel.range_count += len(loops)
            kernel.reduce_ranges[key] = loops
            place = kernel.place(point.ranges)
            around = point.ranges if place is None else place
            kernel.outer_sets.add(around & kernel.root_ranges)
            inner = [r for r in loops if r.op is Ops.RANGE]
            for i, r in enumerate(inner):
                kernel.enclosing[r] = around | frozenset(inner[:i + 1])
        return kernel.reduce_ranges[key]


def _has_copy(kernels: Iterable[Kernel]) -> bool:
    return any(kernel.root.op is Ops.COPY for kernel in kernels)


def _operands_at(point: Point, product: UOp) -> list[Point]:
    """Where the operands of a contraction at `point`, whose sum is of `product`, are read."""
    loops = tuple(UOp.range(n, -1 - i) for i, n in enumerate(range_extents(point.node)))
    inside = reduced_point(point, loops)
    return [through_movement(Point(operand, inside.index, inside.valid))[0] for operand in product.src]


def _of_source(uses: list[Use]) -> list[Use]:
    """The uses of a LIMIT as uses of its value."""
    return [(kernel, point._replace(node=point.node.src[0])) for kernel, point in uses]


def _ranges_from(first: int, extents: tuple[int, ...]) -> list[UOp]:
    """A loop for each extent, numbered within its kernel: equal kernels have equal loops, and what is found
    out about them once is remembered for all."""
    return [ZERO if n == 1 else UOp.range(n, first + i) for i, n in enumerate(extents)]
