"""Initial atoms: where the atoms of a potential stand before training.

A plan with slopes near zero is its potential's mixture for every x. Fitted to all y's first, it begins as the best model
that ignores x, and that model is a yardstick of its own: a plan that cannot beat it has learnt nothing from x.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from fewpairs.plans.potentials import ATOMS, Atoms, MixturePotential

__all__ = ["InitialAtoms", "choose_n_atoms", "fit_mixture", "most_atoms", "place_on_samples"]

MAX_ROWS = 2_500  # rows that the first mixture is fitted to: more of them hardly move some tens of atoms
MAX_ITERATIONS = 20  # it is a start, training goes on from there
ROWS_PER_ATOM = 5
LEAST_VARIANCE = 1e-6  # of an atom, as a part of the variance of y
N_ATOMS = {"diagonal": (1, 5, 20, 50), "full": (1, 2, 5, 10, 20)}


class InitialAtoms(NamedTuple):
    """Atoms to begin with, before any floor."""

    kind: str
    atoms: Atoms

    def potential(self, variance_floor: float) -> MixturePotential:
        """A potential with these atoms, none of them narrower than the floor."""
        n_atoms, dim_y = self.atoms.b.shape
        potential = MixturePotential(
            dim_y=dim_y, n_atoms=n_atoms, covariance=self.kind, variance_floor=variance_floor
        ).to(self.atoms.b.dtype)
        potential.set_atoms(*self.atoms)
        return potential


def fit_mixture(
    target: Tensor, weight: Tensor, kind: str, n_atoms: int, random: np.random.RandomState
) -> tuple[InitialAtoms, GaussianMixture]:
    """Fits atoms to y's by expectation maximisation, begun from k-means."""
    rows = target.double().cpu().numpy()
    share = (weight / weight.sum()).double().cpu().numpy()
    if len(rows) > MAX_ROWS or np.ptp(share) > 0:  # the mixture takes no weights: draw rows in their proportion instead
        rows = rows[random.choice(len(rows), size=min(len(rows), MAX_ROWS), p=share / share.sum())]
    if len(rows) == 1:
        rows = np.repeat(rows, 2, axis=0)  # scikit-learn's least number
    mixture = GaussianMixture(
        min(n_atoms, len(np.unique(rows, axis=0))),
        covariance_type=ATOMS[kind].sklearn_name(),
        reg_covar=LEAST_VARIANCE,
        max_iter=MAX_ITERATIONS,
        random_state=random,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(rows)
    # Fewer different rows than atoms: the rest repeat the first ones at shares of their weight.
    atom = np.arange(n_atoms) % mixture.n_components
    parts = (np.log(mixture.weights_[atom] / np.bincount(atom)[atom]), mixture.means_[atom], mixture.covariances_[atom])
    return InitialAtoms(kind, ATOMS[kind](*(torch.from_numpy(part) for part in parts))), mixture


def most_atoms(n_rows: int) -> int:
    """As many atoms as so many y's can place."""
    return max(n_rows // ROWS_PER_ATOM, 1)


def choose_n_atoms(target: Tensor, weight: Tensor, kind: str, random: np.random.RandomState) -> int:
    """The number of atoms whose mixture suits y's best that were not used to fit it."""
    order = torch.from_numpy(random.permutation(len(target)))
    held, kept = order.split([len(order) // 5, len(order) - len(order) // 5])
    if len(held) < 2:
        return 1
    rows = target[held[:MAX_ROWS]].double().cpu().numpy()
    numbers: Sequence[int] = [n for n in N_ATOMS[kind] if n <= most_atoms(len(kept))]
    scores = [
        fit_mixture(target[kept], weight[kept], kind, n_atoms, random)[1].score(rows, None) for n_atoms in numbers
    ]
    return numbers[int(np.argmax(scores))]


def place_on_samples(
    target: Tensor, kind: str, n_atoms: int, variance: float, random: np.random.RandomState
) -> InitialAtoms:
    """Atoms of equal weight and variance on random y's, as the paper does."""
    chosen = torch.from_numpy(random.choice(len(target), size=n_atoms, replace=n_atoms > len(target)))
    b = target.double().cpu()[chosen]
    B = ATOMS[kind].from_variances(torch.full_like(b, variance))
    return InitialAtoms(kind, ATOMS[kind](torch.zeros(n_atoms, dtype=torch.float64), b, B))
