"""Which of the user's lines asked for something: the stack of their frames, as a number.

In: the interpreter's stack, as it is when a tensor is made. Out: numbers of `Line`s; equal stacks have one.
A key of the stack is made of code objects and instructions, and decoded once. Frames of this package, its
programs apart, and of Python's own library are left out. Calls of layers (`__call__`, `forward`) say which
module of a model it was. What is above a function of the user stays as it is while that runs, so it is walked
once and noted on the function's frame (`Above`).
"""
from __future__ import annotations

import inspect
import itertools
import sys
import sysconfig
import threading
from pathlib import Path
from sys import _getframe
from types import CodeType, FrameType
from typing import Any

from tinygrad.frozen import frozen

PACKAGE = str(Path(__file__).parents[1])
PROGRAMS = str(Path(PACKAGE, "llm"))
"""What of this package is written as a user's program is, and shown as one."""
LIBRARY = sysconfig.get_path("stdlib")
COMPILED_BY = str(Path("site-packages", "torch", ""))
"""What runs between a model of PyTorch and its compiled graph; lines of the model are told (`written_at`)."""
MOST_FRAMES = 24
"""The user's frames that are kept of one stack, the innermost."""
MOST_DEPTH = 100
"""Frames that are looked at."""
CALLS = frozenset({"__call__", "forward"})
"""Methods that run a module of a model."""
SKIPPED, USER, MODULE, OWN_MODULE = range(4)
"""What a frame is: not the user's; theirs; theirs, and a call of a module; a call of one of `tinygrad.nn`."""
UNKNOWN = 0
"""The number of the line of what nobody knows the origin of."""
RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code whose frames have another caller each time they go on."""


@frozen
class Frame:
    """A place in the user's program."""

    file: str
    line: int
    function: str


@frozen
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


class Above:
    """A note on a frame, in its `f_trace`, of which stack of the user's frames called it, and of the lines
    that its instructions are there. It goes with the frame, and keeps nothing alive; to whoever traces the
    program from now on it is a function that traces nothing there."""

    __slots__ = ("lines", "stack")

    def __init__(self, stack: int, lines: dict[int, int]) -> None:
        self.stack = stack
        self.lines = lines
        """by instruction, the number of the line where the frame is the innermost of the user's"""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """What a tracer would be told."""


class Lines:
    """All lines met so far.

    >>> lines = Lines()
    >>> lines.all[lines.here()].frames[0].function
    '<module>'
    """

    def __init__(self) -> None:
        self.all: list[Line] = [Line()]
        self.numbers: dict[Line, int] = {self.all[0]: UNKNOWN}
        self.stacks: dict[tuple[int, ...], int] = {}
        """by the key of a stack, the number that notes have, which is negative: for each of the user's frames
        the ids of its code, its instruction, and of a module's call the module's id; at the end, where a
        frame has a note, the number of what is above it"""
        self.new_stack = itertools.count(-1, -1)
        self.instructions: dict[tuple[int, ...], dict[int, int]] = {}
        """by the number of what is above a frame, its code and the module that it is a call of: what notes on
        such frames know"""
        self.kinds: dict[int, int] = {}
        """by the id of code: what its frames are"""
        self.codes: list[CodeType] = []
        self.lock = threading.Lock()
        self.gradients: dict[int, int] = {}

    def here(self, inner: int = 0) -> int:
        """The number of the user's line that runs now; `inner` callers of the caller are not the user's."""
        kinds = self.kinds
        frame: FrameType | None = _getframe(1 + inner)
        while frame is not None:
            note = frame.f_trace
            if type(note) is Above and (found := note.lines.get(frame.f_lasti)) is not None:
                return found
            kind = kinds.get(id(frame.f_code))  # the code as a key would be hashed, all of it, each time
            if kind is None:
                kind = self.kind(frame.f_code)
            if kind:
                return self.walked(frame)
            frame = frame.f_back
        return UNKNOWN

    def walked(self, innermost: FrameType) -> int:
        """The number of the line where this frame, the innermost of the user's, is; the frame has a note of
        it afterwards."""
        note = innermost.f_trace
        lines = note.lines if type(note) is Above else self.noted(innermost)
        found = lines.get(innermost.f_lasti)
        if found is None:
            found = lines[innermost.f_lasti] = self.met(innermost)
        return found

    def noted(self, frame: FrameType) -> dict[int, int]:
        """The lines of a frame's instructions where it was called, with a note of what is above it, where
        that stays so and nobody traces."""
        code, above = frame.f_code, self.above(frame)
        stack = self.stacks.get(above)
        if stack is None:
            stack = self.stacks.setdefault(above, next(self.new_stack))
        key = (stack, id(code)) if self.kinds[id(code)] == USER else (stack, id(code), module_id(frame))
        lines = self.instructions.get(key)
        if lines is None:
            lines = self.instructions.setdefault(key, {})
        if frame.f_trace is None and not code.co_flags & RESUMED and sys.gettrace() is None:
            frame.f_trace = Above(stack, lines)
        return lines

    def above(self, frame: FrameType) -> tuple[int, ...]:
        """The key of the stack that called a frame, up to the first frame with a note."""
        key: list[int] = []
        caller = frame.f_back
        for _ in range(MOST_DEPTH):
            if caller is None:
                break
            code = caller.f_code
            kind = self.kinds.get(id(code))
            if kind is None:
                kind = self.kind(code)
            if kind:
                key += (id(code), caller.f_lasti)
                if kind != USER:
                    key.append(module_id(caller))
                note = caller.f_trace
                if type(note) is Above:
                    key.append(note.stack)
                    break
            caller = caller.f_back
        return tuple(key)

    def kind(self, code: CodeType) -> int:
        """What frames of some code are; the code is kept, and so keeps its id."""
        self.codes.append(code)
        found = self.kinds[id(code)] = kind_of(code)
        return found

    def met(self, innermost: FrameType) -> int:
        """The number of a stack that is met for the first time."""
        frame: FrameType | None = innermost
        frames: list[tuple[CodeType, int]] = []
        modules: list[Any] = []
        while frame is not None and len(frames) < MOST_FRAMES:
            kind = self.kinds.get(id(frame.f_code), SKIPPED)
            if kind in (USER, MODULE):
                frames.append((frame.f_code, frame.f_lasti))
            if kind in (MODULE, OWN_MODULE):
                modules.append(frame.f_locals.get("self"))
            frame = frame.f_back
        return self.number(Line(frames_of(frames), path_of(modules[::-1])))

    def number(self, line: Line) -> int:
        """The number of a line."""
        with self.lock:
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
    if file.startswith(PACKAGE) and not file.startswith(PROGRAMS):
        return OWN_MODULE if is_call and file.startswith(str(Path(PACKAGE, "nn"))) else SKIPPED
    is_library = (file.startswith(LIBRARY) and "site-packages" not in file) or COMPILED_BY in file
    if is_library or (file.startswith("<") and file != "<stdin>" and "doctest" not in file):
        return SKIPPED
    return MODULE if is_call and "site-packages" not in file else USER


def module_id(frame: FrameType) -> int:
    """The id of the module whose call a frame is."""
    return id(frame.f_locals.get("self"))


def frames_of(places: list[tuple[CodeType, int]]) -> tuple[Frame, ...]:
    """The user's frames: code and instruction of each."""
    return tuple(Frame(code.co_filename, line_at(code, instruction), code.co_name)
                 for code, instruction in places)


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
