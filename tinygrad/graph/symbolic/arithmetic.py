"""Sums, products, quotients and remainders, simplified as they are built.

`build_sum` and `divided` make nodes from sums; each tries the rules of its table first.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic.linear import (
    Linear,
    constant,
    difference,
    from_terms,
    limits,
    linear_terms,
    shifted,
    sort_key,
    within_a_multiple,
)
from tinygrad.graph.symbolic.rules import MAXIMA, OTHERS, QUOTIENTS, REMAINDERS, SUMS, rule, simpler
from tinygrad.graph.uop import UOp

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
            whole = divided(Ops.IDIV, linear_terms(quotient.src[0]), divisor // n)
            if divided(Ops.MOD, linear_terms(whole), n) is remainder:
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


def split_sum(node: UOp, moves: Callable[[UOp], bool]) -> tuple[UOp, Mapping[UOp, int]]:
    """The index `node` as (what is left of its sum, the atoms that move with their coefficients)."""
    terms, total = linear_terms(node)
    moving = {a: c for a, c in terms.items() if moves(a)}
    return build_sum(Linear({a: c for a, c in terms.items() if a not in moving}, total)), moving


def plus_terms(base: UOp, terms: Mapping[UOp, int], values: Mapping[UOp, UOp]) -> UOp:
    """An index, and the sum of the values of some atoms times coefficients."""
    number, others = 0, []
    for atom, coefficient in terms.items():
        if (value := values[atom]).op is Ops.CONST:
            number += coefficient * value.arg
        else:
            others.append(linear_terms(value).times(coefficient))
    return shifted(base, number) if not others else \
        build_sum(reduce(Linear.plus, others, linear_terms(base).shifted(number)))


@rule(OTHERS, "constant factors leave a product")
def product(a: UOp, b: UOp) -> UOp | None:
    """(g*x) * (h*y) -> g*h * (x*y), g and h constants; a product with a constant is a sum"""
    left, right = linear_terms(a), linear_terms(b)
    if not left.terms or not right.terms:
        known, other = (left, right) if not left.terms else (right, left)
        return build_sum(other.times(known.constant))
    g = math.gcd(left.factor(), left.constant)
    h = math.gcd(right.factor(), right.constant)
    first, second = build_sum(left.divided(g)), build_sum(right.divided(h))
    pair = sorted((first, second), key=sort_key)
    return build_sum(Linear({UOp.new(Ops.MUL, dtypes.index, tuple(pair)): g * h}, 0))


# --- division by a positive constant ------------------------------------------------------------------------


def divided(op: Ops, s: Linear, n: int) -> UOp:
    """s // n or s % n for n > 0, as `op` says."""
    if n == 1:
        return build_sum(s) if op is Ops.IDIV else constant(0)
    table = QUOTIENTS if op is Ops.IDIV else REMAINDERS
    return simpler(table, op, s, n) or UOp.new(op, dtypes.index, (build_sum(s), constant(n)))


def _residue(s: Linear, n: int) -> Linear:
    """A sum that differs from `s` by a multiple of n: coefficients in (-n, n), the constant in [0, n).

    Of the choices of sign (that of `s`, none, the nearer to 0), one that keeps the sum within one multiple of
    n if there is such.
    """
    rests = {a: rest for a, c in s.terms.items() if (rest := c % n)}
    signed = {a: rest - n if s.terms[a] < 0 else rest for a, rest in rests.items()}
    nearest = {a: rest - n if 2 * rest >= n else rest for a, rest in rests.items()}
    residues = [Linear(terms, s.constant % n) for terms in (signed, rests, nearest)]
    return next((r for r in residues if within_a_multiple(r, n) is not None), residues[0])


def _factors(s: Linear, n: int) -> list[int]:
    """Factors that n shares with some coefficients, greatest first."""
    return sorted({math.gcd(c, n) for c in s.terms.values()} - {1, n}, reverse=True)


@rule(QUOTIENTS, "division within one multiple", REMAINDERS)
def _bounded(op: Ops, s: Linear, n: int) -> UOp | None:
    """x // n -> q, x % n -> x - q*n where q*n <= x < q*n + n"""
    quotient = within_a_multiple(s, n)
    if quotient is None:
        return None
    return constant(quotient) if op is Ops.IDIV else build_sum(s.shifted(-quotient * n))


@rule(QUOTIENTS, "quotient of a quotient")
def _quotient_of_quotient(op: Ops, s: Linear, n: int) -> UOp | None:
    """(x//m + c) // n -> (x + m*c) // (m*n)"""
    found = s.only_atom(Ops.IDIV)
    if found is None or found[1] != 1 or found[0].src[1].arg <= 0:
        return None
    m = found[0].src[1].arg
    return divided(op, linear_terms(found[0].src[0]).shifted(m * s.constant), m * n)


