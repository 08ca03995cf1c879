"""`NeuralTranslator`: corrections that help and ones that do not, the paper's algorithm, images, files, errors."""

import itertools
import math
import re
import time
import warnings

import numpy as np
import pytest
import torch
from conftest import FIXED
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from fewpairs import MixtureTranslator, NeuralTranslator, load
from fewpairs.data.folds import row_keys
from fewpairs.data.samples import Samples
from fewpairs.datasets.made import LinearGaussian, TwoBranches
from fewpairs.energies.energy import Energy, MapCost
from fewpairs.energies.normalisers import anneal, integrate
from fewpairs.energies.samplers import AdjustedLangevin, Langevin
from fewpairs.training.loops import Loop

DATA = TwoBranches().draw(n_pairs=60, n_source=100, n_target=100, seed=0)
UNPAIRED = {"X_unpaired": DATA.X_unpaired, "Y_unpaired": DATA.Y_unpaired}
SMALL = {"cost_hidden": (16,), "potential_hidden": (8,), "random_state": 0, "verbose": False, "device": "cpu"}
FREE = {**SMALL, "base": None, "max_steps": 5, "sampler": Langevin(n_steps=5), "sampling_steps": 20, "batch_size": 32}
QUICK_BASE = MixtureTranslator(**{**FIXED, "max_steps": 5, "n_atoms": 5})
CORRECTED = {**SMALL, "base": QUICK_BASE, "max_steps": 5, "batch_size": 16, "n_draws": 8}


def fit(**settings) -> NeuralTranslator:
    return NeuralTranslator(**settings).fit(DATA.X, DATA.Y, **UNPAIRED)


def test_a_correction_repairs_a_base_that_is_too_simple() -> None:
    """Two branches under one Gaussian a row: what networks bring is told, real on fresh pairs, and within the truth's reach."""
    problem = TwoBranches()
    data = problem.draw(n_pairs=600, n_source=10, n_target=10, seed=0)
    base = MixtureTranslator(**{**FIXED, "n_atoms": 1, "n_slopes": 1, "max_steps": 100})
    settings = {**SMALL, "cost_hidden": (64, 64), "max_steps": 300, "objective": "supervised"}
    model = NeuralTranslator(base=base, **settings).fit(data.X, data.Y)
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
    base = MixtureTranslator(**{**FIXED, "hidden": (), "max_steps": 300, "n_atoms": 1})
    model = NeuralTranslator(base=base, **SMALL, max_steps=60).fit(data.X, data.Y)
    assert float(model.plan_.strength) == 0
    assert np.allclose(model.score_samples(data.X, data.Y), model.base_.score_samples(data.X, data.Y))
    assert "the model is its base" in model.summary()


def test_a_fitted_base_is_taken_as_it_is_and_a_new_one_is_fitted_alike() -> None:
    fitted = clone(QUICK_BASE).fit(DATA.X, DATA.Y, **UNPAIRED)
    one, two = fit(**{**CORRECTED, "base": fitted}), fit(**CORRECTED)
    assert one.base_ is fitted
    assert np.allclose(two.base_.predict(DATA.X), fitted.predict(DATA.X))
    assert not hasattr(QUICK_BASE, "plan_")


def test_pairs_meet_members_that_have_not_seen_them() -> None:
    base = MixtureTranslator(**{**FIXED, "max_steps": 5, "n_folds": 3}).fit(DATA.X, DATA.Y, **UNPAIRED)
    kept = [base.plan_in_parts(unseen=fold) for fold in range(3)]
    members = base.plan_.members
    for fold, plan in enumerate(kept):
        assert plan.members[0] is members[0]  # it ignores x
        assert all(member is members[1 + fold + 3 * part] for part, member in enumerate(plan.members[1:]))
    assert sum(len(plan.members) - 1 for plan in kept) == len(members) - 1
    # What is left of each fold is a model like the whole: the whole is their average.
    x, y = base.x_scaler_(torch.tensor(DATA.X)), base.y_scaler_(torch.tensor(DATA.Y))
    average = torch.stack([plan.log_prob(x, y) for plan in kept]).logsumexp(0) - math.log(3)
    torch.testing.assert_close(average, base.plan_.log_prob(x, y), rtol=1e-10, atol=1e-10)
    # And in its parts it is what it was: the same density, and as many opinions as without a fold.
    whole = base.plan_in_parts()
    torch.testing.assert_close(whole.log_prob(x, y), base.plan_.log_prob(x, y), rtol=1e-10, atol=1e-10)
    assert len(whole.members) == len(kept[0].members)
    torch.testing.assert_close(whole.conditional(x).variance, base.plan_.conditional(x).variance)
    drawn = whole.sample(x[:2], 20_000, torch.Generator().manual_seed(0))
    expected = base.plan_.conditional(x[:2])
    error = expected.variance.sqrt() / math.sqrt(20_000)
    assert bool(((drawn.mean(0) - expected.mean).abs() < 4 * error).all())


