"""Models that `torch.compile(backend="tinygrad")` is compared with eager by: those of `transformers` in tiny
configurations, and in `networks.py` of plain layers. `MODELS` has for each how to make it and its inputs."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import networks

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64}
GROUPED = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
          "image_size": 32, "patch_size": 8}
LAYERS = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
PAIR = {**LAYERS, "dropout": 0.0, "vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1}
STAGES = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 5}
WAVES = {**SIZES, **NO_DROPOUT, "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0,
         "activation_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0, "mask_time_prob": 0.0,
         "conv_dim": [16, 16], "conv_kernel": [4, 3], "conv_stride": [2, 2], "num_conv_pos_embeddings": 4,
         "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}


def tokens() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 99, (2, 16))}


def with_labels() -> dict[str, Any]:
    found = tokens()
    return {**found, "labels": found["input_ids"]}


def pictures(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 3])}


def larger_pictures() -> dict[str, Any]:
    return pictures(64)


def unlabelled() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def two_texts() -> dict[str, Any]:
    return {**tokens(), "decoder_input_ids": torch.randint(3, 99, (2, 8))}


def waves() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 160)}


def speech() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": torch.randint(3, 99, (2, 8))}


def text_and_images() -> dict[str, Any]:
    return {**tokens(), "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}


def of_transformers(model: str, config: str, **settings: Any) -> Callable[[], Any]:
    """Makes a model of `transformers` by the names of its class and its configuration's."""
    def make() -> Any:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))
    return make


def masked(family: str, **settings: Any) -> Callable[[], Any]:
    """A language model that fills in tokens."""
    return of_transformers(f"{family}ForMaskedLM", f"{family}Config", **{**SIZES, **NO_DROPOUT, **settings})


def causal(family: str, **settings: Any) -> Callable[[], Any]:
    """A language model that continues a text."""
    return of_transformers(f"{family}ForCausalLM", f"{family}Config", **{**GROUPED, **settings})


def classifier(family: str, **settings: Any) -> Callable[[], Any]:
    """A classifier of images."""
    settings = {"num_labels": 5, **settings}
    return of_transformers(f"{family}ForImageClassification", f"{family}Config", **settings)


Model = tuple[Callable[[], Any], Callable[[], dict[str, Any]]]

TEXT: dict[str, Model] = {
    "BERT": (masked("Bert"), with_labels),
    "RoBERTa": (masked("Roberta"), with_labels),
    "XLM-RoBERTa": (masked("XLMRoberta"), with_labels),
    "DistilBERT": (of_transformers(
        "DistilBertForMaskedLM", "DistilBertConfig", vocab_size=99, dim=32, n_layers=2, n_heads=4,
        hidden_dim=64, dropout=0.0, attention_dropout=0.0), with_labels),
    "ELECTRA": (masked("Electra", embedding_size=16), with_labels),
    "ALBERT": (masked("Albert", embedding_size=16), with_labels),
    "MPNet": (masked("MPNet"), with_labels),
    "DeBERTa-v2": (masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]), with_labels),
    "GPT-2": (of_transformers(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), with_labels),
    "GPT-NeoX": (causal("GPTNeoX"), with_labels),
    "GPT-J": (of_transformers(
        "GPTJForCausalLM", "GPTJConfig", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), with_labels),
    "OPT": (of_transformers(
        "OPTForCausalLM", "OPTConfig", vocab_size=99, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=64, dropout=0.0, word_embed_proj_dim=32, max_position_embeddings=64),
        with_labels),
    "BLOOM": (of_transformers("BloomForCausalLM", "BloomConfig", vocab_size=99, hidden_size=32, n_layer=2,
                              n_head=4), with_labels),
    "Llama": (causal("Llama"), with_labels),
    "Mistral": (causal("Mistral"), with_labels),
    "Qwen2": (causal("Qwen2"), with_labels),
    "Qwen3": (causal("Qwen3", head_dim=8), with_labels),
    "Gemma": (causal("Gemma", head_dim=8), with_labels),
    "Gemma 2": (causal("Gemma2", head_dim=8, sliding_window=8), with_labels),
    "Phi": (causal("Phi", embd_pdrop=0.0, resid_pdrop=0.0), with_labels),
    "OLMo": (causal("Olmo"), with_labels),
    "StableLM": (causal("StableLm"), with_labels),
    "StarCoder2": (causal("Starcoder2", embedding_dropout=0.0, residual_dropout=0.0), with_labels),
    "Falcon": (of_transformers("FalconForCausalLM", "FalconConfig", vocab_size=99, hidden_size=32,
                               num_hidden_layers=2, num_attention_heads=4), with_labels),
    "Mamba": (of_transformers("MambaForCausalLM", "MambaConfig", vocab_size=99, hidden_size=32, state_size=8,
                              num_hidden_layers=2), with_labels),
    "T5": (of_transformers(
        "T5ForConditionalGeneration", "T5Config", vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2,
        num_heads=4, dropout_rate=0.0), two_texts),
    "BART": (of_transformers("BartModel", "BartConfig", **PAIR), two_texts),
    "Pegasus": (of_transformers("PegasusModel", "PegasusConfig", **PAIR), two_texts),
    "Marian": (of_transformers("MarianModel", "MarianConfig", **PAIR), two_texts),
}

