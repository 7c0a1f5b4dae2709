"""TinyJit by example: what is assigned, differentiated, replaced and kept from call to call.

Each program runs with and without TinyJit, several calls long (`jit_programs.py`).
"""

import gc

import numpy as np
import pytest
from jit_programs import Programs, assert_jit_changes_nothing, held, vector

from tinygrad import Tensor, nn

PROGRAMS = Programs()
program = PROGRAMS.add


@program
def swap_assign(jit):
    a, b = held(1, 2), held(3, 4)

    @jit
    def f():
        t = a * 1
        a.assign(b)
        b.assign(t)

    out = []
    for _ in range(5):
        f()
        out.append((a.tolist(), b.tolist()))
    return out


@program
def swap_assign_inputs(jit):
    a, b = held(1, 2), held(3, 4)

    @jit
    def f(a, b):
        t = a * 1
        a.assign(b)
        b.assign(t)

    out = []
    for _ in range(5):
        f(a, b)
        out.append((a.tolist(), b.tolist()))
    return out


@program
def swap_assign_noccopy(jit):
    a, b = held(1, 2), held(3, 4)

    @jit
    def f(a, b):
        x = a + 0
        y = b + 0
        a.assign(y)
        b.assign(x)
        return x, y

    out = []
    for i in range(5):
        x, y = f(a, b) if i % 2 else f(b, a)
        out.append((a.tolist(), b.tolist(), x.tolist(), y.tolist()))
    return out


@program
def setitem_state(jit):
    s = held(0, 0, 0, 0)

    @jit
    def f(v):
        s[1:3] = v + s[0:2]
        return s.sum()

    return [(f(vector(i, i + 1)).item(), s.tolist()) for i in range(4)]


@program
def setitem_tensor_index(jit):
    s = held(0, 0, 0, 0)

    @jit
    def f(i, v):
        s[i] = v
        return s * 1

    return [f(Tensor([i % 4]), vector(i + 1)).tolist() for i in range(6)]


@program
def assign_through_view_inside(jit):
    s = held(0, 0, 0, 0)

    @jit
    def f(x):
        s.reshape(2, 2)[1].assign(x)
        s[0:1].assign(s[3:4] + 1)
        return s + 0

    return [(f(vector(i, i + 1)).tolist(), s.tolist()) for i in range(4)]


@program
def assign_twice_inside(jit):
    s = held(1, 1)

    @jit
    def f(x):
        s.assign(s + x)
        y = s * 10
        s.assign(s * 2)
        return y + s

    return [(f(vector(i, 1)).tolist(), s.tolist()) for i in range(4)]


@program
def assign_realize_inside(jit):
    s = held(1, 1)

    @jit
    def f(x):
        s.assign(s + x).realize()
        y = (s * 10).realize()
        s.assign(s * 2).realize()
        return y + s

    return [(f(vector(i, 1)).tolist(), s.tolist()) for i in range(4)]


@program
def lr_tensor(jit):
    lr, w = held(0.5), held(1, 2)

    @jit
    def f(g):
        w.assign(w - lr * g)

    out = []
    for i in range(6):
        f(vector(1, 1))
        out.append(w.tolist())
        if i == 2:
            lr.assign(Tensor([0.25]))
        if i == 4:
            lr.assign(lr * 2)
    return out


@program
def lr_replaced(jit):
    h = {"lr": held(0.5)}
    w = held(1, 2)

    @jit
    def f(g):
        w.assign(w - h["lr"] * g)

    out = []
    for i in range(6):
        f(vector(1, 1))
        out.append(w.tolist())
        if i == 2:
            h["lr"] = Tensor([0.25])
        if i == 4:
            h["lr"].replace(Tensor([2.0]))
    return out


@program
def closure_tensor_rebound(jit):
    k = held(2)

    def f0(x):
        return x * k

    f = jit(f0)
    out = [f(vector(3)).item(), f(vector(3)).item()]
    k = held(5)
    out.append(f(vector(3)).item())
    return out


@program
def deleted_captured(jit):
    h = {"k": held(2)}
    f = jit(lambda x: x * h.get("k", 100))
    out = [f(vector(3)).item(), f(vector(3)).item()]
    del h["k"]
    gc.collect()
    out.append(f(vector(3)).item())
    return out


@program
def captured_list_grows(jit):
    h = [held(2)]

    def g(x):
        t = x
        for k in h:
            t = t * k
        return t

    f = jit(g)
    out = [f(vector(3)).item(), f(vector(3)).item()]
    h[0] = held(5)
    out.append(f(vector(3)).item())
    return out


@program
def state_view_returned(jit):
    s = held(1, 2, 3, 4)

    @jit
    def f(x):
        s.assign(s + x)
        return s.reshape(2, 2), s[1:3], s

    out = []
    for _i in range(4):
        a, b, c = f(vector(1, 1, 1, 1))
        out.append((a.tolist(), b.tolist(), c is s))
    return out


@program
def state_view_kept(jit):
    s = held(1, 2, 3, 4)

    @jit
    def f(x):
        s.assign(s + x)
        return s.reshape(2, 2), s[1:3]

    kept = [f(vector(1, 1, 1, 1)) for i in range(4)]
    return [(a.tolist(), b.tolist()) for a, b in kept]


