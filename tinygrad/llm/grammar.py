"""Answers that are JSON of a schema: which tokens may come next, by the `llguidance` library.

A schema is data from a stranger: the library bounds how much work it makes, and one that it does not know is
a `ValueError`.
"""
from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import llguidance
import numpy as np

from tinygrad.llm.sampling import Scores
from tinygrad.llm.tokenizer import Tokenizer


class SchemaMask:
    """What of a vocabulary of `size` tokens may come next, in JSON that a schema allows. The tokens that end
    a text may come where the JSON is whole, and only there."""

    def __init__(self, tokenizer: Tokenizer, size: int, schema: Mapping[str, Any]) -> None:
        self.size = size
        self.ends = np.array(sorted(tokenizer.ends))
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self.matcher = llguidance.LLMatcher(_vocabulary(tokenizer, size), grammar)
        if self.matcher.is_error():
            raise ValueError(f"the schema cannot be followed: {self.matcher.get_error()}")

    def apply(self, scores: Scores) -> Scores:
        """Scores in which tokens that may not come next are -inf."""
        packed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(packed, count=self.size, bitorder="little").astype(bool)
        allowed[self.ends] = self.matcher.is_accepting()
        return np.where(allowed, scores, -np.inf)

    def accept(self, token: int) -> None:
        """This token came."""
        if not self.matcher.consume_token(token):
            raise ValueError(f"the schema cannot be followed: {self.matcher.get_error()}")


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, size: int) -> Any:
    """The tokens as the library knows them. Raises ValueError for a model without a token that ends a
    text."""
    if not tokenizer.ends:
        raise ValueError("a model without a token that ends a text cannot follow a schema")
    return llguidance.LLTokenizer(tokenizer.inner.to_str(), n_vocab=size, eos_token=min(tokenizer.ends))
