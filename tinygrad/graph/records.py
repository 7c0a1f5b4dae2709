"""Records as JSON, by their types: what is kept on disk is read back as the same values, and checked.

In: a value of a type that is made of dataclasses, named tuples, tuples, mappings, enumerations, numbers,
texts, dtypes and nodes. Out: bytes, and of these the value again. `decode` raises ValueError for whatever is
no value of the type, so that what reads a file need not look at its fields. A field with `compare=False` is
no part of a record. What may be anything (`Any`) is written as an argument of a node is (`portable.py`); a
value of a class that others derive from says which of these it is.
"""
from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any, TypeVar

from tinygrad.dtype import DType
from tinygrad.graph.portable import Reader, Writer
from tinygrad.graph.uop import UOp

T = TypeVar("T")
Encoder = Callable[[Writer, Any], Any]
Decoder = Callable[[Reader, Any], Any]


def encode(kind: type[T], value: T) -> bytes:
    """A value of a type as JSON. Raises NotPortable for a graph that holds what only this process knows.

    >>> from typing import NamedTuple
    >>> class Size(NamedTuple):
    ...     name: str
    ...     extents: tuple[int, ...]
    >>> decode(Size, encode(Size, Size("x", (2, 3))))
    Size(name='x', extents=(2, 3))
    """
    writer, known = Writer(), typing.cast(Hashable, kind)
    fields = encoder(known)(writer, value)
    return json.dumps({"value": fields, "rows": writer.rows}, separators=(",", ":")).encode()


def decode(kind: type[T], text: bytes) -> T:
    """The value of a type that `encode` wrote. Raises ValueError for anything else."""
    try:
        found = json.loads(text)
        value: T = decoder(typing.cast(Hashable, kind))(Reader(found["rows"]), found["value"])
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no {kind.__name__} as this version writes it: {error}") from error
    return value


def fields_of(kind: Any) -> list[tuple[str, Any]] | None:
    """The fields of a record by name, with their types; None for a type that is no record."""
    if kind is DType:
        return None
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.compare]
    elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        return None
    hints = typing.get_type_hints(kind)
    return [(name, hints[name]) for name in names]


@functools.cache
def encoder(kind: Any) -> Encoder:
    """What writes values of a type."""
    if kind is UOp:
        return Writer.add
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda writer, value: value.name
    if dataclasses.is_dataclass(kind) and (family := derived(kind)):
        return lambda writer, value: [type(value).__name__,
                                      *encoder(family[type(value).__name__])(writer, value)]
    fields = fields_of(kind)
    if fields is not None:
        parts = [(name, encoder(inner)) for name, inner in fields]
        return lambda writer, value: [encode(writer, getattr(value, name)) for name, encode in parts]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and inner[-1] is Ellipsis:
        item = encoder(inner[0])
        return lambda writer, value: [item(writer, v) for v in value]
    if origin is tuple:
        items = [encoder(i) for i in inner]
        return lambda writer, value: [item(writer, v) for item, v in zip(items, value, strict=True)]
    if origin is Mapping:
        pair = encoder(tuple[inner[0], inner[1]])  # type: ignore[valid-type]  # types that are values here
        return lambda writer, value: [pair(writer, item) for item in value.items()]
    if origin in (typing.Union, types.UnionType):
        some = encoder(optional(kind))
        return lambda writer, value: None if value is None else some(writer, value)
    return Writer.value


@functools.cache
def decoder(kind: Any) -> Decoder:
    """What reads values of a type, and raises ValueError, LookupError or TypeError for others."""
    if kind is Any:
        return Reader.value
    if kind is UOp:
        return Reader.node
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda reader, data: kind[data]
    if dataclasses.is_dataclass(kind) and (family := derived(kind)):
        return lambda reader, data: decoder(family[listed(data)[0]])(reader, data[1:])
    fields = fields_of(kind)
    if fields is not None:
        make, parts = kind, [decoder(inner) for _, inner in fields]
        return lambda reader, data: make(*[part(reader, d) for part, d in zip(parts, data, strict=True)])
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and inner[-1] is Ellipsis:
        item = decoder(inner[0])
        return lambda reader, data: tuple([item(reader, d) for d in listed(data)])
    if origin is tuple:
        items = [decoder(i) for i in inner]
        return lambda reader, data: tuple([item(reader, d)
                                           for item, d in zip(items, listed(data), strict=True)])
    if origin is Mapping:
        pairs = decoder(tuple[tuple[inner[0], inner[1]], ...])  # type: ignore[valid-type]
        return lambda reader, data: dict(pairs(reader, data))
    if origin in (typing.Union, types.UnionType):
        some = decoder(optional(kind))
        return lambda reader, data: None if data is None else some(reader, data)
    return lambda reader, data: checked(kind, reader.value(data))


def derived(kind: Any) -> dict[str, Any]:
    """The classes that derive from one, by name."""
    own: dict[str, Any] = {inner.__name__: inner for inner in kind.__subclasses__()}
    return own | {name: below for inner in own.values() for name, below in derived(inner).items()}


def optional(kind: Any) -> Any:
    """The other type of one that may be None."""
    (found,) = (inner for inner in typing.get_args(kind) if inner is not types.NoneType)
    return found


def listed(data: Any) -> list[Any]:
    if type(data) is not list:
        raise ValueError(f"not a list: {str(data)[:80]}")
    return data


def checked(kind: type, value: Any) -> Any:
    """`value`, if it is of this type; an integer is a float too."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"not of type {kind.__name__}: {str(value)[:80]}")
    return value
