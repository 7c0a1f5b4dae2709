"""TinyJit by example: kinds of functions, results, sizes, random numbers, devices.

Each program runs with and without TinyJit, several calls long (`jit_programs.py`).
"""

import contextlib
import dataclasses
import functools

import numpy as np
import pytest
from jit_programs import Programs, assert_jit_changes_nothing, held, vector

from tinygrad import Device, Tensor, dtypes, nn

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def outputs_kept(jit):
    f = jit(lambda x: (x + 1, x * 2, x.sum()))
    kept = [f(vector(i, i + 1)) for i in range(20)]
    return [[t.tolist() for t in k] for k in kept]


@program
def static_and_class_methods(jit):
    class A:
        k = 3

        @staticmethod
        @jit
        def s(x):
            return x * 2

        @classmethod
        @jit
        def c(cls, x):
            return x * cls.k

    class B(A):
        k = 5

    return [
        (
            A.s(vector(i)).item(),
            A().s(vector(i)).item(),
            A.c(vector(i)).item(),
            B.c(vector(i)).item(),
            B().c(vector(i)).item(),
            A().c(vector(i)).item(),
        )
        for i in range(3)
    ]


@program
def jit_over_staticmethod(jit):
    class A:
        @jit
        @staticmethod
        def s(x):
            return x * 2

    return [(A.s(vector(i)).item()) for i in range(3)]


@program
def inherited_methods(jit):
    class A:
        def __init__(self, k):
            self.w = held(k)

        @jit
        def f(self, x):
            return x * self.w

    class B(A):
        @jit
        def f(self, x):
            return super().f(x) + 1

    a, b, b2 = A(2), B(3), B(4)
    return [(a.f(vector(i)).item(), b.f(vector(i)).item(), b2.f(vector(i)).item()) for i in range(4)]


@program
def slots_instance(jit):
    class A:
        __slots__ = ("w",)

        def __init__(self, k):
            self.w = held(k)

        @jit
        def f(self, x):
            return x * self.w

    a, b = A(2), A(3)
    return [(a.f(vector(i)).item(), b.f(vector(i)).item()) for i in range(3)]


@program
def dataclass_instance_method(jit):
    @dataclasses.dataclass
    class A:
        w: Tensor

        @jit
        def f(self, x):
            return x * self.w

    a, b = A(held(2)), A(held(3))
    out = [(a.f(vector(i)).item(), b.f(vector(i)).item()) for i in range(3)]
    a.w = held(9)
    out.append(a.f(vector(2)).item())
    a.w.assign(held(7))
    out.append(a.f(vector(2)).item())
    return out


@program
def callable_model(jit):
    class M:
        def __init__(self):
            self.w = held(2)
            self.call = 3
            self.reset = 4
            self.traces = 5
            self.keep = 1

        def __call__(self, x):
            return x * self.w + self.call

    m = M()
    f = jit(m)
    out = [f(vector(i)).item() for i in range(3)]
    m.w = held(5)
    out.append(f(vector(2)).item())
    return out


@program
def partial_and_lambda(jit):
    f = jit(functools.partial(lambda k, x: x * k, 3))
    return [f(vector(i)).item() for i in range(3)]


@program
def nested_inner_captured(jit):
    inner = jit(lambda x: x + 1)
    out = [inner(vector(1)).item(), inner(vector(2)).item()]
    outer = jit(lambda x: inner(x) * inner(x * 2))
    out += [outer(vector(i)).item() for i in range(3)]
    out += [inner(vector(5)).item()]
    return out


@program
def nested_state(jit):
    s = held(0)

    @jit
    def inner(x):
        s.assign(s + x)
        return s * 1

    @jit
    def outer(x):
        a = inner(x)
        b = inner(x * 10)
        return a + b

    return [(outer(vector(i)).item(), s.item(), inner(vector(1)).item(), s.item()) for i in range(4)]


