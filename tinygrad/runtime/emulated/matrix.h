// Matrix units of a warp on a CPU: the lanes put what they hold of two tiles into memory of the block, wait for
// each other, and each takes its elements of the product from there.
//
// The layouts are written as the makers' manuals have them: element i of lane l is at (row, column). Products of
// floats are exact, and their sum with what was there before is rounded once.
#pragma once

#include "blocks.h"

namespace emulator {

constexpr int MOST_WARPS = 32;

struct At {
    int row, column;
};

inline double widened(signed char value) { return value; }
inline double widened(float value) { return value; }
inline double widened(Half value) { return float(value); }
inline double widened(unsigned short bits) {
    const unsigned int all = (unsigned int)bits << 16;
    float value;
    __builtin_memcpy(&value, &all, 4);
    return value;
}

// Unit: the sides M, N, K of its tiles, the LANES of a warp, and where the elements a, b, c of lane l are.
template <typename Unit, typename A, typename B, typename C> C multiplied(A a, B b, C c) {
    static thread_local double left[MOST_WARPS][Unit::M][Unit::K], right[MOST_WARPS][Unit::K][Unit::N];
    const int number = core->thread.x + core->size.x * (core->thread.y + core->size.y * core->thread.z);
    const int warp = number / Unit::LANES, l = number % Unit::LANES;
    for (int i = 0; i < int(sizeof a.lane / sizeof a.lane[0]); i++) {
        const At at = Unit::a(l, i);
        left[warp][at.row][at.column] = Unit::source(widened(a.lane[i]));
    }
    for (int i = 0; i < int(sizeof b.lane / sizeof b.lane[0]); i++) {
        const At at = Unit::b(l, i);
        right[warp][at.row][at.column] = Unit::source(widened(b.lane[i]));
    }
    barrier();
    for (int i = 0; i < int(sizeof c.lane / sizeof c.lane[0]); i++) {
        const At at = Unit::c(l, i);
        double sum = c.lane[i];
        for (int k = 0; k < Unit::K; k++) sum += left[warp][at.row][k] * right[warp][k][at.column];
        c.lane[i] = sum;
    }
    barrier();
    return c;
}

// What units take of a number.
struct Whole {
    static double source(double value) { return value; }
};
struct Tf32 {
    static double source(double value) {
        float narrow = float(value);
        unsigned int bits;
        __builtin_memcpy(&bits, &narrow, 4);
        bits &= ~0x1fffu;
        __builtin_memcpy(&narrow, &bits, 4);
        return narrow;
    }
};

// --- NVIDIA: PTX ISA, matrix fragments for mma.m16n8k8, m16n8k16 and m16n8k32 -----------------------------------

template <int depth> struct MmaSync {
    static constexpr int M = 16, N = 8, K = depth, LANES = 32;
    static At c(int l, int i) { return {l / 4 + (i < 2 ? 0 : 8), l % 4 * 2 + i % 2}; }
};
struct mma_m16n8k8 : MmaSync<8>, Tf32 {
    static At a(int l, int i) { return {l / 4 + (i % 2 ? 8 : 0), l % 4 + (i < 2 ? 0 : 4)}; }
    static At b(int l, int i) { return {l % 4 + 4 * i, l / 4}; }
};
struct mma_m16n8k16 : MmaSync<16>, Whole {
    static At a(int l, int i) {
        return {l / 4 + (i < 2 || (4 <= i && i < 6) ? 0 : 8), l % 4 * 2 + i % 2 + (i < 4 ? 0 : 8)};
    }
    static At b(int l, int i) { return {l % 4 * 2 + i % 2 + (i < 2 ? 0 : 8), l / 4}; }
};
struct mma_m16n8k32 : MmaSync<32>, Whole {
    static At a(int l, int i) {
        return {l / 4 + (i < 4 || (8 <= i && i < 12) ? 0 : 8), l % 4 * 4 + i % 4 + (i < 8 ? 0 : 16)};
    }
    static At b(int l, int i) { return {l % 4 * 4 + i % 4 + (i < 4 ? 0 : 16), l / 4}; }
};

// --- AMD: matrix instruction calculator, v_mfma_f32_32x32x8, v_mfma_f32_16x16x16, v_wmma_f32_16x16x16 -----------

struct mfma_32x32x8 : Whole {
    static constexpr int M = 32, N = 32, K = 8, LANES = 64;
    static At a(int l, int i) { return {l % 32, 4 * (l / 32) + i}; }
    static At b(int l, int i) { return {4 * (l / 32) + i, l % 32}; }
    static At c(int l, int i) { return {8 * (i / 4) + 4 * (l / 32) + i % 4, l % 32}; }
};
struct mfma_16x16x16 : Whole {
    static constexpr int M = 16, N = 16, K = 16, LANES = 64;
    static At a(int l, int i) { return {l % 16, 4 * (l / 16) + i}; }
    static At b(int l, int i) { return {4 * (l / 16) + i, l % 16}; }
    static At c(int l, int i) { return {4 * (l / 16) + i, l % 16}; }
};
struct wmma_16x16x16 : Whole {
    static constexpr int M = 16, N = 16, K = 16, LANES = 32;
    static At a(int l, int i) { return {l % 16, i}; }
    static At b(int l, int i) { return {i, l % 16}; }
    static At c(int l, int i) { return {2 * i + l / 16, l % 16}; }
};

// --- Apple: the elements of a simdgroup_matrix ------------------------------------------------------------------

struct simdgroup_8x8 : Whole {
    static constexpr int M = 8, N = 8, K = 8, LANES = 32;
    static At a(int l, int i) { return {(l / 4 & 4) + l / 2 % 4, (l / 4 & 2) * 2 + l % 2 * 2 + i}; }
    static At b(int l, int i) { return a(l, i); }
    static At c(int l, int i) { return a(l, i); }
};

}  // namespace emulator

#define MATRIX_UNIT(name, layout)                                         \
    template <typename A, typename B, typename C> C name(A a, B b, C c) { \
        return emulator::multiplied<emulator::layout>(a, b, c);           \
    }
