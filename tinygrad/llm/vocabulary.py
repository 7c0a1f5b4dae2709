"""A vocabulary as a trie, by which an automaton over bytes says which tokens may come next.

The trie is walked level by level, all tokens at once: of each level there are the states of its nodes, and
the states after the bytes of the next are looked up in the rows of the few states that differ.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tinygrad.frozen import frozen
from tinygrad.llm.recogniser import DEAD, Recogniser

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@frozen(eq=False)
class TrieLevel:
    """Texts of so many bytes that tokens begin with."""

    parents: Numbers
    """(nodes,): the node of the level before, which has one byte less"""
    bytes: Numbers
    """(nodes,): the last byte"""
    tokens: Numbers
    """the tokens that end here"""
    ends: Numbers
    """their nodes"""


class VocabularyTrie:
    """Tokens by their bytes; those without any are in no text."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        order = sorted((token for token, text in enumerate(texts) if text), key=texts.__getitem__)
        tokens = np.array(order, np.int64)
        lengths = np.array([len(texts[token]) for token in order], np.int64)
        joined = np.frombuffer(b"".join(texts[token] for token in order), np.uint8)
        begins = np.cumsum(lengths) - lengths
        nodes = np.zeros(len(order), np.int64)
        self.levels: list[TrieLevel] = []
        longer = np.arange(len(order))
        while len(longer):
            length = len(self.levels) + 1
            parents, bytes_ = nodes[longer], joined[begins[longer] + length - 1]
            is_new = np.ones(len(longer), bool)
            is_new[1:] = (parents[1:] != parents[:-1]) | (bytes_[1:] != bytes_[:-1])
            nodes[longer] = np.cumsum(is_new) - 1
            end = longer[lengths[longer] == length]
            self.levels.append(TrieLevel(parents[is_new], bytes_[is_new], tokens[end], nodes[end]))
            longer = longer[lengths[longer] > length]

    def allowed(self, recogniser: Recogniser, state: int) -> Numbers:
        """(tokens,): whether each may come after a state. Raises TooAmbiguous."""
        found = np.zeros(len(self.texts), bool)
        classes = np.array(recogniser.classes)
        states = np.array([state])
        for level in self.levels:
            before = states[level.parents]
            alive = np.flatnonzero(before != DEAD)
            if not len(alive):
                break
            distinct, place = _distinct(before[alive])
            rows = np.stack([recogniser.row(one) for one in distinct.tolist()])
            states = np.full(len(before), DEAD)
            states[alive] = rows[place, classes[level.bytes[alive]]]
            found[level.tokens] = states[level.ends] != DEAD
        return found


def _distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that there are, and the place of each among them; without sorting all."""
    there = np.zeros(int(numbers.max()) + 1, bool)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]
