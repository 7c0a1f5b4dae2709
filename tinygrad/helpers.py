"""Small things every layer uses: settings (`ContextVar`), counters, and functions over sequences.

Nothing here knows about tensors. Settings come from environment variables of the same name and can be changed
for a while with `Context(DEBUG=4)`.
"""
from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import signal
import sys
import tempfile
import threading
import time
from _signal import signal as set_handler  # type: ignore[import-not-found]  # signal.signal, ten times as fast
from _thread import interrupt_main
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, EnumMeta
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
E = TypeVar("E", bound=Enum)

engine_lock = threading.RLock()
"""Held while a schedule, a trace or a replay is made and run, and while a tensor is changed: one thread at a
time does that, and a trace sees what its own thread changes."""


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """A function that changes tensors, while no other thread computes, traces or changes any."""
    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with engine_lock:
            result = function(*args, **kwargs)
        return result

    return locked


class _Members(type):
    """The type of `quick` classes: what `EnumMeta` does for members that are all there."""

    __contains__, __getitem__ = EnumMeta.__contains__, EnumMeta.__getitem__
    __iter__, __len__, __members__ = EnumMeta.__iter__, EnumMeta.__len__, EnumMeta.__members__


def quick(members: type[E]) -> type[E]:
    """An Enum whose members are found as fast as any attribute of a class, where Python does not do that.

    Up to Python 3.11 its type has a `__getattr__`, so that each `Ops.ADD` takes 65 ns in place of 10: a 20th
    of what an operation takes that runs at once, and of a model's first call.
    """
    if hasattr(EnumMeta, "__getattr__"):
        members.__class__ = _Members  # type: ignore[assignment]
    return members


elsewhere: list[Callable[[str, str], Any]] = []
"""What scripts mean by a name that a module does not have, given both: filled by `compat/`."""


def find_elsewhere(module: str, name: str) -> Any:
    """What a module that is asked for a name that it does not have returns. Raises AttributeError."""
    for find in elsewhere:
        return find(module, name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def __getattr__(name: str) -> Any:
    """Settings by their names, and what scripts import from here though it is elsewhere."""
    return ContextVar.registry[name] if name in ContextVar.registry else find_elsewhere(__name__, name)


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    """The environment variable `key`, as the type of `default`."""
    return type(default)(os.getenv(key, default))


class ContextVar:
    """An integer (or string) setting, first read from the environment: `DEBUG=2 python script.py`."""

    registry: ClassVar[dict[str, ContextVar]] = {}

    value: Any

    def __init__(self, key: str, default: Any) -> None:
        self.register(key)
        self.value = getenv(key, default)

    def register(self, key: str) -> None:
        """Make the setting known under its name."""
        if key in ContextVar.registry:
            raise RuntimeError(f"the setting {key} is defined twice")
        self.key = key
        ContextVar.registry[key] = self

    def checked(self, value: Any) -> Any:
        """`value` as the setting takes it. Raises TypeError or ValueError for one that it does not."""
        return value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __hash__(self) -> int:
        return hash(self.key)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    def __repr__(self) -> str:
        return f"{self.key}={self.value}"


class AttributeSetting(ContextVar):
    """A setting that programs also read and set as an attribute: `Context(TRAINING=1)` is what
    `Tensor.training = True` is. The attribute has the value. `convert` makes it of what the environment or a
    program gives; what the environment says is set at once, unless the owner reads that itself."""

    def __init__(self, key: str, owner: Any, attribute: str, convert: Callable[[Any], Any],
                 reads_environment: bool = True) -> None:
        self.register(key)
        self.owner = owner
        self.attribute = attribute
        self.convert = convert
        given = os.getenv(key) if reads_environment else None
        if given:
            self.value = self.checked(given)

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.attribute)

    @value.setter
    def value(self, value: Any) -> None:
        setattr(self.owner, self.attribute, value)

    def checked(self, value: Any) -> Any:
        return self.convert(value)


class Uninterrupted:
    """A block that Ctrl-C does not break up: what it interrupts is interrupted at the end of the block."""

    def __enter__(self) -> None:
        self.came: list[tuple[Any, Any]] = []
        self.handler: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self.handler = handler
                set_handler(signal.SIGINT, self.note)

    def note(self, number: int, frame: Any) -> None:
        self.came.append((number, frame))

    def __exit__(self, *exc: object) -> None:
        if self.handler is not None:
            set_handler(signal.SIGINT, self.handler)
            if self.came:
                self.handler(*self.came[0])


