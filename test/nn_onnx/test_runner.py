"""Models that run: each kind of input, traces, state, threads."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

import onnx
from onnx import TensorProto, helper, numpy_helper, parser
from onnx_small_models import INT64, WEIGHT, X, Y, info, linear, model_of

import tinygrad
from tinygrad.helpers import GlobalCounters
from tinygrad.nn.onnx import OnnxError, OnnxRunner
from tinygrad.tensor import Tensor

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


def product_and_input() -> OnnxRunner:
    """y = x @ weight, same = x"""
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"]),
             helper.make_node("Identity", ["x"], ["same"])]
    outputs = [info("y"), info("same")]
    return OnnxRunner(model_of(nodes, [info("x", ["rows", 3])], outputs, {"weight": WEIGHT}))


def test_arrays_are_copied_into_the_memory_of_the_call_before() -> None:
    run, sizes = product_and_input(), (1, 1, 1, 2, 2, 1, 2, 1)
    arrays = [(X + i).repeat(rows, 0) for i, rows in enumerate(sizes)]
    results = [run(x=x[::-1]) for x in arrays]  # which are not read before the next call
    for x, found in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(found["y"].numpy(), x[::-1] @ WEIGHT)
        np.testing.assert_array_equal(found["same"].numpy(), x[::-1])
    copy = run._copies["x"]
    run(x=X)
    assert run._copies["x"] is copy
    given = Tensor(X)
    run(x=given)
    assert run._copies.get("x") is not given


def test_arrays_of_a_call_that_is_traced_stay_what_they_were() -> None:
    run = product_and_input()
    for _ in range(4):
        run(x=X)

    @tinygrad.TinyJit
    def add(y: Tensor) -> Tensor:
        return run(x=X)["y"] + y

    for i in range(5):
        np.testing.assert_array_equal(add(Tensor([[i, 0.0]])).numpy(), X @ WEIGHT + [[i, 0]])
        run(x=X * 0)


def test_two_threads_do_not_share_the_memory_of_an_input() -> None:
    run = product_and_input()

    def values(number: int) -> bool:
        x = X + number
        return all(np.array_equal(run(x=x)["y"].numpy(), x @ WEIGHT) for _ in range(200))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(values, (1, 100)))


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


def test_what_constants_give_is_read_once() -> None:
    """As a quantised number to pad with is, in every layer of a convolutional network."""
    nodes = [helper.make_node("QuantizeLinear", ["nothing", "scale", "zero"], ["filling"]),
             helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
             helper.make_node("Pad", ["q", "pads", "filling"], ["y"])]
    run = OnnxRunner(model_of(nodes, [info("x", [2])], [info("y", [4], TensorProto.UINT8)], {
        "nothing": np.float32(0), "scale": np.float32(0.5), "zero": np.uint8(3), "pads": np.array([1, 1])}))
    for start in (0, 1, 2, 3):
        x = np.array([start, 2], np.float32)
        assert run(x=x)["y"].tolist() == [3, 3 + 2 * start, 7, 3]
    assert is_traced(run) and not run._cut.walked


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
                          (["--size", "batch=²"], "got batch=²"),
                          (["--size", f"batch={10 ** 17}"], "input 'x', float32 (batch, 3), cannot be"),
                          (["--shape", "x=²,3"], "got x=²,3"),
                          (["--shape", f"x={10 ** 17},3"], "cannot be made: Unable to allocate"),
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
        for wrong in ("-1", "²"):
            with pytest.raises(SystemExit):
                main([model, option, wrong])
            assert f"argument {option}: a number from" in capsys.readouterr().err
    (tmp_path / "model.onnx").write_bytes(parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (complex64[n] x) => (complex64[n] y) { y = Identity(x) }'
    ).SerializeToString())
    assert main([model]) == 2
    assert "input 'x' takes complex64 (n,): these are no numbers and no str" in capsys.readouterr().err
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


def test_runs_like_the_one_before_look_at_nothing_but_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["turned"]),
             helper.make_node("MatMul", ["turned", "weight"], ["y"])]
    run = OnnxRunner(model_of(nodes, [info("x", [2, "n"]), info("shape", [2], INT64)], [info("y")],
                              {"weight": WEIGHT}))
    rng = np.random.default_rng(4)

    def compare(rows: int, x: Any, shape: Any) -> None:
        given = x.numpy() if isinstance(x, Tensor) else x
        made = run(x=x, shape=shape)["y"].numpy()
        np.testing.assert_allclose(made, given.reshape(rows, 3) @ WEIGHT, rtol=1e-5, atol=1e-6)

    def drawn(n: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal((2, n)).astype(np.float32)

    size = np.array([4, 3])
    as_tensor = Tensor(size).realize()
    for kind in (np.asarray, Tensor):
        for shape in (size, as_tensor):
            for _ in range(4):
                compare(4, kind(drawn(6)), shape)
            checked = OnnxRunner._checked
            monkeypatch.setattr(OnnxRunner, "_checked", None)  # what is like the run before is not checked
            compare(4, kind(drawn(6)), shape)
            monkeypatch.setattr(OnnxRunner, "_checked", checked)
            for rows in (2, 6, 4):
                compare(rows, kind(drawn(3 * rows // 2)), np.array([rows, 3]))
            with pytest.raises(OnnxError, match="'shape' is missing"):
                run(x=kind(drawn(6)))
            with pytest.raises(OnnxError, match="it has no 'z'"):
                run(x=kind(drawn(6)), shape=shape, z=1)
            with pytest.raises(OnnxError, match="float64"):
                run(x=kind(drawn(6).astype(np.float64)), shape=shape)
    kept = [run(x=x, shape=size)["y"] for x in [drawn(6) for _ in range(3)]]
    assert len({y.uop for y in kept}) == 3


def test_a_shape_in_memory_that_somebody_writes_to_is_read_in_each_run() -> None:
    run = OnnxRunner(model_of([helper.make_node("Reshape", ["x", "shape"], ["turned"]),
                               helper.make_node("Neg", ["turned"], ["y"])],
                              [info("x", [12]), info("shape", [2], INT64)], [info("y")], {}))
    shared, x = np.array([4, 3]), Tensor(np.arange(12, dtype=np.float32)).realize()
    shape = Tensor.from_dlpack(shared)
    for rows in (4, 4, 4, 4, 3, 2, 12):
        shared[:] = rows, 12 // rows
        np.testing.assert_array_equal(run(x=x, shape=shape)["y"].numpy(), -np.arange(12).reshape(rows, -1))
