"""The graphs of a recording and the lines of their kernels, where schedules are made of other nodes than the
user's: of values on several devices, and of sizes that are not known."""
from __future__ import annotations

import numpy as np
import pytest
from recordings import exported, here, line_of, ones, recorded

from tinygrad import Tensor, Variable, nn
from tinygrad.viz.recorder import Recorder
from tinygrad.viz.recording import Json

pytestmark = pytest.mark.usefixtures("on_cpu")
DEVICES = ("CPU:0", "CPU:1")


def graph_of_last(recorder: Recorder) -> tuple[Json, Json]:
    """A recording, and the last graph in it."""
    found = exported(recorder)
    return found, found["schedules"][-1]


def lines_of_steps(found: Json, graph: Json) -> set[int]:
    """The user's lines that the kernels of a graph are for, 0 where nobody knows one."""
    return {line_of(found, {"lines": lines})[1] if lines else 0 for kernel, _, lines, _, _ in graph["items"]
            if kernel >= 0}


def test_kernels_of_sharded_values_are_for_lines_and_in_the_users_graph() -> None:
    x = ones(6, 10).shard(DEVICES, 0).realize()
    w = ones(10, 4).shard(DEVICES).realize()
    with recorded() as recorder:
        y = (x @ w).relu(); line = here()  # noqa: E702  # one line, to be compared
        y.realize()
    found, graph = graph_of_last(recorder)
    assert lines_of_steps(found, graph) == {line}
    assert sum(kernel["count"] for kernel in found["kernels"]) == len(graph["items"]) == len(DEVICES)
    operations = [node for node in graph["nodes"] if node[0] in ("REDUCE", "MAX", "WHERE")]
    assert operations and all(node[6] == [0, 1] for node in operations)  # each device has its kernel of them
    assert [6, 4] in [node[2] for node in graph["nodes"]]  # the whole value, as the program has it


def test_what_devices_exchange_is_for_the_line_that_needs_it() -> None:
    x = ones(6, 10).shard(DEVICES, 1).realize()
    with recorded() as recorder:
        y = x.sum(1); line = here()  # noqa: E702
        (y + 1).realize()
    found, graph = graph_of_last(recorder)
    assert lines_of_steps(found, graph) == {line}


def test_a_known_schedule_of_sharded_values_is_for_the_line_that_runs() -> None:
    def computed(x: Tensor, rounds: int) -> list[int]:
        lines = []
        for _ in range(rounds):
            (x * 3 - x.sum(1, keepdim=True)).realize(); lines.append(here())  # noqa: E702
        for _ in range(rounds):
            (x * 3 - x.sum(1, keepdim=True)).realize(); lines.append(here())  # noqa: E702
        return lines

    x = ones(8, 5).shard(DEVICES, 0).realize()
    computed(x, 1)
    with recorded() as recorder:
        lines = computed(x, 3)
    found = exported(recorder)
    counts = dict.fromkeys(lines, 0)
    for site in found["sites"]:
        if site["kind"] == "kernel":
            counts[line_of(found, site)[1]] += site["count"]
    assert set(counts.values()) == {3 * len(DEVICES)}


def test_a_sharded_step_of_training_has_no_kernel_without_a_line() -> None:
    net = nn.Linear(6, 4)
    for parameter in nn.state.get_parameters(net):
        parameter.shard_(DEVICES)
    optimizer = nn.optim.SGD(nn.state.get_parameters(net), lr=0.1)
    x = Tensor(np.ones((8, 6), np.float32)).shard(DEVICES, 0).realize()
    Tensor.realize(*nn.state.get_parameters(net))
    with recorded() as recorder, Tensor.train():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    found, graph = graph_of_last(recorder)
    assert 0 not in lines_of_steps(found, graph)


def test_a_schedule_that_nobody_ran_is_in_no_other_graph() -> None:
    x = ones(5, 9).realize()
    with recorded() as recorder:
        (x.cumsum(1) / 7).schedule()
        y = x.exp().sum(1)
        y.realize()
    found, graph = graph_of_last(recorder)
    assert len(found["schedules"]) == len(graph["items"]) == 1
    assert [node[6] for node in graph["nodes"] if node[0] == "REDUCE"] == [[0]]


def test_a_number_that_another_line_wrote_before_makes_no_kernel_that_lines() -> None:
    x = ones(5, 9).realize()
    with recorded() as recorder:
        one = (x * 5).realize()
        two = (x.exp() * 5).sum(1).realize(); line = here()  # noqa: E702
    found, graph = graph_of_last(recorder)
    (item,) = graph["items"]
    assert {found["lines"][number]["frames"][0][1] for number in item[2]} == {line}
    assert one.shape and two.shape  # both lines' numbers are there


def test_graphs_that_are_left_out_are_counted_in_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinygrad.viz.recorder.MOST_SCHEDULES", 3)
    x = ones(5, 9).realize()
    with recorded() as recorder:
        for size in range(1, 6):
            (x[:, :size] * 5 - 3).sum(1).realize()
    found = exported(recorder)
    assert len(found["schedules"]) == 3
    assert "2 of 5 graphs, the last ones, are not shown: 3 are kept" in found["notes"]


def test_a_graph_of_unknown_sizes_is_shown_with_its_lines() -> None:
    n = Variable("n", 1, 16)
    x = ones(16, 4).realize()
    with recorded() as recorder:
        y = x[:n.bind(5)].sum(0); line = here()  # noqa: E702
        y.realize()
    found, graph = graph_of_last(recorder)
    assert lines_of_steps(found, graph) == {line}
    assert any(node[0] == "REDUCE" and node[6] for node in graph["nodes"])
