"""Sums over bytes of words as dot products, and products with weights in blocks that are made of them."""
from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from kernel_cases import MACHINES, fresh_kernels, on

from tinygrad import Tensor, Variable, dtypes
from tinygrad.codegen.compile import stages_of
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.byte_dots import byte_dots
from tinygrad.codegen.opt.choose import choose_plan, explain_plan
from tinygrad.codegen.opt.opts import ByteDot, PartitionLoop
from tinygrad.codegen.opt.plan import Plan, apply_opt
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import UOp
from tinygrad.nn.block_formats import FORMATS, Packed
from tinygrad.nn.block_products import BlockWeights, RoundedRows
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores
from tinygrad.renderer.python import PythonRenderer
from tinygrad.runtime.python import PythonProgram

Array = np.ndarray[Any, Any]
__all__ = ["fresh_kernels"]
CORE = LLVMRenderer(cores(vector_bytes=64, registers=32), has_vnni=True)


def words(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(0, 1 << 32, shape, dtype=np.uint32)


def bytes_of(x: Tensor, is_signed: bool, mask: int = 255) -> Tensor:
    """The four bytes of each word, on a new axis, as int32."""
    found = x.unsqueeze(-1) >> Tensor.arange(4, dtype=dtypes.uint32) * 8
    return (found.cast(dtypes.int8) if is_signed else found & mask).cast(dtypes.int32)


def product(a: Tensor, b: Tensor, mask: int = 255) -> Tensor:
    """(K, N) and (T, K) words: (T, N), sums of products of bytes without a sign and with one."""
    return (bytes_of(a, False, mask).unsqueeze(0) * bytes_of(b, True).unsqueeze(2)).sum((1, 3))


def expected(a: Array, b: Array, mask: int = 255) -> Array:
    left = np.ascontiguousarray(a.T).view(np.uint8).astype(np.int64) & mask
    return np.asarray(b.view(np.int8).astype(np.int64) @ left.T)


def nest_of(result: Tensor) -> UOp:
    return lower(result.schedule()[-1].ast)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.usefixtures("fresh_kernels")
def test_bytes_of_words_are_multiplied_exactly(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on(machine, monkeypatch)
    a, b = words(8, 48), words(3, 8)
    a[:, :2], b[:2] = 0xFFFFFFFF, 0x80808080  # the largest products
    for mask in (255, 127, 63, 15, 3):
        given = Tensor(a).realize(), Tensor(b).realize()
        np.testing.assert_array_equal(product(*given, mask=mask).numpy(), expected(a, b, mask))


TABLE = np.array([(n << 5) ^ 0xE7 if n < 8 else n ^ 3 for n in range(16)], np.uint8)


def looked_up(a: Tensor, b: Tensor) -> Tensor:
    """As `product`, of what bytes of 4 bits stand for in a table."""
    places = bytes_of(a, False, 15)
    number = (places < 8).where((places << 5) ^ 0xE7, places ^ 3)
    return (number.unsqueeze(0) * bytes_of(b, True).unsqueeze(2)).sum((1, 3))


def expected_of_table(a: Array, b: Array) -> Array:
    return expected(TABLE[a.view(np.uint8) & 15].view(np.uint32), b)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns", [48, 5])
@pytest.mark.usefixtures("fresh_kernels")
def test_any_function_of_four_bits_is_looked_up(machine: str, columns: int, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    on(machine, monkeypatch)
    a, b = words(8, columns), words(3, 8)
    found = looked_up(Tensor(a).realize(), Tensor(b).realize())
    (loop,) = byte_dots(nest_of(found))
    (table,) = apply_opt(nest_of(found), ByteDot(loop.arg[0])).nodes_of(Ops.LOOKUP)
    assert table.arg == TABLE.tobytes()
    np.testing.assert_array_equal(found.numpy(), expected_of_table(a, b))


def test_a_function_whose_last_step_is_a_mask_is_looked_up() -> None:
    a, b = words(6), words(6)
    places = (Tensor(a).realize().unsqueeze(-1) >> Tensor.arange(4, dtype=dtypes.uint32) * 8) & 15
    dots = (((places * 5) & 127).cast(dtypes.int32) * bytes_of(Tensor(b).realize(), True)).sum(-1)
    nest = nest_of(dots)
    (loop,) = byte_dots(nest)
    (table,) = apply_opt(nest, ByteDot(loop.arg[0])).nodes_of(Ops.LOOKUP)
    assert list(table.arg) == [5 * n for n in range(16)]
    right = ((a.view(np.uint8) & 15) * 5).astype(np.int64) * b.view(np.int8)
    np.testing.assert_array_equal(dots.numpy(), right.reshape(6, 4).sum(1))


@pytest.mark.parametrize("make, right", [(product, expected), (looked_up, expected_of_table)])
def test_the_operations_say_the_same_in_python(make: Any, right: Any) -> None:
    a, b, result = words(8, 5), words(3, 8), np.zeros((3, 5), np.int32)
    ast = make(Tensor(a).realize(), Tensor(b).realize()).schedule()[-1].ast
    (loop,) = byte_dots(lower(ast))
    program = stages_of(ast, "PYTHON", Plan((ByteDot(loop.arg[0]),))).program
    assert any(n.op is Ops.DP4A for n in program)
    assert any(n.op is Ops.LOOKUP for n in program) is (make is looked_up)
    text = PythonRenderer().render("kernel", program)
    PythonProgram("kernel", compile(text, "<kernel>", "exec"))([x.ctypes.data for x in (result, a, b)], [], 1)
    np.testing.assert_array_equal(result, right(a, b))


@pytest.mark.parametrize("what, make", [
    ("below 0", lambda a, b: (bytes_of(a, False, 15) - 1) * bytes_of(b, True)),
    ("over 255", lambda a, b: (bytes_of(a, False, 15) * 18) * bytes_of(b, True)),
    ("5 bits and more", lambda a, b: (bytes_of(a, False, 31) * 2) * bytes_of(b, True)),
    ("of two words", lambda a, b: bytes_of(a, False, 7) * bytes_of(a ^ b, False, 7) * bytes_of(b, True)),
    ("both without a sign", lambda a, b: bytes_of(a, False) * bytes_of(b, False)),
    ("both with a sign", lambda a, b: bytes_of(a, True) * bytes_of(b, True)),
    ("more than a byte", lambda a, b: bytes_of(a, False, 511) * bytes_of(b, True)),
    ("a sum", lambda a, b: bytes_of(a, False) + bytes_of(b, True)),
    ("three bytes", lambda a, b: (bytes_of(a, False) * bytes_of(b, True))[:, :3])])
def test_other_sums_of_bytes_stay_what_they_are(what: str, make: Any) -> None:
    a, b = (Tensor(words(6)).realize() for _ in range(2))
    nest = nest_of(make(a, b).sum(-1))
    assert not byte_dots(nest), what
    for r in (n for n in nest.toposort() if n.op is Ops.RANGE):
        with pytest.raises(ValueError, match="takes bytes out of words"):
            apply_opt(nest, ByteDot(r.identity))


# --- weights in blocks --------------------------------------------------------------------------------------


def stored(name: str, rows: int, columns: int) -> tuple[Packed, Array]:
    """A weight in blocks with scales that are finite, and what it stands for, by the format's own package."""
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("gguf is in the extra test-models")
    import gguf

    layout, draw = FORMATS[name], np.random.default_rng(rows)
    raw = draw.integers(0, 256, (rows * columns // layout.items, layout.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        while True:
            values = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
            bad = ~(np.abs(values).max(-1) < 100)
            if not bad.any():
                break
            raw[bad] = draw.integers(0, 256, (int(bad.sum()), layout.size), dtype=np.uint8)
    return Packed(Tensor(raw.reshape(-1)).realize(), name, (rows, columns)), values.reshape(rows, columns)


def rounded(x: Array) -> Array:
    """Rows as 8 bits with a scale for 32 of them stand for them."""
    stretches = x.reshape(len(x), -1, 32)
    scale = np.abs(stretches).max(-1, keepdims=True) * np.float32(1 / 127)
    steps = np.round(stretches * (1 / np.where(scale == 0, 1, scale)).astype(np.float32))
    return np.asarray((steps.astype(np.float64) * scale).reshape(x.shape))


@pytest.mark.parametrize("name", FORMATS)
def test_products_with_blocks_are_those_with_the_numbers_they_hold(name: str) -> None:
    packed, values = stored(name, 80, 512)
    weights = BlockWeights.of(packed)
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 512)).astype(np.float32)
        x[0, 32:64] = 0
        right = rounded(x) @ values.T.astype(np.float64)
        found = weights.product(RoundedRows(Tensor(x))).numpy()
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-6 * np.abs(right).max())
        exact = x.astype(np.float64) @ values.T.astype(np.float64)
        bound = (np.abs(x.reshape(rows, -1, 32)).max(-1, keepdims=True) / 254).repeat(32, -1).reshape(x.shape)
        assert (np.abs(found - exact) <= 1.001 * bound @ np.abs(values).T + 1e-4).all()


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
                                  "IQ4_XS", "MXFP4"])
