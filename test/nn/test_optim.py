"""Optimizers against the recursions of their papers (as PyTorch spells them), in NumPy and float64."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, nn
from tinygrad.dtype import dtypes
from tinygrad.nn import optim

Array = np.ndarray[Any, Any]
STEPS = 5
SHAPES = [(3, 4), (2,), (4, 3)]


def start() -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def gradient_of(p: Array, target: Array) -> Array:
    """Of sum((p - target)^2 * p) by p, a loss whose gradients vary in sign and size."""
    return np.asarray(2 * (p - target) * p + (p - target) ** 2)


def targets() -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def run(make: Callable[[list[Tensor]], optim.Optimizer], steps: int = STEPS) -> list[Array]:
    """The parameters after some steps of an optimizer."""
    params = [Tensor(p, requires_grad=True) for p in start()]
    optimizer = make(params)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = sum(((p - Tensor(t)).square() * p).sum() for p, t in zip(params, targets(), strict=True))
        assert isinstance(loss, Tensor)
        loss.backward()
        optimizer.step()
    return [p.numpy() for p in params]


def expect(rule: Callable[[Array, Array, dict[str, Any], int], Array], steps: int = STEPS) -> list[Array]:
    """The parameters after some steps of `rule(p, g, state, step) -> p`, in float64."""
    results = []
    for p, t in zip(start(), targets(), strict=True):
        value, state = p.astype(np.float64), dict[str, Any]()
        for i in range(1, steps + 1):
            value = rule(value, gradient_of(value, t), state, i)
        results.append(value)
    return results


def same(found: list[Array], expected: list[Array], tolerance: float = 2e-5) -> None:
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("momentum", "decay", "nesterov"),
                         [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.1, False), (0.8, 0.1, True)])
def test_sgd(momentum: float, decay: float, nesterov: bool) -> None:
    def rule(p: Array, g: Array, state: dict[str, Any], step: int) -> Array:
        g = g + decay * p
        b = state["b"] = momentum * state.get("b", 0) + g
        if momentum:
            g = g + momentum * b if nesterov else b
        return np.asarray(p - 0.01 * g)

    same(run(lambda ps: optim.SGD(ps, 0.01, momentum, decay, nesterov)), expect(rule))


def test_sgd_classic_momentum_remembers_the_rate() -> None:
    params = [Tensor([1.0], requires_grad=True)]
    optimizer = optim.SGD(params, lr=0.1, momentum=0.5, classic=True)
    p, b = 1.0, 0.0
    for rate in (0.1, 0.01):
        optimizer.lr.assign([rate])
        optimizer.zero_grad()
        (params[0] * 3).sum().backward()
        optimizer.step()
        b = 0.5 * b + 3 * rate
        p -= b
        assert params[0].item() == pytest.approx(p, rel=1e-6)


@pytest.mark.parametrize(("b1", "b2", "eps", "decay"),
                         [(0.9, 0.999, 1e-8, 0.0), (0.5, 0.9, 1e-3, 0.0), (0.9, 0.99, 1e-8, 0.2)])
def test_adam_and_adamw(b1: float, b2: float, eps: float, decay: float) -> None:
    def rule(p: Array, g: Array, state: dict[str, Any], step: int) -> Array:
        m = state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
        v = state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
        update = (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps)
        return np.asarray(p * (1 - 0.02 * decay) - 0.02 * update)

    if decay:
        same(run(lambda ps: optim.AdamW(ps, 0.02, b1, b2, eps, decay)), expect(rule))
    else:
        same(run(lambda ps: optim.Adam(ps, 0.02, b1, b2, eps)), expect(rule))


def test_lamb_scales_each_layer() -> None:
    def rule(p: Array, g: Array, state: dict[str, Any], step: int) -> Array:
        m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
        update = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-6) + 0.1 * p
        return np.asarray(p - 0.02 * np.linalg.norm(p) / np.linalg.norm(update) * update)

    same(run(lambda ps: optim.LAMB(ps, 0.02, weight_decay=0.1)), expect(rule))


@pytest.mark.parametrize("classic", [True, False])
def test_lars_scales_each_layer(classic: bool) -> None:
    def rule(p: Array, g: Array, state: dict[str, Any], step: int) -> Array:
        trust = 0.01 * np.linalg.norm(p) / (np.linalg.norm(g) + 0.1 * np.linalg.norm(p))
        g = g + 0.1 * p
        b = state["b"] = 0.9 * state.get("b", 0) + (g * trust if classic else g)
        return np.asarray(p - 0.5 * (b if classic else trust * b))

    same(run(lambda ps: optim.LARS(ps, 0.5, 0.9, 0.1, classic=classic, tcoef=0.01)), expect(rule))


def test_muon_makes_updates_orthogonal() -> None:
    def rule(p: Array, g: Array, state: dict[str, Any], step: int) -> Array:
        b = state["b"] = 0.95 * state.get("b", 0) + g
        x = g + 0.95 * b
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / np.linalg.norm(x)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        x = x.T if tall else x
        update = x * max(1, p.shape[0] / p.shape[1]) ** 0.5
        return np.asarray(p * (1 - 0.02 * 0.1) - 0.02 * update)

    def make(ps: list[Tensor]) -> optim.Optimizer:
        return optim.OptimizerGroup(optim.Muon([ps[0], ps[2]], 0.02), optim.SGD([ps[1]], 0.02))

    found, expected = run(make), [*start()]
    for i in (0, 2):
        value, state = expected[i].astype(np.float64), dict[str, Any]()
        for step in range(1, STEPS + 1):
            value = rule(value, gradient_of(value, targets()[i]), state, step)
        np.testing.assert_allclose(found[i], value, rtol=1e-4, atol=1e-4)


def test_muon_leaves_updates_of_one_axis_as_they_are() -> None:
    p = Tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = optim.Muon([p], lr=0.1)
    value, b = np.array([1.0, -2.0, 3.0]), np.zeros(3)
    with Tensor.train():
        for _ in range(3):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
            b = 0.95 * b + 2 * value
            value = value * (1 - 0.1 * 0.1) - 0.1 * (2 * value + 0.95 * b)
    np.testing.assert_allclose(p.numpy(), value, rtol=1e-5)


def test_orthogonalize_brings_singular_values_near_one() -> None:
    x = np.random.default_rng(2).standard_normal((6, 4, 2)).astype(np.float32)
    found = optim.orthogonalize(Tensor(x), 5, (3.4445, -4.775, 2.0315)).numpy()
    values = np.linalg.svd(found.reshape(6, 8), compute_uv=False)
    assert found.shape == x.shape and values.min() > 0.6 and values.max() < 1.3


def test_a_zero_gradient_moves_nothing() -> None:
    for make in (optim.LAMB, optim.LARS, optim.Adam):
        p = Tensor([0.0, 0.0], requires_grad=True)
        optimizer = make([p])
        (p * 0).sum().backward()
        optimizer.step()
        assert p.tolist() == [0, 0]


def test_half_parameters_keep_float32_state() -> None:
    p = Tensor([1.0, 2.0], dtype=dtypes.float16, requires_grad=True)
    optimizer = optim.Adam([p], lr=0.125)
    (p * Tensor([1.0, -1.0], dtype=dtypes.float16)).sum().backward()
    optimizer.step()
    assert p.dtype is dtypes.float16 and p.tolist() == [0.875, 2.125]
    assert isinstance(optimizer, optim.LAMB) and optimizer.m[0].dtype is dtypes.float32


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.1), lambda ps: optim.Adam(ps, 0.1)])
def test_float64_parameters_take_float64_steps(make: Callable[[list[Tensor]], optim.Optimizer]) -> None:
    """Beside a float32 one, whose steps stay float32. The first step of both rules is lr times 1."""
    double, single = (Tensor([0.0], dtype=d, requires_grad=True) for d in (dtypes.float64, dtypes.float32))
    optimizer = make([double, single])
    (double.sum() + single.sum()).backward()
    optimizer.step()
    assert double.item() == pytest.approx(-0.1, abs=1.1e-9)  # Adam's eps, of 1e-8
    assert single.dtype is dtypes.float32
    assert single.item() == pytest.approx(-0.1, rel=1e-6)


def test_parameters_once_and_buffers_apart() -> None:
    layer = nn.BatchNorm(2)
    assert layer.weight is not None
    tensors = [*nn.state.get_parameters(layer), layer.weight]
    optimizer = optim.SGD(tensors, lr=0.1)
    assert len(optimizer.params) == 2 and len(optimizer.buffers) == 3
    with Tensor.train():
        layer(Tensor(np.arange(8, dtype=np.float32).reshape(4, 2))).square().sum().backward()
        optimizer.step()
    np.testing.assert_allclose(layer.running_mean.numpy(), [0.3, 0.4], rtol=1e-6)


def test_optimizers_of_equal_shapes_keep_state_apart() -> None:
    a, b = Tensor([1.0, 1.0], requires_grad=True), Tensor([1.0, 1.0], requires_grad=True)
    optimizer = optim.SGD([a, b], lr=1.0, momentum=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        (a * 1 + b * 2).sum().backward()
        optimizer.step()
    assert a.tolist() == [-1.5, -1.5] and b.tolist() == [-4, -4]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_rate_can_change_between_steps(jit: bool, grouped: bool) -> None:
    p = Tensor([0.0], requires_grad=True)
    single: optim.Optimizer = optim.SGD([p], lr=1.0)
    optimizer = optim.OptimizerGroup(single) if grouped else single

    def step() -> None:
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()

    call = TinyJit(step) if jit else step
    for rate in (1.0, 0.5, 0.25, 0.125):
        optimizer.lr = rate
        call()
    single.lr.assign([2.0])
    call()
    assert p.item() == -3.875 and single.lr.tolist() == [2.0]
    with pytest.raises(ValueError, match="learning rate >= 0"):
        optimizer.lr = -1.0


def test_a_rate_of_float64_parameters_keeps_its_digits() -> None:
    optimizer = optim.SGD([Tensor([1.0], dtype="float64")], lr=0.1)
    optimizer.lr = 0.3
    assert optimizer.lr.tolist() == [0.3]


def test_parameters_may_come_from_a_generator() -> None:
    ps = [Tensor([1.0], requires_grad=True), Tensor([2.0], requires_grad=True)]
    assert optim.Adam(p for p in ps).params == ps


OPTIMIZERS: dict[str, Callable[[list[Tensor]], optim.Optimizer]] = {
    "momentum": lambda ps: optim.SGD(ps, 0.1, 0.9, 0.1),
    "LARS": lambda ps: optim.LARS(ps, 0.1),
    "AdamW": lambda ps: optim.AdamW(ps, 0.1, weight_decay=0.1),
    "LAMB": lambda ps: optim.LAMB(ps, 0.1, weight_decay=0.1),
    "AMSGrad": lambda ps: optim.Adam(ps, 0.1, amsgrad=True),
    "Adadelta": lambda ps: optim.Adadelta(ps),
    "Adamax": lambda ps: optim.Adamax(ps, 0.1),
    "NAdam": lambda ps: optim.NAdam(ps, 0.1, momentum_decay=0.1),
    "RAdam": lambda ps: optim.RAdam(ps, 0.1, (0.8, 0.9)),
    "ASGD": lambda ps: optim.ASGD(ps, 0.1, 0.1, t0=1),
    "Rprop": lambda ps: optim.Rprop(ps, 0.1),
    "Adafactor": lambda ps: optim.Adafactor(ps, 0.1, weight_decay=0.1),
    "group": lambda ps: optim.OptimizerGroup(optim.Adam(ps[:1], 0.1), optim.Adam(ps[1:], 0.1)),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_parameter_without_a_gradient_is_as_if_there_was_no_step(
        make: Callable[[list[Tensor]], optim.Optimizer], jitted: bool) -> None:
    """Equal to an optimizer of its own, which is asked only where it has a gradient."""
    together = [Tensor(p, requires_grad=True) for p in start()]
    apart = [Tensor(p, requires_grad=True) for p in start()]
    one, each = make(together), [make([p, Tensor([1.0])]) for p in apart]

    def loss(params: list[Tensor], i: int) -> Tensor:
        return (params[i] - Tensor(targets()[i])).square().sum()

    def step(used: tuple[int, ...]) -> None:
        one.zero_grad()
        sum((loss(together, i) for i in used), Tensor(0.0)).backward()
        one.step()

    call = TinyJit(step) if jitted else step
    for used in ((0,), (0, 1), (1, 2), (0,), (0, 1), (1, 2), (0, 1, 2), (0, 1, 2)):
        call(used)
        for i in used:
            each[i].zero_grad()
            loss(apart, i).backward()
            each[i].step()
    same([p.numpy() for p in together], [p.numpy() for p in apart], 1e-6)


def test_a_step_without_any_gradient_changes_nothing() -> None:
    p = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.AdamW([p], lr=1.0)
    optimizer.step()
    assert p.tolist() == [1, 2] and optimizer.m[0].tolist() == [0, 0]
    p.sum().backward()
    optimizer.step()
    np.testing.assert_allclose(p.numpy(), np.array([1.0, 2.0]) * (1 - 0.01) - 1, rtol=1e-6)


def test_equal_parameters_are_updated_by_one_kernel() -> None:
    params = [Tensor([float(i)] * 8, requires_grad=True) for i in range(9)]
    optimizer = optim.AdamW(params)
    for p in params:
        p.grad = Tensor([1.0] * 8).realize()
    updates, *others = optimizer.schedule_step()
    items = updates.schedule(*others)
    assert len({item.ast for item in items}) <= 3


def test_optimizers_refuse() -> None:
    p = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match="at least one float parameter"):
        optim.Adam([Tensor([1, 2])])
    with pytest.raises(ValueError, match="learning rate >= 0"):
        optim.SGD([p], lr=-1)
    with pytest.raises(TypeError, match="a list of tensors, got one of shape \\(2,\\)"):
        optim.Adam(p)
    with pytest.raises(TypeError, match="got a dict: parameter groups are dicts"):
        optim.Adam([{"params": [p]}, p])  # type: ignore[list-item]
    with pytest.raises(AttributeError, match=r"group\[0\].lr"):
        optim.OptimizerGroup(optim.SGD([p])).lr  # noqa: B018
    with pytest.raises(ValueError, match="b1 and b2"):
        optim.Adam([p], b1=1.0)


@pytest.mark.parametrize("name, options, what", [
    ("SGD", {"momentum": -0.9}, "momentum"), ("LARS", {"momentum": -0.9}, "momentum"),
    ("Muon", {"momentum": -1}, "momentum"), ("RMSprop", {"momentum": -0.5}, "momentum"),
    *((name, {"weight_decay": -0.1}, "weight decay")
      for name in ("SGD", "Muon", "LAMB", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam")),
    *((name, {"eps": -1e-8}, "eps") for name in ("Adam", "RMSprop", "Adagrad", "Adadelta", "RAdam")),
])
def test_options_below_zero_are_refused(name: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=f"an optimizer takes a {what} >= 0, got -"):
        getattr(optim, name)([Tensor([1.0], requires_grad=True)], **options)


@pytest.mark.parametrize("name, options", [
    ("Adam", {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("RMSprop", {}), ("RMSprop", {"lr": 0.02, "alpha": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adagrad", {}), ("Adagrad", {"lr": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.6), "amsgrad": True}), ("AdamW", {"lr": 0.1, "amsgrad": True}),
    ("Adadelta", {}), ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    ("Adamax", {}), ("Adamax", {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("NAdam", {}), ("NAdam", {"lr": 0.1, "betas": (0.8, 0.9), "momentum_decay": 0.1, "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}), ("RAdam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {}), ("ASGD", {"lr": 0.02, "lambd": 0.1, "alpha": 0.5, "t0": 3, "weight_decay": 0.1}),
    ("Rprop", {}), ("Rprop", {"lr": 0.1, "etas": (0.3, 2.0), "step_sizes": (0.01, 0.2), "maximize": True}),
    ("Adafactor", {}), ("Adafactor", {"lr": 0.5, "beta2_decay": -0.5, "d": 2.0, "weight_decay": 0.1}),
    ("Adafactor", {"lr": 0.1, "eps": (0.5, 2.0)}),
    *((name, {"lr": 0.02, "weight_decay": 0.1, "maximize": True}) for name in (
        "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
        "Adafactor")),
])
@pytest.mark.parametrize("steps", [1, 12])
def test_optimizers_with_pytorchs_arguments_take_its_steps(name: str, options: dict[str, Any], steps: int
                                                           ) -> None:
    torch: Any = pytest.importorskip("torch", reason="compares with PyTorch")
    params = [torch.tensor(p.astype(np.float64), requires_grad=True) for p in start()]
    optimizer = getattr(torch.optim, name)(params, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        for p, t in zip(params, targets(), strict=True):
            ((p - torch.tensor(t)).square() * p).sum().backward()
        optimizer.step()
    found = run(lambda own: getattr(optim, name)(own, **options), steps)
    expected = [p.detach().numpy() for p in params]
    # steps of Adafactor are in proportion to the whole parameter
    sizes = [max(1, np.abs(e).max()) if name == "Adafactor" else 1 for e in expected]
    same([f / size for f, size in zip(found, sizes, strict=True)],
         [e / size for e, size in zip(expected, sizes, strict=True)])


def bent_valley(x: Any) -> Any:
    """Rosenbrock's function, of pairs of neighbours, which is least, 0, at ones."""
    return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()


