"""Attention with its projections, and the layers of transformers made of it (Vaswani and others, 2017).

Parameters have PyTorch's names, shapes and initial distributions. Sequences are (L, N, E), or (N, L, E) where
`batch_first`. A bool mask is True where a key is *hidden*, as in PyTorch's layers, which is the contrary of
`scaled_dot_product_attention`'s; a float mask is added to the scores.
"""
from __future__ import annotations

import copy
import math
from collections.abc import Callable

import tinygrad.nn.functional as F
from tinygrad.nn.function_layers import Dropout
from tinygrad.nn.init import xavier_normal_, xavier_uniform_
from tinygrad.nn.layers import LayerNorm, Linear
from tinygrad.nn.state import get_parameters
from tinygrad.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _as_scores(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as numbers that are added to scores."""
    if mask is None or not mask.dtype.is_bool:
        return mask
    return mask.where(-math.inf, 0.0).cast(like.dtype)


class MultiheadAttention:
    """Attention of `num_heads` heads, each of embed_dim / num_heads of the items of projected queries, keys
    and values, joined and projected again.

    Called with query (L, N, E), key and value (S, N, E), (N, ..., E) where `batch_first`, without N for one
    sequence. `key_padding_mask` (N, S) and `attn_mask` (L, S) or (N * num_heads, L, S) hide keys. Returns the
    result (L, N, E), and the weights (N, L, S), means over the heads, or (N, num_heads, L, S) without
    `average_attn_weights`, or None without `need_weights`; weights that nobody uses are not computed. Dropout
    is of weights, while `Tensor.training`. Keys and values may have `kdim` and `vdim` features. `add_bias_kv`
    adds a key and a value that are parameters, `add_zero_attn` one of zeros, which nothing hides.

    >>> x = Tensor.ones(2, 3, 8)
    >>> result, weights = nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x)
    >>> result.shape, weights.shape
    ((2, 3, 8), (2, 3, 3))
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False) -> None:
        if embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention takes embed_dim divisible by num_heads, got {embed_dim} "
                             f"and {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.kdim, self.vdim = (embed_dim if size is None else size for size in (kdim, vdim))
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = xavier_uniform_(Tensor.empty(3 * embed_dim, embed_dim))
        else:
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
                xavier_uniform_(Tensor.empty(embed_dim, size)) for size in (embed_dim, self.kdim, self.vdim))
        self.in_proj_bias = Tensor.zeros(3 * embed_dim) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if bias:
            self.out_proj.bias = Tensor.zeros(embed_dim)
        self.bias_k, self.bias_v = (xavier_normal_(Tensor.empty(1, 1, embed_dim)) if add_bias_kv else None
                                    for _ in range(2))
        self.add_zero_attn = add_zero_attn

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                 need_weights: bool = True, attn_mask: Tensor | None = None,
                 average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        is_batch = query.ndim == 3
        sizes = (self.embed_dim, self.kdim, self.vdim)
        if any(x.ndim != query.ndim or x.ndim not in (2, 3) or x.shape[-1] != size
               for x, size in zip((query, key, value), sizes, strict=True)):
            features = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{sizes[0]}, {sizes[1]} and {sizes[2]}"
            raise ValueError(f"MultiheadAttention takes query, key and value (L, N, {features}) or (L, "
                             f"{features}), got {query.shape}, {key.shape} and {value.shape}")
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention takes is_causal=True with the attn_mask that is causal")
        if not is_batch:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x, i) for i, x in enumerate((query, key, value)))
        k, v, added = self._with_more_keys(k, v)
        mask = self._mask(q, attn_mask, key_padding_mask)
        mask = mask if mask is None else mask.pad((0, added))
        weights = None
        if need_weights:
            scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
            weights = (scores if mask is None else scores + mask).softmax(-1).dropout(self.dropout)
        if weights is not None and self.dropout and Tensor.training:
            joined = weights @ v  # of the same draw
        else:
            joined = q.scaled_dot_product_attention(k, v, mask, self.dropout)
        result = self.out_proj(joined.transpose(1, 2).flatten(-2))
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if is_batch else weights.squeeze(0)
        if not is_batch:
            return result.squeeze(0), weights
        return result if self.batch_first else result.transpose(0, 1), weights

    def _heads(self, x: Tensor, part: int) -> Tensor:
        """The queries, keys or values (N, num_heads, L, items of a head)."""
        rows = slice(part * self.embed_dim, (part + 1) * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        weight = self.in_proj_weight[rows] if self.kdim == self.vdim == self.embed_dim else (
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[part]
        return self._divided(F.linear(x, weight, bias))

    def _divided(self, projected: Tensor) -> Tensor:
        """(N, L, E) as (N, num_heads, L, items of a head)."""
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _with_more_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with those that nothing is computed for, and how many these are."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (x.cat(self._divided(bias).expand(x.shape[0], -1, -1, -1), dim=2)
                    for x, bias in ((k, self.bias_k), (v, self.bias_v)))
            added += 1
        if self.add_zero_attn:
            k, v = (x.pad((None, None, (0, 1), None)) for x in (k, v))
            added += 1
        return k, v, added

    def _mask(self, q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
        """Both masks in one, which broadcasts to (N, num_heads, L, S)."""
        mask, padding = _as_scores(attn_mask, q), _as_scores(key_padding_mask, q)
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (-1, self.num_heads))
        if padding is None:
            return mask
        padding = padding.unsqueeze(1).unsqueeze(1)
        return padding if mask is None else mask + padding


class _TransformerLayer:
    """What layers of encoders and decoders share: attention of a sequence to itself, and two products."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise ValueError(f"activation is 'relu', 'gelu' or a function, got {activation!r}")
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self._hold_more(d_model, nhead, dropout, bias, batch_first)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm_first = norm_first
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        for i in range(1, self.norms + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias))

    norms: int
    norm1: LayerNorm
    norm2: LayerNorm

    def _hold_more(self, d_model: int, nhead: int, dropout: float, bias: bool, batch_first: bool) -> None:
        """Parameters that come after those of `self_attn`."""

    def _residual(self, x: Tensor, part: Callable[[Tensor], Tensor], norm: LayerNorm) -> Tensor:
        """x + part(x), normalised before or after."""
        added: Tensor = self.dropout(part(norm(x) if self.norm_first else x))
        return x + added if self.norm_first else norm(x + added)

    def _attended(self, mask: Tensor | None, padding: Tensor | None, is_causal: bool | None
                  ) -> Callable[[Tensor], Tensor]:
        return lambda x: self.self_attn(x, x, x, padding, False, mask, is_causal=bool(is_causal))[0]

    def _fed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention, then two products with `activation` between them, each added to its input and
    normalised (before it where `norm_first`)."""

    norms = 2

    def __call__(self, src: Tensor, src_mask: Tensor | None = None,
                 src_key_padding_mask: Tensor | None = None, is_causal: bool | None = False) -> Tensor:
        x = self._residual(src, self._attended(src_mask, src_key_padding_mask, is_causal), self.norm1)
        return self._residual(x, self._fed_forward, self.norm2)


class TransformerDecoderLayer(_TransformerLayer):
    """As `TransformerEncoderLayer`, with attention to the result of an encoder between the two."""

    norms = 3
    norm3: LayerNorm

    def _hold_more(self, d_model: int, nhead: int, dropout: float, bias: bool, batch_first: bool) -> None:
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)

    def __call__(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
                 memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
                 memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool = False,
                 memory_is_causal: bool = False) -> Tensor:
        def of_memory(x: Tensor) -> Tensor:
            return self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask,
                                       is_causal=memory_is_causal)[0]

        x = self._residual(tgt, self._attended(tgt_mask, tgt_key_padding_mask, tgt_is_causal), self.norm1)
        x = self._residual(x, of_memory, self.norm2)
        return self._residual(x, self._fed_forward, self.norm3)


