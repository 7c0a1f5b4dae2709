"""Every rewrite rule states a truth: integer rules are proven with z3, rules of tensor arithmetic evaluated.

Each rule of `graph/symbolic/` has a claim here, the law it states, proven for all integers (divisors are
tried one by one). And what each rule in fact returns for a few hundred expressions is proven equal to what it
was given, within the bounds of the variables. Each rule of `constant_folding` has graphs here, evaluated
before and after on random and special values. A rule without a claim fails, and so does a claim without one.
"""
from __future__ import annotations

import itertools
import math
import random
import sys
from collections import Counter
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
from tinygrad.graph.symbolic import Linear, rules
from tinygrad.graph.symbolic.simplify import INDEX_BUILDERS
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
    "division within one multiple": within_one_multiple,
    "quotient of a quotient": quotient_of_quotient,
    "multiples leave a division": multiples,
    "common factor leaves a division": common_factor,
    "quotient of a remainder": quotient_of_remainder,
    "remainder of a remainder": remainder_of_remainder,
    "division by a negative constant": negative_divisor,
    "division of two expressions": divided_by_an_expression,
    "less decided by bounds": lambda n: iter([
        z3.Implies(z3.And(x <= y, y < 0), x < 0), z3.Implies(z3.And(x >= y, y >= 0), z3.Not(x < 0))]),
    "less divided by a common factor": less_by_factor,
    "less without a small part": less_by_factor,
    "less of a quotient": less_of_quotient,
    "unequal decided by bounds": lambda n: iter([
        z3.Implies(x == 0, z3.Not(x != 0)),
        z3.Implies(z3.Or(z3.And(x >= y, y > 0), z3.And(x <= y, y < 0)), x != 0)]),
    "unequal divided by a common factor": unequal_by_factor,
    "joined with a constant": lambda n: iter([
        z3.And(p, True) == p, z3.Not(z3.And(p, False)), z3.Or(p, True), z3.Or(p, False) == p]),
    "joined with the negation": lambda n: iter([z3.Not(z3.And(p, z3.Not(p))), z3.Or(p, z3.Not(p))]),
    "comparisons of one sum joined": lambda n: iter([
        z3.And(y + a < 0, y + b < 0) == (y + z3.If(a < b, b, a) < 0),
        z3.Or(y + a < 0, y + b < 0) == (y + z3.If(a < b, a, b) < 0)]),
    "opposite comparisons joined": lambda n: iter([
        z3.Implies(a + b >= -1, z3.Not(z3.And(y + a < 0, -y + b < 0))),
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
    assert set(LAWS) == set(rules.RULES)


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    for n in DIVISORS:
        for claim in LAWS[name](n):
            prove(claim)


# --- what the rules return ----------------------------------------------------------------------------------


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
    (rules.SUMS, lambda t, terms: t.sum(terms)),
    (rules.QUOTIENTS, lambda t, op, terms, n: MEANINGS[op](t.sum(terms), z3.IntVal(n))),
    (rules.REMAINDERS, lambda t, op, terms, n: MEANINGS[op](t.sum(terms), z3.IntVal(n))),
    (rules.LESS, lambda t, terms: t.sum(terms) < 0),
    (rules.UNEQUAL, lambda t, terms: t.sum(terms) != 0),
    (rules.JUNCTIONS, lambda t, op, parts: MEANINGS[op](*(t.of(part) for part in parts))),
    (rules.NEGATIONS, lambda t, node: z3.Not(t.of(node))),
    (rules.CHOICES, lambda t, *nodes: z3.If(*(t.of(n) for n in nodes))),
    (rules.MAXIMA, lambda t, *nodes: MEANINGS[Ops.MAX](*(t.of(n) for n in nodes))),
]
OTHERS: dict[str, Before] = {
    "constant factors leave a product": lambda t, x, y: t.of(x) * t.of(y),
    "division by a negative constant": lambda t, op, terms, n: MEANINGS[op](t.sum(terms), z3.IntVal(n)),
    "division of two expressions": lambda t, op, x, y: MEANINGS[op](t.of(x), t.of(y)),
    "unequal bools": lambda t, x, y: t.of(x) != t.of(y),
    "cast there and back": lambda t, x: t.of(x),
}


def result_of(arguments: tuple[Any, ...], t: Translation, result: Any) -> Any:
    """What a rule made of its arguments, as z3."""
    if isinstance(result, Linear):
        return t.sum(result)
    if isinstance(result, list):
        return MEANINGS[arguments[0]](*(t.of(n) for n in result))
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
        (n * 6 + i * 3) // 9, (n * 4 + j) // 8, (n * 4 + j) % 8, n * 4 < 9, n * 4 + j < 9, n // 4 < 3,
        n // 4 > 3, (n * 2).ne(3), (n * 2).ne(4), n.ne(99), (n < 3).ne(n < 3), load.ne(False),
        load.logical_not().logical_not(),
        load & load.logical_not(), load | load.logical_not(), load & True, load | False,
        load.logical_not().where(n, i), load.where(n, n), load.where(n < 3, symbolic.FALSE),
        load.where(symbolic.TRUE, n < 3), load.where(symbolic.FALSE, n < 3), load.where(n < 3, symbolic.TRUE),
        j.minimum(i + 3), (n < 41).where(i, j), (n >= 3).logical_not(), (j < i + 3).where(i + 3, j),
        i.maximum(j + 4), i.cast(dtypes.int32).cast(dtypes.index).substitute({i: j}),
        symbolic.negated(symbolic.TRUE), symbolic.negated(symbolic.FALSE),
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
    """For each rule, some of (meaning of the arguments, arguments, result) of its firings, for each operation
    that it is about."""
    fired: Counter[tuple[str, Ops | None]] = Counter()
    found: dict[str, list[tuple[Before, Any, Any]]] = {name: [] for name in rules.RULES}
    names = {function: name for name, function in rules.RULES.items()}
    before = {f: meaning for table, meaning in TABLES for f in table}
    before.update((rules.RULES[name], meaning) for name, meaning in OTHERS.items())

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            kept = tuple(list(x) if isinstance(x, list) else x for x in arguments)
            result = function(*arguments)
            kind = names[function], arguments[0] if isinstance(arguments[0], Ops) else None
            if result is not None and fired[kind] < 24:
                fired[kind] += 1
                found[names[function]].append((before[function], kept, result))
            return result
        return record

    originals = [(table, list(table)) for table, _ in TABLES]
    with pytest.MonkeyPatch.context() as patch:
        for table, functions in originals:
            table[:] = [recording(f) for f in functions]
        for name in OTHERS:
            function = rules.RULES[name]
            patch.setattr(sys.modules[function.__module__], function.__name__, recording(function))
            for op, builder in INDEX_BUILDERS.items():
                if builder is function:
                    patch.setitem(INDEX_BUILDERS, op, recording(function))
        try:
            build_many_expressions()
        finally:
            for table, functions in originals:
                table[:] = functions
    return found


@pytest.mark.parametrize("name", rules.RULES)
def test_what_the_rule_returns_is_equal(name: str, firings: dict[str, list[tuple[Before, Any, Any]]]) -> None:
    assert firings[name], "no expression of this test needs the rule"
    for before, arguments, result in firings[name]:
        t = Translation()
        claim = before(t, *arguments) == result_of(arguments, t, result)
        prove(claim, *t.bounds)


# --- arithmetic of tensors ----------------------------------------------------------------------------------

INTEGERS = (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64)
FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
EVERY = (dtypes.bool, *INTEGERS, *FLOATS)

NUMPY: dict[Ops, Callable[..., Any]] = {
    Ops.NEG: np.negative, Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply,
    Ops.IDIV: np.floor_divide, Ops.MOD: np.remainder, Ops.FDIV: np.divide, Ops.MAX: np.maximum,
    Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or,
    Ops.XOR: np.bitwise_xor, Ops.SHL: np.left_shift, Ops.SHR: np.right_shift, Ops.WHERE: np.where,
    Ops.SQRT: np.sqrt, Ops.TRUNC: np.trunc,
}


def special_values(dtype: DType) -> np.ndarray[Any, Any]:
    """All values of one-byte types; else the ends, zeros, denormals, infinities, NaN, and random bits."""
    if dtype.itemsize == 1:
        bits = np.arange(2 if dtype.is_bool else 256, dtype=np.uint8)
        return bits.view(dtype.numpy)
    rng = np.random.default_rng(11)
    bits = rng.integers(0, 256, 600 * dtype.itemsize, np.uint8).view(dtype.numpy)
    if not dtype.is_float:
        near = [n + step for n in (0, dtype.min, dtype.max, 255, 65536) for step in (-1, 0, 1)]
        return np.concatenate([bits, np.array([dtype.as_const(n) for n in near], dtype.numpy)])
    with np.errstate(all="ignore"):
        named = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 6e-8, 5e-324, 65504.0]
        return np.concatenate([bits, np.array(named).astype(dtype.numpy)])


