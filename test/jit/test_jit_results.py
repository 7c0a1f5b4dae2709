"""TinyJit: results and state from outside with the same value are tensors of their own."""
import numpy as np
import pytest
from jit_programs import traced, vector

from tinygrad import Tensor, TinyJit


def written_then_copied(state: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    state[0:2] = x.detach()
    return state.clone(), state + 0


def added_up(state: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    total = state + x.sum()
    state.assign(total.detach())
    return (total,)


def added_up_at_once(state: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    total = state + x.sum()
    state.assign(total).realize()
    return (total,)


@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("step", [written_then_copied, added_up, added_up_at_once])
@pytest.mark.parametrize("make", [lambda: Tensor.zeros(4).contiguous(), lambda: Tensor.zeros(4),
                                  lambda: vector(0, 0, 0, 0).realize() * 2])
def test_results_do_not_share_the_memory_of_state_that_was_lazy(make, step, is_tracked):
    state, weight = make(), Tensor([1.0, 1.0], requires_grad=is_tracked).realize()
    jitted, _ = traced(lambda x: step(state, x * weight))
    results = [[(r, r.tolist()) for r in jitted(vector(i + 1, i + 1))] for i in range(4)]
    for result, then in (pair for pairs in results for pair in pairs):
        assert result.tolist() == then


@pytest.mark.parametrize("results", [lambda state, total: [state.clone()], lambda state, total: [total],
                                     lambda state, total: [state.detach().clone(), state]])
def test_a_result_that_is_written_to_leaves_state_that_gradients_flow_through(results):
    def run(wrap):
        weight, state = Tensor([2.0, 3.0], requires_grad=True), Tensor.zeros(2)

        def step(x):
            total = state * weight + x
            state.assign(total)
            return results(state, total)

        jitted = wrap(step)
        for i in range(3):
            jitted(vector(i, 1))[0][0:1] = 50.0
        return state.tolist()

    assert run(TinyJit) == run(lambda function: function)


def test_results_of_equal_values_and_state_with_that_value_are_three_memories():
    state = Tensor.zeros(2)

    def step(x):
        with Tensor.no_grad():
            state.assign(x * 1.0)
            return (state * 1).contiguous(), state.clone()

    jitted, _ = traced(step)
    results = [jitted(vector(i, 1)) for i in range(3)]
    assert [[r.tolist() for r in pair] for pair in results] == [[[i, 1]] * 2 for i in range(3)]


def test_a_constant_outside_that_is_written_to_is_seen_while_results_are_kept():
    constant, state = Tensor.arange(2).float(), Tensor.zeros(2)

    def step(x):
        state.assign(x)
        return constant * 2

    jitted, _ = traced(step)
    results = [jitted(vector(i, 1)) for i in range(2)]
    constant[0:1] = 7.0
    results += [jitted(vector(i, 1)) for i in range(2)]
    assert [r.tolist() for r in results] == [[0, 2], [0, 2], [14, 2], [14, 2]]


def test_results_do_not_share_the_memory_of_state_that_the_first_call_made():
    state = {}

    def step(x):
        double = x * 2
        if "total" in state:
            state["total"].assign(state["total"] + x)
        else:
            state["total"] = double.clone()
        return double

    jitted, _ = traced(step)
    results = [jitted(vector(i, 1)) for i in range(4)]
    assert [r.tolist() for r in results] == [[2 * i, 2] for i in range(4)]


@pytest.mark.parametrize("make", [lambda: Tensor.eye(4)[0], lambda: Tensor.zeros(4).contiguous()])
def test_state_that_is_written_to_after_a_call_reads_that_calls_arguments_no_more(make):
    """Its items that stay come from the value before, whose history has the call's arguments."""
    state = make()
    view = state[0:4]

    def step(x):
        value = (state * 0.5 + x).tanh()
        state.assign(value)
        return value.flip(0)

    jitted, expected = TinyJit(step), state.numpy().astype(np.float64)
    for i in range(6):
        x = np.array([i, 1, -1, 0.5], np.float32)
        result = jitted(Tensor(x)).numpy()
        expected = np.tanh(expected * 0.5 + x)
        np.testing.assert_allclose(result, expected[::-1], rtol=1e-5)
        if i > 2:
            view[0:2] = 7.0
            expected[0:2] = 7
