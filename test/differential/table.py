"""Rows of the differential suite: an op, how to call it here and in PyTorch, on what, and how close it must
be.

The reference of a float row is PyTorch in float64 on the very inputs that the op gets (so float32 is
checked against correctly rounded values, and bfloat16 and fp8 against their documented meaning: computed
wider, rounded once); that of an integer row is PyTorch in int64, wrapped to the result's dtype.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.dtype import DType, dtypes, least_upper_float, sum_dtype

torch: Any = pytest.importorskip("torch")

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
View = Callable[[Any], Any]
"""A movement op, written alike for both libraries."""

BOOL, INTS, FLOATS = (dtypes.bool,), dtypes.ints, dtypes.floats
SIGNED = dtypes.sints
WIDE_FLOATS = (dtypes.float32, dtypes.float64)
NARROW_FLOATS = tuple(d for d in FLOATS if d not in WIDE_FLOATS)
NETWORK_FLOATS = (dtypes.float16, dtypes.bfloat16, *WIDE_FLOATS)
NUMBERS = (*INTS, *FLOATS)
EVERY = (*BOOL, *NUMBERS)
SIGNED_NUMBERS = (*SIGNED, *FLOATS)
FEW = (dtypes.bool, dtypes.uint8, dtypes.int32, dtypes.int64, dtypes.float16, dtypes.float32, dtypes.float64)
"""One dtype of each kind and width: for ops that only move items."""
FEW_NUMBERS = FEW[1:]


# --- inputs -------------------------------------------------------------------------------------------------


Values = Callable[[np.random.Generator, Shape], Array]
"""Draws float64 numbers; they are rounded to the row's dtype before either library sees them."""


def anything(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape) * 2


def positive(rng: np.random.Generator, shape: Shape) -> Array:
    return np.abs(rng.standard_normal(shape)) + 0.25


