"""The linear plan: y = A x + b + Gaussian noise, the oldest model of all, found in one go.

It is a plan like any other (one slope, linear in x, and one full atom), so it can join an ensemble in closed form. Ridge
penalties, one for each output, and the covariance of the noise come from leave-one-out residuals, which have a closed form too:
a few pairs are not taken for more than they are.
"""

from typing import cast

import numpy as np
import torch
from sklearn.covariance import OAS
from torch import Tensor, nn

from fewpairs.networks.dice import borrowed_dice
from fewpairs.plans.costs import SlopeCost
from fewpairs.plans.mixture import MixturePlan
from fewpairs.plans.potentials import MixturePotential

__all__ = ["LEAST_PAIRS", "fit_linear"]

LEAST_PAIRS = 3
RIDGES = np.logspace(-5, 3, 17)  # as parts of the number of pairs, for columns of spread one
LEAST_VARIANCE = 1e-6  # of the noise, as a part of the variance of y
MOST_LEVERAGE = 0.999  # a pair that all but determines its own fit


def fit_linear(x: Tensor, y: Tensor, weight: Tensor) -> MixturePlan:
    """Fits the linear plan to pairs at scale.

    Arguments:
        x: The x's of the pairs, (P, dim_x).
        y: Their y's, (P, dim_y).
        weight: Of the pairs.
    """
    rows, outputs, share = (part.double().cpu().numpy() for part in (x, y, weight / weight.sum()))
    mean_x, mean_y = share @ rows, share @ outputs
    root = np.sqrt(share * len(rows))[:, None]
    left, size, right = np.linalg.svd(root * (rows - mean_x), full_matrices=False)
    in_basis, centred = left.T @ (root * (outputs - mean_y)), outputs - mean_y

    best = np.full(outputs.shape[1], np.inf)
    residuals, matrix = centred.copy(), np.zeros((rows.shape[1], outputs.shape[1]))
    for ridge in len(rows) * RIDGES:
        kept = size**2 / (size**2 + ridge)
        leverage = ((left**2) @ kept + share).clip(max=MOST_LEVERAGE)
        missed = (centred - (left @ (kept[:, None] * in_basis)) / root) / (1 - leverage)[:, None]
        loss = share @ missed**2
        is_better = loss < best
        best = np.where(is_better, loss, best)
        residuals[:, is_better] = missed[:, is_better]
        solution = right.T @ ((size / (size**2 + ridge))[:, None] * in_basis)
        matrix[:, is_better] = solution[:, is_better]

    spread = np.sqrt(best.clip(min=LEAST_VARIANCE))
    correlation = OAS(assume_centered=True).fit(root * residuals / spread).covariance_
    noise = spread[:, None] * correlation * spread + LEAST_VARIANCE * np.eye(len(spread))
    return _plan(torch.from_numpy(matrix), torch.from_numpy(mean_x), torch.from_numpy(mean_y), torch.from_numpy(noise))


def _plan(matrix: Tensor, mean_x: Tensor, mean_y: Tensor, noise: Tensor) -> MixturePlan:
    """The plan with p(y|x) = N(mean_y + matrixᵀ(x − mean_x), noise): its atom is moved by noise · slope."""
    dim_x, dim_y = matrix.shape
    with borrowed_dice():  # its first weights are overwritten
        cost = SlopeCost(dim_x=dim_x, dim_y=dim_y, n_slopes=1, hidden=(), learn_scale=False)
    plan = MixturePlan(cost, MixturePotential(dim_y=dim_y, n_atoms=1, covariance="full")).double()
    slope = torch.linalg.solve(noise, matrix.mT)
    with torch.no_grad():
        layer = cast(nn.Linear, plan.cost.slope_net[-1])
        layer.weight.copy_(torch.cat([torch.zeros(1, dim_x), slope]))
        layer.bias.copy_(torch.cat([torch.zeros(1), -slope @ mean_x]))
    plan.potential.set_atoms(torch.zeros(1), mean_y.unsqueeze(0), noise.unsqueeze(0))
    return plan
