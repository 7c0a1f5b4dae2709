"""Fetching files and reading data sets without the network: from a local server, and files made here."""
from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import struct
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad.downloads import fetch, find_file
from tinygrad.helpers import cache_dir
from tinygrad.nn import datasets

REAL = os.getenv("TINYGRAD_DATA")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and an empty TINYGRAD_DATA for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TINYGRAD_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """(address, folder served, paths asked for)."""
    folder, asked = tmp_path / "served", list[str]()
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)

        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.endswith("cut"):
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"short")
            else:
                super().do_GET()

        def log_message(self, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/", folder, asked
        running.shutdown()


def test_fetch_downloads_once_and_checks(server: tuple[str, Path, list[str]]) -> None:
    url, folder, asked = server
    (folder / "file.bin").write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    path = fetch(url + "file.bin", sha256=digest)
    assert path.parent == cache_dir() / "downloads" and path.name.endswith("-file.bin")
    assert path.read_bytes() == b"content"
    assert fetch(url + "file.bin", sha256=digest) == path and len(asked) == 1
    assert fetch(url + "file.bin", name="other", subdir="sub") == cache_dir() / "sub" / "other"
    with pytest.raises(RuntimeError, match=r"file\.bin is not the file it should be: its SHA-256 is"):
        fetch(url + "file.bin", sha256="0" * 64)


def test_fetch_takes_the_given_file_first(server: tuple[str, Path, list[str]], own_folders: Path) -> None:
    (own_folders / "data" / "file.bin").write_bytes(b"given")
    assert fetch(server[0] + "file.bin").read_bytes() == b"given" and server[2] == []


def test_files_of_one_name_from_two_addresses_stay_apart(server: tuple[str, Path, list[str]]) -> None:
    url, folder, asked = server
    for model in ("one", "two"):
        (folder / model).mkdir()
        (folder / model / "weights.bin").write_bytes(model.encode())
    paths = [fetch(f"{url}{model}/weights.bin") for model in ("one", "two", "one")]
    assert [path.read_bytes() for path in paths] == [b"one", b"two", b"one"] and len(asked) == 2


def test_a_file_is_downloaded_anew_where_it_may_not_be_kept(server: tuple[str, Path, list[str]]) -> None:
    url, folder, asked = server
    for content in (b"one", b"two"):
        (folder / "file.bin").write_bytes(content)
        assert fetch(url + "file.bin", allow_caching=False).read_bytes() == content
    assert len(asked) == 2 and fetch(url + "file.bin").read_bytes() == b"two"


def test_headers_are_sent_along(server: tuple[str, Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, folder, _ = server
    (folder / "file.bin").write_bytes(b"content")
    sent: list[dict[str, str]] = []
    request = urllib.request.Request
    monkeypatch.setattr(urllib.request, "Request",
                        lambda url, headers: (sent.append(headers), request(url, headers=headers))[1])
    with_headers = fetch(url + "file.bin", headers={"Authorization": "Bearer x"})
    assert sent[0]["Authorization"] == "Bearer x" and fetch(url + "file.bin") != with_headers


def test_packed_files_are_unpacked_once(server: tuple[str, Path, list[str]], own_folders: Path) -> None:
    url, folder, asked = server
    (folder / "text.gz").write_bytes(gzip.compress(b"hello"))
    unpacked = fetch(url + "text.gz", gunzip=True)
    assert unpacked.read_bytes() == b"hello" and fetch(url + "text.gz").read_bytes()[:2] == b"\x1f\x8b"
    inode = unpacked.stat().st_ino
    assert fetch(url + "text.gz", gunzip=True).stat().st_ino == inode and len(asked) == 1
    (folder / "text.gz").write_bytes(gzip.compress(b"changed"))
    assert fetch(url + "text.gz", gunzip=True, allow_caching=False).read_bytes() == b"changed"
    given = own_folders / "data" / "given.gz"
    given.write_bytes(gzip.compress(b"given"))
    assert fetch(url + "given.gz", gunzip=True).read_bytes() == b"given"
    assert list(given.parent.iterdir()) == [given]  # the user's folder is only read
    assert fetch(str(given)) == given and fetch(str(given), gunzip=True).read_bytes() == b"given"
    given.write_bytes(b"no gzip")
    with pytest.raises(RuntimeError, match=r"cannot unpack .*given\.gz: Not a gzipped file"):
        fetch(str(given), gunzip=True)


def test_archives_are_unpacked_into_folders(server: tuple[str, Path, list[str]]) -> None:
    url, folder, _ = server
    (folder / "file.txt").write_bytes(b"content")
    with tarfile.open(folder / "a.tar.gz", "w:gz") as tar:
        tar.add(folder / "file.txt", "inner/file.txt")
    with zipfile.ZipFile(folder / "b.zip", "w") as archive:
        archive.write(folder / "file.txt", "inner/file.txt")
    for name in ("a.tar.gz", "b.zip"):
        assert (fetch(url + name, extract=True) / "inner" / "file.txt").read_bytes() == b"content"
    with tarfile.open(folder / "evil.tar", "w") as tar:
        tar.add(folder / "file.txt", "../outside.txt")
    with pytest.raises(RuntimeError, match=r"cannot unpack .*evil\.tar"):
        fetch(url + "evil.tar", extract=True)
    with pytest.raises(RuntimeError, match="cannot unpack"):
        fetch(url + "file.txt", extract=True)
    assert not list((cache_dir() / "downloads").rglob("outside.txt"))


def test_failed_downloads_leave_nothing(server: tuple[str, Path, list[str]]) -> None:
    url, folder, _ = server
    (folder / "file.bin").write_bytes(b"content")
    with pytest.raises(RuntimeError, match="SHA-256 is .* expected 000"):
        fetch(url + "file.bin", sha256="0" * 64)
    with pytest.raises(RuntimeError, match=r"cannot download .*missing.* name that in TINYGRAD_DATA"):
        fetch(url + "missing")
    with pytest.raises(RuntimeError, match="stopped after 5 of 100 bytes|cannot download"):
        fetch(url + "cut")
    with pytest.raises(RuntimeError, match="cannot download"):
        fetch("http://127.0.0.1:9/file")
    assert list((cache_dir() / "downloads").iterdir()) == []
    with pytest.raises(ValueError, match="is not a file name"):
        find_file("../x")


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_read_idx_and_damaged_files(tmp_path: Path) -> None:
    path, array = tmp_path / "x.gz", np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(path, array)
    np.testing.assert_array_equal(datasets.read_idx(path), array)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"x\.gz is not gzip or is cut short"):
        datasets.read_idx(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(ValueError, match=r"\(2, 3, 4\) takes 24 bytes, it has 23"):
        datasets.read_idx(path)
    path.write_bytes(gzip.compress(b"\0\0\x0d\1" + bytes(8)))
    with pytest.raises(ValueError, match="not an IDX file of bytes"):
        datasets.read_idx(path)


@pytest.mark.parametrize("fashion", [False, True])
def test_mnist_of_all_files(own_folders: Path, monkeypatch: pytest.MonkeyPatch, fashion: bool) -> None:
    rng, expected = np.random.default_rng(0), []
    sums = {}
    for part, n in (("train", 6), ("t10k", 4)):
        for kind, shape in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
            name, array = f"{part}-{kind}-ubyte.gz", rng.integers(0, 10, shape).astype(np.uint8)
            path = own_folders / "data" / (("fashion-" if fashion else "mnist-") + name)
            write_idx(path, array)
            sums[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            expected.append(array.reshape(n, 1, 28, 28) if array.ndim == 3 else array)
    monkeypatch.setattr(datasets, "_FASHION_SHA256" if fashion else "_MNIST_SHA256", sums)
    for found, array in zip(datasets.mnist(fashion=fashion), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), array)


@pytest.mark.skipif(REAL is None, reason="TINYGRAD_DATA is not set")
def test_mnist_of_the_ten_thousand(monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TINYGRAD_DATA", str(REAL))
    if find_file("mnist-t10k-images-idx3-ubyte.gz") is None or find_file("mnist-train-images-idx3-ubyte.gz"):
        pytest.skip("needs the t10k files alone")
    x_train, y_train, x_test, y_test = (t.numpy() for t in datasets.mnist())
    assert x_train.shape == (9000, 1, 28, 28) and x_test.shape == (1000, 1, 28, 28)
    assert x_train.dtype == np.uint8 and y_test.dtype == np.uint8
    # MNIST's test set begins 7, 2, 1, 0, 4 and has this many of each digit
    assert y_train[:5].tolist() == [7, 2, 1, 0, 4]
    counts = np.bincount(np.concatenate([y_train, y_test])).tolist()
    assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert "its first 9000 images train, its last 1000 test" in capsys.readouterr().err


def test_mnist_without_any_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_MNIST_URL", "http://127.0.0.1:9/")
    with pytest.raises(RuntimeError, match="cannot download"):
        datasets.mnist()


def test_cifar(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    records = {name: rng.integers(0, 256, (2, 3073)).astype(np.uint8) for name in names}
    path = own_folders / "data" / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in records.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = content.nbytes
            archive.addfile(info, io.BytesIO(content.tobytes()))
    monkeypatch.setattr(datasets, "_CIFAR_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    x_train, y_train, _, y_test = (t.numpy() for t in datasets.cifar())
    assert x_train.shape == (10, 3, 32, 32) and y_test.tolist() == records["test_batch.bin"][:, 0].tolist()
    np.testing.assert_array_equal(x_train[3, 2, 5], records["data_batch_2.bin"][1, 1 + 2048 + 160:][:32])
    np.testing.assert_array_equal(y_train[6:8], records["data_batch_4.bin"][:, 0])


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_batches_of_an_epoch_are_read_by_parts_without_overlap(parts: int) -> None:
    whole = [list(datasets.batches(23, 5, seed=3, epoch=epoch)) for epoch in range(2)]
    assert all(len(batches) == 4 for batches in whole)
    for epoch, batches in enumerate(whole):
        rows = np.concatenate(batches)
        assert len(set(rows.tolist())) == 20 and rows.min() >= 0 and rows.max() < 23
        own = [list(datasets.batches(23, 5, 3, epoch, part, parts)) for part in range(parts)]
        for together, batch in zip(zip(*own, strict=True), batches, strict=True):
            np.testing.assert_array_equal(np.concatenate(together), batch)
    assert whole[0][0].tolist() != whole[1][0].tolist()
    with pytest.raises(ValueError, match="batches of 2 of 23 rows cannot be read as part 0 of 3"):
        next(datasets.batches(23, 2, parts=3))
