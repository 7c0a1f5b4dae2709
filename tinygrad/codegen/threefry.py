"""THREEFRY as arithmetic that every device has.

In: a nest with nothing left to expand. Out: the same bits by additions, rotations and exclusive ors of 32-bit
words: threefry2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
3", SC 2011). Nodes for both words of a block share all their rounds.
"""
from __future__ import annotations

from tinygrad.graph.ops import Ops
from tinygrad.graph.rewrite import RewriteTable, Rule, node
from tinygrad.graph.uop import UOp

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
KEY_PARITY = 0x1BD11BDA


def _word(n: UOp) -> UOp:
    x, y, *key = n.src
    keys = (*key, key[0] ^ key[1] ^ KEY_PARITY)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + (keys[(group + 2) % 3] + (group + 1))
    return (x, y)[n.arg]


random_bits = RewriteTable("random bits as arithmetic", [
    Rule("threefry", node(Ops.THREEFRY, name="n"), _word),
])
