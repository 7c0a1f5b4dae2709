"""`python -m bench torch`: PyTorch's models through `torch.compile(backend="tinygrad")`, beside inductor and
eager PyTorch, in turns.

The models are those of `transformers`, with random weights, of a few million parameters: sizes at which a
step takes tens of milliseconds on two cores. Each model runs in a process for each way, which begins with
nothing compiled; a turn runs forward passes (`no_grad`, `eval`) and training steps (loss, gradients, SGD).
"""
from __future__ import annotations

import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from bench.child import Answer, Child, ChildError, answer_lines, peak_bytes
from bench.results import columns

WAYS = ("tinygrad", "inductor", "eager")
WARM_UPS = 3
"""Runs after the first that are not counted."""
AGREES = 1e-3
"""By how much, of its size, a loss may be another than eager's."""

# --- the models ---------------------------------------------------------------------------------------------

VOCABULARY, TOKENS, BATCH = 8000, 128, 4
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024}
GROUPED = {**TEXT, "num_key_value_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGES = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768,
          "image_size": 112, "patch_size": 8}
PAIR = {"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "dropout": 0.0,
        "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1}


def text() -> dict[str, Any]:
    import torch

    tokens = torch.randint(3, VOCABULARY, (BATCH, TOKENS))
    return {"input_ids": tokens, "labels": tokens}


def two_texts() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, TOKENS)),
            "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, TOKENS // 2))}


def images() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(BATCH, 3, 112, 112), "labels": torch.arange(BATCH)}


def speech() -> dict[str, Any]:
    import torch

    return {"input_features": torch.randn(BATCH, 80, 400),
            "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, TOKENS // 2))}


def text_and_images() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(3, VOCABULARY - 2, (BATCH, 32)), "return_loss": True,
            "pixel_values": torch.randn(BATCH, 3, 112, 112)}


@dataclass(frozen=True)
class Network:
    """A class of `transformers` with its configuration, and what it is given."""

    model: str
    config: str
    settings: dict[str, Any]
    inputs: Callable[[], dict[str, Any]] = text

    def make(self) -> Any:
        import transformers

        made = getattr(transformers, self.config)(**self.settings)
        return getattr(transformers, self.model)(made)


