"""What the CPU's device says of the cores that it is on."""
from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from tinygrad.renderer.machine import Machine
from tinygrad.runtime import cpu


def test_caches_are_as_large_as_linux_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An Intel server's: 48 KB and 2 MB of each core, 300 MB of which a core counts on 16; and lines of 128
    bytes, as an M1 has."""
    for number, size in ((0, "48K"), (2, "2048K"), (3, "300M")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
        (tmp_path / f"index{number}" / "coherency_line_size").write_text("128\n")
    monkeypatch.setattr(cpu, "CACHES", tmp_path)
    machine = cpu.host()
    assert (machine.l1_bytes, machine.l2_bytes, machine.line_bytes) == (48 << 10, 2 << 20, 128)
    assert machine.l3_bytes == machine.threads * cpu.L3_BYTES_OF_CORE
    assert machine.page_bytes == mmap.PAGESIZE


def test_what_nobody_says_of_a_cache_is_as_usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "CACHES", tmp_path)
    machine = cpu.host()
    assert (machine.l1_bytes, machine.l2_bytes) == (Machine.l1_bytes, Machine.l2_bytes)
    assert machine.line_bytes == Machine.line_bytes
