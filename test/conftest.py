"""Settings for all tests: every stage's graph is checked against its grammar."""
import os

os.environ["CHECK"] = "1"
