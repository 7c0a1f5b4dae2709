"""PyTorch's models and functions among ours, and ours among PyTorch's; takes the extra `torch`.

`from_torch(module)` is a module as a model of ours, with its state. `torch_function` and `as_torch` put a
function of one library inside the gradients of the other; `to_torch` and `to_tensor` copy values.
"""
from tinygrad.torch.exported import TorchModel as TorchModel
from tinygrad.torch.exported import from_torch as from_torch
from tinygrad.torch.functions import as_torch as as_torch
from tinygrad.torch.functions import to_tensor as to_tensor
from tinygrad.torch.functions import to_torch as to_torch
from tinygrad.torch.functions import torch_function as torch_function
