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
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    "bert": lambda t: t.BertForMaskedLM(t.BertConfig(**SIZES, **NO_DROPOUT)),
    "roberta": lambda t: t.RobertaForMaskedLM(t.RobertaConfig(**SIZES, **NO_DROPOUT)),
    "gpt2": lambda t: t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "mistral": lambda t: t.MistralForCausalLM(t.MistralConfig(**SIZES, num_key_value_heads=2)),
    "qwen2": lambda t: t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES, num_key_value_heads=2)),
    "gpt-neox": lambda t: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**SIZES)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_is_that_of_eager(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model: Any = MODELS[name](transformers)
    twin = copy.deepcopy(model)
    tokens = torch.randint(3, 99, (2, 16))
    expected = model(input_ids=tokens, labels=tokens)
    expected.loss.backward()
    found = torch.compile(twin, backend=backend)(input_ids=tokens, labels=tokens)
    found.loss.backward()
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    for ours, eager in zip(twin.parameters(), model.parameters(), strict=True):
        assert (ours.grad is None) == (eager.grad is None)
        if eager.grad is not None:
            torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-4, atol=1e-5)
