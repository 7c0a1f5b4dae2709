"""TinyJit: a test for each sentence of docs/jit.md. A jitted function does what the plain function does."""
import collections
import copy
import dataclasses
import functools
import gc
import operator
import threading
import warnings
import weakref
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
from jit_programs import traced, vector

from tinygrad import Context, GlobalCounters, Tensor, TinyJit, Variable, dtypes, nn
from tinygrad.engine.jit import MAX_TRACES, JitError
from tinygrad.graph.uop import UOp
from tinygrad.helpers import NOOPT
from tinygrad.live import live_tensors

# --- when it traces ---------------------------------------------------------------------------------


def test_the_second_call_replays():
    double, calls = traced(lambda x: x * 2)
    assert [double(vector(i, 3)).tolist() for i in range(4)] == [[2 * i, 6] for i in range(4)]
    assert len(calls) == 1


def test_another_shape_dtype_or_value_traces_again_and_the_first_trace_stays():
    scale, calls = traced(lambda x, by: x * by)
    for _ in range(3):
        assert scale(vector(1, 2), 2).tolist() == [2, 4]
        assert scale(vector(1, 2, 3), 2).tolist() == [2, 4, 6]
        assert scale(Tensor([1, 2]), 2).tolist() == [2, 4]
        assert scale(vector(1, 2), 3).tolist() == [3, 6]
        assert scale(vector(1, 2), 3.5).tolist() == [3.5, 7]
        assert scale(vector(1, 2), True).tolist() == [1, 2]
    assert len(calls) == 6


def test_the_number_of_traces_is_bounded():
    scale, calls = traced(lambda x, by: x * by)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for by in range(MAX_TRACES + 5):
            scale(vector(1), by)
    assert len(scale.traces) == MAX_TRACES
    before = len(calls)
    assert scale(vector(1), MAX_TRACES + 4).item() == MAX_TRACES + 4 and len(calls) == before
    assert scale(vector(2), 0).item() == 0 and len(calls) == before + 1


def test_keyword_and_positional_arguments_mix():
    mixed, _ = traced(lambda a, b, c=0: a * 100 + b * 10 + c)
    for i in range(3):
        a, b, c = vector(1 + i), vector(2), vector(3)
        expected = (1 + i) * 100 + 23
        assert mixed(a, b, c).item() == mixed(a, b, c=c).item() == mixed(c=c, b=b, a=a).item() == expected
        assert mixed(a, c=c, b=b).item() == expected and mixed(a, b=b).item() == expected - 3


def test_arrays_are_compared_by_their_content():
    add, calls = traced(lambda x, a: x + Tensor(a))
    a = np.array([1, 2], np.float32)
    assert add(vector(1, 1), a).tolist() == [2, 3] and add(vector(1, 1), a.copy()).tolist() == [2, 3]
    assert len(calls) == 1
    a[0] = 7
    assert add(vector(1, 1), a).tolist() == [8, 3]
    assert add(vector(1, 1), np.array([1, 2], np.float32)).tolist() == [2, 3]


def test_training_mode_is_part_of_what_is_traced():
    mode, _ = traced(lambda x: x + 1 if Tensor.training else x - 1)
    for _ in range(3):
        with Tensor.train():
            assert mode(vector(1)).item() == 2
        assert mode(vector(1)).item() == 0


def test_jit_0_runs_the_plain_function():
    count, calls = traced(lambda x: x + 1)
    with Context(JIT=0):
        assert [count(vector(i)).item() for i in range(3)] == [1, 2, 3]
    assert len(calls) == 3 and not count.traces


def test_jit_0_allows_reading_values():
    branch, _ = traced(lambda x: x if x.item() > 0 else -x)
    with Context(JIT=0):
        assert branch(vector(-3)).item() == 3


def test_reset_forgets_the_traces():
    count, calls = traced(lambda x: x + 1)
    count(vector(1))
    count.reset()
    assert count(vector(1)).item() == 2 and len(calls) == 2


def test_a_bound_variable_changes_without_a_new_trace():
    scale, calls = traced(lambda x, n: x * Tensor(n).cast("float32"))
    for n in (3, 5, 0, 3):
        assert scale(vector(1, 2), Variable("n", 0, 10).bind(n)).tolist() == [n, 2 * n]
    assert len(calls) == 1
    other = Variable("m", 0, 20).bind(4)
    assert scale(vector(1, 2), other).tolist() == [4, 8] and len(calls) == 2


# --- inputs -----------------------------------------------------------------------------------------


def test_the_same_tensor_twice_and_then_two_tensors():
    subtract, _ = traced(lambda a, b: a * 2 - b)
    x = vector(1, 2)
    for _ in range(3):
        assert subtract(x, x).tolist() == [1, 2]
        assert subtract(x, vector(5, 5)).tolist() == [-3, -1]


def test_views_as_inputs():
    double, calls = traced(lambda x: x * 2)
    table = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3)).realize()
    for i in range(4):
        assert double(table[i]).tolist() == [6 * i, 6 * i + 2, 6 * i + 4]
    assert double(table.T[1]).tolist() == [2, 8, 14, 20]
    assert double(table[0].flip(0)).tolist() == [4, 2, 0]
    assert len(calls) == 2


