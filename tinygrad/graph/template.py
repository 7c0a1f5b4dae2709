"""Graph templates: the nodes that a function of tensors makes, over any operands of the same kind.

`GraphTemplate` holds them in numbers; `functional/graph_templates.py` says which functions have some. `over`
makes the nodes. Where operands are in memory, the result may be all that is ever asked for (`a @ b` at a
prompt, a training loop without a JIT): then one node, `APPLY`, stands for all of them. It is what a tensor
holds, never the source of another node: whoever asks the tensor for its node (`Tensor.uop`) gets what the
template makes. What a schedule depends on is in it as it is, so that an operation computed before costs a
walk over its operands alone (`schedule/cache.py`).
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad import observer
from tinygrad.graph.leaf_tensors import constant_value
from tinygrad.graph.node_flags import COSTLY, WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp


class GraphTemplate:
    """The nodes of a result by number: those that it is made of come first, then constants, then, each after
    its sources, what is made of them."""

    __slots__ = ("constants", "steps")

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
        self.steps = [(n.op, n.dtype, n.arg, (n.shape, n.device, n.flags), [number[s] for s in n.src])
                      for n in steps]

    def over(self, leaves: Sequence[UOp]) -> UOp:
        """The result for other nodes of that kind."""
        nodes = [*leaves, *self.constants]
        for op, dtype, arg, known, sources in self.steps:
            nodes.append(UOp.new(op, dtype, tuple([nodes[s] for s in sources]), arg, known))
        return nodes[-1]

    def applied(self, leaves: Sequence[UOp]) -> UOp:
        """As `over`, or the APPLY that stands for it, where all leaves are in memory or numbers repeated, and
        the result has a device, and nothing is to be written or kept before it is computed."""
        _, dtype, _, known, _ = self.steps[-1]
        for leaf in leaves:
            if leaf.op is not Ops.BUFFER and leaf.computed_into is None and constant_value(leaf) is None:
                return self.over(leaves)
        if known[1] is None or known[2] & (WRITES | COSTLY):
            return self.over(leaves)
        return UOp.new(Ops.APPLY, dtype, tuple(leaves), self, known)


def expanded(node: UOp) -> UOp:
    """What an APPLY stands for, in the memory in which that was computed; any other node itself."""
    if node.op is not Ops.APPLY:
        return node
    template: GraphTemplate = node.arg
    result = template.over(node.src)
    observer.derived({node: result})
    if result.computed_into is None and (view := node.realized_view) is not None:
        result.set_realized_view(view)
    return result
