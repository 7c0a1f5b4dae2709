"""What a workload is, and the helper for those that are one operation on a few arrays.

A workload's setup functions import their library themselves, since each runs in that library's environment.
They make the inputs and return the step to time. Both tinygrads, this one and the public package, are given
the same code: this library runs what was written for the other.
"""
from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Step = Callable[[], Any]
"""One run of the workload, finished when it returns an array or a tensor with `numpy()`."""
Setup = Callable[[], Step]
Operation = Callable[..., Any]
"""An operation as a library's user writes it: called with the library's module, then its arrays."""

OURS = "tinygrad"
JITTED = "TinyJit"
"""This library's operations called through TinyJit, as others are called compiled."""
PUBLIC = "tinygrad 0.14"
BEFORE = "before"
"""This library as it is in another folder, an earlier checkout: `--before FOLDER`."""
OWN = (OURS, JITTED, BEFORE)
ITEM = 4
"""Bytes of a float32."""
ITEM_BYTES = {"float32": ITEM, "bfloat16": 2}
CACHE_LINE = 64
"""Bytes."""


@dataclass(frozen=True)
class Workload:
    """A named piece of work, what it costs at the least, and how each peer does it."""

    name: str
    operations: float
    """floating-point operations of one step, a multiply-add counted as two"""
    read_bytes: float
    """bytes that one step must read, each input once"""
    written_bytes: float
    """bytes that one step must write, each result once"""
    setups: Mapping[str, Setup]
    """for each peer, makes the inputs and returns the step"""
    tolerance: float = 1e-3
    """how far the peers' first results may differ, relative to the mean size of an item"""
    dtype: str = field(default="float32", kw_only=True)
    """of the numbers that are multiplied"""

    @property
    def moved_bytes(self) -> float:
        return self.read_bytes + self.written_bytes


def normal(*shape: int, seed: int = 0) -> Array:
    """float32 numbers of a normal distribution, the same in every process. They begin at a cache line, as
    each library's own memory does: not every one moves what it is given to such a place."""
    count = math.prod(shape)
    memory = np.empty(count * ITEM + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    array = memory[start:start + count * ITEM].view(np.float32).reshape(shape)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32, out=array)


def normals(shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """An array of each shape, drawn from the seeds 0, 1, 2, ..."""
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def drawn_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Values for the parameters of a network, the same for the same names and shapes in every library.

    Matrices and kernels are normal with variance 1 / fan-in. A vector is the scale of a normalisation, or its
    running variance (ones), or an offset (zeros).
    """
    weights = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            scale = 1 / math.sqrt(math.prod(shape[1:]))
            weights[name] = normal(*shape, seed=zlib.crc32(name.encode())) * np.float32(scale)
        else:
            ones = name.endswith(("weight", "running_var"))
            weights[name] = np.full(shape, float(ones), np.float32)
    return weights


def both_tinygrads(setup: Setup) -> dict[str, Setup]:
    """The same setup for this library and for the public package."""
    return {OURS: setup, PUBLIC: setup}


def wait_for_tinygrad() -> None:
    """Return when everything that tinygrad has started is done."""
    from tinygrad import Device

    Device[Device.DEFAULT].synchronize()


def operation(name: str, operations: float, shapes: Sequence[tuple[int, ...]], written: int, *,
              tinygrad: Operation, torch: Operation, jax: Operation, tolerance: float = 1e-3,
              dtype: str = "float32") -> Workload:
    """One operation on arrays of these shapes, with a result of `written` items of the same dtype.

    A user of either tinygrad calls `realize()` (or this one's TinyJit), a user of PyTorch just calls (or
    compiles), one of JAX compiles.
    """

    def tinygrad_setup(compiled: bool = False) -> Step:
        import tinygrad as library

        kind = getattr(library.dtypes, dtype)
        tensors = [library.Tensor(array).cast(kind).contiguous().realize() for array in normals(shapes)]

        def run(*tensors: Any) -> Any:
            return tinygrad(library, *tensors).realize()

        call = library.TinyJit(run) if compiled else run

        def step() -> Any:
            result = call(*tensors)
            wait_for_tinygrad()
            return result

        return step

    def torch_setup(compiled: bool) -> Step:
        import torch as library

        tensors = [library.from_numpy(array).to(getattr(library, dtype)) for array in normals(shapes)]
        if compiled:
            library._dynamo.reset()  # it counts one lambda for all rows, and compiles no ninth
        run = library.compile(lambda *arrays: torch(library, *arrays)) if compiled else (
            lambda *arrays: torch(library, *arrays))
        return lambda: run(*tensors)

    def jax_setup() -> Step:
        import jax as library

        arrays = [library.numpy.asarray(array, dtype) for array in normals(shapes)]
        run = library.jit(lambda *arrays: jax(library, *arrays))
        return lambda: run(*arrays).block_until_ready()

    item = ITEM_BYTES[dtype]
    read = item * sum(math.prod(shape) for shape in shapes)
    setups = {**both_tinygrads(tinygrad_setup), JITTED: lambda: tinygrad_setup(True),
              "torch": lambda: torch_setup(False),
              "torch.compile": lambda: torch_setup(True), "jax": jax_setup}
    return Workload(name, operations, read, written * item, setups, tolerance, dtype=dtype)


def without_public(workload: Workload) -> Workload:
    """A workload that the public tinygrad lacks, or would take hours for."""
    return replace(workload, setups={peer: s for peer, s in workload.setups.items() if peer != PUBLIC})
