"""What a recording says, compared with what is known of the program: counts, lines, sizes, orders."""
from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import exported, here, line_of, ones, recorded

import tinygrad
from tinygrad import Context, Function, GlobalCounters, Tensor, TinyJit, nn, observer
from tinygrad.viz.lines import SKIPPED, UNKNOWN, USER, kind_of
from tinygrad.viz.page import html_of, recording_in
from tinygrad.viz.recorder import Recorder, mark
from tinygrad.viz.recording import Exporter

pytestmark = pytest.mark.usefixtures("on_cpu")


def test_the_observer_is_looked_at_once_for_what_is_told() -> None:
    """Another thread may end a recording between two looks, so `observer.active` is put in a variable."""
    package = Path(observer.__file__).parent
    twice = [path for path in package.rglob("*.py") if "observer.active." in path.read_text(encoding="utf-8")]
    assert twice == [] and "active.span" not in Path(observer.__file__).read_text(encoding="utf-8")


def test_a_kernel_is_for_the_line_that_asked_for_it() -> None:
    x = ones(13, 7).realize()
    with recorded() as recorder:
        y = (x * 3).sum(1); line = here()  # noqa: E702  # one line, to be compared
        y.realize()
    found = exported(recorder)
    (kernel,) = [k for k in found["kernels"] if k["count"]]
    assert line_of(found, kernel) == (Path(__file__).name, line)
    assert kernel["name"] == "r_13_7" and kernel["count"] == 1 and kernel["seconds"] > 0


def test_kernels_that_run_again_are_for_the_lines_of_all_their_nodes() -> None:
    """A result's own line tells a kernel's lines where no other node has one, and only there."""
    x = ones(5, 11).realize()
    with recorded() as recorder:
        for turn in range(6):
            if turn % 2:
                y = x * 3; one = here()  # noqa: E702
            else:
                y = x * 3; other = here()  # noqa: E702
            (y + 1).realize(); both = here()  # noqa: E702
            (x + 1).realize(); alone = here()  # noqa: E702
            del y  # an equal node of another line would be this one
    recorder.settle()
    runs = {}
    for number, site in enumerate(recorder.sites):
        if site.kind == "kernel":
            asked = frozenset(recorder.lines.all[line].frames[0].line for line in site.lines)
            runs[asked] = runs.get(asked, 0) + recorder.log.runs(number)
    assert runs == {frozenset((one, both)): 3, frozenset((other, both)): 3, frozenset((alone,)): 6}


def test_a_kernel_of_a_gradient_is_for_the_line_of_the_value() -> None:
    x = Tensor(np.ones((11, 5), np.float32), requires_grad=True)
    w = Tensor(np.ones((5, 3), np.float32), requires_grad=True)
    with recorded() as recorder:
        y = x @ w; line = here()  # noqa: E702
        y.square().sum().backward()
        assert w.grad is not None
        w.grad.realize()
    found = exported(recorder)
    lines = [found["lines"][k["lines"][0]] for k in found["kernels"] if k["count"]]
    assert any(each["gradient"] and each["frames"][0][1] == line for each in lines)


def test_the_gradients_of_a_convolution_are_for_its_line() -> None:
    """They are written with tensors, while the user's line calls `backward`."""
    x = Tensor(np.ones((2, 3, 8, 8), np.float32), requires_grad=True)
    layer = nn.Conv2d(3, 5, 3)
    with recorded() as recorder:
        y = layer(x).relu(); line = here()  # noqa: E702
        y.square().sum().backward()
        assert x.grad is not None and layer.weight.grad is not None
        Tensor.realize(x.grad, layer.weight.grad)
    found = exported(recorder)
    ran = [k for k in found["kernels"] if k["count"] and k["operations"] > 1000]
    assert len(ran) >= 3 and {line_of(found, kernel)[1] for kernel in ran} == {line}
    assert sum(found["lines"][k["lines"][0]]["gradient"] for k in ran) >= 2


