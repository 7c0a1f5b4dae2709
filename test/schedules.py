"""What tests of schedules share: kernels counted, and run in their order."""
from __future__ import annotations

from collections.abc import Callable

from tinygrad import Tensor
from tinygrad.graph.ops import Ops
from tinygrad.helpers import GlobalCounters
from tinygrad.schedule.items import ScheduleItem


def kernels(items: list[ScheduleItem]) -> list[ScheduleItem]:
    return [i for i in items if i.ast.op is not Ops.COPY]


def count(*results: Tensor) -> int:
    return len(kernels(results[0].schedule(*results[1:])))


def counted(run: Callable[[], object]) -> int:
    """The kernels that run while `run` does."""
    before = GlobalCounters.kernel_count
    run()
    return GlobalCounters.kernel_count - before
