"""A library in a process of its own, which is asked one thing at a time: a line of JSON in, a line out.

The parent has a `Child`; what the child runs ends in `answer_lines`. What libraries print goes to stderr.
"""
from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 900.0
"""Seconds that a child may take for one answer. The public tinygrad needs 120 for its slowest first step."""
THREAD_VARIABLES = ("THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""What a child says to what it is asked."""


class ChildError(RuntimeError):
    """A child could not do what was asked; the text is its own."""


class Child:
    """A running process. While it waits it uses no processor time."""

    def __init__(self, name: str, command: list[str], threads: int,
                 variables: Mapping[str, str] | None = None, folder: Path = ROOT,
                 is_quiet: bool = False) -> None:
        """`variables` of the environment are added to the parent's and to those that say how many threads
        there are. What one that `is_quiet` prints is shown where it dies, and only then."""
        self.name, self.command, self.folder = name, command, folder
        self.printed = TemporaryFile("w+") if is_quiet else None  # noqa: SIM115
        self.environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)),
                            **(variables or {})}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its byte code, too
        self.start()

    def start(self) -> None:
        """Begin the process; one that has died may be begun again."""
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=self.environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.printed,
                                        text=True, bufsize=1)

    def ask(self, **command: Any) -> dict[str, Any]:
        """The child's answer. Raises ChildError where it failed, died, or took longer than `PATIENCE`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        impatience = Timer(PATIENCE, self.process.kill)
        impatience.start()
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            impatience.cancel()
        if not line:
            raise ChildError(f"{self.name} has ended with status {self.process.wait()}{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ChildError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        if self.printed is None:
            return ""
        self.printed.seek(0)
        return f":\n{self.printed.read()[-2000:]}"

    def close(self) -> None:
        """End the process: what has no more to answer ends by itself, or is ended."""
        try:
            self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def answer_lines(begin: Callable[[], Answer]) -> None:
    """Of a child: answer each line of the input by what the function that `begin` makes says of it, until the
    input ends. A failure answers {"error": text}."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answer = begin()
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:  # whatever a library raises is this row's result
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")


def peak_bytes() -> int:
    """The most memory that this process has had at once."""
    status = Path("/proc/self/status")
    if status.exists():  # what `getrusage` says begins with the parent's
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
