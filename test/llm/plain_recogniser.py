"""The simplest recogniser of context-free grammars, for tests: it asks every part of a grammar for every
place of a text again and again, until nothing changes."""
from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Of a grammar: `kind` "text" (one of some byte strings), "rule" (a name), "all" (parts one after
    another), "any" (one of some parts) or "times" (a part `least` to `most` times, None for no limit)."""

    kind: str
    texts: tuple[bytes, ...] = ()
    written: str = ""
    name: str = ""
    parts: tuple[Part, ...] = ()
    least: int = 0
    most: int | None = None

    def __str__(self) -> str:
        """In GBNF."""
        if self.kind in ("text", "rule"):
            return self.written or self.name
        if self.kind == "times":
            signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            most = "" if self.most is None else self.most
            return f"{self.parts[0]}{signs.get((self.least, self.most), f'{{{self.least},{most}}}')}"
        return "(" + (" | " if self.kind == "any" else " ").join(map(str, self.parts)) + ")"

    def plain(self) -> Part:
        """Without counts: so often and then, where there is a limit, so much more or nothing."""
        parts = tuple(part.plain() for part in self.parts)
        if self.kind != "times":
            return Part(self.kind, self.texts, name=self.name, parts=parts)
        nothing = Part("text", (b"",))
        rest = Part("times", parts=parts)
        if self.most is not None:
            rest = nothing
            for _ in range(self.most - self.least):
                rest = Part("any", parts=(nothing, Part("all", parts=(*parts, rest))))
        return Part("all", parts=parts * self.least + (rest,))


class PlainRecogniser:
    """What of a text rules derive."""

    def __init__(self, rules: dict[str, Part]) -> None:
        self.rules = {name: part.plain() for name, part in rules.items()}
        self.ending: set[str] = set()
        while new := {name for name, part in self.rules.items() if self._ends(part)} - self.ending:
            self.ending |= new

    def _ends(self, part: Part) -> bool:
        """Whether some text follows a part, as far as is known of rules."""
        if part.kind in ("text", "times"):
            return part.kind == "times" or bool(part.texts)
        if part.kind == "rule":
            return part.name in self.ending
        return (all if part.kind == "all" else any)(self._ends(x) for x in part.parts)

    def may_begin(self, text: bytes) -> tuple[bool, bool]:
        """Whether texts that the rules allow begin with this one, and whether it is one of them."""
        self.text = text
        empty: frozenset[int | str] = frozenset()
        self.found = {(name, at): empty for name in self.rules for at in range(len(text) + 1)}
        while True:
            new = {(name, at): self._from(self.rules[name], at) for name, at in self.found}
            if new == self.found:
                break
            self.found = new
        return "more" in new["root", 0], len(text) in new["root", 0]

    def _from(self, part: Part, at: int) -> frozenset[int | str]:
        """Where a part that begins at a place ends, and "more" where the text ends no later than it does."""
        if part.kind == "text":
            rest = self.text[at:]
            ends: set[int | str] = {at + len(x) for x in part.texts if rest.startswith(x)}
            return frozenset(ends | {"more" for x in part.texts if x.startswith(rest)})
        if part.kind == "rule":
            return self.found[part.name, at]
        if part.kind == "any":
            return frozenset().union(*(self._from(x, at) for x in part.parts))
        here: frozenset[int | str] = frozenset([at])
        if part.kind == "all":
            for place, x in enumerate(part.parts):
                goes_on = all(self._ends(y) for y in part.parts[place + 1:])
                ends = {end for start in here if isinstance(start, int) for end in self._from(x, start)}
                here = frozenset(end for end in ends if end != "more" or goes_on) | (here & {"more"})
            return here
        while not (new := frozenset().union(*(self._from(part.parts[0], start) for start in here
                                              if isinstance(start, int)))) <= here:
            here |= new
        return here | ({"more"} if len(self.text) in here else frozenset())


LETTERS = ["a", "b", "é"]


def random_part(rng: random.Random, names: list[str], depth: int) -> Part:
    kind = rng.choice(["text", "rule", "all", "any", "times"] if depth else ["text", "rule"])
    if kind == "rule":
        return Part("rule", name=rng.choice(names))
    if kind == "text":
        if rng.random() < 0.3:
            some = rng.sample(LETTERS, rng.randint(1, 2))
            return Part("text", tuple(x.encode() for x in some), f"[{''.join(some)}]")
        text = "".join(rng.choices(LETTERS, k=rng.choice([0, 1, 1, 1, 2, 3])))
        return Part("text", (text.encode(),), f'"{text}"')
    if kind == "times":
        most = rng.choice([None, None, 1, 2])
        least = rng.randint(0, 1)
        return Part("times", parts=(random_part(rng, names, depth - 1),), least=least, most=most)
    count = rng.randint(1, 3)
    return Part(kind, parts=tuple(random_part(rng, names, depth - 1) for _ in range(count)))


def random_grammar(rng: random.Random) -> dict[str, Part]:
    names = ["root", "x", "y-1"][:rng.randint(1, 3)]
    return {name: random_part(rng, names, 3) for name in names}


def written(rules: dict[str, Part]) -> str:
    return "\n".join(f"{name} ::= {part}" for name, part in rules.items())