@pytest.mark.parametrize("settings", [FREE, CORRECTED, {**FREE, "objective": "supervised"}])
def test_fits_are_repeatable_and_leave_the_generator_alone(settings) -> None:
    state = torch.random.get_rng_state()
    one, two = fit(**settings), fit(**settings)
    assert np.array_equal(one.sample(DATA.X, 2, random_state=0), two.sample(DATA.X, 2, random_state=0))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.sample(DATA.X, 3).shape == (3, 60, 1)
    assert one.predict(DATA.X[:4]).shape == (4, 1)
    assert one.energy(DATA.X, DATA.Y).shape == (60,)
    assert np.isfinite(one.energy(DATA.X, DATA.Y)).all()


def test_the_papers_algorithm_learns() -> None:
    """Held-out pairs are met far better than by the first networks, and the chains are those that were asked for."""
    settings = {"sampler": AdjustedLangevin(n_steps=20, step_size=0.05), "learning_rate": 2e-3, "energy_penalty": 0.01}
    data = TwoBranches().draw(n_pairs=300, n_source=300, n_target=300, seed=1)
    model = NeuralTranslator(
        base=None, **{**SMALL, "cost_hidden": (32, 32)}, max_steps=250, start_std=2.0, sampling_steps=200, **settings
    ).fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    held_out = model.history_["held_out"]
    assert min(held_out) < 0.75 * held_out[0]
    assert 0.5 < model.history_["acceptance"][-1] < 1  # steps are adapted to 0.574, and end at the longest
    assert 0 < model.buffer_age_ < model.history_["step"][-1]
    assert "energy score" in model.summary()


def test_quadrature_and_annealing_agree() -> None:
    """The same energy in two dimensions: by a grid, and by annealed chains, within four of the standard errors that they tell."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 2))
    y = x + random.normal(size=(40, 2))
    model = NeuralTranslator(**{**FREE, "energy_penalty": 0.1}).fit(x, y)
    model.plan_.potential = _Bowl()
    grid = model.estimate_log_likelihood(x[:5], y[:5])
    assert grid.method == "quadrature"
    assert grid.error.max() < 1e-3
    rows, box = model._standardised(x[:5]), torch.tensor(model.box_)
    log_z, error = anneal(model.plan_, rows, 2, std=1.0, n_chains=500, generator=torch.Generator().manual_seed(0))
    by_grid, _ = integrate(model.plan_, rows, *box)
    assert float(error.max()) < 0.2
    assert bool(((log_z - by_grid).abs() < 4 * error).all())


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_range_of_the_chains_is_one_of_the_densities(n_outputs: int) -> None:
    """u is linear, so that each output has an exponential density between the ends of the range, and none outside."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 1)), random.uniform(-1, 1, size=(30, n_outputs))
    frozen = {"learning_rate": 1e-12, "max_steps": 1, "held_out": 0.0, "confinement": None, "standardise": False}
    networks = {"cost": _Linear(*[1.5] * n_outputs), "potential": _Flat()}
    sampler = Langevin(n_steps=5, clamp=(-1.0, 1.0))
    model = NeuralTranslator(**{**FREE, **frozen, **networks, "sampler": sampler}).fit(x, y)
    estimate = model.estimate_log_likelihood(x[:5], y[:5], n_draws=500)
    truth = (1.5 * y[:5] - math.log(2 * math.sinh(1.5) / 1.5)).sum(1)
    assert estimate.error.max() < 0.1
    assert (np.abs(estimate.log_likelihood - truth) < 4 * estimate.error + 1e-4).all()
    outside = model.estimate_log_likelihood(x[:5], y[:5] + 2, n_draws=20)
    assert (outside.log_likelihood == -math.inf).all() and (outside.error == 0).all()


def test_a_range_that_data_leave_is_warned_of() -> None:
    sampler = Langevin(n_steps=5, clamp=(0.0, 100.0))  # as if it were in the units of y
    with pytest.warns(UserWarning, match=r"lie between -.* standardised units"):
        NeuralTranslator(**{**FREE, "sampler": sampler}).fit(DATA.X, 50 + 10 * DATA.Y)
    grey = 127.5 * (images(20) + 1)
    recipe = {
        "cost": MapCost(Colours()),
        "potential": Brightness(),
        "max_steps": 1,
        "sampling_steps": 1,
        "verbose": False,
    }
    with pytest.warns(UserWarning, match=r"between -1 and 1, .* your own units"):
        NeuralTranslator.from_recipe("images", **recipe).fit(grey, grey)


