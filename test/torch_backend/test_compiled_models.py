"""`torch.compile(backend="tinygrad")` beside eager PyTorch: results, gradients, buffers, random numbers."""
from __future__ import annotations

import copy
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tinygrad import Tensor  # noqa: E402
from tinygrad.torch import backend, dispatch  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh_compilations() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def trains_as_eager(model: nn.Module, make: Callable[[], Any], steps: int = 3) -> None:
    """Outputs, gradients, parameters and buffers after each step of SGD are those of eager."""
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=backend)
    optimizers = [torch.optim.SGD(m.parameters(), 0.01, momentum=0.9) for m in (model, twin)]
    for _ in range(steps):
        x = make()
        results = []
        for run, optimizer in zip((model, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            results.append(run(x))
            results[-1].square().mean().backward()
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
        for (name, ours), eager in zip(twin.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-4, atol=1e-5,
                                       msg=lambda m, n=name: f"{n}: {m}")
        for optimizer in optimizers:
            optimizer.step()
    for ours, eager in zip(twin.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(
        nn.Linear(10, 20), nn.ReLU(), nn.LayerNorm(20), nn.GELU(), nn.Linear(20, 8), nn.Tanh(),
        nn.Softmax(-1)), (5, 10)),
    "convolutions": (lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3, stride=2),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(-1)), (4, 3, 14, 14)),
    "group norm": (lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.Conv2d(8, 2, 1)), (2, 4, 5, 5)),
    "activations": (lambda: nn.Sequential(
        nn.Linear(6, 6), nn.ELU(), nn.LeakyReLU(), nn.Hardtanh(), nn.Softplus(), nn.Sigmoid(),
        nn.Mish()), (7, 6)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_as_in_eager(name: str) -> None:
    make, shape = NETWORKS[name]
    trains_as_eager(make(), lambda: torch.randn(shape))


def test_batch_norm_that_does_not_train_uses_its_statistics() -> None:
    model = nn.BatchNorm2d(3)
    model(torch.randn(8, 3, 4, 4))
    model.eval()
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))


def test_infinities_keep_the_mean_slope() -> None:
    x = torch.tensor([-float("inf"), 1.0, -2.0, float("inf")])
    slope = torch.compile(nn.RReLU().eval(), backend=backend)
    torch.testing.assert_close(slope(x), nn.RReLU().eval()(x))


def test_embeddings_get_the_sums_of_their_rows_gradients() -> None:
    trains_as_eager(nn.Sequential(nn.Embedding(7, 5, padding_idx=2), nn.Linear(5, 3)),
                    lambda: torch.randint(0, 7, (4, 6)))


def test_an_input_that_is_written_to_changes_for_the_caller() -> None:
    def write(x: Any) -> Any:
        x.add_(1)
        x[1:3] = 7
        return x * 2

    x = torch.arange(5.0)
    eager = x.clone()
    expected = write(eager)
    torch.testing.assert_close(torch.compile(write, backend=backend)(x), expected)
    torch.testing.assert_close(x, eager)


ROWS = torch.tensor([True, False, True, True, False])


def columns_written(x: Any) -> Any:
    y = x.t().clone()
    y[:, ROWS] = torch.arange(12.0).reshape(4, 3)
    return y


WRITES: dict[str, Callable[[Any], Any]] = {
    "an item for each row": lambda x: x.index_put((ROWS,), torch.arange(12.0).reshape(3, 4)),
    "one row for all": lambda x: x.index_put((ROWS,), torch.arange(4.0)),
    "added to rows": lambda x: x.index_put((ROWS,), torch.arange(12.0).reshape(3, 4), accumulate=True),
    "a mask of all axes": lambda x: x.index_put((torch.eye(5, 4) > 0,), torch.arange(4.0)),
    "columns": columns_written,
    "no rows": lambda x: x.index_put((ROWS & ~ROWS,), torch.zeros(0, 4)),
    "added to a number": lambda x: x.sum().scatter_add(0, torch.tensor([0, 0]), torch.ones(2)),
    "added to rows that are one": lambda x: x[:1].clone().expand(3, 4).index_put_(
        (torch.tensor([2, 2]),), torch.tensor(1.0), accumulate=True),
    "nothing added": lambda x: x[0].scatter_add(0, torch.zeros(2, 0, dtype=torch.long), x),
}


