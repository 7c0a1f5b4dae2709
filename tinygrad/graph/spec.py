"""What is legal at each stage: the grammars of the tensor graph, the loop nest and the linear program.

A `Grammar` is a table of rules, each one line of grammar for the reader and one check for the machine, side
by side; plus checks of the graph as a whole. `check_graph` raises `SpecError` with the node, the stage and
the rule it breaks. Every pass hands on a graph that its stage allows: the tests check that after each pass,
normal runs with `CHECK=1`.

In a rule's form, `x*` is any number of x, `x+` at least one, `x?` at most one, `x | y` either, and a word in
lower case any value of that kind: `int` an index, `bool` a condition, `vector` a value of several lanes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import AxisOrder, Family, Memory, Ops, RangeKind
from tinygrad.graph.sharding import Sharding
from tinygrad.graph.storage import BufferSpec
from tinygrad.graph.uop import UOp

Check = Callable[[UOp], bool]


class SpecError(RuntimeError):
    """A graph that its stage does not allow: a pass of the compiler is wrong, never the user."""


class Production:
    """One line of a grammar: how the ops it names are written, what holds of them, and the check of both."""

    def __init__(self, form: str, note: str, holds: Check) -> None:
        self.form = form
        self.note = note
        self.holds = holds

    @property
    def ops(self) -> list[Ops]:
        """The ops that the form is about: the names before its first parenthesis."""
        return [Ops[name] for name in self.form.partition("(")[0].split() if name != "|"]

    def __str__(self) -> str:
        return f"{self.form:<48} {self.note}".rstrip()


class Grammar:
    """The grammar of one stage: a rule for each op it allows, and checks of whole graphs, which raise."""

    def __init__(self, name: str, rules: Sequence[Production],
                 *whole: Callable[[Sequence[UOp]], None]) -> None:
        self.name = name
        self.rules = tuple(rules)
        self.by_op = {op: rule for rule in rules for op in rule.ops}
        self.whole = whole

    @property
    def grammar(self) -> str:
        """The grammar as text, one line a rule."""
        return "\n".join(map(str, self.rules))


# --- words of the checks --------------------------------------------------------------------------


def _one(node: UOp) -> bool:
    return len(node.src) == 1


def _same_dtype(node: UOp) -> bool:
    return all(s.dtype is node.dtype for s in node.src)


def _ops(sources: Sequence[UOp], *ops: Ops) -> bool:
    return all(s.op in ops for s in sources)


def _int(node: UOp) -> bool:
    return node.dtype.scalar is dtypes.index


def _scalar(node: UOp) -> bool:
    return node.dtype.count == 1


def _pair(arg: Any, second: type) -> bool:
    """An argument (identity, member of the enumeration `second`)."""
    return isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[1], second)


def _sized(arg: Any) -> bool:
    """An argument (slot, identity or name; a size >= 0)."""
    return isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[1], int) and arg[1] >= 0


def _is_source(node: UOp) -> bool:
    return not node.src


def _constant(node: UOp) -> bool:
    lanes = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    kind = float if node.dtype.is_float else bool if node.dtype.is_bool else int
    return _is_source(node) and len(lanes) in (1, node.dtype.count) and all(type(x) is kind for x in lanes)


def _variable(node: UOp) -> bool:
    return _is_source(node) and _int(node) and isinstance(node.arg, tuple) and len(node.arg) == 4


# --- elementwise: the same at every stage ---------------------------------------------------------


def _takes(op: Ops, dtype: DType) -> bool:
    if op in Family.FLOAT_ONLY:
        return dtype.is_float
    if op in Family.INT_ONLY:
        return dtype.is_int
    return not (dtype.is_float and op in Family.BITWISE)


def _equal_shapes(node: UOp) -> bool:
    return all(s.shape == node.src[0].shape for s in node.src)


def _unary(node: UOp) -> bool:
    return _one(node) and _same_dtype(node) and _takes(node.op, node.dtype)


def _cast(node: UOp) -> bool:
    return _one(node) and node.dtype.count == node.src[0].dtype.count


def _bitcast(node: UOp) -> bool:
    return _cast(node) and node.dtype.itemsize == node.src[0].dtype.itemsize


def _binary(node: UOp) -> bool:
    return len(node.src) == 2 and _same_dtype(node) and _takes(node.op, node.dtype) and _equal_shapes(node)


def _compare(node: UOp) -> bool:
    if len(node.src) != 2 or node.src[0].dtype is not node.src[1].dtype:
        return False
    return node.dtype is dtypes.bool.vec(node.src[0].dtype.count) and _equal_shapes(node)


def _where(node: UOp) -> bool:
    if len(node.src) != 3 or not _equal_shapes(node):
        return False
    condition, *values = node.src
    return condition.dtype is dtypes.bool.vec(node.dtype.count) and all(v.dtype is node.dtype for v in values)


def _mulacc(node: UOp) -> bool:
    return len(node.src) == 3 and _same_dtype(node) and _equal_shapes(node)


_ELEMENTWISE = (
    Production("NEG SQRT EXP2 LOG2 SIN TRUNC (value)", "of the dtype of its source", _unary),
    Production("CAST(value)", "to any dtype; lanes stay", _cast),
    Production("BITCAST(value)", "to a dtype of the same width", _bitcast),
    Production("ADD SUB MUL FDIV IDIV MOD MAX (value, value)", "of one dtype", _binary),
    Production("AND OR XOR SHL SHR (value, value)", "of one dtype, no float", _binary),
    Production("CMPLT CMPNE (value, value)", "of one dtype; makes a bool", _compare),
    Production("WHERE(bool, value, value)", "values of one dtype", _where),
    Production("MULACC(value, value, value)", "of one dtype", _mulacc),
)
_BYTE_DOT = Production("DP4A(value, value, value)", "of int32", lambda n: _mulacc(n) and
                       n.dtype.scalar is dtypes.int32)
_PRIMITIVES = Production("LDEXP(value, value)", "of one float dtype", _binary)
_CALLED = Production("CALL(value)", "arg: the CalledFunction, of a value of the same dtype",
                     lambda n: _one(n) and _same_dtype(n) and n.arg.parameter.dtype is n.dtype)


# --- the tensor graph -----------------------------------------------------------------------------


def _tensor_reduce(node: UOp) -> bool:
    if not (_one(node) and _same_dtype(node) and isinstance(node.arg, tuple) and len(node.arg) == 2):
        return False
    op, axes = node.arg
    inside = {a for a in axes if 0 <= a < len(node.src[0].shape)}
    return op in Family.REDUCING and list(axes) == sorted(inside)


def _each_axis(node: UOp, holds: Callable[[Any, int], bool]) -> bool:
    """One source, whose every axis has an argument for which `holds(argument, size)`."""
    if not (_one(node) and _same_dtype(node) and len(node.arg) == len(node.src[0].shape)):
        return False
    return all(holds(a, n) for a, n in zip(node.arg, node.src[0].shape, strict=True))


def _reshape(node: UOp) -> bool:
    return _one(node) and _same_dtype(node) and node.numel == node.src[0].numel


def _permute(node: UOp) -> bool:
    return _each_axis(node, lambda a, n: a in range(len(node.arg))) and len(set(node.arg)) == len(node.arg)


def _expand(node: UOp) -> bool:
    return _each_axis(node, lambda a, n: n in (1, a))


def _pad(node: UOp) -> bool:
    return _each_axis(node, lambda a, n: a[0] >= 0 and a[1] >= 0)


def _shrink(node: UOp) -> bool:
    moves = node.src[1:]
    value = node.replace(src=node.src[:1]) if moves else node
    moved = len(moves) in (0, len(node.arg)) and all(_int(m) for m in moves)
    return moved and _each_axis(value, lambda a, n: 0 <= a[0] <= a[1] <= n)


def _stride(node: UOp) -> bool:
    return _each_axis(node, lambda a, n: a != 0)


def _same_value(node: UOp) -> bool:
    return _one(node) and _same_dtype(node)


def _collective(node: UOp) -> bool:
    device, op = node.arg
    same = _same_dtype(node) and len({s.shape for s in node.src}) == 1
    return same and device in [s.device for s in node.src] and (op is None or op in Family.REDUCING)


def _live_out(node: UOp) -> bool:
    value, condition = node.src
    return value.dtype is node.dtype and condition.dtype.is_bool and condition.shape == value.shape


def _detach(node: UOp) -> bool:
    return _same_value(node) and (node.arg is None or isinstance(node.arg, int))


def _assign(node: UOp) -> bool:
    if len(node.src) != 2 or not _same_dtype(node) or node.src[0].shape != node.src[1].shape:
        return False
    target = node.src[0]
    through = Family.MOVEMENT if node.src[1].op is Ops.LIVE_OUT else Family.VIEW  # zeros beside it stay
    while target.op in through or target.op in (Ops.DETACH, Ops.ASSIGN):
        target = target.src[0]
    return target.op in (Ops.BUFFER, Ops.PARAM)


def _only_scalars(nodes: Sequence[UOp]) -> None:
    for node in nodes:
        if not _scalar(node):
            raise SpecError(f"tensor_graph: {node} is a vector; only generated code has those")


_PARAM = Production("PARAM", "arg (slot, items): a buffer of the kernel", lambda n: _is_source(n)
                    and _sized(n.arg))
_VARIABLE = Production("VARIABLE", "arg (name, low, high, value?); an int", _variable)
_SCALAR_CONSTANT = Production("CONST", "arg: the number", _constant)
_CONSTANT = Production("CONST", "arg: the number, or one a lane", _constant)

TENSOR_GRAPH = Grammar("tensor_graph", (
    Production("BUFFER", "arg BufferSpec", lambda n: _is_source(n) and isinstance(n.arg, BufferSpec)),
    _PARAM,
    _SCALAR_CONSTANT,
    _VARIABLE,
    Production("COPY(value)", "arg: the device, or a Sharding of several",
         lambda n: _same_value(n) and isinstance(n.arg, (str, Sharding))),
    Production("COLLECTIVE(value, value...)", "arg: (device, ADD | MAX | MUL | None)", _collective),
    *_ELEMENTWISE,
    Production("REDUCE(value)", "arg (ADD | MAX | MUL, axes in order)", _tensor_reduce),
    Production("RESHAPE(value)", "arg: a shape of as many items", _reshape),
    Production("PERMUTE(value)", "arg: an order of the axes", _permute),
    Production("EXPAND(value)", "arg: a shape; only axes of size 1 grow", _expand),
    Production("PAD(value)", "arg: (before, after) >= 0 for each axis", _pad),
    Production("SHRINK(value, int*)", "arg: (start, end) within each axis; ints: moves", _shrink),
    Production("STRIDE(value)", "arg: a step other than 0 for each axis", _stride),
    Production("CONTIGUOUS(value)", "arg: None, or an AxisOrder",
               lambda n: _same_value(n) and (n.arg is None or isinstance(n.arg, AxisOrder))),
    Production("LIVE_OUT(value, bool)", "the value where the condition holds: all that is live out",
               _live_out),
    Production("DETACH(value)", "arg: None, or the identity of a leaf", _detach),
    Production("ASSIGN(view of a BUFFER or PARAM, value)", "of one shape and dtype", _assign),
    Production("CUSTOM_GRADIENT(value, input*)", "arg: the function that gives the inputs' gradients",
         lambda n: len(n.src) > 1 and n.dtype is n.src[0].dtype and callable(n.arg)),
    Production("SINK(value*)", "", lambda n: True),
), _only_scalars)
"""What `Tensor` builds and the scheduler takes apart."""


# --- addresses: the loop nest and the program -----------------------------------------------------


def _range(node: UOp) -> bool:
    ends = len(node.src) in (1, 3) and all(_int(s) and _scalar(s) for s in node.src)
    return ends and _int(node) and _scalar(node) and _pair(node.arg, RangeKind)


def _index_into(*memories: Ops) -> Check:
    def holds(node: UOp) -> bool:
        if len(node.src) not in (2, 3) or node.arg is not None:
            return False
        memory, offset, *valid = node.src
        if memory.op not in memories or node.dtype is not memory.dtype.scalar or not _int(offset):
            return False
        return all(v.dtype.is_bool for v in valid)

    return holds


def _lanes_fit(address: UOp, value: DType) -> bool:
    """Every lane of the value has an address: its own, or the next item's after an address of one lane."""
    lanes = [s.dtype.count for s in address.src[1:]]
    return address.dtype.scalar is value.scalar and all(count in (1, value.count) for count in lanes)


