"""What a forward pass keeps for its backward pass lies in memory as the kernels want it."""
from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
from torch import nn  # noqa: E402

from tinygrad.torch import backend  # noqa: E402
from tinygrad.torch.dispatch import Replayed  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh_compilations() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def inverted_residual() -> nn.Module:
    """As in MobileNet: a convolution of each channel between two of pixels."""
    return nn.Sequential(nn.Conv2d(8, 24, 1), nn.BatchNorm2d(24), nn.ReLU6(),
                         nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.ReLU6(),
                         nn.Conv2d(24, 8, 1))


def pair() -> tuple[nn.Module, nn.Module]:
    """A model, and the same one compiled."""
    model = inverted_residual()
    return model, torch.compile(copy.deepcopy(model), backend=backend)


def trains_as_eager(models: tuple[nn.Module, nn.Module], x: Any) -> None:
    gradients = []
    for model in models:
        model.zero_grad()
        own = x.clone(memory_format=torch.preserve_format).requires_grad_()
        model(own).square().mean().backward()
        gradients.append([own.grad, *(p.grad for p in model.parameters())])
    for ours, eager in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def kept_images(run: nn.Module, x: Any) -> list[Any]:
    """The images that a forward pass keeps, but for its argument."""
    kept: list[Any] = []

    def keep(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(x)
    return [t for t in kept if t.ndim == 4 and min(t.shape[-2:]) > 3 and t.data_ptr() != x.data_ptr()]


def test_images_are_kept_channels_last() -> None:
    _, ours = pair()
    images = kept_images(ours, torch.randn(2, 8, 10, 12))
    assert images
    assert all(image.is_contiguous(memory_format=torch.channels_last) for image in images)


def test_a_kept_value_that_a_user_sees_too_lies_in_the_order_of_its_axes() -> None:
    layer = nn.Conv2d(3, 8, 3)

    def features(x: Any) -> Any:
        first = layer(x)
        return first, first.sigmoid() * first

    x = torch.randn(2, 3, 9, 9)
    for result, eager in zip(torch.compile(features, backend=backend)(x), features(x), strict=True):
        torch.testing.assert_close(result, eager)
        assert result.is_contiguous()


@pytest.mark.parametrize("formats", [
    (torch.contiguous_format, torch.channels_last, torch.contiguous_format),
    (torch.channels_last, torch.contiguous_format, torch.channels_last)])
def test_arguments_in_other_layouts_give_the_same_gradients(formats: Any) -> None:
    models = pair()
    for form in formats:
        trains_as_eager(models, torch.randn(2, 8, 10, 12).contiguous(memory_format=form))


def test_a_forward_pass_that_pytorch_runs_keeps_what_the_compiled_backward_pass_reads(
        monkeypatch: pytest.MonkeyPatch) -> None:
    models, x = pair(), torch.randn(2, 8, 10, 12)
    trains_as_eager(models, x)
    computed, forward_passes = Replayed.computed, []

    def in_pytorch(self: Replayed, given: Any) -> Any:
        if not self.orders:
            return computed(self, given)
        forward_passes.append(self)
        return self.in_pytorch(given)

    monkeypatch.setattr(Replayed, "computed", in_pytorch)
    trains_as_eager(models, x)
    assert len(forward_passes) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_large_values_that_are_kept_are_parts_of_one_piece_of_memory(dtype: Any) -> None:
    """Of several dtypes and in any order of axes; what a user sees has memory of its own."""

    def function(x: Any, w: Any, places: Any) -> Any:
        turned = (x @ w).sin().transpose(1, 2)
        loud = torch.where(places % 3 > 0, turned.exp(), turned)
        return loud.square().cumsum(1) * places.float().cos(), loud

    x, w = torch.randn(4, 300, 70, dtype=dtype, requires_grad=True), torch.randn(70, 263, dtype=dtype)
    places = torch.randint(0, 9, (4, 263, 300))
    run = torch.compile(function, backend=backend)
    for call in range(4):
        kept: list[Any] = []

        def keep(tensor: Any, kept: list[Any] = kept) -> Any:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = run(x, w, places)
        (gradient,) = torch.autograd.grad(found[0].square().mean() + found[1].mean(), x)
        expected = function(x, w, places)
        (eagers,) = torch.autograd.grad(expected[0].square().mean() + expected[1].mean(), x)
        off = (gradient - eagers).norm() / eagers.norm()
        assert off < (0.05 if dtype is torch.bfloat16 else 1e-5)
        given = {t.data_ptr() for t in (x, w, places)}
        large = [t for t in kept if t.numel() * t.element_size() >= 256 << 10 and t.data_ptr() not in given]
        pieces = {t.untyped_storage().data_ptr() for t in large} - {t.data_ptr() for t in found}
        assert len(pieces) == 1 or call == 0  # the first call is traced
        spans = sorted({(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in large})
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


LAYOUTS = {
    "transposed": lambda x: x.T + 1,
    "a product turned": lambda x: (x @ x.T.exp()).T,
    "rotated": lambda x: x.roll(1).rot90() * 2,
    "an inverse": lambda x: torch.linalg.inv(x.T @ x + torch.eye(x.shape[1])),
    "images in lines": lambda x: nn.functional.avg_pool2d(
        x.expand(2, 3, *x.shape).contiguous(memory_format=torch.channels_last), 2),
    "three axes": lambda x: x.expand(4, *x.shape).permute(2, 0, 1).sin(),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_results_have_the_strides_that_eager_ones_have(name: str, is_dynamic: bool) -> None:
    run = torch.compile(LAYOUTS[name], backend=backend, dynamic=is_dynamic)
    for shape in ((6, 5), (6, 5), (9, 4)):
        x = torch.randn(shape)
        for _ in range(2):
            torch.testing.assert_close(run(x), LAYOUTS[name](x), rtol=1e-4, atol=1e-5, check_stride=True)


@pytest.mark.parametrize("function", [
    lambda x: x * 2, lambda x: x.sum(1, keepdim=True), lambda x: x.sum(0) + 1])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_axes_of_one_item_have_the_strides_of_eager_ones(function: Any, is_dynamic: bool) -> None:
    """TorchDynamo compiles what takes a result anew where these change, as a model that continues a text."""
    run = torch.compile(function, backend=backend, dynamic=is_dynamic)
    for shape in ((1, 2, 7, 8), (2, 1, 3, 4), (2, 3, 4, 1), (1, 1, 1, 5)):
        x = torch.randn(shape)
        for _ in range(2):
            assert run(x).stride() == function(x).stride()


def test_what_follows_a_break_may_view_a_result_as_in_eager_programs() -> None:
    def function(x: Any) -> Any:
        doubled = x.T * 2
        torch._dynamo.graph_break()
        return doubled.T.view(-1)

    x = torch.randn(4, 5)
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))


def test_gradients_pass_through_results_that_lie_otherwise() -> None:
    def function(x: Any) -> Any:
        return (x.sin() * x).T * 2

    x = torch.randn(4, 5, requires_grad=True)
    result = torch.compile(function, backend=backend)(x)
    assert result.stride() == function(x).stride() == (1, 5)
    found, expected = (torch.autograd.grad(y.T.square().sum(), x) for y in (result, function(x)))
    torch.testing.assert_close(found, expected)
