"""Which bytes may come next in a text of a context-free grammar, as an automaton whose states are made when
they are first met.

A state is what Earley's parser knows after some text (Earley, 1970): the places in rules where a byte may
come, each with what goes on after its rule. That is a continuation: the places that wait for the rule, each
with a continuation in turn, so that all ways to read a text share their ends (Tomita's graph-structured
stack, 1985). A rule that another one ends with goes on as that does (Leo, 1991), so repetition adds nothing.
States and continuations are known by their content: texts after which the same may come are one state, and
an ambiguous grammar costs no more than its distinct states. Next: `vocabulary.py`.
"""
from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TypeAlias

import numpy as np

from tinygrad.llm.gbnf import Rules

Place: TypeAlias = int
"""Before a symbol of an alternative, or at its end."""
Item: TypeAlias = tuple[Place, int]
"""A place, and the continuation of the rule it is in; -1 - X for that of the rule X which begins here."""

DEAD = 0
"""The state after which no text goes on."""
END: Place = 0
"""The place after all texts."""
WHOLE = 0
"""The continuation after which a text is whole."""
MOST_STEPS = 200_000
"""For one question, of a microsecond or so each."""
SHARED = 3
"""What sets are joined by costs an eighth of a step an item."""
MOST_BEFORE = 3
"""Continuations that are compared with a new one, the latest."""
MOST_KEPT = 500_000
"""Items of continuations: a hundred bytes or so each."""
MOST_BYTES = 1_000_000
"""Of all classes of characters together."""


class TooAmbiguous(ValueError):
    """A text may be read in more ways than can be followed."""