def _load(node: UOp) -> bool:
    return _one(node) and _ops(node.src, Ops.INDEX) and _lanes_fit(node.src[0], node.dtype)


def _vectorize(node: UOp) -> bool:
    if any(not _scalar(s) or s.dtype is not node.dtype.scalar for s in node.src) or _scalar(node):
        return False
    return len(node.src) in (1, node.dtype.count)


def _shuffle(node: UOp) -> bool:
    if len(node.src) != 2 or _scalar(node) or node.src[0].dtype is not node.src[1].dtype:
        return False
    given = node.src[0].dtype
    return given.scalar is node.dtype.scalar and len(node.arg) == node.dtype.count and \
        all(0 <= i < 2 * given.count for i in node.arg)


def _extract(node: UOp) -> bool:
    if not _one(node) or node.dtype is not node.src[0].dtype.scalar:
        return False
    return isinstance(node.arg, int) and 0 <= node.arg < node.src[0].dtype.count


def _reduce_lanes(node: UOp) -> bool:
    """A vector's lanes into one."""
    return _one(node) and node.arg in Family.REDUCING and not _scalar(node.src[0]) and \
        node.dtype is node.src[0].dtype.scalar


_VECTORS = (
    Production("VECTORIZE(value) | VECTORIZE(value*)", "scalars: one for all lanes, or one a lane",
               _vectorize),
    Production("SHUFFLE(vector, vector)", "arg: the place of each lane in the two", _shuffle),
    Production("EXTRACT(vector)", "arg: the lane", _extract),
)


