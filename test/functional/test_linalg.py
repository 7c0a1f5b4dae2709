"""Decompositions and equations: against NumPy, what defines them, and finite differences for gradients."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from arrays import Array, close

from tinygrad import Tensor, TinyJit, grad, jvp, vmap
from tinygrad.functional import factors

SHAPES = [(1, 1), (3, 2), (2, 5), (2, 3, 4, 4), (0, 3, 3)]
SQUARE = [(1, 1), (5, 5), (2, 3, 4, 4), (0, 3, 3)]
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-11}


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape)


def positive(*shape: int) -> Array:
    x = normal(*shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


@pytest.fixture(params=[np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> type:
    return request.param


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SQUARE)
def test_solve_inv_and_determinants_as_numpy(shape: tuple[int, ...], kind: type) -> None:
    a = (normal(*shape) + 3 * np.eye(shape[-1])).astype(kind)
    b = normal(*shape[:-1], 2).astype(kind)
    exact = a.astype(np.float64)
    assert Tensor(a).solve(Tensor(b)).dtype == Tensor(a).dtype
    close(Tensor(a).solve(Tensor(b)), np.linalg.solve(exact, b), TOLERANCE[kind])
    close(Tensor(a).inv(), np.linalg.inv(exact), TOLERANCE[kind])
    sign, logarithm = np.linalg.slogdet(exact)
    close(Tensor(a).slogdet().sign, sign)
    close(Tensor(a).slogdet().logabsdet, logarithm, TOLERANCE[kind])
    if shape[-1] < 20:
        close(Tensor(a).det(), np.linalg.det(exact), TOLERANCE[kind])


@pytest.mark.parametrize("shape", SQUARE)
def test_cholesky_as_numpy_and_reads_one_triangle(shape: tuple[int, ...], kind: type) -> None:
    x = positive(*shape).astype(kind)
    wanted = np.linalg.cholesky(x.astype(np.float64))
    close(Tensor(np.tril(x)).cholesky(), wanted, TOLERANCE[kind])
    close(Tensor(np.triu(x)).cholesky(upper=True), np.swapaxes(wanted, -1, -2), TOLERANCE[kind])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["complete", "reduced"])
def test_qr_as_numpy(shape: tuple[int, ...], mode: str, kind: type) -> None:
    x = normal(*shape).astype(kind)
    q, r = Tensor(x).qr(mode)
    wanted = np.linalg.qr(x.astype(np.float64), mode)
    close(r, wanted.R, TOLERANCE[kind])
    k = min(shape[-2:])
    close(q[..., :k], wanted.Q[..., :k], TOLERANCE[kind])
    close(q.transpose(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *[q.shape[-1]] * 2)),
          TOLERANCE[kind])


def test_qr_of_the_identity_is_exact() -> None:
    q, r = Tensor.eye(5).qr()
    assert ((q @ r).numpy() == np.eye(5)).all() and (abs(r.numpy()) == np.eye(5)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("full", [True, False])
def test_svd_multiplies_back_with_numpys_values(shape: tuple[int, ...], full: bool, kind: type) -> None:
    x = normal(*shape).astype(kind)
    u, s, vt = Tensor(x).svd(full_matrices=full)
    wanted = np.linalg.svd(x.astype(np.float64), full)
    assert (u.shape, vt.shape) == (wanted.U.shape, wanted.Vh.shape)
    close(s, wanted.S, TOLERANCE[kind])
    k = min(shape[-2:])
    close((u[..., :k] * s.unsqueeze(-2)) @ vt[..., :k, :], x, TOLERANCE[kind])
    for columns in (u, vt.transpose(-1, -2)):
        n = columns.shape[-1]
        close(columns.transpose(-1, -2) @ columns, np.broadcast_to(np.eye(n), (*shape[:-2], n, n)),
              TOLERANCE[kind])


def test_svd_of_a_matrix_without_full_rank_has_orthogonal_factors() -> None:
    x = np.outer([1.0, 2, 3, 4], [1.0, 0, 2])
    u, s, vt = Tensor(x).svd()
    close(s, np.linalg.svd(x)[1])
    close(u.transpose(-1, -2) @ u, np.eye(4))
    close((u[:, :3] * s) @ vt, x)
    u, s, _ = Tensor(np.zeros((3, 2))).svd()
    close(u.transpose(-1, -2) @ u, np.eye(3))
    close(s, np.zeros(2))


def test_svd_of_many_columns_with_few_that_count_has_orthogonal_factors() -> None:
    x = normal(150, 2) @ normal(2, 150)
    u, s, vt = Tensor(x).svd()
    close(s, np.linalg.svd(x)[1])
    for factor in (u, vt):
        close(factor.transpose(-1, -2) @ factor, np.eye(150))


def test_svd_of_numbers_whose_fourth_powers_underflow() -> None:
    x = normal(6, 6).astype(np.float32)
    wanted = np.linalg.svd(x.astype(np.float64))[1]
    np.testing.assert_allclose(Tensor(x * np.float32(2.0 ** -50)).svd()[1].numpy() * 2.0 ** 50, wanted, 1e-4)


@pytest.mark.parametrize("shape", SQUARE)
def test_eigh_as_numpy(shape: tuple[int, ...], kind: type) -> None:
    x = (positive(*shape) - 4 * np.eye(shape[-1])).astype(kind)
    values, vectors = Tensor(np.tril(x)).eigh()
    close(values, np.linalg.eigvalsh(x.astype(np.float64)), 10 * TOLERANCE[kind])
    close((vectors * values.unsqueeze(-2)) @ vectors.transpose(-1, -2), x, 10 * TOLERANCE[kind])


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_solve_triangular_reads_one_triangle(upper: bool, transpose: bool, unit: bool) -> None:
    a, b = normal(2, 5, 5) + 2 * np.eye(5), normal(5, 3)
    triangle = np.triu(a) if upper else np.tril(a)
    if unit:
        triangle = triangle - triangle * np.eye(5) + np.eye(5)
    triangle = np.swapaxes(triangle, -1, -2) if transpose else triangle
    wanted = np.linalg.solve(triangle, b)
    close(Tensor(a).solve_triangular(Tensor(b), upper, transpose, unit), wanted)


def test_a_vector_on_the_right_side_and_broadcasting() -> None:
    a, b = normal(2, 1, 3, 3), normal(3)
    close(Tensor(a).solve(Tensor(b)), np.linalg.solve(a, b))
    c = normal(4, 3, 2)
    close(Tensor(a).solve(Tensor(c)), np.linalg.solve(a, c))
    close(Tensor(normal(5, 3)).lstsq(Tensor(normal(5))).solution,
          np.linalg.lstsq(normal(5, 3), normal(5), rcond=None)[0])


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 6, 3)])
def test_lstsq_and_pinv_as_numpy(shape: tuple[int, ...], kind: type) -> None:
    a, b = normal(*shape).astype(kind), normal(*shape[:-1], 2, seed=1).astype(kind)
    found = Tensor(a).lstsq(Tensor(b))
    exact = np.linalg.pinv(a.astype(np.float64))
    close(found.solution, exact @ b, TOLERANCE[kind])
    close(Tensor(a).pinv(), exact, TOLERANCE[kind])
    assert (found.rank.numpy() == np.linalg.matrix_rank(a)).all()
    close(found.residuals, ((a @ exact @ b - b) ** 2).sum(-2), TOLERANCE[kind])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 2, 3)])
def test_lstsq_and_pinv_of_no_items(shape: tuple[int, ...]) -> None:
    a = Tensor(np.zeros(shape, np.float32))
    assert a.pinv().shape == np.linalg.pinv(a.numpy()).shape
    found = a.lstsq(Tensor.ones(*shape[:-1], 2))
    assert found.solution.tolist() == np.zeros((*shape[:-2], shape[-1], 2)).tolist()
    assert found.rank.tolist() == np.zeros(shape[:-2]).tolist()


def test_covariances_of_no_observations_are_nan() -> None:
    assert np.isnan(Tensor.zeros(3, 0).cov().numpy()).tolist() == [[True] * 3] * 3


def test_lstsq_without_full_rank_gives_the_smallest_solution() -> None:
    a, b = np.outer([1.0, 2, 3], [1.0, 1]), np.array([1.0, 2, 4])
    solution, _, rank, _ = np.linalg.lstsq(a, b, rcond=None)
    found = Tensor(a).lstsq(Tensor(b))
    close(found.solution, solution)
    assert found.rank.item() == rank == 1


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8, -1, -3])
def test_matrix_power_as_numpy(n: int) -> None:
    a = normal(2, 3, 3)
    close(Tensor(a).matrix_power(n), np.linalg.matrix_power(a, n), 1e-9)


def test_float32_stays_float32() -> None:
    a = positive(4, 4).astype(np.float32)
    exact, t = a.astype(np.float64), Tensor(a)
    pairs = [(t.solve(t), np.eye(4)), (t.inv(), np.linalg.inv(exact)), (t.det(), np.linalg.det(exact)),
             (t.cholesky(), np.linalg.cholesky(exact)), (t.qr()[1], np.linalg.qr(exact).R),
             (t.svd()[1], np.linalg.svd(exact).S), (t.eigh()[0], np.linalg.eigvalsh(exact)),
             (t.pinv(), np.linalg.inv(exact))]
    for found, wanted in pairs:
        assert found.dtype == t.dtype
        close(found, wanted, 2e-4)


def test_half_types_compute_in_float32_and_integers_become_floats() -> None:
    a = positive(4, 4).astype(np.float16)
    found = Tensor(a).inv()
    assert found.dtype == Tensor(a).dtype
    np.testing.assert_allclose(found.numpy().astype(float), np.linalg.inv(a.astype(float)), 2e-3, 2e-3)
    assert Tensor([[2, 0], [0, 4]]).det().item() == 8.0


# --- what has no answer ---------------------------------------------------------------------------


def test_singular_matrices_give_what_the_docstrings_say() -> None:
    a = Tensor([[1.0, 2.0], [2.0, 4.0]])
    assert a.det().item() == 0
    sign, logarithm = a.slogdet()
    assert (sign.item(), logarithm.item()) == (0, -np.inf)
    assert not np.isfinite(a.inv().numpy()).all()
    assert not np.isfinite(a.solve(Tensor([1.0, 0.0])).numpy()).any()
    assert np.isnan(Tensor([[1.0, 2.0], [2.0, 1.0]]).cholesky().numpy()).any()


def test_rows_are_exchanged_where_a_pivot_is_zero() -> None:
    a = np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    close(Tensor(a).inv(), a.T)
    assert Tensor(a).det().item() == pytest.approx(1)


@pytest.mark.parametrize("call, text", [
    (lambda t: t.solve(t), r"solve takes square matrices, of shape \(..., n, n\), got shape \(2, 3\)"),
    (lambda t: t.inv(), "inv takes square"),
    (lambda t: t.det(), "det takes square"),
    (lambda t: t.cholesky(), "cholesky takes square"),
    (lambda t: t.eigh(), "eigh takes square"),
    (lambda t: t.matrix_power(2), "matrix_power takes square"),
    (lambda t: t[0].qr(), r"qr takes matrices, of shape \(..., m, n\), got shape \(3,\)"),
    (lambda t: t.qr("raw"), "mode=\"complete\" or \"reduced\", got 'raw'"),
    (lambda t: t.lstsq(Tensor.ones(3)), r"takes a right side of shape \(..., 2, k\) or \(2,\), got \(3,\)"),
    (lambda t: t[:, :2].solve(Tensor.ones(3, 1)), r"takes a right side of shape"),
])
def test_wrong_shapes_are_named(call: Callable[[Tensor], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(Tensor.ones(2, 3))


# --- gradients ------------------------------------------------------------------------------------


def symmetric(x: Tensor) -> Tensor:
    return x + x.transpose(-1, -2)


def weighted(*results: Tensor) -> Tensor:
    """One number that all items of the results count in, differently."""
    total = Tensor(0.0, dtype="float64")
    for i, t in enumerate(results):
        total = total + (t * Tensor(normal(*t.shape, seed=i + 5))).sum()
    return total


def spaces(u: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The first columns, and the space that the others span."""
    return u[..., :columns], u[..., columns:] @ u[..., columns:].transpose(-1, -2)


