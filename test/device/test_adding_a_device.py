"""docs/adding_a_device.md: its blocks are a module, and that module is a device."""
from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit
from tinygrad.codegen.compile import stages_of
from tinygrad.helpers import GlobalCounters

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_device.md"
rng = np.random.default_rng(3)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's device, registered."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "toy_of_the_page.py").write_text("\n\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(type(Device), "FILES", dict(Device.FILES))
    Device.register("TOY", "toy_of_the_page")
    Device.register("TOY:BLOCKS", "toy_of_the_page")
    yield "TOY"
    for name in [n for n in Device.opened if n.upper().startswith("TOY")]:
        del Device.opened[name]
    sys.modules.pop("toy_of_the_page", None)


def test_it_computes_what_numpy_does(toy: str) -> None:
    a, b = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(7, 3)).astype(np.float32)
    x, w = Tensor(a, device=toy), Tensor(b, device="toy:0")
    np.testing.assert_allclose((x @ w).numpy(), a @ b, rtol=1e-5)
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(x.softmax().numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal((x[1:4, ::2].T > 0).numpy(), a[1:4, ::2].T > 0)
    numbers = Tensor([7, -7, 3, 0], device=toy)
    assert (numbers // 2).tolist() == [3, -4, 1, 0] and numbers.cumsum().tolist() == [7, 0, 3, 3]
    assert x.sum().device == "TOY"


def test_blocks_of_threads_share_memory_and_wait_for_each_other(toy: str) -> None:
    a, b = rng.normal(size=(5, 70)).astype(np.float32), rng.normal(size=(70, 9)).astype(np.float32)
    x, w = Tensor(a, device="TOY:BLOCKS"), Tensor(b, device="TOY:BLOCKS")
    sums = x.sum(1)
    source = "".join(Device["TOY:BLOCKS"].renderer.render("k", stages_of(i.ast, "TOY:BLOCKS").program)
                     for i in sums.schedule())
    assert "shared.setdefault" in source and source.count("yield") > 1
    np.testing.assert_allclose(sums.numpy(), a.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((x @ w).numpy(), a @ b, rtol=1e-4, atol=1e-4)
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(x.softmax().numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(x.T.contiguous().numpy(), a.T)


def test_types_that_numpy_has_not_and_casts_beyond_the_range(toy: str) -> None:
    for name in ("bfloat16", "fp8e4m3", "float16"):
        assert (Tensor([1.0, 2.0, -3.0], device=toy, dtype=name) * 2 + 1).tolist() == [3.0, 5.0, -5.0]
    large = Tensor([300.0, -1e30, float("nan"), float("inf"), 2.9], device=toy)
    assert large.cast("int8").tolist() == [127, -128, 0, 127, 2]
    assert large.cast("uint64").tolist() == [300, 0, 0, 2**64 - 1, 2]
    bytes_ = Tensor([100, 100], device=toy, dtype="int8")
    assert (bytes_ * bytes_ + bytes_).tolist() == [(100 * 100 + 100 + 128) % 256 - 128] * 2


def test_gradients_and_replay(toy: str) -> None:
    w = Tensor(np.array([1.0, 2.0, 3.0], np.float32), device=toy, requires_grad=True)

    @TinyJit
    def doubled(x: Tensor) -> Tensor:
        return (x * 2 + w).realize()

    for step in range(4):
        x = Tensor(np.full(3, step, np.float32), device=toy)
        assert doubled(x).tolist() == [2 * step + 1, 2 * step + 2, 2 * step + 3]
    (w * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 4.0, 6.0]


def test_its_memory_is_its_own(toy: str) -> None:
    array = np.arange(4, dtype=np.float32)
    t = Tensor(array, device=toy).realize()
    array[:] = 9
    assert t.tolist() == [0, 1, 2, 3] and t.to("CPU").tolist() == [0, 1, 2, 3]
    assert Tensor([5.0, 6.0], device="CPU").to("TOY:1").to(toy).tolist() == [5.0, 6.0]
    gc.collect()
    used = GlobalCounters.mem_used
    more = Tensor.zeros(1000, device=toy).contiguous().realize()
    assert GlobalCounters.mem_used - used == 4000
    del more


def test_what_it_cannot_say_is_refused_by_name(toy: str) -> None:
    from tinygrad.dtype import dtypes
    from tinygrad.graph.ops import Ops
    from tinygrad.graph.uop import UOp

    with pytest.raises(ValueError, match="TOY cannot say SPECIAL"):
        Device[toy].renderer.render("k", [UOp.new(Ops.SPECIAL, dtypes.index, (), ("gidx0", 4))])
