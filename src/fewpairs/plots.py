"""Plots: arrays in, a matplotlib figure out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_conditionals"]

TRUE_COLOUR, LEARNT_COLOUR, QUIET = "#1b6ca8", "#d1495b", "#d0d0d0"


def plot_conditionals(
    points: np.ndarray, truth: np.ndarray, learnt: Mapping[str, np.ndarray], background: np.ndarray
) -> "Figure":
    """Shows p(y|x) at a few x's: a row for each x, the true draws in the first column, each model's in the next ones.

    Arguments:
        points: The x's, (rows, dim_x).
        truth: True draws, (n_samples, rows, 2).
        learnt: Each model's draws, of that shape, by the model's name.
        background: All known y's, (n, 2), to see where draws could be.
    """
    from matplotlib.figure import Figure

    columns = {"true p(y|x)": truth, **learnt}
    figure = Figure(figsize=(2.6 * len(columns), 2.6 * len(points)), layout="constrained")
    axes = figure.subplots(len(points), len(columns), sharex=True, sharey=True, squeeze=False)
    low, high = background.min(axis=0), background.max(axis=0)
    margin = 0.15 * (high - low)
    for row, x in enumerate(points):
        for column, (name, draws) in enumerate(columns.items()):
            ax = axes[row, column]
            ax.scatter(*background.T, s=2, color=QUIET, linewidths=0)
            if column > 0:
                ax.scatter(*draws[:, row].T, s=5, color=LEARNT_COLOUR, alpha=0.5, linewidths=0)
            else:
                ax.scatter(*draws[:, row].T, s=5, color=TRUE_COLOUR, alpha=0.5, linewidths=0)
            ax.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
            ax.set(xticks=[], yticks=[], aspect="equal")
            if row == 0:
                ax.set_title(name)
            if column == 0:
                ax.set_ylabel("x = (" + ", ".join(f"{value:g}" for value in x) + ")")
    return figure
