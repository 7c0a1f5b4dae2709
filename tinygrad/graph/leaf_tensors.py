"""Leaf tensors, and what else a node says about its tensor: is it in memory, a constant, a leaf of gradients.

A leaf is a variable that gradients are taken of: a float BUFFER (reshaped at most), one about to be
overwritten (ASSIGN), or a constructor's expression that carries an identity, DETACH(leaf). Gradients are also
taken of the arguments of a function that is being transformed. `tensor/tensor.py` asks these questions.
"""
from __future__ import annotations

from typing import Any

from tinygrad.graph.node_flags import CUT, LEAF, MEMORY
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.storage import Storage
from tinygrad.graph.uop import UOp


def storage_view(uop: UOp) -> UOp | None:
    """`uop` as a view of a BUFFER, if its value is in memory; None while it is lazy.

    A number that another tensor has in memory does not put those that repeat it there.
    """
    if uop.computed_into is not None and (view := uop.realized_view) is not None:
        return view
    if uop.op not in _SHOWS:
        return None
    viewed = uop.viewed
    if viewed.op is Ops.BUFFER:
        return uop
    if viewed.op is Ops.DETACH and uop.flags & MEMORY:  # as a constant to gradients
        return storage_view(without_detaches(uop))
    if viewed.op is Ops.CONST:
        return None
    held = viewed.realized_view
    if held is not None:
        return uop.substitute({viewed: held})
    below = uop  # of sizes that are not known, a view itself is stored, and not the node that it is a view of
    while below.has_sizes and below.op in Family.VIEW:
        below = below.src[0]
        if (held := below.realized_view) is not None:
            return uop.substitute({below: held})
    return None


_SHOWS = Family.VIEW | {Ops.BUFFER, Ops.DETACH}
"""Operations of nodes that may be in memory though nobody computed them."""


def values_view(uop: UOp) -> UOp | None:
    """As `storage_view`, also of what is in memory but for a `detach`."""
    view, viewed = storage_view(uop), uop.viewed
    if view is not None or viewed.op is not Ops.DETACH or viewed.arg is not None:
        return view
    inner = values_view(viewed.src[0])
    return None if inner is None else uop.substitute({viewed: inner})


def without_detaches(uop: UOp) -> UOp:
    """The same view of the same node, with no DETACH but those of leaves in between."""
    viewed = uop.viewed
    if viewed.op is not Ops.DETACH or viewed.arg is not None:
        return uop
    return uop.substitute({viewed: without_detaches(viewed.src[0])})


def below_detaches(uop: UOp) -> UOp:
    """The node that `uop` is a view of, as a constant to gradients or not."""
    viewed = uop.viewed
    while viewed.op is Ops.DETACH and viewed.arg is None:
        viewed = viewed.src[0].viewed
    return viewed


def value_of_its_own(uop: UOp) -> UOp:
    """`uop`, and where that is a view of memory, which others may write to, or one that shows an item several
    times, which must be as many items once they are written to, a node that is none."""
    return with_gradient_of(uop, uop) if uop.flags & MEMORY or repeats_items(uop) else uop


def repeats_items(uop: UOp) -> bool:
    """Whether an axis was expanded between a node that computes and `uop`, a view of it. Items of a constant
    are never one."""
    repeats = False
    while uop.op in Family.VIEW:
        repeats |= uop.op is Ops.EXPAND and uop.shape != uop.src[0].shape
        uop = uop.src[0]
    return repeats and constant_value(uop) is None


def with_gradient_of(source: UOp, value: UOp) -> UOp:
    """`value`, with the gradient that flows to `source`, of the same shape, as it is."""
    return value.with_gradient((source,), _passed_on)


def _passed_on(gradient: UOp, node: UOp) -> tuple[UOp]:
    return (gradient,)


def own_memory(uop: UOp) -> UOp | None:
    """The view that a tensor with node `uop` may write into; None while it has no memory of its own.

    A node that is no memory but was computed was so for another tensor with an equal expression.
    """
    if not uop.flags & MEMORY:
        return None
    uop = without_detaches(uop)
    return uop if uop.viewed.op is Ops.BUFFER else None


