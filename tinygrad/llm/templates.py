"""Conversations as the text that a model was trained on: chat templates, which run in a process of their own.

A template comes with the model and is data from a stranger: it runs without access to anything but the
messages, with bounds on time and memory that hold for all that Python does, and what goes wrong in it is a
`ValueError`. A process that has written a text is kept for the next one. Next: `sandbox.py`, what runs there.
"""
from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinygrad.llm.tokenizer import Tokenizer

PATIENCE = 30.0
"""Seconds after which a process is given up that the system has not ended for its use of the CPU."""

_idle: list[subprocess.Popen[bytes]] = []
"""Processes that wait for a template."""
if hasattr(os, "register_at_fork"):  # not on Windows; they are the parent's
    os.register_at_fork(after_in_child=_idle.clear)


def conversation(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], answer: bool = True,
                 **variables: Any) -> str:
    """The text of a conversation, up to where the model is to answer if `answer`. Messages and variables are
    what JSON can say.

    Raises ValueError where the model has no template, its template refuses the messages, or it takes too much
    time or memory.
    """
    if tokenizer.template is None:
        raise ValueError("the model has no chat template: it continues text (run --raw, /v1/completions)")
    given = {"tools": None, "documents": None, **tokenizer.variables, **variables,
             "messages": list(messages), "add_generation_prompt": answer}
    try:
        question = json.dumps({"template": tokenizer.template, "variables": given}).encode() + b"\n"
    except (TypeError, RecursionError) as error:
        raise ValueError(f"messages are what JSON can say: {error}") from error
    found = json.loads(_answered(question))
    if "error" in found:
        raise ValueError(found["error"])
    return str(found["text"])


def _answered(question: bytes) -> bytes:
    """What a process says to a line. Raises ValueError where it ends."""
    process = _taken()
    assert process.stdin is not None and process.stdout is not None
    patience = threading.Timer(PATIENCE, process.kill)
    patience.daemon = True
    patience.start()
    answer = b""
    try:
        process.stdin.write(question)
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        pass  # it has ended
    finally:
        patience.cancel()
        if answer.endswith(b"\n"):
            _idle.append(process)
        else:
            _end(process)
    if not answer.endswith(b"\n"):
        late = process.returncode in (-signal.SIGPROF, -signal.SIGKILL) if os.name == "posix" else True
        raise ValueError("the chat template takes too much time with these messages" if late else
                         f"the process of the chat template has ended with {process.returncode}")
    return answer


def _taken() -> subprocess.Popen[bytes]:
    """A process that waits, or a new one. Raises ModuleNotFoundError where the library is missing."""
    while True:
        try:
            process = _idle.pop()
        except IndexError:
            return _started()
        if process.poll() is None:
            return process
        _end(process)


def _started() -> subprocess.Popen[bytes]:
    """A new process, which no Ctrl-C in the terminal reaches; it ends when its input does."""
    if importlib.util.find_spec("jinja2") is None:
        raise ModuleNotFoundError("chat templates need jinja2: pip install 'tinygrad[llm]'")
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen([sys.executable, "-P", str(Path(__file__).with_name("sandbox.py"))],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env=os.environ | {"PYTHONPATH": paths}, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # what it did not read
            pipe.close()


@atexit.register
def _end_all() -> None:
    while _idle:
        _end(_idle.pop())
