"""Every table of rewrite rules has its proof: none can be added, nor a rule to one, without failing here.

`test_rules.py` proves constant folding, and index arithmetic, whose rules are no table of this kind. Here
are the arithmetic of loop counters (its law proven with z3, its results evaluated for every counter)
and what the scheduler simplifies (tensor graphs evaluated with NumPy before and after). Rules that change how
a result is rounded are measured against correctly rounded results, by the modules named in `MEASURED`.
"""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import z3
from test_rules import GRAPHS, NUMPY, new, prove

import tinygrad
from tinygrad import Tensor
from tinygrad.codegen import collapse
from tinygrad.codegen.collapse import counter_arithmetic
from tinygrad.dtype import DType, dtypes
from tinygrad.graph import rewrite
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule
from tinygrad.graph.uop import UOp
from tinygrad.schedule.simplify import scheduling_rules
from tinygrad.schedule.split import MUCH_WORK

Array = np.ndarray[Any, Any]


def all_rules() -> dict[str, set[str]]:
    """The names of the rules of each table in any module, without those it has from other tables."""
    found: dict[str, RewriteTable] = {}
    for module in pkgutil.walk_packages([str(Path(tinygrad.__file__).parent)], "tinygrad."):
        if module.name.startswith("tinygrad.runtime.lib") or module.name.endswith(".__main__"):
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except ModuleNotFoundError as error:  # a module of an extra that is not installed
            assert error.name and not error.name.startswith("tinygrad"), module.name
            continue
        found |= {value.name: value for value in names.values() if isinstance(value, RewriteTable)}
    own = {name: {r.name for r in table.rules if not any(r in t.rules for t in found.values()
                                                         if len(t.rules) < len(table.rules))}
           for name, table in found.items()}
    return {name: names for name, names in own.items() if names}


def rule_of(table: RewriteTable, name: str) -> Rule:
    return next(r for r in table.rules if r.name == name)


def applied(rule: Rule, node: UOp) -> UOp | None:
    """What a rule makes of a node."""
    results = [rule.replace(**found) for found in rule.pattern.match(node, {})]
    return next((n for n in results if n is not None), None)


# --- arithmetic of loop counters ----------------------------------------------------------------------------

KINDS = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32, dtypes.uint32, dtypes.int64)


def counters(dtype: DType) -> list[UOp]:
    """Counters around the ends of what `dtype` holds, and beyond."""
    low, high = int(dtype.min), int(dtype.max)
    ends = [(-3, 4), (low, low + 6), (low - 3, low + 3), (high - 6, high), (high - 3, high + 3)]
    return [UOp.variable(f"n{i}", *bounds) for i, bounds in enumerate(ends)]


def lifted(op: Ops) -> list[UOp]:
    return [new(op, counter.cast(dtype), UOp.const(number, dtype)) for dtype in KINDS
            for counter in counters(dtype) for number in (0, 1, 2, 3)]


def casts_of_casts() -> list[UOp]:
    return [UOp.new(Ops.CAST, outer, (counter.cast(inner),)) for inner in (*KINDS, dtypes.float16)
            for outer in (*KINDS, dtypes.float32) if inner is not outer
            for counter in counters(dtypes.int16 if inner.is_float else inner)]


def comparisons() -> list[UOp]:
    return [new(op, *sides) for op in (Ops.CMPLT, Ops.CMPNE) for dtype in KINDS for n in counters(dtype)
            for m in (counters(dtype)[0], UOp.const(2, dtypes.index))
            for a, b in ((n.cast(dtype), m.cast(dtype)), (m.cast(dtype), n.cast(dtype)))
            for sides in ((a, b), (new(Ops.SUB, a, b), UOp.const(2, dtype)), (new(Ops.ADD, a, b), a))]


def choices() -> list[UOp]:
    return [new(Ops.WHERE, counter < number, UOp.const(3, dtypes.int32), counter.cast(dtypes.int32))
            for counter in counters(dtypes.int16) for number in (-1, 0, 2)]


