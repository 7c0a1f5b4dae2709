"""Sizes that vary (`torch.compile(dynamic=True)`): one trace serves them, with the results and gradients of
eager; traces are counted and bounded."""
from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
import sympy  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod  # noqa: E402

from tinygrad import Tensor, Variable  # noqa: E402
from tinygrad.graph.sizes import SizeError, value_of  # noqa: E402
from tinygrad.torch import backend  # noqa: E402
from tinygrad.torch.ops.movement import reshaped  # noqa: E402
from tinygrad.torch.sizes import Symbols, size_of  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh_compilations() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is traced for each size says so
        yield


def traces() -> int:
    return counters["tinygrad"]["traces"]


def trains_as_eager(model: nn.Module, calls: list[Any], dynamic: bool | None = True) -> None:
    """Results and gradients are those of eager for each of the calls."""
    twin = copy.deepcopy(model)
    run = torch.compile(twin, backend=backend, dynamic=dynamic)
    for x in calls:
        results = []
        for network, function in ((model, model), (twin, run)):
            network.zero_grad()
            results.append(function(x))
            results[-1].square().mean().backward()
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
        assert results[1].is_contiguous()
        for (name, ours), eager in zip(twin.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-4, atol=1e-5,
                                       msg=lambda m, n=name: f"{n}: {m}")


SIZES = [(7, 5), (3, 6), (8, 8), (5, 7), (2, 5), (7, 5)]
"""Batches and lengths within one bound, 8."""


def test_batches_and_lengths_replay_one_trace_in_training() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    trains_as_eager(model, [torch.randn(*size, 4) for size in SIZES])
    assert traces() == 2  # forward and backward
    assert counters["stats"]["unique_graphs"] == 1


def test_a_transformers_batches_and_lengths_replay_one_trace() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 8), layer)
    trains_as_eager(model, [torch.randint(20, size) for size in SIZES])
    assert traces() == 2


def test_batches_of_images_replay_one_trace() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2),
                          nn.Flatten(), nn.Linear(36, 3))
    x = torch.randn(8, 2, 6, 6)
    torch._dynamo.mark_dynamic(x, 0)
    trains_as_eager(model, [x, *(torch.randn(n, 2, 6, 6) for n in (5, 7, 2))], dynamic=None)
    assert traces() == 2


def test_dropout_of_batches_replays_one_trace() -> None:
    """The last minibatch of an epoch, behind a flattened picture."""
    run = torch.compile(lambda x: nn.functional.dropout(x.flatten(1), 0.5), backend=backend, dynamic=True)
    for n in (16, 9, 13):
        x = torch.ones(n, 4, 8, 2, requires_grad=True)
        y = run(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad.flatten(1), y.detach())
        assert 0.3 < float((y == 0).float().mean()) < 0.7
    assert traces() == 2


def test_without_gradients_lengths_replay_one_trace() -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).eval()
    run = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for size in SIZES:
            x = torch.randint(20, size)
            torch.testing.assert_close(run(x).softmax(-1), model(x).softmax(-1))
    assert traces() == 1


def test_what_changed_once_varies_from_then_on() -> None:
    """`dynamic=None`, as by default: the second size is compiled for any."""
    model = nn.Linear(4, 3)
    trains_as_eager(model, [torch.randn(n, 4) for n in (6, 8, 5, 3, 7)], dynamic=None)
    assert counters["stats"]["unique_graphs"] == 2
    assert traces() == 4


