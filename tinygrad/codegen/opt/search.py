"""The search: the fastest Plan among those measured, with `BEAM=n`.

In: a kernel's loop nest and its device. Out: a Plan that ran no slower than the cost model's when the two
took turns, and whose results are the plain loops'. The search begins with the plans of the cost model
(`choose.py`), its second choices among them, and with the plain loops shared out over threads. Each round
measures the plans one edit away (`neighbours.py`) from the `n` best so far, until none is better or the time
is over.

Found plans are kept on disk (`plan_cache.py`), by the kernel and all that its speed depends on.
"""
from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from tinygrad import observer
from tinygrad.codegen.kernel_cache import kernel_key
from tinygrad.codegen.opt.choose import alternative_plans, choose_plan, threaded_plan
from tinygrad.codegen.opt.measure import Built, Workbench
from tinygrad.codegen.opt.neighbours import MAX_COPIES, copies, in_turn, neighbours
from tinygrad.codegen.opt.plan import Plan, apply_plan
from tinygrad.codegen.opt.plan_cache import keep_plan, kept_plan
from tinygrad.codegen.ranges import all_ranges
from tinygrad.device import Device
from tinygrad.graph.uop import UOp
from tinygrad.helpers import (
    BEAM,
    BEAM_SECONDS,
    CACHELEVEL,
    DEBUG,
    IGNORE_BEAM_CACHE,
    colored,
    shows_progress,
)
from tinygrad.renderer.machine import Machine

TOGETHER = 8
"""Plans compiled before they are timed: timing waits until nothing else runs."""
RACE_SECONDS = 0.02
"""How long a plan takes turns with the cost model's, and"""
FINAL_SECONDS = 0.2
"""how long the best ones do in the end."""
HOPELESS = 1.5
"""A first run so many times as long as the cost model's plan ends the measurement of a plan."""
PROGRESS = 0.99
"""A round that leaves the best time above this share of what it was is the last."""
BETTER = 0.97
"""A plan replaces the cost model's if it takes at most this share of its time: what is closer is noise."""
FINALISTS = 3
WRONG = "wrong results"


def searched_plan(ast: UOp, nest: UOp, device: str) -> Plan:
    """The plan of a kernel by a search as BEAM says, or by an earlier one that is remembered."""
    machine = Device[device].renderer.machine
    width, seconds = int(BEAM), float(BEAM_SECONDS.value)
    key = kernel_key(ast, device)
    may_recall = CACHELEVEL and not IGNORE_BEAM_CACHE
    kept = kept_plan(key, width, seconds) if may_recall and key is not None else None
    if kept is not None and applies(nest, kept, machine):
        return kept
    try:
        with observer.span("search"):
            found = Search(nest, device, width, seconds).run()
    except (MemoryError, RuntimeError) as error:
        if DEBUG >= 2:
            print(f"no search: {error}")
        return choose_plan(nest, machine)
    if (watcher := observer.active) is not None:
        watcher.plans_measured(nest, device, found.rows(), found)
    if DEBUG >= 2:
        print(f"searched {colored(found.summary(), 'green')}")
    if CACHELEVEL and key is not None:
        keep_plan(key, width, seconds, found.plan)
    return found.plan


def applies(nest: UOp, plan: Plan, machine: Machine) -> bool:
    """True if `plan` is one for `nest` that a search could have found."""
    try:
        optimised = apply_plan(nest, plan)
    except ValueError:
        return False
    return copies(optimised) <= most_copies(nest, machine)


def most_copies(nest: UOp, machine: Machine) -> int:
    """Copies of a value that a plan may write out: some, or as many as the cost model's plan."""
    return max(MAX_COPIES, copies(apply_plan(nest, choose_plan(nest, machine))))


@dataclass
class Measured:
    """A plan, and its time in parts of that of the cost model's plan, the two taking turns."""

    kernel: Built
    share: float


