"""Plans that a search found, kept on disk (`store.py`) by the kernel that they are for.

With a plan it is kept how wide and how long the search was that says so. Plans are kept as JSON; what is read
is checked to be a plan, and whoever applies it finds out whether it fits the kernel.
"""
from __future__ import annotations

import json
from typing import Any

from tinygrad.codegen.opt.plan import Opt, OptKind, Plan
from tinygrad.store import store_of

MAX_BYTES = 1 << 24
"""Bytes that plans may take on disk: about half a kilobyte each."""


def opts_of(plan: Plan) -> list[list[Any]]:
    """A plan as plain values: a list of [kind, range, amount, over, tiles]."""
    return [[o.kind.name, o.range, o.amount, list(o.over), list(o.tiles)] for o in plan.opts]


def plan_of(items: list[Any]) -> Plan:
    """The plan of what `opts_of` gave. Raises ValueError for what is none."""
    return Plan(tuple(map(_opt_of, items)))


def _opt_of(item: Any) -> Opt:
    match item:
        case [str(name), int(identity), int(amount), list(over), list(tiles)]:
            if name in OptKind.__members__ and all(isinstance(x, int) for x in over + tiles):
                return Opt(OptKind[name], identity, amount, tuple(over), tuple(tiles))
    raise ValueError(f"not an Opt: {str(item)[:80]}")


def kept_plan(key: str, width: int, seconds: float) -> Plan | None:
    """The plan of the kernel `key` from a search at least so wide and long; None where there is none."""
    text = store_of("plans", MAX_BYTES).get(key)
    try:
        match None if text is None else json.loads(text):
            case [int(wide), int() | float() as long, list(items)] if wide >= width and long >= seconds:
                return plan_of(items)
    except ValueError:
        return None
    return None


def keep_plan(key: str, width: int, seconds: float, plan: Plan) -> None:
    """Keep what a search so wide and long found for the kernel `key`."""
    store_of("plans", MAX_BYTES).put(key, json.dumps([width, seconds, opts_of(plan)]).encode())
