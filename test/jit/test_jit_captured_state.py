"""TinyJit: tensors, arrays and numbers from outside a function: how they are found, compared and assigned."""
import collections
import functools
import gc
import operator
from types import SimpleNamespace

import numpy as np
import pytest
from jit_programs import held, traced, vector

from tinygrad import Context, Tensor, TinyJit, nn
from tinygrad.graph.uop import UOp


def test_what_changed_is_said_where_a_function_is_traced_again(capsys):
    scale = 2
    weight = Tensor([3.0]).realize()
    array = np.ones(1, np.float32)

    @TinyJit
    def run(x):
        return x * weight * scale + Tensor(array)

    def reason():
        run(vector(1)).realize()
        found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("TinyJit")]
        return found[0].partition("traced again, for ")[2] if found else ""

    for _ in range(3):
        run(vector(1)).realize()
    with Context(DEBUG=2):
        assert reason() == ""
        scale = 5
        assert reason() == "a number or text that its code reads changed"
        assert reason() == ""
        weight = Tensor([4.0]).realize()
        assert reason() == "the tensors that it uses from outside changed"
        assert reason() == ""
        array[0] = 7
        assert reason() == "an array or list that a tensor is made of changed"
        assert run(vector(1)).item() == 1 * 4 * 5 + 7


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


def test_state_that_each_call_rebinds_is_right_while_somebody_holds_the_old_one():
    """The way leads to a tensor that the call made, and the one that it used still lives."""
    state = SimpleNamespace(h=held(0))

    def step(x):
        state.h = (state.h * 2 + x).realize()
        return state.h + 1

    jitted, _ = traced(step)
    history, expected = [], 0
    with pytest.warns(UserWarning, match="8 times in a row"):
        for _ in range(9):
            expected = expected * 2 + 1
            assert jitted(vector(1)).item() == expected + 1 and state.h.item() == expected
            history.append(state.h)


@pytest.mark.parametrize("first", [lambda: vector(1), lambda: held(1)])
def test_state_that_each_call_rebinds_and_leaves_lazy_is_right(first):
    """Nothing of the state is computed in the call; what is below a lazy tensor that it keeps is used too."""
    state = SimpleNamespace(h=first(), items=[first()])

    def step(x):
        state.h = state.h * 2 + x
        state.items[0] = state.items[0] - x
        return x + 1

    jitted, _ = traced(step)
    for _ in range(4):
        jitted(vector(1))
    assert state.h.item() == 31 and state.items[0].item() == -3


def test_tensors_that_change_places_in_each_call_do_so():
    """Two buffers of which one is filled outside while the other is shown: the call computes with neither."""
    state = SimpleNamespace(front=held(1), back=held(2))

    def flip(x):
        state.front, state.back = state.back, state.front
        return x + 1

    jitted, _ = traced(flip)
    for i in range(4):
        jitted(vector(1))
        assert (state.front.item(), state.back.item()) == ((2, 1) if i % 2 == 0 else (1, 2))


@pytest.mark.parametrize("given", [False, True])
def test_a_lazy_tensor_that_a_call_keeps_reads_what_the_call_wrote(given):
    """What the trace wrote was taken for overwritten once more, and the lazy tensor for lost."""
    state = SimpleNamespace(count=held(0), last=None)

    def step(x):
        count = x if given else state.count
        count += 1
        state.last = count * 3
        return x * 2

    jitted, _ = traced(step)
    for i in range(4):
        x = held(5)
        assert jitted(x).item() == (12 if given else 10)
        assert state.last.item() == (18 if given else 3 * min(i + 1, 2))  # of the last call that was traced
        assert (x if given else state.count).item() == (6 if given else i + 1)


def test_state_that_moves_from_place_to_place_is_right_while_somebody_holds_the_old_one():
    def run(jit):
        state, history, results = SimpleNamespace(old=held(1), new=held(2)), [], []

        @jit
        def step(x):
            made = (state.old * 2 + x).realize()
            state.old, state.new = state.new, made
            return made + 0

        for _ in range(6):
            results.append(step(vector(1)).item())
            history.append((state.old, state.new))
        return results

    assert run(TinyJit) == run(lambda function: function)


