"""Recurrent layers: one step (`LSTMCell`, ...), and whole sequences in one call (`LSTM`, ...).

Parameters have PyTorch's names, shapes and initial distributions. A sequence is unrolled: the products of all
its steps with `weight_ih` are one, those with `weight_hh` are one a step. That is one template, and so are
its gradients: a step is not built again. The first one of a long sequence takes seconds, to compile its
kernels.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinygrad.functional.graph_templates import memoised
from tinygrad.helpers import dedup
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


STEPS: dict[str, Step] = {
    "lstm": lambda of_input, of_state, state: _lstm_state(of_input, of_state, state[1]),
    "gru": lambda of_input, of_state, state: (_gru_state(of_input, of_state, state[0]),),
    "tanh": lambda of_input, of_state, state: ((of_input + of_state).tanh(),),
    "relu": lambda of_input, of_state, state: ((of_input + of_state).relu(),),
}


def _nonlinear(step: str) -> str:
    """The name of an RNN's step."""
    if step not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity is 'tanh' or 'relu', got {step!r}")
    return step


@memoised
def _next_state(x: Tensor, step: str, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None,
                bias_hh: Tensor | None, *state: Tensor) -> State:
    """The state after one step, by its name in STEPS."""
    of_input, of_state = (part.linear(weight.transpose(), bias) for part, weight, bias in
                          ((x, weight_ih, bias_ih), (state[0], weight_hh, bias_hh)))
    return STEPS[step](of_input, of_state, state)


def _hold_weights(layer: Any, suffix: str, gates: int, input_size: int, hidden_size: int, bias: bool,
                  proj_size: int = 0) -> None:
    bound = 1 / math.sqrt(hidden_size)
    rows = gates * hidden_size
    for name, width in (("weight_ih", input_size), ("weight_hh", proj_size or hidden_size)):
        setattr(layer, name + suffix, Tensor.uniform(rows, width, low=-bound, high=bound))
    for name in ("bias_ih", "bias_hh"):
        setattr(layer, name + suffix, Tensor.uniform(rows, low=-bound, high=bound) if bias else None)
    if proj_size:
        setattr(layer, "weight_hr" + suffix, Tensor.uniform(proj_size, hidden_size, low=-bound, high=bound))


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return Tensor.zeros(*shape, dtype=like.dtype, device=like.device, requires_grad=False)


