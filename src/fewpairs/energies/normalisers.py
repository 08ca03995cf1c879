"""Likelihoods of energies alone: log p(y|x) = −u(x, y) − log Z(x), log Z(x) by quadrature or annealed chains, with an error."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewpairs.energies.energy import Energy
from fewpairs.energies.samplers import annealed_log_partition

__all__ = ["GRID", "LikelihoodEstimate", "anneal", "integrate"]

GRID = {1: 4096, 2: 256}  # points a side of the quadrature, by the outputs
MOST_WIDENINGS = 6  # each doubles the box
LEFT_OUTSIDE = 1e-4  # nats: what may lie outside the box
TOO_COARSE = 0.5  # nats between a grid and half of it, beyond which neither is near the truth
MOST_IN_A_CELL = 0.9  # of the integral: a peak that one cell holds has not been seen
LEAST_EFFECTIVE = 5.0  # chains: of fewer the spread says nothing


class LikelihoodEstimate(NamedTuple):
    """log p(y|x) as far as it can be known, one number a row, in the user's units.

    Attributes:
        log_likelihood: The estimates.
        error: Their standard errors; of a quadrature the difference to one with half as many points a side, and what lay just
            outside its box. Infinite where nothing is known: more and more lies outside, a peak falls between the points, or a
            few chains have all the weight.
        method: "importance sampling", "quadrature" or "annealed importance sampling".
    """

    log_likelihood: np.ndarray
    error: np.ndarray
    method: str


@torch.no_grad()
def integrate(
    energy: Energy, x: Tensor, low: Tensor, high: Tensor, *, clamp: tuple[float, float] | None = None
) -> tuple[Tensor, Tensor]:
    """log ∫ exp(−u) dy by the midpoint rule, and its error (see `LikelihoodEstimate`), one a row.

    The box is doubled, for each x by itself, until what lies around it no longer counts.

    Arguments:
        energy: u.
        x: The x's.
        low: The corner of the first box with the least coordinates.
        high: The corner with the largest.
        clamp: The range of every coordinate of y, if it has one: the integral ends there.
    """
    ends = (-math.inf, math.inf) if clamp is None else clamp
    low, high = low.clamp(*ends), high.clamp(*ends)
    low, high = low.where(low < high, ends[0]), high.where(low < high, ends[1])  # a box that lies beyond the range
    each, which = x.unique(dim=0, return_inverse=True)  # a density over many y's asks about one x many times
    found = [_integrate_one(energy, energy.prepare(one.unsqueeze(0)), low, high, ends) for one in each]
    log_z, error = (torch.stack(part)[which] for part in zip(*found, strict=True))
    return log_z, error


def _integrate_one(
    energy: Energy, known: Tensor, low: Tensor, high: Tensor, ends: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """log Z and its error at one x, of which `Energy.prepare` has said what is known."""
    n = GRID[len(low)]

    def log_cells(edges: Tensor, n_points: int, *, is_around: bool = False) -> Tensor:
        """log of ∫ exp(−u) over each cell, of so many points a side between any two edges; or of those outside the middle."""
        middles, widths = zip(*(_midpoints(of_one, n_points) for of_one in edges.unbind(1)), strict=True)
        y = torch.cartesian_prod(*middles).reshape(-1, len(low))
        log_volume = torch.cartesian_prod(*widths).reshape(-1, len(low)).log().sum(1)
        if is_around:
            is_outside = ((y < edges[1]) | (y > edges[2])).any(1) & (log_volume > -math.inf)
            y, log_volume = y[is_outside], log_volume[is_outside]
        return log_volume - energy.prepared(y, known.expand(len(y), *known.shape[1:]))

    for left in reversed(range(MOST_WIDENINGS + 1)):
        half = log_cells(torch.stack([low, high]), n // 2).logsumexp(0)
        wider = torch.stack([low - (high - low) / 2, high + (high - low) / 2]).clamp(*ends)
        around = log_cells(torch.stack([wider[0], low, high, wider[1]]), n // 4, is_around=True)
        outside = torch.logaddexp(half, around.logsumexp(0)) - half if len(around) else torch.zeros_like(half)
        if left == 0 or not outside > LEFT_OUTSIDE:  # NaN, of an energy that is none, would never end
            break
        low, high = wider
    cells = log_cells(torch.stack([low, high]), n)
    fine = cells.logsumexp(0)
    error = (fine - half).abs() + outside
    is_known = (
        (outside <= LEFT_OUTSIDE)
        & ((fine - half).abs() <= TOO_COARSE)
        & (cells.amax() - fine <= math.log(MOST_IN_A_CELL))
    )
    return fine + outside, error.where(is_known, math.inf)


def _midpoints(edges: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """The middles and widths of cells, of which so many lie between any two edges."""
    part = (torch.arange(n_points, dtype=edges.dtype, device=edges.device) + 0.5) / n_points
    length = edges.diff().unsqueeze(1)
    return (edges[:-1].unsqueeze(1) + length * part).flatten(), (length / n_points).expand(-1, n_points).flatten()


def anneal(
    energy: Energy,
    x: Tensor,
    dim_y: int,
    *,
    std: float,
    n_chains: int,
    generator: torch.Generator,
    clamp: tuple[float, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """log ∫ exp(−u) dy by annealed importance sampling from a Gaussian (over a range: from the uniform distribution on it), and
    its standard error, one a row.

    The estimate of Z is unbiased, so that of log Z is too low on average. Where a few chains have all the weight, nothing is
    known about how far off it is, and the error is infinite. A mode that no chain finds does not show in the error.
    """
    with torch.no_grad():
        known = energy.prepare(x)
        energy_of = partial(energy.prepared, known=known.repeat(n_chains, *[1] * (known.ndim - 1)))
    like = x.new_zeros(n_chains * len(x), dim_y)
    of_chains = annealed_log_partition(energy_of, like, std=std, clamp=clamp, generator=generator)
    log_weight = of_chains.unflatten(0, (n_chains, len(x)))
    share = log_weight.softmax(dim=0)
    error = ((share - 1 / n_chains).square().sum(0) * n_chains / (n_chains - 1)).sqrt()
    error = torch.where(share.square().sum(0) > 1 / LEAST_EFFECTIVE, math.inf, error)
    return torch.logsumexp(log_weight, dim=0) - math.log(n_chains), error
