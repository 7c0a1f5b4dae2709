"""What kind of transformer a checkpoint is: sizes, norms, positions, windows, experts.

What comes in is the metadata of a GGUF file or the config.json of a Hugging Face folder; what goes out is a
`Config`, all that `llm/model.py` decides by besides which weights there are. A model whose kind is not known,
or whose sizes do not fit together, is an error here.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinygrad.frozen import frozen
from tinygrad.llm.rope import Rope

ARCHITECTURES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma", "gemma2",
                 "gemma3", "phi3", "gpt2", "olmo", "olmo2", "olmo3")
AROUND = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
BLOCK_NORMS: dict[str, tuple[str, ...]] = {"olmo": (), "olmo2": AROUND[1::2], "olmo3": AROUND[1::2],
                                           "gemma2": AROUND, "gemma3": AROUND}
"""Of architectures whose blocks do other than norm what comes into their two parts."""
QUERY_NORMS = {"qwen3": "head", "qwen3moe": "head", "gemma3": "head", "olmo2": "whole", "olmo3": "whole"}
BIASED = ("llama", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "olmo", "olmo2", "olmo3")
"""Architectures whose config.json says by attention_bias whether attention has biases."""
BY_LAYER_TYPES = ("mistral", "qwen2", "qwen2moe", "qwen3", "gemma2", "gemma3", "olmo3")
"""Architectures whose layers may differ in what they see, as those of Ministral, a kind of Mistral; others
have one window for all layers, or none."""
PERIODS = {"gemma2": 2, "gemma3": 6, "olmo3": 4}
"""Of how many layers the last one sees everything."""
MOST, MOST_LAYERS = 1 << 24, 1 << 12
"""No size of a model is larger, no model has more layers: what says so lies."""


@frozen
class Config:
    """A transformer of `layers` blocks on `width` items a token.

    `rope` turns queries and keys, on layers of `windows` that are not None `local_rope` if there is one;
    without either, positions are learned. `windows`: how many tokens each layer sees, None for all. `tied`:
    where there is no other, the embedding is the last product too. `biases`: the products of a block that
    cannot be without one.
    """

    architecture: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    context: int
    eps: float
    norm: str = "rms"
    norm_weights: bool = True
    activation: str = "silu"
    rope: Rope | None = None
    local_rope: Rope | None = None
    windows: tuple[int | None, ...] = ()
    scale: float | None = None
    attention_cap: float | None = None
    final_cap: float | None = None
    clip: float | None = None
    embedding_scale: float = 1.0
    experts: int = 0
    experts_used: int = 0
    expert_norm: bool = True
    scale_by_layer: bool = False
    tied: bool = True
    biases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "layers", "heads", "kv_heads", "head_size", "hidden", "context"):
            value, most = getattr(self, name), MOST_LAYERS if name == "layers" else MOST
            if type(value) is not int or not 0 < value <= most:
                raise ValueError(f"a model whose {name} is {value!r} cannot be: a number from 1 to {most}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} heads of keys evenly")
        if self.experts and not 0 < self.experts_used <= self.experts:
            raise ValueError(f"{self.experts_used} of {self.experts} experts cannot be used")
        if self.activation not in ("silu", "gelu", "gelu_tanh"):
            raise ValueError(f"the activation {self.activation!r} is not known")
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"norms cannot add {self.eps!r}, which is no number from 0 on")
        for name in ("attention_cap", "final_cap", "clip", "scale"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"a model whose {name} is {getattr(self, name)!r} cannot be: "
                                 "a number above 0")
        for window in self.windows:
            if window is not None and (type(window) is not int or window < 1):
                raise ValueError(f"a layer cannot see {window!r} tokens")
        for rope in (self.rope, self.local_rope):
            if rope is not None and rope.size > self.head_size:
                raise ValueError(f"rotary positions cannot turn {rope.size} of a head's {self.head_size} "
                                 "items")

    def window(self, layer: int) -> int | None:
        """How many tokens, itself included, a token sees in this layer; None: all before it."""
        return self.windows[layer] if self.windows else None

    @property
    def longest(self) -> int:
        """The most tokens that there are positions for: dynamic ones are stretched beyond `context`."""
        if self.rope is None or self.rope.kind != "dynamic":
            return self.context
        return min(int(self.context * max(self.rope.factor, 1)), MOST)

    @property
    def block_norms(self) -> tuple[str, ...]:
        """The norms that a block has, by the names of their weights."""
        return BLOCK_NORMS.get(self.architecture, ("attn_norm", "ffn_norm"))

    @property
    def query_norms(self) -> str | None:
        """Whether queries and keys are normed: each "head" by itself, or all "whole"."""
        return QUERY_NORMS.get(self.architecture)

    def rope_of(self, layer: int) -> Rope | None:
        return self.local_rope if self.local_rope and self.window(layer) is not None else self.rope

    def scores_scale(self, layer: int) -> float:
        """What products of queries and keys are multiplied by."""
        scale = 1 / math.sqrt(self.head_size) if self.scale is None else self.scale
        return scale / (layer + 1) if self.scale_by_layer else scale


def known(architecture: Any) -> str:
    """The name, if it is one that is known."""
    if architecture not in ARCHITECTURES:
        raise ValueError(f"models of architecture {architecture!r} are not known; known are "
                         f"{', '.join(ARCHITECTURES)}")
    return str(architecture)


def alternating(layers: int, window: int | None, period: int) -> tuple[int | None, ...]:
    """Windows in which the last of every `period` layers sees everything."""
    if type(period) is not int or period < 1:
        raise ValueError(f"every {period!r}th layer cannot see everything")
    return tuple(None if (i + 1) % period == 0 else window for i in range(layers))


ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh",
               "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
"""Names in config.json."""
LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6,
               "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
               "max_position_embeddings": 131072},
    "olmo3": {"sliding_window": 4096}}
"""What config.json may leave out, as those of Gemma 3 do, and transformers then takes."""
TYPES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3",
         "ministral": "mistral"}
"""Types in config.json that GGUF files name otherwise."""


# --- Hugging Face -----------------------------------------------------------------------------------------


class Fields:
    """A config.json, read with errors that name the field."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content

    def number(self, *names: str) -> Any:
        """The value of the first of these names that is there."""
        for name in names:
            value = self.content.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise ValueError(f"config.json: {name} is {value!r}, not a number")
                return value
        raise ValueError(f"config.json has no {' or '.join(names)}")

    def optional(self, *names: str, default: Any = None) -> Any:
        return self.number(*names) if any(self.content.get(name) is not None for name in names) else default

    def get(self, name: str, default: Any = None) -> Any:
        value = self.content.get(name)
        return default if value is None else value


