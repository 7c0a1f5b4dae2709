"""The walk that changes graphs, and the record of what each pass changed."""
from __future__ import annotations

from pathlib import Path

import pytest

from tinygrad import Context, Tensor, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.ranges import separate_loops, substitute_ranges
from tinygrad.graph.ops import Ops
from tinygrad.graph.passes import graph_pass, record_passes
from tinygrad.graph.rewrite import RewriteTable, Rule, any_node, const, node, rewrite
from tinygrad.graph.uop import UOp


def number(value: int) -> UOp:
    return UOp.const(value, dtypes.int32)


def numbers(count: int) -> list[UOp]:
    return [UOp.const(1.5 + i, dtypes.float32) for i in range(count)]


def variable(name: str) -> UOp:
    return UOp.variable(name, 0, 9)


def test_rebuild_asks_each_node_once_sources_first() -> None:
    a, b = variable("a"), variable("b")
    shared = UOp.new(Ops.MUL, a.dtype, (a, b))
    root = UOp.new(Ops.ADD, a.dtype, (shared, UOp.new(Ops.NEG, a.dtype, (shared,))))
    asked: list[UOp] = []

    def note(node: UOp, src: tuple[UOp, ...]) -> UOp:
        asked.append(node)
        return node.with_sources(src)

    assert root.rebuild(note) is root
    assert asked == list(root.toposort())


def test_rebuild_replaces_from_the_top_before_it_looks_below() -> None:
    x, y = numbers(2)
    inner = UOp.new(Ops.EXP2, x.dtype, (x,))
    root = UOp.new(Ops.SQRT, x.dtype, (inner,))
    asked: list[UOp] = []

    def instead(node: UOp) -> UOp | None:
        asked.append(node)
        return y if node is inner else None

    assert root.rebuild(top_down=instead).src == (y,)
    assert asked == [root, inner]  # x, below what was replaced, was not asked
    assert root.substitute({inner: y, y: x}).src == (y,)  # what is put there is not replaced again


def test_graphs_of_any_depth_are_rebuilt() -> None:
    x, y = numbers(2)
    root, wanted = x, y
    for _ in range(50_000):
        root, wanted = UOp.new(Ops.SQRT, x.dtype, (root,)), UOp.new(Ops.SQRT, x.dtype, (wanted,))
    assert root.substitute({x: y}) is wanted


def test_a_table_is_applied_until_no_rule_fits_and_circles_are_found() -> None:
    down = RewriteTable("counts down", [
        Rule("one less", node(Ops.NEG, const("c")), lambda c: None if c.arg == 0 else
             UOp.new(Ops.NEG, c.dtype, (number(c.arg - 1),)))])
    circle = RewriteTable("turns", [
        Rule("there and back", node(Ops.NEG, any_node("x"), name="whole"),
             lambda x, whole: UOp.new(Ops.NEG, x.dtype, (number(1 - x.arg),)))])
    start = UOp.new(Ops.SQRT, dtypes.int32, (UOp.new(Ops.NEG, dtypes.int32, (number(50),)),))
    assert rewrite(number(50), down) is number(50)  # no node of the graph has an op of the table
    assert rewrite(start, down).src[0].src[0].arg == 0
    assert down.normal_form(start.src[0]).src[0].arg == 0
    for again in (lambda: rewrite(start, circle), lambda: circle.normal_form(start.src[0])):
        with pytest.raises(RuntimeError, match="'turns' reaches no fixed point"):
            again()


# --- loops --------------------------------------------------------------------------------------------------


def memory(offset: UOp) -> UOp:
    return UOp.new(Ops.PARAM, dtypes.float32, (), (0, 64)).index(offset).load()


def test_loops_are_renamed_where_they_are_open_and_not_where_they_are_closed() -> None:
    r, s = UOp.range(8, 0), UOp.range(8, 1)
    closed = memory(r).reduce_ranges(Ops.ADD, r)
    value = memory(r) + closed
    assert substitute_ranges(value, {r: s}) is memory(s) + closed


