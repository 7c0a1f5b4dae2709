"""For all tests, those in docstrings too: the names that examples use without importing them, and what keeps
the garbage collector from walking what it cannot free."""
from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Any

import pytest

collect_ignore = []
"""Modules whose libraries are in an extra that is not installed."""
if not all(importlib.util.find_spec(name) for name in ("tokenizers", "jinja2", "llguidance")):
    collect_ignore += [f"tinygrad/llm/{name}.py" for name in (
        "__main__", "generate", "grammar", "language_model", "requests", "sandbox", "server", "templates",
        "tokenizer", "worker")]
    collect_ignore.append("test/llm/llama_cpp_reference.py")
elif not all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn")):
    collect_ignore.append("tinygrad/llm/server.py")
if not importlib.util.find_spec("onnx"):
    collect_ignore += map(str, (Path(__file__).parent / "test/nn_onnx").glob("onnx_*.py"))
if not importlib.util.find_spec("torch"):
    collect_ignore += ["tinygrad/torch", "tinygrad/interop.py"]
    collect_ignore += [f"test/torch_backend/{name}.py"
                       for name in ("beside_eager", "models_beside_eager", "opinfo", "models", "networks")]
if not all(importlib.util.find_spec(name) for name in ("openai", "httpx", "starlette", "uvicorn")):
    collect_ignore.append("test/running_server.py")


@pytest.fixture(scope="module", autouse=True)
def _collections_walk_what_this_module_made() -> None:
    """What there is before a module's first test stays: modules, tests, PyTorch, what earlier tests left in
    caches. To walk all of it took most of the time of a `gc.collect()`, 2 s late in a run beside PyTorch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    from tinygrad import Tensor, dtypes, nn

    doctest_namespace.update(Tensor=Tensor, dtypes=dtypes, nn=nn)
