"""Files that are written: whole, or not at all.

In: a path, and what a block of code writes. Out: a file there that has all of it, in the place of the one
that was there; a device or a pipe is written into.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of the one at `path` when the block has ended without an error.

    Until then the old one can be read. A link goes on pointing to where it does. What is there but is no
    regular file (a device, a pipe) is written into as the block goes on.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    partial = f"{target}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, target)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
