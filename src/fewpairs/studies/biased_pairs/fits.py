"""Pairs from a corner of the population: what each way of weighing them brings, by strength of the bias and by objective.

Pairs are kept with a chance proportional to exp(−strength · z(x)), z a standardised column of x, so population over pairs is
exp(strength · z(x)) up to a factor, exactly. Unpaired rows and the fresh pairs to be judged by come from the whole population.
Tables, figures and the page are made in `page`.
"""

import time
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.neighbors import KNeighborsRegressor

from fewpairs import metrics
from fewpairs.datasets.made import SwissRoll
from fewpairs.datasets.real import load_sea_climate
from fewpairs.estimators.mixture import MixtureTranslator
from fewpairs.shift.ratios import estimate_density_ratio
from fewpairs.studies.cells import Cell, Store
from fewpairs.studies.settings import with_settings

__all__ = [
    "AS_SHIPPED",
    "CORRECTIONS",
    "FAST",
    "FULL",
    "NONE",
    "OBJECTIVES",
    "TINY",
    "Correction",
    "Fit",
    "StudyPlan",
]

OBJECTIVES = ("marginal", "supervised", "inverse_eot")
N_NEIGHBOURS = 50  # fresh pairs around a y over which pairs over population is averaged: its ratio among y's
LARGEST = 20.0  # weights of unpaired rows are cut at so many times their mean, as estimated ones are


class World(Protocol):
    """A population of pairs, and the column of x by which some of them are selected."""

    column: int

    def population(self, n_rows: int, *, to_judge: bool) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of the whole population: some to judge by, or others, from which true ratios of y are read."""
        ...

    def draw(self, strength: float, n_pairs: int, n_unpaired: int, seed: int) -> dict[str, np.ndarray]:
        """Selected pairs and unpaired rows: X, y, X_unpaired, Y_unpaired; and the mean and spread of the column."""
        ...


class SwissRollWorld:
    """The paper's roll. Tilting a normal density moves it: the pairs' x's are normal around −strength."""

    column = 0

    def population(self, n_rows: int, *, to_judge: bool) -> tuple[np.ndarray, np.ndarray]:
        return SwissRoll().draw_pairs(n_rows, seed=1_000_000 + (not to_judge))

    def draw(self, strength: float, n_pairs: int, n_unpaired: int, seed: int) -> dict[str, np.ndarray]:
        problem = SwissRoll()
        others = problem.draw(n_pairs=0, n_source=n_unpaired, n_target=n_unpaired, seed=seed)
        x = np.random.default_rng(seed).normal(size=(n_pairs, 2))
        x[:, self.column] -= strength
        y = problem.sample(x, n_samples=1, seed=seed + 1)[0]
        scale = np.array([0.0, 1.0])
        return {"X": x, "y": y, "X_unpaired": others.X_unpaired, "Y_unpaired": others.Y_unpaired, "scale": scale}


class SeaWorld:
    """January at sea → wind and pressure in June, cell by cell of a climatology; cold cells are selected more often.

    Neighbouring cells are alike, so cells to judge by lie in blocks of their own, ten degrees wide.
    """

    column = 1  # air temperature

    def population(self, n_rows: int, *, to_judge: bool) -> tuple[np.ndarray, np.ndarray]:
        x, y, is_test = self._cells()
        return x[is_test == to_judge][:n_rows], y[is_test == to_judge][:n_rows]

    def draw(self, strength: float, n_pairs: int, n_unpaired: int, seed: int) -> dict[str, np.ndarray]:
        x, y, is_test = self._cells()
        scale = x[:, self.column].mean(), x[:, self.column].std()
        random = np.random.default_rng(seed)
        to_pair, to_x, to_y = np.array_split(random.permutation(np.flatnonzero(~is_test)), 3)
        chance = np.exp(-strength * (x[to_pair, self.column] - scale[0]) / scale[1])
        pairs = random.choice(to_pair, n_pairs, replace=False, p=chance / chance.sum())
        unpaired = {"X_unpaired": x[to_x[:n_unpaired]], "Y_unpaired": y[to_y[:n_unpaired]]}
        return {"X": x[pairs], "y": y[pairs], **unpaired, "scale": np.array(scale)}

    def _cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        data = load_sea_climate()
        block = (np.floor(data.latitude / 10) * 1000 + np.floor(data.longitude / 10)).astype(int)
        names, block = np.unique(block, return_inverse=True)
        is_test_block = np.random.default_rng(0).permutation(len(names)) < len(names) // 3
        order = np.random.default_rng(1).permutation(len(block))
        return data.X[order], data.Y[order][:, 3:], is_test_block[block][order]


