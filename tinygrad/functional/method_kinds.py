"""What `methods.py` makes methods of: functions as operators, under more names of arguments, memoised, and
with errors that name what is no tensor."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

from tinygrad.functional import graph_templates
from tinygrad.functional.in_place import InPlace

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])
Operator: TypeAlias = "Callable[[Tensor, Any], Tensor]"


def operator(function: Callable[..., Tensor]) -> Operator:
    """`tensor <op> x`."""
    return function


def reflected(function: Callable[..., Tensor]) -> Operator:
    """`x <op> tensor`."""
    return lambda self, x: function(self, x, reverse=True)


def in_place(function: Callable[..., Tensor]) -> Operator:
    """`tensor <op>= x`: the result assigned to the tensor."""
    return lambda self, x: self.assign(function(self, x))


def also_named(**names: str) -> Callable[[Function], Function]:
    """Of a function: its arguments `names` may be called so too, as PyTorch (and NumPy) do."""
    def named(function: Function) -> Function:
        @wraps(function)
        def method(*args: Any, **options: Any) -> Any:
            for other in names.keys() & options.keys() if options else ():
                own = names[other]
                if own in options:
                    name = function.__qualname__.removesuffix(".__init__").rstrip("_")
                    raise TypeError(f"{name}: {own} and {other} are two names of one argument")
                options[own] = options.pop(other)
            return function(*args, **options)
        return cast(Function, method)
    return named


def sized(function: Function) -> Function:
    """Of a constructor: its shape may be given by name, as `size`."""
    @wraps(function)
    def made(*shape: Any, **options: Any) -> Any:
        if options and "size" in options:
            if shape:
                raise TypeError(f"{function.__name__}: give the shape once, by itself or as size")
            shape = (options.pop("size"),)
        return function(*shape, **options)
    return cast(Function, made)


Class = TypeVar("Class", bound=type)
AXES = {"dim": "axis", "axis": "dim", "keepdim": "keepdims"}
"""Arguments of many methods, and what they may be called too."""


def with_axes_by_both_names(methods: Class) -> Class:
    """A class of methods that take `dim` as `axis` and the other way round, and `keepdim` as `keepdims`, as
    PyTorch and NumPy do."""
    made: dict[Any, Any] = {}
    for name, member in list(vars(methods).items()):
        function = member.__func__ if isinstance(member, staticmethod) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        code = inspect.unwrap(function).__code__
        arguments = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
        others = {AXES[own]: own for own in AXES.keys() & set(arguments) if AXES[own] not in arguments}
        if others:
            also = made.setdefault(function, also_named(**others)(function))
            setattr(methods, name, staticmethod(also) if isinstance(member, staticmethod) else also)
    return methods


def of_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which raises TypeError where it fails because an argument is no tensor that has to be."""
    @wraps(function)
    def method(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except (AttributeError, KeyError):
            _refuse_strangers(function, args, options)
            raise
    return method


def _refuse_strangers(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    signature = inspect.signature(function)
    for name, value in signature.bind(*args, **options).arguments.items():
        parameter = signature.parameters[name]
        several = parameter.kind is parameter.VAR_POSITIONAL or (name == "self" and type(value) is list)
        for v in value if several else (value,):
            is_one = isinstance(v, InPlace) or (v is None and parameter.annotation == "Tensor | None")
            if not is_one and parameter.annotation in ("Tensor", "Tensor | None"):
                kind = "tensors" if several or name == "self" else f"a tensor as {name}"
                raise TypeError(f"{function.__name__.rstrip('_')} takes {kind}, got a "
                                f"{type(v).__qualname__}; Tensor(x) makes one") from None


def memoised(function: Callable[P, R], first: int = 0) -> Callable[P, R]:
    """As `graph_templates.memoised`; tensors that are none are refused by name."""
    return graph_templates.memoised(of_tensors(function), first)
