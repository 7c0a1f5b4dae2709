"""What clients ask for: the JSON of OpenAI's interface, checked field by field, as prompts and settings.

A field that is not known is left alone, as OpenAI's own servers do; one that is known and cannot be is a
`BadRequest` that names it.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinygrad.frozen import frozen
from tinygrad.llm.generate import Finish
from tinygrad.llm.sampling import Sampling
from tinygrad.llm.templates import conversation
from tinygrad.llm.tokenizer import Tokenizer
from tinygrad.llm.worker import Job

MOST_CHOICES = 8
MOST_MESSAGES = 4096
MOST_STOPS = 16
MOST_LIKELIHOODS = 20
MOST_BIASES = 1024
DEFAULT_TOKENS = 256
"""For completions of a text; answers of a conversation end where the model ends them or the context does."""
NO_LIMIT = 1 << 30


class BadRequest(ValueError):
    """A request that cannot be answered, and why."""


@frozen
class Asked:
    """Prompts, one for each answer that is written, and how answers are given.

    `count`: choices of each prompt; `drawn`: how many answers these are the likeliest of; `echoed`: the
    texts of the prompts, where answers begin with them.
    """

    prompts: list[list[int]]
    sampling: Sampling
    stream: bool
    usage: bool
    likelihoods: int | None
    is_chat: bool
    count: int = 1
    drawn: int = 1
    schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    echoed: Sequence[str] = ()

    @property
    def prefix(self) -> str:
        return "chatcmpl" if self.is_chat else "cmpl"

    @property
    def object(self) -> str:
        return "chat.completion" if self.is_chat else "text_completion"

    @property
    def chunk_object(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    @property
    def noted(self) -> int | None:
        """How many of the likeliest tokens are noted for each one, None for nothing: what is shown or ranked
        by."""
        return 0 if self.likelihoods is None and self.drawn > self.count else self.likelihoods

    @property
    def notes_prompt(self) -> bool:
        """Whether the likelihoods of the prompts' tokens are shown."""
        return bool(self.echoed) and self.likelihoods is not None

    def chosen(self, jobs: Sequence[Job]) -> list[Job]:
        """The choices: of the answers of each prompt those with the likeliest tokens, the first ones where
        there are no more."""
        if self.drawn == self.count:
            return list(jobs)
        groups = (jobs[i:i + self.drawn] for i in range(0, len(jobs), self.drawn))
        return [job for group in groups for job in sorted(group, key=_unlikeliness)[:self.count]]

    def sampling_of(self, place: int) -> Sampling:
        """Choices of one prompt draw numbers of their own."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=seed + place)

    def choice(self, place: int, job: Job, likelihoods: dict[str, Any] | None) -> dict[str, Any]:
        """A whole choice."""
        assert job.request is not None
        text, finish = self.echo(place) + job.request.text, job.request.finish
        said = {"message": {"role": "assistant", "content": text,
                            "refusal": None}} if self.is_chat else {"text": text}
        return {"index": place, **said, "logprobs": likelihoods, "finish_reason": finish}

    def echo(self, place: int) -> str:
        """What a choice begins with."""
        return self.echoed[place // self.count] if self.echoed else ""

    def first_delta(self, place: int) -> dict[str, Any]:
        return {"index": place, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                "finish_reason": None}

    def delta(self, place: int, text: str, finish: Finish | None,
              likelihoods: dict[str, Any] | None) -> dict[str, Any]:
        """A piece of a choice."""
        said: dict[str, Any] = {"delta": {"content": text} if text
                                else {}} if self.is_chat else {"text": text}
        return {"index": place, **said, "logprobs": likelihoods, "finish_reason": finish}


def _unlikeliness(job: Job) -> float:
    """Less the mean of the logarithms of the probabilities of an answer's tokens."""
    assert job.request is not None
    values = [noted.value for noted in job.request.noted if noted.value is not None]
    return -sum(values) / max(len(values), 1)


# --- fields -----------------------------------------------------------------------------------------------


def _number(content: Mapping[str, Any], name: str, default: Any, low: float, high: float,
            whole: bool = False) -> Any:
    value = content.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int if whole
                                                 else (int, float)) or not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise BadRequest(f"{name} is a {kind} from {low} to {high}, not {value!r:.100}")
    return value


def _flag(content: Mapping[str, Any], name: str) -> bool:
    value = content.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} is true or false, not {value!r:.100}")
    return bool(value)


