"""What a file says of its nodes is checked before anything runs; weights beside it are found, and nothing
else."""
from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')

import onnx
from onnx import numpy_helper, parser

from tinygrad.nn.onnx import OnnxError, OnnxRunner

HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
X = np.array([1, -2, 3], np.float32)


def refused(graph: str) -> str:
    with pytest.raises(OnnxError) as error:
        OnnxRunner(parser.parse_model(HEADER + graph))
    return str(error.value)


@pytest.mark.parametrize("nodes, said", [
    ("y = Cast(x)", "Cast of 'y': has no 'to'"),
    ("y = Concat(x, x)", "Concat of 'y': has no 'axis'"),
    ("y = MatMul(x)", "MatMul of 'y': takes 2 inputs, got 1"),
    ("y = Add(x, k)", "Add of 'y': takes inputs of one type, got A of float32 and B of int64"),
    ("c = Constant<value = int64 {1}>() y = Mul(x, c)",
     "Mul of 'y': takes inputs of one type, got A of float32 and B of int64"),
    ("s = Shape(x) y = Sigmoid(s)", "Sigmoid of 'y': takes no int64 as X"),
    ("y = Gather(k, x)", "Gather of 'y': takes no float32 as indices"),
    ("b = Greater(x, x) y = Add(b, b)", "Add of 'y': takes no bool as A"),
    ("y = Add(, x)", "Add of 'y': has no A"),
    ("y = Where(, x, x)", "Where of 'y': has no condition"),
    ("y = Softmax<axis = 1.0>(x)", "Softmax of 'y': takes an integer as 'axis'"),
    ('y = Transpose<perm = "all">(x)', "Transpose of 'y': takes integers as 'perm'"),
    ('s = Constant<value_floats = [2.0]>() y = Resize<mode = "area">(x, , s)',
     "Resize of 'y': takes 'nearest', 'linear' or 'cubic' as 'mode', got 'area'"),
    ('y = DepthToSpace<blocksize = 2, mode = "RCD">(x)',
     "DepthToSpace of 'y': takes 'DCR' or 'CRD' as 'mode', got 'RCD'"),
    ('y = MaxPool<kernel_shape = [1], auto_pad = "SAME">(x)',
     "MaxPool of 'y': takes 'NOTSET', 'SAME_UPPER', 'SAME_LOWER' or 'VALID' as 'auto_pad', got 'SAME'")])
def test_nodes_that_cannot_run_are_named_when_the_file_is_read(nodes: str, said: str) -> None:
    assert refused(f"g (float[n] x, int64[n] k) => (float[n] y) {{ {nodes} }}") == \
        f"the model uses nodes that are wrong: {said}"


@pytest.mark.parametrize("node, said", [
    ('Normalizer<norm = "L3">', "takes 'MAX', 'L1' or 'L2' as 'norm', got 'L3'"),
    ('SVMRegressor<coefficients = [1.0], kernel_type = "COSINE">',
     "takes 'LINEAR', 'POLY', 'RBF' or 'SIGMOID' as 'kernel_type', got 'COSINE'")])
