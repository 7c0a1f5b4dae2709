"""`python -m tinygrad.onnx MODEL.onnx`: what a model is, and how it runs here.

Prints inputs, outputs, operators, how many kernels are left after fusion, memory and the time of a run.
Inputs are random unless `--input` gives them; `--size batch=4` says how long an axis with a name is (1
otherwise), `--shape x=4,3` how large an input is. `--check` compares with ONNX Runtime where that is
installed, else with the standard's own reference.
"""
from __future__ import annotations

import argparse
import ast
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad.device import Device
from tinygrad.helpers import Context, GlobalCounters
from tinygrad.nn.onnx import OnnxError, OnnxRunner
from tinygrad.nn.onnx.model import TypeOf, all_nodes
from tinygrad.nn.onnx.values import Array
from tinygrad.tensor import Tensor

TOLERANCE = 1e-3
"""Of `--check`: of the largest number of an output, as sums are added up in another order."""
WORDS = ("good", "bad", "film", "very")
"""What random texts are."""
WARM_UPS = 5
"""Runs until a trace is replayed: up to three that compute, of which the first finds what the host makes of
strings and the second what it has to know; one that is traced, one that is replayed."""


def random_input(said: TypeOf, sizes: Mapping[str, int], rng: np.random.Generator,
                 shape: Sequence[int] | None = None) -> Any:
    """An input of a model's type: normally distributed floats, integers of 0 and 1, words. Axes have the
    `sizes` that their names have, or 1 item, unless a `shape` is given."""
    if said.kind != "tensor" or said.dtype is None:
        return [] if said.kind == "sequence" else None
    if shape is None:
        shape = [n if isinstance(n, int) else sizes.get(n or "", 1) for n in said.shape or ()]
    if said.dtype.kind == "O":
        return rng.choice(np.array(WORDS, object), shape)
    if said.dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(said.dtype)
    return rng.standard_normal(shape).astype(said.dtype)


def given_inputs(run: OnnxRunner, options: argparse.Namespace) -> dict[str, Any]:
    """Inputs that the options give (`name=x.npy`, or in the model's order), random ones for the rest, with
    axes as long as the options and the inputs given say. Raises OnnxError for options that do not fit the
    model, or each other."""
    sizes, shapes = sizes_of(run, options.size), shapes_of(run, options.shape)
    given: dict[str, Any] = {}
    for text in options.input:
        name, value = named(run, text)
        free = [n for n in run.inputs if n not in given]
        if not name and not free:
            raise OnnxError(f"the model takes {len(run.inputs)} inputs; {text} is one more")
        name = name or free[0]
        given[name] = read_input(run.inputs.get(name), value, shapes.get(name))
    for name in [n for n in run.inputs if n in {**given, **shapes}]:
        shape = shapes.get(name, np.shape(given[name]) if isinstance(given.get(name), np.ndarray) else ())
        for axis, size in zip(run.inputs[name].shape or (), shape, strict=False):
            if isinstance(axis, str) and sizes.setdefault(axis, size) != size:
                raise OnnxError(f"axis {axis!r} is {size} long in input {name!r}, {sizes[axis]} elsewhere")
    rng = np.random.default_rng(0)
    for name, said in run.inputs.items():
        if name not in given:
            try:
                given[name] = random_input(said, sizes, rng, shapes.get(name))
            except (MemoryError, ValueError) as error:
                raise OnnxError(f"input {name!r}, {said}, cannot be made: {error}") from error
    return given


def named(run: OnnxRunner, text: str) -> tuple[str, str]:
    """The name in front of a value (empty if there is none) and the value."""
    name, equals, value = text.partition("=")
    if equals and name not in run.inputs and not Path(text).exists():
        raise OnnxError(f"the model has no input {name!r}; it takes {', '.join(run.inputs) or 'none'}")
    return (name, value) if name in run.inputs and equals else ("", text)


def read_input(said: TypeOf | None, value: str, shape: Sequence[int] | None) -> Any:
    """The array in a file, or what the text of an option says: a number, a list, or a text for a model of
    texts, as often as `shape` or the model say."""
    if said is None or said.kind != "tensor" or said.dtype is None or Path(value).exists() or \
            Path(value).suffix in (".npy", ".npz"):
        return read_array(value)
    fill = [1 if n is None or isinstance(n, str) else n for n in said.shape or ()] if shape is None else shape
    if said.dtype.kind == "O":
        return np.full(fill, value, object)
    try:
        array = np.array(ast.literal_eval(value))
        return (np.broadcast_to(array, fill) if not array.shape else array).astype(said.dtype)
    except (ValueError, SyntaxError, TypeError) as error:
        raise OnnxError(f"--input takes a file that numpy.save wrote, or a number, got {value}") from error


