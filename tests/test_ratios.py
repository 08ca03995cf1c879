"""Density ratios against known Gaussian ones; the test for a difference has the size it claims."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC

from fewpairs.data.repeats import find_repeats
from fewpairs.ratios import compare_samples, estimate_density_ratio


def two_gaussians(
    n_above: int, n_below: int, dim: int = 5, seed: int = 0, mean: float | tuple[float, ...] = 0.4, std: float = 0.8
):
    """Rows of N(mean, std² I) and of N(0, I), and the logarithm of their ratio."""
    random = np.random.default_rng(seed)
    place = np.broadcast_to(mean, dim)
    above = place + std * random.normal(size=(n_above, dim))
    below = random.normal(size=(n_below, dim))

    def log_ratio(rows: np.ndarray) -> np.ndarray:
        return stats.norm.logpdf(rows, place, std).sum(1) - stats.norm.logpdf(rows).sum(1)

    return above, below, log_ratio


@pytest.mark.parametrize("sizes", [(500, 5000), (5000, 500)])
def test_log_ratios_are_those_of_gaussians(sizes: tuple[int, int]) -> None:
    above, below, log_ratio = two_gaussians(*sizes)
    found = estimate_density_ratio(above, below, random_state=0)
    assert np.corrcoef(np.log(found.weights), log_ratio(below))[0, 1] > 0.9
    new = np.random.default_rng(1).normal(size=(2000, 5))
    assert np.corrcoef(np.log(found(new)), log_ratio(new))[0, 1] > 0.9
    # The factor for unequal sizes: without it the level would be off by log 10.
    assert abs(np.mean(np.log(found(new)) - log_ratio(new))) < 0.5


@pytest.mark.parametrize(
    ("mean", "std", "least"),
    [(0.7, 1.0, 0.9), ((1.0, 0.0, 0.0, 0.0, 0.0), 1.0, 0.9), (0.0, 1.25, 0.9), (0.0, 0.5, 0.9), (0.2, 1.0, 0.75)],
)
def test_log_ratios_of_other_gaussians(mean: float | tuple[float, ...], std: float, least: float) -> None:
    """The last is a small difference, of which 500 rows know less: the ratio's spread is 0.45 nats, and that of its error 0.2."""
    above, below, log_ratio = two_gaussians(500, 5000, seed=3, mean=mean, std=std)
    found = estimate_density_ratio(above, below, random_state=0)
    assert np.corrcoef(np.log(found.weights), log_ratio(below))[0, 1] > least


def test_weighted_means_are_those_of_the_other_distribution() -> None:
    above, below, _ = two_gaussians(2000, 2000, dim=2)
    found = estimate_density_ratio(above, below, random_state=0)
    assert found.weights.mean() == pytest.approx(1)
    error = np.abs(np.average(below, axis=0, weights=found.weights) - 0.4)
    assert (error < 4 * 0.8 / np.sqrt(found.effective_sample_size)).all()
    assert (np.abs(below.mean(0) - 0.4) > 0.3).all()  # which the plain mean is not


def test_least_squares_agrees() -> None:
    above, below, log_ratio = two_gaussians(2000, 2000, dim=2)
    found = estimate_density_ratio(above, below, method="least_squares", random_state=0)
    assert np.corrcoef(found.weights, np.exp(log_ratio(below)))[0, 1] > 0.9


def test_no_row_is_scored_by_a_model_that_saw_it() -> None:
    """A nearest neighbour knows every row it saw by heart: scored by one that did, all weights would be equal."""
    above, below, log_ratio = two_gaussians(1000, 1000, dim=1)
    found = estimate_density_ratio(above, below, method=KNeighborsClassifier(1), random_state=0)
    assert np.corrcoef(found.weights, np.exp(log_ratio(below)))[0, 1] > 0.15 and found.weights.std() > 0.05


def test_a_classifier_that_is_too_sure_is_calibrated() -> None:
    """A forest of full trees is as good as certain; its weights must still have about the right spread."""
    above, below, log_ratio = two_gaussians(1500, 1500, dim=2)
    forest = RandomForestClassifier(50, random_state=0)
    found = estimate_density_ratio(above, below, method=forest, random_state=0)
    assert found.effective_sample_size > 0.5 * np.exp(log_ratio(below)).sum() ** 2 / np.exp(2 * log_ratio(below)).sum()


