"""Class makers: candidates become trained classifiers, by the same search and training as continuous plans."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.plans.classes import ClassCost, ClassEnsemble, ClassPlan, ClassPotential
from fewpairs.selection.makers import Candidate, Maker, Trial
from fewpairs.training.objectives import decisive_marginal

__all__ = ["ClassMaker", "Silent", "cut_by_class"]

LITTLE = 0.2  # of the log-loss: where no early stop cost less, learning from all labels was still the better


@dataclass(kw_only=True)
class ClassMaker(Maker):
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
    first: dict[str, Any]

    ladders = ("adversarial",)
    tie = 1.0  # labels judge a radius badly

    def begin(self) -> dict[str, Any]:
        return self.first

    def limits(self, wishes: Mapping[str, tuple[Any, ...]], objective: str) -> dict[str, tuple[Any, ...]]:
        """Without unlabelled rows there is no direction to look for at them either."""
        limits = super().limits(wishes, objective)
        return {**limits, "adversarial": (0.0,)} if objective == "supervised" else limits

    def objective(self, candidate: Candidate) -> Callable[..., Tensor]:
        if candidate.objective == "marginal":
            return partial(decisive_marginal, decisiveness=self.decisiveness)
        return super().objective(candidate)

    def members(self, candidate: Candidate, n_folds: int) -> list[ClassPlan]:
        plans = []
        for fold in range(n_folds):
            with torch.random.fork_rng(devices=[]):  # networks draw their first weights from torch's global generator
                torch.manual_seed(int(self._seeds[fold]))
                network = self.make_network(candidate.hidden)
            plans.append(ClassPlan(ClassCost(network), ClassPotential(self.log_prior)).to(self.samples.source.dtype))
        return plans

    def ignore_x(self) -> tuple[ClassPlan, Tensor]:
        """The prior, whatever x is."""
        plan = ClassPlan(ClassCost(Silent(len(self.log_prior))), ClassPotential(self.log_prior)).double()
        scores = self.log_prior.double()[self.samples.pairs_y.cpu().long().squeeze(-1)]
        return plan, torch.where(self.folds.pairs >= 0, scores, math.nan)

    def plainness(self, candidate: Candidate) -> tuple[float, ...]:
        """Where the search began is plainest."""
        return (abs(candidate.adversarial - self.first["adversarial"]),)

    def finish(self, trial: Trial) -> Trial:
        """The same candidate, learnt anew from all labels: where they are few, each member would miss those that judged it.

        What was clearly and much better when it was stopped early stays as it is, since nobody would be left to say when to
        stop; and so does a trial that was cut short, or that leaves no time to do better.
        """
        looks, kept = trial.looks(), trial.outcome.steps[trial.best_look]
        (score, _), (loss, error) = self.mean(trial.scores()), self.mean(trial.scores() - looks[-1])
        if trial.outcome.ended in ("interrupted", "diverged") or not loss <= max(error, -LITTLE * score):
            return trial
        nobody = (torch.full_like(rows, -1) for rows in (self.folds.pairs, self.folds.source, self.folds.target))
        (anew,) = self.run(
            [trial.candidate],
            seconds=self.clock.part(0.8),
            title="Learning from all labels",
            progress=(0.5 + 0.5 * self.final_part, 1.0),
            folds=Folds(trial.n_folds, *nobody),
        )
        is_worse = anew.outcome.ended == "diverged" or anew.outcome.steps[-1] < kept
        return replace(trial, outcome=replace(trial.outcome, ended=anew.outcome.ended)) if is_worse else anew

    def ensemble(self, members: list[ClassPlan], shares: Tensor) -> ClassEnsemble:
        return ClassEnsemble(members, shares)


class Silent(nn.Module):
    """Zero for every class."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros((len(x), self.n_classes))


def cut_by_class(samples: Samples, n_folds: int, random: np.random.RandomState) -> Folds:
    """Folds in which every class is spread evenly; the only row of a class is held out from nobody."""
    labels = samples.pairs_y.cpu().long().squeeze(-1).numpy()
    pairs, next_fold = np.full(len(labels), -1), 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        if len(rows) > 1:
            pairs[rows] = (next_fold + np.arange(len(rows))) % n_folds
            next_fold += len(rows)
    source = np.full(len(samples.source), -1)
    source[: len(pairs)] = pairs  # its own x is no unlabelled row to the member that it judges
    target = torch.full((len(samples.target),), -1)
    return Folds(n_folds, torch.from_numpy(pairs), torch.from_numpy(source), target)
