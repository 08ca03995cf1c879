"""parOT and DCPEME: maps that the marginals and a few pairs determine, and the transport inside."""

from typing import Any

import numpy as np
import ot
import pytest
import torch

from fewpairs.baselines.base import Baseline
from fewpairs.baselines.dcpeme import DCPEME, implicit_potential
from fewpairs.baselines.parot import ParOT, mmd_squared
from fewpairs.baselines.regression import Regression
from fewpairs.baselines.sinkhorn import sinkhorn

N_PAIRS, N_UNPAIRED = 10, 500
MAPS: dict[str, tuple[type[Baseline], dict[str, Any]]] = {
    "parot": (ParOT, {"max_steps": 800}),
    "dcpeme": (DCPEME, {"max_steps": 150, "batch_size": 128, "n_stored": 510}),
}
QUICK: dict[str, dict[str, Any]] = {
    "parot": {"max_steps": 20},
    "dcpeme": {"max_steps": 5, "batch_size": 64, "n_stored": 64},
}


def bend(x: np.ndarray) -> np.ndarray:
    """Increasing, three times as steep in the middle as outside."""
    return x + np.tanh(2 * x)


def stretch(x: np.ndarray) -> np.ndarray:
    """Increasing, four times as steep to the right of zero as to the left."""
    return np.where(x < 0, x, 4 * x)


def fit(model: Baseline, seed: int = 0) -> Baseline:
    random = np.random.default_rng(seed)
    x, more, others = (random.normal(size=(n, 1)) for n in (N_PAIRS, N_UNPAIRED, N_UNPAIRED))
    return model.fit(x, bend(x), X_unpaired=more, Y_unpaired=bend(others))


@pytest.fixture(scope="module", params=MAPS)
def fitted(request: pytest.FixtureRequest) -> Baseline:
    make, options = MAPS[request.param]
    return fit(make(random_state=0, verbose=False, **options))


def test_an_increasing_map_is_recovered(fitted: Baseline) -> None:
    # The only increasing map between the marginals. 500 rows on either side place its quantiles to 1/√250 = 0.06 of the spread
    # in the middle and two or three times that in the tails, and the blur (of the kernels, of ε) comes on top.
    x = np.random.default_rng(1).normal(size=(1000, 1))
    error = np.sqrt(np.mean((fitted.predict(x) - bend(x)) ** 2))
    assert error < 0.25 * bend(x).std()


def test_the_images_look_like_the_target(fitted: Baseline) -> None:
    random = np.random.default_rng(1)
    images, y = fitted.predict(random.normal(size=(1000, 1))), bend(random.normal(size=(1000, 1)))
    # In one dimension sorting is transport; the same reasons as above.
    gap = np.sqrt(np.mean((np.sort(images, axis=0) - np.sort(y, axis=0)) ** 2))
    assert gap < 0.25 * y.std()


def test_the_marginals_tell_where_no_pairs_are() -> None:
    # All pairs have x < 0. On the other side regression can only go on as before, and the target says how far y goes.
    random = np.random.default_rng(0)
    pairs = -np.abs(random.normal(size=(N_PAIRS, 1)))
    rows = {"X_unpaired": random.normal(size=(500, 1)), "Y_unpaired": stretch(random.normal(size=(500, 1)))}
    models = (
        ParOT(random_state=0, verbose=False, **MAPS["parot"][1]),
        Regression(random_state=0, verbose=False, max_steps=300, hidden=(64, 64), learning_rate=1e-3, held_out=0.0),
    )
    x = np.abs(random.normal(size=(500, 1)))
    ours, theirs = (
        np.mean((model.fit(pairs, stretch(pairs), **rows).predict(x) - stretch(x)) ** 2) for model in models
    )
    assert ours < theirs / 4


@pytest.mark.parametrize("name", MAPS)
def test_a_map_repeats_itself_and_a_seed_repeats_a_fit(name: str) -> None:
    x = np.linspace(-2, 2, 7)[:, None]
    make = MAPS[name][0]
    one, two = (fit(make(random_state=3, verbose=False, **QUICK[name])) for _ in range(2))
    draws = one.sample(x, 3)
    assert not one.is_stochastic and (draws == draws[0]).all()
    np.testing.assert_array_equal(one.predict(x), two.predict(x))
    other = fit(make(random_state=4, verbose=False, **QUICK[name]))
    assert not np.array_equal(one.predict(x), other.predict(x))


