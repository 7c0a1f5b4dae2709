"""The steps of decompositions: systems of triangular equations, and the factors of LU, Cholesky and QR.

In: batches of matrices (..., m, n) of floats. Out: factors that are constants to gradients, computed at once
where values are known (`iterate`). A matrix of up to `WHOLE` columns is factored step by step, one column a
step with the same kernels for every column. Larger ones are factored in panels of `PANEL` columns: only those
go step by step, what is right of them follows in one product of matrices. Next: `decompositions`,
`equations`.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tinygrad.dtype import DType, dtypes, least_upper_float, promote
from tinygrad.engine.capture import Capture
from tinygrad.graph.batch import is_unknown
from tinygrad.graph.ops import Ops
from tinygrad.graph.uop import Shape
from tinygrad.tensor.modes import suspended

if TYPE_CHECKING:
    from tinygrad.tensor import Tensor

State = tuple["Tensor", ...]
Step = Callable[..., State]
Kinds = tuple[tuple[Shape, DType], ...]
"""Shapes and dtypes of tensors."""


# --- steps ----------------------------------------------------------------------------------------


STEPS_AT_ONCE = 16
"""Steps that are traced and replayed together, at most: so most of the time goes into kernels, not Python."""
STEPS_IN_ONE = 32
"""Steps up to which all of a decomposition is traced together with what comes before and after them."""


def _constant(x: Tensor) -> Tensor:
    """`x` in memory, and constant to gradients: of the kind that a replay returns."""
    is_float = x.dtype.is_float
    if x.uop.unreshaped.op is Ops.BUFFER:
        return type(x)(x.uop, requires_grad=False) if is_float else x
    x = x.detach().contiguous()
    return x.detach() if is_float else x


@functools.lru_cache(maxsize=256)
def _number(k: int, device: str | tuple[str, ...]) -> Tensor:
    """The integer in memory: what kernels read there may differ, and they are equal."""
    from tinygrad.tensor import Tensor

    return Tensor([k], device=device, dtype=dtypes.int32).realize().reshape(())


def _traced(function: Callable[..., State]) -> Callable[..., State]:
    from tinygrad.jit.jit import PureJit

    return PureJit(function)


@functools.lru_cache(maxsize=256)
def _replayed(function: Callable[..., State], kinds: Kinds) -> Callable[..., State]:
    """A function of such tensors alone, traced and replayed."""
    return _traced(function)


@functools.lru_cache(maxsize=256)
def _steps(step: Step, given: int, kinds: Kinds, count: int) -> Callable[..., State]:
    """So many steps, traced and replayed: from the number of the first, for so many tensors that they are
    given, and the state, which have these kinds, to the number of the next, and the state."""
    return _traced(lambda k, *tensors: _repeated(step, tensors[:given], tensors[given:], k, count))


def _repeated(step: Step, given: State, state: State, k: Tensor, count: int) -> State:
    for _ in range(count):
        state = tuple(t.contiguous() for t in step(*given, *state, k))
        k = (k + 1).contiguous()
    return k, *state


def runs_at_once(*tensors: Tensor) -> bool:
    """Whether the values are known: not under `vmap`, and not while TinyJit traces."""
    return Capture.current() is None and not any(is_unknown(t.uop) for t in tensors)


def computed(function: Callable[..., State], *tensors: Tensor, steps: int) -> State:
    """What a function gives that computes from these alone, constants to gradients. Where values are known
    and `iterate` makes few steps, all of it is one replay."""
    if steps > STEPS_IN_ONE or not runs_at_once(*tensors):
        return function(*tensors)
    given = tuple(map(_constant, tensors))
    with suspended():
        return _replayed(function, tuple((t.shape, t.dtype) for t in given))(*given)


def iterate(step: Step, state: Iterable[Tensor], count: int, start: int = 0, given: State = ()) -> State:
    """The state after `count` calls of `step(*given, *state, k)`, k from `start`: computed, where values are
    known.

    Up to `STEPS_AT_ONCE` more are made, with further `k`, and have to leave the state as it is.
    """
    given, now = (tuple(map(_constant, tensors)) for tensors in (given, state))
    make, device = type(now[0]), now[0].device
    if not runs_at_once(*given, *now):
        first = make(start, dtype=dtypes.int32, device=device).contiguous()
        return _repeated(step, given, now, first, count)[1:]
    runs = -(-count // STEPS_AT_ONCE)
    size = -(-count // max(runs, 1))
    replayed = _steps(step, len(given), tuple((t.shape, t.dtype) for t in (*given, *now)), size)
    k = _number(start, device)
    with suspended():
        for _ in range(runs):
            k, *following = replayed(k, *given, *now)
            now = tuple(following)
    return now


def _row_and_column(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of a matrix's or panel's rows and columns, as (m, 1) and (n,), and which column step k is
    at."""
    make = type(x)
    m, n = x.shape[-2:]
    return (make.arange(m, device=x.device).reshape(m, 1), make.arange(n, device=x.device),
            k % PANEL if n == PANEL else k)


