"""Novelty: the distance to the nearest x that was seen, against a loop, for narrow rows and for wide ones."""

import time

import numpy as np
import pytest
import torch

from fewpairs.estimators.novelty import FAR, N_KEPT, WIDE, Neighbourhood


def draw(n: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [1, 3, WIDE, WIDE + 1, 500])
def test_distances_are_those_of_a_loop(dim: int) -> None:
    rows, x = draw(40, dim), draw(10, dim, seed=1)
    found = Neighbourhood.learn(rows, np.random.RandomState(0))
    between = [sorted(float((one - other).norm()) for other in rows)[1] for one in rows]
    middle, high = np.quantile(between, [0.5, 0.99])
    assert float(found.reach) == pytest.approx(high + FAR * (high - middle), rel=1e-12)
    nearest = [min(float((one - other).norm()) for other in rows) for one in x]
    np.testing.assert_allclose(found(x), np.array(nearest) / float(found.reach), rtol=1e-12)
    np.testing.assert_array_equal(found(rows), 0.0)


@pytest.mark.parametrize("dim", [2, 500])
def test_rows_that_come_twice_are_seen_once(dim: int) -> None:
    rows = draw(30, dim)
    once, twice = (Neighbourhood.learn(some, np.random.RandomState(0)) for some in (rows, torch.cat([rows, rows])))
    assert torch.equal(once.rows, twice.rows) and torch.equal(once.reach, twice.reach)
    alone = Neighbourhood.learn(rows[:1].expand(5, -1), np.random.RandomState(0))
    assert float(alone.reach) == 1.0


def test_wide_rows_cost_well_under_a_second() -> None:
    """As many as are kept, as wide as an image in colour of 32 × 32 pixels."""
    rows, x = draw(2 * N_KEPT, 3072).float(), draw(100, 3072, seed=1)
    start = time.perf_counter()
    found = Neighbourhood.learn(rows, np.random.RandomState(0))
    found(x)
    assert time.perf_counter() - start < 1.5  # a third of a second on a machine with nothing else to do
    assert len(found.rows) == N_KEPT


@pytest.mark.parametrize("dim", [2, 500])
def test_what_is_not_known_is_refused(dim: int) -> None:
    with pytest.raises(ValueError, match="older file, which does not hold x's"):
        Neighbourhood.unknown(dim)(draw(3, dim))
