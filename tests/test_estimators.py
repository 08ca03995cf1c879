"""MixtureTranslator: what it learns, in whose units, and what it remembers."""

import time
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import FIXED

from fewpairs import MixtureTranslator, load
from fewpairs.datasets.made import LinearGaussian, TranslationData, TwoBranches
from fewpairs.estimators.together import fit_together

QUICK = {**FIXED, "max_steps": 30}


def draw(n_pairs: int = 60, seed: int = 0) -> TranslationData:
    return TwoBranches().draw(n_pairs=n_pairs, n_source=100, n_target=120, seed=seed)


def fit(model: MixtureTranslator, data: TranslationData) -> MixtureTranslator:
    return model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)


@pytest.fixture(scope="module")
def fitted() -> MixtureTranslator:
    return fit(MixtureTranslator(**QUICK), draw())


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("objective", ["supervised", "marginal"])
def test_a_gaussian_problem_reaches_the_closed_form(objective: str, covariance: str) -> None:
    """One atom and one linear slope are a linear regression, whose errors are known: σ√(3/P) in the conditional mean."""
    correlation = 0.2 if covariance == "full" else 0.0
    noise = np.array([[0.5, correlation], [correlation, 0.25]])
    problem = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(3.0, -20.0), covariance=noise)
    data = problem.draw(n_pairs=300, n_source=700, n_target=700, seed=0)
    exact = {"n_atoms": 1, "n_slopes": 1, "hidden": (), "smoothing": 0.0, "variance_floor": 1e-4, "n_folds": 1}
    settings = {**QUICK, **exact, "covariance": covariance, "batch_size": 1000, "max_steps": 500}
    model = fit(MixtureTranslator(**settings, objective=objective), data)
    x, y = problem.draw_pairs(2000, seed=1)
    truth = problem.conditional(x)
    error = np.sqrt(np.mean((model.predict(x) - truth.mean.numpy()) ** 2, axis=0))
    assert (error < 3 * np.sqrt(noise.diagonal()) * np.sqrt(3 / 300)).all()  # three standard errors
    learnt = torch.cov(torch.from_numpy(model.sample(x[:1], 20_000, random_state=0)[:, 0].T)).numpy()
    np.testing.assert_allclose(learnt, noise, atol=0.5 * 3 * np.sqrt(2 / 300))  # three standard errors of a variance
    regret = float(truth.log_prob(torch.from_numpy(y)).mean()) - model.score(x, y)
    assert (
        -0.01 < regret < 3 * 9 / (2 * 300)
    )  # nine numbers learnt from P pairs cost 9/2P nats on average; three times that


def test_densities_integrate_to_one_in_the_users_units(fitted: MixtureTranslator) -> None:
    data = draw()
    model = MixtureTranslator(**QUICK).fit(1e3 * data.X + 5, 1e-3 * data.Y - 7, Y_unpaired=1e-3 * data.Y_unpaired - 7)
    y = np.linspace(-7.02, -6.98, 20_001)
    for x in ([5.0], [1500.0]):
        density = np.exp(model.score_samples(np.tile(x, (len(y), 1)), y[:, None]))
        assert np.trapezoid(density, y) == pytest.approx(1, abs=1e-6)


def test_units_do_not_matter() -> None:
    """Another unit for x and y shifts every density by the log-determinant and nothing else."""
    data = draw()
    plain = fit(MixtureTranslator(**QUICK, dtype="float64"), data)
    scaled = MixtureTranslator(**QUICK, dtype="float64").fit(
        64 * data.X, 0.125 * data.Y, X_unpaired=64 * data.X_unpaired, Y_unpaired=0.125 * data.Y_unpaired
    )  # powers of two: the standardised numbers are the same to the last bit
    np.testing.assert_allclose(
        scaled.score_samples(64 * data.X, 0.125 * data.Y), plain.score_samples(data.X, data.Y) + np.log(8), atol=1e-6
    )


