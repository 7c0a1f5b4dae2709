"""Index arithmetic: simplified as it is built, with bounds.

In: an operation over sources that are simplified already. Out: an equal node in canonical form, so that equal
expressions are (mostly) the same object. Values are mathematical integers of dtype `index`, and bools made of
them; IDIV and MOD round toward minus infinity. What is not index arithmetic (a comparison of floats, a LOAD)
passes through unchanged and is an *atom*: a value known by its bounds only.

The canonical form of an integer is a sum: atoms with integer coefficients, in a fixed order, and a constant
(`linear_terms`, `from_terms`). Of a comparison: `sum < constant` or `constant < sum`, coefficients without a
common factor, the first one positive. Of a conjunction: its conjuncts in a fixed order. The order depends on
the structure of nodes only, never on addresses, so it is the same in every process.

Every law used is a named rule in one of the tables below; test/test_rules.py proves each with z3.
`graph/folding.py` has the table for the arithmetic of tensors. Next on the path: `shape/` writes views with it.
"""
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.folding import constant_folding as constant_folding
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

Bounds = tuple[int, int]
Sources = tuple[UOp, ...]

UNKNOWN: Final[Bounds] = (-(2**62), 2**62)
"""The bounds of an index nothing is known about."""
TRUE: Final = UOp.new(Ops.CONST, dtypes.bool, (), True)
FALSE: Final = UOp.new(Ops.CONST, dtypes.bool, (), False)


def constant(value: int) -> UOp:
    """`value` as an index."""
    return UOp.new(Ops.CONST, dtypes.index, (), value)


def truth(value: bool) -> UOp:
    """`value` as a bool node."""
    return TRUE if value else FALSE


# --- order --------------------------------------------------------------------------------------------------

SortKey = tuple[int, int, str]


def sort_key(node: UOp) -> SortKey:
    """Where `node` stands in order: ranges by identity, variables by name, the rest by structure."""
    key: SortKey | None = node.__dict__.get("_sort_key")
    if key is None:
        for part in node.toposort(stop=lambda n: "_sort_key" in n.__dict__):
            if "_sort_key" not in part.__dict__:
                part.__dict__["_sort_key"] = _sort_key_here(part)
        key = node.__dict__["_sort_key"]
    return key


def _sort_key_here(node: UOp) -> SortKey:
    sources = [s.__dict__["_sort_key"] for s in node.src]
    text = repr((node.op.name, node.dtype, node.arg, sources))
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    if node.op is Ops.RANGE and isinstance(node.arg[0], int):
        return (0, node.arg[0], digest)
    if node.op is Ops.VARIABLE:
        return (1, 0, node.arg[0] + digest)
    return (2, 0, node.op.name + digest)


# --- sums ---------------------------------------------------------------------------------------------------


