"""What operations build, found again (`functional/graph_templates.py`): the nodes that the function itself
builds."""
from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import GlobalCounters, Tensor, Variable, dtypes
from tinygrad.functional import graph_templates, joining
from tinygrad.functional.graph_templates import memoised
from tinygrad.functional.methods import Methods

draw = np.random.default_rng(5)


def real(*shape: int) -> Tensor:
    return Tensor(draw.standard_normal(shape).astype(np.float32)).realize()


FORMS: dict[str, Callable[[], Tensor]] = {
    "memory": lambda: real(2, 4, 6, 6),
    "lazy": lambda: real(2, 4, 6, 6) * 2 + 1,
    "transposed": lambda: real(6, 4, 6, 2).transpose(0, 3),
    "cropped": lambda: real(4, 4, 8, 7)[1:3, :, 2:, :6],
    "reshaped": lambda: real(4, 72).reshape(2, 4, 6, 6),
    "expanded": lambda: real(2, 4, 1, 6).expand(2, 4, 6, 6),
    "padded": lambda: real(2, 4, 4, 6).pad((0, 0, 1, 1)),
    "flipped": lambda: real(2, 4, 6, 6).flip((1, 3)),
    "detached": lambda: real(2, 4, 6, 6).detach(),
    "constant": lambda: Tensor.full((2, 4, 6, 6), 0.5),
    "random": lambda: Tensor.rand(2, 4, 6, 6),
    "half": lambda: real(2, 4, 6, 6).half(),
    "integer": lambda: Tensor(draw.integers(1, 5, (2, 4, 6, 6)).astype(np.int32)),
}
CALLS: dict[str, tuple[str, Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "conv2d": ("conv2d", lambda: (real(3, 4, 3, 3), real(3)), {"padding": 1}),
    "conv2d, stride": ("conv2d", lambda: (real(4, 2, 3, 2),), {"groups": 2, "stride": (2, 1), "dilation": 2}),
    "conv_transpose2d": ("conv_transpose2d", lambda: (real(4, 3, 2, 2),), {"stride": 2}),
    "matmul": ("matmul", lambda: (real(6, 5),), {}),
    "dot of a vector": ("dot", lambda: (real(6),), {}),
    "linear": ("linear", lambda: (real(6, 3), real(3)), {}),
    "softmax": ("softmax", lambda: (), {"axis": 1}),
    "softmax, dim": ("softmax", lambda: (), {"dim": -1}),
    "log_softmax": ("log_softmax", lambda: (), {}),
    "logsumexp": ("logsumexp", lambda: (), {"axis": (2, 3), "keepdim": True}),
    "mean": ("mean", lambda: ((0, 2),), {}),
    "var": ("var", lambda: (), {"axis": [1], "correction": 0}),
    "std": ("std", lambda: (), {}),
    "argmax": ("argmax", lambda: (1,), {}),
    "cumsum": ("cumsum", lambda: (2,), {}),
    "layernorm": ("layernorm", lambda: (), {"eps": 1e-3}),
    "batchnorm": ("batchnorm", lambda: (real(4), real(4), real(4), real(4)), {}),
    "max_pool2d": ("max_pool2d", lambda: (3,), {"stride": 1, "padding": 1}),
    "avg_pool2d": ("avg_pool2d", lambda: (), {}),
    "attention": ("scaled_dot_product_attention", lambda: (real(2, 4, 5, 6), real(2, 4, 5, 6)), {}),
    "causal attention": ("scaled_dot_product_attention", lambda: (real(2, 4, 6, 6), real(2, 4, 6, 6)),
                         {"is_causal": True}),
    "gelu": ("gelu", lambda: (), {}),
    "gelu, exact": ("gelu", lambda: ("none",), {}),
    "tanh": ("tanh", lambda: (), {}),
    "pow": ("pow", lambda: (1.5,), {}),
    "pow of tensors": ("pow", lambda: (real(6),), {}),
    "power of a number": ("pow", lambda: (2.5,), {"reverse": True}),
    "cross_entropy": ("cross_entropy", lambda: (real(2, 4, 6, 6).softmax(1),), {}),
    "interpolate": ("interpolate", lambda: ((9, 4),), {"mode": "linear"}),
}


def built(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call gives: the node, or the error."""
    try:
        return function(*args, **options).uop
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", FORMS)
def test_the_nodes_are_those_that_the_function_builds(form: str, call: str) -> None:
    """Nodes of equal fields are one object."""
    name, others, options = CALLS[call]
    function = inspect.unwrap(getattr(Methods, name))
    for _ in range(3):
        x, rest = FORMS[form](), others()
        options_of_function = {"axis" if k == "dim" else k: v for k, v in options.items()}
        expected = built(function, x, *rest, **options_of_function)
        got = built(getattr(Tensor, name), x, *rest, **options)
        assert got is expected or got == expected
        with Tensor.no_grad():
            expected = built(function, x, *rest, **options_of_function)
            assert built(getattr(Tensor, name), x, *rest, **options) == expected


class Counted:
    """A function that is recalled, and how often it ran."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.runs = 0

        def counted(*args: Any, **options: Any) -> Tensor:
            self.runs += 1
            return function(*args, **options)

        self.method = memoised(counted)


def test_a_function_runs_once_for_each_kind_of_call() -> None:
    product = Counted(lambda a, b: (a * b + 1).sum())
    a, b, c = real(3, 4), real(3, 4), real(3, 4)
    results = [product.method(x, y) for x, y in ((a, b), (b, c), (c, a))]
    assert product.runs == 1
    for got, (x, y) in zip(results, ((a, b), (b, c), (c, a)), strict=True):
        np.testing.assert_allclose(got.numpy(), (x.numpy() * y.numpy() + 1).sum(), rtol=1e-5)


@pytest.mark.parametrize("as_list", [False, True])
def test_batches_are_stacked_once_for_each_size(as_list: bool) -> None:
    """Each tensor has nodes of its own: a batch of 64 took 4 ms."""
    stack = Counted(joining.stack)
    for size in (2, 100, 100, 2, graph_templates.MOST_OPERANDS + 1):
        parts = [real(3) for _ in range(size - 1)]
        parts.append(parts[0])
        got = stack.method(parts) if as_list else stack.method(*parts)
        np.testing.assert_array_equal(got.numpy(), np.stack([part.numpy() for part in parts]))
    assert stack.runs == 3


def test_draws_are_operands_like_others() -> None:
    """A node without a device: `randperm` built its 105 stages anew each time."""
    order = Counted(lambda x: x.argsort())
    draws = [Tensor.rand(200) for _ in range(3)]
    results = [order.method(x) for x in draws]
    assert order.runs == 1
    for got, x in zip(results, draws, strict=True):
        np.testing.assert_array_equal(got.numpy(), np.argsort(x.numpy(), kind="stable"))


def test_a_result_of_no_operand_is_left_to_the_function() -> None:
    """Of an empty axis: there is nothing to put operands into."""
    for _ in range(3):
        assert Tensor.rand(0, 3).sum(0).tolist() == [0, 0, 0]
        assert Tensor.rand(2, 0).argsort(1).shape == (2, 0)


@pytest.mark.parametrize(("first", "second"), [
    (lambda a, b: (a, a), lambda a, b: (a, b)),
    (lambda a, b: (a, a.T), lambda a, b: (a, b.T)),
    (lambda a, b: (a, b), lambda a, b: (a, b.T)),
    (lambda a, b: (a, b), lambda a, b: (a, b[:3, :3].pad((0, 1, 0, 1)))),
    (lambda a, b: (a, b), lambda a, b: (a.half(), b.half())),
    (lambda a, b: (a, b), lambda a, b: (a, b + 1)),
    (lambda a, b: (a, b), lambda a, b: (a, Tensor.ones(4, 4))),
    (lambda a, b: (a, 1.0), lambda a, b: (a, 1)),
    (lambda a, b: (a, 0.0), lambda a, b: (a, -0.0)),
    (lambda a, b: (a, True), lambda a, b: (a, 1)),
    (lambda a, b: (a, (1, 2)), lambda a, b: (a, (1.0, 2.0))),
], ids=["same operand", "same memory", "transposed", "padded", "dtype", "lazy", "constant", "number", "zero",
        "bool", "tuple"])
def test_other_kinds_of_operands_are_another_call(first: Callable[..., Any],
                                                  second: Callable[..., Any]) -> None:
    seen = Counted(lambda x, y: x.exp().sum() * 2)
    a, b = real(4, 4), real(4, 4)
    seen.method(*first(a, b))
    seen.method(*second(a, b))
    assert seen.runs == 2


def test_a_call_without_a_tensor_is_left_to_the_function() -> None:
    x = real(2, 3)
    np.testing.assert_array_equal(Tensor.softmax(self=x).numpy(), x.softmax().numpy())
    for wrong in ((), (3.0,), (np.ones(3),)):
        with pytest.raises((TypeError, AttributeError)):
            Tensor.softmax(*wrong)


def test_modes_are_part_of_a_call() -> None:
    x = Tensor([[1, 2, 3]]).realize()
    before = dtypes.default_float
    assert x.mean().dtype is before and x.mean().dtype is before
    try:
        dtypes.default_float = dtypes.float64
        assert x.mean().dtype is dtypes.float64
    finally:
        dtypes.default_float = before
    q = real(1, 2, 8, 4)
    without = q.scaled_dot_product_attention(q, q, dropout_p=0.5).numpy()
    with Tensor.train():
        first, second = (q.scaled_dot_product_attention(q, q, dropout_p=0.5).numpy() for _ in range(2))
    assert not np.array_equal(first, without)
    assert not np.array_equal(first, second), "random numbers are drawn for every call"


def test_what_is_written_meanwhile_is_seen() -> None:
    x = real(2, 3)
    view = x[1]
    for value in (1.0, 2.0, 3.0):
        x.assign(Tensor.full((2, 3), value))
        np.testing.assert_array_equal(view.logsumexp().numpy(), np.float32(value) + np.float32(np.log(3.0)))


def test_other_memory_is_not_taken_for_that_of_the_first_call() -> None:
    table = real(4)
    seen = Counted(lambda x: x.exp().sum() + table.sum())
    for _ in range(2):
        x = real(4)
        expected = np.exp(x.numpy()).sum() + table.numpy().sum()
        np.testing.assert_allclose(seen.method(x).numpy(), expected, rtol=1e-5)
        table = real(4)
    assert seen.runs == 2


def test_gradients_flow_as_through_the_function() -> None:
    for _ in range(2):
        x, w = real(2, 3, 5, 5), real(4, 3, 3, 3)
        got = (x.conv2d(w, padding=1).softmax(1) ** 2).sum().gradient(x, w)
        conv, soft = inspect.unwrap(Methods.conv2d), inspect.unwrap(Methods.softmax)
        expected = (soft(conv(x, w, padding=1), 1) ** 2).sum().gradient(x, w)
        assert [g.uop for g in got] == [g.uop for g in expected]


def test_sizes_of_variables_are_left_to_the_function() -> None:
    x = real(8, 3)
    for n in (3, 5):
        rows = x[:Variable("n", 1, 8).bind(n)]
        np.testing.assert_allclose(rows.softmax(-1).sum().numpy(), n, rtol=1e-6)


def test_memory_of_operands_is_not_kept() -> None:
    gc.collect()
    before = GlobalCounters.mem_used
    for _ in range(2):
        x, w = real(1, 16, 64, 64), real(16, 16, 3, 3)
        x.conv2d(w, padding=1).relu().sum().numpy()
    del x, w
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_the_oldest_kinds_of_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_templates, "MAX_TEMPLATES", 4)
    seen = Counted(lambda x: x.exp().sum())
    for size in (1, 2, 3, 4, 5, 5, 4, 3, 2, 1):
        seen.method(real(size))
    assert seen.runs == 6
