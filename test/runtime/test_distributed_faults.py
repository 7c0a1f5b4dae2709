"""What ends one of several processes ends all, with the cause, and leaves the last checkpoint whole."""
from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from rank_processes import needs_ranks, run_ranks, start_ranks

from tinygrad.nn import checkpoints

pytest.importorskip("mpi4py", reason="ranks need the extra mpi")
pytestmark = needs_ranks

EXCHANGE = "Tensor.ones(4, 3).contiguous().shard(world.devices, 0).sum(0).numpy()"
FAULTS = {
    "raises": ("if world.rank == 1: raise ValueError('no such thing')\n" + EXCHANGE,
               "rank 1 of 2: Traceback", "no such thing"),
    "raises in a thread": ("""
import queue, threading
batches = queue.Queue(2)
def load():
    for step in range(3):
        if world.rank == 1 and step == 2: raise ValueError('no such file')
        batches.put(np.ones((4, 3), np.float32))
threading.Thread(target=load, name='loader', daemon=True).start()
for step in range(3):
    Tensor(batches.get()).shard(world.devices, 0).sum(0).numpy()
""", "rank 1 of 2: thread loader: Traceback", "no such file"),
    "exits": ("if world.rank == 1: sys.exit(0)\n" + EXCHANGE,
              "rank 0 of 2: rank 1 has ended, and this one waits for it", ""),
    "is killed": ("if world.rank == 1: os.kill(os.getpid(), 9)\n" + EXCHANGE, "signal 9", ""),
    "runs another program": ("x = Tensor.ones(4, 3 + world.rank).contiguous()\n"
                             "x.shard(world.devices, 0).sum(0).numpy()",
                             "do not run the same program: exchange 1 of", ""),
    "runs a program of the same shapes": ("x = Tensor.ones(4, 3).contiguous().shard(world.devices, 0)\n"
                                          "(x.exp() if world.rank else x.sqrt()).sum(0).numpy()",
                                          "do not run the same program: exchange 1 of",
                                          "computes float32 (3,) on"),
    "runs a program of other collectives": (
        "x = Tensor.ones(4, 3).contiguous().shard(world.devices, 0).realize()\n"
        "(x.shard(world.devices) if world.rank else x.sum(0)).realize()\nDevice.synchronize()",
        "do not run the same program: exchange 1 between them is", "computes float32"),
    "takes too long": ("if world.rank == 1: time.sleep(50)\n" + EXCHANGE,
                       "takes longer than 5 s (DISTRIBUTED_TIMEOUT)", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_ends_one_rank_ends_all_with_the_cause(fault: str) -> None:
    program, cause, detail = FAULTS[fault]
    began = time.monotonic()
    done = run_ranks(2, program, DISTRIBUTED_TIMEOUT="5" if fault == "takes too long" else "40")
    said = done.stderr + done.stdout
    assert done.returncode != 0
    assert cause in said and detail in said, said
    assert time.monotonic() - began < 30


OF_THREE = {
    "reads what others sum": ("x = Tensor.ones(6, 4).contiguous().shard(world.devices, 0).realize()\n"
                              "x.numpy() if world.rank == 2 else x.sum(0).realize()\nDevice.synchronize()",
                              "exchange 1 between them is a collective of ranks 0, 1, 2 there and a "
                              "broadcast by rank 2 here", "rank 2 computes float32 (6, 4) on CPU"),
    "sums more than others": ("x = Tensor.ones(6, 4 + (world.rank == 2)).contiguous()\n"
                              "x.shard(world.devices, 0).sum(0).numpy()",
                              "do not run the same program", "rank 2 computes float32 (1, 5) on RANK"),
}


@pytest.mark.parametrize("fault", OF_THREE)
def test_one_of_three_ranks_that_runs_another_program_is_named_before_the_time_out(fault: str) -> None:
    """Who broadcasts had gone on to the next exchange, about which the others said nothing; and MPI's error
    of a message too long stood where the cause should."""
    program, cause, detail = OF_THREE[fault]
    done = run_ranks(3, program, DISTRIBUTED_TIMEOUT="60")
    assert done.returncode != 0
    assert cause in done.stderr and detail in done.stderr, done.stderr
    assert "takes longer than" not in done.stderr


def test_the_rank_that_others_wait_for_too_long_is_named() -> None:
    done = run_ranks(3, "if world.rank == 1: time.sleep(50)\n" + EXCHANGE, DISTRIBUTED_TIMEOUT="5")
    assert done.returncode != 0
    assert "takes longer than 5 s (DISTRIBUTED_TIMEOUT): rank 1 is not at it" in done.stderr, done.stderr


EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt_distributed.py"
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--batch", "4"]


def some_text(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 20, encoding="utf-8")
    return str(path)


def test_a_checkpoint_has_tensors_of_single_ranks_and_of_every_process(tmp_path: Path) -> None:
    done = run_ranks(2, f"""
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        spread = Tensor(a).shard(world.devices, 0)
        for tensors in ({{"second": Tensor(a).to("RANK:1").realize()[1:]}}, {{"own": Tensor(a)[1:]}},
                        {{"first": Tensor(a).to("RANK")[1:], "read": spread.to("CPU")[1:]}}):
            for step in range(2):
                nn.checkpoints.save(tensors, {str(tmp_path)!r}, {{"step": step}})
                found, metadata = nn.checkpoints.load({str(tmp_path)!r})
                assert metadata == {{"step": step}} and found.keys() == tensors.keys()
                for tensor in found.values():
                    np.testing.assert_array_equal(tensor.numpy(), a[1:])
                spread.sum().item()  # none writes again before all have read
        print("equal")
    """, DISTRIBUTED_TIMEOUT="60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 2


def test_a_checkpoint_is_of_tensors_that_all_ranks_name_in_whatever_order(tmp_path: Path) -> None:
    """Who writes a tensor that several have followed from the order of names: with those of a set, which
    differs between processes, some were in no file, and the checkpoint before was removed."""
    done = run_ranks(2, f"""
        tensors = {{name: Tensor.full((size,), size).contiguous().shard(world.devices)
                   for name, size in (("a", 8), ("b", 2), ("c", 5))}}
        folder = {str(tmp_path)!r}
        nn.checkpoints.save(dict(sorted(tensors.items(), reverse=world.rank == 1)), folder, {{"step": 1}})
        found, _ = nn.checkpoints.load(folder)
        assert list(found) == ["a", "b", "c"]
        for name, tensor in found.items():
            np.testing.assert_array_equal(tensor.numpy(), tensors[name].numpy())
        if world.rank == 1:
            tensors["d"] = tensors.pop("c")
        try:
            nn.checkpoints.save(tensors, folder, {{"step": 2}})
        except ValueError as error:
            assert nn.checkpoints.load(folder)[1] == {{"step": 1}}
            print(error)
    """, DISTRIBUTED_TIMEOUT="60")
    assert done.returncode == 0, done.stderr
    cause = "those of rank 0 have other names, dtypes, shapes or layouts than those of rank 1"
    assert done.stdout.splitlines() == [f"ranks save different tensors: {cause}"] * 2


def test_training_goes_on_from_a_checkpoint_with_another_number_of_ranks(tmp_path: Path) -> None:
    def losses(count: int, steps: int, folder: str, *more: str) -> list[str]:
        done = start_ranks(count, [str(EXAMPLE), some_text(tmp_path), *SMALL, "--every", "5", "--steps",
                                   str(steps), "--folder", str(tmp_path / folder), *more])
        assert done.returncode == 0, done.stderr
        return [line.split(",")[0] for line in done.stdout.splitlines()]

    whole = losses(2, 15, "whole")
    parted = losses(2, 5, "parted") + losses(1, 15, "parted", "--resume")
    assert len(whole) == 3
    assert parted == whole


FAULT = """
import os, runpy, signal, sys, threading

def ends(how):
    def handler(_, frame):
        while frame is not None and frame.f_code.co_name not in ("__del__", "_forget"):
            frame = frame.f_back
        if frame is not None:  # Python would print what a finalizer raises, and go on
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        elif how == "raises":
            raise ValueError("injected")
        else:
            sys.exit(0)
    return handler

kind, seconds, rank, program, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
if os.environ["OMPI_COMM_WORLD_RANK"] == rank:
    if kind in ("raises", "exits"):
        signal.signal(signal.SIGALRM, ends(kind))
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
    else:
        act = {"is killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "leaves": lambda: os._exit(0),
               "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
               "is interrupted": lambda: os.kill(os.getpid(), signal.SIGINT)}[kind]
        timer = threading.Timer(float(seconds), act)
        timer.daemon = True
        timer.start()
sys.argv[0] = program
sys.path.insert(0, os.path.dirname(program))
runpy.run_path(program, run_name="__main__")
"""
KINDS_OF_FAULTS = ("raises", "exits", "is killed", "leaves", "stops", "is interrupted")


NUMBER_OF_FAULTS = int(os.environ.get("FAULTS", "50"))
"""About half of them in three ranks, whose gradients MPI's own collectives sum."""
NOT_SLOW = 3


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.slow] if n >= NOT_SLOW else [])
                                    for n in range(NUMBER_OF_FAULTS)])
def test_a_fault_at_any_time_ends_all_and_leaves_a_whole_checkpoint(number: int, tmp_path: Path) -> None:
    random = np.random.default_rng(number)
    count = 2 + number // len(KINDS_OF_FAULTS) % 2
    kind, rank = KINDS_OF_FAULTS[number % len(KINDS_OF_FAULTS)], random.integers(count)
    seconds = float(random.uniform(0.5, 8.0))
    began = time.monotonic()
    done = start_ranks(count, ["-c", FAULT, kind, str(seconds), str(rank), str(EXAMPLE), some_text(tmp_path),
                               *SMALL, "--batch", "6", "--steps", "1000000", "--every", "2", "--folder",
                               str(tmp_path / "saved")], DISTRIBUTED_TIMEOUT="5")
    assert done.returncode != 0, (kind, seconds)
    assert time.monotonic() - began < seconds + 20, (kind, seconds, done.stderr)
    saved = tmp_path / "saved"
    if any(saved.glob("*.json")):
        tensors, _ = checkpoints.load(saved)
        assert all(np.isfinite(t.numpy()).all() for t in tensors.values())
