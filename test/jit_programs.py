"""What the tests of TinyJit by example share: programs that run with and without it, and must do the same.

A program is a function of what stands before its functions: `TinyJit`, or nothing. It returns numbers and
texts in lists and tuples. A trace that is wrong in its second use, or for the next arguments, shows in them.
"""
from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad import Tensor, TinyJit

Program = Callable[[Callable[..., Any]], Any]


class Programs(dict[str, Program]):
    """A table of programs by name."""

    def add(self, program: Program) -> Program:
        """A decorator: `program` is one of the table."""
        self[program.__name__] = program
        return program


def traced(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    """The function under TinyJit, with a list that grows each time it is traced."""
    calls = []

    @TinyJit
    def jitted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return function(*args, **kwargs)

    return jitted, calls


def vector(*values: float) -> Tensor:
    """A float32 tensor."""
    return Tensor(np.array(values, np.float32))


def held(*values: float) -> Tensor:
    """A float32 tensor in memory."""
    return vector(*values).realize()


def results(program: Program, jit: Callable[..., Any]) -> Any:
    """What a program returns, from a fixed seed on."""
    Tensor.manual_seed(0)
    with warnings.catch_warnings(), Tensor.train(False):
        warnings.simplefilter("ignore")  # some trace often, on purpose
        return program(jit)


def assert_jit_changes_nothing(program: Program) -> None:
    """The program's results under TinyJit are those of the plain functions, to float32's rounding."""
    plain, jitted = results(program, lambda function: function), results(program, TinyJit)
    assert_same(jitted, plain)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), f"{found} is not {expected}"
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, float) and math.isfinite(expected):
        assert math.isclose(found, expected, rel_tol=2e-4, abs_tol=1e-5), f"{found} is not {expected}"
    else:
        assert repr(found) == repr(expected)
