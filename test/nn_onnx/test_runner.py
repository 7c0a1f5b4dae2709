"""Models that run, and what is refused: files, graphs and inputs that are wrong."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

import onnx
from onnx import TensorProto, helper, numpy_helper

import tinygrad
from tinygrad.graph.ops import Ops
from tinygrad.helpers import GlobalCounters
from tinygrad.nn.onnx import OnnxError, OnnxRunner
from tinygrad.tensor import Tensor

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None,
             opset: int = 21, **options: Any) -> Any:
    weights = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **options)


def linear(rows: Any = "batch") -> Any:
    """y = relu(x @ weight + bias), (rows, 3) to (rows, 2)"""
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["product"]),
             helper.make_node("Add", ["product", "bias"], ["sum"]), helper.make_node("Relu", ["sum"], ["y"])]
    return model_of(nodes, [info("x", [rows, 3])], [info("y", [rows, 2])],
                    {"weight": WEIGHT, "bias": np.array([0.5, -0.5], np.float32)})


WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2) - 2
X = np.array([[1, -2, 3]], np.float32)
Y = np.maximum(X @ WEIGHT + np.array([0.5, -0.5], np.float32), 0)


# --- what runs ----------------------------------------------------------------------------------------------


def test_a_model_is_read_from_a_path_bytes_a_tensor_and_a_message(tmp_path: Path) -> None:
    data = linear().SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    for source in (tmp_path / "model.onnx", str(tmp_path / "model.onnx"), data, Tensor(data), linear()):
        np.testing.assert_array_equal(OnnxRunner(source)({"x": X})["y"].numpy(), Y)


def test_inputs_and_outputs_say_names_types_and_dynamic_axes() -> None:
    run = OnnxRunner(linear())
    assert list(run.inputs) == ["x"] and list(run.outputs) == ["y"]
    assert run.inputs["x"].shape == ("batch", 3) and run.inputs["x"].dtype == np.float32
    assert run.outputs["y"].shape == ("batch", 2)


def test_runs_of_equal_shapes_replay_a_trace() -> None:
    run = OnnxRunner(linear())
    for rows in (2, 2, 2, 5, 5, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        expected = np.maximum(x @ WEIGHT + np.array([0.5, -0.5], np.float32), 0)
        np.testing.assert_allclose(run(x=x)["y"].numpy(), expected, rtol=1e-6)
    run._evaluator.run = None  # type: ignore[method-assign,assignment]  # a replay evaluates nothing
    np.testing.assert_array_equal(run(x=np.zeros((5, 3), np.float32))["y"].numpy(), [[0.5, 0]] * 5)


def test_what_is_written_to_results_is_not_in_inputs_and_weights() -> None:
    large = np.arange(1200, dtype=np.float32).reshape(3, 400)
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"]),
             helper.make_node("Identity", ["x"], ["same"]),
             helper.make_node("Transpose", ["large"], ["turned"])]
    outputs = [info("y"), info("same"), info("turned"), info("weight", [3, 2]), info("large", [3, 400])]
    run = OnnxRunner(model_of(nodes, [info("x", [1, 3])], outputs, {"weight": WEIGHT, "large": large}))
    expected, x = {"y": X @ WEIGHT, "same": X, "turned": large.T, "weight": WEIGHT, "large": large}, Tensor(X)
    for _ in range(4):
        results = run(x=x)
        for name, want in expected.items():
            np.testing.assert_array_equal(results[name].numpy(), want)
            results[name].assign(results[name] * 0).realize()


def test_what_depends_on_no_input_is_computed_once() -> None:
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("Exp", ["t"], ["e"]),
             helper.make_node("MatMul", ["x", "e"], ["y"])]
    weight = np.random.default_rng(0).standard_normal((40, 60)).astype(np.float32)
    run = OnnxRunner(model_of(nodes, [info("x", [1, 60])], [info("y", [1, 40])], {"w": weight}))
    x = np.ones((1, 60), np.float32)
    run(x=x)
    before = GlobalCounters.kernel_count
    np.testing.assert_allclose(run(x=x)["y"].numpy(), np.exp(weight).sum(1)[None], rtol=1e-5)
    assert GlobalCounters.kernel_count - before == 1


def test_sizes_are_folded_while_tracing() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["shape"]),
             helper.make_node("Gather", ["shape", "zero"], ["rows"]),
             helper.make_node("Unsqueeze", ["rows", "axes"], ["r"]),
             helper.make_node("Concat", ["r", "minus"], ["target"], axis=0),
             helper.make_node("Reshape", ["x", "target"], ["y"])]
    constants = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1])}
    run = OnnxRunner(model_of(nodes, [info("x", ["n", 2, 3])], [info("y", ["n", 6])], constants))
    for n in (2, 2, 2, 4):
        assert run(x=np.zeros((n, 2, 3), np.float32))["y"].shape == (n, 6)
    assert not run._reads_values


def test_an_input_that_makes_shapes_belongs_to_the_kind_of_call() -> None:
    run = OnnxRunner(model_of([helper.make_node("Reshape", ["x", "shape"], ["y"])],
                              [info("x", [6]), info("shape", [2], INT64)], [info("y")]))
    for shape in ([2, 3], [2, 3], [2, 3], [3, 2], [6, -1], [3, 2]):
        made = run(x=np.arange(6, dtype=np.float32), shape=np.array(shape))["y"]
        np.testing.assert_array_equal(made.numpy(), np.arange(6).reshape(shape))


def test_a_recording_names_the_nodes_of_the_model() -> None:
    then = helper.make_graph([helper.make_node("MatMul", ["h", "w"], ["a"])], "then", [], [info("a")])
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["b"])], "else", [], [info("b")])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="/first/MatMul"),
             helper.make_node("If", ["flag"], ["c"], name="/if", then_branch=then, else_branch=other),
             helper.make_node("ReduceSum", ["c"], ["y"])]
    run = OnnxRunner(model_of(nodes, [info("x", [64, 64]), info("flag", [], TensorProto.BOOL)], [info("y")],
                              {"w": np.eye(64, dtype=np.float32)}))
    with tinygrad.profile() as recorded:
        for _ in range(3):
            run(x=np.ones((64, 64), np.float32), flag=True)
    assert [row.count for row in recorded.rows("line")] == [9]
    assert {row.name: row.count for row in recorded.rows("module")} == {
        "MatMul '/first/MatMul'": 3, "MatMul of 'a' in If '/if'": 3, "ReduceSum of 'y'": 3}


def test_only_the_branch_taken_is_walked() -> None:
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "then", [], [info("a")])
    other = helper.make_graph([helper.make_node("Reshape", ["x", "bad"], ["b"])], "else", [], [info("b")])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    run = OnnxRunner(model_of([node], [info("x", [2]), info("flag", [], TensorProto.BOOL)], [info("y")],
                              {"bad": np.array([7])}))
    assert run(x=np.array([1, 2], np.float32), flag=np.array(True))["y"].tolist() == [-1, -2]
    with pytest.raises(OnnxError, match="Reshape of 'b'"):
        run(x=np.array([1, 2], np.float32), flag=np.array(False))


def test_a_branch_that_follows_from_a_number_belongs_to_its_trace() -> None:
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "then", [], [info("a")])
    other = helper.make_graph([helper.make_node("Add", ["x", "x"], ["b"])], "else", [], [info("b")])
    nodes = [helper.make_node("Equal", ["rate", "wanted"], ["flag"]),
             helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    run = OnnxRunner(model_of(nodes, [info("x", [2]), info("rate", [], TensorProto.INT64)], [info("y")],
                              {"wanted": np.array(16)}))
    for start in range(6):
        for rate, factor in ((16, -1), (8, 2)):
            x = np.array([start, 1], np.float32)
            assert run(x=x, rate=np.array(rate))["y"].tolist() == (x * factor).tolist()
    assert sum(jit is not None and bool(jit.traces) for jit in run._kinds.values()) == 2
    assert not run._cut.walked


def is_traced(run: OnnxRunner) -> bool:
    return any(jit is not None and jit.traces for jit in run._kinds.values())


def test_what_comes_before_values_are_read_is_traced() -> None:
    """What is read (the places of what is positive), a size that is used behind it, and an output before."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Shape", ["x"], ["shape"]),
             helper.make_node("Relu", ["h"], ["before"]), helper.make_node("NonZero", ["before"], ["places"]),
             helper.make_node("Transpose", ["places"], ["pairs"]),
             helper.make_node("GatherND", ["h", "pairs"], ["found"]),
             helper.make_node("ReduceSum", ["found"], ["total"], keepdims=0),
             helper.make_node("Expand", ["total", "shape"], ["y"])]
    w = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    run = OnnxRunner(model_of(nodes, [info("x", [None, 3])], [info("before"), info("y")], {"w": w}))
    for rows in (2, 4, 2, 4, 2, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        wanted = np.maximum(x @ w, 0)
        made = run(x=x)
        np.testing.assert_allclose(made["before"].numpy(), wanted, rtol=1e-5)
        np.testing.assert_allclose(made["y"].numpy(), np.full(x.shape, wanted.sum()), rtol=1e-5)
    assert is_traced(run) and [n.op for n in run._cut.walked] == [
        "Shape", "NonZero", "Transpose", "GatherND", "ReduceSum", "Expand"]


def test_what_comes_before_a_loop_that_ends_by_what_it_computes_is_traced() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "a"], ["b"]),
         helper.make_node("ReduceMax", ["b"], ["most"], keepdims=0),
         helper.make_node("Less", ["most", "limit"], ["again"])], "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("a")],
        [info("again", [], TensorProto.BOOL), info("b")])
    nodes = [helper.make_node("Exp", ["x"], ["e"]),
             helper.make_node("Loop", ["", "yes", "e"], ["y"], body=body)]
    run = OnnxRunner(model_of(nodes, [info("x", [2])], [info("y")],
                              {"limit": np.float32(50), "yes": np.array(True)}))
    for start in (0, 1, 2, 3, 0):
        x = np.array([start, -start], np.float32)
        wanted = np.exp(x) * 2
        while wanted.max() < 50:
            wanted *= 2
        np.testing.assert_allclose(run(x=x)["y"].numpy(), wanted, rtol=1e-6)
    assert is_traced(run) and [n.op for n in run._cut.walked] == ["Loop"]


