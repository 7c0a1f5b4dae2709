"""Dot products of bytes: a sum over the four bytes of two words as one operation.

In: a nest with a REDUCE, over a range of four, of products of two integers that the range takes out of words:
bytes without a sign, or fewer bits, of one and bytes with a sign of the other. Out: the nest with DP4A of the
words there. So integers of 8 bits or less are multiplied where they are packed, four in the lane of one, as
processors do at once that have VNNI's instructions, and others in fewer than one by one.

The word of a byte is what a range shifts by 8 bits an iteration and masks or narrows to 8 bits or less. What
else is shifted away is shifted for all four bytes at once, what else is masked is masked in all of them, and
what is any function of 4 bits, without a sign, is looked up for all of them (LOOKUP).
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.codegen.ranges import ZERO, all_ranges, closers, values_of
from tinygrad.dtype import dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.folding import constant_folding
from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import rewrite
from tinygrad.graph.symbolic import linear_terms
from tinygrad.graph.uop import UOp

BYTES, BITS = 4, 8
"""Bytes of a word and bits of a byte."""
PLACES = 16
"""Bytes of a table that one instruction looks four bytes up in."""
FULL, EVERY_BYTE = 0xFF, 0x01010101
"""A byte of ones, and a word with a 1 in each byte."""


@frozen
class ByteOf:
    """The value of one byte of a word, as int32: which one, a range says."""

    word: UOp
    """as int32, its bytes masked"""
    is_signed: bool


def byte_dots(nest: UOp) -> list[UOp]:
    """The ranges over four bytes that a sum of products could do as one operation."""
    return [r for r in all_ranges(nest) if _words(closers(nest, r), r)]


def dot_bytes(nest: UOp, r: UOp) -> UOp:
    """The nest with the sum over the range `r` as dot products of words. ValueError where it is none."""
    closing = closers(nest, r)
    words = _words(closing, r)
    if words is None:
        raise ValueError(f"no sum of products over r{r.identity} takes bytes out of words")
    (reduce,) = closing
    nothing = UOp.const(0, dtypes.int32)
    dot = UOp.new(Ops.DP4A, dtypes.int32, (*words, nothing))
    loops = [loop for loop in reduce.closed_ranges if loop is not r]
    total = UOp.new(Ops.REDUCE, reduce.dtype, (dot, *loops), Ops.ADD) if loops else dot
    return nest.substitute({reduce: total})


def _words(closing: Sequence[UOp], r: UOp) -> tuple[UOp, UOp] | None:
    """The words of whose bytes the only node that closes `r` adds up products: those without a sign, those
    with one."""
    if len(closing) != 1 or closing[0].op is not Ops.REDUCE or r.extent != BYTES:
        return None
    reduce, product = closing[0], closing[0].src[0]
    if reduce.arg is not Ops.ADD:
        return None
    if len(values_of(reduce)) > 1 or reduce.dtype is not dtypes.int32 or product.op is not Ops.MUL:
        return None
    first, second = (_byte_of(value, r) for value in product.src)
    if first is None or second is None or first.is_signed == second.is_signed:
        return None
    return (second.word, first.word) if first.is_signed else (first.word, second.word)


def _byte_of(value: UOp, r: UOp) -> ByteOf | None:
    """The byte of a word that an int32 is; `r` says which."""
    return _taken_out(value, r) or _looked_up(value, r)


def _taken_out(value: UOp, r: UOp) -> ByteOf | None:
    """The byte of a word as it is."""
    if value.op is not Ops.CAST or value.dtype is not dtypes.int32:
        return None
    value = value.src[0]
    if value.op is Ops.AND and value.src[1].op is Ops.CONST and 0 <= value.src[1].arg <= FULL:
        masked, mask = value.src[0], value.src[1].arg
        shifted = masked.src[0] if masked.op is Ops.CAST and masked.dtype is dtypes.uint8 else masked
        return _shifted_word(shifted, r, mask, is_signed=False)
    if value.op is Ops.CAST and value.dtype in (dtypes.int8, dtypes.uint8):
        return _shifted_word(value.src[0], r, FULL, is_signed=value.dtype is dtypes.int8)
    return None


def _looked_up(value: UOp, r: UOp) -> ByteOf | None:
    """The byte that is a function of 4 bits of one byte, by a table of what it is of each."""
    if value.dtype is not dtypes.int32:
        return None
    fields = [n for n in value.toposort() if n.op is Ops.AND and n.src[0].op is Ops.SHR and r in n.ranges
              and n.src[1].op is Ops.CONST and 0 <= n.src[1].arg < PLACES]
    shifted = {n.src[0] for n in fields}
    byte = _shifted_word(shifted.pop(), r, PLACES - 1, is_signed=False) if len(shifted) == 1 else None
    if byte is None:
        return None
    numbers = [rewrite(value.substitute({n: UOp.const(n.src[1].arg & place, n.dtype) for n in fields}),
                       constant_folding) for place in range(PLACES)]
    if not all(n.op is Ops.CONST and 0 <= n.arg <= FULL for n in numbers):
        return None
    places = byte.word.bitcast(dtypes.uint32)
    word = UOp.new(Ops.LOOKUP, dtypes.uint32, (places,), bytes([n.arg for n in numbers]))
    return ByteOf(word.bitcast(dtypes.int32), is_signed=False)


def _shifted_word(value: UOp, r: UOp, mask: int, is_signed: bool) -> ByteOf | None:
    """What is shifted by a sum, without the 8 bits an iteration that `r` adds to that."""
    if value.op is not Ops.SHR or value.dtype is not dtypes.uint32 or r in value.src[0].ranges:
        return None
    added = [n for n in value.src[1].toposort(stop=lambda n: n.op is not Ops.ADD) if n.op is not Ops.ADD]
    moved = [n for n in added if r in n.ranges]
    if len(moved) != 1 or moved[0].op is not Ops.CAST or moved[0].src[0].dtype is not dtypes.index:
        return None
    terms, _ = linear_terms(moved[0].src[0])
    if terms.get(r) != BITS or any(r in atom.ranges for atom in terms if atom is not r):
        return None
    shift = sum((n for n in added if n is not moved[0]), moved[0].substitute({r: ZERO}))
    word = value.src[0].alu(Ops.SHR, shift)
    if mask != FULL:
        word = word & mask * EVERY_BYTE
    return ByteOf(word.bitcast(dtypes.int32), is_signed)
