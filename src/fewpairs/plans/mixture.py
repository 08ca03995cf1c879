"""Plans: conditional distributions p(y|x) = exp(f(y) − c(x, y)) / Z(x), made of a cost c and a potential f.

A `MixturePlan` knows its normaliser exactly. With slopes v_m(x), a_m(x) and atoms w_n, b_n, B_n,

    z_mn(x) = w_n v_m(x) exp(½ a_mᵀB_n a_m + b_nᵀa_m),    Z(x) = Σ_mn z_mn(x),

and p(y|x) is a mixture of M·N Gaussians with weights z_mn/Z, means b_n + B_n a_m(x) and covariances B_n. How a plan is
learnt lives in `objectives` and `training`. An `EnsemblePlan` averages the densities of several plans.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fewpairs.plans.conditionals import ConditionalEnsemble, ConditionalMixture, log_partition
from fewpairs.plans.costs import SlopeCost, slope_cost
from fewpairs.plans.potentials import ATOMS, MixturePotential
from fewpairs.plans.products import logsumexp_product

__all__ = ["Ensemble", "EnsemblePlan", "MixturePlan", "Plan"]


class Plan(nn.Module, ABC):
    """Abstract: a cost and a potential with a normaliser that is known. What `objectives`, `smoothing` and `training` need.

    Attributes:
        cost: c; cost(x, y) is one number a row, cost.between(x, y) that of every x with every y.
        potential: f; potential(y) is one number a row.
        least_effective: So many y's must share the weight of an x before a divergence of p(·|x) can be read off them.
    """

    cost: Any
    potential: Any
    least_effective: ClassVar[float] = 5.0

    @abstractmethod
    def log_partition(self, x: Tensor) -> Tensor:
        """log Z(x) = log ∫ exp(f(y) − c(x, y)) dy."""

    @abstractmethod
    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""

    @abstractmethod
    def log_marginal(self, y: Tensor, source: Tensor, source_weight: Tensor | None = None) -> Tensor:
        """log p̂(y), where p̂ is the average of p(·|x) over the source, weighted if weights are given."""

    @abstractmethod
    def log_base(self, x: Tensor, y: Tensor, x_weight: Tensor, y_weight: Tensor) -> Tensor:
        """How probable each y is beside its cost, up to a constant, (R,): softmax over y of log_base − c is p(·|x) on them."""


class MixturePlan(Plan):
    """Creates the plan of a slope cost and a mixture potential; `plan(x)` is the distribution of y given x.

    Arguments:
        cost: The cost c.
        potential: The potential f.

    Example:
        >>> plan = MixturePlan(SlopeCost(dim_x=2, dim_y=1, n_slopes=3), MixturePotential(dim_y=1, n_atoms=5))
        >>> plan(torch.zeros(4, 2)).sample((10,)).shape
        torch.Size([10, 4, 1])
    """

    cost: SlopeCost
    potential: MixturePotential

    def __init__(self, cost: SlopeCost, potential: MixturePotential) -> None:
        super().__init__()
        self.cost = cost
        self.potential = potential

    @classmethod
    def of_shape(
        cls, *, dim_x: int, dim_y: int, n_atoms: int, covariance: str, n_slopes: int, **options: Any
    ) -> "MixturePlan":
        """A plan of a given shape, as `shape` tells it."""
        cost = SlopeCost(dim_x=dim_x, dim_y=dim_y, n_slopes=n_slopes, **options)
        return cls(cost, MixturePotential(dim_y=dim_y, n_atoms=n_atoms, covariance=covariance))

    def shape(self) -> dict[str, Any]:
        """What it takes to make a plan with tensors of the same names and sizes."""
        kind = next(name for name, kind in ATOMS.items() if kind is self.potential.kind)
        return {**self.cost.shape, "n_atoms": len(self.potential.b), "covariance": kind}

    def energy(self, x: Tensor, y: Tensor) -> Tensor:
        """c(x, y) − f(y), so that p(y|x) ∝ exp(−energy)."""
        return self.cost(x, y) - self.potential(y)

    def log_partition(self, x: Tensor) -> Tensor:
        """log Z(x) = log ∫ exp(−energy(x, y)) dy."""
        return log_partition(*self.cost.slopes(x), self.potential.atoms())

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""
        log_v, a = self.cost.slopes(x)
        return self.potential(y) - slope_cost(log_v, a, y) - log_partition(log_v, a, self.potential.atoms())

    def log_prob_between(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x) of every x with every y, (Q, R)."""
        return self.potential(y) - self.cost.between(x, y) - self.log_partition(x).unsqueeze(-1)

    def log_marginal(self, y: Tensor, source: Tensor, source_weight: Tensor | None = None) -> Tensor:
        """log p̂(y), where p̂ is the average of p(·|x) over the source, weighted if weights are given.

        The atoms enter through f(y) and log Z(x) alone; what remains is one product of the y's with all slopes of the
        source: log p̂(y) = f(y) + log Σ_qm exp(⟨a_m(x_q), y⟩ + log v_m(x_q) − log Z(x_q) + log weight_q).
        """
        log_v, a = self.cost.slopes(source)
        log_share = -log_partition(log_v, a, self.potential.atoms())
        if source_weight is None:
            log_share = log_share - math.log(len(source))
        else:
            least = torch.finfo(y.dtype).tiny  # a weight of zero must stay finite as a logarithm
            log_share = log_share + (source_weight / source_weight.sum()).clamp(min=least).log()
        columns = torch.cat([a, (log_v + log_share.unsqueeze(-1)).unsqueeze(-1)], dim=-1).flatten(0, 1)
        return self.potential(y) + logsumexp_product(y, columns)

    def log_base(self, x: Tensor, y: Tensor, x_weight: Tensor, y_weight: Tensor) -> Tensor:
        """How probable each y is beside its cost, up to a constant, (R,): softmax over y of log_base − c is p(·|x) on these y's.

        The y's are points of the plan's own marginal p̂, so p(y|x) stands against p̂(y), for which the x's of a minibatch do.
        """
        log_joint = -self.cost.between(x, y) - self.log_partition(x).unsqueeze(-1)
        log_share = (x_weight / x_weight.sum()).clamp(min=1e-30).log().unsqueeze(-1)
        return y_weight.clamp(min=1e-30).log() - torch.logsumexp(log_joint + log_share, dim=0)

    def conditional(self, x: Tensor, loc: Tensor | None = None, scale: Tensor | None = None) -> ConditionalMixture:
        """The distribution of `loc + scale · y` given x, for x of shape (rows, dim_x)."""
        log_v, a = self.cost.slopes(x)
        loc = a.new_zeros(a.shape[-1]) if loc is None else loc
        scale = a.new_ones(a.shape[-1]) if scale is None else scale
        return ConditionalMixture(log_v, a, self.potential.atoms(), loc, scale)

    def forward(self, x: Tensor) -> ConditionalMixture:
        return self.conditional(x)

    def sample(self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Draws y's of shape (n_samples, rows, dim_y)."""
        return self.conditional(x).sample((n_samples,), generator=generator)


class Ensemble(nn.Module):
    """Creates several plans with a share each; what is averaged is said by the kinds of it.

    Arguments:
        members: The plans, or ensembles of them.
        shares: Their weights; they sum to one.
    """

    def __init__(self, members: "Sequence[Plan | Ensemble]", shares: Tensor) -> None:
        super().__init__()
        self._members = nn.ModuleList(members)
        self.shares: Tensor
        self.register_buffer("shares", shares)

    @property
    def members(self) -> list[Any]:
        return list(self._members)


class EnsemblePlan(Ensemble):
    """Creates the plan p(y|x) = Σ_k share_k p_k(y|x) of several mixture plans: a mixture of mixtures, still in closed form."""

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""
        return self.conditional(x).log_prob(y)

    def log_marginal(self, y: Tensor, source: Tensor, source_weight: Tensor | None = None) -> Tensor:
        """log p̂(y), where p̂ is the average of p(·|x) over the source, weighted if weights are given."""
        each = torch.stack([member.log_marginal(y, source, source_weight) for member in self.members], dim=-1)
        return torch.logsumexp(each + self.shares.log(), dim=-1)

    def log_prob_between(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x) of every x with every y, (Q, R)."""
        each = torch.stack([member.log_prob_between(x, y) for member in self.members], dim=-1)
        return torch.logsumexp(each + self.shares.log(), dim=-1)

    def conditional(self, x: Tensor, loc: Tensor | None = None, scale: Tensor | None = None) -> ConditionalEnsemble:
        """The distribution of `loc + scale · y` given x, for x of shape (rows, dim_x)."""
        return ConditionalEnsemble([member.conditional(x, loc, scale) for member in self.members], self.shares)

    def forward(self, x: Tensor) -> ConditionalEnsemble:
        return self.conditional(x)

    def sample(self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Draws y's of shape (n_samples, rows, dim_y)."""
        return self.conditional(x).sample((n_samples,), generator=generator)