def test_more_outputs_are_annealed() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 1)), random.normal(size=(20, 3))
    estimate = NeuralTranslator(**FREE).fit(x, y).estimate_log_likelihood(x, y, n_draws=20)
    assert estimate.method == "annealed importance sampling"
    assert estimate.log_likelihood.shape == estimate.error.shape == (20,)


class _Difference(nn.Module):
    def forward(self, x, y):
        return (x - y).square().sum(-1)


class _Bowl(nn.Module):
    def forward(self, y):
        return -y.square().sum(-1)


@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_a_base_without_folds_is_corrected_too(held_out: float) -> None:
    base = MixtureTranslator(**{**FIXED, "max_steps": 5, "n_folds": 1})
    model = fit(**{**CORRECTED, "base": base, "held_out": held_out})
    assert model.n_steps_ > 0
    assert math.isnan(model.correction_gain_) == (held_out == 0)
    assert (float(model.plan_.strength) == 1) >= (held_out == 0)  # with nothing to judge by, all of it is kept


def test_densities_do_not_depend_on_the_scale_inside() -> None:
    """Without standardising, the box of the quadrature is where the data are, and not around zero; a range ends it."""
    data = {"X_unpaired": DATA.X_unpaired, "Y_unpaired": DATA.Y_unpaired + 50}
    sampler = Langevin(n_steps=5, clamp=(45.0, 60.0))
    model = NeuralTranslator(**{**FREE, "sampler": sampler}, standardise=False, confinement=None)
    model.fit(DATA.X, DATA.Y + 50, **data)
    low, high = (corner[0] for corner in model.box_)
    assert low < 50 < high < 100
    y = np.linspace(45, 60, 200)[:, None]
    estimate = model.estimate_log_likelihood(DATA.X[:1].repeat(200, 0), y)
    assert np.exp(estimate.log_likelihood).mean() * 15 == pytest.approx(1.0, rel=0.01)
    assert np.isinf(model.estimate_log_likelihood(DATA.X[:2], [[44.9], [60.1]]).log_likelihood).all()


def test_densities_are_in_the_users_units() -> None:
    """Metres or millimetres: densities differ by the volume alone, draws by the factor."""
    one = fit(**CORRECTED)
    two = NeuralTranslator(**CORRECTED).fit(
        DATA.X, 1000 * DATA.Y, X_unpaired=DATA.X_unpaired, Y_unpaired=1000 * DATA.Y_unpaired
    )
    assert np.allclose(
        one.score_samples(DATA.X, DATA.Y), two.score_samples(DATA.X, 1000 * DATA.Y) + math.log(1000), atol=1e-3
    )
    draws = [model.sample(DATA.X, 1, random_state=0) for model in (one, two)]
    assert np.allclose(1000 * draws[0], draws[1], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    "settings", [FREE, CORRECTED, {**FREE, "sampler": AdjustedLangevin(n_steps=3, clamp=(-3.0, 3.0))}]
)
def test_files_bring_back_the_same_model(settings, tmp_path) -> None:
    model = fit(**settings)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert np.array_equal(again.sample(DATA.X, 2, random_state=0), model.sample(DATA.X, 2, random_state=0))
    assert np.array_equal(again.energy(DATA.X, DATA.Y), model.energy(DATA.X, DATA.Y))
    assert again.summary() == model.summary()
    assert again.sampler == model.sampler


