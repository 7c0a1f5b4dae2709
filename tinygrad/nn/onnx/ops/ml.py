"""Classical machine learning (ai.onnx.ml): features, encoders, linear models, support vector machines."""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad.dtype import dtypes
from tinygrad.nn.onnx.registry import op
from tinygrad.nn.onnx.values import Array, Items, Value
from tinygrad.tensor import Tensor

MACHINE_LEARNING = "ai.onnx.ml"


def _constant(values: Any, like: Tensor) -> Tensor:
    return Tensor(np.asarray(values, np.float32), like.device, requires_grad=False)


# --- features -----------------------------------------------------------------------------------------------


@op(domain=MACHINE_LEARNING)
def Binarizer(X: Tensor, *, threshold: float = 0.0) -> Tensor:
    return threshold < X


@op(domain=MACHINE_LEARNING)
def Scaler(X: Tensor, *, offset: Any = None, scale: Any = None) -> Tensor:
    wide = X.cast(dtypes.float32)
    wide = wide if offset is None else wide - _constant(offset, X)
    return wide if scale is None else wide * _constant(scale, X)


@op(domain=MACHINE_LEARNING)
def Normalizer(X: Tensor, *, norm: str = "MAX") -> Tensor:
    wide = X.cast(dtypes.float32)
    if norm == "MAX":
        size = wide.abs().max(-1, keepdim=True)
    else:
        size = wide.abs().sum(-1, keepdim=True) if norm == "L1" else wide.square().sum(-1,
                                                                                       keepdim=True).sqrt()
    return wide / (size == 0).where(1, size)


@op(domain=MACHINE_LEARNING)
def Imputer(X: Tensor, *, imputed_value_floats: Any = None, imputed_value_int64s: Any = None,
            replaced_value_float: float = 0.0, replaced_value_int64: int = 0) -> Tensor:
    if X.dtype.is_float:
        is_missing = X.isnan() if math.isnan(replaced_value_float) else X.eq(replaced_value_float)
        return is_missing.where(_constant(imputed_value_floats, X).cast(X.dtype), X)
    return X.eq(replaced_value_int64).where(Tensor(list(imputed_value_int64s), X.device, dtype=X.dtype), X)


@op(domain=MACHINE_LEARNING)
def FeatureVectorizer(*X: Tensor, inputdimensions: Any = None) -> Tensor:
    rows = [(x if x.ndim > 1 else x.unsqueeze(0)).cast(dtypes.float32) for x in X]
    return rows[0].cat(*rows[1:], dim=1)


@op(domain=MACHINE_LEARNING)
def ArrayFeatureExtractor(X: Items, Y: Array) -> Value:
    places = Y.reshape(-1).astype(np.int32)
    return X[..., places] if X.ndim > 1 else X[places].reshape(1, -1)


# --- encoders -----------------------------------------------------------------------------------------------


def _of_kinds(**given: Any) -> list[Any] | None:
    """The one of several lists (or tensors) that an attribute names."""
    found = [v for v in given.values() if v is not None and len(v)]
    return None if not found else found[0].tolist() if isinstance(found[0], np.ndarray) else list(found[0])


def _mapped(array: Array, keys: Sequence[Any], values: Sequence[Any], default: Any, kind: Any) -> Array:
    """Each item's value. NaN finds NaN; of equal keys the last one counts."""
    table = {_key(k): v for k, v in zip(keys, values, strict=True)}
    made = np.empty(array.size, kind)
    made[:] = [table.get(_key(x), default) for x in array.reshape(-1).tolist()]
    return made.reshape(array.shape)


def _key(x: Any) -> Any:
    return "NaN" if isinstance(x, float) and math.isnan(x) else x


