"""Models of `transformers` with random weights: loss and gradients beside eager PyTorch."""
from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.compile takes PyTorch")
transformers = pytest.importorskip("transformers", reason="the models are those of transformers")

from tinygrad.torch import backend  # noqa: E402

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64}
GROUPED = {**SIZES, "num_key_value_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
          "image_size": 32, "patch_size": 8}
SPEECH = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0,
          "vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
          "decoder_start_token_id": 1}
STAGES = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 5}


def tokens() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 99, (2, 16))}


def with_labels() -> dict[str, Any]:
    found = tokens()
    return {**found, "labels": found["input_ids"]}


def pictures(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 3])}


def two_texts() -> dict[str, Any]:
    return {**tokens(), "decoder_input_ids": torch.randint(3, 99, (2, 8))}


MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (lambda t: t.BertForMaskedLM(t.BertConfig(**SIZES, **NO_DROPOUT)), with_labels),
    "roberta": (lambda t: t.RobertaForMaskedLM(t.RobertaConfig(**SIZES, **NO_DROPOUT)), with_labels),
    "distilbert": (lambda t: t.DistilBertForMaskedLM(t.DistilBertConfig(
        vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64, dropout=0.0, attention_dropout=0.0)),
        with_labels),
    "electra": (lambda t: t.ElectraForMaskedLM(t.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=16)),
                with_labels),
    "gpt2": (lambda t: t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)), with_labels),
    "opt": (lambda t: t.OPTForCausalLM(t.OPTConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, dropout=0.0,
        word_embed_proj_dim=32, max_position_embeddings=64)), with_labels),
    "bloom": (lambda t: t.BloomForCausalLM(t.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)),
              with_labels),
    "llama": (lambda t: t.LlamaForCausalLM(t.LlamaConfig(**GROUPED)), with_labels),
    "mistral": (lambda t: t.MistralForCausalLM(t.MistralConfig(**GROUPED)), with_labels),
    "qwen2": (lambda t: t.Qwen2ForCausalLM(t.Qwen2Config(**GROUPED)), with_labels),
    "gemma": (lambda t: t.GemmaForCausalLM(t.GemmaConfig(**GROUPED, head_dim=8)), with_labels),
    "gpt-neox": (lambda t: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**SIZES)), with_labels),
    "t5": (lambda t: t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0)), two_texts),
    "bart": (lambda t: t.BartModel(t.BartConfig(**SPEECH)), two_texts),
    "whisper": (lambda t: t.WhisperModel(t.WhisperConfig(**SPEECH, num_mel_bins=8, max_source_positions=16,
                                                         max_target_positions=16)),
                lambda: {"input_features": torch.randn(2, 8, 32),
                         "decoder_input_ids": torch.randint(3, 99, (2, 8))}),
    "vit": (lambda t: t.ViTForImageClassification(t.ViTConfig(**IMAGES, num_labels=5)), pictures),
    "swin": (lambda t: t.SwinForImageClassification(t.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 2], window_size=4,
        num_labels=5, drop_path_rate=0.0)), pictures),
    "resnet": (lambda t: t.ResNetForImageClassification(t.ResNetConfig(
        embedding_size=16, layer_type="bottleneck", **STAGES)), pictures),
    "convnext": (lambda t: t.ConvNextForImageClassification(t.ConvNextConfig(
        num_stages=2, hidden_sizes=[16, 32], depths=[1, 1], num_labels=5)), pictures),
    "clip": (lambda t: t.CLIPModel(t.CLIPConfig(
        text_config={**SIZES, "max_position_embeddings": 32, "eos_token_id": 98}, vision_config=IMAGES,
        projection_dim=16)),
        lambda: {**tokens(), "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_is_that_of_eager(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model: Any = make(transformers).train()
    twin = copy.deepcopy(model)
    given = inputs()
    expected = model(**given)
    loss_of(expected).backward()
    found = torch.compile(twin, backend=backend)(**given)
    loss_of(found).backward()
    torch.testing.assert_close(loss_of(found), loss_of(expected), rtol=1e-4, atol=1e-5)
    for (weight, ours), eager in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert (ours.grad is None) == (eager.grad is None), weight
        if eager.grad is not None:
            torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-4, atol=1e-5)
    for (buffer, ours), eager in zip(twin.named_buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5, msg=lambda m, n=buffer: f"{n}: {m}")


def loss_of(output: Any) -> Any:
    """The model's own loss, or where it has none one of its first result."""
    loss = getattr(output, "loss", None)
    return output[0].square().mean() if loss is None else loss
