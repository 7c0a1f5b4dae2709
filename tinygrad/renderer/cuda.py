"""What CUDA C and HIP C call things: the tables by which `c_blocks.py` writes kernels for GPUs of NVIDIA
and AMD.

The two languages differ in their type for halves alone. `lanes` are what one load or store moves: the
compilers make one instruction of it (`ld.global.v4`). Next on the path: `runtime/cuda.py` and
`runtime/amd.py`.
"""
from __future__ import annotations

from dataclasses import replace

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer import STATIC_SHARED_BYTES
from tinygrad.renderer.c_blocks import BlocksRenderer, BlockWriter
from tinygrad.renderer.c_functions import PLAIN_C, Dialect
from tinygrad.renderer.machine import Machine, blocks
from tinygrad.renderer.matrix_units import MFMA, MMA_SYNC, SWIZZLED_ROW, WGMMA, WMMA, MatrixUnit

LANES = """
template <typename T, int N> struct __align__(N * sizeof(T)) lanes { T lane[N]; };

template <int N, typename T> static __device__ __forceinline__ lanes<T, N> load_lanes(const T *at) {
    return *reinterpret_cast<const lanes<T, N> *>(at);
}

template <typename T, int N> static __device__ __forceinline__ void store_lanes(T *at, lanes<T, N> value) {
    *reinterpret_cast<lanes<T, N> *>(at) = value;
}

template <typename To, typename From> static __device__ __forceinline__ To bits_as(From value) {
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
""".strip()

EXCHANGE = """
template <typename T> static __device__ __forceinline__ T lane_across(T value, int distance) {
    if constexpr (sizeof(T) == 8) {
        return bits_as<T>(SHUFFLE_XOR(bits_as<unsigned long long>(value), distance));
    } else {
        unsigned int bits = 0;
        memcpy(&bits, &value, sizeof value);
        bits = SHUFFLE_XOR(bits, distance);
        memcpy(&value, &bits, sizeof value);
        return value;
    }
}
""".strip()
"""Whole words: the languages exchange no types shorter than these."""

ASYNC_COPIES = """
#ifndef EMULATOR
#define LARGE_SHARED(bytes) extern __shared__ __align__(16) unsigned char large_shared[];
#define LARGE_SHARED_OF_ROWS(bytes) extern __shared__ __align__(1024) unsigned char large_shared[];

template <int bytes>
static __device__ __forceinline__ void copy_async(void *target, const void *source, bool valid) {
    const unsigned int to = __cvta_generic_to_shared(target), size = valid ? bytes : 0;
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(__cvta_generic_to_global(source)), "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(to), "l"(__cvta_generic_to_global(source)), "n"(bytes), "r"(size) : "memory");
}

static __device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int groups> static __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(groups) : "memory");
}
#endif
""".strip()
CUDA_SHUFFLE = "#define SHUFFLE_XOR(value, distance) __shfl_xor_sync(0xffffffff, value, distance)"
HIP_SHUFFLE = "#define SHUFFLE_XOR(value, distance) __shfl_xor(value, distance)"
SCALARS = {**PLAIN_C.types, dtypes.bool: "bool", dtypes.float16: "__half"}


