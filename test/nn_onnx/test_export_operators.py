"""Sorting, gather, scatter, einsum and other methods, written as ONNX: they are the standard's operators,
with which ONNX Runtime and our own importer give what NumPy gives."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="exported models are run by ONNX Runtime")

import onnxruntime as ort

from tinygrad import nn
from tinygrad.nn.onnx import OnnxRunner, export
from tinygrad.tensor import Tensor

RNG = np.random.default_rng(0)
TYPES = pytest.mark.parametrize("dtype", [np.float32, np.int64])


def few(*shape: int, dtype: Any = np.float32) -> Any:
    """Numbers of which many are equal."""
    return RNG.integers(-3, 4, shape).astype(dtype)


def compared(function: Callable[..., Any], wanted: Callable[..., Any], *arrays: Any, axes: Any = None,
             others: Sequence[Sequence[Any]] = (), sizes: Any = None) -> Counter[str]:
    """How often each operator is in the export of a function, with which ONNX Runtime and we give what
    `wanted` gives of the arrays; with dynamic axes also of `others`."""
    model = export(function, [Tensor(a) for a in arrays], dynamic_axes=axes, sizes=sizes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    run = OnnxRunner(model)
    for inputs in (arrays, *others):
        expected = wanted(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        given = {f"x{i}": a for i, a in enumerate(inputs)}
        for found in (session.run(None, given), [y.numpy() for y in run(given).values()]):
            for got, want in zip(found, expected, strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        made = function(*[Tensor(a) for a in inputs])
        for output, tensor in zip(session.run(None, given), made if isinstance(made, tuple) else (made,),
                                  strict=True):
            assert output.dtype == tensor.dtype.numpy
    return Counter(node.op_type for node in model.graph.node if node.op_type not in ("Identity", "Cast"))


# --- order --------------------------------------------------------------------------------------------------


def places(x: Any, axis: int, descending: bool) -> Any:
    """NumPy's stable sort, in which equal items keep their order both ways."""
    return np.argsort(-x if descending else x, axis, kind="stable")


@TYPES
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_one_topk(dtype: Any, axis: int, descending: bool) -> None:
    x = few(5, 9, 4, dtype=dtype)

    def wanted(x: Any) -> Any:
        order = places(x, axis, descending)
        return np.take_along_axis(x, order, axis), order

    assert compared(lambda x: x.sort(axis, descending), wanted, x) == {"TopK": 1}
    assert compared(lambda x: x.argsort(axis, descending), lambda x: wanted(x)[1], x) == {"TopK": 1}


@TYPES
@pytest.mark.parametrize("axis, k, largest", [(0, 3, True), (1, 1, False), (-1, 4, True), (-2, 9, False)])
def test_topk_takes_the_first_of_equal_items(dtype: Any, axis: int, k: int, largest: bool) -> None:
    def wanted(x: Any) -> Any:
        order = np.take(places(x, axis, largest), np.arange(k), axis)
        return np.take_along_axis(x, order, axis), order

    assert compared(lambda x: x.topk(k, axis, largest), wanted, few(5, 9, 4, dtype=dtype)) == {"TopK": 1}


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.bool_, np.int8, np.uint8, np.int16, np.uint16,
                                   np.int32, np.uint32])
def test_all_types_are_sorted_by_one_topk(dtype: Any) -> None:
    x = RNG.integers(0, 200, (4, 20)).astype(dtype)

    def wanted(x: Any) -> Any:
        order = np.argsort(x, 1, kind="stable")
        return np.take_along_axis(x, order, 1), order

    assert compared(lambda x: x.sort(1), wanted, x) == {"TopK": 1}


def test_nan_counts_as_largest() -> None:
    x = np.array([[2, np.nan, 3, -np.inf, np.nan, np.inf]], np.float32)
    assert compared(lambda x: x.argsort(1), lambda x: np.argsort(x, 1, kind="stable"), x) == {"TopK": 1}


def test_numbers_that_topk_has_no_type_for_are_sorted_by_other_operators() -> None:
    x = np.array([3, 2**64 - 1, 2**63, 0], np.uint64)
    model = export(lambda x: x.sort()[0], Tensor(x))
    assert "TopK" not in {node.op_type for node in model.graph.node}
    assert OnnxRunner(model)(x0=x)["y0"].tolist() == [0, 3, 2**63, 2**64 - 1]


