"""C types, constants, and the small functions that kernels call where C has no operator that fits.

What C leaves undefined is defined here, as in `llvm_functions.py` and with the same results: a division by
zero gives 0, a shift by the width or more gives what shifting bit by bit would, a maximum is NaN where an
operand is, a float that no integer holds becomes the nearest that there is.

Vectors are those of GCC and clang (`vector_size`). Their sizes are powers of two, so a vector of three lanes
has a fourth that nobody reads. Comparing vectors makes a mask: signed integers of the lanes' width, -1 where
it holds. C's operators take vectors as they take scalars; a function that has no such form is applied lane by
lane. Every function is inlined.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from tinygrad.dtype import DType, dtypes
from tinygrad.frozen import frozen
from tinygrad.renderer import Native
from tinygrad.renderer.machine import NARROW_FLOATS


@frozen
class Dialect:
    """The words in which the languages of the C family differ."""

    name: str
    types: Mapping[DType, str]
    """what a scalar in a register is called; narrow floats without a type of their own are unsigned bits"""
    kernel: str = ""
    """stands before a kernel"""
    function: str = "static inline"
    """stands before a small function"""
    wraps: bool = False
    """whether signed integers wrap where they overflow, which C leaves open"""
    restrict: str = "restrict"
    vector: str = "typedef {scalar} {name} __attribute__((vector_size({size})));"
    """declares a vector type"""
    math: str = "__builtin_{name}{suffix}"
    """sqrt, trunc, fma and fabs; the suffix is f for float32"""
    infinity: str = "__builtin_inf{suffix}()"
    nan: str = '__builtin_nan{suffix}("")'
    long_suffix: str = "ll"
    """ends a 64-bit integer"""
    bitcast: str = ""
    """the bits of {value}, a {source}, as a {target}; empty where memcpy does that"""
    header: str = ""
    """lines at the top"""
    buffer: str = ""
    """a buffer argument of the kernel: of type {type}, called {name}"""
    variable: str = ""
    """an integer argument, called {name}"""
    extra_arguments: str = ""
    """arguments of every kernel, after its own"""
    shared: str = ""
    """stands before memory that the threads of a block share; empty where there are no blocks"""
    large_shared: str = ""
    """declares {bytes} bytes of shared memory, called large_shared, of which arrays are parts: for more than
    may be declared one by one"""
    barrier: str = ""
    """waits for all threads of the block"""
    ids: Mapping[str, str] = field(default_factory=dict)
    """what a SPECIAL index is called"""
    vector_type: str = "{scalar}{count}"
    """what a wide load gives and a wide store takes; it needs no declaration"""
    longest_access: int = 4
    """items of the longest type that a wide load gives"""
    vector_load: str = ""
    """the {count} items at {address}, as a {vector}"""
    vector_store: str = ""
    """the statement that stores {value} there"""
    exchange: str = ""
    """{value} of the lane whose number differs in the bit {distance}"""
    async_copy: str = ""
    """starts copying {bytes} bytes from {source} to {target}, in shared memory; zeros unless {valid}"""
    commit: str = ""
    """makes a group of the copies started"""
    wait: str = ""
    """waits for copies but for those of {groups} groups"""
    matrix_units: Mapping[str, str] = field(default_factory=dict)
    """a function for each MatrixUnit that the language has, by its name: of wide values a, b and c"""
    make_vector: str = "({vector})({items})"
    lane: str = "{vector}.s{lane}"
    """lane number {lane} of {vector}; {letter} is its letter among xyzw"""

    @property
    def has_float16(self) -> bool:
        """Whether float16 has a type of its own."""
        return self.types[dtypes.float16] != self.types[dtypes.uint16]

    @property
    def native(self) -> Native:
        """What of conversions and functions of floats the language has."""
        return Native(conversions=frozenset({dtypes.float16} if self.has_float16 else ()))


PLAIN_C = Dialect(
    name="C",
    types={
        dtypes.bool: "_Bool",
        dtypes.int8: "signed char", dtypes.uint8: "unsigned char",
        dtypes.int16: "short", dtypes.uint16: "unsigned short",
        dtypes.int32: "int", dtypes.uint32: "unsigned int",
        dtypes.int64: "long long", dtypes.uint64: "unsigned long long",
        dtypes.index: "long long",
        dtypes.fp8e4m3: "unsigned char", dtypes.fp8e5m2: "unsigned char",
        dtypes.bfloat16: "unsigned short", dtypes.float16: "_Float16",
        dtypes.float32: "float", dtypes.float64: "double",
    },
    function="static inline __attribute__((always_inline))",
    wraps=True,
)
"""C as GCC and clang take it with -fwrapv, for a CPU."""


def padded(count: int) -> int:
    """Lanes of the vector type that holds `count` lanes."""
    return 1 << (count - 1).bit_length()


def signed_of(size: int) -> DType:
    """The signed integer of `size` bytes."""
    return {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[size]


def unsigned_of(size: int) -> DType:
    """The unsigned integer of `size` bytes."""
    return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[size]


def mask_of(dtype: DType) -> DType:
    """The type of a comparison of values of `dtype`: bool, for a vector the mask of its lanes."""
    return dtypes.bool if dtype.count == 1 else signed_of(dtype.lane_size).vec(dtype.count)


class Functions:
    """Types and functions of one kernel: what they are called, and the text of those that it uses."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.types: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def type(self, dtype: DType) -> str:
        """The name of a type, declared if it is a vector. A vector of bools is a mask of bytes."""
        scalar = self.dialect.types[dtypes.int8 if dtype.is_bool and dtype.count > 1 else dtype.scalar]
        if dtype.count == 1:
            return scalar
        lane = {"bool": "int8", "index": "int64"}.get(dtype.name, dtype.name)
        name = f"{lane}x{padded(dtype.count)}"
        if name not in self.types:
            size = dtype.lane_size * padded(dtype.count)
            self.types[name] = self.dialect.vector.format(scalar=scalar, name=name, size=size)
        return name

    def unaligned(self, dtype: DType) -> str:
        """A vector type as it lies in memory: aligned as its items are."""
        held = self.type(dtype)
        name = f"{held}_unaligned"
        self.types[name] = f"typedef {held} {name} __attribute__((aligned({dtype.lane_size}), may_alias));"
        return name

    def memory(self, dtype: DType) -> str:
        """The type of one item in memory, where a bool is a byte."""
        return self.type(dtypes.uint8 if dtype.is_bool else dtype.scalar)

    def define(self, name: str, result: DType, parameters: Mapping[str, DType], body: str) -> str:
        """Add a function, unless it is there; returns its name."""
        if name not in self.texts:
            given = ", ".join(f"{self.type(t)} {p}" for p, t in parameters.items())
            lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
            self.texts[name] = f"{self.dialect.function} {self.type(result)} {name}({given}) {{\n{lines}\n}}"
        return name

    def lane_by_lane(self, scalar: str, result: DType, *parameters: DType) -> str:
        """The function `scalar` for vectors."""
        count = result.count
        names = "abc"[:len(parameters)]
        lanes = ", ".join(f"{scalar}({', '.join(f'{n}[{i}]' for n in names)})" for i in range(padded(count)))
        body = f"return ({self.type(result)}){{{lanes}}};"
        return self.define(f"{scalar}_x{padded(count)}", result,
                           dict(zip(names, parameters, strict=True)), body)

    # --- constants and lanes --------------------------------------------------------------------------------

    def splat(self, dtype: DType) -> str:
        """The function that gives every lane one value."""
        lanes = ", ".join("x" * padded(dtype.count))
        scalar = dtypes.int8 if dtype.is_bool else dtype.scalar
        return self.define(f"splat_{self.type(dtype)}", dtype, {"x": scalar},
                           f"return ({self.type(dtype)}){{{lanes}}};")

    def constant(self, dtype: DType, value: object) -> str:
        """A CONST: one number for all lanes, or a tuple of one a lane. Bools of vectors are 0 and -1."""
        if dtype.count == 1:
            return self.number(dtype, value[0] if isinstance(value, tuple) else value)
        lane = signed_of(1) if dtype.is_bool else dtype.scalar
        if not isinstance(value, tuple) or len(set(map(repr, value))) == 1:
            one = value[0] if isinstance(value, tuple) else value
            return f"{self.splat(dtype)}({self.number(lane, -int(bool(one)) if dtype.is_bool else one)})"
        numbers = [self.number(lane, -int(v) if dtype.is_bool else v) for v in value]
        numbers += numbers[-1:] * (padded(len(value)) - len(value))
        return f"({self.type(dtype)}){{{', '.join(numbers)}}}"

    def number(self, dtype: DType, value: object) -> str:
        """One number, rounded to its type, as C writes it."""
        if dtype.is_bool:
            return str(int(bool(value)))
        if not dtype.is_float:
            return self.integer(dtype, int(value))  # type: ignore[call-overload]  # an int, by the grammar
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.array(value, dtype=np.float64).astype(dtype.numpy)
        if dtype in NARROW_FLOATS and not (dtype is dtypes.float16 and self.dialect.has_float16):
            return hex(int(rounded.view(f"u{dtype.lane_size}").item()))
        if dtype is dtypes.float16:
            return f"({self.type(dtype)}){self.real(rounded.item(), dtypes.float32)}"
        return self.real(rounded.item(), dtype)

    def integer(self, dtype: DType, value: int) -> str:
        types = self.dialect.types
        is_long = dtype.lane_size == 8 and types[dtype] != types[dtypes.int32]
        suffix = ("u" if dtype.is_unsigned else "") + self.dialect.long_suffix * is_long
        if value == dtype.min and value < 0:
            return f"({value + 1}{suffix} - 1)"
        return f"{value}{suffix}"

    def real(self, value: float, dtype: DType) -> str:
        """The shortest decimal that is read as this float32 or float64."""
        suffix = _suffix(dtype)
        if math.isnan(value):
            return self.dialect.nan.format(suffix=suffix)
        if math.isinf(value):
            return f"{'-' if value < 0 else ''}{self.dialect.infinity.format(suffix=suffix)}"
        return f"{dtype.numpy.type(value)!s}{suffix}"

    def bits(self, value: str, source: DType, target: DType) -> str:
        """The bits of a value as one of another type of the same size."""
        if self.dialect.bitcast:
            names = {"source": self.type(source), "target": self.type(target)}
            return self.dialect.bitcast.format(value=value, **names)
        name = f"bits_{self.name_of(target)}_of_{self.name_of(source)}"
        return self.define(name, target, {"a": source}, f"""
            {self.type(target)} result;
            __builtin_memcpy(&result, &a, sizeof result);
            return result;""") + f"({value})"

    # --- integers -------------------------------------------------------------------------------------------

    def divide(self, dtype: DType, quotient: bool) -> str:
        """a // b or a % b, rounded down; 0 where b is 0; the lowest integer // -1 is itself."""
        scalar, t = dtype.scalar, self.type(dtype.scalar)
        name = f"{'floordiv' if quotient else 'floormod'}_{scalar.name}"
        if dtype.is_unsigned:
            body = f"return b == 0 ? 0 : a {'/' if quotient else '%'} b;"
        elif quotient:
            body = f"""
                if (b == 0 || b == -1) return b == 0 ? 0 : ({t})(0 - ({self.type(unsigned_of(8))})a);
                {t} q = a / b;
                return q - (q * b != a && (a ^ b) < 0);"""
        else:
            body = f"""
                if (b == 0 || b == -1) return 0;
                {t} r = a % b;
                return r != 0 && (r ^ b) < 0 ? r + b : r;"""
        return self.of_lanes(name, dtype, body, dtype, dtype)

    def shift(self, dtype: DType, left: bool) -> str:
        """a << b and a >> b; past the width 0, or the sign of a signed number shifted right."""
        unsigned, bits = self.type(unsigned_of(dtype.lane_size)), dtype.bits
        inside = f"({unsigned})b < {bits}"
        if left:
            body = f"return {inside} ? ({unsigned})a << b : 0;"
        elif dtype.is_unsigned:
            body = f"return {inside} ? a >> b : 0;"
        else:
            body = f"return a >> ({inside} ? b : {bits - 1});"
        return self.of_lanes(f"{'shl' if left else 'shr'}_{dtype.name}", dtype, body, dtype, dtype)

    def of_lanes(self, name: str, result: DType, body: str, *parameters: DType) -> str:
        """A function written for scalars, for as many lanes as `result` has."""
        given = {n: p.scalar for n, p in zip("abc", parameters, strict=False)}
        scalar = self.define(name, result.scalar, given, body)
        return scalar if result.count == 1 else self.lane_by_lane(scalar, result, *parameters)

    # --- choice ---------------------------------------------------------------------------------------------

    def select(self, dtype: DType) -> str:
        """For vectors: a where the mask holds, else b."""
        t, m = self.type(dtype), self.type(mask_of(dtype))
        return self.define(f"select_{t}", dtype, {"mask": mask_of(dtype), "a": dtype, "b": dtype},
                           f"return ({t})((mask & ({m})a) | (~mask & ({m})b));")

    def choose(self, dtype: DType, condition: str, a: str, b: str) -> str:
        """`a` where the condition holds, else `b`, for scalars and vectors."""
        if dtype.count == 1:
            return f"({condition} ? {a} : {b})"
        return f"{self.select(dtype)}({condition}, {a}, {b})"

    def maximum(self, dtype: DType) -> str:
        """The larger of a and b; of floats NaN where either is."""
        larger = self.choose(dtype, "a > b", "a", "b")
        body = f"return {larger};"
        if dtype.is_float:
            body = f"return {self.choose(dtype, 'a != a', 'a', larger)};"
        return self.define(f"max_{self.name_of(dtype)}", dtype, {"a": dtype, "b": dtype}, body)

    def name_of(self, dtype: DType) -> str:
        return dtype.name if dtype.count == 1 else self.type(dtype)

    # --- floats ---------------------------------------------------------------------------------------------

    def builtin(self, name: str, dtype: DType, arity: int) -> str:
        """One of the compiler's own functions (sqrt, trunc, fma)."""
        arguments = ", ".join("abc"[:arity])
        called = self.dialect.math.format(name=name, suffix=_suffix(dtype))
        body = f"return {called}({arguments});"
        return self.of_lanes(f"{name}_{dtype.name}", dtype, body, *[dtype] * arity)

    def multiply_add(self, dtype: DType) -> str:
        """a * b + c, rounded once: one instruction for the vectors that this CPU has."""
        if dtype.count == 1:
            return self.builtin("fma", dtype, 3)
        t, size = self.type(dtype), dtype.lane_size * padded(dtype.count)
        by_lane = self.builtin("fma", dtype, 3)
        kind = "ps" if dtype.scalar is dtypes.float32 else "pd"
        ones = f"(unsigned {'short' if kind == 'ps' else 'char'})-1"
        native = {16: ("__FMA__", f"__builtin_ia32_vfmadd{kind}(a, b, c)"),
                  32: ("__FMA__", f"__builtin_ia32_vfmadd{kind}256(a, b, c)"),
                  64: ("__AVX512F__", f"__builtin_ia32_vfmadd{kind}512_mask(a, b, c, {ones}, 4)")}.get(size)
        gcc = "" if native is None else f"""
            #elif defined({native[0]})
            return {native[1]};"""
        return self.define(f"mulacc_{t}", dtype, {"a": dtype, "b": dtype, "c": dtype}, f"""
            #if defined(__clang__)
            #pragma clang fp contract(fast)
            return a * b + c;{gcc}
            #else
            return {by_lane}(a, b, c);
            #endif""")

    def to_integer(self, source: DType, target: DType) -> str:
        """A float as an integer, toward zero; the nearest there is where none fits, 0 for NaN."""
        suffix = _suffix(source)
        low, high = int(target.min), int(target.max)
        body = f"""
            if (a != a) return 0;
            if (a <= {float(low)!r}{suffix}) return {self.integer(target.scalar, low)};
            if (a >= {float(high + 1)!r}{suffix}) return {self.integer(target.scalar, high)};
            return ({self.type(target.scalar)})a;"""
        return self.of_lanes(f"{target.name}_of_{source.name}", target, body, source)

    def convert_half(self, source: DType, target: DType) -> str:
        """Between float32 and float16, where that has a type of its own."""
        return self.of_lanes(f"{target.name}_of_{source.name}", target, "return a;", source)


def _suffix(dtype: DType) -> str:
    """What ends a number, or the name of a function, of this float type."""
    return "f" if dtype.scalar is dtypes.float32 else ""