@program
def recursion(jit):
    @jit
    def f(x, n):
        return x if n == 0 else f(x * 2, n - 1) + 1

    return [f(vector(i), n).item() for i in range(3) for n in (0, 3, 3)]


@program
def exceptions_everywhere(jit):
    out = []
    s = held(1)
    boom = {"at": None}

    @jit
    def f(x):
        if boom["at"] == 0:
            raise KeyError
        y = (x * 2).realize()
        if boom["at"] == 1:
            raise KeyError
        s.assign(s + y).realize()
        if boom["at"] == 2:
            raise KeyError
        s.assign(s * 2)
        if boom["at"] == 3:
            raise KeyError
        z = s + y
        if boom["at"] == 4:
            raise KeyError
        return z

    for at in (0, None, 1, None, 2, None, 3, None, 4, None, None):
        boom["at"] = at
        if hasattr(f, "reset"):
            f.reset()
        try:
            out.append(f(vector(1)).item())
        except KeyError:
            out.append("KeyError")
        out.append(s.item())
    return out


@program
def exception_input_assign(jit):
    out = []
    boom = {"at": None}

    @jit
    def f(x):
        y = x * 2
        x.assign(x + 1)
        if boom["at"] == 1:
            raise KeyError
        x.assign(x * 3).realize()
        if boom["at"] == 2:
            raise KeyError
        return x + y

    for at in (1, None, 2, None, None):
        boom["at"] = at
        if hasattr(f, "reset"):
            f.reset()
        x = held(5)
        h = x * 0.5
        try:
            out.append(f(x).item())
        except KeyError:
            out.append("KeyError")
        out.append((x.item(), h.item()))
    return out


@program
def exception_keeps_tensor(jit):
    kept = []

    @jit
    def f(x):
        kept.append(x * 2)
        kept.append(x)
        raise KeyError

    out = []
    for i in range(3):
        x = held(i, 1)
        with contextlib.suppress(KeyError):
            f(x)
        x.assign(x + 10).realize()
        del x
        out.append([t.tolist() for t in kept])
        kept.clear()
    return out


@program
def reading_len(jit):
    f = jit(lambda x: x * len(x) + x.shape[0] + x.numel())
    return [f(vector(*range(n))).tolist() for n in (2, 3, 2, 3)]


@program
def print_inside(jit):
    f = jit(lambda x: (repr(x), x * 2)[1])
    return [f(vector(i)).item() for i in range(3)]


@program
def training_flag_assign(jit):
    f = jit(lambda x: x + (1 if Tensor.training else 2))
    out = []
    for i in range(4):
        Tensor.training = bool(i % 2)
        out.append(f(vector(i)).item())
    Tensor.training = False
    return out


@program
def default_float(jit):
    f = jit(lambda x: x + Tensor.zeros(1) + Tensor.rand(1) * 0)
    out = []
    old = dtypes.default_float
    for d in (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.float32):
        dtypes.default_float = d
        r = f(Tensor([1], dtype="int32"))
        out.append((r.dtype.name, r.tolist()))
    dtypes.default_float = old
    return out


@program
def default_device(jit):
    f = jit(lambda x: Tensor.ones(2) * 3 + Tensor([1.0, 2.0]))
    out = []
    old = Device.DEFAULT
    for d in ("CPU", "PYTHON", "CPU"):
        Device.DEFAULT = d
        r = f(1)
        out.append((r.device, r.tolist()))
    Device.DEFAULT = old
    return out


@program
def device_move(jit):
    f = jit(lambda x: (x.to("PYTHON") * 2).to("CPU") + 1)
    return [f(vector(i)).item() for i in range(4)]


@program
def two_devices_in(jit):
    f = jit(lambda x, y: (x + y.to(x.device), y * 2))
    out = []
    for i in range(3):
        for a, b in (("CPU", "PYTHON"), ("PYTHON", "CPU"), ("CPU", "CPU")):
            r, s = f(vector(i).to(a).realize(), vector(1).to(b).realize())
            out.append((r.device, r.item(), s.device, s.item()))
    return out


