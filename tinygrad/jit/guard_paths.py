"""Guard paths: how a traced function reaches tensors, arrays and numbers of its surroundings.

Python tells nobody that a name, an attribute or an item of a list stands for another object now. `GuardPaths`
follows the names that a function's code reads, and what can be reached from there, to the tensors that a call
used, and to the arrays and lists that it made tensors of (`jit/arrays.py`). It asks before each replay
whether the way still leads there. Numbers, texts and other objects that code reads by name (of an enclosing
function, or of its module) are compared too. They are rows of the guard table (`jit/guard_table.py`).
"""
from __future__ import annotations

import dis
import functools
import operator
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tinygrad.jit.arguments import PLAIN, Inputs
from tinygrad.jit.guard_table import Guard
from tinygrad.tensor import Tensor
from tinygrad.tensor.hostdata import owner_of

MOST_OBJECTS = 20_000
"""Objects that are looked at: a list of a million numbers is no model."""
DEEPEST = 100
"""Steps from the function that are followed."""


class _Nothing:
    """What a way that ends too early leads to."""


def _item(holder: Any, key: Any) -> Any:
    return holder[key] if key < len(holder) else _Nothing


def _entry(holder: Any, key: Any) -> Any:
    return holder.get(key, _Nothing)


def _global(holder: Any, key: Any) -> Any:
    return holder.get(key, _Nothing)


def _attribute(holder: Any, key: Any) -> Any:
    return vars(holder).get(key, _Nothing)


def _class_attribute(holder: Any, key: Any) -> Any:
    """As `_attribute`, of a class, whose attributes lie in no dict."""
    return _attribute(holder, key)


def _slot(holder: Any, key: Any) -> Any:
    return getattr(holder, key, _Nothing)


def _class(holder: Any, key: Any) -> Any:
    return type(holder)


def _content(holder: Any, key: Any) -> Any:
    try:
        return holder.cell_contents
    except ValueError:  # nothing assigned yet
        return _Nothing


_Reads: TypeAlias = Callable[[Iterable[Any], Iterable[Any]], Iterable[Any]]
_READ_ALL: dict[Callable[[Any, Any], Any], _Reads] = {
    _item: functools.partial(map, operator.getitem),
    _entry: functools.partial(map, dict.get),
    _global: functools.partial(map, dict.get),
    _attribute: lambda holders, keys: map(dict.get, map(operator.attrgetter("__dict__"), holders), keys),
}
"""What reads a part of each of some holders as the functions above do, where it is there: in native code, for
a model has hundreds, and every replay looks."""