def within_one(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(-0.9, 0.9, shape)


def above_one(rng: np.random.Generator, shape: Shape) -> Array:
    return 1.1 + np.abs(rng.standard_normal(shape))


def probability(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(0.1, 0.9, shape)


def nonzero(rng: np.random.Generator, shape: Shape) -> Array:
    x = rng.standard_normal(shape) * 2
    return x + np.where(x < 0, -1.0, 1.0)


def whole(rng: np.random.Generator, shape: Shape) -> Array:
    """Whole numbers from -9 to 9, each in reach of every dtype."""
    return rng.integers(-9, 10, shape).astype(np.float64)


def eighths(rng: np.random.Generator, shape: Shape) -> Array:
    """Multiples of 1/8, halfway cases among them."""
    return rng.integers(-24, 25, shape) / 8


def below(limit: int) -> Values:
    """Whole numbers from 0 to limit - 1."""
    return lambda rng, shape: rng.integers(0, limit, shape).astype(np.float64)


def coins(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.integers(0, 2, shape).astype(np.float64)


def distinct(rng: np.random.Generator, shape: Shape) -> Array:
    """No two equal in float16 and wider, nor in integers: extrema have one place, and one gradient."""
    return rng.permutation(int(np.prod(shape))).reshape(shape).astype(np.float64)


def given(values: Any) -> Values:
    return lambda rng, shape: np.asarray(values, np.float64).reshape(shape)


@dataclass(frozen=True)
class Input:
    """One operand: memory of `shape`, seen through `view`."""

    shape: Shape
    view: View | None = None
    values: Values | None = None
    """None takes the row's"""
    dtype: DType | None = None
    """None takes the dtype under test; others (indices, masks) have no gradient"""


@dataclass(frozen=True)
class Case:
    """The operands of one call, named for the error message."""

    name: str
    inputs: tuple[Input, ...]


def case(*shapes: Any, name: str | None = None) -> Case:
    """A case from shapes or Inputs."""
    inputs = tuple(s if isinstance(s, Input) else Input(s) for s in shapes)
    return Case(name or " ".join(str(i.shape) for i in inputs), inputs)


LAYOUTS = {
    "scalar": Input(()),
    "empty": Input((0, 3)),
    "size-1 axes": Input((1, 3, 1)),
    "odd": Input((5, 7)),
    "permuted": Input((3, 5, 2), lambda x: x.permute((2, 0, 1))),
    "flipped": Input((4, 3), lambda x: x.flip((0,))),
    "strided": Input((7, 4), lambda x: x[1::2, 1:]),
    "expanded": Input((3, 1), lambda x: x.expand((3, 5))),
}
"""How one operand may lie in memory."""

UNARY = tuple(Case(name, (x,)) for name, x in LAYOUTS.items())
BINARY = (
    case((), ()),
    case((0, 3), (3,)),
    case((5, 7), (5, 7)),
    case((3, 1), (1, 4)),
    case((2, 1, 3), ()),
    case(LAYOUTS["permuted"], (3, 5), name="permuted with contiguous"),
    case(LAYOUTS["flipped"], Input((3, 8), lambda x: x.permute((1, 0))[::2]), name="flipped with strided"),
    case(LAYOUTS["expanded"], LAYOUTS["expanded"], name="expanded twice"),
)
MATRICES = tuple(Case(n, (LAYOUTS[n],)) for n in ("odd", "permuted", "flipped", "strided", "expanded"))
"""Layouts with two axes at least, none empty."""
SHORT = {"empty", "scalar", "permuted", "permuted with contiguous"}
"""The cases of costly rows in float32."""
SHORTEST = {"permuted", "permuted with contiguous"}
"""The cases of other dtypes than float32."""


# --- results ------------------------------------------------------------------------------------------------


def same(dtype: DType) -> DType:
    return dtype


def boolean(dtype: DType) -> DType:
    return dtypes.bool


def position(dtype: DType) -> DType:
    return dtypes.int32


@dataclass(frozen=True)
class Row:
    """One op, or one way to call it."""

    name: str
    """the method's name first, then what is special about the call"""
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    dtypes: Sequence[DType] = FEW
    cases: Sequence[Case] = UNARY
    values: Values = anything
    result: Callable[[DType], DType] | tuple[Callable[[DType], DType], ...] = same
    """the result's dtype from the operands' (one for each result, if several)"""
    real: bool = False
    """a function of real numbers: integers are taken as the default float"""
    ulps: float = 0
    """the error allowed, in units in the last place of max(1, |expected|); 0 compares exactly"""
    gradient: bool = True
    constant: tuple[int, ...] = ()
    """operands that no gradient reaches"""
    smooth: bool = True
    """differentiable twice at the drawn inputs, for finite differences"""
    costly: bool = False
    """compiles slowly: the default run takes a selection of layouts in every dtype"""
    special: bool = False
    """also run on NaN, infinities, zeros of both signs, and the largest and smallest numbers"""

    def cases_for(self, dtype: DType, all_cases: bool = False) -> list[Case]:
        """The cases to run: every one, or a selection that takes seconds for a row instead of a minute."""
        chosen = list(self.cases)
        main = dtype is dtypes.float32 or dtypes.float32 not in self.dtypes
        if not all_cases and (self.costly or not main):
            chosen = [c for c in chosen if c.name in (SHORT if main else SHORTEST)] or chosen[
                : 2 if main else 1
            ]
        return chosen + (special_cases(dtype, len(chosen[0].inputs)) if self.special else [])


def special_cases(dtype: DType, operands: int) -> list[Case]:
    """One case of the ends of `dtype`'s range (for two operands, of all pairs of them)."""
    if dtype.is_bool or dtype is dtypes.uint64:
        return []  # the reference has no room for the ends of uint64
    ends = SPECIAL_FLOATS if dtype.is_float else [int(dtype.min), int(dtype.min) + 1, 0, 1, 7, int(dtype.max)]
    if operands == 1:
        return [Case("special", (Input((len(ends),), values=exactly(ends)),))]
    first, second = ([a for a in ends for _ in ends], ends * len(ends))
    return [
        Case(
            "special",
            (Input((len(first),), values=exactly(first)), Input((len(first),), values=exactly(second))),
        )
    ]


SPECIAL_FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.5, 2.0**-14, 448.0]


def exactly(values: Sequence[Any]) -> Values:
    """Values not to be rounded on the way."""
    return lambda rng, shape: np.array(values, np.int64 if isinstance(values[0], int) else np.float64)


def method(
    name: str, *args: Any, torch_name: str | None = None, **kwargs: Any
) -> dict[str, Callable[..., Any]]:
    """`ours` and `theirs` where the method has one name and one signature in both libraries."""
    return {
        "ours": lambda x, *rest: getattr(x, name)(*rest, *args, **kwargs),
        "theirs": lambda x, *rest: getattr(x, torch_name or name)(*rest, *args, **kwargs),
    }


# --- running ------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One case of a row in one dtype: operands in both libraries, and results to compare."""

    row: Row
    dtype: DType
    case: Case
    ours: list[Tensor] = field(default_factory=list)
    theirs: list[Any] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    expected: list[Any] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    expected_gradients: list[Any] = field(default_factory=list)


def draw(row: Row, dtype: DType, case: Case) -> list[Array]:
    """The memory of each operand, in its dtype."""
    rng = np.random.default_rng(zlib.crc32(f"{row.name} {case.name}".encode()))
    arrays = []
    for operand in case.inputs:
        kind = operand.dtype or dtype
        x = np.asarray((operand.values or row.values)(rng, operand.shape))
        if kind.is_bool:
            x = x > 0
        elif kind.is_int and x.dtype == np.float64:
            x = x if np.array_equal(x, np.trunc(x)) else np.trunc(x * 2)
            x = np.abs(x) if kind.is_unsigned else x
        arrays.append(np.array(x, kind.numpy))
    return arrays


def reference_input(array: Array, row: Row, requires_grad: bool) -> Any:
    """The operand as PyTorch gets it: float64, int64 or bool."""
    kind = array.dtype
    if kind == np.bool_:
        return torch.tensor(array, dtype=torch.float64 if row.real else torch.bool)
    if kind.kind in "iu" and not row.real:
        return torch.tensor(array.astype(np.int64))
    if kind.kind in "iu":
        array = array.astype(np.float32)
    return torch.tensor(array.astype(np.float64), requires_grad=requires_grad)


def as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def wants_gradient(row: Row, dtype: DType, case: Case) -> bool:
    return row.gradient and dtype is dtypes.float32 and case.name != "special"


def prepare(row: Row, dtype: DType, case: Case) -> Trial:
    """Both libraries' lazy results and gradients."""
    trial = Trial(row, dtype, case)
    graded = wants_gradient(row, dtype, case)
    leaves, reference_leaves = [], []
    for number, (operand, array) in enumerate(zip(case.inputs, draw(row, dtype, case), strict=True)):
        tracked = graded and operand.dtype is None and number not in row.constant
        x = Tensor(array, requires_grad=tracked)
        y = reference_input(array, row if operand.dtype is None else _NOT_REAL, tracked)
        if tracked:
            leaves.append(x)
            reference_leaves.append(y)
        trial.ours.append(operand.view(x) if operand.view else x)
        trial.theirs.append(operand.view(y) if operand.view else y)
    trial.results = list(as_tuple(row.ours(*trial.ours)))
    trial.expected = list(as_tuple(row.theirs(*trial.theirs)))
    if graded:
        _prepare_gradients(trial, leaves, reference_leaves)
    return trial


def _prepare_gradients(trial: Trial, leaves: list[Tensor], reference_leaves: list[Any]) -> None:
    """Gradients of the sum of all float results, weighted by numbers that differ from item to item."""
    loss: Any = None
    reference_loss: Any = None
    for ours, theirs in zip(trial.results, trial.expected, strict=True):
        if not ours.dtype.is_float or not theirs.requires_grad:
            continue
        weights = np.cos(np.arange(theirs.numel())).reshape(tuple(theirs.shape))
        part, reference_part = (
            (ours * Tensor(weights.astype(ours.dtype.numpy))).sum(),
            (theirs * torch.from_numpy(weights.astype(ours.dtype.numpy).astype(np.float64))).sum(),
        )
        loss = part if loss is None else loss + part
        reference_loss = reference_part if reference_loss is None else reference_loss + reference_part
    if reference_loss is None:
        raise AssertionError(f"{trial.row.name}: PyTorch has no gradient; say gradient=False")
    trial.gradients = loss.gradient(*leaves)
    trial.expected_gradients = torch.autograd.grad(reference_loss, reference_leaves)


def epsilon(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps)


def compare(label: str, ours: Tensor, theirs: Any, dtype: DType, ulps: float) -> None:
    """Raise AssertionError unless shape, dtype and values are as expected."""
    assert ours.dtype is dtype, f"{label}: dtype {ours.dtype}, expected {dtype}"
    assert ours.shape == tuple(theirs.shape), f"{label}: shape {ours.shape}, expected {tuple(theirs.shape)}"
    with np.errstate(all="ignore"):
        expected = theirs.detach().resolve_conj().numpy().astype(dtype.numpy)
    found = ours.numpy()
    if not dtype.is_float:
        np.testing.assert_array_equal(found, expected, err_msg=label)
        return
    tolerance = ulps * epsilon(dtype)
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=label
    )


def check(trial: Trial) -> None:
    row = trial.row
    base = least_upper_float(trial.dtype) if row.real else trial.dtype
    kinds = as_tuple(row.result) * (1 if isinstance(row.result, tuple) else len(trial.results))
    label = f"{row.name} of {trial.dtype.name}, {trial.case.name}"
    assert len(trial.results) == len(trial.expected) == len(kinds), f"{label}: {len(trial.results)} results"
    for ours, theirs, kind in zip(trial.results, trial.expected, kinds, strict=True):
        compare(label, ours, theirs, kind(base), row.ulps)
    for number, (ours, theirs) in enumerate(zip(trial.gradients, trial.expected_gradients, strict=True)):
        compare(f"gradient {number} of {label}", ours, theirs, trial.dtype, max(64, 4 * row.ulps))


def run(row: Row, dtype: DType, all_cases: bool = False) -> None:
    """Check the cases of a row in one dtype; computed together, so that one schedule serves all."""
    trials = [prepare(row, dtype, case) for case in row.cases_for(dtype, all_cases)]
    first, *others = [t for trial in trials for t in (*trial.results, *trial.gradients)]
    first.realize(*others)
    for trial in trials:
        check(trial)


_NOT_REAL = Row("operand with a dtype of its own", lambda x: x, lambda x: x)


def summed(dtype: DType) -> DType:
    return sum_dtype(dtype)
