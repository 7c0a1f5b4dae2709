"""Rows item by item: arithmetic, comparisons, bits, rounding, mathematics, activations, casts."""

from __future__ import annotations

import numpy as np

from tinygrad.dtype import dtypes

from .table import (
    BINARY,
    EVERY,
    FEW_NUMBERS,
    FLOATS,
    INTS,
    LAYOUTS,
    NARROW_FLOATS,
    NUMBERS,
    SIGNED_NUMBERS,
    WIDE_FLOATS,
    Array,
    Input,
    Row,
    Shape,
    above_one,
    anything,
    boolean,
    case,
    eighths,
    method,
    nonzero,
    positive,
    probability,
    torch,
    whole,
    within_one,
)

BITS = (dtypes.bool, *INTS)
F = torch.nn.functional


def _shift_counts(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.integers(0, 7, shape).astype(np.float64)


SHIFTS = tuple(
    case(
        Input(c.inputs[0].shape, c.inputs[0].view),
        Input(c.inputs[1].shape, c.inputs[1].view, _shift_counts),
        name=c.name,
    )
    for c in BINARY
)

ARITHMETIC = [
    Row("add", lambda x, y: x + y, lambda x, y: x + y, EVERY, BINARY, special=True),
    Row("add a number", lambda x: 3 + x, lambda x: 3 + x, NUMBERS, special=True),
    Row("add reversed", lambda x, y: x.add(y, reverse=True), lambda x, y: y + x, FEW_NUMBERS, BINARY),
    Row("sub", lambda x, y: x - y, lambda x, y: x - y, NUMBERS, BINARY, special=True),
    Row("sub reversed", lambda x: 3 - x, lambda x: 3 - x, NUMBERS),
    Row("mul", lambda x, y: x * y, lambda x, y: x * y, EVERY, BINARY, special=True),
    Row("div", lambda x, y: x / y, lambda x, y: x / y, NUMBERS, BINARY, nonzero, real=True, ulps=1),
    *(
        Row(
            f"div of special values{name}",
            lambda x, y: x / y,
            lambda x, y: x / y,
            kinds,
            BINARY,
            nonzero,
            ulps=ulps,
            gradient=False,
            special=True,
        )
        # a divisor that is the same for a whole loop is inverted once, in float32 at least
        for name, kinds, ulps in (("", NARROW_FLOATS, 0), (" in wide types", WIDE_FLOATS, 1))
    ),
    Row("div reversed", lambda x: 3 / x, lambda x: 3 / x, NUMBERS, values=nonzero, real=True, ulps=1),
    Row("div by a number", lambda x: x / 3, lambda x: x / 3, NUMBERS, real=True, ulps=1),
    Row(
        "div floor",
        lambda x, y: x.div(y, rounding_mode="floor"),
        lambda x, y: x.div(y, rounding_mode="floor"),
        NUMBERS,
        BINARY,
        lambda r, s: nonzero(r, s).round(),
        smooth=False,
    ),
    Row(
        "div trunc",
        lambda x, y: x.div(y, rounding_mode="trunc"),
        lambda x, y: x.div(y, rounding_mode="trunc"),
        NUMBERS,
        BINARY,
        lambda r, s: nonzero(r, s).round(),
        smooth=False,
    ),
    Row(
        "floordiv",
        lambda x, y: x // y,
        lambda x, y: x // y,
        NUMBERS,
        BINARY,
        lambda r, s: nonzero(r, s).round(),
        gradient=False,
    ),
    Row("floordiv by a number", lambda x: x // 3, lambda x: x // 3, NUMBERS, gradient=False),
    Row(
        "mod",
        lambda x, y: x % y,
        lambda x, y: x % y,
        NUMBERS,
        BINARY,
        lambda r, s: nonzero(r, s).round(),
        gradient=False,
    ),
    Row(
        "mod of fractions", lambda x: x % 0.75, lambda x: x % 0.75, WIDE_FLOATS, values=eighths, smooth=False
    ),
    Row(
        "fmod",
        lambda x, y: x.fmod(y),
        lambda x, y: x.fmod(y),
        NUMBERS,
        BINARY,
        lambda r, s: nonzero(r, s).round(),
        gradient=False,
    ),
    *(Row(f"{name} of real numbers", lambda x, y, name=name: getattr(x, name)(y), theirs, WIDE_FLOATS, BINARY,
          nonzero, ulps=1) for name, theirs in (("mod", torch.remainder), ("fmod", torch.fmod))),
    Row("neg", lambda x: -x, lambda x: -x, NUMBERS, special=True),
    Row("reciprocal", **method("reciprocal"), dtypes=NUMBERS, values=nonzero, real=True),
    Row("maximum", **method("maximum"), dtypes=EVERY, cases=BINARY, special=True),
    Row("minimum", **method("minimum"), dtypes=EVERY, cases=BINARY, special=True),
    Row(
        "maximum of ties",
        **method("maximum"),
        dtypes=WIDE_FLOATS,
        cases=BINARY,
        values=lambda r, s: r.integers(0, 2, s) * 1.0,
        smooth=False,
    ),
    Row("clip", **method("clip", -1, 2), dtypes=SIGNED_NUMBERS, special=True),
    Row("clip below", lambda x: x.clip(1), lambda x: x.clamp(1), NUMBERS),
    Row("clamp above", lambda x: x.clamp(max_=1), lambda x: x.clamp(max=1), NUMBERS),
    Row(
        "clip by tensors", lambda x, y: x.clip(y, y + 1), lambda x, y: x.clamp(y, y + 1), FEW_NUMBERS, BINARY
    ),
    Row("lerp", lambda x, y: x.lerp(y, 0.25), lambda x, y: x.lerp(y, 0.25), FLOATS, BINARY, ulps=2),
    Row("lerp by a tensor", lambda x, y: x.lerp(y, y), lambda x, y: x.lerp(y, y), FLOATS, BINARY, ulps=4),
    Row("sign", lambda x: x.sign(), lambda x: torch.where(x != x, x, x.sign()), EVERY, special=True),
    Row("copysign", **method("copysign"), dtypes=FLOATS, cases=BINARY, constant=(1,), special=True),
    Row("copysign of integers", **method("copysign"), dtypes=INTS, cases=BINARY, real=True, gradient=False),
    Row("abs", **method("abs"), dtypes=NUMBERS, special=True),
    Row("square", **method("square"), dtypes=NUMBERS),
]

COMPARISONS = [
    *(
        Row(
            name,
            **method(name),
            dtypes=EVERY,
            cases=BINARY,
            values=whole,
            result=boolean,
            gradient=False,
            special=True,
        )
        for name in ("eq", "ne")
    ),
    Row(
        "lt",
        lambda x, y: x < y,
        lambda x, y: x < y,
        EVERY,
        BINARY,
        whole,
        boolean,
        gradient=False,
        special=True,
    ),
    Row(
        "gt",
        lambda x, y: x > y,
        lambda x, y: x > y,
        EVERY,
        BINARY,
        whole,
        boolean,
        gradient=False,
        special=True,
    ),
    Row(
        "le",
        lambda x, y: x <= y,
        lambda x, y: x <= y,
        EVERY,
        BINARY,
        whole,
        boolean,
        gradient=False,
        special=True,
    ),
    Row(
        "ge",
        lambda x, y: x >= y,
        lambda x, y: x >= y,
        EVERY,
        BINARY,
        whole,
        boolean,
        gradient=False,
        special=True,
    ),
    Row("lt a number", lambda x: x < 1, lambda x: x < 1, EVERY, values=whole, result=boolean, gradient=False),
    Row(
        "logical_not",
        **method("logical_not"),
        dtypes=EVERY,
        values=whole,
        result=boolean,
        gradient=False,
        special=True,
    ),
    Row("isnan", **method("isnan"), dtypes=EVERY, result=boolean, gradient=False, special=True),
    Row("isinf", **method("isinf"), dtypes=EVERY, result=boolean, gradient=False, special=True),
    Row(
        "isinf of one sign",
        lambda x: x.isinf(detect_negative=False),
        lambda x: torch.isposinf(x),
        FLOATS,
        result=boolean,
        gradient=False,
        special=True,
    ),
    Row("isfinite", **method("isfinite"), dtypes=EVERY, result=boolean, gradient=False, special=True),
    Row(
        "isclose",
        **method("isclose", rtol=0.125, atol=0.125),
        dtypes=NUMBERS,
        cases=BINARY,
        result=boolean,
        gradient=False,
        special=True,
    ),
    Row(
        "isclose equal_nan",
        **method("isclose", equal_nan=True),
        dtypes=WIDE_FLOATS,
        cases=BINARY,
        result=boolean,
        gradient=False,
        special=True,
    ),
    Row(
        "allclose",
        lambda x: [x.isclose(x * (1 + 1e-6)).all()],
        lambda x: [torch.tensor(x.allclose(x * (1 + 1e-6)))],
        WIDE_FLOATS,
        result=boolean,
        gradient=False,
    ),
    Row(
        "where",
        lambda x, y: (x > y).where(x, y * 2),
        lambda x, y: torch.where(x > y, x, y * 2),
        NUMBERS,
        BINARY,
    ),
    Row("where with a number", lambda x: (x > 1).where(x, 0), lambda x: torch.where(x > 1, x, 0), NUMBERS),
    Row(
        "masked_fill",
        lambda x, y: x.masked_fill(y > 1, 3),
        lambda x, y: torch.broadcast_tensors(x, y)[0].masked_fill(y > 1, 3),
        NUMBERS,
        BINARY,
        constant=(1,),
    ),
    Row(
        "where of three shapes",
        lambda c, x, y: c.where(x, y),
        torch.where,
        EVERY,
        (
            case(Input((3, 1), dtype=dtypes.bool), (1, 4), ()),
            case(Input((4,), dtype=dtypes.bool), (2, 1, 1), (3, 1)),
            case(Input((0, 3), dtype=dtypes.bool), (3,), (1, 1)),
            case(
                Input((3, 4), lambda x: x.permute((1, 0)), dtype=dtypes.bool),
                LAYOUTS["flipped"],
                (4, 1),
                name="permuted",
            ),
        ),
    ),
]

BITWISE = [
    Row("bitwise_and", lambda x, y: x & y, lambda x, y: x & y, BITS, BINARY, gradient=False, special=True),
    Row("bitwise_or", lambda x, y: x | y, lambda x, y: x | y, BITS, BINARY, gradient=False, special=True),
    Row("bitwise_xor", lambda x, y: x ^ y, lambda x, y: x ^ y, BITS, BINARY, gradient=False, special=True),
    Row("bitwise_not", lambda x: ~x, lambda x: ~x, BITS, gradient=False, special=True),
    Row("lshift", lambda x, y: x << y, lambda x, y: x << y, INTS, SHIFTS, gradient=False),
    Row("rshift", lambda x, y: x >> y, lambda x, y: x >> y, INTS, SHIFTS, gradient=False),
    Row("lshift by a number", lambda x: x << 2, lambda x: x << 2, INTS, gradient=False),
    Row("rshift by a number", lambda x: x >> 1, lambda x: x >> 1, INTS, gradient=False, special=True),
]

ROUNDING = [
    *(
        Row(name, **method(name), dtypes=FLOATS, values=eighths, smooth=False, special=True)
        for name in ("trunc", "floor", "ceil", "round")
    ),
    *(
        Row(f"round to {places}", **method("round", decimals=places), dtypes=WIDE_FLOATS, values=anything,
            smooth=False, ulps=1)
        for places in (2, 1, -1)
    ),
    *(
        Row(f"{name} of integers", **method(name), dtypes=INTS, gradient=False)
        for name in ("trunc", "floor", "ceil", "round")
    ),
]

MATHEMATICS = [
    *(
        Row(
            name,
            **method(name),
            dtypes=EVERY,
            values=values,
            real=True,
            costly=True,
            ulps=ulps,
            special=special,
        )
        for name, values, ulps, special in [
            ("sqrt", positive, 1, True),
            ("rsqrt", positive, 2, True),
            ("exp", anything, 2, True),
            ("exp2", anything, 2, True),
            ("log", positive, 2, True),
            ("log2", positive, 2, True),
            ("log10", positive, 2, True),
            ("log1p", positive, 2, True),
            ("sin", anything, 2, True),
            ("cos", anything, 2, True),
            ("tan", within_one, 2, False),
            ("asin", within_one, 2, True),
            ("acos", within_one, 2, True),
            ("atan", anything, 2, True),
            ("sinh", anything, 2, True),
            ("cosh", anything, 2, True),
            ("tanh", anything, 2, True),
            ("asinh", anything, 2, True),
            ("acosh", above_one, 2, True),
            ("atanh", within_one, 2, True),
            ("expm1", anything, 2, True),
            ("erf", anything, 2, True),
            ("erfc", anything, 6, True),
        ]
        if name not in ("asin", "acos", "atanh")
    ),
    *(
        Row(name, **method(name), dtypes=FLOATS, values=within_one, costly=True, ulps=2, special=True)
        for name in ("asin", "acos", "atanh")
    ),
    Row("erfinv", **method("erfinv"), dtypes=FLOATS, values=within_one, costly=True, ulps=4, special=True),
    Row("pow", lambda x, y: x**y, lambda x, y: x**y, FLOATS, BINARY, positive, costly=True, ulps=2),
    *(
        Row(
            f"pow of special values of {dtype.name}",
            lambda x, y: x**y,
            lambda x, y: x**y,
            (dtype,),
            BINARY,
            positive,
            costly=True,
            ulps=ulps,
            gradient=False,
            special=True,
        )
        for dtype, ulps in ((dtypes.float32, 2), (dtypes.float64, 64))
    ),
    Row(
        "pow of integers",
        lambda x, y: x**y,
        lambda x, y: x**y,
        INTS,
        BINARY,
        lambda r, s: r.integers(0, 5, s) * 1.0,
        costly=True,
        gradient=False,
    ),
    *(
        Row(
            f"pow {p}",
            lambda x, p=p: x**p,
            lambda x, p=p: x**p,
            FLOATS,
            values=positive,
            costly=True,
            ulps=2,
            gradient=p != 0,
        )
        for p in (-2, -1, 0, 0.5, 1, 2, 2.5, 3)
    ),
    Row("pow 3 of integers", lambda x: x**3, lambda x: x**3, INTS, gradient=False),
    Row("pow of a negative base", lambda x: x**3, lambda x: x**3, FLOATS, costly=True, ulps=2),
    Row("pow reversed", lambda x: 2.5**x, lambda x: 2.5**x, FLOATS, costly=True, ulps=2),
    Row("logaddexp", **method("logaddexp"), dtypes=FLOATS, cases=BINARY, costly=True, ulps=2),
    Row(
        "logaddexp of special values",
        **method("logaddexp"),
        dtypes=WIDE_FLOATS,
        cases=BINARY,
        costly=True,
        ulps=2,
        gradient=False,
        special=True,
    ),
]

ACTIVATIONS = [
    *(
        Row(
            name,
            lambda x, name=name: getattr(x, name)(),
            theirs,
            FLOATS,
            costly=True,
            ulps=ulps,
            special=special,
        )
        for name, theirs, ulps, special in [
            ("relu", F.relu, 0, True),
            ("relu6", F.relu6, 0, True),
            ("sigmoid", torch.sigmoid, 2, True),
            ("silu", F.silu, 2, False),
            ("swish", F.silu, 2, False),
            ("gelu", lambda x: F.gelu(x, approximate="tanh"), 4, False),
            ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), 3, False),
            ("softplus", F.softplus, 2, False),
            ("logsigmoid", F.logsigmoid, 2, True),
            ("mish", F.mish, 4, False),
            ("elu", F.elu, 2, True),
            ("celu", F.celu, 2, True),
            ("hardtanh", F.hardtanh, 0, True),
            ("hardsigmoid", F.hardsigmoid, 2, True),
            ("hardswish", F.hardswish, 2, False),
            ("softsign", F.softsign, 2, False),
        ]
    ),
    Row(
        "selu",
        lambda x: x.selu(),
        lambda x: 1.0507 * torch.where(x > 0, x, 1.67326 * x.expm1()),
        FLOATS,
        costly=True,
        ulps=2,
    ),
    Row("gelu none", lambda x: x.gelu(approximate="none"), F.gelu, FLOATS, costly=True, ulps=4),
    Row("elu alpha", lambda x: x.elu(0.5), lambda x: F.elu(x, 0.5), FLOATS, costly=True, ulps=2),
    Row("celu alpha", lambda x: x.celu(0.5), lambda x: F.celu(x, 0.5), FLOATS, costly=True, ulps=2),
    Row(
        "softplus beta", lambda x: x.softplus(2.0), lambda x: F.softplus(x, 2.0), FLOATS, costly=True, ulps=2
    ),
    Row(
        "leaky_relu",
        lambda x: x.leaky_relu(0.1),
        lambda x: F.leaky_relu(x, 0.1),
        FLOATS,
        costly=True,
        ulps=1,
        special=True,
    ),
    Row("hardtanh of bounds", lambda x: x.hardtanh(-0.5, 2), lambda x: F.hardtanh(x, -0.5, 2), FLOATS),
]