def test_a_gradient_that_the_user_writes_is_for_their_own_lines() -> None:
    lines: list[int] = []

    class Doubled(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

        def backward(self, gradient: Tensor) -> Tensor:
            lines.append(here() + 1)
            return gradient @ ones(5, 6) @ ones(6, 5)

    x = Tensor(np.ones((7, 5), np.float32), requires_grad=True)
    with recorded() as recorder:
        Doubled.apply(x).sum().backward()
        assert x.grad is not None
        x.grad.realize()
    found = exported(recorder)
    assert {line_of(found, kernel)[1] for kernel in found["kernels"] if kernel["name"][0] == "r"} == {*lines}


def test_what_is_made_of_numbers_alone_is_for_its_line() -> None:
    """Initial weights, random numbers: no source of theirs is on a device."""
    with recorded() as recorder:
        weights = Tensor.uniform(9, 31); one = here()  # noqa: E702
        filled = Tensor.full((3, 29), 2.0).contiguous(); two = here()  # noqa: E702
        weights.realize()
        filled.realize()
        assert (Tensor(2.0) + 1).realize().item() == 3
    found = exported(recorder)
    lines = {k["name"]: line_of(found, k)[1] for k in found["kernels"] if k["count"] and k["name"] in
             ("e_9_31", "e_3_29")}
    assert lines == {"e_9_31": one, "e_3_29": two}


def test_equal_graphs_at_other_lines_are_for_those() -> None:
    x, y = (ones(17, 3).realize() for _ in range(2))
    (x * 5).realize()  # before anybody records
    with recorded() as recorder:
        first = (x * 5).realize(); one = here()  # noqa: E702
        second = (x * 5 * 1.5).sum(0).realize(); two = here()  # noqa: E702
        third = (y * 5 * 1.5).sum(0).realize(); three = here()  # noqa: E702
        for _ in range(2):
            first = (first * 5).realize(); four = here()  # noqa: E702
    found = exported(recorder)
    runs = {found["lines"][s["lines"][0]]["frames"][0][1]: s["count"] for s in found["sites"]
            if s["kind"] == "kernel"}
    assert runs == {one: 1, two: 1, three: 1, four: 2}
    assert second.shape == third.shape


class Inner:
    def __init__(self) -> None:
        self.weight = ones(4, 4)

    def __call__(self, x: Tensor) -> Tensor:
        return (x @ self.weight).contiguous()


class Outer:
    def __init__(self) -> None:
        self.layers = [Inner(), Inner()]

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_what_nobody_knows_the_line_of_costs_no_time() -> None:
    node = ones(4).uop
    for _ in range(80):  # as a tree it has 2 ** 80 nodes
        node = node + node
    mark(node, UNKNOWN)
    assert node.line == UNKNOWN
    mark(node, 3)
    assert node.line == node.src[0].line == 3


def test_the_programs_of_the_package_have_lines_of_their_own() -> None:
    code = compile("1 + 1", str(Path(tinygrad.__file__).parent / "llm" / "model.py"), "exec")
    assert kind_of(code) == USER
    assert kind_of(Tensor.realize.__code__) == SKIPPED


def test_kernels_know_the_module_of_a_model() -> None:
    model, x = Outer(), ones(2, 4)
    with recorded() as recorder:
        model(x).realize()
    found = exported(recorder)
    modules = [found["lines"][s["lines"][0]]["module"] for s in found["sites"] if s["kind"] == "kernel"]
    assert modules == ["Outer.layers.0", "Outer.layers.1"]


@pytest.mark.parametrize("runs", [1, 6])
def test_every_kernel_run_is_counted_as_the_counters_count(runs: int) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x @ x).relu().contiguous() + 1).realize()

    x = ones(16, 16).realize()
    with recorded() as recorder:
        before = GlobalCounters.kernel_count
        for _ in range(runs):
            step(x)
            (x * 2).realize()
        after = GlobalCounters.kernel_count
        tinygrad.Device.synchronize()
    found = exported(recorder)
    assert sum(k["count"] for k in found["kernels"]) == after - before
    kernel_sites = {i for i, s in enumerate(found["sites"]) if s["kind"] == "kernel"}
    events = found["events"]
    timed = [d for s, d in zip(events["site"], events["duration"], strict=True) if s in kernel_sites]
    assert len(timed) == after - before
    total = sum(k["seconds"] for k in found["kernels"])
    assert sum(timed) * 1e-9 == pytest.approx(total, rel=1e-3, abs=1e-6)
    kinds = {s["kind"]: s["count"] for s in found["sites"] if s["kind"] in ("trace", "replay")}
    assert kinds.get("trace") == 1 and kinds.get("replay", 0) == runs - 1


