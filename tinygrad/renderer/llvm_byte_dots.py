"""Dot products of bytes (DP4A) on x86 processors: one instruction (VNNI), or products of pairs. And bytes
that are looked up in a table (LOOKUP): one instruction, or choices by each bit.

`pmaddubsw` multiplies bytes and adds up pairs in 16 bits, which is exact where the bytes without a sign are
small enough: 4 bits leave room for the sums of eight words, so one addition to 32 bits (`pmaddwd`) is enough
for a block of 32. Whole bytes are widened to 16 bits first, the even ones and the odd ones.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer import same_in_every_lane
from tinygrad.renderer.llvm_functions import splat, vector_type

Emit = Callable[[str, str], str]
PAIRS = {128: ("ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"), 256: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd"),
         512: ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512")}
"""Bits of a vector: the products of bytes and those of 16 bits, each with the sums of pairs."""
SHUFFLES = {128: "ssse3.pshuf.b.128", 256: "avx2.pshuf.b", 512: "avx512.pshuf.b.512"}
"""Bits of a vector: bytes of a table, looked up within 128 bits each."""
MOST_HALF, LEAST_BYTE, EVERY_BYTE = 0x7FFF, -0x80, 0x01010101
"""The largest number of 16 bits, the least byte with a sign, and a word with a 1 in each byte."""


def half_sum(words: UOp) -> int:
    """How large a sum of two products can be, of bytes of such words (no sign) and bytes with a sign."""
    return -2 * LEAST_BYTE * _largest_byte(words)


def _largest_byte(words: UOp) -> int:
    if words.op in (Ops.BITCAST, Ops.CAST):
        return _largest_byte(words.src[0])
    if words.op is Ops.LOOKUP:
        return int(max(words.arg))
    mask = same_in_every_lane(words.src[1]) if words.op is Ops.AND else None
    return 0xFF if mask is None else max((mask & 0xFFFFFFFF).to_bytes(4, "little"))


def dots_summed_in_halves(program: Sequence[UOp]) -> frozenset[UOp]:
    """The dot products that only the next one reads, whose sum with it has room in 16 bits."""
    nodes = list(dict.fromkeys(program))
    users = Counter(source for node in nodes for source in node.src)
    sizes: dict[UOp, tuple[int, int]] = {}
    found, block = set(), 0
    for node in nodes:
        block += node.op in (Ops.RANGE, Ops.END)
        if node.op is not Ops.DP4A:
            continue
        size, before = half_sum(node.src[0]), node.src[2]
        sum_before, block_before = sizes.get(before, (0, -1))
        if block_before == block and users[before] == 1 and sum_before + size <= MOST_HALF:
            found.add(before)
            size += sum_before
        sizes[node] = size, block
    return frozenset(found)


def four_bytes(emit: Emit, count: int, a: str, b: str, c: str) -> str:
    """c and four products of bytes in every lane, by VNNI's instruction."""
    kind, words = vector_type("i32", count), vector_type("i8", 4 * count)
    left, right = (emit("bytes", f"bitcast {kind} {x} to {words}") for x in (a, b))
    given = f"{kind} {c}, {words} {left}, {words} {right}"
    return emit("v", f"call {kind} @llvm.x86.avx512.vpdpbusd.{32 * count}({given})")


def pairs_of_bytes(emit: Emit, count: int, a: str, b: str) -> str:
    """The sums of two products of bytes each, in 16 bits."""
    bits = 32 * count
    words, halves = vector_type("i8", bits // 8), vector_type("i16", bits // 16)
    left, right = (emit("bytes", f"bitcast <{count} x i32> {x} to {words}") for x in (a, b))
    return emit("pairs", f"call {halves} @llvm.x86.{PAIRS[bits][0]}({words} {left}, {words} {right})")


def pairs_of_halves(emit: Emit, count: int, a: str, b: str) -> str:
    """The sums of two products of 16 bits each, in 32 bits."""
    bits = 32 * count
    halves = vector_type("i16", bits // 16)
    return emit("sums", f"call <{count} x i32> @llvm.x86.{PAIRS[bits][1]}({halves} {a}, {halves} {b})")


def whole_bytes(emit: Emit, count: int, a: str, b: str, c: str) -> str:
    """c and four products of bytes in every lane."""
    kind, halves = f"<{count} x i32>", vector_type("i16", 2 * count)
    left, right = (emit("halves", f"bitcast {kind} {x} to {halves}") for x in (a, b))
    high = splat(halves, 8)
    even = emit("even", f"and {halves} {left}, {splat(halves, 0xFF)}")
    odd = emit("odd", f"lshr {halves} {left}, {high}")
    low = emit("low", f"shl {halves} {right}, {high}")
    for one, other in ((even, emit("even", f"ashr {halves} {low}, {high}")),
                       (odd, emit("odd", f"ashr {halves} {right}, {high}"))):
        c = emit("v", f"add {kind} {c}, {pairs_of_halves(emit, count, one, other)}")
    return c


def looked_up(emit: Emit, count: int, places: str, table: bytes) -> str:
    """The bytes of a table at the places that are the bytes of every lane."""
    bits, kind = 32 * count, vector_type("i32", count)
    bytes_ = vector_type("i8", bits // 8)
    given = emit("places", f"bitcast {kind} {places} to {bytes_}")
    lanes = ", ".join(f"i8 {byte}" for byte in table * (bits // 128))
    found = emit("bytes", f"call {bytes_} @llvm.x86.{SHUFFLES[bits]}({bytes_} <{lanes}>, {bytes_} {given})")
    return emit("v", f"bitcast {bytes_} {found} to {kind}")


def chosen_by_bits(emit: Emit, kind: str, places: str, table: bytes) -> str:
    """The same, where no instruction does it: of two bytes that differ in one bit of their places, one."""
    found = [splat(kind, EVERY_BYTE * byte) for byte in table]
    bit = 0
    while len(found) > 1:
        moved = emit("bit", f"lshr {kind} {places}, {splat(kind, bit)}")
        ones = emit("bit", f"and {kind} {moved}, {splat(kind, EVERY_BYTE)}")
        mask = emit("mask", f"mul {kind} {ones}, {splat(kind, 0xFF)}")
        pairs = []
        for zero, one in zip(found[::2], found[1::2], strict=True):
            differing = emit("differing", f"xor {kind} {zero}, {one}")
            taken = emit("taken", f"and {kind} {differing}, {mask}")
            pairs.append(emit("v", f"xor {kind} {zero}, {taken}"))
        found, bit = pairs, bit + 1
    return found[0]


def byte_by_byte(emit: Emit, kind: str, a: str, b: str, c: str) -> str:
    """c and four products of bytes in every lane, where there is nothing better."""
    for place in range(4):
        shifts = [splat(kind, 24 - 8 * place), splat(kind, 24)]
        parts = []
        for word, right in ((a, "lshr"), (b, "ashr")):
            high = emit("high", f"shl {kind} {word}, {shifts[0]}")
            parts.append(emit("byte", f"{right} {kind} {high}, {shifts[1]}"))
        product = emit("v", f"mul {kind} {parts[0]}, {parts[1]}")
        c = emit("v", f"add {kind} {c}, {product}")
    return c
