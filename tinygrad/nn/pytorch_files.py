"""What `torch.save` wrote, as tensors: the zip archives of PyTorch 1.6 and later, and the pickles before.

Both are pickles of the objects around the tensors, in which a tensor is a call of a function with the number
of a storage, and the storages' bytes. Nothing of the file is run: names in the pickle stand for functions of
this module (`MAKERS`), for the names of types, or are refused. What they stand for is made anew for each
file, so that a pickle that changes it changes nothing else.
"""
from __future__ import annotations

import dataclasses
import io
import pickle
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.tensor import Tensor

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

STORAGES: dict[str, DType] = {
    "DoubleStorage": dtypes.float64,
    "FloatStorage": dtypes.float32,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "LongStorage": dtypes.int64,
    "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16,
    "CharStorage": dtypes.int8,
    "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool,
    "UntypedStorage": dtypes.uint8,
}
TYPES: dict[str, DType] = {
    **{dtype.name: dtype for dtype in (*STORAGES.values(), dtypes.uint64, dtypes.uint32, dtypes.uint16)},
    "float8_e4m3fn": dtypes.fp8e4m3,
    "float8_e5m2": dtypes.fp8e5m2,
}
OTHER_TYPES = ("ComplexFloatStorage", "ComplexDoubleStorage", "QInt8Storage", "QUInt8Storage",
               "QInt32Storage", "complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz")
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""NumPy's types of single numbers."""
LEGACY_MAGIC = 0x1950a86a20f9469cfc6c
"""The first pickle of a file from before 1.6."""
LEGACY_PROTOCOL = 1001


class PyTorchFileError(ValueError):
    """A file that is no PyTorch file, asks for more than tensors and plain values, or is damaged."""


# --- tensors --------------------------------------------------------------------------------------


@frozen
class PickledStorage:
    """The memory that tensors of a file are views of."""

    name: str
    dtype: DType
    data: Bytes | None
    """None while the file is read for what it asks for"""


def is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor | None:
    """A strided view of a storage, checked against its size."""
    if not isinstance(storage, PickledStorage) or not is_size(offset) or len(shape) != len(strides) \
            or not all(is_size(n) for n in (*shape, *strides)):
        raise ValueError(f"a tensor is a storage, an offset, a shape and strides, "
                         f"got {offset!r}, {shape!r}, {strides!r}")
    if storage.data is None:
        return None
    width, kind = storage.dtype.itemsize, storage.dtype.numpy
    items = storage.data.view(f"u{width}")  # NumPy knows no strides of 8-bit floats
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides))
    if 0 not in shape and last >= len(items):
        raise ValueError(f"a tensor of shape {tuple(shape)} and strides {tuple(strides)} at {offset} "
                         f"reaches item {last} of storage {storage.name}, which has {len(items)}")
    if 0 in shape:
        return Tensor(np.empty(shape, kind), dtype=storage.dtype)
    view = np.lib.stride_tricks.as_strided(items[offset:], shape, [s * width for s in strides])
    return Tensor(np.asarray(view, order="C").view(kind), dtype=storage.dtype)


def rebuild_typed(storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any,
                  kind: Any, *_: Any) -> Tensor | None:
    """A view of a storage of bytes as another type."""
    if not isinstance(storage, PickledStorage) or kind not in TYPES:
        raise ValueError(f"a typed tensor is a storage of bytes and the name of a type, got {kind!r}")
    return rebuild_tensor(dataclasses.replace(storage, dtype=TYPES[kind]), offset, shape, strides)


def first(data: Any, *_: Any) -> Any:
    """A parameter is its tensor: what else PyTorch keeps of it are hooks and attributes."""
    return data


def rebuild_subclass(function: Any, kind: Any, arguments: Any, *_: Any) -> Any:
    """A tensor with attributes, or a buffer: the tensor."""
    if not isinstance(function, Maker):
        raise ValueError(f"a tensor of a class of its own is made by a function, got {function!r}")
    return function(*arguments)


@dataclasses.dataclass
class NumberType:
    """A type of NumPy's numbers, by its name and byte order: `f8`."""

    name: str

    def __setstate__(self, facts: Any) -> None:
        if not isinstance(facts, tuple) or facts[1:2] not in (("<",), ("|",)):
            raise ValueError(f"a NumPy number is little-endian and of a plain type, got {facts!r}")