def test_long_kernels_that_queues_run_are_timed_too() -> None:
    x = ones(1 << 22).realize()
    with recorded(False) as recorder:
        for _ in range(3):
            x = (x + 1).realize()
        assert x.numpy()[0] == 4.0
    found = exported(recorder)
    (kernel,) = [k for k in found["kernels"] if k["count"]]
    assert kernel["count"] == 3
    assert kernel["seconds"] > 3 * kernel["bytes"] / 1e12  # no machine has a terabyte a second


def test_each_pass_begins_with_the_graph_that_the_one_before_left() -> None:
    with recorded() as recorder, Context(NOOPT=0):
        (ones(24, 48) @ ones(48, 96)).realize()
    found = exported(recorder)
    kernel = next(k for k in found["kernels"] if "24" in k["name"])
    names = [one["name"] for one in kernel["passes"]]
    assert names[0] == "lower" and names[-1] == "linearize"
    assert [n for n in names if "(" in n] == kernel["opts"]
    for one, following in zip(kernel["passes"], kernel["passes"][1:], strict=False):
        assert one["after"] == following["before"]
    assert all(source < i for i, node in enumerate(kernel["nodes"]) for source in node[3])
    fired = [f for one in kernel["passes"] for f in one["fired"]]
    for rule, _, _ in fired:
        file, line = found["rules"][rule]["file"], found["rules"][rule]["line"]
        text = Path(file).read_text(encoding="utf-8").splitlines()[line - 1]
        assert text.lstrip().startswith(("def ", "@", "lambda", "Rule(")) or "lambda" in text
    assert kernel["source"] and kernel["nest"] and kernel["program"] and kernel["assembly"]


def test_the_nodes_of_a_graph_are_in_the_kernels_that_compute_them() -> None:
    with recorded() as recorder:
        a = ones(6, 6).exp().contiguous()
        (a.sum(0) + 1).realize()
    (graph,) = [g for g in exported(recorder)["schedules"] if len(g["items"]) == 2]
    by_op = {node[0]: node[6] for node in graph["nodes"]}
    assert by_op["REDUCE"] == [1]
    assert by_op["EXP2"] == [0]


def test_statistics_are_those_of_the_values() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = Tensor(data)
    with recorded() as recorder:
        y = (x * 2).realize()
        found = exported(recorder)
    nodes = [node for graph in found["schedules"] for node in graph["nodes"]]
    statistics = [node[7] for node in nodes if node[7] is not None and node[0] == "BUFFER"]
    assert any(s["min"] == 0 and s["max"] == 11 and s["mean"] == pytest.approx(5.5) for s in statistics)
    assert y.shape == (3, 4)


def test_memory_is_owned_by_the_lines_that_took_it() -> None:
    with recorded() as recorder:
        a = (ones(1000).realize() + 1).realize()
        b = (a + 1).realize(); line = here()  # noqa: E702
        del a
        c = (b + 1).realize()
    memory = exported(recorder)["memory"]
    lines = exported(recorder)["lines"]
    assert memory["peak"] == max(used for _, used in memory["series"])
    assert sum(size for _, _, size in memory["owners"]) == memory["peak"]
    own = [size for number, _, size in memory["owners"] if lines[number]["frames"][0][1] == line]
    assert own == [4000]
    assert c.shape == (1000,)


def test_memory_of_one_recording_that_is_given_back_in_another_is_its_own() -> None:
    with recorded() as first:
        kept = [(ones(size) + 1).realize() for size in range(3, 40)]
    with recorded() as second:
        result = (ones(50) + 1).realize()
        kept.clear()
    first.settle()
    second.settle()
    assert second.memory.used == 2 * result.nbytes()
    assert first.memory.peak >= 4 * sum(range(3, 40)) and first.memory.used == 0


def test_arenas_hold_no_two_values_that_are_needed_at_once() -> None:
    with recorded() as recorder:
        x = ones(64, 64)
        for _ in range(6):
            x = x @ x
        x.realize()
    arenas = exported(recorder)["memory"]["arenas"]
    assert arenas and any(a["without_reuse"] > a["size"] for a in arenas)
    for arena in arenas:
        for i, (start, size, first, last, _) in enumerate(arena["values"]):
            for other, other_size, other_first, other_last, _ in arena["values"][:i]:
                at_once = first <= other_last and other_first <= last
                assert not at_once or start + size <= other or other + other_size <= start


