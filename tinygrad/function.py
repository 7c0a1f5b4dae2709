"""`function`, at the name that scripts written for tinygrad import it from."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])


@overload
def function(fxn: F) -> F: ...
@overload
def function(fxn: None = None, *, precompile: bool = False, precompile_backward: bool = False,
             allow_implicit: bool = False,
             grad_fxn: Callable[..., Any] | None = None) -> Callable[[F], F]: ...


def function(fxn: Callable[..., Any] | None = None, *, precompile: bool = False,
             precompile_backward: bool = False, allow_implicit: bool = False,
             grad_fxn: Callable[..., Any] | None = None) -> Any:
    """tinygrad's `@function`, which keeps the graph of a call as one node: here the function as it is.

    Equal graphs are scheduled once (docs/architecture.md, "schedule/kept.py"), and `TinyJit` replays them
    without Python. So `precompile`, `precompile_backward` and `allow_implicit` change nothing. Raises
    NotImplementedError for `grad_fxn`.

    >>> from tinygrad import function
    >>> @function(precompile=True)
    ... def double(x):
    ...     return x * 2
    >>> double(Tensor([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """
    if grad_fxn is not None:
        raise NotImplementedError("function(grad_fxn=...) takes a gradient in tinygrad's own operations, "
                                  "which there are none of here; derive from tinygrad.Function, whose "
                                  "backward is written with tensors (docs/custom_gradients.md)")
    return (lambda given: given) if fxn is None else fxn
