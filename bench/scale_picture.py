"""What ranks make of a training step, drawn: `python -m bench scale --ranks 2 4 --scaling FILE`.

In: the steps and collectives that `bench/scale.py` measured. Out: a PNG with, for each network, what a rank
of many does of what one alone does by the model, with a whole batch for each rank and with one batch for all;
and what was measured.
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.scale import NETWORKS, PREDICTED, Found, Network


def draw(path: Path, network: Network, steps: Mapping[str, Mapping[int, Found]], machine: str) -> None:
    """Write the picture. `steps`: by network, by number of ranks."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("--scaling needs matplotlib: pip install 'tinygrad[examples]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(steps), figsize=(5 * len(steps), 3.6), sharey=True, squeeze=False)
    counts = [1 << i for i in range(max(PREDICTED).bit_length())]
    for ax, (name, by_count) in zip(axes[0], steps.items(), strict=True):
        most, alone = by_count[max(by_count)], by_count[1]["tinygrad"]
        ax.plot(counts, [alone / network.step(alone, most, n) for n in counts],
                label="model: a whole batch for each rank")
        ax.plot(counts, [alone / n / network.step(alone / n, most, n) for n in counts], "--",
                label="model: one batch for all ranks")
        measured = [n for n in by_count if n > 1]
        ax.plot(measured, [alone / n / by_count[n]["tinygrad"] for n in measured], "o",
                label="measured: one batch for all ranks")
        for n in PREDICTED:
            share = alone / network.step(alone, most, n)
            ax.annotate(f"{share:.0%}", (n, share), textcoords="offset points", xytext=(0, 5), ha="center")
        ax.set_xscale("log", base=2)
        ax.set_ylim(0, 1.1)
        ax.set_xlabel("ranks")
        ax.set_title(NETWORKS[name])
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("share of one rank's speed")
    axes[0][0].legend(loc="lower left", fontsize=8)
    constants = f"{network.overhead * 1e6:.0f} us an exchange, {network.latency * 1e6:.1f} us a message"
    figure.suptitle(f"data parallel; {constants}, {1e-9 / network.seconds:.2f} GB/s ({machine})", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
