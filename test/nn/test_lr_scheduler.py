"""Learning rates, step by step beside PyTorch's."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, nn
from tinygrad.jit import JitError
from tinygrad.nn import lr_scheduler
from tinygrad.nn.optim import SGD, Optimizer

torch: Any = pytest.importorskip("torch", reason="compares with PyTorch")


def ours(rate: float) -> Optimizer:
    return SGD([Tensor([1.0], requires_grad=True)], lr=rate)


def theirs(rate: float) -> Any:
    return torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=rate)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3}), ("StepLR", {"step_size": 2, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.3}), ("ExponentialLR", {"gamma": 0.9}),
    ("LinearLR", {}), ("LinearLR", {"start_factor": 0.5, "end_factor": 0.9, "total_iters": 8}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 4}), ("PolynomialLR", {"total_iters": 7, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}), ("LambdaLR", {"lr_lambda": lambda t: 1 / (1 + t)}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}), ("CosineAnnealingWarmRestarts", {"T_0": 4}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 14, "cycle_momentum": False}),
    ("OneCycleLR", {"max_lr": 0.5, "epochs": 4, "steps_per_epoch": 5, "pct_start": 0.4, "div_factor": 10,
                    "anneal_strategy": "linear", "cycle_momentum": False}),
    ("OneCycleLR", {"max_lr": 2.0, "total_steps": 15, "three_phase": True, "final_div_factor": 100,
                    "cycle_momentum": False}),
    ("OneCycleLR", {"max_lr": 2.0, "total_steps": 15, "pct_start": 0.0, "cycle_momentum": False}),
    ("MultiplicativeLR", {"lr_lambda": lambda t: 1 / (1 + t)}),
    *(("CyclicLR", {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 3, "cycle_momentum": False, **options})
      for options in ({}, {"step_size_down": 2, "mode": "triangular2"}, {"mode": "exp_range", "gamma": 0.9},
                      {"scale_fn": lambda n: 1 / n},
                      {"scale_fn": lambda t: 1 / (1 + t), "scale_mode": "iterations"})),
]


@pytest.mark.parametrize("name, options", CASES)
def test_rates_are_pytorchs(name: str, options: dict[str, Any]) -> None:
    first, second = ours(0.1), theirs(0.1)
    mine = getattr(lr_scheduler, name)(first, **options)
    other = getattr(torch.optim.lr_scheduler, name)(second, **options)
    for _ in range(14):
        np.testing.assert_allclose(mine.get_last_lr(), other.get_last_lr(), rtol=1e-9, atol=1e-12)
        assert math.isclose(first.lr.item(), second.param_groups[0]["lr"], rel_tol=1e-6, abs_tol=1e-9)
        mine.step()
        second.step()
        other.step()


def sequence(schedulers: Any, optimizer: Any) -> Any:
    warm = schedulers.LinearLR(optimizer, 0.1, 1.0, 3)
    cosine = schedulers.CosineAnnealingLR(optimizer, 6, 0.01)
    return schedulers.SequentialLR(optimizer, [warm, cosine, schedulers.StepLR(optimizer, 2)], [3, 9])


def test_rates_one_after_the_other_are_pytorchs() -> None:
    """Also from a state in the middle; a scheduler counts from the rate before the first one."""
    first, second = ours(0.1), theirs(0.1)
    mine, other = sequence(lr_scheduler, first), sequence(torch.optim.lr_scheduler, second)
    states = []
    for _ in range(14):
        np.testing.assert_allclose(mine.get_last_lr(), other.get_last_lr(), rtol=1e-9, atol=1e-12)
        assert math.isclose(first.lr.item(), second.param_groups[0]["lr"], rel_tol=1e-6, abs_tol=1e-9)
        states.append((mine.state_dict(), mine.get_last_lr()))
        mine.step()
        second.step()
        other.step()
    resumed = sequence(lr_scheduler, ours(0.1))
    resumed.load_state_dict(states[4][0])
    for _, rates in states[4:]:
        assert resumed.get_last_lr() == rates
        resumed.step()


def chain(schedulers: Any, optimizer: Any, kinds: Any) -> Any:
    return schedulers.ChainedScheduler([getattr(schedulers, name)(optimizer, *args) for name, args in kinds])


CHAINS = {
    "warm-up and decay": [("LinearLR", (0.1, 1.0, 3)), ("ExponentialLR", (0.9,))],
    "steps of three kinds": [("StepLR", (2, 0.5)), ("MultiStepLR", ([3, 5], 0.1)), ("ConstantLR", (0.25, 4))],
    "a cosine of what is left": [("ConstantLR", (0.5, 3)), ("CosineAnnealingLR", (4, 0.01))],
    "a cosine first": [("CosineAnnealingLR", (3, 0.01)), ("ExponentialLR", (0.8,))],
    "down to nothing": [("PolynomialLR", (5, 2.0)), ("LinearLR", (0.5, 1.0, 2))],
    "products": [("MultiplicativeLR", (lambda t: 0.9 + t / 100,)), ("StepLR", (3,))],
    "what sets the rate": [("ExponentialLR", (0.9,)), ("LambdaLR", (lambda t: 1 / (1 + t),))],
}


@pytest.mark.parametrize("name", CHAINS)
def test_rates_of_all_schedulers_at_once_are_pytorchs(name: str) -> None:
    first, second = ours(0.1), theirs(0.1)
    mine = chain(lr_scheduler, first, CHAINS[name])
    other = chain(torch.optim.lr_scheduler, second, CHAINS[name])
    states = []
    for _ in range(11):
        np.testing.assert_allclose(mine.get_last_lr(), other.get_last_lr(), rtol=1e-9, atol=1e-12)
        assert math.isclose(first.lr.item(), second.param_groups[0]["lr"], rel_tol=1e-6, abs_tol=1e-9)
        states.append((mine.state_dict(), mine.get_last_lr()))
        mine.step()
        second.step()
        other.step()
    resumed = chain(lr_scheduler, ours(0.1), CHAINS[name])
    resumed.load_state_dict(states[4][0])
    for _, rates in states[4:]:
        assert resumed.get_last_lr() == rates
        resumed.step()


def test_a_chain_is_of_schedulers_of_one_optimizer() -> None:
    schedulers = [lr_scheduler.StepLR(ours(0.1), 2) for _ in range(2)]
    for given in ([], schedulers):
        with pytest.raises(ValueError, match="ChainedScheduler takes schedulers, one at least"):
            lr_scheduler.ChainedScheduler(given)


def test_a_cycle_of_rates_has_so_many_steps() -> None:
    scheduler = lr_scheduler.OneCycleLR(ours(0.1), 1.0, 2)
    scheduler.step()
    scheduler.step()
    with pytest.raises(ValueError, match="this schedule has 2 steps"):
        scheduler.step()
    for options, words in (({}, "total_steps, or epochs"),
                           ({"total_steps": 3, "pct_start": 2}, "from 0 to 1"),
                           ({"total_steps": 3, "anneal_strategy": "log"}, "cos")):
        with pytest.raises(ValueError, match=words):
            lr_scheduler.OneCycleLR(ours(0.1), 1.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options, words", [
    ({"mode": "square"}, "mode 'triangular', 'triangular2', 'exp_range'"),
    ({"scale_mode": "step"}, "got 'triangular' and 'step'"),
    ({"step_size_up": 0}, "step_size_up >= 1")])
def test_what_a_cycle_of_rates_cannot_be_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lr_scheduler.CyclicLR(ours(0.1), 0.01, 0.5, **options)


def test_a_sequence_needs_a_milestone_between_each_two() -> None:
    optimizer = ours(0.1)
    with pytest.raises(ValueError, match="SequentialLR takes schedulers of its optimizer, and a milestone"):
        lr_scheduler.SequentialLR(optimizer, [lr_scheduler.StepLR(optimizer, 2)], [1])


LOSSES = [5, 4, 4, 4, 4.1, 4, 3, 3, 3, -1, -1.5, -1.5, -1, -1, -1, -2, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("options", [
    {"patience": 1}, {"patience": 2, "factor": 0.5, "cooldown": 2},
    {"mode": "max", "patience": 1, "min_lr": 0.003},
    {"patience": 0, "threshold": 0.5, "threshold_mode": "abs"},
])
def test_rates_on_a_plateau_are_pytorchs(options: dict[str, Any]) -> None:
    first, second = ours(0.1), theirs(0.1)
    mine = lr_scheduler.ReduceLROnPlateau(first, **options)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(second, **options)
    for loss in LOSSES:
        mine.step(Tensor(loss))
        other.step(loss)
        assert math.isclose(first.lr.item(), second.param_groups[0]["lr"], rel_tol=1e-6)


# --- parameter groups ---------------------------------------------------------------------------------------

FIRST_RATES = 0.1, 0.02


def in_groups(optimizer: Any, parameter: Callable[[], Any]) -> Any:
    return optimizer([{"params": [parameter()], "lr": rate} for rate in FIRST_RATES], lr=1.0)


def assert_rates_of_groups_equal(make: Callable[[Any, Any], Any], *metrics: Any) -> None:
    """Also from a state in the middle."""
    first = in_groups(SGD, lambda: Tensor([1.0], requires_grad=True))
    second = in_groups(torch.optim.SGD, lambda: torch.ones(1, requires_grad=True))
    mine, other = make(lr_scheduler, first), make(torch.optim.lr_scheduler, second)
    states = []
    for step in range(12):
        np.testing.assert_allclose(mine.get_last_lr(), other.get_last_lr(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose([group["lr"] for group in first.param_groups],
                                   [group["lr"] for group in second.param_groups], rtol=1e-6, atol=1e-9)
        states.append((mine.state_dict(), mine.get_last_lr()))
        second.step()
        for scheduler in (mine, other):
            scheduler.step(*[values[step] for values in metrics])
    assert len({tuple(rates) for _, rates in states}) > 1
    resumed = make(lr_scheduler, in_groups(SGD, lambda: Tensor([1.0], requires_grad=True)))
    resumed.load_state_dict(states[4][0])
    for step, (_, rates) in enumerate(states[4:], 4):
        assert resumed.get_last_lr() == rates
        resumed.step(*[values[step] for values in metrics])


@pytest.mark.parametrize("name, options", [
    *CASES, ("LambdaLR", {"lr_lambda": [lambda t: 1 / (1 + t), lambda t: 0.9 ** t]}),
    ("MultiplicativeLR", {"lr_lambda": [lambda t: 0.5, lambda t: 0.9]}),
    ("OneCycleLR", {"max_lr": [0.5, 0.25], "total_steps": 14, "cycle_momentum": False}),
    ("CyclicLR", {"base_lr": [0.01, 0.02], "max_lr": [0.5, 0.1], "step_size_up": 3, "cycle_momentum": False}),
])
def test_rates_of_parameter_groups_are_pytorchs(name: str, options: dict[str, Any]) -> None:
    assert_rates_of_groups_equal(
        lambda schedulers, optimizer: getattr(schedulers, name)(optimizer, **options))


@pytest.mark.parametrize("make", [
    sequence, *(lambda schedulers, optimizer, kinds=kinds: chain(schedulers, optimizer, kinds)
                for kinds in CHAINS.values())])
def test_rates_of_parameter_groups_by_several_schedulers_are_pytorchs(make: Any) -> None:
    assert_rates_of_groups_equal(make)


@pytest.mark.parametrize("least", [0.0, 0.001, [0.03, 0.001]])
def test_rates_of_parameter_groups_on_a_plateau_are_pytorchs(least: Any) -> None:
    assert_rates_of_groups_equal(lambda schedulers, optimizer: schedulers.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=1, min_lr=least), LOSSES + LOSSES)


CYCLES: list[tuple[str, dict[str, Any]]] = [
    ("OneCycleLR", {"max_lr": 0.05, "total_steps": 14}),
    ("OneCycleLR", {"max_lr": 0.05, "total_steps": 14, "three_phase": True, "anneal_strategy": "linear",
                    "base_momentum": 0.5, "max_momentum": 0.75}),
    ("CyclicLR", {"base_lr": 0.001, "max_lr": 0.05, "step_size_up": 3}),
    ("CyclicLR", {"base_lr": 0.001, "max_lr": 0.05, "step_size_up": 4, "mode": "triangular2",
                  "base_momentum": 0.25, "max_momentum": 0.5}),
]
MOVED: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}), ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.5}), ("Adam", {}), ("AdamW", {"betas": (0.8, 0.95), "amsgrad": True}),
    ("NAdam", {}), ("RAdam", {}), ("Adamax", {})]


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name, options", MOVED, ids=lambda value: str(value))
@pytest.mark.parametrize("schedule, cycle", CYCLES, ids=lambda value: str(value))
def test_training_with_a_moving_momentum_is_pytorchs(schedule: str, cycle: dict[str, Any], name: str,
                                                     options: dict[str, Any], jitted: bool) -> None:
    start = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    weight, other = Tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    mine = getattr(nn.optim, name)([weight], lr=0.01, **options)
    theirs = getattr(torch.optim, name)([other], lr=0.01, **options)
    schedules = (getattr(lr_scheduler, schedule)(mine, **cycle),
                 getattr(torch.optim.lr_scheduler, schedule)(theirs, **cycle))

    def step() -> None:
        mine.zero_grad()
        (weight * weight * weight * 0.1 + weight * weight).sum().backward()
        mine.step()

    run = TinyJit(step) if jitted else step
    for _ in range(13):
        with Tensor.train():
            run()
        theirs.zero_grad()
        (other * other * other * 0.1 + other * other).sum().backward()
        theirs.step()
        np.testing.assert_allclose(weight.numpy(), other.detach().numpy(), rtol=2e-5, atol=1e-6)
        for one in schedules:
            one.step()
        (ours_now,), (theirs_now,) = mine.param_groups, theirs.param_groups
        key = "momentum" if "momentum" in theirs_now else "betas"
        np.testing.assert_allclose(ours_now[key], theirs_now[key], rtol=1e-6)


def test_momenta_of_parameter_groups_are_pytorchs() -> None:
    for cycled in ({"base_momentum": 0.5}, {"base_momentum": [0.5, 0.25], "max_momentum": [0.75, 0.5]}):
        first = in_groups(SGD, lambda: Tensor([1.0], requires_grad=True))
        second = in_groups(torch.optim.SGD, lambda: torch.ones(1, requires_grad=True))
        mine = lr_scheduler.OneCycleLR(first, [0.5, 0.1], 10, **cycled)
        other = torch.optim.lr_scheduler.OneCycleLR(second, [0.5, 0.1], 10, **cycled)
        for _ in range(9):
            second.step()
            mine.step()
            other.step()
            np.testing.assert_allclose([group["momentum"] for group in first.param_groups],
                                       [group["momentum"] for group in second.param_groups], rtol=1e-6)


def test_betas_that_are_written_are_pytorchs() -> None:
    start = np.array([1.0, -2.0], dtype=np.float32)
    for name in ("Adam", "AdamW", "NAdam", "Adamax"):
        weight, other = Tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
        mine, theirs = getattr(nn.optim, name)([weight]), getattr(torch.optim, name)([other])
        for betas in [(0.9, 0.999)] * 3 + [(0.8, 0.99), (0.95, 0.9), (0.95, 0.9), (0.5, 0.999)]:
            mine.param_groups[0]["betas"] = theirs.param_groups[0]["betas"] = betas
            for optimizer, value in ((mine, weight), (theirs, other)):
                optimizer.zero_grad()
                (value * value).sum().backward()
                with Tensor.train():
                    optimizer.step()
            np.testing.assert_allclose(weight.numpy(), other.detach().numpy(), rtol=2e-5, atol=1e-6)
    with pytest.raises(ValueError, match="b1 and b2 are from 0 to below 1"):
        mine.param_groups[0]["betas"] = (0.9, 1.0)
    with pytest.raises(ValueError, match="second beta of RAdam stays"):
        nn.optim.RAdam([weight]).param_groups[0]["betas"] = (0.9, 0.9)


def test_a_momentum_that_is_not_there_or_no_momentum() -> None:
    with pytest.raises(ValueError, match="Adagrad has neither: cycle_momentum=False"):
        lr_scheduler.OneCycleLR(nn.optim.Adagrad([Tensor([1.0])]), 0.1, 10)
    with pytest.raises(ValueError, match="a momentum is from 0 to below 1"):
        lr_scheduler.CyclicLR(ours(0.1), 0.1, 0.2, max_momentum=1.0)


def test_as_many_options_as_parameter_groups() -> None:
    optimizer = in_groups(SGD, lambda: Tensor([1.0], requires_grad=True))
    for make in (lambda: lr_scheduler.LambdaLR(optimizer, [lambda t: 1.0]),
                 lambda: lr_scheduler.OneCycleLR(optimizer, [1.0, 2.0, 3.0], total_steps=5),
                 lambda: lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=[0.1])):
        with pytest.raises(ValueError, match="2 parameter groups"):
            make()


def test_a_schedule_of_ones_own() -> None:
    class Halved(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            return [rate / 2 ** self.last_epoch for rate in self.base_lrs]

    optimizer = in_groups(SGD, lambda: Tensor([1.0], requires_grad=True))
    schedule = Halved(optimizer)
    schedule.step()
    assert schedule.get_last_lr() == [0.05, 0.01] == [group["lr"] for group in optimizer.param_groups]


def test_a_schedule_goes_on_from_its_state() -> None:
    first = lr_scheduler.StepLR(ours(0.1), 2)
    for _ in range(3):
        first.step()
    second = lr_scheduler.StepLR(ours(0.1), 2)
    second.load_state_dict(first.state_dict())
    for schedule in (first, second):
        schedule.step()
    assert first.get_last_lr() == second.get_last_lr() and math.isclose(first.get_last_lr()[0], 0.001)


def test_a_replayed_step_takes_the_rate_of_its_time() -> None:
    weight = Tensor([1.0], requires_grad=True)
    optimizer = SGD([weight], lr=1.0)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)

    @TinyJit
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    seen = []
    for _ in range(5):
        before = weight.item()
        step()
        seen.append(before - weight.item())
        schedule.step()
    np.testing.assert_allclose(seen, [1, 0.5, 0.25, 0.125, 0.0625])


@pytest.mark.parametrize("name, options, arguments", [
    ("StepLR", {"step_size": 3}, ()), ("CosineAnnealingLR", {"T_max": 5}, ()),
    ("ReduceLROnPlateau", {}, (1.0,)),
])
def test_a_step_of_a_schedule_under_the_jit_says_that_it_belongs_outside(
        name: str, options: dict[str, Any], arguments: tuple[float, ...]) -> None:
    optimizer = ours(0.1)
    single = getattr(lr_scheduler, name)(optimizer, **options)
    schedules = [single]
    if not arguments:
        schedules.append(lr_scheduler.SequentialLR(optimizer, [single, single], [2]))
        schedules.append(lr_scheduler.ChainedScheduler([single]))
    for schedule in schedules:
        before = schedule.state_dict()
        step = TinyJit(lambda schedule=schedule: schedule.step(*arguments))
        with pytest.raises(JitError, match=r"step\(\) inside .* call it outside"):
            step()
        assert schedule.state_dict() == before
        schedule.step(*arguments)


@pytest.mark.parametrize("name, options", [
    ("StepLR", {"step_size": 0}), ("LinearLR", {"total_iters": 0}), ("PolynomialLR", {"total_iters": -1}),
    ("CosineAnnealingLR", {"T_max": 0}), ("CosineAnnealingWarmRestarts", {"T_0": 0}),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 0}),
])
def test_a_schedule_of_no_steps_is_refused(name: str, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a schedule takes .* >= 1, got"):
        getattr(lr_scheduler, name)(ours(0.1), **options)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_gradients_are_scaled_to_a_norm_as_pytorchs(norm_type: float, max_norm: float) -> None:
    def check(clip: Callable[..., Any], make: Callable[[Any], Any]) -> tuple[float, list[Any]]:
        weights = [make(np.arange(3, dtype="f")), make(np.ones((2, 2), "f")), make(np.zeros(2, "f"))]
        (weights[0] * weights[0]).sum().backward()
        (weights[1] * 3).sum().backward()
        norm = clip(weights, max_norm, norm_type)
        assert weights[2].grad is None
        return norm.item(), [w.grad.numpy() for w in weights[:2]]

    norm, clipped = check(nn.utils.clip_grad_norm_, lambda a: Tensor(a, requires_grad=True))
    expected, others = check(torch.nn.utils.clip_grad_norm_, lambda a: torch.tensor(a, requires_grad=True))
    assert math.isclose(norm, expected, rel_tol=1e-6)
    for found, wanted in zip(clipped, others, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_gradients_are_clipped_by_value_and_parameters_joined() -> None:
    weight = Tensor([1.0, -5.0, 0.25], requires_grad=True)
    (weight * weight).sum().backward()
    nn.utils.clip_grad_value_(weight, 2.0)
    assert weight.grad is not None and weight.grad.tolist() == [2.0, -2.0, 0.5]
    assert nn.utils.clip_grad_norm_([Tensor([1.0])], 1.0).item() == 0
    assert nn.utils.parameters_to_vector([weight, Tensor([[3.0]])]).tolist() == [1.0, -5.0, 0.25, 3.0]


def test_a_row_is_cut_into_parameters() -> None:
    weight, scale = Tensor.zeros(2, 2, requires_grad=True), Tensor([0.0], dtype="float64")
    nn.utils.vector_to_parameters(Tensor([1.0, 2.0, 3.0, 4.0, 5.0]), [weight, scale])
    assert weight.tolist() == [[1, 2], [3, 4]] and scale.tolist() == [5] and scale.dtype.name == "float64"
    assert nn.utils.parameters_to_vector([weight, scale]).tolist() == [1, 2, 3, 4, 5]
    (weight * 2).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[2, 2], [2, 2]]
    with pytest.raises(ValueError, match=r"one row of 5 items, got shape \(4,\)"):
        nn.utils.vector_to_parameters(Tensor.ones(4), [weight, scale])
