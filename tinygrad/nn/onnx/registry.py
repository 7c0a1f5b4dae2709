"""The table of operators: which function is which version of which operator, and how a node calls it.

A function is called as its operator, and takes what the standard says in its order: inputs by position,
attributes by keyword (after `*`). A version of another signature or meaning has its number behind the name:
`Squeeze` is the operator as it was in the beginning, `Squeeze_13` what it is since version 13. Annotations
say in which form an input is wanted: tensors where nothing is said; `Ints`, `int`, `float`, `bool`,
`Strings` and `Array` as values that the host knows; `Items` as tensors, but for strings and numbers that no
tensor holds; `Value` as it comes. Attributes that several operators have are a `TypedDict`: `**options:
Unpack[WindowAttributes]`. A keyword `n_outputs` gets the number of results that the node names.

The standard's own table (`onnx.defs`) gives results their types: where it says that a result has the type of
an input, or always one type, results are cast to that.
"""
from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tinygrad.dtype import dtype_from_numpy
from tinygrad.frozen import frozen
from tinygrad.graph.sizes import Size
from tinygrad.nn.onnx.values import Array, Coded, Sizes, Value, is_number, numpy_type
from tinygrad.tensor import Tensor

Ints: TypeAlias = tuple[int, ...]
Strings: TypeAlias = tuple[str, ...]
Function: TypeAlias = Callable[..., Any]
F = typing.TypeVar("F", bound=Function)
CONTRIBUTED = "com.microsoft"


@frozen
class Operator:
    """One version of one operator."""

    domain: str
    name: str
    since: int
    function: Function
    forms: tuple[Any, ...]
    """the annotation of each input"""
    variadic: Any
    """the annotation of `*inputs`, None without"""
    attributes: frozenset[str]
    required: int
    """how many inputs must be there"""
    needed: frozenset[str] = frozenset()
    """the attributes that must be"""
    present: frozenset[int] = frozenset()
    """the positions of inputs that no node may leave out by an empty name"""

    def form(self, position: int) -> Any:
        return self.forms[position] if position < len(self.forms) else self.variadic

    def is_read(self, position: int) -> bool:
        """Whether the host has to know the values of an input."""
        return self.form(position) in _HOST_FORMS


OPERATORS: dict[tuple[str, str], list[Operator]] = {}
RANDOM: set[str] = set()
"""Operators whose results differ from call to call: never folded."""


@typing.overload
def op(function: F) -> F: ...


@typing.overload
def op(*, domain: str = "", random: bool = False) -> Callable[[F], F]: ...


def op(function: Any = None, *, domain: str = "", random: bool = False) -> Any:
    """Register a function as the operator that it is named after; see the module."""
    def registered(f: F) -> F:
        register(f, f.__name__, domain, random)
        return f
    return registered if function is None else registered(function)


def register(function: Function, name: str, domain: str = "", random: bool = False) -> None:
    """Register a function as the operator `name`, with a version behind it or without."""
    spelled = re.fullmatch(r"(.*?)(?:_(\d+))?", name)
    assert spelled is not None
    operator, since = spelled[1], int(spelled[2] or 1)
    said = typing.get_type_hints(function)
    hints = {name: _without_none(hint) for name, hint in said.items()}
    parameters = list(inspect.signature(function).parameters.values())
    inputs = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = [hints.get(p.name, Tensor) for p in parameters if p.kind is p.VAR_POSITIONAL]
    attributes = _attributes_of(function)
    versions = OPERATORS.setdefault((domain, operator), [])
    versions.append(Operator(
        domain, operator, since, function, tuple(hints.get(p.name, Tensor) for p in inputs),
        variadic[0] if variadic else None, frozenset(attributes),
        sum(p.default is p.empty for p in inputs),
        frozenset(name for name, is_needed in attributes.items() if is_needed),
        frozenset(i for i, p in enumerate(inputs)
                  if p.default is p.empty and hints.get(p.name) is said.get(p.name))))
    versions.sort(key=lambda v: v.since)
    if random:
        RANDOM.add(operator)


def ops(domain: str = "", **functions: Function) -> None:
    """Register operators that one line says, by name."""
    for name, function in functions.items():
        register(function, name, domain)