NETWORKS = {
    "bert": Network("BertForMaskedLM", "BertConfig", {**TEXT, **NO_DROPOUT}),
    "roberta": Network("RobertaForMaskedLM", "RobertaConfig", {**TEXT, **NO_DROPOUT}),
    "distilbert": Network("DistilBertForMaskedLM", "DistilBertConfig", {
        "vocab_size": VOCABULARY, "dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024, "dropout": 0.0,
        "attention_dropout": 0.0}),
    "electra": Network("ElectraForMaskedLM", "ElectraConfig", {**TEXT, **NO_DROPOUT}),
    "gpt2": Network("GPT2LMHeadModel", "GPT2Config", {
        "vocab_size": VOCABULARY, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "gpt-neox": Network("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT),
    "opt": Network("OPTForCausalLM", "OPTConfig", {
        "vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "ffn_dim": 1024, "dropout": 0.0, "word_embed_proj_dim": 256, "max_position_embeddings": 256}),
    "llama": Network("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": Network("MistralForCausalLM", "MistralConfig", GROUPED),
    "qwen2": Network("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "gemma": Network("GemmaForCausalLM", "GemmaConfig", {**GROUPED, "head_dim": 64}),
    "t5": Network("T5ForConditionalGeneration", "T5Config", {
        "vocab_size": VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 2, "num_heads": 4,
        "dropout_rate": 0.0}, two_texts),
    "bart": Network("BartModel", "BartConfig", PAIR, two_texts),
    "whisper": Network("WhisperModel", "WhisperConfig", {
        **PAIR, "max_source_positions": 200, "max_target_positions": 64}, speech),
    "vit": Network("ViTForImageClassification", "ViTConfig", {**IMAGES, "num_labels": 10}, images),
    "swin": Network("SwinForImageClassification", "SwinConfig", {
        "image_size": 112, "patch_size": 4, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6],
        "window_size": 7, "num_labels": 10, "drop_path_rate": 0.0}, images),
    "clip": Network("CLIPModel", "CLIPConfig", {
        "text_config": {**TEXT, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1},
        "vision_config": IMAGES, "projection_dim": 128}, text_and_images),
    "resnet18": Network("ResNetForImageClassification", "ResNetConfig", {
        "embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2],
        "layer_type": "basic", "num_labels": 10}, images),
    "convnext": Network("ConvNextForImageClassification", "ConvNextConfig", {
        "hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2], "num_labels": 10}, images),
    "mobilenet-v2": Network("MobileNetV2ForImageClassification", "MobileNetV2Config", {
        "image_size": 112, "num_labels": 10, "classifier_dropout_prob": 0.0}, images),
}

# --- one model, one way, in a process of its own ------------------------------------------------------------


def loss_of(output: Any) -> Any:
    """The model's own loss, or where it has none one of its first result."""
    loss = getattr(output, "loss", None)
    return output[0].square().mean() if loss is None else loss


class Trial:
    """A model that runs one way."""

    def __init__(self, network: Network, way: str) -> None:
        import torch

        torch.manual_seed(0)
        self.model = network.make()
        self.given = network.inputs()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.run = self.model
        if way == "tinygrad":
            from tinygrad.torch import backend

            self.run = torch.compile(self.model, backend=backend)
        elif way == "inductor":
            self.run = torch.compile(self.model)

    def forward(self) -> float:
        import torch

        with torch.no_grad():
            return float(loss_of(self.run(**self.given)))

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = loss_of(self.run(**self.given))
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def timed(self, what: str, repeats: int) -> list[float]:
        self.model.train(what == "step")
        run = self.step if what == "step" else self.forward
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.loss = run()
            seconds.append(time.perf_counter() - start)
        return seconds


def answering(name: str, way: str, threads: int) -> Answer:
    """What runs a model in one way, as asked."""
    import torch

    torch.set_num_threads(threads)
    trial = Trial(NETWORKS[name], way)

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        seconds = trial.timed(asked["what"], asked["repeats"])
        return {"seconds": seconds, "loss": trial.loss, "peak": peak_bytes()}

    return answer


# --- all of them, in turns ----------------------------------------------------------------------------------


@dataclass
class ModelRow:
    """What a model took, by way: the first call and the later ones, of forward passes and of steps."""

    name: str
    first: dict[str, dict[str, float]] = field(default_factory=dict)
    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def middle(self, way: str, what: str) -> float | None:
        found = self.times.get(way, {}).get(what)
        return statistics.median(found) if found else None


def begun(name: str, way: str, threads: int, cache: str) -> Child:
    """A process with a model that runs one way."""
    variables = {"XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": cache, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "bench.torch_models", name, way, str(threads)]
    return Child(way, command, threads, variables)


def row_of(name: str, rounds: int, burst: float, threads: int) -> ModelRow:
    """One model, all ways in turns: `rounds` turns of about `burst` seconds each."""
    row = ModelRow(name)
    with TemporaryDirectory(prefix="bench-") as cache:
        runs = {way: begun(name, way, threads, cache) for way in WAYS}
        losses: dict[str, float] = {}
        for what in ("forward", "step"):
            repeats: dict[str, int] = {}
            for way in [w for w in WAYS if w not in row.failures]:
                try:
                    found = runs[way].ask(what=what, repeats=1)
                    losses[way] = found["loss"]
                    row.first.setdefault(way, {})[what] = found["seconds"][0]
                    warm = min(runs[way].ask(what=what, repeats=WARM_UPS)["seconds"])
                except ChildError as error:
                    row.failures[way] = f"{what}: {error}"
                    continue
                repeats[way] = max(1, round(burst / warm))
                row.times.setdefault(way, {})[what] = []
            for _ in range(rounds):
                for way, count in repeats.items():
                    found = runs[way].ask(what=what, repeats=count)
                    row.times[way][what] += found["seconds"]
                    row.peak[way] = found["peak"]
            for way in repeats:
                ours, eager = losses[way], losses.get("eager", losses[way])
                if not math.isclose(ours, eager, rel_tol=AGREES):
                    row.failures[way] = f"{what}: a loss of {ours:.6g}, eager has {eager:.6g}"
        for run in runs.values():
            run.close()
    return row


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def torch_table(rows: Sequence[ModelRow]) -> str:
    """Milliseconds of each, ours first, and the ratio to inductor's; seconds of the first calls; memory."""
    head = ["model"]
    for what in ("forward", "step"):
        head += [f"{what}, ms", *WAYS[1:], "ratio"]
    lines = [[*head, "first, s", *WAYS[1:], "peak, MB", *WAYS[1:]]]
    ratios: dict[str, list[float]] = {"forward": [], "step": [], "first": []}
    for row in rows:
        cells = [row.name]
        for what in ("forward", "step"):
            times = [row.middle(way, what) for way in WAYS]
            cells += ["-" if t is None else f"{t * 1e3:.1f}" for t in times]
            ours, theirs = times[0], times[1]
            cells.append("-" if ours is None or theirs is None else f"{ours / theirs:.2f}")
            if ours is not None and theirs is not None:
                ratios[what].append(ours / theirs)
        first = [sum(row.first[way].values()) if way in row.first else None for way in WAYS]
        cells += ["-" if t is None else f"{t:.1f}" for t in first]
        if first[0] is not None and first[1] is not None:
            ratios["first"].append(first[0] / first[1])
        cells += [f"{row.peak[way] / 1e6:.0f}" if way in row.peak else "-" for way in WAYS]
        lines.append(cells)
    means = (f"{what} {geometric_mean(found):.2f}" for what, found in ratios.items() if found)
    return f"{columns(lines)}\ngeometric means of ours over inductor's: {', '.join(means)}"


def chosen_networks(only: Sequence[str] | None) -> list[str]:
    """The models whose names contain one of these texts. Raises RuntimeError where PyTorch or transformers
    is missing."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"not installed: {', '.join(missing)} (pip install torch==2.13.0 transformers)")
    return [name for name in NETWORKS if not only or any(part in name for part in only)]


if __name__ == "__main__":
    answer_lines(lambda: answering(sys.argv[1], sys.argv[2], int(sys.argv[3])))