@program
def model_moved(jit):
    layer = nn.Linear(2, 2)
    layer.weight = Tensor(np.eye(2, dtype=np.float32))
    layer.bias = held(1, 1)
    f = jit(lambda x: layer(x.to(layer.weight.device)).to("CPU"))
    out = [f(vector(1, 2)).tolist(), f(vector(1, 3)).tolist()]
    layer.weight.to_("PYTHON")
    layer.bias.to_("PYTHON")
    out += [f(vector(1, 4)).tolist(), f(vector(1, 5)).tolist()]
    return out


@program
def constants_returned(jit):
    f = jit(lambda x: (Tensor.zeros(2), Tensor(3), Tensor.arange(3), x * 0, Tensor.full((2,), 4.0)))
    out = []
    for i in range(3):
        r = f(vector(i))
        out.append([t.tolist() for t in r])
        r[0].assign(r[0] + 5).realize()
        r[2].assign(r[2] * 3).realize()
    return out


@program
def same_result_twice(jit):
    def g(x):
        y = x + 1
        return y, y, {"k": y}

    f = jit(g)
    out = []
    for i in range(3):
        a, b, c = f(vector(i))
        out.append((a is b, c["k"] is a, a.item()))
        a.assign(a * 2).realize()
        out.append((a.item(), b.item()))
    return out


@program
def equal_results(jit):
    f = jit(lambda x: (x + 1, x + 1))
    out = []
    for i in range(3):
        a, b = f(vector(i))
        a.assign(a * 2).realize()
        out.append((a.item(), b.item()))
    return out


@program
def result_and_view(jit):
    def g(x):
        y = (x + 1).realize()
        return y, y[1:], y.reshape(2, 1)

    f = jit(g)
    out = []
    for i in range(3):
        a, b, c = f(vector(i, 5))
        a.assign(a * 2).realize()
        out.append((a.tolist(), b.tolist(), c.tolist()))
    return out


@program
def result_and_lazyview(jit):
    def g(x):
        y = x + 1
        return y, y[1:], y.reshape(2, 1)

    f = jit(g)
    out = []
    for i in range(3):
        a, b, c = f(vector(i, 5))
        out.append((a.tolist(), b.tolist(), c.tolist()))
    return out


@program
def jit_in_method_closure(jit):
    def make(k):
        @jit
        def f(x):
            return x * k

        return f

    a, b = make(2), make(3)
    return [(a(vector(i)).item(), b(vector(i)).item()) for i in range(3)]


@program
def returned_numbers(jit):
    @jit
    def f(x, n):
        return x * n, n, n + 1, "s", None, True, 1.5, {"n": [n]}

    return [(lambda r: (r[0].item(), *r[1:]))(f(vector(2), n)) for n in (1, 2, 1, 2)]


@program
def nothing_returned_nothing_done(jit):
    f = jit(lambda *a: None)
    return [f(), f(vector(1)), f(), f(3)]


@program
def no_tensors(jit):
    f = jit(lambda n: Tensor.arange(n) * 2)
    return [f(n).tolist() for n in (2, 3, 2, 3)]


@program
def batchnorm_modes(jit):
    bn = nn.BatchNorm(2)
    f = jit(lambda x: bn(x))
    out = []
    for i in range(6):
        Tensor.training = i % 3 != 2
        out.append(f(Tensor(np.arange(8, dtype=np.float32).reshape(4, 2) * (i + 1))).tolist())
    Tensor.training = False
    return out, bn.running_mean.tolist(), bn.running_var.tolist()


@program
def shuffle_index(jit):
    Tensor.manual_seed(0)
    data = Tensor(np.arange(20, dtype=np.float32)).realize()

    @jit
    def f():
        return data[Tensor.randint(4, low=0, high=20)]

    return [f().tolist() for _ in range(4)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_under_tinyjit(name):
    assert_jit_changes_nothing(PROGRAMS[name])
