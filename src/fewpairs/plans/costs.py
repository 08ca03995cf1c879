"""Costs c(x, y): how badly y goes with x.

The slope cost is c(x, y) = −log Σ_m v_m(x) exp⟨a_m(x), y⟩, with Σ_m v_m(x) = 1: for each x it is a soft minimum of M
planes in y. Together with a mixture potential it makes a plan in closed form (see `plans`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fewpairs.networks.perceptrons import make_mlp
from fewpairs.plans.plan import Config, Cost

__all__ = ["SlopeCost", "slope_cost"]


def slope_cost(log_v: Tensor, a: Tensor, y: Tensor) -> Tensor:
    """c = −log Σ_m v_m exp⟨a_m, y⟩, from slopes already computed: (..., M), (..., M, D), (..., D) → (...)."""
    return -torch.logsumexp(log_v + (a @ y.unsqueeze(-1)).squeeze(-1), dim=-1)


class SlopeCost(Cost):
    r"""Creates the cost c(x, y) = −log Σ_m v_m(x) exp⟨a_m(x), y⟩.

    Arguments:
        dim_x: The number of columns of x.
        dim_y: The number of columns of y.
        n_slopes: The number M of slopes.
        hidden: The hidden widths of the network of the slopes a.
        weight_hidden: The hidden widths of the network of the weights v. None shares one trunk with the slopes.
        activation: The nonlinearity of both.
        slope_std: The standard deviation of the first weights of the last layers: near zero, the plan begins by ignoring
            x. None keeps PyTorch's own initialisation.
        learn_scale: Whether the slopes are multiplied by a scale learnt for each output. A plan moves the mean of y by
            B_n a_m(x), so a sharp p(y|x), with small B_n, needs large slopes; a scale gets there in few steps.

    Example:
        >>> cost = SlopeCost(dim_x=2, dim_y=3, n_slopes=8)
        >>> cost(torch.zeros(5, 2), torch.zeros(5, 3)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        *,
        dim_x: int,
        dim_y: int,
        n_slopes: int,
        hidden: Sequence[int] = (16, 16),
        weight_hidden: Sequence[int] | None = None,
        activation: str = "silu",
        slope_std: float | None = 0.01,
        learn_scale: bool = True,
    ) -> None:
        super().__init__()
        self.config: Config = {
            "dim_x": dim_x,
            "dim_y": dim_y,
            "n_slopes": n_slopes,
            "hidden": list(hidden),
            "weight_hidden": None if weight_hidden is None else list(weight_hidden),
            "activation": activation,
            "learn_scale": learn_scale,
        }
        self.n_slopes = n_slopes
        self.dim_y = dim_y
        self.log_scale = nn.Parameter(torch.zeros(dim_y)) if learn_scale else None
        n_outputs = n_slopes * dim_y
        self.weight_net: nn.Module | None = None
        if weight_hidden is None:
            n_outputs += n_slopes
        else:
            self.weight_net = make_mlp(dim_x, n_slopes, hidden=weight_hidden, activation=activation, last_std=slope_std)
        self.slope_net = make_mlp(dim_x, n_outputs, hidden=hidden, activation=activation, last_std=slope_std)

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The log weights log v(x), of shape (..., M), and the slopes a(x), of shape (..., M, D)."""
        outputs = self.slope_net(x)
        if self.weight_net is None:
            log_v, outputs = outputs[..., : self.n_slopes], outputs[..., self.n_slopes :]
        else:
            log_v = self.weight_net(x)
        a = outputs.unflatten(-1, (self.n_slopes, self.dim_y))
        if self.log_scale is not None:
            a = a * self.log_scale.exp()
        return log_v.log_softmax(dim=-1), a

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        log_v, a = self.slopes(x)
        return slope_cost(log_v, a, y)

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """The cost of every x with every y, (Q, R)."""
        log_v, a = self.slopes(x)
        return -torch.logsumexp(log_v.unsqueeze(-1) + a @ y.mT, dim=-2)