# --- the loop nest --------------------------------------------------------------------------------


def _nest_reduce(node: UOp) -> bool:
    """Values to accumulate (several once a range is written out), then the ranges to accumulate them over."""
    count = len(node.src) - len(node.closed_ranges)
    values, ranges = node.src[:count], node.src[count:]
    accumulates = all(v.dtype is node.dtype for v in values) and _ops(ranges, Ops.RANGE)
    least = 2 if node.arg is Ops.MULACC else 1
    return node.arg in Family.ACCUMULATING and len(values) >= least and (accumulates or _reduce_lanes(node))


def _running(node: UOp) -> bool:
    """A value and the loop over it."""
    return node.arg in Family.REDUCING and len(node.src) == 2 and node.src[0].dtype is node.dtype and \
        node.src[1].op is Ops.RANGE


def _exchange(node: UOp) -> bool:
    return _same_value(node) and node.arg > 0 and node.arg & (node.arg - 1) == 0


def _nest_store(node: UOp) -> bool:
    if len(node.src) < 2 or node.src[0].op is not Ops.INDEX or node.dtype is not node.src[1].dtype:
        return False
    if node.arg not in (None, Memory.GLOBAL):
        return False
    return _ops(node.src[2:], Ops.RANGE) and _lanes_fit(node.src[0], node.dtype)