@program
def state_lazy_outputs(jit):
    s = held(1, 2)

    @jit
    def f(x):
        old = s * 1
        s.assign(s + x)
        return old

    kept = [f(vector(1, 1)) for i in range(4)]
    return [a.tolist() for a in kept], s.tolist()


@program
def requires_grad_changes(jit):
    w = held(1, 2).requires_grad_(True)

    @jit
    def f(x):
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return w.grad

    out = []
    for i in range(3):
        out.append(f(vector(i, 1)).tolist())
    return out


@program
def requires_grad_of_captured_toggled(jit):
    w, b = held(1, 2).requires_grad_(True), held(1, 2).requires_grad_(True)

    @jit
    def f(x):
        w.grad = b.grad = None
        (w * x + b).sum().backward()

    out = []
    for i in range(6):
        if i == 2:
            b.requires_grad = False
        if i == 4:
            b.requires_grad = True
        f(vector(i, 1))
        out.append((w.grad.tolist(), None if b.grad is None else b.grad.tolist()))
    return out


@program
def many_live_views(jit):
    s = held(1, 2, 3, 4)
    v = s[1:3]
    w = s.reshape(2, 2)

    @jit
    def f(x):
        s.assign(s + x)

    out = []
    for _i in range(4):
        f(vector(1, 1, 1, 1))
        out.append((v.tolist(), w.tolist(), s.tolist()))
    return out


@program
def view_captured_base_assigned(jit):
    s = held(1, 2, 3, 4)
    v = s[1:3]

    @jit
    def f(x):
        return v * x

    out = []
    for i in range(5):
        out.append(f(vector(1, i)).tolist())
        s.assign(s + 1)
    return out


@program
def input_then_captured_state(jit):
    s = held(1, 2)

    @jit
    def f(x):
        return x + s

    return [f(s).tolist(), f(vector(5, 5)).tolist(), f(s).tolist()]


@program
def lazy_captured_expression(jit):
    base = held(1, 2)
    e = base * 3

    @jit
    def f(x):
        return e + x

    out = []
    for i in range(5):
        out.append(f(vector(i, 0)).tolist())
        if i == 2:
            base.assign(base + 1).realize()
    return out, e.tolist()


@program
def lazy_captured_view_expression(jit):
    base = held(1, 2)
    e = base.reshape(2, 1).expand(2, 3)

    @jit
    def f(x):
        return e.sum(1) + x

    out = []
    for i in range(5):
        out.append(f(vector(i, 0)).tolist())
        if i == 2:
            base.assign(base + 1).realize()
    return out, e.tolist()


@program
def accumulate_then_read(jit):
    hist = []
    s = held(0)

    @jit
    def f(x):
        s.assign(s + x)
        return s.detach()

    for i in range(5):
        hist.append(f(vector(i)))
    return [h.tolist() for h in hist], s.tolist()


@program
def returns_state_plus0(jit):
    s = held(0)

    @jit
    def f(x):
        s.assign(s + x)
        return s + 0, s.contiguous(), s.clone(), s.detach().realize()

    hist = [f(vector(i)) for i in range(5)]
    return [[h.tolist() for h in hs] for hs in hist]


@program
def cast_in_place(jit):
    s = Tensor([1, 2], dtype="half").contiguous().realize()

    @jit
    def f(x):
        s.assign((s.float() + x).half())

    out = []
    for i in range(3):
        f(vector(i, 1))
        out.append(s.tolist())
    return out


@program
def gradient_method(jit):
    w = held(1, 2).requires_grad_(True)

    @jit
    def f(x):
        return (w * w * x).sum().gradient(w)[0]

    return [f(vector(i, 1)).tolist() for i in range(3)]


@program
def second_order(jit):
    @jit
    def f(x):
        g = (x * x * x).sum().gradient(x)[0]
        return g.sum().gradient(x)[0]

    return [f(Tensor(np.array([i, 1], np.float32), requires_grad=True)).tolist() for i in range(3)]


@program
def assign_broadcast_number(jit):
    s = held(1, 2)

    @jit
    def f(x):
        s.assign(3.0)
        s[0] = 7
        return s + x

    return [f(vector(i, 1)).tolist() for i in range(3)], s.tolist()


@program
def lr_schedule(jit):
    p = held(1, 2).requires_grad_(True)
    o = nn.optim.SGD([p], lr=0.5)

    @jit
    def f(x):
        o.zero_grad()
        (p * x).sum().backward()
        o.step()

    out = []
    for _i in range(5):
        with Tensor.train():
            f(vector(1, 1))
        out.append(p.tolist())
        o.lr.assign(o.lr * 0.5) if isinstance(o.lr, Tensor) else None
    return out


@program
def written_state_whose_old_value_is_kept(jit):
    """A lazy value from outside is the node that the first call computes; later ones compute another."""
    s = held(1, 2)

    @jit
    def f(x):
        double = (s * 2).realize()
        s.assign(double + x)
        return double + 0

    kept = s * 2
    return [f(vector(i, 1)).tolist() for i in range(3)], kept.tolist(), s.tolist()


@program
def assigned_state_whose_old_value_is_kept(jit):
    s = held(1, 2)

    @jit
    def f(x):
        return s.sum(keepdim=True) + x

    kept, out = s.sum(keepdim=True), []
    for i in range(4):
        out.append(f(vector(i, 1)).tolist())
        s.assign(vector(i, i)).realize()
    return out, kept.tolist()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_under_tinyjit(name):
    assert_jit_changes_nothing(PROGRAMS[name])
