"""What is legal at each stage: the grammars of the tensor graph, the loop nest and the linear program.

A `Grammar` is a table of rules, each one line of grammar for the reader and the machine, and a check of what
that line cannot say, side by side; plus checks of the graph as a whole. `check_graph` raises `SpecError` with
the node, the stage and the rule it breaks. Every pass hands on a graph that its stage allows: the tests check
that after each pass, normal runs with `CHECK=1`.

In a rule's form, `x*` is any number of x, `x+` at least one, `x?` at most one, `x | y` either, and a word in
lower case any value of that kind: `int` an index, `bool` a condition, `vector` a value of several lanes,
`same` one of the node's own dtype, `value` any. So a form is nearly a regular expression over words for the
sources, and is read as one.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from types import NoneType
from typing import Any

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Memory, Ops, RangeKind, Visibility
from tinygrad.graph.shapes import check_movement, elementwise_dtype
from tinygrad.graph.sharding import BlockMove, Sharding
from tinygrad.graph.storage import BufferSpec
from tinygrad.graph.template import GraphTemplate
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod

Check = Callable[[UOp], bool]


class SpecError(RuntimeError):
    """A graph that its stage does not allow: a pass of the compiler is wrong, never the user."""


class Production:
    """One line of a grammar: how the ops it names are written, over which sources, what else holds of them,
    in words and as a check."""

    def __init__(self, form: str, note: str, holds: Check = lambda node: True) -> None:
        self.form = form
        self.note = note
        self.holds = holds
        sources = [_WORDS.sub(_source_pattern, way.partition("(")[2].removesuffix(")"))
                   for way in form.split(") | ")]
        self.sources = re.compile("|".join(sources).replace(", ", ""))

    @property
    def ops(self) -> list[Ops]:
        """The ops that the form is about: the names before its first parenthesis."""
        return [Ops[name] for name in self.form.partition("(")[0].split() if name != "|"]

    def allows(self, node: UOp) -> bool:
        """Whether a node of these ops is written so."""
        sources = "".join([_described(source, node.dtype) for source in node.src])
        return self.sources.fullmatch(sources) is not None and self.holds(node)

    def __str__(self) -> str:
        return f"{self.form:<48} {self.note}".rstrip()


_WORDS = re.compile(r"\w+(?: \| \w+)*")


def _source_pattern(words: re.Match[str]) -> str:
    """A pattern for the description of a source that has one of these words."""
    return rf"(?:[^;]*\b(?:{words[0].replace(' | ', '|')})\b[^;]*;)"


def _described(source: UOp, dtype: DType) -> str:
    """The words of forms that a source of a node of this dtype is one of."""
    kind = "int" if _int(source) else "bool" if source.dtype.is_bool else ""
    same = "same" if source.dtype is dtype else ""
    return f"{source.op.name} value {kind} {same} {'' if _scalar(source) else 'vector'};"


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


def _int(node: UOp) -> bool:
    return node.dtype.scalar is dtypes.index


def _scalar(node: UOp) -> bool:
    return node.dtype.count == 1


def _pair(arg: Any, second: type) -> bool:
    """An argument (identity, member of the enumeration `second`)."""
    return isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[1], second)


def _sized(node: UOp) -> bool:
    """An argument (slot, identity or name; a size >= 0)."""
    return _pair(node.arg, int) and node.arg[1] >= 0


def _constant(node: UOp) -> bool:
    lanes = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    kind = float if node.dtype.is_float else bool if node.dtype.is_bool else int
    return len(lanes) in (1, node.dtype.count) and all(type(x) is kind for x in lanes)


# --- elementwise: the same at every stage ---------------------------------------------------------


def _elementwise(node: UOp) -> bool:
    try:
        return elementwise_dtype(node.op, node.src) is node.dtype
    except (TypeError, ValueError):
        return False


def _cast(node: UOp) -> bool:
    return node.dtype.count == node.src[0].dtype.count


_ELEMENTWISE = (
    Production("NEG SQRT EXP2 LOG2 SIN TRUNC (value)", "of the dtype of its source", _elementwise),
    Production("CAST(value)", "to any dtype; lanes stay", _cast),
    Production("BITCAST(value)", "to a dtype of the same width",
               lambda n: _cast(n) and n.dtype.itemsize == n.src[0].dtype.itemsize),
    Production("ADD SUB MUL FDIV IDIV MOD MAX (value, value)", "of one dtype", _elementwise),
    Production("AND OR XOR SHL SHR (value, value)", "of one dtype, no float", _elementwise),
    Production("CMPLT CMPNE (value, value)", "of one dtype; makes a bool", _elementwise),
    Production("WHERE(bool, value, value)", "values of one dtype", _elementwise),
    Production("MULACC(value, value, value)", "of one dtype", _elementwise),
    Production("THREEFRY(value, value, value, value)", "a block, its key, of uint32; arg: the word, 0 or 1",
               lambda n: n.arg in (0, 1) and _elementwise(n)),
)
_GENERATED = (
    Production("DP4A(value, value, value)", "of int32",
               lambda n: _elementwise(n) and n.dtype.scalar is dtypes.int32),
    Production("LOOKUP(value)", "of uint32; arg: 16 bytes",
               lambda n: _elementwise(n) and n.dtype.scalar is dtypes.uint32 and len(n.arg) == 16),
    Production("LDEXP(value, value)", "of one float dtype", _elementwise),
    Production("CALL(same)", "arg: the CalledFunction, of a value of that dtype",
               lambda n: n.arg.parameter.dtype is n.dtype),
)
"""What only generated code has."""


# --- the tensor graph -----------------------------------------------------------------------------


def _tensor_reduce(node: UOp) -> bool:
    if not (isinstance(node.arg, tuple) and len(node.arg) == 2):
        return False
    op, axes = node.arg
    inside = {a for a in axes if 0 <= a < len(node.src[0].shape)}
    return op in Family.REDUCING and list(axes) == sorted(inside)


def _movement(node: UOp) -> bool:
    try:
        check_movement(node.op, node.src[0].shape, node.arg)
    except ValueError:
        return False
    return len(node.src) in (1, 1 + len(node.arg))


def _collective(node: UOp) -> bool:
    device, what, *number = node.arg
    if device not in [s.device for s in node.src]:
        return False
    if number:  # what is in several blocks is no more than they have
        taken = sum(prod(b.sizes) for b in starmap(BlockMove, what) if [b.taker] == number)
        return bool(taken == node.numel)
    return _one_shape(node) and (what is None or what in Family.REDUCING)


def _one_shape(node: UOp) -> bool:
    return len({s.shape for s in node.src}) == 1


def _assign(node: UOp) -> bool:
    target, value = node.src
    through = Family.MOVEMENT if value.op is Ops.LIVE_OUT else Family.VIEW  # zeros beside it stay
    while target.op in through or target.op in (Ops.DETACH, Ops.ASSIGN):
        target = target.src[0]
    return _one_shape(node) and target.op in (Ops.BUFFER, Ops.PARAM)


def _only_scalars(nodes: Sequence[UOp]) -> None:
    for node in nodes:
        if not _scalar(node):
            raise SpecError(f"tensor_graph: {node} is a vector; only generated code has those")


def _with(*kinds: type) -> Check:
    """An argument of one of these types."""
    return lambda node: isinstance(node.arg, kinds)


_PARAM = Production("PARAM", "arg (slot, items): a buffer of the kernel", _sized)
_VARIABLE = Production("VARIABLE", "arg (name, low, high, value?); an int",
                       lambda n: _int(n) and isinstance(n.arg, tuple) and len(n.arg) == 4)
_CONSTANT = Production("CONST", "arg: the number, or one a lane", _constant)

TENSOR_GRAPH = Grammar("tensor_graph", (
    Production("BUFFER", "arg BufferSpec", _with(BufferSpec)),
    _PARAM,
    Production("CONST", "arg: the number", _constant),
    _VARIABLE,
    Production("COPY(same)", "arg: the device, or a Sharding of several", _with(str, Sharding)),
    Production("COLLECTIVE(same+)", "arg: (device, ADD | MAX | MUL | None), or (device, blocks, its number)",
               _collective),
    *_ELEMENTWISE,
    Production("REDUCE(same)", "arg (ADD | MAX | MUL, axes in order)", _tensor_reduce),
    Production("RESHAPE(same)", "arg: a shape of as many items", _movement),
    Production("PERMUTE(same)", "arg: an order of the axes", _movement),
    Production("EXPAND(same)", "arg: a shape; only axes of size 1 grow", _movement),
    Production("PAD(same)", "arg: (before, after) >= 0 for each axis", _movement),
    Production("SHRINK(same, int*)", "arg: (start, end) within each axis; ints: moves", _movement),
    Production("STRIDE(same)", "arg: a step other than 0 for each axis", _movement),
    Production("CONTIGUOUS(same)", "arg: None, or a Visibility", _with(NoneType, Visibility)),
    Production("LIVE_OUT(same, bool)", "the value where the condition holds: all that is live out",
               _one_shape),
    Production("DETACH(same)", "arg: None, or the identity of a leaf", _with(NoneType, int)),
    Production("ASSIGN(same, same)", "into a view of a BUFFER or PARAM, of one shape", _assign),
    Production("CUSTOM_GRADIENT(same, value+)", "arg: the function that gives the other values' gradients",
               lambda n: callable(n.arg)),
    Production("APPLY(value+)", "arg: the GraphTemplate", _with(GraphTemplate)),
    Production("SINK(value*)", ""),
), _only_scalars)
"""What `Tensor` builds and the scheduler takes apart."""


# --- addresses: the loop nest and the program -----------------------------------------------------


def _range(node: UOp) -> bool:
    return _int(node) and all(map(_scalar, (node, *node.src))) and _pair(node.arg, RangeKind)


def _index(node: UOp) -> bool:
    return node.arg is None and node.dtype is node.src[0].dtype.scalar


def _lanes_fit(address: UOp, value: DType) -> bool:
    """Every lane of the value has an address: its own, or the next item's after an address of one lane."""
    lanes = [s.dtype.count for s in address.src[1:]]
    return address.dtype.scalar is value.scalar and all(count in (1, value.count) for count in lanes)