def test_lazy_and_constant_inputs():
    double, _ = traced(lambda x: x * 2)
    for i in range(3):
        assert double(vector(i, 1) + 1).tolist() == [2 * i + 2, 4]
        assert double(Tensor.zeros(2)).tolist() == [0, 0]


def test_an_input_assigned_inside_changes_for_the_caller():
    def add_one(x):
        x.assign(x + 1)

    jitted, _ = traced(add_one)
    for _ in range(3):
        x = vector(1, 2).realize()
        half = x * 0.5
        for i in range(3):
            assert jitted(x) is None
            assert x.tolist() == [2 + i, 3 + i]
        assert half.tolist() == [0.5, 1]


def test_an_assigned_input_that_is_returned_is_the_callers_tensor():
    def add_one(x):
        return x.assign(x + 1)

    jitted, _ = traced(add_one)
    x = vector(1).realize()
    for i in range(3):
        assert jitted(x) is x and x.item() == 2 + i


def test_assigning_to_a_view_that_was_passed_is_refused():
    def clear(x):
        x.assign(x * 0)

    jitted, _ = traced(clear)
    table = Tensor(np.ones((2, 2), np.float32)).realize()
    with pytest.raises(JitError, match=r"assigns to its tensor argument 0, of shape \(2,\).*view"):
        jitted(table[0])
    assert table.tolist() == [[1, 1], [1, 1]]
    jitted(vector(1, 2).realize())
    with pytest.raises(JitError, match="view"):
        jitted(table[0])
    assert table.tolist() == [[1, 1], [1, 1]]


def test_a_view_of_memory_that_the_function_assigns_to_is_refused():
    state = vector(1, 2, 3).realize()

    @TinyJit
    def step(x):
        state.assign(state + 1)
        return x * 10

    assert step(vector(1, 1)).tolist() == [10, 10]
    with pytest.raises(JitError, match=r"argument 0, of shape \(2,\), is a view of memory"):
        step(state[1:])
    assert step(state[1:].clone()).tolist() == [30, 40]


def test_a_captured_tensor_that_is_also_passed_and_assigned_is_refused():
    state = vector(1, 1).realize()

    @TinyJit
    def step(x):
        state.assign(state + 1)
        return x * 2

    assert step(vector(1, 1)).tolist() == [2, 2]
    with pytest.raises(JitError, match="also uses directly"):
        step(state)
    assert step(vector(3, 1)).tolist() == [6, 2] and state.tolist() == [3, 3]


def test_outputs_fed_back_as_inputs():
    step, _ = traced(lambda x, y: (y, x + y))
    x, y = vector(0), vector(1)
    for _ in range(10):
        x, y = step(x, y)
    assert (x.item(), y.item()) == (55, 89)


def test_a_trace_keeps_no_input_or_result():
    def run():
        kept, _ = traced(lambda x: (x * 2 + 1).sum())
        x = Tensor.ones(256, 1024).contiguous().realize()
        kept(x), kept(x)
        return kept

    gc.collect()
    before = GlobalCounters.mem_used
    kept = run()
    gc.collect()
    assert len(kept.traces) == 1 and GlobalCounters.mem_used - before < 300_000


def test_what_a_function_held_is_freed_with_it_without_the_collector():
    def run():
        state, arrays = vector(1).realize(), [np.ones(2, np.float32)]
        jitted, calls = traced(lambda x: x * state + Tensor(arrays[0]))
        for _ in range(4):
            jitted(vector(1, 2))
        assert len(calls) == 2
        return weakref.ref(state)

    gc.collect()
    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


# --- outputs ----------------------------------------------------------------------------------------


def test_later_calls_leave_what_earlier_ones_returned():
    square, _ = traced(lambda x: (x * x, (x * x).sum()))
    results = [square(vector(i, 1)) for i in range(5)]
    for i, (squares, total) in enumerate(results):
        assert squares.tolist() == [i * i, 1] and total.item() == i * i + 1


def test_a_constant_made_inside_belongs_to_the_caller():
    make, _ = traced(lambda x: (Tensor([1.0, 2.0]), x + Tensor([1.0, 2.0])))
    for _ in range(3):
        made, total = make(vector(1, 1))
        assert made.tolist() == [1, 2] and total.tolist() == [2, 3]
        made.assign(made * 10).realize()


def test_memory_made_and_assigned_inside_begins_anew_in_each_call():
    def accumulate(x):
        total = Tensor([10.0, 20.0])
        total.assign(total + x).realize()
        return total

    jitted, _ = traced(accumulate)
    assert [jitted(vector(i, i)).tolist() for i in range(4)] == [[10 + i, 20 + i] for i in range(4)]


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    x: Tensor
    scale: int
    parts: list


def test_structures_go_in_and_come_out():
    def work(batch, options, pair):
        total = batch.x * batch.scale + options["bias"] + batch.parts[0]
        return {"total": total, "pair": Pair(pair.right, 3), "list": [total, (None, "text", 1.5)],
                "batch": Batch(total + 1, 7, [])}

    jitted, calls = traced(work)
    for i in range(3):
        x, bias = vector(i, 1), vector(10)
        found = jitted(Batch(x, 2, [vector(100, 200)]), {"bias": bias}, Pair(None, vector(5 + i)))
        assert found["total"].tolist() == [2 * i + 110, 212]
        assert isinstance(found["pair"], Pair) and found["pair"].left.item() == 5 + i
        assert found["pair"].right == 3 and found["list"][1] == (None, "text", 1.5)
        assert found["list"][0] is found["total"]
        assert found["batch"].x.tolist() == [2 * i + 111, 213] and found["batch"].scale == 7
    assert len(calls) == 1