def minimised(options: dict[str, Any], calls: int, loss_of: Callable[[Any], Any], own: bool, first: Array
              ) -> tuple[list[float], Array, int]:
    """The losses that `step` returns, the last parameters, and how many losses that took: here or in
    PyTorch."""
    torch: Any = pytest.importorskip("torch", reason="compares with PyTorch")
    x: Any = Tensor(first, requires_grad=True) if own else torch.tensor(first, requires_grad=True)
    optimizer: Any = (optim if own else torch.optim).LBFGS([x], **options)
    evaluations = 0

    def closure() -> Any:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(calls)]
    return losses, x.detach().numpy(), evaluations


@pytest.mark.parametrize("options, calls", [
    ({"lr": 0.1, "max_iter": 8}, 3), ({"lr": 0.3, "max_iter": 12, "history_size": 3}, 2),
    ({"lr": 0.2, "max_iter": 1}, 9), ({"lr": 0.1, "max_iter": 30, "max_eval": 5}, 3),
    ({"lr": 1.0, "max_iter": 50, "tolerance_grad": 0.1}, 2),
    ({"lr": 1.0, "max_iter": 50, "tolerance_change": 0.01}, 2)])
def test_lbfgs_takes_pytorchs_steps(options: dict[str, Any], calls: int) -> None:
    rng = np.random.default_rng(3)
    first, bend = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))

    def loss_of(x: Any) -> Any:
        targets = type(x)(bend) if isinstance(x, Tensor) else x.new_tensor(bend)
        return ((x - targets) ** 2).sum() + 0.1 * (x ** 4).sum() + (x.sum() - 1) ** 2

    ours, theirs = (minimised(options, calls, loss_of, own, first) for own in (True, False))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-8)
    assert ours[2] == theirs[2]