def number_type(name: Any, *_: Any) -> NumberType:
    if name not in NUMBERS:
        raise ValueError(f"a NumPy number is of a type of {', '.join(NUMBERS)}, got {name!r}")
    return NumberType(name)


def number(kind: Any, data: Any) -> np.generic:
    """A NumPy scalar from its bytes."""
    if not isinstance(kind, NumberType) or not isinstance(data, bytes) \
            or len(data) != np.dtype(kind.name).itemsize:
        raise ValueError(f"a NumPy number is a type and its bytes, got {kind!r} and {data!r}")
    found: np.generic = np.frombuffer(data, np.dtype(kind.name).newbyteorder("<"))[0]
    return found


def dict_with_default(kind: Any = None, *_: Any) -> defaultdict[Any, Any]:
    """A dict that makes what is missing by a function that pickles may call."""
    if kind is not None and not isinstance(kind, Maker):
        raise ValueError(f"a defaultdict makes its values by a function, got {kind!r}")
    return defaultdict(None if kind is None else kind.function)


def encoded(text: Any, encoding: Any) -> bytes:
    """Bytes, as protocol 2 writes them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise ValueError(f"bytes are text in latin1, got {encoding!r}")
    return text.encode("latin1")


def device_name(kind: Any, index: Any = None) -> str:
    return str(kind) if index is None else f"{kind}:{index}"


MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): Counter,
    ("collections", "defaultdict"): dict_with_default,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "int"): int,
    ("builtins", "float"): float,
    ("builtins", "set"): set,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("_codecs", "encode"): encoded,
    ("numpy", "dtype"): number_type,
    ("numpy._core.multiarray", "scalar"): number,
    ("numpy.core.multiarray", "scalar"): number,
    ("torch", "Size"): tuple,
    ("torch", "device"): device_name,
    ("torch._utils", "_rebuild_tensor"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): rebuild_typed,
    ("torch._utils", "_rebuild_parameter"): first,
    ("torch._utils", "_rebuild_parameter_with_state"): first,
    ("torch._tensor", "_rebuild_from_type_v2"): rebuild_subclass,
}
TENSOR_CLASSES = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer"))


class Maker:
    """A function that a pickle may call: it has this object and not the function, which it could change."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Unpickler(pickle.Unpickler):
    """Unpickles what PyTorch's weights are made of, and refuses every other name."""

    def __init__(self, file: Any, name: str, storage: Callable[[tuple[Any, ...]], PickledStorage]) -> None:
        super().__init__(file)
        self._name = name
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in MAKERS:
            return Maker(MAKERS[module, name])
        if (module, name) in TENSOR_CLASSES or (module == "torch" and (name in STORAGES or name in TYPES)) \
                or (module, name) == ("torch.storage", "UntypedStorage"):
            return name
        if module == "torch" and name in OTHER_TYPES:
            raise PyTorchFileError(f"{self._name} has tensors of type torch.{name}, which no tensor here "
                                   "has; convert them before they are saved")
        raise PyTorchFileError(f"{self._name} asks for {module}.{name}; torch_load makes tensors, dicts and "
                               "plain values only. Save model.state_dict() instead of the model")

    def persistent_load(self, pid: Any) -> PickledStorage:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or pid[1] not in STORAGES \
                or not isinstance(pid[2], str) or not is_size(pid[4]):
            raise PyTorchFileError(f"{self._name} refers to something that is not a storage: {pid!r}")
        return self._storage(pid)


def unpickled(file: Any, name: str, part: str, storage: Callable[[tuple[Any, ...]], PickledStorage]) -> Any:
    """The next pickle of a file. Raises PyTorchFileError for everything that is wrong with it."""
    try:
        return Unpickler(file, name, storage).load()
    except PyTorchFileError:
        raise
    except Exception as error:  # whatever a stranger's bytes make pickle do
        raise PyTorchFileError(f"{name}: its {part} is damaged: {error}") from error


# --- archives -------------------------------------------------------------------------------------


