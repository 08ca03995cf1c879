"""Problems with known answers: each draws pairs and single points, and knows its true p(y|x).

SwissRoll           the paper's main task; p(y|x) can be sampled, from the very coupling the pairs come from
AnalyticSwissRoll   the paper's appendix; p(y|x) is one Gaussian around a point of the roll
LinearGaussian      y = A x + noise; p(y|x) is Gaussian
TwoBranches         y follows x up or down with a probability that depends on x; p(y|x) is a mixture of two Gaussians
Clusters            many dimensions: x in eight clusters, y a curved function of x, on one side of it or the other
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, MultivariateNormal, Normal

__all__ = ["AnalyticSwissRoll", "Clusters", "LinearGaussian", "Problem", "SwissRoll", "TranslationData", "TwoBranches"]


@dataclass(frozen=True)
class TranslationData:
    """One draw of a problem, as `fit` takes it: `model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, …)`."""

    X: np.ndarray
    Y: np.ndarray
    X_unpaired: np.ndarray
    Y_unpaired: np.ndarray


class Problem(ABC):
    """A made world with a p(x) and a p(y|x). A subclass supplies the three `_draw` methods; seeds make draws repeatable.

    Example:
        >>> problem = LinearGaussian()
        >>> data = problem.draw(n_pairs=8, n_source=5, n_target=3, seed=0)
        >>> data.Y_unpaired.shape, problem.sample(data.X, n_samples=4, seed=1).shape
        ((3, 1), (4, 8, 1))
    """

    @abstractmethod
    def _draw_x(self, n_rows: int, generator: torch.Generator) -> Tensor: ...

    @abstractmethod
    def _draw_y(self, n_rows: int, generator: torch.Generator) -> Tensor: ...

    @abstractmethod
    def _draw_y_given(self, x: Tensor, generator: torch.Generator) -> Tensor: ...

    def draw(self, *, n_pairs: int, n_source: int, n_target: int, seed: int) -> TranslationData:
        """Draws pairs, unpaired x's and unpaired y's, all independent."""
        generator = torch.Generator().manual_seed(seed)
        x, source = self._draw_x(n_pairs, generator), self._draw_x(n_source, generator)
        y, target = self._draw_y_given(x, generator), self._draw_y(n_target, generator)
        return TranslationData(x.numpy(), y.numpy(), source.numpy(), target.numpy())

    def draw_pairs(self, n_rows: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws fresh pairs to judge by."""
        data = self.draw(n_pairs=n_rows, n_source=0, n_target=0, seed=seed)
        return data.X, data.Y

    def sample(self, X: np.ndarray, *, n_samples: int, seed: int) -> np.ndarray:
        """Draws y's from the true p(y|x), of shape (n_samples, rows, dim_y)."""
        x = torch.as_tensor(X, dtype=torch.float64).repeat(n_samples, 1)
        y = self._draw_y_given(x, torch.Generator().manual_seed(seed))
        return y.reshape(n_samples, len(X), -1).numpy()


