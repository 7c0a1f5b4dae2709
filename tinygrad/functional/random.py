"""Random numbers: counter-based, so the same seed gives the same numbers on every device.

A draw is a function of (seed, counter, position) and of nothing else: the threefry2x32 block cipher with 20
rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) encrypts the
64-bit block number with the 64-bit seed and yields two 32-bit words. Each draw takes the next blocks of its
device's counter. Devices of one kind (CUDA and CUDA:1) draw from parts of the sequence far from each other,
so that their numbers are independent; kinds of devices draw the same.

Seed and counters are kept by `tensor/generator.py`. They enter the graph as bound VARIABLEs ("seed",
`counter_name`), so the graphs of two steps of a program have equal structure and a captured graph is replayed
with another counter.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad.device import canonical_device
from tinygrad.dtype import DType, DTypeLike, dtypes, to_dtype
from tinygrad.functional.creation import to_shape
from tinygrad.functional.graph_templates import MAX_TEMPLATES
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Devices, Placement
from tinygrad.graph.template import GraphTemplate
from tinygrad.graph.uop import UOp
from tinygrad.helpers import ceildiv, prod
from tinygrad.tensor.generator import (
    MAX_COUNTER,
    MAX_SEED,
    advance,
    counter_name,
    drawn_on,
    seed,
    stream_start,
)

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


class _Examples(local):
    """The batches that draws are for (`vmap`): the number of the example, and how many there are, of each."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, int]] = []

    def blocks(self, position: Tensor, count: int) -> Tensor:
        """The number of each block for one example, given that without examples; no two examples share
        one."""
        example: Tensor | None = None
        for number, size in self.batches:
            example = number if example is None else example * size + number
        return position if example is None else example.reshape(1, 1) * count + position


_examples = _Examples()


@contextmanager
def draws_for_each(number: Tensor, size: int) -> Iterator[None]:
    """A block in which draws are other ones in each of `size` examples: in order, as if drawn one after
    another. `number` is the number of the example, a uint32 of shape ()."""
    _examples.batches.append((number, size))
    try:
        yield
    finally:
        _examples.batches.pop()


# --- the generator --------------------------------------------------------------------------------


