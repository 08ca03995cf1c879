"""Normalisers of energies alone: quadrature and annealed chains against closed forms, and errors that are honest."""

import math

import numpy as np
import pytest
import torch
from small_networks import DATA, Flat, Linear, fit, free
from torch import nn

from fewpairs.energies.energy import Energy
from fewpairs.energies.normalisers import anneal, integrate
from fewpairs.energies.samplers import Langevin
from fewpairs.estimators.settings import NetworkTraining


class Bowl(nn.Module):
    def forward(self, y):
        return -y.square().sum(-1)


class NoCost(nn.Module):
    def forward(self, x, y):
        return 0 * y.sum(-1)


def test_quadrature_and_annealing_agree() -> None:
    """The same energy in two dimensions: by a grid, and by annealed chains, within four of the standard errors that they tell."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 2))
    y = x + random.normal(size=(40, 2))
    model = free(energy_penalty=0.1).fit(x, y)
    model.plan_.potential = Bowl()
    grid = model.estimate_log_likelihood(x[:5], y[:5])
    assert grid.method == "quadrature"
    assert grid.error.max() < 1e-3
    rows, box = model._standardised(x[:5]), torch.tensor(model.box_)
    log_z, error = anneal(model.plan_, rows, 2, std=1.0, n_chains=500, generator=torch.Generator().manual_seed(0))
    by_grid, _ = integrate(model.plan_, rows, *box)
    assert float(error.max()) < 0.2
    assert bool(((log_z - by_grid).abs() < 4 * error).all())


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_range_of_the_chains_is_one_of_the_densities(n_outputs: int) -> None:
    """u is linear, so that each output has an exponential density between the ends of the range, and none outside."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 1)), random.uniform(-1, 1, size=(30, n_outputs))
    frozen = NetworkTraining(learning_rate=1e-12, max_steps=1, held_out=0.0, batch_size=32)
    networks = {"cost": Linear(*[1.5] * n_outputs), "potential": Flat(), "training": frozen}
    sampler = Langevin(n_steps=5, clamp=(-1.0, 1.0))
    model = free(**networks, confinement=None, standardise=False, sampler=sampler).fit(x, y)
    estimate = model.estimate_log_likelihood(x[:5], y[:5], n_draws=500)
    truth = (1.5 * y[:5] - math.log(2 * math.sinh(1.5) / 1.5)).sum(1)
    assert estimate.error.max() < 0.1
    assert (np.abs(estimate.log_likelihood - truth) < 4 * estimate.error + 1e-4).all()
    outside = model.estimate_log_likelihood(x[:5], y[:5] + 2, n_draws=20)
    assert (outside.log_likelihood == -math.inf).all() and (outside.error == 0).all()


def test_more_outputs_are_annealed() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 1)), random.normal(size=(20, 3))
    estimate = free().fit(x, y).estimate_log_likelihood(x, y, n_draws=20)
    assert estimate.method == "annealed importance sampling"
    assert estimate.log_likelihood.shape == estimate.error.shape == (20,)


def test_densities_do_not_depend_on_the_scale_inside() -> None:
    """Without standardising, the box of the quadrature is where the data are, and not around zero; a range ends it."""
    data = {"X_unpaired": DATA.X_unpaired, "Y_unpaired": DATA.Y_unpaired + 50}
    model = free(sampler=Langevin(n_steps=5, clamp=(45.0, 60.0)), standardise=False, confinement=None)
    model.fit(DATA.X, DATA.Y + 50, **data)
    low, high = (corner[0] for corner in model.box_)
    assert low < 50 < high < 100
    y = np.linspace(45, 60, 200)[:, None]
    estimate = model.estimate_log_likelihood(DATA.X[:1].repeat(200, 0), y)
    assert np.exp(estimate.log_likelihood).mean() * 15 == pytest.approx(1.0, rel=0.01)
    assert np.isinf(model.estimate_log_likelihood(DATA.X[:2], [[44.9], [60.1]]).log_likelihood).all()


def test_densities_are_those_of_the_draws_at_any_temperature() -> None:
    """Cold chains draw from exp(−u/T): the density that is told has their spread, and integrates to one."""
    cold = Langevin(n_steps=5, temperature=0.1, step_size=0.01)
    model = fit(free(sampler=cold, chains__sampling_steps=400, confinement=1.0))
    x, points = (
        DATA.X[:1],
        np.linspace(-15, 15, 2001)[:, None] * model.y_scaler_.scale.numpy() + model.y_scaler_.loc.numpy(),
    )
    density = np.exp(model.estimate_log_likelihood(x.repeat(2001, 0), points).log_likelihood)
    share = density / density.sum()
    assert density.mean() * float(np.ptp(points)) == pytest.approx(1.0, rel=0.01)
    middle = (share * points[:, 0]).sum()
    spread = math.sqrt((share * (points[:, 0] - middle) ** 2).sum())
    assert model.sample(x, 4000, random_state=0).std() == pytest.approx(
        spread, rel=0.1
    )  # chains are 0.2² too wide, and noise


@pytest.mark.parametrize("slopes", [(0.0,), (1.0,), (2.0,), (-5.0,), (20.0,), (0.0, 0.0), (2.0, -3.0)])
@pytest.mark.parametrize("clamp", [None, (-1.0, 3.0)])
def test_quadrature_finds_gaussians_wherever_they_are(slopes, clamp) -> None:
    """Also where the data, and so the first box, are not; what a range cuts off is not counted. Its error is honest: a few
    rounding errors of float32 sums of thousands of terms more, at the most."""
    energy, spread = Energy(Linear(*slopes), Flat(), confinement=2.0), 2.0
    corner, x = torch.full((len(slopes),), 8.0), torch.zeros(2, 1)
    log_z, error = integrate(energy, x, -corner, corner, clamp=clamp)
    truth = 0.0
    for slope in slopes:
        truth += math.log(spread * math.sqrt(2 * math.pi)) + (spread * slope) ** 2 / 2
        if clamp is not None:
            ends = torch.tensor([(end - spread**2 * slope) / spread for end in clamp]).double()
            below, above = torch.special.log_ndtr(-ends.flip(0) if slope < 0 else ends)  # in the tail that is precise
            truth += float(above + torch.log1p(-(below - above).exp()))
    assert float(error.max()) < 0.01
    assert bool(((log_z - truth).abs() < error + 1e-5 * max(1, abs(truth))).all())


def test_quadrature_says_when_it_knows_nothing() -> None:
    """An energy that has no normaliser, one whose peak falls between the points, and one that is no number."""
    corner, x = torch.full((1,), 8.0), torch.zeros(1, 1)
    for energy in (
        Energy(Linear(0.1), Flat()),
        Energy(NoCost(), Flat(), confinement=1e-4),
        Energy(Linear(math.nan), Flat(), confinement=1.0),
    ):
        assert math.isinf(float(integrate(energy, x, -corner, corner)[1]))