B = Tensor(normal(4, 2, seed=9))
SCALARS: dict[str, tuple[Array, Callable[[Tensor], Tensor]]] = {
    "solve": (normal(4, 4), lambda x: weighted(x.solve(B))),
    "solve, right side": (normal(4, 2), lambda x: weighted(Tensor(normal(4, 4)).solve(x))),
    "solve_triangular": (normal(2, 4, 4) + 3 * np.eye(4),
                         lambda x: weighted(x.solve_triangular(B, upper=True),
                                            x.solve_triangular(B, upper=False, unitriangular=True))),
    "inv": (normal(2, 3, 3), lambda x: weighted(x.inv())),
    "det": (normal(2, 3, 3), lambda x: weighted(x.det())),
    "slogdet": (normal(2, 3, 3), lambda x: weighted(x.slogdet().logabsdet)),
    "cholesky": (normal(2, 3, 3), lambda x: weighted((symmetric(x) + 8 * Tensor(np.eye(3))).cholesky())),
    "cholesky, one triangle": (positive(3, 3), lambda x: weighted(x.cholesky())),
    "qr, square": (normal(3, 3), lambda x: weighted(*x.qr())),
    "qr, tall": (normal(4, 2), lambda x: weighted(*x.qr("reduced"))),
    "qr, complete": (normal(4, 2), lambda x: weighted(*spaces(x.qr()[0], 2))),
    "qr, wide": (normal(2, 4), lambda x: weighted(*x.qr())),
    "svd, values": (normal(3, 4), lambda x: weighted(x.svd()[1])),
    "svd, tall": (normal(4, 3), lambda x: weighted(*x.svd(full_matrices=False))),
    "svd, wide": (normal(2, 4), lambda x: weighted(*x.svd(full_matrices=False))),
    "svd, full": (normal(4, 2), lambda x: weighted(*spaces(x.svd()[0], 2))),
    "eigh": (normal(4, 4), lambda x: weighted(*symmetric(x).eigh())),
    "eigh, one triangle": (positive(3, 3), lambda x: weighted(*x.eigh())),
    "pinv": (normal(4, 2), lambda x: weighted(x.pinv())),
    "lstsq": (normal(4, 3), lambda x: weighted(x.lstsq(B).solution, x.lstsq(B).residuals)),
    "matrix_power": (normal(3, 3), lambda x: weighted(x.matrix_power(3), x.matrix_power(-2))),
}


