"""The snippets of the overview and of the question-and-answer text."""
from __future__ import annotations

import numpy as np
import pytest


def test_basic_usage() -> None:
    from tinygrad import Tensor

    # Create tensors
    t1 = Tensor([1, 2, 3, 4, 5])
    t2 = Tensor([2, 3, 4, 5, 6])

    # Operations (similar to PyTorch)
    result = t1 + t2
    assert result.tolist() == [3, 5, 7, 9, 11]
    result = t1 * t2

    # Lazy evaluation - computation happens when .realize() is called
    assert result.lazydata.realized is None
    result.realize()
    assert result.lazydata.realized is not None
    assert result.tolist() == [2, 6, 12, 20, 30]


def test_looking_inside() -> None:
    from tinygrad import Tensor

    tensor = Tensor([1.0, 2.0]) + 1
    assert tensor.shape == (2,)
    assert tensor.uop is tensor.lazydata
    assert len(tensor.schedule()) == 1


@pytest.mark.usefixtures("on_cpu")
def test_debug_4_shows_the_generated_code(capsys: pytest.CaptureFixture[str]) -> None:
    from tinygrad import Context, Tensor

    with Context(DEBUG=4):
        (Tensor([1.0, 2.0, 3.0, 4.0, 5.0]) * 7).realize()
    assert "define" in capsys.readouterr().out


def test_an_absent_device_is_a_clear_error() -> None:
    from tinygrad.tensor import Tensor

    with pytest.raises((ValueError, RuntimeError), match=r"(?i)no_such_device.*CPU"):
        Tensor([1, 2, 3], requires_grad=True, device="no_such_device").realize()


def test_recording_then_running() -> None:
    from tinygrad.tensor import Tensor

    x = Tensor([1, 2, 3], requires_grad=True, device="CPU")
    y = x * 2 + 1  # No actual computation happens yet
    assert y.lazydata.realized is None

    # This triggers actual computation
    result = y.numpy()
    assert result.tolist() == [3, 5, 7]


def test_backward_pass() -> None:
    from tinygrad.tensor import Tensor

    x = Tensor([1.0, 2.0, 3.0], requires_grad=True, device="CPU")
    y = x * 2 + 1
    loss = y.square().sum()
    loss.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * (2 * np.array([1.0, 2.0, 3.0]) + 1) * 2)
