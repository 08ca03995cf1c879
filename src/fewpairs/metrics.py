"""Metrics: arrays in, a number out. None of them knows a model.

    between two clouds of points   mmd_squared, transport_cost, wasserstein, sinkhorn_divergence
    of drawn y's against true ones energy_score, crps, pit_values
    of intervals, of densities     coverage, negative_log_likelihood

Clouds may be torch tensors on any device, and are compared there. Predictive samples have the shape (n_samples, rows, dim_y),
as `sample` returns them; true y's (rows, dim_y).
"""

import math
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fewpairs.data.checks import forwards

__all__ = [
    "calibration_error",
    "coverage",
    "crps",
    "energy_score",
    "median_distance",
    "mmd_squared",
    "negative_log_likelihood",
    "pit_values",
    "sinkhorn_divergence",
    "transport_cost",
    "wasserstein",
]

KERNEL_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def negative_log_likelihood(log_densities: ArrayLike) -> float:
    """−mean log p(y|x), in nats, from `score_samples`. Lower is better.

    Example:
        >>> negative_log_likelihood([-1.0, -3.0])
        2.0
    """
    return -float(np.mean(np.asarray(log_densities, dtype=np.float64)))


def mmd_squared(points: ArrayLike, others: ArrayLike, *, bandwidth: float | None = None) -> float:
    """The unbiased squared maximum mean discrepancy, with the paper's uniform mixture of five Gaussian kernels.

    Arguments:
        points: Points of one distribution, (n, dim).
        others: Points of the other, (m, dim).
        bandwidth: The central kernel width; the others are 1/4, 1/2, 2 and 4 times as wide. None is the median distance
            between all points of both. To compare methods, pass one width to all of them.

    Unbiased means that it can be slightly negative where the two distributions agree.
    """
    x, y = _points(points), _points(others)
    if bandwidth is None:
        bandwidth = median_distance(torch.cat([x, y]))

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        squares = torch.cdist(a, b) ** 2
        widths = [bandwidth * factor for factor in KERNEL_FACTORS]
        return torch.stack([(-squares / (2 * width**2)).exp() for width in widths]).mean(0)

    n, m = len(x), len(y)
    within_x = (kernel(x, x).sum() - n) / (n * (n - 1))  # the diagonal is n ones
    within_y = (kernel(y, y).sum() - m) / (m * (m - 1))
    return float(within_x + within_y - 2 * kernel(x, y).mean())


def median_distance(points: ArrayLike) -> float:
    """The median of all positive distances between points: the central width of `mmd_squared`."""
    distances = torch.pdist(_points(points)).cpu().numpy()
    if not distances.any():
        raise ValueError("All points are the same: there is no median distance. Pass a bandwidth.")
    return float(np.median(distances[distances > 0]))


def transport_cost(points: ArrayLike, others: ArrayLike) -> float:
    """The least mean cost |x − y|²/2 of moving one cloud onto the other, exactly: W₂²/2.

    Between clouds of n points of one distribution it is not zero, since they do not lie on each other.
    """
    x, y = _points(points), _points(others)
    cost = torch.cdist(x, y) ** 2 / 2
    if len(x) == len(y):  # a transport plan between equally many points is an assignment
        # What is taken from a row or a column is taken from every assignment: the best remains the best, and where nearly all
        # that is left of it is zero, it is found several times faster.
        left = cost - sum(_rough_prices(cost))
        rows, columns = linear_sum_assignment(left.cpu().numpy())
        return float(cost[rows, columns].mean())
    return float(_library("ot").emd2([], [], cost.cpu().numpy(), numItermax=10**7))


def wasserstein(points: ArrayLike, others: ArrayLike) -> float:
    """The Wasserstein distance W₂ between two clouds, exactly, in the units of the data: √(2 · transport_cost).

    Example:
        >>> wasserstein([[0.0], [1.0]], [[4.0], [3.0]])
        3.0
    """
    return math.sqrt(2 * transport_cost(points, others))


def _rough_prices(cost: Tensor) -> tuple[Tensor, Tensor]:
    """Prices u, (n, 1), and v, (m,), with u + v ≤ cost nearly, and equal nearly where the best plan goes: Sinkhorn's potentials,
    by a few updates at each of a few ε."""
    u, v = torch.zeros_like(cost[:, :1]), torch.zeros_like(cost[0])
    for part in (0.1, 0.01, 0.003):
        epsilon = (part * cost.mean()).clamp(min=torch.finfo(cost.dtype).tiny)
        kernel = ((u + v - cost) / epsilon).exp()
        in_v = torch.ones_like(v)
        for _ in range(10):
            in_u = (kernel @ in_v).clamp(min=1e-200).reciprocal()  # a row of which nothing is left keeps a finite price
            in_v = (in_u @ kernel).clamp(min=1e-200).reciprocal()
        u, v = u + epsilon * in_u.log().unsqueeze(1), v + epsilon * in_v.log()
    return u, v


