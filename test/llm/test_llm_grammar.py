"""Grammars: what may come next is what a plain recogniser says of every token; bad ones are refused at the
call, and none takes long or much memory."""
import json
import random
import re
import string
import time

import numpy as np
import pytest

for module in ("tokenizers", "jinja2", "llguidance"):
    pytest.importorskip(module, reason=f"{module} is in the extra llm")

from plain_recogniser import Part, PlainRecogniser, random_grammar, written  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

from tinygrad.llm.checkpoint import read_checkpoint  # noqa: E402
from tinygrad.llm.gbnf import MOST_DEPTH, rules_of  # noqa: E402
from tinygrad.llm.generate import MaskFailed  # noqa: E402
from tinygrad.llm.grammar import (  # noqa: E402
    MOST_ITEMS,
    GbnfMask,
    LarkMask,
    SchemaMask,
    depth_of,
    endless_reference,
    grammar_mask,
)
from tinygrad.llm.recogniser import Recogniser  # noqa: E402
from tinygrad.llm.tokenizer import tokenizer_of  # noqa: E402
from tinygrad.llm.vocabulary import VocabularyTrie  # noqa: E402

WORDS = [b"", b"a", b"b", b"\xc3", b"\xa9", b"ab", "é".encode(), b"a\xc3", b"\xa9b", b"ba", b"aab", b"bab",
         b"aa", b"abab\xc3"]
