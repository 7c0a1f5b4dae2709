"""Answers that are texts of a grammar, or JSON of a schema: which tokens may come next.

Grammars in llama.cpp's notation are followed byte by byte (`gbnf.py`, `recogniser.py`, `vocabulary.py`), so
that every way to read a text counts. Those in Lark's notation have lexemes, of which the longest is taken;
they and schemas are followed by the `llguidance` library. A grammar is data from a stranger: how much work it
makes is bounded, and one that cannot be read is a `ValueError`.
"""
from __future__ import annotations

import contextlib
import functools
import json
import re
import urllib.parse
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import llguidance
import numpy as np

from tinygrad.llm.gbnf import rules_of
from tinygrad.llm.generate import Mask, MaskFailed
from tinygrad.llm.recogniser import MOST_STEPS, Recogniser, TooAmbiguous
from tinygrad.llm.sampling import Scores
from tinygrad.llm.tokenizer import Tokenizer
from tinygrad.llm.vocabulary import VocabularyTrie

MOST_ITEMS = 500_000
"""Items of a grammar's states, a hundred bytes or so each, before they are forgotten."""
MOST_MASKS = 1024
"""Masks of a grammar that are kept, of a bit a token."""
MOST_DEPTH = 500
"""Objects of a schema within one another, through references: the library's stack overflows at 2,000 or so,
which ends the process."""
MOST_PARTS = 1000
"""Rules and groups of a grammar in Lark's notation within one another: of 2,500 rules the library's stack
overflows."""
WHITESPACE = r"(\r?\n){0,2}[ \t]{0,40}"
"""Between the parts of JSON: without a bound, a small model may go on with it until it has no tokens left."""

_RULE = re.compile(r"(?m)^[ \t]*[?!]*(\w+)[^\n:\"/|]*:(?!:)")
"""Where a rule in Lark's notation begins."""
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|[?!]*start(\.\d+)?\s*:(?!:))")
"""What tells grammars in Lark's notation: a rule `start`, which may be inlined (?) or have a priority."""


def grammar_mask(tokenizer: Tokenizer, size: int, grammar: str) -> Mask:
    """What of a vocabulary of `size` tokens may come next in a text that a grammar allows: one in the
    notation of llama.cpp (GBNF: `root ::= "yes" | "no"`) or of Lark (`start: "yes" | "no"`). The tokens that
    end a text may come where it is whole, and only there. Raises ValueError for one that cannot be followed.
    """
    return (LarkMask if _LARK.search(grammar) else GbnfMask)(tokenizer, size, grammar)


class GbnfMask:
    """What may come next in a text of a grammar in llama.cpp's notation."""

    def __init__(self, tokenizer: Tokenizer, size: int, grammar: str) -> None:
        self.trie = _trie(tokenizer, size)
        self.ends = np.array(sorted(tokenizer.ends), int)
        self.masks: dict[int, Scores] = {}
        try:
            self.recogniser = Recogniser(rules_of(grammar))
        except ValueError as error:
            raise ValueError(f"the grammar cannot be followed: {error}") from error
        self.state = self.recogniser.start

    def apply(self, scores: Scores) -> Scores:
        """Scores in which tokens that may not come next are -inf. Raises MaskFailed where the grammar makes
        too much work."""
        if self.recogniser.size > MOST_ITEMS or len(self.masks) > MOST_MASKS:
            self.state = self.recogniser.forget(self.state)
            self.masks.clear()
        if self.state not in self.masks:
            with self._bounded():
                self.masks[self.state] = np.packbits(self.trie.allowed(self.recogniser, self.state))
        allowed = np.unpackbits(self.masks[self.state], count=len(scores)).astype(bool)
        allowed[self.ends] = self.recogniser.is_whole[self.state]
        return np.where(allowed, scores, -np.inf)

    def accept(self, token: int) -> None:
        """This token came. Raises MaskFailed as `apply` does."""
        with self._bounded():
            self.state = self.recogniser.walk(self.state, self.trie.texts[token])

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Few steps are taken in here."""
        self.recogniser.left = MOST_STEPS
        try:
            yield
        except TooAmbiguous as error:
            raise MaskFailed(f"the grammar cannot be followed: {error}") from error


class LarkMask:
    """What may come next in a text of a grammar in Lark's notation."""

    kind = "grammar"

    def __init__(self, tokenizer: Tokenizer, size: int, grammar: Any) -> None:
        self.size = size
        self.ends = np.array(sorted(tokenizer.ends))
        self.matcher = llguidance.LLMatcher(_vocabulary(tokenizer, size), self.compiled(grammar), log_level=0,
                                            limits=_LIMITS)
        if self.matcher.is_error():
            raise ValueError(f"the {self.kind} cannot be followed: {self.matcher.get_error()}")

    def compiled(self, grammar: Any) -> str:
        """The grammar as the library takes it. Raises ValueError for one that it must not be given."""
        parts = depth_of_lark(grammar)
        if parts > MOST_PARTS:
            raise ValueError(f"the grammar cannot be followed: {parts} rules and groups may lie within one "
                             f"another, at most {MOST_PARTS} are known")
        return str(llguidance.LLMatcher.grammar_from_lark(grammar))

    def apply(self, scores: Scores) -> Scores:
        """Scores in which tokens that may not come next are -inf. Raises MaskFailed where the library gives
        up."""
        packed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(packed, count=self.size, bitorder="little").astype(bool)
        allowed[self.ends] = self.matcher.is_accepting()
        return np.where(allowed, scores, -np.inf)

    def accept(self, token: int) -> None:
        """This token came. Raises MaskFailed where the library gives up."""
        self.matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self.matcher.is_error():  # a line, and what the library holds after it
            why = str(self.matcher.get_error()).partition("\n")[0]
            raise MaskFailed(f"the {self.kind} cannot be followed: {why}")


