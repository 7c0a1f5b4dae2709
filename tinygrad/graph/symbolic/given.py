"""What an expression simplifies to where a condition holds.

`ShapeTracker` and the loop nest use it: under the condition that masks a padded image, the coordinates in the
image lie within its sides, so that divisions by these vanish.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic.arithmetic import build_sum
from tinygrad.graph.symbolic.conditions import Form, conjuncts, is_negation
from tinygrad.graph.symbolic.linear import Linear, difference, from_terms, linear_terms, sort_key, truth
from tinygrad.graph.uop import UOp

LimitedSums = Mapping[UOp, Linear]
"""Variables, each of which stands for a sum that a condition keeps within the variable's bounds."""


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
            opposite = is_negation(conjunct)
            known[conjunct.src[0] if opposite else conjunct] = truth(not opposite)
    facts = _facts(limits)
    if facts is None:
        return expression
    result = _rebuilt(expression, facts, known)
    return result.substitute({variable: from_terms(form.terms, 0) for variable, form in facts.items()})


def _note_limits(conjunct: UOp, limits: dict[Form, list[int]]) -> bool:
    """Add what an `y < c`, `c < y` or `y == c` says about y to `limits`; False if it is no such condition."""
    equal = is_negation(conjunct) and conjunct.src[0].op is Ops.CMPNE
    comparison = conjunct.src[0] if equal else conjunct
    if comparison.op not in (Ops.CMPLT, Ops.CMPNE) or comparison.src[0].dtype is not dtypes.index:
        return False
    if comparison.op is Ops.CMPNE and not equal:
        return False
    s = difference(*comparison.src)
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


def _facts(limits: Mapping[Form, list[int]]) -> LimitedSums | None:
    """The sums that are limited, those of most atoms first; None if the limits contradict each other."""
    single = {atom: bounds for form, bounds in limits.items() for atom, _ in form if len(form) == 1}
    facts: dict[UOp, Linear] = {}
    for form, (low, high) in sorted(limits.items(), key=lambda item: -len(item[0])):
        ends = [sorted(c * end for end in single.get(atom, atom.bounds)) for atom, c in form]
        low = max(low, sum(lowest for lowest, _ in ends))
        high = min(high, sum(highest for _, highest in ends))
        if low > high:
            return None
        facts[UOp.variable(f"<fact {len(facts)}>", low, high)] = Linear(dict(form), 0)
    return facts


def _rebuilt(root: UOp, facts: LimitedSums, known: Mapping[UOp, UOp]) -> UOp:
    """`root` with the facts' variables in place of their sums and `known` conditions replaced."""
    done: dict[UOp, UOp] = dict(known)

    def top_down(node: UOp) -> UOp | None:
        if node.dtype is dtypes.index:
            s = replaced = linear_terms(node)
            for variable, form in facts.items():
                m = _times_contained(form, replaced)
                if m:
                    replaced = replaced.plus(form, -m).plus(Linear({variable: m}, 0))
            if replaced is not s or node not in s.terms:
                total = Linear({}, replaced.constant)
                for atom, coefficient in replaced.terms.items():
                    new = atom.rebuild(top_down=top_down, done=done)
                    total = total.plus(linear_terms(new), coefficient)
                return build_sum(total)
        elif node.dtype is not dtypes.bool:
            return node
        return node if node.op in _OPAQUE else None

    return root.rebuild(top_down=top_down, done=done)


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
