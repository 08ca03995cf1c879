"""The loop of methods with networks: steps of their own making, looks at held-out pairs, and the best look is kept."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewpairs.data.samples import Samples
from fewpairs.training.loop import Deck

__all__ = ["N_TO_JUDGE", "Hand", "Loop", "Step", "deal", "descend", "energy_scores"]

Step = Callable[[Any], Mapping[str, Tensor]]  # one step with a minibatch; the losses it saw, by name

N_TO_JUDGE = 16  # draws at each held-out x for its energy score
N_LOOKS = 30
FIRST_LOOK = 10


@dataclass
class Loop:
    """Runs training and remembers what happened.

    Arguments:
        max_steps: How many steps at the most.
        time_budget: The seconds it may take; None is no bound.
        too_far: A held-out score, of a kind that is never negative, that ends more than so many times above its best has run
            away; infinity never asks.
        patience: Training ends after so many looks without a better one; infinity never does.
        on_step: Called after each step with the part of the work done so far.
        look_cost: What a look costs, in steps, where that is worth a thought: looks, but the last, are then at least so many
            steps apart, and those that would take more than half of a time budget are left out.

    Attributes:
        history: A list for each of "step", "seconds", "held_out" (lower is better; NaN if nothing is held out), and for each
            loss that the step reports.
        best: The number of the look whose networks were kept.
        ended: "finished", "out of time", "interrupted" or "diverged": numbers that are not finite, or a score that ran away.
    """

    max_steps: int
    time_budget: float | None = None
    too_far: float = math.inf
    patience: float = math.inf
    on_step: Callable[[float], None] = lambda done: None
    look_cost: float = 0.0
    history: dict[str, list[float]] = field(default_factory=dict)
    best: int = 0
    ended: str = "finished"

    def run(
        self,
        networks: nn.Module,
        step: Step,
        batches: Iterator[Any],
        judge: Callable[[], float],
    ) -> None:
        """Improves the networks in place.

        Arguments:
            networks: Everything that is learnt.
            step: One step of training with a minibatch; returns its losses by name.
            batches: The minibatches, whatever the step takes as one, without end.
            judge: The score of the networks on held-out pairs, lower is better; NaN keeps the last look.
        """
        start, number, losses = time.perf_counter(), 0, dict[str, Tensor]()
        best_score, best_state = math.inf, copy.deepcopy(networks.state_dict())
        looked_at, look_seconds = 0, math.nan

        def look(judge: Callable[[], float] = judge) -> bool:
            """Looks at the held-out pairs; says whether there is anything to go on with."""
            nonlocal best_score, best_state, looked_at, look_seconds
            began = time.perf_counter()
            score = judge()
            looked_at, look_seconds = number, time.perf_counter() - began
            found = {"step": number, "seconds": time.perf_counter() - start, "held_out": score}
            found |= {name: float(loss) for name, loss in losses.items()}
            for name, value in found.items():
                self.history.setdefault(name, []).append(value)
            is_sound = all(bool(torch.isfinite(tensor).all()) for tensor in networks.state_dict().values())
            is_sound &= all(math.isfinite(value) for name, value in found.items() if name != "held_out")
            # NaN: nothing is held out, and the last look is as good as any; but not where there have been scores before.
            is_sound &= not (math.isnan(score) and math.isfinite(best_score))
            if is_sound and not score >= best_score:
                best_score, self.best = score, len(self.history["step"]) - 1
                best_state = copy.deepcopy(networks.state_dict())
            return is_sound and not math.isinf(score)

        def time_of_look() -> float:
            """The seconds that a look takes: as the last one, or as so many steps."""
            if self.look_cost == 0:
                return 0.0
            seconds = self.look_cost * (time.perf_counter() - start) / max(number, 1)
            return seconds if math.isnan(look_seconds) else look_seconds

        def can_look() -> bool:
            return self.time_budget is None or time_of_look() <= self.time_budget / 2

        # Looks are close together at first: a network of many parameters has learnt all from few pairs within some tens of steps.
        first = min(FIRST_LOOK, max(self.max_steps // N_LOOKS, 1))
        looks = set(np.geomspace(first, self.max_steps, N_LOOKS).round().astype(int).tolist())
        try:
            while number < self.max_steps:
                if self.time_budget is not None:
                    kept = time_of_look() if can_look() and number > looked_at else 0.0  # for the last look
                    if time.perf_counter() - start + kept > self.time_budget:
                        self.ended = "out of time"
                        break
                networks.train()
                losses = dict(step(next(batches)))
                networks.eval()
                number += 1
                is_due = number in looks and number - looked_at >= self.look_cost
                if (is_due or number == self.max_steps) and can_look():
                    if not look():
                        self.ended = "diverged"
                        break
                    if len(self.history["step"]) - 1 - self.best >= self.patience:
                        break
                self.on_step(number / self.max_steps)
        except KeyboardInterrupt:
            self.ended = "interrupted"
        # Whoever interrupts is in a hurry: a last look is for those who have had none yet.
        networks.eval()
        if losses and not self.history and not can_look():
            look(lambda: math.nan)  # what was learnt is kept, unjudged
        elif losses and number > looked_at and can_look() and (self.ended == "out of time" or not self.history):
            look()
        held_out = self.history.get("held_out", [])
        if self.ended == "finished" and self.too_far < math.inf and held_out[-1] > self.too_far * best_score:
            self.ended = "diverged"
        networks.load_state_dict(best_state)
        networks.eval()


@dataclass(frozen=True)
class Hand(Samples):
    """A minibatch: samples, and the numbers of the x's of their source."""

    numbers: Tensor = None  # type: ignore[assignment]  # a dealt hand has them; fields before it have defaults


def deal(samples: Samples, batch_size: int) -> Iterator[Hand]:
    """Minibatches without end, every row once before any comes again; torch's own generator shuffles."""
    device = samples.source.device
    decks = [Deck(len(rows), device, None) for rows in (samples.pairs_x, samples.source, samples.target)]
    while True:
        hands = (deck.deal(1, batch_size)[0] for deck in decks)
        # A deck that is no larger than a hand comes whole and in order: it is shuffled here.
        p, q, r = (hand[torch.randperm(len(hand), device=device)] for hand in hands)
        yield Hand(samples.pairs_x[p], samples.pairs_y[p], samples.source[q], samples.target[r], numbers=q)


def energy_scores(draws: Tensor, y: Tensor) -> Tensor:
    """E|Y − y| − ½ E|Y − Y′| of each y, lower is better. Draws are (n, rows, dim_y)."""
    n, at_each = len(draws), draws.transpose(0, 1)
    between = torch.cdist(at_each, at_each).sum((1, 2)) / (n * (n - 1))
    return (draws - y).norm(dim=-1).mean(0) - between / 2


def descend(optimizer: torch.optim.Optimizer, loss: Callable[[Samples], Tensor]) -> Step:
    """The step of a method that has one loss and minimises it."""

    def step(batch: Samples) -> dict[str, Tensor]:
        value = loss(batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return {"loss": value.detach()}

    return step
