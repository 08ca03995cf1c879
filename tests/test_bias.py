"""Pairs from a corner: found out, told, and weighed when they judge; harmless where there is no bias."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import fixed, make_plan
from torch import nn

from fewpairs import MixtureTranslator, load
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import LinearGaussian
from fewpairs.plans.classes import ClassCost, ClassPlan, ClassPotential
from fewpairs.shift.bias import find_coverage, look_for_bias, temper
from fewpairs.shift.ratios import effective_size
from fewpairs.training import objectives

PROBLEM = LinearGaussian(matrix=((1.0, -0.5), (0.5, 1.0)), shift=(0.0, 0.0), covariance=((0.5, 0.0), (0.0, 0.25)))


def make_model(**changes) -> MixtureTranslator:
    return fixed(**{"training__max_steps": 30, **changes})


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
    return make_model(**settings).fit(x, y, X_unpaired=more_x, Y_unpaired=more_y)


def test_bias_is_found_weighed_and_told() -> None:
    data = draw(strength=1.0)
    with pytest.warns(UserWarning, match="unlike the unpaired x's"):
        model = fit(data)
    assert model.bias_["is_biased"] and model.bias_["p_value"] <= 0.01
    assert "weighted towards the unpaired x's" in model.summary()
    assert 5 < model.bias_["effective_sample_size"] < 70
    found = look_for_bias(data[0], data[2], "biased")
    assert np.corrcoef(np.log(found.relevance), np.log(data[4]))[0, 1] > 0.9


def test_the_mixture_may_lean_on_relevant_pairs_and_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(draw(strength=1.0), search__emphasis="auto")
    of_ours = [final["emphasis"] for final in model.finals_ if final["objective"] == "marginal"]
    assert sorted(of_ours) == [0.0, 1.0]


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
        model = make_model(training__max_steps=150, pairs_are=pairs_are).fit(x[rows], y[rows], **others)
        scores[pairs_are] = model.validation_score_, model.score(x, y)
    # Weighted, what is told is the population's score; plain, it is that of the quiet corner. (Weighted, 300 pairs are worth some
    # hundred, and a pair's score has a spread of two nats.)
    assert abs(scores["biased"][0] - scores["biased"][1]) < 0.4
    assert scores["representative"][0] > scores["representative"][1] + 0.5


def test_an_emphasis_is_a_weight_of_the_pairs() -> None:
    """relevance ** emphasis on the likelihood or the cost of the pairs, and nowhere else."""
    plan = make_plan(seed=0)
    x, y, relevance = torch.randn(7, 2).double(), torch.randn(7, 2).double(), torch.rand(7).double() + 0.1
    plain = Samples.gather(x, y, unpaired_x=x.flip(0), unpaired_y=y.flip(0))
    weighted = replace(plain, pairs_weight=relevance**0.5)
    biased = replace(plain, relevance=relevance)
    for objective in (objectives.supervised, objectives.marginal, objectives.inverse_eot):
        assert objective(plan, biased, emphasis=0.5).item() == pytest.approx(
            objective(plan, weighted, emphasis=0).item(), rel=1e-12
        )
        assert objective(plan, biased, emphasis=0).item() == pytest.approx(objective(plan, plain).item(), rel=1e-12)


def test_which_objective_needs_which_weights() -> None:
    """The mathematics of docs/biased_pairs.md, on a population that is known exactly: sums over all classes of y and a grid of x.

    An objective is consistent if its gradient is zero at the true plan. Every row (x, y) has its probability as weight, so there
    is no sampling error: what should be zero is zero to rounding, and what should not be is far from it.
    """
    torch.manual_seed(0)
    n_classes, grid = 4, torch.linspace(-2, 2, 21, dtype=torch.float64)[:, None]
    plan = ClassPlan(ClassCost(nn.Linear(1, n_classes)), ClassPotential(torch.randn(n_classes))).double()
    with torch.no_grad():
        given_x = plan.log_probs(grid).exp()  # π(y|x)
    population = torch.exp(-(grid[:, 0] ** 2) / 2)
    population = population / population.sum()  # π_x
    selected = population * torch.exp(-1.5 * grid[:, 0])
    selected = selected / selected.sum()  # μ_x
    classes = torch.arange(n_classes).double()[:, None]
    of_population, of_selected = population @ given_x, selected @ given_x  # π_y, ν_y
    rows = {"pairs_x": grid.repeat_interleave(n_classes, 0), "pairs_y": classes.repeat(len(grid), 1)}
    among_pairs = (selected[:, None] * given_x).flatten()

    def slope(objective, pairs_weight=among_pairs, source_weight=population, target_weight=of_population) -> float:
        weights = {"pairs_weight": pairs_weight, "source_weight": source_weight, "target_weight": target_weight}
        loss = objective(plan, Samples(**rows, source=grid, target=classes, **weights))
        gradients = torch.autograd.grad(loss, list(plan.parameters()), allow_unused=True)
        return max(float(gradient.abs().max()) for gradient in gradients if gradient is not None)

    ratio = (population / selected).repeat_interleave(n_classes)
    # The likelihood of the pairs and of the target needs none, and the pairs may have them.
    for objective in (objectives.supervised, objectives.marginal):
        assert slope(objective) < 1e-12
        assert slope(objective, among_pairs * ratio) < 1e-12
    # Weighting one of the two unpaired sides alone is wrong; both, as the paper does, is right again.
    assert slope(objectives.marginal, target_weight=of_selected) > 0.05
    assert slope(objectives.marginal, source_weight=selected) > 0.05
    assert slope(objectives.marginal, source_weight=selected, target_weight=of_selected) < 1e-12
    # The paper's loss needs weights on the pairs, or on both of the others; one of these alone, or the inverse, is wrong.
    assert slope(objectives.inverse_eot) > 0.05
    assert slope(objectives.inverse_eot, among_pairs * ratio) < 1e-12
    assert slope(objectives.inverse_eot, source_weight=selected, target_weight=of_selected) < 1e-12
    assert slope(objectives.inverse_eot, source_weight=selected) > 0.05
    upside_down = {"source_weight": population**2 / selected, "target_weight": of_population**2 / of_selected}
    assert slope(objectives.inverse_eot, **upside_down) > 0.05


def test_training_takes_weights_where_they_belong() -> None:
    """The paper's loss needs them; for the others they are a candidate; without bias there is nothing to choose."""
    data = draw(strength=1.0)
    for objective, pairs_are, expected in (
        ("marginal", "biased", {0.0, 1.0}),
        ("supervised", "biased", {0.0, 1.0}),
        ("inverse_eot", "biased", {1.0}),
        ("marginal", "representative", {0.0}),
    ):
        model = fit(data, objective=objective, pairs_are=pairs_are, search__emphasis="auto", training__max_steps=1)
        tried = {candidate["emphasis"] for candidate in model.candidates_ if candidate["objective"] == objective}
        assert tried == expected
    assert {candidate["emphasis"] for candidate in fit(data, pairs_are="biased", search__emphasis=0.5).finals_} == {0.5}


