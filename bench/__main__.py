"""Times every workload in this library and its peers, taking turns, and prints a table.

    python -m bench                                   all workloads, all peers that are set up
    python -m bench rows gemm conv                    the families gemm and conv
    python -m bench kernels gemm                      our kernels of a family: plan, time, rates
    python -m bench overhead                          what starting a kernel costs, in microseconds
    python -m bench rows odd                          sizes drawn from a seed, BENCH_SEED or a new one
    python -m bench first_call                        a network's first step in a fresh process, and again
    python -m bench arenas                            memory that intermediates share, and the least
    python -m bench graphs                            large graphs, the first time, and how that grows
    python -m bench onnx                              ONNX models beside ONNX Runtime
    python -m bench llm                               a language model beside llama.cpp and transformers
    python -m bench torch                             torch.compile through us, beside inductor and eager
    python -m bench scale                             several processes, beside mpi4py and PyTorch's DDP
    python -m bench recording                         what VIZ and PROFILE add to steps
    python -m bench gpu                               a GPU, beside PyTorch on it (bench/gpu.py)
    python -m bench sources --before FOLDER           whether any kernel's source is another than there
    python -m bench --only matmul --peers torch       workloads by name, beside some peers
    python -m bench rows --peers --before FOLDER      beside an earlier checkout, and no peer
    python -m bench --json results.json --roofline roofline.png

A figure is the median of all a peer's steps; `ratio` is this library's time over the best peer's, below 1
where this library is faster. `limit` is the least time that the machine's rates allow, measured before and
after each of our turns, as a share of our time. After the table: the geometric mean of PyTorch's time over
ours.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import (
    arenas,
    gpu,
    graphs,
    kernels,
    language_models,
    onnx_files,
    onnx_models,
    recording,
    roofline,
    scale,
    sources,
    torch_models,
)
from bench.child import ChildError
from bench.measure import measure, measure_first_call
from bench.peers import PEERS, Peer, available_peers, environments_folder
from bench.results import (
    BASELINE,
    Row,
    compared_with_before,
    first_call_table,
    overhead_table,
    speedup,
    table,
)
from bench.workloads import BEFORE, FAMILIES, OURS, Workload, odd
from tinygrad.device.host import usable_cores
from tinygrad.device.limits import Limits
from tinygrad.runtime.limits import LimitMeter, measure_limits


@dataclass
class Outcome:
    """What a command found."""

    text: str
    record: dict[str, Any]
    points: list[roofline.Point]
    failures: list[str]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen_peers(wanted: Sequence[str] | None) -> list[str]:
    """This library and the peers to measure; a line on stderr says which are not set up."""
    available = available_peers()
    missing = [peer for peer in wanted or PEERS if peer not in available]
    if missing:
        progress(f"not set up: {', '.join(missing)}; "
                 f"bench/setup_peers.sh makes them in {environments_folder()}")
    return [peer for peer in available if peer == OURS or wanted is None or peer in wanted]


def chosen_workloads(families: Sequence[str], texts: Sequence[str] | None) -> list[Workload]:
    """The workloads of these families (all if none is named) whose name contains one of `texts`."""
    found = [w for family in families or FAMILIES for w in FAMILIES[family]]
    return [w for w in found if not texts or any(text in w.name for text in texts)]


def timed_rows(options: argparse.Namespace, workloads: list[Workload]) -> tuple[list[str], dict[str, str],
                                                                              list[tuple[Workload, Row]]]:
    """(the peers, their versions, what each workload took), with nothing found that was compiled before."""
    names = chosen_peers(options.peers)
    with ExitStack() as stack:

        def begun(name: str, before: Path | None = None) -> Peer:
            cache = stack.enter_context(TemporaryDirectory(prefix="bench-"))
            return Peer(name, options.threads, cache, before)

        peers = [begun(name) for name in names]
        if options.before is not None:
            peers.insert(0, begun(OURS, options.before.resolve()))
            names = [BEFORE, *names]
        for peer in peers:
            stack.callback(peer.close)
        versions = {peer.name: peer.ask(do="version")["version"] for peer in peers}
        progress("peers: " + ", ".join(f"{name} ({version})" for name, version in versions.items()))
        meter = LimitMeter(options.threads)
        stack.enter_context(meter.pool)
        rows = []
        for number, workload in enumerate(workloads, 1):
            progress(f"[{number}/{len(workloads)}] {workload.name}")
            rows.append((workload, measure(workload, peers, options.rounds, options.burst, meter)))
    return names, versions, rows


def failures_of(rows: Sequence[Row]) -> list[str]:
    return [f"{row.workload}: {failure}" for row in rows for failure in row.failures.values()]


def run_rows(options: argparse.Namespace, workloads: list[Workload], limits: Limits) -> Outcome:
    """The table of all peers."""
    names, versions, timed = timed_rows(options, workloads)
    rows = [row for _, row in timed]
    text = table(timed, names)
    mean = speedup(rows)
    if mean is not None:
        text += f"\ngeometric mean of {BASELINE}'s time over ours: {mean:.2f}"
    points = [roofline.point(w.name, w.operations, w.moved_bytes, ours)
              for w, row in timed if (ours := row.middle(OURS)) is not None]
    text += "".join(f"\n{line}" for line in [compared_with_before(rows)] if line)
    record = {"peers": versions, "rows": [asdict(row) for row in rows]}
    return Outcome(text, record, [p for p in points if p is not None], failures_of(rows))


def run_kernels(options: argparse.Namespace, workloads: list[Workload], limits: Limits) -> Outcome:
    """Our kernels of each workload, beside what the machine can do just then."""
    sections: list[str] = []
    failures: list[str] = []
    points: list[roofline.Point | None] = []
    record: dict[str, Any] = {}
    meter = LimitMeter(options.threads)
    with meter.pool:
        for number, workload in enumerate(workloads, 1):
            progress(f"[{number}/{len(workloads)}] {workload.name}")
            try:
                found, now = kernels.kernels_of(workload, options.rounds, meter.measure)
            except Exception as error:  # what fails is this workload's result
                failures.append(f"{workload.name}: {type(error).__name__}: {error}")
                continue
            sections.append(f"{workload.name} ({now})\n{kernels.kernel_table(found)}")
            record[workload.name] = {"limits": asdict(now), "kernels": kernels.as_record(found)}
            points += [roofline.point(k.name, k.operations, k.moved_bytes, k.seconds) for k in found]
    return Outcome("\n\n".join(sections), {"kernels": record}, [p for p in points if p is not None], failures)


def run_overhead(options: argparse.Namespace, workloads: list[Workload], limits: Limits) -> Outcome:
    """Microseconds a kernel, replayed and called."""
    names, versions, timed = timed_rows(options, workloads)
    rows = [row for _, row in timed]
    record = {"peers": versions, "rows": [asdict(row) for row in rows]}
    return Outcome(overhead_table(timed, names), record, [], failures_of(rows))


def run_first_call(options: argparse.Namespace, workloads: list[Workload], limits: Limits) -> Outcome:
    """Seconds of a first step in a fresh process, and in one that finds what that has kept."""
    names = chosen_peers(options.peers)
    rows = []
    for number, workload in enumerate(workloads, 1):
        progress(f"[{number}/{len(workloads)}] {workload.name}")
        rows.append(measure_first_call(workload, names, options.threads))
    record = {"rows": [asdict(row) for row in rows]}
    return Outcome(first_call_table(rows, names), record, [], failures_of(rows))


def run_arenas(options: argparse.Namespace, workloads: list[Workload], limits: Limits) -> Outcome:
    """The memory that the intermediates of captured steps share, beside what they need at once."""
    found: dict[str, list[arenas.ArenaRow]] = {}
    for number, workload in enumerate(workloads, 1):
        progress(f"[{number}/{len(workloads)}] {workload.name}")
        found[workload.name] = arenas.arenas_of(workload)
    record = {"arenas": {name: [asdict(row) for row in rows] for name, rows in found.items()}}
    return Outcome(arenas.arena_table(found), record, [], [])


COMMANDS: dict[str, Callable[[argparse.Namespace, list[Workload], Limits], Outcome]] = {
    "rows": run_rows, "kernels": run_kernels, "overhead": run_overhead, "first_call": run_first_call,
    "arenas": run_arenas}
DEFAULT_FAMILIES = {"overhead": ["overhead"], "first_call": ["models"], "arenas": ["models"]}
"""What a command measures where no family is named, if not everything."""


def main_gpu(options: argparse.Namespace) -> int:
    """The table of a GPU. Returns 1, with the reason on stderr, where there is none, or where a library
    failed."""
    try:
        text, whole = gpu.run_gpu(options.only, options.rounds, device=options.device, small=options.small,
                                  peers=options.peers, file=options.json)
    except gpu.NoGPU as reason:
        progress(str(reason))
        return 1
    print(text)
    return 0 if whole else 1


def main_graphs(options: argparse.Namespace) -> int:
    """The table of large graphs. Returns 1 where one failed."""
    rows, failures = [], []
    for number, graph in enumerate(chosen := graphs.chosen_graphs(options.only), 1):
        progress(f"[{number}/{len(chosen)}] {graph.name}")
        try:
            rows.append(graphs.row_of(graph, options.rounds, options.small))
        except RuntimeError as error:  # what fails is this row's result
            failures.append(str(error))
    print(graphs.graph_table(rows))
    for failure in failures:
        progress(failure)
    if options.json is not None:
        options.json.write_text(json.dumps({"graphs": [asdict(row) for row in rows]}, indent=1))
    return 1 if failures else 0


def main_recording(options: argparse.Namespace) -> int:
    """The table of what recording adds."""
    rows = []
    for name in recording.STEPS:
        if not options.only or any(text in name for text in options.only):
            progress(name)
            rows.append(recording.row_of(name, options.rounds, options.burst))
    print(recording.recording_table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"recording": [asdict(row) for row in rows]}, indent=1))
    return 0 if rows else 1


def main_scale(options: argparse.Namespace) -> int:
    """The tables of several processes. Returns 1, with the reason on stderr, where they cannot be run."""
    try:
        text, record = scale.run_scale(options.ranks, options.only, options.scaling)
    except RuntimeError as reason:
        progress(str(reason))
        return 1
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps({"scale": record}, indent=1))
    return 0


def main_onnx(options: argparse.Namespace) -> int:
    """The table of ONNX models. Returns 1 where none is installed, or one failed."""
    rows, failures = [], []
    for name, write in onnx_files.models(options.only):
        progress(name)
        try:
            rows.append(onnx_models.row_of(name, write, options.rounds, options.burst, options.threads))
        except ChildError as error:  # what fails is this row's result
            failures.append(f"{name}: {error}")
    print(onnx_models.onnx_table(rows))
    for failure in failures:
        progress(failure)
    if options.json is not None:
        options.json.write_text(json.dumps({"onnx": [asdict(row) for row in rows]}, indent=1))
    return 1 if failures or not rows else 0


def main_language_models(options: argparse.Namespace) -> int:
    """A table for each language model. Returns 1 where one is not installed, or a library failed."""
    record = {}
    try:
        for model in language_models.chosen_models(options.only):
            rows = language_models.run_language_models(options.rounds, options.threads, model)
            print(model, language_models.model_table(rows), sep="\n")
            record[model] = [asdict(row) for row in rows]
    except (ChildError, ValueError) as reason:
        progress(str(reason))
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps({"llm": record}, indent=1))
    return 0


def main_torch(options: argparse.Namespace) -> int:
    """The table of PyTorch's models. Returns 1 where there is no PyTorch, or one failed."""
    rows = []
    try:
        for name in torch_models.chosen_networks(options.only):
            progress(name)
            rows.append(torch_models.row_of(name, options.rounds, options.burst, options.threads))
    except RuntimeError as reason:
        progress(str(reason))
        return 1
    print(torch_models.torch_table(rows))
    failures = [f"{row.name}, {way}: {text}" for row in rows for way, text in row.failures.items()]
    for failure in failures:
        progress(failure)
    if options.json is not None:
        options.json.write_text(json.dumps({"torch": [asdict(row) for row in rows]}, indent=1))
    return 1 if failures else 0


