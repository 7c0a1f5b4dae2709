"""PyTorch's programs through this compiler: `torch.compile(model, backend="tinygrad")`.

`backend.py` is what `torch.compile` calls: graphs through AOTAutograd, in functional form, forward and
backward, in ATen's core operators. `evaluate.py` walks such a graph with tensors of ours; `registry.py` is
the table of operators, which `ops/` fills, one family a module. Takes PyTorch: `pip install
"tinygrad[torch]"`.
"""
from tinygrad.torch.backend import backend
from tinygrad.torch.registry import UnsupportedOperators

__all__ = ["UnsupportedOperators", "backend"]
