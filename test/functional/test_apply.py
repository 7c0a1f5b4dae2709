"""APPLY, the one node that stands for an operation (`graph/template.py`), also above others: what is
computed, kept and differentiated is what all of the operations' nodes would give."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinygrad.engine.realize import realize_uops
from tinygrad.graph.leaf_tensors import below_detaches
from tinygrad.graph.node_flags import APPLIED, MEMORY
from tinygrad.graph.ops import Ops
from tinygrad.graph.template import GraphTemplate, applied_of, expanded
from tinygrad.graph.uop import UOp
from tinygrad.tensor.history import LOOKS
from tinygrad.tensor.live import live_tensors

Binary = Callable[[Tensor, Tensor], Tensor]
draw = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def no_look_falls_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all histories, which expands every node, comes after some number of computations: of all
    tests before this one."""
    monkeypatch.setattr(LOOKS, "computations", 10**6)
    monkeypatch.setattr(LOOKS, "bytes", 1 << 60)


def real(*shape: int) -> Tensor:
    return Tensor(draw.standard_normal(shape).astype(np.float32)).realize()


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` after another product of that kind, so that there is a template."""
    (real(*a.shape) @ real(*b.shape)).realize()
    found = a @ b
    assert found._uop.viewed.op is Ops.APPLY
    return found


def kernels(run: Callable[[], Any]) -> int:
    before = GlobalCounters.kernel_count
    run()
    return GlobalCounters.kernel_count - before


def test_it_is_computed_and_read_without_the_nodes_that_it_stands_for() -> None:
    a, b = real(5, 6), real(6, 4)
    y = product(a, b)
    assert kernels(y.realize) == 1 and kernels(y.realize) == 0
    np.testing.assert_allclose(y.numpy(), a.numpy() @ b.numpy(), rtol=1e-5)
    assert y._uop.viewed.op is Ops.APPLY and y.shape == (5, 4) and y.device == a.device


def test_who_asks_for_the_node_gets_those_of_the_function_in_the_same_memory() -> None:
    a, b = real(5, 6), real(6, 4)
    y = product(a, b).realize()
    assert y.uop.op is not Ops.APPLY and y.uop is product(a, b).uop
    assert kernels(lambda: (y.realize(), y.numpy())) == 0
    assert kernels(lambda: (y + 1).realize()) == 1
    assert all(n.op is not Ops.APPLY for n in (y + 1).uop.toposort())


def test_several_are_computed_together() -> None:
    a, b, c = real(5, 6), real(6, 4), real(4, 3)
    first, second = product(a, b), product(b, c)
    assert kernels(lambda: first.realize(second, first)) == 2
    assert first._uop.viewed.op is second._uop.viewed.op is Ops.APPLY
    assert kernels(lambda: second.realize(first)) == 0
    np.testing.assert_allclose(second.numpy(), b.numpy() @ c.numpy(), rtol=1e-5)


def test_a_value_inside_that_was_computed_for_somebody_is_none_of_another_calls() -> None:
    weight, bias = real(4), real(4)
    layer = nn.LayerNorm(4)
    layer.weight, layer.bias = weight, bias
    layer(real(6, 4)).realize()
    layer(real(7, 4)).uop.op  # noqa: B018  # a template of that shape, which has no schedule
    for i in range(3):
        x = real(7, 4)
        inside = x.layernorm()
        if i == 0:
            inside.uop.op  # noqa: B018  # looks at the nodes, of which the value is
            inside.realize()
        expected = x.layernorm().numpy() * weight.numpy() + bias.numpy()
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_operands_may_be_numbers_repeated() -> None:
    """What a layer has before it is trained, by values of its own."""
    x = real(6, 4)
    for value in (1.0, 2.0, -0.5):
        layers = nn.LayerNorm(4), nn.LayerNorm(4)
        for layer in layers:
            layer.weight = Tensor.full((4,), value)
        layers[0](x).realize()
        y = layers[1](x)
        assert y._uop.viewed.op is Ops.APPLY and kernels(y.realize) == 1
        np.testing.assert_allclose(y.numpy(), value * x.layernorm().numpy(), rtol=1e-6)
        (y * y).sum().backward()
        assert layers[0].weight.grad is None and layers[1].weight.grad is not None
        expected = 2 * value * (x.layernorm() ** 2).sum(0)
        np.testing.assert_allclose(layers[1].weight.grad.numpy(), expected.numpy(), rtol=1e-5)


def test_equal_calls_are_computed_once() -> None:
    a, b = real(5, 6), real(6, 4)
    first, second = product(a, b), product(a, b)
    assert kernels(first.realize) == 1 and kernels(second.realize) == 0
    assert kernels(lambda: first.uop) == 0
    assert kernels(second.realize) == 0


def test_a_value_whose_nodes_were_computed_meanwhile_is_not_lost() -> None:
    a, b = real(5, 6), real(6, 4)
    expanded, applied = product(a, b), product(a, b)
    expanded.uop.op  # noqa: B018  # looks at the nodes
    expanded.realize()
    np.testing.assert_array_equal(applied.numpy(), expanded.numpy())


def test_what_its_nodes_were_computed_into_serves_those_above_it() -> None:
    x, b = real(5, 6), real(6)
    for _ in range(2):
        ((x * b).tanh() + real(6)).realize()  # leaves the schedule of all of it
    inner, b = (x * b).tanh(), real(6)
    outer = inner + b
    inner.uop.op  # noqa: B018  # looks at the nodes
    inner.realize()
    before = GlobalCounters.global_ops
    np.testing.assert_allclose(outer.numpy(), inner.numpy() + b.numpy(), rtol=1e-6)
    assert GlobalCounters.global_ops - before == 30


@pytest.mark.parametrize("order", [1, -1])
def test_equal_calls_of_which_one_was_asked_for_its_nodes_are_computed_once(order: int) -> None:
    for _ in range(3):
        a, b = real(5, 6), real(6, 4)
        both = [product(a, b), product(a, b)]
        both[1].uop.op  # noqa: B018  # looks at the nodes
        assert kernels(lambda: [y.realize() for y in both[::order]]) == 1  # noqa: B023
        np.testing.assert_allclose(both[0].numpy(), a.numpy() @ b.numpy(), rtol=1e-5)


def test_a_call_of_one_value_in_two_forms_says_nothing_about_others() -> None:
    a, b = real(7, 6), real(6, 4)
    applied, nodes = product(a, b), product(a, b)
    nodes.uop.op  # noqa: B018  # looks at the nodes
    np.testing.assert_array_equal((applied - nodes).numpy(), np.zeros((7, 4)))
    for _ in range(2):
        x, y = product(real(7, 6), b), product(a, real(6, 4))
        difference = x - y
        np.testing.assert_allclose(difference.numpy(), x.numpy() - y.numpy(), rtol=1e-4, atol=1e-5)


def test_several_results_are_computed_together() -> None:
    a, b = real(5, 6), real(6, 4)
    y, z = product(a, b), product(a, b) * 2
    assert kernels(lambda: y.realize(z)) <= 2
    np.testing.assert_allclose(z.numpy(), 2 * (a.numpy() @ b.numpy()), rtol=1e-5)


def test_operands_that_are_overwritten_are_read_before() -> None:
    a, b = real(5, 6), real(6, 4)
    expected = a.numpy() @ b.numpy()
    lazy, done = product(a, b), product(a, b).realize()
    a.assign(Tensor.zeros(5, 6)).realize()
    for y in (lazy, done):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)
    np.testing.assert_array_equal(product(a, b).numpy(), np.zeros((5, 4)))


def test_variables_below_an_operand_have_the_values_of_the_call() -> None:
    """Also where the operand is lazy again, for its memory was overwritten."""
    x = real(4)

    def shifted(value: int) -> UOp:
        offset = UOp.variable("offset", 0, 99, value).cast(dtypes.float32)
        return x.uop + offset.reshape((1,)).expand((4,))

    template = GraphTemplate(shifted(0) * 2, (shifted(0),))
    for value in (3, 5, 7):
        known = (4,), x.device, x.uop.flags & ~MEMORY | APPLIED
        node = UOp.new(Ops.APPLY, dtypes.float32, (shifted(value),), template, known)
        realize_uops([node])
        view = node.realized_view
        assert view is not None and view.base.buffer is not None
        np.testing.assert_allclose(view.base.buffer.numpy(), (x.numpy() + value) * 2, rtol=1e-6)


def test_a_result_is_memory_of_its_own_to_write_into() -> None:
    with Tensor.no_grad():
        a, b = (Tensor(draw.integers(0, 9, (4, 4)).astype(np.int32)).realize() for _ in range(2))
        (a @ b).realize()
    y, z = a @ b, a @ b
    expected = y.numpy()
    np.testing.assert_array_equal(z.numpy(), expected)
    y[0] = 1
    y += 1
    expected[0] = 1
    np.testing.assert_array_equal(y.numpy(), expected + 1)
    np.testing.assert_array_equal(z.numpy(), a.numpy() @ b.numpy())


@pytest.mark.parametrize("is_realized", [False, True])
def test_gradients_flow_through_it(is_realized: bool) -> None:
    a, b = real(5, 6), real(6, 4)
    y = product(a, b)
    if is_realized:
        y.realize()
    y.sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), np.ones((5, 4)) @ b.numpy().T, rtol=1e-5, atol=1e-6)
    y = product(a, b)
    y.requires_grad = True
    (y * 3).sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), np.full((5, 4), 3))


def test_a_function_under_the_jit_takes_it_from_outside_and_as_an_argument() -> None:
    a, b = real(5, 6), real(6, 4)
    expected = a.numpy() @ b.numpy()
    outside = product(a, b)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (outside * 2 + x.relu()).realize()

    for _ in range(4):
        y = product(a, b)
        np.testing.assert_allclose(step(y).numpy(), 2 * expected + np.maximum(expected, 0), rtol=1e-5)


def test_whoever_looks_at_all_tensors_sees_nodes() -> None:
    y = product(real(5, 6), real(6, 4))
    assert y in set(live_tensors()) and y._uop.viewed.op is not Ops.APPLY


def test_it_stands_above_lazy_nodes_also_such_as_are_to_be_kept_or_written_before() -> None:
    a, b, lazy = real(5, 6), real(6, 4), Tensor.rand(6, 4)
    product(a, b)
    assert ((a + 1) @ b)._uop.viewed.op is Ops.APPLY
    drawn = a @ lazy
    assert drawn._uop.viewed.op is Ops.APPLY
    drawn.realize()
    assert lazy._is_realized and drawn._uop.viewed.op is Ops.APPLY
    np.testing.assert_allclose(drawn.numpy(), a.numpy() @ lazy.numpy(), rtol=1e-5)
    expected = a.numpy()
    for _ in range(3):
        after = a.assign(a * 0.5 + a.tanh()) @ b
        expected = expected * 0.5 + np.tanh(expected)
        assert after._uop.viewed.op is Ops.APPLY
        np.testing.assert_allclose(after.numpy(), expected @ b.numpy(), rtol=1e-4)
        np.testing.assert_allclose(a.numpy(), expected, rtol=1e-5)
    assert all(n.op is not Ops.APPLY for n in ((a @ b) * 2).uop.toposort())


def test_a_chain_of_calls_is_a_node_each_with_views_in_between() -> None:
    def network(x: Tensor) -> Tensor:
        for _ in range(10):
            x = ((x @ w).reshape(5, 2, 3).transpose(1, 2) * 0.5).tanh().flatten(1)[:, ::-1] - b
        return x

    w, b = real(6, 6), real(6)
    for _ in range(3):
        x, y = real(5, 6), network(x0 := real(5, 6))
        node = applied_of(y._uop)
        assert node is not None and len(node.toposort()) < 90 and len(expanded(node).toposort()) > 300
        seen = network(x).numpy()
        expected = x.numpy()
        for _ in range(10):
            z = np.tanh((expected @ w.numpy()).reshape(5, 2, 3).transpose(0, 2, 1) * 0.5)
            expected = z.reshape(5, 6)[:, ::-1] - b.numpy()
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-5)
        assert kernels(network(x).realize) == kernels(network(x0).realize)


def test_of_what_is_viewed_in_part_only_that_is_computed() -> None:
    a, b = real(64, 32), real(32, 64)
    counts = []
    for _ in range(3):
        before = GlobalCounters.global_ops
        (a @ b)[3].realize()
        counts.append(GlobalCounters.global_ops - before)
    assert counts[0] == counts[1] == counts[2] < 3 * 32 * 64


def test_a_write_through_a_view_of_it_is_seen_by_all() -> None:
    a, b = real(5, 6), real(6, 4)
    with Tensor.no_grad():
        for _ in range(3):
            y = a @ b
            view, after = y.reshape(4, 5), y * 2
            expected = a.numpy() @ b.numpy()
            view[0] = 7
            np.testing.assert_allclose(after.numpy(), expected * 2, rtol=1e-5)
            expected.reshape(-1)[:5] = 7
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)


def test_without_gradients_it_is_memory_once_it_is_computed() -> None:
    a, b = real(5, 6), real(6, 4)
    with Tensor.no_grad():
        product(a, b)
        y = product(a, b)
    np.testing.assert_allclose(y.numpy(), a.numpy() @ b.numpy(), rtol=1e-5)
    assert y._is_fully_realized and below_detaches(y.uop).op is Ops.BUFFER


def test_each_of_several_results_has_one() -> None:
    for _ in range(3):
        x = real(5, 6)
        items, places = x.sort(dim=1)
        np.testing.assert_array_equal(items.numpy(), np.sort(x.numpy(), 1))
        np.testing.assert_array_equal(places.numpy(), np.argsort(x.numpy(), 1, kind="stable"))
        variance, mean = x.var_mean(dim=0)
        variance.realize(mean)
        np.testing.assert_allclose(variance.numpy(), x.numpy().var(0, ddof=1), rtol=1e-5)
        np.testing.assert_allclose(mean.numpy(), x.numpy().mean(0), rtol=1e-5, atol=1e-7)
        items, places = x.topk(3, dim=1)
        assert kernels(places.realize) > 0 and kernels(items.realize) == 0
    assert all(part._uop.viewed.op is Ops.APPLY for part in real(5, 6).sort(dim=1))
    largest, _ = (x := real(5, 6)).topk(2)
    np.testing.assert_array_equal(largest.sum().gradient(x)[0].numpy(), x.numpy() >= largest.numpy()[:, 1:])


def test_a_function_whose_tensors_come_after_words_has_one() -> None:
    for formula, expected in (("ij,jk->ik", lambda x, y: x @ y), ("ij,jk->i", lambda x, y: (x @ y).sum(1))):
        for _ in range(3):
            x, y = real(5, 6), real(6, 4)
            found = Tensor.einsum(formula, x, y)
            np.testing.assert_allclose(found.numpy(), expected(x.numpy(), y.numpy()), rtol=1e-5, atol=1e-6)
        assert found._uop.viewed.op is Ops.APPLY
    with pytest.raises(TypeError):
        Tensor.einsum()


STEPS: tuple[Binary, ...] = (
    lambda x, y: x @ y, lambda x, y: x.softmax(-1), lambda x, y: x.relu(), lambda x, y: x.sum(0) + y,
    lambda x, y: x.max(1, keepdim=True) * y, lambda x, y: x.layernorm(), lambda x, y: x.cat(y)[:4],
    lambda x, y: x.clip(-0.5, 0.7), lambda x, y: x.tril(), lambda x, y: x + y, lambda x, y: x.T,
    lambda x, y: x[::-1], lambda x, y: x.exp() * 0.1, lambda x, y: x.detach(), lambda x, y: x.cumsum(1),
    lambda x, y: (x > y).where(x, y), lambda x, y: x.T.sum(1) + x, lambda x, y: x.contiguous(),
    lambda x, y: x.reshape(2, 8).permute(1, 0).reshape(4, 4), lambda x, y: x[1:3].repeat(2, 1),
    lambda x, y: x.square() / (y.square() + 1), lambda x, y: x.half().float(), lambda x, y: -x.flip(0),
    lambda x, y: x[:, :1].expand(4, 4), lambda x, y: (x.reshape(2, 2, 4) @ y).flatten(0, 1))


def results_of_a_program(seed: int) -> list[Any]:
    """What a random program reads: operations, values computed, read and overwritten, gradients; last the
    error that ended it, if one did."""
    found: list[Any] = []
    try:
        run_program(random.Random(seed), np.random.default_rng(seed), found)
    except RuntimeError as error:  # a value or a gradient that was asked for after it was overwritten
        found.append(str(error))
    return found


def run_program(chance: random.Random, numbers: np.random.Generator, found: list[Any]) -> None:
    pool = [Tensor(numbers.standard_normal((4, 4)).astype(np.float32)).realize() for _ in range(3)]
    for _ in range(chance.randint(8, 24)):
        x, y = chance.choice(pool), chance.choice(pool)
        match chance.randrange(10):
            case 0:
                x.realize()
            case 1:
                found.append(x.numpy())
            case 2:
                x.assign(y * 0.9)
            case 3:
                x[1:3] = y[1:3]
            case 4 if chance.random() < 0.5:
                with Tensor.no_grad():
                    pool = [*pool[-7:], chance.choice(STEPS)(x, y)]
            case 4:
                (x * y).sum().backward()
                found += [t.grad.numpy() for t in pool if t.grad is not None]
            case _:
                pool = [*pool[-7:], chance.choice(STEPS)(x, y)]
    found += [t.numpy() for t in pool]


@pytest.mark.parametrize("seed", [*range(24), 682, 945, 2057, 2317, 2722, 3516, 4528])
def test_programs_compute_what_they_do_with_all_nodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results_of_a_program(seed)  # leaves templates
    got = results_of_a_program(seed)
    with monkeypatch.context() as patch:
        patch.setattr(GraphTemplate, "applied", GraphTemplate.over)
        expected = results_of_a_program(seed)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("has_state", [False, True])
def test_a_sequence_of_steps_is_one_node(kind: str, has_state: bool) -> None:
    layer, cell = getattr(nn, kind)(3, 4), getattr(nn, kind + "Cell")(3, 4)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(layer, name + "_l0").realize())
    for _ in range(3):
        x, states = real(5, 2, 3), [real(1, 2, 4) for _ in range(2 if kind == "LSTM" else 1)]
        given = None if not has_state else tuple(states) if kind == "LSTM" else states[0]
        outputs, _ = layer(x, given)
        state = None if not has_state else tuple(s[0] for s in states) if kind == "LSTM" else states[0][0]
        expected = []
        for i in range(5):
            state = cell(x[i], state)
            expected.append((state[0] if kind == "LSTM" else state).numpy())
        np.testing.assert_allclose(outputs.numpy(), np.stack(expected), rtol=1e-4, atol=1e-6)
    assert outputs._uop.viewed.op is Ops.APPLY
