"""Random programs with state do the same under TinyJit: all results, all states, and what earlier calls gave.

A program has a few state tensors and a body of statements on 3 x 3 tensors; it is called several times, with
arguments that are new, given before, results of earlier calls, views or the states themselves, while other
things happen to the states between calls. All numbers are small integers, so that every order of adding them
up gives the same and results can be compared for equality. The programs run once under TinyJit and once
without, from the same seed on. 1,000 of them: `pytest -m slow test/jit/test_jit_random.py`.
"""
import gc
import traceback
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from tinygrad import Tensor, TinyJit, Variable
from tinygrad.jit import JitError
from tinygrad.tensor.live import pending_assignments

N = 3
STATES = 3
CALLS = 5
BOUND = 50.0
"""of every number; products of two, summed, stay exact in float32"""


def bounded(x):
    return x.clip(-BOUND, BOUND)


PURE = {
    "add": lambda a, b, n: a + b,
    "subtract": lambda a, b, n: a - b,
    "multiply": lambda a, b, n: a * b,
    "choose": lambda a, b, n: (a > b).where(a, b + 1),
    "maximum": lambda a, b, n: a.maximum(b),
    "count": lambda a, b, n: (a == b).cast("float32") + 1,
    "matmul": lambda a, b, n: a @ b,
    "sum": lambda a, b, n: a.sum(0, keepdim=True).expand(N, N) + b,
    "largest": lambda a, b, n: a.max(1).reshape(N, 1).expand(N, N) - b,
    "transpose": lambda a, b, n: a.T,
    "flip": lambda a, b, n: a.flip(0),
    "rows": lambda a, b, n: a[1:].cat(b[:1]),
    "pad": lambda a, b, n: a[:2, 1:].pad(((0, 1), (1, 0))),
    "memory": lambda a, b, n: (a + 1).contiguous(),
    "computed": lambda a, b, n: (a * 2).realize(),
    "constant": lambda a, b, n: Tensor([[1.0, 2.0, 3.0]]) + a,
    "new memory": lambda a, b, n: Tensor.zeros(N, N).contiguous().assign(b + 1) + a,
    "running sum": lambda a, b, n: a.cumsum(0),
    "dropout": lambda a, b, n: a.dropout(0.5),
    "random": lambda a, b, n: (Tensor.rand(N, N) * 8).floor() + a,
    "number": lambda a, b, n: a * Tensor(n).cast("float32"),
    "row of a variable": lambda a, b, n: a.shrink(((n, n + 1), (0, N))).expand(N, N) + b,
}
WRITES = ("assign", "assign and realize", "assign a row", "assign a column", "add in place", "swap",
          "assign an argument", "gradient", "gradient kept", "descend")
small = st.integers(0, 30)
body = st.lists(st.tuples(st.sampled_from((*PURE, *WRITES, *WRITES)), small, small), min_size=3, max_size=12)
ARGUMENTS = ("new", "new", "again", "result", "result", "lazy", "constant", "view", "state")
BETWEEN = ("nothing", "nothing", "nothing", "assign", "lazy assign", "replace", "swap names", "seed", "read",
           "keep", "draw")
call = st.tuples(st.tuples(st.sampled_from(ARGUMENTS), small), st.tuples(st.sampled_from(ARGUMENTS), small),
                 st.sampled_from(BETWEEN), small, st.integers(0, N - 1))
programs = st.tuples(body, st.lists(call, min_size=CALLS, max_size=CALLS),
                     st.lists(small, min_size=1, max_size=4))
SHARED = {"view", "state", "constant", "lazy", "result", "again"}
"""kinds of arguments that may have no memory of their own, for which assigning may be refused"""