def test_returning_something_else_is_refused():
    class Box:
        pass

    jitted, _ = traced(lambda x: Box())
    with pytest.raises(JitError, match="returned a Box; it may return tensors"):
        jitted(vector(1))


def test_changing_an_argument_is_refused():
    def append(x, found):
        found.append(x * 2)

    jitted, _ = traced(append)
    with pytest.raises(JitError, match="changed a list"):
        jitted(vector(1), [])


def test_backward_beyond_an_argument_is_refused_in_every_call():
    w = Tensor([2.0, 3.0], requires_grad=True).realize()
    jitted, _ = traced(lambda x: (x * x).sum().backward().detach())
    assert jitted(vector(1, 2)).item() == 5
    for _ in range(2):
        with pytest.raises(JitError, match=r"reaches its tensor argument 0, of shape \(2,\), which was"):
            jitted(w * vector(1, 2))
        assert w.grad is None
    assert jitted(vector(1, 3)).item() == 10


def test_a_gradient_that_nobody_asked_for_is_an_error_where_it_is_read():
    w = vector(2, 3).realize()
    jitted, calls = traced(lambda x: (x * w).sum().backward().detach())
    for i in range(4):
        assert jitted(vector(i, 1)).item() == 2 * i + 3
        with pytest.raises(RuntimeError, match="under TinyJit.*requires_grad=True"):
            _ = w.grad
    assert len(calls) == 1


def test_backward_through_a_result_is_refused_in_every_call():
    w = Tensor([2.0], requires_grad=True).realize()
    jitted, _ = traced(lambda x: (x * w).sum())
    for _ in range(3):
        with pytest.raises(RuntimeError, match="takes gradients"):
            jitted(vector(3)).backward()
        assert w.grad is None


# --- reading values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [Tensor.item, Tensor.numpy, bool, float, Tensor.tolist])
def test_reading_a_value_while_tracing_names_the_line_and_the_remedy(read):
    jitted, _ = traced(lambda x: x * 2 if read(x) else x)
    with pytest.raises(JitError, match=rf"{__file__}:\d+: a value was read while TinyJit traces.*return the "
                       "tensor"):
        jitted(vector(1))


def test_an_exception_while_tracing_leaves_everything_usable():
    state, fail = vector(1, 2).realize(), [True]

    def step(x):
        state.assign(state + x)
        if fail[0]:
            raise KeyError("planned")
        return state.sum()

    jitted, _ = traced(step)
    with pytest.raises(KeyError, match="planned"):
        jitted(vector(1, 1))
    fail[0] = False
    assert state.tolist() == [2, 3]  # as without the JIT
    for i in range(1, 4):
        assert jitted(vector(1, 1)).item() == 5 + 2 * i


# --- state from outside -----------------------------------------------------------------------------


def test_methods_of_two_instances():
    class Counter:
        def __init__(self, step):
            self.step = step
            self.total = Tensor([0.0]).contiguous().realize()

        @TinyJit
        def add(self, x):
            self.total.assign(self.total + x * self.step)
            return self.total * 1

    one, ten = Counter(1), Counter(10)
    for i in range(1, 5):
        assert one.add(vector(1)).item() == i and ten.add(vector(2)).item() == 20 * i
    assert len(Counter.add.of_instance) == 2
    del one
    gc.collect()
    assert len(Counter.add.of_instance) == 1


def test_nested_jits():
    inner, inner_calls = traced(lambda x: x + 1)
    outer, _ = traced(lambda x: inner(inner(x)) * 2)
    assert [outer(vector(i)).item() for i in range(4)] == [4, 6, 8, 10]
    assert inner(vector(1)).item() == inner(vector(1)).item() == 2 and len(inner_calls) == 3


def test_lazy_assignments_pending_before_a_call():
    state = vector(1, 1).realize()
    jitted, _ = traced(lambda x: state + x)
    for i in range(4):
        state.assign(vector(i, i))
        assert jitted(vector(1, 1)).tolist() == [i + 1, i + 1]


def test_lazy_assignments_inside_happen_in_each_call():
    state = vector(0).realize()

    def add(x):
        state.assign(state + x)

    jitted, _ = traced(add)
    for i in range(4):
        jitted(vector(2))
        assert state.item() == 2 * i + 2


def test_lazy_readers_of_state_keep_the_old_value():
    state = vector(1).realize()

    def double():
        state.assign(state * 2)

    jitted, _ = traced(double)
    for i in range(4):
        before = state + 0.5
        jitted()
        assert state.item() == 2 ** (i + 1) and before.item() == 2**i + 0.5


def test_state_that_is_not_in_memory_yet():
    state = Tensor(0)
    jitted, calls = traced(lambda x: state.assign(state + x).sum())
    assert [jitted(Tensor(2)).item() for _ in range(5)] == [2, 4, 6, 8, 10]
    assert state.item() == 10 and len(calls) < 5


