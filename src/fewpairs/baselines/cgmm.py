"""CGMM: a network from x to a mixture of Gaussians, by the likelihood of the pairs; and the same with a marginal likelihood.

`CGMM` is the paired-only network of the paper's weather table. `CGMMSS` is the paper's semi-supervised baseline: our own plan
under the plain marginal-likelihood loss at μ = 1, all cross terms formed, without any of what makes it work in
`MixtureTranslator`: no smoothing, no floor, no start from the mixture of all y's, no ensemble, no choice.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from fewpairs.baselines.base import DensityBaseline, LikelihoodBaseline
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, whole
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.initial import place_on_samples
from fewpairs.plans.mixture import MixturePlan
from fewpairs.training import objectives
from fewpairs.training.learners import Step, descend

__all__ = ["CGMM", "CGMMSS"]

LEAST_LOG_STD = -7.0  # a thousandth of y's spread: a part that closes in on one pair stays finite


class _MixtureNetwork(nn.Module):
    """x → a mixture of Gaussians with diagonal covariances."""

    def __init__(self, dim_x: int, dim_y: int, n_parts: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = (n_parts, n_parts * dim_y, n_parts * dim_y)
        self.network = make_mlp(dim_x, sum(self.sizes), hidden=hidden)

    def forward(self, x: Tensor) -> MixtureSameFamily:
        log_w, mean, log_std = self.network(x).split(self.sizes, dim=-1)
        mean, log_std = (part.unflatten(-1, (self.sizes[0], -1)) for part in (mean, log_std))
        parts = Independent(Normal(mean, log_std.clamp(min=LEAST_LOG_STD).exp(), validate_args=False), 1)
        return MixtureSameFamily(Categorical(logits=log_w, validate_args=False), parts, validate_args=False)


@dataclass(kw_only=True, eq=False, repr=False)
class CGMM(LikelihoodBaseline):
    """A network from x to a mixture of Gaussians, by the likelihood of the pairs.

    Arguments:
        hidden: The widths of its hidden layers.
        n_parts: The Gaussians of a mixture.
        weight_decay: AdamW's.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "CGMM"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs",)

    hidden: tuple[int, ...] = (64, 64)
    n_parts: int = 20

    rules: ClassVar[dict[str, Rule]] = {
        **LikelihoodBaseline.rules,
        "n_parts": whole(1),
    }

    def _make(self, dim_x: int, dim_y: int) -> nn.Module:
        return _MixtureNetwork(dim_x, dim_y, self.n_parts, self.hidden)


@dataclass(kw_only=True, eq=False, repr=False)
class CGMMSS(DensityBaseline):
    """Our plan's parameterisation under −mean_pairs log p(y|x) − mean_target log p̂(y), p̂ the average of p(·|x) over the source.

    Arguments:
        hidden: The hidden widths of the network of x.
        n_slopes: The slopes of the cost.
        n_atoms: The atoms of the potential; they start on random y's.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "CGMM (SS)"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")

    hidden: tuple[int, ...] = (25,)
    n_slopes: int = 25
    n_atoms: int = 50

    rules: ClassVar[dict[str, Rule]] = {
        **DensityBaseline.rules,
        "n_slopes": whole(1),
        "n_atoms": whole(1),
    }

    def _build(self, samples: Samples) -> MixturePlan:
        target = samples.target
        random = np.random.RandomState(int(torch.randint(2**31, ())))
        atoms = place_on_samples(target, "diagonal", self.n_atoms, 0.1, random)
        cost = SlopeCost(
            dim_x=samples.source.shape[1],
            dim_y=target.shape[1],
            n_slopes=self.n_slopes,
            hidden=self.hidden,
            weight_hidden=(),
            activation="relu",
            slope_std=None,
            learn_scale=False,
        )
        return MixturePlan(cost, atoms.potential(variance_floor=0.0)).float()

    def _config(self) -> dict[str, Any]:
        return self.networks_.config

    def _make(self, dim_x: int, dim_y: int, **options: Any) -> MixturePlan:
        return MixturePlan.from_config(dim_x=dim_x, dim_y=dim_y, **options).float()

    def _start(self, networks: MixturePlan, samples: Samples) -> Step:
        optimizer = torch.optim.Adam(networks.parameters(), lr=self.learning_rate)
        return descend(optimizer, lambda batch: objectives.marginal(networks, batch, unpaired_weight=1.0))

    def _draw(self, networks: MixturePlan, x: Tensor) -> Tensor:
        return networks.sample(x)[0]

    def _log_prob(self, networks: MixturePlan, x: Tensor, y: Tensor) -> Tensor:
        return networks.conditional(x).log_prob(y)
