"""CGAN, UGAN + ℓ² and GNOT: each finds the truth on its home ground, repeats itself, and says so when it runs away."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from fewpairs import metrics
from fewpairs.baselines import Baseline, Regression
from fewpairs.baselines.gans import CGAN, UGAN, logistic_error
from fewpairs.baselines.gnot import GNOT
from fewpairs.datasets.made import LinearGaussian, TranslationData, TwoBranches

ALL = (CGAN, UGAN, GNOT)
SMALL: dict[str, Any] = {"hidden": (64, 64), "random_state": 0, "verbose": False}
TINY: dict[str, Any] = {"hidden": (16,), "max_steps": 20, "held_out": 0.0, "verbose": False}
QUICK: dict[str, Any] = {**SMALL, "learning_rate": 1e-3, "discriminator_rate": 1e-3, "max_steps": 1500}


def fit(model: Baseline, data: TranslationData) -> Baseline:
    return model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)


@pytest.fixture(scope="module")
def little() -> TranslationData:
    return LinearGaussian().draw(n_pairs=40, n_source=60, n_target=60, seed=0)


def root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def test_the_discriminators_loss_has_a_closed_form_for_a_linear_one() -> None:
    """D(y) = a·y + b has the slope a everywhere: the penalty is γ/2 |a|²."""
    a, b, penalty = torch.tensor([1.0, -2.0], dtype=torch.float64), 0.5, 3.0
    real, drawn = torch.randn(2, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = logistic_error(lambda y: (y @ a + b).unsqueeze(-1), real, drawn, penalty)
    right = -torch.sigmoid(real @ a + b).log().mean() - torch.sigmoid(-(drawn @ a + b)).log().mean()
    torch.testing.assert_close(found, right + penalty / 2 * 5.0)


def test_cgan_learns_the_mean_and_the_spread_of_a_gaussian() -> None:
    """A strong penalty, under which the game is known to settle; a generator blind to z has no spread, one blind to x has 1.2."""
    problem = LinearGaussian()
    model = fit(CGAN(penalty=1.0, **QUICK), problem.draw(n_pairs=1024, n_source=1024, n_target=1, seed=0))
    x, _ = problem.draw_pairs(500, seed=1)
    draws = model.sample(x, 100, random_state=0)
    assert model.ended_ == "finished"
    assert root_mean_square(draws.mean(axis=0) - problem.conditional(x).mean.numpy()) < 0.25  # half the noise
    assert 0.25 < draws.std(axis=0).mean() < 0.75  # the truth is 0.5


def test_ugan_covers_the_target_and_heeds_the_pairs() -> None:
    """The mean of two branches lies where no y is: regression cannot cover the target, and a GAN alone would not know x."""
    problem = TwoBranches()
    data = problem.draw(n_pairs=64, n_source=1024, n_target=1024, seed=0)
    x, y = problem.draw_pairs(1000, seed=1)
    model = fit(UGAN(**QUICK), data)
    regression = fit(Regression(**{**SMALL, "max_steps": 500}), data)
    assert metrics.transport_cost(model.sample(x, random_state=0)[0], y) < 0.5 * metrics.transport_cost(
        regression.predict(x), y
    )
    truth = problem.conditional(x).mean.numpy()
    assert root_mean_square(model.predict(x) - truth) < 0.5 * truth.std()  # blind to x: 1; the wrong way round: 2


def test_gnot_bends_a_map_where_there_are_no_pairs() -> None:
    """Eight pairs of an increasing map, and all that it makes of p(x), leave one increasing map; the pairs alone leave many."""
    random = np.random.RandomState(0)

    def truth(x: np.ndarray) -> np.ndarray:
        return x + 0.45 * np.sin(2 * x)

    pairs_x, source, more, fresh = (random.randn(n_rows, 1) for n_rows in (8, 1024, 1024, 1000))
    data = TranslationData(pairs_x, truth(pairs_x), source, truth(more))
    model = fit(GNOT(**SMALL, max_steps=3000), data)
    regression = fit(Regression(**SMALL, max_steps=1000, held_out=0.0), data)
    error, error_of_regression = (root_mean_square(each.predict(fresh) - truth(fresh)) for each in (model, regression))
    assert error < 0.75 * error_of_regression


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_random_state_makes_it_repeatable(kind: type[Baseline], little: TranslationData) -> None:
    one, two, other = (fit(kind(**TINY, random_state=seed), little) for seed in (0, 0, 1))
    assert np.array_equal(one.sample(little.X, 3, random_state=0), two.sample(little.X, 3, random_state=0))
    assert not np.allclose(one.predict(little.X), other.predict(little.X))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_only_the_map_repeats_itself(kind: type[Baseline], little: TranslationData) -> None:
    model = fit(kind(**TINY, random_state=0), little)
    first, second = model.sample(little.X, 2)
    assert np.array_equal(first, second) == (not kind.is_stochastic)
    assert kind.is_stochastic == (kind is not GNOT)


WILD: dict[str, Any] = {**SMALL, "learning_rate": 0.03, "discriminator_rate": 1.0, "max_steps": 300, "held_out": 0.2}


@pytest.mark.parametrize("model", (CGAN(**WILD), UGAN(pair_weight=0.0, **WILD)), ids=("CGAN", "UGAN"))
def test_a_game_that_runs_away_is_told(model: Baseline, little: TranslationData) -> None:
    """A discriminator with steps of size one drives the y's about, and no pairs hold them; what was good before is kept."""
    with pytest.warns(ConvergenceWarning, match="ran away"):
        fit(model, little)
    assert model.ended_ == "diverged"
    held_out = dict(zip(model.history_["step"], model.history_["held_out"], strict=True))
    assert held_out[model.n_steps_] == min(held_out.values()) < held_out[300] / 1.5
