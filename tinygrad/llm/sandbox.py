"""A process that writes conversations as chat templates say, in jinja2's sandbox: `templates.py` starts it.

A template comes with the model and is data from a stranger. It gets at nothing but the messages, and what it
takes is bounded by the system: memory, and CPU time, after which the process ends. Each line in is a request,
each line out its answer, in JSON. Nothing of the package is imported here, so that it starts at once.
"""
from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_TEXT = 1 << 24
"""Characters that a template may write."""
MOST_POWER = 1 << 10
"""Numbers that a template may raise, or raise to."""
MOST_SECONDS = 1.0
"""Of CPU time for a conversation; one of 100 messages takes a few thousandths."""
MOST_MEMORY = 1 << 29
"""Bytes of addresses, of which the process has 100 MB or less when nothing is written."""
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
    """A sandbox in which operators that would make a value of many bytes say so, before any is made."""

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


def written(template: str, variables: Mapping[str, Any]) -> str:
    """The text of a template. Raises ValueError where it cannot be written."""
    count = 0
    parts = []
    try:
        for part in _compiled(template).generate(variables):
            count += len(part)
            if count > MOST_TEXT:
                raise ValueError(f"the chat template writes more than {MOST_TEXT} characters")
            parts.append(part)
    except MemoryError:
        raise ValueError("the chat template takes too much memory") from None
    except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ArithmeticError,
            RecursionError) as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    return "".join(parts)


def _limit(seconds: float) -> None:
    """End this process after so much CPU time; 0: do not."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answer until there are no more requests."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows; as far as the system lets
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        _limit(MOST_SECONDS)
        try:
            answer = {"text": written(**json.loads(line))}
        except ValueError as error:
            answer = {"error": str(error)}
        except MemoryError:
            answer = {"error": "the conversation takes too much memory"}
        said = json.dumps(answer).encode() + b"\n"
        _limit(0)
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
