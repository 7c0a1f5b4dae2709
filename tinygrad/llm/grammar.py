"""Answers that are texts of a grammar, or JSON of a schema: which tokens may come next.

Grammars in llama.cpp's notation are followed byte by byte (`gbnf.py`, `recogniser.py`, `vocabulary.py`), so
that every way to read a text counts. Those in Lark's notation have lexemes, of which the longest is taken;
they and schemas are followed by the `llguidance` library. A grammar is data from a stranger: how much work it
makes is bounded, and one that cannot be read is a `ValueError`.
"""
from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import llguidance
import numpy as np

from tinygrad.llm.gbnf import rules_of
from tinygrad.llm.generate import Mask, MaskFailed
from tinygrad.llm.recogniser import MOST_STEPS, Recogniser, TooAmbiguous
from tinygrad.llm.sampling import Scores
from tinygrad.llm.tokenizer import Tokenizer
from tinygrad.llm.vocabulary import VocabularyTrie

MOST_ITEMS = 500_000
"""Items of a grammar's states, a hundred bytes or so each, before they are forgotten."""
MOST_MASKS = 1024
"""Masks of a grammar that are kept, of a bit a token."""
WHITESPACE = r"(\r?\n){0,2}[ \t]{0,40}"
"""Between the parts of JSON: without a bound, a small model may go on with it until it has no tokens left."""

_LARK = re.compile(r"(?m)^\s*(%llguidance\b|[?!]*start(\.\d+)?\s*:(?!:))")
"""What tells grammars in Lark's notation: a rule `start`, which may be inlined (?) or have a priority."""


def grammar_mask(tokenizer: Tokenizer, size: int, grammar: str) -> Mask:
    """What of a vocabulary of `size` tokens may come next in a text that a grammar allows: one in the
    notation of llama.cpp (GBNF: `root ::= "yes" | "no"`) or of Lark (`start: "yes" | "no"`). The tokens that
    end a text may come where it is whole, and only there. Raises ValueError for one that cannot be followed.
    """
    return (LarkMask if _LARK.search(grammar) else GbnfMask)(tokenizer, size, grammar)


class GbnfMask:
    """What may come next in a text of a grammar in llama.cpp's notation."""

    def __init__(self, tokenizer: Tokenizer, size: int, grammar: str) -> None:
        self.trie = _trie(tokenizer, size)
        self.ends = np.array(sorted(tokenizer.ends), int)
        self.masks: dict[int, Scores] = {}
        try:
            self.recogniser = Recogniser(rules_of(grammar))
        except ValueError as error:
            raise ValueError(f"the grammar cannot be followed: {error}") from error
        self.state = self.recogniser.start

    def apply(self, scores: Scores) -> Scores:
        """Scores in which tokens that may not come next are -inf. Raises MaskFailed where the grammar makes
        too much work."""
        if self.recogniser.size > MOST_ITEMS or len(self.masks) > MOST_MASKS:
            self.state = self.recogniser.forget(self.state)
            self.masks.clear()
        if self.state not in self.masks:
            with self._bounded():
                self.masks[self.state] = np.packbits(self.trie.allowed(self.recogniser, self.state))
        allowed = np.unpackbits(self.masks[self.state], count=len(scores)).astype(bool)
        allowed[self.ends] = self.recogniser.is_whole[self.state]
        return np.where(allowed, scores, -np.inf)

    def accept(self, token: int) -> None:
        """This token came. Raises MaskFailed as `apply` does."""
        with self._bounded():
            self.state = self.recogniser.walk(self.state, self.trie.texts[token])

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Few steps are taken in here."""
        self.recogniser.left = MOST_STEPS
        try:
            yield
        except TooAmbiguous as error:
            raise MaskFailed(f"the grammar cannot be followed: {error}") from error


class LarkMask:
    """What may come next in a text of a grammar in Lark's notation."""

    kind = "grammar"

    def __init__(self, tokenizer: Tokenizer, size: int, grammar: Any) -> None:
        self.size = size
        self.ends = np.array(sorted(tokenizer.ends))
        self.matcher = llguidance.LLMatcher(_vocabulary(tokenizer, size), self.compiled(grammar), log_level=0,
                                            limits=_LIMITS)
        if self.matcher.is_error():
            raise ValueError(f"the {self.kind} cannot be followed: {self.matcher.get_error()}")

    def compiled(self, grammar: Any) -> str:
        """The grammar as the library takes it."""
        return str(llguidance.LLMatcher.grammar_from_lark(grammar))

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


class SchemaMask(LarkMask):
    """What may come next in JSON that a schema, an object of Python's values, allows."""

    kind = "schema"

    def compiled(self, grammar: Any) -> str:
        return str(llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(grammar), defaults={"whitespace_pattern": WHITESPACE}))


_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000)
"""An object has four items for each property that it may have; 500 properties were too many."""


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, size: int) -> Any:
    """The tokens as the library knows them. Raises ValueError for a model without a token that ends a
    text."""
    _check_ends(tokenizer)
    return llguidance.LLTokenizer(tokenizer.inner.to_str(), n_vocab=size, eos_token=min(tokenizer.ends))


@functools.lru_cache(maxsize=4)
def _trie(tokenizer: Tokenizer, size: int) -> VocabularyTrie:
    """The tokens by their bytes. Raises ValueError as `_vocabulary` does."""
    _check_ends(tokenizer)
    texts = [b"" if token in tokenizer.ends else text for token, text in enumerate(tokenizer.texts(size))]
    return VocabularyTrie(texts)


def _check_ends(tokenizer: Tokenizer) -> None:
    if not tokenizer.ends:
        raise ValueError("a model without a token that ends a text cannot follow a schema or grammar")