@pytest.mark.filterwarnings("ignore:.*rows of X are far")
def test_unpaired_rows_help() -> None:
    """The branch that ten pairs cannot place, two thousand single y's can; judged on fresh pairs over five draws."""
    gains = []
    for seed in range(5):
        data = TwoBranches().draw(n_pairs=20, n_source=2000, n_target=2000, seed=seed)
        x, y = TwoBranches().draw_pairs(2000, seed=100 + seed)
        settings = {**QUICK, "max_steps": 80, "n_atoms": 20}
        ours = fit(MixtureTranslator(**settings), data).score(x, y)
        gains.append(ours - fit(MixtureTranslator(**settings, objective="supervised"), data).score(x, y))
    assert np.median(gains) > 0


def test_without_unpaired_rows_it_is_the_supervised_model() -> None:
    data = draw()
    plain = MixtureTranslator(**QUICK).fit(data.X, data.Y)
    supervised = MixtureTranslator(**QUICK, objective="supervised").fit(data.X, data.Y)
    assert np.array_equal(plain.score_samples(data.X, data.Y), supervised.score_samples(data.X, data.Y))


@pytest.mark.parametrize("kind", ["X_unpaired", "Y_unpaired"])
def test_either_kind_of_unpaired_rows_may_be_missing(kind: str) -> None:
    data = draw()
    model = MixtureTranslator(**QUICK).fit(data.X, data.Y, **{kind: getattr(data, kind)})
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("objective", ["marginal", "inverse_eot", "supervised"])
def test_the_same_seed_is_the_same_model(objective: str) -> None:
    data = draw()
    first, second, other = (
        fit(MixtureTranslator(**{**QUICK, "random_state": seed}, objective=objective), data) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.score_samples(data.X, data.Y), second.score_samples(data.X, data.Y))
    assert not np.array_equal(first.score_samples(data.X, data.Y), other.score_samples(data.X, data.Y))
    assert np.array_equal(first.sample(data.X, 3, random_state=5), second.sample(data.X, 3, random_state=5))


def test_a_fit_leaves_torchs_own_randomness_alone() -> None:
    before = torch.get_rng_state()
    fit(MixtureTranslator(**QUICK), draw())
    assert torch.equal(torch.get_rng_state(), before)


def test_loading_leaves_torchs_own_randomness_alone(fitted: MixtureTranslator, tmp_path) -> None:
    before = torch.get_rng_state()
    fitted.save(tmp_path / "model")
    load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_shapes_of_a_two_dimensional_y() -> None:
    data = LinearGaussian(matrix=((1.0,), (2.0,)), shift=(0, 0), covariance=((1, 0), (0, 1))).draw(
        n_pairs=30, n_source=10, n_target=10, seed=0
    )
    model = fit(MixtureTranslator(**QUICK), data)
    assert model.sample(data.X, 4).shape == (4, 30, 2)
    assert model.predict(data.X).shape == (30, 2)
    assert model.predict_quantiles(data.X, [0.1, 0.5, 0.9]).shape == (3, 30, 2)
    assert [end.shape for end in model.predict_interval(data.X)] == [(30, 2), (30, 2)]
    assert model.score_samples(data.X, data.Y).shape == (30,)
    assert model.conditional(data.X).log_prob(torch.from_numpy(data.Y)).shape == (30,)


def test_a_one_dimensional_y_comes_back_without_its_last_axis() -> None:
    data = draw()
    model = MixtureTranslator(**QUICK).fit(data.X, data.Y[:, 0], Y_unpaired=data.Y_unpaired[:, 0])
    assert model.sample(data.X, 4).shape == (4, 60)
    assert model.predict(data.X).shape == (60,)
    assert model.predict_quantiles(data.X, 0.5).shape == (1, 60)
    assert model.score_samples(data.X, data.Y[:, 0]).shape == (60,)


def test_intervals_cover_what_the_model_draws(fitted: MixtureTranslator) -> None:
    x = draw().X[:5]
    lower, upper = fitted.predict_interval(x, coverage=0.8)
    draws = fitted.sample(x, 20_000, random_state=0)
    covered = ((lower <= draws) & (draws <= upper)).mean(axis=0)
    assert np.abs(covered - 0.8).max() < 5 * np.sqrt(0.8 * 0.2 / 20_000)