def _stage(node: UOp) -> bool:
    """Values that one iteration computes (several once a range is written out), then the ranges. Values lie
    around as many of these, the last, as the argument ends with; side by side without."""
    count = len(node.src) - len(node.closed_ranges)
    values, ranges = node.src[:count], node.src[count:]
    same = all(v.dtype is node.dtype for v in values)
    known = node.arg if isinstance(node.arg, tuple) else ()
    are_inside = len(known) < 3 or (len(known) == 3 and 0 < known[2] <= len(ranges))
    return count > 0 and same and _ops(ranges, Ops.RANGE) and _pair(known[:2], Memory) and are_inside


def _scatter(node: UOp) -> bool:
    """A value, where it goes, whether it does, and the ranges of which one iteration after the other adds
    its value."""
    value, offset, condition, *ranges = node.src
    _, op, items = node.arg
    same = value.dtype is node.dtype and op in (Ops.ADD, Ops.MAX, Ops.MUL) and isinstance(items, int)
    return same and _int(offset) and condition.dtype.is_bool and _ops(ranges, Ops.RANGE)


def _nest_mma(node: UOp) -> bool:
    """The elements of both source tiles, or where a unit finds these in shared memory; and the ranges over
    those of the three tiles that a lane holds."""
    kinds = [r.arg[1] for r in node.src[2:] if r.op is Ops.RANGE]
    lanes = [RangeKind.LOCAL] if node.arg.threads > 1 else []
    if node.arg.in_shared:
        return _ops(node.src[:2], Ops.INDEX) and kinds == [*lanes, RangeKind.FRAGMENT]
    fragments = kinds == [*lanes, *[RangeKind.FRAGMENT] * 3]
    return fragments and [s.dtype for s in node.src[:2]] == [node.arg.source] * 2


