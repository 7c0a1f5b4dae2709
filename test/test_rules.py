"""Every rewrite rule states a truth: integer rules are proven with z3, rules of tensor arithmetic evaluated.

Each rule of `graph/symbolic.py` has a claim here, the law it states, proven for all integers (divisors are tried
one by one). And what each rule in fact returns for a few hundred expressions is proven equal to what it was given,
within the bounds of the variables. Each rule of `constant_folding` has graphs here, evaluated before and after on
random and special values. A rule without a claim fails the tests, and so does a claim without a rule.
"""
from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
import z3

from tinygrad.dtype import DType, dtypes
from tinygrad.graph import symbolic
from tinygrad.graph.folding import constant_folding
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import Linear
from tinygrad.graph.uop import UOp

# --- laws of integers ---------------------------------------------------------------------------------------

Claims = Iterator[Any]
a, b, c, d, k, q, r, x, y = z3.Ints("a b c d k q r x y")
p, s = z3.Bools("p s")
DIVISORS = (2, 3, 4, 6, 7)


def floor(dividend: Any, divisor: int) -> Any:
    """Division rounded toward minus infinity. z3 rounds so for positive divisors."""
    return dividend / divisor if divisor > 0 else -dividend / -divisor


def remainder(dividend: Any, divisor: int) -> Any:
    return dividend - divisor * floor(dividend, divisor)


def between(low: Any, value: Any, high: Any) -> Any:
    return z3.And(low <= value, value < high)


def within_one_multiple(n: int) -> Claims:
    yield z3.Implies(between(q * n, x, q * n + n), z3.And(floor(x, n) == q, remainder(x, n) == x - q * n))


def whole(n: int) -> Claims:
    for divisor in DIVISORS:
        quotient = floor(x, divisor)
        yield k * n * floor(x, divisor * n) + k * remainder(quotient, n) == k * quotient


def product(n: int) -> Claims:
    yield (n * x) * (3 * y) == (n * 3) * (x * y)
    yield x * y == y * x


def quotient_of_quotient(n: int) -> Claims:
    for m in DIVISORS:
        yield floor(floor(x, m) + c, n) == floor(x + m * c, m * n)


def multiples(n: int) -> Claims:
    yield floor(n * y + r, n) == y + floor(r, n)
    yield remainder(n * y + r, n) == remainder(r, n)


def common_factor(n: int) -> Claims:
    for g in DIVISORS:
        small = between(q * g, r, q * g + g)
        yield z3.Implies(small, floor(g * y + r, g * n) == floor(y + q, n))
        yield z3.Implies(small, remainder(g * y + r, g * n) == g * remainder(y + q, n) + r - q * g)


def quotient_of_remainder(n: int) -> Claims:
    for m in DIVISORS:
        yield floor(remainder(x, m * n), n) == remainder(floor(x, n), m)


def remainder_of_remainder(n: int) -> Claims:
    for m, factor in itertools.product(DIVISORS, range(-6, 7)):
        if factor * m % n == 0:
            yield remainder(factor * remainder(x, m) + y, n) == remainder(factor * x + y, n)


def negative_divisor(n: int) -> Claims:
    z3_quotient = q
    defined = z3.And(x == z3_quotient * -n + r, r <= 0, r > -n)
    yield z3.Implies(defined, z3.And(z3_quotient == floor(-x, n), r == -remainder(-x, n)))


def divided_by_an_expression(n: int) -> Claims:
    yield z3.Implies(between(0, x, n), z3.And(floor(x, n) == 0, remainder(x, n) == x))
    yield z3.And(floor(k * n, n) == k, remainder(k * n, n) == 0)


def less_by_factor(n: int) -> Claims:
    yield (n * y + c < 0) == (y + floor(c, n) < 0)
    yield z3.Implies(between(q * n, r, q * n + n), (n * y + r < 0) == (y + q < 0))


def less_of_quotient(n: int) -> Claims:
    yield (floor(x, n) + c < 0) == (x + c * n < 0)
    yield (-floor(x, n) + c < 0) == (-x + (c + 1) * n - 1 < 0)


def unequal_by_factor(n: int) -> Claims:
    yield (n * y + n * c != 0) == (y + c != 0)
    yield z3.Implies(remainder(c, n) != 0, n * y + c != 0)