def _stops(content: Mapping[str, Any]) -> tuple[str, ...]:
    value = content.get("stop")
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > MOST_STOPS or not all(isinstance(x, str) and x
                                                                         for x in found):
        raise BadRequest(f"stop is a text or a list of at most {MOST_STOPS} texts, not {value!r:.100}")
    return tuple(found)


def _bias(content: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """What is added to the scores of tokens: an object of their numbers, as JSON has it, texts."""
    value = content.get("logit_bias")
    if value is None:
        return ()
    if not isinstance(value, Mapping) or len(value) > MOST_BIASES:
        raise BadRequest(f"logit_bias is an object of at most {MOST_BIASES} tokens, not {value!r:.100}")
    if not all(len(token) < 10 and token.isascii() and token.isdigit() for token in value):
        raise BadRequest("logit_bias has numbers of tokens as keys")
    biases = {f"logit_bias[{token}]": bias for token, bias in value.items()}
    return tuple((int(token), _number(biases, f"logit_bias[{token}]", 0.0, -100, 100)) for token in value)


def _sampling(content: Mapping[str, Any], tokens: int) -> Sampling:
    return Sampling(
        temperature=_number(content, "temperature", 1.0, 0, 2), top_p=_number(content, "top_p", 1.0, 0, 1),
        top_k=_number(content, "top_k", 0, 0, 1 << 30, whole=True), min_p=_number(content, "min_p", 0.0, 0,
                                                                                  1),
        repetition_penalty=_number(content, "repetition_penalty", 1.0, 0.01, 100),
        presence_penalty=_number(content, "presence_penalty", 0.0, -2, 2),
        frequency_penalty=_number(content, "frequency_penalty", 0.0, -2, 2), logit_bias=_bias(content),
        seed=_number(content, "seed", None, -(1 << 63), (1 << 63) - 1,
                     whole=True), stop=_stops(content), tokens=tokens)


def _refuse_what_is_not_there(content: Mapping[str, Any]) -> None:
    """Fields that would change the answer, and that are not known here."""
    for name in ("tools", "functions"):
        if content.get(name):
            raise BadRequest(f"{name} is not known here")
    for name in ("tool_choice", "function_call"):
        if content.get(name) not in (None, "none", "auto"):
            raise BadRequest(f"{name} is not known here: there are no tools")
    if content.get("modalities") not in (None, [], ["text"]):
        raise BadRequest(f"modalities is [\"text\"], not {content['modalities']!r:.100}")


def _check_model(content: Mapping[str, Any]) -> None:
    """There is one model, which answers whatever the name; what is no name is refused."""
    if not isinstance(content.get("model"), str | None):
        raise BadRequest(f"model is a text, not {content['model']!r:.100}")


def _schema(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of the JSON that response_format asks for."""
    wanted = content.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    said = wanted.get("json_schema") if kind == "json_schema" else None
    schema = said.get("schema") if isinstance(said, Mapping) else None
    if not isinstance(schema, Mapping):
        raise BadRequest("response_format is of type text, json_object, or json_schema with "
                         "a json_schema.schema")
    return schema


def _grammar(content: Mapping[str, Any]) -> str | None:
    """The grammar that the text is to follow, in the field that llama.cpp's server has for it."""
    found = content.get("grammar")
    if found is None:
        return None
    if not isinstance(found, str):
        raise BadRequest(f"grammar is a text, not {found!r:.100}")
    if _schema(content) is not None:
        raise BadRequest("an answer follows response_format or grammar, not both")
    return found


def _asked(content: Mapping[str, Any], prompts: list[list[int]], tokens: int, likelihoods: int | None,
           is_chat: bool) -> Asked:
    _refuse_what_is_not_there(content)
    _check_model(content)
    count = _number(content, "n", 1, 1, MOST_CHOICES, whole=True)
    drawn = count if is_chat else _number(content, "best_of", count, count, MOST_CHOICES, whole=True)
    if drawn > count and _flag(content, "stream"):
        raise BadRequest("the best of several answers is known when all are whole: best_of is not streamed")
    options = content.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise BadRequest("stream_options is an object")
    return Asked([prompt for prompt in prompts for _ in range(drawn)], _sampling(content, tokens),
                 _flag(content, "stream"), _flag(options, "include_usage"), likelihoods, is_chat, count,
                 drawn, _schema(content), _grammar(content))


# --- requests ---------------------------------------------------------------------------------------------


def chat_request(content: Mapping[str, Any], tokenizer: Tokenizer) -> Asked:
    """/v1/chat/completions: the conversation as the model's template writes it."""
    tokens = _number(content, "max_completion_tokens", None, 1, NO_LIMIT, whole=True) or \
        _number(content, "max_tokens", NO_LIMIT, 1, NO_LIMIT, whole=True)
    likelihoods = _number(content, "top_logprobs", 0, 0, MOST_LIKELIHOODS, whole=True)
    if not _flag(content, "logprobs"):
        if likelihoods:
            raise BadRequest("top_logprobs is for answers with logprobs: true")
        likelihoods = None
    prompt = tokenizer.encode(conversation(tokenizer, messages_of(content)))
    return _asked(content, [prompt], tokens, likelihoods, is_chat=True)


def messages_of(content: Mapping[str, Any]) -> list[dict[str, str]]:
    """Messages with a role and a text; a text may come in parts, and one that was refused as what it said."""
    messages = content.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_MESSAGES:
        raise BadRequest(f"messages is a list of 1 to {MOST_MESSAGES} messages")
    found = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{place}] has no role")
        if message["role"] in ("tool", "function") or message.get("tool_calls"):
            raise BadRequest(f"messages[{place}] is of a tool: tools are not known here")
        said = message.get("content")
        said = message.get("refusal") if said is None else said
        found.append({"role": message["role"], "content": _text(said, place)})
    return found


def _text(content: Any, place: int) -> str:
    whole = "" if content is None else content
    parts = content if isinstance(content, list) else [{"type": "text", "text": whole}]
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part[kind] if kind in ("text", "refusal") and isinstance(part.get(kind), str) else None
        if text is None:
            other = f", not {kind!r:.100}" if kind not in (None, "text", "refusal") else ""
            raise BadRequest(f"messages[{place}].content is a text, or a list of parts of type text or "
                             f"refusal{other}")
        texts.append(text)
    return "".join(texts)


def _prompts(value: Any, tokenizer: Tokenizer, name: str) -> list[list[int]]:
    """A text, texts, tokens, or lists of tokens."""
    if isinstance(value, str):
        return [tokenizer.encode(value)]
    if isinstance(value, list) and 0 < len(value) <= MOST_MESSAGES:
        if all(isinstance(item, str) for item in value):
            return [tokenizer.encode(item) for item in value]
        if all(_is_token(item) for item in value):
            return [value]
        if all(isinstance(item, list) and item and all(map(_is_token, item)) for item in value):
            return value
    raise BadRequest(f"{name} is a text, a list of texts, a list of tokens or a list of such lists")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def completion_request(content: Mapping[str, Any], tokenizer: Tokenizer) -> Asked:
    """/v1/completions: what follows a text."""
    prompts = _prompts(content.get("prompt"), tokenizer, "prompt")
    if len(prompts) > MOST_CHOICES:
        raise BadRequest(f"prompt has at most {MOST_CHOICES} texts, not {len(prompts)}")
    if content.get("suffix"):
        raise BadRequest("suffix is not known here")
    tokens = _number(content, "max_tokens", DEFAULT_TOKENS, 0, NO_LIMIT, whole=True)
    likelihoods = _number(content, "logprobs", None, 0, MOST_LIKELIHOODS, whole=True)
    asked = _asked(content, prompts, tokens, likelihoods, is_chat=False)
    if not _flag(content, "echo"):
        return asked
    said: Any = content["prompt"]
    texts = [said] if isinstance(said, str) else said
    return replace(asked, echoed=[text if isinstance(text, str) else _text_of(prompt, tokenizer)
                                  for text, prompt in zip(texts, prompts)])


def _text_of(prompt: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of tokens; a prompt with numbers that are none is refused later."""
    return tokenizer.decode([token for token in prompt if 0 <= token < 1 << 31], special=True)


def embedding_request(content: Mapping[str, Any], tokenizer: Tokenizer,
                      width: int) -> tuple[list[list[int]], bool, int]:
    """/v1/embeddings: (the texts' tokens, whether numbers are wanted as base64, how many of the `width`)."""
    _check_model(content)
    encoding = content.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadRequest(f"encoding_format is float or base64, not {encoding!r:.100}")
    count = _number(content, "dimensions", width, 1, width, whole=True)
    return _prompts(content.get("input"), tokenizer, "input"), encoding == "base64", count