def test_words_that_operators_of_machine_learning_do_not_have(node: str, said: str) -> None:
    with pytest.raises(OnnxError, match=f"ai.onnx.ml.{node.partition('<')[0]} of 'y': {said}"):
        OnnxRunner(parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
            g (float[n, m] x) => (float[n, k] y) {{ y = ai.onnx.ml.{node}(x) }}"""))


@pytest.mark.parametrize("nodes, said", [
    ("c = Conv(i, two, w) y = BatchNormalization(c, two, two, two, two)", "Conv of 'c': "),
    ("c = Conv(i, w, three) y = BatchNormalization(c, two, two, two, two)", "Conv of 'c': "),
    ("c = ConvTranspose(i, two) y = BatchNormalization(c, two, two, two, two)", "ConvTranspose of 'c': "),
    ("y = BatchNormalization(i, two, two, two, three)", "BatchNormalization of 'y': "),
    ("y = Col2Im<dilations = [1]>(i, sizes, sizes)", "Col2Im of 'y': dilations are 2 numbers, got 1"),
    ("y = Col2Im(i, sizes, one)", r"Col2Im of 'y': the numbers of block_shape are 2 numbers, got 1"),
    ("y = Scan<num_scan_inputs = 3, body = b (float p) => (float q) { q = Neg(p) }>(i)",
     "Scan of 'y': num_scan_inputs is one of 1 to 1, got 3"),
    ("y = Scan<num_scan_inputs = 1, scan_input_axes = [0, 1], body = b (float p) => (float q) "
     "{ q = Neg(p) }>(i)", "Scan of 'y': scan_input_axes are 1 numbers, got 2"),
    ("y = Scan<num_scan_inputs = 1, scan_output_directions = [0, 1], body = b (float p) => (float q) "
     "{ q = Neg(p) }>(i)", "Scan of 'y': scan_output_directions are 1 numbers, got 2")])
def test_constants_and_attributes_that_do_not_fit_are_an_error_of_their_node(nodes: str, said: str) -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (float[1,2,4,4] i) => (y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float[3] three = {1, 2, 3}, float[2] two = {1, 2},
         int64[2] sizes = {2, 2}, int64[1] one = {2}> { """ + nodes + " }")
    with pytest.raises(OnnxError, match=f"^{said}"):
        OnnxRunner(model)(i=np.ones((1, 2, 4, 4), np.float32))


@pytest.mark.parametrize("node, said", [
    ('RNN<hidden_size = 2, direction = "bidirectional">(s, w, w)',
     "RNN of 'y': direction 'bidirectional' takes W of 2, got 1"),
    ("RNN<hidden_size = 2>(s, w, w, b)", "RNN of 'y': direction 'forward' takes B of 1, got 2"),
    (f"Split<axis = 0, num_outputs = {1 << 62}>(s)", "Split of 'y': MemoryError")])
def test_weights_of_other_directions_and_errors_without_a_text(node: str, said: str) -> None:
    run = OnnxRunner(parser.parse_model(HEADER.replace("17", "18") + f"""g (float[3,1,2] s) => (y)
        <float[1,2,2] w = {{1, 2, 3, 4}}, float[2,8] b = {{{", ".join("1" * 16)}}}> {{ y = {node} }}"""))
    with pytest.raises(OnnxError, match=f"^{said}"):
        run(s=np.ones((3, 1, 2), np.float32))


@pytest.mark.parametrize("nodes, said", [
    ("s = SequenceEmpty() y = ConcatFromSequence<axis = 0>(s)",
     "ConcatFromSequence of 'y': takes a sequence of one item at least, got none"),
    ("n = Constant<value_int = 0>() y = SplitToSequence(x, n)",
     "SplitToSequence of 'y': split is >= 1 where it is one number, got 0")])
def test_sequences_that_nothing_can_be_made_of(nodes: str, said: str) -> None:
    with pytest.raises(OnnxError, match=said):
        OnnxRunner(parser.parse_model(HEADER + f"g (float[n] x) => (y) {{ {nodes} }}"))(x=X)


