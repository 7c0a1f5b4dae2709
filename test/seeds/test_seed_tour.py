"""The snippets of the tour, chapter by chapter."""
from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest


def test_practical_start() -> None:
    from tinygrad.tensor import Tensor

    # Create tensors
    x = Tensor([1.0, 2.0, 3.0])
    y = Tensor([4.0, 5.0, 6.0])

    # Operations build a computation graph
    z = (x * y).sum()

    # Backward computes gradients
    z.backward()
    print(x.grad)  # Gradient of z w.r.t. x
    assert x.grad is not None and y.grad is not None
    assert z.item() == 32.0
    assert x.grad.tolist() == [4.0, 5.0, 6.0]
    assert y.grad.tolist() == [1.0, 2.0, 3.0]


# --- chapter 1: architecture -------------------------------------------------------------------------


def test_lazy_evaluation_builds_the_graph_first() -> None:
    from tinygrad.graph.ops import Ops
    from tinygrad.tensor import Tensor

    # These don't compute anything yet
    x = Tensor([1.0, 2.0, 3.0])
    y = Tensor([4.0, 5.0, 6.0])
    z = x * y + x
    assert z.lazydata.op is Ops.ADD
    product, addend = z.lazydata.srcs
    assert product.op is Ops.MUL
    assert product.srcs == (x.lazydata, y.lazydata)
    assert addend is x.lazydata
    assert z.lazydata.realized is None

    # Only realizes when needed
    result = z.numpy()  # Triggers execution
    np.testing.assert_array_equal(result, [5.0, 12.0, 21.0])


def test_transpose_without_copying() -> None:
    from tinygrad import GlobalCounters
    from tinygrad.tensor import Tensor

    # Example: Transpose without copying
    x = Tensor.rand(100, 200).realize()
    GlobalCounters.reset()
    y = x.T  # No data movement!
    y.realize()
    assert GlobalCounters.kernel_count == 0
    # y.lazydata.st shows different view of same data
    assert y.lazydata.st != x.lazydata.st
    assert y.lazydata.base is x.lazydata.base
    np.testing.assert_array_equal(y.numpy(), x.numpy().T)


def test_automatic_differentiation() -> None:
    from tinygrad.graph.ops import Ops
    from tinygrad.tensor import Tensor

    # Forward pass
    x = Tensor([2.0], requires_grad=True)
    y = x * x * x  # y = x^3
    assert y.lazydata.op is Ops.MUL
    assert y.lazydata.srcs[0].op is Ops.MUL
    assert y.lazydata.srcs[1] is x.lazydata

    # Backward pass
    y.backward()

    # Gradient computation:
    # dy/dx = 3x^2 = 3 * 4 = 12
    assert x.grad is not None
    print(x.grad.numpy())  # [12.0]
    assert x.grad.numpy().tolist() == [12.0]


# --- chapter 2: deferred execution and fusion --------------------------------------------------------


def test_a_chain_is_one_kernel() -> None:
    from tinygrad import GlobalCounters, Tensor

    GlobalCounters.reset()
    x = Tensor([1, 2, 3])
    y = x + 1  # Build graph node
    z = y * 2  # Build graph node
    w = z + 3  # Build graph node
    assert GlobalCounters.kernel_count == 0
    result = w.numpy()  # Single fused kernel!
    # Combined into: (((x + 1) * 2) + 3)
    assert GlobalCounters.kernel_count == 1
    assert result.tolist() == [7, 9, 11]


def test_kernel_fusion_up_to_the_reduce() -> None:
    from tinygrad import Tensor

    # Three operations
    x = Tensor.rand(1000)
    y = x.relu()  # max(x, 0)
    z = y * 2  # scale
    w = z.sum()  # reduce
    values = x.realize().numpy()
    assert len((x.relu() * 2).sum().schedule()) == 1
    assert w.item() == pytest.approx(2 * values.astype(np.float64).sum(), rel=1e-5)


# --- chapter 3: operations ---------------------------------------------------------------------------


def test_unary_operations() -> None:
    from tinygrad import Tensor

    x = Tensor([1.0, 2.0, 3.0])
    y = x.exp()  # e^x
    np.testing.assert_allclose(y.numpy(), [math.e, math.e**2, math.e**3], rtol=1e-6)


def test_binary_operations() -> None:
    from tinygrad import Tensor

    x = Tensor([1, 2, 3])
    y = Tensor([4, 5, 6])
    z = x + y  # BinaryOps.ADD
    assert z.tolist() == [5, 7, 9]


def test_reduce_operations() -> None:
    from tinygrad import Tensor

    x = Tensor([[1, 2], [3, 4]])
    y = x.sum(axis=0)  # [4, 6]
    z = x.sum()  # 10
    assert y.tolist() == [4, 6]
    assert z.item() == 10


def test_movement_operations() -> None:
    from tinygrad import Tensor

    x = Tensor.rand(10, 20)
    y = x.reshape(20, 10)
    z = x.T  # Permute([1, 0])
    values = x.numpy()
    np.testing.assert_array_equal(y.numpy(), values.reshape(20, 10))
    np.testing.assert_array_equal(z.numpy(), values.T)


