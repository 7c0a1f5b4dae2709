"""What users of PyTorch do with a compiled function, beside eager: indices, modules, derivatives, arguments,
results, memory, threads, errors, random numbers."""
from __future__ import annotations

import copy
import io
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

from .beside_eager import Compile, ProgramTable, gives_what_eager_gives, of_parameters, through_tinygrad  # noqa: E402

PROGRAMS = ProgramTable()
program = PROGRAMS.enter


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_eager_gives(name: str) -> None:
    gives_what_eager_gives(PROGRAMS[name])


# --- indices and masks ------------------------------------------------------------------------------------


@program
def writes_by_mask_and_index(compile: Compile) -> Any:
    @compile
    def change(x: Any, mask: Any, rows: Any, values: Any) -> Any:
        x = x.sin()
        x[mask] = values
        x[rows] += 2
        x[:, 1] = x[:, 0] * 3
        x[x > 2.5] = 0
        x[1:3] = x[:2].clone()
        return x.index_put((rows,), values.sum(), accumulate=True)

    x, mask, rows = torch.randn(5, 4, requires_grad=True), torch.eye(5, 4) > 0, torch.tensor([0, 2, 4])
    values = torch.randn(4, requires_grad=True)
    y = change(x, mask, rows, values)
    y.cos().sum().backward()
    return y, x.grad, values.grad


@program
def messages_along_edges(compile: Compile) -> Any:
    layer = nn.Linear(4, 4)

    @compile
    def spread(x: Any, edges: Any) -> Any:
        source, target = edges
        count = torch.zeros(len(x)).scatter_add(0, target, torch.ones(len(target))).clamp(min=1)
        total = torch.zeros_like(x).index_add_(0, target, layer(x)[source])
        largest = torch.zeros_like(x).scatter_reduce(0, target[:, None].expand(-1, 4), x[source], "amax")
        return total / count[:, None] + largest

    x = torch.randn(6, 4, requires_grad=True)
    y = spread(x, torch.randint(6, (2, 15)))
    y.square().sum().backward()
    return y, x.grad, layer.weight.grad


@program
def experts_chosen_by_values(compile: Compile) -> Any:
    experts, gate = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 3)

    @compile
    def run(x: Any) -> Any:
        share, chosen = gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows = torch.where(chosen == number)[0]
            y = y.index_add(0, rows, expert(x[rows]) * share[rows, None])
        return y, F.one_hot(chosen, 3).sum(0)

    y, counts = run(torch.randn(10, 8))
    y.square().sum().backward()
    return y, counts, of_parameters(experts)


@program
def bags_of_words(compile: Compile) -> Any:
    bags = nn.ModuleList(nn.EmbeddingBag(10, 4, mode=mode) for mode in ("mean", "sum", "max"))
    run = compile(lambda words, begins: sum(bag(words, begins) for bag in bags))
    y = run(torch.randint(10, (8,)), torch.tensor([0, 2, 2, 5]))
    y.square().sum().backward()
    return y, of_parameters(bags)


@program
def a_queue_in_a_buffer(compile: Compile) -> Any:
    queue, place = torch.zeros(8, 4), torch.zeros(1, dtype=torch.long)

    @compile
    def put(keys: Any) -> Any:
        begin = int(place)
        queue[begin:begin + len(keys)] = keys
        place[0] = (begin + len(keys)) % 8
        return queue @ keys.T

    return [put(torch.randn(2, 4)) for _ in range(5)], queue, place


# --- modules ----------------------------------------------------------------------------------------------


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.count += 1
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return x - self.mean
        return self.drop(x) - self.mean


@program
def training_and_evaluation_in_turns(compile: Compile) -> Any:
    model = Running()
    run, found = compile(model), []
    for training in (True, True, False, True, False):
        run.train(training)
        found.append(run(torch.randn(5, 4)))
    with torch.inference_mode():
        found.append(run(torch.ones(2, 4)).clone())
    return found, model.state_dict()


