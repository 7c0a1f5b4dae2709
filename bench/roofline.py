"""The roofline of Williams, Waterman and Patterson (2009): what the machine allows, and what was reached."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinygrad.runtime.limits import Limits


@dataclass(frozen=True)
class Point:
    """Something measured."""

    label: str
    intensity: float
    """operations for each byte that must move"""
    gflops: float


def point(label: str, operations: float, moved_bytes: float, seconds: float) -> Point | None:
    """Where something that took `seconds` lies; None if it does no arithmetic, which has no place there."""
    if not operations:
        return None
    return Point(label, operations / moved_bytes, operations / seconds * 1e-9)


def draw(points: list[Point], limits: Limits, path: Path) -> None:
    """Write the picture: a roof for reading and one for copying, under the peak of arithmetic."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("--roofline needs matplotlib: pip install 'tinygrad[examples]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 7), layout="constrained")
    intensities = [p.intensity for p in points] or [1.0]
    left, right = min(0.05, min(intensities) / 2), max(1000.0, max(intensities) * 2)
    for name, rate, style in (("read", limits.read_gbs, "-"), ("copied", limits.copy_gbs, "--")):
        ridge = limits.gflops / rate
        axes.plot([left, ridge], [left * rate, limits.gflops], style, color="tab:blue",
                  label=f"{rate:.0f} GB/s {name}")
    axes.plot([limits.gflops / max(limits.read_gbs, limits.copy_gbs), right], [limits.gflops] * 2,
              color="tab:red", label=f"{limits.gflops:.0f} GFLOP/s, {limits.threads} threads")
    axes.scatter(intensities if points else [], [p.gflops for p in points], s=18, color="black", zorder=3)
    for p in points:
        axes.annotate(p.label, (p.intensity, p.gflops), textcoords="offset points", xytext=(4, 3), fontsize=6)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="GFLOP/s", title="Roofline")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
