"""Rows of `functional/matrix_functions.py`, and of what `equations.py` has by PyTorch's names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinygrad import Tensor
from tinygrad.dtype import dtypes

from .pytorch_names import BOTH
from .table import Array, Input, Row, Shape, case, nonzero, position, same, torch, whole

WIDE = (dtypes.float32, dtypes.float64)
FLOAT = (dtypes.float32,)


def far_from_singular(rng: np.random.Generator, shape: Shape) -> Array:
    """Matrices whose singular values differ, from 1 to 3 or so."""
    x = rng.standard_normal(shape)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    found: Array = (u * (1 + np.arange(s.shape[-1]) * 0.7)) @ v
    return found


def cube(rng: np.random.Generator, shape: Shape) -> Array:
    """Such a matrix, square, as a tensor of more axes."""
    n = math.isqrt(math.prod(shape))
    return far_from_singular(rng, (n, n)).reshape(shape)


SQUARE = (case((4, 4)), case((2, 3, 3)),
          case(Input((3, 2, 3), lambda x: x.permute((1, 0, 2))), name="permuted"))
ANY = (case((4, 3)), case((2, 3, 4)), *SQUARE[2:])


def algebra(name: str, *args: Any, cases: Any = SQUARE, label: str = "", kinds: Any = WIDE, ulps: float = 64,
            values: Any = far_from_singular, call: Any = None, **options: Any) -> Row:
    """A function of `torch.linalg`."""
    theirs, call = getattr(torch.linalg, name), call or {}
    return Row(" ".join(f"{name} {label} {args or ''} {call or ''}".split()),
               lambda *xs: getattr(Tensor, name)(*xs, *args, **call), lambda *xs: theirs(*xs, *args, **call),
               kinds, cases, values, ulps=ulps, **options)


SPECTRA = [
    algebra("svdvals", cases=ANY),
    *(Row(f"eigvalsh {part}", lambda x, p=part: (x + x.mT).eigvalsh(p),
          lambda x, p=part: torch.linalg.eigvalsh(x + x.mT, p), WIDE, SQUARE, far_from_singular, ulps=64)
      for part in ("L", "U")),
    *(Row(f"eigvalsh reads {part}", lambda x, p=part: x.eigvalsh(p),
          lambda x, p=part: torch.linalg.eigvalsh(x, p), WIDE, SQUARE, far_from_singular, ulps=64,
          gradient=False) for part in ("L", "U")),
    *(algebra("matrix_norm", p, cases=ANY) for p in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)),
    algebra("matrix_norm", "nuc", (2, 0), True, cases=(case((2, 4, 3)),)),
    algebra("matrix_norm", 1, (0, -1), True, cases=(case((2, 4, 3)),)),
    algebra("matrix_norm", cases=(case((0, 3)), case((2, 3, 0))), label="of nothing"),
    *(algebra("cond", p) for p in (None, 2, -2, "nuc")),
    *(algebra("cond", p, gradient=False) for p in ("fro", 1, -1, math.inf, -math.inf)),
    algebra("matrix_rank", cases=(case((4, 3)), case((2, 3, 4))), result=position, gradient=False),
    algebra("matrix_rank", cases=(case((4, 4)), case((3, 0))), label="of few", kinds=FLOAT, result=position,
            values=lambda rng, shape: rng.standard_normal((*shape[:-1], 1)) * np.ones(shape), gradient=False),
    algebra("matrix_rank", call={"hermitian": True, "rtol": 0.5}, cases=SQUARE[:2], result=position,
            values=lambda rng, shape: np.eye(shape[-1]) * np.arange(shape[-1]) * np.ones(shape),
            gradient=False),
    algebra("matrix_rank", call={"atol": 1.5}, cases=SQUARE[:2], result=position, gradient=False),
]
NORMS = [
    *(algebra("vector_norm", p, 1, cases=(case((4, 5)), case((2, 3, 4))), values=nonzero, ulps=8)
      for p in (1, 2, 3, 0.5, math.inf, -math.inf)),
    algebra("vector_norm", cases=(case((4, 5)), case(())), ulps=8, values=nonzero),
    algebra("vector_norm", 3, (0, 2), True, cases=(case((2, 3, 4)),), ulps=8, values=nonzero),
    algebra("vector_norm", 0, cases=(case((4, 5)),), gradient=False, values=whole),
]
PRODUCTS = [
    algebra("vecdot", cases=(case((4, 5), (5,)), case((2, 1, 3), (4, 3))), ulps=8, values=nonzero),
    algebra("vecdot", call={"dim": 0}, cases=(case((4, 5), (4, 5)),), ulps=8),
    *(Row(f"multi_dot of {len(shapes)} {shapes[0]}", lambda *xs: Tensor.multi_dot(xs),
          lambda *xs: torch.linalg.multi_dot(xs), BOTH, (case(*shapes),), whole, ulps=64)
      for shapes in (((2, 3), (3, 4)), ((5,), (5, 2), (2, 6), (6,)), ((9, 2), (2, 8), (8, 3), (3, 7)))),
    Row("chain_matmul", lambda *xs: Tensor.chain_matmul(*xs), lambda *xs: torch.linalg.multi_dot(xs), WIDE,
        (case((3, 4), (4, 2), (2, 5)),), ulps=16),
    algebra("tensorinv", cases=(case((2, 3, 6)),), values=cube),
    algebra("tensorinv", 1, cases=(case((4, 2, 2)),), values=cube),
    *(Row(f"tensorsolve {dims}", lambda a, b, d=dims: a.tensorsolve(b, d),
          lambda a, b, d=dims: torch.linalg.tensorsolve(a, b, d), WIDE,
          (case(Input(shape, values=cube), (2, 3)),), ulps=256)
      for dims, shape in ((None, (2, 3, 6)), ((0,), (6, 2, 3)))),
]
SYSTEMS = [
    Row("triangular_solve", lambda b, a: b.triangular_solve(a), lambda b, a: torch.triangular_solve(b, a),
        WIDE, (case((4, 2), (4, 4)),), far_from_singular, ulps=64, result=(same, same)),
    Row("solve from the right", lambda a, b: a.solve(B=b, left=False),
        lambda a, b: torch.linalg.solve(a, b, left=False), WIDE,
        (case((4, 4), (2, 4)), case((2, 3, 3), (2, 5, 3))), far_from_singular, ulps=64),
    *(Row(f"solve_triangular from the right {u}",
          lambda a, b, u=u: a.solve_triangular(b, upper=u, left=False),
          lambda a, b, u=u: torch.linalg.solve_triangular(a, b, upper=u, left=False), WIDE,
          (case((4, 4), (2, 4)),), far_from_singular, ulps=256) for u in (False, True)),
]
ROWS = [*SPECTRA, *NORMS, *PRODUCTS, *SYSTEMS]
CONSTANT = {"matrix_rank"}
"""Methods without gradients."""
