"""Captured functions pickled and loaded: equal results in another process without compiling, and refusal of
what is damaged, foreign, or not what was traced."""
import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit, Variable, nn
from tinygrad.codegen import compile as compiling
from tinygrad.jit import saved as saving
from tinygrad.jit.jit import JitError, loaded
from tinygrad.runtime import llvm


def vector(*values):
    return Tensor(np.array(values, np.float32))


def captured(function, *calls):
    """The function under TinyJit, called with each of `calls`, a tuple of arguments, three times."""
    jitted = TinyJit(function)
    for arguments in calls:
        for _ in range(3):
            jitted(*arguments)
    assert jitted.traces
    return jitted


def reloaded(value):
    return pickle.loads(pickle.dumps(value))


@dataclasses.dataclass
class Point:
    x: Tensor
    y: Tensor


class Model:
    def __init__(self):
        self.weight = vector(1, 2, 3)
        self.count = Tensor([0])

    @TinyJit
    def step(self, x):
        self.count.assign(self.count + 1)
        return (x * self.weight).sum() + self.count


# --- what is loaded does what was saved ---------------------------------------------------------------------


def test_arguments_and_results_of_every_structure():
    def swap(point, numbers, factor=1):
        return {"swapped": Point(point.y * factor, point.x), "total": [sum(numbers, start=point.x), 7, None]}

    jitted = reloaded(captured(swap, (Point(vector(1), vector(2)), [vector(3), vector(4)]),
                               (Point(vector(1), vector(2)), [vector(3)], 5)))
    first = jitted(Point(vector(10), vector(20)), [vector(30), vector(40)])
    assert first["swapped"].x.tolist() == [20] and first["swapped"].y.tolist() == [10]
    assert first["total"][0].tolist() == [80] and first["total"][1:] == [7, None]
    second = jitted(Point(vector(10), vector(20)), [vector(30)], 5)
    assert second["swapped"].x.tolist() == [100] and first["swapped"].x.tolist() == [20]


def test_captured_weights_and_state_come_along():
    weight, count = vector(1, 2), Tensor([0])

    def step(x):
        count.assign(count + 1)
        return x * weight + count

    original = captured(step, (vector(1, 1),))
    copied = reloaded(original)
    assert copied(vector(10, 20)).tolist() == [14, 44] and copied(vector(10, 20)).tolist() == [15, 45]
    assert count.tolist() == [3] and original(vector(10, 20)).tolist() == [14, 44]
    weight.assign(vector(5, 5))
    assert original(vector(1, 1)).tolist() == [10, 10] and copied(vector(1, 1)).tolist() == [7, 8]


def test_tensors_of_the_same_file_are_the_functions_own():
    layer = nn.Linear(3, 2)
    jitted, model = reloaded((captured(lambda x: layer(x), (vector(1, 2, 3),)), layer))
    expected = model.weight.numpy()[:, 0] + model.bias.numpy()
    np.testing.assert_allclose(jitted(vector(1, 0, 0)).numpy(), expected, rtol=1e-5)
    model.weight.assign(Tensor.ones(2, 3))
    model.bias.assign(Tensor.zeros(2))
    assert jitted(vector(1, 2, 3)).tolist() == [6, 6]
    assert layer.bias.tolist() != [0, 0]


def test_a_training_step_goes_on_where_it_was_saved():
    def new():
        Tensor.manual_seed(0)
        layer = nn.Linear(4, 1)
        optimizer = nn.optim.Adam([layer.weight, layer.bias], lr=0.1)

        def step(x, y):
            with Tensor.train():
                optimizer.zero_grad()
                loss = ((layer(x.dropout(0.2)) - y) ** 2).mean()
                loss.backward()
                optimizer.step()
                return loss

        return step

    x, y = Tensor(np.eye(4, dtype=np.float32)), vector(1, 2, 3, 4).reshape(4, 1)
    step = new()
    Tensor.manual_seed(1)
    plain = [step(x, y).item() for _ in range(8)]
    step = new()
    Tensor.manual_seed(1)
    jitted = TinyJit(step)
    losses = [jitted(x, y).item() for _ in range(5)]
    losses += [f(x, y).item() for f in [reloaded(jitted)] for _ in range(3)]
    np.testing.assert_allclose(losses, plain, rtol=1e-4)


def test_random_numbers_follow_the_seed_of_the_process():
    jitted = reloaded(captured(lambda x: x + Tensor.rand(3), (vector(0, 0, 0),)))
    for seed in (3, 4):
        Tensor.manual_seed(seed)
        expected = [Tensor.rand(3).tolist() for _ in range(3)]
        Tensor.manual_seed(seed)
        assert [jitted(vector(0, 0, 0)).tolist() for _ in range(3)] == expected
    assert expected[0] != expected[1]


