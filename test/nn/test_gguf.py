"""GGUF files, beside the `gguf` package: what it writes is read, what is written it reads, formats of blocks
give its values bit for bit; and files that lie are errors that say where."""
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad import Tensor, dtypes
from tinygrad.nn import gguf_files
from tinygrad.nn.block_formats import FORMATS, dequantized, quantized
from tinygrad.nn.gguf_files import gguf_packed
from tinygrad.nn.state import gguf_load, gguf_save

rng = np.random.default_rng(0)


def package():
    return pytest.importorskip("gguf", reason="the gguf package is in the extra test-models")


def same_bits(mine, reference):
    assert mine.dtype == reference.dtype and mine.shape == reference.shape
    nan = np.isnan(reference)
    assert (np.isnan(mine) == nan).all()
    assert (mine[~nan].view(np.uint32) == reference[~nan].view(np.uint32)).all()


# --- formats of blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_random_blocks_have_the_values_that_the_package_gives(name):
    gguf = package()
    kind = gguf.GGMLQuantizationType[name]
    assert FORMATS[name].code == kind
    assert (FORMATS[name].items, FORMATS[name].size) == gguf.GGML_QUANT_SIZES[kind]
    rows = rng.integers(0, 256, (40, 3 * FORMATS[name].size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(rows, kind)
    same_bits(dequantized(Tensor(rows), name).numpy(), expected)


def test_every_power_of_two_of_mxfp4():
    gguf = package()
    rows = rng.integers(0, 256, (256, 17), dtype=np.uint8)
    rows[:, 0] = np.arange(256)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(rows, gguf.GGMLQuantizationType.MXFP4)
    same_bits(dequantized(Tensor(rows), "MXFP4").numpy(), expected)


@pytest.mark.parametrize("scale", [0, 1e-30, 1e-3, 1, 1e4])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_what_is_quantised_has_the_bytes_that_the_package_gives(name, scale):
    gguf = package()
    weights = (rng.standard_normal((30, 96)) * scale).astype(np.float32)
    assert (quantized(weights, name) == gguf.quantize(weights, gguf.GGMLQuantizationType[name])).all()


def test_quantised_weights_are_within_half_a_step():
    weights = rng.standard_normal((8, 64)).astype(np.float32)
    back = dequantized(Tensor(quantized(weights, "Q8_0")), "Q8_0").numpy()
    steps = np.abs(weights.reshape(8, 2, 32)).max(-1, keepdims=True) / 127
    assert (np.abs(back - weights).reshape(8, 2, 32) <= steps * 0.57).all()  # a float16 scale adds a little


def test_blocks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="rows of Q8_0 take blocks of 34 bytes"):
        dequantized(Tensor(np.zeros((2, 35), np.uint8)), "Q8_0")
    with pytest.raises(ValueError, match="'Q9_9' is no format of blocks; known are Q4_0"):
        dequantized(Tensor(np.zeros((2, 35), np.uint8)), "Q9_9")
    with pytest.raises(TypeError, match="uint8 tensor, got float32"):
        dequantized(Tensor(np.zeros((2, 34), np.float32)), "Q8_0")
    with pytest.raises(ValueError, match="'Q4_K' cannot be written"):
        quantized(np.zeros((1, 256), np.float32), "Q4_K")
    with pytest.raises(ValueError, match="finite"):
        quantized(np.full((1, 32), np.inf, np.float32), "Q8_0")


# --- whole files ------------------------------------------------------------------------------------------


def write(path, tensors, metadata=None):
    gguf = package()
    writer = gguf.GGUFWriter(path, "test")
    for add, key, value in metadata or ():
        getattr(writer, add)(key, value)
    for name, array, kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_what_the_packages_writer_writes_is_read(tmp_path):
    gguf = package()
    path = tmp_path / "model.gguf"
    kinds = {name: gguf.GGMLQuantizationType[name] for name in FORMATS}
    tensors = [(name, rng.integers(0, 100, (6, 2 * FORMATS[name].size), dtype=np.uint8), kind)
               for name, kind in kinds.items()]
    floats = rng.standard_normal((3, 5)).astype(np.float32)
    whole = np.arange(7, dtype=np.int32)
    tensors += [("f32", floats, None), ("f16", floats.astype(np.float16), None), ("i32", whole, None),
                ("bf16", (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
                 gguf.GGMLQuantizationType.BF16)]
    metadata = [("add_uint32", "a.u32", 7), ("add_int64", "a.i64", -(1 << 40)), ("add_float32", "a.f32", 0.5),
                ("add_bool", "a.bool", True), ("add_string", "a.text", "Zeichen ü"),
                ("add_array", "a.words", ["x", "", "yz"]), ("add_array", "a.numbers", [1, -2, 3])]
    write(path, tensors, metadata)
    found, loaded = gguf_load(path)
    assert {key: value for key, value in found.items() if key.startswith("a.")} == {
        key: value for _, key, value in metadata}
    assert found["general.architecture"] == "test"
    assert list(loaded) == [name for name, _, _ in tensors]
    for name, array, kind in tensors[:len(kinds)]:
        assert loaded[name].device == f"DISK:{path}"
        with np.errstate(all="ignore"):
            same_bits(loaded[name].to("CPU").numpy(), gguf.dequantize(array, kind))
    assert (loaded["f32"].numpy() == floats).all() and loaded["f32"].dtype is dtypes.float32
    assert (loaded["f16"].numpy() == floats.astype(np.float16)).all()
    assert (loaded["i32"].numpy() == whole).all()
    shortened = (floats.view(np.uint32) & 0xffff0000).view(np.float32)
    assert (loaded["bf16"].cast("float32").numpy() == shortened).all()


def test_what_is_saved_the_packages_reader_reads(tmp_path):
    gguf = package()
    path = tmp_path / "model.gguf"
    weights = {"a": rng.standard_normal((4, 64)).astype(np.float32), "b": np.arange(5, dtype=np.float16),
               "c": rng.standard_normal((2, 3, 32)).astype(np.float32)}
    metadata = {"general.architecture": "llama", "n": 3, "negative": -3, "large": 1 << 40, "x": 0.25,
                "yes": True, "words": ["one", "two"], "numbers": [1, -1], "largest": [1 << 63, 0],
                "far": 1e300, "small": np.uint8(9)}
    gguf_save({k: Tensor(v) for k, v in weights.items()}, path, metadata, {"a": "Q8_0", "c": "Q4_0"})
    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        assert reader.fields[key].contents() == value, key
    assert reader.fields["small"].types == [gguf.GGUFValueType.UINT8]
    assert reader.fields["n"].types == [gguf.GGUFValueType.UINT32]
    read = {t.name: t for t in reader.tensors}
    assert (read["a"].data == gguf.quantize(weights["a"], gguf.GGMLQuantizationType.Q8_0)).all()
    assert (read["c"].data == gguf.quantize(weights["c"], gguf.GGMLQuantizationType.Q4_0)).all()
    assert (read["b"].data == weights["b"]).all()
    found, loaded = gguf_load(path)
    assert found == metadata
    assert loaded["c"].shape == (2, 3, 32)


@pytest.mark.parametrize("window", [1, 8, 9, 11, 64, 1 << 20])
def test_strings_are_read_whole_wherever_a_window_ends(tmp_path, monkeypatch, window):
    strings = ["", "a", "wörd", "x" * 100, "", "你好", "end"] * 3
    gguf_save({}, tmp_path / "strings.gguf", {"tokens": strings, "after": 7})
    monkeypatch.setattr(gguf_files, "WINDOW", window)
    metadata, _ = gguf_load(tmp_path / "strings.gguf")
    assert metadata["tokens"] == strings and metadata["after"] == 7


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    path = tmp_path / "model.gguf"
    with pytest.raises(ValueError, match="multiples of 32 items, 'a' has shape"):
        gguf_save({"a": Tensor.zeros(4, 5)}, path, formats={"a": "Q8_0"})
    with pytest.raises(KeyError, match="not there: b"):
        gguf_save({"a": Tensor.zeros(4, 32)}, path, formats={"b": "Q8_0"})
    with pytest.raises(TypeError, match="weights of a GGUF file are tensors, 'a' is a ndarray"):
        gguf_save({"a": np.ones(3, np.float32)}, path)
    with pytest.raises(TypeError, match="no type for bool"):
        gguf_save({"a": Tensor([True])}, path)
    for alignment in (0, 3, "x"):
        with pytest.raises(ValueError, match=f"general.alignment is a power of two, not {alignment!r}"):
            gguf_save({"a": Tensor.zeros(4)}, path, {"general.alignment": alignment})
    with pytest.raises(TypeError, match="'k' is {}"):
        gguf_save({}, path, {"k": {}})
    with pytest.raises(ValueError, match="'Q4_K' cannot be written"):
        gguf_save({"a": Tensor.zeros(1, 256).contiguous()}, path, formats={"a": "Q4_K"})
    assert list(tmp_path.iterdir()) == []


def test_stored_bytes_move_and_values_stay_lazy(tmp_path):
    path = tmp_path / "model.gguf"
    weights = rng.standard_normal((6, 64)).astype(np.float32)
    gguf_save({"w": Tensor(weights)}, path, formats={"w": "Q8_0"})
    packed = gguf_packed(path)[1]["w"].to("CPU")
    assert (packed.stored.dtype, packed.stored.shape) == (dtypes.uint8, (6 * 68,))
    whole = packed.value.numpy()
    assert (packed.picked(Tensor([[4, 0], [5, 5]])).numpy() == whole[[[4, 0], [5, 5]]]).all()
    x = rng.standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_allclose((Tensor(x) @ packed.value.T).numpy(), x @ whole.T, rtol=1e-4, atol=1e-4)


# --- files that lie ---------------------------------------------------------------------------------------


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def file_of(metadata=b"", pairs=0, tensors=b"", count=0, version=3, magic=b"GGUF", data=b""):
    header = magic + struct.pack("<IQQ", version, count, pairs) + metadata + tensors
    return header + b"\0" * (-len(header) % 32) + data


def tensor_of(name="w", sizes=(4,), kind=0, offset=0):
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


HUGE = 1 << 60
LIES = {
    "empty": (b"", "it has 0 bytes"),
    "another format": (file_of(magic=b"PK\3\4"), "begins with b'PK"),
    "version 1": (file_of(version=1), "it has version 1; versions 2 and 3 are known"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "it is big-endian"),
    "only the magic": (b"GGUF", "the version would take 4 bytes"),
    "2^60 tensors": (file_of(count=HUGE), f"{HUGE} tensors from byte"),
    "2^60 entries": (file_of(pairs=HUGE), f"{HUGE} entries of metadata from byte"),
    "a key of 2^60 bytes": (file_of(struct.pack("<QQ", HUGE, 0), 1), f"{HUGE} bytes of a key from byte"),
    "a list of 2^60 items": (file_of(string("k") + struct.pack("<IIQ", 9, 4, HUGE), 1),
                              f"{HUGE} items of 'k'"),
    "a list of 2^60 strings": (file_of(string("k") + struct.pack("<IIQ", 9, 8, HUGE), 1),
                              f"{HUGE} items of 'k'"),
    "lists in lists": (file_of(string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9, 1),
                       "'k' is arrays in arrays, more than 4 deep"),
    "an unknown type of metadata": (file_of(string("k") + struct.pack("<IQ", 99, 0), 1), "'k' has type 99"),
    "a key twice": (file_of((string("k") + struct.pack("<IB", 7, 1)) * 2, 2), "the key 'k' comes twice"),
    "a key that is no text": (file_of(struct.pack("<QB", 1, 255) + bytes(20), 1), "a key is not UTF-8"),
    "alignment 0": (file_of(string("general.alignment") + struct.pack("<II", 4, 0), 1), "alignment is 0"),
    "alignment 3": (file_of(string("general.alignment") + struct.pack("<II", 4, 3), 1), "alignment is 3"),
    "an alignment that is text": (file_of(string("general.alignment") + struct.pack("<I", 8) + string("x"),
                                          1),
                                  "alignment is 'x'"),
    "an alignment beyond the file": (
        file_of(string("general.alignment") + struct.pack("<IQ", 10, 1 << 62), 1, tensor_of(), 1),
        "it is cut short: tensor 'w'"),
    "an unknown type of tensor": (file_of(tensors=tensor_of(kind=17), count=1), "'w' has type 17"),
    "five axes": (file_of(tensors=tensor_of(sizes=(1,) * 5), count=1), "'w' has 5 axes, at most 4"),
    "2^60 axes": (file_of(tensors=string("w") + struct.pack("<IIQQ", 1 << 31, 0, 0, 0), count=1), "axes"),
    "a size of 2^60": (file_of(tensors=tensor_of(sizes=(HUGE,)), count=1, data=bytes(16)), "it is cut short"),
    "sizes whose product wraps": (file_of(tensors=tensor_of(sizes=(1 << 32, 1 << 32)), count=1),
                                  "it is cut short"),
    "rows of half a block": (file_of(tensors=tensor_of(sizes=(16, 2), kind=8), count=1, data=bytes(34)),
                             "rows of 16 items, which are no multiple of 32"),
    "an offset of 2^60": (file_of(tensors=tensor_of(offset=HUGE), count=1), "it is cut short"),
    "an offset that is not aligned": (file_of(tensors=tensor_of(offset=8), count=1, data=bytes(32)),
                                      "offset 8, which is no multiple of 32"),
    "the last byte missing": (file_of(tensors=tensor_of(), count=1, data=bytes(15)), "it is cut short"),
    "a tensor twice": (file_of(tensors=tensor_of(sizes=(0,)) * 2, count=2,
                               data=bytes(16)), "the tensor 'w' comes twice"),
    "tensors that overlap": (file_of(tensors=tensor_of(sizes=(16,)) + tensor_of("v", offset=32), count=2,
                                     data=bytes(64)), "'w' and 'v' overlap"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_an_error_before_anything_is_allocated(tmp_path, lie):
    content, reason = LIES[lie]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=reason) as raised:
            gguf_load(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in str(raised.value)


def whole_file():
    metadata = (string("general.alignment") + struct.pack("<II", 4, 32) + string("k") + struct.pack("<I", 8)
                + string("text") + string("l") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b")
                + string("n") + struct.pack("<IIQ4i", 9, 5, 4, 1, 2, 3, 4))
    tensors = tensor_of(sizes=(4, 2)) + tensor_of("q", (32,), 8, 32)
    return file_of(metadata, 4, tensors, 2, data=bytes(32 + 34))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_changed_and_shortened_files_are_read_or_refused(tmp_path_factory, data):
    content = bytearray(whole_file())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.sampled_from([bytes([data.draw(st.integers(0, 255))]), b"\xff" * 8,
                                           struct.pack("<Q", HUGE), struct.pack("<I", 9)]))
        content[at:at + len(piece)] = piece
    del content[data.draw(st.integers(0, len(content))):]
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    path.write_bytes(content)
    try:
        _, tensors = gguf_load(path)
    except ValueError as error:
        assert "no GGUF file that can be read" in str(error)
        return
    for t in tensors.values():
        assert t.numel() <= len(content) * 2
