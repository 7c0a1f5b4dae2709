"""One program in several processes, on one machine or many: `mpirun -n 4 python train.py`.

`init()` joins the processes that MPI started. Each is a device of the world; `x.shard(world.devices, axis=0)`
cuts a tensor over them as over the devices of one host, and each process computes and holds its part only.
In one process `init()` gives a world of one device, and the program is an ordinary one. `runtime/rank.py` is
what runs it; docs/several_machines.md the page about it.
"""
from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tinygrad.device import Device
from tinygrad.frozen import frozen
from tinygrad.functional.mesh import Mesh
from tinygrad.runtime import rank as ranks
from tinygrad.runtime.rank_exchange import KIND, name_of
from tinygrad.tensor import Tensor

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""What the environment of a process that Open MPI, MPICH or SLURM started has."""


@frozen
class World:
    """The processes of a program."""

    rank: int
    """which of them this is"""
    size: int
    devices: tuple[str, ...]
    """theirs, for `shard`"""

    def mesh(self, **sizes: int) -> Mesh:
        """The processes in a grid with named axes: `world.mesh(data=2, model=2)`.

        >>> init().mesh(data=1, model=1)["data"]
        <Mesh ('CPU',) data=1, model=1>['data']
        """
        return Mesh(self.devices, **sizes)

    @property
    def sent_bytes(self) -> int:
        """What this process has sent to others so far."""
        world = ranks.World.current
        return 0 if world is None else world.sent


def init(seed: int = 0, device: str = "CPU") -> World:
    """Join the processes that MPI started: all call this first, with the same seed, which random numbers then
    have everywhere, in a program of one process too. device: what each computes on, CPU, or CUDA (a GPU each,
    which exchange by NCCL). Raises ImportError where mpi4py is missing, ValueError for other devices.

    >>> world = init()
    >>> world.rank, world.size, world.devices
    (0, 1, ('CPU',))
    """
    if device not in ("CPU", "CUDA"):
        raise ValueError(f"ranks compute on CPU or CUDA, got {device!r}")
    if ranks.World.current is None and any(name in os.environ for name in SIZES):
        _join(device)
    world = ranks.World.current
    Tensor.manual_seed(seed)
    if world is None:
        return World(0, 1, (Device.DEFAULT,))
    return World(world.rank, world.size, tuple(map(name_of, range(world.size))))


@contextmanager
def _bounded() -> Iterator[None]:
    """A block that ends this process, and so all, where it takes longer than an exchange may: another one may
    have ended before it joined, for which MPI waits without letting the interpreter go."""
    try:
        faulthandler.dump_traceback_later(ranks.timeout(), exit=True)
    except (OSError, ValueError):  # standard error is no file
        yield
        return
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _join(device: str) -> None:
    with _bounded():
        _join_world(device)


def _join_world(device: str) -> None:
    try:
        from mpi4py import MPI
    except ImportError as missing:
        raise ImportError("a program that mpirun started needs mpi4py: python3 -m pip install "
                          "'tinygrad[mpi]'") from missing
    if MPI.COMM_WORLD.Get_size() == 1:
        return
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError("this MPI library lets one thread call it at a time; the thread that exchanges "
                           "values and the one that watches the other ranks need MPI_THREAD_MULTIPLE")
    open_gpu = importlib.import_module("tinygrad.runtime.nccl").open_gpu if device == "CUDA" else None
    world = ranks.World.current = ranks.World(MPI, open_gpu)
    Device.register(KIND, ranks.__name__)
    sys.excepthook = world.fail
    threading.excepthook = world.fail_in_thread
    atexit.register(world.end)
