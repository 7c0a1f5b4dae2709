"""Plans that a search found, kept on disk: one SQLite file in the user's cache folder.

A row says which plan was fastest for a kernel, and how wide and how long the search was that says so. Plans
are kept as JSON; what is read is checked to be a plan, and whoever applies it finds out whether it fits the
kernel. What goes wrong with the disk costs searching again, and nothing else.
"""
from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinygrad.codegen.opt.plan import Opt, OptKind, Plan

MAX_PLANS = 1 << 16
"""Plans kept; the oldest go first."""
WAIT_SECONDS = 5.0
"""How long to wait for another process that writes."""
SCHEMA = "CREATE TABLE IF NOT EXISTS plans (kernel TEXT PRIMARY KEY, width INTEGER, seconds REAL, plan TEXT)"


def to_json(plan: Plan) -> str:
    """A plan as text: a list of [kind, range, amount, over, tiles]."""
    return json.dumps([[o.kind.name, o.range, o.amount, list(o.over), list(o.tiles)] for o in plan.opts])


def from_json(text: str) -> Plan:
    """The plan that a text says. Raises ValueError for a text that says none."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError(f"not a list of Opts: {text[:80]}")
    return Plan(tuple(map(_opt_of, found)))


def _opt_of(item: Any) -> Opt:
    match item:
        case [str(name), int(identity), int(amount), list(over), list(tiles)]:
            if name in OptKind.__members__ and all(isinstance(x, int) for x in over + tiles):
                return Opt(OptKind[name], identity, amount, tuple(over), tuple(tiles))
    raise ValueError(f"not an Opt: {str(item)[:80]}")


class PlanCache:
    """Plans by key, in the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str, width: int, seconds: float) -> Plan | None:
        """The plan of the kernel `key` from a search at least so wide and long; None where there is none."""
        with contextlib.suppress(sqlite3.Error, OSError, ValueError):
            if not self.path.exists():
                return None
            with self.opened() as database:
                row = database.execute(
                    "SELECT plan FROM plans WHERE kernel = ? AND width >= ? AND seconds >= ?",
                    (key, width, seconds)).fetchone()
            return None if row is None else from_json(str(row[0]))
        return None

    def put(self, key: str, width: int, seconds: float, plan: Plan) -> None:
        """Keep what a search so wide and long found for the kernel `key`."""
        with contextlib.suppress(sqlite3.Error, OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.opened() as database, database:
                database.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?)",
                                 (key, width, seconds, to_json(plan)))
                database.execute("DELETE FROM plans WHERE rowid <= (SELECT max(rowid) FROM plans) - ?",
                                 (MAX_PLANS,))

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The database, with its table there."""
        database = sqlite3.connect(self.path, timeout=WAIT_SECONDS)
        try:
            database.execute(SCHEMA)
            yield database
        finally:
            database.close()
