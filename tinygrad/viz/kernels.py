"""What is known of one kernel: each pass with its graphs and rules, its stages, its code, its plans.

In: the compiler's calls of `observer.py` while it writes a kernel. Out: `KernelRecord`s, which hold graphs
(immutable, over PARAMs, so no memory); `graphs.py` writes them down.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinygrad.graph.passes import Pass


@dataclass
class SearchRecord:
    """What BEAM tried: (plan, seconds, what became of it), the fastest first."""

    rows: Sequence[tuple[str, float | None, str]]
    chosen: str
    default_seconds: float
    seconds: float


@dataclass(eq=False)
class KernelRecord:
    """A kernel."""

    number: int
    ast: Any
    device: str
    name: str = ""
    kernel: Any = None
    """the `CompiledKernel`"""
    code: Any = None
    stages: Any = None
    notes: str = ""
    passes: list[Pass] = field(default_factory=list)
    search: SearchRecord | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """what making it took, by stage"""

    def spent(self, stage: str, seconds: float) -> None:
        """Add time to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
