"""TinyJit by example: sizes that are Variables, and random numbers.

Each program runs with and without TinyJit, several calls long (`jit_programs.py`).
"""


import numpy as np
import pytest
from jit_programs import Programs, assert_jit_changes_nothing, held, vector

from tinygrad import Tensor, Variable

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def variables_offsets(jit):
    c = Tensor.zeros(6, 2).contiguous().realize()

    @jit
    def f(x, i):
        c[i : i + 1].assign(x).realize()
        return c[: i + 1].sum(0)

    v = Variable("i", 0, 5)
    return [f(vector(n, 1).reshape(1, 2), v.bind(n)).tolist() for n in (0, 1, 2, 5, 0, 3)]


@program
def variables_two_bounds(jit):
    @jit
    def f(x, a, b):
        return x[a:].sum() * 100 + x[:b].sum() + a * b

    a, b = Variable("a", 0, 4), Variable("b", 1, 4)
    out = []
    for i, j in ((0, 1), (0, 4), (4, 4), (2, 3), (4, 1)):
        out.append(f(vector(1, 2, 3, 4), a.bind(i), b.bind(j)).item())
    return out


@program
def variables_size_zero(jit):
    @jit
    def f(x):
        return x.sum()

    n = Variable("n", 0, 4)
    a = held(1, 2, 3, 4)
    return [f(a[: n.bind(k)]).item() for k in (0, 4, 1, 0)]


@program
def variables_different_bases(jit):
    @jit
    def f(x):
        return (x * 2).sum(), x.sum(0)

    n = Variable("n", 1, 4)
    a = Tensor(np.arange(8, dtype=np.float32).reshape(4, 2)).realize()
    b = Tensor(np.arange(100, 116, dtype=np.float32).reshape(8, 2)).realize()
    c = Tensor(np.arange(200, 212, dtype=np.float32).reshape(4, 3)).realize()
    out = []
    for k in (1, 4, 2):
        for t in (
            a[: n.bind(k)],
            b[: n.bind(k)],
            b[3 : 3 + n.bind(k)],
            c[: n.bind(k), 1:],
            a.flip(0)[: n.bind(k)],
        ):
            s, r = f(t)
            out.append((s.item(), r.tolist()))
    return out


@program
def variables_inner_axis(jit):
    @jit
    def f(x):
        return x.sum(1)

    n = Variable("n", 1, 4)
    a = Tensor(np.arange(8, dtype=np.float32).reshape(2, 4)).realize()
    b = Tensor(np.arange(100, 116, dtype=np.float32).reshape(2, 8)).realize()
    return [f(t[:, : n.bind(k)]).tolist() for k in (1, 4, 2) for t in (a, b)]


@program
def variable_and_number(jit):
    @jit
    def f(x, n):
        return x * n

    v = Variable("n", 0, 9)
    return [
        f(vector(1, 2), v.bind(3)).tolist(),
        f(vector(1, 2), 3).tolist(),
        f(vector(1, 2), v.bind(4)).tolist(),
        f(vector(1, 2), 4).tolist(),
        f(vector(1, 2), v.bind(5) + 1).tolist(),
        f(vector(1, 2), v.bind(7) + 1).tolist(),
    ]


@program
def variable_sized_result_fed_back(jit):
    @jit
    def f(x, n):
        return x[:n] * 2

    @jit
    def g(y):
        return y.sum()

    v = Variable("n", 1, 4)
    return [
        (g(f(vector(1, 2, 3, 4), v.bind(k))).item(), f(vector(1, 2, 3, 4), v.bind(k)).sum().item())
        for k in (1, 4, 2)
    ]


@program
def dropout(jit):
    Tensor.manual_seed(5)

    @jit
    def f(x):
        return x.dropout(0.5)

    out = []
    with Tensor.train():
        for i in range(6):
            out.append(f(Tensor.ones(16)).tolist())
            if i == 2:
                Tensor.manual_seed(5)
            if i == 3:
                out.append(Tensor.rand(2).tolist())
    out.append(f(Tensor.ones(16)).tolist())
    return out


@program
def random_kinds(jit):
    Tensor.manual_seed(9)

    @jit
    def f(x):
        return [
            Tensor.randn(3),
            Tensor.randint(4, low=0, high=100),
            Tensor.uniform(2),
            Tensor.randperm(5),
            Tensor.normal(2),
            x.multinomial(3, True),
        ]

    return [[t.tolist() for t in f(vector(1, 2, 3))] for _ in range(4)]


@program
def random_kept_as_state(jit):
    Tensor.manual_seed(9)
    s = held(0, 0)

    @jit
    def f():
        s.assign(s + Tensor.rand(2))

    out = []
    for _i in range(5):
        f()
        out.append(s.tolist())
    return out


@program
def random_lazy_between(jit):
    Tensor.manual_seed(9)
    f = jit(lambda x: x + Tensor.rand(2))
    out = []
    for _i in range(4):
        noise = Tensor.rand(2)
        out.append((f(noise).tolist(), noise.tolist()))
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_under_tinyjit(name):
    assert_jit_changes_nothing(PROGRAMS[name])