def _mma(node: UOp) -> bool:
    """What a lane holds of the three tiles; where the sources begin, if a unit reads shared memory."""
    unit = node.arg
    tiles = [] if unit.in_shared else [(unit.source, unit.a), (unit.source, unit.b)]
    held = [d.vec(f.registers) for d, f in [*tiles, (unit.result, unit.c)]]
    places = node.src[:2 - len(tiles)]
    lane = UOp.new(Ops.SPECIAL, dtypes.index, (), ("lidx0", unit.threads)) if unit.threads > 1 else \
        UOp.const(0, dtypes.index)
    return all(p.op is Ops.INDEX and p.src[0].op is Ops.SHARED for p in places) and \
        [s.dtype for s in node.src[len(places):3]] == held and node.src[3:] == (lane,)


def _prefetch(node: UOp) -> bool:
    if len(node.src) != 2 or not _ops(node.src, Ops.INDEX):
        return False
    return [s.src[0].op for s in node.src] == [Ops.SHARED, Ops.PARAM] and \
        all(_lanes_fit(s, node.dtype) for s in node.src)


_AT_ONCE = (RangeKind.LOCAL, RangeKind.UNROLL, RangeKind.VECTOR, RangeKind.FRAGMENT)


def _closed_at_the_end(nodes: Sequence[UOp]) -> None:
    """No loop is left open at the end, and none is closed again by what is computed from its result. What
    runs at once, as registers or threads, is no loop: it may go on with what all of it computed."""
    ended: dict[UOp, frozenset[UOp]] = {}
    for node in nodes:
        below = frozenset[UOp]().union(*(ended[s] for s in node.src))
        again = {r for r in below.intersection(node.closed_ranges) if r.kind not in _AT_ONCE}
        if again:
            raise SpecError(f"loop_nest: {node} closes {_names(again)} again: a value it uses has closed it")
        ended[node] = below.union(node.closed_ranges)
        if node.op is Ops.SINK and node.ranges:
            raise SpecError(f"loop_nest: {_names(node.ranges)} still open at {node}: no STORE closes it")


