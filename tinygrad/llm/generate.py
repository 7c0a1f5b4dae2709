"""Tokens one after another, for many sequences at once: continuous batching over the slots of one cache.

Requests come in with the tokens of a prompt and how to sample; `step` does a piece of work for all of them:
it gives waiting requests a free slot, reads the next piece of a prompt, or several short ones packed into one
row, and adds a token to every sequence that is past its prompt. Requests join and leave between steps. A slot
remembers its tokens after its request is done: a prompt that begins with the same tokens goes on from there,
or copies them where they are in use.

One trace serves every length and slot: pieces of prompts, packed prompts, and one for each number of rows (1,
2, 4, ...) of sequences that go on together. Where each takes its likeliest token, the next step begins on the
device's own choice before the host has read it: an answer that turns out to have ended has computed one token
in vain.
"""
from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tinygrad.dtype import DTypeLike, dtypes
from tinygrad.frozen import frozen
from tinygrad.graph.uop import UOp
from tinygrad.jit import TinyJit
from tinygrad.llm.cache import Cache, PackedSequence, Rows
from tinygrad.llm.model import Transformer
from tinygrad.llm.sampling import Likelihood, Sampling, Scores, choose, likelihood
from tinygrad.llm.tokenizer import Stream, Tokenizer
from tinygrad.tensor import Tensor

CHUNK = 512
"""Tokens of a prompt that are read at once, at most."""
NOTED = 64
"""Tokens of a prompt that are read at once where their likelihoods are wanted: all have scores of all tokens,
which are 65 MB for a vocabulary of 256,000."""
PACKED = 4
"""Prompts that are read at once, at most: 4 of 24 tokens take 62 ms, one 25 (SmolLM2 on two cores of a Zen 4
server), 16 of them 4 times 62."""
WORTH_A_COPY = 32
"""Tokens that another slot must share with a prompt to be copied from there."""


