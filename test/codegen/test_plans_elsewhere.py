"""Plans for machines other than this one, and the numbers behind them."""
from __future__ import annotations

import dataclasses
import os
import platform
import re
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest
from kernel_cases import (
    CASES,
    MACHINES,
    convolution,
    nest_of,
    product,
)
from kernel_cases import fresh_kernels as fresh_kernels

from tinygrad import Context, Tensor, Variable
from tinygrad.codegen.lower import lower
from tinygrad.codegen.opt.choose import choose_plan
from tinygrad.codegen.opt.opts import (
    Merge,
    Prefetch,
    Split,
    Stage,
    Tighten,
    Upcast,
    Vector,
)
from tinygrad.codegen.opt.plan import apply_plan
from tinygrad.codegen.program import linear_program
from tinygrad.device.host import has_features
from tinygrad.graph.ops import Ops, RangeKind
from tinygrad.renderer.llvm import LLVMRenderer
from tinygrad.renderer.machine import cores
from tinygrad.runtime.llvm import optimised_module

# --- other machines -----------------------------------------------------------------------------------------


def assembly_for(triple: str, cpu: str, result: Tensor, renderer: LLVMRenderer) -> str:
    """The machine code of the last kernel of `result` for another processor, under the cost model's plan."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    nest = lower(result.schedule()[-1].ast)
    optimised = apply_plan(nest, choose_plan(nest, renderer.machine))
    source = renderer.render("kernel", linear_program(optimised, renderer))
    target = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2)
    with optimised_module(source, target) as module:
        return str(target.emit_assembly(module))


def inner_loop(assembly: str, instruction: str, branch: str) -> list[str]:
    """The instructions of the shortest loop in which `instruction` runs."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    loops = []
    for end, line in enumerate(lines):
        target = line.split()[-1] if re.match(branch, line) else ""
        body = lines[labels.get(target, end):end]
        if any(re.match(instruction, x) for x in body):
            loops.append(body)
    return min(loops, key=len)


AARCH64 = ("aarch64-unknown-linux-gnu", "neoverse-n1")

FMLA = r"fmla\s+v\d+\.4s"


def test_a_matmul_for_aarch64_multiplies_vectors_in_registers() -> None:
    machine = MACHINES["NEON"]
    loop = inner_loop(assembly_for(*AARCH64, product(96, 64, 96), machine), FMLA, r"(b\.|cbn?z|tbn?z)")
    products = [line for line in loop if re.match(FMLA, line)]
    accumulators = {re.findall(r"v(\d+)", line)[0] for line in products}
    assert 12 <= len(accumulators) < 32, "a tile that fills the registers and leaves some for its operands"
    assert not any("[sp" in line for line in loop), "an accumulator was spilled to the stack"
    assert not any(re.match(r"fm(add|ul)\s+s\d", line) for line in loop)


def innermost_loops(assembly: str, branch: str) -> list[list[str]]:
    """The instructions of each loop that no other loop is in."""
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    jumps = [(labels.get(line.split()[-1], i), i) for i, line in enumerate(lines) if re.match(branch, line)]
    loops = [(first, last) for first, last in jumps if first < last]
    return [lines[a:b] for a, b in loops if not any(a <= x and y < b for x, y in loops)]


@pytest.mark.parametrize("name, instruction", [
    ("matmul, large and odd", FMLA),
    ("matmul, both transposed", FMLA),
    ("convolution", FMLA),
    ("convolution, stride 2", FMLA),
    ("pointwise convolution", FMLA),
    ("softmax", r"fmla\s+v\d+\.4s|fmul\s+v\d+\.4s"),
    ("layer norm", r"fmla\s+v\d+\.4s|fmul\s+v\d+\.4s"),
    ("elementwise", r"fmul\s+v\d+\.4s"),
    ("sum", FMLA),
    ("sum of columns", r"fadd\s+v\d+\.4s"),
    ("attention", FMLA),
])
def test_loops_for_aarch64_compute_with_its_vectors(name: str, instruction: str) -> None:
    case = CASES[name]
    result = case.tensors(*(Tensor(x).realize() for x in case.inputs()))
    text = assembly_for(*AARCH64, result, MACHINES["NEON"])
    assert re.search(instruction, text)
    busy = [loop for loop in innermost_loops(text, r"(b\.|cbn?z|tbn?z)")
            if any(re.match(r"f(mla|mul|add|sub|madd|div)\s", line) for line in loop)]
    lines = [line for loop in busy for line in loop]
    vectors = sum(bool(re.match(r"f\w+\s+v\d+\.4s", line)) for line in lines)
    singles = sum(bool(re.match(r"f(madd|mul|add|sub|div|max\w*)\s+s\d", line)) for line in lines)
    assert singles <= vectors // 8, "lanes left empty"


