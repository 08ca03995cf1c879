"""What is read off a fitted model: distributions in the user's units, figures, novelty."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import brief, draw_branches, fit, ignoring_x

from fewpairs import MixtureTranslator, load
from fewpairs.datasets.made import LinearGaussian, TwoBranches


@pytest.fixture(scope="module")
def fitted() -> MixtureTranslator:
    return fit(brief(), draw_branches())


def test_loading_leaves_torchs_own_randomness_alone(fitted: MixtureTranslator, tmp_path) -> None:
    before = torch.get_rng_state()
    fitted.save(tmp_path / "model")
    load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_shapes_of_a_two_dimensional_y() -> None:
    data = LinearGaussian(matrix=((1.0,), (2.0,)), shift=(0, 0), covariance=((1, 0), (0, 1))).draw(
        n_pairs=30, n_source=10, n_target=10, seed=0
    )
    model = fit(brief(), data)
    assert model.sample(data.X, 4).shape == (4, 30, 2)
    assert model.predict(data.X).shape == (30, 2)
    assert model.predict_quantiles(data.X, [0.1, 0.5, 0.9]).shape == (3, 30, 2)
    assert [end.shape for end in model.predict_interval(data.X)] == [(30, 2), (30, 2)]
    assert model.score_samples(data.X, data.Y).shape == (30,)
    assert model.conditional(data.X).log_prob(torch.from_numpy(data.Y)).shape == (30,)


def test_a_one_dimensional_y_comes_back_without_its_last_axis() -> None:
    data = draw_branches()
    model = brief().fit(data.X, data.Y[:, 0], Y_unpaired=data.Y_unpaired[:, 0])
    assert model.sample(data.X, 4).shape == (4, 60)
    assert model.predict(data.X).shape == (60,)
    assert model.predict_quantiles(data.X, 0.5).shape == (1, 60)
    assert model.score_samples(data.X, data.Y[:, 0]).shape == (60,)


def test_intervals_cover_what_the_model_draws(fitted: MixtureTranslator) -> None:
    x = draw_branches().X[:5]
    lower, upper = fitted.predict_interval(x, coverage=0.8)
    draws = fitted.sample(x, 20_000, random_state=0)
    covered = ((lower <= draws) & (draws <= upper)).mean(axis=0)
    assert np.abs(covered - 0.8).max() < 5 * np.sqrt(0.8 * 0.2 / 20_000)


def test_rows_are_predicted_one_by_one(fitted: MixtureTranslator) -> None:
    """What scikit-learn's two invariance checks ask for (they cannot call `score_samples`, which needs a y)."""
    data = draw_branches()
    order = np.random.default_rng(0).permutation(len(data.X))
    np.testing.assert_allclose(fitted.predict(data.X[order]), fitted.predict(data.X)[order], atol=1e-12)
    alone = np.concatenate([fitted.predict(row[None]) for row in data.X])
    np.testing.assert_allclose(alone, fitted.predict(data.X), atol=1e-12)
    densities = np.concatenate([fitted.score_samples(x[None], y[None]) for x, y in zip(data.X, data.Y, strict=True)])
    np.testing.assert_allclose(densities, fitted.score_samples(data.X, data.Y), atol=1e-12)


def test_history_is_of_the_chosen_settings(fitted: MixtureTranslator) -> None:
    frame = pd.DataFrame(fitted.history_)
    assert list(frame.columns) == ["step", "objective", "held_out_nll", "seconds"]
    assert frame["step"].is_monotonic_increasing and frame["seconds"].is_monotonic_increasing
    chosen = {name: value for name, value in fitted.chosen_.items() if name not in ("share", "part")}
    (score,) = [tried["score"] for tried in fitted.candidates_ if chosen.items() <= tried.items()]
    assert score == pytest.approx(-frame["held_out_nll"].min(), abs=1e-5)  # float32 in training
    assert fitted.n_steps_ == frame["step"][frame["held_out_nll"].idxmin()]
    assert fitted.ended_ == "finished"


