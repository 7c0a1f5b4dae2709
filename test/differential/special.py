"""Rows of `functional/special_functions.py`, `float_parts.py` and `properties.py`, and of what was added to
`arrangements.py` and `statistics.py` beside them."""

from __future__ import annotations

from typing import Any

from tinygrad.dtype import dtypes

from .pytorch_names import BOTH, ENDS, FLOAT, ONES, PAIRS, one, placed
from .table import (
    WIDE_FLOATS,
    Input,
    Row,
    anything,
    below,
    boolean,
    case,
    distinct,
    given,
    nonzero,
    position,
    positive,
    probability,
    same,
    torch,
    whole,
)

SPREAD = case(Input((12,), values=given([-40, -12.5, -8, -3, -0.5, 0.1, 0.7, 1, 2.5, 7.9, 8.1, 20])),
              name="spread")
END = case(Input((7,), values=given(ENDS)), name="ends")


def special(name: str, label: str = "", **options: Any) -> Row:
    """A function of `torch.special`."""
    theirs = getattr(torch.special, name)
    settings = {"dtypes": WIDE_FLOATS, "cases": (*ONES, SPREAD), "ulps": 16, **options}
    return Row(f"{name} {label}".strip(), lambda x, *ys: getattr(x, name)(*ys), theirs, **settings)


