"""Trees of tensors: what functions that are transformed take and return, taken apart and put together again.

A tree is a leaf, None (no leaves), or a tuple, named tuple, list, dict or dataclass of trees. `flatten` gives
the leaves in order and the `TreeDef`, which compares equal where two trees have the same form.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from tinygrad.frozen import frozen


@frozen
class TreeDef:
    """The form of a tree: its container's type (None for a leaf), the names of its parts, and their form."""

    kind: type | None
    names: tuple[Any, ...] = ()
    parts: tuple[TreeDef, ...] = ()

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        if self.kind is type(None):
            return "None"
        named = [str(part) if isinstance(name, int) and self.kind is not dict else f"{name!r}: {part}"
                 for name, part in zip(self.names, self.parts, strict=True)]
        inside = ", ".join(named)
        if self.kind is tuple:
            return f"({inside}{',' * (len(named) == 1)})"
        if self.kind is list:
            return f"[{inside}]"
        return f"{{{inside}}}" if self.kind is dict else f"{self.kind.__name__}({inside})"

    def build(self, leaves: Iterator[Any]) -> Any:
        """The tree of this form with the next of `leaves`."""
        if self.kind is None:
            return next(leaves)
        if self.kind is type(None):
            return None
        values = [part.build(leaves) for part in self.parts]
        if issubclass(self.kind, dict):
            return self.kind(zip(self.names, values, strict=True))
        if issubclass(self.kind, (tuple, list)):
            return self.kind(*values) if hasattr(self.kind, "_fields") else self.kind(values)
        return self.kind(**dict(zip(self.names, values, strict=True)))


LEAF = TreeDef(None)


def parts_of(tree: Any) -> dict[Any, Any] | None:
    """The parts of a container by name or position; None for a leaf."""
    if tree is None:
        return {}
    if isinstance(tree, (tuple, list)):
        return dict(enumerate(tree))
    if isinstance(tree, dict):
        return dict(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return None


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """The leaves of a tree, and its form."""
    parts = parts_of(tree)
    if parts is None:
        return [tree], LEAF
    flat = [flatten(part) for part in parts.values()]
    structure = TreeDef(type(tree), tuple(parts), tuple(structure for _, structure in flat))
    return [leaf for leaves, _ in flat for leaf in leaves], structure


def unflatten(structure: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a form with these leaves."""
    return structure.build(iter(leaves))


def leaves_like(name: str, tree: Any, structure: TreeDef) -> list[Any]:
    """The leaves of `tree` in the order of `structure`, which may have None in place of leaves.

    Raises ValueError where the forms differ.
    """
    if structure.kind is None:
        if tree is not None and parts_of(tree) is not None:
            raise ValueError(f"{name}: a {type(tree).__name__} stands where one tensor belongs")
        return [tree]
    parts = parts_of(tree)
    same = type(tree) is structure.kind and parts is not None and set(parts) == set(structure.names)
    if not same or parts is None:
        raise ValueError(f"{name} has another form than {structure}: {flatten(tree)[1]}")
    return [leaf for key, part in zip(structure.names, structure.parts, strict=True)
            for leaf in leaves_like(name, parts[key], part)]


def spread_prefix(name: str, prefix: Any, structure: TreeDef) -> list[Any]:
    """`prefix`, a tree of axes (an int or None) that may stop early, as one axis for each leaf.

    Raises ValueError where a container of the prefix is none of the tree.
    """
    if prefix is None or isinstance(prefix, int):
        return [prefix] * _count(structure)
    parts = parts_of(prefix)
    if parts is None:
        raise TypeError(f"{name} takes ints and None, got {prefix!r}")
    if structure.kind is None or set(parts) != set(structure.names):
        raise ValueError(f"{name}={prefix!r} does not fit {structure}")
    return [axis for key, part in zip(structure.names, structure.parts, strict=True)
            for axis in spread_prefix(name, parts[key], part)]


def _count(structure: TreeDef) -> int:
    return 1 if structure.kind is None else sum(_count(part) for part in structure.parts)