class SchemaMask(LarkMask):
    """What may come next in JSON that a schema, an object of Python's values, allows. A `format` that is not
    known says nothing, as the standard has it; a keyword that cannot be followed is a ValueError."""

    kind = "schema"

    def compiled(self, grammar: Any) -> str:
        if not isinstance(grammar, Mapping):
            raise ValueError(f"a schema is an object of JSON, not a {type(grammar).__name__}")
        depth = depth_of(grammar)
        if depth > MOST_DEPTH:
            raise ValueError(f"the schema cannot be followed: {depth} of its objects may lie within one "
                             f"another, at most {MOST_DEPTH} are known")
        endless = endless_reference(grammar)
        if endless is not None:
            raise ValueError(f"the schema cannot be followed: what {endless!r} refers to has no end: "
                             "whatever it is, it contains itself")
        lenient = str(llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(grammar), defaults={"whitespace_pattern": WHITESPACE, "lenient": True}))
        _, ignored = llguidance.LLMatcher.validate_grammar_with_warnings(lenient, limits=_LIMITS)
        for what in ignored:
            if not what.startswith("Unknown format:"):
                raise ValueError(f"the schema cannot be followed: {what.partition(', falling back')[0]}")
        return lenient


def depth_of_lark(grammar: str) -> int:
    """How many rules and groups of a grammar in Lark's notation may lie within one another: not more, counted
    by colons and opening brackets. Rules that lead back to themselves count each once."""
    _, *found = _RULE.split(grammar)
    rules: dict[str, Mapping[str, Any]] = {
        name: {"body": body} for name, body in zip(found[::2], found[1::2], strict=True)}
    sizes = {id(rule): 1 + sum(map(rule["body"].count, ":([{")) for rule in rules.values()}
    names = {name: {*re.findall(r"\w+", rule["body"])} & rules.keys() - {name}
             for name, rule in rules.items()}
    used = {id(rules[name]): [[rules[other]] for other in others] for name, others in names.items()}
    heights = _heights(used)
    within = max(heights.values(), default=0) * max(sizes.values(), default=0)
    within += sum(size for key, size in sizes.items() if key not in heights)
    all_parts = sum(map(grammar.count, ":([{"))
    return all_parts if len(rules) < len(found) // 2 else min(all_parts, within)


Parts: TypeAlias = Mapping[int, list[list[Mapping[str, Any]]]]
"""Of each object of a schema, by its identity, lists of those that it is made of."""


def endless_reference(schema: Any) -> str | None:
    """A reference ($ref) of a schema to what no value that ends can be: to nothing but itself, or to an
    object or array that must contain another of its kind. The library begins such values."""
    nodes = list(_objects(schema))
    heights = _heights({id(node): _needs(node, schema) for node in nodes})
    found = ((node["$ref"], _referred(node, schema)) for node in nodes if "$ref" in node)
    return next((name for name, part in found if isinstance(part, Mapping) and id(part) not in heights), None)


