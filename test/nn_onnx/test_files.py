"""Files: weights that lie beside them, and what is refused, of files, graphs and inputs that are wrong."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_small_models import X, Y, info, linear, model_of

from tinygrad.graph.ops import Ops
from tinygrad.nn.onnx import OnnxError, OnnxRunner
from tinygrad.tensor import Tensor

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


def test_locations_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="constant 'weight' is in 'w+': File name too long"):
        OnnxRunner(external(tmp_path, "w" * 300))


@pytest.mark.parametrize("sizes", [[3, -2], [-3, -2], [-1, 2], [2**40, 2**40], [2**62, 0]])
@pytest.mark.parametrize("is_beside", [False, True])
def test_constants_of_sizes_that_no_array_has(tmp_path: Path, sizes: list[int], is_beside: bool) -> None:
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False) if is_beside else linear()
    model.graph.initializer[0].dims[:] = sizes
    path.write_bytes(model.SerializeToString())
    with pytest.raises(OnnxError, match=rf"constant 'weight' is of shape \({sizes[0]}, {sizes[1]}\)$"):
        OnnxRunner(path)


def test_a_sparse_constant_is_checked() -> None:
    def given(places: Any, sizes: list[int], values: int = 2) -> Any:
        model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")])
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(
            helper.make_tensor("w", 1, [values], [5.0, 7, 9][:values]), numpy_helper.from_array(
                np.array(places, np.int64)), sizes))
        return model
    for places in ([[0, 1], [2, 0]], [1, 4]):
        y = OnnxRunner(given(places, [3, 2]))(x=np.zeros((3, 2), np.float32))["y"].numpy()
        np.testing.assert_array_equal(y, [[0, 5], [0, 0], [7, 0]])
    for places, values in (([1, 6], 2), ([1, -1], 2), ([[0, 2], [0, 0]], 2), ([0, 1], 3), ([[0], [1]], 2)):
        with pytest.raises(OnnxError, match=r"constant 'w' of shape \(3, 2\) has . items at places that"):
            OnnxRunner(given(places, [3, 2], values))
    with pytest.raises(OnnxError, match="constant 'w' of shape .*, with its zeros, is larger than memory"):
        OnnxRunner(given([0, 1], [1 << 46, 2]))


def test_names_that_are_there_twice_are_refused() -> None:
    model = linear()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 2), np.float32), "weight"))
    with pytest.raises(OnnxError, match="the model: there is more than one constant 'weight'"):
        OnnxRunner(model)
    with pytest.raises(OnnxError, match="the model: there is more than one input 'x'"):
        OnnxRunner(model_of([helper.make_node("Neg", ["x"], ["y"])], [info("x"), info("x")], [info("y")]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_model_of_bytes(kind: Any) -> None:
    np.testing.assert_array_equal(OnnxRunner(kind(linear().SerializeToString()))(x=X)["y"].numpy(), Y)


@pytest.mark.parametrize("source", [None, 3, linear().graph])
def test_what_is_no_source_of_a_model(source: Any) -> None:
    with pytest.raises(TypeError, match="a model is a path, a file's bytes, a tensor of them or an onnx."
                                        f"ModelProto, got a {type(source).__name__}"):
        OnnxRunner(source)


def test_an_axis_of_minus_one_item_is_of_any_size() -> None:
    """As older exporters write it, and ONNX Runtime takes it."""
    run = OnnxRunner(model_of([helper.make_node("Neg", ["x"], ["y"])], [info("x", [-1, 3])], [info("y")]))
    for rows in (1, 2):
        assert run(x=np.ones((rows, 3), np.float32))["y"].shape == (rows, 3)
    assert str(run.inputs["x"]) == "float32 (?, 3)"


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
    with pytest.raises(OnnxError, match="inputs are given once, got 'x' twice"):
        run({"x": X}, x=X)
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


def calls_to_read(count: int) -> int:
    """Calls of Python, and items of its generators, that it takes to read a chain of so many nodes."""
    nodes = [helper.make_node("Add", [f"v{i}" if i else "x", "k"], [f"v{i + 1}"]) for i in range(count)]
    model = model_of(nodes, [info("x", [1])], [info(f"v{count}", [1])], {"k": np.ones(1, np.float32)})
    found = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(note)
    try:
        OnnxRunner(model)
    finally:
        sys.setprofile(None)
    return found


def test_files_of_twice_as_many_nodes_take_twice_as_long_to_read() -> None:
    """Not four times: a Longformer of two layers, as PyTorch's older exporter writes it, has 2,876 nodes."""
    calls_to_read(50)  # fills caches
    assert calls_to_read(400) < 2.5 * calls_to_read(200)
