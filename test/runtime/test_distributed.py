"""Programs in several processes (`tinygrad.distributed`): values and training are those of one process, and
each process computes its part only."""
from __future__ import annotations

from pathlib import Path

import pytest
from rank_processes import needs_ranks, run_ranks, start_ranks

pytest.importorskip("mpi4py", reason="ranks need the extra mpi")
pytestmark = needs_ranks


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


def test_random_numbers_over_ranks_are_those_of_one_process() -> None:
    """Ranks had numbers of their own, that began where those of the weights did: with dropout they trained
    otherwise than one process, by masks that were the weights' draws again."""
    done = run_ranks(2, """
        def drawn(devices):
            Tensor.manual_seed(3)
            layer, x = nn.Linear(4, 3), Tensor.ones(6, 4).contiguous()
            if devices:
                layer, x = nn.parallel.replicate(layer, devices), x.shard(devices, 0).realize()
            step = TinyJit(lambda x: layer(x).dropout(0.5).realize())
            with Tensor.train():
                masked = [step(x).numpy() for _ in range(4)]
            return [*masked, Tensor.rand(3).numpy(), layer(x).randn_like().numpy(), Tensor.rand(3).numpy()]

        expected = drawn(None)
        for ours, one in zip(drawn(world.devices), expected, strict=True):
            np.testing.assert_allclose(ours, one, rtol=1e-5, atol=1e-6)
        assert (expected[1] != expected[2]).any() and (expected[2] != expected[3]).any()
        print("equal")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 2


def test_a_program_of_one_process_draws_what_its_ranks_would() -> None:
    """The seed was for ranks alone: a run of one process drew other weights each time."""
    program = "world = distributed.init(seed=7)\nprint(Tensor.rand(4).sum().item())"
    done = [run_ranks(1, program), run_ranks(2, program)]
    assert all(d.returncode == 0 for d in done), [d.stderr for d in done]
    assert len(set(done[0].stdout.split() + done[1].stdout.split())) == 1


def test_random_numbers_over_ranks_are_one_sequence_whatever_device_each_prefers() -> None:
    done = run_ranks(2, """
        Device.DEFAULT = f"CPU:{world.rank}"
        Tensor.manual_seed(3)
        drawn = Tensor.ones(6, device="CPU").shard(world.devices, 0).realize().rand_like().numpy()
        Tensor.manual_seed(3)
        np.testing.assert_array_equal(drawn, Tensor.rand(6, device="CPU").numpy())
        print("equal")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 2


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
        exchanges = World.current.exchanges
        print(counts, step.repeated.short.queues[0] is exchanges, exchanges.thread)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1, 1, 1, 1] True None"] * 2  # no thread was needed


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


def test_sums_over_ranks_that_are_no_numbers_warn_of_nothing() -> None:
    """What is small NumPy adds up, whose warnings stood in logs of mixed precision, or ended the program."""
    done = run_ranks(3, """
        import warnings
        warnings.simplefilter("error")
        x = np.array([[np.inf, 3e38, 1], [-np.inf, 3e38, 2], [0, 1, 3]], np.float32)
        found = Tensor(x).shard(world.devices, 0).sum(0).numpy()
        np.testing.assert_array_equal(found, [np.nan, np.inf, 6])
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


def test_a_collective_of_more_bytes_than_a_call_of_mpi_takes_is_several() -> None:
    """An all-gather of 2 GB a rank ended with MPI_ERR_ARG: counts have 32 bits."""
    done = run_ranks(3, """
        from tinygrad.runtime import rank, rank_exchange

        most = rank_exchange.CHUNK = 1 << 16
        calls = []

        class Noted:
            def __init__(self, comm):
                self.comm = comm

            def __getattr__(self, name):
                def call(given, *others):
                    calls.append((name, given.nbytes))
                    return getattr(self.comm, name)(given, *others)

                return call

        communicator = rank.World.communicator
        rank.World.communicator = lambda world, ranks: Noted(communicator(world, ranks))
        for items in (50_000, 100):
            a = rng.normal(size=(3, items)).astype(np.float32)
            x = Tensor(a).shard(world.devices, 0).realize()
            np.testing.assert_array_equal(x.shard(world.devices).numpy(), a)
            np.testing.assert_allclose(x.sum(0).numpy(), a.sum(0), rtol=1e-5, atol=1e-5)
        assert max(nbytes for _, nbytes in calls) <= most, calls
        print("in parts")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["in parts"] * 3


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


def test_what_is_gathered_is_contiguous_as_it_comes() -> None:
    """It was copied: gathering 2.4 GB took twice that."""
    done = run_ranks(2, """
        from tinygrad.helpers import GlobalCounters

        a = rng.normal(size=(6, 8)).astype(np.float32)
        x = Tensor(a).shard(world.devices, 0).realize()
        Device.synchronize()
        before = GlobalCounters.kernel_count
        found = [x.shard(world.devices, axis).contiguous().realize() for axis in (None, 1)]
        assert GlobalCounters.kernel_count == before
        gathered = x.shard(world.devices)
        own = gathered.contiguous()
        own[0] = 50.0
        Tensor.realize(own, gathered)
        for t in [*found, gathered]:
            np.testing.assert_array_equal(t.numpy(), a)
        assert own.numpy()[0].tolist() == [50.0] * 8
        print("as it comes")
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["as it comes"] * 2


def test_memory_of_other_processes_is_not_counted() -> None:
    done = run_ranks(2, """
        from tinygrad.helpers import GlobalCounters
        x = Tensor(rng.normal(size=(8, 64)).astype(np.float32))
        before = GlobalCounters.mem_used
        cut = x.shard(world.devices, 0).realize()
        print(GlobalCounters.mem_used - before, len(cut))
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1024", "8"] * 2


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


def run_functions(count: int, first: int, last: int) -> None:
    """Random functions of these numbers, in so many processes."""
    done = start_ranks(count, [str(Path(__file__).parents[1] / "rank_functions.py"), str(first), str(last)],
                       seconds=900)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} {last - first}" for rank in range(count)]


def test_random_functions_over_random_layouts_give_what_one_device_gives() -> None:
    run_functions(2, 0, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "first", "last"), [(2, 12, 200), (3, 0, 100), (4, 0, 60)])
def test_many_functions_over_random_layouts_give_what_one_device_gives(count: int, first: int, last: int
                                                                       ) -> None:
    run_functions(count, first, last)
