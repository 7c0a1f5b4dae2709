"""Each row in each of its dtypes: values and gradients of all cases against PyTorch."""

from __future__ import annotations

import pytest

from tinygrad.dtype import DType

from .rows import ROWS
from .table import Row, run

PAIRS = [pytest.param(row, dtype, id=f"{row.name}-{dtype.name}") for row in ROWS for dtype in row.dtypes]


@pytest.mark.parametrize(("row", "dtype"), PAIRS)
def test_row(row: Row, dtype: DType) -> None:
    run(row, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "dtype"), PAIRS)
def test_row_in_every_layout(row: Row, dtype: DType) -> None:
    run(row, dtype, all_cases=True)
