"""PyTorch's parameter groups: options of their own for some parameters, read and written by name."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.nn import optim

from .table import torch

MADE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}, {"lr": 0.01, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1}, {"momentum": 0.5, "nesterov": True}),
    ("Adam", {"lr": 0.1}, {"betas": (0.5, 0.9), "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.0}, {"lr": 0.02, "weight_decay": 0.3}),
    ("RMSprop", {"lr": 0.1}, {"alpha": 0.5, "momentum": 0.9}), ("Adagrad", {"lr": 0.1}, {"lr": 0.5}),
    ("NAdam", {"lr": 0.1}, {"weight_decay": 0.1}), ("Rprop", {"lr": 0.1}, {"lr": 0.2})]


def trained(library: Any, make: Callable[[list[Any]], Any], between: Callable[[Any, int], None]) -> list[Any]:
    """Three parameters after steps of an optimizer, between which something is done with it."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (3,), (2, 2))]
    ps = [Tensor(a, requires_grad=True) if library is Tensor else torch.from_numpy(a).requires_grad_()
          for a in arrays]
    optimizer = make(ps)
    for step in range(6):
        between(optimizer, step)
        optimizer.zero_grad()
        loss = (ps[0] @ ps[1]).sum() + (ps[0] * ps[0]).sum() + ps[1].exp().sum()
        (loss + (ps[2] * ps[2] * ps[2]).sum()).backward()
        optimizer.step()
    return [p.detach().numpy() for p in ps]


def halved(optimizer: Any, step: int) -> None:
    if step % 2:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize(("name", "common", "own"), MADE)
def test_groups_are_pytorchs(name: str, common: dict[str, Any], own: dict[str, Any], positional: bool
                             ) -> None:
    def make(module: Any) -> Callable[[list[Any]], Any]:
        def made(ps: list[Any]) -> Any:
            groups = [{"params": ps[:1]}, {"params": ps[1:2], **own}, {"params": ps[2]}]
            options = dict(common)
            rate = [options.pop("lr")] if positional else []
            return getattr(module, name)(groups, *rate, **options)
        return made

    found, expected = trained(Tensor, make(optim), halved), trained(torch, make(torch.optim), halved)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_a_rate_that_is_written_by_name_is_the_next_step_s_under_tinyjit() -> None:
    p = Tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([{"params": [p]}], lr=1.0)

    @TinyJit
    def step() -> None:
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()

    values = []
    for rate in (1.0, 0.5, 0.25, 0.125, 2.0):
        optimizer.param_groups[0]["lr"] = rate
        step()
        values.append(p.item())
    assert values == [0.0, -0.5, -0.75, -0.875, -2.875]


def test_a_group_has_its_optimizers_options_by_name() -> None:
    p, q = (Tensor([1.0], requires_grad=True) for _ in range(2))
    optimizer = optim.Adam([{"params": [p], "lr": 0.25}, {"params": q, "eps": 0.5}], lr=0.1)
    assert isinstance(optimizer, optim.OptimizerGroup)
    first, second = optimizer.param_groups
    assert [first["lr"], second["lr"], first["eps"], second["eps"]] == [0.25, 0.1, 1e-8, 0.5]
    assert first["params"][0] is p
    second["eps"] = 0.25
    assert optimizer[1].eps == 0.25
    assert len(first) == len(list(first))
    assert "lr: 0.25" in repr(first)
    with pytest.raises(KeyError, match=r"Adam has no option 'rate' .* 'lr'"):
        first["rate"] = 1.0
    with pytest.raises(ValueError, match="the parameters of an optimizer stay"):
        first["params"] = []
    with pytest.raises(TypeError, match="the options of an optimizer stay"):
        del first["lr"]
    with pytest.raises(ValueError, match="learning rate >= 0"):
        first["lr"] = -1.0
    with pytest.raises(ValueError, match="weight decay >= 0"):
        first["weight_decay"] = -1.0
    assert first["betas"] == (0.9, 0.999)
    with pytest.raises(ValueError, match="b1 and b2 are from 0 to below 1, got 0.5 and 1.5"):
        first["betas"] = (0.5, 1.5)


@pytest.mark.parametrize(("name", "changes"), [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}), ("RMSprop", {"alpha": 0.5, "eps": 1e-2}),
    ("Adam", {"eps": 1e-3}), ("NAdam", {"weight_decay": 0.2}), ("AdamW", {"betas": (0.5, 0.9)})])
