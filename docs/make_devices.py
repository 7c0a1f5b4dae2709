"""Fills the table of docs/devices.md: every family of tests on every device that computes.

    python docs/make_devices.py [FAMILY...] [--device=NAME...]

A family is a file of tests, run as `DEV=NAME pytest`. With arguments only those cells are measured again; the
others keep what the page says, and so does the text around the table. A family that is not done after a
quarter of an hour is interrupted: its cell counts the tests that ran until then, and says so.
"""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "devices.md"
DEVICES = ("CPU", "CPU:C", "PYTHON", "CL", "CL:IMAGES", "WEBGPU", "CUDA:EMULATED", "AMD:EMULATED",
           "METAL:EMULATED")
FAMILIES = {
    "renderer": "operations, dtypes, memory, lanes: programs written by hand",
    "transcendental": "exp2, log2, sin over their whole range",
    "tensor": "what tensors compute, against NumPy",
    "gradient": "derivatives",
    "random": "random numbers",
    "nn": "layers, losses, convolutions",
    "optim": "optimizers",
    "jit": "capture and replay",
    "linalg": "decompositions, equations, inverses",
    "division": "quotients and remainders, of all signs",
    "ulp": "how far functions are from the nearest number",
    "fp8": "8-bit floats",
    "gathers": "items at computed places, and nowhere",
    "views": "movement of memory",
    "writes": "assignment in place",
    "variables": "sizes that are bound later",
    "transforms": "grad, vjp, jvp, vmap",
    "function": "gradients by the user",
    "state": "saving and loading",
    "interop": "NumPy, DLPack, buffers",
    "errors": "what is refused, and how that is said",
    "programs": "random programs, against NumPy",
}
FILES = {"jit": ("jit", "jit_captured_state", "jit_gradients"), "renderer": ("renderer", "renderer_memory")}
"""Families that are more than one file"""
EMULATED = {"renderer", "transcendental", "nn", "jit"}
LARGE = {"PYTHON": {"transcendental", "ulp", "nn", "jit"}, "CUDA:EMULATED": EMULATED,
         "AMD:EMULATED": EMULATED, "METAL:EMULATED": EMULATED}
"""Families whose sizes are too large for a device that runs an operation a microsecond, or compiles a kernel
in a third of a second; and programs of one thread, for devices that run blocks of them."""
SECONDS = 900
ENDING_SECONDS = 60
"""For which an interrupted family may still count: a native call that runs comes to its end first."""
TABLE = re.compile(r"^\| family \| what it tests \|(.*)\|$(\n\|.*\|$)*", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \|(.*)\|$", re.MULTILINE)


def main(arguments: list[str]) -> None:
    """Run what was asked for, and write its cells into the page."""
    devices = [a.partition("=")[2] for a in arguments if a.startswith("--device=")] or list(DEVICES)
    families = [a for a in arguments if not a.startswith("--")] or list(FAMILIES)
    for family in families:
        for device in devices:
            result = "-" if family in LARGE.get(device, ()) else passes(family, device)
            print(family, device, result, flush=True)
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(with_cells(page, {(family, device): result}), encoding="utf-8")


def passes(family: str, device: str) -> str:
    """Tests passed of tests run; failures are printed."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", "-rfE", *files_of(family)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "DEV": device}, stdout=subprocess.PIPE,
                          text=True) as process:
        output, cut = output_of(process)
    for line in output.splitlines():
        if line.startswith(("FAILED", "ERROR", "E  ", "/")):
            print(f"    {line[:300]}", flush=True)
    last = output.splitlines()[-1] if output else ""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    return f"{counts.get('passed', 0)} of {sum(counts.values())}" + cut * f" in {SECONDS} s"


def files_of(family: str) -> list[str]:
    """The files of tests of a family, in whichever folders of test/ they are."""
    return [str(path) for name in FILES.get(family, (family,))
            for path in sorted((ROOT / "test").rglob(f"test_{name}.py"))]


def output_of(process: subprocess.Popen[str]) -> tuple[str, bool]:
    """What pytest prints, and whether it was interrupted because it took too long."""
    try:
        return process.communicate(timeout=SECONDS)[0], False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=ENDING_SECONDS)[0], True
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0], True


def with_cells(page: str, cells: dict[tuple[str, str], str]) -> str:
    """The page with these cells, by family and device, in its table; the others stay."""
    found = TABLE.search(page)
    if found is None:
        raise ValueError(f"{PAGE} has no table of families")
    known = cells_of(found) | cells
    rows = [f"| family | what it tests | {' | '.join(DEVICES)} |", "| --- " * (2 + len(DEVICES)) + "|"]
    for family, what in FAMILIES.items():
        row = " | ".join(known.get((family, device), "") for device in DEVICES)
        rows.append(f"| `{family}` | {what} | {row} |")
    return page[:found.start()] + "\n".join(rows) + page[found.end():]


def cells_of(table: re.Match[str]) -> dict[tuple[str, str], str]:
    """What the table of a page says, by family and device."""
    devices = [name.strip() for name in table[1].split("|")]
    return {(family, device): cell.strip() for family, row in ROW.findall(table[0])
            for device, cell in zip(devices, row.split("|")[1:], strict=True)}


if __name__ == "__main__":
    main(sys.argv[1:])
