"""Programs in several processes (`tinygrad.distributed`): values and training are those of one process, each
process computes its part only, and whatever ends one of them ends all, with the cause."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tinygrad.nn import checkpoints

pytest.importorskip("mpi4py", reason="ranks need the extra mpi")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="ranks need mpirun, of the extra mpi")

BEGIN = """
import os, sys, time
import numpy as np
from tinygrad import Device, Tensor, TinyJit, distributed, dtypes, nn
from tinygrad.nn import optim, state
world = distributed.init()
rng = np.random.default_rng(0)
"""


def start_ranks(count: int, arguments: Sequence[str], seconds: float = 180, **environment: str
                ) -> subprocess.CompletedProcess[str]:
    """Python with these arguments in so many processes, each of one thread."""
    here = Path(__file__).parents[1]
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "THREADS": "1",
                 "PYTHONPATH": f"{here.parent}{os.pathsep}{here}", **environment}
    assert MPIRUN is not None
    return subprocess.run([MPIRUN, "--oversubscribe", "-n", str(count), sys.executable, *arguments],
                          capture_output=True, text=True, timeout=seconds, env={**os.environ, **variables})


def run_ranks(count: int, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in so many processes; ends within minutes, on a busy machine too."""
    return start_ranks(count, ["-c", BEGIN + textwrap.dedent(program)], **environment)


