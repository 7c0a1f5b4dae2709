"""What ranks exchange, without ranks: bytes of regions, flat or in rows."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

from tinygrad.device.queue import ByteRegion
from tinygrad.runtime.rank_exchange import Part, fill, in_order

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
