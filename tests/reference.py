"""Slow and obvious answers that the fast ones are compared with."""

import copy
import math

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from fewpairs.plans.mixture import MixturePlan


def full_covariances(plan: MixturePlan) -> Tensor:
    _, _, B = plan.potential.atoms()
    return B if B.dim() == 3 else torch.diag_embed(B)


def conditional(plan: MixturePlan, x: Tensor) -> MixtureSameFamily:
    """p(y|x) by the paper's proposition, with all rows × M × N × D numbers in memory."""
    log_v, a = plan.cost.slopes(x)
    log_w, b, _ = plan.potential.atoms()
    B = full_covariances(plan)
    shift = torch.einsum("nij,rmj->rmni", B, a)
    log_z = (
        log_v[:, :, None] + log_w + 0.5 * torch.einsum("rmni,rmi->rmn", shift, a) + torch.einsum("ni,rmi->rmn", b, a)
    )
    means = (b + shift).flatten(1, 2)
    covariances = B.repeat(a.shape[1], 1, 1).expand(len(x), -1, -1, -1)
    return MixtureSameFamily(Categorical(logits=log_z.flatten(1)), MultivariateNormal(means, covariances))


def grid(dim_y: int, radius: float, n_points: int) -> tuple[Tensor, float]:
    """Points of an even grid and the volume of a cell: the trapezoid rule, exact to rounding for smooth, decaying functions."""
    axis = torch.linspace(-radius, radius, n_points, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * dim_y).reshape(-1, dim_y)
    return points, (2 * radius / (n_points - 1)) ** dim_y


def log_partition_on_grid(plan: MixturePlan, x: Tensor, *, radius: float, n_points: int) -> Tensor:
    """log ∫ exp(−energy(x, y)) dy by quadrature."""
    points, volume = grid(plan.cost.dim_y, radius, n_points)
    energies = torch.stack([plan.energy(row.expand(len(points), -1), points) for row in x])
    return torch.logsumexp(-energies, dim=-1) + math.log(volume)


def tilt(plan: MixturePlan, t: Tensor) -> MixturePlan:
    """The same plan in other clothes: a → a − t, b → b + Bt, log w → log w + bᵀt + ½ tᵀBt."""
    log_w, b, B = plan.potential.atoms()
    shift = full_covariances(plan) @ t
    tilted = copy.deepcopy(plan)
    tilted.potential.set_atoms(log_w + b @ t + 0.5 * (shift @ t), b + shift, B)
    with torch.no_grad():
        shift = (t / plan.cost.log_scale.exp()).repeat(plan.cost.n_slopes)
        tilted.cost.slope_net[-1].bias[plan.cost.n_slopes :] -= shift
    return tilted
