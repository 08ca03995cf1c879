"""MixtureTranslator: what it learns, from whatever rows it is given."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import FIXED_SEARCH, brief, draw_branches, fit, ignoring_x

from fewpairs import Architecture, Training
from fewpairs.datasets.made import LinearGaussian, TwoBranches


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("objective", ["supervised", "marginal"])
def test_a_gaussian_problem_reaches_the_closed_form(objective: str, covariance: str) -> None:
    """One atom and one linear slope are a linear regression, whose errors are known: σ√(3/P) in the conditional mean."""
    correlation = 0.2 if covariance == "full" else 0.0
    noise = np.array([[0.5, correlation], [correlation, 0.25]])
    problem = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(3.0, -20.0), covariance=noise)
    data = problem.draw(n_pairs=300, n_source=700, n_target=700, seed=0)
    model = fit(
        brief(
            objective=objective,
            n_folds=1,
            search=replace(
                FIXED_SEARCH, n_atoms=1, hidden=(), smoothing=0.0, variance_floor=1e-4, covariance=covariance
            ),
            architecture=Architecture(n_slopes=1),
            training=Training(batch_size=1000, max_steps=500),
        ),
        data,
    )
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


def test_densities_integrate_to_one_in_the_users_units() -> None:
    data = draw_branches()
    model = brief().fit(1e3 * data.X + 5, 1e-3 * data.Y - 7, Y_unpaired=1e-3 * data.Y_unpaired - 7)
    y = np.linspace(-7.02, -6.98, 20_001)
    for x in ([5.0], [1500.0]):
        density = np.exp(model.score_samples(np.tile(x, (len(y), 1)), y[:, None]))
        assert np.trapezoid(density, y) == pytest.approx(1, abs=1e-6)


def test_units_do_not_matter() -> None:
    """Another unit for x and y shifts every density by the log-determinant and nothing else."""
    data = draw_branches()
    plain = fit(brief(training__dtype="float64"), data)
    scaled = brief(training__dtype="float64").fit(
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
        settings = {"training__max_steps": 80, "search__n_atoms": 20}
        ours = fit(brief(**settings), data).score(x, y)
        gains.append(ours - fit(brief(**settings, objective="supervised"), data).score(x, y))
    assert np.median(gains) > 0


def test_without_unpaired_rows_it_is_the_supervised_model() -> None:
    data = draw_branches()
    plain = brief().fit(data.X, data.Y)
    supervised = brief(objective="supervised").fit(data.X, data.Y)
    assert np.array_equal(plain.score_samples(data.X, data.Y), supervised.score_samples(data.X, data.Y))


@pytest.mark.parametrize("kind", ["X_unpaired", "Y_unpaired"])
def test_either_kind_of_unpaired_rows_may_be_missing(kind: str) -> None:
    data = draw_branches()
    model = brief().fit(data.X, data.Y, **{kind: getattr(data, kind)})
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("objective", ["marginal", "inverse_eot", "supervised"])
def test_the_same_seed_is_the_same_model(objective: str) -> None:
    data = draw_branches()
    first, second, other = (fit(brief(random_state=seed, objective=objective), data) for seed in (1, 1, 2))
    assert np.array_equal(first.score_samples(data.X, data.Y), second.score_samples(data.X, data.Y))
    assert not np.array_equal(first.score_samples(data.X, data.Y), other.score_samples(data.X, data.Y))
    assert np.array_equal(first.sample(data.X, 3, random_state=5), second.sample(data.X, 3, random_state=5))


def test_a_fit_leaves_torchs_own_randomness_alone() -> None:
    before = torch.get_rng_state()
    fit(brief(), draw_branches())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_weight_of_zero_is_no_pair() -> None:
    data = draw_branches(100)
    weight = np.r_[np.ones(50), np.zeros(50)]
    weighted = brief().fit(data.X, data.Y, weight, Y_unpaired=data.Y_unpaired)
    without = brief().fit(data.X[:50], data.Y[:50], Y_unpaired=data.Y_unpaired)
    assert np.array_equal(weighted.score_samples(data.X, data.Y), without.score_samples(data.X, data.Y))
    weight = np.r_[np.ones(30), np.zeros(90)]
    weighted = brief().fit(data.X, data.Y, Y_unpaired=data.Y_unpaired, Y_unpaired_weight=weight)
    without = brief().fit(data.X, data.Y, Y_unpaired=data.Y_unpaired[:30])
    assert np.array_equal(weighted.score_samples(data.X, data.Y), without.score_samples(data.X, data.Y))


def test_heavy_pairs_count_more() -> None:
    """Two halves of the pairs contradict each other; the half with the weight is believed."""
    x = np.random.default_rng(0).normal(size=(200, 1))
    y = np.where(np.arange(200)[:, None] < 100, x, -x) + 0.1
    for half, sign in ((slice(0, 100), 1), (slice(100, 200), -1)):
        weight = np.full(200, 1e-3)
        weight[half] = 1.0
        model = brief(training__max_steps=100).fit(x, y, weight)
        assert np.corrcoef(model.predict(x)[:, 0], sign * x[:, 0])[0, 1] > 0.9


def test_constant_columns_of_x_are_harmless() -> None:
    data = draw_branches()
    pad = lambda x: np.c_[x, np.full(len(x), 0.1), np.zeros(len(x))]  # noqa: E731
    model = brief().fit(pad(data.X), data.Y, X_unpaired=pad(data.X_unpaired))
    assert np.isfinite(model.score(pad(data.X), data.Y))


def test_heavy_tails_and_outliers_stay_finite() -> None:
    random = np.random.default_rng(0)
    X, Y = random.standard_t(1, size=(80, 3)), random.standard_t(1, size=(80, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = brief().fit(X, Y, Y_unpaired=random.standard_t(1, size=(500, 2)))
        far = model.sample(1e6 * X, 3)
    assert np.isfinite(model.score_samples(X, Y)).all()
    assert np.isfinite(far).all()


def test_a_quiet_fit_prints_nothing(capsys) -> None:
    fit(brief(verbose=True), draw_branches())
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""  # a test is not a terminal


@pytest.mark.parametrize("scale", [1e-170, 1e-6, 1e6, 1e160])
def test_any_scale_of_x_and_y_will_do(scale: float) -> None:
    data = draw_branches()
    model = brief().fit(scale * data.X, scale * data.Y)
    plain = brief().fit(data.X, data.Y)
    np.testing.assert_allclose(model.predict(scale * data.X) / scale, plain.predict(data.X), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("n_pairs", [2, 3, 5])
@pytest.mark.parametrize("n_folds", [1, 2, 5])
@pytest.mark.parametrize("has_unpaired", [True, False])
def test_a_handful_of_pairs_will_do(n_pairs: int, n_folds: int, has_unpaired: bool) -> None:
    data = draw_branches(n_pairs)
    model = brief(training__max_steps=5, n_folds=n_folds)
    model = fit(model, data) if has_unpaired else model.fit(data.X, data.Y)
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("n_pairs, dim_x, dim_y", [(10, 20, 3), (5, 94, 94)])
def test_few_pairs_in_many_dimensions_end_close_to_ignoring_x(n_pairs: int, dim_x: int, dim_y: int) -> None:
    """Nothing can be learnt there: with y's that x says nothing about, the model must not claim otherwise."""
    random = np.random.default_rng(0)
    X, Y = random.normal(size=(n_pairs, dim_x)), random.normal(size=(n_pairs, dim_y))
    Xu, Yu, x, y = (random.normal(size=(300, dim)) for dim in (dim_x, dim_y, dim_x, dim_y))
    model = brief(training__max_steps=60, n_folds=5).fit(X, Y, X_unpaired=Xu, Y_unpaired=Yu)
    regret = ignoring_x(model, y) - model.score(x, y)
    assert regret < 0.05
    assert model.x_gain_ < 3 * model.x_gain_error_ + 1e-6
    assert np.isfinite(model.predict(x)).all()


