"""What users are told when they ask for something that cannot be: the error, at their call, by its text."""

import numpy as np
import pytest

from tinygrad import Device, Tensor, TinyJit, Variable, dtypes, nn
from tinygrad.engine.capture import JitError

t23 = Tensor(np.zeros((2, 3), np.float32))


class ForeignArray:
    """Another library's array."""

    def __dlpack__(self):
        raise AssertionError("an operand is not taken over by the way")


ints = Tensor([1, 2, 3])
TWO_DEVICES = f"different devices: {', '.join(sorted((Device.DEFAULT, 'NULL')))}"
images = Tensor.zeros(1, 4, 5, 5)

CASES = {
    # what is asked: (call, error, parts of the text)
    "shapes that do not broadcast": (
        lambda: t23 + Tensor([1.0, 2.0]),
        ValueError,
        "add: shapes (2, 3) and (2,) do not broadcast",
    ),
    "a list for a tensor": (lambda: t23.cross_entropy([0, 1]), TypeError,
                            "cross_entropy takes a tensor as Y, got a list; Tensor(x) makes one"),
    "an array for a tensor": (lambda: t23.gather(0, np.array([[0]])), TypeError,
                              "gather takes a tensor as index, got a ndarray"),
    "None for a tensor": (lambda: images.conv2d(None), TypeError,
                          "conv2d takes a tensor as weight, got a NoneType"),
    "a number among tensors": (lambda: t23.cat(t23, 5), TypeError, "cat takes tensors, got a int"),
    "an array among tensors": (lambda: Tensor.stack([t23, np.ones((2, 3))]), TypeError,
                               "stack takes tensors, got a ndarray; Tensor(x) makes one"),
    "an array after a tensor": (lambda: t23.cat(np.ones((2, 3))), TypeError,
                                "cat takes tensors, got a ndarray"),
    "an array for a weight": (lambda: t23.linear(np.ones((3, 2))), TypeError,
                              "linear takes a tensor as weight, got a ndarray"),
    "an array in a formula": (lambda: Tensor.einsum("ij,j->i", t23, np.ones(3)), TypeError,
                              "einsum takes tensors, got a ndarray"),
    "places before the point of integers": (lambda: Tensor([12]).round(decimals=-1), TypeError,
                                            "round to decimals=-1 takes floats, got int32"),
    "where as PyTorch's method": (lambda: t23.where(t23 > 0, 0.0), TypeError,
                                  "x.where(condition, y) is Tensor.where(condition, x, y)"),
    "a number for a gradient": (lambda: t23.sum().backward(1.0), TypeError,
                                "backward takes a tensor as gradient, got a float"),
    "where shapes": (lambda: (t23 > 0).where(Tensor([1, 2]), 0), ValueError, "where: shapes (2, 3) and (2,)"),
    "matmul sizes": (
        lambda: t23 @ t23,
        ValueError,
        "dot of shapes (2, 3) and (2, 3): the last axis of the first has 3 items, axis -2",
    ),
    "matmul of a number": (lambda: t23 @ Tensor(1.0), ValueError, "dot takes tensors with axes"),
    "reshape size": (
        lambda: t23.reshape(4, 2),
        ValueError,
        "cannot reshape (2, 3) (6 items) to (4, 2) (8 items)",
    ),
    "reshape with -1": (lambda: t23.reshape(4, -1), ValueError, "cannot reshape (2, 3) (6 items) to (4, -1)"),
    "reshape with two -1": (lambda: t23.reshape(-1, -1), ValueError, "one -1 at most"),
    "reshape to floats": (lambda: t23.reshape(2.0, 3), TypeError, "reshape takes a shape of integers"),
    "axis of sum": (
        lambda: t23.sum(2),
        IndexError,
        "sum: axis 2 is not in [-2, 1], the axes of shape (2, 3)",
    ),
    "axis of softmax": (lambda: t23.softmax(-3), IndexError, "softmax: axis -3"),
    "axis twice": (lambda: t23.mean((0, -2)), ValueError, "mean: axis (0, -2) names an axis twice"),
    "axis that is no integer": (lambda: t23.sum(1.0), TypeError, "sum takes an integer axis, got 1.0"),
    "permute": (lambda: t23.permute(0), ValueError, "permute takes every axis of shape (2, 3) once"),
    "expand": (
        lambda: t23.expand(4, 3),
        ValueError,
        "cannot expand (2, 3) to (4, 3): only axes of size 1 grow",
    ),
    "cat": (
        lambda: t23.cat(Tensor.zeros(2, 4)),
        ValueError,
        "cat along axis 0 takes shapes equal elsewhere, got (2, 3), (2, 4)",
    ),
    "stack": (lambda: t23.stack(ints), ValueError, "stack takes equal shapes, got (2, 3), (3,)"),
    "split": (
        lambda: t23.split([1, 3]),
        ValueError,
        "split: sizes (1, 3) do not add up to the 2 items of axis 0",
    ),
    "pad pairs": (lambda: t23.pad(((1, 1),)), ValueError, "pad takes a pair for each axis of shape (2, 3)"),
    "pad mode": (
        lambda: t23.pad((1, 1), mode="wrap"),
        ValueError,
        "pad mode is 'constant', 'reflect', 'replicate' or 'circular', got 'wrap'",
    ),
    "crop too much": (lambda: t23.pad((-2, -2)), ValueError, "pad by (-2, -2) crops more than axis 1"),
    "reflect too far": (
        lambda: t23.pad((3, 0), mode="reflect"),
        ValueError,
        "takes sizes up to 2 for an axis of 3 items",
    ),
    "rearrange": (lambda: t23.rearrange("a b -> a"), ValueError, "must name the same axes"),
    "einsum terms": (lambda: Tensor.einsum("ij,jk", t23), ValueError, "has 2 terms, but 1 operands"),
    "einsum sizes": (
        lambda: Tensor.einsum("ij,jk", t23, t23),
        ValueError,
        "einsum: axis 'j' has sizes 3 and 2",
    ),
    "index out of range": (
        lambda: t23[2],
        IndexError,
        "index 2 is out of range for axis 0 of 2 items, of shape (2, 3)",
    ),
    "too many indices": (lambda: t23[0, 0, 0], IndexError, "too many indices: 3 for shape (2, 3)"),
    "two ellipses": (lambda: t23[..., ...], IndexError, "one Ellipsis at most"),
    "index of floats": (
        lambda: t23[Tensor([0.5])],
        IndexError,
        "an index is integers or bools, got dtypes.float32",
    ),
    "index of a string": (
        lambda: t23["a"],
        IndexError,
        "an index is an int, a slice, None, Ellipsis, a list or a tensor, got 'a'",
    ),
    "mask that does not fit": (
        lambda: t23[Tensor([True, False, True])],
        IndexError,
        "a mask of shape (3,) does not fit axes (2,)",
    ),
    "slice step": (lambda: t23[::0], ValueError, "a step other than 0"),
    "gather index": (lambda: t23.gather(0, Tensor([[0.5]])), TypeError, "gather takes an integer index"),
    "gather shape": (lambda: t23.gather(0, Tensor([[0] * 4])), ValueError, "an index of shape (1, 4)"),
    "scatter reduce": (
        lambda: t23.scatter_reduce(0, Tensor([[0]]), t23, "max"),
        ValueError,
        "'amax' or 'amin', got 'max'",
    ),
    "setitem shape": (
        lambda: t23.clone().realize().__setitem__(0, [1.0, 2.0]),
        ValueError,
        "setitem: shapes (3,) and (2,) do not broadcast",
    ),
    "setitem dtype": (
        lambda: Tensor([1, 2]).__setitem__(0, Tensor(1.5)),
        TypeError,
        "setitem: dtypes.float32 values would be cut to dtypes.int32",
    ),
    "assign shape": (lambda: ints.clone().assign(Tensor([1, 2])), ValueError, "assign: shapes (3,) and (2,)"),
    "assign dtype": (
        lambda: ints.clone().assign(Tensor([1.0, 2.0, 3.0])),
        TypeError,
        "assign: dtypes.float32 values would be cut",
    ),
    "gradient at a list": (
        lambda: t23.sum().gradient([t23]),
        TypeError,
        "gradient takes tensors as targets, x.gradient(a, b), target 0 is a list",
    ),
    "interpolate to one size": (
        lambda: Tensor.ones(1, 1, 4, 4).interpolate(2),
        TypeError,
        "interpolate takes a size for each of the last axes, such as (8, 8), got 2",
    ),
    "saving a number": (
        lambda: nn.state.safe_save({"a": Tensor([1]), "n": 3}, "unwritten.safetensors"),
        TypeError,
        "a safetensors file holds tensors alone, got int as 'n'",
    ),
    "bits of floats": (lambda: t23 & 1, TypeError, "bitwise_and takes integers or bools, got dtypes.float32"),
    "shift of floats": (lambda: t23 << 1, TypeError, "lshift takes integers, got dtypes.float32"),
    "shift by less than nothing": (
        lambda: Tensor([1]) >> np.int64(-1), ValueError, "rshift takes a count of at least 0, got -1"),
    "invert floats": (lambda: ~t23, TypeError, "bitwise_not takes integers or bools"),
    "minus bools": (lambda: -(t23 > 0), TypeError, "neg takes numbers, got bools"),
    "operand": (lambda: t23 + "a", TypeError, "add takes tensors and numbers, got a str"),
    "operand of another library": (
        lambda: t23 * ForeignArray(),
        TypeError,
        "ForeignArray; Tensor.from_dlpack(x) makes it one",
    ),
    "negative power of integers": (lambda: ints**-1, ValueError, "to the negative integer -1: cast the base"),
    "one_hot of floats": (lambda: t23.one_hot(3), TypeError, "one_hot takes integers"),
    "max of nothing": (lambda: Tensor.zeros(0, 2).max(0), ValueError, "max over an axis without items"),
    "argmax of nothing": (lambda: Tensor([]).argmax(), ValueError, "argmax over an axis without items"),
    "topk": (lambda: t23.topk(4), ValueError, "topk takes 0 <= k <= 3"),
    "clip": (lambda: t23.clip(), ValueError, "clip takes min_, max_ or both"),
    "clip by both names": (lambda: t23.clip(min=0, min_=0), TypeError, "min_ and min are two names of one"),
    "scatter source": (
        lambda: t23.scatter(0, Tensor([[0, 0]]), Tensor([[1.0]])),
        ValueError,
        "scatter: a source of shape (1, 1) has no item for each of an index of shape (1, 2)",
    ),
    "scatter dtype": (
        lambda: t23.scatter(0, Tensor([[0]]), Tensor([[1]])),
        TypeError,
        "scatter: the source is dtypes.int32, the tensor dtypes.float32; cast one",
    ),
    "scatter mode": (
        lambda: t23.scatter(0, Tensor([[0]]), 1.0, "max"),
        ValueError,
        "scatter reduce is None, 'add' or 'multiply', got 'max'",
    ),
    "window too long": (lambda: t23.unfold(1, 4, 1), ValueError, "unfold takes 0 <= size <= 3"),
    "diagonal of one axis": (lambda: t23.diagonal(0, 1, 1), ValueError, "diagonal takes two different axes"),
    "roll without axes": (lambda: t23.roll((1, 2), 0), ValueError, "roll takes a shift for each axis"),
    "interpolate mode": (
        lambda: t23.interpolate((4,), "lanczos"),
        ValueError,
        "interpolate takes one of the modes linear, cubic, "
        "nearest, nearest-exact, area, bilinear, trilinear, bicubic, got 'lanczos'",
    ),
    "pooling padding": (
        lambda: t23.reshape(1, 1, 2, 3).max_pool2d(2, padding=2),
        ValueError,
        "pooling takes padding of at most half the window, got 2",
    ),
    "unpool indices": (
        lambda: t23.max_unpool2d(ints),
        ValueError,
        "max_unpool2d takes indices of the input's shape (2, 3), got (3,)",
    ),
    "loss reduction": (
        lambda: t23.cross_entropy(Tensor([0, 1]), reduction="avg"),
        ValueError,
        "a loss takes reduction 'mean', 'sum' or 'none', got 'avg'",
    ),
    "loss labels": (
        lambda: t23.nll_loss(ints),
        ValueError,
        "nll_loss of scores (2, 3) takes integer labels of shape (2,), got int32 of shape (3,)",
    ),
    "loss weight": (
        lambda: t23.nll_loss(Tensor([0, 1]), Tensor([1.0])),
        ValueError,
        "nll_loss of (2, 3) takes a weight (3,), got (1,)",
    ),
    "label smoothing": (
        lambda: t23.cross_entropy(Tensor([0, 1]), label_smoothing=2),
        ValueError,
        "cross_entropy takes label_smoothing from 0 to 1, got 2",
    ),
    "attention shapes": (
        lambda: t23.scaled_dot_product_attention(t23.T, t23),
        ValueError,
        "scaled_dot_product_attention takes query (..., L, E), key (..., S, E)",
    ),
    "dropout": (lambda: t23.dropout(2), ValueError, "dropout takes a probability from 0 to 1, got 2"),
    "rounding mode": (
        lambda: t23.div(2, rounding_mode="up"),
        ValueError,
        "rounding_mode is None, 'floor' or 'trunc', got 'up'",
    ),
    "gelu": (lambda: t23.gelu("erf"), ValueError, "gelu takes approximate 'tanh' or 'none', got 'erf'"),
    "arange step": (lambda: Tensor.arange(0, 3, 0), ValueError, "a step other than 0"),
    "negative size": (lambda: Tensor.zeros(-1), ValueError, "sizes >= 0"),
    "shape of floats": (lambda: Tensor.zeros(2.5), TypeError, "zeros takes a shape of integers"),
    "dtype name": (lambda: Tensor([1], dtype="float33"), TypeError, "'float33' is not a dtype; use one of"),
    "bitcast": (
        lambda: Tensor([1, 2, 3], dtype=dtypes.uint8).bitcast("int32"),
        ValueError,
        "whole 4-byte items",
    ),
    "ragged list": (
        lambda: Tensor([[1, 2], [3]]),
        ValueError,
        "rows of equal shape, got a list with items of shapes (1,), (2,)",
    ),
    "mixed list": (lambda: Tensor([1, [2]]), ValueError, "rows of equal shape"),
    "strings": (lambda: Tensor("abc"), TypeError, "no tensor from a str; give a number, a list"),
    "complex array": (
        lambda: Tensor(np.zeros(2, complex)),
        TypeError,
        "no tensor type for NumPy type complex128",
    ),
    "device": (lambda: Tensor([1], device="TOASTER"), ValueError, "TOASTER"),
    "device of a constant": (lambda: Tensor.zeros(2, device="TOASTER"), ValueError, "TOASTER"),
    "backward without gradient": (
        lambda: (t23 * 2).backward(),
        RuntimeError,
        "backward() of shape (2, 3) needs a gradient of that shape",
    ),
    "backward of integers": (
        lambda: ints.sum().backward(),
        RuntimeError,
        "only floats have gradients, this tensor is dtypes.int32",
    ),
    "gradient shape": (
        lambda: t23.backward(Tensor([1.0])),
        RuntimeError,
        "the gradient has shape (1,), the tensor (2, 3)",
    ),
    "gradient at integers": (
        lambda: t23.sum().gradient(Tensor([1])),
        RuntimeError,
        "only floats have gradients, target 0 is dtypes.int32",
    ),
    "grad of another shape": (
        lambda: setattr(Tensor([1.0]), "grad", t23),
        ValueError,
        "a gradient of shape (2, 3) does not fit",
    ),
    "item": (
        lambda: t23.item(),
        RuntimeError,
        "item() takes a tensor of one item, this one has shape (2, 3)",
    ),
    "truth": (lambda: bool(t23), RuntimeError, "the truth of a tensor of shape (2, 3) is ambiguous"),
    "len of a number": (lambda: len(Tensor(1)), TypeError, "len() of a 0-d tensor"),
    "iteration over a number": (lambda: list(Tensor(1)), TypeError, "iteration over a 0-d tensor"),
    "float as index": (lambda: range(3)[Tensor(1.0)], TypeError, "an index is a tensor of one integer"),
    "index in a list": (
        lambda: t23[[0, 5]],
        IndexError,
        "index 5 is out of range for axis 0 of 2 items, of shape (2, 3)",
    ),
    "index in an array": (
        lambda: t23[:, np.array([-4])],
        IndexError,
        "index -4 is out of range for axis 1 of 3",
    ),
    "set at an index in a list": (
        lambda: t23.clone().__setitem__([2], 1.0),
        IndexError,
        "index 2 is out of range for axis 0",
    ),
    "axis of sort": (lambda: t23.sort(2), IndexError, "sort: axis 2 is not in [-2, 1]"),
    "cat of nothing": (lambda: Tensor.cat([]), ValueError, "cat takes at least one tensor"),
    "stack of nothing": (lambda: Tensor.stack([]), ValueError, "stack takes at least one tensor"),
    "rearrange with a stranger": (
        lambda: t23.rearrange("a b -> b a", c=2),
        ValueError,
        "rearrange: 'a b -> b a' has no axis c on its left",
    ),
    "rearrange with new dots": (
        lambda: t23.rearrange("a b -> ... a b"),
        ValueError,
        "has no axis ... on its left",
    ),
    "rearrange parenthesis": (
        lambda: t23.rearrange("(a b -> a b"),
        ValueError,
        "a parenthesis is not closed",
    ),
    "rearrange size": (
        lambda: t23.rearrange("(a b) c -> a b c", a=4),
        ValueError,
        "an axis of 2 items does not divide as ('a', 'b') with {'a': 4}",
    ),
    "einsum without formula": (
        lambda: Tensor.einsum(t23, "ij"),
        TypeError,
        "einsum takes a formula first, as a string, got a Tensor",
    ),
    "einsum result": (
        lambda: Tensor.einsum("ij->k", t23),
        ValueError,
        "the result's axes 'k' must each be in a term",
    ),
    "einsum rank": (
        lambda: Tensor.einsum("ijk->i", t23),
        ValueError,
        "term 'ijk' does not fit an operand of shape (2, 3)",
    ),
    "repeats": (
        lambda: t23.repeat_interleave([1, 2], 1),
        ValueError,
        "one for each of the 3 items of axis 1, got [1, 2]",
    ),
    "classes": (lambda: ints.one_hot(-1), ValueError, "one_hot takes num_classes >= 0, got -1"),
    "size of nonzero": (lambda: ints.nonzero(size=-1), ValueError, "a size is at least 0, got -1"),
    "other device": (
        lambda: ints + Tensor([1, 2, 3], device="NULL"),
        ValueError,
        f"ADD of values on {TWO_DEVICES}; move one with .to(device)",
    ),
    "index on another device": (
        lambda: ints[Tensor([1], device="NULL")],
        ValueError,
        TWO_DEVICES,
    ),
    "convolution channels": (
        lambda: images.conv2d(Tensor.zeros(2, 3, 3, 3)),
        ValueError,
        "the input has 4 channels, the weight takes 3 a group",
    ),
    "convolution groups": (
        lambda: images.conv2d(Tensor.zeros(3, 2, 3, 3), groups=2),
        ValueError,
        "3 outputs are shared by 2 groups",
    ),
    "convolution kernel": (
        lambda: images.conv2d(Tensor.zeros(2, 4, 7, 7)),
        ValueError,
        "a window of (7, 7) with dilation (1, 1) does not fit in (5, 5)",
    ),
    "convolution bias": (
        lambda: images.conv2d(Tensor.zeros(2, 4, 3, 3), Tensor.zeros(3)),
        ValueError,
        "takes a bias (2,), got (3,)",
    ),
    "convolution padding": (
        lambda: images.conv2d(Tensor.zeros(2, 4, 3, 3), padding="full"),
        ValueError,
        "padding is 'same', 'valid' or sizes, got 'full'",
    ),
    "same with strides": (
        lambda: images.conv2d(Tensor.zeros(2, 4, 3, 3), padding="same", stride=2),
        ValueError,
        "padding 'same' takes stride 1, got (2, 2)",
    ),
    "output padding": (
        lambda: images.conv_transpose2d(Tensor.zeros(4, 2, 3, 3), output_padding=1),
        ValueError,
        "output_padding below the stride or dilation, got (1, 1)",
    ),
    "pooling window": (lambda: images.max_pool2d(7), ValueError, "a window of (7, 7)"),
    "interpolate size": (
        lambda: images.interpolate((0, 4)),
        ValueError,
        "takes a size >= 1 for each of the last 2",
    ),
    "heads": (
        lambda: images.scaled_dot_product_attention(images[:, :3], images[:, :3], enable_gqa=True),
        ValueError,
        "enable_gqa takes query heads divisible by the key and value heads",
    ),
    "square matrix": (
        lambda: t23.inv(),
        ValueError,
        "inv takes square matrices, of shape (..., n, n), got shape (2, 3)",
    ),
    "right side": (
        lambda: Tensor.eye(3).solve(t23),
        ValueError,
        "takes a right side of shape (..., 3, k) or (3,), got (2, 3)",
    ),
    "bounds of randint": (lambda: Tensor.randint(3, low=5, high=2), ValueError, "randint takes low < high"),
    "dtype of rand": (
        lambda: Tensor.rand(3, dtype="int32"),
        TypeError,
        "rand takes a float dtype, got int32",
    ),
    "samples": (
        lambda: Tensor([0.5, 0.5]).multinomial(3),
        ValueError,
        "draws at most the 2 positions of (2,), asked for 3",
    ),
    "RMSNorm": (
        lambda: nn.RMSNorm(4)(t23[:, :1]),
        ValueError,
        "RMSNorm takes an input (..., 4), got (2, 1)",
    ),
    "LSTMCell": (
        lambda: nn.LSTMCell(4, 5)(t23),
        ValueError,
        "LSTMCell takes an input (N, 4) or (4,), got (2, 3)",
    ),
    "LSTMCell state": (
        lambda: nn.LSTMCell(3, 5)(t23, (t23, t23)),
        ValueError,
        "LSTMCell takes h and c of shape (2, 5), got (2, 3) and (2, 3)",
    ),
    "targets that would broadcast": (
        lambda: t23[:, :1].binary_crossentropy_logits(t23[:, 0]),
        ValueError,
        "binary_crossentropy_logits of scores (2, 1) takes targets of that shape, got (2,)",
    ),
    "attention mask": (
        lambda: t23.scaled_dot_product_attention(t23, t23, attn_mask=Tensor.zeros(2, 3)),
        ValueError,
        "scaled_dot_product_attention's scores and attn_mask: shapes (2, 2) and (2, 3) do not broadcast",
    ),
    "attention mask that widens": (
        lambda: t23.scaled_dot_product_attention(t23, t23, attn_mask=Tensor.zeros(4, 2, 2)),
        ValueError,
        "takes an attn_mask that broadcasts to its scores (2, 2), got (4, 2, 2)",
    ),
    "layer input": (
        lambda: nn.BatchNorm(3)(images),
        ValueError,
        "BatchNorm takes an input (N, 3, ...), got (1, 4, 5, 5)",
    ),
    "layer groups": (
        lambda: nn.Conv2d(4, 6, 3, groups=3),
        ValueError,
        "Conv2d takes channels divisible by groups=3",
    ),
    "embedding": (
        lambda: nn.Embedding(3, 4)(Tensor([0.5])),
        TypeError,
        "Embedding takes integers, got float32",
    ),
    "parameters": (
        lambda: nn.optim.SGD([ints]),
        ValueError,
        "an optimizer takes at least one float parameter",
    ),
    "parameter that is no tensor": (
        lambda: nn.optim.Adam([1.0]),
        TypeError,
        "an optimizer takes tensors, got a float",
    ),
    "learning rate": (lambda: nn.optim.SGD([t23], lr=-1), ValueError, "a learning rate >= 0, got -1"),
    "state": (
        lambda: nn.state.load_state_dict(nn.Linear(2, 3), {"weight": t23.T}, verbose=False),
        KeyError,
        "missing ['bias']",
    ),
    "state shape": (
        lambda: nn.state.load_state_dict(nn.Linear(3, 3, bias=False), {"weight": t23}, verbose=False),
        ValueError,
        "weight: the model has (3, 3), the state (2, 3)",
    ),
    "variable out of bounds": (
        lambda: Variable("n", 1, 5).bind(9),
        ValueError,
        "n takes values from 1 to 5, got 9",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_error(name):
    call, error, text = CASES[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


READS = {
    "item": (lambda x: x * x.sum().item(), "a value was read while TinyJit traces"),
    "branch": (lambda x: x if x.sum() > 1 else x + 1, "a value was read while TinyJit traces"),
    "numpy": (lambda x: Tensor(x.numpy()), "a value was read while TinyJit traces"),
    "mask": (lambda x: x[x > 1], "the size of an index by a mask depends on values"),
    "nonzero": (lambda x: x.nonzero(), "the size of nonzero depends on values"),
    "masked_select": (
        lambda x: x.masked_select(x > 1),
        "say how many items there are to be, x.masked_select(mask, size=n)",
    ),
    "unique": (lambda x: x.unique(), "x.unique(size=n)"),
    "repeats": (lambda x: x.repeat_interleave(x), "the size of repeat_interleave depends on values"),
}


@pytest.mark.parametrize("name", READS)
def test_reading_in_a_traced_function(name):
    function, text = READS[name]
    with pytest.raises(JitError) as caught:
        TinyJit(function)(Tensor([1, 2, 3]).realize())
    assert text in str(caught.value)
    assert "test_errors.py:" in str(caught.value)


def test_masks_that_are_known_may_be_used_in_a_traced_function():
    pick = TinyJit(lambda x: x[[True, False, True]] + x[np.array([2, 0])])
    for start in range(3):
        assert pick(Tensor([start, 1, 5]).realize()).tolist() == [start + 5, start + 5]
