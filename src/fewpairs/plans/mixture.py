"""The mixture plan, whose normaliser is known exactly: a slope cost c and a mixture potential f. With slopes
v_m(x), a_m(x) and atoms w_n, b_n, B_n,

    z_mn(x) = w_n v_m(x) exp(½ a_mᵀB_n a_m + b_nᵀa_m),    Z(x) = Σ_mn z_mn(x),

and p(y|x) is a mixture of M·N Gaussians with weights z_mn/Z, means b_n + B_n a_m(x) and covariances B_n. How a plan is
learnt lives in `training`; an `EnsemblePlan` averages the densities of several.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fewpairs.plans.conditionals import ConditionalMixture, log_partition
from fewpairs.plans.costs import SlopeCost, slope_cost
from fewpairs.plans.plan import Config, Plan
from fewpairs.plans.potentials import ATOMS, MixturePotential
from fewpairs.plans.products import logsumexp_product

__all__ = ["MixturePlan"]


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
    def from_config(
        cls, *, dim_x: int, dim_y: int, n_atoms: int, covariance: str, n_slopes: int, **options: Any
    ) -> "MixturePlan":
        """A plan with random numbers, of the tensors that `config` tells of."""
        cost = SlopeCost(dim_x=dim_x, dim_y=dim_y, n_slopes=n_slopes, **options)
        return cls(cost, MixturePotential(dim_y=dim_y, n_atoms=n_atoms, covariance=covariance))

    @property
    def config(self) -> Config:
        """What it takes to make a plan with tensors of the same names and sizes."""
        kind = next(name for name, kind in ATOMS.items() if kind is self.potential.kind)
        return {**self.cost.config, "n_atoms": len(self.potential.b), "covariance": kind}

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