@rule(REMAINDERS, "remainder of a remainder")
def _remainder_of_remainder(op: Ops, s: Linear, n: int) -> UOp | None:
    """(k*(x % m) + y) % n -> (k*x + y) % n where n divides k*m"""
    for atom, k in s.terms.items():
        if atom.op is Ops.MOD and atom.src[1].op is Ops.CONST and k * atom.src[1].arg % n == 0:
            return divided(op, s.plus(Linear({atom: k}, 0), -1).plus(linear_terms(atom.src[0]), k), n)
    return None


@rule(QUOTIENTS, "multiples leave a division", REMAINDERS)
def _without_multiples(op: Ops, s: Linear, n: int) -> UOp | None:
    """(n*y + r) // n -> y + r//n, (n*y + r) % n -> r % n"""
    residue = _residue(s, n)
    if residue == s:
        return None
    result = divided(op, residue, n)
    return build_sum(s.plus(residue, -1).divided(n).plus(linear_terms(result))) if op is Ops.IDIV else result


@rule(QUOTIENTS, "common factor leaves a division", REMAINDERS)
def _without_factor(op: Ops, s: Linear, n: int) -> UOp | None:
    """(g*y + r) // (g*n) -> (y + q) // n, (g*y + r) % (g*n) -> g*((y + q) % n) + r - q*g
    where q*g <= r < q*g + g"""
    if (found := s.coarse(_factors(s, n))) is None:
        return None
    g, multiples, rest = found
    result = divided(op, multiples, n // g)
    return result if op is Ops.IDIV else build_sum(rest.plus(linear_terms(result), g))


@rule(QUOTIENTS, "quotient of a remainder")
def _quotient_of_remainder(op: Ops, s: Linear, n: int) -> UOp | None:
    """(x % (m*n)) // n -> (x//n) % m"""
    found = s.only_atom(Ops.MOD)
    if found is None or found[1] != 1 or s.constant or found[0].src[1].arg % n:
        return None
    quotient = divided(op, linear_terms(found[0].src[0]), n)
    return divided(Ops.MOD, linear_terms(quotient), found[0].src[1].arg // n)


# --- division by anything -----------------------------------------------------------------------------------


@rule(OTHERS, "division by a negative constant")
def _by_negative(op: Ops, s: Linear, n: int) -> UOp:
    """x // n -> -x // -n, x % n -> -(-x % -n)"""
    result = divided(op, s.times(-1), -n)
    return result if op is Ops.IDIV else build_sum(linear_terms(result).times(-1))


@rule(OTHERS, "division of two expressions")
def _of_nodes(op: Ops, a: UOp, b: UOp) -> UOp | None:
    """a // b -> 0, a % b -> a where 0 <= a < b; (k*b) // b -> k, (k*b) % b -> 0 where b > 0"""
    if b.bounds[0] <= 0:
        return None
    if a.bounds[0] >= 0 and difference(a, b).bounds[1] < 0:
        return constant(0) if op is Ops.IDIV else a
    left, right = linear_terms(a), linear_terms(b)
    atom = next(iter(right.terms))
    k = left.terms.get(atom, 0) // right.terms[atom]
    return constant(k if op is Ops.IDIV else 0) if k and left == right.times(k) else None


def division(op: Ops, a: UOp, b: UOp) -> UOp | None:
    """a // b or a % b, as `op` says; None if there is nothing to simplify."""
    s, divisor = linear_terms(a), linear_terms(b)
    n = divisor.constant
    if divisor.terms:
        return _of_nodes(op, a, b)
    return None if n == 0 else divided(op, s, n) if n > 0 else _by_negative(op, s, n)


def shift(a: UOp, b: UOp, left: bool) -> UOp | None:
    """`a << b` or `a >> b` as a product or quotient, None where b is not a constant."""
    if b.op is not Ops.CONST or not 0 <= b.arg < 63:
        return None
    factor = 2**b.arg
    return build_sum(linear_terms(a).times(factor)) if left else divided(Ops.IDIV, linear_terms(a), factor)


# --- maxima, casts ------------------------------------------------------------------------------------------


def maximum(a: UOp, b: UOp) -> UOp:
    """The greater of two."""
    return simpler(MAXIMA, a, b) or UOp.new(Ops.MAX, dtypes.index, tuple(sorted((a, b), key=sort_key)))


@rule(MAXIMA, "greater of two that are ordered")
def _ordered_maximum(a: UOp, b: UOp) -> UOp | None:
    """max(a, b) -> a where b <= a always"""
    low, high = difference(a, b).bounds
    return a if low >= 0 else b if high <= 0 else None


@rule(OTHERS, "cast there and back")
def cast_back(x: UOp) -> UOp | None:
    """index(int(x)) -> x where x fits the integer type; index(c) -> c"""
    if x.op is Ops.CONST and not x.dtype.is_float:
        return constant(int(x.arg))
    if x.op is not Ops.CAST or not x.dtype.is_int or x.src[0].dtype is not dtypes.index:
        return None
    (low, high), (lowest, highest) = x.src[0].bounds, limits(x.dtype)
    return x.src[0] if lowest <= low and high <= highest else None
