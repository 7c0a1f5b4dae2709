"""What a device can do at best (`Limits`): what times are read against, at DEBUG=2 and in the benchmark.

`runtime/limits.py` measures them on this CPU.
"""
from __future__ import annotations

from tinygrad.frozen import frozen


@frozen
class Limits:
    """Peak rates of float32 arithmetic and of memory, over `threads` threads."""

    threads: int
    lanes: int
    gflops: float
    read_gbs: float
    copy_gbs: float
    bfloat16_gflops: float = 0.0
    """of products of bfloat16 on the unit for them; 0 where there is none"""

    def __str__(self) -> str:
        unit = f", {self.bfloat16_gflops:.0f} GFLOP/s of bfloat16 products" if self.bfloat16_gflops else ""
        return (f"{self.threads} threads, {self.lanes} lanes of float32: {self.gflops:.0f} GFLOP/s, "
                f"{self.read_gbs:.0f} GB/s read, {self.copy_gbs:.0f} GB/s copied{unit}")

    def peak(self, dtype: str) -> float:
        """GFLOP/s of products of numbers of this type."""
        return self.bfloat16_gflops or self.gflops if dtype == "bfloat16" else self.gflops

    def least_seconds(self, operations: float, moved_bytes: float) -> float:
        """The time that no program can beat on this machine: the slower of arithmetic and memory."""
        return max(operations / (self.gflops * 1e9), moved_bytes / (max(self.read_gbs, self.copy_gbs) * 1e9))