def _load(node: UOp) -> bool:
    return _lanes_fit(node.src[0], node.dtype)


def _store(node: UOp) -> bool:
    place, value, *_ = node.src
    fits = place.dtype is value.dtype if place.op is Ops.REGISTER else _lanes_fit(place, value.dtype)
    return fits and node.arg in (None, Memory.GLOBAL)


def _vectorize(node: UOp) -> bool:
    scalars = all(_scalar(s) and s.dtype is node.dtype.scalar for s in node.src)
    return scalars and not _scalar(node) and len(node.src) in (1, node.dtype.count)


def _shuffle(node: UOp) -> bool:
    given = node.src[0].dtype
    return given is node.src[1].dtype and given.scalar is node.dtype.scalar and not _scalar(node) and \
        len(node.arg) == node.dtype.count and all(0 <= i < 2 * given.count for i in node.arg)


def _extract(node: UOp) -> bool:
    given = node.src[0].dtype
    return node.dtype is given.scalar and isinstance(node.arg, int) and 0 <= node.arg < given.count


def _reduce_lanes(node: UOp) -> bool:
    """A vector's lanes into one."""
    return node.arg in Family.REDUCING and not _scalar(node.src[0]) and node.dtype is node.src[0].dtype.scalar


def _exchange(node: UOp) -> bool:
    return bool(node.arg > 0 and node.arg & (node.arg - 1) == 0)