def test_building_the_computation_graph() -> None:
    from tinygrad import Tensor
    from tinygrad.graph.ops import Ops

    # Example: f(x) = (x + 2) * 3
    x = Tensor([1.0], requires_grad=True)

    # Step 1: x + 2
    temp1 = x + 2
    assert temp1.lazydata.op is Ops.ADD
    assert temp1.lazydata.srcs[0] is x.lazydata

    # Step 2: temp1 * 3
    y = temp1 * 3
    assert y.lazydata.op is Ops.MUL

    # Backward pass
    y.backward()

    # Gradient computation:
    # dy/dx = 3  (derivative of (x+2)*3 is just 3)
    print(x.grad)  # [3.0]
    assert x.grad is not None
    assert x.grad.tolist() == [3.0]


# --- chapter 4: devices ------------------------------------------------------------------------------


def test_device_abstraction() -> None:
    # Available devices
    from tinygrad import Tensor
    from tinygrad.runtime.lib import Device

    default = Device.DEFAULT
    try:
        Device.DEFAULT = "CPU"  # the seed sets a GPU; the assignment is what can run everywhere

        # Create tensors on different devices
        x_cpu = Tensor([1, 2, 3], device="CPU")
        assert x_cpu.device == Tensor([1, 2, 3]).device

        # Operations stay on same device
        y_cpu = x_cpu * 2
        assert y_cpu.device == x_cpu.device
        assert y_cpu.tolist() == [2, 4, 6]
    finally:
        Device.DEFAULT = default


def test_compiled_runtime() -> None:
    from tinygrad import Tensor

    # TinyGrad operation
    x = Tensor.rand(1000)
    y = (x * 2 + 1).relu()
    np.testing.assert_allclose(y.numpy(), np.maximum(x.numpy() * 2 + 1, 0), rtol=1e-6)


# --- chapter 5: neural networks ----------------------------------------------------------------------


def test_the_nn_module() -> None:
    from tinygrad import Tensor
    from tinygrad.nn import Conv2d, Linear

    class SimpleNet:
        def __init__(self) -> None:
            self.l1 = Linear(784, 128)
            self.l2 = Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.l1(x).relu()
            return self.l2(x)

    model = SimpleNet()
    x = np.random.default_rng(0).standard_normal((4, 784), dtype=np.float32)
    w1, b1 = model.l1.weight.numpy(), model.l1.bias.numpy()
    w2, b2 = model.l2.weight.numpy(), model.l2.bias.numpy()
    expected = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    np.testing.assert_allclose(model.forward(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert Conv2d(3, 8, 3)(Tensor.zeros(1, 3, 6, 6)).shape == (1, 8, 4, 4)


def test_a_linear_layer_by_hand() -> None:
    from tinygrad import Tensor

    class Linear:
        def __init__(self, in_features: int, out_features: int) -> None:
            self.weight = Tensor.glorot_uniform(out_features, in_features)
            self.bias = Tensor.zeros(out_features)

        def __call__(self, x: Tensor) -> Tensor:
            # x: (batch, in_features)
            # weight: (out_features, in_features)
            # output: (batch, out_features)
            return x.dot(self.weight.T) + self.bias

    layer = Linear(8, 3)
    x = np.random.default_rng(0).standard_normal((5, 8), dtype=np.float32)
    weight = layer.weight.numpy()
    assert np.abs(weight).max() <= math.sqrt(6 / (8 + 3))
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), x @ weight.T, rtol=1e-5, atol=1e-6)


def test_a_convolution_layer_by_hand() -> None:
    from tinygrad import Tensor

    class Conv2d:
        def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
            self.weight = Tensor.glorot_uniform(out_channels, in_channels, kernel_size, kernel_size)
            self.bias = Tensor.zeros(out_channels)
            self.stride = stride

        def __call__(self, x: Tensor) -> Tensor:
            # x: (batch, in_channels, h, w)
            return x.conv2d(self.weight, stride=self.stride) + self.bias

    # The bias is added along the last axis as it stands, so the output is as wide as it has channels.
    layer = Conv2d(2, 3, 2)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 4), dtype=np.float32)
    weight = layer.weight.numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weight)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)


def two_classes(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Points of two well separated clouds in 784 dimensions, and which cloud each is of."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, count)
    points = random.standard_normal((count, 784)) + np.where(labels, 1.0, -1.0)[:, None]
    return points.astype(np.float32), labels.astype(np.int32)


def test_training_loop() -> None:
    from tinygrad import Tensor
    from tinygrad.nn import Linear
    from tinygrad.nn.optim import SGD

    class SimpleNet:
        def __init__(self) -> None:
            self.l1 = Linear(784, 128)
            self.l2 = Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.l1(x).relu()
            return self.l2(x)

    Tensor.manual_seed(0)
    x_train, y_train = (Tensor(a) for a in two_classes())
    losses = []

    # Model and optimizer
    model = SimpleNet()
    optimizer = SGD([model.l1.weight, model.l1.bias, model.l2.weight, model.l2.bias], lr=0.001)

    # Training loop
    for epoch in range(10):
        # Forward pass
        out = model.forward(x_train)
        loss = out.sparse_categorical_crossentropy(y_train)

        # Backward pass
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        print(f"Epoch {epoch}, Loss: {loss.numpy()}")
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(10), abs=0.5)
    assert all(after < before for before, after in pairwise(losses))


