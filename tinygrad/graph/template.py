"""Graph templates: the nodes that a function of tensors makes, over any operands of the same kind.

`GraphTemplate` holds them in numbers; `functional/graph_templates.py` says which functions have some. `over`
makes the nodes. Often the result is all that is ever asked for (`a @ b` at a prompt, a model's prediction):
so one node, `APPLY`, stands for all of them, also where the operands are such nodes, or views of them.
Nothing else is made of it: whoever asks a tensor for its node (`Tensor.uop`) gets what the templates make
(`expanded`). What a schedule depends on is in an APPLY as it is: operations computed before cost a walk over
one node each (`schedule/cache.py`).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import ref

from tinygrad.graph.node_flags import APPLIED, COSTLY, WRITES
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp

_REARRANGES = frozenset({Ops.RESHAPE, Ops.PERMUTE})
"""Movement that stays on top of an APPLY: it shows all items of what is computed, once each."""


class GraphTemplate:
    """The nodes of a result by number: those that it is made of come first, then constants, then, each after
    its sources, what is made of them; at last the movement on top."""

    __slots__ = ("constants", "is_applied", "movement", "op", "steps")

    def __init__(self, result: UOp, leaves: Sequence[UOp]) -> None:
        number = {node: i for i, node in reversed(list(enumerate(leaves)))}
        made: dict[UOp, None] = dict.fromkeys(leaves)
        self.constants: list[UOp] = []
        """what depends on none of them"""
        for node in result.toposort(stop=number.__contains__):
            if any(source in made for source in node.src):
                made[node] = None
            elif node not in number:
                self.constants.append(node)
        steps = [n for n in made if n not in number]
        number.update((n, i) for i, n in enumerate(self.constants + steps, len(leaves)))
        movement = []
        while len(steps) > 1 and steps[-1].op in _REARRANGES and len(steps[-1].src) == 1:
            movement.append(steps.pop())
        self.steps = [(n.op, n.dtype, n.arg, (n.shape, n.device, n.flags), [number[s] for s in n.src])
                      for n in steps]
        self.movement = [(n.op, n.arg, (n.shape, n.device, n.flags)) for n in reversed(movement)]
        value = steps[-1] if steps else result
        self.op = value.op
        self.is_applied = (value.op not in Family.MOVEMENT and value.device is not None
                           and not value.flags & WRITES and not any(map(_is_to_keep, steps)))
        """whether an APPLY may stand for the result, as far as that does not depend on its operands"""

    def value(self, leaves: Iterable[UOp]) -> UOp:
        """What is computed for other nodes of that kind."""
        nodes = [*leaves, *self.constants]
        for op, dtype, arg, known, sources in self.steps:
            nodes.append(UOp.new(op, dtype, tuple([nodes[s] for s in sources]), arg, known))
        return nodes[-1]

    def over(self, leaves: Iterable[UOp]) -> UOp:
        """The result for other nodes of that kind."""
        node = self.value([expanded(leaf) for leaf in leaves])
        for op, arg, known in self.movement:
            node = UOp.new(op, node.dtype, (node,), arg, known)
        return node

    def applied(self, leaves: Sequence[UOp]) -> UOp:
        """As `over`, or the APPLY that stands for it, where that may be: nothing is to be written or kept
        before it is computed."""
        if not self.is_applied:
            return self.over(leaves)
        for leaf in leaves:
            if leaf.flags & (WRITES | COSTLY) and leaf.op is not Ops.APPLY and leaf.computed_into is None:
                return self.over(leaves)
        _, dtype, _, (shape, device, flags), _ = self.steps[-1]
        node = UOp.new(Ops.APPLY, dtype, tuple(leaves), self, (shape, device, flags | APPLIED))
        for op, arg, (shape, device, flags) in self.movement:
            node = UOp.new(op, dtype, (node,), arg, (shape, device, flags | APPLIED))
        return node


def applied_of(node: UOp) -> UOp | None:
    """The APPLY all of whose items a node shows, if there is one."""
    if not node.flags & APPLIED:
        return None
    while node.op in _REARRANGES:
        (node,) = node.src
    return node if node.op is Ops.APPLY else None


def is_expanded(node: UOp) -> bool:
    """Whether somebody has the nodes that an APPLY stands for: the value is theirs too, computed once."""
    return "_expanded" in node.__dict__


def are_of_one_call(results: Iterable[UOp]) -> None:
    """Take note of nodes that are the results of one call (`x.sort()` has two)."""
    nodes = [node for result in results if (node := applied_of(result)) is not None]
    for node in nodes:
        node.__dict__["_of_one_call"] = [ref(other) for other in nodes]


def with_results_of_their_calls(nodes: Sequence[UOp]) -> Sequence[UOp]:
    """APPLY nodes, and what else their calls gave that somebody holds and that is not computed yet: apart,
    each would compute what they have in common."""
    if not any(["_of_one_call" in node.__dict__ for node in nodes]):
        return nodes
    held = [other for node in nodes for known in node.__dict__.get("_of_one_call", ())
            if (other := known()) is not None]
    others = [other for other in held if other.realized_view is None and not is_expanded(other)]
    return list(dict.fromkeys([*nodes, *others]))


def _is_to_keep(node: UOp) -> bool:
    """Whether a node that is costly to compute is made of none that is."""
    return bool(node.flags & COSTLY) and not any([source.flags & COSTLY for source in node.src])


def expanded(node: UOp) -> UOp:
    """What a node stands for in which an APPLY is, in the memory in which that was computed; any other node
    itself."""
    return node.rebuild(_with_nodes, _known) if node.flags & APPLIED else node


def _known(node: UOp) -> UOp | None:
    """What a node stands for, if that was asked before; None where it is to be made."""
    if not node.flags & APPLIED:
        return node
    result: UOp | None = node.__dict__.get("_expanded")
    return None if result is None else _in_memory(result, node)


def view_of_nodes(applied: UOp) -> UOp | None:
    """What holds the value of the nodes that an APPLY stands for, if somebody asked for them and they were
    computed."""
    nodes = applied.__dict__.get("_expanded")
    return None if nodes is None or nodes.computed_into is None else nodes.realized_view


def _with_nodes(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """The nodes that stand for one over those that stand for its sources."""
    result = node.arg.value(src) if node.op is Ops.APPLY else node.with_sources(src)
    node.__dict__["_expanded"] = result
    return _in_memory(result, node)


def _in_memory(result: UOp, node: UOp) -> UOp:
    if result.computed_into is None and (view := node.realized_view) is not None:
        result.set_realized_view(view)
    return result