def _mma_sync(unit: MatrixUnit) -> str:
    """`mma.sync` as a function. Registers hold 32 bits of a tile, but for those of the result."""
    word = unit.name.rpartition("_")[2]
    result, kind = ("s32", "r") if unit.result.is_int else ("f32", "f")
    sizes = [f.registers * unit.source.itemsize // 4 for f in (unit.a, unit.b)]
    numbers = iter(range(sum(sizes) + unit.c.registers))
    c, a, b = (", ".join(f"%{next(numbers)}" for _ in range(size)) for size in (unit.c.registers, *sizes))
    bits = "".join(f"    const auto bits_{name} = bits_as<lanes<unsigned int, {size}>>({name});\n"
                   for name, size in zip("ab", sizes, strict=True))
    outputs = ", ".join(f'"+{kind}"(c.lane[{i}])' for i in range(unit.c.registers))
    inputs = ", ".join(f'"r"(bits_{name}.lane[{i}])' for name, size in zip("ab", sizes, strict=True)
                       for i in range(size))
    held = [f"lanes<{SCALARS[dtype]}, {f.registers}> {name}" for name, dtype, f in (
        ("a", unit.source, unit.a), ("b", unit.source, unit.b), ("c", unit.result, unit.c))]
    return f"""#ifndef EMULATOR
static __device__ __forceinline__ {held[2].removesuffix(' c')} {unit.name}({", ".join(held)}) {{
{bits}    asm volatile("mma.sync.aligned.m{unit.m}n{unit.n}k{unit.k}.row.col.{result}.{word}.{word}.{result} "
                 "{{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};"
                 : {outputs} : {inputs});
    return c;
}}
#endif"""


def _wgmma(unit: MatrixUnit) -> str:
    """`wgmma.mma_async` as a function that returns when its products are there: four instructions along rows
    of 128 bytes, or along 64 of these below each other."""
    assert unit.in_shared is not None
    word, count = unit.name.split("_")[2], unit.c.registers
    accumulators = ", ".join(f"%{i}" for i in range(count))
    across = ", ".join(str(int(not along_k)) for along_k in unit.in_shared)
    products = "".join(f"""
        "wgmma.mma_async.sync.aligned.m{unit.m}n{unit.n}k16.f32.{word}.{word} "
        "{{{accumulators}}}, %{count + i}, %{count + 4 + i}, added, 1, 1, {across};\\n\"""" for i in range(4))
    outputs = ", ".join(f'"+f"(c.lane[{i}])' for i in range(count))
    steps = [2 if along_k else SWIZZLED_ROW for along_k in unit.in_shared]  # of 16 items along k, in 16 bytes
    inputs = ", ".join(f'"l"({name} + {i * step})'
                       for name, step in zip(("rows", "columns"), steps, strict=True) for i in range(4))
    source, sums = SCALARS[unit.source], f"lanes<float, {count}>"
    return f"""#ifndef EMULATOR
static __device__ __forceinline__ {sums} {unit.name}(const {source} *a, const {source} *b, {sums} c) {{
    const unsigned long long rows = swizzled_rows(a), columns = swizzled_rows(b);
    asm volatile("{{\\n.reg .pred added;\\nsetp.ne.b32 added, 1, 0;\\n"
        "wgmma.fence.sync.aligned;\\n\"{products}
        "wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;\\n}}"
        : {outputs} : {inputs} : "memory");
    return c;
}}
#endif"""


SWIZZLED_ROWS = f"""
#ifndef EMULATOR
static __device__ __forceinline__ unsigned long long swizzled_rows(const void *tile) {{
    const unsigned long long next_eight = {8 * SWIZZLED_ROW} >> 4, next_column = {64 * SWIZZLED_ROW} >> 4;
    return __cvta_generic_to_shared(tile) >> 4 & 0x3fff | next_column << 16 | next_eight << 32 | 1ull << 62;
}}
#endif
""".strip()
"""Where a tile for `wgmma` is, as it takes it: rows of 128 bytes, swizzled, by eights below each other; after
64 rows the next column of such."""

CUDA = Dialect(
    name="CUDA C",
    types=SCALARS,
    header=f"#include <cuda_fp16.h>\n\n{LANES}\n\n{CUDA_SHUFFLE}\n\n{EXCHANGE}\n\n{ASYNC_COPIES}",
    kernel='extern "C" __global__',
    function="static __device__ __forceinline__",
    restrict="__restrict__",
    math="{name}{suffix}",
    infinity="__int_as_float(0x7f800000)",
    nan="__int_as_float(0x7fc00000)",
    bitcast="bits_as<{target}>({value})",
    buffer="{type} *__restrict__ {name}",
    variable="const long long {name}",
    shared="__shared__ __align__(16)",
    barrier="__syncthreads();",
    ids={f"{letter}idx{axis}": f"{word}.{'xyz'[axis]}"
         for letter, word in (("g", "blockIdx"), ("l", "threadIdx")) for axis in range(3)},
    vector_type="lanes<{scalar}, {count}>",
    longest_access=16,
    vector_load="load_lanes<{count}>({address})",
    vector_store="store_lanes({address}, {value});",
    make_vector="{vector}{{{{{items}}}}}",
    lane="{vector}.lane[{lane}]",
    large_shared="LARGE_SHARED({bytes})",
    exchange="lane_across({value}, {distance})",
    async_copy="copy_async<{bytes}>({target}, {source}, {valid});",
    commit="commit_copies();",
    wait="wait_copies<{groups}>();",
    matrix_units={unit.name: _mma_sync(unit) for unit in MMA_SYNC},
)


def _amd_builtin(unit: MatrixUnit) -> str:
    """One of AMD's instructions as a function."""
    source = {dtypes.bfloat16: "short", dtypes.float16: "_Float16"}[unit.source]
    kinds = [f"lanes<{HIP_SCALARS[dtype]}, {f.registers}>" for dtype, f in (
        (unit.source, unit.a), (unit.source, unit.b), (unit.result, unit.c))]
    flags = ", 0, 0, 0" if unit in MFMA else ""
    return f"""#ifndef EMULATOR
static __device__ __forceinline__ {kinds[2]} {unit.name}({kinds[0]} a, {kinds[1]} b, {kinds[2]} c) {{
    typedef {source} left __attribute__((ext_vector_type({unit.a.registers})));
    typedef {source} right __attribute__((ext_vector_type({unit.b.registers})));
    typedef float sums __attribute__((ext_vector_type({unit.c.registers})));
    return bits_as<{kinds[2]}>(__builtin_amdgcn_{unit.name}(
        bits_as<left>(a), bits_as<right>(b), bits_as<sums>(c){flags}));
}}
#endif"""


HIP_SCALARS = {**SCALARS, dtypes.float16: "_Float16"}
HIP = replace(
    CUDA, name="HIP C", types=HIP_SCALARS, async_copy="",
    matrix_units={unit.name: _amd_builtin(unit) for unit in (*MFMA, *WMMA)}, large_shared="",
    header=f"#include <hip/hip_runtime.h>\n\n{LANES}\n\n{HIP_SHUFFLE}\n\n{EXCHANGE}",
)


HOPPER = 90
"""The GPUs with `wgmma`."""
HOPPER_SHARED_BYTES = 227 << 10
"""What a block of these may have of shared memory."""
HOPPER_CUDA = replace(
    CUDA, header=f"{CUDA.header}\n\n{SWIZZLED_ROWS}",
    matrix_units={**CUDA.matrix_units, **{unit.name: _wgmma(unit) for unit in WGMMA}},
    # what threads write is there for units after this fence of theirs and a barrier; rows begin a swizzle
    barrier='asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads();',
    shared="__shared__ __align__(1024)",
    large_shared="LARGE_SHARED_OF_ROWS({bytes})",
)
AMPERE = 80
"""The first GPUs with `mma.sync` of these shapes and with asynchronous copies."""
AMPERE_SHARED_BYTES = 99 << 10
"""What a block of any GPU since then may have of shared memory."""


class HopperRenderer(BlocksRenderer):
    """CUDA C, with what kernels need in which matrix units read shared memory."""

    def writer(self, name: str, program: list[UOp], dialect: Dialect) -> BlockWriter:
        reads_shared = any(n.op is Ops.MMA and n.arg.in_shared for n in program)
        own = replace(HOPPER_CUDA, types=dialect.types) if reads_shared else dialect
        return super().writer(name, program, own)


def cuda_renderer(capability: int = AMPERE, shared_bytes: int = AMPERE_SHARED_BYTES,
                  multiprocessors: int = Machine.multiprocessors) -> BlocksRenderer:
    """CUDA C, for GPUs of NVIDIA of this compute capability (90 is sm_90), with so much shared memory a block
    and so many multiprocessors."""
    if capability == HOPPER:
        return HopperRenderer(CUDA, blocks(shared_bytes=shared_bytes, matrix_units=(*WGMMA, *MMA_SYNC),
                                           multiprocessors=multiprocessors))
    if capability >= AMPERE:
        return BlocksRenderer(CUDA, blocks(shared_bytes=shared_bytes, matrix_units=MMA_SYNC,
                                           multiprocessors=multiprocessors))
    older = replace(CUDA, async_copy="", matrix_units={})
    return BlocksRenderer(older, blocks(shared_bytes=min(shared_bytes, STATIC_SHARED_BYTES),
                                        multiprocessors=multiprocessors))


AMD_UNITS: dict[str, tuple[MatrixUnit, ...]] = {"gfx94": MFMA, "gfx11": WMMA}
"""By how the names of the architectures begin that have them."""


def units_of_amd(architecture: str) -> tuple[MatrixUnit, ...]:
    """The matrix units of a GPU such as gfx942."""
    return next((units for name, units in AMD_UNITS.items() if architecture.startswith(name)), ())


def hip_renderer(architecture: str = "gfx942",
                 multiprocessors: int = Machine.multiprocessors) -> BlocksRenderer:
    """HIP C, for GPUs of AMD of this architecture and so many compute units."""
    warp = 64 if architecture.startswith("gfx9") else 32
    return BlocksRenderer(HIP, blocks(shared_bytes=64 << 10, warp_threads=warp,
                                      matrix_units=units_of_amd(architecture),
                                      multiprocessors=multiprocessors))