@pytest.mark.parametrize("node, said", [
    ("Pad(x, three)", "takes 2 sizes to pad 1 axes, got 3"),
    ("Slice(x, one, three)", "starts, ends, axes and steps are as many, got 1, 3"),
    ("Slice(x, one, one, three)", "starts, ends, axes and steps are as many, got 1, 1, 3"),
    ("Slice(x, one, one, one)", r"axes \(1,\) are not all in \[-1, 0\]"),
    ("Slice(x, three, three, zeros)", r"axes \(0, 0, 0\) name an axis twice"),
    ("Unsqueeze(x, zeros)", r"axes \(0, 0, 0\) name an axis twice"),
    ("CenterCropPad(x, three)", "takes 1 sizes, got 3"),
    ("MaxPool<kernel_shape = [1, 1]>(image)", ""),
    ("MaxPool<kernel_shape = [1]>(image)", "a kernel has 2 axes, as many as are behind the channels, got 1"),
    ("MaxPool<kernel_shape = [1, 1], strides = [1]>(image)",
     "strides, dilations and output_padding are 2 numbers, got 1"),
    ("MaxPool<kernel_shape = [1, 1], pads = [0, 0, 1]>(image)", "pads are 4 numbers, got 3"),
    ("Resize(image, , half)", "scales are 4 numbers, got 1"),
    ("Resize(image, , , three)", "sizes are 4 numbers, got 3"),
    ("Constant()", "takes one of its attributes, got none"),
    ("Constant<value_int = 1, value_float = 2.0>()",
     "takes one of its attributes, got value_float, value_int")])
def test_numbers_that_do_not_belong_together_are_said(node: str, said: str) -> None:
    model = parser.parse_model(HEADER.replace("17", "18") + f"""g (float[n] x) => (y) <int64[1] one = {{1}},
        float[1,1,2,2] image = {{1, 2, 3, 4}}, float[1] half = {{0.5}}, int64[3] three = {{1, 1, 1}},
        int64[3] zeros = {{0, 0, 0}}> {{ y = {node} }}""")
    if not said:
        OnnxRunner(model)(x=X)
        return
    with pytest.raises(OnnxError, match=f"{node[:node.index('(')].partition('<')[0]} of 'y': {said}"):
        OnnxRunner(model)(x=X)


def test_one_error_has_all_that_is_wrong_also_in_branches_and_functions() -> None:
    said = refused("""g (float[n] x, int64[n] k, bool c) => (float[n] y) {
        a = Foo(x) b = Cast(a)
        y = If(c) <then_branch = t () => (float[n] r) { r = Bar(b) },
                  else_branch = e () => (float[n] s) { s = Add(x, k) }> }""")
    assert said == ("the model uses operators that are not supported: Foo: Foo of 'a'; Bar: Bar of 'r', and "
                    "nodes that are wrong: Cast of 'b': has no 'to'; "
                    "Add of 's': takes inputs of one type, got A of float32 and B of int64")
    model = parser.parse_model('''<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[n] x, int64[n] k) => (float[n] y) { y = own.sum(x, k) }
        <opset_import: ["" : 17], domain: "own"> sum (u, v) => (w) { w = Add(u, v) }''')
    with pytest.raises(OnnxError, match="wrong: Add of 'w': takes inputs of one type, got A of float32"):
        OnnxRunner(model)


def test_a_scan_gives_results_of_the_types_of_its_body() -> None:
    run = OnnxRunner(parser.parse_model(HEADER + """g (int64[t,b] xs) => (float[t,b] ys) {
        ys = Scan(xs) <num_scan_inputs = 1,
                       body = step (int64[b] x) => (float[b] y) { z = Cast<to=1>(x) y = Sqrt(z) }> }"""))
    xs = np.arange(6).reshape(2, 3)
    np.testing.assert_allclose(run(xs=xs)["ys"].numpy(), np.sqrt(xs.astype(np.float32)), rtol=1e-6)


@pytest.mark.parametrize("nodes", [
    "a = Neg(x) y = Add(a, x)",
    "s = Softmax<axis = 0>(x) y = Transpose<perm = [0]>(s)",
    "k = Constant<value_ints = [0]>() a = ReduceSum<keepdims = 1>(x, k) y = Div(x, a)",
    "n = Constant<value = int64 {2}>() y = Loop(n, , x) <body = b (int64 i, bool c, float[3] u) => "
    "(bool d, float[3] v) { d = Identity(c) v = Elu<alpha = 2.0>(u) }>",
])
def test_bytes_that_are_changed_are_an_onnx_error_or_a_model(nodes: str) -> None:
    data = parser.parse_model(HEADER + f"g (float[3] x) => (float[3] y) {{ {nodes} }}").SerializeToString()
    rng = random.Random(0)
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(2):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        with suppress(OnnxError):
            OnnxRunner(bytes(changed))(x=X)


