"""Sums in canonical form, the order of their terms, and the bounds of index and bool nodes.

A sum is a `Linear`: a coefficient for each atom, and a constant. `linear_terms` reads it off a node,
`from_terms` makes the node. The order of terms depends on the structure of nodes only, never on addresses, so
it is the same in every process.
"""
from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp

Bounds = tuple[int, int]

UNKNOWN: Final[Bounds] = (-(2**62), 2**62)
"""The bounds of an index nothing is known about."""
TRUE: Final = UOp.new(Ops.CONST, dtypes.bool, (), True)
FALSE: Final = UOp.new(Ops.CONST, dtypes.bool, (), False)


@lru_cache(4096)
def constant(value: int) -> UOp:
    """`value` as an index. The last ones live on: most are asked for again and again."""
    return UOp.new(Ops.CONST, dtypes.index, (), value)


def truth(value: bool) -> UOp:
    """`value` as a bool node."""
    return TRUE if value else FALSE


# --- order --------------------------------------------------------------------------------------------------

SortKey = tuple[int, int, str]


_NAMES_NO_STRUCTURE = (Ops.BUFFER, Ops.DETACH, Ops.CUSTOM_GRADIENT)
"""What has an argument that another process, or the next step, has another one for."""


def _sort_key_here(node: UOp) -> SortKey:
    sources = [s.__dict__["_sort_key"] for s in node.src]
    if node.op is Ops.VARIABLE:
        return (1, 0, repr(node.arg))
    if node.op is Ops.RANGE and isinstance(node.arg[0], int):
        return (0, node.arg[0], f"{node.arg[1].name} {sources}")
    text = repr((node.op.name, node.dtype, None if node.op in _NAMES_NO_STRUCTURE else node.arg, sources))
    return (2, 0, node.op.name + hashlib.blake2b(text.encode(), digest_size=12).hexdigest())


