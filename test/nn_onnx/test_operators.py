"""Operators where shapes, sizes and scales are at an edge, beside ONNX Runtime."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="operators are compared with ONNX Runtime")

from onnx import parser
from onnx_graphs import check, evaluate

from tinygrad.nn.onnx import OnnxError, OnnxRunner

RNG = np.random.default_rng(0)


def alike(nodes: str, x: Any, version: int = 18) -> Any:
    """What both make of `x`, of floats, by `nodes`."""
    shape = f"[{','.join(map(str, x.shape))}]" if x.shape else ""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {version}]> g (float{shape} x) => (y) '
                               f"{{ {nodes} }}")
    wanted, = evaluate(model, {"x": x})
    check(OnnxRunner(model)(x=x)["y"].numpy(), wanted, nodes)
    return wanted


@pytest.mark.parametrize("version", [7, 11, 13])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_no_items(op: str, shape: tuple[int, ...], version: int) -> None:
    alike(f"y = {op}(x)", RNG.standard_normal(shape).astype(np.float32), version)


def test_limits_are_not_rounded_to_half_types() -> None:
    """Of float16, -0.812 is none: the number next to it is beyond that limit."""
    alike("half = Cast<to = 10>(x) z = Shrink<lambd = 0.812, bias = 0.25>(half) y = Cast<to = 1>(z)",
          np.array([-0.81201, 0.81201, -0.8115, 0.8115, 2.0], np.float32))


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_reductions_of_a_number(op: str, axis: int) -> None:
    alike(f"y = {op}<axes = [{axis}]>(x)", np.array(3, np.float32), 11)


@pytest.mark.parametrize("n, scale, items", [(20, 0.7, 14), (15, 1.4, 21), (30, 0.7, 21), (9, 0.6, 5)])
def test_sizes_by_scales_are_those_of_float32(n: int, scale: float, items: int) -> None:
    nodes = f"s = Constant<value_floats = [1.0, 1.0, {scale}]>() y = Resize(x, , s)"
    assert alike(nodes, RNG.standard_normal((1, 1, n)).astype(np.float32)).shape == (1, 1, items)


@pytest.mark.parametrize("step", [-1, -2, 1, 3])
@pytest.mark.parametrize("start", [-9, -5, -4, 0, 3, 4, 9])
def test_slices_that_begin_and_end_anywhere(start: int, step: int) -> None:
    for end in (-9, -5, -4, -1, 0, 2, 4, 9):
        alike(f"s = Constant<value_ints = [{start}]>() e = Constant<value_ints = [{end}]>() "
              f"a = Constant<value_ints = [0]>() t = Constant<value_ints = [{step}]>() "
              "y = Slice(x, s, e, a, t)", np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("mode", ["round_prefer_floor", "floor", "ceil"])
@pytest.mark.parametrize("places", ["asymmetric", "half_pixel", "pytorch_half_pixel"])
def test_nearest_items_are_those_of_places_in_float32(places: str, mode: str) -> None:
    x = RNG.standard_normal((1, 1, 35)).astype(np.float32)
    for scale in (0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 1.2, 1.6, 3.0):
        alike(f"s = Constant<value_floats = [1.0, 1.0, {scale}]>() y = Resize<nearest_mode = '{mode}', "
              f"coordinate_transformation_mode = '{places}'>(x, , s)".replace("'", '"'), x)


@pytest.mark.parametrize("node, low, high", [
    ("Softmax<axis = 2>(x)", -2, 1), ("Flatten<axis = 3>(x)", -2, 2), ("Gather<axis = -3>(x, i)", -2, 1),
    ("OneHot<axis = 3>(x, d, v)", -3, 2), ("Compress<axis = 2>(x, b)", -2, 1), ("Split<axis = 2>(x)", -2, 1),
    ("LogSoftmax<axis = 2>(x)", -2, 1), ("TopK<axis = 2>(x, d)", -2, 1), ("Concat<axis = 2>(x, x)", -2, 1)])
@pytest.mark.parametrize("version", [11, 17])
def test_an_axis_that_is_not_there_is_an_error(node: str, low: int, high: int, version: int) -> None:
    outputs = "y, z" if "TopK" in node else "y"
    made = ("i = Constant<value = int64[1] {0}>() d = Constant<value = int64[1] {1}>() "
            "v = Constant<value = float[2] {0.0, 1.0}>() b = Constant<value = int32[1] {1}>() ")
    node = node.replace("(x, b)", "(x, truth)")
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {version}]> g (float[2,3] x) => (y) '
                               f"{{ {made} truth = Cast<to = 9>(b) {outputs} = {node} }}")
    with pytest.raises(OnnxError, match=rf"axis -?\d is not in \[{low}, {high}\]"):
        OnnxRunner(model)(x=np.ones((2, 3), np.float32))


@pytest.mark.parametrize("axes", [[3], [-4], [0, 4]])
def test_new_axes_that_are_not_there_are_an_error(axes: list[int]) -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (y) '
                               f"{{ a = Constant<value_ints = {axes}>() y = Unsqueeze(x, a) }}")
    with pytest.raises(OnnxError, match=r"Unsqueeze of 'y': axes .* are not all in \["):
        OnnxRunner(model)(x=np.ones((2, 3), np.float32))


@pytest.mark.parametrize("node", ["DepthToSpace<blocksize = 0>(x)", "LRN<size = 0>(x)",
                                  "MaxPool<kernel_shape = [2, 2], strides = [0, 1]>(x)"])
def test_a_division_by_zero_in_an_operator_names_it(node: str) -> None:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,4,4] x) => (y) {{ y = {node} }}')
    with pytest.raises(OnnxError, match=rf"^{node[:node.index('<')]} of 'y': "):
        OnnxRunner(model)(x=np.ones((1, 4, 4, 4), np.float32))


def test_a_cast_to_a_type_that_is_none_says_so() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (y) '
                               "{ y = Cast<to = 99>(x) }")
    with pytest.raises(OnnxError, match="Cast of 'y': the standard has no type 99"):
        OnnxRunner(model)(x=np.ones(2, np.float32))


@pytest.mark.parametrize("node", ["Gather<axis = -1>(h, i)", "GatherElements<axis = -1>(h, k)",
                                  "ScatterElements<axis = -1>(h, k, k2)"])
def test_constant_indices_along_the_last_axis_of_what_is_computed(node: str) -> None:
    nodes = ("i = Constant<value = int64[2] {3, -1}>() k = Constant<value = int64[2,1] {3, -1}>() "
             f"k2 = Cast<to = 1>(k) h = Exp(x) y = {node}")
    alike(nodes, RNG.standard_normal((2, 4)).astype(np.float32))


@pytest.mark.parametrize("scale", [0.3, 0.6, 0.75, 0.8, 1.5])
def test_nearest_items_of_version_10_are_those_behind_a_place_where_there_are_fewer(scale: float) -> None:
    nodes = f's = Constant<value = float[4] {{1.0, 1.0, 1.0, {scale}}}>() y = Resize<mode = "nearest">(x, s)'
    for n in (4, 5, 7):
        alike(nodes, RNG.standard_normal((1, 1, 1, n)).astype(np.float32), 10)


@pytest.mark.parametrize("scale", [0.6, 1.5, 2.3])
def test_a_crop_resized_by_a_scale_has_as_many_items_as_the_whole(scale: float) -> None:
    """So say the standard's reference, its shape inference and ONNX Runtime, and not its text."""
    nodes = f"""r = Constant<value = float[6] {{0.0, 0.0, 0.1, 1.0, 1.0, 0.6}}>()
        s = Constant<value = float[3] {{1.0, 1.0, {scale}}}>()
        y = Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">(x, r, s)"""
    alike(nodes, RNG.standard_normal((1, 2, 5)).astype(np.float32), 13)


