"""Entropic transport between two samples: Sinkhorn's potentials, in the log domain. Two of the baselines couple rows by it."""

import math

import torch
from torch import Tensor

__all__ = ["log_sum_exp", "sinkhorn"]


def sinkhorn(cost: Tensor, epsilon: float, *, n_iterations: int, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The potentials f and g of entropic transport between uniform weights, in the log domain.

    The plan is exp((f_i + g_j − c_ij)/ε)/(n m); its rows have exactly uniform sums.

    Arguments:
        cost: c, (n, m).
        epsilon: ε.
        n_iterations: Updates of both.
        start: The g to begin with, (m,).
    """
    n, m = cost.shape
    log_kernel = -cost / epsilon
    g = torch.zeros_like(cost[0]) if start is None else start / epsilon
    f = math.log(m) - log_sum_exp(log_kernel + g, dim=1)
    for _ in range(n_iterations):
        g = math.log(n) - log_sum_exp(log_kernel + f.unsqueeze(1), dim=0)
        f = math.log(m) - log_sum_exp(log_kernel + g, dim=1)
    return epsilon * f, epsilon * g


def log_sum_exp(logits: Tensor, dim: int) -> Tensor:
    """torch.logsumexp up to rounding: terms below e⁻⁸⁰ of the largest are raised to that, for vanishing exponentials are slow."""
    largest = logits.detach().amax(dim, keepdim=True)
    return (logits - largest).clamp(min=-80).exp().sum(dim).log() + largest.squeeze(dim)
