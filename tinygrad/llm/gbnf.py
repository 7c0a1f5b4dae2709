"""Grammars in llama.cpp's notation (GBNF) as productions over bytes: `root ::= ("ab" | [0-9]+) "."`.

Every part of the notation becomes rules without options or repetitions: a group is a rule of its own, `x*`
one that is nothing or `x` and itself again, a class of characters the bytes that write them in UTF-8. What no
text can follow is left out, so that every beginning that the rules allow can be ended. A grammar is data from
a stranger: what is wrong is a `ValueError` with its line, and its size is bounded. Next: `recogniser.py`.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

Bytes: TypeAlias = frozenset[int]
Symbol: TypeAlias = "int | Bytes"
"""A rule, by its number, or one of some bytes."""
Sequence: TypeAlias = tuple[Symbol, ...]
Rules: TypeAlias = list[list[Sequence]]
"""The alternatives of each rule, of which the first is where texts begin. No text follows one without any."""

MOST_SYMBOLS = 200_000
"""Symbols of all rules together: `x{1000}` has a thousand."""
MOST_CHARACTERS = 1 << 20
"""Of a grammar's text."""
MOST_DEPTH = 100
"""Groups inside each other."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TIMES = re.compile(r"\{[ \t]*(\d{1,6})[ \t]*(,?)[ \t]*(\d{0,6})[ \t]*\}")
_ESCAPE = re.compile(r'\\(?:([nrt"\\\[\]])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))')
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_LAST = 0x10FFFF


def rules_of(text: str) -> Rules:
    """The rules of a grammar, those that no text follows without alternatives. Raises ValueError for a text
    that is no grammar, names a rule that is not there, or that no text follows."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    reader = _GbnfReader(text)
    reader.read()
    rules = _productive(reader.rules)
    if not rules[0]:
        raise ValueError("no text follows it: its rules go on for ever")
    return rules


