"""Where text is cut before the merges, as a GGUF file's name of the rules says: beside the expressions of the
models' own tokenizer.json, run by the `regex` package, and beside llama.cpp.

llama.cpp writes some of these expressions as others that its engine can run, and cuts elsewhere where they
differ: what may differ is said here.
"""
import json
import random
import unicodedata
import urllib.request

import pytest

pytest.importorskip("tokenizers", reason="tokenizers is in the extra llm")

from tiny_models import letters, write_tiny

from tinygrad.llm.checkpoint import read_checkpoint
from tinygrad.llm.tokenizer import _CUTS, _cutters, tokenizer_of

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LONG, _END = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PUBLISHED = {
    "tekken": rf"{_LONG}{_UPPER}*{_LOWER}+|{_LONG}{_UPPER}+{_LOWER}*|\p{{N}}|{_END}",
    "gpt-4o": rf"{_LONG}{_UPPER}*{_LOWER}+{_SHORT}|{_LONG}{_UPPER}+{_LOWER}*{_SHORT}|\p{{N}}{{1,3}}|{_END}"}
"""Of Mistral NeMo and of o200k_base, the vocabulary of GPT-4o; Llama 4 has that of GPT-4o."""
MARKS = "\u0301\u0308\u0323\u0e31\u0e49\u093f\u094d\u0902\u064e\u0651\u05b0\u20dd\u0345\ufe0f\u1ab0"
ALPHABETS = [
    "abcXYZ 'sTRe\n/.,!12", f"éÜßñ aB{MARKS[:4]}", "กขค ั้", "नमस्ते दुनिया",
    "שָׁלוֹם עולם", "مَرْحَبًا", "你好\uff0c世界 ab12",
    "ǅǈʰˀªº xX", "①²Ⅷ½ 12a", "🎉👍🏽\ufe0f\u200d ab\n\n  \t\r\n", "\u00a0\u3000\u2028 ab\t\n",
    "한국어 각 \u1100\u1161", f"{MARKS} aB1.", "\u0391\u03b9\u0345 Σς'S'll",
    "don't I'LL we've'd 'T 1234567 /x// \r\n/"]


def texts():
    rng = random.Random(1)
    fixed = ["I'll pay `$1234567", "DON'T don't Don'T", "/path/to\n\n//x", "e\u0301tude", " \u0301a",
             "a \u0301"]
    return fixed + ["".join(rng.choice(letters_) for _ in range(rng.randint(1, 14)))
                    for letters_ in ALPHABETS for _ in range(30)]


@pytest.mark.parametrize("pre", PUBLISHED)
def test_text_is_cut_by_the_published_expression(pre):
    regex = pytest.importorskip("regex", reason="regex comes with transformers")
    cut = _cutters(_CUTS[pre])[0]
    for text in texts():
        pieces = [text[slice(*place)] for _, place in cut.pre_tokenize_str(text)]
        assert pieces == [found.group() for found in regex.finditer(PUBLISHED[pre], text)]


def is_cut_elsewhere(pre, text):
    """Whether llama.cpp may cut a text in another place than the models' own expressions: it knows no marks
    among letters and no case but of a to z, and white space is never within a range of characters."""
    if _CUTS[pre] in (_CUTS["tekken"], _CUTS["gpt-4o"]):
        return any(unicodedata.category(letter)[0] in "LM" and not letter.isascii() for letter in text)
    return pre.startswith(("deepseek-llm", "deepseek-coder")) and any(x in text for x in "\u3000\u2028")


NAMES = sorted(_CUTS.keys() - {"gpt2"})  # which llama.cpp calls gpt-2


@pytest.mark.parametrize("pre", [
    pre if pre in ("default", "gpt-4o", "qwen2") else pytest.param(pre, marks=pytest.mark.slow)
    for pre in NAMES])
def test_tokens_are_those_of_llama_cpp_where_it_follows_the_expression(pre, tmp_path):
    """Merges of all pairs of bytes, so that tokens show where text is cut."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    merges = [f"{one} {other}" for one in letters() for other in letters()]
    path = str(write_tiny(tmp_path / "tiny.gguf", layers=1, pre=pre, merges=merges))
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.warmup = path, 64, False
    parameters.n_parallel = parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    own = tokenizer_of(read_checkpoint(path))
    for text in texts():
        if is_cut_elsewhere(pre, text):
            continue
        body = json.dumps({"content": text, "add_special": False}).encode()
        request = urllib.request.Request(f"{server.listening_address}/tokenize", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["tokens"] == own.encode(text, begin=False), text