@pytest.mark.parametrize("calls_before", [1, 2, 3])
def test_state_that_is_taken_away_is_made_again_and_found(calls_before):
    """A sequence begins anew: the trace of its first call is none of those after it."""
    state = SimpleNamespace(h=None)

    def step(x):
        if state.h is None:
            state.h = Tensor.zeros(1).contiguous()
        state.h = (state.h * 2 + x).realize()
        return state.h + 1

    jitted, _ = traced(step)
    for count in (calls_before, 4):
        state.h = None
        assert [jitted(vector(1)).item() for _ in range(count)] == [2 ** (i + 1) for i in range(count)]


def test_an_attribute_that_was_none_is_seen():
    model = nn.Linear(2, 2, bias=False)
    holder = SimpleNamespace(model=model, adapter=None, mask=None, unread=None)

    def step(x):
        y = holder.model(x)
        y = y if holder.adapter is None else y + holder.adapter(x)
        return y if holder.mask is None else y * holder.mask

    jitted, calls = traced(step)

    def check(traces):
        x = Tensor.rand(1, 2)
        for _ in range(2):
            np.testing.assert_allclose(jitted(x).numpy(), step(x).numpy(), rtol=1e-6)
        assert len(calls) == traces

    check(1)
    holder.mask = held(3, 5)
    check(2)
    holder.adapter = nn.Linear(2, 2)
    check(3)
    model.bias = held(7, 9)
    check(4)
    holder.unread = held(1)
    check(4)
    holder.mask = None
    check(5)


def test_what_a_call_keeps_is_kept_again_where_it_was_taken_away():
    kept = {}

    def step(x):
        kept["last"] = x * 2
        return x + 1

    jitted, calls = traced(step)
    for i in range(4):
        assert jitted(vector(i)).item() == i + 1
    assert len(calls) == 2
    kept.clear()
    assert jitted(vector(7)).item() == 8 and kept["last"].item() == 14


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


@pytest.mark.parametrize("make", [lambda: Tensor.arange(2).float(), lambda: vector(0, 1).realize(),
                                  lambda: vector(0, 1) * 1.0])
@pytest.mark.parametrize("write", [lambda t: t[0:1].assign(Tensor([7.0])), lambda t: t.assign(t + 7)])
def test_a_value_computed_outside_of_an_equal_expression_is_no_constant(make, write):
    state = make()
    kept = [(state * 2).realize()]
    jitted, calls = traced(lambda x: state * 2 + x)
    found, expected = [], []
    for i in range(5):
        found.append(jitted(vector(0, 0)).tolist())
        expected.append([2 * v for v in state.tolist()])
        if i == 1:
            write(state)
    assert found == expected and kept[0].tolist() == [0, 2] and len(calls) <= 3


def test_a_value_computed_outside_is_used_while_what_it_came_from_changes():
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    value = (weight * 2).realize()
    jitted, calls = traced(lambda x: value + x)
    for _ in range(5):
        assert jitted(vector(0, 0)).tolist() == [2, 4]
        weight.assign(weight + 1).realize()
    assert len(calls) <= 2


def test_state_through_which_gradients_flow_from_call_to_call_is_right_and_warned_of():
    states = [Tensor.zeros(1).contiguous(), Tensor.zeros(1).contiguous()]

    def step(x):
        for state in states:
            x = state + x
            state.assign(x)
        return x

    jitted, _ = traced(step)
    with pytest.warns(UserWarning, match=r"replayed nothing: it assigns.*gradients.*\.realize\(\), or"):
        assert [jitted(vector(1)).item() for _ in range(9)] == [n * (n + 1) // 2 for n in range(1, 10)]


def test_state_that_is_rebound_in_each_call_is_right_and_warned_of():
    state = {"h": vector(0).realize()}

    def step(x):
        state["h"] = (state["h"] + x).realize()
        return state["h"] * 1

    jitted, _ = traced(step)
    with pytest.warns(UserWarning, match="replayed nothing.*assign"):
        assert [jitted(vector(1)).item() for _ in range(10)] == list(range(1, 11))
