"""Doctests are part of the tests: every example in a docstring may use these names without importing them."""
from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    from tinygrad import Tensor, dtypes, nn

    doctest_namespace.update(Tensor=Tensor, dtypes=dtypes, nn=nn)