def evaluate(node: UOp, values: dict[UOp, Any]) -> Any:
    """The value of an elementwise graph, as NumPy computes it."""
    if node in values:
        return values[node]
    if node.op is Ops.CONST:
        return np.array(node.arg).astype(node.dtype.numpy)
    sources = [evaluate(n, values) for n in node.src]
    with np.errstate(all="ignore"):
        if node.op is Ops.CAST:
            return sources[0].astype(node.dtype.numpy)
        return np.asarray(NUMPY[node.op](*sources))


def unknown(dtype: DType, slot: int = 0) -> UOp:
    """A value that nothing is known about."""
    return UOp.new(Ops.PARAM, dtype, (), (slot, 8)).index(UOp.range(8, 0)).load()


def assert_same_bits(first: Any, second: Any) -> None:
    """Equal to the last bit, signs of zeros too; any NaN is like another."""
    assert first.dtype == second.dtype
    first, second = np.broadcast_arrays(first, second)
    with np.errstate(invalid="ignore"):  # signalling NaNs of float16 and bfloat16
        numbers = ~np.isnan(first)
        assert (numbers == ~np.isnan(second)).all()
    assert (first[numbers] == second[numbers]).all()
    if first.dtype.kind not in "biu":
        assert (np.signbit(first[numbers]) == np.signbit(second[numbers])).all()