def _no_vector_range_among_vectors(nodes: Sequence[UOp]) -> None:
    lanes = [n for n in nodes if n.op is Ops.RANGE and n.kind is RangeKind.VECTOR]
    vectors = [n for n in nodes if not _scalar(n)]
    if lanes and vectors:
        raise SpecError(f"loop_nest: the vector {vectors[0]} stands beside {_names(lanes)} of kind VECTOR; "
                        "vectors come when those ranges are expanded, all at once")


def _names(ranges: Iterable[UOp]) -> str:
    return ", ".join(f"range i{identity}" for identity in sorted(r.identity for r in ranges))


LOOP_NEST = Grammar("loop_nest", (
    Production("SINK(STORE*)", "", lambda n: _ops(n.src, Ops.STORE)),
    Production("STORE(INDEX, value, RANGE*)", "closes the ranges; arg Memory.GLOBAL: past the caches",
               _nest_store),
    Production("INDEX(PARAM | STAGE | SCATTER, int, bool?)", "an item, where the condition holds",
         _index_into(Ops.PARAM, Ops.STAGE, Ops.SCATTER)),
    Production("LOAD(INDEX)", "zero where the condition is false", _load),
    Production("REDUCE(value+, RANGE*) | REDUCE(vector)",
               "arg ADD | MAX | MUL | MULACC; closes ranges or lanes", _nest_reduce),
    Production("RUNNING(value, RANGE)", "arg of the REDUCE of which it is the value so far", _running),
    Production("EXCHANGE(value)", "arg: the distance of the lanes, a power of two", _exchange),
    Production("MMA(value | INDEX, value | INDEX, RANGE | CONST, RANGE+)",
               "arg: the MatrixUnit; closes the ranges over elements of its sources", _nest_mma),
    Production("STAGE(value+, RANGE*)", "arg (identity, Memory, loops inside?); closes the ranges", _stage),
    Production("SCATTER(value, int, bool, RANGE+)",
               "arg (identity, ADD | MAX | MUL, items); closes the ranges", _scatter),
    Production("RANGE(extent, (begin, end)?)", "ints; arg (identity, RangeKind)", _range),
    _PARAM,
    _CONSTANT,
    _VARIABLE,
    *_ELEMENTWISE,
    _BYTE_DOT,
    _PRIMITIVES,
    _CALLED,
    *_VECTORS,
), _closed_at_the_end, _no_vector_range_among_vectors)
"""One kernel with its loops as values: before, between and after the Opts of its Plan."""


# --- the linear program ---------------------------------------------------------------------------


def _program_load(node: UOp) -> bool:
    return _load(node) or (_one(node) and _ops(node.src, Ops.REGISTER) and _same_dtype(node))


def _program_store(node: UOp) -> bool:
    if len(node.src) != 2 or node.arg not in (None, Memory.GLOBAL):
        return False
    place, value = node.src
    if place.op is Ops.REGISTER:
        return place.dtype is value.dtype
    return place.op is Ops.INDEX and _lanes_fit(place, value.dtype)


def _program_range(node: UOp) -> bool:
    return _range(node) and node.kind in (RangeKind.LOOP, RangeKind.THREAD)


_PLACELESS = frozenset({Ops.CONST, Ops.PARAM, Ops.VARIABLE, Ops.SCRATCH, Ops.SHARED, Ops.REGISTER})
"""What holds everywhere once it is listed, also after the loop in which it was listed."""


def _in_order(program: Sequence[UOp]) -> None:
    """Each node stands after its sources, within their loop; loops end innermost first.

    A node may be listed again: it is computed again there.
    """
    loops: list[UOp] = []
    listed: list[set[UOp]] = [set()]
    for place, node in enumerate(program):
        for source in node.src:
            if not any(source in scope for scope in listed):
                raise SpecError(f"program: at line {place}, {node} uses {source}, which is not listed before "
                                "in a loop that is still open")
        if node.op is Ops.END:
            if loops[-1] is not node.src[0]:
                raise SpecError(f"program: at line {place}, END of {node.src[0]} while {loops[-1]} is open")
            loops.pop()
            listed.pop()
        elif node.op is Ops.RANGE:
            _check_opening(place, node, loops)
            loops.append(node)
            listed.append({node})
        else:
            listed[0 if node.op in _PLACELESS else -1].add(node)
    if loops:
        raise SpecError(f"program: {loops[-1]} has no END")


