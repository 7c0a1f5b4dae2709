"""Models in files: a GGUF file or a Hugging Face folder as a `Checkpoint`.

Of a model that is split into several GGUF files, the first stands for all.
A folder has config.json, the weights in one or several safetensors files (with an index then) or PyTorch's
own in their place, and tokenizer.json. Its weights get the names that GGUF files use, and the few that are
stored another way are changed: GPT-2's products are transposed, norms of Gemma are kept as their distance
from 1, the experts of a layer are one tensor. All others are read from where they lie. Files are data from
strangers: see `nn/gguf_files.py` and `nn/state.py`.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.llm.config import Config, from_gguf, from_hugging_face
from tinygrad.nn.block_formats import Packed
from tinygrad.nn.gguf_files import gguf_packed
from tinygrad.nn.state import safe_load, torch_load
from tinygrad.tensor import Tensor


@frozen
class Checkpoint:
    """What a file or folder says: the configuration, weights by name, and the metadata of a GGUF file or the
    JSON files of a folder, from which the tokenizer is made."""

    path: Path
    config: Config
    weights: dict[str, Packed]
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()

    def to(self, device: str) -> dict[str, Packed]:
        """The weights on a device, there to stay: no gradient goes on from them to the file."""
        with Tensor.no_grad():
            moved = {name: packed.to(device) for name, packed in self.weights.items()}
        Tensor.realize(*(packed.stored for packed in moved.values()))
        return moved


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The model in a GGUF file or a Hugging Face folder.

    Raises FileNotFoundError where there is none, ValueError for a model that is not known or is damaged.
    """
    place = Path(path)
    if place.is_dir():
        return _read_folder(place)
    if not place.is_file():
        raise FileNotFoundError(f"there is no model at {place}: neither a GGUF file nor a folder")
    return _read_gguf(place)


# --- GGUF -------------------------------------------------------------------------------------------------

ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def _read_gguf(path: Path) -> Checkpoint:
    metadata, weights = gguf_packed(path)
    for part in _other_parts(path, metadata.get("split.count", 1)):
        more = gguf_packed(part)[1]
        if weights.keys() & more.keys():
            raise ValueError(f"{part} has the tensor {min(weights.keys() & more.keys())!r}, "
                             "which a file before it has")
        weights |= more
    factors = {name: weights.pop(name).value.to("CPU").tolist() for name in ROPE_FACTORS if name in weights}
    if "token_embd.weight" not in weights or len(weights["token_embd.weight"].shape) != 2:
        raise ValueError(f"{path} holds no language model: it has no token_embd.weight of two axes")
    config = from_gguf(metadata, factors, weights["token_embd.weight"].shape[0])
    return Checkpoint(path, config, weights, metadata)


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def _other_parts(path: Path, count: Any) -> list[Path]:
    """The files after the first of a model that is split into so many, by their names."""
    if count in (0, 1):
        return []
    found = _PART.fullmatch(path.name)
    if found is None or (int(found[2]), int(found[3])) != (1, count):
        raise ValueError(f"{path} is one of {count} files of a model: give the first, "
                         "whose name is NAME-00001-of-N.gguf")
    parts = [path.with_name(f"{found[1]}-{i:05}-of-{found[3]}.gguf") for i in range(2, count + 1)]
    missing = [part for part in parts if not part.is_file()]
    if missing:
        raise FileNotFoundError(f"{missing[0]} is not there: {path} is the first of {count} files")
    return parts


# --- Hugging Face folders ---------------------------------------------------------------------------------

_OUTSIDE = {
    "embed_tokens": "token_embd", "wte": "token_embd", "wpe": "position_embd", "norm": "output_norm",
    "ln_f": "output_norm", "lm_head": "output",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_OF_EXPERTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up",
               "down_proj": "down"}
KINDS = ("weight", "bias")
"""The last part of a weight's name; scales of quantised ones have others."""
_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)")
_LEADING = re.compile(r"(?:language_model\.|model\.|transformer\.)*")
_OF_PICTURES = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.")
"""Weights that only read pictures, beside a language model."""
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")
"""Buffers that older checkpoints have among the weights."""