def test_inputs_that_are_nothing_or_complex() -> None:
    run = OnnxRunner(parser.parse_model(HEADER + "g (float[n] x) => (float[n] y) { y = Neg(x) }"))
    for given, said in ((None, "got a NoneType: only an optional input may be left out"),
                        (X.astype(complex), "got a ndarray: these are no numbers and no strings")):
        with pytest.raises(OnnxError, match=f"input 'x' takes float32 .n,., {said}"):
            run(x=given)


def saved(folder: Path) -> tuple[Path, Path]:
    """A model and the file of its weights."""
    model = parser.parse_model(HEADER + "g (float[3] x) => (float[3] y) { y = Mul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w"))
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin",
              size_threshold=0)
    return folder / "model.onnx", folder / "weights.bin"


@pytest.mark.parametrize("linked", ["both", "the model"])
def test_a_link_to_a_model_finds_its_weights(tmp_path: Path, linked: str) -> None:
    """As in a cache of downloads, where names are links to files that are named by their content."""
    model, weights = saved(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    link = tmp_path / "snapshot" / "model.onnx"
    if linked == "both":
        weights.rename(tmp_path / "blobs" / "1234")
        (tmp_path / "snapshot" / "weights.bin").symlink_to("../blobs/1234")
    link.symlink_to(model)
    np.testing.assert_array_equal(OnnxRunner(link)(x=X)["y"].numpy(), X * [1, 2, 3])


def test_a_link_from_the_weights_to_elsewhere_is_refused(tmp_path: Path) -> None:
    model, weights = saved(tmp_path / "blobs")
    secret: Any = weights.rename(tmp_path / "secret")
    weights.symlink_to(secret)
    (tmp_path / "model.onnx").symlink_to(model)
    with pytest.raises(OnnxError, match="asks for 'weights.bin', which is outside of the model's folder"):
        OnnxRunner(model)


@pytest.mark.parametrize("nodes, said", [
    ("i = Constant<value = int64[2] {0, 3}>() y = Gather(w, i)",
     "Gather of 'y': index 3 is out of range of axis 0"),
    ("i = Constant<value = int64 {-4}>() y = Gather<axis = -1>(x, i)",
     "Gather of 'y': index -4 is out of range of axis 1"),
    ("i = Constant<value = int64[1,2] {5, 0}>() y = GatherElements(w, i)",
     "GatherElements of 'y': index 5 is out of range of axis 0"),
    ("i = Constant<value = int64[2,2] {1, 1, 0, 3}>() y = GatherND(x, i)",
     "GatherND of 'y': index 3 is out of range of axis 1"),
    ("i = Constant<value = int64[1,1] {7}>() y = GatherND<batch_dims = 1>(x, i)",
     "GatherND of 'y': index 7 is out of range of axis 1"),
    ("i = Constant<value = int64[1,3] {0, 0, 3}>() y = ScatterElements<axis = 1>(x, i, v)",
     "ScatterElements of 'y': index 3 is out of range of axis 1"),
    ("i = Constant<value = int64[1,1] {-4}>() y = ScatterND(w, i, v)",
     "ScatterND of 'y': index -4 is out of range of axis 0")])
def test_constant_indices_that_are_out_of_range_are_named_when_the_file_is_read(nodes: str,
                                                                                said: str) -> None:
    model = f"""g (float[n, 3] x, float[1, 3] v) => (float[m, k] y)
        <float[3, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{ {nodes} }}"""
    assert refused(model) == f"{said}, which has 3 items"


@pytest.mark.parametrize("node", [
    "Gather<axis = 1>(h, i)", "GatherElements<axis = 1>(h, i)", "GatherND(h, i)"])
def test_constant_indices_of_what_is_computed_are_an_error_of_its_first_call(node: str) -> None:
    """Also in a branch, which sees the constants around it."""
    for body in (f"h = Neg(x) y = {node}", f"""h = Neg(x) y = If(c) <
            then_branch = t () => (float[a, b] r) {{ r = {node} }},
            else_branch = e () => (float[a, b] s) {{ s = Neg(x) }}>"""):
        run = OnnxRunner(parser.parse_model(HEADER + f"""g (float[2, n] x, bool c) => (float[a, b] y)
            <int64[1, 2] i = {{1, 3}}> {{ {body} }}"""))
        with pytest.raises(OnnxError, match="index 3 is out of range of axis 1, which has 3 items"):
            run(x=np.zeros((2, 3), np.float32), c=np.array(True))
        assert np.all(run(x=np.ones((2, 4), np.float32), c=np.array(True))["y"].numpy() == -1)


def test_indices_of_a_call_that_are_out_of_range_give_zero() -> None:
    run = OnnxRunner(parser.parse_model(
        HEADER + "g (float[n] x, int64[m] i) => (float[m] y) { y = Gather(x, i) }"))
    for _ in range(3):
        assert run(x=X, i=np.array([1, 7, -3]))["y"].tolist() == [-2, 0, 1]


SEQUENCE = '<ir_version: 8, opset_import: ["" : 17]> g (seq(float[n]) s, int64 i, float[m] x) => (y) '


@pytest.mark.parametrize("node, at, said", [
    ("SequenceAt(s, i)", 2, "position 2 is out of range of a sequence of 2 items"),
    ("SequenceAt(s, i)", -3, "position -3 is out of range of a sequence of 2 items"),
    ("SequenceErase(s, i)", 2, "position 2 is out of range of a sequence of 2 items"),
    ("SequenceInsert(s, x, i)", 3, "position 3 is out of range of a sequence of 2 items")])
def test_places_in_sequences_that_are_not_there(node: str, at: int, said: str) -> None:
    run = OnnxRunner(parser.parse_model(f"{SEQUENCE} {{ y = {node} }}"))
    with pytest.raises(OnnxError, match=f"{node[:node.index('(')]} of 'y': {said}"):
        run(s=[X, X], i=np.array(at), x=X)
    with pytest.raises(OnnxError, match="input 's' takes sequence, got a ndarray: a sequence is a list"):
        run(s=X, i=np.array(0), x=X)


def test_a_call_of_a_function_has_no_more_than_it_takes_and_gives() -> None:
    for call, said in (("y = own.f(x, x)", "own.f of 'y' has 2 inputs, and its function 1"),
                       ("y, z = own.f(x)", "own.f of 'y', 'z' has 2 outputs, and its function 1")):
        with pytest.raises(OnnxError, match=said):
            OnnxRunner(parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
                g (float[n] x) => (float[n] y) {{ {call} }}
                <opset_import: ["" : 17], domain: "own"> f (u) => (w) {{ w = Neg(u) }}"""))


@pytest.mark.parametrize("node, said", [
    ("If(two) <then_branch = t () => (float[n] a) { a = Neg(x) }, "
     "else_branch = e () => (float[n] b) { b = Abs(x) }>",
     r"takes one item where it got some of shape \(2,\)"),
    ("Loop(n, , x) <body = b (int64 i, bool c) => (bool d, float[n] s) { d = Identity(c) s = Neg(x) }>",
     "its graph 'b' takes 2 inputs, got 3"),
    ("Scan(x, m) <num_scan_inputs = 2, body = b (float p, float q) => (float s) { s = Add(p, q) }>",
     "what is scanned has as many items, got 3, 2")])
def test_branches_and_loops_that_do_not_fit(node: str, said: str) -> None:
    run = OnnxRunner(parser.parse_model(
        HEADER + f"g (float[k] x, float[j] m, bool[2] two, int64 n) => (y) {{ y = {node} }}"))
    with pytest.raises(OnnxError, match=f"{node[:node.index('(')]} of 'y': {said}"):
        run(x=X, m=X[:2], two=np.array([True, False]), n=np.array(2))


def test_what_fails_inside_a_function_is_named_with_its_call() -> None:
    """The file has the call, not what the standard or a function says by others."""
    for calls, function, said in (
            ("y = RotaryEmbedding<num_heads = 3>(q, t, t)", "", "RotaryEmbedding of 'y': Reshape of '"),
            ("y = own.f(q)", """<opset_import: ["" : 23], domain: "own">
                f (u) => (w) { k = Constant<value_ints = [5]>() w = Reshape(u, k) }""",
             "own.f of 'y': Reshape of 'w': cannot reshape")):
        run = OnnxRunner(parser.parse_model(f"""<ir_version: 11, opset_import: ["" : 23, "own" : 1]>
            g (float[1,2,8] q, float[1,2,4] t) => (y) {{ {calls} }} {function}"""))
        with pytest.raises(OnnxError, match=f"^{said}"):
            run(q=np.ones((1, 2, 8), np.float32), t=np.ones((1, 2, 4), np.float32))


def test_a_function_that_lacks_an_input_says_which() -> None:
    run = OnnxRunner(parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[n] x) => (float[n] y) { y = own.f(x) }
        <opset_import: ["" : 17], domain: "own"> f (u, v) => (w) { w = Mul(v, u) }"""))
    with pytest.raises(OnnxError, match="^own.f of 'y': Mul of 'w': has no A"):
        run(x=X)