def test_a_search_says_what_it_tried() -> None:
    with recorded() as recorder, Context(BEAM=1, BEAM_SECONDS=0.3, CACHELEVEL=0):
        (ones(64, 64) @ ones(64, 64)).realize()
    searches = [k["search"] for k in exported(recorder)["kernels"] if k.get("search")]
    rows = [row for search in searches for row in search["rows"]]
    assert searches and all(seconds is None or seconds > 0 for _, seconds, _ in rows)
    assert all(any(plan == search["chosen"] for plan, _, _ in search["rows"]) for search in searches)


def test_a_kernel_that_was_being_made_when_a_page_was_written_is_whole_in_the_next(
        monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded() as recorder:
        exporter, done = Exporter(recorder), recorder.stages_done

        def write_then_go_on(*given: Any) -> None:
            (kernel,) = exporter.export()["kernels"]
            assert "source" not in kernel
            done(*given)

        monkeypatch.setattr(recorder, "stages_done", write_then_go_on)
        (ones(23, 7) + 1).sum().realize()
    (kernel,) = [k for k in exporter.export()["kernels"] if k["count"]]
    assert {"source", "nest", "opts", "program", "passes"} <= set(kernel) and len(kernel["passes"]) > 1


def test_a_ring_keeps_the_last_events_and_totals_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad.viz.events.MOST_EVENTS", 20)
    x = ones(4).realize()
    with recorded(False) as recorder:
        for _ in range(60):
            (x + 1).realize()
    found = exported(recorder)
    assert len(found["events"]["start"]) <= 20
    assert sum(k["count"] for k in found["kernels"]) == 60
    assert any("last" in note and "events" in note for note in found["notes"])


def test_threads_have_tracks_of_their_own() -> None:
    with recorded(False) as recorder:
        thread = threading.Thread(target=lambda: (ones(3) + 1).realize(), name="mine")
        thread.start()
        thread.join()
    assert "host mine" in exported(recorder)["events"]["tracks"]


def test_what_threads_run_again_and_again_is_on_the_track_of_each() -> None:
    """Of one line, in turn: what is told of such runs belongs to a thread."""
    start = [Tensor(np.full(3, i, np.float32)).realize() for i in range(2)]
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def work(number: int) -> None:
        x = start[number]
        for _ in range(8):
            turns[number].acquire()
            x = (x * 3).realize()
            turns[1 - number].release()

    with recorded(False) as recorder:
        threads = [threading.Thread(target=work, args=(i,), name=f"number {i}") for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = exported(recorder)["events"]
    ran = [events["tracks"][track] for track in events["track"]]
    assert ran.count("host number 0") >= 8 and ran.count("host number 1") >= 8 and ran.count("CPU") == 16


def test_recording_changes_no_result_and_keeps_no_memory_alive() -> None:
    def compute() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        net = nn.Linear(8, 4, bias=False)
        net.weight.assign(ones(4, 8) * 0.5)
        return net(ones(3, 8)).softmax().numpy()

    plain = compute()
    used = GlobalCounters.mem_used
    with recorded():
        assert np.array_equal(compute(), plain)
        assert GlobalCounters.mem_used == used


def test_a_page_has_its_recording() -> None:
    with recorded() as recorder:
        (ones(5) + 1).realize()
    found = exported(recorder)
    assert recording_in(html_of(found)) == found
    with pytest.raises(ValueError, match="not a page"):
        recording_in("<html></html>")


def test_nothing_is_called_when_nobody_watches() -> None:
    assert observer.active is None
    x = (ones(2) + 1).realize()
    assert x.uop.line == 0


def flood(runs: int) -> int:
    """Replays of a list of 40 tiny kernels; how many kernels there were."""

    @TinyJit
    def step(x: Tensor) -> Tensor:
        for _ in range(40):
            x = (x + 1).realize()
        return x

    x = ones(1).realize()
    before = GlobalCounters.kernel_count
    for n in range(runs):
        assert step(x + n).item() == 41 + n
    tinygrad.Device.synchronize()
    return GlobalCounters.kernel_count - before


def test_all_replays_are_counted_and_the_timeline_has_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad.runtime.cpu_times.MOST_WORDS", 41 * 20)
    with recorded(False) as recorder:
        count = flood(150)
        (x,) = [ones(3).realize()]
        (x * 2).realize()
    found = exported(recorder)
    assert sum(k["count"] for k in found["kernels"]) == count + 1
    events = found["events"]
    kinds = [found["sites"][s]["kind"] for s in events["site"]]
    replays = kinds.count("replay")
    assert 10 <= replays <= 20 and 40 * (replays - 1) <= kinds.count("kernel") <= 42 * (replays + 1) + 1
    assert events["start"] == sorted(events["start"])
    total = sum(s["count"] for s in found["sites"])
    assert f"the timeline has the last {len(kinds):,} of {total:,} events" in " ".join(found["notes"])
    assert {s["kind"]: s["count"] for s in found["sites"] if s["kind"] == "replay"} == {"replay": 149}


def test_the_kernels_of_a_replay_lie_within_it() -> None:
    with recorded(False) as recorder:
        flood(30)
    found = exported(recorder)
    spans: dict[str, list[tuple[int, int]]] = {}
    events = found["events"]
    for site, start, duration in zip(events["site"], events["start"], events["duration"], strict=True):
        spans.setdefault(found["sites"][site]["kind"], []).append((start, start + duration))
    inside = [sum(began <= start + 1 and end <= ended + 1 for start, end in spans["kernel"])
              for began, ended in spans["replay"]]
    assert inside == [40] * 29


def test_what_a_jit_did_that_is_gone_stays() -> None:
    with recorded(False) as recorder:
        count = flood(20)
        recorder.settle()
        gc.collect()
        recorder.settle()
        assert not recorder.log.lists
        count += flood(3)
    found = exported(recorder)
    kernels = {i for i, s in enumerate(found["sites"]) if s["kind"] == "kernel"}
    assert sum(k["count"] for k in found["kernels"]) == count
    assert sum(site in kernels for site in found["events"]["site"]) == count


def test_results_of_replays_are_owned_by_the_lines_that_computed_them() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x * 2).realize()

    with recorded(False) as recorder:
        x = ones(5000).realize()
        kept = [step(x) for _ in range(4)]
    memory, lines = exported(recorder)["memory"], recorder.lines.all
    owned = {lines[number].frames[0].function: size for number, _, size in memory["owners"]}
    assert owned["step"] == 4 * 20_000 and len(kept) == 4


def lines_that_kernels_are_for(recorder: Recorder) -> set[int]:
    return {recorder.lines.all[site.lines[0]].frames[0].line for site in recorder.sites
            if site.kind == "kernel"}


def test_kernels_of_a_schedule_that_nobody_recorded_have_their_lines() -> None:
    def computed() -> int:
        x = ones(41, 23) @ ones(23, 37); line = here()  # noqa: E702
        (x.contiguous() @ ones(37, 29)).realize()
        return line

    computed()
    with recorded() as recorder:
        lines = {computed() for _ in range(3)}
    (line,) = lines
    assert lines_that_kernels_are_for(recorder) == {line, line + 1}


def test_kernels_of_a_schedule_that_was_for_one_line_have_lines_of_their_own() -> None:
    with recorded() as recorder:
        (ones(43, 23) @ ones(23, 37)).contiguous().matmul(ones(37, 31)).realize(); line = here()  # noqa: E702
        for _ in range(3):
            x = ones(43, 23) @ ones(23, 37)
            (x.contiguous() @ ones(37, 31)).realize()
    assert lines_that_kernels_are_for(recorder) == {line, line + 2, line + 3}


def test_short_operations_are_counted_together_with_the_memory_that_they_take() -> None:
    x, runs = Tensor(np.ones(5, np.int32)).realize(), 5000  # more than wait to be counted
    kept = []
    sources = [Tensor(np.ones(size, np.int32)).realize() for size in (700, 300)]
    with recorded(False) as recorder:
        for i in range(runs):
            x = (x + 1).realize()
            if not i % 100:
                kept.append(x)
        del x
        for each in sources:  # two results at once, twice
            for factor in (2, 4):
                Tensor.realize(each * factor, each * (factor + 1))
    recorder.settle()
    found = exported(recorder)
    assert sum(k["count"] for k in found["kernels"]) == runs + 8
    assert {s["kind"]: s["count"] for s in found["sites"]}["realize"] == runs + 4
    assert recorder.memory.used == 4 * 5 * len(kept)
    assert recorder.memory.peak == 4 * 5 * len(kept) + 4 * 2 * 700