def test_a_number_from_which_nothing_follows_has_no_traces_of_its_own() -> None:
    nodes = [helper.make_node("Cast", ["step"], ["factor"], to=TensorProto.FLOAT),
             helper.make_node("Mul", ["x", "factor"], ["h"]), helper.make_node("NonZero", ["h"], ["y"])]
    run = OnnxRunner(model_of(nodes, [info("x", [3]), info("step", [], TensorProto.INT64)],
                              [info("y", None, TensorProto.INT64)]))
    for step in range(8):
        made = run(x=np.array([step - 3, 0, 1], np.float32), step=np.array(step))["y"]
        assert made.tolist() == [[i for i, n in enumerate((step - 3, 0, 1)) if n * step]]
    assert is_traced(run) and len(run._kinds) == 1


def test_constants_in_a_branch_are_computed_once() -> None:
    weight = np.random.default_rng(0).standard_normal((80, 60)).astype(np.float32)
    nodes = [helper.make_node("Exp", ["w"], ["e"]), helper.make_node("MatMul", ["x", "e"], ["a"])]
    then = helper.make_graph(nodes, "then", [], [info("a")], [numpy_helper.from_array(weight, "w")])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "else", [], [info("b")])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    run = OnnxRunner(model_of([node], [info("x", [1, 80]), info("flag", [], TensorProto.BOOL)], [info("y")]))
    inputs = {"x": np.ones((1, 80), np.float32), "flag": np.array(True)}
    for _ in range(4):
        before = GlobalCounters.kernel_count
        np.testing.assert_allclose(run(inputs)["y"].numpy(), np.exp(weight).sum(0)[None], rtol=1e-5)
    assert GlobalCounters.kernel_count - before == 1


