"""The thread that generates, and the jobs that others give it: between a server's event loop and a
`Generator`.

A job is put into a bounded queue, and what becomes of it arrives on the event loop that it came from. Jobs
are cancelled from there too. What goes wrong in one step ends the jobs that were worked on, not the thread.
"""
from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinygrad.frozen import frozen
from tinygrad.llm.generate import Finish, Generator, Request
from tinygrad.llm.sampling import Likelihood, Sampling

log = logging.getLogger("tinygrad.llm")


class Busy(Exception):
    """As many requests wait as may."""


@frozen
class Piece:
    """What is new of a job: text, likelihoods, and why it ended if it did. `refused`: the error is in
    what was asked for."""

    text: str
    noted: tuple[Likelihood, ...]
    finish: Finish | None
    error: str | None = None
    refused: bool = False


@dataclass(eq=False)
class Job:
    """A request, and the queue on its event loop where its pieces arrive."""

    prompt: Sequence[int]
    sampling: Sampling
    details: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)
    request: Request | None = None
    shown: int = 0
    noted: int = 0
    born: float = field(default_factory=time.monotonic)

    def post(self, piece: Piece) -> None:
        """To its event loop, from the thread that generates."""
        try:
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, piece)
        except RuntimeError:
            log.debug("an event loop closed before its job was done")

    def news(self) -> Piece | None:
        """What has come since it was last asked, of a prompt when all of it is read."""
        request = self.request
        assert request is not None
        found = [] if request.is_reading else request.read + request.noted
        text, noted = request.text[self.shown:], tuple(found[self.noted:])
        self.shown, self.noted = len(request.text), len(found)
        if not text and not noted and request.finish is None:
            return None
        return Piece(text, noted, request.finish, request.error, refused=request.error is not None)


@dataclass
class Counts:
    """What was done since the start."""

    requests: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0


class Worker:
    """Runs a generator in a thread of its own. `most_waiting`: jobs that may wait for a slot."""

    def __init__(self, generator: Generator, most_waiting: int = 64) -> None:
        self.generator = generator
        self.most_waiting = most_waiting
        self.counts = Counts()
        self._changed = threading.Condition()
        self._arrived: list[Job] = []
        self._cancelled: list[Job] = []
        self._jobs: dict[Request, Job] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="generate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all jobs, and the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Jobs without a slot."""
        return len(self._arrived) + len(self.generator.waiting)

    @property
    def _is_full(self) -> bool:
        """Whether one more job would be one too many to wait: those that get a free slot next do not, and
        what is cancelled makes room."""
        left = sum(job in self._arrived or job.request in self._jobs for job in self._cancelled)
        return self.active + self.waiting - left >= self.generator.slots + self.most_waiting

    @property
    def active(self) -> int:
        """Jobs that are worked on."""
        return sum(request is not None for request in self.generator.active)

    def submit(self, prompt: Sequence[int], sampling: Sampling, **details: Any) -> Job:
        """A job for what follows a prompt, from a coroutine. Raises `Busy` where the queue is full and
        ValueError as `Generator.submit` does."""
        self.generator.check(prompt, bool(details.get("embeds")))
        self.generator.check_bias(sampling)
        job = Job(prompt, sampling, details, asyncio.get_running_loop())
        with self._changed:
            if self._is_full or self._stopping:
                self.counts.refused += 1
                raise Busy(f"{self.waiting} requests wait already")
            self.counts.requests += 1
            self._arrived.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Work no more on a job: the one who asked has gone. Nothing where it is done."""
        with self._changed:
            self._cancelled.append(job)
            self._changed.notify()

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._arrived or self._cancelled or self._stopping or not self.generator.is_idle):
                    self._changed.wait()
                arrived, self._arrived = self._arrived, []
                cancelled, self._cancelled = self._cancelled, []
                stopping = self._stopping
            for job in cancelled:
                self._drop(job, arrived)
            if stopping:
                for job in (*arrived, *self._jobs.values()):
                    job.post(Piece("", (), Finish.CANCELLED, "the server stops"))
                return
            for job in arrived:
                job.request = self.generator.submit(job.prompt, job.sampling, **job.details)
                self._jobs[job.request] = job
                if job.request.finish is not None:
                    self._tell(job.request)
            self._step()

    def _drop(self, job: Job, arrived: list[Job]) -> None:
        if job in arrived:
            arrived.remove(job)
        elif job.request is not None and job.request in self._jobs:
            self.generator.cancel(job.request)
            self._forget(job.request)
        else:
            return
        self.counts.cancelled += 1

    def _step(self) -> None:
        if self.generator.is_idle:
            return
        start = time.perf_counter()
        try:
            changed = self.generator.step()
        except Exception as error:
            log.exception("a step of generation failed")
            self._fail(f"{type(error).__name__}: {error}")
            return
        self.counts.steps += 1
        self.counts.seconds += time.perf_counter() - start
        for request in changed:
            self._tell(request)

    def _tell(self, request: Request) -> None:
        """Post what is new of a request."""
        job = self._jobs[request]
        piece = job.news()
        if piece is not None:
            job.post(piece)
        if request.finish is not None:
            self._forget(request)

    def _forget(self, request: Request) -> Job:
        """The job of a request that is done or given up; what was done for it is counted."""
        if request.tokens or request.finish is not Finish.CANCELLED:  # its prompt was read
            self.counts.prompt_tokens += len(request.prompt)
            self.counts.reused_tokens += request.reused
            self.counts.tokens += len(request.tokens)
        return self._jobs.pop(request)

    def _fail(self, why: str) -> None:
        """End the jobs that were worked on, and forget what their slots hold."""
        for request in [r for r in self.generator.active if r is not None]:
            slot = request.slot
            self.generator.cancel(request)
            if slot is not None:
                self.generator.held[slot] = []
            job = self._forget(request)
            job.post(Piece("", (), Finish.CANCELLED, why))
            self.counts.failed += 1