LAWS: dict[str, Callable[[int], Claims]] = {
    "quotient and remainder make the whole": whole,
    "constant factors leave a product": product,
    "quotient within one multiple": within_one_multiple,
    "quotient of a quotient": quotient_of_quotient,
    "multiples leave a quotient": multiples,
    "common factor leaves a quotient": common_factor,
    "quotient of a remainder": quotient_of_remainder,
    "remainder within one multiple": within_one_multiple,
    "remainder of a remainder": remainder_of_remainder,
    "multiples leave a remainder": multiples,
    "common factor leaves a remainder": common_factor,
    "quotient by a negative constant": negative_divisor,
    "remainder by a negative constant": negative_divisor,
    "quotient of two expressions": divided_by_an_expression,
    "remainder of two expressions": divided_by_an_expression,
    "less decided by bounds": lambda n: iter([
        z3.Implies(z3.And(x <= y, y < 0), x < 0), z3.Implies(z3.And(x >= y, y >= 0), z3.Not(x < 0))]),
    "less divided by a common factor": less_by_factor,
    "less without a small part": less_by_factor,
    "less of a quotient": less_of_quotient,
    "unequal decided by bounds": lambda n: iter([
        z3.Implies(z3.And(0 <= x, x <= 0), z3.Not(x != 0)),
        z3.Implies(z3.Or(z3.And(x >= y, y > 0), z3.And(x <= y, y < 0)), x != 0)]),
    "unequal divided by a common factor": unequal_by_factor,
    "and with a constant": lambda n: iter([z3.And(p, True) == p, z3.Not(z3.And(p, False))]),
    "and with the negation": lambda n: iter([z3.Not(z3.And(p, z3.Not(p)))]),
    "and keeps the tighter of two comparisons": lambda n: iter([
        z3.And(y + a < 0, y + b < 0) == (y + z3.If(a < b, b, a) < 0)]),
    "and of disjoint comparisons": lambda n: iter([
        z3.Implies(a + b >= -1, z3.Not(z3.And(y + a < 0, -y + b < 0)))]),
    "or with a constant": lambda n: iter([z3.Or(p, True), z3.Or(p, False) == p]),
    "or with the negation": lambda n: iter([z3.Or(p, z3.Not(p))]),
    "or keeps the looser of two comparisons": lambda n: iter([
        z3.Or(y + a < 0, y + b < 0) == (y + z3.If(a < b, a, b) < 0)]),
    "or of comparisons that cover all": lambda n: iter([
        z3.Implies(a + b < 0, z3.Or(y + a < 0, -y + b < 0))]),
    "not of a constant": lambda n: iter([z3.Not(z3.BoolVal(False)), z3.Not(z3.Not(z3.BoolVal(True)))]),
    "not of not": lambda n: iter([z3.Not(z3.Not(p)) == p]),
    "not of less": lambda n: iter([z3.Not(y < 0) == (-y - 1 < 0)]),
    "choice by a constant or between equals": lambda n: iter([
        z3.If(True, x, y) == x, z3.If(False, x, y) == y, z3.If(p, x, x) == x]),
    "choice by a negation": lambda n: iter([z3.If(z3.Not(p), x, y) == z3.If(p, y, x)]),
    "choice between bools": lambda n: iter([
        z3.If(p, s, False) == z3.And(p, s), z3.If(p, True, s) == z3.Or(p, s),
        z3.If(p, False, s) == z3.And(z3.Not(p), s), z3.If(p, s, True) == z3.Or(z3.Not(p), s)]),
    "smaller of two that are ordered": lambda n: iter([
        z3.Implies(x <= y, z3.And(z3.If(x < y, x, y) == x, z3.If(y < x, x, y) == y)),
        z3.Implies(y <= x, z3.And(z3.If(x < y, x, y) == y, z3.If(y < x, x, y) == x))]),
    "greater of two that are ordered": lambda n: iter([z3.Implies(y <= x, z3.If(x < y, y, x) == x)]),
    "unequal bools": lambda n: iter([z3.Not(p != p), (p != z3.BoolVal(False)) == p,
                                     (p != z3.BoolVal(True)) == z3.Not(p)]),
    "cast there and back": lambda n: iter([
        z3.Implies(between(-128, x, 128), z3.BV2Int(z3.Int2BV(x, 8), is_signed=True) == x)]),
}


def prove(claim: Any, *assumptions: Any) -> None:
    """Fails with a counterexample unless the claim holds for all values of its variables."""
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*assumptions, z3.Not(claim))
    result = solver.check()
    assert result == z3.unsat, f"{claim}: {solver.model() if result == z3.sat else result}"


