"""Items chosen by their place: values one after another along an axis, which is what `cat` means, and what a
device makes of the shards that it has copied; and values with a number around them.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.dtype import dtypes
from tinygrad.graph.uop import UOp

GROUP = 32
"""Parts that are joined one by one. An item of the result chooses between all of them; where there are more,
between groups, and groups of groups, whose kernels are alike. (6,000 parts of one item took 1.55 s the first
time with 64, 1.2 with 32, 1.35 with 16: `python -m bench graphs --only stack`.)"""

MOST_AT_ONCE = 64
"""Parts up to which no group is stored: one kernel has a loop for each (`codegen/opt/loop_partition.py`);
with more, each item would choose between all (128 images of 3 x 64 x 64: 28 ms, in groups 2)."""


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Nodes of one dtype one after another along an axis."""
    while len(parts) > GROUP:
        groups = [joined(parts[i:i + GROUP], axis) for i in range(0, len(parts), GROUP)]
        parts = groups if len(parts) <= MOST_AT_ONCE else [group.intermediate() for group in groups]
    first, others = parts[0], range(len(parts[0].shape))
    total = sum(p.shape[axis] for p in parts)

    def along(before: int, after: int) -> list[tuple[int, int]]:
        return [(before, after) if i == axis else (0, 0) for i in others]

    result, start = first.pad(along(0, total - first.shape[axis])), first.shape[axis]
    for part in parts[1:]:
        end = start + part.shape[axis]
        padded = part.pad(along(start, total - end))
        # chosen by position rather than added, which would lose the sign of zero
        tail = UOp.const(True, dtypes.bool, tuple(total - start if i == axis else 1 for i in others))
        result = tail.pad(along(start, 0)).expand(result.shape).where(padded, result)
        start = end
    return result


def padded_with(value: UOp, pads: Sequence[tuple[int, int]], number: float) -> UOp:
    """`value` with a number, rather than zeros, before and after each axis."""
    return UOp.const(True, dtypes.bool, value.shape).pad(pads).where(value.pad(pads), number)
