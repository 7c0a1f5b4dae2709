"""The benchmark's own logic: ratios, limits and tables of made-up figures, and what workloads cost."""
from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import __main__ as bench_command
from bench import recording, scale, scale_picture, sources, torch_models
from bench.__main__ import chosen_workloads, main, timed_rows
from bench.drawn_programs import drawn_results
from bench.gpu import Measured, run_gpu
from bench.gpu import table as gpu_table
from bench.gpu_rows import SMALL, GPURow, all_rows, product
from bench.graphs import GRAPHS, Graph, GraphRow, graph_table, measured
from bench.kernels import KernelRow, kernel_table, kernels_of
from bench.measure import measure_first_call
from bench.peers import Peer
from bench.results import (
    Row,
    compared_with_before,
    disagreements,
    first_call_table,
    least_seconds,
    overhead_table,
    speedup,
    table,
)
from bench.roofline import draw, point
from bench.worker import Worker, summary
from bench.workloads import (
    FAMILIES,
    JITTED,
    OURS,
    PUBLIC,
    WORKLOADS,
    Workload,
    attention,
    conv,
    devices,
    gather,
    gemm,
    linalg,
    memory,
    models,
    odd,
    overhead,
)
from bench.workloads.base import drawn_weights
from bench.workloads.models import sizes
from tinygrad import GlobalCounters, Tensor, observer
from tinygrad.device.limits import Limits
from tinygrad.graph.printing import format_graph
from tinygrad.nn.state import get_parameters
from tinygrad.viz.session import Session

LIMITS = Limits(threads=2, lanes=16, gflops=200.0, read_gbs=50.0, copy_gbs=40.0)


def workload(operations: float = 0.0, read: float = 0.0, written: float = 0.0, **setups: object) -> Workload:
    return Workload("made up", operations, read, written, setups)


