"""Maps of channels by constants, as one map each, or as none: `fold_channel_maps`.

A batch normalisation whose statistics are constants, and products and sums with constants of a number for
each channel, are x * scale + shift. One behind the other are one; behind a convolution that nothing else
reads they are in its weights, which are computed here, once. Comes in: a model's nodes that depend on its
inputs, and the constants that they use. Goes out: fewer nodes, more constants. Next: `runner.py`.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinygrad.frozen import frozen
from tinygrad.nn.onnx.model import Node
from tinygrad.nn.onnx.registry import Operator
from tinygrad.nn.onnx.values import Array, Value
from tinygrad.tensor import Tensor

SAME_RANK = frozenset((
    "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "ConvTranspose", "Dropout", "Elu",
    "Gelu", "HardSigmoid", "HardSwish", "Identity", "LRN", "LeakyRelu", "MaxPool", "Mish", "PRelu", "Pad",
    "Relu", "Selu", "Sigmoid", "Softmax", "Softplus", "Tanh"))
"""Operators whose result has as many axes as what they take first."""


def _mapped(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    behind = (1,) * (x.ndim - 2)
    return x * scale.reshape(-1, *behind) + shift.reshape(-1, *behind)


MAP = Operator("", "BatchNormalization", 1, _mapped, (Tensor, Tensor, Tensor), None, frozenset(), 3)


@frozen
class _Map:
    """x * scale + shift: a number for each channel, or one for all."""

    scale: Array
    shift: Array

    def fits(self, channels: int) -> bool:
        """Whether what has so many channels has no more after it."""
        return self.scale.size in (1, channels) and self.shift.size in (1, channels)

    def after(self, first: _Map) -> _Map:
        return _Map(first.scale * self.scale, first.shift * self.scale + self.shift)


def fold_channel_maps(nodes: Sequence[Node], known: Mapping[str, Value], ranks: Mapping[str, int],
                      kept: Iterable[str], read: Callable[[Value], Array],
                      ) -> tuple[list[Node], dict[str, Array]]:
    """(the nodes, constants that are new). `ranks` says how many axes inputs have, `kept` which values are
    wanted beside what nodes take; `read` gives the numbers of a constant."""
    return _Folding(known, dict(ranks), Counter([n for node in nodes for n in node.inputs] + list(kept)),
                    read).of(nodes)


class _Folding:
    def __init__(self, known: Mapping[str, Value], ranks: dict[str, int], uses: Counter[str],
                 read: Callable[[Value], Array]) -> None:
        self.known, self.ranks, self.uses, self.read = known, ranks, uses, read
        self.made: dict[str, Array] = {}
        self.by_output: dict[str, Node] = {}
        """nodes, in order, by their first result"""
        self.maps: dict[str, _Map] = {}
        """of nodes that are maps, by their result"""
        self.types: dict[str, Any] = {}

    def of(self, nodes: Sequence[Node]) -> tuple[list[Node], dict[str, Array]]:
        for node in nodes:
            found = self.map_of(node)
            if found is None or not self.put(node, *found):
                self.by_output[node.outputs[0] or node.outputs[-1]] = node
                self.note_rank(node)
        return [self.finished(node) for node in self.by_output.values()], self.made

    def constant(self, name: str) -> Array | None:
        """The numbers of a constant of floats."""
        if name in self.made:
            return self.made[name]
        value = self.known.get(name)
        if not isinstance(value, (Tensor, np.ndarray)):
            return None
        kind = value.dtype.numpy if isinstance(value, Tensor) else value.dtype
        return self.read(value) if kind in (np.float16, np.float32, np.float64) else None

    def note_rank(self, node: Node) -> None:
        weight = self.known.get(node.inputs[1]) if node.op in ("Conv", "ConvTranspose") else None
        if weight is not None:
            self.ranks[node.outputs[0]] = len(weight.shape)
        elif not node.domain and node.op in SAME_RANK and node.inputs[0] in self.ranks:
            self.ranks[node.outputs[0]] = self.ranks[node.inputs[0]]

    # --- which nodes are maps -------------------------------------------------------------------------------

    def map_of(self, node: Node) -> tuple[str, _Map] | None:
        """(what it maps, how)."""
        if node.domain or len([n for n in node.outputs if n]) != 1:
            return None
        if node.op == "BatchNormalization":
            return self.normalisation(node)
        if node.op in ("Add", "Sub", "Mul", "Div") and len(node.inputs) == 2 and node.version >= 7:
            return self.arithmetic(node)
        return None

    def normalisation(self, node: Node) -> tuple[str, _Map] | None:
        given = [self.constant(name) for name in node.inputs[1:5]]
        if node.version < 7 or node.attributes.get("training_mode") or not node.attributes.get("spatial", 1):
            return None
        if any(n is None or n.ndim != 1 for n in given) or len({n.size for n in given if n is not None}) > 1:
            return None
        scale, shift, mean, variance = (n.astype(np.float64) for n in given if n is not None)
        scale = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
        self.types[node.outputs[0]] = given[0].dtype if given[0] is not None else None
        return (node.inputs[0], _Map(scale, shift - mean * scale)) if np.isfinite(scale).all() else None

    def arithmetic(self, node: Node) -> tuple[str, _Map] | None:
        for x, other in (node.inputs, node.inputs[::-1]):
            numbers = self.channels(self.constant(other), self.ranks.get(x)) if x not in self.known else None
            if numbers is None or (x != node.inputs[0] and node.op in ("Sub", "Div")):
                continue
            if node.op in ("Add", "Sub"):
                return x, _Map(np.ones(1), numbers if node.op == "Add" else -numbers)
            if node.op == "Mul" or numbers.all():
                return x, _Map(numbers if node.op == "Mul" else 1 / numbers, np.zeros(1))
        return None

    def channels(self, array: Array | None, rank: int | None) -> Array | None:
        """A constant as a number for each channel of what has `rank` axes, or one for all."""
        if array is None or rank is None or rank < 3 or array.ndim > rank:
            return None
        at = rank - array.ndim
        if any(n != 1 for i, n in enumerate(array.shape) if i + at != 1):
            return None
        return array.reshape(-1).astype(np.float64)

    # --- where they go --------------------------------------------------------------------------------------

    def put(self, node: Node, x: str, found: _Map) -> bool:
        """Whether a map became part of what gives `x`, or a node of its own."""
        before = self.by_output.get(x) if self.uses[x] == 1 else None
        output = next(filter(None, node.outputs))
        if before is not None and x in self.maps and found.fits(self.maps[x].scale.size):
            return self.place(x, output, before, found.after(self.maps[x]))
        if before is not None and self.into_weights(before, x, output, found):
            return True
        if node.op != "BatchNormalization":  # arithmetic by itself stays as it is
            self.ranks[output] = self.ranks[x]
            return False
        return self.place(x, output, node, found)

    def place(self, x: str, output: str, node: Node, found: _Map) -> bool:
        """Let `node`, which gave `x` if it did, give what the map makes of it."""
        if node.outputs[0] == x:
            del self.by_output[x]
        self.types.setdefault(output, self.types.get(x))
        self.by_output[output] = replace(node, outputs=(output,))
        self.maps[output] = found
        self.maps.pop(x, None)
        rank = self.ranks.get(x)
        if rank is not None:
            self.ranks[output] = rank
        return True

    def into_weights(self, node: Node, x: str, output: str, found: _Map) -> bool:
        """Whether a convolution's weights have the map in them now."""
        if node.domain or node.op not in ("Conv", "ConvTranspose"):
            return False
        weight = self.constant(node.inputs[1])
        named = node.inputs[2] if len(node.inputs) > 2 else ""
        bias = self.constant(named) if named else None
        axis = 0 if node.op == "Conv" else 1
        if weight is None or (bias is None) != (not named) or (axis and node.attributes.get("group", 1) != 1):
            return False
        shape = [1] * weight.ndim
        shape[axis:axis + 1] = weight.shape[axis:axis + 1]
        fits = weight.ndim > 2 and found.fits(shape[axis])
        if not fits or (bias is not None and bias.shape != (shape[axis],)):
            return False
        scale = np.broadcast_to(found.scale, shape[axis])
        moved = (np.zeros(1) if bias is None else bias.astype(np.float64)) * scale + found.shift
        names = f"{output}.weight", f"{output}.bias"
        self.made[names[0]] = (weight * scale.reshape(shape).astype(weight.dtype)).astype(weight.dtype)
        self.made[names[1]] = np.broadcast_to(moved, shape[axis]).astype(weight.dtype)
        del self.by_output[x]
        for name in node.inputs[1:3]:
            self.made.pop(name, None)
        self.by_output[output] = replace(node, inputs=(node.inputs[0], *names), outputs=(output,))
        self.ranks[output] = weight.ndim
        return True

    def finished(self, node: Node) -> Node:
        """A node that is a map as a call of one: its numbers are constants."""
        found = self.maps.get(node.outputs[0])
        if found is None:
            return node
        output, names = node.outputs[0], (f"{node.outputs[0]}.scale", f"{node.outputs[0]}.shift")
        for name, numbers in zip(names, np.broadcast_arrays(found.scale, found.shift), strict=True):
            self.made[name] = numbers.astype(self.types[output])
        return replace(node, op="BatchNormalization", target=MAP, attributes={}, outputs=(output,),
                       inputs=(node.inputs[0], *names))
