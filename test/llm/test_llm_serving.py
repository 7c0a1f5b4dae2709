"""`python -m tinygrad.llm serve` as a process: where it listens, and how it ends."""
import signal
import subprocess
import sys
import threading
import time

import pytest

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"), ("starlette", "serve"),
                      ("uvicorn", "serve"), ("httpx", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")

import re  # noqa: E402
import socket  # noqa: E402

import httpx  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

from tinygrad.llm import server  # noqa: E402
from tinygrad.llm.language_model import LanguageModel  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are another thing on Windows")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", context=1 << 16)


def serve(path, *words):
    """A process that serves on a port of its own, and its address once it listens."""
    process = subprocess.Popen([sys.executable, "-m", "tinygrad.llm", "serve", path, "--port", "0",
                                "--context", "65536", *words],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.search(r"running on (http://\S+)", line)
        if found:
            return process, found[1], said
    raise AssertionError("".join(said))


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_answers_that_are_being_written_end_when_it_is_told_to_end(path, number, code):
    """Told twice it ends as well; nobody is left without a word."""
    process, url, _ = serve(path)
    lines = []

    def read(stream):
        body = dict(prompt="he", max_tokens=65000, logit_bias={"0": -100, "2": -100}, stream=stream)
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines.append((response.status_code, list(line for line in response.iter_lines() if line)[-1]))

    threads = [threading.Thread(target=read, args=(stream,)) for stream in (True, False)]
    for thread in threads:
        thread.start()
    while "tinygrad_llm_active 2" not in httpx.get(f"{url}/metrics").text:
        assert process.poll() is None
    process.send_signal(number)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    for thread in threads:
        thread.join()
    assert process.returncode == code and "Traceback" not in said, said
    assert sorted(status for status, _ in lines) == [200, 503]
    assert all("the server stops" in line for _, line in lines)


def test_an_address_that_it_cannot_listen_at_is_said_before_the_model_is_read(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, reason in (((), "cannot listen at port"), (("--host", ""), "the host is empty"),
                              (("--host", "203.0.113.7"), "cannot listen at port")):
            done = subprocess.run([sys.executable, "-m", "tinygrad.llm", "serve", tmp_path / "none.gguf",
                                   "--port", port, *words], capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr


def test_it_says_where_anyone_may_use_the_model(path):
    for words, warns in ((["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "k"], False),
                         ([], False)):
        process, _, said = serve(path, *words)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert ("there is no API key" in "".join(said)) == warns


def is_well(client):
    """Whether /health, which was asked, answers so: a head and a body may come in parts."""
    said = b""
    while not said.endswith(b"}"):
        said += client.recv(999) or b"}"
    return said.startswith(b"HTTP/1.1 200 ") and said.endswith(b'"ok"}')


def test_the_head_of_a_request_comes_in_time_or_its_connection_ends(path, monkeypatch):
    """Half a head held a connection for good: also after another request, and where nothing comes at all."""
    patience = 1.0
    monkeypatch.setattr(server, "BODY_SECONDS", patience)
    running = server._Uvicorn(server.Server(LanguageModel(path)), "127.0.0.1", 0)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    try:
        address = running.servers[0].sockets[0].getsockname()
        for before, half in ((b"", b""), (b"", whole[:20]), (whole, whole[:20])):
            with socket.create_connection(address, timeout=60) as client:
                client.sendall(before)
                assert not before or is_well(client)
                began = time.monotonic()
                client.sendall(half)
                assert client.recv(999).startswith(b"HTTP/1.1 408 ") and client.recv(999) == b""
                assert time.monotonic() - began >= 0.5 * patience
        with socket.create_connection(address, timeout=60) as client:  # between requests there is more time
            for wait in (0.4, 1.3, 0):
                client.sendall(whole)
                assert is_well(client)
                time.sleep(wait * patience)
    finally:
        running.should_exit = True
        thread.join()