def _refuse_sizes(layer: Any, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{type(layer).__name__} takes {name} >= 1, got {size}")


def _parts_of_state(layer: Any, state: Any, count: int) -> State:
    """The tensors of a state that a layer was called with."""
    parts = tuple(state)
    if len(parts) != count or not all(isinstance(part, Tensor) for part in parts):
        got = ", ".join(str(p.shape) if isinstance(p, Tensor) else type(p).__name__ for p in parts)
        raise TypeError(f"{type(layer).__name__} takes a state of {count} tensor{'s' * (count > 1)}, "
                        f"{'(h, c)' if count > 1 else 'h'}, got {got}")
    return parts


# --- one step -----------------------------------------------------------------------------------------------


class _Cell:
    gates: int
    state_names: tuple[str, ...] = ("h",)
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        _refuse_sizes(self, hidden_size=hidden_size)
        self.hidden_size = hidden_size
        _hold_weights(self, "", self.gates, input_size, hidden_size, bias)

    def _next(self, step: str, x: Tensor, state: State | None) -> State:
        kind, width = type(self).__name__, self.weight_ih.shape[1]
        if x.ndim not in (1, 2) or x.shape[-1] != width:
            raise ValueError(f"{kind} takes an input (N, {width}) or ({width},), got {x.shape}")
        shape = (*x.shape[:-1], self.hidden_size)
        if state is None:
            state = (_zeros(x, *shape),) * len(self.state_names)
        state = _parts_of_state(self, state, len(self.state_names))
        if any(part.shape != shape for part in state):
            raise ValueError(f"{kind} takes {' and '.join(self.state_names)} of shape {shape}, got "
                             f"{' and '.join(str(part.shape) for part in state)}")
        if x.ndim == 1:
            after = self._next(step, x.unsqueeze(0), tuple(part.unsqueeze(0) for part in state))
            return tuple(part.squeeze(0) for part in after)
        return _next_state(x, step, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, *state)


class LSTMCell(_Cell):
    """One step of a long short-term memory (Hochreiter and Schmidhuber, 1997).

    Called with x (N, input_size) and (h, c), each (N, hidden_size), zeros if not given, or all without N;
    returns the next (h, c). weight_ih (4*hidden, input), weight_hh (4*hidden, hidden), bias_ih and bias_hh
    (4*hidden,) hold the input, forget, cell and output gates in this order.

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
        _nonlinear(nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self._next(_nonlinear(self.nonlinearity), x, None if h is None else (h,))[0]


# --- sequences ----------------------------------------------------------------------------------------------


class _Sequence:
    """Layers over sequences, each over the outputs of the one before; with both directions, these side by
    side. Dropout is between layers, while `Tensor.training`."""

    gates: int
    proj_size = 0

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False) -> None:
        _refuse_sizes(self, hidden_size=hidden_size, num_layers=num_layers)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.directions = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            width = len(self.directions) * self._widths[0] if layer else input_size
            for direction in self.directions:
                _hold_weights(self, f"_l{layer}{direction}", self.gates, width, hidden_size, bias,
                              self.proj_size)

    @property
    def _widths(self) -> tuple[int, ...]:
        """The sizes of the parts of a state."""
        return (self.hidden_size,)

    def _run(self, step: str, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Outputs of the last layer at every step, and the states of all after the last step."""
        kind, is_batch = type(self).__name__, x.ndim == 3
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            order = "(N, L, {0})" if self.batch_first else "(L, N, {0})"
            raise ValueError(f"{kind} takes an input {order.format(self.input_size)} or (L, "
                             f"{self.input_size}), got {x.shape}")
        steps = x.unsqueeze(1) if not is_batch else x.transpose(0, 1) if self.batch_first else x
        if steps.shape[0] == 0:
            raise ValueError(f"{kind} takes a sequence of one step at least, got {x.shape}")
        rows = self.num_layers * len(self.directions)
        shapes = [(rows, *steps.shape[1:2] * is_batch, width) for width in self._widths]
        given = () if state is None else _parts_of_state(self, state, len(shapes))
        if given and [part.shape for part in given] != shapes:
            wanted, got = " and ".join(map(str, dedup(shapes))), ", ".join(str(part.shape) for part in given)
            raise ValueError(f"{kind} takes states of shape {wanted} with this input, got {got}")
        if not is_batch:
            given = tuple(part.unsqueeze(1) for part in given)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", *("weight_hr",) * (self.proj_size > 0))
        weights = [[tuple(getattr(self, f"{name}_l{layer}{direction}") for name in names)
                    for direction in self.directions] for layer in range(self.num_layers)]
        steps, *after = _sequence(steps, step, weights, self.dropout, self._widths, *given)
        if not is_batch:
            return steps.squeeze(1), tuple(part.squeeze(1) for part in after)
        return steps.transpose(0, 1) if self.batch_first else steps, tuple(after)


@memoised
def _sequence(x: Tensor, step: str, weights: list[list[tuple[Any, ...]]], dropout: float,
              widths: tuple[int, ...], *state: Tensor) -> tuple[Tensor, ...]:
    """Outputs (L, N, directions * width) of the last of some layers at every step, and the states (rows, N,
    width), of these widths, after it, which begin as zeros where none are given. `weights` has for each layer
    and direction what `_along` takes."""
    if not state:
        rows = len(weights) * len(weights[0])
        state = tuple(_zeros(x, rows, x.shape[1], width) for width in widths)
    ends: list[State] = []
    for layer in weights:
        x = x.dropout(dropout) if ends else x
        sides = []
        for backwards, own in enumerate(layer):
            first = tuple(part[len(ends)] for part in state)
            side, end = _along(STEPS[step], x, first, bool(backwards), *own)
            sides.append(side)
            ends.append(end)
        x = Tensor.cat(*sides, dim=-1) if len(sides) > 1 else sides[0]
    return x, *(Tensor.stack(*parts) for parts in zip(*ends, strict=True))


def _along(step: Step, x: Tensor, state: State, backwards: bool, weight_ih: Tensor, weight_hh: Tensor,
           bias_ih: Tensor | None, bias_hh: Tensor | None, weight_hr: Tensor | None = None
           ) -> tuple[Tensor, State]:
    """One direction of one layer: its outputs (L, N, width), and its last state."""
    of_inputs = x.linear(weight_ih.transpose(), bias_ih)
    order = range(x.shape[0])[::-1 if backwards else 1]
    outputs = {}
    for i in order:
        state = step(of_inputs[i], state[0].linear(weight_hh.transpose(), bias_hh), state)
        if weight_hr is not None:
            state = (state[0].linear(weight_hr.transpose()), *state[1:])
        outputs[i] = state[0]
    return Tensor.stack(*(outputs[i] for i in sorted(outputs))), state


class LSTM(_Sequence):
    """A long short-term memory over sequences: x (L, N, input_size), (N, L, input_size) where `batch_first`,
    or (L, input_size), to the outputs of the last layer, of that form, and (h, c) after the last step.

    h and c, also those to begin with (zeros if not given): (num_layers * directions, N, hidden_size).
    Parameters are `LSTMCell`'s, of layer i `weight_ih_l{i}` and so on, backwards `weight_ih_l{i}_reverse`.
    With `proj_size`, above 0 and below hidden_size, h and the outputs have that size: each h is multiplied by
    `weight_hr_l{i}`, (proj_size, hidden_size) (Sak, Senior and Beaufays, 2014).

    >>> outputs, (hidden, cell) = nn.LSTM(3, 5, num_layers=2)(Tensor.ones(7, 1, 3))
    >>> outputs.shape, hidden.shape
    ((7, 1, 5), (2, 1, 5))
    """

    gates = 4

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
                 proj_size: int = 0) -> None:
        if proj_size and not 0 < proj_size < hidden_size:
            raise ValueError(f"LSTM takes a proj_size below hidden_size, {hidden_size}, and 0 for none; got "
                             f"{proj_size}")
        self.proj_size = proj_size
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    @property
    def _widths(self) -> tuple[int, ...]:
        return (self.proj_size or self.hidden_size, self.hidden_size)

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None
                 ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, (h, c) = self._run("lstm", x, hc)
        return outputs, (h, c)


class GRU(_Sequence):
    """A gated recurrent unit over sequences: as `LSTM`, with h alone. Parameters are `GRUCell`'s."""

    gates = 3

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (after,) = self._run("gru", x, None if h is None else (h,))
        return outputs, after


class RNN(_Sequence):
    """`RNNCell` over sequences: as `LSTM`, with h alone."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity
        _nonlinear(nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (after,) = self._run(_nonlinear(self.nonlinearity), x, None if h is None else (h,))
        return outputs, after
