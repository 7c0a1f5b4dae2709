"""PYTHON: linear programs run by Python and NumPy, as the reference for all other devices.

A program becomes Python text (`renderer/python.py`), one call for each of its operations: `operation` says in
NumPy what an operation means for a dtype, and `Items` what an access to memory is. Nothing here is made to be
fast, and everything is checked: an access outside its buffer and a race between threads are errors.

The threads of a block run in step, as one axis of the arrays: a value is an array of shape () or (lanes,)
where all threads agree, else of shape (threads, 1) or (threads, lanes). Blocks run one after another. A
thread that touches shared memory which another one wrote since the last BARRIER, or writes what another one
read, is caught in the act: with real threads the result would depend on their timing.
"""
from __future__ import annotations

import ctypes
import functools
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tinygrad.device import CompiledDevice
from tinygrad.dtype import DType, dtypes
from tinygrad.graph.ops import Ops
from tinygrad.helpers import prod
from tinygrad.renderer import Renderer
from tinygrad.renderer.cuda import HOPPER, HOPPER_SHARED_BYTES, cuda_renderer, hip_renderer
from tinygrad.renderer.launch import Launch
from tinygrad.renderer.machine import NARROW_FLOATS
from tinygrad.renderer.matrix_units import UNITS, Fragment, MatrixUnit
from tinygrad.renderer.metal import metal_renderer
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime.cpu import CPUAllocator

Value = Any
"""A NumPy scalar or array."""
Operation = Callable[..., Value]


# --- what operations mean -------------------------------------------------------------------------------


def _multiply_add(a: Value, b: Value, c: Value) -> Value:
    """a * b + c rounded once."""
    if a.dtype == np.float32:
        wide = np.float64
        return _odd_float32(*_two_sum(wide(a) * wide(b), wide(c)))
    if a.dtype == np.float64:
        return np.asarray(_fused(a, b, c), np.float64)
    return a * b + c


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_float32(value: Value, rest: Value = 0.0) -> Value:
    """value + rest (what value's last place has no room for) as float32, rounded once.

    float64 has room to say on which side of a tie the sum lies: its last bit is set where the sum is inexact
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
    odd", 2008).
    """
    inexact = np.isfinite(value) & (rest != 0)
    outward = (rest > 0) == (value > 0)
    bits = np.asarray(value).view(np.int64)
    toward_zero = np.where(outward, bits, bits - 1)
    odd = np.where(inexact, toward_zero | 1, bits).view(np.float64)
    return odd.astype(np.float32)


def _fused_numbers(a: float, b: float, c: float) -> float:
    plain = float(a) * float(b) + float(c)
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return plain
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)


_fused = np.frompyfunc(_fused_numbers, 3, 1)


def _byte_dot(a: Value, b: Value, c: Value) -> Value:
    a, b, c = np.broadcast_arrays(a, b, c)
    pairs = np.ascontiguousarray(a)[..., None].view(np.uint8).astype(np.int32), \
        np.ascontiguousarray(b)[..., None].view(np.int8).astype(np.int32)
    return c + (pairs[0] * pairs[1]).sum(-1, dtype=np.int32)


_ARITHMETIC: dict[Ops, Operation] = {
    Ops.NEG: np.negative, Ops.SQRT: np.sqrt, Ops.TRUNC: np.trunc,
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.FDIV: np.divide,
    Ops.IDIV: np.floor_divide, Ops.MOD: np.remainder, Ops.SHL: np.left_shift, Ops.SHR: np.right_shift,
    Ops.AND: np.bitwise_and, Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
    Ops.MULACC: _multiply_add, Ops.DP4A: _byte_dot,
}
"""Operations whose result has their operands' dtype. NumPy's integers divided by 0 give 0, and shifted by
their width or more what shifting bit by bit would."""
_LOGIC = {Ops.ADD: np.logical_or, Ops.MAX: np.logical_or, Ops.MUL: np.logical_and}
"""What differs for bools."""
_COMPARISONS: dict[Ops, Operation] = {Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal}


