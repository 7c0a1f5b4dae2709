"""Language models and speech as people write them for tinygrad, at small sizes: they start here, train, and
give what NumPy or the same program without a JIT gives."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, UOp, Variable, dtypes, function, nn
from tinygrad.helpers import (
    DEBUG,
    JIT,
    Context,
    trange,
)
from tinygrad.nn import Embedding, LayerNorm, Linear, optim
from tinygrad.nn.state import get_parameters, get_state_dict


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    Tensor.manual_seed(7)
    yield
    assert not Tensor.training


class Attention:
    """As in GPT-2, with a cache of keys and values."""

    def __init__(self, dim: int, n_heads: int, max_context: int = 16) -> None:
        self.c_attn, self.c_proj = Linear(dim, 3 * dim, bias=True), Linear(dim, dim, bias=True)
        self.n_heads, self.dim, self.head_dim, self.max_context = n_heads, dim, dim // n_heads, max_context

    def __call__(self, x: Tensor, start_pos: UOp | int, mask: Tensor | None) -> Tensor:
        xqkv = self.c_attn(x).reshape(None, None, 3, self.n_heads, self.head_dim)
        xq, xk, xv = (xqkv[:, :, i, :, :] for i in range(3))
        bsz, seqlen, _, _ = xq.shape
        if not hasattr(self, "cache_kv"):
            self.cache_kv = Tensor.zeros(2, bsz, self.max_context, self.n_heads, self.head_dim,
                                         dtype=x.dtype).contiguous().realize()
        self.cache_kv.shrink((None, None, (start_pos, start_pos + seqlen), None, None)).assign(
            Tensor.stack(xk, xv)).realize()
        if not isinstance(start_pos, UOp) and start_pos == 0:
            keys, values = xk, xv
        else:
            keys = self.cache_kv[0].shrink((None, (0, start_pos + seqlen), None, None))
            values = self.cache_kv[1].shrink((None, (0, start_pos + seqlen), None, None))
        xq, keys, values = (t.transpose(1, 2) for t in (xq, keys, values))
        out = xq.scaled_dot_product_attention(keys, values, mask).transpose(1, 2)
        return self.c_proj(out.reshape(bsz, seqlen, self.dim))


class GPT:
    def __init__(self, dim: int = 16, n_heads: int = 2, n_layers: int = 2, vocab_size: int = 24) -> None:
        self.wte, self.wpe = Embedding(vocab_size, dim), Embedding(16, dim)
        self.attn = [Attention(dim, n_heads) for _ in range(n_layers)]
        self.norms = [LayerNorm(dim) for _ in range(n_layers + 1)]
        self.mlp = [[Linear(dim, 4 * dim), Tensor.gelu, Linear(4 * dim, dim)] for _ in range(n_layers)]
        self.lm_head = Linear(dim, vocab_size, bias=False)
        self.forward_jit = TinyJit(self.forward)

    def forward(self, tokens: Tensor, start_pos: UOp | int, temperature: float = 0.0) -> Tensor:
        if not hasattr(self, "allpos"):
            self.allpos = Tensor.arange(0, 16).reshape(1, -1).realize()
        seqlen = tokens.shape[1]
        h = self.wte(tokens) + self.wpe(self.allpos.shrink((None, (start_pos, start_pos + seqlen))))
        mask = Tensor.full((1, 1, seqlen, start_pos + seqlen), float("-inf"), dtype=h.dtype).triu(
            start_pos + 1) if seqlen > 1 else None
        for attn, norm, mlp in zip(self.attn, self.norms, self.mlp, strict=False):
            h = h + attn(norm(h), start_pos, mask).float()
            h = h + h.sequential(mlp)
        logits = self.lm_head(self.norms[-1](h))[:, -1, :]
        if temperature < 1e-6:
            return logits.argmax(-1).flatten().realize()
        return (logits / temperature).softmax().multinomial().flatten().realize()

    def __call__(self, tokens: Tensor, start_pos: UOp | int, temperature: float = 0.0) -> Tensor:
        forward = self.forward_jit if JIT and tokens.shape[1] == 1 else self.forward
        return forward(tokens, start_pos, temperature)

    def generate(self, prompt: list[int], max_length: int) -> list[int]:
        toks, start_pos = list(prompt), 0
        for _ in trange(max_length, disable=DEBUG == 0):
            if start_pos:
                pos, tokens = Variable("start_pos", 1, 15).bind(start_pos), Tensor([toks[start_pos:]])
            else:
                pos, tokens = 0, Tensor([toks])
            toks.append(self(tokens, pos).tolist()[0])
            start_pos = len(toks) - 1
        return toks


def test_gpt2() -> None:
    model = GPT()
    toks = model.generate([3, 1, 4], 6)
    for length in range(3, len(toks)):  # each token is what the whole text before it gives
        assert model.forward(Tensor([toks[:length]]), 0).item() == toks[length]
    assert 1 <= model(Tensor([[3, 1]]), 0, temperature=0.8).numel() == 1


def test_llama_layers() -> None:
    def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
        freqs = 1.0 / (theta ** (Tensor.arange(0, dim, 2)[:(dim // 2)] / dim))
        freqs = Tensor.arange(end).unsqueeze(dim=1) * freqs.unsqueeze(dim=0)
        return Tensor.stack(freqs.cos(), freqs.sin(), dim=-1).reshape(1, end, 1, dim // 2, 2)

    def complex_mult(a: Tensor, c: Tensor, d: Tensor) -> Tensor:
        re, im = a[..., 0:1], a[..., 1:2]
        return (re * c - im * d).cat(re * d + im * c, dim=-1)

    def apply_rotary_emb(x: Tensor, freqs_cis: Tensor) -> Tensor:
        x = x.reshape(*x.shape[:-1], -1, 2)
        c, d = freqs_cis[..., 0:1], freqs_cis[..., 1:2]
        return complex_mult(x, c, d).flatten(3)

    class FeedForward:
        def __init__(self, dim: int) -> None:
            self.w1, self.w2, self.w3 = (nn.Linear(dim, dim, bias=False) for _ in range(3))

        @function(precompile=True, allow_implicit=True)
        def __call__(self, x: Tensor) -> Tensor:
            return self.w2(self.w1(x).silu() * self.w3(x))

    x = Tensor.randn(1, 5, 2, 8)
    cis = precompute_freqs_cis(8, 5).contiguous().realize()
    turned = apply_rotary_emb(x, cis.shrink((None, (0, 5), None, None, None))).numpy()
    angles = np.exp(1j * np.arange(5)[:, None] / 10000 ** (np.arange(0, 8, 2) / 8))
    pairs = x.numpy().reshape(1, 5, 2, 4, 2)
    expected = (pairs[..., 0] + 1j * pairs[..., 1]) * angles[None, :, None]
    np.testing.assert_allclose(turned.reshape(pairs.shape)[..., 0], expected.real, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(turned.reshape(pairs.shape)[..., 1], expected.imag, rtol=1e-4, atol=1e-5)
    hidden = nn.RMSNorm(16)(x.flatten(2))
    np.testing.assert_allclose(hidden.square().mean(-1).numpy(), 1, rtol=1e-4)
    assert FeedForward(16)(hidden).shape == (1, 5, 16)


def test_bert_step() -> None:
    class Bert:
        def __init__(self) -> None:
            self.word, self.position, self.kind = Embedding(20, 8), Embedding(6, 8), Embedding(2, 8)
            self.norm, self.out = LayerNorm(8, eps=1e-12), Linear(8, 20)

        def __call__(self, ids: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
            x = self.norm(self.word(ids) + self.position(Tensor.arange(6).unsqueeze(0)) + self.kind(segments))
            x = x.dropout(0.1)
            picked = x.gather(1, positions[:, :, None].expand(positions.shape[0], positions.shape[1], 8))
            return self.out(picked)

    with Context(DEFAULT_FLOAT="float32", WINO=0):
        model = Bert()
        parameters = get_parameters(model)
        no_decay = [p for name, p in get_state_dict(model).items() if "norm" in name or name.endswith("bias")]
        decay = [p for p in parameters if not any(p is q for q in no_decay)]
        opt = optim.OptimizerGroup(optim.LAMB(decay, lr=0.02, weight_decay=0.01),
                                   optim.LAMB(no_decay, lr=0.02))

        @TinyJit
        @Context(TRAINING=1)
        def step(ids: Tensor, segments: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
            opt.zero_grad()
            scores = model(ids, segments, positions).flatten(0, 1)
            loss = scores.sparse_categorical_crossentropy(labels.flatten())
            (loss * 4.0).backward()
            norm = Tensor(0.0, dtype=dtypes.float32)
            for p in opt.params:
                assert p.grad is not None
                p.grad = p.grad / 4.0
                norm = norm + p.grad.float().square().sum()
            for p in opt.params:
                p.grad = (p.grad / norm.sqrt().maximum(1.0)).cast(p.grad.dtype)
            opt.step()
            return loss.realize()

        ids, labels = Tensor([[1, 2, 3, 4, 5, 6]] * 2), Tensor([[7, 8], [9, 10]])
        losses = [step(ids, ids * 0, Tensor([[0, 2], [1, 3]]), labels).item() for _ in range(8)]
    assert losses[-1] < losses[0]


def test_whisper_decoder() -> None:
    class Cross:
        def __init__(self) -> None:
            self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
            self.value, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def __call__(self, x: Tensor, xa: Tensor) -> Tensor:
            q, k, v = (t.reshape(*t.shape[:2], 2, 4).transpose(1, 2)
                       for t in (self.query(x), self.key(xa), self.value(xa)))
            return self.out(q.scaled_dot_product_attention(k, v).transpose(1, 2).flatten(start_dim=2))

    class Decoder:
        def __init__(self) -> None:
            self.token_embedding = nn.Embedding(12, 8)
            self.positional_embedding = Tensor.empty(6, 8).assign(Tensor.randn(6, 8))
            self.cross_attn, self.ln = Cross(), nn.LayerNorm(8)
            self.getjitted: dict[Any, TinyJit[..., Tensor]] = {}

        def forward(self, x: Tensor, pos: UOp | int, encoded_audio: Tensor) -> Tensor:
            seqlen = x.shape[-1]
            x = self.token_embedding(x) + self.positional_embedding.shrink(((pos, pos + seqlen), None))
            x = x + self.cross_attn(self.ln(x), encoded_audio)
            return (x @ self.token_embedding.weight.T).realize()

        def __call__(self, x: Tensor, pos: int, encoded_audio: Tensor) -> Tensor:
            jitted = self.getjitted.setdefault(x.shape, TinyJit(self.forward))
            return jitted(x, Variable("self_attn_cache_len", 1, 5).bind(pos) if pos else 0, encoded_audio)

    mel = np.log10(np.maximum(np.abs(np.fft.rfft(np.random.default_rng(3).normal(size=(4, 14)))), 1e-10))
    audio = Tensor(mel.astype(np.float32)).unsqueeze(0)
    model = Decoder()
    for pos in range(4):
        got = model(Tensor([[pos + 2]]), pos, audio).numpy()
        eager = model.forward(Tensor([[pos + 2]]), pos, audio)
        np.testing.assert_allclose(got, eager.numpy(), rtol=1e-4, atol=1e-5)
