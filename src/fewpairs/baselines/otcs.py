"""OTCS: optimal-transport-guided conditional score-based diffusion (Gu et al., 2023), for a few pairs among unpaired rows.

First a plan couples the unpaired x's and y's whose relations to the pairs, the key points, agree:
    R_x = softmax_k(−|x − x_k|² / τ),  R_y = softmax_k(−|y − y_k|² / τ),  cost g(x, y) = JS(R_x ‖ R_y),
    min over π of E_π g + ε · |π / (p ⊗ q)|²,  by its dual:  π = p q · (u(x) + v(y) − g(x, y))₊ / 2ε;
each pair keeps to itself. Then a denoiser of y + σz given x and σ learns from what is drawn from that plan, and the
probability-flow equation dy/dσ = (y − denoised) / σ draws from it.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from fewpairs.baselines.base import Baseline
from fewpairs.data import checks
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, above, between, whole
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.batches import Deck
from fewpairs.training.learners import Step, descend

__all__ = ["OTCS"]

MOST_ROWS = 1000  # of x and of y in one transport problem
MOST_KEYS = 256  # pairs that guide one transport problem
LEAST_NOISE, MOST_NOISE = 0.01, 20.0  # σ's, in units of y's spread
WORST_ERROR = 0.05  # of a plan's row and column sums before it is said
N_WAVES = 4  # frequencies by which the network sees log σ


class _Denoiser(nn.Module):
    """E[y | y + σz, x], its input and output at one scale for every σ."""

    def __init__(self, dim_x: int, dim_y: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.dim_y = dim_y
        self.network = make_mlp(dim_x + dim_y + 2 * N_WAVES, dim_y, hidden=hidden)

    def forward(self, noisy: Tensor, noise: Tensor, x: Tensor) -> Tensor:
        """Arguments: y + σz, (rows, dim_y); σ, (rows, 1); x, (rows, dim_x)."""
        spread = (1 + noise**2).sqrt()  # of the noisy y, whose clean part has spread one
        phase = noise.log() / 4 * 2.0 ** torch.arange(N_WAVES, device=noise.device)
        inputs = torch.cat([noisy / spread, x, phase.sin(), phase.cos()], -1)
        return noisy / spread**2 + noise / spread * self.network(inputs)


@dataclass(kw_only=True, eq=False, repr=False)
class OTCS(Baseline):
    """A conditional diffusion model of what a key-point-guided transport plan couples.

    Arguments:
        hidden: The widths of the denoiser's hidden layers.
        temperature: τ, in units of the mean squared distance to a key point.
        regularisation: ε; the smaller, the fewer y's for an x. Where x nearly tells y, a tenth of it serves better.
        pair_share: How often a step's row is a pair; else it is drawn from the plan.
        n_levels: The noise levels on the way from noise to y, each of two evaluations.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "OTCS"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")

    hidden: tuple[int, ...] = (128, 128, 128)
    temperature: float = 0.05
    regularisation: float = 0.03
    pair_share: float = 0.25
    n_levels: int = 18

    rules: ClassVar[dict[str, Rule]] = {
        **Baseline.rules,
        "temperature": above(0),
        "regularisation": above(0),
        "pair_share": between(0, 1),
        "n_levels": whole(2),
    }

    def _make(self, dim_x: int, dim_y: int) -> nn.Module:
        return _Denoiser(dim_x, dim_y, self.hidden)

    def _start(self, networks: _Denoiser, samples: Samples) -> Step:
        rows, columns, odds = self._couple(samples)
        optimizer = torch.optim.Adam(networks.parameters(), lr=self.learning_rate)

        def loss(batch: Samples) -> Tensor:
            n_pairs = int((torch.rand(self.batch_size) < self.pair_share).sum())
            pair = torch.randint(len(samples.pairs_x), (n_pairs,), device=odds.device)
            level = torch.rand(self.batch_size - n_pairs, dtype=odds.dtype, device=odds.device)
            drawn = torch.searchsorted(odds, level).clamp(max=len(odds) - 1)
            x = torch.cat([samples.pairs_x[pair], samples.source[rows[drawn]]])
            y = torch.cat([samples.pairs_y[pair], samples.target[columns[drawn]]])
            noise = (1.2 * torch.randn(len(y), 1, device=y.device) - 1.2).exp()
            error = networks(y + noise * torch.randn_like(y), noise, x) - y
            return (error.square() * (1 + noise**-2)).sum(-1).mean()  # so weighted, every σ asks as much of the network

        return descend(optimizer, loss)

    def _couple(self, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
        """The plan's entries: their rows in the source and in the target, and the cumulative odds of each."""
        n_pairs, device = len(samples.pairs_x), samples.source.device  # the pairs stand first in source and target
        some = torch.arange(n_pairs, len(samples.source), device=device)
        others = torch.arange(n_pairs, len(samples.target), device=device)
        pairs = torch.arange(n_pairs, device=device)
        if not len(some) and not len(others):
            return pairs, pairs, (pairs + 1) / n_pairs
        some, others = some if len(some) else pairs, others if len(others) else pairs
        n_blocks = math.ceil(max(len(some), len(others)) / MOST_ROWS)
        hands = [
            rows[Deck(len(rows), device, None).deal(n_blocks, most)]
            for rows, most in ((some, MOST_ROWS), (others, MOST_ROWS), (pairs, MOST_KEYS))
        ]
        found = []
        for row, column, key in zip(*hands, strict=True):
            relation_x = relation(samples.source[row], samples.pairs_x[key], self.temperature)
            relation_y = relation(samples.target[column], samples.pairs_y[key], self.temperature)
            plan = transport_plan(jensen_shannon(relation_x, relation_y), self.regularisation)
            i, j = plan.nonzero(as_tuple=True)
            found.append((row[i], column[j], plan[i, j]))
        rows, columns, mass = (torch.cat(parts) for parts in zip(*found, strict=True))
        return rows, columns, mass.cumsum(0) / mass.sum()

    def _draw(self, networks: _Denoiser, x: Tensor) -> Tensor:
        """Heun's method on the probability-flow equation, at noise levels that grow finer towards y."""
        levels = torch.linspace(MOST_NOISE ** (1 / 7), LEAST_NOISE ** (1 / 7), self.n_levels, device=x.device) ** 7
        y = MOST_NOISE * torch.randn(len(x), networks.dim_y, device=x.device)

        def slope(y: Tensor, noise: Tensor) -> Tensor:
            return (y - networks(y, noise.expand(len(x), 1), x)) / noise

        for noise, lower in pairwise(levels):
            first = slope(y, noise)
            second = slope(y + (lower - noise) * first, lower)
            y = y + (lower - noise) * (first + second) / 2
        return networks(y, levels[-1].expand(len(x), 1), x)  # what is left of the noise is taken off at once


def relation(rows: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """How near each row is to each key point, (rows, keys); each row sums to one, also where all points are one."""
    squares = torch.cdist(rows, keys) ** 2
    return (-squares / (temperature * squares.mean().clamp(min=1e-12))).softmax(-1)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """The divergence of each row of p from each row of q, (rows of p, rows of q): 0 to log 2."""
    own = [torch.special.entr(some).sum(-1) for some in (p, q)]
    # A row at a time: the table of all rows, columns and key points at once would not fit.
    both = torch.stack([torch.special.entr((row + q) / 2).sum(-1) for row in p])
    return both - (own[0].unsqueeze(1) + own[1]) / 2


def transport_plan(cost: Tensor, regularisation: float) -> Tensor:
    """The L²-regularised plan between uniform weights, entries summing to one: sparse, found by L-BFGS on the dual.

    Rows and columns have uniform sums to within a thousandth.
    """
    n, m = cost.shape
    scaled = (cost / (2 * regularisation)).double()

    def density(potentials: np.ndarray) -> Tensor:
        """Of the plan against p ⊗ q; potentials are in units of 2ε."""
        u, v = torch.as_tensor(potentials, device=cost.device).split([n, m])
        return (u.unsqueeze(1) + v - scaled).clamp(min=0)

    def negative_dual(potentials: np.ndarray) -> tuple[float, np.ndarray]:
        found = density(potentials)
        value = float(found.square().mean() / 2) - potentials[:n].mean() - potentials[n:].mean()
        excess = torch.cat([(found.mean(1) - 1) / n, (found.mean(0) - 1) / m])
        return max(n, m) * value, max(n, m) * excess.cpu().numpy()  # the slope bounds the relative errors of all sums

    options = {"gtol": 1e-3, "ftol": 0.0, "maxcor": 20, "maxiter": 1000, "maxfun": 2000}
    start = np.full(n + m, float(scaled.mean()) / 2)
    result = minimize(negative_dual, start, jac=True, method="L-BFGS-B", options=options)
    error = abs(result.jac).max()
    if error > WORST_ERROR:
        checks.warn_user(
            f"OTCS: the transport plan's sums are off by up to {error:.0%}. A larger regularisation helps.",
            ConvergenceWarning,
        )
    found = density(result.x)
    return found / found.sum()
