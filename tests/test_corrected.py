"""`CorrectedTranslator`: corrections that help and ones that do not, and bases of every kind."""

import math

import numpy as np
import pytest
import torch
from conftest import fixed
from sklearn.base import clone
from small_networks import DATA, QUICK_BASE, SMALL, UNPAIRED, corrected, fit

from fewpairs import CorrectedTranslator
from fewpairs.data.folds import row_keys
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import LinearGaussian, TwoBranches
from fewpairs.estimators.settings import NetworkTraining, Perceptrons


def test_a_correction_repairs_a_base_that_is_too_simple() -> None:
    """Two branches under one Gaussian a row: what networks bring is told, real on fresh pairs, and within the truth's reach."""
    problem = TwoBranches()
    data = problem.draw(n_pairs=600, n_source=10, n_target=10, seed=0)
    base = fixed(search__n_atoms=1, architecture__n_slopes=1, training__max_steps=100)
    networks = {"perceptrons": Perceptrons(cost_hidden=(64, 64), potential_hidden=(8,))}
    settings = {**SMALL, **networks, "training": NetworkTraining(max_steps=300), "objective": "supervised"}
    model = CorrectedTranslator(base, **settings).fit(data.X, data.Y)
    x, y = problem.draw_pairs(1000, seed=1)
    estimate = model.estimate_log_likelihood(x, y, n_draws=500)
    gains = estimate.log_likelihood - model.base_.score_samples(x, y)
    assert gains.mean() > 0.1
    assert model.correction_gain_ == pytest.approx(
        gains.mean(), abs=4 * (model.correction_gain_error_ + gains.std() / 30)
    )
    truth = problem.conditional(x).log_prob(torch.from_numpy(y)).numpy()
    assert estimate.log_likelihood.mean() < truth.mean() + 4 * (estimate.log_likelihood - truth).std() / math.sqrt(1000)
    assert "Networks brought" in model.summary()


def test_where_there_is_nothing_to_correct_the_model_is_its_base() -> None:
    """A linear regression with Gaussian noise, which a mixture knows: the correction is dropped, and nothing of it is left."""
    data = LinearGaussian().draw(n_pairs=60, n_source=10, n_target=10, seed=0)
    base = fixed(search__hidden=(), search__n_atoms=1, training__max_steps=300)
    model = CorrectedTranslator(base, **SMALL, training=NetworkTraining(max_steps=60)).fit(data.X, data.Y)
    assert float(model.plan_.strength) == 0
    assert np.allclose(model.score_samples(data.X, data.Y), model.base_.score_samples(data.X, data.Y))
    assert "the model is its base" in model.summary()


def test_a_fitted_base_is_taken_as_it_is_and_a_new_one_is_fitted_alike() -> None:
    fitted = fit(clone(QUICK_BASE))
    one, two = fit(corrected(base=fitted)), fit(corrected())
    assert one.base_ is fitted
    assert np.allclose(two.base_.predict(DATA.X), fitted.predict(DATA.X))
    assert not hasattr(QUICK_BASE, "plan_")


def test_pairs_meet_members_that_have_not_seen_them() -> None:
    base = fit(fixed(n_folds=3, training__max_steps=5))
    kept = [base.plan_.without(fold) for fold in range(3)]
    for part, whole in enumerate(base.plan_.parts):
        met = [plan.parts[part].members for plan in kept]
        assert all(len(members) == 1 for members in met)
        # Each fold has a member of its own, but for what ignores x, of which there is one.
        assert [members[0] for members in met] == list(whole) * (3 if len(whole) == 1 else 1)
    # What is left of each fold is a model like the whole: the whole is their average.
    x, y = base.x_scaler_(torch.tensor(DATA.X)), base.y_scaler_(torch.tensor(DATA.Y))
    average = torch.stack([plan.log_prob(x, y) for plan in kept]).logsumexp(0) - math.log(3)
    torch.testing.assert_close(average, base.plan_.log_prob(x, y), rtol=1e-10, atol=1e-10)
    # And in its parts it is what it was: the same density, and as many opinions as without a fold.
    whole = base.plan_.conditional_of_parts(x)
    torch.testing.assert_close(whole.log_prob(y), base.plan_.log_prob(x, y), rtol=1e-10, atol=1e-10)
    assert len(base.plan_.parts) == len(kept[0].parts)
    torch.testing.assert_close(whole.variance, base.plan_.conditional(x).variance)
    drawn = base.plan_.conditional_of_parts(x[:2]).sample((20_000,), generator=torch.Generator().manual_seed(0))
    expected = base.plan_.conditional(x[:2])
    error = expected.variance.sqrt() / math.sqrt(20_000)
    assert bool(((drawn.mean(0) - expected.mean).abs() < 4 * error).all())