def from_hugging_face(content: Mapping[str, Any]) -> Config:
    """The `Config` that a config.json says. Raises ValueError for models that are not known."""
    tied = content.get("tie_word_embeddings")
    if isinstance(content.get("text_config"), Mapping):
        content = content["text_config"]
    kind = known(TYPES.get(str(content.get("model_type")), content.get("model_type")))
    content = {**LEFT_OUT.get(kind, {}), **content}
    fields = Fields(content)
    if tied is None:
        tied = fields.get("tie_word_embeddings", kind == "gpt2" or kind.startswith("gemma"))
    width = fields.number("hidden_size", "n_embd")
    layers, heads = fields.number("num_hidden_layers", "n_layer"), fields.number("num_attention_heads",
                                                                                 "n_head")
    config = Config(
        architecture=kind, vocabulary=fields.number("vocab_size"), width=width, layers=layers, heads=heads,
        kv_heads=fields.optional("num_key_value_heads", default=heads),
        head_size=fields.optional("head_dim", default=width // max(heads, 1)),
        hidden=fields.optional("intermediate_size", "n_inner", default=4 * width),
        context=fields.number("max_position_embeddings", "n_positions"),
        eps=_eps(kind, fields),
        activation=_activation(content), tied=bool(tied), biases=_biases(kind, fields))
    config = replace(config, windows=_windows(fields, config))
    if kind != "gpt2":
        config = replace(config, rope=_rope(fields, config, "full_attention"))
    return _particular(fields, config)


def _eps(kind: str, fields: Fields) -> float:
    """What norms add to the mean square, as transformers takes it where config.json does not say."""
    if kind == "olmo":
        return 1e-5  # whatever is said
    few = kind in ("gpt2", "mixtral", "phi3", "olmo2", "olmo3")
    return float(fields.optional("rms_norm_eps", "layer_norm_epsilon", default=1e-5 if few else 1e-6))


def _activation(content: Mapping[str, Any]) -> str:
    name = content.get("hidden_activation") or content.get("hidden_act") or content.get("activation_function")
    kind = str(content.get("model_type"))
    if name is None:
        return "gelu_tanh" if kind == "gpt2" or kind.startswith("gemma") else "silu"
    if kind == "gemma" and name == "gelu":
        return "gelu_tanh"  # the first checkpoints say gelu and mean its approximation
    return ACTIVATIONS.get(str(name), str(name))


def _biases(kind: str, fields: Fields) -> tuple[str, ...]:
    """The products that have a bias: by the architecture, or as config.json says."""
    if kind == "gpt2":
        return ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    if kind == "qwen2" or (kind == "qwen2moe" and fields.get("qkv_bias", True)):
        return ("attn_q", "attn_k", "attn_v")
    attends = kind in BIASED and fields.get("attention_bias")
    attention = ("attn_q", "attn_k", "attn_v", "attn_output") if attends else ()
    feeds = kind == "llama" and fields.get("mlp_bias")
    return attention + (("ffn_gate", "ffn_up", "ffn_down") if feeds else ())


def _windows(fields: Fields, config: Config) -> tuple[int | None, ...]:
    """By layer: from layer_types where the architecture goes by them and they are said, else as it does."""
    window, kind = fields.optional("sliding_window"), config.architecture
    if window is None or (kind.startswith("qwen") and not fields.get("use_sliding_window", False)):
        return ()
    kinds = fields.get("layer_types") if kind in BY_LAYER_TYPES else None
    if isinstance(kinds, Sequence) and len(kinds) == config.layers:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if kind in BY_LAYER_TYPES and kind.startswith("qwen"):
        first = fields.optional("max_window_layers", default=28)
        return tuple(window if i >= first else None for i in range(config.layers))
    return default_windows("mistral" if kind == "qwen3moe" else kind, config.layers, window,
                           fields.optional("sliding_window_pattern"))


def default_windows(kind: str, layers: int, window: int, period: int | None) -> tuple[int | None, ...]:
    """The windows of a model that says one size for all."""
    if kind in PERIODS:
        return alternating(layers, window, PERIODS[kind] if period is None or kind == "gemma2" else period)
    return (window,) * layers if kind in ("mistral", "mixtral", "phi3") else ()


def _rope(fields: Fields, config: Config, layers: str) -> Rope:
    """Rotary positions: of one of two kinds of layers, where they differ."""
    said = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise ValueError(f"config.json: rope_scaling is {said!r:.100}, not an object")
    said = said.get(layers, said) if isinstance(said.get(layers, said), Mapping) else {}
    stretch = Fields(said)
    kind = str(said.get("rope_type") or said.get("type") or "default")
    kind = {"su": "longrope"}.get(kind, kind)
    base = stretch.optional("rope_theta", default=fields.optional("rope_theta", default=10000.0))
    part = 1.0
    if config.architecture == "phi3":  # the one whose heads may turn in part
        part = stretch.optional("partial_rotary_factor",
                                default=fields.optional("partial_rotary_factor", default=1.0))
    if not 0 < part <= 1:
        raise ValueError(f"config.json: partial_rotary_factor is {part}, no share of a head's items")
    original = stretch.optional("original_max_position_embeddings",
                                default=fields.optional("original_max_position_embeddings",
                                                        default=config.context))
    original = config.context if kind == "dynamic" else original  # what its max_position_embeddings means
    factor = stretch.optional("factor", default=config.context / original if original else 1.0)
    return Rope(int(config.head_size * part), base, kind, factor, original,
                low=stretch.optional("low_freq_factor", default=1.0),
                high=stretch.optional("high_freq_factor", default=4.0),
                fast=stretch.optional("beta_fast", default=32.0), slow=stretch.optional("beta_slow",
                                                                                        default=1.0),
                whole_pairs=bool(stretch.get("truncate", True)), magnitude=_magnitude(stretch, kind, factor),
                short=_factors(stretch, "short_factor"), long=_factors(stretch, "long_factor"))


def _magnitude(stretch: Fields, kind: str, factor: float) -> float | None:
    """What cosines and sines are multiplied by, where config.json says so."""
    said = stretch.optional("attention_factor")
    over, under = stretch.optional("mscale"), stretch.optional("mscale_all_dim")
    if said is None and kind == "yarn" and factor > 1 and over and under:
        return float((0.1 * over * math.log(factor) + 1) / (0.1 * under * math.log(factor) + 1))
    return None if said is None else float(said)


def _factors(stretch: Fields, name: str) -> tuple[float, ...]:
    """A list of numbers, one for each pair of items that turn."""
    found = stretch.get(name, ())
    if not isinstance(found, Sequence) or not all(isinstance(x, (int, float)) for x in found):
        raise ValueError(f"config.json: {name} is {found!r:.100}, no list of numbers")
    return tuple(found)


def _particular(fields: Fields, config: Config) -> Config:
    """What only some architectures have."""
    kind = config.architecture
    if kind.startswith("gemma"):
        config = replace(config, embedding_scale=math.sqrt(config.width))
    if kind in ("gemma2", "gemma3"):
        query = fields.optional("query_pre_attn_scalar")
        if query is not None and not query > 0:
            raise ValueError(f"config.json: query_pre_attn_scalar is {query}, not above 0")
        capped = fields.optional("attn_logit_softcapping") if kind == "gemma2" else None
        config = replace(config, scale=None if query is None else query ** -0.5, attention_cap=capped,
                         final_cap=fields.optional("final_logit_softcapping"))
    if kind == "gemma3":
        if fields.get("use_bidirectional_attention"):
            raise ValueError("config.json: use_bidirectional_attention: models whose tokens see those after "
                             "them are not known")
        config = _with_local_rope(fields, config, fields.optional("rope_local_base_freq", default=10000.0))
    if kind == "olmo3" and config.rope is not None:
        config = _with_local_rope(fields, config, config.rope.base)
    if kind in ("gpt2", "olmo"):
        config = replace(config, norm="layer", norm_weights=kind == "gpt2", clip=fields.optional("clip_qkv"))
    if kind == "gpt2":
        config = replace(config, scale=None if fields.get("scale_attn_weights", True) else 1.0,
                         scale_by_layer=bool(fields.get("scale_attn_by_inverse_layer_idx", False)))
    if kind == "mixtral":
        config = replace(config, experts=fields.number("num_local_experts"),
                         experts_used=fields.number("num_experts_per_tok"))
    if kind in ("qwen2moe", "qwen3moe"):
        config = replace(config, experts=fields.number("num_experts", "num_local_experts"),
                         experts_used=fields.number("num_experts_per_tok"),
                         expert_norm=bool(fields.get("norm_topk_prob", False)))
    return config


def _with_local_rope(fields: Fields, config: Config, base: float) -> Config:
    """With rotary positions of their own, which nothing stretches, for layers that have windows."""
    newer = fields.get("rope_parameters") or {}
    said = fields if "sliding_attention" in newer else Fields({"rope_theta": base})
    return replace(config, local_rope=_rope(said, config, "sliding_attention"))


# --- GGUF -------------------------------------------------------------------------------------------------


def from_gguf(metadata: Mapping[str, Any], factors: Mapping[str, Sequence[float]],
              vocabulary: int) -> Config:
    """The `Config` that a GGUF file's metadata say.

    `factors`: the tensors rope_freqs, rope_factors_short and rope_factors_long, where there are such;
    `vocabulary`: rows of the embedding. Raises ValueError for models that are not known.
    """
    kind = known(metadata.get("general.architecture"))
    values = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()
              if key.startswith(f"{kind}.")}
    fields = GGUFFields(kind, values)
    heads, width = fields.number("attention.head_count"), fields.number("embedding_length")
    layers = fields.number("block_count")
    head = fields.optional("attention.key_length", width // max(heads, 1))
    layer_norm = kind in ("gpt2", "olmo")
    key = f"attention.layer_norm{'' if layer_norm else '_rms'}_epsilon"
    eps = fields.optional(key, 1e-5) if kind == "olmo" else fields.number(key)
    config = Config(
        architecture=kind, vocabulary=vocabulary, width=width, layers=layers, heads=heads,
        kv_heads=fields.optional("attention.head_count_kv", heads), head_size=head,
        hidden=fields.optional("feed_forward_length",
                               width), context=fields.number("context_length"), eps=eps,
        norm="layer" if layer_norm else "rms", norm_weights=kind != "olmo",
        activation="gelu_tanh" if kind.startswith("gemma") or kind == "gpt2" else "silu",
        clip=fields.optional("attention.clamp_kqv", None) or None,
        experts=fields.optional("expert_count", 0), experts_used=fields.optional("expert_used_count", 0),
        expert_norm=kind != "qwen2moe",
        biases=_biases(kind, Fields({})) if kind in ("gpt2", "qwen2") else ())
    config = _with_gguf_windows(fields, config)
    if kind != "gpt2":
        config = replace(config, rope=_gguf_rope(fields, config, factors))
    if kind.startswith("gemma"):
        # what llama.cpp knows by the number of layers: the 27B models divide by width / heads
        large = (kind, layers) in (("gemma2", 46), ("gemma3", 62))
        config = replace(config, embedding_scale=math.sqrt(width),
                         scale=(width / heads if large else head) ** -0.5,
                         attention_cap=fields.optional("attn_logit_softcapping", None) or None,
                         final_cap=fields.optional("final_logit_softcapping", None) or None)
    if kind == "gemma3":
        config = replace(config, local_rope=Rope(head, fields.optional("rope.freq_base_swa", 10000.0)))
    if config.architecture == "olmo3" and config.rope is not None:
        base = fields.optional("rope.freq_base_swa", config.rope.base)
        config = replace(config, local_rope=Rope(config.rope.size, base))
    return config


def _with_gguf_windows(fields: GGUFFields, config: Config) -> Config:
    """With the windows that the metadata say: one size, and for which layers. OLMo 2 with such is OLMo 3."""
    window = fields.optional("attention.sliding_window", None)
    if not window:
        return config
    kind = {"llama": "mistral", "olmo2": "olmo3"}.get(config.architecture, config.architecture)
    pattern = fields.values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) >= config.layers and {*map(type, pattern)} == {bool}:
        windows = tuple(window if slides else None for slides in pattern[:config.layers])
    else:
        windows = default_windows(kind, config.layers, window,
                                  fields.optional("attention.sliding_window_pattern", None))
    return replace(config, architecture="olmo3" if kind == "olmo3" else config.architecture, windows=windows)