@pytest.mark.parametrize("before, after", [(5, 3), (7, -1), (-1, 6), (2, -1), (3, 0)])
@pytest.mark.parametrize("n", [2, 3])
def test_padding_goes_around_any_number_of_times(n: int, before: int, after: int) -> None:
    alike(f'p = Constant<value_ints = [1, {before}, 0, {after}]>() y = Pad<mode = "wrap">(x, p)',
          RNG.standard_normal((2, n)).astype(np.float32), 19)


def test_padding_of_no_items_with_their_like_is_an_error() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 19]> g (float[n] x) => (y) {
        p = Constant<value_ints = [1, 0]>() y = Pad<mode = "wrap">(x, p) }""")
    with pytest.raises(OnnxError, match="Pad of 'y': axis 0 has no items to repeat"):
        OnnxRunner(model)(x=np.zeros(0, np.float32))


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_running_sums_before_each_of_no_items(shape: tuple[int, ...], reverse: int) -> None:
    alike(f"a = Constant<value = int64 {{-1}}>() y = CumSum<exclusive = 1, reverse = {reverse}>(x, a)",
          np.zeros(shape, np.float32))


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_of_version_8_takes_sequences_of_different_lengths(direction: int) -> None:
    """It was refused. What is collected is zero behind the end of a sequence."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 8]>
        g (int64[3] n, float[3,4,2] xs, float[3,2] s0) => (s, ys) {{
        s, ys = Scan(n, s0, xs) <num_scan_inputs = 1, directions = [{direction}],
            body = b (float[2] s1, float[2] x) => (float[2] s2, float[2] y) {{
            s2 = Add(s1, x) y = Mul(s1, x) }}> }}""")
    inputs = {"n": np.array([4, 1, 2]), "xs": RNG.standard_normal((3, 4, 2)).astype(np.float32),
              "s0": RNG.standard_normal((3, 2)).astype(np.float32)}
    run = OnnxRunner(model)
    for _ in range(3):
        for (name, made), wanted in zip(run(inputs).items(), evaluate(model, inputs), strict=True):
            check(made.numpy(), wanted, name)


def test_a_scan_of_nothing_gives_its_state_and_no_items() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        g (float[n,4] xs, float[4] s0) => (s, ys) {
        s, ys = Scan(s0, xs) <num_scan_inputs = 1, scan_output_axes = [1],
            body = b (float[4] s1, float[4] x) => (float[4] s2, float[4] y) {
            s2 = Add(s1, x) y = Mul(s1, x) }> }""")
    made = OnnxRunner(model)(xs=np.zeros((0, 4), np.float32), s0=np.arange(4, dtype=np.float32))
    assert made["s"].tolist() == [0, 1, 2, 3] and made["ys"].shape == (4, 0)