def slope(function: Callable[[Tensor], Tensor], x: Array, direction: Array, step: float = 1e-5) -> float:
    """The derivative in a direction, by differences."""
    up, down = (function(Tensor(x + s * direction)).item() for s in (step, -step))
    return (up - down) / (2 * step)


@pytest.mark.parametrize("name", SCALARS)
def test_gradients_by_finite_differences(name: str) -> None:
    x, function = SCALARS[name]
    direction = normal(*x.shape, seed=3)
    found = grad(function)(Tensor(x)).numpy()
    assert (found * direction).sum() == pytest.approx(slope(function, x, direction), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("upper", [False, True])
def test_a_system_by_its_cholesky_factor(upper: bool) -> None:
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4, 3))
    a = x @ np.swapaxes(x, -1, -2) + 4 * np.eye(4)
    factor = Tensor(a).cholesky(upper=upper)
    np.testing.assert_allclose(Tensor(b).cholesky_solve(factor, upper).numpy(), np.linalg.solve(a, b), 1e-9)
    np.testing.assert_allclose(factor.cholesky_inverse(upper).numpy(), np.linalg.inv(a), 1e-9, 1e-12)


@pytest.mark.parametrize("name", ["solve", "solve_triangular", "det", "cholesky", "qr, tall", "svd, tall",
                                  "eigh", "pinv"])