@op(domain=MACHINE_LEARNING)
def LabelEncoder(X: Array, *, classes_strings: Any = None, default_float: float = -0.0,
                 default_int64: int = -1,
                 default_string: str = "_Unused", default_tensor: Array | None = None,
                 keys_floats: Any = None, keys_int64s: Any = None, keys_strings: Any = None,
                 keys_tensor: Array | None = None,
                 values_floats: Any = None, values_int64s: Any = None, values_strings: Any = None,
                 values_tensor: Array | None = None) -> Array:
    """Each item's value in a table of keys and values; a default for what is no key."""
    if classes_strings:
        numbers = list(range(len(classes_strings)))
        if X.dtype.kind == "O":
            return _mapped(X, classes_strings, numbers, default_int64, np.int64)
        return _mapped(X, numbers, classes_strings, default_string, object)
    keys = _of_kinds(a=keys_tensor, b=keys_floats, c=keys_int64s, d=keys_strings) or []
    if X.dtype.kind == "f":
        keys = np.asarray(keys, X.dtype).tolist()
    if values_tensor is not None and values_tensor.size:
        kind: Any = values_tensor.dtype
        default = {"O": default_string, "f": default_float}.get(values_tensor.dtype.kind, default_int64)
        default = default if default_tensor is None else default_tensor.reshape(-1)[0]
        return _mapped(X, keys, values_tensor.tolist(), default, kind)
    if values_strings:
        return _mapped(X, keys, values_strings, default_string, object)
    if values_int64s:
        return _mapped(X, keys, values_int64s, default_int64, np.int64)
    return _mapped(X, keys, values_floats, default_float, np.float32)


@op(domain=MACHINE_LEARNING)
def CategoryMapper(X: Array, *, cats_int64s: Any, cats_strings: Any, default_int64: int = -1,
                   default_string: str = "_Unused") -> Array:
    if X.dtype.kind == "O":
        return _mapped(X, cats_strings, cats_int64s, default_int64, np.int64)
    return _mapped(X, cats_int64s, cats_strings, default_string, object)


@op(domain=MACHINE_LEARNING)
def OneHotEncoder(X: Array, *, cats_int64s: Any = None, cats_strings: Any = None, zeros: int = 1) -> Array:
    items = X if X.dtype.kind == "O" else X.astype(np.int64)
    hit: Array = items[..., None] == np.array(list(cats_strings or cats_int64s), items.dtype)
    if not zeros and not hit.any(-1).all():
        raise ValueError("an item is none of the categories")
    return hit.astype(np.float32)


# --- linear models and support vectors ----------------------------------------------------------------------


def transformed(scores: Tensor, post_transform: str) -> Tensor:
    """Scores (rows, classes) as `post_transform` says."""
    if post_transform == "SOFTMAX":
        return scores.softmax(-1)
    if post_transform == "LOGISTIC":
        return scores.sigmoid()
    if post_transform == "SOFTMAX_ZERO":  # what is 0 stays 0
        weights = (scores == 0).where(0, (scores - scores.max(-1, keepdim=True)).exp())
        return weights / weights.sum(-1, keepdim=True)
    if post_transform != "NONE":
        raise NotImplementedError(f"post_transform {post_transform}")
    return scores


def labelled(scores: Tensor, labels: Sequence[Any], post_transform: str) -> tuple[Value, Tensor]:
    """(the label of each row, scores of all classes)."""
    return named(scores.argmax(1), labels), transformed(scores, post_transform)


def labelled_by_one(scores: Tensor, labels: Sequence[Any], post_transform: str, limit: float,
                    are_shares: bool) -> tuple[Value, Tensor]:
    """The same of two classes that share one score, the second one's: that is the label where it is above
    `limit`. The first class has the rest to 1 of a share or probability, else the opposite."""
    made = scores.sigmoid() if post_transform == "LOGISTIC" else scores
    other = 1 - made if are_shares or post_transform == "LOGISTIC" else -made
    best = (scores > limit).cast(dtypes.int32).squeeze(1)
    return named(best, labels), other.cat(made, dim=1)


def named(best: Tensor, labels: Sequence[Any]) -> Value:
    if isinstance(labels[0], str):
        return np.array(labels, object)[best.numpy()]
    return Tensor(np.array(labels, np.int64), best.device, requires_grad=False)[best]


