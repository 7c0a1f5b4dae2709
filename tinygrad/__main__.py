"""`python -m tinygrad`: the devices that this library knows, and what each can do on this machine.

A device that cannot be used says why and what to install. Bandwidth and GFLOP/s are measured
(`runtime/limits.py`), which takes about a second.
"""
from __future__ import annotations

from dataclasses import astuple, dataclass

from tinygrad.device import Device


@dataclass(frozen=True)
class Row:
    """What the table says of a kind of device."""

    name: str
    state: str
    compiler: str = ""
    read: str = ""
    copied: str = ""
    arithmetic: str = ""


HEAD = Row("device", "state", "compiler", "GB/s read", "GB/s copied", "GFLOP/s")


def row_of(kind: str) -> Row:
    """The device of this kind, opened if that works."""
    name = f"{kind}*" if kind == Device.DEFAULT else kind
    if kind not in Device.FILES:
        return Row(name, "not supported yet")
    try:
        device = Device[kind]
    except (ImportError, OSError, RuntimeError) as error:
        return Row(name, f"not available: {error}")
    if not device.computes:
        return Row(name, "available, holds data")
    limits = device.limits()
    if limits is None:
        return Row(name, "available", device.compiler)
    rates = (f"{rate:.0f}" for rate in (limits.read_gbs, limits.copy_gbs, limits.gflops))
    return Row(name, "available", device.compiler, *rates)


def table() -> str:
    """All devices, one a line, in columns; * marks the default."""
    rows = [astuple(HEAD), *(astuple(row_of(kind)) for kind in (*Device.FILES, *Device.PLANNED))]
    widths = [max(len(row[i]) for row in rows if len(row[i]) < 60) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
                     for row in rows)


if __name__ == "__main__":
    print(table())