def test_rows_are_predicted_one_by_one(fitted: MixtureTranslator) -> None:
    """What scikit-learn's two invariance checks ask for (they cannot call `score_samples`, which needs a y)."""
    data = draw()
    order = np.random.default_rng(0).permutation(len(data.X))
    np.testing.assert_allclose(fitted.predict(data.X[order]), fitted.predict(data.X)[order], atol=1e-12)
    alone = np.concatenate([fitted.predict(row[None]) for row in data.X])
    np.testing.assert_allclose(alone, fitted.predict(data.X), atol=1e-12)
    densities = np.concatenate([fitted.score_samples(x[None], y[None]) for x, y in zip(data.X, data.Y, strict=True)])
    np.testing.assert_allclose(densities, fitted.score_samples(data.X, data.Y), atol=1e-12)


def test_a_weight_of_zero_is_no_pair() -> None:
    data = draw(100)
    weight = np.r_[np.ones(50), np.zeros(50)]
    weighted = MixtureTranslator(**QUICK).fit(data.X, data.Y, weight, Y_unpaired=data.Y_unpaired)
    without = MixtureTranslator(**QUICK).fit(data.X[:50], data.Y[:50], Y_unpaired=data.Y_unpaired)
    assert np.array_equal(weighted.score_samples(data.X, data.Y), without.score_samples(data.X, data.Y))
    weight = np.r_[np.ones(30), np.zeros(90)]
    weighted = MixtureTranslator(**QUICK).fit(data.X, data.Y, Y_unpaired=data.Y_unpaired, Y_unpaired_weight=weight)
    without = MixtureTranslator(**QUICK).fit(data.X, data.Y, Y_unpaired=data.Y_unpaired[:30])
    assert np.array_equal(weighted.score_samples(data.X, data.Y), without.score_samples(data.X, data.Y))


def test_heavy_pairs_count_more() -> None:
    """Two halves of the pairs contradict each other; the half with the weight is believed."""
    x = np.random.default_rng(0).normal(size=(200, 1))
    y = np.where(np.arange(200)[:, None] < 100, x, -x) + 0.1
    for half, sign in ((slice(0, 100), 1), (slice(100, 200), -1)):
        weight = np.full(200, 1e-3)
        weight[half] = 1.0
        model = MixtureTranslator(**{**QUICK, "max_steps": 100}).fit(x, y, weight)
        assert np.corrcoef(model.predict(x)[:, 0], sign * x[:, 0])[0, 1] > 0.9


def test_history_is_of_the_chosen_settings(fitted: MixtureTranslator) -> None:
    frame = pd.DataFrame(fitted.history_)
    assert list(frame.columns) == ["step", "objective", "held_out_nll", "seconds"]
    assert frame["step"].is_monotonic_increasing and frame["seconds"].is_monotonic_increasing
    chosen = {name: value for name, value in fitted.chosen_.items() if name != "share"}
    (score,) = [tried["score"] for tried in fitted.candidates_ if chosen.items() <= tried.items()]
    assert score == pytest.approx(-frame["held_out_nll"].min(), abs=1e-5)  # float32 in training
    assert fitted.n_steps_ == frame["step"][frame["held_out_nll"].idxmin()]
    assert fitted.ended_ == "finished"


def test_the_figures_are_scores_on_fresh_pairs(fitted: MixtureTranslator) -> None:
    """Held-out pairs tell what fresh ones will say, as far as their standard errors reach."""
    x, y = TwoBranches().draw_pairs(4000, seed=1)
    scores = fitted.score_samples(x, y)
    mean, scale = fitted.y_scaler_.loc, fitted.y_scaler_.scale
    ignoring = fitted.plan_.members[0](torch.zeros(4000, 1).double()).log_prob((torch.from_numpy(y) - mean) / scale)
    ignored = ignoring.numpy() - np.log(scale.item())
    assert abs(scores.mean() - fitted.validation_score_) < 4 * fitted.validation_score_error_
    assert abs((scores - ignored).mean() - fitted.x_gain_) < 4 * fitted.x_gain_error_


