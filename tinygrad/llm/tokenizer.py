"""Text to tokens and back, as a checkpoint says: by the `tokenizers` library, from GGUF metadata or
tokenizer.json.

GGUF files hold the vocabulary and the merges or scores; the rules before the merges (where text is cut) they
only name. `_CUTS` has the rules of the names in use. A vocabulary that does not fit the model is an error.
"""
from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from tinygrad.llm.checkpoint import Checkpoint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens in GGUF files."""
TURN_ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>",
             "<|end_of_text|>", "<EOT>")
"""Tokens after which a model has said what it has to say, besides those that the checkpoint names."""

_APOSTROPHES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_WITH_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
           rf"{_REST_WITH_SLASH}")
_GPT4O = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_APOSTROPHES}?|"
          rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_APOSTROPHES}?|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}")
_SEED = _QWEN2.replace(r"[\r\n]*", "", 1)
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A byte that is a token by itself, in SentencePiece's vocabularies."""
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_LETTERS = {chr(b): b for b in _PRINTED} | {
    chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in _PRINTED)}
"""The letters by which vocabularies of bytes (GPT-2) write the 256 bytes."""
_GPT2, _DIGITS = "gpt2", "digits"
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", "[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _WORDS, "[0-9][0-9][0-9]")
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK = ("[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
             "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", _HAN, r"\p{N}+")
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")
_DEEPSEEK3 = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
              r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
              r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CUTS: dict[str, str | tuple[str, ...]] = {
    "default": _DEFAULT, "falcon": _FALCON, "deepseek-llm": _DEEPSEEK, "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3), "viking": (_BLOOM, r"\p{N}"),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    **dict.fromkeys(("gpt-2", "gpt2", "olmo", "phi-2", "mpt", "jais", "trillion", "gigachat", "a.x-4.0",
                     "mellum", "exaone4", "granite-docling"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
                     "mellum2"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "midm-2.0", "dbrx",
                     "smaug-bpe", "pixtral", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "kormo", "f2llmv2",
                     "solar-open", "grok-2"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O),
    "tekken": _TEKKEN, "seed-coder": _SEED, "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "midm-2.0", "pixtral",
                "tekken")
"""Rules with which a word that is a token is not merged of its parts, and a token begins a text unless the
file says otherwise."""


class Tokenizer:
    """A `tokenizers.Tokenizer`, the tokens that begin and end a text, and the template of conversations."""

    def __init__(self, inner: tokenizers.Tokenizer, begin: int | None, ends: Iterable[int], template: str
                 | None,
                 adds_begin: bool, variables: Mapping[str, str] | None = None) -> None:
        self.inner = inner
        self.begin = begin
        self.ends = frozenset(ends)
        self.template = template
        self.adds_begin = adds_begin
        self.variables = dict(variables or {})
        self._bytes: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        return int(self.inner.get_vocab_size())

    def encode(self, text: str, begin: bool = True) -> list[int]:
        """The tokens of a text; special tokens are known by their names. `begin`: after the token that begins
        a text, where the model has one and the text does not begin with it. Raises ValueError for a text with
        half a character (a lone surrogate)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is no Unicode: {error.reason} at character {error.start}") from error
        ids = list(self.inner.encode(text, add_special_tokens=False).ids)
        if begin and self.adds_begin and self.begin is not None and ids[:1] != [self.begin]:
            ids.insert(0, self.begin)
        return ids

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of tokens; `special`: with the names of special tokens."""
        return str(self.inner.decode(list(ids), skip_special_tokens=not special))

    def name(self, token: int) -> str:
        """The token as text, as it is within a text: the space that some decoders strip off the first token
        belongs to it."""
        alone = self.decode([token], special=True)
        return self.decode([token, token], special=True)[len(alone):]

    def key(self, token: int) -> str:
        """The token's text where it is whole, else its bytes as OpenAI writes them: `bytes:\\xf0\\x9f`."""
        data = self.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for, which may be a part of a character."""
        if token not in self._bytes:
            found = None if token in self._added else self._as_bytes(self.inner.id_to_token(token) or "")
            self._bytes[token] = self.name(token).encode() if found is None else found
        return self._bytes[token]

    def is_special(self, token: int) -> bool:
        """Whether a token is in no text that is decoded: `decode` leaves it out."""
        return self._added.get(token, False)

    @functools.cached_property
    def _added(self) -> dict[int, bool]:
        """Tokens that are known by their names, and whether they are special. The library makes a list of
        them each time it is asked."""
        return {token: bool(added.special) for token, added in self.inner.get_added_tokens_decoder().items()}

    def _as_bytes(self, name: str) -> bytes | None:
        """The bytes that a token's name writes, if it does."""
        if isinstance(self.inner.decoder, decoders.ByteLevel) and all(x in _LETTERS for x in name):
            return bytes(_LETTERS[x] for x in name)
        return bytes([int(name[3:5], 16)]) if _BYTE.fullmatch(name) else None

    def texts(self, size: int) -> list[bytes]:
        """The bytes of the tokens 0 to `size`, none of those that are in no text: special ones, and numbers
        without a token."""
        added = self.inner.get_added_tokens_decoder()
        names = {token: name for name, token in self.inner.get_vocab(with_added_tokens=True).items()
                 if token < size and not (token in added and added[token].special)}
        found = {token: None if token in added else self._as_bytes(name) for token, name in names.items()}
        named = [token for token, text in found.items() if text is None]
        alone, twice = (self.inner.decode_batch([[token] * count for token in named],
                                                skip_special_tokens=False) for count in (1, 2))
        texts = {token: two[len(one):].encode() for token, one, two in zip(named, alone, twice, strict=True)}
        return [texts.get(token, found.get(token)) or b"" for token in range(size)]