def test_the_command_says_what_a_model_is_and_checks_it(tmp_path: Path, capsys: Any) -> None:
    from tinygrad.onnx import main

    (tmp_path / "model.onnx").write_bytes(linear().SerializeToString())
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    assert main([str(tmp_path / "model.onnx"), "--check", "--runs", "2", "--input",
                 str(tmp_path / "x.npy")]) == 0
    printed = capsys.readouterr().out
    assert "input         x: float32 (batch, 3)" in printed and "3: 1 MatMul, 1 Add, 1 Relu" in printed
    assert "kernels       1\n" in printed and "check         y: " in printed
    np.savez(tmp_path / "several.npz", np.ones(3), np.ones(4))
    model, array = str(tmp_path / "model.onnx"), str(tmp_path / "x.npy")
    for options, said in ((["--size", "rows=3"], "has a name, got rows=3; names are batch"),
                          (["--size", "batch=many"], "got batch=many"),
                          (["--size", "batch=3", "--input", array], "4 long in input 'x', 3 elsewhere"),
                          (["--shape", "z=3"], "got z=3; inputs are x"),
                          (["--shape", "x=3"], "input 'x' is float32 (batch, 3), got 3"),
                          (["--shape", "x=2,4"], "has 4 items, not 3\ninputs were x: float32 (2, 4)"),
                          (["--input", "z=no.npy"], "no input 'z'; it takes x"),
                          (["--input", "x=many"], "a file that numpy.save wrote, or a number, got many"),
                          (["--input", array, "--input", array], "the model takes 1 inputs"),
                          (["--input", "no.npy"], "No such file"),
                          (["--input", model], "is no array as numpy.save writes it"),
                          (["--input", str(tmp_path / "several.npz")], "has several arrays")):
        assert main([model, *options]) == 2
        assert said in capsys.readouterr().err
    for option in ("--runs", "--beam"):
        with pytest.raises(SystemExit):
            main([model, option, "-1"])
        assert f"argument {option}" in capsys.readouterr().err
    (tmp_path / "model.onnx").write_bytes(b"no model")
    assert main([str(tmp_path / "model.onnx")]) == 2
    assert "is not an ONNX model" in capsys.readouterr().err


