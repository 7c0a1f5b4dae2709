"""What scripts written for tinygrad import from `tinygrad.helpers`: small functions over sequences, numbers
and text, results kept on disk, downloads, progress bars, marks in a profile."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from tinygrad import observer
from tinygrad.downloads import fetch
from tinygrad.helpers import CACHELEVEL, cache_dir, collector_paused, prod
from tinygrad.progress import tqdm, trange
from tinygrad.store import DiskStore, key_of

__all__ = ["OSX", "WIN", "all_int", "ansilen", "ansistrip", "argfix", "disable_gc", "diskcache",
           "diskcache_clear", "diskcache_get", "diskcache_put", "fetch", "flat_mv", "from_mv",
           "fully_flatten", "get_child", "get_single_element", "merge_dicts", "next_power2", "pluralize",
           "polyN", "profile_marker", "round_down", "size_to_str", "time_to_str", "to_function_name",
           "to_mv", "to_tuple", "tqdm", "trange"]

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")
P = ParamSpec("P")

OSX, WIN = sys.platform == "darwin", sys.platform == "win32"
disable_gc = collector_paused

# --- sequences ----------------------------------------------------------------------------------------------


def argfix(*x: Any) -> tuple[Any, ...]:
    """Arguments that may have come as one sequence, as a tuple. Raises ValueError for a sequence among
    others.

    >>> argfix(2, 3), argfix([2, 3])
    ((2, 3), (2, 3))
    """
    if x and isinstance(x[0], (tuple, list)):
        if len(x) > 1:
            raise ValueError(f"arguments come one by one or as one sequence, got {x}")
        return tuple(x[0])
    return x


def all_int(items: Iterable[Any]) -> bool:
    """Whether each is an integer, and none a symbolic size."""
    return all(isinstance(x, int) for x in items)


def to_tuple(x: T | tuple[T, ...]) -> tuple[T, ...]:
    """A tuple as it is, anything else as a tuple of one."""
    return x if isinstance(x, tuple) else (x,)


def fully_flatten(nested: Any) -> list[Any]:
    """The items of nested lists and tuples, in order.

    >>> fully_flatten([1, [2, (3,)], "ab"])
    [1, 2, 3, 'ab']
    """
    if not isinstance(nested, (list, tuple)):
        return [nested]
    return [item for sub in nested for item in fully_flatten(sub)]


def get_single_element(x: Sequence[T]) -> T:
    """The only item. Raises ValueError where there is not exactly one."""
    if len(x) != 1:
        raise ValueError(f"there must be one item, got {len(x)}: {x}")
    return x[0]


def merge_dicts(dicts: Iterable[Mapping[K, T]]) -> dict[K, T]:
    """All of them as one. Raises ValueError for a key with two values."""
    merged: dict[K, T] = {}
    for one in dicts:
        for key, value in one.items():
            if merged.setdefault(key, value) != value:
                raise ValueError(f"{key!r} is {merged[key]!r} and {value!r}")
    return merged


def get_child(obj: Any, key: str) -> Any:
    """What a path of attributes, keys of dictionaries and positions in lists leads to, as names in a state
    dict are written.

    >>> get_child({"layers": [1, {"weight": 2}]}, "layers.1.weight")
    2
    """
    for part in key.split("."):
        if isinstance(obj, dict):
            obj = obj[part]
        elif isinstance(obj, (list, tuple)):
            obj = obj[int(part)]
        else:
            obj = getattr(obj, part)
    return obj


# --- numbers ------------------------------------------------------------------------------------------------


def round_down(num: int, multiple: int) -> int:
    """The last multiple of `multiple` that is not above `num`.

    >>> round_down(7, 4), round_down(-7, 4)
    (4, -8)
    """
    return num // multiple * multiple


def next_power2(x: int) -> int:
    """The lowest power of two that is not below `x`, at least 1."""
    return 1 if x <= 1 else 1 << (x - 1).bit_length()


def polyN(x: Any, p: Sequence[float]) -> Any:  # the public name
    """The polynomial with these coefficients, the highest power's first.

    >>> polyN(2.0, [1.0, 2.0, 3.0])
    11.0
    """
    return functools.reduce(lambda value, coefficient: value * x + coefficient, p, 0.0)


# --- text ---------------------------------------------------------------------------------------------------


def ansistrip(text: str) -> str:
    """The text without terminal colours."""
    return re.sub("\x1b\\[[0-9;]*[mK]", "", text)


def ansilen(text: str) -> int:
    """How wide the text is on a terminal."""
    return len(ansistrip(text))


def pluralize(word: str, count: int) -> str:
    """A number of things.

    >>> pluralize("kernel", 1), pluralize("kernel", 2)
    ('1 kernel', '2 kernels')
    """
    return f"{count} {word}" + "s" * (count != 1)


def size_to_str(size: int) -> str:
    """A number of bytes as people read it, in powers of 1024.

    >>> size_to_str(10), size_to_str(1234567)
    ('10 B', '1.18 MB')
    """
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.2f} {unit}"
    return f"{size} B"


def time_to_str(seconds: float, w: int = 8) -> str:
    """A time as people read it, the number right in `w` columns.

    >>> time_to_str(12.3, w=4), time_to_str(0.0123, w=6)
    ('12.30s ', ' 12.30ms')
    """
    unit, factor = ("s ", 1.0) if seconds >= 10 else ("ms", 1e3) if seconds >= 0.01 else ("us", 1e6)
    return f"{seconds * factor:{w}.2f}{unit}"


def to_function_name(text: str) -> str:
    """The text as a name that C takes: other characters than letters, digits and _ as their numbers.

    >>> to_function_name("conv 3x3")
    'conv203x3'
    """
    return "".join(c if re.match("[A-Za-z0-9_]", c) else f"{ord(c):02X}" for c in ansistrip(text))


# --- memory -------------------------------------------------------------------------------------------------


def to_mv(address: int, size: int) -> memoryview:
    """The bytes of this process from an address on."""
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")


def from_mv(view: memoryview, to_type: Any = ctypes.c_char) -> Any:
    """A `ctypes` array over writable memory."""
    flat = flat_mv(view)
    return (to_type * (flat.nbytes // ctypes.sizeof(to_type))).from_buffer(flat)


def flat_mv(view: memoryview) -> memoryview:
    """The bytes of a memoryview, along one axis."""
    return view if prod(view.shape or ()) == 0 else view.cast("B")


# --- results kept on disk -----------------------------------------------------------------------------------

RESULTS_LIMIT = 1 << 28
"""Bytes of results that are kept."""
COMPILED = ("schedules", "kernels", "plans", "objects", "cuda", "hip", "emulated", "results")
"""Folders of what can be computed again."""


def _results() -> DiskStore:
    return DiskStore(cache_dir() / "results", RESULTS_LIMIT)


def _result_key(table: str, key: Any) -> str:
    return key_of(table, pickle.dumps(key).hex())


def diskcache_get(table: str, key: Any) -> Any:
    """What `diskcache_put` kept, None where there is nothing (or CACHELEVEL=0)."""
    found = _results().get(_result_key(table, key)) if CACHELEVEL else None
    if found is None:
        return None
    with contextlib.suppress(pickle.UnpicklingError, EOFError, AttributeError, ImportError):
        return pickle.loads(found)
    return None


def diskcache_put(table: str, key: Any, val: T) -> T:
    """Keep a result that pickles in the user's cache folder, and return it."""
    if CACHELEVEL:
        _results().put(_result_key(table, key), pickle.dumps(val))
    return val


def diskcache(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose results (other than None) are kept on disk, for each kind of arguments, by its
    name."""
    @functools.wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        table, key = f"{function.__module__}.{function.__qualname__}", (args, sorted(kwargs.items()))
        found: R | None = diskcache_get(table, key)
        return diskcache_put(table, key, function(*args, **kwargs)) if found is None else found

    return kept


def diskcache_clear() -> None:
    """Empty the part of the user's cache folder that can be computed again: schedules, kernels, machine code,
    measured plans and what `diskcache` kept. Downloads stay."""
    for folder in COMPILED:
        shutil.rmtree(cache_dir() / folder, ignore_errors=True)


# --- profiles -----------------------------------------------------------------------------------------------


def profile_marker(name: str, color: str = "gray") -> None:
    """Mark this moment, with a colour as CSS knows it, in the timeline of VIZ=1 and in the traces of
    PROFILE=1 and `tinygrad.profile()`; where nobody records nothing happens."""
    if (watcher := observer.active) is not None:
        watcher.marked(name, color)
