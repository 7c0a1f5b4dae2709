"""Compiled graphs on PyTorch's memory: one call is traced, the next ones are one native command.

In: a `GraphProgram`. Out: `Replayed`, a function of `torch.Tensor`s. Its first call with such shapes and
strides gives the tensors to TinyJit by DLPack. Where the trace is one list of kernels that write nothing but
its results, `Launch` keeps what a call needs of it: the addresses of arguments and results go straight into
the kernels' arguments, and the results are PyTorch's own tensors. Other traces are replayed by TinyJit.

Where sizes vary, one trace serves those within bounds (`sizes.py`), and there is a `Launch` for each. What
cannot be computed so is traced for each size. More traces of a graph than PyTorch's `recompile_limit` are
none: PyTorch runs it.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._dynamo.utils import counters
from torch.fx import GraphModule, Node

from tinygrad.device import Buffer, Device
from tinygrad.device.queue import ThreadedQueue
from tinygrad.engine.capture import Capture
from tinygrad.engine.replay import SlotKind, Together, Values
from tinygrad.frozen import frozen
from tinygrad.graph.ops import Ops, Visibility
from tinygrad.graph.sizes import Size, SizeError, bound, is_symbolic, largest_shape, shape_value, value_of
from tinygrad.graph.uop import UOp
from tinygrad.helpers import DEBUG, JIT, argsort
from tinygrad.jit.arguments import Inputs, Slot
from tinygrad.jit.jit import PureJit, Tracer
from tinygrad.jit.trace import SEED, Trace, argument_source
from tinygrad.tensor import Tensor
from tinygrad.tensor.generator import seeded
from tinygrad.torch.aliases import viewed
from tinygrad.torch.checks import collected
from tinygrad.torch.evaluate import FREE_LAYOUT, GraphProgram, dtype_of
from tinygrad.torch.registry import BesideTensor
from tinygrad.torch.results import Result, Results
from tinygrad.torch.sizes import expression_of, laid_out, size_of, steps_of, strides_in_order, symbols_of
from tinygrad.torch.threads import LONG_CALL, end_waiting_threads

Array = np.ndarray[Any, Any]


def require_cpu(value: Any) -> None:
    """Raises ValueError for a tensor of another device."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        raise ValueError(f"the backend tinygrad takes tensors of the CPU, this one is on {value.device}")


def to_torch(value: Any) -> Any:
    """PyTorch's tensor over the memory of ours, with the strides that later calls give; what is no tensor as
    it is."""
    if not isinstance(value, Tensor):
        return value
    tensor = torch.from_dlpack(value)
    return tensor.as_strided(tensor.shape, steps_of(tensor.shape, tensor.stride()))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the items lie without gaps, in whatever order of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return expected > 0


def order_in_memory(value: Any) -> tuple[int, ...] | None:
    """The axes in the order in which they lie; none for numbers and for memory with gaps."""
    if not isinstance(value, torch.Tensor) or not is_dense(value):
        return None
    strides = value.stride()
    return tuple(sorted(range(value.ndim), key=lambda axis: -strides[axis]))


def order_in_pytorch(output: Node) -> tuple[int, ...] | None:
    """The axes of a node's value in the order in which they lie where PyTorch computes it, sizes that vary as
    in the example; none for the order in which they follow each other, and for memory with gaps."""
    value = output.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    shape, strides = ([n if isinstance(n, int) else n.node.hint for n in numbers]
                      for numbers in (value.shape, value.stride()))
    if None in (*shape, *strides):
        return None
    example = torch.empty_strided(shape, strides, device="meta")
    return None if example.is_contiguous() else order_in_memory(example)


def from_torch(value: Any, order: tuple[int, ...] | None) -> Any:
    """Our tensor over the memory of PyTorch's, its axes in this order, without an order over a copy; numbers
    as they are. Raises ValueError for other devices."""
    if not isinstance(value, torch.Tensor):
        return value
    require_cpu(value)
    value = value.detach().resolve_neg()
    return Tensor.from_dlpack(value.contiguous() if order is None else value.permute(order))