@functools.cache
def operation(op: Ops, source: DType, target: DType) -> Operation:
    """What `op` means for operands of `source` and a result of `target`, both of one lane.

    Raises ValueError for what no program may contain.
    """
    if op is Ops.CAST and ({source, target}.isdisjoint(NARROW_FLOATS) or dtypes.float32 in (source, target)):
        return functools.partial(_cast, source, target)
    if op is Ops.BITCAST:
        return functools.partial(_bitcast, source, target)
    if op is Ops.WHERE:
        return np.where
    found = None if source in NARROW_FLOATS else \
        _COMPARISONS.get(op) or (_LOGIC.get(op) if source.is_bool else None) or _ARITHMETIC.get(op)
    if found is None:
        raise ValueError(f"PYTHON cannot say {op.name} of {source}")
    return found


def _cast(source: DType, target: DType, x: Value) -> Value:
    x = np.asarray(x)
    if target.is_bool:
        return x != 0
    if source.is_float and target.is_int:
        return _saturated(x.astype(np.float64), target)
    return x.astype(target.numpy)


def _saturated(x: Value, target: DType) -> Value:
    """Toward zero; the nearest integer there is where none fits, 0 for NaN."""
    low, high = int(target.min), int(target.max)
    below, above = x <= float(low), x >= float(high + 1)
    inside = np.where(below | above | np.isnan(x), 0.0, x)
    whole = np.trunc(inside).astype(target.numpy)
    limited = np.where(above, np.array(high, target.numpy), whole)
    return np.where(below, np.array(low, target.numpy), limited)


def _bitcast(source: DType, target: DType, x: Value) -> Value:
    if source.is_bool or target.is_bool:
        return _cast(source, target, x)
    return np.ascontiguousarray(x).view(target.numpy).reshape(np.shape(x))


# --- lanes ----------------------------------------------------------------------------------------------


def constant(dtype: DType, value: Any) -> Value:
    """A CONST; of a vector an array of its lanes."""
    with np.errstate(all="ignore"):
        if dtype.count == 1:
            return np.array(value, np.float64).astype(dtype.numpy)[()] if dtype.is_float else \
                dtype.numpy.type(value)
        lanes = np.array(value, np.float64 if dtype.is_float else dtype.numpy).astype(dtype.scalar.numpy)
        return np.broadcast_to(lanes, (dtype.count,))


def in_every_lane(x: Value, count: int) -> Value:
    """A vector of one value."""
    return np.broadcast_to(x, (*np.shape(x)[:-1], count))


def side_by_side(*values: Value) -> Value:
    """A vector of one value a lane."""
    threads = max(np.shape(v)[0] if np.ndim(v) else 0 for v in values)
    columns = [np.broadcast_to(v, (threads, 1)) if threads else np.reshape(v, 1) for v in values]
    return np.concatenate(columns, axis=-1)


def lane(vector: Value, number: int) -> Value:
    """One lane: of shape () where all threads agree, else (threads, 1)."""
    return vector[number] if vector.ndim == 1 else vector[:, number:number + 1]


def shuffled(first: Value, second: Value, picks: list[int]) -> Value:
    """Lanes picked from two vectors side by side."""
    return np.concatenate(np.broadcast_arrays(first, second), axis=-1)[..., picks]


def reduced(combine: Operation, vector: Value) -> Value:
    """One half of the lanes with the other, until one is left; odd lanes are put aside until the end."""
    aside = []
    while vector.shape[-1] > 1:
        half = vector.shape[-1] // 2
        if vector.shape[-1] % 2:
            aside.append(lane(vector, vector.shape[-1] - 1))
        vector = np.asarray(combine(vector[..., :half], vector[..., half:2 * half]))
    result = lane(vector, 0)
    for other in aside:
        result = combine(result, other)
    return result