def test_lazy_random_weights_are_drawn_once():
    Tensor.manual_seed(3)
    layer = nn.Linear(4, 2)
    jitted, _ = traced(layer)
    x = Tensor.ones(1, 4)
    first = jitted(x).numpy()
    for _ in range(3):
        np.testing.assert_allclose(jitted(x).numpy(), first, rtol=1e-6)
    np.testing.assert_allclose(layer.weight.numpy().sum(1) + layer.bias.numpy(), first[0], rtol=1e-5)


def test_a_replaced_tensor_is_seen():
    model = nn.Linear(2, 1, bias=False)
    model.weight = Tensor([[1.0, 1.0]]).realize()
    jitted, _ = traced(lambda x: model(x))
    x = Tensor([[1.0, 2.0]])
    assert jitted(x).item() == 3 and jitted(x).item() == 3
    model.weight = Tensor([[10.0, 1.0]]).realize()
    assert jitted(x).item() == 12 and jitted(x).item() == 12
    model.weight.replace(Tensor([[0.0, 1.0]]).realize())
    assert jitted(x).item() == 2


CONSTANTS = {
    "number": (lambda: Tensor(2.0), lambda: Tensor(5.0)),
    "integer": (lambda: Tensor(2), lambda: Tensor(5)),
    "filled": (lambda: Tensor.full((2,), 2.0), lambda: Tensor.full((2,), 5.0)),
    "lazy": (lambda: vector(1, 1) * 2, lambda: vector(2, 2) + 3),
    "range": (lambda: Tensor.arange(2) + 1, lambda: Tensor.arange(2) * 4),
    "random": (lambda: Tensor.rand(2), lambda: Tensor.rand(2)),
    "expression of memory": (lambda: vector(1, 1).realize() * 2, lambda: vector(1, 1).realize() * 5),
}


@pytest.mark.parametrize("how", ["assign", "replace", "attribute"])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_lazy_tensor_from_outside_that_changes_is_seen(kind, how):
    first, second = CONSTANTS[kind]
    holder = SimpleNamespace(value=first())
    jitted, calls = traced(lambda x: x * holder.value)
    x = vector(1, 10)
    for _ in range(4):
        result = jitted(x).numpy()
    np.testing.assert_allclose(result, [1, 10] * holder.value.numpy(), rtol=1e-6)
    assert len(calls) <= 3
    if how == "attribute":
        holder.value = second()
    else:
        getattr(holder.value, how)(second())
    np.testing.assert_allclose(jitted(x).numpy(), [1, 10] * holder.value.numpy(), rtol=1e-6)


