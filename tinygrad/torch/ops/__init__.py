"""ATen's operators as functions of tensors, one family a module; importing this fills the table."""
from tinygrad.torch.ops import (
    creation,
    elementwise,
    gamma,
    indexing,
    matrices,
    movement,
    networks,
    norms,
    products,
    reductions,
    resampling,
    searching,
)

__all__ = ["creation", "elementwise", "gamma", "indexing", "matrices", "movement", "networks", "norms",
           "products", "reductions", "resampling", "searching"]