def check_matrix(name: str, x: Tensor, square: bool = False) -> tuple[int, int]:
    """(rows, columns). Raises ValueError where there are fewer than two axes, or the matrix is not square."""
    if x.ndim < 2:
        raise ValueError(f"{name} takes matrices, of shape (..., m, n), got shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{name} takes square matrices, of shape (..., n, n), got shape {x.shape}")
    return x.shape[-2], x.shape[-1]


def compute_dtype(*tensors: Tensor) -> tuple[DType, DType]:
    """(the dtype of the result, the one to compute it in)."""
    kind = least_upper_float(functools.reduce(promote, (t.dtype for t in tensors)))
    return kind, promote(kind, dtypes.float32)


def epsilon(x: Tensor) -> float:
    """The distance from 1 to the next number of the tensor's dtype."""
    return float(2.0 ** -dtypes.finfo(x.dtype)[1])


def transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def identity(x: Tensor, size: int) -> Tensor:
    """The identity matrix of a size, in the dtype and on the device of `x`, once for each of its matrices."""
    eye = type(x).eye(size, dtype=x.dtype, device=x.device, requires_grad=False)
    return eye.expand(*x.shape[:-2], size, size)


def diagonal_of(x: Tensor) -> Tensor:
    """The diagonals of square matrices: (..., n)."""
    return (identity(x, x.shape[-1]) != 0).where(x, 0).sum(-1)


# --- panels ---------------------------------------------------------------------------------------

PANEL = 32
"""Columns that are factored step by step before the rest of a larger matrix follows in one product."""
WHOLE = 384
"""Up to as many columns, a matrix is factored step by step as a whole: panels need twice as many kernels to
compile. Inverse of float32, one thread, ms as a whole and in panels: 31 and 24 for 300 columns, 65 and 38 for
450."""


def padded(x: Tensor) -> Tensor:
    """Square matrices with an identity matrix behind them, so that they are whole panels."""
    n = x.shape[-1]
    more = -n % PANEL
    if not more:
        return x
    is_new = type(x).arange(n + more, device=x.device) >= n
    return x.pad((0, more, 0, more)) + identity(x, n + more) * is_new


def block_of_rows(x: Tensor, j: Tensor) -> Tensor:
    """Rows PANEL * j and those after it, as many as a panel has columns."""
    blocks = x.reshape(*x.shape[:-2], -1, PANEL, x.shape[-1])
    number = type(x).arange(blocks.shape[-3], device=x.device).reshape(-1, 1, 1)
    return (number == j).where(blocks, 0).sum(-3)


def _panel(x: Tensor, j: Tensor) -> Tensor:
    """The columns of panel j: (..., m, PANEL)."""
    return transposed(block_of_rows(transposed(x), j))


