"""Programs in several processes: `python -m bench scale`.

Starts `bench/scale_ranks.py` by mpirun, each rank with one thread on a core of its own: collectives beside
mpi4py alone; training steps at 1, 2, ... ranks on the same batch beside PyTorch's DistributedDataParallel
over gloo. Then what a model of two constants, fitted to the all-reduces, says of more ranks.
"""
from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.results import columns

NETWORKS = {"mnist": "MNIST convnet, 512 images", "gpt": "GPT of 4 layers, 8x256 tokens"}
PREDICTED = (8, 64, 1024)
Found = Mapping[str, float]


class NoRanks(RuntimeError):
    """There is no mpirun here."""


def processor() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "an unknown processor"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "an unknown processor")


def mpirun() -> str:
    """The mpirun of this environment, or the first on the path. Raises NoRanks where there is none."""
    folders = Path(sys.executable).parent, os.environ.get("PATH", "")
    found = shutil.which("mpirun", path=os.pathsep.join(map(str, folders)))
    if found is None:
        raise NoRanks("there is no mpirun: python3 -m pip install -e '.[mpi]'")
    return found


def run_ranks(count: int, what: str) -> Found:
    """What `count` ranks found. Raises RuntimeError with their words where they fail."""
    environment = {**os.environ, "THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531",
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # where there are fewer cores than ranks, these take turns
    place = ["--bind-to", "core"] if count <= (os.cpu_count() or 1) else ["--oversubscribe"]
    done = subprocess.run([mpirun(), *place, "-n", str(count), sys.executable, "-m", "bench.scale_ranks",
                           what], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{count} ranks, {what}: {done.stderr.strip()}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def collectives_table(found: Found) -> str:
    """Microseconds of each collective, ours and mpi4py's, and the rate of ours."""
    lines = [["collective", "bytes", "tinygrad us", "mpi4py us", "ratio", "GB/s"]]
    for key, seconds in found.items():
        name, size, library = key.split()
        if library == "tinygrad":
            plain = found[f"{name} {size} mpi4py"]
            lines.append([name, f"{int(size):,}", f"{seconds * 1e6:.0f}", f"{plain * 1e6:.0f}",
                          f"{seconds / plain:.1f}", f"{int(size) / seconds / 1e9:.2f}"])
    return columns(lines)


# --- the model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """What messages cost: `latency` seconds each, `seconds` a byte (Hockney, "The communication challenge
    for MPP", 1994)."""

    latency: float
    seconds: float

    def all_reduce(self, size: float, ranks: int) -> float:
        """Reduce-scatter and all-gather, each with a message to every other rank."""
        if ranks == 1:
            return 0.0
        return 2 * (ranks - 1) * (self.latency / 2 + self.seconds * size / ranks)

    def step(self, seconds: float, size: float, ranks: int) -> float:
        """A step that takes `seconds` on one rank and sums `size` bytes of gradients, where each rank has the
        batch that one has, and nothing of the sum is done beside the gradients: at the worst."""
        return seconds + self.all_reduce(size, ranks)


def fitted(found: Found, ranks: int) -> Network:
    """The constants of the smallest and the largest all-reduce."""
    times = {int(key.split()[1]): seconds for key, seconds in found.items()
             if key.startswith("all-reduce") and key.endswith("tinygrad")}
    small, large = min(times), max(times)
    rounds = ranks - 1
    per_byte = (times[large] - times[small]) / (large - small) * ranks / (2 * rounds)
    return Network(times[small] / rounds, per_byte)


def prediction_table(network: Network, steps: Mapping[str, Mapping[int, Found]]) -> str:
    """For each network, what a rank of many does of what one rank alone does: with a batch for each rank as
    large as the whole one here."""
    lines = [["data parallel, a whole batch for each rank", *(f"{n:,} ranks" for n in PREDICTED)]]
    for name, by_count in steps.items():
        size = max(found["sent bytes"] for found in by_count.values())
        alone = by_count[1]["tinygrad"]
        lines.append([NETWORKS[name], *(f"{alone / network.step(alone, size, n):.0%}" for n in PREDICTED)])
    return columns(lines)


def steps_table(steps: Mapping[str, Mapping[int, Found]]) -> str:
    """Milliseconds of a step on the same batch, and how much faster than one rank that is."""
    lines = [["step, one thread a rank", "ranks", "tinygrad ms", "faster", "torch DDP ms", "faster",
              "sent MB"]]
    for name, by_count in steps.items():
        for count, found in by_count.items():
            cells = [NETWORKS[name], str(count)]
            for library in ("tinygrad", "torch"):
                ours, alone = found.get(library), by_count[min(by_count)].get(library)
                cells += ["-", "-"] if ours is None or alone is None else [f"{ours * 1e3:.1f}",
                                                                          f"{alone / ours:.2f}"]
            lines.append([*cells, f"{found['sent bytes'] / 1e6:.2f}"])
    return columns(lines)


def checked_table(network: Network, collectives: Mapping[int, Found]) -> str:
    """Milliseconds of all-reduces as the model has them, and as they were measured."""
    lines = [["all-reduce", "ranks", "model ms", "measured ms"]]
    for count, found in collectives.items():
        for key, seconds in found.items():
            name, size, library = key.split()
            if (name, library) == ("all-reduce", "tinygrad"):
                lines.append([f"{int(size):,} bytes", str(count),
                              f"{network.all_reduce(int(size), count) * 1e3:.2f}", f"{seconds * 1e3:.2f}"])
    return columns(lines)


def run_scale(counts: Sequence[int], only: Sequence[str] | None, picture: Path | None = None
              ) -> tuple[str, dict[str, object]]:
    """The tables, and every time; the model's constants are of the fewest ranks. `picture`: a file to draw
    the model to."""
    collectives = {count: run_ranks(count, "collectives") for count in sorted({*counts} - {1})}
    fewest = min(collectives)
    steps: dict[str, dict[int, Found]] = {}
    for name in NETWORKS:
        if not only or any(text in name for text in only):
            steps[name] = {count: run_ranks(count, name) for count in sorted({1, *counts})}
    network = fitted(collectives[fewest], fewest)
    if picture is not None:
        from bench.scale_picture import draw

        draw(picture, network, steps, f"{processor()}, measured at {', '.join(map(str, collectives))} ranks")
    tables = "\n\n".join(f"{count} ranks\n{collectives_table(found)}" for count, found in collectives.items())
    said = (f"{tables}\n\n{steps_table(steps)}\n\n"
            f"all-reduce: {network.latency * 1e6:.0f} us, {1e-9 / network.seconds:.2f} GB/s\n"
            f"{checked_table(network, collectives)}\n\n{prediction_table(network, steps)}")
    return said, {"collectives": collectives, "steps": steps}
