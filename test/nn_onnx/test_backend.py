"""The `onnx` package's own tests of backends, run on ours: the operators of the standard one by one and in
small models, what PyTorch exported, and nine light architectures.

`DEV` says on which device. Where that is not the CPU, every tenth test runs.
"""
from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

from onnx_backend import figures, standard_tests

suite = standard_tests(__name__)
cases = suite.test_cases
if os.environ.get("DEV", "CPU") != "CPU":
    for case in cases.values():
        for name in [n for n in vars(case) if n.startswith("test_") and zlib.crc32(n.encode()) % 10]:
            delattr(case, name)
globals().update(cases)


def test_the_page_says_how_many_tests_there_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "onnx.md"
    assert figures(suite) in page.read_text(encoding="utf-8"), "python docs/make_onnx.py"
