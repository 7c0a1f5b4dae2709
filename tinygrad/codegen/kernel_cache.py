"""Kernels as they were written, kept on disk by what they compute.

What is found here needs no plan, no loop nest and no text: a process that runs what another one ran before it
only loads machine code (`store.py`). A kernel is kept by its `ast` in portable form, its device's
numbers and compiler, and the code of this package that writes kernels; as JSON, which is read as data.

`CACHELEVEL=1` leaves kernels alone, as do settings that want each stage to happen: `CHECK`, `DEBUG` from 3
on, and `BEAM`, whose plans have a cache of their own (`opt/plan_cache.py`).
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygrad import observer
from tinygrad.codegen.cost import Estimate
from tinygrad.device import Device
from tinygrad.frozen import frozen
from tinygrad.graph.portable import NotPortable, text_of
from tinygrad.graph.records import decode, encode
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ALLOW_TF32, BEAM, CACHELEVEL, CHECK, DEBUG
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.machine import Machine
from tinygrad.store import key_of, store_of

LEVEL = 2
"""The setting of CACHELEVEL from which on kernels and schedules are kept."""
PACKAGE = Path(__file__).parents[1]
SOURCES = ("dtype.py", "device", "graph", "shape", "schedule", "codegen", "renderer")
"""The part of this package that decides what a kernel or a schedule is."""


@frozen
class Written:
    """A kernel as source, and what is known of it beside."""

    name: str
    source: str
    scratch: int
    launch: Launch
    variables: tuple[str, ...]
    extent: int
    estimate: Estimate


@functools.cache
def code_version() -> str | None:
    """A digest of the modules of `SOURCES`; None where they are not files, and nothing can be kept."""
    try:
        files = [f for name in SOURCES for f in
                 (sorted((PACKAGE / name).rglob("*.py")) or [PACKAGE / name])]
        return key_of(*(text for f in files for text in (str(f.relative_to(PACKAGE)), f.read_text("utf-8"))))
    except OSError:
        return None


def device_key(device: str) -> str | None:
    """What kernels and schedules depend on of a device: its renderer's numbers, its compiler, and our code.

    None for a device whose renderer is not of this package: nobody says when its code changes.
    """
    target = Device[device]
    if not target.computes:
        return device
    renderer, version = target.renderer, code_version()
    if version is None or not type(renderer).__module__.startswith("tinygrad."):
        return None
    return key_of(*target_of(device), version)


def target_of(device: str) -> tuple[str, ...]:
    """What a kernel's source and code depend on of a device that computes. Devices of one kind with the same
    numbers and compiler (CUDA and CUDA:1) have the same."""
    target = Device[device]
    numbers = repr(sorted((name, stable(value)) for name, value in vars(target.renderer).items()))
    renderer = target.renderer
    return (Device.kind_of(device), type(renderer).__qualname__, renderer.name, numbers, target.compiler)


def stable(value: Any) -> str:
    """A text for a renderer's number that is the same in every process: sets are put in order."""
    if isinstance(value, Machine):
        return repr({name: stable(number) for name, number in vars(value).items()})
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def kernel_key(ast: UOp, device: str, plain: bool = False) -> str | None:
    """A name for a kernel by all that its source depends on; None where it has none outside this process."""
    known = device_key(device)
    if known is None:
        return None
    try:
        return key_of("kernel", text_of(ast), known, "plain" if plain else "planned", str(bool(ALLOW_TF32)))
    except NotPortable:
        return None


def uses_kernel_cache() -> bool:
    """Whether the settings let kernels and schedules be kept, and none wants each stage to happen."""
    shown = (watcher := observer.active) is not None and watcher.keeps_stages
    return CACHELEVEL.value >= LEVEL and not (CHECK or DEBUG >= 3 or BEAM or shown)


def cached_kernel(ast: UOp, device: str, plain: bool, write: Callable[[], Written]) -> Written:
    """The kernel of `ast` as it was written before; else what `write` gives, which is kept."""
    key = kernel_key(ast, device, plain)
    if key is None:
        return write()
    made: list[Written] = []

    def make() -> bytes:
        made.append(write())
        return encode(Written, made[0])

    text = store_of("kernels").get_or_make(key, make, uses_kernel_cache())
    try:
        return made[0] if made else decode(Written, text)
    except ValueError:
        return write()