def test_tensors_and_frames_come_in(fitted: MixtureTranslator) -> None:
    data = draw()
    tensors = MixtureTranslator(**QUICK).fit(
        torch.from_numpy(data.X),
        torch.from_numpy(data.Y),
        X_unpaired=torch.from_numpy(data.X_unpaired),
        Y_unpaired=torch.from_numpy(data.Y_unpaired),
    )
    frames = MixtureTranslator(**QUICK).fit(
        pd.DataFrame(data.X, columns=["a"]),
        pd.DataFrame(data.Y, columns=["b"]),
        X_unpaired=pd.DataFrame(data.X_unpaired, columns=["a"]),
        Y_unpaired=pd.DataFrame(data.Y_unpaired, columns=["b"]),
    )
    expected = fitted.score_samples(data.X, data.Y)
    assert np.array_equal(tensors.score_samples(torch.from_numpy(data.X), torch.from_numpy(data.Y)), expected)
    frame = pd.DataFrame(data.X, columns=["a"])
    assert np.array_equal(frames.score_samples(frame, pd.DataFrame(data.Y, columns=["b"])), expected)
    series = MixtureTranslator(**QUICK).fit(frame, pd.Series(data.Y[:, 0], name="b"))
    assert series.predict(frame).shape == (60,)


def test_constant_columns_of_x_are_harmless() -> None:
    data = draw()
    pad = lambda x: np.c_[x, np.full(len(x), 0.1), np.zeros(len(x))]  # noqa: E731
    model = MixtureTranslator(**QUICK).fit(pad(data.X), data.Y, X_unpaired=pad(data.X_unpaired))
    assert np.isfinite(model.score(pad(data.X), data.Y))


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_recipes_fit(name: str) -> None:
    data = draw()
    model = fit(MixtureTranslator.from_recipe(name, max_steps=30, random_state=0, verbose=False), data)
    assert model.n_steps_ == 30 and np.isnan(model.validation_score_)
    assert torch.equal(model.x_scaler_.scale, torch.ones(1).double())
    (plan,) = model.plan_.members
    n_layers = sum(isinstance(layer, torch.nn.Linear) for layer in plan.cost.slope_net)
    assert n_layers == {"paper": 2, "authors": 1}[name]
    assert plan.potential.b.shape == (50, 1) and plan.cost.n_slopes == 25


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'best'.*authors.*paper"):
        MixtureTranslator.from_recipe("best")


SEARCH = {"max_steps": 20, "batch_size": 64, "random_state": 0, "verbose": False}


@pytest.mark.parametrize("n_pairs", [60, 200])
@pytest.mark.parametrize(
    "settings, n_calls", [(QUICK, 40), (SEARCH, 30), (SEARCH, 0)], ids=["fixed", "search", "at once"]
)
def test_ctrl_c_warns_and_leaves_a_usable_model(settings, n_calls: int, n_pairs: int, monkeypatch) -> None:
    from fewpairs.training import loop as training

    calls = iter(range(1000))

    def interrupt(done: float) -> float:
        if next(calls) >= n_calls:  # two parameter groups a step
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(training, "_one_cycle", interrupt)
    data = draw(n_pairs)
    with pytest.warns(UserWarning, match="Interrupted: the best model so far is kept"):
        model = fit(MixtureTranslator(**settings), data)
    assert model.ended_ == "interrupted" and "interrupted" in model.summary()
    assert model.plan_.shares.sum().item() == pytest.approx(1)
    assert np.isfinite(model.score_samples(data.X, data.Y)).all()
    assert np.isfinite(model.validation_score_)


