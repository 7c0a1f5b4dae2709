"""Trains the transformer of `gpt.py` in several processes, data parallel, with checkpoints.

    mpirun -n 4 python3 examples/train_gpt_distributed.py [text file] [--steps N] [--folder FOLDER] [--resume]

Each process computes its part of every batch; gradients are summed between them. Every `--every` steps the
parameters and the optimizer's state are written to FOLDER, whose last checkpoint is whole at any time:
`--resume` goes on from there, with another number of processes too. In one process, without mpirun, it is the
same program. Ctrl-C ends all; docs/several_machines.md says how a cluster starts it.
"""
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from gpt import SHAKESPEARE, Transformer, batches
from options import parse
from pieces import Array

from tinygrad import Tensor, TinyJit, distributed
from tinygrad.helpers import fetch
from tinygrad.nn import checkpoints, optim, state

WORLD = distributed.init()
STEP = "step"


def on_all(tensor: Tensor, axis: int | None = None) -> Tensor:
    """Cut along an axis over all processes, or whole in each."""
    return tensor.shard(WORLD.devices, axis) if WORLD.size > 1 else tensor


def resume(folder: Path, tensors: dict[str, Tensor]) -> int:
    """Fill the tensors with those of the last checkpoint; returns the steps done by then, 0 without one.
    Raises ValueError where that is of another model, or not whole."""
    try:
        saved, metadata = checkpoints.load(folder)
    except FileNotFoundError:
        return 0
    wrong = [name for name, t in tensors.items() if name not in saved or saved[name].shape != t.shape]
    if wrong:
        raise ValueError(f"the checkpoint in {folder} is of another text or model: see {wrong[0]}")
    for name, tensor in tensors.items():
        tensor.assign(on_all(saved[name])).realize()
    return int(metadata[STEP])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level transformer in several processes.")
    parser.add_argument("text", nargs="?", help="a text file (default: tinyshakespeare)")
    parser.add_argument("--layers", type=int, default=4, help="default: 4")
    parser.add_argument("--width", type=int, default=128, help="default: 128")
    parser.add_argument("--heads", type=int, default=4, help="default: 4")
    parser.add_argument("--context", type=int, default=64, help="characters seen (default: 64)")
    parser.add_argument("--batch", type=int, default=32, help="of all processes together (default: 32)")
    parser.add_argument("--steps", type=int, default=500, help="default: 500")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (default: 0.002)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="default: checkpoints")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints (default: 100)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parse(parser, layers=1, width=1, heads=1, context=1, batch=1, steps=1, every=1)
    if args.width % args.heads != 0 or args.batch % WORLD.size != 0:
        parser.error(f"--width takes a multiple of --heads {args.heads}, "
                     f"--batch one of the number of processes, {WORLD.size}")
    try:
        path = Path(args.text) if args.text else fetch(SHAKESPEARE, name="tinyshakespeare.txt")
        written = path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        parser.error(str(error))
    number = {c: i for i, c in enumerate(sorted(set(written)))}
    text: Array = np.array([number[c] for c in written], np.int32)
    if len(text) <= args.context:
        parser.error(f"{path} has {len(text)} characters, too few for --context {args.context}")

    Tensor.manual_seed(args.seed)
    model = Transformer(len(number), args.context, args.layers, args.width, args.heads)
    parameters = state.get_parameters(model)
    if WORLD.size > 1:
        for parameter in parameters:
            parameter.shard_(WORLD.devices)
    optimizer = optim.AdamW(parameters, lr=args.lr, b2=0.99, weight_decay=0.1)
    kept = {**state.get_state_dict(model, "model."), **state.get_state_dict(optimizer, "optimizer.")}
    kept = {name: tensor for name, tensor in kept.items() if not name.startswith("optimizer.params")}
    try:
        begin = resume(args.folder, kept) if args.resume else 0
    except (OSError, ValueError) as error:
        parser.error(str(error))

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    since = time.perf_counter()
    for done in range(begin, args.steps):
        drawn = batches(text, args.batch, args.context, np.random.default_rng((args.seed, done)))
        x, y = (on_all(t, 0).realize() for t in drawn)
        loss = step(x, y)
        if (done + 1) % args.every == 0 or done + 1 == args.steps:
            value = loss.item()
            if WORLD.rank == 0:
                print(f"step {done + 1}: loss {value:.4f}, {time.perf_counter() - since:.1f} s", flush=True)
            checkpoints.save(kept, args.folder, {STEP: done + 1})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: --resume goes on from the last checkpoint")
