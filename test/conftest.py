"""Settings for all tests: stages are checked against their grammars, and none is left out because another run
kept what it gives; CI draws the same examples each time."""
import os

from hypothesis import settings

os.environ["CHECK"] = "1"
os.environ["CACHELEVEL"] = "1"
settings.register_profile("ci", derandomize=True, deadline=None)
if os.getenv("CI"):
    settings.load_profile("ci")
