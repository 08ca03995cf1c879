"""`NeuralTranslator`: corrections that help and ones that do not, the paper's algorithm, images, files, errors."""

import math

import numpy as np
import pytest
import torch
from conftest import FIXED
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from fewpairs import MixtureTranslator, NeuralTranslator, load
from fewpairs.datasets import LinearGaussian, TwoBranches
from fewpairs.energies import MapCost
from fewpairs.likelihoods import anneal, integrate
from fewpairs.samplers import AdjustedLangevin, Langevin

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
    kept = [base.plan_without(fold) for fold in range(3)]
    members = base.plan_.members
    for fold, plan in enumerate(kept):
        assert float(plan.shares.sum()) == pytest.approx(1.0)
        assert plan.members[0] is members[0]  # it ignores x
        assert all(member is members[1 + fold + 3 * part] for part, member in enumerate(plan.members[1:]))
    assert sum(len(plan.members) - 1 for plan in kept) == len(members) - 1


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
    assert 0 < model.buffer_share_ <= 1
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


def test_more_outputs_are_annealed() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 1)), random.normal(size=(20, 3))
    estimate = NeuralTranslator(**FREE).fit(x, y).estimate_log_likelihood(x, y, n_draws=20)
    assert estimate.method == "annealed importance sampling"
    assert estimate.log_likelihood.shape == estimate.error.shape == (20,)


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
    """Without standardising, the box of the quadrature is where the data are, and not around zero."""
    data = {"X_unpaired": DATA.X_unpaired, "Y_unpaired": DATA.Y_unpaired + 50}
    model = NeuralTranslator(**FREE, standardise=False, confinement=None).fit(DATA.X, DATA.Y + 50, **data)
    low, high = (corner[0] for corner in model.box_)
    assert low < 50 < high < 100
    estimate = model.estimate_log_likelihood(DATA.X[:1].repeat(200, 0), np.linspace(low, high, 200)[:, None])
    assert np.exp(estimate.log_likelihood).mean() * (high - low) == pytest.approx(1.0, rel=0.01)


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
        ({"base": "no"}, "base"),
        ({"sampler": "langevin"}, "sampler"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(**{**CORRECTED, **settings})


def test_training_that_drifts_is_warned_of() -> None:
    """Steps a thousand times too long, and no means against it: energies run away, and chains do not follow."""
    bare = {**FREE, "energy_penalty": 0.0, "confinement": None}
    with pytest.warns(ConvergenceWarning, match=r"drifts|ran away"):
        fit(**{**bare, "learning_rate": 1.0, "one_cycle": False, "max_grad_norm": None, "max_steps": 40})


def test_an_interrupt_keeps_the_best_so_far(monkeypatch) -> None:
    from fewpairs.neural_training import Contrast

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
