"""Pipeline parallel (`nn.Pipeline`): the gradients of one device, few pieces under way, one copy of what a
stage gives the next and of its gradient."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from several_devices import numbers

from tinygrad import Tensor, TinyJit, dtypes, nn
from tinygrad.device import Device
from tinygrad.engine import realize
from tinygrad.graph.ops import Ops
from tinygrad.nn import optim, state
from tinygrad.nn.parallel import Mesh, column_parallel, row_parallel
from tinygrad.nn.pipeline import Pipeline, one_forward_one_backward

SIX = tuple(f"CPU:{i}" for i in range(6))


@pytest.fixture(autouse=True)
def own_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "ONE_MEMORY", frozenset())


@given(st.integers(1, 6), st.integers(1, 12))
def test_passes_are_in_an_order_that_holds_few_pieces(stages: int, pieces: int) -> None:
    held = [0] * stages
    done = set()
    for this in one_forward_one_backward(stages, pieces):
        stage, piece, is_forward = this
        held[stage] += 1 if is_forward else -1
        assert held[stage] <= stages - stage
        if is_forward:
            assert stage == 0 or (stage - 1, piece, True) in done
        else:
            assert (stage, piece, True) in done
            assert stage == stages - 1 or (stage + 1, piece, False) in done
        assert tuple(this) not in done
        done.add(tuple(this))
    assert len(done) == 2 * stages * pieces


class Layer:
    """A linear layer and what comes after it."""

    def __init__(self, width: int, outputs: int) -> None:
        self.linear, self.norm = nn.Linear(width, outputs), nn.LayerNorm(outputs)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)).gelu()


class Pair:
    def __init__(self) -> None:
        self.up, self.down = nn.Linear(6, 16), nn.Linear(16, 6)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.sparse_categorical_crossentropy(labels)


def trained(places: Any, jit: bool) -> tuple[list[float], list[Any]]:
    Tensor.manual_seed(3)
    rng = np.random.default_rng(4)
    stages = [Layer(6, 16), Layer(16, 16), nn.Linear(16, 5)]
    pipeline = Pipeline(stages, places, cross_entropy) if places else None
    optimizer = optim.Adam(state.get_parameters(stages), lr=0.05)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        if pipeline is not None:
            loss = pipeline.backward(x, labels, pieces=4)
        else:
            loss = cross_entropy(x.sequential(stages), labels).backward()
        return loss.realize(*optimizer.schedule_step())

    run = TinyJit(step) if jit else step
    with Tensor.train():
        batches = [(Tensor(rng.normal(size=(8, 6))), Tensor(rng.integers(0, 5, 8))) for _ in range(3)]
        losses = [run(x.realize(), labels.realize()).item() for x, labels in batches]
    return [float(n) for n in losses], [p.numpy() for p in state.get_parameters(stages)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("places", [SIX[:3], (SIX[:2], SIX[2:4], SIX[4:]),
                                    Mesh(SIX, pipe=3, data=2).split("pipe")], ids=["stages", "data", "mesh"])
def test_training_ends_with_the_parameters_of_one_device(places: Any, jit: bool,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "default_float", dtypes.float64)
    losses, parameters = trained(None, False)
    found_losses, found = trained(places, jit)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-9)
    for ours, one in zip(found, parameters, strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("places", [SIX[:2], (SIX[0], SIX[:2]), (SIX[:2], SIX[2:4])])
def test_weights_that_stages_have_in_common(places: Any, jit: bool) -> None:
    """An embedding and the head with its weights, at both ends: trained as by one device."""
    tokens = np.random.default_rng(4).integers(0, 7, (3, 8, 2))

    def run(places: Any) -> list[Any]:
        Tensor.manual_seed(3)
        embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        head.weight = embedding.weight
        stages = [embedding, head]
        pipeline = Pipeline(stages, places, cross_entropy) if places else None
        optimizer = optim.SGD(state.get_parameters(stages), lr=0.5)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            if pipeline is not None:
                loss = pipeline.backward(x, x, pieces=4)
            else:
                loss = cross_entropy(x.sequential(stages), x).backward()
            return loss.realize(*optimizer.schedule_step())

        training = TinyJit(step) if jit else step
        with Tensor.train():
            losses = [training(Tensor(batch).realize()).item() for batch in tokens]
        return [losses, (pipeline or (lambda x: x.sequential(stages)))(Tensor(tokens[0])).numpy(),
                embedding.weight.numpy()]

    for found, expected in zip(run(places), run(None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_stages_whose_layers_are_cut_on_a_mesh() -> None:
    x, target = numbers(8, 6), numbers(8, 6)
    found = []
    for several in (False, True):
        Tensor.manual_seed(3)
        stages = [Pair() for _ in range(2)]
        places: list[Any] = list(SIX[:1]) * 2
        if several:
            meshes = Mesh((*SIX, "CPU:6", "CPU:7"), pipe=2, data=2, model=2).split("pipe")
            places = [mesh["data"] for mesh in meshes]
            for stage, mesh in zip(stages, meshes, strict=True):
                column_parallel(stage.up, mesh["model"])
                row_parallel(stage.down, mesh["model"])
        pipeline = Pipeline(stages, places, lambda y, t: (y - t).square().mean())
        pipeline.backward(Tensor(x).float(), Tensor(target).float(), pieces=4)
        found.append([p.grad.numpy() for p in state.get_parameters(stages)])
    for one, cut in zip(*found, strict=True):
        np.testing.assert_allclose(cut, one, rtol=1e-4, atol=1e-5)


def test_stages_copy_what_they_give_and_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(64, 64) for _ in range(3)]
    pipeline = Pipeline(layers, SIX[:3], lambda y, target: (y - target).square().mean())
    x, target = (Tensor(numbers(32, 64)).float().to(d).realize() for d in (SIX[0], SIX[2]))
    Tensor.realize(*state.get_parameters(layers))
    copied: list[int] = []
    steps = realize.Steps

    def counted(schedule: Any) -> Any:
        copied.extend(i.buffers[0].arg.size * 4 for i in schedule.items
                      if i.ast.op is Ops.COPY and i.buffers[0].device != i.buffers[1].device)
        return steps(schedule)

    monkeypatch.setattr(realize, "Steps", counted)
    pipeline.backward(x, target, pieces=8)
    assert sum(n for n in copied if n > 4) == 2 * 2 * 32 * 64 * 4


def test_what_cannot_be_cut_into_pieces_is_refused() -> None:
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with pytest.raises(ValueError, match="a place for each stage, got 2 stages and 3 places"):
        Pipeline(layers, SIX[:3], cross_entropy)
    pipeline = Pipeline(layers, SIX[:2], cross_entropy)
    with pytest.raises(ValueError, match="a multiple of the pieces, got 6 rows, 6 targets and 4 pieces"):
        pipeline.backward(Tensor.ones(6, 2), Tensor.zeros(6, dtype="int32"), pieces=4)
    assert pipeline(Tensor.ones(3, 2)).device == SIX[1]


@pytest.mark.usefixtures("on_cpu")
def test_equal_constants_are_on_their_own_devices() -> None:
    for place in (lambda t: t.to_(SIX[1]), lambda t: t.shard_(SIX[:2]), lambda t: t.to_(SIX[1]).realize()):
        one, other, third = (Tensor.ones(4) for _ in range(3))
        place(other)
        Tensor.realize(one, other, third)
        assert (one.uop.device, third.uop.device, other.uop.device) == ("CPU", "CPU", other.device)
        assert one.tolist() == other.tolist() == [1] * 4