def test_what_is_sorted_may_have_any_length() -> None:
    def wanted(x: Any) -> Any:
        return np.sort(x, 1), np.argsort(-x, 1, kind="stable")[:, :2]

    assert compared(lambda x: (x.sort(1)[0], x.topk(2, 1)[1]), wanted, few(3, 6), sizes={"n": (2, 4096)},
                    axes={"x0": {0: "b", 1: "n"}}, others=[[few(1, 2)], [few(4, 1500)]]) == {
                        "TopK": 2, "Shape": 1}
    with pytest.raises(ValueError, match="whether 1 < n; give `sizes` for which that is always true"):
        export(lambda x: x.topk(2, 1)[1], Tensor(few(3, 6)), dynamic_axes={"x0": {1: "n"}})


# --- gather and scatter -------------------------------------------------------------------------------------


def indices(shape: tuple[int, ...], size: int, dtype: Any = np.int64) -> Any:
    return RNG.integers(-size, size, shape).astype(dtype)


@TYPES
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("index_dtype", [np.int64, np.int32, np.int8])
def test_gather_is_gather_elements(dtype: Any, axis: int, index_dtype: Any) -> None:
    x = few(4, 5, 6, dtype=dtype)
    index = indices((3, 5, 7) if axis % 3 == 2 else (4, 5, 6), x.shape[axis], index_dtype)

    def wanted(x: Any, index: Any) -> Any:
        part = x[tuple(slice(None) if i == axis % 3 else slice(n) for i, n in enumerate(index.shape))]
        return np.take_along_axis(part, index.astype(np.int64), axis)

    assert compared(lambda x, i: x.gather(axis, i), wanted, x, index) == {"GatherElements": 1}


def combined(x: Any, axis: int, index: Any, source: Any, reduction: str, include_self: bool = True) -> Any:
    """What scatter does, one item after the other."""
    made, total = x.copy(), np.zeros(x.shape, x.dtype)
    written: dict[tuple[int, ...], list[Any]] = {}
    for place in np.ndindex(index.shape):
        target = list(place)
        target[axis] = index[place] % x.shape[axis]
        written.setdefault(tuple(target), []).append(source[place])
    folds = {"last": lambda items: items[-1], "sum": sum, "prod": np.prod, "amax": max, "amin": min,
             "mean": lambda items: np.mean(items) if x.dtype.kind == "f" else sum(items) // len(items)}
    for target, items in written.items():
        keeps_own = include_self and reduction != "last"
        made[target] = folds[reduction]([*([x[target]] if keeps_own else []), *items])
    return made + total


@TYPES
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_is_scatter_elements(dtype: Any, axis: int) -> None:
    x, source = few(4, 6, dtype=dtype), few(3, 5, dtype=dtype)
    index = indices((3, 5), x.shape[axis])  # with equal ones, of which the last counts
    assert compared(lambda x, i, s: x.scatter(axis, i, s), lambda x, i, s: combined(x, axis, i, s, "last"),
                    x, index, source) == {"ScatterElements": 1}
    ops = compared(lambda x, i: x.scatter(axis, i, 2), lambda x, i: combined(
        x, axis, i, np.full(i.shape, 2, x.dtype), "last"), x, index)
    assert ops["ScatterElements"] == 1 and ops.keys() <= {"ScatterElements", "Expand"}  # of the number
    wide = few(4, 6, dtype=dtype)  # a source with more items than are taken
    assert compared(lambda x, i, s: x.scatter(axis, i, s, "add"), lambda x, i, s: combined(
        x, axis, i, s, "sum"), x, index, wide) == {"ScatterElements": 1, "Slice": 1}


@TYPES
@pytest.mark.parametrize("reduction", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("axis, include_self", [(0, True), (1, False), (-1, True), (-2, False)])
def test_scatter_reduce_is_scatter_elements(dtype: Any, reduction: str, axis: int,
                                            include_self: bool) -> None:
    x, source = few(4, 6, dtype=dtype), few(4, 5, dtype=dtype)
    ops = compared(lambda x, i, s: x.scatter_reduce(axis, i, s, reduction, include_self),
                   lambda x, i, s: combined(x, axis, i, s, reduction, include_self), x,
                   indices((3, 5), x.shape[axis]), source)
    assert ops["ScatterElements"] == 1 + (reduction == "mean") + (not include_self)
    assert not ops.keys() & {"Equal", "ReduceSum", "ReduceMax", "ReduceProd"}


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint8, np.int16, np.uint64])
@pytest.mark.parametrize("reduction", ["sum", "prod", "amax", "amin"])
def test_all_types_are_scattered(dtype: Any, reduction: str) -> None:
    x, source = (RNG.integers(0, 4, shape).astype(dtype) for shape in ((3, 4), (3, 2)))
    assert compared(lambda x, i, s: x.scatter_reduce(1, i, s, reduction),
                    lambda x, i, s: combined(x, 1, i, s, reduction), x, indices((3, 2), 4), source) == {
                        "ScatterElements": 1}