class Linear(NamedTuple):
    """The sum of atoms times coefficients (none of them 0) and a constant. Nobody changes `terms`."""

    terms: Mapping[UOp, int]
    constant: int

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """This sum and `factor` times the other."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + factor * coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Linear(terms, self.constant + factor * other.constant)

    def times(self, factor: int) -> Linear:
        if factor == 0:
            return Linear({}, 0)
        return Linear({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def divided(self, divisor: int) -> Linear:
        """Every coefficient and the constant divided by `divisor`, rounded down."""
        return Linear({a: c // divisor for a, c in self.terms.items()}, self.constant // divisor)

    def factor(self) -> int:
        """The greatest common divisor of the coefficients, 0 if there are none."""
        return math.gcd(*self.terms.values())

    def split(self, factor: int) -> tuple[Linear, Linear]:
        """(multiples of `factor`, the rest); of the constant, the rest has `constant % factor`."""
        multiples = {a: c for a, c in self.terms.items() if c % factor == 0}
        rest = {a: c for a, c in self.terms.items() if c % factor}
        below = self.constant % factor
        return Linear(multiples, self.constant - below), Linear(rest, below)

    @property
    def bounds(self) -> Bounds:
        low = high = self.constant
        for atom, coefficient in self.terms.items():
            lowest, highest = atom.bounds
            low += coefficient * (lowest if coefficient > 0 else highest)
            high += coefficient * (highest if coefficient > 0 else lowest)
        return low, high

    def only_atom(self, op: Ops) -> tuple[UOp, int] | None:
        """(the atom, its coefficient) if there is one term and it is an `op` by a constant."""
        if len(self.terms) != 1:
            return None
        atom, coefficient = next(iter(self.terms.items()))
        return (atom, coefficient) if atom.op is op and atom.src[1].op is Ops.CONST else None


def linear_terms(node: UOp) -> Linear:
    """The index `node` as (coefficient by atom, constant). What can have one value only is a constant."""
    found: Linear | None = node.__dict__.get("_linear")
    if found is not None:
        return found
    if node.op is Ops.CONST:
        result = Linear({}, int(node.arg))
    elif node.op is Ops.ADD:
        result = linear_terms(node.src[0]).plus(linear_terms(node.src[1]))
    elif node.op is Ops.MUL and node.src[1].op is Ops.CONST:
        result = linear_terms(node.src[0]).times(node.src[1].arg)
    elif node.bounds[0] == node.bounds[1]:
        result = Linear({}, node.bounds[0])
    else:
        return Linear({node: 1}, 0)  # not remembered: a node that refers to itself is never freed
    node.__dict__["_linear"] = result
    return result


def from_terms(terms: Mapping[UOp, int], offset: int) -> UOp:
    """The canonical node of a sum of atoms times coefficients (not 0), and a constant."""
    result: UOp | None = None
    for atom in sorted(terms, key=sort_key):
        coefficient = terms[atom]
        term = atom if coefficient == 1 else UOp.new(Ops.MUL, dtypes.index, (atom, constant(coefficient)))
        result = term if result is None else UOp.new(Ops.ADD, dtypes.index, (result, term))
    if result is None:
        return constant(offset)
    if offset:
        result = UOp.new(Ops.ADD, dtypes.index, (result, constant(offset)))
    if result.op is not Ops.CONST and result not in terms:
        result.__dict__["_linear"] = Linear(terms, offset)
    return result


# --- bounds -------------------------------------------------------------------------------------------------


def bounds_of(node: UOp) -> Bounds:
    """(lowest, highest) value that an index or bool node can take, bools as 0 and 1. `UOp.bounds` keeps it."""
    if node.op is Ops.CONST and not node.dtype.is_float:
        return int(node.arg), int(node.arg)
    if node.dtype is dtypes.index:
        rule = _INDEX_BOUNDS.get(node.op)
    elif node.dtype is dtypes.bool:
        rule = _BOOL_BOUNDS.get(node.op)
    else:
        rule = _cast_bounds if node.op is Ops.CAST else None
    return _limits(node.dtype) if rule is None else rule(node)


def _limits(dtype: DType) -> Bounds:
    """What any value of the type lies in."""
    if dtype.scalar is dtypes.index or dtype.is_float:
        return UNKNOWN
    return int(dtype.min), int(dtype.max)


def _range_bounds(node: UOp) -> Bounds:
    return 0, max(node.src[0].bounds[1] - 1, 0)


def _special_bounds(node: UOp) -> Bounds:
    return 0, max(node.arg[1] - 1, 0)


def _sum_bounds(node: UOp) -> Bounds:
    return linear_terms(node).bounds


def _product_bounds(node: UOp) -> Bounds:
    corners = [a * b for a in node.src[0].bounds for b in node.src[1].bounds]
    return min(corners), max(corners)


def _quotient_bounds(node: UOp) -> Bounds:
    low, high = node.src[1].bounds
    if low <= 0 <= high:
        return UNKNOWN
    corners = [a // b for a in node.src[0].bounds for b in (low, high)]
    return min(corners), max(corners)


def _remainder_bounds(node: UOp) -> Bounds:
    low, high = node.src[1].bounds
    if low <= 0:
        return (low + 1, 0) if high < 0 else UNKNOWN
    lowest, highest = node.src[0].bounds
    if low == high and lowest // low == highest // low:
        return lowest % low, highest % low
    return 0, min(high - 1, highest) if lowest >= 0 else high - 1


def _maximum_bounds(node: UOp) -> Bounds:
    (a, b), (c, d) = node.src[0].bounds, node.src[1].bounds
    return max(a, c), max(b, d)


def _choice_bounds(node: UOp) -> Bounds:
    condition, a, b = node.src
    (a_low, a_high), (b_low, b_high) = a.bounds, b.bounds
    if condition.op is Ops.CMPLT and _less_node(a, b) is condition:
        return min(a_low, b_low), min(a_high, b_high)
    if condition.op is Ops.CMPLT and _less_node(b, a) is condition:
        return max(a_low, b_low), max(a_high, b_high)
    return min(a_low, b_low), max(a_high, b_high)


def _cast_bounds(node: UOp) -> Bounds:
    lowest, highest = _limits(node.dtype)
    low, high = node.src[0].bounds if not node.src[0].dtype.is_float else UNKNOWN
    return (low, high) if lowest <= low and high <= highest else (lowest, highest)


def _less_bounds(node: UOp) -> Bounds:
    if node.src[0].dtype.is_float:
        return 0, 1
    (a_low, a_high), (b_low, b_high) = node.src[0].bounds, node.src[1].bounds
    return int(a_high < b_low), int(a_low < b_high)


def _unequal_bounds(node: UOp) -> Bounds:
    if node.src[0].dtype.is_float:
        return 0, 1
    (a_low, a_high), (b_low, b_high) = node.src[0].bounds, node.src[1].bounds
    return int(a_high < b_low or b_high < a_low), int(not a_low == a_high == b_low == b_high)


def _and_bounds(node: UOp) -> Bounds:
    (a_low, a_high), (b_low, b_high) = node.src[0].bounds, node.src[1].bounds
    return a_low & b_low, a_high & b_high


def _or_bounds(node: UOp) -> Bounds:
    (a_low, a_high), (b_low, b_high) = node.src[0].bounds, node.src[1].bounds
    return a_low | b_low, a_high | b_high


_INDEX_BOUNDS: dict[Ops, Callable[[UOp], Bounds]] = {
    Ops.VARIABLE: lambda n: (n.arg[1], n.arg[2]),
    Ops.RANGE: _range_bounds,
    Ops.SPECIAL: _special_bounds,
    Ops.ADD: _sum_bounds,
    Ops.SUB: lambda n: (n.src[0].bounds[0] - n.src[1].bounds[1], n.src[0].bounds[1] - n.src[1].bounds[0]),
    Ops.NEG: lambda n: (-n.src[0].bounds[1], -n.src[0].bounds[0]),
    Ops.MUL: _product_bounds,
    Ops.IDIV: _quotient_bounds,
    Ops.MOD: _remainder_bounds,
    Ops.MAX: _maximum_bounds,
    Ops.WHERE: _choice_bounds,
    Ops.CAST: _cast_bounds,
}
_BOOL_BOUNDS: dict[Ops, Callable[[UOp], Bounds]] = {
    Ops.CMPLT: _less_bounds,
    Ops.CMPNE: _unequal_bounds,
    Ops.XOR: _unequal_bounds,
    Ops.AND: _and_bounds,
    Ops.OR: _or_bounds,
}


# --- rules --------------------------------------------------------------------------------------------------

SumRule = Callable[[Linear], Linear | None]
DivisionRule = Callable[[Linear, int], UOp | None]
ComparisonRule = Callable[[Linear], UOp | None]
ConditionsRule = Callable[[list[UOp]], list[UOp] | None]
NodesRule = Callable[..., UOp | None]
AnyRule = TypeVar("AnyRule", bound=Callable[..., Any])

SUMS: Final[list[SumRule]] = []
"""A sum with fewer terms and the same value."""
QUOTIENTS: Final[list[DivisionRule]] = []
"""`sum // n`, n > 1, as simpler parts: smaller divisors, fewer terms under a division."""
REMAINDERS: Final[list[DivisionRule]] = []
"""`sum % n`, n > 1, as simpler parts."""
LESS: Final[list[ComparisonRule]] = []
"""`sum < 0` with smaller coefficients or fewer terms."""
UNEQUAL: Final[list[ComparisonRule]] = []
"""`sum != 0` with smaller coefficients."""
CONJUNCTIONS: Final[list[ConditionsRule]] = []
"""Conditions that hold together: fewer of them, with the same conjunction."""
DISJUNCTIONS: Final[list[ConditionsRule]] = []
"""Conditions of which one holds: fewer of them, with the same disjunction."""
NEGATIONS: Final[list[NodesRule]] = []
"""`not x` without the negation."""
CHOICES: Final[list[NodesRule]] = []
"""`where(condition, a, b)` of integers or bools without the choice."""
MAXIMA: Final[list[NodesRule]] = []
"""`max(a, b)` of which one is never the smaller."""
OTHERS: Final[list[NodesRule]] = []
"""Divisions by other than positive constants, products, casts, comparisons of bools."""

RULES: Final[dict[str, Callable[..., Any]]] = {}
"""Every rule of every table, by name."""


def rule(table: list[AnyRule], name: str) -> Callable[[AnyRule], AnyRule]:
    """Put a function at the end of a table of rules, under a name that no other rule has."""

    def register(function: AnyRule) -> AnyRule:
        if name in RULES:
            raise RuntimeError(f"two rules are named {name!r}")
        RULES[name] = function
        table.append(function)
        return function

    return register


# --- sums, products -----------------------------------------------------------------------------------------


@rule(SUMS, "quotient and remainder make the whole")
def _whole(s: Linear) -> Linear | None:
    """k*n*(x//(a*n)) + k*((x//a) % n) -> k*(x//a)"""
    remainders = [a for a in s.terms if a.op is Ops.MOD and a.src[1].op is Ops.CONST]
    if not remainders:
        return None
    quotients = [a for a in s.terms if a.op is Ops.IDIV and a.src[1].op is Ops.CONST]
    for remainder in remainders:
        n, k = remainder.src[1].arg, s.terms[remainder]
        for quotient in quotients:
            divisor = quotient.src[1].arg
            if s.terms[quotient] != k * n or divisor % n:
                continue
            whole = divide(linear_terms(quotient.src[0]), divisor // n)
            if remain(linear_terms(whole), n) is remainder:
                rest = s.plus(Linear({quotient: k * n, remainder: k}, 0), -1)
                return rest.plus(linear_terms(whole), k)
    return None


def build_sum(s: Linear) -> UOp:
    """The canonical node of a sum, simplified."""
    if len(s.terms) > 1:
        for simplify in SUMS:
            while (simpler := simplify(s)) is not None:
                s = simpler
    return from_terms(s.terms, s.constant)


@rule(OTHERS, "constant factors leave a product")
def _product(a: UOp, b: UOp) -> UOp | None:
    """(g*x) * (h*y) -> g*h * (x*y), g and h constants; a product with a constant is a sum"""
    left, right = linear_terms(a), linear_terms(b)
    if not left.terms or not right.terms:
        known, other = (left, right) if not left.terms else (right, left)
        return build_sum(other.times(known.constant))
    g = math.gcd(left.factor(), left.constant)
    h = math.gcd(right.factor(), right.constant)
    first, second = build_sum(left.divided(g)), build_sum(right.divided(h))
    pair = (first, second) if sort_key(first) <= sort_key(second) else (second, first)
    return build_sum(Linear({UOp.new(Ops.MUL, dtypes.index, pair): g * h}, 0))


# --- division by a positive constant ------------------------------------------------------------------------


def divide(s: Linear, n: int) -> UOp:
    """s // n for n > 0."""
    if n == 1:
        return build_sum(s)
    for simplify in QUOTIENTS:
        if (result := simplify(s, n)) is not None:
            return result
    return UOp.new(Ops.IDIV, dtypes.index, (build_sum(s), constant(n)))


def remain(s: Linear, n: int) -> UOp:
    """s % n for n > 0."""
    if n == 1:
        return constant(0)
    for simplify in REMAINDERS:
        if (result := simplify(s, n)) is not None:
            return result
    return UOp.new(Ops.MOD, dtypes.index, (build_sum(s), constant(n)))


def _within_a_multiple(s: Linear, n: int) -> int | None:
    """q if s lies in [q*n, q*n + n)."""
    low, high = s.bounds
    return low // n if low // n == high // n else None


def _toward_zero(coefficient: int, n: int) -> int:
    return coefficient % n if coefficient > 0 else -(-coefficient % n)


def _nearest(coefficient: int, n: int) -> int:
    return (coefficient + n // 2) % n - n // 2


def _residue(s: Linear, n: int) -> Linear:
    """A sum that differs from `s` by a multiple of n: coefficients in (-n, n), the constant in [0, n).

    Of the choices of sign, one that keeps the sum within one multiple of n if there is such.
    """
    choices: tuple[Callable[[int, int], int], ...] = (_toward_zero, int.__mod__, _nearest)
    residues = [Linear({a: r for a, c in s.terms.items() if (r := choose(c, n))}, s.constant % n)
                for choose in choices]
    return next((r for r in residues if _within_a_multiple(r, n) is not None), residues[0])


def _factors(s: Linear, n: int) -> list[int]:
    """Factors that n shares with some coefficients, greatest first."""
    return sorted({math.gcd(c, n) for c in s.terms.values()} - {1, n}, reverse=True)


@rule(QUOTIENTS, "quotient within one multiple")
def _constant_quotient(s: Linear, n: int) -> UOp | None:
    """x // n -> q where q*n <= x < q*n + n"""
    quotient = _within_a_multiple(s, n)
    return None if quotient is None else constant(quotient)


@rule(QUOTIENTS, "quotient of a quotient")
def _quotient_of_quotient(s: Linear, n: int) -> UOp | None:
    """(x//m + c) // n -> (x + m*c) // (m*n)"""
    found = s.only_atom(Ops.IDIV)
    if found is None or found[1] != 1 or found[0].src[1].arg <= 0:
        return None
    m = found[0].src[1].arg
    return divide(linear_terms(found[0].src[0]).plus(Linear({}, m * s.constant)), m * n)


@rule(QUOTIENTS, "multiples leave a quotient")
def _multiples_leave_quotient(s: Linear, n: int) -> UOp | None:
    """(n*y + r) // n -> y + r//n"""
    residue = _residue(s, n)
    multiple = s.plus(residue, -1)
    if not multiple.terms and not multiple.constant:
        return None
    return build_sum(multiple.divided(n).plus(linear_terms(divide(residue, n))))


@rule(QUOTIENTS, "common factor leaves a quotient")
def _factor_leaves_quotient(s: Linear, n: int) -> UOp | None:
    """(g*y + r) // (g*n) -> (y + q) // n where q*g <= r < q*g + g"""
    for g in _factors(s, n):
        multiples, rest = s.split(g)
        below = _within_a_multiple(rest, g)
        if below is not None:
            return divide(multiples.divided(g).plus(Linear({}, below)), n // g)
    return None


@rule(QUOTIENTS, "quotient of a remainder")
def _quotient_of_remainder(s: Linear, n: int) -> UOp | None:
    """(x % (m*n)) // n -> (x//n) % m"""
    found = s.only_atom(Ops.MOD)
    if found is None or found[1] != 1 or s.constant or found[0].src[1].arg % n:
        return None
    return remain(linear_terms(divide(linear_terms(found[0].src[0]), n)), found[0].src[1].arg // n)


@rule(REMAINDERS, "remainder within one multiple")
def _bounded_remainder(s: Linear, n: int) -> UOp | None:
    """x % n -> x - q*n where q*n <= x < q*n + n"""
    quotient = _within_a_multiple(s, n)
    return None if quotient is None else build_sum(s.plus(Linear({}, quotient * n), -1))


@rule(REMAINDERS, "remainder of a remainder")
def _remainder_of_remainder(s: Linear, n: int) -> UOp | None:
    """(k*(x % m) + y) % n -> (k*x + y) % n where n divides k*m"""
    for atom, k in s.terms.items():
        if atom.op is Ops.MOD and atom.src[1].op is Ops.CONST and k * atom.src[1].arg % n == 0:
            return remain(s.plus(Linear({atom: k}, 0), -1).plus(linear_terms(atom.src[0]), k), n)
    return None


@rule(REMAINDERS, "multiples leave a remainder")
def _multiples_leave_remainder(s: Linear, n: int) -> UOp | None:
    """(n*y + r) % n -> r % n"""
    residue = _residue(s, n)
    return None if residue == s else remain(residue, n)


@rule(REMAINDERS, "common factor leaves a remainder")
def _factor_leaves_remainder(s: Linear, n: int) -> UOp | None:
    """(g*y + r) % (g*n) -> g*((y + q) % n) + r - q*g where q*g <= r < q*g + g"""
    for g in _factors(s, n):
        multiples, rest = s.split(g)
        below = _within_a_multiple(rest, g)
        if below is not None:
            inner = remain(multiples.divided(g).plus(Linear({}, below)), n // g)
            return build_sum(rest.plus(Linear({}, below * g), -1).plus(linear_terms(inner), g))
    return None


# --- division by anything -----------------------------------------------------------------------------------


@rule(OTHERS, "quotient by a negative constant")
def _quotient_by_negative(s: Linear, n: int) -> UOp:
    """x // n -> -x // -n"""
    return divide(s.times(-1), -n)


@rule(OTHERS, "remainder by a negative constant")
def _remainder_by_negative(s: Linear, n: int) -> UOp:
    """x % n -> -(-x % -n)"""
    return build_sum(linear_terms(remain(s.times(-1), -n)).times(-1))


@rule(OTHERS, "quotient of two expressions")
def _quotient_of_nodes(a: UOp, b: UOp) -> UOp | None:
    """a // b -> 0 where 0 <= a < b; (k*b) // b -> k where b > 0"""
    if b.bounds[0] <= 0:
        return None
    if a.bounds[0] >= 0 and _difference(a, b).bounds[1] < 0:
        return constant(0)
    return next((constant(k) for k in _multiple_of(a, b)), None)


@rule(OTHERS, "remainder of two expressions")
def _remainder_of_nodes(a: UOp, b: UOp) -> UOp | None:
    """a % b -> a where 0 <= a < b; (k*b) % b -> 0 where b > 0"""
    if b.bounds[0] <= 0:
        return None
    if a.bounds[0] >= 0 and _difference(a, b).bounds[1] < 0:
        return a
    return next((constant(0) for _ in _multiple_of(a, b)), None)


def _difference(a: UOp, b: UOp) -> Linear:
    return linear_terms(a).plus(linear_terms(b), -1)


def _multiple_of(a: UOp, b: UOp) -> list[int]:
    """[k] if a is k * b, else nothing."""
    left, right = linear_terms(a), linear_terms(b)
    atom = next(iter(right.terms), None)
    if atom is None or left.terms.get(atom, 0) % right.terms[atom]:
        return []
    k = left.terms.get(atom, 0) // right.terms[atom]
    return [k] if k and left == right.times(k) else []


# --- comparisons --------------------------------------------------------------------------------------------


def less_than_zero(s: Linear) -> UOp:
    """`s < 0`."""
    for simplify in LESS:
        if (result := simplify(s)) is not None:
            return result
    return _comparison(Ops.CMPLT, s)


def not_zero(s: Linear) -> UOp:
    """`s != 0`."""
    for simplify in UNEQUAL:
        if (result := simplify(s)) is not None:
            return result
    return _comparison(Ops.CMPNE, s)


def _comparison(op: Ops, s: Linear) -> UOp:
    """`s < 0` or `s != 0` with the constant on one side and the first coefficient positive."""
    first = min(s.terms, key=sort_key)
    if s.terms[first] > 0:
        src = (from_terms(s.terms, 0), constant(-s.constant))
    else:
        src = (constant(s.constant), from_terms(s.times(-1).terms, 0))
    return UOp.new(op, dtypes.bool, src if op is Ops.CMPLT or src[1].op is Ops.CONST else src[::-1])


def _less_node(a: UOp, b: UOp) -> UOp:
    return less_than_zero(_difference(a, b))


def _is_index_less(node: UOp) -> bool:
    return node.op is Ops.CMPLT and node.src[0].dtype is dtypes.index


@rule(LESS, "less decided by bounds")
def _decided_less(s: Linear) -> UOp | None:
    low, high = s.bounds
    return TRUE if high < 0 else FALSE if low >= 0 else None


@rule(LESS, "less divided by a common factor")
def _divided_less(s: Linear) -> UOp | None:
    """g*y + c < 0 -> y + (c//g) < 0 where g > 1"""
    g = s.factor()
    return None if g == 1 else less_than_zero(s.divided(g))


@rule(LESS, "less without a small part")
def _coarse_less(s: Linear) -> UOp | None:
    """g*y + r < 0 -> y + q < 0 where q*g <= r < q*g + g"""
    for g in sorted({abs(c) for c in s.terms.values()} - {1}, reverse=True):
        multiples, rest = s.split(g)
        below = _within_a_multiple(rest, g)
        if below is not None:
            return less_than_zero(multiples.divided(g).plus(Linear({}, below)))
    return None


@rule(LESS, "less of a quotient")
def _less_of_quotient(s: Linear) -> UOp | None:
    """x//n + c < 0 -> x + c*n < 0;  -(x//n) + c < 0 -> -x + (c+1)*n - 1 < 0"""
    found = s.only_atom(Ops.IDIV)
    if found is None or abs(found[1]) != 1 or found[0].src[1].arg <= 0:
        return None
    atom, sign = found
    x, n = linear_terms(atom.src[0]), atom.src[1].arg
    if sign > 0:
        return less_than_zero(x.plus(Linear({}, s.constant * n)))
    return less_than_zero(Linear({}, (s.constant + 1) * n - 1).plus(x, -1))


@rule(UNEQUAL, "unequal decided by bounds")
def _decided_unequal(s: Linear) -> UOp | None:
    low, high = s.bounds
    return FALSE if low == high == 0 else TRUE if low > 0 or high < 0 else None


@rule(UNEQUAL, "unequal divided by a common factor")
def _divided_unequal(s: Linear) -> UOp | None:
    """g*y + c != 0 -> y + c/g != 0 where g divides c, else true"""
    g = s.factor()
    if g == 1:
        return None
    return not_zero(s.divided(g)) if s.constant % g == 0 else TRUE


# --- conditions ---------------------------------------------------------------------------------------------


def _flattened(op: Ops, conditions: Iterable[UOp]) -> list[UOp]:
    """The operands of nested `op`s, each once."""
    found: dict[UOp, None] = {}
    stack = list(conditions)[::-1]
    while stack:
        node = stack.pop()
        if node.op is op:
            stack.extend(node.src[::-1])
        else:
            found[node] = None
    return list(found)


def conjuncts(condition: UOp) -> list[UOp]:
    """The conditions whose conjunction `condition` is; none if it is true."""
    return [c for c in _flattened(Ops.AND, [condition]) if c is not TRUE]


def all_of(conditions: Iterable[UOp]) -> UOp:
    """The conjunction of conditions, true if there are none."""
    return _joined(Ops.AND, CONJUNCTIONS, conditions, TRUE)


def any_of(conditions: Iterable[UOp]) -> UOp:
    """The disjunction of conditions, false if there are none."""
    return _joined(Ops.OR, DISJUNCTIONS, conditions, FALSE)


def _joined(op: Ops, table: list[ConditionsRule], conditions: Iterable[UOp], neutral: UOp) -> UOp:
    parts = _flattened(op, conditions)
    for simplify in table:
        if len(parts) > 1:
            simpler = simplify(parts)
            parts = parts if simpler is None else simpler
    if not parts:
        return neutral
    parts.sort(key=sort_key)
    result = parts[0]
    for part in parts[1:]:
        result = UOp.new(op, dtypes.bool, (result, part))
    return result


def negated(condition: UOp) -> UOp:
    """`not condition`."""
    for simplify in NEGATIONS:
        if (result := simplify(condition)) is not None:
            return result
    return UOp.new(Ops.CMPNE, dtypes.bool, (condition, TRUE))


def _is_negation(node: UOp) -> bool:
    return node.op is Ops.CMPNE and node.src[1] is TRUE


@rule(CONJUNCTIONS, "and with a constant")
def _and_constant(parts: list[UOp]) -> list[UOp] | None:
    return [FALSE] if FALSE in parts else [p for p in parts if p is not TRUE]


@rule(CONJUNCTIONS, "and with the negation")
def _and_negation(parts: list[UOp]) -> list[UOp] | None:
    """x and not x -> false"""
    present = set(parts)
    return [FALSE] if any(_is_negation(p) and p.src[0] in present for p in parts) else None


@rule(CONJUNCTIONS, "and keeps the tighter of two comparisons")
def _and_tighter(parts: list[UOp]) -> list[UOp] | None:
    """y + a < 0 and y + b < 0 -> y + max(a, b) < 0"""
    return _one_of_each_form(parts, max)


@rule(CONJUNCTIONS, "and of disjoint comparisons")
def _and_disjoint(parts: list[UOp]) -> list[UOp] | None:
    """y + a < 0 and -y + b < 0 -> false where a + b >= -1"""
    return [FALSE] if any(a + b >= -1 for a, b in _opposite_constants(parts)) else None


@rule(DISJUNCTIONS, "or with a constant")
def _or_constant(parts: list[UOp]) -> list[UOp] | None:
    return [TRUE] if TRUE in parts else [p for p in parts if p is not FALSE]


@rule(DISJUNCTIONS, "or with the negation")
def _or_negation(parts: list[UOp]) -> list[UOp] | None:
    """x or not x -> true"""
    present = set(parts)
    return [TRUE] if any(_is_negation(p) and p.src[0] in present for p in parts) else None


@rule(DISJUNCTIONS, "or keeps the looser of two comparisons")
def _or_looser(parts: list[UOp]) -> list[UOp] | None:
    """y + a < 0 or y + b < 0 -> y + min(a, b) < 0"""
    return _one_of_each_form(parts, min)


@rule(DISJUNCTIONS, "or of comparisons that cover all")
def _or_covering(parts: list[UOp]) -> list[UOp] | None:
    """y + a < 0 or -y + b < 0 -> true where a + b < 0"""
    return [TRUE] if any(a + b < 0 for a, b in _opposite_constants(parts)) else None


Form = frozenset[tuple[UOp, int]]


def _forms(parts: list[UOp]) -> dict[Form, list[tuple[int, UOp]]]:
    """The comparisons `y + c < 0` among conditions: for each y, its (c, condition)."""
    found: dict[Form, list[tuple[int, UOp]]] = {}
    for part in parts:
        if _is_index_less(part):
            s = _difference(*part.src)
            found.setdefault(frozenset(s.terms.items()), []).append((s.constant, part))
    return found


def _one_of_each_form(parts: list[UOp], best: Callable[..., int]) -> list[UOp] | None:
    dropped: set[UOp] = set()
    for comparisons in _forms(parts).values():
        kept = best(c for c, _ in comparisons)
        dropped.update(part for c, part in comparisons if c != kept)
    return [p for p in parts if p not in dropped] if dropped else None


def _opposite_constants(parts: list[UOp]) -> list[tuple[int, int]]:
    """(a, b) for every y + a < 0 and -y + b < 0 among conditions."""
    forms = _forms(parts)
    pairs: list[tuple[int, int]] = []
    for form, comparisons in forms.items():
        opposite = forms.get(frozenset((atom, -c) for atom, c in form), [])
        pairs.extend((a, b) for a, _ in comparisons for b, _ in opposite)
    return pairs


@rule(NEGATIONS, "not of a constant")
def _not_constant(x: UOp) -> UOp | None:
    return truth(not x.arg) if x.op is Ops.CONST else None


@rule(NEGATIONS, "not of not")
def _not_not(x: UOp) -> UOp | None:
    return x.src[0] if _is_negation(x) else None


@rule(NEGATIONS, "not of less")
def _not_less(x: UOp) -> UOp | None:
    """not y < 0 -> -y - 1 < 0"""
    if not _is_index_less(x):
        return None
    return less_than_zero(Linear({}, -1).plus(_difference(*x.src), -1))


@rule(CHOICES, "choice by a constant or between equals")
def _constant_choice(condition: UOp, a: UOp, b: UOp) -> UOp | None:
    if condition.op is Ops.CONST:
        return a if condition.arg else b
    return a if a is b else None


@rule(CHOICES, "choice by a negation")
def _negated_choice(condition: UOp, a: UOp, b: UOp) -> UOp | None:
    """where(not c, a, b) -> where(c, b, a)"""
    return choose(condition.src[0], b, a) if _is_negation(condition) else None


@rule(CHOICES, "choice between bools")
def _bool_choice(condition: UOp, a: UOp, b: UOp) -> UOp | None:
    """where(c, a, b) as and, or, not, where a or b is a constant"""
    if b is FALSE:
        return all_of([condition, a])
    if a is TRUE:
        return any_of([condition, b])
    if a is FALSE:
        return all_of([negated(condition), b])
    return any_of([negated(condition), a]) if b is TRUE else None


@rule(CHOICES, "smaller of two that are ordered")
def _ordered_minimum(condition: UOp, a: UOp, b: UOp) -> UOp | None:
    """where(a < b, a, b) -> a where a <= b always, b where b <= a always; the same for where(b < a, a, b)"""
    if not _is_index_less(condition) or a.dtype is not dtypes.index:
        return None
    low, high = _difference(a, b).bounds
    if high > 0 and low < 0:
        return None
    smaller, greater = (a, b) if high <= 0 else (b, a)
    if condition is _less_node(a, b):
        return smaller
    return greater if condition is _less_node(b, a) else None


def choose(condition: UOp, a: UOp, b: UOp) -> UOp:
    """`a` where the condition holds, else `b`; both index or both bool."""
    for simplify in CHOICES:
        if (result := simplify(condition, a, b)) is not None:
            return result
    return UOp.new(Ops.WHERE, a.dtype, (condition, a, b))


@rule(MAXIMA, "greater of two that are ordered")
def _ordered_maximum(a: UOp, b: UOp) -> UOp | None:
    """max(a, b) -> a where b <= a always"""
    low, high = _difference(a, b).bounds
    return a if low >= 0 else b if high <= 0 else None


@rule(OTHERS, "unequal bools")
def _unequal_bools(a: UOp, b: UOp) -> UOp | None:
    """a != a -> false; a != false -> a; a != true -> not a"""
    if a is b:
        return FALSE
    if a.op is Ops.CONST or b.op is Ops.CONST:
        known, other = (a, b) if a.op is Ops.CONST else (b, a)
        return negated(other) if known.arg else other
    return None


@rule(OTHERS, "cast there and back")
def _cast_back(x: UOp) -> UOp | None:
    """index(int(x)) -> x where x fits the integer type; index(c) -> c"""
    if x.op is Ops.CONST and not x.dtype.is_float:
        return constant(int(x.arg))
    if x.op is not Ops.CAST or not x.dtype.is_int or x.src[0].dtype is not dtypes.index:
        return None
    (low, high), (lowest, highest) = x.src[0].bounds, _limits(x.dtype)
    return x.src[0] if lowest <= low and high <= highest else None


# --- the entry ----------------------------------------------------------------------------------------------


def simplified(op: Ops, dtype: DType, src: Sources, arg: Any = None) -> UOp:
    """The node `op` over `src`, simplified if it is index arithmetic or a condition, else as it is."""
    builders = _INDEX_BUILDERS if dtype is dtypes.index else _BOOL_BUILDERS if dtype is dtypes.bool else {}
    build = builders.get(op)
    result = build(src) if build is not None and src[0].shape == () else None
    return UOp.new(op, dtype, src, arg) if result is None else result


def _simplify_quotient(src: Sources) -> UOp | None:
    a, b = src[0], linear_terms(src[1])
    if b.terms:
        return _quotient_of_nodes(a, src[1])
    if b.constant == 0:
        return None
    divisor, dividend = b.constant, linear_terms(a)
    return divide(dividend, divisor) if divisor > 0 else _quotient_by_negative(dividend, divisor)


def _simplify_remainder(src: Sources) -> UOp | None:
    a, b = src[0], linear_terms(src[1])
    if b.terms:
        return _remainder_of_nodes(a, src[1])
    if b.constant == 0:
        return None
    divisor, dividend = b.constant, linear_terms(a)
    return remain(dividend, divisor) if divisor > 0 else _remainder_by_negative(dividend, divisor)


def _simplify_maximum(src: Sources) -> UOp:
    result = next((r for simplify in MAXIMA if (r := simplify(*src)) is not None), None)
    ordered = tuple(sorted(src, key=sort_key))
    return UOp.new(Ops.MAX, dtypes.index, ordered) if result is None else result


def _simplify_shift(src: Sources, left: bool) -> UOp | None:
    if src[1].op is not Ops.CONST or not 0 <= src[1].arg < 63:
        return None
    factor = 2 ** src[1].arg
    return build_sum(linear_terms(src[0]).times(factor)) if left else divide(linear_terms(src[0]), factor)


def _simplify_less(src: Sources) -> UOp | None:
    return _less_node(*src) if src[0].dtype is dtypes.index else None


def _simplify_unequal(src: Sources) -> UOp | None:
    if src[0].dtype is dtypes.index:
        return not_zero(_difference(*src))
    return _unequal_bools(*src) if src[0].dtype is dtypes.bool else None


_INDEX_BUILDERS: dict[Ops, Callable[[Sources], UOp | None]] = {
    Ops.ADD: lambda src: build_sum(linear_terms(src[0]).plus(linear_terms(src[1]))),
    Ops.SUB: lambda src: build_sum(_difference(*src)),
    Ops.NEG: lambda src: build_sum(linear_terms(src[0]).times(-1)),
    Ops.MUL: lambda src: _product(*src),
    Ops.MULACC: lambda src: simplified(Ops.ADD, dtypes.index, (src[0] * src[1], src[2])),
    Ops.SHL: lambda src: _simplify_shift(src, True),
    Ops.SHR: lambda src: _simplify_shift(src, False),
    Ops.IDIV: _simplify_quotient,
    Ops.MOD: _simplify_remainder,
    Ops.MAX: _simplify_maximum,
    Ops.WHERE: lambda src: choose(*src),
    Ops.CAST: lambda src: _cast_back(*src),
}
_BOOL_BUILDERS: dict[Ops, Callable[[Sources], UOp | None]] = {
    Ops.CMPLT: _simplify_less,
    Ops.CMPNE: _simplify_unequal,
    Ops.XOR: lambda src: _unequal_bools(*src),
    Ops.AND: all_of,
    Ops.OR: any_of,
    Ops.WHERE: lambda src: choose(*src),
}


# --- what follows from a condition --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fact:
    """`variable` stands for the sum `form`, which a condition keeps within the variable's bounds."""

    form: Linear
    variable: UOp


def simplify_given(expression: UOp, condition: UOp) -> UOp:
    """The index or bool `expression`, simplified where `condition` holds; elsewhere its value may differ.

    A conjunct that bounds a sum (`2*y + k < 9`) narrows that sum wherever it occurs within another one: it is
    replaced by a variable with those bounds, the expression simplifies again, and the sum is put back.

    >>> i, j = UOp.range(4, 0), UOp.range(9, 1)
    >>> simplify_given((i * 8 + j - 1) // 8, (j > 0) & (j < 9)) is i
    True
    """
    if condition.op is Ops.CONST or not expression.src:
        return expression
    known: dict[UOp, UOp] = {}
    limits: dict[Form, list[int]] = {}
    for conjunct in conjuncts(condition):
        if not _note_limits(conjunct, limits):
            opposite = _is_negation(conjunct)
            known[conjunct.src[0] if opposite else conjunct] = truth(not opposite)
    facts = _facts(limits)
    if facts is None:
        return expression
    result = _rebuilt(expression, facts, known)
    return result.substitute({f.variable: from_terms(f.form.terms, 0) for f in facts})


def _note_limits(conjunct: UOp, limits: dict[Form, list[int]]) -> bool:
    """Add what an `y < c`, `c < y` or `y == c` says about y to `limits`; False if it is no such condition."""
    equal = _is_negation(conjunct) and conjunct.src[0].op is Ops.CMPNE
    comparison = conjunct.src[0] if equal else conjunct
    if comparison.op not in (Ops.CMPLT, Ops.CMPNE) or comparison.src[0].dtype is not dtypes.index:
        return False
    if comparison.op is Ops.CMPNE and not equal:
        return False
    s = _difference(*comparison.src)
    if not s.terms:
        return False
    positive = s.terms[min(s.terms, key=sort_key)] > 0
    form = s if positive else s.times(-1)
    low, high = limits.setdefault(frozenset(form.terms.items()), list(Linear(form.terms, 0).bounds))
    if equal or positive:
        high = min(high, -form.constant - (not equal))
    if equal or not positive:
        low = max(low, -form.constant + (not equal))
    limits[frozenset(form.terms.items())] = [low, high]
    return True


def _facts(limits: Mapping[Form, list[int]]) -> list[_Fact] | None:
    """The sums that are limited, those of most atoms first; None if the limits contradict each other."""
    single = {atom: bounds for form, bounds in limits.items() for atom, _ in form if len(form) == 1}
    facts: list[_Fact] = []
    for form, (low, high) in sorted(limits.items(), key=lambda item: -len(item[0])):
        ends = [sorted(c * end for end in single.get(atom, atom.bounds)) for atom, c in form]
        low = max(low, sum(lowest for lowest, _ in ends))
        high = min(high, sum(highest for _, highest in ends))
        if low > high:
            return None
        facts.append(_Fact(Linear(dict(form), 0), UOp.variable(f"<fact {len(facts)}>", low, high)))
    return facts


def _rebuilt(root: UOp, facts: list[_Fact], known: Mapping[UOp, UOp]) -> UOp:
    """`root` with the facts' variables in place of their sums and `known` conditions replaced."""
    done: dict[UOp, UOp] = dict(known)

    def rebuild(node: UOp) -> UOp:
        if node not in done:
            done[node] = build(node)
        return done[node]

    def build(node: UOp) -> UOp:
        if node.dtype is dtypes.index:
            s = replaced = linear_terms(node)
            for fact in facts:
                m = _times_contained(fact.form, replaced)
                if m:
                    replaced = replaced.plus(fact.form, -m).plus(Linear({fact.variable: m}, 0))
            if replaced is not s or node not in s.terms:
                total = Linear({}, replaced.constant)
                for atom, coefficient in replaced.terms.items():
                    total = total.plus(linear_terms(rebuild(atom)), coefficient)
                return build_sum(total)
        elif node.dtype is not dtypes.bool:
            return node
        src = tuple(rebuild(s) for s in node.src) if node.op not in _OPAQUE else node.src
        return node if src == node.src else node.with_sources(src)

    return rebuild(root)


_OPAQUE: Final = frozenset({Ops.RANGE, Ops.LOAD, Ops.VARIABLE, Ops.CONST, Ops.SPECIAL, Ops.REGISTER})


def _times_contained(form: Linear, s: Linear) -> int:
    """How many times the sum `form` can be taken out of `s`, atoms cancelling."""
    ratios = []
    for atom, coefficient in form.terms.items():
        present = s.terms.get(atom, 0)
        if present == 0 or present % coefficient:
            return 0
        ratios.append(present // coefficient)
    return min(ratios) if min(ratios) > 0 else min(0, max(ratios))
