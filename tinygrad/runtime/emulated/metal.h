// The words of the Metal shading language that rendered kernels use, for a C++ compiler: see blocks.h.
#pragma once

#include "blocks.h"
#include "matrix.h"

#define EMULATOR

#define kernel extern "C"
#define device
#define constant const
#define threadgroup static thread_local

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

namespace metal {

using uint3 = emulator::Index;
using half = emulator::Half;
using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = unsigned long;

struct uint2 {
    uint x, y;
};
template <typename T> T simd_shuffle_xor(T value, ushort distance) { return emulator::exchanged(value, distance); }

enum class mem_flags { mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { emulator::barrier(); }

template <typename To, typename From> To as_type(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float trunc(float a) { return __builtin_truncf(a); }
inline float fabs(float a) { return __builtin_fabsf(a); }
inline float sqrt(float a) { return __builtin_sqrtf(a); }

}  // namespace metal

MATRIX_UNIT(simdgroup_8x8x8, simdgroup_8x8)