def read_array(path: str) -> Array:
    """The array in a file of NumPy. Raises OnnxError for what is none; nothing in it is executed."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise OnnxError(f"{path} is no array as numpy.save writes it: {error}") from error
    if not isinstance(array, np.ndarray):
        raise OnnxError(f"{path} has several arrays; give each in a file of its own, as numpy.save writes it")
    return array


def _is_count(text: str) -> bool:
    """Whether a text is a whole number that a size may be."""
    return text.isascii() and text.isdigit() and len(text) < 19


def sizes_of(run: OnnxRunner, given: Sequence[str]) -> dict[str, int]:
    """The sizes that `AXIS=N` say. Raises OnnxError for axes that the model does not name."""
    named = {n for said in run.inputs.values() for n in said.shape or () if isinstance(n, str)}
    sizes = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not _is_count(number) or name not in named:
            raise OnnxError(f"--size takes AXIS=N, a number for an axis that has a name, got {text}; names "
                            f"are {', '.join(sorted(named)) or 'none'}")
        sizes[name] = int(number)
    return sizes


def shapes_of(run: OnnxRunner, given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes that `NAME=N,N` say. Raises OnnxError for inputs that the model does not have, and for
    other numbers of axes."""
    shapes = {}
    for text in given:
        name, _, numbers = text.rpartition("=")
        parts = numbers.split(",")
        if name not in run.inputs or not all(map(_is_count, parts)):
            raise OnnxError("--shape takes NAME=N,N,..., the sizes of an input's axes, got "
                            f"{text}; inputs are {', '.join(run.inputs) or 'none'}")
        shapes[name] = tuple(map(int, parts))
        said = run.inputs[name].shape
        if said is not None and len(said) != len(parts):
            raise OnnxError(f"--shape: input {name!r} is {run.inputs[name]}, got {numbers}")
    return shapes


def measured(run: OnnxRunner, inputs: Mapping[str, Any], runs: int) -> Iterator[tuple[str, str]]:
    """What a run takes, each as soon as it is known: (what that is called, how much)."""
    held = {k: _held(run, k, v) for k, v in inputs.items()}
    start = time.perf_counter()
    run(held)
    Device[run.device].synchronize()
    yield "first run", f"{(time.perf_counter() - start) * 1e3:.1f} ms, with compiling"
    for _ in range(WARM_UPS - 1):
        run(held)
    before = GlobalCounters.kernel_count
    run(held)
    yield "kernels", str(GlobalCounters.kernel_count - before)
    seconds = []
    for _ in range(runs):
        Device[run.device].synchronize()
        start = time.perf_counter()
        run(held)
        Device[run.device].synchronize()
        seconds.append(time.perf_counter() - start)
    yield "time per run", f"{statistics.median(seconds) * 1e3:.3f} ms (median of {runs})"
    yield "memory", f"{_bytes(GlobalCounters.mem_used)} (at most {_bytes(GlobalCounters.mem_peak)})"


def _held(run: OnnxRunner, name: str, value: Any) -> Any:
    """An input where the model runs; texts as they are. Raises OnnxError for what no model is given."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return value
    try:
        return run.as_value(value, run.inputs.get(name))
    except TypeError as error:
        raise OnnxError(f"input {name!r} takes {run.inputs.get(name)}: {error}") from error


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def expected_outputs(path: str, inputs: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """(who says so, the outputs for these inputs). Raises OnnxError where neither ONNX Runtime nor the
    standard's reference runs the model."""
    given = {k: v for k, v in inputs.items() if v is not None}
    refused = ""
    try:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4  # what it raises says as much
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        return "ONNX Runtime", session.run(None, given)
    except ImportError:
        pass
    except Exception as error:  # it raises types of its own, with no base but this
        refused = f"ONNX Runtime does not run this model: {str(error).strip()}; "
        print(f"{'check':13} {refused}onnx.reference is asked", flush=True)
    try:
        from onnx.reference import ReferenceEvaluator

        return "onnx.reference", ReferenceEvaluator(path).run(None, given)
    except Exception as error:  # of whatever operator
        raise OnnxError(f"{refused}onnx.reference does not, either: {error}") from error