class Colours(nn.Module):
    """A map of images that is one layer of 1 × 1."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.layer(x)


class Brightness(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(48, 1)

    def forward(self, y):
        return self.layer(y.flatten(1)).squeeze(-1)


def image_model(**settings) -> NeuralTranslator:
    chains = {"sampler": Langevin(n_steps=5, clamp=(-1.0, 1.0)), "epsilon": 0.1}
    return NeuralTranslator(**{**FREE, "cost": MapCost(Colours()), "potential": Brightness(), **chains, **settings})


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, size=(n, 3, 4, 4))


def test_images_go_in_and_come_out_in_their_shape(tmp_path) -> None:
    model = image_model().fit(images(20), images(20, 1), X_unpaired=images(30, 2), Y_unpaired=images(30, 3))
    assert model.base_ is None
    assert model.sample(images(5), 2).shape == (2, 5, 3, 4, 4)
    assert model.predict(images(2)).shape == (2, 3, 4, 4)
    assert np.abs(model.sample(images(5))).max() <= 1
    assert model.energy(images(5), images(5, 1)).shape == (5,)
    assert float(model.x_scaler_.scale.min()) == 1  # pixels stay as they are
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"cost of your own \(MapCost\)"):
        load(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", cost=MapCost(Colours()), potential=Brightness())
    assert np.array_equal(again.sample(images(3), random_state=0), model.sample(images(3), random_state=0))
    with pytest.raises(ValueError, match="not like those"):
        load(tmp_path / "model.safetensors", cost=MapCost(nn.Conv2d(3, 3, 3)), potential=Brightness())
    with pytest.raises(ValueError, match=r"images of shape \(3, 4, 4\)"):
        model.sample(images(2)[:, :, :3])


def test_transport_fits_the_map_to_the_pairs_and_the_draws_to_the_target() -> None:
    """The map is that of least squares, whatever chains do; the potential squeezes draws around it, which would be a Gaussian,
    into the uniform target. The paper's loss leaves the pairs behind."""
    random = np.random.default_rng(0)
    x, target = random.normal(size=(600, 1)), random.uniform(-1, 1, size=(600, 1))
    y = -0.9 * x[:12] + 0.3 * random.normal(size=(12, 1))
    chains = {"sampler": Langevin(n_steps=20, step_size=0.1, target=None), "sampling_steps": 100}
    settings = {**FREE, **chains, "cost": MapCost(nn.Linear(1, 1)), "potential_hidden": (32, 32), "held_out": 0.0}
    settings |= {"max_steps": 400, "learning_rate": 0.03, "potential_learning_rate": 0.01, "batch_size": 128}
    slopes = {}
    for objective in ("auto", "inverse_eot"):
        model = NeuralTranslator(**settings, objective=objective)
        model.fit(x[:12], y, X_unpaired=x[12:], Y_unpaired=target)
        flat = [model.x_scaler_(torch.tensor(x[:12])).flatten(), model.y_scaler_(torch.tensor(y)).flatten()]
        slope, intercept = np.polyfit(*(part.numpy() for part in flat), 1)
        slopes[objective] = float(model.plan_.cost.map.weight)
        if objective == "auto":
            assert model.objective_ == "transport"
            assert slopes[objective] == pytest.approx(slope, abs=0.03)  # Adam's last steps are small, not none
            assert float(model.plan_.cost.map.bias) == pytest.approx(intercept, abs=0.03)
            drawn = model.sample(x, random_state=0).ravel()
            assert np.std(drawn) == pytest.approx(np.std(target), rel=0.1)
            assert np.mean(np.abs(drawn) < 1.1) > 0.95
            assert np.corrcoef(drawn, x.ravel())[0, 1] < -0.5
    assert abs(slopes["inverse_eot"] - slope) > 3 * abs(slopes["auto"] - slope)


def test_the_recipe_for_images_takes_networks_and_learns() -> None:
    settings = {"max_steps": 3, "sampling_steps": 5, "device": "cpu", "verbose": False}
    model = NeuralTranslator.from_recipe("images", cost=MapCost(Colours()), potential=Brightness(), **settings)
    model.fit(images(20), images(20, 1), X_unpaired=images(30, 2), Y_unpaired=images(30, 3))
    assert model.objective_ == "transport"
    assert np.abs(model.sample(images(5))).max() <= 1


def test_a_black_margin_is_no_constant_column() -> None:
    """In a table it would be one, and without a density."""
    framed, others = images(20), images(30, 1)
    framed[:, :, 0], others[:, :, 0] = -1, -1
    model = image_model().fit(framed, framed, X_unpaired=others, Y_unpaired=others)
    assert model.sample(framed[:2]).shape == (1, 2, 3, 4, 4)
    with pytest.raises(ValueError, match="zero variance"):
        NeuralTranslator(**FREE).fit(framed.reshape(20, -1), framed.reshape(20, -1))


