"""Settings for all tests: stages are checked against their grammars, and none is left out because another run
kept what it gives; CI draws the same examples each time."""
import gc
import os
import re
import sys
from collections.abc import Generator

import pytest
import z3  # noqa: F401  # before an OpenCL driver loads the libz3 of its LLVM, which would be called instead
from hypothesis import settings

os.environ["CHECK"] = "1"
os.environ["CACHELEVEL"] = "1"
settings.register_profile("ci", derandomize=True, deadline=None)
if os.getenv("CI"):
    settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """CI prints the slowest twenty tests of every run. Files run in the order in which they are collected,
    which xdist would change. The processes that tests start find the library compiled, also where the
    environment says that Python shall write nothing beside its sources."""
    cache = getattr(config, "cache", None)  # none with `-p no:cacheprovider`
    if cache is not None and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir("bytecode"))
    if os.getenv("CI") and config.option.durations is None:
        config.option.durations = 20
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Interrupts first: they hide the tensors that there are, of which none may go meanwhile, as those of
    earlier tests do."""
    items.sort(key=lambda item: item.path.name != "test_interrupts.py")


@pytest.fixture(autouse=True)
def _arrays_from_the_start() -> None:
    import arrays

    arrays.restart()


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """What a test computes by shall not depend on which tests its process ran before: on sizes that they had,
    and on when the next look for graphs to let go is due."""
    from tinygrad.helpers import GlobalCounters
    from tinygrad.schedule.changing_sizes import ChangingSizes
    from tinygrad.schedule.persistent_cache import schedules
    from tinygrad.tensor import history

    for of_form in schedules.sizes.forms.values():
        of_form.own |= of_form.known
    schedules.sizes = ChangingSizes()
    history.LOOKS.computations = history.LEAST_COMPUTATIONS
    history.LOOKS.bytes = GlobalCounters.mem_used + history.LEAST_BYTES


@pytest.fixture(autouse=True, scope="session")
def _forgets_often() -> None:
    """With FORGET=1 every computation looks for graphs that can be let go, which others do one time in a
    thousand: no result may depend on when."""
    if os.getenv("FORGET"):
        from tinygrad.tensor import history

        history.LEAST_COMPUTATIONS, history.NODES_A_COMPUTATION = 0, sys.maxsize


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what only the CPU has, or of its words: they run there, whatever DEV names, and so do the
    processes that they start."""
    from tinygrad import Device

    monkeypatch.setenv("DEV", "CPU")
    monkeypatch.setattr(Device, "_default", "CPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Where DEV names a device that lacks a dtype, tests that it refuses for that reason are skipped."""
    try:
        return (yield)
    except ValueError as error:
        lacking = re.search(r"device has no \w+(?=; CPU, CPU:C and PYTHON do)", str(error))
        if os.getenv("DEV") and lacking:
            _refused.append(lacking[0])
            pytest.skip(f"{os.environ['DEV']}: this {lacking[0]}")
        raise


_refused: list[str] = []


def pytest_runtest_setup() -> None:
    """A write that a device refused in the test before shall not be pending in this one: pytest keeps that
    test's error, and so its tensors, for debuggers."""
    if _refused:
        _refused.clear()
        sys.last_value = sys.last_traceback = None
        gc.collect()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With NO_SKIPS=1 a run in which a test was skipped has failed: it was to have all that tests ask for."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if os.getenv("NO_SKIPS") and skipped and not hasattr(session.config, "workerinput"):
        reporter.write_line(f"{len(skipped)} tests were skipped; with NO_SKIPS=1 none may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