def cells(text: str) -> list[list[str]]:
    """A table's lines, split where columns are at least two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_rows_are_compared_with_an_earlier_checkout() -> None:
    rows = [Row("a", times={"tinygrad": [2.0], "before": [1.0]}),
            Row("b", times={"tinygrad": [1.0], "before": [2.0]}),
            Row("c", times={"tinygrad": [1.0]})]
    assert compared_with_before(rows) == (
        "geometric mean of our time over that before, 2 rows: 1.000; over 1.05: a 2.00")
    assert compared_with_before(rows[2:]) is None
    assert rows[0].best_peer is None


def test_models_of_pytorch_are_compared_with_inductor() -> None:
    first = {"tinygrad": {"forward": 1.0, "step": 2.0}, "inductor": {"forward": 6.0}}
    times = {"tinygrad": {"forward": [0.1, 0.3, 0.2]}, "inductor": {"forward": [0.4]}}
    row = torch_models.ModelRow("made up", first, times, {"tinygrad": 10**6})
    head, line, means = cells(torch_models.torch_table([row]))
    assert line[:5] == ["made up", "200.0", "400.0", "-", "0.50"]
    assert line[9:] == ["3.0", "6.0", "-", "1", "-", "-"]
    assert len(head) == len(line)
    assert means == ["geometric means of ours over inductor's: forward 0.50, first 0.50"]


# --- arithmetic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("costs, seconds", [
    ((200e9, 0, 0), 1.0),           # bound by arithmetic
    ((0, 50e9, 0), 1.0),            # by reading
    ((0, 20e9, 20e9), 1.0),         # by copying: read and written bytes count
    ((0, 70e9, 20e9), 2.0),         # what is read beyond what is written goes at the rate of reading
    ((0, 0, 40e9), 1.0),            # by writing
    ((600e9, 50e9, 0), 3.0),        # by the slower of both
])
def test_the_least_time_is_that_of_the_slowest_resource(costs: tuple[float, ...], seconds: float) -> None:
    assert least_seconds(workload(*costs), LIMITS) == pytest.approx(seconds)


def test_the_speedup_is_the_geometric_mean_over_the_rows_that_both_have() -> None:
    rows = [Row("a", times={OURS: [1.0], "torch": [8.0]}), Row("b", times={OURS: [2.0], "torch": [4.0]}),
            Row("c", times={OURS: [1.0]}), Row("d", times={"torch": [1.0]}), Row("e", times={OURS: []})]
    assert speedup(rows) == pytest.approx(4.0)
    assert speedup(rows, "jax") is None


def test_a_row_compares_medians_with_the_fastest_of_the_others() -> None:
    row = Row("a", times={OURS: [1.0, 9.0, 2.0], "torch": [4.0, 6.0], "jax": [7.0], "torch.compile": []})
    assert row.middle(OURS) == 2.0
    assert row.middle("torch.compile") is None
    assert row.best_peer == 5.0
    assert Row("b", times={OURS: [1.0]}).best_peer is None


def test_a_result_that_differs_is_named() -> None:
    right = {"size": 1.0, "sample": [1.0, -1.0]}
    wrong_items = {"size": 1.0, "sample": [-1.0, 1.0]}
    wrong_size = {"size": 2.0, "sample": [1.0, -1.0]}
    assert disagreements({"a": right, "b": right, "c": wrong_items}, 1e-3).keys() == {"c"}
    assert disagreements({"a": right, "b": wrong_size, "c": right}, 1e-3).keys() == {"b"}
    no_number = {"size": 1.0, "sample": [1.0, math.nan]}
    assert disagreements({"a": right, "b": right, "c": no_number}, 1e-3).keys() == {"c"}
    assert disagreements({"a": right, "b": {"size": 1.0005, "sample": [1.0005, -1.0]}}, 1e-3) == {}
    assert disagreements({}, 1e-3) == {}


# --- tables ---------------------------------------------------------------------------------------------


def test_the_table_has_ratio_rates_and_share_of_the_limit() -> None:
    times = {OURS: [0.02], "torch": [0.04], "jax": [0.01]}
    slow = Limits(threads=2, lanes=16, gflops=50.0, read_gbs=5.0, copy_gbs=4.0)
    row = Row("made up", first={OURS: 1.5, "torch": 0.1}, times=times, limits=[LIMITS, slow, LIMITS])
    lines = cells(table([(workload(2e9, 3e8, 1e8), row)], [OURS, "torch", "jax"]))
    assert lines[0] == ["workload", "tinygrad ms", "torch ms", "jax ms", "ratio", "GFLOP/s", "GB/s", "limit",
                        "first s"]
    # 2 GFLOP take 10 ms at the least; memory needs 2e8 / 40e9 + 2e8 / 50e9 = 9 ms
    assert lines[1] == ["made up", "20.00", "40.00", "10.00", "2.00", "100.0", "20.0", "50%", "1.50"]


def test_the_jitted_function_has_a_ratio_of_its_own_and_is_no_peer() -> None:
    row = Row("made up", first={OURS: 1.0}, times={OURS: [0.03], JITTED: [0.01], "torch": [0.02]})
    lines = cells(table([(workload(), row)], [OURS, JITTED, "torch"]))
    assert lines[0][:6] == ["workload", "tinygrad ms", "TinyJit ms", "torch ms", "ratio", "jitted"]
    assert lines[1][:6] == ["made up", "30.00", "10.00", "20.00", "1.50", "0.50"]


def test_what_was_not_measured_is_a_dash() -> None:
    lines = cells(table([(workload(), Row("made up", times={"torch": [0.04]}))], [OURS, "torch"]))
    assert lines[1] == ["made up", "-", "40.00", "-", "-", "-", "-", "-"]


def test_overhead_is_microseconds_of_each_kernel() -> None:
    chain, measured = Workload("chain", 0, 0, 0, {}), Row("chain", times={OURS: [2e-4]}, kernels=200)
    lines = cells(overhead_table([(chain, measured), (chain, Row("chain"))], [OURS, "torch"]))
    assert lines[1:] == [["chain", "1.00", "-", "200"], ["chain", "-", "-", "0"]]


def test_first_calls_are_seconds() -> None:
    lines = cells(first_call_table([Row("net", first={"torch": 1.234})], [OURS, "torch"]))
    assert lines[1] == ["net", "-", "1.23"]
    rows = [Row("net", first={OURS: 2.0, "torch": 1.234}, again={OURS: 0.5}),
            Row("other", first={"torch": 1})]
    lines = cells(first_call_table(rows, [OURS, "torch"]))
    assert lines[0] == ["seconds of the first step", OURS, "torch", f"{OURS}, again"]
    assert lines[1:] == [["net", "2.00", "1.23", "0.50"], ["other", "-", "1.00", "-"]]


def test_kernels_that_one_checkout_alone_writes_differ() -> None:
    found = sources.Comparison()
    before = {"sources": ["a", "a", "b\nc"], "failure": ""}
    found.add("same", before, before)
    found.add("x", before, {"sources": ["a", "a", "b\nd"], "failure": ""})
    found.add("y", {"sources": [], "failure": "KeyError: 1"}, {"sources": [], "failure": "KeyError: 1"})
    assert (found.equal, found.failures) == (5, ["y: KeyError: 1"])
    assert found.differing == ["--- x, before\n+++ x, now\n@@ -1,2 +1,2 @@\n b\n-c\n+d"]


def test_a_seed_draws_the_same_program_again() -> None:
    first, again = ([format_graph(t.uop) for t in drawn_results(7)] for _ in range(2))
    assert first == again


def test_a_first_step_is_measured_with_nothing_kept_and_then_again() -> None:
    (small,) = (w for w in WORKLOADS if w.name == "matmul 37")
    row = measure_first_call(small, [OURS], 1)
    assert not row.failures and row.first.keys() == row.again.keys() == {OURS}


def test_the_first_calls_of_all_rows_find_nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[str] = []

    class Watched(Peer):
        def start(self) -> None:
            folders.append(self.environment["XDG_CACHE_HOME"])
            assert list(Path(folders[-1]).iterdir()) == []
            super().start()

    monkeypatch.setattr(bench_command, "Peer", Watched)
    timed_rows(bench_command.parser().parse_args(["--peers"]), [])
    assert len(folders) == 1


def test_the_kernel_table_shows_each_plan_under_its_figures() -> None:
    row = KernelRow("r_8", "VECTOR(r0, 16)", 2, 0.5, 10**9, 2 * 10**9, 0.25)
    text = kernel_table([row])
    assert cells(text)[1] == ["r_8", "2", "500.000", "100%", "2.0", "4.0", "25%"]
    assert text.splitlines()[2].strip() == "VECTOR(r0, 16)"


def test_the_roofline_is_drawn_and_leaves_out_what_does_no_arithmetic(tmp_path: object) -> None:
    pytest.importorskip("matplotlib")
    assert point("copy", 0, 8.0, 1.0) is None
    found = point("a", 4e9, 2e9, 0.5)
    assert found is not None
    assert (found.intensity, found.gflops) == (2.0, 8.0)
    path = tmp_path / "roofline.png"  # type: ignore[operator]  # a Path
    draw([found], LIMITS, path)
    assert path.read_bytes().startswith(b"\x89PNG")


# --- workloads ------------------------------------------------------------------------------------------


def counted_operations(measured: Workload) -> int:
    """Operations of our kernels in one step, as the library counts them."""
    step = measured.setups[OURS]()
    GlobalCounters.reset()
    step()
    return GlobalCounters.global_ops


@pytest.mark.parametrize("measured", [
    gemm.matmul(31, 17, 23), gemm.transposed_matmul(19, True, True), gemm.batched_matmul(3, 16),
    gemm.matvec(64),
    conv.conv2d("3x3", 2, 5, 9, 11, 7, 3), conv.conv2d("stride", 1, 8, 16, 15, 4, 3, stride=2),
    conv.conv2d("depthwise", 1, 8, 16, 16, 8, 3, groups=8), memory.total(1 << 12), memory.add(1 << 12),
    overhead.dependent_kernels(5), overhead.single_kernel(),
], ids=lambda w: w.name)
def test_an_operation_does_the_work_that_its_formula_says(measured: Workload) -> None:
    # padding and masks are counted by the library and not by the formula; small sums are split in two
    assert measured.operations <= counted_operations(measured) <= 1.5 * measured.operations


@pytest.mark.parametrize("measured", [memory.softmax(16, 64), memory.layer_norm(16, 64), memory.gelu(4096),
                                      memory.clamp_chain(4096)], ids=lambda w: w.name)
def test_a_chain_of_operations_costs_about_what_its_formula_says(measured: Workload) -> None:
    # an exponential is one operation in the formula and some twenty where it runs
    assert measured.operations / 2 <= counted_operations(measured) <= 12 * measured.operations


def test_causal_attention_counts_half_of_the_pairs() -> None:
    measured = attention.attention(2, 64, 16)
    pairs = sum(1 for query in range(64) for key in range(64) if key <= query)
    assert measured.operations == 2 * 2 * 2 * 16 * pairs


def test_a_transposed_copy_does_no_arithmetic_and_moves_every_item_twice() -> None:
    measured = memory.transposed_copy(64)
    assert (measured.operations, measured.moved_bytes) == (0, 2 * 4 * 64 * 64)
    assert counted_operations(measured) == 0


@pytest.mark.parametrize("measured", [gather.look_up(50, 8, 20), gather.add_rows(50, 8, 20),
                                      gather.add_items(30, 100)], ids=lambda w: w.name)
def test_items_at_computed_places_are_those_of_torch(measured: Workload) -> None:
    pytest.importorskip("torch")
    ours, theirs = (measured.setups[peer]()() for peer in (OURS, "torch"))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(ours.numpy()).sum() > 1


def test_networks_have_the_number_of_parameters_that_their_sizes_say() -> None:
    from bench.workloads.models import in_tinygrad

    def count(network: object) -> int:
        return sum(math.prod(p.shape) for p in get_parameters(network) if p.requires_grad is not False)

    small = sizes.Transformer(vocabulary=11, context=8, layers=2, width=16, heads=2)
    assert count(in_tinygrad.GPT(small)) == small.parameters
    assert count(in_tinygrad.mnist_convnet()) == sizes.MNIST_PARAMETERS
    assert count(in_tinygrad.ResNet18()) == sizes.resnet18_parameters() == 11_689_512  # 11.7 million
    small_net = sizes.Residual(blocks=(2, 1), width=4, classes=3)
    assert count(in_tinygrad.BottleneckNet(small_net)) == small_net.parameters
    assert sizes.RESNET50.parameters == 25_557_032  # torchvision: 25.6 million
    assert sizes.GPT2.parameters == 124_439_808  # Radford et al.: 124 million


def test_the_networks_cost_what_their_papers_say() -> None:
    assert sum(sizes.resnet18_products(224)) == pytest.approx(1.8e9, rel=0.02)  # He et al., table 1
    assert sum(sizes.RESNET50.products(224)) == pytest.approx(4.1e9, rel=0.01)  # 3.8 there, strides elsewhere
    # Kaplan et al. (2020): 2 operations for each parameter that multiplies, for each token
    assert sizes.GPT2.operations(1, 1) == pytest.approx(2 * 124e6, rel=0.01)


GPT = sizes.Transformer(vocabulary=32, context=16, layers=1, width=64, heads=2)


@pytest.mark.parametrize("measured", [
    models.gpt_prompt("GPT", GPT, 16), models.gpt_token("GPT", GPT, 15),
    pytest.param(models.gpt_step(GPT, 2), marks=pytest.mark.slow),
    pytest.param(models.mnist_step(2), marks=pytest.mark.slow),
    pytest.param(models.resnet18_inference(1, 64), marks=pytest.mark.slow),
    pytest.param(models.resnet18_step(2, 64), marks=pytest.mark.slow),
], ids=lambda w: w.name)
def test_a_network_does_the_work_that_its_formula_says(measured: Workload) -> None:
    # what is not a product (norms, activations, the optimizer) is left out of the formulas
    assert measured.operations <= counted_operations(measured) <= 2.5 * measured.operations


def test_weights_are_the_same_for_the_same_names_and_shapes() -> None:
    shapes = {"fc.weight": (8, 32), "norm.weight": (8,), "norm.bias": (8,), "norm.running_var": (8,)}
    first, second = drawn_weights(shapes), drawn_weights(dict(reversed(shapes.items())))
    assert all(np.array_equal(first[name], second[name]) for name in shapes)
    assert np.array_equal(first["norm.weight"], np.ones(8, np.float32))
    assert np.array_equal(first["norm.running_var"], np.ones(8, np.float32))
    assert np.array_equal(first["norm.bias"], np.zeros(8, np.float32))
    assert first["fc.weight"].std() == pytest.approx(32**-0.5, rel=0.2)


def test_every_workload_has_a_name_of_its_own_and_runs_in_both_tinygrads_and_torch() -> None:
    assert len({w.name for w in WORKLOADS}) == len(WORKLOADS)
    with_peers = [w for w in WORKLOADS if w not in devices.WORKLOADS]  # those are compared with each other
    assert all({OURS, "torch"} <= w.setups.keys() for w in with_peers)
    left_out = {w.name for w in with_peers if PUBLIC not in w.setups}
    # it would take hours, or lacks them
    assert left_out == {w.name for w in (*gather.WORKLOADS, *linalg.WORKLOADS)}


def test_odd_sizes_follow_from_the_seed_and_are_of_every_kind() -> None:
    first, again, other = (odd.drawn(seed) for seed in (1, 1, 2))
    assert [w.name for w in first] == [w.name for w in again] != [w.name for w in other]
    kinds = ("matmul", "conv 3x3", "conv 3x3 stride 2", "conv 5x5 stride 2", "layer norm", "attention",
             "sums of columns", "sums of rows", "perceptron")
    for workloads in (first, other):
        assert all(any(w.name.startswith(f"odd {kind}") for w in workloads) for kind in kinds)


# --- worker and command line ----------------------------------------------------------------------------


def test_a_worker_answers_with_times_and_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = workload(**{OURS: lambda: lambda: np.arange(4.0)})
    monkeypatch.setattr("bench.worker.WORKLOADS", (made_up,))
    worker = Worker(OURS)
    answer = worker.answer({"do": "setup", "workload": "made up"})
    assert answer["size"] == 1.5
    assert set(answer["sample"]) <= {0.0, 1.0, 2.0, 3.0}
    assert len(worker.answer({"do": "run", "repeats": 3})["seconds"]) == 3
    json.dumps(answer)


def test_samples_tell_a_matrix_from_its_transpose() -> None:
    matrix = np.arange(64.0).reshape(8, 8)
    assert summary(matrix)["size"] == summary(matrix.T)["size"]
    answers = {"a": summary(matrix), "b": summary(matrix), "c": summary(matrix.T)}
    assert disagreements(answers, 1e-3).keys() == {"c"}


def test_the_kernels_of_a_product_do_its_operations() -> None:
    measured = gemm.matmul(64, 32, 48)
    found, limits = kernels_of(measured, 1, lambda: LIMITS)
    assert limits == LIMITS
    assert sum(k.operations for k in found) == measured.operations
    assert all(k.seconds > 0 and k.plan for k in found)


def test_families_and_names_choose_workloads() -> None:
    assert chosen_workloads(["conv", "gemm"], None) == [*FAMILIES["conv"], *FAMILIES["gemm"]]
    assert chosen_workloads([], None) == list(WORKLOADS)
    assert {w.name for w in chosen_workloads([], ["softmax"])} == {"softmax 4096x4096"}


@pytest.mark.parametrize("arguments, text", [
    (["rows", "gem"], "no family named gem; there are gemm, conv"),
    (["--only", "nothing"], "no workload has such"),
    (["matmul"], "invalid choice")])
def test_a_wrong_command_line_is_an_error(arguments: list[str], text: str,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert text in capsys.readouterr().err


# --- large graphs ---------------------------------------------------------------------------------------


def test_the_exponent_is_that_of_the_power_that_seconds_follow() -> None:
    nodes = [100, 200, 400, 800]
    assert GraphRow("a", nodes, [3e-6 * n**1.5 for n in nodes]).exponent == pytest.approx(1.5)
    row = GraphRow("a", nodes, [5e-5 * n for n in nodes])
    assert row.exponent == pytest.approx(1.0)
    assert cells(graph_table([row]))[1] == ["a", "0.01", "0.01", "0.02", "0.04", "800", "50", "1.00"]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_a_large_graph_has_nodes_in_proportion_to_its_size(graph: Graph) -> None:
    (few, _), (many, _) = (measured(graph.name, size) for size in (8, 32))
    assert 2 * few < many < 5 * few


def test_bench_graphs_shows_rows_at_four_sizes_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graphs", "--small", "--rounds", "1", "--only", "movement"]) == 0
    heading, row = cells(capsys.readouterr().out)
    assert heading == ["graph", "s, 1 n", "s, 2 n", "s, 4 n", "s, 8 n", "nodes", "us a node", "exponent"]
    assert row[0] == "chain of movement" and len(row) == len(heading)


# --- a GPU ----------------------------------------------------------------------------------------------


def test_bench_gpu_says_what_is_missing_where_there_is_no_gpu(capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    class Devices:
        def __getitem__(self, name: str) -> None:
            raise OSError("there is no NVIDIA driver")

    monkeypatch.setattr("bench.gpu.Device", Devices())
    assert main(["gpu"]) == 1
    assert "bench gpu cannot use CUDA: there is no NVIDIA driver" in capsys.readouterr().err


@pytest.mark.parametrize("only", [["copy", "token after"], pytest.param([""], marks=pytest.mark.slow)],
                         ids=["two", "all"])
def test_rows_of_a_gpu_run_at_small_sizes(only: list[str], tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """And are not measured again by a second run with the same file."""
    arguments = ["gpu", "--small", "--device", "CPU", "--rounds", "1", "--json", str(tmp_path / "gpu.json"),
                 *(f"--only={text}" for text in only), "--peers"]
    names = [row.name for row in all_rows(SMALL, "cpu") if any(text in row.name for text in only)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert [line.partition("  ")[0] for line in text.splitlines()] == ["row", *names]
    assert main(arguments) == 0
    assert capsys.readouterr() == (text, "")


def test_pytorch_compiles_every_row_for_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    compiled = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        compiled.append([size for value in inputs for size in getattr(value, "shape", [value])])
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for n in range(2, 12):
        product(n, "float32", "cpu").setups["torch.compile"]()()
    assert compiled == [[n] * 4 for n in range(2, 12)]


def test_a_row_that_fails_leaves_the_others_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                         ) -> None:
    def wrong() -> Any:
        raise RuntimeError("no such kernel")

    def setups(ours: Any, theirs: Any) -> dict[str, Any]:
        return {OURS: lambda: ours, "torch": lambda: theirs}

    numbers = Tensor([1.0, 2.0])
    rows = [GPURow("fails", 1.0, 1.0, setups(wrong, lambda: numbers), 1e-3),
            GPURow("differs", 1.0, 1.0, setups(lambda: numbers, lambda: numbers * 4), 1e-3),
            GPURow("copy", 0.0, 8e9, setups(lambda: numbers, lambda: numbers), 1e-3, moves=True)]
    monkeypatch.setattr("bench.gpu.all_rows", lambda sizes, device: rows)
    monkeypatch.setattr("bench.gpu.libraries", lambda *given: dict.fromkeys((OURS, "torch"), lambda: None))
    file = tmp_path / "gpu.json"
    text, whole = run_gpu(None, 1, device="CPU", file=file)
    lines = text.splitlines()
    assert not whole and len(lines) == 4 + 3
    assert lines[1].split()[:2] == ["fails", "-"] and lines[1].split()[2] != "-"
    assert lines[4] == f"fails: {OURS}: RuntimeError: no such kernel"
    assert lines[5].startswith("differs: ") and "a result of mean size" in lines[5]
    assert [row["name"] for row in json.loads(file.read_text())["rows"]] == ["fails", "differs", "copy"]
    rows[0] = GPURow("fails", 1.0, 1.0, setups(lambda: numbers, lambda: numbers), 1e-3)
    again = run_gpu(["fails"], 1, device="CPU", file=file)[0].splitlines()
    assert {line.split()[0] for line in again} == {"row", "fails", "copy"}


def test_shares_are_of_the_fastest_copy() -> None:
    rows = [Measured("copy, 1 GB", 0.0, 8e9, True, {OURS: 2.0, "torch": 1.0}),
            Measured("sum", 1e12, 4e9, True, {OURS: 0.5}), Measured("matmul", 3e12, 1.0, False, {OURS: 1.5})]
    lines = gpu_table(rows, [OURS, "torch"]).splitlines()
    copied, summed, product = (line.split()[-4:] for line in lines[1:])
    assert copied == ["0.50", "0.0", "4", "50%"]
    assert summed == ["-", "2.0", "8", "100%"]
    assert product == ["-", "2.0", "0", "-"]


def test_the_model_of_many_ranks_has_the_constants_of_the_all_reduces_it_was_made_of() -> None:
    overhead, latency, per_byte, ranks = 4e-4, 5e-6, 2e-10, 4

    def seconds(size: int) -> float:  # of two times two messages
        return 4 * latency + 2 * (ranks - 1) / ranks * per_byte * size

    found = {f"all-reduce {size} {library}": seconds(size) + (library == "tinygrad") * overhead
             for size in (1, 1 << 20, 1 << 24) for library in ("tinygrad", "mpi4py")}
    network = scale.fitted(found, ranks)
    for size in (1 << 12, 1 << 20):
        assert network.all_reduce(size, ranks) == pytest.approx(overhead + seconds(size), rel=1e-3)
    assert network.all_reduce(1 << 20, 1) == 0
    at_1024 = 7 * (overhead + 20 * latency) + 2 * 1023 / 1024 * per_byte * 1e6
    assert network.all_reduce(1e6, 1024, 7) == pytest.approx(at_1024, rel=1e-3)
    found_at_two = {"tinygrad": 0.1, "torch": 0.2, "sent bytes": 1e6, "gradient bytes": 1e6, "exchanges": 7}
    steps = {"gpt": {1: {"tinygrad": 0.2, "torch": 0.3, "sent bytes": 0}, 2: found_at_two}}
    last = scale.steps_table(steps).splitlines()[2].split()
    assert last[-6:] == ["2", "100.0", "2.00", "200.0", "1.50", "1.00"]
    assert "1,024 ranks" in scale.prediction_table(network, steps)
    for cores in (ranks, ranks // 2):  # with half as many, ranks take turns
        rows = [line.split() for line in scale.checked_table(network, {ranks: found}, cores).splitlines()[1:]]
        assert len(rows) == 3
        for *_, model, taken in rows:
            assert float(model) == pytest.approx(float(taken) * ranks / cores, abs=0.02)


def test_the_model_of_many_ranks_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures are of the extra examples")
    two = {"tinygrad": 0.12, "gradient bytes": 1e6, "exchanges": 3}
    steps = {name: {1: {"tinygrad": 0.2}, 2: two} for name in scale.NETWORKS}
    scale_picture.draw(tmp_path / "scaling.png", scale.Network(1e-4, 1e-6, 1e-9), steps, "some processor")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_recording_is_measured_beside_not_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mode has a turn a round, records what ran in it, and leaves nobody watching."""
    found: list[Session] = []

    def counted(*arguments: Any, **settings: Any) -> Session:
        found.append(Session(*arguments, **settings))
        return found[-1]

    monkeypatch.setattr(recording, "Session", counted)
    row = recording.row_of(f"{recording.TINY} tiny kernels, eager", rounds=2, burst=1e-9)
    assert [len(row.seconds[mode]) for mode in recording.MODES] == [2, 2, 2]
    assert observer.active is None
    assert len(found) == 2
    for recorder in (session.recorder for session in found):  # a turn before the rounds, and two in them
        kernels = [i for i, site in enumerate(recorder.sites) if site.kind == "kernel"]
        assert sum(map(recorder.log.runs, kernels)) == 3 * recording.TINY
    row.seconds = {"off": [1.0, 2.0, 4.0], "VIZ": [1.1, 2.2, 8.0], "PROFILE": [1.0, 2.0, 4.0]}
    assert recording.recording_table([row]).splitlines()[1].split()[-4:] == ["+10%", "+10%", "+0%", "+0%"]
