"""Plans that a search found, kept on disk (`store.py`) by the kernel that they are for.

With a plan it is kept how wide and how long the search was that says so. What is read is checked to be a
plan, and whoever applies it finds out whether it fits the kernel.
"""
from __future__ import annotations

from typing import NamedTuple

from tinygrad.codegen.opt.plan import Plan
from tinygrad.graph.records import decode, encode
from tinygrad.store import store_of

MAX_BYTES = 1 << 24
"""Bytes that plans may take on disk: about half a kilobyte each."""


class FoundPlan(NamedTuple):
    """A plan, and the search that found it."""

    width: int
    seconds: float
    plan: Plan


def kept_plan(key: str, width: int, seconds: float) -> Plan | None:
    """The plan of the kernel `key` from a search at least so wide and long; None where there is none."""
    text = store_of("plans", MAX_BYTES).get(key)
    try:
        found = None if text is None else decode(FoundPlan, text)
    except ValueError:
        return None
    return found.plan if found is not None and found.width >= width and found.seconds >= seconds else None


def keep_plan(key: str, width: int, seconds: float, plan: Plan) -> None:
    """Keep what a search so wide and long found for the kernel `key`."""
    store_of("plans", MAX_BYTES).put(key, encode(FoundPlan, FoundPlan(width, seconds, plan)))
