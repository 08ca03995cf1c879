"""Likelihoods of energies alone: log p(y|x) = −u(x, y) − log Z(x), log Z(x) by quadrature or annealed chains, with an error."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewpairs.energies import Energy
from fewpairs.samplers import annealed_log_partition

__all__ = ["GRID", "LikelihoodEstimate", "anneal", "integrate"]

GRID = {1: 4096, 2: 256}  # points a side of the quadrature, by the outputs
LEAST_EFFECTIVE = 5.0  # chains: of fewer the spread says nothing


class LikelihoodEstimate(NamedTuple):
    """log p(y|x) as far as it can be known, one number a row, in the user's units.

    Attributes:
        log_likelihood: The estimates.
        error: Their standard errors; of a quadrature the difference to one with half as many points a side.
        method: "importance sampling", "quadrature" or "annealed importance sampling".
    """

    log_likelihood: np.ndarray
    error: np.ndarray
    method: str


@torch.no_grad()
def integrate(energy: Energy, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """log ∫ exp(−u) dy over a box by the midpoint rule, and how much half as many points a side would change it, one a row.

    Arguments:
        energy: u.
        x: The x's.
        low: The corner of the box with the least coordinates.
        high: The corner with the largest.
    """
    found, dim = [], len(low)
    for n in (GRID[dim] // 2, GRID[dim]):
        middle = (torch.arange(n, dtype=x.dtype, device=x.device) + 0.5) / n
        grid = low + (high - low) * torch.cartesian_prod(*[middle] * dim).reshape(-1, dim)
        log_sums = torch.stack([torch.logsumexp(-energy(one.expand(len(grid), -1), grid), dim=0) for one in x])
        found.append(log_sums + (high - low).log().sum() - dim * math.log(n))
    return found[1], (found[1] - found[0]).abs()


def anneal(
    energy: Energy, x: Tensor, dim_y: int, *, std: float, n_chains: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """log ∫ exp(−u) dy by annealed importance sampling from a Gaussian, and its standard error, one a row.

    The estimate of Z is unbiased, so that of log Z is too low on average. Where a few chains have all the weight, nothing is
    known about how far off it is, and the error is infinite.
    """
    rows = x.repeat(n_chains, 1)
    with torch.no_grad():
        energy_of = partial(energy.prepared, known=energy.prepare(rows))
    of_chains = annealed_log_partition(energy_of, x.new_zeros(len(rows), dim_y), std=std, generator=generator)
    log_weight = of_chains.unflatten(0, (n_chains, len(x)))
    share = log_weight.softmax(dim=0)
    error = ((share - 1 / n_chains).square().sum(0) * n_chains / (n_chains - 1)).sqrt()
    error = torch.where(share.square().sum(0) > 1 / LEAST_EFFECTIVE, math.inf, error)
    return torch.logsumexp(log_weight, dim=0) - math.log(n_chains), error
