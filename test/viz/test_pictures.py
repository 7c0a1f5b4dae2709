"""Pictures without a browser, and tables of layers, compared with the graph and with sums by hand."""
from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from tinygrad import Tensor, nn
from tinygrad.codegen.lower import lower
from tinygrad.graph.uop import UOp
from tinygrad.viz import svg
from tinygrad.viz.picture import in_layers

pytestmark = pytest.mark.usefixtures("on_cpu")


def titles(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    return [text.text or "" for text in texts if text.get("class") is None]


def test_a_picture_has_each_node_and_each_edge_once() -> None:
    y = (Tensor(np.ones((3, 4), np.float32)) * 2).sum(1)
    nodes = list(y.uop.toposort())
    picture = svg(y)
    assert sorted(t.split()[0] for t in titles(picture)) == sorted(n.op.name for n in nodes)
    paths = ElementTree.fromstring(picture).findall("{http://www.w3.org/2000/svg}path")
    assert len(paths) == sum(len(set(n.src)) for n in nodes)


def test_what_is_computed_is_drawn_as_memory() -> None:
    x = (Tensor(np.ones(3, np.float32)) + 1).realize()
    picture = svg(x.exp())
    assert "float32 3 in memory" in picture and "BUFFER" not in picture  # below the sum nothing is drawn


def test_kernels_of_a_schedule_stand_between_the_memory_they_pass_on() -> None:
    items = (Tensor(np.ones((8, 8), np.float32)).exp().contiguous().sum(0) + 1).schedule()
    assert titles(svg(items)).count("kernel") == 2
    assert len(titles(svg(items))) == 2 + 3


def test_notebooks_show_text_nests_and_pictures() -> None:
    y = Tensor(np.ones((3, 4), np.float32)).sum(1)
    assert "<svg" in y._repr_html_() and "Tensor" in y._repr_html_()
    (item,) = y.schedule()
    assert "sum for" in item._repr_html_() and "<svg" in item._repr_html_()
    assert "<svg" not in y.realize()._repr_html_()


def test_notebooks_show_a_schedule_with_the_memory_between_its_steps() -> None:
    steps = (Tensor(np.ones((8, 8), np.float32)).exp().contiguous().sum(0) + 1).schedule()
    shown = steps._repr_html_()  # type: ignore[attr-defined]  # for users it is a list
    assert shown.count("ScheduleItem(") == 2 and titles(shown[shown.index("<svg"):]).count("kernel") == 2


def test_notebooks_fold_large_pictures() -> None:
    shown = Tensor.rand(3)._repr_html_()
    assert "<details>" in shown and shown.index("<summary>its graph of ") < shown.index("<svg")
    assert "<details>" not in (Tensor(np.ones(3, np.float32)) + 1)._repr_html_()


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(TypeError, match=r"svg\(\) shows tensors, nodes and schedule items, not a int"):
        svg(3)
    x = Tensor(np.ones(2, np.float32))
    for _ in range(400):
        x = (x * 1.5).exp()
    with pytest.raises(ValueError, match=r"svg\(\) draws up to 300; VIZ=1 shows larger graphs"):
        svg(x)
    assert "<svg" not in x._repr_html_()
    assert isinstance(x.uop, UOp)


def test_every_edge_of_a_layout_points_down() -> None:
    edges = [(0, 2), (1, 2), (2, 3), (1, 4), (3, 4)]
    layers = in_layers(5, edges)
    depth = {node: i for i, layer in enumerate(layers) for node in layer}
    assert sorted(depth) == list(range(5))
    assert all(depth[a] < depth[b] for a, b in edges)


class Net:
    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 5, 3)
        self.layers = [nn.Linear(5 * 6 * 6, 7), nn.Linear(7, 2, bias=False)]

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu().flatten(1)
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_summary_has_layers_shapes_parameters_and_operations() -> None:
    found = nn.summary(Net(), Tensor(np.ones((4, 3, 8, 8), np.float32)))
    assert [(r.name, r.kind, r.shapes) for r in found.rows] == [
        ("Net", "Net", "(4, 2)"), ("conv", "Conv2d", "(4, 5, 6, 6)"), ("layers.0", "Linear", "(4, 7)"),
        ("layers.1", "Linear", "(4, 2)")]
    assert [r.parameters for r in found.rows] == [0, 5 * 3 * 9 + 5, 180 * 7 + 7, 14]
    assert found.total.parameters == 140 + 1267 + 14
    products = [4 * 5 * 36 * 27, 4 * 7 * 180, 4 * 2 * 7]
    for row, multiply_adds in zip(found.rows[1:], products, strict=True):
        assert 2 * multiply_adds <= row.operations <= 2 * multiply_adds * 1.2 + 1000
    assert found.total.operations == sum(r.operations for r in found.rows)
    assert found.total.seconds == pytest.approx(sum(r.seconds for r in found.rows))
    assert str(found).splitlines()[0].split() == ["layer", "type", "output", "parameters", "operations", "ms"]
    assert "<table>" in found._repr_html_()


def test_a_summary_leaves_types_as_they_were() -> None:
    before = nn.Linear.__call__
    nn.summary(nn.Linear(2, 2), Tensor(np.ones((1, 2), np.float32)))
    assert nn.Linear.__call__ is before
    with pytest.raises(ValueError):
        nn.summary(nn.Linear(2, 2), Tensor(np.ones((1, 3), np.float32)))
    assert nn.Linear.__call__ is before
    with pytest.raises(TypeError, match=r"summary\(\) takes a model that can be called, not a list"):
        nn.summary([nn.Linear(2, 2)])  # type: ignore[arg-type]  # what it is for


def test_a_picture_of_a_loop_nest_has_its_loops_and_addresses_as_text() -> None:
    a, b = Tensor.ones(4, 6).contiguous().realize(), Tensor.full((6, 8), 2.0).contiguous().realize()
    [item] = (a @ b).schedule()
    picture = svg(lower(item.ast))
    assert sorted(t for t in titles(picture) if t not in ("SINK", "LOAD", "INDEX")) == [
        "MUL", "PARAM p0", "PARAM p1", "PARAM p2", "RANGE i0", "RANGE i1", "RANGE i2", "REDUCE ADD", "STORE"]
    assert "i0*6 + i2" in picture and "4 LOOP" in picture
