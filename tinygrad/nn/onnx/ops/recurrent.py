"""Recurrent layers: RNN, GRU and LSTM, a step of the sequence after another, in either direction or both."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import op
from tinygrad.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
Product = Callable[[Tensor], Tensor]
"""With the weights of one direction."""

ACTIVATIONS: dict[str, tuple[Callable[[Tensor, float, float], Tensor], float, float]] = {
    "relu": (lambda x, a, b: x.maximum(0), 0, 0),
    "tanh": (lambda x, a, b: x.tanh(), 0, 0),
    "sigmoid": (lambda x, a, b: x.sigmoid(), 0, 0),
    "affine": (lambda x, a, b: x * a + b, 1, 0),
    "leakyrelu": (lambda x, a, b: (x >= 0).where(x, x * a), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: (x >= a).where(x, 0), 1, 0),
    "scaledtanh": (lambda x, a, b: (x * b).tanh() * a, 1, 1),
    "hardsigmoid": (lambda x, a, b: (x * a + b).maximum(0).minimum(1), 0.2, 0.5),
    "elu": (lambda x, a, b: x.elu(a), 1, 0),
    "softsign": (lambda x, a, b: x / (1 + x.abs()), 0, 0),
    "softplus": (lambda x, a, b: x.softplus(), 0, 0),
}
"""By name: the function of x, alpha and beta, and what those are unless they are given."""
TAKES_ALPHA = ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
TAKES_BETA = ("affine", "scaledtanh", "hardsigmoid")


class RecurrentAttributes(TypedDict, total=False):
    """What all kinds of layers are told."""

    activation_alpha: Any
    activation_beta: Any
    activations: Any
    clip: float
    direction: str
    hidden_size: int
    layout: int


def _activation_functions(usual: tuple[str, ...], how: RecurrentAttributes) -> list[Activation]:
    """The functions that are named, or the usual ones of each direction; parameters are taken in order by
    those that have them."""
    alpha, beta = iter(how.get("activation_alpha") or ()), iter(how.get("activation_beta") or ())
    clip = how.get("clip")

    def one(name: str) -> Activation:
        function, a, b = ACTIVATIONS[name.lower()]
        a = next(alpha, a) if name.lower() in TAKES_ALPHA else a
        b = next(beta, b) if name.lower() in TAKES_BETA else b
        if clip is None:
            return lambda x: function(x, a, b)
        return lambda x: function(x.maximum(-clip).minimum(clip), a, b)
    return [one(name) for name in how.get("activations") or usual * 2]


def _stored(x: Tensor) -> Tensor:
    """One product for all steps or gates, which are parts of it, not one for each: an LSTM of 20 steps, batch
    8 and 128 numbers took 1.4 ms instead of 2.4, one of 40 steps of 16 numbers 0.25 instead of 0.31."""
    return x.contiguous()


def _walk(step: Step, inputs: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None,
          backward: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Hidden states of all steps (T, batch, hidden), and the last state, of one direction.

    `inputs`: (T, batch, gates * hidden). Sequences that are shorter than the longest keep their last state,
    and give zeros beyond it.
    """
    count = inputs.shape[0]
    hidden: list[Tensor] = [state[0]] * count
    for t in reversed(range(count)) if backward else range(count):
        new = step(inputs[t], state)
        if lengths is None:
            state = new
            hidden[t] = new[0]
        else:
            alive = (lengths > t).unsqueeze(1)
            state = tuple(alive.where(n, o) for n, o in zip(new, state, strict=True))
            hidden[t] = alive.where(new[0], 0)
    return hidden[0].stack(*hidden[1:]), state


def products(weights: Tensor) -> list[Product]:
    """Of weights (directions, results, items)."""
    def product(d: int) -> Product:
        matrix = weights[d].transpose()
        return lambda x: x @ matrix
    return [product(d) for d in range(weights.shape[0])]