def test_the_users_networks_are_left_alone() -> None:
    cost = MapCost(Colours())
    before = cost.map.layer.weight.detach().clone()
    image_model(cost=cost).fit(images(20), images(20, 1))
    assert torch.equal(cost.map.layer.weight, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": None, "objective": "marginal"}, "needs the normaliser"),
        ({"objective": "inverse_eot"}, "without a base"),
        ({"objective": "transport"}, "without a base"),
        ({"base": None, "objective": "transport"}, "bounded below"),
        ({"base": "no"}, "base"),
        ({"sampler": "langevin"}, "sampler"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(**{**CORRECTED, **settings})


@pytest.mark.parametrize(
    ("gap", "temperature", "message"),
    [
        (30.0, 1.0, "30 above .* do not reach where the data are"),
        (-30.0, 1.0, "30 below .* do not know yet"),
        (30.0, 100.0, None),
        (19.0, 0.1, None),
    ],
)
def test_a_gap_is_told_by_its_sign_and_in_the_chains_temperature(gap, temperature, message) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        NeuralTranslator()._warn_of_drift(gap, temperature)
    assert bool(caught) == (message is not None)
    assert message is None or re.search(message, str(caught[0].message))


def test_chains_that_no_longer_move_end_training() -> None:
    """A Gaussian of variance 5e-12, all finite: η, adapted to a drift of 0.2, comes to 0.16 times that, below its floor."""
    chains = {"sampler": Langevin(n_steps=50, step_size=1e-11), "sampling_steps": 1, "energy_penalty": 0.0}
    with pytest.warns(ConvergenceWarning, match="ran away"):
        model = fit(**{**FREE, **chains, "cost": _Steep(), "held_out": 0.0})
    assert model.ended_ == "diverged"
    assert all(np.isfinite(model.history_[name]).all() for name in ("surrogate", "energy_gap", "step_size"))


class _Steep(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1e11))

    def forward(self, x, y):
        return self.weight * y.square().sum(-1)


def test_kept_networks_keep_their_step_size(monkeypatch) -> None:
    """Every look is worse than the first: its networks are kept, and the step size that chains had there, not at the end."""
    scores = iter(range(100))
    monkeypatch.setattr("fewpairs.energies.learning.Contrast.judge", lambda self: float(next(scores)))
    model = fit(**{**FREE, "sampling_steps": 1})
    sizes = model.history_["step_size"]
    assert len(set(sizes)) == 5 and model.n_steps_ == 1
    assert model.step_size_ == sizes[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"held_out": 0.0},
        {"time_budget": 1e-9},
        {"replay": 0.0, "held_out": 0.0},
        {"sampler": AdjustedLangevin(n_steps=5)},
        {"base": QUICK_BASE, "time_budget": 1e-3},
    ],
)
def test_summaries_tell_what_is_known_and_nothing_else(settings) -> None:
    model = fit(**{**FREE, **settings})
    summary = model.summary()
    assert "nan" not in summary
    if model.base_ is None and "time_budget" not in settings:
        assert f"differed by {model.history_['energy_gap'][-1]:+.2f}" in summary
        assert ("energy score" in summary) == ("held_out" not in settings)
        assert ("accepted" in summary) == ("sampler" in settings)


def test_a_time_budget_is_kept_without_a_base() -> None:
    """The default networks and chains, where a look at 100 held-out pairs takes longer than all of the budget."""
    data = TwoBranches().draw(n_pairs=500, n_source=10, n_target=10, seed=0)
    start = time.perf_counter()
    model = NeuralTranslator(base=None, time_budget=2.0, random_state=0, verbose=False, device="cpu").fit(
        data.X, data.Y
    )
    assert time.perf_counter() - start < 6
    assert model.ended_ == "out of time" and model.n_steps_ == model.history_["step"][-1] > 0


class _Step:
    """In place of training: a network whose number is the count of its steps, and what was looked at."""

    def __init__(self, pause: float = 0.0):
        self.network, self.looks, self.pause = nn.Linear(1, 1), [], pause
        self.network.weight.data.zero_()

    def step(self, batch):
        time.sleep(self.pause)
        self.network.weight.data.add_(1)
        return {"loss": torch.zeros(())}

    def judge(self) -> float:
        self.looks.append(int(self.network.weight))
        time.sleep(10 * self.pause)
        return -float(self.network.weight)

    def run(self, **settings) -> Loop:
        loop = Loop(**settings)
        with torch.no_grad():
            loop.run(self.network, self.step, itertools.repeat(None), self.judge)
        return loop


def test_looks_cost_no_more_than_training() -> None:
    dear, cheap = _Step(), _Step()
    dear.run(max_steps=205, look_cost=10.0)
    cheap.run(max_steps=205)
    assert len(cheap.looks) > len(dear.looks) > 5
    assert np.diff([0, *dear.looks])[:-1].min() >= 10  # the last one is always there
    assert dear.looks[-1] == cheap.looks[-1] == 205


