"""Mixture plans: slope costs, and potentials whose atoms begin where all y's are."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewpairs.networks.dice import borrowed_dice
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.ensemble import EnsemblePlan, Part
from fewpairs.plans.initial import InitialAtoms, choose_n_atoms, fit_mixture, most_atoms, place_on_samples
from fewpairs.plans.linear import LEAST_PAIRS, fit_linear
from fewpairs.plans.mixture import MixturePlan
from fewpairs.plans.plan import Plan
from fewpairs.plans.potentials import log_mixture
from fewpairs.selection.candidates import Candidate, Options, Value
from fewpairs.selection.families.base import Family

__all__ = ["VALUES", "MixtureFamily"]

# Least variances of an atom that can be chosen, as parts of the variance of y.
VARIANCE_FLOORS = (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
# The values of each setting that a search may take, from rough to smooth.
VALUES: Options = {
    "hidden": ((64, 64), (16, 16), ()),
    "covariance": ("full", "diagonal"),
    "unpaired_weight": (0.3, 1.0, 3.0, 10.0),
    "smoothing": (0.0, 0.05, 0.1, 0.2, 0.4, 0.8),
    "adversarial": (0.0, 0.15, 0.3),
    "variance_floor": VARIANCE_FLOORS,
    "emphasis": (0.0, 1.0),
}
USUAL_ATOMS = 50  # the paper's number, where atoms start on samples and none is given
ENOUGH_UNSEEN = 200  # y's, to choose a number of atoms by
ALL_ROWS = -2  # the fold of nobody: atoms fitted to every y


@dataclass(kw_only=True)
class MixtureFamily(Family):
    """Makes mixture plans.

    Attributes:
        make_cost: hidden widths → a cost with fresh random weights.
        n_atoms: The atoms of the potential, or "auto".
        covariances: The kinds of atoms that can be chosen.
        start: "mixture" or "samples": where atoms begin.
        start_variance: That of atoms on samples.
        has_linear: Whether the linear plan may join the mixture.
    """

    make_cost: Callable[[tuple[int, ...]], SlopeCost]
    n_atoms: int | str
    covariances: Sequence[str]
    start: str
    start_variance: float
    has_linear: bool = False

    grid = ("unpaired_weight", "smoothing", "variance_floor")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._initial: dict[str, list[InitialAtoms]] = {}
        self._n_atoms_of_kind: dict[str, int] = {}
        self._ignoring_x: tuple[MixturePlan, Tensor, float] | None = None

    def begin(self) -> dict[str, Value]:
        """Good settings for some hundred pairs; more of them need less smoothing, less of a floor, and less of the unpaired
        rows."""
        plenty = max(len(self.samples.pairs_x) / 128, 1.0)
        return {
            "hidden": (),
            "covariance": "full",
            "unpaired_weight": 3.0 / plenty**0.25,
            "smoothing": 0.2 / plenty**0.5,
            "adversarial": 0.0,
            "variance_floor": 0.01 / plenty**0.5,
            "emphasis": 0.0,
        }

    def narrow(self, candidate: Candidate) -> Candidate:
        """Where y itself has narrower heaps than the first floor (integers, for instance), one with a floor of their width."""
        return replace(candidate, variance_floor=min(self._find_ignoring_x()[2], candidate.variance_floor))

    def ensemble(self, parts: Sequence[Part], shares: Tensor) -> EnsemblePlan:
        return EnsemblePlan(parts, shares)

    def ignoring_x(self) -> tuple[MixturePlan, Tensor]:
        return self._find_ignoring_x()[:2]

    def _find_ignoring_x(self) -> tuple[MixturePlan, Tensor, float]:
        """The best model that ignores x: its plan from all y's, log p(y) of each pair by the fold that has not seen it, and
        the floor under its variances."""
        if self._ignoring_x is None:
            y, fold = self.samples.pairs_y.cpu().double(), self.judge.folds.pairs
            tried: list[tuple[str, float, Tensor]] = []
            for kind in self.covariances:
                for floor in VARIANCE_FLOORS:
                    scores = torch.full((len(y),), math.nan, dtype=torch.float64)
                    for number, atoms in enumerate(self.initial_atoms(kind)):
                        here = fold == number
                        scores[here] = log_mixture(atoms.potential(floor).atoms(), y[here]).detach()
                    tried.append((kind, floor, scores))
            kind, floor, scores = max(tried, key=lambda one: self.judge.mean(one[2])[0])
            dim_x, dim_y = self.samples.source.shape[1], y.shape[1]
            with borrowed_dice():
                cost = SlopeCost(dim_x=dim_x, dim_y=dim_y, n_slopes=1, hidden=(), slope_std=0.0)
            plan = MixturePlan(cost, self._place_atoms(kind, ALL_ROWS).potential(floor)).double()
            self._ignoring_x = plan, scores, floor
        return self._ignoring_x

    def linear(self) -> tuple[list[Plan], Tensor] | None:
        """None if it is not wanted, or some fold has too few pairs."""
        x, y, weight = (part.cpu() for part in (self.samples.pairs_x, self.samples.pairs_y, self.samples.pairs_weight))
        folds = self.judge.folds
        if not self.has_linear or len(x) - int(folds.rows().shape[1]) < LEAST_PAIRS:
            return None
        plans: list[Plan] = []
        scores = torch.full((len(x),), math.nan, dtype=torch.float64)
        for number in range(folds.n_folds):
            here = folds.pairs == number
            plans.append(fit_linear(x[~here], y[~here], weight[~here]))
            scores[here] = plans[-1].log_prob(x[here].double(), y[here].double()).detach()
        return plans, scores

    def initial_atoms(self, kind: str) -> list[InitialAtoms]:
        """The atoms that each fold begins with; its held-out y's had no part in them."""
        if kind not in self._initial:
            self._initial[kind] = [self._place_atoms(kind, fold) for fold in range(self.judge.folds.n_folds)]
        return self._initial[kind]

    def _place_atoms(self, kind: str, fold: int) -> InitialAtoms:
        seen = self.judge.folds.target != fold
        target, weight = self.samples.target.cpu()[seen], self.samples.target_weight.cpu()[seen]
        if self.start == "samples":
            n_atoms = USUAL_ATOMS if self.n_atoms == "auto" else int(self.n_atoms)
            return place_on_samples(target, kind, n_atoms, self.start_variance, self.random)
        return fit_mixture(target, weight, kind, self._n_atoms_of(kind), self.random)[0]

    def _n_atoms_of(self, kind: str) -> int:
        fold, target, weight = self.judge.folds.target, self.samples.target.cpu(), self.samples.target_weight.cpu()
        held_out = torch.bincount(fold[fold >= 0], minlength=1)
        most = most_atoms(len(target) - int(held_out.max()))  # the same for all folds: they are stacked
        if self.n_atoms != "auto":
            return min(int(self.n_atoms), most)
        if kind not in self._n_atoms_of_kind:
            unseen = fold < 0  # the number must not be told by held-out y's either, where others abound
            rows = unseen if int(unseen.sum()) >= ENOUGH_UNSEEN else torch.ones_like(unseen)
            self._n_atoms_of_kind[kind] = min(choose_n_atoms(target[rows], weight[rows], kind, self.random), most)
        return self._n_atoms_of_kind[kind]

    def member(self, candidate: Candidate, fold: int) -> MixturePlan:
        cost = self.make_cost(candidate.hidden)
        return MixturePlan(cost, self.initial_atoms(candidate.covariance)[fold].potential(candidate.variance_floor))
