"""Vectors of sentences: what is published of the trained model, and a random BERT beside transformers."""
from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tinygrad import Tensor, nn

pytest.importorskip("tokenizers", reason="sentences take the tokenizers package")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "sentences.py"
    sys.path.insert(0, str(path.parent))  # as Python does for a program
    spec = importlib.util.spec_from_file_location("sentences", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_similarities_are_the_published_ones(example: ModuleType) -> None:
    try:
        model = example.Sentences(example.packaged())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    # what the start page of sbert.net prints
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    for _ in range(3):  # eager, traced and replayed
        vectors = model.encode(sentences).numpy()
        np.testing.assert_allclose(vectors @ vectors.T, published, atol=1e-4)
    alone = np.concatenate([model.encode([sentence]).numpy() for sentence in sentences])
    np.testing.assert_allclose(alone, vectors, atol=1e-5)  # what rows are padded to changes none


def test_a_search_prints_what_is_meant(example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    try:
        example.packaged()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    (tmp_path / "lines.txt").write_text("A band plays a song.\n\nHe drives to work.\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["sentences.py", "The weather is lovely.", "--search", "live music",
                                      "--file", str(tmp_path / "lines.txt"), "--most", "2"])
    example.main()
    found = capsys.readouterr().out.splitlines()
    assert len(found) == 2 and found[0].endswith("  A band plays a song.")
    assert float(found[0].split()[0]) > float(found[1].split()[0])


def test_a_random_bert_beside_transformers(example: ModuleType, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="compared with PyTorch's")
    transformers = pytest.importorskip("transformers", reason="compared with its BERT")
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=48,
                                     num_attention_heads=4, max_position_embeddings=16)
    theirs = transformers.BertModel(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = example.SentenceEncoder(json.loads((tmp_path / "config.json").read_text()))
    stored = nn.state.safe_load(tmp_path / "model.safetensors")
    weights = {example.renamed(name): x for name, x in stored.items()}
    wanted = nn.state.get_state_dict(ours)
    nn.state.load_state_dict(ours, {k: x for k, x in weights.items() if k in wanted}, verbose=False)
    ids = np.random.default_rng(0).integers(0, 50, (3, 10)).astype(np.int32)
    is_word = np.arange(10) < np.array([[10], [4], [1]])
    with torch.no_grad():
        given = torch.from_numpy(ids).long(), torch.from_numpy(is_word).long()
        states = theirs(*given).last_hidden_state.numpy()
    mean = (states * is_word[..., None]).sum(1) / is_word.sum(1, keepdims=True)
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(ours(Tensor(ids), Tensor(is_word)).numpy(), expected, atol=2e-6)
