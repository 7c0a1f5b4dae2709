"""VIZ=1, PROFILE=1, tinygrad.profile(), `python -m tinygrad.viz`: what they write, and what may go wrong."""
from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chrome_trace import checked_trace

import tinygrad
from tinygrad import Tensor
from tinygrad.viz import session
from tinygrad.viz.__main__ import Server, main
from tinygrad.viz.page import MOST_PAGE, bounded_page, recording_in, template
from tinygrad.viz.recorder import Recorder
from tinygrad.viz.recording import Exporter
from tinygrad.viz.session import Session
from tinygrad.viz.trace import TraceWriter

pytestmark = pytest.mark.usefixtures("on_cpu")

PROGRAM = """
import numpy as np
from tinygrad import Tensor
x = Tensor(np.ones((16, 16), np.float32))
for _ in range(3):
    (x @ x + 1).realize()
"""


def run(program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program in another process, under these settings."""
    environment = {**os.environ, "CHECK": "0", "DEV": "CPU", **settings}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True,
                          timeout=120)


def path_in(said: str, what: str) -> Path:
    found = re.search(rf"{what}: (\S+)", said)
    assert found is not None, said
    return Path(found[1])


def rows_in_trace(path: Path) -> list[dict[str, Any]]:
    return [event for event in checked_trace(path) if event["ph"] == "X"]


def test_a_page_and_a_trace_are_written_when_the_program_ends(tmp_path: Path) -> None:
    ended = run(PROGRAM, VIZ="1", PROFILE="1", VIZ_FOLDER=str(tmp_path))
    assert ended.returncode == 0 and ended.stdout == ""
    data = recording_in(path_in(ended.stderr, "recording").read_text(encoding="utf-8"))
    kernels = [k for k in data["kernels"] if k["count"]]
    assert [k["count"] for k in kernels] == [3]
    events = [e for e in rows_in_trace(path_in(ended.stderr, "trace")) if e["cat"] == "kernel"]
    assert [e["name"] for e in events] == [kernels[0]["name"]] * 3
    assert sum(e["dur"] for e in events) * 1e-6 == pytest.approx(kernels[0]["seconds"], rel=0.01, abs=1e-8)
    assert kernels[0]["name"] in ended.stderr and "compile" in ended.stderr  # the tables


def test_what_a_program_did_before_it_failed_is_written(tmp_path: Path) -> None:
    ended = run(PROGRAM + "raise RuntimeError('broken')", VIZ="1", VIZ_FOLDER=str(tmp_path))
    assert ended.returncode == 1 and "broken" in ended.stderr
    data = recording_in(path_in(ended.stderr, "recording").read_text(encoding="utf-8"))
    assert sum(k["count"] for k in data["kernels"]) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["killed", "terminal closed"])
def test_a_program_that_is_terminated_leaves_its_recording(number: signal.Signals, tmp_path: Path) -> None:
    program = PROGRAM + f"import os\nos.kill(os.getpid(), {int(number)})"
    ended = run(program, VIZ="1", VIZ_FOLDER=str(tmp_path))
    assert ended.returncode == -number
    assert path_in(ended.stderr, "recording").is_file()


def test_a_signal_may_come_while_memory_is_counted() -> None:
    """Then the thread that writes the recording is the one that counts."""
    recorder = Recorder()

    def counting() -> None:
        with recorder.memory.lock:
            recorder.memory.change(0, "CPU", 4)
            recorder.memory_change("CPU", 4).taken(1.0)
            recorder.settle()

    thread = threading.Thread(target=counting, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and recorder.memory.used == 4


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_what_it_wrote_before(tmp_path: Path) -> None:
    program = PROGRAM + "import os, signal, time\ntime.sleep(12)\nos.kill(os.getpid(), signal.SIGKILL)"
    ended = run(program, VIZ="1", PROFILE="1", VIZ_FOLDER=str(tmp_path))
    assert ended.returncode == -signal.SIGKILL
    (page,) = tmp_path.glob("*.html")
    assert sum(k["count"] for k in recording_in(page.read_text(encoding="utf-8"))["kernels"]) == 3
    (trace,) = tmp_path.glob("*.trace.json")
    whole = trace.read_text(encoding="utf-8").rstrip().rstrip(",") + "]"
    assert sum(event.get("cat") == "kernel" for event in json.loads(whole)) == 3


def test_a_folder_that_cannot_be_written_is_said_and_another_one_used(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    ended = run(PROGRAM, VIZ="1", VIZ_FOLDER=str(blocked), TMPDIR=str(tmp_path))
    assert ended.returncode == 0
    assert f"cannot write {blocked}" in ended.stderr
    assert path_in(ended.stderr, "recording").parent == tmp_path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room is Linux's /dev/full")
def test_a_trace_that_does_not_fit_on_the_disk_is_said_and_the_page_written(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    session = Session(page=True, trace=True)
    session.page, session.trace = tmp_path / "p.html", TraceWriter(session.recorder, path)
    session.trace.file.close()
    session.trace.file = open("/dev/full", "w")  # noqa: SIM115  # a disk without room
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinygrad.viz.session.say", said.append)
        session.end()
    assert f"cannot write {path}: No space left on device; the trace ends there" in said
    assert said[-1] == f"recording: {session.page}" and session.page.is_file()


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                      ) -> None:
    (tmp_path / "file").write_text("no folder")
    said: list[str] = []
    monkeypatch.setattr("tinygrad.viz.session.say", said.append)
    monkeypatch.setenv("VIZ_FOLDER", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    session = Session(page=True, trace=False)
    for _ in range(3):
        assert session.write_page() == tmp_path / session.page.name
    assert len(said) == 1 and said[0].startswith(f"cannot write {session.page}: ")


def test_a_page_that_would_be_too_large_leaves_out_the_cheapest_kernels_and_says_so() -> None:
    recorder = Recorder(keeps_stages=True)
    tinygrad.observer.active = recorder
    try:
        for size in range(3, 9):  # products that nothing else compiled in this process
            a, b = np.ones((size, 11 * size), np.float32), np.ones((11 * size, size), np.float32)
            (Tensor(a) @ Tensor(b)).realize()
    finally:
        tinygrad.observer.active = None
    exporter = Exporter(recorder)
    whole = len(bounded_page(exporter, MOST_PAGE))
    most = len(template()) + (whole - len(template())) * 9 // 10
    page = bounded_page(exporter, most)
    assert len(page) <= most
    found = recording_in(page)
    ran = sorted((k for k in found["kernels"] if k["count"]), key=lambda k: -k["seconds"])
    assert "nodes" in ran[0] and "nodes" not in ran[-1]
    assert any("kernels" in note and "left" not in note for note in found["notes"])
    assert [k["name"] for k in found["kernels"]] == [k.name for k in recorder.kernels]


def test_machine_code_that_there_was_no_time_for_is_in_a_later_page() -> None:
    recorder = Recorder(keeps_stages=True)
    tinygrad.observer.active = recorder
    try:
        (Tensor(np.ones((7, 21), np.float32)) * 5).sum(1).realize()
    finally:
        tinygrad.observer.active = None
    exporter = Exporter(recorder)
    exporter.seconds = 0.0
    (before,) = [k for k in exporter.export()["kernels"] if k["count"]]
    exporter.seconds = 8.0
    (after,) = [k for k in exporter.export()["kernels"] if k["count"]]
    assert "assembly" not in before and after["assembly"] and exporter.seconds < 8.0
    assert before["source"] == after["source"] and "alternatives" in after


# --- tinygrad.profile() -------------------------------------------------------------------------------------


def test_a_profile_has_what_ran_in_its_block(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x = Tensor(np.ones((32, 8), np.float32)).realize()
    (x + 1).realize()
    with tinygrad.profile() as p:
        for _ in range(4):
            (x * 2).realize()
        x.sum(1).realize()
    (x * 2).realize()
    rows = {row.name: row for row in p.rows()}
    assert {name: row.count for name, row in rows.items()} == {"e_32_8": 4, "r_32_8": 1}
    assert rows["r_32_8"].bytes == 32 * 8 * 4 + 32 * 4
    by_line = p.rows("line")
    assert sum(row.count for row in by_line) == 5 and all("test_session.py" in row.name for row in by_line)
    stages = {row.name: row.seconds for row in p.rows("stage")}
    inner = {"schedule", "rewrite", "plan", "render", "load"}
    assert {"realize", "schedule"} <= set(stages) <= {*inner, "realize", "compile"}
    assert sum(seconds for name, seconds in stages.items() if name in inner) < stages["realize"]
    p.table("line", most=1)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:3] == ["line", "runs", "ms"] and printed[-1].startswith("... 1 more")
    p.save(tmp_path / "trace.json")
    saved = [e for e in rows_in_trace(tmp_path / "trace.json") if e["cat"] == "kernel"]
    assert len(saved) == 5
    with pytest.raises(ValueError, match="a table by 'colour'; there are kernel, line, module, stage"):
        p.rows("colour")


def test_a_profile_within_another_counts_its_own_part() -> None:
    x = Tensor(np.ones((24, 8), np.float32)).realize()
    with tinygrad.profile() as outer:
        (x * 2).realize()
        with tinygrad.profile() as inner:
            (x * 2).realize()
        x.sum(1).realize()
    assert {row.name: row.count for row in inner.rows()} == {"e_24_8": 1}
    assert {row.name: row.count for row in outer.rows()} == {"e_24_8": 2, "r_24_8": 1}
    assert tinygrad.observer.active is None


def test_profiles_may_end_in_another_order_than_they_began() -> None:
    """As those of threads and of generators do."""
    x = Tensor(np.ones((24, 8), np.float32)).realize()
    first, second = tinygrad.profile(), tinygrad.profile()
    one = first.__enter__()
    (x * 2).realize()
    two = second.__enter__()
    (x * 2).realize()
    first.__exit__(None, None, None)
    x.sum(1).realize()
    second.__exit__(None, None, None)
    (x * 2).realize()
    assert {row.name: row.count for row in one.rows()} == {"e_24_8": 2}
    assert {row.name: row.count for row in two.rows()} == {"e_24_8": 1, "r_24_8": 1}
    assert tinygrad.observer.active is None


def test_profiles_of_several_threads_miss_nothing_and_leave_nothing() -> None:
    counted, started = [], threading.Barrier(3)

    def profiled(factor: int) -> None:
        x = Tensor(np.ones(8, np.float32)).realize()
        started.wait()
        for _ in range(5):
            with tinygrad.profile() as p:
                for _ in range(10):
                    (x * factor).realize()
            counted.append(sum(row.count for row in p.rows()))

    threads = [threading.Thread(target=profiled, args=(2 + i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 15 and min(counted) >= 10
    assert tinygrad.observer.active is None


def test_a_profile_that_stays_open_counts_what_it_took_note_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the memory of a block that lasts would grow with what runs in it."""
    monkeypatch.setattr(session, "LOOK", 0.01)
    x = Tensor(np.ones(8, np.float32)).realize()
    with tinygrad.profile() as p:
        for _ in range(3):
            (x * 3).realize()
        until = time.monotonic() + 20
        while (any(kind.runs for kind in p.recorder.all_at_once) or not p.recorder.log.count) \
                and time.monotonic() < until:
            time.sleep(0.01)
        assert p.recorder.log.count >= 3
    assert sum(row.count for row in p.rows()) == 3


def test_an_empty_profile_stays_empty(tmp_path: Path) -> None:
    ended = run("""
import tinygrad
with tinygrad.profile() as p:
    pass
(tinygrad.Tensor([1.0, 2.0]) + 1).realize()
print(p.rows(), p.rows("stage"))
p.table()
""", VIZ="1", VIZ_FOLDER=str(tmp_path))
    assert ended.stdout.splitlines() == ["[] []", "no kernel ran"], ended.stderr


def test_tables_of_a_program_that_ran_nothing_are_one_sentence(tmp_path: Path) -> None:
    ended = run("import tinygrad", PROFILE="1", VIZ_FOLDER=str(tmp_path))
    assert ended.stderr.splitlines()[:-1] == ["no kernel ran"]


def test_a_trace_is_bounded_and_says_what_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder()
    writer = TraceWriter(recorder, tmp_path / "t.json", most_bytes=4000)
    tinygrad.observer.active = recorder
    try:
        x = Tensor(np.ones(4, np.float32)).realize()
        for _ in range(200):
            (x + 1).realize()
    finally:
        tinygrad.observer.active = None
    recorder.settle()
    recorder.memory.last_points.clear()
    writer.follow()
    writer.close(recorder.log.count)
    events = checked_trace(tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 6000
    assert writer.left_out > 100
    assert events[-1]["args"]["labels"] == f"{writer.left_out} events left out"


# --- python -m tinygrad.viz ---------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path) -> Path:
    recorder = Recorder(keeps_stages=True)
    path = tmp_path / "one page.html"
    path.write_text(bounded_page(Exporter(recorder)), encoding="utf-8")
    return path


def answer(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as response:
        return str(response.read().decode())


def test_recordings_are_served_and_nothing_else(page: Path) -> None:
    (page.parent / "secret.txt").write_text("secret")
    server = Server(0, [page])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        assert server.address.startswith("http://127.0.0.1:")
        assert 'href="/one%20page.html"' in answer(server.address)
        assert answer(server.address + "one%20page.html") == page.read_text(encoding="utf-8")
        before = answer(server.address + "one%20page.html?changed")
        time.sleep(0.02)
        os.utime(page)
        assert answer(server.address + "one%20page.html?changed") != before
        for name in ("secret.txt", "../secret.txt", "%2e%2e/secret.txt", "etc/passwd"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                answer(server.address + name)
            refused.value.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("host, status", [("127.0.0.1:80", 200), ("localhost", 200), ("[::1]:8742", 200),
                                          ("a.site.example:8742", 403), ("127.0.0.1.example", 403)])
def test_a_site_whose_name_leads_here_reads_nothing(host: str, status: int, page: Path) -> None:
    server = Server(0, [page])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request("GET", "/", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()
    finally:
        server.shutdown()
        server.server_close()


def test_the_size_of_a_page_can_be_asked_for(page: Path) -> None:
    server = Server(0, [page])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        request = urllib.request.Request(server.address + "one%20page.html", method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as response:
            assert int(response.headers["Content-Length"]) == page.stat().st_size
            assert response.read() == b""
    finally:
        server.shutdown()
        server.server_close()


def test_a_port_in_use_is_said(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main([str(page), "--port", str(port)]) == 1
    assert f"cannot listen at port {port}: " in capsys.readouterr().err
    assert main([str(page), "--port", "99999"]) == 1
    assert "cannot listen at port 99999: ports are 0 to 65535" in capsys.readouterr().err


def test_json_is_printed_or_what_is_missing_said(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1
    assert main(["--json", str(tmp_path / "none.html")]) == 1
    assert "there is no file" in capsys.readouterr().err
    other = tmp_path / "other.html"
    other.write_text("<html></html>")
    assert main(["--json", str(other)]) == 1
    assert "not a page that VIZ=1 wrote" in capsys.readouterr().err
    monkeypatch.setenv("VIZ_FOLDER", str(tmp_path / "empty"))
    assert main(["--json"]) == 1
    assert "make one: VIZ=1 python3 script.py" in capsys.readouterr().err
