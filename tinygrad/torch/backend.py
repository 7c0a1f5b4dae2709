"""What `torch.compile(model, backend="tinygrad")` calls: graphs of PyTorch as functions that replay a trace.

In: FX graphs from TorchDynamo. AOTAutograd makes functional forward and backward graphs of them, in ATen's
core operators, and writes back what the program changes in place. Out: functions of `torch.Tensor`s. Next:
`evaluate.py`, which computes a graph with our tensors, `dispatch.py`, which replays that, and `aliases.py`,
for results that share memory.
"""
from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support
from torch.utils.checkpoint import CheckpointPolicy

from tinygrad.torch.aliases import with_views, with_views_outside
from tinygrad.torch.dispatch import Replayed, require_cpu, with_zeros
from tinygrad.torch.evaluate import FREE_LAYOUT, is_supported, program_of, unsupported
from tinygrad.torch.lists import operators_of_lists
from tinygrad.torch.losses import LOSSES, multilabel_margin_loss
from tinygrad.torch.masks import WRITES, index_put
from tinygrad.torch.registry import OPERATORS, UnsupportedOperators
from tinygrad.torch.statistics import batch_norm

aten = torch.ops.aten
OF_COMPLEX = frozenset({aten.polar.default, aten.complex.default})
"""What makes complex numbers of real ones: PyTorch takes these apart into writes into parts of them."""


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """ATen's operators in terms of the core ones, but for those that the table has. Operators beyond the core
    set that PyTorch knows how to take apart are taken apart too."""
    further = {target: function for target, function in decomposition_table.items() if is_beyond_core(target)}
    known = further | core_aten_decompositions() | operators_of_lists()
    kept = {target: function for target, function in known.items()
            if str(target) not in OPERATORS and target not in OF_COMPLEX}
    kept[aten.multilabel_margin_loss.default] = multilabel_margin_loss
    kept[aten._native_batch_norm_legit_functional.default] = batch_norm
    return kept | dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), index_put)


def with_own_functions(module: GraphModule) -> GraphModule:
    """A graph of TorchDynamo, changed: what autograd would take apart into what cannot be computed here, or
    wrongly, are functions of ours (`masks.py`, `losses.py`)."""
    own = WRITES | LOSSES
    for node in module.graph.nodes:
        if node.target in own:
            node.op, node.target = "call_function", own[node.target]
    module.recompile()
    return module


def is_beyond_core(target: Any) -> bool:
    """Whether this is an operator that computes something and is none of the core set. Views, and `lift`,
    which brings a constant into a graph, are PyTorch's to deal with."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.core not in target.tags and (
        target is not aten.lift.default) and not any(
        argument.alias_info is not None for argument in target._schema.arguments)


def compiled(module: GraphModule, example_inputs: Sequence[Any], guarded: bool = False, checked: bool = True
             ) -> Callable[..., Any]:
    """A functional graph as a function of `torch.Tensor`s, boxed as AOTAutograd wants it. Operators that the
    table has not run in PyTorch, between the parts that are compiled; one warning names them all. `guarded`
    says that calls are TorchDynamo's, with the sizes and strides of the examples, `checked` that indices may
    be out of bounds.

    Raises ValueError for tensors that are not the CPU's.
    """
    for example in example_inputs:
        require_cpu(example)
    if any(isinstance(example, torch.SymInt) and example.node.is_nested_int() for example in example_inputs):
        warnings.warn("lengths of a nested tensor are no sizes here: PyTorch runs the graph", stacklevel=2)
        return boxed(module)
    missing = unsupported(module)
    if not missing:
        return boxed(replayed(module, guarded, checked))
    warnings.warn(f"{UnsupportedOperators(missing)}; PyTorch runs them", stacklevel=2)
    parts, inputs = compiled_in_parts(module, checked), module.graph.find_nodes(op="placeholder")
    return boxed(lambda *given: parts(*with_zeros(inputs, given)))


def replayed(module: GraphModule, guarded: bool = False, checked: bool = True) -> Callable[..., Any]:
    """A graph of supported operators as a function that replays a trace."""
    module, views = with_views_outside(module)
    return with_views(Replayed(program_of(module), module, guarded, checked), views)


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes its arguments as one list."""
    result: Callable[..., Any] = make_boxed_func(function)
    return result


