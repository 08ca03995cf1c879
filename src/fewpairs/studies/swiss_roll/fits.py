"""The paper's main experiment, Gaussian → Swiss roll, and everything around it: which fits, of which sizes.

Every fit is one cell (`cells`): a method, a number of rows of each kind, a seed. Sections share cells. Tables,
figures and the page are made in `page`.
"""

from dataclasses import dataclass
from typing import Any

from fewpairs.energies.samplers import AdjustedLangevin, Langevin
from fewpairs.studies.methods import DEFAULT, METHODS
from fewpairs.studies.swiss_roll.cells import ANALYTIC, ROLL, Draw, Fit, Truth

__all__ = ["FAST", "FULL", "MEANS", "NETWORKS", "OURS", "TINY", "Scale", "StudyPlan"]

OURS = DEFAULT
NETWORKS, NEURAL_PAPER = "fewpairs with networks", "EBiEOT-NN, the paper's text"

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
# What may keep free networks from running away: each on its own on top of the paper's settings, and then most of them. A tenth of
# its steps, with an eighth of its rows: the table has dozens of fits, and a step has a hundred steps of chains.
PLAIN: dict[str, Any] = {"batch_size": 128}
PART_OF_NETWORKS = 0.1
MEANS: dict[str, dict[str, Any]] = {
    "none": {},
    "held-out stopping": {"held_out": 0.2},
    "step size adapted": {"sampler": Langevin(n_steps=100)},
    "adjusted chains": {"sampler": AdjustedLangevin(n_steps=100)},
    "energy penalty": {"energy_penalty": 0.03},
    "confinement": {"confinement": 2.0},
    "noise on x": {"smoothing": 0.2},
    "spectral norm": {"spectral_norm": True},
    "all but noise and norm": {
        "held_out": 0.2,
        "sampler": Langevin(n_steps=100),
        "energy_penalty": 0.03,
        "confinement": 2.0,
    },
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
        means: The means of stability, of `MEANS`.
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
    means: tuple[str, ...] = tuple(MEANS)

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
    means=("confinement",),
)


@dataclass(frozen=True)
class StudyPlan:
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
            if problem == ROLL or not METHODS[method].is_variant
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

    def networks(self) -> dict[str, list[Fit]]:
        """Free networks with one means of stability after the other, and beside them the correction and the mixture."""
        n_pairs, n_unpaired = self.scale.sizes[0]
        table = {
            name: [
                self._fit(
                    ROLL,
                    NEURAL_PAPER,
                    n_pairs,
                    n_unpaired,
                    n_unpaired,
                    seed,
                    part=PART_OF_NETWORKS,
                    settings={**PLAIN, **MEANS[name]},
                    has_metrics=False,
                )
                for seed in range(self.scale.n_seeds_around)
            ]
            for name in self.scale.means
        }
        main = self.main(ROLL, n_pairs, n_unpaired)
        return {**table, **{name: main[name][: self.scale.n_seeds_around] for name in (NETWORKS, OURS)}}

    def fits(self) -> list[Fit]:
        tables = [self.main(problem, *size) for problem in (ROLL, ANALYTIC) for size in self.scale.sizes]
        groups: list[dict[Any, list[Fit]]] = [*tables, self.ablation(), self.sweep(), self.grid(), self.networks()]
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
