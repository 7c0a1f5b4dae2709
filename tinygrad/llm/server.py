"""OpenAI's HTTP interface to a model, as an ASGI application: chat completions, completions, embeddings,
models.

Requests are data from strangers: bodies are bounded and checked before anything is made of them
(`requests.py`), waiting requests, prompts and the time of an answer are limited, and what is wrong is an
answer with a status that says so. A client that goes away frees its slot. The address is this machine's own
unless told otherwise.
"""
from __future__ import annotations

import asyncio
import codecs
import contextlib
import hmac
import json
import logging
import os
import socket
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from tinygrad.frozen import frozen
from tinygrad.llm.generate import Mask, PromptTooLong
from tinygrad.llm.grammar import SchemaMask, grammar_mask
from tinygrad.llm.language_model import LanguageModel
from tinygrad.llm.requests import Asked, BadRequest, chat_request, completion_request, embedding_request
from tinygrad.llm.sampling import Likelihood, Sampling
from tinygrad.llm.worker import Busy, Job, Piece, Worker

log = logging.getLogger("tinygrad.llm")
MOST_BODY = 4 << 20
"""Bytes of a request."""
BODY_SECONDS = 60.0
"""Until all of a request has come."""
HEADERS = {"Content-Security-Policy":
           "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
           "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


@frozen
class RequestLimits:
    """Requests that may wait, seconds for an answer, and what clients must send, if anything."""

    waiting: int = 64
    seconds: float = 600.0
    api_key: str | None = None

    def __post_init__(self) -> None:
        if self.waiting < 0 or not self.seconds > 0:
            raise ValueError("a server lets 0 or more requests wait, for more than 0 seconds, not "
                             f"{self.waiting} for {self.seconds:g}")


class Failed(Exception):
    """An answer that is an error, with its status."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def whole(text: str) -> str:
    """The text without half characters, which what a client sent may have and nothing can write."""
    return text.encode(errors="replace").decode()


def error_of(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients understand it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": whole(message), "type": kind, "param": None, "code": code}


def error_response(status: int, message: str, code: str | None = None) -> JSONResponse:
    """An answer that is an error."""
    headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse({"error": error_of(status, message, code)}, status, headers)


Endpoint = Callable[["Server", HTTPRequest], Awaitable[Response]]


class Server:
    """A model, the worker that generates, and the application `app`."""

    def __init__(self, model: LanguageModel, limits: RequestLimits | None = None) -> None:
        self.model, self.limits = model, limits or RequestLimits()
        self.worker = Worker(model.generator, self.limits.waiting)
        self.created = int(time.time())
        self.statuses: dict[tuple[str, int], int] = {}
        routes: list[tuple[str, str, Endpoint]] = [
            ("/v1/chat/completions", "POST", Server.chat), ("/v1/completions", "POST", Server.complete),
            ("/v1/embeddings", "POST", Server.embed), ("/v1/models", "GET", Server.models),
            ("/v1/models/{name:path}", "GET", Server.models), ("/health", "GET", Server.health),
            ("/metrics", "GET", Server.metrics), ("/", "GET", Server.page)]
        self.app = Starlette(
            routes=[Route(path, self._guarded(path, endpoint), methods=[method]) for path, method,
                    endpoint in routes],
            lifespan=self._lifespan, exception_handlers={HTTPException: _http_error})

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        yield
        await asyncio.to_thread(self.worker.stop)

    def _guarded(self, path: str, endpoint: Endpoint) -> Callable[[HTTPRequest], Awaitable[Response]]:
        """The endpoint with its key checked, and what goes wrong as an answer."""
        async def answer(request: HTTPRequest) -> Response:
            try:
                if path not in ("/", "/health"):
                    self._check_key(request)
                response = await endpoint(self, request)
            except Failed as error:
                response = error_response(error.status, str(error), error.code)
            except PromptTooLong as error:
                response = error_response(400, str(error), "context_length_exceeded")
            except (BadRequest, ValueError) as error:
                response = error_response(400, str(error))
            except Busy as error:
                response = error_response(429, str(error), "queue_full")
            except ClientDisconnect:
                response = error_response(499, "the client has gone")
            except Exception as error:
                log.error("a request could not be answered\n%s", whole(traceback.format_exc()))
                response = error_response(500, f"{type(error).__name__}: {error}")
            key = (path, response.status_code)
            self.statuses[key] = self.statuses.get(key, 0) + 1
            return response

        return answer

    def _check_key(self, request: HTTPRequest) -> None:
        if self.limits.api_key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1"), self.limits.api_key.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise Failed(401, "the API key is missing or wrong", "invalid_api_key")

    # --- what is asked ------------------------------------------------------------------------------------

    async def chat(self, request: HTTPRequest) -> Response:
        asked = await asyncio.to_thread(chat_request, await _body(request), self.model.tokenizer)
        return await self._answer(request, asked)

    async def complete(self, request: HTTPRequest) -> Response:
        asked = await asyncio.to_thread(completion_request, await _body(request), self.model.tokenizer)
        return await self._answer(request, asked)

    async def embed(self, request: HTTPRequest) -> Response:
        """The mean of what the last block leaves, or its first `dimensions` items, of length 1, for each
        text."""
        prompts, as_base64, size = await asyncio.to_thread(embedding_request, await _body(request),
                                                           self.model.tokenizer, self.model.config.width)
        for prompt in prompts:
            self.model.generator.check(prompt, embeds=True)
        data, count = [], 0
        for place, prompt in enumerate(prompts):
            job = self.worker.submit(prompt, Sampling(), embeds=True)
            await self._finished(request, job)
            assert job.request is not None and job.request.embedding is not None
            vector = job.request.embedding[:size]
            vector = (vector / max(float((vector ** 2).sum()) ** 0.5, 1e-12)).astype("<f4")
            shown = _base64(vector.tobytes()) if as_base64 else vector.tolist()
            data.append({"object": "embedding", "index": place, "embedding": shown})
            count += len(prompt)
        return JSONResponse({"object": "list", "data": data, "model": self.model.name,
                             "usage": {"prompt_tokens": count, "total_tokens": count}})

    async def models(self, request: HTTPRequest) -> Response:
        entry = {"id": self.model.name, "object": "model", "created": self.created, "owned_by": "local"}
        name = request.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [entry]})
        if name != self.model.name:
            raise Failed(404, f"there is no model {name!r}, only {self.model.name!r}", "model_not_found")
        return JSONResponse(entry)

    async def health(self, request: HTTPRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: HTTPRequest) -> Response:
        """Counts in the text format of Prometheus."""
        counts, lines = self.worker.counts, []
        numbers = [("requests_total", "counter", counts.requests),
                   ("refused_total", "counter", counts.refused),
                   ("cancelled_total", "counter", counts.cancelled), ("failed_total", "counter",
                                                                      counts.failed),
                   ("prompt_tokens_total", "counter", counts.prompt_tokens),
                   ("prompt_tokens_reused_total", "counter", counts.reused_tokens),
                   ("tokens_total", "counter", counts.tokens), ("steps_total", "counter", counts.steps),
                   ("step_seconds_total", "counter", counts.seconds), ("active", "gauge", self.worker.active),
                   ("waiting", "gauge", self.worker.waiting), ("slots", "gauge", self.model.generator.slots)]
        for name, kind, value in numbers:
            lines += [f"# TYPE tinygrad_llm_{name} {kind}", f"tinygrad_llm_{name} {value}"]
        lines.append("# TYPE tinygrad_llm_responses_total counter")
        lines += [f'tinygrad_llm_responses_total{{path="{path}",status="{status}"}} {count}'
                  for (path, status), count in self.statuses.items()]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def page(self, request: HTTPRequest) -> Response:
        """A page to talk with the model."""
        return HTMLResponse((Path(__file__).parent / "page.html").read_text(encoding="utf-8"),
                            headers=HEADERS)

    # --- answers ------------------------------------------------------------------------------------------

    async def _answer(self, request: HTTPRequest, asked: Asked) -> Response:
        jobs = []
        for prompt in asked.prompts:
            self.model.generator.check(prompt)
            self.model.generator.check_bias(asked.sampling)
        masks: list[Mask | None] = [None] * len(asked.prompts)
        if asked.schema is not None or asked.grammar is not None:
            masks = [await asyncio.to_thread(self._mask, asked) for _ in asked.prompts]
        try:
            for place, (prompt, mask) in enumerate(zip(asked.prompts, masks, strict=True)):
                jobs.append(self.worker.submit(prompt, asked.sampling_of(place),
                                               likelihoods=asked.noted, mask=mask,
                                               notes_prompt=asked.notes_prompt,
                                               is_answer=asked.is_chat))
        except Busy:
            for job in jobs:
                self.worker.cancel(job)
            raise
        head = {"id": f"{asked.prefix}-{uuid.uuid4().hex}", "created": int(time.time()),
                "model": self.model.name}
        if asked.stream:
            return StreamingResponse(self._events(jobs, asked, head), media_type="text/event-stream",
                                     headers={"Cache-Control": "no-cache"})
        try:
            for job in jobs:
                await self._finished(request, job)
        except BaseException:
            for job in jobs:
                self.worker.cancel(job)
            raise
        choices = [asked.choice(place, job, self._likelihoods(job.request.read + job.request.noted, asked,
                                                              self._places(asked, place, job))
                                if job.request else None)
                   for place, job in enumerate(asked.chosen(jobs))]
        return JSONResponse({**head, "object": asked.object, "choices": choices,
                             "usage": _usage(jobs, asked)})

    def _mask(self, asked: Asked) -> Mask:
        """What keeps an answer to a schema or grammar. Raises BadRequest for one that is not known."""
        tokenizer, size = self.model.tokenizer, self.model.config.vocabulary
        try:
            if asked.grammar is not None:
                return grammar_mask(tokenizer, size, asked.grammar)
            return SchemaMask(tokenizer, size, asked.schema)
        except ValueError as error:
            raise BadRequest(str(error)) from error

    async def _finished(self, request: HTTPRequest, job: Job) -> None:
        """Wait until a job is done. Raises `Failed` where it takes too long, fails, or the client has
        gone."""
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            while True:
                piece = asyncio.ensure_future(job.pieces.get())
                left = job.born + self.limits.seconds - time.monotonic()
                await asyncio.wait({piece, gone}, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    piece.cancel()
                    self.worker.cancel(job)
                    if gone.done():
                        raise Failed(499, "the client has gone")
                    raise self._late()
                found = piece.result()
                if found.error is not None:
                    raise Failed(400 if found.refused else 503, found.error)
                if found.finish is not None:
                    return
        finally:
            gone.cancel()

    async def _events(self, jobs: list[Job], asked: Asked, head: dict[str, Any]) -> AsyncIterator[str]:
        """Server-sent events: a piece of a choice each, of all choices as they come, then the usage if it was
        asked for."""
        head = {**head, "object": asked.chunk_object}
        places = [self._places(asked, place, job) for place, job in enumerate(jobs)]
        late = [asked.echo(place) if asked.notes_prompt else "" for place in range(len(jobs))]
        try:
            for place in range(len(jobs)):
                if asked.is_chat:
                    yield _event({**head, "choices": [asked.first_delta(place)]})
                elif asked.echoed and not asked.notes_prompt:
                    yield _event({**head, "choices": [asked.delta(place, asked.echo(place), None, None)]})
            async for place, piece in self._pieces(jobs):
                likelihoods = self._likelihoods(piece.noted, asked, places[place])
                text, late[place] = late[place] + piece.text, ""
                yield _event({**head, "choices": [asked.delta(place, text, piece.finish, likelihoods)]})
            if asked.usage:
                yield _event({**head, "choices": [], "usage": _usage(jobs, asked)})
            yield "data: [DONE]\n\n"
        except Failed as error:
            yield _event({"error": error_of(error.status, str(error), error.code)})
        finally:  # also where the client has gone
            for job in jobs:
                self.worker.cancel(job)

    async def _pieces(self, jobs: list[Job]) -> AsyncIterator[tuple[int, Piece]]:
        """What comes of these jobs, with their places. Raises `Failed` where one fails or takes too long."""
        coming = {asyncio.ensure_future(job.pieces.get()): place for place, job in enumerate(jobs)}
        try:
            while coming:
                left = min(jobs[place].born for place in coming.values()) + self.limits.seconds
                done, _ = await asyncio.wait(coming, timeout=max(left - time.monotonic(), 0),
                                             return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise self._late()
                for get in sorted(done, key=coming.__getitem__):
                    place, piece = coming.pop(get), get.result()
                    if piece.error is not None:
                        raise Failed(400 if piece.refused else 503, piece.error)
                    if piece.finish is None:
                        coming[asyncio.ensure_future(jobs[place].pieces.get())] = place
                    yield place, piece
        finally:
            for get in coming:
                get.cancel()

    def _late(self) -> Failed:
        return Failed(504, f"the answer took more than {self.limits.seconds:g} seconds", "timeout")

    def _places(self, asked: Asked, place: int, job: Job) -> TextPlaces:
        """Of a choice's tokens. Those of a prompt may say more than its text: a token that begins texts, a
        space that is put before them."""
        if not asked.notes_prompt:
            return TextPlaces()
        said = b"".join(map(self.model.tokenizer.bytes_of, job.prompt)).decode(errors="replace")
        text = asked.echo(place)
        return TextPlaces(len(text) - len(said) if said.endswith(text) else 0, len(job.prompt))

    def _likelihoods(self, noted: Sequence[Likelihood], asked: Asked,
                     places: TextPlaces) -> dict[str, Any] | None:
        """Logarithms of probabilities as the two interfaces show them."""
        if asked.likelihoods is None:
            return None
        key, bytes_of = self.model.tokenizer.key, self.model.tokenizer.bytes_of
        if asked.is_chat:
            def entry(token: int, value: float | None) -> dict[str, Any]:
                data = bytes_of(token)
                return {"token": data.decode(errors="backslashreplace"), "logprob": value,
                        "bytes": list(data)}

            return {"content": [{**entry(n.token, n.value), "top_logprobs": [entry(*best) for best in n.best]}
                                for n in noted], "refusal": None}
        return {"tokens": [key(n.token) for n in noted], "token_logprobs": [n.value for n in noted],
                "top_logprobs": [None if n.value is None else
                                 {key(token): value for token, value in (*n.best, (n.token, n.value))}
                                 for n in noted],
                "text_offset": [places.next(bytes_of(n.token), self.model.tokenizer.is_special(n.token))
                                for n in noted]}


class TextPlaces:
    """Where the tokens of a text begin in it, in characters: a character begins where it is whole. `start`: 0
    or less, where the first tokens say so much that is not in the text. `prompt`: so many tokens come first
    whose special ones are in the text; those of an answer are not."""

    def __init__(self, start: int = 0, prompt: int = 0) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.count, self.prompt = start, prompt

    def next(self, token: bytes, special: bool = False) -> int:
        """The place of the next token, of these bytes."""
        place = max(self.count, 0)
        if self.prompt > 0 or not special:
            self.count += len(self.decoder.decode(token))
        self.prompt -= 1
        return place


# --- small parts ------------------------------------------------------------------------------------------


async def _http_error(request: HTTPRequest, error: Exception) -> Response:
    """A path or method that there is none for; of a method, with those that there are (`Allow`)."""
    assert isinstance(error, HTTPException)
    response = error_response(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


async def _body(request: HTTPRequest) -> dict[str, Any]:
    """The JSON object that was sent. Raises `Failed` where it is too large or does not come, BadRequest where
    it is none."""
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > MOST_BODY:
                    raise Failed(413, f"a request has at most {MOST_BODY} bytes")
    except TimeoutError as error:
        raise Failed(408, f"the request did not come within {BODY_SECONDS:g} seconds") from error
    try:
        found = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest(f"a request is a JSON object, not a {type(found).__name__}")
    return found


async def _disconnected(request: HTTPRequest) -> None:
    """Return once the client has gone."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.05)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def _usage(jobs: list[Job], asked: Asked) -> dict[str, Any]:
    """Tokens of all answers, and of prompts: each counts once, however many answers it has."""
    requests = [job.request for job in jobs if job.request is not None]
    prompts = requests[::asked.drawn]
    read, written = sum(len(r.prompt) for r in prompts), sum(len(r.tokens) for r in requests)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": sum(r.reused for r in prompts)}}


class _Connection(H11Protocol):
    """A connection on which the head of a request comes in time: half a head would hold it for good, and a
    process has so many connections."""

    patience: asyncio.TimerHandle | None = None
    """until it is given up, while it has sent no whole head"""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override, unused-ignore]
        super().connection_made(transport)
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # there is a request
            self._stop_waiting()
        elif self.patience is None:
            self._be_patient()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _be_patient(self) -> None:
        self.patience = self.loop.call_later(BODY_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def _give_up(self) -> None:
        self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                             b"Content-Length: 0\r\n\r\n")
        self.transport.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn, which waits for all answers before it ends: those that are being written end first."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        super().__init__(uvicorn.Config(server.app, host=host, port=port, log_level="info", http=_Connection,
                                        timeout_keep_alive=30, timeout_graceful_shutdown=10))
        self.worker = server.worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:  # a second one would end it before what waits is told
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self.worker.stop)
        await super().shutdown(sockets)


def check_address(host: str, port: int) -> None:
    """Raise ValueError where a server cannot listen there: before the model is read."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"a port is a number from 0 to 65535, not {port}")
    if not host:
        raise ValueError("the host is empty: 0.0.0.0 and :: are all addresses of this machine")
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            socket.create_server(address[:2], family=family).close()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"cannot listen at port {port} of {host}: {error}") from error


def serve_model(model: LanguageModel, host: str, port: int, waiting: int, seconds: float,
                api_key: str | None) -> None:
    """Answer requests until interrupted; answers that are being written end then, with an error that says so.
    `api_key` is LLM_API_KEY of the environment unless given."""
    limits = RequestLimits(waiting, seconds, api_key or os.environ.get("LLM_API_KEY") or None)
    if limits.api_key is None and host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("whoever reaches %s may use the model: there is no API key", host)
    _Uvicorn(Server(model, limits), host, port).run()
