"""Training: draw minibatches, smooth them, take a step for every member of a population; watch held-out pairs, keep the best.

A gradient that is not finite counts as zero, and what the loop leaves behind is, for each candidate, the best state it has
seen (the last finite one where nothing is held out), whether it ran to its end, out of time, into Ctrl-C or into numbers
that no longer make sense.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.plans.mixture import Plan
from fewpairs.training.cuda_graphs import Graphed
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import Smoothing

__all__ = ["Dealer", "Deck", "JointDealer", "Outcome", "Settings", "score_held_out", "train"]

MAX_SKIPPED = 20  # steps in a row without a finite gradient: by then the parameters themselves are beyond repair


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        learning_rate: Adam's step size for the cost; the peak of it under the one-cycle schedule.
        potential_learning_rate: The same for the potential.
        one_cycle: Whether the step size rises over the first third and then falls to nearly nothing, or stays as it is.
        batch_size: The rows of source and of target in a step.
        pairs_batch_size: The pairs in a step. They cost less: unpaired rows meet each other, pairs do not.
        max_steps: The steps at the most.
        time_budget: The seconds at the most. The schedule fits itself into whichever bound is nearer.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        n_looks: How often, spread over the steps, the held-out pairs are looked at.
        is_coarse: Whether networks multiply in bfloat16 while they learn; held-out pairs are judged in full precision.
    """

    learning_rate: float
    potential_learning_rate: float
    one_cycle: bool
    batch_size: int
    pairs_batch_size: int
    max_steps: int
    time_budget: float | None = None
    max_grad_norm: float | None = None
    n_looks: int = 25
    is_coarse: bool = False


@dataclass
class Outcome:
    """What happened.

    Attributes:
        steps: The step of each look.
        seconds: The seconds it came at.
        objectives: The objective of each member there, (members,).
        scores: log p(y|x) of each pair, by the member of each candidate that has not seen it, (candidates, P); NaN for
            pairs that are not held out.
        best: For each candidate, the look whose plans were kept.
        ended: "finished", "out of time", "interrupted" or "diverged".
    """

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    objectives: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    best: Tensor = field(default_factory=lambda: torch.zeros(0))
    ended: str = "finished"


