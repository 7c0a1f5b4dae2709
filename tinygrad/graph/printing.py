"""Graphs as text, one form for each stage of the path.

    format_node      any node, on one line, whatever lies below it
    format_graph     the tensor graph: a numbered line for each node, sources first
    format_nest      the loop nest: loops, reduces and stages as indented pseudo-code
    format_program   the linear program: one line a statement, in the order in which it runs

In: nodes of that stage. Out: text that depends only on the structure (a buffer is named after its place in
the listing, not after its identity), so the same computation prints the same every time. `DEBUG` shows them.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Family, Memory, Ops, RangeKind
from tinygrad.graph.uop import UOp

MAX_INLINE = 60
"""Characters of the longest expression that is written inside another one; longer ones get a name."""
INDENT = "    "


def format_dtype(dtype: DType) -> str:
    """`float32`, or `float32x16` for a vector of 16 lanes."""
    return dtype.name if dtype.count == 1 else f"{dtype.name}x{dtype.count}"


# --- one node -------------------------------------------------------------------------------------


def format_node(node: UOp) -> str:
    """The node itself, without its sources: `UOp(MUL float32 (4, 4))`, `UOp(CONST float32 2.0)`."""
    parts = [node.op.name, format_dtype(node.dtype)]
    if node.shape != ():
        parts.append(str(node.shape))
    argument = format_argument(node)
    if argument and argument != str(node.shape):
        parts.append(argument)
    return f"UOp({' '.join(parts)})"


def format_argument(node: UOp) -> str:
    """What a node's argument says, in few words; '' if it has none."""
    arg = node.arg
    if arg is None:
        return ""
    if node.op is Ops.BUFFER:
        return f"#{arg.identity} on {arg.device}"
    if node.op is Ops.VARIABLE:
        name, low, high, value = arg
        return f"{name} in {low}..{high}" + ("" if value is None else f" = {value}")
    if node.op is Ops.REDUCE and isinstance(arg, tuple):
        return f"{arg[0].name} over axes {arg[1]}"
    if isinstance(arg, tuple):
        return "(" + ", ".join(_plain(a) for a in arg) + ("," if len(arg) == 1 else "") + ")"
    return _plain(arg)


def _plain(value: Any) -> str:
    return value.name if isinstance(value, (Ops, RangeKind, Memory)) else str(value)


# --- the tensor graph -----------------------------------------------------------------------------


def format_graph(root: UOp) -> str:
    """Each node below `root` and itself on a numbered line, sources first, a shared node once.

    A line reads: number, op, dtype, shape, the numbers of its sources, its argument.
    """
    numbers: dict[UOp, int] = {}
    rows: list[tuple[str, str, str, str, str]] = []
    for node in root.toposort():
        sources = " ".join(f"%{numbers[s]}" for s in node.src)
        argument = node.arg.device if node.op is Ops.BUFFER else format_argument(node)
        if node.op in (Ops.RESHAPE, Ops.EXPAND):
            argument = ""
        shape = "" if node.op in (Ops.SINK, Ops.RANGE) else str(node.shape)
        rows.append((node.op.name, format_dtype(node.dtype), shape, sources, argument))
        numbers[node] = len(numbers)
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for number, row in enumerate(rows):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{'%' + str(number):>{len(str(len(rows))) + 1}}  {cells}".rstrip())
    return "\n".join(lines)


# --- expressions ----------------------------------------------------------------------------------


class Text(NamedTuple):
    """An expression as text, and how tightly its outermost operation binds."""

    text: str
    binding: int


# How tightly an operation binds; Python's order.
_OR, _AND, _NOT, _COMPARE, _BITOR, _BITXOR, _BITAND, _SHIFT, _SUM, _PRODUCT, _SIGN, _ATOM = range(12)

