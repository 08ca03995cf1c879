"""`EnergyTranslator`: the paper's algorithm learns, says when it does not, and keeps what its settings promise."""

import math
import re
import time
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from small_networks import DATA, SMALL, Brightness, Colours, Flat, Linear, Shifted, fit, free, images
from torch import nn

from fewpairs import EnergyTranslator
from fewpairs.datasets.made import TwoBranches
from fewpairs.energies.contrast import Contrast
from fewpairs.energies.energy import MapCost
from fewpairs.energies.samplers import AdjustedLangevin, Langevin
from fewpairs.estimators.settings import ChainSettings, NetworkTraining, Perceptrons


def test_the_papers_algorithm_learns() -> None:
    """Held-out pairs are met far better than by the first networks, and the chains are those that were asked for."""
    data = TwoBranches().draw(n_pairs=300, n_source=300, n_target=300, seed=1)
    settings = {
        **SMALL,
        "perceptrons": Perceptrons(cost_hidden=(32, 32), potential_hidden=(8,)),
        "training": NetworkTraining(max_steps=250, learning_rate=2e-3),
        "chains": ChainSettings(start_std=2.0, sampling_steps=200),
        "sampler": AdjustedLangevin(n_steps=20, step_size=0.05),
        "energy_penalty": 0.01,
    }
    model = EnergyTranslator(**settings)
    model.fit(data.X, data.Y, X_unpaired=data.X_unpaired, Y_unpaired=data.Y_unpaired)
    held_out = model.history_["held_out"]
    assert min(held_out) < 0.75 * held_out[0]
    assert 0.5 < model.history_["acceptance"][-1] < 1  # steps are adapted to 0.574, and end at the longest
    assert 0 < model.buffer_age_ < model.history_["step"][-1]
    assert "energy score" in model.summary()


def test_transport_fits_the_map_to_the_pairs_and_the_draws_to_the_target() -> None:
    """The map is that of least squares, whatever chains do; the potential squeezes draws around it, which would be a Gaussian,
    into the uniform target. The paper's loss leaves the pairs behind."""
    random = np.random.default_rng(0)
    x, target = random.normal(size=(600, 1)), random.uniform(-1, 1, size=(600, 1))
    y = -0.9 * x[:12] + 0.3 * random.normal(size=(12, 1))
    settings = {
        "cost": MapCost(nn.Linear(1, 1)),
        "perceptrons__potential_hidden": (32, 32),
        "sampler": Langevin(n_steps=20, step_size=0.1, target=None),
        "chains__sampling_steps": 100,
        "training__held_out": 0.0,
        "training__max_steps": 400,
        "training__learning_rate": 0.03,
        "training__potential_learning_rate": 0.01,
        "training__batch_size": 128,
    }
    slopes = {}
    for objective in ("auto", "inverse_eot"):
        model = free(**settings, objective=objective)
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


def test_a_range_that_data_leave_is_warned_of() -> None:
    sampler = Langevin(n_steps=5, clamp=(0.0, 100.0))  # as if it were in the units of y
    with pytest.warns(UserWarning, match=r"lie between -.* standardised units"):
        free(sampler=sampler).fit(DATA.X, 50 + 10 * DATA.Y)
    grey = 127.5 * (images(20) + 1)
    networks = {"cost": MapCost(Colours()), "potential": Brightness(), "verbose": False}
    recipe = EnergyTranslator.from_recipe("images", **networks, training__max_steps=1, chains__sampling_steps=1)
    with pytest.warns(UserWarning, match=r"between -1 and 1, .* your own units"):
        recipe.fit(grey, grey)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "marginal"}, "objective of EnergyTranslator must be"),
        ({"objective": "transport"}, "bounded below"),
        ({"sampler": "langevin"}, "sampler of EnergyTranslator must be"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit(free(**settings))


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
        EnergyTranslator()._warn_of_drift(gap, temperature)
    assert bool(caught) == (message is not None)
    assert message is None or re.search(message, str(caught[0].message))


class Steep(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1e11))

    def forward(self, x, y):
        return self.weight * y.square().sum(-1)


