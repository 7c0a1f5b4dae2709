"""Sizes that are not known while the graph is built: integer expressions of bound Variables.

`Variable("n", 1, 64).bind(5)` is a node, and so is `n + 1`. As the size of an axis, or as the place where a
slice begins, an expression is a `Size`: to everything that computes with shapes it is an integer, of which
only the bounds are known. A comparison gives a bool: that for every value of the variables, else that for the
values that are bound, of which a trace takes note (`when_decided`). One of unbound variables raises, as does
asking for the integer itself. Sizes are equal if they are the same expression of the same variables, bound to
the same values.

Memory is laid out for the largest values (`largest`), so strides are known. Next on the path:
`schedule/padded_shapes.py`, which makes of a graph with Sizes one of known shapes and conditions.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from numbers import Integral, Number
from typing import TYPE_CHECKING, Any, ClassVar

from tinygrad.dtype import dtypes
from tinygrad.graph.ops import Ops
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.graph.uop import UOp

    Integer = int
else:
    Integer = object


class SizeError(TypeError):
    """A question that only the value of a Variable answers."""


def _of_integers(operation: Callable[[Size, int], Any]) -> Callable[[Size, int], Any]:
    """An operator of a size and an integer; of a number that is none it would have to know the size. What it
    is of anything else, that says itself (a Tensor)."""

    def operate(size: Size, other: int) -> Any:
        if isinstance(other, (int, Size, Integral)) or is_expression(other):
            return operation(size, other)
        return operation(size.__index__(), other) if isinstance(other, Number) else NotImplemented

    return operate


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Size, int], int]:
    return _of_integers(lambda size, other: Size.of(operation(size.node, node_of(other))))


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Size, int], int]:
    return _of_integers(lambda size, other: Size.of(operation(node_of(other), size.node)))


def _comparison(sign: str, operation: Callable[[Any, Any], Any]) -> Callable[[Size, int], bool]:
    return _of_integers(lambda size, other: _decided(operation(size.node, node_of(other)), size, sign, other))


class Size(Integer):
    """An integer expression of Variables. To the type checker it is an `int`; make one with `as_size`."""

    __slots__ = ("node",)
    exists: ClassVar[bool] = False
    """whether a shape of this process ever had one: without any, nobody has to look for them"""
    given: ClassVar[bool] = False
    """whether a user gave one"""
    node: UOp

    @staticmethod
    def of(node: UOp) -> int:
        """The size that an index expression is: an `int` if it can have one value only."""
        low, high = node.bounds
        if low == high:
            return low
        size = object.__new__(Size)
        size.node = node
        return size

    @staticmethod
    @contextmanager
    def used() -> Iterator[None]:
        """A block that makes shapes with sizes which nothing keeps."""
        Size.exists = True
        try:
            yield
        finally:
            Size.exists = Size.given

    def __eq__(self, other: object) -> bool:
        return self.node is getattr(other, "node", other)

    def __ne__(self, other: object) -> bool:
        return self.node is not getattr(other, "node", other)

    def __hash__(self) -> int:
        return hash(self.node)

    def __reduce__(self) -> tuple[Any, ...]:
        return as_size, (self.node,)

    # --- arithmetic, comparisons ----------------------------------------------------------------------------

    __add__ = __radd__ = _arithmetic(operator.add)
    __sub__ = _arithmetic(operator.sub)
    __mul__ = __rmul__ = _arithmetic(operator.mul)
    __floordiv__ = _arithmetic(operator.floordiv)
    __mod__ = _arithmetic(operator.mod)
    __rsub__ = _reflected(operator.sub)
    __rfloordiv__ = _reflected(operator.floordiv)
    __rmod__ = _reflected(operator.mod)

    def __neg__(self) -> int:
        return Size.of(-self.node)

    __lt__ = _comparison("<", operator.lt)
    __le__ = _comparison("<=", operator.le)
    __gt__ = _comparison(">", operator.gt)
    __ge__ = _comparison(">=", operator.ge)

    def __bool__(self) -> bool:
        return _decided(self.node.ne(0), self, "!=", 0)

    # --- what is not known ----------------------------------------------------------------------------------

    def __index__(self) -> int:
        raise SizeError(f"the size {self} is an expression of Variables, whose values differ from call to "
                        "call: it cannot be read as a number here; value_of(size) gives the one that is "
                        "bound now")

    __int__ = __float__ = __index__

    __truediv__ = __rtruediv__ = _of_integers(lambda size, other: size.__index__() / other)

    def __repr__(self) -> str:
        text = text_of(self.node)
        return text if any(v.arg[3] is None for v in variables_in(self.node)) else f"{text}={value_of(self)}"


def text_of(node: UOp) -> str:
    """An index expression as Python writes it."""
    from tinygrad.graph.printing import format_expression

    return format_expression(node)


when_decided: list[Callable[[UOp, bool], None]] = []
"""Called with a comparison that only the values of bound Variables decide, and what it is: what TinyJit
traces then is right where it comes out so."""


def _decided(condition: UOp, left: int, sign: str, right: int) -> bool:
    """The truth of a comparison: for all values, or for those that are bound. Raises SizeError where neither
    decides."""
    low, high = condition.bounds
    if low == high:
        return bool(low)
    truth = truth_of(condition)
    if truth is None:
        names = (v for side in (left, right) if isinstance(side, Size) for v in variables_in(side.node))
        bounds = ", ".join(dict.fromkeys(f"{v.arg[0]} from {v.arg[1]} to {v.arg[2]}" for v in names))
        raise SizeError(f"whether {left} {sign} {right} depends on the value of a Variable ({bounds}); bind "
                        "it, or give it bounds for which it always holds, or never")
    for note in when_decided:
        note(condition, truth)
    return truth


def truth_of(condition: UOp) -> bool | None:
    """What a comparison is for the values that its VARIABLEs are bound to; None where one is not bound."""
    value = _value_where_bound(condition)
    return None if value is None else bool(value)


def _value_where_bound(node: UOp) -> int | None:
    """The number that an expression has with the values of its VARIABLEs; None where one is not bound."""
    values = {v: v.arg[3] for v in variables_in(node)}
    if None in values.values():
        return None
    return node.substitute({v: node_of(value) for v, value in values.items()}).bounds[0]


# --- between numbers and expressions ------------------------------------------------------------------------


def as_size(value: Any) -> Any:
    """An index expression as a size, which shapes may have from now on; anything else as it is."""
    if type(value) is int or not is_expression(value):
        return value
    Size.given = Size.exists = True
    return Size.of(value)


def is_expression(value: Any) -> bool:
    """Whether `value` is a node of index arithmetic: a Variable, or made of them."""
    return getattr(value, "dtype", None) is dtypes.index


def is_size(value: Any) -> bool:
    """Whether `value` is an integer that may stand in a shape."""
    return isinstance(value, Size) or (hasattr(value, "__index__") and not isinstance(value, bool))


def node_of(value: Any) -> UOp:
    """A size, an index expression or an integer as a node."""
    from tinygrad.graph.uop import UOp

    if isinstance(value, Size):
        return value.node
    return value if isinstance(value, UOp) else UOp.const(value, dtypes.index)


def is_symbolic(shape: Iterable[Any]) -> bool:
    """Whether a size among these is not known."""
    return Size.exists and any(isinstance(size, Size) for size in shape)


def largest(size: int) -> int:
    """The largest value that a size can have."""
    return size.node.bounds[1] if isinstance(size, Size) else size


def largest_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape for the largest values: how memory is laid out."""
    return tuple([largest(size) for size in shape])


