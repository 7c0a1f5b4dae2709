"""Each stage's grammar allows what it describes, and names the rule, node and stage for what it does not."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Family, Memory, Ops, RangeKind
from tinygrad.graph.spec import LOOP_NEST, PROGRAM, STAGES, TENSOR_GRAPH, SpecError, check_graph
from tinygrad.graph.uop import UOp
from tinygrad.renderer.called_function import CalledFunction

F = dtypes.float32
I = dtypes.index  # noqa: E741 - the type of every offset below


def new(op: Ops, dtype: object = F, src: tuple[UOp, ...] = (), arg: object = None) -> UOp:
    """A node as a wrong pass could make it, past the checks of the builder methods."""
    return UOp.new(op, dtype, src, arg)  # type: ignore[arg-type]  # wrong types are some tests' subject


def param(slot: int, size: int = 64) -> UOp:
    return new(Ops.PARAM, F, (), (slot, size))


def tensor(*shape: int) -> UOp:
    size = 1
    for n in shape:
        size *= n
    return UOp.new_buffer("CPU", size, F).reshape(shape)


# --- every stage -------------------------------------------------------------------------------------


def test_every_op_belongs_to_a_stage() -> None:
    belonging = {op for stage in STAGES.values() for op in stage.by_op}
    assert belonging == set(Ops)


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda s: s.name)
def test_a_grammar_fits_on_a_page_and_says_each_op_once(stage: object) -> None:
    assert isinstance(stage, type(PROGRAM))
    assert len(stage.grammar.splitlines()) <= 40
    named = [op for rule in stage.rules for op in rule.ops]
    assert len(named) == len(set(named))
    for op in named:
        assert op.name in stage.grammar


def test_only_the_tensor_graph_moves_and_only_generated_code_loads() -> None:
    assert set(TENSOR_GRAPH.by_op) >= Family.MOVEMENT
    assert not set(LOOP_NEST.by_op) & Family.MOVEMENT
    assert not set(PROGRAM.by_op) & Family.MOVEMENT
    assert not {Ops.LOAD, Ops.STORE, Ops.RANGE} & set(TENSOR_GRAPH.by_op)


def test_an_error_names_stage_node_and_rule() -> None:
    bad = new(Ops.ADD, F, (tensor(4), tensor(4).cast(dtypes.int32)))
    with pytest.raises(SpecError) as caught:
        check_graph(bad, "tensor_graph")
    message = str(caught.value)
    assert "tensor_graph" in message
    assert "UOp(ADD float32 (4,))" in message
    assert "ADD SUB MUL FDIV IDIV MOD MAX (value, value)" in message


def test_an_op_of_another_stage_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="BUFFER .* does not belong here"):
        check_graph(tensor(2, 3), "loop_nest")


# --- the tensor graph --------------------------------------------------------------------------------


def test_tensor_graph_of_every_family_is_legal() -> None:
    a, b = tensor(4, 6), tensor(6, 5)
    product = a.reshape((4, 6, 1)).expand((4, 6, 5)) * b.reshape((1, 6, 5)).expand((4, 6, 5))
    matmul = product.reduce(Ops.ADD, (1,)).reshape((4, 5))
    moved = matmul.permute((1, 0)).pad(((1, 1), (0, 0))).shrink(((0, 7), (1, 3))).stride((-2, 1))
    value = (moved < 0).where(moved.exp2(), moved.sqrt().log2()).cast(dtypes.float16).contiguous().detach()
    target = tensor(4, 2)
    check_graph(UOp.sink([target.assign(value.cast(F)), moved.copy_to("NULL")]), "tensor_graph")


def test_bound_variable_in_a_tensor_graph_is_legal() -> None:
    check_graph(UOp.variable("n", 1, 9, 4).cast(dtypes.int32) + 1, "tensor_graph")


TENSOR_FAULTS: dict[str, Callable[[], UOp]] = {
    "a source too many": lambda: new(Ops.EXP2, F, (tensor(4), tensor(4))),
    "dtype changes without a cast": lambda: new(Ops.EXP2, F, (tensor(4).cast(dtypes.float16),)),
    "float op on integers": lambda: new(Ops.SQRT, dtypes.int32, (tensor(4).cast(dtypes.int32),)),
    "integer op on floats": lambda: new(Ops.MOD, F, (tensor(4), tensor(4))),
    "bits of floats": lambda: new(Ops.XOR, F, (tensor(4), tensor(4))),
    "shapes differ": lambda: new(Ops.ADD, F, (tensor(4), tensor(5))),
    "comparison that is no bool": lambda: new(Ops.CMPLT, F, (tensor(4), tensor(4))),
    "condition that is no bool": lambda: new(Ops.WHERE, F, (tensor(4), tensor(4), tensor(4))),
    "bitcast to another width": lambda: new(Ops.BITCAST, dtypes.float64, (tensor(4),)),
    "constant of another kind": lambda: new(Ops.CONST, F, (), 1),
    "reduce by subtraction": lambda: new(Ops.REDUCE, F, (tensor(4),), (Ops.SUB, (0,))),
    "reduce of an axis that is not there": lambda: new(Ops.REDUCE, F, (tensor(4),), (Ops.ADD, (1,))),
    "reduce of one axis twice": lambda: new(Ops.REDUCE, F, (tensor(4),), (Ops.ADD, (0, 0))),
    "reshape of the wrong size": lambda: new(Ops.RESHAPE, F, (tensor(4),), (5,)),
    "permutation with a repeat": lambda: new(Ops.PERMUTE, F, (tensor(4, 5),), (0, 0)),
    "expand of an axis that is not 1": lambda: new(Ops.EXPAND, F, (tensor(4),), (8,)),
    "negative padding": lambda: new(Ops.PAD, F, (tensor(4),), ((-1, 0),)),
    "shrink past the end": lambda: new(Ops.SHRINK, F, (tensor(4),), ((0, 5),)),
    "steps of too many axes": lambda: new(Ops.STRIDE, F, (tensor(4),), (2, 2)),
    "assignment to a value": lambda: new(Ops.ASSIGN, F, (tensor(4) + tensor(4), tensor(4))),
    "vector": lambda: new(Ops.CONST, F.vec(4), (), 0.0),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_tensor_graph_refuses(fault: str) -> None:
    with pytest.raises(SpecError, match="tensor_graph"):
        check_graph(TENSOR_FAULTS[fault](), "tensor_graph")


# --- the loop nest -----------------------------------------------------------------------------------


def row_sum(r: UOp, k: UOp) -> UOp:
    return param(1).index(r * 8 + k).load().reduce_ranges(Ops.ADD, k)


def test_reduce_with_prologue_and_epilogue_is_a_legal_nest() -> None:
    r, k = UOp.range(8, 0, RangeKind.THREAD), UOp.range(8, 1)
    check_graph(UOp.sink([param(0).index(r).store(row_sum(r, k).sqrt() + 1.0, r)]), "loop_nest")


def test_softmax_with_a_staged_row_is_a_legal_nest() -> None:
    r, a, b, c, d = (UOp.range(8, i) for i in range(5))
    x = param(1)
    highest = x.index(r * 8 + a).load().reduce_ranges(Ops.MAX, a)
    row = (x.index(r * 8 + b).load() - highest).exp2().stage(0, Memory.SCRATCH, b)
    total = row.index(c).load().reduce_ranges(Ops.ADD, c)
    store = param(0).index(r * 8 + d).store(row.index(d).load() * (1 / total), r, d)
    check_graph(UOp.sink([store]), "loop_nest")


def test_reduces_that_share_a_loop_are_a_legal_nest() -> None:
    r, k = UOp.range(8, 0), UOp.range(8, 1)
    x = param(1).index(r * 8 + k).load()
    mean, square = x.reduce_ranges(Ops.ADD, k), (x * x).reduce_ranges(Ops.ADD, k)
    check_graph(UOp.sink([param(0).index(r).store(mean * square, r)]), "loop_nest")


def test_masked_load_is_a_legal_nest() -> None:
    r = UOp.range(8, 0)
    x = param(1).index(r - 1, UOp.const(0, I) < r).load()
    check_graph(UOp.sink([param(0).index(r).store(x, r)]), "loop_nest")


def open_range() -> UOp:
    r, k = UOp.range(8, 0), UOp.range(8, 1)
    return UOp.sink([param(0).index(r).store(param(1).index(r * 8 + k).load(), r)])


def range_closed_twice() -> UOp:
    r, k = UOp.range(8, 0), UOp.range(8, 1)
    total = row_sum(r, k)
    return UOp.sink([param(0).index(r).store((row_sum(r, k) + total.reduce_ranges(Ops.ADD, k)), r)])


def vector_beside_its_range() -> UOp:
    r = UOp.range(8, 0, RangeKind.VECTOR)
    wide = new(Ops.VECTORIZE, F.vec(4), (param(1).index(r).load(),))
    return UOp.sink([param(0).index(r).store(new(Ops.EXTRACT, F, (wide,), 0), r)])


NEST_FAULTS: dict[str, Callable[[], UOp]] = {
    "range i1 still open": open_range,
    "closes range i1 again": range_closed_twice,
    "kind VECTOR": vector_beside_its_range,
    r"SINK\(STORE\*\)": lambda: UOp.sink([param(1).index(UOp.const(0, I)).load()]),
    r"LOAD\(INDEX\)": lambda: new(Ops.LOAD, dtypes.int32, (param(0).index(UOp.const(0, I)),)),
    r"INDEX\(PARAM \| STAGE": lambda: param(0).index(UOp.const(0, dtypes.int32)),
    r"STORE\(INDEX": lambda: param(0).index(UOp.const(0, I)).store(UOp.const(1, dtypes.int32)),
    r"REDUCE\(same\+": lambda: new(Ops.REDUCE, F, (UOp.const(1.0, F), UOp.range(4, 0)), Ops.SUB),
    r"STAGE\(same": lambda: new(Ops.STAGE, F, (UOp.const(1.0, F), UOp.range(4, 0)),
                                 (0, Memory.SCRATCH, 2)),
    r"CALL\(same": lambda: new(Ops.CALL, F, (UOp.const(1.0, dtypes.float64),),
                                CalledFunction("same", UOp.const(2.0, F), UOp.const(2.0, F))),
    r"RANGE\(int": lambda: new(Ops.RANGE, I, (UOp.const(4, I),), 0),
    r"EXTRACT\(vector\)": lambda: new(Ops.EXTRACT, F, (new(Ops.CONST, F.vec(4), (), 0.0),), 4),
    r"VECTORIZE\(value\)": lambda: new(Ops.VECTORIZE, F.vec(4), (UOp.const(1.0, F), UOp.const(2.0, F))),
}


@pytest.mark.parametrize("complaint", NEST_FAULTS)
def test_loop_nest_refuses(complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        check_graph(NEST_FAULTS[complaint](), "loop_nest")


# --- the linear program ------------------------------------------------------------------------------


def copying(lanes: int = 1) -> list[UOp]:
    """for i in 0..16: store(p0[i], load(p1[i])), `lanes` items at a time."""
    extent = UOp.const(16, I)
    loop = UOp.range(extent, 0, RangeKind.THREAD)
    source, target = param(1).index(loop), param(0).index(loop)
    value = source.load(lanes)
    return [param(0), param(1), extent, loop, source, value, target, target.store(value),
            new(Ops.END, I, (loop,))]


def accumulating() -> list[UOp]:
    """acc = 0; for i in 0..16: acc += p1[i]; p0[0] = acc"""
    zero, first, extent = UOp.const(0.0, F), UOp.const(0, I), UOp.const(16, I)
    acc, loop = new(Ops.REGISTER, F, (), 0), UOp.range(extent, 0)
    at = param(1).index(loop)
    value, before, after = at.load(), new(Ops.LOAD, F, (acc,), 0), new(Ops.LOAD, F, (acc,), 1)
    total, out = before + value, param(0).index(first)
    return [param(0), param(1), zero, first, extent, acc, acc.store(zero), loop, at, value, before, total,
            acc.store(total), new(Ops.END, I, (loop,)), after, out, out.store(after)]


@pytest.mark.parametrize("program", [copying(), copying(4), accumulating()],
                         ids=["copy", "copy vectors", "accumulate"])
def test_program_is_legal(program: list[UOp]) -> None:
    check_graph(program, "program")


def test_vectors_gathers_and_horizontal_reduces_are_a_legal_program() -> None:
    lanes = new(Ops.CONST, I.vec(4), (), (0, 2, 4, 6))
    mask = new(Ops.CONST, dtypes.bool.vec(4), (), (True, True, False, False))
    zero = UOp.const(0, I)
    gather = new(Ops.INDEX, F, (param(1), lanes, mask))
    value = new(Ops.LOAD, F.vec(4), (gather,))
    total = new(Ops.REDUCE, F, (value,), Ops.ADD)
    spread = new(Ops.VECTORIZE, F.vec(4), (total,))
    share = new(Ops.FDIV, F.vec(4), (value, spread))
    target = param(0).index(zero)
    check_graph([lanes, mask, zero, param(0), param(1), gather, value, total, spread, share, target,
                 target.store(share)], "program")


def without(program: list[UOp], op: Ops) -> list[UOp]:
    return [n for n in program if n.op is not op]


def test_program_refuses_a_use_before_its_source() -> None:
    program = copying()
    with pytest.raises(SpecError, match="line 0, .*INDEX.* uses .*PARAM.* not listed before"):
        check_graph([program[4], *program], "program")


def test_program_refuses_a_value_of_a_loop_that_has_ended() -> None:
    program = copying()
    with pytest.raises(SpecError, match="uses .*loop that is still open"):
        check_graph([*program, program[7]], "program")


def test_program_refuses_a_loop_without_end() -> None:
    with pytest.raises(SpecError, match="RANGE.* has no END"):
        check_graph(without(copying(), Ops.END), "program")


def test_program_refuses_crossing_loops() -> None:
    extent = UOp.const(4, I)
    outer, inner = UOp.range(extent, 0), UOp.range(extent, 1)
    ends = [new(Ops.END, I, (outer,)), new(Ops.END, I, (inner,))]
    with pytest.raises(SpecError, match="END of .* while .* is open"):
        check_graph([extent, outer, inner, *ends], "program")


def test_program_splits_one_loop_over_threads_and_no_other_within_it() -> None:
    extent = UOp.const(4, I)
    plain, shared = UOp.range(extent, 0), UOp.range(extent, 1, RangeKind.THREAD)
    ends = [new(Ops.END, I, (shared,)), new(Ops.END, I, (plain,))]
    check_graph([extent, plain, shared, *ends], "program")
    with pytest.raises(SpecError, match="split over threads inside"):
        check_graph([extent, shared, UOp.range(extent, 2, RangeKind.THREAD)], "program")


def test_program_refuses_kinds_that_must_be_expanded() -> None:
    extent = UOp.const(4, I)
    with pytest.raises(SpecError, match=r"arg \(identity, LOOP \| THREAD\)"):
        check_graph([extent, UOp.range(extent, 0, RangeKind.UNROLL)], "program")


def test_program_refuses_lanes_that_differ() -> None:
    lanes = new(Ops.CONST, I.vec(4), (), (0, 1, 2, 3))
    gather = new(Ops.INDEX, F, (param(1), lanes))
    with pytest.raises(SpecError, match=r"LOAD\(INDEX \| REGISTER\)"):
        check_graph([lanes, param(1), gather, new(Ops.LOAD, F.vec(8), (gather,))], "program")
    register, wide = new(Ops.REGISTER, F, (), 0), new(Ops.CONST, F.vec(4), (), 0.0)
    with pytest.raises(SpecError, match=r"STORE\(INDEX \| REGISTER, value\)"):
        check_graph([register, wide, register.store(wide)], "program")


def test_each_way_to_write_an_op_is_read_whole() -> None:
    reduce, value = LOOP_NEST.by_op[Ops.REDUCE], UOp.const(1.0, dtypes.float32)
    for sources in ((value,), (value, value)):
        assert reduce.allows(UOp.new(Ops.REDUCE, dtypes.float32, sources, Ops.ADD))
    lanes = UOp.new(Ops.VECTORIZE, dtypes.float32.vec(4), (value,) * 4)
    assert reduce.allows(UOp.new(Ops.REDUCE, dtypes.float32, (lanes,), Ops.ADD))
    assert not reduce.allows(UOp.new(Ops.REDUCE, dtypes.float32, (), Ops.ADD))