COUNTERS: dict[str, Callable[[], list[UOp]]] = {
    "lift": lambda: [node for op in (Ops.ADD, Ops.SUB, Ops.MUL) for node in lifted(op)],
    "cast of cast": casts_of_casts, "compare": comparisons, "constant last": choices,
}


def counted(node: UOp, value: int) -> Any:
    """The value of a graph over one counter, or two that are equal: integers of their dtype wrap around."""
    if node.op is Ops.VARIABLE:
        return min(max(value, node.arg[1]), node.arg[2])
    if node.op is Ops.CONST:
        return node.arg
    sources = [counted(s, value) for s in node.src]
    if node.op is Ops.WHERE:
        return sources[1] if sources[0] else sources[2]
    result = sources[0] if node.op is Ops.CAST else EXACT[node.op](*map(int, sources))
    if node.dtype.is_float:
        return node.dtype.numpy.type(result)
    if node.dtype is dtypes.index or node.dtype.is_bool:
        return result
    low, size = int(node.dtype.min), 1 << 8 * node.dtype.itemsize
    return (int(result) - low) % size + low


EXACT: dict[Ops, Callable[[int, int], Any]] = {
    Ops.ADD: int.__add__, Ops.SUB: int.__sub__, Ops.MUL: int.__mul__, Ops.CMPLT: int.__lt__,
    Ops.CMPNE: int.__ne__,
}


@pytest.mark.parametrize("name", COUNTERS)
def test_arithmetic_of_counters_is_the_same_for_every_counter(name: str) -> None:
    rule = rule_of(counter_arithmetic, name)
    changed = [(node, result) for node in COUNTERS[name]() if (result := applied(rule, node)) is not None]
    assert changed
    for node, result in changed:
        assert result.dtype is node.dtype
        low, high = next(n.arg[1:3] for n in node.toposort() if n.op is Ops.VARIABLE)
        for value in range(low, high + 1):
            assert counted(node, value) == counted(result, value), (node, value)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_wrapping_before_and_after_arithmetic_is_wrapping_after(width: int) -> None:
    """The law that `lift` and `cast of cast` rest on, for all integers."""
    x, c, low = z3.Ints("x c low")

    def wrap(value: Any) -> Any:
        return (value - low) % (1 << width) + low

    multiples = z3.Int("m")
    same = wrap(x) == x + multiples * (1 << width)
    for number in (-3, 1, 2, 5):
        prove(wrap(wrap(x) * number) == wrap(x * number))
    prove(wrap(wrap(x) + c) == wrap(x + c), same)
    prove(wrap(wrap(x) - c) == wrap(x - c), same)
    prove(z3.Implies(z3.And(low <= x, x < low + (1 << width)), wrap(x) == x))


# --- what needs no computing --------------------------------------------------------------------------------


def tensor_value(node: UOp, memory: dict[UOp, Array]) -> Array:
    """The value of a tensor graph, as NumPy computes it."""
    if node in memory:
        return memory[node]
    if node.op is Ops.CONST:
        return np.array(node.arg, node.dtype.numpy)
    x = [tensor_value(s, memory) for s in node.src]
    if node.op in MOVED:
        return np.asarray(MOVED[node.op](x[0], node.arg))
    if node.op is Ops.ASSIGN:
        return x[1]
    if node.op is Ops.CAST:
        return x[0].astype(node.dtype.numpy)
    if node.op is Ops.REDUCE:
        op, axes = node.arg
        fold = {Ops.ADD: np.add, Ops.MAX: np.maximum, Ops.MUL: np.multiply}[op]
        return np.asarray(fold.reduce(x[0], axis=axes, dtype=node.dtype.numpy)).reshape(node.shape)
    return np.asarray(NUMPY[node.op](*x)).astype(node.dtype.numpy)


MOVED: dict[Ops, Callable[[Array, Any], Any]] = {
    Ops.RESHAPE: lambda x, shape: x.reshape(shape),
    Ops.PERMUTE: lambda x, order: x.transpose(order),
    Ops.EXPAND: lambda x, shape: np.broadcast_to(x, shape),
    Ops.PAD: lambda x, pads: np.pad(x, pads),
    Ops.SHRINK: lambda x, bounds: x[tuple(slice(*b) for b in bounds)],
    Ops.STRIDE: lambda x, steps: x[tuple(slice(None, None, s) for s in steps)],
    **dict.fromkeys((Ops.CONTIGUOUS, Ops.COPY, Ops.DETACH, Ops.CUSTOM_GRADIENT), lambda x, _: x),
}


