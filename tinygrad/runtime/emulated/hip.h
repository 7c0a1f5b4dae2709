// The words of HIP C that rendered kernels use, for a C++ compiler: CUDA's, and clang's own half type.
#pragma once

#include "cuda.h"

#define _Float16 emulator::Half

template <typename T> T __shfl_xor(T value, int distance) { return emulator::exchanged(value, distance); }

MATRIX_UNIT(mfma_f32_32x32x8bf16_1k, mfma_32x32x8)
MATRIX_UNIT(mfma_f32_32x32x8f16, mfma_32x32x8)
MATRIX_UNIT(mfma_f32_16x16x16bf16_1k, mfma_16x16x16)
MATRIX_UNIT(mfma_f32_16x16x16f16, mfma_16x16x16)
MATRIX_UNIT(wmma_f32_16x16x16_bf16_w32, wmma_16x16x16)
MATRIX_UNIT(wmma_f32_16x16x16_f16_w32, wmma_16x16x16)
