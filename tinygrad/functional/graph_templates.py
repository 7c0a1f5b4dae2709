"""Graph templates, memoised: the nodes of `conv2d` or `softmax` by the shapes of their operands.

In: a function of tensors that reads no values. Out: the same function, which runs once for each kind of
operands and options, and leaves a `GraphTemplate` of the nodes that it made over them. Later calls make these
nodes without asking again which they are: a convolution's windows alone are twenty nodes, and each is the
answer to a question about shapes.

What a function may ask about its operands is in the key: of each the movement on top of it, which of that is
in memory, and below it what a node says of itself (operation, dtype, shape, device, flags); which of them are
the same; the modes that a user sets. A call is left to the function where it is given anything but tensors
and plain values; tensors of unknown sizes, on several devices or constants; and where its result depends on
memory that is no operand's, on Variables (random numbers among them), or is a view of memory.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import NoneType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tinygrad.dtype import DType, dtypes
from tinygrad.engine.capture import Capture
from tinygrad.graph.node_flags import APPLIED, MEMORY
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import Size
from tinygrad.graph.template import GraphTemplate, are_of_one_call, expanded
from tinygrad.graph.uop import UOp
from tinygrad.tensor.modes import no_grad

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")

MAX_TEMPLATES = 1 << 12
"""Kinds of calls of a function that are remembered; the one met first goes first."""
MOST_OPERANDS = 256
"""Tensors up to which a call is looked up, those of a batch among them: more make long keys, of results that
are seldom asked for again."""
when_called: list[Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = []
"""The last one is called instead of a remembered function, with that, its arguments and options."""
_PLAIN = frozenset({NoneType, bool, int, str, DType})
"""Types of which equal values mean the same."""


class _Call:
    """One call of a remembered function: its `key`, and the nodes that its operands are views of."""

    __slots__ = ("key", "leaves", "numbers", "tensor", "tensors")

    def __init__(self, tensor: type[Tensor]) -> None:
        self.tensor = tensor
        self.key: list[Any] = [tensor.training, no_grad.state.depth > 0,
                               dtypes.default_float, dtypes.default_int]
        self.leaves: list[UOp] = []
        self.numbers: dict[UOp, int] = {}
        """where each leaf comes first among them"""
        self.tensors: list[Tensor] = []

    def takes(self, value: Any) -> bool:
        """Add an argument to the key, if it can be part of one."""
        kind, key = type(value), self.key
        if kind is self.tensor:
            self.tensors.append(value)
            node = value._uop
            is_one = node.flags & APPLIED and Capture.active is None
            return self.takes_node(node if is_one else value.uop)
        if kind in _PLAIN:
            key += (kind, value)
        elif kind is float:
            key += (kind, str(value))  # 0.0 is not -0.0
        elif kind is tuple or kind is list:
            key += (kind, len(value))
            return len(value) <= MOST_OPERANDS and all([self.takes(item) for item in value])
        else:
            return False
        return True

    def takes_node(self, node: UOp) -> bool:
        """Add an operand's node to the key, if it can be part of one."""
        key, leaves = self.key, self.leaves
        if Size.exists and node.has_sizes:
            return False
        leaf = None
        while node.op in Family.MOVEMENT and len(node.src) == 1:
            if node.op is Ops.SHRINK and node.flags & MEMORY:
                break  # batches of a data set, wherever they begin, are of one kind
            if leaf is None and node.computed_into is not None and node.realized_view is not None:
                leaf = node  # in memory, which what is below may have lost
                key.append(len(leaves))
            key += (node.op, node.arg)
            (node,) = node.src
        leaf = leaf or node
        number = self.numbers.setdefault(leaf, len(leaves))
        leaves.append(leaf)
        op = node.arg.op if node.op is Ops.APPLY else node.op
        key += (op, node.dtype, node.shape, node.device, node.flags & ~APPLIED, number)
        is_known = type(node.device) is str or (node.device is None and bool(node.src))
        return is_known and len(leaves) <= MOST_OPERANDS

    def made_by(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What the function makes of the operands' nodes. These stay calls: a program that is run again is
        made of calls alone."""
        calls = [(t, t._uop) for t in self.tensors if t._uop.flags & APPLIED]
        result = function(*args, **options)
        for tensor, node in calls if Capture.active is None else ():
            if tensor._alias_set is None:
                tensor._uop = node
        return result

    def has_one_in_two_forms(self) -> bool:
        """Whether one operand is a call and another the nodes of just that: another call's are different."""
        return len({*map(expanded, self.leaves)}) < len(self.numbers)

    def result(self, template: GraphTemplate) -> Tensor:
        """What a template makes of the operands: while TinyJit traces, which looks at all nodes, of these."""
        make = template.applied if Capture.active is None else template.over
        result: Tensor = self.tensor.of(make(self.leaves), *self.tensors)
        return result


def _first_of(value: Any) -> Any:
    """`value`, or what a sequence begins with."""
    return value[0] if type(value) in (list, tuple) and value else value


def memoised(function: Callable[P, R], first: int = 0) -> Callable[P, R]:
    """`function`, which gives a tensor or a tuple of them, memoised as graph templates by what it is called
    with; its `first` tensor is the argument of that number, or what that begins with."""
    templates: dict[tuple[Any, ...], Any] = {}
    """of each kind of call the template, those of several results, or None where it has none"""

    @wraps(function)
    def method(*args: P.args, **options: P.kwargs) -> Any:
        if when_called:
            return when_called[-1](function, args, options)
        tensor: Any = type(_first_of(args[first])) if len(args) > first else None
        if not hasattr(tensor, "no_grad") or len(args) > MOST_OPERANDS:
            return function(*args, **options)
        call = _Call(tensor)
        for value in args:
            if not call.takes(value):
                return function(*args, **options)
        for name, value in options.items():
            call.key.append(name)
            if not call.takes(value):
                return function(*args, **options)
        key = tuple(call.key)
        known = templates.get(key)
        result = None
        if known is None:
            result = call.made_by(function, args, options)
            if key in templates or call.has_one_in_two_forms():
                return result
            known = templates[key] = _templates_of(result, call)
            while len(templates) > MAX_TEMPLATES:
                templates.pop(next(iter(templates), key), None)
        if isinstance(known, GraphTemplate):
            return call.result(known)
        if known is None:
            return result
        results = tuple([call.result(template) for template in known])
        are_of_one_call([result._uop for result in results])
        return results

    return method


def _templates_of(result: Any, call: _Call) -> GraphTemplate | tuple[GraphTemplate, ...] | None:
    """How a result, or each of several, follows from the operands of a call, if that is all that it follows
    from."""
    if type(result) is not tuple:
        return _template_of(result, call)
    found = [template for part in result if (template := _template_of(part, call)) is not None]
    return tuple(found) if len(found) == len(result) else None


def _template_of(result: Any, call: _Call) -> GraphTemplate | None:
    """How `result` follows from the operands of a call, if that is all that it follows from."""
    if type(result) is not call.tensor or result._aliased is not None or result._requires_grad is not None:
        return None
    node = result.uop
    if node.flags & MEMORY or node in call.leaves:
        return None
    operands = list(map(expanded, call.leaves))
    known = set(operands)
    leaves = (n for n in node.toposort(stop=known.__contains__) if not n.src and n not in known)
    if any(n.op is not Ops.CONST for n in leaves):
        return None
    template = GraphTemplate(node, operands)
    return template if template.steps else None
