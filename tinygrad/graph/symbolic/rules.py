"""The tables of rules of index arithmetic, and the decorator that fills them.

A rule is a function that returns what its arguments simplify to, or None to decline. The first rule of a
table that does not decline is applied. `arithmetic` and `conditions` hold the rules, proven in
test/graph/test_rules.py.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from tinygrad.graph.uop import UOp

AnyRule = TypeVar("AnyRule", bound=Callable[..., Any])
Table: TypeAlias = list[Callable[..., Any]]

SUMS: Final[Table] = []
"""A sum with fewer terms and the same value."""
QUOTIENTS: Final[Table] = []
"""`sum // n`, n > 1, as simpler parts: smaller divisors, fewer terms under a division."""
REMAINDERS: Final[Table] = []
"""`sum % n`, n > 1, as simpler parts."""
LESS: Final[Table] = []
"""`sum < 0` with smaller coefficients or fewer terms."""
UNEQUAL: Final[Table] = []
"""`sum != 0` with smaller coefficients."""
JUNCTIONS: Final[Table] = []
"""Conditions that hold together (AND), or of which one holds (OR): fewer of them, joined to the same."""
NEGATIONS: Final[Table] = []
"""`not x` without the negation."""
CHOICES: Final[Table] = []
"""`where(condition, a, b)` of integers or bools without the choice."""
MAXIMA: Final[Table] = []
"""`max(a, b)` of which one is never the smaller."""
OTHERS: Final[Table] = []
"""Divisions by other than positive constants, products, casts, comparisons of bools."""

RULES: Final[dict[str, Callable[..., Any]]] = {}
"""Every rule of every table, by name."""


def rule(table: Table, name: str, *others: Table) -> Callable[[AnyRule], AnyRule]:
    """Put a function at the end of a table of rules, or several, under a name that no other rule has."""

    def register(function: AnyRule) -> AnyRule:
        if name in RULES:
            raise RuntimeError(f"two rules are named {name!r}")
        RULES[name] = function
        for each in (table, *others):
            each.append(function)
        return function

    return register


def simpler(table: Table, *arguments: Any) -> UOp | None:
    """What the first rule of a table that does not decline makes of its arguments; None where all do."""
    for simplify in table:
        result: UOp | None = simplify(*arguments)
        if result is not None:
            return result
    return None
