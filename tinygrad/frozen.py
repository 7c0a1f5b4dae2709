"""`frozen`: dataclasses that do not change, whose methods are compiled at once."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

T = TypeVar("T")


class _Made:
    """The default of a field that is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()
_METHODS = """
def __init__(self, {parameters}):
    {body}
def __eq__(self, other):
    return ({of_self}) == ({of_other}) if other.__class__ is self.__class__ else NotImplemented
def __hash__(self):
    return hash(({of_self}))
"""


@overload
def frozen(cls: type[T], /, *, eq: bool = True, repr: bool = True) -> type[T]: ...
@overload
def frozen(*, eq: bool = True, repr: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, eq: bool = True, repr: bool = True) -> Any:
    """What `dataclasses.dataclass(frozen=True, eq=eq, repr=repr)` makes of a class. Up to Python 3.12 that
    compiles each of six methods by itself: `import tinygrad`, which makes 114 classes, takes 0.29 s in place
    of 0.245 then (Intel, docs/performance.md).

    >>> @frozen
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), Point(1) == (1, 0)
    (Point(x=1, y=0), True, False)
    >>> Point(1).x = 2
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """
    def made(cls: type[T]) -> type[T]:
        dataclass(init=False, repr=False, eq=False)(cls)  # its fields, without methods
        methods = _methods_of(cls) | {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        if not eq:
            del methods["__eq__"], methods["__hash__"]
        if repr:
            methods["__repr__"] = _shown
        for name, method in methods.items():
            if vars(cls).get(name) is None:  # a class with an `__eq__` of its own has a `__hash__` of None
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


def _methods_of(cls: type) -> dict[str, Any]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_made": _MADE}
    parameters, body = [], []
    for f in fields(cls):
        if f.kw_only or not f.init:
            raise TypeError(f"frozen: the field {f.name!r} of {cls.__name__} cannot be kw_only or init=False")
        value = f.name
        if f.default is not MISSING:
            names["_default_" + f.name] = f.default
            parameters.append(f"{f.name}=_default_{f.name}")
        elif f.default_factory is not MISSING:
            names["_new_" + f.name] = f.default_factory
            parameters.append(f"{f.name}=_made")
            value = f"_new_{f.name}() if {f.name} is _made else {f.name}"
        else:
            parameters.append(f.name)
        body.append(f"_set(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    compared = [f.name for f in fields(cls) if f.compare]
    of_self, of_other = ("".join(f"{who}.{name}, " for name in compared) for who in ("self", "other"))
    exec(_METHODS.format(parameters=", ".join(parameters), body="\n    ".join(body) or "pass",
                         of_self=of_self, of_other=of_other), names)
    methods = {name: names[name] for name in ("__init__", "__eq__", "__hash__")}
    for name, method in methods.items():
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        method.__module__ = cls.__module__
    methods["__init__"].__annotations__ = {f.name: f.type for f in fields(cls)} | {"return": None}
    return methods


def _shown(self: Any) -> str:
    items = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(items)})"


def _refuse_to_assign(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
