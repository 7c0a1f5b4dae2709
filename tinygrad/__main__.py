"""`python -m tinygrad`: the devices that this library knows, and what each can do on this machine.

A device that cannot be used says why and what to install. Bandwidth and GFLOP/s are measured: on the CPU by
`runtime/limits.py`, elsewhere by three kernels of the library's own. `python -m tinygrad CL WEBGPU` shows
these devices only; all take about a minute, of which most is compiling.
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from textwrap import shorten

import numpy as np

from tinygrad.device import CompiledDevice, Device
from tinygrad.frozen import frozen
from tinygrad.jit import TinyJit
from tinygrad.tensor import Tensor

SIZES = (1 << 12, 1 << 18, 1 << 24)
"""Items of float32 that are tried, the smallest first, until a kernel runs long enough to be measured."""
ENOUGH_SECONDS = 0.01
WARM_UPS = 2
"""Runs until a kernel is compiled and its launch captured."""
REPEATS = 2
STEPS = 64
"""Products, each added to, that the kernel of arithmetic does on every item."""


MOST_REASON = 500
"""Characters of the reason why a device cannot be used: a compiler's may go on with a whole kernel."""


@frozen
class Rates:
    """What kernels of the library reach on a device: a lower bound of what it can do."""

    read_gbs: float
    copy_gbs: float
    gflops: float


def measured_rates(device: CompiledDevice) -> Rates:
    """The rates of a sum (bytes read), of adding 1 (bytes read and written) and of a polynomial
    (operations)."""
    def polynomial(x: Tensor) -> Tensor:
        y = x
        for _ in range(STEPS):
            y = y * x + x
        return y

    return Rates(rate(device, lambda x: x.sum(), 4) / 1e9, rate(device, lambda x: x + 1, 8) / 1e9,
                 rate(device, polynomial, 2 * STEPS) / 1e9)


def rate(device: CompiledDevice, compute: Callable[[Tensor], Tensor], work: int) -> float:
    """`work` a second, done on each item by `compute`: the best of a few runs on as many items as take long
    enough."""
    best = 0.0
    for items in SIZES:
        x = Tensor(np.full(items, 0.5, np.float32), device=device.name).realize()
        step = TinyJit(lambda x: compute(x).realize())
        seconds = []
        for _ in range(WARM_UPS + REPEATS):
            start = time.perf_counter()
            step(x)
            device.synchronize()
            seconds.append(time.perf_counter() - start)
        least = min(seconds[WARM_UPS:])
        best = items * work / least
        if least > ENOUGH_SECONDS:
            break
    return best


@frozen
class Row:
    """What the table says of a kind of device."""

    name: str
    state: str
    compiler: str = ""
    read: str = ""
    copied: str = ""
    arithmetic: str = ""


HEAD = Row("device", "state", "compiler", "GB/s read", "GB/s copied", "GFLOP/s")


def row_of(kind: str, measure: bool = True) -> Row:
    """The device of this kind, opened if that works; with its rates if `measure` and its kernels run."""
    name = f"{kind}*" if kind == Device.DEFAULT else kind
    try:
        device = Device[kind]
        if not device.computes:
            return Row(name, "available, holds data")
        if not measure or not device.runs:
            return Row(name, "available", device.compiler)
        rates = device.limits() or measured_rates(device)
    except (ImportError, OSError, RuntimeError) as error:
        return Row(name, f"not available: {shorten(str(error), MOST_REASON, placeholder=' ...')}")
    numbers = (f"{rate:.3g}" for rate in (rates.read_gbs, rates.copy_gbs, rates.gflops))
    return Row(name, "available", device.compiler, *numbers)


def table(kinds: Sequence[str] = (), measure: bool = True) -> str:
    """Devices of these kinds (of all, if none is named), one a line, in columns; * marks the default. Raises
    ValueError for a name that no device has."""
    shown = [Device.canonicalize(kind) for kind in kinds] or list(Device.FILES)
    rows = [astuple(HEAD), *(astuple(row_of(kind, measure)) for kind in shown)]
    widths = [max(len(row[i]) for row in rows if len(row[i]) < 60) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                     for row in rows)


def main(kinds: Sequence[str]) -> int:
    """Print the table, and below that of all devices their other names. Returns 2 where a name is none."""
    try:
        print(table(kinds))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not kinds:
        print("other names: " + ", ".join(f"{alias} ({name})" for alias, name in Device.ALIASES.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