def _check_opening(place: int, loop: UOp, around: list[UOp]) -> None:
    if loop in around:
        raise SpecError(f"program: at line {place}, {loop} is opened within itself")
    shared = [r for r in around if r.kind is RangeKind.THREAD]
    if shared and loop.kind is RangeKind.THREAD:
        raise SpecError(f"program: at line {place}, {loop} is split over threads inside {shared[-1]}, "
                        "which is already; loops around a split one run in full on every thread")


PROGRAM = Grammar("program", (
    _PARAM,
    Production("SCRATCH SHARED", "arg (identity, items)", lambda n: _is_source(n) and _sized(n.arg)),
    Production("REGISTER", "arg: identity", lambda n: _is_source(n) and n.arg is not None),
    _VARIABLE,
    _CONSTANT,
    Production("SPECIAL", "arg (name, size); an int", lambda n: _is_source(n) and _int(n) and _sized(n.arg)),
    Production("RANGE(extent, (begin, end)?)", "ints; arg (identity, LOOP | THREAD)", _program_range),
    Production("END(RANGE)", "of the innermost open loop", lambda n: _one(n) and _ops(n.src, Ops.RANGE)),
    Production("INDEX(PARAM | SCRATCH | SHARED, int, bool?)", "one address, or one a lane",
         _index_into(Ops.PARAM, Ops.SCRATCH, Ops.SHARED)),
    Production("LOAD(INDEX | REGISTER)", "lanes: adjacent items, or one an address", _program_load),
    Production("STORE(INDEX | REGISTER, value)", "lanes: as LOAD; arg as above", _program_store),
    *_ELEMENTWISE,
    _BYTE_DOT,
    _PRIMITIVES,
    _CALLED,
    *_VECTORS,
    Production("REDUCE(vector)", "arg ADD | MAX | MUL: its lanes into one", _reduce_lanes),
    Production("MMA(vector | INDEX, vector | INDEX, vector, SPECIAL | CONST)",
               "arg: the MatrixUnit; a @ b + c", _mma),
    Production("EXCHANGE(value)", "arg: the distance of the lanes, a power of two",
         lambda n: _exchange(n) and _scalar(n)),
    Production("BARRIER", "", lambda n: True),
    Production("PREFETCH(INDEX, INDEX)", "into SHARED, from a PARAM", _prefetch),
    Production("COMMIT", "", _is_source),
    Production("WAIT", "arg: groups that may be on their way", lambda n: _is_source(n) and n.arg >= 0),
), _in_order)
"""The statements of one kernel in order, as a renderer takes them."""

STAGES: dict[str, Grammar] = {stage.name: stage for stage in (TENSOR_GRAPH, LOOP_NEST, PROGRAM)}


def check_graph(graph: UOp | Sequence[UOp], stage: str) -> None:
    """Raise `SpecError` unless `graph` (its root, or for a program its nodes in order) is legal at `stage`.

    The error names the node, the stage and the rule that it breaks.
    """
    grammar = STAGES[stage]
    nodes = list(graph.toposort()) if isinstance(graph, UOp) else list(graph)
    for node in nodes:
        rule = grammar.by_op.get(node.op)
        if rule is None:
            raise SpecError(f"{stage}: {node} does not belong here; the ops of this stage are "
                            f"{', '.join(op.name for op in grammar.by_op)}")
        if not rule.holds(node):
            sources = ", ".join(map(str, node.src)) or "no source"
            raise SpecError(f"{stage}: {node} with {sources} breaks the rule\n    {rule}")
    for check in grammar.whole:
        check(nodes)