class Repeated(NamedTuple):
    """A result that is another one's value: two gradients that are one sum."""

    number: int
    first: int
    """the number of the other, which comes before it"""
    result: Result

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """It, in memory of its own, but for what only a backward pass reads: others may write into it."""
        shown = value.as_strided(self.result.shape, self.result.strides)
        return shown if self.result.is_kept else shown.clone()


@frozen
class Launch:
    """One command of the CPU's queue, on memory that each call gives."""

    command: Together
    queue: ThreadedQueue
    read: Callable[[Sequence[Any]], list[Any]]
    """the arguments that the kernels read, of those that a call gives"""
    gaps: tuple[int, ...]
    """which of these, by their numbers there, are copied first: their memory has gaps, or is to be negated"""
    larger: tuple[tuple[int, tuple[int, ...]], ...]
    """which of these are laid out for a larger shape first, and for which"""
    results: Results
    """makes memory for each result"""
    shapes: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    """the shapes and strides of those results that are smaller than their memory, by their numbers"""
    places: Array
    """for each argument of the kernels that changes, where in a call's table it stands: the addresses of
    what `read` gives, then of `results`, then the seed, then numbers that never change"""
    constants: tuple[int, ...]
    memory: tuple[Buffer, ...]
    """what some of these are addresses of: tables of numbers that the graph brings"""
    returned: tuple[Any, ...] | None
    """what a call returns, a `Slot` for each result; none where there is nothing else"""
    repeated: tuple[Repeated, ...] = ()
    """results that are computed as others, in the order of their numbers"""

    def returning(self, sizes: Mapping[int, int]) -> Launch:
        """The same with these numbers among what it returns."""
        assert self.returned is not None
        return replace(self, returned=tuple(sizes.get(i, item) for i, item in enumerate(self.returned)))

    def __call__(self, given: Sequence[Any], seed: int) -> list[Any]:
        tensors = self.read(given)
        for number in self.gaps:
            tensors[number] = tensors[number].resolve_neg().contiguous()
        for number, shape in self.larger:
            tensors[number] = laid_out(tensors[number], shape)
        results = self.results()
        table = list(map(address_of, tensors))
        table += map(address_of, results)
        table.append(seed)
        table += self.constants
        values = np.array(table, np.int64)[self.places]
        command = self.command
        if command.seconds > LONG_CALL:
            end_waiting_threads()
        point = self.queue.exec_list(command.kernels, command.changing, values, command.seconds)
        if point is not None:
            point.wait()
        command.count_run()
        for number, shape, steps in self.shapes:  # in place: AOTAutograd makes the base of a view again
            results[number] = results[number].as_strided_(shape, steps).contiguous()
        for again in self.repeated:
            results.insert(again.number, again.of(results[again.first]))
        if self.returned is None:
            return results
        return [results[item.position] if isinstance(item, Slot) else item for item in self.returned]


