"""Teaches a language model a manner of writing by low-rank adapters, beside weights that stay as they are.

    python3 examples/lora.py [text file] [--model M] [--rank N] [--steps N] [--batch N] [--context N]
                             [--seed N] [--adapters lora.safetensors] [--load]

The model is a GGUF file, a Hugging Face folder, or smollm2 for the installed package; its weights stay
quantised as they are stored. To each product W x of attention's queries and values is added B A x, of which
A and B alone are trained, a 300th of the weights (LoRA, Hu et al. 2021). The text is tinyshakespeare unless a
file is given; its last tenth is kept to measure the loss. Printed is what the model writes before and after.
The adapters are saved, and read again for the text after; with --load they are read, nothing is trained.
"""
from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gpt import SHAKESPEARE, batches
from options import parse

from tinygrad import Tensor, TinyJit
from tinygrad.helpers import fetch, tqdm
from tinygrad.llm.language_model import LanguageModel
from tinygrad.llm.model import Transformer
from tinygrad.llm.sampling import Sampling
from tinygrad.nn import optim, state

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
ADAPTED = ("attn_q", "attn_v")
PROMPT = "My lord, the sea"


class Adapter:
    """x (..., inputs) to B A x * scale (..., outputs); 0 at the start, because B is."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float = 2.0) -> None:
        self.down = Tensor.randn(rank, inputs) / math.sqrt(inputs)
        self.up, self.scale = Tensor.zeros(outputs, rank), scale

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.down.transpose() @ self.up.transpose() * self.scale


def adapt(model: Transformer, rank: int) -> dict[str, Adapter]:
    """Put adapters beside the products of each layer that `ADAPTED` names."""
    names = [f"blk.{layer}.{part}" for layer in range(model.config.layers) for part in ADAPTED]
    adapters = {}
    for name in names:
        outputs, inputs = model.shapes[f"{name}.weight"]
        adapters[name] = Adapter(inputs, outputs, rank)
    model.adapters.update(adapters)
    return adapters


def train(model: Transformer, adapters: dict[str, Adapter], text: Array, steps: int, batch: int, context: int,
          rng: np.random.Generator) -> None:
    optimizer = optim.AdamW(state.get_parameters(adapters), lr=3e-3, weight_decay=0.01)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    losses: list[float] = []
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for number in range(steps):
            optimizer.lr.assign([3e-3 * min(1.0, (number + 1) / 5) * (1 - number / steps)]).realize()
            losses.append(step(*batches(text, batch, context, rng)).item())
            bar.set_postfix(loss=f"{np.mean(losses[-10:]):.3f}")
            bar.update()


def loss_of(model: Transformer, text: Array, context: int, pieces: int = 8) -> float:
    """The mean loss over pieces of a text, in nats a token."""
    @TinyJit
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return model(x).sparse_categorical_crossentropy(y).realize()

    rng = np.random.default_rng(0)
    return float(np.mean([loss(*batches(text, 1, context, rng)).item() for _ in range(pieces)]))


def show(when: str, model: LanguageModel, text: Array, context: int) -> float:
    """Print the loss and what the model writes, which is the same each time for the same weights."""
    loss = loss_of(model.generator.model, text, context)
    written = model.complete(PROMPT, Sampling(temperature=0.7, top_p=0.9, tokens=60, seed=1)).text
    print(f"{when}: loss {loss:.3f} nats a token\n{PROMPT}{written}\n", flush=True)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a language model by low-rank adapters.")
    parser.add_argument("text", nargs="?", help="a text file (default: tinyshakespeare)")
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a folder (default: smollm2)")
    parser.add_argument("--rank", type=int, default=8, help="rows of A (default: 8)")
    parser.add_argument("--steps", type=int, default=60, help="of training (default: 60)")
    parser.add_argument("--batch", type=int, default=4, help="pieces of text of a step (default: 4)")
    parser.add_argument("--context", type=int, default=64, help="tokens of a piece (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="of adapters and order (default: 0)")
    parser.add_argument("--adapters", type=Path, default=Path("lora.safetensors"), help="where they are kept")
    parser.add_argument("--load", action="store_true", help="read them instead of training")
    args = parse(parser, rank=1, steps=1, batch=1, context=2)
    Tensor.manual_seed(args.seed)
    try:
        path = Path(args.text) if args.text else fetch(SHAKESPEARE, name="tinyshakespeare.txt")
        written = path.read_text(encoding="utf-8")
        # activations in 8 bits, which some processors multiply faster, would have no gradient
        language = LanguageModel(args.model, length=256, activations="float32")
        adapters = adapt(language.generator.model, args.rank)
        saved = state.safe_load(args.adapters) if args.load else None
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        parser.error(str(error))
    text = np.array(language.tokenizer.encode(written), np.int32)
    split = len(text) * 9 // 10
    if len(text) - split <= args.context + 1:
        parser.error(f"{path} has {len(text)} tokens, too few for --context {args.context}")
    trained = sum(p.numel() for p in state.get_parameters(adapters))
    print(f"{path.name}: {len(text)} tokens; {trained} parameters in {len(adapters)} adapters\n", flush=True)
    show("before", language, text[split:], args.context)
    if saved is None:
        rng = np.random.default_rng(args.seed)
        train(language.generator.model, adapters, text[:split], args.steps, args.batch, args.context, rng)
        state.safe_save(state.get_state_dict(adapters), args.adapters)
        print(f"saved {args.adapters}\n")
        adapters = adapt(language.generator.model, args.rank)  # new ones, filled from the file
        saved = state.safe_load(args.adapters)
    state.load_state_dict(adapters, saved, verbose=False)
    again = LanguageModel(args.model, length=256, activations="float32")
    again.generator.model.adapters.update(adapters)
    show("after", again, text[split:], args.context)


if __name__ == "__main__":
    main()