class Stream:
    """The text of tokens that come one by one: what is sure of it, which is all but unfinished characters.

    `prompt`: tokens that they follow. Without it they begin a text, and decoders that strip a space there do.
    """

    CONTEXT = 6
    """Tokens before, with which the next are decoded: some decoders strip a space at the beginning."""
    MOST_BYTES = 4
    """Tokens that a character may take, one for each of its bytes."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.ids = self._context(prompt)
        self.whole = [0, len(self.ids)]
        """Places between characters, from where the context begins to where what was shown ends. Decoded from
        within a character on, bytes that are tokens would be no text."""

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The last tokens of a prompt, from the beginning of a character on."""
        whole = self.tokenizer.decode(prompt)
        counts = range(self.CONTEXT, self.CONTEXT + self.MOST_BYTES)
        begun = (list(prompt[-count:]) for count in counts)
        return next((ids for ids in begun if whole.endswith(self.tokenizer.decode(ids))), list(prompt))

    def push(self, token: int) -> str:
        """The text that this token adds, with what came before it and was unfinished."""
        self.ids.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._shown(text)

    def rest(self) -> str:
        """What remains unfinished, as it is."""
        return self._shown(self._text())

    def _text(self) -> str:
        return self.tokenizer.decode(self.ids[self.whole[0]:])

    def _shown(self, text: str) -> str:
        """What of a text, that of the context and all after it, was not shown yet; now it is."""
        before = self.tokenizer.decode(self.ids[self.whole[0]:self.whole[-1]])
        self.whole.append(len(self.ids))
        while self.whole[1] <= len(self.ids) - self.CONTEXT:
            del self.whole[0]
        return text[len(before):]


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a model. Raises ValueError where there is none, or none that is known or fits."""
    made = _from_gguf(checkpoint.metadata) if checkpoint.is_gguf else _from_folder(checkpoint.metadata)
    # so many tokens have numbers from 0 on in a GGUF file; a folder may leave some out, and add some that the
    # model has no embedding for (Gemma 3's of pictures): a text that names one is refused
    largest = made.size - 1 if checkpoint.is_gguf else max(
        made.inner.get_vocab(with_added_tokens=False).values(), default=-1)
    if largest >= checkpoint.config.vocabulary:
        raise ValueError(f"the tokenizer does not fit the model: it has a token {largest}, the model knows "
                         f"{checkpoint.config.vocabulary}")
    made.ends = frozenset(token for token in made.ends if 0 <= token < checkpoint.config.vocabulary)
    return made


# --- GGUF -------------------------------------------------------------------------------------------------


def _from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or not tokens:
        raise ValueError("the GGUF file has no tokenizer: tokenizer.ggml.tokens is no list of strings")
    if len(set(tokens)) != len(tokens):
        raise ValueError("the GGUF file's tokenizer has a token twice")
    types = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens)) or [NORMAL] * len(tokens)
    makers = {"gpt2": _byte_pairs, "llama": _sentence_pieces, "t5": _unigrams}
    if not isinstance(kind, str) or kind not in makers:
        raise ValueError(f"tokenizers of model {kind!r} are not known; known are {', '.join(makers)}")
    inner = makers[kind](metadata, tokens)
    special = [token for token, type in zip(tokens, types) if type in (CONTROL, UNKNOWN)]
    own = [token for token, type in zip(tokens, types) if type == USER_DEFINED]
    inner.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)
                              for token in special])
    inner.add_tokens([tokenizers.AddedToken(token, normalized=False, special=False)
                      for token in own])
    ids = {name: _id(metadata, f"tokenizer.ggml.{name}_token_id", len(tokens))
           for name in ("bos", "eos", "eot", "eom")}
    ends = {place for name, place in ids.items() if name != "bos" and place is not None}
    ends |= {tokens.index(token) for token in TURN_ENDS if token in (*special, *own)}
    template = metadata.get("tokenizer.chat_template")
    adds = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or _has_whole_words(metadata))
    variables = {f"{name}_token": tokens[place] for name, place in ids.items() if place is not None}
    return Tokenizer(inner, ids["bos"], ends, template if isinstance(template, str) else None, bool(adds),
                     variables)


def _id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    value = metadata.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < count):
        raise ValueError(f"the GGUF file says {key} is {value!r}; it has {count} tokens")
    return value


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[Any]:
    """A list of a number for each token, or nothing."""
    value = metadata.get(key, [])
    if not isinstance(value, list) or len(value) not in (0, count) \
            or not all(isinstance(x, (int, float)) for x in value):
        raise ValueError(f"the GGUF file's {key} is no list of {count} numbers")
    return value


def _cut_of(metadata: Mapping[str, Any]) -> str | tuple[str, ...]:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in _CUTS:
        raise ValueError(f"the rules {name!r} for cutting text are not known; known are {', '.join(_CUTS)}")
    return _CUTS[name]


def _has_whole_words(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS


def _byte_pairs(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """Bytes as letters, merged by a list of pairs (GPT-2)."""
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(x, str) for x in merges):
        raise ValueError("the GGUF file's tokenizer.ggml.merges is no list of pairs")
    places = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if not {2}.issuperset(map(len, pairs)):
        raise ValueError("the GGUF file's tokenizer.ggml.merges is no list of pairs")
    is_token = places.__contains__
    if not (all(map(is_token, itertools.chain.from_iterable(pairs)))
            and all(map(is_token, map("".join, pairs)))):
        lost = next(pair for pair in pairs
                    if not places.keys() >= {*pair, "".join(pair)})
        raise ValueError(f"the GGUF file's tokenizer merges {lost[0]!r} and {lost[1]!r}, "
                         "not all of which are tokens")
    inner = tokenizers.Tokenizer(BPE(places, pairs, ignore_merges=_has_whole_words(metadata)))
    inner.pre_tokenizer = pre_tokenizers.Sequence(_cutters(_cut_of(metadata)))
    inner.decoder = decoders.ByteLevel()
    return inner


def _cutters(cut: str | tuple[str, ...]) -> list[Any]:
    """What cuts a text before the merges: rules of the library, or an expression or several in turn."""
    if cut == _GPT2:
        return [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if cut == _DIGITS:
        return [pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False)]
    expressions = (cut,) if isinstance(cut, str) else cut
    return [*(pre_tokenizers.Split(tokenizers.Regex(x), "isolated") for x in expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def _scores(metadata: Mapping[str, Any], tokens: list[str]) -> list[float]:
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens))
    if not scores:
        raise ValueError("the GGUF file's tokenizer has no scores")
    return [float(score) for score in scores]


def _sentence_pieces(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """Pairs of pieces merged by the score of what they make (SentencePiece's BPE), bytes for what is
    unknown."""
    scores = _scores(metadata, tokens)
    places = {token: i for i, token in enumerate(tokens)}
    merges = [(-scores[i], places[token[:cut]], places[token[cut:]])
              for i, token in enumerate(tokens) for cut in range(1, len(token))
              if token[:cut] in places and token[cut:] in places]
    pairs = [(tokens[first], tokens[second]) for _, first, second in sorted(merges)]
    unknown = _id(metadata, "tokenizer.ggml.unknown_token_id", len(tokens)) or 0
    inner = tokenizers.Tokenizer(BPE(places, pairs, unk_token=tokens[unknown], fuse_unk=True,
                                     byte_fallback=True))
    return _with_spaces(metadata, inner)


def _unigrams(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """The likeliest pieces (SentencePiece's unigram model), bytes for what is unknown."""
    scored = list(zip(tokens, _scores(metadata, tokens)))
    unknown = _id(metadata, "tokenizer.ggml.unknown_token_id", len(tokens)) or 0
    made = _with_spaces(metadata, tokenizers.Tokenizer(Unigram(scored, unknown, byte_fallback=True)))
    before: list[Any] = []
    if metadata.get("tokenizer.ggml.precompiled_charsmap"):
        # the library's reader of such tables panics at one that lies; those in use are this form of Unicode
        before += [normalizers.Nmt(), normalizers.NFKC()]
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces"):
        before += [normalizers.Replace(tokenizers.Regex(spaces), kept)
                   for spaces, kept in ((r"\A +| +\z", ""), (" {2,}", " "))]
    made.normalizer = normalizers.Sequence([*before, made.normalizer])
    return made


def _with_spaces(metadata: Mapping[str, Any], inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Spaces as U+2581, one before the text unless the file says otherwise."""
    leading = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    before = [normalizers.Prepend("\u2581")] if leading else []
    inner.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "\u2581")])
    after = [decoders.Strip(" ", 1, 0)] if leading else []
    inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                       decoders.Fuse(),
                                       *after])
    return inner


# --- Hugging Face folders ---------------------------------------------------------------------------------


def _from_folder(metadata: Mapping[str, Any]) -> Tokenizer:
    if "tokenizer.json" not in metadata:
        raise ValueError("the model has no tokenizer: there is no tokenizer.json")
    try:
        inner = tokenizers.Tokenizer.from_str(json.dumps(metadata["tokenizer.json"]))
    except BaseException as error:  # the library raises nothing narrower, and panics with no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise ValueError(f"tokenizer.json cannot be read: {error}") from error
    said = metadata.get("special_tokens_map.json", {}) | metadata.get("tokenizer_config.json", {})
    places = inner.get_vocab(with_added_tokens=True)
    names = {kind: _content(said.get(f"{kind}_token")) for kind in ("bos", "eos", "unk", "pad")}
    ends = {places[name] for name in (*TURN_ENDS, names["eos"]) if name in places}
    for source in ("generation_config.json", "config.json"):
        listed = metadata.get(source, {}).get("eos_token_id")
        ends |= {x for x in (listed if isinstance(listed, list) else [listed]) if type(x) is int}
    first = _first_added(inner)
    begin = places.get(names["bos"]) if names["bos"] is not None else first
    adds = first is not None and first == begin
    template = metadata.get("chat_template", said.get("chat_template"))
    if isinstance(template, list):
        template = {t.get("name"): t.get("template") for t in template if isinstance(t, Mapping)
                    and isinstance(t.get("name"), str)}
    if isinstance(template, Mapping):  # by name
        template = template.get("default")
    variables = {f"{kind}_token": name for kind, name in names.items() if name is not None}
    return Tokenizer(inner, begin, ends, template if isinstance(template, str) else None, adds, variables)


def _first_added(inner: tokenizers.Tokenizer) -> int | None:
    """The token that tokenizer.json has put before every text, if there is one: what it puts after texts is
    nothing to go on from."""
    plain, added = (list(inner.encode("a", add_special_tokens=adds).ids) for adds in (False, True))
    return added[0] if len(added) > len(plain) and added[1:len(plain) + 1] == plain else None


def _content(token: Any) -> str | None:
    """The text of a token, which tokenizer_config.json gives as such or within an object."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None
