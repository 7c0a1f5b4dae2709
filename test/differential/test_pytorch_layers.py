"""Layers of `nn` beside PyTorch's of the same arguments: names in state dicts, results, gradients."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit, nn

from .table import torch

Array = np.ndarray[Any, Any]
Make = Callable[[Any], Any]
"""Of a layer, or a model, from either library's `nn`."""


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def parts(value: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in parts(item)]
    return [] if value is None else [value]


def close(label: str, ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=label)


def check(make: Make, *inputs: Array, call: Callable[..., Any] = lambda layer, *xs: layer(*xs)) -> None:
    """Both layers with the weights of PyTorch's: equal names, results, gradients at weights and inputs."""
    theirs, ours = make(torch.nn).eval(), make(nn)
    state = {name: Tensor(value.numpy().copy()) for name, value in theirs.state_dict().items()}
    assert sorted(nn.state.get_state_dict(ours)) == sorted(state)
    nn.state.load_state_dict(ours, state, verbose=False)
    their_inputs = [torch.tensor(x, requires_grad=x.dtype == np.float32) for x in inputs]
    our_inputs = [Tensor(x, requires_grad=x.dtype == np.float32) for x in inputs]
    found, expected = parts(call(ours, *our_inputs)), parts(call(theirs, *their_inputs))
    assert len(found) == len(expected)
    for i, (f, e) in enumerate(zip(found, expected, strict=True)):
        assert f.shape == tuple(e.shape)
        close(f"result {i}", f, e)
    weights = [numbers(*e.shape) for e in expected]
    sum((e * torch.tensor(w)).sum() for e, w in zip(expected, weights, strict=True)).backward()
    loss = sum((f * Tensor(w)).sum() for f, w in zip(found, weights, strict=True))
    assert isinstance(loss, Tensor)
    loss.backward()
    own = nn.state.get_state_dict(ours)
    for name, parameter in theirs.named_parameters():
        if parameter.grad is not None:
            close(f"gradient of {name}", own[name].grad, parameter.grad)
    for i, (ours_in, theirs_in) in enumerate(zip(our_inputs, their_inputs, strict=True)):
        if theirs_in.grad is not None:
            close(f"gradient of input {i}", ours_in.grad, theirs_in.grad)


IMAGE, ROWS = numbers(2, 4, 8, 8), numbers(5, 6)
POSITIVE = np.abs(ROWS) / 10 + 0.05

