"""FSBM: a diffusion that arrives at the target, follows the pairs, and knows the closed form of its own bridge."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fewpairs.baselines.fsbm import FSBM, _Bridge, feedback

N_UNPAIRED = 1000
QUICK: dict[str, Any] = {"max_steps": 15, "refit_every": 5, "n_times": 5, "verbose": False}
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])  # a quarter to the left


@pytest.fixture(scope="module")
def shifted() -> tuple[FSBM, np.ndarray, np.ndarray]:
    """N(0, I) → N(m, AAᵀ), with pairs y = A x + m of the optimal map, A being symmetric and positive."""
    random = np.random.default_rng(0)
    matrix, mean = np.array([[1.5, 0.4], [0.4, 0.7]]), np.array([3.0, -1.0])
    x, more, others = (random.normal(size=(n, 2)) for n in (40, N_UNPAIRED, N_UNPAIRED))
    model = FSBM(random_state=0, max_steps=600, noise=1.0, verbose=False)
    return model.fit(x, x @ matrix + mean, X_unpaired=more, Y_unpaired=others @ matrix + mean), matrix, mean


def test_one_gaussian_arrives_at_the_other(shifted: tuple[FSBM, np.ndarray, np.ndarray]) -> None:
    model, matrix, mean = shifted
    drawn = model.sample(np.random.default_rng(1).normal(size=(4000, 2)), 1, random_state=0)[0]
    covariance = matrix @ matrix
    # 1000 rows of the target place its mean to 0.03 of the spread and its variances to 0.045; the network's own error, and the
    # last step of 50, which ends at an expected end without noise (2 % of the variance), may be as much again.
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.12 * math.sqrt(covariance.trace() / 2))
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.15 * covariance.trace() / 2)


@pytest.fixture(scope="module")
def turned() -> tuple[np.ndarray, dict[float, FSBM]]:
    """N(0, I) → N(0, I), and pairs that are turned by a quarter: without feedback the shortest way is to stay."""
    random = np.random.default_rng(0)
    x, more, others = (random.normal(size=(n, 2)) for n in (40, N_UNPAIRED, N_UNPAIRED))
    models = {
        guidance: FSBM(random_state=0, max_steps=600, noise=0.3, pairs_share=share, guidance=guidance, verbose=False)
        for guidance, share in ((10.0, 0.25), (0.0, 0.0))
    }
    return x, {key: model.fit(x, x @ TURN, X_unpaired=more, Y_unpaired=others) for key, model in models.items()}


def test_paired_points_land_near_their_partners(turned: tuple[np.ndarray, dict[float, FSBM]]) -> None:
    x, models = turned
    drawn = models[10.0].sample(x, 50, random_state=0)
    misses = np.sqrt(np.mean((drawn - x @ TURN) ** 2))
    # A Markov drift with noise σ forgets up to σ√t(1−t) ≤ σ/2 = 0.15 of where it came from, and coupled rows lie
    # about the bandwidth P^(−1/6) = 0.54 from where the pairs point; a random y would be √2 away in each coordinate.
    assert misses < 0.5


def test_rows_between_the_pairs_follow_them_and_only_with_feedback(
    turned: tuple[np.ndarray, dict[float, FSBM]],
) -> None:
    _, models = turned
    x = np.random.default_rng(1).normal(size=(500, 2))
    with_feedback, without = (
        np.mean((models[key].sample(x, 8, random_state=0).mean(0) - x @ TURN) ** 2) for key in (10.0, 0.0)
    )
    # Staying is off by |x − turned x|² = 2|x|², which is 2 for each coordinate on average; following leaves the bandwidth's blur.
    assert with_feedback < 0.25 < 1 < without


def test_the_diffusion_of_a_known_drift_has_the_law_of_the_bridge_mixture() -> None:
    # Ends z₁ ~ N(0, s²) that do not depend on the start z₀ = 0: E[z₁|z_t] = z t s² / (t² s² + σ² t(1 − t)), and the diffusion
    # must end at N(0, s²). Euler's error falls like 1/n: 200 steps leave some per cent of the spread.
    spread, noise = 0.8, 0.5
    bridge = _Bridge(1, 1, (4,), noise, 200)

    def expected_end(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return z * spread**2 / (t * spread**2 + noise**2 * (1 - t))

    bridge.forward = expected_end  # type: ignore[method-assign]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ends = bridge.run(torch.zeros(20_000, 1))
    assert abs(float(ends.mean())) < 4 * spread / math.sqrt(20_000)
    assert float(ends.std()) == pytest.approx(spread, rel=0.04)


def test_feedback_is_least_where_a_nearby_pair_points() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs_x = torch.randn(30, 2, dtype=torch.float64, generator=generator)
    pairs_y = pairs_x + torch.tensor([2.0, 1.0], dtype=torch.float64)
    x, y = (torch.randn(n, 2, dtype=torch.float64, generator=generator) for n in (5, 7))
    # All pairs move alike, so the soft minimum is over equal numbers: half the square distance to x + move.
    expected = torch.cdist(x + pairs_y[:1] - pairs_x[:1], y).square() / 2
    torch.testing.assert_close(feedback(x, y, pairs_x, pairs_y), expected, atol=1e-10, rtol=0)


def test_draws_vary_and_seeds_repeat_them() -> None:
    random = np.random.default_rng(0)
    x, y, more = random.normal(size=(12, 2)), random.normal(size=(12, 2)), random.normal(size=(50, 2))
    one, two = (FSBM(random_state=1, **QUICK).fit(x, y, X_unpaired=more, Y_unpaired=more) for _ in range(2))
    draws = one.sample(x, 3, random_state=0)
    assert one.is_stochastic and not (draws == draws[0]).all()
    np.testing.assert_array_equal(draws, two.sample(x, 3, random_state=0))
    assert not np.array_equal(draws, one.sample(x, 3, random_state=1))


@pytest.mark.parametrize(("dim_x", "dim_y"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("n_unpaired", [0, 40])
def test_any_dimensions_with_and_without_unpaired_rows(dim_x: int, dim_y: int, n_unpaired: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, dim_x)), random.normal(size=(12, dim_y))
    more = {
        "X_unpaired": random.normal(size=(n_unpaired, dim_x)),
        "Y_unpaired": random.normal(size=(n_unpaired, dim_y)),
    }
    model = FSBM(random_state=0, **QUICK).fit(x, y, **(more if n_unpaired else {}))
    draws = model.sample(x, 2, random_state=0)
    assert draws.shape == (2, 12, dim_y) and np.isfinite(draws).all()
