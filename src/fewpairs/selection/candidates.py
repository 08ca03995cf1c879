"""Candidates: settings that the choice is between; and trials, which are candidates that have been trained and judged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewpairs.plans.plan import Plan
from fewpairs.training.loop import Outcome
from fewpairs.training.populations import Population

__all__ = ["Candidate", "Options", "Trial", "Value"]

Value = float | str | tuple[int, ...]  # of a setting
Options = dict[str, tuple[Value, ...]]  # for each setting the values to choose from; one value fixes it


@dataclass(frozen=True)
class Candidate:
    """Settings that the choice is between; see `Search` for what they mean."""

    objective: str
    hidden: tuple[int, ...]
    unpaired_weight: float
    smoothing: float
    adversarial: float
    covariance: str = ""  # of atoms, where plans have some
    variance_floor: float = 0.0  # likewise
    emphasis: float = 0.0

    @classmethod
    def of(cls, objective: str, settings: Mapping[str, Value]) -> "Candidate":
        """The candidate with these settings."""
        return cls(objective, **settings)  # type: ignore[arg-type]  # names and values go together

    def moved(self, settings: Mapping[str, Value]) -> "Candidate":
        """The same with other values of some settings."""
        return replace(self, **settings)  # type: ignore[arg-type]  # names and values go together

    @property
    def architecture(self) -> tuple[Value, ...]:
        """What its plans are made of."""
        return self.objective, self.hidden, self.covariance

    @property
    def stackable(self) -> tuple[Value, ...]:
        """Candidates that agree in this can be trained as one population."""
        return *self.architecture, self.adversarial > 0

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


@dataclass(frozen=True)
class Trial:
    """A candidate, trained: one member a fold, and what each look at the held-out pairs saw.

    Attributes:
        candidate: The settings.
        population: The plans of this candidate and of those that were trained along with it.
        place: The how-manieth of them it is.
        n_folds: The members of each.
        outcome: How training went.
    """

    candidate: Candidate
    population: Population
    place: int
    n_folds: int
    outcome: Outcome

    def plans(self) -> list[Plan]:
        """Its members, each of which has not seen the pairs of one fold."""
        return [self.population.plan(self.place * self.n_folds + fold) for fold in range(self.n_folds)]

    @property
    def best_look(self) -> int:
        return int(self.outcome.best[self.place])

    @property
    def best_step(self) -> int:
        """The step whose members were kept."""
        return self.outcome.steps[self.best_look]

    @property
    def has_begun(self) -> bool:
        """Whether it has taken a step."""
        return self.outcome.steps[-1] > 0

    def looks(self) -> Tensor:
        """log p(y|x) of each pair at each look, by the member that has not seen it, (looks, P)."""
        return torch.stack([scores[self.place] for scores in self.outcome.scores]).double()

    def scores(self) -> Tensor:
        """log p(y|x) of each pair by the member that has not seen it, at the step that was kept, (P,)."""
        return self.outcome.scores[self.best_look][self.place].double()

    def objectives(self) -> list[float]:
        """The mean objective of its members at each look; NaN before the first step."""
        members = slice(self.place * self.n_folds, (self.place + 1) * self.n_folds)
        seen = [losses.get("objective") for losses in self.outcome.losses]
        return [float("nan") if losses is None else float(losses[members].mean()) for losses in seen]