def test_clipping_keeps_the_mean_and_says_how_often() -> None:
    above, below, _ = two_gaussians(500, 500, dim=3)
    found = estimate_density_ratio(above + 1.0, below, largest=5.0, random_state=0)
    assert found.weights.max() <= 5 * (1 + 1e-6) and found.weights.mean() == pytest.approx(1) and found.n_clipped > 0
    assert found.effective_sample_size < 200


def test_overlap_is_the_part_of_the_numerator_that_is_covered() -> None:
    """A quarter of the numerator is where the denominator is, the rest far away; and all of it, where both are the same."""
    random = np.random.default_rng(0)
    below = random.normal(size=(1000, 1))
    above = random.normal(size=(1000, 1)) + np.where(np.arange(1000) < 250, 0.0, 8.0)[:, None]
    forest = RandomForestClassifier(100, min_samples_leaf=20, random_state=0)
    assert estimate_density_ratio(above, below, method=forest, random_state=0).overlap == pytest.approx(0.25, abs=0.08)
    assert estimate_density_ratio(below[:500], below[500:], random_state=0).overlap == pytest.approx(1.0, abs=0.05)
    assert estimate_density_ratio(below + 50.0, below, random_state=0).overlap < 0.01


def test_equal_distributions_have_equal_weights() -> None:
    random = np.random.default_rng(0)
    found = estimate_density_ratio(random.normal(size=(500, 3)), random.normal(size=(500, 3)), random_state=0)
    assert found.effective_sample_size > 450


@pytest.mark.parametrize("sizes", [(40, 400), (200, 200)])
def test_the_test_has_the_size_it_claims(sizes: tuple[int, int]) -> None:
    """Of 200 samples without a difference 5 % are called different at 0.05, to three standard errors of a binomial."""
    random = np.random.default_rng(1)
    n, m = sizes
    p_values = [
        compare_samples(random.normal(size=(n, 2)), random.normal(size=(m, 2)), random_state=0) for _ in range(200)
    ]
    for level in (0.05, 0.2):
        assert abs(np.mean(np.array(p_values) < level) - level) < 3 * np.sqrt(level * (1 - level) / 200)


def test_the_test_sees_a_difference() -> None:
    above, below, _ = two_gaussians(100, 1000, dim=2)
    assert compare_samples(above, below, random_state=0) <= 1e-3  # the least that 999 permutations can say
    random = np.random.default_rng(2)  # of spread alone
    assert compare_samples(0.5 * random.normal(size=(100, 2)), random.normal(size=(1000, 2)), random_state=0) <= 1e-3


@pytest.mark.parametrize("n_repeats", [2, 3, 10])
def test_rows_that_come_again_are_no_new_evidence(n_repeats: int) -> None:
    """What p-value and ratio say of forty rows, they say of the same rows several times, one after another or all over again."""
    above, below, _ = two_gaussians(500, 40, dim=3)
    once = estimate_density_ratio(above, below, random_state=0)
    p_value = compare_samples(below, above, random_state=0)
    for again in (np.repeat(below, n_repeats, axis=0), np.tile(below, (n_repeats, 1))):
        assert compare_samples(again, above, random_state=0) == p_value
        found = estimate_density_ratio(above, again, random_state=0)
        np.testing.assert_array_equal(found(below), once(below))
        assert found.weights.mean() == pytest.approx(1) and found.overlap == once.overlap
        # Their weights are those of the rows alone, so as large a part of the rows is effective.
        assert found.effective_sample_size == pytest.approx(n_repeats * once.effective_sample_size)


def test_repeats_share_the_weight_of_their_row() -> None:
    """Where every other row comes five times, weighted means are still those of the rows that come once each."""
    above, below, _ = two_gaussians(1000, 60, dim=2)
    once, n_times = estimate_density_ratio(above, below, random_state=0), np.where(np.arange(60) % 2, 1, 5)
    found = estimate_density_ratio(above, np.repeat(below, n_times, axis=0), random_state=0)
    means = (
        np.average(rows, axis=0, weights=one.weights)
        for rows, one in ((below, once), (below.repeat(n_times, 0), found))
    )
    np.testing.assert_allclose(*means, rtol=1e-12)


