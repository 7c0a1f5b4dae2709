"""A graph for one example as a graph for a batch of them: every operation gets one more axis, in front.

`batch(roots, size, values)` replaces placeholders (values for one example that nobody knows yet) by nodes
with a leading axis of `size` examples, and everything above them by the same operation over that axis. What
does not depend on a placeholder stays as it is, computed once, and is expanded where it meets the batch.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

from tinygrad.dtype import DType
from tinygrad.frozen import frozen
from tinygrad.graph.attributes import Synthesized
from tinygrad.graph.gradient import SourceGradients, as_argument
from tinygrad.graph.node_flags import Argument
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sharding import Sharding
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import prod


class TransformError(RuntimeError):
    """What a function that is being transformed may not do."""


class _State(local):
    depth = 0


_state = _State()


@contextmanager
def placeholders() -> Iterator[None]:
    """A block in which values may be placeholders."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


def is_unknown(uop: UOp) -> bool:
    """Whether this thread is in such a block and the value of `uop` depends on a placeholder."""
    return _state.depth > 0 and has_placeholder.of(uop)


@Synthesized
def has_placeholder(node: UOp) -> bool:
    """Whether a placeholder is below, or this is one."""
    return (node.op is Ops.BUFFER and node.storage.is_placeholder) \
        or any([has_placeholder.of(s) for s in node.src])


def placeholder(device: str, shape: Shape, dtype: DType) -> UOp:
    """A value that nobody knows yet, on a BUFFER that never gets memory."""
    node = UOp.new_buffer(device, prod(shape), dtype)
    node.storage.is_placeholder = True
    return as_argument(node.reshape(shape))


@frozen(eq=False)
class BatchedRule:
    """The rule of a CUSTOM_GRADIENT for a batch: the rule for one example, batched as the values were."""

    node: UOp
    """the node for one example"""
    size: int
    values: Mapping[UOp, UOp]

    def __call__(self, gradient: UOp, node: UOp) -> SourceGradients:
        assert self.node.device is not None  # that of a placeholder below it
        one = placeholder(self.node.device, self.node.shape, gradient.dtype)
        with placeholders():  # a rule may compute what is known
            found = self.node.arg(one, self.node)
        results = iter(batch([g for g in found if g is not None], self.size,
                             {**self.values, one: gradient}))
        return tuple(None if g is None else spread(next(results), g.shape, self.size) for g in found)


def spread(node: UOp, shape: Sequence[int], size: int) -> UOp:
    """`node` with a leading axis: as it is, or repeated where its shape is that of one example."""
    if len(node.shape) > len(shape):
        return node
    return node.reshape((1, *node.shape)).expand((size, *node.shape))


BATCHED_MOVEMENT: dict[Ops, Callable[[Any, int], tuple[Any, ...]]] = {
    **dict.fromkeys((Ops.RESHAPE, Ops.EXPAND), lambda shape, size: (size, *shape)),
    Ops.PERMUTE: lambda order, size: (0, *(i + 1 for i in order)),
    Ops.PAD: lambda pads, size: ((0, 0), *pads),
    Ops.SHRINK: lambda bounds, size: ((0, size), *bounds),
    Ops.STRIDE: lambda steps, size: (1, *steps),
}
"""The argument of each movement operation for one example, over a batch of `size`."""

SAME_ARGUMENT = Family.ELEMENTWISE | {Ops.CONTIGUOUS, Ops.DETACH, Ops.COPY, Ops.LIVE_OUT}


def _over_batch(node: UOp, src: tuple[UOp, ...], size: int, values: Mapping[UOp, UOp]) -> UOp:
    """What `node` computes for one example, for a batch; all of `src` have the leading axis."""
    if node.op in BATCHED_MOVEMENT:
        return src[0].move(node.op, BATCHED_MOVEMENT[node.op](node.arg, size))
    if node.op is Ops.COPY and isinstance(node.arg, Sharding):
        return src[0].shard(node.arg.of_batch())
    if node.op in SAME_ARGUMENT:
        return node.replace(src=src)
    if node.op is Ops.REDUCE:
        op, axes = node.arg
        return UOp.new(Ops.REDUCE, node.dtype, src, (op, tuple(axis + 1 for axis in axes)))
    if node.op is Ops.CUSTOM_GRADIENT:
        if isinstance(node.arg, Argument):
            return src[0]
        return UOp.new(Ops.CUSTOM_GRADIENT, node.dtype, src, BatchedRule(node, size, values))
    raise TransformError(f"vmap: there is no {node.op.name} over a batch; a function under vmap cannot write "
                         "values that differ from example to example into a tensor from outside")


def batch(roots: Sequence[UOp], size: int, values: Mapping[UOp, UOp]) -> list[UOp]:
    """`roots` over a batch. `values` has, for each placeholder, a node of its shape with a leading axis of
    `size`; roots that depend on none of them are returned as they are."""
    done = dict(values)

    def over(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if src == node.src:
            return node
        sources = tuple(spread(new, one.shape, size) for new, one in zip(src, node.src, strict=True))
        return _over_batch(node, sources, size, values)

    return [root.rebuild(over, done=done) for root in roots]