def typed(types: tuple[DType, ...], build: Callable[[UOp], UOp]) -> Callable[[], list[UOp]]:
    return lambda: [build(unknown(t)) for t in types]


def new(op: Ops, *src: UOp) -> UOp:
    return UOp.new(op, dtypes.bool if op in (Ops.CMPLT, Ops.CMPNE) else src[-1].dtype, src)


def with_constant(op: Ops, types: tuple[DType, ...], value: float) -> Callable[[], list[UOp]]:
    return lambda: [new(op, unknown(t), UOp.const(value, t)) for t in types]


def all_casts() -> list[UOp]:
    """x as every type by way of every other, where the table says that the way there loses nothing."""
    chains = [unknown(inner).cast(middle).cast(outer)
              for inner, middle, outer in itertools.product(EVERY, repeat=3)
              if inner is not middle and middle is not outer]
    rule = next(r for r in constant_folding.rules if r.name == "cast through a wider type")
    return [n for n in chains if any(rule.replace(**found) for found in rule.pattern.match(n, {}))]


def constant_nodes() -> list[UOp]:
    numbers = {dtypes.int8: (-128, -7, -1, 0, 3, 127), dtypes.uint8: (0, 1, 7, 255), dtypes.bool: (0, 1),
               dtypes.float16: (0.1, -0.0, math.inf, math.nan, 65504.0, 1e-7),
               dtypes.float32: (0.1, 3.0, -0.0, 1e38, 1e-45, math.inf, math.nan, -7.3),
               dtypes.bfloat16: (0.1, 3.0, -0.0), dtypes.float64: (0.1, 1e308, -0.0, math.nan)}
    nodes = []
    for dtype, values in numbers.items():
        constants = [UOp.const(v, dtype) for v in values]
        binary = [Ops.ADD, Ops.SUB, Ops.MUL, Ops.CMPLT, Ops.CMPNE] if not dtype.is_bool else []
        binary += [Ops.FDIV] if dtype.is_float else [Ops.AND, Ops.OR, Ops.XOR]
        binary += [Ops.IDIV, Ops.MOD] if dtype.is_int else []
        nodes += [new(op, m, n) for op in binary for m in constants for n in constants
                  if not (op in (Ops.IDIV, Ops.MOD) and n.arg == 0)]
        unary = [Ops.SQRT, Ops.TRUNC] if dtype.is_float else []
        nodes += [new(op, m) for op in unary for m in constants]
        nodes += [new(Ops.NEG, m) for m in constants if not dtype.is_bool]
        nodes += [m.cast(t) for m in constants for t in EVERY if t is not dtype
                  and (not dtype.is_float or not t.is_int or 0 <= m.arg < 100)]
    return nodes


NOT = UOp.const(True, dtypes.bool)


