"""What is kept on disk, so that a process need not decide, search or compile again what one before it did:
schedules, kernels as source, plans that a search found, machine code.

A `DiskStore` is a folder, with a file for each thing, named by a hash of everything that it depends on
(`key_of`). A file holds the SHA-256 of its content, then the content, and appears under its name in one step:
a reader finds all of it or nothing, whatever other processes do. A file that is not as it was written is
removed, and made again. Files of code are run: a folder that somebody else could write to is not used.

What is used while `recorded` goes into a dictionary, and is found while that is `offered`, with no disk
involved: so a captured function takes its kernels to another process (`jit/saved.py`).
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tinygrad.helpers import CACHELEVEL, cache_dir

MAX_BYTES = 1 << 28
"""Bytes that the files of a folder may take; those used longest ago go first."""
KEPT = 0.75
"""The share of the limit that is left after files were removed."""


def key_of(*parts: str) -> str:
    """The name of what depends on `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


_records: list[dict[str, bytes]] = []
_offers: list[Mapping[str, bytes]] = []


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, bytes]]:
    """What stores give within the block, by key."""
    found: dict[str, bytes] = {}
    _records.append(found)
    try:
        yield found
    finally:
        _records.remove(found)


@contextlib.contextmanager
def offered(contents: Mapping[str, bytes]) -> Iterator[None]:
    """Within the block, stores find `contents` by their keys before they look on disk."""
    _offers.append(contents)
    try:
        yield
    finally:
        _offers.remove(contents)


@functools.cache
def store_of(kind: str, limit: int = MAX_BYTES) -> DiskStore:
    """The user's store of one kind of things, in the folder of that name in the cache folder."""
    return DiskStore(cache_dir() / kind, limit)


class DiskStore:
    """Bytes by key, in the files of one folder. What goes wrong with the disk costs making them again, and
    nothing else."""

    def __init__(self, folder: Path, limit: int = MAX_BYTES) -> None:
        self.folder = folder
        self.limit = limit
        self.size: int | None = None
        """bytes in the folder, as far as this process knows; None before the first look"""
        self.lock = threading.Lock()

    def get_or_make(self, key: str, make: Callable[[], bytes], on_disk: bool | None = None) -> bytes:
        """The content of `key`: offered, kept, or else made and kept. The disk is used if `on_disk`; unless
        given, as CACHELEVEL says."""
        uses_disk = bool(CACHELEVEL) if on_disk is None else on_disk
        content = next((o[key] for o in _offers if key in o), None)
        if content is None and uses_disk:
            content = self.get(key)
        if content is None:
            content = make()
            if uses_disk:
                self.put(key, content)
        for record in _records:
            record[key] = content
        return content

    def get(self, key: str) -> bytes | None:
        """What is kept as `key`; None where there is nothing, or nothing that is whole."""
        path = self.folder / key
        if not self.is_safe():
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        checksum, content = data[:32], data[32:]
        if hashlib.sha256(content).digest() != checksum:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep `content` as `key`."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.is_safe():
                return
            handle, partial = tempfile.mkstemp(dir=self.folder, prefix="partial-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                os.replace(partial, self.folder / key)
            except BaseException:
                os.unlink(partial)
                raise
            self.account(len(content) + 32)

    def is_safe(self) -> bool:
        """Whether the folder is there and nobody but this user can write to it."""
        try:
            found = self.folder.stat()
        except OSError:
            return False
        if not hasattr(os, "getuid"):
            return True
        return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def account(self, added: int) -> None:
        """Count `added` bytes, and remove files where the folder has outgrown its limit."""
        with self.lock:
            if self.size is not None:
                self.size += added
            if self.size is None or self.size > self.limit:
                self.size = self.shrink()

    def shrink(self) -> int:
        """The bytes in the folder, after removing the files used longest ago if those are too many."""
        files = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(OSError):
                found = entry.stat()
                files.append((found.st_mtime, found.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return total
        for _, size, path in sorted(files):
            if total <= KEPT * self.limit:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
        return total