def test_every_rule_has_a_law_and_every_law_a_rule() -> None:
    assert set(LAWS) == set(symbolic.RULES)


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    for n in DIVISORS:
        for claim in LAWS[name](n):
            prove(claim)


# --- what the rules return --------------------------------------------------------------------------------


class Translation:
    """UOps as z3 expressions, and the bounds of the variables in them."""

    def __init__(self) -> None:
        self.bounds: list[Any] = []
        self.done: dict[UOp, Any] = {}

    def of(self, node: UOp) -> Any:
        if node not in self.done:
            self.done[node] = self._new(node)
        return self.done[node]

    def _new(self, node: UOp) -> Any:
        if node.op is Ops.CONST:
            return z3.BoolVal(node.arg) if node.dtype.is_bool else z3.IntVal(node.arg)
        if node.op in (Ops.RANGE, Ops.VARIABLE):
            variable = z3.Int(f"v{len(self.done)}")
            self.bounds.append(between(node.bounds[0], variable, node.bounds[1] + 1))
            return variable
        if node.op is Ops.LOAD:
            return z3.Bool(f"v{len(self.done)}")
        if node.op is Ops.CAST:
            return self.of(node.src[0])  # what is cast in these tests fits
        return MEANINGS[node.op](*(self.of(s) for s in node.src))

    def sum(self, terms: Linear) -> Any:
        return sum((n * self.of(atom) for atom, n in terms.terms.items()), start=z3.IntVal(terms.constant))


def z3_quotient(dividend: Any, divisor: Any) -> Any:
    return z3.If(divisor > 0, dividend / divisor, -dividend / -divisor)


MEANINGS: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda x, y: x + y, Ops.MUL: lambda x, y: x * y, Ops.IDIV: z3_quotient,
    Ops.MOD: lambda x, y: x - y * z3_quotient(x, y), Ops.MAX: lambda x, y: z3.If(x < y, y, x),
    Ops.CMPLT: lambda x, y: x < y, Ops.CMPNE: lambda x, y: x != y, Ops.XOR: lambda x, y: x != y,
    Ops.AND: z3.And, Ops.OR: z3.Or, Ops.WHERE: z3.If,
}

Before = Callable[..., Any]
TABLES: list[tuple[list[Any], Before]] = [
    (symbolic.SUMS, lambda t, terms: t.sum(terms)),
    (symbolic.QUOTIENTS, lambda t, terms, n: floor(t.sum(terms), n)),
    (symbolic.REMAINDERS, lambda t, terms, n: remainder(t.sum(terms), n)),
    (symbolic.LESS, lambda t, terms: t.sum(terms) < 0),
    (symbolic.UNEQUAL, lambda t, terms: t.sum(terms) != 0),
    (symbolic.CONJUNCTIONS, lambda t, parts: z3.And(*(t.of(part) for part in parts))),
    (symbolic.DISJUNCTIONS, lambda t, parts: z3.Or(*(t.of(part) for part in parts))),
    (symbolic.NEGATIONS, lambda t, node: z3.Not(t.of(node))),
    (symbolic.CHOICES, lambda t, *nodes: z3.If(*(t.of(n) for n in nodes))),
    (symbolic.MAXIMA, lambda t, *nodes: MEANINGS[Ops.MAX](*(t.of(n) for n in nodes))),
]
OTHERS: dict[str, Before] = {
    "constant factors leave a product": lambda t, x, y: t.of(x) * t.of(y),
    "quotient by a negative constant": lambda t, terms, n: floor(t.sum(terms), n),
    "remainder by a negative constant": lambda t, terms, n: remainder(t.sum(terms), n),
    "quotient of two expressions": lambda t, x, y: z3_quotient(t.of(x), t.of(y)),
    "remainder of two expressions": lambda t, x, y: MEANINGS[Ops.MOD](t.of(x), t.of(y)),
    "unequal bools": lambda t, x, y: t.of(x) != t.of(y),
    "cast there and back": lambda t, x: t.of(x),
}


def result_of(name: str, t: Translation, result: Any) -> Any:
    """What a rule returned, as z3."""
    if isinstance(result, Linear):
        return t.sum(result)
    if isinstance(result, list):
        return (z3.And if symbolic.RULES[name] in symbolic.CONJUNCTIONS else z3.Or)(*(t.of(n) for n in result))
    return t.of(result)