def _put_rows(x: Tensor, block: Tensor, j: Tensor) -> Tensor:
    """`x` with `block` in the place of what `block_of_rows` gives."""
    m, n = x.shape[-2:]
    everywhere = block.unsqueeze(-3).expand(*x.shape[:-2], m // PANEL, PANEL, n).reshape(x.shape)
    row, _, _ = _row_and_column(x, j)
    return (row // PANEL == j).where(everywhere, x)


def _put_panel(x: Tensor, panel: Tensor, j: Tensor) -> Tensor:
    return transposed(_put_rows(transposed(x), transposed(panel), j))


# --- triangular systems ---------------------------------------------------------------------------


def _substitution_step(lower: Tensor, x: Tensor, k: Tensor) -> State:
    """Row k of the solution, and its share taken from the rows below."""
    row, _, _ = _row_and_column(x, k)
    items = (row.reshape(-1) == k).where(lower, 0).sum(-1, keepdim=True)
    pivot = (row == k).where(items, 0).sum(-2, keepdim=True)
    solved = (row == k).where(x, 0).sum(-2, keepdim=True) / (k < row.shape[0]).where(pivot, 1)
    return ((row == k).where(solved, x - (row > k).where(items, 0) * solved),)


def _substitute_block(inverses: Tensor, lower: Tensor, x: Tensor, j: Tensor) -> State:
    """`_substitution_step` for a block of rows."""
    row, _, _ = _row_and_column(x, j)
    number = type(x).arange(inverses.shape[-3], device=x.device).reshape(-1, 1, 1)
    inverse = (number == j).where(inverses, 0).sum(-3)
    solved = product(inverse.contiguous(), block_of_rows(x, j).contiguous()).contiguous()
    below = (row // PANEL > j).where(_panel(lower, j), 0).contiguous()
    return (_put_rows(x - product(below, solved), solved, j),)


def substituted(lower: Tensor, right: Tensor) -> Tensor:
    """X with `lower` X = `right`; a constant to gradients.

    In blocks of rows, with the inverses of the blocks on the diagonal.
    """
    n = lower.shape[-1]
    if n <= WHOLE:
        return iterate(_substitution_step, (right,), n, given=(lower,))[0]
    lower = padded(lower.detach()).contiguous()
    count = lower.shape[-1] // PANEL
    blocks = lower.reshape(*lower.shape[:-2], count, PANEL, count, PANEL).diagonal(0, -4, -2)
    squares = blocks.permute(*range(blocks.ndim - 3), -1, -3, -2)
    inverses, = iterate(_substitution_step, (identity(squares, PANEL),), PANEL, given=(squares,))
    right = right.detach().pad((0, 0, 0, lower.shape[-1] - n))
    return iterate(_substitute_block, (right,), count, given=(inverses, lower))[0][..., :n, :]


# --- LU -------------------------------------------------------------------------------------------


def _lu_step(m: Tensor, order: Tensor, sign: Tensor, k: Tensor) -> State:
    """Column k: the largest item below the diagonal comes on it, and multiples of its row clear the rest."""
    row, column, at = _row_and_column(m, k)
    items = (column == at).where(m, 0).sum(-1, keepdim=True)
    largest = (row >= k).where(items.abs(), -1).argmax(-2, keepdim=True).maximum(k)
    chosen, here = row == largest, row == k
    chosen_row, this_row = (mask.where(m, 0).sum(-2, keepdim=True) for mask in (chosen, here))
    swapped = here.where(chosen_row, chosen.where(this_row, m))
    places = [mask.where(order, 0).sum(-2, keepdim=True) for mask in (chosen, here)]
    new_order = here.where(places[0], chosen.where(places[1], order))
    pivot = (column == at).where(chosen_row, 0).sum(-1, keepdim=True)
    items = (column == at).where(swapped, 0).sum(-1, keepdim=True)
    factor = (row > k).where(items / (pivot == 0).where(1, pivot), 0)
    cleared = swapped - factor * (column > at).where(chosen_row, 0)
    return (((column == at) & (row > k)).where(factor, cleared), new_order,
            sign * (largest.reshape(sign.shape) == k).where(1, -1))


def _exchange_rows(m: Tensor, total: Tensor, panel: Tensor, order: Tensor, j: Tensor) -> State:
    """All columns follow the exchanges in panel j. Also its square and the rows right of it, to be solved."""
    m = _put_panel(m.gather(-2, order.expand(m.shape)), panel, j).contiguous()
    square = block_of_rows(panel, j)
    return m, total.gather(-2, order), unit_lower(square), block_of_rows(m, j)


def _subtract_product(m: Tensor, panel: Tensor, solved: Tensor, j: Tensor) -> State:
    """What is below and right of panel j follows; and the next panel."""
    row, column, _ = _row_and_column(m, j)
    rest = m - product((row // PANEL > j).where(panel, 0), solved)
    m = (column // PANEL > j).where(_put_rows(rest, solved, j), m).contiguous()
    return m, _panel(m, j + 1)


def unit_lower(x: Tensor) -> Tensor:
    """The lower triangle with ones on the diagonal."""
    return (identity(x, x.shape[-1]) != 0).where(1, x.tril())


def lu_factor(x: Tensor) -> State:
    """(LU, order, sign) of square matrices: the factors of the rows in `order` in one matrix (L has ones on
    its diagonal), and the sign of that permutation. Constants to gradients.

    In panels, each of which is factored before the rest follows (Golub and Van Loan, section 3.4.7).
    """
    n = x.shape[-1]
    m = x if n <= WHOLE else padded(x.detach())
    rows = m.shape[-1]
    own = type(x).arange(rows, device=x.device).reshape(rows, 1).expand(*x.shape[:-2], rows, 1).contiguous()
    sign = type(x).ones(*x.shape[:-2], dtype=x.dtype, device=x.device, requires_grad=False)
    if n <= WHOLE:
        return iterate(_lu_step, (m, own, sign), n)
    total, panel = own, m[..., :PANEL]
    for j in range(rows // PANEL):
        panel, order, sign = iterate(_lu_step, (panel, own, sign), PANEL, j * PANEL)
        m, total, square, right = iterate(_exchange_rows, (m, total, panel, order), 1, j)
        right, = iterate(_substitution_step, (right,), PANEL, given=(square,))
        m, panel = iterate(_subtract_product, (m, panel, right), 1, j)
    return m[..., :n, :n], total[..., :n, :], sign


# --- Cholesky -------------------------------------------------------------------------------------


def _cholesky_step(m: Tensor, k: Tensor) -> State:
    row, column, at = _row_and_column(m, k)
    items = (column == at).where(m, 0).sum(-1, keepdim=True)
    line = (row == k).where(m, 0).sum(-2, keepdim=True)
    root = (column == at).where(line, 0).sum(-1, keepdim=True).sqrt()
    below = (row > k).where(items / root, 0)
    rest = m - below * (column > at).where(line / root, 0)
    return ((column == at).where((row == k).where(root, below), rest),)


def _subtract_square(m: Tensor, panel: Tensor, j: Tensor) -> State:
    """What is below and right of panel j follows; and the next panel."""
    row, _, _ = _row_and_column(m, j)
    below = (row // PANEL > j).where(panel, 0)
    m = _put_panel(m - product(below, transposed(below)), panel, j).contiguous()
    return m, _panel(m, j + 1)


def cholesky_factor(x: Tensor) -> Tensor:
    """The lower triangular factor of whole symmetric matrices; a constant to gradients."""
    n = x.shape[-1]
    if n <= WHOLE:
        return iterate(_cholesky_step, (x,), n)[0].tril()
    m = padded(x.detach())
    panel = m[..., :PANEL]
    for j in range(m.shape[-1] // PANEL):
        panel, = iterate(_cholesky_step, (panel,), PANEL, j * PANEL)
        m, panel = iterate(_subtract_square, (m, panel), 1, j)
    return m[..., :n, :n].tril()


# --- QR -------------------------------------------------------------------------------------------


def _reflected(r: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`r`, of which a reflection I - v u^T, u = v 2 / (v^T v), has cleared the column of step k below the
    diagonal; that column's mask, v and u, which are zero if it is clear."""
    row, column, at = _row_and_column(r, k)
    here = column == at
    x = ((row >= k) & (k < row.shape[0] - 1)).where(here.where(r, 0).sum(-1, keepdim=True), 0)
    first = (row == k).where(x, 0).sum(-2, keepdim=True)
    norm = (x * x).sum(-2, keepdim=True).sqrt()
    v = x + (row == k).where((first < 0).where(-norm, norm), 0)
    scale = (v * v).sum(-2, keepdim=True)
    u = v * (scale == 0).where(0, 2 / (scale == 0).where(1, scale))
    return r - u * (v * r).sum(-2, keepdim=True), here, v, u


def _qr_step(r: Tensor, q: Tensor, k: Tensor) -> State:
    r, _, v, u = _reflected(r, k)
    return r, q - (q * transposed(v)).sum(-1, keepdim=True) * transposed(u)


def _qr_panel_step(panel: Tensor, vectors: Tensor, k: Tensor) -> State:
    panel, here, v, _ = _reflected(panel, k)
    return panel, here.where(v, vectors)


def _before_reflections(both: Tensor, v: Tensor, j: Tensor) -> State:
    gram = product(transposed(v), v).contiguous()
    halved = (identity(gram, PANEL) != 0).where((gram == 0).where(1, gram * 0.5), gram.tril())
    return halved, product(transposed(v), both)


def _reflect(both: Tensor, v: Tensor, right: Tensor, j: Tensor) -> State:
    both = (both - product(v, right)).contiguous()
    return both, _panel(both, j + 1)


def qr_factor(x: Tensor) -> State:
    """(Q, R), constants to gradients. Larger matrices in panels: the product of a panel's reflections is
    I - V T V^T, for V of their vectors and T^-1 the upper triangle of V^T V, its diagonal halved (Puglisi
    1992)."""
    rows, columns = x.shape[-2:]
    count = min(rows - 1, columns)
    if count <= WHOLE:
        r, q = iterate(_qr_step, (x, identity(x, rows)), count)
        return q, r.triu()
    both = x.detach().cat(identity(x, rows), dim=-1)
    both = both.pad((0, -both.shape[-1] % PANEL)).contiguous()
    panel = both[..., :PANEL].contiguous()
    for j in range(-(-count // PANEL)):
        _, v = iterate(_qr_panel_step, (panel, panel.zeros_like()), PANEL, j * PANEL)
        square, right = iterate(_before_reflections, (both, v), 1)
        right, = iterate(_substitution_step, (right,), PANEL, given=(square,))
        both, panel = iterate(_reflect, (both, v, right), 1, j)
    return transposed(both[..., columns:columns + rows]), both[..., :columns].triu()
