"""What a plan is: a conditional distribution p(y|x) = exp(f(y) − c(x, y)) / Z(x), made of a cost c and a potential f.

`training` learns whatever keeps these promises; `mixture` and `classes` have the two kinds there are.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributions import Distribution

__all__ = ["Config", "Cost", "Plan", "Potential"]

Config = dict[str, Any]  # what JSON can hold of how a plan is made


class Cost(nn.Module, ABC):
    """Abstract: c; `cost(x, y)` is one number a row."""

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """c(x, y), one number a row."""

    @abstractmethod
    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """The cost of every x with every y, (Q, R)."""


class Potential(nn.Module, ABC):
    """Abstract: f; `potential(y)` is one number a row."""

    @abstractmethod
    def forward(self, y: Tensor) -> Tensor:
        """f(y), one number a row."""


class Plan(nn.Module, ABC):
    """Abstract: a cost and a potential with a normaliser that is known; `plan(x)` is the distribution of y given x.

    Attributes:
        cost: c.
        potential: f.
        least_effective: So many y's must share the weight of an x before a divergence of p(·|x) can be read off them.
    """

    cost: Cost
    potential: Potential
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

    @property
    @abstractmethod
    def config(self) -> Config:
        """What it takes to make a plan with tensors of the same names and sizes."""

    @abstractmethod
    def forward(self, x: Tensor) -> Distribution:
        """The distribution of y given x."""
