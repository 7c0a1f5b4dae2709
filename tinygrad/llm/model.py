"""The transformer: tokens and their positions in, scores of the next token out.

One module for all architectures of `llm/config.py`. What differs between them is said by the `Config` (kinds
of norms and positions, windows, caps, experts) and by which weights there are: a norm, a bias or a product
that a model does not have is one whose weight is not there. Weights have the names of GGUF files and stay as
they are stored (`nn/block_formats.py`): their values are computed inside the products that read them.
"""
from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tinygrad.device import Device
from tinygrad.dtype import dtypes
from tinygrad.functional.nn import rmsnorm, rotated
from tinygrad.graph.sizes import largest
from tinygrad.llm.cache import Cache, NoCache, PackedSequence, Rows
from tinygrad.llm.config import Config
from tinygrad.llm.experts import expert_weights, mixture
from tinygrad.llm.rope import Rope
from tinygrad.nn.block_formats import Packed
from tinygrad.nn.block_products import BlockWeights, RoundedRows
from tinygrad.tensor import Tensor


class Transformer:
    """Weights by name and the `Config` that says how they are used. `context`: positions that are prepared.

    `activations`: "int8" rounds what is multiplied with a weight in blocks to 8 bits, as llama.cpp does, and
    adds up whole numbers (`nn/block_products.py`); "float32" rounds nothing. None is int8 where the
    device has dot products of bytes. Raises ValueError for weights that are missing or have other shapes than
    the configuration says.
    """

    def __init__(self, config: Config, weights: Mapping[str, Packed], context: int | None = None,
                 activations: str | None = None) -> None:
        if activations not in (None, "int8", "float32"):
            raise ValueError(f"activations are int8 or float32, not {activations!r}")
        self.config = config
        self.weights = dict(weights)
        if context is not None and context < 1:
            raise ValueError(f"a context is of 1 token or more, not of {context}")
        self.context = min(config.context if context is None else context, config.longest)
        check_shapes(config, self.weights)
        self.device = str(self.weights["token_embd.weight"].stored.device)
        self.shapes = {name: packed.shape for name, packed in self.weights.items()}
        self.products: dict[str, BlockWeights] = {}
        self.adapters: dict[str, Callable[[Tensor], Tensor]] = {}
        """by the name of a product ("blk.0.attn_q"): what is added to it, of the same input (LoRA)"""
        if activations is None:
            activations = "int8" if Device[self.device].renderer.machine.has_byte_dots else "float32"
        if activations == "int8":
            self._put_into_words()
        self.tables = self._tables(self.context)

    def _put_into_words(self) -> None:
        """Weights in blocks that are factors of products as those want them; nothing else reads them, but for
        the embedding that is the last product too."""
        head = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        factors = {name: packed for name, packed in self.weights.items()
                   if BlockWeights.takes(packed) and (name == head or name.startswith("blk."))}
        for names in (expert_weights(f"blk.{layer}.ffn") for layer in range(self.config.layers)):
            if not all(name in factors for name in names):
                factors = {name: packed for name, packed in factors.items() if name not in names}
        self.products = BlockWeights.of_all(factors)
        for name in factors.keys() - {"token_embd.weight"}:
            del self.weights[name]

    def _tables(self, context: int) -> dict[Rope, tuple[Tensor, Tensor]]:
        """Cosines and sines (context, size / 2) of each kind of rotary positions."""
        found = {}
        for rope in (self.config.rope, self.config.local_rope):
            if rope is not None:
                cosines, sines = (Tensor(table, device=self.device, requires_grad=False).realize()
                                  for table in rope.table(context))
                found[rope] = cosines, sines
        return found

    def _of_length(self, length: int) -> Transformer:
        """The same model for sequences of this length, by which some kinds of rotary positions differ."""
        same = copy.copy(self)
        if any(rope.kind in ("dynamic", "longrope") for rope in self.tables):
            same.tables = self._tables(length)
        return same

    # --- pieces -------------------------------------------------------------------------------------------

    def value(self, name: str) -> Tensor | None:
        """A weight in float32, if there is one of this name."""
        packed = self.weights.get(name)
        return None if packed is None else packed.value.cast(dtypes.float32)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """(..., in) times the weight (out, in), plus the bias if there is one."""
        product, bias = self.products.get(f"{name}.weight"), self.value(f"{name}.bias")
        if product is not None:
            y = product.product(RoundedRows(x))
        else:
            weight = self.value(f"{name}.weight")
            assert weight is not None
            y = x @ weight.transpose(0, 1)
        if name in self.adapters:
            y = y + self.adapters[name](x)
        return y if bias is None else y + bias

    def norm(self, x: Tensor, name: str, always: bool = False) -> Tensor:
        """Items of the last axis at a common size; `x` itself if the model has no such norm."""
        weight, bias = self.value(f"{name}.weight"), self.value(f"{name}.bias")
        if weight is None and not (always and not self.config.norm_weights):
            return x
        if self.config.norm == "layer":
            y = x.layernorm(eps=self.config.eps)
        else:
            y = rmsnorm(x, eps=self.config.eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def turned(self, x: Tensor, rope: Rope | None, positions: Tensor) -> Tensor:
        """Heads (B, H, T, D) turned by their positions (B, T)."""
        if rope is None:
            return x
        cosines, sines = (table[positions].unsqueeze(1) for table in self.tables[rope])
        return rotated(x, cosines, sines, rope.pairs)

    # --- attention ----------------------------------------------------------------------------------------

    def heads(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, T, D), keys and values (B, kv_heads, T, D), before they are turned."""
        config, name = self.config, f"blk.{layer}.attn"
        sizes = [config.heads * config.head_size] + [config.kv_heads * config.head_size] * 2
        if f"{name}_qkv.weight" in self.shapes:
            query, key, value = self.linear(x, f"{name}_qkv").split(sizes, dim=-1)
        else:
            query, key, value = (self.linear(x, f"{name}_{part}") for part in "qkv")
        if self.products:  # what turns them reads each item twice, and what caches them reads row by row
            query, key, value = (part.contiguous() for part in (query, key, value))
        if config.clip is not None:
            query, key, value = (part.clip(-config.clip, config.clip) for part in (query, key, value))
        if config.query_norms == "whole":
            query, key = self.norm(query, f"{name}_q_norm"), self.norm(key, f"{name}_k_norm")
        query, key, value = (part.unflatten(-1, (-1, config.head_size)).transpose(1, 2)
                             for part in (query, key, value))
        if config.query_norms == "head":
            query, key = self.norm(query, f"{name}_q_norm"), self.norm(key, f"{name}_k_norm")
        return query, key, value

    def attend(self, x: Tensor, layer: int, positions: Tensor, cache: Cache | NoCache,
               sequences: Rows | Sequence[PackedSequence]) -> Tensor:
        """What each token takes from those before it; its keys and values are put into the cache first."""
        rope, name = self.config.rope_of(layer), f"blk.{layer}.attn_output"
        query, key, value = self.heads(x, layer)
        query, key = self.turned(query, rope, positions), self.turned(key, rope, positions)
        if isinstance(sequences, Rows):
            return self.linear(self.mixed(query, key, value, layer, positions, cache, sequences), name)
        # each has a kernel of its own, for its own slot and length, which writes its part of all
        size = self.config.heads * self.config.head_size
        query = query.contiguous()
        mixed = Tensor.empty(1, largest(x.shape[1]), size, device=self.device)
        for sequence in sequences:
            taken = slice(sequence.start, sequence.start + sequence.count)
            mixed[:, taken].assign(self.mixed(query[:, :, taken], key[:, :, taken], value[:, :, taken], layer,
                                              positions[:, taken], cache, sequence.rows))
        return self.linear(mixed[:, :x.shape[1]], name)

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, layer: int, positions: Tensor,
              cache: Cache | NoCache, rows: Rows) -> Tensor:
        """The values of each row, weighted by its scores: (B, T, heads * D)."""
        config, count, tokens = self.config, len(rows.places), query.shape[2]
        cache.write(layer, key, value, rows)
        keys, values = cache.keys[layer].read(rows), cache.values[layer].read(rows)
        # queries that share keys are rows of one product
        shared = config.heads // config.kv_heads
        grouped = query.unflatten(1, (config.kv_heads, shared)).transpose(2, 3).flatten(2, 3)
        grouped = grouped.contiguous() if tokens == 1 else grouped
        scores = grouped @ keys.transpose(-2, -1) * config.scores_scale(layer)
        if config.attention_cap is not None:
            scores = (scores / config.attention_cap).tanh() * config.attention_cap
        places_of_keys = Tensor.arange(rows.length, device=self.device)
        here = positions.reshape(count, 1, tokens, 1, 1).expand(count, 1, tokens, shared, 1).flatten(2, 3)
        seen = places_of_keys <= here
        window = config.window(layer)
        if window is not None:
            seen = seen & (places_of_keys > here - window)
        mixed = seen.where(scores, -math.inf).softmax(-1) @ values
        return mixed.unflatten(2, (tokens, shared)).permute(0, 2, 1, 3, 4).flatten(2)

    # --- the rest of a block ------------------------------------------------------------------------------

    def activation(self, x: Tensor) -> Tensor:
        kind = self.config.activation
        return x.silu() if kind == "silu" else x.gelu("tanh" if kind == "gelu_tanh" else "none")

    def feed_forward(self, x: Tensor, layer: int) -> Tensor:
        """Two products with an activation between them, gated where there is a gate, or by experts."""
        name = f"blk.{layer}.ffn"
        if f"{name}_gate_inp.weight" in self.shapes:
            return self.mixture(x, layer)
        up = self.linear(x, f"{name}_up")
        if f"{name}_gate.weight" in self.shapes:
            hidden = self.activation(self.linear(x, f"{name}_gate")) * up
        elif self.shapes[f"{name}_down.weight"][1] * 2 == up.shape[-1]:
            gate, up = up.chunk(2, dim=-1)
            hidden = self.activation(gate) * up
        else:
            hidden = self.activation(up)
        # what the products before it store; it is read more than once where it is rounded
        rounds = f"{name}_down.weight" in self.products
        return self.linear(hidden.contiguous() if rounds else hidden, f"{name}_down")

    def mixture(self, x: Tensor, layer: int) -> Tensor:
        """The experts that score highest for each token, weighed by their scores, and the shared one."""
        config, name = self.config, f"blk.{layer}.ffn"
        scores = self.linear(x, f"{name}_gate_inp").softmax(-1)
        best, chosen = scores.topk(config.experts_used)
        if config.expert_norm:
            best = best / best.sum(-1, keepdim=True)
        mixed = mixture(x, chosen, best, self.weights, self.products, name, config.experts, self.activation)
        if f"{name}_gate_inp_shexp.weight" in self.shapes:
            hidden = self.activation(self.linear(x, f"{name}_gate_shexp")) * self.linear(x,
                                                                                         f"{name}_up_shexp")
            gate = self.value(f"{name}_gate_inp_shexp.weight")
            assert gate is not None
            share = (x * gate).sum(-1, keepdim=True).sigmoid()
            mixed = mixed + share * self.linear(hidden, f"{name}_down_shexp")
        return mixed

    # --- all of it ----------------------------------------------------------------------------------------

    def __call__(self, tokens: Tensor) -> Tensor:
        """Scores (B, T, vocabulary) of what follows each of the tokens (B, T), with a gradient at what
        computes them where `activations` is float32: for training. Raises ValueError for more tokens than
        there are positions."""
        rows, length = tokens.shape
        if length > self.context:
            raise ValueError(f"the model has positions for {self.context} tokens, not for {length}")
        positions = Tensor.arange(length, device=self.device).expand(rows, length)
        cache = NoCache(self.config.layers)
        hidden = self._of_length(length).hidden(tokens, positions, cache, Rows(0, [0] * rows, length))
        return self.logits(hidden)

    def hidden(self, tokens: Tensor, positions: Tensor, cache: Cache | NoCache,
               sequences: Rows | Sequence[PackedSequence]) -> Tensor:
        """What the last block leaves of tokens (B, T) at positions (B, T), normed: (B, T, width).

        `sequences` says where they are in the cache: rows of as many tokens each, or parts of one row that
        are as long as they like, so that no token is computed in vain.
        """
        x = self.weights["token_embd.weight"].picked(tokens).cast(dtypes.float32)
        x = x * self.config.embedding_scale
        if "position_embd.weight" in self.weights:
            x = x + self.weights["position_embd.weight"].picked(positions).cast(dtypes.float32)
        for layer in range(self.config.layers):
            name = f"blk.{layer}"
            mixed = self.attend(self.norm(x, f"{name}.attn_norm", always=True), layer, positions, cache,
                                sequences)
            x = (x + self.norm(mixed, f"{name}.post_attention_norm")).contiguous()
            grown = self.feed_forward(self.norm(x, f"{name}.ffn_norm", always=True), layer)
            x = (x + self.norm(grown, f"{name}.post_ffw_norm")).contiguous()
        return self.norm(x, "output_norm", always=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token (..., vocabulary) from what the last block left (..., width)."""
        scores = self.linear(hidden, "output" if "output.weight" in self.shapes else "token_embd")
        cap = self.config.final_cap
        return scores if cap is None else (scores / cap).tanh() * cap


# --- what the weights must be -----------------------------------------------------------------------------


_READ = re.compile(r"(?:output|output_norm|position_embd|blk\.(\d+)\.(?:attn_(?:norm|q|k|v|qkv|output|q_norm|"
                   r"k_norm)|post_attention_norm|ffn_(?:norm|gate|up|down)|post_ffw_norm))\.(?:weight|bias)")
"""Weights that are used where they are there."""


def check_shapes(config: Config, weights: Mapping[str, Packed]) -> None:
    """Every weight that a model cannot do without is there, those that are known have their shapes, and there
    is none that models of another kind have and that would be used."""
    expected = expected_shapes(config, weights)
    missing = [name for name in expected if name not in weights]
    if missing:
        raise ValueError(f"the model lacks {len(missing)} weights: {', '.join(missing[:5])}"
                         f"{' ...' if len(missing) > 5 else ''}")
    empty = [name for name, packed in weights.items() if 0 in packed.shape]
    if empty:
        raise ValueError(f"the weight {empty[0]} has no items: its shape is {weights[empty[0]].shape}")
    allowed = _biases(expected) | expected
    for name in weights:
        found = _READ.fullmatch(name)
        if found is not None and name not in allowed and int(found[1] or 0) < config.layers:
            raise ValueError(f"models of architecture {config.architecture} have no weight {name}")
    wrong = [f"{name} has {weights[name].shape}, the configuration says {shape}"
             for name, shape in allowed.items() if name in weights and weights[name].shape != shape]
    if wrong:
        raise ValueError("weights do not fit the model: " + "; ".join(wrong[:5]))


Shapes: TypeAlias = dict[str, tuple[int, ...]]


def expected_shapes(config: Config, weights: Mapping[str, Packed]) -> Shapes:
    """The weights that a model needs, with their shapes."""
    width = config.width
    shapes: Shapes = {"token_embd.weight": (config.vocabulary, width)}
    if config.norm_weights:
        shapes |= _norm_shapes("output_norm", config)
    if "output.weight" in weights or not config.tied:
        shapes["output.weight"] = (config.vocabulary, width)
    if config.rope is None:
        shapes["position_embd.weight"] = (config.context, width)
    for layer in range(config.layers):
        name = f"blk.{layer}"
        products = _attention_shapes(name, config, weights) | _feed_forward_shapes(name, config, weights)
        biases = _biases(products)
        shapes |= products | {key: shape for key, shape in biases.items()
                              if key.removeprefix(f"{name}.").removesuffix(".bias") in config.biases}
        for norm in config.block_norms:
            shapes |= _norm_shapes(f"{name}.{norm}", config)
        if config.query_norms is not None:
            heads = (config.heads, config.kv_heads) if config.query_norms == "whole" else (1, 1)
            shapes |= {f"{name}.attn_{part}_norm.weight": (count * config.head_size,)
                       for part, count in zip("qk", heads)}
    return shapes


def _biases(shapes: Shapes) -> Shapes:
    """What is added to products with these weights, where there is such a bias."""
    return {f"{name.removesuffix('.weight')}.bias": shape[:1] for name, shape in shapes.items()
            if len(shape) == 2 and name.startswith(("blk.", "output."))}


def _norm_shapes(name: str, config: Config) -> Shapes:
    parts = ("weight", "bias") if config.norm == "layer" else ("weight",)
    return {f"{name}.{part}": (config.width,) for part in parts}


def _attention_shapes(name: str, config: Config, weights: Mapping[str, Packed]) -> Shapes:
    """The products of attention in a block."""
    width, queries, kept = config.width, config.heads * config.head_size, config.kv_heads * config.head_size
    if f"{name}.attn_qkv.weight" in weights:
        shapes: Shapes = {f"{name}.attn_qkv.weight": (queries + 2 * kept, width)}
    else:
        shapes = {f"{name}.attn_q.weight": (queries, width), f"{name}.attn_k.weight": (kept, width),
                  f"{name}.attn_v.weight": (kept, width)}
    return shapes | {f"{name}.attn_output.weight": (width, queries)}


def _feed_forward_shapes(name: str, config: Config, weights: Mapping[str, Packed]) -> Shapes:
    """The products of the rest of a block: with experts where it chooses between some."""
    width, hidden = config.width, config.hidden
    if f"{name}.ffn_gate_inp.weight" not in weights:
        is_gated = config.architecture != "gpt2"
        if f"{name}.ffn_gate.weight" not in weights and config.architecture == "phi3":
            is_gated, hidden = False, 2 * hidden  # both in one product
        gate: Shapes = {f"{name}.ffn_gate.weight": (hidden, width)} if is_gated else {}
        return gate | {f"{name}.ffn_up.weight": (hidden, width),
                       f"{name}.ffn_down.weight": (width, config.hidden)}
    shapes: Shapes = {f"{name}.ffn_gate_inp.weight": (config.experts, width)}
    experts = weights.get(f"{name}.ffn_up_exps.weight")
    hidden = experts.shape[1] if experts is not None and len(experts.shape) == 3 else 0
    shapes |= {f"{name}.ffn_{part}_exps.weight": (config.experts, hidden, width) for part in ("gate", "up")}
    shapes[f"{name}.ffn_down_exps.weight"] = (config.experts, width, hidden)
    if config.architecture == "qwen2moe":
        shared = weights.get(f"{name}.ffn_up_shexp.weight")
        hidden = shared.shape[0] if shared is not None and shared.shape else 0
        shapes |= {f"{name}.ffn_{part}_shexp.weight": (hidden, width) for part in ("gate", "up")}
        shapes |= {f"{name}.ffn_down_shexp.weight": (width, hidden),
                   f"{name}.ffn_gate_inp_shexp.weight": (width,)}
    return shapes
