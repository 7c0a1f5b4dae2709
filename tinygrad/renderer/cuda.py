"""What CUDA C calls things: the table by which `c_blocks.py` writes kernels for NVIDIA's GPUs.

NVRTC has no headers but CUDA's own, and of those only `cuda_fp16.h` is used, where a kernel has halves. `lanes` are
what one load or store moves: NVRTC makes `ld.global.v4` of it. Next on the path: `runtime/cuda.py`.
"""
