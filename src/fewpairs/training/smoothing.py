"""Smoothing: how plans are kept smooth in x, where a network could be wild between a few pairs.

A strategy changes the minibatch that a training step sees, or adds a penalty to its objective. It speaks to a whole
population; strengths are in standard deviations of x and may be one number or one for each member.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.plans.plan import Plan
from fewpairs.training.populations import Population

__all__ = ["AdversarialSmoothing", "NoSmoothing", "NoiseSmoothing", "Smoothing"]


class Smoothing(Protocol):
    def smooth(self, samples: Samples, n_folds: int, generator: torch.Generator | None = None) -> Samples:
        """The minibatch, (members, rows, …), as the objective shall see it."""
        ...

    def penalty(self, population: Population, samples: Samples, generator: torch.Generator | None = None) -> Tensor:
        """What is added to the objective of each member."""
        ...


@dataclass(frozen=True)
class NoSmoothing:
    """Leaves the data as they are."""

    def smooth(self, samples: Samples, n_folds: int, generator: torch.Generator | None = None) -> Samples:
        return samples

    def penalty(self, population: Population, samples: Samples, generator: torch.Generator | None = None) -> Tensor:
        return samples.source.new_zeros(())


@dataclass(frozen=True)
class NoiseSmoothing(NoSmoothing):
    """Adds fresh Gaussian noise to every x in every step: what holds at x shall hold nearby.

    Arguments:
        std: The standard deviation of the noise.
        n_copies: How often each pair appears in a step, each time with noise of its own, where pairs are few and their
            gradients noisy …
        most_rows: … but no more of them than make so many rows.
    """

    std: float | Tensor
    n_copies: int = 4
    most_rows: int = 1024

    def smooth(self, samples: Samples, n_folds: int, generator: torch.Generator | None = None) -> Samples:
        if isinstance(self.std, float) and self.std == 0:
            return samples  # copies without noise would all be the same
        n_copies = max(min(self.n_copies, self.most_rows // samples.pairs_x.shape[1]), 1)
        return replace(
            samples,
            pairs_x=self._shake(samples.pairs_x.repeat(1, n_copies, 1), n_folds, generator),
            pairs_y=samples.pairs_y.repeat(1, n_copies, 1),
            pairs_weight=samples.pairs_weight.repeat(1, n_copies),
            relevance=samples.relevance.repeat(1, n_copies),
            source=self._shake(samples.source, n_folds, generator),
        )

    def _shake(self, x: Tensor, n_folds: int, generator: torch.Generator | None) -> Tensor:
        return x + _column(self.std, x) * _noise_like(x, n_folds, generator)


@dataclass(frozen=True)
class AdversarialSmoothing(NoiseSmoothing):
    """Adds noise, and penalises KL(p(·|x) ‖ p(·|x + r)) for the small r that changes the plan most at x.

    The divergence is read off the minibatch's y's: with w = softmax over y of log_base − c, which is p(·|x) on these y's, it is
    Σ w (log w − log w′), where w′ is the same at x + r. What does not depend on x cancels, so the cost alone is needed.

    Arguments:
        std: The standard deviation of the noise.
        n_copies, most_rows: See `NoiseSmoothing`.
        radius: The length of r, as a part of √dim_x; one number, or one for each member.
        weight: The weight of the penalty.
        n_rows: The x's of a minibatch at which r is looked for.
    """

    radius: float | Tensor = 0.15
    weight: float = 1.0
    n_rows: int = 64

    def penalty(self, population: Population, samples: Samples, generator: torch.Generator | None = None) -> Tensor:
        x, x_weight, y = samples.source[:, : self.n_rows], samples.source_weight[:, : self.n_rows], samples.target
        with torch.no_grad():
            log_base = population(_log_base, x, y, x_weight, samples.target_weight).unsqueeze(1)
            log_w = (log_base - population(_cost_between, x, y)).log_softmax(-1)
            w = log_w.exp()
            is_readable = (1 / (w * w).sum(-1) >= population.kind.least_effective).to(x) * x_weight

        def divergence(r: Tensor) -> Tensor:
            log_moved = (log_base - population(_cost_between, x + r, y)).log_softmax(-1)
            return (w * (log_w - log_moved)).sum(-1)

        length = _column(self.radius, x) * math.sqrt(x.shape[-1])
        direction = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        r = (1e-1 * length * _unit(direction)).requires_grad_()
        (steepest,) = torch.autograd.grad(divergence(r).sum(), r)
        penalty = divergence(length * _unit(steepest.detach()))
        return self.weight * (is_readable * penalty).sum(-1) / is_readable.sum(-1).clamp(min=1.0)


def _cost_between(plan: Plan, x: Tensor, y: Tensor) -> Tensor:
    return plan.cost.between(x, y)


def _log_base(plan: Plan, x: Tensor, y: Tensor, x_weight: Tensor, y_weight: Tensor) -> Tensor:
    return plan.log_base(x, y, x_weight, y_weight)


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def _column(strength: float | Tensor, like: Tensor) -> Tensor:
    """A strength, or one for each member, that multiplies (members, rows, columns)."""
    strength = strength if isinstance(strength, Tensor) else like.new_full((1,), strength)
    return strength.to(like).reshape(-1, 1, 1)


def _noise_like(x: Tensor, n_folds: int, generator: torch.Generator | None) -> Tensor:
    """Normal noise, the same for all candidates of a fold: what they differ in is then their settings alone."""
    noise = torch.randn((n_folds, *x.shape[1:]), dtype=x.dtype, device=x.device, generator=generator)
    return noise.repeat(len(x) // n_folds, 1, 1)
