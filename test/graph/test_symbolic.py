"""Simplified index expressions have the value of the plain ones, within their bounds, in canonical form."""
from __future__ import annotations

import itertools
import operator
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad.dtype import dtypes
from tinygrad.graph import symbolic
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import FALSE, TRUE, all_of, conjuncts, linear_terms, negated, simplify_given
from tinygrad.graph.uop import UOp

ARITHMETIC: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.IDIV: operator.floordiv,
    Ops.MOD: operator.mod, Ops.MAX: max, Ops.CMPLT: operator.lt, Ops.CMPNE: operator.ne,
    Ops.AND: lambda a, b: a and b, Ops.OR: lambda a, b: a or b, Ops.XOR: operator.ne,
    Ops.WHERE: lambda c, a, b: a if c else b,
}


def evaluate(node: UOp, values: dict[UOp, int]) -> Any:
    """The value of an expression in Python's integers."""
    done: dict[UOp, Any] = dict(values)
    for n in node.toposort(stop=lambda n: n in values):
        if n not in done:
            done[n] = n.arg if n.op is Ops.CONST else ARITHMETIC[n.op](*(done[s] for s in n.src))
    return done[node]


@dataclass(frozen=True)
class Sample:
    """An expression built with simplification, and its value computed as it is written."""

    node: UOp
    value: Callable[[dict[UOp, int]], Any]


def sample(op: Ops, *parts: Sample) -> Sample:
    """`op` of samples."""
    node = parts[0].node.alu(op, *(p.node for p in parts[1:]))
    return Sample(node, lambda values: ARITHMETIC[op](*(p.value(values) for p in parts)))


def leaf(node: UOp) -> Sample:
    return Sample(node, lambda values: values.get(node, node.arg))


ATOMS = [UOp.range(2, 0), UOp.range(6, 1), UOp.range(8, 2), UOp.variable("n", -3, 4), UOp.variable("m", 5, 9)]
CONSTANTS = [-12, -8, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24]


def number(value: int) -> Sample:
    return leaf(symbolic.constant(value))


def grow(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    """Bigger integers from smaller ones."""
    known = st.sampled_from(CONSTANTS).map(number)
    divisor = st.sampled_from([c for c in CONSTANTS if c != 0]).map(number)
    positive = st.sampled_from([c for c in CONSTANTS if c > 1]).map(number)
    both = st.sampled_from([Ops.IDIV, Ops.MOD])
    return st.one_of(
        st.builds(sample, st.sampled_from([Ops.ADD, Ops.ADD, Ops.SUB, Ops.MAX, Ops.MUL]), inner, inner),
        st.builds(sample, st.just(Ops.MUL), inner, known),
        st.builds(sample, both, inner, positive),
        st.builds(sample, both, inner, positive),
        st.builds(sample, both, inner, divisor),
        st.builds(sample, both, inner, st.just(leaf(ATOMS[4]))),
        st.builds(lambda a, b, c, d: sample(Ops.WHERE, sample(Ops.CMPLT, a, b), c, d), *[inner] * 4),
        st.builds(lambda a, b: sample(Ops.WHERE, sample(Ops.CMPLT, a, b), a, b), inner, inner),
        st.builds(lambda a, b: sample(Ops.WHERE, sample(Ops.CMPLT, b, a), a, b), inner, inner),
    )


integers = st.recursive(st.one_of(st.sampled_from(ATOMS).map(leaf), st.sampled_from(CONSTANTS).map(number)),
                        grow, max_leaves=10)
comparisons = st.builds(sample, st.sampled_from([Ops.CMPLT, Ops.CMPLT, Ops.CMPNE]), integers, integers)
negations = comparisons.map(lambda c: sample(Ops.CMPNE, c, leaf(TRUE)))
conditions = st.recursive(
    st.one_of(comparisons, negations),
    lambda inner: st.builds(sample, st.sampled_from([Ops.AND, Ops.OR, Ops.XOR]), inner, inner), max_leaves=5)


def assignments(count: int = 60) -> list[dict[UOp, int]]:
    """Values of the atoms, spread over all there are."""
    every = list(itertools.product(*(range(a.bounds[0], a.bounds[1] + 1) for a in ATOMS)))
    return [dict(zip(ATOMS, values, strict=True)) for values in every[::max(1, len(every) // count - 1)]]


ASSIGNMENTS = assignments()


@settings(max_examples=600, deadline=None)
@given(st.one_of(integers, conditions))
def test_simplified_has_the_plain_value_within_its_bounds(expression: Sample) -> None:
    low, high = expression.node.bounds
    for values in ASSIGNMENTS:
        plain = expression.value(values)
        assert evaluate(expression.node, values) == plain
        assert low <= plain <= high


@settings(max_examples=200, deadline=None)
@given(st.one_of(integers, conditions))
def test_other_atoms_put_in_and_taken_out_keep_the_value(expression: Sample) -> None:
    node = expression.node
    placeholders = {a: UOp.variable(f"again {n}", *a.bounds) for n, a in enumerate(ATOMS)}
    there = node.substitute(placeholders)
    back = there.substitute({v: k for k, v in placeholders.items()})
    for values in ASSIGNMENTS[::7]:
        assert evaluate(back, values) == expression.value(values)


@settings(max_examples=300, deadline=None)
@given(st.one_of(integers, conditions), conditions)
def test_given_a_condition_the_value_is_kept_where_it_holds(expression: Sample, condition: Sample) -> None:
    result = simplify_given(expression.node, condition.node)
    low, high = result.bounds
    for values in ASSIGNMENTS:
        if condition.value(values):
            assert evaluate(result, values) == expression.value(values)
            assert low <= expression.value(values) <= high


@settings(max_examples=200, deadline=None)
@given(st.lists(conditions, min_size=1, max_size=4), st.randoms())
def test_a_conjunction_is_the_same_node_in_any_order(parts: list[Sample], random: Any) -> None:
    nodes = [p.node for p in parts]
    whole = all_of(nodes)
    random.shuffle(nodes)
    assert all_of(nodes) is whole
    assert all_of(conjuncts(whole)) is whole


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ATOMS), st.integers(-9, 9)), min_size=1, max_size=6), st.randoms())
def test_equal_sums_are_the_same_node(terms: list[tuple[UOp, int]], random: Any) -> None:
    first = symbolic.constant(0)
    for atom, coefficient in terms:
        first = first + atom * coefficient
    random.shuffle(terms)
    second = symbolic.constant(0)
    for atom, coefficient in terms:
        second = atom * coefficient + second
    assert first is second
    assert first - second is symbolic.constant(0)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(ATOMS), st.integers(-9, 9)), st.integers(-9, 9),
       st.dictionaries(st.sampled_from(ATOMS), st.one_of(st.integers(0, 9), st.sampled_from(ATOMS))))
