"""What one process of `bench/scale.py` does: `mpirun -n 2 python -m bench.scale_ranks collectives`.

Times work that all ranks do together, and prints what rank 0 found as JSON: seconds by name.
"""
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from bench.workloads.base import ITEM, Step, normal
from bench.workloads.models import MakeNetwork, integers, tinygrad_training
from bench.workloads.models.sizes import SMALL_GPT
from tinygrad import Device, Tensor, TinyJit, distributed
from tinygrad.graph.sharding import even_spans
from tinygrad.runtime.rank import World

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of a whole value."""
ROWS = 64
"""Of the matrix that is cut along its rows and then along its columns."""
ROUNDS, TURN, MOST = 5, 0.3, 200
"""Turns of each, the seconds that one takes at least, and its most steps."""
BATCHES = {"mnist": 512, "gpt": 8}
"""Of all ranks together."""
Run = Callable[[], object]
WAIT = Device.synchronize


def timed(runs: dict[str, tuple[Run, Run]], barrier: Run, agreed: Callable[[int], int]) -> dict[str, float]:
    """Seconds of each run, the median of turns in which they alternate; each has what waits for it. All
    ranks make the same steps."""
    steps: dict[str, int] = {}
    for name, (run, wait) in runs.items():
        for _ in range(3):
            run()
        wait()
        barrier()
        start = time.perf_counter()
        run()
        wait()
        steps[name] = agreed(max(1, min(MOST, int(TURN / (time.perf_counter() - start)))))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, (run, wait) in runs.items():
            barrier()
            start = time.perf_counter()
            for _ in range(steps[name]):
                run()
            wait()
            found[name].append((time.perf_counter() - start) / steps[name])
    return {name: median(seconds) for name, seconds in found.items()}


# --- collectives ------------------------------------------------------------------------------------------


def replayed(make: Callable[[Tensor], Tensor], source: Tensor) -> Run:
    """What `make` makes of a tensor, under TinyJit."""
    call = TinyJit(lambda x: make(x).realize())
    return lambda: call(source)


def resharded_by_mpi(mpi: Any, rows: int, columns: int) -> dict[str, Run]:
    """A matrix of which each rank has some rows, then some columns, in order, in the two ways that mpi4py has
    for it: blocks packed before they are sent, and blocks sent by datatypes that say where they lie."""
    comm, ranks, own = mpi.COMM_WORLD, mpi.COMM_WORLD.Get_size(), mpi.COMM_WORLD.Get_rank()
    high, wide = ([b - a for a, b in even_spans(size, ranks)] for size in (rows, columns))
    spans = even_spans(columns, ranks)
    source = np.ones((high[own], columns), np.float32)
    target = np.empty((rows, wide[own]), np.float32)
    sent, received = [high[own] * n for n in wide], [n * wide[own] for n in high]
    blocks = np.empty(source.size, np.float32)
    pieces = [piece.reshape(high[own], -1) for piece in np.split(blocks, np.cumsum(sent)[:-1])]

    def packed() -> None:
        for piece, (start, end) in zip(pieces, spans, strict=True):
            piece[:] = source[:, start:end]
        comm.Alltoallv((blocks, sent), (target, received))

    given = [mpi.FLOAT.Create_subarray(source.shape, (high[own], end - start), (0, start)).Commit()
             for start, end in spans]
    begins = np.cumsum([0, *high])
    taken = [mpi.FLOAT.Create_subarray(target.shape, (n, wide[own]), (int(start), 0)).Commit()
             for n, start in zip(high, begins, strict=False)]
    once = [1] * ranks, [0] * ranks

    def typed() -> None:
        comm.Alltoallw((source, once, given), (target, once, taken))

    return {"packed": packed, "typed": typed}


def kept_by_mpi(comm: Any, source: Any, target: Any) -> Run:
    """What gives every rank, the first one too, what that has, in memory of its own."""

    def run() -> None:
        if comm.Get_rank():
            comm.Ibcast(target, 0).Wait()
            return
        request = comm.Ibcast(source, 0)
        target[:] = source
        request.Wait()

    return run


def collectives(mpi: Any, world: distributed.World) -> dict[str, tuple[Run, Run]]:
    """Each collective on values of `SIZES`, ours under TinyJit, and as mpi4py has it. Two are to end with
    the same data in the same memory, which takes mpi4py more than its call: an all-to-all in its order, and a
    broadcast with a value of its own for the giver, too. `bare` is the call alone, on blocks that lie
    together before and after."""
    comm, ranks = mpi.COMM_WORLD, world.size
    runs: dict[str, tuple[Run, Run]] = {}
    for size in SIZES:
        items = size // ITEM
        whole, part = np.ones(items, np.float32), np.ones(items // ranks, np.float32)
        partial = Tensor(normal(ranks, items)).shard(world.devices, 0).realize()
        cut = Tensor(normal(ranks, items // ranks)).shard(world.devices, 0).realize()
        own = Tensor(normal(items)).to(world.devices[0]).realize()
        square = Tensor(normal(ROWS, items // ROWS)).shard(world.devices, 0).realize()
        target = np.empty_like(whole)
        for name, make, source, plain in (
                ("all-reduce", lambda x: x.sum(0), partial,
                 lambda w=whole, t=target: comm.Allreduce(w, t)),
                ("all-gather", lambda x: x.shard(world.devices), cut,
                 lambda p=part, t=target: comm.Allgather(p, t)),
                ("all-to-all", lambda x: x.shard(world.devices, 1), square,
                 lambda p=part, t=target[:items // ranks]: comm.Alltoall(p, t)),
                ("broadcast", lambda x: x.shard(world.devices), own,
                 lambda w=whole: comm.Bcast(w, 0))):
            runs[f"{name} {size} tinygrad"] = replayed(make, source), WAIT
            others: dict[str, Run] = {"mpi4py": plain}
            if name == "all-to-all":
                others = {**resharded_by_mpi(mpi, ROWS, items // ROWS), "bare": plain}
            elif name == "broadcast":
                others = {"mpi4py": kept_by_mpi(comm, whole, target), "bare": plain}
            runs |= {f"{name} {size} {way}": (run, lambda: None) for way, run in others.items()}
    return runs


# --- training ---------------------------------------------------------------------------------------------


def networks(name: str) -> tuple[MakeNetwork, Callable[[], Any], Callable[[], Any], str, dict[str, float]]:
    """(the network, its inputs and targets, the optimizer and its settings)."""
    batch = BATCHES[name]
    if name == "mnist":
        return (lambda n: n.mnist_convnet(), lambda: normal(batch, 1, 28, 28), lambda: integers(10, batch),
                "Adam", {"lr": 0.001})
    vocabulary, context = SMALL_GPT.vocabulary, SMALL_GPT.context
    return (lambda n: n.GPT(SMALL_GPT), lambda: integers(vocabulary, batch, context),
            lambda: integers(vocabulary, batch, context, seed=2), "AdamW", {"lr": 0.001, "weight_decay": 0.1})


def ours(name: str, world: distributed.World) -> Step:
    """A step of data parallel training."""
    return tinygrad_training(*networks(name), devices=world.devices if world.size > 1 else ())


def torch_ddp(name: str, world: distributed.World) -> Step:
    """The same step in PyTorch, its gradients averaged by DistributedDataParallel over gloo."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from bench.workloads.models import in_torch

    torch.set_num_threads(int(os.environ["THREADS"]))
    make, inputs, targets, optimizer, settings = networks(name)
    network: Any = in_torch.with_weights(make(in_torch))
    part = slice(world.rank * BATCHES[name] // world.size, (world.rank + 1) * BATCHES[name] // world.size)
    if world.size > 1:
        torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.size)
        network = DistributedDataParallel(network)
    updates = getattr(torch.optim, optimizer)(network.parameters(), **settings)
    x, y = torch.from_numpy(inputs()[part]), torch.from_numpy(targets()[part]).long()

    def step() -> Any:
        updates.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(network(x).flatten(0, -2), y.flatten())
        loss.backward()
        updates.step()
        return loss.detach()

    return step


