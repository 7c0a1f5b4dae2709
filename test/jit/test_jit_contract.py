"""TinyJit: the sentences of docs/jit.md for which no other test stood, and that its table names tests."""
import ast
import dataclasses
import gc
import re
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit, Variable
from tinygrad.helpers import NOOPT
from tinygrad.jit import JitError


def vector(*values):
    return Tensor(np.array(values, np.float32))


# --- inputs -----------------------------------------------------------------------------------------


def test_a_gradient_taken_directly_is_right_where_its_tensor_is_given_too():
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()

    @TinyJit
    def step(x):
        w.grad = None
        (w * w).sum().backward()
        w.assign(w.detach() - w.grad)

    step(vector(1, 1, 1))
    assert w.tolist() == [-1, -2, -3] and w.grad.tolist() == [2, 4, 6]
    for _ in range(3):
        expected = w.numpy()
        step(w)
        np.testing.assert_array_equal(w.numpy(), -expected)
        np.testing.assert_array_equal(w.grad.numpy(), 2 * expected)


def test_a_gradient_that_is_used_both_ways_is_refused_in_every_call():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    other = Tensor([3.0, 4.0], requires_grad=True).realize()
    step = TinyJit(lambda x: (x * w).sum().backward().detach())

    def prepare():
        w.grad = other.grad = None

    prepare()
    assert step(other).item() == 11 and w.grad.tolist() == [3, 4] and other.grad.tolist() == [1, 2]
    for _ in range(2):
        prepare()
        with pytest.raises(JitError, match=r"argument 0, of shape \(2,\), .* whose gradient .* directly"):
            step(w)
    prepare()
    assert step(other).item() == 11 and w.grad.tolist() == [3, 4] and other.grad.tolist() == [1, 2]


def test_an_exception_leaves_the_gradient_that_the_function_set_directly():
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def fail(x):
        (w * 3).sum().backward()
        raise KeyError("planned")

    with pytest.raises(KeyError):
        fail(w)
    assert w.grad.tolist() == [3, 3]


@dataclasses.dataclass
class Box:
    content: list


@pytest.mark.parametrize("change, given", [
    (lambda given: given.append(1), list), (lambda given: given.update(a=1), dict),
    (lambda given: setattr(given, "content", [2]), lambda: Box([])),
    (lambda given: given.content.append(3), lambda: Box([])),
    (lambda given: given["deep"].append(3), lambda: {"deep": []}),
])
def test_changing_what_was_given_is_refused(change, given):
    def work(x, thing):
        change(thing)
        return x * 2

    with pytest.raises(JitError, match="changed a list, dict or object that it was given"):
        TinyJit(work)(vector(1), given())


# --- when it traces ---------------------------------------------------------------------------------


SETTINGS = {"no_grad": Tensor.no_grad, "training": Tensor.train, "NOOPT": lambda: Context(NOOPT=1),
            "ALLOW_TF32": lambda: Context(ALLOW_TF32=1)}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_part_of_what_is_traced(name):
    calls = []

    @TinyJit
    def double(x):
        calls.append(1)
        return x * 2

    for i in range(3):
        assert double(vector(i)).item() == 2 * i
        with SETTINGS[name]():
            assert double(vector(i)).item() == 2 * i
    assert len(calls) == 2


def test_numbers_in_attributes_lists_and_dicts_outside_are_those_of_the_trace():
    outside = SimpleNamespace(attribute=1, items=[10], entries={"a": 100})

    @TinyJit
    def add(x):
        return x + outside.attribute + outside.items[0] + outside.entries["a"]

    assert add(vector(0)).item() == 111
    outside.attribute, outside.items[0], outside.entries["a"] = 2, 20, 200
    assert add(vector(5)).item() == 116
    add.reset()
    assert add(vector(0)).item() == 222


def test_an_instance_without_weak_references_is_kept_until_reset():
    class Scale:
        __slots__ = ("weight",)

        def __init__(self):
            self.weight = vector(3).realize()

        @TinyJit
        def __call__(self, x):
            return x * self.weight

    scale = Scale()
    weight = weakref.ref(scale.weight)
    assert [scale(vector(i)).item() for i in range(3)] == [0, 3, 6]
    del scale
    gc.collect()
    assert weight() is not None
    vars(Scale)["__call__"].reset()
    gc.collect()
    assert weight() is None


# --- results and reading ----------------------------------------------------------------------------


