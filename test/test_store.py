"""Compiled code on disk: found again, never trusted when damaged, bounded, and shared by processes."""
import ast
import ctypes
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from tinygrad import Context
from tinygrad.runtime import llvm
from tinygrad.runtime.cpu_pool import CPUProgram, pool
from tinygrad.store import DiskStore, key_of

POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


@pytest.fixture
def cache(tmp_path):
    return DiskStore(tmp_path / "objects")


def test_what_was_put_is_found(cache):
    cache.put("a" * 64, b"code")
    assert cache.get("a" * 64) == b"code" and DiskStore(cache.folder).get("a" * 64) == b"code"
    assert cache.get("b" * 64) is None


def test_code_of_no_bytes_is_kept_too(cache):
    cache.put("a" * 64, b"")
    assert cache.get("a" * 64) == b""


def test_keys_tell_their_parts_apart():
    assert key_of("a", "bc") == key_of("a", "bc")
    assert len({key_of("a", "bc"), key_of("ab", "c"), key_of("abc"), key_of("abc", ""), key_of()}) == 5


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:20], lambda b: b + b"x",
                                    lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:]])
def test_a_damaged_file_is_removed_and_not_used(cache, damage):
    cache.put("a" * 64, b"some machine code")
    path = cache.folder / ("a" * 64)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("a" * 64) is None and not path.exists()
    cache.put("a" * 64, b"again")
    assert cache.get("a" * 64) == b"again"


def test_the_folder_stays_within_its_limit_and_keeps_what_was_used_last(tmp_path):
    cache = DiskStore(tmp_path / "objects", limit=1000)
    for i in range(30):
        cache.put(f"{i:064d}", bytes(68))
        os.utime(cache.folder / f"{i:064d}", (i, i))
        if i:
            cache.get(f"{0:064d}")
    sizes = [f.stat().st_size for f in cache.folder.iterdir()]
    assert 0 < sum(sizes) <= 1000
    assert cache.get(f"{0:064d}") is not None and cache.get(f"{29:064d}") is not None
    assert cache.get(f"{1:064d}") is None


@POSIX
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_not_used(cache, mode):
    cache.put("a" * 64, b"code")
    cache.folder.chmod(mode)
    assert cache.get("a" * 64) is None
    cache.put("b" * 64, b"code")
    assert not (cache.folder / ("b" * 64)).exists()


@POSIX
def test_the_folder_is_made_for_its_owner_only(cache):
    cache.put("a" * 64, b"code")
    assert cache.folder.stat().st_mode & 0o077 == 0


