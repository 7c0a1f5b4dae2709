"""Language models of every architecture with random weights, beside `transformers`: the same scores, from a
folder in several shards, with a part of the tokens at once and the rest one by one. GGUF files of the same
weights, by the names and permutations that the `gguf` package and llama.cpp's converter use, give the
same."""
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import write_tiny

from tinygrad import Tensor, Variable
from tinygrad.llm.cache import Cache, Rows
from tinygrad.llm.checkpoint import read_checkpoint
from tinygrad.llm.config import from_gguf, from_hugging_face
from tinygrad.llm.model import Transformer, check_shapes, expected_shapes
from tinygrad.llm.rope import Rope
from tinygrad.nn.block_formats import Packed
from tinygrad.nn.state import gguf_load, gguf_save, safe_save

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is in the extra test-models")

SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, eos_token_id=1,
             bos_token_id=1, pad_token_id=0)
EXPERTS = SMALL | dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)


def stretched(**rope):
    return {"rope_parameters": dict(rope_theta=10000.0, **rope)}


MODELS = {
    "llama 2": ("LlamaConfig", SMALL | dict(num_key_value_heads=4)),
    "llama 3": ("LlamaConfig", SMALL | stretched(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)),
    "llama, yarn": ("LlamaConfig", SMALL | stretched(rope_type="yarn", factor=4.0,
                                                     original_max_position_embeddings=32)),
    "llama, yarn of two magnitudes": ("LlamaConfig", SMALL | stretched(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.0,
        truncate=False)),
    "llama, dynamic": ("LlamaConfig", SMALL | stretched(rope_type="dynamic", factor=2.0)),
    "llama, linear": ("LlamaConfig", SMALL | stretched(rope_type="linear", factor=4.0)),
    "smollm": ("LlamaConfig", SMALL | dict(tie_word_embeddings=True)),
    "mistral": ("MistralConfig", SMALL | dict(sliding_window=5)),
    "mistral, kinds of layers": ("MistralConfig", SMALL | dict(
        sliding_window=5, layer_types=["full_attention", "sliding_attention"])),
    "ministral": ("MinistralConfig", SMALL | dict(
        head_dim=8, sliding_window=5, layer_types=["sliding_attention", "full_attention"])),
    "mixtral, windows not in use": ("MixtralConfig", SMALL | dict(
        sliding_window=5, use_sliding_window=False, num_local_experts=4, num_experts_per_tok=2)),
    "mistral, fields of others": ("MistralConfig", SMALL | dict(
        attention_bias=True, mlp_bias=True) | stretched(rope_type="default", partial_rotary_factor=0.5)),
    "qwen2": ("Qwen2Config", SMALL),
    "qwen3": ("Qwen3Config", SMALL | dict(head_dim=16)),
    "gemma": ("GemmaConfig", SMALL | dict(head_dim=16)),
    "gemma2": ("Gemma2Config", SMALL | dict(head_dim=16, sliding_window=5, query_pre_attn_scalar=24)),
    "gemma2, exact gelu": ("Gemma2Config", SMALL | dict(head_dim=12, hidden_activation="gelu",
                                                        attn_logit_softcapping=0.7)),
    "gemma3, caps": ("Gemma3TextConfig", SMALL | dict(attn_logit_softcapping=3.0,
                                                      final_logit_softcapping=5.0)),
    "gemma3": ("Gemma3TextConfig", SMALL | dict(num_hidden_layers=7, head_dim=16, sliding_window=5,
                                                query_pre_attn_scalar=24)),
    "phi3": ("Phi3Config", SMALL),
    "phi3, longrope": ("Phi3Config", SMALL | dict(original_max_position_embeddings=16) | stretched(
        rope_type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0],
        original_max_position_embeddings=16)),
    "gpt2": ("GPT2Config", dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                                bos_token_id=1,
                                eos_token_id=1)),
    "gpt2, scaled by layer": ("GPT2Config", dict(
        vocab_size=96, n_embd=30, n_layer=2, n_head=3, n_positions=128, n_inner=50, bos_token_id=1,
        eos_token_id=1, scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True)),
    "olmo": ("OlmoConfig", SMALL | dict(clip_qkv=0.1)),
    "olmo, one eps": ("OlmoConfig", SMALL | dict(rms_norm_eps=1e-3)),
    "olmo2": ("Olmo2Config", SMALL),
    "olmo3": ("Olmo3Config", SMALL | dict(
        num_hidden_layers=5, sliding_window=5, rope_theta=500000.0,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32))),
    "mixtral": ("MixtralConfig", SMALL | dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2moe": ("Qwen2MoeConfig", EXPERTS | dict(shared_expert_intermediate_size=40)),
    "qwen3moe": ("Qwen3MoeConfig", EXPERTS | dict(head_dim=16, norm_topk_prob=True)),
    "qwen3moe, a window": ("Qwen3MoeConfig", EXPERTS | dict(sliding_window=5, use_sliding_window=True,
                                                            max_window_layers=1)),
}
IN_THE_DEFAULT_RUN = ("llama 3", "gemma2", "qwen3moe")
TOKENS = np.random.default_rng(0).integers(0, 96, 20)
LONG = 64
"""Tokens that the caches here hold."""