@pytest.mark.parametrize("node, version", [("LayerNormalization(x, s)", 17), ("RMSNormalization(x, s)", 23),
                                           ("GroupNormalization<num_groups = 2>(x, s, z)", 21)])
def test_norms_of_float64_are_of_float64(node: str, version: int) -> None:
    """They were computed in float32, which `stash_type` says if nobody does; other runtimes keep the type."""
    x = RNG.standard_normal((2, 4, 4))
    model = parser.parse_model(f"""<ir_version: 11, opset_import: ["" : {version}]> g (double[2,4,4] x) => (y)
        <double[4] s = {{1, 1, 1, 1}}, double[4] z = {{0, 0, 0, 0}}> {{ y = {node} }}""")
    rows = x.reshape(2, 2, 8) if node[0] == "G" else x
    centred = rows if node[0] == "R" else rows - rows.mean(-1, keepdims=True)
    wanted = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    y = OnnxRunner(model)(x=x)["y"].numpy()
    np.testing.assert_allclose(y, wanted.reshape(x.shape), rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_one_item_and_of_none(op: str) -> None:
    for size, periodic, wanted in ((1, 0, [1]), (0, 0, []), (0, 1, [])):
        run = OnnxRunner(parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (int64 n) => (y) '
                                            f"{{ y = {op}<periodic = {periodic}>(n) }}"))
        assert run(n=np.array(size))["y"].tolist() == wanted


@pytest.mark.parametrize("said", ["", "float[n,2] "])
def test_what_no_iteration_collects_has_the_sizes_of_an_iteration(said: str) -> None:
    """Where the body does not say them."""
    run = OnnxRunner(parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3,2] x, int64 trips) => (final, rows, joined) {{
        final, rows = Loop(trips, , x) <body = b (int64 i, bool c, s) => (c1, t, {said}y) {{
            c1 = Identity(c) t = Tanh(s) y = Add(s, x) }}>
        one = Constant<value = float[1,3,2] {{1, 1, 1, 1, 1, 1}}>()
        joined = Concat<axis = 0>(rows, one) }}"""))
    for trips in (0, 2, 0):
        made = run(x=np.ones((3, 2), np.float32), trips=np.array(trips))
        assert made["rows"].shape == (trips, 3, 2) and made["joined"].shape == (trips + 1, 3, 2)


def test_what_a_scan_of_nothing_collects_has_the_sizes_of_an_iteration() -> None:
    run = OnnxRunner(parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] s0, float[3,n] xs) => (s, ys) {
        s, ys = Scan(s0, xs) <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
            body = b (s1, x) => (s2, y) { s2 = Identity(s1) y = Concat<axis = 0>(s1, x) }> }"""))
    for count in (0, 2):
        made = run(s0=np.ones(4, np.float32), xs=np.ones((3, count), np.float32))
        assert made["ys"].shape == (7, count)


def test_norms_of_no_items() -> None:
    for node in ("GroupNormalization <num_groups = 2> (x, s, s)", "InstanceNormalization (x, s, s)"):
        run = OnnxRunner(parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
            g (float[n,4,3] x, float[4] s) => (y) {{ y = {node} }}"""))
        assert run(x=np.zeros((0, 4, 3), np.float32), s=np.ones(4, np.float32))["y"].shape == (0, 4, 3)


def test_slices_of_no_items_are_scattered() -> None:
    run = OnnxRunner(parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n,m] x, int64[k,1] at, float[k,m] u) => (y) { y = ScatterND(x, at, u) }"""))
    x, u = np.zeros((3, 0), np.float32), np.zeros((2, 0), np.float32)
    assert run(x=x, at=np.array([[0], [2]]), u=u)["y"].shape == (3, 0)


@pytest.mark.parametrize("n", [1 << 18, 100_003])
def test_long_signals_are_transformed(n: int) -> None:
    """Which a matrix of every item by every wave is not in memory for; a prime number of items among them."""
    x = RNG.standard_normal((1, n, 1)).astype(np.float32)
    wanted = np.fft.rfft(x[..., 0].astype(np.float64))
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,{n},1] x) => (y) '
                               "{ y = DFT<axis = 1, onesided = 1>(x) }")
    found = OnnxRunner(model)(x=x)["y"].numpy()
    assert found.shape == (1, n // 2 + 1, 2)
    np.testing.assert_allclose(found @ [1, 1j], wanted, rtol=0, atol=1e-5 * n ** 0.5)
