// The words of CUDA C that rendered kernels use, for a C++ compiler: see blocks.h.
#pragma once

#include "blocks.h"
#include "matrix.h"

#include <deque>
#include <map>
#include <vector>

#define EMULATOR

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define LARGE_SHARED(bytes) static thread_local unsigned char large_shared[bytes] __attribute__((aligned(16)));
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
template <typename T> T __shfl_xor_sync(unsigned int, T value, int distance) {
    return emulator::exchanged(value, distance);
}
inline float __int_as_float(int bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }

MATRIX_UNIT(mma_m16n8k16_bf16, mma_m16n8k16)
MATRIX_UNIT(mma_m16n8k16_f16, mma_m16n8k16)
MATRIX_UNIT(mma_m16n8k32_s8, mma_m16n8k32)
MATRIX_UNIT(mma_m16n8k8_tf32, mma_m16n8k8)

// --- copies into shared memory that a thread does not wait for -------------------------------------------------

struct Copy {
    void *target;
    const void *source;
    int bytes;
    bool valid;
};

// What each thread of the block has started, in groups; the last one is open.
inline std::deque<std::vector<Copy>> &copies_of_thread() {
    static thread_local std::map<unsigned int, std::deque<std::vector<Copy>>> all;
    const emulator::Core &core = *emulator::core;
    auto &own = all[core.thread.x + core.size.x * (core.thread.y + core.size.y * core.thread.z)];
    if (own.empty()) own.emplace_back();
    return own;
}

template <int bytes> void copy_async(void *target, const void *source, bool valid) {
    memset(target, 0xa5, bytes);  // until it is waited for, what is there is nothing
    copies_of_thread().back().push_back({target, source, bytes, valid});
}
inline void commit_copies() { copies_of_thread().emplace_back(); }
template <int groups> void wait_copies() {
    auto &own = copies_of_thread();
    for (; own.size() > groups + 1; own.pop_front())
        for (const Copy &copy : own.front())
            copy.valid ? memcpy(copy.target, copy.source, copy.bytes) : memset(copy.target, 0, copy.bytes);
}
