"""Models of scikit-learn, as its exporter skl2onnx writes them, beside scikit-learn."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("skl2onnx", reason="exports of scikit-learn take the packages scikit-learn and skl2onnx")

from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import KNNImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from tinygrad.nn.onnx import OnnxRunner

VERSIONS = {"": 18, "ai.onnx.ml": 3}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 6)).astype(np.float32)
CLASSES = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] + X[:, 2] > 0.5)
NUMBERS = X @ np.arange(6, dtype=np.float32) + np.sin(X[:, 0])


def exported(model: Any, *inputs: Any) -> list[Any]:
    """The results of the export of a fitted model. Probabilities come as one dict a row."""
    if inputs[0].dtype.kind == "O":
        shape = [None, *inputs[0].shape[1:]]
        file = to_onnx(model, initial_types=[("x", StringTensorType(shape))], target_opset=VERSIONS)
    else:
        file = to_onnx(model, inputs[0][:1], target_opset=VERSIONS)
    run = OnnxRunner(file)
    made = run(dict(zip(run.inputs, inputs, strict=True))).values()
    return [np.array([list(row.values()) for row in y]) if isinstance(y, list) else
            y if isinstance(y, np.ndarray) else y.numpy() for y in made]


@pytest.mark.parametrize("model", [
    make_pipeline(StandardScaler(), PCA(4), LogisticRegression()), RandomForestClassifier(8, random_state=0),
    SVC(probability=True), GaussianNB(), MLPClassifier(max_iter=20, random_state=0)],
    ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore")
def test_classifiers(model: Any) -> None:
    labels, probabilities = exported(model.fit(X, CLASSES), X)
    np.testing.assert_array_equal(labels, model.predict(X))
    np.testing.assert_allclose(probabilities, model.predict_proba(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [
    Ridge(), GradientBoostingRegressor(n_estimators=10), KNeighborsRegressor()],
    ids=lambda model: type(model).__name__)
def test_regressors(model: Any) -> None:
    made, = exported(model.fit(X, NUMBERS), X)
    np.testing.assert_allclose(made[:, 0], model.predict(X), rtol=1e-4, atol=1e-4)


def test_clusters() -> None:
    model = KMeans(3, random_state=0, n_init=1).fit(X)
    labels, scores = exported(model, X)
    np.testing.assert_array_equal(labels, model.predict(X))
    np.testing.assert_allclose(scores, model.transform(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("neighbours", [2, 5])
def test_values_that_are_missing(neighbours: int) -> None:
    """Rows that lanes gather in sums of products, for all that they are compared with: one panel of lanes."""
    rng = np.random.default_rng(0)
    holes = rng.standard_normal((80, 5)).astype(np.float32)
    holes[rng.random(holes.shape) < 0.2] = np.nan
    model = KNNImputer(n_neighbors=neighbours).fit(holes)
    made, = exported(model, holes)
    np.testing.assert_allclose(made, model.transform(holes), rtol=1e-4, atol=1e-5)


def test_the_trees_of_a_classifier_are_traced_before_its_maps() -> None:
    model = RandomForestClassifier(4, random_state=0).fit(X, CLASSES)
    run = OnnxRunner(to_onnx(model, X[:1], target_opset=VERSIONS))
    for start in range(0, 60, 12):
        rows = X[start:start + 12]
        made = run(X=rows)["output_probability"]
        np.testing.assert_allclose([list(row.values()) for row in made], model.predict_proba(rows), rtol=1e-5)
    assert [node.op for node in run._cut.walked] == ["ZipMap"]
    assert any(jit is not None and jit.traces for jit in run._kinds.values())


def test_texts_without_a_word_of_a_vocabulary() -> None:
    texts = np.array([[""], [""]], object)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good film", "bad film"], [1, 0])
    labels, probabilities = exported(model, texts)
    np.testing.assert_array_equal(labels, model.predict(texts[:, 0]))
    np.testing.assert_allclose(probabilities, model.predict_proba(texts[:, 0]), rtol=1e-5)


def test_strings() -> None:
    words = np.array([["a", "x"], ["b", "y"], ["a", "z"], ["c", "x"]], object)
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(words[:3])
    np.testing.assert_array_equal(exported(encoder, words)[0], encoder.transform(words))
    texts = np.array(["The cat sat", "on the mat", "my cat and your dog, the end"], object)
    vectors = TfidfVectorizer(ngram_range=(1, 2)).fit(texts)
    np.testing.assert_allclose(exported(vectors, texts)[0], vectors.transform(texts).toarray(), rtol=1e-5,
                               atol=1e-6)


def pipeline_of_words_and_numbers(labels: Any) -> tuple[Any, Any]:
    """A fitted classifier of two columns of words and two of numbers, and its export without maps."""
    rows = drawn_rows(60)
    model = make_pipeline(ColumnTransformer([("words", OneHotEncoder(handle_unknown="ignore"), [0, 1]),
                                             ("numbers", StandardScaler(), [2, 3])]), LogisticRegression())
    model.fit(rows, np.where(rows[:, 2] > 0, *labels))
    types = [(name, StringTensorType([None, 1]) if i < 2 else FloatTensorType([None, 1]))
             for i, name in enumerate(COLUMNS)]
    return model, convert_sklearn(model, initial_types=types, target_opset=VERSIONS,
                                  options={"zipmap": False})


COLUMNS = ("city", "kind", "size", "age")


def drawn_rows(count: int) -> Any:
    words = RNG.choice(["a", "b", "c"], (count, 2)).astype(object)
    return np.concatenate([words, RNG.standard_normal((count, 2)).astype(np.float32).astype(object)], 1)


@pytest.mark.parametrize("labels", [(0, 1), ("no", "yes")], ids=["numbered", "named"])
def test_what_follows_the_host_s_part_is_one_trace(labels: Any) -> None:
    """Words become numbers on the host; labels that are names follow from the trace."""
    model, file = pipeline_of_words_and_numbers(labels)
    run = OnnxRunner(file)
    for _ in range(6):
        rows = drawn_rows(12)
        columns = {name: rows[:, i:i + 1].astype(object if i < 2 else np.float32)
                   for i, name in enumerate(COLUMNS)}
        label, shares = run(columns).values()
        np.testing.assert_array_equal(label if isinstance(label, np.ndarray) else label.numpy(),
                                      model.predict(rows))
        np.testing.assert_allclose(shares.numpy(), model.predict_proba(rows), rtol=1e-4, atol=1e-5)
    assert {node.op for node in run._host} == {"OneHotEncoder"}
    assert [node.op for node in run._cut.walked] == ([] if labels == (0, 1) else ["LabelEncoder"])
    assert [len(jit.traces) for jit in run._kinds.values() if jit is not None] == [1]


@pytest.mark.parametrize("vectorizer", [TfidfVectorizer(), CountVectorizer(ngram_range=(1, 2))],
                         ids=lambda v: type(v).__name__)
def test_what_follows_counted_words_is_one_trace(vectorizer: Any) -> None:
    texts = ["good film of cats", "bad film", "the cat is bad", "a good dog"]
    model = make_pipeline(vectorizer, LogisticRegression()).fit(texts, [1, 0, 0, 1])
    run = OnnxRunner(to_onnx(model, initial_types=[("x", StringTensorType([None, 1]))],
                             target_opset=VERSIONS, options={"zipmap": False}))
    for _ in range(5):
        drawn_texts = RNG.choice(texts, 5)
        label, shares = run(x=drawn_texts.astype(object).reshape(-1, 1)).values()
        np.testing.assert_array_equal(label.numpy(), model.predict(drawn_texts))
        np.testing.assert_allclose(shares.numpy(), model.predict_proba(drawn_texts), rtol=1e-4, atol=1e-5)
    assert run._host[-1].op == "TfIdfVectorizer" and not run._cut.walked
    assert [len(jit.traces) for jit in run._kinds.values() if jit is not None] == [1]
