"""Small programs as users of PyTorch write them, beside eager: training loops, losses, sequences."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from .beside_eager import Compile, ProgramTable, gives_what_eager_gives, of_parameters  # noqa: E402

PROGRAMS = ProgramTable()
program = PROGRAMS.enter


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_eager_gives(name: str) -> None:
    gives_what_eager_gives(PROGRAMS[name])


def trained(compile: Compile, model: nn.Module, batches: list[Any], optimizer: torch.optim.Optimizer,
            after: Callable[[], None] = lambda: None) -> Any:
    """A training loop as tutorials have it: the losses, and the state at the end."""
    run = compile(model)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        losses.append((loss.detach(), nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        after()
    return losses, model.state_dict()


# --- training ---------------------------------------------------------------------------------------------


@program
def a_loop_with_a_scheduler_and_clipping(compile: Compile) -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    batches = [(torch.randn(10, 8), torch.randint(3, (10,))) for _ in range(4)]
    return trained(compile, model, batches, optimizer, schedule.step)


@program
def a_loader_whose_last_batch_is_smaller(compile: Compile) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(19, 4), torch.randint(2, (19,)))
    loader = torch.utils.data.DataLoader(data, 8, num_workers=1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return trained(compile, model, [*loader, *loader], torch.optim.SGD(model.parameters(), 0.1))


@program
def images_of_any_batch(compile: Compile) -> Any:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(4, 2))
    batches = [(torch.randn(n, 1, 6, 6), torch.randint(2, (n,))) for n in (8, 7, 5, 8)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return trained(lambda model: compile(model, dynamic=True), model, batches, optimizer)


@program
def a_whole_step_compiled(compile: Compile) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    @compile
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return [step(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(3)], model.state_dict()


@program
def gradients_accumulated(compile: Compile) -> Any:
    model = nn.Linear(4, 3)
    run, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
    for i in range(4):
        (run(torch.randn(5, 4)).square().mean() / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=i == 1)
    return model.state_dict(), model.weight.grad


@program
def moving_averages_of_weights(compile: Compile) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    average, of_lists = copy.deepcopy(model), [p.detach().clone() for p in model.parameters()]

    @compile
    @torch.no_grad()
    def update(decay: float) -> None:
        for mean, new in zip(average.parameters(), model.parameters(), strict=True):
            mean.mul_(decay).add_(new, alpha=1 - decay)
        for mean, new in zip(average.buffers(), model.buffers(), strict=True):
            mean.copy_(new)
        torch._foreach_lerp_(of_lists, list(model.parameters()), 0.1)

    for _ in range(3):
        model(torch.randn(5, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        update(0.9)
    return average.state_dict(), of_lists


@program
def an_adversary_and_two_optimizers(compile: Compile) -> Any:
    maker = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 4))
    judge = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    make, rate = compile(maker), compile(judge)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (maker, judge)]
    for _ in range(2):
        made = make(torch.randn(6, 3))
        optimizers[1].zero_grad()
        (F.softplus(-rate(torch.randn(6, 4))) + F.softplus(rate(made.detach()))).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.softplus(-rate(made)).mean().backward()
        optimizers[0].step()
    return maker.state_dict(), judge.state_dict()


@program
def a_scaler_that_skips_a_step(compile: Compile) -> Any:
    model = nn.Linear(4, 3)
    run, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(run(torch.randn(5, 4)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict(), scaler.get_scale()


@program
def second_order_optimizer(compile: Compile) -> Any:
    model = nn.Linear(3, 1)
    run, optimizer = compile(model), torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = torch.randn(10, 3), torch.randn(10, 1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(run(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure).detach(), model.state_dict()


# --- losses -----------------------------------------------------------------------------------------------


@program
def losses(compile: Compile) -> Any:
    @compile
    def each(x: Any, y: Any, t: Any, b: Any) -> Any:
        p = x.log_softmax(-1)
        focal = (1 - p.exp().gather(1, t[:, None])) ** 2 * -p.gather(1, t[:, None])
        dice = 1 - 2 * (x.sigmoid() * b).sum() / (x.sigmoid() + b).sum()
        return [F.smooth_l1_loss(x, y, beta=0.5), F.huber_loss(x, y), focal.mean(), dice,
                F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=2), F.cross_entropy(x, y.softmax(-1)),
                F.cross_entropy(x, t, weight=torch.arange(1.0, 6.0)), F.nll_loss(p, t, reduction="none"),
                F.binary_cross_entropy_with_logits(x, b, pos_weight=torch.full((5,), 2.0)),
                F.kl_div(p, y.log_softmax(-1), log_target=True, reduction="batchmean"),
                F.margin_ranking_loss(x, y, b * 2 - 1), F.triplet_margin_loss(x, y, x.flip(0)),
                F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, -1]), margin=0.1),
                F.poisson_nll_loss(x, b * 3, full=True), F.gaussian_nll_loss(x, y, y.exp())]

    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
    found = each(x, y, torch.tensor([0, 3, 2, 4]), (torch.rand(4, 5) > 0.5).to(x))
    torch.stack([loss.sum() for loss in found]).dot(torch.arange(len(found)) + 1.0).backward()
    return found, x.grad


@program
def losses_of_several_labels(compile: Compile) -> Any:
    """Labels end at the first -1, and may be there twice."""
    labels = torch.tensor([[0, 2, -1, 0, 0], [1, 1, 3, -1, -1], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4]])
    loss = compile(lambda x, **how: F.multilabel_margin_loss(x, labels, **how))
    x = torch.randn(4, 5, requires_grad=True)
    found = [loss(x), loss(x, reduction="none"), loss(x, size_average=False), loss(x, reduction="sum"),
             compile(nn.MultiLabelMarginLoss())(x[1], labels[1])]
    torch.stack([y.sum() for y in found]).dot(torch.arange(len(found)) + 1.0).backward()
    return found, x.grad


@program
def losses_of_sorted_and_summed_items(compile: Compile) -> Any:
    @compile
    def loss(x: Any) -> Any:
        ordered, places = x.sort(descending=True)
        running = (ordered.cumsum(-1), x.logcumsumexp(-1), x.gather(1, places.flip(1)).cumprod(-1))
        ranked = (x.topk(3, -1)[0], x.kthvalue(2)[0], x.cummax(-1)[0], x.median(), x.quantile(0.3))
        return sum(y.mean() for y in running) + sum(y.sum() for y in ranked)

    x = torch.randn(4, 10, requires_grad=True)
    loss(x).backward()
    return x.grad


@program
def contrasts_of_pairs(compile: Compile) -> Any:
    encode, temperature = nn.Linear(6, 4), nn.Parameter(torch.tensor(2.0))

    @compile
    def loss(a: Any, b: Any) -> Any:
        x, y = F.normalize(encode(a), dim=-1), F.normalize(encode(b), dim=-1)
        both, n = torch.cat([x, y]), len(a)
        alike = both @ both.T * temperature.exp()
        alike.fill_diagonal_(float("-inf"))
        return F.cross_entropy(alike, (torch.arange(2 * n) + n) % (2 * n))

    found = loss(torch.randn(5, 6), torch.randn(5, 6))
    found.backward()
    return found, encode.weight.grad, temperature.grad


@program
def a_student_and_a_frozen_teacher(compile: Compile) -> Any:
    teacher, student = nn.Linear(6, 4).requires_grad_(False), nn.Linear(6, 4)

    @compile
    def loss(x: Any, y: Any) -> Any:
        with torch.no_grad():
            target = teacher(x)
        found = student(x)
        soft = F.kl_div((found / 2).log_softmax(-1), (target / 2).softmax(-1), reduction="batchmean")
        return soft * 4 + F.cross_entropy(found, y)

    loss(torch.randn(5, 6), torch.randint(4, (5,))).backward()
    return student.weight.grad, teacher.weight.grad


@program
def a_variational_autoencoder(compile: Compile) -> Any:
    encode, decode = nn.Linear(8, 6), nn.Linear(3, 8)

    @compile
    def loss(x: Any, noise: Any) -> Any:
        mean, logarithm = encode(x).chunk(2, -1)
        y = decode(mean + noise * (logarithm / 2).exp())
        divergence = -0.5 * (1 + logarithm - mean ** 2 - logarithm.exp()).sum()
        return F.binary_cross_entropy_with_logits(y, x, reduction="sum") + divergence

    loss(torch.rand(5, 8), torch.randn(5, 3)).backward()
    return of_parameters(encode), of_parameters(decode)


@program
def a_step_of_diffusion(compile: Compile) -> Any:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(),
                        nn.Conv2d(4, 1, 3, padding=1))
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)

    @compile
    def loss(x: Any, t: Any, noise: Any) -> Any:
        share = kept[t].view(-1, 1, 1, 1)
        return F.mse_loss(net(share.sqrt() * x + (1 - share).sqrt() * noise), noise)

    loss(torch.randn(4, 1, 8, 8), torch.randint(50, (4,)), torch.randn(4, 1, 8, 8)).backward()
    return of_parameters(net)


@program
def policy_gradients(compile: Compile) -> Any:
    policy, value = nn.Linear(4, 3), nn.Linear(4, 1)

    @compile
    def loss(seen: Any, action: Any, reward: Any) -> Any:
        chosen = torch.distributions.Categorical(logits=policy(seen))
        returns, total = [], torch.zeros(())
        for t in reversed(range(reward.shape[0])):
            total = reward[t] + 0.9 * total
            returns.insert(0, total)
        advantage = torch.stack(returns) - value(seen).squeeze(-1)
        ratio = (chosen.log_prob(action) - chosen.log_prob(action).detach()).exp()
        clipped = torch.min(ratio * advantage.detach(), ratio.clamp(0.8, 1.2) * advantage.detach())
        return advantage.pow(2).mean() - clipped.mean() - 0.01 * chosen.entropy().mean()

    loss(torch.randn(6, 4), torch.randint(3, (6,)), torch.randn(6)).backward()
    return policy.weight.grad, value.weight.grad


@program
def a_hard_choice_with_a_soft_gradient(compile: Compile) -> Any:
    @compile
    def choose(x: Any, u: Any) -> Any:
        soft = ((x - (-u.log()).log()) / 0.5).softmax(-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        return hard - soft.detach() + soft

    x = torch.randn(4, 5, requires_grad=True)
    y = choose(x, torch.rand(4, 5))
    (y * torch.arange(5)).sum().backward()
    return y, x.grad


# --- sequences --------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """A layer of causal attention with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(32, 16)
        self.inner, self.last = nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, ids: Any, past: Any = None) -> Any:
        before = 0 if past is None else past[0].shape[2]
        x = self.words(ids) + self.places(torch.arange(before, before + ids.shape[1]))
        q, k, v = self.inner(x).view(*ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.last(x + y.transpose(1, 2).flatten(2)), (k, v)


@program
def words_generated_with_a_cache(compile: Compile) -> Any:
    run, ids = compile(Decoder()), [torch.randint(20, (2, 5))]
    with torch.no_grad():
        logits, past = run(ids[0])
        for _ in range(7):
            ids.append(logits[:, -1].argmax(-1, keepdim=True))
            logits, past = run(ids[-1], past)
    return ids, logits


@program
def words_generated_without_a_cache(compile: Compile) -> Any:
    run, ids = compile(Decoder(), dynamic=True), torch.randint(20, (2, 3))
    with torch.no_grad():
        for _ in range(7):
            ids = torch.cat([ids, run(ids)[0][:, -1:].argmax(-1)], 1)
    return ids


@program
def words_to_learn_are_shifted(compile: Compile) -> Any:
    model = Decoder()
    run = compile(lambda ids: F.cross_entropy(model(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten()),
                  dynamic=True)
    found = [run(torch.randint(20, (2, n))) for n in (6, 9, 5)]
    torch.stack(found).sum().backward()
    return found, of_parameters(model)


@program
def a_cache_of_known_size(compile: Compile) -> Any:
    cache, weight = torch.zeros(2, 16, 4), torch.randn(4, 4)

    @compile
    def step(x: Any, place: Any) -> Any:
        cache.index_copy_(1, place, (x @ weight).unsqueeze(1))
        seen = torch.arange(16) <= place
        scores = (x.unsqueeze(1) @ cache.transpose(1, 2)).masked_fill(~seen, float("-inf"))
        return (scores.softmax(-1) @ cache).squeeze(1)

    return [step(torch.randn(2, 4), torch.tensor([i])) for i in range(4)], cache


@program
def the_best_of_several_beams(compile: Compile) -> Any:
    table = torch.randn(6, 6)
    step = compile(lambda word, score: (table[word].log_softmax(-1) + score[:, None]).view(-1).topk(3))
    word, score, found = torch.zeros(3, dtype=torch.long), torch.tensor([0.0, -1e9, -1e9]), []
    for _ in range(4):
        score, place = step(word, score)
        word = place % 6
        found.append(place // 6)
    return score, found


@program
def words_drawn_of_the_likely_ones(compile: Compile) -> Any:
    @compile
    def draw(logits: Any, u: Any) -> Any:
        logits = logits.masked_fill(logits < logits.topk(5)[0][:, -1:], -torch.inf)
        ordered, places = logits.sort(descending=True)
        share = ordered.softmax(-1)
        dropped = share.cumsum(-1) - share > 0.8
        logits = logits.masked_fill(dropped.scatter(1, places, dropped), -torch.inf)
        return (logits.softmax(-1).cumsum(-1) < u).sum(-1)

    return draw(torch.randn(4, 10), torch.rand(4, 1))


@program
def turned_queries(compile: Compile) -> Any:
    @compile
    def turn(q: Any) -> Any:
        angles = torch.outer(torch.arange(q.shape[-2]), 1 / 10000 ** (torch.arange(0, 8, 2) / 8)).to(q)
        sin, cos = angles.sin(), angles.cos()
        x, y = q[..., ::2], q[..., 1::2]
        pairs = torch.stack([x * cos - y * sin, x * sin + y * cos], -1)
        halves = torch.cat([-q[..., 4:], q[..., :4]], -1)
        return pairs.flatten(-2) + halves * torch.cat([sin, sin], -1)

    q = torch.randn(2, 3, 6, 8, requires_grad=True)
    y = turn(q)
    (y ** 3).sum().backward()
    return y, q.grad


@program
def recurrent_layers(compile: Compile) -> Any:
    layers = nn.ModuleList([nn.LSTM(4, 5, bidirectional=True), nn.GRU(10, 3), nn.LSTMCell(3, 3),
                            nn.GRUCell(3, 2)])

    @compile
    def run(x: Any) -> Any:
        x = layers[1](layers[0](x)[0])[0]
        cell, state = (torch.zeros(x.shape[1], 3),) * 2, torch.zeros(x.shape[1], 2)
        for item in x:
            cell = layers[2](item, cell)
            state = layers[3](cell[0], state)
        return cell[1].sum() + state.square().sum()

    found = run(torch.randn(4, 3, 4))
    found.backward()
    return found, of_parameters(layers)


@program
def a_decoder_that_stops_by_itself(compile: Compile) -> Any:
    cell, words, last = nn.GRUCell(4, 6), nn.Embedding(7, 4), nn.Linear(6, 7)

    @compile
    def decode(state: Any) -> Any:
        word, likelihood, n = torch.zeros(1, dtype=torch.long), torch.zeros(()), 0
        while n < 4:
            state = cell(words(word), state)
            logits = last(state).log_softmax(-1)
            likelihood, word = likelihood + logits.max(), logits.argmax(-1)
            if word.item() == 3:
                break
            n += 1
        return likelihood, n

    found, n = decode(torch.randn(1, 6))
    found.backward()
    return found, n, of_parameters(cell)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = (x * 2).to(dtype)
        return small, small.clone().reshape(3, 4).t(), small.float() + 1, (x.sum() * 100).to(dtype)

    x = torch.tensor([0.1, -3.3, 447.9, 500, -1e5, math.inf, -math.inf, math.nan, 1e-3, -0.0, 17, 2.0 ** -9])
    compiled = torch.compile(program, backend="tinygrad", fullgraph=True)
    for _ in range(3):
        for ours, theirs in zip(compiled(x), program(x), strict=True):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=0, equal_nan=True)
