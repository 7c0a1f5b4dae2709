"""Products of matrices with sums so long that their panels leave nothing of the L2 cache, on cores."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tinygrad import Context, Tensor
from tinygrad.device import Device
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.renderer.machine import Machine, cores
from tinygrad.schedule import split as splitting
from tinygrad.schedule.products import panel_bytes
from tinygrad.schedule.split import LONG_SUM, split_reduce

MACHINES = {"2 MB": cores(64, 32, threads=2, l2_bytes=2 << 20),
            "1 MB": cores(64, 32, threads=2, l2_bytes=1 << 20),
            "512 KB": cores(32, 16, threads=2, l2_bytes=512 << 10)}


def product(rows: int, length: int, columns: int) -> UOp:
    """The sum of products of matrices."""
    return (Tensor.empty(rows, length) @ Tensor.empty(length, columns)).uop.unreshaped


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = MACHINES[request.param]
    renderer = Device["CPU"].renderer
    monkeypatch.setattr(renderer, "machine", dataclasses.replace(renderer.machine, l2_bytes=found.l2_bytes))
    return found


@pytest.mark.parametrize("size", [(300, 7919, 200), (64, 50_000, 64), (700, 8000, 90)])
def test_panels_of_splits_leave_most_of_the_cache_to_rows(size: tuple[int, int, int], machine: Machine
                                                          ) -> None:
    whole = product(*size)
    split = split_reduce(whole)
    if panel_bytes(whole) <= machine.l2_bytes // 2:
        assert split is None
        return
    assert split is not None
    parts = [n for n in split.toposort() if panel_bytes(n)]
    assert parts and all(panel_bytes(n) <= machine.l2_bytes // 4 for n in parts)


@pytest.mark.parametrize("size", [(300, LONG_SUM, 200), (4, 50_000, 300), (1, 50_000, 300)])
def test_shorter_sums_and_few_rows_are_left_whole(size: tuple[int, int, int], machine: Machine) -> None:
    assert split_reduce(product(*size)) is None


def test_operands_that_were_widened_are_left_whole(machine: Machine) -> None:
    left, right = Tensor.empty(300, 50_000, dtype="bfloat16"), Tensor.empty(50_000, 200, dtype="bfloat16")
    sums = [n for n in (left @ right).uop.toposort() if n.op is Ops.REDUCE]
    assert sums and all(split_reduce(n) is None for n in sums)


def test_attention_to_many_keys_is_left_whole(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    split: list[UOp] = []
    monkeypatch.setattr(splitting, "_split_for_panels", lambda node, splits: split.append(node))
    length = 50_000 + (machine.l2_bytes >> 19)  # which no schedule is kept for
    query, keys = Tensor.empty(64, 64), Tensor.empty(length, 64)
    with Context(CACHELEVEL=0):
        ((query @ keys.transpose(0, 1)).softmax(-1) @ keys).schedule()
    assert not split
    splitting.split_reduce(product(64, length, 64))
    assert split


@pytest.mark.parametrize("size", [(33, 7919, 20), (17, 50_001, 19), (40, 12_000, 64)])
def test_results(size: tuple[int, int, int]) -> None:
    rows, length, columns = size
    rng = np.random.default_rng(0)
    left = rng.standard_normal((rows, length), dtype=np.float32)
    right = rng.standard_normal((length, columns), dtype=np.float32)
    exact = left.astype(np.float64) @ right
    result = (Tensor(left).realize() @ Tensor(right).realize() + 1).relu()
    np.testing.assert_allclose(result.numpy(), np.maximum(exact + 1, 0), atol=1e-7 * length)
    turned = Tensor(np.ascontiguousarray(left.T)).realize().transpose(0, 1) @ Tensor(right).realize()
    np.testing.assert_allclose(turned.numpy(), exact, atol=1e-7 * length)
