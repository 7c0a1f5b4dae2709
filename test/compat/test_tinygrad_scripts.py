"""Programs as people write them for tinygrad, at small sizes: with its imports, calls and settings they start
here, train, and give what NumPy or the same program without a JIT gives."""
from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad import Device, GlobalCounters, Tensor, TinyJit, dtypes, getenv, nn
from tinygrad.helpers import (
    BEAM,
    FUSE_OPTIM,
    TRAINING,
    WINO,
    Context,
    Timing,
    argfix,
    colored,
    fetch,
    flatten,
    get_child,
    make_tuple,
    prod,
    profile_marker,
    round_up,
    tqdm,
    trange,
)
from tinygrad.nn import BatchNorm2d, Conv2d, optim
from tinygrad.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Images of 1 x 28 x 28 whose brightest rows tell their number."""
    labels = np.arange(count) % 10
    images = np.random.default_rng(1).uniform(0, 0.3, (count, 1, 28, 28)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label + 3: 2 * label + 6] += 1
    return Tensor(images), Tensor(labels.astype(np.uint8))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    Tensor.manual_seed(7)
    yield
    assert not Tensor.training


def test_readme() -> None:
    class LinearNet:
        def __init__(self) -> None:
            self.l1 = Tensor.kaiming_uniform(784, 128)
            self.l2 = Tensor.kaiming_uniform(128, 10)

        def __call__(self, x: Tensor) -> Tensor:
            return x.flatten(1).dot(self.l1).relu().dot(self.l2)

    model = LinearNet()
    optimizer = nn.optim.Adam([model.l1, model.l2], lr=0.001)
    x, y = Tensor.rand(4, 1, 28, 28), Tensor([2, 4, 3, 7])
    losses = []
    with Context(TRAINING=1):
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("make", [lambda: Tensor.eye(3), lambda: Tensor.eye(3).clone(),
                                  lambda: Tensor.eye(3).contiguous().is_param_()])
def test_readme_gradients(make: Callable[[], Tensor]) -> None:
    x, y = make(), Tensor([[2.0, 0, -2.0]])
    y.matmul(x).sum().backward()
    assert x.grad is not None and y.grad is not None
    assert x.grad.tolist() == [[2.0] * 3, [0.0] * 3, [-2.0] * 3] and y.grad.tolist() == [[1.0, 1.0, 1.0]]


def test_quickstart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t1, t2 = Tensor([1, 2, 3, 4, 5]), Tensor(np.array([1, 2, 3, 4, 5]))
    full = Tensor.full(shape=(2, 3), fill_value=5)
    made = [Tensor.zeros(2, 3), Tensor.ones(2, 3), Tensor.full_like(full, fill_value=2),
            Tensor.zeros_like(full), Tensor.ones_like(full), Tensor.eye(3),
            Tensor.arange(start=0, stop=10, step=1), Tensor.rand(2, 3), Tensor.randn(2, 3),
            Tensor.uniform(2, 3, low=0, high=10)]
    assert (t1 + t2).tolist() == [2, 4, 6, 8, 10] and made[6].tolist() == list(range(10))
    t4 = Tensor([1, 2, 3, 4, 5])
    t6 = ((t4 + 1) * 2 * t4).relu().log_softmax()
    np.testing.assert_allclose(t6.exp().sum().numpy(), 1, rtol=1e-5)

    class Linear:
        def __init__(self, in_features: int, out_features: int, bias: bool = True,
                     initialization: str = "kaiming_uniform") -> None:
            self.weight = getattr(Tensor, initialization)(out_features, in_features)
            self.bias = Tensor.zeros(out_features) if bias else None

        def __call__(self, x: Tensor) -> Tensor:
            return x.linear(self.weight.transpose(), self.bias)

    class TinyNet:
        def __init__(self) -> None:
            self.l1 = Linear(784, 128, bias=False)
            self.l2 = Linear(128, 10, bias=False)

        def __call__(self, x: Tensor) -> Tensor:
            return self.l2(self.l1(x).leaky_relu())

    net = TinyNet()
    opt = optim.SGD([net.l1.weight, net.l2.weight], lr=3e-2)
    images, labels = (t.numpy() for t in digits(100))
    with Context(TRAINING=1), Timing("Time: "):
        for _ in range(25):
            samp = np.random.default_rng(2).integers(0, 100, size=64)
            batch, y = Tensor(images.reshape(100, 784)[samp]).is_param_(False), Tensor(labels[samp])
            out = net(batch)
            loss = out.sparse_categorical_crossentropy(y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert (out.argmax(axis=-1) == y).mean().item() > 0.9 and "Time: " in capsys.readouterr().out

    @TinyJit
    def jit(x: Tensor) -> Tensor:
        return net(x).realize()

    for _ in range(3):
        np.testing.assert_allclose(jit(batch).numpy(), net(batch).numpy(), rtol=1e-4, atol=1e-5)
    safe_save(get_state_dict(net), str(tmp_path / "model.safetensors"))
    other = TinyNet()
    load_state_dict(other, safe_load(tmp_path / "model.safetensors"))
    np.testing.assert_allclose(other(batch).numpy(), net(batch).numpy(), rtol=1e-4, atol=1e-5)


def test_beautiful_mnist() -> None:
    class Model:
        def __init__(self) -> None:
            self.layers: list[Callable[[Tensor], Tensor]] = [
                nn.Conv2d(1, 8, 5), Tensor.relu, nn.BatchNorm(8), Tensor.max_pool2d,
                nn.Conv2d(8, 8, 3), Tensor.relu, nn.BatchNorm(8), Tensor.max_pool2d,
                lambda x: x.flatten(1), nn.Linear(200, 10)]

        def __call__(self, x: Tensor) -> Tensor:
            return x.sequential(self.layers)

    x_train, y_train = digits(128)
    model = Model()
    opt = (nn.optim.Muon if getenv("MUON") else nn.optim.SGD if getenv("SGD") else nn.optim.Adam)(
        nn.state.get_parameters(model), lr=0.01)

    @TinyJit
    @Context(TRAINING=1)
    def train_step() -> Tensor:
        opt.zero_grad()
        samples = Tensor.randint(getenv("BS", 32), high=x_train.shape[0])
        loss = model(x_train[samples]).sparse_categorical_crossentropy(y_train[samples]).backward()
        return loss.realize(*opt.schedule_step())

    @TinyJit
    def get_test_acc() -> Tensor:
        return (model(x_train).argmax(axis=1) == y_train).mean() * 100

    test_acc = float("nan")
    for i in (t := trange(getenv("STEPS", 25), disable=True)):
        GlobalCounters.reset()
        loss = train_step()
        if i % 10 == 9:
            test_acc = get_test_acc().item()
        t.set_description(f"loss: {loss.item():6.2f} test_accuracy: {test_acc:5.2f}%")
    assert get_test_acc().item() > 80


class BasicBlock:
    """As in ResNet."""

    def __init__(self, in_planes: int, planes: int, stride: int = 1) -> None:
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, stride=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample: list[Any] = []
        if stride != 1 or in_planes != planes:
            self.downsample = [nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False),
                               nn.BatchNorm2d(planes)]

    def __call__(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + x.sequential(self.downsample)).relu()


class ResNet:
    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(3, 4, kernel_size=7, stride=2, bias=False, padding=3)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = [BasicBlock(4, 4), BasicBlock(4, 8, stride=2)]
        self.fc: nn.Linear | None = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu()
        out = out.pad([1, 1, 1, 1]).max_pool2d((3, 3), 2).sequential(self.layer1).mean([2, 3])
        return out if self.fc is None else self.fc(out.cast(dtypes.float32))

    __call__ = forward

    def load_from(self, weights: dict[str, Tensor]) -> None:
        for name, value in tqdm(weights.items(), disable=True):
            obj = get_child(self, name)
            if obj.shape != value.shape and prod(value.shape) == 1:
                value = value.reshape(obj.shape)
            obj.assign(value.to(obj.device).cast(obj.dtype)).realize()


def test_resnet() -> None:
    model, other = ResNet(), ResNet()
    other.load_from({name: t.clone() for name, t in get_state_dict(model).items()})
    x = Tensor.rand(2, 3, 16, 16)
    np.testing.assert_allclose(other(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    parameters = get_parameters(model)
    opt = optim.OptimizerGroup(
        optim.LARS([p for p in parameters if len(p.shape) > 1], 0.1, momentum=0.9, fused=FUSE_OPTIM),
        optim.SGD([p for p in parameters if len(p.shape) <= 1], 0.1, momentum=0.9, fused=FUSE_OPTIM))
    before = model.bn1.running_mean.numpy()

    @TinyJit
    def train_step(x: Tensor, y: Tensor) -> Tensor:
        with Context(TRAINING=1):
            opt.zero_grad()
            loss = model(x).sparse_categorical_crossentropy(y, label_smoothing=0.1)
            loss.backward()
            opt.step()
        return loss.realize()

    losses = [train_step(x, Tensor([1, 3])).item() for _ in range(6)]
    assert losses[-1] < losses[0] and not np.allclose(model.bn1.running_mean.numpy(), before)


def test_efficientnet_block() -> None:
    class MBConvBlock:
        def __init__(self, channels: int) -> None:
            inner, squeezed = 2 * channels, 2
            self._expand_conv = Tensor.glorot_uniform(inner, channels, 1, 1)
            self._bn0 = nn.BatchNorm2d(inner, eps=1e-3)
            self._depthwise_conv = Tensor.glorot_uniform(inner, 1, 3, 3)
            self._se_reduce = Tensor.glorot_uniform(squeezed, inner, 1, 1)
            self._se_reduce_bias = Tensor.zeros(squeezed)
            self._se_expand = Tensor.glorot_uniform(inner, squeezed, 1, 1)
            self._se_expand_bias = Tensor.zeros(inner)
            self._project_conv = Tensor.glorot_uniform(channels, inner, 1, 1)
            self._bn2 = nn.BatchNorm2d(channels)

        def __call__(self, inputs: Tensor) -> Tensor:
            x = self._bn0(inputs.conv2d(self._expand_conv)).swish()
            x = x.conv2d(self._depthwise_conv, padding=(1, 1, 1, 1), stride=1, groups=x.shape[1]).swish()
            pooled = x.avg_pool2d(kernel_size=x.shape[2:4])
            pooled = pooled.conv2d(self._se_reduce, self._se_reduce_bias).swish()
            x = x.mul(pooled.conv2d(self._se_expand, self._se_expand_bias).sigmoid())
            return self._bn2(x.conv2d(self._project_conv)) + inputs

    model = MBConvBlock(3)
    get_child(model, "_bn2.weight").assign(Tensor.zeros(3)).realize()
    x = Tensor.rand(1, 3, 6, 6)
    np.testing.assert_allclose(model(x).numpy(), x.numpy(), rtol=1e-6)  # a norm of weight 0 leaves the input


def test_convnext_block() -> None:
    class Block:
        def __init__(self, dim: int) -> None:
            self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
            self.norm = nn.LayerNorm(dim, eps=1e-6)
            self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
            self.gamma = Tensor.ones(dim)

        def __call__(self, x: Tensor) -> Tensor:
            layers = [self.dwconv, lambda x: x.permute(0, 2, 3, 1), self.norm, self.pwconv1, Tensor.gelu,
                      self.pwconv2, lambda x: (self.gamma * x).permute(0, 3, 1, 2)]
            return x + x.sequential(layers)

    assert Block(4)(Tensor.rand(1, 4, 8, 8)).numpy().shape == (1, 4, 8, 8)


def test_stable_diffusion_blocks() -> None:
    class ResnetBlock:
        def __init__(self, channels: int, emb_channels: int) -> None:
            self.in_layers = [nn.GroupNorm(2, channels), Tensor.silu,
                              nn.Conv2d(channels, channels, 3, padding=1)]
            self.emb_layers = [Tensor.silu, nn.Linear(emb_channels, channels)]
            self.out_layers = [nn.GroupNorm(2, channels), Tensor.silu, lambda x: x,
                               nn.Conv2d(channels, channels, 3, padding=1)]

        def __call__(self, x: Tensor, emb: Tensor) -> Tensor:
            h = x.sequential(self.in_layers)
            h = h + emb.sequential(self.emb_layers).reshape(1, -1, 1, 1)
            return x + h.sequential(self.out_layers)

    def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
        half = dim // 2
        freqs = (-math.log(max_period) * Tensor.arange(half) / half).exp()
        args = timesteps * freqs
        return Tensor.cat(args.cos(), args.sin()).reshape(1, -1)

    block = ResnetBlock(4, 8)

    @TinyJit
    def run(latent: Tensor, timestep: Tensor) -> Tensor:
        return (latent - 0.1 * block(latent, timestep_embedding(timestep, 8))).realize()

    latent = Tensor.randn(1, 4, 8, 8)
    eager = latent
    with Context(BEAM=0):
        for index, timestep in enumerate([981, 501, 1]):
            profile_marker(f"step {index}")
            GlobalCounters.reset()
            latent = run(latent, Tensor([timestep]))
            eager = eager - 0.1 * block(eager, timestep_embedding(Tensor([timestep]), 8))
    np.testing.assert_allclose(latent.numpy(), eager.numpy(), rtol=1e-4, atol=1e-5)
    upsampled = latent.reshape(1, 4, 8, 1, 8, 1).expand(1, 4, 8, 2, 8, 2).reshape(1, 4, 16, 16)
    np.testing.assert_array_equal(upsampled.numpy(), latent.numpy().repeat(2, 2).repeat(2, 3))
    image = ((latent + 1.0) / 2.0).clip(0.0, 1.0)[0].permute(1, 2, 0) * 255
    assert image.cast(dtypes.uint8).numpy().dtype == np.uint8


def test_mnist_gan() -> None:
    class Generator:
        def __init__(self) -> None:
            self.l1, self.l2 = Tensor.scaled_uniform(8, 16), Tensor.scaled_uniform(16, 49)

        def forward(self, x: Tensor) -> Tensor:
            return x.dot(self.l1).leaky_relu(0.2).dot(self.l2).tanh()

    class Discriminator:
        def __init__(self) -> None:
            self.l1, self.l2 = Tensor.scaled_uniform(49, 16), Tensor.scaled_uniform(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x.dot(self.l1).leaky_relu(0.2).dropout(0.3).dot(self.l2).log_softmax()

    def make_labels(bs: int, col: int, val: float = -2.0) -> Tensor:
        y = np.zeros((bs, 2), np.float32)
        y[range(bs), [col] * bs] = val
        return Tensor(y)

    generator, discriminator = Generator(), Discriminator()
    optim_g = optim.Adam(get_parameters(generator), lr=0.002, b1=0.5)
    optim_d = optim.Adam(get_parameters(discriminator), lr=0.002, b1=0.5)

    @TinyJit
    def train_discriminator(real: Tensor, fake: Tensor) -> Tensor:
        optim_d.zero_grad()
        loss_real = (discriminator.forward(real) * make_labels(4, 1)).mean()
        loss_fake = (discriminator.forward(fake) * make_labels(4, 0)).mean()
        loss_real.backward()
        loss_fake.backward()
        optim_d.step()
        return (loss_real + loss_fake).realize()

    @TinyJit
    def train_generator(noise: Tensor) -> Tensor:
        optim_g.zero_grad()
        loss = (discriminator.forward(generator.forward(noise)) * make_labels(4, 1)).mean()
        loss.backward()
        optim_g.step()
        return loss.realize()

    before = [p.numpy() for p in (generator.l1, discriminator.l1)]
    with Context(TRAINING=1):
        for _ in range(4):
            real = Tensor.rand(4, 49)
            fake = generator.forward(Tensor.randn(4, 8)).detach()
            losses = train_discriminator(real, fake), train_generator(Tensor.randn(4, 8))
    assert all(np.isfinite(loss.item()) for loss in losses)
    assert not any(np.array_equal(p.numpy(), old)
                   for p, old in zip((generator.l1, discriminator.l1), before, strict=True))


def test_yolov8_blocks() -> None:
    class ConvBlock:
        def __init__(self, c1: int, c2: int, kernel_size: int = 1, stride: int = 1) -> None:
            self.conv = Conv2d(c1, c2, kernel_size, stride, padding=kernel_size // 2, bias=False)
            self.bn = BatchNorm2d(c2, eps=0.001)

        def __call__(self, x: Tensor) -> Tensor:
            return self.bn(self.conv(x)).silu()

    class C2f:
        def __init__(self, c1: int, c2: int) -> None:
            self.c = c2 // 2
            self.cv1, self.cv2 = ConvBlock(c1, c2), ConvBlock(3 * self.c, c2)
            self.bottleneck = [ConvBlock(self.c, self.c, 3)]

        def __call__(self, x: Tensor) -> Tensor:
            y = list(self.cv1(x).chunk(2, 1))
            y.extend(m(y[-1]) for m in self.bottleneck)
            return self.cv2(y[0].cat(*y[1:], dim=1))

    class SPPF:
        def __call__(self, x: Tensor) -> Tensor:
            pooled = [x]
            for _ in range(3):
                pooled.append(pooled[-1].max_pool2d(kernel_size=(5, 5), stride=1, padding=(2, 2)))
            return pooled[0].cat(*pooled[1:], dim=1)

    net = OrderedDict(b1=[ConvBlock(3, 4, 3, 2)], b2=[C2f(4, 4), SPPF()])
    x = Tensor.rand(1, 3, 16, 16)
    for layer in chain(*net.values()):
        x = layer(x)
    assert x.shape == (1, 16, 8, 8)
    boxes = Tensor([[4.0, 4.0, 2.0, 2.0], [8.0, 6.0, 4.0, 2.0]])
    corners = (boxes[:, :2] - boxes[:, 2:] / 2).cat(boxes[:, :2] + boxes[:, 2:] / 2, dim=1)
    assert corners.tolist() == [[3.0, 3.0, 5.0, 5.0], [6.0, 5.0, 10.0, 7.0]]
    order = Tensor([0.2, 0.9]).topk(2)[1]
    assert corners[order].tolist() == [[6.0, 5.0, 10.0, 7.0], [3.0, 3.0, 5.0, 5.0]]


def test_names_of_training_scripts() -> None:
    assert BEAM == 0 and WINO == 0 and not TRAINING and FUSE_OPTIM == 0
    assert Device.canonicalize("cpu") == "CPU" and callable(fetch)
    assert argfix(1, 1) == make_tuple(1, 2) and flatten([[1], [2]]) == [1, 2] and round_up(5, 4) == 8
    assert colored("x", None) == "x"