def test_second_derivatives_by_finite_differences(name: str) -> None:
    x, function = SCALARS[name]
    direction, other = normal(*x.shape, seed=3), normal(*x.shape, seed=4)
    found = jvp(grad(function), (Tensor(x),), (Tensor(direction),))[1].numpy()

    def along(y: Tensor) -> Tensor:
        return (grad(function)(y) * Tensor(other)).sum()

    assert (found * other).sum() == pytest.approx(slope(along, x, direction), rel=1e-5, abs=1e-6)


def test_backward_reaches_a_leaf_through_every_step() -> None:
    x = Tensor(positive(3, 3), requires_grad=True)
    x.slogdet().logabsdet.backward()
    assert x.grad is not None
    close(x.grad, np.linalg.inv(positive(3, 3)).T)


# --- under transforms and TinyJit -----------------------------------------------------------------


@pytest.mark.parametrize("function", [
    lambda x: x.inv(), lambda x: x.det(), lambda x: x.qr()[1], lambda x: (x @ x.T).cholesky(),
    lambda x: x.svd()[1], lambda x: grad(lambda y: y.slogdet().logabsdet)(x)])
def test_vmap_is_what_batches_give(function: Callable[[Tensor], Tensor]) -> None:
    x = normal(2, 3, 3)
    wanted = np.stack([function(Tensor(one)).numpy() for one in x])
    np.testing.assert_allclose(vmap(function)(Tensor(x)).numpy(), wanted, 1e-9, 1e-9)