def _read_folder(path: Path) -> Checkpoint:
    content = _json(path / "config.json")
    config = from_hugging_face(content)
    quantized = content.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, Mapping) else quantized
        raise ValueError(f"{path}: weights that are quantised by {method!r:.50} are not known; known are "
                         "plain ones, and GGUF files")
    weights: dict[str, Packed] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in _shards(path):
        if _COMPUTED.search(name) or ("text_config" in content and _OF_PICTURES.match(name)):
            continue
        own, expert = gguf_name(name, config)
        if expert is not None:
            experts.setdefault(own, {})[expert] = tensor
        elif not (config.tied and own == "output.weight"):
            weights[own] = _stored(_as_gguf(own, tensor, config))
    for own, parts in experts.items():
        if sorted(parts) != list(range(config.experts)):
            raise ValueError(f"{path}: {own} has experts {sorted(parts)}, config.json says {config.experts}")
        weights[own] = _stored(parts[0].stack(*(parts[i] for i in range(1, config.experts))).realize())
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
    metadata: dict[str, Any] = {name: _json(path / name) for name in names if (path / name).exists()}
    template = path / "chat_template.jinja"
    if template.exists():
        metadata["chat_template"] = _text(template)
    return Checkpoint(path, config, weights, metadata | {"config.json": content})


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from error


def _pytorch_weights(path: Path) -> dict[str, Tensor]:
    """What torch.save wrote of a model's state_dict."""
    found = torch_load(path)
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} holds a {type(found).__name__}, no weights by name")
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, Tensor)}


WEIGHT_FILES: dict[str, Callable[[Path], dict[str, Tensor]]] = {"model.safetensors": safe_load,
                                                                "pytorch_model.bin": _pytorch_weights}
"""The names of a folder's weights, where they are in one file, and what reads such files."""


def _shards(path: Path) -> Iterable[tuple[str, Tensor]]:
    """The tensors of a folder by name, from one file or from all that its index names."""
    for name, load in WEIGHT_FILES.items():
        index = path / f"{name}.index.json"
        if index.exists():
            yield from _indexed(index, load)
            return
        if (path / name).exists():
            yield from load(path / name).items()
            return
    raise FileNotFoundError(f"{path} has no weights: there is no {' or '.join(WEIGHT_FILES)}, and no "
                            "index of several files (NAME.index.json)")


def _indexed(index: Path, load: Callable[[Path], dict[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """The tensors of the files that an index names."""
    places = _json(index).get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(x, str) for x in places.values()):
        raise ValueError(f"{index} has no weight_map of file names")
    for file in sorted(set(places.values())):
        if Path(file).name != file:
            raise ValueError(f"{index} names {file!r}, which is no file of this folder")
        held = load(index.parent / file)
        wanted = [name for name, place in places.items() if place == file]
        missing = [name for name in wanted if name not in held]
        if missing:
            raise ValueError(f"{index.parent / file} lacks {missing[0]!r}, which {index.name} says it holds")
        yield from ((name, held[name]) for name in wanted)


def gguf_name(name: str, config: Config) -> tuple[str, int | None]:
    """What GGUF files call a tensor of a Hugging Face checkpoint, and which of the experts it is of.

    Raises ValueError for a name that is not known.
    """
    rest = _LEADING.sub("", name, count=1)
    stem, _, kind = rest.rpartition(".")
    layer = _LAYER.fullmatch(stem)
    if layer is None and stem in _OUTSIDE and kind in KINDS:
        return f"{_OUTSIDE[stem]}.{kind}", None
    if layer is None or kind not in KINDS:
        raise ValueError(f"{name!r} is no weight of a {config.architecture} model that is known")
    number, part = layer.groups()
    expert = _EXPERT.fullmatch(part)
    if expert is not None and expert[2] in _OF_EXPERTS:
        return f"blk.{number}.ffn_{_OF_EXPERTS[expert[2]]}_exps.{kind}", int(expert[1])
    if part == "post_attention_layernorm":
        after = config.architecture in ("gemma2", "gemma3", "olmo2", "olmo3")
        return f"blk.{number}.{'post_attention_norm' if after else 'ffn_norm'}.{kind}", None
    if part not in _IN_LAYER:
        raise ValueError(f"{name!r} is no weight of a {config.architecture} model that is known")
    return f"blk.{number}.{_IN_LAYER[part]}.{kind}", None


def _as_gguf(name: str, tensor: Tensor, config: Config) -> Tensor:
    """A weight as GGUF files have it, where that is another way than in Hugging Face checkpoints."""
    if config.architecture.startswith("gemma") and name.endswith("norm.weight"):
        return (tensor.cast(dtypes.float32) + 1).realize()
    if name.endswith("gate_inp_shexp.weight"):
        return tensor.reshape(-1)
    if config.architecture == "gpt2" and name.startswith("blk.") and tensor.ndim == 2:
        return tensor.transpose(0, 1).contiguous().realize()
    return tensor


def _stored(tensor: Tensor) -> Packed:
    tensor.requires_grad = False
    return Packed(tensor.reshape(-1), None, tensor.shape)
