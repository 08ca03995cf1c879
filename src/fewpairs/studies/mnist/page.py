"""The page of the study of digits: every number is read from a cell, every sentence about who is best made from them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fewpairs.report.page import Entry, Page
from fewpairs.report.plots import plot_heatmaps
from fewpairs.studies.cells import Outcomes
from fewpairs.studies.comparisons import gain_over, mean_and_spread, tied_for_best
from fewpairs.studies.mnist.fits import (
    BOUNDED,
    LEAST_TO_BEGIN_WITH,
    METHODS,
    PAPER,
    SELF_TRAINING,
    SPREADING,
    SUPERVISED,
    Grid,
    StudyPlan,
)
from fewpairs.studies.pages import HOW_KEPT, begin_page, finish_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_page"]

NETWORKS = {"mlp": "perceptron", "cnn": "convolutional network"}
MEASURES = {"accuracy": "Accuracy", "log_loss": "Log-loss, in nats", "calibration": "Expected calibration error"}
ALLOWED = 0.003  # of accuracy: less than this is no loss
Gains = dict[tuple[int, int], tuple[float, float]]  # with their standard errors, by labelled and unlabelled rows
FEW_LABELS = 200  # up to here unlabelled rows are expected to help


class _Numbers:
    """What the cells found, by grid, method, network and rows: one number a seed."""

    def __init__(self, plan: StudyPlan, outcomes: Outcomes) -> None:
        self.plan, self.outcomes = plan, outcomes

    def of(
        self, measure: str, grid: Grid, method: str, network: str, n_labelled: int, n_unlabelled: int
    ) -> list[float]:
        return list(self._by_seed(measure, grid, method, network, n_labelled, n_unlabelled).values())

    def _by_seed(self, measure: str, grid: Grid, method: str, *where: Any) -> dict[int, float]:
        fits = self.plan.of(grid, method, *where)
        return {fit.seed: self.outcomes[fit][measure] for fit in fits if fit in self.outcomes}

    def has_any(self, grid: Grid, network: str) -> bool:
        """Whether a fit of this network has been run."""
        methods = [method for method in METHODS if method != SPREADING]
        return any(self.of("accuracy", grid, method, network, *cell) for method in methods for cell in _cells(grid))

    def gains(
        self, measure: str, grid: Grid, rival: str, network: str, least_labelled: int = 0, method: str = BOUNDED
    ) -> Gains:
        """How much more of it a method has than a rival, over the seeds that both have, wherever there is such a seed."""
        found = {}
        for cell in _cells(grid):
            ours, theirs = (self._by_seed(measure, grid, one, network, *cell) for one in (method, rival))
            both = [seed for seed in ours if seed in theirs]
            if both and cell[0] >= least_labelled:
                found[cell] = gain_over([ours[seed] for seed in both], [theirs[seed] for seed in both])
        return found


def write_page(folder: Path, plan: StudyPlan, outcomes: Outcomes) -> Path:
    """Writes the page, the figures and all numbers into the folder; returns the page's path."""
    scale, numbers = plan.scale, _Numbers(plan, outcomes)
    page = begin_page("Digits with few labels", plan, outcomes)
    page.say(WHAT)
    runs = {grid: [network for network in grid.networks if numbers.has_any(grid, network)] for grid in scale.grids}
    page.tabulate(*_overview(numbers, runs))
    page.say(HOW_COUNTED, is_small=True)
    tables: list[dict[str, Any]] = []
    verdicts: dict[str, list[str]] = {}
    for grid, run in runs.items():
        if run:
            page.head(grid.dataset)
            page.say(
                f"{grid.n_seeds} seeds, each with labels and images of its own; one for the paper's loss.",
                is_small=True,
            )
        for network in run:
            name = f"{grid.dataset}-{network}".replace(" ", "-").lower()
            verdicts[name] = _verdicts(numbers, grid, network)
            page.list(verdicts[name])
            _write_network(page, numbers, grid, network, name)
            tables += _tables(numbers, grid, network)
    page.say(HOW_MEASURED, *_times(plan, outcomes), is_small=True)
    settings = f"Settings beside the defaults: {dict(scale.settings) or 'none'}; {scale.n_test:,} test images."
    how = [f"{len(plan.fits())} fits. {settings}", HOW_KEPT]
    return finish_page(page, folder, outcomes, how, verdicts=verdicts, tables=tables)


def _write_network(page: Page, numbers: _Numbers, grid: Grid, network: str, name: str) -> None:
    """The figure and the tables of one network."""
    page.show(name, _figure(numbers, grid, network), HOW_SHOWN.format(network=NETWORKS[network]))
    for measure, title in MEASURES.items():
        page.head(f"{title}, {NETWORKS[network]}, {max(grid.unlabelled):,} unlabelled rows", level=3)
        page.tabulate(*_table(numbers, grid, network, measure))


