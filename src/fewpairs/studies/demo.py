"""The demo: the Swiss roll learnt three ways, as a table and as a page on which the learnt p(y|x) lies beside the true one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fewpairs
from fewpairs import MixtureTranslator, metrics
from fewpairs.datasets.made import SwissRoll
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
    problem = SwissRoll()
    data = problem.draw(n_pairs=128, n_source=1024, n_target=1024, seed=seed)
    x_test, y_test = problem.draw_pairs(n_test, seed=seed + 1_000_000)
    points = np.concatenate([POINTS, x_test[:n_points]])
    truth = problem.sample(points, n_samples=n_draws, seed=seed + 2_000_000)

    rows, learnt, summary = [], {}, ""
    for name, settings in WAYS.items():
        tell(f"Fitting: {name}")
        model = MixtureTranslator(random_state=seed, **settings)
        if max_steps is not None:
            model.set_params(training__max_steps=max_steps)
        start = time.perf_counter()
        model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
        seconds, summary = time.perf_counter() - start, model.summary()
        draws = model.sample(points, n_draws, random_state=seed)
        learnt[name] = draws[:, : len(POINTS)]
        between = [
            metrics.transport_cost(draws[:, place], truth[:, place]) for place in range(len(POINTS), len(points))
        ]
        nll = metrics.negative_log_likelihood(model.score_samples(x_test, y_test))
        rows.append(Row(name, nll, float(np.mean(between)), seconds))

    page = Page("p(y|x) from 128 pairs", f"fewpairs {fewpairs.__version__}, torch {torch.__version__}, seed {seed}")
    page.say("The paper's Gaussian → Swiss roll task: 128 pairs, 1024 unpaired x's and 1024 unpaired y's.")
    page.show(
        "conditionals",
        plot_conditionals(POINTS, truth[:, : len(POINTS)], learnt, data.Y_unpaired),
        "One row an x: the true p(y|x) in blue, what a model learnt in red, all known y's in grey.",
    )
    page.tabulate(HEADER, [row.cells() for row in rows])
    page.say(
        f"Held-out NLL: mean −log p(y|x) over {n_test} fresh pairs, in nats. Conditional W₂²/2: the transport cost |x−y|²/2 of "
        f"{n_draws} draws to as many true ones, averaged over {n_points} random x's. Lower is better for both.",
        f"What the default model says of itself, from held-out pairs alone: “{summary}”",
    )
    page.write(folder)
    return rows