def held(*shape: int, device: str = "CPU") -> UOp:
    return UOp.new_buffer(device, int(np.prod(shape)), dtypes.int32).reshape(shape)


def constants_moved() -> list[UOp]:
    three = UOp.const(3, dtypes.int32, (2, 1, 4))
    return [UOp.new(op, dtypes.int32, (three,), arg) for op, arg in (
        (Ops.RESHAPE, (8,)), (Ops.PERMUTE, (2, 0, 1)), (Ops.EXPAND, (2, 5, 4)), (Ops.STRIDE, (1, 1, -2)),
        (Ops.SHRINK, ((0, 1), (0, 1), (1, 3))))]


def arithmetic_of_constants() -> list[UOp]:
    x = held(2, 3)
    zero, one, four = (UOp.const(n, dtypes.int32, (2, 3)) for n in (0, 1, 4))
    return [new(Ops.ADD, one, four), new(Ops.CMPLT, one, four), new(Ops.ADD, x, zero), new(Ops.MUL, x, one),
            new(Ops.MUL, x, zero), new(Ops.IDIV, x, one), UOp.new(Ops.CAST, dtypes.float32, (four,)),
            new(Ops.WHERE, UOp.const(True, dtypes.bool, (2, 3)), x, four)]


def reduces_of_reduces() -> list[UOp]:
    return [held(2, 3, 4, 5).reduce(op, inner).reduce(op, outer) for op in (Ops.ADD, Ops.MAX, Ops.MUL)
            for inner, outer in (((1,), (3,)), ((3,), (0, 2)), ((0, 1), (2, 3)))]


def reduces_of_permutes() -> list[UOp]:
    return [held(2, 3, 4, 1).permute(order).reduce(op, axes) for op in (Ops.ADD, Ops.MAX, Ops.MUL)
            for order, axes in (((2, 1, 0, 3), (0, 1, 2)), ((2, 1, 0, 3), (2, 0)), ((2, 0, 1, 3), (0,)),
                                ((3, 1, 0, 2), (1,)), ((1, 0, 3, 2), (1, 3)))]


def slices_of_choices() -> list[UOp]:
    mask = UOp.const(True, dtypes.bool, (1, 2, 1)).pad(((0, 0), (3, 1), (0, 0))).expand((4, 6, 5))
    chosen = mask.where(held(4, 6, 5), held(4, 6, 5))
    flat = UOp.const(True, dtypes.bool, (3, 1)).pad(((0, 2), (0, 0))).where(held(5, 1), held(5, 1))
    return [chosen.shrink(((0, 4), (3, 5), (1, 2))), chosen.shrink(((1, 2), (0, 3), (0, 5))),
            chosen.shrink(((1, 2), (5, 6), (0, 5))), flat.shrink(((0, 3), (0, 1))),
            flat.shrink(((4, 5), (0, 1)))]


def slices_of_padding() -> list[UOp]:
    padded = held(2, 3).pad(((1, 2), (0, 4)))
    return [padded.shrink(bounds) for bounds in (((1, 3), (0, 3)), ((2, 3), (1, 2)), ((0, 1), (0, 7)),
                                                 ((1, 3), (3, 7)), ((3, 5), (2, 5)))]