def _tables(numbers: _Numbers, grid: Grid, network: str) -> list[dict[str, Any]]:
    """All measures of one network, seed by seed."""
    return [
        {"dataset": grid.dataset, "network": network, "labelled": p, "unlabelled": q, "method": method, **found}
        for method in METHODS
        for p, q in _cells(grid)
        if (found := {one: numbers.of(one, grid, method, network, p, q) for one in MEASURES})["accuracy"]
    ]


def _times(plan: StudyPlan, outcomes: Outcomes) -> list[str]:
    """How long a fit of the default took, by where it was made."""
    seconds: dict[str, list[float]] = {}
    for fit in plan.fits():
        if fit.method == BOUNDED and fit in outcomes:
            seconds.setdefault(outcomes[fit]["made_with"], []).append(outcomes[fit]["seconds"])
    return [
        f"Made with {where}: {len(times)} fits of the default, {min(times):.0f} to {max(times):.0f} s each, several at a time."
        for where, times in sorted(seconds.items())
    ]


def _cells(grid: Grid) -> Iterator[tuple[int, int]]:
    return ((n_labelled, n_unlabelled) for n_labelled in grid.labelled for n_unlabelled in grid.unlabelled)


def _table(numbers: _Numbers, grid: Grid, network: str, measure: str) -> tuple[list[str], list[list[str | Entry]]]:
    """A row for each number of labels, a column for each method, with the most unlabelled rows."""
    lines: list[list[str | Entry]] = []
    sign = -1 if measure == "accuracy" else 1
    for n_labelled in grid.labelled:
        found = {
            method: values
            for method in METHODS
            if (values := numbers.of(measure, grid, method, network, n_labelled, max(grid.unlabelled)))
        }
        best = tied_for_best({method: [sign * value for value in values] for method, values in found.items()})
        entries = [Entry(mean_and_spread(found.get(method, [])), is_best=method in best) for method in METHODS]
        lines.append([f"{n_labelled:,}", *entries])
    return ["labels", *METHODS], lines


def _figure(numbers: _Numbers, grid: Grid, network: str) -> "Figure":
    panels = {}
    for method in (BOUNDED, PAPER, SPREADING):
        table = np.full((len(grid.labelled), 1 + len(grid.unlabelled)), math.nan)
        for row, n_labelled in enumerate(grid.labelled):
            alone = numbers.of("accuracy", grid, SUPERVISED, network, n_labelled, 0)
            table[row, 0] = 100 * np.mean(alone) if alone and method != SPREADING else math.nan
            for column, n_unlabelled in enumerate(grid.unlabelled):
                values = numbers.of("accuracy", grid, method, network, n_labelled, n_unlabelled)
                table[row, 1 + column] = 100 * np.mean(values) if values else math.nan
        panels[method] = table
    return plot_heatmaps(
        panels, grid.labelled, (0, *grid.unlabelled), "labelled", "unlabelled", form=".1f", is_one_scale=True
    )


def _overview(numbers: _Numbers, runs: Mapping[Grid, Sequence[str]]) -> tuple[list[str], list[list[str | Entry]]]:
    """A row for each data set and network: over the same network without unlabelled rows, and over two rivals, the least gain of
    its grid and in how many places there is one."""
    lines: list[list[str | Entry]] = []
    for grid, networks in runs.items():
        for network in networks:
            line: list[str | Entry] = [f"{grid.dataset}, {NETWORKS[network]}"]
            for rival, least in (
                (SUPERVISED, 0),
                (SPREADING, LEAST_TO_BEGIN_WITH),
                (SELF_TRAINING, LEAST_TO_BEGIN_WITH),
            ):
                gains = numbers.gains("accuracy", grid, rival, network, least)
                ahead = sum(gain > 0 for gain, _ in gains.values())
                line.append(f"{_points(min(gains.values()))} ({ahead} of {len(gains)})" if gains else "–")
            log_losses = numbers.gains("log_loss", grid, SUPERVISED, network)
            fallen = sum(loss < 0 for loss, _ in log_losses.values())
            lines.append([*line, f"{fallen} of {len(log_losses)}" if log_losses else "–"])
    titles = [f"over {SUPERVISED}", f"over {SPREADING}", f"over {SELF_TRAINING}"]
    return ["least gain, in points of accuracy", *titles, "log-loss fell"], lines