@dataclass
class Run:
    """One run of a program: its states, what its calls gave, and how often its function ran."""

    statements: list
    returned: list
    states: list = field(default_factory=list)
    results: list = field(default_factory=list)
    kept: list = field(default_factory=list)
    arguments: list = field(default_factory=list)
    ran: int = 0

    def __post_init__(self):
        Tensor.manual_seed(11)
        for i in range(STATES):
            self.states.append(numbers(100 + i))
            self.states[i].requires_grad = i == 0

    def function(self, x, y, n):
        """The function: a statement adds a local or writes a state or argument."""
        self.ran += 1
        locals_ = [x, y, *self.states]
        for name, i, j in self.statements:
            a, b = locals_[-1 - i % len(locals_)], locals_[j % len(locals_)]
            if name in PURE:
                locals_.append(bounded(PURE[name](a.detach(), b.detach(), n)))
            else:
                self.write(name, i, a, b, x, locals_)
        return [locals_[-1 - i % len(locals_)] for i in self.returned]

    def write(self, name, i, a, b, x, locals_):
        state, other = self.states[i % STATES], self.states[(i + 1) % STATES]
        value = bounded(a.detach() + b.detach())
        if name == "assign":
            state.assign(value)
        elif name == "assign and realize":
            state.assign(value).realize()
        elif name == "assign a row":
            state[i % N] = value[0]
        elif name == "assign a column":
            state[:, 1:] = value[:, :2]
        elif name == "add in place":
            state += 1
            state.assign(bounded(state.detach()))
        elif name == "swap":
            old = state.detach() + 0
            state.assign(other.detach())
            other.assign(old)
        elif name == "assign an argument":
            x.assign(value)
        else:
            weight = self.states[0]
            weight.grad = None
            (weight * weight * value).sum().backward()
            gradient = bounded(weight.grad.detach())
            if name == "descend":
                weight.assign(bounded(weight.detach() - gradient))
            locals_.append(gradient)
            if name == "gradient":
                weight.grad = None

    def argument(self, kind, i):
        """An argument of a call."""
        earlier = [t for result in self.results for t in result]
        if kind == "result" and earlier:
            return earlier[i % len(earlier)]
        if kind == "again" and self.arguments:
            return self.arguments[i % len(self.arguments)]
        made = {"lazy": lambda: bounded(self.states[i % STATES].detach() + numbers(i)),
                "constant": lambda: Tensor.full((N, N), float(i % 5)),
                "view": lambda: numbers(i).T,
                "state": lambda: self.states[i % STATES]}
        tensor = made.get(kind, lambda: numbers(i))()
        self.arguments.append(tensor)
        return tensor

    def between(self, what, i):
        """What happens to the states outside of calls."""
        state, other = i % STATES, (i + 1) % STATES
        if what == "assign":
            self.states[state].assign(numbers(i)).realize()
        elif what == "lazy assign":
            self.states[state].assign(bounded(self.states[state].detach() + self.states[other].detach()))
        elif what == "replace":
            self.states[state].replace(numbers(i))
        elif what == "swap names":
            self.states[1], self.states[2] = self.states[2], self.states[1]
        elif what == "seed":
            Tensor.manual_seed(i)
        elif what == "read":
            self.states[state].numpy()
        elif what == "keep":
            self.kept.append(self.states[state].detach() * 2)
        elif what == "draw":
            Tensor.rand(2).realize()

    def values(self):
        """Everything that can be read after a call, results of earlier ones too."""
        gradient = self.states[0].grad
        tensors = [*self.states, *(t for result in self.results for t in result), *self.kept, *self.arguments]
        return [t.numpy() for t in tensors] + [None if gradient is None else gradient.numpy()]


def numbers(seed):
    """A tensor of small integers, in memory."""
    drawn = np.random.default_rng(seed).integers(-3, 4, (N, N))
    return Tensor(drawn.astype(np.float32)).realize()


def run(program, jit, read_always):
    """The values after each call (`read_always`) or at the end, how often the function ran, and after how
    many calls it was refused, if it was."""
    statements, calls, returned = program
    this = Run(statements, returned)
    function = jit(this.function)
    seen = []
    for number, ((first, i), (second, j), between, k, n) in enumerate(calls):
        this.between(between, k)
        x, y = this.argument(first, i), this.argument(second, j)
        try:
            this.results.append(function(x, y, Variable("n", 0, N - 1).bind(n)))
        except JitError:
            return seen, this.ran, number
        if read_always or number == len(calls) - 1:
            seen.append(this.values())
    return seen, this.ran, None


def may_be_refused(program):
    """Whether a call gives an argument that may share memory with something that is written."""
    statements, calls, _ = program
    writes = any(name in WRITES for name, _, _ in statements)
    return writes and any({first, second} & SHARED for (first, _), (second, _), *_ in calls)


def check(program):
    """Runs it; a failure keeps nothing alive, such as pending writes, which the next run would meet."""
    failure = None
    try:
        compare(program)
    except UnsatisfiedAssumption:
        raise
    except Exception:
        failure = traceback.format_exc()
    if failure is not None:
        pytest.fail(f"{program!r}\n{failure}", pytrace=False)


def forget_pending_writes():
    """Let go of writes that a run left pending and that nobody can see any more: TinyJit would compute them,
    and their n is another."""
    if pending_assignments():
        gc.collect()


def compare(program):
    for read_always in (True, False):
        forget_pending_writes()
        with warnings.catch_warnings(), Tensor.train():
            warnings.simplefilter("ignore")  # some trace in every call, on purpose
            try:
                expected, _, _ = run(program, lambda function: function, read_always)
            except ValueError as error:  # a lazy result of one call is used with another n in the next
                assume("bound to" not in str(error))
                raise
            forget_pending_writes()
            found, ran, refused = run(program, TinyJit, read_always)
        assert refused is None or may_be_refused(program), f"call {refused} was refused"
        assert len(found) == (len(expected) if refused is None else refused if read_always else 0)
        for number, (values, others) in enumerate(zip(found, expected)):
            for i, (a, b) in enumerate(zip(values, others, strict=True)):
                np.testing.assert_array_equal(a, b, err_msg=f"call {number}, value {i}")
        quiet = all((first, second, what) == ("new", "new", "nothing")
                    for (first, _), (second, _), what, *_ in program[1])
        assert not quiet or ran <= 2


common = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=60, **common)
@given(programs)
def test_a_random_program_does_the_same_under_tinyjit(program):
    check(program)


@pytest.mark.slow
@settings(max_examples=1000, **common)
@given(programs)
def test_a_thousand_random_programs_do_the_same_under_tinyjit(program):
    check(program)
