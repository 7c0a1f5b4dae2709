"""Reducing the lanes of a vector, the same in every language that has vectors."""
from __future__ import annotations

from abc import ABC, abstractmethod

from tinygrad.dtype import DType
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


class LaneReduction(ABC):
    """REDUCE of a vector, for a writer that has words for its parts."""

    values: dict[UOp, str]

    @abstractmethod
    def refuse(self, node: UOp) -> None: ...

    @abstractmethod
    def lane_of(self, vector: str, dtype: DType, lane: int) -> str: ...

    @abstractmethod
    def some_lanes(self, vector: str, dtype: DType, start: int, count: int) -> str: ...

    @abstractmethod
    def arithmetic(self, op: Ops, dtype: DType, *operands: str) -> str: ...

    def reduce(self, node: UOp) -> None:
        """One half of the lanes with the other, until one is left; odd lanes are put aside until the end."""
        if len(node.src) != 1 or node.src[0].dtype.count == 1 or node.dtype.count != 1:
            self.refuse(node)
        vector, dtype = self.values[node.src[0]], node.src[0].dtype
        aside: list[str] = []
        while dtype.count > 1:
            half = dtype.count // 2
            if dtype.count % 2:
                aside.append(self.lane_of(vector, dtype, dtype.count - 1))
            low, high = (self.some_lanes(vector, dtype, start, half) for start in (0, half))
            dtype = dtype.scalar.vec(half)
            vector = self.arithmetic(node.arg, dtype, low, high)
        for lane in aside:
            vector = self.arithmetic(node.arg, dtype, vector, lane)
        self.values[node] = vector
