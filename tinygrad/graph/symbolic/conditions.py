"""Comparisons, conjunctions, negations and choices, simplified as they are built.

A comparison is `sum < constant` or `constant < sum`, its coefficients without a common factor, the first one
positive. A conjunction is its conjuncts in order; for each sum at most one comparison on either side.
"""
from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

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
)
from tinygrad.graph.symbolic.rules import (
    CHOICES,
    JUNCTIONS,
    LESS,
    NEGATIONS,
    OTHERS,
    UNEQUAL,
    rule,
    simpler,
)
from tinygrad.graph.uop import UOp

# --- comparisons --------------------------------------------------------------------------------------------


def less_than_zero(s: Linear) -> UOp:
    """`s < 0`."""
    return simpler(LESS, s) or _comparison(Ops.CMPLT, s)


def not_zero(s: Linear) -> UOp:
    """`s != 0`."""
    return simpler(UNEQUAL, s) or _comparison(Ops.CMPNE, s)


def _comparison(op: Ops, s: Linear) -> UOp:
    """`s < 0` or `s != 0` with the constant on one side and the first coefficient positive."""
    first = min(s.terms, key=sort_key)
    if s.terms[first] > 0:
        src = (from_terms(s.terms, 0), constant(-s.constant))
    else:
        src = (constant(s.constant), from_terms(s.times(-1).terms, 0))
    return UOp.new(op, dtypes.bool, src if op is Ops.CMPLT or src[1].op is Ops.CONST else src[::-1])


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
    found = s.coarse(sorted({abs(c) for c in s.terms.values()} - {1}, reverse=True))
    return None if found is None else less_than_zero(found[1])


@rule(LESS, "less of a quotient")
def _less_of_quotient(s: Linear) -> UOp | None:
    """x//n + c < 0 -> x + c*n < 0;  -(x//n) + c < 0 -> -x + (c+1)*n - 1 < 0"""
    found = s.only_atom(Ops.IDIV)
    if found is None or abs(found[1]) != 1 or found[0].src[1].arg <= 0:
        return None
    atom, sign = found
    x, n = linear_terms(atom.src[0]), atom.src[1].arg
    if sign > 0:
        return less_than_zero(x.shifted(s.constant * n))
    return less_than_zero(x.times(-1).shifted((s.constant + 1) * n - 1))


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
    return _joined(Ops.AND, conditions)


def any_of(conditions: Iterable[UOp]) -> UOp:
    """The disjunction of conditions, false if there are none."""
    return _joined(Ops.OR, conditions)


def _joined(op: Ops, conditions: Iterable[UOp]) -> UOp:
    parts = _flattened(op, conditions)
    for simplify in JUNCTIONS:
        if len(parts) > 1:
            fewer = simplify(op, parts)
            parts = parts if fewer is None else fewer
    parts.sort(key=sort_key)
    return reduce(lambda a, b: UOp.new(op, dtypes.bool, (a, b)), parts) if parts else truth(op is Ops.AND)


def negated(condition: UOp) -> UOp:
    """`not condition`."""
    return simpler(NEGATIONS, condition) or UOp.new(Ops.CMPNE, dtypes.bool, (condition, TRUE))


def is_negation(node: UOp) -> bool:
    return node.op is Ops.CMPNE and node.src[1] is TRUE


@rule(JUNCTIONS, "joined with a constant")
def _with_constant(op: Ops, parts: list[UOp]) -> list[UOp] | None:
    """x and false -> false; x or true -> true; else it goes"""
    decisive = truth(op is Ops.OR)
    return [decisive] if decisive in parts else [p for p in parts if p.op is not Ops.CONST]


@rule(JUNCTIONS, "joined with the negation")
def _with_negation(op: Ops, parts: list[UOp]) -> list[UOp] | None:
    """x and not x -> false; x or not x -> true"""
    present = set(parts)
    return [truth(op is Ops.OR)] if any(is_negation(p) and p.src[0] in present for p in parts) else None


@rule(JUNCTIONS, "comparisons of one sum joined")
def _one_of_each_form(op: Ops, parts: list[UOp]) -> list[UOp] | None:
    """y + a < 0 and y + b < 0 -> y + max(a, b) < 0, the tighter; with or, y + min(a, b) < 0, the looser"""
    best = max if op is Ops.AND else min
    dropped: set[UOp] = set()
    for comparisons in _forms(parts).values():
        kept = best(c for c, _ in comparisons)
        dropped.update(part for c, part in comparisons if c != kept)
    return [p for p in parts if p not in dropped] if dropped else None


@rule(JUNCTIONS, "opposite comparisons joined")
def _opposite(op: Ops, parts: list[UOp]) -> list[UOp] | None:
    """y + a < 0 and -y + b < 0 -> false where a + b >= -1; y + a < 0 or -y + b < 0 -> true where a + b < 0"""
    forms = _forms(parts)
    for form, comparisons in forms.items():
        opposite = forms.get(frozenset((atom, -c) for atom, c in form), [])
        if any(a + b >= -1 if op is Ops.AND else a + b < 0 for a, _ in comparisons for b, _ in opposite):
            return [truth(op is Ops.OR)]
    return None


Form = frozenset[tuple[UOp, int]]


def _forms(parts: list[UOp]) -> dict[Form, list[tuple[int, UOp]]]:
    """The comparisons `y + c < 0` among conditions: for each y, its (c, condition)."""
    found: dict[Form, list[tuple[int, UOp]]] = {}
    for part in parts:
        if is_index_less(part):
            s = difference(*part.src)
            found.setdefault(frozenset(s.terms.items()), []).append((s.constant, part))
    return found


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
    return less_than_zero(difference(*x.src[::-1]).shifted(-1))


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
    if condition is less(a, b):
        return smaller
    return greater if condition is less(b, a) else None


def choose(condition: UOp, a: UOp, b: UOp) -> UOp:
    """`a` where the condition holds, else `b`; both index or both bool."""
    return simpler(CHOICES, condition, a, b) or UOp.new(Ops.WHERE, a.dtype, (condition, a, b))


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
    return less_than_zero(difference(a, b)) if a.dtype is dtypes.index else None