@pytest.mark.parametrize("name", ["matmul of whole tiles", "matmul, large and odd", "convolution, 3 x 3",
                                  "convolution, odd", "attention of whole tiles"])
def test_tiles_for_avx2_fill_its_registers_and_spill_none(name: str) -> None:
    """12 accumulators, a short side of 2 or 3 operands and one of the long side: 16 registers at most."""
    others = {"convolution, 3 x 3": convolution((2, 16, 28, 28), (64, 16, 3, 3), padding=1),
              "convolution, odd": convolution((5, 37, 31, 43), (53, 37, 3, 3), padding=1)}
    case = others[name] if name in others else CASES[name]
    result = case.tensors(*(Tensor(x).realize() for x in case.inputs()))
    text = assembly_for("x86_64-unknown-linux-gnu", "haswell", result, MACHINES["AVX2"])
    products = [loop for loop in innermost_loops(text, "j")
                if sum(bool(re.match(r"vfmadd231ps", line)) for line in loop) >= 8]
    assert products
    for loop in products:
        if not any("vbroadcastss\t.L" in line for line in loop):  # not the polynomials of exp
            accumulators = {line.split("%ymm")[-1] for line in loop if line.startswith("vfmadd231ps")}
            assert 8 <= len(accumulators) <= 12
            assert not any("rsp" in line for line in loop), "an accumulator was spilled to the stack"
    assert any(len({x.split("%ymm")[-1] for x in loop if x.startswith("vfmadd231ps")}) == 12
               for loop in products)


@pytest.mark.parametrize("columns, rows", [(777, 12), (1024, 6)])
def test_tiles_for_avx512_keep_24_accumulators_in_their_registers(columns: int, rows: int) -> None:
    result = product(777, 777, columns)
    assert Upcast(0, rows) in choose_plan(nest_of(result), MACHINES["AVX-512"].machine).opts
    text = assembly_for("x86_64-unknown-linux-gnu", "skylake-avx512", result, MACHINES["AVX-512"])
    tiles = [loop for loop in innermost_loops(text, "j") if any(x.startswith("vfmadd") for x in loop)]
    assert tiles and all(len({x.split("%zmm")[-1] for x in loop if x.startswith("vfmadd")}) == 24
                         for loop in tiles)
    for line in (line for loop in tiles for line in loop):
        assert "rsp" not in line, "an accumulator was spilled to the stack"
        assert not re.match(r"vmovap\w\s+%zmm\d+, %zmm", line), "accumulators change their places"


@pytest.mark.parametrize("machine, cpu, registers", [("AVX2", "haswell", "ymm"),
                                                     ("AVX-512", "skylake-avx512", "zmm")])
@pytest.mark.parametrize("size, channels, stride", [(30, 64, 2), (42, 52, 1), (56, 64, 1), (40, 32, 1)])
def test_windows_side_by_side_leave_their_accumulators_in_registers(
        machine: str, cpu: str, registers: str, size: int, channels: int, stride: int) -> None:
    """Of taps that are written out, those of neighbouring windows read the same pixels, which are kept."""
    x, weight = Tensor.empty(4, 64, size, size).realize(), Tensor.empty(channels, 64, 3, 3).realize()
    text = assembly_for("x86_64-unknown-linux-gnu", cpu, x.conv2d(weight, stride=stride, padding=1),
                        MACHINES[machine])
    loops = [loop for loop in innermost_loops(text, "j") if any(x.startswith("vfmadd") for x in loop)]
    for line in (line for loop in loops for line in loop):
        assert "rsp" not in line, "an accumulator was spilled to the stack"
        assert not re.match(rf"vmovap\w\s+%{registers}\d+, %{registers}", line), "accumulators change places"