_INFIX: dict[Ops, tuple[str, int]] = {
    Ops.ADD: (" + ", _SUM),
    Ops.SUB: (" - ", _SUM),
    Ops.MUL: ("*", _PRODUCT),
    Ops.FDIV: (" / ", _PRODUCT),
    Ops.IDIV: (" // ", _PRODUCT),
    Ops.MOD: (" % ", _PRODUCT),
    Ops.CMPLT: (" < ", _COMPARE),
    Ops.CMPNE: (" != ", _COMPARE),
    Ops.AND: (" & ", _BITAND),
    Ops.OR: (" | ", _BITOR),
    Ops.XOR: (" ^ ", _BITXOR),
    Ops.SHL: (" << ", _SHIFT),
    Ops.SHR: (" >> ", _SHIFT),
}
_ACCUMULATIONS: dict[Ops, str] = {
    Ops.ADD: "sum", Ops.MUL: "product", Ops.MAX: "max", Ops.MULACC: "rescaled sum",
}
_PREFIXES: dict[Ops, str] = {Ops.RANGE: "i", Ops.PARAM: "p", Ops.VARIABLE: "", Ops.SPECIAL: ""}
"""What stands before the name or number that these have."""
_WRITTEN_IN_PLACE = frozenset({Ops.CONST, Ops.INDEX, *_PREFIXES})
"""What is always written where it is used."""


def _atom(text: str) -> Text:
    return Text(text, _ATOM)


def _bound(source: Text, at_least: int) -> str:
    return source.text if source.binding >= at_least else f"({source.text})"


def _call(name: str, sources: Sequence[Text]) -> Text:
    return _atom(f"{name}({', '.join(s.text for s in sources)})")


def _constant(value: Any) -> Text:
    if isinstance(value, tuple):
        return _atom("(" + ", ".join(map(str, value)) + ")")
    return Text(str(value), _SIGN if str(value).startswith("-") else _ATOM)


def _negated(node: UOp, text: Text) -> str | None:
    """The text of minus `node`, where that drops a sign: of a number, of a NEG, of a number times a value."""
    if node.op in (Ops.CONST, Ops.NEG) and text.text.startswith("-"):
        return text.text[1:]
    if node.op is Ops.MUL and node.src[1].op is Ops.CONST:
        factor = _constant(node.src[1].arg).text
        if factor.startswith("-") and text.text.endswith(f"*{factor}"):
            rest = text.text.removesuffix(factor)
            return rest[:-1] if factor == "-1" else rest + factor[1:]
    return None


def _infix(node: UOp, sources: Sequence[Text]) -> Text:
    sign, binding = _INFIX[node.op]
    if node.dtype.is_bool and node.op in (Ops.AND, Ops.OR):
        sign, binding = (" and ", _AND) if node.op is Ops.AND else (" or ", _OR)
    left, right = sources
    subtracted = _negated(node.src[1], right) if node.op is Ops.ADD else None
    if subtracted is not None:
        return Text(f"{_bound(left, binding)} - {subtracted}", binding)
    # Only these may be regrouped without a change of value, so only these drop the parentheses on the right.
    exact = node.op in (Ops.AND, Ops.OR, Ops.XOR) or not node.dtype.is_float
    first = node.src[1]
    while first.op is node.op:
        first = first.src[0]
    # x*(1 // y*z) keeps them too: its text begins with a division, which binds as tightly as the product.
    divides = first.op in (Ops.IDIV, Ops.MOD) and node.op is Ops.MUL
    same_op_right = exact and node.op in Family.COMMUTATIVE and node.src[1].op is node.op and not divides
    right_least = binding if same_op_right else binding + 1
    return Text(f"{_bound(left, binding + (binding == _COMPARE))}{sign}{_bound(right, right_least)}", binding)


def _express(node: UOp, sources: Sequence[Text]) -> Text:
    """A node's value over the texts of its sources, for the ops that read the same at every stage."""
    if node.op is Ops.CONST:
        return _constant(node.arg)
    if node.op in _PREFIXES:
        return _atom(f"{_PREFIXES[node.op]}{node.arg[0]}")
    if node.op is Ops.CMPNE and node.src[1].op is Ops.CONST and node.src[1].arg is True:
        return Text(f"not {_bound(sources[0], _NOT)}", _NOT)
    if node.op in _INFIX:
        return _infix(node, sources)
    if node.op is Ops.NEG:
        return Text(f"-{_bound(sources[0], _ATOM)}", _SIGN)
    if node.op is Ops.INDEX:
        condition = f" if {sources[2].text}" if len(sources) == 3 else ""
        return _atom(f"{sources[0].text}[{sources[1].text}{condition}]")
    name, more = _called(node)
    return _call(name, [*sources, *(_atom(str(argument)) for argument in more)])


