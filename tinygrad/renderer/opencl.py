"""OpenCL C 1.2: the words of the dialect. `c_blocks.py` writes kernels with them, `runtime/opencl.py` runs
them.
"""
from __future__ import annotations

from tinygrad.dtype import dtypes
from tinygrad.renderer.c_functions import Dialect

OPENCL = Dialect(
    name="OpenCL C",
    types={
        dtypes.bool: "bool",
        dtypes.int8: "char", dtypes.uint8: "uchar",
        dtypes.int16: "short", dtypes.uint16: "ushort",
        dtypes.int32: "int", dtypes.uint32: "uint",
        dtypes.int64: "long", dtypes.uint64: "ulong",
        dtypes.index: "long",
        dtypes.fp8e4m3: "uchar", dtypes.fp8e5m2: "uchar",
        dtypes.bfloat16: "ushort", dtypes.float16: "ushort",
        dtypes.float32: "float", dtypes.float64: "double",
    },
    kernel="__kernel",
    function="static",
    math="{name}",
    infinity="INFINITY",
    nan="NAN",
    long_suffix="l",
    bitcast="as_{target}({value})",
    header="#pragma OPENCL FP_CONTRACT OFF",
    buffer="__global {type} *restrict {name}",
    variable="const long {name}",
    shared="__local",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    ids={
        **{f"gidx{axis}": f"get_group_id({axis})" for axis in range(3)},
        **{f"lidx{axis}": f"get_local_id({axis})" for axis in range(3)},
    },
    vector_load="vload{count}(0, {address})",
    vector_store="vstore{count}({value}, 0, {address});",
)
"""Half floats are bits here: arithmetic on them is an extension that many devices lack."""
