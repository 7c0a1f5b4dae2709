"""Memory shared with other libraries, pickles and copies."""
from __future__ import annotations

import copy
import gc
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Tensor, dtypes

KINDS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
         "float32", "float64"]


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def held(*values: float, dtype: str = "float32") -> Tensor:
    return Tensor(np.array(values), dtype=dtype).realize()


# --- NumPy and buffers ----------------------------------------------------------------------------


@pytest.mark.usefixtures("on_cpu")
def test_asarray_is_a_read_only_view_and_numpy_a_copy() -> None:
    t = held(1, 2, 3)
    view = np.asarray(t)
    assert address(view) == address(np.asarray(t)) != address(t.numpy())
    assert not view.flags.writeable and t.numpy().flags.writeable
    t.assign(Tensor([4.0, 5.0, 6.0])).realize()
    assert view.tolist() == [4, 5, 6]


def test_array_of_another_dtype_or_with_copy_is_a_copy() -> None:
    t = held(1, 2)
    assert np.asarray(t, np.float64).dtype == np.float64
    assert address(np.array(t)) != address(np.asarray(t))
    with pytest.raises(ValueError, match="no memory that a NumPy array of float64 could share"):
        t.__array__(np.float64, copy=False)
    with pytest.raises(ValueError, match="no memory"):
        Tensor.ones(3).__array__(copy=False)


@pytest.mark.usefixtures("on_cpu")
def test_views_are_shared_in_their_own_order() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    t = Tensor(x.copy()).realize()
    for view, wanted in ((t.permute(2, 0, 1), x.transpose(2, 0, 1)), (t[:, 1:, ::2], x[:, 1:, ::2])):
        array = np.asarray(view)
        np.testing.assert_array_equal(array, wanted)
        assert array.strides == wanted.strides and np.shares_memory(array, np.asarray(t))


@pytest.mark.parametrize("view", [lambda t: t.flip(0), lambda t: t.unsqueeze(0).expand(2, 3),
                                  lambda t: t.pad((1, 1)), lambda t: t * 2, lambda t: t[:0]])
def test_other_views_and_lazy_values_are_right_too(view) -> None:
    t = held(1, 2, 3)
    for array in (np.asarray(view(t)), np.from_dlpack(view(t)), np.asarray(view(t).data())):
        np.testing.assert_array_equal(array, view(t).numpy())


def test_shared_memory_outlives_the_tensor() -> None:
    arrays = []
    for i in range(20):
        arrays.append(np.asarray((Tensor.full((1000,), float(i)).contiguous() + 0).realize()))
        gc.collect()
    assert [a[0] for a in arrays] == list(range(20)) and all((a == a[0]).all() for a in arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_data_is_a_memoryview_of_the_shape(kind: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(kind)
    view = Tensor(x).data()
    assert (view.shape, view.readonly, view.tobytes()) == ((2, 3), True, x.tobytes())
    assert view.format == memoryview(x).format


def test_data_of_bfloat16_is_its_bits() -> None:
    assert held(1, -2, dtype="bfloat16").data().tolist() == [0x3F80, 0xC000]


if sys.version_info >= (3, 12):  # from which on classes have buffers
    def test_memoryview_of_a_tensor() -> None:
        assert memoryview(held(1, 2)).tolist() == [1, 2]


def test_a_writable_buffer_is_refused() -> None:
    with pytest.raises(BufferError, match="read-only"):
        held(1).__buffer__(1)
    assert held(1).__buffer__(0).tolist() == [1]


# --- DLPack with NumPy ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_dlpack_both_ways_without_a_copy(kind: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(kind)
    t = Tensor.from_dlpack(x)
    assert t.dtype.name == kind and t.shape == (2, 3)
    back = np.from_dlpack(t)
    assert address(back) == address(x)
    x[1, 2] = 0
    assert t[1, 2].item() == 0


def test_from_dlpack_keeps_the_order_of_axes() -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    t = Tensor.from_dlpack(x.transpose(1, 2, 0))
    np.testing.assert_array_equal(t.numpy(), x.transpose(1, 2, 0))
    assert np.shares_memory(np.asarray(t), x)
    gaps = Tensor.from_dlpack(x[:, ::2])
    np.testing.assert_array_equal(gaps.numpy(), x[:, ::2])
    assert Tensor.from_dlpack(np.zeros((0, 3))).shape == (0, 3)
    assert Tensor.from_dlpack(np.array(3.0)).item() == 3


def test_read_only_memory_is_copied() -> None:
    x = np.ones(3)
    x.flags.writeable = False
    Tensor.from_dlpack(x).assign(Tensor.zeros(3, dtype="float64")).realize()
    assert x.tolist() == [1, 1, 1]


def test_dlpack_options() -> None:
    t = held(1, 2)
    assert address(np.from_dlpack(t, copy=True)) != address(np.asarray(t))
    with pytest.raises(BufferError, match="no memory that could be shared"):
        t.flip(0).__dlpack__(copy=False)
    assert t.__dlpack_device__() == (1, 0)


def test_what_from_dlpack_refuses() -> None:
    with pytest.raises(TypeError, match="an object with __dlpack__, got a list"):
        Tensor.from_dlpack([1, 2])
    with pytest.raises(TypeError, match="no tensor type for NumPy type complex"):
        Tensor.from_dlpack(np.ones(2, complex))

    class OnGpu:
        def __dlpack__(self) -> None: ...

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(BufferError, match=r"DLPack device \(2, 0\)"):
        Tensor.from_dlpack(OnGpu())


# --- PyTorch --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16",
                                  "float32", "float64"])
