"""Sums, products, quotients and remainders, simplified as they are built.

`build_sum`, `divide` and `remain` make nodes from sums; each tries the rules of its table first.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic.linear import (
    Linear,
    constant,
    difference,
    from_terms,
    limits,
    linear_terms,
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


def divide(s: Linear, n: int) -> UOp:
    """s // n for n > 0."""
    if n == 1:
        return build_sum(s)
    return simpler(QUOTIENTS, s, n) or UOp.new(Ops.IDIV, dtypes.index, (build_sum(s), constant(n)))


def remain(s: Linear, n: int) -> UOp:
    """s % n for n > 0."""
    if n == 1:
        return constant(0)
    return simpler(REMAINDERS, s, n) or UOp.new(Ops.MOD, dtypes.index, (build_sum(s), constant(n)))


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
    return next((r for r in residues if within_a_multiple(r, n) is not None), residues[0])


def _factors(s: Linear, n: int) -> list[int]:
    """Factors that n shares with some coefficients, greatest first."""
    return sorted({math.gcd(c, n) for c in s.terms.values()} - {1, n}, reverse=True)


@rule(QUOTIENTS, "quotient within one multiple")
def _constant_quotient(s: Linear, n: int) -> UOp | None:
    """x // n -> q where q*n <= x < q*n + n"""
    quotient = within_a_multiple(s, n)
    return None if quotient is None else constant(quotient)


@rule(QUOTIENTS, "quotient of a quotient")
def _quotient_of_quotient(s: Linear, n: int) -> UOp | None:
    """(x//m + c) // n -> (x + m*c) // (m*n)"""
    found = s.only_atom(Ops.IDIV)
    if found is None or found[1] != 1 or found[0].src[1].arg <= 0:
        return None
    m = found[0].src[1].arg
    return divide(linear_terms(found[0].src[0]).shifted(m * s.constant), m * n)


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
    found = s.coarse(_factors(s, n))
    return None if found is None else divide(found[1], n // found[0])


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
    quotient = within_a_multiple(s, n)
    return None if quotient is None else build_sum(s.shifted(-quotient * n))


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
    if (found := s.coarse(_factors(s, n))) is None:
        return None
    g, multiples, rest = found
    return build_sum(rest.plus(linear_terms(remain(multiples, n // g)), g))


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
    if a.bounds[0] >= 0 and difference(a, b).bounds[1] < 0:
        return constant(0)
    return next((constant(k) for k in _multiple_of(a, b)), None)


@rule(OTHERS, "remainder of two expressions")
def _remainder_of_nodes(a: UOp, b: UOp) -> UOp | None:
    """a % b -> a where 0 <= a < b; (k*b) % b -> 0 where b > 0"""
    if b.bounds[0] <= 0:
        return None
    if a.bounds[0] >= 0 and difference(a, b).bounds[1] < 0:
        return a
    return next((constant(0) for _ in _multiple_of(a, b)), None)


def _multiple_of(a: UOp, b: UOp) -> list[int]:
    """[k] if a is k * b, else nothing."""
    left, right = linear_terms(a), linear_terms(b)
    atom = next(iter(right.terms), None)
    if atom is None or left.terms.get(atom, 0) % right.terms[atom]:
        return []
    k = left.terms.get(atom, 0) // right.terms[atom]
    return [k] if k and left == right.times(k) else []


def quotient(a: UOp, b: UOp) -> UOp | None:
    """a // b, None if there is nothing to simplify."""
    s, divisor = linear_terms(a), linear_terms(b)
    if divisor.terms:
        return _quotient_of_nodes(a, b)
    n = divisor.constant
    return None if n == 0 else divide(s, n) if n > 0 else _quotient_by_negative(s, n)


def remainder(a: UOp, b: UOp) -> UOp | None:
    """a % b, None if there is nothing to simplify."""
    s, divisor = linear_terms(a), linear_terms(b)
    if divisor.terms:
        return _remainder_of_nodes(a, b)
    n = divisor.constant
    return None if n == 0 else remain(s, n) if n > 0 else _remainder_by_negative(s, n)


def shift(a: UOp, b: UOp, left: bool) -> UOp | None:
    """`a << b` or `a >> b` as a product or quotient, None where b is not a constant."""
    if b.op is not Ops.CONST or not 0 <= b.arg < 63:
        return None
    factor = 2**b.arg
    return build_sum(linear_terms(a).times(factor)) if left else divide(linear_terms(a), factor)


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
