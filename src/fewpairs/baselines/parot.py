"""parOT: a map T that moves points little, takes the pairs' x's to their y's, and the source to what looks like the target.

min over T of  w_cost E|x − T(x)|² + w_match MMD²(T#source, target) + w_pairs E|y − T(x)|²  (Panda et al., 2023).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fewpairs.baselines.base import Baseline
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, at_least
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.learners import Step

__all__ = ["ParOT"]

N_KERNELS = 5
WIDEST = 4.0  # of the kernels, in mean distances between y's; each of the others is half as wide as the one before
MOST_ROWS = 1000  # for the mean distance


@dataclass(kw_only=True, eq=False, repr=False)
class ParOT(Baseline):
    """Parametric push-forward estimation with map constraints.

    The divergence is the unbiased squared MMD with a mixture of Gaussian kernels: it has no inner loop, and on minibatches its
    gradient is unbiased, which a Sinkhorn divergence's is not. The map is a plain network rather than an invertible flow, so
    that x and y may have different dimensions; the transport cost then has no meaning and is left out. Nothing is held out unless
    asked for: where y varies given x, the square error of held-out pairs prefers a map that has not yet looked at the target.

    Arguments:
        hidden: The widths of the map's hidden layers.
        cost_weight: Of the transport cost.
        match_weight: Of the divergence between the images of the source and the target.
        pairs_weight: Of the pairs' square error.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "parOT"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")
    is_stochastic: ClassVar[bool] = False

    hidden: tuple[int, ...] = (128, 128, 128)
    cost_weight: float = 0.01
    match_weight: float = 100.0
    pairs_weight: float = 1.0
    held_out: float = 0.0

    rules: ClassVar[dict[str, Rule]] = {
        **Baseline.rules,
        "cost_weight": at_least(0),
        "match_weight": at_least(0),
        "pairs_weight": at_least(0),
    }

    def _make(self, dim_x: int, dim_y: int) -> nn.Module:
        return make_mlp(dim_x, dim_y, hidden=self.hidden)

    def _start(self, networks: nn.Module, samples: Samples) -> Step:
        optimizer = torch.optim.Adam(networks.parameters(), lr=self.learning_rate)
        target = samples.target
        width = torch.pdist(target[torch.randperm(len(target), device=target.device)[:MOST_ROWS]]).mean()
        has_cost = samples.source.shape[1] == samples.target.shape[1]

        def step(batch: Samples) -> dict[str, Tensor]:
            images = networks(batch.source)
            losses = {
                "match": self.match_weight * mmd_squared(images, batch.target, width),
                "pairs": self.pairs_weight * (networks(batch.pairs_x) - batch.pairs_y).square().sum(-1).mean(),
            }
            if has_cost:
                losses["cost"] = self.cost_weight * (images - batch.source).square().sum(-1).mean()
            optimizer.zero_grad()
            torch.stack(list(losses.values())).sum().backward()
            optimizer.step()
            return {name: loss.detach() for name, loss in losses.items()}

        return step

    def _draw(self, networks: nn.Module, x: Tensor) -> Tensor:
        return networks(x)


def mmd_squared(points: Tensor, others: Tensor, width: Tensor) -> Tensor:
    """The unbiased squared maximum mean discrepancy, with a uniform mixture of Gaussian kernels; gradients go through it.

    Arguments:
        points: Points of one distribution, (n, dim).
        others: Points of the other, (m, dim).
        width: The central width; the others are 1/4, 1/2, 2 and 4 times as wide.
    """

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1) - 2 * a @ b.mT
        part = total = (-squares / (2 * (WIDEST * width) ** 2)).exp()
        for _ in range(N_KERNELS - 1):
            part = part.square().square()  # half the width: one exponential serves all kernels
            total = total + part
        return total / N_KERNELS

    n, m = len(points), len(others)
    within = (kernel(points, points).sum() - n) / (n * (n - 1))  # the diagonal is n ones
    within_others = (kernel(others, others).sum() - m) / (m * (m - 1))
    return within + within_others - 2 * kernel(points, others).mean()
