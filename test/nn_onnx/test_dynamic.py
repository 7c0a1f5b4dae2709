"""Axes of any size: one trace for all sizes within bounds, and exports whose axes have names."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="compared with ONNX Runtime")

import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tinygrad import TinyJit, nn
from tinygrad.nn.onnx import OnnxError, OnnxRunner, export
from tinygrad.tensor import Tensor

RNG = np.random.default_rng(0)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def floats(*shape: int) -> Any:
    return (RNG.standard_normal(shape) / 4).astype(np.float32)


class Network:
    """Nodes and weights as they are written."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def model(self, inputs: dict[str, tuple[int, list[Any]]], result: str) -> Any:
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        graph = helper.make_graph(
            self.nodes, "graph",
            [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
            [helper.make_empty_tensor_value_info("y")], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def convolutional() -> Any:
    net = Network()
    h = net.add("Conv", "x", net.constant(floats(8, 3, 3, 3)), net.constant(floats(8)), pads=[1, 1, 1, 1])
    h = net.add("MaxPool", net.add("Relu", h), kernel_shape=[2, 2], strides=[2, 2])
    h = net.add("GlobalAveragePool", net.add("Conv", h, net.constant(floats(8, 1, 3, 3)), group=8))
    h = net.add("Gemm", net.add("Flatten", h), net.constant(floats(8, 5)))
    return net.model({"x": (FLOAT, ["batch", 3, 12, 12])}, net.add("Softmax", h))


def transformer() -> Any:
    """Attention written as exporters do: shapes are gathered and joined, a mask is made of a range."""
    net = Network()

    def ints(*numbers: int) -> str:
        return net.constant(np.array(numbers, np.int64))

    shape = net.add("Shape", "ids")
    batch, sequence = net.add("Gather", shape, ints(0)), net.add("Gather", shape, ints(1))
    length = net.add("Squeeze", sequence)
    positions = net.add("Range", net.constant(np.int64(0)), length, net.constant(np.int64(1)))
    x = net.add("Add", net.add("Gather", net.constant(floats(50, 16)), "ids"),
                net.add("Gather", net.constant(floats(64, 16)), positions))
    heads = net.add("Concat", batch, sequence, ints(4, 4), axis=0)

    def projected(perm: list[int]) -> str:
        made = net.add("MatMul", x, net.constant(floats(16, 16)))
        return net.add("Transpose", net.add("Reshape", made, heads), perm=perm)

    scores = net.add("MatMul", projected([0, 2, 1, 3]), projected([0, 2, 3, 1]))
    rows, columns = net.add("Unsqueeze", positions, ints(1)), net.add("Unsqueeze", positions, ints(0))
    mask = net.add("Expand", net.add("LessOrEqual", columns, rows),
                   net.add("Concat", batch, ints(1), sequence, sequence, axis=0))
    weights = net.add("Softmax", net.add("Where", mask, scores, net.constant(np.float32(-1e9))))
    mixed = net.add("Transpose", net.add("MatMul", weights, projected([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    joined = net.add("Reshape", mixed, ints(0, 0, -1))
    scaled = net.add("Div", joined, net.add("Cast", length, to=FLOAT))
    last = net.add("Slice", net.add("Add", x, scaled), ints(-1), net.constant(np.array([2**63 - 1])), ints(1))
    h = net.add("Add", scaled, last)
    return net.model({"ids": (INT64, ["batch", "sequence"])}, net.add("LayerNormalization", h,
                                                                       net.constant(floats(16))))


def traces(run: OnnxRunner) -> int:
    return sum(len(jit.traces) for jit in run._kinds.values() if isinstance(jit, TinyJit))


def compared(model: Any, sizes: dict[str, tuple[int, int]], inputs: list[dict[str, Any]]) -> OnnxRunner:
    """The runner, after each call gave what ONNX Runtime gives."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    run = OnnxRunner(model, sizes=sizes)
    for given in inputs:
        for name, wanted in zip(run.outputs, session.run(None, given), strict=True):
            got = run(given)[name]
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)
    return run


def test_one_trace_serves_all_batches_of_a_convolutional_network() -> None:
    run = compared(convolutional(), {"batch": (1, 6)},
                   [{"x": floats(n, 3, 12, 12)} for n in (2, 5, 1, 6, 3)])
    assert traces(run) == 1
    run._evaluator.run = None  # type: ignore[method-assign,assignment]  # a replay evaluates nothing
    assert run(x=floats(4, 3, 12, 12))["y"].shape == (4, 5)
    assert run(x=Tensor(floats(4, 3, 12, 12)))["y"].numpy().shape == (4, 5)


def test_one_trace_serves_all_batches_and_sequences_of_a_transformer() -> None:
    sizes = [(2, 7), (1, 16), (4, 3), (3, 1), (1, 1), (4, 16)]
    run = compared(transformer(), {"batch": (1, 4), "sequence": (1, 16)},
                   [{"ids": RNG.integers(0, 50, shape)} for shape in sizes])
    assert traces(run) == 1


def test_axes_without_bounds_are_traced_for_each_size() -> None:
    sizes = [(2, 5), (1, 5), (3, 5), (2, 4), (1, 4)]
    run = compared(transformer(), {"batch": (1, 4)}, [{"ids": RNG.integers(0, 50, shape)} for shape in sizes])
    assert traces(run) == 2


def test_an_axis_whose_name_is_arithmetic_of_others() -> None:
    net = Network()
    h = net.add("Add", net.add("Concat", "past", "x", axis=0), "mask")
    model = net.model({"past": (FLOAT, ["past", 4]), "x": (FLOAT, [1, 4]),
                       "mask": (FLOAT, ["past + 1", 4])}, h)
    run = compared(model, {"past": (0, 8)}, [
        {"past": floats(n, 4), "x": floats(1, 4), "mask": floats(n + 1, 4)} for n in (3, 5, 1, 8)])
    assert traces(run) == 1


def test_running_sums_along_an_axis_of_any_size() -> None:
    net = Network()
    h = net.add("CumSum", "x", net.constant(np.int64(1)), reverse=1)
    h = net.add("Add", h, net.add("CumSum", "x", net.constant(np.int64(0))))
    run = compared(net.model({"x": (FLOAT, ["n", "m"])}, h), {"n": (1, 4), "m": (1, 70)},
                   [{"x": floats(*shape)} for shape in ((2, 5), (4, 70), (1, 1), (3, 40))])
    assert traces(run) == 1


def test_results_of_one_call_stay_when_another_is_made() -> None:
    run = OnnxRunner(convolutional(), sizes={"batch": (1, 6)})
    xs = [floats(n, 3, 12, 12) for n in (2, 3, 4, 5)]
    made = [run(x=x)["y"] for x in xs]
    for x, y in zip(xs, made, strict=True):
        np.testing.assert_allclose(y.numpy(), run(x=x)["y"].numpy(), rtol=1e-5)


@pytest.mark.parametrize("op, shape", [("Reshape", [-1, 12]), ("Reshape", [0, -1]), ("Reshape", [-1]),
                                       ("Reshape", [6, -1, 2]), ("Flatten", [2])])
def test_sizes_that_are_not_known_become_one(op: str, shape: list[int]) -> None:
    net = Network()
    flat = net.add("Flatten", "x", axis=2) if op == "Flatten" else \
        net.add("Reshape", "x", net.constant(np.array(shape)))
    whole = net.add("Reshape", net.add("Neg", flat), net.add("Shape", "x"))
    h = net.add("Sub", whole, net.add("ReduceMax", flat, keepdims=0))
    run = compared(net.model({"x": (FLOAT, ["b", "s", 3, 4])}, h), {"b": (1, 4), "s": (1, 9)},
                   [{"x": floats(*sizes, 3, 4)} for sizes in ((2, 5), (4, 9), (1, 1), (3, 4))])
    assert traces(run) == 1


def test_a_reshape_of_sizes_that_are_not_divisible() -> None:
    net = Network()
    model = net.model({"x": (FLOAT, ["n"])}, net.add("Reshape", "x", net.constant(np.array([2, -1]))))
    run = compared(model, {"n": (1, 8)}, [{"x": floats(n)} for n in (6, 4, 8, 2)])
    assert traces(run) == 1
    with pytest.raises(OnnxError, match="the size for -1 is not a whole number"):
        run(x=floats(5))


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_items_gathered_along_axes_that_are_not_known(batch_dims: int) -> None:
    """At the places that exporters compute for the masks of decoders, from the end on too."""
    net = Network()
    rows, columns = (net.add("Gather", net.add("Shape", "x"), net.constant(np.array(i))) for i in range(2))
    zero, one = net.constant(np.array(0)), net.constant(np.array(1))
    row = net.add("Unsqueeze", net.add("Range", zero, rows, one), net.constant(np.array([1])))
    column = net.add("Neg", net.add("Range", one, columns, one))
    sizes = net.add("Shape", net.add("Add", row, column))
    last = net.constant(np.array([-1]))
    places = [net.add("Unsqueeze", net.add("Expand", place, sizes), last) for place in (row, column)]
    at = places[1] if batch_dims else net.add("Concat", *places, axis=-1)
    h = net.add("GatherND", "x", at, batch_dims=batch_dims)
    run = compared(net.model({"x": (FLOAT, ["b", "s", 3])}, h), {"b": (1, 4), "s": (2, 9)},
                   [{"x": floats(*shape, 3)} for shape in ((2, 5), (4, 9), (1, 2), (3, 4))])
    assert traces(run) == 1


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_images_of_a_batch_of_any_size_are_resized(mode: str, kept: int) -> None:
    """By scales, and to sizes of which as many as `kept` are those of the input."""
    net = Network()
    if kept:
        sizes = net.constant(np.array([2, 6, 8][kept - 1:], np.int64))
        given = ["", "", net.add("Concat", net.add("Shape", "x", end=kept), sizes, axis=0)]
    else:
        given = ["", net.constant(np.array([1, 1, 1.5, 2], np.float32))]
    h = net.add("Resize", "x", *given, mode=mode)
    run = compared(net.model({"x": (FLOAT, ["n", 2, 3, 4])}, h), {"n": (1, 5)},
                   [{"x": floats(n, 2, 3, 4)} for n in (2, 5, 1, 4)])
    assert traces(run) == 1


def test_where_an_operator_needs_the_number_each_size_is_traced() -> None:
    net = Network()
    repeats = net.add("Concat", net.add("Shape", "x"), axis=0)
    model = net.model({"x": (FLOAT, ["n"])}, net.add("Tile", "x", repeats))
    run = OnnxRunner(model, sizes={"n": (1, 8)})
    with pytest.warns(UserWarning, match="each size has a trace of its own: Tile"):
        assert run(x=np.arange(2, dtype=np.float32))["y"].tolist() == [0, 1, 0, 1]
    assert run(x=np.arange(3, dtype=np.float32))["y"].tolist() == [0, 1, 2] * 3


def test_bounds_that_are_wrong() -> None:
    with pytest.raises(OnnxError, match="no input has an axis 'rows'; named are 'batch'"):
        OnnxRunner(convolutional(), sizes={"rows": (1, 4)})
    with pytest.raises(OnnxError, match="axis 'batch' takes bounds from 0 on, .*, got 4 and 1"):
        OnnxRunner(convolutional(), sizes={"batch": (4, 1)})
    for sizes in ({"batch": 4}, ["batch"], {"batch": (1, 2, 3)}):
        with pytest.raises(TypeError, match="sizes are bounds by names of axes, as .*, got"):
            OnnxRunner(convolutional(), sizes=sizes)  # type: ignore[arg-type]
    run = OnnxRunner(convolutional(), sizes={"batch": (1, 4)})
    with pytest.raises(OnnxError, match="axis 'batch' is from 1 to 4, got 5"):
        run(x=floats(5, 3, 12, 12))


# --- exports ------------------------------------------------------------------------------------------------


def exported(function: Callable[..., Any], examples: list[Any], axes: Any, others: list[list[Any]]) -> Any:
    """The export with dynamic axes, with which ONNX Runtime and our importer give what the function gives."""
    model = export(function, [Tensor(x) for x in examples], dynamic_axes=axes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    run = OnnxRunner(model)
    for inputs in (examples, *others):
        given = {f"x{i}": x for i, x in enumerate(inputs)}
        wanted = function(*[Tensor(x) for x in inputs]).numpy()
        for got in (session.run(None, given)[0], run(given)["y0"].numpy()):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    return model


def names(value: Any) -> list[Any]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def test_an_export_with_a_batch_of_any_size() -> None:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), Tensor.relu, Tensor.max_pool2d,
              lambda x: x.mean((2, 3)), nn.Linear(8, 10), Tensor.softmax]
    model = exported(lambda x: x.sequential(layers), [floats(2, 3, 8, 8)], {"x0": {0: "batch"}},
                     [[floats(n, 3, 8, 8)] for n in (1, 5)])
    assert names(model.graph.input[0]) == ["batch", 3, 8, 8] and names(model.graph.output[0]) == ["batch", 10]


def test_an_export_of_a_transformer_with_batches_and_sequences_of_any_size() -> None:
    qkv, norm = nn.Linear(32, 96), nn.LayerNorm(32)

    def block(x: Tensor) -> Tensor:
        q, k, v = qkv(norm(x)).reshape(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        attended = q.scaled_dot_product_attention(k, v, is_causal=True)
        return x + attended.transpose(1, 2).reshape(*x.shape)

    model = exported(block, [floats(2, 5, 32)], {"x0": {0: "batch", 1: "sequence"}},
                     [[floats(1, 1, 32)], [floats(3, 9, 32)]])
    assert names(model.graph.output[0]) == ["batch", "sequence", 32]
    run = compared(model, {"batch": (1, 4), "sequence": (1, 12)},
                   [{"x0": floats(b, s, 32)} for b, s in ((2, 5), (4, 12), (1, 1), (3, 7))])
    assert traces(run) == 1


@pytest.mark.parametrize("longest", [64, 1100])  # what is sorted by counting, and by a network
def test_what_is_sorted_along_an_axis_of_any_size_has_one_trace(longest: int) -> None:
    for function, shortest in ((lambda x: x.sort(1)[0], 1), (lambda x: x.topk(2, 1)[1].float(), 2)):
        model = export(function, Tensor(floats(3, 6)), dynamic_axes={"x0": {0: "b", 1: "n"}},
                       sizes={"n": (shortest, longest)})
        run = compared(model, {"b": (1, 4), "n": (shortest, longest)},
                       [{"x0": floats(b, n)} for b, n in ((2, 5), (3, 9), (1, 2), (4, 64), (2, shortest))])
        assert traces(run) == 1


def test_an_export_computes_with_sizes() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        joined = x.cat(y, dim=1)
        return joined[:, -1] * x.shape[1] + Tensor.arange(x.shape[1]).float().sum() + joined.mean(1)

    exported(function, [floats(2, 5, 4), floats(2, 3, 4)], {"x0": {0: "b", 1: "past"}, "x1": {0: "b"}},
             [[floats(1, 1, 4), floats(1, 3, 4)], [floats(3, 7, 4), floats(3, 3, 4)]])
    model = export(lambda x, y: x.cat(y), [Tensor(floats(2, 4)), Tensor(floats(3, 4))],
                   dynamic_axes={"x0": {0: "n"}})
    assert names(model.graph.output[0]) == ["n + 3", 4]


def test_an_export_that_depends_on_a_size_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x

    with pytest.raises(ValueError, match="on whether .*; give `sizes` for which that is always false"):
        export(function, Tensor(floats(3, 2)), dynamic_axes={"x0": {0: "n"}})
    export(function, Tensor(floats(3, 2)), dynamic_axes={"x0": {0: "n"}}, sizes={"n": (1, 4)})
    with pytest.raises(ValueError, match="axes named 'n' are 3 and 2 long"):
        export(lambda x: x, Tensor(floats(3, 2)), dynamic_axes={"x0": {0: "n", 1: "n"}})
    with pytest.raises(ValueError, match="dynamic_axes names 'x'; inputs are 'x0'"):
        export(lambda x: x, Tensor(floats(3, 2)), dynamic_axes={"x": {0: "n"}})
