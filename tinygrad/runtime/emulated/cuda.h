// The words of CUDA C that rendered kernels use, for a C++ compiler: see blocks.h.
#pragma once

#include <math.h>

#include "blocks.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (emulator::core->thread)
#define blockIdx (emulator::core->block)

inline void __syncthreads() { emulator::barrier(); }
inline float __int_as_float(int bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