def test_heavy_tails_and_outliers_stay_finite() -> None:
    random = np.random.default_rng(0)
    X, Y = random.standard_t(1, size=(80, 3)), random.standard_t(1, size=(80, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureTranslator(**QUICK).fit(X, Y, Y_unpaired=random.standard_t(1, size=(500, 2)))
        far = model.sample(1e6 * X, 3)
    assert np.isfinite(model.score_samples(X, Y)).all()
    assert np.isfinite(far).all()


def test_a_quiet_fit_prints_nothing(capsys) -> None:
    fit(MixtureTranslator(**{**QUICK, "verbose": True}), draw())
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""  # a test is not a terminal


def test_save_and_load_change_no_bit(fitted: MixtureTranslator, tmp_path) -> None:
    data = draw()
    fitted.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.score_samples(data.X, data.Y), fitted.score_samples(data.X, data.Y))
    assert np.array_equal(loaded.sample(data.X, 2, random_state=0), fitted.sample(data.X, 2, random_state=0))
    assert np.array_equal(loaded.predict_quantiles(data.X), fitted.predict_quantiles(data.X))
    assert loaded.get_params().keys() == fitted.get_params().keys()
    assert loaded.history_["step"] == fitted.history_["step"] and loaded.summary() == fitted.summary()
    assert loaded.chosen_ == fitted.chosen_ and loaded.candidates_ == fitted.candidates_
    assert np.array_equal(loaded.novelty(3 * data.X), fitted.novelty(3 * data.X))


@pytest.mark.parametrize("scale", [1e-170, 1e-6, 1e6, 1e160])
def test_any_scale_of_x_and_y_will_do(scale: float) -> None:
    data = draw()
    model = MixtureTranslator(**QUICK).fit(scale * data.X, scale * data.Y)
    plain = MixtureTranslator(**QUICK).fit(data.X, data.Y)
    np.testing.assert_allclose(model.predict(scale * data.X) / scale, plain.predict(data.X), rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore:2 of 2 rows of X are far")
def test_far_away_everything_stays_finite(fitted: MixtureTranslator) -> None:
    x = np.array([[1e5], [-1e200]])
    for values in (fitted.predict(x), fitted.sample(x, 3), *fitted.predict_interval(x), fitted.score_samples(x, x * 0)):
        assert np.isfinite(values).all()


@pytest.mark.parametrize("n_pairs", [2, 3, 5])
@pytest.mark.parametrize("n_folds", [1, 2, 5])
@pytest.mark.parametrize("has_unpaired", [True, False])
def test_a_handful_of_pairs_will_do(n_pairs: int, n_folds: int, has_unpaired: bool) -> None:
    data = draw(n_pairs)
    model = MixtureTranslator(**{**QUICK, "max_steps": 5, "n_folds": n_folds})
    model = fit(model, data) if has_unpaired else model.fit(data.X, data.Y)
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("n_pairs, dim_x, dim_y", [(10, 20, 3), (5, 94, 94)])
def test_few_pairs_in_many_dimensions_end_close_to_ignoring_x(n_pairs: int, dim_x: int, dim_y: int) -> None:
    """Nothing can be learnt there: with y's that x says nothing about, the model must not claim otherwise."""
    random = np.random.default_rng(0)
    X, Y = random.normal(size=(n_pairs, dim_x)), random.normal(size=(n_pairs, dim_y))
    Xu, Yu, x, y = (random.normal(size=(300, dim)) for dim in (dim_x, dim_y, dim_x, dim_y))
    model = MixtureTranslator(**{**QUICK, "max_steps": 60, "n_folds": 5}).fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
    regret = ignoring_x(model, y) - model.score(x, y)
    assert regret < 0.05
    assert model.x_gain_ < 3 * model.x_gain_error_ + 1e-6
    assert np.isfinite(model.predict(x)).all()


def ignoring_x(model: MixtureTranslator, y: np.ndarray) -> float:
    """The mean log-likelihood of y's under the member that ignores x."""
    conditional = model.plan_.members[0].conditional(
        torch.zeros(len(y), model.n_features_in_).double(), model.y_scaler_.loc, model.y_scaler_.scale
    )
    return float(conditional.log_prob(torch.from_numpy(y)).mean())


def test_one_fold_holds_nothing_out() -> None:
    model = fit(MixtureTranslator(**{**QUICK, "n_folds": 1}), draw())
    assert len(model.plan_.members) == 1 and model.n_steps_ == 30
    assert np.isnan([model.validation_score_, model.x_gain_, model.unpaired_gain_]).all()
    assert "nothing was held out" in model.summary()


def test_the_summary_has_the_three_figures(fitted: MixtureTranslator) -> None:
    text = fitted.summary()
    assert "60 pairs, 100 unpaired x's and 120 unpaired y's" in text
    for name, form in (("validation_score_", ".3f"), ("x_gain_", "+.3f"), ("unpaired_gain_", "+.3f")):
        assert f"{getattr(fitted, name):{form}} ± {getattr(fitted, f'{name}error_'):.3f}" in text


def test_training_xs_are_not_novel(fitted: MixtureTranslator) -> None:
    data = draw()
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
    data = draw()
    far = data.X.mean() + 100 * data.X.std()
    x = np.concatenate([data.X[:3], [[far], [-far]]])
    assert (fitted.novelty(x) > 1).tolist() == [False, False, False, True, True]
    with pytest.warns(UserWarning, match="2 of 5 rows of X are far from every x seen in training") as caught:
        read(fitted, x)
    assert {warning.filename for warning in caught} == {__file__}  # it points at the caller, not into fewpairs


def test_distance_is_novelty_in_every_direction() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 3)) * [1, 10, 100]
    model = MixtureTranslator(**{**QUICK, "max_steps": 2}).fit(X, X[:, :1])
    fresh = random.normal(size=(200, 3)) * [1, 10, 100]
    assert (model.novelty(fresh) <= 1).mean() > 0.95  # x's of the same kind are not far, but for stragglers
    for direction in np.eye(3):
        assert model.novelty((100 * direction * [1, 10, 100])[None]) > 1


