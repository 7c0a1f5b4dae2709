"""Plans that a search found, kept on disk (`store.py`) by the kernel that they are for.

With a plan it is kept how wide and how long the search was that says so. Plans are kept as JSON; what is read
is checked to be a plan, and whoever applies it finds out whether it fits the kernel.
"""
from __future__ import annotations

import json
from typing import Any

from tinygrad.codegen.opt.opts import opt_from
from tinygrad.codegen.opt.plan import Plan
from tinygrad.store import store_of

MAX_BYTES = 1 << 24
"""Bytes that plans may take on disk: about half a kilobyte each."""


def opts_of(plan: Plan) -> list[list[Any]]:
    """A plan as plain values: its Opts as `Opt.to_row` says them."""
    return [opt.to_row() for opt in plan.opts]


def plan_of(items: list[Any]) -> Plan:
    """The plan of what `opts_of` gave. Raises ValueError for what is none."""
    return Plan(tuple(map(opt_from, items)))


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
