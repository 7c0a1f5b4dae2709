"""`NumericalMethods`, the part of `Methods` (`methods.py`) that linear algebra and the analysis of signals
are."""
from __future__ import annotations

from tinygrad.functional import (
    decompositions,
    equations,
    float_parts,
    fourier,
    linalg,
    matrix_functions,
    signals,
    special_functions,
)
from tinygrad.functional.in_place import InPlace
from tinygrad.functional.method_kinds import also_named, memoised, of_tensors, with_axes_by_both_names


@with_axes_by_both_names
class NumericalMethods(InPlace):
    """Linear algebra, Fourier transforms, signals, special functions."""

    # linear algebra
    dot = also_named(tensor="w", other="w")(memoised(linalg.dot))
    matmul = also_named(other="x")(memoised(linalg.matmul))
    linear = memoised(linalg.linear)
    qr = decompositions.qr
    svd = decompositions.svd
    eigh = decompositions.eigh
    cholesky = decompositions.cholesky
    solve = also_named(B="b")(of_tensors(equations.solve))
    solve_triangular = also_named(B="b")(of_tensors(equations.solve_triangular))
    triangular_solve = of_tensors(equations.triangular_solve)
    inv = equations.inv
    inverse = equations.inv
    pinv = equations.pinv
    lstsq = also_named(B="b")(of_tensors(equations.lstsq))
    det = equations.det
    slogdet = equations.slogdet
    matrix_power = equations.matrix_power
    cholesky_solve = of_tensors(equations.cholesky_solve)
    cholesky_inverse = equations.cholesky_inverse
    pinverse = pinv
    vdot = of_tensors(linalg.vdot)
    addmv = of_tensors(linalg.addmv)
    addr = of_tensors(linalg.addr)
    addbmm = of_tensors(linalg.addbmm)
    einsum = staticmethod(memoised(linalg.einsum, first=1))
    svdvals = matrix_functions.svdvals
    eigvalsh = matrix_functions.eigvalsh
    matrix_rank = matrix_functions.matrix_rank
    vector_norm = memoised(matrix_functions.vector_norm)
    matrix_norm = matrix_functions.matrix_norm
    cond = matrix_functions.cond
    vecdot = also_named(y="x")(of_tensors(matrix_functions.vecdot))
    multi_dot = staticmethod(matrix_functions.multi_dot)
    chain_matmul = staticmethod(matrix_functions.chain_matmul)
    tensorinv = matrix_functions.tensorinv
    tensorsolve = of_tensors(matrix_functions.tensorsolve)
    # Fourier transforms, windows
    fft = fourier.fft
    ifft = fourier.ifft
    rfft = fourier.rfft
    irfft = fourier.irfft
    hfft = fourier.hfft
    ihfft = fourier.ihfft
    fft2 = fourier.fft2
    ifft2 = fourier.ifft2
    rfft2 = fourier.rfft2
    irfft2 = fourier.irfft2
    fftn = fourier.fftn
    ifftn = fourier.ifftn
    rfftn = fourier.rfftn
    irfftn = fourier.irfftn
    fftfreq = staticmethod(fourier.fftfreq)
    rfftfreq = staticmethod(fourier.rfftfreq)
    fftshift = fourier.fftshift
    ifftshift = fourier.ifftshift
    stft = of_tensors(signals.stft)
    istft = of_tensors(signals.istft)
    hann_window = staticmethod(signals.hann_window)
    hamming_window = staticmethod(signals.hamming_window)
    blackman_window = staticmethod(signals.blackman_window)
    bartlett_window = staticmethod(signals.bartlett_window)
    kaiser_window = staticmethod(signals.kaiser_window)
    # special functions
    ndtr = memoised(special_functions.ndtr)
    log_ndtr = memoised(special_functions.log_ndtr)
    erfcx = memoised(special_functions.erfcx)
    entr = memoised(special_functions.entr)
    xlog1py = memoised(special_functions.xlog1py)
    mvlgamma = memoised(special_functions.mvlgamma)
    multigammaln = mvlgamma
    polygamma = memoised(special_functions.polygamma)
    i0 = memoised(special_functions.i0)
    i0e = memoised(special_functions.i0e)
    i1 = memoised(special_functions.i1)
    i1e = memoised(special_functions.i1e)
    # mantissas and exponents
    frexp = float_parts.frexp
    ldexp = memoised(float_parts.ldexp)
    nextafter = memoised(float_parts.nextafter)
    float_power = memoised(float_parts.float_power)
    logaddexp2 = memoised(float_parts.logaddexp2)
