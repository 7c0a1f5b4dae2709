"""What is written where masks hold, beside other indices, `x[mask, index] = values`, and what is read there,
in graphs with sizes that values decide: as in eager, with gradients."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")

from tinygrad.torch import backend  # noqa: E402

ALL = slice(None)
ROWS = torch.tensor([True, False, True, True, False])
COLUMNS = torch.tensor([True, False, True, True])
ONE = torch.tensor([False, False, True, False])
NONE = torch.zeros(5, dtype=torch.bool)
PLACES = torch.tensor([0, 2, 1])
SOME = torch.eye(5, 4) > 0
INDICES: dict[str, tuple[tuple[int, ...], tuple[Any, ...], tuple[int, ...]]] = {
    "rows and a column for each": ((5, 4), (ROWS, PLACES), (3,)),
    "a list": ((5, 4), (ROWS, [0, 3, 1]), (3,)),
    "columns for all rows": ((5, 4), (ROWS, PLACES[:2, None]), (2, 3)),
    "a value for each of the columns": ((5, 4), (ROWS, PLACES[:2, None]), (2, 1)),
    "one column, and as many values as rows": ((5, 4), (ROWS, PLACES[:1]), (3,)),
    "one column, one value": ((5, 4), (ROWS, PLACES[:1]), ()),
    "from the end": ((5, 4), (ROWS, -1 - PLACES), (3,)),
    "a row for each column": ((5, 4), (PLACES, COLUMNS), (3,)),
    "one column for several rows": ((5, 4), (PLACES, ONE), (3,)),
    "two masks": ((5, 4), (ROWS, COLUMNS), (3,)),
    "two masks, one value": ((5, 4), (ROWS, COLUMNS), ()),
    "two masks, of which one holds once": ((5, 4), (ROWS, ONE), ()),
    "two masks, of which one holds nowhere": ((5, 4), (NONE, ONE), ()),
    "two masks that hold nowhere, no values": ((5, 4), (NONE, ONE), (0,)),
    "slices before": ((5, 4, 3), (slice(1, 4), COLUMNS, PLACES), (3, 3)),
    "slices between": ((5, 4, 3), (ROWS, slice(1, 3), PLACES), (3, 2)),
    "a value for each of a slice": ((5, 4, 3), (ROWS, slice(1, 3), PLACES), (2,)),
    "axes left out": ((5, 4, 3), (ROWS, ..., PLACES), (3, 4)),
    "a new axis": ((5, 4, 3), (ROWS, None, PLACES), (3, 1, 3)),
    "a number between": ((5, 4, 3), (ROWS, 1, PLACES), (3,)),
    "a mask of two axes": ((5, 4, 3), (SOME, PLACES[:1]), (4,)),
    "a mask of two axes, one value": ((5, 4, 3), (SOME, PLACES[:1]), ()),
    "a mask of two axes in the middle": ((2, 5, 4, 3), (ALL, SOME, PLACES[:2, None]), (2, 2, 4)),
    "two masks in the middle": ((2, 5, 4, 3), (1, ROWS, COLUMNS, slice(0, 2)), (2,)),
    "bytes": ((5, 4), (ROWS.to(torch.uint8),), (3, 4)),
    "bytes beside an index": ((5, 4), (ROWS.to(torch.uint8), PLACES), (3,)),
}
"""The shapes of what is written to, indices, and the shapes of values."""


@pytest.fixture(autouse=True)
def _fresh_compilations() -> None:
    torch._dynamo.reset()


def gives_what_eager_gives(function: Callable[..., Any], *tensors: Any) -> None:
    found = torch.compile(function, backend=backend, fullgraph=True)(*tensors)
    expected = function(*tensors)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    sources = [t for t in tensors if t.requires_grad]
    torch.testing.assert_close(*(torch.autograd.grad(y, sources, weights) for y in (found, expected)))


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize(("name", "derived"), [*((name, True) for name in INDICES),
                                               *((name, False) for name in [*INDICES][::6])])
def test_masks_beside_other_indices_are_written(name: str, derived: bool) -> None:
    shape, index, given = INDICES[name]

    def write(x: Any, values: Any) -> Any:
        y = x.sin()
        y[index] = values
        return y

    gives_what_eager_gives(write, torch.randn(shape, dtype=torch.float64, requires_grad=True),
                           torch.randn(given, dtype=torch.float64, requires_grad=derived))


ADDED = {
    "places that are one": ((5, 4), (torch.tensor([1, 1, 1]), COLUMNS), (3,)),
    "a place without axes": ((5, 4), (ROWS, torch.tensor(2)), (3,)),
    "one item for two masks that hold once": ((4, 4), (ONE, ONE), (1,)),
    "one value for all": ((5, 4), (ROWS, PLACES[:1]), ()),
}


@pytest.mark.parametrize("name", ADDED)
def test_values_are_added_where_masks_hold(name: str) -> None:
    shape, index, given = ADDED[name]
    gives_what_eager_gives(lambda x, values: x.index_put(index, values, accumulate=True),
                           torch.randn(shape, dtype=torch.float64, requires_grad=True),
                           torch.randn(given, dtype=torch.float64, requires_grad=True))


def test_masks_that_hold_elsewhere_replay_one_trace_and_what_does_not_fit_is_an_error() -> None:
    def write(x: Any, mask: Any, values: Any) -> Any:
        x = x.clone()
        x[mask, PLACES] = values
        return x

    run, x, values = torch.compile(write, backend=backend, fullgraph=True), torch.zeros(5, 4), torch.ones(3)
    traces = torch._dynamo.utils.counters["tinygrad"]["traces"]
    for held in ([0, 2, 3], [4], [1, 2, 4]):
        mask = torch.zeros(5, dtype=torch.bool)
        mask[held] = True
        assert torch.equal(run(x, mask, values), write(x, mask, values))
    assert torch._dynamo.utils.counters["tinygrad"]["traces"] == traces + 1
    with pytest.raises(RuntimeError, match="not as many as those of the indices beside it"):
        run(x, ~mask, values)


def items_written(x: Any) -> Any:
    y = x.clone()
    y[x > 0] = x[x > 0].sin() * 3
    return y


def rows_written(x: Any) -> Any:
    mask, y = x[:, 0] > 0, x * 2
    y[mask] = x[mask].exp() + y[mask]
    return y


READ_BY_MASK: dict[str, Callable[..., Any]] = {
    "items": lambda x: x[x > 0].exp().sum(),
    "rows and columns": lambda x: x[x[:, 0] > 0].sum() + x[:, x[0] > 0].square().sum(),
    "items written back": items_written,
    "rows written back": rows_written,
    "rows added": lambda x: x.index_put((x[:, 0] > 0,), x[x[:, 0] > 0] * 2, accumulate=True),
    "items beside an index": lambda x: x.index_put((x[:, 0] > 0, torch.tensor(1)), x[x[:, 0] > 0, 0]),
}


@pytest.mark.filterwarnings("ignore:.*PyTorch runs them")
@pytest.mark.parametrize("name", READ_BY_MASK)
def test_items_where_a_mask_holds_are_as_many_as_it_says(name: str) -> None:
    """PyTorch takes them, in graphs that may have what it is asked for by a setting."""
    given = torch.randn(5, 4, dtype=torch.float64)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for x in (given, -given.abs(), given.abs(), given[1:]):
            gives_what_eager_gives(READ_BY_MASK[name], x.clone().requires_grad_())
