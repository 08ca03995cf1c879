"""Pairs from a corner: found out, told, and weighed when they judge; harmless where there is no bias."""

import warnings

import numpy as np
import pytest
import torch
from conftest import FIXED

from fewpairs import MixtureTranslator, load
from fewpairs.bias import look_for_bias
from fewpairs.datasets import LinearGaussian

QUICK = {**FIXED, "max_steps": 30}
PROBLEM = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(0.0, 0.0), covariance=((0.5, 0.0), (0.0, 0.25)))


def draw(strength: float, n_pairs: int = 80, seed: int = 0):
    """Pairs with a chance that falls with −strength · x₀; unpaired rows of the population. And the true ratio at the pairs."""
    random = np.random.default_rng(seed)
    x, y = PROBLEM.draw_pairs(4000, seed=seed)
    chance = np.exp(-strength * x[:, 0] - strength**2 / 2)  # its mean over the population N(0, I) is one
    rows = random.choice(len(x), n_pairs, replace=False, p=chance / chance.sum())
    more = PROBLEM.draw(n_pairs=2, n_source=1000, n_target=900, seed=seed + 1)
    return x[rows], y[rows], more.X_unpaired, more.Y_unpaired, 1 / chance[rows]


def fit(data, **settings) -> MixtureTranslator:
    x, y, more_x, more_y, _ = data
    return MixtureTranslator(**{**QUICK, **settings}).fit(x, y, X_unpaired=more_x, Y_unpaired=more_y)


def test_bias_is_found_weighed_and_told() -> None:
    data = draw(strength=1.0)
    with pytest.warns(UserWarning, match="unlike the unpaired x's"):
        model = fit(data)
    assert model.bias_["is_biased"] and model.bias_["p_value"] <= 0.01
    assert "weighted towards the unpaired x's" in model.summary()
    assert 5 < model.bias_["effective_sample_size"] < 70
    found = look_for_bias(data[0], data[2], "biased")
    assert np.corrcoef(np.log(found.relevance), np.log(data[4]))[0, 1] > 0.9


def test_without_bias_nothing_changes() -> None:
    """The test draws from a generator of its own: the fit is that of "representative" to the last bit."""
    data = draw(strength=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = [fit(data, pairs_are=pairs_are) for pairs_are in ("auto", "representative")]
    np.testing.assert_array_equal(*(model.score_samples(data[0], data[1]) for model in models))
    assert not models[0].bias_["is_biased"] and models[0].bias_["p_value"] > 0.01
    assert np.isnan(models[1].bias_["p_value"]) and models[1].bias_["effective_sample_size"] == 80


def test_the_score_is_that_of_the_population() -> None:
    """A model that is good where pairs are and bad elsewhere: the noise of y grows away from the corner of the pairs."""
    random = np.random.default_rng(0)
    x = random.normal(size=(6000, 1))
    y = x + np.exp(x) * random.normal(size=x.shape)
    chance = np.exp(-1.0 * x[:, 0])
    rows = random.choice(3000, 300, replace=False, p=chance[:3000] / chance[:3000].sum())
    others = {"X_unpaired": x[3000:4500], "Y_unpaired": y[4500:]}
    scores = {}
    for pairs_are in ("biased", "representative"):
        model = MixtureTranslator(**{**QUICK, "max_steps": 150, "pairs_are": pairs_are}).fit(x[rows], y[rows], **others)
        scores[pairs_are] = model.validation_score_, model.score(x, y)
    for told, true in scores.values():
        assert abs(true - scores["biased"][1]) < 1.0  # both learn about the same
        assert told < 5 and true < 5
    # Weighted, what is told is the population's score; plain, it is that of the quiet corner.
    assert abs(scores["biased"][0] - scores["biased"][1]) < 0.5
    assert scores["representative"][0] > scores["representative"][1] + 0.5


def test_training_takes_weights_where_they_belong() -> None:
    """The likelihood of the pairs takes none; the paper's loss takes population over pairs on the cost; source and target lose
    the pairs' own points."""
    data = draw(strength=1.0)
    relevance = look_for_bias(data[0], data[2], "biased").relevance
    for objective, expected in (("marginal", np.ones(80)), ("inverse_eot", relevance)):
        model = MixtureTranslator(**{**QUICK, "objective": objective, "pairs_are": "biased"})
        samples = model._gather(data[0], data[1], None, data[2], data[3], None, None)
        model.n_pairs_, model.n_unpaired_ = 80, [1000, 900]
        moved = model._unbias(samples, relevance)
        np.testing.assert_allclose(moved.pairs_weight, expected / expected.mean(), rtol=1e-9)
        assert (moved.source_weight[:80] == 0).all() and (moved.target_weight[:80] == 0).all()
        assert (moved.source_weight[80:] > 0).all() and (moved.target_weight[80:] > 0).all()


def test_no_overlap_is_told_and_falls_back() -> None:
    """All pairs at x₀ < −2, of a relation that is false elsewhere: the model must not be worse than ignoring x by much."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 1)) * 0.3
    y = np.abs(x + 2) + 0.1 * random.normal(size=x.shape)
    far = np.linspace(-4.0, -2.5, 40)[:, None]
    with pytest.warns(UserWarning, match="hardly overlap"):
        model = MixtureTranslator(**QUICK, pairs_are="biased").fit(
            far, np.abs(far + 2) + 0.1 * random.normal(size=far.shape), X_unpaired=x[:1000], Y_unpaired=y[1000:2000]
        )
    assert model.bias_["effective_sample_size"] < 8
    ignoring = model.plan_.members[0].conditional(
        torch.zeros(1000, 1).double(), model.y_scaler_.loc, model.y_scaler_.scale
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = model.score(x[2000:], y[2000:])
    assert ours > float(ignoring.log_prob(torch.from_numpy(y[2000:])).mean()) - 0.3


def test_pairs_that_are_elsewhere_count_for_nothing() -> None:
    """Far from all unpaired x's no pair is more relevant than another: equal weights, and still no evidence."""
    random = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="hardly overlap"):
        found = look_for_bias(random.normal(size=(40, 1)) + 100, random.normal(size=(500, 1)), "auto")
    assert found.effective_sample_size < 1 and found.relevance.mean() < 0.02


def test_known_bias_needs_a_population() -> None:
    data = draw(strength=1.0)
    with pytest.raises(ValueError, match="needs X_unpaired"):
        MixtureTranslator(**QUICK, pairs_are="biased").fit(data[0], data[1])
    with pytest.warns(UserWarning, match="too few to estimate"):
        MixtureTranslator(**QUICK, pairs_are="biased").fit(data[0][:6], data[1][:6], X_unpaired=data[2])


def test_what_was_found_is_saved(tmp_path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(draw(strength=1.0))
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").bias_ == model.bias_
