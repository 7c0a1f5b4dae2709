"""Values on meshes of devices: along each axis of a mesh cut in a way of their own."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import program_steps
import pytest
from arrays import close, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs
from rank_programs import Whole, run

from tinygrad import Device, Tensor, TinyJit
from tinygrad.nn.parallel import Mesh
from tinygrad.schedule.sharded_results import layout_of

SIX = ("CPU", *(f"CPU:{i}" for i in range(1, 6)))
FOUR = SIX[:4]
MESHES = (Mesh(FOUR, rows=2, columns=2), Mesh(SIX, rows=2, columns=3), Mesh(SIX, rows=3, columns=2),
          Mesh(FOUR, planes=1, rows=2, columns=2), Mesh(FOUR[:2], rows=2))


REFUSED = ("cut", "sharded")
"""What several devices do not do, and say so."""


@pytest.fixture(autouse=True, params=["one memory", "memories of their own"])
def memories(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param != "one memory":
        monkeypatch.setattr(Device, "ONE_MEMORY", frozenset())
    yield


def boxes(x: Tensor) -> list[Any]:
    """The items that each device has, along every axis."""
    layout = layout_of(x.uop)
    return [layout.box(number) for number in range(len(x.device))]


READ: dict[str, Callable[[Any], Any]] = {
    "repeated rows": lambda x: x.repeat_interleave(2, 0) if isinstance(x, Tensor) else x.repeat(2, 0),
    "summed": lambda x: x.sum(0),
    "a slice": lambda x: x[:, 1:] + 0,
}


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("views", READ)
def test_values_between_two_writes_are_those_of_their_time(views: str, axis: int | None) -> None:
    x = normal(2, 3)
    w = Tensor(x.copy()).shard(FOUR[:2], axis).realize()
    w.assign(w + 1)
    first = READ[views](w)
    w[0] = w[1] * 2
    second = READ[views](w)
    w.assign(w * 3)
    between = x + 1
    close(first, READ[views](between), 1e-6)
    between[0] = between[1] * 2
    close(second, READ[views](between), 1e-6)
    close(w, between * 3, 1e-6)


def test_each_axis_of_a_mesh_cuts_an_axis_of_a_value() -> None:
    mesh = Mesh(SIX, rows=2, columns=3)
    data = normal(4, 7)
    x = Tensor(data).shard(mesh["rows"], 0).shard(mesh["columns"], 1)
    assert boxes(x) == [((r, r + 2), c) for r in (0, 2) for c in ((0, 3), (3, 5), (5, 7))]
    assert boxes(x) == boxes(Tensor(data).shard(mesh["columns"], 1).shard(mesh["rows"], 0))
    close(x * 2, data * 2)
    close(x.sum(0), data.sum(0), 1e-5)
    assert boxes(x.sum(0)) == [(c,) for _ in range(2) for c in ((0, 3), (3, 5), (5, 7))]


def test_an_axis_is_cut_among_both_axes_of_a_mesh() -> None:
    mesh = Mesh(FOUR, rows=2, columns=2)
    x = Tensor(normal(9)).shard(mesh["rows"], 0).shard(mesh["columns"], 0)
    assert boxes(x) == [((0, 3),), ((3, 5),), ((5, 7),), ((7, 9),)]
    close(x.exp(), np.exp(normal(9)))
    both = Tensor(normal(9)).shard(mesh["rows", "columns"], 0)
    assert boxes(both) == boxes(Tensor(normal(9)).shard(FOUR, 0))


def test_gathering_along_one_axis_leaves_the_others() -> None:
    mesh = Mesh(FOUR, rows=2, columns=2)
    x = Tensor(normal(4, 6)).shard(mesh["rows"], 0).shard(mesh["columns"], 1)
    assert boxes(x.shard(mesh["columns"])) == [((0, 2), (0, 6))] * 2 + [((2, 4), (0, 6))] * 2
    assert boxes(x.shard(mesh["rows"])) == [((0, 4), (0, 3)), ((0, 4), (3, 6))] * 2
    assert boxes(x.shard(mesh)) == [((0, 4), (0, 6))] * 4
    for y in (x.shard(mesh["columns"]), x.shard(mesh["rows"]), x.shard(mesh), x.to("CPU")):
        close(y, normal(4, 6))


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_devices_that_have_nothing_of_a_value_take_part(name: str, axis: int | None) -> None:
    mesh = Mesh(FOUR, rows=2, columns=2)
    data = normal(4, 6)
    x = Tensor(data).shard(mesh["rows"], 0).shard(mesh["columns"], 1)
    for piece in ((slice(0, 2), slice(0, 2)), (slice(2, 4), slice(4, 6)), (slice(0, 2), slice(None))):
        y = x[piece].shard(mesh[name], axis)
        close(y * 2, data[piece] * 2)
        close((y + y.sum(0)).sum(1), (data[piece] + data[piece].sum(0)).sum(1), 1e-5, 1e-5)
        close(y.transpose(0, 1).contiguous().realize(), data[piece].T)


def test_devices_that_get_nothing_of_an_axis_have_the_others_whole() -> None:
    mesh = Mesh(FOUR, rows=2, columns=2)
    data = normal(2, 3)
    x = Tensor(data).shard(mesh["rows"], 0).shard(mesh["columns"], 1).realize()
    y = x.shard(mesh["columns"], 0)
    assert [[end - start for start, end in box] for box in boxes(y)] == [[1, 3], [0, 3], [1, 3], [0, 3]]
    close(y * 2, data * 2)
    close(y.relu().sum(1), np.maximum(data, 0).sum(1))
    close(y[:, 1:] + x[:, 1:], 2 * data[:, 1:])


def test_a_product_cut_by_rows_and_columns() -> None:
    mesh = Mesh(FOUR, data=2, model=2)
    a, b = normal(6, 8), normal(8, 10)
    x = Tensor(a).shard(mesh["data"], 0)
    w = Tensor(b).shard(mesh["model"], 1)
    assert boxes(x @ w) == [((r, r + 3), (c, c + 5)) for r in (0, 3) for c in (0, 5)]
    close(x @ w, a @ b, 1e-5)
    gradient, = (x @ w).square().sum().gradient(w)
    close(gradient, a.T @ (2 * (a @ b)), 1e-5)


def test_a_replayed_step_writes_what_is_cut_along_two_axes() -> None:
    mesh = Mesh(FOUR, rows=2, columns=2)
    w = Tensor(normal(4, 4), requires_grad=False).shard(mesh["rows"], 0).shard(mesh["columns"], 1).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return w.assign(w + x).sum().realize(w)

    expected = normal(4, 4)
    for number in range(4):
        x = Tensor(normal(4, 4, seed=number)).shard(mesh["columns"], 0).realize()
        result = step(x)
        expected = expected + normal(4, 4, seed=number)
        close(result, expected.sum(), 1e-4)
        close(w, expected, 1e-5)
        assert boxes(w) == [((r, r + 2), (c, c + 2)) for r in (0, 2) for c in (0, 2)]


@settings(max_examples=40, deadline=None)
@given(programs(), st.sampled_from(MESHES), st.integers(0, 1000))
def test_random_programs_over_random_layouts(program: Any, mesh: Mesh, seed: int) -> None:
    check(program, mesh, seed)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(programs(), st.sampled_from(MESHES), st.integers(0, 1000))
def test_many_random_programs_over_random_layouts(program: Any, mesh: Mesh, seed: int) -> None:
    check(program, mesh, seed)


def check(program: Any, mesh: Mesh, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_steps, "Tensor", Whole(mesh.devices))
        try:
            found = run(program, mesh, seed)
        except (ValueError, NotImplementedError, RuntimeError) as error:
            if not any(words in str(error) for words in REFUSED):
                raise
            return
    expected = program.run_numpy()
    for number, ours in enumerate(found):  # of several calls one after the other
        np.testing.assert_array_equal(ours, expected[number % len(expected)])


def test_what_became_a_constant_is_stored_by_each_device_for_itself() -> None:
    """Its copy in order is a node of no device, which both have in memory when it is asked for again."""
    x = Tensor(np.arange(16, dtype=np.float32).reshape(1, 4, 4)).shard(FOUR[:2], axis=1).contiguous()
    x[:] = -8
    none = x.contiguous()[np.array([False])]
    Tensor.realize(x, none)
    assert none.shape == (0, 4, 4)
    np.testing.assert_array_equal(x.numpy(), np.full((1, 4, 4), -8))


def test_what_is_no_mesh_is_refused() -> None:
    with pytest.raises(ValueError, match="axes whose sizes multiply to 4, got rows=3"):
        Mesh(FOUR, rows=3)
    for sizes in ({"rows": -2, "columns": -2}, {"rows": 2.0, "columns": 2}, {"rows": 0}):
        with pytest.raises(ValueError, match="have whole numbers of places, at least 1, got rows="):
            Mesh(FOUR, **sizes)
    with pytest.raises(ValueError, match="each once, got 'CPU' twice"):
        Mesh(("CPU", "CPU"), rows=2)
    with pytest.raises(TypeError, match="in a sequence, got 'CPU'"):
        Mesh("CPU", rows=3)
    for axes in ((), ("rows", "rows")):
        with pytest.raises(KeyError, match="takes their names, each once"):
            MESHES[0][axes]
    with pytest.raises(KeyError, match="has the axes rows, columns, not 'depth'"):
        MESHES[0]["depth"]
    with pytest.raises(ValueError, match="an item for each of the 3 devices"):
        Tensor.ones(2, 4).shard(MESHES[1]["columns"], 0)