WORLDS: dict[str, type[World]] = {"Swiss roll": SwissRollWorld, "sea climate": SeaWorld}


@dataclass(frozen=True)
class Correction:
    """A way of weighing.

    Attributes:
        name: What it is called in tables.
        pairs_are: See `MixtureTranslator`.
        emphasis: See `MixtureTranslator`.
        sides: 1 weighs unpaired x's and y's by pairs over population, as the paper means; −1 by the inverse, as it prints.
        ratio: "estimated" from the data, or the "true" one.
    """

    name: str
    pairs_are: str = "biased"
    emphasis: float | str = "auto"
    sides: int = 0
    ratio: str = "estimated"

    @property
    def title(self) -> str:
        return self.name if self.name in (NONE, AS_SHIPPED) else f"{self.name}, {self.ratio} ratio"


NONE, AS_SHIPPED = "no correction", "as shipped"
CORRECTIONS = (
    Correction(NONE, pairs_are="representative", emphasis=0.0),
    Correction(AS_SHIPPED, pairs_are="auto"),
    *(
        Correction(name, emphasis=emphasis, sides=sides, ratio=ratio)
        for name, emphasis, sides in (
            ("biased, as told", "auto", 0),
            ("weighted validation", 0.0, 0),
            ("weighted pairs", 1.0, 0),
            ("the paper's two-sided form", 0.0, 1),
            ("the paper's printed formula", 0.0, -1),
        )
        for ratio in ("estimated", "true")
    ),
)


@dataclass(frozen=True)
class Draw(Cell):
    """Selected pairs and unpaired rows of a world."""

    world: str
    strength: float
    n_pairs: int
    n_unpaired: int
    seed: int

    @property
    def name(self) -> str:
        return f"data-{self.world.replace(' ', '-')}-strength{self.strength:g}-seed{self.seed}"

    def run(self, store: Store, device: str) -> dict[str, Any]:
        data = WORLDS[self.world]().draw(self.strength, self.n_pairs, self.n_unpaired, self.seed)
        return {name: part.tolist() for name, part in data.items()}


@dataclass(frozen=True)
class Truth(Cell):
    """Fresh pairs of the whole population: some to judge by, and others for the true ratios of y."""

    world: str
    n_test: int

    @property
    def name(self) -> str:
        return f"truth-{self.world.replace(' ', '-')}"

    @property
    def effort(self) -> float:
        return 0.006 * self.n_test

    def run(self, store: Store, device: str) -> dict[str, Any]:
        world = WORLDS[self.world]()
        (x, y), (others_x, others_y) = (world.population(self.n_test, to_judge=is_judge) for is_judge in (True, False))
        return {"x": x.tolist(), "y": y.tolist(), "others_x": others_x.tolist(), "others_y": others_y.tolist()}


