"""Plots: arrays in, a matplotlib figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_conditionals", "plot_curves", "plot_heatmaps", "plot_image_rows", "plot_mappings"]

TRUE_COLOUR, LEARNT_COLOUR, QUIET = "#1b6ca8", "#d1495b", "#d0d0d0"


def plot_conditionals(
    points: np.ndarray, truth: np.ndarray, learnt: Mapping[str, np.ndarray], background: np.ndarray
) -> Figure:
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


def plot_image_rows(rows: Mapping[str, np.ndarray]) -> Figure:
    """Rows of pictures with a name each: images are (n, height, width, 3) in uint8."""
    from matplotlib.figure import Figure

    n_columns = max(len(images) for images in rows.values())
    figure = Figure(figsize=(0.9 * n_columns + 1.2, 0.95 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), n_columns, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for ax in line:
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        for ax, image in zip(line, images, strict=False):
            ax.imshow(image)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def plot_mappings(
    points: np.ndarray,
    *,
    pairs: tuple[np.ndarray, np.ndarray],
    source: np.ndarray,
    target: np.ndarray,
    clouds: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> Figure:
    """The paper's grid of mappings in the plane: the data in two panels, then one panel for the truth and each model.

    Arguments:
        points: A few x's at which p(y|x) is shown, (k, 2).
        pairs: Paired x's and y's.
        source: Unpaired x's.
        target: Unpaired y's.
        clouds: By name, the y's drawn for many x's, (n, 2), and those drawn at the points, (n_samples, k, 2).
    """
    from matplotlib.figure import Figure

    n_columns = 4
    n_rows = -(-(len(clouds) + 2) // n_columns)
    figure = Figure(figsize=(3.1 * n_columns, 3.3 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    axes[0].scatter(*source.T, s=4, color=TRUE_COLOUR, alpha=0.4, linewidths=0, label="x")
    axes[0].scatter(*target.T, s=4, color=LEARNT_COLOUR, alpha=0.4, linewidths=0, label="y")
    axes[0].set_title("unpaired data")
    axes[0].legend(loc="upper right")
    _draw_lines(axes[1], *pairs, "grey")
    axes[1].scatter(*pairs[0].T, s=6, color=TRUE_COLOUR, linewidths=0)
    axes[1].scatter(*pairs[1].T, s=6, color=LEARNT_COLOUR, linewidths=0)
    axes[1].set_title("paired data")
    for ax, (name, (cloud, draws)) in zip(axes[2:], clouds.items(), strict=False):
        ax.scatter(*cloud.T, s=3, color=QUIET, linewidths=0)
        for place, x in enumerate(points):
            _draw_lines(ax, np.broadcast_to(x, draws[:, place].shape), draws[:, place], TRUE_COLOUR)
            ax.scatter(*draws[:, place].T, s=6, color=LEARNT_COLOUR, linewidths=0, zorder=3)
        ax.scatter(*points.T, s=30, color=TRUE_COLOUR, marker="s", zorder=4)
        ax.set_title(name, fontsize="medium")
    both = np.concatenate([source, target, pairs[0], pairs[1], points])
    low, high = both.min(axis=0) - 0.3, both.max(axis=0) + 0.3
    for ax in axes:
        ax.set(xticks=[], yticks=[], aspect="equal", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    for ax in axes[len(clouds) + 2 :]:
        ax.set_axis_off()
    return figure


def plot_curves(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Sequence[float]]]]],
    xlabel: str,
    *,
    is_log: bool = False,
    top: float | None = None,
    bottom: float | None = None,
) -> Figure:
    """A panel for each title, a curve for each name: at every x the mean of its values, and a band from least to most.

    Arguments:
        panels: By title, by name: places on the x axis and the values there.
        xlabel: What the x axis shows.
        is_log: Whether it is logarithmic.
        top, bottom: The frame; what lies beyond is cut off.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, points in curves.items():
            x = [place for place, _ in points]
            mean, least, most = zip(*((np.mean(values), min(values), max(values)) for _, values in points), strict=True)
            (line,) = ax.plot(x, mean, marker="o", markersize=3, label=name)
            ax.fill_between(x, least, most, color=line.get_color(), alpha=0.15, linewidth=0)
        if is_log:
            ax.set_xscale("log")
        drawn = [value for points in curves.values() for _, values in points for value in values if np.isfinite(value)]
        high, low = max(drawn, default=1.0), min(drawn, default=0.0)
        margin = 0.05 * (high - low) + 1e-9
        ax.set_ylim(
            low - margin if bottom is None else max(low - margin, bottom),
            high + margin if top is None else min(high + margin, top),
        )
        ax.set(xlabel=xlabel, title=title)
        ax.grid(alpha=0.3)
        ax.legend()
    return figure


def plot_heatmaps(
    tables: Mapping[str, np.ndarray],
    rows: Sequence[int],
    columns: Sequence[int],
    row_name: str,
    column_name: str,
    *,
    form: str = ".2g",
    is_one_scale: bool = False,
) -> Figure:
    """A heatmap for each title, with its numbers written in (`form`); on one scale, a colour means the same in all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(3.6, 0.7 * len(columns)) * len(tables), 3.6), layout="constrained")
    everything = np.concatenate([table[np.isfinite(table)] for table in tables.values()])
    for ax, (title, table) in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
        known = everything if is_one_scale else table[np.isfinite(table)]
        least, most = (known.min(), known.max()) if len(known) else (0.0, 1.0)
        ax.imshow(table, cmap="Blues", aspect="auto", vmin=least, vmax=most)
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if value > (least + most) / 2 else "black"
            text = f"{value:{form}}" if np.isfinite(value) else "–"
            ax.text(column, row, text, ha="center", va="center", color=colour, fontsize="small")
        ax.set_xticks(range(len(columns)), [str(value) for value in columns])
        ax.set_yticks(range(len(rows)), [str(value) for value in rows])
        ax.set(title=title, xlabel=column_name, ylabel=row_name)
    return figure


def _draw_lines(ax: Axes, starts: np.ndarray, ends: np.ndarray, colour: str) -> None:
    from matplotlib.collections import LineCollection

    ax.add_collection(LineCollection(list(np.stack([starts, ends], axis=1)), colors=colour, linewidths=0.5, alpha=0.4))
