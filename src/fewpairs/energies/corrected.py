"""Corrected plans: p(y|x) = b(y|x) exp(−u(x, y)) / Z(x), a base b that is known in closed form times a bounded energy.

Z(x) is the mean of exp(−u) over draws of the base, so draws are exact, and densities can be estimated as well as one likes.
"""

import math

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from fewpairs.energies.energy import Energy, InformedCost
from fewpairs.plans.conditionals import ConditionalEnsemble
from fewpairs.plans.ensemble import EnsemblePlan

__all__ = ["CorrectedConditional", "CorrectedPlan", "hear_opinions", "n_opinions"]

MOST_AT_ONCE = 2**16  # draws of a base at once, of which some stay
NEAR = 0.7  # standard deviations of y, the root mean square over its outputs
N_DRAWS = 1000  # of the base, for a normaliser


class CorrectedPlan(nn.Module):
    """Creates the plan p(y|x) = b(y|x) exp(−u(x, y)) / Z(x); `plan(x)` is the distribution of y given x.

    Arguments:
        base: b, a plan that is known in closed form.
        energy: u, with a bound: it is what makes draws possible in bounded time.
    """

    def __init__(self, base: EnsemblePlan, energy: Energy) -> None:
        super().__init__()
        if energy.bound is None:
            raise ValueError(
                "The energy of a correction needs a bound: without one, no draw of the base would ever be kept."
            )
        self.base, self.energy = base, energy

    def forward(
        self, x: Tensor, n_draws: int = N_DRAWS, generator: torch.Generator | None = None
    ) -> "CorrectedConditional":
        """p(·|x), whose normaliser and mean are estimated from so many draws of the base."""
        return CorrectedConditional(self, x, n_draws, generator)

    def energies(self, x: Tensor, y: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """u of several y's for each x, (n, rows, dim_y), without the last axis. Noise is added to the x that networks see; the
        base is asked about x itself."""
        return self.energies_given(self.base.conditional_of_parts(x), x + noise, y)

    def energies_given(self, conditional: ConditionalEnsemble, x: Tensor, y: Tensor) -> Tensor:
        """The same where the base has been asked about x already."""
        if not isinstance(self.energy.cost, InformedCost):
            return self.energy.of_draws(x, y)
        with torch.no_grad():
            opinions = hear_opinions(conditional, y)
        return self.energy.of_draws(x, y, opinions)

    def weigh(self, x: Tensor, y: Tensor, draws: Tensor, noise: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        """u(x, y), one number a row, and log Z(x), estimated from draws of the base at each x, (n, rows, dim_y)."""
        energies = self.energies(x, torch.cat([y.unsqueeze(0), draws]), noise)
        return energies[0], _log_mean_unbiased(-energies[1:])

    def log_partition(self, x: Tensor, draws: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """log Z(x), estimated from draws of the base at each x, (n, rows, dim_y)."""
        return _log_mean_unbiased(-self.energies(x, draws, noise))

    def log_marginal(self, y: Tensor, source: Tensor, draws: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """log p̂(y), p̂ the average of p(·|x) over the source, with log Z from draws of the base at each of its x's."""
        everywhere = y.unsqueeze(1).expand(-1, len(source), -1)
        log_joint = self.base.log_prob_between(source, y) - self.energies(source, everywhere, noise).mT
        log_share = -self.log_partition(source, draws, noise) - math.log(len(source))
        return torch.logsumexp(log_joint + log_share.unsqueeze(-1), dim=0)


class CorrectedConditional(Distribution):
    """Creates p(·|x) of a corrected plan at some x's: exact draws, estimates of densities and means.

    Arguments:
        plan: The plan.
        x: The x's, (rows, dim_x).
        n_draws: The draws of the base that estimates are made from.
        generator: The source of randomness; None is torch's own.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real_vector

    def __init__(self, plan: CorrectedPlan, x: Tensor, n_draws: int, generator: torch.Generator | None) -> None:
        self.plan, self.x, self.n_draws, self.generator = plan, x, n_draws, generator
        self.base = plan.base.conditional_of_parts(x)
        super().__init__(self.base.batch_shape, self.base.event_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(y|x), estimated, of a y for each x."""
        return self.base.log_prob(value) + self.estimate_log_ratio(value)[0]

    def estimate_log_ratio(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y|x) − log b(y|x) of a y for each x, and its standard error, one number a row each."""
        if float(self.plan.energy.strength) == 0:
            return torch.zeros_like(self.x[:, 0]), torch.zeros_like(self.x[:, 0])
        draws = self.base.sample((self.n_draws,), generator=self.generator)
        energies = self.plan.energies_given(self.base, self.x, torch.cat([value.unsqueeze(0), draws]))
        weight = (-energies[1:]).exp()
        log_ratio = -energies[0] - weight.mean(0).log()
        return log_ratio, weight.std(0) / (weight.mean(0) * math.sqrt(self.n_draws))

    @property
    def mean(self) -> Tensor:
        """The mean of y at each x, (rows, dim_y), by draws of the base, each with the weight exp(−u)."""
        draws = self.base.sample((self.n_draws,), generator=self.generator)
        share = (-self.plan.energies_given(self.base, self.x, draws)).softmax(dim=0)
        return (share.unsqueeze(-1) * draws).sum(0)

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Tensor:
        """Draws y's of shape (*sample_shape, rows, dim_y), exactly: a draw of the base stays with the chance
        exp(−u) / exp(bound)."""
        shape, x, plan = torch.Size(sample_shape), self.x, self.plan
        n_samples = shape.numel()
        most = float(plan.energy.strength) * float(plan.energy.bound or 0.0)
        n_found = torch.zeros(len(x), dtype=torch.long, device=x.device)
        kept = x.new_empty((n_samples, len(x), *self.event_shape))
        waiting = torch.arange(len(x), device=x.device)
        while len(waiting):
            conditional = plan.base.conditional_of_parts(x[waiting])
            # As many as are likely to be enough for the row that lacks most.
            n_tries = math.ceil((n_samples - int(n_found[waiting].min())) * math.exp(most))
            n_tries = max(min(n_tries, MOST_AT_ONCE // len(waiting)), 1)
            y = conditional.sample((n_tries,), generator=self.generator)
            chance = torch.rand(y.shape[:2], generator=self.generator, dtype=y.dtype, device=y.device)
            stays = chance.log() <= -plan.energies_given(conditional, x[waiting], y) - most
            place = n_found[waiting] + stays.cumsum(0) - 1
            draw, column = (stays & (place < n_samples)).nonzero(as_tuple=True)
            kept[place[draw, column], waiting[column]] = y[draw, column]
            n_found[waiting] += stays.sum(0)
            waiting = (n_found < n_samples).nonzero().squeeze(1)
        return kept.reshape(*shape, *self.batch_shape, *self.event_shape)


def hear_opinions(conditional: ConditionalEnsemble, y: Tensor) -> Tensor:
    """What a base thinks of y's of shape (n, rows, dim_y), in numbers of the order of one, (n, rows, `n_opinions`): how likely it
    finds them, how much more likely each of its parts does, and how much of its mass is anywhere near.

    The last one lets networks sharpen p(y|x) without taking mass from one mode to another: a step that makes every mode
    narrower and the largest one larger gains a lot for the one and loses little for the other, as far as likelihoods can tell.
    """
    of_parts = conditional.log_probs(y)
    log_prob = torch.logsumexp(of_parts + conditional.shares.log(), dim=-1, keepdim=True)
    nearness = conditional.log_nearness(y, NEAR).unsqueeze(-1)
    return torch.cat(
        [log_prob.clamp(-12, 12) / 3, (of_parts - log_prob).clamp(-5, 5) / 2, nearness.clamp(min=-9) / 3], dim=-1
    )


def n_opinions(base: EnsemblePlan) -> int:
    """How many numbers `hear_opinions` gives."""
    return len(base.parts) + 2


def _log_mean_unbiased(log_weight: Tensor) -> Tensor:
    """The logarithm of the mean weight over the first axis.

    The logarithm of a mean over n draws is too low by some c / n, which would reward an energy that varies much; over n / 2 draws
    by twice as much. The difference is added.
    """
    half = len(log_weight) // 2
    whole, *halves = (_log_mean(part) for part in (log_weight, log_weight[:half], log_weight[half:]))
    return 2 * whole - (halves[0] + halves[1]) / 2


def _log_mean(log_weight: Tensor) -> Tensor:
    return log_weight.logsumexp(0) - math.log(len(log_weight))