class _GbnfReader:
    """A text, how far it was read, and the rules so far."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.rules: Rules = [[]]
        self.numbers = {"root": 0}
        self.used: dict[str, int] = {}
        """where each rule that is named in another was named first"""
        self.defined: set[str] = set()
        self.classes: dict[tuple[tuple[int, int], ...], Symbol] = {}
        self.depth, self.size = 0, 0

    def read(self) -> None:
        self._skip(_SPACE_AND_LINES)
        while self.place < len(self.text):
            name = self._name("the name of a rule")
            self._skip(_SPACE)
            self._take("::=", f"::= after {name!r}")
            self._skip(_SPACE_AND_LINES)
            if name in self.defined:
                raise self._error(f"{name!r} is a rule already")
            self.defined.add(name)
            self.rules[self._number(name)] = self._alternatives()
            if self.place < len(self.text) and self.text[self.place] not in "\r\n":
                raise self._error("the end of a line was expected")
            self._skip(_SPACE_AND_LINES)
        for name, place in {"root": self.place, **self.used}.items():
            if name not in self.defined:
                self.place = place
                raise self._error(f"there is no rule {name!r}")

    # --- what rules are made of ---------------------------------------------------------------------------

    def _alternatives(self) -> list[Sequence]:
        found = [self._sequence()]
        while self.text.startswith("|", self.place):
            self.place += 1
            self._skip(_SPACE_AND_LINES)
            found.append(self._sequence())
        return found

    def _sequence(self) -> Sequence:
        space = _SPACE_AND_LINES if self.depth else _SPACE
        found: list[Symbol] = []
        while self.place < len(self.text) and self.text[self.place] not in "|)\r\n":
            found += self._repeated(self._item(), space)
            self._skip(space)
        return tuple(found)

    def _item(self) -> Sequence:
        """A text, a class, a group or the name of a rule."""
        start = self.text[self.place]
        if start == '"':
            self.place += 1
            text = b"".join(map(self._bytes, self._characters('"')))
            self._count(len(text))
            return tuple(frozenset([byte]) for byte in text)
        if start == "[":
            self.place += 1
            return (self._class(),)
        if start == ".":
            self.place += 1
            return (self._any_of([(0, _LAST)]),)
        if start == "(":
            return (self._group(),)
        at, name = self.place, self._name("a text, a class, a group or the name of a rule")
        self.used.setdefault(name, at)
        return (self._number(name),)

    def _group(self) -> Symbol:
        if self.depth == MOST_DEPTH:
            raise self._error(f"more than {MOST_DEPTH} groups are inside each other")
        self.depth += 1
        self.place += 1
        self._skip(_SPACE_AND_LINES)
        found = self._alternatives()
        self.depth -= 1
        self._take(")", "the end of a group, ')',")
        return self._new(found)

    def _repeated(self, item: Sequence, space: re.Pattern[str]) -> Sequence:
        """An item with the signs after it that say how often it comes."""
        while True:
            self._skip(space)
            sign = self.text[self.place:self.place + 1]
            if sign not in ("*", "+", "?", "{"):
                return item
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._times()
            if sign != "{":
                self.place += 1
            one: Sequence = item if len(item) == 1 else (self._new([item]),)
            self._count(least)
            item = one * least + self._more(one, None if most is None else most - least)

    def _times(self) -> tuple[int, int | None]:
        found = _TIMES.match(self.text, self.place)
        if found is None:
            raise self._error("{m}, {m,} or {m,n} was expected")
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if most is not None and (most < least or (found[3] and not found[2])):
            raise self._error(f"{found[0]} is no count")
        self.place = found.end()
        return least, most

    def _more(self, one: Sequence, most: int | None) -> Sequence:
        """So many of it at most, or any number."""
        if most is None:
            rule = self._new([()])
            self.rules[rule].append((*one, rule))
            return (rule,)
        self._count(most)
        rest: Sequence = ()
        for _ in range(most):
            rest = (self._new([(), (*one, *rest)]),)
        return rest

    # --- characters ---------------------------------------------------------------------------------------

    def _characters(self, end: str) -> Iterator[str]:
        """Those up to a sign, which is taken too."""
        while True:
            if self.place >= len(self.text) or self.text[self.place] in "\r\n":
                raise self._error(f"the end {end} was expected")
            if self.text[self.place] == end:
                self.place += 1
                return
            yield self._character()

    def _character(self) -> str:
        if self.text[self.place] != "\\":
            self.place += 1
            return self.text[self.place - 1]
        found = _ESCAPE.match(self.text, self.place)
        if found is None:
            raise self._error(f"{self.text[self.place:self.place + 2]} is no escape")
        if found[1]:
            char = _LETTERS.get(found[1], found[1])
        else:
            code = int(found[2] or found[3] or found[4], 16)
            if code > _LAST:
                raise self._error(f"{found[0]} is no character")
            char = chr(code)
        self.place = found.end()
        return char

    def _bytes(self, char: str) -> bytes:
        try:
            return char.encode()
        except UnicodeEncodeError as error:
            raise self._error("half a character is none") from error

    def _class(self) -> Symbol:
        others = self.text.startswith("^", self.place)
        self.place += others
        ranges: list[tuple[int, int]] = []
        is_range = False
        for char in self._characters("]"):
            if is_range:
                ranges[-1] = (ranges[-1][0], ord(char))
                is_range = False
            else:
                ranges.append((ord(char), ord(char)))
                after = self.text[self.place:self.place + 2]
                is_range = after.startswith("-") and after != "-]"
                self.place += is_range
        ranges = _merged(ranges)
        return self._any_of(_others(ranges) if others else ranges)

    def _any_of(self, ranges: list[tuple[int, int]]) -> Symbol:
        """One character of some ranges: bytes, or a rule where some are written in several."""
        key = tuple(ranges)
        if key not in self.classes:
            single: set[int] = set()
            found: list[Sequence] = []
            for first, last in ranges:
                for pairs in _utf8(first, last):
                    bytes_ = tuple(frozenset(range(low, high + 1)) for low, high in pairs)
                    if len(bytes_) == 1:
                        single |= bytes_[0]
                    else:
                        found.append(bytes_)
            one: list[Sequence] = [(frozenset(single),)] if single else []
            self.classes[key] = frozenset(single) if not found and single else self._new(one + found)
        return self.classes[key]

    # --- small parts --------------------------------------------------------------------------------------

    def _new(self, alternatives: list[Sequence]) -> int:
        """A rule without a name."""
        self._count(sum(len(sequence) + 1 for sequence in alternatives))
        self.rules.append(alternatives)
        return len(self.rules) - 1

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self._new([])
        return self.numbers[name]

    def _count(self, symbols: int) -> None:
        """Raises ValueError where so many more are too many."""
        self.size += symbols
        if self.size > MOST_SYMBOLS:
            raise self._error(f"the grammar has more than {MOST_SYMBOLS} symbols")

    def _name(self, what: str) -> str:
        found = _NAME.match(self.text, self.place)
        if found is None:
            raise self._error(f"{what} was expected")
        self.place = found.end()
        return found[0]

    def _take(self, sign: str, what: str) -> None:
        if not self.text.startswith(sign, self.place):
            raise self._error(f"{what} was expected")
        self.place += len(sign)

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self.text, self.place)
        assert found is not None
        self.place = found.end()

    def _error(self, why: str) -> ValueError:
        before = self.text[:self.place]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        there = self.text[self.place:self.place + 20].partition("\n")[0]
        return ValueError(f"{why} (line {line}, column {column}, at {there!r})")


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, none of which touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def _others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What merged ranges leave out."""
    ends = [-1, *(place for pair in ranges for place in pair), _LAST + 1]
    return [(last + 1, first - 1) for last, first in zip(ends[::2], ends[1::2], strict=True)
            if last + 1 < first]


def _utf8(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """The bytes that write characters of a range, as ranges of the first byte, the second and so on."""
    pending = [(first, last)]
    while pending:
        first, last = pending.pop()
        cut = next((cut for cut in _cuts(first, last) if first <= cut < last), None)
        if cut is not None:
            pending += [(cut + 1, last), (first, cut)]
        elif first <= last and not 0xD800 <= first <= 0xDFFF:
            yield list(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _cuts(first: int, last: int) -> Iterator[int]:
    """Places after which a range is cut, so that its bytes are independent of each other: where there is one
    byte more, around half characters, and where the bytes before the last ones change."""
    yield from (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF)
    if last <= 0x7F:
        return
    for low in (0x3F, 0xFFF, 0x3FFFF):
        if first & ~low != last & ~low:
            if first & low:
                yield first | low
            if last & low != low:
                yield (last & ~low) - 1


def _productive(rules: Rules) -> Rules:
    """The rules with those alternatives alone that some text follows."""
    users: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}
    ends: list[int] = []
    good = [False] * len(rules)
    for rule, alternatives in enumerate(rules):
        for place, sequence in enumerate(alternatives):
            named = {symbol for symbol in sequence if isinstance(symbol, int)}
            missing[rule, place] = len(named)
            for symbol in named:
                users.setdefault(symbol, []).append((rule, place))
            if not named:
                ends.append(rule)
    while ends:
        rule = ends.pop()
        if not good[rule]:
            good[rule] = True
            for user, place in users.get(rule, ()):
                missing[user, place] -= 1
                if not missing[user, place]:
                    ends.append(user)
    return [[sequence for place, sequence in enumerate(alternatives) if not missing[rule, place]]
            for rule, alternatives in enumerate(rules)]
