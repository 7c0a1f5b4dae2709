"""DISK: files as memory. `DISK:path` holds the bytes of one file and computes nothing.

Reading a part of a buffer reads that part of the file and nothing else. A buffer keeps the file that was
there when it was made: writing (`t.to("DISK:path")`) puts a new file in its place, complete or not at all.
What `schedule/copies.py` does makes slices, casts and sums of a file's tensor work, on the device that they
are moved to.
"""
from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence

from tinygrad.device import CompiledDevice
from tinygrad.device.allocator import Allocator, Owner
from tinygrad.device.queue import TimelinePoint
from tinygrad.files import written_whole


class File:
    """The bytes of a buffer: the first `size` of a file that is there, or will be once it is written."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.lock = threading.Lock()
        self.open_file = io.FileIO(path) if os.path.exists(path) else None

    def read(self, target: memoryview, offset: int) -> None:
        """Fill `target` from the byte `offset` on. Raises RuntimeError where the file is too short."""
        if self.open_file is None:
            raise FileNotFoundError(f"{self.path} is not there: nothing was written to it yet")
        got = 0
        with self.lock:
            self.open_file.seek(offset)
            while got < target.nbytes:
                count = self.open_file.readinto(target[got:])
                if not count:
                    raise RuntimeError(f"{self.path} ends after {offset + got} bytes; "
                                       f"{offset + target.nbytes} were to be read")
                got += count

    def write(self, source: memoryview) -> None:
        """Put a file with these bytes in the place of the one that is there."""
        with written_whole(self.path) as file:
            file.write(source)
        self.open_file = io.FileIO(self.path) if os.path.isfile(self.path) else None


class DiskAllocator(Allocator):
    """The file that the device is named after. Nothing of it is memory, so nothing is counted or cached."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.path = device.partition(":")[2]

    def allocate(self, owner: Owner, size: int, idle: bool = False) -> None:
        if not self.path:
            raise ValueError("DISK takes the path of a file: DISK:/tmp/weights.bin")
        owner._memory = File(self.path, size)

    def free(self, owner: Owner, size: int, points: Sequence[TimelinePoint] = ()) -> None:
        """The file is closed when nobody holds it, and stays where it is."""

    def copyin(self, memory: File, source: memoryview) -> None:
        memory.write(source)

    def copyout(self, target: memoryview, memory: File, offset: int = 0) -> None:
        memory.read(target, offset)


def open_device(name: str) -> CompiledDevice:
    """The file after the colon, which need not be there yet."""
    return CompiledDevice(name, DiskAllocator(name), None)