"""A vocabulary with parts of characters."""
SIZE = 260
"""Tokens of the tiny model."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf")
    return tokenizer_of(read_checkpoint(path))


def walked(grammar, text):
    """(whether some text goes on from this one, whether this one is whole)"""
    automaton = Recogniser(rules_of(grammar))
    state = automaton.walk(automaton.start, text.encode())
    return state != 0, automaton.is_whole[state]


@pytest.mark.parametrize("seed", range(60))
def test_tokens_that_may_come_are_those_of_a_plain_recogniser(seed):
    """Of random grammars, along texts that they allow: recursion of every kind, empty rules, rules that no
    text follows."""
    rng = random.Random(seed)
    grammar = random_grammar(rng)
    plain, trie = PlainRecogniser(grammar), VocabularyTrie(WORDS)
    if "root" not in plain.ending:
        with pytest.raises(ValueError, match="no text follows it"):
            rules_of(written(grammar))
        return
    automaton = Recogniser(rules_of(written(grammar)))
    state, text = automaton.start, b""
    for _ in range(4):
        expected = [bool(word) and plain.may_begin(text + word)[0] for word in WORDS]
        assert trie.allowed(automaton, state).tolist() == expected, (written(grammar), text)
        assert automaton.is_whole[state] == plain.may_begin(text)[1]
        if not any(expected):
            break
        word = rng.choice([word for word, may in zip(WORDS, expected) if may])
        state, text = automaton.walk(state, word), text + word


def test_the_plain_recogniser_says_what_is_known():
    a, b = (Part("text", (x,), f'"{x.decode()}"') for x in (b"a", b"b"))
    nested = Part("any", parts=(Part("text", (b"",), '""'),
                                Part("all", parts=(a, Part("rule", name="root"), b))))
    plain = PlainRecogniser({"root": nested})
    assert written({"root": nested}) == 'root ::= ("" | ("a" root "b"))'
    for text, expected in ((b"", (True, True)), (b"aab", (True, False)), (b"aabb", (True, True)),
                           (b"aba", (False, False)), (b"abb", (False, False))):
        assert plain.may_begin(text) == expected


@pytest.mark.parametrize("grammar, texts, others", [
    ('root ::= w "x"\nw ::= [a-z]+', ["x" * 3, "abx"], ["x"]),  # the library took the longest word, for ever
    ('root ::= ("a" | "ab") ("c" | "bcd")', ["ac", "abcd", "abc", "abbcd"], ["abcb"]),
    ('root ::= n "." n\nn ::= [0-9.]+', ["1.2", "1..2", "..."], ["1."]),
    ('root ::= [^a-c"\\n]+ # a class of others', ["é🎉\t", "d\uffff"], ["a", '"', "\n", ""]),
    (r'root ::= "\x41\u00e9\U0001F389\"\\\n" [\]\[-]', ['Aé🎉"\\\n' + end for end in "][-"], ["A"]),
    ('root ::= . .', ["é\n", "🎉a"], ["a", "abc"]),
    ('root ::=\n  # a comment\n  "a" (\n "b"\n | "c" )? |\n "d"\n\nx-1 ::= "e"',
     ["a", "ab", "ac", "d"], ["e"]),
    ('root ::= "ab"{2} "c"{1,} ("d" | ""){0,2}', ["ababc", "ababccdd"], ["abc", "abab", "ababcddd"]),
    ('root ::= ("a"* "b"?)*', ["", "aab", "bbab"], ["c"]),
    ('root ::= root root | "a"', ["a", "a" * 99], ["", "b"]),
    ('root ::= x root "c" | ""\nx ::= x "a" | x x | "a"', ["ac", "aaac", "aacc", ""], ["a", "accc"]),
    ('root ::= "a" x | "b"\nx ::= "c" x', ["b"], ["a", "ac"]),
])
def test_texts_of_a_grammar(grammar, texts, others):
    for text in texts:
        assert walked(grammar, text) == (True, True), text
    for text in others:
        assert not walked(grammar, text)[1], text


def test_what_cannot_end_is_not_begun():
    assert walked('root ::= "a" x | "b"\nx ::= "c" x', "a") == (False, False)


@pytest.mark.parametrize("grammar, reason", [
    ("", "there is no rule 'root'"),
    ('x ::= "a"', "there is no rule 'root'"),
    ('root ::= "a"\n  | x', r"a rule was expected \(line 2, column 3, at '\| x'\)"),
    ("root ::= x", r"there is no rule 'x' \(line 1, column 10, at 'x'\)"),
    ("root ::= (", r"the end of a group, '\)', was expected"),
    ('root ::= "a" )', "the end of a line was expected"),
    ("root ::= [a", "the end ] was expected"),
    ('root ::= "a', 'the end " was expected'),
    ('root ::= "\\q"', "is no escape"),
    ('root ::= "\\U00110000"', "is no character"),
    ('root ::= "\\ud800"', "half a character is none"),
    ('root ::= "a"{2,1}', r"\{2,1} is no count"),
    ('root ::= "a"{x}', r"\{m}, \{m,} or \{m,n} was expected"),
    ('root ::= <tok>', "a text, a class, a group or the name of a rule was expected"),
    ('root ::= "a"\nroot ::= "b"', r"'root' is a rule already \(line 2"),
    ('root = "a"', "::= after 'root' was expected"),
    ('root ::= "a" root', "no text follows it: its rules go on for ever"),
    ("root ::= []", "no text follows it"),
    ("root ::= " + "(" * 5000, f"more than {MOST_DEPTH} groups"),
    ('root ::= "a"' + " " * (1 << 20), "more than 1048576 characters"),
    ('root ::= "a"{999999}', "more than 200000 symbols"),
    ('root ::= (("a"{900}){900}){900} "b"{200000}', "more than 200000 symbols"),
])
def test_a_bad_grammar_is_refused_with_its_place(tokenizer, grammar, reason):
    with pytest.raises(ValueError, match=f"the grammar cannot be followed: .*{reason}"):
        grammar_mask(tokenizer, tokenizer.size, grammar)


def taken(tokenizer, grammar, text):
    """The mask after the tokens of a text, of a byte each."""
    mask = grammar_mask(tokenizer, tokenizer.size, grammar)
    scores = np.zeros(tokenizer.size)
    for byte in text.encode():
        assert mask.apply(scores)[3 + byte] == 0
        mask.accept(3 + byte)
    return mask


TEXT = "the quick brown fox jumps over it " * 20
AMBIGUOUS = {
    "doubled": ("root ::= root root | [a-z ]", TEXT),
    "right": ("root ::= [a-z ] root | [a-z ]", TEXT),
    "left": ("root ::= root [a-z ] | [a-z ]", TEXT),
    "optional tail": ("root ::= t root?\nt ::= [a-z ]", TEXT),
    "stars": ('root ::= (([a-z]*)* " "*)*', TEXT),
    "split": ("root ::= x x x x\nx ::= [a-z ]*", TEXT),
    "optionals": ("root ::= x+\nx ::= " + "[a-z ]? " * 40 + '"."', TEXT.replace("it", ".")),
    "prefixes": ("root ::= x+\nx ::= " + " | ".join(f'"{"a" * i}b"' for i in range(1, 200)), "aaaaab" * 99),
    "operators": ("root ::= " + " | ".join(f'root "{op}" root' for op in "+-*/%&|<>")
                  + ' | "(" root ")" | [a-z]', "a+b*(c-d)/e&(f|(g<h))" + "+a*b" * 99),
    "a thousand texts": ("root ::= x+\nx ::= " + " | ".join(f'"value {i:04d}."' for i in range(1000)),
                         "".join(f"value {i:04d}." for i in range(0, 1000, 29))),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_grammars_have_few_states(tokenizer, name):
    """However long the text: with sets of items for every place of the text, those after it grew with it."""
    grammar, text = AMBIGUOUS[name]
    half = taken(tokenizer, grammar, text[:len(text) // 2])
    whole = taken(tokenizer, grammar, text)
    assert whole.recogniser.kept <= half.recogniser.kept + 20
    assert max(map(len, whole.recogniser.items)) <= 1000
    assert len(whole.recogniser.items) < 2 * len(half.recogniser.items) + 50


def test_a_grammar_that_takes_too_much_is_an_error_soon(tokenizer):
    """A mask takes a bounded number of steps, and what is kept is bounded too."""
    mirrored = "root ::= " + " | ".join(f'"{x}" root "{x}"' for x in string.ascii_letters) + ' | ""'
    trie = VocabularyTrie(["".join(random.Random(i).choices(string.ascii_letters, k=8)).encode()
                           for i in range(20_000)])
    mask = grammar_mask(tokenizer, tokenizer.size, mirrored)
    mask.trie = trie  # of which every token leads to states of its own
    start = time.process_time()
    with pytest.raises(MaskFailed, match="the grammar cannot be followed: it can be read in too many ways"):
        mask.apply(np.zeros(20_000))
    assert time.process_time() - start < 20
    with pytest.raises(MaskFailed):
        taken(tokenizer, "root ::= root root root root | root root root | [a-z ]", TEXT * 9)


def test_states_are_forgotten_and_texts_go_on(tokenizer, monkeypatch):
    """Of texts that are the same backwards every place has a state, of as many items as there are letters."""
    grammar, text = 'root ::= [a-z ] root [a-z ] | ""', TEXT[:300]
    mask = taken(tokenizer, grammar, text)
    monkeypatch.setattr("tinygrad.llm.grammar.MOST_ITEMS", 2000)
    forgetful = taken(tokenizer, grammar, text)
    assert forgetful.recogniser.size < 4000 < mask.recogniser.size < MOST_ITEMS
    scores = np.zeros(tokenizer.size)
    assert (mask.apply(scores) == forgetful.apply(scores)).all()


def test_json_of_any_depth_in_gbnf(tokenizer):
    grammar = r'''
root   ::= value
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
'''
    found = {"a": [1, -2.5, {"b": [[[[[["é🎉 \"\\ \n"]]]]]], "c": None}], "more": [{"x": True}] * 5}
    mask = taken(tokenizer, grammar, json.dumps(found) + "\n")
    ends = mask.apply(np.zeros(tokenizer.size))[sorted(tokenizer.ends)]
    assert (ends == 0).all()
    for text in ('{"a":}', "[1,]", "{a", '"\n', "01", "[1}"):
        assert not walked(grammar, text)[0], text


def test_ends_come_where_a_text_is_whole_and_special_tokens_never(tokenizer):
    mask = taken(tokenizer, 'root ::= "h" "e"? .*', "h")
    allowed = np.isfinite(mask.apply(np.zeros(tokenizer.size)))
    special = {token for token, added in tokenizer.inner.get_added_tokens_decoder().items() if added.special}
    assert all(allowed[token] == (token in tokenizer.ends) for token in special) and special > tokenizer.ends
    fresh = grammar_mask(tokenizer, tokenizer.size, 'root ::= "h" "e"? .*').apply(np.zeros(tokenizer.size))
    assert np.flatnonzero(np.isfinite(fresh)).tolist() == [3 + ord("h"), 259]  # h, he


def test_whitespace_in_json_ends(tokenizer):
    """A model that likes it best goes on with what comes after it; JSON as mostly written is allowed."""
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    mask, scores, text = SchemaMask(tokenizer, tokenizer.size, schema), np.zeros(tokenizer.size), b""
    for byte in b" \t\n":
        scores[3 + byte] = 1 + byte
    while not text.strip().endswith(b'"a"'):
        token = int(mask.apply(scores).argmax())
        mask.accept(token)
        text += tokenizer.bytes_of(token)
        assert len(text) < 60
    written = json.dumps({"a": [[[1, {"b": None}], 2], "c"]}, indent=4).encode()
    for text in (written, written.replace(b"\n", b"\r\n"), b'{"a":[[],{"b": 1} ] }'):
        mask = SchemaMask(tokenizer, tokenizer.size, schema)
        for byte in text:
            assert mask.apply(np.zeros(tokenizer.size))[3 + byte] == 0
            mask.accept(3 + byte)


def test_formats_that_are_not_known_say_nothing(tokenizer):
    """Pydantic's Path, bytes and SecretStr have such; a keyword that is not known is refused beside them."""
    schema = object_of(a={"type": "string", "format": "path"}, b={"type": "string", "format": "date"})
    mask = SchemaMask(tokenizer, tokenizer.size, schema)
    for byte in b'{"a":"/tmp","b":"2':
        assert mask.apply(np.zeros(tokenizer.size))[3 + byte] == 0
        mask.accept(3 + byte)
    assert mask.apply(np.zeros(tokenizer.size))[3 + ord("x")] == -np.inf
    schema["properties"]["b"] = {"type": "array", "uniqueItems": True}
    with pytest.raises(ValueError, match="uniqueItems"):
        SchemaMask(tokenizer, tokenizer.size, schema)


