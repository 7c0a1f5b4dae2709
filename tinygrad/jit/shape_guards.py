"""Shape guards: how comparisons of sizes came out while a function was traced.

In: what `graph/sizes.py` asked of the values that Variables are bound to, and the names of those that are
arguments. Out: `ShapeGuards`, a row of the guard table: the answers, asked again for the values of another
call.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinygrad.graph.sizes import bound, truth_of, unbound
from tinygrad.graph.uop import UOp
from tinygrad.jit.guard_table import Guard

MOST_KNOWN = 1 << 12
"""Values of the Variables for which the answer is remembered."""


@dataclass
class ShapeGuards:
    """Comparisons over VARIABLEs, unbound where they are arguments, and what each was."""

    found: list[tuple[UOp, bool]] = field(default_factory=list)
    known: dict[tuple[tuple[str, int], ...], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[UOp, bool], variables: Mapping[str, int]) -> ShapeGuards:
        """Those of a call whose arguments bind `variables`."""
        return cls([(unbound(condition, variables), result) for condition, result in found.items()])

    def table(self) -> list[Guard]:
        """The row, where there are comparisons."""
        if not self.found:
            return []
        return [Guard("how sizes compare", lambda inputs: self.are_so(inputs.variables), True)]

    def are_so(self, variables: Mapping[str, int]) -> bool:
        """Whether each comparison is what it was for these values, too."""
        key = tuple(variables.items())
        answer = self.known.get(key)
        if answer is None:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            answer = self.known[key] = all([truth_of(bound(condition, variables)) is result
                                            for condition, result in self.found])
        return answer