@op(domain=MACHINE_LEARNING)
def LinearRegressor(X: Tensor, *, coefficients: Any, intercepts: Any = None, post_transform: str = "NONE",
                    targets: int = 1) -> Tensor:
    weights = _constant(coefficients, X).reshape(targets, -1)
    scores: Tensor = X.cast(dtypes.float32) @ weights.transpose()
    return transformed(scores if not intercepts else scores + _constant(intercepts, X), post_transform)


@op(domain=MACHINE_LEARNING)
def LinearClassifier(X: Tensor, *, coefficients: Any, classlabels_ints: Any = None,
                     classlabels_strings: Any = None,
                     intercepts: Any = None, multi_class: int = 0,
                     post_transform: str = "NONE") -> tuple[Value, Tensor]:
    labels = list(classlabels_strings or classlabels_ints)
    weights = _constant(coefficients, X).reshape(-1, X.shape[-1])
    scores: Tensor = X.cast(dtypes.float32) @ weights.transpose()
    scores = scores if not intercepts else scores + _constant(intercepts, X)
    if scores.shape[1] == 1 and len(labels) == 2:
        return labelled_by_one(scores, labels, post_transform, 0.0, are_shares=True)
    return labelled(scores, labels, post_transform)


def _kernel(x: Tensor, vectors: Tensor, kernel_type: str, params: Any) -> Tensor:
    """(rows, vectors): how alike they are."""
    gamma, constant, degree = params or (0.0, 0.0, 0.0)
    if kernel_type == "RBF":
        distances = (x.unsqueeze(1) - vectors).square().sum(-1)
        return (distances * -gamma).exp()
    products = x @ vectors.transpose()
    if kernel_type == "LINEAR":
        return products
    inner = products * gamma + constant
    return inner.pow(degree) if kernel_type == "POLY" else inner.tanh()


@op(domain=MACHINE_LEARNING)
def SVMRegressor(X: Tensor, *, coefficients: Any, kernel_params: Any = None, kernel_type: str = "LINEAR",
                 n_supports: int = 0, one_class: int = 0, post_transform: str = "NONE", rho: Any = (0.0,),
                 support_vectors: Any = None) -> Tensor:
    x = X.cast(dtypes.float32)
    if n_supports:
        vectors = _constant(support_vectors, X).reshape(n_supports, -1)
        alike = _kernel(x, vectors, kernel_type, kernel_params)
        scores = (alike * _constant(coefficients, X)).sum(-1, keepdim=True) + rho[0]
    else:
        scores = (x * _constant(coefficients, X)).sum(-1, keepdim=True) + rho[0]
    if one_class:
        scores = (scores > 0).where(1.0, -1.0)
    return transformed(scores, post_transform)


@op(domain=MACHINE_LEARNING)
def SVMClassifier(X: Tensor, *, coefficients: Any, classlabels_ints: Any = None,
                  classlabels_strings: Any = None, kernel_params: Any = None, kernel_type: str = "LINEAR",
                  post_transform: str = "NONE", prob_a: Any = None, prob_b: Any = None, rho: Any = (0.0,),
                  support_vectors: Any = None, vectors_per_class: Any = None) -> tuple[Value, Tensor]:
    """(labels, scores). With support vectors, each pair of classes has a score, and votes for one of the two;
    `prob_a` and `prob_b` make a probability of it, and the scores are those of the classes then. Without,
    a class has a score by its weights."""
    labels = list(classlabels_strings or classlabels_ints)
    x = X.cast(dtypes.float32)
    if not vectors_per_class:
        weights = _constant(coefficients, X).reshape(len(labels), -1)
        return labelled(_kernel(x, weights, kernel_type, kernel_params) + rho[0], labels, post_transform)
    counts = list(vectors_per_class)
    alike = _kernel(x, _constant(support_vectors, X).reshape(sum(counts), -1), kernel_type, kernel_params)
    pairs = list(itertools.combinations(range(len(counts)), 2))
    scores = alike @ _constant(_pair_weights(np.asarray(coefficients, np.float32), counts, pairs), X)
    scores = scores + _constant(rho[:len(pairs)], X)
    wins = np.array([[(c == first) - (c == second) for c in range(len(counts))] for first, second in pairs])
    chosen = named(((scores > 0).where(1.0, -1.0) @ _constant(wins, X)).argmax(1), labels)
    if prob_a:
        odds = scores * _constant(prob_a, X) + _constant(prob_b, X)
        shares = _coupled((-odds).sigmoid().numpy(), pairs, len(counts))
        return chosen, transformed(_constant(shares, X), post_transform)
    if len(pairs) > 1:
        return chosen, transformed(scores, post_transform)
    if post_transform == "LOGISTIC":
        return chosen, (-scores).sigmoid().cat(scores.sigmoid(), dim=1)
    return chosen, (-scores if post_transform == "NONE" else 1 - scores).cat(scores, dim=1)