LAYERS: dict[str, tuple[Make, tuple[Array, ...]]] = {
    **{name: (lambda nn, name=name: getattr(nn, name)(), (ROWS,)) for name in (
        "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
        "LogSigmoid", "LogSoftmax", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin",
        "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "PReLU", "Identity", "Dropout",
        "AlphaDropout")},
    **{name: (lambda nn, name=name: getattr(nn, name)(), (IMAGE,)) for name in (
        "Softmax2d", "Flatten", "Dropout2d", "Dropout3d", "FeatureAlphaDropout")},
    **{f"{name}{axes}d {args}": (lambda nn, name=f"{name}{axes}d", args=args: getattr(nn, name)(*args),
                                 (numbers(2, 4, *(6,) * axes),))
       for axes in (1, 2, 3) for name, args in (
           ("AdaptiveAvgPool", (3,)), ("AdaptiveMaxPool", (3,)), ("AvgPool", (3, 2, 1)),
           ("LPPool", (2, 3, 2)),
           ("MaxPool", (3, 2, 1, 1, False, True)), ("ConstantPad", (1, 0.5)), ("ZeroPad", (2,)),
           ("ReflectionPad", ((2, 1) * axes,)), ("ReplicationPad", (1,)), ("CircularPad", (1,)),
           ("InstanceNorm", (4,)), ("InstanceNorm", (4, 1e-3, 0.1, True)),
           ("InstanceNorm", (4, 1e-3, 0.1, True, True)), ("Conv", (4, 6, 3, 2, 1)),
           ("ConvTranspose", (4, 2, 3, 2, 1, 1)),
           ("BatchNorm", (4,)))},
    "MaxPool2d with places": (lambda nn: nn.MaxPool2d(2, return_indices=True), (IMAGE,)),
    **{f"AvgPool{axes}d of another divisor": (
        lambda nn, name=f"AvgPool{axes}d": getattr(nn, name)(2, divisor_override=3),
        (numbers(2, 4, *(6,) * axes),)) for axes in (2, 3)},
    "Threshold": (lambda nn: nn.Threshold(0.1, 2.0), (ROWS,)),
    "LeakyReLU in place": (lambda nn: nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(0.2, True)), (ROWS,)),
    "PReLU of channels": (lambda nn: nn.PReLU(4), (IMAGE,)),
    "Flatten of some": (lambda nn: nn.Flatten(2), (IMAGE,)),
    "Unflatten": (lambda nn: nn.Unflatten(1, (2, 2)), (IMAGE,)),
    **{f"Conv2d {mode}": (lambda nn, m=mode: nn.Conv2d(4, 3, 3, padding=(1, 2), padding_mode=m), (IMAGE,))
       for mode in ("reflect", "replicate", "circular")},
    "Conv1d same circular": (
        lambda nn: nn.Conv1d(3, 4, 4, padding="same", dilation=2, padding_mode="circular"),
        (numbers(2, 3, 9),)),
    "ChannelShuffle": (lambda nn: nn.ChannelShuffle(2), (numbers(2, 4, 3, 3),)),
    "LocalResponseNorm": (lambda nn: nn.LocalResponseNorm(2, k=2.0), (IMAGE,)),
    "UpsamplingNearest2d": (lambda nn: nn.UpsamplingNearest2d(scale_factor=3), (IMAGE,)),
    "UpsamplingBilinear2d": (lambda nn: nn.UpsamplingBilinear2d((5, 11)), (IMAGE,)),
    "PixelShuffle": (lambda nn: nn.PixelShuffle(2), (IMAGE,)),
    "PixelUnshuffle": (lambda nn: nn.PixelUnshuffle(2), (IMAGE,)),
    "Unfold": (lambda nn: nn.Unfold(3, padding=1), (IMAGE,)),
    "Fold": (lambda nn: nn.Fold((4, 4), 2, stride=2), (numbers(2, 12, 4),)),
    "Upsample": (lambda nn: nn.Upsample(scale_factor=2), (IMAGE,)),
    "Upsample bilinear": (lambda nn: nn.Upsample((5, 9), mode="bilinear", align_corners=True), (IMAGE,)),
    "Identity of anything": (lambda nn: nn.Identity(54, unused=True), (ROWS,)),
    "Bilinear": (lambda nn: nn.Bilinear(6, 3, 4), (ROWS, numbers(5, 3))),
    "Bilinear without bias": (lambda nn: nn.Bilinear(6, 3, 4, bias=False),
                              (numbers(2, 5, 6), numbers(2, 5, 3))),
    "Embedding by name": (lambda nn: nn.Embedding(num_embeddings=9, embedding_dim=5),
                          (np.array([[1, 8, 0], [3, 3, 2]], np.int64),)),
    "BatchNorm2d by name": (lambda nn: nn.BatchNorm2d(num_features=4, eps=0.1), (IMAGE,)),
    "Embedding": (lambda nn: nn.Embedding(9, 5), (np.array([[1, 8, 0], [3, 3, 2]], np.int64),)),
    "Embedding with padding": (lambda nn: nn.Embedding(9, 5, padding_idx=3),
                               (np.array([[1, 8, 0], [3, 3, 2]], np.int64),)),
    **{f"EmbeddingBag {options}": (lambda nn, options=options: nn.EmbeddingBag(9, 5, **options), bags)
       for options, bags in (
           ({}, (np.array([[1, 8, 0], [3, 3, 2]], np.int64),)),
           ({"mode": "sum", "padding_idx": 3}, (np.array([[1, 3, 0], [3, 3, 3]], np.int64),)),
           ({"mode": "max", "include_last_offset": True},
            (np.array([1, 8, 0, 3, 3], np.int64), np.array([0, 2, 2, 5], np.int64))))},
    **{name: (lambda nn, name=name: getattr(nn, name)(), (ROWS, numbers(5, 6) + 1)) for name in (
        "CosineSimilarity", "PairwiseDistance", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss",
        "PoissonNLLLoss")},
    "KLDivLoss": (lambda nn: nn.KLDivLoss(reduction="batchmean"), (ROWS, POSITIVE)),
    "CrossEntropyLoss": (lambda nn: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=3),
                         (ROWS, np.array([0, 3, 5, 1, 1], np.int64))),
    "NLLLoss": (lambda nn: nn.NLLLoss(reduction="sum"), (ROWS, np.array([0, 3, 5, 1, 1], np.int64))),
    "GaussianNLLLoss": (lambda nn: nn.GaussianNLLLoss(full=True), (ROWS, numbers(6, 5).T, POSITIVE)),
    "TripletMarginLoss": (lambda nn: nn.TripletMarginLoss(2.0), (ROWS, numbers(6, 5).T, ROWS + 0.5)),
    "TripletMarginWithDistanceLoss": (lambda nn: nn.TripletMarginWithDistanceLoss(margin=2.0, swap=True),
                                      (ROWS, numbers(6, 5).T, ROWS + 0.5)),
    "MultiLabelMarginLoss": (lambda nn: nn.MultiLabelMarginLoss(reduction="sum"), (
        ROWS[:2], np.array([[5, 0, -1, 1, 1, 1], [2, 3, 1, 0, 4, 5]], np.int64))),
    "RReLU": (lambda nn: nn.RReLU(0.2, 0.6), (ROWS,)),
    "LayerNorm without bias": (lambda nn: nn.LayerNorm(6, bias=False), (ROWS,)),
    "Sequential": (lambda nn: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
                                            nn.Flatten(), nn.Dropout(0.5), nn.Linear(27, 2)), (IMAGE,)),
    "GRUCell": (lambda nn: nn.GRUCell(6, 4), (ROWS, numbers(5, 4))),
    "RNNCell": (lambda nn: nn.RNNCell(6, 4), (ROWS, numbers(5, 4))),
    "GRUCell of one row": (lambda nn: nn.GRUCell(6, 4), (ROWS[0], numbers(4))),
    "LSTMCell of one row": (lambda nn: nn.LSTMCell(6, 4), (ROWS[0],)),
    "RNNCell of relu": (lambda nn: nn.RNNCell(6, 4, False, "relu"), (ROWS,)),
    **{f"{kind}{label}": (lambda nn, kind=kind, options=options: getattr(nn, kind)(6, 4, **options), (x,))
       for kind in ("RNN", "GRU", "LSTM") for label, options, x in (
           ("", {}, numbers(5, 2, 6)), (" of one sequence", {}, ROWS),
           (" of layers", {"num_layers": 2, "batch_first": True}, numbers(2, 5, 6)),
           (" both ways", {"num_layers": 2, "bidirectional": True, "dropout": 0.5}, numbers(5, 2, 6)),
           (" without bias", {"bias": False}, numbers(5, 2, 6)))},
    "GRU from a state": (lambda nn: nn.GRU(6, 4, 2), (numbers(5, 2, 6), numbers(2, 2, 4))),
    **{f"TransformerEncoderLayer {options}": (lambda nn, options=options: nn.TransformerEncoderLayer(
        8, 2, 16, **options), (numbers(5, 3, 8),)) for options in (
            {}, {"norm_first": True, "batch_first": True}, {"activation": "gelu", "bias": False})},
    "TransformerDecoderLayer": (lambda nn: nn.TransformerDecoderLayer(8, 2, 16),
                                (numbers(5, 3, 8), numbers(4, 3, 8))),
    "TransformerEncoder": (lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True), 2, norm=nn.LayerNorm(8)), (numbers(5, 3, 8),)),
    "TransformerDecoder": (lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(
        8, 2, 16, batch_first=True, norm_first=True), 2), (numbers(3, 5, 8), numbers(3, 4, 8))),
    **{f"Transformer {options}": (lambda nn, options=options: nn.Transformer(8, 2, 2, 1, 16, **options),
                                  (numbers(5, 3, 8), numbers(4, 3, 8))) for options in (
           {}, {"norm_first": True, "activation": "gelu", "bias": False})},
    "Transformer of one sequence": (lambda nn: nn.Transformer(8, 2, 1, 2, 16),
                                    (numbers(5, 8), numbers(4, 8))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    make, inputs = LAYERS[name]
    check(make, *inputs)


def test_instance_norm_moves_its_running_statistics_in_training() -> None:
    theirs, ours = (lib.InstanceNorm2d(4, momentum=0.3, track_running_stats=True) for lib in (torch.nn, nn))
    with Tensor.train():
        for x in (IMAGE, IMAGE * 2 + 1):
            close("in training", ours(Tensor(x)), theirs(torch.tensor(x)))
    close("after it", ours(Tensor(IMAGE)), theirs.eval()(torch.tensor(IMAGE)))
    state = nn.state.get_state_dict(ours)
    for name, value in theirs.state_dict().items():
        close(name, state[name].reshape(tuple(value.shape)), value)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_under_the_jit(mode: str) -> None:
    theirs, ours = torch.nn.EmbeddingBag(9, 4, mode=mode), nn.EmbeddingBag(9, 4, mode=mode)
    ours.weight.assign(Tensor(theirs.weight.detach().numpy().copy())).realize()
    step = TinyJit(lambda words, starts: ours(words, starts).realize())
    for i in range(5):
        words, starts = (np.arange(7) * (i + 2)) % 9, np.array([0, i, 5])
        close(mode, step(Tensor(words).realize(), Tensor(starts).realize()),
              theirs(torch.tensor(words), torch.tensor(starts)))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}])
