"""Text as numbers, each of them of a piece of text: a word, a part of one, or a single character."""
from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


def cut(written: str, most: int) -> tuple[list[str], Array]:
    """(at most `most` pieces, the text as numbers of pieces); it is `"".join(pieces[i] for i in numbers)`.

    Pieces are the characters at first. Then the two that stand side by side most often become a new piece
    wherever they do, again and again (byte-pair encoding, Sennrich et al. 2016). What is put behind another
    has only letters: no piece reaches from word to word, and the space before a word is in its first piece.
    """
    pieces = sorted(set(written))
    number = {c: i for i, c in enumerate(pieces)}
    text = np.array([number[c] for c in written], np.int32)
    while len(pieces) < most:
        left, right = text[:-1], text[1:]
        # Pairs of the same piece are left alone: of "lll", either pair could become one, but not both.
        may_join = np.array([piece.isalpha() for piece in pieces], bool)[right] & (left != right)
        if not may_join.any():
            break
        pairs = np.bincount(left[may_join] * len(pieces) + right[may_join])
        first, second = divmod(int(pairs.argmax()), len(pieces))
        at = np.flatnonzero((left == first) & (right == second))
        text[at] = len(pieces)
        text = np.delete(text, at + 1)
        pieces.append(pieces[first] + pieces[second])
    return pieces, text
