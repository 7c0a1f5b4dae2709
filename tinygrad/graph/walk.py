"""The walk: every pass that reads or changes a graph is one of these loops, told what to do with a node.

    nest.toposort()                      every node, sources first
    nest.rebuild(bottom_up, top_down)    the graph with other nodes in the place of some
    nest.substitute({old: new})          the same, for nodes that are known beforehand

Stacks are explicit: graphs are deep. Rules with patterns, applied until none fits, are `rewrite.py`, which
walks here too; what each rule changed is recorded by `passes.py`.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from weakref import ref

from tinygrad import observer

Watcher = Callable[[Any, Any, Any], None]
"""Told of each change: what made it (a `Rule`, or the function of a pass), the node before and after."""


MOST_WALKED = 64
"""Nodes whose order is kept: four in five nodes that are walked over while kernels are written."""
_walked: deque[ref[Any]] = deque()
"""Those, the one walked over longest ago first."""


class Watching:
    """Who is told of changes; nobody, as a rule."""

    watcher: Watcher | None = None


class Walk:
    """What walks over the graph below a node. `UOp` derives from it."""

    __slots__ = ()
    op: Any
    src: tuple[Self, ...]

    def with_sources(self, src: tuple[Self, ...]) -> Self:
        """This node over other sources."""
        raise NotImplementedError

    def is_over(self, node: Self, src: tuple[Self, ...]) -> bool:
        """Whether this is nothing but `node` over other sources."""
        raise NotImplementedError

    def toposort(self, stop: Callable[[Self], bool] | None = None) -> dict[Self, None]:
        """Every node below this one and itself, sources first. `stop(node)` keeps a node but not its
        sources."""
        done: dict[Self, None]
        if stop is None and (below := self.__dict__.get("_below")) is not None:
            done = below.copy()
            done[self] = None
            return done
        done = {}
        stack: list[Self | None] = [self]
        push, pop = stack.append, stack.pop
        while stack:
            node = pop()
            if node is None:  # the sources of the node below are done
                finished = pop()
                assert finished is not None
                done[finished] = None
            elif node not in done:
                if not node.src or (stop is not None and stop(node)):
                    done[node] = None
                    continue
                push(node)
                push(None)
                for source in reversed(node.src):
                    if source not in done:
                        push(source)
        if stop is None:
            self._remember(done)
        return done

    def nodes_of(self, *ops: Any) -> list[Self]:
        """The nodes of these operations below this one and itself, sources first."""
        known = self.__dict__.get("_nodes_of", {})
        if ops in known:
            return list(known[ops])
        found = [node for node in self.toposort() if node.op in ops]
        if self.op not in ops:  # a node that refers to itself is never freed
            self.__dict__.get("_nodes_of", {})[ops] = tuple(found)
        return found

    def _remember(self, order: dict[Self, None]) -> None:
        """Keep an order for those who ask next: the steps of a plan walk over one nest again and again. What
        is kept is below the node, so nothing lives longer for it."""
        below = order.copy()
        del below[self]
        self.__dict__["_below"], self.__dict__["_nodes_of"] = below, {}
        _walked.append(ref(self))
        if len(_walked) > MOST_WALKED:
            oldest = _walked.popleft()()
            if oldest is not None:
                oldest.__dict__.pop("_below", None)
                oldest.__dict__.pop("_nodes_of", None)

    def rebuild(self, bottom_up: Callable[[Self, tuple[Self, ...]], Self] | None = None,
                top_down: Callable[[Self], Self | None] | None = None,
                done: dict[Self, Self] | None = None) -> Self:
        """What stands in this node's place when each node below and itself is replaced once.

        `top_down(node)` replaces a node with all below it; where it gives None the sources come first, and
        then `bottom_up(node, sources)` says what stands for the node over what stands for its sources;
        without it, the node over those. What is made is not looked at again. `done` is what stands for each
        node: of those in it already nothing is asked, and the others are added.
        """
        done = {} if done is None else done
        for node in self._unknown(top_down, done):
            src = tuple([done[s] for s in node.src])
            if bottom_up is None:
                done[node] = node.with_sources(src)
                continue
            done[node] = new = bottom_up(node, src)
            if Watching.watcher is not None and new is not node and not new.is_over(node, src):
                Watching.watcher(bottom_up, node, new)
        observer.derived(done)
        return done[self]

    def _unknown(self, top_down: Callable[[Self], Self | None] | None, done: dict[Self, Self]
                 ) -> Iterator[Self]:
        """The nodes that are to be made again, each when all of its sources are `done`."""
        if top_down is None and not done and (below := self.__dict__.get("_below")) is not None:
            yield from (node for node in (*below, self) if node not in done)
            return
        stack: list[Self | None] = [self]
        push, pop = stack.append, stack.pop
        while stack:
            node = pop()
            if node is None:  # the sources of the node below are done
                finished = pop()
                assert finished is not None
                yield finished
            elif node in done:
                continue
            elif top_down is not None and (instead := top_down(node)) is not None:
                done[node] = instead
                if instead is not node and Watching.watcher is not None:
                    Watching.watcher(top_down, node, instead)
            elif node.src:
                push(node)
                push(None)
                for source in reversed(node.src):
                    if source not in done:
                        push(source)
            else:
                yield node

    def substitute(self, changes: Mapping[Self, Self]) -> Self:
        """This graph with every node that is a key of `changes` replaced. Index arithmetic simplifies
        again."""
        return self.rebuild(done=dict(changes)) if changes else self
