"""Progress bars in log files and on terminals, and files that are written whole."""

from __future__ import annotations

import io
import os
import stat
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.codegen.compile import KernelBar
from tinygrad.files import written_whole
from tinygrad.helpers import tqdm, trange
from tinygrad.nn.state import gguf_load, gguf_save, safe_load, safe_save


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that bars see, in seconds."""
    now = [1000.0]
    monkeypatch.setattr("tinygrad.progress.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind, shown", [(Terminal, True), (io.StringIO, False)])
def test_the_bar_of_kernels_is_shown_on_a_terminal_after_a_second(
        clock: list[float], monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO], shown: bool) -> None:
    monkeypatch.setattr("sys.stderr", kind())
    with closing(KernelBar(4)) as bar:
        for seconds, is_there in ((0.9, False), (0.2, shown), (0.1, shown)):
            clock[0] += seconds
            bar.update()
            assert (bar.bar is not None) == is_there
        assert not shown or (bar.bar.n, bar.bar.total) == (3, 4)


def test_a_bar_in_a_file_is_a_line_every_ten_seconds(clock: list[float]) -> None:
    file = io.StringIO()
    with tqdm(total=350, file=file, mininterval=0, miniters=1) as bar:
        for _ in range(350):
            clock[0] += 0.1
            bar.update()
            bar.set_postfix(loss=0.5)
    lines = file.getvalue().splitlines()
    assert "\r" not in file.getvalue() and file.getvalue().endswith("\n")
    assert len(lines) == 4 and all("/350" in line for line in lines)
    assert "100/350" in lines[0] and "350/350" in lines[-1]


def test_a_short_bar_in_a_file_is_one_line_or_none() -> None:
    for leave, expected in ((True, 1), (False, 0)):
        file = io.StringIO()
        for _ in trange(1000, file=file, leave=leave, mininterval=0):
            pass
        assert file.getvalue().count("\n") == expected == len(file.getvalue().splitlines())


def test_a_bar_on_a_terminal_is_one_line_that_changes() -> None:
    file = Terminal()
    for _ in tqdm(range(5), file=file, mininterval=0, miniters=1):
        pass
    assert file.getvalue().count("\r") > 4 and file.getvalue().count("\n") == 1


SAVES = {
    "safetensors": (safe_save, safe_load),
    "gguf": (gguf_save, lambda path: gguf_load(path)[1]),
}


@pytest.mark.parametrize("name", SAVES)
def test_saving_into_a_pipe(tmp_path: Path, name: str) -> None:
    save, load = SAVES[name]
    pipe, whole = tmp_path / "pipe", tmp_path / "whole"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: whole.write_bytes(pipe.read_bytes()))
    reader.start()
    save({"x": Tensor([1.0, 2.0, 3.0])}, str(pipe))
    reader.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    np.testing.assert_array_equal(load(str(whole))["x"].numpy(), [1, 2, 3])


def test_saving_to_a_device_leaves_the_device(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    safe_save({"x": Tensor([1.0])}, str(link))
    assert link.is_symlink() and stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_goes_on_pointing_to_the_file(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "folder" / "file"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link.symlink_to(target)
    with written_whole(link) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"), written_whole(path) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