def reference(name, folder):
    """A model of this kind with random weights, saved in a folder, and its scores of all tokens."""
    config, fields = MODELS[name]
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**fields),
                                                         attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape) * (0.3 if weight.ndim > 1 else 0.5) + 0.3
                         * (weight.ndim == 1))
    made.save_pretrained(folder, max_shard_size="20KB")
    read = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():  # a config.json may mean another model than what it was written of
        scores = read(torch.from_numpy(TOKENS[None])).logits[0].numpy()
    return made, scores


def scores_of(checkpoint, dtype="float32", together=15):
    """The scores of all tokens: the first ones in one step, then one by one."""
    config = checkpoint.config
    model = Transformer(config, checkpoint.to("CPU"))
    cache = Cache(config.layers, 1, config.kv_heads, LONG, config.head_size, dtype)
    tokens = Tensor(TOKENS.astype(np.int32)[None])
    positions = Tensor(np.arange(len(TOKENS), dtype=np.int32)[None])
    parts = [model.hidden(tokens[:, :together], positions[:, :together], cache, Rows(0, [0], together))]
    for i in range(together, len(TOKENS)):
        place, length = Variable("place", 0, LONG - 1).bind(i), Variable("length", 1, LONG).bind(i + 1)
        parts.append(model.hidden(tokens[:, i:i + 1], positions[:, i:i + 1], cache,
                                  Rows(0, [place], length)).realize())
    return np.concatenate([model.logits(part)[0].numpy() for part in parts])


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in IN_THE_DEFAULT_RUN else pytest.mark.slow) for name in MODELS])
def test_scores_are_those_of_transformers(tmp_path, name):
    _, expected = reference(name, tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    np.testing.assert_allclose(scores_of(read_checkpoint(tmp_path)), expected, rtol=0, atol=1e-4)


def test_dynamic_positions_are_stretched_for_more_tokens_than_the_model_was_trained_on(tmp_path):
    """And not for fewer, whatever config.json says of an original context."""
    MODELS["llama, dynamic, short"] = ("LlamaConfig", SMALL | dict(max_position_embeddings=12) | stretched(
        rope_type="dynamic", factor=2.0, original_max_position_embeddings=4))
    _, expected = reference("llama, dynamic, short", tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    model = Transformer(checkpoint.config, checkpoint.to("CPU"), context=20)
    np.testing.assert_allclose(model(Tensor(TOKENS.astype(np.int32)[None]))[0].numpy(), expected, rtol=0,
                               atol=1e-4)
    assert Transformer(checkpoint.config, checkpoint.to("CPU")).context == 12
    assert Transformer(checkpoint.config, checkpoint.to("CPU"), context=99).context == 24
    unstretched = checkpoint.config.rope.table(12)
    np.testing.assert_array_equal(unstretched, replace(checkpoint.config.rope, kind="default").table(12))


def test_positions_of_longrope_are_those_of_the_length_that_is_computed(tmp_path):
    """What there is room for chooses where sequences grow in a cache, their length where they are whole."""
    MODELS["phi3, longrope, short"] = ("Phi3Config", SMALL | dict(
        original_max_position_embeddings=64) | stretched(
        rope_type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0],
        original_max_position_embeddings=64))
    _, expected = reference("phi3, longrope, short", tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    model = Transformer(checkpoint.config, checkpoint.to("CPU"))
    np.testing.assert_allclose(model(Tensor(TOKENS.astype(np.int32)[None]))[0].numpy(), expected, rtol=0,
                               atol=1e-4)


@pytest.mark.slow
def test_the_language_model_of_one_that_reads_pictures(tmp_path):
    text = SMALL | dict(num_hidden_layers=3, head_dim=16, sliding_window=5, query_pre_attn_scalar=24)
    pictures = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                    image_size=28, patch_size=14)
    torch.manual_seed(0)
    config = transformers.Gemma3Config(text_config=text, vision_config=pictures, mm_tokens_per_image=4,
                                       image_token_index=97, boi_token_index=98, eoi_token_index=99)
    made = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape) * 0.3)
        expected = made(input_ids=torch.from_numpy(TOKENS[None])).logits[0].numpy()
    made.save_pretrained(tmp_path)
    np.testing.assert_allclose(scores_of(read_checkpoint(tmp_path)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 0.02), ("int8", 0.2)])