def test_budgets_leave_time_for_the_last_look_or_do_without() -> None:
    """A look is ten steps of a hundredth of a second: within a second there is time for some, and within 0.15 for none. The last
    networks are kept all the same, and nothing is looked at twice."""
    some, none = _Step(pause=0.01), _Step(pause=0.01)
    start = time.perf_counter()
    loop = some.run(max_steps=10_000, look_cost=10.0, time_budget=1.0)
    assert time.perf_counter() - start < 2  # a busy machine oversleeps
    assert loop.ended == "out of time" and len(set(some.looks)) == len(some.looks) > 1
    assert int(some.network.weight) == some.looks[-1]
    loop = none.run(max_steps=10_000, look_cost=10.0, time_budget=0.15)
    assert none.looks == [] and int(none.network.weight) == loop.history["step"][-1] > 0


def test_what_depends_on_x_alone_changes_nothing() -> None:
    """c(x, y) + g(x) is the same plan: the same draws, and the same report of its chains."""
    settings = {**FREE, "energy_penalty": 0.0, "max_steps": 12, "batch_size": 20}
    one, two = (fit(**{**settings, "cost": _Shifted(shift)}) for shift in (0.0, 100.0))
    assert np.allclose(one.sample(DATA.X, 2, random_state=0), two.sample(DATA.X, 2, random_state=0), atol=1e-3)
    assert one.buffer_age_ == two.buffer_age_ > 0
    y = np.linspace(-1, 1, 60)[:, None]
    densities = [model.estimate_log_likelihood(DATA.X, y).log_likelihood for model in (one, two)]
    assert np.allclose(*densities, atol=1e-2)  # float32 at energies of hundreds


class _Shifted(nn.Module):
    """A linear map's cost and a number that depends on x alone."""

    def __init__(self, shift: float):
        super().__init__()
        self.slope, self.shift = nn.Parameter(torch.tensor(0.5)), shift

    def forward(self, x, y):
        return (y - self.slope * x).square().sum(-1) + self.shift * x.sin().sum(-1)


def test_a_penalty_keeps_energies_small() -> None:
    """The same fit with and without: a strong penalty on u² leaves less than half of it."""
    sizes = []
    for penalty in (0.0, 1.0):
        settings = {"energy_penalty": penalty, "confinement": None, "learning_rate": 0.01, "held_out": 0.0}
        model = fit(**{**FREE, **settings, "max_steps": 40})
        sizes.append(np.square(model.energy(DATA.X, DATA.Y)).mean())
    assert sizes[1] < 0.5 * sizes[0]


def test_spectral_norm_reaches_the_networks_of_a_model() -> None:
    """Steps are long enough that layers would leave one singular value of one by far; the power method lags a little behind."""
    norms = {}
    for spectral_norm in (False, True):
        model = fit(**{**FREE, "spectral_norm": spectral_norm, "learning_rate": 0.1, "max_steps": 30})
        layers = [layer for layer in model.plan_.modules() if isinstance(layer, nn.Linear)]
        norms[spectral_norm] = max(float(torch.linalg.matrix_norm(layer.weight, 2)) for layer in layers)
    assert norms[True] < 1.2 < norms[False]


def test_pairs_that_all_judge_are_refused() -> None:
    base = clone(QUICK_BASE).fit(DATA.X, DATA.Y, **UNPAIRED)
    known = dict(zip(base.fold_keys_.tolist(), base.folds_.tolist(), strict=True))
    samples = Samples.gather(*(torch.tensor(rows) for rows in (DATA.X, DATA.Y)))
    here = [known[key] == 0 for key in row_keys(samples)]
    with pytest.raises(ValueError, match="first fold of the base"):
        NeuralTranslator(**{**CORRECTED, "base": base}).fit(DATA.X[here], DATA.Y[here])


def test_other_classes_of_networks_are_not_loaded(tmp_path) -> None:
    class Other(_Shifted):
        pass

    fit(**{**FREE, "cost": _Shifted(0.0)}).save(tmp_path / "own.safetensors")
    with pytest.raises(ValueError, match="cost is a Other, but this model was fitted with a _Shifted"):
        load(tmp_path / "own.safetensors", cost=Other(0.0))
    fit(**FREE).save(tmp_path / "default.safetensors")
    with pytest.raises(ValueError, match="none of your own: leave it out"):
        load(tmp_path / "default.safetensors", cost=_Shifted(0.0))


def test_means_ask_the_map_about_each_image_once(monkeypatch) -> None:
    """However many chains it has. In blocks of bounded size, on which neither means nor energies depend."""
    model = image_model(sampler=Langevin(n_steps=5, temperature=1e-6, step_size=1e-6, target=None))
    model.fit(images(20), images(20, 1))
    whole, energies = model.predict(images(7)), model.energy(images(2000), images(2000, 1))
    sizes, forward = [], Colours.forward

    def count(self, x):
        sizes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Colours, "forward", count)
    monkeypatch.setattr("fewpairs.estimators.neural_answers.MOST_NUMBERS", 3 * 256 * 48)
    assert np.allclose(
        model.predict(images(7)), whole, atol=0.01
    )  # chains as cold as these have all but found the least u
    assert sizes == [3, 3, 1]
    assert model.sample(images(2), 1000).shape == (1000, 2, 3, 4, 4)
    assert np.allclose(model.energy(images(2000), images(2000, 1)), energies, rtol=1e-4)
    assert max(sizes) == 3 * 256


