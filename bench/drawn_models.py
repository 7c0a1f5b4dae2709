"""Language models of random weights, as GGUF files: larger ones than a package carries, in the formats that
people load: Q4_K, or IQ4_XS, and Q6_K for what is read last (what llama.cpp calls Q4_K_M and IQ4_XS, more or
less).

Their text says nothing; how long it takes is what it is for a model that was trained. Tokenizer and special
tokens are those of another file. Needs the package `gguf`.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HEAD = 64
SCALES = {"Q4_K": ((0, 2), 200), "IQ4_XS": ((0,), 1200), "Q6_K": ((208,), 1200)}
"""Where the float16 scales of a block are, and how much larger than a scale its items get, about."""


@dataclass(frozen=True)
class DrawnModel:
    """The sizes of a model. With experts, `hidden` is that of each."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    experts: int = 0
    used: int = 0
    vocabulary: int = 49152
    format: str = "Q4_K"
    """of most weights"""

    def weights(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """(name, shape, format) of each."""
        width, hidden, heads, kv = self.width, self.hidden, self.heads * HEAD, self.kv_heads * HEAD
        yield "token_embd", (self.vocabulary, width), "Q6_K"
        yield "output_norm", (width,), "F32"
        for layer in range(self.layers):
            name = f"blk.{layer}."
            yield from ((name + norm, (width,), "F32") for norm in ("attn_norm", "ffn_norm"))
            for part, shape, format in (("q", (heads, width), self.format), ("k", (kv, width), self.format),
                                        ("v", (kv, width), "Q6_K"), ("output", (width, heads), self.format)):
                yield f"{name}attn_{part}", shape, format
            parts = (("gate", (hidden, width), self.format), ("up", (hidden, width), self.format),
                     ("down", (width, hidden), "Q6_K"))
            if self.experts:
                yield from ((f"{name}attn_{part}_norm", (HEAD,), "F32") for part in "qk")
                yield f"{name}ffn_gate_inp", (self.experts, width), "router"
            for part, shape, format in parts:
                if self.experts:
                    yield f"{name}ffn_{part}_exps", (self.experts, *shape), format
                else:
                    yield f"{name}ffn_{part}", shape, format


LARGE = DrawnModel("llama", 12, 2048, 32, 4, 5632)
DRAWN = {
    "745M of weights": LARGE,
    "745M in IQ4_XS": replace(LARGE, format="IQ4_XS"),
    "32 experts, 4 used": DrawnModel("qwen3moe", 8, 1024, 16, 4, 768, 32, 4),
}


def write(model: DrawnModel, path: Path, like: Path) -> None:
    """Write a model with the tokenizer of the file `like`."""
    import gguf

    writer, draw = gguf.GGUFWriter(path, model.architecture), np.random.default_rng(0)
    for key, field in gguf.GGUFReader(like).fields.items():
        if key.startswith("tokenizer."):
            if field.types[0] is gguf.GGUFValueType.ARRAY:
                writer.add_array(key, field.contents())
            else:
                writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_context_length(4096)
    writer.add_vocab_size(model.vocabulary)
    writer.add_block_count(model.layers)
    writer.add_embedding_length(model.width)
    writer.add_feed_forward_length(model.hidden)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if model.experts:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(model.used)
        writer.add_expert_feed_forward_length(model.hidden)
    for name, shape, format in model.weights():
        if format in SCALES:
            writer.add_tensor(f"{name}.weight", blocks(shape, format, draw),
                              raw_dtype=gguf.GGMLQuantizationType[format])
        else:
            items = draw.standard_normal(shape) / 30 if format == "router" else np.ones(shape)
            writer.add_tensor(f"{name}.weight", items.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def blocks(shape: tuple[int, ...], format: str, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random blocks whose items are about as large as those of a layer that keeps sizes."""
    import gguf

    items, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format]]
    found = draw.integers(0, 256, (int(np.prod(shape)) // items, size), dtype=np.uint8)
    places, steps = SCALES[format]
    for place in places:
        found[:, place:place + 2] = np.array([0.5 / shape[-1] ** 0.5 / steps], np.float16).view(np.uint8)
    return found.reshape(*shape[:-1], -1)
