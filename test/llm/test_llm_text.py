"""Text of language models: tokenizers beside `sentencepiece` and `transformers`, chat templates, and how the
next token is chosen."""
import base64
import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is in the extra llm")
pytest.importorskip("jinja2", reason="jinja2 is in the extra llm")

from tiny_models import letters, write_tiny  # noqa: E402

from tinygrad.llm import templates  # noqa: E402
from tinygrad.llm.checkpoint import read_checkpoint  # noqa: E402
from tinygrad.llm.sampling import Sampling, choose, log_probabilities, probabilities  # noqa: E402
from tinygrad.llm.templates import conversation  # noqa: E402
from tinygrad.llm.tokenizer import Stream, Tokenizer, _from_folder, _from_gguf, tokenizer_of  # noqa: E402

TEXTS = ["", "Hello world", " two  spaces\n\n and lines\t", "Don't 1234 x=3; ß 你好 🎉",
         "hehe <|im_end|> he",
         "a" * 50, "e\u0301 \u200d"]


def bytes_of(**changes):
    """Metadata of a tokenizer of bytes."""
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.tokens": ["<|im_end|>", *letters(), "he"],
                "tokenizer.ggml.token_type": [3] + [1] * 257, "tokenizer.ggml.merges": ["h e"]}
    return metadata | changes


