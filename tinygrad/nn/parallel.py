"""Training on several devices: what is whole on each of them, what is cut, and what they exchange.

In: a model and its optimizer, as on one device, and the names of devices (of one host, or those of ranks).
Out: the same objects over tensors that lie on all of them (`Tensor.shard`); values, gradients and the
training loop stay those of one device. Everything here is a choice of layouts: what is exchanged follows from
those (`schedule/partition.py`, docs/several_devices.md). On a mesh each is given the axis that it is about:
`mesh["data"]`, `mesh["model"]`.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tinygrad.functional.mesh import Mesh as Mesh
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Sharding
from tinygrad.graph.uop import UOp
from tinygrad.helpers import dedup
from tinygrad.nn.layers import Embedding, Linear
from tinygrad.nn.optim import Optimizer, OptimizerGroup
from tinygrad.nn.state import get_parameters
from tinygrad.tensor import Tensor

Model = TypeVar("Model")


# --- layouts of parameters --------------------------------------------------------------------------------


def replicate(model: Model, devices: Sequence[str]) -> Model:
    """Put every tensor of `model` that is on one device whole on each of `devices`; returns the model.

    Data parallel: with batches cut along their first axis (`x.shard(devices, 0)`), each device computes its
    rows, and gradients are summed over all of them. With n devices and P bytes of parameters a step copies
    2 P (n - 1) bytes in all.

    >>> devices = ("CPU", "CPU:1")
    >>> model = nn.parallel.replicate([nn.Linear(4, 8), nn.Linear(8, 2)], devices)
    >>> loss = Tensor.ones(6, 4).shard(devices, 0).sequential(model).mean().backward()
    >>> model[0].weight.grad.shape, model[0].weight.grad.device
    ((8, 4), ('CPU', 'CPU:1'))
    """
    for t in get_parameters(model):
        if not isinstance(t.device, tuple):
            t.shard_(devices)
    return model


def column_parallel(layer: Linear, devices: Sequence[str]) -> Linear:
    """Cut a linear layer by its outputs, each device with some of them; returns the layer.

    The first of a pair (Shoeybi and others, "Megatron-LM", 2019): it takes inputs that are whole on each
    device and copies nothing; its outputs are cut along their last axis, as `row_parallel` takes them.
    In the backward pass the gradient of its inputs is summed over the devices. Raises ValueError for fewer
    outputs than devices.

    >>> devices = ("CPU", "CPU:1")
    >>> up = nn.parallel.column_parallel(nn.Linear(4, 8), devices)
    >>> down = nn.parallel.row_parallel(nn.Linear(8, 4), devices)
    >>> x = Tensor.ones(2, 4).shard(devices)
    >>> (down(up(x).relu())).shape
    (2, 4)
    """
    layer.weight.shard_(devices, 0)
    if layer.bias is not None:
        layer.bias.shard_(devices, 0)
    return layer


def row_parallel(layer: Linear, devices: Sequence[str]) -> Linear:
    """Cut a linear layer by its inputs, each device with some of them; returns the layer.

    The second of a pair: it takes what `column_parallel` gives. The partial products are summed over the
    devices, and the result is whole on each. Raises ValueError for fewer inputs than devices.
    """
    layer.weight.shard_(devices, 1)
    if layer.bias is not None:
        layer.bias.shard_(devices)
    return layer


def vocabulary_parallel(layer: Embedding, devices: Sequence[str]) -> Embedding:
    """Cut an embedding by its rows, each device with some of the vocabulary; returns the layer.

    Each device looks up the numbers that it has; the vectors, zeros elsewhere, are summed over the devices.
    Scores of a vocabulary that is cut (`column_parallel` of the last layer) go into
    `sparse_categorical_crossentropy` as they are: devices exchange the largest score, the sum and the
    label's score of each row, not the scores.

    >>> devices = ("CPU", "CPU:1")
    >>> embedding = nn.parallel.vocabulary_parallel(nn.Embedding(10, 4), devices)
    >>> head = nn.parallel.column_parallel(nn.Linear(4, 10, bias=False), devices)
    >>> tokens = Tensor([1, 2, 9]).shard(devices)
    >>> head(embedding(tokens)).sparse_categorical_crossentropy(tokens).shape
    ()
    """
    layer.weight.shard_(devices, 0)
    return layer


# --- ZeRO -------------------------------------------------------------------------------------------------


class ZeRO(Optimizer):
    """An optimizer whose work is divided among the devices of its parameters (Rajbhandari and others, "ZeRO:
    memory optimizations toward training trillion parameter models", 2019).

    optimizer: over parameters that lie on several devices (`replicate`). stage 1: the optimizer's state is
    cut, each device updates its part of the parameters, and those are gathered. Stage 2: gradients are cut
    too, as soon as `backward` has made them: what is kept between the passes of an accumulation is a part.
    Stage 3: parameters are cut as well, of which each layer gathers its own (`fully_shard`), in the backward
    pass again: between its uses a layer is held in parts.

    A parameter is cut along an axis that is a multiple of the devices where it has one, else along its
    longest; one that has no axis as long as there are devices stays whole. Those that are cut already (tensor
    parallel) stay as they are; with `devices`, the axis of data of a mesh, they are cut along that further.
    With n devices and P bytes of parameters, stages 1 and 2 copy 2 P (n - 1) bytes a step in all, as data
    parallel alone does: gradients are reduce-scattered, parameters gathered. Stage 3 gathers twice and copies
    3 P (n - 1). Raises ValueError for parameters that are not on several devices, and for other stages.

    >>> devices = ("CPU", "CPU:1")
    >>> model = nn.parallel.replicate(nn.Linear(4, 2), devices)
    >>> optimizer = nn.parallel.ZeRO(nn.optim.Adam([model.weight, model.bias]), stage=2)
    >>> with Tensor.train():
    ...     loss = optimizer.backward(model(Tensor.ones(6, 4).shard(devices, 0)).square().mean())
    ...     optimizer.step()
    """

    def __init__(self, optimizer: Optimizer, stage: int = 1, devices: Mesh | None = None) -> None:
        if stage not in (1, 2, 3):
            raise ValueError(f"ZeRO has stages 1, 2 and 3, got {stage}")
        alone = next((p for p in optimizer.params if not isinstance(p.device, tuple)), None)
        if alone is not None:
            raise ValueError("ZeRO takes parameters that are on several devices, got one of shape "
                             f"{alone.shape} on {alone.device}; nn.parallel.replicate(model, devices) puts "
                             "them there")
        self.optimizer = optimizer
        self.stage = stage
        self.devices = devices
        self.axes = [_axis_to_cut(p, devices) for p in optimizer.params]
        for one in _optimizers(optimizer):
            for state in _states(one):
                _cut(state, [_axis_to_cut(p, devices) for p in one.params], devices)
        if stage == 3:
            _cut(optimizer.params, self.axes, devices)
        self.params, self.buffers = optimizer.params, optimizer.buffers

    def backward(self, loss: Tensor) -> Tensor:
        """`loss.backward()`, whose gradients are cut from stage 2 on; returns the loss."""
        loss.backward()
        if self.stage == 3:
            _gather_again(loss, self.params)
        if self.stage > 1:
            self._scatter()
        return loss

    def schedule_step(self) -> list[Tensor]:
        """The tensors of one update, assigned but not realised. Gradients are cut."""
        self._scatter()
        return self.optimizer.schedule_step()

    def _scatter(self) -> None:
        for p, axis in zip(self.params, self.axes, strict=True):
            if p.grad is not None and axis is not None:
                p.grad = p.grad.shard(self.devices or p.device, axis)


def fully_shard(layer: Model, devices: Mesh | None = None) -> Model:
    """Let a layer gather its parameters, those of the layers in it too, when it is called; returns it.

    For parameters that are cut (`ZeRO` of stage 3): within the call they are whole on every device, as
    attributes of the layers, and in parts again after it. Names, state and the class's own methods stay. A
    model's layers are given one by one, so that no more of them than needed are whole at a time. devices:
    on a mesh the axis of data, along which alone they are gathered.

    >>> devices = ("CPU", "CPU:1")
    >>> model = nn.parallel.replicate([nn.Linear(4, 8), nn.Linear(8, 2)], devices)
    >>> optimizer = nn.parallel.ZeRO(nn.optim.SGD(nn.state.get_parameters(model)), stage=3)
    >>> layers = [nn.parallel.fully_shard(layer) for layer in model]
    >>> with Tensor.train():
    ...     x = Tensor.ones(6, 4).shard(devices, 0)
    ...     loss = optimizer.backward(x.sequential(layers).square().mean())
    ...     optimizer.step()
    """
    kind = type(layer)
    if not callable(layer):
        raise TypeError(f"fully_shard takes a layer that is called, got a {kind.__name__}")
    layer.__class__ = type(kind.__name__, (_Gathering, kind),
                           {"__module__": kind.__module__, "_gathered_over": devices})
    return layer


class _Gathering:
    """Before a layer's own class: calls it with its parameters gathered."""

    _gathered_over: Mesh | None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with _gathered(get_parameters(self), self._gathered_over):
            return super().__call__(*arguments, **named)  # type: ignore[misc]


@contextmanager
def _gathered(parameters: Sequence[Tensor], devices: Mesh | None) -> Iterator[None]:
    """A block in which these tensors stand for their values gathered over their devices, or those given."""
    cut = [p for p in dedup(parameters) if p._cuts]
    parts = [p.uop for p in cut]
    for p in cut:
        p.uop = p.shard(devices or p.device).uop
    try:
        yield
    finally:
        for p, part in zip(cut, parts, strict=True):
            p.uop = part


def _gather_again(loss: Tensor, parameters: Sequence[Tensor]) -> None:
    """Let the gradients of cut parameters be computed from parameters gathered once more, not from those that
    the forward pass gathered: those are free until then."""
    own = {p.uop for p in parameters}
    forward = loss.uop.toposort()
    again: dict[UOp, UOp] = {}
    of_weights: set[UOp] = set()
    for node in forward:
        if node.op is Ops.COPY and isinstance(node.arg, Sharding) and node.src[0] in own:
            again[node] = UOp.new(Ops.CONTIGUOUS, node.dtype, (node.src[0],)).shard(node.arg)
        elif node.src and all(s in again or s in of_weights or s.device is None for s in node.src):
            of_weights.add(node)

    def kept(node: UOp) -> UOp | None:
        return node if node in forward and node not in of_weights else None

    done = again
    for p in parameters:
        if p.grad is not None:
            p.grad = Tensor.of(p.grad.uop.rebuild(None, kept, done), p)


def _optimizers(optimizer: Optimizer) -> Iterator[Optimizer]:
    if isinstance(optimizer, OptimizerGroup):
        for one in optimizer.optimizers:
            yield from _optimizers(one)
    else:
        yield optimizer


def _states(optimizer: Optimizer) -> Iterator[list[Tensor]]:
    """What an optimizer keeps for each of its parameters, in lists in their order."""
    shapes = [p.shape for p in optimizer.params]
    for value in vars(optimizer).values():
        if isinstance(value, list) and value is not optimizer.params \
                and [getattr(t, "shape", None) for t in value] == shapes:
            yield value


def _axis_to_cut(p: Tensor, devices: Mesh | None) -> int | None:
    """The axis along which a tensor on several devices can be cut best, further where it is cut on a mesh."""
    cuts = {cut.axis: max(end - start for start, end in cut.spans) for cut in p._cuts}
    if cuts and devices is None:
        return next(iter(cuts))
    count = len(p.device) if devices is None else len(devices.lines[0])
    sizes = [cuts.get(axis, size) for axis, size in enumerate(p.shape)]
    longest = sorted(range(p.ndim), key=lambda a: (a in cuts, sizes[a] % count != 0, -sizes[a], a))
    return next((a for a in longest if sizes[a] >= count), None)


def _cut(tensors: Sequence[Tensor], axes: Sequence[int | None], devices: Mesh | None) -> None:
    for t, axis in zip(tensors, axes, strict=True):
        if axis is not None:
            t.shard_(devices or t.device, axis)
    Tensor.realize(*tensors)
