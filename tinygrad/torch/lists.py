"""Operators on lists of tensors, of optimizers and of what clips gradients: `_foreach_add` is `add` of each.

In: nothing. Out: `operators_of_lists`, decompositions for AOTAutograd (`backend.py`): its graphs have the
operators of single tensors instead.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

ALIKE = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc add sub mul div pow lerp"""
"""Names after `_foreach_` that PyTorch's functions of tensors have too."""
OF_EACH: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ALIKE.split()},
    **dict.fromkeys(("maximum", "clamp_min"), torch.clamp_min),
    **dict.fromkeys(("minimum", "clamp_max"), torch.clamp_max),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "copy": lambda x, source, non_blocking=False: aten.copy(x, source),
    "zero": torch.zeros_like,
}
"""What each tensor of the lists becomes, by those names."""


def of_lists(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function of items as one of lists; what is no list is the same for all."""
    def results(*args: Any, **named: Any) -> list[Any]:
        count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
        return [function(*(arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args), **named)
                for i in range(count)]
    return results


def operators_of_lists() -> dict[Any, Callable[..., Any]]:
    """Each operator of lists that returns new ones, by the operators of its items."""
    packets = {getattr(aten, f"_foreach_{name}"): of_lists(function) for name, function in OF_EACH.items()}
    return {getattr(packet, overload): function for packet, function in packets.items()
            for overload in packet.overloads() if not overload.endswith("out")}