def test_one_fold_holds_nothing_out() -> None:
    model = fit(brief(n_folds=1), draw_branches())
    assert len(model.plan_.members) == 1 and model.n_steps_ == 30
    assert np.isnan([model.validation_score_, model.x_gain_, model.unpaired_gain_]).all()
    assert "nothing was held out" in model.summary()


def test_atoms_on_samples_need_no_number() -> None:
    data = draw_branches()
    model = fit(brief(training__max_steps=2, search__n_atoms="auto", architecture__start="samples"), data)
    assert np.isfinite(model.score(data.X, data.Y))


@pytest.mark.parametrize("n_pairs, n_folds", [(49, 2), (12, 5)])
def test_folds_of_unequal_size_have_members_of_equal_shape(n_pairs: int, n_folds: int) -> None:
    """Without unpaired y's a fold with one pair fewer could place one atom fewer, yet members train as one population."""
    data = draw_branches(n_pairs)
    model = brief(training__max_steps=2, n_folds=n_folds).fit(data.X, data.Y)
    assert np.isfinite(model.score(data.X, data.Y))


def test_one_pair_with_nearly_all_the_weight_is_survived() -> None:
    data = draw_branches()
    model = brief(training__max_steps=2).fit(data.X, data.Y, np.r_[1e9, np.ones(59)])
    assert np.isfinite(model.score(data.X, data.Y))