@pytest.mark.parametrize(("dim", "n_repeats", "jitter"), [(1, 3, 0.0), (2, 3, 0.01), (3, 10, 0.01), (5, 2, 0.01)])
def test_the_test_has_its_size_for_rows_that_come_again(dim: int, n_repeats: int, jitter: float) -> None:
    """Forty places measured several times, exactly or nearly: at 0.05 no more than 5 % of 100 samples are called different, to
    three standard errors of a binomial. Taken as so many rows, a quarter and more were."""
    random = np.random.default_rng(3)
    p_values = []
    for _ in range(100):
        rows = random.normal(size=(40, dim)).repeat(n_repeats, 0)
        rows = rows + jitter * random.normal(size=rows.shape)
        p_values.append(compare_samples(rows, random.normal(size=(400, dim)), random_state=0))
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_values_that_both_samples_have_are_counted() -> None:
    """Of three categories all that differs is how often they come: equal rows are no repeats there. The size holds as above."""
    random = np.random.default_rng(0)

    def categories(n_rows: int, *chances: float) -> np.ndarray:
        return random.choice(3, n_rows, p=chances)[:, None].astype(float)

    def p_value(*chances: float) -> float:
        return compare_samples(categories(100, *chances), categories(1000, 0.6, 0.3, 0.1), random_state=0)

    assert p_value(0.1, 0.3, 0.6) <= 1e-3 and p_value(0, 0, 1) <= 1e-3
    assert np.mean([p_value(0.6, 0.3, 0.1) <= 0.05 for _ in range(100)]) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_whole_numbers_of_any_size_are_no_repeats() -> None:
    """So heavy a tail has clumps of neighbouring numbers and wide gaps, which both samples have."""
    random = np.random.default_rng(0)
    for _ in range(30):
        few, many = (np.floor(np.exp(3 * random.exponential(size=(n, 1))).clip(max=1e5)) for n in (40, 1000))
        for rows, others in ((few, many), (many, few)):
            np.testing.assert_array_equal(find_repeats(rows, others), np.arange(len(rows)))


def test_places_of_a_grid_that_were_drawn_once_are_repeats() -> None:
    """The other sample holds all 400 places five times. Twenty of them five times each are twenty draws and no hundred."""
    random = np.random.default_rng(0)
    p_values = []
    for _ in range(100):
        grid = random.normal(size=(400, 3))
        p_values.append(compare_samples(grid[:20].repeat(5, 0), grid.repeat(5, 0), random_state=0))
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_too_few_different_rows_are_told() -> None:
    random = np.random.default_rng(0)
    with pytest.raises(ValueError, match="that differ, but 500 and 4 came"):
        estimate_density_ratio(random.normal(size=(500, 2)), random.normal(size=(4, 2)).repeat(10, 0))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="same columns"):
        estimate_density_ratio(np.zeros((10, 2)), np.zeros((10, 3)))
    with pytest.raises(ValueError, match="others has 3"):
        compare_samples(np.zeros((10, 2)), np.zeros((10, 3)))
    with pytest.raises(ValueError, match="at least 5 rows"):
        estimate_density_ratio(np.zeros((10, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="least_squares"):
        estimate_density_ratio(np.zeros((10, 2)), np.zeros((10, 2)), method="magic")
    with pytest.raises(ValueError, match="CalibratedClassifierCV"):
        estimate_density_ratio(np.zeros((10, 2)), np.zeros((10, 2)), method=LinearSVC())


def test_columns_go_by_their_names() -> None:
    above, below, _ = two_gaussians(100, 100, dim=2)
    above, below = (pd.DataFrame(rows, columns=["p", "q"]) for rows in (above, below))
    found = estimate_density_ratio(above, below, random_state=0)
    with pytest.raises(ValueError, match=r"denominator has the columns \['q', 'p'\], but \['p', 'q'\]"):
        estimate_density_ratio(above, below[["q", "p"]])
    with pytest.raises(ValueError, match=r"rows has the columns \['q', 'p'\]"):
        found(below[["q", "p"]])
    with pytest.raises(ValueError, match="rows has 3 columns, but 2"):
        found(np.zeros((4, 3)))


@pytest.mark.parametrize("sizes", [(5, 5), (5, 300), (300, 5)])
def test_least_squares_takes_few_rows(sizes: tuple[int, int]) -> None:
    above, below, _ = two_gaussians(*sizes, dim=2)
    assert np.isfinite(estimate_density_ratio(above, below, method="least_squares", random_state=0).weights).all()


def test_many_columns_are_no_more_work_than_they_are_worth() -> None:
    """94 columns have 4,465 squares and products: they are left out, and a shift is seen all the same."""
    random = np.random.default_rng(0)
    above, below = random.normal(size=(200, 94)) + 0.2, random.normal(size=(300, 94))
    assert compare_samples(above, below, random_state=0) <= 0.01
    assert estimate_density_ratio(above, below, random_state=0).effective_sample_size < 250
