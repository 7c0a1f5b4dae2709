"""What a kernel computes of many values alike becomes a function that it calls: outlining.

In: a nest with nothing left to expand, in which a tile of accumulators under an activation has a copy of that
for each vector. Out: the nest with a CALL in the place of each copy, where there are more than a few. A copy
reaches from a value, of which alone it is made (a dominator of its nodes), to the last result that all its
uses go through (a post-dominator), around a power, logarithm or sine: GELU of a product plus its bias, say.
Written out for the tile's 24 vectors, that is more instructions than a processor keeps decoded. Next on the
path: `linearize.py`.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from tinygrad.frozen import frozen
from tinygrad.graph.elementary import argument_of_exponential
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.called_function import CalledFunction
from tinygrad.renderer.machine import WIDE_FLOATS

MOST_IN_PLACE = 4
"""Copies that a kernel has in place. A power is 22 operations; a tile of accumulators under a SiLU has
twelve and more, a third of the kernel's text, beside hundreds of products that run for each of them."""


@frozen
class Region:
    """Elementwise nodes that make `result` of `given` and constants, and that nothing else uses."""

    given: UOp
    result: UOp

    @property
    def body(self) -> UOp:
        """The result of a parameter."""
        return self.result.substitute({self.given: parameter_like(self.given)})


def parameter_like(value: UOp) -> UOp:
    """What stands for a value in a function of it."""
    return UOp.new(Ops.REGISTER, value.dtype, (), "x")


def outlined(nest: UOp, lowered: Callable[[UOp], UOp]) -> UOp:
    """The nest with CALLs where it computes the same of more than `MOST_IN_PLACE` values; `lowered` gives a
    function's body in operations that the device has."""
    costly = [n for n in nest.nodes_of(*Family.ELEMENTARY) if n.dtype.scalar in WIDE_FLOATS]
    if len(costly) <= MOST_IN_PLACE:
        return nest
    tree = Dominators(nest)
    calls = _frequent(tree.region(n) for n in costly)
    inside = {n for region in calls for n in tree.nodes(region)}
    rest = [n for n in costly if n.op is Ops.EXP2 and n not in inside]
    calls |= _frequent(Region(n.src[0] if (x := argument_of_exponential(n.src[0])) is None else x, n)
                       for n in rest)
    functions = {body: CalledFunction(_name(body, number), parameter_like(body), lowered(body))
                 for number, body in enumerate(dict.fromkeys(calls.values()))}
    return _with_calls(nest, {region.result: (region.given, functions[body])
                              for region, body in calls.items()})


def _frequent(regions: Iterable[Region | None]) -> dict[Region, UOp]:
    """Those whose body more than `MOST_IN_PLACE` have, with it."""
    bodies = {region: region.body for region in regions if region is not None}
    count = Counter(bodies.values())
    return {region: body for region, body in bodies.items() if count[body] > MOST_IN_PLACE}


def _name(body: UOp, number: int) -> str:
    """A power by its name, another function by a number."""
    x = parameter_like(body)
    if body.op is not Ops.EXP2 or x not in (body.src[0], argument_of_exponential(body.src[0])):
        return f"function{number}"
    return ("exp2" if body.src[0] is x else "exp") + (f"_{body.arg}" if body.arg else "")


def _with_calls(nest: UOp, calls: Mapping[UOp, tuple[UOp, CalledFunction]]) -> UOp:
    """The nest with a call in the place of each of these nodes, of what stands for another one then."""
    given = {value for value, _ in calls.values()}
    now: dict[UOp, UOp] = {}

    def called(node: UOp, src: tuple[UOp, ...]) -> UOp:
        made = node.with_sources(src)
        if node in calls:
            value, function = calls[node]
            made = UOp.new(Ops.CALL, node.dtype, (now.get(value, value),), function)
        if node in given:
            now[node] = made
        return made

    return nest.rebuild(called)


class Dominators:
    """For each node of a nest, what alone it is made of, and what alone is made of it."""

    def __init__(self, nest: UOp) -> None:
        order = list(nest.toposort())
        self.users: dict[UOp, list[UOp]] = {n: [] for n in order}
        for n in order:
            for source in n.src:
                self.users[source].append(n)
        self.above = _tree((n, self.users[n]) for n in reversed(order))
        """by node, (the first that all of its uses go through, how many such there are above)"""
        made_of: list[tuple[UOp, list[UOp]]] = []
        self.constant: set[UOp] = set()
        for n in order:
            sources = [s for s in n.src if s not in self.constant] if n.op in Family.ELEMENTWISE else []
            if n.op is Ops.CONST or (n.op in Family.ELEMENTWISE and not sources):
                self.constant.add(n)
            else:
                made_of.append((n, sources))
        self.below = _tree(made_of)
        """by node, (the first that it is a function of, beside constants, how many such there are below)"""

    def region(self, node: UOp) -> Region | None:
        """The largest region around an elementwise node; None where there is none."""
        if node in self.constant:
            return None
        given = [n for n in _way(self.below, node) if n.dtype is node.dtype]
        results = [node, *_way(self.above, node)]
        for value in reversed(given):
            within = [n for n in results if n.op in Family.ELEMENTWISE and n.dtype is value.dtype
                      and n not in self.constant and value in _way(self.below, n)]
            for result in reversed(within):
                region = Region(value, result)
                if self.is_closed(region):
                    return region
        return None

    def nodes(self, region: Region) -> list[UOp]:
        """Those between what is given and the result, which is among them."""
        inside = region.result.toposort(stop=lambda n: n is region.given or n in self.constant)
        return [n for n in inside if n is not region.given and n not in self.constant]

    def is_closed(self, region: Region) -> bool:
        """Whether nothing outside uses a node inside but the result."""
        inside = set(self.nodes(region))
        return all(user in inside for n in inside if n is not region.result for user in self.users[n])


Tree = dict[UOp, tuple[UOp | None, int]]


def _tree(nodes: Iterable[tuple[UOp, list[UOp]]]) -> Tree:
    """The immediate dominator of each node and its depth, of nodes after all that lead to them (Cooper,
    Harvey and Kennedy, A Simple, Fast Dominance Algorithm, 2001; of an acyclic graph one pass is enough)."""
    tree: Tree = {}

    def depth(node: UOp | None) -> int:
        return 0 if node is None else tree[node][1]

    def common(a: UOp | None, b: UOp | None) -> UOp | None:
        while a is not b:
            if depth(a) < depth(b):
                a, b = b, a
            assert a is not None
            a = tree[a][0]
        return a

    for node, before in nodes:
        parent: UOp | None = None
        for number, other in enumerate(n for n in before if n in tree):
            parent = common(parent, other) if number else other
        tree[node] = parent, 1 if parent is None else tree[parent][1] + 1
    return tree


def _way(tree: Tree, node: UOp) -> Iterator[UOp]:
    """The dominators of a node, the nearest first."""
    while (parent := tree[node][0]) is not None:
        yield parent
        node = parent
