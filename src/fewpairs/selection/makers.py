"""Makers: candidates become trained trials.

A *candidate* is a set of settings; its members, one a fold, make a *trial*. A `Maker` holds all that candidates share: the
data, the folds, the atoms that each fold begins with, the way to train. What is tried, and what is kept, is decided in `choice`.
"""

import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.initial import Start, choose_n_atoms, fit_mixture, most_atoms, place_on_samples
from fewpairs.plans.linear import LEAST_PAIRS, fit_linear
from fewpairs.plans.mixture import EnsemblePlan, MixturePlan
from fewpairs.plans.potentials import log_mixture
from fewpairs.shift.bias import temper
from fewpairs.training import objectives
from fewpairs.training.loop import Dealer, JointDealer, Outcome, Settings, train
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import AdversarialSmoothing, NoiseSmoothing, NoSmoothing, Smoothing

__all__ = ["FLOORS", "Candidate", "Clock", "Maker", "MixtureMaker", "Trial"]

# Least variances of an atom that can be chosen, as parts of the variance of y.
FLOORS = (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
LEAST_FOR_ERROR = 5  # pairs: the spread of fewer says nothing about how far off their mean is
USUAL_ATOMS = 50  # the paper's number, where atoms start on samples and none is given


@dataclass(frozen=True)
class Candidate:
    """Settings that the choice is between; see `MixtureTranslator` for what they mean."""

    objective: str
    hidden: tuple[int, ...]
    unpaired_weight: float
    smoothing: float
    adversarial: float
    covariance: str = ""  # of atoms, where plans have some
    variance_floor: float = 0.0  # likewise
    emphasis: float = 0.0

    @property
    def shape(self) -> tuple[Any, ...]:
        """Candidates of one shape can be trained as one population."""
        return self.objective, self.hidden, self.covariance, self.adversarial > 0

    @property
    def roughness(self) -> tuple[float, ...]:
        """Smaller is smoother. The adversarial direction doubles the cost of a step: it comes first, so that it has to win."""
        return (
            self.adversarial,
            self.emphasis,
            sum(self.hidden),
            -self.smoothing,
            -self.variance_floor,
            -self.unpaired_weight,
        )


@dataclass
class Trial:
    """A candidate, trained: its members, and what each look at the held-out pairs saw, (looks, P)."""

    candidate: Candidate
    population: Population
    first: int
    n_folds: int
    outcome: Outcome
    number: int

    def plans(self) -> list[Any]:
        return [self.population.plan(self.first + fold) for fold in range(self.n_folds)]

    @property
    def best_look(self) -> int:
        return int(self.outcome.best[self.number])

    def looks(self) -> Tensor:
        return torch.stack([scores[self.number] for scores in self.outcome.scores]).double()

    def scores(self) -> Tensor:
        """log p(y|x) of each pair by the member that has not seen it, at the step that was kept."""
        return self.outcome.scores[self.best_look][self.number].double()


@dataclass
class Clock:
    """The seconds that are left, if there is a bound to them at all."""

    budget: float | None
    start: float

    def left(self) -> float:
        return math.inf if self.budget is None else self.budget - (time.perf_counter() - self.start)

    def part(self, share: float) -> float | None:
        """Part of what is left, for a training run."""
        return None if self.budget is None else max(share * self.left(), 0.0)


@dataclass(kw_only=True)
class Maker(ABC):
    """Makes members and trains them: everything that does not differ between candidates. A subclass knows what a plan is made of.

    Attributes:
        ladders: The knobs whose rungs the search climbs.
        uncovered: The part of the population about which held-out pairs say nothing.
        trial_part: The steps of a trial in full, as a part of those of the settings.
        final_part: The part of the time left that the final trials may take; what comes after them has the rest.
        adversarial_rows: The x's of a step at which the direction that changes p(y|x) most is looked for: most of its cost.
    """

    samples: Samples
    folds: Folds
    settings: Settings
    random: np.random.RandomState
    generator: torch.Generator
    clock: Clock
    on_step: Callable[[str, float], None]
    uncovered: float = 0.0
    trial_part: float = 1.0
    final_part: float = 0.97
    adversarial_rows: int = 64

    ladders: ClassVar[tuple[str, ...]]
    tie: ClassVar[float] = 0.25  # standard errors: candidates nearer than this are tied, and the plainest one is taken

    def __post_init__(self) -> None:
        self._seed = int(self.random.randint(2**31))
        unpaired = torch.Generator(self.generator.device).manual_seed(self._seed)
        self.dealer = Dealer(self.samples, self.settings, unpaired)
        relevance, weight = self.samples.relevance.cpu().double(), self.samples.pairs_weight.cpu().double()
        # What held-out pairs count, less the part of the population they say nothing about.
        self.weight_to_tell = relevance.mean() * _evidence(weight * relevance)
        self.weight = relevance.mean() * _evidence(weight * torch.from_numpy(temper(relevance.numpy())))
        self._seeds = self.random.randint(2**31, size=self.folds.n_folds)

    def mean(self, scores: Tensor, *, to_tell: bool = False) -> tuple[float, float]:
        """The weighted mean over the pairs that were held out (the others are NaN), and its standard error; NaN where they are
        too few to tell one. Weights are those to choose by, or those of what the user is told."""
        is_held_out = ~torch.isnan(scores)
        kept, share = scores[is_held_out], (self.weight_to_tell if to_tell else self.weight)[is_held_out]
        if len(kept) == 0:
            return math.nan, math.nan
        share = share / share.sum()
        mean = (share * kept).sum()
        variance = (share**2 * (kept - mean) ** 2).sum() * (len(kept) / max(len(kept) - 1, 1))
        return float(mean), float(variance.sqrt()) if len(kept) >= LEAST_FOR_ERROR else math.nan

    @abstractmethod
    def begin(self) -> dict[str, Any]:
        """Where the search begins: a value for each knob."""

    def limits(self, wishes: Mapping[str, tuple[Any, ...]], objective: str) -> dict[str, tuple[Any, ...]]:
        """The wishes as far as they make sense for an objective: only "marginal" has a weight of the unpaired rows."""
        return dict(wishes) if objective == "marginal" else {**wishes, "unpaired_weight": (0.0,)}

    def objective(self, candidate: Candidate) -> Callable[..., Tensor]:
        """What its members minimise."""
        return getattr(objectives, candidate.objective)

    @abstractmethod
    def members(self, candidate: Candidate, n_folds: int) -> list[Any]:
        """The plans of a candidate before training, one a fold."""

    @abstractmethod
    def ignore_x(self) -> tuple[Any, Tensor]:
        """The best model that ignores x: its plan, and log p(y) of each pair by the fold that has not seen it."""

    def linear(self) -> tuple[list[Any], Tensor] | None:
        """The linear plan of each fold, and log p(y|x) of each pair by the fold that has not seen it; None if there is none."""
        return None

    @abstractmethod
    def ensemble(self, members: list[Any], shares: Tensor) -> Any:
        """The plan that averages the densities of several."""

    def narrow(self, candidate: Candidate) -> Candidate:
        """The candidate, or a narrower one where y itself has narrower heaps."""
        return candidate

    def plainness(self, candidate: Candidate) -> tuple[float, ...]:
        """Of candidates that are tied the least is taken: the smoothest."""
        return candidate.roughness

    def finish(self, trial: Trial) -> Trial:
        """The trial whose members are to be in the mixture, in place of one that was judged."""
        return trial

    def run(
        self,
        candidates: Sequence[Candidate],
        *,
        part: float = 1.0,
        haste: float = 1.0,
        seconds: float | None,
        title: str,
        progress: tuple[float, float],
        folds: Folds | None = None,
        plans: Callable[[Candidate], list[Any]] | None = None,
        dealer: Dealer | JointDealer | None = None,
    ) -> list[Trial]:
        """Trains candidates, those of one shape as one population, in time that is shared out evenly."""
        folds = folds or self.folds
        plans = plans or partial(self.members, n_folds=folds.n_folds)
        groups: dict[tuple[Any, ...], list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(candidate.shape, []).append(candidate)
        trials: list[Trial] = []
        begin = time.perf_counter()
        for number, group in enumerate(groups.values()):
            left = None if seconds is None else max(seconds - (time.perf_counter() - begin), 0.0)
            n_left = sum(len(other) for other in list(groups.values())[number:])
            settings = replace(
                self.settings,
                max_steps=max(round(part * self.settings.max_steps), 1),
                learning_rate=haste * self.settings.learning_rate,
                potential_learning_rate=haste * self.settings.potential_learning_rate,
                time_budget=None if left is None else left * len(group) / n_left,
            )
            if dealer is None:  # candidates of one shape meet the same dice, whatever was tried before
                self.generator.manual_seed(zlib.crc32(repr((self._seed, group[0].shape, part)).encode()))
                self.dealer.reshuffle_pairs(self.generator)
            population = Population([plan for candidate in group for plan in plans(candidate)])
            population.to(self.samples.source.device)
            low = progress[0] + (progress[1] - progress[0]) * len(trials) / len(candidates)
            high = low + (progress[1] - progress[0]) * len(group) / len(candidates)
            outcome = train(
                population,
                self.samples,
                folds,
                self.objective(group[0]),
                settings=settings,
                smoothing=self._smoothing(group, folds.n_folds),
                traits=self._traits(group, folds.n_folds),
                generator=self.generator,
                dealer=dealer or self.dealer,
                weight=self.weight,
                on_step=partial(self._tell, title, low, high),
            )
            trials += [
                Trial(candidate, population, place * folds.n_folds, folds.n_folds, outcome, place)
                for place, candidate in enumerate(group)
            ]
            if outcome.ended == "interrupted":
                break
        return trials

    def _tell(self, title: str, low: float, high: float, step: int, done: float) -> None:
        self.on_step(title, low + (high - low) * done)

    def _each(self, group: Sequence[Candidate], n_folds: int, name: str) -> Tensor:
        values = [float(getattr(candidate, name)) for candidate in group for _ in range(n_folds)]
        return torch.tensor(values, dtype=self.samples.source.dtype, device=self.samples.source.device)

    def _traits(self, group: Sequence[Candidate], n_folds: int) -> dict[str, Tensor]:
        names = ("unpaired_weight", "emphasis") if group[0].objective == "marginal" else ("emphasis",)
        return {name: self._each(group, n_folds, name) for name in names}

    def _smoothing(self, group: Sequence[Candidate], n_folds: int) -> Smoothing:
        noise = self._each(group, n_folds, "smoothing")
        is_noisy = bool((noise > 0).any())
        if group[0].adversarial > 0:
            radius = self._each(group, n_folds, "adversarial")
            return AdversarialSmoothing(noise if is_noisy else 0.0, radius=radius, n_rows=self.adversarial_rows)
        return NoiseSmoothing(noise) if is_noisy else NoSmoothing()


@dataclass(kw_only=True)
class MixtureMaker(Maker):
    """Makes mixture plans: slope costs, and potentials whose atoms begin where all y's are."""

    n_slopes: int
    n_atoms: int | str
    kinds: Sequence[str]
    cost_options: dict[str, Any]
    start: str
    start_variance: float
    has_linear: bool = False  # whether the linear plan may join the mixture

    ladders = ("unpaired_weight", "smoothing", "variance_floor")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._starts: dict[str, list[Start]] = {}
        self._n_atoms_of_kind: dict[str, int] = {}
        self._ignore_x: tuple[MixturePlan, Tensor, float] | None = None

    def begin(self) -> dict[str, Any]:
        """Good settings for some hundred pairs; more of them need less smoothing, less of a floor, and less of the unpaired
        rows."""
        plenty = max(len(self.folds.pairs) / 128, 1.0)
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
        return replace(candidate, variance_floor=min(self._ignoring_x()[2], candidate.variance_floor))

    def ensemble(self, members: list[MixturePlan], shares: Tensor) -> EnsemblePlan:
        return EnsemblePlan(members, shares)

    def ignore_x(self) -> tuple[MixturePlan, Tensor]:
        return self._ignoring_x()[:2]

    def _ignoring_x(self) -> tuple[MixturePlan, Tensor, float]:
        """The best model that ignores x: its plan from all y's, log p(y) of each pair by the fold that has not seen it, and
        the floor under its variances."""
        if self._ignore_x is None:
            y, fold = self.samples.pairs_y.cpu().double(), self.folds.pairs
            tried: list[tuple[str, float, Tensor]] = []
            for kind in self.kinds:
                for floor in FLOORS:
                    scores = torch.full((len(y),), math.nan, dtype=torch.float64)
                    for number, start in enumerate(self.starts(kind)):
                        atoms = start.potential(floor).atoms()
                        scores[fold == number] = log_mixture(atoms, y[fold == number]).detach()
                    tried.append((kind, floor, scores))
            kind, floor, scores = max(tried, key=lambda one: self.mean(one[2])[0])
            dim_x, dim_y = self.samples.source.shape[1], y.shape[1]
            with torch.random.fork_rng(devices=[]):
                cost = SlopeCost(dim_x=dim_x, dim_y=dim_y, n_slopes=1, hidden=(), slope_std=0.0)
            plan = MixturePlan(cost, self._start(kind, fold=-2).potential(floor)).double()
            self._ignore_x = plan, scores, floor
        return self._ignore_x

    def linear(self) -> tuple[list[MixturePlan], Tensor] | None:
        """The linear plan of each fold, and log p(y|x) of each pair by the fold that has not seen it; None if it is not wanted or
        some fold has too few pairs."""
        x, y, weight = (part.cpu() for part in (self.samples.pairs_x, self.samples.pairs_y, self.samples.pairs_weight))
        fold, plans, scores = self.folds.pairs, [], torch.full((len(x),), math.nan, dtype=torch.float64)
        if not self.has_linear or len(x) - int(self.folds.rows().shape[1]) < LEAST_PAIRS:
            return None
        for number in range(self.folds.n_folds):
            here = fold == number
            plans.append(fit_linear(x[~here], y[~here], weight[~here]))
            scores[here] = plans[-1].log_prob(x[here].double(), y[here].double()).detach()
        return plans, scores

    def starts(self, kind: str) -> list[Start]:
        """The atoms that each fold begins with; its held-out y's had no part in them."""
        if kind not in self._starts:
            self._starts[kind] = [self._start(kind, fold) for fold in range(self.folds.n_folds)]
        return self._starts[kind]

    def _start(self, kind: str, fold: int) -> Start:
        seen = self.folds.target != fold
        target, weight = self.samples.target.cpu()[seen], self.samples.target_weight.cpu()[seen]
        if self.start == "samples":
            n_atoms = USUAL_ATOMS if self.n_atoms == "auto" else int(self.n_atoms)
            return place_on_samples(target, kind, n_atoms, self.start_variance, self.random)
        return fit_mixture(target, weight, kind, self._n_atoms_of(kind), self.random)[0]

    def _n_atoms_of(self, kind: str) -> int:
        held_out = torch.bincount(self.folds.target[self.folds.target >= 0], minlength=1)
        most = most_atoms(len(self.samples.target) - int(held_out.max()))  # the same for all folds: they are stacked
        if self.n_atoms != "auto":
            return min(int(self.n_atoms), most)
        if kind not in self._n_atoms_of_kind:
            unseen = self.folds.target < 0  # the number must not be told by held-out y's either, where others abound
            rows = unseen if int(unseen.sum()) >= 200 else torch.ones_like(unseen)
            target, weight = self.samples.target.cpu()[rows], self.samples.target_weight.cpu()[rows]
            self._n_atoms_of_kind[kind] = min(choose_n_atoms(target, weight, kind, self.random), most)
        return self._n_atoms_of_kind[kind]

    def members(self, candidate: Candidate, n_folds: int) -> list[MixturePlan]:
        plans = []
        for fold in range(n_folds):
            with torch.random.fork_rng(devices=[]):  # networks draw their first weights from torch's global generator
                torch.manual_seed(int(self._seeds[fold]))
                cost = SlopeCost(
                    dim_x=self.samples.source.shape[1],
                    dim_y=self.samples.target.shape[1],
                    n_slopes=self.n_slopes,
                    hidden=candidate.hidden,
                    **self.cost_options,
                )
            potential = self.starts(candidate.covariance)[fold].potential(candidate.variance_floor)
            plans.append(MixturePlan(cost, potential).to(self.samples.source.dtype))
        return plans


def _evidence(weight: Tensor) -> Tensor:
    """Weights at the scale where they add up to as many pairs as they are worth: their effective sample size."""
    return weight * weight.sum() / (weight**2).sum()