def complete(step: Callable[[], None]) -> None:
    """Call `step`, which may be called again after an exception (Ctrl-C) broke it up, and then is, as
    `Uninterrupted`. That costs nothing where nothing happens. A change of handlers is two calls of the
    system, after which the processor runs Python slower for a while: those two made `(x + 1).realize()` take
    180 us in place of 110."""
    try:
        step()
    except BaseException:
        with Uninterrupted():
            step()
        raise


class LostInterrupts:
    """Ctrl-C where a finaliser runs (nodes and buffers die by thousands while a model is loaded): Python only
    prints what is raised there and goes on, so it is raised again a moment later. Other exceptions are left
    to what was `sys.unraisablehook` before."""

    def __init__(self) -> None:
        self.before = sys.unraisablehook

    def __call__(self, unraisable: Any) -> None:
        handler = signal.getsignal(signal.SIGINT)
        is_main = threading.get_ident() == threading.main_thread().ident
        if not issubclass(unraisable.exc_type, KeyboardInterrupt) or not callable(handler) or not is_main:
            self.before(unraisable)
        elif not sys.is_finalizing():
            threading.Thread(target=InterruptAgain(handler).repeat, daemon=True).start()


class InterruptAgain:
    """A handler of Ctrl-C that is called once more: then what it was before is, which it calls."""

    LATER = 0.01
    """Seconds, in which a finaliser is done."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        set_handler(signal.SIGINT, self)

    def __call__(self, number: int, frame: Any) -> None:
        set_handler(signal.SIGINT, self.handler)
        self.handler(number, frame)

    def repeat(self) -> None:
        """Interrupt the main thread, and what it waits for, until it hears it: a signal that comes just
        before it begins to wait does not end that."""
        main, seconds = threading.main_thread().ident, self.LATER
        time.sleep(seconds)
        while signal.getsignal(signal.SIGINT) is self:
            if main is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signal.SIGINT)
            else:
                interrupt_main()
            time.sleep(seconds)


sys.unraisablehook = LostInterrupts()


class Undo:
    """Values changed for a while in blocks that need not end in the order in which they began, as blocks of
    several threads do not: a block that ends before one that began later leaves it what to go back to."""

    def __init__(self, read: Callable[[str], Any], write: Callable[[str, Any], None]) -> None:
        self.read = read
        self.write = write
        self.open: list[dict[str, Any]] = []
        """for each block that has not ended: what its names stood for before"""
        self.lock = threading.Lock()

    def begin(self, values: dict[str, Any]) -> dict[str, Any]:
        """Change values; returns what `end` takes."""
        with self.lock:
            before = {name: self.read(name) for name in values}
            self.open.append(before)
            for name, value in values.items():
                self.write(name, value)
        return before

    def end(self, before: dict[str, Any]) -> None:
        """Go back to what was before `begin`, for names that no later block changed."""
        with self.lock:
            at = next(i for i, known in enumerate(self.open) if known is before)
            del self.open[at]
            for name, value in before.items():
                later = next((known for known in self.open[at:] if name in known), None)
                if later is None:
                    self.write(name, value)
                else:
                    later[name] = value


class Context(contextlib.ContextDecorator):
    """Settings changed within a `with` block: `with Context(DEBUG=4, NOOPT=1): ...`. They are those of the
    whole process: other threads see them too."""

    undo: ClassVar[Undo] = Undo(lambda key: ContextVar.registry[key].value,
                                lambda key, value: setattr(ContextVar.registry[key], "value", value))

    def __init__(self, **settings: Any) -> None:
        unknown = [k for k in settings if k not in ContextVar.registry]
        if unknown:
            raise ValueError(f"no setting named {', '.join(unknown)}; "
                             f"there are {', '.join(ContextVar.registry)}")
        self.settings = {k: ContextVar.registry[k].checked(value) for k, value in settings.items()}
        self.saved: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self.saved.append(self.undo.begin(self.settings))

    def __exit__(self, *exc: object) -> None:
        self.undo.end(self.saved.pop())


DEBUG = ContextVar("DEBUG", 0)
"""0 silent; 1 devices; 2 a line a kernel; 3 plans; 4 code; 5 loop nests; 6 linear programs; 7 assembly."""
NOOPT = ContextVar("NOOPT", 0)
"""1 runs the plain loops, with no plan applied."""
DYNAMIC_SHAPES = ContextVar("DYNAMIC_SHAPES", 1)
"""0 makes kernels for every size, also of what came in several sizes before (schedule/changing_sizes.py)."""
JIT = ContextVar("JIT", 1)
"""0 makes TinyJit call the plain function every time."""
BEAM = ContextVar("BEAM", 0)
"""n measures plans for each kernel, n at a time, and keeps the fastest (codegen/opt/search.py)."""
IGNORE_BEAM_CACHE = ContextVar("IGNORE_BEAM_CACHE", 0)
"""1 makes BEAM search again for kernels of which an earlier search is kept."""
BEAM_SECONDS = ContextVar("BEAM_SECONDS", 10.0)
"""How long BEAM measures plans for one kernel, at most."""
WINO = ContextVar("WINO", 0)
"""Accepted for scripts that set it; convolutions here never use the Winograd transform."""
ALLOW_TF32 = ContextVar("ALLOW_TF32", 0)
"""1 lets matrix units round the factors of float32 products to 10 bits of fraction, as PyTorch's
`torch.backends.cuda.matmul.allow_tf32`."""
NO_COLOR = ContextVar("NO_COLOR", 0)
"""1 leaves colours out of what is printed (`colored`)."""
CHECK = ContextVar("CHECK", 0)
"""1 checks every stage's graph against its grammar (graph/spec.py). The tests always do."""
VIZ = ContextVar("VIZ", 0)
"""1 records what the program does, and writes a page of it at the end (tinygrad/viz)."""
PROFILE = ContextVar("PROFILE", 0)
"""1 records when what runs: a trace for Perfetto, and tables at the end (tinygrad/viz)."""
CACHELEVEL = ContextVar("CACHELEVEL", 2)
"""What is kept on disk: 0 nothing; 1 machine code (store.py); 2 also kernels as they were written
(codegen/kernel_cache.py) and schedules (schedule/persistent_cache.py)."""
CI = os.getenv("CI", "") != ""


