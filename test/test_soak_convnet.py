"""Ten thousand steps of a convolutional network end as they began: memory, graph nodes, objects, the process.

Takes long: `pytest -m slow test/test_soak_convnet.py`.
"""
import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import gc, json, sys
import numpy as np
from tinygrad import GlobalCounters, Tensor, TinyJit, nn
from tinygrad.device import Device
from tinygrad.graph import uop as graph_nodes

steps, with_jit = int(sys.argv[1]), sys.argv[2] == "jit"
Tensor.manual_seed(1)
layers = [nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu, nn.BatchNorm(32),
          Tensor.max_pool2d, nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu,
          nn.BatchNorm(64), Tensor.max_pool2d, lambda x: x.flatten(1).dropout(0.3), nn.Linear(576, 10)]

def memory_of_process():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def state():
    gc.collect()
    return {"used": GlobalCounters.mem_used, "cached": Device["CPU"].allocator.cached_bytes,
            "nodes": len(graph_nodes._interned), "objects": len(gc.get_objects()),
            "process": memory_of_process()}

optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=1e-3)

@Tensor.train()
def step(x, y):
    optimizer.zero_grad()
    loss = x.sequential(layers).sparse_categorical_crossentropy(y).backward()
    optimizer.step()
    return loss.realize()

call = TinyJit(step) if with_jit else step
rng = np.random.default_rng(0)
images = rng.standard_normal((64, 4, 1, 28, 28)).astype(np.float32)
labels = (images[:, :, 0, :14].sum((2, 3)) > 0).astype(np.int32)
states, losses = {i: None for i in (10, 100, 1000, steps)}, [0.0] * 20
for i in range(1, steps + 1):
    loss = call(Tensor(images[i % 64]), Tensor(labels[i % 64])).item()
    losses[(i - 1) % 10 + 10 * (i > 10)] = loss
    if i in states:
        states[i] = state()
        print(i, json.dumps(states[i]), file=sys.stderr, flush=True)
print(json.dumps([states[10], states[steps], losses]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the process's memory from Linux")
@pytest.mark.parametrize("how", ["jit", "plain"])
def test_ten_thousand_steps_of_a_convnet_end_as_they_began(how):
    """In a process of its own, without the checks of stages that tests turn on."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, "10000", how], capture_output=True, text=True,
                          env={**os.environ, "CHECK": "0"})
    assert done.returncode == 0, done.stderr
    before, after, losses = json.loads(done.stdout)
    assert after["used"] == before["used"] and after["nodes"] <= before["nodes"], (before, after)
    assert after["cached"] <= 1.02 * before["cached"] and after["objects"] < before["objects"] + 200
    assert after["process"] <= 1.02 * before["process"], (before, after)
    assert sum(losses[10:]) < sum(losses[:10])