CASTS = [
    *(
        Row(name, **method(name), dtypes=EVERY, values=whole, result=lambda d, k=kind: k, gradient=False)
        for name, kind in (
            ("bool", dtypes.bool),
            ("int", dtypes.int32),
            ("long", dtypes.int64),
            ("short", dtypes.int16),
        )
    ),
    *(
        Row(
            name,
            lambda x, name=name: getattr(x, name)(),
            lambda x: x.double(),
            EVERY,
            values=whole,
            result=lambda d, k=kind: k,
            smooth=False,
        )
        for name, kind in (
            ("float", dtypes.float32),
            ("double", dtypes.float64),
            ("half", dtypes.float16),
            ("bfloat16", dtypes.bfloat16),
        )
    ),
    Row(
        "cast",
        lambda x: x.cast("float64"),
        lambda x: x.double(),
        EVERY,
        values=probability,
        result=lambda d: dtypes.float64,
    ),
    Row("detach", lambda x: x.detach() + x, lambda x: x.detach() + x, FLOATS, smooth=False),
    Row("contiguous", lambda x: x.contiguous(), lambda x: x.contiguous(), EVERY),
    Row("contiguous_backward", lambda x: x.contiguous_backward() * 2, lambda x: x * 2, NUMBERS),
    Row("clone", lambda x: x.clone(), lambda x: x.clone(), EVERY),
    Row("zeros_like", lambda x: x.zeros_like(), torch.zeros_like, EVERY, gradient=False),
    Row("ones_like", lambda x: x.ones_like(), torch.ones_like, EVERY, gradient=False),
    Row("full_like", lambda x: x.full_like(3), lambda x: torch.full_like(x, 3), NUMBERS, gradient=False),
    Row(
        "one_hot",
        lambda x: x.one_hot(19),
        lambda x: F.one_hot(x, 19),
        dtypes.uints,
        gradient=False,
        values=lambda r, s: r.integers(0, 9, s) * 1.0,
        result=lambda d: dtypes.int32,
        cases=(case((5, 7)), case(()), case(Input((4, 3), lambda x: x.flip((0,))))),
    ),
]

ROWS = [*ARITHMETIC, *COMPARISONS, *BITWISE, *ROUNDING, *MATHEMATICS, *ACTIVATIONS, *CASTS]
