"""Programs in several processes: `python -m bench scale`.

Starts `bench/scale_ranks.py` by mpirun, each rank with one thread on a core of its own: collectives beside
mpi4py alone; training steps at 1, 2, ... ranks on the same batch beside PyTorch's DistributedDataParallel
over gloo. Then what a model of three constants, fitted to the all-reduces, says of more ranks.
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
    """Microseconds of each collective, ours and mpi4py's, and the rate of ours. Where mpi4py's call alone
    does not end with the same data in memory of its own, that stands beside."""
    lines = [["collective", "bytes", "tinygrad us", "mpi4py us", "ratio", "GB/s", "bare us"]]
    for key, seconds in found.items():
        name, size, library = key.split()
        if library == "tinygrad":
            plain = found[f"{name} {size} mpi4py"]
            lines.append([name, f"{int(size):,}", f"{seconds * 1e6:.0f}", f"{plain * 1e6:.0f}",
                          f"{seconds / plain:.1f}", f"{int(size) / seconds / 1e9:.2f}",
                          f"{bare * 1e6:.0f}" if (bare := found.get(f"{name} {size} bare")) else ""])
    return columns(lines)


# --- the model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """What an exchange costs: `overhead` seconds in Python, `latency` a message, `seconds` a byte (Hockney,
    "The communication challenge for MPP", 1994)."""

    overhead: float
    latency: float
    seconds: float

    def all_reduce(self, size: float, ranks: int, exchanges: float = 1) -> float:
        """So many bytes in so many exchanges, each a reduce-scatter by recursive halving and an all-gather by
        recursive doubling, as MPI has them (Thakur, Rabenseifner and Gropp, "Optimization of collective
        communication operations in MPICH", 2005)."""
        rounds = (ranks - 1).bit_length()
        moved = 2 * (ranks - 1) / ranks * size
        return bool(rounds) * exchanges * (self.overhead + 2 * rounds * self.latency) + self.seconds * moved

    def step(self, seconds: float, found: Found, ranks: int) -> float:
        """A step that takes `seconds` on one rank and sums gradients as the one does that `found` is of,
        where each rank has the batch that one has, and nothing of the sum is done beside the gradients: at
        the worst."""
        return seconds + self.all_reduce(found["gradient bytes"], ranks, found["exchanges"])


def fitted(found: Found, ranks: int) -> Network:
    """The constants of the smallest and the largest all-reduce; a message takes what it takes in mpi4py."""
    times = {int(key.split()[1]): seconds for key, seconds in found.items()
             if key.startswith("all-reduce") and key.endswith("tinygrad")}
    small, large = min(times), max(times)
    plain = found[f"all-reduce {small} mpi4py"]
    per_byte = (times[large] - times[small]) / (large - small) * ranks / (2 * (ranks - 1))
    return Network(max(0.0, times[small] - plain), plain / (2 * (ranks - 1).bit_length()), per_byte)


def prediction_table(network: Network, steps: Mapping[str, Mapping[int, Found]]) -> str:
    """For each network, what a rank of many does of what one rank alone does: with a batch for each rank as
    large as the whole one here."""
    lines = [["data parallel, a whole batch for each rank", *(f"{n:,} ranks" for n in PREDICTED)]]
    for name, by_count in steps.items():
        most, alone = by_count[max(by_count)], by_count[1]["tinygrad"]
        lines.append([NETWORKS[name], *(f"{alone / network.step(alone, most, n):.0%}" for n in PREDICTED)])
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


def checked_table(network: Network, collectives: Mapping[int, Found], cores: int) -> str:
    """Milliseconds of all-reduces as the model has them, and as they were measured. Of more ranks than cores
    each has to wait for its turn: the model's time is for the cores that all would need."""
    lines = [["all-reduce", "ranks", "model ms", "measured ms"]]
    for count, found in collectives.items():
        turns = max(1.0, count / cores)
        for key, seconds in found.items():
            name, size, library = key.split()
            if (name, library) == ("all-reduce", "tinygrad"):
                lines.append([f"{int(size):,} bytes", str(count),
                              f"{turns * network.all_reduce(int(size), count) * 1e3:.2f}",
                              f"{seconds * 1e3:.2f}"])
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
    checked = checked_table(network, collectives, os.cpu_count() or 1)
    said = (f"{tables}\n\n{steps_table(steps)}\n\nall-reduce: {network.overhead * 1e6:.0f} us, "
            f"{network.latency * 1e6:.1f} us a message, {1e-9 / network.seconds:.2f} GB/s\n"
            f"{checked}\n\n{prediction_table(network, steps)}")
    return said, {"collectives": collectives, "steps": steps}