def test_reduces_that_wait_for_others_get_loops_of_their_own_which_they_share() -> None:
    outer, r = UOp.range(4, 0), UOp.range(8, 1)
    largest = memory(outer * 8 + r).reduce_ranges(Ops.MAX, r)
    shifted = memory(outer * 8 + r) - largest
    sums = [shifted.reduce_ranges(Ops.ADD, r), (shifted * shifted).reduce_ranges(Ops.ADD, r)]
    out = UOp.new(Ops.PARAM, dtypes.float32, (), (1, 4)).index(outer).store(sums[0] + sums[1], outer)
    nest = separate_loops(UOp.sink([out]), places=False)
    reduces = [n for n in nest.toposort() if n.op is Ops.REDUCE]
    loops = {n.arg if n.arg is Ops.MAX else i: n.closed_ranges for i, n in enumerate(reduces)}
    assert loops.pop(Ops.MAX) == (r,)
    (one, two) = loops.values()
    assert one == two != (r,)
    assert separate_loops(nest, places=True) is nest


def test_reduces_in_different_places_get_loops_of_their_own() -> None:
    outer, other, r = UOp.range(4, 0), UOp.range(2, 2), UOp.range(8, 1)
    once = memory(r).reduce_ranges(Ops.ADD, r)
    often = memory(outer * 8 + r).reduce_ranges(Ops.ADD, r)
    out = UOp.new(Ops.PARAM, dtypes.float32, (), (1, 8)).index(outer * 2 + other)
    nest = UOp.sink([out.store(once + often, outer, other)])
    assert separate_loops(nest, places=False) is nest
    apart = separate_loops(nest, places=True)
    closed = [n.closed_ranges for n in apart.toposort() if n.op is Ops.REDUCE]
    assert len(set(closed)) == 2


# --- the record ---------------------------------------------------------------------------------------------


def softmax_of_a_product() -> UOp:
    x, w = Tensor.rand(32, 48).realize(), Tensor.rand(48, 40).realize()
    kernels = [item.ast for item in (x @ w).softmax().schedule() if item.ast.op is Ops.SINK]
    return kernels[-1]


def test_passes_are_recorded_with_the_rules_that_changed_nodes_and_their_lines() -> None:
    ast = softmax_of_a_product()
    plain = stages_of(ast, "CPU")
    with record_passes() as passes:
        recorded = stages_of(ast, "CPU")
    assert recorded.program == plain.program  # a record changes nothing
    names = [p.name for p in passes]
    opts = [str(opt) for opt in plain.plan.opts]
    assert names == ["lower", *opts, "unroll", "vectorize", "device primitives", "linearize"]
    by_name = {p.name: p for p in passes}
    assert by_name["lower"].before == (ast,) and by_name["lower"].after == (plain.nest,)
    assert by_name["linearize"].after == tuple(plain.program)
    exp2 = next(c for c in by_name["device primitives"].changes if c.rule == "exp2")
    assert exp2.before.op is Ops.EXP2 and exp2.after is not exp2.before
    assert exp2.place.startswith("codegen/transcendental.py:")
    for p in passes:
        for change in p.changes:
            line = Path(change.file).read_text().splitlines()[change.line - 1]
            assert "def " in line or "lambda" in line, change
    assert f"{change.rule}  ({change.place})" in "\n".join(map(str, passes))


def test_each_record_is_whole_although_results_are_remembered() -> None:
    ast = softmax_of_a_product()
    records = []
    for _ in range(2):
        with record_passes() as passes:
            stages_of(ast, "CPU")
        records.append([(p.name, len(p.changes)) for p in passes])
    assert records[0] == records[1]


def test_passes_inside_passes_have_changes_of_their_own() -> None:
    @graph_pass("inner")
    def inner(graph: UOp) -> UOp:
        return graph.rebuild(lambda node, src: number(2) if node is number(1) else node.with_sources(src))

    @graph_pass("outer")
    def outer(graph: UOp) -> UOp:
        return inner(graph).rebuild(lambda node, src: number(3) if node is number(2) else node)

    assert outer(number(1)) is number(3)
    with record_passes() as passes:
        outer(number(1))
    assert [(p.name, [(c.before.arg, c.after.arg) for c in p.changes]) for p in passes] == \
        [("inner", [(1, 2)]), ("outer", [(2, 3)])]
    with pytest.raises(RuntimeError, match="recorded already"), record_passes(), record_passes():
        pass


def test_passes_are_printed_at_debug_8(capfd: pytest.CaptureFixture[str]) -> None:
    ast = softmax_of_a_product()
    with Context(DEBUG=8):
        stages_of(ast, "CPU")
    printed = capfd.readouterr().out
    assert "vectorize: " in printed and " x exp2  (codegen/transcendental.py:" in printed