def is_view_of_memory(uop: UOp) -> bool:
    """Whether `uop` is a view of memory, or of memory about to be overwritten."""
    return uop.flags & MEMORY != 0 and uop.viewed.op is not Ops.DETACH


def constant_value(uop: UOp) -> Any:
    """The number that every item of `uop` is, if the graph says so without computing, else None."""
    while uop.op in _KEEPS_CONSTANTS:
        uop = uop.src[0]
    return uop.arg if uop.op is Ops.CONST else None


def constant_leaves(uop: UOp) -> list[UOp]:
    """The leaves that a number repeated was made by, on whatever device."""
    found = []
    while uop.op in _KEEPS_CONSTANTS or uop.op is Ops.COPY:
        if uop.op is Ops.DETACH and uop.arg is not None:
            found.append(uop)
        uop = uop.src[0]
    return found if uop.op is Ops.CONST else []


_KEEPS_CONSTANTS = Family.VIEW | {Ops.DETACH, Ops.CONTIGUOUS}


def leaf_node(uop: UOp) -> UOp | None:
    """The node that the gradient of a leaf belongs to: the BUFFER, ASSIGN or DETACH(leaf) under its
    reshapes."""
    node = uop.unreshaped
    if node.op in (Ops.BUFFER, Ops.ASSIGN) or (node.op is Ops.DETACH and node.arg is not None):
        return node
    return None


def is_leaf(uop: UOp) -> bool:
    return leaf_node(uop) is not None


def depends_on_leaf(uop: UOp) -> bool:
    """Whether a leaf is below `uop`, along ways that gradients can take."""
    return uop.flags & LEAF != 0


def is_cut_off(uop: UOp) -> bool:
    """Whether `uop` is a constant to gradients by somebody's word (`detach`, `no_grad`)."""
    return uop.flags & (LEAF | CUT) == CUT


class LeafIndex:
    """The differentiable part of a graph, to look up where tensors appear in it."""

    def __init__(self, root: UOp) -> None:
        self.nodes = root.toposort(stop=lambda node: node.op in (Ops.DETACH, Ops.ASSIGN))
        self.by_storage: dict[Storage, list[UOp]] = {}
        """the leaf nodes of each memory, of whatever version, and the node that was computed there"""
        for node in self.nodes:
            storage = self._storage_of(node)
            if storage is not None:
                self.by_storage.setdefault(storage, []).append(node)
        self._find_computed()

    def _find_computed(self) -> None:
        """Add what is here as it was before it was computed, of tensors that stand for its memory since."""
        found: dict[Storage, UOp] = {}
        for node in self.nodes:
            if node.computed_into is None or is_leaf(node) or node.flags & MEMORY:
                continue
            memory = leaf_node(node.computed_into)
            if memory is not None and memory.op is Ops.BUFFER:
                found.setdefault(memory.storage, node)  # the lowest, which those that show it are views of
        for storage, node in found.items():
            leaves = self.by_storage.setdefault(storage, [])
            if all(leaf.op is Ops.BUFFER for leaf in leaves):
                leaves.append(node)

    @staticmethod
    def _storage_of(node: UOp) -> Storage | None:
        """The memory that a leaf node stands for, if it has some."""
        if node.op is Ops.DETACH and node.arg is not None:
            view = node.computed_into
        elif node.op is Ops.ASSIGN:
            view = node.src[0]
        else:
            view = node if node.op is Ops.BUFFER else None
        return None if view is None or view.base.op is not Ops.BUFFER else view.base.storage

    def targets_of(self, uop: UOp) -> list[UOp]:
        """The nodes here whose gradient belongs to the tensor with node `uop`.

        A leaf that was computed or overwritten since stands for its memory, while the graph may still hold
        the node that it was.
        """
        node = leaf_node(uop)
        if node is None:
            return [uop] if uop in self.nodes else []
        storage = self._storage_of(node)
        if storage is None:
            return [node] if node in self.nodes else []
        return self.by_storage.get(storage, [])
