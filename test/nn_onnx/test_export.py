"""Functions written as ONNX: what ONNX Runtime and our own importer make of the file."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="exported models are run by ONNX Runtime")

import onnxruntime as ort

from tinygrad import TinyJit, nn
from tinygrad.nn.onnx import OnnxRunner, export
from tinygrad.tensor import Tensor

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32), requires_grad=False)


def checked(function: Callable[..., Any], *inputs: Tensor, tolerance: float = 1e-5) -> Counter[str]:
    """How often each operator is in the export of a function, which ONNX Runtime and we run with its
    results."""
    model = export(function, inputs)
    made = function(*inputs)
    wanted = [x.numpy() for x in (made if isinstance(made, tuple) else (made,))]
    given = {f"x{i}": x.numpy() for i, x in enumerate(inputs)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found in (session.run(None, given), [y.numpy() for y in OnnxRunner(model)(given).values()]):
        for got, want in zip(found, wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return Counter(node.op_type for node in model.graph.node)


class Block:
    """A transformer's block."""

    def __init__(self) -> None:
        self.norm, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def __call__(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).reshape(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        attended = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(*x.shape))
        return x + self.down(self.up(self.norm2(x)).gelu())


def test_a_transformer_is_matrix_products_norms_and_attention() -> None:
    ops = checked(Block(), floats(2, 5, 32), tolerance=1e-4)
    assert {"Attention": 1, "LayerNormalization": 2, "MatMul": 4, "Gelu": 1}.items() <= ops.items()
    assert not {"ReduceSum", "ReduceMax", "Pow", "Where"} & ops.keys() and ops.total() < 40


def test_a_convolutional_network() -> None:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), Tensor.relu, Tensor.max_pool2d,
              nn.Conv2d(8, 16, 3, stride=2, groups=2), Tensor.relu, lambda x: x.avg_pool2d((3, 3)).flatten(1),
              nn.Linear(16, 10), Tensor.softmax]

    def net(x: Tensor) -> Tensor:
        return x.sequential(layers)

    ops = checked(net, floats(2, 3, 16, 16))
    assert ops["Conv"] == 2 and ops["MaxPool"] == ops["AveragePool"] == ops["Softmax"] == 1


@pytest.mark.parametrize("function", [
    lambda x: x.sum(1) + x.mean(0,
                                keepdim=True).max() - x.min(1),
                                lambda x: x.exp() * x.sigmoid() / (x.abs() + 1),
    lambda x: x[1:, ::2].flip(1).pad(((1, 2), (0, 1))), lambda x: (x > 0).where(x, -x).sqrt().log2(),
    lambda x: x.transpose().reshape(2, 3, 4).permute(2, 0, 1), lambda x: (x * 3).int() // 2 % 3,
    lambda x: x.cumsum(1), lambda x: x.sort()[0], lambda x: x.argmax(1), lambda x: x.cat(x * 2,
                                                                                         dim=1).softmax(0),
    lambda x: (x.trunc() + x.std(1, keepdim=True), (x != x).any(1)), lambda x: x.stack(x.exp2(), dim=1),
    lambda x: x.round() + x.round(decimals=1), lambda x: x.argsort(stable=True),
    lambda x: x.interpolate((8,)), lambda x: x.silu() + x.elu() + x.softplus() + x.tanh(),
])
def test_what_is_no_operator_is_written_node_by_node(function: Callable[[Tensor], Any]) -> None:
    checked(function, floats(4, 6), tolerance=1e-4)


def test_look_ups_are_gathers() -> None:
    table = floats(10, 4)
    ids = Tensor(np.array([[1, 9], [0, 3]], np.int32))
    assert checked(lambda i: table[i] * 2, ids)["Gather"] == 1
    assert checked(nn.Embedding(10, 4), ids).total() < 20


@pytest.mark.parametrize("function, op", [
    (nn.BatchNorm2d(4), "BatchNormalization"), (nn.RMSNorm(6), "RMSNormalization"),
    (lambda x: x.argmax(1), "ArgMax"), (lambda x: x.argmin(-1, keepdim=True), "ArgMin"),
    (lambda x: x.cumsum(2), "CumSum"), (Tensor.atan, "Atan"), (Tensor.sinh, "Sinh"), (Tensor.selu, "Selu"),
    (Tensor.celu, "Celu"), (Tensor.softplus, "Softplus"), (Tensor.hardswish, "HardSwish"),
    (Tensor.silu, "Sigmoid"), (lambda x: x.hardsigmoid(), "HardSigmoid")])
def test_what_is_an_operator_is_that_alone(function: Callable[[Tensor], Tensor], op: str) -> None:
    if isinstance(function, nn.BatchNorm2d):
        function.running_mean, function.running_var = floats(4), floats(4).square() + 0.5
    ops = checked(function, floats(2, 4, 6, 5).permute(0, 1, 3, 2))
    assert ops[op] == 1 and ops.total() <= 4


def test_transposed_convolution() -> None:
    layer = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)
    assert checked(layer, floats(1, 3, 5, 5))["ConvTranspose"] == 1


