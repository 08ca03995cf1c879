"""Starts: atoms that stand where the y's are, as many as the y's can place."""

import numpy as np
import pytest
import torch

from fewpairs.plans.initial import choose_n_atoms, fit_mixture, most_atoms, place_on_samples
from fewpairs.plans.potentials import ATOMS, log_mixture

CENTRES = torch.tensor([[-5.0, 0.0], [5.0, 0.0], [0.0, 8.0]], dtype=torch.float64)


def clusters(n_rows: int = 300, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n_rows, 2, dtype=torch.float64, generator=generator)
    return CENTRES[torch.arange(n_rows) % 3] + noise


def random() -> np.random.RandomState:
    return np.random.RandomState(0)


def test_a_mixture_finds_the_clusters(covariance: str) -> None:
    start, mixture = fit_mixture(clusters(), torch.ones(300), covariance, 3, random())
    order = start.atoms.b[:, 0].argsort()[[0, 2, 1]]
    error = 5 / 100**0.5  # five standard errors of a mean of a hundred
    torch.testing.assert_close(start.atoms.b[order], CENTRES, atol=error, rtol=0)
    torch.testing.assert_close(start.atoms.log_w.exp(), torch.full((3,), 1 / 3).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(start.atoms.variances(), torch.ones(3, 2).double(), atol=5 * 0.02**0.5, rtol=0)
    rows = clusters(50, seed=1)
    expected = torch.from_numpy(mixture.score_samples(rows.numpy()))
    torch.testing.assert_close(log_mixture(start.atoms, rows), expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(start.potential(0.0)(rows), expected, atol=1e-6, rtol=0)


def test_no_direction_of_an_atom_is_narrower_than_the_floor(covariance: str) -> None:
    start, _ = fit_mixture(clusters() * torch.tensor([1.0, 1e-3]), torch.ones(300), covariance, 3, random())
    for floor in (0.01, 3.0):
        B = start.potential(floor).atoms().B
        B = B if B.dim() == 3 else torch.diag_embed(B)
        assert torch.linalg.eigvalsh(B).min() >= floor * (1 - 1e-9)


def test_few_rows_place_few_atoms() -> None:
    assert [most_atoms(n_rows) for n_rows in (1, 4, 12, 300)] == [1, 1, 2, 60]


def test_atoms_beyond_the_different_rows_share_their_weight(covariance: str) -> None:
    """Folds are stacked, so every fold must have as many atoms as asked for; repeated ones change no density."""
    rows = CENTRES.repeat(20, 1)
    few, _ = fit_mixture(rows, torch.ones(60), covariance, 3, random())
    many, _ = fit_mixture(rows, torch.ones(60), covariance, 50, random())
    assert len(few.atoms.b) == 3 and len(many.atoms.b) == 50
    y = clusters(30).double()
    torch.testing.assert_close(many.potential(0.1)(y), few.potential(0.1)(y), atol=1e-9, rtol=0)


def test_heavy_rows_draw_the_atoms(covariance: str) -> None:
    weight = torch.where(torch.arange(300) % 3 == 1, 1.0, 0.0)
    start, _ = fit_mixture(clusters(), weight, covariance, 1, random())
    torch.testing.assert_close(start.atoms.b, CENTRES[1:2], atol=0.5, rtol=0)


@pytest.mark.parametrize("kind", ATOMS)
def test_the_number_of_atoms_follows_the_data(kind: str) -> None:
    """Three clusters need more than one atom, one needs no more than one."""
    assert choose_n_atoms(clusters(), torch.ones(300), kind, random()) > 1
    one = torch.randn(3000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert choose_n_atoms(one, torch.ones(3000), kind, random()) == 1
    assert choose_n_atoms(one[:5], torch.ones(5), kind, random()) == 1


def test_atoms_on_samples_stand_on_samples(covariance: str) -> None:
    rows = clusters()
    start = place_on_samples(rows, covariance, 20, 0.1, random())
    assert all((rows == b).all(1).any() for b in start.atoms.b)
    assert len(start.atoms.b.unique(dim=0)) == 20
    torch.testing.assert_close(start.atoms.variances(), torch.full((20, 2), 0.1).double())
    assert len(place_on_samples(rows[:3], covariance, 20, 0.1, random()).atoms.b) == 20
