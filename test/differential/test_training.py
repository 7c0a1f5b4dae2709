"""Training programs as PyTorch's users write them, step by step beside PyTorch, with and without TinyJit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, nn
from tinygrad.dtype import dtypes

from .table import torch

pytestmark = pytest.mark.slow
F = torch.nn.functional
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both libraries compute in float64: what differs then is not rounding."""
    monkeypatch.setattr(dtypes, "default_float", dtypes.float64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def numbers() -> np.random.Generator:
    return np.random.default_rng(0)


def close(ours: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-8, atol=1e-9)


def copied(ours: Any, theirs: Any) -> Any:
    """Our model with the weights of theirs."""
    state = {k: Tensor(v.detach().numpy().copy()) for k, v in theirs.state_dict().items()}
    nn.state.load_state_dict(ours, state, verbose=False)
    return ours


def equal(ours: Any, theirs: Any) -> None:
    own = nn.state.get_state_dict(ours)
    for name, value in theirs.state_dict().items():
        close(own[name], value)


def two_layers(sizes: Sequence[int], between: Callable[[Tensor], Tensor] = Tensor.relu) -> list[Any]:
    return [nn.Linear(sizes[0], sizes[1]), between, nn.Linear(sizes[1], sizes[2])]


def two_torch_layers(sizes: Sequence[int], between: Any = None) -> Any:
    first, last = torch.nn.Linear(sizes[0], sizes[1]), torch.nn.Linear(sizes[1], sizes[2])
    return torch.nn.Sequential(first, torch.nn.ReLU() if between is None else between, last)


@pytest.mark.parametrize("jitted", [False, True])
def test_two_networks_that_train_against_each_other(numbers: np.random.Generator, jitted: bool) -> None:
    their_maker = two_torch_layers((4, 8, 6))
    their_judge = two_torch_layers((6, 8, 1), torch.nn.LeakyReLU(0.2))
    maker = copied(two_layers((4, 8, 6)), their_maker)
    judge = copied(two_layers((6, 8, 1), lambda x: x.leaky_relu(0.2)), their_judge)
    updates = [nn.optim.Adam(nn.state.get_parameters(m), 0.01, 0.5, 0.9) for m in (maker, judge)]
    theirs = [torch.optim.Adam(m.parameters(), 0.01, betas=(0.5, 0.9)) for m in (their_maker, their_judge)]

    def step(real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        made = noise.sequential(maker)
        updates[1].zero_grad()
        yes, no = real.sequential(judge), made.detach().sequential(judge)
        judged = (yes.binary_crossentropy_logits(Tensor.ones_like(yes))
                  + no.binary_crossentropy_logits(Tensor.zeros_like(no)))
        judged.backward()
        updates[1].step()
        updates[0].zero_grad()
        answer = made.sequential(judge)
        fooled = answer.binary_crossentropy_logits(Tensor.ones_like(answer))
        fooled.backward()
        updates[0].step()
        return judged, fooled

    loss = F.binary_cross_entropy_with_logits
    call = TinyJit(step) if jitted else step
    for _ in range(5):
        real, noise = numbers.standard_normal((5, 6)), numbers.standard_normal((5, 4))
        made = their_maker(torch.tensor(noise))
        theirs[1].zero_grad()
        yes, no = their_judge(torch.tensor(real)), their_judge(made.detach())
        judged = loss(yes, torch.ones_like(yes)) + loss(no, torch.zeros_like(no))
        judged.backward()
        theirs[1].step()
        theirs[0].zero_grad()
        answer = their_judge(made)
        fooled = loss(answer, torch.ones_like(answer))
        fooled.backward()
        theirs[0].step()
        with Tensor.train():
            ours = call(Tensor(real).realize(), Tensor(noise).realize())
        close(ours[0], judged)
        close(ours[1], fooled)
    equal(maker, their_maker)
    equal(judge, their_judge)


@pytest.mark.parametrize("jitted", [False, True])
def test_values_of_actions_from_a_memory_of_moves(numbers: np.random.Generator, jitted: bool) -> None:
    """A target network that follows slowly, rows written and read by position, gather under the loss."""
    their_values, their_target = two_torch_layers((4, 8, 3)), two_torch_layers((4, 8, 3))
    values, target = copied(two_layers((4, 8, 3)), their_values), copied(two_layers((4, 8, 3)), their_target)
    parameters, followers = nn.state.get_parameters(values), nn.state.get_parameters(target)
    update = nn.optim.Adam(parameters, 0.01)
    their_update = torch.optim.Adam(their_values.parameters(), 0.01)
    seen, did, won = np.zeros((16, 4)), np.zeros(16, np.int64), np.zeros(16)
    states, actions, rewards = (Tensor(a).realize() for a in (seen, did, won))

    def learn(at: Tensor) -> Tensor:
        with Tensor.no_grad():
            wanted = rewards[at] + 0.9 * states[(at + 1) % 16].sequential(target).max(1)
        found = states[at].sequential(values).gather(1, actions[at].unsqueeze(1)).squeeze(1)
        off = (found - wanted).abs()
        loss = (off < 1).where(0.5 * off * off, off - 0.5).mean()
        update.zero_grad()
        loss.backward()
        update.step()
        for follower, p in zip(followers, parameters, strict=True):
            follower.assign(0.9 * follower + 0.1 * p.detach())
        return loss.realize(*followers)

    call = TinyJit(learn) if jitted else learn
    for i in range(12):
        state, reward = numbers.standard_normal(4), numbers.standard_normal()
        with torch.no_grad():
            action = int(their_values(torch.tensor(state)).argmax())
        with Tensor.no_grad():
            assert Tensor(state).sequential(values).argmax().item() == action
        seen[i], did[i], won[i] = state, action, reward
        states[i], actions[i], rewards[i] = Tensor(state), action, float(reward)
        if i < 4:
            continue
        at = numbers.integers(0, i, 6)
        with torch.no_grad():
            after = their_target(torch.tensor(seen[(at + 1) % 16])).max(1).values
        found = their_values(torch.tensor(seen[at])).gather(1, torch.tensor(did[at]).unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(found, torch.tensor(won[at]) + 0.9 * after)
        their_update.zero_grad()
        loss.backward()
        their_update.step()
        with torch.no_grad():
            for p, follower in zip(their_values.parameters(), their_target.parameters(), strict=True):
                follower.mul_(0.9).add_(0.1 * p)
        with Tensor.train():
            close(call(Tensor(at).realize()), loss)
    equal(values, their_values)
    equal(target, their_target)


def test_accumulated_clipped_scheduled_grouped_and_averaged(numbers: np.random.Generator) -> None:
    theirs = two_torch_layers((4, 8, 3), torch.nn.Tanh())
    ours = copied(two_layers((4, 8, 3), Tensor.tanh), theirs)
    own, named = nn.state.get_state_dict(ours), dict(theirs.named_parameters())
    matrices = [k for k in own if own[k].ndim > 1]
    groups = [(matrices, 0.1), ([k for k in own if k not in matrices], 0.0)]
    update = nn.optim.OptimizerGroup(*(
        nn.optim.AdamW([own[k] for k in names], 0.01, weight_decay=decay) for names, decay in groups))
    their_update = torch.optim.AdamW(
        [{"params": [named[k] for k in names], "weight_decay": decay} for names, decay in groups], 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(their_update, 6)
    average = {k: v.detach().clone().realize() for k, v in own.items()}
    their_average = {k: v.detach().clone() for k, v in named.items()}
    for _ in range(5):
        update.zero_grad()
        their_update.zero_grad()
        with Tensor.train():
            for size in (5, 3, 1):
                x, y = numbers.standard_normal((size, 4)), numbers.integers(0, 3, size)
                their_loss = F.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)) / 3
                their_loss.backward()
                loss = Tensor(x).sequential(ours).cross_entropy(Tensor(y)) / 3
                close(loss.backward(), their_loss)
            norm = Tensor.stack(*[p.grad.square().sum() for p in own.values()]).sum().sqrt()
            for p in own.values():
                p.grad = p.grad * (0.1 / (norm + 1e-6)).minimum(1)
            close(norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1))
            for each in update.optimizers:
                each.lr.assign([schedule.get_last_lr()[0]])
            update.step()
        their_update.step()
        schedule.step()
        for name, mean in average.items():
            mean.assign(0.9 * mean + 0.1 * own[name].detach()).realize()
            with torch.no_grad():
                their_average[name].mul_(0.9).add_(0.1 * named[name])
    equal(ours, theirs)
    for name, mean in average.items():
        close(mean, their_average[name])