def test_lstm_whose_outputs_are_projected(options: dict[str, Any]) -> None:
    rows = 2 * (2 if options else 1)
    check(lambda nn: nn.LSTM(6, 4, 2, proj_size=3, **options), numbers(2, 2, 6))
    check(lambda nn: nn.LSTM(6, 4, 2, proj_size=3, **options), numbers(2, 2, 6), numbers(rows, 2, 3),
          numbers(rows, 2, 4), call=lambda layer, x, h, c: layer(x, (h, c)))
    check(lambda nn: nn.LSTM(6, 4, proj_size=3, **options), ROWS)


def test_lstm_from_a_state() -> None:
    check(lambda nn: nn.LSTM(6, 4, 2), numbers(5, 2, 6), numbers(2, 2, 4), numbers(2, 2, 4) + 1,
          call=lambda layer, x, h, c: layer(x, (h, c)))


HIDDEN = np.triu(np.ones((5, 5), bool), 1)
PADDING = np.array([[False] * 5, [False, False, False, True, True], [False] * 4 + [True]])


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("masks", ["none", "attn_mask", "key_padding_mask", "both", "numbers", "heads"])
def test_multihead_attention(masks: str, average: bool) -> None:
    def call(layer: Any, x: Any, hidden: Any, padding: Any, added: Any) -> Any:
        options = {"none": {}, "attn_mask": {"attn_mask": hidden},
                   "key_padding_mask": {"key_padding_mask": padding},
                   "both": {"attn_mask": hidden, "key_padding_mask": padding},
                   "numbers": {"attn_mask": added[0]}, "heads": {"attn_mask": added}}[masks]
        return layer(x, x, x, **options, average_attn_weights=average)

    check(lambda nn: nn.MultiheadAttention(8, 2, batch_first=True), numbers(3, 5, 8), HIDDEN, PADDING,
          numbers(6, 5, 5), call=call)


