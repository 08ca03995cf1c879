"""What a family of plans promises: members before training, where a search begins, and the yardsticks that need none."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.networks.dice import borrowed_dice
from fewpairs.plans.ensemble import Ensemble, Part
from fewpairs.plans.plan import Plan
from fewpairs.selection.candidates import Candidate, Options, Value
from fewpairs.selection.judges import Judge
from fewpairs.training.objectives import OBJECTIVES

__all__ = ["Family"]


@dataclass(kw_only=True)
class Family(ABC):
    """Abstract: plans of one kind for one set of samples.

    Attributes:
        samples: What is learnt from, standardised.
        judge: Folds of the pairs, and what each pair counts.
        random: The source of randomness.
        grid: The settings along whose values a search goes step by step.
        tie: Candidates nearer than so many standard errors are tied, and the plainest one is taken.
        learns_anew: Whether members are learnt anew from all pairs once the folds have judged.
    """

    samples: Samples
    judge: Judge
    random: np.random.RandomState

    grid: ClassVar[tuple[str, ...]]
    tie: ClassVar[float] = 0.25
    learns_anew: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._seeds = self.random.randint(2**31, size=self.judge.folds.n_folds)

    @abstractmethod
    def begin(self) -> dict[str, Value]:
        """Where the search begins: a value for each setting."""

    def limit(self, options: Options, objective: str) -> Options:
        """The options as far as they make sense for an objective: only "marginal" has a weight of the unpaired rows."""
        return dict(options) if objective == "marginal" else {**options, "unpaired_weight": (0.0,)}

    def objective(self, candidate: Candidate) -> Callable[..., Tensor]:
        """What its members minimise."""
        return OBJECTIVES[candidate.objective]

    def members(self, candidate: Candidate, n_folds: int) -> list[Plan]:
        """The plans of a candidate before training, one a fold."""
        plans = []
        for fold in range(n_folds):
            with borrowed_dice():  # networks draw their first weights
                torch.manual_seed(int(self._seeds[fold]))
                plans.append(self.member(candidate, fold).to(self.samples.source.dtype))
        return plans

    @abstractmethod
    def member(self, candidate: Candidate, fold: int) -> Plan:
        """The plan of one fold; torch's own generator draws its first weights."""

    @abstractmethod
    def ignoring_x(self) -> tuple[Plan, Tensor]:
        """The best model that ignores x: its plan, and log p(y) of each held-out pair by the fold that has not seen it."""

    def linear(self) -> tuple[list[Plan], Tensor] | None:
        """The linear plan of each fold, and log p(y|x) of each pair by the fold that has not seen it; None if there is none."""
        return None

    @abstractmethod
    def ensemble(self, parts: Sequence[Part], shares: Tensor) -> Ensemble:
        """The plan that averages the densities of several."""

    def narrow(self, candidate: Candidate) -> Candidate:
        """The candidate, or a narrower one where y itself has narrower heaps."""
        return candidate

    def roughness(self, candidate: Candidate) -> tuple[float, ...]:
        """Of candidates that are tied the one with the least is taken."""
        return candidate.roughness