def exchanges_of(world: distributed.World) -> int:
    """What this rank took part in so far, with others."""
    joined = World.current
    return 0 if joined is None else max(joined.turns)


def main(what: str) -> None:
    from mpi4py import MPI as mpi

    world = distributed.init()
    comm = mpi.COMM_WORLD

    def agreed(number: int) -> int:
        return int(comm.bcast(number, 0))

    if what == "collectives":
        found = timed(collectives(mpi, world), comm.Barrier, agreed)
        for size in SIZES:
            found[f"all-to-all {size} mpi4py"] = min(found[f"all-to-all {size} packed"],
                                                     found[f"all-to-all {size} typed"])
    else:
        run = ours(what, world)
        runs: dict[str, tuple[Run, Run]] = {"tinygrad": (run, WAIT)}
        try:
            runs["torch"] = torch_ddp(what, world), lambda: None
        except ImportError:
            print("PyTorch is not installed", file=sys.stderr)
        found = timed(runs, comm.Barrier, agreed)
        WAIT()
        before, turns = world.sent_bytes, exchanges_of(world)
        run()
        WAIT()
        found["sent bytes"] = world.sent_bytes - before
        found["gradient bytes"] = found["sent bytes"] * world.size / max(1, 2 * (world.size - 1))
        found["exchanges"] = exchanges_of(world) - turns
    comm.Barrier()
    if world.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
