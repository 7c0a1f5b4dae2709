"""State of models: names; files, against the safetensors library and hand-made PyTorch files; damage."""
from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import types
import zipfile
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tinygrad import Tensor, nn
from tinygrad.dtype import dtypes
from tinygrad.nn import pytorch_files, state

Array = np.ndarray[Any, Any]


# --- names ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Model:
    def __init__(self) -> None:
        self.first = nn.Linear(2, 3)
        self.rest = [nn.Linear(3, 3), {"last": nn.Linear(3, 1, bias=False)}]
        self.act = Tensor.relu
        self.owner = self
        self.kind = Model
        self.size = 4


def test_names_follow_attributes_keys_and_positions() -> None:
    assert list(state.get_state_dict(Model())) == [
        "first.weight", "first.bias", "rest.0.weight", "rest.0.bias", "rest.1.last.weight"]
    a, b = Tensor([1.0]), Tensor([2.0])
    named = namedtuple("named", "x y")
    for holder, names in (
        (Pair(a, (b,)), ["left", "right.0"]),
        (OrderedDict(k=a, m=[b]), ["k", "m.0"]),
        (named(a, b), ["x", "y"]),
        ([a, a], ["0", "1"]),
        (a, [""]),
    ):
        assert list(state.get_state_dict(holder)) == names
    assert list(state.get_state_dict([a], "net")) == ["net.0"]
    assert [id(t) for t in state.get_parameters([a, b, 3])] == [id(a), id(b)]


def test_batch_norm_has_torch_names() -> None:
    assert list(state.get_state_dict(nn.BatchNorm(2))) == [
        "weight", "bias", "num_batches_tracked", "running_mean", "running_var"]


# --- loading into a model ---------------------------------------------------------------------------


def test_load_state_dict_casts_to_the_model() -> None:
    model = nn.Linear(2, 1)
    values = {"weight": Tensor([[3.0, 4.0]], dtype=dtypes.float16), "bias": Tensor([5])}
    loaded = state.load_state_dict(model, values, verbose=False, consume=True)
    assert values == {} and len(loaded) == 2
    assert model.weight.dtype is dtypes.float32 and model.bias is not None
    assert model.weight.tolist() == [[3, 4]] and model.bias.tolist() == [5]
    (model(Tensor([[1.0, 1.0]]))).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[1, 1]]


def test_load_state_dict_takes_scalars_for_single_items() -> None:
    layer = nn.BatchNorm(1)
    state.load_state_dict(layer, {"num_batches_tracked": Tensor(7)}, strict=False, verbose=False)
    assert layer.num_batches_tracked.tolist() == [7]


def test_load_state_dict_refuses_and_changes_nothing() -> None:
    model = nn.Linear(2, 1)
    before = model.weight.numpy()
    with pytest.raises(KeyError, match=r"missing \['bias'\], unknown \['other'\]"):
        state.load_state_dict(model, {"weight": Tensor.zeros(1, 2), "other": Tensor([1])}, verbose=False)
    with pytest.raises(ValueError, match=r"bias: the model has \(1,\), the state \(3,\)"):
        state.load_state_dict(model, {"weight": Tensor.zeros(1, 2), "bias": Tensor([1, 2, 3])}, verbose=False)
    with pytest.raises(TypeError, match="a state holds tensors alone, got ndarray as 'bias'"):
        state.load_state_dict(model, {"weight": Tensor.zeros(1, 2), "bias": np.zeros(1)},  # type: ignore
                              verbose=False)
    with pytest.raises(TypeError, match="a state is a dict of tensors by name, got a list"):
        state.load_state_dict(model, [Tensor.zeros(1, 2)], verbose=False)  # type: ignore[arg-type]
    np.testing.assert_array_equal(model.weight.numpy(), before)
    state.load_state_dict(model, {"weight": Tensor.zeros(1, 2), "other": Tensor([1])}, strict=False,
                          verbose=False)
    assert model.weight.tolist() == [[0, 0]]


# --- safetensors ------------------------------------------------------------------------------------


