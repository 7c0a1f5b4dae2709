"""Training steps without a JIT, as a person's first programs have them: small networks, Adam, the loss read
in each step. What they cost is what it costs to build, differentiate and schedule a graph again and again.
In three rows numbers that Python computes are others in each step, in three the sizes of what is computed."""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.workloads.base import Step, Workload, both_tinygrads, normals
from bench.workloads.overhead import layer_norm, transformer_block

Shapes = Sequence[tuple[int, ...]]
BLOCK: Shapes = ((64,), (64,), *[(64, 64)] * 4, (64, 256), (256, 64))
"""the weights of a transformer block, 64 wide"""
PERCEPTRON: Shapes = ((64, 128), (128, 128), (128, 10))


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Of rows, with labels that are one where the class is."""
    return (logits.log_softmax(-1) * labels).sum() * (-1 / logits.shape[0])


def perceptron(x: Any, labels: Any, *weights: Any) -> Any:
    for weight in weights[:-1]:
        x = (x @ weight).relu()
    return cross_entropy(x @ weights[-1], labels)


def transformer(x: Any, labels: Any, *weights: Any) -> Any:
    """Three blocks over one text, x (tokens, 64), and the loss of its next tokens."""
    for i in range(3):
        x = transformer_block(x, *weights[len(BLOCK) * i:len(BLOCK) * (i + 1)])
    return cross_entropy(layer_norm(x, *weights[-3:-1]) @ weights[-1], labels)


def lstm(x: Any, labels: Any, enter: Any, stay: Any, bias: Any, out: Any) -> Any:
    """A sequence step by step, x (rows, steps, inputs), by cells written out; the loss of the last state."""
    h = c = None
    for i in range(x.shape[1]):
        gates = x[:, i] @ enter + bias
        a, b, cell, shown = (gates if h is None else gates + h @ stay).chunk(4, 1)
        new = a.sigmoid() * cell.tanh()
        c = new if c is None else b.sigmoid() * c + new
        h = shown.sigmoid() * c.tanh()
    return cross_entropy(h @ out, labels)


def episode() -> Callable[..., Any]:
    """A loss of policy gradients: five rows of x, each with an action that was drawn and its reward."""
    chance = random.Random(0)

    def loss(x: Any, labels: Any, enter: Any, out: Any) -> Any:
        total = 0.0
        for _ in range(5):
            row = chance.randrange(x.shape[0])
            chances = ((x[row:row + 1] @ enter).tanh() @ out).log_softmax(-1)
            total = total - chances[0, chance.randrange(labels.shape[1])] * chance.uniform(-1, 1)
        return total

    return loss


class AdamByHand:
    """Adam as the paper says it, at a rate that falls step by step, on either library's tensors."""

    def __init__(self, library: Any, parameters: list[Any], lr: float) -> None:
        self.no_grad, self.parameters, self.lr, self.steps = library.no_grad, parameters, lr, 0
        with self.no_grad():
            self.means, self.squares = ([p * 0.0 for p in parameters] for _ in range(2))

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        self.steps += 1
        rate = self.lr / (1 + 0.01 * self.steps)
        first, second = 1 - 0.9 ** self.steps, 1 - 0.999 ** self.steps
        with self.no_grad():
            for p, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
                mean.copy_(0.9 * mean + 0.1 * p.grad)
                square.copy_(0.999 * square + 0.001 * p.grad * p.grad)
                p.copy_(p - rate * (mean / first) / ((square / second).sqrt() + 1e-8))


def updated(updates: Any, loss_now: Callable[[], Any]) -> Step:
    """A step of either library's optimizer, which reads the loss."""
    def step() -> Any:
        updates.zero_grad()
        loss = loss_now()
        loss.backward()
        updates.step()
        return np.float32(loss.item())

    return step


