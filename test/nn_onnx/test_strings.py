"""Models that take strings: the host makes numbers of them, and what follows is replayed."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="models of strings are compared with ONNX Runtime")

import onnxruntime as ort
from onnx import parser

from tinygrad.nn.onnx import OnnxError, OnnxRunner

HEADER = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]> '
X = np.array([1, -2, 3, -4], np.float32)


def words(*texts: str) -> Any:
    return np.array(texts, object)


def parts(graph: str, *feeds: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What the host runs before a trace and after it, once calls of all feeds gave what ONNX Runtime does."""
    model = parser.parse_model(HEADER + graph)
    run, options = OnnxRunner(model), ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    for feed in feeds * 4:
        made = run(feed)
        for name, wanted in zip(run.outputs, session.run(None, feed), strict=True):
            got = made[name] if isinstance(made[name], np.ndarray) else made[name].numpy()
            assert got.shape == wanted.shape
            if wanted.dtype.kind == "O":
                assert got.tolist() == wanted.tolist()
            else:
                np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert any(jit is not None and jit.traces for jit in run._kinds.values())
    return [node.op for node in run._host or ()], [node.op for node in run._cut.walked]


def test_numbers_of_words_go_into_the_trace() -> None:
    """One that the host has to know again is looked up before."""
    before, after = parts("""g (string[n] x, float[m] z) => (float[n] y) {
        i = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [3, 4], default_int64 = 3>(x)
        j = ai.onnx.ml.LabelEncoder<keys_int64s = [3, 4], values_int64s = [0, 2]>(i)
        e = Exp(z) y = Gather(e, j) }""", {"x": words("a", "b"), "z": X}, {"x": words("b", "?"), "z": X})
    assert (before, after) == (["LabelEncoder", "LabelEncoder"], [])


def test_numbers_of_words_may_be_all_that_a_model_gives() -> None:
    before, after = parts("""g (string[n] x) => (int64[n] y) {
        y = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [3, 4]>(x) }""",
                          {"x": words("a", "b", "?")})
    assert (before, after) == (["LabelEncoder"], [])


def test_a_shape_that_follows_from_how_many_words_there_are_belongs_to_its_trace() -> None:
    before, after = parts("""g (string[n] x, float[m] z) => (float[a, b] y, string[n] t) {
        rest = Constant<value = int64[1] {-1}>() n = Shape(x) shape = Concat<axis = 0>(n, rest)
        h = Neg(z) y = Reshape(h, shape) t = StringConcat(x, x) }""",
        {"x": words("a", "b"), "z": X}, {"x": words("a", "b", "c", "d"), "z": X})
    assert (sorted(before), after) == (["Shape", "StringConcat"], [])


def test_words_that_a_number_chooses_are_chosen_after_the_trace() -> None:
    before, after = parts("""g (string[n] x, float[n] z) => (string[n] y, float[n] w) {
        zero = Constant<value = float[1] {0.0}>() w = Neg(z) b = Less(w, zero)
        xx = StringConcat(x, x) y = Where(b, x, xx) }""",
        {"x": words("a", "b", "c", "d"), "z": X}, {"x": words("d", "c", "b", "a"), "z": -X})
    assert (before, after) == (["StringConcat"], ["Where"])


def test_a_branch_that_words_choose_is_run_after_the_trace() -> None:
    before, after = parts("""g (string[1] x, float[n] z) => (float[n] y) {
        e = Exp(z)
        is_a = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [1], default_int64 = 0>(x)
        b = Cast<to = 9>(is_a)
        y = If(b) <then_branch = t () => (float[n] p) { p = Neg(e) },
                   else_branch = f () => (float[n] q) { q = Sqrt(e) }> }""",
        {"x": words("a"), "z": X}, {"x": words("b"), "z": X})
    assert (before, after) == (["LabelEncoder"], ["If"])


def test_words_are_moved_by_the_host() -> None:
    before, after = parts("""g (string[n, 2] x) => (string[m] y, float[n] z) {
        zero, one = Split<axis = 1, num_outputs = 2>(x)
        rows = Transpose(x) both = Concat<axis = 1>(rows, rows)
        flat = Flatten<axis = 0>(both) axis = Constant<value = int64[1] {0}>() y = Squeeze(flat, axis)
        i = Constant<value = int64 {-1}>() last = Gather<axis = 1>(x, i)
        h = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_floats = [2.5]>(last) z = Neg(h) }""",
        {"x": words("a", "b", "c", "a").reshape(2, 2)}, {"x": words("a", "b").reshape(1, 2)})
    assert "Gather" in before and not after


def test_a_first_call_that_fails_does_not_spoil_those_after_it() -> None:
    """They were KeyErrors: the second call of a kind is traced, by what the first one read."""
    run = OnnxRunner(parser.parse_model(HEADER + """g (string[n] s, float[n] x) => (float[n] y) {
        z = Cast <to = 1> (s) y = Add(x, z) }"""))
    for _ in range(2):
        with pytest.raises(OnnxError, match="Cast of 'z': could not convert string to float: 'four'"):
            run(s=words("1", "2", "3", "four"), x=X)
    for _ in range(4):
        assert run(s=words("1", "2", "3", "4"), x=X)["y"].tolist() == [2, 0, 6, 0]


def test_a_first_call_that_fails_does_not_make_the_others_slow() -> None:
    """What it would have read is read by the next one: the values of a shape belong to the kind of a call."""
    run = OnnxRunner(parser.parse_model(HEADER + """g (float[n] x, int64[k] shape) => (y) {
        z = Neg(x) y = Reshape(z, shape) }"""))
    with pytest.raises(OnnxError, match="Reshape of 'y': cannot reshape"):
        run(x=X, shape=np.array([3]))
    for _ in range(4):
        assert run(x=X, shape=np.array([4]))["y"].tolist() == (-X).tolist()
    assert not run._reads_values
