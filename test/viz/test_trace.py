"""Traces: Chrome's format, strictly, and what Perfetto's own trace processor reads in them."""
from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chrome_trace import checked_trace

import tinygrad
from tinygrad import Tensor, TinyJit
from tinygrad.helpers import profile_marker
from tinygrad.viz.session import Profile

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture
def profiled(tmp_path: Path) -> tuple[Profile, Path]:
    """A profile of replays, single kernels, marks and copies, and its trace."""

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x @ x).relu() + 1).realize()

    x = Tensor(np.ones((16, 16), np.float32)).realize()
    with tinygrad.profile() as p:
        profile_marker("begin 100%", "green")
        for _ in range(5):
            step(x)
        profile_marker("replayed")
        for _ in range(3):
            (x - 2).realize()
    path = tmp_path / "trace.json"
    p.save(path)
    return p, path


def test_a_trace_is_as_chromes_format_says_and_has_the_totals_of_the_tables(profiled: tuple[Profile, Path]
                                                                            ) -> None:
    p, path = profiled
    events = checked_trace(path)
    rows = {row.name: row for row in p.rows()}
    for name, row in rows.items():
        durations = [e["dur"] for e in events if e["ph"] == "X" and e["name"] == name]
        assert len(durations) == row.count
        assert sum(durations) * 1e-6 == pytest.approx(row.seconds, rel=0.02, abs=1e-7)
    assert sorted(row.count for row in rows.values()) == [3, 5]


def test_marks_are_moments_in_their_order(profiled: tuple[Profile, Path]) -> None:
    p, path = profiled
    events = checked_trace(path)
    first, second = (e for e in events if e["ph"] == "i")
    assert (first["name"], first["args"]["color"]) == ("begin 100%", "green")
    assert (second["name"], second["args"]["color"]) == ("replayed", "gray")
    assert "test_trace.py" in first["args"]["lines"][0]
    starts = [e["ts"] for e in events if e["ph"] == "X" and e["cat"] == "kernel"]
    assert sum(first["ts"] <= s <= second["ts"] for s in starts) == 5
    assert sum(s > second["ts"] for s in starts) == 3
    assert all(row.name != "mark" for row in p.rows("stage"))


def test_a_malformed_trace_is_refused(profiled: tuple[Profile, Path], tmp_path: Path) -> None:
    events = json.loads(profiled[1].read_text(encoding="utf-8"))
    at = next(i for i, e in enumerate(events) if e["ph"] == "X")
    spoilt: list[dict[str, Any]] = [{"dur": -1.0}, {"ts": float("nan")}, {"ts": "5"}, {"tid": 999},
                                    {"more": 1}]
    for change in spoilt:
        broken = [*events[:at], {**events[at], **change}, *events[at + 1:]]
        path = tmp_path / "broken.json"
        path.write_text(json.dumps(broken), encoding="utf-8")
        with pytest.raises(AssertionError):
            checked_trace(path)


def test_perfettos_own_trace_processor_has_the_same_totals(profiled: tuple[Profile, Path]) -> None:
    p, path = profiled
    events = checked_trace(path)
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    pytest.importorskip("perfetto.trace_processor.protos", reason="pip install perfetto")
    from perfetto_reader import TraceProcessor

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        processor = TraceProcessor(browser, path)
        try:
            found = processor.query("select name, count(*) as n, sum(dur) as total from slice "
                                    "where category = 'kernel' group by name")
            marks = processor.query("select name, dur from slice where category = 'mark' order by ts")
            problems = processor.query("select name, value from stats "
                                       "where severity in ('error', 'data_loss') and value != 0")
            peak = processor.query("select max(value) as most from counter")[0].most
            tracks = processor.query("select distinct thread.name "
                                     "from thread join thread_track using (utid)")
        finally:
            processor.close()
            browser.close()
    assert problems == []
    rows = {row.name: row for row in p.rows()}
    assert {row.name: row.n for row in found} == {name: row.count for name, row in rows.items()}
    for row in found:
        assert row.total * 1e-9 == pytest.approx(rows[row.name].seconds, rel=0.02, abs=1e-7)
    assert [(row.name, row.dur) for row in marks] == [("begin 100%", 0), ("replayed", 0)]
    assert peak == max(e["args"]["bytes"] for e in events if e["ph"] == "C")
    assert {"host", "CPU"} <= {row.name for row in tracks}
