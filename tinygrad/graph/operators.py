"""Python's operators on nodes: `a * b + 1` for `a.alu(Ops.MUL, b).alu(Ops.ADD, one)`.

`UOp` derives from `Operators` and says what they rest on: how an operation makes a node, and a number one.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops

Node = TypeVar("Node", bound="Operators")


def _binary(op: Ops) -> Callable[[Node, Node | float], Node]:
    """The operator that is `op` of a node and another, or a number."""
    return lambda a, b: a.alu(op, a._operand(b))


def _reflected(op: Ops) -> Callable[[Node, Node | float], Node]:
    """The same, of the other operand and the node."""
    return lambda a, b: a._operand(b).alu(op, a)


def _unary(op: Ops) -> Callable[[Node], Node]:
    return lambda a: a.alu(op)


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

    __add__ = _binary(Ops.ADD)
    __radd__ = _reflected(Ops.ADD)
    __sub__ = _binary(Ops.SUB)
    __rsub__ = _reflected(Ops.SUB)
    __mul__ = _binary(Ops.MUL)
    __rmul__ = _reflected(Ops.MUL)
    __truediv__ = _binary(Ops.FDIV)
    __rtruediv__ = _reflected(Ops.FDIV)
    __floordiv__ = _binary(Ops.IDIV)
    __mod__ = _binary(Ops.MOD)
    __and__ = _binary(Ops.AND)
    __or__ = _binary(Ops.OR)
    __xor__ = _binary(Ops.XOR)
    __lshift__ = _binary(Ops.SHL)
    __rshift__ = _binary(Ops.SHR)
    __lt__ = _binary(Ops.CMPLT)
    __gt__ = _reflected(Ops.CMPLT)
    ne = _binary(Ops.CMPNE)
    maximum = _binary(Ops.MAX)
    sqrt = _unary(Ops.SQRT)
    exp2 = _unary(Ops.EXP2)
    log2 = _unary(Ops.LOG2)
    sin = _unary(Ops.SIN)
    trunc = _unary(Ops.TRUNC)

    def __neg__(self) -> Self:
        return self * -1 if self.dtype.scalar is dtypes.index else self.alu(Ops.NEG)

    def __ge__(self, x: Self | float) -> Self:
        """`not (self < x)`: for floats, true where either is NaN."""
        return (self < x).logical_not()

    def __le__(self, x: Self | float) -> Self:
        """`not (x < self)`: for floats, true where either is NaN."""
        return (self > x).logical_not()

    def eq(self, x: Self | float) -> Self:
        return self.ne(x).logical_not()

    def logical_not(self) -> Self:
        return self.ne(True)

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