def warm(**changes) -> MixtureTranslator:
    return MixtureTranslator(**{**QUICK, "max_steps": 60, "warm_start": True, **changes})


@pytest.fixture(scope="module")
def begun() -> MixtureTranslator:
    return fit(warm(), draw())


def test_a_warm_start_goes_on_from_where_it_was(begun: MixtureTranslator, tmp_path) -> None:
    """One more step leaves it where it was; one step from the start is far from there. A file in between changes nothing."""
    data = draw()
    x, y = TwoBranches().draw_pairs(2000, seed=1)
    begun.save(tmp_path / "model")
    first, second = (load(tmp_path / "model").set_params(max_steps=1) for _ in range(2))
    before = first.score(x, y)
    fit(first, data)
    assert abs(first.score(x, y) - before) < 0.02
    assert fit(warm(max_steps=1), data).score(x, y) < before - 0.1
    fit(second, data)
    assert np.array_equal(first.score_samples(x, y), second.score_samples(x, y))


def test_a_warm_start_takes_new_rows_and_keeps_the_folds(begun: MixtureTranslator, tmp_path) -> None:
    begun.save(tmp_path / "model")
    model = load(tmp_path / "model")
    x, y = TwoBranches().draw_pairs(2000, seed=1)
    before, folds = model.score(x, y), dict(zip(model.fold_keys_.tolist(), model.folds_.tolist(), strict=True))
    scales = [model.x_scaler_.scale.clone(), model.y_scaler_.loc.clone()]
    old, new = draw(), TwoBranches().draw(n_pairs=30, n_source=300, n_target=200, seed=5)
    X, Y = np.concatenate([new.X, old.X]), np.concatenate([new.Y, old.Y])
    model.fit(X, Y, X_unpaired=new.X_unpaired, Y_unpaired=new.Y_unpaired)
    after = dict(zip(model.fold_keys_.tolist(), model.folds_.tolist(), strict=True))
    assert len(after) == 90 and folds.items() <= after.items()
    assert model.n_pairs_ == 90 and model.n_unpaired_ == [300, 200]
    assert torch.equal(scales[0], model.x_scaler_.scale) and torch.equal(scales[1], model.y_scaler_.loc)
    assert model.score(x, y) > before - 0.05  # half as many pairs again; they do not make it worse
    assert model.novelty(new.X_unpaired).max() <= 1


def test_without_warm_start_a_second_fit_forgets_the_first() -> None:
    data = draw()
    model = fit(MixtureTranslator(**QUICK), draw(30))
    assert np.array_equal(fit(model, data).predict(data.X), fit(MixtureTranslator(**QUICK), data).predict(data.X))


@pytest.mark.parametrize("time_budget", [1e-4, 1.0])
def test_a_fit_keeps_to_its_time(time_budget: float) -> None:
    data, start = draw(), time.perf_counter()
    model = fit(MixtureTranslator(**{**QUICK, "max_steps": 10**6}, time_budget=time_budget), data)
    assert time.perf_counter() - start < time_budget + 3  # starts and first calls of torch are not stopped halfway
    assert model.ended_ == "out of time"
    assert np.isfinite(model.score(data.X, data.Y))


def test_atoms_on_samples_need_no_number() -> None:
    data = draw()
    model = fit(MixtureTranslator(**{**QUICK, "max_steps": 2, "n_atoms": "auto"}, start="samples"), data)
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("n_pairs, n_folds", [(49, 2), (12, 5)])
def test_folds_of_unequal_size_have_members_of_equal_shape(n_pairs: int, n_folds: int) -> None:
    """Without unpaired y's a fold with one pair fewer could place one atom fewer, yet members train as one population."""
    data = draw(n_pairs)
    model = MixtureTranslator(**{**QUICK, "max_steps": 2, "n_folds": n_folds}).fit(data.X, data.Y)
    assert np.isfinite(model.score(data.X, data.Y))


