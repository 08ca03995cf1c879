"""Learners: what the loop trains. A population of plans, all members at once; or networks that take steps of their own.

A gradient that is not finite counts as zero for the member it belongs to, and the others go on.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from fewpairs.data.folds import Folds
from fewpairs.data.samples import Samples
from fewpairs.plans.plan import Plan
from fewpairs.training.batches import Dealer, JointDealer
from fewpairs.training.cuda_graphs import Graphed
from fewpairs.training.loop import one_cycle
from fewpairs.training.populations import Population
from fewpairs.training.smoothing import Smoothing

__all__ = [
    "Batch",
    "NetworkLearner",
    "PopulationLearner",
    "PopulationSettings",
    "Step",
    "StepLearner",
    "descend",
    "energy_scores",
    "score_held_out",
]

PARTS = ("cost", "potential")  # of a plan, each with a step size of its own
MAX_SKIPPED = 20  # steps in a row without a finite gradient: by then the parameters themselves are beyond repair

Batch = TypeVar("Batch")
Step = Callable[[Batch], Mapping[str, Tensor]]  # one step with a minibatch; the losses it saw, by name


@dataclass(frozen=True)
class PopulationSettings:
    """How a population is trained.

    Attributes:
        learning_rate: Adam's step size for the cost; the peak of it under the one-cycle schedule.
        potential_learning_rate: The same for the potential.
        one_cycle: Whether the step size rises over the first third and then falls to nearly nothing, or stays as it is.
        batch_size: The rows of source and of target in a step.
        pairs_batch_size: The pairs in a step. They cost less: unpaired rows meet each other, pairs do not.
        max_steps: The steps at the most.
        max_grad_norm: Longer gradients are shortened to it; None leaves them.
        is_coarse: Whether networks multiply in bfloat16 while they learn; held-out pairs are judged in full precision.
    """

    learning_rate: float
    potential_learning_rate: float
    one_cycle: bool
    batch_size: int
    pairs_batch_size: int
    max_steps: int
    max_grad_norm: float | None = None
    is_coarse: bool = False


class PopulationLearner:
    """Creates the learner of a population: one minibatch a fold, one step for all members.

    Arguments:
        population: The plans to begin with; they hold the best parameters afterwards.
        folds: What each member must not see.
        objective: What to minimise: objective(plan, samples, **traits).
        settings: Step sizes and so on.
        smoothing: How to keep plans smooth in x.
        dealer: Deals the minibatches.
        traits: More arguments of the objective, one value for each member.
        generator: The source of randomness.
    """

    def __init__(
        self,
        population: Population,
        folds: Folds,
        objective: Callable[..., Tensor],
        *,
        settings: PopulationSettings,
        smoothing: Smoothing,
        dealer: Dealer | JointDealer,
        traits: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.population, self.objective, self.settings, self.smoothing = population, objective, settings, smoothing
        self.dealer, self.traits, self.generator = dealer, dict(traits or {}), generator
        self.n_folds = folds.n_folds
        parameters = population.parameters
        self.device = next(iter(parameters.values())).device
        self.folds = folds.to(self.device)
        of_parts = [[tensor for name, tensor in parameters.items() if name.startswith(f"{part}.")] for part in PARTS]
        peaks = (settings.learning_rate, settings.potential_learning_rate)
        groups = [
            # Each group has a tensor of its own for its rate: a recorded graph reads it from its place.
            {"params": some, "peak": peak, "lr": torch.zeros((), device=self.device)}
            for some, peak in zip(of_parts, peaks, strict=True)
        ]
        is_cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(groups, fused=True, capturable=is_cuda)
        self.learnt = [tensor for some in of_parts for tensor in some]
        self.recorded = Graphed(self._take_step, generator) if is_cuda else None
        self.skipped = torch.zeros(len(population), dtype=torch.long, device=self.device)
        self.best = population.state()

    @property
    def n_candidates(self) -> int:
        return len(self.population) // self.n_folds

    def step(self, done: float) -> Mapping[str, Tensor]:
        part = one_cycle(done) if self.settings.one_cycle else 1.0
        for group in self.optimizer.param_groups:
            group["lr"].fill_(part * group["peak"])
        take_step = self.recorded or self._take_step
        losses, is_finite = take_step(*self.dealer.hands(self.n_folds))
        self.skipped = torch.where(is_finite, 0, self.skipped + 1)
        return {"objective": losses}

    def _take_step(self, *hands: Tensor) -> tuple[Tensor, Tensor]:
        population, settings = self.population, self.settings
        batch = self.dealer.deal(hands, self.folds, len(population))
        batch = self.smoothing.smooth(batch, self.n_folds, self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.is_coarse):
            losses = population(partial(_evaluate, self.objective), vars(batch), self.traits)
            penalties = self.smoothing.penalty(population, batch, self.generator)
        (losses + penalties).sum().backward()
        is_finite = _tame(self.learnt, losses, settings.max_grad_norm)
        self.optimizer.step()
        return losses.detach(), is_finite

    def is_finite(self) -> Tensor:
        return self.population.is_finite().cpu().unflatten(0, (-1, self.n_folds)).all(1)

    def is_lost(self) -> bool:
        return bool((self.skipped >= MAX_SKIPPED).all())

    def remember(self, which: Tensor) -> None:
        members = which.repeat_interleave(self.n_folds)
        for name, tensor in self.population.parameters.items():
            self.best[name][members] = tensor.detach()[members]

    def restore(self) -> None:
        self.population.set_state(self.best)
        # A recorded graph goes at once, and not when the collector comes by: that may be within the next recording, which fails.
        self.recorded = None


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


class NetworkLearner(ABC, Generic[Batch]):
    """Abstract: the learner of networks that take steps of their own making.

    Arguments:
        networks: Everything that is learnt.
        batches: The minibatches, whatever a step takes as one, without end.
    """

    n_candidates = 1

    def __init__(self, networks: nn.Module, batches: Iterator[Batch]) -> None:
        self.networks, self.batches = networks, batches
        self.losses: Mapping[str, Tensor] = {}
        self.best = copy.deepcopy(networks.state_dict())
        networks.eval()

    def step(self, done: float) -> Mapping[str, Tensor]:
        self.networks.train()
        self.losses = self._learn(next(self.batches))
        self.networks.eval()
        return self.losses

    @abstractmethod
    def _learn(self, batch: Batch) -> Mapping[str, Tensor]:
        """Takes one step with a minibatch; returns its losses by name."""

    def is_finite(self) -> Tensor:
        found = [
            torch.isfinite(tensor).all() for tensor in (*self.networks.state_dict().values(), *self.losses.values())
        ]
        return torch.stack([one.cpu() for one in found]).all().reshape(1)

    def is_lost(self) -> bool:
        return not bool(self.is_finite())

    def remember(self, which: Tensor) -> None:
        if which[0]:
            self.best = copy.deepcopy(self.networks.state_dict())

    def restore(self) -> None:
        self.networks.load_state_dict(self.best)
        self.networks.eval()


class StepLearner(NetworkLearner[Batch]):
    """Creates the learner of networks whose step is a function.

    Arguments:
        networks: Everything that is learnt.
        take_step: One step with a minibatch; returns its losses by name.
        batches: The minibatches.
    """

    def __init__(self, networks: nn.Module, take_step: Step[Batch], batches: Iterator[Batch]) -> None:
        super().__init__(networks, batches)
        self.take_step = take_step

    def _learn(self, batch: Batch) -> Mapping[str, Tensor]:
        return self.take_step(batch)


def descend(optimizer: torch.optim.Optimizer, loss: Callable[[Samples], Tensor]) -> Step[Samples]:
    """The step of a method that has one loss and minimises it."""

    def step(batch: Samples) -> dict[str, Tensor]:
        value = loss(batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return {"loss": value.detach()}

    return step


def energy_scores(draws: Tensor, y: Tensor) -> Tensor:
    """E|Y − y| − ½ E|Y − Y′| of each y, lower is better. Draws are (n, rows, dim_y)."""
    n, at_each = len(draws), draws.transpose(0, 1)
    between = torch.cdist(at_each, at_each).sum((1, 2)) / (n * (n - 1))
    return (draws - y).norm(dim=-1).mean(0) - between / 2