def test_the_command_takes_numbers_texts_and_shapes(tmp_path: Path, capsys: Any) -> None:
    from tinygrad.onnx import main

    nodes = [helper.make_node("Mul", ["x", "scale"], ["y"]),
             helper.make_node("StringNormalizer", ["text"], ["upper"], case_change_action="UPPER")]
    model = model_of(nodes, [info("x", [None, 2]), info("scale", []), info("text", [1], TensorProto.STRING)],
                     [info("y"), info("upper", [1], TensorProto.STRING)])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert main([str(tmp_path / "model.onnx"), "--runs", "1", "--shape", "x=3,2", "--input", "scale=2.5",
                 "--input", "text=a film", "--check"]) == 0
    printed = capsys.readouterr().out
    assert "input         x: float32 (?, 2)\n" in printed and printed.count("equal to") == 2


def test_the_command_compares_sequences_of_maps_and_asks_the_reference(
        tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    from tinygrad.onnx import difference, main

    rows = [{"a": 0.5, "b": 1.0}]
    assert difference(rows, [{"a": 0.5, "b": 1.0}]) == 0 and difference(rows, [{"a": 0.5, "b": 2.0}]) == 0.5
    for other in ([], [{"a": 0.5}], [{"a": 0.5, "c": 1.0}]):
        assert difference(rows, other) == float("inf")

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel for it")
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    (tmp_path / "model.onnx").write_bytes(linear().SerializeToString())
    assert main([str(tmp_path / "model.onnx"), "--check", "--runs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "does not run this model: no kernel for it; onnx.reference is asked" in printed
    assert "y: equal to onnx.reference's" in printed


def test_functions_of_the_model_and_their_attributes() -> None:
    body = helper.make_function("my", "Scaled", ["a"], ["c"], [
        helper.make_node("Constant", [], ["s"], value_float=2.0), helper.make_node("Mul", ["a", "s"], ["b"]),
        _with_reference(helper.make_node("LeakyRelu", ["b"], ["c"]), "alpha", "slope")],
        [helper.make_opsetid("", 21)], ["slope"])
    model = model_of([helper.make_node("Scaled", ["x"], ["y"], domain="my", slope=0.25)], [info("x", [2])],
                     [info("y", [2])], functions=[body])
    model.opset_import.append(helper.make_opsetid("my", 1))
    assert OnnxRunner(model)(x=np.array([-2, 3], np.float32))["y"].tolist() == [-1, 6]


def _with_reference(node: Any, name: str, to: str) -> Any:
    node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=to, type=onnx.AttributeProto.FLOAT))
    return node


def test_nodes_may_come_in_any_order() -> None:
    model = linear()
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    np.testing.assert_array_equal(OnnxRunner(model)(x=X)["y"].numpy(), Y)


# --- weights beside the file --------------------------------------------------------------------------------


def external(tmp_path: Path, location: str = "weights.bin", size: int | None = None, offset: str = "64",
             length: str = "24") -> Path:
    """`linear` with its weights in a file, which begin after 64 other bytes."""
    model = linear()
    weight = model.graph.initializer[0]
    data = weight.raw_data
    (tmp_path / "weights.bin").write_bytes((b"\0" * 64 + data)[:size])
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=value)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "model.onnx"


