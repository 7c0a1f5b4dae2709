"""`frozen` beside `dataclass(frozen=True)`: the same class, but for its docstring's signature."""
import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import pytest

from tinygrad.frozen import frozen


def kinds(decorate: Callable[[Any], Any]) -> list[Any]:
    """A class of each kind that the library has."""
    @decorate
    class Plain:
        x: int
        y: str = "y"

    @decorate
    class Derived(Plain):
        z: list[int] = field(default_factory=list)
        note: Any = field(default=None, compare=False, repr=False)

    @decorate
    class Checked:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")

        @cached_property
        def doubled(self) -> int:
            return 2 * self.x

    @decorate
    class WithMethods:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "mine"

    @decorate
    class Empty:
        pass

    return [Plain, Derived, Checked, WithMethods, Empty]


OURS, THEIRS = kinds(frozen), kinds(dataclass(frozen=True))
MADE: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (1,), {}), (0, (1, "a"), {}), (0, (), {"y": "b", "x": 2}), (0, (), {}), (0, (1, 2, 3), {}),
    (0, (1,), {"w": 1}), (1, (1,), {}), (1, (1, "y", [2]), {"note": 5}), (1, (1,), {"note": 6}),
    (2, (3,), {}), (2, (-3,), {}),
    (3, (1,), {}), (4, (), {})]


def made(kinds: list[Any], which: int, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """An instance, or the words of the error."""
    try:
        return kinds[which](*args, **options)
    except (TypeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize(("which", "args", "options"), MADE)
def test_instances_are_those_of_a_dataclass(which: int, args: tuple[Any, ...], options: dict[str, Any]
                                            ) -> None:
    ours, theirs = (made(kinds, which, args, options) for kinds in (OURS, THEIRS))
    assert repr(ours) == repr(theirs)
    if isinstance(theirs, str):
        return
    assert vars(ours) == vars(theirs)
    assert ours == made(OURS, which, args, options)
    assert copy.copy(ours) == ours
    for other in MADE:
        assert (ours == made(OURS, *other)) == (theirs == made(THEIRS, *other))
    if which != 1:  # whose list has no hash
        assert hash(ours) == hash(theirs)
        assert hash(ours) == hash(made(OURS, which, args, options))


@pytest.mark.parametrize("which", range(len(OURS)))
def test_classes_are_those_of_a_dataclass(which: int) -> None:
    ours, theirs = OURS[which], THEIRS[which]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert [(f.name, f.type, f.compare, f.repr) for f in fields(ours)] == [
        (f.name, f.type, f.compare, f.repr) for f in fields(theirs)]


def test_items_stay() -> None:
    instance = OURS[2](4)
    for change in (partial(setattr, instance, "x", 1), partial(setattr, instance, "new", 1),
                   partial(delattr, instance, "x")):
        with pytest.raises(FrozenInstanceError, match="cannot .* field '(x|new)'"):
            change()
    assert (instance.doubled, instance.x, replace(instance, x=5).doubled) == (8, 4, 10)


@frozen(eq=False)
class Compared:
    """By identity."""

    x: int


@frozen(repr=False)
class Hidden:
    """Without a representation of its own."""

    x: int


def test_what_is_left_out() -> None:
    assert Compared(1) != Compared(1)
    assert len({Compared(1), Compared(1)}) == 2
    assert Hidden(1) == Hidden(1)
    assert "object at" in repr(Hidden(1))
    assert pickle.loads(pickle.dumps(Hidden(3))) == Hidden(3)


def test_what_it_does_not_make_is_refused() -> None:
    with pytest.raises(TypeError, match="the field 'x' of Late cannot be kw_only or init=False"):
        @frozen
        class Late:
            x: int = field(init=False)
