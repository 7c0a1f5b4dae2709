"""What scripts written for tinygrad import and pass: each name means what it says, or its error says what to
write instead."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tinygrad.dtype
import tinygrad.helpers
from tinygrad import Context, Device, Tensor, UOp, Variable, dtypes, function, nn
from tinygrad.compat import settings
from tinygrad.device import is_dtype_supported
from tinygrad.helpers import ContextVar, cache_dir, getenv
from tinygrad.nn.optim import LAMB, LARS, SGD, Adam, AdamW, Muon, Optimizer


def in_new_process(code: str, **variables: str) -> tuple[str, str]:
    """What a program prints, and what it writes to standard error."""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env={**os.environ, **variables})
    return found.stdout.strip(), found.stderr


# --- settings -----------------------------------------------------------------------------------------------


def test_training_is_one_switch_with_three_names() -> None:
    from tinygrad.helpers import TRAINING

    with Context(TRAINING=1):
        assert Tensor.training is True and TRAINING and TRAINING.value == 1
        with Tensor.train(False):
            assert not TRAINING
        assert Tensor.training
    assert not Tensor.training and not TRAINING and TRAINING == 0
    Tensor.training = True
    assert TRAINING
    Tensor.training = False

    @Context(TRAINING=1)
    def dropped() -> list[float]:
        return Tensor.ones(100).dropout(0.5).tolist()

    assert set(dropped()) == {0.0, 2.0}


@pytest.mark.parametrize("name", ["HALF", "half", "float16", dtypes.half])
def test_the_default_float_is_a_setting(name: str) -> None:
    with Context(DEFAULT_FLOAT=name):
        assert Tensor.ones(2).dtype is Tensor([1.5]).dtype is dtypes.default_float is dtypes.float16
        assert nn.Linear(2, 2).weight.dtype is dtypes.float16
    assert Tensor.ones(2).dtype is dtypes.float32


def test_default_types_are_of_their_kind() -> None:
    with Context(DEFAULT_INT="int64"):
        assert Tensor([1]).dtype is dtypes.int64
    with pytest.raises(ValueError, match=r"DEFAULT_FLOAT takes a type of this kind, got dtypes\.int32"):
        Context(DEFAULT_FLOAT="int32")
    with pytest.raises(TypeError, match="'quarter' is not a dtype"):
        Context(DEFAULT_FLOAT="quarter")
    assert dtypes.default_float is dtypes.float32


def test_the_default_device_is_a_setting() -> None:
    before = Device.DEFAULT
    with Context(DEV="PYTHON"):
        assert Device.DEFAULT == Tensor([1]).device == "PYTHON"
    assert before == Device.DEFAULT
    with pytest.raises(ValueError, match="'TOASTER' is not the name of a device"):
        Context(DEV="TOASTER")


def test_settings_of_tinygrad_are_accepted_and_others_refused() -> None:
    with Context(**{name: known.default for name, known in settings.UNUSED.items()}):
        assert (Tensor([1.0]) + 1).tolist() == [2.0]
    with Context(BEAM=0, IGNORE_BEAM_CACHE=1, SPLIT_REDUCEOP=0):
        assert tinygrad.helpers.SPLIT_REDUCEOP == 0
    assert tinygrad.helpers.SPLIT_REDUCEOP == 1
    with pytest.raises(ValueError, match=r"no setting named TRAININ; there are DEBUG, .*TRAINING"):
        Context(TRAININ=1)


def test_no_setting_that_acts_is_said_to_do_nothing() -> None:
    acting = {name for name, known in ContextVar.registry.items() if not isinstance(known, settings.Ignored)}
    assert not acting & set(settings.UNUSED)


def test_the_environment_sets_what_context_sets() -> None:
    said, warned = in_new_process(
        "from tinygrad import Tensor; print(Tensor.ones(1).dtype, Tensor([1]).dtype, Tensor.training)",
        DEFAULT_FLOAT="HALF", DEFAULT_INT="long", TRAINING="1")
    assert said == "dtypes.float16 dtypes.int64 True" and not warned


def test_variables_that_do_nothing_are_named_in_one_warning() -> None:
    _, warned = in_new_process("import tinygrad", IMAGE="2", FLOAT16="1", RING="1", CUDA="1", CPU="0")
    assert warned.count("Warning") == 1
    assert "do nothing here: FLOAT16=1 (see DEFAULT_FLOAT=HALF), IMAGE=2 (see DEV=CL:IMAGES), CUDA=1 (see " \
           "DEV=CUDA); docs/for_users_of_tinygrad.md" in warned
    assert "RING" not in warned  # set to what it is in tinygrad anyway
    assert in_new_process("import tinygrad")[1] == ""


def test_no_color_leaves_colours_out() -> None:
    assert tinygrad.helpers.colored("x", "red") != "x"
    with Context(NO_COLOR=1):
        assert tinygrad.helpers.colored("x", "red") == "x"


# --- helpers ------------------------------------------------------------------------------------------------


def test_helpers_are_importable_where_scripts_look_for_them() -> None:
    from tinygrad.helpers import (  # noqa: F401
        BEAM,
        FUSE_OPTIM,
        IMAGE,
        OSX,
        WIN,
        WINO,
        all_int,
        diskcache_clear,
        fetch,
        profile_marker,
        tqdm,
        trange,
    )

    profile_marker("epoch 1")
    assert all_int((1, 2)) and not all_int((1, 2.0))
    assert [sys.platform == "darwin", sys.platform == "win32"] == [OSX, WIN]
    with pytest.raises(ImportError, match="cannot import name 'no_such_helper'"):
        from tinygrad.helpers import no_such_helper  # noqa: F401
    assert getenv("NO_SUCH_VARIABLE", 3) == 3


def test_helpers_of_numbers_and_sequences() -> None:
    h = tinygrad.helpers
    assert [h.next_power2(n) for n in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    assert h.merge_dicts([{1: 2}, {3: 4}, {1: 2}]) == {1: 2, 3: 4}
    with pytest.raises(ValueError, match="1 is 2 and 3"):
        h.merge_dicts([{1: 2}, {1: 3}])
    with pytest.raises(ValueError, match="there must be one item, got 2"):
        h.get_single_element([1, 2])
    with pytest.raises(ValueError, match=r"one by one or as one sequence, got \(\(1, 2\), 3\)"):
        h.argfix((1, 2), 3)
    assert h.get_single_element([4]) == 4 and h.to_tuple(3) == (3,) == h.to_tuple((3,))
    assert h.size_to_str(1023) == "1023 B" and h.size_to_str(5 << 30) == "5.00 GB"
    assert h.time_to_str(2e-6) == "    2.00us" and h.ansilen(h.colored("abc", "red")) == 3
    assert h.to_function_name(h.colored("r 4", "red")) == "r204"


def test_a_child_is_found_by_the_name_that_a_state_dict_has_for_it() -> None:
    class Block:
        def __init__(self) -> None:
            self.layers = [nn.Linear(2, 3), {"norm": nn.LayerNorm(3)}]

    model = Block()
    for name, tensor in nn.state.get_state_dict(model).items():
        assert tinygrad.helpers.get_child(model, name) is tensor
    with pytest.raises(AttributeError, match="missing"):
        tinygrad.helpers.get_child(model, "missing.weight")


def test_memory_is_seen_by_its_address() -> None:
    data = np.arange(4, dtype=np.uint8)
    view = tinygrad.helpers.to_mv(data.ctypes.data, 4)
    view[1] = 9
    assert data.tolist() == [0, 9, 2, 3]
    assert list(tinygrad.helpers.from_mv(view, ctypes.c_uint16)) == list(data.view(np.uint16))
    assert tinygrad.helpers.flat_mv(memoryview(data.reshape(2, 2))).shape == (4,)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield cache_dir()


def test_results_are_kept_on_disk_until_they_are_cleared(own_cache: Path) -> None:
    from tinygrad.helpers import diskcache, diskcache_clear, diskcache_get, diskcache_put

    calls: list[int] = []

    @diskcache
    def square(x: int, times: int = 1) -> int:
        calls.append(x)
        return x * x * times

    (own_cache / "downloads").mkdir(parents=True)
    assert [square(3), square(3), square(3, times=2), square(4)] == [9, 9, 18, 16] and calls == [3, 3, 4]
    assert diskcache_put("table", {"a": 1}, [1, 2]) == diskcache_get("table", {"a": 1}) == [1, 2]
    diskcache_clear()
    assert diskcache_get("table", {"a": 1}) is None and (own_cache / "downloads").exists()
    with Context(CACHELEVEL=0):
        assert square(3) == 9 and diskcache_get("table", 1) is None and not (own_cache / "results").exists()
    assert calls == [3, 3, 4, 3]


# --- dtypes and devices -------------------------------------------------------------------------------------


def test_dtype_has_the_names_of_tinygrad() -> None:
    from tinygrad.dtype import ConstType, _from_np_dtype, _to_np_dtype, can_lossless_cast, least_upper_dtype

    assert isinstance(1.5, ConstType) and not isinstance("x", ConstType)
    assert least_upper_dtype(dtypes.int8, dtypes.uint8) is dtypes.int16
    assert _to_np_dtype(dtypes.int16) is np.int16 and _from_np_dtype(np.dtype("int16")) is dtypes.int16
    for source in (dtypes.bool, *dtypes.ints):
        for target in (*dtypes.ints, *dtypes.floats):
            ends = np.array([source.min, source.max], source.numpy)
            with np.errstate(all="ignore"):
                back = ends.astype(target.numpy).astype(object)
            exact = [int(b) if np.isfinite(float(b)) else None for b in back] == ends.astype(object).tolist()
            assert not can_lossless_cast(source, target) or exact, (source, target)


@pytest.mark.parametrize("dtype", dtypes.all)
def test_truncate_gives_what_memory_of_the_type_has(dtype: dtypes) -> None:
    for number in (0, 1, 3, 200, 0.1, -1.75, 70000.0):
        if not dtype.is_float and (number < 0 or number != int(number)):
            continue  # what a cast makes of these is not said
        held = Tensor([number], dtype=dtypes.float64 if dtype.is_float else dtypes.int64).cast(dtype).item()
        np.testing.assert_equal(tinygrad.dtype.truncate[dtype](number), held)


def test_devices_say_which_types_they_compute_with() -> None:
    supported = Device["CPU"].renderer.supported_dtypes()
    assert supported == set(dtypes.all)
    assert all(is_dtype_supported(dtype, "CPU") for dtype in supported)
    renderer = Device["CPU"].renderer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renderer, "machine", replace(renderer.machine, missing=frozenset({dtypes.float64})))
        assert not is_dtype_supported(dtypes.float64, "CPU")
        assert renderer.supported_dtypes() == set(dtypes.all) - {dtypes.float64}


# --- tensors ------------------------------------------------------------------------------------------------


def test_parameters_are_what_optimizers_change() -> None:
    weight, buffer = Tensor([1.0, 2.0]), Tensor([5.0]).is_param_(False)
    assert weight.is_param and not buffer.is_param and weight.is_param_() is weight
    optimizer = SGD([weight, buffer], lr=0.5)
    assert optimizer.params == [weight] and optimizer.buffers == [buffer]
    with Context(TRAINING=1):
        (weight * buffer).sum().backward()
        optimizer.step()
    assert weight.tolist() == [-1.5, -0.5] and buffer.tolist() == [5.0] and buffer.grad is None
    assert buffer.is_param_().is_param
    assert nn.BatchNorm(2).running_mean.is_param is False


@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW, LAMB, LARS, Muon])
def test_optimizers_take_fused(optimizer: type[Optimizer]) -> None:
    results = []
    for options in ({}, {"fused": True}):
        weight = Tensor([[1.0, 2.0]])
        weight.grad = Tensor([[0.5, -1.0]])
        optimizer([weight], lr=0.1, **options).step()
        results.append(weight.tolist())
    assert results[0] == results[1] != [[1.0, 2.0]]
    assert Optimizer([weight], 0.1, None, True).params == [weight]


def test_a_path_is_the_bytes_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(8)))
    on_disk = Tensor(path)
    assert on_disk.device == f"DISK:{path}" and on_disk.dtype is dtypes.uint8
    assert on_disk[2:4].tolist() == [2, 3]
    pairs = Tensor(path, dtype=dtypes.uint16, device="CPU")
    assert pairs.device == "CPU" and pairs.tolist() == np.arange(8, dtype="u1").view("u2").tolist()
    with pytest.raises(OSError):
        Tensor(tmp_path / "missing")


def test_a_tensor_over_memory_at_an_address() -> None:
    array = np.arange(6, dtype=np.int32)
    tensor = Tensor.from_blob(array.ctypes.data, (2, 3), dtype=dtypes.int32, device="CPU")
    array[5] = -1
    assert tensor.tolist() == [[0, 1, 2], [3, 4, -1]]
    tensor.assign(tensor * 2).realize()
    assert array.tolist() == [0, 2, 4, 6, 8, -2]
    with pytest.raises(ValueError, match="an address of int32 items is a multiple of 4"):
        Tensor.from_blob(array.ctypes.data + 1, (1,), dtype=dtypes.int32)


def test_sharded_as_another_tensor_is() -> None:
    devices = ("CPU", "CPU:1")
    rows, whole = Tensor.ones(4, 2).shard(devices, axis=1), Tensor.ones(4, 2).shard(devices)
    for like in (rows, whole, Tensor.ones(4, 2)):
        own = Tensor.arange(8).reshape(4, 2).shard_like(like)
        assert own.device == like.device and own._cuts == like._cuts
        assert (own + like).tolist() == (np.arange(8).reshape(4, 2) + 1.0).tolist()


def test_constants_take_buffer() -> None:
    for buffer in (True, False):
        assert Tensor.full((2,), 3.0, buffer=buffer).tolist() == [3.0, 3.0]
        assert Tensor.zeros(2, buffer=buffer).assign(Tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
        assert Tensor.ones(2).zeros_like(buffer=buffer).tolist() == [0.0, 0.0]


def test_what_cannot_mean_anything_says_what_to_write() -> None:
    from tinygrad.uop.ops import KernelInfo

    with pytest.raises(NotImplementedError, match=r"methods of Tensor.*tinygrad\.Function"):
        Tensor.empty(2).custom_kernel(Tensor.ones(2), fxn=lambda c, a: None)
    with pytest.raises(NotImplementedError, match="not written by hand here"):
        KernelInfo(name="add")
    with pytest.raises(NotImplementedError, match=r"derive from tinygrad\.Function"):
        function(lambda x: x, grad_fxn=lambda gradient, call: ())
    with pytest.raises(ImportError, match=r"has no UPat here.*tinygrad\.graph"):
        from tinygrad.uop.ops import UPat  # noqa: F401


# --- functions and nodes ------------------------------------------------------------------------------------


def test_a_function_is_what_it_decorates() -> None:
    class Scale:
        def __init__(self) -> None:
            self.weight = Tensor([3.0, 4.0])

        @function(precompile=True, allow_implicit=True)
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.weight

    model, x = Scale(), Tensor([1.0, 2.0])
    model(x).sum().backward()
    assert model(x).tolist() == [3.0, 8.0]
    assert model.weight.grad is not None and model.weight.grad.tolist() == [1.0, 2.0]


def test_nodes_are_importable_where_scripts_look_for_them() -> None:
    from tinygrad.uop import Ops
    from tinygrad.uop.ops import AxisType, resolve, sint, smax, smin, sym_infer
    from tinygrad.uop.ops import UOp as Node
    from tinygrad.uop.ops import Variable as VariableNode

    n = Variable("n", 1, 10)
    assert Node is UOp and isinstance(n.bind(3), VariableNode) and isinstance(n, sint) and isinstance(3, sint)
    assert Ops.ADD in Ops and AxisType.LOOP in AxisType
    assert resolve(True) and resolve(n > 20, False) is False and resolve(n.bind(3) < 4, False)
    assert smax(2, 5) == smax([2, 5]) == 5 and smin(n.bind(3) + 1, 20) == smin(20, n.bind(3) + 1)
    assert sym_infer(n * 2 + 1, {"n": 4}) == 9 and sym_infer(7, {}) == 7
