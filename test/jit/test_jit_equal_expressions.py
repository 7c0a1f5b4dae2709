"""A tensor outside that was computed from the same expression as one in the function is another tensor: what
is written to the memory below them, drawn or given changes the one and not the other."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jit_programs import Programs, assert_jit_changes_nothing, held, traced

from tinygrad import Tensor, Variable

PROGRAMS = Programs()
Jit = Callable[..., Any]


def three_calls(function: Callable[..., Tensor], between: Callable[[], object]) -> list[Any]:
    """What three calls give, where something happens after each; each result is written to."""
    found = []
    for _ in range(3):
        result = function()
        found.append(result.tolist())
        result += 1
        between()
    return found


@PROGRAMS.add
def state_changes_outside(jit: Jit) -> Any:
    state = held(1, 2)
    outside = (state * 2).realize()
    calls = three_calls(jit(lambda: state * 2), lambda: state.assign(state + 1).realize())
    return calls, outside.tolist()


@PROGRAMS.add
def below_the_result(jit: Jit) -> Any:
    state = held(1, 2)
    outside = (state * 2).realize()
    calls = three_calls(jit(lambda: state * 2 + 1), lambda: state.assign(state + 1).realize())
    return calls, outside.tolist()


@PROGRAMS.add
def state_changes_inside(jit: Jit) -> Any:
    state = held(1, 2)
    outside = (state * 2).realize()

    def step() -> Tensor:
        before = (state * 2).realize()
        state.assign(state + 1)
        return before

    return three_calls(jit(step), lambda: None), outside.tolist()


@PROGRAMS.add
def results_are_written_to(jit: Jit) -> Any:
    state = held(1, 2)
    outside = (state * 2).realize()
    return three_calls(jit(lambda: state * 2), lambda: None), outside.tolist()


@PROGRAMS.add
def the_tensor_outside_is_written_to(jit: Jit) -> Any:
    state = held(1, 2)
    outside = (state * 2).realize()
    return three_calls(jit(lambda: state * 2 + 1), lambda: outside.assign(outside + 1).realize())


@PROGRAMS.add
def constants_are_written_to(jit: Jit) -> Any:
    outside = (Tensor.arange(3) * 2).float().realize()
    return three_calls(jit(lambda: (Tensor.arange(3) * 2).float() + 1),
                       lambda: outside.assign(outside + 1).realize())


@PROGRAMS.add
def both_are_returned(jit: Jit) -> Any:
    state = held(1, 2)
    outside = (state * 2).realize()
    function = jit(lambda: outside.stack(state * 2))
    return three_calls(function, lambda: state.assign(state + 1).realize())


@PROGRAMS.add
def by_way_of_a_tensor_between(jit: Jit) -> Any:
    between = (held(1, 2) * 2).realize()
    outside = (between + 1).realize()
    calls = three_calls(jit(lambda: between + 1), lambda: between.assign(between + 1).realize())
    return calls, outside.tolist()


@PROGRAMS.add
def by_way_of_a_lazy_tensor_between(jit: Jit) -> Any:
    between = held(1, 2) * 2
    outside = (between + 1).realize()
    calls = three_calls(jit(lambda: between + 1), lambda: between.replace(between + 1))
    return calls, outside.tolist()


@PROGRAMS.add
def read_inside(jit: Jit) -> Any:
    state, zeros = held(1, 2), held(0, 0)
    outside = (state * 2).sum().realize()
    calls = three_calls(jit(lambda: zeros + (state * 2).sum().item()),
                        lambda: state.assign(state + 1).realize())
    return calls, outside.tolist()


@PROGRAMS.add
def draws(jit: Jit) -> Any:
    outside = (Tensor.rand(3) * 4).floor().realize()
    Tensor.manual_seed(0)
    return three_calls(jit(lambda: (Tensor.rand(3) * 4).floor()), lambda: None), outside.tolist()


@PROGRAMS.add
def draws_from_the_same_seed_in_each_call(jit: Jit) -> Any:
    outside = Tensor.rand(3).realize()
    Tensor.manual_seed(0)
    return three_calls(jit(lambda: Tensor.rand(3) * 2), lambda: Tensor.manual_seed(0)), outside.tolist()


@PROGRAMS.add
def numbers_that_are_given(jit: Jit) -> Any:
    state, n = held(1, 2, 3), Variable("n", 1, 3)
    outside = (state * n.bind(2)).realize()
    function = jit(lambda n: state * n)
    return [function(n.bind(i)).tolist() for i in (2, 1, 3)], outside.tolist()


@PROGRAMS.add
def sizes_that_are_given(jit: Jit) -> Any:
    state, n = held(1, 2, 3), Variable("n", 1, 3)
    outside = (state[:n.bind(2)] * 2).sum().realize()
    function = jit(lambda n: (state[:n] * 2).sum())
    return [function(n.bind(i)).item() for i in (2, 1, 3)], outside.tolist()


@PROGRAMS.add
def on_two_devices(jit: Jit) -> Any:
    state = held(1, 2, 3, 4).shard(("CPU", "CPU:1"), 0).realize()
    outside = (state * 2).realize()
    calls = three_calls(jit(lambda: state * 2), lambda: state.assign(state + 1).realize())
    return calls, outside.tolist()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_an_equal_expression_outside_changes_nothing(program: Any) -> None:
    assert_jit_changes_nothing(program)


def test_a_tensor_used_by_name_is_traced_once_more_at_most() -> None:
    """Which of the two the function meant is not known until what they were computed from is written to."""
    state = held(1, 2)
    outside = (state * 2).realize()
    function, calls = traced(lambda: outside + 1)
    for _ in range(4):
        assert function().tolist() == [3, 5]
        state.assign(state + 1).realize()
    assert len(calls) == 2


def test_weights_that_were_drawn_or_computed_from_what_is_gone_are_traced_once() -> None:
    drawn = (Tensor.rand(2) * 2).realize()
    computed = (held(1, 2) * 2).realize()
    ones = Tensor.ones(2).contiguous().realize()
    function, calls = traced(lambda: (drawn.assign(drawn + 1), computed.assign(computed + 1),
                                      ones.assign(ones + 1), Tensor.rand(2))[1])
    assert [function().tolist()[1] for _ in range(4)] == [5, 6, 7, 8]
    assert len(calls) == 1
