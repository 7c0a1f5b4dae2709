"""Layers of experts with weights in blocks: few tokens by their experts' weights, many in blocks of rows."""
from __future__ import annotations

import numpy as np
import pytest

from tinygrad import Tensor, Variable
from tinygrad.llm.experts import PARTS, mixture
from tinygrad.nn.block_formats import FORMATS, Packed
from tinygrad.nn.block_products import BlockWeights, RoundedRows

WIDTH, HIDDEN = 64, 96


def weights(count: int, seed: int = 0) -> dict[str, Packed]:
    draw, layout = np.random.default_rng(seed), FORMATS["Q4_1"]
    found = {}
    for part in PARTS:
        shape = (count, WIDTH, HIDDEN) if part == "down" else (count, HIDDEN, WIDTH)
        raw = draw.integers(0, 256, (int(np.prod(shape)) // layout.items, layout.size), dtype=np.uint8)
        raw[:, :4] = np.array([0.01, -0.07], np.float16).view(np.uint8)
        found[f"ffn_{part}_exps.weight"] = Packed(Tensor(raw.reshape(-1)).realize(), "Q4_1", shape)
    return found


def drawn(rows: int, length: int, count: int, used: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and their experts with the shares of those; some experts get many tokens and some none."""
    draw = np.random.default_rng(length)
    scores = draw.random((rows, length, count)) + np.linspace(0, 2, count)
    chosen = np.argsort(-scores, -1)[..., :used].astype(np.int32)
    shares = draw.random(chosen.shape).astype(np.float32)
    x = draw.standard_normal((rows, length, WIDTH)).astype(np.float32)
    return Tensor(x).realize(), Tensor(chosen).realize(), Tensor(shares).realize()


def one_by_one(x: Tensor, chosen: Tensor, shares: Tensor, products: dict[str, BlockWeights]) -> np.ndarray:
    """Each pair of a token and an expert, by a product with that expert's weight."""
    result = np.zeros(x.shape, np.float32)
    experts = {part: [products[f"ffn_{part}_exps.weight"].of_experts(Tensor(n)) for n in range(
        products[f"ffn_{part}_exps.weight"].words[0].shape[0])] for part in PARTS}
    for place in np.ndindex(*chosen.shape):
        number, token = int(chosen.numpy()[place]), x[place[:2]].unsqueeze(0)
        rows = RoundedRows(token)
        hidden = experts["gate"][number].product(rows).silu() * experts["up"][number].product(rows)
        made = experts["down"][number].product(RoundedRows(hidden.contiguous()))
        result[place[:2]] += made.numpy()[0] * shares.numpy()[place]
    return result


@pytest.mark.parametrize("rows, length, count, used", [
    (1, 1, 4, 1), (1, 1, 8, 3), (3, 1, 16, 2), (1, 7, 4, 2), (2, 5, 3, 3), (1, 40, 4, 2)])
def test_tokens_go_through_their_experts(rows: int, length: int, count: int, used: int) -> None:
    packed = weights(count)
    products = BlockWeights.of_all(packed)
    given = drawn(rows, length, count, used)
    right = one_by_one(*given, products)
    found = mixture(*given, packed, products, "ffn", count, Tensor.silu).numpy()
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())
    floats = mixture(*given, packed, {}, "ffn", count, Tensor.silu).numpy()
    np.testing.assert_allclose(found, floats, rtol=0, atol=0.03 * np.abs(floats).max())


def test_as_many_tokens_as_a_variable_says_go_through_their_experts() -> None:
    packed = weights(4)
    products = BlockWeights.of_all(packed)
    x, chosen, shares = drawn(1, 300, 4, 2)
    whole = mixture(x, chosen, shares, packed, products, "ffn", 4, Tensor.silu).numpy()
    for count in (1, 5, 130, 300):
        length = Variable("length", 1, 300).bind(count)
        part = mixture(x[:, :length], chosen[:, :length], shares[:, :length], packed, products, "ffn", 4,
                       Tensor.silu).numpy()
        np.testing.assert_allclose(part[:, :count], whole[:, :count], rtol=0, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_items_of_weights_that_many_rows_read_are_not_stored(is_symbolic: bool) -> None:
    """Of weights at numbers in memory, too: bytes would take twice the memory of what holds them."""
    products = BlockWeights.of_all(weights(4))
    numbers = Tensor(np.arange(40) % 4).realize()
    rows = Tensor.randn(40, 32, WIDTH).realize()
    if is_symbolic:
        count = Variable("blocks", 1, 40).bind(39)
        numbers, rows = numbers[:count], rows[:count]
    chosen = products["ffn_gate_exps.weight"].of_experts(numbers.unsqueeze(-1))
    schedule = chosen.product(RoundedRows(rows)).schedule()
    stored = [int(item.buffers[0].numel) for item in schedule]
    assert max(stored) < 40 * HIDDEN * WIDTH, stored