def main_sources(options: argparse.Namespace) -> int:
    """What both checkouts write. Returns 1 where a kernel differs, 2 without another checkout."""
    if options.before is None:
        progress("sources are compared with an earlier checkout's: --before FOLDER")
        return 2
    text, is_same = sources.run_sources(options.before, options.only, progress)
    print(text)
    return 0 if is_same else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure beside the peers.")
    parser.add_argument("command", nargs="?", default="rows", help="what to show",
                        choices=[*COMMANDS, "graphs", "gpu", "onnx", "llm", "recording", "scale", "sources",
                                 "torch"])
    parser.add_argument("families", nargs="*", metavar="family", help=f"some of {', '.join(FAMILIES)}")
    parser.add_argument("--only", metavar="TEXT", action="append", help="workloads whose name contains TEXT")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="peers to measure (default: all set up)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of a peer in each row (default 5)")
    parser.add_argument("--burst", type=float, default=0.3, help="seconds of a turn (default 0.3)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads of each peer")
    parser.add_argument("--before", type=Path, metavar="FOLDER",
                        help="of rows and sources: an earlier checkout, measured beside this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    parser.add_argument("--device", default="CUDA", help="of gpu: this library's device (default CUDA)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="of scale: processes (default 2)")
    parser.add_argument("--scaling", type=Path, metavar="FILE", help="of scale: draw the model as a PNG")
    parser.add_argument("--small", action="store_true", help="of gpu and graphs: small sizes, to see it run")
    parser.add_argument("--roofline", type=Path, metavar="FILE", help="draw what was measured as a PNG")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Returns 1 if anything failed."""
    line = parser()
    options = line.parse_args(arguments)
    if options.command == "gpu":
        return main_gpu(options)
    if options.command == "graphs":
        return main_graphs(options)
    if options.command == "onnx":
        return main_onnx(options)
    if options.command == "llm":
        return main_language_models(options)
    if options.command == "torch":
        return main_torch(options)
    if options.command == "recording":
        return main_recording(options)
    if options.command == "scale":
        return main_scale(options)
    if options.command == "sources":
        return main_sources(options)
    unknown = [family for family in options.families if family not in FAMILIES]
    if unknown:
        line.error(f"no family named {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    workloads = chosen_workloads(options.families or DEFAULT_FAMILIES.get(options.command, []), options.only)
    if not workloads:
        line.error("no workload has such a name")
    limits = measure_limits(options.threads)
    features = f", CPU_FEATURES={os.environ['CPU_FEATURES']}" if os.environ.get("CPU_FEATURES") else ""
    print(f"this machine: {limits}{features}", flush=True)
    if any(workload in odd.WORKLOADS for workload in workloads):
        print(f"BENCH_SEED={odd.SEED}", flush=True)
    outcome = COMMANDS[options.command](options, workloads, limits)
    print(outcome.text)
    for failure in outcome.failures:
        progress(failure)
    if options.json is not None:
        options.json.write_text(json.dumps({"limits": asdict(limits), **outcome.record}, indent=1))
    if options.roofline is not None:
        roofline.draw(outcome.points, limits, options.roofline)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
