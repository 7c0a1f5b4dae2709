"""Checkpoints of tensors on several devices: a folder with a safetensors file for each device, and an index.

In: tensors by name, and a folder. Out: the folder, in which each device has written its parts (over ranks:
each process those of its own device), and from which any number of devices loads. A save writes beside the
one before; what makes it the checkpoint is one step, the index taking the place of the old one. So a save
that was interrupted leaves the one before whole.

`index.json` has, by name, each tensor's dtype, shape and parts: which file has it from which item to which
along each axis.
"""
from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tinygrad.device import Device
from tinygrad.files import written_whole
from tinygrad.graph.leaf_tensors import storage_view
from tinygrad.graph.sharding import Layout, Span
from tinygrad.graph.uop import UOp
from tinygrad.helpers import prod
from tinygrad.nn.state import PathLike, safe_load, safe_save
from tinygrad.runtime.rank import World
from tinygrad.runtime.rank_exchange import name_of
from tinygrad.tensor import Tensor

Box: TypeAlias = tuple[Span, ...]
"""The items between two along each axis."""
Shape: TypeAlias = tuple[int, ...]
INDEX = "index.json"
FORMAT = "tensors in parts, 1"


def save(tensors: Mapping[str, Tensor], folder: PathLike, metadata: dict[str, Any] | None = None) -> None:
    """Write a checkpoint into a folder, which is made where there is none, in the place of one that is there.

    Tensors that are cut are written part by part, each by its device; those that are whole on several devices
    once. `metadata`: what JSON knows, kept with them (the step, a seed). Over ranks every process calls this
    with its own tensors of the same names, of which the first writes what each has (on the CPU); it returns
    when all is written. Raises OSError where a file cannot be written, ValueError where ranks give different
    tensors: the checkpoint before is whole then.

    >>> import tempfile
    >>> weight = Tensor([[1.0, 2.0], [3.0, 4.0]]).shard(("CPU", "CPU:1"), axis=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nn.checkpoints.save({"weight": weight}, folder, {"step": 3})
    ...     tensors, metadata = nn.checkpoints.load(folder)
    ...     tensors["weight"].tolist(), metadata
    ([[1.0, 2.0], [3.0, 4.0]], {'step': 3})
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    placed = {name: _Placed(tensors[name]) for name in sorted(tensors)}  # one order in all processes
    devices = list(dict.fromkeys(d for p in placed.values() for d in p.devices)) or ["CPU"]
    bytes_of = dict.fromkeys(devices, 0)
    writers = {name: p.writers(bytes_of) for name, p in placed.items()}
    number = _agreed_number(place, {name: (p.said, writers[name]) for name, p in placed.items()})
    files = {d: f"{number}-{i + 1:05}-of-{len(devices):05}.safetensors" for i, d in enumerate(devices)}
    written: dict[str, dict[str, Tensor]] = {d: {} for d in devices}
    entries = {name: {**placed[name].said, "parts": [[files[d], box] for d, box in writers[name]]}
               for name in tensors}
    for name, p in placed.items():
        for device, _ in writers[name]:
            if _writes(device):
                written[device][name] = p.part(device)
    for device in devices:
        if _writes(device):
            safe_save(written[device], place / files[device])
    _wait_for_all()
    if _is_first():
        index = {"format": FORMAT, "save": number, "metadata": metadata or {}, "tensors": entries}
        with written_whole(place / INDEX) as file:
            file.write(json.dumps(index).encode())
        _remove_others(place, set(files.values()))
    _wait_for_all()


def load(folder: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(the tensors of a checkpoint by name, its metadata).

    Tensors are whole, on the CPU, and read when they are used: `nn.state.load_state_dict(model, tensors)`
    brings them to where the model's are, on however many devices. Raises FileNotFoundError for a folder
    without a checkpoint, ValueError for one that is not whole.
    """
    place = Path(folder)
    index = _index_of(place)
    if index is None:
        raise FileNotFoundError(f"{place} has no checkpoint: there is no {INDEX} in it")
    files: dict[str, dict[str, Tensor]] = {}
    found = {}
    for name, (dtype, shape, said) in _entries(index["tensors"], place).items():
        parts: list[tuple[Box, Tensor]] = []
        for file, box in said:
            if file not in files:
                if Path(file).name != file or not (place / file).is_file():
                    raise ValueError(f"the checkpoint in {place} is not whole: {file} is missing")
                files[file] = safe_load(place / file)
            if name not in files[file]:
                raise ValueError(f"the checkpoint in {place} is not whole: {file} has no {name!r}")
            parts.append((box, files[file][name]))
        try:
            whole = _joined(parts, shape)
        except ValueError as error:
            raise ValueError(f"the checkpoint in {place} is not whole: {name!r} has {error}") from error
        if whole.dtype.name != dtype:
            raise ValueError(f"the checkpoint in {place} is not whole: {name!r} of {dtype} has parts "
                             f"of {whole.dtype.name}")
        found[name] = whole
    return found, index["metadata"]


