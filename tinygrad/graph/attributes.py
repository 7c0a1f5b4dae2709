"""Attributes of nodes: what is known of a node for good, computed when it is first asked for.

A node is immutable, so what follows from it never changes. It is kept in the node's `__dict__`, and goes with
the node. `UOp` has some as properties (`ranges`, `st`, `bounds`); other modules make their own from a rule,
and ask with `of`.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, overload

if TYPE_CHECKING:
    from tinygrad.graph.ops import Ops
    from tinygrad.graph.uop import UOp

T = TypeVar("T")


class Attribute(Generic[T]):
    """What is known of a node for good: computed at the first use, then kept in the node's `__dict__`."""

    def __init__(self, rule: Callable[[UOp], T], name: str = "") -> None:
        self.rule = rule
        self.name = name or rule.__name__
        self.__doc__ = rule.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, node: None, owner: type) -> Attribute[T]: ...

    @overload
    def __get__(self, node: UOp, owner: type) -> T: ...

    def __get__(self, node: UOp | None, owner: type) -> Attribute[T] | T:
        return self if node is None else self.of(node)

    def of(self, node: UOp) -> T:
        """The value for `node`."""
        known = node.__dict__
        value: T = known[self.name] if self.name in known else known.setdefault(self.name, self.rule(node))
        return value  # two threads that ask get the same


class Synthesized(Attribute[T]):
    """An attribute that `rule` computes from those of the sources, which it may take as known, however deep
    the graph is. (The term is that of attribute grammars.)"""

    def of(self, node: UOp) -> T:
        name = self.name
        known: T
        if name in node.__dict__:
            known = node.__dict__[name]
            return known
        if all([name in source.__dict__ for source in node.src]):
            node.__dict__[name] = known = self.rule(node)
            return known
        stack = [node]
        while stack:
            current = stack[-1]
            if name in current.__dict__:  # it is a source of several
                stack.pop()
                continue
            depth = len(stack)
            for source in current.src:
                if name not in source.__dict__:
                    stack.append(source)
            if len(stack) == depth:
                stack.pop().__dict__[name] = self.rule(current)
        value: T = node.__dict__[name]
        return value


SHORT_CHAIN = 16
"""Nodes that are walked over again sooner than what is below them is kept."""


def passed_below(node: UOp, passed: frozenset[Ops], name: str) -> UOp:
    """The first node below those whose operation is `passed`. Where that is far, the nodes on the way keep it
    as `name`: whoever asks each node of a long chain walks over it once."""
    start = node
    for _ in range(SHORT_CHAIN):
        if node.op not in passed:
            return node
        node = node.src[0]
    way: list[UOp] = [start]
    while (node := way[-1]).op in passed and name not in node.__dict__:
        way.append(node.src[0])
    end: UOp = way[-1].__dict__.get(name, way[-1])
    for node in way[:-1]:
        node.__dict__[name] = end
    return end