def compared_choices() -> list[UOp]:
    """Numbers that a bool chooses, or is, compared with another, on either side."""
    condition, nodes = unknown(dtypes.bool), []
    for dtype in (dtypes.float32, dtypes.float16, dtypes.int32, dtypes.uint8):
        one, zero, five = (UOp.const(number, dtype) for number in (1, 0, 5))
        for choice in (new(Ops.WHERE, condition, one, zero), new(Ops.WHERE, condition, zero, five),
                       UOp.new(Ops.CAST, dtype, (condition,))):
            nodes += [new(op, *sides) for op in (Ops.CMPLT, Ops.CMPNE) for number in (one, zero, five)
                      for sides in ((choice, number), (number, choice))]
    return nodes


GRAPHS: dict[str, Callable[[], list[UOp]]] = {
    "constants": constant_nodes,
    "choice by a constant": lambda: [new(Ops.WHERE, UOp.const(v, dtypes.bool), unknown(t), unknown(t, 1))
                                     for t in EVERY for v in (True, False)],
    "choice by what is not so": typed(EVERY, lambda x: new(
        Ops.WHERE, new(Ops.CMPNE, unknown(dtypes.bool, 1), NOT), x, unknown(x.dtype, 2))),
    "choice compared": compared_choices,
    "choice between equals": typed(EVERY, lambda x: new(Ops.WHERE, unknown(dtypes.bool, 1), x, x)),
    "chosen before": typed(EVERY, lambda x: new(Ops.WHERE, c := unknown(dtypes.bool, 1), new(
        Ops.WHERE, c, x, unknown(x.dtype, 2)), unknown(x.dtype, 3))),
    "not chosen before": typed(EVERY, lambda x: new(Ops.WHERE, c := unknown(dtypes.bool, 1), x, new(
        Ops.WHERE, c, unknown(x.dtype, 2), unknown(x.dtype, 3)))),
    "neutral operand": lambda: [n for op, types, value in (
        (Ops.ADD, INTEGERS, 0), (Ops.ADD, FLOATS, -0.0), (Ops.SUB, INTEGERS, 0), (Ops.SUB, FLOATS, 0.0),
        (Ops.MUL, EVERY, 1), (Ops.IDIV, INTEGERS, 1), (Ops.AND, (dtypes.bool,), True),
        (Ops.AND, INTEGERS, -1),
        (Ops.OR, (dtypes.bool, *INTEGERS), 0), (Ops.XOR, (dtypes.bool, *INTEGERS), 0),
        (Ops.SHL, INTEGERS, 0), (Ops.SHR, INTEGERS, 0), (Ops.CMPNE, (dtypes.bool,), False),
    ) for n in with_constant(op, types, value)()],
    "absorbing operand": lambda: [n for op, types, value in (
        (Ops.MUL, (dtypes.bool, *INTEGERS), 0), (Ops.AND, (dtypes.bool, *INTEGERS), 0),
        (Ops.OR, (dtypes.bool,), True), (Ops.OR, INTEGERS, -1)) for n in with_constant(op, types, value)()],
    "float divided by a power of two": lambda: [
        n for t in FLOATS for c in (1.0, -1.0, 0.5, -8.0, 2.0 ** (2 - 2 ** (dtypes.finfo(t)[0] - 1)),
                                    2.0 ** (2 ** (dtypes.finfo(t)[0] - 1) - 2))
        for n in with_constant(Ops.FDIV, (t,), c)()],
    "one of equals": lambda: [new(op, unknown(t), unknown(t)) for op, types in (
        (Ops.MAX, EVERY), (Ops.AND, (dtypes.bool, *INTEGERS)), (Ops.OR, (dtypes.bool, *INTEGERS)),
    ) for t in types],
    "twice negated": typed((*INTEGERS, *FLOATS), lambda x: new(Ops.NEG, new(Ops.NEG, x))),
    "compared with itself": lambda: [new(op, unknown(t), unknown(t)) for op, types in (
        (Ops.CMPLT, EVERY), (Ops.CMPNE, (dtypes.bool, *INTEGERS))) for t in types],
    "not not": typed((dtypes.bool,), lambda x: new(Ops.CMPNE, new(Ops.CMPNE, x, NOT), NOT)),
    "cast to the same type": typed(EVERY, lambda x: UOp.new(Ops.CAST, x.dtype, (x,))),
    "cast through a wider type": all_casts,
}