def test_weights_beside_the_file(tmp_path: Path) -> None:
    np.testing.assert_array_equal(OnnxRunner(external(tmp_path))(x=X)["y"].numpy(), Y)


def test_weights_outside_of_the_models_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = external(tmp_path / "inner", "../weights.bin")
    with pytest.raises(OnnxError,
                       match=r"'weight' asks for '../weights.bin', which is outside of the model's folder"):
        OnnxRunner(path)
    (tmp_path / "secret").write_bytes(b"\0" * 88)
    (tmp_path / "inner" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OnnxError, match="outside of the model's folder"):
        OnnxRunner(external(tmp_path / "inner", "link"))


def test_weights_that_end_too_early_or_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=r"'weight' lies at bytes 64 to 88 of .*, which has 70"):
        OnnxRunner(external(tmp_path, size=70))
    with pytest.raises(OnnxError, match=r"'weight' lies at bytes -8 to 16 of"):
        OnnxRunner(external(tmp_path, offset="-8"))
    with pytest.raises(OnnxError, match=r"'weight' of shape \(3, 2\) has 24 bytes, and 2400 in its file"):
        OnnxRunner(external(tmp_path, length="2400"))
    with pytest.raises(OnnxError, match="'weight' lies at no number of bytes: .*'many'"):
        OnnxRunner(external(tmp_path, length="many"))
    with pytest.raises(OnnxError, match="other.bin', which is not there"):
        OnnxRunner(external(tmp_path, "other.bin"))
    with pytest.raises(OnnxError, match="give the model's path, not its bytes"):
        OnnxRunner(external(tmp_path).read_bytes())


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"not a model", linear().SerializeToString()[:-20]])
def test_files_that_are_no_models(data: bytes) -> None:
    with pytest.raises(OnnxError, match="is not an ONNX model"):
        OnnxRunner(data)


def test_all_unknown_operators_are_named_with_their_nodes() -> None:
    nodes = [helper.make_node("Frobnicate", ["x"], ["a"], name="first"),
             helper.make_node("Frobnicate", ["a"], ["b"], name="second"),
             helper.make_node("Twist", ["b"], ["y"], domain="other")]
    model = model_of(nodes, [info("x", [1])], [info("y", [1])])
    model.opset_import.append(helper.make_opsetid("other", 1))
    with pytest.raises(OnnxError) as error:
        OnnxRunner(model)
    assert str(error.value) == (
        "the model uses operators that are not supported: Frobnicate: Frobnicate 'first', Frobnicate 'second'"
        "; other.Twist: other.Twist of 'y'")


@pytest.mark.parametrize("op, said", [("MatMul", "A of float32 and B of float64"),
                                      ("Concat", "inputs of float32 and inputs of float64")])
def test_inputs_of_different_types_that_have_to_be_of_one(op: str, said: str) -> None:
    attributes = {"axis": 0} if op == "Concat" else {}
    model = model_of([helper.make_node(op, ["x", "weight"], ["y"], name="both", **attributes)],
                     [info("x", [3, 3])], [info("y")], {"weight": np.ones((3, 3))})
    with pytest.raises(OnnxError, match=f"{op} 'both': takes inputs of one type, got {said}"):
        OnnxRunner(model)(x=np.ones((3, 3), np.float32))


def test_unknown_attributes_are_unsupported_operators() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], slope=1.0)
    with pytest.raises(OnnxError, match="not supported: Relu with slope: Relu of 'y'"):
        OnnxRunner(model_of([node], [info("x", [1])], [info("y", [1])]))