def test_gather_and_scatter_of_any_size() -> None:
    def function(x: Tensor, i: Tensor, s: Tensor) -> Any:
        return x.gather(1, i), x.scatter(1, i, s), x.scatter_reduce(1, i, s, "mean")

    def wanted(x: Any, i: Any, s: Any) -> Any:
        return np.take_along_axis(x, i, 1), combined(x, 1, i, s, "last"), combined(x, 1, i, s, "mean")

    def drawn(batch: int, size: int, count: int) -> list[Any]:
        return [few(batch, size), indices((batch, count), size), few(batch, count)]

    ops = compared(function, wanted, *drawn(2, 6, 3), others=[drawn(1, 1, 4), drawn(5, 9, 2)], axes={
        "x0": {0: "b", 1: "n"}, "x1": {0: "b", 1: "m"}, "x2": {0: "b", 1: "m"}})
    assert (ops["GatherElements"], ops["ScatterElements"]) == (1, 3)


@pytest.mark.parametrize("function, wanted, op", [
    (lambda x, i: x[i, i], lambda x, i: x[i, i], "GatherND"),
    (lambda x, i: x[:, i], lambda x, i: x[:, i], "Gather"),
    (lambda x, i: x[:, i, i[0]], lambda x, i: x[:, i, i[0]], "GatherND"),
    (lambda x, i: x[i, :, i], lambda x, i: x[i, :, i], "GatherND"),
    (lambda x, i: x[1:, None, 2, i], lambda x, i: x[1:][:, None, 2][:, :, i], "Gather"),
    (lambda x, i: x[..., i[0, 0]], lambda x, i: x[..., i[0, 0]], "Gather")])
def test_items_that_tensors_name_are_looked_up(function: Any, wanted: Any, op: str) -> None:
    ops = compared(function, wanted, few(4, 5, 6), indices((2, 3), 4))
    assert ops[op] == 1 and not ops.keys() & {"Equal", "ReduceSum", "Where"}


def test_items_that_are_written_to_are_scattered() -> None:
    def function(x: Tensor, i: Tensor, v: Tensor) -> Any:
        y = x * 2
        y[i] = v
        x[:, i] = 1  # an input, of which the file's input is what it was
        z = x + 1
        z[i, i] = v[0, :2]
        return x, y, z

    def wanted(x: Any, i: Any, v: Any) -> Any:
        x, y = x.copy(), x * 2
        y[i], x[:, i] = v, 1
        z = x + 1
        z[i, i] = v[0, :2]
        return x, y, z

    ops = compared(function, wanted, few(4, 4), np.array([2, -4]), few(2, 4))
    assert ops["ScatterND"] == 3 and not ops.keys() & {"Equal", "ReduceSum", "Where"}


def test_slices_that_are_written_to() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        y[0] = 1
        y[1:, 2] = x[1:, 0]
        y[:, :2] += 5
        return y

    compared(function, function, few(3, 4))