def pieces_of(**changes):
    """Metadata of a tokenizer of SentencePiece's kind: bytes, letters, and "▁the"."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁",
              *"abcdefghijklmnopqrstuvwxyz", "▁t", "▁th", "▁the"]
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 30,
                "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(30)],
                "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2}
    return metadata | changes


# --- tokenizers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "default",
                                 "falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3", "viking",
                                 "bloom", "seed-coder", "superbpe"])
def test_bytes_come_back_as_they_were(pre):
    tokenizer = _from_gguf(bytes_of(**{"tokenizer.ggml.pre": pre}))
    for text in TEXTS:
        ids = tokenizer.encode(text, begin=False)
        assert tokenizer.decode(ids, special=True) == text
        stream = Stream(tokenizer)
        assert "".join(map(stream.push, ids)) + stream.rest() == text.replace("<|im_end|>", "")
    assert tokenizer.encode("he<|im_end|>") == [257, 0]
    assert tokenizer.ends == {0}


@pytest.mark.parametrize("pre, pieces", [  # as llama.cpp cuts
    ("default", ["I", "'", "ll", " pay", " `", "$", "123", "456", "7"]),
    ("falcon", ["I", "'", "ll", " pay", " ", "`$", "123", "456", "7"]),
    ("deepseek-llm", ["I", "'", "ll", " pay", " `$", "1234567"]),
    ("deepseek-coder", ["I", "'", "ll", " pay", " `$", *"1234567"]),
    ("deepseek-v3", ["I", "'ll", " pay", " `$", "123", "456", "7"]),
    ("seed-coder", ["I", "'ll", " pay", " `$", *"1234567"]), ("superbpe", ["I'll pay `$", "1", "234", "567"]),
    ("bloom", ["I'll", " pay", " `$1234567"]), ("viking", ["I'll", " pay", " `$", *"1234567"])])
def test_text_is_cut_as_the_file_says(pre, pieces):
    cut = _from_gguf(bytes_of(**{"tokenizer.ggml.pre": pre})).inner.pre_tokenizer
    text = "I'll pay `$1234567"
    assert [text[slice(*place)] for _, place in cut.pre_tokenize_str(text)] == pieces


def test_half_a_character_is_refused():
    with pytest.raises(ValueError, match="no Unicode: surrogates not allowed at character 1"):
        _from_gguf(bytes_of()).encode("a\ud800")


def test_tokens_know_their_bytes():
    tokenizer = _from_gguf(bytes_of())
    assert b"".join(map(tokenizer.bytes_of, tokenizer.encode("é 🎉he"))) == "é 🎉he".encode()
    assert tokenizer.bytes_of(tokenizer.encode("é")[0]) == b"\xc3"
    assert tokenizer.bytes_of(0) == b"<|im_end|>"


def test_a_piece_has_the_space_that_it_begins_with():
    """Some decoders strip it off the first token of what they are given."""
    tokenizer = _from_gguf(pieces_of())
    tokens = tokenizer.encode(" the a🎉", begin=False)
    names = [tokenizer.name(token) for token in tokens]
    assert names == [" ", " the", " ", "a", "\ufffd", "\ufffd", "\ufffd", "\ufffd"]
    assert b"".join(map(tokenizer.bytes_of, tokens)) == "  the a🎉".encode()  # one is put before every text
    assert tokenizer.name(1) == "<s>"


@pytest.mark.parametrize("metadata", [bytes_of(), pieces_of()], ids=["bytes", "pieces"])
@pytest.mark.parametrize("alphabet", [None, "🎉é the", "你好\ufffd\0 "])
@given(st.data())
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back_token_by_token(metadata, alphabet, data):
    """Also a run of characters of several tokens each, longer than what the next are decoded with."""
    text = data.draw(st.text(max_size=30) if alphabet is None else st.text(alphabet, max_size=30))
    tokenizer = _from_gguf(metadata)
    tokens = tokenizer.encode(text)
    stream = Stream(tokenizer)
    whole = tokenizer.decode(tokens)
    assert "".join(map(stream.push, tokens)) + stream.rest() == whole
    begins = [tokenizer.decode(tokens[:i]) for i in range(len(tokens) + 1)]
    at = data.draw(st.sampled_from([i for i, begin in enumerate(begins) if not begin.endswith("\ufffd")]))
    stream = Stream(tokenizer, tokens[:at])
    assert begins[at] + "".join(map(stream.push, tokens[at:])) + stream.rest() == whole


def test_the_unknown_token_is_known_by_its_name():
    """As in llama.cpp and transformers; it is no text."""
    tokenizer = _from_gguf(pieces_of())
    tokens = tokenizer.encode("the<unk>a", begin=False)
    assert tokens.count(0) == 1 and [tokenizer.name(token) for token in tokens if token] == [" the", " ", "a"]
    assert tokenizer.is_special(0) and tokenizer.decode(tokens, special=True) == "the<unk> a"
    assert tokenizer.decode([0, 260]) == "a" and tokenizer.texts(3) == [b"", b"", b""]


def test_what_follows_a_text_keeps_the_space_it_begins_with():
    tokenizer = _from_gguf(pieces_of())
    the = tokenizer.encode("the", begin=False)
    assert Stream(tokenizer, tokenizer.encode("once 🎉🎉")).push(the[0]) == " the"
    assert Stream(tokenizer).push(the[0]) == "the"


@pytest.fixture(scope="module")
def sentences():
    rng = random.Random(0)
    words = ["the", "river", "over", "stone", "light", "morning", "walked", "slowly", "and", "again", "birds"]
    return [" ".join(rng.choice(words) for _ in range(9)) + "." for _ in range(300)]


@pytest.mark.parametrize("kind, model", [("bpe", "llama"), ("unigram", "t5")])
def test_pieces_are_those_of_sentencepiece(tmp_path, sentences, kind, model):
    library = pytest.importorskip("sentencepiece", reason="sentencepiece is in the extra test-models")
    library.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_prefix=str(tmp_path / "m"),
                                       vocab_size=285, model_type=kind, byte_fallback=True, minloglevel=2,
                                       normalization_rule_name="identity", remove_extra_whitespaces=False)
    reference = library.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    places = range(reference.get_piece_size())
    types = [2 if reference.is_unknown(i) else 3 if reference.is_control(i) else 6 if reference.is_byte(i)
             else 1
             for i in places]
    tokenizer = _from_gguf({
        "tokenizer.ggml.model": model, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.tokens": [reference.id_to_piece(i) for i in places],
        "tokenizer.ggml.scores": [reference.get_score(i) for i in places],
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True})
    for text in [*sentences[:20], "the light", "overlight stones 7", "ünder 你 the", "walked  twice"]:
        assert tokenizer.encode(text) == [1, *reference.encode(text)], text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def unigrams(folder, sentences, metadata, **options):
    """A unigram model that sentencepiece trains, and ours of its pieces; extra spaces are taken off."""
    library = pytest.importorskip("sentencepiece", reason="sentencepiece is in the extra test-models")
    library.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_prefix=str(folder / "m"),
                                       vocab_size=285, model_type="unigram", byte_fallback=True,
                                       minloglevel=2, **options)
    reference = library.SentencePieceProcessor(model_file=str(folder / "m.model"))
    places = range(reference.get_piece_size())
    return reference, _from_gguf({
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.tokens": [reference.id_to_piece(i) for i in places],
        "tokenizer.ggml.scores": [reference.get_score(i) for i in places],
        "tokenizer.ggml.remove_extra_whitespaces": True, **metadata})


def test_pieces_of_text_that_is_normalised_first(tmp_path, sentences):
    reference, tokenizer = unigrams(tmp_path, sentences, {"tokenizer.ggml.precompiled_charsmap": [0]})
    for text in ["  the  light \n", "the\tstone", "\uff54\uff48\uff45 river\u00a0\u2167", ""]:
        assert tokenizer.encode(text) == reference.encode(text), text


def test_pieces_of_text_whose_spaces_are_taken_off_and_nothing_else(tmp_path, sentences):
    reference, tokenizer = unigrams(tmp_path, sentences, {}, normalization_rule_name="identity")
    for text in ["  the  light ", "\t the stone\t", " \n the \n\n  river  \n ", "\n", "  "]:
        assert tokenizer.encode(text) == reference.encode(text), text


@pytest.mark.parametrize("pre, whole", [("llama-bpe", True), ("tekken", True), ("pixtral", True),
                                        ("dbrx", False), ("smaug-bpe", False), ("qwen2", False)])
def test_words_that_are_tokens_and_what_begins_a_text_are_as_the_rules_say(pre, whole):
    """OLMo 2 and Phi 4 cut as Llama 3 does, and merge as GPT-2 does: a token that no merge makes stays one of
    its letters, and no token begins a text that the file does not say."""
    metadata = bytes_of(**{"tokenizer.ggml.pre": pre, "tokenizer.ggml.bos_token_id": 0})
    metadata["tokenizer.ggml.tokens"] += ["hey"]
    metadata["tokenizer.ggml.token_type"] += [1]
    tokenizer = _from_gguf(metadata)
    y = tokenizer.encode("y", begin=False)
    assert tokenizer.encode("hey") == ([0, 258] if whole else [257, *y])
    assert _from_gguf(metadata | {"tokenizer.ggml.add_bos_token": True}).encode("y") == [0, *y]


def test_tokenizer_json_gives_what_transformers_gives(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra test-models")
    own = _from_gguf(bytes_of(**{"tokenizer.ggml.pre": "llama-bpe"}))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=own.inner, eos_token="<|im_end|>")
    fast.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    fast.save_pretrained(tmp_path)
    read = read_folder(tmp_path)
    for text in TEXTS:
        assert read.encode(text) == fast.encode(text)
    assert read.ends == {0}
    messages = [dict(role="user", content="Hi <b>"), dict(role="assistant", content="'yes'")]
    assert conversation(read, messages) == fast.apply_chat_template(messages, tokenize=False,
                                                                    add_generation_prompt=True)


@pytest.mark.parametrize("template, bos, begin", [
    ("<s> $A", None, [1]), ("<s> $A", "<s>", [1]), ("<s> $A </s>", None, [1]), ("$A </s>", None, []),
    ("$A </s>", "<s>", []), (None, "<s>", []), ("<s> $A", "</s>", [])])
def test_what_tokenizer_json_puts_before_a_text(template, bos, begin):
    """Also where no tokenizer_config.json says that it begins a text."""
    inner = _from_gguf(pieces_of()).inner
    if template is not None:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
    metadata = {"tokenizer.json": json.loads(inner.to_str())}
    read = _from_folder(metadata if bos is None else metadata | {"tokenizer_config.json": {"bos_token": bos}})
    assert read.encode("the") == [*begin, *read.encode("the", begin=False)]


def test_what_ends_a_text_is_a_token_of_the_model(tmp_path):
    checkpoint = read_checkpoint(write_tiny(tmp_path / "tiny.gguf"))
    inner = json.loads(tokenizer_of(checkpoint).inner.to_str())
    metadata = {"tokenizer.json": inner, "config.json": {"eos_token_id": -1},
                "generation_config.json": {"eos_token_id": [2, 260, True]}}
    assert tokenizer_of(replace(checkpoint, path=tmp_path, metadata=metadata)).ends == {0, 2}


def test_a_damaged_tokenizer_json_is_an_error():
    """The library panics at tables that lie, which is no Exception."""
    inner = json.loads(_from_gguf(pieces_of()).inner.to_str())
    lie = base64.b64encode(b"\xff" * 8).decode()
    for damaged in (inner | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": lie}},
                    inner | {"model": 3}):
        with pytest.raises(ValueError, match="tokenizer.json cannot be read"):
            _from_folder({"tokenizer.json": damaged})


def test_templates_by_name():
    metadata = {"tokenizer.json": json.loads(_from_gguf(pieces_of()).inner.to_str())}
    named = [[], {"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    assert _from_folder(metadata | {"tokenizer_config.json": {"chat_template": named}}).template == "b"
    assert _from_folder(metadata | {"tokenizer_config.json": {"chat_template": named[:2]}}).template is None


def read_folder(path):
    from tinygrad.llm.checkpoint import _json
    names = ("tokenizer.json", "tokenizer_config.json")
    metadata = {name: _json(path / name) for name in names}
    template = path / "chat_template.jinja"
    if template.exists():
        metadata["chat_template"] = template.read_text()
    return _from_folder(metadata)


@pytest.mark.parametrize("changes, reason", [
    ({"tokenizer.ggml.model": "bert"}, "tokenizers of model 'bert' are not known; known are gpt2"),
    ({"tokenizer.ggml.pre": "new"}, "the rules 'new' for cutting text are not known"),
    ({"tokenizer.ggml.model": ["gpt2"]}, r"model \['gpt2'\] are not known"),
    ({"tokenizer.ggml.pre": []}, r"the rules \[\] for cutting text are not known"),
    ({"tokenizer.ggml.tokens": 3}, "no list of strings"),
    ({"tokenizer.ggml.tokens": ["a", "a"]}, "a token twice"),
    ({"tokenizer.ggml.token_type": [1]}, "token_type is no list of 258 numbers"),
    ({"tokenizer.ggml.merges": None}, "no list of pairs"),
    ({"tokenizer.ggml.merges": ["a b c"]}, "no list of pairs"),
    ({"tokenizer.ggml.merges": ["x y"]}, "merges 'x' and 'y', not all of which are tokens"),
    ({"tokenizer.ggml.eos_token_id": 999}, "eos_token_id is 999; it has 258 tokens"),
    ({"tokenizer.ggml.model": "llama"}, "has no scores"),
])
def test_a_tokenizer_that_cannot_be_is_an_error(changes, reason):
    with pytest.raises(ValueError, match=reason):
        _from_gguf(bytes_of(**changes))


def test_a_tokenizer_that_does_not_fit_the_model_is_an_error(tmp_path):
    checkpoint = read_checkpoint(write_tiny(tmp_path / "tiny.gguf"))
    assert tokenizer_of(checkpoint).size == 260
    smaller = replace(checkpoint, config=replace(checkpoint.config, vocabulary=100))
    with pytest.raises(ValueError, match="does not fit the model: it has a token 259, the model knows 100"):
        tokenizer_of(smaller)


# --- chat templates ---------------------------------------------------------------------------------------


def with_template(template):
    made = _from_gguf(bytes_of())
    return Tokenizer(made.inner, None, (), template, False)


def test_a_template_writes_the_conversation():
    template = ("{%- for m in messages %}\n  {%- if m.role == 'tool' %}{% continue %}{% endif %}"
                "[{{ m.role }}] "
                "{{ m.content | trim }}\n{% endfor %}{{ [1, '<é>'] | tojson }}"
                "{% if add_generation_prompt %}>{% endif %}")
    messages = [dict(role="user", content=" a "), dict(role="tool", content="x")]
    assert conversation(with_template(template), messages) == '[user] a\n[1, "<é>"]>'


@pytest.mark.parametrize("template", [
    "{% for m in messages %}{% generation %}\n  {{- m.content }}\n{% endgeneration %}{% endfor %}.",
    "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}{{ 'é' | tojson(ensure_ascii=true) }}",
    "{{ tools }} {{ documents }} {{ messages | tojson(indent=2) }}"])
def test_templates_write_what_transformers_writes(template):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra test-models")
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=_from_gguf(bytes_of()).inner)
    reference.chat_template = template
    messages = [dict(role="user", content="<é> 'x'"), dict(role="assistant", content="🎉\n")]
    expected = reference.apply_chat_template(messages, tokenize=False)
    assert conversation(with_template(template), messages) == expected


@pytest.mark.parametrize("template, reason", [
    (None, "the model has no chat template"),
    ("{% for", "refuses these messages"),
    ("{{ raise_exception('only users') }}", "refuses these messages: only users"),
    ("{{ messages.append(1) }}", "refuses"),
    ("{{ ''.__class__.__mro__ }}", "refuses"),
    ("{{ 1 // 0 }}", "refuses"),
    ("{{ 'x' * 9999999999 }}", r"\* with 'x' and 9999999999 is not allowed"),
    ("{{ 9999999999 * [1] }}", r"\* with 9999999999 and \[1\] is not allowed"),
    ("{{ 9 ** 9 ** 9 ** 9 }}", "is not allowed"),
    ("{{ '%9999999999d' % 1 }}", "% with '%9999999999d' and 1 is not allowed"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ("{% for i in range(99999999) %}x{% endfor %}", "refuses"),
    ("{% for i in range(9999) %}{% for j in range(9999) %}{{ 'x' * 999 }}{% endfor %}{% endfor %}",
     "writes more than 16777216 characters"),
    # what fills memory little by little may meet the bound on time first, where pages are slow to come
    ("{{ 'x' | center(999999999) }}", "takes too much memory"),
    ("{{ 'x'.ljust(999999999) }}", "takes too much memory"),
    ("{{ ('a' * 9999999) | replace('a', 'b' * 9999999) }}", "takes too much memory"),
    ("{{ ('a\n' * 99999) | indent(99999) }}", "takes too much (time|memory)"),
    ("{{ '{:>999999999}'.format(1) }}", "takes too much memory"),
    ("{{ (['a'] * 99999) | join('b' * 99999) }}", "takes too much (time|memory)"),
    ("{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
     "takes too much (time|memory)"),
    ("{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
     "takes too much (time|memory)"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes too much time"),
    ("{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
     "{{ n.x | tojson | length }}", "takes too much (time|memory)"),
    ("{{ 7 | round(-999999999) }}", "takes too much time"),
    ("{{ lipsum(n=999999) }}", "takes too much time"),
])
def test_a_template_from_a_stranger_can_do_no_harm(template, reason):
    with pytest.raises(ValueError, match=reason):
        conversation(with_template(template), [dict(role="user", content="x")])


def test_a_process_of_templates_that_has_ended_is_replaced():
    template = with_template("{{ messages[0].content }}")
    for ends in (False, True):
        assert conversation(template, [dict(role="user", content="é\ud800\n")]) == "é\ud800\n"
        process = templates._idle[-1]
        if ends:
            process.kill()
            process.wait()
    assert conversation(template, [dict(role="user", content="x")]) == "x"
    assert process not in templates._idle


def test_a_conversation_is_what_json_can_say():
    with pytest.raises(ValueError, match="messages are what JSON can say: Object of type object"):
        conversation(with_template("x"), [dict(role="user", content=object())])


# --- sampling ---------------------------------------------------------------------------------------------

SCORES = np.array([1.0, 3.0, 2.0, -1.0, 2.5], np.float32)


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def test_logarithms_of_probabilities():
    np.testing.assert_allclose(log_probabilities(SCORES), np.log(softmax(SCORES.astype(np.float64))),
                               rtol=1e-12)


@pytest.mark.parametrize("settings_, kept", [
    (dict(), [1, 4, 2, 0, 3]), (dict(top_k=2), [1, 4]), (dict(top_p=0.8), [1, 4, 2]), (dict(top_p=0.3), [1]),
    (dict(top_p=0), [1]), (dict(min_p=0.5), [1, 4]), (dict(min_p=1), [1]), (dict(top_k=99), [1, 4, 2, 0, 3]),
    (dict(top_k=4, top_p=0.9, min_p=0.3), [1, 4, 2])])
@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_what_is_kept_has_its_share(settings_, kept, temperature):
    tokens, shares = probabilities(SCORES, Sampling(temperature=temperature, **settings_))
    assert tokens.tolist() == kept
    np.testing.assert_allclose(shares, softmax(SCORES[kept].astype(np.float64) / temperature), rtol=1e-6)


def sorted_whole(scores, sampling):
    """What `probabilities` gives, by sorting all tokens."""
    kept = np.argsort(-scores, kind="stable")[:sampling.top_k or len(scores)]
    kept = kept[scores[kept] > -np.inf]
    shares = softmax(scores[kept].astype(np.float64) / sampling.temperature)
    few = len(kept) if sampling.top_p == 1 else int(np.searchsorted(np.cumsum(shares), sampling.top_p)) + 1
    few = min(few, int((shares >= sampling.min_p * shares[0]).sum()))
    return kept[:few], shares[:few] / shares[:few].sum()


@pytest.mark.parametrize("temperature", [0.2, 1.0, 50.0])
@pytest.mark.parametrize("settings_", [dict(), dict(top_k=700), dict(top_p=0.95),
                                       dict(top_p=0.999, top_k=3000),
                                       dict(min_p=0.01), dict(min_p=1e-6, top_p=0.99)])
@pytest.mark.parametrize("masked", [0, 4990])
def test_few_of_many_tokens_are_those_of_sorting_all(temperature, settings_, masked):
    rng = np.random.default_rng(3)
    scores = rng.normal(0, 3, 5000).round(1).astype(np.float32)  # with ties
    scores[rng.permutation(5000)[:masked]] = -np.inf
    sampling = Sampling(temperature=temperature, **settings_)
    tokens, shares = sorted_whole(scores, sampling)
    found = probabilities(scores, sampling)
    assert found[0].tolist() == tokens.tolist()
    np.testing.assert_allclose(found[1], shares, rtol=1e-9)
    for draw in rng.random(20):
        some, parts = probabilities(scores, sampling, draw)
        at = int(np.searchsorted(np.cumsum(parts), draw))
        assert some[at] == tokens[int(np.searchsorted(np.cumsum(shares), draw))]


def test_draws_follow_the_probabilities():
    sampling = Sampling(temperature=0.7)
    rng = np.random.default_rng(0)
    counts = np.bincount([choose(SCORES, [], sampling, rng) for _ in range(4000)], minlength=5)
    expected = softmax(SCORES / 0.7) * 4000
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected + 1)).all()


@pytest.mark.filterwarnings("error")
def test_a_temperature_near_0_takes_the_likeliest():
    sampling = Sampling(temperature=1e-310)
    assert {choose(SCORES, [], sampling, np.random.default_rng(i)) for i in range(9)} == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_an_error(wrong, temperature):
    with pytest.raises(ValueError, match="scores of the next token are no numbers"):
        choose(np.array([1.0, wrong, 2.0]), (), Sampling(temperature=temperature), np.random.default_rng(0))


def test_a_seed_gives_the_same_tokens_again():
    sampling = Sampling(temperature=1.0, seed=-7)
    one, two = sampling.generator(), sampling.generator()
    assert [choose(SCORES, [], sampling, one) for _ in range(50)] == [
        choose(SCORES, [], sampling, two) for _ in range(50)]


def test_greedy_takes_the_likeliest_and_a_penalty_lowers_what_was_said():
    rng = np.random.default_rng(0)
    assert choose(SCORES, [1], Sampling(), rng) == 1
    assert choose(SCORES, [1], Sampling(repetition_penalty=1.5), rng) == 4
    assert choose(SCORES, [1, 0, 0], Sampling(repetition_penalty=1.5, penalty_window=2), rng) == 1
    assert choose(-SCORES, [3, 0], Sampling(repetition_penalty=4.0), rng) == 3


def test_tokens_of_the_answer_lose_for_being_there_and_for_each_time():
    rng = np.random.default_rng(0)
    scores = np.array([1.0, 3.0, 2.6, 2.0])
    assert choose(scores, [1, 1], Sampling(presence_penalty=1), rng) == 1  # the prompt does not count
    assert choose(scores, [1], Sampling(presence_penalty=1), rng, [1]) == 2
    assert choose(scores, [1, 1], Sampling(frequency_penalty=0.3), rng, [1]) == 1
    assert choose(scores, [1, 1], Sampling(frequency_penalty=0.3), rng, [1, 1]) == 2
    assert choose(scores, [0], Sampling(presence_penalty=-2, frequency_penalty=-0.1), rng, [0]) == 0


def test_a_bias_adds_to_the_score_of_a_token():
    rng = np.random.default_rng(0)
    scores = np.array([1.0, 3.0, 2.6, 2.0])
    assert choose(scores, [], Sampling(logit_bias=((3, 1.5), (1, -0.5))), rng) == 3
    drawn = {choose(scores, [], Sampling(temperature=1, logit_bias=((1, -100),)), rng) for _ in range(200)}
    assert drawn == {0, 2, 3}


@pytest.mark.parametrize("wrong, reason", [
    (dict(presence_penalty=3), "presence_penalty is a number from -2 to 2"),
    (dict(logit_bias=((1, 101),)), "logit_bias gives tokens numbers"),
    (dict(temperature=-1), "temperature is a number from 0"), (dict(top_p=1.5),
                                                               "top_p is a number from 0 to 1"),
    (dict(top_p=math.nan), "top_p is"), (dict(repetition_penalty=0),
                                         "repetition_penalty is a number above 0"),
    (dict(stop=("",)), "at least one character"), (dict(tokens=-1), "tokens is a number from 0")])
def test_settings_that_make_no_sense_are_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        Sampling(**wrong)
