"""Pipeline parallel: the layers of a model on devices one after another, a batch in pieces through them.

In: stages, functions of a tensor, and where each is. Out: the gradients and the loss of the whole batch. Each
stage runs forward and backward passes in turn (1F1B; Narayanan and others, "PipeDream", 2019), so that of the
pieces of a batch no stage holds more than there are stages from it to the last; a piece is held as the
stage's input, from which the backward pass computes the rest again. Devices copy what one stage gives the
next, and its gradient.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tinygrad.graph.sharding import Devices
from tinygrad.nn.parallel import replicate
from tinygrad.nn.state import get_parameters
from tinygrad.tensor import Tensor


class Pass(NamedTuple):
    """A piece of the batch through a stage."""

    stage: int
    piece: int
    is_forward: bool


def one_forward_one_backward(stages: int, pieces: int) -> Iterator[Pass]:
    """All passes, each after those it needs, in the order of a clock at whose ticks every stage makes one.

    >>> [(p.stage, p.piece) for p in one_forward_one_backward(2, 2) if p.is_forward]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    plans = [list(_passes_of(stage, stages, pieces)) for stage in range(stages)]
    done: set[Pass] = set()
    while any(plans):
        tick = [plan.pop(0) for plan in plans if plan and _needed(plan[0], stages) <= done]
        done.update(tick)
        yield from tick


def _passes_of(stage: int, stages: int, pieces: int) -> Iterator[Pass]:
    """Those of one stage: forward until as many are under way as stages follow, then in turn."""
    ahead = min(stages - stage, pieces)
    yield from (Pass(stage, piece, True) for piece in range(ahead))
    for piece in range(pieces):
        yield Pass(stage, piece, False)
        if piece + ahead < pieces:
            yield Pass(stage, piece + ahead, True)


def _needed(this: Pass, stages: int) -> set[Pass]:
    stage, piece, is_forward = this
    if is_forward:
        return {Pass(stage - 1, piece, True)} if stage else set()
    return {Pass(stage, piece, True)} | ({Pass(stage + 1, piece, False)} if stage < stages - 1 else set())


