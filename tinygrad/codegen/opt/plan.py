"""`Plan`: a list of `Opt`s, each a change of how a loop nest runs that keeps what it computes.

In: a nest and a Plan. Out: a nest whose ranges are split, merged and marked with the kind they run as. Next
on the path: `codegen/expand.py` writes the marked ranges out.
"""
from __future__ import annotations

from tinygrad.codegen.opt.opts import Opt
from tinygrad.frozen import frozen
from tinygrad.graph.passes import is_recording, run_pass
from tinygrad.graph.uop import UOp


@frozen
class Plan:
    """Opts in the order in which they are applied."""

    opts: tuple[Opt, ...] = ()

    def __repr__(self) -> str:
        return "; ".join(map(repr, self.opts)) or "plain loops"


def apply_plan(nest: UOp, plan: Plan) -> UOp:
    """The nest, run as `plan` says."""
    for opt in plan.opts:
        nest = run_pass(str(opt), apply_opt, nest, opt)
    return nest


def apply_opt(nest: UOp, opt: Opt) -> UOp:
    """The nest with one change. Raises ValueError where the nest has no such range.

    A nest remembers its last change: the plan that was just chosen, Opt by Opt, is applied at no cost.
    """
    last: tuple[Opt, UOp] | None = nest.__dict__.get("_last_change")
    if last is not None and last[0] == opt and not is_recording():
        return last[1]
    result = opt.apply(nest)
    if result is not nest:
        nest.__dict__["_last_change"] = (opt, result)
    return result