def _recurrent(X: Tensor, of_inputs: Sequence[Product], hidden: int, B: Tensor | None,
               sequence_lens: Tensor | None, initial: Sequence[Tensor | None], gates: int,
               make_step: Callable[[int, Tensor], Step], how: RecurrentAttributes) -> tuple[Tensor, ...]:
    """A layer in all its directions: (Y, the last states)."""
    layout, direction = how.get("layout", 0), how.get("direction", "forward")
    X = X.transpose(0, 1) if layout else X
    batch = X.shape[1]
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    for what, found in (("W", len(of_inputs)), ("B", len(directions) if B is None else B.shape[0])):
        if found != len(directions):
            raise ValueError(f"direction {direction!r} takes {what} of {len(directions)}, got {found}")
    lengths = None if sequence_lens is None else sequence_lens.cast(dtypes.int32)
    outputs, lasts = [], []
    for d, backward in enumerate(directions):
        bias = Tensor.zeros(2 * gates * hidden, dtype=X.dtype, device=X.device, requires_grad=False) \
            if B is None else B[d]
        inputs = _stored(of_inputs[d](X) + bias[:gates * hidden])
        state = tuple(
            Tensor.zeros(batch, hidden, dtype=X.dtype, device=X.device, requires_grad=False) if s is None
            else (s[:, d] if layout else s[d]) for s in initial)
        made, last = _walk(make_step(d, bias[gates * hidden:]), inputs, state, lengths, backward)
        outputs.append(made)
        lasts.append(last)
    Y = outputs[0].stack(*outputs[1:], dim=1)  # (T, directions, batch, hidden)
    states = [parts[0].stack(*parts[1:]) for parts in zip(*lasts, strict=True)]
    if layout:
        Y, states = Y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in states]
    return Y, *states


@op
def RNN(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, sequence_lens: Tensor | None = None,
        initial_h: Tensor | None = None, **how: Unpack[RecurrentAttributes]) -> tuple[Tensor, ...]:
    f, of_state = _activation_functions(("Tanh",), how), products(R)

    def make_step(d: int, bias: Tensor) -> Step:
        return lambda x, state: (f[d](x + of_state[d](state[0]) + bias),)
    return _recurrent(X, products(W), R.shape[-1], B, sequence_lens, [initial_h], 1, make_step, how)


@op
def GRU(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, sequence_lens: Tensor | None = None,
        initial_h: Tensor | None = None, *, linear_before_reset: int = 0,
        **how: Unpack[RecurrentAttributes]) -> tuple[Tensor, ...]:
    functions, n = _activation_functions(("Sigmoid", "Tanh"), how), R.shape[-1]

    def make_step(d: int, bias: Tensor) -> Step:
        f, g = functions[2 * d:2 * d + 2]
        weights = R[d].transpose()

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h = state[0]
            gates = f(_stored(x[:, :2 * n] + h @ weights[:, :2 * n] + bias[:2 * n]))
            update, reset = gates[:, :n], gates[:, n:]
            if linear_before_reset:
                new = g(x[:, 2 * n:] + reset * (h @ weights[:, 2 * n:] + bias[2 * n:]))
            else:
                new = g(x[:, 2 * n:] + (reset * h) @ weights[:, 2 * n:] + bias[2 * n:])
            return ((1 - update) * new + update * h,)
        return step
    return _recurrent(X, products(W), n, B, sequence_lens, [initial_h], 3, make_step, how)


@op
def LSTM(X: Tensor, W: Tensor, R: Tensor, B: Tensor | None = None, sequence_lens: Tensor | None = None,
         initial_h: Tensor | None = None, initial_c: Tensor | None = None, P: Tensor | None = None, *,
         input_forget: int = 0, **how: Unpack[RecurrentAttributes]) -> tuple[Tensor, ...]:
    return lstm(X, products(W), products(R), R.shape[-1], B, sequence_lens, [initial_h, initial_c], P,
                input_forget, how)


def lstm(X: Tensor, of_inputs: Sequence[Product], of_state: Sequence[Product], n: int, B: Tensor | None,
         lengths: Tensor | None, initial: Sequence[Tensor | None], P: Tensor | None, input_forget: int,
         how: RecurrentAttributes) -> tuple[Tensor, ...]:
    """An LSTM of `n` numbers, given how inputs and its state are multiplied with weights."""
    functions = _activation_functions(("Sigmoid", "Tanh", "Tanh"), how)

    def make_step(d: int, bias: Tensor) -> Step:
        f, g, h = functions[3 * d:3 * d + 3]

        def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden, cell = state
            gates = _stored(x + of_state[d](hidden) + bias)
            i, o, forget, c = (gates[:, k * n:(k + 1) * n] for k in range(4))
            if P is not None:
                i, forget = i + P[d, :n] * cell, forget + P[d, 2 * n:] * cell
            i = f(i)
            kept = 1 - i if input_forget else f(forget)
            cell = kept * cell + i * g(c)
            o = f(o if P is None else o + P[d, n:2 * n] * cell)
            return o * h(cell), cell
        return step
    return _recurrent(X, of_inputs, n, B, lengths, initial, 4, make_step, how)