def looked_up(words: Value, table: bytes) -> Value:
    """Words with the bytes of a table at the places that their bytes are."""
    places = np.ascontiguousarray(words)[..., None].view(np.uint8)
    return np.frombuffer(table, np.uint8)[places].view(np.uint32)[..., 0]


def exchanged(value: Value, distance: int, warp_threads: int) -> Value:
    """What the lane has whose number differs in the bit `distance`. Raises RuntimeError where a warp has no
    such lane."""
    if np.ndim(value) < 2:
        return value
    other = np.arange(len(value)) ^ distance
    if distance >= warp_threads or other.max() >= len(value):
        raise RuntimeError(f"lanes {distance} apart cannot exchange values: warps have {warp_threads} lanes, "
                           f"the block {len(value)} threads")
    return value[other]


def matrix_product(unit: MatrixUnit, a: Value, b: Value, c: Value, threads: int) -> Value:
    """a @ b + c of the tiles that the lanes of each warp hold, of floats rounded once. Raises RuntimeError
    where a block has a part of a warp, or where lanes that hold the same element disagree about it."""
    if threads % unit.threads:
        raise RuntimeError(f"{unit} is for warps of {unit.threads} threads; a block has {threads}")
    wide = np.float64 if unit.result.is_float else np.int64
    left, right, before = (x.astype(wide) if isinstance(x, np.ndarray) and x.ndim == 3 else
                           _gathered(f, np.broadcast_to(x, (threads, f.registers)).astype(wide), unit)
                           for f, x in ((unit.a, a), (unit.b, b), (unit.c, c)))
    product = (left @ right + before).astype(unit.result.numpy)
    rows, columns = unit.c.places(unit.threads)
    return product[:, rows, columns].reshape(threads, unit.c.registers)


def _gathered(fragment: Fragment, held: Value, unit: MatrixUnit) -> Value:
    """The tile of each warp, from what its lanes hold."""
    rows, columns = fragment.places(unit.threads)
    held = held.reshape(-1, unit.threads, fragment.registers)
    tiles = np.zeros((len(held), 2 ** len(fragment.rows), 2 ** len(fragment.columns)), held.dtype)
    tiles[:, rows, columns] = held
    if not np.array_equal(tiles[:, rows, columns], held, equal_nan=held.dtype.kind == "f"):
        raise RuntimeError(f"lanes hold different numbers for the same element of a tile of {unit}")
    return tiles


def counted(begin: Value, end: Value) -> Iterator[Value]:
    """The iterations of a loop. Raises RuntimeError where threads disagree how many there are."""
    if any(np.ndim(bound) and np.any(bound != np.ravel(bound)[0]) for bound in (begin, end)):
        raise RuntimeError("the threads of a block run a loop equally often; here they do not")
    return map(np.int64, range(int(np.ravel(begin)[0]), int(np.ravel(end)[0])))


# --- memory ---------------------------------------------------------------------------------------------


