"""A Llama in float64 and NumPy, straight from a GGUF file: log-probabilities when nothing is rounded.

`rounds`: what is multiplied with a weight is rounded to 8 bits in stretches of 32 items, as llama.cpp does
it, and everything else stays in float64. So it says what that rounding alone costs. Written from the
formulas, with nothing of this library; the `gguf` package dequantises.
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
STRETCH = 32


def rounded(x: Floats) -> Floats:
    """Stretches as whole numbers times 1/127 of their largest item."""
    stretches = x.reshape(*x.shape[:-1], -1, STRETCH)
    step = np.abs(stretches).max(-1, keepdims=True) / 127
    numbers = np.rint(np.divide(stretches, step, out=np.zeros_like(stretches), where=step != 0))
    found: Floats = (numbers * step).reshape(x.shape)
    return found


class LlamaReference:
    """The weights of a file of architecture llama, whose embedding is its last product too."""

    def __init__(self, path: Path, rounds: bool = False) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        said = {key.removeprefix("llama."): field.contents() for key, field in reader.fields.items()
                if key.startswith("llama.")}
        self.weights: dict[str, Floats] = {
            t.name.removesuffix(".weight"): gguf.dequantize(t.data, t.tensor_type).astype(np.float64)
            for t in reader.tensors}
        self.layers, self.heads = said["block_count"], said["attention.head_count"]
        self.kept, self.eps = said["attention.head_count_kv"], said["attention.layer_norm_rms_epsilon"]
        self.size, self.base = said["rope.dimension_count"], said["rope.freq_base"]
        self.rounds = rounds

    def product(self, x: Floats, name: str) -> Floats:
        return (rounded(x) if self.rounds else x) @ self.weights[name].T

    def norm(self, x: Floats, name: str) -> Floats:
        found: Floats = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.eps) * self.weights[name]
        return found

    def heads_of(self, x: Floats, name: str, turns: bool = True) -> Floats:
        """(tokens, heads, size): neighbouring items turned together, as GGUF files have them."""
        tokens = len(x)
        y = self.product(x, name).reshape(tokens, -1, self.size)
        if turns:
            angles = np.arange(tokens)[:, None] * self.base ** (-np.arange(0, self.size, 2) / self.size)
            turned = (y[..., 0::2] + 1j * y[..., 1::2]) * np.exp(1j * angles)[:, None]
            y = np.stack([turned.real, turned.imag], -1).reshape(y.shape)
        return y if y.shape[1] == self.heads else np.repeat(y, self.heads // self.kept, 1)

    def log_probabilities(self, tokens: Sequence[int]) -> Floats:
        """(tokens, vocabulary): of what follows each."""
        count = len(tokens)
        x: Floats = self.weights["token_embd"][list(tokens)]
        hidden = np.triu(np.full((count, count), -np.inf), 1)
        for name in (f"blk.{layer}" for layer in range(self.layers)):
            given = self.norm(x, f"{name}.attn_norm")
            query, key = (self.heads_of(given, f"{name}.attn_{part}") for part in "qk")
            scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(self.size) + hidden
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            mixed = np.einsum("hqk,khd->qhd", shares, self.heads_of(given, f"{name}.attn_v", turns=False))
            x = x + self.product(mixed.reshape(count, -1), f"{name}.attn_output")
            given = self.norm(x, f"{name}.ffn_norm")
            gate, up = (self.product(given, f"{name}.ffn_{part}") for part in ("gate", "up"))
            x = x + self.product(gate / (1 + np.exp(-gate)) * up, f"{name}.ffn_down")
        last = self.product(self.norm(x, "output_norm"), "token_embd")
        last -= last.max(-1, keepdims=True)
        found: Floats = last - np.log(np.exp(last).sum(-1, keepdims=True))
        return found
