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
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from tinygrad.dtype import DType
from tinygrad.graph.portable import Reader, Writer
from tinygrad.graph.uop import UOp

T = TypeVar("T")


class Codec(NamedTuple):
    """How values of one type are written and read."""

    write: Callable[[Writer, Any], Any]
    read: Callable[[Reader, Any], Any]


def encode(kind: type[T], value: T) -> bytes:
    """A value of a type as JSON. Raises NotPortable for a graph that holds what only this process knows.

    >>> from typing import NamedTuple
    >>> class Size(NamedTuple):
    ...     name: str
    ...     extents: tuple[int, ...]
    >>> decode(Size, encode(Size, Size("x", (2, 3))))
    Size(name='x', extents=(2, 3))
    """
    writer = Writer()
    fields = codec(typing.cast(Hashable, kind)).write(writer, value)
    return json.dumps({"value": fields, "rows": writer.rows}, separators=(",", ":")).encode()


def decode(kind: type[T], text: bytes) -> T:
    """The value of a type that `encode` wrote. Raises ValueError for anything else."""
    try:
        found = json.loads(text)
        value: T = codec(typing.cast(Hashable, kind)).read(Reader(found["rows"]), found["value"])
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
def codec(kind: Any) -> Codec:
    """What writes values of a type, and reads them: that raises ValueError, LookupError or TypeError for what
    is none."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return Codec(Writer.value, Reader.value)
    if kind is UOp:
        return Codec(Writer.add, Reader.node)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Codec(lambda writer, value: value.name, lambda reader, data: kind[data])
    if dataclasses.is_dataclass(kind) and (family := derived(kind)):
        return Codec(lambda writer, value: [type(value).__name__,
                                            *codec(family[type(value).__name__]).write(writer, value)],
                     lambda reader, data: codec(family[listed(data)[0]]).read(reader, data[1:]))
    fields = fields_of(kind)
    if fields is not None:
        parts = _in_order([inner for _, inner in fields])
        return Codec(lambda writer, value: parts.write(writer, [getattr(value, name) for name, _ in fields]),
                     lambda reader, data: kind(*parts.read(reader, data)))
    if origin is tuple and inner[-1] is Ellipsis:
        item = codec(inner[0])
        return Codec(lambda writer, value: [item.write(writer, v) for v in value],
                     lambda reader, data: tuple([item.read(reader, d) for d in listed(data)]))
    if origin is tuple:
        return _in_order(inner)
    if origin is Mapping:
        pairs = codec(tuple[tuple[inner[0], inner[1]], ...])  # type: ignore[valid-type]  # values here
        return Codec(lambda writer, value: pairs.write(writer, value.items()),
                     lambda reader, data: dict(pairs.read(reader, data)))
    if origin in (typing.Union, types.UnionType):
        (some,) = [codec(kind) for kind in inner if kind is not types.NoneType]
        return Codec(lambda writer, value: None if value is None else some.write(writer, value),
                     lambda reader, data: None if data is None else some.read(reader, data))
    return Codec(Writer.value, lambda reader, data: checked(kind, reader.value(data)))


def _in_order(kinds: Sequence[Any]) -> Codec:
    """A tuple of a value of each type."""
    parts = [codec(kind) for kind in kinds]
    return Codec(lambda writer, value: [p.write(writer, v) for p, v in zip(parts, value, strict=True)],
                 lambda reader, data: tuple([p.read(reader, d)
                                             for p, d in zip(parts, listed(data), strict=True)]))


def derived(kind: Any) -> dict[str, Any]:
    """The classes that derive from one, by name."""
    own: dict[str, Any] = {inner.__name__: inner for inner in kind.__subclasses__()}
    return own | {name: below for inner in own.values() for name, below in derived(inner).items()}


def listed(data: Any) -> list[Any]:
    if type(data) is not list:
        raise ValueError(f"not a list: {str(data)[:80]}")
    return data


def checked(kind: type, value: Any) -> Any:
    """`value`, if it is of this type; an integer is a float too."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"not of type {kind.__name__}: {str(value)[:80]}")
    return value
