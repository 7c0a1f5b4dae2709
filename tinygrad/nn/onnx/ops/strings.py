"""Strings, which are arrays of the host: joined, split, normalised, matched, counted."""
from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np

from tinygrad.nn.onnx.registry import CONTRIBUTED, op
from tinygrad.nn.onnx.values import Array


def _texts(items: Any, shape: tuple[int, ...]) -> Array:
    made = np.empty(len(items), object)
    made[:] = items
    return made.reshape(shape)


@op
def StringConcat(X: Array, Y: Array) -> Array:
    return np.asarray(np.add(X, Y), object)


@op
def StringSplit(X: Array, *, delimiter: str = "", maxsplit: int | None = None) -> tuple[Array, Array]:
    """The parts of each string, filled up with empty ones, and how many there are."""
    parts = [str(text).split(delimiter or None, -1 if maxsplit is None else maxsplit)
             for text in X.reshape(-1)]
    longest = max((len(p) for p in parts), default=0)
    filled = [text for p in parts for text in (*p, *[""] * (longest - len(p)))]
    return _texts(filled, (*X.shape, longest)), np.array([len(p) for p in parts], np.int64).reshape(X.shape)


@op
def StringNormalizer(X: Array, *, case_change_action: str = "NONE", is_case_sensitive: int = 0,
                     locale: str = "",
                     stopwords: Any = ()) -> Array:
    """Strings without stop words, in upper or lower case; one empty string where none is left."""
    left_out = {word if is_case_sensitive else word.lower() for word in stopwords or ()}
    texts = [str(text) for text in X.reshape(-1)]
    kept = [t for t in texts if (t if is_case_sensitive else t.lower()) not in left_out] or [""]
    if case_change_action != "NONE":
        kept = [t.lower() if case_change_action == "LOWER" else t.upper() for t in kept]
    return _texts(kept, (*X.shape[:-1], len(kept)))


@op
def RegexFullMatch(X: Array, *, pattern: str) -> Array:
    matcher = re.compile(pattern)
    return np.array([matcher.fullmatch(str(text)) is not None for text in X.reshape(-1)],
                    bool).reshape(X.shape)


@op(domain=CONTRIBUTED)
def Tokenizer(X: Array, *, mark: int = 0, mincharnum: int = 1, pad_value: str = "", separators: Any = None,
              tokenexp: str | None = None, stopwords: Any = None) -> Array:
    """The tokens of each string along a new last axis, filled up with `pad_value`: what `tokenexp` matches,
    or what is between `separators` (each a regular expression; characters, where the only one is empty).
    With `mark`, a start of text (2) comes before them and an end of text (3) behind."""
    def tokens(text: str) -> list[str]:
        if tokenexp is not None:
            found = [match[0] for match in re.finditer(tokenexp, text)]
        else:
            found = list(text) if list(separators) == [""] else re.split("|".join(separators), text)
        kept = [t for t in found if t and len(t) >= mincharnum and t not in (stopwords or ())]
        return ["\2", *kept, "\3"] if mark else kept

    parts = [tokens(str(text)) for text in X.reshape(-1)]
    longest = max(map(len, parts), default=0)
    filled = [token for p in parts for token in (*p, *[pad_value] * (longest - len(p)))]
    return _texts(filled, (*X.shape, longest))


@op
def TfIdfVectorizer(X: Array, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
                    ngram_counts: Any, ngram_indexes: Any, pool_int64s: Any = None, pool_strings: Any = None,
                    weights: Any = None) -> Array:
    """How often each n-gram of a pool comes in a row, with up to `max_skip_count` items skipped between two
    of its items."""
    pool = list(pool_strings or pool_int64s)
    places: dict[tuple[Any, ...], int] = {}
    ends = [*ngram_counts[1:], len(pool)]
    for length, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        for first in range(start, end, length):
            places[tuple(pool[first:first + length])] = len(places)
    rows = X.reshape(math.prod(X.shape[:-1]), X.shape[-1]) if X.ndim else X.reshape(1, 1)
    counts = np.zeros((len(rows), max(ngram_indexes) + 1), np.float32)
    scale = np.ones(len(ngram_indexes), np.float32) if not weights else np.array(weights, np.float32)
    for row, items in enumerate(rows):
        for length in range(min_gram_length, max_gram_length + 1):
            skips = range(max_skip_count + 1) if length > 1 else range(1)
            for skip, first in itertools.product(skips, range(len(items))):
                last = first + (skip + 1) * (length - 1)
                found = places.get(tuple(items[first:last + 1:skip + 1])) if last < len(items) else None
                if found is not None:
                    counts[row, ngram_indexes[found]] += 1
    each = np.zeros(counts.shape[1], np.float32)
    each[list(ngram_indexes)] = scale
    made = counts if mode == "TF" else ((counts > 0) if mode == "IDF" else counts) * each
    made = made.astype(np.float32)
    return made.reshape(*X.shape[:-1], made.shape[1]) if X.ndim > 1 else made[0]


def _turned(x: int, bits: int) -> int:
    """A number of 32 bits turned left."""
    return (x << bits | x >> (32 - bits)) & 0xFFFFFFFF


def _murmur(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32 of Austin Appleby: four bytes at a time, then what is left of them."""
    made, whole = seed, len(data) // 4 * 4
    for start in range(0, len(data), 4):
        word = int.from_bytes(data[start:start + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        made ^= _turned(word, 15) * 0x1B873593 & 0xFFFFFFFF
        if start < whole:
            made = _turned(made, 13) * 5 + 0xE6546B64 & 0xFFFFFFFF
    made ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        made = (made ^ made >> shift) * factor & 0xFFFFFFFF
    return made ^ made >> 16


@op(domain=CONTRIBUTED)
def MurmurHash3(X: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """A number of 32 bits for each item, by the bytes of numbers or of UTF-8."""
    items = [str(text).encode() for text in X.reshape(-1)] if X.dtype.kind == "O" else [
        number.tobytes() for number in X.reshape(-1)]
    made = np.array([_murmur(data, seed) for data in items], np.uint32).reshape(X.shape)
    return made if positive else made.view(np.int32)
