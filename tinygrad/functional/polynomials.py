"""The polynomials that functions of real numbers are near zero, and how they are evaluated.

Each row interpolates at the zeros of a Chebyshev polynomial scaled to the interval (computed in fractions,
then rounded), so its error is within a small factor of the least possible; lowest order first. The errors
are relative to the function that the polynomial is a part of; `test/graph/test_ulp.py` measures them again.
"""
from __future__ import annotations

from collections.abc import Sequence

from tinygrad.dtype import DType, dtypes
from tinygrad.graph.uop import UOp

Coefficients = dict[DType, tuple[float, ...]]

EXPM1: Coefficients = {
    dtypes.float32: (0.5, 0.166666672, 0.041666273, 0.00833328906, 0.00139515579, 0.000199108748),
    dtypes.float64: (
        0.5, 0.1666666666666669, 0.041666666666666685, 0.008333333333305725, 0.0013888888888869174,
        0.0001984126993323589, 2.4801587367260436e-05, 2.7557194200450535e-06, 2.755722994212209e-07,
        2.5126449415796593e-08, 2.0929848424108237e-09),
}
"""(e^x - 1 - x) / x^2 for |x| <= 0.41: 2^-28.1, 2^-57.3"""

SINH: Coefficients = {
    dtypes.float32: (0.166666672, 0.00833333939, 0.000198381022, 2.80628024e-06),
    dtypes.float64: (
        0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
        2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15),
}
"""(sinh(x) / x - 1) / x^2 in x^2 for |x| <= 1: 2^-27.9, 2^-56.8"""

TANH: Coefficients = {
    dtypes.float32: (-0.333333313, 0.133331135, -0.0539094284, 0.0213093888, -0.00661022775),
    dtypes.float64: (
        -0.3333333333333333, 0.13333333333333333, -0.05396825396825263, 0.021869488536057545,
        -0.008863235526193567, 0.003592127952591601, -0.001455833163252327, 0.0005900154482039874,
        -0.000239048242168132, 9.653771195496335e-05, -3.806913419944137e-05, 1.3343110444710785e-05,
        -3.0095084486657233e-06),
}
"""(tanh(x) / x - 1) / x^2 in x^2 for |x| <= 0.55: 2^-27.5, 2^-57.1"""

ATAN: Coefficients = {
    dtypes.float32: (
        -0.333333343, 0.199999496, -0.142840043, 0.110882618, -0.089318268, 0.0703191459, -0.0489605144,
        0.0263050012, -0.00914462935, 0.00148869189),
    dtypes.float64: (
        -0.3333333333333333, 0.19999999999999554, -0.14285714285648404, 0.11111111107234799,
        -0.09090908969557403, 0.07692305354678655, -0.06666636435777692, 0.05882074956371294,
        -0.05261265735709454, 0.04752086773576656, -0.04308119655330471, 0.03872640214042632,
        -0.033750132001619734, 0.027567942297344675, -0.020238706986393514, 0.012756172907694296,
        -0.006575683344151698, 0.0026229778919060888, -0.000751847252697382, 0.0001368724853148122,
        -1.1832505417555692e-05),
}
"""(atan(x) / x - 1) / x^2 in x^2 for |x| <= 1: 2^-26.1, 2^-54.6"""

ASIN: Coefficients = {
    dtypes.float32: (0.166666657, 0.0750009418, 0.0445994027, 0.0311006624, 0.0171492379, 0.0336908475),
    dtypes.float64: (
        0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247,
        0.02237217294214989, 0.017352392720869973, 0.013971212973552933, 0.011479177415184906,
        0.01032281435018578, 0.005457506718640357, 0.017400879442694025, -0.014851887071247209,
        0.028757851367421566),
}
"""(asin(x) / x - 1) / x^2 in x^2 for |x| <= 1/2: 2^-28.4, 2^-57.5"""

ERF: Coefficients = {
    dtypes.float32: (
        0.128379166, -0.376126379, 0.112837821, -0.0268654302, 0.00522103161, -0.000848408032, 0.000112659589,
        -9.66704465e-06),
    dtypes.float64: (
        0.1283791670955126, -0.37612638903183754, 0.11283791670955126, -0.026866170645131218,
        0.005223977625441674, -0.0008548327023403001, 0.00012055332978879483, -1.4925650236967501e-05,
        1.6462110782018636e-06, -1.636576864883207e-07, 1.4806027146128752e-08, -1.2277734486795524e-09,
        9.323723518153027e-11, -6.1967364287877e-12, 2.8067128195611264e-13),
}
"""erf(x) / x - 1 in x^2 for |x| <= 1: 2^-28.9, 2^-56.3"""

ERF_IS_ONE: dict[DType, float] = {dtypes.float32: 4.0, dtypes.float64: 6.0}
"""From where on erf rounds to 1: it lacks 1.5e-8 and 2.2e-17 there."""

ERFCX_LOW = 0.75
"""Where the interval of ERFCX begins."""

ERFCX: dict[DType, tuple[float, float, tuple[float, ...]]] = {
    dtypes.float32: (1.703125, 10.25, (
        0.900054932, 0.295900106, 0.0512161031, -0.00157246983, -0.00217387686, 5.07254699e-05,
        0.000123803518, -1.2775763e-05, -6.7425276e-06, 1.61861055e-06)),
    dtypes.float64: (2.548828125, 27.5, (
        0.9494295418246287, 0.47525829627577726, 0.18651670451464802, 0.053236258026944906,
        0.008738284637632739, -0.00033338781610560544, -0.0005254544637922225,
        -5.385103251471242e-05, 3.0342862894785747e-05, 6.000834168631073e-06,
        -2.2732089150493286e-06, -5.22896401339646e-07, 2.2527850718620283e-07,
        3.86436323741297e-08, -2.6247434664504907e-08, -1.4303300615432854e-09,
        3.1039002258011204e-09, -2.709737823558158e-10, -3.171358937863981e-10,
        7.719227475319131e-11, 2.035939234660256e-11, -8.242562046423109e-12)),
}
"""(shift, limit, (x + shift) e^(x^2) erfc(x) for ERFCX_LOW <= x <= limit in 1 / (x + shift) scaled to
[-1, 1]): 2^-28.3, 2^-57.0. Beyond the limit, erfc rounds to 0. With these shifts, rounding the
coefficients loses little."""


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """The sum of coefficients[n] * x^n, by Horner's scheme."""
    result = x._operand(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.mulacc(x, x._operand(coefficient))
    return result


def odd_polynomial(x: UOp, square: UOp, coefficients: Sequence[float]) -> UOp:
    """x + x^3 p(x^2): the function's last digit is decided by the last addition. -0.0 gives 0.0."""
    return (x * square).mulacc(polynomial(square, coefficients), x)