def test_unpaired_xs_alone_tell_nothing_about_y() -> None:
    """The default is then the supervised model itself, to the last bit; a weight that was given is respected."""
    data = draw_branches()
    settings = {"search__unpaired_weight": "auto"}
    model, supervised = (
        brief(**settings, objective=objective).fit(data.X, data.Y, X_unpaired=data.X_unpaired)
        for objective in ("marginal", "supervised")
    )
    np.testing.assert_array_equal(model.score_samples(data.X, data.Y), supervised.score_samples(data.X, data.Y))
    assert model.unpaired_gain_ == 0 and "helped to scale x alone" in model.summary()
    forced = brief(search__unpaired_weight=1.0).fit(data.X, data.Y, X_unpaired=data.X_unpaired)
    assert {final["objective"] for final in forced.finals_} == {"marginal", "supervised"}
    assert "helped to scale" not in forced.summary()


def test_tensors_and_frames_come_in() -> None:
    data = draw_branches()
    tensors = brief().fit(
        torch.from_numpy(data.X),
        torch.from_numpy(data.Y),
        X_unpaired=torch.from_numpy(data.X_unpaired),
        Y_unpaired=torch.from_numpy(data.Y_unpaired),
    )
    frames = brief().fit(
        pd.DataFrame(data.X, columns=["a"]),
        pd.DataFrame(data.Y, columns=["b"]),
        X_unpaired=pd.DataFrame(data.X_unpaired, columns=["a"]),
        Y_unpaired=pd.DataFrame(data.Y_unpaired, columns=["b"]),
    )
    expected = fit(brief(), data).score_samples(data.X, data.Y)
    assert np.array_equal(tensors.score_samples(torch.from_numpy(data.X), torch.from_numpy(data.Y)), expected)
    frame = pd.DataFrame(data.X, columns=["a"])
    assert np.array_equal(frames.score_samples(frame, pd.DataFrame(data.Y, columns=["b"])), expected)
    series = brief().fit(frame, pd.Series(data.Y[:, 0], name="b"))
    assert series.predict(frame).shape == (60,)


def test_densities_above_one_are_no_divergence() -> None:
    """Where y follows x closely, held-out log-densities are positive: a sign that nothing should read anything into."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 1))
    search = replace(FIXED_SEARCH, hidden=(), smoothing=0.0, variance_floor=1e-4, n_atoms=1)
    model = brief(objective="supervised", search=search, training__max_steps=400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, x + 0.05 * random.normal(size=x.shape))
    assert model.ended_ == "finished" and min(model.history_["held_out_nll"]) < -0.5