def test_a_disk_that_cannot_be_written_costs_nothing_but_the_cache(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cache = DiskStore(tmp_path / "file" / "objects")
    cache.put("a" * 64, b"code")
    assert cache.get("a" * 64) is None


def test_a_failed_write_leaves_no_file(cache, monkeypatch):
    cache.put("a" * 64, b"code")

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.put("b" * 64, b"code")
    assert [f.name for f in cache.folder.iterdir()] == ["a" * 64]


def _put_and_get(folder, number):
    cache = DiskStore(folder, limit=20_000)
    for i in range(150):
        key = f"{i % 40:064d}"
        cache.put(key, f"code of {key}".encode() * 10)
        found = cache.get(key)
        if found is not None and found != f"code of {key}".encode() * 10:
            os._exit(1)
    os._exit(0)


def test_processes_at_once_never_read_half_a_file(tmp_path):
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    processes = [context.Process(target=_put_and_get, args=(tmp_path / "objects", n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert not [f for f in (tmp_path / "objects").iterdir() if f.name.startswith("partial-")]


# --- kernels ------------------------------------------------------------------------------------------------

SOURCE = """define void @k(ptr %buffers, ptr %variables, i64 %begin, i64 %end, ptr %scratch) {{
  %p = load ptr, ptr %buffers
  store i64 {number}, ptr %p
  ret void
}}
"""


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The cache of kernels, empty, and the sources that LLVM compiled since."""
    pool()  # which has code of its own
    fresh, compiled = DiskStore(tmp_path / "objects"), []
    build = llvm.object_code
    monkeypatch.setattr(llvm, "store_of", lambda kind: fresh)
    monkeypatch.setattr(llvm, "object_code",
                        lambda source, is_quick: compiled.append(source) or build(source, is_quick))
    return fresh, compiled


def run(source: str) -> int:
    target = (ctypes.c_int64 * 1)()
    CPUProgram("k", llvm.compile_ir(source), 0)([ctypes.addressof(target)], [], 1)
    return target[0]


def test_a_kernel_is_compiled_once_and_then_loaded(kept):
    assert [run(SOURCE.format(number=n)) for n in (7, 7, 8)] == [7, 7, 8]
    assert kept[1] == [SOURCE.format(number=7), SOURCE.format(number=8)]


def test_a_damaged_kernel_is_compiled_again(kept):
    cache, compiled = kept
    assert run(SOURCE.format(number=7)) == 7
    (file,) = cache.folder.iterdir()
    file.write_bytes(b"nonsense" * 20)
    assert run(SOURCE.format(number=7)) == 7 and len(compiled) == 2
    assert run(SOURCE.format(number=7)) == 7 and len(compiled) == 2


def test_code_for_other_features_of_the_cpu_is_other_code(kept, monkeypatch):
    target = llvm.target_key()
    assert run(SOURCE.format(number=7)) == 7
    monkeypatch.setattr(llvm, "target_key", lambda: (*target[:3], "-avx512f", *target[4:]))
    assert run(SOURCE.format(number=7)) == 7 and len(kept[1]) == 2


def test_cachelevel_0_neither_reads_nor_writes(kept):
    cache, compiled = kept
    assert run(SOURCE.format(number=7)) == 7
    with Context(CACHELEVEL=0):
        assert run(SOURCE.format(number=7)) == 7 and run(SOURCE.format(number=9)) == 9
    assert len(compiled) == 3 and len(list(cache.folder.iterdir())) == 1


def test_another_process_loads_what_this_one_compiled(tmp_path):
    program = """
import sys
import textwrap
from tinygrad import Tensor
from tinygrad.runtime import llvm
if sys.argv[1] == "load":
    def refuse(source, is_quick): raise SystemExit("compiled " + source)
    llvm.object_code = refuse
x = Tensor([[1.0, 2.0], [3.0, 4.0]])
print((x @ x).exp2().tolist())
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CACHELEVEL": "1"}
    outputs = [subprocess.run([sys.executable, "-c", program, mode], env=environment, capture_output=True,
                              text=True, timeout=120, check=True).stdout for mode in ("compile", "load")]
    for output in outputs:
        np.testing.assert_allclose(ast.literal_eval(output), np.exp2([[7, 10], [15, 22]]), rtol=1e-6)


def test_reading_keeps_a_file_young(cache):
    cache.put("a" * 64, b"code")
    os.utime(cache.folder / ("a" * 64), (1, 1))
    cache.get("a" * 64)
    assert (cache.folder / ("a" * 64)).stat().st_mtime > time.time() - 3600


@pytest.mark.skipif(sys.platform != "linux", reason="says where memory is to be, as Linux does")
def test_code_is_loaded_where_only_small_gaps_are_left_nearby() -> None:
    """The first section of an object file finds a gap of a page, and the next ones only places 8 GB away."""
    result = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import ctypes
        import numpy as np
        from tinygrad import Tensor
        from tinygrad.helpers import Context
        system = ctypes.CDLL(None)
        system.mmap.restype = ctypes.c_void_p
        system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        private_without_memory = 0x22 | 0x4000
        def reserved(size):
            return system.mmap(None, size, 0, private_without_memory, -1, 0)
        x = np.linspace(0, 1, 5, dtype=np.float32)
        with Context(CACHELEVEL=0):
            Tensor(x).exp().numpy()
            size, page = 8 << 30, 4096
            gap = reserved(size) + size - page
            system.munmap(gap, page)
            while reserved(page) != gap:
                pass
            system.munmap(gap, page)
            found = (Tensor(x).exp() * 1.7).sin().numpy()
        np.testing.assert_allclose(found, np.sin(np.exp(x) * 1.7), rtol=1e-5)
    """)], capture_output=True, text=True, timeout=60, check=False)
    assert not result.returncode, result.stderr