def _called(node: UOp) -> tuple[str, Sequence[Any]]:
    """The function that an operation is written as, and what it takes behind the sources."""
    if node.op is Ops.CAST:
        return format_dtype(node.dtype), ()
    if node.op is Ops.BITCAST:
        return "bitcast", (format_dtype(node.dtype),)
    if node.op is Ops.VECTORIZE:
        return ("vector", ()) if len(node.src) > 1 else ("splat", (node.dtype.count,))
    if node.op is Ops.SHUFFLE:
        return "shuffle", node.arg
    if node.op is Ops.EXTRACT:
        return "lane", (node.arg,)
    if node.op is Ops.REDUCE:
        return f"{_ACCUMULATIONS.get(node.arg, str(node.arg))}_of_lanes", ()
    return "fma" if node.op is Ops.MULACC else node.op.name.lower(), ()


def format_expression(root: UOp) -> str:
    """An expression of the ops that read the same at every stage, as Python writes it."""
    texts: dict[UOp, Text] = {}
    for node in root.toposort():
        texts[node] = _express(node, [texts[s] for s in node.src])
    return texts[root].text


def _lanes_suffix(dtype: DType) -> str:
    return str(dtype.count) if dtype.count > 1 else ""


def _loop_header(loop: UOp, sources: Sequence[Text]) -> str:
    return f"for {_loop_span(loop, sources)}:{_kind_of(loop, '  # ')}"


def _kind_of(loop: UOp, before: str) -> str:
    return "" if loop.kind is RangeKind.LOOP else before + loop.arg[1].name


def _loop_span(loop: UOp, sources: Sequence[Text]) -> str:
    begin, end = ("0", sources[0]) if len(sources) == 1 else (_bound(sources[1], _ATOM), sources[2])
    return f"i{loop.arg[0]} in {begin}..{_bound(end, _ATOM)}"


