"""A language model of a few thousand weights in a GGUF file, with a tokenizer of bytes, for tests."""
import numpy as np

from tinygrad import Tensor
from tinygrad.nn.state import gguf_save

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def letters():
    """The letters by which GPT-2 writes the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    names = {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [names[b] for b in range(256)]


def write_tiny(path, context=128, seed=0, template=TEMPLATE, layers=2, pre="smollm", merges=("h e",)):
    """A Llama of a few layers on 32 items; tokens are special ones, bytes, and merged pairs. `pre`: the rules
    by which text is cut."""
    rng = np.random.default_rng(seed)
    tokens = [*SPECIAL, *letters(), *(merge.replace(" ", "") for merge in merges)]
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    width, heads, kept, hidden = 32, 4, 2, 64
    head = width // heads

    def weight(*shape):
        return Tensor((rng.standard_normal(shape) * 0.3).astype(np.float32))

    weights = {"token_embd.weight": weight(len(tokens), width), "output_norm.weight": weight(width) + 1,
               "output.weight": weight(len(tokens), width) * 4}
    for layer in range(layers):
        name = f"blk.{layer}"
        weights |= {f"{name}.attn_norm.weight": weight(width) + 1, f"{name}.ffn_norm.weight": weight(width)
                    + 1,
                    f"{name}.attn_q.weight": weight(heads * head, width),
                    f"{name}.attn_k.weight": weight(kept * head, width),
                    f"{name}.attn_v.weight": weight(kept * head, width),
                    f"{name}.attn_output.weight": weight(width, heads * head),
                    f"{name}.ffn_gate.weight": weight(hidden, width),
                    f"{name}.ffn_up.weight": weight(hidden, width),
                    f"{name}.ffn_down.weight": weight(width, hidden)}
    metadata = {
        "general.architecture": "llama", "llama.block_count": layers, "llama.context_length": context,
        "llama.embedding_length": width, "llama.feed_forward_length": hidden,
        "llama.attention.head_count": heads, "llama.attention.head_count_kv": kept,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    formats = {name: "Q8_0" for name, value in weights.items() if value.ndim == 2}
    gguf_save(weights, path, metadata, formats)
    return path
