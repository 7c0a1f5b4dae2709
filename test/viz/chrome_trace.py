"""What Chrome's trace format asks of a file of the JSON array kind, checked strictly."""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

FIELDS = {
    "X": {"name": str, "cat": str, "ph": str, "ts": float, "dur": float, "pid": int, "tid": int,
          "args": dict},
    "i": {"name": str, "cat": str, "ph": str, "ts": float, "pid": int, "tid": int, "s": str, "args": dict},
    "C": {"name": str, "ph": str, "ts": float, "pid": int, "args": dict},
    "M": {"name": str, "ph": str, "pid": int, "args": dict},
}
"""by phase: complete events, instants, counters, metadata"""
METADATA = {"process_name": "name", "thread_name": "name", "process_labels": "labels"}


def refuse(text: str) -> Any:
    """NaN and Infinity are no JSON."""
    raise AssertionError(f"{text} in a trace")


def checked_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace. Raises AssertionError where one is not as the format says."""
    events = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert isinstance(events, list)
    named: set[tuple[int, int]] = set()
    open_until: dict[tuple[int, int], list[float]] = {}
    for event in events:
        fields = FIELDS[event["ph"]]
        optional = {"tid"} if event["ph"] == "M" else set()
        assert set(event) - optional == set(fields), event
        for name, kind in fields.items():
            value = event[name]
            kinds = (int, float) if kind is float else kind
            assert isinstance(value, kinds) and value is not True, (name, event)
            assert kind is not float or (math.isfinite(value) and value >= 0), (name, event)
        if event["ph"] == "M":
            assert isinstance(event["args"][METADATA[event["name"]]], str), event
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
        elif event["ph"] == "C":
            assert event["args"], event
            assert all(isinstance(v, (int, float)) for v in event["args"].values()), event
        else:
            assert event["s"] in ("g", "p", "t") if event["ph"] == "i" else True, event
            assert (event["pid"], event["tid"]) in named, f"a track without a name: {event}"
    check_nesting([event for event in events if event["ph"] == "X"], open_until)
    return events


def check_nesting(events: list[dict[str, Any]], open_until: dict[tuple[int, int], list[float]]) -> None:
    """Complete events of a track lie beside each other or in each other; times have three digits."""
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        stack = open_until.setdefault((event["pid"], event["tid"]), [])
        while stack and stack[-1] <= event["ts"] + 0.002:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1] + 0.002, f"overlaps another one of its track: {event}"
        stack.append(end)
