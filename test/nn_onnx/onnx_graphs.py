"""Random ONNX graphs, whose values ONNX Runtime computes while they are built.

A `Builder` draws from a `random.Random`: Hypothesis gives one whose draws it shrinks, a seed one that
repeats. What an operator draws is in `onnx_operators.py`. Every node is run alone by ONNX Runtime as it is
added, so the sizes and magnitudes of all values are known, and operators get values of their domain. A value
is exact if no rounding is in it: only such are rounded, compared and sorted, where the smallest difference
would be large.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 23
MOST_ITEMS, LARGEST = 20_000, 50.0
SIZES = {"small": (1, 2, 3), "odd": (3, 5, 7), "wide": (2, 9, 16, 33)}
"""Sizes of axes, by what a shape is called."""
KINDS = {"f": ("float32", "float64", "float16"), "i": ("int64", "int32", "int8", "uint8"), "b": ("bool",)}


class NotComputed(Exception):
    """ONNX Runtime has no kernel for this node, or its result is not to be compared."""


@dataclass(frozen=True)
class Known:
    array: Array
    exact: bool


class Builder:
    """A graph that grows: operators take values of it with the chance `reuse`, else new ones."""

    def __init__(self, rng: Random, sizes: str = "odd", reuse: float = 0.0) -> None:
        self.rng, self.sizes, self.reuse = rng, SIZES[sizes], reuse
        self.types = {kind: rng.choice(names) if not reuse else names[0] for kind, names in KINDS.items()}
        self.values: dict[str, Known] = {}
        self.inputs: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.opset = OPSET

    # --- what operators take --------------------------------------------------------------------------------

    def shape(self, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.rng.choice(self.sizes) for _ in range(self.rng.randint(low, high)))

    def value(self, kinds: str = "f", rank: tuple[int, int] = (1, 4), shape: Sequence[int] | None = None,
              domain: tuple[float, float] = (-3, 3), exact: bool = False,
              where: Callable[[Array], bool] = lambda array: True) -> str:
        """A value of the graph whose items are within `domain`, or a new input."""
        kind = self.rng.choice(kinds)
        dtype = np.dtype(self.types[kind])

        def fits(known: Known) -> bool:
            a = known.array
            return (a.dtype == dtype and (known.exact or not exact)
                    and (rank[0] <= a.ndim <= rank[1] if shape is None else a.shape == tuple(shape))
                    and (kind == "b" or bool(domain[0] <= a.min() and a.max() <= domain[1])) and where(a))
        if self.rng.random() < self.reuse:
            fitting = [name for name, known in self.values.items() if fits(known)]
            if fitting:  # the latest more often: deep graphs, not wide ones
                return self.rng.choice(fitting[-4:] if self.rng.random() < 0.7 else fitting)
        for _ in range(100):
            array = self.array(self.shape(*rank) if shape is None else tuple(shape), dtype, domain)
            if where(array):
                return self.feed(array)
        raise NotComputed("no shape is as wanted")

    def array(self, shape: tuple[int, ...], dtype: Any, domain: tuple[float, float] = (-3, 3)) -> Array:
        numbers = np.random.default_rng(self.rng.getrandbits(32))
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return numbers.random(shape) < 0.5
        if dtype.kind in "iu":
            low = math.ceil(max(domain[0], np.iinfo(dtype).min))
            return numbers.integers(low, math.floor(domain[1]), shape, endpoint=True).astype(dtype)
        return np.clip(numbers.uniform(*domain, shape).astype(dtype), *domain)

    def feed(self, array: Array) -> str:
        """A new input, or a weight."""
        name = f"v{len(self.values)}"
        (self.weights if self.reuse and self.rng.random() < 0.3 else self.inputs)[name] = array
        self.values[name] = Known(array, True)
        return name

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        """A weight that shapes the result, of these numbers."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array, dtype)
        return name

    def weight(self, *shape: int, like: str | None = None, domain: tuple[float, float] = (-1, 1)) -> str:
        """A new float operand, of the type of a value."""
        return self.feed(self.array(shape, self.of(like).dtype if like else self.types["f"], domain))

    def of(self, name: str) -> Array:
        return self.weights[name] if name in self.weights else self.values[name].array

    def flip(self) -> bool:
        return self.rng.random() < 0.5

    def some(self, **attributes: Any) -> dict[str, Any]:
        """Some of these attributes: the others have their defaults."""
        return {name: value for name, value in attributes.items() if value is not None and self.flip()}

    def axis(self, name: str, low: int = 0) -> int:
        rank = self.of(name).ndim
        axis = self.rng.randint(low, rank - 1)
        return axis - rank if self.flip() else axis

    # --- what they give -------------------------------------------------------------------------------------

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, exact: bool = False, domain: str = "",
            skipped: Sequence[int] = (), **attributes: Any) -> list[str]:
        """Add a node. Raises NotComputed where ONNX Runtime does not run it, or its results are too large,
        not finite or of no items."""
        names = ["" if i in skipped else f"v{len(self.values) + i}" for i in range(outputs)]
        node = helper.make_node(op, list(inputs), names, domain=domain, **attributes)
        given = {name: self.of(name) for name in inputs if name}
        constants = {name: array for name, array in given.items() if name in self.weights}
        arrays = evaluate(model_of([node], {k: v for k, v in given.items() if k not in constants}, constants,
                                   {name: None for name in names if name}, self.opset), given)
        moved = exact and all(name in self.weights or self.values[name].exact for name in inputs if name)
        for array in arrays:
            floats = array.dtype.kind == "f"
            if not 0 < array.size <= MOST_ITEMS or (floats and not np.isfinite(array).all()):
                raise NotComputed(f"{op} gives {array.shape}")
            if self.reuse and array.dtype.kind != "b" and np.abs(array.astype(np.float64)).max() > LARGEST:
                raise NotComputed(f"{op} gives what is too large")
        for name, array in zip(filter(None, names), arrays, strict=True):
            self.values[name] = Known(array, moved or array.dtype.kind != "f")
        self.nodes.append(node)
        return [name for name in names if name]

    def model(self, every: bool = False) -> onnx.ModelProto:
        """The graph; its outputs are what no node takes, or `every` value that a node gives."""
        taken = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name]
        outputs = {name: self.values[name].array for name in made if every or name not in taken}
        return model_of(self.nodes, {k: v for k, v in self.inputs.items() if k in taken},
                        {k: v for k, v in self.weights.items() if k in taken}, outputs, self.opset)

    def given(self) -> dict[str, Array]:
        taken = {name for node in self.nodes for name in node.input}
        return {name: array for name, array in self.inputs.items() if name in taken}