def object_of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize("schema, reference", [
    ({"$ref": "#"}, "#"), ({"$ref": ""}, ""), (object_of(v={"type": "integer"}, next={"$ref": "#"}), "#"),
    ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "#/properties/a"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
      "anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}, "#/$defs/a"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "#"),
    ({"type": ["array"], "minItems": 2, "prefixItems": [{"type": "null"}, {"anyOf": [{"$ref": "#"}]}]}, "#")])
def test_references_to_what_has_no_end_are_refused(tokenizer, schema, reference):
    """They failed within the answer, or let it go on for ever."""
    with pytest.raises(ValueError, match=f"what '{re.escape(reference)}' refers to has no end"):
        SchemaMask(tokenizer, tokenizer.size, schema)


def test_large_schemas_are_looked_through_once():
    """100,000 references, into lists too: to look again for each took longer than a request may."""
    parts = [{"$ref": f"#/anyOf/{i + 1}"} for i in range(50_000)]
    start = time.process_time()
    assert endless_reference({"anyOf": [*parts, {"type": "null"}]}) is None
    assert endless_reference({"anyOf": [*parts, parts[0]]}) == "#/anyOf/1"
    assert time.process_time() - start < 10


def chained(count, link):
    """A schema that refers to another, and so on, so many times."""
    reference = [{"$ref": f"#/$defs/{i}"} for i in range(count + 1)]
    links = {str(i): link(reference[i + 1]) for i in range(count)} | {str(count): {"type": "null"}}
    return {"$defs": links} | reference[0]