def compiled_in_parts(module: GraphModule, checked: bool = True) -> GraphModule:
    """A graph whose supported operators are in submodules that are compiled, each as large as the order of
    the others allows."""
    can_be = create_op_support(lambda _, node: node.op == "call_function" and is_supported(node))
    whole: GraphModule = CapabilityBasedPartitioner(module, can_be).partition_and_fuse()
    for node in list(whole.graph.nodes):
        if node.op == "call_module":
            with whole.graph.inserting_before(node):
                part = whole.graph.call_function(part_of(getattr(whole, node.target), checked), node.args)
            node.replace_all_uses_with(part)
            whole.graph.erase_node(node)
    whole.delete_all_unused_submodules()
    whole.recompile()
    return whole


def part_of(graph: GraphModule, checked: bool) -> Callable[..., Any]:
    """A part of a graph as a function: of its result, or the tuple of its results."""
    run = replayed(graph, checked=checked)
    is_one = isinstance(graph.graph.output_node().args[0], Node)

    def part(*args: Any) -> Any:
        results = run(*(arg.resolve_neg() if isinstance(arg, torch.Tensor) else arg for arg in args))
        return results[0] if is_one else tuple(results)

    return part


def partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[GraphModule, GraphModule]:
    """A graph of a forward and a backward pass as one of each. Inside a checkpoint random numbers are kept,
    and what else can be is computed again: a compiled graph has no generator to turn back. What the first
    keeps for the second is marked (`mark_free_layouts`)."""
    for node in joint.graph.nodes:
        drawn = node.args[0] if node.target is operator.getitem else node
        tags = getattr(drawn.target, "tags", ())
        if "recompute" in node.meta and torch.Tag.nondeterministic_seeded in tags:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    parts: tuple[GraphModule, GraphModule] = min_cut_rematerialization_partition(joint, inputs, **options)
    mark_free_layouts(parts[0], options["num_fwd_outputs"])
    return parts


def mark_free_layouts(forward: GraphModule, seen: int) -> None:
    """Mark what only the backward pass reads of a forward pass's results, all but the first `seen`: the order
    of its axes in memory is ours to choose."""
    results: Any = forward.graph.output_node().args[0]
    for result in set(results[seen:]) - set(results[:seen]):
        if isinstance(result, Node):
            result.meta[FREE_LAYOUT] = True


def backend(module: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A graph of TorchDynamo as a compiled function: give it, or its name "tinygrad", to `torch.compile`.

    Tensors are the CPU's. Operators that are missing run in PyTorch, and a warning lists them.

    >>> import torch
    >>> double = torch.compile(lambda x: x * 2, backend=backend)
    >>> double(torch.tensor([1.0, 2.0]))
    tensor([2., 4.])
    """
    through_autograd = aot_autograd(
        fw_compiler=functools.partial(compiled, guarded=True),
        bw_compiler=functools.partial(compiled, guarded=True, checked=False),
        decompositions=decompositions(), partition_fn=partition)
    run: Callable[..., Any] = through_autograd(with_own_functions(module), example_inputs)
    if any(isinstance(example, torch.SymInt) for example in example_inputs):
        return run

    def without_zeros(*args: Any) -> Any:
        results = run(*args)
        leave_gradients_out(results)
        return results

    return without_zeros


def leave_gradients_out(results: Sequence[Any]) -> None:
    """Let the backward pass of a compiled call have None for the gradient of each result that nobody uses,
    in place of memory full of zeros: 16 MB for the logits of a model that gives its loss too (512 tokens of
    8,000), to be made and added."""
    for result in results:
        node: Any = result.grad_fn if isinstance(result, torch.Tensor) else None
        if type(node).__name__ == "CompiledFunctionBackward":
            node.materialize_grads = False
            return
