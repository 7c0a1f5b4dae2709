"""What attention remembers: the keys and values of every token so far, in slots of one sequence each.

A slot holds up to `length` tokens. Keys and values come as float32 and are stored as float32, float16, or as
int8 with a scale for each token and head. They are written in place, and read up to a bound `Variable`, so
work goes with what is filled.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad.dtype import DType, DTypeLike, dtypes, to_dtype
from tinygrad.frozen import frozen
from tinygrad.tensor import Tensor


@frozen
class Rows:
    """Where rows of tokens (B, T) are: row i in slot `slot` + i, from `places[i]` on. `length` tokens of each
    slot are looked at, as many as the longest row has then. All may be bound Variables."""

    slot: Any
    places: Sequence[Any]
    length: Any


@frozen
class PackedSequence:
    """Of one row of tokens the `count` from `start` on, which go on in a slot of their own."""

    start: Any
    count: Any
    rows: Rows
    """of one row"""


KINDS = (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int8)


class Store:
    """Vectors of `size` items for `slots` sequences, `heads` heads and `length` tokens."""

    def __init__(self, slots: int, heads: int, length: int, size: int, dtype: DType, device: str) -> None:
        self.items = Tensor.zeros(slots, heads, length, size, dtype=dtype, device=device).contiguous()
        self.scales = None
        if dtype is dtypes.int8:
            self.scales = Tensor.zeros(slots, heads, length, 1, device=device).contiguous()

    def write(self, vectors: Tensor, slot: Any, place: Any) -> None:
        """Vectors (1, heads, T, size) at tokens `place` and on of a slot."""
        tokens = vectors.shape[2]
        if self.scales is not None:
            scale = (vectors.abs().max(-1, keepdim=True) / 127).contiguous()
            vectors = (vectors / (scale == 0).where(1, scale)).round()
            self.scales[slot:slot + 1, :, place:place + tokens].assign(scale)
        self.items[slot:slot + 1, :, place:place + tokens].assign(vectors.cast(self.items.dtype))

    def read(self, rows: Rows) -> Tensor:
        """What is looked at, (B, heads, length, size), as float32."""
        slots = slice(rows.slot, rows.slot + len(rows.places))
        found = self.items[slots, :, :rows.length].cast(dtypes.float32)
        return found if self.scales is None else found * self.scales[slots, :, :rows.length]

    def copy(self, source: Any, target: Any, tokens: Any) -> None:
        """The first `tokens` of a slot into another one."""
        for memory in (self.items, self.scales):
            if memory is not None:
                memory[target:target + 1, :, :tokens].assign(memory[source:source + 1, :, :tokens]).realize()


class Cache:
    """Keys and values of all layers. Raises ValueError for a dtype that is not one of `KINDS`."""

    def __init__(self, layers: int, slots: int, heads: int, length: int, size: int,
                 dtype: DTypeLike = "float16",
                 device: str = "CPU") -> None:
        kind = to_dtype(dtype)
        if kind not in KINDS:
            names = ", ".join(k.name for k in KINDS)
            raise ValueError(f"keys and values are stored as {names}, not {kind.name}")
        self.slots, self.length, self.dtype = slots, length, kind
        self.keys = [Store(slots, heads, length, size, kind, device) for _ in range(layers)]
        self.values = [Store(slots, heads, length, size, kind, device) for _ in range(layers)]
        Tensor.realize(*self.memories)

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return sum(m.numel() * m.dtype.itemsize for m in self.memories)

    @property
    def memories(self) -> list[Tensor]:
        """What everything is stored in."""
        stores = (*self.keys, *self.values)
        return [m for store in stores for m in (store.items, store.scales) if m is not None]

    def write(self, layer: int, keys: Tensor, values: Tensor, rows: Rows) -> None:
        """Keys and values (B, heads, T, size) of a layer."""
        for row, place in enumerate(rows.places):
            self.keys[layer].write(keys[row:row + 1], rows.slot + row, place)
            self.values[layer].write(values[row:row + 1], rows.slot + row, place)


class Passing:
    """A cache of nothing: what is written is what is read. For whole sequences whose gradient is wanted."""

    def __init__(self) -> None:
        self.given: Tensor | None = None

    def read(self, rows: Rows) -> Tensor:
        """The vectors that were written last."""
        assert self.given is not None
        return self.given


class NoCache:
    """In place of a `Cache`, for sequences that are computed whole: no memory is written."""

    def __init__(self, layers: int) -> None:
        self.keys = [Passing() for _ in range(layers)]
        self.values = [Passing() for _ in range(layers)]

    def write(self, layer: int, keys: Tensor, values: Tensor, rows: Rows) -> None:
        """Keys and values (B, heads, T, size) of a layer, for the next `read`."""
        self.keys[layer].given, self.values[layer].given = keys, values