def test_the_pairs_own_points_leave_source_and_target_or_are_brought_to_the_population() -> None:
    samples = Samples.gather(
        torch.zeros(3, 1), torch.zeros(3, 1), unpaired_x=torch.ones(5, 1), unpaired_y=torch.ones(4, 1)
    )
    moved = samples.weigh_own_points(torch.tensor([0.0, 1.0, 2.0]))
    assert moved.source_weight.tolist() == [0.0, 1.0, 2.0] + [1.0] * 5
    assert moved.target_weight.tolist() == [0.0, 1.0, 2.0] + [1.0] * 4
    np.testing.assert_array_equal(moved.pairs_weight, samples.pairs_weight)


def test_a_handful_of_unpaired_rows_is_no_population() -> None:
    """With one unpaired y, target and scale would be that of one point, and a density there without bound."""
    data = list(draw(strength=1.0))
    data[3] = data[3][:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(data, pairs_are="biased")
    assert float(model.y_scaler_.scale.min()) > 0.5 and abs(model.x_gain_) < 5
    # The pairs' y's stand for the population's, whose mean is zero, with weights that bring them there.
    assert np.abs(model.y_scaler_.loc.numpy()).max() < 0.6 * np.abs(data[1].mean(0)).max()


def test_a_known_relevance_is_taken_as_it_is() -> None:
    """Up to a factor, which cannot be known; nothing is tested or estimated, and no unpaired rows are needed."""
    x, y, *_, ratio = draw(strength=1.0)
    fits = [make_model().fit(x, y, relevance=factor * ratio) for factor in (1.0, 4.0)]
    np.testing.assert_array_equal(*(model.score_samples(x, y) for model in fits))
    assert fits[0].bias_["is_biased"] and np.isnan(fits[0].bias_["p_value"])
    assert fits[0].bias_["effective_sample_size"] == pytest.approx(ratio.sum() ** 2 / (ratio**2).sum())
    with pytest.raises(ValueError, match="leave one out"):
        make_model(pairs_are="representative").fit(x, y, relevance=ratio)
    with pytest.raises(ValueError, match="relevance must be a 1D array"):
        make_model().fit(x, y, relevance=ratio[:5])


def elsewhere(seed: int) -> tuple[np.ndarray, ...]:
    """Pairs at x < −2, where a sixth of the population is, of a relation that turns there: pairs, unpaired rows, fresh ones."""
    random = np.random.default_rng(seed)

    def relation(x: np.ndarray) -> np.ndarray:
        return np.where(x < -2, -x - 2, 3 * np.sin(x)) + 0.1 * random.normal(size=x.shape)

    x = 2 * random.normal(size=(4000, 1))
    y, far = relation(x), -2 - np.abs(random.normal(size=(60, 1)))
    return far, relation(far), x[:500], y[500:1000], x[1000:], y[1000:]


@pytest.mark.parametrize("objective", ["marginal", "supervised", "inverse_eot"])
def test_where_there_are_no_pairs_the_fit_is_no_worse_than_ignoring_x(objective: str) -> None:
    """Within 0.1 nats: what pairs can tell is a mean over twelve of them at a time, and the mixture without x is learnt too."""
    far, y_far, more_x, more_y, x, y = elsewhere(seed=0)
    scores = {}
    for pairs_are in ("auto", "representative"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = make_model(training__max_steps=200, objective=objective, pairs_are=pairs_are)
            model.fit(far, y_far, X_unpaired=more_x, Y_unpaired=more_y)
            scores[pairs_are] = model.score(x, y)
        told = [str(warning.message) for warning in caught if "hardly overlap" in str(warning.message)]
        assert len(told) == (pairs_are == "auto")
        if told:
            assert 0.1 < model.bias_["coverage"] < 0.3 and f"{model.bias_['effective_sample_size']:.1f}" in told[0]
            ignoring = model.plan_.members[0].conditional(
                torch.zeros(len(x), 1).double(), model.y_scaler_.loc, model.y_scaler_.scale
            )
    of_ignoring = float(ignoring.log_prob(torch.from_numpy(y)).mean())
    assert scores["auto"] > of_ignoring - 0.1
    if objective != "inverse_eot":  # whose loss never believed in x here
        assert scores["representative"] < of_ignoring - 0.3  # and that is no easy thing


def test_coverage_is_the_part_of_the_population_among_the_pairs() -> None:
    random = np.random.default_rng(0)
    population = random.uniform(-1, 1, size=(2000, 2))
    half = random.uniform((-1, -1), (0, 1), size=(200, 2))
    # Reach around 200 points in half the square: their largest gap is some tenths of its side.
    assert find_coverage(half, population) == pytest.approx(0.5, abs=0.12)
    assert find_coverage(random.uniform(-1, 1, size=(200, 2)), population) > 0.97
    assert find_coverage(population[:100] + 50, population) == 0


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_coverage_does_not_shrink_where_pairs_come_again(dim: int) -> None:
    """The nearest fellow of a pair is no repeat of it. Forty places on a line are too near each other to tell which were
    measured twice with an error. In more dimensions a pair of neighbours may be taken as one, and coverage moves a little."""
    random = np.random.default_rng(1)
    population, places = random.normal(size=(2000, dim)), random.normal(size=(40, dim))
    once = find_coverage(places, population)
    assert once > 0.9
    for n_repeats in (2, 3, 10):
        again = places.repeat(n_repeats, 0)
        assert find_coverage(again, population) == once
        if dim > 1:
            jittered = again + 0.01 * random.normal(size=again.shape)
            assert find_coverage(jittered, population) == pytest.approx(once, abs=0.1)


def stations(n_years: int, jitter: float = 0.0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Twenty stations that were read each year (height, longitude, latitude → temperature), and 2,000 places elsewhere."""
    random = np.random.default_rng(seed)

    def places(n: int) -> np.ndarray:
        return np.column_stack([random.gamma(2, 300, n), random.uniform(5, 15, n), random.uniform(45, 55, n)])

    def read(x: np.ndarray) -> np.ndarray:
        return (25 - 0.006 * x[:, 0] - 0.5 * (x[:, 2] - 45) + random.normal(size=len(x)))[:, None]

    population, x = places(2000), places(20).repeat(n_years, 0)
    x = x + jitter * population.std(0) * random.normal(size=x.shape)
    return x, read(x), population, read(places(500)), None


@pytest.mark.parametrize("jitter", [0.0, 0.01])
def test_years_of_a_station_are_no_bias(jitter: float) -> None:
    x, *others = stations(n_years=5, jitter=jitter, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit((x, *others))
    assert not model.bias_["is_biased"]
    # The same stations in one year; an error of a hundredth moves the p-value by about as much.
    one_year = look_for_bias(x[::5], others[1], "auto")
    assert model.bias_["p_value"] == pytest.approx(one_year.p_value, abs=5 * jitter)
    assert find_coverage(x, others[1]) == pytest.approx(find_coverage(x[::5], others[1]), abs=0.1)


def test_pairs_that_come_three_times_are_no_bias() -> None:
    """Taken once, the p-value of this draw is 0.14; it would be 0.001 if repeats were new x's."""
    x, y, *others = draw(strength=0.0, n_pairs=40, seed=1)
    once, thrice = (fit((x.repeat(n, 0), y.repeat(n, 0), *others)).bias_ for n in (1, 3))
    assert not thrice["is_biased"] and thrice["p_value"] == once["p_value"]


def test_bias_of_pairs_that_come_three_times_is_found_and_weighed_as_of_those_that_come_once() -> None:
    x, _, more_x, *_ = draw(strength=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        once, thrice = (look_for_bias(x.repeat(n, 0), more_x, "auto") for n in (1, 3))
    assert thrice.is_biased and thrice.coverage == once.coverage
    np.testing.assert_allclose(thrice.relevance, once.relevance.repeat(3), rtol=1e-12)


def test_few_stations_cannot_tell() -> None:
    """Five places are five, whatever number of years was spent there."""
    x, _, population, *_ = stations(n_years=5)
    assert np.isnan(look_for_bias(x[:25], population, "auto").p_value)
    with pytest.warns(UserWarning, match="Pairs at 5 x's and 2000 unpaired x's are too few"):
        look_for_bias(x[:25], population, "biased")


def test_pairs_that_are_elsewhere_count_for_nothing() -> None:
    """Far from all unpaired x's no pair is more relevant than another: equal weights, and still no evidence."""
    random = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="hardly overlap"):
        found = look_for_bias(random.normal(size=(40, 1)) + 100, random.normal(size=(500, 1)), "auto")
    assert found.effective_sample_size < 1 and found.relevance.mean() < 0.02


@pytest.mark.parametrize(("spread", "part"), [(0.2, None), (1.0, 0.8), (3.0, 0.8)])
def test_tempered_relevance_is_the_largest_power_that_keeps_most_pairs(spread: float, part: float | None) -> None:
    """exp(spread · z) has an effective part of exp(−spread²): 96 % needs no tempering, 37 % and 0.01 % are brought to 80 %."""
    log_relevance = spread * np.random.default_rng(0).normal(size=2000)
    weight = temper(np.exp(log_relevance))
    power = np.polyfit(log_relevance, np.log(weight), 1)[0]
    assert np.corrcoef(log_relevance, np.log(weight))[0, 1] == pytest.approx(1.0)
    if part is None:
        assert power == pytest.approx(1.0)
    else:
        assert weight.sum() ** 2 / (weight**2).sum() / 2000 == pytest.approx(part, abs=1e-6)
        assert power == pytest.approx(np.sqrt(-np.log(0.8)) / spread, rel=0.05)  # sampling error of 2,000 rows


def test_a_relevance_of_zero_stays_zero_and_tiny_ones_are_numbers() -> None:
    for n_zeros in (10, 30):  # of 100: more than a fifth of zeros leaves no power that keeps four fifths of the pairs
        relevance = np.where(np.arange(100) < n_zeros, 0.0, 1.0)
        np.testing.assert_array_equal(temper(relevance), relevance)
    assert effective_size(np.full(7, 1e-300)) == pytest.approx(7)
    x, y, *_ = draw(strength=1.0)
    one = (np.arange(len(x)) == 0).astype(float)
    with pytest.raises(ValueError, match="no pair would count"):
        make_model().fit(x, y, sample_weight=1 - one, relevance=one)
    with pytest.warns(UserWarning, match="80 pairs count like 1.0, and scores are as uncertain as that.$"):
        make_model().fit(x, y, relevance=1e-6 + one)


def test_what_goes_on_takes_the_bias_of_the_new_pairs() -> None:
    plain, biased = draw(strength=0.0), draw(strength=1.0)
    model = fit(plain, objective="inverse_eot", search__emphasis="auto", warm_start=True)
    assert {final["emphasis"] for final in model.finals_} == {0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*biased[:2], X_unpaired=biased[2], Y_unpaired=biased[3])
    assert {final["emphasis"] for final in model.finals_} == {1.0}


def test_known_bias_needs_a_population() -> None:
    data = draw(strength=1.0)
    with pytest.raises(ValueError, match="needs X_unpaired"):
        make_model(pairs_are="biased").fit(data[0], data[1])
    with pytest.warns(UserWarning, match="too few to estimate"):
        make_model(pairs_are="biased").fit(data[0][:6], data[1][:6], X_unpaired=data[2])


def test_what_was_found_is_saved(tmp_path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(draw(strength=1.0))
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").bias_ == model.bias_
