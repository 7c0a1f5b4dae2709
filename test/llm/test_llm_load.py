"""The server under load: a process of its own, 32 clients at once, clients killed at random.

LOAD_SECONDS is how long clients ask (8), LOAD_TOKENS how many tokens they ask for at once (24, after as many
of a prompt), LOAD_KILLED how many of them are killed while they are answered (8, and twice as many),
LOAD_MODEL which model, for instance smollm2 (a tiny one otherwise). How many tokens a second they get is
printed (`pytest -s`) and not tested: a tiny model takes less time than its HTTP.
"""
import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"), ("starlette", "serve"),
                      ("uvicorn", "serve"), ("httpx", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")
if not Path("/proc/self/status").exists():
    pytest.skip("memory and files of a process are read in /proc", allow_module_level=True)

import httpx  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

pytestmark = pytest.mark.slow
CLIENTS = 32
TOKENS = int(os.environ.get("LOAD_TOKENS", "24"))
SECONDS = float(os.environ.get("LOAD_SECONDS", "8"))
KILLED = int(os.environ.get("LOAD_KILLED", "8"))


class Process:
    """`python -m tinygrad.llm serve` on a free port."""

    def __init__(self, model):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [sys.executable, "-m", "tinygrad.llm", "serve", str(model), "--port", str(port), "--slots",
                 str(CLIENTS), "--context", "256"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while not self.answers():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)

    def answers(self):
        try:
            return self.get("health").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path):
        """With a minute to answer in: other tests have the processor's cores too."""
        return httpx.get(f"{self.url}/{path}", timeout=60)

    @property
    def memory(self):
        """Bytes that are resident."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) << 10

    @property
    def held(self):
        """(open files and sockets, threads)"""
        folder = Path(f"/proc/{self.process.pid}")
        return len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))

    def metric(self, name):
        text = self.get("metrics").text
        return float(re.search(rf"^tinygrad_llm_{name} (\S+)$", text, re.MULTILINE)[1])

    def idle(self):
        deadline = time.monotonic() + 60
        while self.metric("active") or self.metric("waiting"):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tiny = tmp_path_factory.mktemp("model") / "tiny.gguf"
    model = os.environ.get("LOAD_MODEL") or write_tiny(tiny, context=256)
    found = Process(model)
    yield found
    found.process.terminate()
    assert found.process.wait(30) in (0, -15)


def question(number):
    """What a client asks: a prompt of its own, so that no cache has it, and letters that end no answer."""
    words = np.random.default_rng(number).integers(97, 123, 24)
    return {"prompt": "".join(map(chr, words)), "max_tokens": TOKENS, "temperature": 0,
            "logit_bias": {"65": 100}}


def asked_by(server, clients, seconds):
    """Tokens a second of so many clients that ask again and again, once at least. Every answer has to be
    whole."""
    counts = []

    async def client(number, http, end):
        while True:
            number += CLIENTS
            answer = await http.post(f"{server.url}/v1/completions", json=question(number))
            assert answer.status_code == 200, answer.text
            counts.append(answer.json()["usage"]["completion_tokens"])
            assert counts[-1] == TOKENS
            if time.monotonic() >= end:
                return

    async def all_of_them():
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as http:
            start = time.monotonic()
            await asyncio.gather(*(client(number, http, start + seconds) for number in range(clients)))
            return sum(counts) / (time.monotonic() - start)

    return asyncio.run(all_of_them())


def test_32_clients_at_once_get_whole_answers_in_memory_that_does_not_grow(server):
    for clients in (1, 2, 4, 8, 16, CLIENTS):  # each number of rows is traced and compiled
        asked_by(server, clients, 0.1)
    alone = asked_by(server, 1, max(2, SECONDS / 6))
    asked_by(server, CLIENTS, SECONDS / 4)
    before = server.memory
    together = asked_by(server, CLIENTS, SECONDS)
    grown = server.memory - before
    print(f"one client {alone:.0f} tokens/s, {CLIENTS} {together:.0f} ({together / alone:.1f} times), "
          f"memory {before >> 20} MiB and {grown >> 10} KiB more after {SECONDS:g} s")
    assert grown < 16 << 20
    assert server.metric("failed_total") == 0
    server.idle()


def kill_clients(server, cancelled):
    """Clients that go away at random moments, until so many more had been begun to be answered."""
    wanted, deadline = server.metric("cancelled_total") + cancelled, time.monotonic() + 120
    enough = False

    async def client(number, http):
        draw, tries = np.random.default_rng(number), 0
        while not enough:
            number, tries = number + CLIENTS, tries + 1
            ask = question(number) | {"stream": bool(draw.random() < 0.5), "max_tokens": 200}
            task = asyncio.ensure_future(http.post(f"{server.url}/v1/completions", json=ask))
            await asyncio.sleep(float(draw.random()) * 0.2 * tries)  # longer each time: machines can be slow
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def count():
        nonlocal enough
        while not enough:
            await asyncio.sleep(0.2)
            so_far = await asyncio.to_thread(server.metric, "cancelled_total")
            enough = so_far >= wanted or time.monotonic() > deadline

    async def all_of_them():
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as http:
            await asyncio.gather(count(), *(client(number, http) for number in range(CLIENTS)))

    asyncio.run(all_of_them())
    server.idle()
    assert server.metric("cancelled_total") >= wanted and server.metric("failed_total") == 0


def test_clients_killed_at_random_leave_nothing(server):
    kill_clients(server, KILLED)
    time.sleep(0.5)
    memory, held = server.memory, server.held
    kill_clients(server, 2 * KILLED)
    deadline = time.monotonic() + 10
    while (more := np.subtract(server.held, held).max()) > 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    grown = server.memory - memory
    print(f"{server.metric('cancelled_total'):.0f} cancelled, memory grew by {grown >> 10} KiB")
    assert more <= 2
    assert grown < 16 << 20
    assert asked_by(server, 1, 0.1) > 0
