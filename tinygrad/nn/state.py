"""Finding, saving and loading the tensors of a model.

Files are mapped, not read: a tensor of a loaded file is a view of the file's pages, read when it is first
used. Files are data from strangers: headers are checked against the file's size, PyTorch's pickles go through
an unpickler that knows only what weights need (`nn/pytorch_files.py`), archives are never written to disk.
"""
from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.files import written_whole
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.nn import pytorch_files
from tinygrad.nn.gguf_files import first_overlap
from tinygrad.nn.gguf_files import gguf_load as gguf_load
from tinygrad.nn.gguf_files import gguf_save as gguf_save
from tinygrad.nn.pytorch_files import is_size
from tinygrad.tensor import Tensor

PathLike: TypeAlias = str | os.PathLike[str]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


# --- the tensors of an object ---------------------------------------------------------------------


def get_state_dict(obj: Any, prefix: str = "", tensor_type: type = Tensor) -> dict[str, Any]:
    """The tensors that `obj` holds, by path: attributes and keys by name, list items by position.

    Goes through dicts, lists, tuples, dataclasses, named tuples and any object with attributes. A tensor held
    in two places has two names.

    >>> from tinygrad import nn
    >>> sorted(nn.state.get_state_dict([nn.Linear(2, 3)]))
    ['0.bias', '0.weight']
    """
    found: dict[str, Any] = {}
    _collect(obj, prefix.strip("."), tensor_type, found, [])
    return found


def _collect(obj: Any, path: str, tensor_type: type, found: dict[str, Any], parents: list[Any]) -> None:
    if isinstance(obj, tensor_type):
        found[path] = obj
        return
    if any(p is obj for p in parents):
        return  # a cycle: an object that holds its owner
    if getattr(type(obj), "has_no_parameters_yet", False):
        raise ValueError(f"{type(obj).__name__} has no parameters before its first call; call the model once")
    for name, item in _children(obj):
        _collect(item, f"{path}.{name}" if path else name, tensor_type, found, [*parents, obj])


def _children(obj: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(obj, dict):
        return [(str(k), v) for k, v in obj.items()]
    if hasattr(obj, "_asdict"):
        return list(obj._asdict().items())
    if isinstance(obj, (list, tuple)):
        return [(str(i), v) for i, v in enumerate(obj)]
    if isinstance(obj, type) or callable(getattr(obj, "__get__", None)):
        return []  # classes and functions
    if dataclasses.is_dataclass(obj):
        return [(f.name, getattr(obj, f.name)) for f in dataclasses.fields(obj)]
    return list(getattr(obj, "__dict__", {}).items())


def get_parameters(obj: Any) -> list[Tensor]:
    """The tensors of `get_state_dict(obj)`, without the names.

    >>> len(nn.state.get_parameters([nn.Linear(2, 3), nn.Linear(3, 1, bias=False)]))
    3
    """
    return list(get_state_dict(obj).values())


def load_state_dict(model: Any, state_dict: dict[str, Tensor], strict: bool = True, verbose: bool = True,
                    consume: bool = False, realize: bool = True) -> list[Tensor]:
    """Put the tensors of `state_dict` into the model's tensors of the same names; returns those.

    Each is cast to the model's dtype and moved to its device. `strict=False` leaves out names that only one
    side has. `consume` removes them from `state_dict` as they are used. `realize=False` leaves them lazy.
    Raises KeyError for missing and unknown names (strict), ValueError for shapes that differ, TypeError for
    what is no tensor; the model is unchanged then.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"a state is a dict of tensors by name, got a {type(state_dict).__name__}")
    own = get_state_dict(model)
    missing = [k for k in own if k not in state_dict]
    unknown = [k for k in state_dict if k not in own]
    if strict and (missing or unknown):
        raise KeyError(f"the state does not fit the model: missing {missing or 'nothing'}, "
                       f"unknown {unknown or 'nothing'}; strict=False ignores both")
    names = [k for k in own if k in state_dict]
    _check_tensors({k: state_dict[k] for k in names}, "a state")
    wrong = [f"{k}: the model has {own[k].shape}, the state {state_dict[k].shape}" for k in names
             if own[k].shape != state_dict[k].shape and not _both_single(own[k], state_dict[k])]
    if wrong:
        raise ValueError("shapes differ: " + "; ".join(wrong))
    from tinygrad.progress import tqdm  # slow to import

    loaded = []
    for name in tqdm(names, desc="loading", disable=not verbose, leave=False):
        target = own[name]
        value = state_dict.pop(name) if consume else state_dict[name]
        if storage_view(target.uop) is None:
            target.replace(target.empty_like())
        # into the model's own memory: captured functions know that, and the state stays the caller's
        target.assign(value.detach().reshape(target.shape).to(target.device).cast(target.dtype))
        if realize:
            target.realize()
        loaded.append(target)
    return loaded


def _check_tensors(tensors: Any, what: str) -> None:
    """Raise TypeError for what is no dict of tensors by names."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"{what} is a dict of tensors by name, got a {type(tensors).__name__}")
    for key, t in tensors.items():
        if not isinstance(key, str):
            raise TypeError(f"{what} has names that are text, got {key!r}")
        if not isinstance(t, Tensor):
            raise TypeError(f"{what} holds tensors alone, got {type(t).__name__} as {key!r}")


def _both_single(a: Tensor, b: Tensor) -> bool:
    """PyTorch's counters have shape (), ours (1,)."""
    return math.prod(a.shape) == math.prod(b.shape) == 1


# --- bytes ----------------------------------------------------------------------------------------


def _map_file(path: PathLike) -> Bytes:
    """The bytes of a file, mapped; writes to them stay in this process."""
    if os.path.getsize(path) == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="c")


