"""Rotary positions (Su et al., 2021): how far each pair of a head's items is turned at each position.

What comes in is how a model says its frequencies and how they were stretched for longer contexts; what goes
out are the cosines and sines of all positions, as NumPy arrays. The kinds of stretching are those that
checkpoints name: linear (Chen et al., 2023), dynamic, llama3, yarn (Peng et al., 2023), longrope (Ding et
al., 2024).
"""
from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from tinygrad.frozen import frozen

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@frozen
class Rope:
    """Frequencies of `size` items of a head: item pair i turns by `base` ** (-2 i / size) a position.

    `kind` says how they are stretched by `factor` from contexts of `original` positions. `pairs`: adjacent
    items turn together, else an item and the one half a head on. `short` and `long` divide the frequencies
    one by one (longrope) for contexts up to `original` and beyond; `divisors` does in every case. dynamic
    raises the base for contexts beyond `original`. `whole_pairs`: yarn's stretching begins and ends at pairs.
    """

    size: int
    base: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    whole_pairs: bool = True
    magnitude: float | None = None
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()
    pairs: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rotary positions of kind {self.kind!r} are not known; "
                             f"known are {', '.join(KINDS)}")
        if self.size <= 0 or self.size % 2:
            raise ValueError(f"rotary positions turn an even number of items, got {self.size}")
        used = ("original",) if self.kind not in ("default", "linear") else ()
        for name in ("base", "factor", "fast", "slow", *used):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"rotary positions cannot have {name} {getattr(self, name)!r}, "
                                 "which is no number above 0")
        if self.base == 1 or self.low == self.high:
            raise ValueError("rotary positions have a base other than 1, and two bounds of wavelengths")
        if self.kind == "longrope" and self.original <= 1:
            raise ValueError("rotary positions of kind longrope have an original context of 2 or more")
        for name, factors in (("short", self.short), ("long", self.long), ("divisors", self.divisors)):
            if not all(0 < factor < math.inf for factor in factors):
                raise ValueError(f"rotary positions have {name} factors that are no numbers above 0")
            if factors and len(factors) != self.size // 2:
                raise ValueError(f"rotary positions of {self.size} items take {self.size // 2} "
                                 f"{name} factors, got {len(factors)}")

    def table(self, context: int) -> tuple[Floats, Floats]:
        """Cosines and sines (context, size / 2) in float32, times the magnitude of the kind."""
        angles = np.arange(context)[:, None] * self.frequencies(context)
        scale = self.scale()
        return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(np.float32)

    def frequencies(self, context: int) -> Floats:
        """Radians a position, by pair."""
        plain: Floats = self.base ** (-np.arange(0, self.size, 2) / self.size)
        if self.divisors:
            plain = plain / np.array(self.divisors)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "dynamic" and context > self.original and self.size > 2:
            stretch = self.factor * context / self.original - (self.factor - 1)
            return plain * stretch ** (-np.arange(0, self.size, 2) / (self.size - 2))
        if self.kind == "llama3":
            return self._by_wavelength(plain)
        if self.kind == "yarn":
            return self._by_turns(plain)
        if self.kind == "longrope":
            factors = self.long if context > self.original else self.short
            return plain / np.array(factors) if factors else plain
        return plain

    def scale(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.magnitude is not None:
            return self.magnitude
        if self.kind == "yarn" and self.factor > 1:
            return 0.1 * math.log(self.factor) + 1
        if self.kind == "longrope" and self.factor > 1:
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original))
        return 1.0

    def _by_wavelength(self, plain: Floats) -> Floats:
        """Waves longer than the original context by `low` are stretched, those shorter by `high` are not."""
        turns = self.original * plain / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        mixed: Floats = plain * kept + plain / self.factor * (1 - kept)
        return mixed

    def _by_turns(self, plain: Floats) -> Floats:
        """Pairs that turn more than `fast` times within the original context are kept, those below `slow`
        stretched, and between them in proportion to their number."""
        def pair_of(turns: float) -> float:
            return self.size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        first, last = pair_of(self.fast), pair_of(self.slow)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.size - 1)
        width = last - first if last != first else 0.001
        stretched = np.clip((np.arange(self.size // 2) - first) / width, 0, 1)
        mixed: Floats = plain * (1 - stretched) + plain / self.factor * stretched
        return mixed