sort_key: Final = Synthesized(_sort_key_here, "_sort_key").of
"""Where a node stands in order: ranges by identity, variables by name, the rest by structure, whatever memory
it is in: the same in every process and at every step."""


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

    def shifted(self, number: int) -> Linear:
        """This sum and a number."""
        return Linear(self.terms, self.constant + number)

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

    def coarse(self, factors: Iterable[int]) -> tuple[int, Linear, Linear] | None:
        """(g, y + q, r - q*g) where this is g*y + r, for the first g of `factors` with q*g <= r < q*g + g."""
        for g in factors:
            below = self.constant % g
            rest = Linear({a: c for a, c in self.terms.items() if c % g}, below)
            q = within_a_multiple(rest, g)
            if q is not None:
                multiples = Linear({a: c // g for a, c in self.terms.items() if c % g == 0},
                                   (self.constant - below) // g)
                return g, multiples.shifted(q), rest.shifted(-q * g)
        return None

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
        first = linear_terms(node.src[0])
        result = first.shifted(node.src[1].arg) if _ends_with_number(node) else \
            first.plus(linear_terms(node.src[1]))
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
    for atom in sorted(terms, key=sort_key) if len(terms) > 1 else terms:
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


def shifted(node: UOp, number: int) -> UOp:
    """The canonical node of an index and a number."""
    terms, known = linear_terms(node)
    if not terms:
        return constant(known + number)
    base, own = (node.src[0], node.src[1].arg) if _ends_with_number(node) else (node, 0)
    total = own + number
    return UOp.new(Ops.ADD, dtypes.index, (base, constant(total))) if total else base


def _ends_with_number(node: UOp) -> bool:
    return node.op is Ops.ADD and node.src[1].op is Ops.CONST


def difference(a: UOp, b: UOp) -> Linear:
    """a - b."""
    return linear_terms(a).plus(linear_terms(b), -1)


def is_index_less(node: UOp) -> bool:
    """True for a comparison of two indices."""
    return node.op is Ops.CMPLT and node.src[0].dtype is dtypes.index


def is_multiple(node: UOp, n: int) -> bool:
    """True if the index is a multiple of `n` whatever its ranges are, as far as its form shows."""
    if node.op is Ops.WHERE:
        return all(is_multiple(value, n) for value in node.src[1:])
    s = linear_terms(node)
    return s.constant % n == 0 and all(c % n == 0 or (a is not node and is_multiple(a, n // math.gcd(c, n)))
                                       for a, c in s.terms.items())


def within_a_multiple(s: Linear, n: int) -> int | None:
    """q if s lies in [q*n, q*n + n)."""
    low, high = s.bounds
    return low // n if low // n == high // n else None


# --- bounds -------------------------------------------------------------------------------------------------


def bounds_of(node: UOp) -> Bounds:
    """(lowest, highest) value of an index or bool node, bools as 0 and 1. `UOp.bounds` keeps it."""
    if node.op is Ops.CONST and not node.dtype.is_float:
        return int(node.arg), int(node.arg)
    if node.dtype is dtypes.index:
        rule = _INDEX_BOUNDS.get(node.op)
    elif node.dtype is dtypes.bool:
        rule = _BOOL_BOUNDS.get(node.op)
    else:
        rule = _cast_bounds if node.op is Ops.CAST else None
    return limits(node.dtype) if rule is None else rule(node)


def limits(dtype: DType) -> Bounds:
    """What any value of the type lies in."""
    if dtype.scalar is dtypes.index or dtype.is_float:
        return UNKNOWN
    return int(dtype.min), int(dtype.max)


def _counted_bounds(extent: int) -> Bounds:
    return 0, max(extent - 1, 0)


def _corners(operation: Callable[..., int]) -> Callable[[UOp], Bounds]:
    """The bounds of what rises or falls with each source alone: it is least and greatest at their ends."""

    def bounds(node: UOp) -> Bounds:
        values = [int(operation(*ends)) for ends in product(*[s.bounds for s in node.src])]
        return min(values), max(values)

    return bounds


_quotient_corners = _corners(operator.floordiv)


def _quotient_bounds(node: UOp) -> Bounds:
    low, high = node.src[1].bounds
    return UNKNOWN if low <= 0 <= high else _quotient_corners(node)


def _remainder_bounds(node: UOp) -> Bounds:
    low, high = node.src[1].bounds
    if low <= 0:
        return (low + 1, 0) if high < 0 else UNKNOWN
    lowest, highest = node.src[0].bounds
    if low == high and lowest // low == highest // low:
        return lowest % low, highest % low
    return 0, min(high - 1, highest) if lowest >= 0 else high - 1


def _choice_bounds(node: UOp) -> Bounds:
    condition, a, b = node.src
    (a_low, a_high), (b_low, b_high) = a.bounds, b.bounds
    if is_index_less(condition):
        compared = difference(*condition.src)
        if _compares(compared, difference(a, b)):
            return min(a_low, b_low), min(a_high, b_high)
        if _compares(compared, difference(b, a)):
            return max(a_low, b_low), max(a_high, b_high)
    return min(a_low, b_low), max(a_high, b_high)


def _compares(compared: Linear, s: Linear) -> bool:
    """True if the comparison `compared < 0` in canonical form is that of `s < 0`."""
    return bool(s.terms) and s.divided(s.factor()) == compared


def _cast_bounds(node: UOp) -> Bounds:
    lowest, highest = limits(node.dtype)
    low, high = node.src[0].bounds if not node.src[0].dtype.is_float else UNKNOWN
    return (low, high) if lowest <= low and high <= highest else (lowest, highest)


_less_corners = _corners(operator.lt)


def _unequal_bounds(node: UOp) -> Bounds:
    if node.src[0].dtype.is_float:
        return 0, 1
    (a_low, a_high), (b_low, b_high) = node.src[0].bounds, node.src[1].bounds
    return int(a_high < b_low or b_high < a_low), int(not a_low == a_high == b_low == b_high)


_INDEX_BOUNDS: dict[Ops, Callable[[UOp], Bounds]] = {
    Ops.VARIABLE: lambda n: (n.arg[1], n.arg[2]),
    Ops.RANGE: lambda n: _counted_bounds(n.extent),
    Ops.SPECIAL: lambda n: _counted_bounds(n.arg[1]),
    Ops.ADD: lambda n: linear_terms(n).bounds,
    Ops.SUB: _corners(operator.sub),
    Ops.NEG: _corners(operator.neg),
    Ops.MUL: _corners(operator.mul),
    Ops.IDIV: _quotient_bounds,
    Ops.MOD: _remainder_bounds,
    Ops.MAX: _corners(max),
    Ops.WHERE: _choice_bounds,
    Ops.CAST: _cast_bounds,
}
_BOOL_BOUNDS: dict[Ops, Callable[[UOp], Bounds]] = {
    Ops.CMPLT: lambda n: (0, 1) if n.src[0].dtype.is_float else _less_corners(n),
    Ops.CMPNE: _unequal_bounds,
    Ops.XOR: _unequal_bounds,
    Ops.AND: _corners(operator.and_),
    Ops.OR: _corners(operator.or_),
}