def test_a_variable_still_changes():
    n = Variable("n", 0, 9)
    jitted = reloaded(captured(lambda x, n: x * Tensor(n).cast("float32"), (vector(1, 2), n.bind(3))))
    assert [jitted(vector(1, 2), n.bind(i)).tolist() for i in (3, 7, 0)] == [[3, 6], [7, 14], [0, 0]]


def test_a_size_still_changes():
    n = Variable("n", 1, 4)
    x = vector(1, 2, 3, 4)

    def head(x, n):
        return x[:n] * 2, x[:n].sum()

    jitted = reloaded(captured(head, (x, n.bind(3))))
    for i in (1, 4, 2):
        doubled, total = jitted(x, n.bind(i))
        assert doubled.tolist() == [2, 4, 6, 8][:i] and total.item() == sum([1, 2, 3, 4][:i])


def test_an_input_assigned_inside_and_memory_made_inside():
    def step(x):
        made = Tensor([1.0, 2.0])
        made.assign(made + x)
        x.assign(x * 2)
        return made, x

    jitted = reloaded(captured(step, (vector(0, 0),)))
    x = vector(3, 4)
    for factor in (1, 2):
        made, same = jitted(x)
        assert made.tolist() == [1 + 3 * factor, 2 + 4 * factor] and same is x
    assert x.tolist() == [12, 16]


def test_methods_take_their_instance_along():
    model = Model()
    for _ in range(3):
        model.step(vector(1, 1, 1))
    step, other = reloaded((model.step, model))
    assert step.instance is other and step(vector(1, 0, 0)).tolist() == [5] and other.count.tolist() == [4]
    assert model.count.tolist() == [3] and model.step(vector(1, 0, 0)).tolist() == [5]


def test_what_was_loaded_can_be_saved_again():
    once = reloaded(captured(lambda x: x * 3, (vector(1, 2),)))
    assert reloaded(once)(vector(5, 6)).tolist() == [15, 18]


@pytest.mark.parametrize("device", ["PYTHON", "PYTHON:BLOCKS", "CPU:C"])
def test_other_devices(device):
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    jitted = reloaded(captured(lambda x: ((x @ x).to("CPU") + 1).to(device).sum(0), (x,)))
    assert jitted(x * 2).tolist() == [(7 + 15) * 4 + 2, (10 + 22) * 4 + 2]


PROGRAM = """
import pickle, sys
import numpy as np
from tinygrad import Tensor, TinyJit, nn
from tinygrad.codegen import compile as compiling
from tinygrad.runtime import cpu_pool, llvm
def refuse(*given): raise SystemExit("compiled")
if sys.argv[1] == "save":
    Tensor.manual_seed(1)
    layer = nn.Linear(16, 4)
    jitted = TinyJit(lambda x: (layer(x).softmax(), x.sum()))
    x = Tensor(np.arange(32, dtype=np.float32).reshape(2, 16) / 9).realize()
    for _ in range(3):
        result, total = jitted(x)
    pickle.dump((jitted, x), open(sys.argv[2], "wb"))
else:
    cpu_pool.pool()
    if sys.argv[1] == "load":
        llvm.object_code = compiling.written_now = refuse
    jitted, x = pickle.load(open(sys.argv[2], "rb"))
    result, total = jitted(x)
print(result.tolist(), total.item())
"""


def run_program(mode, path, **settings):
    environment = {**os.environ, "CACHELEVEL": "0", **settings}
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode, str(path)], env=environment, text=True,
                          capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_process_loads_the_kernels_and_compiles_none(tmp_path):
    saved = run_program("save", tmp_path / "f.pkl")
    assert run_program("load", tmp_path / "f.pkl", PYTHONHASHSEED="5") == saved


def test_another_processor_compiles_for_itself(tmp_path):
    saved = run_program("save", tmp_path / "f.pkl")
    elsewhere = run_program("elsewhere", tmp_path / "f.pkl", CPU_FEATURES="-avx512f,-avx2,-fma")
    rows, other = ([json.loads(f"[{line.replace('] ', '], ', 1)}]") for line in (saved, elsewhere)])
    np.testing.assert_allclose(np.array(rows[0]), np.array(other[0]), rtol=1e-5)


# --- what is refused ----------------------------------------------------------------------------------------


def test_there_is_nothing_to_save_before_the_first_call():
    with pytest.raises(JitError, match="call the jitted function with arguments of each kind"):
        pickle.dumps(TinyJit(lambda x: x))


