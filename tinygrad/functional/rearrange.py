"""Axes by name, as einops does: "b (h w) c -> b c h w"."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad.functional.movement import moved
from tinygrad.helpers import flatten as concatenated
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def _parse_axes(side: str, formula: str) -> list[list[str]]:
    """The groups of one side of a formula: "b (h w) ..." is [["b"], ["h", "w"], ["..."]]."""
    groups: list[list[str]] = []
    open_group: list[str] | None = None
    for token in side.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(" and open_group is None:
            open_group = []
        elif token == ")" and open_group is not None:
            groups.append(open_group)
            open_group = None
        elif token in "()" or not (token.isidentifier() or token in ("...", "1")):
            raise ValueError(f"rearrange: cannot read {token!r} in {formula!r}")
        elif open_group is None:
            groups.append([token] if token != "1" else [])
        elif token != "1":
            open_group.append(token)
    if open_group is not None:
        raise ValueError(f"rearrange: a parenthesis is not closed in {formula!r}")
    return groups


def rearrange(self: Tensor, formula: str, **sizes: int) -> Tensor:
    """Axes split, reordered and merged by name, as einops does: "b (h w) c -> b c h w" with h=... given.

    >>> Tensor.arange(4).rearrange("(a b) -> b a", a=2).tolist()
    [[0, 2], [1, 3]]
    """
    if formula.count("->") != 1:
        raise ValueError(f"rearrange takes 'names -> names', got {formula!r}")
    left, right = (_parse_axes(side, formula) for side in formula.split("->"))
    extra = self.ndim - sum(group != ["..."] for group in left)
    names = [f"...{i}" for i in range(max(extra, 0))] if ["..."] in left else []
    unused = [name for name in sizes if name not in concatenated(left)]
    if unused or (["..."] not in left and "..." in concatenated(right)):
        raise ValueError(f"rearrange: {formula!r} has no axis {', '.join(unused) or '...'} on its left")
    if extra != len(names):
        raise ValueError(f"rearrange: {formula!r} does not name the axes of shape {self.shape}")

    def spelled_out(groups: list[list[str]]) -> list[list[str]]:
        result: list[list[str]] = []
        for group in groups:
            if group == ["..."]:
                result.extend([name] for name in names)
            else:
                result.append([n for a in group for n in (names if a == "..." else [a])])
        return result

    left, right = spelled_out(left), spelled_out(right)
    split_sizes: dict[str, int] = {}
    for group, total in zip(left, self.shape, strict=True):
        known = prod(sizes[a] for a in group if a in sizes)
        unknown = [a for a in group if a not in sizes]
        if len(unknown) > 1 or known == 0 or total % known or (not unknown and known != total):
            raise ValueError(f"rearrange: an axis of {total} items does not divide as {tuple(group)} with "
                             f"{sizes}")
        split_sizes.update({a: sizes[a] for a in group if a in sizes})
        split_sizes.update({a: total // known for a in unknown})
    flat_left, flat_right = concatenated(left), concatenated(right)
    if sorted(flat_left) != sorted(flat_right) or len(set(flat_left)) != len(flat_left):
        raise ValueError(f"rearrange: both sides of {formula!r} must name the same axes, each once")
    split_up = self.uop.reshape([split_sizes[a] for a in flat_left])
    ordered = split_up.permute([flat_left.index(a) for a in flat_right])
    return moved(self, ordered.reshape([prod(split_sizes[a] for a in group) for group in right]))