@program
def hooks(compile: Compile) -> Any:
    model, seen = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), []
    model[0].register_forward_hook(lambda module, given, result: seen.append(result.detach().clone()))
    model[2].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model[2].weight.register_hook(lambda gradient: gradient * 3)
    model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0] * 0.5,))
    compile(model)(torch.randn(3, 4)).sum().backward()
    return seen, of_parameters(model)


class Symmetric(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight.triu() + weight.triu(1).T


@program
def weights_of_parameters(compile: Compile) -> Any:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(),
                          parametrizations.spectral_norm(nn.Linear(6, 5)), nn.Linear(5, 5))
    parametrize.register_parametrization(model[3], "weight", Symmetric())
    run = compile(model)
    for _ in range(2):
        run(torch.randn(3, 4)).square().sum().backward()
    return of_parameters(model), model.eval()(torch.ones(1, 4))


@program
def states_saved_and_loaded(compile: Compile) -> Any:
    model, other = (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)) for _ in range(2))
    run, x, file = compile(model), torch.randn(6, 4), io.BytesIO()
    run(x)
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    twin = copy.deepcopy(run)
    with torch.no_grad():
        model[0].weight.zero_()
    return run(x), compile(other)(x), twin(x)


@program
def parameters_that_are_replaced(compile: Compile) -> Any:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    run = compile(model)
    found = [run(x)]
    model.weight = nn.Parameter(torch.randn(3, 4))
    found.append(run(x))
    model.weight.data = torch.randn(4, 3).t()
    found.append(run(x))
    model.float()
    return [*found, run(x.float())]


@program
def parameters_of_two_compiled_functions(compile: Compile) -> Any:
    words = nn.Embedding(7, 4)
    encode, decode = compile(lambda ids: words(ids).mean(1)), compile(lambda x: x @ words.weight.T)
    for _ in range(2):
        F.cross_entropy(decode(encode(torch.randint(7, (3, 5)))), torch.randint(7, (3,))).backward()
    return words.weight.grad


# --- derivatives ------------------------------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of a clamp."""

    @staticmethod
    def forward(ctx: Any, x: Any, bound: float) -> Any:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * (ctx.saved_tensors[0].abs() < ctx.bound), None


@program
def a_gradient_of_ones_own(compile: Compile) -> Any:
    x = torch.randn(20, requires_grad=True)
    y = compile(lambda x: Rounded.apply(x * 3, 2.0) / 4)(x)
    (y * torch.arange(20)).sum().backward()
    return y, x.grad


@program
def a_penalty_of_gradients(compile: Compile) -> Any:
    judge = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))

    @compile
    def penalty(parameters: Any, x: Any) -> Any:
        found = grad(lambda x: functional_call(judge, parameters, (x,)).sum())(x)
        return ((found.norm(dim=1) - 1) ** 2).mean()

    penalty(dict(judge.named_parameters()), torch.randn(5, 4)).backward()
    return of_parameters(judge)


@program
def gradients_of_each_sample(compile: Compile) -> Any:
    model = nn.Linear(4, 3)

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    run = compile(lambda p, x, y: vmap(grad(loss), (None, 0, 0))(p, x, y))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return run(parameters, torch.randn(5, 4), torch.randint(3, (5,)))


@program
def higher_derivatives(compile: Compile) -> Any:
    def function(x: Any) -> Any:
        return (x ** 3).sum() + x.prod() + x.tanh().cumsum(0).sum()

    x = torch.randn(4)
    return compile(lambda x: (hessian(function)(x), jvp(function, (x,), (x,))[1],
                              jacrev(lambda x: x.sin() * x.sum())(x)))(x)


@program
def a_loop_over_gradients_of_the_input(compile: Compile) -> Any:
    energy, x = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1)), torch.randn(5, 2)
    run = compile(energy)
    for _ in range(3):
        x = x.detach().requires_grad_()
        x = x - 0.1 * torch.autograd.grad(run(x).sum(), x)[0] + 0.01 * torch.randn(5, 2)
    return x


