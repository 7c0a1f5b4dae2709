"""All rows, by family."""

from __future__ import annotations

from . import (
        algebra,
        arrangements,
        elementwise,
        functional,
        indexing,
        losses,
        movement,
        networks,
        pytorch_names,
        reductions,
        signals,
        special,
        statistics,
)

ROWS = [*elementwise.ROWS, *movement.ROWS, *reductions.ROWS, *indexing.ROWS, *networks.ROWS, *losses.ROWS,
        *pytorch_names.ROWS, *functional.ROWS, *statistics.ROWS, *arrangements.ROWS,
        *signals.ROWS, *algebra.ROWS, *special.ROWS]
