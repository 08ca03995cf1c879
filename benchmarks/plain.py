"""The same mathematics written the plain way, with a (rows × M × N × D) tensor: what `speed.py` compares with.

Correct and short, and what one writes first; the authors' public code takes this route too.
"""

import math

import torch
from torch import Tensor

from fewpairs.data.samples import Samples
from fewpairs.plans.mixture import MixturePlan


def log_partition(plan: MixturePlan, x: Tensor) -> Tensor:
    log_v, a = plan.cost.slopes(x)
    log_w, b, B = plan.potential.atoms()
    a = a[:, :, None, :]  # (rows, M, 1, D) meets (N, D)
    exponent = (0.5 * a * B * a + b * a).sum(-1)
    return torch.logsumexp(log_v[:, :, None] + log_w + exponent, dim=(1, 2))


def potential(plan: MixturePlan, y: Tensor) -> Tensor:
    log_w, b, B = plan.potential.atoms()
    log_density = -0.5 * ((y[:, None] - b) ** 2 / B + B.log() + math.log(2 * math.pi)).sum(-1)
    return torch.logsumexp(log_w + log_density, dim=1)


def inverse_eot(plan: MixturePlan, samples: Samples) -> Tensor:
    cost = plan.cost(samples.pairs_x, samples.pairs_y)
    return cost.mean() - potential(plan, samples.target).mean() + log_partition(plan, samples.source).mean()
