"""Random programs over random layouts, as a rank runs them: `python rank_programs.py FIRST LAST`.

The programs are those of `random_programs.py`, whose results NumPy knows exactly. Ranks are a mesh; along
each axis of it an input is cut or whole, as a seed says; what is computed is cut again now and then. Every
third one runs under TinyJit too. Prints how many ran and how many a rank refused ("not sharded along"), which
all ranks do alike.
"""
from __future__ import annotations

import sys
from typing import Any

import numpy as np
import program_steps
from hypothesis import HealthCheck, Phase, given, seed, settings
from program_steps import TENSOR, WRITES, Array, Program
from random_programs import programs

from tinygrad import Tensor, TinyJit, distributed
from tinygrad.nn.parallel import Mesh

DRAWS = 6
"""Programs that are drawn for each that is run, the last: the first ones of a seed are the smallest."""


def drawn(number: int) -> Program:
    """The program of that number, the same in every process."""
    found: list[Program] = []

    @seed(number)
    @settings(max_examples=DRAWS, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(programs())
    def collect(program: Any) -> None:
        found.append(program)

    collect()
    return found[-1]


class Whole:
    """`Tensor` as the steps of programs make masks and places of: whole on every rank."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.devices = devices

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        return Tensor(*arguments, **named).shard(self.devices)

    def __getattr__(self, name: str) -> Any:
        return getattr(Tensor, name)


def spread(x: Tensor, mesh: Mesh, name: str, rng: np.random.Generator) -> Tensor:
    """Whole along an axis of the mesh, or cut among its devices, as the generator draws; along the others as
    it lies."""
    axes = [None, *(i for i, n in enumerate(x.shape) if n >= mesh.sizes[name])]
    return x.shard(mesh[name], axes[rng.integers(len(axes))])


def inputs_of(program: Program, mesh: Mesh, rng: np.random.Generator) -> list[Tensor]:
    """The program's inputs, over all devices."""
    values = []
    for array in program.inputs:
        value = Tensor(array, requires_grad=False)
        for name in mesh.sizes:
            value = spread(value, mesh, name, rng)
        values.append(value)
    return values


def results_of(program: Program, mesh: Mesh, rng: np.random.Generator, *inputs: Tensor) -> list[Tensor]:
    """The program's results, computed there."""
    names, values = list(mesh.sizes), list(inputs)
    writes = any(step.name in WRITES for step in program.steps)
    for name, x, y, arg, _ in program.steps:
        value = TENSOR[name](values[x], None if y is None else values[y], arg)
        again = rng.random() < 0.2 and not writes and value.device == mesh.devices
        values.append(spread(value, mesh, names[rng.integers(len(names))], rng) if again else value)
    results = [values[i] for i in program.results]
    results[0].realize(*results[1:])
    return results


def run(program: Program, mesh: Mesh, number: int) -> list[Array]:
    """The program's results; for every third number in each of three calls, of which one is replayed."""
    rng = np.random.default_rng(number)
    found = [r.numpy() for r in results_of(program, mesh, rng, *inputs_of(program, mesh, rng))]
    if number % 3:
        return found

    def step(*inputs: Tensor) -> list[Tensor]:
        return results_of(program, mesh, np.random.default_rng(number), *inputs)

    jitted = TinyJit(step)
    for _ in range(3):
        inputs = [x.detach().contiguous() for x in inputs_of(program, mesh, np.random.default_rng(number))]
        Tensor.realize(*inputs)  # each with memory of its own, into which a call may write
        found += [r.numpy() for r in jitted(*inputs)]
    return found


def main(first: int, last: int) -> None:
    world = distributed.init()
    refused: list[str] = []
    program_steps.Tensor = Whole(world.devices)
    rows = 2 if world.size % 2 == 0 else 1
    mesh = world.mesh(rows=rows, columns=world.size // rows)
    for number in range(first, last):
        program = drawn(number)
        try:
            found = run(program, mesh, number)
        except (ValueError, NotImplementedError) as error:
            refused.append(f"{number}: {error}")
            continue
        results = program.run_numpy()
        for ours, expected in zip(found, results * (len(found) // len(results)), strict=True):
            np.testing.assert_array_equal(ours, expected, err_msg=f"program {number}: {program}")
    print(world.rank, last - first - len(refused), len(refused))
    if world.rank == 0:
        print(*refused, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