class GGUFFields:
    """The metadata of one architecture, read with errors that name the key."""

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        self.kind = kind
        self.values = values

    def number(self, name: str) -> Any:
        value = self.values.get(name)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # by layer, and the same in each
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"the metadata say {self.kind}.{name} is {value!r}, not a number")
        return value

    def optional(self, name: str, default: Any) -> Any:
        return self.number(name) if name in self.values else default


def _gguf_rope(fields: GGUFFields, config: Config, factors: Mapping[str, Sequence[float]]) -> Rope:
    """llama.cpp stores heads of "llama" so that adjacent items turn together. A factor without a kind is a
    linear one, and a magnitude is times that of the kind, but for longrope."""
    original = fields.optional("rope.scaling.original_context_length", config.context)
    long = tuple(factors.get("rope_factors_long.weight", ()))
    older = fields.optional("rope.scale_linear", config.context / original if original else 1.0)
    factor = fields.optional("rope.scaling.factor", older) or 1.0
    said = fields.values.get("rope.scaling.type", "none" if factor == 1 else "linear")
    kind = "longrope" if long else "default" if said in ("none", "longrope") else str(said)
    rope = Rope(fields.optional("rope.dimension_count", config.head_size),
                fields.optional("rope.freq_base", 10000.0), kind, factor, original,
                short=tuple(factors.get("rope_factors_short.weight", ())), long=long,
                divisors=tuple(factors.get("rope_freqs.weight", ())),
                pairs=config.architecture in ("llama", "olmo"))
    magnitude = fields.optional("rope.scaling.attn_factor", None)
    if magnitude is not None:
        rope = replace(rope, magnitude=magnitude if long else rope.scale() * magnitude)
    return rope
