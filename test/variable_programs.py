"""What tests of sizes that are Variables share."""
import numpy as np

from tinygrad import Variable
from tinygrad.codegen import compile as compiler

MOST = 10

X = np.random.default_rng(0).standard_normal((MOST, 8)).astype(np.float32)

Y = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32)


def softmax(x, axis):
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def variable(value, low=1, high=MOST, name="n"):
    return Variable(name, low, high).bind(value)


def check(result, expected, tolerance=1e-5):
    array = result.numpy()
    assert array.shape == np.shape(expected)
    np.testing.assert_allclose(array, expected, rtol=tolerance, atol=tolerance)


def kernels():
    return len(compiler._kernels)
