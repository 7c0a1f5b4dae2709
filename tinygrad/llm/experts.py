"""Feed-forward layers of experts: each token goes through the few that score highest for it.

In: tokens (B, T, width), the numbers of their experts and the shares of those (B, T, k). Out: the sum of what
the experts make of them, times the shares. For few tokens the weights of their experts alone are read. Many
are laid in blocks of rows, those of one expert together, so that weights are read once for a block: as many
blocks as there can be, since sizes cannot depend on values, so that some are computed in vain. Where there
are no whole numbers (weights in no blocks, `activations` float32, gradients), products with all experts take
their place.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

from tinygrad.dtype import dtypes
from tinygrad.graph.sizes import at_most
from tinygrad.nn.block_formats import Packed
from tinygrad.nn.block_products import BlockWeights, RoundedRows
from tinygrad.tensor import Tensor

ROWS = 4
"""Of a block: more tokens of one expert are several blocks. On two cores of Zen 4, with 32 experts of
1024 x 768 and with 8 of 1024 x 2816, tokens a second: of 441 tokens 710 and 615 (with 8 rows 670 and 595,
with 16 621 and 514), of 40 405 and 437 (276 and 327, 191 and 262). With fewer rows, weights larger than the
caches would be read from memory more often."""
PARTS = ("gate", "up", "down")


def expert_weights(name: str) -> list[str]:
    """The weights of a layer's experts, which are all in whole numbers or none."""
    return [f"{name}_{part}_exps.weight" for part in PARTS]


def mixture(x: Tensor, chosen: Tensor, shares: Tensor, weights: Mapping[str, Packed],
            products: Mapping[str, BlockWeights], name: str, count: int,
            activation: Callable[[Tensor], Tensor]) -> Tensor:
    """What the experts (`name`_gate_exps, `name`_up_exps, `name`_down_exps; `count` of them) make of tokens:
    (B, T, width).
    """
    names = expert_weights(name)
    pairs = x.shape[0] * x.shape[1] * chosen.shape[2]
    are_few = isinstance(pairs, int) and pairs < count
    if names[0] in products:
        gate, up, down = (products[name] for name in names)
        if not are_few:
            return _in_blocks(x, chosen, shares, (gate, up, down), count, activation)
        gate, up, down = (part.of_experts(chosen) for part in (gate, up, down))
        rows = RoundedRows(x.unsqueeze(2))
        hidden = (activation(gate.product(rows)) * up.product(rows)).contiguous()
        return (down.product(RoundedRows(hidden)) * shares.unsqueeze(-1)).sum(2)
    packed = [weights[name] for name in names]
    return (_of_chosen if are_few else _of_all)(x, chosen, shares, packed, activation)


def _of_chosen(x: Tensor, chosen: Tensor, shares: Tensor, weights: list[Packed],
               activation: Callable[[Tensor], Tensor]) -> Tensor:
    """By reading the weights of the chosen ones only, in float32."""
    gate, up, down = (packed.picked(chosen).cast(dtypes.float32) for packed in weights)
    given = x.unsqueeze(2).unsqueeze(-1)
    hidden = activation(gate @ given) * (up @ given)
    return ((down @ hidden).squeeze(-1) * shares.unsqueeze(-1)).sum(2)


def _of_all(x: Tensor, chosen: Tensor, shares: Tensor, weights: list[Packed],
            activation: Callable[[Tensor], Tensor]) -> Tensor:
    """By products with all experts, of which each token keeps its own, in float32."""
    gate, up, down = (packed.value.cast(dtypes.float32).transpose(-2, -1) for packed in weights)
    numbers = Tensor.arange(gate.shape[0], device=x.device)
    kept = (chosen.unsqueeze(-1) == numbers).where(shares.unsqueeze(-1), 0).sum(-2)  # (B, T, experts)
    given = x.unsqueeze(1)
    hidden = activation(given @ gate) * (given @ up)
    return ((hidden @ down) * kept.transpose(1, 2).unsqueeze(-1)).sum(1)


def _in_blocks(x: Tensor, chosen: Tensor, shares: Tensor, experts: tuple[BlockWeights, ...], count: int,
               activation: Callable[[Tensor], Tensor]) -> Tensor:
    """In blocks of tokens that share an expert."""
    gate, up, down = experts
    rows, length, used = chosen.shape
    pairs = rows * length * used
    blocks = pairs // ROWS + at_most(pairs, count)  # each expert has one that is not full, if it has any
    numbers = Tensor.arange(count, device=x.device)

    expert = chosen.reshape(pairs)
    is_its = expert.unsqueeze(-1) == numbers
    counts = is_its.cast(dtypes.int32).cumsum(0).contiguous()  # (pairs, experts), up to each pair
    needed = (counts[pairs - 1] + (ROWS - 1)) // ROWS
    ends = needed.cumsum(0).contiguous()
    place = (is_its.where(counts + (ends - needed) * ROWS, 0).sum(-1) - 1).contiguous()
    of_block = (ends <= Tensor.arange(blocks, device=x.device).unsqueeze(-1)).sum(-1).minimum(count - 1)
    token = Tensor.arange(pairs, device=x.device) // used
    token = Tensor.zeros(blocks * ROWS, dtype=token.dtype, device=x.device).scatter(0, place, token)

    of_block = of_block.contiguous().unsqueeze(-1)
    gate, up, down = (part.of_experts(of_block) for part in (gate, up, down))
    given = RoundedRows(x.reshape(rows * length, x.shape[2])).at(token.reshape(blocks, ROWS))
    hidden = (activation(gate.product(given)) * up.product(given)).contiguous()
    made = down.product(RoundedRows(hidden)).contiguous().reshape(blocks * ROWS, x.shape[2])
    return (made[place].reshape(*chosen.shape, x.shape[2]) * shares.unsqueeze(-1)).sum(2)