def test_an_optimizer_by_hand() -> None:
    from tinygrad import Tensor

    class SGD:
        def __init__(self, params: list[Tensor], lr: float = 0.001) -> None:
            self.params = params
            self.lr = lr

        def zero_grad(self) -> None:
            for param in self.params:
                param.grad = None

        def step(self) -> None:
            for param in self.params:
                assert param.grad is not None
                param.assign(param - self.lr * param.grad)

    # f(w) = |w - 3|^2 falls by the factor (1 - 2 lr) in each coordinate of w - 3 at every step
    w = Tensor([1.0, 5.0, 3.0], requires_grad=True)
    optimizer = SGD([w], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (w - 3).square().sum().backward()
        optimizer.step()
    np.testing.assert_allclose(w.numpy(), 3 + np.array([-2.0, 2.0, 0.0]) * 0.8**5, rtol=1e-5)


# --- chapter 6: the JIT and memory -------------------------------------------------------------------


def test_jit_compilation() -> None:
    from tinygrad import Tensor
    from tinygrad.jit import TinyJit

    @TinyJit
    def fast_forward(x: Tensor) -> Tensor:
        return (x * 2 + 1).relu()

    # First call: traces and compiles. Subsequent calls: uses compiled version
    for seed in range(5):
        values = np.random.default_rng(seed).standard_normal(50, dtype=np.float32)
        out = fast_forward(Tensor(values))
        np.testing.assert_allclose(out.numpy(), np.maximum(values * 2 + 1, 0), rtol=1e-6)


def test_in_place_operations() -> None:
    from tinygrad import Tensor

    x = Tensor([1.0, 2.0])
    # Creates new tensor
    x = x + 1

    # Modifies in-place (when safe)
    x.realize()
    x.assign(x + 1)
    assert x.tolist() == [3.0, 4.0]


def test_buffer_reuse() -> None:
    from tinygrad import Tensor

    x = Tensor.rand(1000)
    y = x * 2
    z = y + 1
    np.testing.assert_allclose(z.numpy(), x.numpy() * 2 + 1, rtol=1e-6)


# --- chapter 8: lazy beside eager --------------------------------------------------------------------


def test_lazy_computes_everything_at_once() -> None:
    from tinygrad import Tensor

    x = Tensor([1, 2, 3])
    y = x + 1  # Builds graph
    z = y * 2  # Builds graph
    result = z.numpy()  # Computes everything
    assert result.tolist() == [4, 6, 8]


# --- chapter 9: projects -----------------------------------------------------------------------------


def test_a_digit_classifier_with_adam() -> None:
    from tinygrad.nn import Linear
    from tinygrad.nn.optim import Adam
    from tinygrad.nn.state import get_parameters
    from tinygrad.tensor import Tensor

    class MNISTNet:
        def __init__(self) -> None:
            self.l1 = Linear(784, 128)
            self.l2 = Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.l2(self.l1(x).relu())

    Tensor.manual_seed(0)
    points, labels = two_classes()
    train_loader = [(Tensor(points[i : i + 16]), Tensor(labels[i : i + 16])) for i in range(0, 64, 16)]

    # Training code (simplified)
    model = MNISTNet()
    opt = Adam(get_parameters(model), lr=0.001)

    for _epoch in range(10):
        for x, y in train_loader:
            out = model.forward(x)
            loss = out.sparse_categorical_crossentropy(y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert (model.forward(Tensor(points)).numpy().argmax(axis=1) == labels).all()


def test_a_custom_activation_is_composed() -> None:
    from tinygrad import Tensor

    def custom_activation(x: Tensor) -> Tensor:
        # Forward: f(x) = x^3 if x > 0 else x
        return (x > 0).where(x**3, x)

    x = Tensor([-2.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    y = custom_activation(x)
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), [-2.0, -0.5, 0.0, 0.125, 8.0], rtol=1e-6)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [1.0, 1.0, 1.0, 0.75, 12.0], rtol=1e-6)


def test_the_heads_of_attention() -> None:
    from tinygrad import Tensor
    from tinygrad.nn import Linear

    class Attention:
        def __init__(self, dim: int, n_heads: int) -> None:
            self.n_heads = n_heads
            self.qkv = Linear(dim, 3 * dim)
            self.out = Linear(dim, dim)

        def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            qkv = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, self.n_heads, -1)
            q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
            return q, k, v

    attention = Attention(8, 2)
    x = np.random.default_rng(0).standard_normal((2, 5, 8), dtype=np.float32)
    weight, bias = attention.qkv.weight.numpy(), attention.qkv.bias.numpy()
    for i, head in enumerate(attention.heads(Tensor(x))):
        rows = slice(8 * i, 8 * (i + 1))
        expected = (x @ weight[rows].T + bias[rows]).reshape(2, 5, 2, 4)
        np.testing.assert_allclose(head.numpy(), expected, rtol=1e-4, atol=1e-5)
