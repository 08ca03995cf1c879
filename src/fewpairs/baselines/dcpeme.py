"""DCPEME: entropic transport from source to target under a learnt cost, whose barycentric map sends the pairs' x's to their y's.

c(x, y) = |φ(x) − y|²/2 with a network φ; exp((f + g − c)/ε) is the entropic plan between source and target, and its map is
T(x) = Σ_j y_j exp((g_j − c(x, y_j))/ε) / Σ_j exp((g_j − c(x, y_j))/ε)  (Cuturi et al., 2023).
min over φ of E|y − T(x)|² over the pairs, g being a function of φ (Howard et al., 2024).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fewpairs.baselines.base import Baseline
from fewpairs.baselines.sinkhorn import sinkhorn
from fewpairs.data.samples import Samples
from fewpairs.estimators.rules import Rule, above, whole
from fewpairs.networks.perceptrons import make_mlp
from fewpairs.training.learners import Step, descend

__all__ = ["DCPEME", "implicit_potential"]

RIDGE = 1e-3  # keeps the implicit gradient finite where parts of a plan hardly touch each other
LEAST_SHARE = 1e-15  # the products of smaller ones are numbers that a processor is slow with


class _EntropicMap(nn.Module):
    """The cost, and the map through stored rows of source and target and the potential between them."""

    source: Tensor
    target: Tensor
    potential: Tensor

    def __init__(
        self, source: Tensor, target: Tensor, hidden: tuple[int, ...], epsilon: float, n_iterations: int
    ) -> None:
        super().__init__()
        dim_x, dim_y = source.shape[1], target.shape[1]
        self.epsilon, self.n_iterations = epsilon, n_iterations
        self.starts_at_x = dim_x == dim_y  # then the cost begins at |x − y|²/2
        self.network = make_mlp(dim_x, dim_y, hidden=hidden, last_std=1e-3 if self.starts_at_x else None)
        self.register_buffer("source", source)
        self.register_buffer("target", target)
        self.register_buffer("potential", torch.zeros_like(target[:, 0]))

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        moved = self.network(x) + x if self.starts_at_x else self.network(x)
        return (moved.square().sum(-1, keepdim=True) + y.square().sum(-1)) / 2 - moved @ y.mT

    def send(self, x: Tensor, y: Tensor, potential: Tensor) -> Tensor:
        """The barycentre of the y's that x goes to."""
        return torch.softmax((potential - self.cost(x, y)) / self.epsilon, dim=-1) @ y

    def forward(self, x: Tensor) -> Tensor:
        return self.send(x, self.target, self.potential)

    @torch.no_grad()
    def refresh(self) -> None:
        """Solves the transport between the stored rows for the cost as it is now, from the last solution on."""
        cost = self.cost(self.source, self.target)
        self.potential = sinkhorn(cost, self.epsilon, n_iterations=self.n_iterations, start=self.potential)[1]


@dataclass(kw_only=True, eq=False, repr=False)
class DCPEME(Baseline):
    """The differentiable cost-parameterised entropic map estimator.

    The cost is quadratic after a learnt move of x, where the authors also learn a convex function of the difference; their
    map is then the barycentre, whatever the dimensions of x and y. Nothing is held out unless asked for: where y varies given x,
    the square error of held-out pairs prefers a map that has hardly learnt.

    Arguments:
        hidden: The widths of the hidden layers of φ.
        epsilon: The regularisation of transport, with y's of unit variance.
        n_iterations: Sinkhorn's, in each step and each look.
        n_stored: The most rows of source and target that the map keeps to send new x's by.

    See `Baseline` for the others.
    """

    title: ClassVar[str] = "DCPEME"
    learns_from: ClassVar[tuple[str, ...]] = ("pairs", "source", "target")
    is_stochastic: ClassVar[bool] = False

    hidden: tuple[int, ...] = (128, 128, 128)
    epsilon: float = 0.1
    n_iterations: int = 50
    n_stored: int = 1024
    max_steps: int = 1000
    held_out: float = 0.0

    rules: ClassVar[dict[str, Rule]] = {
        **Baseline.rules,
        "epsilon": above(0),
        "n_iterations": whole(1),
        "n_stored": whole(1),
    }

    def _build(self, samples: Samples) -> _EntropicMap:
        return self._map(*(_pick(rows, self.n_stored) for rows in (samples.source, samples.target)))

    def _map(self, source: Tensor, target: Tensor) -> _EntropicMap:
        return _EntropicMap(source, target, self.hidden, self.epsilon, self.n_iterations)

    def _config(self) -> dict[str, Any]:
        return {
            **super()._config(),
            "n_source": len(self.networks_.source),
            "n_target": len(self.networks_.target),
        }

    def _make(self, dim_x: int, dim_y: int, n_source: int = 0, n_target: int = 0) -> _EntropicMap:
        return self._map(torch.zeros(n_source, dim_x), torch.zeros(n_target, dim_y))

    def _start(self, networks: _EntropicMap, samples: Samples) -> Step:
        optimizer = torch.optim.Adam(networks.parameters(), lr=self.learning_rate)

        def loss(batch: Samples) -> Tensor:
            cost = networks.cost(batch.source, batch.target)
            potential = implicit_potential(cost, self.epsilon, n_iterations=self.n_iterations)
            return (networks.send(batch.pairs_x, batch.target, potential) - batch.pairs_y).square().sum(-1).mean()

        return descend(optimizer, loss)

    def _draw(self, networks: _EntropicMap, x: Tensor) -> Tensor:
        return networks(x)

    def _judge(self, networks: Any, x: Tensor, y: Tensor) -> Tensor:
        networks.refresh()  # the stored potential is that of the cost at the last look
        return super()._judge(networks, x, y)


def implicit_potential(cost: Tensor, epsilon: float, *, n_iterations: int) -> Tensor:
    """Sinkhorn's g, with the gradient that the implicit function theorem gives it.

    g solves gap(g, c) = 0, the column sums less what they should be; so dg = −(∂gap/∂g)⁻¹ ∂gap/∂c dc.
    """
    with torch.no_grad():
        g = sinkhorn(cost, epsilon, n_iterations=n_iterations)[1]
    rows = torch.softmax((g - cost) / epsilon, dim=1)
    gap = rows.mean(0) - 1 / rows.shape[1]
    with torch.no_grad():
        n, m = rows.shape
        plain = rows.where(rows > LEAST_SHARE, 0.0)
        slope = torch.diag(rows.mean(0) + RIDGE / m) - plain.mT @ plain / n
        slope = (slope + 1 / m**2) / epsilon  # the constant that may be added to g is tied down
    move = torch.linalg.solve(slope, gap)
    return g - (move - move.detach())


def _pick(rows: Tensor, n_most: int) -> Tensor:
    return rows if len(rows) <= n_most else rows[torch.randperm(len(rows), device=rows.device)[:n_most]]