@pytest.mark.parametrize("name", WRITES)
def test_items_at_places_that_values_say_are_written(name: str) -> None:
    x = torch.randn(5, 4)
    torch.testing.assert_close(torch.compile(WRITES[name], backend=backend)(x), WRITES[name](x))


def written(write: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of what is changed by `write`."""
    def function(x: Any, values: Any) -> Any:
        y = x.sin()
        write(y, values)
        return y
    return function


EYE = torch.eye(5, 4) > 0
COLUMNS = torch.tensor([True, False, True, True])
WRITES_OF_VALUES: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "an item for each": (written(lambda y, values: y.__setitem__(EYE, values)), (4,)),
    "a number": (written(lambda y, values: y.__setitem__(EYE, values)), ()),
    "rows": (written(lambda y, values: y.__setitem__(ROWS, values)), (3, 4)),
    "one row for all": (written(lambda y, values: y.__setitem__(ROWS, values)), (4,)),
    "columns": (written(lambda y, values: y.__setitem__((slice(1, None, 2), COLUMNS), values)), (2, 3)),
    "the last axis": (written(lambda y, values: y.__setitem__((..., COLUMNS), values)), (5, 3)),
    "an axis before": (written(lambda y, values: y.__setitem__((ROWS, ...), values)), (3, 1)),
    "one column's": (written(lambda y, values: y.__setitem__((ROWS, 1), values)), (3,)),
    "a new axis": (written(lambda y, values: y.__setitem__((None, ROWS), values)), (1, 3, 4)),
    "a view's": (written(lambda y, values: y.t().__setitem__(COLUMNS, values)), (3, 5)),
    "no rows": (written(lambda y, values: y.__setitem__(ROWS & ~ROWS, values)), (0, 4)),
    "index_put": (lambda x, values: x.index_put((EYE,), values), (4,)),
    "index_put, added": (lambda x, values: x.index_put((ROWS,), values, accumulate=True), (3, 4)),
    "index_put_": (written(lambda y, values: y.index_put_((ROWS,), values)), (3, 4)),
}


@pytest.mark.parametrize("name", WRITES_OF_VALUES)
def test_values_written_where_a_mask_holds_have_gradients(name: str) -> None:
    write, shape = WRITES_OF_VALUES[name]
    x, values = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((5, 4), shape))
    found, expected = torch.compile(write, backend=backend, fullgraph=True)(x, values), write(x, values)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, (x, values), weights) for y in (found, expected)))


OF_LISTS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: torch._foreach_add(x, y, alpha=0.5), "sub": lambda x, y: torch._foreach_sub(x, 0.5),
    "mul": lambda x, y: torch._foreach_mul(x, [2.0, 3.0]), "div": lambda x, y: torch._foreach_div(x, y[0][0]),
    "addcmul": lambda x, y: torch._foreach_addcmul(x, y, y, 0.5),
    "addcdiv": lambda x, y: torch._foreach_addcdiv(x, y, x, [0.5, 2.0]),
    "lerp": lambda x, y: torch._foreach_lerp(x, y, 0.1), "pow": lambda x, y: torch._foreach_pow(2.0, x),
    "clamp": lambda x, y: torch._foreach_clamp_max(torch._foreach_clamp_min(x, 0.2), y),
    "maximum": lambda x, y: torch._foreach_maximum(x, [0.5, 0.6]),
    "norm": lambda x, y: torch._foreach_norm(x, 1),
    "sqrt": lambda x, y: torch._foreach_sqrt(x),
    "copy_": lambda x, y: torch._foreach_copy_(torch._foreach_neg(x), y),
    "zero_": lambda x, y: torch._foreach_zero_(torch._foreach_neg(x)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OF_LISTS)
def test_operators_of_lists_are_those_of_each_tensor(name: str) -> None:
    x, y = ([torch.rand(3) + 0.1, torch.rand(2, 2) + 0.1] for _ in range(2))
    found = torch.compile(OF_LISTS[name], backend=backend)(x, y)
    torch.testing.assert_close(list(found), list(OF_LISTS[name](x, y)))


@pytest.mark.filterwarnings("error")
def test_signs_and_shifts_are_eagers() -> None:
    def function(x: Any, i: Any) -> Any:
        return x.sign(), i << 2, i >> 1, i << i, i >> 64, 3 << i.abs()

    x, i = torch.tensor([float("nan"), -2.0, 0.0, 3.0]), torch.tensor([-5, 2, 63, 64])
    torch.testing.assert_close(torch.compile(function, backend=backend)(x, i), function(x, i))



@pytest.mark.parametrize("dtype", (torch.uint16, torch.uint32, torch.uint64, torch.int16), ids=str)
def test_whole_numbers_of_all_widths_are_arguments_and_results(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    found = torch.compile(lambda x: (x.clone(), x.t().contiguous(), x.float()), backend=backend)(x)
    for ours, expected in zip(found, (x, x.t(), x.float()), strict=True):
        assert ours.dtype == expected.dtype and torch.equal(ours, expected)


def test_a_copy_does_not_change_with_what_it_is_a_copy_of() -> None:
    copy_of = torch.compile(lambda x: (x.clone(), x.t().contiguous()), backend=backend)
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(3):
        same, turned = copy_of(x)
        expected = x.clone()
        x += 1
        assert torch.equal(same, expected)
        assert torch.equal(turned, expected.t())


VIEWS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "a view of another": lambda x: (x * 2, (x * 2)[0], x.t()),
    "views of one": lambda x: (y := x * 2) is not None and (y[0], y.view(-1), y.t().unsqueeze(0)),
    "parts": lambda x: (x * 2).split([1, 3], 1),
    "the same twice": lambda x: (y := x + 1) is not None and (y, y, y.detach()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_share_memory_as_in_eager(name: str) -> None:
    run = torch.compile(VIEWS[name], backend=backend)
    for _ in range(3):
        x = torch.randn(3, 4)
        eager, ours = VIEWS[name](x), run(x)
        for written in range(len(eager)):
            for results in (eager, ours):
                results[written].mul_(written + 3)
            for found, expected in zip(ours, eager, strict=True):
                torch.testing.assert_close(found, expected)


def test_a_view_that_memory_in_order_does_not_have_is_a_result_of_its_own() -> None:
    def turned(x: Any) -> tuple[Any, Any]:
        y = x.t() * 2  # in eager it lies as x does, here in the order of its axes
        return y, y.t().reshape(-1)

    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(turned, backend=backend)(x), turned(x))


def test_a_backward_pass_keeps_no_copies_of_weights() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 8))
    run = torch.compile(model, backend=backend)
    kept: list[Any] = []
    for _ in range(2):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = run(torch.randn(5, 16))
        y.sum().backward()
    weights = {p.data_ptr() for p in model.parameters()}
    large = [t for t in kept if t.numel() >= 24 * 8]
    assert large
    assert all(t.data_ptr() in weights for t in large)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda x: x, "transposed": lambda x: x.t(), "with gaps": lambda x: x[:, ::2],
    "repeated": lambda x: x[:1].expand(6, 6), "a part": lambda x: x[2:, 1:], "empty": lambda x: x[:0]}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arguments_may_lie_in_memory_in_any_way(name: str) -> None:
    f = torch.compile(lambda x, y: (x * 2 + y, (x - y).sum(0)), backend=backend)
    for _ in range(3):
        x, y = LAYOUTS[name](torch.randn(6, 6)), torch.randn(1)
        for found, expected in zip(f(x, y), (x * 2 + y, (x - y).sum(0)), strict=True):
            torch.testing.assert_close(found, expected)


def test_arguments_may_be_negated_as_they_are_read() -> None:
    f = torch.compile(lambda x: x * 2, backend=backend)
    for n in range(4):
        x = torch.randn(3, dtype=torch.complex64)
        torch.testing.assert_close(f(x.conj().imag if n else x.imag), (-2 if n else 2) * x.imag)


def attention(q: Any, k: Any, v: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(q, k, v)


OPERANDS_ALIKE: dict[str, Callable[[Any], Any]] = {
    "queries, keys and values": lambda x: attention(x, x, x),
    "keys and values": lambda x: attention(x.sin(), x, x),
    "an image and its filter": lambda x: nn.functional.conv2d(x, x, padding=1),
    "what is spread and its filter": lambda x: nn.functional.conv_transpose2d(x, x),
    "an image and its places": lambda x: nn.functional.grid_sample(
        x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
}


@pytest.mark.parametrize("name", OPERANDS_ALIKE)
def test_operands_that_are_one_tensor_have_gradients_each(name: str) -> None:
    x = torch.rand(3, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    found, expected = torch.compile(OPERANDS_ALIKE[name], backend=backend)(x), OPERANDS_ALIKE[name](x)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, weights) for y in (found, expected)))


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_query_that_sees_no_key_gets_zeros(kind: Any) -> None:
    seen = torch.tensor([[True, False, True], [False, False, False]])
    mask = seen if kind is torch.bool else torch.zeros(2, 3, dtype=kind).masked_fill(~seen, -torch.inf)
    q, k, v = (torch.randn(2, 2, n, 4, dtype=torch.float64, requires_grad=True) for n in (2, 3, 3))
    def masked(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, mask)
    found, expected = (f(q, k, v) for f in (torch.compile(masked, backend=backend), masked))
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, (q, k, v), weights) for y in (found, expected)))


def test_gradients_from_outside_may_lie_in_memory_in_any_way() -> None:
    f = torch.compile(lambda x: (x * x, x.sum(0)), backend=backend)
    for name in ("in order", "transposed", "with gaps", "repeated", "in order"):
        x = torch.randn(6, 6, requires_grad=True)
        g = LAYOUTS[name](torch.randn(6, 12 if name == "with gaps" else 6))
        torch.autograd.backward(f(x), (g, g[0]))
        torch.testing.assert_close(x.grad, 2 * g * x.detach() + g[0])


def products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu().sum(0)


def windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Items that only a table of places says where to find."""
    return x.as_strided((2, 2, 2), (4, 1, 2)).sum(0) * w[0, 0]


STRIDED: dict[str, Callable[[Any], Any]] = {
    "from the beginning of memory": lambda x: x.as_strided((2, 2), (1, 1), 0) * 2,
    "beyond the tensor": lambda x: x.as_strided((4, 2), (1, 2)) * 2,
    "between a view's items": lambda x: (x * 2)[::2].as_strided((3,), (1,)) + 1,
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_read_the_memory_that_a_tensor_is_part_of(name: str) -> None:
    run, memory = torch.compile(STRIDED[name], backend=backend), torch.randn(20)
    for begin in (0, 2, 5, 0, 3):
        x = memory[begin:begin + 4]
        torch.testing.assert_close(run(x), STRIDED[name](x))


@pytest.mark.parametrize("function", [products, windows])
def test_calls_of_one_kind_are_one_native_command(function: Callable[..., Any]) -> None:
    found: list[Any] = []

    class Watched(dispatch.Replayed):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    module = importlib.import_module("tinygrad.torch.backend")
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(module, "Replayed", Watched)
        f = torch.compile(function, backend=backend)
        w = torch.randn(4, 5)
        for _ in range(3):
            x = torch.randn(3, 4)
            torch.testing.assert_close(f(x, w), function(x, w))
    assert [launch is not None for replayed in found for launch in replayed.launches.values()] == [True]


USED: dict[str, Callable[[Any], Any]] = {
    "the product": lambda results: results[0].sin(), "the loss": lambda results: results[1],
    "both": lambda results: results[0].sin().sum() * results[1], "another": lambda results: results[2].cos(),
    "a view": lambda results: results[3].square()}


@pytest.mark.parametrize("name", USED)
def test_results_that_nobody_uses_have_no_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass gets none for them, and no memory full of zeros."""
    given: list[Any] = []

    class Watched(dispatch.Replayed):
        def __call__(self, *args: Any) -> list[Any]:
            nodes = [node.name for node in self.program.inputs]
            given.extend(arg for node, arg in zip(nodes, args) if node.startswith("tangents"))
            return super().__call__(*args)

    def function(x: Any, w: Any) -> Any:
        y = x @ w
        return y, y.square().sum(), x.sin(), y.t()

    monkeypatch.setattr(importlib.import_module("tinygrad.torch.backend"), "Replayed", Watched)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    f = torch.compile(function, backend=backend)
    for _ in range(3):
        ours, eagers = (torch.autograd.grad(USED[name](results).sum(), (x, w), allow_unused=True)
                        for results in (f(x, w), function(x, w)))
        for found, expected in zip(ours, eagers, strict=True):
            zeros = torch.zeros(()) if found is None else torch.zeros_like(found)
            torch.testing.assert_close(zeros if found is None else found,
                                       zeros if expected is None else expected)
    assert any(gradient is None for gradient in given)


def test_random_numbers_follow_the_seed_of_pytorch() -> None:
    drop = torch.compile(lambda x: nn.functional.dropout(x, 0.25), backend=backend)
    x = torch.ones(4000)
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, x[0].div(0.75).item()}
    assert abs((first == 0).float().mean().item() - 0.25) < 0.04


def test_random_numbers_leave_our_own_sequence_alone() -> None:
    drop = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend=backend)
    Tensor.manual_seed(1)
    expected = (Tensor.rand(3).tolist(), Tensor.rand(3).tolist())
    Tensor.manual_seed(1)
    first = Tensor.rand(3).tolist()
    drop(torch.ones(10))
    assert (first, Tensor.rand(3).tolist()) == expected


def test_dropout_has_the_gradient_of_the_items_that_it_kept() -> None:
    x = torch.ones(100, requires_grad=True)
    y = torch.compile(lambda x: nn.functional.dropout(x, 0.5) * 3, backend=backend)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


class Checkpointed(nn.Module):
    """A transformer block between an embedding and a convolution, whose activations are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.convolution = nn.Conv1d(32, 16, 3, padding=1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.block, self.embedding(tokens), use_reentrant=False)
        return self.convolution(x.transpose(1, 2)).relu()


def test_checkpointed_blocks_train_as_in_eager() -> None:
    trains_as_eager(Checkpointed(), lambda: torch.randint(50, (3, 7)))


def test_dropout_in_a_checkpoint_has_the_gradient_of_the_items_that_it_kept() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x.sin(), 0.5)

    run = torch.compile(lambda x: checkpoint(dropped, x, use_reentrant=False),
                        backend=backend)
    for _ in range(3):
        x = torch.rand(64, requires_grad=True)
        y = run(x)
        y.sum().backward()
        kept = (y.detach() != 0) * 2.0
        assert 0 < kept.count_nonzero() < 64
        torch.testing.assert_close(x.grad, kept * x.detach().cos())


def test_a_batch_norm_in_a_checkpoint_trains_and_sees_a_batch_once() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
    once, run = copy.deepcopy(model), torch.compile(lambda x: checkpoint(model, x, use_reentrant=False),
                                                    backend=backend)
    for _ in range(3):
        x = torch.randn(5, 4)
        run(x).square().sum().backward()
        once(x).square().sum().backward()
    for found, expected in zip(model.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(model.named_buffers()), dict(once.named_buffers()))


@pytest.mark.parametrize("trains", [True, False])
def test_autocast_computes_in_bfloat16(trains: bool) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    twin = copy.deepcopy(model)
    results = []
    x = torch.randn(16, 32)
    for run in (model, torch.compile(twin, backend=backend)):
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(trains):
            y = run(x)
        if trains:
            y.float().square().mean().backward()
        results.append(y)
    assert results[0].dtype == results[1].dtype == torch.bfloat16
    torch.testing.assert_close(results[1], results[0], rtol=0.03, atol=0.03)
    if trains:
        for ours, eager in zip(twin.parameters(), model.parameters(), strict=True):
            assert (ours.grad - eager.grad).norm() <= 0.02 * eager.grad.norm()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "SGD, tensor": lambda p: torch.optim.SGD(p, torch.tensor(0.1)),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_of_an_optimizer_is_that_of_eager(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    eager, ours = (OPTIMIZERS[name](m.parameters()) for m in (model, twin))
    for _ in range(5):
        x = torch.randn(5, 8)
        for network, optimizer, step in (
                (model, eager, eager.step), (twin, ours, torch.compile(ours.step, backend=backend))):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            step()
    for found, expected in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_sizes_that_vary_give_what_eager_gives() -> None:
    f = torch.compile(lambda x: (x.reshape(-1) * x.shape[0]).sum(), backend=backend, dynamic=True)
    for n in (3, 5, 8):
        x = torch.randn(n, 4)
        torch.testing.assert_close(f(x), x.sum() * n)


def missing_function(x: Any) -> Any:
    y = (x @ x).sin()
    z = torch.special.bessel_j0(y) + torch.special.bessel_j0(x + 1) + torch.linalg.eigvals(y).real
    return torch.softmax(z * 2, -1) @ x


def rotated(x: Any) -> Any:
    pairs = torch.view_as_complex(x.sin().reshape(4, 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones(2), torch.arange(2.0))).flatten(1) * 2


def conjugated(x: Any) -> Any:
    """PyTorch's part gives what is negated as it is read."""
    return torch.complex(x.sin(), x.cos()).conj().imag * 2 + x


def spectrum(x: Any) -> Any:
    return torch.fft.rfft(x.sin()).abs().cos()


@pytest.mark.parametrize("function, named", [
    (missing_function, r"bessel_j0\.default \(2 times\).*; PyTorch runs them"),
    (rotated, r"aten\.mul\.Tensor of complex numbers \(1 time\)"),
    (conjugated, r"complex"), (spectrum, r"_fft_r2c")])
def test_operators_that_are_missing_run_in_pytorch_and_are_listed(function: Any, named: str) -> None:
    x = torch.randn(4, 4, requires_grad=function is not missing_function)
    compiled = torch.compile(function, backend=backend)
    with pytest.warns(UserWarning, match=named):
        found = compiled(x)
        expected = function(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        if x.requires_grad:
            weights = torch.randn_like(expected)
            (ours,), (eager,) = (torch.autograd.grad(y, x, weights) for y in (found, expected))
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)


def test_the_backend_is_registered_by_its_name() -> None:
    found = [entry.value for entry in importlib.metadata.entry_points(group="torch_dynamo_backends")
             if entry.name == "tinygrad"]
    if not found:
        pytest.skip("tinygrad was installed here before it had entry points: pip install -e .")
    assert found[0] == "tinygrad.torch.backend:backend"
    add_one = torch.compile(lambda x: x + 1, backend="tinygrad")
    assert add_one(torch.ones(3)).tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_operators_of_a_number_and_a_tensor(name: str) -> None:
    """As gradients of experts have them (PhiMoE)."""
    operation = getattr(torch.ops.aten, name).Tensor
    x = torch.rand(5) + 0.5
    compiled = torch.compile(lambda x: operation(2.0, x), backend=backend)
    torch.testing.assert_close(compiled(x), operation(2.0, x))