def _verdicts(numbers: _Numbers, grid: Grid, network: str) -> list[str]:
    where, most = NETWORKS[network].capitalize(), max(grid.unlabelled)
    gains = numbers.gains("accuracy", grid, SUPERVISED, network)
    if not gains:
        return []
    texts = [f"{where}: {_of_unlabelled_rows(gains, numbers.gains('log_loss', grid, SUPERVISED, network))}"]
    for n_labelled in (50, 100):
        if (n_labelled, most) in gains:
            accuracy = np.mean(numbers.of("accuracy", grid, BOUNDED, network, n_labelled, most))
            texts.append(
                f"{where}, {n_labelled} labels and {most:,} unlabelled rows: {100 * accuracy:.1f} % right, "
                f"{_points(gains[n_labelled, most])} points more than without the latter."
            )
    for rival in (SPREADING, SELF_TRAINING):
        if found := numbers.gains("accuracy", grid, rival, network, LEAST_TO_BEGIN_WITH):
            texts.append(f"{where}, against {rival}, {_of_rival(found)}")
    behind = [-gain for gain, _ in numbers.gains("accuracy", grid, SUPERVISED, network, method=PAPER).values()]
    if behind:
        texts.append(
            f"{where}, the paper's loss: behind {SUPERVISED} in {sum(loss > 0 for loss in behind)} of {len(behind)} places, by "
            f"{100 * min(behind):.1f} to {100 * max(behind):.1f} points, over the one seed that it has."
        )
    return texts


def _of_unlabelled_rows(gains: Gains, log_losses: Gains) -> str:
    """What they brought, where they brought least, and whether they cost anything."""
    few = [gain for (n_labelled, _), gain in gains.items() if n_labelled <= FEW_LABELS]
    worst = _least(gains)
    judged = _judged(gains)
    lost = sum(gain + 2 * error < -ALLOWED for gain, error in judged)
    return (
        f"with up to {FEW_LABELS} labels unlabelled rows raised accuracy in {sum(gain > 0 for gain, _ in few)} of "
        f"{len(few)} places of the grid, by more than two standard errors in "
        f"{sum(gain > 2 * error for gain, error in few)}. Least gain anywhere: {_points(gains[worst])} points, "
        f"with {worst[0]:,} labels and {worst[1]:,} unlabelled rows; worse by {100 * ALLOWED:.1f} points and two standard "
        f"errors in {lost} of {len(judged)} places with two seeds or more. Log-loss fell in "
        f"{sum(loss < 0 for loss, _ in log_losses.values())} of {len(log_losses)}."
    )


def _of_rival(gains: Gains) -> str:
    """Where a rival is ahead, and where it comes nearest."""
    nearest, judged = _least(gains), _judged(gains)
    surely = (
        f", by two standard errors in {sum(gain < -2 * error for gain, error in judged)}" if judged else " (one seed)"
    )
    return (
        f"from {LEAST_TO_BEGIN_WITH} labels on: behind in {sum(gain < 0 for gain, _ in gains.values())} of {len(gains)} places"
        f"{surely}; nearest {_points(gains[nearest])} points, with {nearest[0]:,} labels and {nearest[1]:,} unlabelled rows."
    )


def _least(gains: Gains) -> tuple[int, int]:
    return min(gains, key=lambda cell: gains[cell][0])


def _judged(gains: Gains) -> list[tuple[float, float]]:
    """Those with a standard error, which a single seed does not have."""
    return [gain for gain in gains.values() if not math.isnan(gain[1])]


def _points(gain: tuple[float, float]) -> str:
    return f"{100 * gain[0]:+.1f}" + ("" if math.isnan(gain[1]) else f" ± {100 * gain[1]:.1f}")


WHAT = (
    "A classifier that learns from labelled images alone, and the same network with unlabelled ones: the bounded objective "
    "(the prior's likelihood under the average prediction, adversarial smoothing, decisiveness), the paper's loss, and "
    "scikit-learn's label spreading and self-training."
)
HOW_COUNTED = (
    "What the default gains over others where it gains least; in brackets, in how many places of the grid of labelled and "
    f"unlabelled rows it is ahead. Rivals are compared with from {LEAST_TO_BEGIN_WITH} labels on."
)
HOW_SHOWN = (
    "Accuracy in percent by labelled and unlabelled rows, {network}, mean over seeds. No unlabelled rows: the same network on "
    "labelled rows alone."
)
HOW_MEASURED = (
    "Tables of one measure: mean ± standard deviation over seeds, on all test images; bold: best, or not behind the best by two "
    "standard errors over the same seeds. Gains and what is behind by how much: mean difference ± its standard error, over the "
    "same seeds. All networks have default settings: they are ensembles of five perceptrons, or of three convolutional "
    "networks. With a hundred labels or more, each member leaves out its part of them to judge by, and those that need not be "
    "stopped early are then learnt anew from all of them. The paper's loss has the paper's networks, with label embeddings; "
    "with fewer than a hundred labels there are none to stop it by before it has gone too far. "
    "Self-training is scikit-learn's around the same network on labelled rows alone; label spreading "
    "scikit-learn's with neighbours. Log-loss counts a probability below 1e-12 as that. The calibration error has 15 bins of "
    "equally many images."
)