_VECTORS = (
    Production("VECTORIZE(value) | VECTORIZE(value*)", "scalars: one for all lanes, or one a lane",
               _vectorize),
    Production("SHUFFLE(vector, vector)", "arg: the place of each lane in the two", _shuffle),
    Production("EXTRACT(vector)", "arg: the lane", _extract),
)


# --- the loop nest --------------------------------------------------------------------------------


def _nest_reduce(node: UOp) -> bool:
    if len(node.src) == 1 and _reduce_lanes(node):
        return True
    least = 2 if node.arg is Ops.MULACC else 1
    return node.arg in Family.ACCUMULATING and len(node.src) - len(node.closed_ranges) >= least


def _stage(node: UOp) -> bool:
    """Values lie around as many of the ranges, the last, as the argument ends with; side by side without."""
    known = node.arg if isinstance(node.arg, tuple) else ()
    are_inside = len(known) < 3 or (len(known) == 3 and 0 < known[2] <= len(node.closed_ranges))
    return _pair(known[:2], Memory) and are_inside


def _scatter(node: UOp) -> bool:
    """Values, each with where it goes and whether it does, and the ranges of which one iteration after the
    other adds its values."""
    _, op, items = node.arg
    return op in Family.REDUCING and isinstance(items, int)


def _nest_mma(node: UOp) -> bool:
    """The elements of both source tiles, or where a unit finds these in shared memory; and the ranges over
    those of the three tiles that a lane holds."""
    kinds = [r.arg[1] for r in node.src[2:] if r.op is Ops.RANGE]
    lanes = [RangeKind.LOCAL] if node.arg.threads > 1 else []
    if node.arg.in_shared:
        return all(s.op is Ops.INDEX for s in node.src[:2]) and kinds == [*lanes, RangeKind.FRAGMENT]
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
        [s.dtype for s in node.src[len(places):3]] == held and node.src[3] is lane