class Items:
    """Memory of a PARAM, or of a SCRATCH, of which every thread has its own. Raises IndexError for accesses
    outside."""

    def __init__(self, name: str, dtype: DType, count: int, threads: int = 1,
                 address: int | None = None) -> None:
        self.name = name
        self.dtype = dtype
        self.count = count
        stored = np.dtype(np.uint8) if dtype.is_bool else dtype.numpy
        if address is None:
            self.items = np.zeros(count * threads, stored)
        else:
            memory = (ctypes.c_uint8 * (count * stored.itemsize)).from_address(address)
            self.items = np.frombuffer(memoryview(memory), stored)
        self.own = np.arange(threads)[:, None] * count if threads > 1 else 0
        """where each thread's own part begins"""

    def load(self, offset: Value, lanes: int, valid: Value = True) -> Value:
        """`lanes` items from `offset` on, or one at each of as many offsets; zero where not `valid`."""
        where = self.places(offset, lanes, valid)
        if self.count == 0:
            return np.zeros(where.shape, self.dtype.numpy)
        self.note_reads(where, valid)
        found = self.items[where + self.own]
        found = found != 0 if self.dtype.is_bool else found
        return found if valid is True else np.where(valid, found, np.zeros((), found.dtype))

    def store(self, offset: Value, lanes: int, value: Value, valid: Value = True) -> None:
        """The lanes of `value` to where `load` would find them, where `valid`."""
        where, value, kept = np.broadcast_arrays(self.places(offset, lanes, valid) + self.own, value, valid)
        self.note_writes(where, kept)
        self.items[where[kept]] = value[kept]

    def places(self, offset: Value, lanes: int, valid: Value) -> Value:
        """The items that an access touches; 0 for those that it must not."""
        if lanes > 1 and (np.ndim(offset) == 0 or offset.shape[-1] == 1):
            offset = offset + np.arange(lanes)
        where = np.asarray(offset if valid is True else np.where(valid, offset, 0))
        touched = where if valid is True else where[np.broadcast_to(valid, where.shape)]
        wrong = touched[(touched < 0) | (touched >= self.count)]
        if wrong.size:
            raise IndexError(f"item {wrong.flat[0]} of {self.name}, which has {self.count}")
        return where

    def note_reads(self, where: Value, valid: Value) -> None:
        """Memory that threads do not share has no races."""

    def note_writes(self, where: Value, valid: Value) -> None:
        """As `note_reads`."""


NOBODY, EVERYBODY = -1, -2