IMAGES_AND_SPEECH: dict[str, Model] = {
    "ViT": (classifier("ViT", **IMAGES), pictures),
    "DeiT": (classifier("DeiT", **IMAGES), pictures),
    "BEiT": (classifier("Beit", **IMAGES, drop_path_rate=0.0), pictures),
    "DINOv2": (classifier("Dinov2", **{**IMAGES, "mlp_ratio": 2}), pictures),
    "Swin": (classifier("Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 2],
                        window_size=4, drop_path_rate=0.0), pictures),
    "CLIP": (of_transformers(
        "CLIPModel", "CLIPConfig", text_config={**SIZES, "max_position_embeddings": 32, "eos_token_id": 98},
        vision_config=IMAGES, projection_dim=16), text_and_images),
    "DETR": (of_transformers(
        "DetrModel", "DetrConfig", **LAYERS, dropout=0.0, num_queries=6, use_timm_backbone=False,
        backbone_config={
            "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
            "layer_type": "basic", "out_features": ["stage2"]}), unlabelled),
    "YOLOS": (of_transformers("YolosModel", "YolosConfig", **{**IMAGES, "image_size": [32, 32]},
                              num_detection_tokens=5), unlabelled),
    "SegFormer": (of_transformers(
        "SegformerModel", "SegformerConfig", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
        hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
        mlp_ratios=[2, 2], drop_path_rate=0.0, **NO_DROPOUT), unlabelled),
    "ResNet": (classifier("ResNet", embedding_size=16, layer_type="bottleneck", **STAGES), pictures),
    "RegNet": (classifier("RegNet", embedding_size=16, groups_width=8, **STAGES), pictures),
    "ConvNeXt": (classifier("ConvNext", num_stages=2, hidden_sizes=[16, 32], depths=[1, 1]), pictures),
    "ConvNeXt V2": (classifier("ConvNextV2", num_stages=2, hidden_sizes=[16, 32], depths=[1, 1]), pictures),
    "MobileNetV1": (classifier("MobileNetV1", image_size=64, depth_multiplier=0.25,
                               classifier_dropout_prob=0.0), larger_pictures),
    "MobileNetV2": (classifier("MobileNetV2", image_size=64, depth_multiplier=0.25,
                               classifier_dropout_prob=0.0), larger_pictures),
    "EfficientNet": (classifier(
        "EfficientNet", image_size=32, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320,
        initializer_range=0.3, dropout_rate=0.0, drop_connect_rate=0.0), pictures),
    "PoolFormer": (classifier("PoolFormer", num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32],
                              patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], drop_path_rate=0.0),
                   pictures),
    "Whisper": (of_transformers("WhisperModel", "WhisperConfig", **PAIR, num_mel_bins=8,
                                max_source_positions=16, max_target_positions=16), speech),
    "wav2vec 2.0": (of_transformers("Wav2Vec2Model", "Wav2Vec2Config", **WAVES), waves),
    "HuBERT": (of_transformers("HubertModel", "HubertConfig", **WAVES), waves),
}

MODELS: dict[str, Model] = {**TEXT, **IMAGES_AND_SPEECH, **networks.NETWORKS}
