"""Neural networks: layers (here, from `nn/layers.py`), optimizers (`nn.optim`), saved state (`nn.state`),
data.

A layer is any object that holds tensors and can be called; there is no base class. `nn.state.get_parameters`
finds the tensors. The functions that layers call are methods of `Tensor` (`functional/`).
"""
from tinygrad.nn import checkpoints, datasets, functional, optim, parallel, state
from tinygrad.nn.layers import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    Linear,
    LSTMCell,
    RMSNorm,
)
from tinygrad.nn.pipeline import Pipeline
from tinygrad.nn.summary import summary

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "Pipeline",
    "RMSNorm",
    "checkpoints",
    "datasets",
    "functional",
    "optim",
    "parallel",
    "state",
    "summary",
]
