"""Devices in a grid with named axes, along each of which values may be cut in a way of its own.

In: names of devices and a size for each axis. Out: what `Tensor.shard` takes for devices: the mesh (all of
them, in a row), or the mesh along some of its axes. Next: `placement.py`, whose
`Sharding`s (`graph/sharding.py`) have its lines.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, overload

from tinygrad.helpers import prod


class Mesh(Sequence[str]):
    """Devices in a grid with named axes, the last the fastest: devices next to each other differ in it.

    `mesh["model"]`: the same devices, along one axis (or several: `mesh["data", "model"]`). What is cut over
    these is cut among the devices that differ in their place along them, and lies on the others as it did:

    >>> mesh = nn.parallel.Mesh(("CPU", "CPU:1", "CPU:2", "CPU:3"), data=2, model=2)
    >>> x = Tensor.ones(8, 6).shard(mesh["data"], axis=0).shard(mesh["model"], axis=1)
    >>> [shard.shape for shard in x.contiguous().realize().uop.base.shards]
    [(4, 3), (4, 3), (4, 3), (4, 3)]

    Raises TypeError where the devices are one name, ValueError where they are not as many as there are places
    or one comes twice, and for axes of less than one place; KeyError for an axis that is not there, or comes
    twice.
    """

    def __init__(self, devices: Sequence[str], **sizes: int) -> None:
        if isinstance(devices, str):
            raise TypeError(f"a mesh takes the names of devices, in a sequence, got {devices!r}")
        twice = next((name for name in devices if list(devices).count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"a mesh takes devices each once, got {twice!r} twice")
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        if any(not hasattr(size, "__index__") or size < 1 for size in sizes.values()):
            raise ValueError(f"the axes of a mesh have whole numbers of places, at least 1, got {given}")
        if prod(sizes.values()) != len(devices) or not sizes:
            raise ValueError(f"a mesh of {len(devices)} devices has axes whose sizes multiply to "
                             f"{len(devices)}, got {given or 'none'}")
        self.devices = tuple(devices)
        self.sizes = sizes
        self.along = tuple(sizes)

    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> Mesh: ...
    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[str]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, slice)):
            return self.devices[key]
        found = Mesh(self.devices, **self.sizes)
        found.along = (key,) if isinstance(key, str) else tuple(key)
        self._check(*found.along)
        if not found.along or len(set(found.along)) < len(found.along):
            raise KeyError(f"a mesh along some of its axes takes their names, each once, got {key!r}")
        return found

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        along = "" if self.along == tuple(self.sizes) else f"[{', '.join(map(repr, self.along))}]"
        return f"<Mesh {self.devices} {sizes}>{along}"

    @property
    def lines(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the devices that differ in their place along these axes, in its order; one line for
        each place along the others."""
        found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for number, place in self._places():
            at = tuple(place[name] for name in self.along)
            rest = tuple(place[name] for name in self.sizes if name not in self.along)
            found.setdefault(rest, []).append((at, number))
        return tuple(tuple(number for _, number in sorted(line)) for line in found.values())

    def split(self, axis: str) -> tuple[Mesh, ...]:
        """The meshes of the other axes, one for each place along this one: the stages of a pipeline.

        >>> mesh = nn.parallel.Mesh(("CPU", "CPU:1", "CPU:2", "CPU:3"), pipe=2, data=2)
        >>> mesh.split("pipe")
        (<Mesh ('CPU', 'CPU:1') data=2>, <Mesh ('CPU:2', 'CPU:3') data=2>)
        """
        self._check(axis)
        rest = {name: size for name, size in self.sizes.items() if name != axis} or {axis: 1}
        return tuple(Mesh([self.devices[i] for i, place in self._places() if place[axis] == at], **rest)
                     for at in range(self.sizes[axis]))

    def _places(self) -> Iterator[tuple[int, dict[str, int]]]:
        """For each device, by its number, where it is along each axis."""
        for number, place in enumerate(product(*map(range, self.sizes.values()))):
            yield number, dict(zip(self.sizes, place, strict=True))

    def _check(self, *axes: str) -> None:
        for name in axes:
            if name not in self.sizes:
                raise KeyError(f"this mesh has the axes {', '.join(self.sizes)}, not {name!r}")
