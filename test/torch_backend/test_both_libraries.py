"""`tinygrad.interop`: modules and functions of PyTorch among ours, and ours among its, beside it alone."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="what is shared is PyTorch's")
from torch import nn as theirs  # noqa: E402

from tinygrad import Tensor, TinyJit, nn  # noqa: E402
from tinygrad.engine.capture import JitError  # noqa: E402
from tinygrad.interop import as_torch, from_torch, to_tensor, to_torch, torch_function  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(ours: Tensor, expected: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(to_torch(ours), expected.detach(), rtol=tolerance, atol=tolerance)


def states_agree(model: Any, module: Any) -> None:
    own, expected = nn.state.get_state_dict(model), module.state_dict()
    assert own.keys() == expected.keys()
    for name in own:
        close(own[name], expected[name])


def convolutions() -> Any:
    return theirs.Sequential(theirs.Conv2d(3, 8, 3, padding=1), theirs.BatchNorm2d(8), theirs.ReLU(),
                             theirs.Flatten(), theirs.Linear(8 * 36, 5))


def test_a_model_gives_what_the_module_gives_for_every_batch_size() -> None:
    module = convolutions().eval()
    model = from_torch(module)
    states_agree(model, module)
    for batch in (4, 1, 4, 7):
        x = torch.randn(batch, 3, 6, 6)
        close(model(to_tensor(x)), module(x))
        close(model(x), module(x))


@pytest.mark.parametrize("jit", [False, True])
def test_a_model_trains_as_the_module(jit: bool) -> None:
    module = convolutions().train()
    model = from_torch(module)
    own = nn.optim.SGD(nn.state.get_parameters(model), 0.1, momentum=0.9)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            own.zero_grad()
            loss = model(x).sparse_categorical_crossentropy(y)
            loss.backward()
            own.step()
            return loss

    run: Any = TinyJit(step) if jit else step
    for _ in range(4):
        x, y = torch.randn(6, 3, 6, 6), torch.randint(0, 5, (6,))
        optimizer.zero_grad()
        loss = theirs.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        close(run(to_tensor(x), to_tensor(y)), loss)
    states_agree(model, module)
    module.eval()
    close(model(x), module(x))  # outside of training: running statistics


class Shared(theirs.Module):
    """A weight under two names, a buffer that is not saved, an argument by name, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = theirs.Embedding(7, 4)
        self.head = theirs.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)
        self.frozen = theirs.Parameter(torch.randn(4), requires_grad=False)

    def forward(self, ids: Any, *, shift: Any, flip: bool = False) -> dict[str, Any]:
        hidden = self.embed(ids) * self.scale + self.frozen + shift
        return {"logits": self.head(hidden.flip(0) if flip else hidden), "hidden": hidden}


def test_tied_weights_hidden_buffers_and_arguments_by_name() -> None:
    module = Shared()
    model = from_torch(module)
    own = nn.state.get_state_dict(model)
    assert own.keys() == module.state_dict().keys()
    assert own["embed.weight"] is own["head.weight"]
    ids, shift = torch.tensor([[1, 2], [3, 0]]), torch.randn(4)
    for flip in (False, True):
        found = model(ids=to_tensor(ids), flip=flip, shift=to_tensor(shift))
        expected = module(ids, shift=shift, flip=flip)
        close(found["logits"], expected["logits"])
        close(found["hidden"], expected["hidden"])
    module.zero_grad()
    expected["logits"].square().sum().backward()
    found["logits"].square().sum().backward()
    close(own["embed.weight"].grad, module.embed.weight.grad, 1e-4)
    assert own["frozen"].requires_grad is not True


def test_loaded_weights_are_those_that_a_model_computes_with() -> None:
    module, other = theirs.Linear(3, 2), theirs.Linear(3, 2)
    model = from_torch(module)
    x = torch.randn(5, 3)
    close(model(x), module(x))
    nn.state.load_state_dict(model, {k: to_tensor(v) for k, v in other.state_dict().items()}, verbose=False)
    close(model(x), other(x))
    close(to_tensor(module(x)), module(x))  # whose own weights stay


