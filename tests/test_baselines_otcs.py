"""OTCS on its home ground: its plan against independent answers, its sampler against a known denoiser, and both together."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, minimize
from scipy.spatial.distance import jensenshannon
from sklearn.utils import check_random_state

from fewpairs import metrics
from fewpairs.baselines import otcs
from fewpairs.baselines.otcs import OTCS, jensen_shannon, relation, transport_plan
from fewpairs.data.folds import hold_out
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import LinearGaussian

QUICK = {"max_steps": 20, "random_state": 0, "verbose": False}
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]])  # a quarter to the left: distances to x say nothing about y


def turned_samples(*, n_pairs: int = 60, n_source: int = 400, n_target: int = 500) -> Samples:
    """y is x, turned; no unpaired x has its own y among the unpaired ones."""
    torch.manual_seed(0)
    x = torch.randn(n_pairs, 2)
    return Samples.gather(
        x, x @ TURN.mT, unpaired_x=torch.randn(n_source, 2), unpaired_y=torch.randn(n_target, 2) @ TURN.mT
    )


def test_the_plan_minimises_what_it_should() -> None:
    """Against a general solver of min ⟨π, g⟩ + ε Σ π² / (p q) with uniform sums, over all entries of a small π."""
    n, m, weight = 4, 5, 0.05
    cost = torch.rand(n, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = [{"type": "eq", "fun": lambda z: z.reshape(n, m).sum(1) - 1 / n}]
    sums += [{"type": "eq", "fun": lambda z: z.reshape(n, m).sum(0)[1:] - 1 / m}]  # the first follows from the others
    answer = minimize(
        lambda z: z @ cost.numpy().ravel() + weight * n * m * z @ z,
        np.full(n * m, 1 / (n * m)),
        bounds=[(0, 1)] * (n * m),
        constraints=sums,
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    plan = transport_plan(cost, weight)
    np.testing.assert_allclose(plan.numpy().ravel(), answer.x, atol=2e-4)  # sums of 0.2 are right to a thousandth
    assert (plan == 0).any()  # sparse: an entropic plan is nowhere zero


def test_the_plan_lies_between_assignment_and_independence() -> None:
    cost = torch.rand(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    best = cost.numpy()[linear_sum_assignment(cost.numpy())].mean()
    tight, loose = transport_plan(cost, 1e-4), transport_plan(cost, 1e4)
    assert float((tight * cost).sum()) == pytest.approx(best, abs=2e-3)  # the penalty is at most ε · n = 3e-3
    torch.testing.assert_close(loose, torch.full_like(loose, 1 / 900), rtol=2e-3, atol=0)
    for plan in (tight, loose):
        for axis in (0, 1):
            torch.testing.assert_close(30 * plan.sum(axis), torch.ones(30, dtype=plan.dtype), rtol=0, atol=2e-3)


def test_relations_are_compared_by_jensen_shannon() -> None:
    p, q = torch.rand(6, 4).softmax(-1), torch.rand(5, 4).softmax(-1)
    expected = [[jensenshannon(a, b) ** 2 for b in q.numpy()] for a in p.numpy()]
    np.testing.assert_allclose(jensen_shannon(p, q), expected, atol=1e-6)  # rounding of float32


def test_relations_do_not_depend_on_where_or_how_large_the_space_is() -> None:
    """x and y may live in different spaces: a turned and scaled copy of everything has the same relations."""
    rows, keys = torch.randn(7, 2), torch.randn(4, 2)
    torch.testing.assert_close(relation(3 * rows @ TURN, 3 * keys @ TURN, 0.1), relation(rows, keys, 0.1))


def test_the_plan_follows_the_key_points() -> None:
    """Guided by the pairs, the unpaired x's find y's a quarter turn away, though nothing else tells of the turn.

    Around the right y the cost is about r²/c, and the plan's density (h − r²/c)₊ / 2ε. In two dimensions it integrates to one at
    h ∝ √ε, so the mean square distance goes with √ε.
    """
    samples = turned_samples()
    off = []
    for regularisation in (0.03, 0.003):
        rows, columns, odds = OTCS(regularisation=regularisation)._couple(samples)
        mass = odds.diff(prepend=torch.zeros(1)).float()
        assert rows.min() >= 60 and columns.min() >= 60  # the pairs keep to themselves: nothing else may have them
        off.append(float(mass @ (samples.target[columns] - samples.source[rows] @ TURN.mT).square().sum(-1)))
        for index, n in ((rows, 400), (columns, 500)):
            share = torch.zeros(n).index_add(0, index - 60, mass)
            torch.testing.assert_close(n * share, torch.ones(n), rtol=0, atol=3e-3)  # a thousandth, and rounding
    assert off[0] < 4 / 2  # independent points have E |y − y′|² = 4: two in each of two directions
    assert off[0] / off[1] == pytest.approx(math.sqrt(10), rel=0.25)  # the cost is r²/c only near by, and levels off


def test_pairs_alone_are_coupled_with_themselves() -> None:
    samples = turned_samples(n_source=0, n_target=0)
    rows, columns, odds = OTCS()._couple(samples)
    torch.testing.assert_close(rows, columns)
    torch.testing.assert_close(samples.target[columns], samples.source[rows] @ TURN.mT)
    torch.testing.assert_close(odds.diff(), torch.full((59,), 1 / 60))


def test_many_rows_are_coupled_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the source has a y even so, and as much of the mass as any other."""
    monkeypatch.setattr(otcs, "MOST_ROWS", 100)
    monkeypatch.setattr(otcs, "MOST_KEYS", 20)
    samples = turned_samples(n_source=400, n_target=50)
    rows, columns, odds = OTCS()._couple(samples)
    mass = odds.diff(prepend=torch.zeros(1)).float()
    share = torch.zeros(400).index_add(0, rows - 60, mass)
    torch.testing.assert_close(400 * share, torch.ones(400), rtol=0, atol=3e-3)
    assert set(columns.tolist()) == set(range(60, 110))