def test_chains_that_no_longer_move_end_training() -> None:
    """A Gaussian of variance 5e-12, all finite: η, adapted to a drift of 0.2, comes to 0.16 times that, below its floor."""
    chains = {"sampler": Langevin(n_steps=50, step_size=1e-11), "chains__sampling_steps": 1, "energy_penalty": 0.0}
    with pytest.warns(ConvergenceWarning, match="ran away"):
        model = fit(free(**chains, cost=Steep(), training__held_out=0.0))
    assert model.ended_ == "diverged"
    assert all(np.isfinite(model.history_[name]).all() for name in ("surrogate", "energy_gap", "step_size"))


def test_kept_networks_keep_their_step_size(monkeypatch) -> None:
    """Every look is worse than the first: its networks are kept, and the step size that chains had there, not at the end."""
    losses = iter(range(100))
    monkeypatch.setattr(Contrast, "judge", lambda self: torch.full((1, 1), -float(next(losses))))
    model = fit(free(chains__sampling_steps=1))
    sizes = model.history_["step_size"]
    assert len(set(sizes)) == 5 and model.n_steps_ == 1
    assert model.step_size_ == sizes[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"training__held_out": 0.0},
        {"time_budget": 1e-9},
        {"chains__replay": 0.0, "training__held_out": 0.0},
        {"sampler": AdjustedLangevin(n_steps=5)},
    ],
)
def test_summaries_tell_what_is_known_and_nothing_else(settings) -> None:
    model = fit(free(**settings))
    summary = model.summary()
    assert "nan" not in summary
    if "time_budget" not in settings:
        assert f"differed by {model.history_['energy_gap'][-1]:+.2f}" in summary
        assert ("energy score" in summary) == ("training__held_out" not in settings)
        assert ("accepted" in summary) == ("sampler" in settings)


def test_a_time_budget_is_kept() -> None:
    """The default networks and chains, where a look at 100 held-out pairs takes longer than all of the budget."""
    data = TwoBranches().draw(n_pairs=500, n_source=10, n_target=10, seed=0)
    start = time.perf_counter()
    model = EnergyTranslator(time_budget=2.0, random_state=0, verbose=False, device="cpu").fit(data.X, data.Y)
    assert time.perf_counter() - start < 6
    assert model.ended_ == "out of time" and model.n_steps_ == model.history_["step"][-1] > 0


def test_what_depends_on_x_alone_changes_nothing() -> None:
    """c(x, y) + g(x) is the same plan: the same draws, and the same report of its chains."""
    settings = {"energy_penalty": 0.0, "training__max_steps": 12, "training__batch_size": 20}
    one, two = (fit(free(**settings, cost=Shifted(shift))) for shift in (0.0, 100.0))
    assert np.allclose(one.sample(DATA.X, 2, random_state=0), two.sample(DATA.X, 2, random_state=0), atol=1e-3)
    assert one.buffer_age_ == two.buffer_age_ > 0
    y = np.linspace(-1, 1, 60)[:, None]
    densities = [model.estimate_log_likelihood(DATA.X, y).log_likelihood for model in (one, two)]
    assert np.allclose(*densities, atol=1e-2)  # float32 at energies of hundreds


def test_a_penalty_keeps_energies_small() -> None:
    """The same fit with and without: a strong penalty on u² leaves less than half of it."""
    sizes = []
    for penalty in (0.0, 1.0):
        training = {"training__learning_rate": 0.01, "training__held_out": 0.0, "training__max_steps": 40}
        model = fit(free(energy_penalty=penalty, confinement=None, **training))
        sizes.append(np.square(model.energy(DATA.X, DATA.Y)).mean())
    assert sizes[1] < 0.5 * sizes[0]


