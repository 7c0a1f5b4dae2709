"""What a node knows of its graph from when it is made, against what a walk over the graph finds."""
import functools

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.graph.node_flags import COSTLY, LEAF, MEMORY, READS, WRITES, Argument
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import UOp


@functools.cache
def has_leaf(node: UOp) -> bool:
    if not node.dtype.is_float:
        return False
    if node.op is Ops.DETACH:
        return node.arg is not None
    if node.op is Ops.CUSTOM_GRADIENT and isinstance(node.arg, Argument):
        return True
    return node.op is Ops.BUFFER or any(map(has_leaf, node.src))


@functools.cache
def writes(node: UOp) -> bool:
    return node.op is Ops.ASSIGN or any(map(writes, node.src))


def is_memory(node: UOp) -> bool:
    while node.op in Family.VIEW or (node.op is Ops.DETACH and node.arg is None):
        node = node.src[0]
    return node.op in (Ops.BUFFER, Ops.ASSIGN)


@functools.cache
def reads(node: UOp) -> bool:
    return node.op is Ops.BUFFER or any(map(reads, node.src))


@functools.cache
def is_costly(node: UOp) -> bool:
    dear = node.op in (Ops.CONTIGUOUS, Ops.EXP2, Ops.LOG2, Ops.SIN) and not reads(node)
    return dear or any(map(is_costly, node.src))


@functools.cache
def device(node: UOp) -> object:
    if node.op in (Ops.BUFFER, Ops.COPY):
        return node.arg.device if node.op is Ops.BUFFER else getattr(node.arg, "devices", node.arg)
    return next((d for d in map(device, node.src) if d is not None), None)


def graphs() -> dict[str, Tensor]:
    x = Tensor(np.ones((4, 6), np.float32)).realize()
    n = Tensor(np.arange(6)).realize()
    written = Tensor(np.ones((4, 6), np.float32)).realize()
    written.assign(written * 2)
    return {
        "memory": x, "view": x[1:, ::2].permute(1, 0), "padded view": x.pad(((1, 0), (0, 2))),
        "integers": n + 1, "cast": n.cast("float32") * 2, "mask": (x > 0) & (n > 2),
        "number": Tensor(2.0) * 3, "constants": Tensor.zeros(3) + Tensor.ones(3),
        "detached": x.detach().reshape(-1)[2:], "detached value": (x * 2).detach(),
        "written": written, "view of written": written.reshape(24).detach(),
        "after the write": written.sum() + x.mean(), "copy": x.contiguous(), "elsewhere": x.to("CPU:1") + 1,
        "sharded": x.shard(("CPU", "CPU:1"), 0) * 2, "product": x @ x.T, "maximum": x.max(1).softmax(),
        "draws": Tensor.rand(4, 6) + x, "sines": (Tensor.arange(6) * 0.1).sin() + n,
        "own value": x.reshape(6, 4) + 0, "chosen": (x > 0).where(x, n),
    }


SOURCES = frozenset({Ops.BUFFER, Ops.CONST, Ops.VARIABLE, Ops.COPY})
TESTED = SOURCES | Family.ELEMENTWISE | Family.MOVEMENT | {Ops.ASSIGN, Ops.DETACH, Ops.REDUCE}


@pytest.mark.parametrize("name", graphs())
def test_traits_and_devices_are_those_of_the_graph(name):
    for node in graphs()[name].uop.toposort():
        if node.op in TESTED:
            found = [node.flags & flag != 0 for flag in (LEAF, WRITES, MEMORY, READS, COSTLY)]
            wanted = [rule(node) for rule in (has_leaf, writes, is_memory, reads, is_costly)]
            assert found == wanted and node.device == device(node), node
