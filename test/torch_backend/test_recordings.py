"""What a recording says of compiled programs of PyTorch: their own lines and modules."""
from __future__ import annotations

import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra")

import tinygrad  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(40, 30), torch.nn.Linear(30, 20)])

    def forward(self, x):
        hidden = self.layers[0](x).relu()
        return self.layers[1](hidden)


def test_kernels_are_for_the_lines_and_modules_of_the_model():
    first, second = (inspect.getsourcelines(Net.forward)[1] + n for n in (1, 2))
    model = torch.compile(Net(), backend="tinygrad")
    with tinygrad.profile() as profile:
        model(torch.ones(50, 40)).sum().backward()
    here = Path(__file__).name
    lines = {row.name for row in profile.rows("line")}
    assert {f"{here}:{first}", f"{here}:{second}", f"{here}:{first} (gradient)"} <= lines
    modules = {row.name.removesuffix(" (gradient)") for row in profile.rows("module")}
    assert {"layers.0", "layers.1"} <= modules


def test_modules_without_lines_of_their_own_have_the_callers():
    layers = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 20))
    model = torch.compile(layers, backend="tinygrad")
    for batch in (50, 60, 70):  # the third is a graph for any batch, whose sums are masked and live out
        with tinygrad.profile() as profile:
            model(torch.ones(batch, 40))
        assert {row.name for row in profile.rows("module")} >= {"0", "1"}, batch
    assert {row.name.split(":")[0] for row in profile.rows("line")} == {Path(__file__).name}