# --- calls ------------------------------------------------------------------------------------------------


@dataclass
class Output:
    loss: Any
    more: dict[str, Any]


@program
def structures(compile: Compile) -> Any:
    @compile
    def run(x: Any, given: Any, *, scale: Any = 1.0, flag: Any = None) -> Any:
        more = {"y": [x + given["a"], (x, 3, None, "s")], "z": given["b"][0] * 2}
        found = Output(x.sum() * scale, more)
        return found.loss, found.more, x.shape, x.dtype, x.numel(), flag

    x = torch.randn(3)
    given = {"a": torch.ones(3), "b": (x,)}
    return run(x, given, scale=2.5, flag=True), run(x, given, scale=torch.tensor(3.0))


@program
def branches_on_values(compile: Compile) -> Any:
    @compile
    def run(x: Any) -> Any:
        y = x * 2
        if y.sum() > 0:
            return y.relu(), "positive"
        return [item.item() for item in y], f"{float(y.max()):.3f}"

    return [run(torch.randn(4)) for _ in range(4)]


@program
def memory_that_is_shared(compile: Compile) -> Any:
    @compile
    def run(x: Any, y: Any, names: Any) -> Any:
        x.mul_(2)
        y[0] = x[1]
        names["new"] = x + 1
        part = x[2:]
        part.add_(10)
        return part, x.view(2, 3), x, (x * 3).unbind()[0]

    x, names = torch.arange(6.0), {}
    found = run(x, x[3:], names)
    x += 1
    found[1][0, 0] = 50
    return found, x, names, found[2] is x


@program
def tensors_of_any_layout_and_of_no_items(compile: Compile) -> Any:
    @compile
    def run(x: Any, w: Any) -> Any:
        return (x @ w.t()).relu() + x.sum(1, keepdim=True), torch.cat([x, x]), x.reshape(-1, 2)

    b, none = torch.randn(12, 12), torch.zeros(0, 6, requires_grad=True)
    pairs = [(b[:4, :6], b[:4, 6:]), (b[::2, ::2], b[1::2, ::2]), (b.t()[:4, :6], b[:4, :6]),
             (b[0, :6].expand(3, 6), b[:3, 1:7]), (b[:0, :6], b[:3, :6])]
    run(none, b[:3, :6])[0].sum().backward()
    return [run(x, w) for x, w in pairs], none.grad


@program
def numbers_of_all_widths(compile: Compile) -> Any:
    @compile
    def run(x: Any, i: Any) -> Any:
        return (x.softmax(-1), x @ x.t(), x.var(0), x.double(), i // 3, i % 3, i << 2, ~i, x * i, i.sum(),
                i.float().mean(), (i > 2).any(), torch.where(i > 2, i, 0), i ** 2, i.to(torch.int8) * 100)

    found = [run(torch.arange(12.0, dtype=x).view(3, 4).sin(), torch.arange(4).to(i))
             for x in (torch.float32, torch.float64) for i in (torch.int64, torch.int32, torch.uint8)]
    halves = run(torch.ones(3, 4, dtype=torch.bfloat16), torch.arange(4))
    return found, [item.dtype for item in halves]


@program
def numbers_beyond_those_of_narrow_integers(compile: Compile) -> Any:
    """They wrap, wherever they stand beside a tensor, and so do floats that become such."""
    @compile
    def run(x: Any, floats: Any) -> Any:
        lower, large = -2, 300
        return (x + lower, lower - x, x * large, x // lower, x % lower, torch.fmod(x, lower), x.clamp(min=-1),
                x.clamp(lower, 3), x.clamp(max=-1), x < -1, x <= -1, x > -1, x >= -1, x == 257, x != 257,
                large ** x, x << large, torch.arange(-3, 3, dtype=x.dtype), floats.to(x.dtype),
                x.clone().copy_(floats), x == 1.5, (x > 2) * lower)

    floats = torch.tensor([-1.0, 300.0, -2.7, 40000.5, 7.0])
    return [run(torch.arange(1, 6).to(kind), floats) for kind in (torch.uint8, torch.int8, torch.int16)]


