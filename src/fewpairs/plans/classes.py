"""Class plans: p(k|x) = exp(f_k − c(x, k)) / Z(x), the discrete case, where Z is a sum over K classes.

y is the number of a class, kept as a float in one column, so that the samples, objectives, smoothing and training of the
continuous case serve here as they are: the target is the K classes, each weighted by its prior. `marginal` then asks that the
average prediction over all x's has the classes in the shares of the prior.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from fewpairs.plans.ensemble import Ensemble, Part
from fewpairs.plans.plan import Config, Cost, Plan, Potential

__all__ = ["ClassCost", "ClassEnsemble", "ClassPlan", "ClassPotential", "Constant", "log_average"]


class ClassCost(Cost):
    """Creates the cost c(x, k) = −network(x)_k.

    Arguments:
        network: x, (rows, dim_x), to one number a class, (rows, K).
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.network(x).gather(-1, y.long()).squeeze(-1)

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """The cost of every x with every y, (Q, R)."""
        return -self.network(x).gather(-1, y.long().mT.expand(len(x), -1))


class ClassPotential(Potential):
    """Creates the potential f, one number a class.

    Arguments:
        log_prior: Its first values, (K,).
    """

    def __init__(self, log_prior: Tensor) -> None:
        super().__init__()
        self.f = nn.Parameter(log_prior.clone())

    def forward(self, y: Tensor) -> Tensor:
        return self.f[y.long().squeeze(-1)]


class Constant(nn.Module):
    """Creates the network that gives zero for every class, whatever x is: its plan ignores x.

    Arguments:
        n_classes: K.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros((len(x), self.n_classes))


class ClassPlan(Plan):
    """Creates the plan of a cost and a potential of classes; `plan(x)` is the distribution of the class given x.

    Example:
        >>> plan = ClassPlan(ClassCost(nn.Linear(2, 3)), ClassPotential(torch.zeros(3)))
        >>> plan.log_probs(torch.zeros(5, 2)).exp().sum(-1).allclose(torch.ones(5))
        True
    """

    least_effective = 0.0  # the sum over classes is exact

    cost: ClassCost
    potential: ClassPotential

    def __init__(self, cost: ClassCost, potential: ClassPotential) -> None:
        super().__init__()
        self.cost = cost
        self.potential = potential

    def log_probs(self, x: Tensor) -> Tensor:
        """log p(k|x) of all classes, (rows, K)."""
        return (self.cost.network(x) + self.potential.f).log_softmax(-1)

    def log_partition(self, x: Tensor) -> Tensor:
        """log Z(x) = log Σ_k exp(f_k − c(x, k))."""
        return (self.cost.network(x) + self.potential.f).logsumexp(-1)

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(y|x), one number a row."""
        return self.log_probs(x).gather(-1, y.long()).squeeze(-1)

    def log_marginal(self, y: Tensor, source: Tensor, source_weight: Tensor | None = None) -> Tensor:
        """log p̂(y), where p̂ is the average of p(·|x) over the source, weighted if weights are given."""
        weight = torch.ones_like(source[:, 0]) if source_weight is None else source_weight
        return log_average(self.log_probs(source), weight)[y.long().squeeze(-1)]

    def log_base(self, x: Tensor, y: Tensor, x_weight: Tensor, y_weight: Tensor) -> Tensor:
        """f(y): all classes are there, and each once."""
        return self.potential(y)

    def forward(self, x: Tensor) -> Categorical:
        return Categorical(logits=self.log_probs(x), validate_args=False)

    @property
    def config(self) -> Config:
        """What it takes to make a plan with tensors of the same names and sizes, beside the network there is one of."""
        return {"is_constant": isinstance(self.cost.network, Constant)}


class ClassEnsemble(Ensemble[ClassPlan]):
    """Creates the average Σ_m share_m p_m(k|x) of several class plans; called, it is the distribution of the class given x."""

    def __init__(self, parts: Sequence[Part[ClassPlan]], shares: Tensor) -> None:
        super().__init__(parts, shares)
        # Convolutions answer twice as fast on a CPU with their channels side by side.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def log_probs(self, x: Tensor) -> Tensor:
        """log p(k|x) of all classes, (rows, K)."""
        each = torch.stack([member.log_probs(x) for member in self.members], dim=-1)
        return (each + self.member_shares.log()).logsumexp(-1)

    def forward(self, x: Tensor) -> Categorical:
        return Categorical(logits=self.log_probs(x), validate_args=False)


def log_average(log_probs: Tensor, weight: Tensor) -> Tensor:
    """log of the weighted mean over rows, (K,)."""
    least = torch.finfo(log_probs.dtype).tiny  # a weight of zero must stay finite as a logarithm
    return (log_probs + (weight / weight.sum()).clamp(min=least).log().unsqueeze(-1)).logsumexp(0)
