"""Control flow: branches, loops and scans, unrolled while the graph is walked."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad.nn.onnx.evaluate import Body
from tinygrad.nn.onnx.ops.shapes import concatenated, moves
from tinygrad.nn.onnx.registry import check_count, op
from tinygrad.nn.onnx.values import Array, Items, Value
from tinygrad.tensor import Tensor

STEPS_TOGETHER = 32
"""Iterations of a loop whose results are computed together: a graph of more costs more to schedule than the
kernels cost to start."""


@op
def If(cond: bool, *, then_branch: Body, else_branch: Body) -> tuple[Value, ...]:
    """One of two graphs, the only one that is walked."""
    return tuple((then_branch if cond else else_branch)())


@op
def Loop(M: int | None, cond: bool | None, *v_initial: Value, body: Body) -> tuple[Value, ...]:
    """`body` (number, condition, state) -> (condition, state, what is collected), up to `M` times and while
    the condition holds; what each step gives is stacked."""
    state, going = list(v_initial), True if cond is None else cond
    collected: list[list[Value]] = []
    step = 0
    while going and (M is None or step < M):
        condition, *given = body(body.number(step), body.condition(going), *state)
        state = given[:len(v_initial)]
        collected.append(given[len(v_initial):])
        going = bool(body.read(condition).reshape(()))
        step += 1
        if step % STEPS_TOGETHER == 0:
            _compute(state)
    if not collected:
        return (*state, *_nothing(body, 1 + len(state), lambda: body(
            body.number(0), body.condition(True), *state)))
    return (*state, *(_stacked([body.items(v) for v in row], 0) for row in zip(*collected, strict=True)))


@op
def Scan_8(sequence_lens: Array | None, *initial_state_and_scan_inputs: Value, num_scan_inputs: int,
           body: Body, directions: Any = None) -> tuple[Value, ...]:
    """As since version 9, for each item of a batch, which is the first axis of everything. Sequences that are
    shorter than the longest give zeros beyond their end."""
    values = [body.items(v) for v in initial_state_and_scan_inputs]
    states, batch, longest = len(values) - num_scan_inputs, values[-1].shape[0], values[-1].shape[1]
    lengths = [longest] * batch if sequence_lens is None else [int(n) for n in sequence_lens]
    rows = []
    for i, length in enumerate(lengths):
        given = [v[i] if place < states else moves(lambda x, n=length: x[:n])(v[i])
                 for place, v in enumerate(values)]
        made = Scan_9(*given, num_scan_inputs=num_scan_inputs, body=body, scan_input_directions=directions)
        collected = made[states:] if length == longest else [
            body.items(v).pad_to(longest, *v.shape[1:]) for v in made[states:]]
        rows.append([*(body.items(v) for v in made[:states]), *collected])
    return tuple(_stacked(list(parts), 0) for parts in zip(*rows, strict=True))


@op
def Scan_9(*initial_state_and_scan_inputs: Value, num_scan_inputs: int, body: Body,
           scan_input_axes: Any = None,
           scan_input_directions: Any = None, scan_output_axes: Any = None,
           scan_output_directions: Any = None) -> tuple[Value, ...]:
    """`body` (state, items) -> (state, what is collected), along an axis of the last `num_scan_inputs`."""
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    if count < 0 or num_scan_inputs < 1:
        raise ValueError(f"num_scan_inputs is one of 1 to {len(initial_state_and_scan_inputs)}, got "
                         f"{num_scan_inputs}")
    outputs = len(body.graph.outputs) - count
    for what, numbers, wanted in (("scan_input_axes", scan_input_axes, num_scan_inputs),
                                  ("scan_input_directions", scan_input_directions, num_scan_inputs),
                                  ("scan_output_axes", scan_output_axes, outputs),
                                  ("scan_output_directions", scan_output_directions, outputs)):
        check_count(what, len(numbers or (0,) * wanted), wanted)
    state = list(initial_state_and_scan_inputs[:count])
    scanned = [body.items(v) for v in initial_state_and_scan_inputs[count:]]
    axes = scan_input_axes or (0,) * num_scan_inputs
    backward = scan_input_directions or (0,) * num_scan_inputs
    lengths = [x.shape[axis] for x, axis in zip(scanned, axes, strict=True)]
    length = lengths[0]
    if any(n != length for n in lengths):
        raise ValueError(f"what is scanned has as many items, got {', '.join(map(str, lengths))}")
    collected: list[list[Value]] = []
    for step in range(length):
        items = [_item(x, axis, length - 1 - step if back else step)
                 for x, axis, back in zip(scanned, axes, backward, strict=True)]
        given = body(*state, *items)
        state = given[:count]
        collected.append(given[count:])
        if (step + 1) % STEPS_TOGETHER == 0:
            _compute(state)
    out_axes, out_backward = scan_output_axes or (0,) * outputs, scan_output_directions or (0,) * outputs
    if not collected:
        blank = [_item(moves(lambda data, axis=axis: data.pad_to(
            *(1 if i == axis % len(data.shape) else n for i, n in enumerate(data.shape))))(x), axis, 0)
            for x, axis in zip(scanned, axes, strict=True)]
        nothing = _nothing(body, count, lambda: body(*state, *blank))
        return (*state, *(moves(lambda x, to=axis: x.movedim(0, to))(body.items(v))
                          for v, axis in zip(nothing, out_axes, strict=True)))
    results = []
    for row, axis, back in zip(zip(*collected, strict=True), out_axes, out_backward, strict=True):
        parts = [body.items(v) for v in (reversed(row) if back else row)]
        results.append(_stacked(parts, axis if axis >= 0 else axis + len(parts[0].shape) + 1))
    return (*state, *results)


def _nothing(body: Body, first: int, walk: Callable[[], list[Value]]) -> list[Value]:
    """What is collected in no iteration, of the outputs from `first` on: of the types that the body says, or
    else of what one iteration gives, none of which is computed."""
    names = list(body.graph.outputs)[first:]
    if all(body.says_type(name) for name in names):
        return [body.nothing(name) for name in names]
    return [moves(lambda x: x.unsqueeze(0)[:0])(body.items(v)) for v in walk()[first:]]


def _item(x: Any, axis: int, step: int) -> Items:
    index = (*[slice(None)] * (axis % len(x.shape)), step)
    return moves(lambda data: data[index])(x)


def _stacked(parts: list[Any], axis: int) -> Items:
    return concatenated([moves(lambda x: x.unsqueeze(axis))(part) for part in parts], axis)


def _compute(state: list[Value]) -> None:
    tensors = [t for t in state if isinstance(t, Tensor)]
    if tensors:
        Tensor.realize(*tensors)
