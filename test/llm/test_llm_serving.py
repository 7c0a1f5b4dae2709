"""`python -m tinygrad.llm serve` as a process: where it listens, and how it ends."""
import signal
import subprocess
import sys
import threading

import pytest

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"), ("starlette", "serve"),
                      ("uvicorn", "serve"), ("httpx", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")

import re  # noqa: E402
import socket  # noqa: E402

import httpx  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

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
