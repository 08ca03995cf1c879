"""The paper's main experiment, Gaussian → Swiss roll, and everything around it: what is run.

Every fit is one cell: a method, a number of rows of each kind, a seed. All cells of a seed share one draw of the data (a fit
with fewer pairs has the first of them), all cells of a problem one set of fresh pairs and true conditional draws to be judged
by, from the same coupling as the pairs. Tables, figures and the page are made in `swiss_roll_page`.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewpairs import metrics
from fewpairs.datasets import AnalyticSwissRoll, Problem, SwissRoll
from fewpairs.estimators import fit_together
from fewpairs.experiments.cells import Cell, Outcomes, Store, run_cells
from fewpairs.methods import METHODS

__all__ = ["ANALYTIC", "FAST", "FULL", "OURS", "POINTS", "ROLL", "TINY", "Draw", "Fit", "Scale", "Truth", "run_study"]

ROLL, ANALYTIC = "Swiss roll", "analytic Swiss roll"
PROBLEMS: dict[str, Callable[[], Problem]] = {ROLL: SwissRoll, ANALYTIC: AnalyticSwissRoll}
OURS = "fewpairs default"
POINTS = np.array([[-2.0, 0.0], [2.0, 2.0], [0.0, 0.0]])  # where the paper's figure shows p(y|x)
N_SHOWN = 64  # draws of y at each of them

# Settings for the heatmaps over M and N, where both are given: nothing else is searched for.
FIXED = {
    "hidden": (),
    "covariance": "diagonal",
    "unpaired_weight": 3.0,
    "smoothing": 0.2,
    "adversarial": 0.0,
    "variance_floor": 0.01,
}
# And to watch the three objectives: one network without any protection but the floor under the variances.
BARE = {
    "hidden": (16, 16),
    "covariance": "diagonal",
    "smoothing": 0.0,
    "adversarial": 0.0,
    "variance_floor": 0.01,
    "n_atoms": 50,
    "learning_rate": 1e-3,
    "one_cycle": False,
    "max_grad_norm": None,
}


@dataclass(frozen=True)
class Scale:
    """How large the study is.

    Attributes:
        name: "full", "fast" or "tiny".
        effort: The part of the usual training.
        sizes: P, Q = R of the main tables; the first is the paper's main setting.
        n_seeds: Draws of the data in the main tables; the sweep and the heatmaps have fewer.
        n_seeds_around: Those.
        n_test: Fresh pairs for the likelihood.
        n_points, n_draws: x's, and draws of y at each, for the conditional metrics.
        sweep: The numbers of pairs.
        grid: The numbers of slopes M and of atoms N.
    """

    name: str
    effort: float
    sizes: tuple[tuple[int, int], ...]
    n_seeds: int
    n_seeds_around: int
    n_test: int
    n_points: int
    n_draws: int
    sweep: tuple[int, ...]
    grid: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        """Rows of each kind that one draw must have."""
        return max(max(max(size) for size in self.sizes), *self.sweep)


FULL = Scale(
    name="full",
    effort=1.0,
    sizes=((128, 1024), (16_000, 16_000)),
    n_seeds=5,
    n_seeds_around=3,
    n_test=8000,
    n_points=30,
    n_draws=1024,
    sweep=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_000),
    grid=(8, 16, 32, 64),
)
FAST = Scale(
    name="fast",
    effort=0.2,
    sizes=((128, 1024),),
    n_seeds=2,
    n_seeds_around=1,
    n_test=1000,
    n_points=8,
    n_draws=256,
    sweep=(32, 128, 512),
    grid=(8, 32),
)
TINY = Scale(
    name="tiny",
    effort=0.01,
    sizes=((24, 40),),
    n_seeds=1,
    n_seeds_around=1,
    n_test=32,
    n_points=2,
    n_draws=32,
    sweep=(16, 24),
    grid=(2, 3),
)


@dataclass(frozen=True)
class Draw(Cell):
    """One draw of the data: n_rows pairs, unpaired x's and unpaired y's."""

    problem: str
    n_rows: int
    seed: int

    @property
    def name(self) -> str:
        return f"data-{_slug(self.problem)}-{self.n_rows}-seed{self.seed}"

    @property
    def effort(self) -> float:
        return 0.003 * self.n_rows

    def run(self, store: Store, device: str) -> dict[str, Any]:
        rows = {"n_pairs": self.n_rows, "n_source": self.n_rows, "n_target": self.n_rows}
        data = PROBLEMS[self.problem]().draw(**rows, seed=self.seed)
        return {name: part.tolist() for name, part in vars(data).items()}


@dataclass(frozen=True)
class Truth(Cell):
    """What models are judged by: fresh pairs, true draws of y at a few x's, and y's on their own."""

    problem: str
    n_test: int
    n_points: int
    n_draws: int

    seed = 1_000_000  # far from the seeds of the data

    @property
    def name(self) -> str:
        return f"truth-{_slug(self.problem)}-{self.n_points}x{self.n_draws}"

    @property
    def effort(self) -> float:
        return 0.003 * (self.n_test + self.n_points * self.n_draws)

    def run(self, store: Store, device: str) -> dict[str, Any]:
        problem = PROBLEMS[self.problem]()
        x, y = problem.draw_pairs(self.n_test, seed=self.seed)
        points = np.concatenate([problem.draw_pairs(self.n_points, seed=self.seed + 1)[0], POINTS])
        draws = problem.sample(points, n_samples=self.n_draws, seed=self.seed + 2)
        _, cloud = problem.draw_pairs(self.n_draws, seed=self.seed + 3)
        outcome = {
            "x": x,
            "y": y,
            "points": points[: self.n_points],
            "draws": draws[:, : self.n_points],
            "shown": draws[:N_SHOWN, self.n_points :],
            "cloud": cloud,
        }
        if hasattr(problem, "conditional"):
            outcome["log_prob"] = problem.conditional(x).log_prob(torch.from_numpy(y)).numpy()
        bandwidth = metrics.median_distance(np.concatenate([x[:1024], y[:1024]]))
        return {"bandwidth": bandwidth, **{name: part.tolist() for name, part in outcome.items()}}


@dataclass(frozen=True)
class Fit(Cell):
    """One fit of one method to the first rows of a draw, and all that is measured of it."""

    draw: Draw
    truth: Truth
    method: str
    n_pairs: int
    n_source: int
    n_target: int
    part: float = 1.0  # of the usual training
    settings: tuple[tuple[str, Any], ...] = ()
    has_metrics: bool = True  # whether clouds are compared, which takes longer than the likelihood
    keeps_draws: bool = False
    keeps_history: bool = False

    @property
    def name(self) -> str:
        sizes = f"P{self.n_pairs}-Q{self.n_source}-R{self.n_target}"
        letters = {"n_slopes": "M", "n_atoms": "N", "objective": ""}
        sizes += "".join(f"-{letters[name]}{_slug(str(value))}" for name, value in self.settings if name in letters)
        return f"{_slug(self.draw.problem)}-{_slug(self.method)}-{sizes}-seed{self.draw.seed}"

    @property
    def effort(self) -> float:
        of_metrics = 5e-4 * self.truth.n_points * self.truth.n_draws if self.has_metrics else 0.0
        return of_metrics + self.part * (150 if "EBiEOT" in self.method else 60 + 0.01 * self.n_pairs)

    @property
    def batch(self) -> str | None:
        """Seeds of a method that leaves nothing to choose are fitted together."""
        if not METHODS[self.method].is_fixed:
            return None
        alike = replace(self, draw=replace(self.draw, seed=0), keeps_draws=False)
        return alike.key

    def run(self, store: Store, device: str) -> dict[str, Any]:
        return self.run_batch([self], store, device)[0]

    def run_batch(self, cells: Sequence[Cell], store: Store, device: str) -> list[dict[str, Any]]:
        fits = [cell for cell in cells if isinstance(cell, Fit)]
        models, data = [fit._model(device) for fit in fits], [fit._data(store) for fit in fits]
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if METHODS[self.method].is_fixed:
                fit_together(models, data)
            else:
                for model, arguments in zip(models, data, strict=True):
                    model.fit(**arguments)
        outcome = {
            "seconds": (time.perf_counter() - start) / len(fits),
            "n_together": len(fits),
            "warnings": sorted({str(warning.message) for warning in caught}),
        }
        with warnings.catch_warnings():  # that some of the fresh x's lie far out is no news here
            warnings.simplefilter("ignore")
            return [outcome | fit._measure(model, store, device) for fit, model in zip(fits, models, strict=True)]

    def _model(self, device: str) -> Any:
        model = METHODS[self.method].make(random_state=self.draw.seed, device=device, effort=self.part)
        return model.set_params(**dict(self.settings))

    def _data(self, store: Store) -> dict[str, np.ndarray]:
        """The arguments of `fit`; a kind of unpaired rows that is not wanted is left out."""
        rows = {"X": ("X", self.n_pairs), "y": ("Y", self.n_pairs)}
        rows |= {"X_unpaired": ("X_unpaired", self.n_source), "Y_unpaired": ("Y_unpaired", self.n_target)}
        found = _found(store, self.draw)
        return {argument: np.array(found[name][:n]) for argument, (name, n) in rows.items() if n > 0}

    def _measure(self, model: Any, store: Store, device: str) -> dict[str, Any]:
        truth = {name: np.asarray(part) for name, part in _found(store, self.truth).items()}
        outcome: dict[str, Any] = {}
        if hasattr(model, "score_samples"):
            log_prob = model.score_samples(truth["x"], truth["y"])
            outcome["nll"] = metrics.negative_log_likelihood(log_prob)
            if "log_prob" in truth:
                outcome["kl"] = float(np.mean(truth["log_prob"] - log_prob))
        if self.has_metrics:
            bandwidth = float(truth["bandwidth"])
            cloud, draws, true_cloud, true_draws = (
                torch.as_tensor(points, device=device)
                for points in (
                    model.sample(truth["x"][: self.truth.n_draws], 1, random_state=0)[0],
                    model.sample(truth["points"], self.truth.n_draws, random_state=1),
                    truth["cloud"],
                    truth["draws"],
                )
            )
            pairs = [(draws[:, place], true_draws[:, place]) for place in range(self.truth.n_points)]
            outcome["mmd"] = metrics.mmd_squared(cloud, true_cloud, bandwidth=bandwidth)
            outcome["transport"] = metrics.transport_cost(cloud, true_cloud)
            outcome["conditional_mmd"] = float(
                np.mean([metrics.mmd_squared(*pair, bandwidth=bandwidth) for pair in pairs])
            )
            outcome["conditional_transport"] = float(np.mean([metrics.transport_cost(*pair) for pair in pairs]))
        if self.keeps_draws:
            outcome["cloud"] = model.sample(truth["x"][:512], 1, random_state=0)[0].tolist()
            outcome["shown"] = model.sample(POINTS, N_SHOWN, random_state=2).tolist()
        if self.keeps_history:
            outcome["history"] = model.history_
        return outcome


@dataclass(frozen=True)
class Plan:
    """All cells of a study of one scale, section by section."""

    scale: Scale

    def main(self, problem: str, n_pairs: int, n_unpaired: int) -> dict[str, list[Fit]]:
        """The fits of a main table, by method, one a seed; the first keeps draws to show."""
        return {
            method: [
                self._fit(problem, method, n_pairs, n_unpaired, n_unpaired, seed, keeps_draws=seed == 0)
                for seed in range(self.scale.n_seeds)
            ]
            for method in METHODS
        }

    def ablation(self) -> dict[tuple[str, int, int], list[Fit]]:
        """With and without each kind of unpaired rows, by method, Q and R."""
        n_pairs, n_unpaired = self.scale.sizes[0]
        return {
            (method, n_source, n_target): [
                self._fit(ROLL, method, n_pairs, n_source, n_target, seed, keeps_draws=seed == 0)
                for seed in range(self.scale.n_seeds)
            ]
            for method in (OURS, "EBiEOT-GMM, the authors' notebook")
            for n_source in (0, n_unpaired)
            for n_target in (0, n_unpaired)
        }

    def sweep(self) -> dict[tuple[str, int], list[Fit]]:
        """The likelihood as pairs grow, by method and P."""
        usual, n_unpaired = self.scale.sizes[0]
        return {
            (method, n_pairs): [
                self._fit(
                    ROLL,
                    method,
                    n_pairs,
                    n_unpaired,
                    n_unpaired,
                    seed,
                    has_metrics=n_pairs == usual,  # so that it is the very fit of the main table
                    keeps_draws=n_pairs == usual and seed == 0,
                )
                for seed in range(self.scale.n_seeds_around)
            ]
            for method in (OURS, "supervised", "paper's loss, our settings", "EBiEOT-GMM, the authors' notebook")
            for n_pairs in self.scale.sweep
        }

    def grid(self) -> dict[tuple[str, int, int], list[Fit]]:
        """Over slopes M and atoms N, by method, M and N; recipes for the paper's 10,000 steps."""
        n_pairs, n_unpaired = self.scale.sizes[0]
        rows: dict[str, tuple[dict[str, Any], float]] = {
            OURS: (FIXED, 1.0),
            "EBiEOT-GMM, the paper's text": ({}, 0.4),
        }
        return {
            (method, n_slopes, n_atoms): [
                self._fit(
                    ROLL,
                    method,
                    n_pairs,
                    n_unpaired,
                    n_unpaired,
                    seed,
                    part=part,
                    settings={**settings, "n_slopes": n_slopes, "n_atoms": n_atoms},
                )
                for seed in range(self.scale.n_seeds_around)
            ]
            for method, (settings, part) in rows.items()
            for n_slopes in self.scale.grid
            for n_atoms in self.scale.grid
        }

    def runaway(self) -> dict[str, Fit]:
        """One unprotected network under each objective."""
        n_pairs, n_unpaired = self.scale.sizes[0]
        kinds = {"marginal": {"unpaired_weight": 3.0}, "supervised": {}, "inverse_eot": {}}
        return {
            objective: self._fit(
                ROLL,
                OURS,
                n_pairs,
                n_unpaired,
                n_unpaired,
                seed=0,
                settings={
                    **BARE,
                    **more,
                    "objective": objective,
                    "max_steps": max(round(6000 * self.scale.effort), 10),
                },
                has_metrics=False,
                keeps_history=True,
            )
            for objective, more in kinds.items()
        }

    def fits(self) -> list[Fit]:
        tables = [self.main(problem, *size) for problem in (ROLL, ANALYTIC) for size in self.scale.sizes]
        groups: list[dict[Any, list[Fit]]] = [*tables, self.ablation(), self.sweep(), self.grid()]
        return [fit for group in groups for fits in group.values() for fit in fits] + list(self.runaway().values())

    def truth(self, problem: str) -> Truth:
        return Truth(problem, self.scale.n_test, self.scale.n_points, self.scale.n_draws)

    def _fit(
        self,
        problem: str,
        method: str,
        n_pairs: int,
        n_source: int,
        n_target: int,
        seed: int,
        *,
        part: float = 1.0,
        settings: dict[str, Any] | None = None,
        **keeps: bool,
    ) -> Fit:
        return Fit(
            Draw(problem, self.scale.n_rows, seed),
            self.truth(problem),
            method,
            n_pairs,
            n_source,
            n_target,
            part * self.scale.effort,
            tuple(sorted((settings or {}).items())),
            **keeps,
        )


def run_study(
    folder: Path,
    scale: Scale = FULL,
    *,
    n_jobs: int,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Plan, Outcomes]:
    """Runs all cells that have no file yet; data first, since fits read them."""
    plan, store = Plan(scale), Store(folder / "cells" / scale.name)
    fits = plan.fits()
    data: list[Cell] = [cell for fit in fits for cell in (fit.draw, fit.truth)]
    of_data = run_cells(data, store, n_jobs=n_jobs, device=device, title="Drawing data", tell=tell)
    outcomes = run_cells(fits, store, n_jobs=n_jobs, device=device, title="Fitting", tell=tell)
    outcomes.of_key |= of_data.of_key
    outcomes.failures |= of_data.failures
    return plan, outcomes


def _found(store: Store, cell: Cell) -> dict[str, Any]:
    outcome = store.read(cell)
    if outcome is None:
        raise RuntimeError(f"{cell.name} is not there, and a fit needs it. Run it first.")
    return outcome


def _slug(text: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())