def reference_to(value: Any, ended: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """`value` when it is asked for: without keeping it alive, where that can be. Calls `ended` when it is
    gone."""
    if not isinstance(value, FunctionType):
        try:
            return weakref.ref(value, ended)
        except TypeError:
            pass
    return lambda: value


class PathGuards(NamedTuple):
    """Objects that stand in others, all read in the same way: by number, holder, key and identity."""

    holders: list[Callable[[], Any]]
    keys: list[Any]
    """the names or numbers under which they stand there"""
    identities: list[int]
    """the ids of the objects, which live"""

    def lead_there(self, read: Callable[[Any, Any], Any]) -> bool:
        """Whether the objects are where they were."""
        read_all: _Reads = _READ_ALL.get(read) or functools.partial(map, read)
        try:
            found = read_all([holder() for holder in self.holders], self.keys)
            return [*map(id, found)] == self.identities
        except (AttributeError, IndexError, TypeError):  # a list is shorter now, or a holder is gone
            return False


def _read_now(read: Callable[[Any, Any], Any], holder: Callable[[], Any], key: Any) -> Any:
    """What stands in an object now."""
    value = holder()
    return _Nothing if value is None else read(value, key)


def lead_to_tensors(made: Mapping[GuardPath, Callable[[], Any]]) -> bool:
    """Whether each of the ways leads to a tensor now."""
    return all([isinstance(leads_to(), Tensor) for leads_to in made.values()])


def value_guard(read: Callable[[Any, Any], Any], holder: Any, key: Any, value: Any) -> Guard:
    """The row of a number or text that code reads by name."""

    def read_now(inputs: Inputs) -> tuple[type, Any]:
        now = read(holder, key)
        return type(now), now

    return Guard("a number or text that its code reads" if key is None else f"the value of `{key}`", read_now,
                 (type(value), value))


class GuardPaths:
    """The guard paths from a function, called on the instances `bound`, to the tensors, lists and owners of
    arrays whose ids are `wanted`. Tensors whose ids are not among the `known` ones it made itself."""

    def __init__(self, function: Callable[..., Any], bound: Iterable[Any], wanted: Collection[int],
                 known: Collection[int]) -> None:
        self.wanted = wanted
        self.known = known
        self.path_guards: dict[Callable[[Any, Any], Any], PathGuards] = {}
        """by how they are read"""
        self.value_guards: list[Guard] = []
        self.values: list[Any] = []
        """the objects that are held, so that their ids stay theirs: weakly, where that can be"""
        self.gone: list[Any] = []
        """what referred weakly to those that are gone: one, and no way leads to it any more"""
        self.made: dict[GuardPath, Callable[[], Any]] = {}
        """the ways to tensors that the function made, and keeps; each says where it leads now"""
        self.places: dict[GuardPath, weakref.ref[Tensor]] = {}
        """the ways to tensors, and those that they lead to"""
        self.reached: set[int] = set()
        """the ids of what was wanted and found"""
        self.arrays: list[np.ndarray[Any, Any]] = []
        """those that code reads by name"""
        self.empty: list[tuple[Callable[[Any, Any], Any], Any, Any]] = []
        """the attributes of the users' objects that are None: how to read one, its holder, its name"""
        self.names: set[str] = set()
        """of attributes that code reads"""
        self.leads: dict[int, bool] = {}
        """by the id of what was looked at: whether a wanted tensor can be reached from it"""
        self.seen: list[Any] = []
        """those objects, so that their ids stay theirs"""
        for root in (function, *bound):
            self.follow(root)
        for read, holder, key in self.empty:
            if key in self.names:
                self.note(read, holder, key, None)
        self.empty.clear()
        self.seen.clear()
        self.leads.clear()

    def table(self) -> list[Guard]:
        """The rows: all ways at once, for a model has hundreds, and each value."""
        return [Guard("what its names, attributes and items refer to", self.lead_there, True),
                *self.value_guards]

    def lead_there(self, inputs: Inputs) -> bool:
        """Whether all ways still lead where they led."""
        return not self.gone and all([guards.lead_there(read) for read, guards in self.path_guards.items()])

    def note(self, read: Callable[[Any, Any], Any], holder: Any, key: Any, value: Any) -> None:
        """Take note of an object that stands in another one."""
        guards = self.path_guards.setdefault(read, PathGuards([], [], []))
        guards.holders.append(reference_to(holder))
        guards.keys.append(key)
        guards.identities.append(id(value))
        self.values.append(reference_to(value, self.gone.append))

    def follow(self, value: Any, depth: int = 0) -> bool:
        """Whether something wanted is `value` or can be reached from it; notes the ways."""
        found = id(owner_of(value) if isinstance(value, np.ndarray) else value)
        if found in self.wanted:
            self.reached.add(found)
            return True
        if isinstance(value, (Tensor, *PLAIN)):
            return False
        known = self.leads.get(id(value))
        if known is not None or len(self.seen) == MOST_OBJECTS or depth == DEEPEST:
            return bool(known)
        self.leads[id(value)] = False  # for ways that come back here
        self.seen.append(value)
        self.names.update(attributes_read_by(value))
        leads = False
        for read, holder, key, child in parts(value):
            if read in (_content, _global) and isinstance(child, np.ndarray):
                self.arrays.append(child)
            elif isinstance(child, Tensor):
                self.places[id(holder), key] = weakref.ref(child)
            if child is None and read in (_attribute, _slot):
                self.empty.append((read, holder, key))
            if self.follow(child, depth + 1):
                leads = True
                self.note(read, holder, key, child)
            elif isinstance(child, Tensor):
                if id(child) not in self.known:
                    self.made[id(holder), key] = functools.partial(_read_now, read, reference_to(holder), key)
            elif read in (_content, _global):
                if isinstance(child, PLAIN):
                    self.value_guards.append(value_guard(read, holder, key, child))
                else:
                    self.note(read, holder, key, child)
        self.leads[id(value)] = leads
        return leads


_OF_MODULE = {dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")}
_OF_OBJECT = {dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") if name in dis.opmap}
_NOT_USERS = {*sys.stdlib_module_names, "tinygrad", "numpy"}
"""Top-level modules that hold no tensors of the user's."""
GuardPath = tuple[int, Any]
"""The id of what holds something, and under which name or number."""
PathStep = tuple[Callable[[Any, Any], Any], Any, Any, Any]
"""How to read it, what holds it, under which name or number, and what it is now."""


def parts(value: Any) -> Iterator[PathStep]:
    """The objects that stand in another one and may be others later."""
    if isinstance(value, (list, tuple, deque)):
        yield from ((_item, value, i, child) for i, child in enumerate(value))
    elif isinstance(value, dict):
        yield from ((_entry, value, key, child) for key, child in list(value.items()))
    elif isinstance(value, FunctionType):
        yield from parts_of_function(value)
    elif isinstance(value, (MethodType, functools.partial)):
        inner = (value.__self__, value.__func__) if isinstance(value, MethodType) else (
            value.func, value.args, value.keywords)
        yield _item, inner, 0, inner[0]
        yield from ((_item, inner, i, child) for i, child in enumerate(inner) if i)
    elif isinstance(value, type):
        yield from parts_of_class(value)
    elif not isinstance(value, ModuleType) and is_users(type(value)):
        attributes = getattr(value, "__dict__", {})
        yield from ((_attribute, value, key, child) for key, child in list(attributes.items()))
        yield from ((_slot, value, key, _slot(value, key)) for key in slots_of(type(value)))
        yield _class, value, None, type(value)
        yield from parts_of_calling(value)
    elif "__wrapped__" in getattr(value, "__dict__", ()):  # a jitted function
        yield _attribute, value, "__wrapped__", value.__wrapped__


def parts_of_function(function: FunctionType) -> Iterator[PathStep]:
    """What the code of a function finds in its closure, its defaults and, by name, in its module."""
    if not is_users(function):
        return
    for cell in function.__closure__ or ():
        assert isinstance(cell, CellType)
        yield _content, cell, None, _content(cell, None)
    for given in (function.__defaults__, function.__kwdefaults__):
        if given:
            yield _item, (given,), 0, given
    if function.__module__ and function.__module__.startswith("tinygrad."):
        return  # whose names stay
    names = function.__globals__
    for name in names_in(function.__code__):
        if isinstance(names.get(name), ModuleType):
            yield from parts_of_module(names[name], attributes_in(function.__code__), [])
        elif name in names:
            yield _global, names, name, names[name]


def parts_of_module(module: ModuleType, names: Collection[str],
                    above: Sequence[ModuleType]) -> Iterator[PathStep]:
    """What stands under `names`, those of attributes that code reads, in a user's module and, as far as the
    names go, in those inside it."""
    if module.__name__.partition(".")[0] in _NOT_USERS or module in above:
        return
    for name in names:
        child = vars(module).get(name)
        if isinstance(child, ModuleType):
            yield from parts_of_module(child, names, [*above, module])
        elif isinstance(child, (Tensor, np.ndarray, list, tuple, dict, deque)) or is_users(type(child)):
            yield _attribute, module, name, child


def parts_of_class(value: type) -> Iterator[PathStep]:
    """The tensors that the users' classes among a class and its bases hold, and what may hold some."""
    for base in value.__mro__:
        if is_users(base):
            yield from ((_class_attribute, base, key, child) for key, child in list(vars(base).items())
                        if isinstance(child, (Tensor, list, tuple, dict, deque)) or is_users(type(child)))


def slots_of(value: type) -> Iterator[str]:
    """The names of the attributes that instances have without a dict for them."""
    for base in value.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from ((slots,) if isinstance(slots, str) else slots)


def parts_of_calling(value: Any) -> Iterator[PathStep]:
    """The code that runs where an object is called."""
    call = vars(type(value)).get("__call__")
    if isinstance(call, FunctionType):
        yield from parts_of_function(call)


@functools.lru_cache(maxsize=1 << 12)
def names_in(code: CodeType) -> frozenset[str]:
    """The names of its module that code reads or sets, functions inside it too."""
    return _names(code, _OF_MODULE)


@functools.lru_cache(maxsize=1 << 12)
def attributes_in(code: CodeType) -> frozenset[str]:
    """The names of attributes that code reads or sets, functions inside it too."""
    return _names(code, _OF_OBJECT)


def _names(code: CodeType, instructions: Collection[int]) -> frozenset[str]:
    inner = [_names(c, instructions) for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opcode in instructions).union(*inner)


def attributes_read_by(value: Any) -> Iterator[str]:
    """The names of attributes that a function of the users reads, or the methods of an object's class."""
    functions = [value] if isinstance(value, FunctionType) else [
        f for base in type(value).__mro__ if is_users(base) for f in vars(base).values()]
    for function in functions:
        if isinstance(function, FunctionType) and is_users(function):
            yield from attributes_in(function.__code__)


def is_users(thing: Any) -> bool:
    """Whether a class or function is not of Python or of this package, but for its layers and optimizers."""
    module = getattr(thing, "__module__", None) or ""
    if not isinstance(module, str):  # Cython's types
        return False
    is_others = module == "builtins" or module.startswith("tinygrad.")
    return not is_others or module.startswith("tinygrad.nn.")
