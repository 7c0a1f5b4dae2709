"""TinyJit: with test_jit_*.py, a test for each sentence of docs/jit.md. It does what plain calls do."""
import dataclasses
import gc
import threading
import warnings
import weakref
from collections import namedtuple

import numpy as np
import pytest
from jit_programs import traced, vector

from tinygrad import Context, GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tinygrad.helpers import NOOPT
from tinygrad.jit.jit import MAX_TRACES, JitError

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


def test_intermediates_of_many_schedules_in_a_trace_share_memory():
    """The trace kept those of each until its end: reading four prompts together took 5 GB, which then stayed
    in the cache of memory."""
    size, used = 256, []

    def step(x):
        table = x.reshape(size, 1) + x
        return (((table @ table) @ table).mean(1) / (8 * size * size)) ** (1 / 3)

    @TinyJit
    def f(x):
        for _ in range(8):
            x = step(x).realize()
            used.append(GlobalCounters.mem_used)
        return x

    for x in (np.linspace(0.5, 1.5, size), np.linspace(0.2, 1, size)):
        found = f(Tensor(x.astype(np.float32)).realize())
        for _ in range(8):
            x = step(x)
        np.testing.assert_allclose(found.numpy(), x, rtol=1e-4)
    assert len(used) == 8 and used[-1] - used[0] < 4 * size * size
