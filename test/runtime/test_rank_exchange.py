"""What ranks exchange, without ranks: bytes of regions, flat or in rows; the order of broadcasts."""
from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from tinygrad.device.queue import BlockCopy, ByteRegion, CollectiveGroup, GatheredCopy
from tinygrad.runtime import rank
from tinygrad.runtime.rank_exchange import PACKED, Part, RankExchange, fill, in_order, name_of

REGIONS = {"flat": ByteRegion(3, (), (), 24), "rows": ByteRegion(1, (4, 2), (20, 9), 3),
           "rows along one axis": ByteRegion(0, (8,), (7,), 3),
           "bytes apart": ByteRegion(2, (6, 4), (16, 2), 1),
           "bytes along one axis": ByteRegion(0, (24,), (3,), 1)}


@pytest.mark.parametrize("given, taken", [pair for pair in itertools.product(REGIONS, REGIONS)
                                          if len({REGIONS[name].run for name in pair} - {24}) < 2])
def test_bytes_go_from_one_region_to_another_in_order(given: str, taken: str) -> None:
    """Also where a row is a byte, and where one of the two has several axes of the other as one."""
    memory, target = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    (source,), (place,) = Part(0, REGIONS[given]).of([memory]), Part(0, REGIONS[taken]).of([target])
    fill(place, source)
    moved, whole = in_order(source), np.zeros(24, np.uint8)
    if moved is not source:
        fill(moved, source)
    fill(whole, place)
    assert whole.tolist() == moved.tolist() == [
        start + i for start in REGIONS[given].rows() for i in range(REGIONS[given].run)]
    assert np.count_nonzero(target) <= 24


def test_all_ranks_broadcast_in_one_order() -> None:
    """Gradients of `x.max(0)` and `x.max()` ended three ranks: the last got its copies of the two in another
    order than the first gave them; of one size, each would have been taken for the other."""
    copies = [GatheredCopy(name_of(taker), name_of(0), frozenset({number}), frozenset({part}), (part, 0),
                           4, "float32", 16, part)
              for number, (taker, part) in enumerate([(2, "a"), (2, "b"), (1, "b"), (1, "a")])]
    for own in range(3):
        said = [text for *_, text in RankExchange(copies, own, 3).to_ranks]
        assert ["a" if b"'a'" in text else "b" for text in said] == ["a", "b"]


@pytest.mark.parametrize("kind, nbytes, is_short", [("flat", 24, True), ("flat", PACKED + 4, False),
                                                    ("rows", 24, False)])
@pytest.mark.parametrize("giver", [0, 1])
def test_what_is_small_and_lies_together_is_copied_by_address(kind: str, nbytes: int, is_short: bool,
                                                              giver: int) -> None:
    """From another rank, and within one that has no partner."""
    region = REGIONS[kind]._replace(run=REGIONS[kind].run * nbytes // 24)
    group = CollectiveGroup((name_of(0), name_of(1)), "", (BlockCopy(giver, 0, region, region),))
    copy = GatheredCopy(name_of(0), name_of(0), frozenset({0}), frozenset({1}), (1, 0), nbytes // 4,
                        "float32", nbytes, "", group)
    exchange = RankExchange([copy], 0, 2)
    assert len(exchange.local) + len(exchange.between) == 1
    assert exchange.is_short is is_short


@pytest.mark.parametrize("look, least, most", [(1e-6, 0.9, 1.0), (2e-5, 0.0, 0.0)])
def test_who_waits_for_long_messages_sleeps_unless_they_move(look: float, least: float, most: float,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of its own: messages that take 0.2 s, each look moves some if it is long. A GPT's
    step on two ranks polled for 26 of its 262 ms, on the core that should have computed."""
    now, slept = 0.0, 0.0

    def testall(requests: object) -> bool:
        nonlocal now
        now += look
        return now > 0.2

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    monkeypatch.setattr(rank, "time", SimpleNamespace(perf_counter=lambda: now, sleep=sleep))
    world = rank.World.__new__(rank.World)
    world.mpi = SimpleNamespace(Request=SimpleNamespace(Testall=testall))
    world.is_crowded = False
    world.__dict__["exchanges"] = SimpleNamespace(thread=threading.current_thread())
    world.rest_until([], 1e-4)
    assert now > 0.2
    assert least <= slept / now <= most
