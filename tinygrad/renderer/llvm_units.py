"""Matrix units as intrinsics of LLVM's targets.

NVIDIA's take each 32-bit register of a tile as an argument and give a struct; AMD's take and give whole
vectors; x86's wants a tile of one row in every lane, or tiles of a type of their own (`llvm_tiles.py`). Which
layout the vectors have is in `matrix_units.py`.
"""
from __future__ import annotations

from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.renderer.llvm_functions import value_type
from tinygrad.renderer.matrix_units import AMX, DOT_BF16, MFMA, MMA_SYNC, WMMA, MatrixUnit

Emit = Callable[[str, str], str]
"""Writes an instruction; returns the name of its value."""


@frozen
class Intrinsic:
    """How a unit is called."""

    name: str
    piece: str
    """the type of each argument of a source tile; empty where that is the whole vector"""
    flags: str = ""
    """arguments at the end"""


_HALVES = "<2 x half>"
INTRINSICS: dict[str, Intrinsic] = {
    **{unit.name: Intrinsic(f"nvvm.mma.m{unit.m}n{unit.n}k{unit.k}.row.col.{kind}", piece)
       for unit, (kind, piece) in zip(MMA_SYNC, (("bf16", "i32"), ("f32.f32", _HALVES), ("s8", "i32"),
                                                 ("tf32", "i32")), strict=True)},
    **{unit.name: Intrinsic("amdgcn." + unit.name.replace("_1k", ".1k").replace("_", "."), "",
                            ", i32 0, i32 0, i32 0") for unit in MFMA},
    **{unit.name: Intrinsic(f"x86.{unit.name}.internal", "") for unit in AMX},
    DOT_BF16.name: Intrinsic("x86.avx512bf16.dpbf16ps.512", ""),
    **{unit.name: Intrinsic(f"amdgcn.wmma.f32.16x16x16.{kind}.v8f32.v16{kind.replace('bf16', 'i16')}", "")
       for unit, kind in zip(WMMA, ("bf16", "f16"), strict=True)},
}


def multiplied(unit: MatrixUnit, a: str, b: str, c: str, emit: Emit) -> str:
    """The vector of what a lane holds of a @ b + c."""
    if unit is DOT_BF16:
        return _dot_products(a, b, c, emit)
    intrinsic = INTRINSICS[unit.name]
    result = value_type(unit.result.vec(unit.c.registers))
    sources = [(a, unit.a.registers), (b, unit.b.registers)]
    if not intrinsic.piece:
        given = ", ".join(f"{value_type(unit.source.vec(count))} {value}" for value, count in sources)
        return emit("tile", f"call {result} @llvm.{intrinsic.name}({given}, {result} {c}{intrinsic.flags})")
    pieces = [p for value, count in sources for p in _pieces(value, unit.source, count, intrinsic, emit)]
    scalar = value_type(unit.result)
    lanes = [f"{scalar} " + emit("c", f"extractelement {result} {c}, i64 {i}")
             for i in range(unit.c.registers)]
    struct = f"{{{', '.join([scalar] * unit.c.registers)}}}"
    held = emit("tile", f"call {struct} @llvm.{intrinsic.name}({', '.join([*pieces, *lanes])})")
    built = "poison"
    for i in range(unit.c.registers):
        lane = emit("lane", f"extractvalue {struct} {held}, {i}")
        built = emit("tile", f"insertelement {result} {built}, {scalar} {lane}, i64 {i}")
    return built


def _dot_products(a: str, b: str, c: str, emit: Emit) -> str:
    """The pair `a` with each of 16 pairs, added to `c`."""
    pair = emit("pair", f"bitcast <2 x i16> {a} to i32")
    first = emit("pair", f"insertelement <16 x i32> poison, i32 {pair}, i64 0")
    every = emit("pairs", f"shufflevector <16 x i32> {first}, <16 x i32> poison, <16 x i32> zeroinitializer")
    left = emit("left", f"bitcast <16 x i32> {every} to <32 x bfloat>")
    right = emit("right", f"bitcast <32 x i16> {b} to <32 x bfloat>")
    given = f"<16 x float> {c}, <32 x bfloat> {left}, <32 x bfloat> {right}"
    return emit("dots", f"call <16 x float> @llvm.{INTRINSICS[DOT_BF16.name].name}({given})")


def _pieces(value: str, dtype: DType, count: int, intrinsic: Intrinsic, emit: Emit) -> list[str]:
    """The 32-bit registers of a tile as arguments."""
    words = count * dtype.itemsize // dtypes.int32.itemsize
    whole = emit("words", f"bitcast {value_type(dtype.vec(count))} {value} to <{words} x i32>")
    found = [emit("word", f"extractelement <{words} x i32> {whole}, i64 {i}") for i in range(words)]
    if intrinsic.piece != "i32":
        found = [emit("word", f"bitcast i32 {word} to {intrinsic.piece}") for word in found]
    return [f"{intrinsic.piece} {word}" for word in found]