def test_numbers_in_results_are_those_of_the_traced_call():
    drawn = iter(range(10))
    jitted = TinyJit(lambda x: (x * 2, next(drawn), x.shape[0]))
    assert [jitted(vector(i))[1:] for i in range(3)] == [(0, 1)] * 3
    assert jitted(vector(1, 2))[1:] == (1, 2)


def test_reading_the_value_of_a_variable_while_tracing_names_the_line():
    jitted = TinyJit(lambda x, n: x * n.val)
    with pytest.raises(JitError, match=rf"{__file__}:\d+: the value of a Variable was read"):
        jitted(vector(1), Variable("n", 1, 9).bind(3))


def test_choosing_with_where_follows_the_values():
    jitted = TinyJit(lambda x: (x.sum() > 0).where(x * 2, -x))
    for values in ([1, 2], [-1, -2], [3, -4], [5, 5]):
        a = np.array(values)
        assert jitted(vector(*values)).tolist() == (2 * a if a.sum() > 0 else -a).tolist()
    assert len(jitted.traces) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_no_trace_and_what_was_assigned(error):
    state, fail = vector(1).realize(), [True]

    def step(x):
        state.assign(state + x)
        if fail[0]:
            raise error
        return state * 1

    jitted = TinyJit(step)
    for i in range(3):
        with pytest.raises(error):
            jitted(vector(2))
        assert not jitted.traces and state.item() == 3 + 2 * i
    fail[0] = False
    assert [jitted(vector(1)).item() for _ in range(3)] == [8, 9, 10]


# --- state, threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reset_inside, traced", [(True, 2), (False, 5)])
def test_gradients_that_accumulate_trace_in_each_call(reset_inside, traced):
    w, calls = Tensor([1.0], requires_grad=True).realize(), []

    @TinyJit
    def step(x):
        calls.append(1)
        if reset_inside:
            w.grad = None
        (w * x).sum().backward()

    for i in range(1, 6):
        step(vector(2))
        assert w.grad.item() == (2 if reset_inside else 2 * i)
    assert len(calls) <= traced if reset_inside else len(calls) == traced


def test_a_thread_that_computes_waits_for_the_trace_of_another():
    state, started, done = vector(0).realize(), threading.Event(), threading.Event()

    def other():
        started.wait()
        (state + 1).realize()
        done.set()

    def step(x):
        started.set()
        assert not done.wait(0.2)  # it would wait forever
        return x + 1

    thread = threading.Thread(target=other)
    thread.start()
    assert TinyJit(step)(vector(1)).item() == 2
    thread.join(30)
    assert done.is_set()


def test_training_context_and_seeds_are_of_the_process():
    def in_thread(work):
        found = []
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        thread.join()
        return found[0]

    with Tensor.train(), Context(NOOPT=1):
        assert in_thread(lambda: (Tensor.training, int(NOOPT))) == (True, 1)
    Tensor.manual_seed(5)
    expected = [Tensor.rand(2).tolist() for _ in range(2)]
    Tensor.manual_seed(5)
    assert [Tensor.rand(2).tolist(), in_thread(lambda: Tensor.rand(2).tolist())] == expected


# --- the page's table -------------------------------------------------------------------------------


FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs" / "jit.md").read_text(encoding="utf-8")


def sentences():
    """Those of the page's lists, which promise something."""
    text = PAGE.partition("\n## Which test")[0]
    for item in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE):
        yield from re.split(r"(?<=\.) (?=[A-Z`])", " ".join(item.split()))


def table():
    """Its rows: how a sentence begins, and the tests that stand for it, as (file, name)."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", PAGE.partition("\n## Which test")[2], re.MULTILINE)[2:]
    for words, tests in rows:
        yield words.removesuffix(" ..."), re.findall(r"`(test_\w+)\.(\w+)`", tests)


def names_in(file):
    """The functions of a file of tests: tests, and programs that one test runs."""
    (path,) = FOLDER.parent.rglob(f"{file}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_sentence_of_the_page_has_its_tests_and_they_exist():
    rows = dict(table())
    for sentence in sentences():
        assert any(sentence.startswith(words) for words in rows), f"no test stands for: {sentence}"
    for words, tests in rows.items():
        assert tests and any(s.startswith(words) for s in sentences()), words
        for file, name in tests:
            assert name in names_in(file), f"{file}.py has no {name}"