def with_attributes_of(function: Function) -> Callable[[F], F]:
    """Let a function that hands its `**attributes` on to another have those of that one."""
    def marked(outer: F) -> F:
        _HANDED_ON[outer] = function
        return outer
    return marked


_HANDED_ON: dict[Function, Function] = {}


def _attributes_of(function: Function) -> dict[str, bool]:
    """The attributes that a function takes, and whether they must be there."""
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    for rest in (p.name for p in parameters if p.kind is p.VAR_KEYWORD):
        if function in _HANDED_ON:
            found.update(_attributes_of(_HANDED_ON[function]))
        else:
            (shared,) = typing.get_args(typing.get_type_hints(function)[rest])
            found.update({name: name in shared.__required_keys__ for name in shared.__annotations__})
    return found


def find(domain: str, name: str, version: int) -> Operator | None:
    """The operator as it is in a version of its domain's set, or None."""
    import tinygrad.nn.onnx.ops  # noqa: F401  # fills the table

    known = [v for v in OPERATORS.get((domain, name), []) if v.since <= version]
    return known[-1] if known else None


# --- the form of an input -----------------------------------------------------------------------------------


def _without_none(hint: Any) -> Any:
    """What an optional input is where it is given."""
    options = [o for o in typing.get_args(hint) if o is not type(None)]
    return options[0] if len(options) == 1 and type(None) in typing.get_args(hint) else hint


HostReader: TypeAlias = Callable[[Value], Array]
TensorMaker: TypeAlias = Callable[[Value], Tensor]


def to_form(value: Value, form: Any, as_tensor: TensorMaker, as_array: HostReader) -> Any:
    """`value` in the form that an annotation says."""
    if value is None or form is Any:
        return value
    if form in _HOST_FORMS:
        return _HOST_FORMS[form](as_array(value))
    is_special = isinstance(value, Coded) or (isinstance(value, np.ndarray) and not is_number(value))
    return value if form is not Tensor and is_special else as_tensor(value)


def _one(array: Array) -> Any:
    if array.size != 1:
        raise TypeError(f"takes one item where it got some of shape {array.shape}")
    return array.reshape(-1)[0] if array.dtype == object else array.item()


def _integer(value: Any) -> int:
    return value if isinstance(value, Size) else int(value)


_HOST_FORMS: dict[Any, Callable[[Array], Any]] = {
    Ints: lambda array: tuple(_integer(n) for n in array.reshape(-1)),
    Strings: lambda array: tuple(str(s) for s in array.reshape(-1)),
    int: lambda array: _integer(_one(array)),
    float: lambda array: float(_one(array)),
    bool: lambda array: bool(_one(array)),
    Array: lambda array: array,
}


# --- the types of results -----------------------------------------------------------------------------------


@functools.cache
def result_types(domain: str, name: str, version: int) -> tuple[int | np.dtype[Any] | None, ...]:
    """For each result of an operator: the number of the input whose type it has, or its type, or None where
    attributes decide."""
    from onnx import defs, helper

    if not defs.has(name, version, domain):
        return ()
    schema = defs.get_schema(name, version, domain)
    first: dict[str, int] = {}
    for i, formal in enumerate(schema.inputs):
        first.setdefault(formal.type_str, i)
    types: dict[str, np.dtype[Any] | None] = {
        f"tensor({text})": helper.tensor_dtype_to_np_dtype(number)
        for number, text in _type_names().items()}
    for constraint in schema.type_constraints:
        if len(constraint.allowed_type_strs) == 1:
            types[constraint.type_param_str] = types.get(constraint.allowed_type_strs[0])
    return tuple(first.get(o.type_str, types.get(o.type_str)) if o.is_homogeneous else None
                 for o in schema.outputs)


@functools.cache
def type_parameters(domain: str, name: str, version: int) -> tuple[tuple[str, str], ...]:
    """For each input of an operator what the standard calls it and its type: inputs of one type, which has a
    name of its own, are of the same. The last one counts for all that follow, where it is repeated."""
    from onnx import defs

    if not defs.has(name, version, domain):
        return ()
    schema = defs.get_schema(name, version, domain)
    named = {constraint.type_param_str for constraint in schema.type_constraints}
    return tuple((i.name, i.type_str if i.type_str in named and i.is_homogeneous else "")
                 for i in schema.inputs)


