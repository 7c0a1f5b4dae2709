"""TinyJit by example: training steps, and gradients from call to call.

Each program runs with and without TinyJit, several calls long (`jit_programs.py`).
"""

import functools

import numpy as np
import pytest
from jit_programs import Programs, assert_jit_changes_nothing, vector

from tinygrad import Tensor, nn

PROGRAMS = Programs()
program = PROGRAMS.add


def train(jit, opt_name, change=None, steps=6, first_inside=False, **kw):
    Tensor.manual_seed(3)
    layer = nn.Linear(3, 2)
    hold = {}

    def make():
        return getattr(nn.optim, opt_name)(nn.state.get_parameters(layer), **kw)

    if not first_inside:
        hold["o"] = make()

    @jit
    def step(x, y):
        if "o" not in hold:
            hold["o"] = make()
        o = hold["o"]
        o.zero_grad()
        loss = ((layer(x).relu() - y) ** 2).mean()
        loss.backward()
        o.step()
        return loss

    out = []
    rng = np.random.default_rng(0)
    for i in range(steps):
        x = Tensor(rng.standard_normal((4, 3), np.float32))
        y = Tensor(rng.standard_normal((4, 2), np.float32))
        with Tensor.train():
            out.append(step(x, y).item())
        if change:
            change(i, layer, hold["o"])
    return out, layer.weight.tolist(), layer.bias.tolist()


for name in ("SGD", "Adam", "AdamW", "LAMB", "LARS"):
    if hasattr(nn.optim, name):
        PROGRAMS["train_" + name] = functools.partial(train, opt_name=name, lr=0.1)
        PROGRAMS["train_first_inside_" + name] = functools.partial(
            train, opt_name=name, lr=0.1, first_inside=True
        )


def ch_assign(i, layer, o):
    if i == 2:
        layer.weight.assign(layer.weight * 0.5)


def ch_replace(i, layer, o):
    if i == 2:
        layer.weight.replace((layer.weight * 0.5).detach().realize())


def ch_load(i, layer, o):
    if i == 2:
        nn.state.load_state_dict(
            layer, {"weight": Tensor.ones(2, 3) * 0.3, "bias": Tensor.zeros(2)}, verbose=False
        )


def ch_lr(i, layer, o):
    if i == 2:
        if isinstance(o.lr, Tensor):
            o.lr.assign(o.lr * 0.1)
        else:
            o.lr = o.lr * 0.1


def ch_grad(i, layer, o):
    if i == 2:
        layer.weight.grad = Tensor.ones(2, 3)
    if i == 3:
        layer.weight.grad = None


def ch_eval(i, layer, o):
    if i == 2:
        (layer(Tensor.ones(1, 3)).sum()).backward()


for nm, ch in dict(
    assign=ch_assign, replace=ch_replace, load=ch_load, lr=ch_lr, grad=ch_grad, evalb=ch_eval
).items():
    for o in ("SGD", "Adam"):
        PROGRAMS[f"train_change_{nm}_{o}"] = functools.partial(train, opt_name=o, lr=0.1, change=ch)
PROGRAMS["train_SGD_momentum_nesterov"] = functools.partial(
    train, opt_name="SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
)


@program
def backward_on_input(jit):
    @jit
    def f(x):
        (x * x).sum().backward()
        return x.grad

    out = []
    for i in range(4):
        x = Tensor(np.array([i, 1], np.float32), requires_grad=True)
        g = f(x)
        out.append((g.tolist(), x.grad.tolist()))
    return out


@program
def backward_accumulates_on_input(jit):
    @jit
    def f(x):
        (x * x).sum().backward()

    out = []
    x = Tensor(np.array([3, 1], np.float32), requires_grad=True)
    for _i in range(4):
        f(x)
        out.append(x.grad.tolist())
    return out


@program
def input_grad_read_inside(jit):
    @jit
    def f(p):
        return p - p.grad * 0.1

    out = []
    for i in range(3):
        p = Tensor(np.array([i, 1], np.float32), requires_grad=True)
        (p * p).sum().backward()
        out.append(f(p).tolist())
    return out


@program
def input_grad_reset_inside(jit):
    @jit
    def f(p):
        p.grad = None
        (p * p).sum().backward()
        return p * 1

    out = []
    p = Tensor(np.array([3, 1], np.float32), requires_grad=True)
    for _i in range(3):
        f(p)
        out.append(p.grad.tolist())
    return out


@program
def input_grad_zeroed_inside(jit):
    @jit
    def f(p):
        p.grad = None
        return p * 1

    out = []
    for _i in range(3):
        p = Tensor(np.array([3, 1], np.float32), requires_grad=True)
        (p * p).sum().backward()
        f(p)
        out.append(p.grad is None)
    return out


@program
def sgd_params_as_args(jit):
    @jit
    def step(ps, x):
        for p in ps:
            p.grad = None
        ((x * ps[0] + ps[1]) ** 2).sum().backward()
        for p in ps:
            p.assign(p.detach() - p.grad * 0.1)

    out = []
    ps = [
        Tensor(np.array([3, 1], np.float32), requires_grad=True).realize(),
        Tensor(np.array([0, 1], np.float32), requires_grad=True).realize(),
    ]
    for i in range(4):
        step(ps, vector(1, i))
        out.append([p.tolist() for p in ps])
    return out


@program
def grad_accumulation_outside_zero(jit):
    w = Tensor(np.array([2.0, 3.0], np.float32), requires_grad=True).realize()

    @jit
    def f(x):
        (w * x).sum().backward()

    out = []
    for i in range(6):
        if i % 2 == 0:
            w.grad = None
        f(vector(i, 1))
        out.append(w.grad.tolist())
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_under_tinyjit(name):
    assert_jit_changes_nothing(PROGRAMS[name])
