"""Class plans: a network a member, and the prior of the classes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fewpairs.plans.classes import ClassCost, ClassEnsemble, ClassPlan, ClassPotential, Constant
from fewpairs.plans.ensemble import Part
from fewpairs.selection.candidates import Candidate, Options, Value
from fewpairs.selection.families.base import Family
from fewpairs.training.objectives import decisive_marginal

__all__ = ["ClassFamily"]


@dataclass(kw_only=True)
class ClassFamily(Family):
    """Makes class plans.

    Attributes:
        make_network: hidden widths → a network with fresh random weights.
        log_prior: log of the share of each class, (K,).
        decisiveness: See `decisive_marginal`.
        first: Where the search begins.
    """

    make_network: Callable[[tuple[int, ...]], nn.Module]
    log_prior: Tensor
    decisiveness: float
    first: dict[str, Value]

    grid = ("adversarial",)
    tie = 1.0  # labels judge a radius badly
    learns_anew = True  # where labels are few, each member would miss those that judged it

    def begin(self) -> dict[str, Value]:
        return self.first

    def limit(self, options: Options, objective: str) -> Options:
        """Without unlabelled rows there is no direction to look for at them either."""
        limited = super().limit(options, objective)
        return {**limited, "adversarial": (0.0,)} if objective == "supervised" else limited

    def objective(self, candidate: Candidate) -> Callable[..., Tensor]:
        if candidate.objective == "marginal":
            return partial(decisive_marginal, decisiveness=self.decisiveness)
        return super().objective(candidate)

    def member(self, candidate: Candidate, fold: int) -> ClassPlan:
        return ClassPlan(ClassCost(self.make_network(candidate.hidden)), ClassPotential(self.log_prior))

    def ignoring_x(self) -> tuple[ClassPlan, Tensor]:
        """The prior, whatever x is."""
        plan = ClassPlan(ClassCost(Constant(len(self.log_prior))), ClassPotential(self.log_prior)).double()
        scores = self.log_prior.double()[self.samples.pairs_y.cpu().long().squeeze(-1)]
        return plan, torch.where(self.judge.is_held_out, scores, math.nan)

    def ensemble(self, parts: Sequence[Part], shares: Tensor) -> ClassEnsemble:
        return ClassEnsemble(parts, shares)

    def roughness(self, candidate: Candidate) -> tuple[float, ...]:
        """Where the search began is plainest."""
        return (abs(candidate.adversarial - cast(float, self.first["adversarial"])),)
