"""Trains a small transformer to continue a text, one character at a time, and prints what it writes.

    python3 examples/gpt.py [text file] [--layers N] [--width N] [--context N] [--steps N] [--seed N]

The text is tinyshakespeare (from the folder that TINYGRAD_DATA names, the cache, or downloaded once) unless a
file is given. A tenth of it, at the end, is kept for validation.
"""
from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from options import parse

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import fetch, tqdm
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


class Block:
    """Attention to the characters before, then two layers for each by itself; each adds to its input."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)).gelu())


class Transformer:
    """Characters (N, L) to scores of the next character (N, L, vocabulary)."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int) -> None:
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = Tensor.normal(context, width, std=0.02)
        self.blocks = [Block(width, heads) for _ in range(layers)]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.norm((self.characters(x) + self.positions).sequential(self.blocks)))


def batches(text: Array, size: int, context: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(pieces of the text, the same pieces one character on), each (size, context)."""
    starts = rng.integers(0, len(text) - context, (size, 1))
    places = starts + np.arange(context)
    return Tensor(text[places]), Tensor(text[places + 1])


def train(model: Transformer, text: Array, steps: int, batch: int, context: int, highest_rate: float,
          rng: np.random.Generator) -> None:
    optimizer = optim.AdamW(state.get_parameters(model), lr=highest_rate, b2=0.99, weight_decay=0.1)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    losses = []
    for i in (bar := tqdm(range(steps), desc="training", unit="step")):
        warm, left = min(1.0, (i + 1) / (0.05 * steps)), 1 - i / steps
        optimizer.lr.assign([highest_rate * warm * (0.1 + 0.9 * left)]).realize()
        losses.append(step(*batches(text, batch, context, rng)).item())
        bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}")


def validate(model: Transformer, text: Array, batch: int, context: int, count: int = 20) -> float:
    """The mean loss over pieces of `text`, in nats a character."""
    loss_of = TinyJit(Tensor.train(False)(lambda x, y: model(x).sparse_categorical_crossentropy(y).realize()))
    rng = np.random.default_rng(0)
    return float(np.mean([loss_of(*batches(text, batch, context, rng)).item() for _ in range(count)]))


def sample(model: Transformer, prompt: Array, length: int, temperature: float) -> list[int]:
    """`length` characters that follow `prompt`, which is as long as the model's context."""

    @TinyJit
    @Tensor.train(False)
    def next_character(x: Tensor) -> Tensor:
        scores = model(x)[0, -1]
        likeliest = temperature == 0
        return (scores.argmax() if likeliest else (scores / temperature).softmax().multinomial()).realize()

    window: list[int] = prompt.tolist()
    for _ in tqdm(range(length), desc="writing", unit="char", leave=False):
        window.append(int(next_character(Tensor([window[-len(prompt):]])).item()))
    return window[len(prompt):]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level transformer on a text.")
    parser.add_argument("text", nargs="?", help="a text file (default: tinyshakespeare)")
    for name, value in {"layers": 4, "width": 128, "heads": 4, "batch": 32, "steps": 500, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--context", type=int, default=64, help="characters seen (default: 64)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (default: 0.002)")
    parser.add_argument("--temperature", type=float, default=0.8, help="of sampling; 0 takes the likeliest")
    parser.add_argument("--length", type=int, default=500, help="characters to write (default: 500)")
    args = parse(parser, layers=1, width=1, heads=1, context=1, batch=1, steps=1, length=0)
    if args.width % args.heads != 0 or args.temperature < 0:
        parser.error(f"--width takes a multiple of --heads {args.heads}, --temperature a number >= 0")

    try:
        path = Path(args.text) if args.text else fetch(SHAKESPEARE, name="tinyshakespeare.txt")
        written = path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    alphabet = sorted(set(written))
    number = {c: i for i, c in enumerate(alphabet)}
    text = np.array([number[c] for c in written], np.int32)
    split = len(text) * 9 // 10
    if len(text) - split <= args.context + 1:
        parser.error(f"{path} has {len(text)} characters, too few for --context {args.context}")

    Tensor.manual_seed(args.seed)
    model = Transformer(len(alphabet), args.context, args.layers, args.width, args.heads)
    size = sum(p.numel() for p in state.get_parameters(model))
    print(f"{path.name}: {len(text)} characters, {len(alphabet)} different; {size} parameters")
    start = time.perf_counter()
    rng = np.random.default_rng(args.seed)
    train(model, text[:split], args.steps, args.batch, args.context, args.lr, rng)
    loss = validate(model, text[split:], args.batch, args.context)
    print(f"validation loss {loss:.3f} nats a character after {args.steps} steps and "
          f"{time.perf_counter() - start:.0f} s; a guess has {np.log(len(alphabet)):.3f}\n")
    prompt = text[split:split + args.context]
    print("".join(alphabet[i] for i in sample(model, prompt, args.length, args.temperature)))


if __name__ == "__main__":
    main()
