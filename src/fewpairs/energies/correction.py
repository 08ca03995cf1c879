"""Correction: networks improve a base whose density is known.

Draws of the base give log Z(x), so that the likelihood of pairs and the bounded, marginal one of unpaired rows can be had. A pair
meets a base that has not seen it: else there would be nothing to correct.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.energies.corrected import CorrectedPlan
from fewpairs.energies.descent import Adam, Descent, EnergyLearner
from fewpairs.energies.energy import Energy
from fewpairs.plans.ensemble import EnsemblePlan
from fewpairs.training.batches import Hand, minibatches

__all__ = ["Correction", "Task"]

MOST_TO_CORRECT = 2000  # held-out pairs that judge, with draws of a base
ROWS_TO_JUDGE = 250  # of them at once: their draws fill no cache
LEAST_TO_JUDGE = 5  # held-out pairs, for a correction to be kept
DRAWS_OF_BASE_TO_JUDGE = 128
ANCHOR = 0.1  # of log² Z(x): u has a free number for each x, and would else wander off to where its bound flattens it
LOOK_AHEAD = 16  # steps for which a base draws at once


class Task(NamedTuple):
    """What a step of a correction needs: a minibatch with pairs of one fold, and draws of the fold's base.

    Attributes:
        draws_of_pairs: At the pairs' x's, (n, pairs, dim_y).
        draws: At the source's, (n, rows, dim_y); none if nobody asks.
    """

    fold: int
    hand: Hand
    x_pairs: Tensor
    x: Tensor
    draws_of_pairs: Tensor
    draws: Tensor


@dataclass(kw_only=True)
class Correction(EnergyLearner[Task]):
    """Improves a base: by the likelihood of pairs, and by the bounded one of unpaired rows.

    Attributes:
        energy: What is learnt.
        samples: Pairs with the folds they are in below; source and target.
        folds: The fold of each pair, (P,). The pairs of fold 0 judge and do not teach.
        bases: For each fold a base that has not seen its pairs.
        objective: "marginal" or "supervised".
        unpaired_weight: The weight of the unpaired rows under "marginal".
        n_draws: The draws of the base at each x of a step.
        smoothing: The noise added to the x that networks see in training.
    """

    energy: Energy
    samples: Samples
    folds: Tensor
    bases: Sequence[EnsemblePlan]
    objective: str
    unpaired_weight: float
    n_draws: int
    smoothing: float
    batch_size: int
    adam: Adam

    def __post_init__(self) -> None:
        super().__init__(self.energy, self._batches())
        self.descent = Descent(self.energy, self.adam)
        here = self.folds == 0
        self._x, self._y = (rows[here][:MOST_TO_CORRECT] for rows in (self.samples.pairs_x, self.samples.pairs_y))
        if len(self._x):
            with torch.no_grad():
                draws = self.bases[0].conditional(self._x).sample((DRAWS_OF_BASE_TO_JUDGE,))
            size = ROWS_TO_JUDGE
            self._judges = self._x.split(size), self._y.split(size), draws.split(size, dim=1)

    def _batches(self) -> Iterator["Task"]:
        """Minibatches, each with pairs of one fold and draws of its base."""
        parts: dict[int, Iterator[Hand]] = {}
        source, target = (self._without_judges(rows) for rows in (self.samples.source, self.samples.target))
        for fold in range(1, len(self.bases)):
            here = self.folds == fold
            if bool(here.any()):
                pairs = Samples(self.samples.pairs_x[here], self.samples.pairs_y[here], source, target)
                parts[fold] = minibatches(pairs, self.batch_size)
        ahead: dict[int, list[Task]] = {fold: [] for fold in parts}
        for fold in itertools.cycle(parts):
            if not ahead[fold]:
                ahead[fold] = self._prepare(fold, [next(parts[fold]) for _ in range(LOOK_AHEAD)])
            yield ahead[fold].pop()

    def _prepare(self, fold: int, hands: list[Hand]) -> list["Task"]:
        """What some steps need; their bases draw for all of them at once, which takes as long as for one."""
        each = [len(hand.pairs_x) for hand in hands], [len(hand.source) for hand in hands]
        x_pairs, x = (torch.cat([getattr(hand, name) for hand in hands]) for name in ("pairs_x", "source"))
        with torch.no_grad():
            draws = self.bases[fold].conditional(x_pairs).sample((self.n_draws,))
            more = draws[:, :0]
            if self.objective == "marginal":
                more = self.bases[fold].conditional(x).sample((self.n_draws,))
        parts = x_pairs.split(each[0]), x.split(each[1]), draws.split(each[0], dim=1)
        others = more.split(each[1], dim=1) if self.objective == "marginal" else [more] * len(hands)
        return [Task(fold, *task) for task in zip(hands, *parts, others, strict=True)]

    def _without_judges(self, rows: Tensor) -> Tensor:
        """Source or target without the points of the pairs that judge; the pairs' own points lie in front of the others."""
        stays = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        stays[: len(self.folds)] = self.folds != 0
        return rows[stays]

    def _learn(self, task: "Task") -> Mapping[str, Tensor]:
        plan = CorrectedPlan(self.bases[task.fold], self.energy)
        of_pairs, of_source = (self.smoothing * torch.randn_like(rows) for rows in (task.x_pairs, task.x))
        energy, log_partition = plan.weigh(task.x_pairs, task.hand.pairs_y, task.draws_of_pairs, of_pairs)
        # The base's own density of the pairs is left out: no step changes it.
        loss = (energy + log_partition + ANCHOR * log_partition.square()).mean()
        if self.objective == "marginal":
            loss = (
                loss - self.unpaired_weight * plan.log_marginal(task.hand.target, task.x, task.draws, of_source).mean()
            )
        self.descent.step(loss)
        return {"loss": loss.detach()}

    def gains(self) -> Tensor:
        """What the correction brings to the log-likelihood of each held-out pair."""
        plan = CorrectedPlan(self.bases[0], self.energy)
        with torch.no_grad():
            found = [plan.weigh(*some) for some in zip(*self._judges, strict=True)]
        return -torch.cat([energy + log_partition for energy, log_partition in found])

    def judge(self) -> Tensor:
        """The gain of each held-out pair, (1, pairs)."""
        if len(self._x) == 0:
            return torch.zeros(1, 0)
        return self.gains().nan_to_num(nan=-math.inf).unsqueeze(0)

    def weigh(self, strengths: Sequence[float]) -> tuple[float, float, float]:
        """How much of the correction to keep, and what that brings to held-out pairs, with a standard error.

        All of it if nothing is held out; none of it if too few pairs judge, or if the best part does not bring two standard
        errors: a choice among looks and parts finds more than one by chance.
        """
        if len(self._x) < LEAST_TO_JUDGE:
            return (0.0 if len(self._x) else 1.0), math.nan, math.nan
        found = []
        for strength in strengths:
            self.energy.strength.fill_(strength)
            gains = self.gains().double()
            found.append((float(gains.mean()), float(gains.std()) / math.sqrt(len(gains)), strength))
        self.energy.strength.fill_(1.0)
        gain, error, strength = max(found)
        return (strength if gain > 2 * error else 0.0), gain, error