def _bytes_of(source: PathLike | Tensor) -> tuple[Bytes, str]:
    """(bytes, name for errors) of a file or of a uint8 tensor."""
    if not isinstance(source, Tensor):
        return _map_file(source), os.fspath(source)
    if source.dtype is not dtypes.uint8 or source.ndim != 1:
        raise TypeError(f"the bytes of a file are a uint8 tensor of one axis, "
                        f"got {source.dtype.name} {source.shape}")
    return source.numpy(), "<tensor>"


def _as_tensor(data: Bytes, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """The tensor of these little-endian bytes, without a copy where they are aligned."""
    return Tensor(data.view(dtype.numpy).reshape(shape), dtype=dtype)


class TensorIO(io.RawIOBase):
    """A uint8 tensor of one axis as a readable binary file."""

    def __init__(self, t: Tensor) -> None:
        self._file = io.BytesIO(_bytes_of(t)[0].tobytes())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)


# --- safetensors ----------------------------------------------------------------------------------

_SAFE_TYPES: dict[str, DType] = {
    "BOOL": dtypes.bool,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "F8_E4M3": dtypes.fp8e4m3,
    "F8_E5M2": dtypes.fp8e5m2,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
_SAFE_NAMES = {dtype: name for name, dtype in _SAFE_TYPES.items()}
MAX_SAFE_HEADER = 100_000_000
"""bytes; the format's own limit"""


def _safe_header(data: Bytes, name: str) -> tuple[int, dict[str, Any]]:
    """(where the tensors' bytes begin, the header) of a safetensors file. Raises ValueError for anything
    else."""
    if len(data) < 8:
        raise ValueError(f"{name} is not a safetensors file: it has {len(data)} bytes, "
                         "the header's length takes 8")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > MAX_SAFE_HEADER:
        raise ValueError(f"{name} is not a safetensors file: its header would have {length} bytes")
    if 8 + length > len(data):
        raise ValueError(f"{name} is cut short: the header has {length} bytes, the file {len(data) - 8} "
                         "after the header's length")
    try:
        header = json.loads(data[8:8 + length].tobytes().decode(), object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not a safetensors file: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{name} is not a safetensors file: its header is a {type(header).__name__}, "
                         "not an object")
    return 8 + length, header


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _safe_entry(name: str, key: str, entry: Any, size: int) -> tuple[DType, tuple[int, ...], int, int]:
    """(dtype, shape, start, end) of one tensor, checked."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"{name}: tensor {key!r} needs dtype, shape and data_offsets, got {entry!r}")
    dtype = _SAFE_TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"{name}: tensor {key!r} has dtype {entry['dtype']!r}; "
                         f"known are {', '.join(_SAFE_TYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(is_size(n) for n in shape):
        raise ValueError(f"{name}: tensor {key!r} has shape {shape!r}, which is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_size(n) for n in offsets):
        raise ValueError(f"{name}: tensor {key!r} has data_offsets {offsets!r}, which are not two positions")
    start, end = offsets
    if not start <= end <= size:
        raise ValueError(f"{name} is cut short or its header is wrong: tensor {key!r} lies at bytes "
                         f"{start} to {end} of {size}")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: tensor {key!r} of {dtype.name} {tuple(shape)} takes "
                         f"{math.prod(shape) * dtype.itemsize} bytes, its data_offsets span {end - start}")
    return dtype, tuple(shape), start, end


def safe_load_metadata(t: PathLike | Tensor) -> tuple[Tensor, int, dict[str, Any]]:
    """(the file's bytes, where the tensors' bytes begin, the header) of a safetensors file.

    The header gives each tensor's dtype, shape and data_offsets, and under "__metadata__" the strings that
    were saved with them.
    """
    data, name = _bytes_of(t)
    start, header = _safe_header(data, name)
    return Tensor(data), start, header


def safe_load(fn: PathLike | Tensor) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name, each read from disk when it is first used.

    Raises ValueError, naming the file and what is wrong, for a file that is cut short or not safetensors.
    """
    data, name = _bytes_of(fn)
    begin, header = _safe_header(data, name)
    payload = data[begin:]
    entries = {k: _safe_entry(name, k, v, len(payload)) for k, v in header.items() if k != "__metadata__"}
    overlap = first_overlap([(start, end, key) for key, (_, _, start, end) in entries.items()])
    if overlap:
        raise ValueError(f"{name}: {overlap}")
    return {key: _as_tensor(payload[start:end], dtype, shape)
            for key, (dtype, shape, start, end) in entries.items()}


def safe_save(tensors: dict[str, Tensor], fn: PathLike, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, wide types first, each aligned to its items.

    `metadata`: strings kept in the header. The file appears only when it is complete, so tensors may come
    from the file they replace; a device or a pipe is written into.
    """
    _check_tensors(tensors, "a safetensors file")
    if metadata is not None and not all(isinstance(x, str) for pair in metadata.items() for x in pair):
        raise TypeError("safetensors metadata are strings by strings")
    if "__metadata__" in tensors:
        raise ValueError("'__metadata__' cannot name a tensor in a safetensors file")
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    position = 0
    for key, t in ordered:
        if t.dtype not in _SAFE_NAMES:
            raise TypeError(f"safetensors has no type for {t.dtype.name}, the dtype of {key!r}")
        size = math.prod(t.shape) * t.dtype.itemsize
        header[key] = {"dtype": _SAFE_NAMES[t.dtype], "shape": list(t.shape),
                       "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(fn) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, t in ordered:
            file.write(np.ascontiguousarray(t.numpy()).tobytes())


# --- archives -------------------------------------------------------------------------------------


def tar_extract(t: PathLike | Tensor) -> dict[str, Tensor]:
    """The files of a tar archive (plain or compressed), as uint8 tensors by name."""
    data, name = _bytes_of(t)
    files: dict[str, Tensor] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data.tobytes()), mode="r:*") as archive:
            for member in archive:
                is_file = member.isfile() or member.islnk()  # a second name of one before is a file, too
                content = archive.extractfile(member) if is_file else None
                if content is not None:
                    files[member.name] = Tensor(np.frombuffer(content.read(), np.uint8))
    except Exception as error:  # whatever damaged bytes make tarfile and the decompressors do
        raise ValueError(f"{name} is not a tar archive or is cut short: {error}") from error
    return files


def zip_extract(t: PathLike | Tensor) -> dict[str, Tensor]:
    """The files of a zip archive, as uint8 tensors by name; those stored uncompressed are views of the
    archive."""
    data, name = _bytes_of(t)
    return {k: Tensor(v) for k, v in _zip_files(data, name).items()}


class _MappedFile(io.RawIOBase):
    """Mapped bytes as a file, so that zipfile reads its directory without reading the rest."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._data))[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        chunk = self._data[self._at:self._at + len(buffer)]
        buffer[:len(chunk)] = chunk.tobytes()
        self._at += len(chunk)
        return len(chunk)


_ZIP_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


def _zip_files(data: Bytes, name: str) -> dict[str, Bytes]:
    files: dict[str, Bytes] = {}
    try:
        with zipfile.ZipFile(_MappedFile(data)) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                    files[info.filename] = _stored_file(data, info)
                else:
                    files[info.filename] = np.frombuffer(archive.read(info), np.uint8)
    except Exception as error:  # whatever damaged bytes make zipfile and the decompressors do
        raise ValueError(f"{name} is not a zip archive or is cut short: {error}") from error
    return files


def _stored_file(data: Bytes, info: zipfile.ZipInfo) -> Bytes:
    """The bytes of an uncompressed file, as a view of the archive."""
    begin = info.header_offset
    fields = _ZIP_LOCAL_HEADER.unpack(data[begin:begin + _ZIP_LOCAL_HEADER.size].tobytes())
    begin += _ZIP_LOCAL_HEADER.size + fields[-2] + fields[-1]
    content = data[begin:begin + info.file_size]
    if fields[0] != b"PK\x03\x04" or len(content) != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} lies outside the archive")
    return content


# --- PyTorch's files ------------------------------------------------------------------------------


def torch_load(t: PathLike | Tensor) -> Any:
    """What `torch.save` wrote: tensors, in the dicts, lists, plain values and NumPy numbers around them.

    Both formats: zip archives, whose tensors are views of the file where they lie in order, and the pickles
    before PyTorch 1.6. Parameters come as tensors, `torch.Size` as a tuple, devices and dtypes as their
    names. Views of one storage are tensors of their own here.

    Nothing of the file is run: a pickle that asks for anything but tensors is refused with a ValueError, as
    is a file that is cut short or damaged.
    """
    data, name = _bytes_of(t)
    if data[:4].tobytes() == b"PK\x03\x04":
        return pytorch_files.load_archive(_zip_files(data, name), name)
    return pytorch_files.load_legacy(_MappedFile(data), data, name)
