"""Conversations as the text that a model was trained on: chat templates, in jinja2's sandbox.

A template comes with the model and is data from a stranger: it runs without access to anything but the
messages, and what goes wrong in it is a `ValueError`.
"""
from __future__ import annotations

import datetime
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinygrad.llm.tokenizer import Tokenizer

MOST_TEXT = 1 << 24
"""Characters that a template may write."""
MOST_POWER = 1 << 10
"""Numbers that a template may raise, or raise to."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")
"""A place in a text for something of a thousand characters and more, or of a width given with it."""


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False,
             separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class _Generation(jinja2.ext.Extension):  # type: ignore[misc, unused-ignore]  # Any where jinja2 is missing
    """`{% generation %}`, which marks what the model says for those who train one: written as it is."""

    tags = frozenset(("generation",))  # type: ignore[assignment, unused-ignore]

    def parse(self, parser: Any) -> Any:
        """The statements up to endgeneration."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Bounded(ImmutableSandboxedEnvironment):  # type: ignore[misc, unused-ignore]  # Any where jinja2 is missing
    """A sandbox in which one operation makes no value of many bytes."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Numbers as ever, texts and lists no longer than a template may write."""
        if self._makes_much(operator, left, right):
            raise jinja2.TemplateError(f"{operator} with {left!r:.50} and {right!r:.50} is not allowed here")
        return self.binop_table[operator](left, right)

    def _makes_much(self, operator: str, left: Any, right: Any) -> bool:
        if operator == "**":
            return bool(max(abs(left), abs(right)) > MOST_POWER)
        if operator == "%":
            return isinstance(left, str) and _WIDE.search(left) is not None
        sizes = [len(x) if isinstance(x, Sequence) else x for x in (left, right)]
        return sizes != [left, right] and math.prod(sizes) > MOST_TEXT


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = _Bounded(trim_blocks=True, lstrip_blocks=True,
                           extensions=[jinja2.ext.loopcontrols, _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(template)


def conversation(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], answer: bool = True,
                 **variables: Any) -> str:
    """The text of a conversation, up to where the model is to answer if `answer`.

    Raises ValueError where the model has no template, or its template refuses the messages.
    """
    if tokenizer.template is None:
        raise ValueError("the model has no chat template: it continues text (run --raw, /v1/completions)")
    written = 0
    parts = []
    try:
        template = _compiled(tokenizer.template)
        given = {"tools": None, "documents": None, **tokenizer.variables, **variables}
        for part in template.generate(messages=list(messages), add_generation_prompt=answer, **given):
            written += len(part)
            if written > MOST_TEXT:
                raise ValueError(f"the chat template writes more than {MOST_TEXT} characters")
            parts.append(part)
    except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ArithmeticError,
            OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    return "".join(parts)
