"""Index arithmetic: simplified as it is built, with bounds.

In: an operation over sources that are simplified already. Out: an equal node in canonical form, so that equal
expressions are (mostly) the same object. Values are mathematical integers of dtype `index`, and bools made of
them; IDIV and MOD round toward minus infinity. What is not index arithmetic (a comparison of floats, a LOAD)
passes through unchanged and is an *atom*: a value known by its bounds only.

The canonical form of an integer is a sum: atoms with integer coefficients, in a fixed order, and a constant
(`linear_terms`, `from_terms`). Of a comparison: `sum < constant` or `constant < sum`, coefficients without a
common factor, the first one positive. Of a conjunction: its conjuncts in a fixed order. The order depends on
the structure of nodes only, never on addresses, so it is the same in every process.

- `linear`: sums, their order, bounds
- `rules`: the tables; every law used is a named rule of one, proven with z3 in test/graph/test_rules.py
- `arithmetic`, `conditions`: the rules of integers and of bools, and what builds nodes with them
- `simplify`: the entry that `UOp` calls
- `given`: what follows from a condition

`graph/folding.py` has the table for the arithmetic of tensors. Next on the path: `shape/` writes addresses.
"""
from __future__ import annotations

from tinygrad.graph.folding import constant_folding
from tinygrad.graph.symbolic.arithmetic import build_sum, divided, plus_terms, split_sum
from tinygrad.graph.symbolic.conditions import (
    all_of,
    any_of,
    choose,
    conjuncts,
    is_negation,
    less_than_zero,
    negated,
    not_zero,
)
from tinygrad.graph.symbolic.given import simplify_given
from tinygrad.graph.symbolic.linear import (
    FALSE,
    TRUE,
    UNKNOWN,
    Bounds,
    Linear,
    bounds_of,
    constant,
    from_terms,
    is_index_less,
    is_multiple,
    linear_terms,
    sort_key,
)
from tinygrad.graph.symbolic.rules import RULES, rule
from tinygrad.graph.symbolic.simplify import simplified

__all__ = [
    "FALSE",
    "RULES",
    "TRUE",
    "UNKNOWN",
    "Bounds",
    "Linear",
    "all_of",
    "any_of",
    "bounds_of",
    "build_sum",
    "choose",
    "conjuncts",
    "constant",
    "constant_folding",
    "divided",
    "from_terms",
    "is_index_less",
    "is_multiple",
    "is_negation",
    "less_than_zero",
    "linear_terms",
    "negated",
    "not_zero",
    "plus_terms",
    "rule",
    "simplified",
    "simplify_given",
    "sort_key",
    "split_sum",
]