def launch_of(trace: Trace, inputs: Inputs, given: Sequence[Any], larger: Mapping[int, tuple[int, ...]],
              kept: Collection[int]) -> Launch | None:
    """The launch of a trace on the CPU whose results are new memory, each its own; None for others. `larger`
    has, by the numbers of arguments, the shapes that their memory is laid out for; `kept` are the numbers of
    results that only a backward pass reads."""
    command = trace.engine.one_command
    queue = Device["CPU"].queue
    tensors = [number for number, value in enumerate(given) if isinstance(value, torch.Tensor)]
    if command is None or command.device != "CPU" or not isinstance(queue, ThreadedQueue):
        return None
    if trace.written_states or trace.gradients or trace.written_inputs:
        return None
    if inputs.owner != list(range(len(tensors))):
        return None
    found = results_of(trace, kept)
    if found is None:
        return None
    own, results, repeated = found
    read = dict(trace.input_places)
    used = {place for _, place in command.places}
    tables = {n: trace.places[n].state for n in used if trace.places[n].is_constant}
    if not used <= read.keys() | set(own) | tables.keys():
        return None
    arguments = [place for place in sorted(used & read.keys())]
    position = {place: i for i, place in enumerate([*arguments, *own])}
    position |= {place: len(position) + 1 + i for i, place in enumerate(tables)}
    numbers = [position[place] for _, place in command.places]
    memory = tuple(node.buffer for node in tables.values() if node is not None and node.buffer is not None)
    constants = [buffer.address for buffer in memory]
    seed = len(arguments) + len(own)
    values = Values({}, {argument_source(name): value for name, value in inputs.variables.items()})
    for _, variable in command.variables:
        if variable.source == SEED:
            numbers.append(seed)
        else:
            numbers.append(seed + 1 + len(constants))
            constants.append(values.of(variable))
    smaller = [(number, shape_value(output.view.with_sizes(lambda size: bound(size, inputs.variables)).shape),
                strides_in_order(largest_shape(output.view.shape)))
               for number, output in enumerate(trace.outputs) if output.view.has_sizes]
    shapes = [(number, shape, steps_of(shape, strides)) for number, shape, strides in smaller]
    owners = [tensors[read[place]] for place in arguments]
    gaps = [i for i, number in enumerate(owners) if number not in larger and
            (given[number].is_neg() or not is_dense(given[number]))]
    return Launch(command, queue, picking(owners), tuple(gaps),
                  tuple((i, larger[number]) for i, number in enumerate(owners) if number in larger),
                  Results(results), tuple(shapes), np.array(numbers, np.intp), tuple(constants), memory,
                  None if all(isinstance(item, Slot) for item in trace.structure) else tuple(trace.structure),
                  repeated)


def results_of(trace: Trace, kept: Collection[int]
               ) -> tuple[list[int], list[Result], tuple[Repeated, ...]] | None:
    """The places of a trace's results, what lies there, and the results that are another one's value; None
    where one is not all of some new memory."""
    first: dict[int, int] = {}
    results, repeated = [], []
    for number, output in enumerate(trace.outputs):
        if len(output.places) != 1 or output.argument is not None:
            return None
        place = trace.places[output.places[0]]
        strides = strides_in_memory(output.view)
        if place.kind is not SlotKind.FRESH or place.content is not None or strides is None:
            return None
        before = first.setdefault(output.places[0], number)
        result = Result(largest_shape(output.view.shape), strides, torch_dtype(output.view.dtype),
                        number in kept and before in kept)
        if before == number:
            results.append(result)
        else:
            repeated.append(Repeated(number, before, result))
    if repeated and any(output.view.has_sizes for output in trace.outputs):
        return None
    return list(first), results, tuple(repeated)


address_of = torch.Tensor.data_ptr


def picking(numbers: Sequence[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that takes the items with these numbers out of a sequence."""
    if len(numbers) < 2:
        return lambda given: [given[number] for number in numbers]
    take = itemgetter(*numbers)
    return lambda given: list(take(given))


def zeros_of(node: Node) -> Tensor:
    """What a gradient is that nobody gives."""
    example = node.meta["val"]
    return Tensor.zeros(*example.shape, dtype=dtype_of(example.dtype), device="CPU")


def with_zeros(inputs: Sequence[Node], given: Sequence[Any]) -> tuple[Any, ...]:
    """A call's arguments with memory for gradients that nobody gives."""
    if all(value is not None for value in given):
        return tuple(given)
    return tuple([value if value is not None else
                  torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype)
                  for node, value in zip(inputs, given)])


def as_stored(view: UOp) -> UOp | None:
    """A view of a value that is stored, its axes in any order where the view keeps them; None where strides
    cannot say what it shows of that."""
    chain = [view]
    while chain[-1].op in (Ops.RESHAPE, Ops.PERMUTE):
        chain.append(chain[-1].src[0])
    value = chain.pop()
    free = None if any(node.op is Ops.RESHAPE for node in chain) else Visibility.ANY_ORDER
    stored = UOp.new(Ops.CONTIGUOUS, value.dtype, (value,), free)
    for node in reversed(chain):
        stored = node.with_sources((stored,))
    return stored if free is not None or strides_in_memory(stored) is not None else None


def strides_in_memory(view: UOp) -> tuple[int, ...] | None:
    """The strides of a view that shows all of its memory, from the beginning on, in whatever order of axes;
    None of others. Memory is laid out for the bounds of sizes that vary."""
    whole = largest_shape(view.shape)
    if view.has_sizes:
        return strides_in_order(whole) if view.is_whole_buffer else None
    shown, *others = view.st.simplify().views
    steps = steps_of(whole, shown.strides)
    order = sorted(range(len(whole)), key=lambda axis: -steps[axis])
    if others or shown.offset or not shown.permute(order).contiguous:
        return None
    strides = strides_in_order([whole[axis] for axis in order])
    return tuple(strides[place] for place in argsort(order))


DTYPES = {dtype_of(dtype): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2)}


