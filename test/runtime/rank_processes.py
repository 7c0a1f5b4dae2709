"""Programs in several processes, as tests start them."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
needs_ranks = pytest.mark.skipif(MPIRUN is None, reason="ranks need mpirun, of the extra mpi")

BEGIN = """
import os, sys, time
import numpy as np
from tinygrad import Device, Tensor, TinyJit, distributed, dtypes, nn
from tinygrad.nn import optim, state
world = distributed.init()
rng = np.random.default_rng(0)
"""


def start_ranks(count: int, arguments: Sequence[str], seconds: float = 180, **environment: str
                ) -> subprocess.CompletedProcess[str]:
    """Python with these arguments in so many processes, each of one thread."""
    here = Path(__file__).parents[1]
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "THREADS": "1",
                 "PYTHONPATH": f"{here.parent}{os.pathsep}{here}", **environment}
    assert MPIRUN is not None
    return subprocess.run([MPIRUN, "--oversubscribe", "-n", str(count), sys.executable, *arguments],
                          capture_output=True, text=True, timeout=seconds, env={**os.environ, **variables})


def run_ranks(count: int, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in so many processes; ends within minutes, on a busy machine too."""
    return start_ranks(count, ["-c", BEGIN + textwrap.dedent(program)], **environment)