def test_spectral_norm_reaches_the_networks_of_a_model() -> None:
    """Steps are long enough that layers would leave one singular value of one by far; the power method lags a little behind."""
    norms = {}
    for spectral_norm in (False, True):
        training = {"training__learning_rate": 0.1, "training__max_steps": 30}
        model = fit(free(perceptrons__spectral_norm=spectral_norm, **training))
        layers = [layer for layer in model.plan_.modules() if isinstance(layer, nn.Linear)]
        norms[spectral_norm] = max(float(torch.linalg.matrix_norm(layer.weight, 2)) for layer in layers)
    assert norms[True] < 1.2 < norms[False]


def test_training_that_drifts_is_warned_of() -> None:
    """Steps a thousand times too long, and no means against it: energies run away, and chains do not follow."""
    hasty = NetworkTraining(learning_rate=1.0, one_cycle=False, max_grad_norm=None, max_steps=40, batch_size=32)
    with pytest.warns(ConvergenceWarning, match=r"drifts|ran away"):
        fit(free(energy_penalty=0.0, confinement=None, training=hasty))


def test_numbers_that_are_not_finite_end_training_and_not_the_program() -> None:
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(())), 0

        def forward(self, y):
            self.calls += 1
            return self.weight * y.sum(-1) * (math.nan if self.calls > 60 else 1.0)

    with pytest.warns(ConvergenceWarning, match="ran away"):
        model = fit(free(potential=Broken(), training__max_steps=50))
    assert model.ended_ == "diverged"


def test_scores_that_are_no_numbers_end_training() -> None:
    """A chain that leaves every bound while it judges: the networks of the best look before are kept."""
    scores = iter([-1.0, -math.inf])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contrast, "judge", lambda self: torch.full((1, 1), next(scores)))
        with pytest.warns(ConvergenceWarning, match="ran away"):
            model = fit(free(chains__sampling_steps=1))  # looks are cheap, and come after every step
    assert model.ended_ == "diverged" and model.n_steps_ == 1 and len(model.history_["step"]) == 2


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_draws_follow_the_energy(slope: float) -> None:
    """Where the networks make a Gaussian of spread 1 around the slope: its mean and quantiles, to four standard errors of a
    thousand draws and a twentieth, by which short steps are still wrong."""
    frozen = NetworkTraining(learning_rate=1e-12, max_steps=1, held_out=0.0)
    settings = {"confinement": 1.0, "standardise": False, "chains": ChainSettings(sampling_steps=200)}
    model = free(cost=Linear(slope), potential=Flat(), sampler=Langevin(n_steps=5), training=frozen, **settings)
    model = fit(model)
    truth = torch.distributions.Normal(slope, 1.0)
    for level, found in zip((0.1, 0.5, 0.9), model.predict_quantiles(DATA.X[:3], (0.1, 0.5, 0.9)), strict=True):
        reached = truth.cdf(torch.from_numpy(found)).numpy()
        assert (np.abs(reached - level) < 4 * math.sqrt(level * (1 - level) / 1000) + 0.05).all()
    assert np.allclose(model.predict(DATA.X[:3]), slope, atol=4 / math.sqrt(256) + 0.05)


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_recipes_are_the_papers(name: str) -> None:
    model = EnergyTranslator.from_recipe(name)
    assert (model.objective, model.epsilon) == ("inverse_eot", 1.0)
    assert model.energy_penalty == model.smoothing == model.training.held_out == 0
    if name == "paper":
        networks, training = model.perceptrons, model.training
        assert (tuple(networks.cost_hidden), tuple(networks.potential_hidden)) == ((256, 256, 256), (128, 128))
        assert (training.learning_rate, training.potential_learning_rate) == (5e-4, 2e-4)
        assert (model.sampler.step_size, model.sampler.temperature, model.sampler.target) == (0.05, 1.0, None)
    else:  # their step of 0.05 with a noise of 0.005 is ours at another temperature: η/2T = 0.05/2, √η = 0.005
        assert model.sampler.step_size / model.sampler.temperature == pytest.approx(0.05)
        assert math.sqrt(model.sampler.step_size) == pytest.approx(0.005)
    with pytest.raises(ValueError, match="no recipe"):
        EnergyTranslator.from_recipe("mine")