@pytest.mark.usefixtures("on_cpu")
def test_a_call_of_another_kind_is_an_error_that_says_what_is_known():
    jitted = reloaded(captured(lambda x: x * 2, (vector(1, 2),)))
    for arguments in ((vector(1, 2, 3),), (vector(1, 2), 3), (Tensor([1, 2]),)):
        with pytest.raises(JitError, match=r"was loaded, without its Python.*float32 \(2,\) on CPU.*Call the "
                                           "original"):
            jitted(*arguments)
    with Context(JIT=0), pytest.raises(JitError, match="with JIT=1"):
        jitted(vector(1, 2))
    with pytest.raises(JitError, match="by itself"):
        TinyJit(lambda x: jitted(x) + 1)(vector(1, 2))
    assert jitted(vector(1, 2)).tolist() == [2, 4]


def test_a_captured_tensor_that_stands_for_other_memory_is_an_error():
    weight = vector(1, 2)
    jitted, own = reloaded((captured(lambda x: x * weight, (vector(1, 2),)), weight))
    own.replace(vector(3, 4))
    with pytest.raises(JitError, match="on the tensors that came with it"):
        jitted(vector(1, 2))


@pytest.fixture
def state():
    """What pickle takes of a captured function."""
    weight = vector(1, 2)
    _, (_, saved) = captured(lambda x: (x * weight).sum() + 1, (vector(1, 2),)).__reduce__()
    return reloaded(saved)


def flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize(("damage", "message"), [
    (lambda s: setattr(s, "magic", "other"), "not a function that was captured"),
    (lambda s: setattr(s, "format", 99), "format 99, and this version reads format 4"),
    (lambda s: setattr(s, "plan", flip(s.plan)), "damaged"),
    (lambda s: s.code.update({k: flip(v) for k, v in s.code.items()}), "damaged"),
    (lambda s: s.code.popitem(), "damaged"),
])
def test_what_is_foreign_or_damaged_is_refused(state, damage, message):
    damage(state)
    with pytest.raises(JitError, match=message):
        loaded("f", state)


@pytest.mark.parametrize("other", [None, b"bytes", {"magic": saving.MAGIC}, vector(1)])
def test_something_else_is_refused(other):
    with pytest.raises(JitError, match="not a function that was captured"):
        loaded("f", other)


def changed_plan(state, change):
    plan = json.loads(state.plan)
    change(plan["traces"][0])
    state.plan = json.dumps(plan).encode()
    state.checksum = state.digest()


@pytest.mark.parametrize("change", [
    lambda t: [p.__setitem__(2, 1) for p in t["places"]],  # too little memory for the kernels
    lambda t: [p.__setitem__(3, "float64") for p in t["places"]],
    lambda t: t["steps"][0].__setitem__(0, 9999), lambda t: t["steps"][0].__setitem__(2, [0]),
    lambda t: t["steps"][0][2].__setitem__(0, 99), lambda t: t.pop("outputs"),
    lambda t: t["places"][0].__setitem__(0, "ELSEWHERE"), lambda t: t["written"].append(77),
    lambda t: [p.__setitem__(5, 44) for p in t["places"] if p[5] is not None],
])
def test_kernels_that_would_leave_their_memory_are_refused(state, change):
    changed_plan(state, change)
    with pytest.raises(JitError, match="does not fit together"):
        loaded("f", state)


@pytest.mark.usefixtures("on_cpu")
def test_a_captured_tensor_of_another_size_is_refused(state):
    state.tensors[0] = vector(1, 2, 3)
    with pytest.raises(JitError, match=r"float32\[3\] on CPU, and was .*float32\[2\]"):
        loaded("f", state)


def test_code_that_does_not_fit_this_version_is_compiled_again(state, monkeypatch):
    state.code = {"0" * 64: b"something"}
    state.checksum = state.digest()
    monkeypatch.setattr(compiling, "_kernels", type(compiling._kernels)())
    assert loaded("f", state)(vector(3, 4)).tolist() == 12


# --- copies in one process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_function_not_traced_yet(copied):
    weight = vector(1, 2)
    jitted = captured(lambda x: x * weight, (vector(1, 2),))
    other = copied(jitted)
    assert not other.traces and other(vector(3, 4, 5)[:2]).tolist() == [3, 8]


def test_a_deep_copy_of_a_model_uses_its_own_weights():
    model = Model()
    model.jitted = TinyJit(model.weight.mul)
    for _ in range(3):
        model.jitted(vector(1, 1, 1))
    other = copy.deepcopy(model)
    other.weight.assign(vector(7, 7, 7))
    assert other.jitted(vector(1, 1, 1)).tolist() == [7, 7, 7]
    assert model.jitted(vector(1, 1, 1)).tolist() == [1, 2, 3]


def test_saving_compiles_only_what_no_cache_kept(monkeypatch):
    jitted = captured(lambda x: x * 2 + 0.125, (vector(1, 2),))
    compiled = []
    build = llvm.object_code
    monkeypatch.setattr(llvm, "object_code",
                        lambda source, is_quick: compiled.append(source) or build(source, is_quick))
    pickle.dumps(jitted)
    assert not compiled