class _Names:
    """Names of values: a prefix and a number, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.names: dict[UOp, str] = {}
        self.numbered: Counter[str] = Counter()

    def name_of(self, node: UOp, prefix: str) -> str:
        if node not in self.names:
            self.names[node] = f"{prefix}{self.numbered[prefix]}"
            self.numbered[prefix] += 1
        return self.names[node]


# --- the loop nest --------------------------------------------------------------------------------


def format_nest(sink: UOp) -> str:
    """The loop nest below `sink` (or below one value) as pseudo-code.

    A loop is a value, so where a line stands follows from the loops that its value depends on: each line is
    put as far out as it can be. `a0` is a REDUCE, `s0` a STAGE, `v0` a value used more than once (or too long
    to write inside another); a value that two inner loops need is written in both.
    """
    printer = _NestPrinter(sink)
    for store in sink.src if sink.op is Ops.SINK else (sink,):
        printer.statement(store)
    return "\n".join(printer.finished())


class _Block:
    """Lines at one depth, the loop they stand in, and what has a name there."""

    def __init__(self, loop: UOp | None) -> None:
        self.loop = loop
        self.lines: list[str] = []
        self.named: dict[UOp, str] = {}


class _NestPrinter(_Names):
    def __init__(self, root: UOp) -> None:
        super().__init__()
        self.uses = Counter(s for node in root.toposort() for s in node.src)
        self.blocks = [_Block(None)]

    def statement(self, store: UOp) -> None:
        """A STORE inside its loops; the loops that the statement before stands in too stay open."""
        if store.op is not Ops.STORE:
            self.blocks[-1].lines.append(self.value(store).text)
            return
        loops = store.closed_ranges
        shared = 0
        for loop, block in zip(loops, self.blocks[1:]):
            if block.loop is not loop:
                break
            shared += 1
        self.close_to(shared + 1)
        self.blocks += map(_Block, loops[shared:])
        value, target = self.value(store.src[1]).text, self.value(store.src[0]).text
        lanes = store.src[1].dtype.count
        line = f"{target} = {value}" if lanes == 1 else f"store{lanes}({target}, {value})"
        self.blocks[-1].lines.append(line)

    def finished(self) -> list[str]:
        self.close_to(1)
        return self.blocks[0].lines

    def close_to(self, depth: int) -> None:
        """Close the innermost loops until `depth` blocks are open."""
        while len(self.blocks) > depth:
            block = self.blocks.pop()
            assert block.loop is not None
            header = _loop_header(block.loop, [self.value(s) for s in block.loop.src])
            self.blocks[-1].lines += [header, *(INDENT + line for line in block.lines)]

    def outermost(self, node: UOp) -> int:
        """The depth of the outermost block in which all the loops that `node` lives in are open."""
        open_loops = [block.loop for block in self.blocks]
        return max((open_loops.index(r) for r in node.ranges if r in open_loops), default=0)

    def visible_name(self, node: UOp) -> str | None:
        return next((block.named[node] for block in self.blocks if node in block.named), None)

    def value(self, root: UOp) -> Text:
        """The text of `root` at the end of the innermost block, after writing what it needs there."""
        texts: dict[UOp, Text] = {}
        for node in root.toposort(stop=lambda n: self.closes(n) or self.visible_name(n) is not None):
            name = self.visible_name(node)
            if name is not None:
                texts[node] = _atom(name)
            elif self.closes(node):
                texts[node] = _atom(self.write_closing(node))
            else:
                texts[node] = self.simple(node, [texts[s] for s in node.src])
        return texts[root]

    def closes(self, node: UOp) -> bool:
        return node.op in (Ops.STAGE, Ops.SCATTER) or (node.op is Ops.REDUCE and len(node.src) > 1)

    def simple(self, node: UOp, sources: list[Text]) -> Text:
        lanes = node.dtype.count
        if node.op is not Ops.LOAD:
            text = _express(node, sources)
        else:
            text = sources[0] if lanes == 1 else _call(f"load{lanes}", sources)
        shared = self.uses[node] > 1 and node.dtype.scalar is not dtypes.index
        if node.op in _WRITTEN_IN_PLACE or not (shared or len(text.text) > MAX_INLINE):
            return text
        name = self.name_of(node, "v")
        block = self.blocks[self.outermost(node)]
        block.lines.append(f"{name} = {text.text}")
        block.named[node] = name
        return _atom(name)

    def write_closing(self, node: UOp) -> str:
        """A REDUCE, STAGE or SCATTER, its body indented below it, in the outermost block where it can
        stand."""
        depth = self.outermost(node)
        inner = self.blocks[depth + 1:]
        del self.blocks[depth + 1:]
        name = self.name_of(node, "a" if node.op is Ops.REDUCE else "s")
        if node.op is Ops.SCATTER:
            what = f"{node.arg[2]} items, {_ACCUMULATIONS[node.arg[1]]} of (value, at, where)"
        else:
            what = node.arg[1].name.lower() if node.op is Ops.STAGE else _ACCUMULATIONS[node.arg]
        loops = ", ".join(
            f"{_loop_span(r, [self.value(s) for s in r.src])}{_kind_of(r, ' ')}" for r in node.closed_ranges)
        self.blocks += map(_Block, node.closed_ranges)
        lines = [self.value(s).text for s in node.src if s not in node.closed_ranges]
        while len(self.blocks) > depth + 1:
            lines = self.blocks.pop().lines + lines
        block = self.blocks[depth]
        block.lines += [f"{name} = {what} for {loops}:", *(INDENT + line for line in lines)]
        block.named[node] = name
        self.blocks += inner
        return name


# --- the linear program ---------------------------------------------------------------------------


def format_program(program: Sequence[UOp]) -> str:
    """A linear program as indented pseudo-code.

    A value used once is written where it is used, if it stands in the same loop and, when it reads a
    register, no store to that register comes between. Index arithmetic is always written where it is used.
    """
    return "\n".join(_ProgramPrinter(program).lines())


_MEMORIES = {Ops.SCRATCH: "s", Ops.SHARED: "shared", Ops.REGISTER: "acc"}
"""Memory that a program declares, and how it is called."""


class _ProgramPrinter(_Names):
    def __init__(self, program: Sequence[UOp]) -> None:
        super().__init__()
        self.program = program
        self.inlined = self.find_inlined()

    def find_inlined(self) -> set[int]:
        """The places in the program whose value is written at its one use."""
        uses: dict[int, list[int]] = defaultdict(list)
        stores: dict[UOp, list[int]] = defaultdict(list)
        listed: dict[UOp, int] = {}
        loops, loop_of = [-1], []
        for at, node in enumerate(self.program):
            for source in node.src:
                uses[listed.get(source, -1)].append(at)
            listed[node] = at
            if node.op is Ops.STORE:
                stores[node.src[0]].append(at)
            if node.op is Ops.END and len(loops) > 1:
                loops.pop()
            loop_of.append(loops[-1])
            if node.op is Ops.RANGE:
                loops.append(at)
        written_at: dict[int, int] = {}
        for at in reversed(range(len(self.program))):
            node, consumers = self.program[at], uses[at]
            written_at[at] = at
            if len(consumers) == 1 and loop_of[at] == loop_of[consumers[0]] and self.movable(node):
                place = written_at[consumers[0]]
                if node.op is not Ops.LOAD or not any(at < store < place for store in stores[node.src[0]]):
                    written_at[at] = place
        return {at for at, place in written_at.items() if place != at}

    def movable(self, node: UOp) -> bool:
        if node.op is Ops.LOAD:
            return node.src[0].op is Ops.REGISTER and node.dtype is not dtypes.index
        lanes = (Ops.VECTORIZE, Ops.SHUFFLE, Ops.EXTRACT, Ops.REDUCE)
        return node.op in Family.ELEMENTWISE or node.op in lanes

    def lines(self) -> list[str]:
        result: list[str] = []
        texts: dict[UOp, Text] = {}
        depth = 0
        for at, node in enumerate(self.program):
            sources = [texts.get(s) or _atom(f"<{s.op.name} not listed>") for s in node.src]
            if node.op is Ops.END:
                depth -= 1
                continue
            line = self.declaration(node) or self.statement(node, sources)
            if line is None:
                text = self.expression(node, sources)
                if self.written_in_place(at, node, text):
                    texts[node] = text
                    continue
                texts[node] = _atom(self.name_of(node, "v"))
                line = f"{texts[node].text} = {text.text}"
            elif node.op is not Ops.STORE:
                texts[node] = self.expression(node, sources)
            result.append(INDENT * depth + line)
            depth += node.op is Ops.RANGE
        return result

    def written_in_place(self, at: int, node: UOp, text: Text) -> bool:
        if node.op in _WRITTEN_IN_PLACE:
            return True
        short = len(text.text) <= MAX_INLINE
        is_index = node.op in Family.ELEMENTWISE and node.dtype is dtypes.index
        return short and (is_index or at in self.inlined)

    def declaration(self, node: UOp) -> str | None:
        if node.op is Ops.VARIABLE:
            return f"{node.arg[0]} = variable in {node.arg[1]}..{node.arg[2]}"
        if node.op is not Ops.PARAM and node.op not in _MEMORIES:
            return None
        name = f"p{node.arg[0]}" if node.op is Ops.PARAM else self.name_of(node, _MEMORIES[node.op])
        items = "" if node.op is Ops.REGISTER else f"[{node.arg[1]}]"
        return f"{name} = {node.op.name.lower()} {format_dtype(node.dtype)}{items}"

    def statement(self, node: UOp, sources: list[Text]) -> str | None:
        if node.op is Ops.RANGE:
            return _loop_header(node, sources)
        if node.op is Ops.BARRIER:
            return "barrier()"
        if node.op is not Ops.STORE:
            return None
        target, value = sources[:2]
        if node.src[0].op is Ops.REGISTER:
            return f"{target.text} = {value.text}"
        how = "scatter" if node.src[0].src[1].dtype.count > 1 else "store"
        return f"{how}{_lanes_suffix(node.src[1].dtype)}({target.text}, {value.text})"

    def expression(self, node: UOp, sources: list[Text]) -> Text:
        if node.op in _MEMORIES:
            return _atom(self.names[node])
        if node.op is not Ops.LOAD:
            return _express(node, sources)
        if node.src[0].op is Ops.REGISTER:
            return sources[0]
        how = "gather" if node.src[0].src[1].dtype.count > 1 else "load"
        return _call(how + _lanes_suffix(node.dtype), sources[:1])