def test_pairs_stand_first_whatever_is_held_out() -> None:
    """`_couple` tells pairs from unpaired rows by their place."""
    samples, *_ = hold_out(turned_samples(), 0.2, check_random_state(0))
    n_pairs = len(samples.pairs_x)
    torch.testing.assert_close(samples.source[:n_pairs], samples.pairs_x)
    torch.testing.assert_close(samples.target[:n_pairs], samples.pairs_y)


class _GaussianDenoiser(torch.nn.Module):
    """The best denoiser of y ~ N(x, std²)."""

    dim_y, std = 1, 0.3

    def forward(self, noisy: torch.Tensor, noise: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (self.std**2 * noisy + noise**2 * x) / (self.std**2 + noise**2)


def test_a_right_denoiser_draws_the_right_distribution() -> None:
    """N(x, 0.3²): no network, so that nothing but the steps and the noise at both ends can be wrong."""
    torch.manual_seed(0)
    n = 40_000
    for x in (-1.0, 2.0):
        draws = OTCS()._draw(_GaussianDenoiser(), torch.full((n, 1), x))
        # Starting from N(0, 20²) in place of N(x, 20² + 0.3²) moves y by 0.3/20 · x; the steps change the spread by some percent.
        assert float(draws.mean()) == pytest.approx(x, abs=0.04)
        assert float(draws.std()) == pytest.approx(0.3, rel=0.05)


def test_one_gaussian_is_carried_onto_another() -> None:
    """y = A x + shift + noise of standard deviation 0.3: the mean given x and the cloud of y's are near the truth."""
    problem = LinearGaussian(matrix=((0.0, -2.0), (1.0, 0.0)), shift=(5.0, -1.0), covariance=((0.09, 0), (0, 0.09)))
    data = problem.draw(n_pairs=50, n_source=500, n_target=500, seed=0)
    model = OTCS(regularisation=0.003, hidden=(64, 64), max_steps=800, random_state=0, verbose=False)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    x, y = problem.draw_pairs(300, seed=1)
    draws = model.sample(x, 32, random_state=0)
    wrong = np.mean((draws.mean(0) - problem.conditional(x).mean.numpy()) ** 2, axis=0) / y.var(axis=0)
    assert (wrong < 0.1).all()
    floor = metrics.transport_cost(problem.draw_pairs(300, seed=2)[1], y)  # of two clouds of the truth
    assert metrics.transport_cost(draws[0], y) < floor + 0.1  # of 2.6, half the variance of y


@pytest.mark.parametrize("kinds", [(), ("X_unpaired",), ("Y_unpaired",), ("X_unpaired", "Y_unpaired")])
def test_any_kind_of_unpaired_rows_may_be_missing(kinds: tuple[str, ...]) -> None:
    data = LinearGaussian().draw(n_pairs=20, n_source=50, n_target=40, seed=0)
    unpaired = {kind: getattr(data, kind) for kind in kinds}
    fits = [OTCS(**QUICK).fit(data.X, data.Y, **unpaired).sample(data.X[:5], 3, random_state=0) for _ in range(2)]
    assert fits[0].shape == (3, 5, 1) and np.isfinite(fits[0]).all()
    np.testing.assert_array_equal(fits[0], fits[1])  # the same random_state