def test_training_that_drifts_is_warned_of() -> None:
    """Steps a thousand times too long, and no means against it: energies run away, and chains do not follow."""
    bare = {**FREE, "energy_penalty": 0.0, "confinement": None}
    with pytest.warns(ConvergenceWarning, match=r"drifts|ran away"):
        fit(**{**bare, "learning_rate": 1.0, "one_cycle": False, "max_grad_norm": None, "max_steps": 40})


def test_an_interrupt_keeps_the_best_so_far(monkeypatch) -> None:
    from fewpairs.energies.learning import Contrast

    step, count = Contrast.step, []

    def stop(self, hand):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return step(self, hand)

    monkeypatch.setattr(Contrast, "step", stop)
    with pytest.warns(UserWarning, match="Interrupted"):
        model = fit(**FREE)
    assert model.ended_ == "interrupted"
    assert model.sample(DATA.X).shape == (1, 60, 1)


def test_densities_are_those_of_the_draws_at_any_temperature() -> None:
    """Cold chains draw from exp(−u/T): the density that is told has their spread, and integrates to one."""
    cold = Langevin(n_steps=5, temperature=0.1, step_size=0.01)
    model = fit(**{**FREE, "sampler": cold, "sampling_steps": 400, "confinement": 1.0})
    x, points = (
        DATA.X[:1],
        np.linspace(-15, 15, 2001)[:, None] * model.y_scaler_.scale.numpy() + model.y_scaler_.loc.numpy(),
    )
    density = np.exp(model.estimate_log_likelihood(x.repeat(2001, 0), points).log_likelihood)
    share = density / density.sum()
    assert density.mean() * float(np.ptp(points)) == pytest.approx(1.0, rel=0.01)
    middle = (share * points[:, 0]).sum()
    spread = math.sqrt((share * (points[:, 0] - middle) ** 2).sum())
    assert model.sample(x, 4000, random_state=0).std() == pytest.approx(
        spread, rel=0.1
    )  # chains are 0.2² too wide, and noise


class _Linear(nn.Module):
    """The cost −⟨slope, y⟩: with a confinement s a Gaussian of this spread around s² slope, wherever that is."""

    def __init__(self, *slopes: float):
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor(slopes))

    def forward(self, x, y):
        return -(self.slopes * y).sum(-1)


class _Flat(nn.Module):
    def forward(self, y):
        return 0 * y.sum(-1)


@pytest.mark.parametrize("slopes", [(0.0,), (1.0,), (2.0,), (-5.0,), (20.0,), (0.0, 0.0), (2.0, -3.0)])
@pytest.mark.parametrize("clamp", [None, (-1.0, 3.0)])
def test_quadrature_finds_gaussians_wherever_they_are(slopes, clamp) -> None:
    """Also where the data, and so the first box, are not; what a range cuts off is not counted. Its error is honest: a few
    rounding errors of float32 sums of thousands of terms more, at the most."""
    energy, spread = Energy(_Linear(*slopes), _Flat(), confinement=2.0), 2.0
    corner, x = torch.full((len(slopes),), 8.0), torch.zeros(2, 1)
    log_z, error = integrate(energy, x, -corner, corner, clamp=clamp)
    truth = 0.0
    for slope in slopes:
        truth += math.log(spread * math.sqrt(2 * math.pi)) + (spread * slope) ** 2 / 2
        if clamp is not None:
            ends = torch.tensor([(end - spread**2 * slope) / spread for end in clamp]).double()
            below, above = torch.special.log_ndtr(-ends.flip(0) if slope < 0 else ends)  # in the tail that is precise
            truth += float(above + torch.log1p(-(below - above).exp()))
    assert float(error.max()) < 0.01
    assert bool(((log_z - truth).abs() < error + 1e-5 * max(1, abs(truth))).all())


def test_quadrature_says_when_it_knows_nothing() -> None:
    """An energy that has no normaliser, one whose peak falls between the points, and one that is no number."""
    corner, x = torch.full((1,), 8.0), torch.zeros(1, 1)
    for energy in (
        Energy(_Linear(0.1), _Flat()),
        Energy(_NoCost(), _Flat(), confinement=1e-4),
        Energy(_Linear(math.nan), _Flat(), confinement=1.0),
    ):
        assert math.isinf(float(integrate(energy, x, -corner, corner)[1]))


