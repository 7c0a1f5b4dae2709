"""The ONNX models that are measured, each written to a file.

They are those that packages carry (silero-vad, magika, and the light architectures of the `onnx` package,
whose weights are constants and become random ones here), what PyTorch exports of models of `transformers`
with random weights, and a network that could drive a car.
"""
from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.torch_models import GROUPED, IMAGES, NETWORKS, PAIR, TEXT, TOKENS, VOCABULARY

LIGHT = ("squeezenet", "resnet50", "shufflenet", "densenet121", "inception_v1", "inception_v2", "vgg19",
         "zfnet512", "bvlc_alexnet")
PACKAGED = {"silero-vad": ("silero_vad", "data/silero_vad_16k_op15.onnx"),
            "magika": ("magika", "models/standard_v3_3/model.onnx")}

Write = Callable[[Path], None]


def models(only: Sequence[str] | None) -> Iterator[tuple[str, Write]]:
    """Names of the models whose packages are installed, and what writes each to a file."""
    writers: dict[str, Write] = {}
    for name, (package, path) in PACKAGED.items():
        if (found := packaged(package, path)) is not None:
            writers[name] = partial(write_copy, found)
    for name in LIGHT:
        if (found := packaged("onnx", f"backend/test/data/light/light_{name}.onnx")) is not None:
            writers[name] = partial(write_with_weights, found)
    if all(map(importlib.util.find_spec, ("torch", "transformers", "onnxscript"))):
        writers |= {f"{name}, exported": partial(write_export, export) for name, export in EXPORTS.items()}
    writers["driving"] = write_driving
    for name, write in writers.items():
        if not only or any(text in name for text in only):
            yield name, write


def packaged(package: str, path: str) -> Path | None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / path
    return file if file.exists() else None


def write_copy(source: Path, path: Path) -> None:
    path.write_bytes(source.read_bytes())


def write_with_weights(source: Path, path: Path) -> None:
    """The model with random weights in place of nodes that make constants, of a size that keeps values in
    range."""
    import onnx

    model, rng = onnx.load(source), np.random.default_rng(0)
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = shapes[node.input[0]]
            weights = rng.uniform(0, 2 / max(1, math.prod(shape[1:])), shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights, node.output[0]))
        else:
            model.graph.node.append(node)
    onnx.save(model, path)


def write_driving(path: Path) -> None:
    """Computed in float32: ONNX Runtime has no kernels of float16 for the CPU."""
    import onnx

    from bench.driving_model import Network

    onnx.save(Network().write(), path)


# --- exports of PyTorch -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Export:
    """A model of `transformers`, what it is given, and how PyTorch writes it."""

    make: Callable[[Any], Any]
    """of the module `transformers`"""
    shape: tuple[int, ...] | None = None
    """of the floats that it is given; None: it is given one text"""
    is_old: bool = False
    """whether PyTorch's newer exporter cannot write it"""


def whisper_encoder(transformers: Any) -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(**PAIR, max_source_positions=200, max_target_positions=64)
    return WhisperEncoder(config)


PICTURE = (1, 3, 112, 112)
DECODER = {**GROUPED, "use_cache": False}
EXPORTS = {
    "bert": Export(lambda t: t.BertModel(t.BertConfig(**TEXT))),
    "gpt2": Export(lambda t: t.GPT2Model(t.GPT2Config(**NETWORKS["gpt2"].settings, use_cache=False))),
    "llama": Export(lambda t: t.LlamaModel(t.LlamaConfig(**DECODER))),
    "mistral": Export(lambda t: t.MistralModel(t.MistralConfig(**DECODER))),
    "t5": Export(lambda t: t.T5EncoderModel(t.T5Config(**NETWORKS["t5"].settings)), is_old=True),
    "vit": Export(lambda t: t.ViTModel(t.ViTConfig(**IMAGES)), PICTURE),
    "clip": Export(lambda t: t.CLIPVisionModel(t.CLIPVisionConfig(**IMAGES)), PICTURE),
    "whisper": Export(whisper_encoder, (1, 80, 400)),
    "resnet18": Export(lambda t: t.ResNetModel(t.ResNetConfig(**NETWORKS["resnet18"].settings)), PICTURE),
    "convnext": Export(lambda t: t.ConvNextModel(t.ConvNextConfig(**NETWORKS["convnext"].settings)), PICTURE),
}


def write_export(export: Export, path: Path) -> None:
    import torch
    import transformers

    class LastState(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        """A model's first result alone."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x).last_hidden_state

    torch.manual_seed(0)
    model = LastState(export.make(transformers)).eval()
    x = torch.randint(3, VOCABULARY, (1, TOKENS)) if export.shape is None else torch.randn(export.shape)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), dynamo=not export.is_old, external_data=False,
                          opset_version=17 if export.is_old else 20, input_names=["x"], output_names=["y"],
                          verbose=False)
