"""What starting a kernel costs: kernels so small that the rest is all there is."""
from __future__ import annotations

from typing import Any

import numpy as np

from bench.workloads.base import Step, Workload, both_tinygrads, wait_for_tinygrad
from bench.workloads.models import gpt_step
from bench.workloads.models.sizes import Transformer


def dependent_kernels(count: int) -> Workload:
    """`count` times x = x + 1 on one item, each computed before the next; replayed by TinyJit."""

    def tinygrad() -> Step:
        from tinygrad import Tensor, TinyJit

        @TinyJit
        def chain(x: Tensor) -> Tensor:
            for _ in range(count):
                x = (x + 1).realize()
            return x

        start = Tensor(np.zeros(1, np.float32)).realize()

        def step() -> Any:
            result = chain(start)
            wait_for_tinygrad()
            return result

        return step

    def torch() -> Step:
        import torch

        start = torch.zeros(1)

        def step() -> Any:
            x = start
            for _ in range(count):
                x = x + 1
            return x

        return step

    return Workload(f"{count} dependent tiny kernels", float(count), 4.0, 4.0,
                    {**both_tinygrads(tinygrad), "torch": torch})


def single_kernel() -> Workload:
    """x + 1 on one item, called as any operation is: what a call costs in each library."""

    def tinygrad() -> Step:
        from tinygrad import Tensor

        x = Tensor(np.zeros(1, np.float32)).realize()

        def step() -> Any:
            result = (x + 1).realize()
            wait_for_tinygrad()
            return result

        return step

    def torch(compiled: bool) -> Step:
        import torch

        x = torch.zeros(1)
        add = torch.compile(lambda t: t + 1) if compiled else lambda t: t + 1
        return lambda: add(x)

    def jax() -> Step:
        import jax

        x = jax.numpy.zeros(1)
        add = jax.jit(lambda t: t + 1)
        return lambda: add(x).block_until_ready()

    setups = {**both_tinygrads(tinygrad), "torch": lambda: torch(False), "torch.compile": lambda: torch(True),
              "jax": jax}
    return Workload("one tiny kernel", 1.0, 4.0, 4.0, setups)


def many_parameters(layers: int) -> Workload:
    """A training step of a transformer so thin that its kernels take next to nothing: what a step costs that
    has hundreds of parameters, each with a gradient and two moments."""
    return gpt_step(Transformer(vocabulary=65, context=16, layers=layers, width=16, heads=2), 1)


WORKLOADS = (dependent_kernels(200), single_kernel(), many_parameters(12))
