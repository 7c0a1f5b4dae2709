"""Which lazy values read memory that is about to be overwritten."""
import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.graph.writes import MOST_NODES_KEPT, Readers, pending_writes


def reads(node: UOp, memory: UOp, writes: dict[UOp, None]) -> bool:
    """Whether a path leads from node to memory, none of whose nodes is a write or holds its value."""
    seen, stack = {node}, [node]
    while stack:
        node = stack.pop()
        view = node if node.op is Ops.BUFFER else node.realized_view
        if view is not None:
            if view.base is memory:
                return True
        elif node not in writes:
            stack += [source for source in node.src if source not in seen]
            seen.update(node.src)
    return False


@pytest.mark.parametrize("seed", range(8))
def test_what_reads_memory_is_found_whatever_was_computed_since(seed: int) -> None:
    """Values of values, few and many nodes deep, of which some are computed, and some memory is overwritten,
    between one question and the next."""
    rng = np.random.default_rng(seed)
    values = [Tensor(rng.normal(size=4).astype(np.float32)).realize() for _ in range(3)]
    found = []
    for _ in range(60):
        first, second = (values[i] for i in rng.integers(len(values), size=2))
        new = first * 2 + second if rng.random() < 0.9 else first[1:].pad((1, 0))
        if rng.random() < 0.1:
            for _ in range(MOST_NODES_KEPT):
                new = new + 1
        values.append(new)
        if rng.random() < 0.1:
            values[rng.integers(len(values))].realize()
        if rng.random() < 0.05:
            values[rng.integers(len(values))].assign(Tensor.ones(4)).realize()
        written = values[rng.integers(3)]
        other = Tensor(written._uop).assign(written + 1)
        writes = pending_writes([other._uop])
        readers = Readers(writes)
        for value in values:
            expected = any(reads(value._uop, write.src[0].base, writes) for write in writes)
            assert readers.includes(value._uop) == expected
            found.append(expected)
    assert 50 < sum(found) < len(found) - 50


def test_a_write_looks_below_no_lazy_value_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor.ones(8).contiguous().realize()
    values = [Tensor.full((4,), float(i)) * 2 + 1 for i in range(50)]
    x.assign(x + 1).realize()
    looked = []
    walk = UOp.toposort
    monkeypatch.setattr(UOp, "toposort", lambda node, stop=None: looked.append(node) or walk(node, stop))
    x.assign(x + 1).realize()
    assert not {value._uop for value in values}.intersection(looked)
    assert values[7].tolist() == [15.0] * 4
