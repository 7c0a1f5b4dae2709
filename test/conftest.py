"""Settings for all tests: stages are checked against their grammars, and none is left out because another run
kept what it gives; CI draws the same examples each time."""
import os

import pytest
from hypothesis import settings

os.environ["CHECK"] = "1"
os.environ["CACHELEVEL"] = "1"
settings.register_profile("ci", derandomize=True, deadline=None)
if os.getenv("CI"):
    settings.load_profile("ci")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what only the CPU has, or of its words: they run there, whatever DEV names."""
    from tinygrad import Device

    monkeypatch.setattr(Device, "_default", "CPU")