def test_one_pair_with_nearly_all_the_weight_is_survived() -> None:
    data = draw()
    model = MixtureTranslator(**{**QUICK, "max_steps": 2}).fit(data.X, data.Y, np.r_[1e9, np.ones(59)])
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("recipe", ["paper", "authors"])
def test_fits_made_together_are_those_made_alone(recipe: str) -> None:
    """Every member draws its rows from its own generator, so together and alone differ in rounding only."""
    data = [draw(seed=seed) for seed in (1, 2, 3)]
    arguments = [{"X": one.X, "y": one.Y, "X_unpaired": one.X_unpaired, "Y_unpaired": one.Y_unpaired} for one in data]

    def make(seed: int) -> MixtureTranslator:
        settings = {"random_state": seed, "max_steps": 20, "n_atoms": 6, "n_slopes": 3, "dtype": "float64"}
        return MixtureTranslator.from_recipe(recipe, **settings, verbose=False)

    together = [make(seed) for seed in range(3)]
    fit_together(together, arguments)
    for seed, (model, one) in enumerate(zip(together, arguments, strict=True)):
        alone = make(seed).fit(**one)
        np.testing.assert_allclose(
            model.score_samples(one["X"], one["y"]), alone.score_samples(one["X"], one["y"]), atol=1e-9
        )
        assert model.history_["step"] == alone.history_["step"]


def test_fits_that_leave_something_to_choose_are_not_made_together() -> None:
    data = draw()
    arguments = [{"X": data.X, "y": data.Y}] * 2
    with pytest.raises(ValueError, match="leave nothing to choose"):
        fit_together([MixtureTranslator(verbose=False)] * 2, arguments)
    with pytest.raises(ValueError, match="differ in random_state alone"):
        fit_together([MixtureTranslator(), MixtureTranslator(n_slopes=2)], arguments)
    short = {"X": data.X[:-1], "y": data.Y[:-1]}
    with pytest.raises(ValueError, match="equally many rows"):
        fit_together([MixtureTranslator.from_recipe("paper", verbose=False)] * 2, [arguments[0], short])


def test_too_few_pairs_have_no_error_bars() -> None:
    data = draw(n_pairs=4)
    model = MixtureTranslator(**QUICK).fit(data.X, data.Y, Y_unpaired=data.Y_unpaired)
    assert np.isfinite(model.x_gain_) and np.isnan(model.x_gain_error_)
    assert "too few pairs for an error bar" in model.summary() and "nan" not in model.summary()


def test_a_rival_without_time_is_not_beaten() -> None:
    """A gain over a model that was hardly trained would be no gain of the unpaired rows."""
    data = draw()
    model = MixtureTranslator(random_state=0, verbose=False, time_budget=0.3)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    assert np.isnan(model.unpaired_gain_) and "no time to find out" in model.summary()


def test_without_unpaired_rows_nothing_is_said_of_them() -> None:
    data = draw()
    assert (
        "brought" in (text := MixtureTranslator(**QUICK).fit(data.X, data.Y).summary()) and "unpaired rows" not in text
    )


def test_unpaired_xs_alone_tell_nothing_about_y() -> None:
    """The default is then the supervised model itself, to the last bit; a weight that was given is respected."""
    data = draw()
    settings = {**QUICK, "unpaired_weight": "auto"}
    model, supervised = (
        MixtureTranslator(**settings, objective=objective).fit(data.X, data.Y, X_unpaired=data.X_unpaired)
        for objective in ("marginal", "supervised")
    )
    np.testing.assert_array_equal(model.score_samples(data.X, data.Y), supervised.score_samples(data.X, data.Y))
    assert model.unpaired_gain_ == 0 and "helped to scale x alone" in model.summary()
    forced = MixtureTranslator(**{**settings, "unpaired_weight": 1.0}).fit(data.X, data.Y, X_unpaired=data.X_unpaired)
    assert {final["objective"] for final in forced.finals_} == {"marginal", "supervised"}
    assert "helped to scale" not in forced.summary()
