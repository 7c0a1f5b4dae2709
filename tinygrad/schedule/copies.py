"""Copies between devices: which part of a buffer one reads, and what a device that only holds data leaves to
the device it is copied to.

A file (`DISK:path`) runs no kernels. What is said of its tensor, a slice, a cast or a sum, is computed where
the result is moved: `COPY(f(x))` becomes `f(COPY(part of x))`, and the part is the shortest stretch of the
file with everything that f looks at.

A value of constants alone (`Tensor.rand(3, device="PYTHON")`) is on no device: its COPY says where it is
computed.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tinygrad.device import Device
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.sizes import Size
from tinygrad.graph.uop import UOp

Interval = tuple[int, int]
"""(start, end) in items of a buffer."""


def contiguous_part(node: UOp) -> Interval | None:
    """The part of a BUFFER that `node` is, in row-major order; None where it is anything else."""
    if node.base.op is not Ops.BUFFER or len(node.st.views) > 1:
        return None
    view = node.st.views[0]
    start, end = view.offset, view.offset + view.numel
    whole = node.base.reshape((node.base.numel,))
    if isinstance(start, Size) or not 0 <= start <= end <= whole.numel:
        return None
    return (start, end) if whole.shrink(((start, end),)).reshape(node.shape).st == node.st else None


def computing_device(device: str) -> str:
    """`device`, or the CPU in place of one that computes nothing."""
    return device if Device[device].computes else "CPU"


def computed_at_target(copy: UOp) -> UOp | None:
    """`copy` of something computed from data on a device that only holds it: computed from a copy of the
    data instead: of the needed part of memory, and of what is copied there. None for every other copy."""
    source = copy.src[0]
    if source.device is None or Device[source.device].computes or source.op is Ops.COPY \
            or contiguous_part(source) is not None:
        return None
    at = computing_device(copy.arg)
    moved = {buffer: _copied_part(buffer, part, at) for buffer, part in needed_parts(source).items()}
    moved |= {node: node.copy_to(at) for node in source.toposort(stop=_is_copy) if _is_copy(node)}
    return source.substitute(moved).copy_to(copy.arg)


def _is_copy(node: UOp) -> bool:
    return node.op is Ops.COPY


def made_at_target(copy: UOp) -> UOp | None:
    """`copy` of a value that no device holds, made of constants and counters, with all that it stores on the
    way stored on the target: it is computed there, not moved there. None where there is nothing to change."""
    source, at = copy.src[0], computing_device(copy.arg)
    if source.device is not None:
        return None
    result = stored_on(source, at)
    if result is source and at == copy.arg:
        return None
    if result.device is None or result.op is Ops.COPY:
        return result.copy_to(at).copy_to(copy.arg)
    return result.contiguous().copy_to(copy.arg)


def stored_on(node: UOp, device: str, in_memory: Callable[[UOp], UOp | None] | None = None,
              done: dict[UOp, UOp] | None = None) -> UOp:
    """A value that no device holds, with all that it stores on the way stored on `device`. `in_memory` says
    what stands there for nodes that are stored already; `done`: as `UOp.rebuild` has it."""

    def over(n: UOp, src: tuple[UOp, ...]) -> UOp:
        return src[0].copy_to(device) if n.op is Ops.CONTIGUOUS else n.with_sources(src)

    return node.rebuild(over, in_memory, done)


def is_computed(copy: UOp) -> bool:
    """True for a COPY that is a kernel of its target: its source is on no device."""
    return copy.src[0].device is None


def transfer(node: UOp, buffers: Sequence[UOp], starts: Sequence[int], at: int | None = None) -> UOp:
    """The `ast` of a COPY or COLLECTIVE of parts of memory: `buffers` are those of the step, what is read
    comes last, each from one of `starts` on. A COPY that fills only a part of memory, from `at` on, has this
    part as a second source."""
    first = len(buffers) - len(starts)
    parts = []
    for slot, start in enumerate(starts, first):
        param = UOp.new(Ops.PARAM, node.dtype, (), (slot, buffers[slot].arg.size))
        source = node.src[slot - first]
        parts.append(param.shrink(((start, start + source.numel),)).reshape(source.shape))
    if at is not None:
        filled = UOp.new(Ops.PARAM, node.dtype, (), (0, buffers[0].arg.size))
        parts.append(filled.shrink(((at, at + node.numel),)))
    return UOp.new(node.op, node.dtype, tuple(parts), node.arg)


def starts_of_parts(ast: UOp) -> list[int]:
    """The items of its sources at which what a COPY or COLLECTIVE of parts of memory reads begins."""
    return [int(part.st.views[0].offset) for part in ast.src]


def needed_parts(root: UOp) -> dict[UOp, Interval]:
    """For each BUFFER below `root`, but for those that are copied, the shortest part with every item that
    `root` depends on."""
    order = root.toposort(stop=_is_copy)
    looked_at = {root, *(s for n in order if n.op not in Family.MOVEMENT and not _is_copy(n) for s in n.src)}
    parts: dict[UOp, Interval] = {}
    for node in looked_at:
        if node.base.op is Ops.BUFFER:
            start, end = covering_part(node)
            known = parts.get(node.base, (start, end))
            parts[node.base] = (min(start, known[0]), max(end, known[1]))
    return parts


def covering_part(view: UOp) -> Interval:
    """From the first to the last item of memory that a view shows; (0, 0) for a view of nothing."""
    start = end = view.st.views[0].offset
    for axis in view.st.views[0].axes:
        if axis.end <= axis.start:
            return (0, 0)
        ends = (axis.start * axis.stride, (axis.end - 1) * axis.stride)
        start += min(ends)
        end += max(ends)
    return (start, end + 1)


def _copied_part(buffer: UOp, part: Interval, device: str) -> UOp:
    """`buffer` on `device`, with zeros for all but the part."""
    start, end = part
    whole = buffer.reshape((buffer.numel,))
    moved = whole.shrink((part,)).copy_to(device).pad(((start, buffer.numel - end),))
    return moved.reshape(buffer.shape)