class Counters:
    """What has run and what is allocated since the start or the last `reset`."""

    __slots__ = ("global_mem", "global_ops", "kernel_count", "mem_peak", "mem_used", "time_sum_s")
    global_ops: int
    """arithmetic operations"""
    global_mem: int
    """bytes read and written"""
    time_sum_s: float
    """seconds in kernels"""
    kernel_count: int
    mem_used: int
    """bytes that live buffers hold now"""
    mem_peak: int
    """the highest `mem_used`"""

    def __init__(self) -> None:
        self.mem_used = self.mem_peak = 0
        self.reset()

    def reset(self) -> None:
        """Zero the counters of work done; `mem_used` stays true."""
        self.global_ops = self.global_mem = self.kernel_count = 0
        self.time_sum_s = 0.0


GlobalCounters = Counters()
"""those of this process: an object's numbers change in a third of the time that a class's take"""


def prod(x: Iterable[Any]) -> Any:
    """The product of the items, 1 if there are none."""
    return math.prod(x)


def flatten(nested: Iterable[Iterable[T]]) -> list[T]:
    """The items of all lists in one list."""
    return [item for sub in nested for item in sub]


def dedup(x: Iterable[T]) -> list[T]:
    """The items without repeats, in order of first appearance."""
    return list(dict.fromkeys(x))


