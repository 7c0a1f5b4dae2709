"""Python's operators on nodes: `a * b + 1` for `a.alu(Ops.MUL, b).alu(Ops.ADD, one)`.

`UOp` derives from `Operators` and says what they rest on: how an operation makes a node, and a number one.
"""
from __future__ import annotations

from typing import Self

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops


class Operators:
    """Elementwise arithmetic. The other operand is a node of equal shape and dtype, or a number."""

    __slots__ = ()
    dtype: DType

    def alu(self, op: Ops, *others: Self) -> Self:
        """`op` of this node and `others`."""
        raise NotImplementedError

    def _operand(self, x: Self | float | bool) -> Self:
        """`x` as a node of this one's shape and dtype."""
        raise NotImplementedError

    def __add__(self, x: Self | float) -> Self:
        return self.alu(Ops.ADD, self._operand(x))

    def __radd__(self, x: float) -> Self:
        return self._operand(x).alu(Ops.ADD, self)

    def __sub__(self, x: Self | float) -> Self:
        return self.alu(Ops.SUB, self._operand(x))

    def __rsub__(self, x: float) -> Self:
        return self._operand(x).alu(Ops.SUB, self)

    def __mul__(self, x: Self | float) -> Self:
        return self.alu(Ops.MUL, self._operand(x))

    def __rmul__(self, x: float) -> Self:
        return self._operand(x).alu(Ops.MUL, self)

    def __truediv__(self, x: Self | float) -> Self:
        return self.alu(Ops.FDIV, self._operand(x))

    def __rtruediv__(self, x: float) -> Self:
        return self._operand(x).alu(Ops.FDIV, self)

    def __floordiv__(self, x: Self | int) -> Self:
        return self.alu(Ops.IDIV, self._operand(x))

    def __mod__(self, x: Self | int) -> Self:
        return self.alu(Ops.MOD, self._operand(x))

    def __neg__(self) -> Self:
        return self * -1 if self.dtype.scalar is dtypes.index else self.alu(Ops.NEG)

    def __lt__(self, x: Self | float) -> Self:
        return self.alu(Ops.CMPLT, self._operand(x))

    def __gt__(self, x: Self | float) -> Self:
        return self._operand(x).alu(Ops.CMPLT, self)

    def __ge__(self, x: Self | float) -> Self:
        """`not (self < x)`: for floats, true where either is NaN."""
        return (self < x).logical_not()

    def __le__(self, x: Self | float) -> Self:
        """`not (x < self)`: for floats, true where either is NaN."""
        return (self > x).logical_not()

    def __and__(self, x: Self | int | bool) -> Self:
        return self.alu(Ops.AND, self._operand(x))

    def __or__(self, x: Self | int | bool) -> Self:
        return self.alu(Ops.OR, self._operand(x))

    def __xor__(self, x: Self | int | bool) -> Self:
        return self.alu(Ops.XOR, self._operand(x))

    def __lshift__(self, x: Self | int) -> Self:
        return self.alu(Ops.SHL, self._operand(x))

    def __rshift__(self, x: Self | int) -> Self:
        return self.alu(Ops.SHR, self._operand(x))

    def ne(self, x: Self | float) -> Self:
        return self.alu(Ops.CMPNE, self._operand(x))

    def eq(self, x: Self | float) -> Self:
        return self.ne(x).logical_not()

    def logical_not(self) -> Self:
        return self.ne(True)

    def maximum(self, x: Self | float) -> Self:
        return self.alu(Ops.MAX, self._operand(x))

    def minimum(self, x: Self | float) -> Self:
        """The smaller of the two, by comparison; a NaN in `x` is kept."""
        other = self._operand(x)
        return (self < other).where(self, other)

    def where(self, x: Self | float, y: Self | float) -> Self:
        """`x` where this bool holds, else `y`. One of the two must be a UOp."""
        like = x if isinstance(x, Operators) else y
        if not isinstance(like, Operators):
            raise TypeError("where needs a UOp for one of its values, to know their dtype")
        return self.alu(Ops.WHERE, like._operand(x), like._operand(y))

    def mulacc(self, b: Self | float, c: Self | float) -> Self:
        """self * b + c, rounded once."""
        return self.alu(Ops.MULACC, self._operand(b), self._operand(c))

    def sqrt(self) -> Self:
        return self.alu(Ops.SQRT)

    def exp2(self) -> Self:
        return self.alu(Ops.EXP2)

    def log2(self) -> Self:
        return self.alu(Ops.LOG2)

    def sin(self) -> Self:
        return self.alu(Ops.SIN)

    def trunc(self) -> Self:
        return self.alu(Ops.TRUNC)
