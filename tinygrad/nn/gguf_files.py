"""GGUF files: the metadata and weights of a language model, as llama.cpp and its tools keep them.

What comes in is the path of a file; what goes out are plain Python values and lazy tensors over `DISK`: no
weight is read before it is used. Files are data from strangers: every size, count and position is compared
with the bytes that are there before anything is made of it. The formats of blocks are in
`nn/block_formats.py`.
"""
from __future__ import annotations

import itertools
import math
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.files import written_whole
from tinygrad.frozen import frozen
from tinygrad.nn.block_formats import FORMATS, Packed, layout_of, quantized
from tinygrad.tensor import Tensor

PathLike: TypeAlias = str | os.PathLike[str]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_AXES = 4
MOST_NESTED = 4
"""Arrays in arrays; files in use have none."""
ALIGNMENT = 32
"""Bytes, unless general.alignment says otherwise."""
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8",
           12: "<f8"}
"""Codes of numbers in metadata, and what NumPy calls them."""
BOOL, STRING, ARRAY = 7, 8, 9
WINDOW = 1 << 20
"""Bytes of a file that strings are cut out of: items of a mapped file take twice as long as of bytes."""
PLAIN: dict[int, DType] = {0: dtypes.float32, 1: dtypes.float16, 24: dtypes.int8, 25: dtypes.int16,
                           26: dtypes.int32, 27: dtypes.int64, 28: dtypes.float64, 30: dtypes.bfloat16}
"""Codes of tensors that are in no blocks."""
BLOCKS = {layout.code: name for name, layout in FORMATS.items()}


@frozen
class Entry:
    """Where a tensor lies in its file: `start` and `end` in bytes, `format` of its blocks, else its dtype."""

    name: str
    shape: tuple[int, ...]
    format: str | None
    dtype: DType
    start: int
    end: int


class GGUFReader:
    """A position in the bytes of a header, and what is read there. Raises ValueError past the end."""

    def __init__(self, data: mmap.mmap | bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.at = 0

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.name} is no GGUF file that can be read: {what}")

    def skip(self, size: int, what: str) -> int:
        """Go past `size` bytes; where they begin."""
        start = self.at
        if size > len(self.data) - start:
            raise self.fail(f"it is cut short: {what} would take {size} bytes from byte {start} on, "
                            f"the file has {len(self.data)}")
        self.at += size
        return start

    def integer(self, size: int, what: str) -> int:
        start = self.skip(size, what)
        return int.from_bytes(self.data[start:start + size], "little")

    def count(self, least: int, what: str) -> int:
        """A number of things that take at least `least` bytes each: no more than fit into the file."""
        found = self.integer(8, f"the number of {what}")
        if found * least > len(self.data) - self.at:
            raise self.fail(f"it is cut short or lies: {found} {what} from byte {self.at} on do not fit into "
                            f"its {len(self.data)} bytes")
        return found

    def string(self, what: str) -> str:
        size = self.count(1, f"bytes of {what}")
        start = self.skip(size, what)
        try:
            return self.data[start:start + size].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8 ({error})") from error

    def strings(self, count: int, what: str) -> list[str]:
        """So many strings: a tokenizer has 100,000. One that cannot be read is said by `string`."""
        found: list[str] = []
        size_at = struct.Struct("<Q").unpack_from
        while len(found) < count:
            window, at = self.data[self.at:self.at + WINDOW], 0
            while len(found) < count and at + 8 <= len(window):
                end = at + 8 + size_at(window, at)[0]
                if end > len(window):
                    break
                try:
                    found.append(window[at + 8:end].decode())
                except UnicodeDecodeError:
                    break
                at = end
            self.at += at
            if not at:
                found.append(self.string(what))
        return found

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """The value of a type of metadata."""
        if kind in NUMBERS:
            return self.numbers(kind, 1, what)[0]
        if kind == BOOL:
            return bool(self.integer(1, what))
        if kind == STRING:
            return self.string(what)
        if kind != ARRAY:
            raise self.fail(f"{what} has type {kind}, which is not known")
        if depth == MOST_NESTED:
            raise self.fail(f"{what} is arrays in arrays, more than {MOST_NESTED} deep")
        item = self.integer(4, f"the type of the items of {what}")
        least = np.dtype(NUMBERS[item]).itemsize if item in NUMBERS else {BOOL: 1, STRING: 8}.get(item, 12)
        count = self.count(least, f"items of {what}")
        if item in NUMBERS:
            return self.numbers(item, count, what)
        if item == STRING:
            return self.strings(count, what)
        return [self.value(item, what, depth + 1) for _ in range(count)]

    def numbers(self, kind: int, count: int, what: str) -> list[Any]:
        dtype = np.dtype(NUMBERS[kind])
        start = self.skip(count * dtype.itemsize, what)
        return list(np.frombuffer(self.data, dtype, count, start).tolist())


