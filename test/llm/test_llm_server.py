"""The server, used by OpenAI's own client over loopback: answers equal those of the model by itself, clients
come and go, and what is wrong is an answer that says so."""
import asyncio
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"), ("starlette", "serve"),
                      ("uvicorn", "serve"),
                      ("openai", "test-models"), ("httpx", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")

import httpx  # noqa: E402
import openai  # noqa: E402
from running_server import KEY, Running  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

from tinygrad.llm import server  # noqa: E402
from tinygrad.llm.language_model import LanguageModel  # noqa: E402
from tinygrad.llm.sampling import Sampling  # noqa: E402
from tinygrad.llm.server import MOST_BODY  # noqa: E402

MESSAGES = [{"role": "user", "content": "he"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", context=256)


@pytest.fixture(scope="module")
def running(path):
    found = Running(path, api_key=KEY)
    yield found
    found.stop()
    assert not found.server.worker._thread.is_alive()


@pytest.fixture(scope="module")
def client(running):
    return running.client()


@pytest.fixture(scope="module")
def alone(path):
    model = LanguageModel(path, dtype="float32")
    return lambda prompt, **options: model.generator.run(model.request(prompt, Sampling(**options))).text


def idle(running):
    """Wait until no slot is in use."""
    until(lambda: not running.server.worker.active and not running.server.worker.waiting)


def until(is_so):
    """Wait until something is so."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- answers ----------------------------------------------------------------------------------------------


def test_a_conversation_whole_and_streamed(client, alone):
    expected = alone(MESSAGES, tokens=12)
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=12)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    pieces = list(client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0,
                                                 max_tokens=12,
                                                 stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == expected
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "e"}]}]
    again = client.chat.completions.create(model="tiny", messages=parts, temperature=0, max_tokens=12)
    assert again.choices[0].message.content == expected


def test_biases_and_penalties_choose_other_tokens(client):
    def answer(**settings):
        return client.completions.create(model="tiny", prompt="he he", temperature=0, max_tokens=6,
                                         logprobs=0, **settings).choices[0].logprobs.tokens

    first = answer()
    biased = answer(logit_bias={"65": 100})
    assert len(set(biased)) == 1 and set(biased) != set(first)
    assert len(set(answer(logit_bias={"65": 100, "66": 99.5}, presence_penalty=2))) > 1


def test_what_follows_texts_and_tokens(client, alone):
    expected = [alone(text, tokens=9) for text in ("he he", "x")]
    found = client.completions.create(model="tiny", prompt=["he he", "x"], temperature=0, max_tokens=9)
    assert [choice.text for choice in found.choices] == expected
    pieces = client.completions.create(model="tiny", prompt="he he", temperature=0, max_tokens=9, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == expected[0]
    tokens = client.completions.create(model="tiny", prompt=[5, 6, 7], temperature=0, max_tokens=2)
    assert tokens.usage.prompt_tokens == 3
    stop = expected[0][2:4]
    stopped = client.completions.create(model="tiny", prompt="he he", temperature=0, max_tokens=9, stop=stop)
    assert stopped.choices[0].text == expected[0][:expected[0].index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_answers_begin_with_prompts_that_are_echoed(client, alone):
    ask = dict(model="tiny", temperature=0, max_tokens=5, echo=True)
    texts = [text + alone(text, tokens=5) for text in ("he é", " x")]
    found = client.completions.create(prompt=["he é", " x"], n=2, **ask)
    assert [choice.text for choice in found.choices] == [texts[0], texts[0], texts[1], texts[1]]
    best = client.completions.create(prompt=["he é", " x"], n=1, best_of=2, **ask)
    assert [choice.text for choice in best.choices] == texts
    streamed = ["", ""]
    for piece in client.completions.create(prompt=["he é", " x"], stream=True, **ask):
        streamed[piece.choices[0].index] += piece.choices[0].text
    assert streamed == texts
    tokens = client.completions.create(prompt=[1, 3 + ord("h")], **(ask | dict(max_tokens=0)))
    assert tokens.choices[0].text == "<|im_start|>h"


@pytest.mark.parametrize("blocked, endpoint, body", [
    ("completion_request", "/v1/completions", {"prompt": "he"}),
    ("chat_request", "/v1/chat/completions", {"messages": MESSAGES}),
    ("embedding_request", "/v1/embeddings", {"input": "he"}),
    ("SchemaMask", "/v1/completions", {"prompt": "he", "response_format": {"type": "json_object"}})])
def test_others_are_answered_while_a_request_is_read(running, monkeypatch, blocked, endpoint, body):
    """Four megabytes of text took fourteen seconds on a busy machine, in which nobody was answered."""
    real, entered, goes_on = getattr(server, blocked), threading.Event(), threading.Event()

    def slow(*args):
        entered.set()
        assert goes_on.wait(60)
        return real(*args)

    monkeypatch.setattr(server, blocked, slow)
    headers = {"Authorization": f"Bearer {KEY}"}
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(httpx.post, f"{running.url}{endpoint}", headers=headers, timeout=120,
                                json={"model": "tiny", "max_tokens": 2, **body})
        try:
            assert entered.wait(60)
            assert httpx.get(f"{running.url}/health", timeout=20).status_code == 200
        finally:
            goes_on.set()
        assert answer.result().status_code == 200


def test_seeds_and_several_choices(client):
    ask = dict(model="tiny", messages=MESSAGES, temperature=1.5, max_tokens=10, seed=3, n=2)
    one, two = (client.chat.completions.create(**ask) for _ in range(2))
    assert [c.message.content for c in one.choices] == [c.message.content for c in two.choices]
    assert one.choices[0].message.content != one.choices[1].message.content


def test_choices_are_streamed_as_they_come(client):
    """The second came when the first was whole."""
    ask = dict(model="tiny", messages=MESSAGES, temperature=0, max_tokens=30, n=3, logit_bias={"68": 100})
    pieces = [piece.choices[0] for piece in client.chat.completions.create(**ask, stream=True)]
    told = [piece.index for piece in pieces if piece.delta.content]
    assert told.index(2) < 30 and sorted(told) == [0] * 30 + [1] * 30 + [2] * 30
    whole = client.chat.completions.create(**ask)
    for choice in whole.choices:
        assert "".join(p.delta.content or "" for p in pieces if p.index == choice.index) == \
            choice.message.content


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yz"]}},
          "required": ["a", "b"], "additionalProperties": False}


@pytest.mark.parametrize("seed", range(3))
def test_answers_follow_a_schema(client, seed):
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=2, seed=seed,
                                            max_tokens=150, response_format=wanted)
    text = answer.choices[0].message.content
    if answer.choices[0].finish_reason == "stop":
        found = json.loads(text)
        assert isinstance(found["a"], int) and found["b"] in ("x", "yz") and len(found) == 2
    assert text.startswith("{")


def test_answers_follow_a_grammar(client):
    answer = client.completions.create(model="tiny", prompt="he", temperature=2, max_tokens=20,
                                       extra_body={"grammar": 'root ::= ("ab" | "c")+ "."'}).choices[0]
    whole = answer.finish_reason == "stop"  # else it may be cut within a word
    assert re.fullmatch(r"(ab|c)+\." if whole else r"(ab|c)*a?", answer.text)


WIDE = "start: " + " | ".join(f"r{i}" for i in range(6000)) + "\n" + "\n".join(
    f'r{i}: "x" r{i} "y" | "x" "z{i}"' for i in range(6000))
"""A grammar that llguidance takes, and gives up at the first x of a text."""


def test_a_grammar_that_fails_ends_its_own_answer_and_no_other(running, client, alone):
    """All answers that were written at the time ended, with a status of 503."""
    expected = alone("he he", tokens=40, ignore_ends=True)
    before = running.server.worker.counts.failed
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, model="tiny", prompt="he he", temperature=0,
                            max_tokens=40, logit_bias={"2": -100})
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="the grammar cannot be followed: .*items") as raised:
                list(client.completions.create(model="tiny", prompt="he", max_tokens=5, stream=stream,
                                               extra_body={"grammar": WIDE}))
            assert stream or raised.value.status_code == 400
        assert other.result().choices[0].text == expected
    assert running.server.worker.counts.failed == before
    idle(running)


def test_a_prompt_counts_once_however_many_answers_it_has(client):
    one = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, seed=1)
    three = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, seed=1, n=3)
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens <= 6 and len(three.choices) == 3
    asked = dict(model="tiny", prompt=["he", "x y"], max_tokens=2, n=2, stream=True)
    last = list(client.completions.create(**asked, stream_options={"include_usage": True}))[-1]
    assert last.usage.prompt_tokens == 4


def test_the_best_of_several_answers(client):
    asked = dict(model="tiny", prompt=["he", "x"], temperature=1.5, seed=4, max_tokens=6, logprobs=0)
    every = client.completions.create(**asked, n=4)
    best = client.completions.create(**asked, n=2, best_of=4)
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    for prompt in range(2):
        drawn = every.choices[4 * prompt:4 * prompt + 4]
        drawn.sort(key=lambda choice: -np.mean(choice.logprobs.token_logprobs))
        assert [c.text for c in best.choices[2 * prompt:2 * prompt + 2]] == [c.text for c in drawn[:2]]
    assert best.usage == every.usage or best.usage.completion_tokens == every.usage.completion_tokens
    assert client.completions.create(**(asked | {"logprobs": None}), best_of=3).choices[0].logprobs is None


def test_a_schema_that_is_none_is_refused(client):
    for wanted, reason in (({"type": "json_schema", "json_schema": {"name": "s",
                                                                    "schema": {"type": "nonsense"}}},
                            "the schema cannot be followed"), ({"type": "xml"},
                                                               "response_format is of type")):
        with pytest.raises(openai.BadRequestError, match=reason):
            client.chat.completions.create(model="tiny", messages=MESSAGES, response_format=wanted)


def test_embeddings_have_length_one_and_tell_texts_apart(client):
    found = client.embeddings.create(model="tiny", input=["he he", "he he", "something else"])
    vectors = np.array([item.embedding for item in found.data])
    np.testing.assert_allclose((vectors ** 2).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    assert vectors[0] @ vectors[2] < 0.999
    plain = client.embeddings.create(model="tiny", input="he he", encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, vectors[0], atol=1e-5)
    short = client.embeddings.create(model="tiny", input="he he", dimensions=5).data[0].embedding
    np.testing.assert_allclose(short, vectors[0][:5] / np.linalg.norm(vectors[0][:5]), atol=1e-5)


def test_models_and_metrics(running, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9'"):
        client.models.retrieve("gpt-9")
    client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    text = httpx.get(f"{running.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["tinygrad_llm_tokens_total"]) >= 2
    assert float(values['tinygrad_llm_responses_total{path="/v1/chat/completions",status="200"}']) >= 1
    page = httpx.get(running.url)
    assert page.status_code == 200 and "<textarea" in page.text and "Content-Security-Policy" in page.headers
    assert httpx.get(f"{running.url}/health").json() == {"status": "ok"}


def test_many_clients_at_once_get_what_each_would_alone(running, client, alone):
    prompts = [f"{'he ' * (i % 5)}{i}" for i in range(12)]
    expected = [alone(prompt, tokens=10) for prompt in prompts]

    def ask(prompt):
        return client.completions.create(model="tiny", prompt=prompt, temperature=0,
                                         max_tokens=10).choices[0].text

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == expected
    idle(running)


# --- clients that go away, limits -------------------------------------------------------------------------


def test_a_client_that_goes_away_frees_its_slot(running, client, monkeypatch):
    step = running.server.model.generator.step

    def slow():  # so that no answer is whole before its client goes
        time.sleep(0.05)
        return step()

    monkeypatch.setattr(running.server.model.generator, "step", slow)
    counts = running.server.worker.counts
    before, read, written = counts.cancelled, counts.prompt_tokens, counts.tokens
    long = {"prompt": "he", "max_tokens": 200, "temperature": 0, "logit_bias": {"65": 100}}
    with client.completions.create(model="tiny", stream=True, **long) as stream:
        next(iter(stream))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{running.url}/v1/completions", json=long, headers={"Authorization": f"Bearer {KEY}"},
                   timeout=0.2)
    idle(running)
    assert counts.cancelled == before + 2
    assert counts.prompt_tokens > read and counts.tokens > written  # what was done for who has gone
    assert client.completions.create(model="tiny", prompt="he", max_tokens=1).choices


def test_the_key_is_asked_for(running):
    with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
        running.client("another").models.list()
    for sent, status in ((None, 401), (f"bearer {KEY}", 200), (f"Basic {KEY}", 401), (KEY, 401),
                         ("Bearer \xfc", 401)):
        headers = {} if sent is None else {"Authorization": sent.encode("latin-1")}
        assert httpx.get(f"{running.url}/metrics", headers=headers).status_code == status


def test_a_full_queue_and_a_slow_answer_are_refused(path):
    found = Running(path, slots=1, waiting=1, seconds=1.0)
    try:
        assert found.host == "127.0.0.1"
        step = found.server.model.generator.step

        def slow():
            time.sleep(0.3)
            return step()

        found.server.model.generator.step = slow
        client = found.client()

        def ask(_):
            try:
                return client.completions.create(model="tiny", prompt="he", max_tokens=200, temperature=2).id
            except openai.APIStatusError as error:
                return error.status_code, error.code

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(4)))
        assert (429, "queue_full") in answers and (504, "timeout") in answers
        stream = client.completions.create(model="tiny", prompt="he", max_tokens=200, temperature=2,
                                           stream=True)
        with pytest.raises(openai.APIError, match="took more than 1 seconds"):
            list(stream)
        idle(found)
    finally:
        found.stop()


def test_as_many_as_there_are_slots_wait_for_no_one(path):
    found = Running(path, slots=3, waiting=0)
    try:
        step = found.server.model.generator.step
        found.server.model.generator.step = lambda: (time.sleep(0.1), step())[1]

        def ask(_):
            try:
                asked = dict(model="tiny", prompt="he", max_tokens=20)
                return len(found.client().completions.create(**asked).choices)
            except openai.RateLimitError:
                return 0

        with ThreadPoolExecutor(5) as pool:
            assert sorted(pool.map(ask, range(5))) == [0, 0, 1, 1, 1]
    finally:
        found.stop()


def test_what_nobody_thought_of_is_an_answer_too(running, client, monkeypatch):
    def broken(*_):
        raise RuntimeError("half \ud800")

    monkeypatch.setattr(server, "completion_request", broken)
    with pytest.raises(openai.InternalServerError, match=r"RuntimeError: half \?"):
        client.completions.create(model="tiny", prompt="he")


def test_a_template_without_end_ends_its_own_request_and_no_other(running, client, alone, monkeypatch):
    endless = ("{% if messages[0].content == 'x' %}{% for i in range(99999) %}{% for j in range(99999) %}"
               "{% endfor %}{% endfor %}{% endif %}he")
    expected = alone("he", tokens=3)
    monkeypatch.setattr(running.server.model.tokenizer, "template", endless)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(client.chat.completions.create, model="tiny",
                              messages=[{"role": "user", "content": "x"}])
        for _ in range(3):
            found = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0,
                                                   max_tokens=3)
            assert found.choices[0].message.content == expected
            assert not slow.done()
        with pytest.raises(openai.BadRequestError, match="the chat template takes too much time"):
            slow.result()


def test_a_step_that_fails_ends_its_requests_and_not_the_server(running, client, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of something")

    monkeypatch.setattr(running.server.model.generator, "_go_on", broken)
    with pytest.raises(openai.InternalServerError, match="RuntimeError: out of something"):
        client.completions.create(model="tiny", prompt="he", max_tokens=5)
    monkeypatch.undo()
    assert client.completions.create(model="tiny", prompt="he", max_tokens=5).choices


def test_what_an_assistant_refused_is_what_it_said(client, alone):
    conversation = [*MESSAGES, {"role": "assistant", "content": "no"}, {"role": "user", "content": "h"}]
    expected = alone(conversation, tokens=5)
    for refused in (dict(content=[{"type": "refusal", "refusal": "no"}]), dict(content=None, refusal="no")):
        conversation[1] = {"role": "assistant", **refused}
        answer = client.chat.completions.create(model="tiny", messages=conversation, temperature=0,
                                                max_tokens=5)
        assert answer.choices[0].message.content == expected


# --- what is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path_, body, status, reason", [
    ("chat/completions", b"{", 400, "the request is not JSON"),
    ("chat/completions", b"[1]", 400, "a JSON object, not a list"),
    ("chat/completions", b"\xff\xfe", 400, "not JSON"),
    ("chat/completions", b"[" * 100000, 400, "not JSON"),
    ("chat/completions", {}, 400, "messages is a list"),
    ("chat/completions", {"messages": []}, 400, "messages is a list"),
    ("chat/completions", {"messages": [{"content": "x"}]}, 400, r"messages\[0\] has no role"),
    ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, 400, "content is a text"),
    ("chat/completions", {"messages": [{"role": "user", "content": False}]}, 400, "content is a text"),
    ("chat/completions", {"messages": MESSAGES, "stream_options": {"include_usage": "no"}}, 400,
     "include_usage is true or false"),
    ("chat/completions", {"messages": MESSAGES, "temperature": "hot"}, 400,
     "temperature is a number from 0 to 2"),
    ("chat/completions", {"messages": MESSAGES, "n": 1000000}, 400, "n is a whole number from 1 to 8"),
    ("chat/completions", {"messages": MESSAGES, "stop": [""]}, 400, "stop is a text"),
    ("chat/completions", {"messages": MESSAGES, "stream": "yes"}, 400, "stream is true or false"),
    ("chat/completions", {"messages": MESSAGES, "tools": [{}]}, 400, "tools is not known here"),
    ("chat/completions", {"messages": MESSAGES, "tool_choice": "required"}, 400, "there are no tools"),
    ("chat/completions", {"messages": MESSAGES, "modalities": ["text", "audio"]}, 400, "modalities is"),
    ("chat/completions", {"messages": [{"role": "tool", "content": "3"}]}, 400, r"is of a tool"),
    ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "is of a tool"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
     "parts of type text or refusal, not 'image_url'"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, 400,
     "parts of type text or refusal"),
    ("chat/completions", {"messages": MESSAGES, "max_tokens": 0}, 400, "max_tokens is a whole number from 1"),
    ("chat/completions", {"messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs is for answers with"),
    ("completions", {"prompt": "h", "best_of": 2, "n": 3}, 400, "best_of is a whole number from 3 to 8"),
    ("completions", {"prompt": "h", "best_of": 2, "stream": True}, 400, "best_of is not streamed"),
    ("completions", {"prompt": "h", "logit_bias": [1]}, 400, "logit_bias is an object"),
    ("completions", {"prompt": "h", "logit_bias": {"x": 1}}, 400, "logit_bias has numbers of tokens as keys"),
    ("completions", {"prompt": "h", "logit_bias": {"7": 101}}, 400,
     r"logit_bias\[7\] is a number from -100 to 100"),
    ("completions", {"prompt": "h", "model": 3}, 400, "model is a text, not 3"),
    ("embeddings", {"input": "h", "model": ["a"]}, 400, r"model is a text, not \['a'\]"),
    ("completions", {"prompt": "h", "logit_bias": {"260": 1}}, 400, "tokens are numbers from 0 to 259"),
    ("completions", {"prompt": "h", "presence_penalty": 3}, 400, "presence_penalty is a number from -2 to 2"),
    ("completions", {"prompt": {"a": 1}}, 400, "prompt is a text"),
    ("completions", {"prompt": "h", "suffix": "x"}, 400, "suffix is not known here"),
    ("completions", {"prompt": [-1, 1 << 70], "echo": True}, 400, "tokens are numbers from 0 to 259"),
    ("completions", {"prompt": [260]}, 400, "tokens are numbers from 0 to 259"),
    ("completions", {"prompt": [-1]}, 400, "tokens are numbers from 0 to 259"),
    ("completions", {"prompt": "he" * 400}, 400,
     "the prompt has 400 tokens; the context of 256 has room for 255"),
    ("completions", {"prompt": ""}, 400, "the prompt has no tokens"),
    ("completions", b'{"prompt": "a\\ud800"}', 400, "the text is no Unicode"),
    ("chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "no Unicode"),
    ("completions", {"prompt": "h", "grammar": "root ::= ("}, 400, "the grammar cannot be followed"),
    ("completions", {"prompt": "h", "grammar": 3}, 400, "grammar is a text, not 3"),
    ("completions", {"prompt": "h", "grammar": "", "response_format": {"type": "json_object"}}, 400,
     "not both"),
    ("embeddings", {"input": "x", "dimensions": 33}, 400, "dimensions is a whole number from 1 to 32"),
    ("embeddings", {"input": []}, 400, "input is a text"),
    ("embeddings", {"input": "x", "encoding_format": "hex"}, 400, "encoding_format is float or base64"),
    ("completions", b" " * (MOST_BODY + 1), 413, "at most 4194304 bytes"),
    ("nothing", {}, 404, "Not Found"),
])
def test_a_request_that_cannot_be_answered_says_why(running, path_, body, status, reason):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(f"{running.url}/v1/{path_}", content=content,
                        headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert re.search(reason, error["message"]), error


@pytest.mark.parametrize("goes", [True, False])
def test_a_request_that_does_not_come_whole_is_no_failure(running, monkeypatch, caplog, goes):
    monkeypatch.setattr("tinygrad.llm.server.BODY_SECONDS", 60.0 if goes else 0.1)
    url = httpx.URL(running.url)
    before = dict(running.server.statuses)
    with socket.create_connection((url.host, url.port), timeout=60) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
                       "Content-Length: 99\r\n\r\n{".encode())
        if not goes:
            assert client.recv(999).startswith(b"HTTP/1.1 408 ")
    key = "/v1/completions", 499 if goes else 408
    until(lambda: running.server.statuses.get(key, 0) == before.get(key, 0) + 1)
    assert not caplog.records


FIELDS = st.dictionaries(
    st.sampled_from(["messages", "prompt", "input", "temperature", "max_tokens", "stop", "stream", "n",
                     "seed",
                     "logprobs", "top_logprobs", "stream_options", "response_format"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner,
                                                                             max_size=3),
                 max_leaves=6))


@given(st.sampled_from(["chat/completions", "completions", "embeddings"]), FIELDS | st.binary(max_size=40))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_ends_the_server(running, path_, body):
    content = body if isinstance(body, bytes) else json.dumps({"max_tokens": 2} | body).encode()
    answer = httpx.post(f"{running.url}/v1/{path_}", content=content,
                        headers={"Authorization": f"Bearer {KEY}"},
                        timeout=60)
    assert answer.status_code in (200, 400)
    assert httpx.get(f"{running.url}/health").status_code == 200


def test_clients_killed_at_random_leave_nothing_behind(running):
    async def client(number):
        rng = np.random.default_rng(number)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as http:
            for _ in range(3):
                ask = {"prompt": "he " * int(rng.integers(1, 30)), "max_tokens": 40,
                       "stream": bool(rng.random() < 0.5)}
                task = asyncio.ensure_future(http.post(f"{running.url}/v1/completions", json=ask))
                await asyncio.sleep(float(rng.random()) * 0.2)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def all_of_them():
        await asyncio.gather(*(client(number) for number in range(12)))

    asyncio.run(all_of_them())
    idle(running)
    assert running.server.worker._jobs == {}


def test_a_method_that_a_path_has_not_is_answered_with_those_that_it_has(running):
    answer = httpx.get(f"{running.url}/v1/completions", timeout=60)
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json()["error"]["message"] == "Method Not Allowed"