@pytest.mark.parametrize("how", ["assign", "replace", "attribute", "load_state_dict"])
def test_weights_of_a_layer_that_nobody_computed_can_change(how):
    layer = nn.Linear(4, 2)
    jitted, _ = traced(lambda x: layer(x))
    x = vector(1, 2, 3, 4)
    for _ in range(3):
        expected = layer.weight.numpy() @ [1, 2, 3, 4] + layer.bias.numpy()
        np.testing.assert_allclose(jitted(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    weight = Tensor([[1.0, 0, 0, 0], [0, 0, 0, 1]])
    if how == "load_state_dict":
        nn.state.load_state_dict(layer, {"weight": weight, "bias": vector(0, 0)}, verbose=False)
    elif how == "attribute":
        layer.weight, layer.bias = weight, vector(0, 0)
    else:
        getattr(layer.weight, how)(weight)
        getattr(layer.bias, how)(vector(0, 0))
    assert jitted(x).tolist() == [1, 4]


def test_a_seed_given_after_numbers_were_drawn_begins_its_sequence():
    Tensor.manual_seed(1)
    Tensor.rand(5).realize()
    jitted, calls = traced(lambda x: x + Tensor.rand(2))
    for function in (jitted, jitted):
        function(vector(0, 0))
    Tensor.manual_seed(1)
    expected = [Tensor.rand(2).tolist() for _ in range(2)]
    Tensor.manual_seed(1)
    assert [jitted(vector(0, 0)).tolist() for _ in range(2)] == expected and len(calls) == 1


def test_noise_drawn_before_a_call_stays_while_new_numbers_follow_the_seed():
    Tensor.manual_seed(7)
    noise = Tensor.rand(2)
    jitted, _ = traced(lambda x: (x + noise, Tensor.rand(2)))
    found = []
    for function in (jitted, jitted, lambda x: (x + noise, Tensor.rand(2))):
        for seed in (1, 2, 2):
            Tensor.manual_seed(seed)
            found.append([t.tolist() for t in function(vector(0, 0))])
    assert found[0:3] == found[3:6] == found[6:9]
    assert found[0][0] == noise.tolist() and found[0][1] != found[1][1] == found[2][1]


SCALE = 2


def test_a_number_that_the_code_reads_by_name_is_compared(monkeypatch):
    by = 3
    calls = []

    @TinyJit
    def scale(x):
        calls.append(1)
        return x * by + SCALE

    assert [scale(vector(i)).item() for i in range(3)] == [2, 5, 8]
    by = 4
    assert [scale(vector(i)).item() for i in range(3)] == [2, 6, 10]
    monkeypatch.setitem(globals(), "SCALE", 7)
    assert [scale(vector(i)).item() for i in range(3)] == [7, 11, 15] and len(calls) == 3


@pytest.mark.parametrize("change", [
    lambda model: model.update(layers=model["layers"][::-1]),
    lambda model: model["layers"].reverse(),
    lambda model: model["layers"].__setitem__(0, model["layers"][1]),
    lambda model: setattr(model["layers"][0], "bias", model["layers"][1].bias),
    lambda model: model.update(layers=[*model["layers"], nn.Linear(2, 2)]),
])
def test_a_name_that_leads_to_another_living_tensor_is_seen(change):
    Tensor.manual_seed(5)
    model = {"layers": [nn.Linear(2, 2), nn.Linear(2, 2)]}
    for layer in model["layers"]:
        layer.bias.replace(Tensor.rand(2).realize())
    everything = [(layer.weight, layer.bias) for layer in model["layers"]]  # all of it lives on
    jitted, calls = traced(lambda x: x.sequential(model["layers"]))
    x = vector(1, 2)
    for _ in range(4):
        jitted(x)
    before, first = len(calls), jitted(x).numpy()
    change(model)
    expected = x.sequential(model["layers"]).numpy()
    assert not np.allclose(first, expected) and len(everything) == 2 and before < 4
    for _ in range(2):
        np.testing.assert_allclose(jitted(x).numpy(), expected, rtol=1e-6)


def test_counting_calls_inside_does_not_trace_again():
    count = 0

    @TinyJit
    def step(x):
        nonlocal count
        count += 1
        return x + 1

    assert [step(vector(i)).item() for i in range(5)] == [1, 2, 3, 4, 5] and count == 1


def in_an_attribute(x, holder):
    if not hasattr(holder, "state"):
        holder.state = Tensor.zeros(2).contiguous().realize()
    return holder.state


def in_a_dict(x, holder):
    if "state" not in holder.entries:
        holder.entries["state"] = Tensor.zeros(2).contiguous().realize()
    return holder.entries["state"]


def in_a_list(x, holder):
    if not holder.items:
        holder.items.append(Tensor.zeros(2).contiguous().realize())
    return holder.items[0]


def in_a_class(x, holder):
    if holder.of_class.state is None:
        holder.of_class.state = Tensor.zeros(2).contiguous().realize()
    return holder.of_class.state


@pytest.mark.parametrize("state_of", [in_an_attribute, in_a_dict, in_a_list, in_a_class])
def test_state_that_the_first_call_makes_is_found_by_the_next(state_of):
    class OfClass:
        state = None

    holder = SimpleNamespace(entries={}, items=[], of_class=OfClass)

    def step(x):
        state = state_of(x, holder)
        state.assign(state + x)
        return state * 10

    jitted, calls = traced(step)
    assert [jitted(vector(i, 1)).tolist() for i in range(5)] == [
        [10 * sum(range(i + 1)), 10 * (i + 1)] for i in range(5)]
    assert len(calls) == 2


def test_a_tensor_that_each_call_keeps_in_the_same_place_is_replayed():
    kept = SimpleNamespace()

    def step(x):
        kept.last = x * 2
        return x + 1

    jitted, calls = traced(step)
    assert [jitted(vector(i)).item() for i in range(5)] == [1, 2, 3, 4, 5] and len(calls) == 2


class TimesTwo:
    factor = 2

    def __call__(self, x):
        return x * self.factor

    def method(self, x):
        return x + self.factor


class TimesThree(TimesTwo):
    factor = 3


@pytest.mark.parametrize("first, second", [
    (lambda x: x * 2, lambda x: x * 3), (TimesTwo(), TimesThree()), (TimesTwo().method, TimesThree().method),
    (functools.partial(operator.mul, 2), functools.partial(operator.mul, 3))])
def test_an_object_that_the_code_reads_by_name_is_compared(first, second):
    operation = first

    def step(x):
        return operation(x)

    jitted, calls = traced(step)
    for operation in (first, first, second, second, first):
        assert jitted(vector(5, 7)).tolist() == operation(vector(5, 7)).tolist()
    assert len(calls) == 3


@pytest.mark.parametrize("make", [
    lambda w: collections.deque([w]), lambda w: Slotted(w), lambda w: type("Holds", (), {"state": w})])
def test_tensors_in_other_holders_are_followed(make):
    first, second = vector(2).realize(), vector(3).realize()
    holder = make(first)

    def set_to(w):
        if isinstance(holder, collections.deque):
            holder[0] = w
        else:
            holder.state = w

    def step(x):
        return x * (holder[0] if isinstance(holder, collections.deque) else holder.state)

    jitted, _ = traced(step)
    results = []
    for w in (first, first, second, first):
        set_to(w)
        results.append(jitted(vector(5)).item())
    assert results == [10, 10, 15, 10]


class Slotted:
    __slots__ = ("__weakref__", "state")

    def __init__(self, state):
        self.state = state


def test_a_replay_makes_no_nodes_for_the_state_that_it_changes(monkeypatch):
    made = []
    for count in (2, 20):
        states = [vector(i).realize() for i in range(count)]
        unrelated = vector(1) + 1  # lazy

        def step(x, states=states):
            for state in states:
                state.assign(state + x)
            return x * 2

        jitted, _ = traced(step)
        x = vector(1).realize()
        jitted(x)
        jitted(x)
        real, nodes = UOp.new, []

        def counted(*args, real=real, nodes=nodes):
            nodes.append(args)
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(UOp, "new", staticmethod(counted))
            jitted(x)
        made.append(len(nodes))
        assert [s.item() for s in states] == [i + 3 for i in range(count)] and unrelated.item() == 2
    assert made[0] == made[1]


def test_state_that_is_rebound_in_each_call_is_right_and_warned_of():
    state = {"h": vector(0).realize()}

    def step(x):
        state["h"] = (state["h"] + x).realize()
        return state["h"] * 1

    jitted, _ = traced(step)
    with pytest.warns(UserWarning, match="replayed nothing.*assign"):
        assert [jitted(vector(1)).item() for _ in range(10)] == list(range(1, 11))


def test_an_optimizer_step_and_batch_norm_equal_the_plain_function():
    def train(jit):
        Tensor.manual_seed(1)
        layer, norm = nn.Linear(4, 3), nn.BatchNorm(3)
        optimizer = nn.optim.Adam(nn.state.get_parameters([layer, norm]), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = (norm(layer(x)) * x[:, :3]).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call = TinyJit(step) if jit else step
        rng = np.random.default_rng(0)
        with Tensor.train():
            losses = [call(Tensor(rng.standard_normal((8, 4), np.float32))).item() for _ in range(6)]
        state = [layer.weight, layer.weight.grad, norm.running_mean, norm.running_var]
        return [np.array(losses), *(t.numpy() for t in state)]

    for plain, jitted in zip(train(False), train(True), strict=True):
        np.testing.assert_allclose(jitted, plain, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("zero", [True, False])
def test_gradients_are_those_of_the_last_call_or_accumulate(zero):
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def step(x):
        if zero:
            w.grad = None
        (w * x).sum().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        total = 0
        for i in range(5):
            step(vector(i, 1))
            total += i
            assert w.grad.tolist() == ([i, 1] if zero else [total, i + 1])


@pytest.mark.parametrize("seed", range(4))
def test_gradients_that_were_read_keep_their_values_and_others_are_those_of_the_last_call(seed):
    rng = np.random.default_rng(seed)
    weights = [Tensor(np.full(3, i + 1, np.float32), requires_grad=True).realize() for i in range(5)]

    def step(x):
        for w in weights:
            w.grad = None
        total = sum((w * w * x).sum() for w in weights)
        return total.backward().detach()

    jitted, calls = traced(step)
    kept = []
    for call in range(12):
        x = rng.integers(-5, 5, 3).astype(np.float32)
        jitted(Tensor(x))
        for i, w in enumerate(weights):
            how = rng.integers(6)
            if how == 0:
                kept.append((w.grad, 2 * (i + 1) * x))
            elif how == 1:
                kept.append((w.grad * 2, 4 * (i + 1) * x))  # lazy
            elif how == 2:
                kept.append((copy.copy(w).grad, 2 * (i + 1) * x))
            elif how == 3:
                w.grad = None
            elif how == 4:
                np.testing.assert_array_equal(w.grad.numpy(), 2 * (i + 1) * x)
        for gradient, expected in kept:
            assert gradient.requires_grad in (False, None)
            if rng.integers(3) == 0 or call == 11:
                np.testing.assert_array_equal(gradient.numpy(), expected)
    assert len(calls) == 1


def test_gradients_that_nobody_reads_keep_their_memory_from_replay_to_replay():
    w = Tensor(np.ones(1000, np.float32), requires_grad=True).realize()

    @TinyJit
    def step(x):
        w.grad = None
        return (w * x).sum().backward().detach()

    x = vector(*range(1000))
    for _ in range(3):
        step(x)
    gc.collect()
    before, tensors = GlobalCounters.mem_used, len(live_tensors())
    addresses = set()
    for _ in range(5):
        step(x)
        addresses.add(w._left.buffers[0].address)
    assert GlobalCounters.mem_used == before and len(addresses) == 1 and len(live_tensors()) == tensors
    kept = w.grad
    step(x)
    assert GlobalCounters.mem_used == before + 4000  # the one that was read, and another one
    assert kept.tolist() == w.grad.tolist() == list(range(1000))
    del kept
    w.grad = None
    gc.collect()
    assert GlobalCounters.mem_used == before - 4000


def test_gradients_of_calls_of_two_kinds_are_those_of_the_last_call():
    weights = [Tensor(np.full(1000, i + 1, np.float32), requires_grad=True).realize() for i in range(3)]

    def step(x):
        for w in weights:
            w.grad = None
        return (sum((w * w).sum() for w in weights) * x.sum()).backward().detach()

    jitted, calls = traced(step)
    gc.collect()
    before = GlobalCounters.mem_used
    for call, size in enumerate((2, 3, 2, 3, 3, 2, 3, 2, 2)):
        jitted(vector(*range(size)))
        for i, w in enumerate(weights[:2] if call % 4 == 1 else ()):
            np.testing.assert_array_equal(w.grad.numpy(), np.full(1000, 2 * (i + 1) * sum(range(size))))
    np.testing.assert_array_equal(weights[2].grad.numpy(), np.full(1000, 6))
    assert len(calls) == 2
    for w in weights:
        w.grad = None
    gc.collect()
    assert GlobalCounters.mem_used - before < 4000  # what was left is nobody's: not one of them is kept


@pytest.mark.parametrize("seed", range(3))
def test_each_tensor_given_has_the_gradient_of_its_own_call(seed):
    rng = np.random.default_rng(seed)
    w = Tensor([2.0, 3.0], requires_grad=True).realize()
    given = [Tensor([float(i), 1.0], requires_grad=True).realize() for i in range(3)]

    def step(x, scale):
        x.grad = w.grad = None
        return (w * x * scale).sum().backward().detach()

    jitted, calls = traced(step)
    expected = [None] * 3
    for call in range(20):
        i, scale = int(rng.integers(3)), call + 1.0
        jitted(given[i], vector(scale, scale))
        expected[i], of_w = [2 * scale, 3 * scale], [i * scale, scale]
        for other in np.flatnonzero(rng.integers(3, size=3) == 0):
            gradient = given[other].grad
            assert (gradient is None) == (expected[other] is None)
            assert gradient is None or gradient.tolist() == expected[other]
        if rng.integers(4) == 0:
            assert w.grad.tolist() == of_w
        if rng.integers(4) == 0:
            given[i].grad = expected[i] = None
    assert len(calls) == 1


def test_a_gradient_that_nobody_read_is_seen_by_what_is_traced_later():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def back(x):
        w.grad = None
        (w * x).sum().backward()

    @TinyJit
    def use(y):
        return w.grad * y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(1, 7):
            back(vector(i, 2))
            assert use(vector(10, 20)).tolist() == [10 * i, 40]


@pytest.mark.parametrize("twice", ["returned", "shared", "argument", "views"])
def test_gradients_that_share_memory_with_something_else(twice):
    a, b = (Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2))

    def step(x):
        a.grad = b.grad = None
        (a * x + b * x).sum().backward()
        if twice == "shared":
            b.grad = a.grad
        elif twice == "argument":
            b.grad = x
        elif twice == "views":
            b.grad = a.grad.reshape(2, 1).expand(2, 2).reshape(4)[::2]
        return a.grad if twice == "returned" else x + 1

    jitted, _ = traced(step)
    kept = []
    for i in range(6):
        result = jitted(vector(i, 3))
        kept.append((result, [i, 3] if twice == "returned" else [i + 1, 4]))
        if i % 3:
            kept.append((a.grad, [i, 3]))
        if i % 2:
            kept.append((b.grad, [i, 3]))
        for value, expected in kept:
            assert value.tolist() == expected


# --- random numbers ---------------------------------------------------------------------------------


def test_random_numbers_equal_those_of_the_plain_function():
    def draw(x):
        return x + Tensor.rand(3), Tensor.randn(2)

    jitted, calls = traced(draw)
    sequences = []
    for function in (draw, jitted, jitted):
        Tensor.manual_seed(42)
        rows = []
        for i in range(4):
            a, b = function(Tensor.zeros(3))
            rows.append([*a.tolist(), *b.tolist(), *(Tensor.rand(1).tolist() if i % 2 else [])])
        sequences.append(rows)
    assert sequences[0] == sequences[1] == sequences[2]
    assert len({tuple(row) for row in sequences[0]}) == 4 and len(calls) == 1
    other = []
    for function in (draw, jitted):
        Tensor.manual_seed(43)
        other.append([t.tolist() for t in function(Tensor.zeros(3))])
    assert other[0] == other[1] and other[0][0] != sequences[0][0][:3] and len(calls) == 1


@pytest.mark.parametrize("drawn_on, used_on", [("PYTHON", "PYTHON"), ("CPU:1", "CPU:1"), ("PYTHON", "CPU")])
def test_random_numbers_of_other_devices_advance_too(drawn_on, used_on):
    def noisy(x):
        return (Tensor.rand(5, device=drawn_on) * x).contiguous().sum()

    jitted, calls = traced(noisy)
    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=used_on).realize()
    sequences = []
    for function in (noisy, jitted, jitted):
        Tensor.manual_seed(3)
        sequences.append([function(x).item() for _ in range(4)])
    assert sequences[0] == sequences[1] == sequences[2]
    assert len(set(sequences[0])) == 4 and len(calls) == 1


@pytest.mark.parametrize("name", ["rng", "seed"])
def test_a_variable_of_any_name_leaves_random_numbers_alone(name):
    def draw(x, n):
        return x * Tensor(n).cast("float32") + Tensor.rand(2)

    jitted, calls = traced(draw)
    for n in (3, 3, 7, 2):
        found = []
        for function in (draw, jitted):
            Tensor.manual_seed(n)
            found.append(function(vector(10, 20), Variable(name, 0, 10).bind(n)).tolist())
        assert found[0] == found[1] and n * 10 <= found[1][0] < n * 10 + 1
    assert len(calls) == 1


def test_rounding_to_tf32_is_part_of_what_is_traced():
    jitted, calls = traced(lambda x: x * 2)
    for allowed in (0, 1, 0, 1):
        with Context(ALLOW_TF32=allowed):
            assert jitted(vector(3)).item() == 6
    assert len(calls) == 2


def test_another_threads_assignments_and_gradients_stay_out_of_a_trace():
    begun, go_on = threading.Event(), threading.Event()
    mine, others = vector(0).realize(), vector(0).realize()
    weight = Tensor([2.0], requires_grad=True).realize()

    @TinyJit
    def step(x):
        begun.set()
        go_on.wait(0.2)
        mine.assign(mine + x)

    def work():
        begun.wait()
        others.assign(others + 1)
        (weight * 3).sum().backward()
        go_on.set()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        step(vector(1))
    thread.join()
    weight.grad = None
    for _ in range(3):
        step(vector(1))
    assert (mine.item(), others.item(), weight.grad) == (6, 1, None)


def test_no_grad_is_of_one_thread():
    inside, done = threading.Event(), threading.Event()

    def watch():
        with Tensor.no_grad():
            inside.set()
            done.wait()

    thread = threading.Thread(target=watch)
    thread.start()
    inside.wait()
    x = Tensor([2.0], requires_grad=True)
    (x * x).sum().backward()
    done.set()
    thread.join()
    assert x.grad is not None and x.grad.item() == 4


def test_blocks_that_end_in_another_order_leave_what_was_before():
    first, second = Context(NOOPT=1, BEAM=0), Context(NOOPT=2)
    before = NOOPT.value
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert NOOPT.value == 2
    second.__exit__()
    assert NOOPT.value == before
    training, evaluating = Tensor.train(), Tensor.test()
    training.__enter__()
    evaluating.__enter__()
    training.__exit__()
    evaluating.__exit__()
    assert Tensor.training is False


def test_seeding_inside_is_refused():
    def draw(x):
        Tensor.manual_seed(1)
        return x + Tensor.rand(1)

    jitted, _ = traced(draw)
    with pytest.raises(JitError, match="manual_seed"):
        jitted(vector(1))


# --- sizes that depend on values --------------------------------------------------------------------


@pytest.mark.parametrize(("function", "what", "instead"), [
    (lambda x: x.nonzero(), "nonzero", r"x\.nonzero\(size=n\)"),
    (lambda x: x.masked_select(x > 0), "masked_select", r"x\.masked_select\(mask, size=n\)"),
    (lambda x: x[x > 0], "an index by a mask", r"x\.masked_select\(mask, size=n\)"),
])
def test_a_size_that_depends_on_values_is_refused(function, what, instead):
    jitted, _ = traced(function)
    with pytest.raises(JitError, match=rf"test_jit.py:\d+: the size of {what} depends on values.*{instead}"):
        jitted(vector(1, 0, 2))


def test_sizes_that_are_given_follow_the_values():
    def chosen(x):
        return x.nonzero(size=3, fill_value=-1), x.masked_select(x > 1, size=2, fill_value=9)

    jitted, calls = traced(chosen)
    for values in ([0, 3, 0, 5], [1, 1, 1, 1], [0, 0, 2, 0], [7, 6, 5, 4]):
        places, items = jitted(vector(*values))
        where = [i for i, v in enumerate(values) if v]
        assert places.tolist() == [[i] for i in (where + [-1] * 3)[:3]]
        assert items.tolist() == ([v for v in values if v > 1] + [9, 9])[:2]
    assert len(calls) == 1


# --- counters ---------------------------------------------------------------------------------------


def test_replays_count_what_they_run(capsys):
    state = Tensor.zeros(16).contiguous().realize()

    def step(x):
        y = (x * 2).realize() + x.sum()
        state.assign(state + y)
        return y

    def counted(call):
        GlobalCounters.reset()
        call()
        return GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem

    jitted, _ = traced(step)
    x = Tensor.ones(16).contiguous().realize()
    jitted(x)
    plain = counted(lambda: (step(x).realize(state)))
    assert counted(lambda: jitted(x)) == plain and plain[0] > 1
    capsys.readouterr()
    with Context(DEBUG=2):
        assert counted(lambda: jitted(x)) == plain
    assert len(capsys.readouterr().out.strip().splitlines()) == plain[0]
    np.testing.assert_allclose(state.numpy(), 4 * 18)


def test_memory_made_by_contiguous_is_written_in_place_and_replayed():
    cache = Tensor.zeros(3, 2).contiguous().realize()
    jitted, calls = traced(lambda x, i: cache.shrink(((i, i + 1), (0, 2))).assign(x).sum() + cache.sum())
    for i in (0, 1, 2, 0, 1):
        jitted(vector(i, 10).reshape(1, 2), i)
    assert cache.tolist() == [[0, 10], [1, 10], [2, 10]] and len(calls) == 3


# --- what the function keeps ------------------------------------------------------------------------


def test_tensors_kept_while_tracing_have_the_values_of_that_call():
    kept = []

    def keep(x, y):
        middle = (y * 10).realize()
        kept.extend([x, x[1:], x * 2, middle + x, middle])
        x.assign(x + 1)
        kept.append(x + 0.5)
        return x * 1

    plain, jitted = TinyJit(keep), keep
    results = []
    for function in (plain, jitted):
        kept.clear()
        a = vector(1, 2)
        function(a, vector(3, 4))
        results.append([t.tolist() for t in kept])
    expected = [[2, 3], [3], [2, 4], [31, 42], [30, 40], [2.5, 3.5]]
    assert results == [expected, expected]
    first = kept[0]
    for _ in range(3):
        plain(vector(5, 6), vector(7, 8))
    assert first.tolist() == [2, 3]


def test_default_dtypes_are_part_of_what_is_traced(monkeypatch):
    jitted, calls = traced(lambda x: x + Tensor.arange(2) + Tensor([1, 2]).sum())
    x = Tensor([1, 2], dtype=dtypes.int8)
    for kind in (dtypes.int32, dtypes.int64, dtypes.int32):
        monkeypatch.setattr(dtypes, "default_int", kind)
        assert jitted(x).dtype is kind and jitted(x).tolist() == [4, 6]
    assert len(calls) == 4  # twice each, for the list that is made inside
