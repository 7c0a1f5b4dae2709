"""Graph templates: the nodes that a function of tensors makes, over any operands of the same kind.

`GraphTemplate` holds them in numbers; `functional/graph_templates.py` says which functions have some. `over`
makes the nodes. Often the result is all that is ever asked for (`a @ b` at a prompt, a model's prediction):
so one node, `APPLY`, stands for all of them, also where the operands are such nodes, or views of them. Writes
and gradients (`functional/gradient_templates.py`) stand above it too; whoever else asks a tensor for its node
(`Tensor.uop`) gets what the templates make (`expanded`). What a schedule depends on is in an APPLY as it is:
operations computed before cost a walk over one node each (`schedule/cache.py`).
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias
from weakref import ref

from tinygrad.dtype import DType
from tinygrad.graph.node_flags import APPLIED, COSTLY, READS, WRITES
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp

_REARRANGES = frozenset({Ops.RESHAPE, Ops.PERMUTE})
"""Movement that stays on top of an APPLY: it shows all items of what is computed, once each."""


class GraphTemplate:
    """The nodes of a result by number: those that it is made of come first, then constants, then, each after
    its sources, what is made of them; at last the movement on top. Results of one call (`of_several`) have
    their numbers in common, each with what of the operands it is `taken` from."""

    __slots__ = ("constants", "is_applied", "kind", "movement", "number", "operands", "steps", "taken")

    def __init__(self, result: UOp, leaves: Sequence[UOp]) -> None:
        numbers, self.constants, steps = _numbered([result], leaves)
        movement = []
        while len(steps) > 1 and steps[-1].op in _REARRANGES and len(steps[-1].src) == 1:
            movement.append(steps.pop())
        self.steps = _as_steps(steps, numbers)
        self.taken: tuple[int, ...] | None = None
        """the numbers of the operands that the result is made of, where others are made of more; None: all"""
        self.operands = len(leaves)
        self._end_at(steps[-1] if steps else result, movement[::-1], numbers)
        self.is_applied &= all([n.op is not Ops.ASSIGN for n in steps])

    @staticmethod
    def of_several(results: Sequence[UOp], leaves: Sequence[UOp]) -> list[GraphTemplate]:
        """The templates of results that have nodes in common, made of the same operands."""
        numbers, constants, steps = _numbered(results, leaves)
        as_steps, count = _as_steps(steps, numbers), len(leaves)
        below = {leaf: 1 << numbers[leaf] for leaf in leaves}
        """the operands below each node, as bits"""
        for node in steps:
            below[node] = functools.reduce(operator.or_, [below.get(source, 0) for source in node.src])
        found = []
        for result in results:
            template = object.__new__(GraphTemplate)
            template.constants, template.steps, template.operands = constants, as_steps, count
            taken = below.get(result, 0)
            template.taken = tuple([i for i in range(count) if taken >> i & 1])
            movement, value = [], result
            while value.op in _REARRANGES and numbers[value] >= count:
                movement.append(value)
                (value,) = value.src
            template._end_at(value, movement[::-1], numbers)
            template.is_applied &= numbers[value] >= count and value in below
            found.append(template)
        return found

    def _end_at(self, value: UOp, movement: Sequence[UOp], numbers: dict[UOp, int]) -> None:
        """Take note of which node the result is, with the movement on top of it."""
        self.movement = [(n.op, n.arg, (n.shape, n.device, n.flags)) for n in movement]
        self.number = numbers[value]
        self.kind = value.op, value.dtype, (value.shape, value.device, value.flags)
        is_to_keep = value.flags & (COSTLY | READS) == COSTLY  # see `tensor/keeping.py`
        self.is_applied = value.op not in Family.MOVEMENT and value.device is not None and not is_to_keep
        """whether an APPLY may stand for the result"""

    @property
    def op(self) -> Ops:
        """The operation of what is computed."""
        return self.kind[0]

    def value(self, leaves: Sequence[UOp], made: dict[int, UOp] | None = None) -> UOp:
        """What is computed for other nodes of that kind, those it is taken from. `made`: the nodes of this
        call that other results have already, by number; those made here are added."""
        if self.taken is None:
            nodes = [*leaves, *self.constants]
            for op, dtype, arg, known, sources in self.steps:
                nodes.append(UOp.new(op, dtype, tuple([nodes[s] for s in sources]), arg, known))
            return nodes[self.number]
        made = {} if made is None else made
        made.update(zip(self.taken, leaves, strict=True))
        made.update(enumerate(self.constants, self.operands))
        first, stack = self.operands + len(self.constants), [self.number]
        while stack:
            number = stack[-1]
            if number in made:
                stack.pop()
                continue
            op, dtype, arg, known, sources = self.steps[number - first]
            missing = [s for s in sources if s not in made]
            if missing:
                stack += missing
            else:
                made[number] = UOp.new(op, dtype, tuple([made[s] for s in sources]), arg, known)
        return made[self.number]

    def of_all(self, leaves: Sequence[UOp]) -> Sequence[UOp]:
        """Those of all operands of a call that the result is made of."""
        return leaves if self.taken is None else [leaves[i] for i in self.taken]

    def over(self, leaves: Sequence[UOp]) -> UOp:
        """The result for other nodes of that kind."""
        node = self.value([expanded(leaf) for leaf in self.of_all(leaves)])
        for op, arg, known in self.movement:
            node = UOp.new(op, node.dtype, (node,), arg, known)
        return node

    def applied(self, leaves: Sequence[UOp], made: dict[int, UOp] | None = None) -> UOp:
        """As `over`, or the APPLY that stands for it, where that may be. `made` is of all results of a
        call."""
        if not self.is_applied:
            return self.over(leaves)
        _, dtype, (shape, device, flags) = self.kind
        node = UOp.new(Ops.APPLY, dtype, tuple(self.of_all(leaves)), self, (shape, device, flags | APPLIED))
        if made is not None:
            node.__dict__.setdefault("_made", made)
        for op, arg, (shape, device, flags) in self.movement:
            node = UOp.new(op, dtype, (node,), arg, (shape, device, flags | APPLIED))
        return node


TemplateNode: TypeAlias = tuple[Ops, DType, Any, tuple[Any, ...], list[int]]
"""Operation, dtype, argument, what else is known of a node, and the numbers of its sources."""


def _numbered(results: Sequence[UOp], leaves: Sequence[UOp]
              ) -> tuple[dict[UOp, int], list[UOp], list[UOp]]:
    """The numbers of the nodes of some results; those that depend on none of the leaves; and the others."""
    numbers = {node: i for i, node in reversed(list(enumerate(leaves)))}
    made: dict[UOp, None] = dict.fromkeys(leaves)
    constants: list[UOp] = []
    root = results[0] if len(results) == 1 else UOp.sink(results)
    for node in root.toposort(stop=numbers.__contains__):
        if node.op is Ops.SINK:
            continue
        if any(source in made for source in node.src):
            made[node] = None
        elif node not in numbers:
            constants.append(node)
    steps = [n for n in made if n not in numbers]
    numbers.update((n, i) for i, n in enumerate(constants + steps, len(leaves)))
    return numbers, constants, steps


def _as_steps(nodes: Sequence[UOp], numbers: dict[UOp, int]) -> list[TemplateNode]:
    return [(n.op, n.dtype, n.arg, (n.shape, n.device, n.flags), [numbers[s] for s in n.src]) for n in nodes]


def applied_of(node: UOp) -> UOp | None:
    """The APPLY all of whose items a node shows, if there is one."""
    below = unmoved(node)
    return below if below.op is Ops.APPLY else None


def call_alone(node: UOp) -> UOp | None:
    """The APPLY that a node shows, where that is all there is to compute: nothing is written or kept before
    it, and nobody has its nodes."""
    if node.flags & (APPLIED | WRITES | COSTLY) != APPLIED:
        return None
    applied = applied_of(node)
    return None if applied is None or is_expanded(applied) else applied


def unmoved(node: UOp) -> UOp:
    """What to compute for a node that shows all items of an APPLY, or of that as a constant to gradients:
    that itself, for whoever else shows them."""
    below = node
    while below.flags & APPLIED and below.op in _REARRANGES:
        (below,) = below.src
    return below if below.op is Ops.APPLY or (below.op is Ops.DETACH and below.flags & APPLIED) else node


def known_nodes(node: UOp) -> UOp | None:
    """What a node stands for in which an APPLY is, if somebody asked for that before: the value is theirs
    too, computed once."""
    return node.__dict__.get("_expanded")


def is_expanded(node: UOp) -> bool:
    """Whether somebody has the nodes that a node stands for, or what it is a view of."""
    while known_nodes(node) is None and len(node.src) == 1 and node.op is not Ops.APPLY:
        (node,) = node.src
    return known_nodes(node) is not None


def are_of_one_call(results: Iterable[UOp]) -> None:
    """Take note of nodes that are the results of one call (`x.sort()` has two)."""
    nodes = [node for result in results if (node := applied_of(result)) is not None]
    for node in nodes:
        node.__dict__["_of_one_call"] = [ref(other) for other in nodes]


def with_results_of_calls(nodes: Sequence[UOp]) -> Sequence[UOp]:
    """APPLY nodes, and what else their calls gave that somebody holds and that is not computed yet: apart,
    each would compute what they have in common."""
    if not any(["_of_one_call" in node.__dict__ for node in nodes]):
        return nodes
    held = [other for node in nodes for known in node.__dict__.get("_of_one_call", ())
            if (other := known()) is not None]
    others = [other for other in held if other.realized_view is None and not is_expanded(other)]
    return list(dict.fromkeys([*nodes, *others]))


def expanded(node: UOp) -> UOp:
    """What a node stands for in which an APPLY is, in the memory in which that was computed; any other node
    itself."""
    return node.rebuild(_with_nodes, _known) if node.flags & APPLIED else node


def _known(node: UOp) -> UOp | None:
    """What a node stands for, if that was asked before; None where it is to be made."""
    if not node.flags & APPLIED:
        return node
    result = known_nodes(node)
    return None if result is None else _in_memory(result, node)


def view_of_nodes(node: UOp) -> UOp | None:
    """What holds the value of the nodes that a node stands for, if somebody asked for them and they were
    computed."""
    nodes = known_nodes(node)
    return None if nodes is None or nodes.computed_into is None else nodes.realized_view


def is_known_by_nodes(node: UOp) -> bool:
    """Whether the nodes that a node stands for were computed: if so, it is in that memory too."""
    view = view_of_nodes(node)
    if view is None:
        return False
    if node.computed_into is not view:
        node.set_realized_view(view)
    return True


def calls_to_compute(nodes: Iterable[UOp]) -> list[UOp]:
    """What to compute for these nodes, where the nodes that calls stand for were not computed already."""
    below = dict.fromkeys([unmoved(node) for node in nodes if not is_known_by_nodes(node)])
    return [node for node in below if not is_known_by_nodes(node)]


def with_known_values(root: UOp) -> UOp:
    """A node, below which calls are in memory where the nodes are that they stand for."""
    for node in root.toposort(stop=lambda n: not n.flags & APPLIED) if root.flags & APPLIED else ():
        if node.flags & APPLIED and node.computed_into is None:
            is_known_by_nodes(node)
    return root


def _with_nodes(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """The nodes that stand for one over those that stand for its sources."""
    if node.op is Ops.APPLY:
        result: UOp = node.arg.value(src, node.__dict__.get("_made"))
    else:
        result = node.with_sources(src)
    node.__dict__["_expanded"] = result
    return _in_memory(result, node)


def _in_memory(result: UOp, node: UOp) -> UOp:
    if result.computed_into is None and (view := node.realized_view) is not None:
        result.set_realized_view(view)
    return result