def _pair_weights(coefficients: Array, counts: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Array:
    """(vectors, pairs): a vector's weight for each pair of classes. `coefficients` has, for a vector of class
    c, a row for each other class: rows before c are those of the classes before it."""
    rows = coefficients.reshape(len(counts) - 1, sum(counts))
    ends = np.cumsum(counts)
    made = np.zeros((sum(counts), len(pairs)), np.float32)
    for n, (first, second) in enumerate(pairs):
        for own, other in ((first, second), (second, first)):
            part = slice(ends[own] - counts[own], ends[own])
            made[part, n] = rows[other - (other > own), part]
    return made


def _coupled(shares: Array, pairs: Sequence[tuple[int, int]], classes: int) -> Array:
    """Probabilities (rows, classes) from those of a pair's first class (rows, pairs), by the second method of
    Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling" (2004):
    the p of sum 1 that minimises the sum over pairs of (r_ji p_i - r_ij p_j)^2, iterated until its gradients
    differ by no more than LIBSVM, and with it scikit-learn and ONNX Runtime, allows."""
    r = np.zeros((len(shares), classes, classes))
    for n, (first, second) in enumerate(pairs):
        r[:, first, second] = np.clip(shares[:, n], 1e-7, 1 - 1e-7)
        r[:, second, first] = 1 - r[:, first, second]
    q = -r.swapaxes(1, 2) * r
    q[:, range(classes), range(classes)] = np.square(r).sum(1)
    p = np.full((len(shares), classes), 1 / classes)
    for _ in range(max(100, classes)):
        qp = np.einsum("rij,rj->ri", q, p)
        pqp = (p * qp).sum(1)
        is_open = np.abs(qp - pqp[:, None]).max(1) >= 0.005 / classes
        if not is_open.any():
            break
        for c in range(classes):
            step = np.where(is_open, (pqp - qp[:, c]) / q[:, c, c], 0)
            p[:, c] += step
            pqp = (pqp + step * (step * q[:, c, c] + 2 * qp[:, c])) / (1 + step) ** 2
            qp = (qp + step[:, None] * q[:, c]) / (1 + step[:, None])
            p /= 1 + step[:, None]
    return p.astype(np.float32)


# --- maps ---------------------------------------------------------------------------------------------------


@op(domain=MACHINE_LEARNING)
def ZipMap(X: Array, *, classlabels_int64s: Any = None,
           classlabels_strings: Any = None) -> list[dict[Any, float]]:
    """For each row its scores by label."""
    labels = list(classlabels_strings or classlabels_int64s)
    return [dict(zip(labels, row, strict=True)) for row in X.tolist()]


@op(domain=MACHINE_LEARNING)
def DictVectorizer(X: Value, *, int64_vocabulary: Any = None, string_vocabulary: Any = None) -> Array:
    return np.array([[X.get(word, 0) for word in string_vocabulary or int64_vocabulary]])


@op(domain=MACHINE_LEARNING)
def CastMap(X: Value, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """The values of a map, in the order of its keys or at the places that they name."""
    kind: Any = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}[cast_to]
    values = [X[k] for k in sorted(X)] if map_form == "DENSE" else [X.get(i, 0) for i in range(max_map)]
    return np.array([[str(v) if kind is object else v for v in values]], kind)
