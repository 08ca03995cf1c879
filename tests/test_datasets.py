"""The problems are what they say: moments, densities, and a coupling that agrees with an independent solver."""

import numpy as np
import ot
import pytest
import torch

from fewpairs.datasets.made import AnalyticSwissRoll, Clusters, LinearGaussian, SwissRoll, TwoBranches, sinkhorn_plans

EXACT = {
    "analytic": AnalyticSwissRoll(),
    "linear": LinearGaussian(),
    "branches": TwoBranches(),
    "clusters": Clusters(5),
}


@pytest.mark.parametrize("problem", EXACT.values(), ids=EXACT)
def test_draws_follow_the_stated_density(problem) -> None:
    x, y = problem.draw_pairs(20_000, seed=0)
    log_prob = problem.conditional(x).log_prob(torch.from_numpy(y))
    x_self = problem.conditional(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        expected = x_self.log_prob(x_self.sample())  # the same law, drawn by torch
    standard_error = float((log_prob.var() / len(x) + expected.var() / len(x)).sqrt())
    assert abs(float(log_prob.mean() - expected.mean())) < 4 * standard_error


@pytest.mark.parametrize("problem", [*EXACT.values(), SwissRoll()], ids=[*EXACT, "swiss_roll"])
def test_a_seed_fixes_a_draw(problem) -> None:
    first, second, other = (problem.draw(n_pairs=5, n_source=4, n_target=3, seed=seed) for seed in (3, 3, 4))
    for name in ("X", "Y", "X_unpaired", "Y_unpaired"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))


def test_sinkhorn_agrees_with_pot() -> None:
    generator = torch.Generator().manual_seed(0)
    problem = SwissRoll()
    x = problem._draw_x(3 * 16, generator).reshape(3, 16, 2)
    y = problem._draw_y(3 * 16, generator).reshape(3, 16, 2)
    cost = problem._cost(x, y)
    plans = sinkhorn_plans(cost, 0.05, tolerance=1e-9, max_steps=5000)
    for plan, matrix in zip(plans, cost, strict=True):
        expected = ot.bregman.sinkhorn_log([], [], matrix.numpy(), 0.05, numItermax=5000, stopThr=1e-12)
        np.testing.assert_allclose(plan.numpy(), expected, atol=1e-8)  # entries are about 1/256


def test_swiss_roll_turns_by_a_quarter() -> None:
    x, y = SwissRoll().draw_pairs(400, seed=0)
    angle = np.arctan2(y[:, 1], y[:, 0]) - np.arctan2(x[:, 1], x[:, 0])
    off = np.abs(np.abs((angle + np.pi) % (2 * np.pi) - np.pi) - np.pi / 2)
    assert np.median(off) < 0.3  # radians: the coupling of 64 points blurs the quarter turn, it does not lose it
    left = ((angle + np.pi) % (2 * np.pi) - np.pi) > 0
    assert 0.4 < left.mean() < 0.6  # half turn left: four standard errors


def test_swiss_roll_marginal_is_the_roll() -> None:
    """Couplings have uniform marginals, so the y's of pairs lie as the unpaired y's do."""
    problem = SwissRoll()
    _, y = problem.draw_pairs(1000, seed=0)
    target = problem.draw(n_pairs=0, n_source=0, n_target=1000, seed=1).Y_unpaired
    standard_error = np.sqrt(y.var(axis=0) / 1000 + target.var(axis=0) / 1000)
    assert (np.abs(y.mean(axis=0) - target.mean(axis=0)) < 4 * standard_error).all()
