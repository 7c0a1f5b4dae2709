// Threads of a GPU on a CPU, seen from inside: what the headers for CUDA, HIP and Metal have in common.
//
// A kernel's library has one function for `blocks.cpp`, which runs a kernel as one thread of one block.
#pragma once

#include <string.h>

#include <utility>

namespace emulator {

struct Index {
    unsigned int x, y, z;
};

// What runs a thread: where in the grid that is, and how it waits for the others of its block.
struct Core {
    Index block, thread, size;  // size: threads of a block along each axis
    void (*wait)(Core *);
};

static thread_local Core *core;

static inline void barrier() { core->wait(core); }

template <typename T> struct Plain { using type = T; };
template <typename T> struct Plain<T &> { using type = T; };

// An argument of a kernel: the value at its address, or the position in the grid that a language passes. Those
// come last, the block before the thread.
template <typename T, size_t from_end> struct Argument {
    static T of(void *address) { return *static_cast<typename Plain<T>::type *>(address); }
};
template <> struct Argument<Index, 2> {
    static Index of(void *) { return core->block; }
};
template <> struct Argument<Index, 1> {
    static Index of(void *) { return core->thread; }
};

template <typename... Parameters, size_t... numbers>
void call(void (*kernel)(Parameters...), void **arguments, std::index_sequence<numbers...>) {
    kernel(Argument<Parameters, sizeof...(numbers) - numbers>::of(arguments[numbers])...);
}
template <typename... Parameters> void call(void (*kernel)(Parameters...), void **arguments) {
    call(kernel, arguments, std::make_index_sequence<sizeof...(Parameters)>());
}

constexpr int MOST_THREADS = 1024;

// What the thread has whose number differs in the bit `distance`. All threads of the block come here: each shows
// what it has, waits for the others, and takes what it wants.
template <typename T> T exchanged(T value, unsigned int distance) {
    static thread_local T shown[MOST_THREADS];
    const unsigned int number = core->thread.x + core->size.x * (core->thread.y + core->size.y * core->thread.z);
    shown[number] = value;
    barrier();
    const T result = shown[number ^ distance];
    barrier();
    return result;
}

// IEEE half precision as a class, for C++ compilers that have none: arithmetic is that of float.
class Half {
public:
    Half() = default;
    Half(float value) : bits(narrow(value)) {}
    operator float() const { return widen(bits); }

private:
    unsigned short bits;

    static float from_bits(unsigned int bits) {
        float value;
        __builtin_memcpy(&value, &bits, 4);
        return value;
    }

    static float widen(unsigned short bits) {
        const unsigned int sign = (unsigned int)(bits & 0x8000) << 16, size = bits & 0x7fff;
        if (size >= 0x7c00) return from_bits(sign | 0x7f800000 | (size & 0x3ff) << 13);
        return from_bits(sign) + (sign ? -1.0f : 1.0f) * from_bits(size << 13) * 0x1p112f;
    }

    static unsigned short narrow(float value) {
        unsigned int all;
        __builtin_memcpy(&all, &value, 4);
        const unsigned int sign = all >> 16 & 0x8000, size = all & 0x7fffffff;
        if (size > 0x7f800000) return sign | 0x7e00;
        if (size >= 0x477ff000) return sign | 0x7c00;  // rounds to 65536 or more
        if (size >= 0x38800000) return sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
        float moved = __builtin_fabsf(value) + 0.5f;  // its last place is that of the smallest halves
        __builtin_memcpy(&all, &moved, 4);
        return sign | (all - 0x3f000000);
    }
};

}  // namespace emulator

// The function by which blocks.cpp runs the kernel `name`. `arguments` points at each of its arguments.
#define EMULATED(name)                                                                                    \
    extern "C" __attribute__((visibility("default"))) void emulated(void **arguments, emulator::Core *core) { \
        emulator::core = core;                                                                            \
        emulator::call(name, arguments);                                                                  \
    }