ITEM_BY_ITEM = [
    *(special(name) for name in ("ndtr", "i0e", "i1e", "expit")),
    special("erfcx", cases=ONES, ulps=64), special("log_ndtr", ulps=32),
    *(special(name, cases=ONES, ulps=32) for name in ("i0", "i1")),
    special("entr", values=positive), special("xlog1py", cases=PAIRS, values=probability),
    *(special(name, values=positive, cases=ONES, ulps=32) for name in ("gammaln", "psi")),
    *(special(name, label="of the ends", cases=(END,), gradient=False)
      for name in ("ndtr", "log_ndtr", "erfcx", "entr", "i0", "i0e", "i1", "i1e")),
    *(Row(f"polygamma {n} {label}".strip(), lambda x, n=n: x.polygamma(n), lambda x, n=n: x.polygamma(n),
          FLOAT if n == 1 else WIDE_FLOATS,  # PyTorch's trigamma is off by 1e-9 in float64
          cases, values, ulps=ulps, smooth=not label)
      for n in (0, 1, 2, 3, 5) for label, values, cases, ulps in (
          ("", lambda rng, shape: positive(rng, shape) + 0.5, ONES, 64),
          ("below zero", lambda rng, shape: -probability(rng, shape) - 2, ONES[:1], 512))),
    *(Row(f"{name} {p}", lambda x, n=name, p=p: getattr(x, n)(p),
          lambda x, n=name, p=p: torch.mvlgamma(x, p), WIDE_FLOATS, ONES,
          lambda rng, shape: positive(rng, shape) + 2, ulps=128)
      for name in ("mvlgamma", "multigammaln") for p in (1, 3)),
    one("frexp", cases=(*ONES, END), kinds=(*WIDE_FLOATS, dtypes.float16), result=(same, position)),
    Row("ldexp", lambda x, n: x.ldexp(n), lambda x, n: x.ldexp(n), WIDE_FLOATS, (case((4, 5), (5,)),),
        ulps=4),
    Row("ldexp by integers", lambda x, n: x.ldexp(n), lambda x, n: x.ldexp(n), FLOAT,
        (case((4, 5), Input((4, 5), values=whole, dtype=dtypes.int32)),), ulps=4,
        gradient=False),  # PyTorch's is 0 where n < 0
    Row("nextafter", lambda x, y: x.nextafter(y), lambda x, y: x.float().nextafter(y.float()).double(), FLOAT,
        (*PAIRS, case(Input((49,), values=given(ENDS * 7)),
                      Input((49,), values=given(sorted(ENDS * 7, key=str))))), gradient=False),
    *(Row(f"float_power {power}", lambda x, p=power: x.float_power(p), lambda x, p=power: x.float_power(p),
          (dtypes.float32, dtypes.int32), ONES, positive, lambda _: dtypes.float64, ulps=64)
      for power in (2, -0.5)),
    Row("float_power of tensors", lambda x, y: x.float_power(y), lambda x, y: x.float_power(y), FLOAT, PAIRS,
        positive, lambda _: dtypes.float64, ulps=64),
    one("logaddexp2", cases=PAIRS, ulps=4, kinds=WIDE_FLOATS),
    Row("logaddexp2 of the ends", lambda x, y: x.logaddexp2(y), lambda x, y: x.logaddexp2(y), FLOAT,
        (case(Input((49,), values=given(ENDS * 7)), Input((49,), values=given(sorted(ENDS * 7, key=str)))),),
        gradient=False, ulps=4),
    one("angle", cases=(*ONES, END), gradient=False, ulps=2),
    one("isreal", kinds=BOTH, result=boolean, gradient=False),
    *(one(name) for name in ("conj", "conj_physical", "resolve_conj", "resolve_neg")),
    *(Row(name, lambda x, n=name: getattr(x, n), lambda x, n=name: getattr(x, n), FLOAT, ONES)
      for name in ("real", "H", "mH")),
]
PLACES = [
    one("diagflat", cases=(case((3,)), case((2, 2)), case(())), kinds=BOTH),
    one("diagflat", -1, label="below", cases=(case((3,)),)),
    one("msort", cases=(case((4, 5)), case((3, 2, 2))), kinds=BOTH),
    Row("row_stack", lambda *xs: xs[0].row_stack(*xs[1:]), lambda *xs: torch.vstack(xs), BOTH,
        (case((2, 3), (1, 3)),)),
    *(Row(f"diagonal_scatter {args}", lambda x, y, a=args: x.diagonal_scatter(y, *a),
          lambda x, y, a=args: x.diagonal_scatter(y, *a), (*BOTH, dtypes.bool), (case(shape, size),))
      for args, shape, size in (((), (4, 5), (4,)), ((1,), (4, 5), (4,)), ((-1, 0, 2), (3, 2, 4), (2, 2)))),
    *(Row(f"index_reduce {how} {with_self}",
          lambda x, i, y, h=how, s=with_self: x.index_reduce(1, i, y, h, include_self=s),
          lambda x, i, y, h=how, s=with_self: x.index_reduce(1, i.long(), y, h, include_self=s), FLOAT,
          (case((3, 4), Input((3,), values=given([2, 0, 2]), dtype=dtypes.int32), (3, 3)),), distinct, ulps=8,
          gradient=how in ("mean", "amax", "amin"))
      for how in ("prod", "mean", "amax", "amin") for with_self in (True, False)),
    Row("put of bools", lambda x, i, y: x.put(i, y), lambda x, i, y: x.put(i.long(), y), (dtypes.bool,),
        (case((4, 5), Input((3,), values=given([3, -7, 0]), dtype=dtypes.int32), (3,)),), gradient=False),
    *(placed("put", add, label=str(add), cases=(
        case((4, 5), Input((2, 3), values=given([3, 0, 7, -1, 12, 9 if not add else 3]), dtype=dtypes.int32),
             (2, 3)),), ulps=2) for add in (False, True)),
    *(Row(f"unravel_index {shape}", lambda x, s=shape: x.unravel_index(s),
          lambda x, s=shape: torch.unravel_index(x, s), (dtypes.int32, dtypes.int64),
          (case((3, 2)), case(())), below(24), result=(same,) * (1 if isinstance(shape, int) else len(shape)),
          gradient=False) for shape in (24, (2, 3, 4))),
    *(Row(f"histogram {bins} {options}", lambda x, b=bins, o=options: x.histogram(b, **o),
          lambda x, b=bins, o=options: torch.histogram(x.float(), b, **o), FLOAT, (case((40,)), case((5, 4))),
          anything, result=(same, same), gradient=False, ulps=4)
      for bins, options in ((4, {}), (7, {"range": (-1.5, 1.0)}), (3, {"density": True}))),
    Row("histogram between edges", lambda x, e, w: x.histogram(e, weight=w),
        lambda x, e, w: torch.histogram(x, e, weight=w), FLOAT,
        (case((20,), Input((4,), values=given([-2, -0.5, 1, 3])), (20,)),), nonzero, result=(same, same),
        gradient=False, ulps=8),
]
ROWS = [*ITEM_BY_ITEM, *PLACES]
CONSTANT = {"nextafter", "angle", "isreal", "histogram"}
"""Methods without gradients."""