@pytest.mark.parametrize("options", [
    {"kdim": 5, "vdim": 6}, {"kdim": 5, "bias": False}, {"vdim": 6, "add_zero_attn": True},
    {"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5}])
def test_attention_to_other_features_and_added_keys(options: dict[str, Any]) -> None:
    def call(layer: Any, x: Any, key: Any, value: Any, hidden: Any, padding: Any) -> Any:
        return layer(x, key, value, attn_mask=hidden, key_padding_mask=padding)

    key, value = numbers(3, 5, options.get("kdim", 8)), numbers(3, 5, options.get("vdim", 8))
    check(lambda nn: nn.MultiheadAttention(8, 2, batch_first=True, **options), numbers(3, 4, 8), key, value,
          HIDDEN[:4], PADDING, call=call)
    check(lambda nn: nn.MultiheadAttention(8, 2, **options), numbers(4, 8), key[0], value[0],
          call=lambda layer, *xs: layer(*xs, need_weights=False))


def parametrized(utils: Any, name: str, module: Any, older: bool, **options: Any) -> Any:
    return getattr(utils if older else utils.parametrizations, name)(module, **options)


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("name, options", [
    ("weight_norm", {}), ("weight_norm", {"dim": 1}), ("weight_norm", {"dim": None}),
    ("spectral_norm", {}), ("spectral_norm", {"dim": 1, "n_power_iterations": 2})])
def test_weights_that_are_computed(name: str, options: dict[str, Any], older: bool) -> None:
    for make, x in ((lambda nn: nn.Linear(6, 4), ROWS), (lambda nn: nn.Conv2d(4, 3, 3), IMAGE),
                    (lambda nn: nn.ConvTranspose2d(4, 3, 3, bias=False), IMAGE)):
        check(lambda nn, make=make: parametrized(nn.utils, name, make(nn), older, **options), x)


@pytest.mark.parametrize("older", [True, False])
def test_spectral_norms_are_estimated_step_by_step_in_training(older: bool) -> None:
    theirs, ours = (parametrized(lib.utils, "spectral_norm", lib.Linear(6, 4), older)
                    for lib in (torch.nn, nn))
    state = {key: Tensor(value.numpy().copy()) for key, value in theirs.state_dict().items()}
    nn.state.load_state_dict(ours, state, verbose=False)
    with Tensor.train():
        for _ in range(3):
            close("in training", ours(Tensor(ROWS)), theirs(torch.tensor(ROWS)))
    close("after it", ours(Tensor(ROWS)), theirs.eval()(torch.tensor(ROWS)))
    own = nn.state.get_state_dict(ours)
    for key, value in theirs.state_dict().items():
        close(key, own[key], value)


LAZY: dict[str, tuple[Make, tuple[Array, ...]]] = {
    "LazyLinear": (lambda nn: nn.LazyLinear(4), (ROWS,)),
    "LazyLinear without bias": (lambda nn: nn.LazyLinear(4, bias=False), (numbers(2, 3, 6),)),
    **{f"Lazy{name}{axes}d {args} {shape}": (
        lambda nn, name=f"Lazy{name}{axes}d", args=args: getattr(nn, name)(*args), (numbers(*shape),))
       for axes in (1, 2, 3) for name, args in (("Conv", (6, 3, 2, 1)), ("ConvTranspose", (2, 3, 2, 1)),
                                                ("BatchNorm", ()), ("InstanceNorm", ()))
       for shape in ((2, 4, *(6,) * axes),)},
    "LazyConv2d of one image": (lambda nn: nn.LazyConv2d(3, 2), (IMAGE[0],)),
    "LazyBatchNorm1d of rows": (lambda nn: nn.LazyBatchNorm1d(), (ROWS,)),
}


@pytest.mark.parametrize("name", LAZY)
def test_layers_that_take_the_size_of_their_input(name: str) -> None:
    make, inputs = LAZY[name]

    def called(nn: Any) -> Any:
        layer, x = make(nn).eval() if nn is torch.nn else make(nn), inputs[0]
        layer(torch.tensor(x) if nn is torch.nn else Tensor(x))
        return layer
    check(called, *inputs)
    assert "Lazy" not in type(called(nn)).__name__


def test_attention_to_another_sequence_without_weights() -> None:
    check(lambda nn: nn.MultiheadAttention(8, 4, bias=False), numbers(5, 3, 8), numbers(4, 3, 8),
          call=lambda layer, x, y: layer(x, y, y, need_weights=False))
    check(lambda nn: nn.MultiheadAttention(8, 4), numbers(5, 8), numbers(4, 8),
          call=lambda layer, x, y: layer(x, y, y))


def test_a_transformer_under_masks() -> None:
    check(lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
          numbers(3, 5, 8), HIDDEN, call=lambda layer, x, hidden: layer(x, hidden, is_causal=True))


@pytest.mark.parametrize("hint", [None, True])
def test_an_encoder_and_a_decoder_under_masks(hint: bool | None) -> None:
    def call(layer: Any, src: Any, tgt: Any, padding: Any) -> Any:
        hidden = layer.generate_square_subsequent_mask(4)
        return layer(src, tgt, tgt_mask=hidden, src_key_padding_mask=padding,
                     memory_key_padding_mask=padding, tgt_is_causal=hint)

    check(lambda nn: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), numbers(3, 5, 8), numbers(3, 4, 8),
          PADDING, call=call)


def test_a_transformer_begins_with_its_distribution_and_says_what_it_takes() -> None:
    Tensor.manual_seed(3)
    model = nn.Transformer(32, 2, 1, 1, 64)
    state = nn.state.get_state_dict(model)
    weight = state["encoder.layers.0.self_attn.in_proj_weight"].numpy()
    bound = np.sqrt(6 / (4 * 32))
    assert 0.95 * bound < np.abs(weight).max() <= bound
    with pytest.raises(ValueError, match="Transformer takes src and tgt of as many sequences of 32 features"):
        model(Tensor.ones(5, 3, 32), Tensor.ones(4, 2, 32))
