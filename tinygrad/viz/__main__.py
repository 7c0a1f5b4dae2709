"""`python -m tinygrad.viz`: the last recordings, as pages on the loopback address, or one as JSON.

    python -m tinygrad.viz                     serves those in the folder of recordings, newest first
    python -m tinygrad.viz FILE.html ...       serves these
    python -m tinygrad.viz --json [FILE.html]  prints the data of one, of the last if none is named

A page that is open is read again when the program has written a newer one. Nothing but recordings is served,
and nobody but this machine can ask.
"""
from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from tinygrad.viz.page import recording_in
from tinygrad.viz.session import folder

HOST = "127.0.0.1"
LOOPBACK = (HOST, "localhost", "::1")
"""Names that a browser may know this machine by. A page of another site, whose name leads here too, may not
read recordings."""
PORT = 8742
NONE_YET = "no recording in {}; make one: VIZ=1 python3 script.py"
LIST = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>tinygrad recordings</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 15px/1.6 system-ui; margin: auto;
padding: 1rem; max-width: 50rem }}</style><h1>Recordings</h1><ul>{}</ul></html>"""


def recordings(files: Sequence[Path]) -> list[Path]:
    """The given pages, or those in the folder of recordings, newest first."""
    found = [path for path in (files or folder().glob("*.html")) if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


class Handler(BaseHTTPRequestHandler):
    """Answers with the list of recordings, one of them, or when it was written (`?changed`)."""

    server: Server

    def do_GET(self) -> None:
        if urlsplit(f"//{self.headers.get('Host', HOST)}").hostname not in LOOPBACK:
            self.answer(403, "recordings are served on this machine's own address only", "text/plain")
            return
        parts = urlsplit(self.path)
        name = unquote(parts.path.lstrip("/"))
        known = {path.name: path for path in recordings(self.server.files)}
        if name == "":
            items = "".join(f'<li><a href="/{quote(n)}">{escape(n)}</a></li>' for n in known)
            self.answer(200, LIST.format(items or f"<li>{escape(NONE_YET.format(folder()))}</li>"))
        elif name not in known:
            self.answer(404, "no such recording", "text/plain")
        elif parts.query == "changed":
            self.answer(200, str(known[name].stat().st_mtime_ns), "text/plain")
        else:
            self.answer(200, known[name].read_text(encoding="utf-8"))

    do_HEAD = do_GET

    def answer(self, status: int, text: str, kind: str = "text/html") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


class Server(ThreadingHTTPServer):
    """Serves recordings. Raises OSError where the port is in use."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, port: int, files: Sequence[Path] = ()) -> None:
        self.files = list(files)
        super().__init__((HOST, port), Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


def started(port: int | None, files: Sequence[Path]) -> Server:
    """A server on a port, or, where none is asked for, on PORT or any that is free. Raises OSError."""
    if port is not None:
        return Server(port, files)
    try:
        return Server(PORT, files)
    except OSError:
        return Server(0, files)


def main(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C; returns 1 where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tinygrad.viz", description="Shows recordings of VIZ=1.")
    parser.add_argument("files", nargs="*", type=Path, help="pages to show; the folder of recordings without")
    parser.add_argument("--port", type=int, help=f"the port; {PORT}, or a free one, without")
    parser.add_argument("--json", action="store_true", help="print the data of one recording and end")
    parser.add_argument("--open", action="store_true", help="open a browser")
    options = parser.parse_args(arguments)
    missing = [path for path in options.files if not path.is_file()]
    if missing:
        print(f"there is no file {missing[0]}", file=sys.stderr)
        return 1
    found = recordings(options.files)
    if options.json:
        return print_json(found)
    try:
        server = started(options.port, options.files)
    except (OSError, OverflowError) as error:  # the second: no such port
        why = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        print(f"cannot listen at port {options.port or PORT}: {why}; another one: --port 0", file=sys.stderr)
        return 1
    last = quote(found[0].name) if found else ""
    which = f", the last one at {server.address}{last}" if last else f"; {NONE_YET.format(folder())}"
    print(f"{len(found)} recording{'' if len(found) == 1 else 's'} at {server.address}{which}", flush=True)
    if options.open:
        webbrowser.open(server.address + last)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


def print_json(found: Sequence[Path]) -> int:
    """Print the data of the newest of some recordings."""
    if not found:
        print(NONE_YET.format(folder()), file=sys.stderr)
        return 1
    try:
        print(json.dumps(recording_in(found[0].read_text(encoding="utf-8"))))
    except (ValueError, OSError) as error:
        print(f"{found[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