def test_weights_take_the_memory_of_their_file(name: str) -> None:
    packed, _ = stored(name, 128, 512)
    assert BlockWeights.of(packed).bytes <= 1.03 * packed.stored.numel()


@pytest.mark.parametrize("name", ["Q4_1", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_product_reads_words_in_one_kernel(rows: int, name: str) -> None:
    packed, _ = stored(name, 192, 256)
    weights = BlockWeights.of(packed)
    x = Tensor.randn(rows, 256).realize()
    schedule = weights.product(RoundedRows(x)).schedule()
    assert len(schedule) == 3  # the rows rounded, their sums, the product
    nest = lower(schedule[-1].ast)
    floats = [int(n.arg[1]) for n in nest.toposort() if n.op is Ops.PARAM and n.dtype.is_float]
    assert max(floats) < 192 * 256 / 16
    assert any(isinstance(opt, ByteDot) for opt in choose_plan(nest, CORE.machine).opts)


@pytest.mark.parametrize("name", ["Q4_1", "IQ4_NL", "MXFP4"])
def test_numbers_that_many_rows_read_are_not_stored(name: str) -> None:
    packed, _ = stored(name, 192, 256)
    x = Tensor.randn(300, 256).realize()
    *before, _ = BlockWeights.of(packed).product(RoundedRows(x)).schedule()
    assert max(int(item.buffers[0].numel) for item in before) < 192 * 256 / 2  # words of the rows


@pytest.mark.parametrize("rows, tile", [(1, (1, 4)), (3, (3, 4)), (300, (12, 1))])
def test_a_tile_has_rows_first(rows: int, tile: tuple[int, int]) -> None:
    packed, _ = stored("Q8_0", 4096, 256)
    x = RoundedRows(Tensor.randn(rows, 256).realize())
    nest = lower(BlockWeights.of(packed).product(x).schedule()[-1].ast)
    assert f"rows {tile[0]}, vectors {tile[1]}" in explain_plan(nest, CORE.machine)


def test_a_product_that_is_written_somewhere_is_not_cut_into_its_tiles_of_weights() -> None:
    packed, _ = stored("Q4_1", 192, 256)
    made = BlockWeights.of(packed).product(RoundedRows(Tensor.randn(40, 256).realize()))
    rows = Tensor.zeros(40, 192).contiguous().realize()
    nest = lower(rows.assign(made).schedule()[-1].ast)
    plan = choose_plan(nest, CORE.machine)
    assert any(isinstance(opt, ByteDot) for opt in plan.opts)
    assert all(not isinstance(opt, PartitionLoop) for opt in plan.opts)


def test_a_product_takes_as_many_rows_as_a_variable_says() -> None:
    packed, values = stored("Q8_0", 100, 64)
    weights = BlockWeights.of(packed)
    x = np.random.default_rng(3).standard_normal((9, 64)).astype(np.float32)
    for count in (1, 4, 9):
        part = Tensor(x)[:Variable("rows", 1, 9).bind(count)]
        found = weights.product(RoundedRows(part)).numpy()
        right = rounded(x[:count]) @ values.T
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-6 * np.abs(right).max())


def test_weights_that_have_no_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="has no blocks of two or three axes"):
        BlockWeights.of(Packed(Tensor.zeros(64), None, (8, 8)))
    assert not BlockWeights.takes(Packed(Tensor.zeros(64), "Q8_0", (2, 1, 2, 32)))


def test_bits_taken_out_of_integers_are_not_stored() -> None:
    """However often they are read: what they are taken from is smaller."""
    packed = Tensor(words(64)).realize()
    fields = (packed.unsqueeze(1) >> Tensor.arange(8, dtype=dtypes.uint32) * 4) & 15
    table = fields.flatten().cast(dtypes.float32)
    x = Tensor.rand(300, 512).realize()
    assert len((x * table).sum(1).schedule()) == 1
