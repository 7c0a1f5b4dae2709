"""Greedy answers of llama.cpp, by the `xllamacpp` package, under settings that change no more than the order
in which it adds up or what it rounds keys and values to."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tinygrad.llm.language_model import find_model

Prompt = str | Sequence[int]
Said = list[dict[str, Any]]
"""For each token its `id`, `logprob` and `top_logprobs`, the likeliest in its place."""
SURE = 0.75
"""By how much the likelier of two tokens leads where rounding to int8 does not change their order: the
largest error of such a gap that was seen, llama.cpp's or ours (docs/llm.md)."""


def llama_cpp(length: int, flash_attention: bool | None = None,
              float32_cache: bool = False) -> Callable[[Prompt, int, int], Said]:
    """A function of (a prompt or its tokens, how many follow, how many alternatives of each): greedy tokens
    of SmolLM2 in a context of `length`. The cache has float16 unless told otherwise."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(find_model("smollm2"))
    parameters.n_ctx, parameters.n_parallel = length, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    if flash_attention is not None:
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type(int(flash_attention))
    if float32_cache:
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type(0)
    server = xllamacpp.Server(parameters)

    def said(prompt: Prompt, tokens: int, alternatives: int) -> Said:
        answers: list[Any] = []
        server.handle_completions({"prompt": prompt, "n_predict": tokens, "temperature": 0,
                                   "ignore_eos": True, "n_probs": alternatives}, answers.append)
        answer = answers[-1] if isinstance(answers[-1], dict) else json.loads(answers[-1])
        found: Said = answer["choices"][0]["logprobs"]["content"]
        return found

    return said