@pytest.mark.parametrize("vectors", range(1, 25))
@pytest.mark.parametrize("machine, most", [("AVX-512", 7), ("NEON", 7), ("AVX2", 4)])
def test_tiles_are_as_wide_as_leaves_one_vector_empty_at_most(machine: str, most: int, vectors: int) -> None:
    """With 32 registers; with 16, tiles of five and more vectors would have two rows."""
    columns = vectors * MACHINES[machine].machine.vector_bytes // 4
    plan = choose_plan(nest_of(Tensor.empty(8, 96, 64).realize() @ Tensor.empty(8, 64, columns).realize()),
                       MACHINES[machine].machine)
    (wide,) = [o for o in plan.opts if type(o) is Vector][:1]
    beside = [o.amount for o in plan.opts if type(o) is Upcast and o.range not in (1, wide.range)][:1]
    size = beside[0] if vectors > 1 else 1
    assert size <= most and -vectors % size <= (1 if most > 4 else 2)


@pytest.mark.parametrize("machine", ["AVX-512", "AVX2", "NEON"])
@pytest.mark.parametrize("threads", [2, 3, 16])
def test_a_panel_that_threads_fill_anew_is_filled_once_by_each(machine: str, threads: int) -> None:
    renderer = LLVMRenderer(dataclasses.replace(MACHINES[machine].machine, threads=threads))
    columns = renderer.machine.vector_bytes // 4  # of one panel
    nest = nest_of(Tensor.empty(347, 650).realize() @ Tensor.empty(columns, 650).realize().T)
    optimised = apply_plan(nest, choose_plan(nest, renderer.machine))
    (stage,) = optimised.nodes_of(Ops.STAGE)
    (shares,) = (r for r in optimised.src[0].closed_ranges if r.kind is RangeKind.THREAD)
    assert shares not in stage.ranges and threads * 0.9 < shares.extent <= threads


@pytest.mark.parametrize("rows, inner, columns, panels", [
    (512, 256, 1024, 8), (777, 777, 777, 7), (512, 1024, 1024, 4), (32, 1024, 1024, 0), (512, 8, 1024, 0)])
def test_rows_are_multiplied_with_several_panels(rows: int, inner: int, columns: int, panels: int) -> None:
    """As many as half the L2 cache holds and threads can share out, where there are rows to read again."""
    machine = dataclasses.replace(MACHINES["AVX-512"].machine, threads=2, l2_bytes=2 << 20)
    plan = choose_plan(nest_of(product(rows, inner, columns)), machine)
    assert [o.amount for o in plan.opts if type(o) is Split] == ([panels] if panels else [])


def test_sums_over_heads_and_their_items_are_two_loops() -> None:
    heads, weight = (Tensor(np.ones(shape, np.float32)).realize() for shape in ((2, 4, 48, 32), (128, 96)))
    result = heads.permute(0, 2, 1, 3).reshape(96, 128) @ weight
    assert Split(2, 32) in choose_plan(nest_of(result), MACHINES["AVX-512"].machine).opts
    text = assembly_for("x86_64-unknown-linux-gnu", "skylake-avx512", result, MACHINES["AVX-512"])
    loop = inner_loop(text, r"vfmadd", "j")
    assert not any(re.match(r"(shr|sar|and|imul|idiv)", line) for line in loop)


def test_few_segment_sums_fill_memory_that_is_near() -> None:
    numbers, rows = Tensor(np.arange(64) * 7).realize(), Tensor(np.ones((64, 256), np.float32)).realize()
    places = Tensor.arange(8000).reshape(1, 8000, 1)
    result = (numbers.reshape(64, 1, 1) == places).where(rows.reshape(64, 1, 256), 0).sum(0)
    machine = cores(vector_bytes=64, registers=32, threads=2, l2_bytes=2 << 20, l3_bytes=400 << 20)
    assert Split(0, 1000) in choose_plan(nest_of(result), machine).opts


def test_tiles_that_write_a_few_items_of_a_line_stay_together() -> None:
    machine = dataclasses.replace(MACHINES["AVX-512"].machine, threads=2, l2_bytes=2 << 20)
    a, b = (Tensor(np.ones((512, n), np.float32)).realize() for n in (1024, 256))
    plan = choose_plan(nest_of(a.T @ b), machine)
    assert plan.opts[0] == Vector(0, 16) and not any(type(o) is Split for o in plan.opts)