def variables_in(node: UOp) -> list[UOp]:
    """The VARIABLEs of an expression."""
    return node.nodes_of(Ops.VARIABLE)


def value_of(size: Any) -> int:
    """The number that a size has with the values its Variables are bound to. Raises SizeError for unbound."""
    if not isinstance(size, Size):
        return int(size)
    value = _value_where_bound(size.node)
    if value is None:
        name = next(v.arg[0] for v in variables_in(size.node) if v.arg[3] is None)
        raise SizeError(f"the size {size} has no value: bind its variable, {name}.bind(3)")
    return value


def shape_value(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with the values that Variables are bound to."""
    return tuple([value_of(size) for size in shape]) if is_symbolic(shape) else tuple(shape)


def at_least(size: int, least: int) -> int:
    """The larger of a size and a number."""
    return Size.of(size.node.maximum(least)) if isinstance(size, Size) else max(size, least)


def at_most(size: int, most: int) -> int:
    """The smaller of a size and a number."""
    return Size.of(size.node.minimum(most)) if isinstance(size, Size) else min(size, most)


# --- sizes inside arguments ---------------------------------------------------------------------------------


def changed_sizes(argument: Any, change: Callable[[UOp], UOp]) -> Any:
    """The argument of a movement op, with the expression of each Size in it changed."""
    if isinstance(argument, Size):
        return Size.of(change(argument.node))
    if isinstance(argument, tuple):
        return tuple([changed_sizes(a, change) for a in argument])
    return argument


def sizes_in(argument: Any) -> list[Size]:
    """The Sizes in the argument of a movement op."""
    if isinstance(argument, Size):
        return [argument]
    if isinstance(argument, tuple):
        return [size for a in argument for size in sizes_in(a)]
    return []


def unbound(node: UOp, values: Mapping[str, int] | None = None) -> UOp:
    """An expression with its VARIABLEs unbound: all, or those that have the value that `values` names."""
    return node.substitute({v: _with_value(v, None) for v in variables_in(node)
                            if values is None or values.get(v.arg[0]) == v.arg[3]})


def bound(node: UOp, values: Mapping[str, int]) -> UOp:
    """An expression with those of its VARIABLEs that have no value bound to that in `values`."""
    return node.substitute({v: _with_value(v, values[v.arg[0]]) for v in variables_in(node)
                            if v.arg[3] is None})


def _with_value(variable: UOp, value: int | None) -> UOp:
    return variable.replace(arg=(*variable.arg[:3], value))


before_reading: list[Callable[[], None]] = []
"""Called before a user reads the value of a Variable: under TinyJit, that would make it a constant."""


# --- what a RESHAPE can say ---------------------------------------------------------------------------------


def reshapes_in_memory(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether items in the order of `old` are in the order of `new` in memory laid out for the largest sizes.

    Both shapes must split into groups of axes with equal products, in each of which only the outermost axis
    (axes of size 1 aside) has a size that is not known.
    """
    old, new = [n for n in old if n != 1], [n for n in new if n != 1]
    begins = {prod(new[j:]): j for j in range(len(new) + 1)}
    cuts = [(i, begins[rest]) for i in range(len(old) + 1) if (rest := prod(old[i:])) in begins]
    if not cuts or cuts[0] != (0, 0):
        return False
    return not any(is_symbolic(old[i + 1:i_end]) or is_symbolic(new[j + 1:j_end])
                   for (i, j), (i_end, j_end) in pairwise(cuts))