@dataclass
class Search:
    """A search for the plan of `nest` among `width` plans at a time, for so many seconds. `Workbench` says
    what it raises."""

    nest: UOp
    device: str
    width: int
    budget: float
    measured: list[Measured] = field(default_factory=list)
    """the right ones, the fastest first"""
    seen: set[Plan] = field(default_factory=set)
    refused: list[tuple[Plan, str]] = field(default_factory=list)
    """plans that were not timed to the end, and why"""

    def run(self) -> Search:
        """Find the fastest `plan`, of which a run takes so many `seconds`. Returns the search."""
        self.end = time.perf_counter() + self.budget
        self.bench = Workbench(self.nest, self.device)
        machine = self.bench.renderer.machine
        self.default = self.bench.build(self.nest, choose_plan(self.nest, machine))
        self.default_seconds = min(self.bench.run(self.default) for _ in range(3))
        self.most_copies = most_copies(self.nest, machine)
        self.seen.add(self.default.plan)
        self.measured.append(Measured(self.default, 1.0))
        from tinygrad.progress import tqdm  # slow to import

        with tqdm(desc="searching for a plan", unit="plan", delay=1, leave=False,
                  disable=not shows_progress()) as self.progress:
            if all_ranges(self.nest):
                self.measure([*alternative_plans(self.nest, machine), threaded_plan(self.nest, machine)])
                self.extend()
        self.decide()
        return self

    def summary(self) -> str:
        """One line on what was found."""
        return (f"{len(self.seen)} plans: {self.default_seconds * 1e6:.1f} us -> "
                f"{self.seconds * 1e6:.1f} us, {self.default_seconds / self.seconds:.2f}x: {self.plan}"
                + (f" ({self.wrong} gave wrong results)" if self.wrong else ""))

    @property
    def wrong(self) -> int:
        """Plans whose results were not those of the plain loops."""
        return sum(why == WRONG for _, why in self.refused)

    def extend(self) -> None:
        """Round after round, measure what is near the best."""
        machine = self.bench.renderer.machine
        done: set[Plan] = set()
        best = float("inf")
        while self.measured[0].share < best * PROGRESS and self.has_time():
            best = self.measured[0].share
            beam = [m.kernel.plan for m in self.measured[:self.width] if m.kernel.plan not in done]
            done.update(beam)
            self.measure(in_turn(*(neighbours(self.nest, plan, machine) for plan in beam)))

    def rows(self) -> list[tuple[str, float | None, str]]:
        """(plan, seconds of a run, what became of it) of each plan that was tried."""
        timed = [(str(m.kernel.plan), m.share * self.default_seconds, "measured") for m in self.measured]
        return [*timed, *((str(plan), None, why) for plan, why in self.refused)]

    def has_time(self) -> bool:
        return time.perf_counter() < self.end

    def measure(self, plans: Iterable[Plan]) -> None:
        """Measure those of `plans` that are new, as far as there is time."""
        fresh = (p for p in plans if p not in self.seen)
        while self.has_time() and (together := list(itertools.islice(fresh, TOGETHER))):
            self.seen.update(together)
            for kernel in self.bench.build_all(dict.fromkeys(together), self.most_copies):
                self.consider(kernel)
        self.measured.sort(key=lambda m: m.share)

    def consider(self, kernel: Built) -> None:
        """Time a kernel, unless its first run says that it is slow; check those that are not."""
        self.progress.update()
        if not self.has_time():
            return
        if not self.is_promising(kernel):
            self.refused.append((kernel.plan, "slow"))
            return
        if not self.bench.is_right(kernel):
            self.refused.append((kernel.plan, WRONG))
            return
        mine, default = self.bench.race(kernel, self.default, RACE_SECONDS)
        self.default_seconds = min(self.default_seconds, *default)
        self.measured.append(Measured(kernel, min(mine) / min(default)))
        best = min(m.share for m in self.measured)
        self.progress.set_postfix_str(f"{1 / best:.2f}x the default's speed")

    def is_promising(self, kernel: Built) -> bool:
        """Whether one of two first runs, which fill the caches, is not hopelessly slow."""
        limit = HOPELESS * self.default_seconds
        return self.bench.run(kernel) <= HOPELESS * limit and self.bench.run(kernel) <= limit

    def decide(self) -> None:
        """The best plan that is still faster than the cost model's when both run for longer; else that
        one."""
        self.plan, seconds = self.default.plan, None
        for candidate in self.measured[:FINALISTS]:
            if candidate.share > BETTER:
                break
            mine, default = self.bench.race(candidate.kernel, self.default, FINAL_SECONDS, least=5)
            self.default_seconds = min(self.default_seconds, *default)
            if min(mine) <= BETTER * min(default) and median(mine) <= median(default):
                self.plan, seconds = candidate.kernel.plan, min(mine)
                break
        self.seconds = self.default_seconds if seconds is None else seconds
