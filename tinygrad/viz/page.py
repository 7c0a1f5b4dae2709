"""One HTML file with a recording in it, which needs no network and no server.

In: an `Exporter`. Out: `page.html`, built of visualiser/ by `npm run build`, with the recording as compressed
JSON. A page has at most `MOST_PAGE` bytes: details of the cheapest kernels are left out until it has, and it
says so.
"""
from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

from tinygrad.files import written_whole
from tinygrad.viz.recording import DETAIL_BYTES, Exporter, Json

MOST_PAGE = 5_000_000
LEAST_DETAILS = 1 << 10
"""Characters of details below which leaving out more makes no page smaller."""
PLACE = "@@RECORDING@@"
"""Where the recording goes in the built page."""


def template() -> str:
    """The built page, without a recording."""
    return Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def html_of(recording: Json) -> str:
    """The page of a recording."""
    packed = gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), 6)
    return template().replace(PLACE, base64.b64encode(packed).decode())


def recording_in(html: str) -> Json:
    """The recording in a page. Raises ValueError for a text that is no such page."""
    before, _, after = template().partition(PLACE)
    start = html.find('id="recording"')
    start = html.find(">", start) + 1
    end = html.find("</script>", start)
    if not before or not after or start <= 0 or end < 0:
        raise ValueError("not a page that VIZ=1 wrote")
    try:
        found: Json = json.loads(gzip.decompress(base64.b64decode(html[start:end])))
    except (OSError, ValueError) as error:
        raise ValueError(f"not a page that VIZ=1 wrote: {error}") from None
    return found


def bounded_page(exporter: Exporter, most: int = MOST_PAGE) -> str:
    """The page of what was recorded, of at most so many bytes."""
    room = DETAIL_BYTES
    while True:
        html = html_of(exporter.export(room))
        if len(html) <= most or room < LEAST_DETAILS:
            return html
        room //= 2


def write_page(path: Path, html: str) -> None:
    """Write a page such that nobody sees a part of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(html.encode())
