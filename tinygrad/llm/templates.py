"""Conversations as the text that a model was trained on: chat templates, in jinja2's sandbox.

A template comes with the model and is data from a stranger: it runs without access to anything but the
messages, and what goes wrong in it is a `ValueError`.
"""
from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinygrad.llm.tokenizer import Tokenizer

MOST_TEXT = 1 << 24
"""Characters that a template may write."""


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[jinja2.ext.loopcontrols])
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
        given = {"tools": None, **tokenizer.variables, **variables}
        for part in template.generate(messages=list(messages), add_generation_prompt=answer, **given):
            written += len(part)
            if written > MOST_TEXT:
                raise ValueError(f"the chat template writes more than {MOST_TEXT} characters")
            parts.append(part)
    except (jinja2.TemplateError, TypeError, KeyError, AttributeError, ArithmeticError,
            OverflowError) as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    return "".join(parts)