def difference(made: Any, wanted: Any) -> float:
    """The largest difference, of the largest number there is; 0 for what is equal, infinity for another shape
    or another string. Of sequences and maps, that of the item that is farthest off."""
    if isinstance(wanted, Mapping):
        if not isinstance(made, Mapping) or made.keys() != wanted.keys():
            return float("inf")
        return max((difference(made[key], item) for key, item in wanted.items()), default=0.0)
    if isinstance(wanted, (list, tuple)) and isinstance(made, (list, tuple)):
        if len(made) != len(wanted):
            return float("inf")
        return max((difference(x, y) for x, y in zip(made, wanted, strict=True)), default=0.0)
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


EXAMPLES = f"""\
Axes of any size are 1 long and inputs are random, unless these say something else:

  python -m tinygrad.onnx bert.onnx --size batch=4 --size sequence=128
  python -m tinygrad.onnx speech.onnx --shape input=1,512 --input sr=16000
  python -m tinygrad.onnx resnet.onnx --input image.npy --check

Returns 0; 1 where --check finds a result farther off than {TOLERANCE:g} of the largest number of its output;
2 for a model that cannot be read or run, or options that do not fit it."""


def _count(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not _is_count(text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"a number from {least} on, got {text}")
        return int(text)
    return number


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tinygrad.onnx", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What an ONNX model is, and how it runs here: inputs, outputs, operators, the kernels\n"
        "that are left of them, memory, time.")
    parser.add_argument("model", help="path of the file; weights in files of their own lie beside it")
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]X",
                        help="an input: a file that numpy.save wrote or, with its name, a number (a text, "
                        "where the model takes texts); without a name, the next in the model's order")
    parser.add_argument("--size", action="append", default=[], metavar="AXIS=N",
                        help="how long an axis with a name is")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=N,N",
                        help="the shape of a random input, where axes have no names")
    parser.add_argument("--check", action="store_true",
                        help="compare with ONNX Runtime; with the standard's reference where that cannot")
    parser.add_argument("--beam", type=_count(0), default=0, metavar="N",
                        help="search for faster plans of the kernels by measuring, N at a time")
    parser.add_argument("--runs", type=_count(1), default=20, metavar="N",
                        help="how often to run for the time (20)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print what the arguments ask for. Returns 1 where `--check` finds another result, 2 for a wrong
    model."""
    options = parsed(arguments)
    try:
        run = OnnxRunner(options.model)
        describe(run, options.model)
        inputs = given_inputs(run, options)
        with Context(BEAM=options.beam):
            try:
                for name, value in measured(run, inputs, options.runs):
                    print(f"{name:13} {value}", flush=True)
            except OnnxError as error:
                raise OnnxError(f"{error}{_random_ones(inputs, options)}") from error
        return check(run, options.model, inputs) if options.check else 0
    except (OnnxError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def describe(run: OnnxRunner, path: str) -> None:
    """Print what a model is."""
    opsets = [f"{domain or 'ai.onnx'} {version}" for domain, version in run.model.opsets.items()]
    print(f"{path}: {run.model.producer or 'unknown producer'}, operators of {', '.join(opsets)}")
    for kind, types in (("input", run.inputs), ("output", run.outputs)):
        for name, said in types.items():
            print(f"{kind:13} {name}: {said}")
    counts = Counter(node.op for node in all_nodes(run.model.graph))
    listed = ", ".join(f"{n} {op}" for op, n in counts.most_common())
    print(f"{'operators':13} {counts.total()}: {listed}", flush=True)


def _random_ones(inputs: Mapping[str, Any], options: argparse.Namespace) -> str:
    """What a model was run with, behind the error of a run, where not all of that was given."""
    if len(options.input) >= len(inputs):
        return ""
    listed = ", ".join(f"{name}: {x.dtype.name if x.dtype.kind != 'O' else 'string'} {x.shape}"
                       for name, x in inputs.items() if isinstance(x, np.ndarray))
    return f"\ninputs were {listed}; --input, --shape and --size say what is not to be random or 1 long"


def check(run: OnnxRunner, path: str, inputs: Mapping[str, Any]) -> int:
    """Print how far outputs are from what another implementation gives; 1 where that is too far."""
    who, expected = expected_outputs(path, inputs)
    results = run(inputs)
    worst = 0.0
    for name, wanted in zip(run.outputs, expected, strict=True):
        apart = difference(results[name], wanted)
        worst = max(worst, apart)
        verdict = "equal to" if apart <= TOLERANCE else "OTHER THAN"
        print(f"{'check':13} {name}: {verdict} {who}'s, {apart:.2e} of its largest number apart")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