def build_many_expressions() -> None:
    """Build expressions that between them need every rule, and random ones."""
    i, j = UOp.range(5, 0), UOp.range(4, 1)
    n, u = UOp.variable("n", -6, 40), UOp.variable("u", 3, 9)
    load = UOp.new(Ops.PARAM, dtypes.bool, (), (0, 8)).index(i).load()
    assert (i * 4 + j) // 4 * 4 + (i * 4 + j) % 4 is i * 4 + j
    less = [(n < 3), (n < 5), (n > 2), (n > 7), ((n + i) < 4)]
    for first, second in itertools.product(less, repeat=2):
        assert all(node.dtype is dtypes.bool for node in (first & second, first | second))
    made = [
        n // 4 * 4 + n % 4, (n // 3) // 4 * 8 + (n // 3) % 4 * 2, (n * 2) * (i * 3 + 3), n // -4, n % -4,
        i // u, j % (u + 1), (u * 3) // u, (u * 2) % u, (n % 12) // 4, (n % 12 + i) % 4, n // 3 // 4,
        (n * 6 + i * 3) // 9, (n * 4 + j) // 8, (n * 4 + j) % 8, n * 4 < 9, n * 4 + j < 9, n // 4 < 3, n // 4 > 3,
        (n * 2).ne(3), (n * 2).ne(4), n.ne(99), (n < 3).ne(n < 3), load.ne(False), load.logical_not().logical_not(),
        load & load.logical_not(), load | load.logical_not(), load & True, load | False,
        load.logical_not().where(n, i), load.where(n, n), load.where(n < 3, UOp.const(False, dtypes.bool)),
        load.where(UOp.const(True, dtypes.bool), n < 3), load.where(UOp.const(False, dtypes.bool), n < 3),
        load.where(n < 3, UOp.const(True, dtypes.bool)), j.minimum(i + 3), (n < 41).where(i, j),
        i.maximum(j + 4), i.cast(dtypes.int32).cast(dtypes.index).substitute({i: j}), (n >= 3).logical_not(),
        UOp.const(True, dtypes.bool).logical_not(), (j < i + 3).where(i + 3, j),
    ]
    assert all(node is not None for node in made)
    source = random.Random(7)
    pool = [i, j, n, u]
    for _ in range(500):
        first, second, number = source.choice(pool), source.choice(pool), source.randint(1, 12)
        pool.append(source.choice([
            first + second * number, first * number - second, first // number, first % number, first + number,
            (first < second).where(first, second), first.maximum(second)]))
        condition = (first < number) & (second >= number) | (first.ne(second))
        assert condition.dtype is dtypes.bool


@pytest.fixture(scope="module")
def firings() -> dict[str, list[tuple[Before, Any, Any]]]:
    """For each rule, some of (meaning of the arguments, arguments, result) of its firings."""
    found: dict[str, list[tuple[Before, Any, Any]]] = {name: [] for name in symbolic.RULES}
    names = {function: name for name, function in symbolic.RULES.items()}
    before = {f: meaning for table, meaning in TABLES for f in table}
    before.update((symbolic.RULES[name], meaning) for name, meaning in OTHERS.items())

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            kept = tuple(list(x) if isinstance(x, list) else x for x in arguments)
            result = function(*arguments)
            if result is not None and len(found[names[function]]) < 12:
                found[names[function]].append((before[function], kept, result))
            return result
        return record

    with pytest.MonkeyPatch.context() as patch:
        for table, _ in TABLES:
            originals = list(table)
            patch.setattr(symbolic, "_unused", None, raising=False)
            table[:] = [recording(f) for f in originals]
            patch.callbacks = [*getattr(patch, "callbacks", []), (table, originals)]  # type: ignore[attr-defined]
        for name in OTHERS:
            function = symbolic.RULES[name]
            patch.setattr(symbolic, function.__name__, recording(function))
        try:
            build_many_expressions()
        finally:
            for table, originals in patch.callbacks:  # type: ignore[attr-defined]
                table[:] = originals
    return found


@pytest.mark.parametrize("name", symbolic.RULES)
def test_what_the_rule_returns_is_equal(name: str, firings: dict[str, list[tuple[Before, Any, Any]]]) -> None:
    assert firings[name], "no expression of this test needs the rule"
    for before, arguments, result in firings[name]:
        t = Translation()
        claim = before(t, *arguments) == result_of(name, t, result)
        prove(claim, *t.bounds)
