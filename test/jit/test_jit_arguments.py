"""TinyJit by example: what arguments may be, and what changes in them between calls.

Each program runs with and without TinyJit, several calls long (`jit_programs.py`).
"""


import numpy as np
import pytest
from jit_programs import Programs, assert_jit_changes_nothing, held, vector

from tinygrad import Tensor
from tinygrad.jit import JitError

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def swap_states(jit):
    f = jit(lambda a, b: (b, a + 1))
    a, b = vector(0), vector(10)
    out = []
    for _ in range(7):
        a, b = f(a, b)
        out.append((a.item(), b.item()))
    return out


@program
def output_is_input(jit):
    f = jit(lambda x, y: (x, y + x))
    out = []
    x = held(1, 2)
    for i in range(4):
        r, s = f(x, vector(i, i))
        out.append((r is x, s.tolist()))
        r.assign(r + 1).realize()
        out.append(x.tolist())
    return out


@program
def output_view_of_input(jit):
    f = jit(lambda x: x[1:])
    out = []
    for i in range(4):
        x = held(i, i + 1, i + 2)
        v = f(x)
        out.append(v.tolist())
        x.assign(x * 10).realize()
        out.append((v.tolist(), x.tolist()))
    return out


@program
def argument_reshaped_twice(jit):
    f = jit(lambda x: (x + 1).realize())
    return [f(held(i, i + 1, i + 2, 9).reshape(2, 2).reshape(4, 1)).tolist() for i in range(4)]


@program
def output_reshape_of_input_assign(jit):
    f = jit(lambda x: x.reshape(2, 2))
    out = []
    for i in range(4):
        x = held(i, i + 1, i + 2, 9)
        v = f(x)
        v.assign(v + 1).realize()
        out.append((v.tolist(), x.tolist()))
    return out


@program
def same_tensor_twice_assign(jit):
    f = jit(lambda a, b: a.assign(a + b))
    out = []
    for i in range(3):
        x = held(1 + i, 2)
        f(x, x).realize()
        out.append(x.tolist())
        y = held(1 + i, 2)
        z = held(5, 5)
        f(y, z).realize()
        out.append((y.tolist(), z.tolist()))
    return out


@program
def two_handles_same_memory(jit):
    f = jit(lambda a, b: a.assign(a + b * 2))
    out = []
    for i in range(3):
        x = held(1 + i, 2)
        h = Tensor(x.uop)
        try:
            f(x, h).realize()
            out.append((x.tolist(), h.tolist()))
        except JitError:
            out.append("err")
    return out


@program
def expanded_input(jit):
    f = jit(lambda x: x + 1)
    return [f(vector(i).reshape(1, 1).expand(2, 3)).tolist() for i in range(3)] + [
        f(Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))).tolist()
    ]


@program
def transposed_then_straight(jit):
    f = jit(lambda x: x * 2 + x.sum(0))
    a = Tensor(np.arange(9, dtype=np.float32).reshape(3, 3)).realize()
    out = []
    for i in range(4):
        out.append(f(a.T if i % 2 else a).tolist())
    out.append(f(a.flip(0)).tolist())
    out.append(f(a.T.flip(1)).tolist())
    return out


@program
def padded_input(jit):
    f = jit(lambda x: x * 2 + 1)
    a = held(1, 2)
    return [
        f(a.pad(((1, 1),))).tolist(),
        f(held(1, 2, 3, 4)).tolist(),
        f(held(5, 6, 7).pad(((1, 0),))).tolist(),
        f(held(0, 1, 2, 3, 4, 5)[1:5]).tolist(),
    ]


@program
def strided_input(jit):
    f = jit(lambda x: x * 2)
    a = Tensor(np.arange(12, dtype=np.float32)).realize()
    return [
        f(a[::3]).tolist(),
        f(a[1::3]).tolist(),
        f(a[4:8]).tolist(),
        f(a[8:]).tolist(),
        f(a[:4]).tolist(),
        f(a[::-3]).tolist(),
    ]


@program
def bitcast_input(jit):
    f = jit(lambda x: x + 1)
    a = Tensor(np.array([1, 2], np.int32)).realize()
    return [
        f(a).tolist(),
        f(held(1.0, 2.0).bitcast("int32")).tolist(),
        f(a + 1).tolist(),
        f(held(3.0, 2.0).bitcast("int32")).tolist(),
    ]


@program
def setitem_inside(jit):
    @jit
    def f(x, v):
        x[1:3] = v
        return x.sum()

    out = []
    x = held(0, 0, 0, 0)
    for i in range(4):
        out.append((f(x, vector(i, i + 1)).item(), x.tolist()))
    return out


@program
def kwargs_defaults_varargs(jit):
    @jit
    def f(a, *rest, k=2, **kw):
        t = a * k
        for r in rest:
            t = t + r
        for n in sorted(kw):
            t = t * 3 + kw[n]
        return t

    out = []
    for i in range(2):
        x = vector(i, 1)
        out += [
            f(x).tolist(),
            f(x, x).tolist(),
            f(x, vector(5, 5), vector(i, i)).tolist(),
            f(x, k=3).tolist(),
            f(x, k=vector(2, 2)).tolist(),
            f(x, z=vector(1, 1), b=vector(i, 2)).tolist(),
            f(x, b=vector(i, 2), z=vector(1, 1)).tolist(),
            f(a=x, k=3).tolist(),
        ]
    return out


