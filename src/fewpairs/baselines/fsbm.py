"""FSBM: a diffusion from x to y, learnt from bridges between unpaired rows that were coupled as the pairs suggest.

dz = v(z, t) dt + σ dw with v(z, t) = (E[z₁ | z_t = z] − z)/(1 − t), z_t a Brownian bridge between coupled ends z₀ = x and z₁ = y.
Pairs stay coupled; the others are coupled by entropic transport whose cost favours going where nearby pairs go
(feedback Schrödinger bridge matching; Theodoropoulos et al., 2024).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fewpairs.baselines.base import Baseline
from fewpairs.baselines.sinkhorn import log_sum_exp, sinkhorn
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, above, at_least, between, whole
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.learners import Step, descend

__all__ = ["FSBM"]

N_WAVES = 4  # sines and cosines of time that the network sees
N_NEAR = 16  # pairs that a row listens to
N_POOL = 512  # rows of source and target that are coupled at once
N_ITERATIONS = 100  # Sinkhorn's


class _Bridge(nn.Module):
    """The diffusion; the smaller of x and y is padded with zeros."""

    def __init__(self, dim_x: int, dim_y: int, hidden: tuple[int, ...], noise: float, n_times: int) -> None:
        super().__init__()
        self.dim_y, self.dim = dim_y, max(dim_x, dim_y)
        self.noise, self.n_times = noise, n_times
        self.network = make_mlp(self.dim + 2 * N_WAVES, self.dim, hidden=hidden)

    def widen(self, rows: Tensor) -> Tensor:
        return pad(rows, (0, self.dim - rows.shape[1]))

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """E[z₁ | z_t = z], with times of shape (rows, 1)."""
        angles = t * (math.pi / 2) * 2.0 ** torch.arange(N_WAVES, device=z.device)
        return z + self.network(torch.cat([z, angles.sin(), angles.cos()], dim=-1))

    def matching_loss(self, start: Tensor, end: Tensor) -> Tensor:
        """How far the expected ends are from the true ones, at random times of the bridges."""
        t = torch.rand_like(start[:, :1])
        z = (1 - t) * start + t * end + self.noise * (t * (1 - t)).sqrt() * torch.randn_like(start)
        return (self(z, t) - end).square().sum(-1).mean()

    @torch.no_grad()
    def run(self, start: Tensor) -> Tensor:
        """Where rows end, by Euler–Maruyama with the variance of a bridge, so that the last step adds no noise."""
        z = start
        for k in range(self.n_times):
            share = 1 / (self.n_times - k)  # of the time that is left
            variance = share * (1 - (k + 1) / self.n_times)
            drawn = self.noise * math.sqrt(variance) * torch.randn_like(z)
            z = z + share * (self(z, torch.full_like(z[:, :1], k / self.n_times)) - z) + drawn
        return z


@dataclass(kw_only=True, eq=False, repr=False)
class FSBM(Baseline):
    """Feedback Schrödinger bridge matching.

    Every `refit_every` steps some hundred unpaired rows are coupled afresh: at first by |x − y|²/2, later, in the spirit of
    iterated Schrödinger bridge matching, by |e − y|²/2 with e the end at which the diffusion so far arrives from x. The ends on
    both sides stay the data's own that way, and no backward diffusion is needed. The pairs' feedback enters the cost of the
    coupling; the authors optimise the paths between the ends as well, and here these are Brownian bridges.

    Arguments:
        hidden: The widths of the hidden layers of the network.
        noise: σ, with x's and y's of unit variance; where y varies given x, this is all that can make it vary.
        n_times: The steps in which the diffusion is run.
        guidance: The weight of the pairs' feedback against |x − y|²/2 in the cost.
        epsilon: The regularisation of the coupling.
        pairs_share: The pairs' share of the loss.
        refit_every: The steps between couplings.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "FSBM"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")

    hidden: tuple[int, ...] = (128, 128, 128)
    noise: float = 2.0
    n_times: int = 50
    guidance: float = 10.0
    epsilon: float = 0.1
    pairs_share: float = 0.25
    refit_every: int = 200
    max_steps: int = 2000

    rules: ClassVar[dict[str, Rule]] = {
        **Baseline.rules,
        "noise": above(0),
        "n_times": whole(1),
        "guidance": at_least(0),
        "epsilon": above(0),
        "pairs_share": between(0, 1),
        "refit_every": whole(1),
    }

    def _make(self, dim_x: int, dim_y: int) -> _Bridge:
        return _Bridge(dim_x, dim_y, self.hidden, self.noise, self.n_times)

    def _start(self, networks: _Bridge, samples: Samples) -> Step:
        pairs_x, pairs_y, source, target = map(
            networks.widen, (samples.pairs_x, samples.pairs_y, samples.source, samples.target)
        )
        source, target = source[len(pairs_x) :], target[len(pairs_y) :]  # the pairs come first, and stay coupled
        optimizer = torch.optim.Adam(networks.parameters(), lr=self.learning_rate)
        n_done, x, y, chances = 0, source, target, source[:, :1]

        def couple() -> None:
            nonlocal x, y, chances
            x, y = (rows[torch.randperm(len(rows), device=rows.device)[:N_POOL]] for rows in (source, target))
            end = networks.run(x) if n_done else x
            cost = torch.cdist(end, y).square() / 2 + self.guidance * feedback(x, y, pairs_x, pairs_y)
            _, potential = sinkhorn(cost, self.epsilon, n_iterations=N_ITERATIONS)
            chances = torch.softmax((potential - cost) / self.epsilon, dim=1)

        def loss(batch: Samples) -> Tensor:
            nonlocal n_done
            of_pairs = networks.matching_loss(networks.widen(batch.pairs_x), networks.widen(batch.pairs_y))
            if not (len(source) and len(target)):
                return of_pairs
            if n_done % self.refit_every == 0:
                couple()
            n_done += 1
            chosen = torch.randint(len(x), (self.batch_size,), device=x.device)
            partner = torch.multinomial(chances[chosen], 1).squeeze(1)
            return self.pairs_share * of_pairs + (1 - self.pairs_share) * networks.matching_loss(x[chosen], y[partner])

        return descend(optimizer, loss)

    def _draw(self, networks: _Bridge, x: Tensor) -> Tensor:
        return networks.run(networks.widen(x))[:, : networks.dim_y]


def feedback(x: Tensor, y: Tensor, pairs_x: Tensor, pairs_y: Tensor) -> Tensor:
    """How far it is from y to where x would go if it moved like one of the pairs nearby, (n, m).

    −h² log Σ_k w_k(x) exp(−|x + y_k − x_k − y|²/2h²), a soft minimum over the pairs: where they part, x may follow any of them.
    The weights fall like exp(−|x − x_k|²/2h²), and h = P^(−1/(dim + 4)) is Scott's rule for rows of unit variance.
    """
    reach = len(pairs_x) ** (-1 / (x.shape[1] + 4))
    near = torch.cdist(x, pairs_x).square().topk(min(N_NEAR, len(pairs_x)), largest=False)
    log_weight = torch.log_softmax(-near.values / (2 * reach**2), dim=1)
    guesses = x.unsqueeze(1) + (pairs_y - pairs_x)[near.indices]  # (n, near, dim)
    squares = torch.cdist(guesses, y.expand(len(x), -1, -1)).square()  # (n, near, m)
    return -(reach**2) * log_sum_exp(log_weight.unsqueeze(-1) - squares / (2 * reach**2), dim=1)
