"""The `onnx` package's own tests of backends, run on ours: the operators of the standard one by one and in
small models, what PyTorch exported, and nine light architectures.

`DEV` says on which device. Where that is not the CPU, every tenth test runs.
"""
from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

from onnx_backend import EXCEPTIONS, figures, left_out, standard_tests

from tinygrad.nn.onnx import OnnxError

suite = standard_tests(__name__)
not_run = left_out(suite)
cases = suite.test_cases
if os.environ.get("DEV", "CPU") != "CPU":
    for case in cases.values():
        for name in [n for n in vars(case) if n.startswith("test_") and zlib.crc32(n.encode()) % 10]:
            delattr(case, name)
globals().update(cases)


def test_the_page_says_how_many_tests_there_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "onnx.md"
    assert figures(suite) in page.read_text(encoding="utf-8"), "python docs/make_onnx.py"


@pytest.mark.skipif(os.environ.get("DEV", "CPU") != "CPU", reason="the table is of the CPU")
def test_what_is_not_run_fails() -> None:
    """But for random numbers, which may be those expected by chance."""
    passed = []
    for name, test in not_run.items():
        reason = next(EXCEPTIONS[start] for start in EXCEPTIONS if name.startswith(start))
        if not reason.startswith("random numbers"):
            with suppress(AssertionError, TypeError, OnnxError):
                test(None)
                passed.append(name)
    assert not passed


def test_every_exception_is_of_a_test() -> None:
    assert all(any(name.startswith(start) for name in not_run) for start in EXCEPTIONS)