class Recogniser:
    """The automaton of some rules. `classes`: for each byte its class; bytes of one mean the same to all
    rules. `size`: the items of all states, which `forget` drops but for one. `left`: the steps that may be
    taken before TooAmbiguous is raised."""

    def __init__(self, rules: Rules) -> None:
        self.symbols: list[int | Set[int] | None] = [None]
        self.starts: list[list[Place]] = []
        for alternatives in rules:
            self.starts.append([])
            for sequence in alternatives:
                self.starts[-1].append(len(self.symbols))
                self.symbols += [*sequence, None]
        self.classes = self._classed()
        self.nullable = self._nullable()
        self.left, self.kept = MOST_STEPS, 0
        self.continuations: dict[object, int] = {}
        self.waiting: list[frozenset[Item]] = []
        self.continuation(frozenset([(END, WHOLE)]))
        self._clear()
        self.start = _Closure(self, [], begins=True).state()

    def _clear(self) -> None:
        self.size = 0
        self.states: dict[tuple[frozenset[Item], bool], int] = {}
        self.items: list[frozenset[Item]] = []
        self.is_whole: list[bool] = []
        self.rows: dict[int, np.ndarray[tuple[int], np.dtype[np.int32]]] = {}
        self.after: dict[frozenset[Item], int] = {}
        self.state_of(frozenset(), False)

    def forget(self, state: int) -> int:
        """Drop all states but one, which has another number from now on."""
        items, is_whole = self.items[state], self.is_whole[state]
        self._clear()
        return self.state_of(items, is_whole)

    def spend(self, steps: int) -> None:
        """Raises TooAmbiguous where no more steps may be taken."""
        self.left -= steps
        if self.left < 0:
            raise TooAmbiguous("it can be read in too many ways")

    def row(self, state: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """For each class of bytes the state after one of it. Raises TooAmbiguous."""
        if state not in self.rows:
            advanced: list[list[Item]] = [[] for _ in range(self.class_count)]
            for place, continuation in self.items[state]:
                symbol = self.symbols[place]
                assert isinstance(symbol, Set)
                self.spend(len(symbol))
                for class_ in symbol:
                    advanced[class_].append((place + 1, continuation))
            self.rows[state] = np.array([self._after(frozenset(items)) for items in advanced], np.int32)
            self.size += self.class_count
        return self.rows[state]

    def walk(self, state: int, text: bytes) -> int:
        """The state after some more bytes."""
        for byte in text:
            state = int(self.row(state)[self.classes[byte]])
        return state

    def _after(self, advanced: frozenset[Item]) -> int:
        if not advanced:
            return DEAD
        if advanced not in self.after:
            self.after[advanced] = _Closure(self, advanced).state()
            self.size += len(advanced)
        return self.after[advanced]

    def state_of(self, items: frozenset[Item], is_whole: bool) -> int:
        number = self.states.setdefault((items, is_whole), len(self.states))
        if number == len(self.items):
            self.items.append(items)
            self.is_whole.append(is_whole)
            self.size += len(items)
        return number

    def continuation(self, waiting: frozenset[Item], key: object = None) -> int:
        """The number of a continuation, by what waits or by a key that says it."""
        number = self.continuations.setdefault(waiting if key is None else key, len(self.waiting))
        if number == len(self.waiting):
            self.waiting.append(frozenset())
            self.wait(number, waiting)
        return number

    def wait(self, continuation: int, items: frozenset[Item]) -> None:
        """What waits in a continuation."""
        self.waiting[continuation] = items
        self.kept += len(items)
        if self.kept > MOST_KEPT:
            raise TooAmbiguous("it can be read in more ways than there is memory for")

    # --- what is known of the rules -----------------------------------------------------------------------

    def _classed(self) -> list[int]:
        """The class of each byte; the places of the rules have classes from now on."""
        sets = {symbol for symbol in self.symbols if isinstance(symbol, Set)}
        if sum(map(len, sets)) > MOST_BYTES:
            raise ValueError("it has too many classes of characters")
        numbers: dict[frozenset[Set[int]], int] = {}
        of_byte: list[list[Set[int]]] = [[] for _ in range(256)]
        for some in sets:
            for byte in some:
                of_byte[byte].append(some)
        classes = [numbers.setdefault(frozenset(some), len(numbers)) for some in of_byte]
        self.class_count = len(numbers)
        self.symbols = [frozenset(classes[byte] for byte in symbol) if isinstance(symbol, Set) else symbol
                        for symbol in self.symbols]
        return classes

    def _nullable(self) -> set[int]:
        """The rules that nothing follows too."""
        found: set[int] = set()
        users: dict[int, set[int]] = {}
        pending = list(range(len(self.starts)))
        while pending:
            rule = pending.pop()
            if rule in found:
                continue
            for start in self.starts[rule]:
                place = start
                while (symbol := self.symbols[place]) is not None:
                    if not isinstance(symbol, int):
                        break
                    if symbol not in found:
                        users.setdefault(symbol, set()).add(rule)
                        break
                    place += 1
                else:
                    found.add(rule)
                    pending += users.pop(rule, ())
                    break
        return found


class _Closure:
    """All items that some lead to before the next byte: rules that end give way to what waits for them, rules
    that may begin here are begun, each once, with all that waits for it."""

    def __init__(self, of: Recogniser, items: Iterable[Item], begins: bool = False) -> None:
        self.of = of
        self.pending = list(items)
        self.seen = set(self.pending)
        self.is_whole = False
        self.terminals: list[Item] = []
        self.begun: dict[int, set[Item]] = {}
        """for each rule that begins here, what waits for it"""
        self.goes_on: dict[int, set[int]] = {}
        """for each rule that begins here those that it ends with, which go on as it does"""
        if begins:
            self._begin(0, END, WHOLE)
        while self.pending:
            self._visit(*self.pending.pop())
            of.spend(1)

    def state(self) -> int:
        """The number of the state."""
        self._spread()
        numbers = self._numbered()
        items = frozenset((place, numbers.get(after, after)) for place, after in self.terminals)
        return self.of.state_of(items, self.is_whole)

    def _add(self, item: Item) -> None:
        if item not in self.seen:
            self.seen.add(item)
            self.pending.append(item)

    def _visit(self, place: Place, continuation: int) -> None:
        of = self.of
        symbol = of.symbols[place]
        if symbol is None:
            if (place, continuation) == (END, WHOLE):
                self.is_whole = True
            elif continuation >= 0:  # else nothing followed the rule, which whoever began it has seen
                for item in of.waiting[continuation]:
                    self._add(item)
        elif not isinstance(symbol, int):
            self.terminals.append((place, continuation))
        else:
            self._begin(symbol, place + 1, continuation)

    def _begin(self, rule: int, after: Place, continuation: int) -> None:
        """A rule begins here, after which a place comes."""
        of = self.of
        if rule not in self.begun:
            self.begun[rule] = set()
            for start in of.starts[rule]:
                self._add((start, -1 - rule))
        if of.symbols[after] is not None:
            self.begun[rule].add((after, continuation))
        elif continuation >= 0:
            of.spend(len(of.waiting[continuation]) >> SHARED)
            self.begun[rule] |= of.waiting[continuation]
        else:
            self.goes_on.setdefault(-1 - continuation, set()).add(rule)
        if rule in of.nullable:
            self._add((after, continuation))

    def _spread(self) -> None:
        """Rules that others end with wait for what those wait for."""
        pending = list(self.goes_on)
        while pending:
            rule = pending.pop()
            for last in self.goes_on.get(rule, ()):
                self.of.spend(len(self.begun[rule]) >> SHARED)
                if not self.begun[rule] <= self.begun[last]:
                    self.begun[last] |= self.begun[rule]
                    pending.append(last)

    def _numbered(self) -> dict[int, int]:
        """The continuations of rules that begin here, by what waits for them; those that wait for themselves,
        directly or not, by all rules that do and what waits for these."""
        numbers: dict[int, int] = {}
        new: dict[int, int] = {}
        left = list(self.begun)
        while left:
            for rule in left:
                self.of.spend(1 + (len(self.begun[rule]) >> SHARED))
                if all(after >= 0 or after in numbers for _, after in self.begun[rule]):
                    numbers[-1 - rule] = self.of.continuation(self._waiting(rule, numbers))
            later = [rule for rule in left if -1 - rule not in numbers]
            if len(later) == len(left):
                self._number_circles(later, numbers, new)
                later = [rule for rule in left if -1 - rule not in numbers]
            left = later
        for number, rule in new.items():
            self.of.wait(number, self._waiting(rule, numbers))
        return numbers

    def _waiting(self, rule: int, numbers: dict[int, int]) -> frozenset[Item]:
        """What waits for a rule, with the numbers that are known."""
        return frozenset((place, numbers.get(after, after)) for place, after in self.begun[rule])

    def _number_circles(self, left: list[int], numbers: dict[int, int], new: dict[int, int]) -> None:
        """Number the rules that wait for themselves; `new` gets those whose number is, by it."""
        reached = {rule: self._reached(rule, numbers) for rule in left}
        for rule in left:
            if rule in reached[rule] and -1 - rule not in numbers:
                numbers |= self._as_before(rule, numbers)
        keys = {rule: (rule, frozenset((other, self._waiting(other, numbers)) for other in reached[rule]))
                for rule in left if rule in reached[rule] and -1 - rule not in numbers}
        for rule, key in keys.items():
            known = len(self.of.waiting)
            numbers[-1 - rule] = self.of.continuation(frozenset(), key)
            if numbers[-1 - rule] == known:
                new[known] = rule

    def _as_before(self, rule: int, numbers: dict[int, int]) -> dict[int, int]:
        """Numbers of a rule that waits for itself, and of those it waits for, where it is a continuation that
        waits for it already: with that in its own place, what waits is the same."""
        waiting = {after for _, after in self.begun[rule] if after >= 0}
        for before in sorted(waiting)[-MOST_BEFORE:]:
            same, pending = {-1 - rule: before}, [rule]
            while pending:
                one = pending.pop()
                for place, after in self.begun[one]:
                    if after < 0 and after not in numbers and after not in same:
                        there = [x for at, x in self.of.waiting[same[-1 - one]] if at == place]
                        same[after] = there[0] if there else WHOLE
                        pending.append(-1 - after)
                self.of.spend(len(self.begun[one]) >> SHARED)
            if all(self._waiting(-1 - one, numbers | same) == self.of.waiting[number]
                   for one, number in same.items()):
                return same
        return {}

    def _reached(self, rule: int, numbers: dict[int, int]) -> set[int]:
        """The rules without a number that it waits for, and those that these wait for, and so on."""
        found: set[int] = set()
        pending = [rule]
        while pending:
            waiting = self.begun[pending.pop()]
            self.of.spend(len(waiting))
            new = {-1 - after for _, after in waiting if after < 0 and after not in numbers} - found
            found |= new
            pending += new
        return found
