"""What lanes of a warp read of each other, as intrinsics of LLVM's GPU targets.

Both exchange words of 32 bits: a shorter value is widened, a longer one goes in two.
"""
from __future__ import annotations

from collections.abc import Callable

from tinygrad.dtype import DType
from tinygrad.helpers import ceildiv
from tinygrad.renderer.llvm_functions import value_type

Emit = Callable[[str, str], str]
"""Writes an instruction; returns the name of its value."""
Exchange = Callable[[str, int, Emit], str]
"""The word of the lane whose number differs in a bit."""


def exchanged(value: str, dtype: DType, distance: int, word_of: Exchange, emit: Emit) -> str:
    """`value` of the lane whose number differs in the bit `distance`."""
    size = 1 if dtype.is_bool else 8 * dtype.itemsize
    kind, bits, words = value_type(dtype), f"i{size}", ceildiv(size, 32)
    whole = f"i{32 * words}"
    text = value if dtype.is_int or dtype.is_bool else emit("bits", f"bitcast {kind} {value} to {bits}")
    wide = text if whole == bits else emit("bits", f"zext {bits} {text} to {whole}")
    vector = emit("words", f"bitcast {whole} {wide} to <{words} x i32>")
    for i in range(words):
        word = emit("word", f"extractelement <{words} x i32> {vector}, i64 {i}")
        other = word_of(word, distance, emit)
        vector = emit("words", f"insertelement <{words} x i32> {vector}, i32 {other}, i64 {i}")
    wide = emit("bits", f"bitcast <{words} x i32> {vector} to {whole}")
    text = wide if whole == bits else emit("bits", f"trunc {whole} {wide} to {bits}")
    return text if dtype.is_int or dtype.is_bool else emit("v", f"bitcast {bits} {text} to {kind}")


def nvidia_word(word: str, distance: int, emit: Emit) -> str:
    """`shfl.sync.bfly`, in which every lane of the warp takes part."""
    return emit("word", f"call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 {word}, i32 {distance}, i32 31)")


def amd_word(word: str, distance: int, emit: Emit) -> str:
    """`ds_bpermute`, which takes the number of a byte among the words of all lanes."""
    low = emit("lane", "call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)")
    lane = emit("lane", f"call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 {low})")
    other = emit("lane", f"xor i32 {lane}, {distance}")
    byte = emit("lane", f"shl i32 {other}, 2")
    return emit("word", f"call i32 @llvm.amdgcn.ds.bpermute(i32 {byte}, i32 {word})")
