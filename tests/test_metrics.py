"""Metrics against closed forms, loops and other libraries."""

import numpy as np
import ot
import pytest
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment

from fewpairs import metrics

RANDOM = np.random.default_rng(0)


def test_mmd_is_the_papers_estimator() -> None:
    x, y = RANDOM.normal(size=(7, 2)), RANDOM.normal(size=(9, 2)) + 1
    pooled = np.concatenate([x, y])
    median = np.median([np.linalg.norm(a - b) for i, a in enumerate(pooled) for b in pooled[:i]])

    def kernel(a, b):
        square = ((a - b) ** 2).sum()
        return np.mean([np.exp(-square / (2 * (factor * median) ** 2)) for factor in (0.25, 0.5, 1, 2, 4)])

    within_x = np.mean([kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    within_y = np.mean([kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    between = np.mean([kernel(a, b) for a in x for b in y])
    assert metrics.mmd_squared(x, y) == pytest.approx(within_x + within_y - 2 * between, abs=1e-12)


def test_mmd_of_equal_distributions_is_zero_on_average() -> None:
    values = [metrics.mmd_squared(*RANDOM.normal(size=(2, 50, 2)), bandwidth=1.0) for _ in range(200)]
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(200)


@pytest.mark.parametrize("n_others", [40, 57])
def test_the_transport_cost_is_exact(n_others: int) -> None:
    x, y = RANDOM.normal(size=(40, 3)), RANDOM.normal(size=(n_others, 3)) ** 3  # some of them far away
    squared = ot.emd2([], [], ot.dist(x, y))
    assert metrics.transport_cost(x, y) == pytest.approx(squared / 2, rel=1e-9)
    assert metrics.wasserstein(x, y) == pytest.approx(np.sqrt(squared), rel=1e-9)
    assert metrics.transport_cost(torch.from_numpy(x), torch.from_numpy(y)) == metrics.transport_cost(x, y)


@pytest.mark.parametrize("others", ["one point", "far and narrow", "on them", "one is very far", "all in one place"])
def test_the_transport_cost_does_not_depend_on_how_it_is_found(others: str) -> None:
    """The prices that speed the search up are rough; its result, compared with a plain search, is not."""
    x = RANDOM.normal(size=(200, 2)) * 2 + 1
    y = {
        "one point": np.tile(x[:1], (200, 1)),
        "far and narrow": 0.01 * RANDOM.normal(size=(200, 2)) + 30,
        "on them": x[RANDOM.permutation(200)],
        "one is very far": np.concatenate([RANDOM.normal(size=(199, 2)), [[1e5, 0.0]]]),
        "all in one place": x,
    }[others]
    x = np.tile(x[:1], (200, 1)) if others == "all in one place" else x
    cost = ((x[:, None] - y) ** 2).sum(-1) / 2
    plain = cost[linear_sum_assignment(cost)].mean()
    assert metrics.transport_cost(x, y) == pytest.approx(plain, rel=1e-9, abs=1e-12)  # rounding


def test_the_transport_cost_of_a_shift_is_half_its_square() -> None:
    x = RANDOM.normal(size=(300, 2))
    assert metrics.transport_cost(x, x + np.array([3.0, 4.0])) == pytest.approx(12.5, rel=1e-9)


def test_sinkhorn_is_about_half_the_squared_distance() -> None:
    x, y = RANDOM.normal(size=(200, 2)), RANDOM.normal(size=(200, 2)) + np.array([3.0, 0.0])
    squared = ot.emd2([], [], ot.dist(x, y))
    assert metrics.sinkhorn_divergence(x, y) == pytest.approx(
        squared / 2, rel=0.01
    )  # blur 0.03 against a distance of 3


def test_crps_and_energy_score_of_a_gaussian() -> None:
    """CRPS of N(0, 1) at y is y(2Φ(y) − 1) + 2φ(y) − 1/√π; in one dimension the energy score is the same."""
    y = np.array([[-1.0], [0.0], [2.0]])
    draws = RANDOM.normal(size=(4000, 3, 1))
    exact = y * (2 * stats.norm.cdf(y) - 1) + 2 * stats.norm.pdf(y) - 1 / np.sqrt(np.pi)
    assert metrics.crps(draws, y)[0] == pytest.approx(exact.mean(), abs=0.02)  # three times 1/√4000
    assert metrics.energy_score(draws, y) == pytest.approx(exact.mean(), abs=0.02)


def test_pit_is_uniform_if_calibrated_and_not_otherwise() -> None:
    y = RANDOM.normal(size=(2000, 1))
    good = metrics.pit_values(RANDOM.normal(size=(50, 2000, 1)), y)[:, 0]
    narrow = metrics.pit_values(0.5 * RANDOM.normal(size=(50, 2000, 1)), y)[:, 0]
    assert stats.kstest(good, "uniform").pvalue > 1e-3
    assert stats.kstest(narrow, "uniform").pvalue < 1e-6


def test_pit_of_integers_is_uniform() -> None:
    y = RANDOM.integers(3, size=(3000, 1))
    pit = metrics.pit_values(RANDOM.integers(3, size=(50, 3000, 1)), y)[:, 0]
    assert stats.kstest(pit, "uniform").pvalue > 1e-3


def test_coverage_counts_each_output() -> None:
    y = np.array([[0.0, 5.0], [0.5, 0.5]])
    np.testing.assert_allclose(metrics.coverage(np.zeros((2, 2)), np.ones((2, 2)), y), [1.0, 0.5])


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(n_samples, rows, dim_y\).*\(3, 5\)"):
        metrics.crps(np.zeros((3, 5)), np.zeros((4,)))
    with pytest.raises(ValueError, match="at least two points"):
        metrics.mmd_squared(np.zeros((1, 2)), np.zeros((5, 2)))


def test_metrics_refuse_what_they_cannot_measure() -> None:
    with pytest.raises(ValueError, match="All points are the same"):
        metrics.mmd_squared(np.ones((5, 1)), np.ones((5, 1)))
    with pytest.raises(ValueError, match="at least 2"):
        metrics.energy_score(np.zeros((1, 5, 2)), np.zeros((5, 2)))
    with pytest.raises(ValueError, match="one shape"):
        metrics.coverage([0, 0], [1, 1], [[0.5], [2.0]])


def test_calibration_error_is_the_gap_between_confidence_and_truth() -> None:
    """Labels drawn with the stated probabilities are calibrated up to noise: 15 bins of 2,000, a standard error of 0.01 each.
    One that is right less often by 0.2 is off by that."""
    random = np.random.default_rng(0)
    confidence = random.uniform(0.5, 1.0, size=30_000)
    both = np.stack([confidence, 1 - confidence], axis=1)
    is_right = random.random(30_000) < confidence
    assert metrics.calibration_error(both, is_right) < 0.02
    too_low = random.random(30_000) < confidence - 0.2
    assert metrics.calibration_error(both, too_low) == pytest.approx(0.2, abs=0.01)
    with pytest.raises(ValueError, match="one each"):
        metrics.calibration_error(both, is_right[:5])