class Finish(enum.StrEnum):
    """Why an answer ended: the model or a stop text, the number of tokens, the caller."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class PromptTooLong(ValueError):
    """A prompt with more tokens than the context has room for."""


class MaskFailed(ValueError):
    """What may come next cannot be said: a grammar takes more work than it may."""


class Mask(Protocol):
    """What may come next, as a grammar says. Both methods raise `MaskFailed` where that cannot be said."""

    def apply(self, scores: Scores) -> Scores:
        """Scores in which tokens that may not come next are -inf."""

    def accept(self, token: int) -> None:
        """This token came."""


@dataclass(eq=False)
class Request:
    """A prompt and what became of it. `text` is what may be shown: no part of a stop text, no half character.

    `likelihoods`: how many of the likeliest tokens are noted for each one; None notes nothing.
    `notes_prompt`: for the tokens of the prompt too, in `read`. `embeds`: no token is wanted but the mean of
    what the last block leaves, `embedding` (width,) then. `is_answer`: the text begins anew, it does not go
    on from the prompt's. `error`: why its mask ended it.
    """

    prompt: list[int]
    sampling: Sampling
    likelihoods: int | None = None
    notes_prompt: bool = False
    embeds: bool = False
    is_answer: bool = False
    mask: Mask | None = None
    tokens: list[int] = field(default_factory=list)
    read: list[Likelihood] = field(default_factory=list)
    noted: list[Likelihood] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    error: str | None = None
    reused: int = 0
    embedding: np.ndarray[Any, Any] | None = None
    slot: int | None = None
    stream: Stream | None = None
    unsure: str = ""
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def is_reading(self) -> bool:
        """Whether its prompt is not read yet."""
        return not self.tokens and self.finish is None

    @property
    def reads_alone(self) -> bool:
        """Whether something is wanted of every token of its prompt, none of which may be left out then."""
        return self.embeds or self.notes_prompt

    @property
    def takes_likeliest(self) -> bool:
        """Whether its next token is the one of the highest score, and nothing else is wanted of the
        scores."""
        return self.mask is None and self.likelihoods is None and self.sampling.takes_likeliest

    def take(self, token: int, is_end: bool) -> None:
        """Add a token; end where it, or the text that it completes, says so."""
        assert self.stream is not None
        if is_end:
            self.end(Finish.STOP)
            return
        self.tokens.append(token)
        self._show(self.stream.push(token))
        if self.finish is None and len(self.tokens) >= self.sampling.tokens:
            self.end(Finish.LENGTH)

    def end(self, why: Finish) -> None:
        """No more tokens come: what was held back is shown."""
        if self.stream is not None:
            self._show(self.stream.rest())
        if self.finish is None:
            self.text += self.unsure
            self.finish = why
        self.unsure = ""

    def _show(self, text: str) -> None:
        """Add text, up to a stop text; its end is held back while it may be the beginning of one."""
        if self.finish is not None:
            return
        self.unsure += text
        found = [at for at in (self.unsure.find(stop) for stop in self.sampling.stop) if at >= 0]
        if found:
            self.text += self.unsure[:min(found)]
            self.finish = Finish.STOP
            return
        held = max((n for stop in self.sampling.stop for n in range(1, len(stop))
                    if self.unsure.endswith(stop[:n])), default=0)
        self.text += self.unsure[:len(self.unsure) - held]
        self.unsure = self.unsure[len(self.unsure) - held:]


@frozen(eq=False)
class Begun:
    """A step that adds a token to each of some requests, whose result nobody has read yet."""

    requests: Sequence[Request]
    rows: Sequence[int]
    """for each request, the row of its slot"""
    scores: Tensor
    """(rows, vocabulary)"""
    likeliest: Tensor
    """(rows, 1): the tokens of the highest scores"""


class Generator:
    """A model with a cache of `slots` sequences of up to `length` tokens, and the requests that it works on.

    For one thread. Raises ValueError for a length that the model does not have positions for.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, slots: int = 1, length: int | None = None,
                 dtype: DTypeLike = "float16") -> None:
        config = model.config
        self.length = model.context if length is None else length
        if not 0 < self.length <= model.context:
            raise ValueError(f"the model has positions for {model.context} tokens, not for {self.length}")
        if slots < 1:
            raise ValueError(f"a cache has at least one slot, not {slots}")
        self.model, self.tokenizer, self.slots = model, tokenizer, slots
        self.chunk = min(CHUNK, self.length)
        self.noted = min(NOTED, self.chunk)
        self.cache = Cache(config.layers, slots, config.kv_heads, self.length + self.chunk, config.head_size,
                           dtype,
                           model.device)
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.active: list[Request | None] = [None] * slots
        self.used = [0] * slots
        self.admitted = 0
        self.waiting: deque[Request] = deque()
        self.begun: Begun | None = None
        """the step after the last one that was read"""
        self._read = TinyJit(self._scores_of_last)
        self._read_packed = TinyJit(self._scores_of_packed)
        self._note = TinyJit(self._scores_of_all)
        self._sum = TinyJit(self._sum_of_hidden)
        self._next = TinyJit(self._scores_of_rows)
        self._copy = TinyJit(self._copy_slot)

    # --- requests -----------------------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], sampling: Sampling, **details: Any) -> Request:
        """A request for what follows a prompt. Raises ValueError as `check` does."""
        request = Request(list(prompt), sampling, rng=sampling.generator(), **details)
        self.check(prompt, request.embeds)
        self.check_bias(sampling)
        request.stream = Stream(self.tokenizer, () if request.is_answer else prompt)
        if sampling.tokens == 0 and not request.reads_alone:
            request.end(Finish.LENGTH)
        else:
            self.waiting.append(request)
        return request

    def check(self, prompt: Sequence[int], embeds: bool = False) -> None:
        """Raises ValueError for a prompt that is empty or has tokens that the model does not know,
        PromptTooLong for one that leaves no room for a token."""
        if not prompt:
            raise ValueError("the prompt has no tokens")
        room = self.length - (not embeds)
        if len(prompt) > room:
            raise PromptTooLong(f"the prompt has {len(prompt)} tokens; the context of {self.length} has room "
                                f"for {room}")
        if not 0 <= min(prompt) <= max(prompt) < self.model.config.vocabulary:
            raise ValueError(f"tokens are numbers from 0 to {self.model.config.vocabulary - 1}")

    def check_bias(self, sampling: Sampling) -> None:
        """Raises ValueError for a bias of a token that the model does not have."""
        vocabulary = self.model.config.vocabulary
        if any(token >= vocabulary for token, _ in sampling.logit_bias):
            raise ValueError(f"logit_bias: tokens are numbers from 0 to {vocabulary - 1}")

    def cancel(self, request: Request) -> None:
        """Work no more on a request; its slot is free."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request.finish is None:
            request.end(Finish.CANCELLED)
        self._free(request)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not any(self.active)

    def step(self) -> list[Request]:
        """A piece of work; the requests that it changed."""
        while self.waiting and None in self.active:
            self._admit(self.waiting.popleft())
        reading = sorted((r for r in self.active if r is not None and r.is_reading), key=self._order)
        changed = self._read_together(reading)
        self._read_more(changed)
        changed += self._go_on([r for r in self.active if r is not None and r not in reading], not reading)
        for request in changed:
            if request.finish is not None:
                self._free(request)
        if not any(self.active):
            self.begun = None
        return changed

    def run(self, request: Request, show: Callable[[str], None] | None = None) -> Request:
        """Work until a request is done; `show` gets its text piece by piece. Raises `MaskFailed` where the
        request's mask does."""
        shown = 0
        while request.finish is None:
            self.step()
            if show is not None and len(request.text) > shown:
                show(request.text[shown:])
                shown = len(request.text)
        if request.error is not None:
            raise MaskFailed(request.error)
        return request

    # --- slots --------------------------------------------------------------------------------------------

    def _order(self, request: Request) -> int:
        assert request.slot is not None
        return self.used[request.slot]

    def _free(self, request: Request) -> None:
        if request.slot is not None:
            self.active[request.slot] = None
            request.slot = None

    def _admit(self, request: Request) -> None:
        """Give a request a free slot: one near those in use, so that steps go through few; of these the one
        that holds most of its prompt, else the one used longest ago."""
        used = [slot for slot, other in enumerate(self.active) if other is not None]
        free = [slot for slot, other in enumerate(self.active) if other is None]
        shared = [0 if request.reads_alone else common(held, request.prompt) for held in self.held]
        slot = min(free, key=lambda slot: (self._rows([*used, slot]), -shared[slot], self.used[slot]))
        oldest = min(free, key=self.used.__getitem__)
        if len(self.held[slot]) >= shared[slot] + WORTH_A_COPY and oldest != slot:
            self._copy_tokens(slot, oldest, len(self.held[slot]))
            self.held[oldest], self.used[oldest] = self.held[slot], self.used[slot]
        request.reused = min(shared[slot], len(request.prompt) - 1)
        self.held[slot] = request.prompt[:request.reused]
        self.admitted += 1
        self.used[slot], request.slot, self.active[slot] = self.admitted, slot, request

    def _catch_up(self, request: Request) -> None:
        """Copy what another slot holds of a prompt, where that is much more than its own."""
        shared = [common(held, request.prompt[:-1]) for held in self.held]
        best = max(range(self.slots), key=shared.__getitem__)
        more = shared[best] - len(self._held(request))
        if more >= WORTH_A_COPY and not request.reads_alone:
            assert request.slot is not None
            self._copy_tokens(best, request.slot, shared[best])
            self.held[request.slot] = request.prompt[:shared[best]]
            request.reused += more

    def _copy_tokens(self, source: int, target: int, count: int) -> None:
        """The first tokens of a slot into another one."""
        self._copy(self._slot(target, "target"), self._slot(source), self._length(count))

    # --- work ---------------------------------------------------------------------------------------------

    def _read_together(self, reading: Sequence[Request]) -> list[Request]:
        """Of requests, the first one and those whose whole rest has room beside its next piece. What begins
        as one of them does waits, to copy what that one reads."""
        together: list[Request] = []
        room = self.chunk
        for request in reading:
            if together and (request.reads_alone or together[0].reads_alone
                             or self._begins_as(request, together)):
                continue
            self._catch_up(request)
            left = len(request.prompt) - len(self._held(request))
            if not together or left <= room:
                together.append(request)
                room -= left
            if len(together) == PACKED or room <= 0:
                break
        return together

    def _begins_as(self, request: Request, others: Sequence[Request]) -> bool:
        """Whether a prompt begins as one of others does, for many more tokens than its slot holds."""
        least = len(self._held(request)) + WORTH_A_COPY
        return any(common(request.prompt, other.prompt) >= least for other in others)

    def _held(self, request: Request) -> list[int]:
        """The tokens that the slot of a request holds."""
        assert request.slot is not None
        return self.held[request.slot]

    def _piece(self, request: Request) -> list[int]:
        """The tokens of a prompt that are read next."""
        start = len(self._held(request))
        return request.prompt[start:start + (self.noted if request.notes_prompt else self.chunk)]

    def _read_more(self, requests: Sequence[Request]) -> None:
        """Read the next piece of these prompts; after its last, choose the first token."""
        if not requests:
            return
        if requests[0].embeds:
            self._sum_more(requests[0])
            return
        if requests[0].notes_prompt:
            self._note_more(requests[0])
            return
        scores = (self._read(*self._given_piece(requests[0])) if len(requests) == 1
                  else self._read_packed(*self._given_pieces(requests)))
        for request in requests:
            self._held(request).extend(self._piece(request))
        if any(len(self._held(request)) == len(request.prompt) for request in requests):
            found = scores.numpy()
            for row, request in enumerate(requests):
                if len(self._held(request)) == len(request.prompt):
                    self._choose(request, found[row])

    def _sum_more(self, request: Request) -> None:
        """The same for a request whose embedding is wanted."""
        summed = self._sum(*self._given_piece(request)).numpy()
        self._held(request).extend(self._piece(request))
        request.embedding = summed if request.embedding is None else request.embedding + summed
        if len(self._held(request)) == len(request.prompt):
            request.embedding = request.embedding / len(request.prompt)
            request.end(Finish.STOP)

    def _note_more(self, request: Request) -> None:
        """The same for a request whose prompt's likelihoods are wanted."""
        start, piece = len(self._held(request)), self._piece(request)
        rows = np.minimum(np.arange(self.noted, dtype=np.int32), len(piece) - 1)
        given = [*self._given_piece(request), self._given(rows)]
        scores = self._note(*given).numpy()
        self._held(request).extend(piece)
        assert request.likelihoods is not None
        if not start:
            request.read.append(Likelihood(piece[0], None, ()))
        for row, token in enumerate(request.prompt[start + 1:start + 1 + len(piece)]):
            request.read.append(likelihood(scores[row], token, request.likelihoods))
        if len(self._held(request)) == len(request.prompt):
            if request.sampling.tokens == 0:
                request.end(Finish.LENGTH)
            else:
                self._choose(request, scores[len(piece) - 1])

    def _given_piece(self, request: Request) -> Sequence[Any]:
        """Tokens and positions (1, chunk), of which the first `count` count, and where they are."""
        assert request.slot is not None
        start, piece = len(self._held(request)), self._piece(request)
        return (*self._padded(piece, range(start, start + len(piece))), self._slot(request.slot),
                self._place(0, start), self._size("count", len(piece)), self._length(start + len(piece)))

    def _given_pieces(self, requests: Sequence[Request]) -> Sequence[Any]:
        """The same for several, one after another, and for each its last token and where it is. Where they
        are few, the last one is there again: what it writes is the same again."""
        tokens: list[int] = []
        positions: list[int] = []
        sequences, last = [], []
        for row in range(PACKED):
            request = requests[min(row, len(requests) - 1)]
            assert request.slot is not None
            held, piece = len(self._held(request)), self._piece(request)
            if row < len(requests):
                start = len(tokens)
                tokens += piece
                positions += range(held, held + len(piece))
            sequences.append((UOp.variable(f"start{row}", 0, self.chunk - 1).bind(start),
                              self._size(f"count{row}", len(piece)), self._slot(request.slot, f"slot{row}"),
                              self._place(row, held), self._length(held + len(piece), f"length{row}")))
            last.append(start + len(piece) - 1)
        return (*self._padded(tokens, positions), self._size("count", len(tokens)),
                self._given(np.array(last, np.int32)), sequences)

    def _padded(self, piece: Sequence[int], places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and positions (1, chunk), of which the first count."""
        tokens, positions = np.zeros((2, 1, self.chunk), np.int32)
        tokens[0, :len(piece)], positions[0, :len(piece)] = piece, places
        return self._given(tokens), self._given(positions)

    def _go_on(self, requests: Sequence[Request], is_alone: bool) -> Sequence[Request]:
        """Add a token to each of these: those of the step that is begun, if there is one. `is_alone`: nobody
        else is worked on, so that the next step can begin already."""
        begun, self.begun = self.begun, None
        if begun is None or not any(request in requests for request in begun.requests):
            if not requests:
                return requests
            begun = self._begin(requests)
        if is_alone and list(begun.requests) == list(requests) and all(map(self._goes_on, requests)):
            self.begun = self._begin(requests, begun.likeliest)
        going = [(request, row) for request, row in zip(begun.requests, begun.rows) if request in requests]
        if all(request.takes_likeliest for request, _ in going):
            likeliest = begun.likeliest.numpy()
            for request, row in going:
                self._hold(request)
                self._take(request, int(likeliest[row, 0]))
        else:
            scores = begun.scores.numpy()
            for request, row in going:
                self._hold(request)
                self._choose(request, scores[row])
        return [request for request, _ in going]

    def _goes_on(self, request: Request) -> bool:
        """Whether a request takes the likeliest token and then one more, unless that one ends it."""
        written = len(request.tokens) + 1
        return request.takes_likeliest and written < request.sampling.tokens and \
            len(request.prompt) + written < self.length

    def _begin(self, requests: Sequence[Request], tokens: Tensor | None = None) -> Begun:
        """Begin to add a token to each of these, and to what lies between them. `tokens` (rows, 1): what a
        step of the same requests that is not read yet finds."""
        slots = [r.slot for r in requests if r.slot is not None]
        rows = self._rows(slots)
        first = min(min(slots), self.slots - rows)
        places = [min(len(held), self.length - 1) for held in self.held[first:first + rows]]
        if tokens is None:
            last = np.zeros((rows, 1), np.int32)
            for request, slot in zip(requests, slots):
                last[slot - first] = request.tokens[-1]
            tokens = self._given(last)
        else:
            for slot in slots:
                places[slot - first] += 1
        scores, likeliest = self._next(
            tokens, self._given(np.array(places, np.int32)[:, None]), self._slot(first, rows=rows),
            [self._place(i, place) for i, place in enumerate(places)],
            self._length(max(places[slot - first] for slot in slots) + 1))
        return Begun(tuple(requests), [slot - first for slot in slots], scores, likeliest)

    def _rows(self, slots: Sequence[int]) -> int:
        """How many slots one after another a step goes through to reach all of these: a power of 2, or
        all."""
        return min(1 << (max(slots) - min(slots)).bit_length(), self.slots)

    def _hold(self, request: Request) -> None:
        """The cache has what a request's last token left there."""
        assert request.slot is not None
        self.held[request.slot].append(request.tokens[-1])

    def _choose(self, request: Request, scores: Scores) -> None:
        """The next token of a request, and whether it ends there. A mask that fails ends it, and no other."""
        try:
            self._add(request, scores)
        except MaskFailed as error:
            request.error = str(error)
            request.end(Finish.CANCELLED)

    def _add(self, request: Request, scores: Scores) -> None:
        """The next token of a request; where a mask lets nothing come, it ends."""
        if request.mask is not None:
            scores = request.mask.apply(scores)
            if scores.max() == -np.inf:
                request.end(Finish.STOP)
                return
        token = choose(scores, request.prompt + request.tokens, request.sampling, request.rng, request.tokens)
        ends = self._ends(request, token)
        if request.likelihoods is not None and not ends:
            request.noted.append(likelihood(scores, token, request.likelihoods))
        if request.mask is not None and not ends:
            request.mask.accept(token)
        self._take(request, token)

    def _ends(self, request: Request, token: int) -> bool:
        return token in self.tokenizer.ends and not request.sampling.ignore_ends

    def _take(self, request: Request, token: int) -> None:
        """Add a token to a request, which ends it where it is such a token or the last that has room."""
        request.take(token, self._ends(request, token))
        if request.finish is None and len(request.prompt) + len(request.tokens) >= self.length:
            request.end(Finish.LENGTH)

    # --- what is traced -----------------------------------------------------------------------------------

    def _given(self, array: np.ndarray[Any, Any]) -> Tensor:
        return Tensor(array, device=self.model.device, requires_grad=False)

    def _slot(self, slot: int, name: str = "slot", rows: int = 1) -> Any:
        """The first of so many slots."""
        return UOp.variable(name, 0, self.slots - rows).bind(slot) if self.slots > rows else 0

    def _place(self, row: int, place: int) -> Any:
        return UOp.variable(f"place{row}", 0, self.length - 1).bind(place)

    def _length(self, length: int, name: str = "length") -> Any:
        return UOp.variable(name, 1, self.length).bind(length)

    def _size(self, name: str, tokens: int) -> Any:
        return UOp.variable(name, 1, self.chunk).bind(tokens)

    def _scores_of_last(self, tokens: Tensor, positions: Tensor, slot: Any, place: Any, count: Any,
                        length: Any) -> Tensor:
        """Scores (1, vocabulary) after the last of `count` tokens, which are put into a slot."""
        hidden = self.model.hidden(tokens[:, :count], positions[:, :count], self.cache,
                                   Rows(slot, [place], length))
        return self.model.logits(hidden[:, count - 1]).realize()

    def _scores_of_packed(self, tokens: Tensor, positions: Tensor, count: Any, last: Tensor,
                          sequences: Sequence[Any]) -> Tensor:
        """Scores (PACKED, vocabulary) after the last tokens of sequences, each given by its start and count
        in the row of tokens, its slot, its place there and the length that it has then."""
        packed = [PackedSequence(start, size, Rows(slot, [place], length))
                  for start, size, slot, place, length in sequences]
        hidden = self.model.hidden(tokens[:, :count], positions[:, :count], self.cache, packed)
        return self.model.logits(hidden[0][last]).realize()

    def _scores_of_all(self, tokens: Tensor, positions: Tensor, slot: Any, place: Any, count: Any,
                       length: Any, rows: Tensor) -> Tensor:
        """Scores (rows, vocabulary) after some of `count` tokens, which are put into a slot."""
        hidden = self.model.hidden(tokens[:, :count], positions[:, :count], self.cache,
                                   Rows(slot, [place], length))
        return self.model.logits(hidden[0][rows]).realize()

    def _sum_of_hidden(self, tokens: Tensor, positions: Tensor, slot: Any, place: Any, count: Any,
                       length: Any) -> Tensor:
        """The sum (width,) of what the last block leaves of `count` tokens."""
        hidden = self.model.hidden(tokens[:, :count], positions[:, :count], self.cache,
                                   Rows(slot, [place], length))
        return hidden.sum((0, 1)).realize()

    def _scores_of_rows(self, tokens: Tensor, positions: Tensor, slot: Any, places: list[Any],
                        length: Any) -> tuple[Tensor, Tensor]:
        """Scores (rows, vocabulary) after one token for each of the slots from `slot` on, and the tokens
        (rows, 1) of the highest."""
        hidden = self.model.hidden(tokens, positions, self.cache, Rows(slot, places, length))
        scores = self.model.logits(hidden[:, -1]).contiguous()
        likeliest = scores.argmax(-1, keepdim=True).cast(dtypes.int32)
        Tensor.realize(scores, likeliest)
        return scores, likeliest

    def _copy_slot(self, target: Any, source: Any, tokens: Any) -> None:
        """The first tokens of a slot into another one."""
        for store in (*self.cache.keys, *self.cache.values):
            store.copy(source, target, tokens)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    count = 0
    for x, y in zip(one, other):
        if x != y:
            break
        count += 1
    return count