def test_under_tinyjit() -> None:
    solve = TinyJit(lambda a, b: a.solve(b))
    for seed in range(3):
        a, b = normal(3, 3, seed=seed), normal(3, 1, seed=seed)
        close(solve(Tensor(a).realize(), Tensor(b).realize()), np.linalg.solve(a, b), 1e-9)


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels for matrices that are factored as a whole otherwise."""
    monkeypatch.setattr(factors, "WHOLE", factors.PANEL)


@pytest.mark.usefixtures("small_panels")
@pytest.mark.parametrize("lead, n", [((), 65), ((2,), 96)])
def test_matrices_of_several_panels(lead: tuple[int, ...], n: int) -> None:
    a, b, p = normal(*lead, n, n), normal(*lead, n, 3), positive(*lead, n, n)
    close(Tensor(a).solve(Tensor(b)), np.linalg.solve(a, b), 1e-9)
    close(Tensor(a).slogdet().sign, np.linalg.slogdet(a).sign)
    close(Tensor(a).slogdet().logabsdet, np.linalg.slogdet(a).logabsdet, 1e-10)
    close(Tensor(np.tril(p)).cholesky(), np.linalg.cholesky(p), 1e-9)
    close(Tensor(p).solve_triangular(Tensor(b), upper=False), np.linalg.solve(np.tril(p), b), 1e-9)


@pytest.mark.usefixtures("small_panels")
@pytest.mark.parametrize("rows, columns", [(70, 70), (110, 66), (66, 110)])
def test_qr_of_several_panels(rows: int, columns: int) -> None:
    x = normal(rows, columns)
    q, r = Tensor(x).qr()
    k = min(rows, columns)
    close(q @ r, x)
    close(q.T @ q, np.eye(rows))
    close(r[:k], np.linalg.qr(x).R)


@pytest.mark.usefixtures("small_panels")
def test_singular_and_permuted_matrices_of_several_panels() -> None:
    a = np.eye(70)[np.random.default_rng(0).permutation(70)]
    close(Tensor(a).inv(), a.T)
    assert Tensor(a).det().item() == np.linalg.det(a)
    a[:, 40] = 0
    assert Tensor(a).det().item() == 0
    assert np.isnan(Tensor(np.eye(70) - 2 * np.diag(np.arange(70) == 50)).cholesky().numpy()).any()


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 400])
def test_a_few_hundred_columns(n: int) -> None:
    a = normal(n, n)
    close(Tensor(a).inv(), np.linalg.inv(a), 1e-8)
    close(Tensor(a).svd()[1], np.linalg.svd(a)[1], 1e-10)
    close(Tensor(a @ a.T).eigh()[0], np.linalg.eigvalsh(a @ a.T), 1e-8)


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n, traces", [(1, 1), (5, 1), (18, 1), (40, 1)])
def test_steps_are_not_traced_again_whatever_there_is(n: int, traces: int,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    step = factors._lu_step
    factors._replayed.cache_clear()  # or a test before this one has traced it
    monkeypatch.setattr(factors, "_lu_step", lambda *args: (calls.append(n), step(*args))[1])
    kept = []
    for i in range(10):
        x = normal(n, n, seed=i)
        close(Tensor(x, requires_grad=True).slogdet().logabsdet, np.linalg.slogdet(x)[1])
        counts = Tensor.arange(n), Tensor.arange(n).realize()
        kept.append([*counts, Tensor.ones((), dtype="float64"), Tensor(0)])
        kept[-1][i % 2].assign(kept[-1][0] + 1)
    assert 0 < len(calls) <= traces * (n if n <= factors.STEPS_IN_ONE else factors.STEPS_AT_ONCE)


def test_steps_that_a_trace_is_made_of_have_the_same_kernels() -> None:
    det = TinyJit(lambda x: x.det().realize())
    x = normal(20, 20)
    for _ in range(2):
        close(det(Tensor(x)), np.linalg.det(x))
    trace, = det.traces.values()
    assert len(trace.steps) >= 20 > 4 * len({step.ast for step in trace.steps})


@pytest.mark.parametrize("n", [1, 2, 3])
def test_second_derivatives_over_a_batch(n: int) -> None:
    x = normal(4, n, n)
    inverse = np.linalg.inv(x).swapaxes(-1, -2)
    first = grad(lambda each: vmap(grad(lambda m: m.slogdet().logabsdet))(each).sum())(Tensor(x))
    close(first, -inverse @ np.ones((n, n)) @ inverse)
    scale = np.linalg.det(x)[:, None, None]
    second = grad(lambda each: vmap(grad(lambda m: m.det()))(each).sum())(Tensor(x))
    total = inverse.sum((-1, -2), keepdims=True)
    close(second, scale * (inverse * total - inverse @ np.ones((n, n)) @ inverse))