def test_options_are_changed_between_steps(name: str, changes: dict[str, Any]) -> None:
    def change(optimizer: Any, step: int) -> None:
        if step == 3:
            optimizer.param_groups[0].update(changes)
            assert {key: optimizer.param_groups[0][key] for key in changes} == changes

    def make(module: Any) -> Callable[[list[Any]], Any]:
        return lambda ps: getattr(module, name)(ps, lr=0.1)

    found, expected = trained(Tensor, make(optim), change), trained(torch, make(torch.optim), change)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_gradients_of_zeros_are_those_of_pytorch() -> None:
    """A step goes on by its momentum."""
    def coast(optimizer: Any, step: int) -> None:
        if step == 3:
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()

    def make(module: Any) -> Callable[[list[Any]], Any]:
        return lambda ps: module.SGD([{"params": ps[:2]}, {"params": ps[2:]}], lr=0.1, momentum=0.9)

    found, expected = trained(Tensor, make(optim), coast), trained(torch, make(torch.optim), coast)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name, options, added", [
    ("SGD", {"momentum": 0.9}, {"lr": 0.02}), ("Adam", {"betas": (0.8, 0.9)}, {"betas": (0.5, 0.6)}),
    ("RMSprop", {"alpha": 0.5}, {}), ("NAdam", {}, {"weight_decay": 0.1})])
def test_a_group_is_added_between_steps(name: str, options: dict[str, Any], added: dict[str, Any]) -> None:
    """The optimizer goes on with what it kept, and what it was made with holds for the new parameters too."""
    def make(module: Any, late: list[Any]) -> Callable[[list[Any]], Any]:
        def made(ps: list[Any]) -> Any:
            late.extend(ps[1:])
            return getattr(module, name)(ps[:1], 0.1, **options)
        return made

    def add(late: list[Any]) -> Callable[[Any, int], None]:
        def between(optimizer: Any, step: int) -> None:
            if step in (2, 4):
                optimizer.add_param_group({"params": late[step // 2 - 1], **added})
            if step == 5:
                optimizer.param_groups[-1]["lr"] *= 0.5
                assert len(optimizer.param_groups) == 3
        return between

    ours: list[Any] = []
    theirs: list[Any] = []
    found = trained(Tensor, make(optim, ours), add(ours))
    expected = trained(torch, make(torch.optim, theirs), add(theirs))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_a_group_that_cannot_be_added() -> None:
    p, q = (Tensor([1.0], requires_grad=True) for _ in range(2))
    optimizer = optim.Adam([p])
    for group, words in (({"params": [p]}, "in more than one parameter group"),
                         ({"lr": 0.1}, 'the key "params"')):
        with pytest.raises(ValueError, match=words):
            optimizer.add_param_group(group)
    with pytest.raises(TypeError, match="rate"):
        optimizer.add_param_group({"params": [q], "rate": 0.1})
    assert len(optimizer.param_groups) == 1 and optimizer.params == [p]


class Plain(optim.RMSprop):
    """Without an `__init__` of its own."""


class Passing(optim.LARS):
    """What it does not know it passes on."""

    def __init__(self, params: Any, lr: float = 0.5, **options: Any) -> None:
        super().__init__(params, lr, tcoef=0.0, **options)


def test_subclasses_take_groups() -> None:
    p, q = (Tensor([1.0], requires_grad=True) for _ in range(2))
    plain = Plain([{"params": [p]}, {"params": [q], "lr": 0.25}], lr=0.5)
    assert [(type(plain[i]), plain[i].lr.item()) for i in range(2)] == [(Plain, 0.5), (Plain, 0.25)]  # type: ignore[index]
    plain.add_param_group({"params": [Tensor([2.0])], "alpha": 0.5})
    assert type(plain[2]) is Plain and [g["alpha"] for g in plain.param_groups] == [0.99, 0.99, 0.5]  # type: ignore[index]
    passing = Passing([{"params": [p]}, {"params": [q], "momentum": 0.25}], momentum=0.5, weight_decay=0.75)
    assert [(g["lr"], g["momentum"], g["weight_decay"]) for g in passing.param_groups] == [
        (0.5, 0.5, 0.75), (0.5, 0.25, 0.75)]


def test_groups_that_are_none_are_refused() -> None:
    p, q = (Tensor([1.0], requires_grad=True) for _ in range(2))
    with pytest.raises(ValueError, match='the key "params"'):
        optim.SGD([{"lr": 0.1}])
    with pytest.raises(ValueError, match="more than one parameter group"):
        optim.SGD([{"params": [p]}, {"params": [q, p]}])
    with pytest.raises(TypeError, match="parameter groups are dicts"):
        optim.RMSprop([{"params": [p]}, q])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="rate"):
        optim.Adam([{"params": [p], "rate": 0.1}])