def test_bounds_grow_by_powers_of_two() -> None:
    f = torch.compile(lambda x: x.sin().sum(0), backend=backend, dynamic=True)
    for n, expected in ((3, 1), (4, 1), (5, 2), (8, 2), (3, 2), (60, 3), (33, 3), (3, 3)):
        x = torch.randn(n, 7)
        torch.testing.assert_close(f(x), x.sin().sum(0))
        assert traces() == expected, n


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "running sums": lambda x: x.cumsum(1),
    "joined": lambda x: torch.cat([x, x * 2], 1).sum(1),
    "padded": lambda x: nn.functional.pad(x, (0, 0, 2, 1)).sum(2),
    "a part": lambda x: x[:, 1:].sum(1) + x[:, :-1].mean(1),
    "the last": lambda x: x[:, -1] * x.shape[1],
    "flat": lambda x: x.reshape(-1).flip(0),
    "of other order": lambda x: x.transpose(0, 1).reshape(-1, 4),
    "a mask": lambda x: x.masked_fill(torch.arange(x.shape[1])[:, None] > 2, 0.0).softmax(1),
    "products": lambda x: (x @ x.transpose(1, 2)).tril().reshape(-1, x.shape[1]),
    "heads": lambda x: x.reshape(x.shape[0], x.shape[1], 2, 2).transpose(1, 2).flatten(0, 1),
    "fractions of sizes": lambda x: x / x.shape[0] + 1.0 / (x.shape[0] * x.shape[1]),
    "the end of a table": lambda x: x + torch.arange(32.0)[-x.shape[1]:, None],
    "a table from a place on": lambda x: x + torch.arange(32)[x.shape[0]:].sum(),
    "items of a row where a mask holds": lambda x: x.masked_scatter(x > 0, torch.arange(400.0) / x.shape[1]),
    "items of its own where a mask holds": lambda x: (x * 2).masked_scatter(x[:, :, :1] > 0, x),
    "places in a row": lambda x: torch.searchsorted(torch.arange(x.shape[1]) * 2.0, x),
    "as large": lambda x: torch.ones_like(x) + torch.zeros(x.shape[1], 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_sizes_that_vary(name: str) -> None:
    function = PROGRAMS[name]
    run = torch.compile(function, backend=backend, dynamic=True)
    for size in SIZES:
        x = torch.randn(*size, 4)
        torch.testing.assert_close(run(x), function(x))
    assert traces() == 1


def written(*bounds: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        x = x.clone()
        x[:, slice(*bounds)] = -1
        return x
    return function


BEYOND: dict[str, Callable[[Any], Any]] = {
    "the last": lambda x: x[:, -7:] * 2,
    "all but the last": lambda x: x[:, :-7] * 2,
    "some of the last": lambda x: x[:, -7:-2] * 2,
    "nothing between": lambda x: x[:, 3:-3] * 2,
    "every third of the last": lambda x: x[:, -7::3] * 2,
    "the last of what grew": lambda x: torch.cat([x, x[:, :1]], 1)[:, -7:],
    "written to the last": written(-7, None),
    "written to all but the last": written(None, -7),
    "written to some of the last": written(-7, -2),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", BEYOND)
def test_slices_end_where_the_axis_does(name: str, dynamic: bool) -> None:
    run = torch.compile(BEYOND[name], backend=backend, dynamic=dynamic)
    for size in (5, 9, 6, 7, 3):
        x = torch.randn(2, size)
        torch.testing.assert_close(run(x), BEYOND[name](x), rtol=0, atol=0)


@pytest.mark.parametrize("function", [lambda x: torch.cat(x.split(3, 1)[::-1], 1),
                                      lambda x: torch.cat(x.chunk(3, 1)[::-1], 1)])
def test_pieces_of_sizes_that_vary_replay_a_trace_for_each_number_of_pieces(function: Callable[[Any], Any]
                                                                           ) -> None:
    run = torch.compile(function, backend=backend, dynamic=True)
    for size in (9, 8, 9):
        x = torch.randn(2, size)
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)
    assert traces() == 1


@pytest.mark.parametrize("name, function", [
    ("added", lambda x, n: x + n), ("multiplied", lambda x, n: x + n * 1000),
    ("a result of its own", lambda x, n: torch.full((2,), n) // 3),
    ("counted from", lambda x, n: torch.arange(n, n + 2))])
def test_integers_of_calls_may_be_of_64_bits(name: str, function: Callable[..., Any]) -> None:
    run, x = torch.compile(function, backend=backend), torch.ones(2, dtype=torch.float64)
    for n in (3, 4, 70_000, 10**7, 2**31, 10**12, -(2**40)):
        torch.testing.assert_close(run(x, n), function(x, n), rtol=0, atol=0)


def changed(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of what `write` changes."""
    def function(x: Any) -> Any:
        y = x.sin()
        write(y)
        return y
    return function


def attention(x: Any) -> Any:
    heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True, scale=0.5)


TAPS = nn.Parameter(torch.arange(48.0).reshape(4, 4, 3).sin(), requires_grad=False)
"""a parameter: its sizes are those of its kind"""

WITH_GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "causal attention": attention,
    "differences": lambda x: x[:, 1:] - x[:, :-1],
    "first and last items": lambda x: x[:, 0] * x[:, -1],
    "the last two": lambda x: x.sin()[:, -2:],
    "shifted into itself": changed(lambda y: y[:, 1:].copy_(y[:, :-1] * 2)),
    "a slice written": changed(lambda y: y.__setitem__((slice(None), slice(0, 2)), 1.0)),
    "the last item written": changed(lambda y: y[:, -1].copy_(y[:, 0])),
    "written where a mask holds": changed(lambda y: y.__setitem__(y[:, :, 0] > 0, y.sum((0, 1)))),
    "in front of zeros": lambda x: torch.cat([x.new_zeros(x.shape[0], 1, 4), x[:, :-1]], 1),
    "rolled": lambda x: x.roll(1, 1) + x.roll(-3, 1),
    "repeated": lambda x: x.repeat(2, 3, 1),
    "medians": lambda x: x.median(1)[0],
    "a convolution": lambda x: nn.functional.conv1d(x.transpose(1, 2), TAPS, padding=1),
    "the windows of each channel": lambda x: nn.functional.conv1d(
        x.transpose(1, 2), TAPS[:, :1], padding=2, groups=4)[..., :x.shape[1]],
    "windows with gaps": lambda x: nn.functional.conv1d(x.transpose(1, 2), TAPS, padding=2, dilation=2),
    "a transposed convolution": lambda x: nn.functional.conv_transpose1d(x.transpose(1, 2), TAPS, stride=2),
    "means of windows": lambda x: nn.functional.avg_pool1d(x.transpose(1, 2), 3, 1),
    "standard scores": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_programs_of_sizes_that_vary_have_gradients(name: str) -> None:
    function = WITH_GRADIENTS[name]
    run = torch.compile(function, backend=backend, dynamic=True)
    for size in SIZES:
        x = torch.randn(*size, 4, requires_grad=True)
        expected, found = function(x), run(x)
        torch.testing.assert_close(found, expected)
        weights = torch.randn_like(expected)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, weights) for y in (found, expected)),
                                   rtol=1e-4, atol=1e-5)
    assert traces() == 2


def test_sizes_that_must_be_equal_replay_one_trace_while_they_are() -> None:
    """Keys and values of a cache, whose lengths PyTorch's graph has as two symbols."""
    def attend(q: Any, keys: Any, values: Any) -> Any:
        keys, values = torch.cat([keys, q], 2), torch.cat([values, q], 2)
        return nn.functional.scaled_dot_product_attention(q, keys, values)

    run = torch.compile(attend, backend=backend)
    with torch.no_grad():
        for n in (9, 10, 13, 16):
            q, keys, values = torch.randn(1, 2, 1, 8), torch.randn(1, 2, n, 8), torch.randn(1, 2, n, 8)
            torch._dynamo.mark_dynamic(keys, 2)
            torch._dynamo.mark_dynamic(values, 2)
            torch.testing.assert_close(run(q, keys, values), attend(q, keys, values))
    assert traces() <= 2  # once in vain


def test_sizes_that_were_equal_by_chance_are_told_apart() -> None:
    x = sympy.symbols("a b c", integer=True, positive=True)
    symbols = Symbols([])
    symbols.places = {symbol: (i, None) for i, symbol in enumerate(x)}
    assert symbols.unite([5, 5, 5])
    assert not symbols.unite([5, 5, 5])
    found = symbols.bound([5, 6, 5])
    assert [value_of(as_number(found[symbol])) for symbol in x] == [5, 6, 5]
    assert symbols.twins == {x[2]: x[0]}
    symbols.bound([5, 7, 7])
    assert symbols.unite([5, 7, 7])
    assert symbols.twins == {x[2]: x[1]}


def test_arguments_may_lie_in_memory_in_any_way() -> None:
    run = torch.compile(lambda x: x * 2, backend=backend, dynamic=True)
    for size in SIZES:
        x = torch.randn(2 * size[1], size[0])[::2].t()
        torch.testing.assert_close(run(x), x * 2)


def test_what_has_no_arithmetic_of_sizes_is_traced_for_each_and_a_warning_says_so() -> None:
    def stretched(x: Any) -> Any:
        return torch.nn.functional.interpolate(x.unsqueeze(1), scale_factor=1.5, mode="linear")

    run = torch.compile(stretched, backend=backend, dynamic=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for size in ((3, 5), (4, 6), (2, 5), (4, 6)):
            x = torch.randn(size)
            torch.testing.assert_close(run(x), stretched(x))
    assert [str(w.message).startswith("a graph is traced anew for each value of") for w in found] == [True]
    assert traces() == 3  # once in vain; a batch is a Variable


def test_a_size_that_an_error_names_is_a_number_and_others_vary_still() -> None:
    """PyTorch's graph does not say that a window has as many values as keys: their width is in its mask."""
    def attended(x: Any, keys: Any, values: Any, whole: Any) -> Any:
        mask = torch.zeros(4, 8)
        return nn.functional.scaled_dot_product_attention(x, keys, values[:, :, 1:], mask), whole * 2

    run = torch.compile(attended, backend=backend, dynamic=True)
    counts = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (13, 11, 15, 10):
            given = *(torch.randn(1, 2, n, 8) for n in (4, 8, 9)), torch.randn(2, size)
            torch.testing.assert_close(run(*given), attended(*given))
            counts.append(traces())
    assert len(set(counts)) == 1


def test_the_smaller_of_two_sizes_is_traced_for_each() -> None:
    def on_diagonals(x: Any) -> Any:
        return x.diagonal(0, 1, 2) + torch.arange(torch.sym_min(x.shape[1], x.shape[2]))

    run = torch.compile(on_diagonals, backend=backend, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that each size is traced
        for size in ((3, 5, 8), (3, 7, 6)):
            x = torch.randn(size)
            torch.testing.assert_close(run(x), on_diagonals(x))


def test_an_argument_that_is_changed_and_its_views_are_results_of_each_call() -> None:
    def changed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.select(1, -1).add_(1)
        return x, x.flatten()

    run = torch.compile(changed, backend=backend, dynamic=True)
    for shape in ((3, 4), (5, 4), (3, 4), (300, 200), (5, 4), (300, 200)):
        x = torch.randn(shape)
        expected = changed(x.clone())
        torch.testing.assert_close(run(x), expected)


def test_halves_of_sizes_that_vary_have_gradients() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        half = x.sigmoid().narrow(0, 0, x.shape[0] // 2)
        return torch.stack([half, half])

    run = torch.compile(halves, backend=backend, dynamic=True)
    with pytest.warns(UserWarning, match="a graph is traced anew"):
        for n in (3, 5, 2, 9, 1, 3):
            x = torch.randn(5, 4, n, dtype=torch.float64).permute(2, 1, 0).requires_grad_()
            found, expected = (torch.autograd.grad(f(x).sin().sum(), x)[0] for f in (run, halves))
            torch.testing.assert_close(found, expected)


def test_nested_tensors_are_left_to_pytorch() -> None:
    run = torch.compile(lambda x: x.sin() * 2, backend=backend)
    with pytest.warns(UserWarning, match="nested tensor"):
        for lengths in ((2, 4), (3, 1, 5)):
            parts = [torch.randn(n, 3) for n in lengths]
            x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
            run(x).values().sum().backward()
            torch.testing.assert_close(x.grad.values(), 2 * torch.cat(parts).cos())


def test_more_traces_than_the_limit_are_left_to_pytorch() -> None:
    def windows(x: Any) -> Any:
        return x.as_strided((2, x.shape[0] - 1), (1, 1)).sum(0)  # a table of places for each size

    run = torch.compile(windows, backend=backend, dynamic=True)
    with torch._dynamo.config.patch(recompile_limit=3), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for n in (4, 5, 6, 7, 8, 9, 4):
            x = torch.randn(n)
            torch.testing.assert_close(run(x), windows(x))
    assert traces() <= 4
    assert any("recompile_limit" in str(warning.message) for warning in found)


@pytest.mark.parametrize("old, new", [
    (lambda b, s: (b, s, 4), lambda b, s: (b * s, 4)),
    (lambda b, s: (b * s, 4), lambda b, s: (b, s, 4)),
    (lambda b, s: (b, s, 4), lambda b, s: (b * s * 4,)),
    (lambda b, s: (b, s, s, 2), lambda b, s: (s * b, 2 * s)),
    (lambda b, s: (2, s, 3, b), lambda b, s: (2 * s, 1, 3 * b)),
    (lambda b, s: (4, s), lambda b, s: (2, s * 2)),
    (lambda b, s: (s, 1, b), lambda b, s: (b, 1, s)),
])
def test_a_reshape_keeps_the_order_of_the_items(old: Any, new: Any) -> None:
    for b, s in ((2, 3), (1, 5), (4, 6), (3, 1)):
        sizes = [Variable("b", 1, 4).bind(b), Variable("s", 1, 6).bind(s)]
        known = torch.arange(float(torch.Size(old(b, s)).numel())).reshape(old(b, s))
        whole = Tensor.zeros(*old(4, 6)).contiguous().realize()
        x = whole.shrink([(0, n) for n in old(*sizes)])
        x = x + Tensor(known.numpy()).pad([(0, m - n) for n, m in zip(known.shape, whole.shape)]).shrink(
            [(0, n) for n in old(*sizes)])
        assert reshaped(x, [*new(*(value for value in map(as_number, sizes)))]).tolist() == (
            known.reshape(new(b, s)).tolist())


def as_number(variable: Any) -> Any:
    from tinygrad.graph.sizes import as_size

    return as_size(variable)


def test_expressions_of_symbols_are_sizes() -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    values = {n: Variable("n", 1, 8).bind(5), m: Variable("m", 1, 8).bind(3)}
    for expression, expected in ((n * m + 2, 17), (FloorDiv(n + 1, m), 2), (Mod(n, m), 2), (n ** 2, 25),
                                 (sympy.Integer(4), 4), (n - m, 2), (Max(n, 7), 7), (Min(n, 7), 5)):
        assert value_of(size_of(expression, values)) == expected
    numbers: dict[Any, Any] = {n: 5, m: 3}
    for expression, expected in ((Min(n, m), 3), (Max(n, m, 4), 5), (sympy.floor(n / 2), 2),
                                 (sympy.sqrt(n + 4), 3)):
        assert size_of(expression, numbers) == expected
    with pytest.raises(SizeError, match="no arithmetic for 1/2"):
        size_of(sympy.sqrt(n), values)


def add_to_a_half(x: Any) -> Any:
    half = x[x.shape[0] // 2:]
    half += 1
    return half, x


VIEWS: dict[str, Callable[[Any], Any]] = {
    "rows of an argument": lambda x: (x, x[x.shape[0] // 2:]),
    "columns of an argument": lambda x: (x, x[:, :x.shape[0] - 1]),
    "a row of an argument": lambda x: (x, x[x.shape[0] - 2]),
    "parts of an argument": lambda x: (x, *x.chunk(2)),
    "a row shown again": lambda x: (x[0].expand(x.shape[0], 6), x),
    "items at strides": lambda x: (x.as_strided((2, x.shape[0]), (1, 2), 1), x),
    "halves of a result": lambda x: (lambda y: (y[x.shape[0] // 2:], y[:x.shape[0] // 2], y.t(), y))(x * 2),
    "a result in other shapes": lambda x: (lambda y: (y, y.view(x.shape[0], 2, 3), y.view(-1)))(x * 2),
    "what was added to": add_to_a_half,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_depend_on_sizes_show_what_they_show_in_eager_programs(name: str) -> None:
    """And share memory as there: what is written to one shows in the others."""
    run = torch.compile(VIEWS[name], backend=backend, dynamic=True)
    for rows in (3, 5, 8, 4):
        x = torch.arange(rows * 6.0).reshape(rows, 6)
        expected = VIEWS[name](x.clone())
        found = run(x)
        for _ in range(2):
            for ours, eager in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, eager, rtol=0, atol=0)
                assert ours.stride() == eager.stride() and ours.storage_offset() == eager.storage_offset()
            found[-1].add_(100)
            expected[-1].add_(100)


@pytest.mark.parametrize("parts", [lambda y, k: (y[:k], y[k:]), lambda y, k: (y[k:, :1], y),
                                   lambda y, k: (y[:, -k:], y.view(-1)[k:])])
def test_views_that_begin_where_values_say_show_what_they_show_in_eager_programs(
        parts: Callable[[Any, int], Any]) -> None:
    """A program with gradients makes such results again, where a compiled function says that they begin."""
    def function(x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(0 < k <= 3)
        return parts(x * 2, k)

    with torch._dynamo.config.patch(capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch reads the value
        run = torch.compile(function, backend=backend)
        for k in (2, 1, 3):
            x, n = torch.arange(15.0).reshape(5, 3).requires_grad_(), torch.tensor(k)
            found, expected = run(x, n), function(x, n)
            for ours, eager in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, eager, rtol=0, atol=0)
                assert ours.storage_offset() == eager.storage_offset()
            gradients = [torch.autograd.grad(sum(y.square().sum() for y in results), x)
                         for results in (found, expected)]
            torch.testing.assert_close(*gradients)
