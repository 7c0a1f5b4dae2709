"""Trains a small transformer to continue a text, one piece of a word at a time, and prints what it writes.

    python3 examples/gpt.py [text file] [--layers N] [--width N] [--context N] [--steps N] [--seed N]

The text is tinyshakespeare (from the folder that TINYGRAD_DATA names, the cache, or downloaded once) unless a
file is given. A tenth of it, at the end, is kept for validation. `pieces.py` cuts it into pieces.
"""
from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numpy as np
from options import parse
from pieces import Array, cut

from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import fetch, tqdm
from tinygrad.nn import optim, state

SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


class Block:
    """Attention to the pieces before, then two layers for each by itself; each adds to its input."""

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
    """Pieces (N, L) to scores of the next piece (N, L, vocabulary)."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int) -> None:
        self.pieces = nn.Embedding(vocabulary, width)
        self.positions = Tensor.normal(context, width, std=0.02)
        self.blocks = [Block(width, heads) for _ in range(layers)]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.norm((self.pieces(x) + self.positions).sequential(self.blocks)))


def batches(text: Array, size: int, context: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(stretches of the text, the same stretches one piece on), each (size, context)."""
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
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    losses = []
    for i in (bar := tqdm(range(steps), desc="training", unit="step")):
        warm, left = min(1.0, (i + 1) / (0.05 * steps)), 1 - i / steps
        optimizer.lr.assign([highest_rate * warm * (0.1 + 0.9 * left)]).realize()
        losses.append(step(*batches(text, batch, context, rng)).item())
        bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}")


def validate(model: Transformer, text: Array, batch: int, context: int, count: int = 20) -> float:
    """The mean loss over stretches of `text`, in nats a piece."""
    loss_of = TinyJit(Tensor.train(False)(lambda x, y: model(x).sparse_categorical_crossentropy(y).realize()))
    rng = np.random.default_rng(0)
    return float(np.mean([loss_of(*batches(text, batch, context, rng)).item() for _ in range(count)]))


def sample(model: Transformer, prompt: Array, length: int, temperature: float) -> list[int]:
    """`length` pieces that follow `prompt`, which is as long as the model's context."""

    @TinyJit
    @Tensor.train(False)
    def next_piece(x: Tensor) -> Tensor:
        scores = model(x)[0, -1]
        likeliest = temperature == 0
        return (scores.argmax() if likeliest else (scores / temperature).softmax().multinomial()).realize()

    window: list[int] = prompt.tolist()
    for _ in tqdm(range(length), desc="writing", unit="piece", leave=False):
        window.append(int(next_piece(Tensor([window[-len(prompt):]])).item()))
    return window[len(prompt):]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a transformer on a text.")
    parser.add_argument("text", nargs="?", help="a text file (default: tinyshakespeare)")
    for name, value in {"layers": 4, "width": 128, "heads": 4, "batch": 16, "steps": 2500, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--context", type=int, default=64, help="pieces seen (default: 64)")
    parser.add_argument("--pieces", type=int, default=1000, help="different ones, at most (default: 1000)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (default: 0.002)")
    parser.add_argument("--temperature", type=float, default=0.8, help="of sampling; 0 takes the likeliest")
    parser.add_argument("--length", type=int, default=300, help="pieces to write (default: 300)")
    args = parse(parser, layers=1, width=1, heads=1, context=1, batch=1, steps=1, length=0)
    if args.width % args.heads != 0 or args.temperature < 0:
        parser.error(f"--width takes a multiple of --heads {args.heads}, --temperature a number >= 0")
    try:
        path = Path(args.text) if args.text else fetch(SHAKESPEARE, name="tinyshakespeare.txt")
        written = path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    start = time.perf_counter()
    pieces, text = cut(written, args.pieces)
    split = len(text) * 9 // 10
    if len(text) - split <= args.context + 1:
        parser.error(f"{path} has {len(text)} pieces, too few for --context {args.context}")

    Tensor.manual_seed(args.seed)
    model = Transformer(len(pieces), args.context, args.layers, args.width, args.heads)
    size = sum(p.numel() for p in state.get_parameters(model))
    print(f"{path.name}: {len(text)} pieces, {len(pieces)} different; {size} parameters")
    rng = np.random.default_rng(args.seed)
    train(model, text[:split], args.steps, args.batch, args.context, args.lr, rng)
    loss = validate(model, text[split:], args.batch, args.context)
    print(f"validation loss {loss:.3f} nats a piece after {args.steps} steps and "
          f"{time.perf_counter() - start:.0f} s; a guess has {np.log(len(pieces)):.3f}\n")
    drawn = sample(model, text[split:split + args.context], args.length, args.temperature)
    said, read = ("".join(pieces[i] for i in numbers) for numbers in (drawn, text[:split]))
    words, known = re.findall("[A-Za-z]{3,}", said), set(re.findall("[A-Za-z]{3,}", read))
    found = len([word for word in words if word in known])
    print(f"{said}\n\nin the training text: {found} of {len(words)} words of three letters or more")


if __name__ == "__main__":
    main()