class Pipeline:
    """A model whose stages are on devices of their own.

    stages: functions (layers) of one tensor, whose parameters are moved to `places`: for each stage the name
    of a device, or those of several, over which the rows of each piece are cut (data parallel). A parameter
    of several stages (tied weights) is where the first of them is; the others get it once a batch, and send
    their gradient of it back once. `loss`: a function of the last stage's result and the targets, the mean
    over rows. Raises ValueError where there are not as many places as stages.

    >>> model = [nn.Linear(4, 8), nn.Linear(8, 2)]
    >>> pipeline = nn.Pipeline(model, ("CPU", "CPU:1"), lambda y, target: (y - target).square().mean())
    >>> optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)
    >>> with Tensor.train():
    ...     loss = pipeline.backward(Tensor.ones(8, 4), Tensor.zeros(8, 2), pieces=4)
    ...     optimizer.step()
    >>> model[1].weight.device, loss.shape
    ('CPU:1', ())
    """

    def __init__(self, stages: Sequence[Callable[[Tensor], Tensor]], places: Sequence[Devices],
                 loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        if len(stages) != len(places) or not stages:
            raise ValueError(f"a pipeline takes a place for each stage, got {len(stages)} stages and "
                             f"{len(places)} places")
        self.stages = list(stages)
        self.places = list(places)
        self.loss = loss
        self.visiting: list[list[Tensor]] = []
        """by stage, the parameters that are in the place of a stage before it"""
        home: dict[int, Devices] = {}
        for stage, place in zip(stages, places, strict=True):
            parameters = get_parameters(stage)
            for p in parameters:
                if id(p) not in home and isinstance(place, str):
                    p.to_(place)
                elif id(p) not in home:
                    replicate(p, place)
                home.setdefault(id(p), place)
            self.visiting.append([p for p in parameters if home[id(p)] != place])

    def __call__(self, x: Tensor) -> Tensor:
        """The result of all stages, on the places of the last."""
        for stage, place, visiting in zip(self.stages, self.places, self.visiting, strict=True):
            with _standing_for(visiting, [_whole(p, place) for p in visiting]):
                x = stage(_moved(x, place))
        return x

    def backward(self, x: Tensor, target: Tensor, pieces: int) -> Tensor:
        """Run a batch through all stages and back, in so many pieces; returns the loss.

        Adds the gradients to those of the parameters, as `Tensor.backward` does; both are computed. x and
        target have the same number of rows, along their first axis. Raises ValueError for rows that are no
        multiple of the pieces: they would not weigh the same.
        """
        if pieces < 1 or x.shape[0] % pieces or x.shape[0] != target.shape[0]:
            raise ValueError(f"a pipeline takes as many rows as targets, a multiple of the pieces, got "
                             f"{x.shape[0]} rows, {target.shape[0]} targets and {pieces} pieces")
        batch = _Batch(self, x.chunk(pieces), target.chunk(pieces))
        for this in one_forward_one_backward(len(self.stages), pieces):
            (batch.forward if this.is_forward else batch.backward)(this.stage, this.piece)
        batch.return_gradients()
        return batch.losses


class _Batch:
    """What is under way of a batch."""

    def __init__(self, pipeline: Pipeline, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.pipeline = pipeline
        self.targets = targets
        self.losses = Tensor(0.0)
        self.sent: dict[tuple[int, int], Tensor] = {(0, i): x for i, x in enumerate(inputs)}
        """what a stage gets of a piece"""
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """by stage and piece, what went in and what came out"""
        self.gradients: dict[tuple[int, int], Tensor] = {}
        """of what came out"""
        self.visitors = [[_whole(p.detach(), place).realize() for p in visiting]
                         for place, visiting in zip(pipeline.places, pipeline.visiting, strict=True)]
        """by stage, its `visiting` parameters where it is"""
        for visiting, visitors in zip(pipeline.visiting, self.visitors, strict=True):
            for p, visitor in zip(visiting, visitors, strict=True):
                visitor.requires_grad = p.dtype.is_float and p.requires_grad is not False

    def forward(self, stage: int, piece: int) -> None:
        pipeline = self.pipeline
        x = _moved(self.sent.pop((stage, piece)), pipeline.places[stage]).detach().realize()
        if stage:
            x.requires_grad = True
        with _standing_for(pipeline.visiting[stage], self.visitors[stage]):
            y = pipeline.stages[stage](x)
        if stage == len(pipeline.stages) - 1:
            y = pipeline.loss(y, _moved(self.targets[piece], pipeline.places[stage])) / len(self.targets)
            self.losses = self.losses + y.detach().to(self.losses.device)
        else:
            self.sent[stage + 1, piece] = y.detach()
        y.realize()
        self.held[stage, piece] = x, y

    def backward(self, stage: int, piece: int) -> None:
        x, y = self.held.pop((stage, piece))
        here = {id(p): visitor for p, visitor in
                zip(self.pipeline.visiting[stage], self.visitors[stage], strict=True)}
        parameters = [here.get(id(p), p) for p in get_parameters(self.pipeline.stages[stage])
                      if p.dtype.is_float and p.requires_grad is not False]
        inputs = [x] if stage else []
        found = y.gradient(*parameters, *inputs, gradient=self.gradients.pop((stage, piece), None))
        for p, gradient in zip(parameters, found, strict=False):
            p.grad = gradient if p.grad is None else p.grad + gradient
        computed = [*(p.grad for p in parameters if p.grad is not None), *found[len(parameters):]]
        if computed:
            Tensor.realize(*computed)
        if stage:
            self.gradients[stage - 1, piece] = _moved(found[-1], self.pipeline.places[stage - 1]).detach()

    def return_gradients(self) -> None:
        """Add what the stages that parameters visited found to the gradients of these."""
        for visiting, visitors in zip(self.pipeline.visiting, self.visitors, strict=True):
            for p, visitor in zip(visiting, visitors, strict=True):
                if visitor.grad is not None:
                    gradient = visitor.grad.shard_like(p)
                    p.grad = (gradient if p.grad is None else p.grad + gradient).realize()


@contextmanager
def _standing_for(parameters: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[None]:
    """A block in which parameters stand for the values of others."""
    own = [p.uop for p in parameters]
    for p, other in zip(parameters, others, strict=True):
        p.uop = other.uop
    try:
        yield
    finally:
        for p, uop in zip(parameters, own, strict=True):
            p.uop = uop


def _whole(x: Tensor, place: Devices) -> Tensor:
    """A parameter where a stage is."""
    return x.to(place) if isinstance(place, str) else x.shard(place)


def _moved(x: Tensor, place: Devices) -> Tensor:
    """The rows of a piece where a stage is."""
    return x.to(place) if isinstance(place, str) else x.shard(place, 0)