def test_the_figures_are_scores_on_fresh_pairs(fitted: MixtureTranslator) -> None:
    """Held-out pairs tell what fresh ones will say, as far as their standard errors reach."""
    x, y = TwoBranches().draw_pairs(4000, seed=1)
    scores = fitted.score_samples(x, y)
    assert abs(scores.mean() - fitted.validation_score_) < 4 * fitted.validation_score_error_
    assert abs(scores.mean() - ignoring_x(fitted, y) - fitted.x_gain_) < 4 * fitted.x_gain_error_


def test_save_and_load_change_no_bit(fitted: MixtureTranslator, tmp_path) -> None:
    data = draw_branches()
    fitted.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.score_samples(data.X, data.Y), fitted.score_samples(data.X, data.Y))
    assert np.array_equal(loaded.sample(data.X, 2, random_state=0), fitted.sample(data.X, 2, random_state=0))
    assert np.array_equal(loaded.predict_quantiles(data.X), fitted.predict_quantiles(data.X))
    assert loaded.get_params().keys() == fitted.get_params().keys()
    assert loaded.history_["step"] == fitted.history_["step"] and loaded.summary() == fitted.summary()
    assert loaded.chosen_ == fitted.chosen_ and loaded.candidates_ == fitted.candidates_
    assert np.array_equal(loaded.novelty(3 * data.X), fitted.novelty(3 * data.X))


@pytest.mark.filterwarnings("ignore:2 of 2 rows of X are far")
def test_far_away_everything_stays_finite(fitted: MixtureTranslator) -> None:
    x = np.array([[1e5], [-1e200]])
    for values in (fitted.predict(x), fitted.sample(x, 3), *fitted.predict_interval(x), fitted.score_samples(x, x * 0)):
        assert np.isfinite(values).all()


def test_the_summary_has_the_three_figures(fitted: MixtureTranslator) -> None:
    text = fitted.summary()
    assert "60 pairs, 100 unpaired x's and 120 unpaired y's" in text
    for name, form in (("validation_score_", ".3f"), ("x_gain_", "+.3f"), ("unpaired_gain_", "+.3f")):
        assert f"{getattr(fitted, name):{form}} ± {getattr(fitted, f'{name}error_'):.3f}" in text


def test_too_few_pairs_have_no_error_bars() -> None:
    data = draw_branches(n_pairs=4)
    model = brief().fit(data.X, data.Y, Y_unpaired=data.Y_unpaired)
    assert np.isfinite(model.x_gain_) and np.isnan(model.x_gain_error_)
    assert "too few pairs for an error bar" in model.summary() and "nan" not in model.summary()


def test_without_unpaired_rows_nothing_is_said_of_them() -> None:
    data = draw_branches()
    assert "brought" in (text := brief().fit(data.X, data.Y).summary()) and "unpaired rows" not in text


def test_training_xs_are_not_novel(fitted: MixtureTranslator) -> None:
    data = draw_branches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (data.X, data.X_unpaired):
            assert fitted.novelty(x).shape == (len(x),) and fitted.novelty(x).max() <= 1
            fitted.predict(x)


READERS = {
    "predict": lambda model, x: model.predict(x),
    "sample": lambda model, x: model.sample(x),
    "score_samples": lambda model, x: model.score_samples(x, np.zeros((len(x), 1))),
    "predict_quantiles": lambda model, x: model.predict_quantiles(x),
    "predict_interval": lambda model, x: model.predict_interval(x),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whatever_is_read_off_far_away_comes_with_a_warning(read, fitted: MixtureTranslator) -> None:
    data = draw_branches()
    far = data.X.mean() + 100 * data.X.std()
    x = np.concatenate([data.X[:3], [[far], [-far]]])
    assert (fitted.novelty(x) > 1).tolist() == [False, False, False, True, True]
    with pytest.warns(UserWarning, match="2 of 5 rows of X are far from every x seen in training") as caught:
        read(fitted, x)
    assert {warning.filename for warning in caught} == {__file__}  # it points at the caller, not into fewpairs


def test_distance_is_novelty_in_every_direction() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3)) * [1, 10, 100]
    model = brief(training__max_steps=2).fit(X, X[:, :1])
    fresh = random.normal(size=(200, 3)) * [1, 10, 100]
    assert (model.novelty(fresh) <= 1).mean() > 0.95  # x's of the same kind are not far, but for stragglers
    for direction in np.eye(3):
        assert model.novelty((100 * direction * [1, 10, 100])[None]) > 1