@pytest.mark.parametrize("rows, inner, columns", [(70, 200, 450), (130, 300, 1000), (65, 129, 97)])
def test_products_with_several_panels(rows: int, inner: int, columns: int) -> None:
    draw = np.random.default_rng(rows)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


FEATURES_PROGRAM = """
import numpy as np
from tinygrad import Tensor
from tinygrad.runtime.cpu import cpu_renderer
from tinygrad.runtime.limits import LimitMeter

draw = np.random.default_rng(3)
a, b = (draw.standard_normal((61, 61)).astype(np.float32) for _ in range(2))
x, y = Tensor(a).realize(), Tensor(b).realize()
wide, other = a.astype(np.float64), b.astype(np.float64)
weights = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
half = (a * 100).astype(np.float16)
for got, expected in [(x @ y, wide @ other), (x.softmax(), weights), (x.sin(), np.sin(wide)),
                      (x.exp(), np.exp(wide)), (Tensor(half).realize() * 3, half * np.float16(3)),
                      (x.half(), a.astype(np.float16))]:
    np.testing.assert_allclose(got.numpy().astype(np.float64), expected, 1e-5, 1e-5)
renderer = cpu_renderer()
machine = renderer.machine
assert LimitMeter(1).lanes == machine.vector_bytes // 4
print(machine.vector_bytes, machine.registers, machine.contracts, renderer.has_float16)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features of x86-64")
@pytest.mark.parametrize("features, expected", [
    ("-avx512f", "32 16 True True"), ("-avx512f,-avx2,-fma", "16 16 False True"),
    ("-avx", "16 16 False False"), ("-sse4.1", "16 16 False False"), ("-f16c", "32 16 True False")])
def test_kernels_of_a_cpu_without_some_features(features: str, expected: str) -> None:
    if not has_features("avx2", "fma", "f16c"):
        pytest.skip("a CPU without AVX2")
    environment = {**os.environ, "CPU_FEATURES": features, "CACHELEVEL": "0"}
    done = subprocess.run([sys.executable, "-c", FEATURES_PROGRAM], env=environment, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_products_are_not_fused_where_no_instruction_does_it() -> None:
    renderer = LLVMRenderer(cores(vector_bytes=16, registers=16, contracts=False), has_float16=False)
    for result in (product(24, 20, 28), Tensor.ones(64).contiguous().realize().exp(),
                   Tensor.ones(64, dtype="float16").contiguous().realize() * 2):
        text = assembly_for("x86_64-unknown-linux-gnu", "x86-64", result, renderer)
        assert not re.search(r"call\S*\s+(fma|__\w+hf)", text)
        assert re.search(r"mulps\s", text)


def test_a_function_after_a_tile_of_products_leaves_its_accumulators_in_registers() -> None:
    gate = Tensor(np.ones((126, 1024), np.float32)).realize()
    result = gate.silu() * product(126, 256, 1024)
    text = assembly_for("x86_64-unknown-linux-gnu", "haswell", result, MACHINES["AVX2"])
    assert "call" in text and "function0.v8f32" in text
    loop = inner_loop(text, r"vfmadd231ps", r"j\w+\s")
    assert len({line.split("%ymm")[-1] for line in loop if line.startswith("vfmadd231ps")}) == 12
    assert not any("(%rsp)" in line for line in loop), "an accumulator was spilled to the stack"


def test_a_tile_that_overlaps_asks_for_the_next_one_too() -> None:
    image = Tensor(np.ones((2, 64, 41, 201), np.float32)).realize()
    weight = Tensor(np.ones((64, 64, 3, 3), np.float32)).realize()
    plan = choose_plan(nest_of(image.conv2d(weight, stride=2)), MACHINES["AVX2"].machine)
    assert Upcast(3, 3) in plan.opts, "100 columns in tiles of 3"
    assert any(isinstance(o, Prefetch) for o in plan.opts)


@pytest.mark.parametrize("machine, columns, lanes", [
    ("AVX-512", 10, 16), ("AVX-512", 6, 8), ("AVX-512", 17, 16), ("AVX-512", 8, 8), ("AVX2", 6, 8),
    ("AVX2", 10, 8)])
def test_fewer_columns_than_lanes_are_one_vector(machine: str, columns: int, lanes: int) -> None:
    x, weight = Tensor.empty(256, 784), Tensor.empty(784, columns)
    plan = choose_plan(nest_of(x @ weight), MACHINES[machine].machine)
    assert plan.opts[0] == Vector(1, lanes)


@pytest.mark.parametrize("side, joined", [(7, True), (14, True), (57, False)])
def test_pixels_of_small_images_are_one_range_of_rows(side: int, joined: bool) -> None:
    image = Tensor(np.ones((1, 64, side + 2, side + 2), np.float32)).realize()
    weight = Tensor(np.ones((64, 64, 3, 3), np.float32)).realize()
    nest = nest_of(image.conv2d(weight))
    plan = choose_plan(nest, MACHINES["AVX2"].machine)
    assert (Merge(1, 2) in plan.opts) == joined
    assert joined or Upcast(2, 3) in plan.opts, "57 columns in tiles of 3"


@pytest.mark.parametrize("name", ["AVX2", "AVX-512"])
@pytest.mark.parametrize("stride, is_staged", [(1, False), (2, True)])
def test_windows_that_lie_in_rows_are_read_where_they_lie(name: str, stride: int, is_staged: bool) -> None:
    """Panels would hold each pixel nine times; where pixels are two apart, they are loads of whole rows."""
    image = Tensor(np.ones((4, 60, 41, 99), np.float32)).realize()
    weight = Tensor(np.ones((18, 60, 3, 3), np.float32)).realize()
    nest = nest_of(image.conv2d(weight, stride=stride))
    plan = choose_plan(nest, MACHINES[name].machine)
    assert any(isinstance(o, Stage) for o in plan.opts) == is_staged


def test_rows_whose_number_varies_are_no_part_of_a_range_of_two() -> None:
    x = Tensor(np.ones((5, 7, 192), np.float32)).realize()
    weight = Tensor(np.ones((192, 64), np.float32)).realize()
    for count, joined in ((7, True), (Variable("n", 1, 7).bind(5), False)):
        plan = choose_plan(nest_of(x[:, :count] @ weight), MACHINES["AVX2"].machine)
        assert (Merge(0, 1) in plan.opts, Tighten() in plan.opts) == (joined, not joined)


@pytest.mark.parametrize("l2_bytes, tile", [(512 << 10, (2, 6)), (1 << 20, (4, 3))])
def test_a_panel_leaves_room_in_the_cache_for_the_rows(l2_bytes: int, tile: tuple[int, int]) -> None:
    machine = cores(vector_bytes=32, registers=16, l2_bytes=l2_bytes)
    x, weight = (Tensor(np.ones((n, 2560), np.float32)).realize() for n in (240, 256))
    plan = choose_plan(nest_of(x @ weight.T), machine)
    assert tuple(o.amount for o in plan.opts if isinstance(o, Upcast))[:2] == tile, "vectors, rows"


@pytest.mark.parametrize("l1_bytes, columns, held", [
    (32 << 10, 4096, 8), (32 << 10, 2048 + 1024, 8), (48 << 10, 4096, 12), (32 << 10, 1536, 16),
    (32 << 10, 4000, 24), (32 << 10, 3056, 24),
])
@pytest.mark.parametrize("is_layer", [True, False])
def test_a_tile_has_as_many_rows_as_the_first_cache_has_lines_for(l1_bytes: int, columns: int, held: int,
                                                                  is_layer: bool) -> None:
    """Rows that begin pages apart share its ways, where their items are read one by one."""
    machine = cores(vector_bytes=64, registers=32, l1_bytes=l1_bytes)
    many, few = Tensor.empty(4096, columns), Tensor.empty(16, columns)
    result = few @ many.T if is_layer else many @ few.T.contiguous().realize()
    plan = choose_plan(nest_of(result), machine)
    rows, = (o.amount for o in plan.opts[:2] if isinstance(o, Upcast))
    assert held // 2 < rows <= held


@pytest.mark.parametrize("machine, vectors", [("AVX2", 2), ("AVX-512", 4)])
def test_the_sums_of_windows_side_by_side_fit_the_registers(machine: str, vectors: int) -> None:
    image = Tensor(np.ones((1, 16, 58, 256), np.float32)).realize().permute(0, 3, 1, 2)
    weight = Tensor(np.ones((3, 3, 256), np.float32)).realize().permute(2, 0, 1).reshape(256, 1, 3, 3)
    result = image.conv2d(weight, groups=256).permute(0, 2, 3, 1).contiguous()
    plan = choose_plan(nest_of(result), MACHINES[machine].machine)
    assert [o.amount for o in plan.opts if isinstance(o, Upcast)] == [vectors, 7]


def test_long_rows_that_are_read_in_order_are_left_to_the_processor() -> None:
    plan = choose_plan(nest_of(product(512, 1024, 64)), MACHINES["AVX2"].machine)
    assert all(not isinstance(o, Prefetch) for o in plan.opts)


@pytest.mark.parametrize("images, weights, size, stride", [
    ((5, 16), (32, 16, 3, 3), (30, 30), 1),
    ((3, 16), (64, 16, 3, 3), (30, 30), 1),
    ((7, 16), (48, 16, 3, 3), (30, 30), 1),
    # three tiles of channels, each of which fills a panel: that is little work for each image
    ((3, 78), (82, 78, 3, 3), (65, 27), 2),
    ((5, 7), (85, 7, 5, 5), (81, 77), 2),
])
def test_threads_get_about_as_much_work_each(images: tuple[int, int], weights: tuple[int, ...],
                                             size: tuple[int, int], stride: int) -> None:
    machine = cores(vector_bytes=64, registers=32, threads=2)
    image = Tensor(np.ones((*images, *size), np.float32)).realize()
    nest = nest_of(image.conv2d(Tensor(np.ones(weights, np.float32)).realize(), stride=stride))
    nest = apply_plan(nest, choose_plan(nest, machine))
    (shared,) = {r for n in nest.toposort() for r in n.ranges if r.kind is RangeKind.THREAD}
    assert shared.extent / (-(-shared.extent // 2) * 2) >= 0.9


@pytest.mark.parametrize("channels, size, threads", [(192, 7, 2), (320, 7, 2), (192, 14, 2), (384, 14, 4)])
def test_panels_are_shared_out_evenly_where_they_are_read_seldom(channels: int, size: int,
                                                                 threads: int) -> None:
    """Threads that share out the rows would each fill all panels, for as few pixels as there are."""
    machine = cores(vector_bytes=64, registers=32, threads=threads)
    image = Tensor(np.ones((1, 128, size + 2, size + 2), np.float32)).realize()
    weight = Tensor(np.ones((channels, 128, 3, 3), np.float32)).realize()
    nest = nest_of(image.conv2d(weight))
    nest = apply_plan(nest, choose_plan(nest, machine))
    [panel] = [n for n in nest.toposort() if n.op is Ops.STAGE]
    (shared,) = {r for n in nest.toposort() for r in n.ranges if r.kind is RangeKind.THREAD}
    assert shared in panel.ranges and shared.extent % threads == 0


# --- the numbers behind plans and kernels -------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_kernels")
def test_debug_3_prints_the_cost_models_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=3):
        (product(64, 20, 80) + 1).realize()
    printed = capsys.readouterr().out
    assert re.search(r"a multiply-add, against 1 without lanes: r1 as lanes 0\.\d+, r0 as lanes", printed)
    assert re.search(r"a tile of accumulators: rows \d+, vectors \d+, registers \d+", printed)
    assert "threads: work" in printed


def test_debug_3_prints_why_values_are_stored(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.arange(391, dtype=np.float32).reshape(17, 23)).realize()
    with Context(DEBUG=3):
        len((product(17, 20, 23).sin() * x).layernorm().schedule())
    printed = capsys.readouterr().out
    assert re.search(r"fusion: UOp\(.*\): (stored|computed where it is used): again \S+ times work \S+, "
                     r"against 100 to store it for 1 kernel", printed)


def test_nothing_is_noted_when_nobody_asks(capsys: pytest.CaptureFixture[str]) -> None:
    (product(16, 20, 48) + 1).realize()
    assert capsys.readouterr().out == ""


def test_a_small_sum_beside_a_long_one_does_not_take_its_lanes() -> None:
    channels, pieces = 64, 28
    image = Tensor.ones(16, 28, 28, channels).contiguous().realize()
    before = Tensor.ones(channels, pieces).contiguous().realize()
    kernel = (image.permute(3, 0, 1, 2) * before.sum(axis=1).reshape(channels, 1, 1, 1)).sum(axis=(1, 3))
    plan = choose_plan(lower(kernel.schedule()[-1].ast), MACHINES["AVX-512"].machine)
    assert Vector(0, 16) in plan.opts
