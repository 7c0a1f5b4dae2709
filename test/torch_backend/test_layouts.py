"""What a forward pass keeps for its backward pass lies in memory as the kernels want it."""
from __future__ import annotations

import copy
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