def arrays() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {f"a.{d.name}": rng.integers(0, 2, (3, 5)).astype(d.numpy) for d in dtypes.all
                               if d.name not in ("fp8e4m3", "fp8e5m2")}
    found["scalar"] = np.array(2.5, np.float32)
    found["empty"] = np.zeros((0, 4), np.int16)
    found["odd"] = np.arange(7, dtype=np.uint8)
    return found


def test_safe_save_is_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    expected = arrays()
    state.safe_save({k: Tensor(v) for k, v in expected.items()}, path, {"made": "here"})
    found = safetensors.numpy.load_file(path)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].shape == value.shape and found[key].dtype == value.dtype
        np.testing.assert_array_equal(found[key], value)
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"made": "here"}
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_safe_load_reads_the_library(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    expected = arrays()
    safetensors.numpy.save_file(expected, path, {"made": "there"})
    for source in (path, Tensor(np.fromfile(path, np.uint8))):
        found = state.safe_load(source)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key].numpy(), value)
            assert found[key].shape == value.shape and found[key].dtype.numpy == value.dtype
    _, begin, header = state.safe_load_metadata(path)
    assert header["__metadata__"] == {"made": "there"} and header["odd"]["shape"] == [7]
    assert begin == 8 + struct.unpack("<Q", Path(path).read_bytes()[:8])[0]