def test_keys_and_values_in_fewer_bits_change_scores_little(tmp_path, dtype, tolerance):
    _, expected = reference("llama 3", tmp_path)
    np.testing.assert_allclose(scores_of(read_checkpoint(tmp_path), dtype), expected, rtol=0, atol=tolerance)


def test_gradients_at_adapters_are_those_of_pytorch(tmp_path):
    """An adapter B A x beside a product W x, B = 0: the gradient at B is that at W, times A transposed."""
    made, expected = reference("llama 3", tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    model = Transformer(checkpoint.config, checkpoint.to("CPU"), activations="float32")
    tokens = Tensor(TOKENS.astype(np.int32)[None])
    np.testing.assert_allclose(model(tokens)[0].numpy(), expected, rtol=0, atol=1e-4)

    ids = torch.from_numpy(TOKENS[None])
    torch.nn.functional.cross_entropy(made(ids[:, :-1]).logits[0], ids[0, 1:]).backward()
    rows = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    for layer in range(2):
        down, up = Tensor(rows), Tensor.zeros(16, 3).clone()
        up.requires_grad = True
        model.adapters = {f"blk.{layer}.attn_v": lambda x, a=down, b=up: x @ a.transpose() @ b.transpose()}
        model(tokens[:, :-1]).sparse_categorical_crossentropy(tokens[:, 1:]).backward()
        at_weight = made.model.layers[layer].self_attn.v_proj.weight.grad.numpy()
        np.testing.assert_allclose(up.grad.numpy(), at_weight @ rows.T, rtol=1e-3, atol=1e-4)


def test_a_sequence_longer_than_the_positions_is_refused(tmp_path):
    reference("llama 3", tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    model = Transformer(checkpoint.config, checkpoint.to("CPU"), context=8)
    with pytest.raises(ValueError, match="positions for 8 tokens, not for 9"):
        model(Tensor.zeros(1, 9, dtype="int32"))


# --- GGUF -------------------------------------------------------------------------------------------------


def permuted(weight, heads):
    """Rows of queries or keys as llama.cpp's converter stores them: halves of a head interleaved."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(
        weight.shape)


GGUF_NAMES = {"llama 3": "LLAMA", "qwen2": "QWEN2", "gemma2": "GEMMA2", "phi3": "PHI3", "gpt2": "GPT2",
              "qwen3": "QWEN3", "olmo2": "OLMO2", "olmo3": "OLMO2"}


def converted(made, name, path):
    """The model in a GGUF file, as llama.cpp's converter writes it."""
    gguf = pytest.importorskip("gguf", reason="the gguf package is in the extra test-models")
    kind = gguf.MODEL_ARCH[GGUF_NAMES[name]]
    config, names = made.config, gguf.get_tensor_name_map(kind, made.config.num_hidden_layers)
    heads, kept = config.num_attention_heads, getattr(config, "num_key_value_heads",
                                                      config.num_attention_heads)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", 4 * config.hidden_size))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kept)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    if name == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        rope = config.rope_parameters.get("full_attention", config.rope_parameters)
        writer.add_rope_freq_base(rope["rope_theta"])
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
    if name == "olmo3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config.layer_types])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if name == "llama 3":
        plain = 10000.0 ** (-np.arange(0, 8, 2) / 8)
        writer.add_tensor("rope_freqs.weight",
                          (plain / made.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    for key, value in made.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.numpy().copy()
        if name == "llama 3" and "q_proj" in key:
            array = permuted(array, heads)
        if name == "llama 3" and "k_proj" in key:
            array = permuted(array, kept)
        if name == "gemma2" and key.endswith("norm.weight"):
            array = array + 1
        if name == "gpt2" and array.ndim == 2 and ".h." in key:
            array = np.ascontiguousarray(array.T)
        writer.add_tensor(names.get_name(key, (".weight", ".bias")), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "llama 3" else pytest.mark.slow) for name in GGUF_NAMES])
def test_a_gguf_file_of_the_same_weights_gives_the_same_scores(tmp_path, name):
    if name == "gemma2":
        MODELS[name][1]["query_pre_attn_scalar"] = 16  # llama.cpp takes the head's size
    made, expected = reference(name, tmp_path / "folder")
    converted(made, name, tmp_path / "model.gguf")
    np.testing.assert_allclose(scores_of(read_checkpoint(tmp_path / "model.gguf")), expected, rtol=0,
                               atol=1e-4)


def test_a_model_in_several_gguf_files(tmp_path):
    """Split as the package's writer does; each file but the first has weights alone."""
    gguf = pytest.importorskip("gguf", reason="the gguf package is in the extra test-models")
    write_tiny(tmp_path / "whole.gguf")
    metadata, tensors = gguf_load(tmp_path / "whole.gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=9)
    for key, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32,
               list: writer.add_array}
        if key != "general.architecture":
            add[type(value)](key, value)
    for key, tensor in tensors.items():
        writer.add_tensor(key, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, second, third = sorted(tmp_path.glob("m-*.gguf"))
    whole, found = read_checkpoint(tmp_path / "whole.gguf"), read_checkpoint(first)
    assert found.config == whole.config and found.weights.keys() == whole.weights.keys()
    np.testing.assert_array_equal(found.weights["output.weight"].value.numpy(),
                                  tensors["output.weight"].numpy())
    with pytest.raises(ValueError, match="is one of 3 files of a model: give the first"):
        read_checkpoint(second)
    third.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match="has the tensor 'blk.0.*', which a file before it has"):
        read_checkpoint(first)
    third.unlink()
    with pytest.raises(FileNotFoundError, match="m-00003-of-00003.gguf is not there"):
        read_checkpoint(first)


def test_quantised_weights_stay_in_blocks(tmp_path):
    made, expected = reference("llama 3", tmp_path / "folder")
    converted(made, "llama 3", tmp_path / "model.gguf")
    metadata, tensors = gguf_load(tmp_path / "model.gguf")
    formats = {key: "Q8_0" for key, t in tensors.items() if t.ndim == 2 and t.shape[1] % 32 == 0}
    gguf_save(tensors, tmp_path / "small.gguf", metadata, formats)
    checkpoint = read_checkpoint(tmp_path / "small.gguf")
    assert {packed.format for key, packed in checkpoint.to("CPU").items() if key in formats} == {"Q8_0"}
    np.testing.assert_allclose(scores_of(checkpoint), expected, rtol=0, atol=0.5)


@pytest.mark.parametrize("format, tolerance", [(None, 1e-4), ("Q8_0", 0.5)])
def test_experts_in_a_gguf_file_are_one_tensor_and_read_by_need(tmp_path, format, tolerance):
    _, expected = reference("qwen3moe", tmp_path / "folder")
    folder = read_checkpoint(tmp_path / "folder")
    config = folder.config
    metadata = {"general.architecture": "qwen3moe"} | {f"qwen3moe.{key}": value for key, value in {
        "block_count": config.layers, "context_length": config.context, "embedding_length": config.width,
        "feed_forward_length": config.hidden, "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads, "attention.key_length": config.head_size,
        "attention.layer_norm_rms_epsilon": config.eps, "rope.freq_base": 10000.0, "expert_count": 6,
        "expert_used_count": 2}.items()}
    weights = {name: packed.value for name, packed in folder.weights.items()}
    formats = {name: format for name in weights if "exps" in name and weights[name].shape[-1] % 32 == 0}
    gguf_save(weights, tmp_path / "model.gguf", metadata, formats if format else None)
    read = read_checkpoint(tmp_path / "model.gguf")
    assert read.weights["blk.0.ffn_up_exps.weight"].format == format
    np.testing.assert_allclose(scores_of(read), expected, rtol=0, atol=tolerance)


# --- what is refused --------------------------------------------------------------------------------------


LLAMA = dict(model_type="llama", hidden_act="silu", **SMALL)


def folder_of(path, weights, **fields):
    path.mkdir(exist_ok=True)
    content = LLAMA | fields
    (path / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    if weights is not None:
        safe_save(weights, path / "model.safetensors")
    return path


@pytest.mark.parametrize("fields, reason", [
    (dict(model_type="mamba"), "architecture 'mamba' are not known; known are llama"),
    (dict(hidden_size=None), "no hidden_size or n_embd"),
    (dict(hidden_size="32"), "hidden_size is '32', not a number"),
    (dict(vocab_size=1 << 60), "vocabulary is 1152921504606846976 cannot be"),
    (dict(num_key_value_heads=3), "4 heads cannot share 3 heads of keys"),
    (dict(num_attention_heads=0), "heads is 0 cannot be"),
    (dict(hidden_act="relu6"), "activation 'relu6' is not known"),
    (dict(rope_scaling=dict(rope_type="ntk", factor=2)), "kind 'ntk' are not known"),
    (dict(rope_scaling=3), "rope_scaling is 3, not an object"),
    (dict(rope_scaling=dict(rope_type="yarn", original_max_position_embeddings=0)), "cannot have original 0"),
    (dict(rope_scaling=dict(rope_type="linear", factor=0)), "cannot have factor 0"),
    (dict(rope_scaling=dict(rope_type="longrope", original_max_position_embeddings=1)), "context of 2 or"),
    (dict(rope_scaling=dict(rope_type="longrope", long_factor=[1, 1, 0, 1])), "long factors that are no num"),
    (dict(rms_norm_eps=float("nan")), "norms cannot add nan"),
    (dict(model_type="gemma2", final_logit_softcapping=0), "final_cap is 0 cannot be"),
    (dict(model_type="olmo", clip_qkv=-1), "clip is -1 cannot be"),
    (dict(rope_scaling=dict(rope_type="longrope", long_factor=["a"] * 4)), "long_factor is .*, no list of"),
    (dict(model_type="phi3", partial_rotary_factor=1e308), "partial_rotary_factor is 1e"),
    (dict(num_hidden_layers=1 << 24), "layers is 16777216 cannot be: a number from 1 to 4096"),
    (dict(model_type="mistral", sliding_window=0), "a layer cannot see 0 tokens"),
    (dict(model_type="gemma3", sliding_window=4, sliding_window_pattern=0), "every 0th layer"),
    (dict(model_type="gemma2", query_pre_attn_scalar=0), "query_pre_attn_scalar is 0"),
    (dict(model_type="gemma3", use_bidirectional_attention=True), "see those after them are not known"),
    (dict(head_dim=7), "even number of items, got 7"),
])
def test_a_configuration_that_cannot_be_is_an_error(fields, reason):
    with pytest.raises(ValueError, match=reason):
        from_hugging_face({k: v for k, v in (LLAMA | fields).items() if v is not None})


@pytest.mark.parametrize("fields, windows", [
    (dict(), ()), (dict(use_sliding_window=False), ()), (dict(use_sliding_window=True), (None, 8)),
    (dict(use_sliding_window=True, layer_types=["sliding_attention", "full_attention"]), (8, None))])
def test_older_configurations_of_qwen_say_from_which_layer_on_windows_are(fields, windows):
    qwen = LLAMA | dict(model_type="qwen2", sliding_window=8, max_window_layers=1)
    assert from_hugging_face(qwen | fields).windows == windows


@pytest.mark.parametrize("kind, windows", [("llama", ()), ("gemma", ()), ("olmo2", ()),
                                           ("mistral", (None, 8)), ("mixtral", (8, 8)), ("phi3", (8, 8)),
                                           ("qwen3_moe", (8, 8)), ("qwen2_moe", (None, 8)),
                                           ("gemma3_text", (None, 8))])
def test_kinds_of_layers_are_said_to_those_that_have_such(kind, windows):
    """transformers goes by layer_types, and by max_window_layers, only where layers of a model can differ."""
    said = LLAMA | dict(model_type=kind, sliding_window=8, use_sliding_window=True, max_window_layers=1,
                        num_local_experts=2, num_experts_per_tok=1,
                        layer_types=["full_attention", "sliding_attention"])
    assert from_hugging_face(said).windows == windows
    del said["layer_types"]
    if kind != "gemma3_text":
        assert from_hugging_face(said).windows == ((8, 8) if kind == "mistral" else windows)
    if not kind.startswith("qwen"):  # for whose layers alone this decides
        unsaid = {key: value for key, value in said.items() if key != "use_sliding_window"}
        assert (from_hugging_face(said | dict(use_sliding_window=False)).windows
                == from_hugging_face(unsaid).windows)


def test_a_configuration_means_what_transformers_takes_it_for():
    """Fields that an architecture does not read change nothing; those that are missing are its own."""
    plain = from_hugging_face(LLAMA | dict(model_type="mistral"))
    said = dict(attention_bias=True, mlp_bias=True, partial_rotary_factor=0.5, attn_logit_softcapping=3.0)
    assert from_hugging_face(LLAMA | dict(model_type="mistral") | said) == plain
    few = {key: value for key, value in LLAMA.items() if key not in ("rms_norm_eps", "hidden_act")}
    for kind, eps, activation in (("llama", 1e-6, "silu"), ("phi3", 1e-5, "silu"),
                                  ("gemma2", 1e-6, "gelu_tanh"), ("olmo", 1e-5, "silu")):
        found = from_hugging_face(few | dict(model_type=kind))
        assert (found.eps, found.activation) == (eps, activation)
    assert from_hugging_face(LLAMA | dict(model_type="olmo", rms_norm_eps=1e-3)).eps == 1e-5
    assert [from_hugging_face(LLAMA | dict(model_type=kind, hidden_act="gelu")).activation
            for kind in ("gemma", "gemma2")] == ["gelu_tanh", "gelu"]
    assert from_hugging_face(LLAMA | dict(model_type="gemma3") | said).attention_cap is None


@pytest.mark.parametrize("kind, name, fields", [
    ("gemma3_text", "Gemma3TextConfig", dict(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
                                             sliding_window=1024)),
    ("gemma2", "Gemma2Config", dict(SMALL)), ("gemma", "GemmaConfig", dict(SMALL))])
def test_what_a_configuration_leaves_out_is_what_transformers_takes(kind, name, fields):
    """The config.json of Gemma 3 says no more than this of its text model, and how it is stretched."""
    whole = getattr(transformers, name)(**fields).to_dict()
    found, expected = (from_hugging_face(said | dict(model_type=kind)) for said in (fields, whole))
    assert found == expected
    stretch = dict(rope_scaling=dict(rope_type="linear", factor=8.0))
    scaled = from_hugging_face(fields | dict(model_type=kind) | stretch)
    assert scaled.rope == replace(expected.rope, kind="linear", factor=8.0)
    assert scaled.local_rope == expected.local_rope


def test_caps_of_0_in_a_gguf_file_are_none():
    values = {"block_count": 2, "context_length": 64, "embedding_length": 32, "attention.head_count": 4}
    olmo = {f"olmo.{key}": value for key, value in (values | {"attention.clamp_kqv": 0.0}).items()}
    assert from_gguf({"general.architecture": "olmo"} | olmo, {}, 96).clip is None
    caps = {"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0,
            "attention.layer_norm_rms_epsilon": 1e-6}
    gemma = {f"gemma2.{key}": value for key, value in (values | caps).items()}
    found = from_gguf({"general.architecture": "gemma2"} | gemma, {}, 96)
    assert found.attention_cap is None and found.final_cap is None


@pytest.mark.parametrize("said, rope", [
    ({}, Rope(8)),
    ({"scaling.factor": 4.0}, Rope(8, kind="linear", factor=4.0)),
    ({"scale_linear": 2.0}, Rope(8, kind="linear", factor=2.0)),
    ({"scaling.type": "none", "scaling.factor": 4.0}, Rope(8)),
    ({"scaling.factor": 0.0}, Rope(8)),
    ({"scaling.attn_factor": 1.5}, Rope(8, magnitude=1.5)),
    ({"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.attn_factor": 1.5},
     Rope(8, kind="yarn", factor=4.0, original=64, magnitude=1.5 * (0.1 * np.log(4) + 1)))])
def test_rotary_positions_of_a_gguf_file_are_those_of_llama_cpp(said, rope):
    """As log-probabilities of xllamacpp 2026.10 showed, on random weights."""
    values = {"block_count": 2, "context_length": 64, "embedding_length": 32, "attention.head_count": 4,
              "attention.layer_norm_rms_epsilon": 1e-5} | {f"rope.{key}": x for key, x in said.items()}
    metadata = {"general.architecture": "qwen2"} | {f"qwen2.{key}": x for key, x in values.items()}
    found = from_gguf(metadata, {}, 96)
    np.testing.assert_allclose(found.rope.table(64), rope.table(64), rtol=1e-6)


def test_a_head_turns_no_more_items_than_it_has():
    metadata = {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in {
        "block_count": 2, "context_length": 64, "embedding_length": 32, "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 1 << 60}.items()}
    with pytest.raises(ValueError, match="cannot turn 1152921504606846976 of a head's 8 items"):
        from_gguf(metadata, {}, 96)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in (*IN_THE_DEFAULT_RUN, "gpt2", "qwen2moe") else pytest.mark.slow)
    for name in MODELS])
def test_no_weight_may_be_missing_and_each_has_its_shape(tmp_path, name):
    """A gate, a norm or a bias that was not there was left out of the computation."""
    reference(name, tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    config, weights = checkpoint.config, checkpoint.weights
    Transformer(config, checkpoint.to("CPU"), activations="float32")
    for key, packed in weights.items():
        with pytest.raises(ValueError, match="the model lacks [1-3] weights: "):
            check_shapes(config, {other: kept for other, kept in weights.items() if other != key})
        wrong = Packed(packed.stored, None, (*packed.shape[:-1], packed.shape[-1] + 1))
        with pytest.raises(ValueError, match=f"do not fit the model: .*{re.escape(key)} has"):
            check_shapes(config, weights | {key: wrong})


@pytest.mark.parametrize("name", ["blk.1.attn_q_norm.weight", "blk.0.post_ffw_norm.weight",
                                  "blk.0.attn_norm.bias", "position_embd.weight"])
def test_weights_of_another_kind_of_model_are_not_used(name):
    config = from_hugging_face(LLAMA)
    stored = {key: Packed(Tensor.zeros(1), None, shape) for key, shape in expected_shapes(config, {}).items()}
    check_shapes(config, stored | {"blk.2.attn_q_norm.weight": Packed(Tensor.zeros(8), None, (8,))})
    with pytest.raises(ValueError, match=f"models of architecture llama have no weight {name}"):
        check_shapes(config, stored | {name: Packed(Tensor.zeros(8), None, (8,))})


def test_biases_are_there_where_the_configuration_says_so():
    biased = from_hugging_face(LLAMA | dict(attention_bias=True, mlp_bias=True))
    names = {f"blk.{layer}.{part}.bias" for layer in range(2) for part in
             ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    assert expected_shapes(biased, {}).keys() - expected_shapes(from_hugging_face(LLAMA), {}).keys() == names
    plain = {key: Packed(Tensor.zeros(1), None, shape)
             for key, shape in expected_shapes(from_hugging_face(LLAMA), {}).items()}
    one = {"blk.0.attn_q.bias": Packed(Tensor.zeros(32), None, (32,))}
    check_shapes(from_hugging_face(LLAMA), plain | one)


def test_weights_that_do_not_fit_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model at"):
        read_checkpoint(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"config.json is not JSON"):
        folder = folder_of(tmp_path / "a", None)
        (folder / "config.json").write_text("{")
        read_checkpoint(folder)
    one = {"model.embed_tokens.weight": Tensor.zeros(96, 32)}
    checkpoint = read_checkpoint(folder_of(tmp_path / "b", one))
    with pytest.raises(ValueError, match=r"lacks 20 weights: output_norm.weight, output.weight, blk"):
        Transformer(checkpoint.config, checkpoint.to("CPU"))
    with pytest.raises(ValueError, match="'model.vision.weight' is no weight of a llama model"):
        read_checkpoint(folder_of(tmp_path / "c", {"model.vision.weight": Tensor.zeros(2)}))
    folder = folder_of(tmp_path / "t", one)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template.jinja is no text in UTF-8"):
        read_checkpoint(folder)
    checkpoint = read_checkpoint(folder_of(tmp_path / "e", one))
    nothing = {"blk.0.ffn_gate.weight": Packed(Tensor.zeros(0), None, (4, 0))}
    with pytest.raises(ValueError, match=r"blk.0.ffn_gate.weight has no items: its shape is \(4, 0\)"):
        Transformer(checkpoint.config, {name: Packed(Tensor.zeros(shape), None, shape) for name, shape in
                                        expected_shapes(checkpoint.config, {}).items()} | nothing)
    folder = folder_of(tmp_path / "d", None)
    index = {"weight_map": {"w": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names '../model.safetensors', which is no file of this folder"):
        read_checkpoint(folder)


def test_a_gguf_file_that_is_no_language_model_is_an_error(tmp_path):
    gguf_save({"w": Tensor.zeros(2)}, tmp_path / "w.gguf", {"general.architecture": "llama"})
    with pytest.raises(ValueError, match="holds no language model"):
        read_checkpoint(tmp_path / "w.gguf")
    gguf_save({"token_embd.weight": Tensor.zeros(2, 2)}, tmp_path / "w.gguf",
              {"general.architecture": "llama"})
    with pytest.raises(ValueError, match="llama.attention.head_count is None, not a number"):
        read_checkpoint(tmp_path / "w.gguf")


def test_keys_are_stored_as_floats_or_int8_only():
    with pytest.raises(ValueError, match="stored as float32, float16, bfloat16, int8, not int32"):
        Cache(1, 1, 1, 8, 4, "int32")


def test_turns_of_pairs_are_rotations():
    cosines, sines = Rope(8, 100.0).table(50)
    np.testing.assert_allclose(cosines ** 2 + sines ** 2, 1, rtol=1e-6)
    np.testing.assert_allclose(cosines[7, 1], np.cos(7 * 100 ** -0.25), rtol=1e-6)