def test_convolution_of_one_item_without_a_batch() -> None:
    assert checked(nn.Conv2d(3, 4, 3, padding=1), floats(3, 5, 6))["Conv"] == 1
    assert checked(nn.ConvTranspose1d(3, 4, 3, stride=2), floats(3, 5))["ConvTranspose"] == 1


def test_what_depends_on_no_input_is_a_constant() -> None:
    weight = floats(8, 8)
    ops = checked(lambda x: x @ (weight.exp() * 2).transpose(), floats(3, 8))
    assert ops == {"MatMul": 1, "Identity": 1} | {k: v for k, v in ops.items() if k == "Reshape"}


# --- what a function computes while it is written -----------------------------------------------------------


@pytest.mark.parametrize("function", [
    lambda x: (x + 1).realize() * 2, TinyJit(lambda x: (x * 3).realize()), lambda x: x.qr()[1].abs(),
    lambda x: x @ Tensor.arange(4).float().realize()], ids=["realize", "jit", "loop", "constants"])
def test_what_is_computed_on_the_way_is_no_constant(function: Callable[[Tensor], Tensor]) -> None:
    model, other = export(function, floats(4, 4)), floats(4, 4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made, = session.run(None, {"x0": other.numpy()})
    np.testing.assert_allclose(made, function(other).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [
    lambda x: x * x.sum().item(), lambda x: x * Tensor(x.numpy()), lambda x: x[x > 0], Tensor.nonzero])
def test_a_function_that_reads_values_of_its_inputs_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="what the function does depends on values of its inputs"):
        export(function, floats(4, 4))


def test_a_function_with_a_state_is_refused() -> None:
    state = Tensor.zeros(4).contiguous().realize()

    def step(x: Tensor) -> Tensor:
        state.assign(state + x)
        return state * 2

    with pytest.raises(ValueError, match="stores values of its inputs.*give what it stores as an input"):
        export(step, floats(4))


def test_arguments_that_export_does_not_take() -> None:
    x = floats(2, 3)
    axes = {"x0": {0: "batch"}}
    for function, options, said in (
            (lambda x: x, {"example_inputs": (x, 3)}, "or arrays, got a int; .*export.lambda x: model"),
            (lambda x: (x, None), {}, "the function gives tensors, .*; got a NoneType"),
            (lambda x: x, {"input_names": ["a", "b"]}, "input_names takes a name for each of x0, got a, b"),
            (lambda x: x, {"output_names": ["a", "b"]}, "output_names takes a name for each of y0, got a, b"),
            (lambda x: x, {"dynamic_axes": {"x0": [0]}}, r"takes a name for each axis, .*, got \[0\]"),
            (lambda x: x, {"dynamic_axes": {"y0": {0: "batch"}}}, "'y0'; inputs are 'x0', and the axes of"),
            (lambda x: x, {"dynamic_axes": axes, "sizes": {"n": (1, 4)}}, "of n; dynamic_axes names batch")):
        with pytest.raises((TypeError, ValueError), match=said):
            export(function, **{"example_inputs": x, **options})


def test_examples_may_be_arrays() -> None:
    array = np.ones((2, 3), np.float32)
    for given in (array, [array], {"x": array}):
        run = OnnxRunner(export(lambda x: x.exp(), given))
        (made,) = run({next(iter(run.inputs)): array}).values()
        np.testing.assert_allclose(made.numpy(), np.exp(array), rtol=1e-6)


def test_comparisons_are_one_operator() -> None:
    def function(x: Tensor) -> Any:
        return x == 1, x != 2, x.isnan(), (x > 0).logical_not(), x.int().one_hot(3)

    ops = checked(function, Tensor(np.array([[0, 1, 2], [1, 1, 0]], np.float32)))
    assert ops["Equal"] == 4 and ops["Not"] == 3 and not ops.keys() & {"ReduceSum", "Where", "Expand"}


def test_names_and_files(tmp_path: Path) -> None:
    export(lambda a, b: {"sum": a + b, "product": a * b}, {"a": floats(2), "b": floats(2)},
           tmp_path / "m.onnx")
    run = OnnxRunner(tmp_path / "m.onnx")
    assert list(run.inputs) == ["a", "b"] and list(run.outputs) == ["sum", "product"]
    made = run(a=np.array([1, 2], np.float32), b=np.array([3, 4], np.float32))
    assert made["sum"].tolist() == [4, 6] and made["product"].tolist() == [3, 8]


def test_methods_are_as_before() -> None:
    before = {name: getattr(Tensor, name) for name in ("softmax", "conv2d", "__getitem__")}
    with pytest.raises(ZeroDivisionError):
        export(lambda x: x.softmax() * (1 // 0), floats(2))
    assert all(getattr(Tensor, name) is method for name, method in before.items())


def test_constants_that_are_made_on_the_way_are_not_taken_for_each_other() -> None:
    def function(x: Tensor) -> Any:
        return tuple(x * Tensor(np.full((8, 16), n, np.float32)) for n in range(30))

    checked(function, floats(8, 16))