LINKS = [lambda part: part, lambda part: {"anyOf": [part, {"type": "null"}]}, lambda part: object_of(a=part),
         lambda part: {"type": "array", "prefixItems": [part], "items": False},
         lambda part: object_of(a={"allOf": [part]}, b={"anyOf": [{"$ref": "#"}, {"type": "null"}]})]


@pytest.mark.parametrize("link", LINKS)
def test_a_schema_that_is_too_deep_is_refused(tokenizer, link):
    """The library's stack overflowed, and with it the server's process went."""
    deep = chained(3000, link)
    named = json.loads(json.dumps(deep).replace("#/$defs/", "http://x/y#/$defs/")) | {"$id": "http://x/y"}
    for schema in (deep, named):
        with pytest.raises(ValueError, match=r"objects may lie within one another, at most 500 are known"):
            SchemaMask(tokenizer, tokenizer.size, schema)
    SchemaMask(tokenizer, tokenizer.size, chained(60, link))


@pytest.mark.parametrize("rule", ["r{}: r{}", 'r{}: "x" (r{} "y")?', 'r{}: %json {{"items": {{}}}} | r{}'])
def test_a_grammar_of_lark_that_may_be_too_deep_is_refused(tokenizer, rule):
    """It ended the process as a schema does."""
    def grammar(count):
        return "\n".join(["start: r0", *(rule.format(i, i + 1) for i in range(count)), f'r{count}: "a"'])

    with pytest.raises(ValueError, match="rules and groups may lie within one another, at most 1000"):
        grammar_mask(tokenizer, SIZE, grammar(3000))
    assert grammar_mask(tokenizer, SIZE, grammar(200)).apply(np.zeros(SIZE)).max() == 0