@dataclass(frozen=True)
class Fit(Cell):
    """One fit, and its likelihood in the whole population."""

    draw: Draw
    truth: Truth
    objective: str
    correction: Correction
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        words = f"{self.objective}-{self.correction.title}".replace("'", "").replace(",", "").replace(" ", "-")
        return f"{self.draw.world.replace(' ', '-')}-{words}-strength{self.draw.strength:g}-seed{self.draw.seed}"

    @property
    def effort(self) -> float:
        return {"marginal": 60.0, "supervised": 20.0, "inverse_eot": 40.0}[self.objective]

    def run(self, store: Store, device: str) -> dict[str, Any]:
        data, truth = ({name: np.asarray(part) for name, part in store.need(cell).items()} for cell in self.needs)
        settings: dict[str, Any] = {"objective": self.objective, **dict(self.settings)}
        settings |= {"pairs_are": self.correction.pairs_are, "emphasis": self.correction.emphasis}
        model = MixtureTranslator(random_state=self.draw.seed, device=device, verbose=False)
        with_settings(model, settings)
        start = time.perf_counter()
        with warnings.catch_warnings():  # that pairs are biased, and some x's far, is what this study is about
            warnings.simplefilter("ignore")
            arguments = {name: data[name] for name in ("X", "y", "X_unpaired", "Y_unpaired")}
            model.fit(**arguments, **self._weights(data, truth))
            seconds = time.perf_counter() - start
            nll = metrics.negative_log_likelihood(model.score_samples(truth["x"], truth["y"]))
        return {"nll": nll, "seconds": seconds, "bias": model.bias_, "emphasis": model.chosen_["emphasis"]}

    def _weights(self, data: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What `fit` is told beyond the data."""
        correction, column = self.correction, WORLDS[self.draw.world].column
        middle, spread = data["scale"]

        def population_over_pairs(x: np.ndarray) -> np.ndarray:
            return np.exp(self.draw.strength * (x[:, column] - middle) / spread)

        is_true, weights = correction.ratio == "true", {}
        if is_true and correction.pairs_are == "biased":
            weights["relevance"] = population_over_pairs(data["X"])
        if correction.sides and is_true:
            ratio = 1 / population_over_pairs(truth["others_x"])
            neighbours = KNeighborsRegressor(N_NEIGHBOURS).fit(truth["others_y"], ratio)
            weights["X_unpaired_weight"] = 1 / population_over_pairs(data["X_unpaired"])
            weights["Y_unpaired_weight"] = neighbours.predict(data["Y_unpaired"])
        elif correction.sides:
            weights["X_unpaired_weight"] = estimate_density_ratio(data["X"], data["X_unpaired"], random_state=0).weights
            weights["Y_unpaired_weight"] = estimate_density_ratio(data["y"], data["Y_unpaired"], random_state=0).weights
        for name in ("X_unpaired_weight", "Y_unpaired_weight"):
            if name in weights:
                weight = weights[name].clip(min=1e-6) ** correction.sides
                weights[name] = weight.clip(max=LARGEST * weight.mean())
        return weights


@dataclass(frozen=True)
class Scale:
    """How large the study is: worlds with their pairs, unpaired rows and draws; strengths; fresh pairs; settings of all fits."""

    name: str
    worlds: tuple[tuple[str, int, int, int], ...]
    strengths: tuple[float, ...]
    n_test: int
    settings: tuple[tuple[str, Any], ...] = ()


# What leaves nothing to choose but the emphasis on pairs.
FIXED = {"hidden": (), "covariance": "diagonal", "unpaired_weight": 3.0, "smoothing": 0.2, "adversarial": 0.0}
FIXED |= {"variance_floor": 0.01, "n_atoms": 5, "n_folds": 2, "max_steps": 3}
FULL = Scale("full", (("Swiss roll", 128, 1024, 5), ("sea climate", 150, 1000, 5)), (0.0, 0.5, 1.0, 1.5), 4000)
FAST = Scale("fast", (("Swiss roll", 128, 512, 2),), (1.0,), 2000, (("max_steps", 60), ("hidden", ())))
TINY = Scale("tiny", (("Swiss roll", 24, 60, 1),), (1.0,), 60, tuple(FIXED.items()))


@dataclass(frozen=True)
class StudyPlan:
    """All fits of a study of one scale."""

    scale: Scale

    def fits(self) -> list[Fit]:
        return [
            fit
            for world, *_ in self.scale.worlds
            for objective in OBJECTIVES
            for correction in self.corrections(objective)
            for strength in self.scale.strengths
            for fit in self.of(world, objective, correction, strength)
        ]

    def corrections(self, objective: str) -> list[Correction]:
        """Those that differ under it: the supervised objective has no unpaired sides, and the paper's loss has its emphasis
        anyway if it is told of the bias."""
        kept = [one for one in CORRECTIONS if objective != "supervised" or one.sides == 0]
        return [one for one in kept if objective != "inverse_eot" or one.name != "biased, as told"]

    def of(self, world: str, objective: str, correction: Correction, strength: float) -> list[Fit]:
        """One fit a draw. Without bias the true ratio is one, and weighs nothing."""
        if strength == 0 and correction.ratio == "true":
            return []
        n_pairs, n_unpaired, n_seeds = next(sizes for name, *sizes in self.scale.worlds if name == world)
        truth = Truth(world, self.scale.n_test)
        return [
            Fit(Draw(world, strength, n_pairs, n_unpaired, seed), truth, objective, correction, self.scale.settings)
            for seed in range(n_seeds)
        ]
