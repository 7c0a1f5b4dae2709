// The words of CUDA C that rendered kernels use, for a C++ compiler: see blocks.h.
#pragma once

#include "blocks.h"
#include "matrix.h"

#define EMULATOR

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

#define sqrtf __builtin_sqrtf
#define truncf __builtin_truncf
#define fabsf __builtin_fabsf
#define fmaf __builtin_fmaf
#define sqrt __builtin_sqrt
#define trunc __builtin_trunc
#define fabs __builtin_fabs
#define fma __builtin_fma

#define threadIdx (emulator::core->thread)
#define blockIdx (emulator::core->block)

inline void __syncthreads() { emulator::barrier(); }
inline float __int_as_float(int bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }

MATRIX_UNIT(mma_m16n8k16_bf16, mma_m16n8k16)
MATRIX_UNIT(mma_m16n8k16_f16, mma_m16n8k16)
MATRIX_UNIT(mma_m16n8k32_s8, mma_m16n8k32)
MATRIX_UNIT(mma_m16n8k8_tf32, mma_m16n8k8)
