"""Accesses side by side as one: a GPU moves up to 16 bytes at once.

In: a program of single values (`scalar.py`). Out: the same program, in which loads between two barriers,
stores or ends of loops that read neighbouring items of one memory under one condition are one wide load,
where its start is known to be a multiple of its length; and stores likewise. What a lane of a matrix unit
needs is spread over many loads by the program, but lies in few places.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp

Widths = Callable[[DType], int]
"""The most items of a dtype that one access moves, a power of two."""
_BOUNDARIES = frozenset({Ops.RANGE, Ops.END, Ops.BARRIER})


@frozen
class _Run:
    """Accesses to neighbouring items, the lowest first, and the places of the first and last of them in the
    program."""

    members: tuple[UOp, ...]
    first: int
    last: int


def wide_accesses(program: list[UOp], widths: Widths) -> list[UOp]:
    """The program with neighbouring accesses joined."""
    runs = _runs_of(program, widths)
    if not runs:
        return program
    loads = {(run.first, run.members[0].op): run for run in runs if run.members[0].op is Ops.LOAD}
    stores = {run.last: run for run in runs if run.members[0].op is Ops.STORE}
    joined = _places_joined(runs, program)
    done: dict[UOp, UOp] = {}
    out: list[UOp] = []
    for place, node in enumerate(program):
        if (place, Ops.LOAD) in loads:
            _join_loads(loads[place, Ops.LOAD], program[place], done, out)
        elif place in stores:
            _join_stores(stores[place], node, done, out)
        elif place not in joined:
            new = _over(node, done)
            whole = whole_vector(new.src) if node.op is Ops.VECTORIZE and len(node.src) > 1 else None
            done[node] = whole or new
            if whole is None:
                out.append(new)
    return out


# --- finding them -------------------------------------------------------------------------------------------


def _runs_of(program: list[UOp], widths: Widths) -> list[_Run]:
    """Runs of accesses; each access is in one at most."""
    groups: dict[tuple[object, ...], dict[int, tuple[int, UOp]]] = defaultdict(dict)
    version: dict[UOp, int] = defaultdict(int)
    writing: dict[UOp, object] = {}
    section = 0
    for place, node in enumerate(program):
        if node.op in _BOUNDARIES:
            section += 1
            writing.clear()
        if node.op not in (Ops.LOAD, Ops.STORE) or node.src[0].op is not Ops.INDEX:
            continue
        memory, offset, *mask = node.src[0].src
        terms, constant = linear_terms(offset)
        where = (memory, frozenset(terms.items()), *mask)
        if node.op is Ops.LOAD and writing.pop(memory, None) is not None:
            version[memory] += 1
        if node.op is Ops.STORE and writing.get(memory) != where:
            version[memory] += 1
            writing[memory] = where
        value = node if node.op is Ops.LOAD else node.src[1]
        if value.dtype.count == 1 and not value.dtype.is_bool:
            key = (node.op, section, version[memory], *where)
            if node.op is Ops.STORE and constant in groups[key]:
                version[memory] += 1  # written twice: in this order
                key = (node.op, section, version[memory], *where)
            groups[key].setdefault(constant, (place, node))
    return [run for group in groups.values() for run in _aligned_runs(group, widths)]


def _aligned_runs(group: dict[int, tuple[int, UOp]], widths: Widths) -> list[_Run]:
    runs = []
    left = dict(sorted(group.items()))
    for constant in list(left):
        if constant not in left:
            continue
        node = left[constant][1]
        width = widths(node.src[0].dtype.scalar)
        while width > 1 and not (all(constant + i in left for i in range(width))
                                 and is_multiple(node.offset, width)):
            width //= 2
        if width > 1:
            found = [left.pop(constant + i) for i in range(width)]
            places = [place for place, _ in found]
            runs.append(_Run(tuple(member for _, member in found), min(places), max(places)))
    return runs


def is_multiple(offset: UOp, number: int) -> bool:
    """Whether an index is known to be a multiple of a number."""
    remainder = offset % number
    if remainder.op is Ops.CONST:
        return bool(remainder.arg == 0)
    terms, constant = linear_terms(offset)
    return constant % number == 0 and all(
        factor % number == 0 or _chooses_multiples(atom, number) for atom, factor in terms.items())


def _chooses_multiples(choice: UOp, number: int) -> bool:
    """Whether a WHERE, as the smaller of two numbers, is one of multiples."""
    return choice.op is Ops.WHERE and all(is_multiple(s, number) for s in choice.src[1:])


# --- joining them -------------------------------------------------------------------------------------------


def _places_joined(runs: list[_Run], program: list[UOp]) -> set[int]:
    """The places in the program of everything that becomes a part of something wider."""
    members = [(run.first, run.last, set(run.members)) for run in runs]
    return {place for first, last, inside in members for place in range(first, last + 1)
            if program[place] in inside}


def _over(node: UOp, done: dict[UOp, UOp]) -> UOp:
    src = tuple(done.get(s, s) for s in node.src)
    return node if src == node.src else node.replace(src=src)


def _join_loads(run: _Run, first: UOp, done: dict[UOp, UOp], out: list[UOp]) -> None:
    """One load where the first of them was."""
    place = _over(first.src[0], done)
    behind = run.members.index(first)
    if behind:
        back = UOp.const(-behind, dtypes.index)
        start = UOp.new(Ops.ADD, dtypes.index, (place.src[1], back))
        place = place.replace(src=(place.src[0], start, *place.src[2:]))
        out += [back, start, place]
    dtype = first.dtype.vec(len(run.members))
    wide = UOp.new(Ops.LOAD, dtype, (place,), first.arg)
    out.append(wide)
    for lane, member in enumerate(run.members):
        done[member] = UOp.new(Ops.EXTRACT, member.dtype, (wide,), lane)
        out.append(done[member])


def _join_stores(run: _Run, last: UOp, done: dict[UOp, UOp], out: list[UOp]) -> None:
    """One store where the last of them was."""
    place = _over(run.members[0].src[0], done)
    values = tuple(done.get(m.src[1], m.src[1]) for m in run.members)
    value = whole_vector(values)
    if value is None:
        value = UOp.new(Ops.VECTORIZE, values[0].dtype.vec(len(values)), values)
        out.append(value)
    out.append(UOp.new(Ops.STORE, value.dtype, (place, value), last.arg))


def whole_vector(values: tuple[UOp, ...]) -> UOp | None:
    """The vector whose lanes the values are, in their order."""
    whole = values[0].src[0] if values[0].op is Ops.EXTRACT else None
    if whole is None or whole.dtype.count != len(values):
        return None
    same = all(v.op is Ops.EXTRACT and v.src[0] is whole and v.arg == i for i, v in enumerate(values))
    return whole if same else None
