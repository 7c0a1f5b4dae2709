"""Every family of models of `transformers` that can be made small without knowing it, beside eager PyTorch.

Sizes in its configuration are replaced by small ones, wherever they have the usual names; what does not run
in eager PyTorch then is skipped. All of them take an hour on two cores (`-m slow`).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
transformers = pytest.importorskip("transformers", reason="the models are those of transformers")

from .models_beside_eager import infers_as_eager, trains_as_eager  # noqa: E402

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "moe_intermediate_size")
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
          "num_encoder_layers", "num_decoder_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads")
HEAD_SIZES = ("head_dim", "d_kv", "kv_channels", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
              "v_head_dim")
INNER_WIDTHS = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner",
                "hidden_dim")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout",
            "hidden_dropout", "activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate",
            "layerdrop", "encoder_layerdrop", "decoder_layerdrop", "classifier_dropout")
SMALL: dict[str, Any] = {
    **dict.fromkeys(WIDTHS, 64), **dict.fromkeys(DEPTHS, 2), **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(HEAD_SIZES, 16), **dict.fromkeys(INNER_WIDTHS, 128), **dict.fromkeys(EXPERTS, 4),
    **dict.fromkeys(DROPOUTS, 0.0), "num_key_value_heads": 2, "vocab_size": 256, "num_experts_per_tok": 2,
    "max_position_embeddings": 128, "n_positions": 128, "q_lora_rank": 32, "first_k_dense_replace": 1,
    "n_group": 2, "topk_group": 1, "state_size": 8, "block_size": 16, "image_size": 32, "patch_size": 8,
    "depths": [1, 1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "use_cache": False}
"""What fields of a configuration are set to, where it has them."""
PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")
"""Configurations inside of others."""
MOST_PARAMETERS = 30_000_000
"""Of a family that has further sizes."""
VANISHING = "the loss hardly depends on the weights: gradients are rounding, and float64 has no grouped_mm"
EXCEPTIONS = {
    "afmoe": "an untrained router scores all experts alike, and PyTorch leaves open which are the first",
    "paligemma": "TorchDynamo changes its results, whatever the backend",
    "flex_olmo": VANISHING, "deepseek_v4": VANISHING, "muse_spark_text": VANISHING,
    "phimoe": VANISHING,
    "vits": "how long its results are is drawn at random", "hgnet_v2": "its results are no tensors",
}


def made_small(name: str) -> Any:
    """The configuration of a family with small sizes."""
    config = transformers.CONFIG_MAPPING[name]()
    parts = [getattr(config, part, None) for part in PARTS]
    for part in (config, *(part for part in parts if hasattr(part, "to_dict"))):
        known = part.to_dict()
        for field, value in SMALL.items():
            if field in known and (not isinstance(value, int) or isinstance(known[field], (int, type(None)))):
                setattr(part, field, value)
        kinds = getattr(part, "layer_types", None)
        if isinstance(kinds, list) and len(kinds) > 1:
            part.layer_types = [kinds[0], kinds[-1]]
    return config


def inputs_of(model: Any) -> dict[str, Any]:
    """What a model takes."""
    given: dict[str, dict[str, Any]] = {
        "input_ids": {"input_ids": torch.randint(3, 250, (2, 16))},
        "pixel_values": {"pixel_values": torch.randn(2, 3, 32, 32)},
        "input_values": {"input_values": torch.randn(2, 4000)}}
    found = given[model.main_input_name]
    if getattr(model.config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = torch.randint(3, 250, (2, 8))
    return found


def small_model(name: str) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    """How to make a model of a family, and what it is given; skips those that eager PyTorch does not run."""
    if name in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[name])
    try:
        config = made_small(name)
        with torch.device("meta"):
            size = sum(p.numel() for p in transformers.AutoModel.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            pytest.skip(f"{size} parameters")
        model = transformers.AutoModel.from_config(config).train()
        given = inputs_of(model)
        model(**given)
    except Exception as error:  # whatever a family says of sizes that it was not made for
        pytest.skip(f"{type(error).__name__}: {error}"[:200])
    return (lambda: transformers.AutoModel.from_config(config)), (
        lambda: {key: value.clone() for key, value in given.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(transformers.CONFIG_MAPPING))
def test_a_family_is_that_of_eager(name: str) -> None:
    make, inputs = small_model(name)
    infers_as_eager(make, inputs)
    trains_as_eager(make, inputs)
