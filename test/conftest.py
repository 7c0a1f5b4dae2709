"""Settings for all tests: stages are checked against their grammars; CI draws the same examples each time."""
import os

from hypothesis import settings

os.environ["CHECK"] = "1"
settings.register_profile("ci", derandomize=True, deadline=None)
if os.getenv("CI"):
    settings.load_profile("ci")
