"""Training: draw a minibatch, smooth it, take a step on the objective; watch held-out pairs and keep the best plan.

A step whose gradient is not finite is not taken, and what the loop leaves behind is always the best plan it has seen (the
last finite one where nothing is held out), whether it ran to its end, out of time, into Ctrl-C or into numbers that no
longer make sense.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fewpairs.data import Samples
from fewpairs.objectives import Objective, supervised
from fewpairs.plans import MixturePlan
from fewpairs.smoothing import Smoothing

__all__ = ["Outcome", "Settings", "train"]

MAX_SKIPPED = 20  # steps in a row without a finite gradient: by then the parameters themselves are beyond repair


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        learning_rate: Adam's step size for the cost; the peak of it under the one-cycle schedule.
        potential_learning_rate: The same for the potential.
        one_cycle: Whether the step size rises over the first third and then falls to nearly nothing, or stays as it is.
        batch_size: The rows of source, of target and of pairs in a step.
        max_steps: The steps at the most.
        time_budget: The seconds at the most. The schedule fits itself into whichever bound is nearer.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        n_evaluations: How often, spread over the steps, the held-out pairs are looked at.
    """

    learning_rate: float
    potential_learning_rate: float
    one_cycle: bool
    batch_size: int
    max_steps: int
    time_budget: float | None = None
    max_grad_norm: float | None = None
    n_evaluations: int = 50


@dataclass
class Outcome:
    """What happened: the evaluations, the step whose plan was kept, why it ended, and steps not taken."""

    history: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "objective": [], "held_out_nll": [], "seconds": []}
    )
    best_step: int = 0
    ended: str = "finished"
    n_skipped: int = 0


def train(
    plan: MixturePlan,
    samples: Samples,
    objective: Objective,
    *,
    settings: Settings,
    smoothing: Smoothing,
    held_out: Samples | None = None,
    generator: torch.Generator | None = None,
    on_step: Callable[[int, float], None] = lambda step, done: None,
) -> Outcome:
    """Improves the plan in place.

    Arguments:
        plan: The plan to begin with; it holds the best parameters afterwards.
        samples: What to learn from.
        objective: What to minimise.
        settings: Step sizes, batches, bounds.
        smoothing: How to keep the plan smooth in x.
        held_out: Pairs to judge by. Without them the last plan is kept.
        generator: The source of randomness.
        on_step: Called after each step with its number and the part of the work done so far.
    """
    parameters = list(plan.parameters())
    groups: list[dict[str, Any]] = [
        {"params": list(plan.cost.parameters()), "peak": settings.learning_rate},
        {"params": list(plan.potential.parameters()), "peak": settings.potential_learning_rate},
    ]
    optimizer = torch.optim.Adam(groups, lr=settings.learning_rate, fused=True)
    outcome = Outcome()
    watch = _Watch(plan, held_out, outcome)
    evaluate_every = max(settings.max_steps // settings.n_evaluations, 1)
    next_look = 0.0
    start = time.perf_counter()
    skipped_in_a_row = 0
    step = 0
    value = math.nan
    try:
        watch.look(0, math.nan, 0.0)
        while step < settings.max_steps:
            elapsed = time.perf_counter() - start
            done = step / settings.max_steps
            if settings.time_budget is not None:
                done = max(done, elapsed / settings.time_budget)
            if done >= 1:
                outcome.ended = "out of time"
                break
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * (_one_cycle(done) if settings.one_cycle else 1.0)

            batch = samples.draw(
                n_pairs=settings.batch_size,
                n_source=settings.batch_size,
                n_target=settings.batch_size,
                generator=generator,
            )
            optimizer.zero_grad(set_to_none=True)
            loss = objective(plan, smoothing.smooth(batch, generator))
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm or math.inf)
            step += 1
            if torch.isfinite(norm + loss):
                optimizer.step()
                skipped_in_a_row = 0
            else:
                outcome.n_skipped += 1
                skipped_in_a_row += 1
                if skipped_in_a_row == MAX_SKIPPED:
                    outcome.ended = "diverged"
                    break
            if step % evaluate_every == 0 or done >= next_look:
                next_look = done + 1 / settings.n_evaluations
                value = float(loss.detach())
                watch.look(step, value, time.perf_counter() - start)
            on_step(step, done)
    except KeyboardInterrupt:
        outcome.ended = "interrupted"
    if outcome.history["step"][-1] != step:
        watch.look(step, value, time.perf_counter() - start)
    watch.restore()
    return outcome


class _Watch:
    """Looks at the held-out pairs, writes the history and remembers the best plan."""

    def __init__(self, plan: MixturePlan, held_out: Samples | None, outcome: Outcome) -> None:
        self.plan, self.held_out, self.outcome = plan, held_out, outcome
        self.best_nll = math.inf
        self.best = copy.deepcopy(plan.state_dict())

    @torch.no_grad()
    def look(self, step: int, objective: float, seconds: float) -> None:
        nll = math.nan if self.held_out is None else float(supervised(self.plan, self.held_out))
        values = {"step": step, "objective": objective, "held_out_nll": nll, "seconds": seconds}
        for name, value in values.items():
            self.outcome.history[name].append(value)
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in self.plan.state_dict().values())
        better = self.held_out is None or nll < self.best_nll
        if finite and better:
            self.best_nll, self.outcome.best_step = nll, step
            self.best = copy.deepcopy(self.plan.state_dict())

    def restore(self) -> None:
        self.plan.load_state_dict(self.best)


def _one_cycle(done: float) -> float:
    """The step size as a part of its peak, when this part of the work is done: a cosine up, a longer cosine down."""
    rise = 0.3
    if done < rise:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * done / rise)) / 2
    return 1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2
