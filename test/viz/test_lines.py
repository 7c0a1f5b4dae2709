"""Which of the user's frames a stack is, however it was reached. Each is asked for more than once, for
what is above a function is walked once while that runs."""
from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tinygrad.viz.lines import Lines

OWN = 0
"""no caller of `Lines.here` in this file is anybody's but the user's"""


def places(lines: Lines, number: int) -> list[tuple[str, int]]:
    """(function, line from this file's frames) of a stack, the innermost first."""
    return [(f.function, f.line) for f in lines.all[number].frames if f.file == __file__]


def walked() -> list[tuple[str, int]]:
    """The same of the caller, by walking its frames."""
    found: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


def asked(lines: Lines) -> None:
    """Asks in a function that its callers share, twice: then it has a note."""
    for _ in range(3):
        number, expected = lines.here(OWN), walked()
        assert [name for name, _ in places(lines, number)] == [name for name, _ in expected]
        assert [line for _, line in places(lines, number)][1:] == [line for _, line in expected][1:]


def test_a_function_that_is_called_from_several_lines() -> None:
    lines = Lines()
    asked(lines)
    asked(lines)

    def between() -> None:
        asked(lines)
        lines.here(OWN)
        asked(lines)

    for _ in range(2):
        between()
        between()


def test_a_generator_goes_on_for_other_callers() -> None:
    lines = Lines()

    def steps() -> Iterator[list[tuple[str, int]]]:
        while True:
            asked(lines)
            yield places(lines, lines.here(OWN))

    def first(running: Iterator[Any]) -> Any:
        return next(running)

    def second(running: Iterator[Any]) -> Any:
        return next(running)

    running = steps()
    for _ in range(3):
        assert [name for name, _ in first(running)][:2] == ["steps", "first"]
        assert [name for name, _ in second(running)][:2] == ["steps", "second"]
        assert [name for name, _ in next(running)][1] == "test_a_generator_goes_on_for_other_callers"


def test_a_note_keeps_nothing_alive_and_is_not_made_where_somebody_traces() -> None:
    lines = Lines()

    class Held:
        pass

    def holds() -> weakref.ref[Held]:
        held = Held()
        for _ in range(2):
            lines.here(OWN)
        return weakref.ref(held)

    assert holds()() is None
    seen: list[str] = []

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        seen.append(event)
        return tracer

    def traced() -> Any:
        lines.here(OWN)
        return sys._getframe().f_trace

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        found = traced()
    finally:
        sys.settrace(before)
    assert found is tracer and "line" in seen


@pytest.mark.skipif(sys.gettrace() is not None, reason="somebody traces the tests")
def test_a_tracer_that_comes_later_is_not_disturbed() -> None:
    lines, seen = Lines(), []

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        seen.append((frame.f_code.co_name, event))
        return tracer

    def inner() -> int:
        return 1

    def outer() -> int:
        lines.here(OWN)
        sys.settrace(tracer)
        found = inner() + 1
        sys.settrace(None)
        return found

    assert outer() == 2
    assert ("inner", "call") in seen and ("outer", "line") not in seen


def test_threads_that_meet_stacks_at_once_number_them_apart() -> None:
    lines, found = Lines(), {}
    functions: list[Callable[[], None]] = []
    for number in range(8):
        scope: dict[str, Any] = {"lines": lines, "found": found}
        body = [f"    found[{number}, {i}] = lines.here()" for i in range(50)]
        text = "\n".join([f"def function{number}():", *body])
        exec(compile(text, f"/program{number}.py", "exec"), scope)
        functions.append(scope[f"function{number}"])
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (number, i), line in found.items():
        frame = lines.all[line].frames[0]
        assert (frame.function, frame.line) == (f"function{number}", i + 2)
