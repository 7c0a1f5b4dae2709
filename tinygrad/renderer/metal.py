"""What the Metal shading language calls things: the table by which `c_blocks.py` writes kernels for Apple's
GPUs.

Metal has no float64, and no casts between pointers into different memories: hence two functions where CUDA
has one. Elsewhere than on a Mac there is one kind of memory (`runtime/emulated/metal.h`). Next on the path:
`runtime/metal.py`.
"""
from __future__ import annotations

from tinygrad.dtype import dtypes
from tinygrad.renderer.c_blocks import BlocksRenderer
from tinygrad.renderer.c_functions import PLAIN_C, Dialect
from tinygrad.renderer.machine import blocks
from tinygrad.renderer.matrix_units import SIMDGROUP

HEADER = """
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

template <typename T, int N> struct alignas(N * sizeof(T)) lanes { T lane[N]; };

template <int N, typename T> static inline lanes<T, N> load_lanes(const device T *at) {
    return *reinterpret_cast<const device lanes<T, N> *>(at);
}

template <typename T, int N> static inline void store_lanes(device T *at, lanes<T, N> value) {
    *reinterpret_cast<device lanes<T, N> *>(at) = value;
}

template <typename T> static inline T lane_across(T value, ushort distance) {
    return simd_shuffle_xor(value, distance);
}
static inline bool lane_across(bool value, ushort distance) {
    return simd_shuffle_xor(ushort(value), distance) != 0;
}
static inline long lane_across(long value, ushort distance) {
    return as_type<long>(simd_shuffle_xor(as_type<uint2>(value), distance));
}
static inline ulong lane_across(ulong value, ushort distance) {
    return as_type<ulong>(simd_shuffle_xor(as_type<uint2>(value), distance));
}

#ifdef __METAL_VERSION__
template <int N, typename T> static inline lanes<T, N> load_lanes(const threadgroup T *at) {
    return *reinterpret_cast<const threadgroup lanes<T, N> *>(at);
}

template <typename T, int N> static inline void store_lanes(threadgroup T *at, lanes<T, N> value) {
    *reinterpret_cast<threadgroup lanes<T, N> *>(at) = value;
}
#endif
""".strip()

SIMDGROUP_PRODUCT = """
#ifndef EMULATOR
#include <metal_simdgroup_matrix>

static inline thread float2 &elements_of(thread simdgroup_float8x8 &tile) {
    return reinterpret_cast<thread float2 &>(tile.thread_elements());
}

static inline lanes<float, 2> simdgroup_8x8x8(lanes<float, 2> a, lanes<float, 2> b, lanes<float, 2> c) {
    simdgroup_float8x8 left, right, sums;
    elements_of(left) = float2(a.lane[0], a.lane[1]);
    elements_of(right) = float2(b.lane[0], b.lane[1]);
    elements_of(sums) = float2(c.lane[0], c.lane[1]);
    simdgroup_multiply_accumulate(sums, left, right, sums);
    return lanes<float, 2>{{elements_of(sums).x, elements_of(sums).y}};
}
#endif
""".strip()
METAL = Dialect(
    name="Metal",
    types={
        **PLAIN_C.types,
        dtypes.bool: "bool", dtypes.int8: "char", dtypes.uint8: "uchar", dtypes.uint16: "ushort",
        dtypes.uint32: "uint", dtypes.int64: "long", dtypes.uint64: "ulong", dtypes.index: "long",
        dtypes.fp8e4m3: "uchar", dtypes.fp8e5m2: "uchar", dtypes.bfloat16: "ushort", dtypes.float16: "half",
    },
    header=HEADER,
    kernel="kernel",
    restrict="",
    math="{name}",
    infinity="INFINITY",
    nan="NAN",
    long_suffix="l",
    bitcast="as_type<{target}>({value})",
    buffer="device {type} *{name}",
    variable="constant long &{name}",
    extra_arguments="uint3 block_id [[threadgroup_position_in_grid]], "
                    "uint3 thread_id [[thread_position_in_threadgroup]]",
    shared="alignas(16) threadgroup",
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup);",
    ids={f"{letter}idx{axis}": f"{word}.{'xyz'[axis]}"
         for letter, word in (("g", "block_id"), ("l", "thread_id")) for axis in range(3)},
    exchange="lane_across({value}, {distance})",
    vector_type="lanes<{scalar}, {count}>",
    longest_access=16,
    vector_load="load_lanes<{count}>({address})",
    vector_store="store_lanes({address}, {value});",
    make_vector="{vector}{{{{{items}}}}}",
    lane="{vector}.lane[{lane}]",
    matrix_units={unit.name: SIMDGROUP_PRODUCT for unit in SIMDGROUP},
)


def metal_renderer() -> BlocksRenderer:
    """The Metal shading language."""
    return BlocksRenderer(METAL, blocks(missing=frozenset({dtypes.float64}), matrix_units=SIMDGROUP))