def depth_of(schema: Any) -> int:
    """How many objects of a schema may lie within one another, counted through its references: each once, all
    of those that contain themselves. References that are no places in it (by `$id` or `$anchor`) may lead
    from the deepest object to another, one after the other."""
    nodes = list(_objects(schema))
    parts = {id(node): [[part] for part in _inside(node, schema)] for node in nodes}
    heights = _heights(parts)
    has_bases = any("$id" in node for node in nodes[1:])
    others = {node["$ref"] for node in nodes if isinstance(node.get("$ref"), str)
              and (has_bases or _referred(node, schema) is None)}
    return (max(heights.values(), default=0) + len(parts) - len(heights)) * (1 + len(others))


def _heights(parts: Parts) -> dict[int, int]:
    """Of objects of which one in each list has a height, one more than the largest of these, found from those
    without parts up: each is looked at once."""
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, lists in parts.items():
        for place, listed in enumerate(lists):
            for part in listed:
                users[id(part)].append((key, place))
    left = {key: len(lists) for key, lists in parts.items()}
    heights, met = {key: 1 for key in parts if not left[key]}, set()
    waiting = deque(heights)
    while waiting:
        key = waiting.popleft()
        for use in users[key]:
            if use not in met:
                met.add(use)
                left[use[0]] -= 1
                if not left[use[0]]:
                    heights[use[0]] = heights[key] + 1
                    waiting.append(use[0])
    return heights


def _inside(node: Mapping[str, Any], schema: Any) -> Iterator[Mapping[str, Any]]:
    """The objects right within an object, or in lists there, and what it refers to."""
    waiting: list[Any] = [*node.values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
        elif isinstance(value, list):
            waiting += value
    if isinstance(part := _referred(node, schema), Mapping):
        yield part


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in a value of JSON, itself included."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _needs(node: Mapping[str, Any], schema: Any) -> list[list[Mapping[str, Any]]]:
    """Lists of parts of a schema: of each, one must have values that end, if the schema is to have such."""
    kinds = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    parts = [_listed(node, "allOf"), [_referred(node, schema)]]
    properties, first, rest = node.get("properties"), _listed(node, "prefixItems"), node.get("items")
    if kinds == ["object"] and isinstance(properties, Mapping):
        parts.append([properties.get(name) for name in _listed(node, "required") if isinstance(name, str)])
    if kinds == ["array"] and isinstance(node.get("minItems"), int):
        first = first or _listed(node, "items")
        parts.append([*first, *[rest] * (node["minItems"] > len(first))][:max(node["minItems"], 0)])
    groups = [[part] for listed in parts for part in listed]
    groups += [listed for listed in (_listed(node, "anyOf"), _listed(node, "oneOf")) if listed]
    return [group for group in groups if all(isinstance(part, Mapping) for part in group)]


def _listed(node: Mapping[str, Any], name: str) -> list[Any]:
    return node[name] if isinstance(node.get(name), list) else []


def _referred(node: Mapping[str, Any], schema: Any) -> Any:
    """What a reference within the schema refers to, None where there is no such."""
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return None
    elsewhere, _, pointer = reference.partition("#")
    if elsewhere or pointer[:1] not in ("", "/"):
        return None
    found = schema
    for name in urllib.parse.unquote(pointer).split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            is_place = key.isdecimal() and len(key) < 10 and int(key) < len(found)
            found = found[int(key)] if is_place else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found


_LIMITS = llguidance.LLParserLimits(max_items_in_row=20_000)
"""An object has four items for each property that it may have; 500 properties were too many."""


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, size: int) -> Any:
    """The tokens as the library knows them: all, also those that there are no scores of. Raises ValueError
    for a model without a token that ends a text."""
    _check_ends(tokenizer)
    count = max(size, 1 + max(tokenizer.inner.get_vocab(with_added_tokens=True).values()))
    return llguidance.LLTokenizer(tokenizer.inner.to_str(), n_vocab=count, eos_token=min(tokenizer.ends))


@functools.lru_cache(maxsize=4)
def _trie(tokenizer: Tokenizer, size: int) -> VocabularyTrie:
    """The tokens by their bytes. Raises ValueError as `_vocabulary` does."""
    _check_ends(tokenizer)
    texts = [b"" if token in tokenizer.ends else text for token, text in enumerate(tokenizer.texts(size))]
    return VocabularyTrie(texts)


def _check_ends(tokenizer: Tokenizer) -> None:
    if not tokenizer.ends:
        raise ValueError("a model without a token that ends a text cannot follow a schema or grammar")
