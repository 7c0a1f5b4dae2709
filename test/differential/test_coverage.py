"""Every method of `Tensor` has a row here, or is named with the module that tests it instead."""

from __future__ import annotations

from tinygrad.functional.methods import Methods
from tinygrad.functional.numerical_methods import NumericalMethods

from . import algebra, arrangements, functional, pytorch_names, special, statistics
from .rows import ROWS

ELSEWHERE = {
    "test_tensor.py": {
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "linspace",
        "logspace",
        "tril_indices",
        "triu_indices",
        "eye",
        "empty_like",
        "is_floating_point",
        "nelement",
        "equal",
        "cpu",
    },
    "test_random.py": {
        "manual_seed",
        "rand",
        "randn",
        "uniform",
        "normal",
        "randint",
        "randperm",
        "scaled_uniform",
        "glorot_uniform",
        "kaiming_uniform",
        "kaiming_normal",
        "rand_like",
        "randn_like",
        "multinomial",
        "bernoulli",
    },
    "test_gradient.py": {"gradient", "backward"},
    "test_several_devices.py": {"to", "to_", "shard", "shard_"},
    "test_compat.py": {"custom_kernel", "from_blob", "is_param", "is_param_", "shard_like"},
    "test_datasets.py": {"from_url"},
    "test_interop.py": {"data", "from_dlpack", "from_file"},
    "test_casts.py": {"bitcast"},
    "test_properties.py": {
        "is_complex",
        "is_signed",
        "is_nonzero",
        "is_same_size",
        "is_cuda",
        "is_cpu",
        "get_device",
        "itemsize",
    },
    "test_fourier.py": {
        "fftfreq",
        "rfftfreq",
        "hann_window",
        "hamming_window",
        "blackman_window",
        "bartlett_window",
        "kaiser_window",
    },
    "test_linalg.py": {
        "qr",
        "svd",
        "eigh",
        "cholesky",
        "solve",
        "solve_triangular",
        "inv",
        "inverse",
        "pinv",
        "det",
        "slogdet",
        "lstsq",
        "cholesky_solve",
        "cholesky_inverse",
        "pinverse",
        "matrix_power",
    },
}
"""What a row cannot say (constructors, random numbers, decompositions), by the module that tests it."""

CONSTANT = {"lt", "gt", "le", "ge", "eq", "ne", "logical_not", "isnan", "isinf", "isfinite", "isclose",
            "allclose", "any", "all", "bool", "argmax", "argmin", "argsort", "nonzero", "unique",
            "zeros_like", "ones_like", "full_like", "numel", "element_size", "nbytes", "size"}
"""Methods of floats that give bools, positions, numbers of items or constants: they have no gradient."""
CONSTANT_IN_PYTORCH = {"floordiv", "int", "long", "short"}

RANDOM = {"F.gumbel_softmax"}
"""Functions whose results are drawn; `test/nn/test_functional.py` has them."""


def test_every_method_has_a_row() -> None:
    tested = {row.name.split()[0] for row in ROWS}.union(*ELSEWHERE.values())
    public = {name for name in vars(Methods) | vars(NumericalMethods) if not name.startswith("_")}
    assert not public - tested, f"add rows for {sorted(public - tested)}"


def test_every_function_of_functional_has_a_row() -> None:
    tested = {row.name.split()[0] for row in ROWS} | RANDOM
    public = {f"F.{name}" for name, value in vars(functional.ours_f).items() if not name.startswith("_")
              and name.islower() and callable(getattr(functional.torch.nn.functional, name, None))}
    assert not public - tested, f"add rows for {sorted(public - tested)}"


def test_names_of_rows_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_every_method_with_a_gradient_has_a_row_that_checks_it() -> None:
    of_floats = [row for row in ROWS if any(dtype.is_float for dtype in row.dtypes)]
    checked = {row.name.split()[0] for row in of_floats if row.gradient}
    unchecked = {row.name.split()[0] for row in of_floats} - checked
    assert unchecked == CONSTANT | CONSTANT_IN_PYTORCH | pytorch_names.CONSTANT | statistics.CONSTANT | \
        arrangements.CONSTANT | algebra.CONSTANT | special.CONSTANT
