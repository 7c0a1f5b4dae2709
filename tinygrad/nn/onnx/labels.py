"""Classifiers that name their labels, as ones that number them: the names follow in a node of their own.

Names are strings, which only the host can look up; what finds the numbers is traced so. Next: `cut.py`, which
cuts before the names.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tinygrad.nn.onnx.model import Node
from tinygrad.nn.onnx.ops.ml import MACHINE_LEARNING
from tinygrad.nn.onnx.registry import find

NUMBERS = {"LinearClassifier": "classlabels_ints", "SVMClassifier": "classlabels_ints",
           "TreeEnsembleClassifier": "classlabels_int64s"}
"""The attribute that has labels which are numbers, by classifier."""


def with_numbered_labels(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, with one more behind each classifier of named labels."""
    for node in nodes:
        names = node.attributes.get("classlabels_strings")
        label = node.outputs[0] if node.outputs else ""
        if node.domain != MACHINE_LEARNING or node.op not in NUMBERS or not names or not label:
            yield node
            continue
        numbers, number = tuple(range(len(names))), f"{label} as a number"
        others = {k: v for k, v in node.attributes.items() if k != "classlabels_strings"}
        yield replace(node, outputs=(number, *node.outputs[1:]),
                      attributes={**others, NUMBERS[node.op]: numbers})
        yield Node(MACHINE_LEARNING, "LabelEncoder", node.name, (number,), (label,),
                   {"keys_int64s": numbers, "values_strings": names}, node.version,
                   find(MACHINE_LEARNING, "LabelEncoder", node.version))