class SwissRoll(Problem):
    """The paper's Gaussian → Swiss roll task: y lies on the roll, turned a quarter to the left or right of x.

    Pairs and the true p(y|x) come from the same coupling: the x in question and n_batch − 1 fresh ones meet n_batch fresh
    y's, an entropic transport plan between the two is computed for the cost min(|x − R₊y|, |x − R₋y|), R± being
    rotations by ±90°, and y is drawn from that x's row.
    """

    scale = 7.5
    noise = 0.8
    t_range = (1.5 * math.pi, 4.5 * math.pi)

    def __init__(self, *, n_batch: int = 64, regularisation: float = 0.05) -> None:
        self.n_batch = n_batch
        self.regularisation = regularisation

    def _draw_x(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n_rows, 2, dtype=torch.float64, generator=generator)

    def _draw_y(self, n_rows: int, generator: torch.Generator) -> Tensor:
        low, high = self.t_range
        t = low + (high - low) * torch.rand(n_rows, dtype=torch.float64, generator=generator)
        noise = self.noise * torch.randn(n_rows, 2, dtype=torch.float64, generator=generator)
        return (_roll(t) + noise) / self.scale

    def _draw_y_given(self, x: Tensor, generator: torch.Generator) -> Tensor:
        outcome = [x.new_zeros(0, 2)]
        for some in x.split(64) if len(x) else ():  # few at a time: their matrices stay in the cache
            shape = (len(some), self.n_batch)
            others = self._draw_x(len(some) * self.n_batch, generator).reshape(*shape, 2)
            y = self._draw_y(len(some) * self.n_batch, generator).reshape(*shape, 2)
            batch = torch.cat([some.unsqueeze(1), others[:, 1:]], dim=1)
            plan = sinkhorn_plans(self._cost(batch, y), self.regularisation)
            chosen = torch.multinomial(plan[:, 0], 1, generator=generator).squeeze(1)
            outcome.append(y[torch.arange(len(some)), chosen])
        return torch.cat(outcome)

    @staticmethod
    def _cost(x: Tensor, y: Tensor) -> Tensor:
        turned = torch.stack([-y[..., 1], y[..., 0]], dim=-1)
        return torch.minimum(torch.cdist(x, turned), torch.cdist(x, -turned))


