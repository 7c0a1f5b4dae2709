"""Item by item: common divisors and multiples of integers, by Euclid's algorithm written out.

Numbers of n binary digits take at most n / log2(golden ratio) divisions, as many as there are Fibonacci
numbers of so many digits (Lame, 1844): 12 of int8, 47 of int32. The graph is as long as that.
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinygrad.dtype import DType, dtypes
from tinygrad.functional.elementwise import binary
from tinygrad.graph.uop import UOp

if TYPE_CHECKING:
    from tinygrad.tensor import Operand, Tensor

GOLDEN_RATIO = (1 + math.sqrt(5)) / 2
_MAGNITUDES = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def _magnitude(x: UOp) -> UOp:
    """abs(x) in the unsigned type of its width, which holds that of the lowest number too."""
    bits = x.cast(_MAGNITUDES[x.dtype.itemsize])
    return bits if x.dtype.is_unsigned else (x < 0).where(bits * -1, bits)


def _refuse(name: str, dtype: DType) -> None:
    if not dtype.is_int:
        raise ValueError(f"{name} takes integers, got {dtype}")


def _divisor(a: UOp, b: UOp) -> UOp:
    """The largest common divisor of two magnitudes; the other, where one is 0."""
    for _ in range(math.ceil(a.dtype.bits / math.log2(GOLDEN_RATIO))):
        a, b = b.eq(0).where(a, b), a % b  # x % 0 is 0
    return a


def gcd(self: Tensor, other: Operand) -> Tensor:
    """The largest common divisor of integers, not negative; gcd(x, 0) is abs(x).

    >>> Tensor([12, -7, 0]).gcd(Tensor([18, 0, 0])).tolist()
    [6, 7, 0]
    """
    def node(a: UOp, b: UOp) -> UOp:
        _refuse("gcd", a.dtype)
        return _divisor(_magnitude(a), _magnitude(b)).cast(a.dtype)

    return binary("gcd", node, self, other)


def lcm(self: Tensor, other: Operand) -> Tensor:
    """The smallest common multiple of integers, not negative; 0 where one is 0. It wraps, as products do.

    >>> Tensor([4, -3, 0]).lcm(6).tolist()
    [12, 6, 0]
    """
    def node(a: UOp, b: UOp) -> UOp:
        _refuse("lcm", a.dtype)
        x, y = _magnitude(a), _magnitude(b)
        return (x // _divisor(x, y) * y).cast(a.dtype)

    return binary("lcm", node, self, other)
