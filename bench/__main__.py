"""Times every workload in this library and its peers, taking turns, and prints a table.

    python -m bench                                   all workloads, all peers that are set up
    python -m bench --only matmul --peers torch       some of them
    python -m bench --json results.json               every single time, too

The peers take turns within each row, so that a machine that slows down slows all of them. A figure is the
median of all a peer's steps; `ratio` is this library's time over the best peer's, below 1 where this library
is faster. `limit` is the least time that the machine's measured rates allow, as a share of our time.
"""
from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.peers import PEERS, Peer, PeerError, available_peers, environments_folder
from bench.workloads import WORKLOADS, Workload
from tinygrad.runtime.limits import Limits, measure_limits, usable_cores

OURS = "tinygrad"


@dataclass
class Row:
    """What was measured of one workload."""

    workload: str
    first: dict[str, float] = field(default_factory=dict)
    """seconds of each peer's first step, compile included"""
    times: dict[str, list[float]] = field(default_factory=dict)
    """seconds of each later step"""
    failures: dict[str, str] = field(default_factory=dict)

    def middle(self, peer: str) -> float | None:
        return median(self.times[peer]) if self.times.get(peer) else None

    @property
    def best_peer(self) -> float | None:
        return min((m for peer in self.times if peer != OURS and (m := self.middle(peer))), default=None)


def measure(workload: Workload, peers: list[Peer], rounds: int, burst: float) -> Row:
    """Time `workload` in every peer: `rounds` turns each, of about `burst` seconds."""
    row = Row(workload.name)
    means: dict[str, float] = {}
    repeats: dict[str, int] = {}
    ready: list[Peer] = []
    for peer in peers:
        if peer.name not in workload.setups:
            continue
        try:
            answer = peer.ask(do="setup", workload=workload.name)
            warm = min(peer.ask(do="run", repeats=2)["seconds"])
        except PeerError as error:
            row.failures[peer.name] = str(error)
            continue
        row.first[peer.name], means[peer.name] = answer["seconds"], answer["mean"]
        row.times[peer.name] = []
        repeats[peer.name] = max(1, min(1000, round(burst / warm)))
        ready.append(peer)
    for peer in ready * rounds:
        if peer.name in row.failures:
            continue
        try:
            row.times[peer.name] += peer.ask(do="run", repeats=repeats[peer.name])["seconds"]
        except PeerError as error:
            row.failures[peer.name] = str(error)
    expected = median(means.values()) if means else 0.0
    for name, mean in means.items():
        if not math.isclose(mean, expected, rel_tol=workload.tolerance):
            row.failures[name] = f"{name}: a result of mean size {mean:.6g}, where others have {expected:.6g}"
    return row


def table(rows: list[tuple[Workload, Row]], peers: list[str], limits: Limits) -> str:
    """The rows as text in columns."""
    heads = ["workload", *(f"{peer} ms" for peer in peers), "ratio", "GFLOP/s", "GB/s", "limit", "first s"]
    lines = [heads]
    for workload, row in rows:
        times = [row.middle(peer) for peer in peers]
        cells = [workload.name, *("-" if t is None else f"{t * 1e3:.2f}" for t in times)]
        ours, best = row.middle(OURS), row.best_peer
        if ours is None:
            cells += ["-"] * 5
        else:
            least = limits.least_seconds(workload.operations, workload.moved_bytes)
            cells += [
                "-" if best is None else f"{ours / best:.2f}",
                f"{workload.operations / ours / 1e9:.1f}",
                f"{workload.moved_bytes / ours / 1e9:.1f}",
                f"{least / ours:.0%}",
                f"{row.first[OURS]:.2f}",
            ]
        lines.append(cells)
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
                     for line in lines)


def chosen_peers(wanted: list[str] | None) -> list[str]:
    """This library and the peers to measure; a line on stderr says which are not set up."""
    available = available_peers()
    missing = [peer for peer in wanted or PEERS if peer not in available]
    if missing:
        print(f"not set up: {', '.join(missing)}; bench/setup_peers.sh makes them in {environments_folder()}",
              file=sys.stderr)
    return [peer for peer in available if peer == OURS or wanted is None or peer in wanted]


def main() -> int:
    """Run the benchmark that the command line asks for. Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure beside the peers.")
    parser.add_argument("--only", metavar="TEXT", action="append", help="workloads whose name contains TEXT")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="peers to measure (default: all set up)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of a peer in each row (default 5)")
    parser.add_argument("--burst", type=float, default=0.3, help="seconds of a turn (default 0.3)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads of each peer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to FILE")
    options = parser.parse_args()

    workloads = [w for w in WORKLOADS if not options.only or any(text in w.name for text in options.only)]
    limits = measure_limits(options.threads)
    print(f"this machine: {limits}")
    names = chosen_peers(options.peers)
    peers = [Peer(name, options.threads) for name in names]
    rows: list[tuple[Workload, Row]] = []
    try:
        versions = {peer.name: peer.ask(do="version")["version"] for peer in peers}
        print("peers: " + ", ".join(f"{name} {version}".strip() for name, version in versions.items()))
        for workload in workloads:
            print(f"measuring {workload.name}", file=sys.stderr)
            rows.append((workload, measure(workload, peers, options.rounds, options.burst)))
    finally:
        for peer in peers:
            peer.close()
    print(table(rows, names, limits))
    failures = [f"{row.workload}: {failure}" for _, row in rows for failure in row.failures.values()]
    print("\n".join(failures), file=sys.stderr, end="\n" if failures else "")
    if options.json is not None:
        record = {"limits": asdict(limits), "peers": versions, "rows": [asdict(row) for _, row in rows]}
        options.json.write_text(json.dumps(record, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