def model_of(nodes: Sequence[onnx.NodeProto], inputs: dict[str, Array], weights: dict[str, Array],
             outputs: Mapping[str, Array | None], opset: int) -> onnx.ModelProto:
    def said(name: str, array: Array | None) -> onnx.ValueInfoProto:
        if array is None:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    graph = helper.make_graph(nodes, "random", [said(k, v) for k, v in inputs.items()],
                              [said(k, v) for k, v in outputs.items()],
                              [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])


def evaluate(model: onnx.ModelProto, given: dict[str, Array]) -> list[Array]:
    """What ONNX Runtime makes of a model. Raises NotComputed where it does not run it."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = {i.name for i in session.get_inputs()}
        return [np.asarray(a) for a in session.run(None, {k: v for k, v in given.items() if k in names})]
    except Exception as error:  # its exceptions have no class of their own
        if type(error).__module__.startswith("onnxruntime"):
            raise NotComputed(str(error)) from error
        raise


def check(made: Array, expected: Array, what: str) -> None:
    """Equal integers and booleans; floats within what sums in another order come to."""
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape), what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(made, expected, what)
        return
    scale = max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0)))
    tolerance = {2: 5e-3, 4: 2e-4, 8: 1e-6}[expected.dtype.itemsize]
    np.testing.assert_allclose(made.astype(np.float64), expected.astype(np.float64), rtol=0,
                               atol=tolerance * scale, err_msg=what)