def step_of(name: str, make_loss: Callable[[], Callable[..., Any]], data: tuple[int, ...], classes: int,
            weights: Shapes, by_hand: bool = False, least_rows: int = 0) -> Workload:
    """A step of Adam on weights of these shapes, by a loss as both libraries take it. Each step takes so many
    of the rows of data as are drawn, from `least_rows` on, where that is given."""
    inputs, *values = normals([data, *weights])
    rows = data[0]
    labels = np.eye(classes, dtype=np.float32)[np.arange(rows) % classes]
    begun = [value / max(1, value.shape[0]) ** 0.5 for value in values]

    def ours() -> Step:
        from tinygrad import Tensor
        from tinygrad.nn.optim import Adam

        x, y = (Tensor(array, requires_grad=False).realize() for array in (inputs, labels))
        parameters = [Tensor(array, requires_grad=True).realize() for array in begun]
        updates = AdamByHand(Tensor, parameters, 1e-3) if by_hand else Adam(parameters, lr=1e-3)
        loss_of = make_loss()
        if least_rows:
            count = random.Random(0)
            return updated(updates, lambda: loss_of(*(
                Tensor(array[:drawn], requires_grad=False) for drawn in [count.randint(least_rows, rows)]
                for array in (inputs, labels)), *parameters))
        return updated(updates, lambda: loss_of(x, y, *parameters))

    def theirs() -> Step:
        import torch

        x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
        parameters = [torch.from_numpy(array.copy()).requires_grad_() for array in begun]
        updates = AdamByHand(torch, parameters, 1e-3) if by_hand else torch.optim.Adam(parameters, lr=1e-3)
        loss_of = make_loss()
        if least_rows:
            count = random.Random(0)
            return updated(updates, lambda: loss_of(*(
                array[:drawn] for drawn in [count.randint(least_rows, rows)] for array in (x, y)),
                *parameters))
        return updated(updates, lambda: loss_of(x, y, *parameters))

    how = "Adam by hand" if by_hand else "Adam"
    return Workload(f"{name}, {how}, step without JIT", 1.0, 1.0, 1.0,
                    {**both_tinygrads(ours), "torch": theirs})


def denoised(x: Any, enter: Any, stay: Any, leave: Any) -> Any:
    """Fifty steps of a sampler (Song, Meng and Ermon, Denoising diffusion implicit models, 2020), whose noise
    levels Python computes, as one graph."""
    for i in range(50):
        kept, after = 0.02 + 0.018 * i, 0.038 + 0.018 * i
        noise = ((x @ enter + 0.01 * i).tanh() @ stay).tanh() @ leave
        x = (x - (1 - kept) ** 0.5 * noise) * (after / kept) ** 0.5 + (1 - after) ** 0.5 * noise
    return x


def sampler() -> Workload:
    arrays = normals([(256, 32), (32, 64), (64, 64), (64, 32)])
    arrays = [arrays[0], *[weight * 0.1 for weight in arrays[1:]]]

    def ours() -> Step:
        from tinygrad import Tensor

        tensors = [Tensor(array, requires_grad=False).realize() for array in arrays]
        return lambda: denoised(*tensors).numpy()

    def theirs() -> Step:
        import torch

        tensors = [torch.from_numpy(array) for array in arrays]
        return lambda: denoised(*tensors).numpy()

    return Workload("sampler of 50 steps, 256x32, without JIT", 1.0, 1.0, 1.0,
                    {**both_tinygrads(ours), "torch": theirs})


LETTERS, STATE, LANGUAGES, NAMES = 57, 128, 18, 40