# --- products -----------------------------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("formula, shapes, wanted", [
    ("ij,jk->ik", [(3, 4), (4, 5)], {"MatMul": 1}),
    ("i,ij->j", [(3,), (3, 4)], {"MatMul": 1}),
    ("ij,j", [(3, 4), (4,)], {"MatMul": 1, "Reshape": 2}),
    ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)], {"MatMul": 1, "Transpose": 1}),
    ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)], {"MatMul": 1, "Transpose": 2}),
    ("bijk,jkl->bil", [(2, 3, 4, 5), (4, 5, 6)], {"MatMul": 1, "Reshape": 2}),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (6, 4, 5)], None),
    ("nm,om->no", [(1, 4), (5, 4)], None),
    ("abc,cde->abde", [(2, 3, 4), (4, 5, 6)], None),
    ("bac,bde,cf->fad", [(2, 3, 4), (2, 5, 3), (4, 6)], None),
    ("ij,kl->il", [(3, 4), (5, 6)], None),
    ("ij,k->", [(3, 4), (5,)], None),
    ("iij,jk->ki", [(3, 3, 4), (4, 5)], None),
])
def test_einsum_is_products_of_matrices(dtype: Any, formula: str, shapes: Any, wanted: Any) -> None:
    arrays = [few(*shape, dtype=dtype) for shape in shapes]
    ops = compared(lambda *xs: Tensor.einsum(formula, *xs), lambda *xs: np.einsum(formula, *xs), *arrays)
    assert ops == wanted or wanted is None
    model = export(lambda *xs: Tensor.einsum(formula, *xs), [Tensor(a) for a in arrays])
    limit = max(a.size for a in arrays)
    assert "Expand" not in ops and all(
        np.prod([d.dim_value for d in value.type.tensor_type.shape.dim]) <= max(
            limit, np.einsum(formula, *arrays).size) for value in _values(model))


def _values(model: Any) -> Any:
    """The values of a model whose shapes are inferred, products item by item among them."""
    import onnx

    return onnx.shape_inference.infer_shapes(model).graph.value_info


def test_einsum_repeats_nothing_where_it_multiplies_item_by_item() -> None:
    ops = compared(lambda x, y: Tensor.einsum("bi,bi->b", x, y), lambda x, y: (x * y).sum(1), few(3, 4),
                   few(3, 4))
    assert ops == {"Mul": 1, "ReduceSum": 1, "Reshape": 1}
    ops = compared(lambda x, y: Tensor.einsum("bij,bik->b", x, y), lambda x, y: np.einsum("bij,bik->b", x, y),
                   few(3, 4, 5), few(3, 4, 6))
    assert ops["ReduceSum"] == 3 and "Expand" not in ops
    assert compared(lambda x, y: Tensor.einsum("i,j->ij", x, y), np.outer, few(3), few(4)).keys() == {
        "Mul", "Reshape"}


def test_einsum_of_halves_is_rounded_once() -> None:
    x, y = np.full((2, 3000), 100, np.float16), np.full((2, 4), 1 / 4096, np.float16)
    for formula in ("bi,bj->b", "bi,bj->bj"):  # sums of 300,000, which no half is
        def wanted(x: Any, y: Any, formula: str = formula) -> Any:
            return np.einsum(formula, x.astype(np.float64), y.astype(np.float64)).astype(np.float16)

        ops = compared(lambda x, y, formula=formula: Tensor.einsum(formula, x, y), wanted, x, y)
        assert "Expand" not in ops


def test_einsum_of_weights_and_of_any_size() -> None:
    weight = few(7, 5)

    def wanted(x: Any) -> Any:
        return np.einsum("bsi,oi->bso", x, weight)

    assert compared(lambda x: Tensor.einsum("bsi,oi->bso", x, Tensor(weight)), wanted, few(2, 3, 5)) == {
        "MatMul": 1}
    ops = compared(lambda x, y: Tensor.einsum("bqhd,bkhd->bhqk", x, y), lambda x, y: np.einsum(
        "bqhd,bkhd->bhqk", x, y), few(2, 3, 4, 5), few(2, 6, 4, 5), others=[
            [few(1, 4, 4, 5), few(1, 2, 4, 5)]], axes={"x0": {0: "b", 1: "q"}, "x1": {0: "b", 1: "k"}})
    assert ops == {"MatMul": 1, "Transpose": 2}


@pytest.mark.parametrize("kinds", [(np.int64, np.int64), (np.int8, np.int8), (np.uint8, np.int16),
                                   (np.int32, np.float32), (np.float32, np.float64)])