def large_reduces() -> list[UOp]:
    size = 2 * MUCH_WORK
    return [held(size).reduce(Ops.ADD, (0,)), held(2, size // 2).reduce(Ops.MAX, (1,)),
            held(size + 1).reduce(Ops.ADD, (0,))]


def copies_of_files() -> list[UOp]:
    file = held(10, device="DISK:rules")
    return [value.copy_to("CPU") for value in (file.shrink(((2, 8),)).stride((2,)) + 1,
                                               file.reshape((2, 5)).reduce(Ops.ADD, (1,)))]


def copies_of_nothing() -> list[UOp]:
    made = UOp.new(Ops.CONTIGUOUS, dtypes.int32, (UOp.const(2, dtypes.int32, (3,)),))
    return [UOp.new(Ops.COPY, dtypes.int32, (made + made,), "CPU")]


def copies_of_writes() -> list[UOp]:
    flipped = UOp.new(Ops.ASSIGN, dtypes.int32, (held(6).stride((-1,)), held(6) + held(6)))
    return [flipped.copy_to("CPU:1")]


SCHEDULING: dict[str, Callable[[], list[UOp]]] = {
    "movement of a constant": constants_moved,
    "slice of a choice": slices_of_choices,
    "slice of padding": slices_of_padding,
    "constant arithmetic": arithmetic_of_constants,
    "reduce of reduce": reduces_of_reduces,
    "reduce of permute": reduces_of_permutes,
    "large reduce to few results": large_reduces,
    "copy of what a device without kernels holds": copies_of_files,
    "copy of what no device holds": copies_of_nothing,
    "copy of what was written through a view": copies_of_writes,
    "detach": lambda: [held(2, 3).detach()],
    "custom gradient": lambda: [held(2, 3).with_gradient([held(2, 3)], lambda g, n: (g,))],
}


@pytest.mark.parametrize("name", SCHEDULING)
def test_what_the_scheduler_simplifies_keeps_its_value(name: str) -> None:
    rule = rule_of(scheduling_rules, name)
    for node in SCHEDULING[name]():
        result = applied(rule, node)
        assert result is not None, f"{name} does not change {node}"
        assert result.dtype is node.dtype
        assert result.shape == node.shape
        rng = np.random.default_rng(5)
        memory = {n: rng.integers(-4, 5, n.numel, np.int32) for n in node.toposort() if n.op is Ops.BUFFER}
        np.testing.assert_array_equal(tensor_value(node, memory), tensor_value(result, memory))


def test_a_padded_constant_is_no_constant() -> None:
    assert Tensor.ones(2).pad(((1, 1),)).tolist() == [0, 1, 1, 0]


# --- nothing without a proof --------------------------------------------------------------------------------

PROVEN = {
    "constant folding": {*GRAPHS},
    "arithmetic on loop counters": {*COUNTERS},
    "what needs no computing": {*SCHEDULING},
}
FUNCTIONS = "elementary functions as arithmetic"
NARROW = ("bfloat16", "float16", "fp8e4m3", "fp8e5m2")
MEASURED = {
    "logarithms to base e as arithmetic": ("test_transcendental.py", {"log"}),
    FUNCTIONS: ("test_transcendental.py", {"exp2", "log2", "sin"}),
    f"{FUNCTIONS} without float64, {FUNCTIONS}": ("test_sine32.py", {"sin"}),
    "random bits as arithmetic": ("test_random.py", {"threefry"}),
    "dot products of bytes": ("test_byte_dots.py", {"sum"}),
    "narrow floats in float32": ("differential/test_casts.py", {"arithmetic", "reduce", "cast"}),
    "floats as bits": ("test_renderer.py", {
        *(f"{n} to float32" for n in NARROW), *(f"float32 to {n}" for n in NARROW),
        "product with a power of two", "product and sum"}),
}
"""Rules that change rounding or make operations, by the module that measures their results."""


def test_every_rule_of_every_table_is_proven_or_measured() -> None:
    assert all_rules() == {**PROVEN, **{name: rules for name, (_, rules) in MEASURED.items()}}
    for module, _ in MEASURED.values():
        assert any(Path(__file__).parents[1].rglob(module)), module


def test_a_rule_that_is_added_without_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    added = RewriteTable(counter_arithmetic.name, (*counter_arithmetic.rules, Rule(
        "a new rule", rewrite.node(Ops.ADD, name="x"), lambda x: x)))
    monkeypatch.setattr(collapse, "counter_arithmetic", added)
    assert "a new rule" in all_rules()["arithmetic on loop counters"]
    monkeypatch.setattr(collapse, "counter_arithmetic", RewriteTable("a new table", added.rules))
    assert "a new table" in all_rules()