def test_eight_bit_floats_survive(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        values = np.array([0.5, -2, 8], dtype)
        state.safe_save({"x": Tensor(values)}, path)
        np.testing.assert_array_equal(state.safe_load(path)["x"].numpy().astype(np.float32), [0.5, -2, 8])


def test_a_loaded_file_can_be_changed_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    state.safe_save({"x": Tensor([1.0, 2.0])}, path)
    x = state.safe_load(path)["x"]
    x.assign(x + 1).realize()
    assert state.safe_load(path)["x"].tolist() == [1, 2]
    y = state.safe_load(path)["x"]
    state.safe_save({"x": y * 10}, path)
    assert state.safe_load(path)["x"].tolist() == [10, 20] and y.tolist() == [1, 2]


def write(path: Path, header: Any, payload: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + payload)
    return path


def entry(dtype: Any, shape: Any, *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@pytest.mark.parametrize(("header", "payload", "length", "text"), [
    (b"", b"", 100, "cut short"),
    (b"{}", b"", 2**63, "its header would have"),
    (b"{", b"", None, "header is not JSON"),
    (b"\xff\xfe", b"", None, "header is not JSON"),
    (b"[" * 100_000, b"", None, "header is not JSON"),
    (b'{"x": 1, "x": 2}', b"", None, "a name comes twice"),
    ([1], b"", None, "is a list, not an object"),
    ({"x": 3}, b"", None, "needs dtype, shape and data_offsets"),
    ({"x": entry("F31", [1], 0, 4)}, bytes(4), None, "dtype 'F31'; known are"),
    ({"x": entry(["F32"], [1], 0, 4)}, bytes(4), None, "dtype .* known are"),
    ({"x": entry("F32", [-1], 0, 4)}, bytes(4), None, "not a list of sizes"),
    ({"x": entry("F32", "1", 0, 4)}, bytes(4), None, "not a list of sizes"),
    ({"x": entry("F32", [1], 0)}, bytes(4), None, "not two positions"),
    ({"x": entry("F32", [1], -4, 0)}, bytes(4), None, "not two positions"),
    ({"x": entry("F32", [1], True, 5)}, bytes(5), None, "not two positions"),
    ({"x": entry("F32", [2], 0, 8)}, bytes(4), None, "lies at bytes 0 to 8 of 4"),
    ({"x": entry("F32", [1], 4, 0)}, bytes(4), None, "lies at bytes 4 to 0"),
    ({"x": entry("F32", [2], 0, 4)}, bytes(4), None, "takes 8 bytes, its data_offsets span 4"),
    ({"x": entry("F32", [2**40, 2**40], 0, 4)}, bytes(4), None, "data_offsets span 4"),
    ({"x": entry("U8", [3], 0, 3), "y": entry("U8", [3], 2, 5)}, bytes(5), None, "'x' and 'y' overlap"),
    ({"x": entry("U8", [4], 0, 4), "y": entry("U8", [0], 2, 2)}, bytes(4), None, "'x' and 'y' overlap"),
])
def test_damaged_safetensors_are_refused(tmp_path: Path, header: Any, payload: bytes, length: int | None,
                                         text: str) -> None:
    path = write(tmp_path / "bad.safetensors", header, payload, length)
    with pytest.raises(ValueError, match=text) as error:
        state.safe_load(path)
    assert "bad.safetensors" in str(error.value)


def test_every_cut_of_a_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    state.safe_save({"x": Tensor([1.0, 2.0]), "y": Tensor([1, 2, 3])}, path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"m\.safetensors"):
            state.safe_load(path)


def test_safe_save_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="strings by strings"):
        state.safe_save({}, tmp_path / "x", {"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="__metadata__"):
        state.safe_save({"__metadata__": Tensor([1])}, tmp_path / "x")
    for tensors, said in (([Tensor([1])], "is a dict of tensors by name, got a list"),
                          ({1: Tensor([1]), "1": Tensor([2])}, "has names that are text, got 1"),
                          ({"a": np.ones(1)}, "holds tensors alone, got ndarray as 'a'")):
        with pytest.raises(TypeError, match=f"a safetensors file {said}"):
            state.safe_save(tensors, tmp_path / "x")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        state.safe_load(tmp_path / "none")


# --- archives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_extract(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, mode) as archive:
        for name, content in (("a/b.bin", b"hello"), ("c", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        archive.addfile(tarfile.TarInfo("folder/"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        link = tarfile.TarInfo("again")
        link.type, link.linkname = tarfile.LNKTYPE, "a/b.bin"
        archive.addfile(link)
    for source in (path, Tensor(np.fromfile(path, np.uint8))):
        files = {k: v.numpy().tobytes() for k, v in state.tar_extract(source).items() if k != "folder/"}
        assert files == {"a/b.bin": b"hello", "c": b"", "again": b"hello"}
    path.write_bytes(b"no tar")
    with pytest.raises(ValueError, match=r"a\.tar is not a tar archive"):
        state.tar_extract(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_extract(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/b.bin", b"hello")
        archive.writestr("c", b"")
    files = {k: v.numpy().tobytes() for k, v in state.zip_extract(path).items()}
    assert files == {"a/b.bin": b"hello", "c": b""}
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"a\.zip is not a zip archive"):
        state.zip_extract(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2,
                                         zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_refused_by_its_name(tmp_path: Path, compression: int) -> None:
    """Each decompressor has errors of its own."""
    path, rng = tmp_path / "a.zip", np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("\xfc", bytes(range(256)))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1:])
        try:
            state.zip_extract(path)
        except ValueError as error:
            assert str(error).startswith(f"{path} is not a zip archive")


def test_tensor_io_reads_and_seeks() -> None:
    file = state.TensorIO(Tensor(np.arange(10, dtype=np.uint8)))
    assert file.read(3) == bytes([0, 1, 2]) and file.tell() == 3
    file.seek(-2, 2)
    assert file.read() == bytes([8, 9])
    with pytest.raises(TypeError, match="uint8 tensor of one axis"):
        state.TensorIO(Tensor([1.0]))


# --- PyTorch's files --------------------------------------------------------------------------------


class FakeStorage:
    """Pickled as PyTorch pickles a storage: a reference to one file of the archive."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.kind, self.key, self.count = kind, key, count


class FakeTensor:
    """Pickled as PyTorch pickles a tensor: a call of torch._utils._rebuild_tensor_v2."""

    def __init__(self, storage: FakeStorage, offset: Any, shape: Any, strides: Any) -> None:
        self.fields: tuple[Any, ...] = (storage, offset, shape, strides, False, OrderedDict())

    def __reduce__(self) -> Any:
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.fields


class TorchPickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, FakeStorage):
            return ("storage", getattr(sys.modules["torch"], obj.kind), obj.key, "cpu", obj.count)
        return None


@pytest.fixture
def torch_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes the archive that torch.save writes, with only names of `torch` standing in."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "BFloat16Storage", "LongStorage", "BoolStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))

    def _rebuild_tensor_v2() -> None: ...

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def save(obj: Any, storages: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
        text = io.BytesIO()
        TorchPickler(text, protocol=2).dump(obj)
        path = tmp_path / "model.pt"
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("model/data.pkl", text.getvalue())
            archive.writestr("model/byteorder", "little")
            for key, content in storages.items():
                archive.writestr(f"model/data/{key}", content)
            archive.writestr("model/version", "3\n")
        return path

    return save


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_torch_load_reads_tensors_and_their_strides(torch_save: Any, compression: int) -> None:
    numbers = np.arange(12, dtype=np.float32)
    shared = FakeStorage("FloatStorage", "0", 12)
    halves = np.array([1.5, -2], ml_dtypes.bfloat16)
    saved = OrderedDict(
        whole=FakeTensor(shared, 0, (3, 4), (4, 1)),
        transposed=FakeTensor(shared, 0, (4, 3), (1, 4)),
        part=FakeTensor(shared, 5, (2, 2), (4, 1)),
        scalar=FakeTensor(shared, 7, (), ()),
        none=FakeTensor(shared, 0, (0, 3), (3, 1)),
        halves=FakeTensor(FakeStorage("BFloat16Storage", "1", 2), 0, (2,), (1,)),
        mask=[FakeTensor(FakeStorage("BoolStorage", "2", 2), 0, (2,), (1,)), "text", 3],
    )
    path = torch_save(saved, {"0": numbers.tobytes(), "1": halves.tobytes(), "2": b"\1\0"}, compression)
    found = state.torch_load(path)
    grid = numbers.reshape(3, 4)
    assert isinstance(found, OrderedDict)
    for name, expected in (("whole", grid), ("transposed", grid.T), ("part", grid[1:, 1:3]),
                           ("scalar", np.float32(7)), ("none", np.zeros((0, 3), np.float32))):
        np.testing.assert_array_equal(found[name].numpy(), expected, strict=True)
    assert found["halves"].dtype is dtypes.bfloat16 and found["halves"].float().tolist() == [1.5, -2]
    assert found["mask"][0].tolist() == [True, False] and found["mask"][1:] == ["text", 3]


def test_torch_load_refuses_everything_but_tensors(torch_save: Any, tmp_path: Path) -> None:
    path = torch_save({"x": print}, {})
    with pytest.raises(ValueError, match=r"model\.pt asks for .*\.print; torch_load makes tensors"):
        state.torch_load(path)
    floats = FakeStorage("FloatStorage", "0", 4)
    for tensor, text in (
        (FakeTensor(floats, 0, (5,), (1,)), r"model\.pt: .* reaches item 4 of storage"),
        (FakeTensor(floats, 0, (2, 2), (3, 1)), "reaches item 4 of storage"),
        (FakeTensor(floats, -1, (1,), (1,)), "a storage, an offset"),
        (FakeTensor(floats, 0, (2,), (-1,)), "a storage, an offset"),
        (FakeTensor(FakeStorage("FloatStorage", "0", 5), 0, (1,), (1,)), "storage model/data/0 of 5"),
        (FakeTensor(FakeStorage("FloatStorage", "../x", 1), 0, (1,), (1,)), "has no bytes"),
    ):
        with pytest.raises(ValueError, match=text):
            state.torch_load(torch_save(tensor, {"0": bytes(16)}))
    other = tmp_path / "other.pt"
    other.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(ValueError, match=r"other\.pt: its version is damaged"):
        state.torch_load(other)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}q")
    with pytest.raises(ValueError, match=r"data\.pkl is damaged"):
        state.torch_load(other)


class Attack:
    """Pickled as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def legacy(text: bytes, keys: Any = (), tail: bytes = b"", *, magic: int = 0x1950a86a20f9469cfc6c,
           little: Any = True) -> bytes:
    """A file of the format before PyTorch 1.6."""
    facts = {"protocol_version": 1001, "little_endian": little, "type_sizes": {}}
    head = b"".join(pickle.dumps(v, 2) for v in (magic, 1001, facts))
    return head + text + pickle.dumps(list(keys), 2) + tail


def test_torch_load_refuses_files_that_would_run_something(tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "x.pt"
    attacks = [Attack(os.system, f"touch {marker}"), Attack(eval, "1"), Attack(getattr, "", "join"),
               OrderedDict(a=Attack(open, str(marker), "w")), defaultdict(print)]
    for attack in attacks:
        text = pickle.dumps(attack, 2)
        for content in (text, legacy(text)):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"asks for \w+\.\w+; torch_load makes tensors"):
                state.torch_load(path)
    # BUILD sets attributes of what a name stands for: of nothing that outlives the file
    for name in (b"collections OrderedDict", b"collections Counter", b"torch FloatStorage", b"torch float32",
                 b"torch._utils _rebuild_tensor_v2"):
        module, kind = name.split()
        change = b"\x80\x02c" + module + b"\n" + kind + b"\nN}X\x08\0\0\0itemsizeK\x63s\x86b."
        path.write_bytes(legacy(change))
        with contextlib.suppress(ValueError):
            state.torch_load(path)
    assert not marker.exists() and dtypes.float32.itemsize == 4
    assert not any(hasattr(made, "itemsize") for made in (*pytorch_files.MAKERS.values(), OrderedDict))


def test_torch_load_says_what_is_wrong_with_an_old_file(torch_save: Any, tmp_path: Path) -> None:
    path, text = tmp_path / "old.pt", io.BytesIO()
    TorchPickler(text, protocol=2).dump([FakeTensor(FakeStorage("FloatStorage", "7", 2), 0, (2,), (1,))])
    tensor = text.getvalue()
    data = struct.pack("<qff", 2, 1.5, -2)
    for content, wrong in (
        (b"", "old.pt: its first pickle is damaged"),
        (b"some text", "old.pt: its first pickle is damaged"),
        (pickle.dumps(1, 2) * 3, "neither a zip archive nor"),
        (legacy(tensor, ["7"], data, magic=3), "neither a zip archive nor"),
        (legacy(tensor, ["7"], data, little=False), "big-endian"),
        (legacy(tensor, ["8"], data), r"lists storages \['8'\] and uses \['7'\]"),
        (legacy(tensor, ["7"], data[:-1]), "storage 7 of 2 float32 lies at bytes"),
        (legacy(tensor, ["7"], struct.pack("<qff", 3, 1, 2)), "cut short or damaged"),
        (legacy(tensor[:-4], ["7"], data), "damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=wrong):
            state.torch_load(path)
    path.write_bytes(legacy(tensor, ["7"], data))
    assert state.torch_load(path)[0].tolist() == [1.5, -2]


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_load_reads_what_torch_saves(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    named = base.clone()
    named.title = "with an attribute"
    tensors = {
        "view": base[1:, 1:3], "transposed": base.T, "expanded": base[:, :1].expand(3, 5),
        "number": base[2, 1], "none": base[:0], "parameter": torch.nn.Parameter(base),
        "buffer": torch.nn.Buffer(base + 1), "named": named, **model.state_dict(),
        **{str(d): torch.arange(4).to(d) for d in (
            torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
            torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32,
            torch.uint64)},
    }
    numbers = [np.dtype(kind).type(3) for kind in pytorch_files.NUMBERS]
    around = {"numbers": numbers, "mean": np.mean([1.0, 2.5]), "of lists": defaultdict(list, a=[1]),
              "of dicts": defaultdict(dict), "list": [1, (2.5, "x", None)], "bytes": b"\xff", "set": {1},
              "many": Counter("aab"),
              "big": 2**70, "size": base.shape, "device": base.device, "dtype": torch.float16}
    path = tmp_path / "saved.pt"
    torch.save({"tensors": OrderedDict(tensors), "state": optimizer.state_dict(), "around": around}, path,
               _use_new_zipfile_serialization=zipped)
    found = state.torch_load(path)
    assert list(found["tensors"]) == list(tensors)
    for name, tensor in tensors.items():
        got = found["tensors"][name]
        assert got.shape == tuple(tensor.shape), name
        assert got.cast("float64").tolist() == tensor.detach().double().tolist(), name
    assert found["around"] == {**around, "size": (3, 4), "device": "cpu", "dtype": "float16"}
    assert [type(n) for n in found["around"]["numbers"]] == [type(n) for n in numbers]
    found["around"]["of lists"]["b"].append(2)
    assert found["around"]["of lists"] == {"a": [1], "b": [2]}
    for i, each in optimizer.state_dict()["state"].items():
        np.testing.assert_array_equal(found["state"]["state"][i]["exp_avg"].numpy(), each["exp_avg"].numpy())