def threefry2x32(key: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The block cipher: two uint32 words for a key of two uint32 words and a block number of two, low word
    first."""
    from tinygrad.tensor import Tensor

    words = tuple(t.uop for t in (*block, *key))
    first, second = (Tensor(UOp.new(Ops.THREEFRY, dtypes.uint32, words, word), requires_grad=False)
                     for word in (0, 1))
    return first, second


def _variable_words(variable: UOp, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(low, high) 32-bit words of a variable, expanded to `shape`."""
    from tinygrad.tensor import Tensor

    low, high = (Tensor(word.cast(dtypes.uint32), requires_grad=False)
                 for word in (variable % 2**32, variable // 2**32))
    ones = (1,) * len(shape)
    return low.reshape(ones).expand(shape), high.reshape(ones).expand(shape)


def _blocks(seed: UOp, start: UOp, count: int, lanes: int = 1) -> tuple[Tensor, Tensor]:
    """Both words of `count` blocks from the number `start` on: uint32 of shape (lanes, count), every lane the
    same."""
    from tinygrad.tensor import Tensor

    shape = (lanes, count)
    low, high = _variable_words(start, shape)
    position = Tensor.arange(count, dtype=dtypes.uint32).reshape(1, count)
    position = _examples.blocks(position, count).expand(shape)
    block_low = low + position
    block_high = high + (block_low < low).cast(dtypes.uint32)
    return threefry2x32(_variable_words(seed, shape), (block_low, block_high))


def _words(seed: UOp, start: UOp, shape: tuple[int, ...]) -> Tensor:
    """uint32 random bits: first the first words of all blocks, then their second words."""
    from tinygrad.tensor import Tensor

    count = prod(shape)
    blocks = ceildiv(count, 2)
    first, second = _blocks(seed, start, blocks, lanes=2)
    lane = Tensor.arange(2, dtype=dtypes.int32).reshape(2, 1).expand(2, blocks)
    words = (lane == 0).where(first, second).reshape(2 * blocks)
    return words.shrink(((0, count),)).reshape(shape)


def _pairs(seed: UOp, start: UOp, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Two independent uint32 tensors of random bits: the two words of one block an item."""
    first, second = _blocks(seed, start, prod(shape))
    return first.reshape(shape), second.reshape(shape)


@functools.lru_cache(maxsize=MAX_TEMPLATES)
def _template(make: Callable[..., Tensor], *form: Any) -> GraphTemplate:
    """The nodes of `make` for any seed and start."""
    leaves = UOp.variable("seed", 0, MAX_SEED), UOp.variable("start", 0, MAX_COUNTER)
    return GraphTemplate(make(*leaves, *form).uop, leaves)


def _drawn(make: Callable[..., Tensor], blocks: int, device: Placement, *form: Any) -> Tensor:
    """What `make(seed, start, *form)` makes of the next `blocks` blocks: the nodes of its template."""
    from tinygrad.tensor import Tensor

    total = blocks * prod(size for _, size in _examples.batches)
    if total >= 2**31:
        raise ValueError(f"one draw takes fewer than 2**31 blocks of 64 random bits, asked for {total}")
    stream = drawn_on(device)
    start = stream_start(stream) + advance(stream, total)
    leaves = (UOp.variable("seed", 0, MAX_SEED, seed()),
              UOp.variable(counter_name(stream), 0, MAX_COUNTER, start))
    node = make(*leaves, *form).uop if _examples.batches else _template(make, *form).over(leaves)
    return Tensor(node, device=device, requires_grad=False)


# --- what the functions below share ---------------------------------------------------------------


def _float_type(name: str, dtype: DTypeLike | None) -> DType:
    found = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not found.is_float:
        raise TypeError(f"{name} takes a float dtype, got {found.name}")
    return found


def _finish(value: Tensor, requires_grad: bool | None, contiguous: bool = True) -> Tensor:
    """`value` as what a constructor returns: a leaf, stored when it is computed."""
    from tinygrad.tensor import Tensor

    return Tensor.leaf(value.uop.contiguous() if contiguous else value.uop, value.device, requires_grad)


def _unit_interval(bits: Tensor, dtype: DType) -> Tensor:
    """[0, 1) from 32 random bits, in steps of 2**-digits where `dtype` has that many digits (24 at most)."""
    digits = int(dtypes.finfo(dtype)[1]) + 1
    whole = bits >> (32 - digits)
    return whole.cast(dtypes.int32).cast(dtypes.float32).mul(2.0**-digits).cast(dtype)


def _uniform(shape: tuple[int, ...], dtype: DType, device: Placement) -> Tensor:
    from tinygrad.tensor import Tensor

    count = prod(shape)
    if count == 0:
        return Tensor.zeros(*shape, dtype=dtype, device=device)
    if dtype is dtypes.float64:
        return _drawn(_doubles, count, device, shape)
    return _drawn(_floats, ceildiv(count, 2), device, shape, dtype)


def _floats(seed: UOp, start: UOp, shape: tuple[int, ...], dtype: DType) -> Tensor:
    return _unit_interval(_words(seed, start, shape), dtype)


def _doubles(seed: UOp, start: UOp, shape: tuple[int, ...]) -> Tensor:
    high, low = _pairs(seed, start, shape)
    return ((high >> 5).cast(dtypes.float64) * 2**26 + (low >> 6).cast(dtypes.float64)) * 2.0**-53


def _normal(seed: UOp, start: UOp, shape: tuple[int, ...]) -> Tensor:
    return _box_muller(*(_unit_interval(bits, dtypes.float32) for bits in _pairs(seed, start, shape)))


def _box_muller(u: Tensor, v: Tensor) -> Tensor:
    return ((1 - u).log() * -2).sqrt() * (v * (2 * math.pi)).sin()


def _integers(seed: UOp, start: UOp, shape: tuple[int, ...], low: int, span: int) -> Tensor:
    """low + what of 64 random bits is below `span`, modulo 2**64."""
    if span <= 2**32:
        draws = (_words(seed, start, shape).cast(dtypes.uint64) * span) >> 32
    else:
        upper, lower = (bits.cast(dtypes.uint64) for bits in _pairs(seed, start, shape))
        draws = (upper << 32) | lower
        draws = draws if span == 2**64 else draws % span
    return draws + low % 2**64


# --- draws ----------------------------------------------------------------------------------------


def rand(*shape: Any, device: Devices | None = None, dtype: DTypeLike | None = None, contiguous: bool = True,
         requires_grad: bool | None = None) -> Tensor:
    """Uniform in [0, 1): multiples of 2**-24 for float32, 2**-53 for float64, 2**-11 for float16, 2**-8 for
    bfloat16.

    `contiguous=False` lets the draw fuse into what uses it, at the cost of drawing again in each use.
    """
    found = _float_type("rand", dtype)
    draws = _uniform(to_shape("rand", shape), found, canonical_device(device))
    return _finish(draws, requires_grad, contiguous)


def rand_like(self: Tensor, **kwargs: Any) -> Tensor:
    """`rand` of this tensor's shape, and its dtype and device unless given."""
    return rand(*self.shape, **{"dtype": self.dtype, "device": self.device, **kwargs})


def randn(*shape: Any, dtype: DTypeLike | None = None, device: Devices | None = None,
          requires_grad: bool | None = None) -> Tensor:
    """Normal with mean 0 and standard deviation 1, by the Box-Muller transform: sqrt(-2 ln u) * sin(2 pi v).

    u is in (0, 1], so the logarithm is finite; the largest value is 5.8 (8.5 for float64). Halves are drawn
    in float32.
    """
    found = _float_type("randn", dtype)
    sizes, place = to_shape("randn", shape), canonical_device(device)
    if found is dtypes.float64 or prod(sizes) == 0:
        draws = _box_muller(_uniform(sizes, found, place), _uniform(sizes, found, place))
    else:
        draws = _drawn(_normal, prod(sizes), place, sizes)
    return _finish(draws.cast(found), requires_grad)


def randn_like(self: Tensor, dtype: DTypeLike | None = None, **kwargs: Any) -> Tensor:
    """`randn` of this tensor's shape, and its dtype and device unless given."""
    return randn(*self.shape, dtype=dtype or self.dtype, **{"device": self.device, **kwargs})


def uniform(*shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeLike | None = None,
            requires_grad: bool | None = None, **kwargs: Any) -> Tensor:
    """Uniform in [low, high). An integer dtype gives integers of that range."""
    found = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not found.is_float:
        return randint(*shape, low=math.ceil(low), high=math.ceil(high), dtype=found, **kwargs)
    draws = rand(*shape, dtype=found, contiguous=False, requires_grad=False, **kwargs)
    return _finish((draws * (high - low) + low).cast(found), requires_grad)


def normal(*shape: Any, mean: float = 0.0, std: float = 1.0, requires_grad: bool | None = None,
           **kwargs: Any) -> Tensor:
    """Normal with the given mean and standard deviation."""
    draws = randn(*shape, requires_grad=False, **kwargs)
    return _finish((draws * std + mean).cast(draws.dtype), requires_grad)


def _bounds(low: int, high: int | None, *given: Any) -> tuple[int, int | None]:
    """Those that come before a size: the end alone, or the beginning first."""
    if len(given) > 2 or (len(given) == 2 and high is not None):
        raise TypeError(f"randint of a size takes low and high before it, got {given}")
    if not given:
        return low, high
    return (given[0], high) if high is not None else (low, *given)[-2:]


def randint(*shape: Any, low: int = 0, high: int | None = None, dtype: DTypeLike = int,
            device: Devices | None = None, requires_grad: bool | None = None,
            size: Sequence[int] | None = None) -> Tensor:
    """Integers in [low, high), which is 10 unless given. With the shape as `size`, what comes first is
    `high`, or `low` and `high`.

    With n = high - low, no value's probability differs from 1/n by more than 2**-32 (2**-64 for n > 2**32).
    Raises ValueError for an empty range or one that `dtype` cannot hold.

    >>> numbers = Tensor.randint(1000, low=3, high=5)
    >>> numbers.min().item(), numbers.max().item()
    (3, 4)
    """
    from tinygrad.tensor import Tensor

    if size is not None:
        low, high = _bounds(low, high, *shape)
        shape = tuple(size)
    high = 10 if high is None else high
    found = to_dtype(dtype)
    if not found.is_int:
        raise TypeError(f"randint takes an integer dtype, got {found.name}")
    if not (isinstance(low, (int, np.integer)) and isinstance(high, (int, np.integer))):
        raise TypeError(f"randint takes integer bounds, got low={low!r}, high={high!r}")
    low, high = int(low), int(high)
    if not found.min <= low < high <= found.max + 1:
        raise ValueError(f"randint takes low < high within {found.name}, got low={low}, high={high}")
    sizes, place, span = to_shape("randint", shape), canonical_device(device), high - low
    if prod(sizes) == 0:
        return _finish(Tensor.zeros(*sizes, dtype=found, device=place), requires_grad)
    blocks = ceildiv(prod(sizes), 2) if span <= 2**32 else prod(sizes)
    draws = _drawn(_integers, blocks, place, sizes, low, span)
    # modulo 2**64, and again modulo the width of `dtype`, the sum is the right number
    return _finish(draws.cast(found), requires_grad)


def randperm(n: int, device: Devices | None = None, dtype: DTypeLike = int,
             requires_grad: bool | None = None) -> Tensor:
    """The integers 0 to n - 1 in random order: the order that sorts n draws of 32 bits.

    >>> sorted(Tensor.randperm(4).tolist())
    [0, 1, 2, 3]
    """
    from tinygrad.tensor import Tensor

    sizes, place = to_shape("randperm", (n,)), canonical_device(device)
    if n == 0:
        return _finish(Tensor.zeros(0, dtype=to_dtype(dtype), device=place), requires_grad)
    draws = _drawn(_words, ceildiv(n, 2), place, sizes).contiguous()
    return _finish(draws.argsort().cast(to_dtype(dtype)), requires_grad)


def multinomial(self: Tensor, num_samples: int = 1, replacement: bool = False) -> Tensor:
    """Positions drawn with probabilities proportional to the weights on the last axis of a 1-d or 2-d tensor.

    Shape (num_samples,) or (rows, num_samples). Without `replacement`, no position comes twice in a row.

    >>> Tensor([0.0, 1.0, 0.0]).multinomial(3, replacement=True).tolist()
    [1, 1, 1]
    """
    if self.ndim not in (1, 2) or num_samples < 1:
        raise ValueError(f"multinomial takes weights of 1 or 2 axes and num_samples >= 1, "
                         f"got shape {self.shape} and {num_samples}")
    if not replacement and num_samples > self.shape[-1]:
        raise ValueError(f"multinomial without replacement draws at most the {self.shape[-1]} positions "
                         f"of {self.shape}, asked for {num_samples}")
    weights = (self if self.ndim == 2 else self.unsqueeze(0)).detach().float()
    rows, choices = weights.shape
    if replacement or num_samples == 1:
        cumulative = weights.cumsum(1)
        draws = rand(rows, num_samples, device=self.device, dtype=dtypes.float32, requires_grad=False)
        # 1 - draw is in (0, 1], so a position of no weight is never the first to reach it
        targets = (1 - draws) * cumulative.shrink(((0, rows), (choices - 1, choices)))
        picks = (cumulative.unsqueeze(1) < targets.unsqueeze(2)).sum(2)
    else:
        # the arrival order of independent exponential clocks (Efraimidis and Spirakis, 2006)
        draws = rand(rows, choices, device=self.device, dtype=dtypes.float32, requires_grad=False)
        arrivals = -(1 - draws).log() / weights
        picks = arrivals.topk(num_samples, 1, largest=False)[1]
    picks = picks.cast(dtypes.int32)
    return picks if self.ndim == 2 else picks.squeeze(0)


# --- initial values of parameters -----------------------------------------------------------------


def scaled_uniform(*shape: Any, **kwargs: Any) -> Tensor:
    """Uniform in [-1, 1) / sqrt(number of items)."""
    bound = max(prod(to_shape("scaled_uniform", shape)), 1) ** -0.5
    return uniform(*shape, low=-bound, high=bound, **kwargs)


def glorot_uniform(*shape: Any, **kwargs: Any) -> Tensor:
    """Uniform in [-b, b) with b = sqrt(6 / (shape[0] + product of the others)) (Glorot and Bengio, 2010)."""
    sizes = to_shape("glorot_uniform", shape)
    bound = math.sqrt(6 / (_fan_out(sizes) + _fan_in(sizes)))
    return uniform(*sizes, low=-bound, high=bound, **kwargs)


def kaiming_uniform(*shape: Any, a: float = 0.01, **kwargs: Any) -> Tensor:
    """Uniform in [-b, b) with b = sqrt(6 / ((1 + a^2) * product of shape[1:])) (He, Zhang, Ren and Sun,
    2015)."""
    sizes = to_shape("kaiming_uniform", shape)
    bound = math.sqrt(6 / ((1 + a * a) * _fan_in(sizes)))
    return uniform(*sizes, low=-bound, high=bound, **kwargs)


def kaiming_normal(*shape: Any, a: float = 0.01, **kwargs: Any) -> Tensor:
    """Normal with standard deviation sqrt(2 / ((1 + a^2) * product of shape[1:])) (He, Zhang, Ren and Sun,
    2015)."""
    sizes = to_shape("kaiming_normal", shape)
    return normal(*sizes, std=math.sqrt(2 / ((1 + a * a) * _fan_in(sizes))), **kwargs)


def _fan_in(shape: tuple[int, ...]) -> int:
    return int(prod(shape[1:])) or 1


def _fan_out(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1