def test_parts_of_a_shape_add_up_to_it() -> None:
    """What the host computes is checked as what a device does."""
    run = OnnxRunner(parser.parse_model(HEADER + """g (float[a,b,c] x) => (int64[i] y, int64[j] z)
        <int64[2] parts = {1, 1}> { s = Shape(x) y, z = Split(s, parts) }"""))
    with pytest.raises(OnnxError, match=r"Split of 'y', 'z': split: sizes .* do not add up to the 3 items"):
        run(x=np.ones((2, 3, 4), np.float32))


@pytest.mark.parametrize("node, said", [
    ("Conv<kernel_shape = [5, 5]>(i, w)", r"kernel_shape is \(5, 5\), and that of the weights of shape"),
    ("ConvTranspose<kernel_shape = [3]>(i, w)", r"kernel_shape is \(3,\), and that of the weights of shape"),
    ("ConvTranspose<group = 0>(i, w)", "group divides the 2 channels, got 0"),
    ("Conv<strides = [0, 1]>(i, w)", "strides: sizes and steps of windows are >= 1"),
    ("MaxPool<kernel_shape = [2, 0]>(i)", "kernel: sizes and steps of windows are >= 1"),
    ("LpPool<kernel_shape = [2, 2], strides = [0, 1]>(i)", "strides: sizes and steps of windows are >= 1"),
    ("Resize(i, , none)", r"scales are > 0 and finite, got \(1.0, 1.0, 0.0, 2.0\)"),
    ("Resize(i, , , less)", r"sizes are >= 0, got \(1, 2, -3, 4\)"),
    ("Resize<axes = [2, 7]>(i, , , two)", r"axes are 4 at most, each named once, got \(2, 7\)"),
    ("Resize<axes = [2, -2]>(i, , , two)", r"axes are 4 at most, each named once, got \(2, -2\)"),
    ("Resize(i, , , far)", "axis 3 of 4 items is resized to at most 67,108,864, asked for 1,073,741,824"),
    ("DFT<axis = 2>(s)", "axis 2 is none of the 2 before the last of 3"),
    ("DFT<axis = -4>(s)", "axis -4 is none of the 2 before the last of 3"),
    ("DFT(s, zero)", "dft_length is >= 1, got 0"),
    ("DFT(i)", r"the last axis has real parts, or real and imaginary ones: 1 or 2 items, got shape")])
