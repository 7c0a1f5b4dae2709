"""Hugging Face folders as people have them: weights in PyTorch's own files, what is quantised refused, tokens
that the model has no embedding for, special tokens and templates wherever they are said."""
import json

import numpy as np
import pytest

for module, extra in (("torch", "torch"), ("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"),
                      ("transformers", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")

import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tiny_models import SPECIAL, letters  # noqa: E402

from tinygrad.llm.checkpoint import read_checkpoint  # noqa: E402
from tinygrad.llm.grammar import SchemaMask  # noqa: E402
from tinygrad.llm.language_model import LanguageModel  # noqa: E402
from tinygrad.llm.sampling import Sampling  # noqa: E402
from tinygrad.llm.templates import conversation  # noqa: E402

VOCABULARY = len(SPECIAL) + 256


def write_folder(path, texts=(), **files):
    """A Llama with a token for each byte, the special ones, and one for each of `texts` that there is no
    embedding for; files of JSON by their names. Gives the model."""
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        eos_token_id=[0, 2], tie_word_embeddings=True, initializer_range=0.3)).eval()
    made.save_pretrained(path)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(
        {name: place for place, name in enumerate([*SPECIAL, *letters()])}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens([*SPECIAL, *texts])
    inner.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    return path, write_folder(path)


def continued(made, prompt, count):
    """The likeliest tokens one after another."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(made(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt):]


def without_weights(folder, path):
    """A copy of a folder to which other weights can be given."""
    for name in ("config.json", "tokenizer.json"):
        (path / name).write_bytes((folder[0] / name).read_bytes())
    return path


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_in_files_of_pytorch(folder, tmp_path, legacy):
    path = without_weights(folder, tmp_path)
    torch.save(folder[1].state_dict(), path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    model = LanguageModel(path, dtype="float32")
    prompt = model.tokenizer.encode("he said")
    found = model.generator.run(model.generator.submit(prompt, Sampling(tokens=8, ignore_ends=True)))
    assert found.tokens == continued(folder[1], prompt, 8)


def test_weights_in_several_files_of_pytorch(folder, tmp_path):
    path = without_weights(folder, tmp_path)
    places = {name: f"pytorch_model-{i % 2 + 1:05}-of-00002.bin"
              for i, name in enumerate(folder[1].state_dict())}
    for file in set(places.values()):
        held = {name: weight for name, weight in folder[1].state_dict().items() if places[name] == file}
        torch.save(held, path / file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    found, expected = read_checkpoint(path), read_checkpoint(folder[0])
    assert found.weights.keys() == expected.weights.keys()
    for name, packed in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name].value.numpy(), packed.value.numpy())
    torch.save([1], path / file)
    with pytest.raises(ValueError, match=f"{file} holds a list, no weights by name"):
        read_checkpoint(path)


def test_a_folder_without_weights_says_which_it_looked_for(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no weights: there is no model.safetensors or pytorch_model"):
        read_checkpoint(without_weights(folder, tmp_path))


def test_quantised_weights_are_refused(folder, tmp_path):
    """Those of eight bits were read as if they had no scales."""
    path = without_weights(folder, tmp_path)
    weights = folder[1].state_dict() | {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}
    torch.save(weights, path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="'model.layers.0.mlp.up_proj.weight_scale' is no weight of a llama"):
        read_checkpoint(path)
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(content | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ValueError, match="weights that are quantised by 'fp8' are not known"):
        read_checkpoint(path)


def test_an_added_token_may_have_no_embedding(tmp_path):
    """Gemma 3 of 1B has one for pictures, after all that it has embeddings for."""
    made = write_folder(tmp_path, ["<picture>"])
    model = LanguageModel(tmp_path, dtype="float32")
    prompt = model.tokenizer.encode("he")
    request = model.complete("he", Sampling(tokens=5, ignore_ends=True))
    assert request.tokens == continued(made, prompt, 5)
    with pytest.raises(ValueError, match=f"tokens are numbers from 0 to {VOCABULARY - 1}"):
        model.complete("a <picture>")
    mask = SchemaMask(model.tokenizer, VOCABULARY, {"type": "string"})
    assert np.flatnonzero(mask.apply(np.zeros(VOCABULARY)) == 0).tolist() == [len(SPECIAL) + ord('"')]


@pytest.mark.parametrize("template", [
    "{{ bos_token }}{{ messages[0].content }}",
    [{"name": "tool_use", "template": "no"},
     {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}],
    {"tool_use": "no", "default": "{{ bos_token }}{{ messages[0].content }}"}])
def test_templates_and_special_tokens_wherever_they_are(tmp_path, template):
    write_folder(tmp_path, tokenizer_config={"chat_template": template, "eos_token": None},
                 special_tokens_map={"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"})
    (tmp_path / "generation_config.json").unlink()
    tokenizer = LanguageModel(tmp_path).tokenizer
    assert conversation(tokenizer, [{"role": "user", "content": "hi"}]) == "<|im_start|>hi"
    assert tokenizer.ends == {0, 2}