def test_products_of_all_types_are_products_of_matrices(kinds: Any) -> None:
    x, y = few(3, 40, dtype=kinds[0]), few(40, 5, dtype=kinds[1])
    ops = compared(lambda x, y: (x @ y, x.linear(y, y[0]), y.matmul(x, reverse=True)),
                   lambda x, y: ((x @ y), x @ y + y[0], x @ y), x, y)
    assert ops["MatMul"] == 1 and not ops.keys() & {"Expand", "Mul", "ReduceSum"}


def test_a_product_with_an_array_and_one_of_another_type() -> None:
    weight = few(4, 5)
    ops = compared(lambda x: x @ weight, lambda x: x @ weight, few(3, 4))
    assert ops == {"MatMul": 1}
    x = (few(3, 500) / 3).astype(np.float16)
    ops = compared(lambda x: x.dot(x.transpose(), dtype="float32"), lambda x: x.astype(np.float32) @ x.astype(
        np.float32).T, x)
    assert ops == {"MatMul": 1, "Transpose": 1}


# --- what goes around operators -----------------------------------------------------------------------------


def test_numbers_and_rows_are_not_repeated_before_they_are_added() -> None:
    bias = few(6)
    ops = compared(lambda x, row: (x * 3 + Tensor(bias)) / row - x.mean(1, keepdim=True).maximum(0),
                   lambda x, row: (x * 3 + bias) / row - np.maximum(x.mean(1, keepdims=True), 0), few(4, 6),
                   np.full((4, 1), 2, np.float32))
    assert "Expand" not in ops and "Reshape" not in ops


def test_tensors_joined_in_a_list_and_of_several_types() -> None:
    ops = compared(lambda x, y: (Tensor.cat([x, x], 0), x.cat(y, dim=-1), Tensor.stack([x, x * 2], dim=1)),
                   lambda x, y: (np.concatenate([x, x]), np.concatenate([x, y], -1), np.stack([x, x * 2], 1)),
                   few(2, 3), few(2, 4, dtype=np.int32))
    assert ops["Concat"] == 3 and "Pad" not in ops


def test_values_have_no_names_of_inputs() -> None:
    names = {"v0": Tensor(few(2, 3)), "c0": Tensor(few(3))}
    for outputs in (["c1"], ["v1"]):
        model = export(lambda v0, c0: v0.softmax() * 3 + c0.exp() * 5, names, output_names=outputs)
        given = {name: x.numpy() for name, x in names.items()}
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        e = np.exp(given["v0"])
        np.testing.assert_allclose(session.run(None, given)[0], e / e.sum(1, keepdims=True) * 3 + np.exp(
            given["c0"]) * 5, rtol=1e-5)
    with pytest.raises(ValueError, match="inputs and results need different names, got 'x', 'x'"):
        export(lambda x: x + 1, {"x": Tensor(few(2))}, output_names=["x"])


def test_a_mixture_of_experts_is_topk_and_look_ups() -> None:
    gate, experts = nn.Linear(8, 4, bias=False), Tensor(few(4, 8, 8) / 4)

    def function(x: Tensor) -> Tensor:
        best, chosen = gate(x).topk(2)
        return (Tensor.einsum("bi,bkio->bko", x, experts[chosen]) * best.softmax().unsqueeze(-1)).sum(1)

    def wanted(x: Any) -> Any:
        scores = x @ gate.weight.numpy().T
        chosen = np.argsort(-scores, 1, kind="stable")[:, :2]
        best = np.exp(np.take_along_axis(scores, chosen, 1))
        rows = np.einsum("bi,bkio->bko", x, experts.numpy()[chosen])
        return (rows * (best / best.sum(1, keepdims=True))[:, :, None]).sum(1)

    ops = compared(function, wanted, RNG.standard_normal((3, 8)).astype(np.float32))
    assert {"TopK": 1, "Gather": 1, "MatMul": 2, "Softmax": 1}.items() <= ops.items() and "Expand" not in ops