def test_a_sum_taken_apart_over_other_values_is_the_sum_of_these(
        terms: dict[UOp, int], number: int, put: dict[UOp, int | UOp]) -> None:
    values = {a: symbolic.constant(v) if isinstance(v, int) else v for a, v in put.items()}
    node, expected = symbolic.constant(number), symbolic.constant(number)
    for atom, coefficient in terms.items():
        node += atom * coefficient
        expected += values.get(atom, atom) * coefficient
    base, moving = symbolic.split_sum(node, values.__contains__)
    assert set(moving) == {a for a, c in terms.items() if c and a in values}
    assert not set(linear_terms(base).terms) & set(values)
    assert symbolic.plus_terms(base, moving, values) is expected


@pytest.mark.parametrize("node", [ATOMS[1], ATOMS[1] * 4, ATOMS[1] * 4 + ATOMS[2]])
def test_numbers_added_one_after_the_other_are_added_at_once(node: UOp) -> None:
    assert (node + 3) + 4 is node + 7
    assert (node + 3) - 3 is node
    assert linear_terms(node + 3) == linear_terms(node).shifted(3)


H, J, K = UOp.range(7, 10), UOp.range(4, 11), UOp.range(3, 12)
X = UOp.variable("x", 0, 1000)


class TestDivision:
    def test_flat_address_gives_its_coordinates_back(self) -> None:
        flat = H * 12 + J * 3 + K
        assert flat // 12 is H
        assert flat // 3 % 4 is J
        assert flat % 3 is K
        assert flat % 12 is J * 3 + K

    def test_coordinates_give_the_flat_address_back(self) -> None:
        assert X // 12 * 12 + X // 4 % 3 * 4 + X % 4 is X
        assert X // 12 * 24 + X // 4 % 3 * 8 + X % 4 * 2 is X * 2
        y = X + 5
        assert y // 4 * 4 + y % 4 is y

    def test_divisions_collapse(self) -> None:
        assert X // 4 // 3 is X // 12
        assert X % 12 % 4 is X % 4
        assert X % 12 // 4 is X // 4 % 3
        assert (X * 4 + J) // 8 is X // 2
        assert (X * 4 + J) % 8 is X % 2 * 4 + J
        assert (J + X % 8) % 4 is (X + J) % 4

    def test_multiples_leave_a_division(self) -> None:
        assert (H * 8 + X) // 4 is H * 2 + X // 4
        assert (H * 8 + X) % 4 is X % 4
        assert (X + 9) // 4 is (X + 1) // 4 + 2
        assert (J - 4) // 4 is symbolic.constant(-1)
        assert (3 - J) % 4 is 3 - J

    def test_by_a_symbolic_size(self) -> None:
        size = UOp.variable("size", 4, 64)
        assert (size * 3) // size is symbolic.constant(3)
        assert (size * 3) % size is symbolic.constant(0)
        assert K // size is symbolic.constant(0)
        assert K % size is K

    def test_division_by_zero_is_left_alone(self) -> None:
        assert (X // 0).op is Ops.IDIV
        assert (X % 0).op is Ops.MOD

    def test_loops_of_one_iteration_count_as_zero(self) -> None:
        assert UOp.range(1, 99) * 5 + H is H


class TestComparison:
    def test_decided_by_bounds(self) -> None:
        assert (H < 7) is TRUE
        assert (H < 0) is FALSE
        assert (J * 3 + K).ne(12) is TRUE
        assert H.maximum(X + 6) is X + 6
        assert K.minimum(J + 2) is K

    def test_normal_form(self) -> None:
        assert (H * 4 + J < 8) is (H < 2)
        assert (H * 6 < 13) is (H < 3)
        assert (X // 4 < 3) is (X < 12)
        assert (X // 4 >= 3) is (X > 11)
        assert (H + 3 < J + 5) is (H - J < 2)
        assert (H * 2).ne(3) is TRUE
        assert (H >= 3) is negated(H < 3)

    def test_conjunctions(self) -> None:
        assert ((H < 3) & (H < 5)) is (H < 3)
        assert ((H < 3) & (H >= 3)) is FALSE
        assert ((H < 3) | (H >= 3)) is TRUE
        assert ((H < 3) | (H < 5)) is (H < 5)
        assert ((H < 3) & (J < 2)) is ((J < 2) & (H < 3))

    def test_other_conditions_pass_through(self) -> None:
        a, b = (UOp.new(Ops.PARAM, dtypes.float32, (), (slot, 4)) for slot in range(2))
        loads = [p.index(H).load() for p in (a, b)]
        less = loads[0] < loads[1]
        assert less.op is Ops.CMPLT
        assert (less & (H < 3) & less) is (less & (H < 3))
        assert less.logical_not().logical_not() is less


class TestGiven:
    def test_bounds_of_one_counter(self) -> None:
        assert simplify_given((H * 4 + J - 1) // 4, J > 0) is H
        assert simplify_given((H * 4 + J + 1) // 4, J < 3) is H
        assert simplify_given(X % 8, X < 8) is X
        assert simplify_given(X // 8, (X > 15) & (X < 24)) is symbolic.constant(2)

    def test_bounds_of_a_sum(self) -> None:
        window = H * 2 + J * 3 - 1
        inside = (window >= 0) & (window < 8)
        assert simplify_given((X * 8 + window) // 8, inside) is X
        assert simplify_given((X * 8 + window) % 8, inside) is window

    def test_the_condition_itself_is_true(self) -> None:
        assert simplify_given(H < 3, (H < 2) & (J > 1)) is TRUE
        assert simplify_given((H < 3).where(H, J), H < 3) is H
        load = UOp.new(Ops.PARAM, dtypes.bool, (), (0, 8)).index(H).load()
        assert simplify_given(load.where(H, J), load) is H
        assert simplify_given(load.where(H, J), load.logical_not()) is J

    def test_equality(self) -> None:
        assert simplify_given(H * 4 + J, H.eq(2)) is J + 8


class TestBounds:
    def test_symbolic_extent(self) -> None:
        size = UOp.variable("size", 1, 10)
        assert UOp.range(size, 50).bounds == (0, 9)

    def test_unknown_values(self) -> None:
        loaded = UOp.new(Ops.PARAM, dtypes.uint8, (), (0, 8)).index(H).load()
        assert loaded.cast(dtypes.index).bounds == (0, 255)
        assert (loaded.cast(dtypes.index) // 16).bounds == (0, 15)

    @pytest.mark.parametrize(("node", "bounds"), [
        (H - J, (-3, 6)), (H * -2 + 1, (-11, 1)), (X // 7, (0, 142)), (X % 7, (0, 6)), (H * J, (0, 18)),
        (H.maximum(J), (0, 6)), (H.minimum(J), (0, 3)), ((X % 3) - (X // 500), (-2, 2)), (H < J, (0, 1)),
    ], ids=str)
    def test_of(self, node: UOp, bounds: tuple[int, int]) -> None:
        assert node.bounds == bounds


def test_terms_of_a_sum() -> None:
    assert linear_terms(H * 4 - J + 3 + H) == ({H: 5, J: -1}, 3)


def test_the_order_of_terms_does_not_depend_on_the_process() -> None:
    """Hashes of strings and addresses of objects differ between processes; the form of a node must not."""
    program = """
import sys
from tinygrad.graph.symbolic import sort_key
from tinygrad.graph.uop import UOp
atoms = [UOp.variable(c, 0, 50) for c in "abcdef"] + [UOp.range(9, 3), UOp.range(9, 1)]
atoms += [a // 4 for a in atoms] + [a % 5 for a in atoms]
waste = [object() for _ in range(int(sys.argv[1]))]
print([sort_key(a) for a in atoms])
"""
    outputs = {subprocess.run([sys.executable, "-c", program, str(waste)], check=True, capture_output=True,
                              env={"PYTHONHASHSEED": str(waste), "PYTHONPATH": ":".join(sys.path)}).stdout
               for waste in (1, 1000)}
    assert len(outputs) == 1


def test_given_nothing_useful() -> None:
    assert simplify_given(X % 8, TRUE) is X % 8
    assert simplify_given(X % 8, (X < 3) & (X > 5)) is X % 8
