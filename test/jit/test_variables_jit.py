"""Variables as sizes under TinyJit, and gradients of what has such sizes."""
import math

import numpy as np
import pytest
from jit_programs import traced
from variable_programs import MOST, X, Y, check, kernels, softmax, variable

from tinygrad import Context, Tensor, Variable
from tinygrad.codegen import compile as compiler
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.jit import JitError

# --- TinyJit --------------------------------------------------------------------------------------------


def test_a_replay_gives_tensors_of_the_sizes_of_its_call():
    jitted, calls = traced(lambda x, n: {"part": (x[:n] + 1).realize(), "sum": x[:n].sum(0).realize(),
                                         "grown": Tensor.arange(n + 2).realize()})
    earlier = jitted(Tensor(X), variable(2))
    before = kernels()
    for value in (5, 1, MOST):
        results = jitted(Tensor(X), variable(value))
        check(results["part"], X[:value] + 1)
        check(results["sum"], X[:value].sum(0))
        check(results["grown"], np.arange(value + 2))
        assert results["part"].shape == (variable(value), 8)
    check(earlier["part"], X[:2] + 1)
    assert len(calls) == 1 and kernels() == before


def test_a_variable_may_arrive_by_the_shape_of_an_argument_or_in_an_expression():
    jitted, calls = traced(lambda x: (x * 2).sum(0).realize())
    moved, moves = traced(lambda x, place: x[place].realize())
    for value in (3, MOST, 1):
        check(jitted(Tensor(X)[:variable(value)]), X[:value].sum(0) * 2)
        check(jitted((Tensor(X)[:variable(value)] + 1).realize()), (X[:value] + 1).sum(0) * 2)
        check(moved(Tensor(X), variable(value) - 1), X[value - 1])
    assert len(calls) == len(moves) == 1


def test_other_bounds_or_another_name_trace_again():
    jitted, calls = traced(lambda x, n: x[:n].sum(0).realize())
    for n in (variable(3), variable(3, 1, 5), variable(3, name="m"), variable(4, 1, 5)):
        check(jitted(Tensor(X), n), X[:n.val].sum(0))
    assert len(calls) == 3


def test_reading_the_value_while_tracing_is_an_error_that_names_the_line():
    for read in (lambda n: n.val, lambda n: n.unbind(), lambda n: (n + 1).val):
        jitted, _ = traced(lambda x, n, read=read: (x * 2, read(n)))
        with pytest.raises(JitError, match=r"test_variables_jit\.py.*the value of a Variable was read"):
            jitted(Tensor(X), variable(3))


def attention(q, keys, values):
    """NumPy's, shapes (batch, length, heads, size)."""
    scores = np.einsum("bqhd,bkhd->bhqk", q, keys) / math.sqrt(q.shape[-1])
    return np.einsum("bhqk,bkhd->bqhd", softmax(scores, -1), values)


def test_attention_over_a_growing_cache_is_traced_once():
    batch, heads, size, most = 2, 3, 8, 20
    rng = np.random.default_rng(2)
    cache = Tensor.zeros(2, batch, most, heads, size).contiguous().realize()

    def step(q, k, v, place):
        cache[:, :, place:place + 1].assign(k.stack(v)).realize()
        keys, values = cache[0, :, :place + 1].transpose(1, 2), cache[1, :, :place + 1].transpose(1, 2)
        return q.transpose(1, 2).scaled_dot_product_attention(keys, values).transpose(1, 2).realize()

    jitted, calls = traced(step)
    seen = []
    for place in range(most):
        q, k, v = rng.standard_normal((3, batch, 1, heads, size)).astype(np.float32)
        seen.append((k, v))
        result = jitted(Tensor(q), Tensor(k), Tensor(v), Variable("place", 0, most - 1).bind(place))
        keys, values = (np.concatenate([s[i] for s in seen], 1) for i in range(2))
        check(result, attention(q, keys, values), 1e-4)
    check(cache, np.stack([keys, values]))
    assert len(calls) == 1


def block(x, weights, length):
    """A transformer's block over (length, 32), with four heads."""
    parts = (x.layernorm() @ weights[0]).reshape(length, 3, 4, 8).permute(1, 2, 0, 3)
    mixed = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=True)
    x = x + mixed.transpose(0, 1).reshape(length, 32) @ weights[1]
    return x + (x.layernorm() @ weights[2]).gelu() @ weights[3]


def transformer():
    rng = np.random.default_rng(3)
    shapes = ((32, 96), (32, 32), (32, 128), (128, 32))
    weights = [Tensor(rng.standard_normal(s).astype(np.float32) / 6, requires_grad=False) for s in shapes]
    return weights, rng.standard_normal((50, 32)).astype(np.float32)


def test_a_transformer_over_prompts_of_every_length_is_traced_once():
    weights, prompt = transformer()

    def forward(x, n):
        result = block(block(x[:n], weights, n), weights, n)
        return result.realize(), result[n - 1].softmax().realize()

    jitted, calls = traced(forward)
    for length in (7, 50, 1, 33, 48):
        every, last = jitted(Tensor(prompt), variable(length, 1, 50))
        with Context(NOOPT=1):
            part, there = Tensor(prompt[:length].copy(), device="CPU"), [w.to("CPU") for w in weights]
            expected = block(block(part, there, length), there, length).numpy()
        check(every, expected, 1e-4)
        check(last, softmax(expected[-1], 0), 1e-4)
    assert len(calls) == 1


@pytest.mark.usefixtures("on_cpu")
def test_time_goes_with_the_value():
    """No loop of a transformer's kernels runs to the bound, or a tile of it."""
    weights, _ = transformer()
    most = 4001
    n = variable(50, 1, most)
    result = block(Tensor.ones(most, 32, requires_grad=False).contiguous().realize()[:n], weights, n)
    items = result.schedule()
    assert items
    for item in items:
        loops = [node for node in compiler.stages_of(item.ast, "CPU").optimised.toposort()
                 if node.op is Ops.RANGE and node.arg[1] in (RangeKind.LOOP, RangeKind.THREAD)]
        constant = [loop.extent for loop in loops if all(s.op is Ops.CONST for s in loop.src)]
        assert not [extent for extent in constant if extent > 128], item


# --- gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [
    lambda x, w, n: (x[:n] @ w).relu().sum(),
    lambda x, w, n: (x[:n] @ w).softmax(0).square().sum(),
    lambda x, w, n: x[:n].cat(x[:2]).max(0).sum() + (w * n).sum(),
    lambda x, w, n: ((x[:n] - x[:n].mean(0)).square().mean(0) @ w).sum(),
    lambda x, w, n: (x[n - 1] @ w).exp().sum(),
])
def test_gradients_are_those_of_integer_sizes(loss):
    for value in (2, 5, MOST):
        grads = []
        for n in (variable(value), value):
            x, w = Tensor(X), Tensor(Y)
            loss(x, w, n).backward()
            grads.append((x.grad.numpy(), w.grad.numpy()))
        for symbolic, known in zip(*grads, strict=True):
            np.testing.assert_allclose(symbolic, known, rtol=1e-4, atol=1e-5)