def _prefetch(node: UOp) -> bool:
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
    Production("SINK(STORE*)", ""),
    Production("STORE(INDEX, same, RANGE*)", "closes the ranges; arg Memory.GLOBAL: past the caches", _store),
    Production("INDEX(PARAM | STAGE | SCATTER, int, bool?)", "an item, where the condition holds", _index),
    Production("LOAD(INDEX)", "zero where the condition is false", _load),
    Production("REDUCE(same+, RANGE*) | REDUCE(vector)",
               "arg ADD | MAX | MUL | MULACC; closes ranges or lanes", _nest_reduce),
    Production("RUNNING(same, RANGE)", "arg of the REDUCE of which it is the value so far",
               lambda n: n.arg in Family.REDUCING),
    Production("EXCHANGE(same)", "arg: the distance of the lanes, a power of two", _exchange),
    Production("MMA(value, value, RANGE | CONST, RANGE+)",
               "of values or an INDEX; arg: the MatrixUnit; closes the ranges over elements of its sources",
               _nest_mma),
    Production("STAGE(same+, RANGE*)", "arg (identity, Memory, loops inside?); closes the ranges", _stage),
    Production("SCATTER((same, int, bool)+, RANGE+)",
               "arg (identity, ADD | MAX | MUL, items); closes the ranges", _scatter),
    Production("RANGE(int, (int, int)?)", "extent, begin and end; arg (identity, RangeKind)", _range),
    _PARAM,
    _CONSTANT,
    _VARIABLE,
    *_ELEMENTWISE,
    *_GENERATED,
    *_VECTORS,
), _closed_at_the_end, _no_vector_range_among_vectors)
"""One kernel with its loops as values: before, between and after the Opts of its Plan."""


# --- the linear program ---------------------------------------------------------------------------


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
    Production("SCRATCH SHARED", "arg (identity, items)", _sized),
    Production("REGISTER", "arg: identity", lambda n: n.arg is not None),
    _VARIABLE,
    _CONSTANT,
    Production("SPECIAL", "arg (name, size); an int", lambda n: _int(n) and _sized(n)),
    Production("RANGE(int, (int, int)?)", "extent, begin and end; arg (identity, LOOP | THREAD)",
               lambda n: _range(n) and n.kind in (RangeKind.LOOP, RangeKind.THREAD)),
    Production("END(RANGE)", "of the innermost open loop"),
    Production("INDEX(PARAM | SCRATCH | SHARED, int, bool?)", "one address, or one a lane", _index),
    Production("LOAD(INDEX | REGISTER)", "lanes: adjacent items, or one an address",
               lambda n: n.dtype is n.src[0].dtype if n.src[0].op is Ops.REGISTER else _load(n)),
    Production("STORE(INDEX | REGISTER, value)", "lanes: as LOAD; arg as above", _store),
    *_ELEMENTWISE,
    *_GENERATED,
    *_VECTORS,
    Production("REDUCE(vector)", "arg ADD | MAX | MUL: its lanes into one", _reduce_lanes),
    Production("MMA(value, value, value, SPECIAL | CONST)",
               "of vectors, the first two or an INDEX; arg: the MatrixUnit; a @ b + c", _mma),
    Production("EXCHANGE(same)", "arg: the distance of the lanes, a power of two",
               lambda n: _exchange(n) and _scalar(n)),
    Production("BARRIER", ""),
    Production("PREFETCH(INDEX, INDEX)", "into SHARED, from a PARAM", _prefetch),
    Production("COMMIT", ""),
    Production("WAIT", "arg: groups that may be on their way", lambda n: n.arg >= 0),
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
        if not rule.allows(node):
            sources = ", ".join(map(str, node.src)) or "no source"
            raise SpecError(f"{stage}: {node} with {sources} breaks the rule\n    {rule}")
    for check in grammar.whole:
        check(nodes)
