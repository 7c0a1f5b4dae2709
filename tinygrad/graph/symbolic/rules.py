"""The tables of rules of index arithmetic, and the decorator that fills them.

A rule is a function that returns what its arguments simplify to, or None to decline. The first rule of a
table that does not decline is applied. `arithmetic` and `conditions` hold the rules, proven in
test/graph/test_rules.py.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic.linear import Linear
from tinygrad.graph.uop import UOp

SumRule = Callable[[Linear], Linear | None]
DivisionRule = Callable[[Linear, int], UOp | None]
ComparisonRule = Callable[[Linear], UOp | None]
ConditionsRule = Callable[[Ops, list[UOp]], list[UOp] | None]
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
JUNCTIONS: Final[list[ConditionsRule]] = []
"""Conditions that hold together (AND), or of which one holds (OR): fewer of them, joined to the same."""
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


def simpler(table: Sequence[Callable[..., UOp | None]], *arguments: Any) -> UOp | None:
    """What the first rule of a table that does not decline makes of its arguments; None where all do."""
    for simplify in table:
        if (result := simplify(*arguments)) is not None:
            return result
    return None
