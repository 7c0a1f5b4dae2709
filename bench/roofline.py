"""The roofline of Williams, Waterman and Patterson (2009): what the machine allows, and what was reached."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinygrad.device.limits import Limits

LITTLE_WORK = 1e6
"""Operations of a few microseconds: what takes longer for so little is not bound by the machine."""


@dataclass(frozen=True)
class Point:
    """Something measured."""

    label: str
    intensity: float
    """operations for each byte that must move"""
    gflops: float


def point(label: str, operations: float, moved_bytes: float, seconds: float) -> Point | None:
    """Where something that took `seconds` lies; None if it does so little arithmetic that it measures
    overhead, which has no place there."""
    if operations < LITTLE_WORK:
        return None
    return Point(label, operations / moved_bytes, operations / seconds * 1e-9)


def draw(points: list[Point], limits: Limits, path: Path) -> None:
    """Write the picture: a roof for reading and one for copying, under the peak of arithmetic. Points have
    numbers, explained beside it."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("--roofline needs matplotlib: pip install 'tinygrad[examples]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(13, 7), layout="constrained")
    intensities = [p.intensity for p in points] or [1.0]
    left, right = min(0.05, min(intensities) / 2), max(1000.0, max(intensities) * 2)
    for name, rate, style in (("read", limits.read_gbs, "-"), ("copied", limits.copy_gbs, "--")):
        ridge = limits.gflops / rate
        axes.plot([left, ridge], [left * rate, limits.gflops], style, color="tab:blue",
                  label=f"{rate:.0f} GB/s {name}")
    axes.plot([limits.gflops / max(limits.read_gbs, limits.copy_gbs), right], [limits.gflops] * 2,
              color="tab:red", label=f"{limits.gflops:.0f} GFLOP/s, {limits.threads} threads")
    axes.scatter(intensities if points else [], [p.gflops for p in points], s=18, color="black", zorder=3)
    for number, p in enumerate(points, 1):
        axes.annotate(str(number), (p.intensity, p.gflops), textcoords="offset points", xytext=(4, 3),
                      fontsize=7)
    names = "\n".join(f"{number:2}  {p.label}" for number, p in enumerate(points, 1))
    axes.text(1.02, 1.0, names, transform=axes.transAxes, fontsize=7, verticalalignment="top",
              family="monospace")
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="GFLOP/s", title="Roofline")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
