"""Methods of `Tensor` that scripts written for tinygrad call: `functional/methods.py` binds them."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor


def is_param(self: Tensor) -> bool:
    """Whether an optimizer changes this tensor rather than keeping it as a buffer: unless `requires_grad` is
    False."""
    return self.requires_grad is not False


def is_param_(self: Tensor, is_param: bool = True) -> Tensor:
    """Say whether optimizers change this tensor, and return it: `requires_grad_(False)`, where not.

    >>> Tensor([1.0]).is_param_(False).requires_grad
    False
    """
    if is_param != (self.requires_grad is not False):
        self.requires_grad = None if is_param else False
    return self


def custom_kernel(self: Tensor, *lst: Tensor, fxn: Callable[..., Any],
                  grad_fxn: Callable[..., Any] | None = None) -> NoReturn:
    """Raises NotImplementedError: kernels are not written by hand here."""
    raise NotImplementedError(
        "Tensor.custom_kernel takes a kernel in tinygrad's own operations, which there are none of here: "
        "write it with methods of Tensor, which are fused into few kernels, and give it a gradient of its "
        "own by tinygrad.Function (docs/custom_gradients.md)")