@program
def densities_of_gamma_functions(compile: Compile) -> Any:
    """With warnings as errors: none of it is PyTorch's to run."""
    at = torch.tensor([0.0, -0.0, -3.0, 170.5, 1e17, -1e17, torch.inf, -torch.inf, torch.nan])
    x, inside = torch.cat([torch.linspace(-4.75, 20, 34), at]), torch.rand(6)
    a, b = ((torch.rand(6) + 0.2).requires_grad_() for _ in range(2))
    run = compile(lambda x, y: [x.lgamma(), x.digamma(), torch.polygamma(0, x), y.erfinv(), (y * 2).erfinv()])
    higher = compile(lambda x: [torch.polygamma(n, x) for n in (1, 2, 5)])

    @compile
    def density(a: Any, b: Any) -> Any:
        kinds = (torch.distributions.Beta(a, b), torch.distributions.Gamma(a, b),
                 torch.distributions.StudentT(a + 1))
        return (sum(kind.log_prob(inside).sum() for kind in kinds) + kinds[1].entropy().square().sum()
                + torch.distributions.kl_divergence(kinds[0], torch.distributions.Beta(b, a)).sum())

    with warnings.catch_warnings(action="error"):
        density(a, b).backward()
        tails = 1 - torch.logspace(-16, -1, 16)
        found = run(x, torch.cat([tails, -tails, inside, torch.tensor([1.0, -1.0, 0.0, torch.nan])]))
        return found, higher(torch.tensor([-3.7, -0.3, 0.01, 0.6, 5.0, 70.0])), a.grad, b.grad


@program
def threads_that_train(compile: Compile) -> Any:
    run, x, found = compile(lambda w, x: (w * x).tanh().sum()), torch.randn(6, 20), [None] * 6
    weight = torch.randn(20)

    def work(i: int) -> None:
        own = weight.clone().requires_grad_()
        run(own, x[i]).backward()
        found[i] = own.grad

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@program
def images_cut_padded_and_resized(compile: Compile) -> Any:
    @compile
    def run(x: Any) -> Any:
        patches = x.unfold(2, 3, 3).unfold(3, 3, 3).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        columns = F.unfold(x, 3, padding=1, stride=2)
        return (patches, F.fold(columns, (6, 6), 3, padding=1, stride=2), x.roll((1, 2), (2, 3)),
                F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2), F.pad(x, (1, 2, 0, 1), mode="reflect"),
                F.pad(x, (-1, 1, 2, -2), value=3.0), F.interpolate(x, scale_factor=2),
                F.interpolate(x, size=(7, 5), mode="bilinear"))

    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    found = run(x)
    torch.stack([y.square().sum() for y in found]).sum().backward()
    return found, x.grad


@program
def values_that_are_equal_are_written_into(compile: Compile) -> Any:
    """Gradients of two biases that are one sum lay in the same memory: what was added to one was added to the
    other, and clipping scaled both twice."""
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 7), nn.Linear(5, 7)

        def forward(self, x: Any) -> Any:
            return (self.first(x) + self.second(x)).tanh()

    layers, twice, found = Sum(), compile(lambda x: (x + 1, (x * 2).sum(0), x + 1)), []
    run, x = compile(layers), torch.randn(3, 5)
    for _ in range(4):
        run(x).square().sum().backward()
        nn.utils.clip_grad_norm_(layers.parameters(), 0.1)
        first, _, second = twice(x)
        first += 5
        found += [first, second]
    return found, of_parameters(layers)


@program
def spectra(compile: Compile) -> Any:
    weight = nn.Parameter(torch.randn(3, 5, dtype=torch.complex128))
    x = torch.randn(2, 3, 8)
    y = compile(lambda x: torch.fft.irfft(torch.fft.rfft(x) * weight, n=8).relu())(x)
    y.square().sum().backward()
    return y, weight.grad


