"""Comparisons, conjunctions, negations and choices, simplified as they are built.

A comparison is `sum < constant` or `constant < sum`, its coefficients without a common factor, the first one
positive. A conjunction is its conjuncts in order; for each sum at most one comparison on either side.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic.linear import (
    FALSE,
    TRUE,
    Linear,
    constant,
    difference,
    from_terms,
    is_index_less,
    linear_terms,
    sort_key,
    truth,
    within_a_multiple,
)
from tinygrad.graph.symbolic.rules import (
    CHOICES,
    CONJUNCTIONS,
    DISJUNCTIONS,
    LESS,
    NEGATIONS,
    OTHERS,
    UNEQUAL,
    ConditionsRule,
    rule,
)
from tinygrad.graph.uop import UOp

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


def less_node(a: UOp, b: UOp) -> UOp:
    return less_than_zero(difference(a, b))


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
        below = within_a_multiple(rest, g)
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


def is_negation(node: UOp) -> bool:
    return node.op is Ops.CMPNE and node.src[1] is TRUE


@rule(CONJUNCTIONS, "and with a constant")
def _and_constant(parts: list[UOp]) -> list[UOp] | None:
    return [FALSE] if FALSE in parts else [p for p in parts if p is not TRUE]


@rule(CONJUNCTIONS, "and with the negation")
def _and_negation(parts: list[UOp]) -> list[UOp] | None:
    """x and not x -> false"""
    present = set(parts)
    return [FALSE] if any(is_negation(p) and p.src[0] in present for p in parts) else None


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
    return [TRUE] if any(is_negation(p) and p.src[0] in present for p in parts) else None


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
        if is_index_less(part):
            s = difference(*part.src)
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
    return x.src[0] if is_negation(x) else None


@rule(NEGATIONS, "not of less")
def _not_less(x: UOp) -> UOp | None:
    """not y < 0 -> -y - 1 < 0"""
    if not is_index_less(x):
        return None
    return less_than_zero(Linear({}, -1).plus(difference(*x.src), -1))


@rule(CHOICES, "choice by a constant or between equals")
def _constant_choice(condition: UOp, a: UOp, b: UOp) -> UOp | None:
    if condition.op is Ops.CONST:
        return a if condition.arg else b
    return a if a is b else None


@rule(CHOICES, "choice by a negation")
def _negated_choice(condition: UOp, a: UOp, b: UOp) -> UOp | None:
    """where(not c, a, b) -> where(c, b, a)"""
    return choose(condition.src[0], b, a) if is_negation(condition) else None


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
    if not is_index_less(condition) or a.dtype is not dtypes.index:
        return None
    low, high = difference(a, b).bounds
    if high > 0 and low < 0:
        return None
    smaller, greater = (a, b) if high <= 0 else (b, a)
    if condition is less_node(a, b):
        return smaller
    return greater if condition is less_node(b, a) else None


def choose(condition: UOp, a: UOp, b: UOp) -> UOp:
    """`a` where the condition holds, else `b`; both index or both bool."""
    for simplify in CHOICES:
        if (result := simplify(condition, a, b)) is not None:
            return result
    return UOp.new(Ops.WHERE, a.dtype, (condition, a, b))


@rule(OTHERS, "unequal bools")
def _unequal_bools(a: UOp, b: UOp) -> UOp | None:
    """a != a -> false; a != false -> a; a != true -> not a"""
    if a is b:
        return FALSE
    if a.op is Ops.CONST or b.op is Ops.CONST:
        known, other = (a, b) if a.op is Ops.CONST else (b, a)
        return negated(other) if known.arg else other
    return None


def unequal(a: UOp, b: UOp) -> UOp | None:
    """`a != b` of indices or bools, None if there is nothing to simplify."""
    if a.dtype is dtypes.index:
        return not_zero(difference(a, b))
    return _unequal_bools(a, b) if a.dtype is dtypes.bool else None


def less(a: UOp, b: UOp) -> UOp | None:
    """`a < b` of indices, None for other types."""
    return less_node(a, b) if a.dtype is dtypes.index else None
