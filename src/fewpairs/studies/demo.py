"""The demo: the Swiss roll learnt three ways, as a table and as a page on which the learnt p(y|x) lies beside the true one."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewpairs
from fewpairs import MixtureTranslator, metrics
from fewpairs.datasets.made import SwissRoll, TranslationData
from fewpairs.report.page import Page
from fewpairs.report.plots import plot_conditionals

__all__ = ["HEADER", "Row", "run_demo"]

# To look at: the paper's three x's at half their distance. It shows (−2, 0), (2, 2) and (0, 0), two of which lie where 128
# pairs have hardly a neighbour.
POINTS = np.array([[-1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
WAYS: dict[str, dict[str, Any]] = {
    "supervised (pairs alone)": {"objective": "supervised"},
    "the paper's loss, our settings": {"objective": "inverse_eot"},
    "fewpairs default": {},
}
HEADER = ("method", "held-out NLL", "conditional W₂²/2", "seconds")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    nll: float
    transport_cost: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        return self.name, f"{self.nll:.3f}", f"{self.transport_cost:.3f}", f"{self.seconds:.0f}"


def run_demo(
    folder: Path,
    *,
    seed: int = 0,
    n_test: int = 4000,
    n_points: int = 30,
    n_draws: int = 256,
    max_steps: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Fits the three ways, writes `report.html` and its picture into the folder, and returns the table.

    Arguments:
        folder: Where to write; made if it is not there.
        seed: The draw of the data and of the models.
        n_test: Fresh pairs to judge by.
        n_points: Random x's at which learnt and true p(y|x) are compared, draw by draw.
        n_draws: Draws of y at each of them.
        max_steps: Training steps, if not the estimator's own number.
        tell: Called with a line about what is going on.
    """
    folder.mkdir(parents=True, exist_ok=True)  # now rather than after the work, if it cannot be made
    tell("Drawing the data: 128 pairs, 1024 unpaired x's, 1024 unpaired y's, and fresh pairs to judge by")
    task = _Task.draw(seed=seed, n_test=n_test, n_points=n_points, n_draws=n_draws)
    rows, learnt, summary = [], {}, ""
    for name, settings in WAYS.items():
        tell(f"Fitting: {name}")
        model = MixtureTranslator(random_state=seed, **settings)
        if max_steps is not None:
            model.set_params(training__max_steps=max_steps)
        start = time.perf_counter()
        task.fit(model)
        seconds, summary = time.perf_counter() - start, model.summary()
        learnt[name], nll, between = task.judge(model, seed)
        rows.append(Row(name, nll, between, seconds))
    page = Page("p(y|x) from 128 pairs", f"fewpairs {fewpairs.__version__}, torch {torch.__version__}, seed {seed}")
    task.describe(page, rows, learnt)
    page.say(f"What the default model says of itself, from held-out pairs alone: “{summary}”")
    page.write(folder)
    return rows


@dataclass(frozen=True)
class _Task:
    """Data to learn from, fresh pairs to judge by, and true draws, (n_draws, points, dim_y), at some x's: `POINTS` first."""

    data: TranslationData
    x: np.ndarray
    y: np.ndarray
    points: np.ndarray
    truth: np.ndarray

    @classmethod
    def draw(cls, *, seed: int, n_test: int, n_points: int, n_draws: int) -> "_Task":
        problem = SwissRoll()
        data = problem.draw(n_pairs=128, n_source=1024, n_target=1024, seed=seed)
        x, y = problem.draw_pairs(n_test, seed=seed + 1_000_000)
        points = np.concatenate([POINTS, x[:n_points]])
        return cls(data, x, y, points, problem.sample(points, n_samples=n_draws, seed=seed + 2_000_000))

    def fit(self, model: MixtureTranslator) -> None:
        data = self.data
        model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)

    def judge(self, model: MixtureTranslator, seed: int) -> tuple[np.ndarray, float, float]:
        """Draws at `POINTS`; the negative log-likelihood of fresh pairs; how far draws at the other x's are from true ones."""
        draws, n_shown = model.sample(self.points, len(self.truth), random_state=seed), len(POINTS)
        between = [
            metrics.transport_cost(draws[:, place], self.truth[:, place]) for place in range(n_shown, len(self.points))
        ]
        nll = metrics.negative_log_likelihood(model.score_samples(self.x, self.y))
        return draws[:, :n_shown], nll, float(np.mean(between))

    def describe(self, page: Page, rows: Sequence[Row], learnt: Mapping[str, np.ndarray]) -> None:
        n_shown = len(POINTS)
        page.say("The paper's Gaussian → Swiss roll task: 128 pairs, 1024 unpaired x's and 1024 unpaired y's.")
        page.show(
            "conditionals",
            plot_conditionals(POINTS, self.truth[:, :n_shown], learnt, self.data.Y_unpaired),
            "One row an x: the true p(y|x) in blue, what a model learnt in red, all known y's in grey.",
        )
        page.tabulate(HEADER, [row.cells() for row in rows])
        page.say(
            f"Held-out NLL: mean −log p(y|x) over {len(self.x)} fresh pairs, in nats. Conditional W₂²/2: the transport cost "
            f"|x−y|²/2 of {len(self.truth)} draws to as many true ones, averaged over {len(self.points) - n_shown} random x's. "
            "Lower is better for both."
        )
