"""Plans near a Plan: with an Opt changed, dropped or added.

In: a nest and a Plan that applies to it. Out: Plans that differ from it in one Opt; `search.py` measures
them.

An Opt names ranges by identities that depend on the Opts before it, so those behind an edit are carried over
by the role of each range: the inner loop of the third split stays that, whatever number it has now. An Opt
whose range the edit took away goes with it.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from tinygrad.codegen.opt.choose import THREAD_WORK, work_and_items
from tinygrad.codegen.opt.chooser import Chooser
from tinygrad.codegen.opt.loops import is_reduce_range, is_shared, operands
from tinygrad.codegen.opt.opts import (
    Accumulators,
    Global,
    Local,
    Merge,
    Opt,
    Split,
    Splitting,
    Stage,
    Stream,
    Subtotals,
    Swap,
    Thread,
    Tighten,
    Unroll,
    Upcast,
    Vector,
)
from tinygrad.codegen.opt.panels import panel_order
from tinygrad.codegen.opt.plan import Plan, apply_opt
from tinygrad.codegen.opt.staging import numbered_rows
from tinygrad.codegen.ranges import (
    all_ranges,
    fresh_identity,
    is_block_range,
    is_plain,
    iterations,
    of_kind,
    range_named,
    running_in,
)
from tinygrad.frozen import frozen
from tinygrad.graph.ops import RangeKind
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import Machine

T = TypeVar("T")
LAST = (Tighten, Stream, Thread, Global)
"""Opts that a plan ends with: others are added before them."""
AMOUNTS = {
    Upcast: (2, 3, 4, 6, 8),
    Unroll: (2, 4, 8),
    Accumulators: (2, 4, 8),
    Split: (8, 32, 128, 512),
}
"""Factors that an added Opt tries."""
MOST = {Upcast: 16, Unroll: 16, Accumulators: 16, Split: 4096,
        Local: 1024}
"""Factors beyond which none is tried."""
SHARED_WORK = 16 * THREAD_WORK
"""Operations and items beyond which threads are never given up: a core that is busy for a while makes them
seem slow, and what was measured then would be remembered."""
GONE = -1
"""What a range is called that an edit took away."""
MAX_COPIES = 128
"""Copies of a value that unrolling may write out, unless the cost model's own plan writes more: what is
longer takes seconds to compile, and has no registers to run in."""


def neighbours(nest: UOp, plan: Plan, machine: Machine) -> Iterator[Plan]:
    """The plans one edit away from `plan`, each once, the kinds of edits taking turns. Whether they can be
    built shows when they are."""
    if not all_ranges(nest):
        return
    states = [nest]
    for opt in plan.opts:
        states.append(apply_opt(states[-1], opt))
    found = {plan}
    for edit in in_turn(_other_amounts(plan, machine, states), _without(plan, states),
                        _additions(plan, machine, states), _other_ranges(plan, states)):
        changed = edited(states, plan, edit)
        if changed is not None and changed not in found:
            found.add(changed)
            yield changed


def copies(nest: UOp) -> int:
    """The most copies that unrolling writes out of any value of `nest`."""
    return max(iterations(of_kind(running_in(n), RangeKind.UNROLL)) for n in nest.toposort())


def in_turn(*several: Iterable[T]) -> Iterator[T]:
    """The items of several iterables, one of each in turn."""
    return (item for items in itertools.zip_longest(*several) for item in items if item is not None)


# --- edits --------------------------------------------------------------------------------------------------


@frozen
class Edit:
    """The Opts `taken` of a plan from number `at` on, replaced by `given`."""

    at: int
    taken: int = 0
    given: tuple[Opt, ...] = ()


def _other_amounts(plan: Plan, machine: Machine, states: list[UOp]) -> Iterator[Edit]:
    """Other tiles, and other numbers of lanes."""
    for at, opt in enumerate(plan.opts):
        if isinstance(opt, Vector):
            amounts = [opt.amount // 2, opt.amount * 2]
            most = 2 * Chooser(states[0], machine).lanes()
        elif isinstance(opt, Splitting):
            near = (opt.amount - 1, opt.amount + 1, opt.amount - 2, opt.amount + 2)
            amounts = [opt.amount * 2, opt.amount // 2, *(near if isinstance(opt, Upcast) else ())]
            most = MOST[type(opt)]
        else:
            continue
        for amount in dict.fromkeys(amounts):
            if 2 <= amount <= most:
                yield Edit(at, 1, (replace(opt, amount=amount),))


def _without(plan: Plan, states: list[UOp]) -> Iterator[Edit]:
    """The plan without one of its Opts, the last ones first. Subtotals are there for the sake of rounding."""
    kept = (Subtotals,) if work_and_items(states[0]) < SHARED_WORK else (Subtotals, Thread)
    for at in reversed(range(len(plan.opts))):
        if not isinstance(plan.opts[at], kept):
            yield Edit(at, 1)


def _other_ranges(plan: Plan, states: list[UOp]) -> Iterator[Edit]:
    """Lanes and tiles along other ranges of the same kind of loop."""
    for at, opt in enumerate(plan.opts):
        if not isinstance(opt, Splitting):
            continue
        state = states[at]
        target = range_named(state, opt.range)
        for r in _loops(state):
            if r is not target and is_reduce_range(state, r) == is_reduce_range(state, target):
                yield Edit(at, 1, (replace(opt, range=r.identity),))


def _additions(plan: Plan, machine: Machine, states: list[UOp]) -> Iterator[Edit]:
    """The plan with one more Opt."""
    at = len(plan.opts)
    while at and isinstance(plan.opts[at - 1], LAST):
        at -= 1
    state = states[at]
    rows = (Stage(number, (row.loop.identity,)) for number, row in numbered_rows(state))
    order = (Swap(r.identity) for r in _loops(state))
    for opt in in_turn(_added_splits(state, machine), _added_stages(state), order, rows):
        yield Edit(at, 0, (opt,))
    if machine.threads > 1:
        taken = sum(isinstance(opt, Thread) for opt in plan.opts[-1:])
        given = len(plan.opts) - taken
        for r in _shared_loops(states[given]):
            yield Edit(given, taken, (Swap(r.identity), Thread(r.identity)))


def _added_splits(state: UOp, machine: Machine) -> Iterator[Opt]:
    lanes = Chooser(state, machine).lanes()
    for r in _loops(state):
        kinds = (Unroll, Accumulators) if is_reduce_range(state, r) else (Upcast,)
        if r.extent >= lanes > 1:
            yield Vector(r.identity, lanes)
        for kind in kinds:
            yield from (kind(r.identity, n) for n in AMOUNTS[kind] if n < r.extent)
            if r.extent <= MOST[kind]:
                yield kind(r.identity, r.extent)
        yield from (Split(r.identity, n) for n in AMOUNTS[Split] if n < r.extent)


def _added_stages(state: UOp) -> Iterator[Opt]:
    """An operand staged over what one tile reads of it, and over all that is reduced."""
    for number, operand in enumerate(operands(state)):
        inside = [r for r in operand.ranges if not is_block_range(r)
                  and (is_reduce_range(state, r) or r.kind is not RangeKind.LOOP)]
        for over in (inside, [r for r in inside if r.kind is not RangeKind.LOOP]):
            if over:
                yield Stage(number, over=tuple(r.identity for r in sorted(over, key=panel_order)))


def _loops(state: UOp) -> list[UOp]:
    """The ranges that an Opt can still change."""
    return list(filter(is_plain, all_ranges(state)))


def _shared_loops(state: UOp) -> list[UOp]:
    """The loops that threads may share."""
    return [r for r in _loops(state) if is_shared(state, r)]


# --- applying an edit ---------------------------------------------------------------------------------------


def edited(states: list[UOp], plan: Plan, edit: Edit) -> Plan | None:
    """`plan` with an edit; None where the edit, or what follows it, does not apply. `states` are the nests
    before, between and after its Opts."""
    try:
        return Plan(tuple(_edited_opts(states, plan, edit)))
    except ValueError:
        return None


def _edited_opts(states: list[UOp], plan: Plan, edit: Edit) -> list[Opt]:
    opts, nest = list(plan.opts[:edit.at]), states[edit.at]
    names: dict[int, int] = {}
    """what the Opts that follow must call ranges"""
    behind = edit.at + edit.taken
    replaced = itertools.zip_longest(range(edit.at, behind), edit.given)
    for number, new in itertools.chain(replaced, ((n, None) for n in range(behind, len(plan.opts)))):
        old = None if number is None else plan.opts[number].renamed(lambda r: names.get(r, r))
        if old is not None and number >= behind:
            new = _fitting(old, nest)
        changed = nest if new is None else apply_opt(nest, new)
        made = _left_whole(new) if old is None else _made(states[number], states[number + 1])
        made_now = _left_whole(old) if new is None else _made(nest, changed)
        names.update((r, made_now.get(role, GONE)) for role, r in made.items())
        if isinstance(old, Splitting) and isinstance(new, Splitting) and old.range != new.range:
            names[new.range] = old.range
        opts += [] if new is None else [new]
        nest = changed
    return opts


def _made(before: UOp, after: UOp) -> dict[int, int]:
    """The ranges that an Opt made, by the order in which it does."""
    first = fresh_identity(before)
    return {r - first: r for r in _identities(after) if r >= first}


def _left_whole(opt: Opt | None) -> dict[int, int]:
    """What there is without an Opt in the place of ranges that it makes: of the loop around, which a split
    makes second, and of what is merged."""
    if isinstance(opt, Splitting):
        return {1: opt.range}
    return {0: opt.inner} if isinstance(opt, Merge) else {}


def _identities(nest: UOp) -> set[int]:
    return {r.identity for r in all_ranges(nest)}


def _fitting(opt: Opt, nest: UOp) -> Opt | None:
    """`opt` as the edited nest can have it; None where its range is not there."""
    there = _identities(nest)
    if isinstance(opt, Stage):
        over = tuple(r for r in opt.over if r in there)
        return replace(opt, over=over) if over else None
    if isinstance(opt, Thread) and opt.range not in there:
        return next((Thread(r.identity) for r in _shared_loops(nest)), None)
    return opt if set(opt.ranges()) <= there else None
