"""Likelihoods of tokens as OpenAI's client gets them from the server: of answers, and of prompts that are
echoed."""
import numpy as np
import pytest

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("llguidance", "llm"), ("starlette", "serve"),
                      ("uvicorn", "serve"), ("openai", "test-models"), ("httpx", "test-models")):
    pytest.importorskip(module, reason=f"{module} is in the extra {extra}")

from running_server import Running  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

from tinygrad import Tensor  # noqa: E402
from tinygrad.llm.language_model import LanguageModel  # noqa: E402
from tinygrad.llm.sampling import log_probabilities  # noqa: E402
from tinygrad.llm.server import TextPlaces  # noqa: E402

MESSAGES = [{"role": "user", "content": "he"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", context=256)


@pytest.fixture(scope="module")
def running(path):
    found = Running(path)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def test_likelihoods_of_tokens_that_a_schema_lets_come(client):
    """Logarithms of 0 were among the likeliest, which JSON cannot say."""
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["x", "yz"]}}}
    asked = dict(model="tiny", messages=MESSAGES, max_tokens=9, response_format=wanted, logprobs=True,
                 top_logprobs=5)
    found = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [best.token for best in found[0].top_logprobs] == ['"']
    assert {best.token for best in found[1].top_logprobs} == {"x", "y"}
    streamed = [x for piece in client.chat.completions.create(**asked, stream=True)
                if piece.choices[0].logprobs for x in piece.choices[0].logprobs.content]
    assert all(np.isfinite(best.logprob) for x in streamed for best in x.top_logprobs)


def test_likelihoods(client):
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=3,
                                          logprobs=True,
                                          top_logprobs=2)
    for found in chat.choices[0].logprobs.content:
        assert len(found.top_logprobs) == 2 and found.logprob == found.top_logprobs[0].logprob < 0
    text = client.completions.create(model="tiny", prompt="he", temperature=0, max_tokens=3, logprobs=2)
    assert len(text.choices[0].logprobs.token_logprobs) == len(text.choices[0].logprobs.top_logprobs) == 3


def test_likelihoods_say_what_bytes_tokens_are_and_where(client):
    half = {"logit_bias": {str(3 + 0xc3): 100}}  # a byte that begins a character
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=2,
                                          logprobs=True, **half)
    assert [found.bytes for found in chat.choices[0].logprobs.content] == [[0xc3], [0xc3]]
    assert [found.token for found in chat.choices[0].logprobs.content] == ["\\xc3", "\\xc3"]
    asked = dict(model="tiny", prompt="he", temperature=0, max_tokens=4, logprobs=0,
                 logit_bias={str(3 + ord("a")): 100})
    assert client.completions.create(**asked).choices[0].logprobs.text_offset == [0, 1, 2, 3]
    pieces = [piece.choices[0].logprobs for piece in client.completions.create(**asked, stream=True)]
    assert [x for piece in pieces for x in piece.text_offset] == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def scored(path):
    """Logarithms of the probabilities of all tokens after each of some, all computed at once."""
    model = LanguageModel(path, dtype="float32").generator.model
    return lambda tokens: [log_probabilities(row) for row in model(Tensor([tokens])).numpy()[0]]


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_prompts_that_are_echoed_have_likelihoods(client, running, scored, tokens, stream):
    """The first one has none. Prompts are read in pieces of 64; what a slot holds already is read again."""
    prompts = ["he é " * 25, "x", "he é " * 25]
    asked = dict(model="tiny", prompt=prompts, temperature=0, max_tokens=tokens, echo=True, logprobs=2)
    found = {place: [] for place in range(3)}
    for piece in client.completions.create(**asked, stream=True) if stream else [
            client.completions.create(**asked)]:
        for choice in piece.choices:
            found[choice.index].append(choice)
    tokenizer = running.server.model.tokenizer
    for place, prompt in enumerate(prompts):
        text = "".join(choice.text for choice in found[place])
        assert text.startswith(prompt)
        said, values, best, offsets = (
            [x for choice in found[place] if choice.logprobs for x in getattr(choice.logprobs, name)]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
        read = tokenizer.encode(prompt)
        assert said[:len(read)] == [tokenizer.key(token) for token in read]
        assert values[0] is None and best[0] is None
        assert offsets == [len(b"".join(map(tokenizer.bytes_of, read[:at])).decode(errors="ignore"))
                           for at in range(len(read))] + offsets[len(read):]
        after = scored(read)
        for at, token in enumerate(read[1:], 1):
            assert values[at] == pytest.approx(after[at - 1][token], abs=1e-4)
            top = sorted(after[at - 1])[-2:]
            assert sorted(best[at].values())[-2:] == pytest.approx(top, abs=1e-4)
            assert best[at][said[at]] == values[at]
        assert len(values) - len(read) <= tokens and all(value <= 0 for value in values[1:])
        assert found[place][-1].finish_reason in (("length",) if tokens == 0 else ("length", "stop"))


def test_a_token_that_begins_texts_has_no_place_in_an_echo():
    """`<s>`, and the space before texts, are tokens of the prompt and not of its text."""
    places = TextPlaces(len("he") - len("<s> he"))
    assert [places.next(token) for token in (b"<s>", b" ", b"he", b"!")] == [0, 0, 0, 2]


def test_special_tokens_of_an_answer_take_no_place_in_it(client):
    """They moved what came after, though the text leaves them out."""
    begin, letter = 1, 3 + ord("a")
    asked = dict(model="tiny", prompt="<|im_start|>h", max_tokens=60, temperature=2, seed=1, logprobs=0,
                 frequency_penalty=2, logit_bias={str(begin): 100, str(letter): 100})
    for echo in (False, True):
        found = client.completions.create(**asked, echo=echo).choices[0]
        assert {"<|im_start|>", "a"} == set(found.logprobs.tokens[2 * echo:])
        text = "<|im_start|>h" * echo
        assert found.text == text + "a" * found.logprobs.tokens.count("a")
        for token, place in list(zip(found.logprobs.tokens, found.logprobs.text_offset))[2 * echo:]:
            assert place == len(text)
            text += token * (token == "a")


def test_tokens_that_are_parts_of_characters_are_told_apart(client):
    """All had the same name, so that but one of them was among the likeliest, and moved what came after."""
    ahead = {str(3 + byte): 100 for byte in (0xc3, 0xc4, 0xc5)}
    asked = dict(model="tiny", prompt="he", temperature=0, max_tokens=4, logprobs=20)
    found = client.completions.create(**asked, logit_bias={str(3 + 0xc3): 100}).choices[0].logprobs
    assert found.tokens == ["bytes:\\xc3"] * 4 and found.text_offset == [0, 0, 1, 2]
    assert all(token in best and 20 <= len(best) <= 21 and best[token] == value for token, value, best in
               zip(found.tokens, found.token_logprobs, found.top_logprobs))
    drawn = client.completions.create(**(asked | {"temperature": 2}), logit_bias=ahead).choices[0].logprobs
    assert set(drawn.tokens) <= {f"bytes:\\x{byte:x}" for byte in (0xc3, 0xc4, 0xc5)}