class _NoCost(nn.Module):
    def forward(self, x, y):
        return 0 * y.sum(-1)


def test_means_of_a_correction_are_those_of_its_draws() -> None:
    model = fit(**CORRECTED)
    model.plan_.strength.fill_(1.0)
    model.plan_.cost.network[-1].weight.mul_(30.0)
    means, draws = model.predict(DATA.X[:5]), model.sample(DATA.X[:5], 20_000, random_state=0)
    error = draws.std(0) * (1 / math.sqrt(20_000) + 2 / math.sqrt(256))  # weights make the 256 of the mean worth fewer
    assert (np.abs(means - draws.mean(0)) < 4 * error).all()
    model.plan_.strength.fill_(0.0)
    assert np.array_equal(model.predict(DATA.X), model.base_.predict(DATA.X))


def test_numbers_that_are_not_finite_end_training_and_not_the_program() -> None:
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(())), 0

        def forward(self, y):
            self.calls += 1
            return self.weight * y.sum(-1) * (math.nan if self.calls > 60 else 1.0)

    with pytest.warns(ConvergenceWarning, match="ran away"):
        model = fit(**{**FREE, "potential": Broken(), "max_steps": 50})
    assert model.ended_ == "diverged"


def test_two_pairs_judge_nothing() -> None:
    model = NeuralTranslator(**CORRECTED).fit(DATA.X[:4], DATA.Y[:4], **UNPAIRED)
    assert float(model.plan_.strength) == 0
    assert "Too few pairs judged" in model.summary() and "nan" not in model.summary()


def test_images_have_perceptrons_where_no_network_is_given() -> None:
    model = NeuralTranslator(**FREE).fit(images(20), images(20, 1))
    assert model.sample(images(2)).shape == (1, 2, 3, 4, 4)
    assert NeuralTranslator(**FREE).fit(list(images(20)), list(images(20, 1))).x_shape_ == (3, 4, 4)


def test_a_module_begins_with_the_weights_it_has() -> None:
    model = image_model(learning_rate=1e-12, one_cycle=False)
    model.fit(images(20), images(20, 1))
    assert torch.allclose(model.plan_.cost.map.layer.weight, model.cost.map.layer.weight, atol=1e-6)


class Column(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, y):
        return self.layer(y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"potential": Column()}, r"potential must give one number a row, but .* gave \(2, 1\)"),
        ({"cost": nn.Bilinear(7, 1, 1)}, "cost was handed arrays of shape"),
        ({"cost": _Difference(), "potential": _Bowl()}, "nothing to learn"),
        ({"betas": (0.9,)}, "betas"),
    ],
)
def test_networks_that_do_not_fit_are_refused_by_name(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(**{**FREE, **settings})


def test_a_base_of_other_columns_is_refused() -> None:
    base = clone(QUICK_BASE).fit(np.hstack([DATA.X, DATA.X]), DATA.Y)
    with pytest.raises(ValueError, match="2 columns of X and 1 of Y, but 1 and 1 came"):
        fit(**{**CORRECTED, "base": base})


def test_a_fit_that_fails_leaves_the_model_as_it_was() -> None:
    model = fit(**FREE)
    before = model.predict(DATA.X)
    with pytest.raises(ValueError, match="equally many rows"):
        model.fit(images(3), DATA.Y[:2])
    assert np.array_equal(model.predict(DATA.X), before)


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_recipes_are_the_papers(name: str) -> None:
    model = NeuralTranslator.from_recipe(name)
    assert (model.base, model.objective, model.epsilon) == (None, "inverse_eot", 1.0)
    assert model.energy_penalty == model.smoothing == model.held_out == 0
    if name == "paper":
        assert (tuple(model.cost_hidden), tuple(model.potential_hidden)) == ((256, 256, 256), (128, 128))
        assert (model.learning_rate, model.potential_learning_rate) == (5e-4, 2e-4)
        assert (model.sampler.step_size, model.sampler.temperature, model.sampler.target) == (0.05, 1.0, None)
    else:  # their step of 0.05 with a noise of 0.005 is ours at another temperature: η/2T = 0.05/2, √η = 0.005
        assert model.sampler.step_size / model.sampler.temperature == pytest.approx(0.05)
        assert math.sqrt(model.sampler.step_size) == pytest.approx(0.005)
    with pytest.raises(ValueError, match="no recipe"):
        NeuralTranslator.from_recipe("mine")
