"""`python -m bench onnx`: ONNX models beside ONNX Runtime, taking turns in one process.

The models are those that packages carry: silero-vad, magika, and the light architectures of the `onnx`
package, whose weights are constants. ONNX Runtime does all its optimisations and has the threads that we
have.
"""
from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.results import columns
from tinygrad.device import Device
from tinygrad.helpers import GlobalCounters
from tinygrad.nn.onnx import OnnxRunner
from tinygrad.onnx import difference, random_input

LIGHT = ("squeezenet", "resnet50", "shufflenet", "densenet121", "inception_v1", "inception_v2", "vgg19",
         "zfnet512",
         "bvlc_alexnet")
PACKAGED = {"silero-vad": ("silero_vad", "data/silero_vad_16k_op15.onnx"),
            "magika": ("magika", "models/standard_v3_3/model.onnx")}
SIZES = {"silero-vad": {"sequence": 576}}
"""How long dynamic axes are; 1 where nothing is said."""
WARM_UPS = 4


@dataclass(frozen=True)
class OnnxRow:
    """Seconds of both, and how far apart their results are."""

    name: str
    nodes: int
    kernels: int
    first: float
    first_theirs: float
    seconds: float
    seconds_theirs: float
    apart: float
    """the largest difference, of the largest number of an output"""


def models(only: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
    """Names and files of the models that are installed."""
    paths = {name: _file(package, path) for name, (package, path) in PACKAGED.items()}
    paths |= {name: _file("onnx", f"backend/test/data/light/light_{name}.onnx") for name in LIGHT}
    for name, path in paths.items():
        if path is not None and (not only or any(text in name for text in only)):
            yield name, path


def _file(package: str, path: str) -> Path | None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / path
    return file if file.exists() else None


def with_weights(path: Path) -> bytes:
    """The model with random weights in place of nodes that make constants, of a size that keeps values in
    range."""
    import onnx

    model, rng = onnx.load(path), np.random.default_rng(0)
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = shapes[node.input[0]]
            weights = rng.uniform(0, 2 / max(1, math.prod(shape[1:])), shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights, node.output[0]))
        else:
            model.graph.node.append(node)
    data: bytes = model.SerializeToString()
    return data


def row_of(name: str, path: Path, rounds: int, burst: float, threads: int) -> OnnxRow:
    """A model's row: each of both runs for `burst` seconds, `rounds` times."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    data = with_weights(path)
    start = time.perf_counter()
    run = OnnxRunner(data)
    rng = np.random.default_rng(0)
    given = {k: random_input(said, SIZES.get(name, {}), rng) for k, said in run.inputs.items()}
    if "sr" in given:
        given["sr"] = np.array(16000, np.int64)
    held = {k: run.as_value(v) for k, v in given.items()}

    def ours() -> Mapping[str, Any]:
        results = run(held)
        Device[run.device].synchronize()
        return results

    made = ours()
    first = time.perf_counter() - start
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    expected = session.run(None, given)
    first_theirs = time.perf_counter() - start
    for _ in range(WARM_UPS):
        ours()
        session.run(None, given)
    before = GlobalCounters.kernel_count
    ours()
    kernels = GlobalCounters.kernel_count - before
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        _measure(ours, burst, times[0])
        _measure(lambda: session.run(None, given), burst, times[1])
    apart = max(difference(made[output], wanted) for output,
                wanted in zip(run.outputs, expected, strict=True))
    return OnnxRow(name, len(run.model.graph.nodes), kernels, first, first_theirs,
                   statistics.median(times[0]),
                   statistics.median(times[1]), apart)


def _measure(step: Callable[[], Any], burst: float, into: list[float]) -> None:
    """Run for `burst` seconds, at least once; what each run took is added."""
    end = time.perf_counter() + burst
    while True:
        start = time.perf_counter()
        step()
        into.append(time.perf_counter() - start)
        if time.perf_counter() >= end:
            return


def onnx_table(rows: Sequence[OnnxRow]) -> str:
    """Milliseconds, ratios to ONNX Runtime's (below 1 where this library is faster), and their geometric
    mean."""
    lines = [["model", "nodes", "kernels", "first ms", "theirs", "ms", "theirs", "ratio", "apart"]]
    lines += [[row.name, str(row.nodes), str(row.kernels), f"{row.first * 1e3:.0f}",
               f"{row.first_theirs * 1e3:.0f}",
               f"{row.seconds * 1e3:.3f}", f"{row.seconds_theirs * 1e3:.3f}",
               f"{row.seconds / row.seconds_theirs:.2f}", f"{row.apart:.0e}"] for row in rows]
    ratios = [math.log(row.seconds / row.seconds_theirs) for row in rows]
    mean = math.exp(sum(ratios) / len(ratios)) if ratios else math.nan
    return f"{columns(lines)}\ngeometric mean of the ratios: {mean:.2f}"