def kind_of_error(run: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(Exception) as raised:
        run(*args)
    return next(kind.__name__ for kind in (IndexError, AttributeError, ZeroDivisionError, RuntimeError)
                if isinstance(raised.value, kind))


@program
def errors(compile: Compile) -> Any:
    layer, x = compile(nn.Linear(3, 2)), torch.ones(2, 3)
    wrong = [lambda x: x.view(7, 7), lambda x: x.long().softmax(0), lambda x: x + torch.ones(5),
             lambda x: x.bmm(x), lambda x: x.long() @ x.t(), lambda x: 1 / 0]
    return ([kind_of_error(layer, x) for x in (torch.ones(2, 4), x.long(), x.float())] +
            [kind_of_error(compile(function), x) for function in wrong] + [kind_of_error(layer(x).backward)])


# --- random numbers, which are not eager's ----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_random_numbers_are_distributed_as_asked_and_repeated_by_the_seed() -> None:
    @through_tinygrad
    def draw() -> Any:
        return (torch.randn(2000), torch.rand(2000), torch.randint(5, (2000,)), torch.randperm(50),
                torch.bernoulli(torch.full((2000,), 0.3)), torch.normal(1.0, 2.0, (2000,)),
                torch.empty(2000).exponential_(2.0), torch.empty(2000).uniform_(-1, 1),
                torch.distributions.Categorical(logits=torch.arange(3.0)).sample((2000,)),
                F.gumbel_softmax(torch.zeros(400, 5), hard=True))

    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(draw())
    assert all(map(torch.equal, *results[:2]))
    assert not any(map(torch.equal, *results[1:]))
    normal, uniform, whole, order, coins, wide, waits, even, chosen, hard = results[0]
    assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.04
    assert whole.unique().tolist() == [0, 1, 2, 3, 4] and torch.equal(order.sort()[0], torch.arange(50))
    assert abs(coins.mean() - 0.3) < 0.05 and abs(wide.mean() - 1) < 0.2 and abs(wide.std() - 2) < 0.2
    assert abs(waits.mean() - 0.5) < 0.06 and -1 <= even.min() < -0.98 and 0.98 < even.max() <= 1
    shares = torch.bincount(chosen) / 2000
    torch.testing.assert_close(shares, torch.arange(3.0).softmax(0), rtol=0, atol=0.05)
    assert torch.equal(hard.sum(-1), torch.ones(400)) and ((hard == 0) | (hard == 1)).all()


def test_memory_of_large_results_is_taken_again() -> None:
    """What a call returned and nobody holds any more is what the next call returns; what somebody holds is
    not, nor is a view of it."""
    through = torch.compile(lambda x: x * 2, backend="tinygrad")
    x = torch.arange(300 * 700, dtype=torch.float32).reshape(300, 700)
    first = through(x)
    place = first.data_ptr()
    row = first[5]
    del first
    second = through(x + 1)
    assert second.data_ptr() != place and torch.equal(row, 2 * x[5])
    del row
    third = through(x + 2)
    assert third.data_ptr() == place
    assert torch.equal(third, 2 * (x + 2)) and torch.equal(second, 2 * (x + 1))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads that Linux lists")
def test_long_calls_end_the_threads_of_pytorch_that_wait() -> None:
    """They would wait in a loop, on a core that kernels could have. PyTorch's operators begin them again."""
    through = torch.compile(lambda x, y: x @ y, backend="tinygrad")
    x, count = torch.rand(1000, 1000), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(3):
            through(x, x)
        without = len(os.listdir("/proc/self/task"))
        eager = x.sin().sum()
        threads = len(os.listdir("/proc/self/task"))
        if threads == without:
            pytest.skip("PyTorch computes with one thread")
        torch.testing.assert_close(through(x, x), x @ x, rtol=1e-4, atol=1e-3)
        through(x, x)
        assert len(os.listdir("/proc/self/task")) == without
        assert torch.equal(x.sin().sum(), eager)
    finally:
        torch.set_num_threads(count)
