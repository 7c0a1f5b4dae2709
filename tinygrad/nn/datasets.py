"""Public data sets as tensors, from files already there or downloaded once.

Each file is looked for in the folder that TINYGRAD_DATA names, then in the user's cache, then downloaded into
the cache; see `helpers.fetch`. Every file's SHA-256 is checked.
"""
from __future__ import annotations

import gzip
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tinygrad.downloads import fetch, find_file
from tinygrad.graph.sharding import even_spans
from tinygrad.helpers import prod
from tinygrad.nn.state import tar_extract
from tinygrad.tensor import Tensor

Split: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Rows: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST_SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_SHA256 = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_CIFAR_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"

TEN_THOUSAND_TRAIN = 9_000
"""of MNIST's 10,000 test digits, those that train where the 60,000 training digits cannot be had"""


def read_idx(path: Path) -> Array:
    """The array of a gzipped IDX file of bytes (the format of MNIST: big-endian sizes, then the items)."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is not gzip or is cut short: {error}") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is not an IDX file of bytes: it begins with {data[:4].hex()}")
    axes = data[3]
    shape = struct.unpack(f">{axes}I", data[4:4 + 4 * axes])
    items = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if len(items) != prod(shape):
        raise ValueError(f"{path} is cut short: {shape} takes {prod(shape)} bytes, it has {len(items)}")
    return items.reshape(shape)


def mnist(device: str | None = None, fashion: bool = False) -> Split:
    """(X_train, Y_train, X_test, Y_test): images uint8 (N, 1, 28, 28) and labels uint8 (N,).

    60,000 to train and 10,000 to test: handwritten digits, or with `fashion` Zalando's articles. Where only
    the 10,000 are given (in TINYGRAD_DATA), their first 9,000 train and the last 1,000 test, and one line on
    stderr says so. Raises RuntimeError where nothing is given and nothing can be downloaded.
    """
    prefix = "fashion-" if fashion else "mnist-"
    url, sums = (_FASHION_URL, _FASHION_SHA256) if fashion else (_MNIST_URL, _MNIST_SHA256)

    def load(name: str) -> Array:
        return read_idx(fetch(url + name, name=prefix + name, subdir="datasets", sha256=sums[name]))

    def at_hand(part: str) -> bool:
        names = [n for n in sums if n.startswith(part)]
        return all(find_file(prefix + n, subdir="datasets") is not None for n in names)

    def pair(part: str) -> tuple[Array, Array]:
        images, labels = (load(n) for n in sums if n.startswith(part))
        if len(images) != len(labels):
            raise ValueError(f"{prefix}{part} has {len(images)} images and {len(labels)} labels")
        return images.reshape(-1, 1, *images.shape[1:]), labels

    if at_hand("t10k") and not at_hand("train"):
        images, labels = pair("t10k")
        n = TEN_THOUSAND_TRAIN
        train, test = (images[:n], labels[:n]), (images[n:], labels[n:])
        print(f"{prefix}t10k has no training files beside it: its first {n} images train, "
              f"its last {len(images) - n} test", file=sys.stderr)
    else:
        train, test = pair("train"), pair("t10k")
    return _tensors(device, *train, *test)


def batches(count: int, size: int, seed: int = 0, epoch: int = 0, part: int = 0, parts: int = 1
            ) -> Iterator[Rows]:
    """The row numbers of each batch of an epoch: all `count` rows in an order that seed and epoch say, `size`
    at a time; what does not fill a batch is left out.

    `part` of `parts`: of each batch those rows that `shard(devices, 0)` gives the device of that number, so
    that each of several processes reads its own and none twice. Raises ValueError for a size that is not from
    `parts` to `count`, and for no part.

    >>> [rows.tolist() for rows in nn.datasets.batches(6, 2, seed=1)]
    [[4, 0], [2, 1], [5, 3]]
    >>> [rows.tolist() for rows in nn.datasets.batches(6, 2, seed=1, part=1, parts=2)]
    [[0], [1], [3]]
    """
    if not 1 <= parts <= size <= count or not 0 <= part < parts:
        raise ValueError(f"batches of {size} of {count} rows cannot be read as part {part} of {parts}")
    order = np.random.default_rng((seed, epoch)).permutation(count)
    start, end = even_spans(size, parts)[part]
    for first in range(0, count - size + 1, size):
        yield order[first + start:first + end]


def cifar(device: str | None = None) -> Split:
    """(X_train, Y_train, X_test, Y_test) of CIFAR-10: images uint8 (N, 3, 32, 32) and labels uint8 (N,)."""
    path = fetch(_CIFAR_URL, name="cifar-10-binary.tar.gz", subdir="datasets", sha256=_CIFAR_SHA256)
    files = tar_extract(path)

    def load(*names: str) -> tuple[Array, Array]:
        parts = [files[f"cifar-10-batches-bin/{n}"].numpy() for n in names]
        records = np.concatenate(parts).reshape(-1, 3073)  # a label, then 32x32 red, green and blue
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]

    return _tensors(device, *load(*(f"data_batch_{i}.bin" for i in range(1, 6))), *load("test_batch.bin"))


def _tensors(device: str | None, *arrays: Array) -> Split:
    x_train, y_train, x_test, y_test = (Tensor(a, device=device) for a in arrays)
    return x_train, y_train, x_test, y_test