# --- arithmetic ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_integers_are_shifted(dtype: Any) -> None:
    x = np.array([7, -9, 1 << 20, -1, 0, -(1 << 30)]).astype(dtype)
    places = np.array([0, 1, 3, 5, 7, 2], dtype)
    compared(lambda x, n: (x << 2, x >> 1, x << n, x >> n), lambda x, n: (x << 2, x >> 1, x << n, x >> n),
             x, places)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integers_are_shifted_by_all_their_bits(dtype: Any) -> None:
    x = np.array([7, -9, -1, 0, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    places = np.full(6, np.iinfo(dtype).bits - 1, dtype)
    compared(lambda x, n: (x >> int(places[0]), x >> n, x << n), lambda x, n: (x >> n, x >> n, x << n), x,
             places)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_integers_divided_by_zero_are_zero(dtype: Any) -> None:
    x, y = np.array([7, 9, 0, 100, 5]).astype(dtype), np.array([2, 0, 0, 7, 0]).astype(dtype)

    def wanted(x: Any, y: Any) -> Any:
        with np.errstate(divide="ignore"):
            return x // y, x % y
    ops = compared(lambda x, y: (x // y, x % y), wanted, x, y)
    assert ops["Equal"] and compared(lambda x: (x // 3, x % 3), lambda x: (x // 3, x % 3), x)["Equal"] == 0


def test_powers_of_tensors_are_one_operator() -> None:
    x, y = np.array([0.5, 2, 3, 0], np.float32), np.array([2, -1.5, 0, 3], np.float32)
    assert compared(lambda x, y: x ** y, np.power, x, y) == {"Pow": 1}
    assert compared(lambda x: x ** 0.75, lambda x: np.power(x, np.float32(0.75)), x) == {"Pow": 1}
    assert compared(lambda y: 2 ** y, lambda y: np.float32(2) ** y, y) == {"Pow": 1}


@pytest.mark.parametrize("function, wanted", [
    (lambda x, y: x.copysign(y), np.copysign), (lambda x, y: x // y, lambda x, y: x // y),
    (lambda x, y: x.median(), lambda x, y: np.median(x)),
    (lambda x, y: x.bitcast("int32" if x.dtype.itemsize == 4 else "int64"),
     lambda x, y: x.view(np.int32 if x.itemsize == 4 else np.int64))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_made_of_the_bits_of_floats(function: Any, wanted: Any, dtype: Any) -> None:
    x, y = np.array([1.5, -3, 40, -0.25, 7], dtype), np.array([-2, 0.5, -0.75, 3, 0.125], dtype)
    compared(function, lambda x, y: np.asarray(wanted(x, y)), x, y)


def test_rests_of_doubles_are_those_of_the_number_given() -> None:
    x = np.array([1e6, 2.5, -7.3])  # 0.1 as a float32 leaves other rests
    compared(lambda x: (x % 0.1, x.fmod(0.1)), lambda x: (x % 0.1, np.fmod(x, 0.1)), x)


@pytest.mark.parametrize("name", ["atan", "asinh", "sinh", "erf", "celu", "elu", "leaky_relu", "mish",
                                  "softplus", "hardsigmoid", "selu"])
def test_functions_of_doubles(name: str) -> None:
    x = np.array([-2.5, -0.75, 0, 0.5, 3])
    compared(lambda x: getattr(x, name)(), lambda x: getattr(Tensor(x), name)().numpy(), x)


def test_a_function_that_the_standard_has_of_float32_alone() -> None:
    x = np.array([-2.5, -0.75, 0, 0.5, 3], np.float16)
    ops = compared(lambda x: x.celu(), lambda x: Tensor(x).celu().numpy(), x)
    assert "Celu" not in ops and compared(lambda x: x.celu(), lambda x: Tensor(x).celu().numpy(),
                                          x.astype(np.float32)) == {"Celu": 1}


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64])
def test_items_of_all_types_are_chosen(dtype: Any) -> None:
    x, y = (RNG.integers(0, 2 if dtype is np.bool_ else 9, (3, 4)).astype(dtype) for _ in range(2))
    compared(lambda x, y: (x.maximum(y), (x < y).where(x, y), x.pad(((1, 0), (0, 2)))),
             lambda x, y: (np.maximum(x, y), np.where(x < y, x, y), np.pad(x, ((1, 0), (0, 2)))), x, y)
    if dtype is not np.bool_:
        compared(lambda x: (x.argmax(1), x.argmin(0)), lambda x: (x.argmax(1), x.argmin(0)), x)


def test_items_beyond_the_largest_int64_are_chosen() -> None:
    x, y = np.array([3, 2**64 - 1, 2**63, 0], np.uint64), np.array([2**63 + 1, 5, 7, 2**64 - 2], np.uint64)
    compared(lambda x, y: (x < y).where(x, y), lambda x, y: np.minimum(x, y), x, y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_integers_of_all_types_are_reduced(name: str, dtype: Any) -> None:
    def function(x: Tensor) -> Tensor:
        made: Tensor = getattr(x, name)(1)
        return made
    x = np.array([[3, 100, 7], [120, 5, 1]], dtype)
    compared(function, lambda x: getattr(np, name)(x, 1).astype(function(Tensor(x)).dtype.numpy), x)


# --- parts of tensors, types and sizes that operators of the standard do not take ---------------------------


def test_parts_that_are_written_are_in_the_file() -> None:
    x, row, part = few(3, 4), few(4) + 9, few(3, 2) + 9

    def selected(a: Any, b: Any) -> Any:
        made = a.copy()
        made[2] = b
        return made

    def sliced(a: Any, b: Any) -> Any:
        made = a.copy()
        made[:, 1:3] = b
        return made
    compared(lambda a, b: a.select_scatter(b, 0, 2), selected, x, row)
    compared(lambda a, b: a.slice_scatter(b, 1, 1, 3), sliced, x, part)


def test_writing_an_input_to_memory_that_depends_on_none_is_an_error() -> None:
    """It was left out of the file."""
    def write(x: Tensor) -> Tensor:
        made = Tensor.zeros(5).contiguous()
        made[1:3] = x
        return made + 1
    with pytest.raises(ValueError, match="stores values of its inputs"):
        export(write, Tensor([1.0, 2.0]))


@pytest.mark.parametrize("name, call", {
    "flat": lambda x: x.reshape(3, 0).T + 1, "stacked": lambda x: x.stack(x, dim=1),
    "summed": lambda x: x.reshape(0, 3, 1).sum(0), "repeated": lambda x: x.repeat(2, 1),
    "least": lambda x: x.unsqueeze(1).minimum(x)}.items())
def test_no_items_are_reshaped(name: str, call: Any) -> None:
    x = np.zeros((0, 3), np.float32)
    compared(call, lambda a: call(Tensor(a)).numpy(), x)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "gelu", "erf", "layernorm", "elu", "softplus",
                                  "selu", "sigmoid", "celu", "asinh", "hardsigmoid"])
def test_functions_of_real_numbers_take_integers(name: str, dtype: Any) -> None:
    x = np.abs(few(3, 4)).astype(dtype)
    compared(lambda a: getattr(a, name)(), lambda a: getattr(Tensor(a.astype(np.float32)), name)().numpy(), x)


def test_convolutions_of_integers_and_negative_bytes() -> None:
    torch = pytest.importorskip("torch")
    x, w = few(1, 2, 4, 4, dtype=np.int64), few(2, 3, 2, 2, dtype=np.int64)
    compared(lambda a, b: a.conv_transpose2d(b), lambda a, b: torch.conv_transpose2d(
        torch.tensor(a), torch.tensor(b)).numpy(), x, w)
    compared(lambda a: -a, lambda a: -a, np.array([0, 1, 200], np.uint8))
    halves, w = few(1, 2, 4, 4, dtype=np.float16), few(3, 2, 2, 2, dtype=np.int32)
    compared(lambda a, b: a.conv2d(b), lambda a, b: torch.conv2d(
        torch.tensor(a).float(), torch.tensor(b).float()).half().numpy(), halves, w)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_remainders_of_floats(dtype: Any) -> None:
    x = np.array([7.5, -7.5, 0.25, -1e4, 0, 6], dtype)
    y = np.array([2, 3, -0.75, 0.75, -3, -2], dtype)
    assert compared(lambda a, b: a % b, np.mod, x, y)["Mod"] == 1
    assert compared(lambda a, b: a.fmod(b), np.fmod, x, y) == {"Mod": 1}
    compared(lambda a: a % 0.75, lambda a: np.mod(a, dtype(0.75)), x)
    compared(lambda a: 7 % (a + 10), lambda a: np.mod(dtype(7), a + dtype(10)), x)
