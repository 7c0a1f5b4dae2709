"""What only values decide is an error where it is one in eager: indices out of bounds, assertions."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
import torch.nn.functional as F  # noqa: E402

from tinygrad.torch import backend  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh_compilations() -> None:
    torch._dynamo.reset()


X = torch.arange(12.0).reshape(4, 3)


def written(x: Any, i: Any) -> Any:
    x = x.clone()
    x[i] = torch.ones(2, 3)
    return x


PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], list[int]]] = {
    "x[i]": (lambda x, i: x[i], [4, -5]),
    "x[:, i]": (lambda x, i: x[:, i], [3, -4]),
    "two indices": (lambda x, i: x[i - 1, i], [3]),
    "embedding": (lambda x, i: F.embedding(i, x), [4, -1]),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), [4]),
    "gather": (lambda x, i: x.gather(0, i[:, None]), [4, -1]),
    "index_select": (lambda x, i: x.index_select(1, i), [3]),
    "take": (lambda x, i: x.take(i), [12, -13]),
    "scatter": (lambda x, i: x.scatter(0, i[:, None], 1.0), [4, -1]),
    "scatter_add": (lambda x, i: x.scatter_add(1, i[:, None], x), [3]),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones(2, 3)), [4]),
    "x[i] = values": (written, [4, -5]),
    "labels": (lambda x, i: F.cross_entropy(x[:2], i), [3, -1]),
    "integers divided": (lambda x, i: (7 // i, i.fmod(i), x.long() % i[0]), [0]),
    "one_hot": (lambda x, i: F.one_hot(i, 3), [3, -1]),
    "values where a mask holds": (lambda x, i: x.index_put((x.sum(1) > 9 * i[0],), torch.ones(3, 3)), [2]),
}
"""Functions of 4 x 3 numbers and two indices, of which 1 is one; and what is none."""


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_out_of_bounds_is_the_error_of_eager(name: str) -> None:
    function, wrong = PROGRAMS[name]
    run = torch.compile(function, backend=backend)
    for index in [1, *wrong, 1]:
        i = torch.tensor([index, 1])
        if index == 1:
            torch.testing.assert_close(run(X, i), function(X, i))
            continue
        with pytest.raises((IndexError, RuntimeError)) as expected:
            function(X, i)
        with pytest.raises(expected.type):
            run(X, i)


def test_what_a_failed_call_would_change_stays() -> None:
    counts = torch.zeros(3)

    @torch.compile(backend=backend)
    def count(i: Any) -> Any:
        counts.add_(1)
        return X[i]

    count(torch.tensor([1]))
    with pytest.raises(IndexError, match="index: an index is out of bounds for an axis of 4 items"):
        count(torch.tensor([9]))
    assert counts.tolist() == [1, 1, 1]


def test_indices_within_sizes_that_vary_are_looked_at() -> None:
    run = torch.compile(lambda x, i: x[i].sin(), backend=backend, dynamic=True)
    for n in (5, 7, 6):
        x = torch.randn(n, 3, requires_grad=True)
        run(x, torch.tensor([0, n - 1, -n])).sum().backward()
        for i in (n, -n - 1):
            with pytest.raises(IndexError):
                run(x, torch.tensor([0, 1, i]))


def test_an_assertion_of_the_program_is_an_error() -> None:
    @torch.compile(backend=backend)
    def root(x: Any) -> Any:
        torch._assert_async((x >= 0).all(), "a root of a negative number")
        return x.sqrt()

    assert root(torch.tensor([4.0, 9.0])).tolist() == [2, 3]
    with pytest.raises(RuntimeError, match="a root of a negative number"):
        root(torch.tensor([4.0, -9.0]))


def test_no_items_are_divided_by_zero() -> None:
    run = torch.compile(lambda x, y: (x // 0, x % y, x.fmod(0), torch.triu_indices(5, 0)), backend=backend)
    for rows in (0, 3):
        x, y = torch.ones(rows, 0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        assert [tuple(z.shape) for z in run(x, y)] == [(rows, 0)] * 3 + [(2, 0)]