def test_depth_is_counted_through_references():
    assert [depth_of(chained(count, lambda part: part)) for count in (0, 1, 10)] == [3, 4, 13]
    assert depth_of({"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}) == 4
    assert depth_of({"$defs": {"a": {"$anchor": "b"}}, "$ref": "#b"}) == 6
    assert depth_of({"properties": {str(i): {"type": "null"} for i in range(1000)}}) == 3


def test_a_schema_is_an_object(tokenizer):
    with pytest.raises(ValueError, match="a schema is an object of JSON, not a list"):
        SchemaMask(tokenizer, tokenizer.size, [1])


@pytest.mark.parametrize("schema, text", [
    ({"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]"),
    (object_of(v={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
     '{"v":1,"next":{"v":2,"next":null}}'),
    ({"type": "array", "minItems": 2, "prefixItems": [{"const": 1}, {"const": 2}], "items": {"$ref": "#"}},
     "[1,2,[1,2]]"),
    ({"$defs": {"a/b": {"type": ["object", "null"], "properties": {"a": {"$ref": "#/$defs/a~1b"}},
                        "required": ["a"]}}, "$ref": "#/$defs/a~1b"}, '{"a":{"a":null}}'),
    ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}}, "$ref": "#/$defs/a"}, "1"),
    ({"oneOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]}, "[1,2]")])
def test_schemas_refer_to_themselves(tokenizer, schema, text):
    mask = SchemaMask(tokenizer, tokenizer.size, schema)
    for byte in text.encode():
        assert mask.apply(np.zeros(tokenizer.size))[3 + byte] == 0
        mask.accept(3 + byte)
    assert mask.apply(np.zeros(tokenizer.size))[min(tokenizer.ends)] == 0


def test_an_object_may_have_a_thousand_properties(tokenizer):
    """More than 500 were too many for the library's limit on items, at the first brace."""
    schema = {"type": "object", "properties": {f"key{i}": {"type": "integer"} for i in range(1000)}}
    mask, scores = SchemaMask(tokenizer, tokenizer.size, schema), np.zeros(tokenizer.size)
    for byte in b'{"key7":1,"key900":2':
        assert mask.apply(scores)[3 + byte] == 0
        mask.accept(3 + byte)


def test_texts_of_tokens_are_their_bytes(tokenizer):
    texts = tokenizer.texts(tokenizer.size + 3)
    special = {token for token, added in tokenizer.inner.get_added_tokens_decoder().items() if added.special}
    assert texts == [b"" if token in special or token >= tokenizer.size else tokenizer.bytes_of(token)
                     for token in range(tokenizer.size + 3)]


@pytest.mark.parametrize("grammar, kind", [
    ('start: "x"', LarkMask), ('?start: value\nvalue: "x"', LarkMask),
    ('value: "x"\n!start : value', LarkMask),
    ('root ::= start\nstart ::= "x"', GbnfMask), ('root ::= "x"\nstart::="y"', GbnfMask)])
def test_the_notation_of_a_grammar_is_told_by_its_first_rule(tokenizer, grammar, kind):
    """A rule `start` of GBNF was taken for Lark's, and Lark's for none where it is inlined."""
    mask = grammar_mask(tokenizer, SIZE, grammar)
    assert isinstance(mask, kind)
    allowed = np.flatnonzero(mask.apply(np.zeros(SIZE)) > -np.inf)
    assert [tokenizer.bytes_of(int(token)) for token in allowed] == [b"x"]
