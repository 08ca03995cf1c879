"""The loop: steps until the budget ends, looks at held-out rows in between, and the best of what was seen is kept.

What is learnt, and how, is a `Learner`'s business: a population of plans, a network, a baseline. What its state is worth is a
judge's: one score for each held-out row. The loop knows when to look, when it is over, and what to do about Ctrl-C and
about numbers that are no numbers.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fewpairs.training.interrupts import ends_early, stop_if_asked

__all__ = ["Budget", "Learner", "Look", "Outcome", "one_cycle", "train"]

FIRST_LOOK = 10

# The score of each held-out row, higher is better, (candidates, rows); NaN where none is held out.
Look = Callable[[], Tensor]


class Learner(Protocol):
    """What can be trained: one candidate or several, each of which is judged by itself."""

    @property
    def n_candidates(self) -> int: ...

    def step(self, done: float) -> Mapping[str, Tensor]:
        """Takes a step, when this part of the work is done; what it saw, by name, one number a candidate or a member."""
        ...

    def is_finite(self) -> Tensor:
        """For each candidate, whether all that it has learnt are finite numbers, (candidates,)."""
        ...

    def is_lost(self) -> bool:
        """Whether there is nothing to go on with."""
        ...

    def remember(self, which: Tensor) -> None:
        """Keeps the state of some candidates, (candidates,), in place of what was kept before; at first it is the beginning."""
        ...

    def restore(self) -> None:
        """Goes back to what was kept."""
        ...


@dataclass(frozen=True)
class Budget:
    """When to look, and when it is over.

    Attributes:
        max_steps: The steps at the most.
        seconds: The seconds at the most; None is no bound. Whatever changes over time fits itself into the nearer bound.
        n_looks: How often the held-out rows are looked at.
        looks_early: Whether looks are close together at first, as for a network of many parameters, which has learnt all from
            few pairs within some tens of steps; or else evenly spread, the first before the first step.
        look_cost: What a look costs, in steps, where that is worth a thought: looks, but the last, are then at least so many
            steps apart, and those that would take more than half of the seconds are left out.
        patience: It is over after so many looks without a better one.
        too_far: A loss at held-out rows, of a kind that is never negative, that ends more than so many times above its best has
            run away.
    """

    max_steps: int
    seconds: float | None = None
    n_looks: int = 25
    looks_early: bool = False
    look_cost: float = 0.0
    patience: float = math.inf
    too_far: float = math.inf


@dataclass
class Outcome:
    """What happened.

    Attributes:
        steps: The step of each look.
        seconds: The seconds it came at.
        losses: For each name, what the step before each look saw.
        scores: The scores of each look, (candidates, rows).
        means: Their weighted means, (candidates,).
        best: For each candidate, the look whose state was kept.
        ended: "finished", "out of time", "interrupted" or "diverged".
    """

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[Mapping[str, Tensor]] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    best: Tensor = field(default_factory=lambda: torch.zeros(0))
    ended: str = "finished"

    def history(self) -> dict[str, list[float]]:
        """For one candidate: a list for each of "step", "seconds", "held_out" (lower is better), and what its steps saw."""
        names = list(dict.fromkeys(name for losses in self.losses for name in losses))
        return {
            "step": list(self.steps),
            "seconds": list(self.seconds),
            "held_out": [-float(mean[0]) for mean in self.means],
            **{name: [float(losses.get(name, torch.tensor(math.nan))) for losses in self.losses] for name in names},
        }

    @property
    def best_step(self) -> int:
        """For one candidate: the step whose state was kept."""
        return self.steps[int(self.best[0])] if self.steps else 0

    def refuse_if_nothing_was_learnt(self) -> None:
        """Passes Ctrl-C on if it came before the first step: there is nothing to keep."""
        if self.ended == "interrupted" and not any(self.steps):
            raise KeyboardInterrupt


def train(
    learner: Learner,
    judge: Look,
    budget: Budget,
    *,
    weight: Tensor | None = None,
    on_step: Callable[[float], None] = lambda done: None,
) -> Outcome:
    """Trains in place, and leaves the best state that was seen (the last finite one if nothing is held out).

    Arguments:
        learner: What is trained.
        judge: Looks at the held-out rows.
        budget: When to look, and when to end.
        weight: How much each of these rows counts, (rows,); None is all alike.
        on_step: Called after each step with the part of the work done so far.
    """
    return _Run(learner, judge, budget, weight, on_step).run()


def one_cycle(done: float) -> float:
    """The step size as a part of its peak, when this part of the work is done: a cosine up, a longer cosine down."""
    rise = 0.3
    if done < rise:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * done / rise)) / 2
    return 1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2


class _Run:
    """One training run: where it stands, and what it has seen."""

    def __init__(
        self,
        learner: Learner,
        judge: Look,
        budget: Budget,
        weight: Tensor | None,
        on_step: Callable[[float], None],
    ) -> None:
        self.learner, self.judge, self.budget, self.weight, self.on_step = learner, judge, budget, weight, on_step
        self.outcome = Outcome(best=torch.zeros(learner.n_candidates, dtype=torch.long))
        self.best_mean = torch.full((learner.n_candidates,), -math.inf, dtype=torch.float64)
        self.start = time.perf_counter()
        self.step, self.done, self.next_look = 0, 0.0, 0.0
        self.looked_at, self.look_seconds = 0, math.nan
        self.losses: Mapping[str, Tensor] = {}
        first = min(FIRST_LOOK, max(budget.max_steps // budget.n_looks, 1))
        self.early = set(np.geomspace(first, budget.max_steps, budget.n_looks).round().astype(int).tolist())

    def run(self) -> Outcome:
        if not self.budget.looks_early:
            self.look()
        with ends_early(self.outcome):
            while self.goes_on():
                stop_if_asked()
                self.losses = self.learner.step(self.done)
                self.step += 1
                if self.is_due() and self.has_time_to_look() and self.look():
                    break
                self.on_step(self.done)
        self.look_at_the_end()
        self.learner.restore()
        return self.outcome

    def goes_on(self) -> bool:
        """Whether there is another step to take; if not, why."""
        budget = self.budget
        if self.step >= budget.max_steps:
            return False
        self.done = self.step / budget.max_steps
        if budget.seconds is not None:
            reserved = self.time_of_look() if self.has_time_to_look() and self.step > self.looked_at else 0.0
            self.done = max(self.done, (self.elapsed() + reserved) / max(budget.seconds, 1e-9))
        if self.done >= 1:
            self.outcome.ended = "out of time"
        return self.done < 1

    def is_due(self) -> bool:
        budget = self.budget
        if self.step == budget.max_steps:
            return True
        if budget.looks_early:
            return self.step in self.early and self.step - self.looked_at >= budget.look_cost
        return self.step % max(budget.max_steps // budget.n_looks, 1) == 0 or self.done >= self.next_look

    def look(self, *, judges: bool = True) -> bool:
        """Looks at the held-out rows, and says whether it is over."""
        began, outcome = time.perf_counter(), self.outcome
        scores = self.judge().detach().cpu() if judges else torch.full((self.learner.n_candidates, 1), math.nan)
        is_held_out = ~torch.isnan(scores).all(0)
        weight = torch.ones(scores.shape[1]) if self.weight is None else self.weight.cpu()
        weight = weight.double()[is_held_out]
        mean = (scores[:, is_held_out].double() * weight).sum(1) / weight.sum()
        self.looked_at, self.look_seconds = self.step, time.perf_counter() - began
        self.next_look = self.done + 1 / self.budget.n_looks
        outcome.steps.append(self.step)
        outcome.seconds.append(time.perf_counter() - self.start)
        outcome.losses.append({name: loss.detach().cpu() for name, loss in self.losses.items()})
        outcome.scores.append(scores)
        outcome.means.append(mean)

        is_better, was_judged = self.learner.is_finite().cpu(), bool(torch.isfinite(self.best_mean).any())
        if is_held_out.any() or was_judged:
            is_better &= mean > self.best_mean
            self.best_mean = torch.where(is_better, mean, self.best_mean)
        outcome.best[is_better] = len(outcome.steps) - 1
        self.learner.remember(is_better)
        has_no_score = judges and (is_held_out.any() or was_judged) and not torch.isfinite(mean).any()
        if self.step > 0 and (self.learner.is_lost() or has_no_score):
            outcome.ended = "diverged"
            return True
        return len(outcome.steps) - 1 - int(outcome.best.max()) >= self.budget.patience

    def look_at_the_end(self) -> None:
        """Looks at what was learnt since, unless that costs much; without any look, what there is is kept unjudged."""
        has_looked = bool(self.outcome.steps)
        if self.looked_at == self.step and has_looked:
            pass
        elif not self.losses or not self.has_time_to_look():
            if not has_looked:
                self.look(judges=False)
        # Whoever interrupts is in a hurry.
        elif self.outcome.ended != "interrupted" or self.budget.look_cost == 0 or not has_looked:
            self.look()
        if self.outcome.ended == "finished" and self.budget.too_far < math.inf:
            loss, least = -float(self.outcome.means[-1][0]), -float(self.best_mean[0])
            if loss > self.budget.too_far * least:
                self.outcome.ended = "diverged"

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def time_of_look(self) -> float:
        """The seconds that a look takes: as the last one, or as so many steps."""
        if self.budget.look_cost == 0:
            return 0.0
        seconds = self.budget.look_cost * self.elapsed() / max(self.step, 1)
        return seconds if math.isnan(self.look_seconds) else self.look_seconds

    def has_time_to_look(self) -> bool:
        return self.budget.seconds is None or self.time_of_look() <= self.budget.seconds / 2
