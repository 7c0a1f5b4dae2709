"""What is measured: each workload once, with the code that a user of each library would write for it.

One module a family; `base` says what a workload is. To add one, write a function that returns a `Workload`
and list it in its family's `WORKLOADS`; a library without a setup shows `-`.
"""
from __future__ import annotations

from bench.workloads import (
    attention,
    conv,
    devices,
    eager_steps,
    gather,
    gemm,
    linalg,
    memory,
    models,
    odd,
    overhead,
)
from bench.workloads.base import BEFORE as BEFORE
from bench.workloads.base import JITTED as JITTED
from bench.workloads.base import OURS as OURS
from bench.workloads.base import OWN as OWN
from bench.workloads.base import PUBLIC as PUBLIC
from bench.workloads.base import Step as Step
from bench.workloads.base import Workload as Workload

FAMILIES: dict[str, tuple[Workload, ...]] = {
    "gemm": gemm.WORKLOADS,
    "conv": conv.WORKLOADS,
    "memory": memory.WORKLOADS,
    "gather": gather.WORKLOADS,
    "linalg": linalg.WORKLOADS,
    "attention": attention.WORKLOADS,
    "models": models.WORKLOADS,
    "odd": odd.WORKLOADS,
    "overhead": overhead.WORKLOADS,
    "steps": eager_steps.WORKLOADS,
    "devices": devices.WORKLOADS,
}
WORKLOADS: tuple[Workload, ...] = tuple(workload for family in FAMILIES.values() for workload in family)
