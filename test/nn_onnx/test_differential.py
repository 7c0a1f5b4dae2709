"""Every operator with drawn attributes, and random graphs of them, beside ONNX Runtime."""
from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="operators are compared with ONNX Runtime")

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx_graphs import SIZES, Builder, NotComputed, check, evaluate
from onnx_layers import ALONE
from onnx_operators import OPERATORS

from tinygrad.nn.onnx import OnnxRunner

IN_GRAPHS = sorted(OPERATORS.keys() - ALONE)
EXAMPLES = 2
"""Of each operator at each size of shapes."""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("op", OPERATORS)
def test_operator_is_that_of_onnx_runtime(op: str, sizes: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def agree(rng: Random) -> None:
        builder = Builder(rng, sizes)
        try:
            OPERATORS[op](builder)
        except NotComputed:
            assume(False)
        compare(builder)
    agree()


def compare(builder: Builder) -> None:
    """Run a graph whole by both. Where they differ, it is the first value that differs that fails."""
    model, inputs = builder.model(), builder.given()
    expected = evaluate(model, inputs)
    made = OnnxRunner(model)(inputs)
    try:
        for name, wanted in zip(made, expected, strict=True):
            check(made[name].numpy(), wanted, f"{name} of\n{text(builder)}")
    except AssertionError:
        made = OnnxRunner(builder.model(every=True))(inputs)
        for name in made:
            check(made[name].numpy(), builder.of(name), f"{name} of\n{text(builder)}")
        raise


def text(builder: Builder) -> str:
    from onnx import printer

    shapes = "\n".join(f"  {k}: {v.array.dtype} {v.array.shape}" for k, v in builder.values.items())
    return f"{printer.to_text(builder.model())}\n{shapes}"


def random_graph(seed: int) -> Builder:
    """10 to 40 nodes."""
    rng = Random(seed)
    builder = Builder(rng, rng.choice(list(SIZES)), reuse=0.8)
    nodes = rng.randint(10, 40)
    while len(builder.nodes) < nodes:
        try:
            OPERATORS[rng.choice(IN_GRAPHS)](builder)
        except NotComputed:
            continue
    return builder


@pytest.mark.parametrize("seed", range(50))
def test_random_graph_is_that_of_onnx_runtime(seed: int) -> None:
    compare(random_graph(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(50, 1000, 50))
def test_many_random_graphs_are_those_of_onnx_runtime(first: int) -> None:
    for seed in range(first, first + 50):
        compare(random_graph(seed))
