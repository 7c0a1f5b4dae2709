"""PyTorch's own samples of its operators (OpInfo), compiled by this backend beside eager.

`check` takes an operator and a dtype, and runs some of its samples, forward and, for floats, backward,
through the same compilation as `torch.compile` does: AOTAutograd, this backend's decompositions and
operators. It compares values, dtypes and shapes with eager. What eager refuses is no sample; graphs
that keep operators which are neither ATen's core ones nor in the table are out of scope, as `Outcome` says.
"""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tinygrad.torch.backend import compiled, decompositions, partition
from tinygrad.torch.evaluate import unsupported
from tinygrad.torch.registry import RANDOM, UnsupportedOperators

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-7), torch.bfloat16: (1.6e-2, 1e-2)}
"""rtol and atol for results and gradients; integers are equal"""
ORDER_IS_OPEN = {"sort": (1, 0), "argsort": (0, 0), "topk": (1, 1), "kthvalue": (1, 1)}
"""Operators that say where items lie of which equal ones may come in any order: which of their results does,
and the place of the axis among their arguments. The items there are compared."""
WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float32}


@dataclass(frozen=True)
class Outcome:
    """What became of the samples of one operator with one dtype."""

    status: str
    """passed, failed, out of scope (operators beyond ATen's core remain), or no samples"""
    reason: str = ""
    samples: int = 0


def all_cases() -> list[tuple[Any, torch.dtype]]:
    """Each operator of the database with each of `DTYPES` that it supports on the CPU."""
    return [(op, dtype) for op in op_db for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]


def name_of(case: tuple[Any, torch.dtype]) -> str:
    op, dtype = case
    variant = f".{op.variant_test_name}" if op.variant_test_name else ""
    return f"{op.name}{variant} {str(dtype).removeprefix('torch.')}"


def spread(items: Sequence[Any], limit: int) -> list[Any]:
    """At most `limit` of them, at even distances."""
    return list(items) if len(items) <= limit else [items[i * len(items) // limit] for i in range(limit)]


def samples_of(op: Any, dtype: torch.dtype, limit: int) -> Iterator[Any]:
    torch.manual_seed(0)
    differentiable = dtype.is_floating_point and op.supports_autograd and (
        dtype in op.supported_backward_dtypes("cpu"))
    yield from spread(list(op.sample_inputs("cpu", dtype, requires_grad=differentiable)), limit)


class Call:
    """A sample as a function of its tensors alone."""

    def __init__(self, op: Any, sample: Any) -> None:
        self.op, self.sample = op, sample
        self.is_random = False
        """whether its graph draws random numbers"""
        leaves, self.structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.leaves = leaves
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def tensors(self, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """The sample's tensors, copied (floats as `dtype`): calls may write to them."""
        found = [self.leaves[i] for i in self.places]
        return [t.detach().to(dtype if dtype and t.is_floating_point() else t.dtype, copy=True)
                .requires_grad_(t.requires_grad) for t in found]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The result's tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        x, args, named = pytree.tree_unflatten(leaves, self.structure)
        result = self.sample.output_process_fn_grad(self.op(x, *args, **named))
        found = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        if self.op.name in ORDER_IS_OPEN and x.ndim:
            number, place = ORDER_IS_OPEN[self.op.name]
            axis = named.get("dim", args[place] if len(args) > place else -1)
            places = found[number] if found[number].ndim == x.ndim else found[number].unsqueeze(axis)
            found[number] = x.detach().gather(axis, places)
        return found


def results(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the function returns, and the gradients of its arguments."""
    outputs = function(*(t.clone() for t in tensors))  # leaves may not be written to
    targets = [t for t in outputs if t.requires_grad]
    sources = [t for t in tensors if t.requires_grad]
    if not (targets and sources):
        return list(outputs)
    weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape) for t in targets]
    found = torch.autograd.grad(targets, sources, weights, allow_unused=True)
    return [*(t.detach() for t in outputs), *(g for g in found if g is not None)]


def difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], call: Call) -> str:
    """How results differ from eager's; nothing where they do not.

    What is not close to eager is judged by wider floats, which it may be nearer to than eager is. Of random
    numbers dtypes and shapes are compared.
    """
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    precise: list[torch.Tensor] = []
    for i, (ours, eager) in enumerate(zip(found, expected, strict=True)):
        if (ours.dtype, ours.shape) != (eager.dtype, eager.shape):
            return (f"result {i}: {ours.dtype} {tuple(ours.shape)} instead of "
                    f"{eager.dtype} {tuple(eager.shape)}")
        if call.is_random:
            continue
        rtol, atol = TOLERANCES.get(eager.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(ours, eager, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            wide = WIDER.get(eager.dtype)
            if wide is not None:
                precise = precise or results(call, call.tensors(wide))
                if error_of(ours, precise[i]) <= 1.5 * error_of(eager, precise[i]) + atol:
                    continue
            return f"result {i}: " + " ".join(str(error).split())[:300]
    return ""


def error_of(x: torch.Tensor, precise: torch.Tensor) -> float:
    apart = (x.double() - precise.double()).abs()
    apart = apart[~apart.isnan()]
    return float(apart.max()) if apart.numel() else 0.0


def compile_call(call: Call) -> Callable[..., Any]:
    def compile_graph(module: Any, example_inputs: Any) -> Callable[..., Any]:
        call.is_random |= any(str(node.target) in RANDOM for node in module.graph.nodes)
        if missing := unsupported(module):
            raise UnsupportedOperators(missing)
        return compiled(module, example_inputs)

    function: Callable[..., Any] = aot_function(call, fw_compiler=compile_graph, bw_compiler=compile_graph,
                                                partition_fn=partition, decompositions=decompositions())
    return function


def check(op: Any, dtype: torch.dtype, limit: int) -> Outcome:
    """Run at most `limit` samples."""
    count = 0
    for sample in samples_of(op, dtype, limit):
        call = Call(op, sample)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = results(call, call.tensors())
            except Exception:  # eager refuses it
                continue
            if not expected:
                continue
            try:
                wrong = difference(results(compile_call(call), call.tensors()), expected, call)
            except UnsupportedOperators as error:
                missing = sorted(error.counts)
                status = "failed" if core_operators().issuperset(missing) else "out of scope"
                return Outcome(status, "missing: " + ", ".join(missing), count)
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                return Outcome("out of scope", f"sizes or branches depend on values ({error})", count)
            except Exception as error:
                wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        count += 1
        if wrong:
            return Outcome("failed", wrong, count)
    return Outcome("passed" if count else "no samples", "", count)


@functools.cache
def core_operators() -> frozenset[str]:
    """ATen's core operators, by their names with overloads."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [getattr(packet, name) for packet in packets if hasattr(packet, "overloads")
                 for name in packet.overloads()]
    return frozenset(str(overload) for overload in overloads if torch.Tag.core in overload.tags)
