"""Recurrent layers: one step (`LSTMCell`, ...), and whole sequences in one call (`LSTM`, ...).

Parameters have PyTorch's names, shapes and initial distributions. A sequence is unrolled: the products of all
its steps with `weight_ih` are one, those with `weight_hh` are one a step. The graph of a long sequence is
large: two layers of 100 steps take 8 s the first time, and then 1 s a training step, most of it to build the
graph again (Zen 4). Such training belongs under `TinyJit`.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinygrad.functional.graph_templates import memoised
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.tensor import Tensor

State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]
"""The next state from the inputs' part of the gates, the state's part of them, and the state."""


@memoised
def _lstm_cell(of_input: Tensor, of_state: Tensor, c: Tensor) -> Tensor:
    enter, forget, cell, _ = (of_input + of_state).chunk(4, dim=1)
    return forget.sigmoid() * c + enter.sigmoid() * cell.tanh()


@memoised
def _lstm_output(of_input: Tensor, of_state: Tensor, c: Tensor) -> Tensor:
    return (of_input + of_state).chunk(4, dim=1)[3].sigmoid() * c.tanh()


def _lstm_state(of_input: Tensor, of_state: Tensor, c: Tensor) -> State:
    c = _lstm_cell(of_input, of_state, c)
    return _lstm_output(of_input, of_state, c), c


@memoised
def _gru_state(of_input: Tensor, of_state: Tensor, h: Tensor) -> Tensor:
    parts = zip(of_input.chunk(3, dim=1), of_state.chunk(3, dim=1), strict=True)
    (reset_x, reset_h), (keep_x, keep_h), (new_x, new_h) = parts
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return new + (keep_x + keep_h).sigmoid() * (h - new)


LSTM_STEP: Step = lambda of_input, of_state, state: _lstm_state(of_input, of_state, state[1])  # noqa: E731
GRU_STEP: Step = lambda of_input, of_state, state: (_gru_state(of_input, of_state, state[0]),)  # noqa: E731
RNN_STEPS: dict[str, Step] = {
    "tanh": lambda of_input, of_state, state: ((of_input + of_state).tanh(),),
    "relu": lambda of_input, of_state, state: ((of_input + of_state).relu(),),
}
STEPS: dict[str, Step] = {"lstm": LSTM_STEP, "gru": GRU_STEP, **RNN_STEPS}


def _rnn_step(nonlinearity: str) -> Step:
    if nonlinearity not in RNN_STEPS:
        raise ValueError(f"nonlinearity is 'tanh' or 'relu', got {nonlinearity!r}")
    return RNN_STEPS[nonlinearity]


def _next_state(x: Tensor, step: str, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None,
                bias_hh: Tensor | None, *state: Tensor) -> State:
    """The state after one step, by its name in STEPS."""
    of_input, of_state = (part.linear(weight.transpose(), bias) for part, weight, bias in
                          ((x, weight_ih, bias_ih), (state[0], weight_hh, bias_hh)))
    return STEPS[step](of_input, of_state, state)


_next_state_of_memory = memoised(_next_state)
"""The same, where that may be all of a graph: one node."""


def _hold_weights(layer: Any, suffix: str, gates: int, input_size: int, hidden_size: int, bias: bool) -> None:
    bound = 1 / math.sqrt(hidden_size)
    rows = gates * hidden_size
    for name, width in (("weight_ih", input_size), ("weight_hh", hidden_size)):
        setattr(layer, name + suffix, Tensor.uniform(rows, width, low=-bound, high=bound))
    for name in ("bias_ih", "bias_hh"):
        setattr(layer, name + suffix, Tensor.uniform(rows, low=-bound, high=bound) if bias else None)


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return Tensor.zeros(*shape, dtype=like.dtype, device=like.device, requires_grad=False)


# --- one step -----------------------------------------------------------------------------------------------


class _Cell:
    gates: int
    state_names: tuple[str, ...] = ("h",)
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        self.hidden_size = hidden_size
        _hold_weights(self, "", self.gates, input_size, hidden_size, bias)

    def _next(self, step: str, x: Tensor, state: State | None) -> State:
        kind, width = type(self).__name__, self.weight_ih.shape[1]
        if x.ndim != 2 or x.shape[1] != width:
            raise ValueError(f"{kind} takes an input (N, {width}), got {x.shape}")
        shape = (x.shape[0], self.hidden_size)
        if state is None:
            state = (_zeros(x, *shape),) * len(self.state_names)
        if any(part.shape != shape for part in state):
            raise ValueError(f"{kind} takes {' and '.join(self.state_names)} of shape {shape}, got "
                             f"{' and '.join(str(part.shape) for part in state)}")
        is_held = all(storage_view(part.uop) is not None for part in (x, *state))
        after = _next_state_of_memory if is_held else _next_state
        return after(x, step, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, *state)


class LSTMCell(_Cell):
    """One step of a long short-term memory (Hochreiter and Schmidhuber, 1997).

    Called with x (N, input_size) and (h, c), each (N, hidden_size), zeros if not given; returns the next (h,
    c). weight_ih (4*hidden, input), weight_hh (4*hidden, hidden), bias_ih and bias_hh (4*hidden,) hold the
    input, forget, cell and output gates in this order.

    >>> hidden, cell = nn.LSTMCell(3, 5)(Tensor.ones(2, 3))
    >>> hidden.shape, cell.shape
    ((2, 5), (2, 5))
    """

    gates = 4
    state_names = ("h", "c")

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._next("lstm", x, hc)
        return h, c


class GRUCell(_Cell):
    """One step of a gated recurrent unit (Cho and others, 2014): x (N, input_size) and h (N, hidden_size),
    zeros if not given, to the next h. The parameters hold the reset, update and new gates in this order."""

    gates = 3

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self._next("gru", x, None if h is None else (h,))[0]


class RNNCell(_Cell):
    """tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh), or relu of it: x (N, input_size) and h (N,
    hidden_size), zeros if not given, to the next h."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
                 ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity
        _rnn_step(nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self._next(self.nonlinearity, x, None if h is None else (h,))[0]


# --- sequences ----------------------------------------------------------------------------------------------


class _Sequence:
    """Layers over sequences, each over the outputs of the one before; with both directions, these side by
    side. Dropout is between layers, while `Tensor.training`."""

    gates: int
    states = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False) -> None:
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.directions = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            width = len(self.directions) * hidden_size if layer else input_size
            for direction in self.directions:
                _hold_weights(self, f"_l{layer}{direction}", self.gates, width, hidden_size, bias)

    def _run(self, step: Step, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Outputs of the last layer at every step, and the states of all after the last step."""
        kind, is_batch = type(self).__name__, x.ndim == 3
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            order = "(N, L, {0})" if self.batch_first else "(L, N, {0})"
            raise ValueError(f"{kind} takes an input {order.format(self.input_size)} or (L, "
                             f"{self.input_size}), got {x.shape}")
        steps = x.unsqueeze(1) if not is_batch else x.transpose(0, 1) if self.batch_first else x
        rows = self.num_layers * len(self.directions)
        shape = (rows, steps.shape[1], self.hidden_size)
        if state is None:
            state = (_zeros(x, *shape),) * self.states
        elif not is_batch:
            state = tuple(part.unsqueeze(1) for part in state)
        if any(part.shape != shape for part in state):
            raise ValueError(f"{kind} takes states of shape {shape if is_batch else (rows, shape[2])} with "
                             f"this input, got {', '.join(str(part.shape) for part in state)}")
        ends: list[State] = []
        for layer in range(self.num_layers):
            steps = steps.dropout(self.dropout) if layer else steps
            sides = []
            for direction in self.directions:
                first = tuple(part[len(ends)] for part in state)
                side, end = self._along(step, steps, first, f"_l{layer}{direction}", bool(direction))
                sides.append(side)
                ends.append(end)
            steps = Tensor.cat(*sides, dim=-1) if len(sides) > 1 else sides[0]
        after = tuple(Tensor.stack(*parts) for parts in zip(*ends, strict=True))
        if not is_batch:
            return steps.squeeze(1), tuple(part.squeeze(1) for part in after)
        return steps.transpose(0, 1) if self.batch_first else steps, after

    def _along(self, step: Step, x: Tensor, state: State, suffix: str, backwards: bool
               ) -> tuple[Tensor, State]:
        """One direction of one layer: its outputs (L, N, hidden_size), and its last state."""
        weight_ih, weight_hh, bias_ih, bias_hh = (
            getattr(self, name + suffix) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        of_inputs = x.linear(weight_ih.transpose(), bias_ih)
        order = range(x.shape[0])[::-1 if backwards else 1]
        outputs = {}
        for i in order:
            state = step(of_inputs[i], state[0].linear(weight_hh.transpose(), bias_hh), state)
            outputs[i] = state[0]
        return Tensor.stack(*(outputs[i] for i in sorted(outputs))), state


class LSTM(_Sequence):
    """A long short-term memory over sequences: x (L, N, input_size), (N, L, input_size) where `batch_first`,
    or (L, input_size), to the outputs of the last layer, of that form, and (h, c) after the last step.

    h and c, also those to begin with (zeros if not given): (num_layers * directions, N, hidden_size).
    Parameters are `LSTMCell`'s, of layer i `weight_ih_l{i}` and so on, backwards `weight_ih_l{i}_reverse`.

    >>> outputs, (hidden, cell) = nn.LSTM(3, 5, num_layers=2)(Tensor.ones(7, 1, 3))
    >>> outputs.shape, hidden.shape
    ((7, 1, 5), (2, 1, 5))
    """

    gates = 4
    states = 2

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None
                 ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, (h, c) = self._run(LSTM_STEP, x, hc)
        return outputs, (h, c)


class GRU(_Sequence):
    """A gated recurrent unit over sequences: as `LSTM`, with h alone. Parameters are `GRUCell`'s."""

    gates = 3

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (after,) = self._run(GRU_STEP, x, None if h is None else (h,))
        return outputs, after


class RNN(_Sequence):
    """`RNNCell` over sequences: as `LSTM`, with h alone."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity
        _rnn_step(nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (after,) = self._run(_rnn_step(self.nonlinearity), x, None if h is None else (h,))
        return outputs, after