@pytest.mark.parametrize("name", MAPS)
def test_x_and_y_may_have_different_dimensions(name: str) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)), random.normal(size=(12, 2))
    model = MAPS[name][0](random_state=0, verbose=False, **QUICK[name]).fit(
        x, y, X_unpaired=random.normal(size=(60, 3))
    )
    assert model.predict(x).shape == (12, 2) and np.isfinite(model.predict(x)).all()
    assert "cost" not in model.history_  # |x − T(x)|² has no meaning here


def test_the_transport_cost_is_there_where_it_has_a_meaning() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    model = ParOT(random_state=0, verbose=False, max_steps=400, cost_weight=100.0).fit(
        x[:20], 5 - x[:20, ::-1], X_unpaired=x
    )
    # A cost that outweighs all else leaves points where they are, in standardised units; the rest is Adam's noise.
    x_scaled, y_scaled = (x - model.x_scaler_.loc.numpy()) / model.x_scaler_.scale.numpy(), model.predict(x)
    y_scaled = (y_scaled - model.y_scaler_.loc.numpy()) / model.y_scaler_.scale.numpy()
    assert np.sqrt(np.mean((x_scaled - y_scaled) ** 2)) < 0.2


def test_potentials_agree_with_pot() -> None:
    random = np.random.default_rng(0)
    x, y, epsilon = random.normal(size=(40, 2)), random.normal(size=(30, 2)) + 1, 0.2
    cost = ((x[:, None] - y) ** 2).sum(-1) / 2
    f, g = sinkhorn(torch.tensor(cost), epsilon, n_iterations=2000)
    plan = ((f[:, None] + g - torch.tensor(cost)) / epsilon).exp().numpy() / (40 * 30)
    expected = ot.sinkhorn(np.full(40, 1 / 40), np.full(30, 1 / 30), cost, epsilon, numItermax=10_000, stopThr=1e-13)
    np.testing.assert_allclose(plan, expected, atol=1e-10)  # entries are about 1e-3, both solved to rounding
    np.testing.assert_allclose(plan.sum(1), 1 / 40, rtol=1e-12)  # exact by construction
    np.testing.assert_allclose(plan.sum(0), 1 / 30, rtol=1e-8)


def test_a_warm_start_goes_on_from_where_it_was() -> None:
    cost = torch.rand(20, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, half = sinkhorn(cost, 0.05, n_iterations=7)
    torch.testing.assert_close(
        sinkhorn(cost, 0.05, n_iterations=5, start=half), sinkhorn(cost, 0.05, n_iterations=12), atol=1e-12, rtol=0
    )


def test_the_implicit_gradient_is_that_of_the_unrolled_iterations() -> None:
    generator = torch.Generator().manual_seed(0)
    cost, weight = (torch.rand(size, dtype=torch.float64, generator=generator) for size in ((12, 9), (9,)))
    weight -= weight.mean()  # g is known up to a constant

    def slope(potential: Any) -> torch.Tensor:
        c = cost.clone().requires_grad_()
        (weight * potential(c)).sum().backward()
        assert c.grad is not None
        return c.grad

    unrolled = slope(lambda c: sinkhorn(c, 0.5, n_iterations=300)[1])
    implicit = slope(lambda c: implicit_potential(c, 0.5, n_iterations=300))
    # The ridge of a thousandth damps it by up to that part of what the smallest eigenvalue, here about a half, is.
    torch.testing.assert_close(implicit, unrolled, atol=3e-3 * float(unrolled.abs().max()), rtol=0)


def test_mmd_is_that_of_its_definition() -> None:
    random = np.random.default_rng(0)
    x, y, width = random.normal(size=(15, 2)), random.normal(size=(20, 2)) + 0.5, 1.3

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.mean([np.exp(-((a - b) ** 2).sum() / (2 * (width * f) ** 2)) for f in (0.25, 0.5, 1, 2, 4)]))

    within = np.mean([kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    within_y = np.mean([kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    expected = within + within_y - 2 * np.mean([kernel(a, b) for a in x for b in y])
    found = mmd_squared(torch.tensor(x), torch.tensor(y), torch.tensor(width, dtype=torch.float64))
    assert float(found) == pytest.approx(expected, abs=1e-12)