def test_arguments_may_be_arrays() -> None:
    module, x = theirs.Bilinear(3, 2, 4), np.ones((5, 3), np.float32)
    model = from_torch(module)
    for _ in range(2):
        close(model(x, torch.ones(5, 2)), module(torch.from_numpy(x), torch.ones(5, 2)))


def test_labels_end_where_they_do_in_the_module() -> None:
    """PyTorch's own way to take this loss apart reads on."""
    x, labels = torch.randn(2, 3), torch.tensor([[2, -1, 0], [0, 1, -1]])
    loss = theirs.MultiLabelMarginLoss()
    close(from_torch(loss)(to_tensor(x), to_tensor(labels)), loss(x, labels))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a torch.nn.Module, not a int"):
        from_torch(3)  # type: ignore[arg-type]


def test_our_gradients_go_through_pytorchs_functions() -> None:
    layer, x = theirs.Linear(4, 2), torch.randn(3, 4)
    own = to_tensor(x)
    (torch_function(layer)(own * 2).square().sum() + own.sum()).backward()
    weight = layer.weight.grad.clone()
    layer.zero_grad()
    twin = x.clone().requires_grad_()
    (layer(twin * 2).square().sum() + twin.sum()).backward()
    close(own.grad, twin.grad)
    torch.testing.assert_close(weight, layer.weight.grad)


def test_a_function_of_pytorch_with_several_results_and_integers() -> None:
    x = Tensor([3.0, 1.0, 2.0])
    values, places = torch_function(lambda x, k: tuple(torch.topk(x, k)))(x, 2)
    assert (values.tolist(), places.tolist()) == ([3, 2], [0, 2])
    (values * Tensor([10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [10, 0, 100]


def test_under_tinyjit_a_function_of_pytorch_is_an_error() -> None:
    run = TinyJit(lambda x: torch_function(torch.exp)(x))
    with pytest.raises(JitError):
        run(Tensor([1.0]).realize())


def test_pytorchs_gradients_go_through_our_functions() -> None:
    w, v = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    @as_torch
    def f(a: Tensor, n: float, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return a.sin() * n * b, a.sum(), a.argmax()

    product, total, place = f(w * 3, 2.0, v)
    assert place.dtype == torch.int32
    (product.square().sum() + total).backward()
    found = w.grad.clone(), v.grad.clone()
    w.grad = v.grad = None
    (((w * 3).sin() * 2 * v).square().sum() + (w * 3).sum()).backward()
    torch.testing.assert_close(found, (w.grad, v.grad))
    frozen = torch.ones(2)
    assert as_torch(lambda x: x * 2)(frozen).requires_grad is False


def test_functions_of_ours_are_between_the_graphs_of_a_compiled_function() -> None:
    scaled = as_torch(lambda x, y: (x @ y).sin())

    def function(x: Any) -> Any:
        y = scaled(x * 2, x.t()) + 1
        return y.sum() + to_torch(to_tensor(x.detach()) * 3).sum()

    x = torch.randn(2, 3, requires_grad=True)
    found, expected = torch.compile(function, backend="tinygrad")(x), function(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, x) for y in (found, expected)))


def test_values_are_copies() -> None:
    x = torch.arange(3.0)
    own = to_tensor(x)
    back = to_torch(own)
    x += 1
    back -= 1
    assert np.array_equal(own.numpy(), [0, 1, 2])


def test_values_that_are_negated_as_they_are_read_are_copied_negated() -> None:
    x = torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag
    assert x.is_neg()
    assert to_tensor(x).tolist() == [0, -1, -2]


def test_results_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="returns a Tensor, or a tuple"):
        as_torch(lambda x: [x])(torch.ones(1))
    with pytest.raises(TypeError, match="returns a torch.Tensor, or a tuple"):
        torch_function(lambda x: [x])(Tensor.ones(1))
