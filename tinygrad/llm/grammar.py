"""Answers that are JSON of a schema, or texts of a grammar: which tokens may come next, by the `llguidance`
library.

A schema or grammar is data from a stranger: the library bounds how much work it makes, and one that it does
not know is a `ValueError`.
"""
from __future__ import annotations

import functools
import json
from typing import Any

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark

from tinygrad.llm.generate import MaskFailed
from tinygrad.llm.sampling import Scores
from tinygrad.llm.tokenizer import Tokenizer


class GrammarMask:
    """What of a vocabulary of `size` tokens may come next, in a text that a grammar allows: one in the
    notation of llama.cpp (GBNF: `root ::= "yes" | "no"`) or of Lark (`start: "yes" | "no"`). The tokens that
    end a text may come where it is whole, and only there."""

    kind = "grammar"

    def __init__(self, tokenizer: Tokenizer, size: int, grammar: Any) -> None:
        self.size = size
        self.ends = np.array(sorted(tokenizer.ends))
        self.matcher = llguidance.LLMatcher(_vocabulary(tokenizer, size), self.compiled(grammar), log_level=0)
        if self.matcher.is_error():
            raise ValueError(f"the {self.kind} cannot be followed: {self.matcher.get_error()}")

    def compiled(self, grammar: Any) -> str:
        """The grammar as the library takes it."""
        try:
            return str(llguidance.LLMatcher.grammar_from_lark(any_to_lark(grammar)))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"the grammar cannot be followed: {error}") from error

    def apply(self, scores: Scores) -> Scores:
        """Scores in which tokens that may not come next are -inf. Raises MaskFailed where the library gives
        up."""
        packed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(packed, count=self.size, bitorder="little").astype(bool)
        allowed[self.ends] = self.matcher.is_accepting()
        return np.where(allowed, scores, -np.inf)

    def accept(self, token: int) -> None:
        """This token came. Raises MaskFailed where the library gives up."""
        self.matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self.matcher.is_error():  # a line, and what the library holds after it
            why = str(self.matcher.get_error()).partition("\n")[0]
            raise MaskFailed(f"the {self.kind} cannot be followed: {why}")


class SchemaMask(GrammarMask):
    """What may come next in JSON that a schema, an object of Python's values, allows."""

    kind = "schema"

    def compiled(self, grammar: Any) -> str:
        return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(grammar)))


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, size: int) -> Any:
    """The tokens as the library knows them. Raises ValueError for a model without a token that ends a
    text."""
    if not tokenizer.ends:
        raise ValueError("a model without a token that ends a text cannot follow a schema")
    return llguidance.LLTokenizer(tokenizer.inner.to_str(), n_vocab=size, eos_token=min(tokenizer.ends))
