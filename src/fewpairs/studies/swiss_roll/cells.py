"""The pieces of work of the Swiss-roll study: a draw of the data, the truth to be judged by, a fit and what is measured of it.

All fits of a seed share one draw of the data (a fit with fewer pairs has the first of them), all fits of a problem one set of
fresh pairs and true conditional draws, from the same coupling as the pairs.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fewpairs import metrics
from fewpairs.datasets.made import AnalyticSwissRoll, Problem, SwissRoll
from fewpairs.estimators.base import Translator
from fewpairs.estimators.together import fit_together
from fewpairs.studies.cells import Cell, Outcome, Store
from fewpairs.studies.methods import METHODS
from fewpairs.studies.settings import with_settings
from fewpairs.training.learners import energy_scores

__all__ = ["ANALYTIC", "POINTS", "ROLL", "Draw", "Fit", "Truth", "compare_draws"]

ROLL, ANALYTIC = "Swiss roll", "analytic Swiss roll"
PROBLEMS: dict[str, Callable[[], Problem]] = {ROLL: SwissRoll, ANALYTIC: AnalyticSwissRoll}
POINTS = np.array([[-2.0, 0.0], [2.0, 2.0], [0.0, 0.0]])  # where the paper's figure shows p(y|x)
N_SHOWN = 64  # draws of y at each of them

N_BY_QUADRATURE = 100  # fresh pairs whose density is had by quadrature
N_BY_ENERGY, N_AT_EACH, N_AT_EACH_BRIEFLY = 1000, 50, 16  # fresh pairs for the energy score, and draws at each


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

    def run(self, store: Store, device: str) -> Outcome:
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

    def run(self, store: Store, device: str) -> Outcome:
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
        again = problem.sample(outcome["points"], n_samples=self.n_draws, seed=self.seed + 4)
        floor = compare_draws(torch.from_numpy(again), torch.from_numpy(outcome["draws"]), bandwidth)
        return {"bandwidth": bandwidth, "floor": floor, **{name: part.tolist() for name, part in outcome.items()}}


def compare_draws(draws: torch.Tensor, true_draws: torch.Tensor, bandwidth: float) -> dict[str, float]:
    """How far learnt draws are from true ones, (draws, x's, dim_y) each, on average over the x's."""
    pairs = [(draws[:, place], true_draws[:, place]) for place in range(draws.shape[1])]
    return {
        "conditional_mmd": float(np.mean([metrics.mmd_squared(*pair, bandwidth=bandwidth) for pair in pairs])),
        "conditional_transport": float(np.mean([metrics.transport_cost(*pair) for pair in pairs])),
    }


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
        sizes += f"-part{100 * self.part:.3g}" if self.part != 1 else ""
        return f"{_slug(self.draw.problem)}-{_slug(self.method)}-{sizes}-seed{self.draw.seed}"

    @property
    def effort(self) -> float:
        of_metrics = 5e-4 * self.truth.n_points * self.truth.n_draws if self.has_metrics else 0.0
        return of_metrics + self.part * (150 if "EBiEOT" in self.method else 60 + 0.01 * self.n_pairs)

    @property
    def batch(self) -> str | None:
        """Seeds of a method that leaves nothing to choose are fitted together; a method that improves another, after that."""
        method = METHODS[self.method]
        if method.is_fixed:
            return replace(self, draw=replace(self.draw, seed=0), keeps_draws=False).key
        root = method.improves or self.method
        is_root = any(other.improves == root for other in METHODS.values())
        return replace(self, method=root, keeps_draws=False).key if is_root and not self.settings else None

    def run(self, store: Store, device: str) -> Outcome:
        return self.run_batch([self], store, device)[0]

    def run_batch(self, cells: Sequence[Cell], store: Store, device: str) -> list[Outcome]:
        fits = [cell for cell in cells if isinstance(cell, Fit)]
        models, data = [fit._model(device) for fit in fits], [fit._data(store) for fit in fits]
        outcomes = self._fit_all(fits, models, data)
        with warnings.catch_warnings():  # that some of the fresh x's lie far out is no news here
            warnings.simplefilter("ignore")
            return [
                outcome | fit._measure(model, store, device)
                for fit, model, outcome in zip(fits, models, outcomes, strict=True)
            ]

    def _fit_all(
        self, fits: Sequence["Fit"], models: Sequence[Translator], data: Sequence[dict[str, np.ndarray]]
    ) -> list[Outcome]:
        """Fits the models, and says of each how long that took and what it warned of."""
        if METHODS[self.method].is_fixed:
            seconds, warned = _timed(lambda: fit_together(models, data))
            return [{"seconds": seconds / len(fits), "n_together": len(fits), "warnings": warned} for _ in fits]
        outcomes, fitted = [], dict[str, tuple[Translator, float]]()
        for fit, model, arguments in zip(fits, models, data, strict=True):
            # The model it improves was fitted a moment ago to the same rows: it is handed over, and its time counts.
            base, seconds = fitted.get(METHODS[fit.method].improves or "", (None, 0.0))
            if base is not None:
                model.set_params(base=base)
            more, warned = _timed(partial(model.fit, **arguments))
            fitted[fit.method] = model, seconds + more
            outcomes.append({"seconds": seconds + more, "n_together": 1, "warnings": warned})
        return outcomes

    def _model(self, device: str) -> Translator:
        model = METHODS[self.method].make(random_state=self.draw.seed, device=device, effort=self.part)
        return with_settings(model, dict(self.settings))

    def _data(self, store: Store) -> dict[str, np.ndarray]:
        """The arguments of `fit`; a kind of unpaired rows that is not wanted is left out."""
        rows = {"X": ("X", self.n_pairs), "y": ("Y", self.n_pairs)}
        rows |= {"X_unpaired": ("X_unpaired", self.n_source), "Y_unpaired": ("Y_unpaired", self.n_target)}
        found = store.need(self.draw)
        return {argument: np.array(found[name][:n]) for argument, (name, n) in rows.items() if n > 0}

    def _measure(self, model: Translator, store: Store, device: str) -> Outcome:
        truth = {name: np.asarray(part) for name, part in store.need(self.truth).items() if name != "floor"}
        outcome = {**_densities(model, truth), "ended": getattr(model, "ended_", "finished")}
        if self.has_metrics or not hasattr(model, "score_samples"):  # the score of those that have no density at hand
            few = slice(0, N_BY_ENERGY)
            drawn = model.sample(truth["x"][few], N_AT_EACH if self.has_metrics else N_AT_EACH_BRIEFLY, random_state=3)
            outcome["energy_score"] = float(
                energy_scores(torch.as_tensor(drawn), torch.as_tensor(truth["y"][few])).mean()
            )
        if self.has_metrics:
            outcome |= self._clouds(model, truth, device)
        if self.keeps_draws:
            outcome["cloud"] = model.sample(truth["x"][:512], 1, random_state=0)[0].tolist()
            outcome["shown"] = model.sample(POINTS, N_SHOWN, random_state=2).tolist()
        if self.keeps_history:
            outcome["history"] = model.history_  # those that are asked for it have one
        return outcome

    def _clouds(self, model: Translator, truth: Mapping[str, np.ndarray], device: str) -> Outcome:
        """How far draws are from true ones: one for each of many x's, and many for each of a few."""
        bandwidth, n_draws = float(truth["bandwidth"]), self.truth.n_draws
        cloud, draws, true_cloud, true_draws = (
            torch.as_tensor(points, device=device)
            for points in (
                model.sample(truth["x"][:n_draws], 1, random_state=0)[0],
                model.sample(truth["points"], n_draws, random_state=1),
                truth["cloud"],
                truth["draws"],
            )
        )
        return {
            "mmd": metrics.mmd_squared(cloud, true_cloud, bandwidth=bandwidth),
            "transport": metrics.transport_cost(cloud, true_cloud),
            **compare_draws(draws, true_draws, bandwidth),
        }


def _densities(model: Translator, truth: Mapping[str, np.ndarray]) -> Outcome:
    """The likelihood of fresh pairs, and where the truth is known, what is lost to it; nothing of what only draws."""
    x, y = truth["x"], truth["y"]
    if hasattr(model, "score_samples"):
        log_prob = model.score_samples(x, y)
        nll = {"nll": metrics.negative_log_likelihood(log_prob)}
        return nll | ({"kl": float(np.mean(truth["log_prob"] - log_prob))} if "log_prob" in truth else {})
    if hasattr(model, "estimate_log_likelihood"):  # by quadrature, which takes its time
        few = slice(0, min(N_BY_QUADRATURE, len(x) // 10))
        estimate = model.estimate_log_likelihood(x[few], y[few])
        return {"nll": metrics.negative_log_likelihood(estimate.log_likelihood)}
    return {}


def _timed(work: Callable[[], Any]) -> tuple[float, list[str]]:
    """Does the work; the seconds it took, and what it warned of."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return time.perf_counter() - start, sorted({str(warning.message) for warning in caught})


def _slug(text: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())
