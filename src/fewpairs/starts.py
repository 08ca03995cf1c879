"""Starts: where the atoms of a potential stand before training.

A plan with slopes near zero is its potential's mixture for every x. Fitted to all y's first, it begins as the best model
that ignores x.
"""

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from fewpairs.potentials import MixturePotential

__all__ = ["n_atoms_for", "start_from_mixture", "start_from_samples"]

MAX_ROWS = 10_000  # rows that the first mixture is fitted to: more of them no longer move fifty atoms
ROWS_PER_ATOM = 5


def n_atoms_for(n_rows: int, n_atoms: int) -> int:
    """As many atoms as asked for, but no more than the y's can place."""
    return max(min(n_atoms, n_rows // ROWS_PER_ATOM), 1)


def start_from_mixture(
    potential: MixturePotential, target: Tensor, weight: Tensor, random: np.random.RandomState
) -> None:
    """Fits the atoms to y's by expectation maximisation, begun from k-means."""
    rows, n_atoms = target.double().cpu().numpy(), len(potential.b)
    share = (weight / weight.sum()).double().cpu().numpy()
    if len(rows) > MAX_ROWS or np.ptp(share) > 0:  # the mixture takes no weights: draw rows in their proportion instead
        rows = rows[random.choice(len(rows), size=min(len(rows), MAX_ROWS), p=share / share.sum())]
    mixture = GaussianMixture(
        min(n_atoms, len(np.unique(rows, axis=0))),
        covariance_type=potential.kind.sklearn_name(),
        reg_covar=max(potential.variance_floor, 1e-6),
        max_iter=100,
        random_state=random,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is a start: training goes on from wherever it stands
        mixture.fit(rows)
    # Fewer different rows than atoms: the rest repeat the first ones at shares of their weight.
    atom = torch.arange(n_atoms) % mixture.n_components
    log_w = torch.from_numpy(mixture.weights_).log()[atom] - torch.bincount(atom)[atom].log()
    potential.set_atoms(log_w, torch.from_numpy(mixture.means_)[atom], torch.from_numpy(mixture.covariances_)[atom])


def start_from_samples(
    potential: MixturePotential, target: Tensor, variance: float, random: np.random.RandomState
) -> None:
    """Puts atoms of equal weight and variance onto random y's, as the paper does."""
    n_atoms, dim_y = potential.b.shape
    chosen = random.choice(len(target), size=n_atoms, replace=n_atoms > len(target))
    B = potential.kind.from_variances(torch.full((n_atoms, dim_y), variance, dtype=torch.float64))
    potential.set_atoms(torch.zeros(n_atoms), target[torch.from_numpy(chosen).to(target.device)].cpu(), B)