def torch_dtype(dtype: Any) -> torch.dtype:
    return DTYPES[dtype]


class TooManyTraces(RuntimeError):
    """A graph was traced as often as PyTorch compiles a function."""


class CountedJit(PureJit[Any, Any]):
    """Traces are counted, in PyTorch's counters too; one beyond PyTorch's limit raises TooManyTraces."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.count = 0

    def _tracer(self, inputs: Inputs) -> Tracer:
        if self.count >= torch._dynamo.config.recompile_limit:
            raise TooManyTraces
        self.count += 1
        counters["tinygrad"]["traces"] += 1
        return super()._tracer(inputs)


class Replayed:
    """A program that is traced once for each kind of call; `module` is its graph for PyTorch to run.

    Conditions of values, as that indices are within bounds, are looked at after each call (`checked`).
    Where TorchDynamo's guards settle a call's strides with its sizes (`guarded`), only those of gradients
    that come from outside are looked at: looking takes 0.3 us an argument, more than all else.
    """

    def __init__(self, program: GraphProgram, module: GraphModule, guarded: bool = False,
                 checked: bool = True) -> None:
        positions = {node: i for i, node in enumerate(program.inputs)}
        self.program, self.module = program, module
        self.passed_on = [positions.get(output) for output in program.outputs]
        """for each output which input it is, None for what is computed"""
        self.begins = {positions[node]: node.meta["val"].storage_offset() for step in program.steps
                       if step.layout is not None and (node := viewed(step.result.args[0])[0]) in positions}
        """by their numbers, inputs in whose memory operators read at places from its beginning on, and where
        the input begins there for these to be right"""
        self.is_pytorchs = False
        """whether operators read memory that none of their tensors show, which only PyTorch has"""
        self.held = program.held
        self.is_computed = any(position is None for position in self.passed_on)
        self.passes_on = any(position is not None for position in self.passed_on)
        self.launches: dict[Any, Launch | None] = {}
        """by what `kind_of` says of a call"""
        self.kind_of = kind_of if program.has_sizes else strides_of if not guarded else strides_of_gradients(
            [node.name for node in program.inputs])
        self.checked = checked
        computed = [output for output, position in zip(program.outputs, self.passed_on, strict=True)
                    if position is None]
        self.orders: dict[int, tuple[int, ...] | None] = {
            i: None for i, output in enumerate(computed) if isinstance(output, Node)
            and FREE_LAYOUT in output.meta and not program.has_sizes}
        """for each result whose axes may lie in any order, by its number among those that are computed: the
        order that its first trace chose, which all others keep to, for what reads them was traced once"""
        self.turned: dict[int, tuple[int, ...]] = {
            i: order for i, output in enumerate(computed) if isinstance(output, Node)
            and FREE_LAYOUT not in output.meta and (order := order_in_pytorch(output)) is not None}
        """for each other result whose axes do not lie as they follow each other in PyTorch, by its number:
        the order in which they do, and in which it is computed; a program may rely on its strides"""
        self.turns_back = {number: argsort(order) for number, order in self.turned.items()}
        self.result_count = self.passed_on.count(None)
        self.errors: dict[int, list[Exception]] = {}
        """those of the conditions that are one more result, by how many a trace has"""
        self.symbols = symbols_of(program.inputs) if program.has_sizes else None
        """None where each size is traced for itself"""
        self.function = CountedJit(self.run)

    def run(self, orders: Sequence[tuple[int, ...] | None], symbols: Mapping[Any, UOp] | None, *given: Any
            ) -> list[Any]:
        """What is computed, in memory of its own: a result that shows an argument would change with it.
        `orders` has, for each argument, the order of its axes in `given`."""
        arguments = [zeros_of(node) if value is None else
                     value if order is None else value.permute(argsort(order))
                     for node, value, order in zip(self.program.inputs, given, orders, strict=True)]
        if symbols is not None and self.symbols is not None:
            for number, value in enumerate(arguments):
                shape = self.symbols.shape(number, symbols)
                if is_symbolic(shape):
                    arguments[number] = value.shrink([(0, n) for n in shape])
        with collected() as checks:
            results = self.program.run(arguments, symbols)
        computed = [result for result, position in zip(results, self.passed_on) if position is None]
        if self.checked and checks.errors:
            self.errors[len(checks.errors)] = checks.errors
            computed.append(checks.as_tensor())
        return [self.stored(i, result) if isinstance(result, Tensor) else
                None if isinstance(result, Size) else result for i, result in enumerate(computed)]

    def stored(self, number: int, result: Tensor) -> Tensor:
        """A result in memory of its own, with its axes as they are to lie there."""
        if number in self.turned:
            result = result.permute(self.turned[number])
        order = self.orders.get(number)
        if order is not None:
            return result.permute(order).clone().permute(argsort(order))
        view = result.uop
        if number in self.orders and (shown := as_stored(view)) is not None:
            return Tensor.of(shown, result)
        value = Tensor.of(view.unreshaped, result)  # which others may use in another shape
        return value.clone().reshape(result.shape)

    def __call__(self, *given: Any) -> list[Any]:
        if self.program.has_sizes:
            given = with_zeros(self.program.inputs, given)
        arguments = (*given, *self.held) if self.held else given
        computed = self.computed(arguments) if self.is_computed else []
        if not self.passes_on:
            return computed
        results = iter(computed)
        return [next(results) if position is None else arguments[position] for position in self.passed_on]

    def computed(self, given: Sequence[Any]) -> list[Any]:
        """The outputs that are no inputs. Random numbers follow a seed that PyTorch's generator draws."""
        if self.is_pytorchs or (self.begins and any(given[number].storage_offset() != begin
                                                    for number, begin in self.begins.items())):
            return self.in_pytorch(given)
        key = self.kind_of(given)
        launch = self.launches.get(key)
        seed = int(torch.randint(2**62, ())) if self.program.is_random else 0
        if launch is not None and JIT and DEBUG.value < 2 and Capture.current() is None:
            return self.right(launch(given, seed))
        try:
            while True:
                try:
                    return self.right(self.traced(given, seed, key))
                except BesideTensor:
                    self.is_pytorchs = True
                    return self.in_pytorch(given)
                except (SizeError, ValueError, TypeError) as error:
                    if self.symbols is None:
                        raise
                    if self.symbols.unite(given):
                        continue
                    if not self.symbols.settle(error):
                        raise
                    sizes = ", ".join(sorted(map(str, self.symbols.numbers)))
                    warnings.warn(f"a graph is traced anew for each value of {sizes}: {error}", stacklevel=2)
                    self.function = CountedJit(self.run)
        except TooManyTraces:
            warnings.warn(f"a graph was traced {self.function.count} times, which is PyTorch's "
                          "recompile_limit: PyTorch runs it for what it was not traced for", stacklevel=2)
            return self.in_pytorch(given)

    def right(self, results: list[Any]) -> list[Any]:
        """The results as PyTorch has them, but for one more, which says whether the trace's conditions hold.
        Raises the error of the first that does not."""
        if len(results) > self.result_count and not all(holds := results.pop().tolist()):
            error = self.errors[len(holds)][holds.index(False)]
            raise type(error)(*error.args)
        for number, order in self.turns_back.items():
            results[number] = results[number].permute(order)
        return results

    def traced(self, given: Sequence[Any], seed: int, key: Any) -> list[Any]:
        """The outputs by TinyJit.

        Raises SizeError, ValueError or TypeError for what cannot be computed so.
        """
        values = None if self.symbols is None else self.symbols.bound(given)
        larger = {} if self.symbols is None or values is None else self.symbols.larger(values)
        orders = []
        taken: list[Any] = []
        for number, value in enumerate(given):
            if number in larger:
                value = laid_out(value, larger[number])
            elif values is not None and isinstance(value, int):
                value = 0  # expressions say what it is
            orders.append(order_in_memory(value))
            taken.append(from_torch(value, orders[-1]))
        inputs = (tuple(orders), values, *taken)
        if self.program.is_random:
            with seeded(seed):
                results = self.function(*inputs)
        else:
            results = self.function(*inputs)
        sizes = {} if values is None else self.sizes_among_outputs(values)
        if key not in self.launches:
            if len(self.launches) >= MOST_LAUNCHES:
                self.launches.clear()
            launch = self.launch_for(inputs, given, larger)
            self.launches[key] = launch if launch is None or not sizes else launch.returning(sizes)
        return self.in_order([sizes.get(i, to_torch(result)) for i, result in enumerate(results)])

    def in_order(self, results: list[Any]) -> list[Any]:
        """The results, each in memory of its own: those that a trace computed as one are copied. Those whose
        axes may lie in any order are in that of the first call."""
        memory: set[int] = set()
        for number, result in enumerate(results):
            if isinstance(result, torch.Tensor) and result.numel():
                results[number] = result.clone() if result.data_ptr() in memory else result
                memory.add(result.data_ptr())
        for number, order in self.orders.items():
            found = order_in_memory(results[number])  # none where there are no items
            if order is None:
                self.orders[number] = found
            elif found not in (order, None):
                results[number] = results[number].permute(order).contiguous().permute(argsort(order))
        return results

    def sizes_among_outputs(self, values: Mapping[Any, UOp]) -> dict[int, int]:
        """Those of what is computed that are sizes, by their numbers there."""
        outputs = zip(self.program.outputs, self.passed_on, strict=True)
        computed = [output for output, position in outputs if position is None]
        return {i: value_of(size_of(expression_of(output.meta["val"]), values))
                for i, output in enumerate(computed)
                if isinstance(output, Node) and isinstance(output.meta.get("val"), torch.SymInt)}

    def launch_for(self, inputs: tuple[Any, ...], given: Sequence[Any], larger: Mapping[int, tuple[int, ...]]
                   ) -> Launch | None:
        """That of the trace by which TinyJit replays this call."""
        taken = Inputs((inputs, {}))
        taken.realize()
        _, trace = self.function.trace_for(taken)
        if trace is None or any(not isinstance(v, (torch.Tensor, int, NoneType)) for v in given):
            return None
        return launch_of(trace, taken, given, larger, self.orders)

    def in_pytorch(self, given: Sequence[Any]) -> list[Any]:
        """The outputs that are no inputs, as PyTorch computes them."""
        arguments = with_zeros(self.program.inputs, given[:len(given) - len(self.held)])
        with torch.no_grad():
            results = self.module(*arguments)
        listed = [results] if isinstance(results, torch.Tensor) else results
        return self.in_order([r for r, position in zip(listed, self.passed_on) if position is None])


MOST_LAUNCHES = 1 << 10
"""Launches that a graph keeps, which are one for each of the sizes that a trace serves."""


def kind_of(given: Sequence[Any]) -> Any:
    """What of the arguments a graph does not settle whose sizes vary."""
    return tuple([(v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in given])


def strides_of(given: Sequence[Any]) -> Any:
    """What of the arguments a graph of known sizes does not settle."""
    return tuple([None if tensor is None else tensor.stride() for tensor in given])


def strides_of_gradients(names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """The same where only the gradients that a backward pass begins with may lie in other ways."""
    gradients = [number for number, name in enumerate(names) if name.startswith("tangents")]
    return lambda given: strides_of([given[number] for number in gradients])
