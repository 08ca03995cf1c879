"""Comparisons: what the tables of every study say of methods that were fitted to the same draws of the data."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["gain_over", "is_behind", "mean_and_spread", "tied_for_best"]


def mean_and_spread(values: Sequence[float]) -> str:
    """“mean ± standard deviation”, with digits for its size; a dash if there is nothing."""
    if len(values) == 0:
        return "–"
    mean = float(np.mean(values))
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2 if abs(mean) >= 1 else 3 if abs(mean) >= 0.1 else 4
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


def gain_over(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """By how much values are above others on average, draw by draw, and the standard error; NaN where draws are missing, or too
    few for an error."""
    if len(values) == 0 or len(values) != len(others):
        return math.nan, math.nan
    gain = np.asarray(values) - np.asarray(others)
    return float(gain.mean()), float(gain.std(ddof=1) / math.sqrt(len(gain))) if len(gain) > 1 else math.nan


def is_behind(values: Sequence[float], best: Sequence[float]) -> bool:
    """Whether values (lower is better) are above the best's by more than two standard errors of the difference, draw by draw."""
    loss = np.asarray(values) - np.asarray(best)
    if len(loss) < 2:
        return bool(loss.mean() > 0)
    return bool(loss.mean() > 2 * loss.std(ddof=1) / math.sqrt(len(loss)))


def tied_for_best(values: Mapping[str, Sequence[float]]) -> list[str]:
    """The names whose values are least on average, or not behind those by two standard errors; all over the same draws."""
    if not values:
        return []
    top = min(values, key=lambda name: float(np.mean(values[name])))
    rest = [name for name in values if name != top and len(values[name]) == len(values[top])]
    return [top, *(name for name in rest if not is_behind(values[name], values[top]))]