u, v, w = z3.BitVecs("u v w", 32)
BIT_LAWS: dict[str, list[Any]] = {
    "choice by a constant": [z3.If(True, v, w) == v, z3.If(False, v, w) == w],
    "choice by what is not so": [z3.If(p != z3.BoolVal(True), v, w) == z3.If(p, w, v)],
    "choice compared": [(z3.If(p, v, w) == u) == z3.If(p, v == u, w == u),
                        (z3.If(p, v, w) < u) == z3.If(p, v < u, w < u)],
    "choice between equals": [z3.If(p, v, v) == v],
    "chosen before": [z3.If(p, z3.If(p, v, w), u) == z3.If(p, v, u)],
    "not chosen before": [z3.If(p, u, z3.If(p, v, w)) == z3.If(p, u, w)],
    "neutral operand": [
        v + 0 == v, v - 0 == v, v * 1 == v, v / 1 == v, z3.UDiv(v, z3.BitVecVal(1, 32)) == v, v & -1 == v,
        z3.And(p, True) == p, v | 0 == v, v ^ 0 == v, v << 0 == v, v >> 0 == v,
        z3.LShR(v, z3.BitVecVal(0, 32)) == v, (p != z3.BoolVal(False)) == p],
    "absorbing operand": [v * 0 == 0, v & 0 == 0, v | -1 == -1, z3.Or(p, True)],
    "one of equals": [z3.If(v < v, v, v) == v, v & v == v, v | v == v],
    "twice negated": [0 - (0 - v) == v],
    "compared with itself": [z3.Not(v < v), z3.Not(z3.ULT(v, v)), z3.Not(v != v)],
    "not not": [((p != z3.BoolVal(True)) != z3.BoolVal(True)) == p],
}
EVALUATED_ONLY = {"constants", "float divided by a power of two", "cast to the same type",
                  "cast through a wider type"}


def test_every_folding_rule_has_graphs_and_integer_rules_have_laws() -> None:
    names = [r.name for r in constant_folding.rules]
    assert len(names) == len(set(names))
    assert set(GRAPHS) == set(names)
    assert set(BIT_LAWS) | EVALUATED_ONLY == set(names)


@pytest.mark.parametrize("name", BIT_LAWS)
def test_law_of_bits(name: str) -> None:
    for claim in BIT_LAWS[name]:
        prove(claim)


@pytest.mark.parametrize("name", GRAPHS)
def test_folding_keeps_every_bit(name: str) -> None:
    rule = next(r for r in constant_folding.rules if r.name == name)
    nodes = GRAPHS[name]()
    assert nodes
    for node in nodes:
        results = [rule.replace(**found) for found in rule.pattern.match(node, {})]
        result = next((n for n in results if n is not None), None)
        assert result is not None, f"{name} does not change {node}"
        assert result.dtype is node.dtype
        loads = [n for n in node.toposort() if n.op is Ops.LOAD]
        values = {n: special_values(n.dtype) for n in loads}
        count = min((len(x) for x in values.values()), default=1)
        values = {n: x[:count] for n, x in values.items()}
        expected = np.broadcast_to(evaluate(node, values), (count,))
        assert_same_bits(expected, np.broadcast_to(evaluate(result, values), (count,)))


def test_what_would_change_a_float_is_left_alone() -> None:
    x, zero, one = unknown(dtypes.float32), UOp.const(0.0, dtypes.float32), UOp.const(1.0, dtypes.float32)
    nan = UOp.const(math.nan, dtypes.float32)
    kept = [new(Ops.ADD, x, zero), new(Ops.SUB, x, UOp.const(-0.0, dtypes.float32)), new(Ops.MUL, x, zero),
            new(Ops.CMPNE, x, x), new(Ops.SUB, x, x), new(Ops.FDIV, x, x), nan.cast(dtypes.int32),
            new(Ops.ADD, new(Ops.ADD, x, one), one), x.cast(dtypes.float16).cast(dtypes.float32),
            UOp.const(1e20, dtypes.float32).cast(dtypes.int32), new(Ops.SIN, one), new(Ops.EXP2, one)]
    assert [constant_folding.apply(n) for n in kept] == [None] * len(kept)


def test_integer_division_by_a_constant_zero_is_left_alone() -> None:
    one, zero = UOp.const(1, dtypes.int32), UOp.const(0, dtypes.int32)
    assert constant_folding.apply(new(Ops.IDIV, one, zero)) is None
    assert constant_folding.apply(new(Ops.MOD, one, zero)) is None


def test_rules_do_not_share_a_name() -> None:
    with pytest.raises(RuntimeError, match="two rules are named 'not of not'"):
        rules.rule(list[Callable[..., Any]](), "not of not")(reduce)
