"""What PyTorch exports of `transformers`' models with random weights, beside PyTorch."""
from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="exports of PyTorch take the package onnxscript")
pytest.importorskip("transformers", reason="exports of PyTorch are of models of transformers")
pytest.importorskip("torch", reason="exports of PyTorch take PyTorch")

import torch
import transformers

from tinygrad.nn.onnx import OnnxRunner

pytestmark = pytest.mark.slow
TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 99}
GROUPED = {**TEXT, "num_key_value_heads": 2, "use_cache": False}
IMAGE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
         "image_size": 64, "patch_size": 16}
LAYERS = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}


def whisper_encoder() -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(transformers.WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, max_source_positions=50,
        num_mel_bins=20))


MODELS: dict[str, Any] = {
    "BERT": lambda t: t.BertModel(t.BertConfig(**TEXT)),
    "GPT-2": lambda t: t.GPT2Model(t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=99,
                                                use_cache=False)),
    "Llama": lambda t: t.LlamaModel(t.LlamaConfig(**GROUPED)),
    "Mistral": lambda t: t.MistralModel(t.MistralConfig(**GROUPED)),
    "T5": lambda t: t.T5EncoderModel(t.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                                                vocab_size=99)),
    "ViT": lambda t: t.ViTModel(t.ViTConfig(**IMAGE)),
    "CLIP": lambda t: t.CLIPVisionModel(t.CLIPVisionConfig(**IMAGE)),
    "Whisper": lambda t: whisper_encoder(),
    "ResNet": lambda t: t.ResNetModel(t.ResNetConfig(embedding_size=16, **LAYERS)),
    "ConvNeXt": lambda t: t.ConvNextModel(t.ConvNextConfig(image_size=64, **LAYERS)),
}
OLD_EXPORTER = {"T5"}
"""What PyTorch's newer exporter cannot write."""


class LastState(torch.nn.Module):
    """A model's first result alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x).last_hidden_state


TEXTS = ("BERT", "GPT-2", "Llama", "Mistral", "T5")


def example(name: str, batch: int = 1, sequence: int = 7) -> Any:
    if name in TEXTS:
        return torch.randint(0, 99, (batch, sequence))
    return torch.randn(batch, 20, 100) if name == "Whisper" else torch.randn(batch, 3, 64, 64)


def exported(name: str, model: Any, x: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_old = name in OLD_EXPORTER
        torch.onnx.export(model, (x,), file, dynamo=not is_old, opset_version=17 if is_old else 20,
                          input_names=["x"], output_names=["y"], verbose=False, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", list(MODELS))
def test_an_exported_model_gives_what_pytorch_gives(name: str) -> None:
    torch.manual_seed(0)
    model = LastState(MODELS[name](transformers)).eval()
    x = example(name)
    run = OnnxRunner(exported(name, model, x))
    expected = model(x).detach().numpy()
    for _ in range(3):  # computed, traced, replayed
        np.testing.assert_allclose(run(x=x.numpy())["y"].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert not run._reads_values


@pytest.mark.parametrize("name", [*TEXTS, "ViT", "ConvNeXt"])
def test_one_trace_serves_all_sizes_of_an_exported_model(name: str) -> None:
    torch.manual_seed(0)
    model = LastState(MODELS[name](transformers)).eval()
    axes = {0: "batch", 1: "sequence"} if name in TEXTS else {0: "batch"}
    dims = {i: torch.export.Dim(axis, min=1, max=64) for i, axis in axes.items()}
    said = {"dynamic_axes": {"x": axes}} if name in OLD_EXPORTER else {"dynamic_shapes": (dims,)}
    data = exported(name, model, example(name, 2), **said)
    run = OnnxRunner(data, sizes=dict.fromkeys(axes.values(), (1, 16)))
    for batch, sequence in ((2, 7), (1, 16), (3, 1), (4, 5)):
        x = example(name, batch, sequence)
        np.testing.assert_allclose(run(x=x.numpy())["y"].numpy(), model(x).detach().numpy(), rtol=1e-4,
                                   atol=1e-5)
    assert run._axes is not None
    assert [len(jit.traces) for jit in run._kinds.values() if jit is not None] == [1]