@pytest.mark.parametrize("size", [2, 10])
def test_a_search_along_lines_finds_the_lowest_place(size: int) -> None:
    """In few more losses than PyTorch's."""
    first = np.tile([-1.2, 1.0], size // 2)
    options = {"max_iter": 200, "max_eval": 300, "tolerance_change": 1e-14, "line_search_fn": "strong_wolfe"}
    ours, theirs = (minimised(options, 1, bent_valley, own, first) for own in (True, False))
    np.testing.assert_allclose(ours[1], 1, rtol=1e-6)
    assert ours[2] <= 1.2 * theirs[2] + 5


def test_lbfgs_of_a_model_with_buffers_and_several_dtypes() -> None:
    layer, y = nn.BatchNorm(2), Tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 0.5]])
    scale = Tensor([0.0, 0.0], dtype=dtypes.float64, requires_grad=True)
    optimizer = optim.LBFGS([*nn.state.get_parameters(layer), scale], line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        return (layer(y) + scale - 3 * y).square().mean().backward()

    with Tensor.train():
        first = optimizer.step(closure)
        assert first.item() > 10 and closure().item() < 1e-4
    assert scale.dtype is dtypes.float64 and layer.num_batches_tracked.item() > 3


def test_a_step_computes_the_gradients_by_the_function_that_it_is_given() -> None:
    p = Tensor([1.0], requires_grad=True)
    for optimizer in (optim.SGD([p], lr=0.25), optim.OptimizerGroup(optim.SGD([p], lr=0.25))):
        def closure(optimizer: optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            return p.square().sum().backward()

        loss = optimizer.step(closure)
        assert loss is not None and loss.item() in (1, 0.25)
    assert p.item() == 0.25


def test_the_mean_of_where_the_parameters_were() -> None:
    p = Tensor([8.0], requires_grad=True)
    optimizer, seen = optim.ASGD([p], lr=0.25, lambd=0.0, alpha=0.0, t0=1), []
    for _ in range(5):
        optimizer.zero_grad()
        p.square().sum().backward()
        optimizer.step()
        seen.append(p.item())
    assert optimizer.means[0].item() == pytest.approx(np.mean(seen[2:]))


@pytest.mark.parametrize("make, error, words", [
    (lambda p: optim.LBFGS([p]).step(), TypeError, "step takes a function that computes it"),
    (lambda p: optim.LBFGS([p]).schedule_step(), TypeError, r"step\(closure\) alone"),
    (lambda p: optim.LBFGS([p], line_search_fn="wolfe"), ValueError, 'line_search_fn="strong_wolfe" or None'),
    (lambda p: optim.Rprop([p], etas=(1.2, 0.5)), ValueError, "etas below 1 and above 1"),
    (lambda p: optim.Adafactor([p], beta2_decay=0.8), ValueError, "beta2_decay <= 0 and d >= 1"),
])
def test_what_optimizers_cannot_do_is_said(make: Callable[[Tensor], object], error: type[Exception],
                                           words: str) -> None:
    with pytest.raises(error, match=words):
        make(Tensor([1.0], requires_grad=True))


def test_the_options_of_a_group_are_those_that_its_optimizer_was_given() -> None:
    weight = Tensor([1.0, -2.0], requires_grad=True)
    optimizer = optim.Adam([weight], lr=0.1, weight_decay=0.25)
    (group,) = optimizer.param_groups
    assert dict(group) | {"params": 0} == {
        "params": 0, "lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.25, "maximize": False}
    with pytest.raises(KeyError, match="Adam has no option 'momentum'"):
        group["momentum"]
    group["weight_decay"] = 0.5
    other = Tensor([1.0, -2.0], requires_grad=True)
    for chosen, parameter in ((optimizer, weight), (optim.Adam([other], lr=0.1, weight_decay=0.5), other)):
        parameter.sum().backward()
        chosen.step()
    assert weight.tolist() == other.tolist()


# --- state --------------------------------------------------------------------------------------------------


def quadratic(optimizer: optim.Optimizer, parameters: list[Tensor], steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        sum((p * p * (step + 1.5)).sum() for p in parameters).backward()
        optimizer.step()


STATEFUL: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.01, momentum=0.9), "Adam": lambda p: optim.Adam(p, lr=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01), "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("grouped", [False, True])
def test_an_optimizer_goes_on_from_its_state(name: str, grouped: bool, tmp_path: Path) -> None:
    def made(values: list[Any]) -> tuple[optim.Optimizer, list[Tensor]]:
        parameters = [Tensor(value, requires_grad=True) for value in values]
        groups: Any = [{"params": [parameters[0]], "lr": 0.03}, {"params": parameters[1:]}]
        return STATEFUL[name](groups if grouped else parameters), parameters

    first, parameters = made([[1.0, -2.0], [3.0]])
    quadratic(first, parameters, 3)
    nn.state.safe_save(first.state_dict(), str(tmp_path / "state.safetensors"))
    second, others = made([p.tolist() for p in parameters])
    second.load_state_dict(nn.state.safe_load(str(tmp_path / "state.safetensors")))
    for optimizer, own in ((first, parameters), (second, others)):
        quadratic(optimizer, own, 2)
    assert [p.tolist() for p in parameters] == [p.tolist() for p in others]


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.5, momentum=0.9)
    with pytest.raises(KeyError, match=r"missing \['b.0'\], unknown \['m.0'\]"):
        optimizer.load_state_dict({"lr": Tensor([0.1]), "m.0": Tensor([0.0, 0.0])})
    with pytest.raises(ValueError, match="shapes differ"):
        optimizer.load_state_dict({"lr": Tensor([0.1]), "b.0": Tensor([0.0, 0.0, 0.0])})
    assert optimizer.lr.item() == 0.5