def read_header(data: mmap.mmap | bytes, name: str) -> tuple[dict[str, Any], list[Entry]]:
    """The metadata of a file's bytes, and where its tensors lie, all of it checked."""
    reader = GGUFReader(data, name)
    if data[:4] != MAGIC:
        raise reader.fail(f"it begins with {bytes(data[:4])!r}, not with {MAGIC!r}")
    reader.skip(4, "the magic")
    version = reader.integer(4, "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise reader.fail(f"it is big-endian (version {swapped})" if swapped in VERSIONS else
                          f"it has version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are known")
    tensors = reader.count(24, "tensors")
    pairs = reader.count(13, "entries of metadata")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.string("a key")
        if key in metadata:
            raise reader.fail(f"the key {key!r} comes twice")
        metadata[key] = reader.value(reader.integer(4, f"the type of {key!r}"), repr(key))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not _is_alignment(alignment):
        raise reader.fail(f"its alignment is {alignment!r}, which is no power of two")
    described = [_description(reader) for _ in range(tensors)]
    begin = -(-reader.at // alignment) * alignment
    entries = [_entry(reader, begin, alignment, *each) for each in described]
    _check_apart(reader, entries)
    return metadata, entries


def _is_alignment(value: Any) -> bool:
    return type(value) is int and value > 0 and not value & (value - 1)


def _description(reader: GGUFReader) -> tuple[str, tuple[int, ...], int, int]:
    """(name, sizes from the last axis on, code of the type, offset) of a tensor."""
    key = reader.string("a tensor's name")
    axes = reader.integer(4, f"the number of axes of {key!r}")
    if axes > MOST_AXES:
        raise reader.fail(f"tensor {key!r} has {axes} axes, at most {MOST_AXES} are known")
    sizes = tuple(reader.integer(8, f"a size of {key!r}") for _ in range(axes))
    return key, sizes, reader.integer(4, f"the type of {key!r}"), reader.integer(8, f"the offset of {key!r}")


def _entry(reader: GGUFReader, begin: int, alignment: int, key: str, sizes: tuple[int, ...], code: int,
           offset: int) -> Entry:
    """Where this tensor lies, and that it lies within the file."""
    items = math.prod(sizes)
    if code in PLAIN:
        format, dtype, size = None, PLAIN[code], items * PLAIN[code].itemsize
    elif code in BLOCKS:
        format, dtype = BLOCKS[code], dtypes.uint8
        layout = FORMATS[format]
        if not sizes or sizes[0] % layout.items:
            raise reader.fail(f"tensor {key!r} of {format} has rows of {sizes[0] if sizes else 1} items, "
                              f"which are no multiple of {layout.items}")
        size = items // layout.items * layout.size
    else:
        raise reader.fail(f"tensor {key!r} has type {code}, which is not known; known are "
                          f"{', '.join([d.name for d in PLAIN.values()] + list(FORMATS))}")
    start = begin + offset
    if offset % alignment:
        raise reader.fail(f"tensor {key!r} has offset {offset}, which is no multiple of {alignment}")
    if start + size > len(reader.data):
        raise reader.fail(f"it is cut short: tensor {key!r} of shape {sizes[::-1]} lies at bytes {start} to "
                          f"{start + size}, the file has {len(reader.data)}")
    return Entry(key, sizes[::-1], format, dtype, start, start + size)


def _check_apart(reader: GGUFReader, entries: Sequence[Entry]) -> None:
    """No name twice, no byte in two tensors."""
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise reader.fail(f"the tensor {entry.name!r} comes twice")
        seen.add(entry.name)
    overlap = first_overlap([(e.start, e.end, e.name) for e in entries if e.end > e.start])
    if overlap:
        raise reader.fail(overlap)


def first_overlap(places: Iterable[tuple[int, int, str]]) -> str:
    """Which two tensors (where each begins and ends, its name) share bytes of a file, as text."""
    for (_, end, one), (start, _, other) in itertools.pairwise(sorted(places)):
        if start < end:
            return f"tensors {one!r} and {other!r} overlap at byte {start}"
    return ""


def gguf_packed(path: PathLike) -> tuple[dict[str, Any], dict[str, Packed]]:
    """The metadata of a GGUF file, and its tensors as they are stored, over `DISK`.

    `packed.to(device)` moves what is stored, and `.value` is the weight, which stays lazy.
    """
    name = os.fspath(path)
    size = os.path.getsize(path)
    if size < len(MAGIC):
        raise ValueError(f"{name} is no GGUF file that can be read: it has {size} bytes")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        metadata, entries = read_header(data, name)
    whole: dict[DType, Tensor] = {}
    return metadata, {entry.name: _packed(name, size, entry, whole) for entry in entries}


def _packed(name: str, size: int, entry: Entry, whole: dict[DType, Tensor]) -> Packed:
    """A tensor over `DISK`: items of the file taken as ones of its dtype (`whole` has the file by dtype)."""
    width = entry.dtype.itemsize
    dtype = entry.dtype if entry.start % width == 0 else dtypes.uint8
    if dtype not in whole:
        whole[dtype] = Tensor.empty(size // dtype.itemsize, dtype=dtype, requires_grad=False,
                                    device=f"DISK:{os.path.abspath(name)}")
    stored = whole[dtype][entry.start // dtype.itemsize:entry.end // dtype.itemsize]
    return Packed(stored if dtype is entry.dtype else stored.bitcast(entry.dtype), entry.format, entry.shape)


def gguf_load(path: PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and tensors of a GGUF file: keys to plain values, names to lazy tensors over `DISK`.

    Nothing is read but the header. A tensor has its file's dtype where that is a plain one; one in blocks
    (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4) is float32, computed of its bytes
    where it is read. Sizes are in the order of NumPy, the last axis adjacent in memory.

    Raises ValueError, which says where and what, for a file that is cut short, lies about sizes or positions,
    or has a type that is not known.

    >>> from tinygrad.helpers import temp
    >>> path = temp("numbers.gguf")
    >>> nn.state.gguf_save({"w": Tensor.arange(64).float().reshape(2, 32)}, path, {"n": 3}, {"w": "Q8_0"})
    >>> metadata, tensors = nn.state.gguf_load(path)
    >>> metadata, tensors["w"].shape, tensors["w"].to("CPU")[0, :3].tolist()
    ({'n': 3}, (2, 32), [0.0, 0.9765625, 1.953125])
    """
    metadata, tensors = gguf_packed(path)
    return metadata, {key: packed.value for key, packed in tensors.items()}


# --- writing ----------------------------------------------------------------------------------------------

_CODES = {dtype: code for code, dtype in PLAIN.items()}
_NUMBER_CODES = {np.dtype(name): code for code, name in NUMBERS.items()}


def gguf_save(tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, Any] | None = None,
              formats: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata to a GGUF file (version 3).

    `formats`: Q8_0 or Q4_0 by the name of a tensor, whose rows are then multiples of 32 items; other tensors
    keep their dtype. Metadata are strings, bools, numbers and lists of one kind of them; a Python integer is
    written as uint32 or, where that does not hold it, int32, uint64 or int64, a float as float32 (float64 if
    it is too large), and a NumPy number as what it is. The file appears only when it is complete.
    """
    formats = dict(formats or {})
    unknown = [key for key in formats if key not in tensors]
    if unknown:
        raise KeyError(f"formats names tensors that are not there: {', '.join(unknown)}")
    metadata = dict(metadata or {})
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not _is_alignment(alignment):
        raise ValueError(f"general.alignment is a power of two, not {alignment!r}")
    header = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))]
    header += [_string(key) + _typed(key, value) for key, value in metadata.items()]
    position = 0
    for key, t in tensors.items():
        code, size = _code_and_size(key, t, formats.get(key))
        header.append(_string(key) + struct.pack(f"<I{t.ndim}QIQ", t.ndim, *t.shape[::-1], code, position))
        position += -(-size // alignment) * alignment
    with written_whole(path) as file:
        _write_padded(file, b"".join(header), alignment)
        for key, t in tensors.items():
            array = t.numpy()
            _write_padded(file, (quantized(array, formats[key]) if key in formats else array).tobytes(),
                          alignment)


def _write_padded(file: BinaryIO, data: bytes, alignment: int) -> None:
    file.write(data + b"\0" * (-len(data) % alignment))


def _code_and_size(key: str, t: Tensor, format: str | None) -> tuple[int, int]:
    """(the code of a tensor's type, its bytes)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"weights of a GGUF file are tensors, {key!r} is a {type(t).__name__}")
    if t.ndim > MOST_AXES:
        raise ValueError(f"a tensor of a GGUF file has at most {MOST_AXES} axes, {key!r} has shape {t.shape}")
    if format is None:
        if t.dtype not in _CODES:
            raise TypeError(f"GGUF has no type for {t.dtype.name}, the dtype of {key!r}")
        return _CODES[t.dtype], t.numel() * t.dtype.itemsize
    layout = layout_of(format)
    if not t.ndim or t.shape[-1] % layout.items:
        raise ValueError(f"rows of {format} are multiples of {layout.items} items, "
                         f"{key!r} has shape {t.shape}")
    return layout.code, t.numel() // layout.items * layout.size


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(key: str, value: Any) -> bytes:
    """A value of metadata after its type."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(x, str) for x in value):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    array = _as_numbers(key, value)
    code = BOOL if array.dtype == bool else _NUMBER_CODES[array.dtype]
    data = array.tobytes()
    if array.ndim == 0:
        return struct.pack("<I", code) + data
    return struct.pack("<IIQ", ARRAY, code, len(array)) + data


def _as_numbers(key: str, value: Any) -> np.ndarray[Any, Any]:
    """A number or a list of numbers, as the type in which it is written."""
    array = np.asarray(value)
    if array.ndim > 1 or (array.dtype != bool and array.dtype not in _NUMBER_CODES):
        raise TypeError(f"metadata of a GGUF file are strings, bools, numbers and lists of one kind of them; "
                        f"{key!r} is {value!r}")
    if isinstance(value, (np.ndarray, np.generic)) or array.dtype == bool:
        return array
    if array.dtype.kind == "f":
        large = np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)
        return array if large.any() else array.astype(np.float32)
    kinds = (np.uint32, np.int32, np.uint64, np.int64) if array.ndim == 0 else (np.int32, np.uint32, np.int64,
                                                                                 np.uint64)
    for kind in kinds:
        if array.size == 0 or (np.iinfo(kind).min <= array.min() and array.max() <= np.iinfo(kind).max):
            return array.astype(kind)
    raise AssertionError("NumPy's own integers have 64 bits")
