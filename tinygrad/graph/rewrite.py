"""Rewrite rules: tables of patterns and replacements, applied until none fits.

A `Rule` is a pattern and a replacement, and the tests ask for its proof; a `RewriteTable` is a short list of
rules about one concern, indexed by op. `rewrite(graph, table)` visits every node once, sources first, and
applies the first rule that matches until none does. A replacement returns None to decline.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tinygrad.frozen import frozen
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp
from tinygrad.graph.walk import Watching

Captures = dict[str, UOp]


@frozen
class Pattern:
    """A shape of graph: ops of the top node, patterns of its sources, and a name to capture it by.

    `ops` None matches any op; `src` None any sources. A `where` test sees the node. The two sources of a
    commutative op match in either order.
    """

    ops: frozenset[Ops] | None = None
    src: tuple[Pattern, ...] | None = None
    name: str | None = None
    where: Callable[[UOp], bool] | None = None

    def can_match(self, ops: set[Ops]) -> bool:
        """Whether this pattern could fit in a graph of these ops."""
        return (self.ops is None or not self.ops.isdisjoint(ops)) and \
            all(source.can_match(ops) for source in self.src or ())

    def fits_one_of(self, nodes: Iterable[UOp]) -> bool:
        """Whether this pattern fits one of the nodes, whatever its sources are."""
        ops, where = self.ops, self.where
        return any(where is None or where(node) for node in nodes if ops is None or node.op in ops)

    def match(self, node: UOp, found: Captures) -> Iterator[Captures]:
        """Every way in which this pattern fits `node`, given what was captured before."""
        if self.ops is not None and node.op not in self.ops:
            return
        if self.where is not None and not self.where(node):
            return
        if self.name is not None and found.setdefault(self.name, node) is not node:
            return
        if self.src is None:
            yield found
            return
        if len(self.src) != len(node.src):
            return
        orders = [node.src]
        if node.op in Family.COMMUTATIVE and node.src[0] is not node.src[1]:
            orders.append(node.src[::-1])
        for sources in orders:
            yield from self._match_sources(sources, 0, dict(found))

    def _match_sources(self, sources: tuple[UOp, ...], at: int, found: Captures) -> Iterator[Captures]:
        assert self.src is not None
        if at == len(sources):
            yield found
            return
        for captured in self.src[at].match(sources[at], dict(found)):
            yield from self._match_sources(sources, at + 1, captured)


def any_node(name: str, where: Callable[[UOp], bool] | None = None) -> Pattern:
    """Any node, captured as `name`."""
    return Pattern(None, None, name, where)


def const(name: str) -> Pattern:
    """A CONST, captured as `name`."""
    return Pattern(frozenset({Ops.CONST}), None, name)


def node(ops: Ops | Iterable[Ops], *src: Pattern, name: str | None = None,
         where: Callable[[UOp], bool] | None = None) -> Pattern:
    """A node with one of `ops`; with sources given, exactly those."""
    return Pattern(frozenset({ops}) if isinstance(ops, Ops) else frozenset(ops), src or None, name, where)


@frozen
class Rule:
    """Where `pattern` matches, `replace(**captures)` is the node to put there, or None to decline.

    A rule is added with its proof (`test/graph/test_rules.py`, `test/graph/test_rule_tables.py`).
    """

    name: str
    pattern: Pattern
    replace: Callable[..., UOp | None]


class RewriteTable:
    """Rules about one concern, tried in order."""

    def __init__(self, name: str, rules: Iterable[Rule]) -> None:
        self.name = name
        self.rules = tuple(rules)
        self.by_op: dict[Ops, list[Rule]] = {}
        for rule in self.rules:
            for op in Ops if rule.pattern.ops is None else rule.pattern.ops:
                self.by_op.setdefault(op, []).append(rule)

    def __add__(self, other: RewriteTable) -> RewriteTable:
        return RewriteTable(f"{self.name}, {other.name}", self.rules + other.rules)

    def apply(self, node: UOp) -> UOp | None:
        """What the first matching rule makes of `node`; None if no rule changes it."""
        for rule in self.by_op.get(node.op, ()):
            for captures in rule.pattern.match(node, {}):
                new = rule.replace(**captures)
                if new is not None and new is not node:
                    if Watching.watcher is not None:
                        Watching.watcher(rule, node, new)
                    return new
        return None

    def normal_form(self, node: UOp) -> UOp:
        """What `node` is when no rule changes it any more; what is below it is not looked at. Raises
        RuntimeError where the rules run in a circle."""
        for _ in range(MOST_ROUNDS):
            better = self.apply(node)
            if better is None:
                return node
            node = better
        raise RuntimeError(f"the rewrite table '{self.name}' reaches no fixed point on {node}")


MOST_ROUNDS = 100
"""Changes of one node after which a table runs in a circle: more than any has rules."""


def rewrite(root: UOp, table: RewriteTable) -> UOp:
    """`root` with `table` applied everywhere, sources first, until no rule matches: what a rule makes is
    looked at again. Raises RuntimeError where the table runs in a circle."""
    nodes = root.toposort()
    ops = {node.op for node in nodes}
    patterns = [rule.pattern for rule in table.rules if rule.pattern.can_match(ops)]
    if not any(pattern.fits_one_of(nodes) for pattern in patterns):
        return root
    rewriting = _Rewriting(table)
    return root.rebuild(rewriting.normalised, done=rewriting.done)


class _Rewriting:
    """One rewriting. (A function inside `rewrite` that names itself would keep the graph until Python's
    collector comes.)"""

    def __init__(self, table: RewriteTable) -> None:
        self.table = table
        self.done: dict[UOp, UOp] = {}
        self.depth = 0

    def normalised(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        """What stands for a node over what stands for its sources."""
        new = node.with_sources(src)
        if new in self.done:
            return self.done[new]
        better = self.table.apply(new)
        if better is not None:
            if self.depth == MOST_ROUNDS:
                raise RuntimeError(f"the rewrite table '{self.table.name}' reaches no fixed point on {node}")
            self.depth += 1
            better = better.rebuild(self.normalised, done=self.done)
            self.depth -= 1
        result = new if better is None else better
        self.done[new] = self.done[result] = result
        return result