def test_numbers_that_an_operator_cannot_have(node: str, said: str) -> None:
    run = OnnxRunner(parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 19]>
        g (float[1,2,4,4] i, float[1,4,1] s) => (y)
        <float[2,2,3,3] w = {{{", ".join("1" * 36)}}}, float[4] none = {{1, 1, 0, 2}},
         int64[2] two = {{2, 2}}, int64[4] less = {{1, 2, -3, 4}}, int64 zero = {{0}},
         int64[4] far = {{1, 2, 4, 1073741824}}>
        {{ y = {node} }}"""))
    with pytest.raises(OnnxError, match=f"^{node[:node.index('(')].split('<')[0]} of 'y': {said}"):
        run(i=np.ones((1, 2, 4, 4), np.float32), s=np.ones((1, 4, 1), np.float32))


@pytest.mark.parametrize("node", ["ConstantOfShape(s)", "Expand(x, s)", "HannWindow(n)"])
def test_what_memory_does_not_hold_is_named(node: str) -> None:
    """Also where numbers of a file say it, and beyond what an address says."""
    for count in (1 << 44, 1 << 62):
        constant = HEADER + f"g (float[k] x) => (y) <int64[1] s = {{{count}}}, int64 n = {{{count}}}> " \
                            f"{{ y = {node} }}"
        given = HEADER + f"g (float[k] x, int64[1] s, int64 n) => (y) {{ y = {node} }}"
        for text, numbers in ((constant, {}), (given, {"s": np.array([count]), "n": np.array(count)})):
            op = node[:node.index("(")]
            with pytest.raises(OnnxError, match=f"^{op} of 'y': .* of shape \\({count},\\)"):
                OnnxRunner(parser.parse_model(text))(x=X[:1], **numbers)


def test_arrays_of_the_host_that_memory_does_not_hold_are_named() -> None:
    run = OnnxRunner(parser.parse_model(HEADER + f"""g (float[1,4,1] x) => (y) <int64 n = {{{1 << 44}}}>
        {{ y = DFT(x, n) }}"""))
    with pytest.raises(OnnxError, match="^DFT of 'y': Unable to allocate"):
        run(x=np.ones((1, 4, 1), np.float32))


def nested(levels: int, calls: int, body: str = "Neg") -> Any:
    """A model that calls a function which calls another so many times, as many levels deep."""
    twice = " ".join(f"t{i + 1} = own.f@(t{i})" for i in range(calls))
    functions = [f"""<opset_import: ["" : 17, "own" : 1], domain: "own"> f{level} (t0) => (t{calls})
        {{ {twice.replace("@", str(level - 1))} }}""" for level in range(1, levels)]
    return parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[n] x) => (float[n] y) {{ y = own.f{levels - 1}(x) }}
        <opset_import: ["" : 17], domain: "own"> f0 (u) => (w) {{ w = {body}(u) }} {" ".join(functions)}""")


def test_functions_in_one_another_are_read_once_each() -> None:
    assert OnnxRunner(nested(10, 2))(x=X)["y"].tolist() == X.tolist()
    assert OnnxRunner(nested(64, 1))(x=X)["y"].tolist() == (-X).tolist()
    with pytest.raises(OnnxError, match="the model has 6,442,450,943 nodes, those of functions"):
        OnnxRunner(nested(32, 2))
    with pytest.raises(OnnxError, match="functions call one another more than 64 deep, from 'f64' to 'f0'"):
        OnnxRunner(nested(65, 1))
    with pytest.raises(OnnxError, match="nodes that are wrong: Not of 'w': takes no float32 as X$"):
        OnnxRunner(nested(19, 2, "Not"))