class AnalyticSwissRoll(Problem):
    """The paper's appendix: x sits at the place t(x) = low + (high − low)·tanh|x| of the roll, and y is that point plus noise.

    Everything is divided by 7.5, and there is no noise on t: p(y|x) is exactly Gaussian.
    """

    scale = SwissRoll.scale
    noise = SwissRoll.noise
    t_range = SwissRoll.t_range

    def _draw_x(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n_rows, 2, dtype=torch.float64, generator=generator)

    def _draw_y(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return self._draw_y_given(self._draw_x(n_rows, generator), generator)

    def _draw_y_given(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return _draw_normal(self._mean(x), self.noise / self.scale, generator)

    def conditional(self, X: np.ndarray) -> Distribution:
        """The true p(y|x)."""
        mean = self._mean(torch.as_tensor(X, dtype=torch.float64))
        return Independent(Normal(mean, torch.full_like(mean, self.noise / self.scale)), 1)

    def _mean(self, x: Tensor) -> Tensor:
        low, high = self.t_range
        return _roll(low + (high - low) * torch.tanh(x.norm(dim=-1))) / self.scale


class LinearGaussian(Problem):
    """x ~ N(0, I), y = A x + shift + noise; the noise has a covariance of its own.

    Arguments:
        matrix: A, of shape (dim_y, dim_x).
        shift: The mean of y.
        covariance: The covariance of the noise.
    """

    def __init__(
        self, matrix: object = ((1.0, -0.5),), shift: object = (2.0,), covariance: object = ((0.25,),)
    ) -> None:
        self.matrix = torch.as_tensor(matrix, dtype=torch.float64)
        self.shift = torch.as_tensor(shift, dtype=torch.float64)
        self.covariance = torch.as_tensor(covariance, dtype=torch.float64)

    def _draw_x(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n_rows, self.matrix.shape[1], dtype=torch.float64, generator=generator)

    def _draw_y(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return self._draw_y_given(self._draw_x(n_rows, generator), generator)

    def _draw_y_given(self, x: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(x), len(self.shift), dtype=torch.float64, generator=generator)
        return x @ self.matrix.mT + self.shift + noise @ torch.linalg.cholesky(self.covariance).mT

    def conditional(self, X: np.ndarray) -> Distribution:
        """The true p(y|x)."""
        mean = torch.as_tensor(X, dtype=torch.float64) @ self.matrix.mT + self.shift
        return MultivariateNormal(mean, self.covariance)


class TwoBranches(Problem):
    """x ~ N(0, 1); y ≈ 1 + x/2 with probability sigmoid(2x), else y ≈ −1 + x/2; noise of standard deviation 0.2."""

    std = 0.2

    def _draw_x(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n_rows, 1, dtype=torch.float64, generator=generator)

    def _draw_y(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return self._draw_y_given(self._draw_x(n_rows, generator), generator)

    def _draw_y_given(self, x: Tensor, generator: torch.Generator) -> Tensor:
        is_up = torch.rand(x.shape, dtype=x.dtype, generator=generator) < torch.sigmoid(2 * x)
        return _draw_normal(torch.where(is_up, 1.0, -1.0) + x / 2, self.std, generator)

    def conditional(self, X: np.ndarray) -> Distribution:
        """The true p(y|x)."""
        x = torch.as_tensor(X, dtype=torch.float64)
        up = torch.sigmoid(2 * x)
        means = torch.stack([1 + x / 2, -1 + x / 2], dim=1)  # (rows, branches, 1)
        branches = Independent(Normal(means, self.std), 1)
        return MixtureSameFamily(Categorical(torch.cat([up, 1 - up], dim=-1)), branches)


class Clusters(Problem):
    """x in eight clusters, y = tanh(x U) + x V ± s + noise, as many outputs as inputs; both signs are equally likely.

    Arguments:
        dim: Of x and of y.
        seed: Of the world itself: centres, U, V and s.
    """

    n_clusters = 8
    spread = 0.3  # of a cluster
    std = 0.3
    side = 1.5  # the length of s

    def __init__(self, dim: int = 8, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        normal = partial(torch.randn, dtype=torch.float64, generator=generator)
        self.centres = 1.5 * normal(self.n_clusters, dim)
        self.bent, self.straight = normal(2, dim, dim) / math.sqrt(dim)
        direction = normal(dim)
        self.sideways = self.side * direction / direction.norm()

    def _draw_x(self, n_rows: int, generator: torch.Generator) -> Tensor:
        cluster = torch.randint(self.n_clusters, (n_rows,), generator=generator)
        return _draw_normal(self.centres[cluster], self.spread, generator)

    def _draw_y(self, n_rows: int, generator: torch.Generator) -> Tensor:
        return self._draw_y_given(self._draw_x(n_rows, generator), generator)

    def _draw_y_given(self, x: Tensor, generator: torch.Generator) -> Tensor:
        sign = 2.0 * torch.randint(2, (len(x), 1), generator=generator) - 1
        return _draw_normal(self._middle(x) + sign * self.sideways, self.std, generator)

    def conditional(self, X: np.ndarray) -> Distribution:
        """The true p(y|x)."""
        middle = self._middle(torch.as_tensor(X, dtype=torch.float64)).unsqueeze(1)
        sides = Independent(Normal(middle + torch.stack([self.sideways, -self.sideways]), self.std), 1)
        return MixtureSameFamily(Categorical(torch.ones(len(middle), 2, dtype=middle.dtype)), sides)

    def _middle(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.bent) + x @ self.straight


def sinkhorn_plans(cost: Tensor, regularisation: float, *, tolerance: float = 1e-4, max_steps: int = 1000) -> Tensor:
    """Entropic transport plans between uniform weights, many at once: costs (..., n, m) → plans whose entries sum to one.

    Plain kernel scaling in float64 (costs up to some 500 regularisations), about ten times as fast as a solver called
    once for each matrix. The rows of a plan have exactly uniform sums, its columns within the tolerance.
    """
    kernel = (-cost / regularisation).exp()
    n, m = cost.shape[-2:]
    v = torch.ones_like(cost[..., :1, :])  # (..., 1, m)
    for step in range(max_steps):
        u = 1 / (n * (kernel * v).sum(-1, keepdim=True))
        column_sums = v * (kernel * u).sum(-2, keepdim=True)
        if step % 10 == 0 and (column_sums * m - 1).abs().max() < tolerance:
            break
        v = v / (column_sums * m)
    return u * kernel * v


def _roll(t: Tensor) -> Tensor:
    return torch.stack([t * torch.cos(t), t * torch.sin(t)], dim=-1)


def _draw_normal(mean: Tensor, std: float, generator: torch.Generator) -> Tensor:
    return mean + std * torch.randn(mean.shape, dtype=mean.dtype, generator=generator)