class TransformerEncoder:
    """`num_layers` copies of a layer, which begin alike, and a last `norm`."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int,
                 norm: Callable[[Tensor], Tensor] | None = None) -> None:
        self.layers = [copy.deepcopy(encoder_layer) for _ in range(num_layers)]
        self.norm = norm

    def __call__(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                 is_causal: bool | None = None) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder:
    """`num_layers` copies of a layer, which begin alike, and a last `norm`."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int,
                 norm: Callable[[Tensor], Tensor] | None = None) -> None:
        self.layers = [copy.deepcopy(decoder_layer) for _ in range(num_layers)]
        self.norm = norm

    def __call__(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
                 memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
                 memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool | None = None,
                 memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                        bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer:
    """An encoder of a source and a decoder of a target that looks at it, both with a last norm; weights begin
    by `nn.init.xavier_uniform_`. A `custom_encoder` or `custom_decoder` is called as ours are.

    Called with `src` (S, N, E) and `tgt` (T, N, E), (N, ..., E) where `batch_first`, gives (T, N, E).

    >>> model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> src, tgt = Tensor.ones(3, 5, 8), Tensor.ones(3, 4, 8)
    >>> model(src, tgt, tgt_mask=nn.Transformer.generate_square_subsequent_mask(4)).shape
    (3, 4, 8)
    """

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
                 num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", custom_encoder: Callable[..., Tensor] | None = None,
                 custom_decoder: Callable[..., Tensor] | None = None, layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True) -> None:
        def last() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias)

        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
                   norm_first, bias)
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options), num_encoder_layers, last())
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options), num_decoder_layers, last())
        for weight in get_parameters(self):
            if weight.ndim > 1:
                xavier_uniform_(weight)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def __call__(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None,
                 tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                 src_key_padding_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
                 memory_key_padding_mask: Tensor | None = None, src_is_causal: bool | None = None,
                 tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        if src.ndim != tgt.ndim or any(x.shape[-1:] != (self.d_model,) for x in (src, tgt)) or (
                src.ndim == 3 and src.shape[not self.batch_first] != tgt.shape[not self.batch_first]):
            raise ValueError(f"Transformer takes src and tgt of as many sequences of {self.d_model} "
                             f"features, got {src.shape} and {tgt.shape}, batch_first={self.batch_first}")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask,
                              is_causal=src_is_causal)
        return self.decoder(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                            tgt_key_padding_mask=tgt_key_padding_mask,
                            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
                            memory_is_causal=memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """What hides later keys from a query: (sz, sz), -infinity above the diagonal, else 0."""
        return Tensor.full((sz, sz), -math.inf, requires_grad=False).triu(1)