@program
def default_tensor_argument(jit):
    d = held(5, 5)

    @jit
    def f(x, y=d):
        return x + y

    out = [f(vector(1, 1)).tolist(), f(vector(2, 1)).tolist(), f(vector(1, 1), vector(0, 0)).tolist()]
    d.assign(d * 2).realize()
    out.append(f(vector(1, 1)).tolist())
    return out


@program
def zero_size(jit):
    f = jit(lambda x, y: (x.cat(y), x.sum()))
    out = []
    for i in range(3):
        r, s = f(Tensor(np.zeros((0, 2), np.float32)), vector(i, 1).reshape(1, 2))
        out.append((r.tolist(), s.item()))
    return out


@program
def zero_dim(jit):
    f = jit(lambda x: x.assign(x + 1))
    x = Tensor(3.0).contiguous().realize()
    return [f(x).item() for _ in range(3)] + [x.item()]


@program
def input_pending_assign(jit):
    f = jit(lambda x: x * 2)
    x = held(1, 2)
    out = []
    for _i in range(4):
        x.assign(x + 1)
        out.append(f(x).tolist())
    return out, x.tolist()


@program
def input_view_pending_assign(jit):
    f = jit(lambda x: x * 2)
    x = held(1, 2, 3)
    v = x[1:]
    out = []
    for _i in range(4):
        x.assign(x + 1)
        out.append(f(v).tolist())
    return out, x.tolist()


@program
def input_setitem_between(jit):
    f = jit(lambda x: x * 2)
    x = held(1, 2, 3)
    out = []
    for i in range(4):
        x[i % 3] = 10 * i
        out.append(f(x).tolist())
    return out


@program
def numpy_shared(jit):
    a = np.array([1, 2], np.float32)
    x = Tensor.from_dlpack(a) if hasattr(Tensor, "from_dlpack") else Tensor(a)
    f = jit(lambda x: x * 2)
    out = []
    for i in range(4):
        a[0] = i
        out.append(f(x).tolist())
    return out


@program
def numpy_shared_captured(jit):
    a = np.array([1, 2], np.float32)
    x = Tensor.from_dlpack(a)
    f = jit(lambda y: x * y)
    out = []
    for i in range(4):
        a[0] = i
        out.append(f(vector(2, 2)).tolist())
    return out


@program
def numpy_closed_over(jit):
    a = np.array([1, 2], np.float32)
    f = jit(lambda x, a: x * Tensor(a))
    out = []
    for i in range(4):
        a[0] = i
        out.append(f(vector(2, 2), a).tolist())
    return out


@program
def none_and_strings(jit):
    @jit
    def f(x, how, y=None):
        return {"add": x + (0 if y is None else y), "mul": x * (1 if y is None else y)}[how]

    return [
        f(vector(2), h, y).item()
        for i in range(2)
        for h in ("add", "mul")
        for y in (None, vector(5), vector(6), 5)
    ]


@program
def generator_args(jit):
    @jit
    def f(ts):
        t = 0
        for x in ts:
            t = t + x
        return t

    out = []
    for i in range(3):
        try:
            out.append(f(vector(j + i) for j in range(3)).item())
        except JitError as e:
            out.append(str(e))
    return out


@program
def map_args(jit):
    @jit
    def f(ts):
        return sum(ts, start=0)

    return [f(map(lambda j: vector(j + i), range(3))).item() for i in range(3)]


@program
def dict_views_args(jit):
    @jit
    def f(ts):
        return sum(ts, start=0)

    return [f({"a": vector(i), "b": vector(1)}.values()).item() for i in range(3)]


@program
def plain_object_args(jit):
    class Plain:
        pass

    @jit
    def f(o):
        return o.x * o.k

    out = []
    for i in range(3):
        o = Plain()
        o.x = vector(i)
        o.k = i
        out.append(f(o).item())
    o = Plain()
    o.x = held(2)
    o.k = 3
    out.append(f(o).item())
    out.append(f(o).item())
    o.x = held(4)
    out.append(f(o).item())
    return out


@program
def mutable_default(jit):
    @jit
    def f(x, acc=()):
        return x * (len(acc) + 1)

    return [f(vector(i)).item() for i in range(3)]


@program
def big_ints(jit):
    @jit
    def f(x, n):
        return x * (n % 7)

    return [f(vector(1), n).item() for n in (2**70, 2**70 + 1, -5, 2**63, 2**70)]


@program
def deep_nest(jit):
    @jit
    def f(s):
        return {"r": [(s["a"][0][1]["b"] * 2,)], "n": s["a"][1]}

    return [
        (lambda r: (r["r"][0][0].item(), r["n"]))(f({"a": [(1, {"b": vector(i)}), "x"]})) for i in range(3)
    ]


@program
def half_types(jit):
    f = jit(lambda x: x * 2 + 1)
    return [
        f(Tensor([1, i], dtype=d)).tolist()
        for i in range(2)
        for d in ("half", "bfloat16", "float64", "int8", "uint8", "int64", "bool")
    ]


@program
def iadd(jit):
    held(1, 2)

    @jit
    def f(x):
        x += 1
        return x

    out = []
    for i in range(3):
        x = held(i, 1)
        r = f(x)
        out.append((r.tolist(), x.tolist()))
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_under_tinyjit(name):
    assert_jit_changes_nothing(PROGRAMS[name])
