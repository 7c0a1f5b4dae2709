"""Progress bars: tqdm's, which in a log file are few lines.

On a terminal, a bar is one line that changes. Anywhere else each state of it is a line of its own, so there
is one every ten seconds, and one at the end.
"""
from __future__ import annotations

import sys
import time
from typing import Any

import tqdm as bars

SECONDS_BETWEEN_LINES = 10.0


class tqdm(bars.tqdm):  # type: ignore[misc]  # tqdm has no types
    """`tqdm.tqdm`, of which a `file` that is no terminal gets a line every ten seconds, and the last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        file = kwargs.get("file") or sys.stderr
        if file is None:  # a program that was started with stderr closed
            kwargs["disable"] = True
        self.is_terminal = bool(getattr(file, "isatty", lambda: False)())
        self.shown_at = time.monotonic()
        super().__init__(*args, **kwargs)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Show the bar, or a message in its place, if it is time."""
        if self.is_terminal:
            return bool(super().display(msg, pos))
        is_last = bool(self.disable)  # close() switches off, shows what there is and ends the line
        now = time.monotonic()
        text = str(self) if msg is None else msg
        if text and (is_last or now - self.shown_at >= SECONDS_BETWEEN_LINES):
            self.shown_at = now
            self.fp.write(text if is_last else f"{text}\n")
            self.fp.flush()
        return False

    def clear(self, nolock: bool = False) -> None:
        """Make room for other text, on a terminal."""
        if self.is_terminal:
            super().clear(nolock)


def trange(*args: Any, **kwargs: Any) -> tqdm:
    """A progress bar over a range."""
    return tqdm(range(*args), **kwargs)