def reachable(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """These, and all that one gets to from them, each once and in the order of a walk.

    >>> list(reachable([6], lambda n: [d for d in range(1, n) if n % d == 0]))
    [6, 3, 1, 2]
    """
    found: dict[T, None] = {}
    stack = list(starts)
    while stack:
        item = stack.pop()
        if item not in found:
            found[item] = None
            stack.extend(following(item))
    return found


def all_same(items: Sequence[T]) -> bool:
    """Whether all items are equal; True of none."""
    return all(x == items[0] for x in items)


def argsort(x: Sequence[Any]) -> tuple[int, ...]:
    """The order that sorts `x`; for a permutation, its inverse."""
    return tuple(sorted(range(len(x)), key=x.__getitem__))


def ceildiv(num: int, den: int) -> int:
    """The quotient, rounded up."""
    return -(-num // den)


def round_up(num: int, multiple: int) -> int:
    """The next multiple of `multiple`; `num` itself where it is one."""
    return -(-num // multiple) * multiple


def make_tuple(x: T | Sequence[T], count: int) -> tuple[T, ...]:
    """`count` copies of an item; a sequence as it is."""
    if isinstance(x, (list, tuple)):
        return tuple(x)
    return (x,) * count  # type: ignore[return-value]  # a lone T; Sequence was excluded just above


def partition(items: Iterable[T], condition: Callable[[T], Any]) -> tuple[list[T], list[T]]:
    """(the items for which `condition` holds, the others)."""
    yes: list[T] = []
    no: list[T] = []
    for item in items:
        (yes if condition(item) else no).append(item)
    return yes, no


def unwrap(x: T | None) -> T:
    """`x`, which is not None. Raises ValueError where it is."""
    if x is None:
        raise ValueError("a value that must be there is None")
    return x


def temp(name: str) -> str:
    """A path named `name` in the folder for temporary files."""
    return os.path.join(tempfile.gettempdir(), name)


def numbered(source: str) -> str:
    """The lines of a kernel with their numbers, for errors that speak of them."""
    return "\n".join(f"{i + 1:5d}  {line}" for i, line in enumerate(source.splitlines()))


COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def colored(text: str, color: str | None, background: bool = False) -> str:
    """`text` in a terminal colour; an upper-case name is the bright form."""
    if color is None or NO_COLOR:
        return text
    code = (10 if background else 0) + (60 if color.isupper() else 0) + 30 + COLORS.index(color.lower())
    return f"\x1b[{code}m{text}\x1b[0m"


class Timing(contextlib.ContextDecorator):
    """Prints how long the block took: `with Timing("sum: "): ...`."""

    def __init__(self, prefix: str = "", on_exit: Callable[[int], str] | None = None,
                 enabled: bool = True) -> None:
        self.prefix = prefix
        self.on_exit = on_exit
        self.enabled = enabled

    def __enter__(self) -> None:
        self.start = time.perf_counter_ns()

    def __exit__(self, *exc: object) -> None:
        self.et = time.perf_counter_ns() - self.start
        if self.enabled:
            print(f"{self.prefix}{self.et * 1e-6:6.2f} ms" + (self.on_exit(self.et) if self.on_exit else ""))


class Profiling(contextlib.ContextDecorator):
    """Profiles the Python code of the block and prints its `frac` most expensive functions."""

    def __init__(self, enabled: bool = True, sort: str = "cumtime", frac: float = 0.2,
                 fn: str | None = None) -> None:
        self.enabled = enabled
        self.sort = sort
        self.frac = frac
        self.fn = fn

    def __enter__(self) -> None:
        import cProfile

        self.profile = cProfile.Profile()
        if self.enabled:
            self.profile.enable()

    def __exit__(self, *exc: object) -> None:
        import pstats

        if not self.enabled:
            return
        self.profile.disable()
        if self.fn is not None:
            self.profile.dump_stats(self.fn)
        pstats.Stats(self.profile).strip_dirs().sort_stats(self.sort).print_stats(self.frac)


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Yields a function that returns the seconds since the block began."""
    start = time.perf_counter()
    yield lambda: time.perf_counter() - start


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps Python's garbage collector from running in the block, if it would. What makes very many objects
    without circles, such as graphs, has nothing to give it, and it would walk them again and again."""
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()


def cache_dir() -> Path:
    """The user's folder for files that can be had again: XDG_CACHE_HOME or the system's own."""
    if root := os.getenv("XDG_CACHE_HOME"):
        return Path(root) / "tinygrad"
    if sys.platform == "win32":
        return Path(os.getenv("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "tinygrad"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tinygrad"
    return Path.home() / ".cache" / "tinygrad"


def shows_progress() -> bool:
    """Whether stderr is a terminal; a program that was started with it closed has none."""
    return sys.stderr is not None and sys.stderr.isatty()


def open_streams() -> None:
    """For a program that was started with some of its three streams closed: what it reads is at its end, what
    it writes goes nowhere. Python has None in their places."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as the program


def drop_output() -> None:
    """What else is written to stdout goes nowhere: whoever read it has gone (BrokenPipeError)."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
