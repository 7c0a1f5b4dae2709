"""Taking times: the peers in turns within each row, so that a machine that slows down slows all of them."""
from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from bench.child import ChildError
from bench.peers import LIBRARIES, Peer
from bench.results import Row, disagreements
from bench.workloads import OWN, Workload
from tinygrad.runtime.limits import LimitMeter

WARM_STEPS = 2
"""Steps after the first that are not counted: the public tinygrad captures in its second call."""


def measure(workload: Workload, peers: list[Peer], rounds: int, burst: float, meter: LimitMeter) -> Row:
    """Time `workload` in every peer: `rounds` turns each, of about `burst` seconds; what the machine can do
    before and after each of this library's, of which the limit is a share."""
    row = Row(workload.name)
    answers: dict[str, dict[str, Any]] = {}
    repeats: dict[str, int] = {}
    ready: list[Peer] = []
    for peer in peers:
        if peer.library not in workload.setups:
            continue
        try:
            answer = peer.ask(do="setup", workload=workload.name)
            ran = peer.ask(do="run", repeats=WARM_STEPS)
        except ChildError as error:
            row.failures[peer.name] = str(error)
            continue
        row.first[peer.name], answers[peer.name] = answer["seconds"], answer
        row.times[peer.name] = []
        row.kernels = row.kernels or ran["kernels"]
        warm = min(ran["seconds"])
        repeats[peer.name] = max(1, min(1000, round(burst / warm)))
        ready.append(peer)
    for _ in range(rounds):
        for peer in ready:
            if peer.name in row.failures:
                continue
            is_ours = peer.name in OWN
            if is_ours or not row.limits:
                row.limits.append(meter.measure())
            try:
                row.times[peer.name] += peer.ask(do="run", repeats=repeats[peer.name])["seconds"]
            except ChildError as error:
                row.failures[peer.name] = str(error)
            if is_ours:
                row.limits.append(meter.measure())
    for name, what in disagreements(answers, workload.tolerance).items():
        row.failures[name] = f"{name}: {what}"
    return row


def measure_first_call(workload: Workload, peers: list[str], threads: int) -> Row:
    """The first step of `workload` in a process that has just begun, with nothing kept from before; then,
    for libraries that keep what they compiled, in another process that finds it."""
    row = Row(workload.name)
    for name in peers:
        if name not in workload.setups:
            continue
        with TemporaryDirectory(prefix="bench-") as cache:
            try:
                row.first[name] = first_step(workload, name, threads, cache)
                if LIBRARIES[name].cache_variable is not None:
                    row.again[name] = first_step(workload, name, threads, cache)
            except ChildError as error:
                row.failures[name] = str(error)
    return row


def first_step(workload: Workload, name: str, threads: int, cache: str) -> float:
    """Seconds of the first step in a fresh process that keeps what it compiles in the folder `cache`. Raises
    ChildError."""
    peer = Peer(name, threads, cache)
    try:
        return float(peer.ask(do="setup", workload=workload.name)["seconds"])
    finally:
        peer.close()