def _entries(tensors: Any, place: Path) -> dict[str, tuple[str, Shape, list[tuple[str, Box]]]]:
    """What an index says of each tensor: (dtype, shape, the parts as files and their items)."""
    try:
        return {name: (entry["dtype"], tuple(entry["shape"]), [
            (str(file), tuple((int(start), int(end)) for start, end in box)) for file, box in entry["parts"]])
            for name, entry in tensors.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{place / INDEX} is damaged: {type(error).__name__} {error}") from error


class _Placed:
    """A tensor and where its items are."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor = tensor.detach()
        self.devices = tensor.device if isinstance(tensor.device, tuple) else (tensor.device,)
        self.layout = Layout(tensor.shape)
        self.shards: tuple[UOp, ...] = ()
        if isinstance(tensor.device, tuple):
            memory = _memory_of(tensor, lambda memory: memory.shape == tensor.shape)
            self.layout, self.shards = memory.arg.layout, memory.shards
        elif Device[tensor.device].exchanges:
            self.shards = (_memory_of(tensor, lambda memory: memory.shape == (prod(tensor.shape),)),)
        elif World.current is not None:
            tensor.realize()  # what it is computed from may be on ranks: all take part

    @property
    def said(self) -> dict[str, Any]:
        """What the index says of the whole of it."""
        return {"dtype": self.tensor.dtype.name, "shape": list(self.layout.shape)}

    def writers(self, bytes_of: dict[str, int]) -> list[tuple[str, Box]]:
        """Which device writes which items; of those that have the same ones the one that has the least to
        write so far, to which they are added."""
        holders: dict[Box, list[str]] = {}
        for number, device in enumerate(self.devices):
            box = self.layout.box(number)
            if all(start < end for start, end in box) or 0 in self.layout.shape:
                holders.setdefault(box, []).append(device)
        found = [(min(devices, key=bytes_of.__getitem__), box) for box, devices in holders.items()]
        for device, box in found:
            bytes_of[device] += prod([end - start for start, end in box]) * self.tensor.dtype.itemsize
        return found

    def part(self, device: str) -> Tensor:
        """The items that a device has, on the CPU."""
        if not self.shards:
            return self.tensor
        shard = self.shards[self.devices.index(device)]
        buffer = shard.viewed.buffer
        if buffer is None:
            raise RuntimeError(f"a tensor of shape {self.layout.shape} has no memory on {device}")
        shape = [end - start for start, end in self.layout.box(self.devices.index(device))]
        return Tensor(buffer.copied().reshape(shape), dtype=self.tensor.dtype, device="CPU")


def _memory_of(tensor: Tensor, is_whole: Callable[[UOp], bool]) -> UOp:
    """The memory of a tensor, or of a copy of it, with its items in order and no others."""
    view = storage_view(tensor.realize().uop)
    if view is None or not is_whole(view.base) or view.contiguous() is not view:
        view = storage_view(tensor.clone().realize().uop)
    assert view is not None
    return view.base


def _joined(parts: Sequence[tuple[Box, Tensor]], shape: Shape, axis: int = 0) -> Tensor:
    """A tensor of its parts, each of the items between two along each axis. Raises ValueError where these are
    not all items, each once."""
    if axis == len(shape):
        (box, only), *others = parts
        if others or only.shape != tuple(end - start for start, end in box):
            raise ValueError(f"other parts than the index says, of items {box}")
        return only
    by_span: dict[Span, list[tuple[Box, Tensor]]] = {}
    for box, tensor in parts:
        if len(box) != len(shape):
            raise ValueError(f"a part of items {box}, in the shape {shape}")
        by_span.setdefault(box[axis], []).append((box, tensor))
    spans = sorted(by_span)
    if [0, *(end for _, end in spans)] != [*(start for start, _ in spans), shape[axis]]:
        raise ValueError(f"parts with the items {spans} of {shape[axis]} along axis {axis}")
    first, *rest = [_joined(by_span[span], shape, axis + 1) for span in spans]
    return first.cat(*rest, dim=axis) if rest else first


def _index_of(place: Path) -> dict[str, Any] | None:
    path = place / INDEX
    if not path.is_file():
        return None
    try:
        index = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not the index of a checkpoint: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"{path} is not the index of a checkpoint that {__name__} wrote")
    missing = [key for key in ("save", "metadata", "tensors") if key not in index]
    if missing:
        raise ValueError(f"{path} is damaged: it has no {', '.join(missing)}")
    if not isinstance(index["save"], int):
        raise ValueError(f"{path} is damaged: the number of the save is {index['save']!r}")
    return index


def _agreed_number(place: Path, written: Mapping[str, Any]) -> int:
    """Of the next save into a folder, where `written` says who writes what. Over ranks every process calls
    this: raises ValueError in each where some of them would write other things than the first."""
    number = _number_of(place) + 1
    if World.current is None:
        return number
    own = np.array([number, zlib.crc32(json.dumps(written, sort_keys=True).encode())], np.int64)
    ranks = [name_of(rank) for rank in range(World.current.size)]
    said = Tensor(np.tile(own, (len(ranks), 1))).shard(ranks, 0).numpy()  # a row from each
    others = [str(rank) for rank, digest in enumerate(said[:, 1]) if digest != said[0, 1]]
    if others:
        raise ValueError("ranks save different tensors: those of rank 0 have other names, dtypes, shapes or "
                         f"layouts than those of rank {', '.join(others)}")
    return int(said[:, 0].max())


def _number_of(place: Path) -> int:
    """Of the last save into a folder."""
    index = _index_of(place)
    found: int = 0 if index is None else index["save"]
    return found


def _remove_others(place: Path, kept: set[str]) -> None:
    """Remove what saves before have left."""
    for path in place.glob("*-of-*.safetensors*"):
        if path.name not in kept:
            os.remove(path)


def _is_first() -> bool:
    """Whether this process is the first of a program's, or the only one."""
    return World.current is None or World.current.rank == 0


def _writes(device: str) -> bool:
    """Whether this process writes what is on a device: on its own, and the first what all have."""
    return Device[device].runs if Device[device].exchanges else _is_first()


def _wait_for_all() -> None:
    """Return when every process is here."""
    if World.current is not None:
        ranks = [name_of(rank) for rank in range(World.current.size)]
        Tensor.ones(len(ranks)).contiguous().shard(ranks, 0).sum().item()