@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_a_base_without_folds_is_corrected_too(held_out: float) -> None:
    base = fixed(n_folds=1, training__max_steps=5)
    model = fit(corrected(base=base, training__held_out=held_out))
    assert model.n_steps_ > 0
    assert math.isnan(model.correction_gain_) == (held_out == 0)
    assert (float(model.plan_.strength) == 1) >= (held_out == 0)  # with nothing to judge by, all of it is kept


def test_densities_are_in_the_users_units() -> None:
    """Metres or millimetres: densities differ by the volume alone, draws by the factor."""
    one = fit(corrected())
    two = corrected().fit(DATA.X, 1000 * DATA.Y, X_unpaired=DATA.X_unpaired, Y_unpaired=1000 * DATA.Y_unpaired)
    assert np.allclose(
        one.score_samples(DATA.X, DATA.Y), two.score_samples(DATA.X, 1000 * DATA.Y) + math.log(1000), atol=1e-3
    )
    draws = [model.sample(DATA.X, 1, random_state=0) for model in (one, two)]
    assert np.allclose(1000 * draws[0], draws[1], rtol=1e-3, atol=1e-2)


def with_a_strong_correction() -> CorrectedTranslator:
    model = fit(corrected())
    model.plan_.strength.fill_(1.0)
    model.plan_.cost.network[-1].weight.mul_(30.0)
    return model


def test_means_of_a_correction_are_those_of_its_draws() -> None:
    model = with_a_strong_correction()
    means, draws = model.predict(DATA.X[:5]), model.sample(DATA.X[:5], 20_000, random_state=0)
    error = draws.std(0) * (1 / math.sqrt(20_000) + 2 / math.sqrt(256))  # weights make the 256 of the mean worth fewer
    assert (np.abs(means - draws.mean(0)) < 4 * error).all()
    model.plan_.strength.fill_(0.0)
    assert np.array_equal(model.predict(DATA.X), model.base_.predict(DATA.X))


def test_quantiles_of_a_correction_are_those_of_its_density() -> None:
    """The distribution function at each quantile, by a sum over a fine grid; four standard errors of a share of a thousand
    draws, and two hundredths of the normaliser's own."""
    model, levels = with_a_strong_correction(), (0.1, 0.5, 0.9)
    x, points = DATA.X[:1], np.linspace(-6, 6, 4001)[:, None]
    density = np.exp(model.score_samples(x.repeat(4001, 0), points))
    cdf = density.cumsum() / density.sum()
    for level, quantile in zip(levels, model.predict_quantiles(x, levels)[:, 0, 0], strict=True):
        reached = cdf[np.searchsorted(points[:, 0], quantile)]
        assert reached == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 1000) + 0.02)


def test_two_pairs_judge_nothing() -> None:
    model = corrected().fit(DATA.X[:4], DATA.Y[:4], **UNPAIRED)
    assert float(model.plan_.strength) == 0
    assert "Too few pairs judged" in model.summary() and "nan" not in model.summary()


def test_pairs_that_all_judge_are_refused() -> None:
    base = fit(clone(QUICK_BASE))
    known = dict(zip(base.fold_keys_.tolist(), base.folds_.tolist(), strict=True))
    samples = Samples.gather(*(torch.tensor(rows) for rows in (DATA.X, DATA.Y)))
    here = [known[key] == 0 for key in row_keys(samples)]
    with pytest.raises(ValueError, match="first fold of the base"):
        corrected(base=base).fit(DATA.X[here], DATA.Y[here])


def test_a_base_of_other_columns_is_refused() -> None:
    base = clone(QUICK_BASE).fit(np.hstack([DATA.X, DATA.X]), DATA.Y)
    with pytest.raises(ValueError, match="2 columns of X and 1 of Y, but 1 and 1 came"):
        fit(corrected(base=base))


def test_summaries_tell_what_is_known_and_nothing_else() -> None:
    summary = fit(corrected(time_budget=1e-3)).summary()
    assert "nan" not in summary and "The base: " in summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "inverse_eot"}, "objective of CorrectedTranslator must be"),
        ({"objective": "transport"}, "objective of CorrectedTranslator must be"),
        ({"base": "no"}, "base of CorrectedTranslator must be"),
        ({"base": None}, "base of CorrectedTranslator must be"),
    ],
)
def test_settings_that_are_not_a_corrections_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(corrected(**settings))