class SharedItems(Items):
    """Memory that the threads of a block share. Raises RuntimeError for a race between two of them."""

    def __init__(self, name: str, dtype: DType, count: int, threads: int) -> None:
        super().__init__(name, dtype, count)
        self.threads = threads
        self.started: list[tuple[Value, int, Value]] = []
        self.groups: list[list[tuple[Value, int, Value]]] = []
        self.barrier()

    def barrier(self) -> None:
        """What was done before is done for everybody."""
        self.writer = np.full(self.count, NOBODY)
        self.reader = np.full(self.count, NOBODY)

    def prefetch(self, offset: Value, lanes: int, value: Value) -> None:
        """Starts a copy: until it is waited for, what is there is nothing."""
        self.store(offset, lanes, np.frombuffer(b"\xa5" * self.items.itemsize, self.items.dtype)[0])
        self.started.append((offset, lanes, value))

    def commit(self) -> None:
        """Makes a group of the copies that were started."""
        self.groups.append(self.started)
        self.started = []

    def wait(self, groups: int) -> None:
        """Ends all copies but those of the last groups."""
        while len(self.groups) > groups:
            for offset, lanes, value in self.groups.pop(0):
                self.store(offset, lanes, value)

    def tiles(self, unit: MatrixUnit, number: int, offset: Value) -> Value:
        """The first or second source of a unit that reads it here from `offset` on, for each group of its
        threads: (groups, m, k) or (groups, k, n). Raises RuntimeError where threads disagree about that."""
        assert unit.in_shared is not None
        begins = np.broadcast_to(offset, (self.threads, 1)).reshape(-1, unit.threads)
        if np.any(begins != begins[:, :1]):
            raise RuntimeError(f"the threads of {unit} read tiles from different places")
        side, along = np.meshgrid(np.arange((unit.m, unit.n)[number]), np.arange(unit.k), indexing="ij")
        row, item = (side, along) if unit.in_shared[number] else (along, side)
        rows, width = row.max() + 1, unit.access_items
        access = item % unit.row_items // width ^ row % 8
        place = (item // unit.row_items * rows + row) * unit.row_items + access * width + item % width
        where = begins[:, :1, None] + place
        writer = self.writer[where]
        self.refuse(where[(writer != NOBODY) & (writer != EVERYBODY)], "read", "written")
        self.reader[where] = EVERYBODY
        found = self.items[where]
        return found.swapaxes(1, 2) if number else found

    def who(self, where: Value) -> Value:
        """The thread of each access: everybody where all do the same."""
        if where.ndim < 2:
            return np.full(where.shape, EVERYBODY if self.threads > 1 else 0)
        return np.broadcast_to(np.arange(self.threads)[:, None], where.shape)

    def note_reads(self, where: Value, valid: Value) -> None:
        who, kept = self.who(where), np.broadcast_to(valid, where.shape)
        item, thread = where[kept], who[kept]
        writer = self.writer[item]
        self.refuse(item[(writer != NOBODY) & (writer != EVERYBODY) & (writer != thread)], "read", "written")
        for i, t in zip(item.flat, thread.flat, strict=True):
            self.reader[i] = t if self.reader[i] in (NOBODY, t) else EVERYBODY

    def note_writes(self, where: Value, valid: Value) -> None:
        who = self.who(where)
        for i, t in zip(where[valid].flat, who[valid].flat, strict=True):
            self.refuse([i] if self.reader[i] not in (NOBODY, t) else [], "written", "read")
            self.refuse([i] if self.writer[i] not in (NOBODY, t) else [], "written", "written")
            self.writer[i] = t

    def refuse(self, items: Sequence[int], now: str, before: str) -> None:
        if len(items):
            raise RuntimeError(f"race: item {items[0]} of {self.name} is {now} by one thread and was "
                               f"{before} by another, without a BARRIER in between")


# --- the device -----------------------------------------------------------------------------------------


class PythonProgram:
    """A loaded kernel."""

    def __init__(self, name: str, code: Any) -> None:
        names = {"np": np, "Ops": Ops, "dtypes": dtypes, "Items": Items, "SharedItems": SharedItems,
                 "operation": operation, "constant": constant, "in_every_lane": in_every_lane,
                 "side_by_side": side_by_side, "lane": lane, "shuffled": shuffled, "reduced": reduced,
                 "counted": counted, "exchanged": exchanged, "looked_up": looked_up, "UNITS": UNITS,
                 "matrix_product": matrix_product}
        exec(code, names)
        self.function: Callable[..., None] = names[name]  # type: ignore[assignment]  # what the text defines

    def __call__(self, addresses: Sequence[int], variables: Sequence[int], extent: int) -> None:
        with np.errstate(all="ignore"):
            self.function(addresses, [np.int64(v) for v in variables], 0, extent)


class PythonDevice(CompiledDevice):
    """Python itself, on host memory."""

    @property
    def compiler(self) -> str:
        return f"{platform.python_implementation()} {platform.python_version()}, NumPy {np.__version__}"

    def compile(self, source: str) -> Any:
        return compile(source, "<kernel>", "exec")

    def load(self, name: str, code: Any, scratch: int = 0) -> PythonProgram:
        return PythonProgram(name, code)

    def load_blocks(self, name: str, code: Any, launch: Launch) -> PythonProgram:
        """The text runs its own grid. Raises RuntimeError for more threads than a block has."""
        threads, most = prod(launch.threads), self.renderer.machine.block_threads
        if threads > most:
            raise RuntimeError(f"kernel {name}: a block of {self.name} has {most:,} threads at most, "
                               f"not {threads:,}")
        return PythonProgram(name, code)


MODELS: dict[str, Callable[[], Renderer]] = {
    "CUDA": cuda_renderer, "HOPPER": functools.partial(cuda_renderer, HOPPER, HOPPER_SHARED_BYTES),
    "AMD": hip_renderer, "GFX1100": functools.partial(hip_renderer, "gfx1100"),
    "METAL": metal_renderer}
"""What PYTHON:NAME has blocks, matrix units and copies of."""


def open_device(name: str) -> PythonDevice:
    """The interpreter, PYTHON:BLOCKS with plans of blocks of threads, PYTHON:CUDA and so on with those of a
    device. It is always there."""
    kind = name.partition(":")[2]
    model = MODELS[kind]() if kind in MODELS else None
    return PythonDevice(name, CPUAllocator(name), PythonRenderer(kind.startswith("BLOCKS"), model))
