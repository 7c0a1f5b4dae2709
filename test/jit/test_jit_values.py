"""TinyJit by example: arguments that are no tensors.

Each program runs with and without TinyJit, several calls long (`jit_programs.py`).
"""

import dataclasses
import enum
import functools
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
from jit_programs import Programs, assert_jit_changes_nothing, vector

from tinygrad import Tensor

PROGRAMS = Programs()
program = PROGRAMS.add


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    A = 1
    B = 2


@program
def enums(jit):
    @jit
    def f(x, c, level):
        return x * (2 if c is Color.RED else 3) + int(level)

    return [f(vector(i), c, level).item() for i in range(2) for c in Color for level in Level] + [
        f(vector(1), Color.RED, 1).item()
    ]


@program
def np_scalars(jit):
    @jit
    def f(x, s):
        return x * s

    out = []
    for s in (
        2,
        2.0,
        np.float32(2),
        np.float64(2),
        np.int64(2),
        np.int32(2),
        True,
        np.bool_(True),
        np.float16(2),
    ):
        for _ in range(2):
            r = f(vector(3, 4), s)
            out.append((r.dtype.name, r.tolist()))
    for s in (2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.int32(2), True, np.bool_(True)):
        r = f(Tensor([3, 4]), s)
        out.append((r.dtype.name, r.tolist()))
    return out


@program
def np_float64_after_float(jit):
    @jit
    def f(x, s):
        return x * s

    out = []
    for s in (2.5, np.float64(2.5), np.float64(3.5), 3.5):
        r = f(Tensor([3, 4]), s)
        out.append((r.dtype.name, r.tolist()))
    return out


@program
def negative_zero_nan(jit):
    @jit
    def f(x, s):
        return 1 / (x * 0 + s)

    return [
        repr(f(vector(1), s).item())
        for s in (0.0, -0.0, 0.0, float("nan"), float("inf"), -0.0, -float("nan"))
    ]


@program
def sets_ranges_slices(jit):
    @jit
    def f(x, s, r, sl):
        t = x[sl] * len(s)
        for i in r:
            t = t + i
        return t

    out = []
    for i in range(3):
        out.append(f(vector(i, 1, 2), {1, 2}, range(i), slice(0, 2)).tolist())
        out.append(f(vector(i, 1, 2), frozenset([1]), range(2), slice(1, 2)).tolist())
    return out


@program
def mutated_set(jit):
    s = {1, 2}

    @jit
    def f(x, s):
        return x * len(s)

    out = [f(vector(1), s).item()]
    s.add(3)
    out.append(f(vector(1), s).item())
    return out


@program
def mutated_bytearray(jit):
    s = bytearray(b"ab")

    @jit
    def f(x, s):
        return x * len(s)

    out = [f(vector(1), s).item()]
    s.extend(b"c")
    out.append(f(vector(1), s).item())
    return out


@program
def mutated_list_of_numbers(jit):
    s = [1, 2]

    @jit
    def f(x, s):
        return x * sum(s)

    out = [f(vector(1), s).item()]
    s.append(3)
    out.append(f(vector(1), s).item())
    s[0] = 7
    out.append(f(vector(1), s).item())
    return out


@program
def object_array(jit):
    s = np.array([1, 2], object)

    @jit
    def f(x, s):
        return x * int(s[0])

    out = [f(vector(1), s).item()]
    s[0] = 5
    out.append(f(vector(1), s).item())
    return out


@dataclasses.dataclass
class D:
    x: Tensor
    n: int = 2

    def __post_init__(self):
        self.extra = self.x * self.n


@program
def dataclass_extra_attribute(jit):
    @jit
    def f(d):
        return d.x + d.extra

    ds = [D(vector(i, 1)) for i in range(4)]
    return [f(d).tolist() for d in ds]


@dataclasses.dataclass
class Cached:
    x: Tensor

    @functools.cached_property
    def twice(self):
        return self.x * 2


@program
def dataclass_cached_property(jit):
    @jit
    def f(d):
        return d.x + d.twice

    ds = [Cached(vector(i, 1)) for i in range(4)]
    return [f(d).tolist() for d in ds]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor
    parts: tuple = ()


@program
def dataclass_frozen_slots(jit):
    @jit
    def f(d):
        return Frozen(d.x + d.parts[0], (d.x,))

    out = []
    for i in range(3):
        r = f(Frozen(vector(i), (vector(1),)))
        out.append((type(r).__name__, r.x.tolist(), r.parts[0].tolist()))
    return out


class DictSub(dict):
    pass


@program
def dict_subclasses(jit):
    @jit
    def f(d):
        return (
            type(d)(
                d,
            )
            if not isinstance(d, defaultdict)
            else d["a"]
        )

    out = []
    for i in range(3):
        for d in (DictSub(a=vector(i)), OrderedDict(a=vector(i)), {"a": vector(i)}):
            r = f(d)
            out.append((type(r).__name__, r["a"].tolist()))
        out.append(f(defaultdict(list, a=vector(i))).tolist())
    return out


@program
def dict_order(jit):
    @jit
    def f(d):
        a, b = list(d.values())
        return a * 10 + b

    return [
        f({"a": vector(1), "b": vector(2)}).item(),
        f({"b": vector(1), "a": vector(2)}).item(),
        f({"a": vector(3), "b": vector(2)}).item(),
        f({"b": vector(4), "a": vector(2)}).item(),
    ]


@program
def dict_key_tensor(jit):
    @jit
    def f(d):
        t = 0
        for k, v in d.items():
            t = t + k * v
        return t

    a, b = vector(3), vector(4)
    return [f({a: vector(2)}).item(), f({b: vector(2)}).item(), f({a: vector(5)}).item()]


@program
def list_subclass(jit):
    class L(list):
        pass

    @jit
    def f(items):
        return type(items).__name__, items[0] + items[1]

    r = [f(L([vector(i), vector(1)])) for i in range(3)]
    return [(n, t.item()) for n, t in r]


@program
def list_given_twice(jit):
    @jit
    def f(a, b):
        return a[0] + b[0] * 2, a is b

    out = []
    for i in range(3):
        items = [vector(i)]
        r = f(items, items)
        out.append(r[0].item())
        r = f([vector(i)], [vector(7)])
        out.append(r[0].item())
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same_under_tinyjit(name):
    assert_jit_changes_nothing(PROGRAMS[name])
