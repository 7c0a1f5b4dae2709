"""Files of the network: downloaded once into the user's cache folder, checked, and unpacked if asked for.

In: the address of a file. Out: the path of it on this machine, which may also be in a folder that the user
names in TINYGRAD_DATA.
"""
from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tinygrad.helpers import cache_dir

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def find_file(name: str, subdir: str = "downloads", kept_as: str | None = None) -> Path | None:
    """The file `name` in the folder that TINYGRAD_DATA names, or in the cache under `subdir` (as `kept_as`);
    else None."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a file name")
    given = os.getenv("TINYGRAD_DATA")
    paths = [Path(given) / name] if given else []
    paths.append(cache_dir() / subdir / (kept_as or name))
    return next((path for path in paths if path.is_file()), None)


def fetch(url: str, name: str | Path | None = None, subdir: str | None = None, gunzip: bool = False,
          allow_caching: bool = True, headers: Mapping[str, str] = NO_HEADERS, sha256: str | None = None,
          extract: bool = False) -> Path:
    """The path of the file at `url`: in TINYGRAD_DATA or in the cache, else downloaded into the cache.

    `name` is its file name, or the whole path that it shall have; without one, files of the same name from
    two addresses stay apart. `subdir` is a folder of the cache. `headers` are sent along, and
    `allow_caching=False` downloads anew. With `gunzip` the path is that of the file unpacked, with `extract`
    that of a folder with what the archive (tar or zip) has. A `url` that begins with "/" or "." is a path
    already.

    A file whose SHA-256 is not `sha256` is refused with a RuntimeError, as is one that cannot be had or
    unpacked; nothing half-written stays.
    """
    path = Path(url) if url.startswith(("/", ".")) else \
        _downloaded(url, name, subdir or "downloads", allow_caching, headers, sha256)
    if gunzip:
        path = _unpacked(path, "gunzip", _gunzip)
    return _unpacked(path, "extract", _extract) if extract else path


def _downloaded(url: str, name: str | Path | None, subdir: str, allow_caching: bool,
                headers: Mapping[str, str], sha256: str | None) -> Path:
    """The path of a file, which is downloaded if it is not there."""
    from urllib.parse import unquote, urlparse

    file_name = unquote(Path(urlparse(url).path).name) if name is None else str(name)
    if Path(file_name).name != file_name:
        target = Path(file_name)
        found = target if target.is_file() else None
    else:
        address = _digest(url, *map(str, sorted(headers.items())))
        kept_as = file_name if name is not None else f"{address}-{file_name}"
        target = cache_dir() / subdir / kept_as
        found = find_file(file_name, subdir, kept_as)
    if found is None or not allow_caching:
        _download(url, target, sha256, headers)
        return target
    if sha256 is not None and (held := _sha256_of(found)) != sha256:
        raise RuntimeError(f"{found} is not the file it should be: its SHA-256 is {held}, expected {sha256}; "
                           f"remove it to have {url} downloaded again")
    return found


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _unpacked(path: Path, what: str, unpack: Callable[[Path, Path], None]) -> Path:
    """What is in a packed file, beside it or else in the cache, unpacked anew where it is older. Raises
    RuntimeError for a file that is not packed in a known way."""
    import tarfile
    import zipfile
    import zlib

    folder = cache_dir()
    target = path.with_name(f"{path.name}.{what}") if folder in path.parents else \
        folder / "unpacked" / f"{_digest(str(path.resolve()))}-{path.name}.{what}"
    if target.exists() and target.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as partial:
        try:
            unpack(path, Path(partial) / what)
        except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
            raise RuntimeError(f"cannot unpack {path}: {error}") from error
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(Path(partial) / what, target)
    os.utime(target)
    return target


def _gunzip(path: Path, target: Path) -> None:
    import gzip

    with gzip.open(path, "rb") as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)


def _extract(path: Path, target: Path) -> None:
    import tarfile
    import zipfile

    target.mkdir()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(target)
    else:
        with tarfile.open(path) as tar:
            tar.extractall(target, filter="data")


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(url: str, path: Path, sha256: str | None, headers: Mapping[str, str]) -> None:
    import http.client
    import urllib.request

    from tinygrad.progress import tqdm

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        request = urllib.request.Request(url, headers={"User-Agent": "tinygrad", **headers})
        with urllib.request.urlopen(request, timeout=10) as response, partial.open("wb") as file:
            size = int(response.headers.get("Content-Length", 0))
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.name, leave=False) as bar:
                while chunk := response.read(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
                got = bar.n
        if size and got != size:
            raise RuntimeError(f"downloading {url} stopped after {got} of {size} bytes")
        if sha256 is not None and (held := _sha256_of(partial)) != sha256:
            raise RuntimeError(f"{url} is not the file it should be: its SHA-256 is {held}, "
                               f"expected {sha256}")
        partial.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError(f"cannot download {url} to {path}: {error}; put the file into a folder and name "
                           "that in TINYGRAD_DATA") from error
    finally:
        partial.unlink(missing_ok=True)
