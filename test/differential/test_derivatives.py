"""First and second derivatives of every smooth row, by finite differences in float64.

For the loss L = sum(w * op(x)) with fixed weights w, the derivative of L along a random direction is compared
with a central difference, and so is that of the gradient's projection on a second direction. PyTorch is not
asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad.dtype import dtypes

from .rows import ROWS
from .table import Case, Row, as_tuple, draw, torch

STEP = 2.0**-14


def full_cases(row: Row) -> list[Case]:
    """The cases that are not empty."""
    return [c for c in row.cases if all(0 not in operand.shape for operand in c.inputs)]


def fitting_case(row: Row) -> Case:
    """A case that is not empty, a view where there is one."""
    full = full_cases(row)
    return next((c for c in full if c.name.startswith("permuted")), full[0])


SMOOTH = [
    row for row in ROWS if row.gradient and row.smooth and dtypes.float64 in row.dtypes and full_cases(row)
]


class Loss:
    """The weighted sum of a row's results as a function of its float operands."""

    def __init__(self, row: Row, case: Case) -> None:
        self.row, self.case = row, case
        self.arrays = draw(row, dtypes.float64, case)
        self.free = [
            i for i, operand in enumerate(case.inputs) if operand.dtype is None and i not in row.constant
        ]
        rng = np.random.default_rng(7)
        self.first, self.second = (
            [np.asarray(rng.standard_normal(self.arrays[i].shape)) for i in self.free] for _ in range(2)
        )

    def tensors(self, shift: float) -> list[Tensor]:
        """The operands moved by `shift` along the first direction."""
        moved = list(self.arrays)
        for i, direction in zip(self.free, self.first, strict=True):
            moved[i] = moved[i] + shift * direction
        return [Tensor(x, requires_grad=i in self.free) for i, x in enumerate(moved)]

    def value(self, tensors: list[Tensor]) -> Tensor:
        seen = [o.view(t) if o.view else t for o, t in zip(self.case.inputs, tensors, strict=True)]
        total = Tensor(0.0, dtype=dtypes.float64, requires_grad=False)
        for result in as_tuple(self.row.ours(*seen)):
            if result.dtype.is_float:
                weights = np.cos(np.arange(result.numel())).reshape(result.shape)
                total = total + (result.cast(dtypes.float64) * Tensor(weights, requires_grad=False)).sum()
        return total

    def slope(self, tensors: list[Tensor], value: Tensor, directions: list[Any]) -> Tensor:
        """The derivative of `value` along `directions`, as a tensor to differentiate again."""
        slopes = value.gradient(*(tensors[i] for i in self.free))
        total = Tensor(0.0, dtype=dtypes.float64, requires_grad=False)
        for gradient, direction in zip(slopes, directions, strict=True):
            total = total + (gradient * Tensor(direction, requires_grad=False)).sum()
        return total


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in SMOOTH])
def test_derivatives(row: Row) -> None:
    loss = Loss(row, fitting_case(row))
    here = loss.tensors(0.0)
    slope = loss.slope(here, loss.value(here), loss.first)
    bend = None
    if any(t.uop in slope.uop.toposort() for t in (here[i] for i in loss.free)):
        across = loss.slope(here, loss.value(here), loss.second)
        try:
            bend = loss.slope(here, across, loss.first)
        except RuntimeError as error:
            assert "not in the graph" in str(error)  # linear in an operand: no second derivative
    values, slopes = [], []
    for shift in (STEP, -STEP):
        moved = loss.tensors(shift)
        values.append(loss.value(moved))
        if bend is not None:
            slopes.append(loss.slope(moved, values[-1], loss.second))
    slope.realize(*values, *slopes, *([] if bend is None else [bend]))
    compare(f"{row.name}: first derivative", slope, values)
    if bend is not None:
        compare(f"{row.name}: second derivative", bend, slopes)


def compare(label: str, derivative: Tensor, ends: list[Tensor]) -> None:
    ahead, behind = (float(end.item()) for end in ends)
    difference = (ahead - behind) / (2 * STEP)
    scale = 1 + abs(difference) + abs(ahead)
    assert abs(float(derivative.item()) - difference) <= 1e-5 * scale, (
        f"{label}: {derivative.item()}, difference {difference}"
    )


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS
                                 if row.gradient and dtypes.float32 in row.dtypes and full_cases(row)])
def test_every_operand_with_a_gradient_in_pytorch_gets_one(row: Row) -> None:
    """Zeros too, where the result does not change with the operand."""
    case = fitting_case(row)
    arrays = draw(row, dtypes.float32, case)
    theirs = [torch.tensor(np.ascontiguousarray(a)) for a in arrays]
    wanted = [t.requires_grad_() for i, t in enumerate(theirs)
              if t.is_floating_point() and i not in row.constant]
    seen = [o.view(t) if o.view else t for o, t in zip(case.inputs, theirs, strict=True)]
    their_results = [r for r in as_tuple(row.theirs(*seen)) if getattr(r, "requires_grad", False)]
    found = torch.autograd.grad(sum(r.sum() for r in their_results), wanted, allow_unused=True)
    has_gradient = {id(t) for t, g in zip(wanted, found, strict=True) if g is not None}
    ours = [Tensor(a) for a in arrays]
    seen = [o.view(t) if o.view else t for o, t in zip(case.inputs, ours, strict=True)]
    sum((r.float().sum() for r in as_tuple(row.ours(*seen)) if r.dtype.is_float), Tensor(0.0)).backward()
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.grad is not None or id(their) not in has_gradient
