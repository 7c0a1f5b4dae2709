"""Ensembles of decision trees (ai.onnx.ml): all rows and all trees go down one level at a time."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.nn.onnx.ops.ml import MACHINE_LEARNING, labelled, labelled_by_one, transformed
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import Array, Value
from tinygrad.tensor import Tensor

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER",
         "LEAF")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@frozen
class Forest:
    """Nodes of all trees in a row: what each compares, where it leads, and (of leaves) what it votes."""

    roots: Array
    features: Array
    thresholds: Array
    modes: Array
    """positions in MODES"""
    if_true: Array
    if_false: Array
    """a leaf leads to itself"""
    missing_true: Array
    votes: Array
    """(nodes, targets); NaN where a node says nothing of a target"""
    members: Array
    """(nodes, most members), filled up with NaN"""

    def depth(self) -> int:
        """The most steps from a root to a leaf."""
        level, steps = {int(r) for r in self.roots}, 0
        while True:
            inner = {n for n in level if self.modes[n] != MODES.index("LEAF")}
            if not inner:
                return steps
            level = {int(child[n]) for n in inner for child in (self.if_true, self.if_false)}
            steps += 1
            if steps > len(self.modes):
                raise ValueError("a tree has a cycle")

    def leaves(self, x: Tensor) -> Tensor:
        """(rows, trees): the leaf that each row comes to in each tree."""
        def table(array: Array, dtype: Any = None) -> Tensor:
            return Tensor(array, x.device, dtype=dtype, requires_grad=False)

        features, thresholds = table(self.features), table(self.thresholds, x.dtype)
        if_true, if_false, modes = table(self.if_true), table(self.if_false), table(self.modes)
        missing = table(self.missing_true.astype(bool))
        at = table(self.roots).reshape(1, -1).expand(x.shape[0], len(self.roots))
        for _ in range(self.depth()):
            value, threshold, mode = x.gather(1, features[at]), thresholds[at], modes[at]
            holds = self._compared(value, threshold, mode, at, x)
            holds = holds | (value.isnan() & missing[at])
            # a value by itself: else a level takes as long to compile as all levels that it follows from
            at = holds.where(if_true[at], if_false[at]).contiguous()
        return at

    def _compared(self, value: Tensor, threshold: Tensor, mode: Tensor, at: Tensor, x: Tensor) -> Tensor:
        compared = [value <= threshold, value < threshold, value >= threshold, value > threshold,
                    value == threshold, value != threshold]
        if self.members.shape[1]:
            members = Tensor(self.members, x.device, dtype=x.dtype, requires_grad=False)
            compared.append((members[at] == value.unsqueeze(-1)).any(-1))
        used = sorted({int(m) for m in self.modes} - {MODES.index("LEAF")})
        holds = compared[used[0]] if used else value != value
        for m in used[1:]:
            holds = (mode == m).where(compared[m], holds)
        return holds

    def scores(self, x: Tensor, aggregate: str) -> Tensor:
        """(rows, targets): the votes of the leaves, taken together."""
        at = self.leaves(x)
        nothing = {"MIN": math.inf, "MAX": -math.inf}.get(aggregate, 0.0)
        filled = np.where(np.isnan(self.votes), nothing, self.votes)
        votes = Tensor(filled, x.device, dtype=x.dtype, requires_grad=False)[at]
        if aggregate == "MIN":
            return votes.min(1)
        if aggregate == "MAX":
            return votes.max(1)
        total = votes.sum(1)
        return total / len(self.roots) if aggregate == "AVERAGE" else total


class ForestAttributes(TypedDict, total=False):
    """A forest as versions before 5 describe it: nodes by the numbers of their tree and in it."""

    nodes_treeids: Required[Any]
    nodes_nodeids: Required[Any]
    nodes_featureids: Required[Any]
    nodes_modes: Required[Any]
    nodes_truenodeids: Required[Any]
    nodes_falsenodeids: Required[Any]
    nodes_values: Any
    nodes_values_as_tensor: Array
    nodes_missing_value_tracks_true: Any
    nodes_hitrates: Any
    nodes_hitrates_as_tensor: Array
    base_values: Any
    base_values_as_tensor: Array


def _forest(nodes: ForestAttributes, voters: Sequence[tuple[int, int]], targets: Any, weights: Any,
            count: int) -> Forest:
    """The forest of which `voters` have these `weights` for `targets`, of which there are `count`."""
    treeids = nodes["nodes_treeids"]
    place = {key: i for i, key in enumerate(zip(treeids, nodes["nodes_nodeids"], strict=True))}
    kinds = [MODES.index(m) for m in nodes["nodes_modes"]]
    leaf = MODES.index("LEAF")

    def children(ids: Any) -> Array:
        return np.array([i if kinds[i] == leaf else place[treeids[i], ids[i]] for i in range(len(kinds))],
                        np.int32)

    votes = np.full((len(kinds), count), np.nan)
    for key, target, weight in zip(voters, targets, weights, strict=True):
        votes[place[key], target] = np.nan_to_num(votes[place[key], target]) + weight
    if_true, if_false = children(nodes["nodes_truenodeids"]), children(nodes["nodes_falsenodeids"])
    first = [place[key] for key in {tree: (tree, node) for tree, node in reversed(list(place))}.values()]
    led_to = {int(n) for ids in (if_true, if_false) for i, n in enumerate(ids) if n != i}
    roots = sorted(i for i in first if i not in led_to)
    values = _values_of(nodes.get("nodes_values"), nodes.get("nodes_values_as_tensor"))
    missing = nodes.get("nodes_missing_value_tracks_true") or [0] * len(kinds)
    return Forest(np.array(roots, np.int32), np.array(nodes["nodes_featureids"], np.int32),
                  np.array(values, np.float64), np.array(kinds, np.int32), if_true, if_false,
                  np.array(missing), votes, np.zeros((len(kinds), 0)))


def _values_of(floats: Any, doubles: Array | None) -> Any:
    return doubles.tolist() if doubles is not None and doubles.size else list(floats or ())


def _from_base(scores: Tensor, nodes: ForestAttributes, kept: int | None = None) -> Tensor:
    """Scores and the values that they start from, of which the last `kept` count."""
    base = _values_of(nodes.get("base_values"), nodes.get("base_values_as_tensor"))
    if not base:
        return scores
    return scores + Tensor(base if kept is None else base[-kept:], scores.device, dtype=scores.dtype,
                           requires_grad=False)


@op(domain=MACHINE_LEARNING)
def TreeEnsembleRegressor(
        X: Tensor, *, target_treeids: Any, target_nodeids: Any, target_ids: Any, n_targets: int = 1,
        target_weights: Any = None, target_weights_as_tensor: Array | None = None,
        aggregate_function: str = "SUM", post_transform: str = "NONE",
        **nodes: Unpack[ForestAttributes]) -> Tensor:
    forest = _forest(nodes, list(zip(target_treeids, target_nodeids, strict=True)), target_ids,
                     _values_of(target_weights, target_weights_as_tensor), n_targets)
    return transformed(_from_base(forest.scores(_floats(X), aggregate_function), nodes), post_transform)


@op(domain=MACHINE_LEARNING)
def TreeEnsembleClassifier(
        X: Tensor, *, class_treeids: Any, class_nodeids: Any, class_ids: Any, class_weights: Any = None,
        class_weights_as_tensor: Array | None = None, classlabels_int64s: Any = None,
        classlabels_strings: Any = None, post_transform: str = "NONE",
        **nodes: Unpack[ForestAttributes]) -> tuple[Value, Tensor]:
    labels = list(classlabels_strings or classlabels_int64s)
    weights = _values_of(class_weights, class_weights_as_tensor)
    binary = len(labels) == 2 and len(set(class_ids)) == 1
    forest = _forest(nodes, list(zip(class_treeids, class_nodeids, strict=True)),
                     [0] * len(class_ids) if binary else class_ids, weights, 1 if binary else len(labels))
    scores = _from_base(forest.scores(_floats(X), "SUM"), nodes, 1 if binary else None)
    if not binary:
        return labelled(scores, labels, post_transform)
    are_shares = all(w >= 0 for w in weights)
    label, both = labelled_by_one(scores, labels, post_transform, 0.5 if are_shares else 0.0, are_shares)
    if class_ids[0] == 1:  # said to be of the second class: the first has a score of its own, 0
        both = transformed(scores.zeros_like().cat(scores, dim=1), post_transform)
    return label, both


@op(domain=MACHINE_LEARNING)
def TreeEnsemble(
        X: Tensor, *, leaf_targetids: Any, leaf_weights: Array, n_targets: int, nodes_falseleafs: Any,
        nodes_falsenodeids: Any, nodes_featureids: Any, nodes_modes: Array, nodes_splits: Array,
        nodes_trueleafs: Any, nodes_truenodeids: Any, tree_roots: Any, aggregate_function: int = 1,
        membership_values: Array | None = None, nodes_hitrates: Array | None = None,
        nodes_missing_value_tracks_true: Any = None, post_transform: int = 0) -> Tensor:
    """A forest as versions from 5 on describe it: inner nodes, and leaves behind them."""
    inner, leaves = len(nodes_featureids), len(leaf_targetids)
    zeros = [0] * leaves

    def children(ids: Any, are_leaves: Any) -> Array:
        led = [i + inner if is_leaf else i for i, is_leaf in zip(ids, are_leaves, strict=True)]
        return np.array([*led, *range(inner, inner + leaves)], np.int32)

    votes = np.full((inner + leaves, n_targets), np.nan)
    votes[np.arange(inner, inner + leaves), list(leaf_targetids)] = leaf_weights
    modes = np.concatenate([nodes_modes.astype(np.int32), np.full(leaves, MODES.index("LEAF"), np.int32)])
    forest = Forest(
        np.array(tree_roots, np.int32), np.array([*nodes_featureids, *zeros], np.int32),
        np.array([*nodes_splits.tolist(), *zeros], np.float64), modes,
        children(nodes_truenodeids, nodes_trueleafs), children(nodes_falsenodeids, nodes_falseleafs),
        np.array([*(nodes_missing_value_tracks_true or [0] * inner), *zeros]), votes,
        _members(modes, membership_values))
    return transformed(forest.scores(X, AGGREGATES[aggregate_function]), TRANSFORMS[post_transform])


def _members(modes: Array, values: Array | None) -> Array:
    """The members that each node asks for, which `values` has one set after another, with NaN behind each."""
    if values is None or not values.size:
        return np.zeros((len(modes), 0))
    ends = np.flatnonzero(np.isnan(values))
    ends = ends if ends.size and ends[-1] == len(values) - 1 else np.append(ends, len(values))
    sets = [values[start:end] for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True)]
    made = np.full((len(modes), max(len(s) for s in sets)), np.nan)
    for node, members in zip(np.flatnonzero(modes == MODES.index("BRANCH_MEMBER")), sets, strict=False):
        made[node, :len(members)] = members
    return made


def _floats(X: Tensor) -> Tensor:
    """What trees compare: doubles as they are, everything else as float32."""
    return X if X.dtype is dtypes.float64 else X.cast(dtypes.float32)