def load_archive(files: Mapping[str, Bytes], name: str) -> Any:
    """What the files of an archive hold."""
    pickles = [k for k in files if k == "data.pkl" or k.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise PyTorchFileError(f"{name} is not a PyTorch file: that is a zip archive with one data.pkl, "
                               f"this has {len(pickles)}")
    folder = pickles[0].removesuffix("data.pkl")
    order = files.get(folder + "byteorder")
    if order is not None and order.tobytes() != b"little":
        raise PyTorchFileError(f"{name} holds {order.tobytes().decode(errors='replace')}-endian numbers; "
                               "save it on a little-endian machine")

    def storage(pid: tuple[Any, ...]) -> PickledStorage:
        dtype, key, size = STORAGES[pid[1]], pid[2], pid[4] * STORAGES[pid[1]].itemsize
        path = f"{folder}data/{key}"
        data = files.get(path)
        if data is None or len(data) < size:
            held = "no bytes" if data is None else f"{len(data)} bytes"
            raise PyTorchFileError(f"{name} is damaged: storage {path} of {pid[4]} {dtype.name} has {held}")
        return PickledStorage(path, dtype, data[:size])

    return unpickled(io.BytesIO(files[pickles[0]].tobytes()), name, "data.pkl", storage)


# --- pickles from before 1.6 ----------------------------------------------------------------------


def load_legacy(file: io.RawIOBase, data: Bytes, name: str) -> Any:
    """What a file holds that is a sequence of pickles (a magic number, a version, facts of the machine, the
    objects, the keys of the storages), and after them, for each key, a count and the bytes.

    The objects come first: they are read once for the storages that they name, and again when those are
    there.
    """
    def no_storage(pid: tuple[Any, ...]) -> PickledStorage:
        raise PyTorchFileError(f"{name} is not a PyTorch file: it has a storage where there is none")

    magic, version, system = (unpickled(file, name, part, no_storage)
                              for part in ("first pickle", "version", "facts of the machine"))
    if magic != LEGACY_MAGIC or version != LEGACY_PROTOCOL:
        raise PyTorchFileError(f"{name} is not a PyTorch file: it is neither a zip archive nor does it begin "
                               f"with the numbers of the format before 1.6, but with {magic!r}, {version!r}")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise PyTorchFileError(f"{name} holds big-endian numbers; save it on a little-endian machine")
    named: dict[str, tuple[DType, int]] = {}

    def note(pid: tuple[Any, ...]) -> PickledStorage:
        """What the file says of a storage; the same wherever it says it."""
        found = STORAGES[pid[1]], pid[4]
        if named.setdefault(pid[2], found) != found:
            raise PyTorchFileError(f"{name} is damaged: storage {pid[2]} is of {named[pid[2]][1]} "
                                   f"{named[pid[2]][0].name} and of {found[1]} {found[0].name}")
        return PickledStorage(pid[2], found[0], None)

    begin = file.tell()
    unpickled(file, name, "pickle", note)
    keys = unpickled(file, name, "list of storages", no_storage)
    if not isinstance(keys, list) or set(keys) != named.keys() or len(keys) != len(named):
        raise PyTorchFileError(f"{name} is damaged: it lists storages {keys!r} and uses {list(named)}")
    memory = legacy_storages(data, file.tell(), [(key, *named[key]) for key in keys], name)

    def storage(pid: tuple[Any, ...]) -> PickledStorage:
        """A storage, or the part of it that a view shows."""
        content = part_of_storage(pid, memory[pid[2]], name)
        return PickledStorage(pid[2], STORAGES[pid[1]], content)

    file.seek(begin)
    return unpickled(file, name, "pickle", storage)


def legacy_storages(data: Bytes, at: int, listed: Sequence[tuple[str, DType, int]],
                    name: str) -> dict[str, Bytes]:
    """The bytes of storages that lie behind each other from byte `at` of a file on, each behind its count of
    items, by name."""
    found: dict[str, Bytes] = {}
    for key, dtype, count in listed:
        end = at + 8 + count * dtype.itemsize
        if end > len(data) or struct.unpack("<q", data[at:at + 8].tobytes())[0] != count:
            raise PyTorchFileError(f"{name} is cut short or damaged: storage {key} of {count} {dtype.name} "
                                   f"lies at bytes {at + 8} to {end} of {len(data)}")
        found[key] = data[at + 8:end]
        at = end
    return found


def part_of_storage(pid: tuple[Any, ...], content: Bytes, name: str) -> Bytes:
    """What a pickle's words for a storage ask for: all of it, or the part that a view shows."""
    part, width = pid[5] if len(pid) > 5 else None, STORAGES[pid[1]].itemsize
    if part is None:
        return content
    if not isinstance(part, tuple) or len(part) != 3 or not all(map(is_size, part[1:])) \
            or part[1] + part[2] > pid[4]:
        raise PyTorchFileError(f"{name} is damaged: a view of storage {pid[2]} of {pid[4]} items is {part!r}")
    return content[part[1] * width:(part[1] + part[2]) * width]