def reader_of_names() -> Workload:
    """A recurrent network by a loop over a name's letters, three to twelve, whose weights the program changes
    by itself, name by name: the first of PyTorch's lessons on texts."""
    arrays = normals([(LETTERS, STATE), (STATE, STATE), (STATE,), (STATE, LANGUAGES)])
    arrays = [array / max(1, array.shape[0]) ** 0.5 for array in arrays]

    def reading(library: Any, weights: list[Any], made: Callable[[Any], Any]) -> Step:
        enter, stay, bias, leave = weights
        chance = random.Random(0)
        letters, languages = (np.eye(n, dtype=np.float32) for n in (LETTERS, LANGUAGES))
        names = [(letters[chance.choices(range(LETTERS), k=chance.randint(3, 12)), None],
                  languages[[chance.randrange(LANGUAGES)]]) for _ in range(NAMES)]

        def read(letters: Any, language: Any) -> float:
            name, state = made(letters), library.zeros(1, STATE)
            for weight in weights:
                weight.grad = None
            for letter in range(name.shape[0]):
                state = (name[letter] @ enter + state @ stay + bias).tanh()
            loss = cross_entropy(state @ leave, made(language))
            loss.backward()
            with library.no_grad():
                for weight in weights:
                    weight.sub_(weight.grad * 0.005)
            return loss.item()  # type: ignore[no-any-return]

        return lambda: np.float32(sum([read(*name) for name in names]))

    def ours() -> Step:
        from tinygrad import Tensor

        return reading(Tensor, [Tensor(array) for array in arrays], Tensor)

    def theirs() -> Step:
        import torch

        return reading(torch, [torch.from_numpy(array.copy()).requires_grad_() for array in arrays],
                       torch.from_numpy)

    return Workload(f"recurrent network, {NAMES} names of 3 to 12 letters, weights by hand, without JIT",
                    1.0, 1.0, 1.0, {**both_tinygrads(ours), "torch": theirs})


LONGEST_TEXT = 64


def writer() -> Workload:
    """A text that grows by the token which a GPT of three blocks thinks likeliest, computed from all before;
    it begins anew at its longest."""
    arrays = normals([(50, 64), (LONGEST_TEXT, 64), *BLOCK, *BLOCK, *BLOCK, (64,), (64,), (64, 50)])
    arrays = [array / max(1, array.shape[0]) ** 0.5 for array in arrays]

    def writing(first: Any, tensors: Sequence[Any], joined: Callable[[Any, Any], Any]) -> Step:
        text = first

        def step() -> Any:
            nonlocal text
            text = first if text.shape[0] == LONGEST_TEXT else text
            tokens, places, *weights = tensors
            x = tokens[text] + places[:text.shape[0]]
            for i in range(3):
                x = transformer_block(x, *weights[len(BLOCK) * i:len(BLOCK) * (i + 1)])
            token = (layer_norm(x, *weights[-3:-1]) @ weights[-1])[-1].argmax(-1, keepdim=True)
            text = joined(text, token)
            return np.int64(token.item())

        return step

    def ours() -> Step:
        from tinygrad import Tensor

        tensors = [Tensor(array, requires_grad=False).realize() for array in arrays]
        return writing(Tensor([1, 2, 3]), tensors, lambda text, token: text.cat(token))

    def theirs() -> Step:
        import torch

        tensors = [torch.from_numpy(array) for array in arrays]
        return writing(torch.tensor([1, 2, 3]), tensors, lambda text, token: torch.cat([text, token]))

    return Workload(f"GPT of 3 blocks, 64 wide, a token more of {LONGEST_TEXT}, without JIT", 1.0, 1.0, 1.0,
                    {**both_tinygrads(ours), "torch": theirs})


WORKLOADS = (
    step_of("perceptron of 3 layers of 128", lambda: perceptron, (64, 64), 10, PERCEPTRON),
    step_of("perceptron of 3 layers of 128", lambda: perceptron, (64, 64), 10, PERCEPTRON, by_hand=True),
    step_of("policy of 2 layers of 128", episode, (64, 16), 8, ((16, 128), (128, 8))),
    step_of("LSTM of 50 cells written out", lambda: lstm, (16, 50, 20), 5,
            ((20, 128), (32, 128), (128,), (32, 5))),
    step_of("GPT of 3 blocks, 64 wide, 32 tokens", lambda: transformer, (32, 64), 50,
            (*BLOCK, *BLOCK, *BLOCK, (64,), (64,), (64, 50))),
    sampler(),
    step_of("perceptron of 3 layers of 128, 33 to 64 rows", lambda: perceptron, (64, 64), 10, PERCEPTRON,
            least_rows=33),
    writer(),
    reader_of_names(),
)
