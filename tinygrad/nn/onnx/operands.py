"""What is wrong with the operands of a model's nodes, as far as its file says: inputs and attributes that are
not there, and types that the standard does not allow.

Types follow from those of inputs and constants, node by node, by the standard's own table. Where that leaves
the type of a result to attributes or to the graph of a branch, nothing is said of what uses it.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tinygrad.nn.onnx.model import Graph, Node, inner_graphs
from tinygrad.nn.onnx.registry import (
    Operator,
    allowed_kinds,
    attribute_kinds,
    check_types,
    family,
    input_name,
    result_types,
    type_parameters,
)

Types: TypeAlias = Mapping[str, np.dtype[Any]]

RECURRENT = ("forward", "reverse", "bidirectional")
CHOICES: dict[str, Mapping[str, tuple[str, ...]]] = {
    "aggregate_function": {"TreeEnsembleRegressor": ("AVERAGE", "SUM", "MIN", "MAX")},
    "approximate": {"Gelu": ("none", "tanh")},
    "auto_pad": dict.fromkeys(
        ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "AveragePool", "MaxPool", "LpPool"),
        ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")),
    "case_change_action": {"StringNormalizer": ("NONE", "LOWER", "UPPER")},
    "coordinate_transformation_mode": {
        "Resize": ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
                   "tf_half_pixel_for_nn", "tf_crop_and_resize"),
        "RoiAlign": ("half_pixel", "output_half_pixel")},
    "direction": {"BitShift": ("LEFT", "RIGHT"), **dict.fromkeys(("RNN", "GRU", "LSTM"), RECURRENT)},
    "keep_aspect_ratio_policy": {"Resize": ("stretch", "not_larger", "not_smaller")},
    "kernel_type": dict.fromkeys(("SVMClassifier", "SVMRegressor"), ("LINEAR", "POLY", "RBF", "SIGMOID")),
    "mode": {"DepthToSpace": ("DCR", "CRD"),
             "GridSample": ("bilinear", "linear", "nearest", "bicubic", "cubic"),
             "Pad": ("constant", "reflect", "edge", "wrap"), "Resize": ("nearest", "linear", "cubic"),
             "RoiAlign": ("avg", "max"), "TensorScatter": ("linear", "circular"),
             "TfIdfVectorizer": ("TF", "IDF", "TFIDF"), "Upsample": ("nearest", "linear", "bilinear")},
    "nearest_mode": {"Resize": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")},
    "norm": {"Normalizer": ("MAX", "L1", "L2")},
    "padding_mode": {"GridSample": ("zeros", "border", "reflection")},
    "reduction": {**dict.fromkeys(("ScatterElements", "ScatterND"), ("none", "add", "mul", "max", "min")),
                  **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"),
                                  ("none", "sum", "mean"))},
}
"""What the standard has for attributes that are one of a few words, by attribute and operator."""


def wrong_nodes(graph: Graph, around: Types, known: dict[Any, list[str]]) -> list[str]:
    """The nodes of a graph and of those in it that cannot run, each with the reason; `around` has the types
    of values that are not its own, `known` what was said of functions for inputs of some types."""
    types = {**around, **{name: array.dtype for name, array in graph.constants.items()},
             **{name: said.dtype for name, said in graph.inputs.items() if said.dtype is not None}}
    wrong: dict[str, None] = {}
    for node in graph.nodes:
        given = [types.get(name) if name else None for name in node.inputs]
        reason = _what_is_missing(node) or _attribute_that_is_wrong(node) or \
            _what_is_of_a_wrong_type(node, given)
        if reason:
            wrong[f"{node}: {reason}"] = None
        for inner in inner_graphs(node.attributes):
            wrong.update(dict.fromkeys(wrong_nodes(inner, types, known)))
        if isinstance(node.target, Graph):
            key = id(node.target), tuple(given)
            if key not in known:
                known[key] = wrong_nodes(node.target, {name: kind for name, kind in zip(
                    node.target.inputs, given, strict=False) if kind is not None}, known)
            wrong.update(dict.fromkeys(known[key]))
        types.update(_types_of_results(node, given))
    return list(wrong)


def _what_is_missing(node: Node) -> str:
    if not isinstance(node.target, Operator):
        return ""
    if len(node.inputs) < node.target.required:
        return f"takes {node.target.required} inputs, got {len(node.inputs)}"
    empty = [i for i, name in enumerate(node.inputs) if not name and i in node.target.present]
    if empty:
        return f"has no {input_name(node.domain, node.op, node.version, empty[0])}"
    absent = sorted(node.target.needed - node.attributes.keys())
    return f"has no {', '.join(map(repr, absent))}" if absent else ""


def _attribute_that_is_wrong(node: Node) -> str:
    """An attribute that has another type than the standard says, or a word that is none of those it has."""
    if isinstance(node.target, Graph):
        return ""
    kinds = attribute_kinds(node.domain, node.op, node.version)
    for proto in node.proto.attribute:
        said = kinds.get(proto.name)
        if said is not None and proto.type != said[0]:
            return f"takes {said[1]} as {proto.name!r}"
        value, words = node.attributes[proto.name], CHOICES.get(proto.name, {}).get(node.op, ())
        if words and isinstance(value, str) and value not in words:
            listed = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
            return f"takes {listed} as {proto.name!r}, got {value!r}"
    return ""


def _what_is_of_a_wrong_type(node: Node, given: list[np.dtype[Any] | None]) -> str:
    if isinstance(node.target, Graph):
        return ""
    key = node.domain, node.op, node.version
    parameters, allowed = type_parameters(*key), allowed_kinds(*key)
    for i, kind in enumerate(given if parameters else ()):
        if kind is not None and family(kind.name) not in allowed[min(i, len(parameters) - 1)]:
            return f"takes no {kind.name} as {input_name(*key, i)}"
    try:
        check_types(given, parameters)
    except TypeError as error:
        return str(error)
    return ""


def _types_of_results(node: Node, given: list[np.dtype[Any] | None]) -> dict[str, np.dtype[Any]]:
    if node.op == "Constant" and not node.domain and isinstance(node.attributes.get("value"), np.ndarray):
        return {node.outputs[0]: node.attributes["value"].dtype}
    said = () if isinstance(node.target, Graph) else result_types(node.domain, node.op, node.version)
    kinds = [(given[kind] if kind < len(given) else None) if isinstance(kind, int) else kind for kind in said]
    return {name: kind for name, kind in zip(node.outputs, kinds, strict=False) if name and kind is not None}