@pytest.mark.parametrize("count", [2, 4])
def test_values_over_ranks_are_those_of_numpy(count: int) -> None:
    done = run_ranks(count, """
        a, b = (rng.normal(size=s).astype(np.float32) for s in ((9, 6), (6, 8)))
        near = dict(rtol=1e-4, atol=1e-4)
        for axis in (0, 1, None):
            x, w = Tensor(a).shard(world.devices, axis), Tensor(b).shard(world.devices)
            np.testing.assert_allclose((x @ w).numpy(), a @ b, **near)
            np.testing.assert_allclose(x.sum(0).numpy(), a.sum(0), **near)
            np.testing.assert_allclose(x.T.reshape(-1).numpy(), a.T.reshape(-1))
            centred = x - x.mean(1, keepdim=True)
            np.testing.assert_allclose(centred.numpy(), a - a.mean(1, keepdims=True), **near)
            np.testing.assert_allclose(x.shard(world.devices, 1).numpy(), a)
            np.testing.assert_allclose(x.shard(world.devices[::-1], 0).numpy(), a)
            np.testing.assert_allclose(x.to(world.devices[-1]).numpy(), a)
        big = rng.normal(size=(8, 300, 100)).astype(np.float32)
        total = Tensor(big).shard(world.devices, 0).sum(0)
        np.testing.assert_allclose(total.numpy(), big.sum(0), **near)
        one = Tensor([1.0]).to(world.devices[1]).realize()
        assert one.item() == 1.0 and "lazy" in repr(one)
        print("whole")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["whole"] * count


@pytest.mark.parametrize("count", [2, 3])
def test_values_are_cut_another_way_whatever_their_rows_are(count: int) -> None:
    done = run_ranks(count, """
        for shape, dtype in (((9, 6), np.float16), ((8, 7, 12), np.float32), ((4, 300000), np.int8)):
            whole = (3 * rng.normal(size=shape)).astype(dtype)
            for before in range(len(shape)):
                x = Tensor(whole).shard(world.devices, before).realize()
                for after in range(len(shape)):
                    replayed = TinyJit(lambda x: x.shard(world.devices, after).realize())
                    for _ in range(3):
                        np.testing.assert_array_equal(replayed(x).numpy(), whole)
                    np.testing.assert_array_equal(x.shard(world.devices, after).realize().numpy(), whole)
            for after in (None, 0, 1):
                last = Tensor(whole).to(world.devices[-1]).realize()
                np.testing.assert_array_equal(last.shard(world.devices, after).realize().numpy(), whole)
        print("whole")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["whole"] * count


def test_training_on_a_mesh_of_ranks_ends_with_the_parameters_of_one_process() -> None:
    done = run_ranks(4, """
        from tinygrad.nn import parallel

        data = rng.normal(size=(3, 16, 12)).astype(np.float32)
        target = data.sum(2, keepdims=True)
        mesh = world.mesh(data=2, model=2)

        def trained(several):
            Tensor.manual_seed(3)
            first, second = nn.Linear(12, 8), nn.Linear(8, 1)
            if several:
                parallel.column_parallel(first, mesh["model"])
                parallel.row_parallel(second, mesh["model"])
                parallel.replicate([first, second], mesh)
            parameters = state.get_parameters([first, second])
            optimizer = optim.Adam(parameters, lr=0.05)
            backward = Tensor.backward
            if several:
                optimizer = parallel.ZeRO(optimizer, 2, mesh["data"])
                backward = optimizer.backward

            @TinyJit
            def step(x, y):
                optimizer.zero_grad()
                loss = (second(first(x).relu()) - y).square().mean()
                backward(loss)
                return loss.realize(*optimizer.schedule_step())

            with Tensor.train():
                for x, y in zip(data, target):
                    x, y = Tensor(x), Tensor(y)
                    if several:
                        x, y = (t.shard(mesh["data"], 0) for t in (x, y))
                    step(x.realize(), y.realize())
            return [p.numpy() for p in parameters]

        for ours, one in zip(trained(True), trained(False)):
            np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5)
        print("equal")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 4


@pytest.mark.parametrize("count", [2, 4])
def test_training_over_ranks_ends_with_the_parameters_of_one_process(count: int) -> None:
    done = run_ranks(count, """
        data = rng.normal(size=(6, 16, 12)).astype(np.float32)
        target = data.sum(2, keepdims=True)

        def trained(devices, tensor_parallel):
            Tensor.manual_seed(3)
            first, second = nn.Linear(12, 8), nn.Linear(8, 1)
            parameters = state.get_parameters([first, second])
            axes = [0, 0, 1, None] if tensor_parallel else [None] * 4
            if devices:
                for p, axis in zip(parameters, axes):
                    p.shard_(devices, axis)
            optimizer = optim.Adam(parameters, lr=0.05)

            @TinyJit
            def step(x, y):
                optimizer.zero_grad()
                loss = (second(first(x).relu()) - y).square().mean().backward()
                return loss.realize(*optimizer.schedule_step())

            with Tensor.train():
                for x, y in zip(data, target):
                    x, y = Tensor(x), Tensor(y)
                    if devices:
                        x, y = (t.shard(devices, None if tensor_parallel else 0) for t in (x, y))
                    step(x.realize(), y.realize())
            return [p.numpy() for p in parameters]

        expected = trained(None, False)
        for tensor_parallel in (False, True):
            for ours, one in zip(trained(world.devices, tensor_parallel), expected):
                np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5)
        print("equal")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * count


def test_collectives_send_the_bytes_that_theory_says() -> None:
    done = run_ranks(4, """
        def sent(make):
            Device.synchronize()
            before = world.sent_bytes
            result = make().realize()
            Device.synchronize()
            return world.sent_bytes - before, result

        a = rng.normal(size=(64, 48)).astype(np.float32)
        x = Tensor(a).shard(world.devices, 0).realize()
        whole = Tensor(a).to(world.devices[0]).realize()
        big = rng.normal(size=(8, 300, 100)).astype(np.float32)
        z = Tensor(big).shard(world.devices, 0).realize()
        n, p, own = a.nbytes, 4, world.rank == 0
        cases = {
            "all-to-all": (lambda: x.shard(world.devices, 1), n * (p - 1) // p**2, a),
            "all-gather": (lambda: x.shard(world.devices), n * (p - 1) // p, a),
            "all-reduce": (lambda: z.sum(0), 2 * (big.nbytes // 8) * (p - 1) // p, big.sum(0)),
            "gather": (lambda: x.to(world.devices[0]), 0 if own else n // p, a),
            "broadcast": (lambda: whole.shard(world.devices), n * (p - 1) * own, a),
            "scatter": (lambda: whole.shard(world.devices, 0), n * (p - 1) // p * own, a),
            "nothing": (lambda: x.shard(world.devices, 0) + x, 0, 2 * a),
        }
        for name, (make, expected, value) in cases.items():
            count, result = sent(make)
            assert count == expected, (name, count, expected)
            np.testing.assert_allclose(result.numpy(), value, rtol=1e-4, atol=1e-4)
        print("counted")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["counted"] * 4


def test_collectives_along_an_axis_of_a_mesh_send_the_bytes_that_theory_says() -> None:
    done = run_ranks(4, """
        mesh = world.mesh(data=2, model=2)
        data, model = mesh["data"], mesh["model"]

        def sent(make):
            Device.synchronize()
            before = world.sent_bytes
            result = make().realize()
            Device.synchronize()
            return world.sent_bytes - before, result

        a, b = (rng.normal(size=s).astype(np.float32) for s in ((64, 48), (48, 32)))
        x = Tensor(a).shard(data, 0).shard(model, 1).realize()
        rows = Tensor(a).shard(data, 0).realize()
        w = Tensor(b).shard(mesh).shard(model, 1).realize()
        n, part, p = a.nbytes, a.nbytes // 4, 2
        cases = {
            "all-reduce, model": (lambda: x.sum(1), 2 * (64 * 4 // 2) * (p - 1) // p, a.sum(1)),
            "all-reduce, data": (lambda: x.sum(0), 2 * (48 * 4 // 2) * (p - 1) // p, a.sum(0)),
            "all-gather, model": (lambda: x.shard(model), p * part * (p - 1) // p, a),
            "all-gather, both": (lambda: x.shard(mesh), n * 3 // 4, a),
            "all-to-all, model": (lambda: x.shard(model, 0), p * part * (p - 1) // p**2, a),
            "a product": (lambda: rows @ w, 0, a @ b),
            "gradients": (lambda: (rows @ w).square().sum().gradient(w)[0],
                          2 * (b.nbytes // 2) * (p - 1) // p, a.T @ (2 * (a @ b))),
        }
        for name, (make, expected, value) in cases.items():
            count, result = sent(make)
            assert count == expected, (name, count, expected)
            np.testing.assert_allclose(result.numpy(), value, rtol=1e-3, atol=1e-2)
        print("counted")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["counted"] * 4


@pytest.mark.parametrize("places", ["ranks", "meshes"])
def test_a_pipeline_over_ranks_ends_with_the_parameters_of_one_process(places: str) -> None:
    count = 2 if places == "ranks" else 4
    done = run_ranks(count, f"""
        data = rng.normal(size=(4, 16, 12)).astype(np.float32)
        target = data.sum(2, keepdims=True)
        places = world.devices if "{places}" == "ranks" else world.mesh(pipe=2, data=2).split("pipe")

        def trained(several):
            Tensor.manual_seed(3)
            model = [nn.Linear(12, 8), nn.Linear(8, 1)]

            def loss(y, t):
                return (y - t).square().mean()

            pipeline = nn.Pipeline(model, places, loss) if several else None
            optimizer = optim.Adam(state.get_parameters(model), lr=0.05)

            @TinyJit
            def step(x, y):
                optimizer.zero_grad()
                if pipeline is None:
                    value = loss(x.sequential(model), y).backward()
                else:
                    value = pipeline.backward(x, y, pieces=4)
                return value.realize(*optimizer.schedule_step())

            with Tensor.train():
                losses = [step(Tensor(x).realize(), Tensor(y).realize()).item() for x, y in zip(data, target)]
            return losses, [p.numpy() for p in state.get_parameters(model)]

        (losses, ours), (expected, one) = trained(True), trained(False)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        for a, b in zip(ours, one):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        print("equal")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * count


def test_a_small_all_reduce_is_one_message_to_each_other_and_replayed_as_one() -> None:
    done = run_ranks(2, """
        from tinygrad.runtime.rank import World

        x = Tensor(rng.normal(size=(2, 100)).astype(np.float32)).shard(world.devices, 0).realize()
        other = 1 - world.rank
        counts = []
        step = TinyJit(lambda x: x.sum(0).realize())
        for _ in range(4):
            before, _ = World.current.seen.get(other, (0, 0))
            step(x)
            Device.synchronize()
            counts.append(World.current.seen[other][0] - before)
        print(counts)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1, 1, 1, 1]"] * 2


def test_what_all_ranks_combine_or_gather_is_one_collective_of_mpi() -> None:
    done = run_ranks(4, """
        from tinygrad.runtime.rank import World

        together, found = World.together, []

        def noted(self, collective, sent, received):
            found.append((collective.op, collective.ranks, sum(memory.nbytes for memory in received)))
            together(self, collective, sent, received)

        World.together = noted
        near = dict(rtol=1e-5, atol=1e-5)
        for rows in (100, 100_000):  # with its header in one message, and by itself
            a = rng.normal(size=(4, rows)).astype(np.float32)
            whole = [("ADD", (0, 1, 2, 3), 4 * rows), ("", (0, 1, 2, 3), 16 * rows)]
            step = TinyJit(lambda x: (x.sum(0).realize(), x.shard(world.devices).realize()))
            for number in range(3):
                total, copies = step((Tensor(a) + number).shard(world.devices, 0).realize())
                np.testing.assert_allclose(total.numpy(), (a + number).sum(0), **near)
                np.testing.assert_allclose(copies.numpy(), a + number, **near)
                assert found == whole, found
                found.clear()

        mesh = world.mesh(data=2, model=2)
        x = Tensor(a).shard(mesh["data"], 0).shard(mesh["model"], 1).realize()
        np.testing.assert_allclose(x.shard(mesh["model"]).realize().numpy(), a)
        np.testing.assert_allclose(x.shard(mesh["data"]).realize().numpy(), a)
        lines = {tuple(ranks) for op, ranks, _ in found}
        assert len(lines) == 2 and all(world.rank in ranks and len(ranks) == 2 for ranks in lines), found

        found.clear()
        counts, products = rng.integers(-9, 9, size=(4, 5)), rng.integers(1, 3, size=(4, 5))
        np.testing.assert_array_equal(Tensor(counts).shard(world.devices, 0).max(0).numpy(), counts.max(0))
        product = Tensor(products).shard(world.devices, 0).prod(0)
        np.testing.assert_array_equal(product.numpy(), products.prod(0))
        assert [op for op, *_ in found] == ["MAX", "MUL"], found
        nan = np.where(np.arange(20).reshape(4, 5) == 7, np.nan, a[:, :5]).astype(np.float32)
        largest = Tensor(nan).shard(world.devices, 0).max(0)
        np.testing.assert_array_equal(np.isnan(largest.numpy()), np.isnan(nan).any(0))
        for narrow in (dtypes.float16, dtypes.bfloat16):  # summed in float32
            ones = np.full((4, 3), 2.0 ** -13, np.float32)
            ones[0] = 1.0
            total = Tensor(ones).cast(narrow).shard(world.devices, 0).sum(0, dtype=narrow).float().numpy()
            expected = Tensor(ones.sum(0, keepdims=True)).cast(narrow).float().numpy()[0]
            np.testing.assert_array_equal(total, expected)
        print("by MPI")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["by MPI"] * 4


def test_what_is_read_of_an_all_reduce_is_read_after_it_in_all_ranks() -> None:
    """A broadcast of the result straight after the collective: only its first rank knew that it has to wait,
    and the others were at the broadcast before."""
    done = run_ranks(3, """
        a = rng.integers(-9, 9, (6, 4, 5)).astype(np.float32)
        x = Tensor(a).shard(world.devices, 0).realize()
        total = TinyJit(lambda x: x.sum(0, keepdim=True).to("CPU").realize())
        for value in (x.sum(0, keepdim=True), total(x), total(x), total(x), total(x)):
            np.testing.assert_array_equal(value.numpy(), a.sum(0, keepdims=True))
        print("equal")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 3


def test_small_collectives_of_a_kind_are_made_as_one() -> None:
    done = run_ranks(3, """
        from tinygrad.runtime.rank import World

        together, found = World.together, []

        def noted(self, joined, sent, received):
            found.append((joined.op, joined.dtype, [memory.nbytes for memory in received]))
            together(self, joined, sent, received)

        World.together = noted
        sizes = [(5,), (3, 2), (7000,), (20_000,), (7,)]
        values = [rng.integers(-9, 9, size=(3, *size)).astype(kind)
                  for size in sizes for kind in (np.float32, np.int32)]

        @TinyJit
        def step(*given):
            totals = [x.sum(0) for x in given]
            whole = [x.shard(world.devices) for x in given[:6:2]]
            Tensor.realize(*totals, *whole)
            return totals, whole

        for number in range(3):
            given = [v + number for v in values]
            totals, whole = step(*(Tensor(v).shard(world.devices, 0).realize() for v in given))
            assert sorted(len(sizes) for _, _, sizes in found) == [1, 1, 1, 2, 4, 4], found
            found.clear()
            for total, v in zip(totals, given):
                np.testing.assert_array_equal(total.numpy(), v.sum(0))
            for copy, v in zip(whole, given[:6:2]):
                np.testing.assert_array_equal(copy.numpy(), v)
        print("as one")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["as one"] * 3


def test_gradients_are_exchanged_in_buckets_while_others_are_computed() -> None:
    done = run_ranks(2, """
        from tinygrad.engine.realize import schedule_uops
        from tinygrad.schedule import exchanges

        exchanges.BUCKET_BYTES = (1 << 14) + 1
        layers = [nn.Linear(64, 64) for _ in range(4)]
        parameters = [p.shard_(world.devices).realize() for p in state.get_parameters(layers)]
        x = Tensor(rng.normal(size=(8, 64)).astype(np.float32)).shard(world.devices, 0).realize()
        x.sequential([lambda t, layer=layer: layer(t).relu() for layer in layers]).sum().backward()
        items = schedule_uops([p.grad.uop for p in parameters])
        kinds = "".join("x" if exchanges.is_exchange(i) else "." for i in items)
        buckets = kinds.replace(".", " ").split()
        copied = sum(map(len, buckets))
        assert copied == 2 * len(parameters) and 3 <= len(buckets) <= 5, kinds
        first, last = kinds.index("x"), kinds.rindex("x")
        beside = [i for i in items[first:last] if i.device == world.devices[world.rank]]
        assert len(beside) - copied // 2 >= 3, kinds
        print("overlapped")
    """, CACHELEVEL="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["overlapped"] * 2


def test_large_messages_of_an_all_to_all_are_on_their_way_at_once() -> None:
    done = run_ranks(2, """
        from tinygrad.engine.realize import schedule_uops
        from tinygrad.schedule import exchanges

        exchanges.BUCKET_BYTES = 1 << 10
        given = rng.normal(size=(24, 96)).astype(np.float32)
        x = Tensor(given).shard(world.devices, 0).realize()
        turned = x.shard(world.devices, 1)
        kinds = "".join("x" if exchanges.is_exchange(i) else "." for i in schedule_uops([turned.uop]))
        assert len(kinds.replace(".", " ").split()) == 1, kinds
        np.testing.assert_array_equal(turned.numpy(), given)
        print("once")
    """, CACHELEVEL="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["once"] * 2


def test_each_process_has_the_memory_of_its_own_part() -> None:
    done = run_ranks(2, """
        x = Tensor.ones(8, 4).contiguous().shard(world.devices, 0).realize()
        own = [Device[shard.buffer.device].runs for shard in x.uop.base.memories]
        print(own.index(True) == world.rank and sum(own) == 1)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]


EXCHANGE = "Tensor.ones(4, 3).contiguous().shard(world.devices, 0).sum(0).numpy()"
FAULTS = {
    "raises": ("if world.rank == 1: raise ValueError('no such thing')\n" + EXCHANGE,
               "rank 1 of 2: Traceback", "no such thing"),
    "exits": ("if world.rank == 1: sys.exit(0)\n" + EXCHANGE,
              "rank 0 of 2: rank 1 has ended, and this one waits for it", ""),
    "is killed": ("if world.rank == 1: os.kill(os.getpid(), 9)\n" + EXCHANGE, "signal 9", ""),
    "runs another program": ("x = Tensor.ones(4, 3 + world.rank).contiguous()\n"
                             "x.shard(world.devices, 0).sum(0).numpy()",
                             "do not run the same program: exchange 1 of", ""),
    "runs a program of the same shapes": ("x = Tensor.ones(4, 3).contiguous().shard(world.devices, 0)\n"
                                          "(x.exp() if world.rank else x.sqrt()).sum(0).numpy()",
                                          "do not run the same program: exchange 1 of",
                                          "computes float32 (3,) on"),
    "runs a program of other collectives": (
        "x = Tensor.ones(4, 3).contiguous().shard(world.devices, 0).realize()\n"
        "(x.shard(world.devices) if world.rank else x.sum(0)).realize()\nDevice.synchronize()",
        "do not run the same program: exchange 1 between them is", "computes float32"),
    "takes too long": ("if world.rank == 1: time.sleep(50)\n" + EXCHANGE,
                       "takes longer than 5 s (DISTRIBUTED_TIMEOUT)", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_ends_one_rank_ends_all_with_the_cause(fault: str) -> None:
    program, cause, detail = FAULTS[fault]
    began = time.monotonic()
    done = run_ranks(2, program, DISTRIBUTED_TIMEOUT="5" if fault == "takes too long" else "40")
    said = done.stderr + done.stdout
    assert done.returncode != 0
    assert cause in said and detail in said, said
    assert time.monotonic() - began < 30


def run_programs(count: int, first: int, last: int) -> None:
    """Random programs of these numbers, in so many processes."""
    done = start_ranks(count, [str(Path(__file__).parents[1] / "rank_programs.py"), str(first), str(last)],
                       seconds=600)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        _, ran, refused = map(int, line.split())
        assert ran + refused == last - first and refused <= ran // 20, done.stderr


def test_random_programs_over_random_layouts_give_what_numpy_gives() -> None:
    run_programs(2, 100, 150)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "first", "last"), [(2, 0, 100), (2, 150, 250), (3, 250, 350),
                                                      (3, 350, 430), (4, 430, 500)])
def test_many_random_programs_over_random_layouts_give_what_numpy_gives(count: int, first: int, last: int
                                                                        ) -> None:
    run_programs(count, first, last)


EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt_distributed.py"
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--batch", "4"]


def some_text(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 20, encoding="utf-8")
    return str(path)


def test_a_checkpoint_has_tensors_of_single_ranks_and_of_every_process(tmp_path: Path) -> None:
    done = run_ranks(2, f"""
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        spread = Tensor(a).shard(world.devices, 0)
        for tensors in ({{"second": Tensor(a).to("RANK:1").realize()[1:]}}, {{"own": Tensor(a)[1:]}},
                        {{"first": Tensor(a).to("RANK")[1:], "read": spread.to("CPU")[1:]}}):
            for step in range(2):
                nn.checkpoints.save(tensors, {str(tmp_path)!r}, {{"step": step}})
                found, metadata = nn.checkpoints.load({str(tmp_path)!r})
                assert metadata == {{"step": step}} and found.keys() == tensors.keys()
                for tensor in found.values():
                    np.testing.assert_array_equal(tensor.numpy(), a[1:])
                spread.sum().item()  # none writes again before all have read
        print("equal")
    """, DISTRIBUTED_TIMEOUT="60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 2


def test_training_goes_on_from_a_checkpoint_with_another_number_of_ranks(tmp_path: Path) -> None:
    def losses(count: int, steps: int, folder: str, *more: str) -> list[str]:
        done = start_ranks(count, [str(EXAMPLE), some_text(tmp_path), *SMALL, "--every", "5", "--steps",
                                   str(steps), "--folder", str(tmp_path / folder), *more])
        assert done.returncode == 0, done.stderr
        return [line.split(",")[0] for line in done.stdout.splitlines()]

    whole = losses(2, 15, "whole")
    parted = losses(2, 5, "parted") + losses(1, 15, "parted", "--resume")
    assert len(whole) == 3
    assert parted == whole


FAULT = """
import os, runpy, signal, sys, threading

def ends(how):
    def handler(_, frame):
        while frame is not None and frame.f_code.co_name not in ("__del__", "_forget"):
            frame = frame.f_back
        if frame is not None:  # Python would print what a finalizer raises, and go on
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        elif how == "raises":
            raise ValueError("injected")
        else:
            sys.exit(0)
    return handler

kind, seconds, rank, program, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
if os.environ["OMPI_COMM_WORLD_RANK"] == rank:
    if kind in ("raises", "exits"):
        signal.signal(signal.SIGALRM, ends(kind))
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
    else:
        act = {"is killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "leaves": lambda: os._exit(0),
               "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
               "is interrupted": lambda: os.kill(os.getpid(), signal.SIGINT)}[kind]
        timer = threading.Timer(float(seconds), act)
        timer.daemon = True
        timer.start()
sys.argv[0] = program
sys.path.insert(0, os.path.dirname(program))
runpy.run_path(program, run_name="__main__")
"""
KINDS_OF_FAULTS = ("raises", "exits", "is killed", "leaves", "stops", "is interrupted")


NUMBER_OF_FAULTS = int(os.environ.get("FAULTS", "50"))
"""About half of them in three ranks, whose gradients MPI's own collectives sum."""
NOT_SLOW = 3


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.slow] if n >= NOT_SLOW else [])
                                    for n in range(NUMBER_OF_FAULTS)])
def test_a_fault_at_any_time_ends_all_and_leaves_a_whole_checkpoint(number: int, tmp_path: Path) -> None:
    random = np.random.default_rng(number)
    count = 2 + number // len(KINDS_OF_FAULTS) % 2
    kind, rank = KINDS_OF_FAULTS[number % len(KINDS_OF_FAULTS)], random.integers(count)
    seconds = float(random.uniform(0.5, 8.0))
    began = time.monotonic()
    done = start_ranks(count, ["-c", FAULT, kind, str(seconds), str(rank), str(EXAMPLE), some_text(tmp_path),
                               *SMALL, "--batch", "6", "--steps", "1000000", "--every", "2", "--folder",
                               str(tmp_path / "saved")], DISTRIBUTED_TIMEOUT="5")
    assert done.returncode != 0, (kind, seconds)
    assert time.monotonic() - began < seconds + 20, (kind, seconds, done.stderr)
    saved = tmp_path / "saved"
    if any(saved.glob("*.json")):
        tensors, _ = checkpoints.load(saved)
        assert all(np.isfinite(t.numpy()).all() for t in tensors.values())
