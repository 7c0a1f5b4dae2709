"""Which of the user's lines asked for something: the stack of their frames, as a number.

In: the interpreter's stack, as it is when a tensor is made. Out: numbers of `Line`s; equal stacks have one.
A key of the stack is made of code objects and instructions, and decoded once. Frames of this package and of
Python's own library are left out. Calls of layers (`__call__`, `forward`) say which module of a model it was.
"""
from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = str(Path(__file__).parents[1])
LIBRARY = sysconfig.get_path("stdlib")
MOST_FRAMES = 24
"""The user's frames that are kept of one stack, the innermost."""
MOST_DEPTH = 200
"""Frames that are looked at."""
CALLS = frozenset({"__call__", "forward"})
"""Methods that run a module of a model."""
SKIPPED, USER, MODULE, OWN_MODULE = range(4)
"""What a frame is: not the user's; theirs; theirs, and a call of a module; a call of one of `tinygrad.nn`."""
UNKNOWN = 0
"""The number of the line of what nobody knows the origin of."""


@dataclass(frozen=True)
class Frame:
    """A place in the user's program."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Line:
    """Where something was asked for: frames, the innermost first."""

    frames: tuple[Frame, ...] = ()
    module: str = ""
    """the module of a model in whose call it was: `Net.layers.0`"""
    is_gradient: bool = False
    """whether it is of the gradient of what was asked for there"""

    def __str__(self) -> str:
        if not self.frames:
            return "(elsewhere)"
        frame = self.frames[0]
        return f"{Path(frame.file).name}:{frame.line}" + (" (gradient)" if self.is_gradient else "")


class Lines:
    """All lines met so far.

    >>> lines = Lines()
    >>> lines.all[lines.here()].frames[0].function
    '<module>'
    """

    def __init__(self) -> None:
        self.all: list[Line] = [Line()]
        self.numbers: dict[Line, int] = {self.all[0]: UNKNOWN}
        self.known: dict[tuple[Any, ...], int] = {}
        """by the key of a stack"""
        self.kinds: dict[CodeType, int] = {}
        self.gradients: dict[int, int] = {}

    def here(self) -> int:
        """The number of the user's line that runs now."""
        kinds = self.kinds
        key: list[Any] = []
        modules: list[Any] = []
        frame: FrameType | None = sys._getframe(1)
        for _ in range(MOST_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            kind = kinds.get(code)
            if kind is None:
                kind = kinds[code] = kind_of(code)
            if kind:
                key.append(code)
                key.append(frame.f_lasti)
                if kind != USER:
                    module = frame.f_locals.get("self")
                    key.append(id(module))
                    modules.append(module)
            frame = frame.f_back
        found = self.known.get(tuple(key))
        if found is None:
            found = self.known[tuple(key)] = self.number(Line(frames_of(key), path_of(modules[::-1])))
        return found

    def number(self, line: Line) -> int:
        """The number of a line."""
        found = self.numbers.setdefault(line, len(self.all))
        if found == len(self.all):
            self.all.append(line)
        return found

    def gradient(self, number: int) -> int:
        """The number of the gradient of what a line computes."""
        found = self.gradients.get(number)
        if found is None:
            line = self.all[number]
            found = self.gradients[number] = self.number(Line(line.frames, line.module, bool(line.frames)))
        return found


LINES = Lines()
"""The lines of this process: nodes of graphs, and schedules found again, keep their numbers from one
recording to the next."""


def kind_of(code: CodeType) -> int:
    """What frames of this code are."""
    file = code.co_filename
    is_call = code.co_name in CALLS and code.co_varnames[:1] == ("self",)
    if file.startswith(PACKAGE):
        return OWN_MODULE if is_call and file.startswith(str(Path(PACKAGE, "nn"))) else SKIPPED
    is_library = file.startswith(LIBRARY) and "site-packages" not in file
    if is_library or (file.startswith("<") and file != "<stdin>" and "doctest" not in file):
        return SKIPPED
    return MODULE if is_call and "site-packages" not in file else USER


def frames_of(key: list[Any]) -> tuple[Frame, ...]:
    """The user's frames in the key of a stack."""
    frames = []
    for i, code in enumerate(key):
        if isinstance(code, CodeType) and not code.co_filename.startswith(PACKAGE):
            frames.append(Frame(code.co_filename, line_at(code, key[i + 1]), code.co_name))
    return tuple(frames[:MOST_FRAMES])


def line_at(code: CodeType, instruction: int) -> int:
    """The line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def path_of(modules: list[Any]) -> str:
    """The name of the last of these modules, each called by the one before: types and attributes."""
    found: list[str] = []
    parent: Any = None
    for module in modules:
        if module is parent or module is None:
            continue
        found.append(type(module).__name__ if parent is None else name_in(parent, module))
        parent = module
    return ".".join(found)


def name_in(parent: Any, module: Any) -> str:
    """By which name `parent` has a module; its type's name where it has it by none."""
    for name, value in getattr(parent, "__dict__", {}).items():
        if value is module:
            return str(name)
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if item is module:
                    return f"{name}.{i}"
                inner = getattr(item, "__dict__", None) or {}
                for below, deeper in inner.items():
                    if deeper is module:
                        return f"{name}.{i}.{below}"
        if isinstance(value, dict):
            for key, item in value.items():
                if item is module:
                    return f"{name}.{key}"
    return type(module).__name__
