"""`python -m tinygrad.onnx MODEL.onnx`: what a model is, and how it runs here.

Prints inputs, outputs, operators, how many kernels are left after fusion, memory and the time of a run.
Inputs are random unless `--input` names files of NumPy; `--size batch=4` says how long a dynamic axis is (1
otherwise). `--check` compares with ONNX Runtime where that is installed, else with the standard's own
reference.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinygrad.device import Device
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.nn.onnx import OnnxError, OnnxRunner
from tinygrad.nn.onnx.model import TypeOf, all_nodes, onnx_package
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor

TOLERANCE = 1e-3
"""Of `--check`: of the largest number of an output, as sums are added up in another order."""
WARM_UPS = 3
"""Runs until a trace is replayed: one that computes, one that is traced, one that is replayed."""


class Axis(str):
    """The size or name of an axis, which prints without quotes."""

    def __new__(cls, size: int | str | None) -> Axis:
        return super().__new__(cls, "?" if size is None else size)

    def __repr__(self) -> str:
        return str(self)


def described(said: TypeOf) -> str:
    """A type as text: `float32 (batch, 3)`."""
    if said.kind != "tensor" or said.dtype is None:
        return said.kind
    name = "string" if said.dtype.kind == "O" else said.dtype.name
    if said.shape is None:
        return f"{name} of any shape"
    return f"{name} {tuple(Axis(n) for n in said.shape)}"


def random_input(said: TypeOf, sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    """An input of a model's type: normally distributed floats, integers of 0 and 1, empty strings."""
    if said.kind != "tensor" or said.dtype is None:
        return [] if said.kind == "sequence" else None
    shape = [n if isinstance(n, int) else sizes.get(n or "", 1) for n in said.shape or ()]
    if said.dtype.kind == "O":
        return np.full(shape, "", object)
    if said.dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(said.dtype)
    return rng.standard_normal(shape).astype(said.dtype)


def given_inputs(run: OnnxRunner, files: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Inputs from files (`name=x.npy`, or in the model's order), random ones for the rest."""
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {}
    for file in files:
        name, equals, path = file.rpartition("=")
        free = [n for n in run.inputs if n not in given]
        if not equals and not free:
            raise OnnxError(f"the model takes {len(run.inputs)} inputs; {file} is one more")
        given[name if equals else free[0]] = read_array(path)
    return {name: given[name] if name in given else random_input(said, sizes, rng)
            for name, said in run.inputs.items()} | given


def read_array(path: str) -> Array:
    """The array in a file of NumPy. Raises OnnxError for what is none; nothing in it is executed."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise OnnxError(f"{path} is no array as numpy.save writes it: {error}") from error
    if not isinstance(array, np.ndarray):
        raise OnnxError(f"{path} has several arrays; give each in a file of its own, as numpy.save writes it")
    return array


def sizes_of(run: OnnxRunner, given: Sequence[str]) -> dict[str, int]:
    """The sizes that `AXIS=N` say. Raises OnnxError for axes that the model does not name."""
    named = {n for said in run.inputs.values() for n in said.shape or () if isinstance(n, str)}
    sizes = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not number.isdigit() or name not in named:
            raise OnnxError(f"--size takes AXIS=N, a number for an axis that has a name, got {text}; names "
                            f"are {', '.join(sorted(named)) or 'none'}")
        sizes[name] = int(number)
    return sizes


def measured(run: OnnxRunner, inputs: Mapping[str, Any], runs: int) -> dict[str, str]:
    """What a run takes, by what it is called."""
    held = {k: v if isinstance(v, np.ndarray) and v.dtype.kind == "O" else run.as_value(v, run.inputs.get(k))
            for k, v in inputs.items()}
    start = time.perf_counter()
    run(held)
    Device[run.device].synchronize()
    first = time.perf_counter() - start
    for _ in range(WARM_UPS - 1):
        run(held)
    before = GlobalCounters.kernel_count
    run(held)
    kernels = GlobalCounters.kernel_count - before
    seconds = []
    for _ in range(runs):
        Device[run.device].synchronize()
        start = time.perf_counter()
        run(held)
        Device[run.device].synchronize()
        seconds.append(time.perf_counter() - start)
    return {"kernels": str(kernels), "first run": f"{first * 1e3:.1f} ms",
            "time per run": f"{statistics.median(seconds) * 1e3:.3f} ms (median of {runs})",
            "memory": f"{GlobalCounters.mem_used / 1e6:.1f} MB (at most {GlobalCounters.mem_peak / 1e6:.1f})"}


def expected_outputs(path: str, inputs: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """(who says so, the outputs for these inputs)."""
    given = {k: v for k, v in inputs.items() if v is not None}
    try:
        import onnxruntime
    except ImportError:
        return "onnx.reference", onnx_package().reference.ReferenceEvaluator(path).run(None, given)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return "ONNX Runtime", session.run(None, given)


def difference(made: Any, wanted: Any) -> float:
    """The largest difference, of the largest number there is; 0 for what is equal, infinity for another shape
    or another string."""
    got: Array = made.numpy() if isinstance(made, Tensor) else np.asarray(made)
    wanted = np.asarray(wanted)
    if got.shape != wanted.shape:
        return float("inf")
    if got.dtype.kind not in "biuf" or wanted.dtype.kind not in "biuf":
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    apart = np.abs(np.where((a == b) | np.isnan(a), 0, a - b)).max(initial=0)
    return float(apart / max(np.abs(b[np.isfinite(b)]).max(initial=0), 1e-30)) if apart else 0.0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tinygrad.onnx",
                                     description="What an ONNX model is, and how "
                                     "it runs here.")
    parser.add_argument("model", help="path of the file")
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]X.npy", help="an input")
    parser.add_argument("--size", action="append", default=[], metavar="AXIS=N", help="of a dynamic axis")
    parser.add_argument("--check", action="store_true", help="compare with ONNX Runtime, or the reference")
    parser.add_argument("--beam", type=int, default=0, metavar="N", help="search for plans of the kernels")
    parser.add_argument("--runs", type=int, default=20, help="how often to run for the time")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print what the arguments ask for. Returns 1 where `--check` finds another result, 2 for a wrong
    model."""
    options = parsed(arguments)
    try:
        run = OnnxRunner(options.model)
        inputs = given_inputs(run, options.input, sizes_of(run, options.size))
        opsets = [f"{domain or 'ai.onnx'} {version}" for domain, version in run.model.opsets.items()]
        print(f"{options.model}: {run.model.producer or 'unknown producer'}, operators of "
              f"{', '.join(opsets)}")
        for kind, types in (("input", run.inputs), ("output", run.outputs)):
            for name, said in types.items():
                print(f"{kind:13} {name}: {described(said)}")
        counts = Counter(node.op for node in all_nodes(run.model.graph))
        listed = ", ".join(f"{n} {op}" for op, n in counts.most_common())
        print(f"{'operators':13} {counts.total()}: {listed}")
        with Context(BEAM=options.beam):
            for name, value in measured(run, inputs, options.runs).items():
                print(f"{name:13} {value}")
        return check(run, options.model, inputs) if options.check else 0
    except (OnnxError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def check(run: OnnxRunner, path: str, inputs: Mapping[str, Any]) -> int:
    """Print how far outputs are from what another implementation gives; 1 where that is too far."""
    who, expected = expected_outputs(path, inputs)
    results = run(inputs)
    worst = 0.0
    for name, wanted in zip(run.outputs, expected, strict=True):
        apart = difference(results[name], wanted)
        worst = max(worst, apart)
        print(f"{'check':13} {name}: {apart:.2e} of the largest, from {who}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