def test_torch_shares_memory_both_ways(kind: str) -> None:
    torch = pytest.importorskip("torch")
    t = held(0, 1, 1, 0, dtype=kind).reshape(2, 2)
    theirs = torch.from_dlpack(t)
    assert theirs.dtype is getattr(torch, kind) and theirs.tolist() == t.tolist()
    theirs[0, 0] = 1
    assert t.tolist()[0] == [1, 1]

    ours = Tensor.from_dlpack(theirs.T)
    assert ours.dtype == t.dtype and ours.tolist() == theirs.T.tolist()
    theirs[0, 1] = 0
    assert ours.tolist()[1][0] == 0


def test_torch_keeps_memory_alive_and_the_other_way_round() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.from_dlpack((Tensor.arange(1000) + 1).realize())
    ours = Tensor.from_dlpack(torch.arange(1000) + 2)
    gc.collect()
    junk = [(Tensor.arange(1000) * i).realize() for i in range(9)] + [torch.zeros(1000) for _ in range(9)]
    assert theirs.tolist() == list(range(1, 1001)) and ours.tolist() == list(range(2, 1002))
    assert len(junk) == 18


def test_fp8_goes_to_torch() -> None:
    torch = pytest.importorskip("torch")
    for ours, theirs in (("fp8e4m3", torch.float8_e4m3fn), ("fp8e5m2", torch.float8_e5m2)):
        shared = torch.from_dlpack(held(1, -2, dtype=ours))
        assert shared.dtype is theirs and shared.float().tolist() == [1, -2]


@pytest.mark.parametrize("ours, theirs", [("bfloat16", "bfloat16"), ("fp8e4m3", "float8_e4m3fn"),
                                          ("fp8e5m2", "float8_e5m2"), ("float16", "float16")])
def test_tensors_are_made_of_torchs_of_every_float(ours: str, theirs: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.0, -2.0], [0.5, 4.0]]).to(getattr(torch, theirs))
    for made, values in ((Tensor(x), x), (Tensor(x.T), x.T), (Tensor(x[0, 1]), x[0, 1]),
                         (Tensor([x[0], x[1]]), x)):
        assert made.dtype.name == ours and made.tolist() == values.float().tolist()
    assert Tensor(x, dtype="float32").dtype is dtypes.float32
    held = Tensor(x)
    x[0, 0] = 2.0
    assert held.tolist()[0] == [1.0, -2.0]  # a copy, as of other types


# --- pickles and copies ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "bfloat16", "fp8e4m3"])
def test_pickling_keeps_values_and_dtype(kind: str) -> None:
    t = Tensor([[0, 1], [1, 0]], dtype=kind)
    for other in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t), copy.copy(t)):
        assert (other.dtype, other.tolist()) == (t.dtype, t.tolist())


def test_deepcopy_has_memory_and_gradient_of_its_own() -> None:
    t = Tensor([1.0, 2.0], requires_grad=True)
    (t * t).sum().backward()
    both = copy.deepcopy([t, t])
    assert both[0] is both[1] and both[0].requires_grad
    both[0].assign(Tensor([7.0, 7.0])).realize()
    assert t.tolist() == [1, 2] and t.grad is not None and both[0].grad is not None
    assert both[0].grad is not t.grad and both[0].grad.tolist() == t.grad.tolist() == [2, 4]
    (both[0] * 3).sum().backward()
    assert (both[0].grad.tolist(), t.grad.tolist()) == ([5, 7], [2, 4])


def test_copy_is_another_handle_on_the_same_memory() -> None:
    t = held(1, 2)
    other = copy.copy(t)
    t.assign(Tensor([3.0, 4.0])).realize()
    assert other is not t and other.tolist() == [3, 4]


def test_deepcopies_of_views_and_constants() -> None:
    x = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    for t, wanted in ((Tensor(x).T, x.T), (Tensor.ones(2, dtype=dtypes.int8), np.ones(2, np.int8))):
        np.testing.assert_array_equal(copy.deepcopy(t).numpy(), wanted)