def test_a_version_of_the_standard_that_is_not_known() -> None:
    with pytest.raises(OnnxError, match="uses version 999 of the standard's operators"):
        OnnxRunner(model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")], opset=999))


def test_cycles_and_values_that_nothing_produces() -> None:
    cycle = [helper.make_node("Add", ["x", "b"], ["a"], name="one"),
             helper.make_node("Relu", ["a"], ["b"], name="two")]
    with pytest.raises(OnnxError, match="wait for each other, in a cycle: Add 'one', Relu 'two'"):
        OnnxRunner(model_of(cycle, [info("x", [1])], [info("b", [1])]))
    with pytest.raises(OnnxError, match="uses what nothing produces: 'z' by Relu of 'y'"):
        OnnxRunner(model_of([helper.make_node("Relu", ["z"], ["y"])], [info("x", [1])], [info("y", [1])]))
    with pytest.raises(OnnxError, match="graph 'graph' gives 'z', which nothing produces"):
        OnnxRunner(model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", [1])], [info("z", [1])]))
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    with pytest.raises(OnnxError, match="'y' is produced more than once"):
        OnnxRunner(model_of(twice, [info("x", [1])], [info("y", [1])]))


def test_inputs_that_do_not_fit() -> None:
    run = OnnxRunner(linear())
    takes = r"x: float32 \(batch, 3\)"
    with pytest.raises(OnnxError, match=f"the model takes {takes}; it has no 'z', 'x' is missing"):
        run(z=X)
    with pytest.raises(OnnxError, match=f"by name, run.* or .*, got a ndarray; the model takes {takes}"):
        run(X)
    takes = "input 'x' takes float32 .batch, 3."
    for given, said in ((np.zeros((1, 3), np.int64), r"got int64 \(1, 3\); cast it"),
                        (np.zeros((1, 4), np.float32), r"got float32 \(1, 4\): axis 1 has 4 items, not 3"),
                        (np.zeros(3, np.float32), r"got float32 \(3,\): 1 axes and not 2"),
                        (np.array([["a", "b", "c"]]), r"got string \(1, 3\)$"),
                        ([[1, 2, 3], [4]], "got a list: .*inhomogeneous"),
                        ({"x": 1}, "got a dict: these are no numbers and no strings")):
        with pytest.raises(OnnxError, match=f"{takes}, {said}"):
            run(x=given)
    assert repr(run) == "<OnnxRunner CPU x: float32 (batch, 3) -> y: float32 (batch, 2)>"


def test_numbers_that_a_type_does_not_have_are_refused() -> None:
    run = OnnxRunner(model_of([helper.make_node("Neg", ["x"], ["y"])], [info("x", ["n"], TensorProto.INT8)],
                              [info("y", ["n"], TensorProto.INT8)]))
    assert run(x=[1, 2.0])["y"].tolist() == [-1, -2]
    for given in ([1.5], [300], ["a"]):
        with pytest.raises(OnnxError, match=r"input 'x' takes int8 \(n,\), got a list: "):
            run(x=given)


def test_a_name_of_an_axis_is_one_size() -> None:
    run = OnnxRunner(model_of([helper.make_node("Add", ["x", "z"], ["y"])],
                              [info("x", ["n"]), info("z", ["n"])],
                              [info("y", ["n"])]))
    with pytest.raises(OnnxError, match=r"input 'z' .*got float32 \(1,\): axis 0 has 1 items, but n is 2"):
        run(x=np.zeros(2, np.float32), z=np.zeros(1, np.float32))


def test_an_operator_that_fails_is_named() -> None:
    run = OnnxRunner(model_of([helper.make_node("MatMul", ["x", "z"], ["y"], name="product")],
                              [info("x", None), info("z", None)], [info("y", None)]))
    with pytest.raises(OnnxError, match="MatMul 'product': dot of shapes"):
        run(x=np.zeros((2, 3), np.float32), z=np.zeros((2, 3), np.float32))


def test_the_table_of_operators_is_as_the_code() -> None:
    import importlib.util

    path = Path(__file__).parents[2] / "docs" / "make_onnx.py"
    spec = importlib.util.spec_from_file_location("make_onnx", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.page(text) == text, "python docs/make_onnx.py"


def test_what_branches_compute_of_weights_around_them_is_computed_once() -> None:
    """In a function that is called with two weights, too: each call has its own."""
    nodes = [helper.make_node("Neg", ["w"], ["negative"]),
             helper.make_node("Concat", ["negative", "w"], ["joined"], axis=0),
             helper.make_node("MatMul", ["x", "joined"], ["then"])]
    both = helper.make_graph(nodes, "both", [], [info("then")])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["else"])], "other", [], [info("else")])
    body = [helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("ReduceMax", ["sizes"], ["most"]),
            helper.make_node("Cast", ["most"], ["always"], to=TensorProto.BOOL),
            helper.make_node("If", ["always"], ["z"], then_branch=both, else_branch=other)]
    version = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Branch", ["x", "w"], ["z"], body, version)
    model = model_of([helper.make_node("Branch", ["x", name], [f"of_{name}"], domain="own") for name in "ab"],
                     [info("x", [3, 4])], [info("of_a"), info("of_b")],
                     {name: np.full((2, 2), n, np.float32) for n, name in enumerate("ab", 1)}, opset=17,
                     functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    run = OnnxRunner(model)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(3):
        for n, y in enumerate(run(x=x).values(), 1):
            np.testing.assert_array_equal(y.numpy(), x @ np.repeat([[-n, -n], [n, n]], 2, 0))
    assert [node.op for node, _ in run._evaluator.folded.values()] == ["Neg", "Concat"] * 2


@pytest.mark.parametrize("exponent", [2.0, 3, -1.0, 0.5, -0.5])
def test_a_power_whose_exponent_is_known_takes_no_logarithm(exponent: float) -> None:
    x = np.array([0.3, 2, 7e-20, 5e18], np.float32)
    kind = np.float32 if isinstance(exponent, float) else np.int64
    run = OnnxRunner(model_of([helper.make_node("Pow", ["x", "n"], ["y"])], [info("x", ["n"])], [info("y")],
                              {"n": np.array(exponent, kind)}))
    made = run._evaluator.run(run._nodes, {**run._known, "x": Tensor(x)})["y"]
    assert not [node for node in made.uop.toposort() if node.op in (Ops.EXP2, Ops.BITCAST)]
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_allclose(made.numpy(), x ** np.float32(exponent), rtol=1e-6, atol=0)


def test_functions_are_called_as_the_standard_says() -> None:
    """Inputs in the standard's number, attributes by its names and with its defaults, for every version."""
    from inspect import Parameter, signature

    from tinygrad.nn.onnx.registry import find

    wrong = []
    for schema in onnx.defs.get_all_schemas_with_history():
        domain = "" if schema.domain == "ai.onnx" else schema.domain
        operator = find(domain, schema.name, schema.since_version)
        is_old = not domain and schema.since_version < 7
        if operator is None or schema.deprecated or is_old:
            continue
        unknown = set(schema.attributes) - operator.attributes
        if unknown:
            wrong.append(f"{schema.name} {schema.since_version} has {sorted(unknown)}")
        if operator.variadic is None and len(operator.forms) < len(schema.inputs):
            wrong.append(f"{schema.name} {schema.since_version} takes {len(schema.inputs)} inputs")
        for name, parameter in signature(operator.function).parameters.items():
            said = schema.attributes.get(name)
            if said is None or parameter.default in (Parameter.empty, None) or not said.default_value.type:
                continue
            default = helper.get_attribute_value(said.default_value)
            default = default.decode() if isinstance(default, bytes) else default
            if isinstance(default, float) and abs(default - parameter.default) > 1e-6 * abs(default):
                wrong.append(f"{schema.name} {schema.since_version}: {name} is {default}")
            elif isinstance(default, (int, str)) and default != parameter.default:
                wrong.append(f"{schema.name} {schema.since_version}: {name} is {default!r}")
    assert not wrong, "\n".join(wrong)


def test_what_runs_make_is_not_kept() -> None:
    nodes = [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Neg", ["u"], ["y"])]
    run = OnnxRunner(model_of(nodes, [info("x", ["n"])], [info("y", ["m"])]))
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(30000).astype(np.float32)
        np.testing.assert_array_equal(run(x=x)["y"].numpy(), -np.unique(x))
    assert not run._evaluator.large


def test_strings_that_depend_on_values_are_given_in_every_call() -> None:
    node = helper.make_node("LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
                            coefficients=[1.0, -1.0],
                            classlabels_strings=["plus", "minus"])
    model = model_of([node], [info("x", ["n", 1])],
                     [info("label", ["n"], TensorProto.STRING), info("scores", ["n", 2])])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    run = OnnxRunner(model)
    for numbers in ([1, -2], [-3, 4], [5, 6], [-7, 8]):
        labels = run(x=np.array(numbers, np.float32)[:, None])["label"]
        assert list(labels) == ["plus" if n > 0 else "minus" for n in numbers]