def train(
    population: Population,
    samples: Samples,
    folds: Folds,
    objective: Callable[..., Tensor],
    *,
    settings: Settings,
    smoothing: Smoothing,
    traits: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
    dealer: "Dealer | JointDealer | None" = None,
    weight: Tensor | None = None,
    on_step: Callable[[int, float], None] = lambda step, done: None,
) -> Outcome:
    """Improves every member in place.

    Arguments:
        population: The plans to begin with; they hold the best parameters afterwards.
        samples: What to learn from.
        folds: What each member must not see.
        objective: What to minimise: objective(plan, samples, **traits).
        settings: Step sizes, batches, bounds.
        smoothing: How to keep plans smooth in x.
        traits: More arguments of the objective, one value for each member.
        generator: The source of randomness.
        dealer: Deals the minibatches, and goes on where the last run left it; None begins anew.
        weight: How much each pair counts when it is held out, (P,); None is its own weight.
        on_step: Called after each step with its number and the part of the work done so far.
    """
    of_cost = [tensor for name, tensor in population.parameters.items() if name.startswith("cost.")]
    of_potential = [tensor for name, tensor in population.parameters.items() if name.startswith("potential.")]
    peaks = (settings.learning_rate, settings.potential_learning_rate)
    groups: list[dict[str, Any]] = [
        # Each group has a tensor of its own for its rate: a recorded graph reads it from its place.
        {"params": parameters, "peak": peak, "lr": torch.zeros((), device=samples.source.device)}
        for parameters, peak in zip((of_cost, of_potential), peaks, strict=True)
    ]
    dealer = dealer or Dealer(samples, settings, generator)
    seen_by = folds.to(samples.source.device)
    is_cuda = samples.source.is_cuda
    optimizer = torch.optim.Adam(groups, fused=True, capturable=is_cuda)

    def take_step(*hands: Tensor) -> tuple[Tensor, Tensor]:
        batch = smoothing.smooth(dealer.deal(hands, seen_by, len(population)), folds.n_folds, generator)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(samples.source.device.type, torch.bfloat16, enabled=settings.is_coarse):
            losses = population(partial(_evaluate, objective), vars(batch), dict(traits or {}))
            penalties = smoothing.penalty(population, batch, generator)
        (losses + penalties).sum().backward()
        is_finite = _tame([*of_cost, *of_potential], losses, settings.max_grad_norm)
        optimizer.step()
        return losses.detach(), is_finite

    step_with = Graphed(take_step, generator) if is_cuda else take_step
    watch = _Watch(population, samples, folds, samples.pairs_weight if weight is None else weight)
    outcome = watch.outcome
    start = time.perf_counter()
    look_every, next_look = max(settings.max_steps // settings.n_looks, 1), 0.0
    skipped = torch.zeros(len(population), dtype=torch.long, device=samples.source.device)
    losses = torch.full((len(population),), math.nan)
    step = 0
    watch.look(0, losses, 0.0)
    try:
        while step < settings.max_steps:
            done = step / settings.max_steps
            if settings.time_budget is not None:
                done = max(done, (time.perf_counter() - start) / max(settings.time_budget, 1e-9))
            if done >= 1:
                outcome.ended = "out of time"
                break
            _set_rates(optimizer, _one_cycle(done) if settings.one_cycle else 1.0)
            losses, is_finite = step_with(*dealer.hands(folds.n_folds))
            skipped = torch.where(is_finite, 0, skipped + 1)
            step += 1
            if step % look_every == 0 or done >= next_look:
                next_look = done + 1 / settings.n_looks
                watch.look(step, losses, time.perf_counter() - start)
                if bool((skipped >= MAX_SKIPPED).all()):
                    outcome.ended = "diverged"
                    break
            on_step(step, done)
    except KeyboardInterrupt:
        outcome.ended = "interrupted"
    if outcome.steps[-1] != step:
        watch.look(step, losses, time.perf_counter() - start)
    watch.restore()
    return outcome


def score_held_out(population: Population, samples: Samples, folds: Folds) -> Tensor:
    """log p(y|x) of each pair by the members that have not seen it, (candidates, P); NaN for pairs that all have seen."""
    n_candidates = len(population) // folds.n_folds
    rows = folds.rows().to(samples.pairs_x.device)
    outcome = torch.full((n_candidates, len(samples.pairs_x)), math.nan, dtype=samples.pairs_x.dtype)
    if rows.shape[1] == 0:
        return outcome
    hands = rows.clamp(min=0).repeat(n_candidates, 1)
    with torch.no_grad():
        scores = population(_log_prob, samples.pairs_x[hands], samples.pairs_y[hands]).cpu()
    scores, rows = scores.unflatten(0, (n_candidates, folds.n_folds)), rows.cpu()
    outcome[:, rows[rows >= 0]] = scores[:, rows >= 0]
    return outcome


def _log_prob(plan: Plan, x: Tensor, y: Tensor) -> Tensor:
    return plan.log_prob(x, y)


def _evaluate(
    objective: Callable[..., Tensor], plan: Plan, batch: dict[str, Tensor], traits: dict[str, Tensor]
) -> Tensor:
    return objective(plan, Samples(**batch), **traits)


def _tame(parameters: list[Tensor], losses: Tensor, max_norm: float | None) -> Tensor:
    """Shortens the gradient of each member, and takes one that is not finite as zero. Says which were finite."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    is_finite = torch.isfinite(norms) & torch.isfinite(losses)
    factor = (max_norm / norms.clamp(min=1e-30)).clamp(max=1.0) if max_norm is not None else torch.ones_like(norms)
    factor = torch.where(is_finite, factor, 0.0)
    for gradient in gradients:
        # In place, and of a gradient that is not finite nothing is left: networks are larger than what they learn from.
        gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(factor.reshape(-1, *[1] * (gradient.ndim - 1)))
    return is_finite


class Dealer:
    """Deals minibatches: one for each fold, the same for all candidates, without the rows that the fold holds out.

    Rows are dealt like cards, every row once before any comes again, so that training sees all of them.
    """

    def __init__(self, samples: Samples, settings: Settings, generator: torch.Generator | None) -> None:
        self.samples = samples
        self.sizes = (settings.pairs_batch_size, settings.batch_size, settings.batch_size)
        n_rows = (len(samples.pairs_x), len(samples.source), len(samples.target))
        self.decks = [Deck(n, samples.source.device, generator) for n in n_rows]

    def reshuffle_pairs(self, generator: torch.Generator) -> None:
        """Pairs from a full deck, in an order of their own; unpaired rows, of which there may be too many for one run, go on."""
        self.decks[0] = Deck(self.decks[0].n_rows, self.decks[0].device, generator)

    def hands(self, n_folds: int) -> tuple[Tensor, ...]:
        """The numbers of the next rows of pairs, source and target, (n_folds, rows) each."""
        return tuple(deck.deal(n_folds, size) for deck, size in zip(self.decks, self.sizes, strict=True))

    def deal(self, hands: tuple[Tensor, ...], folds: Folds, n_members: int) -> Samples:
        """A minibatch with a leading axis of members; a row that a member must not see has weight zero."""
        some, (p, q, r) = self.samples, hands
        fold = torch.arange(folds.n_folds, device=some.source.device).unsqueeze(1)
        parts = {
            "pairs_x": some.pairs_x[p],
            "pairs_y": some.pairs_y[p],
            "source": some.source[q],
            "target": some.target[r],
            "pairs_weight": some.pairs_weight[p] * (folds.pairs[p] != fold),
            "source_weight": some.source_weight[q] * (folds.source[q] != fold),
            "target_weight": some.target_weight[r] * (folds.target[r] != fold),
            "relevance": some.relevance[p],
        }
        n_candidates = n_members // folds.n_folds
        return Samples(**{name: part.repeat(n_candidates, *[1] * (part.ndim - 1)) for name, part in parts.items()})


class JointDealer:
    """Deals for members that learn from data sets of their own, with equally many rows: one dealer and one member each."""

    def __init__(self, dealers: Sequence[Dealer]) -> None:
        self.dealers = dealers
        if len({tuple(deck.n_rows for deck in dealer.decks) for dealer in dealers}) > 1:
            raise ValueError("Data sets that are learnt from together must have equally many rows of each kind.")

    def hands(self, n_folds: int) -> tuple[Tensor, ...]:
        each = [dealer.hands(n_folds) for dealer in self.dealers]
        return tuple(torch.cat(parts) for parts in zip(*each, strict=True))

    def deal(self, hands: tuple[Tensor, ...], folds: Folds, n_members: int) -> Samples:
        batches = [
            vars(dealer.deal(tuple(hand[place : place + 1] for hand in hands), folds, 1))
            for place, dealer in enumerate(self.dealers)
        ]
        return Samples(**{name: torch.cat([batch[name] for batch in batches]) for name in batches[0]})


class Deck:
    def __init__(self, n_rows: int, device: torch.device, generator: torch.Generator | None) -> None:
        self.n_rows, self.device, self.generator = n_rows, device, generator
        self.left = torch.zeros(0, dtype=torch.long, device=device)

    def deal(self, n_hands: int, n_cards: int) -> Tensor:
        """Row numbers, (n_hands, n_cards), or all rows for each hand if there are no more."""
        if n_cards >= self.n_rows:
            return torch.arange(self.n_rows, device=self.device).expand(n_hands, -1)
        while len(self.left) < n_hands * n_cards:
            shuffled = torch.randperm(self.n_rows, generator=self.generator, device=self.device)
            self.left = torch.cat([self.left, shuffled])
        dealt, self.left = self.left.split([n_hands * n_cards, len(self.left) - n_hands * n_cards])
        return dealt.reshape(n_hands, n_cards)


class _Watch:
    """Looks at the held-out pairs and remembers the best state of each candidate, all its folds at the same step."""

    def __init__(self, population: Population, samples: Samples, folds: Folds, weight: Tensor) -> None:
        self.population, self.samples, self.folds = population, samples, folds
        self.is_held_out = folds.pairs >= 0
        self.weight = weight.cpu().double()[self.is_held_out]
        n_candidates = len(population) // folds.n_folds
        self.best_score = torch.full((n_candidates,), -math.inf, dtype=torch.float64)
        self.best = population.state()
        self.outcome = Outcome(best=torch.zeros(n_candidates, dtype=torch.long))

    @torch.no_grad()
    def look(self, step: int, losses: Tensor, seconds: float) -> None:
        scores = score_held_out(self.population, self.samples, self.folds)
        outcome = self.outcome
        outcome.steps.append(step)
        outcome.seconds.append(seconds)
        outcome.objectives.append(losses.cpu())
        outcome.scores.append(scores)
        is_better = self.population.is_finite().cpu().unflatten(0, (-1, self.folds.n_folds)).all(1)
        if self.is_held_out.any():
            mean = (scores[:, self.is_held_out].double() * self.weight).sum(1) / self.weight.sum()
            is_better &= mean > self.best_score
            self.best_score = torch.where(is_better, mean, self.best_score)
        outcome.best[is_better] = len(outcome.steps) - 1
        chosen = is_better.repeat_interleave(self.folds.n_folds)
        for name, tensor in self.population.parameters.items():
            self.best[name][chosen] = tensor.detach()[chosen]

    def restore(self) -> None:
        self.population.set_state(self.best)


def _set_rates(optimizer: torch.optim.Optimizer, part: float) -> None:
    """Sets the step size of each group to this part of its peak."""
    for group in optimizer.param_groups:
        group["lr"].fill_(part * group["peak"])


def _one_cycle(done: float) -> float:
    """The step size as a part of its peak, when this part of the work is done: a cosine up, a longer cosine down."""
    rise = 0.3
    if done < rise:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * done / rise)) / 2
    return 1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2