def input_name(domain: str, name: str, version: int, position: int) -> str:
    """What the standard calls an input of an operator; its number, where it says nothing of that."""
    parameters = type_parameters(domain, name, version)
    return parameters[min(position, len(parameters) - 1)][0] if parameters else f"input {position}"


def family(kind: str) -> str:
    """What kind of items a type of this name has, in the standard's table or NumPy's: float for all floats,
    int for all integers."""
    names = {"float": ("float", "bfloat", "double"), "int": ("int", "uint"), "string": ("string", "object")}
    return next((known for known, starts in names.items() if kind.startswith(starts)), kind)


@functools.cache
def allowed_kinds(domain: str, name: str, version: int) -> tuple[frozenset[str], ...]:
    """For each input of an operator the families of the types that it may have."""
    from onnx import defs

    if not defs.has(name, version, domain):
        return ()
    return tuple(frozenset(family(text[len("tensor("):-1]) for text in formal.types
                           if text.startswith("tensor("))
                 for formal in defs.get_schema(name, version, domain).inputs)


@functools.cache
def attribute_kinds(domain: str, name: str, version: int) -> dict[str, tuple[int, str]]:
    """For each attribute of an operator the standard's number of its type, and what that is in words."""
    from onnx import AttributeProto, defs

    if not defs.has(name, version, domain):
        return {}
    words = {"FLOAT": "a float", "INT": "an integer", "STRING": "a string", "FLOATS": "floats",
             "INTS": "integers", "STRINGS": "strings"}
    return {key: (said.type.value, words.get(said.type.name, f"a {said.type.name.lower()}"))
            for key, said in defs.get_schema(name, version, domain).attributes.items()
            if said.type.value != AttributeProto.UNDEFINED}


def check_types(inputs: Sequence[Value], parameters: Sequence[tuple[str, str]]) -> None:
    """Raise TypeError where inputs have different types that the standard says are the same. An input is a
    value, or the type of one."""
    first: dict[str, tuple[str, str]] = {}
    for i, value in enumerate(inputs if parameters else ()):
        name, parameter = parameters[min(i, len(parameters) - 1)]
        if not parameter or not isinstance(value, (Tensor, np.ndarray, Sizes, Coded, np.dtype)):
            continue
        kind = (value if isinstance(value, np.dtype) else numpy_type(value)).name
        other, other_kind = first.setdefault(parameter, (name, kind))
        if kind != other_kind:
            raise TypeError(f"takes inputs of one type, got {other} of {other_kind} and {name} of {kind}")


def check_count(what: str, count: int, wanted: int) -> None:
    """Raise ValueError where there are not as many numbers as something has."""
    if count != wanted:
        raise ValueError(f"{what} are {wanted} numbers, got {count}")


@functools.cache
def _type_names() -> dict[int, str]:
    """The standard's numbers of element types, and what it calls them in its table of operators."""
    from onnx import TensorProto

    spelled = {"FLOAT": "float", "DOUBLE": "double", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}
    return {number: spelled.get(name, name.lower()) for name, number in TensorProto.DataType.items()
            if name in (*spelled, "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32",
                        "UINT64")}


def with_types(results: Sequence[Value], inputs: Sequence[Value],
               types: Sequence[int | np.dtype[Any] | None]) -> list[Value]:
    """Results cast to what the standard says of them; lists and strings as they are."""
    typed = list(results)
    for i, said in enumerate(types[:len(typed)]):
        source = inputs[said] if isinstance(said, int) and said < len(inputs) else said
        kind = source.dtype.numpy if isinstance(source, Tensor) else \
            source.dtype if isinstance(source, (np.ndarray, Sizes)) else source
        if isinstance(kind, np.dtype) and isinstance(typed[i], Tensor) and typed[i].dtype.numpy != kind:
            typed[i] = typed[i].cast(dtype_from_numpy(kind))
        elif isinstance(kind, np.dtype) and isinstance(typed[i], np.ndarray) and typed[i].dtype != kind:
            typed[i] = typed[i].astype(kind)
    return typed