def sinkhorn_divergence(points: ArrayLike, others: ArrayLike, *, epsilon: float = 1e-3) -> float:
    """The debiased Sinkhorn divergence as the paper computes it, with geomloss as it usually is: cost |x − y|²/2, no root.

    The paper's tables call it W₂; for small ε it would be about W₂²/2. But a few points far from the others suffice to make
    it negative: it stops too early. To compare methods use `transport_cost`: it is exact, and faster for some thousand points.
    """
    loss = _library("geomloss").SamplesLoss("sinkhorn", p=2, blur=math.sqrt(epsilon), backend="tensorized")
    return float(loss(_points(points), _points(others)))


def energy_score(samples: ArrayLike, y: ArrayLike) -> float:
    """The mean energy score E|Y − y| − ½ E|Y − Y′|: proper, of all outputs together. Lower is better."""
    draws, y = _samples_and_truth(samples, y)
    if len(draws) < 2:
        raise ValueError(
            f"The energy score compares draws with each other and needs at least 2, but {len(draws)} came."
        )
    return float(np.mean(_library("scoringrules").es_ensemble(y, draws, m_axis=0, v_axis=-1, estimator="fair")))


def crps(samples: ArrayLike, y: ArrayLike) -> np.ndarray:
    """The mean continuous ranked probability score of each output, (dim_y,). Lower is better."""
    draws, y = _samples_and_truth(samples, y)
    return np.mean(_library("scoringrules").crps_ensemble(y, draws, m_axis=0, estimator="pwm"), axis=0)


def pit_values(samples: ArrayLike, y: ArrayLike, *, random_state: int = 0) -> np.ndarray:
    """Where each true y falls among its draws, (rows, dim_y) in (0, 1): uniform if the predictions are calibrated.

    Ranks are spread evenly within their step, and ties broken at random, so that few draws and discrete y's stay uniform too.
    """
    draws, y = _samples_and_truth(samples, y)
    random = np.random.default_rng(random_state)
    below, equal = (draws < y).sum(axis=0), (draws == y).sum(axis=0)
    return (below + random.uniform(size=y.shape) * (equal + 1)) / (len(draws) + 1)


def coverage(lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> np.ndarray:
    """The share of true y's inside their intervals, for each output.

    Example:
        >>> float(coverage([0.0, 0.0], [1.0, 1.0], [0.5, 2.0]))
        0.5
    """
    lower, upper, y = np.asarray(lower), np.asarray(upper), np.asarray(y)
    if not lower.shape == upper.shape == y.shape:
        raise ValueError(f"Ends and y must have one shape, but {lower.shape}, {upper.shape} and {y.shape} came.")
    return ((lower <= y) & (y <= upper)).mean(axis=0)


def calibration_error(probabilities: ArrayLike, is_right: ArrayLike, *, n_bins: int = 15) -> float:
    """The expected calibration error of a classifier: how far, on average, its confidence is from how often it is right.

    Rows are sorted by confidence and cut into bins of equal size; in each, mean confidence and accuracy are compared.

    Arguments:
        probabilities: p(class|x), (rows, classes).
        is_right: Whether the most probable class was the true one, (rows,).
        n_bins: The bins.

    Example:
        >>> calibration_error([[0.75, 0.25]] * 4, [True, True, True, False], n_bins=1)
        0.0
    """
    confidence, is_right = np.asarray(probabilities, dtype=np.float64).max(1), np.asarray(is_right, dtype=np.float64)
    if confidence.shape != is_right.shape:
        raise ValueError(f"{len(confidence)} rows of probabilities came with {is_right.shape} of is_right: one each.")
    gap = (confidence - is_right)[np.argsort(confidence, kind="stable")]
    return float(sum(abs(part.sum()) for part in np.array_split(gap, min(n_bins, len(gap)))) / len(gap))


def _library(name: str) -> ModuleType:
    """A library that only some metrics need, or an error that says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This metric needs {name}: pip install 'fewpairs[experiments]' brings it."
        ) from error


def _points(points: ArrayLike) -> torch.Tensor:
    points = (points if isinstance(points, torch.Tensor) else torch.as_tensor(forwards(np.asarray(points)))).double()
    points = points.unsqueeze(-1) if points.ndim == 1 else points
    if points.ndim != 2 or len(points) < 2:
        raise ValueError(
            f"Expected at least two points of shape (n, dim), but an array of shape {tuple(points.shape)} came."
        )
    return points


def _samples_and_truth(samples: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    draws, truth = np.asarray(samples, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if draws.shape[1:] != truth.shape:
        raise ValueError(
            f"Samples must have the shape (n_samples, rows, dim_y) and y (rows, dim_y), but {draws.shape} and {truth.shape} "
            "came. `model.sample(X, n_samples)` has the right one."
        )
    if truth.ndim == 1:
        draws, truth = draws[..., None], truth[..., None]
    return draws, truth
